"""What a runner gives up, and that it can still do its work; and keyrings of launchers' and jobs'
own. Each process under test is its own."""

from __future__ import annotations

import os
import subprocess
from itertools import count
from pathlib import Path

import pytest

from drfd.launcher.runner import privileges
from launcher.rig import UNTIL_GO, AttemptFiles, Driver, go, order, python, shell, until

as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root")
filters = pytest.mark.skipif(
    privileges.program() is None or privileges.why_no_filter() is not None,
    reason=f"no filter can be had here: {privileges.why_no_filter()}",
)


def run(code: str) -> str:
    setup = "import errno, kernel_calls, os, signal, socket, subprocess\n"
    setup += "from drfd.linux import syscalls\nfrom drfd.launcher.runner import privileges\n"
    setup += """
def errno_of(call, *words):
    try:
        call(*words)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""
    done = subprocess.run(python(setup + code), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@filters
def test_a_process_without_privileges_runs_nothing_and_becomes_nobody() -> None:
    code = """
privileges.drop_privileges()
print(*(errno_of(call, *words) for call, *words in (
    (os.execv, "/bin/true", ["true"]), (os.fork,), (syscalls.fork,), (socket.socket,),
    (os.setresuid, -1, -1, -1), (os.setgroups, []), (os.chmod, "/tmp", 0o1777),
    (os.rename, "/a", "/b"), (os.link, "/a", "/b"), (os.chown, "/tmp", -1, -1),
    (os.chroot, "/"), (syscalls.unshare, syscalls.CLONE_NEWNS), (syscalls.mount, "a", "/b"),
    (kernel_calls.unmount, "/b"), (syscalls.join_session_keyring,),
    (syscalls.set_personality, 0),
)))
"""
    assert run(code) == " ".join(["EPERM"] * 16)


@filters
def test_a_process_without_privileges_goes_on_with_files_signals_and_time() -> None:
    code = """
import tempfile, time
import resource  # wait4 does it.
child = subprocess.Popen(["sleep", "60"])
file = tempfile.TemporaryFile()
privileges.drop_privileges()
file.write(b"end")
file.flush()
print(os.listdir("/proc/self/task") == [str(os.getpid())], os.pread(file.fileno(), 3, 0))
os.kill(child.pid, signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.wait4(child.pid, 0)[1]))
time.sleep(0.01)
"""
    assert run(code) == "True b'end'\n-9"


landlocks = pytest.mark.skipif(
    privileges.why_open_files() is not None, reason=f"no Landlock: {privileges.why_open_files()}"
)


@landlocks
def test_a_process_without_privileges_opens_its_jobs_cgroup_and_proc_alone(tmp_path: Path) -> None:
    """It could open, and write, every file that root may."""
    (tmp_path / "cgroup").mkdir()
    for name in ("cgroup/state", "secret", "open"):
        (tmp_path / name).write_text("as it was")
    code = f"""
os.chdir({str(tmp_path)!r})
kept = open("open", "r+")
privileges.drop_privileges(["{tmp_path}/cgroup"])
tried = [
    *(("secret", mode) for mode in ("r", "r+", "w")), ("new", "x"),
    ("/proc/self/root{tmp_path}/secret", "r"), ("cgroup/../secret", "r"),
    ("/proc/self/oom_score_adj", "w"), ("/etc/shadow", "r"),
    ("cgroup/new", "x"), ("cgroup/state", "w"), ("/proc/self/stat", "r"), ("/proc/1/status", "r"),
]
print(*(errno_of(open, *words) for words in tried))
print(kept.read(), os.listdir("cgroup"), len(os.listdir("/proc")) > 1, errno_of(os.listdir, "/"))
"""
    assert run(code).split("\n") == [
        " ".join(["EACCES"] * 9 + ["done"] * 3),
        "as it was ['state'] True EACCES",
    ]
    assert (tmp_path / "secret").read_text() == "as it was"


@pytest.mark.slow
@landlocks
def test_a_job_opens_what_it_likes_while_its_runner_does_not(
    driver: Driver, files: AttemptFiles, work: Path
) -> None:
    (work / "secret").write_text("mine")
    script = f"sleep {privileges.DROP_AFTER_S + 2}; cat secret > copy; cat /etc/passwd > /dev/null"
    runner = driver.start(shell(script, cwd=work), files)
    until("a runner without privileges", lambda: status_of(runner)["NoNewPrivs"] == "1")
    assert driver.reap(runner) == 0
    ended = files.over().ended
    assert ended is not None
    assert (ended["exit_code"], (work / "copy").read_text()) == (0, "mine")


@as_root
def test_of_roots_rights_only_that_to_kill_is_left() -> None:
    code = """
