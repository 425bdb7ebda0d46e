"""Builders and fakes that the tests share. Fakes insist on silence: what was not asserted fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from drfd.core.decisions.dependencies import report_all_ends
from drfd.core.decisions.stimuli import (
    Actor,
    CancelAsked,
    ExitedReport,
    FrozenReport,
    LaunchedReport,
    Now,
    RemovedReport,
    Stimulus,
    SubmitAsked,
    SuspendAsked,
)
from drfd.core.fairness.rules import Pool, Rules
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.effects import Effect
from drfd.core.model.job import Job, JobSpec, JobState, Outcome, Postponed, Usage, Whose
from drfd.core.model.machine import Vector
from drfd.core.model.resources import Axes, Resources
from drfd.core.scheduling import scheduler
from drfd.core.scheduling.backfill import PassContext, make_pass_context
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import build_wait_index, start_events
from drfd.journal import records
from drfd.journal.submissions import Payload
from drfd.payload.pack import encode

if TYPE_CHECKING:
    from drfd.journal.journal import Journal

GIB = 1 << 30


def replace(value: Any, **changes: Any) -> Any:
    """Return a frozen dataclass or struct with other values of some fields."""
    change = structs.replace if isinstance(value, Struct) else dataclasses.replace
    return change(value, **changes)


ALICE = Actor(user="alice", uid=1001, is_admin=False)
BOB = Actor(user="bob", uid=1002, is_admin=False)
ADMIN = Actor(user="root", uid=0, is_admin=True)


def demand(cores: float = 1, memory_gib: float = 1, read: int = 0, write: int = 0) -> Resources:
    return Resources(
        cores_milli=round(cores * 1000),
        memory_bytes=round(memory_gib * GIB),
        read_bps=read,
        write_bps=write,
    )


def spec(
    pool: str = "root.alice",
    *,
    actor: Actor = ALICE,
    asks: Resources | None = None,
    time_limit_s: int | None = 3600,
    priority: int = 0,
    name: str = "job",
    preemptible: bool = False,
    **more: Any,
) -> JobSpec:
    """`more`: any other fields."""
    return JobSpec(
        name=name,
        user=actor.user,
        uid=actor.uid,
        gid=actor.uid,
        pool=pool,
        demand=asks or demand(),
        time_limit_s=time_limit_s,
        priority=priority,
        preemptible=preemptible,
        command="true",
        cwd="/home/alice",
        stdout="drf-%j.out",
        stderr="drf-%j.err",
        **more,
    )


def payload(
    env: Mapping[str, str] | None = None,
    *argv: str,
    script: str | None = None,
    proof: str | None = None,
    key: str | None = None,
) -> Payload:
    """What is signed of `spec()` with this environment."""
    asked = spec()
    fields = {
        "argv": argv or asked.argv, "cwd": asked.cwd, "umask": asked.umask,
        "stdout": asked.stdout, "stderr": asked.stderr, "env": env, "script": script,
    }  # fmt: skip
    return Payload(*encode(fields), proof, key)


def flat(capacity: Vector, weights: Mapping[str, Fraction] | None = None) -> FairShare:
    """Leaves side by side, each with one weight for all axes."""
    given = (weights or {}).items()
    rules = {leaf: NodeRule(weights=(weight,) * len(capacity)) for leaf, weight in given}
    return FairShare(capacity, rules)


def rules(
    cores: float = 9, memory_gib: float = 18, *, weights: dict[str, str] | None = None,
    grace_s: int = 10, max_waiting_per_user: int = 1000,
) -> Rules:  # fmt: skip
    pools = {name: Pool(weight=Fraction(weight)) for name, weight in (weights or {}).items()}
    return Rules(
        capacity=demand(cores, memory_gib, read=1000, write=1000),
        pools=pools,
        grace_s=grace_s,
        max_waiting_per_user=max_waiting_per_user,
    )


def with_gpus(*names: object, **changes: Any) -> Rules:
    """The usual machine with these GPUs, or with so many of them; `changes` replace fields."""
    if len(names) == 1 and isinstance(names[0], int):
        names = tuple(range(names[0]))
    plain = rules()
    axes = Axes(gres=("gpu",), instances=(("gpu", tuple(map(str, names))),))
    capacity = replace(plain.capacity, gres=(("gpu", len(names)),) if names else ())
    return replace(plain, axes=axes, capacity=capacity, **changes)


def of_gpus(count: int, **changes: Any) -> JobSpec:
    """A job that asks for so many; `changes` as in `spec`."""
    return spec(asks=replace(demand(), gres=(("gpu", count),)), **changes)


def with_shared_gpus(count: int, size: int = 24 << 30, **changes: Any) -> Rules:
    """The usual machine with so many GPUs of this memory, which several jobs may share."""
    plain = with_gpus(count, **changes)
    return replace(plain, axes=replace(plain.axes, shared=("gpu", size)))


def of_gpu_memory(memory: int, count: int = 1, **changes: Any) -> JobSpec:
    """A job that asks for GPUs with so much memory on each, in GiB."""
    asks = replace(demand(), gres=(("gpu", count),), gres_memory=(("gpu", memory << 30),))
    return spec(asks=asks, **changes)


def now(at_s: float = 0.0) -> Now:
    """Unix time and monotonic clock run together, 1000 s apart."""
    return Now(at_s=1_700_000_000 + at_s, mono_s=1000 + at_s)


@dataclass
class FakeHost:
    """Records the effects that an engine asks for. `take` empties it; a test ends with it empty."""

    ready: bool = True
    effects: list[Effect] = field(default_factory=list)

    def is_ready(self) -> bool:
        return self.ready

    def nodes_away(self) -> frozenset[str]:
        return frozenset()

    def perform(self, effect: Effect, job: Job) -> None:
        self.effects.append(effect)

    def take(self) -> list[Effect]:
        taken, self.effects = self.effects, []
        return taken


#: What happened to a job that is in this state now: kinds for `happened`.
ROADS: dict[JobState, tuple[type, ...]] = {
    JobState.PENDING: (ev.Submitted,),
    JobState.HELD: (ev.Submitted, ev.Held),
    JobState.STARTING: (ev.Submitted, ev.Admitted),
    JobState.RUNNING: (ev.Submitted, ev.Admitted, ev.Launched),
    JobState.SUSPENDED: (ev.Submitted, ev.Admitted, ev.Launched, ev.SuspendRequested, ev.Suspended),
    JobState.STOPPING: (ev.Submitted, ev.Admitted, ev.Launched, ev.StopRequested),
    JobState.CLEANING: (ev.Submitted, ev.Admitted, ev.Launched, ev.Exited),
    JobState.ENDED: (ev.Submitted, ev.Admitted, ev.Launched, ev.Exited, ev.Cleaned),
}


def postponed(**changes: Any) -> Postponed:
    """Why a launch was put off: the machine had no process to spare."""
    usual: dict[str, Any] = {
        "whose": Whose.MACHINE,
        "text": "the machine is short of processes",
        "resource": "processes",
        "at_s": 0.0,
        "tries": 1,
    }
    found = usual | changes
    return Postponed(**({"until_s": found["at_s"] + 1} | found))


def happened(kind: type, job_id: int = 1, at_s: float = 0.0, **changes: Any) -> Any:
    """A typical event of this kind; `changes` replace its fields."""
    when = now(at_s)
    usual: dict[type, dict[str, Any]] = {
        ev.Submitted: {"spec": spec()},
        ev.Held: {"by": "alice"},
        ev.Released: {"by": "alice"},
        ev.Cancelled: {"by": "alice"},
        ev.Admitted: {"attempt": 1},
        ev.Launched: {"attempt": 1, "mono_s": when.mono_s, "cgroup": f"drfd/{job_id}.1"},
        ev.LaunchFailed: {"attempt": 1, "text": "no such file", "outcome": Outcome.LAUNCH_FAILED},
        ev.LaunchPostponed: {"attempt": 1, "why": postponed(at_s=when.at_s)},
        ev.StopRequested: {
            "mono_s": when.mono_s,
            "outcome": Outcome.CANCELLED,
            "text": "cancelled by alice",
        },
        ev.PreemptRequested: {"mono_s": when.mono_s, "text": "stopped for job 2"},
        ev.Escalated: {},
        ev.Exited: {
            "attempt": 1,
            "exit_code": 0,
            "signal": None,
            "outcome": Outcome.COMPLETED,
            "text": "exit code 0",
            "usage": None,
        },
        ev.Cleaned: {"attempt": 1},
        ev.Requeued: {"attempt": 1},
        ev.SuspendRequested: {"by": "alice", "text": "suspended by alice"},
        ev.Suspended: {"attempt": 1, "mono_s": when.mono_s},
        ev.ResumeRequested: {"by": "alice"},
        ev.Resumed: {"mono_s": when.mono_s},
        ev.DependencySettled: {"ends": (ev.Settled(on=9, outcome=Outcome.COMPLETED, is_met=True),)},
        ev.BeginReached: {},
        ev.Retried: {"attempt": 1, "not_before_s": int(when.at_s) + 5},
        ev.Warned: {"signal": 10},
        ev.SignalRequested: {"signal": 10, "by": "alice"},
        ev.Altered: {"by": "alice", "priority": 5, "text": "priority 0 → 5"},
    }
    return kind(**({"job_id": job_id, "at_s": when.at_s} | usual[kind] | changes))


def ledger_at(state: JobState, job_id: int = 1, **submitted: Any) -> Ledger:
    """Books with one job, in this state; `submitted` replaces fields of its submission."""
    first, *rest = ROADS[state]
    events = [happened(first, job_id, **submitted), *(happened(kind, job_id) for kind in rest)]
    return Ledger.of_events(Axes(), events)


def tables(ledger: Ledger) -> dict[str, Any]:
    """All that a ledger knows, as a value to compare; later changes do not reach it."""
    known = {name: value for name, value in vars(ledger).items() if name[0] != "_"}
    for name in ("axes", "latest_array", "pause", "calendar"):
        del known[name]
    return deepcopy(known)


#: State → event → next state.
TRANSITIONS: dict[JobState, dict[type[ev.JobEvent], JobState]] = {
    state: {kind: kind.moves[state] for kind in ev.JobEvent.__subclasses__() if state in kind.moves}
    for state in JobState
}


def ended(job_id: int = 1, attempt: int = 1, at_s: float = 0.0, **changes: Any) -> ExitedReport:
    """The runner reports an exit with code 0; `changes` replace its fields."""
    when = now(at_s)
    usual: dict[str, Any] = {
        "at_s": when.at_s,
        "mono_s": when.mono_s,
        "exit_code": 0,
        "signal": None,
        "oom_killed": False,
        "over_limit": False,
        "usage": Usage(cpu_s=1.0),
    }
    return ExitedReport(job_id=job_id, attempt=attempt, **(usual | changes))


class Clock:
    """Time that passes when a test says so, or somebody sleeps; also in place of `time`."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def launched(job_id: int = 1, attempt: int = 1, at_s: float = 0.0) -> LaunchedReport:
    when = now(at_s)
    return LaunchedReport(
        when.at_s, job_id, attempt, mono_s=when.mono_s, cgroup=f"drfd/{job_id}.{attempt}"
    )


