"""GPUs of NVIDIA, from the files of its driver in /proc. NVML is not needed.

`/proc/driver/nvidia/gpus/ADDRESS/information` (kernel-open/nvidia/nv-procfs.c of NVIDIA's open GPU
kernel modules) has the model, the UUID and the minor number of a GPU. The file is empty if the
driver does not reach the GPU any more. The UUID consists of question marks until the driver has set
the GPU up, which the first program that uses it causes. The driver takes its own
locks for a reader, and may wake the GPU: when a GPU does not answer, a reader can wait for minutes
or for ever, and cannot even be killed
(https://github.com/NVIDIA/open-gpu-kernel-modules/issues/968). Another process reads, therefore,
and the file is read again only when the GPU has been bound to its driver anew: the
numbers do not change otherwise.

A slice of a GPU that MIG divides is used through the nodes of its GPU instance and of its compute
instance, besides that of the GPU. `/proc/driver/nvidia/capabilities/gpuMINOR/mig/giG/ciC/access`
exists for each slice that there is, and has the minor number of its node (NVIDIA Multi-Instance GPU
User Guide, "Device Nodes and Capabilities").
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from drfd.common.errors import HostError
from drfd.devices.gpu import NVIDIA, Gpu, GpuFault, faulty
from drfd.devices.kernel_files import entries, graphics_nodes, link_inode, numa_node, number
from drfd.linux.device_nodes import CHARACTER, DeviceNode
from drfd.linux.kernel_files import get, get_record

#: Seconds until a driver counts as one that does not answer. To wake a GPU takes one or two.
_PATIENCE_S = 5.0
#: Prints one line for each file: its path, its content, and the number of the error if it has none.
_READER = """
import json, sys
for path in sys.argv[1:]:
    text, number = "", 0
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        number = error.errno
    print(json.dumps([path, text, number]), flush=True)
