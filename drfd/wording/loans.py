"""What a running job may use now of its range of cores, and why not more."""

from __future__ import annotations

from collections.abc import Sequence

from drfd.common.units import show_cores

#: The most users that are named.
_NAMED = 3


def loan_text(
    ceiling_milli: int,
    floor_milli: int,
    most_milli: int,
    *,
    asked_milli: int,
    is_hungry: bool,
    others: Sequence[str],
) -> str:
    """Describe the present ceiling: "may use 5 cores now, 3 of them lent: bob could use more, too".

    `most_milli` is the end of the job's range, `asked_milli`, or the machine's capacity if that is
    less. `others` are the users who could use more than they may, as the job could if `is_hungry`.
    """
    now = show_cores(round(ceiling_milli, -1))
    lent = show_cores(round(max(0, ceiling_milli - floor_milli), -1))
    text = f"may use {now} {'core' if now == '1' else 'cores'} now"
    text += f", {lent} of them lent" if ceiling_milli > floor_milli else ", its floor"
    if ceiling_milli >= most_milli:
        return f"{text}: all that {'it asked for' if most_milli >= asked_milli else 'there is'}"
    if not is_hungry:
        return text
    if others:
        more = f" and {len(others) - _NAMED} more users" if len(others) > _NAMED else ""
        return f"{text}: {', '.join(others[:_NAMED])}{more} could use more, too"
    return f"{text}: the others are in use"
