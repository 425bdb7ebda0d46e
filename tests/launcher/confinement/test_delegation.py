"""Where the jobs' cgroup comes from: on a tree of plain files, with a manager that does what
systemd does. The real one is asked in tests/system."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.launcher.confinement import detect
from drfd.launcher.confinement.detect import (
    SLEEP,
    Keeper,
    NoJobGroup,
    below_root,
    in_scope,
    in_unit,
)

UNIT = "drfd-jobs.service"
SCOPE = "drfd-x.scope"
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
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
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
    monkeypatch.setattr(detect, "_RESTART_S", 0.001)
    return kernel


@dataclass(frozen=True)
class Sleeper(Keeper):
    """A real process, which only this tree has in a scope."""

    kernel: Kernel

    def is_in(self, unit: str) -> bool:
        return self.process.pid in pids(self.kernel.root / "drfd.slice" / unit)


@dataclass
class Systemd:
    """What a manager answers and does. `births`: what becomes of each scope that is started."""

    kernel: Kernel
    unit: dict[str, str] = field(default_factory=dict)
    births: list[Callable[[Keeper], None]] = field(default_factory=list)
    started: list[Keeper] = field(default_factory=list)
    #: Called at each look.
    on_show: Callable[[], None] = lambda: None

    def show(self, unit: str, *words: str) -> dict[str, str]:
        assert unit in (UNIT, SCOPE)
        self.on_show()
        asked = words[0].removeprefix("--property=").split(",")
        nothing = {"ActiveState": "inactive", "ControlGroup": "", "LoadState": "not-found"}
        return {name: (nothing | self.unit).get(name, "no") for name in asked}

    def start_scope(self, unit: str, description: str) -> Keeper:
        process = subprocess.Popen(SLEEP)
        self.started.append(Sleeper(process, os.memfd_create("said"), self.kernel))
        self.births.pop(0)(self.started[-1])
        return self.started[-1]

    @property
    def top(self) -> Path:
        return self.kernel.root / "drfd.slice" / SCOPE

    def live(self, keeper: Keeper) -> None:
        """The scope comes up, the process in it."""
        self.have(keeper.process.pid)

    def have(self, *inhabitants: int) -> None:
        for directory in (self.top.parent, self.top):
            self.kernel.make(directory)
            control = directory.parent / "cgroup.subtree_control"
            control.write_text(self.kernel.controllers)
            (directory / "cgroup.controllers").write_text(self.kernel.controllers)
        for pid in inhabitants:
            self.kernel.enter(self.top, pid)
        self.unit = {
            "ActiveState": "active",
            "LoadState": "loaded",
            "ControlGroup": f"/drfd.slice/{SCOPE}",
            "Delegate": "yes",
        }

    def be_lost(self, keeper: Keeper) -> None:
        """systemd does not notice that it has started."""
        self.kernel.make(self.top.parent)
        self.kernel.make(self.top)

    def fail(self, keeper: Keeper) -> None:
        os.write(keeper.said_fd, b"Hint: x\nFailed to start transient scope unit: no\n")
        keeper.kill()


@pytest.fixture
def systemd(kernel: Kernel) -> Iterator[Systemd]:
    systemd = Systemd(kernel)
    yield systemd
    for keeper in systemd.started:
        keeper.kill()
        os.close(keeper.said_fd)


# -- a unit that somebody else keeps alive --------------------------------------------------


@pytest.fixture
def service(systemd: Systemd) -> Systemd:
    systemd.have()
    return systemd


def test_jobs_live_one_level_below_a_delegated_unit(service: Systemd) -> None:
    """The unit's own files stay systemd's."""
    place = in_unit(str(service.kernel.root), UNIT, service)
    assert (place.group, place.controllers) == (f"drfd.slice/{SCOPE}/jobs", ALL)
    assert tree(service.top) == {
        ".": "cpu cpuset io memory pids",
        "jobs": "cpu cpuset io memory pids",
    }
    place.release()
    assert tree(service.top).keys() == {".", "jobs"}, "the unit is not ours to end"


def test_the_controller_of_device_memory_is_passed_on_where_there_is_one(
    service: Systemd,
) -> None:
    """Linux 6.14 has one; systemd gives it only to units whose slices have been given it."""
    control = service.top / "cgroup.controllers"
    control.write_text(f"{control.read_text()} dmem")
    place = in_unit(str(service.kernel.root), UNIT, service)
    assert place.controllers == ALL | {"dmem"}
    assert tree(service.top) == {
        ".": "cpu cpuset dmem io memory pids",
        "jobs": "cpu cpuset dmem io memory pids",
    }


def test_a_place_that_is_there_already_is_taken_as_it_is(service: Systemd) -> None:
    first = in_unit(str(service.kernel.root), UNIT, service)
    service.kernel.mkdir(service.top / "jobs/job-1-1")
    assert in_unit(str(service.kernel.root), UNIT, service).group == first.group
    assert "jobs/job-1-1" in tree(service.top)


@pytest.mark.parametrize("state", ["inactive", "failed", "activating"])
def test_a_unit_that_is_not_active_is_refused_with_the_cure(service: Systemd, state: str) -> None:
    service.unit |= {"ActiveState": state}
    with pytest.raises(NoJobGroup) as raised:
        in_unit(str(service.kernel.root), UNIT, service)
    assert str(raised.value) == f"{UNIT} is {state}: start it with systemctl start {UNIT}"


def test_a_unit_without_delegation_is_refused(service: Systemd) -> None:
    service.unit |= {"Delegate": "no"}
    with pytest.raises(NoJobGroup, match="Delegate=yes"):
        in_unit(str(service.kernel.root), UNIT, service)


def test_the_units_keeper_may_still_be_about_to_move(
    service: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the kernel says EBUSY."""
    service.kernel.enter(service.top, 77)
    looks = iter(range(5))

    def sleep(pause_s: float) -> None:
        if next(looks) == 4:
            service.kernel.leave(77)

    # Not `time` itself: threads that other tests have left behind may sleep, too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(detect, "time", clock)
    assert in_unit(str(service.kernel.root), UNIT, service).controllers == ALL


