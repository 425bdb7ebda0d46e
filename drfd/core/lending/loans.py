"""What a running job may use now of its ranges, and why not more."""

from __future__ import annotations

from drfd.common.units import show_amount, show_cores
from drfd.core.lending.rivals import Rivals

#: The most users that are named.
_NAMED = 3


def loan_text(
    ceiling_milli: int,
    floor_milli: int,
    most_milli: int,
    *,
    asked_milli: int,
    is_hungry: bool,
    rivals: Rivals,
) -> str:
    """Describe the present ceiling: "may use 5 cores now, 3 of them lent: bob, who holds less,
    wants more too".

    `most_milli` is the end of the job's range, `asked_milli`, or the machine's capacity if that is
    less. `rivals` count if the job could use more than it may (`is_hungry`).
    """
    now = show_cores(round(ceiling_milli, -1))
    lent = show_cores(round(max(0, ceiling_milli - floor_milli), -1))
    text = f"may use {now} {'core' if now == '1' else 'cores'} now"
    text += f", {lent} of them lent" if ceiling_milli > floor_milli else ", its floor"
    if ceiling_milli >= most_milli:
        return f"{text}: all that {'it asked for' if most_milli >= asked_milli else 'there is'}"
    return text + (_why(rivals, "the others are in use") if is_hungry else "")


def disk_loan_text(
    direction: str,
    disk: str | None,
    ceiling_bps: int,
    floor_bps: int,
    most_bps: int,
    *,
    is_hungry: bool,
    rivals: Rivals,
) -> str:
    """Describe the present ceiling of a disk's reads or writes: "may read 40M/s on data now, 30M/s
    of that lent: bob wants more too". `disk` is None where there is only one."""
    where = "" if disk is None else f" on {disk}"
    text = f"may {direction} {show_amount(direction, ceiling_bps)}{where} now"
    lent = show_amount(direction, ceiling_bps - floor_bps)
    text += f", {lent} of that lent" if ceiling_bps > floor_bps else ", its floor"
    if ceiling_bps >= most_bps:
        return f"{text}: all that it asked for"
    return text + (_why(rivals, "the rest is in use or kept free") if is_hungry else "")


def _why(rivals: Rivals, rest: str) -> str:
    """Say why a job that could use more is not lent more. `rest` says it where nobody else could
    use more."""
    users = rivals.poorer or rivals.everybody
    if not users:
        return f": {rest}"
    left = len(users) - _NAMED
    names = [*users[:_NAMED], f"{left} more {'user' if left == 1 else 'users'}"][: len(users)]
    who = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    is_one = len(users) == 1
    less = f", who {'holds' if is_one else 'hold'} less," if rivals.poorer else ""
    return f": {who}{less} {'wants' if is_one else 'want'} more too"
