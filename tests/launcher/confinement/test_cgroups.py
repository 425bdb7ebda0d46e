"""Jobs' cgroups of either version, on a tree of plain files. A Machine is what fills it: files come
and go with their directory, cannot be made by hand, and take what the kernel takes; the rest is the
real thing's (tests/system). And what the kernel's files say of a job, as fields: what they do not
say is left out."""

import errno
import os
import signal
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cgroupspy.controllers import Controller
from msgspec.structs import replace

from drfd.daemon.launcher_link.failures import judge
from drfd.launcher.attempt_files import Records
from drfd.launcher.confinement import cgroup_files, cgroup_v2, cgroups, processes
from drfd.launcher.confinement import cores as cores_module
from drfd.launcher.confinement.cgroup_files import (
    counters_v1,
    counters_v2,
    read_counters,
)
from drfd.launcher.confinement.cgroup_v1 import CgroupV1
from drfd.launcher.confinement.cgroup_v2 import CgroupV2
from drfd.launcher.confinement.device_hiding import HiddenByController
from drfd.launcher.confinement.interface import (
    CgroupSetting,
    Confinement,
    JobGroupGone,
    LimitFailed,
)
from drfd.launcher.protocol import (
    NO_PIN,
    PIN,
    QUOTA,
    UNIFIED,
    AttemptLimits,
    Devices,
    DiskLimit,
)
from drfd.launcher.system import process
from drfd.launcher.system.files import Plain
from drfd.linux.device_nodes import DeviceNode
from drfd.linux.kernel_files import get
from launcher.rig import WAIT_S, pid_in, until

Key = tuple[int, int]
KEY = (41, 2)
PAGE = os.sysconf("SC_PAGE_SIZE")
LIMITS = AttemptLimits(cores_milli=1500, memory_bytes=64 << 20, pids=100)
DISK = DiskLimit(device="8:0", read_bps=1000, write_bps=2000)
WITH_DISK = replace(LIMITS, disks=(DISK,))


def limits(cores_milli: int = 1000, by: str = QUOTA, *disks: DiskLimit) -> AttemptLimits:
    return AttemptLimits(
        cores_milli=cores_milli, memory_bytes=PAGE, pids=1, cores_by=by, disks=disks
    )


# -- the kernels ----------------------------------------------------------------------------


