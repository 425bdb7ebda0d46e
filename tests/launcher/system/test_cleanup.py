"""What the launcher has done by processes of its own: users' leavings are swept up, and trees
deleted that somebody else has filled, in private spaces above all."""

import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

import kernel_calls
from drfd.launcher.system import private_tmp, process
from drfd.launcher.system.background import BackgroundWork
from drfd.launcher.system.cleanup import IpcSweeps, has_processes
from drfd.launcher.system.files import put
from drfd.launcher.system.private_tmp import PrivateSpaces, Unsafe, open_home
from drfd.linux import syscalls
from drfd.linux.kernel_files import get
from instance import stat_of
from launcher.rig import WAIT_S, alone, pid_in, python, state_of, until

# -- work ---------------------------------------------------------------------------------


@pytest.fixture
def selector() -> Iterator[selectors.DefaultSelector]:
    made = selectors.DefaultSelector()
    yield made
    made.close()


def turn_until(selector: selectors.DefaultSelector, is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not is_so() and time.monotonic() < deadline:
        for chosen, _ in selector.select(0.1):
            chosen.data()
    assert is_so()


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
def test_work_that_cannot_end_yet_keeps_nobody_waiting(selector, freezer):
    """SIGKILL does not end who waits for a user's own file system (FUSE), as long as he likes."""
    background, ended = BackgroundWork(selector), list[str]()
    pid = background.start(["sleep", "600"], lambda status: ended.append("done"))
    (freezer / "cgroup.procs").write_text(str(pid))
    state = freezer / "freezer.state"
    state.write_text("FROZEN")
    # A process that has not run yet is frozen when it does.
    turn_until(selector, lambda: state.read_text() == "FROZEN\n")
    # Else a launcher that waits would wait for ever.
    with subprocess.Popen(["sh", "-c", f"sleep 30; echo THAWED >{state}"]) as thawing:
        background.kill(pid)
        assert state.read_text() == "FROZEN\n"
        assert ended == []
        thawing.kill()
    state.write_text("THAWED")
    turn_until(selector, lambda: ended)
    assert not selector.get_map()


@alone
def test_work_has_only_the_descriptors_that_it_was_given(selector, tmp_path):
    """Not the launcher's lock, above all."""
    background, ended = BackgroundWork(selector), list[int]()
    told = tmp_path / "told"
    given, secret = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))

    script = f"for each; do test -e /proc/$$/fd/$each; echo $? >> {told}; done"
    background.start(["sh", "-c", script, "sh", str(given), str(secret)], ended.append, given)
    turn_until(selector, lambda: ended)
    os.close(given)
    os.close(secret)
    assert told.read_text().split() == ["0", "1"]


# -- leavings are swept up never while a job of the user's is known -----------------------


class RecordedWork:
    """Begins nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.killed: list[int] = []
        self._ends: dict[int, Callable[[int], None]] = {}

    def start(self, command: Sequence[str], on_end: Callable[[int], None]) -> int:
        self.started.append(int(command[-1]))
        self._ends[len(self.started)] = on_end
        return len(self.started)

    def kill(self, pid: int) -> None:
        self.killed.append(pid)

    def end(self, pid: int) -> None:
        self._ends[pid](0)


@pytest.fixture
def background() -> RecordedWork:
    return RecordedWork()


@pytest.fixture
def sweeps(background, clock, monkeypatch) -> IpcSweeps:
    return IpcSweeps(background, min_uid=1000, mono=clock)  # type: ignore[arg-type]


def test_a_sweep_that_does_not_end_is_the_only_one(sweeps, background, clock):
    """A user whose sweeps hang could have any number of them."""
    for _ in range(3):
        sweeps.begun(1000)
        sweeps.gone(1000)
        clock.now_s += 1.5
        sweeps.run_due()
    assert (background.started, {*background.killed}) == ([1000], {1})
    assert sweeps.pause_s() == 1.5
    background.end(1)
    clock.now_s += 1.5
    sweeps.run_due()
    assert (background.started, sweeps.pause_s()) == ([1000, 1000], None)


@pytest.mark.parametrize("uid", [0, 999])
def test_root_and_system_accounts_are_never_swept(sweeps, background, uid):
    sweeps.begun(uid)
    sweeps.gone(uid)
    assert sweeps.pause_s() is None


# -- private spaces: whose they are, and what is removed when -----------------------------


class Loop:
    """As the launcher's."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()

    def spaces(self, home: Path | None) -> PrivateSpaces:
        return PrivateSpaces(BackgroundWork(self.selector), None if home is None else str(home))

    def until_quiet(self) -> None:
        """Until no process is at work any more."""
        turn_until(self.selector, lambda: not self.selector.get_map())


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.until_quiet()
    made.selector.close()


@pytest.fixture
def home(tmp_path) -> Path:
    if os.getuid() != 0:
        pytest.skip("not root")
    return tmp_path / "home"


