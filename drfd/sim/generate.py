"""A workload made up from a seed: users of several kinds, who come in bursts, by day and by night.

Each user has a habit (what the jobs ask for, how long they run) and sends bursts of jobs that are
alike; a few users send most of them. Submissions are spread so that the machine is offered a given
load of the resource that is asked for most. The same arguments give the same workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import cos, exp, log, pi, sqrt
from random import Random

from drfd.core.resources import Resources
from drfd.errors import Refused
from drfd.sim.forms import OWN
from drfd.sim.workload import SimJob, Workload


@dataclass(frozen=True, slots=True)
class Habit:
    """Parts of the machine that a job asks for: the smallest and the largest, even in logarithms;
    and how long jobs run: the median, and how much that varies (one sigma of the logarithm)."""

    cores: tuple[float, float]
    memory: tuple[float, float]
    rate: tuple[float, float]
    run_s: float
    sigma: float


HABITS: Mapping[str, Habit] = {
    "cpu": Habit((1 / 64, 1 / 8), (1 / 512, 1 / 128), (0, 0), 1800, 1.2),
    "memory": Habit((1 / 128, 1 / 64), (1 / 32, 1 / 6), (0, 0), 3600, 1.0),
    "balanced": Habit((1 / 64, 1 / 16), (1 / 64, 1 / 16), (0, 0), 900, 1.5),
    "io": Habit((1 / 64, 1 / 32), (1 / 128, 1 / 64), (1 / 32, 1 / 6), 600, 1.0),
    "big": Habit((1 / 4, 3 / 4), (1 / 4, 3 / 4), (0, 0), 7200, 0.5),
}
#: How many users have which habit, in proportion.
MIX: Mapping[str, float] = {"cpu": 4, "memory": 3, "balanced": 4, "io": 2, "big": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    jobs: int
    users: int
    capacity: Resources
    seed: int = 1
    #: Offered: what jobs hold on average if none waits, over the capacity, of the resource of which
    #: that is the most.
    load: float = 0.9
    mix: Mapping[str, float] = field(default_factory=lambda: dict(MIX))
    #: Jobs that a user sends at once, on average.
    burst: float = 5.0


def parse_mix(text: str) -> dict[str, float]:
    """Of "cpu=2,memory=1"."""
    mix = {}
    for part in text.split(","):
        name, _, weight = (each.strip() for each in part.partition("="))
        if name not in HABITS:
            raise Refused(
                "bad-value", f"mix: there is no habit {name!r}", hint=f"known are {_known()}"
            )
        if not weight.replace(".", "", 1).isdecimal() or not float(weight):
            raise Refused("bad-value", f"mix: {part!r} is not NAME=WEIGHT", hint="write cpu=2")
        mix[name] = float(weight)
    return mix


def _known() -> str:
    return ", ".join(HABITS)


def generate(recipe: Recipe) -> Workload:
    random = Random(recipe.seed)  # noqa: S311
    habits = _assigned(recipe, random)
    drawn = sorted(_drawn(recipe, habits, random), key=lambda each: each[0])
    span_s = _span_s(recipe, [job for _, job in drawn])
    jobs = []
    for id, (at, job) in enumerate(drawn, start=1):
        jobs.append(
            SimJob(
                id=id,
                name=f"j{id}",
                submit_s=float(int(at * span_s)),
                run_s=job.run_s,
                demand=job.demand,
                limit_s=job.limit_s,
                user=job.user,
                group=job.group,
            )
        )
    return Workload(jobs=jobs, source=f"generated, seed {recipe.seed}", kind="generated")


def csv_lines(workload: Workload) -> Iterable[str]:
    """The jobs as a table that `drf simulate` reads."""
    yield ",".join(OWN)
    for job in workload.jobs:
        amounts = job.demand
        cells = (
            *(job.name, job.user, job.group or "", f"{job.submit_s:g}", f"{job.run_s:g}"),
            "" if job.limit_s is None else f"{job.limit_s:g}",
            f"{amounts.cores_milli / 1000:g}",
            *(amounts.memory_bytes, amounts.read_bps, amounts.write_bps),
        )
        yield ",".join(map(str, cells))


def _assigned(recipe: Recipe, random: Random) -> list[str]:
    """Each user's habit: by the mix, as evenly as it can be."""
    total = sum(recipe.mix.values())
    slots = [
        name
        for name, weight in recipe.mix.items()
        for _ in range(round(recipe.users * weight / total))
    ]
    names = list(recipe.mix)
    while len(slots) < recipe.users:
        slots.append(names[int(random.random() * len(names))])
    return slots[: recipe.users]


