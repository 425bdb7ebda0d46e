"""The runners that live: watched until they are gone, and found again by the next launcher."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key
from drfd.launcher.protocol import Assignment, decode
from drfd.launcher.runner import runner as runners_module
from drfd.launcher.runner.runner import Runners
from drfd.launcher.system import process
from launcher.rig import (
    WAIT_S,
    AttemptFiles,
    Driver,
    Start,
    Terminal,
    lives,
    order,
    shell,
)

KEY = (1, 1)
CREATED = {"boot_id": process.boot_id(), "cgroup": None}


class Watch:
    """The runners of a launcher, and what it hears of them. Those that are to be forked are
    processes that sleep, and the test has the other ends of their channels."""

    def __init__(self, files: AttemptFiles, start: Start) -> None:
        self.gone: list[Key] = []
        self.selector = selectors.DefaultSelector()
        self.channels: list[socket.socket] = []
        self.forked: list[subprocess.Popen[bytes]] = []
        self._start = start
        self.mono_s = 100.0
        self.runners = self.beginning(files, are_kept=True)

    def beginning(self, files: AttemptFiles, *, are_kept: bool) -> Runners:
        return Runners(
            *(files.fd, self.selector, self.gone.append),
            fork=self._fork,
            are_kept=are_kept,
            mono=lambda: self.mono_s,
        )

    def _fork(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        self.channels.append(theirs)
        self.forked.append(self._start("sleep", "60"))
        return self.forked[-1].pid, ours

    def hear(self) -> list[Key]:
        """One round of the launcher's loop."""
        for chosen, _ in self.selector.select(WAIT_S):
            chosen.data()
        return self.gone

    def close(self) -> None:
        for chosen in list(self.selector.get_map().values()):
            if isinstance(chosen.fileobj, socket.socket):
                chosen.fileobj.close()
            else:
                os.close(int(chosen.fd))
        self.selector.close()
        for channel in self.channels:
            channel.close()


@pytest.fixture
def watch(files: AttemptFiles, start: Start) -> Iterator[Watch]:
    watch = Watch(files, start)
    yield watch
    watch.close()


def attempt_file(files: AttemptFiles, **runner: int | None) -> int:
    """An attempt file that is locked by us, with this runner on record if any."""
    fd = attempt_files.create(files.fd, KEY, CREATED)
    if runner:
        attempt_files.append(fd, "runner", runner)
    return fd


def test_a_runner_is_watched_until_it_is_gone_and_then_reaped(start: Start, watch: Watch) -> None:
    runner = start("true")
    runner.wait(WAIT_S)
    watch.runners.watch(KEY, runner.pid)
    assert KEY not in watch.runners
    runner = start("sleep", "60")
    watch.runners.watch(KEY, runner.pid)
    assert KEY in watch.runners
    assert (2, 1) not in watch.runners
    (pidfd,) = watch.selector.get_map()
    runner.kill()
    assert watch.hear() == [KEY]
    assert KEY not in watch.runners
    assert dict(watch.selector.get_map()) == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(int(pidfd))
    # Or the launcher would collect one zombie for each job.
    runner = start("true")
    watch.runners.watch(KEY, runner.pid)
    assert watch.hear() == [KEY, KEY]
    with pytest.raises(ChildProcessError):
        os.waitpid(runner.pid, 0)


def test_one_whose_job_has_not_started_is_looked_at_until_it_has_or_is_gone(
    driver: Driver, files: AttemptFiles, watch: Watch, work: Path, terminal: Terminal
) -> None:
    """Its bell rings at the launcher that is gone."""
    asked = shell("exit 0", cwd=work, attach=str(terminal.path))
    runner = driver.start(asked, files)
    connection = terminal.accept()
    watch.runners.adopt(KEY)
    assert watch.runners.unreported == {KEY}
    terminal.hand_over(connection)
    assert watch.hear() == [KEY]
    assert watch.runners.unreported == set()
    assert driver.reap(runner) == 0


