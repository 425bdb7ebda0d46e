"""A machine that says no: real faults, in mount namespaces of our own and by limits of our own
processes. One clear line says what is wrong, nothing that was accepted is lost, and all goes on
when the fault has gone.

The daemons live in a namespace that a sleeping process keeps, so that they find their state again
when they are started again. Nothing of the machine's own is changed.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import HostError
from instance import Instance, wait_for
from kernel import Kernel
from shelter import ROOMY, Sheltered, as_root, made_shelters

SMALL = ("-c", "0.1", "-m", "64M")


@pytest.fixture
def shelter() -> Iterator[Callable[..., Sheltered]]:
    with made_shelters() as make:
        yield make


def until_gate(instance: Instance, code: int) -> str:
    return f"while ! [ -e {instance.work}/gate ]; do sleep 0.05; done; exit {code}"


def refused(instance: Instance, *words: object) -> str:
    """The one line that says why."""
    done = instance.drf(*words, check=False)
    assert done.returncode == 1, done
    (line,) = done.stderr.splitlines()
    return line


# -- mounts of users ----------------------------------------------------------------------------


@as_root
def test_a_mount_with_a_name_that_is_no_text_keeps_no_daemon_from_starting(
    shelter: Callable[..., Sheltered],
) -> None:
    """With FUSE every user may make one; Python takes some of these characters for line ends."""
    odd = """dir=$(printf "$STATE/odd\\377\\013\\015\\302\\205x - cgroup")"""
    instance = shelter(f'{odd}; mkdir "$dir"; mount -t tmpfs tmpfs "$dir"').start()
    job = instance.submit(*SMALL, "--", "sh", "-c", "exit 7")
    instance.wait_state(job, "FAILED")
    assert "cgroup" in instance.drf("doctor").stdout


# -- the disk is full, or may not be written -----------------------------------------------------


@as_root
def test_a_full_disk_refuses_submissions_and_loses_nothing(
    shelter: Callable[..., Sheltered],
) -> None:
    instance = shelter("mount -t tmpfs -o size=3m,mode=755 tmpfs $STATE").start()
    before = instance.submit(*SMALL, "--", "sh", "-c", until_gate(instance, 7))
    waiting = instance.submit(*SMALL, "--hold", "--", "sh", "-c", "exit 8")
    instance.wait_state(before, "RUNNING")
    filler = instance.inside / str(instance.state).lstrip("/") / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)

    def is_refused() -> str | None:
        done = instance.drf("submit", *SMALL, "--", "true", check=False)
        return done.stderr if done.returncode else None

    said = wait_for("a refusal", is_refused)
    assert "cannot write the journal" in said and "full" in said and len(said.splitlines()) == 1
    assert "free space" in said
    # A job ends meanwhile: its end is kept until it can be written down.
    (instance.work / "gate").touch()
    time.sleep(2)
    assert instance.show(waiting)["state"] == "HELD"
    instance.kill()
    filler.unlink()
    instance.start()
    instance.drf("release", waiting)
    assert instance.wait_end(before)["exit_code"] == 7
    assert instance.wait_end(waiting)["exit_code"] == 8
    last = instance.submit(*SMALL, "--", "true")
    assert instance.wait_end(last)["state"] == "COMPLETED"


@as_root
def test_the_daemon_recovers_from_a_full_disk_without_a_restart(
    shelter: Callable[..., Sheltered],
) -> None:
    instance = shelter("mount -t tmpfs -o size=3m,mode=755 tmpfs $STATE").start()
    job_id = instance.submit(*SMALL, "--", "sh", "-c", until_gate(instance, 7))
    instance.wait_state(job_id, "RUNNING")
    filler = instance.inside / str(instance.state).lstrip("/") / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    refusal = lambda: instance.drf("submit", *SMALL, "--", "true", check=False).returncode  # noqa: E731
    wait_for("a refusal", refusal)
    (instance.work / "gate").touch()
    time.sleep(2)
    filler.unlink()
    job = instance.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("FAILED", 7)
    assert instance.wait_end(instance.submit(*SMALL, "--", "true"))["state"] == "COMPLETED"
    assert not instance.is_dead()


@as_root
def test_a_disk_that_is_full_when_the_log_is_to_go_into_the_journal_loses_nothing(
    shelter: Callable[..., Sheltered],
) -> None:
    """The log has room from earlier, so submissions are taken; what is in it has no place in the
    journal's file, neither while the daemon runs nor when the next one starts."""
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
    filler = journal.parent.parent / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    log = journal.with_name(f"{journal.name}-wal").stat().st_size
    with pytest.raises(HostError, match="full") as refusal:
        for number in itertools.count():
            submit(f"late{number}")
    assert "free space" in str(refusal.value) and "\n" not in str(refusal.value)
    assert "late0" in accepted and log > 1 << 20
    assert journal.with_name("journal.reserve").stat().st_size == 0, "that was used up, too"
    instance.kill()
    instance.log.write_text("")
    instance.launch()
    wait_for("its end", instance.is_dead)
    (line,) = [line for line in instance.log.read_text().splitlines() if "warning" not in line]
    assert "full" in line and "free space" in line and "journal.sqlite" in line
    filler.unlink()
    instance.start()
    for name, job_id in accepted.items():
        job = instance.show(job_id)
        assert (job["name"], job["state"]) == (name, "HELD")
    last = accepted["late0"]
    instance.drf("release", last)
    assert instance.wait_end(last)["exit_code"] == 3