def _drawn(recipe: Recipe, habits: list[str], random: Random) -> Iterable[tuple[float, SimJob]]:
    """Jobs with the time of their submission as a part of the whole."""
    # The n-th user sends as much as the first one over n.
    weights = [1 / (1 + user) for user in range(recipe.users)]
    # Who sends most is a matter of chance, not of the habit.
    for last in range(recipe.users - 1, 0, -1):
        other = int(random.random() * (last + 1))
        weights[last], weights[other] = weights[other], weights[last]
    left = recipe.jobs
    while left:
        user = _pick(weights, random)
        habit = HABITS[habits[user]]
        count = min(left, 1 + int(-log(1 - random.random()) * (recipe.burst - 1)))
        if habits[user] == "big":
            count = 1
        left -= count
        at = _moment(random)
        demand = _demand(habit, recipe.capacity, random)
        # What jobs are limited to, a user says once for the whole burst, and far too long.
        limit_s = _limit_s(habit.run_s * exp(habit.sigma * (1 + 2 * random.random())))
        for _ in range(count):
            run_s = float(max(1, round(habit.run_s * exp(habit.sigma * _normal(random)))))
            at += 1e-4 * random.random() / recipe.jobs
            yield (
                at,
                SimJob(
                    id=0,
                    name="",
                    submit_s=0.0,
                    run_s=min(run_s, limit_s),
                    demand=demand,
                    limit_s=limit_s,
                    user=f"u{user + 1}",
                    group=habits[user],
                ),
            )


def _pick(weights: list[float], random: Random) -> int:
    point = random.random() * sum(weights)
    for user, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return user
    return len(weights) - 1


def _moment(random: Random) -> float:
    """A part of the whole time: fourteen days, with three times as much at noon as at midnight."""
    while True:
        at = random.random()
        if random.random() * 3 < 2 - cos(2 * pi * 14 * at):
            return at


def _normal(random: Random) -> float:
    return sqrt(-2 * log(1 - random.random())) * cos(2 * pi * random.random())


def _demand(habit: Habit, capacity: Resources, random: Random) -> Resources:
    def part(bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low * (high / low) ** random.random() if low else 0.0

    cores = max(1, round(part(habit.cores) * capacity.cores_milli / 1000))
    memory_mib = max(1, round(part(habit.memory) * capacity.memory_bytes / (1 << 20)))
    rate = part(habit.rate)
    return Resources(
        cores_milli=min(cores * 1000, capacity.cores_milli),
        memory_bytes=memory_mib << 20,
        read_bps=round(rate * capacity.read_bps),
        write_bps=round(rate * capacity.write_bps / 2),
    )


def _limit_s(at_least_s: float) -> float:
    """What people write: 10 minutes, an hour, a day."""
    usual = (600, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
    return float(next((each for each in usual if each >= at_least_s), usual[-1]))


def _span_s(recipe: Recipe, jobs: list[SimJob]) -> float:
    capacity = recipe.capacity
    tops = (capacity.cores_milli, capacity.memory_bytes, capacity.read_bps, capacity.write_bps)
    sums = [0.0] * len(tops)
    for job in jobs:
        amounts = job.demand
        for axis, amount in enumerate(
            (amounts.cores_milli, amounts.memory_bytes, amounts.read_bps, amounts.write_bps)
        ):
            sums[axis] += amount * job.run_s
    return max(held / top for held, top in zip(sums, tops, strict=True) if top) / recipe.load
