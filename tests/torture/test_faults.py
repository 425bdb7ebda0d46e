"""A machine that says no: real faults, in mount namespaces of our own and by limits of our own
processes. One clear line says what is wrong, nothing that was accepted is lost, and all goes on
when the fault has gone.

The daemons live in a namespace that a sleeping process keeps, so that they find their state again
when they are started again. Nothing of the machine's own is changed. When memory, processes or
descriptors run out while jobs are submitted, launched and ended, no job is lost or run twice.
"""

import itertools
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import DrfdError, HostError, Unavailable
from instance import (
    ROOMY,
    Instance,
    as_root,
    children_of,
    cpu_s,
    made_shelters,
    parent_of,
    resident_bytes,
    wait_for,
)
from kernel import Kernel
from torture.victims import Victim

SMALL = ("-c", "0.1", "-m", "64M")


@pytest.fixture
def shelter():
    with made_shelters() as make:
        yield make


def until_gate(instance: Instance, code: int) -> str:
    return f"while ! [ -e {instance.work}/gate ]; do sleep 0.05; done; exit {code}"


# -- mounts of users ----------------------------------------------------------------------------


@as_root
def test_a_mount_whose_name_is_no_text_keeps_no_daemon_back(shelter):
    """With FUSE every user may make one; Python takes some of these characters for line ends."""
    odd = """dir=$(printf "$STATE/odd\\377\\013\\015\\302\\205x - cgroup")"""
    instance = shelter(f'{odd}; mkdir "$dir"; mount -t tmpfs tmpfs "$dir"').start()
    job = instance.submit(*SMALL, "--", "sh", "-c", "exit 7")
    instance.wait_state(job, "FAILED")
    assert "cgroup" in instance.drf("doctor").stdout


# -- the disk is full, or may not be written -----------------------------------------------------


