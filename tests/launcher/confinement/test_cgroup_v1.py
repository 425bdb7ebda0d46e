"""Cgroup v1 on a tree of plain files. `Kernel` is what fills it: files come and go with their
directory, cannot be made by hand, and take what the kernel takes; the rest is the real thing's
(tests/system)."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cgroupspy.controllers import Controller

from drfd.devices.nodes import DeviceNode
from drfd.launcher.attempt_files import Attempt
from drfd.launcher.confinement import cgroup_v1, cores, processes
from drfd.launcher.confinement.cgroup_v1 import CgroupV1
from drfd.launcher.confinement.device_hiding import HiddenByController
from drfd.launcher.confinement.interface import Devices, LimitFailed
from drfd.launcher.protocol import NO_PIN, PIN, QUOTA, SHARE, WEIGHT, AttemptLimits, DiskLimit
from drfd.launcher.system.files import Plain
from launcher.rig import WAIT_S, Start

KEY = (41, 2)
PAGE = os.sysconf("SC_PAGE_SIZE")
LIMITS = AttemptLimits(cores_milli=1500, memory_bytes=64 << 20, pids=100)

#: Files of a fresh cgroup, by controller.
FRESH = {
    "cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1", "cpu.shares": "1024"},
    "cpuacct": {"cpuacct.usage": "0"},
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.memsw.limit_in_bytes": "9223372036854771712",
        "memory.max_usage_in_bytes": "0",
        "memory.swappiness": "60",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
        "cgroup.event_control": "",
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
    "freezer": {"freezer.state": "THAWED"},
    "blkio": {"blkio.throttle.read_bps_device": "", "blkio.throttle.write_bps_device": ""},
    "cpuset": {
        "cpuset.cpus": "",
        "cpuset.mems": "",
        "cpuset.effective_cpus": "",
        "cpuset.effective_mems": "",
        "cpuset.memory_migrate": "0",
    },
}


class Kernel:
    """Stands in for the module `os`, and below cgroupspy's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Controllers of each hierarchy, by its directory's name.
        self.hierarchies = {name: [name] for name in ("memory", "pids", "freezer", "blkio")}
        self.hierarchies["cpu,cpuacct"] = ["cpu", "cpuacct"]
        #: File → what it makes of any value that is written.
        self.insists: dict[str, str] = {}
        #: File or directory that fails with this errno, by name.
        self.fails: dict[str, int] = {}
        #: (cgroup file, value), in order.
        self.writes: list[tuple[str, str]] = []
        for hierarchy in self.hierarchies:
            (root / hierarchy).mkdir()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def add_cpusets(self) -> None:
        """A machine of one node and four CPUs, with our group made already."""
        self.hierarchies["cpuset"] = ["cpuset"]
        directory = self.root / "cpuset"
        for place in (directory, directory / "drfd", directory / "drfd/test"):
            place.mkdir()
            for name, text in FRESH["cpuset"].items():
                (place / name).write_text(text + "\n")
        for name, text in (("effective_cpus", "0-3"), ("effective_mems", "0")):
            (directory / f"cpuset.{name}").write_text(f"{text}\n")

    def mounts(self) -> dict[str, str]:
        return {
            controller: str(self.root / hierarchy)
            for hierarchy, controllers in self.hierarchies.items()
            for controller in controllers
        }

    def mkdir(self, path: str) -> None:
        hierarchy = Path(path).relative_to(self.root).parts[0]
        self._fail(hierarchy, path)
        os.mkdir(path)
        for controller in self.hierarchies[hierarchy]:
            for name, text in FRESH[controller].items():
                (Path(path) / name).write_text(text + "\n" if text else "")
        for name in ("cgroup.procs", "tasks"):
            (Path(path) / name).write_text("")

    def rmdir(self, path: str) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if (procs := Path(path, "cgroup.procs")).exists() and procs.read_text():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        for entry in Path(path).iterdir():
            if entry.is_file():
                entry.unlink()
        os.rmdir(path)

    def write(self, controller: Controller, filename: bytes, value: object) -> None:
        path = os.fsdecode(controller.filepath(filename))
        name = os.path.basename(path)
        self._fail(name, path)
        if not os.path.exists(path):
            # In a cgroup no file can be made; without the cgroup there is no place for one.
            number = errno.EACCES if os.path.exists(os.path.dirname(path)) else errno.ENOENT
            raise OSError(number, os.strerror(number), path)
        text = self.insists.get(name, str(value))
        if name.startswith("blkio.throttle."):
            text = self._throttle(Path(path).read_text(), text)
        if name in ("cpuset.cpus", "cpuset.mems"):
            effective = name.replace("cpuset.", "cpuset.effective_")
            Path(path).with_name(effective).write_text(text + "\n")
        Path(path).write_text(text + "\n" if text else "")
        self.writes.append((path, str(value)))

    def _throttle(self, there: str, line: str) -> str:
        """One device a line, the latest first; a rate of 0 removes its line (as tried on 6.18)."""
        device, rate = line.split()
        kept = [old for old in there.splitlines() if old.split()[0] != device]
        return "\n".join(kept if rate == "0" else [line, *kept])

    def _fail(self, name: str, path: str) -> None:
        if name in self.fails:
            raise OSError(self.fails[name], os.strerror(self.fails[name]), path)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel(tmp_path)
    monkeypatch.setattr(cgroup_v1, "os", kernel)
    monkeypatch.setattr(processes, "os", kernel)
    monkeypatch.setattr(Plain, "set_property", lambda *words: kernel.write(*words))
    return kernel


