"""Signals for a job: the number, and which of its processes get it.

Above the number's eight bits, a signal may be marked as one for the job's first process alone, as
of a batch script's own shell, or for all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from signal import NSIG, Signals

#: Marks of a signal for the job's first process alone, and for all but that one.
FIRST, REST = 0x100, 0x200
#: Words before the name of a signal → its mark.
MARKS = {"first": FIRST, "rest": REST}


def number_of(signal: int) -> int:
    return signal & 0xFF


def is_signal(signal: int) -> bool:
    return 1 <= number_of(signal) < NSIG and signal - number_of(signal) in (0, *MARKS.values())


def reached(pids: Iterable[int], signal: int, first: int | None) -> list[int]:
    """Return the processes that the signal is for, among those of a job with this first process."""
    if signal & FIRST:
        return [pid for pid in pids if pid == first]
    return [pid for pid in pids if pid != first or not signal & REST]


def name_of(number: int) -> str | None:
    """Return `SIGUSR1`, or None for a number without a name, as most real-time signals are."""
    try:
        return Signals(number).name
    except ValueError:
        return None


def show_signal(signal: int) -> str:
    """Return `SIGUSR1`, `rest:SIGUSR1`, or `signal 35`."""
    mark = next((f"{word}:" for word, mark in MARKS.items() if signal & mark), "")
    number = number_of(signal)
    return mark + (name_of(number) or f"signal {number}")
