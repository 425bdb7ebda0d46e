"""What a job was submitted with: every field of it, and for its user alone."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from msgspec import convert

from daemon.handlers.test_submission import DATA, DEFAULTS, LIMITS, POOLED, SubmitTerms
from drfd.core.model.job import JobSpec
from drfd.daemon.handlers.resubmission import submission_fields
from drfd.daemon.handlers.submission import spec_for
from drfd.journal.records import Payload
from drfd.protocol.requests import SubmitRequest
from fakes import ALICE

#: A value for each field of a request whose default is another.
ASKED: dict[str, Any] = {
    "argv": ["sh", "", "ü"], "cwd": "/home/alice",
    "demand": {"cores_milli": 250, "memory_bytes": 3 << 20, "read_bps": 5, "write_bps": 6},
    "name": "train", "pool": "open", "time_limit_s": 0, "priority": -4, "umask": 0o77,
    "env": {"A": "1"}, "stdout": "%j", "stderr": "e", "script": "#!/bin/sh\n", "attach": "/a",
    "notify": {"on": ["fail"], "argv": ["say", "it"]}, "preemptible": True, "append": True,
    "output_max_bytes": 1 << 30,
    "group": "sweep%2",
    "retry": {"times": 2, "on": ["TIMEOUT"]}, "warn": {"signal": 10, "before_s": 60},
    "if_never": "cancel",
    "again": {"of": 4, "indices": [9, 0, 16, 2]},
}  # fmt: skip
#: Fields of a submission that hold for one time, and those that are not of the job.
ONCE = {"after", "begin_s", "held", "array"}
APART = {"v", "dry_run", "proof", "key"}


def spec_of(asked: dict[str, Any]) -> JobSpec:
    terms = SubmitTerms(rules=POOLED, defaults=DEFAULTS, limits=LIMITS, disks=[DATA],
                        takes_root=False)  # fmt: skip
    return spec_for(convert({"op": "submit", "v": 1, **asked}, SubmitRequest), ALICE, 100, terms)


def test_the_same_job_comes_of_it() -> None:
    spec, payload = spec_of(ASKED), Payload(env=ASKED["env"], script=ASKED["script"])
    again = submission_fields(spec, payload)
    assert spec_of(again) == spec
    assert {name: again[name] for name in ("env", "script")} == {
        name: ASKED[name] for name in ("env", "script")
    }
    assert set(ASKED) == set(again) == {*SubmitRequest.__struct_fields__} - ONCE - APART


def test_defaults_are_said_too_since_they_may_have_changed() -> None:
    spec = spec_of({"argv": ["true"], "cwd": "/"})
    again = submission_fields(spec, Payload())
    assert spec_of(again) == spec
    assert again["time_limit_s"] == DEFAULTS.time_limit_s


def test_conditions_of_the_start_are_left_out() -> None:
    spec = spec_of({**ASKED, "after": [{"id": 3}], "begin_s": 4_000_000_000})
    again = spec_of(submission_fields(spec, Payload()))
    assert again == replace(spec, after=(), begin_s=None)
    assert {each.name for each in fields(JobSpec)} >= {"after", "begin_s"}
