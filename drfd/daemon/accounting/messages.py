"""What the controller and a worker of the accountant say to each other: a task, and its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from drfd.daemon.error_message import ErrorMessage


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does: it brings the account up to date and reads it, or checks it as it is."""

    journal: str
    now_ms: int
    #: Hours that ended before that are removed; null for none.
    forget_before_ms: int | None = None
    #: Whether the account is checked, rather than read.
    checks: bool = False
    #: Which hours are read, and whose parts are told; null for everybody's.
    since_ms: int = 0
    until_ms: int = 1 << 62
    user: str | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply, or why there is none."""

    reply: Any = None
    failure: ErrorMessage | None = None
