"""Pools of threads, for what would block the loop.

All threads of a pool are started at once. A machine that has run out of processes starts no new
ones, and a question to the user directory or a sample of a job must not fail for that.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from drfd.common.errors import HostError

#: Threads of the loop's pool: at most, and in addition to one for each CPU. The same numbers as
#: asyncio's default executor has: most threads wait for something.
_MOST_THREADS, _THREADS_BESIDES_CPUS = 32, 4


class ThreadPool(ThreadPoolExecutor):
    """A thread pool that is abandoned at the end: the clients of unfinished work have gone."""

    def __init__(self, count: int, name: str) -> None:
        """Raises HostError when the system cannot start that many threads."""
        super().__init__(count, thread_name_prefix=name)
        # The pool starts a thread only for work that no idle thread takes.
        all_there = threading.Barrier(count)
        try:
            started = [self.submit(all_there.wait) for _ in range(count)]
        except RuntimeError as error:
            all_there.abort()
            self.shutdown()
            raise HostError(
                "threads",
                f"cannot start {count} threads: {error}",
                hint="the machine, or a limit of this service, has no room for more processes",
            ) from None
        for each in started:
            each.result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return at once. `asyncio.run` calls this, and by default it would wait for minutes for
        the end of every computation, in which no client is answered."""
        super().shutdown(wait=False, cancel_futures=True)


def loops_threads() -> ThreadPool:
    """Return the loop's default executor. Raises HostError."""
    return ThreadPool(min(_MOST_THREADS, (os.cpu_count() or 1) + _THREADS_BESIDES_CPUS), "drfd")
