"""What has vanished meanwhile is no error: jobs' cgroups go when they like."""

from __future__ import annotations

import errno
from types import TracebackType

#: ENODEV: it did so between open and read, or write.
VANISHED = (errno.ENOENT, errno.ENODEV)


class unless_gone:
    """Leave the block without a word if its file is gone, or for one of these errors."""

    def __init__(self, *also: int) -> None:
        self._passed_over = (*VANISHED, *also)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, OSError) and error.errno in self._passed_over
