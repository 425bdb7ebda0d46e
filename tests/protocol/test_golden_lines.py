"""Lines of the wire as version 0.1.0 wrote them: they are read, and written, for ever.

A change that makes one of these fail breaks the scripts and the clients of users: it needs a new
protocol version and a new golden line beside the old one, never an edit of the old one.
"""

from __future__ import annotations

import json
from pathlib import Path

from drfd.core.amounts.resources import Resources
from drfd.core.model.job import Job, JobState, Outcome, Usage
from drfd.daemon.lookup.views import job_view
from drfd.protocol.codec import decode, encode
from drfd.protocol.replies import CodeText
from drfd.protocol.requests import Demand, SubmitRequest, decode_request
from fakes import GIB, spec

DATA = Path(__file__).parent.parent / "data"


def test_a_submission_of_version_1_is_understood_and_written_the_same() -> None:
    line = (DATA / "wire_v1_submit.json").read_bytes()
    assert decode_request(line) == SubmitRequest(
        v=1,
        argv=["python3", "train.py", "--note", 'ünïcode \t and "quotes"'],
        cwd="/home/alice/work",
        demand=Demand(
            cores_milli=2500,
            memory_bytes=16 * GIB,
            read_bps=200 << 20,
            write_bps=50 << 20,
            gres={"gpu": 1},
        ),
        name="train",
        pool="root.lab",
        time_limit_s=5400,
        priority=3,
        umask=0o027,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        stdout="logs/%j.out",
        stderr="logs/%j.err",
        held=True,
    )
    assert encode(decode(line)) == line


def test_a_job_of_version_1_is_shown_as_it_always_was() -> None:
    job = Job(
        id=42,
        spec=spec(
            asks=Resources(
                cores_milli=2500,
                memory_bytes=16 * GIB,
                read_bps=200 << 20,
                write_bps=50 << 20,
            ),
            name="train",
        ),
        state=JobState.ENDED,
        attempt=1,
        submitted_at=1_700_000_000.25,
        eligible_at=1_700_000_000.25,
        started_at=1_700_000_001.5,
        started_mono_s=100.0,
        ended_at=1_700_000_100.75,
        signal=9,
        outcome=Outcome.OUT_OF_MEMORY,
        outcome_text="needed more than its memory limit of 16G",
        usage=Usage(memory_peak_bytes=16 * GIB, cpu_s=99.125),
        cgroup="drfd/1234567890/42.1",
    )
    golden = (DATA / "wire_v1_job.json").read_bytes()
    # Order and all: people read this with their eyes too.
    assert json.dumps(job_view(job, reason=None, usage=None, private=True)).encode() == (
        golden.rstrip(b"\n")
    )


def test_a_waiting_job_differs_from_the_golden_one_only_in_values() -> None:
    job = Job(id=1, spec=spec(), submitted_at=0.0)
    reason: CodeText = {"code": "HELD", "text": "held by alice"}
    golden = json.loads((DATA / "wire_v1_job.json").read_bytes())
    assert list(job_view(job, reason=reason, usage=None, private=False)) == list(golden)
