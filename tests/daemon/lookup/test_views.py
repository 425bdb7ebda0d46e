"""The JSON of jobs, shares and errors has these keys, one by one, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.common.errors import HostError, NotPermitted, Refused
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
    count_row,
    demand_view,
    ended_job_view,
    error_view,
    event_view,
    exit_status,
    job_view,
    reason_view,
    resources_view,
    shares_view,
    usage_view,
    used_view,
    wait_view,
)
from drfd.protocol.replies import USED, CodeText
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


def test_a_waiting_job_shows_everything_that_is_documented_and_no_more() -> None:
    why: CodeText = {"code": "RESOURCES", "text": "needs 8 cores, 3 free"}
    assert job_view(WAITING, reason=why, usage=None, private=True) == {
        "id": 42,
        "array_id": None,
        "array_index": None,
        "name": "train",
        "user": "alice",
        "uid": 1001,
        "pool": "root.alice",
        "state": "PENDING",
        "reason": {"code": "RESOURCES", "text": "needs 8 cores, 3 free"},
        "demand": {"cores": 8.0, "memory": 16 * GIB, "read": 0, "write": 0, "gres": {}},
        "time_limit_s": 3600,
        "priority": 0,
        "attempt": 0,
        "submitted_at": 1_700_000_000.0,
        "eligible_at": 1_700_000_000.0,
        "started_at": None,
        "ended_at": None,
        "expected_start_at": None,
        "exit_code": None,
        "signal": None,
        "outcome": None,
        "usage": {
            "cores": 0.0,
            "memory": 0,
            "memory_peak": 0,
            "read_bytes": 0,
            "written_bytes": 0,
            "cpu_seconds": 0.0,
        },
        "cwd": "/home/alice",
        "argv": ["train", "--epochs", "3"],
        "stdout": "/home/alice/out/42-train.log",
        "stderr": "/var/tmp/alice.err",
        "cgroup": None,
    }


def test_others_see_neither_command_nor_paths() -> None:
    whole = job_view(RUNNING, reason=None, usage=USAGE, private=True)
    shown = job_view(RUNNING, reason=None, usage=USAGE, private=False)
    assert shown == whole | dict.fromkeys(("cwd", "argv", "stdout", "stderr"))


def test_a_running_job_shows_its_live_use() -> None:
    view = job_view(RUNNING, reason=None, usage=USAGE, private=True)
    assert (view["state"], view["reason"], view["outcome"]) == ("RUNNING", None, None)
    assert view["usage"] == {
        "cores": 7.25,
        "memory": 3 * GIB,
        "memory_peak": 4 * GIB,
        "read_bytes": 100,
        "written_bytes": 200,
        "cpu_seconds": 12.346,
    }


def test_an_ended_job_shows_its_outcome_as_its_state() -> None:
    view = job_view(ENDED, reason=None, usage=None, private=True)
    assert (view["state"], view["exit_code"], view["ended_at"], view["outcome"]) == (
        "FAILED",
        3,
        1_700_000_020.0,
        {"code": "FAILED", "text": "exit code 3"},
    )


def test_the_final_use_wins_over_a_late_reading() -> None:
    late = Usage(cpu_s=1.0)
    view = job_view(ENDED, reason=None, usage=late, private=True)
    assert view["usage"]["cpu_seconds"] == 12.346


def test_a_job_that_is_being_cleaned_has_no_end_yet() -> None:
    """Its cgroup may still hold processes: nobody should start from its output."""
    view = job_view(replace(ENDED, state=JobState.CLEANING), reason=None, usage=None, private=True)
    assert (view["state"], view["outcome"], view["ended_at"]) == ("CLEANING", None, None)


def test_a_suspended_job_shows_why_it_waits_and_all_that_it_has_declared() -> None:
    why = reason_view(WaitReason(ReasonCode.HELD, HeldBy("alice", "42", is_suspended=True)))
    frozen = replace(
        RUNNING,
        state=JobState.SUSPENDED,
        held_by="alice",
        suspended_at=1_700_000_015.0,
        suspended_mono_s=15.0,
        suspensions=1,
    )
    running = job_view(RUNNING, reason=None, usage=USAGE, private=True)
    assert job_view(frozen, reason=why, usage=USAGE, private=True) == running | {
        "state": "SUSPENDED",
        "reason": {"code": "HELD", "text": "suspended by alice; drf resume 42 lets it go on"},
    }


def test_a_job_that_is_queued_again_keeps_its_number_of_attempts_and_has_no_end() -> None:
    """Between the attempts it looks as before the first, so that nobody waits for its end."""
    again = replace(WAITING, attempt=1, preempted_at=1_700_000_015.0)
    shown = job_view(again, reason=None, usage=None, private=True)
    assert shown == job_view(WAITING, reason=None, usage=None, private=True) | {"attempt": 1}


def test_the_start_that_is_expected_is_shown_where_it_is_known() -> None:
    view = job_view(WAITING, reason=None, usage=None, private=True, expected_start_s=5.5)
    assert view["expected_start_at"] == 5.5


def test_a_reason_is_its_code_and_its_words_and_none_is_null() -> None:
    assert reason_view(WaitReason(ReasonCode.HELD, HeldBy("alice", "42"))) == {
        "code": "HELD",
        "text": "held by alice; drf release 42 lets it go",
    }
    assert reason_view(None) is None


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


def test_countable_resources_are_shown_by_name() -> None:
    amount = Resources(cores_milli=500, memory_bytes=1, gres=(("gpu", 2),))
    assert resources_view(amount) == {
        "cores": 0.5,
        "memory": 1,
        "read": 0,
        "write": 0,
        "gres": {"gpu": 2},
    }
    assert resources_view(replace(amount, gres_memory=(("gpu", GIB),))) == {
        **resources_view(amount),
        "gres_memory": {"gpu": GIB},
    }


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


def test_counts_are_by_state_in_the_order_of_the_list() -> None:
    states = ["RUNNING", "PENDING", "RUNNING"]
    counts: dict[str, int] = {}
    for state in states:
        count_row(counts, {"state": state})
    assert list(counts.items()) == [("RUNNING", 2), ("PENDING", 1)]


def test_a_row_counts_as_many_as_the_tasks_that_it_stands_for() -> None:
    rows = [{"state": "PENDING", "tasks": 990}, {"state": "RUNNING"}, {"state": "PENDING"}]
    counts: dict[str, int] = {}
    for row in rows:
        count_row(counts, row)
    assert counts == {"PENDING": 991, "RUNNING": 1}


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


def test_of_a_plain_job_there_is_nothing_to_say() -> None:
    assert conditions_view(Job(id=1, spec=spec(), submitted_at=0.0)) == {
        "after": [],
        "begin_at": None,
        "retry": None,
        "warn": None,
        "attempts": "",
        "if_never": "keep",
    }


JOB = Job(
    id=3,
    spec=spec(),
    state=JobState.ENDED,
    attempt=1,
    submitted_at=0.0,
    started_at=100.0,
    ended_at=160.5,
    suspended_s=10.25,
    outcome=Outcome.COMPLETED,
    usage=Usage(
        cpu_s=40.1234, memory_peak_bytes=700, read_bytes=1, throttled_us=1_500_000, limit_hits=0
    ),
)


def test_what_was_counted_is_shown_and_what_was_not_is_null() -> None:
    assert used_view(JOB) == {
        "wall_seconds": 60.5, "suspended_seconds": 10.25, "cpu_seconds": 40.123, "late_cores": None,
        "memory_peak": 700, "memory_mean": None, "memory_working": None, "largest_process": None,
        "read_bytes": 1, "written_bytes": 0, "read_peak": None, "write_peak": None,
        "quota_periods": None, "throttled_periods": None, "throttled_seconds": 1.5,
        "limit_hits": 0, "oom_kills": None, "io_stalled_seconds": None, "processes_peak": None,
        "gpu_memory_peak": None, "gpu_utilisation_mean": None, "cores_peak": None,
        "lent_cpu_seconds": None,
    }  # fmt: skip


def test_the_use_of_gpus_and_a_loan_may_be_all_that_is_known() -> None:
    """Of a job without a cgroup that ended while there was no daemon."""
    nothing = used_view(replace(JOB, usage=None))
    known = Usage(cpu_s=1.0, gpu_memory_peak_bytes=5, gpu_mean_percent=80, lent_us=2_500_000)
    kept = {"gpu_memory_peak": 5, "gpu_utilisation_mean": 80, "lent_cpu_seconds": 2.5}
    assert used_view(replace(JOB, usage=known)) == {**nothing, **kept}
    live = usage_view(known)
    assert (live["lent_cpu_seconds"], "lent_cpu_seconds" in usage_view(Usage())) == (2.5, False)


def test_of_a_job_that_never_ran_nothing_is_known() -> None:
    job = replace(JOB, started_at=None, usage=None)
    assert set(used_view(job).values()) == {None}
    assert tuple(used_view(job)) == tuple(used_view(JOB)) == USED


def test_a_job_that_nobody_has_seen_running_did_not_use_nothing() -> None:
    """It was lost with all that could have told."""
    view = used_view(replace(JOB, usage=Usage()))
    assert (view["wall_seconds"], view["cpu_seconds"], view["read_bytes"]) == (60.5, None, None)


def test_a_job_that_was_frozen_when_it_ended_was_frozen_until_then() -> None:
    job = replace(JOB, suspended_s=0.0, suspended_at=150.0)
    assert used_view(job)["suspended_seconds"] == 10.5


def test_others_see_what_it_used_and_not_what_it_was() -> None:
    theirs = ended_job_view(JOB, private=False)
    assert theirs["used"] == used_view(JOB)
    assert (theirs["argv"], theirs["cwd"], theirs["stdout"]) == (None, None, None)
    assert ended_job_view(JOB, private=True)["argv"] == ["true"]


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


def test_shares_are_those_of_the_papers_example() -> None:
    """Table 1 of the DRF paper: 9 CPUs, 18 GB; A runs 3 × <1, 4>, B runs 2 × <3, 1>."""
    ledger = books(("alice", 3, 1, 4, 0), ("bob", 2, 3, 1, 0))
    assert shares_view(ledger, rules(9, 18)) == {
        "capacity": {"cores": 9.0, "memory": 18 * GIB, "read": 1000, "write": 1000, "gres": {}},
        "free": {"cores": 0.0, "memory": 4 * GIB, "read": 1000, "write": 1000, "gres": {}},
        "nodes": [
            {
                "path": "root.alice",
                "weight": 1.0,
                "entitlement": 0.5,
                "usage": {"cores": 3.0, "memory": 12 * GIB, "read": 0, "write": 0, "gres": {}},
                "dominant_resource": "memory",
                "dominant_share": 0.666666667,
                "satisfaction": 1.333333333,
                "running": 3,
                "pending": 0,
            },
            {
                "path": "root.bob",
                "weight": 1.0,
                "entitlement": 0.5,
                "usage": {"cores": 6.0, "memory": 2 * GIB, "read": 0, "write": 0, "gres": {}},
                "dominant_resource": "cores",
                "dominant_share": 0.666666667,
                "satisfaction": 1.333333333,
                "running": 2,
                "pending": 0,
            },
        ],
    }


def test_a_configured_pool_is_shown_while_it_is_empty() -> None:
    view = shares_view(Ledger(Axes()), rules(9, 18, weights={"lab": "3"}))
    assert view["nodes"] == [
        {
            "path": "root.lab",
            "weight": 3.0,
            "entitlement": 1.0,
            "usage": {"cores": 0.0, "memory": 0, "read": 0, "write": 0, "gres": {}},
            "dominant_resource": None,
            "dominant_share": 0.0,
            "satisfaction": 0.0,
            "running": 0,
            "pending": 0,
        }
    ]


def test_waiting_jobs_are_counted_and_make_their_owner_active() -> None:
    ledger = books(("alice", 3, 1, 4, 0), ("bob", 2, 3, 1, 0), waiting=2)
    nodes = shares_view(ledger, rules(9, 18, weights={"bob": "3"}))["nodes"]
    assert [(n["path"], n["entitlement"], n["running"], n["pending"]) for n in nodes] == [
        ("root.alice", 0.25, 1, 2),
        ("root.bob", 0.75, 0, 2),
    ]


def test_a_suspended_job_is_counted_with_what_it_still_holds() -> None:
    ledger = books(("alice", 1, 3, 9, 500))
    for event in (
        ev.Launched(job_id=1, at_s=0.0, attempt=1, mono_s=0.0, cgroup=None),
        ev.SuspendRequested(job_id=1, at_s=0.0, by=None, text="for job 2"),
        ev.Suspended(job_id=1, at_s=0.0, attempt=1, mono_s=0.0),
    ):
        ledger.apply(event)
    view = shares_view(ledger, rules(9, 18))
    assert view["free"] == {
        "cores": 9.0, "memory": 9 * GIB, "read": 1000, "write": 1000, "gres": {},
    }  # fmt: skip
    (node,) = view["nodes"]
    assert (node["usage"]["cores"], node["usage"]["memory"]) == (0.0, 9 * GIB)
    assert (node["dominant_resource"], node["dominant_share"]) == ("memory", 0.5)
    assert (node["running"], node["pending"]) == (1, 1), "it holds, and it waits to go on"


def test_bandwidth_can_be_the_dominant_resource() -> None:
    ledger = books(("alice", 1, 1, 1, 500))
    node = shares_view(ledger, rules(9, 18))["nodes"][0]
    assert (node["dominant_resource"], node["dominant_share"]) == ("read", 0.5)


def test_nothing_is_free_when_the_machine_was_made_smaller_than_what_runs() -> None:
    ledger = books(("bob", 2, 3, 1, 0))
    free = shares_view(ledger, rules(4, 18))["free"]
    assert free == {"cores": 0.0, "memory": 16 * GIB, "read": 1000, "write": 1000, "gres": {}}


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


@pytest.mark.parametrize("kind", [Refused, NotPermitted, HostError])
def test_an_error_keeps_its_kind_code_words_and_hint(kind: type[Refused]) -> None:
    assert error_view(kind("some-code", "what is wrong", hint="the way out")) == {
        "kind": kind.__name__,
        "code": "some-code",
        "text": "what is wrong",
        "hint": "the way out",
    }
