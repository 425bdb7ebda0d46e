"""What one user may have of the daemon at a time."""

from __future__ import annotations

import asyncio

import pytest

from drfd.common.errors import Refused
from drfd.daemon.config import UserLimits
from drfd.daemon.users import quotas as quotas_module
from drfd.daemon.users.quotas import AT_ONCE, BURST_S, MAX_INCOMING_BYTES, Quotas

ALICE, BOB = 1001, 1002


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def quotas(clock: Clock | None = None, **limits: int) -> Quotas:
    return Quotas(lambda: UserLimits(**limits), clock or Clock())


def test_a_connection_too_many_is_refused_and_a_closed_one_makes_room() -> None:
    q = quotas(connections=2)
    with q.connection(ALICE):
        with q.connection(ALICE):
            with pytest.raises(Refused) as refusal, q.connection(ALICE):
                raise AssertionError("it is let in")
            assert refusal.value.code == "too-many-connections"
            with q.connection(BOB):
                assert not q.is_idle
        with q.connection(ALICE):
            pass
    assert q.is_idle


def test_the_bound_is_that_of_the_configuration_as_it_is_now() -> None:
    most = 1
    q = Quotas(lambda: UserLimits(connections=most))
    with q.connection(ALICE):
        most = 2
        with q.connection(ALICE):
            pass


def test_long_requests_of_one_user_have_a_bound_together() -> None:
    q = quotas()
    with q.incoming(ALICE) as first:
        first(MAX_INCOMING_BYTES - 10)
        with q.incoming(ALICE) as second:
            second(10)
            with pytest.raises(Refused) as refusal:
                second(1)
            assert refusal.value.code == "too-much-at-once"
        with q.incoming(BOB) as others:
            others(MAX_INCOMING_BYTES)
        first(10)
    with q.incoming(ALICE) as again:
        again(MAX_INCOMING_BYTES)


async def test_so_many_requests_of_one_user_are_worked_on_at_a_time_and_of_others_as_many() -> None:
    q = quotas()
    working: list[int] = []
    go_on = asyncio.Event()

    async def work(uid: int) -> None:
        async with q.processing_slot(uid):
            working.append(uid)
            await go_on.wait()

    tasks = [asyncio.create_task(work(ALICE)) for _ in range(AT_ONCE + 3)]
    tasks += [asyncio.create_task(work(BOB))]
    await asyncio.sleep(0.01)
    assert working == [ALICE] * AT_ONCE + [BOB]
    go_on.set()
    await asyncio.gather(*tasks)
    assert len(working) == AT_ONCE + 4


async def test_who_leaves_his_turn_makes_room_in_the_next_round_of_the_loop() -> None:
    """In this round he has taken as much time as is his."""

    q = quotas()
    order: list[str] = []

    async def flood(number: int) -> None:
        async with q.processing_slot(ALICE) as slot:
            order.append(f"alice {number}")
            slot.release()
            slot.release()

    async def other() -> None:
        await asyncio.sleep(0)
        order.append("bob")

    tasks = [asyncio.create_task(flood(number)) for number in range(3 * AT_ONCE)]
    tasks.append(asyncio.create_task(other()))
    await asyncio.gather(*tasks)
    assert order.index("bob") <= 2 * AT_ONCE
    assert len(order) == 3 * AT_ONCE + 1
    # Every place is free again, and there is none too many.
    async with asyncio.timeout(5):
        places = [q.processing_slot(ALICE) for _ in range(AT_ONCE)]
        for each in places:
            await each.__aenter__()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await q.processing_slot(ALICE).__aenter__()


def test_a_burst_of_submissions_is_not_held_up_and_what_goes_on_and_on_is() -> None:
    clock = Clock()
    q = quotas(clock, submissions_per_s=10)
    burst = round(10 * BURST_S)
    assert [q.submission_delay_s(ALICE) for _ in range(burst + 1)] == [0.0] * (burst + 1)
    assert q.submission_delay_s(ALICE) == pytest.approx(0.1)
    assert q.submission_delay_s(ALICE) == pytest.approx(0.2)
    assert q.submission_delay_s(BOB) == 0.0
    clock.now_s += BURST_S / 2
    assert [q.submission_delay_s(ALICE) for _ in range(burst // 2 - 2)] == [0.0] * (burst // 2 - 2)
    clock.now_s += 10 * BURST_S
    assert [q.submission_delay_s(ALICE) for _ in range(burst + 1)] == [0.0] * (burst + 1)
    assert q.submission_delay_s(ALICE) > 0


def test_the_usual_burst_is_more_than_a_script_submits_in_a_minute() -> None:
    assert UserLimits().submissions_per_s * quotas_module.BURST_S >= 10_000


def test_a_submission_counts_for_what_it_brings() -> None:
    """200 a second of half a megabyte each were allowed."""
    q = quotas(Clock(), submissions_per_s=10)
    assert q.submission_delay_s(ALICE, round(10 * BURST_S) * quotas_module.WEIGHT_BYTES) == 0.0
    assert q.submission_delay_s(ALICE) == pytest.approx(0.1)


def test_changes_have_a_rate_of_their_own_and_each_job_counts() -> None:
    """No verb but submit had one: a loop of `drf set` grew the journal by 72 MB a second."""
    clock = Clock()
    q = quotas(clock, changes_per_s=10)
    burst = round(10 * BURST_S)
    assert q.change_delay_s(ALICE, is_cancel=False) == 0.0
    q.changed(ALICE, burst)
    assert q.change_delay_s(ALICE, is_cancel=False) == pytest.approx(0.1)
    assert q.submission_delay_s(ALICE) == 0.0
    assert q.change_delay_s(BOB, is_cancel=False) == 0.0
    clock.now_s += 3 * BURST_S
    q.changed(ALICE, burst // 2, quotas_module.WEIGHT_BYTES)
    assert q.change_delay_s(ALICE, is_cancel=False) == 0.0
    assert q.change_delay_s(ALICE, is_cancel=False) == pytest.approx(0.1)


def test_who_has_changed_far_too_much_is_refused_and_may_cancel_all_the_same() -> None:
    clock = Clock()
    q = quotas(clock, changes_per_s=10)
    q.changed(ALICE, round(10 * (BURST_S + quotas_module.MAX_DELAY_S)) + 1)
    for _ in range(1000):
        with pytest.raises(Refused) as caught:
            q.change_delay_s(ALICE, is_cancel=False)
    assert (caught.value.code, caught.value.exit_code) == ("too-many-changes", 1)
    assert str(caught.value) == (
        f"uid {ALICE} has changed jobs more than 1000 times lately, and 10 a second are allowed "
        "(try again in 30 s, or name fewer jobs; cancel works)"
    )
    assert q.change_delay_s(ALICE, is_cancel=True) == quotas_module.MAX_CANCEL_DELAY_S
    clock.now_s += 1.0
    assert q.change_delay_s(ALICE, is_cancel=False) > 0
