"""Each kind of evidence on a wait has its sentence, word by word."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from drfd.core.decisions.outcome import Attempts
from drfd.core.explain.holders import (
    Holder,
    ReservedFirst,
    ResourceShortage,
    ServedFirst,
    Shortfall,
)
from drfd.core.explain.reasons import (
    ArrayLimit,
    AwaitedJob,
    BehindInFifo,
    BeyondLimit,
    BeyondMachine,
    ClosedNode,
    DependenciesEnded,
    Draining,
    Evidence,
    ExternalUse,
    GroupLimit,
    HasReservation,
    HeldAndNever,
    HeldBy,
    KeptFor,
    LauncherAway,
    LimitAtThisHour,
    MayNotPass,
    NeverStarts,
    NextPass,
    NodesClosed,
    OutOfQuota,
    PathLimit,
    ReasonCode,
    SlotsTaken,
    StartsFrom,
    TooLittleFree,
    WaitReason,
    WaitsFor,
    WindowAhead,
)
from drfd.core.fairness.week_quotas import QuotaUse
from drfd.core.model.job import JobState, Outcome, Postponed, RequiredOutcome, Whose
from drfd.core.scheduling.certainty import Certainty
from drfd.wording.waits import (
    WaitColumns,
    unknown_start_text,
    wait_columns,
    wait_text,
)

CORES = ResourceShortage("cores", 8000, 3000)
KEPT = KeptFor("2", "alice", (("cores", 7000), ("memory", 1 << 30)), 3600, is_drain=False)
POSTPONED = Postponed(
    whose=Whose.JOB, text="no process", resource="processes", at_s=0.0, until_s=1, tries=1
)
#: A job of three hours before a window of two.
AHEAD = WindowAhead("upgrade", "new kernel", 60, 7260, False, 10800, 7260)
#: The pool lab has used its 40 hours up; its jobs wait, or come last.
FULL = OutOfQuota(QuotaUse("root.lab", 41.256, 40.0, True, 7260))
LAST = OutOfQuota(QuotaUse("root.lab.bob", 1200.4, 2.5, False, 7260), (Shortfall(CORES),))
RUNNING, STARTING, PENDING = JobState.RUNNING, JobState.STARTING, JobState.PENDING


def job(*states: tuple[JobState, int], until_s: float | None = None) -> AwaitedJob:
    return AwaitedJob("1", "bob", False, states, until_s)


def array(*states: tuple[JobState, int]) -> AwaitedJob:
    return AwaitedJob("1", "bob", True, states)


def lacks(axis: str, needed: int, free: int, held: int) -> TooLittleFree:
    return TooLittleFree((short(axis, needed, free, Holder("1", "bob", held)),))


def short(axis: str, needed: int, free: int, *holders: Holder) -> Shortfall:
    return Shortfall(ResourceShortage(axis, needed, free), holders)


BY_BOB = (Shortfall(CORES, (Holder("2", "bob", 4000, 3800),)),)
BY_MANY = (
    Shortfall(
        CORES,
        (Holder("3", "carol", 1000, 3700, is_own=True), Holder("2", "bob", 4000, 3800)),
        more=2,
        kept=500,
    ),
)


SENTENCES: list[tuple[Evidence, str]] = [
    (HeldBy("alice", "1"), "held by alice; drf release 1 lets it go"),
    (HeldBy("alice", "4_7", is_suspended=True), "suspended by alice; drf resume 4_7 lets it go on"),
    (
        HeldBy("root", "1", is_admins=True),
        "held by root; an administrator's drf release 1 lets it go",
    ),
    (
        HeldBy("root", "1", is_suspended=True, is_admins=True),
        "suspended by root; an administrator's drf resume 1 lets it go on",
    ),
    (
        GroupLimit("alice", "sweep", at_once=2, running=2),
        "2 of alice's jobs of group sweep run; at most 2 may run at once",
    ),
    (
        GroupLimit("alice", "sweep", at_once=2, running=1),
        "at most 2 of alice's jobs of group sweep may run at once; 1 run, "
        "and others that need the same come first",
    ),
    (
        Draining("root", 5.0),
        "root has stopped launching (drf drain) since T+5.0s, until drf undrain",
    ),
    (
        Draining("root", 5.0, "disk swap"),
        "root has stopped launching (drf drain) since T+5.0s, until drf undrain: disk swap",
    ),
    (LauncherAway(), "the launcher is away; jobs start again when it is back"),
    (
        NodesClosed((ClosedNode("n1", away_since_s=5.0),)),
        "node n1 has been away since T+5.0s; it starts there when that is over, and no other node "
        "has enough for it",
    ),
    (NodesClosed((ClosedNode("n1"),)), "it asks for node n1, which is not configured any more"),
    (
        NodesClosed(
            (
                ClosedNode("n1", drained=Draining("root", 5.0, "new fans")),
                ClosedNode("n2", 7.0, Draining("root", 5.0)),
            )
        ),
        "node n1 was drained by root at T+5.0s: new fans; node n2 has been away since T+7.0s and "
        "was drained by root at T+5.0s; it starts on one of them when that is over, and no other "
        "node has enough for it",
    ),
    (NextPass(), "starts with the next pass"),
    # Dependencies and begin times.
    (
        NeverStarts("2_0", "1", Outcome.FAILED, RequiredOutcome.OK),
        "job 1 ended FAILED and was to end well, so this one never starts; "
        "drf cancel 2_0, or drf set --after '' 2_0",
    ),
    (
        NeverStarts("2", "1", Outcome.COMPLETED, RequiredOutcome.FAIL),
        "job 1 ended COMPLETED and was to fail, so this one never starts; "
        "drf cancel 2, or drf set --after '' 2",
    ),
    (
        NeverStarts(
            *("2", "1", Outcome.FAILED, RequiredOutcome.OK),
            (("3_1", RequiredOutcome.OK), ("4", RequiredOutcome.ANY)),
        ),
        "job 1 ended FAILED and was to end well, so this one never starts; "
        "drf cancel 2, or drf set --after 3_1,4:any 2",
    ),
    (
        HeldAndNever(
            NeverStarts("2", "1", Outcome.FAILED, RequiredOutcome.OK),
            HeldBy("root", "2", is_admins=True),
        ),
        "job 1 ended FAILED and was to end well, so this one never starts; "
        "drf cancel 2, or drf set --after '' 2; "
        "it is held by root, too (an administrator's drf release 2)",
    ),
    (DependenciesEnded(), "all that it waits for has ended: it is next"),
    (WaitsFor(job((STARTING, 1))), "waits for job 1 (bob), which is STARTING"),
    (
        WaitsFor(job((RUNNING, 1), until_s=70)),
        "waits for job 1 (bob), which is RUNNING and ends by T+70s at the latest",
    ),
    (WaitsFor(job((PENDING, 1)), 1), "waits for job 1 (bob), which is PENDING, and 1 more"),
    (WaitsFor(job()), "waits for job 1 (bob), which never starts: see drf why 1"),
    (
        WaitsFor(job(), is_through_others=True),
        "waits, over others, for job 1 (bob), which never starts: see drf why 1",
    ),
    (WaitsFor(array((PENDING, 10))), "waits for array 1 (bob), which is PENDING"),
    (
        WaitsFor(array((RUNNING, 2), (PENDING, 7))),
        "waits for array 1 (bob), which is RUNNING (2 tasks) and PENDING (7)",
    ),
    (
        WaitsFor(array((RUNNING, 1), (STARTING, 8), (JobState.HELD, 1), (PENDING, 2))),
        "waits for array 1 (bob), which is RUNNING (1 task), STARTING (8), HELD (1) "
        "and PENDING (2)",
    ),
    (StartsFrom(60, None), "it may start from T+60s on"),
    (
        StartsFrom(60, Attempts(2, 4, "attempt 1 ended FAILED (exit code 3)")),
        "attempt 2 of 4; attempt 1 ended FAILED (exit code 3); it may start from T+60s on",
    ),
    # Launches for which something was short.
    (POSTPONED, "no process; a launch is tried again at T+1s"),
    (
        replace(POSTPONED, whose=Whose.MACHINE, tries=2),
        "no process; a launch is tried again at T+1s, after 2 tries in vain; processes that end "
        "make room; an administrator can raise kernel.pid_max, or lower "
        "enforcement.processes_total",
    ),
    # Resources.
    (
        BeyondMachine("1", "cores", 5000, 4000, is_dispensable=False),
        "needs 5 cores, and the machine gives only 4 since its configuration was changed",
    ),
    (
        BeyondMachine("1", "memory", 8 << 30, 4 << 30, is_dispensable=False),
        "needs 8G of memory, and the machine gives only 4G since its configuration was changed",
    ),
    (
        BeyondMachine("2", "read:scratch", 30, 0, is_dispensable=True),
        "needs 30/s of disk reads on scratch, and the machine gives only 0/s "
        "since its configuration was changed; drf set --io scratch=0 2 lets it do without",
    ),
    (
        BeyondMachine("2", "gpu", 1, 0, is_dispensable=True),
        "needs 1 gpu, and the machine gives only 0 "
        "since its configuration was changed; drf set --gres gpu=0 2 lets it do without",
    ),
    (ArrayLimit(1, 4, 4), "array 1 runs 4 tasks at once at the most"),
    (
        ArrayLimit(1, 4, 2),
        "array 1 runs 4 tasks at once at the most; 2 run, and earlier ones come first",
    ),
    (
        BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=True),
        "needs 8 cores, and lab may hold only 2, so it never starts; "
        "drf set -c 2 7 lets it start, and so does a higher limit",
    ),
    (
        BeyondLimit("7", "root.lab", "memory", 8 << 30, 2 << 30, is_changeable=True),
        "needs 8G of memory, and lab may hold only 2G, so it never starts; "
        "drf set -m 2G 7 lets it start, and so does a higher limit",
    ),
    (
        BeyondLimit("7", "root.lab", "gpu", 2, 1, is_changeable=True),
        "needs 2 gpu, and lab may hold only 1, so it never starts; "
        "drf set --gres gpu=1 7 lets it start, and so does a higher limit",
    ),
    (
        BeyondLimit("7", "root.lab", "gpu", 2, 0, is_changeable=True),
        "needs 2 gpu, and lab may hold only 0, so it never starts; "
        "a higher limit lets it start, or a smaller demand (drf set)",
    ),
    (
        BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=False),
        "needs 8 cores, and lab may hold only 2, so it never starts",
    ),
    (
        PathLimit("root.lab", "cores", 4000, 3000, 2000),
        "lab may hold 4 cores and holds 3; the job needs 2",
    ),
    (
        PathLimit("root.lab", "cores", 4000, 3000, 2000, until_s=60),
        "lab may hold 4 cores until T+60s, and holds 3; the job needs 2",
    ),
    (
        PathLimit(
            "root.lab",
            "cores",
            4000,
            3000,
            2000,
            holders=(Holder("7", "bob", 3000, 90),),
            more=2,
        ),
        "lab may hold 4 cores and holds 3; the job needs 2; job 7 (bob) holds 3 until T+90s at the "
        "latest; 2 more jobs the rest",
    ),
    (
        LimitAtThisHour("root.lab", "cores", 2000, 0, until_s=60, from_s=60),
        "needs 2 cores, and lab may hold 0 until T+60s",
    ),
    (
        LimitAtThisHour("root.lab", "memory", 2 << 30, 1 << 30, until_s=60, from_s=90),
        "needs 2G of memory, and lab may hold 1G until T+60s; it may start from T+90s on",
    ),
    (
        LimitAtThisHour("root.lab.alice", "cores", 2000, 0, until_s=60, from_s=None),
        "needs 2 cores, and lab/alice may hold 0 until T+60s; at no hour do all its limits let it "
        "start",
    ),
    (
        PathLimit("root.lab", "memory", 4 << 30, 3 << 30, 2 << 30),
        "lab may hold 4G of memory and holds 3G; the job needs 2G",
    ),
    (TooLittleFree((short("cores", 1000, 0),)), "needs 1 core, 0 free"),
    (
        TooLittleFree(BY_MANY),
        "needs 8 cores, 3 free; job 3, also of carol, holds 1 until T+3700s at the latest; "
        "job 2 (bob) holds 4 until T+3800s at the latest; 2 more jobs the rest; "
        "0.5 is kept for processes outside jobs",
    ),
    (
        TooLittleFree(
            (short("cores", 2000, 0), short("gpu", 1, 0, Holder("4", "dan", 2)), *BY_BOB)
        ),
        "needs 2 cores, 0 free; and needs 1 gpu, 0 free; job 4 (dan) holds 2; "
        "and too little is free of cores",
    ),
    (
        TooLittleFree(BY_BOB),
        "needs 8 cores, 3 free; job 2 (bob) holds 4 until T+3800s at the latest",
    ),
    (lacks("cores", 1500, 500, 8500), "needs 1.5 cores, 0.5 free; job 1 (bob) holds 8.5"),
    (
        lacks("memory", 8 << 30, 6 << 30, 12 << 30),
        "needs 8G of memory, 6G free; job 1 (bob) holds 12G",
    ),
    (
        lacks("read", 512, 300, 700),
        "needs 512/s of disk reads, 300/s free; job 1 (bob) holds 700/s",
    ),
    (
        lacks("write", 512, 300, 700),
        "needs 512/s of disk writes, 300/s free; job 1 (bob) holds 700/s",
    ),
    (lacks("gpu", 2, 0, 2), "needs 2 gpu, 0 free; job 1 (bob) holds 2"),
    (
        HasReservation(BY_BOB, 3600),
        "needs 8 cores, 3 free; job 2 (bob) holds 4 until T+3800s at the latest; "
        "what is given back is kept for it, "
        "and it starts about T+3600s, estimated from few earlier jobs",
    ),
    (
        HasReservation((short("cores", 8000, 3000),), 3600, Certainty.LIMITS),
        "needs 8 cores, 3 free; what is given back is kept for it, "
        "and it starts by T+3600s, when jobs reach their time limits",
    ),
    (
        HasReservation((short("cores", 8000, 3000),), 3600, Certainty.UNKNOWN),
        "needs 8 cores, 3 free; what is given back is kept for it",
    ),
    (
        ExternalUse(ResourceShortage("memory", 10 << 30, 8 << 30), used=8 << 30, kept=6 << 30),
        "needs 10G of memory, 8G free; "
        "processes outside drfd use 8G, 6G of it out of what is for jobs "
        "(respect_external_load = true leaves it to them)",
    ),
    (
        ExternalUse(CORES, used=6001, kept=6001),
        "needs 8 cores, 3 free; processes outside drfd use 6.001 "
        "(respect_external_load = true leaves it to them)",
    ),
    (
        ExternalUse(
            ResourceShortage("gpu", 2, 0),
            3,
            3,
            (("0", ("carol", "dave")), ("GPU-5c", ("root",)), ("2", ())),
        ),
        "needs 2 gpu, 0 free; gpu 0 is used by processes of carol, dave outside drfd; "
        "gpu GPU-5c is used by processes of root outside drfd; "
        "gpu 2 is lost: its driver does not reach it any more "
        "(respect_external_load = true leaves it to them)",
    ),
    (
        ExternalUse(ResourceShortage("gpu", 1, 0), 1, 1, (("0", ()),)),
        "needs 1 gpu, 0 free; gpu 0 is lost: its driver does not reach it any more",
    ),
    (
        ExternalUse(CORES, used=6000, kept=6000, node="n1"),
        "needs 8 cores, 3 free; jobs that were submitted to Slurm past drfd hold 6 on n1",
    ),
    # Shares.
    (
        ServedFirst((short("cores", 8000, 3000),), ("root.alice",), 1),
        "needs 8 cores, 3 free; alice has less and goes first",
    ),
    (
        ServedFirst(BY_BOB, ("root.lab.bob", "root.carol", "root.dave"), 4),
        "needs 8 cores, 3 free; job 2 (bob) holds 4 until T+3800s at the latest; "
        "lab/bob, carol, dave and 1 more have less and go first",
    ),
    (
        ServedFirst((short("cores", 8000, 3000),), ("root.alice",), 1, have_less=False),
        "needs 8 cores, 3 free; alice goes first by fair share",
    ),
    # Reservations.
    (
        ReservedFirst((short("cores", 8000, 3000),), "7", "alice", 1),
        "needs 8 cores, 3 free; job 7 (alice) has a reservation and comes first",
    ),
    (
        ReservedFirst((short("cores", 8000, 3000),), "7", "alice", 2),
        "needs 8 cores, 3 free; job 7 (alice) and 1 more have reservations and come first",
    ),
    (
        KEPT,
        "it fits, but room is kept free for job 2 (alice), which needs 7 cores, 1G of memory "
        "and is expected to start by T+3600s; this job would not have ended by then",
    ),
    (
        replace(KEPT, start_s=None),
        "it fits, but room is kept free for job 2 (alice), which needs 7 cores, 1G of memory",
    ),
    (
        replace(KEPT, own_start_s=7200),
        "it fits, but room is kept free for job 2 (alice), which needs 7 cores, 1G of memory "
        "and is expected to start by T+3600s; this job would not have ended by then; "
        "it starts by T+7200s itself",
    ),
    (
        replace(KEPT, behind="4"),
        "it fits, but job 4, which needs the same, comes first; "
        "room is kept free for job 2 (alice), which needs 7 cores, 1G of memory "
        "and is expected to start by T+3600s",
    ),
    (
        replace(KEPT, user=None, is_drain=True),
        "it fits, but everything that it needs is kept free for job 2, "
        "which needs 7 cores, 1G of memory and is expected to start by T+3600s",
    ),
    (
        MayNotPass("4"),
        "it fits, but job 4 comes first: it has waited so long that no later job may pass it",
    ),
    (
        MayNotPass("4", own_start_s=60),
        "it fits, but job 4 comes first: it has waited so long that no later job may pass it; "
        "it starts by T+60s itself",
    ),
    # Maintenance windows.
    (
        FULL,
        "lab has used 41.26 of its 40 dominant-share-hours of this week; its jobs wait until "
        "T+7260s, when the next week begins",
    ),
    (
        LAST,
        "needs 8 cores, 3 free; lab/bob has used 1200 of its 2.5 dominant-share-hours of this "
        "week and is served last until T+7260s",
    ),
    (
        AHEAD,
        "it might not end before the maintenance window upgrade (T+60s to T+7260s: new kernel): "
        "its time limit is 3h00m; it starts from T+7260s on, or drf set -t TIME gives it a "
        "shorter one",
    ),
    (
        replace(AHEAD, text="", limit_s=None),
        "it might not end before the maintenance window upgrade (T+60s to T+7260s): it has no time "
        "limit; it starts from T+7260s on, or drf set -t TIME gives it one",
    ),
    (
        replace(AHEAD, is_open=True),
        "the maintenance window upgrade is open until T+7260s; nothing starts before: new kernel",
    ),
    (
        replace(AHEAD, is_open=True, text="", from_s=9000),
        "the maintenance window upgrade is open until T+7260s; nothing starts before, and this job "
        "not before T+9000s",
    ),
    (
        replace(AHEAD, from_s=None),
        "its time limit is 3h00m, longer than the times between maintenance windows (upgrade, "
        "T+60s to T+7260s: new kernel), so it never starts; drf set -t TIME gives it a shorter "
        "one",
    ),
    # Other policies.
    (SlotsTaken(2), "all 2 slots are taken (policy slots)"),
    (
        BehindInFifo("2", "alice"),
        "job 2 (alice) comes first and waits itself; with the policy fifo nobody passes it",
    ),
]


@pytest.mark.parametrize(("evidence", "sentence"), SENTENCES)
def test_the_evidence_is_told_in_these_words(evidence: Evidence, sentence: str) -> None:
    reason = WaitReason(ReasonCode.RESOURCES, evidence)
    assert wait_text(reason, lambda at_s: f"T+{at_s}s") == sentence


def test_every_kind_of_evidence_has_a_sentence_here() -> None:
    assert {type(evidence) for evidence, _ in SENTENCES} == set(get_args(Evidence))


COLUMNS: list[tuple[Evidence, WaitColumns]] = [
    (HeldBy("alice", "1"), WaitColumns("release", "alice")),
    (HeldBy("root", "4_7", is_suspended=True), WaitColumns("resume", "root")),
    (GroupLimit("alice", "sweep", 2, 2), WaitColumns("group sweep", "2 at once")),
    (Draining("root", 5.0), WaitColumns("undrain", "root")),
    (FULL, WaitColumns("quota of the week", "lab", until_s=7260)),
    (LAST, WaitColumns("quota of the week", "lab/bob", CORES)),
    (AHEAD, WaitColumns("end of upgrade", "maintenance window", until_s=7260)),
    (replace(AHEAD, from_s=None), WaitColumns("never starts", "maintenance window")),
    (LauncherAway(), WaitColumns("launcher")),
    (NodesClosed((ClosedNode("n1"), ClosedNode("n2"))), WaitColumns("n1 or n2")),
    (NextPass(), WaitColumns("next pass")),
    (
        NeverStarts("2_0", "1", Outcome.FAILED, RequiredOutcome.OK),
        WaitColumns("never starts", "job 1 FAILED"),
    ),
    (
        HeldAndNever(
            NeverStarts("2", "1", Outcome.FAILED, RequiredOutcome.OK), HeldBy("alice", "2")
        ),
        WaitColumns("never starts", "job 1 FAILED"),
    ),
    (DependenciesEnded(), WaitColumns("next pass")),
    (WaitsFor(job((RUNNING, 1), until_s=70)), WaitColumns("job 1", "bob", until_s=70)),
    (WaitsFor(array((PENDING, 10)), 3), WaitColumns("array 1 +3", "bob")),
    (StartsFrom(60, None), WaitColumns("T+60s", until_s=60)),
    (POSTPONED, WaitColumns("processes", "own limit", until_s=1)),
    (
        replace(POSTPONED, whose=Whose.MACHINE, resource="memory"),
        WaitColumns("memory", "machine", until_s=1),
    ),
    (
        BeyondMachine("2", "read:scratch", 30, 0, is_dispensable=True),
        WaitColumns("more scratch reads", "capacity 0/s"),
    ),
    (ArrayLimit(1, 4, 4), WaitColumns("array 1", "4 at once")),
    (
        BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=True),
        WaitColumns("limit of cores", "lab: 2"),
    ),
    (
        LimitAtThisHour("root.lab", "cores", 2000, 0, until_s=60, from_s=90),
        WaitColumns("limit of cores", "lab: 0", until_s=90),
    ),
    (
        PathLimit("root.lab", "cores", 4000, 3000, 2000),
        WaitColumns("limit of cores", "lab", ResourceShortage("cores", 2000, 1000)),
    ),
    (
        TooLittleFree((short("read", 1000, 0),)),
        WaitColumns("disk reads", shortage=ResourceShortage("read", 1000, 0)),
    ),
    (
        TooLittleFree(BY_BOB),
        WaitColumns("cores", "job 2 (bob)", CORES, 3800),
    ),
    (TooLittleFree(BY_MANY), WaitColumns("cores", "job 3 (carol) +3", CORES)),
    (HasReservation(BY_BOB, 3600), WaitColumns("cores", "running jobs", CORES, 3600)),
    (
        HasReservation(BY_BOB, 3600, Certainty.UNKNOWN),
        WaitColumns("cores", "running jobs", CORES),
    ),
    (ExternalUse(CORES, used=6001, kept=6001), WaitColumns("cores", "external load", CORES)),
    (
        ServedFirst((short("cores", 8000, 3000),), ("root.alice",), 1),
        WaitColumns("share of cores", "alice", CORES),
    ),
    (
        ServedFirst((short("cores", 8000, 3000),), ("root.lab.bob",), 4),
        WaitColumns("share of cores", "lab/bob +3", CORES),
    ),
    (
        ReservedFirst((short("cores", 8000, 3000),), "7", "alice", 1),
        WaitColumns("cores", "reservation (alice)", CORES),
    ),
    (KEPT, WaitColumns("start of 2", "reservation (alice)", until_s=3600)),
    (replace(KEPT, user=None), WaitColumns("start of 2", "reservation", until_s=3600)),
    (MayNotPass("4", own_start_s=60), WaitColumns("start of 4", "starvation guard")),
    (SlotsTaken(2), WaitColumns("a slot", "2 slots taken")),
    (BehindInFifo("2", "alice"), WaitColumns("start of 2", "job 2 (alice)")),
]


@pytest.mark.parametrize(("evidence", "columns"), COLUMNS)
def test_the_evidence_has_these_columns(evidence: Evidence, columns: WaitColumns) -> None:
    reason = WaitReason(ReasonCode.RESOURCES, evidence)
    assert wait_columns(reason, lambda at_s: f"T+{at_s}s") == columns


def test_every_kind_of_evidence_has_columns_here() -> None:
    assert {type(evidence) for evidence, _ in COLUMNS} == set(get_args(Evidence))


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (HeldBy("root", "2"), "somebody must release it first"),
        (HeldBy("root", "2", is_suspended=True), "somebody must resume it first"),
        (Draining("root", 0), "no job starts until drf undrain"),
        (NodesClosed((ClosedNode("n1"), ClosedNode("n2"))), "no job starts on n1 or n2 just now"),
        (WaitsFor(job((JobState.HELD, 1))), "the job that it waits for is held"),
        (WaitsFor(job((JobState.SUSPENDED, 1))), "the job that it waits for is suspended"),
        (WaitsFor(job()), "what it waits for can no longer happen"),
        (WaitsFor(job((RUNNING, 1))), None),
        (
            BeyondMachine("7", "cores", 8000, 4000, is_dispensable=False),
            "it needs more than the machine gives",
        ),
        (
            BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=True),
            "it needs more than its limit lets it have",
        ),
        (
            ExternalUse(CORES, used=1, kept=1),
            "nobody knows when processes outside jobs will use less",
        ),
        (
            TooLittleFree((Shortfall(CORES, kept=1000),)),
            "nobody knows when processes outside jobs will use less",
        ),
        (TooLittleFree((Shortfall(CORES),)), None),
        (replace(AHEAD, from_s=None), "it is too long for the times between maintenance windows"),
        (AHEAD, None),
    ],
)
def test_an_unknown_start_has_its_own_cause(evidence: Evidence, text: str | None) -> None:
    assert unknown_start_text(WaitReason(ReasonCode.RESOURCES, evidence)) == text


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (HeldBy("root", "3"), "somebody must release job 3 first"),
        (HeldBy("root", "3", is_suspended=True), "somebody must resume job 3 first"),
        (WaitsFor(job()), "what job 3 waits for can no longer happen"),
        (
            ExternalUse(CORES, used=1, kept=1),
            "job 3 comes first, and nobody knows when processes outside jobs will use less",
        ),
        (TooLittleFree((Shortfall(CORES),)), None),
    ],
)
def test_an_unknown_start_may_be_another_jobs(evidence: Evidence, text: str | None) -> None:
    assert unknown_start_text(WaitReason(ReasonCode.RESOURCES, evidence), "3") == text
