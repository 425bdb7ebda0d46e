"""Device nodes hidden from cgroups: by the kernel where this machine has it and we are root, and
what is said where it cannot be; the program that refuses devices also in a small interpreter."""

import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.launcher.confinement import device_hiding
from drfd.launcher.confinement.cgroup_files import find_own, find_unified
from drfd.launcher.confinement.cgroup_v2 import CgroupV2
from drfd.launcher.confinement.device_hiding import HiddenByBpf, HiddenByController, device_program
from drfd.launcher.confinement.interface import LimitFailed, Prepared
from drfd.launcher.protocol import AttemptLimits, Devices
from drfd.linux import syscalls
from drfd.linux.device_nodes import BLOCK, CHARACTER, DeviceNode
from drfd.linux.syscalls import BPF_F_ALLOW_MULTI, AttachedPrograms
from kernel import enter

pytestmark = pytest.mark.usefixtures("forks_beside_threads")

MOUNTINFO = Path("/proc/self/mountinfo").read_text()
MEMBERSHIPS = Path("/proc/self/cgroup").read_text()
LIMITS = AttemptLimits(cores_milli=1000, memory_bytes=64 << 20, pids=16)
KEY, OTHER_KEY = (41, 2), (42, 1)
NULL, ZERO, FULL = (DeviceNode("c", 1, minor) for minor in (3, 5, 7))
#: Nobody has these; only their numbers matter.
GPUS = [DeviceNode("c", 195, minor) for minor in range(100)]
BPF_F_ALLOW_OVERRIDE = 1


def forked(deed: Callable[[], object]) -> str:
    """What becomes of the deed in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            deed()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
        finally:
            os._exit(254)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return errno.errorcode.get(code, f"exit {code}") if code else "ok"


def outcome(path: str, file: Path) -> str:
    """What becomes of an open in a process that has entered a cgroup by this file."""

    def enter_and_open() -> None:
        file.write_text("0")
        os.close(os.open(path, os.O_RDONLY))

    return forked(enter_and_open)


# -- version 2 ------------------------------------------------------------------------------

UNIFIED = find_unified(MOUNTINFO)
has_bpf = pytest.mark.skipif(
    os.getuid() != 0 or UNIFIED is None, reason="not root, or no cgroup v2 is mounted"
)


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup in which those of jobs can be, which needs no controllers."""
    assert UNIFIED is not None
    made = Path(UNIFIED, f"drfd-test-hiding-{os.getpid()}")
    made.mkdir()
    yield made
    for directory in [*made.glob("*/*/"), *made.glob("*/"), made]:
        directory.rmdir()


@pytest.fixture
def by_bpf(group) -> HiddenByBpf:
    return HiddenByBpf(str(group.parent), group.name)


def make_job(group: Path, name: str = "job-41-2") -> Path:
    directory = group / name
    directory.mkdir()
    return directory


def attach(
    directory: Path, flags: int, hidden: DeviceNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attach a program of somebody else's, with flags of theirs."""
    program_fd = syscalls.load_device_program(device_program([hidden]))
    cgroup_fd = os.open(directory, os.O_RDONLY)
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "BPF_F_ALLOW_MULTI", flags)
        syscalls.attach_device_program(cgroup_fd, program_fd)
    os.close(program_fd)
    os.close(cgroup_fd)


@pytest.mark.slow
@has_bpf
def test_a_hidden_device_is_refused_in_the_jobs_cgroup_alone(group, by_bpf):
    hidden, other = make_job(group), make_job(group, "job-42-1")
    by_bpf.hide(str(hidden), frozenset({ZERO, FULL}))
    paths = ("/dev/null", "/dev/zero", "/dev/full")
    assert [outcome(path, hidden / "cgroup.procs") for path in paths] == ["ok", "EPERM", "EPERM"]
    assert [outcome(path, other / "cgroup.procs") for path in paths] == ["ok", "ok", "ok"]
    inner = make_job(hidden, "a-container")
    assert outcome("/dev/zero", inner / "cgroup.procs") == "EPERM"
    assert outcome("/dev/null", inner / "cgroup.procs") == "ok"


@has_bpf
def test_hiding_is_tried_also_after_a_kill_and_leaves_nothing(group, by_bpf):
    make_job(group, "device-trial")
    how, said = by_bpf.hiding()
    assert (how, "hidden" in said) == (True, True)
    assert [path.name for path in group.iterdir() if path.is_dir()] == []


