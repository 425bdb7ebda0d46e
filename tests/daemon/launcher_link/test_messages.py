"""Jobs become the launcher's orders, and its reports become stimuli."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drfd.common.errors import HostError
from drfd.common.units import show_cores
from drfd.core.amounts.resources import Resources
from drfd.core.model import stimuli as st
from drfd.core.model.job import Broken, Job, JobState, Outcome, Usage, Words, output_path
from drfd.daemon.launcher_link.messages import (
    LaunchSettings,
    decode_report,
    disk_limits,
    never_notice_for,
    order_for,
    payload_for,
    read_report,
    stimulus_for,
)
from drfd.host.disks import Disk
from drfd.journal.records import Payload
from drfd.launcher import protocol
from drfd.launcher.protocol import (
    EVERY_DISK,
    AttemptLimits,
    Ceilings,
    DiskLimit,
    LaunchOrder,
)
from drfd.payload.unpack import LaunchPayload, decode
from fakes import GIB, demand, now, spec

JOURNAL = "0" * 32

DISK = Disk(name="data", path="/data", read_bps=1, write_bps=1, devices=("8:0",))
JOB = Job(
    id=42,
    spec=replace(
        spec("root.lab", asks=demand(2.5, 4, read=100, write=200), name="my/job"),
        argv=Words.of(["train", "--fast"]),
        umask=0o027,
        stdout="%j-%x.out",
        stderr="/var/tmp/%u%%.err",
        attach="/tmp/attach",
    ),
    state=JobState.STARTING,
    attempt=3,
    submitted_at=0.0,
)


@pytest.mark.parametrize(
    ("changes", "other", "empties"),
    [
        ({}, {}, True),
        ({"append": True}, {}, False),
        ({"stdout": "%x.log"}, {}, True),
        ({"stdout": "%x.log"}, {"stderr": "train.log"}, False),
        ({"stdout": "%x.log"}, {"stderr": "train.log", "cwd": "/elsewhere"}, True),
        ({"stdout": "%x.log"}, {"stderr": "train.log", "uid": 1}, True),
        ({"stdout": "/dev/null"}, {"stdout": "/dev/null"}, True),
    ],
)
def test_an_output_that_is_another_running_jobs_is_not_emptied(
    changes: dict[str, Any], other: dict[str, Any], empties: bool
) -> None:
    usual = replace(JOB.spec, name="train", stdout="%j.out", stderr="%j.out")
    job = replace(JOB, attempt=1, spec=replace(usual, **changes))
    beside = [job, replace(JOB, id=43, attempt=1, spec=replace(usual, **other))]
    order = order_for(job, JOURNAL, LaunchSettings([DISK], 512, "weight"), beside=beside)
    assert order.empties_output is empties


@pytest.mark.parametrize(
    ("pattern", "empties"),
    [("%A.out", False), ("%a.out", True), ("%A_%a", True), ("%%j", False), ("%j", True)],
)
def test_tasks_with_one_file_never_empty_it(pattern: str, empties: bool) -> None:
    both = replace(JOB.spec, stdout=pattern, stderr=pattern)
    task = replace(JOB, attempt=1, array_id=40, array_index=5, spec=both)
    other = replace(task, id=43, array_index=6)
    order = order_for(task, JOURNAL, LaunchSettings([DISK], 512, "weight"), beside=[task, other])
    assert order.empties_output is empties


@pytest.mark.parametrize(
    ("rates", "limits"),
    [
        ({}, ()),
        ({"read_bps": 5, "write_bps": 3}, ((5, 3),)),
        ({"disks": (("data", 5, 0), ("work", 2, 0))}, ((5, 0),)),
    ],
)
def test_on_another_node_each_disk_has_the_highest_rates(
    rates: dict[str, Any], limits: tuple[tuple[int, int], ...]
) -> None:
    """A node finds its disks itself, and does not know the names of the controller's."""
    demand = replace(JOB.spec.demand, **({"read_bps": 0, "write_bps": 0, "disks": ()} | rates))
    job = replace(JOB, node="n1", spec=replace(JOB.spec, demand=demand))
    order = order_for(job, JOURNAL, LaunchSettings([DISK], 512, "weight"), home="head")
    assert order.limits.disks == tuple(
        DiskLimit(device=EVERY_DISK, read_bps=read, write_bps=write) for read, write in limits
    )


