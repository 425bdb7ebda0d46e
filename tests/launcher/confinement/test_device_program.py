"""The program that refuses devices, run by a small interpreter of the operations that it uses."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.devices.nodes import BLOCK, CHARACTER, DeviceNode
from drfd.launcher.confinement.device_program import device_program

NODES = some.builds(
    DeviceNode,
    kind=some.sampled_from([BLOCK, CHARACTER]),
    major=some.one_of(some.integers(0, 3), some.integers(0, (1 << 12) - 1)),
    minor=some.one_of(some.integers(0, 3), some.integers(0, (1 << 20) - 1)),
)
#: As the kernel names them: mknod, read, write, and combinations.
ACCESSES = some.integers(1, 7)
GPU = DeviceNode(CHARACTER, 195, 0)


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
def test_exactly_the_listed_devices_are_refused_whatever_the_access(
    hidden: frozenset[DeviceNode], other: DeviceNode, access: int
) -> None:
    program = device_program(hidden)
    refused = {node for node in {*hidden, other} if run(program, node, access) == 0}
    assert refused == hidden
    assert run(program, other, access) in (0, 1)


@given(hidden=some.lists(NODES, max_size=8))
def test_the_program_depends_on_the_set_alone(hidden: list[DeviceNode]) -> None:
    """So that one loaded program serves all jobs from which the same devices are hidden."""
    program = device_program(hidden)
    assert program == device_program([*reversed(hidden), *hidden])
    assert length(program) == 4 + 5 * len(set(hidden)) + 2


def test_the_other_kind_and_the_other_numbers_of_a_device_are_others() -> None:
    program = device_program([GPU])
    near = [GPU._replace(kind=BLOCK), GPU._replace(major=1), GPU._replace(minor=1)]
    assert [run(program, node, 7) for node in (GPU, *near)] == [0, 1, 1, 1]


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1), (1 << 12, 0), (0, 1 << 20)])
def test_numbers_that_no_device_has_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"^no device has the numbers {numbers[0]}:{numbers[1]}$"):
        device_program([DeviceNode(CHARACTER, *numbers)])
