"""A smaller demand is suggested only if the pass itself would start it now."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from drfd.core.estimate import RunTimes
from drfd.core.forecast import Future
from drfd.core.job import JobSpec
from drfd.core.reservation import Patience, Reservation
from drfd.core.resources import Axes
from drfd.core.rules import Claim, Rules
from drfd.core.whatif import smaller_demand
from drfd.units import parse_cores, parse_duration, parse_memory
from fakes import ALICE, BOB, GIB, Bench, demand, now, rules, spec, with_gpus


def of(cores: float, memory_gib: float = 1, *, by: object = ALICE, limit_s: int = 3600) -> JobSpec:
    actor = BOB if by is BOB else ALICE
    return spec(
        f"root.{actor.user}", actor=actor, asks=demand(cores, memory_gib), time_limit_s=limit_s
    )


def builder(
    bench: Bench, at_s: float = 0.0, before: tuple[Reservation, ...] = ()
) -> Callable[[], Future]:
    return lambda: Future(deepcopy(bench.ledger), bench.rules, RunTimes(), {}, before, now(at_s))


def test_the_demand_that_fits_now_is_found() -> None:
    bench = Bench()
    bench.start(of(4))
    waiting = bench.submit(of(8))
    assert smaller_demand(builder(bench), bench.job(waiting)) == ["-c", "5"]


def test_each_resource_that_is_short_is_cut_in_round_figures() -> None:
    bench = Bench()
    bench.start(of(3.7, 10.3))
    waiting = bench.submit(of(8, 16))
    assert smaller_demand(builder(bench), bench.job(waiting)) == ["-c", "5", "-m", "7680M"]


@pytest.mark.parametrize(("left", "found"), [(2, ["-c", "2"]), (1.5, None)])
def test_less_than_a_quarter_would_be_another_job(left: float, found: list[str] | None) -> None:
    bench = Bench()
    bench.start(of(9 - left))
    waiting = bench.submit(of(8))
    assert smaller_demand(builder(bench), bench.job(waiting)) == found


def test_disk_rates_are_cut_too() -> None:
    bench = Bench(rules=replace(rules(), capacity=demand(9, 18, read=100 << 20, write=100 << 20)))
    bench.start(spec(asks=demand(1, 1, read=40 << 20)))
    waiting = bench.submit(spec(asks=demand(1, 1, read=80 << 20, write=10 << 20)))
    assert smaller_demand(builder(bench), bench.job(waiting)) == ["--io", "60M/10M"]


def test_of_things_that_are_counted_none_can_be_cut() -> None:
    bench = Bench(with_gpus(2))
    asks = replace(demand(8, 1), gres=(("gpu", 2),))
    bench.start(spec(asks=asks))
    waiting = bench.submit(spec(asks=asks))
    assert smaller_demand(builder(bench), bench.job(waiting)) is None


def test_who_may_submit_no_more_hears_of_nothing() -> None:
    """In the book's place for it, the job itself has gone; yet there are too many others."""
    bench = Bench(rules=rules(max_waiting_per_user=4))
    bench.start(of(4))
    waiting = [bench.submit(of(8)) for _ in range(4)]
    bench.rules = rules(max_waiting_per_user=2)
    assert smaller_demand(builder(bench), bench.job(waiting[0])) is None


def test_a_limit_is_room_too() -> None:
    members = {("", "alice"): Claim(weight=Fraction(1), limit={"cores": 5000})}
    bench = Bench(rules=Rules(capacity=rules().capacity, members=members))
    bench.start(of(2))
    waiting = bench.submit(of(4))
    assert smaller_demand(builder(bench), bench.job(waiting)) == ["-c", "3"]


def test_what_others_would_get_first_is_not_suggested() -> None:
    """Two wait for what is free; bob, who holds nothing, comes before alice."""
    bench = Bench()
    bench.start(of(4))
    bench.submit(of(5.5, by=BOB))
    bench.submit(of(4.5, by=BOB))
    waiting = bench.submit(of(8))
    assert smaller_demand(builder(bench), bench.job(waiting)) is None


def test_a_shorter_time_passes_before_a_place_that_is_kept() -> None:
    bench = Bench(
        rules=Rules(capacity=rules().capacity, patience=Patience(patience_s=0, drain_after_s=9999))
    )
    bench.start(of(5, by=BOB, limit_s=1800))
    bench.submit(of(9, by=BOB))
    (kept,) = builder(bench, 5.0)().pass_now().reservations
    # It fits beside the running one, and would stand in the way of the big one.
    waiting = bench.submit(of(4, limit_s=7200), at_s=5.0)
    build = builder(bench, 5.0, (kept,))
    assert build().pass_now().admitted == []
    assert smaller_demand(build, bench.job(waiting)) == ["-t", "29m"]
    # A moment before that place is taken, no time is short enough.
    assert smaller_demand(builder(bench, 1790.0, (kept,)), bench.job(waiting)) is None


def test_a_job_that_runs_or_is_held_has_no_need() -> None:
    bench = Bench()
    running = bench.start(of(4))
    held = bench.submit(of(4), held=True)
    for job_id in (running, held):
        assert smaller_demand(builder(bench), bench.job(job_id)) is None


@settings(max_examples=60)
@given(
    some.lists(some.tuples(some.integers(1, 18), some.integers(1, 18)), min_size=2, max_size=8),
    some.integers(1, 18),
    some.integers(1, 18),
)
def test_what_is_suggested_starts(others: list[tuple[int, int]], cores: int, memory: int) -> None:
    bench = Bench()
    for at, (half_cores, gib) in enumerate(others):
        bench.submit(of(half_cores / 2, gib, by=BOB if at % 2 else ALICE))
    bench.schedule()
    waiting = bench.submit(of(cores / 2, memory))
    if waiting in builder(bench)().pass_now().admitted:
        return
    job = bench.job(waiting)
    words = smaller_demand(builder(bench), job)
    if words is None:
        return
    given = dict(zip(words[::2], words[1::2], strict=True))
    asked = job.spec.demand
    smaller = replace(
        asked,
        cores_milli=parse_cores(given["-c"]) if "-c" in given else asked.cores_milli,
        memory_bytes=parse_memory(given["-m"]) if "-m" in given else asked.memory_bytes,
    )
    assert smaller.cores_milli <= asked.cores_milli and smaller.memory_bytes <= asked.memory_bytes
    assert smaller != asked or "-t" in given
    assert "-t" not in given or parse_duration(given["-t"]) < 3600
    assert smaller.memory_bytes % GIB == 0 or smaller.memory_bytes % (16 << 20) == 0
    bench.ledger.apply(_cancelled(waiting))
    again = bench.submit(replace(job.spec, demand=smaller))
    assert again in bench.schedule()


def _cancelled(job_id: int) -> object:
    from drfd.core import events as ev

    return ev.Cancelled(job_id=job_id, at_s=now().at_s, by="alice")


def test_the_rate_of_one_of_several_disks_is_cut() -> None:
    disks = (("data", 100 << 20, 100 << 20), ("scratch", 100 << 20, 100 << 20))
    few = rules()
    capacity = replace(few.capacity, read_bps=0, write_bps=0, disks=disks)
    bench = Bench(replace(few, capacity=capacity, axes=Axes(disks=("data", "scratch"))))
    asks = replace(demand(1), disks=(("data", 60 << 20, 0), ("scratch", 0, 0)))
    bench.start(spec(asks=asks))
    waiting = bench.submit(spec(asks=asks))
    assert smaller_demand(builder(bench), bench.job(waiting)) == ["--io", "data=40M/0"]
