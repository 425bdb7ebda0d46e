"""Shortages of a moment, by real ones: jobs wait until there is enough again, and none ends by it.

Processes are made short with the pids controller around the launcher, room on disks with small file
systems in a mount namespace of the instance's own. A disk that is full under the journal loses
nobody's jobs, and what makes room still works.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from drfd.daemon.spawn import group_for
from instance import CONFIG, Instance, Sheltered, as_root, children_of, made_shelters, wait_for
from kernel import Kernel, is_removed

pytestmark = [pytest.mark.system, pytest.mark.anew]

SMALL = ("-c", "0.1", "-m", "64M", "-e", "/dev/null")
QUIET = (*SMALL, "-o", "/dev/null")


@pytest.fixture
def small_disks() -> Iterator[Instance]:
    """Its attempt files, and the directory `full`, are on file systems with room for few files."""
    instance = Instance(CONFIG)
    attempts, full = instance.state / "launcher" / "attempts", instance.work / "full"
    mounts = (
        f"umask 022; mkdir -p -m 711 {attempts}; chmod 700 {attempts}; mkdir {full}; "
        f"mount -t tmpfs -o nr_inodes=8,mode=700 none {attempts}; "
        f'mount -t tmpfs -o nr_inodes=2,mode=777 none {full}; exec "$@"'
    )
    instance.before = ["unshare", "-m", "--propagation", "private", "sh", "-c", mounts, "sh"]
    try:
        yield instance.start()
    finally:
        instance.destroy()


def inside(instance: Instance, path: Path) -> Path:
    """The path as the instance has it, in its own mount namespace."""
    return Path(f"/proc/{instance.launcher_pid()}/root{path}")


def fill(place: Path) -> list[Path]:
    """Use up all files that there can be."""
    made: list[Path] = []
    while True:
        try:
            (place / f"filler{len(made)}").touch()
        except OSError:
            return made
        made.append(place / f"filler{len(made)}")


@contextmanager
def no_new_processes(instance: Instance) -> Iterator[None]:
    """While it lasts, neither the launcher nor its runners can fork, nor into a cgroup of jobs."""
    tops = [top / "pids.max" for top in Kernel().groups(group_for(instance.state))]
    bounds = {top: top.read_text() for top in tops if Kernel().v2 is not None and top.exists()}
    kernel, launcher = Kernel(), instance.launcher_pid()
    home = kernel.cgroup(launcher, "pids")
    cage = kernel.top("pids") / f"drfd-test-{os.getpid()}"
    cage.mkdir()
    try:
        for pid in [launcher, *children_of(launcher)]:
            # Another is the one that keeps the service alive in which jobs are by version 2.
            if kernel.cgroup(pid, "pids") == home:
                (cage / "cgroup.procs").write_text(str(pid))
        (cage / "pids.max").write_text("1")
        for top in bounds:
            top.write_text("0")
        yield
    finally:
        for top, bound in bounds.items():
            with suppress(FileNotFoundError):
                top.write_text(bound)
        for pid in (cage / "cgroup.procs").read_text().split():
            # It may be about to end, as the launcher does after the daemon.
            with suppress(ProcessLookupError):
                (home / "cgroup.procs").write_text(pid)
        wait_for("an empty cage", lambda: is_removed(cage))


def events(instance: Instance, job_id: int) -> list[str]:
    return [event["event"] for event in instance.show(job_id)["events"]]


def wait_short(instance: Instance, job_id: int) -> str:
    """The words of the reason, once the job is PENDING for want of something."""

    def is_short() -> dict[str, Any] | None:
        job = instance.show(job_id)
        reason = job["reason"]
        is_it = job["state"] == "PENDING" and reason and reason["code"] == "MACHINE_SHORT"
        return reason if is_it else None

    found = wait_for("a shortage", is_short, show=lambda: instance.show(job_id))
    return str(found["text"])


def all_completed(instance: Instance, ids: list[int]) -> None:
    for job_id in ids:
        job = instance.wait_end(job_id, seconds=120)
        assert (job["state"], job["exit_code"]) == ("COMPLETED", 0), job["outcome"]
        assert "LaunchFailed" not in events(instance, job_id)


def test_jobs_wait_while_no_process_can_be_forked_and_then_all_complete(instance, users):
    """Each job that was launched meanwhile ended as LAUNCH_FAILED: the queue burned."""
    bob = users[1].pw_uid
    with no_new_processes(instance):
        ids = [instance.submit(*QUIET, "--", "true", user=bob) for _ in range(6)]
        text = wait_short(instance, ids[0])
        assert "the machine is short of processes" in text
        assert "a launch is tried again at" in text
        for job_id in ids:
            wait_short(instance, job_id)
        told = wait_for(
            "a second try",
            lambda: re.search(r"after (\d+) tries in vain", wait_short(instance, ids[0])),
        )
        # While it is launched again it has no reason.
        wait_for("the words", lambda: "short of processes" in instance.drf("why", ids[5]).stdout)
        instance.drf("cancel", ids[5])
        assert instance.wait_end(ids[5])["state"] == "CANCELLED"
        tried = sum(events(instance, job_id).count("Admitted") for job_id in ids)
        # After longer and longer pauses.
        assert tried < 30
        assert 2 <= int(told[1]) <= tried
    all_completed(instance, ids[:5])
    assert instance.cgroups() == []


def test_jobs_wait_without_room_for_attempt_files(small_disks, users):
    instance, bob = small_disks, users[1].pw_uid
    fillers = fill(inside(instance, instance.state / "launcher" / "attempts"))
    assert fillers
    ids = [instance.submit(*QUIET, "--", "true", user=bob) for _ in range(3)]
    assert "the machine is short of room on a disk" in wait_short(instance, ids[0])
    for filler in fillers:
        filler.unlink()
    all_completed(instance, ids)


def test_a_job_waits_alone_for_room_for_its_output(small_disks, users):
    instance, bob = small_disks, users[1].pw_uid
    (filler,) = fill(inside(instance, instance.work / "full"))
    waits = instance.submit(*SMALL, "-o", "full/out", "--", "echo", "fine", user=bob)
    text = wait_short(instance, waits)
    assert "the disk is full (ENOSPC)" in text
    assert "full/out" not in text, "everybody may read it"
    others = [
        instance.submit(*QUIET, "--", "true", user=user.pw_uid) for user in users for _ in range(2)
    ]
    all_completed(instance, others)
    assert instance.show(waits)["state"] in ("PENDING", "STARTING", "CLEANING")
    filler.unlink()
    all_completed(instance, [waits])
    assert (inside(instance, instance.work / "full" / "out")).read_text() == "fine\n"


def test_only_the_first_run_empties_the_output(instance, users):
    """An attempt that was put off counted as the first one, so old output was kept."""
    home = instance.home_for(users[1])
    (home / "out").write_text("old\n")
    os.chown(home / "out", users[1].pw_uid, users[1].pw_gid)
    with no_new_processes(instance):
        job_id = instance.submit(
            *SMALL, "-o", "out", "--", "echo", "new", user=users[1].pw_uid, cwd=home
        )
        wait_short(instance, job_id)
    all_completed(instance, [job_id])
    assert (home / "out").read_text() == "new\n"


#: One user may have no more than 60 processes and threads, all jobs together no more than 100.
BOUND = f"{CONFIG}processes_total = 100\nprocesses_per_user = 60\n"
#: As many sleeping children as can be had, then word of their number; they end with the job.
HOG = """
import os, sys, time
count = 0
try:
    while count < 5000:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        count += 1
