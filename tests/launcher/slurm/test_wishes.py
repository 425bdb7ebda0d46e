"""What is done with Slurm's jobs until what the controller wants is so."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.launcher import protocol
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.control import Control
from drfd.launcher.slurm.mapping import Name, SlurmJob
from drfd.launcher.slurm.wishes import Wish
from launcher.slurm.conftest import Clock

JOB = SlurmJob(
    id=7, uid=1000, state="RUNNING", wait_status=0, ended_at_s=None, has_node=True, title="fit",
    name=Name("j", (1, 1)),
)  # fmt: skip
CANCEL = ("scancel", "--name=fit", "7")
KILL = ("scancel", "--signal=KILL", "--name=fit", "7")
TERM = ("scancel", "--signal=TERM", "--full", "--name=fit", "7")
SUSPEND, RESUME = ("scontrol", "suspend", "7"), ("scontrol", "resume", "7")


class Recorder(Commands):
    """Takes commands, and runs none."""

    def __init__(self) -> None:
        super().__init__(selectors.DefaultSelector(), programs=Path("/"), conf=None, most_s=1)
        self.ran: list[tuple[str, ...]] = []

    def run(self, words: Sequence[str], on_answer: Callable[[Answer], None], **fds: object) -> None:
        self.ran.append(tuple(words))


def pursue(wish: Wish, state: str) -> list[tuple[str, ...] | str]:
    """Return what is done with the job in this state, and "frozen" if that is told."""
    recorder, told = Recorder(), []
    control = Control(recorder, lambda: None)
    wish.pursue(replace(JOB, state=state), control, lambda: told.append("frozen"))
    return [*recorder.ran, *told]


def wish_for(*names: str) -> Wish:
    wish = Wish(0)
    for number, name in enumerate(names, 1):
        wish.add(name, number)
    assert wish.after_list == len(names)
    return wish


@pytest.mark.parametrize(
    ("name", "state", "done"),
    [
        (protocol.TERMINATE, "RUNNING", [TERM]),
        (protocol.TERMINATE, "PENDING", [CANCEL]),
        (protocol.KILL, "RUNNING", [KILL]),
        (protocol.KILL, "PENDING", [CANCEL]),
        (protocol.KILL, "SUSPENDED", [CANCEL]),
        (protocol.REMOVE, "RUNNING", [KILL]),
        (protocol.FREEZE, "RUNNING", [SUSPEND]),
        (protocol.FREEZE, "PENDING", []),
        (protocol.FREEZE, "SUSPENDED", ["frozen"]),
        (protocol.THAW, "SUSPENDED", [RESUME]),
        (protocol.THAW, "RUNNING", []),
        (protocol.KILL, "COMPLETING", []),
        (protocol.TERMINATE, "COMPLETING", []),
    ],
)
def test_each_order_has_its_command(clock: Clock, name: str, state: str, done: list[str]) -> None:
    assert pursue(wish_for(name), state) == done


def test_a_request_to_end_is_made_once(clock: Clock) -> None:
    wish = wish_for(protocol.TERMINATE)
    pursue(wish, "RUNNING")
    assert wish.is_fulfilled


def test_a_kill_is_repeated_by_signal_and_by_cancelling_in_turn(clock: Clock) -> None:
    wish = wish_for(protocol.KILL)
    assert pursue(wish, "RUNNING") == [KILL]
    clock.pass_s(1)
    assert pursue(wish, "RUNNING") == []
    clock.pass_s(1)
    assert pursue(wish, "RUNNING") == [CANCEL]
    clock.pass_s(2)
    assert pursue(wish, "RUNNING") == [KILL]
    assert not wish.is_fulfilled


def test_a_kill_comes_before_what_else_is_wanted(clock: Clock) -> None:
    assert pursue(wish_for(protocol.FREEZE, protocol.TERMINATE, protocol.KILL), "RUNNING") == [KILL]


def test_the_last_of_freeze_and_thaw_counts(clock: Clock) -> None:
    assert pursue(wish_for(protocol.FREEZE, protocol.THAW), "SUSPENDED") == [RESUME]
    assert pursue(wish_for(protocol.THAW, protocol.FREEZE), "RUNNING") == [SUSPEND]
    # A job that is to end must be able to.
    assert wish_for(protocol.FREEZE, protocol.TERMINATE).freeze is False


def test_it_is_fulfilled_when_the_job_is_so(clock: Clock) -> None:
    for name, state in ((protocol.FREEZE, "SUSPENDED"), (protocol.THAW, "RUNNING")):
        wish = wish_for(name)
        assert not wish.is_fulfilled
        pursue(wish, state)
        assert wish.is_fulfilled


def test_of_one_that_is_over_only_the_removal_is_left(clock: Clock) -> None:
    wish = wish_for(protocol.TERMINATE, protocol.KILL, protocol.THAW)
    wish.see_over()
    assert wish.is_fulfilled
    wish = wish_for(protocol.KILL, protocol.REMOVE)
    wish.see_over()
    assert wish.remove
    assert not wish.is_fulfilled
