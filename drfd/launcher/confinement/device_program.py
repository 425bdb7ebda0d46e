"""The program by which the kernel refuses devices to the processes of a cgroup of version 2.

It runs at each open of a device node and each mknod, is given the device's kind and numbers, and
returns 0 to refuse (kernel: cgroup-v2.rst, "Device controller"). It refuses the listed devices,
whatever the access, and allows all others: what a job needs of other devices is not known here.

Sources: struct bpf_cgroup_dev_ctx in include/uapi/linux/bpf.h; the instructions in
Documentation/bpf/standardization/instruction-set.rst.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterator

from drfd.linux.device_nodes import BLOCK, CHARACTER, DeviceNode

# Registers: the result, the context, and what is read from it.
_RESULT, _CONTEXT, _KIND, _MAJOR, _MINOR = 0, 1, 2, 4, 5
# Operations, each with all parts of its code: class, size or operation, source.
_LOAD_WORD, _AND_WORD, _JUMP_UNLESS_EQUAL, _MOVE, _EXIT = 0x61, 0x54, 0x55, 0xB7, 0x95
# Where the context has the access with the kind below it, the major and the minor number.
_ACCESS_AT, _MAJOR_AT, _MINOR_AT = 0, 4, 8
#: The lower half of the access word is the kind: BPF_DEVCG_DEV_BLOCK or BPF_DEVCG_DEV_CHAR.
_KIND_MASK = 0xFFFF
_KINDS = {BLOCK: 1, CHARACTER: 2}
_REFUSE, _ALLOW = 0, 1


def device_program(hidden: Collection[DeviceNode]) -> bytes:
    """Return the instructions of a program that refuses exactly these devices: an array of struct
    bpf_insn, the same for equal sets."""
    return b"".join(_instructions(hidden))


def _instructions(hidden: Collection[DeviceNode]) -> Iterator[bytes]:
    yield _instruction(_LOAD_WORD, _KIND, source=_CONTEXT, offset=_ACCESS_AT)
    yield _instruction(_AND_WORD, _KIND, value=_KIND_MASK)
    yield _instruction(_LOAD_WORD, _MAJOR, source=_CONTEXT, offset=_MAJOR_AT)
    yield _instruction(_LOAD_WORD, _MINOR, source=_CONTEXT, offset=_MINOR_AT)
    for node in sorted(set(hidden)):
        # The first difference leads to the next device.
        yield _instruction(_JUMP_UNLESS_EQUAL, _KIND, offset=4, value=_KINDS[node.kind])
        yield _instruction(_JUMP_UNLESS_EQUAL, _MAJOR, offset=3, value=node.major)
        yield _instruction(_JUMP_UNLESS_EQUAL, _MINOR, offset=2, value=node.minor)
        yield _instruction(_MOVE, _RESULT, value=_REFUSE)
        yield _instruction(_EXIT)
    yield _instruction(_MOVE, _RESULT, value=_ALLOW)
    yield _instruction(_EXIT)


def _instruction(
    operation: int, target: int = 0, *, source: int = 0, offset: int = 0, value: int = 0
) -> bytes:
    # The two registers share a byte as bit fields, which compilers order as the machine does bytes.
    first, second = (target, source) if sys.byteorder == "little" else (source, target)
    return struct.pack("=BBhi", operation, first | second << 4, offset, value)
