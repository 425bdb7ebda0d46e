"""Work that the launcher has done by processes of its own."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alone import alone
from drfd.launcher.runner import inheritance
from drfd.launcher.system.background import BackgroundWork, become_bare
from kernel_calls import is_dumpable


@pytest.fixture
def selector() -> Iterator[selectors.DefaultSelector]:
    made = selectors.DefaultSelector()
    yield made
    made.close()


def until(selector: selectors.DefaultSelector, is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        for chosen, _ in selector.select(0.1):
            chosen.data()
    assert is_so()


@alone
def test_the_end_of_work_is_told_however_it_ended(selector: selectors.DefaultSelector) -> None:
    background, ended = BackgroundWork(selector), list[str]()
    background.start(lambda: None, lambda: ended.append("done"))
    background.start(lambda: 1 // 0, lambda: ended.append("failed"))  # type: ignore[arg-type,return-value]
    pid = background.start(lambda: time.sleep(600), lambda: ended.append("killed"))
    os.kill(pid, signal.SIGKILL)
    until(selector, lambda: len(ended) == 3)
    assert sorted(ended) == ["done", "failed", "killed"]
    assert not selector.get_map()


@alone
def test_work_that_is_called_off_ends(selector: selectors.DefaultSelector) -> None:
    background, ended = BackgroundWork(selector), list[str]()
    pid = background.start(lambda: time.sleep(600), lambda: ended.append("done"))
    background.kill(pid)
    until(selector, lambda: ended)
    assert not selector.get_map()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    background.kill(pid)
    assert ended == ["done"]


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A group whose processes do not even die while they are frozen."""
    group = Path(f"/sys/fs/cgroup/freezer/drfdt{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no freezer of cgroup v1 here")
    yield group
    (group / "freezer.state").write_text("THAWED")
    for _ in range(1000):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.01)


@pytest.mark.slow
@alone
def test_work_that_cannot_end_yet_keeps_nobody_waiting(
    selector: selectors.DefaultSelector, freezer: Path
) -> None:
    """Who waits for a file system of the user's own (FUSE) is not ended by SIGKILL before that has
    answered. The launcher waited for it, and with it everybody's jobs, for as long as a user liked.
    """
    background, ended = BackgroundWork(selector), list[str]()
    pid = background.start(lambda: time.sleep(600), lambda: ended.append("done"))
    (freezer / "cgroup.procs").write_text(str(pid))
    state = freezer / "freezer.state"
    state.write_text("FROZEN")
    # A process that has not run yet is frozen when it does.
    until(selector, lambda: state.read_text() == "FROZEN\n")
    # Else a launcher that waits would wait for ever.
    with subprocess.Popen(["sh", "-c", f"sleep 30; echo THAWED >{state}"]) as thawing:
        background.kill(pid)
        assert state.read_text() == "FROZEN\n"
        assert ended == []
        thawing.kill()
    state.write_text("THAWED")
    until(selector, lambda: ended)
    assert not selector.get_map()


@alone
def test_work_has_only_the_descriptors_that_it_was_given(
    selector: selectors.DefaultSelector, tmp_path: Path
) -> None:
    """Not the launcher's lock, above all."""
    background, ended = BackgroundWork(selector), list[int]()
    told = tmp_path / "told"
    given, secret = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))

    def work() -> None:
        told.write_text(
            json.dumps([os.path.exists(f"/proc/self/fd/{fd}") for fd in (given, secret)])
        )

    background.start(work, lambda: ended.append(1), given)
    until(selector, lambda: ended)
    os.close(given)
    os.close(secret)
    assert json.loads(told.read_text()) == [True, False]


@pytest.mark.skipif(os.getuid() != 0, reason="not root")
@alone
def test_who_becomes_a_user_keeps_nothing_and_shows_nothing(
    selector: selectors.DefaultSelector, tmp_path: Path
) -> None:
    """The process is a copy of the launcher, in which are the orders of all users."""
    background, ended = BackgroundWork(selector), list[int]()
    told = os.open(tmp_path / "told", os.O_RDWR | os.O_CREAT)

    def work() -> None:
        inheritance.allow_no_core()
        become_bare(61_234)
        found = [os.getresuid(), os.getresgid(), os.getgroups(), is_dumpable()]
        try:
            os.setuid(0)
        except PermissionError:
            found.append("for good")
        os.write(told, json.dumps(found).encode())

    background.start(work, lambda: ended.append(1), told)
    until(selector, lambda: ended)
    os.close(told)
    found = json.loads((tmp_path / "told").read_text())
    assert found == [[61_234] * 3, [65_534] * 3, [], False, "for good"]
