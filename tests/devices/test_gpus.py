"""Which GPUs are found on recorded machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.devices.gpus import (
    Gpu,
    GpuLost,
    automatic,
    find_gpus,
    gpus_named,
)
from drfd.devices.nodes import show_node
from tests.gpu_machines import names, unfold


def nodes(gpu: Gpu) -> str:
    """Return the nodes of a GPU without their kind, which is that of character devices."""
    assert all(node.kind == "c" for node in gpu.nodes)
    return " ".join(sorted(show_node(node).removeprefix("c ") for node in gpu.nodes))


def rows(gpus: tuple[Gpu, ...]) -> list[tuple[str, str, str | None, str, int | None, str]]:
    return [(gpu.name, gpu.model, gpu.uuid, gpu.pci, gpu.numa_node, nodes(gpu)) for gpu in gpus]


def test_two_gpus_of_nvidia_have_their_node_and_their_graphics_nodes(tmp_path: Path) -> None:
    found = find_gpus(unfold("two-nvidia-desktop", tmp_path))
    first, second = "c7b57be0-94ff-d352-a59b-d0ee00aeed43", "d6de6afc-bdfe-75c4-5273-0544439153fc"
    assert rows(found) == [
        ("0", "Quadro RTX 4000", f"GPU-{first}", "0000:06:00.0", None, "195:0 226:1 226:128"),
        ("1", "Quadro RTX 4000", f"GPU-{second}", "0000:07:00.0", None, "195:1 226:129 226:2"),
    ]
    assert {(gpu.vendor, gpu.is_integrated, gpu.links, gpu.fault) for gpu in found} == {
        ("nvidia", False, frozenset(), "")
    }


def test_numbers_follow_pci_addresses_and_not_minors(tmp_path: Path) -> None:
    found = find_gpus(unfold("eight-nvidia-two-memory-nodes", tmp_path))
    assert [gpu.name for gpu in found] == list("01234567")
    assert [nodes(gpu) for gpu in found] == [f"195:{minor}" for minor in (2, 3, 0, 1, 6, 7, 4, 5)]
    assert [gpu.numa_node for gpu in found] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_slices_stand_for_a_gpu_that_mig_divides(tmp_path: Path) -> None:
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


def test_gpus_of_amd_are_found_by_kfd_with_their_links(tmp_path: Path) -> None:
    """KFD, and so ROCm, counts them in another order than by PCI address."""
    found = find_gpus(unfold("two-amd-linked", tmp_path))
    assert rows(found) == [
        ("0", "AMD gfx90a", "GPU-51276ac12ce05db3", "0000:43:00.0", 0, "226:129 226:2"),
        ("1", "AMD INSTINCT MI210", "GPU-1901ead3a2ecd4a6", "0000:63:00.0", 0, "226:1 226:128"),
    ]
    assert [gpu.links for gpu in found] == [{"1"}, {"0"}]
    assert [gpu.rank for gpu in found] == [1, 0]


def test_a_gpu_of_amd_without_unique_id_has_no_uuid_and_one_in_a_processor_is_integrated(
    tmp_path: Path,
) -> None:
    found = find_gpus(unfold("amd-without-unique-id", tmp_path))
    assert [(gpu.model, gpu.uuid, gpu.is_integrated) for gpu in found] == [
        ("AMD gfx90c", None, True),
        ("AMD gfx701", None, False),
    ]
    assert [gpu.name for gpu in automatic(found)] == ["1"]


def test_partitions_of_one_gpu_of_amd_are_gpus_of_their_own(tmp_path: Path) -> None:
    """The first has the nodes of the PCI device, and others have a render node of their own. Linux
    has had the number of the partition in two places."""
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


def test_gpus_of_intel_are_found_by_their_drivers(tmp_path: Path) -> None:
    found = find_gpus(unfold("intel-discrete-and-integrated", tmp_path))
    assert rows(found) == [
        ("0", "Intel 8086:4680", None, "0000:00:02.0", None, "226:0 226:128"),
        ("1", "Intel 8086:56a0", None, "0000:03:00.0", None, "226:1 226:129"),
    ]
    assert [gpu.name for gpu in automatic(found)] == ["1"]


def test_vendors_come_in_a_fixed_order(tmp_path: Path) -> None:
    found = find_gpus(unfold("mixed", tmp_path))
    assert [(gpu.name, gpu.vendor, gpu.pci, nodes(gpu)) for gpu in found] == [
        ("0", "nvidia", "0000:01:00.0", "195:0 226:1 226:129"),
        ("1", "amd", "0000:19:00.0", "226:131 226:3"),
        ("2", "intel", "0000:00:02.0", "226:0 226:128"),
        ("3", "intel", "0000:08:00.0", "226:130 226:2"),
    ]
    assert [gpu.name for gpu in automatic(found)] == ["0", "1", "3"]


@pytest.mark.parametrize("machine", ["no-gpu", "driver-without-gpu"])
def test_a_machine_without_a_gpu_has_none(machine: str, tmp_path: Path) -> None:
    assert find_gpus(unfold(machine, tmp_path)) == ()


@pytest.mark.slow
def test_no_two_whole_gpus_share_a_node(tmp_path: Path) -> None:
    """Else hiding one would take the other from its job."""
    for machine in names():
        found = find_gpus(unfold(machine, tmp_path / machine))
        whole = [gpu for gpu in found if ":" not in gpu.name and not gpu.fault]
        every = [node for gpu in whole for node in gpu.nodes]
        assert len(every) == len(set(every)), machine


def test_a_gpu_that_cannot_be_used_keeps_its_number_and_says_why(tmp_path: Path) -> None:
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
    assert nodes(found[1]) == "195:1 195:2", "all that it can be: the others have 0 and 3"


def test_each_missing_or_strange_file_is_named(tmp_path: Path) -> None:
    found = find_gpus(unfold("dangling", tmp_path))
    nvidia, pci = "/proc/driver/nvidia", "/sys/bus/pci/devices"
    kfd = "/sys/class/kfd/kfd/topology/nodes"
    # Nodes that are known are hidden from jobs all the same.
    assert [(gpu.name, gpu.fault.removeprefix(str(tmp_path)), nodes(gpu)) for gpu in found] == [
        # The others of NVIDIA have 1 and 2.
        (
            "0",
            f"{nvidia}/gpus/0000:04:00.0/information names no device minor of a GPU",
            "195:0 195:3",
        ),
        # 255 is the node that all GPUs share.
        (
            "1",
            f"{nvidia}/gpus/0000:05:00.0/information names no device minor of a GPU",
            "195:0 195:3",
        ),
        (
            "2:0:0",
            f"{nvidia}/capabilities/gpu1/mig/gi0/access: No such file or directory",
            "195:1",
        ),
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


def test_a_list_of_gpus_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    above = tmp_path / "proc/driver/nvidia"
    above.mkdir(parents=True)
    (above / "gpus").symlink_to("gpus")
    with pytest.raises(HostError, match=r"cannot read .*/proc/driver/nvidia/gpus: Too many levels"):
        find_gpus(tmp_path)


def test_capabilities_without_their_driver_s_number_are_a_fault(tmp_path: Path) -> None:
    unfold("mig-on-one-of-two", tmp_path)
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    fault = "/proc/devices does not name nvidia-caps"
    assert [gpu.fault for gpu in find_gpus(tmp_path)] == [fault] * 3 + [""]
    # The driver itself always has the same number.
    (tmp_path / "proc/devices").unlink()
    assert nodes(find_gpus(tmp_path)[3]) == "195:0 226:129 226:2"


def test_names_are_numbers_or_uuids(tmp_path: Path) -> None:
    found = find_gpus(unfold("mig-on-one-of-two", tmp_path))
    named = gpus_named(["GPU-41255406-c9af-f94b-4ebf-9d57ad1853da", "0:3:0"], found)
    assert [gpu.name for gpu in named] == ["1", "0:3:0"]
    with pytest.raises(GpuLost, match=r"GPU 0: it is divided by MIG: name its slices 0:1:0, 0:1:1"):
        gpus_named(["0"], found)
    with pytest.raises(GpuLost, match="GPU 7: there is no such GPU on this machine"):
        gpus_named(["7"], found)
