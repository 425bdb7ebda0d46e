"""Drives the daemon's own scheduler over a workload, on a virtual clock.

The same `core.scheduler.Scheduler`, ledger and events as in the daemon; what is replaced is the
machine: a job that is admitted runs at once, and ends when its run time is over. There is one pass
after all that happens at one moment. Nothing is preempted, cut at its limit, or measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil

from drfd.core import events as ev
from drfd.core.asked import refuse_unfit
from drfd.core.estimate import RunTimes
from drfd.core.job import Job, JobSpec, Outcome
from drfd.core.ledger import Ledger
from drfd.core.resources import Resources
from drfd.core.rules import Rules
from drfd.core.scheduler import Scheduler
from drfd.core.stimuli import Now
from drfd.errors import Refused
from drfd.sim.workload import SimJob

#: What the scheduler is told of how long jobs will run.
#: predicted: as the daemon guesses, from each user's last jobs, at most the limit;
#: limit: the limits, and as predicted where a job has none; exact: the truth, in whole seconds;
#: none: nothing, so nothing is reserved, and what does not fit is passed over for ever.
ESTIMATES = ("predicted", "limit", "exact", "none")


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a job."""

    job: SimJob
    start_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.job.run_s

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.submit_s


@dataclass(frozen=True, slots=True)
class Left:
    """A job that was not run, and why."""

    job: SimJob
    why: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a policy has made of a workload."""

    policy: str
    estimates: str
    rules: Rules
    #: In the order in which they started; of those that start at one moment, as they were admitted.
    ran: tuple[Ran, ...]
    #: Refused at submission: those too large for the machine or their pool, …
    refused: tuple[Left, ...]
    #: Still waiting when nothing was left that could happen.
    unstarted: tuple[Left, ...]
    #: The leaf of the fair-share tree that each job stands in, by its id.
    leaves: dict[int, str]
    #: How many scheduling passes it took.
    passes: int

    def changes(self) -> Iterator[tuple[float, str, Resources, int]]:
        """(time, leaf, demand, 1 or -1) of all that is taken (1) and given back (-1), in order of
        time: what comes back first. Use over time is their running sum."""
        found = [(each.start_s, 1, at, each) for at, each in enumerate(self.ran)]
        found += [(each.end_s, -1, at, each) for at, each in enumerate(self.ran)]
        for at_s, sign, _, each in sorted(found, key=lambda change: change[:3]):
            yield at_s, self.leaves[each.job.id], each.job.demand, sign


#: Told of the number of jobs that are over, now and then.
Progress = Callable[[int], None]


def simulate(
    jobs: Sequence[SimJob],
    rules: Rules,
    *,
    policy: str = "drf",
    estimates: str = "predicted",
    progress: Progress | None = None,
) -> Run:
    """`jobs` in the order of submission; `rules` say what the machine has and who is promised what.

    Nothing depends on anything but the arguments: the same ones give the same run.
    """
    world = _World(rules_for(rules, policy, estimates), estimates)
    upcoming, at = list(jobs), 0
    ended_before = -1
    while at < len(upcoming) or world.ends:
        times = [upcoming[at].submit_s] if at < len(upcoming) else []
        times += [world.ends[0][0]] if world.ends else []
        world.now = Now(at_s=min(times), mono_s=min(times))
        while world.ends and world.ends[0][0] <= world.now.at_s:
            world.end(heappop(world.ends)[1])
        while at < len(upcoming) and upcoming[at].submit_s <= world.now.at_s:
            world.submit(upcoming[at])
            at += 1
        world.pass_now()
        if progress is not None and world.ended != ended_before:
            ended_before = world.ended
            progress(world.ended + len(world.refused))
    return Run(
        policy=policy,
        estimates=estimates,
        rules=rules,
        ran=tuple(world.ran),
        refused=tuple(world.refused),
        unstarted=tuple(
            Left(world.asked[job_id], "never started") for job_id in sorted(world.ledger.jobs)
        ),
        leaves=world.leaves,
        passes=world.passes,
    )


def rules_for(rules: Rules, policy: str, estimates: str) -> Rules:
    """The rules under which a policy is simulated."""
    patience = rules.patience
    if estimates == "none":
        # EASY backfilling without estimates is first come, first served.
        policy = "fifo" if policy == "easy" else policy
        patience = replace(patience, reserves=False)
    return replace(rules, policy=policy, patience=patience, preempting=None, beside=None)


class _Told(RunTimes):
    """Estimates that are what jobs say, where they say something."""

    def length_s(self, spec: JobSpec) -> float:
        return super().length_s(spec) if spec.time_limit_s is None else float(spec.time_limit_s)


class _World:
    """The books, the scheduler, and a machine on which jobs just run."""

    def __init__(self, rules: Rules, estimates: str) -> None:
        self.rules, self._estimates = rules, estimates
        self.ledger = Ledger(rules.axes)
        run_times = RunTimes() if estimates in ("predicted", "none") else _Told()
        self._scheduler = Scheduler(rules.half_life_s, run_times)
        self.now = Now(0.0, 0.0)
        #: (time, job id) of the ends to come, a heap.
        self.ends: list[tuple[float, int]] = []
        self.asked: dict[int, SimJob] = {}
        self.leaves: dict[int, str] = {}
        self.ran: list[Ran] = []
        self.refused: list[Left] = []
        self.ended = self.passes = 0
        #: Jobs that ask for the same share one specification, or the words why it is refused.
        self._specs: dict[tuple[object, ...], JobSpec | str] = {}

    def submit(self, job: SimJob) -> None:
        spec = self._spec(job)
        if isinstance(spec, str):
            self.refused.append(Left(job, spec))
            return
        self.asked[job.id] = job
        self.leaves[job.id] = spec.leaf
        self._apply(ev.Submitted(job_id=job.id, at_s=self.now.at_s, spec=spec))

    def pass_now(self) -> None:
        self.passes += 1
        for event in self._scheduler.run(self.ledger, self.rules, self.now):
            self._apply(event)
            assert isinstance(event, ev.Admitted), "nothing is preempted or suspended here"
            self._apply(
                ev.Launched(
                    job_id=event.job_id,
                    at_s=self.now.at_s,
                    attempt=event.attempt,
                    mono_s=self.now.mono_s,
                    cgroup=None,
                )
            )
            job = self.asked[event.job_id]
            self.ran.append(Ran(job, self.now.at_s))
            heappush(self.ends, (self.now.at_s + job.run_s, job.id))

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
                argv=(),
                cwd="/",
                stdout="",
                stderr="",
            )
            refuse_unfit(spec, self.rules)
        except Refused as refusal:
            return refusal.text
        return spec
