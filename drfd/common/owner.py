"""The identity of attempts: whose an attempt is, as controller and launcher both know it.

A job's id alone does not identify an attempt. A journal that was restored from a copy, or started
again from nothing, gives out ids again while processes of earlier attempts with them still run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The user, journal and submission that an attempt belongs to. A field is None if it is not
    known."""

    uid: int | None = None
    user: str | None = None
    #: The random id of the journal.
    journal: str | None = None
    #: Unix time of the submission in microseconds; no two jobs of a user share it.
    submitted_us: int | None = None

    def may_be(self, other: Owner) -> bool:
        """True if no field that is known to both differs."""
        return (
            _may_equal(self.uid, other.uid)
            and _may_equal(self.user, other.user)
            and _may_equal(self.journal, other.journal)
            and _may_equal(self.submitted_us, other.submitted_us)
        )

    def facts(self) -> dict[str, int | str]:
        """Return the known fields by name."""
        values = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in values if value is not None}


def _may_equal(one: object, other: object) -> bool:
    return one is None or other is None or one == other


def read_owner(record: Mapping[str, object]) -> Owner:
    """Read the owner from the first record of an attempt file or from a launcher report. A missing
    field, or one of a wrong type, is not known."""
    kinds = {"uid": int, "user": str, "journal": str, "submitted_us": int}
    known: dict[str, Any] = {
        name: record[name] for name, kind in kinds.items() if type(record.get(name)) is kind
    }
    return Owner(**known)