@has_bpf
def test_no_descriptor_of_a_program_stays_open(group, by_bpf):
    before = len(os.listdir("/proc/self/fd"))
    for count, gpu in enumerate(GPUS[:2]):
        directory = make_job(group, f"job-{count}-1")
        by_bpf.hide(str(directory), frozenset({gpu}))
        fd = os.open(directory, os.O_RDONLY)
        found = syscalls.device_programs(fd)
        os.close(fd)
        assert (found.flags, len(found.ids)) == (BPF_F_ALLOW_MULTI, 1)
    assert len(os.listdir("/proc/self/fd")) == before


@has_bpf
def test_devices_stay_hidden_when_the_process_that_hid_them_is_gone(group, by_bpf, tmp_path):
    """Also from root, who cannot make another node of the same number either."""
    job = make_job(group)
    assert forked(lambda: by_bpf.hide(str(job), frozenset({ZERO}))) == "ok"
    assert outcome("/dev/zero", job / "cgroup.procs") == "EPERM"

    def make_others() -> None:
        (job / "cgroup.procs").write_text("0")
        os.mknod(tmp_path / "full", 0o600 | stat.S_IFCHR, os.makedev(1, 7))
        os.mknod(tmp_path / "zero", 0o600 | stat.S_IFCHR, os.makedev(1, 5))

    assert forked(make_others) == "EPERM"
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@has_bpf
def test_an_attempt_begins_with_its_devices_hidden(group, monkeypatch):
    """On a machine that has version 2 without the controllers that limit jobs."""
    monkeypatch.setattr(CgroupV2, "_limits", lambda *words: [])
    place = CgroupV2(str(group.parent), group.name, frozenset({"cpu"}), lambda: None)
    place.create(KEY, LIMITS, Devices(hidden=frozenset({FULL})))
    assert place.create(OTHER_KEY, LIMITS, Devices()) == Prepared(makes=1)
    (group / "job-42-1").mkdir()

    def begin(key: tuple[int, int]) -> None:
        enter(place, key)
        os.close(os.open("/dev/full", os.O_RDONLY))

    keys = (KEY, OTHER_KEY)
    found = [forked(partial(begin, key)) for key in keys]
    fd = os.open(group / "job-42-1", os.O_RDONLY)
    assert (found, syscalls.device_programs(fd)) == (["EPERM", "ok"], (0, ()))
    os.close(fd)
    assert [place.remove(key) for key in (KEY, OTHER_KEY)] == [True, True]


@has_bpf
def test_nobodys_refusal_is_lifted(group, by_bpf, monkeypatch):
    """Of a program with BPF_F_ALLOW_OVERRIDE the kernel would not ask any more."""
    attach(group, BPF_F_ALLOW_OVERRIDE, ZERO, monkeypatch)
    how, said = by_bpf.hiding()
    assert not how
    assert f"{group} has a device program that was attached without BPF_F_ALLOW_MULTI" in said
    job = make_job(group)
    with pytest.raises(LimitFailed, match="attached without BPF_F_ALLOW_MULTI"):
        by_bpf.hide(str(job), frozenset({FULL}))
    assert outcome("/dev/zero", job / "cgroup.procs") == "EPERM"


@has_bpf
def test_a_program_that_comes_later_and_admits_no_other_is_named(group, by_bpf, monkeypatch):
    """And below it nothing can be hidden, which is said."""
    assert by_bpf.hiding()[0]
    attach(group, 0, ZERO, monkeypatch)
    with pytest.raises(LimitFailed) as raised:
        by_bpf.hide(str(make_job(group)), frozenset({FULL}))
    assert str(raised.value).startswith(f"{group} has a device program that was attached without")
    how, said = HiddenByBpf(str(group.parent), group.name).hiding()
    assert (how, "without BPF_F_ALLOW_MULTI" in said) == (False, True)


@pytest.mark.slow
@has_bpf
def test_what_others_refuse_and_what_they_refuse_later_holds_too(group, by_bpf, monkeypatch):
    """As systemd's programs do, which come again with each daemon-reload."""
    attach(group, BPF_F_ALLOW_MULTI, ZERO, monkeypatch)
    job = make_job(group)
    by_bpf.hide(str(job), frozenset({FULL}))
    paths = ("/dev/null", "/dev/zero", "/dev/full")
    assert [outcome(path, job / "cgroup.procs") for path in paths] == ["ok", "EPERM", "EPERM"]
    attach(group, BPF_F_ALLOW_MULTI, NULL, monkeypatch)
    assert [outcome(path, job / "cgroup.procs") for path in paths] == ["EPERM"] * 3


