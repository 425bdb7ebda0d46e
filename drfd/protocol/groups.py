"""The groups that users make of their own jobs, as text: `sweep`, or `sweep%2` for two at once."""

from __future__ import annotations

import re

from drfd.common.errors import Refused

_NAME = re.compile(r"\w[\w.+-]{0,63}")
_AT_ONCE = re.compile(r"[0-9]{1,9}", re.ASCII)


def read_group(text: str) -> tuple[str, int | None]:
    """Parse the value of `--group` into the name of the group and the most jobs of it that may run
    at once, or None if there is no such limit. Raises Refused."""
    name, percent, bound = text.partition("%")
    if not _NAME.fullmatch(name):
        raise _bad(text, "a group's name has 1 to 64 letters, digits and, not first, .+-")
    if not percent:
        return name, None
    if not _AT_ONCE.fullmatch(bound) or not int(bound):
        raise _bad(text, f"after % stands how many may run at once, not {bound[:20]!r}")
    return name, int(bound)


def _bad(text: str, why: str) -> Refused:
    hint = "write --group sweep, or --group sweep%2 for two at once"
    return Refused("bad-value", f"--group: {text[:40]!r}: {why}", hint=hint)