def test_an_order_carries_all_that_root_must_know_to_run_one_attempt() -> None:
    assert order_for(JOB, JOURNAL, LaunchSettings([DISK], 512, "weight")) == LaunchOrder(
        id=42,
        attempt=3,
        uid=1001,
        user="alice",
        journal=JOURNAL,
        submitted_us=0,
        gid=1001,
        array_id=0,
        array_index=0,
        name="my/job",
        threads=2,
        variables={
            "DRF_JOB_ID": "42",
            "DRF_JOB_NAME": "my/job",
            "DRF_POOL": "root.lab",
            "DRF_ATTEMPT": "3",
            "DRF_CORES": "2.5",
            "DRF_MEMORY": str(4 * GIB),
        },
        hidden=(),
        empties_output=False,
        limits=AttemptLimits(
            cores_milli=2500,
            memory_bytes=4 * GIB,
            pids=512,
            disks=(DiskLimit(device="8:0", read_bps=100, write_bps=200),),
            cores_by="weight",
        ),
    )


@pytest.mark.parametrize(
    ("most", "found"),
    [
        (demand(8, 0, read=50, write=700), (8000, 100, 700)),
        (demand(1, 0, read=0, write=700), (2500, 100, 700)),
        (demand(4, 0), (4000, 100, 200)),
        (demand(2.5, 0, read=1), None),
    ],
)
def test_what_a_job_may_be_lent_is_never_below_its_demand(
    most: Resources, found: tuple[int, int, int] | None
) -> None:
    settings = LaunchSettings([DISK], 512, protocol.SHARE)
    plain = order_for(JOB, JOURNAL, settings)
    order = order_for(JOB, JOURNAL, settings, most=most)
    if found is None:
        assert order == plain
        return
    cores_milli, read_bps, write_bps = found
    disk = DiskLimit(device="8:0", read_bps=read_bps, write_bps=write_bps)
    assert order == replace(
        plain,
        most=Ceilings(cores_milli=cores_milli, disks=(disk,)),
        threads=max(2, cores_milli // 1000),
        variables=order.variables,
    )
    broken = Broken(40, Outcome.FAILED)
    shown = {"DRF_CORES_MAX": show_cores(cores_milli)} if cores_milli > 2500 else {}
    assert order.variables == plain.variables | {"DRF_CORES": "2.5"} | shown
    assert never_notice_for(replace(JOB, broken=broken), order, 42, "x").most is None


def test_in_other_modes_no_cores_are_lent() -> None:
    disk = DiskLimit(device="8:0", read_bps=100, write_bps=700)
    for mode in (protocol.QUOTA, protocol.WEIGHT, protocol.PIN):
        settings = LaunchSettings([DISK], 512, mode)
        plain = order_for(JOB, JOURNAL, settings)
        assert order_for(JOB, JOURNAL, settings, most=demand(8, 0)) == plain
        order = order_for(JOB, JOURNAL, settings, most=demand(8, 0, write=700))
        assert order == replace(plain, most=Ceilings(cores_milli=2500, disks=(disk,)))


def test_what_the_user_has_written_goes_beside_it() -> None:
    """It was in the order, which root parsed."""
    given = Payload(env={"PATH": "/bin", "DRF_JOB_ID": "forged"}, script="#!/bin/sh\n")
    assert decode(payload_for(JOB.spec, given)) == LaunchPayload(
        argv=("train", "--fast"),
        cwd="/home/alice",
        umask=0o027,
        stdout=JOB.spec.stdout,
        stderr=JOB.spec.stderr,
        env={"DRF_JOB_ID": "forged", "PATH": "/bin"},
        script="#!/bin/sh\n",
        attach="/tmp/attach",
    )
    assert output_path(JOB.spec.stdout, JOB) == "/home/alice/42-my_job.out"
    assert output_path(JOB.spec.stderr, JOB) == "/var/tmp/alice%.err"


def test_the_launcher_reads_the_order_that_the_daemon_wrote() -> None:
    order = order_for(JOB, JOURNAL, LaunchSettings([DISK], 512, "pin"))
    message = protocol.decode(protocol.encode(protocol.launch_message(order)))
    assert message.pop("cmd") == "launch"
    assert protocol.read_order(message) == order


@pytest.mark.parametrize(
    ("read", "write", "disks", "limits"),
    [
        pytest.param(0, 0, [DISK], (), id="nothing declared"),
        pytest.param(
            5, 0, [DISK], (DiskLimit(device="8:0", read_bps=5, write_bps=0),), id="reading only"
        ),
        pytest.param(5, 6, [], (), id="no managed disk"),
        pytest.param(5, 6, [replace(DISK, devices=())], (), id="a disk that cannot be limited"),
        pytest.param(
            5,
            6,
            [DISK, replace(DISK, devices=("8:16",)), replace(DISK, devices=())],
            (
                DiskLimit(device="8:0", read_bps=5, write_bps=6),
                DiskLimit(device="8:16", read_bps=5, write_bps=6),
            ),
            id="every disk that can be limited",
        ),
        pytest.param(
            5,
            6,
            [replace(DISK, devices=("8:0", "8:16"))],
            (
                DiskLimit(device="8:0", read_bps=5, write_bps=6),
                DiskLimit(device="8:16", read_bps=5, write_bps=6),
            ),
            id="a file system over two disks",
        ),
        pytest.param(
            5,
            6,
            [DISK, replace(DISK, name="home", path="/home")],
            (DiskLimit(device="8:0", read_bps=5, write_bps=6),),
            id="two paths on one disk",
        ),
    ],
)
def test_a_declared_rate_limits_each_disk_once(
    read: int, write: int, disks: list[Disk], limits: tuple[DiskLimit, ...]
) -> None:
    assert disk_limits(demand(read=read, write=write), disks) == limits


SDA, SDB = DISK, replace(DISK, name="b", path="/b", devices=("8:16",))


@pytest.mark.parametrize(
    ("asked", "disks", "limits"),
    [
        pytest.param(
            [("b", 5, 6), ("data", 1, 2)],
            [SDA, SDB],
            [("8:0", 1, 2), ("8:16", 5, 6)],
            id="each has its own",
        ),
        pytest.param([("b", 5, 6), ("data", 0, 0)], [SDA, SDB], [("8:16", 5, 6)], id="only one"),
        pytest.param([("b", 5, 6)], [SDA], [], id="one that is gone"),
        pytest.param(
            [("b", 5, 6), ("data", 1, 0)],
            [SDA, replace(SDB, devices=("8:0",))],
            [("8:0", 6, 6)],
            id="two names for one device",
        ),
    ],
)
def test_rates_of_named_disks_limit_these_alone(
    asked: list[tuple[str, int, int]], disks: list[Disk], limits: list[tuple[str, int, int]]
) -> None:
    found = disk_limits(Resources(disks=tuple(asked)), disks)
    assert [(each.device, each.read_bps, each.write_bps) for each in found] == limits


# -- reports -----------------------------------------------------------------------------------

KEY = {"id": 7, "attempt": 2}
ENDED: dict[str, Any] = {
    "report": "ended",
    **KEY,
    "at_s": 5.0,
    "mono_s": 6.0,
    "exit_code": None,
    "signal": 9,
    "oom_killed": True,
    "over_limit": True,
    "cpu_s": 2.0,
    "peak_bytes": 300,
    "read_bytes": 10,
    "written_bytes": 20,
    "counted": {
        "throttled_us": 0,
        "limit_hits": 7,
        "largest_process_bytes": 300,
        "cpu_us": 1_000_000,
    },
}


@pytest.mark.parametrize(
    ("report", "stimulus"),
    [
        (
            {"report": "up", **KEY, "at_s": 5.0, "mono_s": 6.0, "cgroup": "drfd/7.2",
             "runner_pid": 99},
            st.AttemptStarted(job_id=7, attempt=2, at_s=5.0, mono_s=6.0, cgroup="drfd/7.2"),
        ),
        (
            {"report": "up", **KEY, "at_s": 5.0, "mono_s": 6.0, "cgroup": None, "runner_pid": 99},
            st.AttemptStarted(job_id=7, attempt=2, at_s=5.0, mono_s=6.0, cgroup=None),
        ),
        (
            {"report": "broke", **KEY, "text": "no such file"},
            st.LaunchAborted(now(), job_id=7, attempt=2, text="no such file"),
        ),
        ({"report": "frozen", **KEY}, st.Frozen(now(), job_id=7, attempt=2)),
        ({"report": "missing", **KEY}, st.AttemptMissing(now(), job_id=7, attempt=2)),
        ({"report": "removed", **KEY}, st.AttemptRemoved(now(), job_id=7, attempt=2)),
        (
            ENDED,
            st.AttemptEnded(
                job_id=7, attempt=2, at_s=5.0, mono_s=6.0, exit_code=None, signal=9,
                oom_killed=True, over_limit=True,
                usage=Usage(
                    memory_peak_bytes=300, read_bytes=10, written_bytes=20, cpu_s=2.0,
                    largest_process_bytes=300, throttled_us=0, limit_hits=7,
                ),
            ),
        ),
        (
            # The runner was killed too: the launcher knows no more than that.
            {"report": "ended", **KEY, "at_s": 5.0, "mono_s": None, "exit_code": None,
             "signal": None, "oom_killed": False, "over_limit": False},
            st.AttemptEnded(
                job_id=7, attempt=2, at_s=5.0, mono_s=None, exit_code=None, signal=None,
                oom_killed=False, over_limit=False, usage=Usage(),
            ),
        ),
    ],
    ids=["up", "up unconfined", "broke", "frozen", "missing", "removed", "ended", "ended unseen"],
)  # fmt: skip
def test_a_report_becomes_a_stimulus(report: dict[str, Any], stimulus: st.Stimulus) -> None:
    assert stimulus_for(decode_report(report), now(), None) == stimulus
    assert read_report(protocol.encode(report)) == decode_report(report)


def test_the_cgroups_peak_is_preferred_and_the_larger_of_two_counters_counts() -> None:
    measured = Usage(
        cores_milli=900,
        memory_bytes=80,
        memory_peak_bytes=100,
        read_bytes=50,
        written_bytes=5,
        cpu_s=1.0,
        memory_mean_bytes=70,
        memory_working_bytes=90,
        read_peak_bps=5,
    )
    end = stimulus_for(decode_report(ENDED), now(), measured)
    assert isinstance(end, st.AttemptEnded)
    assert end.usage == Usage(
        memory_peak_bytes=100,
        read_bytes=50,
        written_bytes=20,
        cpu_s=2.0,
        memory_mean_bytes=70,
        memory_working_bytes=90,
        largest_process_bytes=300,
        read_peak_bps=5,
        throttled_us=0,
        limit_hits=7,
    )


def test_what_only_the_launcher_has_counted_is_taken() -> None:
    """Nobody measured: drfd was away from the start to the end."""
    counted = {"memory_peak_bytes": 250, "cpu_us": 3_500_000, "oom_kills": 1}
    end = stimulus_for(decode_report({**ENDED, "counted": counted}), now(), None)
    assert isinstance(end, st.AttemptEnded)
    assert end.usage is not None
    assert (end.usage.memory_peak_bytes, end.usage.cpu_s) == (250, 3.5)
    assert (end.usage.oom_kills, end.usage.limit_hits) == (1, None)


def test_a_report_that_is_unknown_here_is_an_error() -> None:
    with pytest.raises(HostError, match="the launcher's report 'exploded' cannot be understood"):
        decode_report({"report": "exploded", **KEY})


def test_a_line_that_is_no_report_of_an_attempt_is_read_as_well() -> None:
    hello = {"report": "hello", "controls": {}, "mounts": {"memory": "/m"}}
    assert read_report(protocol.encode(hello)) == decode_report(hello)
    with pytest.raises(HostError, match="the launcher's report 'exploded' cannot be understood"):
        read_report(protocol.encode({"report": "exploded", **KEY}))
    for line in (b"{", b"[]\n", b"\xff\n"):
        with pytest.raises(protocol.BadMessage):
            read_report(line)
