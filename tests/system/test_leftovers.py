"""What jobs leave behind of shared memory, semaphores and queues goes with their user's last job;
memory that one leaves in use is not given to the next, nor what drfd's own processes take."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernel_calls
from drfd.core.scheduling.kept_free import SAMPLES
from drfd.daemon.monitoring.meter import PERIOD_S
from drfd.launcher.system import cleanup
from drfd.linux import syscalls
from instance import CONFIG, Instance, wait_for
from kernel import Kernel, is_removed

pytestmark = pytest.mark.system

#: Leave one of each kind.
LEAVE = (
    "ipcmk -M 1000000 -S 3 -Q; mkdir -p /dev/shm/drfdt-$(id -u)/d; touch /dev/shm/drfdt-$(id -u)-f"
)
KINDS = ("shm", "sem", "msg")


def left_by(user: pwd.struct_passwd) -> int:
    """How many things the user has left."""
    rows = sum(row["uid"] == user.pw_uid for kind in KINDS for row in cleanup.table(kind))
    return rows + sum(owner_of(each) == user.pw_uid for each in Path("/dev/shm").iterdir())


def owner_of(path: Path) -> int | None:
    """The launcher may remove it meanwhile."""
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


def remove(user: pwd.struct_passwd) -> None:
    """Unless the user has a process, such as a launcher's sweep that is about to end."""
    pid = os.fork()
    if pid == 0:
        try:
            cleanup.sweep(user.pw_uid, os.getppid())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.fixture(autouse=True)
def clean(users) -> Iterator[None]:
    yield
    for user in users:

        def is_clean(user: pwd.struct_passwd = user) -> bool:
            remove(user)
            return left_by(user) == 0

        wait_for("nothing left", is_clean)


@pytest.fixture
def instance(lend) -> Instance:
    """In whose directory all may work."""
    made = lend(CONFIG)
    made.work.chmod(0o777)
    return made


def test_what_is_left_goes_with_the_users_last_job(instance, users):
    """Without it all of this stays until the machine is started again."""
    alice, bob = users
    last = instance.submit("--", "sleep", "600", user=alice.pw_uid)
    script = ("--", "sh", "-c", LEAVE)
    theirs = instance.submit("--", "sh", "-c", f"{LEAVE}; sleep 600", user=bob.pw_uid)
    assert instance.ended(*script, user=alice.pw_uid)["state"] == "COMPLETED"
    wait_for("bob's", lambda: left_by(bob) == 5)
    # Two seconds after its job, while another of the same user runs.
    instance.ended("--", "sleep", "2", user=alice.pw_uid)
    assert left_by(alice) == 5
    instance.drf("cancel", last)
    instance.wait_end(last)
    wait_for("nothing left", lambda: left_by(alice) == 0)
    assert left_by(bob) == 5
    instance.drf("cancel", theirs)
    wait_for("nothing left", lambda: left_by(bob) == 0)


def test_a_user_who_has_another_process_keeps_all(instance, users):
    alice, bob = users
    session = subprocess.Popen(["sleep", "600"], user=alice.pw_uid)
    try:
        script = ("--", "sh", "-c", LEAVE)
        instance.ended(*script, user=alice.pw_uid)
        # Bob's goes, and would have gone after alice's.
        instance.ended(*script, user=bob.pw_uid)
        wait_for("bob's gone", lambda: left_by(bob) == 0)
        assert left_by(alice) == 5
    finally:
        session.kill()
        session.wait()


