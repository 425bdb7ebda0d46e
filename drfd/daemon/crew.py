"""The threads beside the loop, all there from the start.

A machine that is short of processes has no new ones either, and a question to the directory or a
look at a job must not fail for that.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from drfd.errors import HostError

#: As many as asyncio would have: most of them wait for something.
_MOST, _BESIDES = 32, 4


def muster() -> ThreadPoolExecutor:
    """For the loop's default executor. Raises HostError when there cannot be so many."""
    count = min(_MOST, (os.cpu_count() or 1) + _BESIDES)
    pool = ThreadPoolExecutor(count, thread_name_prefix="drfd")
    # A thread is started only for work that no idle one takes.
    all_there = threading.Barrier(count)
    try:
        started = [pool.submit(all_there.wait) for _ in range(count)]
    except RuntimeError as error:
        all_there.abort()
        pool.shutdown(wait=False)
        raise HostError(
            "threads",
            f"cannot start {count} threads: {error}",
            hint="the machine, or a limit of this service, has no room for more processes",
        ) from None
    for each in started:
        each.result()
    return pool
