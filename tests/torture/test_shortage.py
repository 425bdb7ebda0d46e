"""Memory, processes and descriptors run out while jobs are submitted, launched and ended: no job is
lost or run twice, one line says what is wrong, and all goes on when there is enough again.

By prlimit(2) on processes that the test has started: a limit of address space makes the next
allocation fail, as a machine does that promises no more memory than it has. A process that cannot
go on without memory dies, and its successor takes over.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import DrfdError, HostError, Unavailable
from instance import wait_for
from kernel import Kernel
from torture.test_faults import ROOMY, limited, until_gate
from torture.victims import Victim

IS_ROOT = os.geteuid() == 0
KIB = 1 << 10


@pytest.fixture
def victim() -> Iterator[Victim]:
    made = Victim(ROOMY)
    # To look for an armed failpoint takes a descriptor.
    made.has_failpoints = False
    try:
        made.start()
        yield made
    finally:
        made.destroy()


def with_memory_for(pid: int, more_bytes: int) -> AbstractContextManager[None]:
    """A block in which the process may have so much more than now."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmSize" in line
    ]
    return limited(pid, resource.RLIMIT_AS, int(line.split()[1]) * KIB + more_bytes)


def give_memory(pid: int) -> None:
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
        resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
    except ProcessLookupError:
        return