def test_a_unit_whose_keeper_stays_is_refused(
    service: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "_MOVE_S", 0.01)
    service.kernel.enter(service.top, 77)
    with pytest.raises(NoJobGroup, match=f"processes live in {service.top} itself"):
        in_unit(str(service.kernel.root), UNIT, service)


def test_without_cpu_and_io_a_unit_still_does(kernel: Kernel, systemd: Systemd) -> None:
    kernel.controllers = "memory pids"
    systemd.have()
    assert in_unit(str(kernel.root), UNIT, systemd).controllers == {"memory", "pids"}


def test_an_optional_controller_that_is_refused_is_done_without(service: Systemd) -> None:
    """cpu cannot be had where real-time processes live."""
    kernel = service.kernel
    kernel.refuses["+cpu"] = errno.EINVAL
    assert in_unit(str(kernel.root), UNIT, service).controllers == ALL - {"cpu"}


def test_a_required_controller_that_is_refused_is_the_end(service: Systemd) -> None:
    service.kernel.refuses["+pids"] = errno.EINVAL
    with pytest.raises(NoJobGroup, match=r"cgroup.subtree_control: Invalid argument"):
        in_unit(str(service.kernel.root), UNIT, service)


@pytest.mark.parametrize("given", ["cpu io memory", "cpu io pids", ""])
def test_without_memory_or_pids_it_does_not(kernel: Kernel, systemd: Systemd, given: str) -> None:
    kernel.controllers = given
    systemd.have()
    with pytest.raises(NoJobGroup, match=r"has no controller (memory|pids)"):
        in_unit(str(kernel.root), UNIT, systemd)


def test_a_tree_that_is_read_only_is_named(service: Systemd) -> None:
    service.kernel.fails[f"drfd.slice/{SCOPE}/jobs"] = errno.EROFS
    with pytest.raises(NoJobGroup) as raised:
        in_unit(str(service.kernel.root), UNIT, service)
    assert str(raised.value) == f"{UNIT}: {service.top}/jobs: Read-only file system"


# -- a scope of our own ---------------------------------------------------------------------


def test_a_scope_is_started_around_a_keeper_in_its_own_cgroup(systemd: Systemd) -> None:
    systemd.births = [systemd.live]
    place = in_scope(str(systemd.kernel.root), SCOPE, systemd)
    (keeper,) = systemd.started
    assert (place.group, place.controllers) == (f"drfd.slice/{SCOPE}/jobs", ALL)
    assert tree(systemd.top) == {
        ".": "cpu cpuset io memory pids",
        "jobs": "cpu cpuset io memory pids",
        "keeper": "",
    }
    assert (pids(systemd.top), pids(systemd.top / "keeper")) == ([], [keeper.process.pid])
    assert not keeper.has_failed()


def test_the_next_launcher_finds_it_again(systemd: Systemd) -> None:
    systemd.births = [systemd.live]
    first = in_scope(str(systemd.kernel.root), SCOPE, systemd)
    second = in_scope(str(systemd.kernel.root), SCOPE, systemd)
    assert second.group == first.group
    assert len(systemd.started) == 1


def test_released_it_loses_its_keeper_and_systemd_takes_it_away(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "_END_S", 0.01)
    systemd.births = [systemd.live]
    place = in_scope(str(systemd.kernel.root), SCOPE, systemd)
    systemd.kernel.rmdir(str(systemd.top / "jobs"))
    place.release()
    assert systemd.kernel.killed == [systemd.started[0].process.pid]
    assert "populated 0" in (systemd.top / "cgroup.events").read_text()


def test_a_scope_that_went_by_itself_needs_no_release(systemd: Systemd) -> None:
    systemd.births = [systemd.live]
    place = in_scope(str(systemd.kernel.root), SCOPE, systemd)
    systemd.kernel.leave(systemd.started[0].process.pid)
    for name in ("jobs", "keeper", "."):
        systemd.kernel.rmdir(str(systemd.top / name))
    place.release()
    assert systemd.kernel.killed == []


