"""Which nodes a job must not open, and what it is told of its GPUs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from drfd.daemon.countable import CountableResource
from drfd.daemon.launcher_link.device_table import DevicesFailed, DevicesTaken, DeviceTable, Grant
from drfd.devices.gpus import Gpu
from drfd.devices.kernel_files import node_at
from drfd.linux.device_nodes import DeviceNode

#: Of NVIDIA, of the graphics of its PCI device, and of the capability of a slice.
GPU_MAJOR, DRM_MAJOR, CAP_MAJOR = 195, 226, 238


def gpu(number: int, **fields: object) -> Gpu:
    nodes = {DeviceNode("c", GPU_MAJOR, number), DeviceNode("c", DRM_MAJOR, 128 + number)}
    whole: dict[str, object] = {
        "name": str(number), "vendor": "nvidia", "model": "X", "uuid": f"GPU-{number}" * 4,
        "pci": f"0000:0{number}:00.0", "numa_node": number % 2, "nodes": frozenset(nodes),
    }  # fmt: skip
    return Gpu(**whole | fields)  # type: ignore[arg-type]


def part(number: int, instance: int) -> Gpu:
    """A slice of the GPU, whose own node all its slices need."""
    nodes = gpu(number).nodes | {DeviceNode("c", CAP_MAJOR, 30 + instance)}
    uuid = f"MIG-GPU-{number}/{instance}/0"
    return gpu(number, name=f"{number}:{instance}:0", uuid=uuid, nodes=nodes)


def table(
    gpus: Sequence[Gpu] = (),
    *,
    can_hide: bool = True,
    hides_all: bool = False,
    is_auto: bool = False,
    **paths: Sequence[Sequence[str]],
) -> DeviceTable:
    """`paths` are those of the nodes of resources whose nodes are named."""
    named = [
        CountableResource(name=name, devices=tuple(map(tuple, each)))
        for name, each in paths.items()
    ]
    found = CountableResource(name="gpu", hides_all=hides_all, is_auto=is_auto)
    return DeviceTable((*named, found), can_hide, tuple(gpus))


def of(given: str = "", others: str = "", name: str = "gpu") -> list[Grant]:
    return [Grant(name=name, given=tuple(given.split()), others=tuple(others.split()))]


def test_a_job_opens_its_own_gpus_and_none_else_that_is_given_out():
    found = table([gpu(0), gpu(1), gpu(2)]).look_up(of("1", "0 2"))
    assert found.devices.hidden == gpu(0).nodes | gpu(2).nodes
    assert found.devices.numa_nodes == {1}
    assert found.variables["CUDA_VISIBLE_DEVICES"] == gpu(1).uuid
    found = table([gpu(0), gpu(1), gpu(2)]).look_up(of("", "0 1"))
    assert found.devices.hidden == gpu(0).nodes | gpu(1).nodes
    assert found.variables["CUDA_VISIBLE_DEVICES"] == "-1"
    uuids = [gpu(0).uuid, gpu(1).uuid]
    found = table([gpu(0), gpu(1)]).look_up(of(str(uuids[0]), str(uuids[1])))
    assert found.devices.hidden == gpu(1).nodes
    found = table([gpu(0), gpu(1)], can_hide=False).look_up(of("1", "0"))
    assert not found.devices.hidden
    assert found.variables["CUDA_VISIBLE_DEVICES"] == gpu(1).uuid
    found = table().look_up(of("1", "0"))
    assert (found.devices.hidden, dict(found.variables)) == (frozenset(), {})
    with pytest.raises(DevicesFailed, match="GPU 1: there is no such GPU on this machine"):
        table(is_auto=True).look_up(of("1", "0"))


def test_a_gpu_that_is_not_listed_is_hidden_if_it_may_be_given_out():
    gpus = [gpu(0), gpu(1), gpu(2)]
    assert not table(gpus).look_up(of("0 1")).devices.hidden
    hidden = table(gpus, hides_all=True).look_up(of("0 1")).devices.hidden
    assert hidden == gpu(2).nodes
    # A driver that has just been loaded does not say UUIDs.
    gpus = [gpu(0), gpu(1, uuid=None), gpu(2)]
    listed = [str(gpu(number).uuid) for number in (0, 1)]
    assert table(gpus).look_up(of("", " ".join(listed))).devices.hidden == (
        gpu(0).nodes | gpu(1).nodes
    )
    assert table(gpus).look_up(of("", listed[0])).devices.hidden == gpu(0).nodes
    # The controller does not list it before its configuration is read again.
    gpus = [gpu(0), gpu(1), gpu(2, is_integrated=True)]
    hidden = table(gpus, is_auto=True).look_up(of("0")).devices.hidden
    assert hidden == gpu(1).nodes


@pytest.mark.parametrize(
    ("listed", "now"),
    [
        ("0", [part(0, 1), part(0, 2)]),
        ("GPU-0", [part(0, 1), part(0, 2)]),
        ("0:1:0", [part(0, 2)]),
        ("MIG-GPU-0/1/0", [part(0, 2)]),
        ("0:1:0", [gpu(0)]),
        ("MIG-GPU-0/1/0", [gpu(0, uuid="GPU-0")]),
    ],
)
def test_a_listed_gpu_is_hidden_also_when_mig_divides_it_otherwise(listed, now):
    hidden = table([*now, gpu(1)]).look_up(of("", listed)).devices.hidden
    assert hidden == {node for each in now for node in each.nodes}
    # What is listed of a divided GPU is no reason to hide the rest of it.
    parts = [part(0, 1), part(0, 2)]
    assert table(parts).look_up(of("", "0:1:0")).devices.hidden == parts[0].nodes


@pytest.mark.parametrize(("given", "others"), [("0", f"{gpu(0).uuid} 1"), (gpu(0).uuid, "1 0")])
def test_a_gpu_under_two_names_is_not_given_to_two_jobs(given, others):
    """As after a change of the list from numbers to UUIDs, while a job has one by its number."""
    gpus = table([gpu(0), gpu(1)])
    with pytest.raises(DevicesTaken, match="under another name"):
        gpus.look_up(of(given, others))
    assert gpus.look_up(of("1", f"0 {gpu(0).uuid}")).devices.hidden == gpu(0).nodes


def test_one_device_of_two_resources_is_given_to_no_job():
    node = DeviceNode("c", 1, 5)
    gpus = [gpu(0, nodes=frozenset({node})), gpu(1)]
    both = table(gpus, card=[["/dev/zero"], ["/dev/full"]])
    cards = of("", "0 1", name="card")
    for grants in ([*of("0", "1"), *cards], [*of("", "0 1"), *of("0", "1", name="card")]):
        with pytest.raises(DevicesFailed, match=r"c 1:5 is a device of (gpu|card) and of"):
            both.look_up(grants)
    assert both.look_up([*of("1", "0"), *cards]).devices.hidden == {node, node_at("/dev/full")}


@pytest.mark.parametrize("gone", [[gpu(0)], [gpu(0), gpu(1, fault="it is lost")]])
def test_a_job_does_not_start_on_a_gpu_that_has_gone(gone):
    with pytest.raises(DevicesFailed, match="GPU 1: "):
        table(gone).look_up(of("1", "0"))
    # Other jobs go on, and the nodes that are still there are hidden from them.
    found = table(gone).look_up(of("0", "1"))
    assert found.devices.hidden == (gone[1].nodes if len(gone) > 1 else set())


def test_a_slice_that_cannot_be_hidden_keeps_jobs_from_the_other_slices():
    blind = replace(part(0, 2), nodes=gpu(0).nodes, fault="gi2/access: Input/output error")
    devices = table([part(0, 1), blind, gpu(1)])
    with pytest.raises(DevicesFailed, match=r"GPU 0:2:0 cannot be hidden .*: gi2/access: Input"):
        devices.look_up(of("0:1:0", "0:2:0 1"))
    hidden = devices.look_up(of("1", "0:1:0 0:2:0")).devices.hidden
    assert hidden == part(0, 1).nodes
    # One that has gone has had a node of its own.
    gone = replace(part(0, 2), fault="MIG divides it otherwise now")
    hidden = table([part(0, 1), gone]).look_up(of("0:1:0", "0:2:0")).devices.hidden
    assert hidden == gone.nodes - part(0, 1).nodes


def test_named_nodes_are_looked_up_at_each_launch(tmp_path):
    first, second = tmp_path / "a0", tmp_path / "a1"
    first.symlink_to("/dev/null")
    second.symlink_to("/dev/zero")
    devices = table(fpga=[[str(first)], [str(second)]])
    zero, null = node_at("/dev/zero"), node_at("/dev/null")
    assert devices.look_up(of("0", "1", name="fpga")).devices.hidden == {zero}
    assert devices.look_up(of("", "0 1", name="fpga")).devices.hidden == {null, zero}
    second.unlink()
    assert not devices.look_up(of("0", "1", name="fpga")).devices.hidden
    with pytest.raises(DevicesFailed, match=r"fpga 1: .*a1: No such file"):
        devices.look_up(of("1", "0", name="fpga"))
    second.symlink_to("/dev/full")
    assert devices.look_up(of("0", "1", name="fpga")).devices.hidden == {node_at("/dev/full")}


def test_named_devices_are_hidden_with_all_their_nodes_whoever_asks():
    """It was started before the configuration was changed, and this launcher afterwards."""
    devices = table(fpga=[["/dev/null"], ["/dev/zero"]], card=[["/dev/full"]])
    hidden = devices.look_up(of("0", name="fpga")).devices.hidden
    assert hidden == {node_at("/dev/zero"), node_at("/dev/full")}
    assert devices.look_up([]).devices.hidden == {node_at("/dev/null"), *hidden}
    devices = table(fpga=[["/dev/null", "/dev/zero"], ["/dev/full"]])
    hidden = devices.look_up(of("1", "0", name="fpga")).devices.hidden
    assert hidden == {node_at("/dev/null"), node_at("/dev/zero")}


def test_what_is_no_device_or_one_device_twice_is_given_to_nobody(tmp_path):
    devices = table(fpga=[[str(tmp_path)]])
    with pytest.raises(DevicesFailed, match="is no device node"):
        devices.look_up(of("0", name="fpga"))
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    devices = table(fpga=[["/dev/null"], [str(link)]])
    for given, others in (("0", "1"), ("1", "0")):
        with pytest.raises(DevicesFailed, match=r"fpga 0 and 1 are one device \(c 1:3\)"):
            devices.look_up(of(given, others, name="fpga"))
    # It can be hidden all the same from a job that is given neither.
    assert devices.look_up(of("", "0 1", name="fpga")).devices.hidden == {node_at("/dev/null")}


def test_a_job_waits_for_what_it_was_given_and_is_configured_no_more():
    devices = table(fpga=[["/dev/null"], ["/dev/zero"]])
    for name, instance in (("fpga", "2"), ("card", "0")):
        with pytest.raises(DevicesTaken, match=f"{name} {instance} is not configured any more"):
            devices.look_up(of(instance, "0 1", name=name))
    assert devices.look_up(of("", "0", name="card")) == devices.look_up([])


def test_a_notification_opens_nothing_that_is_given_out():
    devices = table([gpu(0), gpu(1)], fpga=[["/dev/null"]])
    grants = [*of("0", "1 7"), *of("0", name="fpga")]
    hidden = devices.hide_all(grants).devices.hidden
    assert hidden == gpu(0).nodes | gpu(1).nodes | {node_at("/dev/null")}
