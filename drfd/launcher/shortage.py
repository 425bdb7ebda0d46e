"""What a machine may be short of for a while: memory, processes, descriptors, room on a disk."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from drfd.launcher.attempts import Key

_SHORTAGES = (
    *(errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.EMFILE, errno.ENFILE),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
)
#: How often it is asked whether it still is.
_PAUSE_S = 0.1

Given = ParamSpec("Given")
Result = TypeVar("Result")


def persist(
    key: Key, step: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
) -> Result:
    """For a runner that has let its job go, when nobody else can tell how that ends: a shortage is
    waited for, and the step taken again."""
    is_told = False
    while True:
        try:
            return step(*args, **kwargs)
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _SHORTAGES:
                raise
            if not is_told:
                _say_why(key, error)
            is_told = True
        time.sleep(_PAUSE_S)


def _say_why(key: Key, error: Exception) -> None:
    why = getattr(error, "strerror", None) or "out of memory"
    try:
        os.write(2, f"drfd-launcher: event=runner-waits job={key[0]} error={why}\n".encode())
    except OSError:
        # What is full may be where this goes.
        return
