"""Where the cgroup controllers are, by lines of /proc/self/mountinfo as kernels write them; and
what the kernel's files say of a job, as fields: what they do not say is left out."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from drfd.core.model.job import Usage
from drfd.launcher.confinement.cgroup_files import (
    count_v1,
    count_v2,
    find_mounts,
    find_unified,
    layout,
)
from drfd.launcher.confinement.cgroup_v1 import USED

SEPARATE = """\
23 28 0:22 / /proc rw,relatime shared:13 - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:10 - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
TOGETHER = """\
40 31 0:37 / /sys/fs/cgroup/cpu,cpuacct rw shared:2 master:1 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/memory rw,nosuid - cgroup none rw,memory
"""
V2_ONLY = """\
29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
"""


def test_controllers_are_found_where_they_are_mounted_also_if_they_share_a_hierarchy() -> None:
    names = ("cpu", "cpuacct", "memory", "freezer", "blkio", "pids")
    assert find_mounts(SEPARATE, USED) == {name: f"/sys/fs/cgroup/{name}" for name in names}
    shared = dict.fromkeys(("cpu", "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct")
    assert find_mounts(TOGETHER, USED) == {**shared, "memory": "/sys/fs/cgroup/memory"}
    # proc_pid_mountinfo(5): blank, tab, line feed and backslash are written in octal.
    line = "32 31 0:29 / /mnt/my\\040cgroups/cpu rw - cgroup cgroup rw,cpu\n"
    assert find_mounts(line, USED) == {"cpu": "/mnt/my cgroups/cpu"}
    for none in ("", V2_ONLY, SEPARATE.splitlines()[0] + "\n"):
        assert find_mounts(none, USED) == {}


@pytest.mark.parametrize(
    ("mountinfo", "found", "unified"),
    [
        (SEPARATE, "hybrid", "/sys/fs/cgroup/unified"),
        (TOGETHER, "legacy", None),
        (V2_ONLY, "unified", "/sys/fs/cgroup"),
        (SEPARATE.splitlines()[0] + "\n", "none", None),
        ("", "none", None),
    ],
)
def test_the_kinds_of_the_file_systems_tell_the_layout(
    mountinfo: str, found: str, unified: str | None
) -> None:
    assert (layout(mountinfo), find_unified(mountinfo)) == (found, unified)


def test_a_hierarchy_that_is_mounted_again_is_found_where_it_was_first() -> None:
    """Container runtimes do that."""
    again = "99 23 0:26 /a /run/box/cgroup rw - cgroup2 cgroup2 rw\n"
    assert find_unified(V2_ONLY + again) == "/sys/fs/cgroup"


# -- what is counted ----------------------------------------------------------------------


V1 = {
    "cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 1500999\nnr_bursts 0\n",
    "cpuacct.usage": "2500000999\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "memory.failcnt": "17\n",
    "memory.max_usage_in_bytes": "4096\n",
}
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"
    "nr_periods 40\nnr_throttled 10\nthrottled_usec 1500\n",
    "memory.events": "low 0\nhigh 0\nmax 17\noom 2\noom_kill 2\noom_group_kill 1\n",
    "memory.peak": "4096\n",
    "pids.peak": "5\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=777\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=700\n",
}
COUNTED = {
    "quota_periods": 40,
    "throttled_periods": 10,
    "throttled_us": 1500,
    "limit_hits": 17,
    "oom_kills": 2,
    "memory_peak_bytes": 4096,
    "cpu_us": 2500000,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def fill(place: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (place / name).write_text(text)


def v1(place: Path) -> dict[str, int]:
    return count_v1(dict.fromkeys(("cpu", "cpuacct", "memory"), str(place)))


def test_version_1_counts_no_waits_for_disks_and_version_2_all(place: Path) -> None:
    """The names are those of the job's use: all but the CPU time, which is kept in seconds."""
    fill(place, V1)
    assert v1(place) == COUNTED
    # The limit is hit with swap or without.
    fill(place, {"memory.memsw.failcnt": "21\n"})
    assert v1(place) == COUNTED | {"limit_hits": 21}
    fill(place, V2)
    assert count_v2(str(place)) == COUNTED | {"processes_peak": 5, "io_stalled_us": 777}
    assert set(count_v2(str(place))) - {field.name for field in fields(Usage)} == {"cpu_us"}


@pytest.mark.parametrize(("limit", "hits"), [("4096\n", None), ("8192\n", 0)])
def test_a_limit_that_was_reached_and_never_hit_is_not_believed(
    place: Path, limit: str, hits: int | None
) -> None:
    fill(place, {**V1, "memory.failcnt": "0\n", "memory.limit_in_bytes": limit})
    assert v1(place).get("limit_hits") == hits


LEFT = "cache 900\nshmem 300000000\ntotal_cache 900\ntotal_shmem 400000000\n"


def test_what_memory_is_left_in_use_is_counted(place: Path) -> None:
    """Files in a tmpfs and System V segments belong to nobody when their job has gone."""
    fill(place, {**V1, "memory.max_usage_in_bytes": f"{500 << 20}\n", "memory.stat": LEFT})
    assert v1(place)["left_bytes"] == 400_000_000
    fill(place, {**V2, "memory.peak": f"{500 << 20}\n", "memory.stat": LEFT})
    assert count_v2(str(place))["left_bytes"] == 300_000_000
    # Kernels before 5.19 keep no peak.
    (place / "memory.peak").unlink()
    assert count_v2(str(place))["left_bytes"] == 300_000_000


def test_of_a_job_that_never_had_much_or_left_nothing_nothing_is_said(place: Path) -> None:
    fill(place, {**V1, **V2, "memory.stat": LEFT})
    assert "left_bytes" not in v1(place) and "left_bytes" not in count_v2(str(place))
    fill(place, {**V1, "memory.max_usage_in_bytes": f"{500 << 20}\n"})
    fill(place, {"memory.stat": LEFT.replace("400000000", "0")})
    assert "left_bytes" not in v1(place)


def test_what_has_vanished_is_unknown_and_not_zero(place: Path) -> None:
    assert v1(place / "gone") == {}
    assert count_v1({}) == {}
    assert count_v2(str(place / "gone")) == {}


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("cpu.stat", {"quota_periods", "throttled_periods", "throttled_us", "cpu_us"}),
        ("memory.events", {"limit_hits", "oom_kills"}),
        ("memory.peak", {"memory_peak_bytes"}),
        ("pids.peak", {"processes_peak"}),
        ("io.pressure", {"io_stalled_us"}),
    ],
)
@pytest.mark.parametrize("text", [None, "what is this?\n", ""])
def test_a_file_that_is_missing_or_strange_hides_only_its_own(
    place: Path, name: str, lost: set[str], text: str | None
) -> None:
    fill(place, V2)
    whole = count_v2(str(place))
    (place / name).unlink()
    if text is not None:
        (place / name).write_text(text)
    assert count_v2(str(place)) == {key: whole[key] for key in whole if key not in lost}


def test_without_a_quota_nothing_is_said_of_throttling(place: Path) -> None:
    """On version 2 a cgroup without the cpu controller has cpu.stat all the same."""
    fill(place, {**V2, "cpu.stat": "usage_usec 5\nuser_usec 3\nsystem_usec 2\n"})
    counted = count_v2(str(place))
    assert counted["cpu_us"] == 5
    assert "throttled_us" not in counted
