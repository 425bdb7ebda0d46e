"""What is said to be enforced, disk by disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drfd.daemon.cluster import NodeConfig
from drfd.daemon.config import Config, survey
from drfd.daemon.countable import CountableResource
from drfd.daemon.handlers.doctor import (
    InstallContext,
    away_text,
    countable_controls,
    cures,
    disk_control,
    own_countables,
    private_view,
)
from drfd.devices.gpus import Gpu
from drfd.host.disks import Disk
from drfd.host.measurements import Machine

DISK = Disk(name="data", path="/data", read_bps=1, write_bps=1, devices=("8:0",), filesystem="ext4")


def hello(read: str, write: str) -> dict[str, Any]:
    return {"kind": "x", "mounts": {}, "controls": {"cores": "x", "read": read, "write": write}}


@pytest.mark.parametrize(
    ("said", "changes", "found"),
    [
        pytest.param(("enforced", "enforced"), {}, ("enforced", "enforced"), id="all"),
        pytest.param(
            ("enforced", "enforced"),
            {"filesystem": "vfat"},
            (
                "enforced",
                "enforced: direct I/O only; the kernel does not attribute buffered writes on vfat",
            ),
            id="a file system that does not tell who wrote",
        ),
        pytest.param(
            ("enforced", "enforced: direct I/O only; v1"),
            {"filesystem": "vfat"},
            ("enforced", "enforced: direct I/O only; v1"),
            id="a kernel that does not",
        ),
        pytest.param(
            ("enforced", "enforced"),
            {"devices": (), "why_none": "/data is on tmpfs"},
            ("not controlled: /data is on tmpfs",) * 2,
            id="no disk",
        ),
        pytest.param(
            ("measured: so", "measured: so"),
            {"devices": (), "why_none": "/data is on tmpfs"},
            ("measured: so", "measured: so"),
            id="processes are measured wherever they write",
        ),
    ],
)
def test_a_disk_is_controlled_as_far_as_launcher_and_file_system_allow(
    said: tuple[str, str], changes: dict[str, Any], found: tuple[str, str]
) -> None:
    control = disk_control(replace(DISK, **changes), hello(*said))
    assert control == {"read": found[0], "write": found[1]}


def test_what_jobs_have_for_themselves_is_told_as_the_launcher_says() -> None:
    assert private_view({}) == {}
    on = private_view({"private_tmp": "/x", "removes_ipc": True})
    assert on["tmp"] == "each job has /tmp, /var/tmp and /dev/shm of its own, on disk in /x"
    assert "emptied" in on["ipc"]
    off = private_view({"private_tmp": None, "removes_ipc": False})
    assert off["tmp"].startswith("all jobs share /tmp")
    assert off["tmp"].endswith("what they leave in /tmp and /var/tmp stays")
    assert "stay" in off["ipc"]


SERVICE = InstallContext(uid=997, is_systems=True, is_service=True, has_systemd=True, lingers=False)
OWN = InstallContext(uid=1000, is_systems=False, is_service=False, has_systemd=True, lingers=True)


def test_of_a_launcher_of_another_version_it_is_said_what_to_restart() -> None:
    fault = "drfd-launcher speaks another version: restart it"
    found = cures(
        SERVICE, has_launcher=False, fault=fault, enforcement=None, guessed=[], lacks_pins=False
    )
    assert found == [f"no job starts: {fault}"]
    assert away_text(5.0, is_service=True, fault=fault) == f"no job starts or is stopped: {fault}"


def look(
    standing: InstallContext,
    *,
    has_launcher: bool = True,
    enforcement: str | None = "cgroup-v2",
    guessed: tuple[str, ...] = (),
    lacks_pins: bool = False,
    lacks_shares: bool = False,
) -> list[str]:
    return cures(
        standing,
        has_launcher=has_launcher,
        enforcement=enforcement,
        guessed=guessed,
        lacks_pins=lacks_pins,
        lacks_shares=lacks_shares,
    )


def test_who_does_not_linger_is_told_what_a_log_out_does() -> None:
    linger, _ = look(replace(OWN, lingers=False))
    assert "loginctl enable-linger" in linger
    for other in (replace(OWN, uid=0, lingers=False), replace(OWN, has_systemd=False)):
        assert not any("linger" in cure for cure in look(other))


def test_each_disk_whose_speed_is_a_guess_is_named() -> None:
    found = look(SERVICE, guessed=("state", "data"))
    assert [cure.split(":")[0] for cure in found] == [
        "the speed of disk state is a guess",
        "the speed of disk data is a guess",
    ]
    assert all("drfd calibrate" in cure for cure in found)


def test_who_wants_pins_and_has_none_is_told_where_cpusets_come_from() -> None:
    (cure,) = look(SERVICE, lacks_pins=True, enforcement="cgroup-v1")
    assert cure.startswith("CPUs of their own") and "mount -t cgroup -o cpuset" in cure
    (cure,) = look(SERVICE, lacks_pins=True)
    assert "Delegate=cpu cpuset io memory pids" in cure


def test_who_wants_to_lend_and_cannot_is_told_where_the_controller_comes_from() -> None:
    (cure,) = look(SERVICE, lacks_shares=True)
    assert cure.startswith("running jobs are lent nothing without the cpu controller")
    assert "Delegate=cpu cpuset io memory pids" in cure
    (cure,) = look(SERVICE, lacks_shares=True, enforcement="none")
    assert "as root on a machine with cgroups" in cure


def test_a_resource_is_controlled_as_far_as_its_devices_are_known_and_can_be_hidden(
    tmp_path: Path,
) -> None:
    countables = (
        CountableResource(name="fpga", instances=("0",), devices=(("/dev/a",),)),
        CountableResource(name="gpu", instances=("0",)),
        CountableResource(name="license", instances=("a",)),
    )
    machine = Machine(cores_milli=1000, memory_bytes=1 << 34)
    site = survey(Config(countables=countables), machine, tmp_path)
    told = {name: text.partition(":")[0] for name, text in countable_controls(site, {}).items()}
    assert told == {"gpu": "not controlled", "license": "not controlled"}
    hidden = countable_controls(site, {"hiding": [True, "so"]})
    assert hidden["fpga"] == "enforced: so"
    assert "drfd gpus finds none here" in hidden["gpu"]
    assert countable_controls(site, {"hiding": [False, "why"]})["fpga"] == "not controlled: why"
    gpu = Gpu(
        name="0", vendor="amd", model="", uuid=None, pci="", numa_node=None, nodes=frozenset()
    )
    there = replace(site, gpus=(gpu,))
    assert countable_controls(there, {"hiding": [True, "so"]})["gpu"] == "enforced: so"


def test_what_other_nodes_alone_have_is_not_told_of_the_own_machine(tmp_path: Path) -> None:
    nodes = (
        NodeConfig(name="head", engine="local"),
        NodeConfig(
            name="n1", engine="slurm", cores_milli=4000, memory_bytes=1 << 34, gres=(("gpu", 2),)
        ),
    )
    machine = Machine(cores_milli=1000, memory_bytes=1 << 34)
    site = survey(Config(nodes=nodes), machine, tmp_path)
    assert dict(site.rules.axes.instances) == {"gpu": ()}
    assert own_countables(site) == countable_controls(site, {"hiding": [True, "so"]}) == {}
    none = CountableResource(name="gpu", instances=())
    own = survey(Config(nodes=nodes, countables=(none,)), machine, tmp_path)
    assert own_countables(own) == {"gpu": ()}