def names(home: Path) -> list[str]:
    return sorted(os.listdir(home))


def test_the_home_is_made_for_root_alone(home):
    real, fd = open_home(str(home))
    os.close(fd)
    assert real == os.path.realpath(home)
    assert home.stat().st_mode & 0o777 == 0o700
    os.close(open_home(str(home))[1])


@pytest.mark.parametrize(
    ("owner", "mode", "above", "why"),
    [
        (1, 0o700, 0o755, "root alone"),
        (0, 0o755, 0o755, "0700"),
        (0, 0o700, 0o777, "others may write"),
        (0, 0o700, 0o1777, ""),
    ],
)
def test_a_home_that_is_not_roots_alone_or_whose_way_others_may_change_is_refused(
    home, owner, mode, above, why
):
    home.mkdir(mode=mode)
    os.chown(home, owner, -1)
    home.parent.chmod(above)
    with pytest.raises(Unsafe, match=why) if why else nullcontext():
        os.close(open_home(str(home))[1])


@alone
def test_an_empty_space_is_removed_by_another_process_too(loop, home):
    """Its user may have asked for a million names in it that are not there: then the kernel takes
    seconds for the empty directory."""
    spaces = loop.spaces(home)
    place = spaces.place_for((7, 1), 1000)
    assert place == f"{os.path.realpath(home)}/7.1.1000"
    spaces.make(place)
    assert names(home / "7.1.1000") == ["tmp", "var"]
    assert (home / "7.1.1000" / "tmp").stat().st_mode & 0o7777 == 0o1777
    spaces.remove(place)
    assert "7.1.1000" not in names(home), "another attempt of this name may begin"
    loop.until_quiet()
    assert names(home) == []


@pytest.mark.slow
@alone
def test_what_is_in_it_is_removed_by_another_process(loop, home):
    spaces = loop.spaces(home)
    places = [spaces.place_for((number, 1), 60_000 + number) for number in (1, 2)]
    for number, place in enumerate(places, 1):
        spaces.make(place)
        for each in ("tmp", "var"):
            inner = home / f"{number}.1.{60_000 + number}" / each / "directory"
            inner.mkdir()
            os.chown(inner, 60_000 + number, -1)
            # Not the user's: root removes it.
            (inner / "file").touch()
    for place in places:
        spaces.remove(place)
    # The attempts are over: others of these names may begin.
    assert all(name.startswith("gone-") for name in names(home))
    spaces.make(places[0])
    loop.until_quiet()
    assert names(home) == ["1.1.60001"]


@alone
def test_a_start_removes_what_no_attempt_has(loop, home):
    loop.spaces(home)
    for name in ("1.1.1000", "2.1.1000", "gone-0a-1000", "notes"):
        (home / name / "tmp").mkdir(parents=True)
    spaces = loop.spaces(home)
    place = f"{os.path.realpath(home)}/2.1.1000"
    spaces.sweep({place}, str(home.parent / "never-made"))
    loop.until_quiet()
    assert names(home) == ["2.1.1000", "notes"]
    spaces.remove(place)
    spaces.remove(None)
    loop.until_quiet()
    assert names(home) == ["notes"]


@alone
def test_attempts_keep_their_space_where_the_option_is_off_by_now(loop, home):
    before = loop.spaces(home)
    place = before.place_for((1, 1), 1000)
    before.make(place)
    (home / "9.1.1000" / "tmp" / "x").mkdir(parents=True)
    spaces = loop.spaces(None)
    assert spaces.place_for((2, 1), 1000) is None
    spaces.make(None)
    spaces.sweep({place}, str(home))
    loop.until_quiet()
    assert names(home) == ["1.1.1000"]
    spaces.remove(place)
    loop.until_quiet()
    assert names(home) == []


