"""The limits of requests that people meet, and how a refusal tells them.

Each number is here alone: the daemon refuses by it, and clients that make long lists of short words
stop at it."""

from __future__ import annotations

import re

from drfd.common.errors import Refused
from drfd.common.units import AXES, show_cores, show_duration, show_size
from drfd.protocol.job_options import OPTIONS

#: Jobs that one request is about, and that one job waits for.
MOST_IDS, MOST_AFTER = 100_000, 1000
#: Submissions of one list.
MOST_SUBMISSIONS = 1000
#: Characters of a name, and of a path or another text.
NAME_LENGTH, TEXT_LENGTH = 256, 4096
MOST_ARGUMENTS = 32_768

#: Fields of requests → what they are for people.
_WORDS = {
    **{option.field: option.names[0] for option in reversed(OPTIONS)},
    **{f"demand.{axis.field}": axis.option for axis in AXES.values()},
    "argv": "the command", "command": "the command", "cwd": "the directory",
    "demand.disks": "--io", "demand.gres": "--gres", "demand.gres_memory": "--gres",
    "ids": "the list of jobs", "name": "the name", "notify.argv": "--notify-command",
    "reason": "--reason", "retry.times": "--retry", "text": "the filter", "user": "-u",
    "warn.before_s": "--warn",
}  # fmt: skip
_HINTS = {
    "after": "wait for a whole array, or for a job that waits for the others",
    "argv": "write them to a file that the command reads",
    "ids": "name fewer at a time",
}
_UNITS = {"milli": show_cores, "bytes": show_size, "bps": show_size, "s": show_duration}
#: A complaint of msgspec, such as "Expected `array` of length <= 1000 - at `$.after`".
_COMPLAINT = (
    r"Expected `(\w+)` (?:(of length )?(<=|>=) (\d+)|matching regex .*x1f.*) - "
    r"at (?:`key` in )?`\$\.([a-z_.]+)(\[[^`]*)?`"
)


def refusal_of(complaint: str) -> Refused | None:
    """Return the refusal of a request with a value beyond its limit, or None for other faults."""
    found = re.fullmatch(_COMPLAINT, complaint)
    if found is None:
        return None
    kind, is_length, sign, limit, field, _ = found.groups()
    # The jobs that a request is about are chosen by the same words in each of them.
    field = field.removeprefix("select.").removeprefix("past.")
    if field not in _WORDS:
        return None
    what, is_most = _WORDS[field], sign == "<="
    if sign is None:
        fault = "has a line's end or another control character"
    elif is_length:
        unit = "characters" if kind == "str" else "entries"
        fault = f"has more than {limit} {unit}" if is_most else "is empty"
    else:
        shown = _UNITS.get(field.rpartition("_")[2], str)(int(limit))
        fault = f"is {'more' if is_most else 'less'} than {shown}"
    return Refused("bad-request", f"{what} {fault}", hint=_HINTS.get(field, ""))