@has_bpf
def test_a_program_that_the_kernel_does_not_report_fails_the_launch(group, by_bpf, monkeypatch):
    by_bpf.hiding()
    job = make_job(group)
    monkeypatch.setattr(syscalls, "device_programs", lambda fd: AttachedPrograms(2, ()))
    with pytest.raises(LimitFailed, match=r"job-41-2: the device program \d+ was attached"):
        by_bpf.hide(str(job), frozenset({FULL}))


@has_bpf
def test_a_shortage_during_the_trial_is_not_the_last_word(group, by_bpf, monkeypatch):
    def fail(instructions: bytes) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "bpf")

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "load_device_program", fail)
        how, said = by_bpf.hiding()
        assert how, "so that nothing is left visible for that"
        assert said.endswith(
            "; not tried yet: a device program cannot be loaded: bpf: Cannot allocate memory"
        )
        with pytest.raises(LimitFailed) as raised:
            by_bpf.hide(str(make_job(group)), frozenset({FULL}))
        # By its cause the job is postponed.
        assert isinstance(raised.value.__cause__, OSError)
    assert by_bpf.hiding()[0]


def test_without_the_right_to_programs_it_is_said_whose_right_that_is(tmp_path, monkeypatch):
    def refuse(*values: object) -> AttachedPrograms:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), "bpf")

    monkeypatch.setattr(syscalls, "device_programs", refuse)
    (tmp_path / "jobs").mkdir()
    how, said = HiddenByBpf(str(tmp_path), "jobs").hiding()
    assert not how
    assert "need root's rights (CAP_BPF and CAP_NET_ADMIN)" in said


# -- version 1 ------------------------------------------------------------------------------

OWN = find_own(MOUNTINFO, MEMBERSHIPS, "devices")
has_devices = pytest.mark.skipif(
    os.getuid() != 0 or OWN is None, reason="not root, or no devices controller of cgroup v1"
)


@pytest.fixture
def by_controller() -> Iterator[HiddenByController]:
    place = HiddenByController(MOUNTINFO, MEMBERSHIPS, f"drfd-test-hiding-{os.getpid()}", "")
    yield place
    assert place.parent is not None
    parent = Path(place.parent)
    for directory in [*parent.glob("*/"), *([parent] if parent.exists() else [])]:
        directory.rmdir()


@pytest.mark.slow
@has_devices
def test_on_version_1_a_hidden_device_is_refused_in_the_cgroup_that_only_such_jobs_have(
    by_controller,
):
    by_controller.hide(KEY, "", {ZERO, FULL})
    (directory,) = by_controller.entrance(KEY)
    tasks = Path(directory, "tasks")
    paths = ("/dev/null", "/dev/zero", "/dev/full")
    assert [outcome(path, tasks) for path in paths] == ["ok", "EPERM", "EPERM"]
    assert [outcome(path, Path(OWN or "", "tasks")) for path in paths] == ["ok", "ok", "ok"]
    assert by_controller.leftovers() == [KEY]
    assert by_controller.entrance(OTHER_KEY) == []
    assert [Path(one).exists() for one in by_controller.directories(OTHER_KEY)] == [False]


@has_devices
def test_on_version_1_hiding_is_tried_and_leaves_nothing(by_controller):
    how, said = by_controller.hiding()
    assert (how, "hidden" in said) == (True, True)
    assert not Path(by_controller.parent or "").exists()


def make_denying(directory: Path, listed: str) -> None:
    directory.mkdir(parents=True)
    (directory / "devices.deny").touch()
    (directory / "devices.list").write_text(listed)


@pytest.mark.parametrize("line", ["c 1:7 r", "c 1:* rwm", "c *:* m", "a *:7 rw"])
def test_a_wildcard_of_the_surrounding_cgroup_that_still_allows_the_device_fails_the_launch(
    tmp_path, line
):
    """The kernel takes back equal permissions alone."""
    make_denying(tmp_path / "job", f"b 1:7 rwm\n{line}\n")
    with pytest.raises(LimitFailed) as raised:
        device_hiding._deny(str(tmp_path / "job"), {FULL})
    assert str(raised.value) == (
        f"{tmp_path}/job/devices.list still has {line!r}, which allows c 1:7: "
        "the surrounding cgroup allows it with a wildcard"
    )


