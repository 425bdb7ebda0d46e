"""Synthetic workloads: generated jobs, and disk rates for traces that record none.

Generated jobs (`generate`) are of users of several kinds, who submit in bursts, by day and by
night. Each user has a habit (demands and run times of the jobs) and submits bursts of similar jobs;
a few users submit most of them. Submissions are spread so that the jobs offer the machine a given
load of the resource that they ask for most. Equal arguments give equal workloads.

Disk rates (`with_disk_rates`) are drawn from measured tasks, and labelled as synthetic. The task of
a job follows from a hash of its user, cores and memory, so equal jobs of a user get the same task
in every run. Tasks that were measured more often are drawn more often.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from math import cos, exp, log, pi, sqrt
from pathlib import Path
from random import Random

from drfd.common.errors import Refused
from drfd.core.model.resources import Axes, Resources
from drfd.sim.workload import OWN, NotAJob, SimJob, Workload, number


@dataclass(frozen=True, slots=True)
class Habit:
    """Demands and run times of a user's jobs. Demands are parts of the machine: the smallest and
    the largest, distributed evenly in their logarithm. Run times are log-normal: the median, and
    one sigma of the logarithm."""

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
#: Habit → its share among users, as a weight.
MIX: Mapping[str, float] = {"cpu": 4, "memory": 3, "balanced": 4, "io": 2, "big": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    jobs: int
    users: int
    capacity: Resources
    seed: int = 1
    #: The offered load: what jobs hold on average if none waits, over the capacity, of the resource
    #: for which that is the most.
    load: float = 0.9
    mix: Mapping[str, float] = field(default_factory=lambda: dict(MIX))
    #: Mean number of jobs that a user submits at once.
    burst: float = 5.0


def parse_mix(text: str) -> dict[str, float]:
    """Parse "cpu=2,memory=1". Raises Refused."""
    mix = {}
    for part in text.split(","):
        name, _, weight = (each.strip() for each in part.partition("="))
        if name not in HABITS:
            hint = f"known are {', '.join(HABITS)}"
            raise Refused("bad-value", f"mix: there is no habit {name!r}", hint=hint)
        if not weight.replace(".", "", 1).isdecimal() or not float(weight):
            raise Refused("bad-value", f"mix: {part!r} is not NAME=WEIGHT", hint="write cpu=2")
        mix[name] = float(weight)
    return mix


def generate(recipe: Recipe) -> Workload:
    random = Random(recipe.seed)  # noqa: S311  # chance, not secrets
    habits = _assigned(recipe, random)
    drawn = sorted(_drawn(recipe, habits, random), key=lambda job: job.submit_s)
    span_s = _span_s(recipe, drawn)
    jobs = [
        replace(
            job,
            id=id,
            name=f"j{id}",
            submit_s=float(int(job.submit_s * span_s)),
        )
        for id, job in enumerate(drawn, start=1)
    ]
    return Workload(jobs=jobs, source=f"generated, seed {recipe.seed}", kind="generated")


def csv_lines(workload: Workload) -> Iterable[str]:
    """Yield the jobs as lines of a table that `drf simulate` reads."""
    yield ",".join(OWN)
    for job in workload.jobs:
        amounts = job.demand
        cells = (
            *(job.name, job.user, job.group or "", f"{job.submit_s:g}", f"{job.run_s:g}"),
            "" if job.limit_s is None else f"{job.limit_s:g}",
            f"{amounts.cores_milli / 1000:g}",
            *(amount for axis, amount in amounts.sums.items() if axis != "cores"),
        )
        yield ",".join(map(str, cells))


def _assigned(recipe: Recipe, random: Random) -> list[str]:
    """Return each user's habit, in the proportions of the mix."""
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


