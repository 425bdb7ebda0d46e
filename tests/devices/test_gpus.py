"""GPUs on recorded machines: which are found, also when they are looked up again or a driver hangs;
the variables that name them to the runtimes of their vendors, and the numbers of device nodes."""

import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.devices import nvidia
from drfd.devices.gpu import GpuFault
from drfd.devices.gpus import Gpu, GpuLost, automatic, find_gpus, gpus_named
from drfd.devices.kernel_files import is_basic, node_at
from drfd.devices.nvidia import Memory, read_each
from drfd.devices.variables import variables_for
from drfd.linux.device_nodes import BLOCK, DeviceNode, show_node
from tests.gpu_machines import names, unfold


def nodes(gpu: Gpu) -> str:
    """Return the nodes of a GPU without their kind, which is that of character devices."""
    assert all(node.kind == "c" for node in gpu.nodes)
    return " ".join(sorted(show_node(node).removeprefix("c ") for node in gpu.nodes))


def rows(gpus: tuple[Gpu, ...]) -> list[tuple[str, str, str | None, str, int | None, str]]:
    return [(gpu.name, gpu.model, gpu.uuid, gpu.pci, gpu.numa_node, nodes(gpu)) for gpu in gpus]


def test_slices_stand_for_a_gpu_that_mig_divides(tmp_path):
    """Two slices of one GPU instance share its capability, and all share the GPU's own nodes."""
    found = find_gpus(unfold("mig-on-one-of-two", tmp_path))
    whole = "195:1 226:1 226:128"
    assert [(gpu.name, nodes(gpu)) for gpu in found] == [
        ("0:1:0", f"{whole} 238:147 238:148"),
        ("0:1:1", f"{whole} 238:147 238:149"),
        ("0:3:0", f"{whole} 238:165 238:166"),
        ("1", "195:0 226:129 226:2"),
    ]
    assert found[2].uuid == "MIG-GPU-20bed2f5-819b-69ad-8d42-d3e1446080c1/3/0"
    assert [gpu.rank for gpu in found] == [0, 0, 0, 1]


def test_gpus_of_amd_are_found_by_kfd_with_their_links(tmp_path):
    """KFD, and so ROCm, counts them in another order than by PCI address."""
    found = find_gpus(unfold("two-amd-linked", tmp_path))
    assert rows(found) == [
        ("0", "AMD gfx90a", "GPU-51276ac12ce05db3", "0000:43:00.0", 0, "226:129 226:2"),
        ("1", "AMD INSTINCT MI210", "GPU-1901ead3a2ecd4a6", "0000:63:00.0", 0, "226:1 226:128"),
    ]
    assert [gpu.links for gpu in found] == [{"1"}, {"0"}]
    assert [gpu.rank for gpu in found] == [1, 0]


def test_a_gpu_of_amd_may_have_no_uuid_and_one_in_a_processor_is_integrated(tmp_path):
    found = find_gpus(unfold("amd-without-unique-id", tmp_path))
    assert [(gpu.model, gpu.uuid, gpu.is_integrated) for gpu in found] == [
        ("AMD gfx90c", None, True),
        ("AMD gfx701", None, False),
    ]
    assert [gpu.name for gpu in automatic(found)] == ["1"]


def test_partitions_of_one_gpu_of_amd_are_gpus_of_their_own(tmp_path):
    """The first has the PCI device's nodes. Linux has had a partition's number in two places."""
    unfold("two-amd-linked", tmp_path)
    topology = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for node, location in ((4, 25344 | 1), (5, 25344 | 2 << 28)):
        (topology / str(node)).mkdir()
        (topology / str(node) / "properties").write_text(
            f"simd_count 152\nlocation_id {location}\ndrm_render_minor {140 + node}\n"
        )
    found = find_gpus(tmp_path)
    assert [(gpu.name, gpu.pci, nodes(gpu), gpu.fault) for gpu in found[1:]] == [
        ("1", "0000:63:00.0", "226:1 226:128", ""),
        ("2", "0000:63:00.1", "226:144", ""),
        ("3", "0000:63:00.2", "226:145", ""),
    ]


@pytest.mark.slow
def test_no_two_whole_gpus_share_a_node(tmp_path):
    """Else hiding one would take the other from its job."""
    for machine in names():
        found = find_gpus(unfold(machine, tmp_path / machine))
        whole = [gpu for gpu in found if ":" not in gpu.name and not gpu.fault]
        every = [node for gpu in whole for node in gpu.nodes]
        assert len(every) == len(set(every)), machine