@alone
def test_a_space_that_cannot_be_renamed_is_removed_all_the_same(loop, home, monkeypatch):
    def refuse(*names: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    spaces = loop.spaces(home)
    place = spaces.place_for((1, 1), 0)
    spaces.make(place)
    (home / "1.1.0" / "tmp" / "file").touch()
    monkeypatch.setattr(os, "rename", refuse)
    spaces.remove(place)
    loop.until_quiet()
    assert names(home) == []


@alone
def test_who_fills_a_space_keeps_nobody_waiting(loop, home, monkeypatch, tmp_path):
    """A thousand slow spaces of one user left those of others on the disk for a day."""
    go, slow = tmp_path / "go", tmp_path / "rm"
    os.mkfifo(go)
    # It waits for the writer's end.
    waits = f"case $4 in *-61777) [ ! -e {go} ] || read line < {go};; esac"
    slow.write_text(f'#!/bin/sh\n{waits}\nexec /bin/rm "$@"\n')
    slow.chmod(0o755)
    for name in ("gone-00-61777", "gone-01-61777", "gone-ff-61778"):
        (home / name / "tmp" / "inner").mkdir(parents=True)
    home.chmod(0o700)
    spaces = loop.spaces(home)
    monkeypatch.setattr(private_tmp, "_RM", str(slow))
    spaces.sweep(set(), None)
    turn_until(loop.selector, lambda: names(home) == ["gone-00-61777", "gone-01-61777"])
    with go.open("wb"):
        go.unlink()
    loop.until_quiet()
    assert names(home) == []


@alone
def test_what_is_killed_while_it_removes_has_a_successor_at_the_next_end(loop, home, monkeypatch):
    """One that is short of memory would be killed again at once."""
    begun, killed = home.parent / "begun", home.parent / "rm"
    killed.write_text(f"#!/bin/sh\necho >>{begun}\nkill -9 $$\n")
    killed.chmod(0o755)
    (home / "gone-00-61777" / "tmp" / "inner").mkdir(parents=True)
    home.chmod(0o700)
    spaces = loop.spaces(home)
    monkeypatch.setattr(private_tmp, "_RM", str(killed))
    spaces.sweep(set(), None)
    loop.until_quiet()
    for number in range(1, 8):
        assert begun.read_text() == "\n" * number, "however often, no try counts"
        if number == 7:
            monkeypatch.setattr(private_tmp, "_RM", "/bin/rm")
        # Another attempt is over.
        place = spaces.place_for((number, 1), 61777)
        spaces.make(place)
        (home / f"{number}.1.61777" / "tmp" / "file").touch()
        spaces.remove(place)
        loop.until_quiet()
    assert names(home) == []


def test_a_home_of_earlier_attempts_that_is_not_roots_alone_is_left_as_it_is(loop, home, tmp_path):
    """Root worked on files wherever an attempt of an earlier configuration had its space."""
    other = tmp_path / "other"
    (other / "8.1.1000" / "tmp").mkdir(parents=True)
    other.chmod(0o700)
    os.chown(other, 1, -1)
    spaces = loop.spaces(home)
    place = f"{other}/9.1.1000"
    spaces.sweep({place}, None)
    spaces.remove(place)
    loop.until_quiet()
    assert names(other) == ["8.1.1000"]


# -- deleting a tree: nothing outside it is touched, however deep -------------------------


@pytest.fixture
def filled(home) -> Path:
    """What an attempt has left."""
    top = home / "gone-0a-61777"
    top.mkdir(parents=True)
    home.chmod(0o700)
    return top


def remove_all(loop: Loop, home: Path) -> None:
    loop.spaces(home).sweep(set(), None)
    loop.until_quiet()
    assert names(home) == []


@alone
def test_files_of_every_kind_are_deleted_and_what_links_lead_to_stays(loop, home, filled, tmp_path):
    victim = tmp_path / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "inner" / "file").write_text("kept")
    (filled / "a" / "b").mkdir(parents=True)
    (filled / "a" / "b" / "file").write_text("x")
    (filled / "a" / "up").symlink_to("../../../victim")
    (filled / "a" / "b").chmod(0)
    (filled / "-rf").mkdir()
    (filled / "dangling").symlink_to("nowhere")
    (filled / "to-directory").symlink_to(victim)
    (filled / "to-file").symlink_to(victim / "inner" / "file")
    os.link(victim / "inner" / "file", filled / "hard")
    os.mkfifo(filled / "a" / "pipe")
    # In the place of a space, too.
    (home / "gone-0b-61777").symlink_to(victim)
    remove_all(loop, home)
    assert (victim / "inner" / "file").read_text() == "kept"


@alone
def test_what_is_mounted_there_is_not_touched(loop, home, filled):
    """In a mount namespace of this test's own."""
    pid = os.fork()
    if pid == 0:
        try:
            syscalls.unshare(kernel_calls.CLONE_NEWNS)
            kernel_calls.mount("", "/", flags=kernel_calls.MS_REC | kernel_calls.MS_SLAVE)
            (filled / "mounted").mkdir()
            kernel_calls.mount("tmpfs", str(filled / "mounted"), "tmpfs")
            (filled / "mounted" / "file").touch()
            loop.spaces(home).sweep(set(), None)
            loop.until_quiet()
            os._exit(0 if (filled / "mounted" / "file").exists() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.slow
@alone
def test_a_tree_deeper_than_paths_or_stack_is_deleted(loop, home, filled):
    fd = os.open(filled, os.O_RDONLY)
    for _ in range(20_000):
        os.mkdir("directory", dir_fd=fd)
        inner = os.open("directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_all(loop, home)


# -- facts about processes, and files of the kernel ---------------------------------------------


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


def test_a_number_that_a_thread_has_by_now_is_passed_over():
    """The launcher ended where a process had exited since it was listed, and a thread had its
    number."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    process.signal_those([thread.native_id], lambda: [thread.native_id], signal.SIGKILL)
    ended.set()
    thread.join()


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
