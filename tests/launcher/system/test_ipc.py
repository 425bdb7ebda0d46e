"""When a user's leavings are swept up: never while a job of the user's is known."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from drfd.launcher.system import cleanup
from drfd.launcher.system.cleanup import IpcSweeps


class BackgroundWork:
    """Begins nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.killed: list[int] = []
        self._ends: dict[int, Callable[[], None]] = {}

    def start(self, work: Callable[[], None], on_end: Callable[[], None], *keep: int) -> int:
        self.started.append(work.args[0])  # type: ignore[attr-defined]
        self._ends[len(self.started)] = on_end
        return len(self.started)

    def kill(self, pid: int) -> None:
        self.killed.append(pid)

    def end(self, pid: int) -> None:
        self._ends[pid]()


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def background() -> BackgroundWork:
    return BackgroundWork()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sweeps(background: BackgroundWork, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> IpcSweeps:
    monkeypatch.setattr(cleanup, "is_anything_there", lambda: True)
    return IpcSweeps(background, min_uid=1000, mono=clock)  # type: ignore[arg-type]


def test_a_sweep_begins_a_moment_after_the_last_attempt(
    sweeps: IpcSweeps, background: BackgroundWork, clock: Clock
) -> None:
    sweeps.begun((1, 1), 1000)
    sweeps.begun((2, 1), 1000)
    # A launcher that starts finds each once more.
    sweeps.begun((2, 1), 1000)
    sweeps.gone((1, 1))
    assert sweeps.pause_s() is None
    sweeps.gone((2, 1))
    assert sweeps.pause_s() == 1.5
    sweeps.run_due()
    assert background.started == []
    clock.now_s += 1.5
    sweeps.run_due()
    assert (background.started, sweeps.pause_s()) == ([1000], None)


def test_whoever_runs_one_job_after_the_other_is_left_alone(
    sweeps: IpcSweeps, background: BackgroundWork, clock: Clock
) -> None:
    for number in range(1, 5):
        sweeps.begun((number, 1), 1000)
        sweeps.gone((number, 1))
        clock.now_s += 0.5
        sweeps.run_due()
    assert background.started == []


def test_a_job_that_starts_ends_the_sweep_first(
    sweeps: IpcSweeps, background: BackgroundWork, clock: Clock
) -> None:
    sweeps.begun((1, 1), 1000)
    sweeps.gone((1, 1))
    clock.now_s += 1.5
    sweeps.run_due()
    sweeps.begun((2, 1), 1001)
    assert background.killed == []
    sweeps.begun((3, 1), 1000)
    assert background.killed == [1]
    sweeps.begun((4, 1), 1000)
    assert background.killed == [1]


def test_a_sweep_that_does_not_end_is_the_only_one(
    sweeps: IpcSweeps, background: BackgroundWork, clock: Clock
) -> None:
    """What was called off counted as gone, so that a user whose sweeps hang could have any number
    of them."""
    for number in range(1, 4):
        sweeps.begun((number, 1), 1000)
        sweeps.gone((number, 1))
        clock.now_s += 1.5
        sweeps.run_due()
    assert (background.started, background.killed) == ([1000], [1])
    assert sweeps.pause_s() == 1.5
    background.end(1)
    clock.now_s += 1.5
    sweeps.run_due()
    assert (background.started, sweeps.pause_s()) == ([1000, 1000], None)


def test_one_sweep_of_a_user_at_a_time(
    sweeps: IpcSweeps, background: BackgroundWork, clock: Clock
) -> None:
    for _ in range(2):
        sweeps.begun((1, 1), 1000)
        sweeps.gone((1, 1))
        clock.now_s += 1.5
        sweeps.run_due()
        background.end(len(background.started))
    assert (background.started, background.killed) == ([1000, 1000], [])


@pytest.mark.parametrize("uid", [0, 999])
def test_root_and_system_accounts_are_never_swept(
    sweeps: IpcSweeps, background: BackgroundWork, uid: int
) -> None:
    sweeps.begun((1, 1), uid)
    sweeps.gone((1, 1))
    assert sweeps.pause_s() is None


def test_nobody_is_swept_where_it_is_turned_off(background: BackgroundWork, clock: Clock) -> None:
    sweeps = IpcSweeps(background, min_uid=None, mono=clock)  # type: ignore[arg-type]
    sweeps.begun((1, 1), 1000)
    sweeps.gone((1, 1))
    assert sweeps.pause_s() is None


def test_an_attempt_that_was_never_begun_is_nobodys(sweeps: IpcSweeps) -> None:
    sweeps.gone((1, 1))
    assert sweeps.pause_s() is None


def test_a_user_with_a_process_is_seen() -> None:
    assert cleanup.has_processes(os.getuid())
    assert not cleanup.has_processes(3_999_999_999)


def test_the_tables_have_the_columns_that_are_used() -> None:
    """Read even where there are none."""
    for kind, (column, _) in cleanup._KINDS.items():
        with open(f"/proc/sysvipc/{kind}") as file:
            columns = file.readline().split()
        assert {column, "uid"} <= set(columns)
        assert ("nattch" in columns) == (kind == "shm")
        assert all(column in row for row in cleanup.table(kind))
