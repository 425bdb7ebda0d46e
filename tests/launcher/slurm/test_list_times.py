"""When Slurm is asked for the list of its jobs."""

from __future__ import annotations

from drfd.launcher.slurm.list_times import ListTimes
from launcher.slurm.conftest import Clock


def asked(times: ListTimes, clock: Clock, *, seconds: float) -> list[float]:
    """Answer each list at once, and return when they were asked for, in seconds from now on."""
    began, found = clock.now, []
    while (pause_s := times.pause_s()) is not None and clock.now + pause_s <= began + seconds:
        clock.pass_s(pause_s)
        assert times.begin() is not None
        times.end()
        found.append(round(clock.now - began, 6))
    clock.now = began + seconds
    return found


def test_without_events_it_is_asked_for_from_time_to_time(clock: Clock) -> None:
    times = ListTimes(poll_s=30.0)
    assert asked(times, clock, seconds=100) == [0, 30, 60, 90]
    assert times.count == 4


def test_an_event_has_it_asked_for_at_once_and_some_moments_later(clock: Clock) -> None:
    times = ListTimes(poll_s=30.0)
    asked(times, clock, seconds=1)
    times.hurry(7.0)
    assert asked(times, clock, seconds=20) == [0, 0.05, 0.2, 1, 3, 7]


def test_a_moment_of_its_own_is_added(clock: Clock) -> None:
    times = ListTimes(poll_s=30.0)
    asked(times, clock, seconds=1)
    times.add(clock.now + 5)
    assert asked(times, clock, seconds=20) == [5]


def test_one_is_asked_for_at_a_time(clock: Clock) -> None:
    times = ListTimes(poll_s=30.0)
    assert times.begin() == 1
    times.hurry()
    clock.pass_s(60)
    assert times.begin() is None
    assert times.pause_s() is None
    times.end()
    assert times.begin() == 2


def test_a_burst_of_events_does_not_bring_a_list_for_each(clock: Clock) -> None:
    times = ListTimes(poll_s=30.0)
    asked(times, clock, seconds=1)
    for _ in range(10_000):
        times.hurry()
        clock.pass_s(0.0001)
        if times.begin() is not None:
            times.end()
    # In one second, at least 20 ms apart.
    assert 20 <= times.count <= 52
