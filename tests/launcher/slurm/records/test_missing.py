"""When an attempt that lists lack counts as forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drfd.launcher.slurm.commands import Answer
from drfd.launcher.slurm.list_times import ListTimes
from drfd.launcher.slurm.records.missing import Missing
from launcher.slurm.conftest import Clock

KEY, OTHER = (1, 1), (2, 1)
GOOD, BAD = Answer(0, "", ""), Answer(1, "", "refused")


class Rig:
    """The missing attempts of a launcher, whose orders to the nodes are collected."""

    def __init__(self, place: Path, boot_id: str = "b") -> None:
        self.orders: list[Callable[[Answer], None]] = []
        self.times = ListTimes(poll_s=30.0)
        self.missing = Missing(place, boot_id, self.times, self.orders.append)

    def next_list(self) -> None:
        self.times.hurry()
        self.times.begin()
        self.times.end()


@pytest.fixture
def rig(tmp_path: Path, clock: Clock) -> Rig:
    return Rig(tmp_path)


def test_it_is_gone_ten_seconds_after_the_nodes_were_told_to_register(
    rig: Rig, clock: Clock
) -> None:
    assert not rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    clock.pass_s(9.9)
    assert not rig.missing.is_gone(KEY)
    clock.pass_s(0.1)
    assert rig.missing.is_gone(KEY)
    assert rig.orders == [], "they are told once"


def test_one_that_was_found_again_has_all_its_time_when_it_is_missing_again(
    rig: Rig, clock: Clock
) -> None:
    rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    clock.pass_s(9)
    rig.missing.forget(KEY)
    rig.next_list()
    assert not rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    clock.pass_s(9)
    assert not rig.missing.is_gone(KEY)
    clock.pass_s(1)
    assert rig.missing.is_gone(KEY)


def test_an_order_that_slurm_refuses_does_not_count(rig: Rig, clock: Clock) -> None:
    rig.missing.is_gone(KEY)
    rig.orders.pop()(BAD)
    clock.pass_s(10)
    rig.next_list()
    assert not rig.missing.is_gone(KEY)
    assert len(rig.orders) == 1, "they are told again"


def test_nodes_are_told_once_for_all_of_a_list_and_rarely(rig: Rig, clock: Clock) -> None:
    rig.missing.is_gone(KEY)
    rig.missing.is_gone(OTHER)
    assert len(rig.orders) == 1
    rig.next_list()
    clock.pass_s(1)
    assert not rig.missing.is_gone((3, 1))
    assert len(rig.orders) == 1
    clock.pass_s(4)
    rig.next_list()
    assert not rig.missing.is_gone((3, 1))
    assert len(rig.orders) == 2


def test_the_next_launcher_waits_for_what_is_left(rig: Rig, clock: Clock, tmp_path: Path) -> None:
    rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    clock.pass_s(6)
    after = Rig(tmp_path)
    after.missing.load([KEY, OTHER])
    assert not after.missing.is_gone(KEY)
    assert after.orders == []
    clock.pass_s(4)
    assert after.missing.is_gone(KEY)


def test_what_nodes_were_not_told_of_is_not_kept(rig: Rig, clock: Clock, tmp_path: Path) -> None:
    rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    clock.pass_s(5)
    rig.next_list()
    rig.missing.is_gone(OTHER)
    rig.missing.forget((9, 9))
    after = Rig(tmp_path)
    after.missing.load([KEY, OTHER])
    clock.pass_s(5)
    assert after.missing.is_gone(KEY)
    assert not after.missing.is_gone(OTHER)


@pytest.mark.parametrize(
    ("boot_id", "known", "text"),
    [
        ("another", [KEY], None),
        ("b", [OTHER], None),
        ("b", [KEY], "no JSON"),
        ("b", [KEY], "[]"),
        ("b", [KEY], '{"boot_id": "b", "since": {"1.1": "soon"}}'),
    ],
)
def test_a_file_that_says_nothing_is_left_alone(
    rig: Rig, clock: Clock, tmp_path: Path, boot_id: str, known: list[tuple[int, int]],
    text: str | None,
) -> None:  # fmt: skip
    rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    if text is not None:
        (tmp_path / "missing").write_text(text)
    clock.pass_s(20)
    after = Rig(tmp_path, boot_id)
    after.missing.load(known)
    assert not after.missing.is_gone(KEY)