except BlockingIOError:
    pass
print(count, flush=True)
time.sleep(600)
"""


def hog(instance: Instance, user: pwd.struct_passwd) -> tuple[int, int]:
    """A job with as many processes as it can get: its id, and how many these are."""
    home = instance.home_for(user)
    job_id = instance.submit(
        *("-c", "0.1", "-m", "300M", "-o", "%j", "-e", "%j"),
        *("--", "/usr/bin/python3", "-c", HOG),
        user=user.pw_uid,
        cwd=home,
    )
    out = home / str(job_id)
    count = wait_for("all its processes", lambda: out.exists() and out.read_text())
    return job_id, int(count)


def test_processes_of_one_user_keep_nobody_elses_jobs_back(lend, users):
    """Three jobs of one user took all processes of the kernel: others' launches failed."""
    instance = lend(BOUND)
    alice, bob = users
    hogs = [hog(instance, alice)]
    assert hogs[0][1] in range(40, 61)
    # The kernel lets one more become the user's before it says that there are too many.
    instance.running(*QUIET, "--", "sleep", "600", user=alice.pw_uid)
    waits = instance.submit(*QUIET, "--", "true", user=alice.pw_uid)
    text = wait_short(instance, waits)
    assert "its user has as many processes as allowed (EAGAIN)" in text
    assert "enforcement.processes_per_user" in text
    others = [
        instance.submit(*QUIET, "--", "sh", "-c", "true; true", user=bob.pw_uid) for _ in range(6)
    ]
    all_completed(instance, others)
    assert instance.show(waits)["state"] != "COMPLETED"
    instance.drf("cancel", hogs[0][0])
    all_completed(instance, [waits])


def test_all_jobs_together_have_no_more_processes_than_said(lend, users):
    instance = lend(f"{CONFIG}processes_total = 50\nprocesses_per_user = 50\n")
    (alice, bob), found = users, []
    for user in (alice, bob, alice):
        if sum(found) < 45:
            found.append(hog(instance, user)[1])
    assert sum(found) + len(found) <= 50
    doctor = instance._ask("doctor")
    assert doctor["processes"] == {"total": 50, "per_user": 50}
    last = instance.submit(*QUIET, "--", "true", user=bob.pw_uid)
    # It has one process, which the bound does not keep out; more it could not have.
    all_completed(instance, [last])


# -- a disk that is full under the journal ----------------------------------------------------

