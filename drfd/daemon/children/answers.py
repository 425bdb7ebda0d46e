"""The answers of a child process of the controller: lines of JSON, of which the last one counts.

A program that answers is run by `Program` in `children.py`, because it reads the journal.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from drfd.common.errors import DrfdError, short_of_memory
from drfd.daemon.lookup.views import error_view
from drfd.protocol.replies import ErrorView

T = TypeVar("T")


class ChildAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer, or why there is none."""

    found: Any = None
    failure: ErrorView | None = None
    #: The end of the traceback of a bug.
    bug: str = ""


def write_answers(answers: Callable[[], Iterable[object]]) -> None:
    """Write each answer to standard output as soon as it is known."""
    try:
        for found in answers():
            _write(ChildAnswer(found))
    except (DrfdError, MemoryError) as caught:
        error = caught if isinstance(caught, DrfdError) else short_of_memory()
        _write(ChildAnswer(failure=error_view(error)))
    except Exception:
        _write(ChildAnswer(bug=traceback.format_exc()[-2000:]))


def _write(answer: ChildAnswer) -> None:
    with open(1, "wb", closefd=False) as out:
        out.write(msgspec.json.encode(answer) + b"\n")


def run_program(task: type[T], answers: Callable[[T], Iterable[object]]) -> None:
    """Write the answers to the task on standard input."""
    write_answers(lambda: answers(msgspec.json.decode(sys.stdin.buffer.read(), type=task)))