def fill(place: Path) -> Path:
    """The file system at this place, with one file."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    return filler


@as_root
def test_a_disk_full_when_the_log_goes_into_the_journal_loses_nothing(shelter):
    """The log has room from earlier; its pages have none in the file, nor at the next start, which
    writes nothing."""
    instance = shelter("mount -t tmpfs -o size=16m,mode=755 tmpfs $STATE").start()
    accepted: dict[str, int] = {}

    def submit(name: str) -> None:
        env = {"PATH": os.environ["PATH"], "LARGE": name.ljust(120_000, "x")}
        request = {"argv": ["sh", "-c", "exit 3"], "cwd": str(instance.work), "env": env}
        request |= {"name": name, "key": name, "held": True}
        accepted[name] = int(instance._ask("submit", **request)["id"])

    journal = instance.inside / str(instance.state).lstrip("/") / "controller" / "journal.sqlite"
    before = journal.stat().st_size
    for number in itertools.count():
        submit(f"early{number}")
        if journal.stat().st_size > before + (2 << 20):
            break
    filler = fill(journal.parent.parent)
    log = journal.with_name(f"{journal.name}-wal").stat().st_size
    with pytest.raises(HostError, match="full") as refusal:
        for number in itertools.count():
            submit(f"late{number}")
    assert "free space" in str(refusal.value) and "\n" not in str(refusal.value)
    assert "late0" in accepted and log > 1 << 20
    assert journal.with_name("journal.reserve").stat().st_size == 0, "that was used up, too"
    instance.kill()
    instance.start()
    for name, job_id in accepted.items():
        job = instance.show(job_id)
        assert (job["name"], job["state"]) == (name, "HELD")
    with pytest.raises(HostError, match="full"):
        submit("later")
    filler.unlink()
    last = accepted["late0"]
    instance.drf("release", last)
    assert instance.wait_end(last)["exit_code"] == 3


@as_root
def test_a_read_only_state_directory_is_one_line_and_left_alone(shelter):
    instance = shelter("mount -t tmpfs -o size=3m,mode=755 tmpfs $STATE").start()
    job_id = instance.submit(*SMALL, "--hold", "--", "sh", "-c", "exit 6")
    instance.stop_with_launcher()
    # Other processes of the launcher's may have its files open for a moment longer.
    wait_for("the remount", lambda: instance.can("mount", "-o", "remount,ro", str(instance.state)))
    instance.log.write_text("")
    instance.launch()
    wait_for("its end", instance.is_dead)
    assert instance.process is not None and instance.process.returncode not in (0, 70)
    (line,) = [line for line in instance.log.read_text().splitlines() if "warning" not in line]
    assert "Read-only file system" in line and str(instance.state) in line
    instance.within("mount", "-o", "remount,rw", str(instance.state))
    instance.start()
    instance.drf("release", job_id)
    assert instance.wait_end(job_id)["exit_code"] == 6


# -- too few descriptors, too few processes ------------------------------------------------------


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def limited(pid: int, what: int, soft: int) -> Iterator[None]:
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))
    try:
        yield
    finally:
        try:
            resource.prlimit(pid, what, before)
        except ProcessLookupError:
            pass


def test_a_controller_without_descriptors_answers_again_when_it_has_some(make_instance):
    """Clients wait in line meanwhile; whoever is connected is served, and jobs end as they do."""
    instance = make_instance(ROOMY)
    # To look for an armed failpoint takes a descriptor.
    instance.has_failpoints = False
    instance.start()
    job_id = instance.running(*SMALL, "--", "sh", "-c", until_gate(instance, 5))["id"]
    assert instance.process is not None
    pid = instance.process.pid
    with socket.socket(socket.AF_UNIX) as early:
        early.settimeout(60)
        early.connect(str(instance.socket))
        early.sendall(b'{"op":"hello","v":1}\n')
        assert early.recv(4096).startswith(b'{"ok":true')
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(6)]
        try:
            with limited(pid, resource.RLIMIT_NOFILE, descriptors(pid)):
                for each in crowd:
                    each.connect(str(instance.socket))
                (instance.work / "gate").touch()
                time.sleep(2)
                early.sendall(b'{"op":"hello","v":1}\n')
                assert early.recv(4096).startswith(b'{"ok":true')
        finally:
            for each in crowd:
                each.close()
    assert instance.wait_end(job_id)["exit_code"] == 5
    assert instance.ended(*SMALL, "--", "true")["state"] == "COMPLETED"
    assert not instance.is_dead()
    said = [line for line in instance.log.read_text().splitlines() if "Too many open files" in line]
    assert 1 <= len(said) <= 2 and all("event=" in line for line in said)


def test_a_launcher_without_descriptors_starts_none_by_halves(make_instance):
    """Some ended as LAUNCH_FAILED: now each waits until there are descriptors, and runs once."""
    instance = make_instance(ROOMY)
    instance.has_failpoints = False
    instance.start()
    old = instance.running(*SMALL, "--", "sh", "-c", until_gate(instance, 5))["id"]
    launcher = instance.launcher_pid()
    ends = []
    with limited(launcher, resource.RLIMIT_NOFILE, descriptors(launcher) + 2):
        for number in range(4):
            job_id = instance.submit(*SMALL, "--", "sh", "-c", f"echo x >> ran-{number}; exit 3")
            ends.append((number, job_id))
        time.sleep(2)
    jobs = [(number, instance.wait_end(job_id)) for number, job_id in ends]
    for number, job in jobs:
        ran = instance.work / f"ran-{number}"
        runs = len(ran.read_text().split()) if ran.exists() else 0
        assert (job["state"], job["exit_code"], runs) == ("FAILED", 3, 1), job
    (instance.work / "gate").touch()
    assert instance.wait_end(old)["exit_code"] == 5
    last = instance.submit(*SMALL, "--", "sh", "-c", "exit 4")
    assert instance.wait_end(last)["exit_code"] == 4
    assert instance.cgroups() == []


# -- cgroups that cannot be removed, are frozen, or are not there --------------------------------


@as_root
def test_a_job_that_cannot_be_killed_is_a_state_and_no_loop(make_instance):
    """Frozen from above by somebody else, it survives SIGKILL, as one that waits for a disk may."""
    freezer = Kernel().v1.get("freezer")
    if freezer is None:
        pytest.skip("on cgroup v2 what is frozen can be killed")
    instance = make_instance(ROOMY).start()
    job_id = instance.running(*SMALL, "--", "sleep", "1000")["id"]
    place = next(Path(each) for each in instance.cgroups() if each.startswith(freezer))
    above = place.parent / "freezer.state"
    launcher = instance.launcher_pid()
    above.write_text("FROZEN")
    try:
        instance.drf("cancel", job_id)

        def is_stuck() -> bool:
            return job_id in instance._ask("doctor")["stuck_jobs"]

        wait_for("doctor's word", is_stuck)
        assert instance.show(job_id)["state"] in ("STOPPING", "CLEANING")
        spent = cpu_s(launcher)
        time.sleep(3)
        assert cpu_s(launcher) - spent < 1.5, "it is tried now and then, and not all the time"
        other = instance.submit(*SMALL, "--hold", "--", "true")
        instance.drf("cancel", other)
    finally:
        above.write_text("THAWED")
    assert instance.wait_end(job_id)["state"] == "CANCELLED"
    assert instance._ask("doctor")["stuck_jobs"] == []


@as_root
@pytest.mark.skipif("blkio" not in Kernel().v1, reason="with cgroup v2 there is one hierarchy")
def test_a_controller_not_mounted_is_told_and_all_else_enforced(shelter):
    mount = Kernel().v1["blkio"]
    instance = shelter(f"umount {mount}").start()
    doctor = instance._ask("doctor")
    assert doctor["controls"]["memory"] == "enforced"
    assert not doctor["controls"]["read"].startswith("enforced")
    eater = "x = bytearray(200 << 20)"
    job_id = instance.submit("-c", "0.1", "-m", "50M", "--", sys.executable, "-c", eater)
    assert instance.wait_end(job_id)["state"] == "OUT_OF_MEMORY"


# -- shortages while jobs are submitted, launched and ended -----------------------------------

# By prlimit(2) on processes that the test has started: a limit of address space makes the next
# allocation fail, as a machine does that promises no more memory than it has. A process that cannot
# go on without memory dies, and its successor takes over.

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
    return limited(pid, resource.RLIMIT_AS, resident_bytes(pid, "VmSize") + more_bytes)


def give_memory(pid: int) -> None:
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
        resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
    except ProcessLookupError:
        return


@contextmanager
def without_new_processes(pid: int) -> Iterator[None]:
    """While it lasts, the process starts nothing."""
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
def test_a_controller_without_memory_refuses_or_dies_losing_none(victim, room):
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


def test_a_controller_that_may_start_no_thread_answers_all_the_same(victim):
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
def test_a_launcher_without_memory_launches_each_job_once_or_its_successor_does(victim, room):
    """A request is in a file of its own, so a large one needs no more memory."""
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


def test_a_supervisor_that_may_start_no_launcher_starts_one_when_it_may(victim):
    old = start_gated(victim, 5)
    launcher = victim.launcher_pid()
    supervisor = parent_of(launcher)
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
def test_a_runner_keeps_a_jobs_end_until_it_can_be_written(victim, what):
    """Nobody else knows it. The job was let go, so it must not count as one that was not."""
    job_id = victim.submit_job("n", "echo x >> ran-n; " + until_gate(victim, 5))
    victim.await_state(job_id, "RUNNING")
    runner = runner_of(victim, job_id)
    limit, given = SHORTAGES[what]
    with limited(runner, limit, given(victim, job_id)):
        (victim.work / "gate").touch()
        if what in ("memory", "descriptors"):
            # It needs none that it has not had before.
            assert end(victim, job_id)["exit_code"] == 5
        else:
            wait_for("the end of the job's process", lambda: not children_of(runner))
            time.sleep(1)
            assert victim.state_of(job_id) == "RUNNING"
    job = end(victim, job_id)
    said_of_it = (job, victim.tail())
    assert (job["state"], job["exit_code"], runs(victim, "n")) == ("FAILED", 5, 1), said_of_it
    victim.check_at_rest()