def apply_and_append(
    journal: Journal, event: ev.Event, ledger: Ledger, signed: Payload | None = None
) -> Job | None:
    """Record the event as the engine does."""
    job = ledger.apply(event)
    journal.append(event, job, ledger.latest_array, signed)
    return job


def all_events(journal: Journal) -> list[ev.Event]:
    """All committed events that are in the journal, in order."""
    db = journal._db
    with db.reported("read"):
        found = journal._general_events()
        for seq, *submission in db.execute("select seq, event, spec from submissions"):
            found.append((seq, records.decode_submission(*submission)))
        for (events,) in db.execute("select events from jobs union all select events from arrays"):
            found += records.decode_events(events)
    return [event for _, event in sorted(found, key=itemgetter(0))]


def schedule(
    ledger: Ledger,
    rules: Rules,
    past_usage: Mapping[str, float] | None = None,
    pass_context: PassContext | None = None,
    recent: Mapping[str, Vector] | None = None,
    at_s: float = 0.0,
) -> Plan:
    """A pass over the books with an index of its own; at this time if nothing else is known."""
    context = pass_context or make_pass_context(
        ledger, rules, RunTimes(), now_s=now(at_s).at_s, before=()
    )
    wait_index = build_wait_index(ledger, rules, past_usage or {}, recent or {})
    return scheduler.schedule(ledger, rules, wait_index, context)