RATES_V1 = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
#: Files of a fresh cgroup, by controller; "" are those of every cgroup.
FRESH_V1 = {
    "cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1", "cpu.shares": "1024"},
    "cpuacct": {"cpuacct.usage": "0"},
    "memory": {
        **dict.fromkeys(
            (
                *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
                "memory.kmem.tcp.limit_in_bytes",
            ),
            "9223372036854771712",
        ),
        "memory.max_usage_in_bytes": "0", "memory.swappiness": "60", "cgroup.event_control": "",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
    "freezer": {"freezer.state": "THAWED"},
    "blkio": dict.fromkeys(RATES_V1, ""),
    "cpuset": {
        # As cgroup.clone_children does.
        "cpuset.cpus": "0-3", "cpuset.mems": "0", "cpuset.effective_cpus": "0-3",
        "cpuset.effective_mems": "0", "cpuset.memory_migrate": "0", "cgroup.clone_children": "1",
    },
    "": {"cgroup.procs": "", "tasks": ""},
}  # fmt: skip
_EVENTS = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0"
FRESH_V2 = {
    "": {
        "cgroup.procs": "", "cgroup.kill": "", "cgroup.freeze": "0", "cgroup.subtree_control": "",
        "cgroup.events": "populated 0\nfrozen 0",
    },
    "cpu": {"cpu.max": "max 100000", "cpu.weight": "100"},
    "memory": {
        "memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0",
        "memory.peak": "0", "memory.events": _EVENTS, "memory.events.local": _EVENTS,
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
    "io": {"io.max": ""},
    "cpuset": {
        "cpuset.cpus": "", "cpuset.mems": "",
        "cpuset.cpus.effective": "0-3", "cpuset.mems.effective": "0",
    },
    # Two cards of one region each, one of two tiles, and something else (Linux 6.14).
    "dmem": {
        "dmem.max": "drm/0000:03:00.0/vram max\ndrm/0000:c6:00.0/vram max\n"
        "drm/card1/stolen max"
    },
}  # fmt: skip


class Machine:
    """Stands in for the module `os`, and below cgroupspy's files, on a machine of one memory node
    and four CPUs."""

    #: Files of a fresh cgroup, by controller; "" are those of every cgroup.
    FRESH: dict[str, dict[str, str]]
    ALL: frozenset[str]
    #: The directory of jobs' cgroups below each mount point.
    GROUP: str
    #: What `fails` calls the making of a cgroup; the file that freezes one, and what it says then.
    MAKING: str
    FREEZE: tuple[str, str]

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fresh = {name: dict(files) for name, files in self.FRESH.items()}
        self.controllers = self.ALL
        #: File → what it makes of any value that is written.
        self.insists: dict[str, str] = {}
        #: File or directory that fails with this errno, by name.
        self.fails: dict[str, int] = {}
        #: (cgroup file, value), in order.
        self.writes: list[tuple[str, str]] = []
        self.xattrs: dict[str, bytes] = {}
        self.released: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @abstractmethod
    def make(self) -> Confinement: ...

    def open(self, *without: str, and_: str = "") -> None:
        """Have a place with all controllers but these from now on."""
        self.controllers = self.ALL - {*without} | {*and_.split()}
        self.place = self.make()

    def create(self, limits: AttemptLimits = LIMITS, key: Key = KEY, **devices: Any) -> None:
        given = Devices(**devices)
        prepared = self.place.create(key, limits, given)
        try:
            self.make_directories(key, prepared.makes)
            self._set(self.place.plan(key, limits, given, is_pinned=prepared.is_pinned).settings)
        except LimitFailed:
            # As the controller orders.
            self.place.remove(key)
            raise

    def make_directories(self, key: Key, count: int) -> None:
        """As a job's runner does (`make_cgroups` in start.h)."""
        directories = self.place.plan(key, LIMITS, Devices(), is_pinned=False).directories
        for directory in directories[len(directories) - count :][::-1]:
            try:
                self.mkdir(directory)
            except FileNotFoundError:
                # The runner ends, and that is what the launcher does then.
                self.place.insist_on_group()
                raise
            except OSError as error:
                raise LimitFailed(cgroup_files.explain(error)) from error

    def _set(self, settings: Sequence[CgroupSetting]) -> None:
        """As a job's runner does (`set_limits` in start.h)."""
        for path, text, line in settings:
            try:
                there = self.exchange(path, text).splitlines()
            except OSError as error:
                raise LimitFailed(f"{path}: {error.strerror}") from error
            if line not in there:
                raise LimitFailed(f"{path} was set to {text} and reads {'; '.join(there)}")

    def oom_kills(self) -> tuple[bool, bool]:
        """Whether the kernel has killed for memory, and whether by the job's limit."""
        ended = judge(self.place.numbers(KEY))
        return ended.oom_killed, ended.over_limit

    @abstractmethod
    def directory(self, key: Key = KEY, controller: str = "memory") -> Path: ...

    @abstractmethod
    def names(self) -> list[str]:
        """Job cgroups that are there, below any controller."""

    @abstractmethod
    def cores(self, key: Key) -> tuple[str, bool, str]:
        """CPUs, whether they are its own, and its quota."""

    @abstractmethod
    def inhabit(self, *pids: int, key: Key = KEY, inner: str = "") -> None:
        """These processes live in the attempt's cgroup, or in one further in."""

    def file(self, name: str, key: Key = KEY) -> Path:
        """The file of the attempt's cgroup; the name begins with its controller's."""
        return self.directory(key, name.split(".")[0]) / name

    def read(self, name: str, key: Key = KEY) -> str:
        return self.file(name, key).read_text().strip()

    def values(self, *names: str, key: Key = KEY) -> dict[str, str]:
        return {name: self.read(name, key) for name in names}

    def written(self, name: str) -> list[str]:
        return [value for path, value in self.writes if os.path.basename(path) == name]

    def freezes(self) -> list[bool]:
        """What was written to freeze (True) and to thaw, in order."""
        name, frozen = self.FREEZE
        return [value == frozen for value in self.written(name)]

    def mkdir(self, path: str, mode: int = 0o711) -> None:
        self._fail(self._controllers_of(path)[0], path)
        os.mkdir(path, mode)
        self.furnish(Path(path))

    def furnish(self, directory: Path) -> None:
        for controller in self._controllers_of(str(directory))[1]:
            for name, text in self.fresh[controller].items():
                (directory / name).write_text(text + "\n" if text else "")

    def rmdir(self, path: str) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        procs = Path(path, "cgroup.procs")
        if (procs.exists() and procs.read_text()) or any(
            each.is_dir() for each in Path(path).iterdir()
        ):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        for entry in Path(path).iterdir():
            entry.unlink()
        os.rmdir(path)

    def write(self, controller: Controller, filename: bytes, value: object) -> None:
        self.exchange(os.fsdecode(controller.filepath(filename)), str(value))

    def exchange(self, file: str, value: str) -> str:
        path = Path(file)
        self._fail(path.name, str(path))
        if not path.exists():
            # In a cgroup no file can be made; without the cgroup there is no place for one.
            number = errno.EACCES if path.parent.exists() else errno.ENOENT
            raise OSError(number, os.strerror(number), str(path))
        text = self._taken(path, self.insists.get(path.name, value))
        path.write_text(text + "\n" if text else "")
        self.writes.append((str(path), value))
        return text

    def getxattr(self, path: str, name: str) -> bytes:
        if name not in self.xattrs or not os.path.isdir(path):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)
        return self.xattrs[name]

    @abstractmethod
    def _controllers_of(self, path: str) -> tuple[str, list[str]]:
        """The name of what fails in `mkdir`, and whose files the new directory has."""

    @abstractmethod
    def _taken(self, path: Path, text: str) -> str:
        """What the file says after it is given this, which may have effects on others."""

    def _fail(self, name: str, path: str) -> None:
        if name in self.fails:
            raise OSError(self.fails[name], os.strerror(self.fails[name]), path)