def open_place(kernel: Kernel) -> CgroupV1:
    return CgroupV1(kernel.mounts(), "drfd/test", HiddenByController("", "", "drfd/test", ""))


@pytest.fixture
def place(kernel: Kernel) -> CgroupV1:
    return open_place(kernel)


def file(kernel: Kernel, name: str, *, key: tuple[int, int] = KEY) -> Path:
    """The file of the attempt's cgroup; the name begins with its controller's."""
    controller = name.split(".")[0]
    return Path(kernel.mounts()[controller], f"drfd/test/job-{key[0]}-{key[1]}", name)


def values(kernel: Kernel, *names: str) -> dict[str, str]:
    return {name: file(kernel, name).read_text().strip() for name in names}


def directories(kernel: Kernel) -> list[str]:
    """Job cgroups that are there, below any controller."""
    return sorted(str(path.relative_to(kernel.root)) for path in kernel.root.glob("*/drfd/test/*"))


def procs(kernel: Kernel, controller: str) -> Path:
    return file(kernel, f"{controller}.x").with_name("cgroup.procs")


HIERARCHIES = ("blkio", "cpu,cpuacct", "freezer", "memory", "pids")
ALL = [f"{hierarchy}/drfd/test/job-41-2" for hierarchy in HIERARCHIES]


# -- the group ------------------------------------------------------------------------------


def test_our_group_is_made_once_in_each_hierarchy(kernel: Kernel) -> None:
    for _ in range(2):
        open_place(kernel)
    groups = [str(path.relative_to(kernel.root)) for path in kernel.root.glob("*/*/*")]
    assert sorted(groups) == [f"{name}/drfd/test" for name in HIERARCHIES]


def test_a_machine_that_forbids_it_is_an_error_of_the_machine(kernel: Kernel) -> None:
    (kernel.root / "pids/drfd").write_text("in the way")
    with pytest.raises(OSError, match="drfd"):
        open_place(kernel)


def test_closing_leaves_what_is_in_use(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, LIMITS, Devices())
    place.close()
    assert directories(kernel) == ALL
    place.remove(KEY)
    place.close()
    place.close()
    assert list(kernel.root.glob("*/drfd/*")) == []


def test_it_says_what_it_enforces(kernel: Kernel, place: CgroupV1) -> None:
    controls = place.controls()
    resources = ("cores", "memory", "read", "write", "processes")
    kinds = {name: text.split(":")[0] for name, text in controls.items()}
    assert kinds == dict.fromkeys(resources, "enforced")
    assert "buffered" in controls["write"]
    assert (place.kind, place.mounts()) == ("cgroup-v1", kernel.mounts())
    assert place.cgroup_path(KEY) == "drfd/test/job-41-2"


def test_without_blkio_it_does_not_claim_to_limit_disks(kernel: Kernel) -> None:
    del kernel.hierarchies["blkio"]
    controls = open_place(kernel).controls()
    assert [controls[name].split(":")[0] for name in ("read", "write")] == ["not controlled"] * 2


# -- limits ---------------------------------------------------------------------------------


