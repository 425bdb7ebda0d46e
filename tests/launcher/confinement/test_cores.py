"""Who has which CPUs, on cpusets of plain files for either version: what is written to them has
the effects that the kernel gives it (as tried on 6.18 and 6.1). The machine has two nodes of four
CPUs: 0 to 3 and 4 to 7."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cgroupspy.controllers import Controller
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drfd.launcher.attempt_files import Key, cgroup_name
from drfd.launcher.confinement.cores import Cpus, Cpusets, LogicalCpu, Pins, open_v1, parse_list
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.system.files import Plain
from seeds import examples

ALL = frozenset(range(8))
MACHINE = tuple(LogicalCpu(number=number, node=number // 4, core=number) for number in range(8))
GIB = 1 << 30


class Kernel:
    """Stands below cgroupspy's files, for one version."""

    def __init__(self, root: Path, *, is_v1: bool) -> None:
        self.root, self.is_v1 = root, is_v1
        self.names = {
            "cpus": "cpuset.effective_cpus" if is_v1 else "cpuset.cpus.effective",
            "mems": "cpuset.effective_mems" if is_v1 else "cpuset.mems.effective",
        }
        #: Job → errno of each write to its files.
        self.fails: dict[Key, int] = {}
        #: What each file was given, in order: job, file, value.
        self.writes: list[tuple[str, str, str]] = []
        self.frozen: set[Key] = set()
        self.memory: dict[Key, int] = {}
        self.room: dict[int, int] = {0: 64 * GIB, 1: 64 * GIB}
        self.furnish(root, "0-7", "0-1")

    def furnish(self, directory: Path, cpus: str, mems: str) -> None:
        directory.mkdir(exist_ok=True)
        inherits = not self.is_v1
        for name, text in (("cpus", cpus), ("mems", mems)):
            (directory / f"cpuset.{name}").write_text(text + "\n")
            there = text or (inherits and "0-7" if name == "cpus" else inherits and "0-1") or ""
            (directory / self.names[name]).write_text(there + "\n")
        if self.is_v1:
            (directory / "cpuset.memory_migrate").write_text("0\n")

    def make(self, key: Key) -> None:
        self.furnish(self.root / cgroup_name(key), "", "")

    def remove(self, key: Key) -> None:
        shutil.rmtree(self.root / cgroup_name(key))

    def write(self, controller: Controller, filename: bytes, value: object) -> None:
        path = Path(os.fsdecode(controller.filepath(filename)))
        for key, number in self.fails.items():
            if path.parent.name == cgroup_name(key):
                raise OSError(number, os.strerror(number), str(path))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        text = str(value).strip()
        assert text or not self.is_v1, "version 1 takes no empty cpuset that has processes"
        path.write_text(text + "\n")
        name = path.name.removeprefix("cpuset.")
        if name in self.names:
            whole = "0-7" if name == "cpus" else "0-1"
            path.with_name(self.names[name]).write_text((text or whole) + "\n")
        self.writes.append((path.parent.name, name, text))

    def cpus(self, key: Key) -> Cpus:
        """What the job's processes may run on."""
        return parse_list((self.root / cgroup_name(key) / self.names["cpus"]).read_text())

    def nodes(self, key: Key) -> Cpus:
        return parse_list((self.root / cgroup_name(key) / self.names["mems"]).read_text())

    def open(self) -> Pins:
        """As a launcher that starts."""
        return Pins(
            Cpusets(str(self.root), is_v1=self.is_v1),
            MACHINE,
            is_frozen=self.frozen.__contains__,
            memory_bytes=lambda key: self.memory.get(key, GIB),
            available_bytes=self.room.__getitem__,
        )

    def pin(self, pins: Pins, number: int, count: int) -> Cpus:
        self.make((number, 1))
        assert pins.pin((number, 1), count)
        return self.cpus((number, 1))

    def share(self, pins: Pins, number: int) -> None:
        self.make((number, 1))
        pins.share((number, 1))