class KernelV1(Machine):
    GROUP, MAKING, FREEZE = "drfd/test", "memory", ("freezer.state", "FROZEN")
    HIERARCHIES = ("blkio", "cpu,cpuacct", "cpuset", "freezer", "memory", "pids")
    ALL = frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids", "freezer", "blkio"})
    QUOTA_FILE, WEIGHT_FILE, MEMORY_FILE = "cpu.cfs_quota_us", "cpu.shares", "memory.limit_in_bytes"
    SWAP_FILE = "memory.memsw.limit_in_bytes"
    RATES = RATES_V1
    FRESH = FRESH_V1

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        #: Controllers of each hierarchy, by its directory's name.
        self.hierarchies = {name: name.split(",") for name in self.HIERARCHIES}
        # Our group there is made already.
        for hierarchy in self.hierarchies:
            for place in (f"{hierarchy}", f"{hierarchy}/drfd", f"{hierarchy}/{self.GROUP}"):
                (root / place).mkdir(exist_ok=True)
                self.furnish(root / place)

    def mounts(self) -> dict[str, str]:
        return {
            controller: str(self.root / hierarchy)
            for hierarchy, controllers in self.hierarchies.items()
            for controller in controllers
            if controller in self.controllers
        }

    def make(self) -> CgroupV1:
        return CgroupV1(self.mounts(), self.GROUP, HiddenByController("", "", self.GROUP, ""))

    def directory(self, key: Key = KEY, controller: str = "memory") -> Path:
        return Path(self.mounts()[controller], self.GROUP, f"job-{key[0]}-{key[1]}")

    def names(self) -> list[str]:
        there = sorted(self.root.glob("*/drfd/test/job-*"))
        assert len(there) % len({*self.place.mounts().values()}) == 0, "in all or in none"
        return sorted({path.name for path in there})

    def cores(self, key: Key) -> tuple[str, bool, str]:
        assert self.read("cpuset.mems", key) == "0"
        quota = self.read(self.QUOTA_FILE, key)
        is_pinned = self.read("cpuset.memory_migrate", key) == "1"
        return self.read("cpuset.cpus", key), is_pinned, "max" if quota == "-1" else quota

    def inhabit(self, *pids: int, key: Key = KEY, inner: str = "") -> None:
        for controller in ("freezer", "memory"):
            procs = self.directory(key, controller) / "cgroup.procs"
            procs.write_text("".join(f"{pid}\n" for pid in pids))

    def _controllers_of(self, path: str) -> tuple[str, list[str]]:
        hierarchy = Path(path).relative_to(self.root).parts[0]
        return hierarchy, [*self.hierarchies[hierarchy], ""]

    def _taken(self, path: Path, text: str) -> str:
        if path.name in self.RATES:
            # One device a line, the latest first; a rate of 0 removes its line (as tried on 6.18).
            device, rate = text.split()
            kept = [old for old in path.read_text().splitlines() if old.split()[0] != device]
            return "\n".join(kept if rate == "0" else [text, *kept])
        if path.name in ("cpuset.cpus", "cpuset.mems"):
            effective = path.name.replace("cpuset.", "cpuset.effective_")
            path.with_name(effective).write_text(text + "\n")
        return text


class KernelV2(Machine):
    GROUP, MAKING, FREEZE = "drfd.slice/drfd-x.scope/jobs", "mkdir", ("cgroup.freeze", "1")
    ALL = frozenset({"cpu", "cpuset", "memory", "pids", "io"})
    QUOTA_FILE, WEIGHT_FILE, MEMORY_FILE = "cpu.max", "cpu.weight", "memory.max"
    SWAP_FILE = "memory.swap.max"
    RATES = ("io.max",)
    FRESH = FRESH_V2

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.parent = root / self.GROUP
        self.parent.mkdir(parents=True)
        self.furnish(self.parent)

    def make(self) -> CgroupV2:
        root, release = str(self.root), lambda: self.released.append("released")
        return CgroupV2(root, self.GROUP, self.controllers, release)

    def directory(self, key: Key = KEY, controller: str = "memory") -> Path:
        return self.parent / f"job-{key[0]}-{key[1]}"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.parent.iterdir() if path.is_dir())

    def cores(self, key: Key) -> tuple[str, bool, str]:
        names = ("cpuset.cpus.effective", "cpuset.mems", "cpu.max")
        cpus, mems, quota = (self.read(name, key) for name in names)
        assert mems in ("", "0")
        return cpus, bool(mems), quota.removesuffix(" 100000")

    def inhabit(self, *pids: int, key: Key = KEY, inner: str = "") -> None:
        text = "".join(f"{pid}\n" for pid in pids)
        (self.directory(key) / inner / "cgroup.procs").write_text(text)
        populated = f"populated {int(bool(pids))}\nfrozen 0\n"
        (self.directory(key) / "cgroup.events").write_text(populated)

    def _controllers_of(self, path: str) -> tuple[str, list[str]]:
        return "mkdir", [name for name in self.fresh if not name or name in self.controllers]

    def _taken(self, path: Path, text: str) -> str:
        there = path.read_text().splitlines()
        match path.name:
            case "io.max":
                # One device a line, with all its keys (as tried on 6.1).
                device, *pairs = text.split()
                rates = dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max")
                rates |= dict(pair.split("=") for pair in pairs)
                mine = " ".join([device, *(f"{key}={rate}" for key, rate in rates.items())])
                return "\n".join([*(old for old in there if old.split()[0] != device), mine])
            case "dmem.max":
                # The line of a region that is there takes the place of its old one.
                lines = {old.split()[0]: old for old in there}
                if (region := text.split()[0]) not in lines:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "dmem.max")
                return "\n".join((lines | {region: text}).values())
            case "cgroup.kill":
                return ""
            case "cpuset.cpus" | "cpuset.mems":
                whole = text.strip() or self.FRESH["cpuset"][f"{path.name}.effective"]
                path.with_name(f"{path.name}.effective").write_text(whole + "\n")
            case "cgroup.freeze":
                events = path.with_name("cgroup.events")
                populated = events.read_text().split()[1]
                events.write_text(f"populated {populated}\nfrozen {text}\n")
        return text


