"""What the machine has for jobs."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from drfd.host.capacity import (
    busy_s,
    default_reserve,
    own_memory_limit,
    read_machine,
    read_machine_use,
    spare_arc,
)

UNLIMITED = 1 << 60
GIB = 1 << 30


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    """A directory that stands for our cgroup."""
    path = tmp_path / "cgroup"
    path.mkdir()
    return path


def proc_file(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "proc-self-cgroup"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def below(top: str, cgroup: Path) -> str:
    """A cgroup path that leads from the hierarchy's root to the test's directory."""
    if not Path(top).is_dir():
        pytest.skip(f"this machine has no {top} to lead away from")
    depth = len(Path(top).resolve().parts) - 1
    return "/.." * depth + str(cgroup)


def test_the_limit_of_our_own_cgroup_v2_counts(tmp_path: Path, cgroup: Path) -> None:
    (cgroup / "memory.max").write_text(f"{3 * GIB}\n")
    line = f"0::{below('/sys/fs/cgroup', cgroup)}"
    assert own_memory_limit(proc_file(tmp_path, line)) == 3 * GIB


def test_max_is_no_limit(tmp_path: Path, cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("max\n")
    line = f"0::{below('/sys/fs/cgroup', cgroup)}"
    assert own_memory_limit(proc_file(tmp_path, line)) == UNLIMITED


def test_the_limit_of_our_own_cgroup_v1_counts(tmp_path: Path, cgroup: Path) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    path = below("/sys/fs/cgroup/memory", cgroup)
    assert own_memory_limit(proc_file(tmp_path, f"4:memory:{path}", "0::/nowhere")) == 2 * GIB


def test_memory_may_be_mounted_together_with_other_controllers(
    tmp_path: Path, cgroup: Path
) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    path = below("/sys/fs/cgroup/memory", cgroup)
    assert own_memory_limit(proc_file(tmp_path, f"4:cpu,memory:{path}")) == 2 * GIB


def test_the_limit_of_a_cgroup_above_ours_counts(tmp_path: Path, cgroup: Path) -> None:
    """An administrator limits user-1001.slice; the session inside it says "max"."""
    session = cgroup / "session"
    session.mkdir()
    (cgroup / "memory.max").write_text(f"{3 * GIB}\n")
    (session / "memory.max").write_text("max\n")
    line = f"0::{below('/sys/fs/cgroup', session)}"
    assert own_memory_limit(proc_file(tmp_path, line)) == 3 * GIB


def test_the_smaller_of_two_hierarchies_counts(tmp_path: Path, cgroup: Path) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (cgroup / "memory.max").write_text(f"{GIB}\n")
    one = f"4:memory:{below('/sys/fs/cgroup/memory', cgroup)}"
    two = f"0::{below('/sys/fs/cgroup', cgroup)}"
    assert own_memory_limit(proc_file(tmp_path, one, two)) == GIB


def test_other_controllers_say_nothing_about_memory(tmp_path: Path, cgroup: Path) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    path = below("/sys/fs/cgroup/memory", cgroup)
    assert own_memory_limit(proc_file(tmp_path, f"2:cpu:{path}")) == UNLIMITED


def test_a_cgroup_path_may_contain_colons(tmp_path: Path, cgroup: Path) -> None:
    odd = cgroup / "a:b"
    odd.mkdir()
    (odd / "memory.max").write_text(f"{GIB}\n")
    line = f"0::{below('/sys/fs/cgroup', odd)}"
    assert own_memory_limit(proc_file(tmp_path, line)) == GIB


def test_a_cgroup_that_has_vanished_is_no_limit(tmp_path: Path) -> None:
    assert own_memory_limit(proc_file(tmp_path, "4:memory:/gone", "0::/gone")) == UNLIMITED


def test_the_machine_gives_the_cores_that_we_may_use_and_no_more_memory_than_it_has() -> None:
    machine = read_machine()
    assert machine.cores_milli == 1000 * len(os.sched_getaffinity(0))
    assert 0 < machine.memory_bytes <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("memory_bytes", "reserve_bytes"),
    [(0, 0), (8 * GIB, GIB), (32 * GIB, 4 * GIB), (1024 * GIB, 4 * GIB)],
)
def test_the_reserve_is_an_eighth_and_4_gib_at_most(memory_bytes: int, reserve_bytes: int) -> None:
    assert default_reserve(memory_bytes) == reserve_bytes


# -- use ---------------------------------------------------------------------------------------

STAT = """\
cpu  999 999 999 999 999 999 999 999 999 999
cpu0 100 7000 20 100000 300 4 1 50 10 0
cpu1 1000 0 200 100000 300 40 10 50 10 0
cpu3 9 9 9 9 9 9 9 9 9 9
intr 1 2 3
ctxt 5
"""


def test_a_processor_is_busy_with_all_but_niced_processes_and_waiting() -> None:
    assert busy_s(STAT, {0}) * os.sysconf("SC_CLK_TCK") == 125
    assert busy_s(STAT, {0, 1, 2}) * os.sysconf("SC_CLK_TCK") == 125 + 1250


def test_memory_that_a_process_takes_is_in_use_and_page_cache_is_not(tmp_path: Path) -> None:
    """Others use the machine too: half of it must be seen, and they may give some back."""
    size = 768 << 20
    assert any(seen_of(size, tmp_path / "cached") > size // 2 for _ in range(5))


def seen_of(size: int, file: Path) -> int:
    """How much more memory is in use when we have taken so much, and have read a file besides."""
    before = read_machine_use()
    file.write_bytes(bytes(64 << 20))
    for _ in range(2):
        file.read_bytes()
    block = bytearray(size)
    # Touched, or it would be an empty promise.
    block[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * (size // os.sysconf("SC_PAGE_SIZE"))
    with_block = read_machine_use()
    assert with_block.mono_s > before.mono_s
    assert with_block.cpu_s >= before.cpu_s
    del block
    return with_block.memory_bytes - before.memory_bytes


def test_in_a_container_memory_is_used_up_when_the_containers_is(
    tmp_path: Path, cgroup: Path
) -> None:
    (cgroup / "memory.max").write_text(f"{GIB}\n")
    (cgroup / "memory.stat").write_text("anon 1000\nshmem 24\nfile 500000\n")
    lines = proc_file(tmp_path, f"0::{below('/sys/fs/cgroup', cgroup)}")
    assert read_machine_use(lines).memory_bytes == 1024


def test_the_cache_of_zfs_counts_as_page_cache_but_for_what_it_keeps() -> None:
    arcstats = """\
13 1 0x01 123 33456 5071283563 1234567890
name                            type data
hits                            4    3838
c_min                           4    1000
c_max                           4    900000
size                            4    51000
"""
    assert spare_arc(arcstats) == 50_000
    assert spare_arc(arcstats.replace("51000", "900")) == 0
    assert spare_arc("") == 0
