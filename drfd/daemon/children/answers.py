"""The answers of a child process of the controller: lines of JSON, of which the last one counts.

A program that answers is run by `Program` in `children.py`, because it reads the journal.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from drfd.common.errors import BY_KIND, DrfdError, short_of_memory

T = TypeVar("T")


class ErrorMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal or a failure, with the fields that it has in a reply."""

    kind: str
    code: str
    text: str
    hint: str = ""

    @classmethod
    def of(cls, error: DrfdError) -> ErrorMessage:
        return cls(type(error).__name__, error.code, error.text, error.hint)

    def error(self) -> DrfdError:
        return BY_KIND.get(self.kind, DrfdError)(self.code, self.text, hint=self.hint)


class ChildAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer, or why there is none."""

    found: Any = None
    failure: ErrorMessage | None = None
    #: The end of the traceback of a bug.
    bug: str = ""


def write_answers(answers: Callable[[], Iterable[object]]) -> None:
    """Write each answer to standard output as soon as it is known."""
    try:
        for found in answers():
            _write(ChildAnswer(found))
    except (DrfdError, MemoryError) as caught:
        error = caught if isinstance(caught, DrfdError) else short_of_memory()
        _write(ChildAnswer(failure=ErrorMessage.of(error)))
    except Exception:
        _write(ChildAnswer(bug=traceback.format_exc()[-2000:]))


def _write(answer: ChildAnswer) -> None:
    with open(1, "wb", closefd=False) as out:
        out.write(msgspec.json.encode(answer) + b"\n")


def run_program(task: type[T], answers: Callable[[T], Iterable[object]]) -> None:
    """Write the answers to the task on standard input."""
    write_answers(lambda: answers(msgspec.json.decode(sys.stdin.buffer.read(), type=task)))
