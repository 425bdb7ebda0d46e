"""Where the cgroup controllers are: lines of /proc/self/mountinfo as kernels write them."""

from __future__ import annotations

import pytest

from drfd.launcher.confinement.cgroup_files import find_mounts, find_unified, layout
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


def test_separate_hierarchies_are_found() -> None:
    names = ("cpu", "cpuacct", "memory", "freezer", "blkio", "pids")
    assert find_mounts(SEPARATE, USED) == {name: f"/sys/fs/cgroup/{name}" for name in names}


def test_controllers_that_share_a_hierarchy_are_found_there() -> None:
    assert find_mounts(TOGETHER, USED) == {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
        "memory": "/sys/fs/cgroup/memory",
    }


@pytest.mark.parametrize("mountinfo", ["", V2_ONLY, SEPARATE.splitlines()[0] + "\n"])
def test_without_v1_hierarchies_none_is_found(mountinfo: str) -> None:
    assert find_mounts(mountinfo, USED) == {}


def test_a_mount_point_with_a_blank_is_its_real_path() -> None:
    """proc_pid_mountinfo(5): blank, tab, line feed and backslash are written in octal."""
    line = "32 31 0:29 / /mnt/my\\040cgroups/cpu rw - cgroup cgroup rw,cpu\n"
    assert find_mounts(line, USED) == {"cpu": "/mnt/my cgroups/cpu"}


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
