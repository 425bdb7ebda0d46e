"""GPUs of AMD, from the topology that amdkfd, the kernel's part of ROCm, has in /sys.

Each directory in `/sys/class/kfd/kfd/topology/nodes` is a processor or a GPU, or one partition of a
GPU that is divided. `properties` has its numbers (drivers/gpu/drm/amd/amdkfd/kfd_topology.c of
Linux): ROCm uses a GPU through /dev/kfd, which all share, and through its render node. GPUs that
amdkfd does not drive are not listed, since ROCm cannot use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from drfd.devices.gpu import AMD, Gpu, GpuFault, faulty
from drfd.devices.kernel_files import GRAPHICS_MAJOR, entries, graphics_nodes, numa_node, number
from drfd.linux.device_nodes import CHARACTER, DeviceNode
from drfd.linux.kernel_files import get_record, word_in

NODES = "sys/class/kfd/kfd/topology/nodes"
#: The type of a link by XGMI (drivers/gpu/drm/amd/amdkfd/kfd_crat.h), and the weight of one that
#: leads through no other GPU: amdkfd gives each hop 15, and 13 within one package (kfd_crat.c).
_XGMI, _ONE_HOP = 11, 15
#: Values of `gfx_target_version` for GPUs that are part of a processor (LLVM, "User Guide for
#: AMDGPU Backend", processors that are an APU only). In decimal digits: 90012 is gfx90c.
_INTEGRATED = frozenset(
    (
        *(70000, 80001, 80100, 90002, 90009, 90012, 100103, 100303, 100305, 100306),
        *(110003, 110500, 110501, 110502, 110503),
    )
)


def find(root: str, *, with_links: bool) -> list[tuple[Gpu, ...]]:
    """Return each GPU, or partition of one, of the machine whose files are below `root`, by PCI
    address, each alone in a tuple. `links` are PCI addresses, and left out unless `with_links`.
    Raises OSError if the topology cannot be read."""
    above = f"{root}/{NODES}"
    ids = sorted(node for node in map(number, entries(above)) if node is not None)
    by_node: dict[int, Gpu] = {}
    for node in ids:
        gpu = Gpu(name="", vendor=AMD, pci=f"unknown, node {node}", rank=len(by_node))
        try:
            found = _read(root, gpu, f"{above}/{node}")
        except (OSError, GpuFault) as error:
            found = faulty(gpu, error)
        if found is not None:
            by_node[node] = found
    if with_links:
        by_node = {node: _linked(above, node, by_node) for node in by_node}
    return sorted(((gpu,) for gpu in by_node.values()), key=lambda alone: alone[0].pci)


def _read(root: str, gpu: Gpu, path: str) -> Gpu | None:
    """Return the GPU that the directory describes, or None for a processor. Raises OSError and
    GpuFault if nothing is known of it, not even where it is."""
    said = _properties(path)
    if not said.get("simd_count"):
        return None
    pci, partition = _address(said)
    # There is a PCI device of function 0 only.
    device = f"{root}/sys/bus/pci/devices/{pci.partition('.')[0]}.0"
    target = said.get("gfx_target_version", 0)
    gpu = replace(
        gpu,
        model=_model(device, target),
        uuid=f"GPU-{said['unique_id']:016x}" if said.get("unique_id") else None,
        pci=pci,
        numa_node=numa_node(device),
        is_integrated=bool(said.get("cpu_cores_count")) or target in _INTEGRATED,
    )
    minor = said.get("drm_render_minor", 0)
    if minor <= 0:
        return replace(gpu, fault=f"{path}/properties names no render node")
    render = DeviceNode(CHARACTER, GRAPHICS_MAJOR, minor)
    try:
        own = graphics_nodes(device)
    except (OSError, GpuFault) as error:
        return faulty(replace(gpu, nodes=frozenset((render,))), error)
    if render in own:
        return replace(gpu, nodes=own)
    if not partition:
        return replace(gpu, nodes=own, fault=f"{device}/drm has no renderD{minor}")
    return replace(gpu, nodes=frozenset((render,)))


def _address(said: Mapping[str, int]) -> tuple[str, int]:
    """Return the PCI address and the number of the partition that a node's properties say. The
    number is that of the function, too."""
    location = said.get("location_id", 0)
    # PCI_DEVID of include/linux/pci.h: bus, then five bits of device, three of function. Linux has
    # had the number in the highest bits too.
    partition = location & 0x7 | location >> 28
    bus, slot = location >> 8 & 0xFF, location >> 3 & 0x1F
    return f"{said.get('domain', 0):04x}:{bus:02x}:{slot:02x}.{partition:x}", partition


def _properties(path: str) -> dict[str, int]:
    """Return the numbers of a node or of a link by their names. Raises OSError and GpuFault."""
    words = get_record(f"{path}/properties").split()
    try:
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))
    except ValueError:
        raise GpuFault(f"{path}/properties is not a list of names and numbers") from None


def _model(device: str, target: int) -> str:
    """Return the product's name, which only some cards have, or that of the instruction set."""
    product = word_in(f"{device}/product_name")
    instructions = f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}" if target else ""
    return product or " ".join(filter(None, ("AMD", instructions)))


def _linked(above: str, node: int, by_node: dict[int, Gpu]) -> Gpu:
    """Return the GPU of a node with the PCI addresses of those that XGMI links directly to it."""
    links = set()
    path = f"{above}/{node}/io_links"
    try:
        for link in entries(path):
            said = _properties(f"{path}/{link}")
            other = by_node.get(said.get("node_to", -1))
            if other and said.get("type") == _XGMI and said.get("weight", 0) <= _ONE_HOP:
                links.add(other.pci)
    except (OSError, GpuFault):
        # Links only make some GPUs preferable to others.
        return by_node[node]
    return replace(by_node[node], links=frozenset(links))
