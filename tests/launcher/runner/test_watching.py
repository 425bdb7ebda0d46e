"""The runners that live: watched until they are gone, and found again by the next launcher."""

import errno
import os
import selectors
from collections.abc import Iterator

import pytest

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.interface import Prepared
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner.runner import Runner, Runners
from drfd.launcher.runner.starter.plan import JobStart, Plans
from drfd.launcher.runner.starter.program import Starter, open_starter
from drfd.launcher.system import process
from drfd.linux.sealed import seal
from launcher.rig import WAIT_S, AttemptFiles, found, lives, shell

KEY = (1, 1)
CREATED = {"boot_id": process.boot_id(), "cgroup": None}
PLANS = Plans(Unconfined("a test"), 0)


class Watch:
    """The runners of a launcher, and what it hears of them."""

    def __init__(self, files: AttemptFiles) -> None:
        self.files = files
        self.gone: list[Key] = []
        self.selector = selectors.DefaultSelector()
        self.runners = Runners(files.fd, self.selector, self.on_gone, Starter(-1), PLANS)

    def find(self) -> Runner | None:
        return self.runners.find(KEY, attempt_files.read(self.files.fd, KEY))

    def on_gone(self, key: Key, is_cleared: bool) -> None:
        self.gone.append(key)

    def hear(self) -> list[Key]:
        """One round of the launcher's loop."""
        for chosen, _ in self.selector.select(WAIT_S):
            chosen.data()
        return self.gone

    def close(self) -> None:
        for chosen in list(self.selector.get_map().values()):
            os.close(int(chosen.fd))
        self.selector.close()


@pytest.fixture
def watch(files) -> Iterator[Watch]:
    watch = Watch(files)
    yield watch
    watch.close()


def attempt_file(files: AttemptFiles, **runner: int | None) -> int:
    """An attempt file that is locked by us, with this runner on record if any."""
    fd = attempt_files.create(files.fd, KEY, CREATED)
    if runner:
        attempt_files.append(fd, "runner", runner)
    return fd


def test_a_runner_is_watched_until_it_is_gone_and_then_reaped(start, files, watch):
    """Or the launcher would collect one zombie for each job."""
    runner = start("sleep", "60")
    me = {"pid": runner.pid, "start_ticks": process.start_ticks(runner.pid)}
    fd = attempt_file(files, **me)
    found = watch.find()
    assert found is not None
    assert (found.pid, watch.runners.count) == (runner.pid, 1)
    (pidfd,) = watch.selector.get_map()
    assert pidfd == found.pidfd
    runner.kill()
    assert watch.hear() == [KEY]
    assert watch.runners.count == 0
    assert dict(watch.selector.get_map()) == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(int(pidfd))
    with pytest.raises(ChildProcessError):
        os.waitpid(runner.pid, 0)
    os.close(fd)


def test_a_runner_that_cannot_be_watched_is_ended(driver, files, watch, work, monkeypatch):
    """Its job is reported as not started, and would be started once more."""
    asked = shell("sleep 60", cwd=work)
    assignment = Assignment(asked.order, seal(asked.data))
    who = found(os.getuid(), asked.order.user)
    job = JobStart(assignment, *who, None)
    starter = open_starter(driver.starter)
    fd, bell = attempt_file(files), os.open(os.devnull, os.O_WRONLY)
    runners = Runners(files.fd, watch.selector, watch.on_gone, starter, PLANS, bell)
    pids: list[int] = []

    def fail(pid: int) -> int:
        pids.append(pid)
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        runners.start(job, Prepared(), fd)
    assert runners.count == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(*pids, 0)
    assignment.close()
    for each in (fd, bell, starter.program_fd):
        os.close(each)


def test_a_pid_that_somebody_else_has_now_is_not_the_runner(start, files, watch):
    """The lock is held by a child of the runner that was killed, say."""
    other = start("sleep", "60")
    fd = attempt_file(files, pid=other.pid, start_ticks=1)
    assert watch.find() is None
    assert lives(other.pid)
    # Not ours: the fixture must not end it as a runner of this attempt.
    attempt_files.remove(files.fd, KEY)
    os.close(fd)


def test_a_runner_counts_as_alive_however_late_it_writes_its_pid(start, files, watch):
    """It has the lock, and may be stopped: a second runner would let the job go once more."""
    runner = start("sleep", "60")
    fd = attempt_file(files)
    for _ in range(3):
        assert watch.find() == Runner()
    me = {"pid": runner.pid, "start_ticks": process.start_ticks(runner.pid)}
    attempt_files.append(fd, "runner", me)
    found = watch.find()
    assert found is not None
    assert found.pid == runner.pid
    assert watch.gone == []
    runner.kill()
    assert watch.hear() == [KEY]
    os.close(fd)


def test_a_runner_that_dies_before_it_has_written_its_pid_is_seen_to_be_gone(files, watch):
    fd = attempt_file(files)
    assert watch.find() == Runner()
    os.close(fd)
    assert watch.find() is None
    assert watch.gone == []
