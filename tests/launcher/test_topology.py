"""What /sys says of processors, on trees of plain files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drfd.launcher.placement import Cpu
from drfd.launcher.topology import parse_list, read_machine, room_bytes, usable_cpus


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", set()),
        ("\n", set()),
        ("0\n", {0}),
        ("0-3\n", {0, 1, 2, 3}),
        ("0-1,8,10-11", {0, 1, 8, 10, 11}),
    ],
)
def test_lists_are_read_as_the_kernel_writes_them(text: str, found: set[int]) -> None:
    assert parse_list(text) == found


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_two_nodes_of_two_threads_a_core(tmp_path: Path) -> None:
    write(tmp_path / "node/node0/cpulist", "0,2\n")
    write(tmp_path / "node/node1/cpulist", "1,3\n")
    (tmp_path / "node/possible").write_text("0-1\n")
    for number, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        write(tmp_path / f"cpu/cpu{number}/topology/thread_siblings_list", f"{siblings}\n")
    assert read_machine({3, 0, 1}, tmp_path) == (Cpu(0, 0, 0), Cpu(1, 1, 1), Cpu(3, 1, 1))


def test_a_machine_that_tells_nothing_is_one_node_of_single_threads(tmp_path: Path) -> None:
    assert read_machine({0, 1}, tmp_path) == (Cpu(0, 0, 0), Cpu(1, 0, 1))
    assert room_bytes(0, tmp_path) == 0


def test_a_node_has_room_for_what_is_free_and_what_can_be_dropped(tmp_path: Path) -> None:
    lines = (
        "MemTotal: 900",
        "MemFree: 1",
        "Active(anon): 90",
        "Active(file): 2",
        "Inactive(file): 4",
    )
    write(tmp_path / "node/node1/meminfo", "".join(f"Node 1 {line} kB\n" for line in lines))
    assert room_bytes(1, tmp_path) == 7 * 1024


def test_this_machine_can_be_read() -> None:
    machine = read_machine(usable_cpus())
    assert {cpu.number for cpu in machine} == os.sched_getaffinity(0)
    assert sum(room_bytes(node) for node in {cpu.node for cpu in machine}) > 0