def test_all_limits_are_in_the_kernels_files(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, LIMITS, Devices())
    assert directories(kernel) == ALL
    limit = str(64 << 20)
    assert values(
        kernel,
        *("cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares", "pids.max"),
        *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness"),
        *("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    ) == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
        "cpu.shares": "1536",
        "pids.max": "100",
        "memory.limit_in_bytes": limit,
        "memory.memsw.limit_in_bytes": limit,
        "memory.swappiness": "0",
        "blkio.throttle.read_bps_device": "",
        "blkio.throttle.write_bps_device": "",
    }


@pytest.mark.parametrize(
    ("cores_milli", "quota", "shares"),
    [(0, "1000", "2"), (1, "1000", "2"), (10, "1000", "10"), (11, "1100", "11"),
     (2000, "200000", "2048")],
)  # fmt: skip
def test_cores_become_a_quota_that_the_kernel_takes(
    kernel: Kernel, place: CgroupV1, cores_milli: int, quota: str, shares: str
) -> None:
    """It takes no quota below a millisecond, and no shares below 2."""
    place.create(KEY, AttemptLimits(cores_milli=cores_milli, memory_bytes=PAGE, pids=1), Devices())
    found = values(kernel, "cpu.cfs_quota_us", "cpu.shares")
    assert found == {"cpu.cfs_quota_us": quota, "cpu.shares": shares}


def test_memory_is_cut_to_whole_pages_as_the_kernel_does(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, AttemptLimits(cores_milli=1000, memory_bytes=5 * PAGE + 1, pids=1), Devices())
    assert values(kernel, "memory.limit_in_bytes") == {"memory.limit_in_bytes": str(5 * PAGE)}


def test_without_swap_accounting_the_memory_limit_stands_alone(
    kernel: Kernel, place: CgroupV1, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FRESH["memory"], "memory.memsw.limit_in_bytes")
    place.create(KEY, LIMITS, Devices())
    assert file(kernel, "memory.limit_in_bytes").read_text() == f"{64 << 20}\n"
    assert not file(kernel, "memory.memsw.limit_in_bytes").exists()


def test_each_direction_of_a_disk_is_limited_as_declared(kernel: Kernel, place: CgroupV1) -> None:
    """cgroupspy 0.2.3 has a blank at the end of the name of the write throttle."""
    disks = (DiskLimit(device="8:0", read_bps=1_000_000, write_bps=2_000_000),)
    place.create(
        KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1, disks=disks), Devices()
    )
    names = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
    assert values(kernel, *names) == {names[0]: "8:0 1000000", names[1]: "8:0 2000000"}
    assert [os.path.basename(path) for path, _ in kernel.writes[-2:]] == list(names)


def test_a_direction_that_is_not_declared_is_not_limited(kernel: Kernel, place: CgroupV1) -> None:
    disks = (DiskLimit(device="8:0", read_bps=0, write_bps=2_000_000),)
    place.create(
        KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1, disks=disks), Devices()
    )
    names = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
    assert values(kernel, *names) == {names[0]: "", names[1]: "8:0 2000000"}


def test_every_disk_is_limited(kernel: Kernel, place: CgroupV1) -> None:
    """The kernel's file has a line for each of them."""
    disks = tuple(
        DiskLimit(device=device, read_bps=1000, write_bps=2000) for device in ("8:0", "8:16")
    )
    place.create(
        KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1, disks=disks), Devices()
    )
    found = file(kernel, "blkio.throttle.read_bps_device").read_text().splitlines()
    assert sorted(found) == ["8:0 1000", "8:16 1000"]
    found = file(kernel, "blkio.throttle.write_bps_device").read_text().splitlines()
    assert sorted(found) == ["8:0 2000", "8:16 2000"]


def test_a_disk_limit_without_blkio_does_not_start_the_job(kernel: Kernel) -> None:
    del kernel.hierarchies["blkio"]
    place = open_place(kernel)
    disks = (DiskLimit(device="8:0", read_bps=1, write_bps=0),)
    with pytest.raises(LimitFailed, match="blkio"):
        place.create(
            KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1, disks=disks), Devices()
        )
    assert place.leftovers() == []


DISK = (DiskLimit(device="8:0", read_bps=1000, write_bps=2000),)


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("cpu.cfs_quota_us", "-1"),
        ("cpu.cfs_quota_us", "149999"),
        ("cpu.shares", "1024"),
        ("memory.limit_in_bytes", "9223372036854771712"),
        ("memory.memsw.limit_in_bytes", "9223372036854771712"),
        ("pids.max", "max"),
        ("pids.max", "99"),
        ("blkio.throttle.read_bps_device", "8:0 999"),
        ("blkio.throttle.write_bps_device", "8:16 2000"),
        ("blkio.throttle.write_bps_device", "8:0 0"),
    ],
)
def test_a_limit_that_reads_otherwise_is_no_limit(
    kernel: Kernel, place: CgroupV1, name: str, reads: str
) -> None:
    """The job does not start, and nothing of its cgroup stays."""
    kernel.insists[name] = reads
    with pytest.raises(LimitFailed) as raised:
        place.create(
            KEY,
            AttemptLimits(cores_milli=1500, memory_bytes=64 << 20, pids=100, disks=DISK),
            Devices(),
        )
    assert name.split(".")[0] in str(raised.value)
    assert directories(kernel) == []


def test_a_device_that_cannot_be_hidden_keeps_the_job_from_starting(
    kernel: Kernel, place: CgroupV1
) -> None:
    assert place.hiding()[0] == "none"
    with pytest.raises(LimitFailed, match="hidden from jobs: drfd sees no devices controller"):
        place.create(KEY, LIMITS, Devices(hidden=frozenset({DeviceNode("c", 195, 0)})))
    assert directories(kernel) == []