def test_a_scope_without_processes_is_about_to_go_and_is_waited_for(systemd: Systemd) -> None:
    """The launcher before us has just released it."""
    systemd.have()
    looks = iter(range(5))

    def go() -> None:
        if next(looks, 0) == 4:
            systemd.unit = {}

    systemd.on_show = go
    systemd.births = [systemd.live]
    in_scope(str(systemd.kernel.root), SCOPE, systemd)
    assert len(systemd.started) == 1


def test_a_scope_that_jobs_alone_keep_alive_gets_another_keeper(systemd: Systemd) -> None:
    systemd.births = [systemd.live]
    in_scope(str(systemd.kernel.root), SCOPE, systemd)
    systemd.kernel.mkdir(systemd.top / "jobs/job-1-1")
    systemd.kernel.enter(systemd.top / "jobs/job-1-1", 77)
    systemd.kernel.leave(systemd.started[0].process.pid)
    in_scope(str(systemd.kernel.root), SCOPE, systemd)
    (keeper,) = pids(systemd.top / "keeper")
    assert keeper not in (77, systemd.started[0].process.pid)
    os.kill(keeper, 9)
    assert os.waitpid(keeper, 0)[1] == 9, "it was a living child of ours"
    assert len(systemd.started) == 1


def test_a_scope_that_is_lost_at_birth_is_started_again(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd/systemd#36781: declared dead at once, while its process lives."""
    monkeypatch.setattr(detect, "_START_S", 0.01)
    systemd.births = [systemd.be_lost, systemd.live]
    in_scope(str(systemd.kernel.root), SCOPE, systemd)
    lost, living = systemd.started
    assert (lost.has_failed(), living.has_failed()) == (True, False)


def test_a_scope_that_dies_while_it_is_furnished_is_started_again(systemd: Systemd) -> None:
    """Directory and state are looked at once more when all is done."""

    def die_later(keeper: Keeper) -> None:
        systemd.live(keeper)
        looks = iter(range(2))

        def die() -> None:
            if next(looks, None) == 1:
                systemd.unit = {}
                systemd.kernel.leave(keeper.process.pid)
                keeper.kill()

        systemd.on_show = die

    systemd.births = [die_later, systemd.live]
    in_scope(str(systemd.kernel.root), SCOPE, systemd)
    assert pids(systemd.top / "keeper") == [systemd.started[1].process.pid]


def test_what_systemd_says_against_a_scope_is_told(systemd: Systemd) -> None:
    systemd.births = [systemd.fail] * 3
    with pytest.raises(NoJobGroup) as raised:
        in_scope(str(systemd.kernel.root), SCOPE, systemd)
    assert str(raised.value) == "systemd-run: Failed to start transient scope unit: no"
    assert len(systemd.started) == 3


def test_a_scope_that_is_refused_while_its_predecessor_goes_is_started_again(
    systemd: Systemd,
) -> None:
    systemd.births = [systemd.fail, systemd.live]
    assert in_scope(str(systemd.kernel.root), SCOPE, systemd).controllers == ALL


def test_a_scope_that_never_comes_up_is_given_up(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no keeper is left that would sleep for nothing."""
    monkeypatch.setattr(detect, "_SCOPE_S", 0.02)
    monkeypatch.setattr(detect, "_START_S", 0.03)
    systemd.births = [systemd.be_lost]
    with pytest.raises(NoJobGroup, match="did not come up"):
        in_scope(str(systemd.kernel.root), SCOPE, systemd)
    assert systemd.started[0].has_failed()


def test_a_scope_that_vanishes_under_us_is_not_an_error_of_the_machine(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "_SCOPE_S", 0.02)
    systemd.kernel.fails[f"drfd.slice/{SCOPE}/jobs"] = errno.ENODEV
    systemd.births = [systemd.live]
    with pytest.raises(NoJobGroup, match="did not come up"):
        in_scope(str(systemd.kernel.root), SCOPE, systemd)


# -- without systemd ------------------------------------------------------------------------


def test_without_systemd_the_place_is_below_the_top(kernel: Kernel) -> None:
    place = below_root(str(kernel.root), "drfd/x")
    assert (place.group, place.controllers) == ("drfd/x", ALL)
    every = "cpu cpuset io memory pids"
    assert tree(kernel.root) == {".": every, "drfd": every, "drfd/x": every}
    kernel.rmdir(str(kernel.root / "drfd/x"))
    place.release()
    assert tree(kernel.root).keys() == {"."}


def test_what_another_instance_uses_stays(kernel: Kernel) -> None:
    place = below_root(str(kernel.root), "drfd/x")
    below_root(str(kernel.root), "drfd/y")
    kernel.rmdir(str(kernel.root / "drfd/x"))
    place.release()
    assert tree(kernel.root).keys() == {".", "drfd", "drfd/y"}


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
def test_a_container_that_forbids_it_is_left_as_it_was(
    kernel: Kernel, file: str, number: int, said: str
) -> None:
    """Its own processes live at its top, where they stay: nothing of others is moved."""
    kernel.fails[file] = number
    with pytest.raises(NoJobGroup) as raised:
        below_root(str(kernel.root), "drfd/x")
    assert str(raised.value) == said.format(root=kernel.root)
    assert tree(kernel.root).keys() == {"."}