"""


class _StuckReader:
    """The reader that has not answered in time, and is left alone until it does."""

    process: subprocess.Popen[bytes] | None = None


def read_each(paths: Sequence[str]) -> dict[str, str | OSError | GpuFault]:
    """Return the content of each file, or why it cannot be had. Takes some seconds at most, and no
    time while an earlier reader still waits for the driver. Raises HostError if no reader can be
    started, which says nothing of the driver."""
    faults = {path: GpuFault(f"{path}: the driver does not answer") for path in paths}
    found: dict[str, str | OSError | GpuFault] = {**faults}
    if not paths or _is_stuck():
        return found
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _READER, *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise _unread(error.strerror) from None
    try:
        said, _ = process.communicate(timeout=_PATIENCE_S)
        if process.returncode != 0:
            raise _unread(f"it ended with {process.returncode}")
    except subprocess.TimeoutExpired as late:
        said = late.output or b""
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        _StuckReader.process = process
    for line in said.splitlines():
        # The last line may be a part of one.
        with suppress(ValueError):
            path, text, number = json.loads(line)
            found[path] = OSError(number, os.strerror(number), path) if number else text
    return found


def _unread(why: str | None) -> HostError:
    text = f"cannot ask NVIDIA's driver: {sys.executable} does not run as uid {os.getuid()}: {why}"
    return HostError("gpus", text)


def _is_stuck() -> bool:
    if _StuckReader.process is not None and _StuckReader.process.poll() is not None:
        _StuckReader.process = None
    return _StuckReader.process is not None


#: Names of the driver's major number in /proc/devices: of drivers from 550 on, and of older ones.
_DRIVER_NAMES = ("nvidia", "nvidia-frontend")
_CAPABILITIES = "nvidia-caps"
#: The driver's major number where /proc/devices does not name it: the driver takes this one and no
#: other (nv-chardev-numbers.h of the same modules).
MAJOR = 195
#: The highest minor number of a GPU (same file). Nodes that all GPUs share are above it.
_LAST_MINOR = 247


#: For each information file: the link to the GPU's driver by its inode, and the file's content.
Memory = dict[str, tuple[int, str]]


def find(root: str, memory: Memory) -> list[tuple[Gpu, ...]]:
    """Return each GPU of the machine whose files are below `root`, by PCI address: itself, or its
    slices where MIG divides it. Names are the ids of slices (":3:0"), or "". `memory` is what an
    earlier call has read, and is brought up to date. Raises OSError if the driver's directory
    cannot be read."""
    above = f"{root}/proc/driver/nvidia/gpus"
    addresses = sorted(entries(above), key=lambda address: (len(address), address))
    if not addresses:
        return []
    majors = _majors(root)
    devices = {
        f"{above}/{address}/information": f"{root}/sys/bus/pci/devices/{address.lower()}"
        for address in addresses
    }
    texts = _read(devices, memory)
    major = next((majors[name] for name in _DRIVER_NAMES if name in majors), MAJOR)
    found: list[tuple[Gpu, ...]] = []
    for path, device in devices.items():
        gpu = Gpu(name="", vendor=NVIDIA, pci=device.rpartition("/")[2], rank=len(found))
        try:
            gpu = replace(gpu, nodes=graphics_nodes(device))
            text = texts[path]
            if not isinstance(text, str):
                raise text
            instances = _instances(root, gpu, path, text, majors, major)
        except (OSError, GpuFault) as error:
            instances = (faulty(gpu, error),)
        if instances:
            found.append(instances)
    return found


def _majors(root: str) -> dict[str, int]:
    """Return the major numbers of character devices by driver, or none if nothing can be read."""
    found = {}
    try:
        text = get(f"{root}/proc/devices")
    except OSError:
        return {}
    for line in text.partition("Block devices")[0].splitlines():
        major, _, name = line.strip().partition(" ")
        if major.isdigit():
            found[name] = int(major)
    return found


def _read(devices: Mapping[str, str], memory: Memory) -> dict[str, str | OSError | GpuFault]:
    """Return the content of the information file of each device, or why it cannot be had: from
    memory if it is complete and the device is still bound to the same driver."""
    # The inode of a link in sysfs is a number that is not given out again for very long (kernfs).
    bindings = {path: link_inode(f"{device}/driver") for path, device in devices.items()}
    found: dict[str, str | OSError | GpuFault] = {
        path: memory[path][1]
        for path, inode in bindings.items()
        if inode and memory.get(path, (0, ""))[0] == inode
    }
    found |= read_each([path for path in devices if path not in found])
    for path, text in found.items():
        if isinstance(text, str) and text and "GPU-?" not in text:
            memory[path] = bindings[path], text
    return found


def _instances(
    root: str, gpu: Gpu, path: str, text: str, majors: dict[str, int], major: int
) -> tuple[Gpu, ...]:
    """Return the GPU, whose graphics nodes are known, or its slices, or nothing if the driver was
    told to leave it alone. Raises OSError and GpuFault if it cannot be used."""
    pairs = (line.partition(":") for line in text.splitlines())
    said = {name: value.strip() for name, _, value in pairs}
    if not said:
        raise GpuFault(f"{path} is empty: the driver does not reach the GPU")
    if said.get("GPU Excluded") == "Yes":
        return ()
    minor = number(said.get("Device Minor", ""))
    if minor is None or minor > _LAST_MINOR:
        raise GpuFault(f"{path} names no device minor of a GPU")
    device = f"{root}/sys/bus/pci/devices/{gpu.pci}"
    uuid = said.get("GPU UUID", "?")
    whole = replace(
        gpu,
        model=said.get("Model", ""),
        uuid=None if "?" in uuid else uuid,
        numa_node=numa_node(device),
        nodes=gpu.nodes | {DeviceNode(CHARACTER, major, minor)},
    )
    try:
        return tuple(_slices(root, whole, minor, majors)) or (whole,)
    except (OSError, GpuFault) as error:
        return (faulty(whole, error),)


def _slices(root: str, whole: Gpu, minor: int, majors: dict[str, int]) -> list[Gpu]:
    """Return the slices of a GPU by their ids, or none where MIG does not divide it. Raises OSError
    if that cannot be seen, and GpuFault if it is divided into nothing that a program can use."""
    above = f"{root}/proc/driver/nvidia/capabilities/gpu{minor}/mig"
    gpu_ids = _ids(above, "gi")
    found = []
    for gpu_id in gpu_ids:
        instance = f"{above}/gi{gpu_id}"
        for compute_id in _ids(instance, "ci"):
            gpu = replace(
                whole,
                name=f":{gpu_id}:{compute_id}",
                uuid=whole.uuid and f"MIG-{whole.uuid}/{gpu_id}/{compute_id}",
            )
            files = (f"{instance}/access", f"{instance}/ci{compute_id}/access")
            try:
                own = {_capability(path, majors) for path in files}
            except (OSError, GpuFault) as error:
                found.append(faulty(gpu, error))
            else:
                found.append(replace(gpu, nodes=whole.nodes | own))
    if gpu_ids and not found:
        raise GpuFault(f"{above} has GPU instances, but no compute instance")
    return found


def _ids(above: str, prefix: str) -> list[int]:
    """Return the ids of the instances that have a directory here, in order."""
    ids = (number(name.removeprefix(prefix)) for name in entries(above) if name.startswith(prefix))
    return sorted(each for each in ids if each is not None)


def _capability(path: str, majors: dict[str, int]) -> DeviceNode:
    """Return the node that gives the right which this file of the driver stands for. Raises OSError
    and GpuFault."""
    for line in get_record(path).splitlines():
        name, _, value = line.partition(":")
        if name == "DeviceFileMinor" and (minor := number(value)) is not None:
            if _CAPABILITIES not in majors:
                raise GpuFault(f"/proc/devices does not name {_CAPABILITIES}")
            return DeviceNode(CHARACTER, majors[_CAPABILITIES], minor)
    raise GpuFault(f"{path} names no DeviceFileMinor")
