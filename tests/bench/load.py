"""A busy machine to measure: users with queues, of whom one after the other has a job ended."""

from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from drfd.core.fairness.rules import ReservationSettings, Rules
from drfd.core.fairness.service_order import DecayedUsage
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobSpec, JobState, Now, Outcome
from drfd.core.model.resources import Axes, ClusterNode, Resources
from drfd.core.scheduling.backfill import make_pass_context
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.release_times import Ends, RunTimes
from drfd.core.scheduling.scheduler import build_wait_index, schedule, start_events

GIB = 1 << 30
#: (cores, GiB) of the jobs: eight vectors, some of cores and some of memory.
MENU = ((1, 2), (1, 4), (2, 2), (2, 16), (4, 8), (1, 16), (3, 24), (8, 8))
#: What a machine has, what the reserved job needs of it, nearly all of its cores, and what keeps
#: that job waiting for an hour.
MACHINE, BIG, BLOCKER = (64, 256), (60, 16), (8, 8)
#: What the jobs of one user in two take, and of the others: some end before the hour, some do not.
SHORT_S, LONG_S = 600.0, 3600.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    users: int
    #: Waiting jobs of all users together.
    queued: int
    #: Users in pools in pools, in place of users side by side.
    deep: bool
    #: A job that needs nearly the whole machine has a place, and half of the others would hurt it.
    reserved: bool
    #: How many machines there are together, and whether they are nodes, on one of which each job
    #: runs, or one machine that is as large as all of them.
    machines: int = 1
    has_nodes: bool = False

    @property
    def capacity(self) -> Resources:
        return amount(MACHINE, self.machines)

    @property
    def axes(self) -> Axes:
        if not self.has_nodes:
            return Axes()
        names = [f"n{number}" for number in range(self.machines)]
        return Axes(nodes=tuple(ClusterNode(name=name, capacity=amount(MACHINE)) for name in names))


def amount(asks: tuple[int, int], times: int = 1) -> Resources:
    """So many cores and GiB, times a number."""
    return Resources(cores_milli=1000 * asks[0] * times, memory_bytes=GIB * asks[1] * times)


@dataclass
class Load:
    shape: Shape
    random: Random = field(default_factory=lambda: Random(1))
    at_s: float = 0.0
    _specs: dict[tuple[int, tuple[int, int]], JobSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        delay_s = 30.0 if self.shape.reserved else 1e9
        reserving = ReservationSettings(delay_s=delay_s, drain_after_s=1e9)
        axes, capacity = self.shape.axes, self.shape.capacity
        self.rules = Rules(axes=axes, capacity=capacity, reserving=reserving)
        self.history = DecayedUsage(half_life_s=7 * 86400)
        self.run_times = RunTimes()
        for user in range(self.shape.users):
            self.run_times.add(f"user{user}", self._run_s(f"user{user}"), share=0.1)
        self.last: Plan | None = None
        self.ledger = Ledger.of_jobs(self.rules.axes, self._jobs())
        #: The running jobs that may end, in any order.
        self.running: list[int] = []
        self.wait_index = build_wait_index(self.ledger, self.rules, self.history.past_usage, {})
        self.ends = Ends(self.ledger)
        self.turn()

    def step(self) -> None:
        """One of the running jobs ends, its user submits another, and a pass looks at it all."""
        self.at_s += 0.01
        at = self.random.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        job = self.ledger.jobs[self.running.pop()]
        self.ledger.apply(
            ev.Exited(
                job_id=job.id, at_s=self.at_s, attempt=1, exit_code=0, signal=None,
                outcome=Outcome.COMPLETED, text="", usage=None,
            )
        )  # fmt: skip
        self.ledger.apply(ev.Cleaned(job_id=job.id, at_s=self.at_s, attempt=1))
        self.history.add(job.spec.leaf, 0.1, self.at_s - 100, self.at_s)
        self.run_times.add(job.spec.user, self._run_s(job.spec.user), share=0.1)
        self.ends.note_estimates(job.spec.user)
        self.wait_index.forget_lengths(job.spec.leaf)
        self.ledger.apply(
            ev.Submitted(job_id=self.ledger.next_id, at_s=self.at_s, spec=job.spec, held=False)
        )
        self.turn()

    def turn(self) -> None:
        pass_context = make_pass_context(
            self.ledger,
            self.rules,
            self.run_times,
            now_s=self.at_s,
            before=self.last.reservations if self.last is not None else (),
            known=self.ends,
        )
        self.wait_index.catch_up(self.ledger.changes)
        self.ends.catch_up(self.ledger)
        self.last = schedule(self.ledger, self.rules, self.wait_index, pass_context)
        now = Now(at_s=self.at_s, mono_s=self.at_s)
        for event in start_events(self.ledger, self.last, now):
            self.ledger.apply(event)
            self.running.append(event.job_id)
            self.ledger.apply(
                ev.Launched(
                    job_id=event.job_id, at_s=self.at_s, attempt=1, mono_s=self.at_s, cgroup=None
                )
            )

    def _run_s(self, user: str) -> float:
        return SHORT_S if int(user[4:]) % 2 else LONG_S

    def _jobs(self) -> list[Job]:
        jobs = []
        if self.shape.reserved:
            blocker = replace(self._spec(0, BLOCKER), time_limit_s=3600)
            times = 1 if self.shape.has_nodes else self.shape.machines
            big = replace(self._spec(0, BIG), demand=amount(BIG, times))
            jobs = [
                Job(
                    id=number, spec=blocker, state=JobState.RUNNING, submitted_at=0.0,
                    started_at=0.0, node=f"n{number}" if self.shape.has_nodes else "",
                )
                for number in range(self.shape.machines)
            ]  # fmt: skip
            jobs.append(Job(id=len(jobs), spec=big, submitted_at=-2000.0, eligible_at=-2000.0))
        for number in range(self.shape.queued):
            spec = self._spec(number % self.shape.users, self.random.choice(MENU))
            at_s = -1000.0 + number * 1e-6
            jobs.append(Job(id=len(jobs), spec=spec, submitted_at=at_s, eligible_at=at_s))
        return jobs

    def _spec(self, user: int, asks: tuple[int, int]) -> JobSpec:
        """Jobs of a user that ask for the same share it."""
        if (user, asks) not in self._specs:
            name = f"user{user}"
            pool = f"root.{name}"
            if self.shape.deep:
                pool = f"root.faculty{user % 7}.lab{user % 91}"
            self._specs[user, asks] = JobSpec(
                name="job", user=name, uid=1000 + user, gid=1000, pool=pool,
                demand=amount(asks),
                time_limit_s=86400, command="true", cwd="/", stdout="o", stderr="e",
            )  # fmt: skip
        return self._specs[user, asks]