privileges.drop_privileges()
print(syscalls.capabilities() == (1 << privileges.KILL,) * 2 + (0,))
print(errno_of(open, "/proc/1/mem"))
"""
    assert run(code) == "True\nEACCES"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_filter_names_each_call_once_and_each_jump_has_its_end(machine: str) -> None:
    """A jump is eight bits; the last two steps let go and refuse."""
    program = privileges.program(machine)
    assert program is not None
    steps = [program[at : at + 8] for at in range(0, len(program), 8)]
    calls = [int.from_bytes(step[4:], "little") for step in steps[5:-2]]
    assert calls == sorted(set(calls))
    for at, step in enumerate(steps[4:-2], start=4):
        assert at + 1 + step[2] == len(steps) - 1, "to the last step, which refuses"
    assert len(steps) < 256


def test_a_machine_whose_numbers_are_not_known_has_no_filter() -> None:
    assert privileges.program("pdp11") is None


# -- in a runner ----------------------------------------------------------------------------


@pytest.mark.slow
@filters
def test_a_runner_drops_its_privileges_once_its_job_has_run_for_a_while(
    driver: Driver, files: AttemptFiles, work: Path
) -> None:
    """It kept all of root's rights for the whole life of the job. Its job has none of the filter,
    and the end is on record as ever."""
    runner = driver.start(shell(f"(setsid sleep 60 &); {UNTIL_GO}", cwd=work), files)
    job = files.running().running
    assert job is not None
    dropped = until("a runner without privileges", lambda: status_of(runner)["Seccomp"] == "2")
    assert dropped
    status = status_of(runner)
    kept = 1 << privileges.KILL if os.getuid() == 0 else 0
    assert {status[name] for name in ("CapPrm", "CapEff")} == {f"{kept:016x}"}
    assert (status["NoNewPrivs"], int(status["CapInh"], 16)) == ("1", 0)
    assert status["CapBnd"] == status_of(os.getpid())["CapBnd"]
    theirs = status_of(job["pid"])
    mine = status_of(os.getpid())
    assert [theirs[name] for name in ("NoNewPrivs", "Seccomp")] == [
        mine["NoNewPrivs"],
        mine["Seccomp"],
    ]
    go(work)
    assert driver.reap(runner) == 0
    ended = files.over().ended
    assert ended is not None
    assert (ended["exit_code"], ended["signal"]) == (7, None)


@pytest.mark.slow
@as_root
def test_a_runner_has_few_rights_from_the_start(
    driver: Driver, files: AttemptFiles, work: Path
) -> None:
    runner = driver.start(shell(UNTIL_GO, cwd=work), files, drops_privileges=False)
    files.running()
    kept = privileges.needed(enters_spaces=True, serves_root=True)
    mine = int(status_of(os.getpid())["CapPrm"], 16)
    assert status_of(runner)["CapEff"] == f"{kept & mine:016x}"
    go(work)
    files.over()
    assert driver.reap(runner) == 0


@pytest.mark.slow
def test_a_short_job_leaves_its_runner_for_the_next_and_a_long_one_does_not(
    driver: Driver, files: AttemptFiles, work: Path
) -> None:
    runner = driver.start(order("true", cwd=work), files, keep=True)
    files.over((1, 1))
    driver.start(
        shell(f"sleep {privileges.DROP_AFTER_S + 1}", cwd=work, id=2), files, runner=runner
    )
    assert driver.reap(runner) == 0
    ended = files.over((2, 1)).ended
    assert ended is not None
    assert ended["exit_code"] == 0


# -- session keyrings, where they can be had ----------------------------------------------


#: `refuse` has keyctl fail from then on, as a container's filter does.
HELPERS = """
import errno, kernel_calls, os, struct
from drfd.linux import syscalls
from drfd.launcher.runner import identity, inheritance
def refuse(number):
    call = syscalls._NUMBERS["keyctl"][os.uname().machine]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | number)]
    steps += [(0x06, 0, 0, 0x7FFF0000)]
    syscalls.set_no_new_privileges()
    syscalls.filter_calls(b"".join(struct.pack("=HBBI", *step) for step in steps))
def take():
    inheritance.leave_keyring()
    inheritance.join_keyring(inheritance.has_key_quota(os.getuid()))
def fill():
    made = 0
    while True:
        out, into = os.pipe()
        if os.fork() == 0:
            try:
                syscalls.join_session_keyring()
            except OSError as error:
                os.write(into, errno.errorcode[error.errno].encode())
                os._exit(1)
            os.close(out)
            os.write(into, b"+")
            os.kill(os.getpid(), 19)
        os.close(into)
        word = os.read(out, 20).decode()
        if word != "+":
            return made, word
        made += 1