Kernel = KernelV1 | KernelV2
KERNELS: dict[str, type[Kernel]] = {"v1": KernelV1, "v2": KernelV2}


@pytest.fixture(params=KERNELS)
def kernel(request, tmp_path, monkeypatch) -> Kernel:
    kernel = KERNELS[request.param](tmp_path)
    for module in (cgroups, cgroup_files, cgroup_v2, processes):
        monkeypatch.setattr(module, "os", kernel)
    monkeypatch.setattr(cores_module, "usable_cpus", lambda: frozenset(range(4)))
    monkeypatch.setattr(Plain, "set_property", lambda *words: kernel.write(*words))
    kernel.open()
    return kernel


def each(names: str, **cases: list[Any]) -> pytest.MarkDecorator:
    """The test with these values, by the kernel's version."""
    rows = [(version, *case) for version, of_it in cases.items() for case in of_it]
    return pytest.mark.parametrize(["kernel", *names.split()], rows, indirect=["kernel"])


on_v1 = pytest.mark.parametrize("kernel", ["v1"], indirect=True)
on_v2 = pytest.mark.parametrize("kernel", ["v2"], indirect=True)


# -- the group, and what is said of it ------------------------------------------------------


def test_closing_leaves_what_is_in_use(kernel):
    kernel.create()
    kernel.place.close()
    assert (kernel.names(), kernel.released) == (["job-41-2"], [])
    kernel.place.remove(KEY)
    kernel.place.close()
    if isinstance(kernel, KernelV1):
        kernel.place.close()
        assert list(kernel.root.glob("*/drfd/test")) == []
    else:
        assert (kernel.parent.exists(), kernel.released) == (False, ["released"])


RESOURCES = ("cores", "memory", "read", "write", "processes")


def kinds(kernel: Kernel) -> list[str]:
    controls = kernel.place.controls()
    assert controls.keys() == set(RESOURCES)
    return [controls[name].split(":")[0] for name in RESOURCES]


def test_it_says_what_it_enforces_and_where(kernel):
    assert kinds(kernel) == ["enforced"] * 5
    if isinstance(kernel, KernelV1):
        assert (kernel.place.kind, kernel.place.mounts()) == ("cgroup-v1", kernel.mounts())
        assert "buffered" in kernel.place.controls()["write"]
    else:
        assert (kernel.place.kind, kernel.place.mounts()) == (
            "cgroup-v2",
            {UNIFIED: str(kernel.root)},
        )
    assert kernel.place.cgroup_path(KEY, ()) == f"{kernel.GROUP}/job-41-2"
    assert kernel.place.cgroup_path(KEY, ["of-a", "of-b"]) == f"{kernel.GROUP}/of-a/of-b/job-41-2"


@on_v1
def test_without_blkio_it_does_not_claim_to_limit_disks(kernel):
    kernel.open("blkio")
    assert kinds(kernel)[2:4] == ["not controlled"] * 2
    with pytest.raises(LimitFailed, match="blkio"):
        kernel.create(limits(1000, QUOTA, DISK))
    assert kernel.place.leftovers() == []


@on_v2
def test_what_an_ordinary_user_is_not_given_is_measured(kernel):
    """And the rest is limited all the same."""
    kernel.open("cpu", "cpuset", "io")
    assert kinds(kernel) == ["measured", "enforced", "measured", "measured", "enforced"]
    for name, controller in (("cores", "cpu"), ("read", "io")):
        why = f"the {controller} controller is not given to us in /{kernel.GROUP}"
        assert kernel.place.controls()[name].endswith(why)
    assert not kernel.place.has_ranges()
    kernel.create(WITH_DISK)
    assert (kernel.read("memory.max"), kernel.read("pids.max")) == (str(64 << 20), "100")
    assert not kernel.file("cpu.max").exists() and not kernel.file("io.max").exists()


# -- limits ---------------------------------------------------------------------------------

IN_FILES = {
    "v1": {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
        "cpu.shares": "1536",
        "pids.max": "100",
        "memory.limit_in_bytes": str(64 << 20),
        "memory.memsw.limit_in_bytes": str(64 << 20),
        "memory.kmem.tcp.limit_in_bytes": str(64 << 20),
        "blkio.throttle.read_bps_device": "8:0 1000",
        "blkio.throttle.write_bps_device": "8:0 2000",
    },
    "v2": {
        "cpu.max": "150000 100000",
        "cpu.weight": "150",
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "100",
        "io.max": "8:0 rbps=1000 wbps=2000 riops=max wiops=max",
    },
}


@each("found", v1=[(IN_FILES["v1"],)], v2=[(IN_FILES["v2"],)])
def test_all_limits_are_in_the_kernels_files(kernel, found):
    kernel.create(WITH_DISK)
    assert kernel.names() == ["job-41-2"]
    assert kernel.values(*found) == found


@each(
    "cores_milli quota weight",
    v1=[(0, "1000", "2"), (1, "1000", "2"), (10, "1000", "10"), (11, "1100", "11"),
        (2000, "200000", "2048")],
    v2=[(0, "1000", "1"), (1, "1000", "1"), (10, "1000", "1"), (25, "2500", "3"),
        (2000, "200000", "200"), (500_000, "50000000", "10000")],
)  # fmt: skip
def test_cores_become_a_quota_and_a_weight_that_the_kernel_takes(
    kernel, cores_milli, quota, weight
):
    """It takes no quota below a millisecond, no shares below 2, and weights from 1 to 10000."""
    kernel.create(limits(cores_milli))
    found = kernel.read(kernel.QUOTA_FILE).removesuffix(" 100000")
    assert (found, kernel.read(kernel.WEIGHT_FILE)) == (quota, weight)


