"""Configuration and machine together: what this daemon has to give."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import ConfigError
from drfd.core.amounts.resources import Axes, Resources
from drfd.core.fairness.rules import NodeSettings, Pool, Preempting, Rules
from drfd.core.fairness.share_tree import WeekQuota
from drfd.daemon import countable
from drfd.daemon.config import Config, DiskConfig, HistorySettings, UserLimits, survey
from drfd.daemon.countable import CountableResource
from drfd.devices.gpus import Gpu
from drfd.host.disks import locate
from drfd.host.measurements import Machine
from fakes import GIB

MACHINE = Machine(cores_milli=8000, memory_bytes=64 * GIB)
DISK = DiskConfig(name="data", path="/", read_bps=2000, write_bps=1000)


def test_guarantees_below_a_pool_are_compared_with_what_that_may_hold(tmp_path: Path) -> None:
    def warnings(**bounds: Any) -> tuple[str, ...]:
        lab = Pool(users=frozenset({"ann", "bob"}), **bounds)
        half = NodeSettings(guarantee={"cores": 3000})
        members = {("lab", "ann"): half, ("lab", "bob"): half}
        return survey(Config(pools={"lab": lab}, members=members), MACHINE, tmp_path).warnings

    assert warnings() == ()
    assert warnings(limit={"memory": GIB}) == ()
    assert warnings(limit={"cores": 4000}) == (
        "the guarantees below pools.lab add up to 6 cores, but the limit of pools.lab is 4 cores: "
        "not all of them can be kept at once",
    )


def test_what_is_configured_counts(tmp_path: Path) -> None:
    pools = {"lab": Pool(weight=Fraction(2))}
    config = Config(
        cores_milli=4000,
        memory_bytes=16 * GIB,
        reserve_memory_bytes=GIB,
        disks=(DISK,),
        pools=pools,
        grace_s=3,
        limits=UserLimits(waiting_jobs=7, kept_bytes=1 << 20, kept_total_bytes=2 << 20),
        preempting=Preempting(suspends=True),
        external_load=False,
    )
    assert survey(config, MACHINE, tmp_path).rules == Rules(
        axes=Axes(disks=("data",)),
        capacity=Resources(cores_milli=4000, memory_bytes=15 * GIB, read_bps=2000, write_bps=1000),
        pools=pools,
        grace_s=3,
        max_waiting_per_user=7,
        max_kept_bytes_per_user=1 << 20,
        max_kept_bytes=2 << 20,
        preempting=Preempting(suspends=True),
        root_room_bytes=(64 - 15) * GIB // 2,
    )


def test_two_names_for_one_device_are_told(tmp_path: Path) -> None:
    if not locate(str(tmp_path)).devices:
        pytest.skip("the tests' directory is on no block device")
    here = replace(DISK, path=str(tmp_path))
    found = survey(Config(disks=(here, replace(here, name="b"))), MACHINE, tmp_path).warnings
    assert found
    assert all(each.startswith("disks data and b are on one device (") for each in found)


@pytest.mark.parametrize(
    "config",
    [
        Config(reserve_memory_bytes=64 * GIB),
        Config(reserve_memory_bytes=100 * GIB),
        Config(memory_bytes=GIB, reserve_memory_bytes=GIB),
    ],
)
def test_a_reserve_that_leaves_nothing_is_refused(tmp_path: Path, config: Config) -> None:
    with pytest.raises(ConfigError) as error:
        survey(config, MACHINE, tmp_path)
    assert error.value.hint == "lower capacity.reserve_memory"


def gpu(number: int, **fields: Any) -> Gpu:
    plain = {"vendor": "nvidia", "model": "X", "uuid": f"GPU-{number}c", "numa_node": None}
    return Gpu(name=str(number), pci=f"0000:0{number}:00.0", nodes=frozenset(), **plain | fields)


def test_all_gpus_are_given_out_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (gpu(0), gpu(1, fault="it is lost"), gpu(2), gpu(3, is_integrated=True))
    monkeypatch.setattr(countable, "find_gpus", lambda **_: gpus)
    every = CountableResource(name="gpu", is_auto=True)
    site = survey(Config(disks=(DISK,), countables=(every,)), MACHINE, tmp_path)
    assert site.rules.axes.instances == (("gpu", ("0", "2")),)
    assert site.rules.capacity.gres == (("gpu", 2),)
    assert (site.gpus, site.warnings) == (gpus, ("gres.gpu: GPU 1: it is lost",))
    listed = replace(every, is_auto=False, instances=("0", "GPU-1c", "5"))
    assert survey(Config(disks=(DISK,), countables=(listed,)), MACHINE, tmp_path).warnings == (
        "gres.gpu: GPU 1: it is lost",
        "gres.gpu: the machine has no GPU 5, so no job that is given it starts; drfd gpus lists "
        "those it has",
    )
    twice = replace(listed, instances=("0", "2", "GPU-2c"))
    assert survey(Config(disks=(DISK,), countables=(twice,)), MACHINE, tmp_path).warnings == (
        "gres.gpu: GPU-2c is GPU 2, which is in the list, too: no job that is given it starts",
    )
    # Nobody looks for GPUs where none are given out.
    monkeypatch.setattr(countable, "find_gpus", None)
    named = (CountableResource(name="gpu", instances=("0",), devices=(("/dev/a",),)),)
    assert survey(Config(disks=(DISK,), countables=named), MACHINE, tmp_path).gpus == ()


def test_where_there_is_no_gpu_numbers_are_taken_and_auto_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(countable, "find_gpus", lambda **_: ())
    for each, warnings in (
        (CountableResource(name="gpu", instances=("0",)), ()),
        (
            CountableResource(name="gpu", is_auto=True),
            ("gres.gpu: 'auto' finds no GPU here; drfd gpus says what was looked at",),
        ),
    ):
        site = survey(Config(disks=(DISK,), countables=(each,)), MACHINE, tmp_path)
        assert site.warnings == warnings


def test_more_than_the_machine_has_is_possible_and_said(tmp_path: Path) -> None:
    config = Config(cores_milli=16000, memory_bytes=128 * GIB)
    assert survey(config, MACHINE, tmp_path).warnings == (
        "capacity.cores is 16, but the machine has 8: jobs will not get the cores they declare",
        "capacity.memory is 128G, but the machine has 64G: jobs within their limits may run it out",
    )


def test_a_history_shorter_than_the_week_of_a_quota_is_warned_of(tmp_path: Path) -> None:
    quota = WeekQuota(share_hours=Fraction(40))
    config = Config(
        pools={"lab": Pool(quota=quota), "free": Pool()},
        members={("lab", "ann"): NodeSettings(quota=quota)},
    )
    assert survey(config, MACHINE, tmp_path).warnings == ()
    short = replace(config, history=HistorySettings(keep_s=86400))
    assert survey(short, MACHINE, tmp_path).warnings == (
        "lab, lab/ann: a quota counts the jobs of a week, and history.keep removes them after "
        "1d00h: after a restart some do not count",
    )
    assert survey(replace(short, pools={}, members={}), MACHINE, tmp_path).warnings == ()


def test_what_the_machine_has_beside_the_capacity_is_for_others(tmp_path: Path) -> None:
    half = Config(cores_milli=3000, memory_bytes=16 * GIB, reserve_memory_bytes=GIB)
    beside = survey(half, MACHINE, tmp_path).rules.beside
    assert beside == Resources(cores_milli=5000, memory_bytes=49 * GIB)
    much = Config(cores_milli=9000, memory_bytes=65 * GIB)
    assert survey(much, MACHINE, tmp_path).rules.beside == Resources(), "it is never less than none"