@dataclass
class Bench:
    """The core without journal and host: decides, applies, and keeps all that happened."""

    rules: Rules = field(default_factory=rules)
    events: list[ev.Event] = field(default_factory=list)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.rules.axes)

    def feed(self, stimulus: Stimulus) -> list[ev.Event]:
        """What came of it, already in the books. What is refused changes nothing."""
        before = tables(self.ledger)
        try:
            found = stimulus.decide(self.ledger, self.rules)
        finally:
            assert tables(self.ledger) == before, "decide has changed the books"
        for event in found:
            self.ledger.apply(event)
        at_s = stimulus.now.at_s if hasattr(stimulus, "now") else stimulus.at_s
        found += report_all_ends(self.ledger, at_s)
        self.events += found
        return found

    def submit(self, asked: JobSpec | None = None, *, at_s: float = 0.0, held: bool = False) -> int:
        """The id of a job that was taken."""
        (event,) = self.feed(SubmitAsked(now(at_s), asked or spec(), held))
        assert isinstance(event, ev.Submitted)
        return event.job_id

    def schedule(self, at_s: float = 0.0) -> list[int]:
        """The jobs that one pass lets start, or go on, in order."""
        return [event.job_id for event in self.run_pass(at_s)]

    def run_pass(self, at_s: float = 0.0) -> list[ev.Admitted | ev.Resumed]:
        """What one pass decides, already in the books."""
        plan = schedule(self.ledger, self.rules, at_s=at_s)
        found = list(start_events(self.ledger, plan, now(at_s)))
        for event in found:
            self.ledger.apply(event)
        self.events += found
        return found

    def start(self, asked: JobSpec | None = None, *, at_s: float = 0.0) -> int:
        """A job that was submitted, admitted and launched, all at once."""
        job_id = self.submit(asked, at_s=at_s)
        assert job_id in self.schedule(at_s)
        self.feed(launched(job_id, at_s=at_s))
        return job_id

    def bring(self, state: JobState) -> None:
        """To a bench where nobody else is: job 1, of alice, is in this state."""
        self.submit(held=state is JobState.HELD)
        if state in (JobState.PENDING, JobState.HELD):
            return
        self.schedule()
        if state is JobState.STARTING:
            return
        self.feed(launched())
        if state is JobState.SUSPENDED:
            self.suspend(1)
        if state is JobState.STOPPING:
            self.feed(CancelAsked(now(), 1, ALICE))
        if state in (JobState.CLEANING, JobState.ENDED):
            self.feed(ended())
        if state is JobState.ENDED:
            self.feed(RemovedReport(now().at_s, 1, 1))

    def suspend(self, job_id: int, *, by: Actor | None = ALICE, at_s: float = 0.0) -> None:
        """The running job is frozen at once. `by` None: for another job, as preemption does it."""
        if by is None:
            self.befall(happened(ev.SuspendRequested, job_id, at_s, by=None, text="for job 9"))
        else:
            self.feed(SuspendAsked(now(at_s), job_id, by))
        self.feed(
            FrozenReport(now(at_s).at_s, job_id, self.job(job_id).attempt, mono_s=now(at_s).mono_s)
        )

    def preempt(self, job_id: int, *, at_s: float = 0.0) -> None:
        """The running job is to be stopped and queued again."""
        self.befall(happened(ev.PreemptRequested, job_id, at_s))

    def befall(self, event: ev.Event) -> None:
        """Something that others than `decide` decide."""
        self.ledger.apply(event)
        self.events.append(event)

    def finish(self, job_id: int, *, at_s: float = 0.0) -> None:
        """The job exits with code 0, and nothing of it is left."""
        self.feed(ended(job_id, at_s=at_s))
        self.feed(RemovedReport(now(at_s).at_s, job_id, 1))

    def job(self, job_id: int) -> Job:
        return self.ledger.jobs[job_id]

    def check(self) -> None:
        """The books agree with themselves, with their history, and with the machine's size."""
        self.ledger.check()
        replayed = Ledger.of_events(self.rules.axes, self.events)
        assert tables(replayed) == tables(self.ledger), "replaying the events gives other books"
        rebuilt = Ledger.of_jobs(
            self.rules.axes,
            self.ledger.jobs.values(),
            arrays=self.ledger.arrays.live(),
            next_id=self.ledger.next_id,
            drains=self.ledger.drains,
        )
        assert tables(rebuilt) == tables(self.ledger), "the live jobs give other books"
        pairs = zip(self.ledger.allocated.sums, self.rules.shares.capacity, strict=True)
        assert all(0 <= booked <= room for booked, room in pairs), "more is booked than there is"


def at(text: str) -> float:
    """Return the Unix time of a local time such as "2026-10-25 23:59"."""
    return datetime.fromisoformat(text).timestamp()