def test_what_another_user_has_attached_stays(instance, users):
    alice, bob = users
    words = ("--", "sh", "-c", "ipcmk -M 1000000 -p 0666 >id; ipcmk -Q")
    instance.work.joinpath("id").touch(mode=0o666)
    instance.work.joinpath("id").chmod(0o666)
    keeper = instance.submit("--", "sleep", "600", user=alice.pw_uid)
    instance.ended(*words, user=alice.pw_uid)
    number = instance.work.joinpath("id").read_text().split()[-1]
    attach = (
        "import ctypes, sys, time; libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p;"
        f"libc.shmat({number}, None, 0); print('attached', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-I", "-c", attach], user=bob.pw_uid, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"attached\n"
        instance.drf("cancel", keeper)
        instance.wait_end(keeper)
        wait_for("the queue gone", lambda: left_by(alice) == 1)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_it_can_be_turned_off(lend, users):
    instance = lend(f"{CONFIG}remove_ipc = false\n")
    instance.work.chmod(0o777)
    alice, bob = users
    instance.ended("--", "sh", "-c", LEAVE, user=alice.pw_uid)
    instance.ended("--", "sleep", "3", user=bob.pw_uid)
    assert left_by(alice) == 5
    assert "files in /dev/shm stay" in instance.drf("doctor").stdout


def test_roots_own_is_never_removed(instance):
    """Nor that of system accounts: databases live on it."""
    place = Path(tempfile.mkdtemp(prefix="drfdt-", dir="/dev/shm"))
    try:
        instance.ended("--", "touch", place / "file")
        instance.ended("--", "sleep", "3")
        assert (place / "file").exists()
    finally:
        shutil.rmtree(place)


def test_a_file_system_of_another_user_keeps_nothing_from_being_removed(users):
    """FUSE tells only its user whose a directory is, or asks a program that need not answer."""
    alice, bob = users
    if not Path("/dev/fuse").exists():
        pytest.skip("no FUSE here")
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if _sweep_beside_fuse(alice, bob) == ["alices"] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _sweep_beside_fuse(alice: pwd.struct_passwd, bob: pwd.struct_passwd) -> list[str]:
    """In a /dev/shm of our own; the names that are left there."""
    syscalls.unshare(kernel_calls.CLONE_NEWNS)
    kernel_calls.mount("", "/", flags=kernel_calls.MS_REC | kernel_calls.MS_PRIVATE)
    kernel_calls.mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")
    shm = Path("/dev/shm")
    # Whatever the order in which the directory is read.
    for name in ("before", "alices", "after"):
        inner = shm / name
        inner.mkdir()
        owner = alice if name == "alices" else bob
        os.chown(inner, owner.pw_uid, owner.pw_gid)
        if name != "alices":
            (inner / "file").touch()
            os.chown(inner / "file", owner.pw_uid, owner.pw_gid)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={alice.pw_uid},group_id={alice.pw_gid}"
    kernel_calls.mount("fuse", str(shm / "alices"), "fuse", 0, options)
    remove(bob)
    return sorted(os.listdir(shm))


# -- memory that a job leaves in use ----------------------------------------------------------

# On a machine of its own: a memory cgroup that drfd takes for the whole of it, so that what the
# real one does besides is no matter.

MIB = 1 << 20
#: Of the 1 GiB that there is, 200 MiB are for drfd itself and whatever is outside.
LOADED = CONFIG.replace('"18G"', '"824M"') + "remove_ipc = false\n"
LOADED += "[scheduling]\nrespect_external_load = true\n"
NAME = f"drfd-test-left-{os.getpid()}"


