"""Simulation of a workload by the daemon's own scheduler, on a virtual clock.

`core.scheduling.scheduler.Scheduler`, the ledger and the events are those of the daemon. The
machine is replaced: an admitted job runs at once, at the speed that a `Speeds` gives it, and ends
when its run time is over. There is one scheduling pass after all events of one moment, and one when
the scheduler asks for it (`Plan.next_pass_s`, `is_cut`). The passes that a daemon makes besides,
every five seconds, find nothing new here. No job is preempted, cut at its limit, or measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import ceil, inf
from operator import itemgetter

from drfd.common.errors import Refused
from drfd.core.decisions.job_requests import refuse_unfit
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.calendar import Calendar
from drfd.core.model.job import Job, JobSpec, Now
from drfd.core.model.machine import Vector
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from drfd.sim.workload import SimJob

#: The run times that the scheduler assumes.
#: predicted: the daemon's estimates, from each user's last jobs, at most the limit;
#: limit: the limits, or the estimates where a job has none; exact: the truth, in whole seconds;
#: none: unknown, so there are no reservations, and a job that does not fit is always passed over.
ESTIMATES = ("predicted", "limit", "exact", "none")


@dataclass(frozen=True, slots=True)
class FinishedJob:
    job: SimJob
    start_s: float
    end_s: float

    @property
    def run_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.submit_s


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    job: SimJob
    why: str


@dataclass(frozen=True, kw_only=True)
class Run:
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

    def changes(self) -> Iterator[tuple[float, str, Vector, SimJob, int]]:
        """Yield (time, leaf, demand, job, sign) when a job begins to wait (0), starts (1) and ends
        (-1), in order of time, ends first. Use over time is the running sum of signs by demands."""
        found = [(each.job.submit_s, 1, each.job.id, each.job, 0) for each in self.unstarted]
        for at, ran in enumerate(self.ran):
            found.append((ran.job.submit_s, 1, ran.job.id, ran.job, 0))
            found.append((ran.start_s, 2, at, ran.job, 1))
            # A job of no length must end after its start.
            found.append((ran.end_s, 0 if ran.end_s > ran.start_s else 3, at, ran.job, -1))
        for at_s, _, _, job, sign in sorted(found, key=itemgetter(0, 1, 2)):
            yield at_s, self.leaves[job.id], self.rules.axes.vector(job.demand), job, sign


class Speeds:
    """The speeds at which running jobs go: parts of those that their run times stand for. Here all
    are 1."""

    def start(self, job: SimJob, leaf: str, node: str, now_s: float) -> None:
        """Take account of a start."""

    def end(self, job: SimJob, now_s: float) -> Sequence[SimJob]:
        """Take account of an end, and return the jobs that are submitted because of it."""
        return ()

    def changed(self, used: Mapping[str, Vector], now_s: float) -> Mapping[int, float]:
        """Return the speeds of jobs, also equal ones, after all changes of one moment. `used` is
        what each leaf holds."""
        return {}


#: Called now and then with the number of jobs that have ended or were refused.
Progress = Callable[[int], None]


def simulate(
    jobs: Sequence[SimJob],
    rules: Rules,
    *,
    estimates: str = "predicted",
    speeds: Speeds | None = None,
    until_s: float = inf,
    progress: Progress | None = None,
) -> Run:
    """Simulate `jobs`, which are in the order of submission, under `rules`, up to a time. The
    result depends on the arguments alone: equal arguments give equal runs."""
    run = _Simulation(rules_for(rules, estimates), estimates, speeds or Speeds())
    comes, goes = deque(jobs), deque(sorted((job.until_s, job.id) for job in jobs if job.until_s))
    ended_before = -1
    while True:
        times = [run.next_end_s, comes[0].submit_s if comes else inf, goes[0][0] if goes else inf]
        if run.next_pass_s is not None:
            times.append(run.next_pass_s)
        if (now_s := min(times)) >= until_s:
            break
        run.now = Now(at_s=now_s, mono_s=now_s)
        while run.next_end_s <= now_s:
            run.end_next()
        while goes and goes[0][0] <= now_s:
            run.withdraw(goes.popleft()[1])
        while comes and comes[0].submit_s <= now_s:
            run.submit(comes.popleft())
        run.pass_now()
        if progress is not None and len(run.ended) != ended_before:
            ended_before = len(run.ended)
            progress(ended_before + len(run.refused))
    return Run(
        estimates=estimates,
        rules=rules,
        ran=tuple(
            FinishedJob(*started, run.ended[job_id])
            for job_id, started in run.started.items()
            if job_id in run.ended
        ),
        refused=tuple(run.refused),
        unstarted=tuple(
            UnfinishedJob(job, "never started")
            for job_id, job in sorted(run.asked.items())
            if job_id not in run.started
        ),
        leaves=run.leaves,
        passes=run.passes,
    )


def rules_for(rules: Rules, estimates: str) -> Rules:
    policy, reserving = rules.policy, rules.reserving
    if estimates == "none":
        # EASY backfilling without estimates is first come, first served.
        policy = "fifo" if policy == "easy" else policy
        reserving = replace(reserving, reserves=False)
    return replace(rules, policy=policy, reserving=reserving, preempting=None, beside=None)


class _DeclaredRunTimes(RunTimes):
    """Estimates that are the jobs' time limits, where they have one."""

    def length_s(self, spec: JobSpec) -> float:
        return super().length_s(spec) if spec.time_limit_s is None else float(spec.time_limit_s)


