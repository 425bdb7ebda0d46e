"""Who has which CPUs: on cpusets of plain files for either version, where what is written has the
effects that the kernel gives it (as tried on 6.18 and 6.1), and without cpusets by affinity."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest
from cgroupspy.controllers import Controller
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drfd.launcher.attempt_files import Key, cgroup_name
from drfd.launcher.confinement.cores import (
    Affinity,
    Cpus,
    Cpusets,
    LogicalCpu,
    Pins,
    choose_cpus,
    parse_list,
    read_machine,
)
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.protocol import PIN, QUOTA, WEIGHT, AttemptLimits
from drfd.launcher.system.files import Plain
from seeds import examples

# -- on cpusets; the machine has two nodes of four CPUs, 0 to 3 and 4 to 7 ----------------


ALL = frozenset(range(8))
MACHINE = tuple(LogicalCpu(number=number, node=number // 4, core=number) for number in range(8))


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
        self.furnish(root, "0-7", "0-1")

    def furnish(self, directory: Path, cpus: str, mems: str) -> None:
        directory.mkdir(exist_ok=True)
        for name, text in (("cpus", cpus), ("mems", mems)):
            # As cgroup.clone_children does on version 1.
            (directory / f"cpuset.{name}").write_text(f"{text if self.is_v1 else ''}\n")
            (directory / self.names[name]).write_text(text + "\n")
        if self.is_v1:
            (directory / "cpuset.memory_migrate").write_text("0\n")

    def make(self, key: Key) -> None:
        self.furnish(self.root / cgroup_name(key), "0-7", "0-1")

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

    def open(self) -> Pins:
        """As a launcher that starts."""
        return Pins(Cpusets(str(self.root), is_v1=self.is_v1), MACHINE)

    def pin(self, pins: Pins, number: int, count: int) -> Cpus:
        self.make((number, 1))
        assert pins.pin((number, 1), count)
        return self.cpus((number, 1))

    def share(self, pins: Pins, number: int) -> None:
        self.make((number, 1))
        pins.share((number, 1))


@pytest.fixture(params=["v1", "v2"])
def kernel(request, tmp_path, monkeypatch) -> Kernel:
    kernel = Kernel(tmp_path / "jobs", is_v1=request.param == "v1")
    monkeypatch.setattr(Plain, "set_property", lambda *words: kernel.write(*words))
    return kernel


@pytest.fixture
def pins(kernel) -> Pins:
    return kernel.open()


def test_more_cpus_than_there_are_cannot_be_pinned(kernel, pins):
    """Somebody must stay with something, when more was given out than there is."""
    kernel.pin(pins, 1, 6)
    kernel.make((2, 1))
    assert not pins.pin((2, 1), 3)
    pins.share((2, 1))
    kernel.make((3, 1))
    assert not pins.pin((3, 1), 2), "job 2 would have nothing"
    assert kernel.cpus((2, 1)) == {6, 7}


def test_a_processor_that_goes_offline_is_neither_pinned_nor_shared(kernel, pins):
    (kernel.root / kernel.names["cpus"]).write_text("1-7\n")
    assert kernel.pin(pins, 1, 3) == {1, 2, 3}
    kernel.share(pins, 2)
    assert kernel.cpus((2, 1)) == {4, 5, 6, 7}
    kernel.make((3, 1))
    assert not pins.pin((3, 1), 5)


def test_a_job_that_cannot_be_moved_off_keeps_another_from_starting(kernel, pins):
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


def test_what_the_kernel_makes_otherwise_is_no_limit(kernel, pins, monkeypatch):
    kernel.make((1, 1))
    monkeypatch.setattr(
        Plain, "set_property", lambda one, name, value: kernel.write(one, name, "0-1,7")
    )
    with pytest.raises(LimitFailed, match="was set to"):
        pins.pin((1, 1), 2)


class Life(RuleBasedStateMachine):
    """Jobs come and go, launchers are killed; never more than the machine has."""

    is_v1: bool
    fresh: Callable[[], Kernel]

    def __init__(self) -> None:
        super().__init__()
        self.kernel = type(self).fresh()
        self.pins = self.kernel.open()
        self.running: dict[Key, int] = {}
        self.sharing: set[Key] = set()
        self.last = 0

    def _room(self) -> int:
        """CPUs that nobody is owed; those who share are owed one each."""
        return 8 - sum(self.running.values()) - len(self.sharing)

    def _new(self) -> Key:
        self.last += 1
        self.kernel.make((self.last, 1))
        return (self.last, 1)

    @rule(count=st.integers(1, 8))
    def pin(self, count):
        if count <= self._room():
            key = self._new()
            assert self.pins.pin(key, count)
            self.running[key] = count

    @precondition(lambda self: self._room() > 0)
    @rule()
    def share(self):
        key = self._new()
        self.pins.share(key)
        self.sharing.add(key)

    @rule(data=st.data())
    def end(self, data):
        known = sorted({*self.running, *self.sharing})
        if known:
            key = data.draw(st.sampled_from(known))
            self.kernel.remove(key)
            self.pins.forget(key)
            self.running.pop(key, None)
            self.sharing.discard(key)

    @rule()
    def kill_the_launcher(self):
        self.pins = self.kernel.open()

    @invariant()
    def nobody_is_where_another_is_pinned(self):
        held = {key: self.kernel.cpus(key) for key in self.running}
        assert {key: len(cpus) for key, cpus in held.items()} == self.running
        taken = frozenset[int]().union(*held.values())
        assert len(taken) == sum(map(len, held.values()))
        for key in self.sharing:
            assert self.kernel.cpus(key) == ALL - taken


@pytest.mark.slow
@pytest.mark.parametrize("is_v1", [True, False], ids=["v1", "v2"])
def test_whatever_happens_every_cpu_is_one_jobs_or_everybodys(tmp_path, monkeypatch, is_v1):
    made: list[Kernel] = []

    def fresh() -> Kernel:
        made.append(Kernel(tmp_path / f"jobs{len(made)}", is_v1=is_v1))
        return made[-1]

    monkeypatch.setattr(Plain, "set_property", lambda *words: made[-1].write(*words))
    life = type("Life", (Life,), {"fresh": staticmethod(fresh)})
    case = life.TestCase
    case.settings = settings(examples(20), stateful_step_count=25)
    case("runTest").runTest()


# -- without cpusets ----------------------------------------------------------------------


@pytest.fixture
def cpus() -> Iterator[list[int]]:
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


def limits(cores_milli: int, cores_by: str = QUOTA) -> AttemptLimits:
    return AttemptLimits(cores_milli=cores_milli, memory_bytes=1, pids=1, cores_by=cores_by)


def kept(affinity: Affinity, cores_milli: int, cpus: list[int], by: str = QUOTA) -> set[int]:
    """The CPUs that the next job of so many cores is on."""
    affinity.choose((1, 1), limits(cores_milli, by))
    os.sched_setaffinity(0, affinity.cpus((1, 1)) or cpus)
    found = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    return found


@pytest.mark.parametrize(
    ("cores_milli", "by", "count"),
    [(0, QUOTA, 1), (1, QUOTA, 1), (1000, QUOTA, 1), (1001, QUOTA, 2), (1_000_000, QUOTA, 99),
     (1_000_000, PIN, 99), (1000, WEIGHT, 99)],
)  # fmt: skip
def test_cores_are_rounded_up_to_whole_cpus_and_who_has_a_weight_may_run_everywhere(
    cpus, cores_milli, by, count
):
    assert len(kept(Affinity(), cores_milli, cpus, by)) == min(count, len(cpus))


def built(nodes: int, cores: int, threads: int) -> tuple[LogicalCpu, ...]:
    """As kernels number them: each core's first thread, node by node, then the second ones."""
    count = nodes * cores
    return tuple(
        LogicalCpu(number=thread * count + core, node=core // cores, core=core)
        for thread in range(threads)
        for core in range(count)
    )


@st.composite
def machines(draw: st.DrawFn) -> tuple[tuple[LogicalCpu, ...], Cpus]:
    """A machine, some CPUs of which may be offline, and those of them that are free."""
    shape = built(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    online = tuple(draw(st.lists(st.sampled_from(shape), unique=True, min_size=1)))
    free = draw(st.sets(st.sampled_from(sorted(cpu.number for cpu in online))))
    return online, frozenset(free)


def threads_of(machine: tuple[LogicalCpu, ...]) -> dict[tuple[int, int], set[int]]:
    cores: dict[tuple[int, int], set[int]] = {}
    for cpu in machine:
        cores.setdefault((cpu.node, cpu.core), set()).add(cpu.number)
    return cores


def free_by_node(machine: tuple[LogicalCpu, ...], free: Cpus) -> dict[int, int]:
    nodes = {cpu.node for cpu in machine}
    return {node: sum(c.node == node and c.number in free for c in machine) for node in nodes}


@given(machines(), st.integers(1, 40))
def test_it_is_as_many_free_cpus_as_asked_or_nothing(given_, count):
    machine, free = given_
    chosen = choose_cpus(count, free, machine)
    if count > len(free):
        assert chosen is None
    else:
        assert chosen is not None and chosen <= free and len(chosen) == count


def nodes_of(cpus: Cpus, machine: tuple[LogicalCpu, ...]) -> set[int]:
    return {cpu.node for cpu in machine if cpu.number in cpus}


@given(machines(), st.data())
def test_no_choice_needs_fewer_nodes(given_, data):
    """So a job that fits on one node is on one."""
    machine, free = given_
    count = data.draw(st.integers(1, max(1, len(free))))
    chosen = choose_cpus(count, free, machine)
    if chosen is None:
        return
    used = len(nodes_of(chosen, machine))
    left = free_by_node(machine, free)
    assert not any(sum(few) >= count for few in combinations(left.values(), used - 1))


@given(machines(), st.data())
def test_whole_cores_come_first_and_one_is_broken_only_if_nothing_else_is_left_on_its_node(
    given_, data
):
    """At most one of a node's whole cores is taken in part, and then no CPU of a core that others
    have begun on is left free there."""
    machine, free = given_
    chosen = choose_cpus(data.draw(st.integers(1, max(1, len(free)))), free, machine)
    if chosen is None:
        return
    cores = threads_of(machine)
    for node in nodes_of(chosen, machine):
        here = {core: cpus for core, cpus in cores.items() if core[0] == node}
        whole = [cpus for cpus in here.values() if cpus <= free]
        broken = [cpus for cpus in whole if cpus & chosen and not cpus <= chosen]
        untouched_parts = [
            cpus for cpus in here.values() if not cpus <= free and cpus & free - chosen
        ]
        assert len(broken) <= 1
        assert not (broken and untouched_parts)
    # A part of a core is taken only if no whole one of the node would do.
    for node in nodes_of(chosen, machine):
        here = [cpus for core, cpus in threads_of(machine).items() if core[0] == node]
        in_parts = sum(len(cpus & chosen) for cpus in here if cpus & chosen and not cpus <= chosen)
        untouched = [len(cpus) for cpus in here if cpus <= free and not cpus & chosen]
        assert not untouched or in_parts < min(untouched)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_machine_is_read_as_the_kernel_describes_it_and_as_one_node_where_it_does_not(tmp_path):
    assert read_machine({0, 1}, tmp_path) == (LogicalCpu(0, 0, 0), LogicalCpu(1, 0, 1))
    # Two nodes, of two threads a core.
    lists = {
        "": set(),
        "\n": set(),
        "0\n": {0},
        "0-3\n": {0, 1, 2, 3},
        "0-1,8,10-11": {0, 1, 8, 10, 11},
    }
    assert {text: parse_list(text) for text in lists} == lists
    write(tmp_path / "node/node0/cpulist", "0,2\n")
    write(tmp_path / "node/node1/cpulist", "1,3\n")
    (tmp_path / "node/possible").write_text("0-1\n")
    for number, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        write(tmp_path / f"cpu/cpu{number}/topology/thread_siblings_list", f"{siblings}\n")
    found = (LogicalCpu(0, 0, 0), LogicalCpu(1, 1, 1), LogicalCpu(3, 1, 1))
    assert read_machine({3, 0, 1}, tmp_path) == found