@as_root
def test_a_state_directory_that_is_read_only_is_one_line_and_is_left_alone(
    shelter: Callable[..., Sheltered],
) -> None:
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


def test_a_controller_without_descriptors_answers_again_when_it_has_some(
    make_instance: Callable[..., Instance],
) -> None:
    """Clients wait in line meanwhile; whoever is connected is served, and jobs end as they do."""
    instance = make_instance(ROOMY)
    # To look for an armed failpoint takes a descriptor.
    instance.has_failpoints = False
    instance.start()
    job_id = instance.submit(*SMALL, "--", "sh", "-c", until_gate(instance, 5))
    instance.wait_state(job_id, "RUNNING")
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
    assert instance.wait_end(instance.submit(*SMALL, "--", "true"))["state"] == "COMPLETED"
    assert not instance.is_dead()
    said = [line for line in instance.log.read_text().splitlines() if "Too many open files" in line]
    assert 1 <= len(said) <= 2 and all("event=" in line for line in said)


def test_a_launcher_without_descriptors_starts_no_job_by_halves(
    make_instance: Callable[..., Instance],
) -> None:
    """Some ended as LAUNCH_FAILED: now each waits until there are descriptors, and runs once."""
    instance = make_instance(ROOMY)
    instance.has_failpoints = False
    instance.start()
    old = instance.submit(*SMALL, "--", "sh", "-c", until_gate(instance, 5))
    instance.wait_state(old, "RUNNING")
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


@as_root
def test_a_launcher_that_may_not_fork_says_so_and_goes_on(
    make_instance: Callable[..., Instance],
) -> None:
    """By a limit of processes, as a machine that is short of them or of memory has it."""
    top = Kernel().v1.get("pids")
    if top is None:
        pytest.skip("the limit is made with the pids controller of cgroup v1")
    instance = make_instance(ROOMY).start()
    launcher = instance.launcher_pid()
    before = Path(f"/proc/{launcher}/cgroup").read_text()
    home = next(line.split(":", 2)[2] for line in before.splitlines() if ":pids:" in line)
    cage = Path(top, f"drfd-test-{os.getpid()}")
    cage.mkdir()
    try:
        (cage / "cgroup.procs").write_text(str(launcher))
        (cage / "pids.max").write_text("1")
        # Some runner that is done may take one of them, and has no need to be forked.
        started = [
            instance.submit(*SMALL, "--", "sh", "-c", until_gate(instance, 4)) for _ in range(3)
        ]

        def is_short() -> dict[str, Any] | None:
            reasons = [instance.show(job_id)["reason"] for job_id in started]
            codes = (each for each in reasons if each and each["code"] == "MACHINE_SHORT")
            return next(codes, None)

        reason = wait_for("a job that cannot be launched", is_short)
        assert "processes" in reason["text"]
        (instance.work / "gate").touch()
    finally:
        Path(top, home.lstrip("/"), "cgroup.procs").write_text(str(launcher))
        cage.rmdir()
    assert instance.launcher_pid() == launcher, "it has not even died"
    ends = [instance.wait_end(job_id) for job_id in started]
    assert [(job["state"], job["exit_code"]) for job in ends] == [("FAILED", 4)] * 3
    assert instance.cgroups() == []
    assert instance.wait_end(instance.submit(*SMALL, "--", "true"))["state"] == "COMPLETED"


# -- cgroups that cannot be removed, are frozen, or are not there --------------------------------


@as_root
def test_a_cgroup_that_is_busy_keeps_its_resources_booked_until_it_is_gone(
    make_instance: Callable[..., Instance],
) -> None:
    """By a process of somebody else's, in a hierarchy by which no process is killed."""
    freezer = Kernel().v1.get("freezer")
    if freezer is None:
        pytest.skip("on cgroup v2 whatever is in a job's cgroup is killed with it")
    instance = make_instance(ROOMY).start()
    job_id = instance.submit(*SMALL, "--", "sh", "-c", until_gate(instance, 3))
    instance.wait_state(job_id, "RUNNING")
    place = next(Path(each) for each in instance.cgroups() if "/blkio/" in each)
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        (place / "cgroup.procs").write_text(str(stranger.pid))
        (instance.work / "gate").touch()
        instance.wait_state(job_id, "CLEANING")
        time.sleep(0.5)
        assert instance.show(job_id)["state"] == "CLEANING"
        cores = instance._ask("shares")["free"]["cores"]
        assert cores == pytest.approx(49.9)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert instance.wait_end(job_id)["exit_code"] == 3
    assert instance.cgroups() == []