@pytest.fixture(params=["v1", "v2"])
def kernel(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Kernel:
    kernel = Kernel(tmp_path / "jobs", is_v1=request.param == "v1")
    monkeypatch.setattr(Plain, "set_property", lambda *words: kernel.write(*words))
    return kernel


@pytest.fixture
def pins(kernel: Kernel) -> Pins:
    return kernel.open()


def test_a_pinned_job_is_alone_and_the_others_have_the_rest(kernel: Kernel, pins: Pins) -> None:
    kernel.share(pins, 1)
    assert kernel.cpus((1, 1)) == ALL
    assert kernel.pin(pins, 2, 3) == {0, 1, 2}
    assert kernel.nodes((2, 1)) == {0}
    kernel.share(pins, 3)
    assert kernel.cpus((1, 1)) == kernel.cpus((3, 1)) == {3, 4, 5, 6, 7}
    assert kernel.nodes((1, 1)) == {0, 1}


def test_the_others_leave_before_the_job_has_its_cpus(kernel: Kernel, pins: Pins) -> None:
    kernel.share(pins, 1)
    del kernel.writes[:]
    kernel.pin(pins, 2, 2)
    assert [job for job, name, _ in kernel.writes if name == "cpus"] == ["job-1-1", "job-2-1"]


def test_when_it_is_gone_the_others_have_its_cpus_again(kernel: Kernel, pins: Pins) -> None:
    kernel.share(pins, 1)
    kernel.pin(pins, 2, 4)
    kernel.remove((2, 1))
    pins.forget((2, 1))
    assert kernel.cpus((1, 1)) == ALL


def test_where_nothing_is_pinned_version_2_is_not_even_written_to(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.share(pins, 1)
    kernel.remove((1, 1))
    pins.forget((1, 1))
    assert bool(kernel.writes) == kernel.is_v1


def test_the_next_launcher_knows_who_is_pinned_from_the_kernel_alone(kernel: Kernel) -> None:
    pins = kernel.open()
    first = kernel.pin(pins, 1, 4)
    kernel.share(pins, 2)
    again = kernel.open()
    assert kernel.cpus((1, 1)) == first
    second = kernel.pin(again, 3, 3)
    assert not first & second
    assert kernel.cpus((2, 1)) == ALL - first - second


def test_a_launcher_that_was_killed_half_way_is_made_good(kernel: Kernel, pins: Pins) -> None:
    """The others had left already when it died, and the job that they had left for never came."""
    kernel.share(pins, 1)
    kernel.pin(pins, 2, 2)
    kernel.remove((2, 1))
    assert kernel.cpus((1, 1)) == ALL - {0, 1}
    kernel.open()
    assert kernel.cpus((1, 1)) == ALL


def test_a_frozen_jobs_cpus_are_for_others_and_it_gets_as_many_again(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.share(pins, 1)
    kernel.pin(pins, 2, 4)
    pins.park((2, 1))
    assert kernel.cpus((1, 1)) == ALL
    assert kernel.pin(pins, 3, 4) == {4, 5, 6, 7}, "as long as there are others"
    kernel.remove((3, 1))
    pins.forget((3, 1))
    assert pins.unpark((2, 1)) == 0
    assert kernel.cpus((2, 1)) == {0, 1, 2, 3}
    assert kernel.cpus((1, 1)) == {4, 5, 6, 7}


def test_a_job_whose_cpus_are_taken_when_it_is_thawed_gets_others_and_their_memory(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.pin(pins, 1, 4)
    pins.park((1, 1))
    kernel.pin(pins, 2, 3)
    # Node 0 is where three fit and one is left over.
    assert kernel.pin(pins, 3, 4) == {0, 1, 2, 3}
    kernel.remove((2, 1))
    pins.forget((2, 1))
    assert pins.unpark((1, 1)) == 0
    assert kernel.cpus((1, 1)) == {4, 5, 6, 7}
    assert kernel.nodes((1, 1)) == {1}


def test_a_launcher_that_finds_a_job_frozen_gives_its_cpus_away_too(kernel: Kernel) -> None:
    kernel.pin(kernel.open(), 1, 8)
    kernel.frozen.add((1, 1))
    pins = kernel.open()
    kernel.share(pins, 2)
    assert kernel.cpus((2, 1)) == ALL
    assert kernel.pin(pins, 3, 4)


def test_thawing_what_was_never_pinned_or_frozen_changes_nothing(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.share(pins, 1)
    kernel.pin(pins, 2, 2)
    before = list(kernel.writes)
    assert pins.unpark((1, 1)) == pins.unpark((2, 1)) == pins.unpark((9, 9)) == 0
    pins.park((1, 1))
    assert kernel.writes == before


def test_more_cpus_than_there_are_cannot_be_pinned(kernel: Kernel, pins: Pins) -> None:
    """Somebody must stay with something, when more was given out than there is."""
    kernel.pin(pins, 1, 6)
    kernel.make((2, 1))
    assert not pins.pin((2, 1), 3)
    pins.share((2, 1))
    kernel.make((3, 1))
    assert not pins.pin((3, 1), 2), "job 2 would have nothing"
    assert kernel.cpus((2, 1)) == {6, 7}


def test_who_shares_and_is_frozen_needs_nothing(kernel: Kernel, pins: Pins) -> None:
    """Its cores are given back in the books; when it goes on, there is room for it again."""
    kernel.share(pins, 1)
    kernel.frozen.add((1, 1))
    assert kernel.pin(pins, 2, 8) == ALL
    kernel.remove((2, 1))
    pins.forget((2, 1))
    kernel.pin(pins, 3, 6)
    assert pins.unpark((1, 1)) == 0
    assert kernel.cpus((1, 1)) == {6, 7}


def test_a_thawed_job_leaves_something_to_those_who_came_meanwhile(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.pin(pins, 1, 8)
    pins.park((1, 1))
    kernel.share(pins, 2)
    assert pins.unpark((1, 1)) == 8
    assert kernel.cpus((1, 1)) == kernel.cpus((2, 1)) == ALL


def test_who_comes_when_all_is_pinned_runs_beside_the_pinned(kernel: Kernel, pins: Pins) -> None:
    kernel.pin(pins, 1, 8)
    kernel.share(pins, 2)
    assert kernel.cpus((2, 1)) == ALL


def test_a_thawed_job_that_finds_no_cpus_runs_with_the_others_and_is_told_to_have_a_quota(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.pin(pins, 1, 4)
    pins.park((1, 1))
    kernel.pin(pins, 2, 6)
    assert pins.unpark((1, 1)) == 4
    assert kernel.cpus((1, 1)) == ALL - kernel.cpus((2, 1))
    again = kernel.open()
    kernel.remove((2, 1))
    again.forget((2, 1))
    assert kernel.pin(again, 3, 4) == {0, 1, 2, 3}
    assert kernel.cpus((1, 1)) == {4, 5, 6, 7}, "it is one of the others now"


def test_a_processor_that_goes_offline_is_neither_pinned_nor_shared(
    kernel: Kernel, pins: Pins
) -> None:
    (kernel.root / kernel.names["cpus"]).write_text("1-7\n")
    assert kernel.pin(pins, 1, 3) == {1, 2, 3}
    kernel.share(pins, 2)
    assert kernel.cpus((2, 1)) == {4, 5, 6, 7}
    kernel.make((3, 1))
    assert not pins.pin((3, 1), 5)


def test_when_the_place_of_all_jobs_is_gone_there_is_nobody_to_give_back_to(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.pin(pins, 1, 3)
    shutil.rmtree(kernel.root)
    pins.forget((1, 1))
    pins.park((1, 1))
    assert pins.unpark((1, 1)) == 0


@pytest.mark.parametrize(("asks", "nodes"), [(10, {0}), (11, {0, 1})])
def test_memory_stays_on_the_jobs_node_only_if_all_it_may_use_can_be_had_there(
    kernel: Kernel, pins: Pins, asks: int, nodes: set[int]
) -> None:
    """Else it would be killed for memory while another node has some."""
    kernel.memory = {(1, 1): 6 * GIB, (2, 1): asks * GIB}
    kernel.room[0] = 16 * GIB
    kernel.pin(pins, 1, 2)
    assert kernel.pin(pins, 2, 2) == {2, 3}
    assert kernel.nodes((2, 1)) == nodes


def test_a_job_on_several_nodes_has_the_memory_of_each(kernel: Kernel, pins: Pins) -> None:
    kernel.pin(pins, 1, 6)
    assert kernel.nodes((1, 1)) == {0, 1}
    again = kernel.open()
    assert kernel.pin(again, 2, 2) == {6, 7} or kernel.cpus((2, 1)) == {2, 3}


def test_a_job_that_cannot_be_moved_off_keeps_another_from_starting(
    kernel: Kernel, pins: Pins
) -> None:
    kernel.share(pins, 1)
    kernel.make((2, 1))
    kernel.fails[1, 1] = errno.EACCES
    with pytest.raises(LimitFailed, match=r"job-1-1/cpuset\.cpus: Permission denied"):
        pins.pin((2, 1), 2)
    del kernel.fails[1, 1]
    kernel.remove((2, 1))
    pins.forget((2, 1))
    assert kernel.pin(pins, 3, 8 - 1)
    assert len(kernel.cpus((1, 1))) == 1


def test_others_that_cannot_have_more_are_logged_and_nothing_stops(
    kernel: Kernel, pins: Pins, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.share(pins, 1)
    kernel.pin(pins, 2, 2)
    kernel.remove((2, 1))
    kernel.fails[1, 1] = errno.EACCES
    pins.forget((2, 1))
    assert "event=not-shared job=1 attempt=1" in caplog.text


def test_another_that_is_just_leaving_is_no_hindrance(kernel: Kernel, pins: Pins) -> None:
    kernel.share(pins, 1)
    (kernel.root / "job-1-1" / kernel.names["cpus"]).unlink()
    assert kernel.pin(pins, 2, 2) == {0, 1}


def test_what_the_kernel_makes_otherwise_is_no_limit(
    kernel: Kernel, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.make((1, 1))
    monkeypatch.setattr(
        Plain, "set_property", lambda one, name, value: kernel.write(one, name, "0-1,7")
    )
    with pytest.raises(LimitFailed, match="was set to"):
        pins.pin((1, 1), 2)


def test_on_version_1_our_directories_get_what_is_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one is empty, and could be entered by nobody."""
    kernel = Kernel(tmp_path / "top", is_v1=True)
    monkeypatch.setattr(Plain, "set_property", lambda *words: kernel.write(*words))
    for name in ("drfd", "drfd/x"):
        kernel.furnish(kernel.root / name, "", "")
    open_v1(str(kernel.root), "drfd/x")
    for name in ("drfd", "drfd/x"):
        assert (kernel.root / name / "cpuset.cpus").read_text() == "0-7\n"
        assert (kernel.root / name / "cpuset.mems").read_text() == "0-1\n"
    done = list(kernel.writes)
    open_v1(str(kernel.root), "drfd/x")
    assert kernel.writes == done


class Life(RuleBasedStateMachine):
    """Jobs come and go, freeze and thaw, launchers are killed; never more than the machine has."""

    is_v1: bool
    fresh: Callable[[], Kernel]

    def __init__(self) -> None:
        super().__init__()
        self.kernel = type(self).fresh()
        self.pins = self.kernel.open()
        self.running: dict[Key, int] = {}
        self.sharing: set[Key] = set()
        self.frozen: dict[Key, int] = {}
        self.frozen_sharing: set[Key] = set()
        self.last = 0

    def _room(self) -> int:
        """CPUs that nobody is owed; those who share are owed one each."""
        return 8 - sum(self.running.values()) - len(self.sharing)

    def _new(self) -> Key:
        self.last += 1
        self.kernel.make((self.last, 1))
        return (self.last, 1)

    @rule(count=st.integers(1, 8))
    def pin(self, count: int) -> None:
        if count <= self._room():
            key = self._new()
            assert self.pins.pin(key, count)
            self.running[key] = count

    @precondition(lambda self: self._room() > 0)
    @rule()
    def share(self) -> None:
        key = self._new()
        self.pins.share(key)
        self.sharing.add(key)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        known = sorted({*self.running, *self.sharing, *self.frozen, *self.frozen_sharing})
        if known:
            key = data.draw(st.sampled_from(known))
            self.kernel.remove(key)
            self.pins.forget(key)
            self.running.pop(key, None)
            self.frozen.pop(key, None)
            self.sharing.discard(key)
            self.frozen_sharing.discard(key)
            self.kernel.frozen.discard(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def freeze(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.kernel.frozen.add(key)
        self.pins.park(key)
        self.frozen[key] = self.running.pop(key)

    @rule(data=st.data())
    def thaw(self, data: st.DataObject) -> None:
        fitting = sorted(key for key, count in self.frozen.items() if count <= self._room())
        if fitting:
            key = data.draw(st.sampled_from(fitting))
            assert self.pins.unpark(key) == 0
            self.kernel.frozen.discard(key)
            self.running[key] = self.frozen.pop(key)

    @precondition(lambda self: self.sharing)
    @rule(data=st.data())
    def freeze_one_who_shares(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.sharing)))
        self.kernel.frozen.add(key)
        self.pins.park(key)
        self.sharing.remove(key)
        self.frozen_sharing.add(key)

    @precondition(lambda self: self.frozen_sharing and self._room() > 0)
    @rule(data=st.data())
    def thaw_one_who_shares(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.frozen_sharing)))
        assert self.pins.unpark(key) == 0
        self.kernel.frozen.discard(key)
        self.frozen_sharing.remove(key)
        self.sharing.add(key)

    @rule()
    def kill_the_launcher(self) -> None:
        self.pins = self.kernel.open()

    @invariant()
    def nobody_is_where_another_is_pinned(self) -> None:
        held = {key: self.kernel.cpus(key) for key in self.running}
        assert {key: len(cpus) for key, cpus in held.items()} == self.running
        taken = frozenset[int]().union(*held.values())
        assert len(taken) == sum(map(len, held.values()))
        for key in self.sharing:
            assert self.kernel.cpus(key) == ALL - taken


@pytest.mark.slow
@pytest.mark.parametrize("is_v1", [True, False], ids=["v1", "v2"])
def test_whatever_happens_every_cpu_is_one_jobs_or_everybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_v1: bool
) -> None:
    made: list[Kernel] = []

    def fresh() -> Kernel:
        made.append(Kernel(tmp_path / f"jobs{len(made)}", is_v1=is_v1))
        return made[-1]

    monkeypatch.setattr(Plain, "set_property", lambda *words: made[-1].write(*words))
    life = type("Life", (Life,), {"fresh": staticmethod(fresh)})
    case = life.TestCase
    case.settings = settings(examples(20), stateful_step_count=25)
    case("runTest").runTest()