def test_a_gpu_that_cannot_be_used_keeps_its_number_and_says_why(tmp_path):
    found = find_gpus(unfold("fallen-off-the-bus", tmp_path))
    assert [(gpu.name, gpu.pci, bool(gpu.fault)) for gpu in found] == [
        ("0", "0000:1a:00.0", False),
        ("1", "0000:1b:00.0", True),
        # The driver leaves alone what was at 60:00.0, and so does nvidia-smi.
        ("2", "0000:61:00.0", False),
    ]
    assert found[0].uuid is None, "question marks are no UUID"
    file = f"{tmp_path}/proc/driver/nvidia/gpus/0000:1b:00.0/information"
    with pytest.raises(GpuLost) as lost:
        gpus_named(["0", "1"], found)
    assert (lost.value.name, lost.value.code) == ("1", "gpu-lost")
    assert str(lost.value) == (
        f"GPU 1: {file} is empty: the driver does not reach the GPU (drfd gpus shows all GPUs)"
    )
    assert [gpu.name for gpu in automatic(found)] == ["0", "2"]


def test_each_missing_or_strange_file_is_named(tmp_path):
    found = find_gpus(unfold("dangling", tmp_path))
    nvidia, pci = "/proc/driver/nvidia", "/sys/bus/pci/devices"
    kfd = "/sys/class/kfd/kfd/topology/nodes"
    # Nodes that are known are hidden from jobs all the same.
    assert [(gpu.name, gpu.fault.removeprefix(str(tmp_path)), nodes(gpu)) for gpu in found] == [
        # The others of NVIDIA have 1 and 2.
        (
            "0",
            f"{nvidia}/gpus/0000:04:00.0/information names no device minor of a GPU",
            "",
        ),
        # 255 is the node that all GPUs share.
        (
            "1",
            f"{nvidia}/gpus/0000:05:00.0/information names no device minor of a GPU",
            "",
        ),
        ("2:0:0", f"{nvidia}/capabilities/gpu1/mig/gi0/access: No such file or directory", "195:1"),
        (
            "3",
            f"{nvidia}/capabilities/gpu2/mig has GPU instances, but no compute instance",
            "195:2",
        ),
        ("4", f"{pci}/0000:43:00.0/drm has no renderD130", "226:2"),
        ("5", f"{kfd}/1/properties names no render node", ""),
        ("6", f"{kfd}/0/properties: No such file or directory", ""),
    ]
    assert automatic(found) == ()


def test_a_list_of_gpus_that_cannot_be_read_is_an_error(tmp_path):
    above = tmp_path / "proc/driver/nvidia"
    above.mkdir(parents=True)
    (above / "gpus").symlink_to("gpus")
    with pytest.raises(HostError, match=r"cannot read .*/proc/driver/nvidia/gpus: Too many levels"):
        find_gpus(tmp_path)


def test_capabilities_without_their_driver_s_number_are_a_fault(tmp_path):
    unfold("mig-on-one-of-two", tmp_path)
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    fault = "/proc/devices does not name nvidia-caps"
    assert [gpu.fault for gpu in find_gpus(tmp_path)] == [fault] * 3 + [""]
    # The driver itself always has the same number.
    (tmp_path / "proc/devices").unlink()
    assert nodes(find_gpus(tmp_path)[3]) == "195:0 226:129 226:2"


def test_names_are_numbers_or_uuids(tmp_path):
    found = find_gpus(unfold("mig-on-one-of-two", tmp_path))
    named = gpus_named(["GPU-41255406-c9af-f94b-4ebf-9d57ad1853da", "0:3:0"], found)
    assert [gpu.name for gpu in named] == ["1", "0:3:0"]
    with pytest.raises(GpuLost, match=r"GPU 0: it is divided by MIG: name its slices 0:1:0, 0:1:1"):
        gpus_named(["0"], found)
    with pytest.raises(GpuLost, match="GPU 7: there is no such GPU on this machine"):
        gpus_named(["7"], found)


# -- variables ----------------------------------------------------------------------------


ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.fixture
def machine(tmp_path, request) -> tuple[Gpu, ...]:
    return find_gpus(unfold(request.param, tmp_path))