def test_where_devices_share_a_hierarchy_each_job_has_one_cgroup_there(kernel: Kernel) -> None:
    """A process can be in one cgroup of a hierarchy only, wherever the launcher itself is."""
    line = f"36 32 0:31 / {kernel.root}/freezer rw - cgroup cgroup rw,freezer,devices\n"
    shared = str(kernel.root / "freezer")
    devices = HiddenByController(line, "3:freezer,devices:/system.slice\n", "drfd/test", shared)
    assert devices.parent == f"{shared}/drfd/test"
    place = CgroupV1(kernel.mounts(), "drfd/test", devices)
    place.create(KEY, LIMITS, Devices())
    assert [file for file in place.entrance(KEY, LIMITS, 0).files if "freezer" in file] == [
        f"{shared}/drfd/test/job-41-2/tasks"
    ]
    assert (place.leftovers(), place.remove(KEY), directories(kernel)) == ([KEY], True, [])


@pytest.mark.parametrize(
    "name",
    [
        *("cpu.cfs_quota_us", "cpu.shares", "pids.max"),
        *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness"),
        *("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    ],
)
def test_a_limit_that_the_kernel_refuses_is_named(
    kernel: Kernel, place: CgroupV1, name: str
) -> None:
    kernel.fails[name] = errno.EINVAL
    with pytest.raises(LimitFailed) as raised:
        place.create(
            KEY,
            AttemptLimits(cores_milli=1500, memory_bytes=64 << 20, pids=100, disks=DISK),
            Devices(),
        )
    assert str(raised.value) == f"{file(kernel, name)}: Invalid argument"
    assert directories(kernel) == []


def test_a_period_that_is_not_the_usual_one_is_set_and_read_back(
    kernel: Kernel, place: CgroupV1, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FRESH["cpu"], "cpu.cfs_period_us", "50000")
    for attempt in (1, 2):
        place.create((1, attempt), LIMITS, Devices())
        assert file(kernel, "cpu.cfs_period_us", key=(1, attempt)).read_text() == "100000\n"
    kernel.insists["cpu.cfs_period_us"] = "60000"
    with pytest.raises(LimitFailed, match=r"cpu\.cfs_period_us was set to 100000 and reads"):
        place.create(KEY, LIMITS, Devices())
    del kernel.insists["cpu.cfs_period_us"]
    kernel.fails["cpu.cfs_period_us"] = errno.EINVAL
    with pytest.raises(LimitFailed) as raised:
        place.create(KEY, LIMITS, Devices())
    assert str(raised.value) == f"{file(kernel, 'cpu.cfs_period_us')}: Invalid argument"


def test_what_every_new_cgroup_has_already_is_not_set_again(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The period is the kernel's default; the group hands down the rest, as set at the start."""
    kernel.add_cpusets()
    for name, text in (("cpuset.cpus", "0-3"), ("cpuset.mems", "0"), ("memory.swappiness", "0")):
        monkeypatch.setitem(FRESH[name.split(".")[0]], name, text)
    monkeypatch.setattr(cores, "usable_cpus", lambda: frozenset(range(4)))
    place = open_place(kernel)
    for attempt in (1, 2):
        place.create((1, attempt), LIMITS, Devices())
        mine = [os.path.basename(path) for path, _ in kernel.writes if f"job-1-{attempt}" in path]
        assert mine == [
            *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            *("cpu.shares", "cpu.cfs_quota_us", "pids.max"),
        ]


@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_a_cgroup_that_cannot_be_made_leaves_no_others(
    kernel: Kernel, place: CgroupV1, hierarchy: str
) -> None:
    kernel.fails[hierarchy] = errno.EACCES
    with pytest.raises(LimitFailed, match="Permission denied"):
        place.create(KEY, LIMITS, Devices())
    assert directories(kernel) == []


def test_a_kernel_that_is_full_of_cgroups_is_explained(kernel: Kernel, place: CgroupV1) -> None:
    kernel.fails["memory"] = errno.ENOSPC
    with pytest.raises(LimitFailed, match="no room for another cgroup"):
        place.create(KEY, LIMITS, Devices())


def test_a_cgroup_that_is_there_already_is_not_taken_over(kernel: Kernel, place: CgroupV1) -> None:
    """Its limits and peaks would be an earlier run's, and its processes."""
    place.create(KEY, LIMITS, Devices())
    procs(kernel, "memory").write_text("1\n")
    with pytest.raises(LimitFailed, match="File exists"):
        place.create(KEY, AttemptLimits(cores_milli=9000, memory_bytes=PAGE, pids=1), Devices())
    assert file(kernel, "memory.limit_in_bytes").read_text() == f"{64 << 20}\n"


def test_a_process_enters_every_hierarchy_once(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, LIMITS, Devices())
    place.enter(KEY, LIMITS, 0)
    found = {path.parts[-5]: path.read_text() for path in kernel.root.glob("*/*/*/*/tasks")}
    assert found == dict.fromkeys(kernel.hierarchies, "0")


def test_a_cgroup_that_cannot_be_entered_is_named(kernel: Kernel, place: CgroupV1) -> None:
    """The job's own process finds that out, and its submitter is to read it."""
    place.create(KEY, LIMITS, Devices())
    tasks = file(kernel, "pids.x").with_name("tasks")
    tasks.unlink()
    tasks.mkdir()
    with pytest.raises(LimitFailed, match=f"^{tasks}: Is a directory$"):
        place.enter(KEY, LIMITS, os.getuid())


# -- cores ----------------------------------------------------------------------------------


def limits(cores_milli: int, by: str) -> AttemptLimits:
    return AttemptLimits(cores_milli=cores_milli, memory_bytes=PAGE, pids=1, cores_by=by)


def test_with_weights_there_is_no_quota(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, limits(3000, WEIGHT), Devices())
    found = values(kernel, "cpu.cfs_quota_us", "cpu.shares")
    assert found == {"cpu.cfs_quota_us": "-1", "cpu.shares": "3072"}


@pytest.mark.parametrize("cpus", [2, 16, 64])
def test_weights_are_as_floors_within_a_hundredth(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, cpus: int
) -> None:
    monkeypatch.setattr(kernel, "cpu_count", lambda: cpus, raising=False)
    place = open_place(kernel)
    floors = [100, 101, 109, 125, 333, 999, 1001, 1500, 1000 * cpus]
    for number, floor in enumerate(floors, 1):
        place.create((number, 1), limits(floor, SHARE), Devices())
        shares = int(file(kernel, "cpu.shares", key=(number, 1)).read_text())
        assert shares / floor == pytest.approx(1024 / 1000, rel=0.01)


def test_what_a_job_is_lent_moves_its_quota_and_nothing_else(
    kernel: Kernel, place: CgroupV1
) -> None:
    assert place.lendable() == ("cores", "disks")
    assert place.cores()[SHARE].startswith("enforced: ")
    place.create(KEY, limits(1500, SHARE), Devices())
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares")
    begun = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000", "cpu.shares": "1536"}
    assert values(kernel, *names) == begun
    kernel.writes.clear()
    for _ in range(2):
        place.lend(KEY, 4000, ())
        assert values(kernel, *names) == {**begun, "cpu.cfs_quota_us": "400000"}
    assert [value for _, value in kernel.writes] == ["400000"], "once is enough"
    # As the kernel does for a group whose timer comes late.
    file(kernel, "cpu.cfs_period_us").write_text("200000\n")
    place.lend(KEY, 1500, ())
    assert values(kernel, "cpu.cfs_quota_us") == {"cpu.cfs_quota_us": "300000"}


def test_a_period_that_the_kernel_doubles_meanwhile_halves_nobodys_quota(
    kernel: Kernel, place: CgroupV1, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create(KEY, limits(1500, SHARE), Devices())
    place.lend(KEY, 4000, ())
    write = kernel.write

    def double_first(controller: Controller, filename: bytes, value: object) -> None:
        monkeypatch.setattr(kernel, "write", write)
        file(kernel, "cpu.cfs_period_us").write_text("200000\n")
        write(controller, filename, value)

    monkeypatch.setattr(kernel, "write", double_first)
    place.lend(KEY, 1500, ())
    assert values(kernel, "cpu.cfs_quota_us", "cpu.cfs_period_us") == {
        "cpu.cfs_quota_us": "300000",
        "cpu.cfs_period_us": "200000",
    }


def test_a_disk_is_lent_by_its_rates(kernel: Kernel, place: CgroupV1) -> None:
    disk = DiskLimit(device="8:0", read_bps=1000, write_bps=0)
    place.create(KEY, replace(limits(1000, WEIGHT), disks=(disk,)), Devices())
    kernel.writes.clear()
    place.lend(KEY, None, (replace(disk, read_bps=5000),))
    names = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
    assert values(kernel, *names) == {names[0]: "8:0 5000", names[1]: ""}
    assert len(kernel.writes) == 1, "and nothing of its cores"


def test_without_blkio_no_disk_is_lent(kernel: Kernel) -> None:
    kernel.hierarchies.pop("blkio")
    assert open_place(kernel).lendable() == ("cores",)


def test_a_ceiling_that_the_kernel_refuses_is_named(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, limits(1000, SHARE), Devices())
    kernel.insists["cpu.cfs_quota_us"] = "5000"
    with pytest.raises(LimitFailed, match=r"cpu\.cfs_quota_us was set to 200000 and reads 5000"):
        place.lend(KEY, 2000, ())


def test_on_a_very_large_machine_weights_are_smaller_but_in_proportion(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes no more than 2^18, which is 256 times the usual weight of one core."""
    monkeypatch.setattr(kernel, "cpu_count", lambda: 1024, raising=False)
    place = open_place(kernel)
    place.create((1, 1), limits(1_024_000, WEIGHT), Devices())
    place.create((2, 1), limits(256_000, WEIGHT), Devices())
    shares = [file(kernel, "cpu.shares", key=key).read_text() for key in ((1, 1), (2, 1))]
    assert shares == ["262144\n", "65536\n"]


def test_without_cpusets_quotas_stand_in_for_pins_and_it_says_so(
    kernel: Kernel, place: CgroupV1
) -> None:
    place.create(KEY, limits(2000, PIN), Devices())
    assert values(kernel, "cpu.cfs_quota_us") == {"cpu.cfs_quota_us": "200000"}
    assert place.cores()[PIN] == f"enforced: {NO_PIN}: no cpuset controller is mounted"
    assert place.cores()[QUOTA] == place.controls()["cores"] == "enforced"


def test_cpusets_that_we_cannot_have_are_done_without(kernel: Kernel) -> None:
    kernel.add_cpusets()
    kernel.fails["cpuset.cpus"] = errno.EACCES
    place = open_place(kernel)
    assert place.cores()[PIN].endswith("drfd/cpuset.cpus: Permission denied")
    assert "cpuset" not in place.mounts()
    place.create(KEY, limits(2000, PIN), Devices())
    assert [name for name in directories(kernel) if "job" in name] == ALL


@pytest.fixture
def pinning(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> CgroupV1:
    monkeypatch.setattr(cores, "usable_cpus", lambda: frozenset(range(4)))
    kernel.add_cpusets()
    return open_place(kernel)


def cpuset(kernel: Kernel, key: tuple[int, int]) -> tuple[str, str, str]:
    names = ("cpus", "mems", "memory_migrate")
    cpus, mems, mark = (file(kernel, f"cpuset.{x}", key=key).read_text().strip() for x in names)
    return cpus, mems, mark


def quota(kernel: Kernel, key: tuple[int, int]) -> str:
    return file(kernel, "cpu.cfs_quota_us", key=key).read_text().strip()


def test_whole_cores_are_pinned_and_parts_have_a_quota_on_the_rest(
    kernel: Kernel, pinning: CgroupV1
) -> None:
    assert NO_PIN not in pinning.cores()[PIN]
    pinning.create((1, 1), limits(500, PIN), Devices())
    pinning.create((2, 1), limits(3000, PIN), Devices())
    assert (cpuset(kernel, (1, 1)), quota(kernel, (1, 1))) == (("3", "0", "0"), "50000")
    assert (cpuset(kernel, (2, 1)), quota(kernel, (2, 1))) == (("0-2", "0", "1"), "-1")
    assert pinning.remove((2, 1))
    assert cpuset(kernel, (1, 1)) == ("0-3", "0", "0")


@pytest.mark.parametrize("by", [QUOTA, WEIGHT])
def test_jobs_of_every_mode_have_a_cpuset_or_could_not_make_room(
    kernel: Kernel, pinning: CgroupV1, by: str
) -> None:
    pinning.create((1, 1), limits(2000, by), Devices())
    assert cpuset(kernel, (1, 1)) == ("0-3", "0", "0")
    pinning.create((2, 1), limits(2000, PIN), Devices())
    assert cpuset(kernel, (1, 1)) == ("2-3", "0", "0")


def test_a_pin_that_the_kernel_refuses_leaves_nothing_behind(
    kernel: Kernel, pinning: CgroupV1
) -> None:
    pinning.create((1, 1), limits(1000, QUOTA), Devices())
    kernel.fails["cpuset.memory_migrate"] = errno.EACCES
    with pytest.raises(LimitFailed, match=r"cpuset\.memory_migrate: Permission denied"):
        pinning.create((2, 1), limits(2000, PIN), Devices())
    del kernel.fails["cpuset.memory_migrate"]
    assert pinning.leftovers() == [(1, 1)]
    pinning.create((3, 1), limits(3000, PIN), Devices())
    assert cpuset(kernel, (1, 1)) == ("3", "0", "0")


def wake(place: CgroupV1, how: str) -> None:
    if how == "thaw":
        place.thaw((1, 1), None)
    else:
        place.signal((1, 1), None, signal.SIGTERM)


@pytest.mark.parametrize("how", ["thaw", "signal"])
def test_whatever_wakes_a_pinned_job_it_gets_cpus_first(
    kernel: Kernel, pinning: CgroupV1, how: str
) -> None:
    pinning.create((1, 1), limits(2000, PIN), Devices())
    assert pinning.freeze((1, 1), None)
    pinning.create((2, 1), limits(3000, PIN), Devices())
    assert cpuset(kernel, (2, 1))[0] == "0,2-3"
    pinning.remove((2, 1))
    pinning.create((2, 2), limits(1000, PIN), Devices())
    pinning.create((2, 3), limits(1000, PIN), Devices())
    wake(pinning, how)
    assert cpuset(kernel, (1, 1)) == ("0-1", "0", "1")
    assert states(kernel)[-1] == "THAWED"


@pytest.mark.parametrize("how", ["thaw", "signal"])
def test_a_job_that_finds_no_cpus_when_it_wakes_has_a_quota(
    kernel: Kernel, pinning: CgroupV1, how: str
) -> None:
    """The sum of what is given out stays what it is."""
    pinning.create((1, 1), limits(2000, PIN), Devices())
    pinning.freeze((1, 1), None)
    pinning.create((2, 1), limits(3000, PIN), Devices())
    wake(pinning, how)
    assert (cpuset(kernel, (1, 1)), quota(kernel, (1, 1))) == (("1", "0", "0"), "200000")


def test_a_job_that_is_slow_to_freeze_keeps_its_cpus(kernel: Kernel, pinning: CgroupV1) -> None:
    pinning.create((1, 1), limits(2000, PIN), Devices())
    kernel.insists["freezer.state"] = "FREEZING"
    assert not pinning.freeze((1, 1), None)
    pinning.create((2, 1), limits(2000, PIN), Devices())
    assert cpuset(kernel, (2, 1))[0] == "2-3"


def test_the_next_launcher_knows_who_is_pinned_and_who_is_frozen(
    kernel: Kernel, pinning: CgroupV1
) -> None:
    for number in (1, 2):
        pinning.create((number, 1), limits(2000, PIN), Devices())
    pinning.freeze((1, 1), None)
    again = open_place(kernel)
    again.create((3, 1), limits(500, PIN), Devices())
    assert cpuset(kernel, (3, 1))[0] == "0-1"
    again.create((4, 1), limits(1000, PIN), Devices())
    assert cpuset(kernel, (4, 1))[0] == "0"
    again.remove((3, 1))
    again.remove((4, 1))
    again.thaw((1, 1), None)
    assert cpuset(kernel, (1, 1)) == ("0-1", "0", "1")


# -- out of memory --------------------------------------------------------------------------


def test_news_of_oom_kills_are_ordered(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, LIMITS, Devices())
    event_fd = place.oom_descriptor(KEY)
    assert event_fd is not None
    try:
        ours, watched = (
            file(kernel, "memory.x").with_name("cgroup.event_control").read_text().split()
        )
        assert int(ours) == event_fd
        assert not os.get_inheritable(event_fd)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(event_fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(int(watched))
    finally:
        os.close(event_fd)


@pytest.mark.parametrize(
    ("kills", "peak", "found"),
    [
        (0, 0, (False, False)),
        (0, 64 << 20, (False, False)),
        (1, 64 << 20, (True, True)),
        (3, (64 << 20) - (1 << 19), (True, True)),
        (1, 32 << 20, (True, False)),
    ],
    ids=["quiet", "full", "over", "nearly", "the machine's own shortage"],
)
def test_a_kill_is_blamed_on_the_limit_only_if_it_was_reached(
    kernel: Kernel, place: CgroupV1, kills: int, peak: int, found: tuple[bool, bool]
) -> None:
    place.create(KEY, LIMITS, Devices())
    control = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
    file(kernel, "memory.oom_control").write_text(control)
    file(kernel, "memory.max_usage_in_bytes").write_text(f"{peak}\n")
    assert place.oom_kills(KEY) == found


def test_an_old_kernel_that_counts_no_kills_reports_none(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, LIMITS, Devices())
    file(kernel, "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 1\n")
    assert place.oom_kills(KEY) == (False, False)


def test_a_cgroup_that_is_gone_has_killed_nobody(place: CgroupV1) -> None:
    assert place.oom_kills(KEY) == (False, False)


# -- ending ---------------------------------------------------------------------------------


def states(kernel: Kernel) -> list[str]:
    return [value for path, value in kernel.writes if path.endswith("freezer.state")]


def test_processes_are_signalled_while_they_cannot_fork(
    kernel: Kernel, place: CgroupV1, start: Start
) -> None:
    place.create(KEY, LIMITS, Devices())
    gone = start("true")
    gone.wait(WAIT_S)
    jobs = [start("sleep", "60") for _ in range(2)]
    pids = [jobs[0].pid, gone.pid, jobs[1].pid]
    procs(kernel, "freezer").write_text("".join(f"{pid}\n" for pid in pids))
    place.signal(KEY, None, signal.SIGTERM)
    assert [job.wait(WAIT_S) for job in jobs] == [-signal.SIGTERM] * 2
    assert states(kernel) == ["FROZEN", "THAWED"]


def test_a_freezer_that_takes_long_does_not_stop_the_signal(
    kernel: Kernel, place: CgroupV1, start: Start
) -> None:
    """A process in uninterruptible sleep delays it."""
    place.create(KEY, LIMITS, Devices())
    job = start("sleep", "60")
    procs(kernel, "freezer").write_text(f"{job.pid}\n")
    kernel.insists["freezer.state"] = "FREEZING"
    place.signal(KEY, None, signal.SIGTERM)
    assert job.wait(WAIT_S) == -signal.SIGTERM
    assert states(kernel) == ["FROZEN", "THAWED"]


@pytest.mark.parametrize(("reads", "is_frozen"), [("FROZEN", True), ("FREEZING", False)])
def test_a_cgroup_is_frozen_when_the_kernel_says_that_all_of_it_is(
    kernel: Kernel, place: CgroupV1, reads: str, is_frozen: bool
) -> None:
    """FREEZING: a process in uninterruptible sleep delays it; it goes on in the background, and
    nobody is kept waiting for it."""
    place.create(KEY, LIMITS, Devices())
    kernel.insists["freezer.state"] = reads
    assert place.freeze(KEY, None) is is_frozen
    assert states(kernel) == ["FROZEN"]


def test_a_frozen_cgroup_is_thawed(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, LIMITS, Devices())
    place.freeze(KEY, None)
    place.thaw(KEY, None)
    assert values(kernel, "freezer.state") == {"freezer.state": "THAWED"}
    place.thaw(KEY, None)
    assert states(kernel) == ["FROZEN", "THAWED", "THAWED"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_frozen_cgroup_is_thawed_by_a_signal_or_nobody_could_take_it(
    kernel: Kernel, place: CgroupV1, start: Start, number: int
) -> None:
    place.create(KEY, LIMITS, Devices())
    job = start("sleep", "60")
    procs(kernel, "freezer").write_text(f"{job.pid}\n")
    place.freeze(KEY, None)
    if number == signal.SIGTERM:
        place.signal(KEY, None, number)
    else:
        place.kill_pass(KEY, None)
    assert job.wait(WAIT_S) == -number
    assert values(kernel, "freezer.state") == {"freezer.state": "THAWED"}


def test_killing_is_done_when_the_cgroup_is_empty(
    kernel: Kernel, place: CgroupV1, start: Start
) -> None:
    place.create(KEY, LIMITS, Devices())
    job = start("sh", "-c", "trap '' TERM; exec sleep 60")
    procs(kernel, "freezer").write_text(f"{job.pid}\n")
    attempt = Attempt(created={"boot_id": "x"})
    assert not place.kill_pass(KEY, attempt), "the plain file still lists it"
    assert job.wait(WAIT_S) == -signal.SIGKILL
    procs(kernel, "freezer").write_text("")
    assert place.kill_pass(KEY, attempt)


def test_an_empty_cgroup_is_not_even_frozen(kernel: Kernel, place: CgroupV1) -> None:
    place.create(KEY, LIMITS, Devices())
    assert place.kill_pass(KEY, None)
    assert states(kernel) == []


def test_a_cgroup_that_is_gone_needs_no_killing(place: CgroupV1) -> None:
    place.signal(KEY, None, signal.SIGTERM)
    assert place.kill_pass(KEY, None)
    assert place.remove(KEY)


def test_a_cgroup_that_is_gone_is_not_frozen_and_needs_no_thawing(place: CgroupV1) -> None:
    assert not place.freeze(KEY, None)
    place.thaw(KEY, None)


def test_a_cgroup_in_use_stays_and_is_removed_when_it_is_empty(
    kernel: Kernel, place: CgroupV1
) -> None:
    place.create(KEY, LIMITS, Devices())
    procs(kernel, "memory").write_text("1\n")
    assert not place.remove(KEY)
    assert "memory/drfd/test/job-41-2" in directories(kernel)
    assert place.leftovers() == [KEY]
    procs(kernel, "memory").write_text("")
    assert place.remove(KEY)
    assert directories(kernel) == []
    assert place.remove(KEY)


def test_an_attempt_is_left_over_while_any_hierarchy_has_it(
    kernel: Kernel, place: CgroupV1
) -> None:
    for key in ((10, 1), (9, 2)):
        place.create(key, LIMITS, Devices())
    kernel.rmdir(str(file(kernel, "memory.x", key=(9, 2)).parent))
    assert place.leftovers() == [(9, 2), (10, 1)]


@pytest.mark.parametrize(
    "name",
    [
        *("job-x-y", "job-1-x", "job-x-1", "job-1", "job-1-2-3", "job--1-2", "job-1-", "job--"),
        *("job", "Job-1-2", "other-1-2", "job-1-2.scope", "keeper", "job-²-1", "job-1-²"),
    ],
)
def test_directories_of_others_are_left_alone(kernel: Kernel, place: CgroupV1, name: str) -> None:
    place.create(KEY, LIMITS, Devices())
    (kernel.root / "memory/drfd/test" / name).mkdir()
    assert place.leftovers() == [KEY]


def test_the_groups_own_files_are_not_attempts(kernel: Kernel, place: CgroupV1) -> None:
    (kernel.root / "memory/drfd/test/cgroup.procs").write_text("")
    assert place.leftovers() == []