def _drawn(recipe: Recipe, habits: list[str], random: Random) -> Iterable[SimJob]:
    """Yield jobs without names, whose `submit_s` is a part of the whole time."""
    # The n-th user submits an n-th of what the first one does.
    weights = [1 / (1 + user) for user in range(recipe.users)]
    # Shuffled, so that the number of jobs does not depend on the habit.
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
        # Users set one time limit for the whole burst, and a far too long one.
        limit_s = _limit_s(habit.run_s * exp(habit.sigma * (1 + 2 * random.random())))
        for _ in range(count):
            run_s = float(max(1, round(habit.run_s * exp(habit.sigma * _normal(random)))))
            at += 1e-4 * random.random() / recipe.jobs
            yield SimJob(
                name="", submit_s=at, run_s=min(run_s, limit_s), demand=demand, limit_s=limit_s,
                user=f"u{user + 1}", group=habits[user],
            )  # fmt: skip


def _pick(weights: list[float], random: Random) -> int:
    point = random.random() * sum(weights)
    for user, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return user
    return len(weights) - 1


def _moment(random: Random) -> float:
    """Draw a part of the fourteen days, three times as dense at noon as at midnight."""
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
    """Return a usual time limit (10 minutes, an hour, a day) of at least so many seconds."""
    usual = (600, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
    return float(next((each for each in usual if each >= at_least_s), usual[-1]))


def _span_s(recipe: Recipe, jobs: list[SimJob]) -> float:
    axes = Axes()
    tops = axes.vector(recipe.capacity)
    sums = [0.0] * len(tops)
    for job in jobs:
        for axis, amount in enumerate(axes.vector(job.demand)):
            sums[axis] += amount * job.run_s
    return max(held / top for held, top in zip(sums, tops, strict=True) if top) / recipe.load


#: The columns that are used: the number of measured tasks, the median megabytes read and written by
#: one, and the 90th percentile of its megabytes per second to and from the disk together.
COLUMNS = ("n", "disk_read_mb_p50", "disk_write_mb_p50", "disk_mb_s_p90")
_MB = 1_000_000

#: (weight, bytes read per second, bytes written per second).
Profile = tuple[int, int, int]


def read_profiles(path: Path) -> list[Profile]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(_profiles(csv.DictReader(file)))
    except Refused as error:
        raise Refused(error.code, f"{path}: {error.text}", hint=error.hint) from None
    except (UnicodeDecodeError, csv.Error):
        raise Refused("bad-profile", f"{path}: is not a table of text") from None
    except OSError as error:
        raise Refused("no-profile", f"{path}: cannot be read: {error.strerror}") from None


def with_disk_rates(workload: Workload, profiles: list[Profile]) -> Workload:
    """Return the workload with rates for jobs that have none, and a note that these are made up."""
    bounds = list(accumulate(weight for weight, _, _ in profiles))
    drawn: dict[tuple[str, Resources], Resources] = {}
    jobs = []
    for job in workload.jobs:
        if not job.demand.read_bps and not job.demand.write_bps:
            key = job.user, job.demand
            if key not in drawn:
                drawn[key] = _drawn_rates(job, profiles, bounds)
            job = replace(job, demand=drawn[key])
        jobs.append(job)
    note = "SYNTHETIC disk rates: drawn from measured tasks, not recorded for these jobs"
    return replace(workload, jobs=jobs, notes=(*workload.notes, note))


def _drawn_rates(job: SimJob, profiles: list[Profile], bounds: list[int]) -> Resources:
    demand = job.demand
    text = f"{job.user} {demand.cores_milli} {demand.memory_bytes}"
    point = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % bounds[-1]
    _, read_bps, write_bps = profiles[bisect_right(bounds, point)]
    return demand.with_amounts(demand.amounts | {"read": read_bps, "write": write_bps})


def _profiles(rows: csv.DictReader[str]) -> Iterator[Profile]:
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise Refused("bad-profile", f"line 1: there is no column {missing[0]!r}")
    found = 0
    for row in rows:
        try:
            weight, read_mb, write_mb, rate = (number(row[name] or "", name) for name in COLUMNS)
            if weight < 1:
                raise NotAJob("n is below 1")
        except NotAJob as reason:
            raise Refused("bad-profile", f"line {rows.line_num}: {reason}") from None
        moved = read_mb + write_mb
        part = read_mb / moved if moved else 0.5
        found += 1
        yield round(weight), round(rate * part * _MB), round(rate * (1 - part) * _MB)
    if not found:
        raise Refused("bad-profile", "there is no task in it")
