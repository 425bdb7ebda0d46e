"""Simulation of a workload by the daemon's own scheduler, on a virtual clock.

`core.scheduling.scheduler.Scheduler`, the ledger and the events are those of the daemon. The
machine is replaced: an admitted job runs at once, and ends after its run time, or sooner if it is
lent cores. There is one scheduling pass after all events of one moment. No job is preempted, cut at
its limit, or measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from drfd.common.errors import Refused
from drfd.core.amounts.vectors import Vector
from drfd.core.decisions.job_requests import refuse_unfit
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import NO_WORDS, Job, JobSpec, Outcome
from drfd.core.model.stimuli import Now
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from drfd.sim.lending import RunningJobs
from drfd.sim.workload import SimJob

#: The run times that the scheduler assumes.
#: predicted: the daemon's estimates, from each user's last jobs, at most the limit;
#: limit: the limits, or the estimates where a job has none; exact: the truth, in whole seconds;
#: none: unknown, so there are no reservations, and a job that does not fit is always passed over.
ESTIMATES = ("predicted", "limit", "exact", "none")


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that ran, and when it started."""

    job: SimJob
    start_s: float
    end_s: float

    @property
    def run_s(self) -> float:
        """How long it took: less than its run time if it was lent cores."""
        return self.end_s - self.start_s

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.submit_s


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A job that did not run, and why."""

    job: SimJob
    why: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of simulating a workload under a policy."""

    policy: str
    estimates: str
    rules: Rules
    #: In the order of their starts; jobs that start at one moment in the order of admission.
    ran: tuple[FinishedJob, ...]
    #: Refused at submission, as too large for the machine or their pool.
    refused: tuple[UnfinishedJob, ...]
    #: Still waiting when no event was left.
    unstarted: tuple[UnfinishedJob, ...]
    #: Job id → its leaf of the fair-share tree.
    leaves: dict[int, str]
    #: The number of scheduling passes.
    passes: int
    #: Whether idle cores were lent to running jobs.
    lends: bool = False
    #: Job id → the scheduler's rule by which the job was started.
    reasons: dict[int, ev.StartReason] = field(default_factory=dict)

    def changes(self) -> Iterator[tuple[float, str, Vector, int]]:
        """Yield (time, leaf, demand, 1 or -1) for each allocation (1) and release (-1).

        They come in order of time, releases first. Use over time is their running sum.
        """
        found = [(each.start_s, 1, at, each) for at, each in enumerate(self.ran)]
        found += [(each.end_s, -1, at, each) for at, each in enumerate(self.ran)]
        for at_s, sign, _, each in sorted(found, key=lambda change: change[:3]):
            demand = self.rules.axes.vector(each.job.demand)
            yield at_s, self.leaves[each.job.id], demand, sign


#: Called now and then with the number of jobs that have ended or were refused.
Progress = Callable[[int], None]