def test_a_pid_that_somebody_else_has_now_is_not_the_runner(
    start: Start, files: AttemptFiles, watch: Watch
) -> None:
    """The lock is held by a child of the runner that was killed, say."""
    other = start("sleep", "60")
    fd = attempt_file(files, pid=other.pid, start_ticks=1)
    watch.runners.adopt(KEY)
    assert KEY not in watch.runners
    assert lives(other.pid)
    # Not ours: the fixture must not end it as a runner of this attempt.
    attempt_files.remove(files.fd, KEY)
    os.close(fd)


def test_a_runner_counts_as_alive_however_late_it_writes_its_pid(
    start: Start, files: AttemptFiles, watch: Watch
) -> None:
    """It has the lock, and may have been swapped out or stopped: were the attempt given to another
    one meanwhile, both would let its job go. The launcher does not stand still for it."""
    runner = start("sleep", "60")
    fd = attempt_file(files)
    watch.runners.adopt(KEY)
    for _ in range(3):
        watch.runners.run_due()
        assert KEY in watch.runners
        assert watch.runners.pause_s() == 0.02
    me = {"pid": runner.pid, "start_ticks": process.start_ticks(runner.pid)}
    attempt_files.append(fd, "runner", me)
    watch.runners.run_due()
    assert KEY in watch.runners
    assert watch.runners.unreported == {KEY}
    assert watch.gone == []
    runner.kill()
    assert watch.hear() == [KEY]
    assert KEY not in watch.runners
    os.close(fd)


def test_a_runner_that_dies_before_it_has_written_its_pid_is_seen_to_be_gone(
    files: AttemptFiles, watch: Watch
) -> None:
    fd = attempt_file(files)
    watch.runners.adopt(KEY)
    os.close(fd)
    assert KEY in watch.runners
    watch.runners.run_due()
    assert watch.gone == [KEY]
    assert KEY not in watch.runners
    assert watch.runners.pause_s() is None
    watch.runners.run_due()
    assert watch.gone == [KEY], "once"


@pytest.mark.parametrize("pipe_is_full", [False, True])
def test_a_runner_that_has_let_go_is_given_the_next_attempt(
    files: AttemptFiles, watch: Watch, work: Path, pipe_is_full: bool
) -> None:
    begin(watch, watch.runners, files, work, 1)
    if pipe_is_full:
        watch.channels[0].send(b".")
        watch.hear()
    else:
        watch.runners.finished((1, 1))
    assert watch.gone == [(1, 1)]
    assert (1, 1) not in watch.runners
    begin(watch, watch.runners, files, work, 2)
    assert len(watch.forked) == 1
    assert (2, 1) in watch.runners
    watch.runners.finished((1, 1))
    assert watch.gone == [(1, 1)], "it is told of that one no more"


def test_as_many_as_were_needed_at_a_time_are_kept_for_a_while_and_one_for_longer(
    files: AttemptFiles, watch: Watch, work: Path
) -> None:
    for number in range(1, 41):
        begin(watch, watch.runners, files, work, number)
    for number, channel in enumerate(watch.channels[:40], 1):
        watch.mono_s += 0.1
        channel.send(b".")
        assert watch.hear()[-1] == (number, 1)
    assert watch.runners.pause_s() == pytest.approx(5 - 3.9)
    watch.runners.run_due()
    for number in range(41, 81):
        begin(watch, watch.runners, files, work, number, channel=watch.channels[80 - number])
    assert (len(watch.forked), watch.runners.pause_s()) == (40, None)
    for channel in watch.channels:
        channel.send(b".")
        watch.hear()
    watch.mono_s += 4.9
    watch.runners.run_due()
    watch.mono_s += 0.2
    watch.runners.run_due()
    assert watch.runners.pause_s() is None
    left = [channel for channel in watch.channels if not is_told_to_leave(channel)]
    assert left == [watch.channels[-1]]


