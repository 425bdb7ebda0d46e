"""Tests that need a process of a single thread, as the launcher is one.

What tests before them leave behind, such as numpy's threads or those of a live view, would keep
`syscalls.fork` from forking in the process that runs them all.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import ParamSpec

import pytest

P = ParamSpec("P")


def alone(test: Callable[P, None]) -> Callable[P, None]:
    """The test, in a child process; it fails with what it raises there."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Of Python 3.12 and later, about the parent's threads: the child does without them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(_tell(writing, lambda: test(*args, **kwargs)))
        os.close(writing)
        with open(reading) as told:
            words = told.read()
        _, status = os.waitpid(pid, 0)
        if words or status:
            pytest.fail(words or f"the test's process ended with status {status}", pytrace=False)

    return run


def _tell(writing: int, test: Callable[[], None]) -> int:
    try:
        test()
    except BaseException:
        os.write(writing, traceback.format_exc().encode(errors="replace")[:60_000])
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
