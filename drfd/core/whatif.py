"""What a waiting job could ask for instead and start at once, tried on copies of the books.

The judge is the daemon's own pass: what it would not start now is not suggested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from drfd.core import events as ev
from drfd.core.forecast import Future
from drfd.core.job import Job, JobSpec, JobState
from drfd.core.resources import Resources, Vector, minus
from drfd.core.stimuli import SubmitAsked
from drfd.core.tree import path_up
from drfd.errors import Refused
from drfd.units import exact_duration, exact_size, show_cores

#: With more live jobs than this the copies would take too long for an answer.
MOST_JOBS = 20_000
#: Less than this part of what was asked for would be another job.
_LEAST_PART = 4
_MIB = 1 << 20


def smaller_demand(build: Callable[[], Future], job: Job) -> list[str] | None:
    """Options for `drf submit` with which it would start now; None: no such demand was found.
    `build` gives the books as they are, each time anew."""
    if job.state is not JobState.PENDING:
        return None
    future = build()
    for spec, words in _changes(future, job):
        if _starts(build(), job, spec):
            return words
    return None


def _changes(future: Future, job: Job) -> Iterator[tuple[JobSpec, list[str]]]:
    """What to try, the smallest change first."""
    spec, demand = job.spec, job.spec.demand
    room = _room(future, spec.leaf)
    shrunk = _within(demand, future.rules.axes.resources(room))
    if shrunk is not None and shrunk != demand:
        yield replace(spec, demand=shrunk), _words(demand, shrunk)
    # Time until the first place that is kept for another job.
    kept_s = [kept.start_s - future.now.at_s for kept in future.before if kept.job_id != job.id]
    if shrunk is not None and kept_s:
        most_s = int(min(kept_s)) // 60 * 60
        limit_s = spec.time_limit_s
        if most_s > 0 and (limit_s is None or most_s < limit_s):
            words = _words(demand, shrunk)
            shorter = replace(spec, demand=shrunk, time_limit_s=most_s)
            yield shorter, [*words, "-t", exact_duration(most_s)]


def _starts(future: Future, job: Job, spec: JobSpec) -> bool:
    future.ledger.apply(ev.Cancelled(job_id=job.id, at_s=future.now.at_s, by=spec.user))
    try:
        # It waits for room alone: its conditions are met.
        free = replace(spec, after=(), begin_s=None)
        added = future.add(SubmitAsked(future.now, free))
    except Refused:
        return False
    return added.id in future.pass_now().admitted


def _room(future: Future, leaf: str) -> Vector:
    """What is free, within the limits of the leaf and of the pools that it is in."""
    ledger, shares = future.ledger, future.rules.shares
    free = minus(future.rules.room, ledger.booked)
    standing = shares.standing(ledger.used, ledger.queues)
    for path in path_up(leaf):
        limit = shares.rule(path).limit
        if limit is None:
            continue
        held = standing.held(path) if path in standing.used else (0,) * len(free)
        left = tuple(
            amount if most is None else min(amount, most - has)
            for amount, most, has in zip(free, limit, held, strict=True)
        )
        free = left
    return tuple(max(0, amount) for amount in free)


def _within(demand: Resources, room: Resources) -> Resources | None:
    """The demand cut down to the room, in round figures; None: too little of it would be left."""
    counts = dict(room.gres)
    if any(count > counts.get(name, 0) for name, count in demand.gres):
        return None
    cut = replace(
        demand,
        cores_milli=_cut(demand.cores_milli, room.cores_milli, 500),
        memory_bytes=_cut(demand.memory_bytes, room.memory_bytes, 16 * _MIB),
        read_bps=_cut(demand.read_bps, room.read_bps, _MIB),
        write_bps=_cut(demand.write_bps, room.write_bps, _MIB),
        disks=tuple(
            (name, _cut(read, room.rates(name)[0], _MIB), _cut(write, room.rates(name)[1], _MIB))
            for name, read, write in demand.disks
        ),
    )
    pairs = [
        (demand.cores_milli, cut.cores_milli),
        (demand.memory_bytes, cut.memory_bytes),
        (demand.read_bps, cut.read_bps),
        (demand.write_bps, cut.write_bps),
    ]
    for name, *rates in demand.disks:
        pairs += zip(rates, cut.rates(name), strict=True)
    return cut if all(left * _LEAST_PART >= asked for asked, left in pairs) else None


def _cut(asked: int, room: int, step: int) -> int:
    if asked <= room:
        return asked
    # Down, with as few digits as sizes have that are rounded up.
    while step * 16 < room:
        step *= 2
    return room // step * step


def _words(asked: Resources, cut: Resources) -> list[str]:
    words = []
    if cut.cores_milli != asked.cores_milli:
        words += ["-c", show_cores(cut.cores_milli)]
    if cut.memory_bytes != asked.memory_bytes:
        words += ["-m", exact_size(cut.memory_bytes)]
    if (cut.read_bps, cut.write_bps) != (asked.read_bps, asked.write_bps):
        words += ["--io", f"{exact_size(cut.read_bps)}/{exact_size(cut.write_bps)}"]
    for name, read, write in cut.disks:
        if (read, write) != asked.rates(name):
            words += ["--io", f"{name}={exact_size(read)}/{exact_size(write)}"]
    return words
