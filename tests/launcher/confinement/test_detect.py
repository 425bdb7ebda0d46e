"""Which confinement is chosen, where the controllers are, and where the jobs' cgroup comes from: on
trees of plain files, with a manager that does what systemd does, and with programs of its names.
The real one is asked in tests/system."""

import errno
import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from typing import Any

import pytest

from drfd.launcher.confinement import detect
from drfd.launcher.confinement.cgroup_files import find_mounts
from drfd.launcher.confinement.cgroup_v1 import USED
from drfd.launcher.confinement.detect import (
    DelegationFailed,
    Manager,
    NoJobGroup,
    below_root,
    choose,
    in_own_unit,
    in_unit,
)
from drfd.linux import service as service_module

# -- by what is mounted and what is allowed -----------------------------------------------


GROUP = "drfd/x"


def mounted(kind: str, place: Path, options: str) -> str:
    return f"32 31 0:29 / {place} rw,relatime - {kind} {kind} rw,{options}\n"


@pytest.fixture
def v1(tmp_path) -> str:
    """Lines of mountinfo with all controllers of version 1."""
    for name in USED:
        (tmp_path / name).mkdir()
    return "".join(mounted("cgroup", tmp_path / name, name) for name in USED)


@pytest.fixture
def v2(tmp_path) -> str:
    """A line of mountinfo with a version 2 that has all controllers."""
    return unified(tmp_path / "unified", "cpuset cpu io memory pids")


def unified(place: Path, controllers: str) -> str:
    place.mkdir()
    (place / "cgroup.controllers").write_text(controllers)
    return mounted("cgroup2", place, "nsdelegate")


@pytest.fixture
def no_systemd(monkeypatch):
    monkeypatch.setattr(detect, "has_systemd", lambda: False)