def test_memory_is_cut_to_whole_pages_as_the_kernel_does(kernel):
    kernel.create(replace(LIMITS, memory_bytes=5 * PAGE + 1))
    assert kernel.read(kernel.MEMORY_FILE) == str(5 * PAGE)


def test_without_swap_accounting_the_memory_limit_stands_alone(kernel):
    del kernel.fresh["memory"][kernel.SWAP_FILE]
    (kernel.directory().parent / kernel.SWAP_FILE).unlink()
    kernel.open()
    kernel.create()
    assert kernel.read(kernel.MEMORY_FILE) == str(64 << 20)
    assert not kernel.file(kernel.SWAP_FILE).exists()


@on_v1
def test_jobs_are_kept_from_swapping_by_what_the_group_hands_down(kernel):
    assert (kernel.directory().parent / "memory.swappiness").read_text() == "0"


# -- groups of jobs ---------------------------------------------------------------------------


def test_jobs_of_a_pool_and_a_user_are_in_groups_with_the_weights_of_these(kernel):
    def weight(group: str) -> str:
        top = kernel.directory(controller="cpu").parent
        return (top / group / kernel.WEIGHT_FILE).read_text().strip()

    of_ann = replace(LIMITS, groups=("of-lab", "of-ann"))
    kernel.place.weigh({"of-lab": 3000, "of-lab/of-ann": 500, "of-nobody": 9})
    kernel.create(of_ann)
    per_core = 1024 if isinstance(kernel, KernelV1) else 100
    assert (weight("of-lab"), weight("of-lab/of-ann")) == (str(3 * per_core), str(per_core // 2))
    kernel.place.weigh({"of-lab/of-ann": 250})
    assert weight("of-lab/of-ann") == str(per_core // 4)
    # The next launcher finds it where it is.
    again = kernel.make()
    assert again.leftovers() == [KEY]
    assert again.remove(KEY)
    assert weight("of-lab/of-ann") == str(per_core // 4), "it stays for the user's next job"


def test_groups_without_jobs_go_with_the_launcher(kernel):
    def groups() -> set[str]:
        tops = {kernel.directory(controller=name).parent for name in kernel.controllers}
        (same,) = {
            frozenset(str(each.relative_to(top)) for each in top.rglob("of-*")) for top in tops
        }
        return {*same}

    for number, path in enumerate((("of-lab", "of-ann"), ("of-lab", "of-bob"), ("of-cid",))):
        kernel.create(replace(LIMITS, groups=path), (number + 1, 1))
    assert kernel.place.remove((1, 1)) and kernel.place.remove((3, 1))
    # One of a job whose runner is about to make its cgroup stays, and the next launcher knows it.
    of_eve = replace(LIMITS, groups=("of-lab", "of-eve"))
    prepared = kernel.place.create((6, 1), of_eve, Devices())
    known = {"of-lab", "of-lab/of-ann", "of-lab/of-bob", "of-lab/of-eve", "of-cid"}
    assert groups() == known
    kernel.open()
    kernel.place.adopt((6, 1), f"{kernel.GROUP}/of-lab/of-eve/job-6-1")
    kernel.make_directories((6, 1), prepared.makes)
    assert kernel.place.remove((6, 1))
    # Also those that another launcher has made.
    kernel.make().close()
    assert groups() == {"of-lab", "of-lab/of-bob"}


def test_nobody_lists_a_directory(kernel):
    """Who could list one could keep it locked for ever. The controller enters them all."""
    kernel.create(replace(LIMITS, groups=("of-lab", "of-ann")))
    top = kernel.directory(controller="pids").parent
    for path in ("", "of-lab", "of-lab/of-ann", "of-lab/of-ann/job-41-2"):
        assert (top / path).stat().st_mode & 0o777 == 0o711


# -- cgroups that cannot be had -------------------------------------------------------------


def test_a_device_that_cannot_be_hidden_keeps_the_job_from_starting(kernel):
    """A plain directory can have no device program, just as a cgroup of some containers."""
    assert not kernel.place.hiding()[0]
    with pytest.raises(LimitFailed, match=r"device|bpf"):
        kernel.create(hidden=frozenset({DeviceNode("c", 195, 0)}))
    assert kernel.names() == []


@on_v1
def test_where_devices_share_a_hierarchy_each_job_has_one_cgroup_there(kernel):
    """A process can be in one cgroup of a hierarchy only, wherever the launcher itself is."""
    line = f"36 32 0:31 / {kernel.root}/freezer rw - cgroup cgroup rw,freezer,devices\n"
    shared = str(kernel.root / "freezer")
    devices = HiddenByController(line, "3:freezer,devices:/system.slice\n", "drfd/test", shared)
    assert devices.parent == f"{shared}/drfd/test"
    kernel.place = CgroupV1(kernel.mounts(), "drfd/test", devices)
    kernel.create()
    entries = kernel.place.plan(KEY, LIMITS, Devices(), is_pinned=False).entries
    assert [file for file in entries if "freezer" in file] == [f"{shared}/drfd/test/job-41-2/tasks"]
    assert (kernel.place.leftovers(), kernel.place.remove(KEY), kernel.names()) == ([KEY], True, [])


@on_v2
def test_the_memory_of_gpus_is_limited_where_the_kernel_can(kernel):
    """In whole pages. Of others, such as NVIDIA's, the use is measured alone."""
    kernel.open(and_="dmem")
    (kernel.parent / "dmem.max").write_text(kernel.FRESH["dmem"]["dmem.max"])
    assert kernel.place.limitable_gpus() == {"0000:03:00.0", "0000:c6:00.0"}
    own = ("0000:03:00.0", "0000:c6:00.0", "0000:01:00.0")
    limit = (20 << 30) + 5
    kernel.create(memory=tuple((pci, limit) for pci in own))
    assert kernel.read("dmem.max").splitlines() == [
        f"drm/0000:03:00.0/vram {20 << 30}",
        f"drm/0000:c6:00.0/vram {20 << 30}",
        "drm/card1/stolen max",
    ]
    kernel.create(key=(42, 1))
    assert kernel.read("dmem.max", (42, 1)) == kernel.FRESH["dmem"]["dmem.max"]
    assert len(kernel.written("dmem.max")) == 2


@each("making", v1=[(name,) for name in KernelV1.HIERARCHIES], v2=[("mkdir",)])
def test_a_cgroup_that_cannot_be_made_leaves_no_others(kernel, making):
    kernel.fails[making] = errno.EACCES
    with pytest.raises(LimitFailed, match="Permission denied"):
        kernel.create()
    kernel.fails[making] = errno.ENOSPC
    with pytest.raises(LimitFailed, match="job-41-2: the kernel has no room for another cgroup"):
        kernel.create()
    assert kernel.names() == []


@on_v2
def test_a_parent_that_has_vanished_is_no_fault_of_the_job(kernel):
    """Its unit was stopped: the launcher has to make a new kernel.place."""
    kernel.rmdir(str(kernel.parent))
    with pytest.raises(JobGroupGone, match=kernel.GROUP):
        kernel.create()


# -- entering -------------------------------------------------------------------------------


def test_a_process_is_moved_into_every_hierarchy_unless_the_job_is_full(kernel):
    """The kernel looks at the limit only when a process is forked, and counts all the same: those
    that a user moves would keep other jobs from forking."""
    kernel.create()
    kernel.place.join(KEY, os.getpid(), -1)
    procs = list(kernel.root.rglob("job-41-2/cgroup.procs"))
    assert {path.read_text() for path in procs} == {str(os.getpid())}
    full = kernel.file("pids.current")
    room = full.read_text()
    full.write_text(kernel.read("pids.max"))
    with pytest.raises(LimitFailed, match="the job has as many processes as allowed"):
        kernel.place.join(KEY, os.getppid(), -1)
    full.write_text(room)
    all_jobs = full.parent.parent
    (all_jobs / "pids.max").write_text("100")
    (all_jobs / "pids.current").write_text("100")
    with pytest.raises(LimitFailed, match="all jobs have as many processes as allowed"):
        kernel.place.join(KEY, os.getppid(), -1)
    assert {path.read_text() for path in procs} == {str(os.getpid())}


# -- pinning --------------------------------------------------------------------------------


def test_without_cpusets_quotas_stand_in_for_pins_and_it_says_so(kernel):
    kernel.open("cpuset")
    kernel.create(limits(2000, PIN))
    assert kernel.read(kernel.QUOTA_FILE).removesuffix(" 100000") == "200000"
    why = "no cpuset controller is mounted"
    if isinstance(kernel, KernelV2):
        why = f"the cpuset controller is not given to us in /{kernel.GROUP}"
    assert kernel.place.cores()[PIN] == f"enforced: {NO_PIN}: {why}"
    assert kernel.place.cores()[QUOTA] == kernel.place.controls()["cores"] == "enforced"
    assert kernel.place.freeze(KEY, None) and kernel.place.remove(KEY)


@on_v1
def test_cpusets_that_we_cannot_have_are_done_without(kernel):
    kernel.fails["cgroup.clone_children"] = errno.EACCES
    kernel.open()
    assert kernel.place.cores()[PIN].endswith("drfd/test/cgroup.clone_children: Permission denied")
    assert "cpuset" not in kernel.place.mounts()
    kernel.create(limits(2000, PIN))
    assert kernel.names() == ["job-41-2"]


@each("name", v1=[("cpuset.memory_migrate",)], v2=[("cpuset.cpus",), ("cpuset.mems",)])
def test_a_pin_that_the_kernel_refuses_leaves_nothing_behind(kernel, name):
    kernel.fails[name] = errno.EACCES
    with pytest.raises(LimitFailed, match=f"{name}: Permission denied"):
        kernel.create(limits(2000, PIN))
    del kernel.fails[name]
    assert kernel.place.leftovers() == []
    kernel.create(limits(1000, QUOTA), (1, 1))
    kernel.create(limits(3000, PIN))
    assert (kernel.cores(KEY), kernel.cores((1, 1))[0]) == (("0-2", True, "max"), "3")


def test_a_frozen_job_keeps_its_cpus_and_the_next_launcher_knows_it(kernel):
    for number in (1, 2):
        kernel.create(limits(2000, PIN), (number, 1))
    kernel.place.freeze((1, 1), None)
    kernel.open()
    kernel.create(limits(1000, PIN), (3, 1))
    assert kernel.cores((3, 1)) == ("0-3", False, "100000")
    kernel.place.remove((2, 1))
    kernel.create(limits(1000, PIN), (4, 1))
    kernel.place.thaw((1, 1), None)
    assert [kernel.cores((number, 1))[:2] for number in (1, 4)] == [("0-1", True), ("2", True)]


def test_a_job_whose_cpuset_is_made_meanwhile_leaves_the_pinned_cpus(kernel):
    """Its runner makes that where the kernel gives a new one all CPUs."""
    kernel.create(limits(1000, QUOTA), (1, 1))
    prepared = kernel.place.create((2, 1), limits(1000, QUOTA), Devices())
    assert prepared.makes > 0
    kernel.create(limits(3000, PIN), (3, 1))
    assert kernel.place.create((4, 1), limits(1000, QUOTA), Devices()).makes == 0
    kernel.make_directories((2, 1), prepared.makes)
    kernel.place.begun((2, 1))
    kernel.place.begun((3, 1))
    cpus = {number: kernel.read("cpuset.cpus", (number, 1)) for number in (1, 2, 3, 4)}
    assert cpus == {1: "3", 2: "3", 3: "0-2", 4: "3"}


# -- out of memory --------------------------------------------------------------------------


@on_v1
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
def test_a_kill_is_blamed_on_the_limit_only_if_it_was_reached(kernel, kills, peak, found):
    kernel.create()
    control = kernel.file("memory.oom_control")
    control.write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    kernel.file("memory.max_usage_in_bytes").write_text(f"{peak}\n")
    assert kernel.oom_kills() == found
    # An old kernel counts no kills.
    control.write_text("oom_kill_disable 0\nunder_oom 1\n")
    assert kernel.oom_kills() == (False, False)


def memory_events(oom: int, kills: int) -> str:
    return f"low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {kills}\n"


@on_v2
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
def test_a_kill_is_blamed_on_the_limit_of_the_whole_job_only(kernel, own, everywhere, found):
    kernel.create()
    kernel.file("memory.events.local").write_text(memory_events(*own))
    kernel.file("memory.events").write_text(memory_events(*everywhere))
    assert kernel.oom_kills() == found


@on_v2
@pytest.mark.parametrize(
    ("mark", "found"), [(b"1", True), (b"12", True), (b"0", False), (b"?", False)]
)
def test_systemds_killer_leaves_a_mark_and_not_the_limits(kernel, mark, found):
    kernel.create()
    kernel.xattrs["user.oomd_ooms"] = mark
    assert kernel.oom_kills() == (found, False)


# -- freezing and signals -------------------------------------------------------------------


def test_processes_are_signalled_while_they_cannot_fork(kernel, start):
    kernel.create()
    gone = start("true")
    gone.wait(WAIT_S)
    jobs = [start("sleep", "60") for _ in range(2)]
    kernel.inhabit(jobs[0].pid, gone.pid, jobs[1].pid)
    kernel.place.signal(KEY, None, signal.SIGTERM)
    assert [job.wait(WAIT_S) for job in jobs] == [-signal.SIGTERM] * 2
    assert kernel.freezes() == [True, False]


def test_after_a_signal_a_jobs_cgroups_are_not_looked_at(kernel, start, tmp_path, monkeypatch):
    """It may have ended by it, and who looks waits for their removal."""
    kernel.create()
    runner = start("sh", "-c", "sleep 60 & echo $! >a; wait", cwd=tmp_path)
    kernel.inhabit(pid_in(tmp_path / "a"))
    me = {"pid": runner.pid, "start_ticks": process.start_ticks(runner.pid)}
    pids_in = processes.pids_in

    def listed(directory: str) -> list[int]:
        assert kernel.freezes()[-1:] != [False]
        return pids_in(directory)

    monkeypatch.setattr(processes, "pids_in", listed)
    ours = Records(created={"boot_id": process.boot_id()}, runner=me)
    kernel.place.signal(KEY, ours, signal.SIGTERM, signal.SIGCONT)
    assert runner.wait(WAIT_S) == 0


@on_v2
def test_processes_in_cgroups_further_in_are_signalled_too(kernel, start, monkeypatch):
    """Threads in a cgroup of their own are with their process: the kernel refuses to list them.
    Of those that it cannot name here it says 0."""
    kernel.create()
    for name in ("inner", "threads"):
        kernel.mkdir(str(kernel.file(name)))
    jobs = [start("sleep", "60") for _ in range(2)]
    kernel.inhabit(jobs[0].pid, 0)
    kernel.inhabit(jobs[1].pid, inner="inner")

    def refuse(path: str) -> str:
        if "/threads/" in path:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return get(path)

    monkeypatch.setattr(processes, "get", refuse)
    kernel.place.signal(KEY, None, signal.SIGTERM)
    assert [job.wait(WAIT_S) for job in jobs] == [-signal.SIGTERM] * 2


@each("reads", v1=[("FREEZING",)], v2=[("0",)])
def test_a_freezer_that_takes_long_does_not_stop_the_signal(kernel, start, reads):
    """A process in uninterruptible sleep delays it; it goes on in the background, and nobody is
    kept waiting for it."""
    kernel.create()
    job = start("sleep", "60")
    kernel.inhabit(job.pid)
    kernel.insists[kernel.FREEZE[0]] = reads
    assert not kernel.place.freeze(KEY, None)
    kernel.place.signal(KEY, None, signal.SIGTERM)
    assert job.wait(WAIT_S) == -signal.SIGTERM
    assert kernel.freezes()[0] is True and kernel.freezes()[-1] is False


# -- ending ---------------------------------------------------------------------------------


@on_v1
def test_killing_is_done_when_the_cgroup_is_empty(kernel, start):
    """All is frozen, and each process is killed."""
    kernel.create()
    job = start("sh", "-c", "trap '' TERM; exec sleep 60")
    kernel.inhabit(job.pid)
    attempt = Records(created={"boot_id": "x"})
    assert not kernel.place.kill_pass(KEY, attempt), "the plain file still lists it"
    assert job.wait(WAIT_S) == -signal.SIGKILL
    assert kernel.freezes() == [True, False]
    kernel.inhabit()
    assert kernel.place.kill_pass(KEY, attempt)
    assert kernel.freezes() == [True, False], "an empty cgroup is not even frozen"


@on_v2
def test_the_kernel_kills_all_at_once(kernel):
    kernel.create()
    kernel.inhabit(os.getpid())
    assert not kernel.place.kill_pass(KEY, Records(created={"boot_id": "x"})), (
        "the plain file lists it"
    )
    assert kernel.written("cgroup.kill") == ["1"]
    assert kernel.freezes() == []
    kernel.inhabit()
    assert kernel.place.kill_pass(KEY, None)
    assert kernel.written("cgroup.kill") == ["1"], "an empty cgroup is left alone"


@on_v2
def test_what_was_moved_out_by_others_is_told_and_killed_as_the_runners_child(
    kernel, start, tmp_path
):
    """systemd moves processes for their user. That of another process with the runner's number,
    which was a runner once, is nobody of ours."""
    kernel.create()
    job = "trap 'echo x >>told' TERM; sleep 60 & echo $! >a; wait; wait"
    runner = start("sh", "-c", 'sh -c "$0" & wait', job, cwd=tmp_path)
    sleeper = pid_in(tmp_path / "a")
    me = {"pid": runner.pid, "start_ticks": process.start_ticks(runner.pid)}
    here = {"boot_id": process.boot_id()}
    for stranger in (
        Records(created=here, runner={**me, "start_ticks": 1}),
        Records(created={"boot_id": "another"}, runner=me),
    ):
        assert kernel.place.kill_pass(KEY, stranger)
    (fled,) = process.children(runner.pid)
    ours = Records(created=here, runner=me)
    kernel.place.signal(KEY, ours, signal.SIGTERM)
    until("a word", (tmp_path / "told").exists)
    assert not kernel.place.kill_pass(KEY, ours)
    until("its end", lambda: process.start_ticks(fled) is None)
    assert kernel.place.kill_pass(KEY, ours)
    # To a real runner it would come as a child when its parent dies.
    os.kill(sleeper, signal.SIGKILL)


def test_a_cgroup_that_is_gone_needs_nothing(kernel):
    kernel.place.signal(KEY, None, signal.SIGTERM)
    kernel.place.thaw(KEY, None)
    assert not kernel.place.freeze(KEY, None)
    assert kernel.place.kill_pass(KEY, None)
    assert kernel.oom_kills() == (False, False)
    assert kernel.place.remove(KEY)


@on_v2
def test_cgroups_that_a_job_has_made_in_its_own_go_with_it(kernel):
    kernel.create()
    for inner in ("a", "a/b", "a/b/c", "d"):
        kernel.mkdir(str(kernel.file(inner)))
    kernel.inhabit(1, inner="a/b")
    assert not kernel.place.remove(KEY)
    kernel.inhabit(inner="a/b")
    assert kernel.place.remove(KEY)
    assert kernel.names() == []


# -- what is counted ----------------------------------------------------------------------


V1 = {
    "cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 1500999\nnr_bursts 0\n",
    "cpuacct.usage": "2500000999\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "memory.failcnt": "17\n",
    "memory.max_usage_in_bytes": "4096\n",
}
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"
    "nr_periods 40\nnr_throttled 10\nthrottled_usec 1500\n",
    "memory.events": "low 0\nhigh 0\nmax 17\noom 2\noom_kill 2\noom_group_kill 1\n",
    "memory.peak": "4096\n",
    "pids.peak": "5\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=777\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=700\n",
}


def fill(place: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (place / name).write_text(text)


def v1(place: Path) -> Mapping[str, int]:
    directories = dict.fromkeys(("cpu", "cpuacct", "memory"), str(place))
    return judge(read_counters(counters_v1(directories))).counted


def v2(place: Path) -> Mapping[str, int]:
    return judge(read_counters(counters_v2(str(place)))).counted


@pytest.mark.parametrize(("limit", "hits"), [("4096\n", None), ("8192\n", 0)])
def test_a_limit_that_was_reached_and_never_hit_is_not_believed(tmp_path, limit, hits):
    fill(tmp_path, {**V1, "memory.failcnt": "0\n", "memory.limit_in_bytes": limit})
    assert v1(tmp_path).get("limit_hits") == hits


def test_what_has_vanished_is_unknown_and_not_zero(tmp_path):
    assert v1(tmp_path / "gone") == {}
    assert counters_v1({}) == []
    assert v2(tmp_path / "gone") == {}


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("cpu.stat", {"quota_periods", "throttled_periods", "throttled_us", "cpu_us"}),
        ("memory.events", {"limit_hits", "oom_kills"}),
        ("memory.peak", {"memory_peak_bytes"}),
        ("pids.peak", {"processes_peak"}),
        ("io.pressure", {"io_stalled_us"}),
    ],
)
@pytest.mark.parametrize("text", [None, "what is this?\n", ""])
def test_a_file_that_is_missing_or_strange_hides_only_its_own(tmp_path, name, lost, text):
    fill(tmp_path, V2)
    whole = v2(tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    assert v2(tmp_path) == {key: whole[key] for key in whole if key not in lost}