@as_root
def test_a_job_that_cannot_be_killed_is_a_state_that_is_told_and_no_loop(
    make_instance: Callable[..., Instance],
) -> None:
    """Frozen from above by somebody else, it survives SIGKILL, as one that waits for a disk may."""
    freezer = Kernel().v1.get("freezer")
    if freezer is None:
        pytest.skip("on cgroup v2 what is frozen can be killed")
    instance = make_instance(ROOMY).start()
    job_id = instance.submit(*SMALL, "--", "sleep", "1000")
    instance.wait_state(job_id, "RUNNING")
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
        spent = _cpu_s(launcher)
        time.sleep(3)
        assert _cpu_s(launcher) - spent < 1.5, "it is tried now and then, and not all the time"
        other = instance.submit(*SMALL, "--hold", "--", "true")
        instance.drf("cancel", other)
    finally:
        above.write_text("THAWED")
    assert instance.wait_end(job_id)["state"] == "CANCELLED"
    assert instance._ask("doctor")["stuck_jobs"] == []


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@as_root
@pytest.mark.skipif("blkio" not in Kernel().v1, reason="with cgroup v2 there is one hierarchy")
def test_a_controller_that_is_not_mounted_is_told_and_all_else_is_enforced(
    shelter: Callable[..., Sheltered],
) -> None:
    mount = Kernel().v1["blkio"]
    instance = shelter(f"umount {mount}").start()
    doctor = instance._ask("doctor")
    assert doctor["controls"]["memory"] == "enforced"
    assert not doctor["controls"]["read"].startswith("enforced")
    eater = "x = bytearray(200 << 20)"
    job_id = instance.submit("-c", "0.1", "-m", "50M", "--", sys.executable, "-c", eater)
    assert instance.wait_end(job_id)["state"] == "OUT_OF_MEMORY"


# -- a directory service that does not answer ----------------------------------------------------


class SlowDirectory:
    """What glibc asks for users before it reads any file, where this socket is (nscd): it answers
    for root at once, and for others never. Its messages are those of glibc's nscd-client.h."""

    _BY_NAME, _BY_UID = 0, 1

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o666)
        self._listener.listen(64)
        #: Whom it has been asked about, and keeps waiting.
        self.waiting: list[str] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                asker, _ = self._listener.accept()
            except OSError:
                return
            _, kind, length = struct.unpack("3i", asker.recv(12))
            key = asker.recv(length).rstrip(b"\0").decode()
            if kind == self._BY_UID and key != "0":
                self.waiting.append(key)
                self._open.append(asker)
                continue
            if (kind, key) in ((self._BY_UID, "0"), (self._BY_NAME, "root")):
                texts = [text + b"\0" for text in (b"root", b"x", b"", b"/root", b"/bin/sh")]
                name, password, *rest = map(len, texts)
                head = struct.pack("9i", 2, 1, name, password, 0, 0, *rest)
                asker.sendall(head + b"".join(texts))
            elif kind == self._BY_NAME:
                # Nobody is called so. Without an answer it would not be asked any more.
                asker.sendall(struct.pack("9i", 2, 0, *[0] * 7))
            asker.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._open):
            each.close()


@as_root
@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd's sockets are in /run")
def test_a_directory_service_that_hangs_stalls_nobody_but_whom_it_is_asked_about(
    shelter: Callable[..., Sheltered],
) -> None:
    instance = shelter("mount -t tmpfs tmpfs /run; mkdir -p /var/run/nscd")
    directory = SlowDirectory(instance.inside / "run" / "nscd" / "socket")
    hello = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        's.sendall(b\'{"op":"hello","v":1}\\n\'); assert b\'true\' in s.recv(4096)'
    )
    try:
        instance.start()
        took: list[float] = []

        def ask_as_another() -> None:
            started = time.monotonic()
            command = ["/usr/bin/python3", "-I", "-c", hello, str(instance.socket)]
            subprocess.run(command, user=65534, check=True, timeout=120)
            took.append(time.monotonic() - started)

        asking = threading.Thread(target=ask_as_another)
        asking.start()
        wait_for("the question", lambda: "65534" in directory.waiting)
        quick: list[float] = []
        while asking.is_alive():
            started = time.monotonic()
            instance._ask("status")
            quick.append(time.monotonic() - started)
            time.sleep(0.05)
        asking.join()
        # glibc gives it up after some seconds, and reads the file.
        assert took[0] > 2
        # Held up, the loop would answer once it has been given up, and a few times while that ends.
        assert len(quick) > 10, (took, quick)
    finally:
        directory.close()


# -- clocks --------------------------------------------------------------------------------------


def test_daemons_that_stood_still_for_a_while_go_on(
    make_instance: Callable[..., Instance],
) -> None:
    """As a machine that sleeps: everybody stands still for a while, and goes on."""
    instance = make_instance(ROOMY).start()
    job_id = instance.submit(*SMALL, "--", "sh", "-c", until_gate(instance, 9))
    instance.wait_state(job_id, "RUNNING")
    assert instance.process is not None
    pids = [instance.process.pid, instance.launcher_pid()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    (instance.work / "gate").touch()
    time.sleep(1)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    assert instance.wait_end(job_id)["exit_code"] == 9
