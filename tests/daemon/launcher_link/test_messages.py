"""Jobs become the launcher's orders, and its reports become stimuli."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drfd.common.errors import HostError
from drfd.common.units import show_cores
from drfd.core.amounts.resources import Resources
from drfd.core.model import stimuli as st
from drfd.core.model.job import Broken, Job, JobState, Outcome, Usage, Words
from drfd.daemon.launcher_link.messages import (
    LaunchSettings,
    decode_report,
    never_notice_for,
    order_for,
    read_report,
    stimulus_for,
)
from drfd.host.disks import Disk
from drfd.launcher import protocol
from drfd.launcher.protocol import (
    Ceilings,
    DiskLimit,
)
from fakes import demand, now, spec

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


def test_the_launcher_reads_the_order_that_the_daemon_wrote() -> None:
    order = order_for(JOB, JOURNAL, LaunchSettings([DISK], 512, "pin"))
    message = protocol.decode(protocol.encode(protocol.launch_message(order)))
    assert message.pop("cmd") == "launch"
    assert protocol.read_order(message) == order


SDA, SDB = DISK, replace(DISK, name="b", path="/b", devices=("8:16",))


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
