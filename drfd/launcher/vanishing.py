"""What has vanished meanwhile is no error: jobs' cgroups go when they like."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

#: ENODEV: it did so between open and read, or write.
VANISHED = (errno.ENOENT, errno.ENODEV)


@contextmanager
def unless_gone(*also: int) -> Iterator[None]:
    """Leave the block without a word if its file is gone, or for one of these errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*VANISHED, *also):
            raise
