"""A copy of a job with some fields changed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.model.copying import copier
from drfd.core.model.job import NO_WORDS, Job, JobSpec, JobState

JOB = Job(
    id=7,
    spec=JobSpec(
        name="job", user="alice", uid=1000, gid=1000, pool="root.alice", demand=Resources(),
        time_limit_s=None, argv=NO_WORDS, cwd="/", stdout="o", stderr="e",
    ),
    submitted_at=1.5,
    signals=(1, 2),
)  # fmt: skip


def test_a_copy_is_what_replace_would_make_whatever_is_changed() -> None:
    copy = copier(Job)
    assert copy(JOB) == JOB
    for field in fields(Job):
        changed = copy(JOB, **{field.name: "other"})
        assert changed == replace(JOB, **{field.name: "other"})
        assert changed != JOB
    ended = copy(JOB, state=JobState.ENDED, ended_at=3.0)
    assert ended == replace(JOB, state=JobState.ENDED, ended_at=3.0)
    assert JOB.ended_at is None


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError):
        copier(Job)(JOB, colour="red")
