"""Local times in tests that run in the zone of the fixture `in_berlin`."""

from __future__ import annotations

from datetime import datetime


def at(text: str) -> float:
    """Return the Unix time of a local time such as "2026-10-25 23:59"."""
    return datetime.fromisoformat(text).timestamp()
