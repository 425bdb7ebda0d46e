"""drfd's own process beside each running job: never more of them than there is memory for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import Rules
from drfd.core.model import stimuli as st
from drfd.core.scheduling.kept_free import RUNNER_BYTES, ExternalLoad
from drfd.core.scheduling.scheduling_pass import free_of
from fakes import ALICE, Bench, attempt_started, now, rules, spec
from seeds import seeds

MIB = 1 << 20
TINY = Resources(cores_milli=10, memory_bytes=2 * MIB)
COUNT = 60
#: Room beside the capacity in MiB → how many of so many jobs start.
STARTED = {0: 24, 60: 36, None: COUNT, 1000: COUNT}


def small(room_mib: int | None, policy: str = "drf", memory_mib: int = 120) -> Rules:
    """A machine with many cores and little memory; with so much of it beside the capacity."""
    capacity = Resources(cores_milli=100_000, memory_bytes=memory_mib * MIB)
    room = None if room_mib is None else room_mib * MIB
    return replace(rules(), capacity=capacity, root_room_bytes=room, policy=policy)


def started(bench: Bench) -> int:
    """With as many passes as change anything."""
    count = 0
    while found := bench.schedule():
        count += len(found)
    return count


@pytest.mark.parametrize("policy", seeds(["drf", "fifo", "slots"], quick=1))
@pytest.mark.parametrize("room_mib", seeds(STARTED, quick=1))
def test_as_many_tiny_jobs_start_as_their_processes_find_room(
    policy: str, room_mib: int | None
) -> None:
    """300 jobs of 2 MiB started 300 processes of root's with 781 MiB, which nobody counted."""
    bench = Bench(replace(small(room_mib, policy), slots=1000))
    for _ in range(COUNT):
        bench.submit(spec(asks=TINY))
    assert started(bench) == STARTED[room_mib]
    bench.check()


def test_a_job_that_asks_for_everything_starts_alone() -> None:
    bench = Bench(small(0))
    everything = Resources(cores_milli=10, memory_bytes=120 * MIB)
    bench.submit(spec(asks=everything))
    bench.submit(spec(asks=TINY))
    assert started(bench) == 1
    bench.feed(attempt_started(1))
    bench.finish(1)
    assert started(bench) == 1


def test_a_job_that_fills_the_capacity_to_the_byte_does_so_where_there_is_room_beside() -> None:
    bench = Bench(small(30))
    for _ in range(10):
        bench.submit(spec(asks=Resources(cores_milli=10, memory_bytes=12 * MIB)))
    assert started(bench) == 10


def test_a_suspended_job_goes_on_with_the_process_that_it_has() -> None:
    bench = Bench(small(0))
    for _ in range(25):
        bench.submit(spec(asks=TINY))
    assert started(bench) == 24
    bench.feed(attempt_started(1))
    bench.suspend(1)
    bench.feed(st.ResumeAsked(now(), 1, ALICE))
    assert bench.schedule() == [1]


def test_load_from_outside_has_them_in_it() -> None:
    """Else they would be taken twice."""
    bench = Bench(small(0))
    for _ in range(10):
        bench.submit(spec(asks=TINY))
    assert started(bench) == 10
    axis = bench.rules.axes.names.index("memory")
    for seen_mib, taken in ((10, 10 * RUNNER_BYTES), (50, 50 * MIB)):
        seen = Resources(memory_bytes=seen_mib * MIB)
        load = ExternalLoad(used=seen, kept=seen, until_s=1e9)
        free = free_of(bench.ledger, bench.rules, load)[axis]
        assert free == 120 * MIB - 10 * TINY.memory_bytes - taken