#: Speeds that differ by less than this part are equal, against rounding errors.
_SAME = 1e-9


class _Simulation:
    """The ledger, the scheduler, and a machine on which jobs just run."""

    def __init__(self, rules: Rules, estimates: str, speeds: Speeds) -> None:
        self.rules, self._estimates, self._speeds = rules, estimates, speeds
        self.ledger = Ledger(rules.axes)
        run_times = RunTimes() if estimates in ("predicted", "none") else _DeclaredRunTimes()
        self._scheduler = Scheduler(rules.half_life_s, run_times)
        self.now = Now(0.0, 0.0)
        #: Job id → the job, while it waits or runs.
        self.asked: dict[int, SimJob] = {}
        self.leaves: dict[int, str] = {}
        #: Job id → the job and when it started, in the order of starts; and when it ended.
        self.started: dict[int, tuple[SimJob, float]] = {}
        self.ended: dict[int, float] = {}
        self.refused: list[UnfinishedJob] = []
        self.passes = 0
        #: The specification that equal jobs share, or the text of its refusal.
        self._specs: dict[tuple[object, ...], JobSpec | str] = {}
        #: Running job → (since when it has its speed, what is left then, in seconds at speed 1;
        #: speed, end).
        self._left: dict[int, tuple[float, float, float, float]] = {}
        #: (end, job), a heap. An entry is out of date if the job's end is another one by now.
        self._heap: list[tuple[float, int]] = []

    @property
    def next_end_s(self) -> float:
        """When the next job ends, or infinity."""
        while self._heap:
            end_s, job_id = self._heap[0]
            if job_id in self._left and self._left[job_id][3] == end_s:
                return end_s
            heappop(self._heap)
        return inf

    @property
    def next_pass_s(self) -> float | None:
        return self.now.at_s if self._scheduler.is_cut else self._scheduler.next_pass_s

    def submit(self, job: SimJob) -> None:
        limit_s = job.run_s if self._estimates == "exact" else job.limit_s
        key = job.user, job.group, job.demand, limit_s
        if key not in self._specs:
            self._specs[key] = self._new_spec(job, limit_s)
        spec = self._specs[key]
        if isinstance(spec, str):
            self.refused.append(UnfinishedJob(job, spec))
            return
        self.asked[job.id] = job
        self.leaves[job.id] = spec.leaf
        self._apply(ev.Submitted(job.id, self.now.at_s, spec=spec))

    def withdraw(self, job_id: int) -> None:
        if job_id in self.asked and job_id not in self.started:
            job = self.asked.pop(job_id)
            self._apply(ev.Cancelled(job_id, self.now.at_s, by=job.user))

    def pass_now(self) -> None:
        self.passes += 1
        for event in self._scheduler.run(self.ledger, self.rules, self.now):
            self._apply(event)
            assert isinstance(event, ev.Admitted), "nothing is preempted or suspended here"
            self._apply(event.launched(self.now.mono_s))
            job = self.asked[event.job_id]
            self.started[job.id] = job, self.now.at_s
            self._speeds.start(job, self.leaves[job.id], event.node, self.now.at_s)
            self._run_on(job.id, job.run_s, 1.0)
        for job_id, speed in self._speeds.changed(self.ledger.used, self.now.at_s).items():
            since_s, left_s, before, _ = self._left[job_id]
            if abs(speed - before) > _SAME * before:
                done_s = (self.now.at_s - since_s) * before
                self._run_on(job_id, max(0.0, left_s - done_s), speed)
        if len(self._heap) > 4 * len(self._left) + 100:
            self._heap = [(end_s, job_id) for job_id, (*_, end_s) in self._left.items()]
            heapify(self._heap)

    def _run_on(self, job_id: int, left_s: float, speed: float) -> None:
        end_s = self.now.at_s + left_s / speed
        self._left[job_id] = self.now.at_s, left_s, speed, end_s
        heappush(self._heap, (end_s, job_id))

    def end_next(self) -> None:
        _, job_id = heappop(self._heap)
        del self._left[job_id]
        exited = self._apply(ev.Exited.completed(job_id, 1, self.now.at_s))
        self._scheduler.remember([exited], self.rules, self.now)
        self._apply(ev.Cleaned(job_id, self.now.at_s, attempt=1))
        self.ended[job_id] = self.now.at_s
        for job in self._speeds.end(self.asked.pop(job_id), self.now.at_s):
            self.submit(job)

    def _apply(self, event: ev.Event) -> Job:
        job = self.ledger.apply(event)
        assert job is not None
        return job

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
                command="",
                cwd="/",
                stdout="",
                stderr="",
            )
            refuse_unfit(spec, self.rules, Calendar(), 0.0)
        except Refused as refusal:
            return refusal.text
        return spec