"""


#: Users whose keys nobody else has counted: neither another test nor another run on this machine.
_uids = count(1_000_000 + 10 * os.getpid())


def run_as(code: str, uid: int = 0) -> str:
    """What it prints. What it leaves behind is killed with its process group. `uid`: its UID."""
    command = python(f"UID = {uid}\n{HELPERS}{code}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            out, _ = process.communicate(timeout=120)
        finally:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass
    assert process.returncode == 0
    return out.strip()


@pytest.mark.slow
def test_the_launcher_and_each_job_have_one_of_their_own_or_do_not_start() -> None:
    code = """
before = kernel_calls.session_keyring()
assert inheritance.why_no_keyrings() is None and inheritance.keyring_warning() is None
mine = kernel_calls.session_keyring()
inheritance.leave_keyring()
inheritance.join_keyring(inheritance.has_key_quota(os.getuid()))
print(len({before, mine, kernel_calls.session_keyring()}))
"""
    assert run_as(code) == "3"
    # The launcher has got its own before: keyrings work here, and this failure says nothing of what
    # the job would find in the launcher's.
    code = """
inheritance.why_no_keyrings()
refuse(errno.EACCES)
try:
    inheritance.leave_keyring()
    inheritance.join_keyring(True)
except identity.Denied as error:
    print(error)
"""
    denied = "it can have no session keyring of its own: Permission denied"
    assert run_as(code) == denied


@pytest.mark.slow
def test_where_there_are_no_keyrings_jobs_run_without_and_a_refusal_is_said() -> None:
    code = "refuse(errno.EPERM); take(); print(inheritance.keyring_warning())"
    assert run_as(code) == "jobs have no keyrings: keyctl is not permitted here, to jobs neither"
    code = """
refuse(errno.ENOSYS)
take()
print(inheritance.why_no_keyrings(), inheritance.keyring_warning())
"""
    assert run_as(code) == "the kernel has no keyrings None"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ENOMEM", "EDQUOT"])
@as_root
def test_a_shortage_is_told_from_a_refusal(name: str) -> None:
    """It may pass: the job need not be lost to it."""
    code = f"""
inheritance.why_no_keyrings()
refuse(errno.{name})
try:
    inheritance.leave_keyring()
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    assert run_as(code) == name


@pytest.mark.slow
@as_root
def test_a_users_own_launcher_runs_more_jobs_than_the_user_may_have_keys() -> None:
    """The kernel allows an ordinary user 200 keys (keys/maxkeys)."""
    code = """
os.setgroups([]); os.setresgid(*[UID] * 3); os.setresuid(*[UID] * 3)
inheritance.why_no_keyrings()
mine = kernel_calls.session_keyring()
made, why = fill()
inheritance.leave_keyring()
inheritance.join_keyring(inheritance.has_key_quota(UID))
print(made > 50, why, kernel_calls.session_keyring() == mine)
"""
    assert run_as(code, next(_uids)) == "True EDQUOT True"


#: Becomes an ordinary user in the way of a job, and says whose keyring it has, and whether it takes
#: a key, and can be linked to the user's own.
BECOME = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
ADD, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
SESSION, USER = -3, -4
def add(name):
    return libc.syscall(ADD, b"user", name, b"x", ctypes.c_size_t(1), SESSION)
def become():
    inheritance.leave_keyring()
    os.setgroups([]); os.setresgid(*[UID] * 3); os.setresuid(*[UID] * 3)
    inheritance.join_keyring(inheritance.has_key_quota(UID))
def describe():
    ring = kernel_calls.session_keyring()
    owner = next(l.split()[5] for l in open("/proc/keys") if int(l.split()[0], 16) == ring)
    linked = libc.syscall(KEYCTL, 8, ring, USER)
    print(owner, add(b"mine") > 0, linked == 0)
inheritance.why_no_keyrings()
"""


@pytest.mark.slow
@as_root
def test_what_a_user_can_fill_is_counted_against_the_user() -> None:
    """It was counted against root, whose room for keys the keyrings of some ten thousand jobs use
    up, each full of keys and kept by a file that the job has handed to a process outside. No job
    of anybody's could start any more."""
    uid = next(_uids)
    assert run_as(BECOME + "become(); describe()", uid) == f"{uid} True True"


@pytest.mark.slow
@as_root
def test_who_has_used_half_the_room_gets_one_that_cannot_be_filled_nor_kept() -> None:
    code = """
if os.fork() == 0:
    os.setresgid(*[UID] * 3); os.setresuid(*[UID] * 3)
    syscalls.join_session_keyring()
    for number in range(105):
        assert add(b"%d" % number) > 0
    os.kill(os.getpid(), 19)
    os._exit(0)
os.waitpid(-1, os.WUNTRACED)
become()
describe()
"""
    assert run_as(BECOME + code, next(_uids)) == "0 False False"