def simulate(
    jobs: Sequence[SimJob],
    rules: Rules,
    *,
    policy: str = "drf",
    estimates: str = "predicted",
    lends: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Simulate `jobs`, which are in the order of submission, under `rules`. With `lends`, jobs that
    have a range are lent cores that others leave idle, as `drfd.sim.lending` has it.

    The result depends on the arguments alone: equal arguments give equal runs.
    """
    simulation = _Simulation(rules_for(rules, policy, estimates), estimates, lends=lends)
    upcoming, at = list(jobs), 0
    ended_before = -1
    while at < len(upcoming) or simulation.running.next_end_s is not None:
        times = [upcoming[at].submit_s] if at < len(upcoming) else []
        end_s = simulation.running.next_end_s
        times += [] if end_s is None else [end_s]
        simulation.now = Now(at_s=min(times), mono_s=min(times))
        while (job_id := simulation.running.take_ended(simulation.now.at_s)) is not None:
            simulation.end(job_id)
        while at < len(upcoming) and upcoming[at].submit_s <= simulation.now.at_s:
            simulation.submit(upcoming[at])
            at += 1
        simulation.pass_now()
        if progress is not None and simulation.ended != ended_before:
            ended_before = simulation.ended
            progress(simulation.ended + len(simulation.refused))
    return Run(
        policy=policy,
        estimates=estimates,
        rules=rules,
        ran=tuple(simulation.ran()),
        refused=tuple(simulation.refused),
        unstarted=tuple(
            UnfinishedJob(simulation.asked[job_id], "never started")
            for job_id in sorted(simulation.ledger.jobs)
        ),
        leaves=simulation.leaves,
        reasons=simulation.reasons,
        passes=simulation.passes,
        lends=lends,
    )


def rules_for(rules: Rules, policy: str, estimates: str) -> Rules:
    """Return the rules under which a policy is simulated."""
    patience = rules.patience
    if estimates == "none":
        # EASY backfilling without estimates is first come, first served.
        policy = "fifo" if policy == "easy" else policy
        patience = replace(patience, reserves=False)
    return replace(rules, policy=policy, patience=patience, preempting=None, beside=None)


class _DeclaredRunTimes(RunTimes):
    """Estimates that are the jobs' time limits, where they have one."""

    def length_s(self, spec: JobSpec) -> float:
        return super().length_s(spec) if spec.time_limit_s is None else float(spec.time_limit_s)


class _Simulation:
    """The ledger, the scheduler, and a machine on which jobs just run."""

    def __init__(self, rules: Rules, estimates: str, *, lends: bool) -> None:
        self.rules, self._estimates = rules, estimates
        self.ledger = Ledger(rules.axes)
        run_times = RunTimes() if estimates in ("predicted", "none") else _DeclaredRunTimes()
        self._scheduler = Scheduler(rules.half_life_s, run_times)
        self.now = Now(0.0, 0.0)
        self.running = RunningJobs(rules.shares, lends=lends)
        self.asked: dict[int, SimJob] = {}
        self.leaves: dict[int, str] = {}
        self.reasons: dict[int, ev.StartReason] = {}
        #: Job id → the job and when it started, in the order of starts; and when it ended.
        self._started: dict[int, tuple[SimJob, float]] = {}
        self._ended: dict[int, float] = {}
        self.refused: list[UnfinishedJob] = []
        self.ended = self.passes = 0
        #: The specification that equal jobs share, or the text of its refusal.
        self._specs: dict[tuple[object, ...], JobSpec | str] = {}

    def submit(self, job: SimJob) -> None:
        spec = self._spec(job)
        if isinstance(spec, str):
            self.refused.append(UnfinishedJob(job, spec))
            return
        self.asked[job.id] = job
        self.leaves[job.id] = spec.leaf
        self._apply(ev.Submitted(job_id=job.id, at_s=self.now.at_s, spec=spec))

    def pass_now(self) -> None:
        self.passes += 1
        for event in self._scheduler.run(self.ledger, self.rules, self.now):
            self._apply(event)
            assert isinstance(event, ev.Admitted), "nothing is preempted or suspended here"
            self._apply(event.launched(self.now.mono_s))
            self.reasons[event.job_id] = event.why
            job = self.asked[event.job_id]
            self._started[job.id] = job, self.now.at_s
            self.running.start(job, self.leaves[job.id], self.now.at_s)
        self.running.divide(self.ledger.used, self.now.at_s)

    def ran(self) -> Iterator[FinishedJob]:
        for job_id, (job, start_s) in self._started.items():
            yield FinishedJob(job, start_s, self._ended[job_id])

    def end(self, job_id: int) -> None:
        exited = self._apply(
            ev.Exited(
                job_id=job_id,
                at_s=self.now.at_s,
                attempt=1,
                exit_code=0,
                signal=None,
                outcome=Outcome.COMPLETED,
                text="",
                usage=None,
            )
        )
        self._scheduler.remember([exited], self.rules, self.now)
        self._apply(ev.Cleaned(job_id=job_id, at_s=self.now.at_s, attempt=1))
        self._ended[job_id] = self.now.at_s
        self.ended += 1
        del self.asked[job_id]

    def _apply(self, event: ev.Event) -> Job:
        job = self.ledger.apply(event)
        assert job is not None
        self._scheduler.note(job)
        return job

    def _spec(self, job: SimJob) -> JobSpec | str:
        limit_s = job.run_s if self._estimates == "exact" else job.limit_s
        key = job.user, job.group, job.demand, limit_s
        found = self._specs.get(key)
        if found is None:
            found = self._specs[key] = self._new_spec(job, limit_s)
        return found

    def _new_spec(self, job: SimJob, limit_s: float | None) -> JobSpec | str:
        try:
            group = job.group if job.group in self.rules.pools else None
            spec = JobSpec(
                name="",
                user=job.user,
                uid=0,
                gid=0,
                pool=self.rules.pool_for(job.user, group),
                demand=job.demand,
                time_limit_s=None if limit_s is None else max(1, ceil(limit_s)),
                argv=NO_WORDS,
                cwd="/",
                stdout="",
                stderr="",
            )
            refuse_unfit(spec, self.rules)
        except Refused as refusal:
            return refusal.text
        return spec
