"""Facts about processes, where those that are asked about are the test's own children; and files of
the kernel, of which /proc/self has some that anybody may use."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.launcher.system import process
from drfd.launcher.system.cleanup import has_processes
from drfd.launcher.system.files import put
from drfd.linux.kernel_files import get
from instance import stat_of
from launcher.rig import WAIT_S, pid_in, python, state_of, until


@pytest.mark.parametrize("name", [") R 1 1 (", "a b) S 9 9 9", "((("])
def test_a_programs_name_cannot_pass_for_numbers(start, tmp_path, name):
    """The second field of /proc/PID/stat is whatever the user calls it."""
    script = "printf '%s' \"$1\" > /proc/$$/comm; echo $$ > named; read line"
    odd = start("sh", "-c", script, "sh", name, cwd=tmp_path, stdin=subprocess.PIPE)
    assert pid_in(tmp_path / "named") == odd.pid
    assert f"({name})" in Path(f"/proc/{odd.pid}/stat").read_text()
    assert process.start_ticks(odd.pid) is not None
    assert odd.pid in process.descendants(os.getpid())
    assert odd.pid in process.session_members(os.getsid(0))


@pytest.mark.parametrize(
    ("pid", "latest", "is_new"),
    [(100, 100, True), (100, 9000, True), (100, 99, False), (100, 32000, False), (200, 100, False)],
)
def test_a_pid_that_comes_round_again_soon_is_not_that_of_a_new_process(
    monkeypatch, pid, latest, is_new
):
    """A user who forks up to just before it could have another's process take its place."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    assert process.is_new(child)
    os.waitpid(child, 0)
    files = {"/proc/loadavg": f"0.1 0.1 0.1 1/9 {latest}\n", "/proc/sys/kernel/pid_max": "32768\n"}
    monkeypatch.setattr(process, "get", files.__getitem__)
    assert process.is_new(pid) is is_new


def test_a_process_lives_when_only_its_main_thread_has_left(start, tmp_path, monkeypatch):
    """pthread_exit(3) in main: the kernel shows a zombie, and the other threads run on."""
    code = (
        "import ctypes, os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "os.posix_spawn('/bin/sleep', ['sleep', '60'], {})\n"
        "print('up', file=open('up', 'w'), flush=True)\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"
    )
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("the number of exit(2) is known for x86-64 and arm64 only")
    headless = start(*python(code), cwd=tmp_path, start_new_session=True)
    until("a process without main thread", lambda: state_of(headless.pid) == "Z")
    assert len(os.listdir(f"/proc/{headless.pid}/task")) == 2
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    (child,) = [pid for pid in pids if stat_of(pid)[1:2] == [str(headless.pid)]]
    try:
        assert sorted(process.session_members(headless.pid)) == [headless.pid, child]
        assert {headless.pid, child} <= set(process.descendants(os.getpid()))
        with monkeypatch.context() as alone:
            alone.setattr(os, "listdir", lambda path: [str(headless.pid)])
            assert has_processes(os.getuid()), "its user's IPC objects may be in use"
    finally:
        os.kill(child, signal.SIGKILL)


def test_one_that_may_not_be_signalled_saves_no_other(start, tmp_path):
    """A user's job can start a setuid program, which only root may kill. Signal 0 hurts nobody."""
    theirs = start("sleep", "60").pid if os.getuid() == 0 else 1
    code = (
        "import os; from drfd.launcher.system import process\n"
        "if os.getuid() == 0: os.setresuid(*[65534] * 3)\n"
        "try: os.kill(int(sys.argv[1]), 0)\n"
        "except PermissionError:\n"
        "    pids = [int(sys.argv[1])]\n"
        "    process.signal_those(pids, lambda: pids, 0)\n"
        "    print('went on')\n"
    )
    tried = start(*python(code, theirs), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = tried.communicate(timeout=WAIT_S)
    assert (out, err) == (b"went on\n", b"")


def test_who_has_the_number_of_one_that_has_left_is_not_signalled():
    """Root killed somebody else's process, where a job was slow to be frozen."""
    with subprocess.Popen(["sleep", "60"]) as member, subprocess.Popen(["sleep", "60"]) as other:
        listed = [member.pid, other.pid, 1 << 22]
        process.signal_those(listed, lambda: [member.pid], signal.SIGKILL)
        assert member.wait(60) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()


def test_thousands_are_listed_a_few_times_and_only_as_far_as_they_go():
    """The launcher's only thread took a second for the signals to a job of four thousand: it listed
    all of them, in seven hierarchies, for each hundred. Meanwhile nobody's job began."""
    lists = []

    def listed() -> Iterator[int]:
        lists.append(0)
        yield member.pid
        lists.append("more")

    with subprocess.Popen(["sleep", "60"]) as member:
        pids = [*range(1 << 22, (1 << 22) + 4000), member.pid]
        process.signal_those(pids, listed, signal.SIGKILL)
        assert member.wait(60) == -signal.SIGKILL
    assert "more" not in lists
    assert len(lists) <= 8


# -- files of the kernel, written and read at once ----------------------------------------


NAME = "/proc/self/comm"


@pytest.fixture(autouse=True)
def name() -> Iterator[None]:
    """The name of this process, which tests change, is what it was afterwards."""
    before = get(NAME)
    yield
    put(NAME, before.strip())


def test_a_value_that_is_refused_is_an_error_that_names_the_file():
    with pytest.raises(OSError, match="'/proc/self/oom_score_adj'"):
        put("/proc/self/oom_score_adj", "5000")
