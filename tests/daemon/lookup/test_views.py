"""The JSON of jobs, shares and errors has these keys, one by one, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.amounts.resources import Axes, Resources
from drfd.core.explain.holders import Holder, ResourceShortage, Shortfall
from drfd.core.explain.reasons import (
    Evidence,
    HeldBy,
    ReasonCode,
    TooLittleFree,
    WaitReason,
)
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import (
    Dependency,
    Job,
    JobState,
    Outcome,
    RequiredOutcome,
    Retry,
    Usage,
    Warn,
    Words,
)
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.daemon.lookup.views import (
    conditions_view,
    demand_view,
    event_view,
    exit_status,
    reason_view,
    resources_view,
    shares_view,
    wait_view,
)
from fakes import ALICE, BOB, GIB, demand, postponed, rules, spec

WAITING = Job(
    id=42,
    spec=replace(
        spec(asks=demand(8, 16), name="train"),
        argv=Words.of(["train", "--epochs", "3"]),
        stdout="out/%j-%x.log",
        stderr="/var/tmp/%u.err",
    ),
    submitted_at=1_700_000_000.0,
    eligible_at=1_700_000_000.0,
)
RUNNING = replace(
    WAITING,
    state=JobState.RUNNING,
    attempt=1,
    started_at=1_700_000_010.0,
    started_mono_s=10.0,
    cgroup="drfd/42.1",
)
USAGE = Usage(
    cores_milli=7250,
    memory_bytes=3 * GIB,
    memory_peak_bytes=4 * GIB,
    read_bytes=100,
    written_bytes=200,
    cpu_s=12.345678,
)
ENDED = replace(
    RUNNING,
    state=JobState.ENDED,
    ended_at=1_700_000_020.0,
    exit_code=3,
    outcome=Outcome.FAILED,
    outcome_text="exit code 3",
    usage=USAGE,
)


@pytest.mark.parametrize(
    ("found", "evidence"),
    [
        (HeldBy("alice", "42"), {"waits_for": "release", "blocked_by": "alice"}),
        (
            TooLittleFree(
                (
                    Shortfall(
                        ResourceShortage("cores", 1500, 0), (Holder("2", "bob", 9000, 3800.5),)
                    ),
                )
            ),
            {
                "waits_for": "cores", "blocked_by": "job 2 (bob)", "resource": "cores",
                "needed": 1.5, "free": 0, "until": 3800.5,
            },
        ),
        (
            TooLittleFree((Shortfall(ResourceShortage("memory", 2 * GIB, GIB)),)),
            {"waits_for": "memory", "resource": "memory", "needed": 2 * GIB, "free": GIB},
        ),
    ],
)  # fmt: skip
def test_the_evidence_of_a_wait_has_only_keys_that_apply(
    found: Evidence, evidence: dict[str, object]
) -> None:
    reason = WaitReason(ReasonCode.RESOURCES, found)
    told = reason_view(reason)
    assert told is not None
    assert wait_view(reason) == {**told, "evidence": evidence}
    assert wait_view(None) is None


def test_a_demand_has_the_upper_ends_of_its_ranges_where_there_are_some() -> None:
    asks = demand(2, read=10)
    assert demand_view(spec(asks=asks)) == resources_view(asks)
    most = Resources(cores_milli=7500, read_bps=30)
    assert demand_view(spec(asks=asks, most=most)) == {
        **resources_view(asks),
        "cores_max": 7.5,
        "read_max": 30,
    }


def test_the_ranges_of_several_disks_are_those_of_each() -> None:
    asks = replace(demand(2), disks=(("data", 10, 20), ("root", 0, 5)))
    most = Resources(disks=(("data", 0, 40), ("gone", 1, 1)))
    assert demand_view(spec(asks=asks, most=most)) == {
        **resources_view(asks),
        "disks": {
            "data": {"read": 10, "write": 20, "write_max": 40},
            "root": {"read": 0, "write": 5},
        },
    }


# -- shares ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "exit_code", "signal", "status"),
    [
        (Outcome.COMPLETED, 0, None, 0),
        (Outcome.FAILED, 1, None, 1),
        (Outcome.FAILED, 255, None, 255),
        (Outcome.FAILED, None, 11, 139),
        (Outcome.FAILED, None, 9, 137),
        (Outcome.CANCELLED, None, 15, 143),
        (Outcome.CANCELLED, None, 9, 137),
        (Outcome.CANCELLED, 7, None, 7),
        (Outcome.CANCELLED, None, None, 125),
        (Outcome.TIMEOUT, None, 15, 124),
        (Outcome.TIMEOUT, 0, None, 124),
        (Outcome.TIMEOUT, None, None, 124),
        (Outcome.OUT_OF_MEMORY, None, 9, 137),
        (Outcome.OUT_OF_MEMORY, 1, None, 137),
        (Outcome.LIMIT_EXCEEDED, None, 15, 143),
        (Outcome.LAUNCH_FAILED, None, None, 125),
        (Outcome.LOST, None, None, 125),
    ],
)
def test_exit_status(
    outcome: Outcome, exit_code: int | None, signal: int | None, status: int
) -> None:
    """docs/guide.md: its own code, 128+n, 124: timeout, 137: out of memory, 125: never ran."""
    job = replace(ENDED, outcome=outcome, exit_code=exit_code, signal=signal)
    assert exit_status(job) == status


EVENTS: list[tuple[ev.Event, str]] = [
    (ev.Submitted(job_id=1, at_s=5.0, spec=spec()), ""),
    (ev.Held(job_id=1, at_s=5.0, by="alice"), "by alice"),
    (ev.Released(job_id=1, at_s=5.0, by="root"), "by root"),
    (ev.Cancelled(job_id=1, at_s=5.0, by="alice"), "by alice"),
    (ev.Admitted(job_id=1, at_s=5.0, attempt=2), "attempt 2"),
    (ev.Admitted(job_id=1, at_s=5.0, attempt=2, why=ev.StartReason.TURN), "attempt 2"),
    (
        ev.Admitted(job_id=1, at_s=5.0, attempt=2, why=ev.StartReason.RESERVATION),
        "attempt 2, in the room reserved for it",
    ),
    (
        ev.Admitted(job_id=1, at_s=5.0, attempt=2, why=ev.StartReason.BACKFILL),
        "attempt 2, beside a reservation that it does not delay",
    ),
    (
        ev.ArraySubmitted(
            array_id=1, at_s=5.0, spec=spec(), spans=((0, 9, 3), (10, 10, 1)), at_once=None
        ),
        "5 tasks",
    ),
    (ev.Launched(job_id=1, at_s=5.0, attempt=1, mono_s=1.0, cgroup=None), ""),
    (
        ev.LaunchFailed(
            job_id=1, at_s=5.0, attempt=1, text="no such file", outcome=Outcome.LAUNCH_FAILED
        ),
        "no such file",
    ),
    (
        ev.StopRequested(
            job_id=1, at_s=5.0, mono_s=1.0, outcome=Outcome.TIMEOUT, text="ran for 1h"
        ),
        "ran for 1h",
    ),
    (
        ev.PreemptRequested(job_id=1, at_s=5.0, mono_s=1.0, for_job=2, text="stopped for job 2"),
        "stopped for job 2",
    ),
    (ev.Escalated(job_id=1, at_s=5.0), ""),
    (
        ev.Exited(
            job_id=1,
            at_s=5.0,
            attempt=1,
            exit_code=0,
            signal=None,
            outcome=Outcome.COMPLETED,
            text="exit code 0",
            usage=None,
        ),
        "exit code 0",
    ),
    (ev.Cleaned(job_id=1, at_s=5.0, attempt=1), ""),
    (ev.Cleaned(job_id=1, at_s=5.0, attempt=1, notice="told"), "notification told"),
    (ev.Requeued(job_id=1, at_s=5.0, attempt=1), ""),
    (
        ev.SuspendRequested(job_id=1, at_s=5.0, by="alice", text="suspended by alice"),
        "suspended by alice",
    ),
    (
        ev.SuspendRequested(job_id=1, at_s=5.0, by=None, text="suspended for job 2"),
        "suspended for job 2",
    ),
    (ev.Suspended(job_id=1, at_s=5.0, attempt=1, mono_s=1.0), ""),
    (ev.ResumeRequested(job_id=1, at_s=5.0, by="root"), "by root"),
    (ev.Resumed(job_id=1, at_s=5.0, mono_s=1.0), ""),
    (
        ev.DependencySettled(job_id=1, at_s=5.0, on=7, outcome=Outcome.FAILED, is_met=False),
        "job 7 ended FAILED",
    ),
    (
        ev.DependencySettled(
            job_id=1,
            at_s=5.0,
            on=7,
            outcome=Outcome.FAILED,
            is_met=False,
            also=tuple(
                ev.Settled(on=on, outcome=Outcome.COMPLETED, is_met=True) for on in range(8, 20)
            ),
        ),
        "job 7 ended FAILED, "
        + ", ".join(f"job {on} ended COMPLETED" for on in range(8, 17))
        + ", and 3 more have ended",
    ),
    (ev.OwnerNotified(job_id=1, at_s=5.0, notice="told"), "notification told"),
    (ev.BeginReached(job_id=1, at_s=5.0), ""),
    (ev.Retried(job_id=1, at_s=5.0, attempt=2, not_before_s=10), "after attempt 2"),
    (
        ev.LaunchPostponed(job_id=1, at_s=5.0, attempt=1, why=postponed()),
        "the machine is short of processes",
    ),
    (ev.Warned(job_id=1, at_s=5.0, signal=10), "the time limit is near: SIGUSR1 sent"),
    (ev.SignalRequested(job_id=1, at_s=5.0, signal=40, by="bob"), "signal 40, by bob"),
    (
        ev.Altered(job_id=1, at_s=5.0, by="bob", priority=4, text="priority 3 → 4"),
        "priority 3 → 4, by bob",
    ),
    (ev.Drained(at_s=5.0, on=True, by="root"), ""),
    (ev.IdsRaised(at_s=5.0, next_id=9), ""),
]


@pytest.mark.parametrize(("event", "text"), EVENTS, ids=lambda case: type(case).__name__)
def test_an_event_is_shown_as_time_kind_and_words(event: ev.Event, text: str) -> None:
    name = type(event).__name__.replace("Altered", "Changed")
    assert event_view(event) == {"at": 5.0, "event": name, "text": text}


def test_every_kind_of_event_can_be_shown() -> None:
    assert {type(event).__name__ for event, _ in EVENTS} == set(ev.KINDS)


def test_where_there_are_several_disks_each_is_shown_beside_the_sums() -> None:
    view = resources_view(Resources(disks=(("a", 1, 2), ("b", 30, 40))))
    assert (view["read"], view["write"]) == (31, 42)
    assert view["disks"] == {"a": {"read": 1, "write": 2}, "b": {"read": 30, "write": 40}}


def test_what_was_said_of_start_and_retries_is_shown() -> None:
    job = Job(
        id=1,
        spec=spec(
            after=(Dependency(3), Dependency(4, RequiredOutcome.ANY)),
            begin_s=7,
            retry=Retry(2, (Outcome.FAILED,)),
            warn=Warn(40, 60),
        ),
        submitted_at=0.0,
        attempt=1,
        retries=1,
        last_end="attempt 1 ended FAILED (exit code 3)",
    )
    assert conditions_view(job, lambda job_id: f"job {job_id}") == {
        "after": [
            {"id": 3, "label": "job 3", "want": "ok"},
            {"id": 4, "label": "job 4", "want": "any"},
        ],
        "begin_at": 7,
        "retry": {"times": 2, "on": ["FAILED"], "done": 1},
        "warn": {"signal": "signal 40", "before_s": 60},
        "attempts": "attempt 2 of 3; attempt 1 ended FAILED (exit code 3)",
        "if_never": "keep",
    }


def books(*jobs: tuple[str, int, float, float, int], waiting: int = 0) -> Ledger:
    """The ledger after (user, …) jobs were admitted: user, number, cores, memory, read."""
    ledger = Ledger(Axes())
    for user, count, cores, memory_gib, read in jobs:
        actor = ALICE if user == "alice" else BOB
        asks = demand(cores, memory_gib, read=read)
        for number in range(count):
            job = spec(f"root.{user}", actor=actor, asks=asks)
            ledger.apply(ev.Submitted(job_id=ledger.next_id, at_s=0.0, spec=job))
            if number < count - waiting:
                ledger.apply(ev.Admitted(job_id=ledger.next_id - 1, at_s=0.0, attempt=1))
    return ledger


def test_waiting_jobs_are_counted_and_make_their_owner_active() -> None:
    ledger = books(("alice", 3, 1, 4, 0), ("bob", 2, 3, 1, 0), waiting=2)
    nodes = shares_view(ledger, rules(9, 18, weights={"bob": "3"}))["nodes"]
    assert [(n["path"], n["entitlement"], n["running"], n["pending"]) for n in nodes] == [
        ("root.alice", 0.25, 1, 2),
        ("root.bob", 0.75, 0, 2),
    ]


# -- exit codes, counts, errors, events ----------------------------------------------------------


def test_shares_tell_of_load_from_outside_and_leave_it_less_free() -> None:
    load = ExternalLoad(used=demand(3, 6), kept=demand(2, 0), until_s=0.0)
    view = shares_view(Ledger(Axes()), rules(9, 18), load)
    assert view["free"]["cores"] == 7
    assert view["external"] == {
        "cores": 3, "memory": 6 << 30, "kept": {"cores": 2, "memory": 0}
    }  # fmt: skip
    assert view["capacity"]["cores"] == 9
    assert "external" not in shares_view(Ledger(Axes()), rules(9, 18))