@pytest.fixture
def small() -> Iterator[Instance]:
    """An instance, on a machine of 1 GiB."""
    kernel = Kernel()
    top = kernel.top("memory") / NAME
    # By version 2, only a cgroup without processes of its own has limits for those in it.
    daemons = top / "daemons" if kernel.v2 is not None else top
    daemons.mkdir(parents=True)
    limit = "memory.max" if kernel.v2 is not None else "memory.limit_in_bytes"
    (top / limit).write_text(str(1 << 30))
    instance = Instance(LOADED)
    room = instance.root / "launcher"
    room.mkdir(mode=0o711)
    instance.state.mkdir()
    instance.work.chmod(0o777)
    instance.options, instance.has_failpoints = ["--launcher", str(room)], False
    # Where there is systemd, job cgroups are made in its slice: it is hidden, so they are in ours.
    enter = 'echo $$ >"$0"; ! [ -d /run/systemd ] || mount -t tmpfs none /run/systemd; exec "$@"'
    private = ["unshare", "-m", "--propagation", "private"]
    instance.before = [*private, "sh", "-c", enter, str(daemons / "cgroup.procs")]
    command = [sys.executable, "-I", "-m", "drfd.launcher", "--state", str(room)]
    command += ["--controller", "0", "--group", f"{NAME}/jobs"]
    command += ["--config", str(instance.config)]
    launcher = subprocess.Popen([*instance.before, *command], stdin=subprocess.DEVNULL)
    try:
        yield instance.start()
    finally:
        instance.destroy()
        launcher.terminate()
        launcher.wait()
        made = [path for jobs in kernel.groups(f"{NAME}/jobs") for path in (jobs, jobs.parent)]
        if daemons != top:
            made.insert(0, daemons)
        for each in made:
            # Runners that wait for another job leave a moment after their launcher.
            wait_for(f"{each} to be empty", lambda each=each: is_removed(each))


def reason(instance: Instance, job_id: int) -> str | None:
    found = instance.show(job_id)["reason"]
    return None if found is None else str(found["code"])


def external(instance: Instance) -> int:
    """Bytes of the capacity that are left to what is outside."""
    load = instance._ask("doctor")["external"]
    return 0 if load is None else int(load["kept"]["memory"])


def test_a_file_in_memory_keeps_the_next_job_waiting_until_it_is_gone(small, users):
    """The next job was started at once, with limits that add up to more than there is."""
    uid = users[0].pw_uid
    file = Path(f"/dev/shm/{NAME}")
    gate = small.work / "gate"
    fill = (
        f"dd if=/dev/zero of={file} bs=1M count=300; sleep 1; "
        f"while ! [ -e {gate} ]; do sleep 0.05; done"
    )
    try:
        first = small.submit("-m", "400M", "--", "sh", "-c", fill, user=uid)
        # It has to wait for the first one, and would have all that is left then.
        second = small.submit("-m", "780M", "--", "true", user=uid)
        wait_for("its reason", lambda: reason(small, second) == "RESOURCES")
        gate.touch()
        assert small.wait_end(first)["state"] == "COMPLETED"
        assert file.stat().st_size == 300 * MIB
        wait_for("the reason", lambda: reason(small, second) == "EXTERNAL_LOAD")
        # 200 MiB of it are covered by what is there besides; drfd's own needs are too.
        assert 90 * MIB <= external(small) < 300 * MIB
        # What fits beside it starts.
        third = small.submit("-m", "400M", "--", "true", user=uid)
        assert small.wait_end(third)["state"] == "COMPLETED"
        # By now the load is what was measured, which says the same.
        time.sleep((SAMPLES + 2) * PERIOD_S)
        assert 90 * MIB <= external(small) < 300 * MIB
        assert reason(small, second) == "EXTERNAL_LOAD"
        file.unlink()
        assert small.wait_end(second)["state"] == "COMPLETED"
        wait_for("nothing kept free", lambda: external(small) == 0)
    finally:
        file.unlink(missing_ok=True)


def test_what_goes_with_the_job_is_not_missed(small, users):
    """Memory of processes, page cache, and files that the job has removed itself."""
    uid = users[0].pw_uid
    script = (
        f"dd if=/dev/zero of=/dev/shm/{NAME} bs=1M count=300; rm /dev/shm/{NAME}; "
        f"dd if=/dev/zero of={small.work}/file bs=1M count=200; sleep 3"
    )
    first = small.submit("-m", "600M", "--", "sh", "-c", script, user=uid)
    second = small.submit("-m", "800M", "--", "true", user=uid)
    assert small.wait_end(first)["state"] == "COMPLETED"
    assert small.wait_end(second)["state"] == "COMPLETED"
    assert external(small) == 0
