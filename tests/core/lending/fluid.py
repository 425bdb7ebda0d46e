"""A machine whose kernel divides cores as real ones do, in steps of a quarter of a second: by
weights, within ceilings, without knowing anything else.

A job goes through phases: parallel ones, in which it can use all the cores that it has threads for,
and serial ones of a fixed time.

Here the loop is followed second by second. `drfd.sim.lending` only knows where it comes to rest,
which suffices for months of jobs; `tests/sim/test_lending.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random

from drfd.core.lending.ceilings import Borrower, Place, judge
from drfd.core.lending.cores import Machine
from drfd.core.lending.division import Claim, Node, divide

STEP_S = 0.25


@dataclass
class Phase:
    """Work in core-seconds for a parallel phase; seconds, and the cores used, for a serial one."""

    left: float
    cores: float | None = None


@dataclass
class FluidJob:
    id: int
    user: str
    floor: float
    most: float
    memory: float
    phases: list[Phase]
    ceiling: float = 0.0
    #: Core-seconds since the last judgement, and whether the ceiling has held it back since.
    used: float = 0.0
    is_throttled: bool = False
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def demand(self) -> float:
        phase = self.phases[0]
        return self.most if phase.cores is None else phase.cores

    def run(self, cores: float) -> None:
        phase = self.phases[0]
        done = cores if phase.cores is None else min(1.0, cores / phase.cores)
        phase.left -= done * STEP_S
        if phase.left <= 0:
            self.phases.pop(0)


def kernel(
    jobs: Sequence[FluidJob], cores: float, most: Callable[[FluidJob], float]
) -> list[float]:
    """The cores that each job gets, by weights that stand for the floors."""
    claims = [
        Claim(job_id=job.id, least=0.0, most=min(job.demand, most(job)), weight=job.floor)
        for job in jobs
    ]
    parts = divide(Node(entitled=1.0, held=0.0, claims=claims), cores)
    return [parts[job.id] for job in jobs]


@dataclass
class FluidMachine:
    """Runs users' queues: admission by DRF over floors and memory, lending in the given mode."""

    mode: str
    queues: dict[str, list[FluidJob]]
    cores: float = 64.0
    memory: float = 256.0
    running: list[FluidJob] = field(default_factory=list)
    ended: list[FluidJob] = field(default_factory=list)
    now_s: float = 0.0
    used: float = 0.0
    #: Core-seconds by which jobs have fallen short of what they could use of their floors.
    short: float = 0.0
    #: Times at which a user wanted more, and those at which another with a larger share was lent.
    hungry: int = 0
    wronged: int = 0
    writes: int = 0

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            self._admit()
            self._step()
            if round(self.now_s / STEP_S) % 4 == 0 and self.mode == "share":
                self._lend()

    def _held(self, user: str) -> tuple[float, float]:
        mine = [job for job in self.running if job.user == user]
        return sum(job.floor for job in mine), sum(job.memory for job in mine)

    def _admit(self) -> None:
        while True:
            held = {user: self._held(user) for user in self.queues}
            cores = self.cores - sum(each for each, _ in held.values())
            memory = self.memory - sum(each for _, each in held.values())
            order = sorted(
                (max(held[user][0] / self.cores, held[user][1] / self.memory), user)
                for user, queue in self.queues.items()
                if queue
            )
            for _, user in order:
                job = self.queues[user][0]
                if job.floor <= cores and job.memory <= memory:
                    self.queues[user].pop(0)
                    job.started_s, job.ceiling = self.now_s, job.floor
                    self.running.append(job)
                    break
            else:
                return

    def _step(self) -> None:
        bound = attrgetter({"quota": "floor", "weight": "most", "share": "ceiling"}[self.mode])
        rates = kernel(self.running, self.cores, bound)
        self._look(rates)
        for job, rate in zip(self.running, rates, strict=True):
            job.used += rate * STEP_S
            job.is_throttled |= job.demand > bound(job) + 1e-9 and rate >= bound(job) - 1e-6
            job.run(rate)
        self.now_s += STEP_S
        for job in [job for job in self.running if not job.phases]:
            job.ended_s = self.now_s
            self.running.remove(job)
            self.ended.append(job)

    def _look(self, rates: Sequence[float]) -> None:
        cores: dict[str, float] = {}
        lent, wanting = set(), set()
        for job, rate in zip(self.running, rates, strict=True):
            need = min(job.demand, job.floor)
            self.used += rate * STEP_S
            self.short += max(0.0, need - rate) * STEP_S
            cores[job.user] = cores.get(job.user, 0.0) + rate
            if rate < job.demand - 0.05 * job.floor:
                wanting.add(job.user)
            if rate > need + 0.05 * job.floor:
                lent.add(job.user)

        def share(user: str) -> float:
            return max(cores[user] / self.cores, self._held(user)[1] / self.memory)

        for user in wanting:
            self.hungry += 1
            self.wronged += any(
                other != user and share(other) > share(user) + 0.03 for other in lent
            )

    def _lend(self) -> None:
        used = sum(job.used for job in self.running)
        users = {job.user for job in self.running}
        places = {
            f"root.{user}": Place(
                entitled=self.cores / len(users),
                held=self._held(user)[1] / self.memory * len(users),
            )
            for user in users
        }
        borrowers = [
            Borrower(
                job_id=job.id, leaf=f"root.{job.user}", floor=job.floor, most=job.most,
                ceiling=job.ceiling, used=job.used, is_throttled=job.is_throttled,
            )
            for job in self.running
        ]  # fmt: skip
        machine = Machine(capacity=self.cores, outside=0.0, busy=used / self.cores)
        found = judge(borrowers, machine, places)
        for job in self.running:
            self.writes += found[job.id].ceiling != job.ceiling
            job.ceiling = found[job.id].ceiling
            job.used, job.is_throttled = 0.0, False


def workload(seed: int, *, burst: float, efficiency: float = 0.65) -> dict[str, list[FluidJob]]:
    """Queues of six users, two of whom need much memory; a quarter of the jobs is wide. Under a
    quota jobs use `efficiency` of the cores that they declare."""
    random = Random(seed)
    queues: dict[str, list[FluidJob]] = {}
    for user in range(6):
        queue = queues[f"user{user}"] = []
        for number in range(200):
            floor = float(random.choice([1, 2, 4, 4, 8, 8, 16]))
            memory = random.lognormvariate(0, 1) * floor * 3 * (4 if user < 2 else 1)
            queue.append(
                FluidJob(
                    id=user * 1000 + number, user=f"user{user}", floor=floor,
                    most=min(64.0, floor * burst), memory=min(64.0, max(0.5, memory)),
                    phases=list(_phases(random, floor, efficiency)),
                )
            )  # fmt: skip
    return queues


def _phases(random: Random, floor: float, efficiency: float) -> Iterator[Phase]:
    part = min(0.97, max(0.08, random.betavariate(3 * efficiency, 3 * (1 - efficiency))))
    count, whole_s = random.randint(3, 12), random.uniform(120, 900)
    for _ in range(count):
        cycle_s = whole_s / count * random.uniform(0.5, 1.5)
        low = min(floor, random.choice([1.0, 0.25]) if floor > 1 else random.choice([0.5, 0.1]))
        parallel = max(0.02, (part * floor - low) / (floor - low)) if floor > low else 1.0
        yield Phase(max(0.01, cycle_s * parallel * floor))
        yield Phase(max(0.01, cycle_s * (1 - parallel)), low)