def test_where_only_other_devices_are_allowed_the_refusal_holds(tmp_path):
    make_denying(tmp_path / "job", "b 1:7 rwm\nc 1:3 rwm\nc 5:* rwm\n")
    device_hiding._deny(str(tmp_path / "job"), {FULL})
    assert (tmp_path / "job/devices.deny").read_text() == "c 1:7 rwm"


def test_a_machine_without_the_devices_controller_is_told_so():
    place = HiddenByController("", "", "drfd/test", "")
    sentence = "devices cannot be hidden from jobs: drfd sees no devices controller of cgroup v1"
    assert place.hiding() == (False, sentence)
    with pytest.raises(LimitFailed, match="no devices controller"):
        place.hide(KEY, "", {FULL})
    assert (place.directories(KEY), place.entrance(KEY), place.leftovers()) == ([], [], [])
    place.close()


MOUNT = "36 32 0:31 {root} /cg/devices rw - cgroup cgroup rw,devices\n"


@pytest.mark.parametrize(
    ("root", "own", "found"),
    [
        ("/", "/", "/cg/devices"),
        ("/", "/system.slice/drfd.service", "/cg/devices/system.slice/drfd.service"),
        ("/docker/1", "/docker/1", "/cg/devices"),
        ("/docker/1", "/docker/1/inner", "/cg/devices/inner"),
        ("/docker/1", "/docker/12", None),
        ("/..", "/", None),
    ],
)
def test_our_own_cgroup_is_found_below_what_is_mounted(root, own, found):
    memberships = f"9:memory:/other\n3:devices:{own}\n0::/\n"
    assert find_own(MOUNT.format(root=root), memberships, "devices") == found


def test_what_another_process_has_mounted_or_joined_is_not_ours():
    assert find_own("", "3:devices:/\n", "devices") is None
    assert find_own(MOUNT.format(root="/"), "3:memory:/\n", "devices") is None


# -- the program, run by an interpreter of the operations that it uses --------------------


NODES = some.builds(
    DeviceNode,
    kind=some.sampled_from([BLOCK, CHARACTER]),
    major=some.one_of(some.integers(0, 3), some.integers(0, (1 << 12) - 1)),
    minor=some.one_of(some.integers(0, 3), some.integers(0, (1 << 20) - 1)),
)
#: As the kernel names them: mknod, read, write, and combinations.
ACCESSES = some.integers(1, 7)


def run(program: bytes, node: DeviceNode, access: int) -> int:
    """What the program returns for this access. What it does not use is not known here."""
    kind = {BLOCK: 1, CHARACTER: 2}[node.kind]
    context = struct.pack("=III", access << 16 | kind, node.major, node.minor)
    registers: dict[int, int] = {1: 0}
    at = 0
    while True:
        code, both, offset, value = struct.unpack_from("=BBhi", program, 8 * at)
        low, high = both & 15, both >> 4
        target, source = (low, high) if sys.byteorder == "little" else (high, low)
        at += 1
        match code:
            case 0x61:
                assert source == 1, "only the context can be read"
                registers[target] = struct.unpack_from("=I", context, offset)[0]
            case 0x54:
                registers[target] = registers[target] & value & 0xFFFFFFFF
            case 0x55:
                assert offset >= 0, "the verifier wants an end"
                at += offset if registers[target] != value else 0
            case 0xB7:
                registers[target] = value
            case 0x95:
                return registers[0]
            case _:
                raise AssertionError(f"operation {code:#x}")


def length(program: bytes) -> int:
    return len(program) // 8


@given(hidden=some.frozensets(NODES, max_size=8), other=NODES, access=ACCESSES)
def test_exactly_the_listed_devices_are_refused_whatever_the_access(hidden, other, access):
    program = device_program(hidden)
    refused = {node for node in {*hidden, other} if run(program, node, access) == 0}
    assert refused == hidden
    assert run(program, other, access) in (0, 1)


@given(hidden=some.lists(NODES, max_size=8))
def test_the_program_depends_on_the_set_alone(hidden):
    program = device_program(hidden)
    assert program == device_program([*reversed(hidden), *hidden])
    assert length(program) == 4 + 5 * len(set(hidden)) + 2