def is_told_to_leave(channel: socket.socket) -> bool:
    channel.setblocking(False)
    try:
        return channel.recv(1) == b""
    except BlockingIOError:
        return False


def test_where_none_are_kept_each_attempt_has_a_runner_of_its_own(
    files: AttemptFiles, watch: Watch, work: Path
) -> None:
    runners = watch.beginning(files, are_kept=False)
    runners.prepare()
    assert watch.forked == []
    begin(watch, runners, files, work, 1)
    watch.channels[0].send(b".")
    assert watch.hear() == [(1, 1)]
    assert watch.channels[0].recv(1) == b"", "it is told to leave"
    begin(watch, runners, files, work, 2)
    assert len(watch.forked) == 2


def test_a_runner_that_is_killed_while_it_waits_is_replaced(
    files: AttemptFiles, watch: Watch, work: Path
) -> None:
    """Whether or not its end has been seen by then."""
    watch.runners.prepare()
    watch.channels[0].close()
    begin(watch, watch.runners, files, work, 1)
    assert len(watch.forked) == 2
    assert (1, 1) in watch.runners
    watch.forked[0].kill()
    assert watch.hear() == [], "it had no attempt"
    watch.channels[1].send(b".")
    watch.hear()
    watch.forked[1].kill()
    watch.hear()
    begin(watch, watch.runners, files, work, 2)
    assert len(watch.forked) == 3


def begin(
    watch: Watch,
    runners: Runners,
    files: AttemptFiles,
    work: Path,
    number: int,
    channel: socket.socket | None = None,
) -> None:
    """Have an attempt of this job run, and check that the runner given it was told all: the one at
    the other end of `channel`, or the youngest."""
    key = (number, 1)
    fd = attempt_files.create(files.fd, key, CREATED)
    runners.start(Assignment(shell("true", cwd=work, id=number).order, fd), CREATED, fd)
    os.close(fd)
    told, fds, _, _ = socket.recv_fds(channel or watch.channels[-1], 1 << 16, 1)
    assert decode(told)["order"]["id"] == number
    assert attempt_files.is_locked(files.fd, key), "the descriptor holds the lock wherever it is"
    os.close(*fds)
    assert not attempt_files.is_locked(files.fd, key)


def give(watch: Watch, files: AttemptFiles, job_id: int, **changes: Any) -> int:
    """Start an attempt, and have its runner let go of it; which runner that was."""
    key = (job_id, 1)
    fd = attempt_files.create(files.fd, key, CREATED)
    assignment = Assignment(order(cwd=Path("/"), id=job_id, **changes).order, fd)
    watch.runners.start(assignment, CREATED, fd)
    os.close(fd)
    for number, channel in enumerate(watch.channels):
        channel.setblocking(False)
        try:
            data, fds, _, _ = socket.recv_fds(channel, 1 << 16, 4)
        except BlockingIOError:
            continue
        for each in fds:
            os.close(each)
        if data:
            channel.send(b".")
            while key not in watch.gone:
                watch.hear()
            return number
    raise AssertionError("no runner was given it")


def test_a_runner_never_serves_two_users(watch: Watch, files: AttemptFiles) -> None:
    """An idle runner took the next job, whosever it was: what it knew of one user's job, arguments
    and environment among it, was in the memory of a process with another user's rights."""
    first = give(watch, files, 1, uid=1001)
    assert give(watch, files, 2, uid=1001) == first
    other = give(watch, files, 3, uid=1002)
    assert other != first
    assert give(watch, files, 4, uid=1001) == first
    assert give(watch, files, 5, uid=1002) == other


def test_so_many_users_have_a_runner_that_waits_for_them(
    watch: Watch, files: AttemptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners_module, "_MAX_IDLE", 2)
    used = [give(watch, files, number, uid=1000 + number) for number in range(1, 4)]
    assert used == [0, 1, 2]
    assert watch.channels[0].recv(1) == b"", "the one that has waited longest leaves"
    assert give(watch, files, 9, uid=1003) == 2
