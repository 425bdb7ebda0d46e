"""Other programs in drfd's way: sockets not its own, and a time limit for what must not wait."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def full_listener(path: Path) -> Iterator[socket.socket]:
    """A socket that listens at `path`, accepts nothing, and whose backlog is full."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        clients = []
        try:
            with suppress(BlockingIOError):
                while True:
                    clients.append(socket.socket(socket.AF_UNIX))
                    clients[-1].setblocking(False)
                    clients[-1].connect(str(path))
            yield listener
        finally:
            for client in clients:
                client.close()


@contextmanager
def fails_after(seconds: float) -> Iterator[None]:
    """Fail the block if it takes longer, also where it waits in the kernel."""

    def fail(*_: object) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
