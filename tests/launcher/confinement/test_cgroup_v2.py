"""Cgroup v2 on a tree of plain files. `Kernel` is what fills it: files come and go with their
directory, cannot be made by hand, and take what the kernel takes; the rest is the real thing's
(tests/system)."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cgroupspy.controllers import Controller

from drfd.devices.nodes import DeviceNode
from drfd.launcher.attempt_files import Attempt
from drfd.launcher.confinement import cgroup_v2, processes
from drfd.launcher.confinement import cores as cores_module
from drfd.launcher.confinement.cgroup_v2 import CgroupV2
from drfd.launcher.confinement.interface import Devices, Entrance, JobGroupGone, LimitFailed
from drfd.launcher.protocol import (
    NO_PIN,
    NO_SHARE,
    PIN,
    QUOTA,
    SHARE,
    UNIFIED,
    WEIGHT,
    AttemptLimits,
    DiskLimit,
)
from drfd.launcher.system import process
from drfd.launcher.system.files import Plain, get
from drfd.linux import syscalls
from launcher.rig import WAIT_S, Start, pid_in, until

KEY = (41, 2)
PAGE = os.sysconf("SC_PAGE_SIZE")
LIMITS = AttemptLimits(cores_milli=1500, memory_bytes=64 << 20, pids=100)
DISK = (DiskLimit(device="8:0", read_bps=1000, write_bps=2000),)
WITH_DISK = AttemptLimits(cores_milli=1500, memory_bytes=64 << 20, pids=100, disks=DISK)
GROUP = "drfd.slice/drfd-x.scope/jobs"

#: Files of a fresh cgroup, by controller; "" are those of every cgroup.
FRESH = {
    "": {
        "cgroup.procs": "",
        "cgroup.events": "populated 0\nfrozen 0",
        "cgroup.freeze": "0",
        "cgroup.kill": "",
    },
    "cpu": {"cpu.max": "max 100000", "cpu.weight": "100"},
    "memory": {
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.oom.group": "0",
        "memory.peak": "0",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
        "memory.events.local": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
    "io": {"io.max": ""},
    "cpuset": {
        "cpuset.cpus": "",
        "cpuset.mems": "",
        "cpuset.cpus.effective": "0-3",
        "cpuset.mems.effective": "0",
    },
    # Two cards of one region each, one of two tiles, and something else (Linux 6.14).
    "dmem": {
        "dmem.max": "drm/0000:03:00.0/vram0 max\ndrm/0000:c6:00.0/vram max\n"
        "drm/0000:0a:00.0/vram0 max\ndrm/0000:0a:00.0/vram1 max\ndrm/card1/stolen max"
    },
}
ALL = frozenset({"cpu", "cpuset", "memory", "pids", "io"})


class Kernel:
    """Stands in for the module `os`, and below cgroupspy's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.controllers = ALL
        #: File → what it makes of any value that is written.
        self.insists: dict[str, str] = {}
        #: File or directory that fails with this errno, by name.
        self.fails: dict[str, int] = {}
        #: File → text that is there after a write to it.
        self.answers: dict[str, dict[str, str]] = {"cgroup.freeze": {}}
        #: (cgroup file, value), in order.
        self.writes: list[tuple[str, str]] = []
        self.xattrs: dict[str, bytes] = {}
        self.parent.mkdir(parents=True)
        self._furnish(self.parent)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @property
    def parent(self) -> Path:
        return self.root / GROUP

    def file(self, name: str, key: tuple[int, int] = KEY) -> Path:
        return self.parent / f"job-{key[0]}-{key[1]}" / name

    def names(self) -> list[str]:
        """Job cgroups that are there."""
        return sorted(path.name for path in self.parent.iterdir() if path.is_dir())

    def values(self) -> dict[str, str]:
        """What the files say that hold limits."""
        names = [
            name
            for controller, group in FRESH.items()
            for name in group
            if "max" in name and controller != "dmem"
        ]
        names += ["cpu.weight", "memory.oom.group"]
        return {name: self.file(name).read_text().strip() for name in names}

    def mkdir(self, path: str) -> None:
        self._fail("mkdir", path)
        os.mkdir(path)
        self._furnish(Path(path))

    def rmdir(self, path: str) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if Path(path, "cgroup.procs").read_text() or any(
            each.is_dir() for each in Path(path).iterdir()
        ):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        for entry in Path(path).iterdir():
            entry.unlink()
        os.rmdir(path)

    def getxattr(self, path: str, name: str) -> bytes:
        assert os.path.isdir(path)
        if name not in self.xattrs:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)
        return self.xattrs[name]

    def write(self, controller: Controller, filename: bytes, value: object) -> None:
        path = os.fsdecode(controller.filepath(filename))
        name = os.path.basename(path)
        self._fail(name, path)
        if not os.path.exists(path):
            # In a cgroup no file can be made; without the cgroup there is no place for one.
            number = errno.EACCES if os.path.exists(os.path.dirname(path)) else errno.ENOENT
            raise OSError(number, os.strerror(number), path)
        text = self.insists.get(name, str(value))
        if name == "io.max":
            text = self._throttle(Path(path).read_text(), text)
        if name == "dmem.max":
            text = self._device_memory(Path(path).read_text(), text)
        if name != "cgroup.kill":
            Path(path).write_text(text + "\n" if text else "")
        if name in ("cpuset.cpus", "cpuset.mems"):
            there = text.strip() or FRESH["cpuset"][f"{name}.effective"]
            Path(path).with_name(f"{name}.effective").write_text(there + "\n")
        if name == "cgroup.freeze":
            populated = Path(path).with_name("cgroup.events").read_text().split()[1]
            events = f"populated {populated}\nfrozen {text}\n"
            Path(path).with_name("cgroup.events").write_text(events)
        self.writes.append((path, str(value)))

    def written(self, name: str) -> list[str]:
        return [value for path, value in self.writes if os.path.basename(path) == name]

    def _device_memory(self, there: str, line: str) -> str:
        """The line of a region that is there takes the place of its old one."""
        region, _ = line.split()
        lines = {old.split()[0]: old for old in there.splitlines()}
        if region not in lines:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "dmem.max")
        return "\n".join((lines | {region: line}).values())

    def _throttle(self, there: str, line: str) -> str:
        """One device a line, with all its keys (as tried on 6.1)."""
        device, *pairs = line.split()
        rates = dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max")
        rates |= dict(pair.split("=") for pair in pairs)
        kept = [old for old in there.splitlines() if old.split()[0] != device]
        mine = " ".join([device, *(f"{key}={rate}" for key, rate in rates.items())])
        return "\n".join([*kept, mine])

    def _furnish(self, directory: Path) -> None:
        for controller, files in FRESH.items():
            if not controller or controller in self.controllers:
                for name, text in files.items():
                    (directory / name).write_text(text + "\n" if text else "")

    def _fail(self, name: str, path: str) -> None:
        if name in self.fails:
            raise OSError(self.fails[name], os.strerror(self.fails[name]), path)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A machine of one node and four CPUs."""
    kernel = Kernel(tmp_path)
    monkeypatch.setattr(cores_module, "usable_cpus", lambda: frozenset(range(4)))
    monkeypatch.setattr(cgroup_v2, "os", kernel)
    monkeypatch.setattr(processes, "os", kernel)
    monkeypatch.setattr(Plain, "set_property", lambda *words: kernel.write(*words))
    return kernel


@pytest.fixture
def released() -> list[str]:
    return []


Open = Callable[..., CgroupV2]


@pytest.fixture
def open_place(kernel: Kernel, released: list[str]) -> Open:
    """The place with these controllers, and no others."""

    def open_place(controllers: frozenset[str] = ALL) -> CgroupV2:
        kernel.controllers = controllers
        return CgroupV2(str(kernel.root), GROUP, controllers, lambda: released.append("released"))

    return open_place


@pytest.fixture
def place(open_place: Open) -> CgroupV2:
    return open_place()


def inhabit(kernel: Kernel, *pids: int, inner: str = "") -> None:
    """These processes live in the attempt's cgroup, or in one further in."""
    kernel.file(f"{inner}cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    populated = "1" if pids else "0"
    kernel.file("cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")


# -- what it says of itself -----------------------------------------------------------------


def test_it_says_what_it_enforces_and_where(kernel: Kernel, place: CgroupV2) -> None:
    resources = ("cores", "memory", "read", "write", "processes")
    assert place.controls() == dict.fromkeys(resources, "enforced")
    assert (place.kind, place.mounts()) == ("cgroup-v2", {UNIFIED: str(kernel.root)})
    assert place.cgroup_path(KEY) == f"{GROUP}/job-41-2"


def test_what_an_ordinary_user_is_not_given_is_measured(open_place: Open) -> None:
    controls = open_place(frozenset({"memory", "pids"})).controls()
    kinds = {name: text.split(":")[0] for name, text in controls.items()}
    assert kinds == {
        "cores": "measured",
        "memory": "enforced",
        "read": "measured",
        "write": "measured",
        "processes": "enforced",
    }
    assert controls["cores"].endswith(f"the cpu controller is not given to us in /{GROUP}")
    assert controls["read"].endswith(f"the io controller is not given to us in /{GROUP}")


def test_a_kernel_that_records_no_peaks_is_said_to(kernel: Kernel, place: CgroupV2) -> None:
    """memory.peak came with 5.19."""
    (kernel.parent / "memory.peak").unlink()
    kind, _, why = place.controls()["memory"].partition(": ")
    assert (kind, "peaks" in why) == ("enforced", True)


# -- limits ---------------------------------------------------------------------------------


WITH_DMEM = ALL | {"dmem"}


def test_the_memory_of_gpus_is_limited_where_the_kernel_can(
    kernel: Kernel, open_place: Open
) -> None:
    """In whole pages. A card of two regions has no limit of their sum, and NVIDIA's has no region:
    of these the use is measured alone."""
    place = open_place(WITH_DMEM)
    (kernel.parent / "dmem.max").write_text(FRESH["dmem"]["dmem.max"])
    assert place.limitable_gpus() == {"0000:03:00.0", "0000:c6:00.0"}
    own = ("0000:03:00.0", "0000:c6:00.0", "0000:0a:00.0", "0000:01:00.0")
    limit = (20 << 30) + 5
    place.create(KEY, LIMITS, Devices(memory=tuple((pci, limit) for pci in own)))
    assert kernel.file("dmem.max").read_text().splitlines() == [
        f"drm/0000:03:00.0/vram0 {20 << 30}",
        f"drm/0000:c6:00.0/vram {20 << 30}",
        "drm/0000:0a:00.0/vram0 max",
        "drm/0000:0a:00.0/vram1 max",
        "drm/card1/stolen max",
    ]
    place.create((42, 1), LIMITS, Devices())
    assert kernel.file("dmem.max", (42, 1)).read_text() == FRESH["dmem"]["dmem.max"] + "\n"
    assert len(kernel.written("dmem.max")) == 2


def test_without_the_controller_or_a_region_nothing_is_different(
    kernel: Kernel, open_place: Open
) -> None:
    """As on every kernel before 6.14, and where systemd does not give it."""
    gpus = Devices(memory=(("0000:03:00.0", 1 << 30),))
    place = open_place()
    assert place.limitable_gpus() == frozenset()
    place.create(KEY, LIMITS, gpus)
    assert not kernel.file("dmem.max").exists()
    place = open_place(WITH_DMEM)
    for text in ("", "nonsense\n"):
        (kernel.parent / "dmem.max").write_text(text)
        assert place.limitable_gpus() == frozenset()


@pytest.mark.parametrize(
    ("number", "insists", "why"),
    [
        (errno.EINVAL, None, "Invalid argument"),
        (None, "drm/0000:03:00.0/vram0 max", "was set to 1073741824 and reads None"),
    ],
)
def test_a_limit_of_a_gpu_that_the_kernel_does_not_take_stops_the_launch(
    kernel: Kernel, open_place: Open, number: int | None, insists: str | None, why: str
) -> None:
    place = open_place(WITH_DMEM)
    kernel.fails |= {} if number is None else {"dmem.max": number}
    kernel.insists |= {} if insists is None else {"dmem.max": insists}
    with pytest.raises(LimitFailed, match=why):
        place.create(KEY, LIMITS, Devices(memory=(("0000:03:00.0", 1 << 30),)))
    assert kernel.names() == []


def test_all_limits_are_in_the_kernels_files(kernel: Kernel, place: CgroupV2) -> None:
    place.create(KEY, WITH_DISK, Devices())
    assert kernel.names() == ["job-41-2"]
    assert kernel.values() == {
        "cpu.max": "150000 100000",
        "cpu.weight": "150",
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "100",
        "io.max": "8:0 rbps=1000 wbps=2000 riops=max wiops=max",
    }


@pytest.mark.parametrize(
    ("cores_milli", "quota", "weight"),
    [(0, "1000", "1"), (1, "1000", "1"), (10, "1000", "1"), (25, "2500", "3"),
     (2000, "200000", "200"), (500_000, "50000000", "10000")],
)  # fmt: skip
def test_cores_become_a_quota_and_a_weight_that_the_kernel_takes(
    kernel: Kernel, place: CgroupV2, cores_milli: int, quota: str, weight: str
) -> None:
    """It takes no quota below a millisecond, and weights from 1 to 10000."""
    place.create(KEY, AttemptLimits(cores_milli=cores_milli, memory_bytes=PAGE, pids=1), Devices())
    found = kernel.values()
    assert (found["cpu.max"], found["cpu.weight"]) == (f"{quota} 100000", weight)


def limits(cores_milli: int, by: str) -> AttemptLimits:
    return AttemptLimits(cores_milli=cores_milli, memory_bytes=PAGE, pids=1, cores_by=by)


def cores(kernel: Kernel, key: tuple[int, int]) -> tuple[str, str, str]:
    """CPUs and memory nodes of its own, and its quota."""
    cpus, mems, quota = (
        kernel.file(name, key).read_text().strip()
        for name in ("cpuset.cpus", "cpuset.mems", "cpu.max")
    )
    return cpus, mems, quota.removesuffix(" 100000")


def test_with_weights_there_is_no_quota(kernel: Kernel, place: CgroupV2) -> None:
    place.create(KEY, limits(3000, WEIGHT), Devices())
    found = kernel.values()
    assert (found["cpu.max"], found["cpu.weight"]) == ("max 100000", "300")


@pytest.mark.parametrize("cpus", [2, 16, 64, 100])
def test_weights_are_as_floors_in_hundredths_of_a_core(
    kernel: Kernel, open_place: Open, monkeypatch: pytest.MonkeyPatch, cpus: int
) -> None:
    """And within a hundredth from half a core on, whatever the figure."""
    monkeypatch.setattr(kernel, "cpu_count", lambda: cpus, raising=False)
    place = open_place()
    exact = [100, 110, 130, 250, 330, 1000, 1010, 1500, 1000 * cpus]
    for number, floor in enumerate([*exact, 501, 505, 1995], 1):
        place.create((number, 1), limits(floor, SHARE), Devices())
        weight = int(kernel.file("cpu.weight", (number, 1)).read_text())
        assert weight / floor == pytest.approx(0.1, rel=1e-9 if floor in exact else 0.01)


def test_what_a_job_is_lent_moves_its_quota_and_nothing_else(
    kernel: Kernel, place: CgroupV2
) -> None:
    assert place.lendable() == ("cores", "disks")
    assert place.cores()[SHARE].startswith("enforced: ")
    place.create(KEY, replace(WITH_DISK, cores_by=SHARE), Devices())
    begun = kernel.values()
    assert (begun["cpu.max"], begun["cpu.weight"]) == ("150000 100000", "150")
    for _ in range(2):
        place.lend(KEY, 4000, ())
        assert kernel.values() == {**begun, "cpu.max": "400000 100000"}
    place.lend(KEY, 1500, (replace(DISK[0], read_bps=5000),))
    rates = "8:0 rbps=5000 wbps=2000 riops=max wiops=max"
    assert kernel.values() == {**begun, "io.max": rates}
    place.lend(KEY, None, (replace(DISK[0], read_bps=6000),))
    assert kernel.values() == {**begun, "io.max": rates.replace("5000", "6000")}, "no cores"


def test_only_what_the_controllers_hold_is_lent(kernel: Kernel, open_place: Open) -> None:
    place = open_place(frozenset({"memory", "pids"}))
    assert place.lendable() == ()
    assert NO_SHARE in place.cores()[SHARE] and place.cores()[SHARE].startswith("measured: ")
    place.create(KEY, replace(LIMITS, cores_by=SHARE), Devices())
    kernel.writes.clear()
    place.lend(KEY, 4000, DISK)
    assert kernel.writes == []
    assert open_place(ALL - {"io"}).lendable() == ("cores",)


def test_a_ceiling_that_the_kernel_refuses_is_named(kernel: Kernel, place: CgroupV2) -> None:
    place.create(KEY, limits(1000, SHARE), Devices())
    kernel.fails["cpu.max"] = errno.EINVAL
    with pytest.raises(LimitFailed, match=r"cpu\.max: Invalid argument"):
        place.lend(KEY, 2000, ())


def test_on_a_very_large_machine_weights_are_smaller_but_in_proportion(
    kernel: Kernel, open_place: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes no more than 10000, which is a hundred times the usual weight of a core."""
    monkeypatch.setattr(kernel, "cpu_count", lambda: 400, raising=False)
    place = open_place()
    for number, cores_milli in ((1, 400_000), (2, 100_000)):
        place.create((number, 1), limits(cores_milli, WEIGHT), Devices())
    weights = [kernel.file("cpu.weight", (number, 1)).read_text() for number in (1, 2)]
    assert weights == ["10000\n", "2500\n"]


def test_without_cpusets_quotas_stand_in_for_pins_and_it_says_so(
    kernel: Kernel, open_place: Open
) -> None:
    place = open_place(ALL - {"cpuset"})
    place.create(KEY, limits(2000, PIN), Devices())
    assert kernel.values()["cpu.max"] == "200000 100000"
    why = f"the cpuset controller is not given to us in /{GROUP}"
    assert place.cores()[PIN] == f"enforced: {NO_PIN}: {why}"
    assert place.cores()[QUOTA] == place.controls()["cores"] == "enforced"


def test_without_the_cpu_controller_nothing_is_pinned_in_the_kernel(
    kernel: Kernel, open_place: Open
) -> None:
    """Parts of a core need a quota."""
    place = open_place(ALL - {"cpu"})
    place.create(KEY, limits(2000, PIN), Devices())
    assert kernel.written("cpuset.cpus") == []
    assert all("measured" in said or "not controlled" in said for said in place.cores().values())


def test_whole_cores_are_pinned_and_parts_have_a_quota_on_the_rest(
    kernel: Kernel, place: CgroupV2
) -> None:
    assert NO_PIN not in place.cores()[PIN]
    place.create((1, 1), limits(500, PIN), Devices())
    assert cores(kernel, (1, 1)) == ("", "", "50000")
    place.create((2, 1), limits(3000, PIN), Devices())
    assert cores(kernel, (1, 1)) == ("3", "", "50000")
    assert cores(kernel, (2, 1)) == ("0-2", "0", "max")
    assert place.remove((2, 1))
    assert cores(kernel, (1, 1)) == ("0-3", "", "50000")


@pytest.mark.parametrize("by", [QUOTA, WEIGHT])
def test_jobs_of_every_mode_make_room(kernel: Kernel, place: CgroupV2, by: str) -> None:
    place.create((1, 1), limits(2000, by), Devices())
    place.create((2, 1), limits(2000, PIN), Devices())
    assert cores(kernel, (1, 1))[:2] == ("2-3", "")


@pytest.mark.parametrize("name", ["cpuset.cpus", "cpuset.mems"])
def test_a_pin_that_the_kernel_refuses_leaves_nothing_behind(
    kernel: Kernel, place: CgroupV2, name: str
) -> None:
    kernel.fails[name] = errno.EACCES
    with pytest.raises(LimitFailed, match=f"{name}: Permission denied"):
        place.create(KEY, limits(2000, PIN), Devices())
    assert kernel.names() == []
    del kernel.fails[name]
    place.create(KEY, limits(4000, PIN), Devices())
    assert cores(kernel, KEY) == ("0-3", "0", "max")


def wake(place: CgroupV2, how: str) -> None:
    if how == "thaw":
        place.thaw((1, 1), None)
    else:
        place.signal((1, 1), None, signal.SIGTERM)


@pytest.mark.parametrize("how", ["thaw", "signal"])
def test_whatever_wakes_a_pinned_job_it_gets_cpus_first(
    kernel: Kernel, place: CgroupV2, how: str
) -> None:
    place.create((1, 1), limits(2000, PIN), Devices())
    assert place.freeze((1, 1), None)
    place.create((2, 1), limits(3000, PIN), Devices())
    place.remove((2, 1))
    wake(place, how)
    assert cores(kernel, (1, 1)) == ("0-1", "0", "max")
    assert kernel.written("cgroup.freeze")[-1] == "0"


@pytest.mark.parametrize("how", ["thaw", "signal"])
def test_a_job_that_finds_no_cpus_when_it_wakes_has_a_quota(
    kernel: Kernel, place: CgroupV2, how: str
) -> None:
    """The sum of what is given out stays what it is."""
    place.create((1, 1), limits(2000, PIN), Devices())
    place.freeze((1, 1), None)
    place.create((2, 1), limits(3000, PIN), Devices())
    assert cores(kernel, (2, 1))[0] == "0,2-3"
    wake(place, how)
    assert cores(kernel, (1, 1)) == ("1", "", "200000")


def test_the_next_launcher_knows_who_is_pinned_and_who_is_frozen(
    kernel: Kernel, place: CgroupV2, open_place: Open
) -> None:
    for number in (1, 2):
        place.create((number, 1), limits(2000, PIN), Devices())
    place.freeze((1, 1), None)
    again = open_place()
    again.create((3, 1), limits(1000, PIN), Devices())
    assert cores(kernel, (3, 1))[0] == "0"
    again.remove((3, 1))
    again.thaw((1, 1), None)
    assert cores(kernel, (1, 1)) == ("0-1", "0", "max")


def test_memory_is_cut_to_whole_pages_as_the_kernel_does(kernel: Kernel, place: CgroupV2) -> None:
    place.create(KEY, AttemptLimits(cores_milli=1000, memory_bytes=5 * PAGE + 1, pids=1), Devices())
    assert kernel.values()["memory.max"] == str(5 * PAGE)


def test_without_swap_accounting_the_memory_limit_stands_alone(
    kernel: Kernel, place: CgroupV2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FRESH["memory"], "memory.swap.max")
    place.create(KEY, LIMITS, Devices())
    assert kernel.file("memory.max").read_text() == f"{64 << 20}\n"
    assert not kernel.file("memory.swap.max").exists()


def test_a_direction_that_is_not_declared_is_not_limited(kernel: Kernel, place: CgroupV2) -> None:
    disks = (DiskLimit(device="8:0", read_bps=0, write_bps=2_000_000),)
    place.create(
        KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1, disks=disks), Devices()
    )
    assert kernel.values()["io.max"] == "8:0 rbps=max wbps=2000000 riops=max wiops=max"


def test_every_disk_is_limited(kernel: Kernel, place: CgroupV2) -> None:
    """One line is written at a time; the file then has a line for each."""
    disks = tuple(
        DiskLimit(device=device, read_bps=1000, write_bps=0) for device in ("8:0", "259:1")
    )
    place.create(
        KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1, disks=disks), Devices()
    )
    assert kernel.written("io.max") == ["8:0 rbps=1000", "259:1 rbps=1000"]
    assert [line.split()[:2] for line in kernel.values()["io.max"].splitlines()] == [
        ["8:0", "rbps=1000"],
        ["259:1", "rbps=1000"],
    ]


def test_without_cpu_and_io_the_rest_is_limited_all_the_same(
    kernel: Kernel, open_place: Open
) -> None:
    """As `controls` says: these two are measured then."""
    open_place(frozenset({"memory", "pids"})).create(KEY, WITH_DISK, Devices())
    assert kernel.file("memory.max").read_text() == f"{64 << 20}\n"
    assert kernel.file("pids.max").read_text() == "100\n"
    assert not kernel.file("cpu.max").exists()
    assert not kernel.file("io.max").exists()


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("cpu.max", "max 100000"),
        ("cpu.max", "149999 100000"),
        ("cpu.max", "150000 50000"),
        ("cpu.weight", "100"),
        ("memory.max", "max"),
        ("memory.max", "4096"),
        ("memory.swap.max", "max"),
        ("memory.oom.group", "0"),
        ("pids.max", "max"),
        ("pids.max", "99"),
        ("io.max", "8:0 rbps=999 wbps=2000"),
        ("io.max", "8:0 rbps=1000"),
        ("io.max", "8:16 rbps=1000 wbps=2000"),
    ],
)
def test_a_limit_that_reads_otherwise_is_no_limit(
    kernel: Kernel, place: CgroupV2, name: str, reads: str
) -> None:
    """The job does not start, and nothing of its cgroup stays."""
    kernel.insists[name] = reads
    with pytest.raises(LimitFailed) as raised:
        place.create(KEY, WITH_DISK, Devices())
    assert str(kernel.file(name)) in str(raised.value)
    assert kernel.names() == []


LIMIT_FILES = [
    *("cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "memory.oom.group"),
    *("pids.max", "io.max"),
]


@pytest.mark.parametrize("name", LIMIT_FILES)
def test_a_limit_that_the_kernel_refuses_is_named(
    kernel: Kernel, place: CgroupV2, name: str
) -> None:
    """A partition in io.max, for one, is no device to it."""
    kernel.fails[name] = errno.ENODEV
    with pytest.raises(LimitFailed) as raised:
        place.create(KEY, WITH_DISK, Devices())
    assert str(raised.value) == f"{kernel.file(name)}: No such device"
    assert kernel.names() == []


@pytest.mark.parametrize("name", sorted(set(LIMIT_FILES) - {"memory.swap.max"}))
def test_a_limit_without_a_file_keeps_the_job_from_starting(
    kernel: Kernel, place: CgroupV2, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Somebody has taken a controller away."""
    monkeypatch.delitem(FRESH[name.split(".")[0]], name)
    with pytest.raises(LimitFailed) as raised:
        place.create(KEY, WITH_DISK, Devices())
    assert str(raised.value) == f"{kernel.file(name)}: the kernel offers no such file here"
    assert kernel.names() == []


def test_a_device_that_cannot_be_hidden_keeps_the_job_from_starting(
    kernel: Kernel, place: CgroupV2
) -> None:
    """A plain directory can have no device program, just as a cgroup of some containers."""
    assert place.hiding()[0] == "none"
    with pytest.raises(LimitFailed, match="devices cannot be hidden from jobs: "):
        place.create(KEY, LIMITS, Devices(hidden=frozenset({DeviceNode("c", 195, 0)})))
    assert kernel.names() == []


def test_a_kernel_that_is_full_of_cgroups_is_explained(kernel: Kernel, place: CgroupV2) -> None:
    kernel.fails["mkdir"] = errno.ENOSPC
    with pytest.raises(LimitFailed, match="job-41-2: the kernel has no room for another cgroup"):
        place.create(KEY, LIMITS, Devices())


def test_a_parent_that_has_vanished_is_no_fault_of_the_job(kernel: Kernel, place: CgroupV2) -> None:
    """Its unit was stopped: the launcher has to make a new place."""
    kernel.rmdir(str(kernel.parent))
    with pytest.raises(JobGroupGone, match=GROUP):
        place.create(KEY, LIMITS, Devices())
    assert place.leftovers() == []


def test_a_cgroup_that_is_there_already_is_not_taken_over(kernel: Kernel, place: CgroupV2) -> None:
    """Its limits and peaks would be an earlier run's, and its processes."""
    place.create(KEY, LIMITS, Devices())
    with pytest.raises(LimitFailed, match="job-41-2: File exists"):
        place.create(KEY, AttemptLimits(cores_milli=9000, memory_bytes=PAGE, pids=1), Devices())
    assert kernel.values()["memory.max"] == str(64 << 20)


def test_a_process_enters_and_only_then_is_kept_on_its_cpus(
    kernel: Kernel, open_place: Open
) -> None:
    before = os.sched_getaffinity(0)
    place = open_place(frozenset({"memory", "pids"}))
    place.create(KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1), Devices())
    try:
        place.enter(KEY, AttemptLimits(cores_milli=1000, memory_bytes=PAGE, pids=1), 0)
        assert len(os.sched_getaffinity(0)) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert kernel.file("cgroup.procs").read_text() == "0"


def test_with_a_quota_a_process_keeps_all_cpus(kernel: Kernel, place: CgroupV2) -> None:
    before = os.sched_getaffinity(0)
    place.create(KEY, LIMITS, Devices())
    place.enter(KEY, LIMITS, 0)
    assert kernel.file("cgroup.procs").read_text() == "0"
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("why", [None, "clone3: Function not implemented"])
def test_a_job_begins_in_its_cgroup_where_the_kernel_can_do_that(
    kernel: Kernel, open_place: Open, monkeypatch: pytest.MonkeyPatch, why: str | None
) -> None:
    monkeypatch.setattr(syscalls, "why_no_fork_into", lambda: why)
    place = open_place(frozenset({"memory", "pids", "cpu"}))
    place.create(KEY, LIMITS, Devices())
    procs = kernel.file("cgroup.procs")
    inside, outside = Entrance(cgroup=str(procs.parent)), Entrance(files=(str(procs),))
    assert place.entrance(KEY, LIMITS, 0) == (inside if why is None else outside)
    assert procs.read_text() == "", "a plan moves nobody"


def test_a_cgroup_that_cannot_be_entered_is_named(kernel: Kernel, place: CgroupV2) -> None:
    """The job's own process finds that out, and its submitter is to read it."""
    place.create(KEY, LIMITS, Devices())
    procs = kernel.file("cgroup.procs")
    procs.unlink()
    procs.mkdir()
    with pytest.raises(LimitFailed, match=f"^{procs}: Is a directory$"):
        place.enter(KEY, LIMITS, os.getuid())


@pytest.fixture
def refusing(
    monkeypatch: pytest.MonkeyPatch, open_place: Open, request: pytest.FixtureRequest
) -> CgroupV2:
    """A place with a cgroup for KEY, into which the kernel does not fork, for the errno that is the
    parameter; elsewhere it forks."""

    def refused(cgroup_fd: int) -> int:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(cgroup_v2.syscalls, "why_no_fork_into", lambda: None)
    monkeypatch.setattr(cgroup_v2.syscalls, "fork_into", refused)
    monkeypatch.setattr(cgroup_v2.syscalls, "fork", lambda: 4242)
    place = open_place(frozenset({"memory", "pids"}))
    place.create(KEY, LIMITS, Devices())
    return place


@pytest.mark.parametrize("refusing", [errno.EAGAIN], indirect=True)
def test_a_bound_on_all_jobs_keeps_no_first_process_out(kernel: Kernel, refusing: CgroupV2) -> None:
    assert refusing.fork(KEY) == 4242
    refusing.enter(KEY, LIMITS, 0)
    assert kernel.file("cgroup.procs").read_text() == "0"


@pytest.mark.parametrize("refusing", [errno.EBUSY], indirect=True)
def test_a_cgroup_that_no_process_can_be_forked_into_is_named(refusing: CgroupV2) -> None:
    with pytest.raises(LimitFailed, match="job-41-2: Device or resource busy"):
        refusing.fork(KEY)


# -- out of memory --------------------------------------------------------------------------


def test_the_kernel_kills_all_so_there_is_nothing_to_listen_for(place: CgroupV2) -> None:
    place.create(KEY, LIMITS, Devices())
    assert place.oom_descriptor(KEY) is None


def memory_events(oom: int, kills: int) -> str:
    return f"low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {kills}\n"


@pytest.mark.parametrize(
    ("own", "everywhere", "found"),
    [
        ((0, 0), (0, 0), (False, False)),
        ((1, 0), (1, 0), (False, False)),
        ((1, 3), (1, 3), (True, True)),
        ((0, 1), (0, 1), (True, False)),
        ((1, 0), (1, 2), (True, True)),
        ((0, 0), (1, 1), (False, False)),
    ],
    ids=[
        "quiet",
        "full, and room was made",
        "over",
        "the machine's own shortage",
        "over, and it hit a cgroup further in",
        "the job's own limit for a part of itself",
    ],
)
def test_a_kill_is_blamed_on_the_limit_only_if_it_was_reached(
    kernel: Kernel,
    place: CgroupV2,
    own: tuple[int, int],
    everywhere: tuple[int, int],
    found: tuple[bool, bool],
) -> None:
    place.create(KEY, LIMITS, Devices())
    kernel.file("memory.events.local").write_text(memory_events(*own))
    kernel.file("memory.events").write_text(memory_events(*everywhere))
    assert place.oom_kills(KEY) == found


def test_a_kernel_without_events_of_its_own_is_read_as_a_whole(
    kernel: Kernel, place: CgroupV2
) -> None:
    """memory.events.local came with 5.2."""
    place.create(KEY, LIMITS, Devices())
    kernel.file("memory.events.local").unlink()
    kernel.file("memory.events").write_text(memory_events(1, 1))
    assert place.oom_kills(KEY) == (True, True)


@pytest.mark.parametrize(
    ("mark", "found"), [(b"1", True), (b"12", True), (b"0", False), (b"?", False)]
)
def test_systemds_killer_leaves_a_mark_and_not_the_limits(
    kernel: Kernel, place: CgroupV2, mark: bytes, found: bool
) -> None:
    place.create(KEY, LIMITS, Devices())
    kernel.xattrs["user.oomd_ooms"] = mark
    assert place.oom_kills(KEY) == (found, False)


def test_a_cgroup_that_is_gone_has_killed_nobody(place: CgroupV2) -> None:
    assert place.oom_kills(KEY) == (False, False)


# -- freezing and signals -------------------------------------------------------------------


def test_processes_are_signalled_while_they_cannot_fork(
    kernel: Kernel, place: CgroupV2, start: Start
) -> None:
    """Those in cgroups further in too; then all go on, also if they were frozen before."""
    place.create(KEY, LIMITS, Devices())
    kernel.mkdir(str(kernel.file("inner")))
    gone = start("true")
    gone.wait(WAIT_S)
    jobs = [start("sleep", "60") for _ in range(2)]
    inhabit(kernel, jobs[0].pid, gone.pid, 0)
    inhabit(kernel, jobs[1].pid, inner="inner/")
    place.signal(KEY, None, signal.SIGTERM)
    assert [job.wait(WAIT_S) for job in jobs] == [-signal.SIGTERM] * 2
    assert kernel.written("cgroup.freeze") == ["1", "0"]


def test_a_freeze_that_takes_long_does_not_stop_the_signal(
    kernel: Kernel, place: CgroupV2, start: Start
) -> None:
    """A process in uninterruptible sleep delays it."""
    place.create(KEY, LIMITS, Devices())
    job = start("sleep", "60")
    inhabit(kernel, job.pid)
    kernel.insists["cgroup.freeze"] = "0"
    assert not place.freeze(KEY, None)
    place.signal(KEY, None, signal.SIGTERM)
    assert job.wait(WAIT_S) == -signal.SIGTERM


def test_frozen_is_what_the_kernel_calls_so(kernel: Kernel, place: CgroupV2) -> None:
    place.create(KEY, LIMITS, Devices())
    assert place.freeze(KEY, None)
    assert kernel.file("cgroup.freeze").read_text() == "1\n"
    place.thaw(KEY, None)
    assert kernel.file("cgroup.freeze").read_text() == "0\n"


def test_threads_in_a_cgroup_of_their_own_are_signalled_with_their_process(
    kernel: Kernel, place: CgroupV2, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses to list them there."""
    place.create(KEY, LIMITS, Devices())
    kernel.mkdir(str(kernel.file("threads")))
    job = start("sleep", "60")
    inhabit(kernel, job.pid)

    def refuse(path: str) -> str:
        if "/threads/" in path:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return get(path)

    monkeypatch.setattr(processes, "get", refuse)
    place.signal(KEY, None, signal.SIGTERM)
    assert job.wait(WAIT_S) == -signal.SIGTERM


# -- ending ---------------------------------------------------------------------------------


def test_the_kernel_kills_all_at_once(kernel: Kernel, place: CgroupV2) -> None:
    place.create(KEY, LIMITS, Devices())
    inhabit(kernel, os.getpid())
    assert not place.kill_pass(KEY, Attempt(created={"boot_id": "x"})), "the plain file lists it"
    assert kernel.written("cgroup.kill") == ["1"]
    assert kernel.written("cgroup.freeze") == []
    inhabit(kernel)
    assert place.kill_pass(KEY, None)
    assert kernel.written("cgroup.kill") == ["1"], "an empty cgroup is left alone"


def test_what_was_moved_out_by_others_is_told_and_killed_as_the_runners_child(
    place: CgroupV2, start: Start, tmp_path: Path
) -> None:
    """systemd moves processes for their user. That of another process with the runner's number,
    which was a runner once, is nobody of ours; nor is that of our runner, once it has another
    attempt."""
    place.create(KEY, LIMITS, Devices())
    job = "trap 'echo x >>told' TERM; sleep 60 & echo $! >a; wait; wait"
    runner = start("sh", "-c", 'sh -c "$0" & wait', job, cwd=tmp_path)
    sleeper = pid_in(tmp_path / "a")
    me = {"pid": runner.pid, "start_ticks": process.start_ticks(runner.pid)}
    then = {**me, "start_ticks": 1}
    for stranger in (
        Attempt(created={"boot_id": process.boot_id()}, runner=then),
        Attempt(created={"boot_id": "another"}, runner=me),
        Attempt(created={"boot_id": process.boot_id()}, runner=me, ended={"exit_code": 0}),
    ):
        assert place.kill_pass(KEY, stranger)
    (fled,) = process.children(runner.pid)
    ours = Attempt(created={"boot_id": process.boot_id()}, runner=me)
    place.signal(KEY, ours, signal.SIGTERM)
    until("a word", (tmp_path / "told").exists)
    assert not place.kill_pass(KEY, ours)
    until("its end", lambda: process.start_ticks(fled) is None)
    assert place.kill_pass(KEY, ours)
    # To a real runner it would come as a child when its parent dies.
    os.kill(sleeper, signal.SIGKILL)


def test_older_kernels_are_frozen_and_each_process_is_killed(
    kernel: Kernel, place: CgroupV2, start: Start
) -> None:
    """cgroup.kill came with 5.14."""
    place.create(KEY, LIMITS, Devices())
    kernel.file("cgroup.kill").unlink()
    job = start("sh", "-c", "trap '' TERM; exec sleep 60")
    inhabit(kernel, job.pid)
    assert not place.kill_pass(KEY, None)
    assert job.wait(WAIT_S) == -signal.SIGKILL
    assert kernel.written("cgroup.freeze") == ["1", "0"]


def test_a_cgroup_that_is_gone_needs_no_killing(place: CgroupV2) -> None:
    place.signal(KEY, None, signal.SIGTERM)
    place.thaw(KEY, None)
    assert not place.freeze(KEY, None)
    assert place.kill_pass(KEY, None)
    assert place.remove(KEY)


def test_a_cgroup_that_vanishes_while_it_is_read_is_gone(
    kernel: Kernel, place: CgroupV2, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create(KEY, LIMITS, Devices())

    def vanish(*words: object) -> str:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(Plain, "get_property", vanish)
    assert place.kill_pass(KEY, None)
    assert place.oom_kills(KEY) == (False, False)


def test_a_cgroup_in_use_stays_and_is_removed_when_it_is_empty(
    kernel: Kernel, place: CgroupV2
) -> None:
    place.create(KEY, LIMITS, Devices())
    inhabit(kernel, 1)
    assert not place.remove(KEY)
    assert place.leftovers() == [KEY]
    inhabit(kernel)
    assert place.remove(KEY)
    assert kernel.names() == []
    assert place.remove(KEY)


def test_cgroups_that_a_job_has_made_in_its_own_go_with_it(kernel: Kernel, place: CgroupV2) -> None:
    place.create(KEY, LIMITS, Devices())
    for inner in ("a", "a/b", "a/b/c", "d"):
        kernel.mkdir(str(kernel.file(inner)))
    inhabit(kernel, 1, inner="a/b/")
    assert not place.remove(KEY)
    inhabit(kernel, inner="a/b/")
    assert place.remove(KEY)
    assert kernel.names() == []


def test_attempts_that_are_left_over_are_listed_in_order(kernel: Kernel, place: CgroupV2) -> None:
    for key in ((10, 1), (9, 2)):
        place.create(key, LIMITS, Devices())
    for name in ("job-x-1", "other", "job-1-2.scope", "job-1"):
        kernel.mkdir(str(kernel.parent / name))
    assert place.leftovers() == [(9, 2), (10, 1)]


def test_closing_leaves_what_is_in_use(
    kernel: Kernel, place: CgroupV2, released: list[str]
) -> None:
    place.create(KEY, LIMITS, Devices())
    place.close()
    assert (kernel.names(), released) == (["job-41-2"], [])
    place.remove(KEY)
    place.close()
    assert (kernel.parent.exists(), released) == (False, ["released"])


def test_closing_gives_back_what_is_around_a_place_that_is_gone(
    kernel: Kernel, place: CgroupV2, released: list[str]
) -> None:
    kernel.rmdir(str(kernel.parent))
    place.close()
    assert released == ["released"]