def on(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("machine", [name], indirect=True)


def variables(machine: tuple[Gpu, ...], given: str, hidden: str = "") -> dict[str, str]:
    """Return the variables of a job with the given GPUs where the kernel hides others."""
    visible = [gpu for gpu in machine if gpu.name not in hidden.split()]
    return variables_for(gpus_named(given.split(), machine), visible)


def same(value: str) -> dict[str, str]:
    """Return the two lists with one value: programs refuse to run if they differ for no reason."""
    return {"CUDA_VISIBLE_DEVICES": value, "HIP_VISIBLE_DEVICES": value, **ORDER}


@pytest.mark.parametrize("machine", ["two-nvidia-desktop", "no-gpu"], indirect=True)
@pytest.mark.parametrize("hidden", ["", "0 1"])
def test_a_job_without_a_gpu_is_shown_none(machine, hidden):
    assert variables(machine, "", hidden) == same("-1")


@on("fallen-off-the-bus")
def test_indices_count_what_is_visible_where_a_uuid_is_unknown(machine):
    second = "GPU-89626cb0-2987-b13c-7702-5d4e5d8b02ad"
    assert variables(machine, "2") == same(second)
    assert variables(machine, "0", hidden="1 2") == same("0")
    # CUDA does not count the one that has fallen off the bus.
    assert variables(machine, "2 0", hidden="1") == same("1,0")
    assert variables(machine, "2 0") == same("1,0")


@on("mig-on-one-of-two")
def test_a_slice_alone_is_index_0_and_otherwise_named_by_its_ids(machine):
    slice_ = "MIG-GPU-20bed2f5-819b-69ad-8d42-d3e1446080c1/3/0"
    assert variables(machine, "0:3:0", hidden="0:1:0 0:1:1 1") == same("0")
    assert variables(machine, "0:3:0", hidden="0:1:0 1") == same(slice_)
    assert variables(machine, "0:3:0") == same(slice_)
    whole = "GPU-41255406-c9af-f94b-4ebf-9d57ad1853da"
    assert variables(machine, "1", hidden="0:1:0 0:1:1 0:3:0") == same(whole)


@on("two-amd-linked")
def test_rocr_chooses_and_hip_counts_what_rocr_leaves(machine):
    first, second = "GPU-51276ac12ce05db3", "GPU-1901ead3a2ecd4a6"
    assert variables(machine, "0") == same("0") | {"ROCR_VISIBLE_DEVICES": first}
    assert variables(machine, "1") == same("0") | {"ROCR_VISIBLE_DEVICES": second}
    assert variables(machine, "") == same("-1") | {"ROCR_VISIBLE_DEVICES": "-1"}


@on("two-amd-linked")
def test_rocr_need_not_choose_where_the_kernel_has(machine):
    """There are programs that refuse ROCR_VISIBLE_DEVICES beside another list."""
    assert variables(machine, "1", hidden="0") == same("0")
    assert variables(machine, "0 1") == same("0,1")
    assert variables(machine, "", hidden="0 1") == same("-1")


@on("amd-without-unique-id")
def test_rocr_takes_indices_in_the_order_of_kfd(machine):
    """The integrated one is listed for nobody, and stays visible."""
    assert variables(machine, "1") == same("0") | {"ROCR_VISIBLE_DEVICES": "1"}
    assert variables(machine, "1", hidden="0") == same("0")


@on("mixed")
def test_the_lists_differ_only_where_both_vendors_are_visible(machine):
    nvidia = "GPU-dba9c788-0930-b476-97a6-3ab75f765397"
    assert variables(machine, "0", hidden="1") == same(nvidia)
    assert variables(machine, "1", hidden="0") == same("0")
    seen = {"HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
    assert variables(machine, "0") == same(nvidia) | seen
    assert variables(machine, "1") == same("0") | {"CUDA_VISIBLE_DEVICES": "-1"}
    assert variables(machine, "0 1") == same("0") | {"CUDA_VISIBLE_DEVICES": nvidia}


# -- device nodes -------------------------------------------------------------------------


def test_the_kind_of_a_block_device_and_numbers_beyond_a_byte_are_kept(monkeypatch):
    """Minors of MIG capability nodes and of NVMe disks are beyond 255."""
    # The tenth field and those after it are by name only: st_rdev is among them.
    fields = {"st_rdev": os.makedev(259, 70000)}
    found = os.stat_result((stat.S_IFBLK | 0o600, *([0] * 9)), fields)
    monkeypatch.setattr(os, "stat", lambda path: found)
    assert node_at("/dev/a-disk") == DeviceNode(BLOCK, 259, 70000)
    assert show_node(node_at("/dev/a-disk")) == "b 259:70000"


def test_no_device_is_refused_and_what_is_missing_is_the_kernels_error(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match=f"^{path} is no device node$"):
            node_at(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        node_at(tmp_path / "missing")


@pytest.mark.parametrize("target", ["null", "zero", "random", "urandom", "tty", "ptmx"])
def test_a_device_that_all_processes_need_is_known_by_any_path(tmp_path, target):
    (tmp_path / "link").symlink_to(f"/dev/{target}")
    assert is_basic(f"/dev/{target}")
    assert is_basic(str(tmp_path / "link"))
    assert is_basic("/dev/pts/7")
    assert not is_basic(str(tmp_path / "missing"))
    assert not is_basic(str(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes device nodes")
def test_a_node_of_another_name_is_basic_if_jobs_cannot_start_without_it(tmp_path):
    for name, minor in (("null", 3), ("zero", 5), ("random", 8)):
        os.mknod(tmp_path / name, 0o600 | stat.S_IFCHR, os.makedev(1, minor))
    found = [name for name in ("null", "zero", "random") if is_basic(str(tmp_path / name))]
    assert found == ["null", "random"]


# -- GPUs that are looked up again ---------------------------------------------------------------

NVIDIA = "proc/driver/nvidia"


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def bind_anew(root: Path, bus: str) -> None:
    """Do to the tree what a driver that is loaded again does to sysfs."""
    link = root / f"sys/bus/pci/devices/0000:{bus}:00.0/driver"
    new = link.with_name("new")
    new.symlink_to(link.readlink())
    # The old inode is in use until the new one has its own.
    new.replace(link)


@pytest.fixture
def desktop(tmp_path) -> Path:
    return unfold("two-nvidia-desktop", tmp_path)


def test_a_reloaded_driver_gives_out_other_minors(desktop):
    memory: Memory = {}
    before = find_gpus(desktop, memory=memory)
    first, second = (desktop / f"{NVIDIA}/gpus/0000:{bus}:00.0/information" for bus in ("06", "07"))
    change(first, "Device Minor: \t 0", "Device Minor: \t 1")
    change(second, "Device Minor: \t 1", "Device Minor: \t 0")
    change(first, "GPU-c7b57be0", "GPU-????????")
    assert find_gpus(desktop, memory=memory) == before, (
        "files are not read again before the driver is"
    )
    for bus in ("06", "07"):
        bind_anew(desktop, bus)
    now = find_gpus(desktop, memory=memory)
    assert [nodes(gpu) for gpu in now] == ["195:1 226:1 226:128", "195:0 226:129 226:2"]
    assert [gpu.uuid for gpu in now] == [None, before[1].uuid]
    assert [gpu.fault for gpu in now] == ["", ""]


# -- files of drivers that hang -----------------------------------------------------------


class Unkillable(subprocess.Popen[bytes]):
    """A process that waits in the kernel, where no signal reaches it."""

    started: list[subprocess.Popen[bytes]]

    def __init__(self, words: list[str], *, stdin: int, stdout: int, stderr: int) -> None:
        super().__init__(words, stdin=stdin, stdout=stdout, stderr=stderr)
        self.started.append(self)

    def kill(self) -> None:
        pass


@pytest.fixture
def hanging(monkeypatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A driver that answers for the first file only; the readers that were started."""
    program = nvidia._READER.replace("import json", "import time, json")
    program = program.replace("flush=True)", "flush=True)\n    time.sleep(600)")
    monkeypatch.setattr(nvidia, "_READER", program)
    monkeypatch.setattr(nvidia._StuckReader, "process", None)
    monkeypatch.setattr(Unkillable, "started", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Unkillable)
    yield Unkillable.started
    for reader in Unkillable.started:
        reader.terminate()
        reader.wait()


@pytest.mark.parametrize(
    ("program", "why"),
    [("/nowhere/python3", "No such file or directory"), ("/bin/false", "it ended with 1")],
)
def test_a_reader_that_cannot_run_says_nothing_of_the_driver(tmp_path, monkeypatch, program, why):
    """Python may be where only root can read: then its own files are missing for nobody."""
    root = unfold("two-nvidia-desktop", tmp_path)
    monkeypatch.setattr(sys, "executable", program)
    text = f"cannot ask NVIDIA's driver: {program} does not run as uid {os.getuid()}: {why}"
    with pytest.raises(HostError, match=f"^{re.escape(text)}$"):
        find_gpus(root)


@pytest.mark.slow
def test_a_driver_that_hangs_is_waited_for_once(tmp_path, monkeypatch, hanging):
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("first", "second")]
    found = read_each(paths)
    assert found[paths[0]] == "first"
    assert isinstance(found[paths[1]], GpuFault)
    assert str(found[paths[1]]) == f"{paths[1]}: the driver does not answer"
    monkeypatch.setattr(nvidia, "_PATIENCE_S", 120.0)
    before_mono_s = time.monotonic()
    assert all(isinstance(each, GpuFault) for each in read_each(paths).values())
    assert time.monotonic() - before_mono_s < 60, "a busy machine may take a while for nothing"
    assert len(hanging) == 1


@pytest.mark.slow
def test_a_driver_that_has_come_back_is_asked_again(tmp_path, hanging):
    (tmp_path / "file").write_text("text")
    path = str(tmp_path / "file")
    assert read_each([path]) == {path: "text"}
    hanging[0].terminate()
    hanging[0].wait()
    assert read_each([path]) == {path: "text"}
    assert len(hanging) == 2