@pytest.fixture
def silent_systemd(monkeypatch, tmp_path):
    """It is there, and its programs are not."""
    monkeypatch.setattr(detect, "has_systemd", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(detect, "PROGRAMS", str(tmp_path))


def why(mountinfo: str, delegated_unit: str | None = None) -> str:
    place = choose(GROUP, delegated_unit, mountinfo)
    assert place.kind == "none"
    return place.controls()["memory"].partition("twice; ")[2]


@pytest.mark.usefixtures("no_systemd")
def test_version_1_is_used_alone_and_where_it_has_the_controllers(v1, tmp_path):
    """As on a hybrid machine, with systemd or without; a holder is for version 2."""
    assert choose(GROUP, None, v1).kind == "cgroup-v1"
    assert (tmp_path / "memory" / GROUP).is_dir()
    mountinfo = v1 + unified(tmp_path / "unified", "")
    assert choose(GROUP, "drfd-jobs.service", mountinfo).kind == "cgroup-v1"


@pytest.mark.usefixtures("no_systemd")
def test_a_machine_with_nothing_has_all_reasons(tmp_path):
    assert why("") == ("no cgroup v2 is mounted")
    hybrid = mounted("cgroup", tmp_path, "cpu") + unified(tmp_path / "unified", "cpu io")
    assert why(hybrid) == (
        "cgroup v2 has no controller memory, pids; "
        "no cgroup v1 controller memory, pids, freezer is mounted"
    )


@pytest.mark.usefixtures("no_systemd")
def test_a_tree_that_is_closed_to_us_is_named(v1, tmp_path):
    (tmp_path / "pids/drfd").write_text("in the way")
    who = "root" if os.getuid() == 0 else f"uid {os.getuid()}"
    assert why(v1) == (f"no cgroup v2 is mounted; cannot make cgroups as {who}: Not a directory")


@pytest.mark.usefixtures("no_systemd")
def test_where_version_2_is_alone_version_1_is_not_spoken_of(v2, tmp_path):
    """A plain file can be no cgroup: that it has no subtree_control stands for a refusal."""
    (tmp_path / "unified/cgroup.subtree_control").mkdir()
    assert why(v2) == f"{tmp_path}/unified/cgroup.subtree_control: Is a directory"


@pytest.mark.usefixtures("silent_systemd")
def test_with_systemd_nothing_is_made_below_the_root(v2, tmp_path):
    """Its rule, whether it answers or not."""
    # An ordinary user's manager is not even asked unless it lingers.
    reason = "No such file or directory" if os.getuid() == 0 else "loginctl enable-linger"
    assert reason in why(v2)
    assert [path.name for path in (tmp_path / "unified").iterdir()] == ["cgroup.controllers"]


@pytest.mark.usefixtures("silent_systemd")
def test_a_holder_that_fails_is_no_reason_to_run_jobs_elsewhere(v2):
    with pytest.raises(DelegationFailed, match="systemctl: No such file"):
        choose(GROUP, "drfd-jobs.service", v2)


@pytest.mark.usefixtures("silent_systemd")
def test_who_cannot_move_into_a_users_manager_stays(v2, v1):
    """And `choose` says why."""
    detect.move_to_users_manager(v2)
    detect.move_to_users_manager(v1)


UNIT = "drfd-jobs.service"
OWN = "drfd-x.service"
ALL = frozenset({"cpu", "cpuset", "io", "memory", "pids"})


class Kernel:
    """The cgroup tree: what is written to its files has the effects that the kernel gives it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: What the top of the tree has for us.
        self.controllers = "cpuset cpu io memory pids misc"
        #: Directory or file, relative to the root → errno of each change to it.
        self.fails: dict[str, int] = {}
        #: What is written to cgroup.subtree_control → errno.
        self.refuses: dict[str, int] = {}
        self.killed: list[int] = []
        self.make(root)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def make(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        given = self.controllers
        if directory != self.root:
            given = (directory.parent / "cgroup.subtree_control").read_text()
        for name, text in (("controllers", given), ("subtree_control", ""), ("procs", "")):
            (directory / f"cgroup.{name}").write_text(text)
        (directory / "cgroup.events").write_text("populated 0\nfrozen 0\n")

    def mkdir(self, directory: Path) -> None:
        self._fail(directory)
        if not directory.is_dir():
            self.make(directory)

    def write(self, file: Path, text: str) -> None:
        self._fail(file)
        if file.name == "cgroup.procs":
            self.leave(int(text))
            self.enter(file.parent, int(text))
        else:
            assert file.name == "cgroup.subtree_control" and text[0] == "+"
            if pids(file.parent) and file.parent != self.root:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(file))
            if text in self.refuses:
                raise OSError(self.refuses[text], os.strerror(self.refuses[text]), str(file))
            there = file.read_text().split()
            assert text[1:] in (file.parent / "cgroup.controllers").read_text().split()
            file.write_text(" ".join(sorted({*there, text[1:]})))

    def enter(self, directory: Path, pid: int) -> None:
        (directory / "cgroup.procs").write_text("".join(f"{x}\n" for x in [*pids(directory), pid]))
        self.count()

    def leave(self, pid: int) -> None:
        for procs in self.root.rglob("cgroup.procs"):
            left = [x for x in pids(procs.parent) if x != pid]
            procs.write_text("".join(f"{x}\n" for x in left))
        self.count()

    def count(self) -> None:
        for directory in (self.root, *(path for path in self.root.rglob("*") if path.is_dir())):
            living = any(pids(below.parent) for below in directory.rglob("cgroup.procs"))
            (directory / "cgroup.events").write_text(f"populated {int(living)}\nfrozen 0\n")

    def kill(self, pid: int, number: int) -> None:
        self.killed.append(pid)
        self.leave(pid)

    def rmdir(self, path: str) -> None:
        directory = Path(path)
        if pids(directory) or any(each.is_dir() for each in directory.iterdir()):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        for each in directory.iterdir():
            each.unlink()
        os.rmdir(path)

    def _fail(self, path: Path) -> None:
        name = str(path.relative_to(self.root))
        if name in self.fails:
            raise OSError(self.fails[name], os.strerror(self.fails[name]), str(path))


def pids(directory: Path) -> list[int]:
    return [int(line) for line in (directory / "cgroup.procs").read_text().split()]


def tree(root: Path) -> dict[str, str]:
    """Cgroup, relative to the root → controllers that those in it get."""
    found = [root, *sorted(path for path in root.rglob("*") if path.is_dir())]
    return {
        str(path.relative_to(root)): (path / "cgroup.subtree_control").read_text() for path in found
    }


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> Kernel:
    kernel = Kernel(tmp_path / "cgroup")

    class KernelPath(PosixPath):
        def mkdir(self, mode: int = 0, parents: bool = False, exist_ok: bool = False) -> None:
            kernel.mkdir(Path(str(self)))

        def write_text(self, data: str, *words: Any, **more: Any) -> int:
            kernel.write(Path(str(self)), data)
            return len(data)

    monkeypatch.setattr(detect, "Path", KernelPath)
    monkeypatch.setattr(detect, "os", kernel)
    monkeypatch.setattr(detect, "_POLL_S", 0.001)
    return kernel


@dataclass
class Systemd:
    """What a manager answers and does."""

    kernel: Kernel
    unit: dict[str, str] = field(default_factory=dict)
    #: Units that were started and stopped, in order.
    done: list[str] = field(default_factory=list)

    def show(self, unit: str, *words: str) -> dict[str, str]:
        assert unit in (UNIT, OWN)
        asked = words[0].removeprefix("--property=").split(",")
        nothing = {"ActiveState": "inactive", "ControlGroup": ""}
        return {name: (nothing | self.unit).get(name, "no") for name in asked}

    def start_holder(self, unit: str, mount: str) -> None:
        assert mount == str(self.kernel.root)
        self.done.append(f"start {unit}")
        self.have()

    def stop(self, unit: str) -> None:
        self.done.append(f"stop {unit}")

    @property
    def top(self) -> Path:
        return self.kernel.root / "drfd.slice" / OWN

    def have(self) -> None:
        for directory in (self.top.parent, self.top):
            self.kernel.make(directory)
            control = directory.parent / "cgroup.subtree_control"
            control.write_text(self.kernel.controllers)
            (directory / "cgroup.controllers").write_text(self.kernel.controllers)
        self.unit = {
            "ActiveState": "active",
            "ControlGroup": f"/drfd.slice/{OWN}",
            "Delegate": "yes",
        }


@pytest.fixture
def systemd(kernel) -> Systemd:
    return Systemd(kernel)


# -- a unit that somebody else keeps alive --------------------------------------------------


@pytest.fixture
def service(systemd) -> Systemd:
    systemd.have()
    return systemd


@pytest.mark.parametrize(
    "given", ["cpu cpuset io memory pids", "cpu cpuset dmem io memory pids", "memory pids"]
)
def test_jobs_live_one_level_below_a_delegated_unit(kernel, systemd, given):
    """The unit's own files stay systemd's. (Linux 6.14 has a controller of device memory; systemd
    gives it only to units whose slices have been given it.) A place that is there already is taken
    as it is."""
    kernel.controllers = f"{given} misc"
    systemd.have()
    for _ in range(2):
        place = in_unit(str(kernel.root), UNIT, systemd)
        assert (place.group, place.controllers) == (f"drfd.slice/{OWN}/jobs", {*given.split()})
        assert tree(systemd.top) == {".": given, "jobs": given}
    place.release()
    assert tree(systemd.top).keys() == {".", "jobs"}, "the unit is not ours to end"


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ({"ActiveState": "inactive"}, f"is inactive: start it with systemctl start {UNIT}$"),
        ({"ActiveState": "failed"}, f"is failed: start it with systemctl start {UNIT}$"),
        ({"Delegate": "no"}, "Delegate=yes"),
    ],
)
def test_a_unit_that_cannot_have_jobs_is_refused_with_the_cure(service, unit, said):
    service.unit |= unit
    with pytest.raises(NoJobGroup, match=f"^{UNIT}.*{said}"):
        in_unit(str(service.kernel.root), UNIT, service)


def test_an_optional_controller_that_is_refused_is_done_without_and_a_required_one_is_the_end(
    service,
):
    """cpu cannot be had where real-time processes live."""
    kernel = service.kernel
    kernel.refuses = {"+cpu": errno.EINVAL, "+pids": errno.EINVAL}
    with pytest.raises(NoJobGroup, match=r"cgroup.subtree_control: Invalid argument"):
        in_unit(str(kernel.root), UNIT, service)
    del kernel.refuses["+pids"]
    assert in_unit(str(kernel.root), UNIT, service).controllers == ALL - {"cpu"}


@pytest.mark.parametrize("given", ["cpu io memory", "cpu io pids", ""])
def test_without_memory_or_pids_it_does_not(kernel, systemd, given):
    kernel.controllers = given
    systemd.have()
    with pytest.raises(NoJobGroup, match=r"has no controller (memory|pids)"):
        in_unit(str(kernel.root), UNIT, systemd)


# -- a service of our own -------------------------------------------------------------------


def test_a_service_is_started_once_and_stopped_with_the_last_launcher(systemd):
    for _ in range(2):
        place = in_own_unit(str(systemd.kernel.root), OWN, systemd)
        assert (place.group, place.controllers) == (f"drfd.slice/{OWN}/jobs", ALL)
        assert systemd.done == [f"start {OWN}"]
    place.release()
    assert systemd.done == [f"start {OWN}", f"stop {OWN}"]


# -- without systemd ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "number", "said"),
    [
        ("cgroup.subtree_control", errno.EBUSY, "processes live in {root} itself"),
        (
            "cgroup.subtree_control",
            errno.EROFS,
            "{root}/cgroup.subtree_control: Read-only file system",
        ),
        ("drfd", errno.EACCES, "{root}/drfd: Permission denied"),
        ("drfd/x", errno.EROFS, "{root}/drfd/x: Read-only file system"),
        (
            "drfd/x/cgroup.subtree_control",
            errno.EPERM,
            "{root}/drfd/x/cgroup.subtree_control: Operation not permitted",
        ),
    ],
)
def test_a_container_that_forbids_it_is_left_as_it_was(kernel, file, number, said):
    """Its own processes live at its top, where they stay: nothing of others is moved."""
    kernel.fails[file] = number
    with pytest.raises(NoJobGroup) as raised:
        below_root(str(kernel.root), "drfd/x")
    assert str(raised.value) == said.format(root=kernel.root)
    assert tree(kernel.root).keys() == {"."}


# -- what systemd is asked and how --------------------------------------------------------


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a shell script of this name first on PATH; the file that has the words it was given."""

    def program(name: str, script: str) -> Path:
        given = tmp_path / f"{name}.given"
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$@" >> {given}\n{script}\n')
        path.chmod(0o755)
        return given

    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(detect, "PROGRAMS", path)
    return program


SYSTEM, USERS = Manager(is_users=False), Manager(is_users=True)


def test_a_users_manager_is_found_where_nobody_says_it_is(program, monkeypatch):
    """After sudo -u, or from cron; but who says otherwise is believed."""
    program("systemctl", 'echo "A=$XDG_RUNTIME_DIR"')
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert USERS.show("--property=A") == {"A": f"/run/user/{os.getuid()}"}
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/elsewhere")
    assert USERS.show("--property=A") == {"A": "/elsewhere"}


def test_root_runs_its_own_programs_with_nothing_of_the_callers_environment(
    program, monkeypatch, tmp_path
):
    """`drfd serve` may be started from anybody's shell, by sudo for example."""
    program("systemctl", 'echo "A=$DBUS_SYSTEM_BUS_ADDRESS$LD_PRELOAD"')
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/tmp/evil")
    assert SYSTEM.show("--property=A") == {"A": ""}
    monkeypatch.setattr(detect, "PROGRAMS", str(tmp_path / "none"))
    with pytest.raises(NoJobGroup, match="systemctl: No such file"):
        SYSTEM.show("--property=A")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo hint >&2; echo 'Failed to connect to bus: No medium found' >&2; exit 1",
         "systemctl: Failed to connect to bus: No medium found"),
        ("exit 1", "systemctl: failed and said nothing"),
        ("exec sleep 60", "systemctl: no answer within 0 s"),
    ],
)  # fmt: skip
def test_a_manager_that_does_not_answer_is_told(program, monkeypatch, script, said):
    monkeypatch.setattr(detect, "_ANSWER_S", 0.3 if "sleep" in script else 20.0)
    program("systemctl", script)
    with pytest.raises(NoJobGroup) as raised:
        SYSTEM.show("x.scope")
    assert str(raised.value) == said