DISKS = {
    "tmpfs": "mount -t tmpfs -o size=100m,mode=755 tmpfs $STATE",
    "ext4": "truncate -s 100M $STATE.img; mkfs.ext4 -q $STATE.img; "
    "mount -o loop $STATE.img $STATE; chmod 755 $STATE",
}


@pytest.fixture
def shelter():
    with made_shelters() as make:
        yield make


@pytest.fixture(params=DISKS)
def full(request, shelter) -> Sheltered:
    if request.param == "ext4" and not _has_loop():
        pytest.skip("no loop device here")
    return shelter(DISKS[request.param])


def _has_loop() -> bool:
    if shutil.which("mkfs.ext4") is None:
        return False
    return subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode == 0


def fill_up(instance: Sheltered) -> Path:
    """To the last block."""
    filler = in_state(instance, "filler")
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with pytest.raises(OSError, match="No space"):
                while True:
                    file.write(b"x" * size)
        os.fsync(file.fileno())
    return filler


def in_state(instance: Sheltered, *names: str) -> Path:
    return instance.inside.joinpath(str(instance.state).lstrip("/"), *names)


def reserve_bytes(instance: Sheltered) -> int:
    """Its length is set when all its blocks are there."""
    try:
        status = in_state(instance, "controller", "journal.reserve").stat()
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if status.st_size else 0


@as_root
def test_on_a_full_disk_ends_are_kept_and_cancelling_works_and_the_daemon_starts(full, users):
    """Waiting jobs ended, root could not cancel, and a stopped daemon did not start."""
    instance = full
    alice, bob = (user.pw_uid for user in users)
    instance.start()
    whole = wait_for("the reserve", lambda: reserve_bytes(instance))
    gate = f"while ! [ -e {instance.work}/gate ]; do sleep 0.05; done; exit 5"
    running = instance.submit(*QUIET, "--", "sh", "-c", gate, user=bob, cwd="/")
    mine, theirs, kept = (
        instance.submit(*QUIET, "--hold", "--", "sh", "-c", "exit 6", user=bob, cwd="/")
        for _ in range(3)
    )
    later = ("--begin", "now+5s", "--", "sh", "-c", "exit 7")
    due = instance.submit(*QUIET, *later, user=bob, cwd="/")
    instance.wait_state(running, "RUNNING")
    filler = fill_up(instance)

    def is_told() -> bool:
        """It looks at its disk every half second."""
        done = instance.drf("status", user=alice, cwd="/")
        return "the disk of " in done.stderr

    wait_for("a word about the disk", is_told)
    for words in (
        ("submit", *QUIET, "--", "true"),
        ("hold", mine),
        ("set", mine, "--priority", "1"),
    ):
        refused = instance.drf(*words, user=bob, cwd="/", check=False)
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 1, line
        assert "free, and the last 2" in line and "reserve_disk under [limits]" in line
    # More than the reserve's first piece could hold, so that pieces follow.
    for job_id, user in ((mine, bob), (theirs, None)):
        instance.drf("cancel", job_id, user=user, cwd="/")
        assert instance.show(job_id)["state"] == "CANCELLED"
    (instance.work / "gate").touch()
    assert instance.wait_end(running)["exit_code"] == 5
    noisy = instance.submit(*QUIET, "--hold", "--", "true")
    for priority in range(60):
        instance._ask("set", select={"ids": [noisy]}, priority=priority)
    assert "reserve-given-up" in instance.log.read_text()
    assert reserve_bytes(instance) < whole
    doctor = instance.drf("doctor").stdout
    assert "the room for the ends of jobs on a full disk" in doctor

    instance.strike("controller")
    assert instance.show(kept)["state"] == "HELD"
    assert instance.show(running)["exit_code"] == 5
    instance.drf("cancel", noisy)

    filler.unlink()
    wait_for("the reserve, made again", lambda: reserve_bytes(instance) >= whole)
    wait_for("no word about the disk", lambda: not is_told())
    instance.drf("release", kept, user=bob, cwd="/")
    assert instance.wait_end(kept)["exit_code"] == 6
    assert instance.wait_end(due)["exit_code"] == 7, "its time came on the full disk"
    last = instance.submit(*QUIET, "--", "true", user=bob, cwd="/")
    assert instance.wait_end(last)["state"] == "COMPLETED"
    assert not is_told()


@as_root
def test_a_daemon_that_died_on_a_disk_full_to_the_last_block_starts(shelter):
    """Its log cannot go into the journal's file, nor can the file beside it be made."""
    instance = shelter(DISKS["tmpfs"]).start()
    wait_for("the reserve", lambda: reserve_bytes(instance))
    kept = instance.submit(*QUIET, "--hold", "--", "sh", "-c", "exit 6")
    instance.kill()
    filler = fill_up(instance)
    # Whoever looked into the journal may have taken these away.
    in_state(instance, "controller", "journal.sqlite-shm").unlink(missing_ok=True)
    with filler.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x")
    instance.start()
    assert instance.show(kept)["state"] == "HELD"
    instance.drf("cancel", kept)
    assert "reserve-given-up" in instance.log.read_text()
