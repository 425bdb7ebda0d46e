"""What users see of a job's state, and where its output goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Owner, output_path
from fakes import happened, ledger_at, spec

S = JobState


def job(**changes: Any) -> Job:
    return Job(id=42, spec=replace(spec(name="train"), **changes), submitted_at=0.0)


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        (S.PENDING, False),
        (S.HELD, False),
        (S.STARTING, True),
        (S.RUNNING, True),
        (S.SUSPENDED, True),
        (S.STOPPING, True),
        (S.CLEANING, True),
        (S.ENDED, False),
    ],
)
def test_a_job_holds_resources_from_admission_until_it_is_cleaned(
    state: JobState, holds: bool
) -> None:
    assert replace(job(), state=state).is_allocated is holds


def test_users_see_the_outcome_when_it_is_over_and_not_before() -> None:
    ledger = ledger_at(S.RUNNING)
    exited = ledger.apply(happened(ev.Exited))
    assert exited is not None
    assert exited.shown_state == "CLEANING"
    over = ledger.apply(happened(ev.Cleaned))
    assert over is not None
    assert over.shown_state == "COMPLETED"


def test_the_time_frozen_is_that_of_earlier_times_and_of_this_one() -> None:
    """A clock that was set back does not make it less."""
    now_running = replace(job(), suspended_s=7.0)
    frozen = replace(now_running, suspended_at=100.0)
    assert [now_running.frozen_s(at_s) for at_s in (50.0, 500.0)] == [7, 7]
    assert [frozen.frozen_s(at_s) for at_s in (50.0, 100.0, 130.0)] == [7, 7, 37]


def test_an_end_without_an_outcome_is_shown_as_such() -> None:
    assert replace(job(), state=S.ENDED).shown_state == "ENDED"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("drf-%j.out", "/home/alice/drf-42.out"),
        ("logs/%x-%u.%j", "/home/alice/logs/train-alice.42"),
        ("/data/%x", "/data/train"),
        ("100%%", "/home/alice/100%"),
        ("%%j", "/home/alice/%j"),
        ("%%%j", "/home/alice/%42"),
        ("%%%%j", "/home/alice/%%j"),
        ("%z%", "/home/alice/%z%"),
        ("", "/home/alice/"),
    ],
)
def test_signs_in_an_output_path_are_filled_in(pattern: str, path: str) -> None:
    assert output_path(pattern, job()) == path


def test_an_output_path_in_the_root_directory_has_one_slash() -> None:
    assert output_path("out", job(cwd="/")) == "/out"


def test_a_name_with_slashes_does_not_lead_elsewhere() -> None:
    assert output_path("%x.log", job(name="../../etc/passwd")) == "/home/alice/.._.._etc_passwd.log"


def test_signs_in_a_name_are_not_filled_in_again() -> None:
    assert output_path("%x.log", job(name="%u")) == "/home/alice/%u.log"


def test_what_is_not_known_of_an_owner_does_not_differ() -> None:
    owner = Owner(uid=1000, user="ada", journal="j", submitted_us=5)
    assert owner.may_be(owner)
    assert owner.may_be(Owner())
    assert Owner(user="ada").may_be(owner)
    assert not owner.may_be(Owner(uid=1001))
    assert not owner.may_be(replace(owner, user="bob"))
    assert not owner.may_be(Owner(journal="k"))
    assert not Owner(uid=1000, submitted_us=6).may_be(owner)