def test_lingering_is_what_logind_has_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "LINGER", str(tmp_path))
    assert not detect.lingers(os.getuid())
    (tmp_path / pwd.getpwuid(os.getuid()).pw_name).touch()
    assert detect.lingers(os.getuid())
    assert not detect.lingers(4_000_000_000), "nobody's"


def test_a_service_is_started_when_an_earlier_one_has_ended(program):
    stopped = program("systemctl", "exit 5")
    given = program("systemd-run", "")
    USERS.start_holder("x.service", "/mnt")
    assert stopped.read_text() == "--user stop x.service\n"
    for word in ("--user", "--collect", "--unit=x.service", "--property=Delegate=yes"):
        assert f" {word} " in f" {given.read_text()} "
    program("systemd-run", "echo first >&2; echo 'Access denied' >&2; exit 1")
    with pytest.raises(NoJobGroup, match="systemd-run: Access denied"):
        SYSTEM.start_holder("x.service", "/mnt")


def test_a_process_goes_on_in_a_scope_with_its_pid_and_descriptors(program):
    given = program("systemd-run", 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.set_inheritable(into, True)
        try:
            USERS.become_scope(["sh", "-c", f"echo $$ > /proc/self/fd/{into}"])
        finally:
            os._exit(1)
    os.close(into)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(os.read(out, 100)) == pid
    os.close(out)
    scope = "--user --scope --quiet --collect --slice=drfd.slice"
    assert given.read_text().splitlines()[0] == f"{scope} true", "tried out first"


# -- lines of /proc/self/mountinfo as kernels write them ----------------------------------


SEPARATE = """\
23 28 0:22 / /proc rw,relatime shared:13 - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:10 - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
TOGETHER = """\
40 31 0:37 / /sys/fs/cgroup/cpu,cpuacct rw shared:2 master:1 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/memory rw,nosuid - cgroup none rw,memory
"""
V2_ONLY = """\
29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
"""


def test_controllers_are_found_where_they_are_mounted_also_if_they_share_a_hierarchy():
    names = ("cpu", "cpuacct", "memory", "freezer", "blkio", "pids")
    assert find_mounts(SEPARATE, USED) == {name: f"/sys/fs/cgroup/{name}" for name in names}
    shared = dict.fromkeys(("cpu", "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct")
    assert find_mounts(TOGETHER, USED) == {**shared, "memory": "/sys/fs/cgroup/memory"}
    # proc_pid_mountinfo(5): blank, tab, line feed and backslash are written in octal.
    line = "32 31 0:29 / /mnt/my\\040cgroups/cpu rw - cgroup cgroup rw,cpu\n"
    assert find_mounts(line, USED) == {"cpu": "/mnt/my cgroups/cpu"}
    for none in ("", V2_ONLY, SEPARATE.splitlines()[0] + "\n"):
        assert find_mounts(none, USED) == {}
