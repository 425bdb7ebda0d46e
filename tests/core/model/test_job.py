"""What users see of a job's state, and where its output goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drfd.core.model.job import Job, Owner
from fakes import spec


def job(**changes: Any) -> Job:
    return Job(id=42, spec=replace(spec(name="train"), **changes), submitted_at=0.0)


def test_what_is_not_known_of_an_owner_does_not_differ() -> None:
    owner = Owner(uid=1000, user="ada", journal="j", submitted_us=5)
    assert owner.may_be(owner)
    assert owner.may_be(Owner())
    assert Owner(user="ada").may_be(owner)
    assert not owner.may_be(Owner(uid=1001))
    assert not owner.may_be(replace(owner, user="bob"))
    assert not owner.may_be(Owner(journal="k"))
    assert not Owner(uid=1000, submitted_us=6).may_be(owner)
