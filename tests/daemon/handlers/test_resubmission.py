"""What a job was submitted with: every field of it, and for its user alone."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import pytest
from msgspec import convert

from daemon.desk import Desk
from daemon.handlers.test_submission import DATA, DEFAULTS, LIMITS, POOLED, SubmitTerms
from drfd.common.indices import Spans, read_array
from drfd.core.amounts.resources import Resources
from drfd.core.model.job import Array, Job, JobSpec
from drfd.daemon.handlers import resubmission
from drfd.daemon.handlers.resubmission import RepeatSearch, submission_fields
from drfd.daemon.handlers.submission import spec_for
from drfd.journal.records import Payload
from drfd.protocol.requests import SubmitRequest
from fakes import ALICE, spec
from seeds import seeds

#: A value for each field of a request whose default is another.
ASKED: dict[str, Any] = {
    "argv": ["sh", "", "ü"], "cwd": "/home/alice",
    "demand": {"cores_milli": 250, "memory_bytes": 3 << 20, "read_bps": 5, "write_bps": 6,
               "cores_max_milli": 500, "read_max_bps": 7},
    "name": "train", "pool": "open", "time_limit_s": 0, "priority": -4, "umask": 0o77,
    "env": {"A": "1"}, "stdout": "%j", "stderr": "e", "script": "#!/bin/sh\n", "attach": "/a",
    "notify": {"on": ["fail"], "argv": ["say", "it"]}, "preemptible": True, "append": True,
    "output_max_bytes": 1 << 30,
    "group": "sweep%2",
    "retry": {"times": 2, "on": ["TIMEOUT"]}, "warn": {"signal": 10, "before_s": 60},
    "if_never": "cancel",
    "again": {"of": 4, "indices": [9, 0, 16, 2]},
    "node": "n1", "features": ["big", "fast"],
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


def test_ranges_of_several_disks_are_repeated() -> None:
    most = Resources(cores_milli=4000, disks=(("data", 0, 30), ("root", 40, 0)))
    disks = (("data", 10, 20), ("root", 30, 0))
    spec = replace(spec_of({"argv": ["true"], "cwd": "/"}), most=most)
    spec = replace(spec, demand=replace(spec.demand, read_bps=0, write_bps=0, disks=disks))
    demand = submission_fields(spec, Payload())["demand"]
    assert isinstance(demand, dict)
    assert (demand["cores_max_milli"], demand["disks"]) == (
        4000,
        {
            "data": {"read_bps": 10, "write_bps": 20, "write_max_bps": 30},
            "root": {"read_bps": 30, "write_bps": 0, "read_max_bps": 40},
        },
    )


def test_conditions_of_the_start_are_left_out() -> None:
    spec = spec_of({**ASKED, "after": [{"id": 3}], "begin_s": 4_000_000_000})
    again = spec_of(submission_fields(spec, Payload()))
    assert again == replace(spec, after=(), begin_s=None)
    assert {each.name for each in fields(JobSpec)} >= {"after", "begin_s"}


async def test_the_search_for_repeats_of_repeats_comes_to_an_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user's chain of large arrays, each cancelled and retried, is followed while the daemon
    answers nobody else."""
    ids = [await desk.submit(ALICE, held=True, array="0-999")]
    for _ in range(4):
        await desk.ask(ALICE, op="cancel", select={"ids": [ids[-1]]})
        asked = {"held": True, "array": "0-999", "again": {"of": ids[-1]}}
        ids.append(await desk.submit(ALICE, **asked))
    search = lambda: RepeatSearch(desk.shell.engine, desk.requests._lookup)  # noqa: E731
    assert search().last(ids[0]) == ids[-1]
    # Each array costs 1, and 1 for its tasks.
    monkeypatch.setattr(resubmission, "_MOST_WORK", 4)
    one = search()
    assert (one.last(ids[0]), one.last(ids[0])) == (ids[2], None)


@pytest.mark.parametrize("seed", seeds(range(20)))
def test_an_array_has_all_of_these_indices_if_it_has_each_of_them(seed: int) -> None:
    chance = random.Random(seed)

    def some() -> Spans:
        pieces, at = [], 0
        for _ in range(chance.randint(1, 4)):
            first, step = at + chance.randint(0, 3), chance.randint(1, 3)
            at = first + step * chance.randint(0, 4)
            pieces.append(f"{first}-{at}:{step}")
            at += 1
        return Spans(read_array(",".join(pieces))[0])

    for _ in range(200):
        array = Array(common=Job(id=1, spec=spec(), submitted_at=0.0), spans=some(), at_once=None)
        asked = some() if chance.random() < 0.5 else array.spans[:: chance.randint(1, 2)]
        each = [at for first, last, step in asked for at in range(first, last + 1, step)]
        assert resubmission._has_all(array, asked) is all(array.id_of(at) for at in each)


def test_large_arrays_are_compared_by_their_ranges() -> None:
    array = Array(
        common=Job(id=1, spec=spec(), submitted_at=0.0), spans=Spans([(0, 10**9, 1)]), at_once=None
    )
    assert resubmission._has_all(array, [(0, 10**9, 1)])
    assert not resubmission._has_all(array, [(0, 10**9 + 1, 1)])