@contextmanager
def without_new_processes(pid: int) -> Iterator[None]:
    """While it lasts, the process can start neither a process nor a thread."""
    if not IS_ROOT:
        with limited(pid, resource.RLIMIT_NPROC, 0):
            yield
        return
    top = Kernel().v1.get("pids")
    if top is None:
        pytest.skip("root is limited with the pids controller of cgroup v1")
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    home = Path(top, next(line.split(":/", 1)[1] for line in lines if ":pids:" in line))
    cage = Path(top, f"drfd-test-{os.getpid()}")
    cage.mkdir()
    try:
        (cage / "cgroup.procs").write_text(str(pid))
        (cage / "pids.max").write_text((cage / "pids.current").read_text())
        yield
    finally:
        # What was started in there before, or by somebody who still might, goes back with it.
        for each in (cage / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(each)
        cage.rmdir()


def start_gated(victim: Victim, code: int) -> int:
    """A job that runs until there is a file `gate`, and then ends with this code."""
    job_id = victim.submit_job("old", until_gate(victim, code))
    victim.await_state(job_id, "RUNNING")
    return job_id


def runner_of(victim: Victim, job_id: int) -> int:
    pid = victim.runner_of(job_id)
    assert pid is not None
    return pid


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def end(victim: Victim, job_id: int) -> dict[str, Any]:
    victim.await_state(job_id, "COMPLETED", "FAILED", "LAUNCH_FAILED", "LOST", "CANCELLED")
    return dict(victim.ask("show", id=job_id)["job"])


def runs(victim: Victim, name: str) -> int:
    ran = victim.work / f"ran-{name}"
    return len(ran.read_text().split()) if ran.exists() else 0


def lines_about(victim: Victim, word: str) -> list[str]:
    return [line for line in victim.log.read_text().splitlines() if word in line]


# -- the controller ------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 300 * KIB, 900 * KIB])
def test_a_controller_without_memory_refuses_or_dies_and_loses_nothing(
    victim: Victim, room: int
) -> None:
    """Whoever heard no id asks again, by the same key: each job is there once, and runs once."""
    old = start_gated(victim, 5)
    assert victim.process is not None
    trials: dict[str, DrfdError | int] = {}
    with with_memory_for(victim.process.pid, room):
        for number in range(6):
            name = f"n{number}"
            request = large_request(victim, name)
            try:
                trials[name] = int(victim._ask("submit", **request)["id"])
            except DrfdError as error:
                trials[name] = error
        (victim.work / "gate").touch()
        time.sleep(1)
    refusals = [each for each in trials.values() if isinstance(each, DrfdError)]
    assert refusals or room, "there was memory enough"
    for refusal in refusals:
        assert isinstance(refusal, Unavailable | HostError)
        assert refusal.code in ("memory", "lost", "no-daemon") and "\n" not in str(refusal)
    for name, before in trials.items():
        job_id = int(victim.ask("submit", **large_request(victim, name))["id"])
        assert isinstance(before, DrfdError) or before == job_id
        job = end(victim, job_id)
        assert (job["state"], job["exit_code"], runs(victim, name)) == ("FAILED", 3, 1)
    assert end(victim, old)["exit_code"] == 5
    assert lines_about(victim, "event=bug") == []
    victim.check_at_rest()


def large_request(victim: Victim, name: str) -> dict[str, Any]:
    env = {"PATH": os.environ["PATH"], "LARGE": name * 60_000}
    demand = {"cores_milli": 100, "memory_bytes": 64 << 20}
    argv = ["sh", "-c", f"echo x >> ran-{name}; exit 3"]
    request = {"argv": argv, "cwd": str(victim.work), "name": name, "env": env, "key": name}
    return {**request, "demand": demand}


def test_a_controller_that_may_start_no_thread_answers_all_the_same(victim: Victim) -> None:
    """What is asked beside the loop has its threads from the start."""
    old = start_gated(victim, 5)
    waiting = victim.submit_job("waiting", "exit 0", demand={"cores_milli": 49_950})
    assert victim.process is not None
    with without_new_processes(victim.process.pid):
        for _ in range(3):
            assert victim._ask("why", id=waiting)["job"]["reason"]["code"] == "RESOURCES"
            assert victim._ask("history", limit=1)["jobs"] == []
            # A round of looking at all that runs takes threads, too.
            time.sleep(1)
        assert not victim.is_dead()
        (victim.work / "gate").touch()
        assert end(victim, old)["exit_code"] == 5
    assert end(victim, waiting)["state"] == "COMPLETED"
    assert lines_about(victim, "start new thread") == []


# -- the launcher --------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 100 * KIB, 800 * KIB])
def test_a_launcher_without_memory_launches_each_job_once_or_its_successor_does(
    victim: Victim, room: int
) -> None:
    """What a request says is in a file of its own, so that a launcher may well need no more memory
    for a large one than it has."""
    old = start_gated(victim, 5)
    launcher = victim.launcher_pid()
    ids = {}
    with with_memory_for(launcher, room):
        for number in range(6):
            name = f"n{number}"
            ids[name] = int(victim.ask("submit", **large_request(victim, name))["id"])
        (victim.work / "gate").touch()
        time.sleep(1)
    # Runners have it from the launcher that started them.
    for pid in victim.everything():
        give_memory(pid)
    for name, job_id in ids.items():
        job = end(victim, job_id)
        found, said = (job["state"], job["exit_code"], runs(victim, name)), (job, victim.tail())
        assert found == ("FAILED", 3, 1), said
    assert end(victim, old)["exit_code"] == 5
    assert lines_about(victim, "Traceback") == []
    died = len(lines_about(victim, "event=launcher-died"))
    assert len(lines_about(victim, "drfd-launcher: out of memory")) == died
    victim.check_at_rest()


def test_a_supervisor_that_may_start_no_launcher_starts_one_when_it_may(victim: Victim) -> None:
    old = start_gated(victim, 5)
    launcher = victim.launcher_pid()
    supervisor = int(Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[1])
    waiting = None
    with without_new_processes(supervisor):
        os.kill(launcher, signal.SIGKILL)
        said = lambda: lines_about(victim, "event=launcher-not-started")  # noqa: E731
        wait_for("its word", said, show=victim.tail)
        (victim.work / "gate").touch()
        waiting = victim.submit_job("n", "echo x >> ran-n; exit 3")
        time.sleep(2.5)
        assert not victim.is_dead() and victim.state_of(waiting) in ("PENDING", "STARTING")
        assert len(said()) == 1
    assert end(victim, old)["exit_code"] == 5
    assert (end(victim, waiting)["exit_code"], runs(victim, "n")) == (3, 1)
    victim.check_at_rest()


# -- the runner ----------------------------------------------------------------------------------


def idle_runner(victim: Victim) -> int:
    """The one that is to take the next job; skips where each job has a runner of its own."""
    launcher = victim.launcher_pid()
    (victim.work / "gate").touch()
    end(victim, victim.submit_job("first", "exit 0"))
    if not victim.has_cgroups():
        pytest.skip("without cgroups there is no runner before there is a job")
    return int(wait_for("a runner", lambda: children(launcher))[0])


def test_a_runner_that_may_not_fork_says_so_and_the_job_is_tried_again(victim: Victim) -> None:
    """The job ended as LAUNCH_FAILED, though nothing was wrong with it."""

    def postponed() -> bool:
        told = [event["event"] for event in victim.ask("show", id=job_id)["events"]]
        return "LaunchPostponed" in told

    with without_new_processes(idle_runner(victim)):
        job_id = victim.submit_job("n", "echo x >> ran-n; exit 3")
        wait_for("word of the shortage", postponed, show=victim.tail)
    job = end(victim, job_id)
    assert (job["state"], job["exit_code"], runs(victim, "n")) == ("FAILED", 3, 1)
    last = end(victim, victim.submit_job("m", "echo x >> ran-m; exit 4"))
    assert (last["exit_code"], runs(victim, "m")) == (4, 1)
    victim.check_at_rest()


def file_size(victim: Victim, job_id: int) -> int:
    return (victim.state / "launcher" / "attempts" / f"{job_id}.1").stat().st_size


#: What a runner is short of when its job ends → the limit, and how much of it is given.
SHORTAGES: dict[str, tuple[int, Callable[[Victim, int], int]]] = {
    "memory": (resource.RLIMIT_AS, lambda victim, job_id: 0),
    "descriptors": (resource.RLIMIT_NOFILE, lambda victim, job_id: 3),
    "space": (resource.RLIMIT_FSIZE, file_size),
    "space for the whole line": (
        resource.RLIMIT_FSIZE,
        lambda victim, job_id: file_size(victim, job_id) + 40,
    ),
}


@pytest.mark.parametrize("what", SHORTAGES)
def test_a_runner_keeps_the_end_of_its_job_until_it_can_be_written_down(
    victim: Victim, what: str
) -> None:
    """Nobody else knows it. The job was let go, so it must not count as one that was not."""
    job_id = victim.submit_job("n", "echo x >> ran-n; " + until_gate(victim, 5))
    victim.await_state(job_id, "RUNNING")
    runner = runner_of(victim, job_id)
    limit, given = SHORTAGES[what]
    with limited(runner, limit, given(victim, job_id)):
        (victim.work / "gate").touch()
        if what == "memory":
            # It needs none that it has not had before.
            assert end(victim, job_id)["exit_code"] == 5
        else:
            wait_for("the end of the job's process", lambda: not children(runner))
            if what == "descriptors":
                said = lambda: lines_about(victim, "event=runner-waits")  # noqa: E731
                wait_for("its word", said, show=victim.tail)
            time.sleep(1)
            assert victim.state_of(job_id) == "RUNNING"
        if what == "descriptors":
            assert len(lines_about(victim, "event=runner-waits")) == 1
    job = end(victim, job_id)
    said_of_it = (job, victim.tail())
    assert (job["state"], job["exit_code"], runs(victim, "n")) == ("FAILED", 5, 1), said_of_it
    victim.check_at_rest()


def test_a_runner_that_waits_with_the_end_of_its_job_outlives_both_daemons(
    victim: Victim,
) -> None:
    job_id = start_gated(victim, 5)
    with limited(runner_of(victim, job_id), resource.RLIMIT_NOFILE, 3):
        (victim.work / "gate").touch()
        wait_for("its word", lambda: lines_about(victim, "event=runner-waits"), show=victim.tail)
        os.kill(victim.launcher_pid(), signal.SIGKILL)
        victim.kill()
        victim.start()
        assert victim.state_of(job_id) == "RUNNING"
    assert (end(victim, job_id)["state"], end(victim, job_id)["exit_code"]) == ("FAILED", 5)
    victim.check_at_rest()
