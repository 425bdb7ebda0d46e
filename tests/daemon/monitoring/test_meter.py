"""Live use of running jobs, and the breaches it shows where the kernel enforces nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.model.job import Job, JobState, Outcome, Usage
from drfd.daemon.launcher_link.messages import HelloReport, decode_report
from drfd.daemon.monitoring.meter import Meter
from drfd.host import measurements
from fakes import demand, spec

KEY = (1, 1)
JOB = Job(
    id=1,
    spec=spec(asks=demand(1, 1)),
    state=JobState.RUNNING,
    attempt=1,
    submitted_at=0.0,
    cgroup="drfd/1.1",
)
#: A runner whose child holds 16 MiB.
RUNNER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import sys
block = bytearray(16 << 20)
print("ready", flush=True)
sys.stdin.read()
'''])
"""


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    """A meter over plain files; its clock goes on by two seconds with each look."""
    times = iter(range(1000, 100_000, 2))
    return Meter(
        lambda: float(next(times)), mounts={"cpuacct": str(tmp_path), "memory": str(tmp_path)}
    )


def write(tmp_path: Path, cpu_ns: int, rss: int, peak: int) -> None:
    directory = tmp_path / "drfd/1.1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpuacct.usage").write_text(f"{cpu_ns}\n")
    (directory / "memory.stat").write_text(f"total_rss {rss}\n")
    (directory / "memory.max_usage_in_bytes").write_text(f"{peak}\n")


def test_a_job_that_nobody_watches_reads_as_none(meter: Meter) -> None:
    assert meter.sample(JOB) is None
    assert meter.usage(JOB) is None


def test_use_comes_from_the_two_latest_samples(meter: Meter, tmp_path: Path) -> None:
    meter.watch(KEY, 99, "drfd/1.1")
    for cpu_ns, rss, peak in ((0, 9, 9), (1_000_000_000, 100, 700), (4_000_000_000, 50, 600)):
        write(tmp_path, cpu_ns, rss, peak)
        assert meter.sample(JOB) is None
    assert meter.usage(JOB) == Usage(
        cores_milli=1500,
        memory_bytes=50,
        memory_peak_bytes=700,
        cpu_s=4.0,
        memory_mean_bytes=53,
        memory_working_bytes=100,
        late_cores_milli=1000,
        cores_peak_milli=1500,
    )


#: Holds a core and may be lent three more; started at 990 on the meter's clock.
LENDING = replace(
    JOB, spec=spec(asks=demand(1, 1), most=Resources(cores_milli=4000)), started_mono_s=990.0
)


def lent_us(meter: Meter, job: Job = LENDING) -> int | None:
    usage = meter.usage(job)
    return None if usage is None else usage.lent_us


def test_a_job_with_a_single_figure_is_lent_nothing_that_is_known(
    meter: Meter, tmp_path: Path
) -> None:
    meter.watch(KEY, 99, "drfd/1.1")
    for most in (None, Resources(read_bps=1 << 30)):
        plain = replace(LENDING, spec=replace(LENDING.spec, most=most))
        write(tmp_path, 50 * 10**9, 0, 0)
        meter.sample(plain)
        meter.finish(plain, 50.0, 1010.0)
        assert (lent_us(meter, plain), meter.lent_tally(KEY)) == (None, None)


def test_the_loan_of_a_job_without_any_sample_is_known_from_its_start_and_end(meter: Meter) -> None:
    """It was too short, or has run and ended while there was no daemon."""
    usage = meter.finish(LENDING, 30.0, 1000.0)
    assert usage == Usage(lent_us=20_000_000)
    meter.forget(KEY)
    assert meter.finish(LENDING, 30.0, None) is None
    undated = replace(LENDING, started_mono_s=None)
    assert meter.finish(undated, 30.0, 1000.0) == Usage(lent_us=0)


def test_the_highest_rate_is_between_two_samples(meter: Meter, tmp_path: Path) -> None:
    configure(meter, hello(tmp_path))
    meter.watch(KEY, 99, "drfd/1.1")
    write_unified(tmp_path, cpu_us=0, anon=9, peak=9)
    for read, written in ((0, 0), (1000, 10), (9000, 10), (9500, 50)):
        line = f"8:0 rbytes={read} wbytes={written} rios=1 wios=1\n"
        (tmp_path / "drfd/1.1/io.stat").write_text(line)
        meter.sample(JOB)
    usage = meter.usage(JOB)
    assert usage is not None
    assert (usage.read_peak_bps, usage.write_peak_bps) == (4000, 20)


@pytest.mark.skipif(os.getuid() == 0, reason="root may look everywhere")
def test_that_it_may_not_look_is_in_the_log_once(
    meter: Meter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All jobs seemed to use nothing, and what they used counted as a load from outside drfd."""
    write(tmp_path, 0, 1, 1)
    for number in (1, 2):
        meter.watch((number, 1), 99, "drfd/1.1")
    (tmp_path / "drfd/1.1").chmod(0)
    try:
        for number in (1, 1, 2):
            meter.sample(replace(JOB, id=number))
    finally:
        (tmp_path / "drfd/1.1").chmod(0o700)
    assert [each.split(" error=")[0] for each in caplog.messages] == ["event=not-measured job=1"]


def test_a_confined_job_is_never_stopped_by_measurement(meter: Meter, tmp_path: Path) -> None:
    """The kernel keeps its limit; what is measured may be over it for a moment."""
    meter.watch(KEY, 99, "drfd/1.1")
    write(tmp_path, 0, 1 << 40, 1 << 40)
    assert [meter.sample(JOB) for _ in range(5)] == [None] * 5


@pytest.fixture
def runner_pid() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


def test_an_unconfined_job_is_stopped_after_two_samples_over_its_memory(
    meter: Meter, runner_pid: int
) -> None:
    job = replace(JOB, cgroup=None, spec=spec(asks=demand(1, 1 / 128)))
    meter.watch(KEY, runner_pid, None)
    assert meter.sample(job) is None
    breach = meter.sample(job)
    assert breach is not None
    assert breach[0] is Outcome.OUT_OF_MEMORY
    assert "its memory limit of 8M" in breach[1]
    usage = meter.usage(job)
    assert usage is not None
    assert usage.memory_peak_bytes >= 16 << 20


def test_an_unconfined_job_within_its_memory_runs_on(meter: Meter, runner_pid: int) -> None:
    job = replace(JOB, cgroup=None, spec=spec(asks=demand(1, 1)))
    meter.watch(KEY, runner_pid, None)
    assert [meter.sample(job) for _ in range(3)] == [None] * 3


# -- cgroup v2 ---------------------------------------------------------------------------------


def hello(mount: Path, read: str = "enforced") -> dict[str, Any]:
    return {"kind": "cgroup-v2", "mounts": {"cgroup2": str(mount)}, "controls": {"read": read}}


def configure(meter: Meter, facts: dict[str, Any]) -> None:
    report = decode_report({"report": "hello", **facts})
    assert isinstance(report, HelloReport)
    meter.configure(report.mounts, judges_io=report.measures_io)


def write_unified(mount: Path, *, cpu_us: int, anon: int, peak: int | None) -> None:
    directory = mount / "drfd/1.1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpu.stat").write_text(f"usage_usec {cpu_us}\n")
    (directory / "memory.stat").write_text(f"anon {anon}\n")
    (directory / "memory.peak").unlink(missing_ok=True)
    if peak is not None:
        (directory / "memory.peak").write_text(f"{peak}\n")


class BusyWriter:
    """psutil's view of a runner whose one child writes 10 MB between two looks."""

    written = 0

    def __init__(self, pid: int) -> None:
        assert pid == 99

    def children(self, recursive: bool) -> list[BusyWriter]:
        return [self]

    def oneshot(self) -> AbstractContextManager[None]:
        return nullcontext()

    def memory_full_info(self) -> SimpleNamespace:
        return SimpleNamespace(pss=7)

    def cpu_times(self) -> SimpleNamespace:
        return SimpleNamespace(user=7, system=7, children_user=7, children_system=7)

    def io_counters(self) -> SimpleNamespace:
        BusyWriter.written += 10_000_000
        return SimpleNamespace(read_bytes=0, write_bytes=BusyWriter.written)


def test_disk_rates_that_the_kernel_is_not_given_are_judged(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user has no io controller: memory is enforced, rates are measured."""
    job = replace(JOB, spec=spec(asks=demand(1, 1, write=1_000_000)))
    monkeypatch.setattr(measurements.psutil, "Process", BusyWriter)
    write_unified(tmp_path, cpu_us=0, anon=1 << 40, peak=1 << 40)
    configure(meter, hello(tmp_path, "measured: the io controller is not given to us"))
    meter.watch(KEY, 99, "drfd/1.1")
    breaches = [meter.sample(job) for _ in range(16)]
    assert breaches[:-2] == [None] * 14, "only a rate over half a minute is a breach"
    assert breaches[-1] is not None
    assert breaches[-1][0] is Outcome.LIMIT_EXCEEDED
    assert "declared" in breaches[-1][1]
    found = meter.usage(job)
    assert found is not None
    assert (found.memory_bytes, found.cpu_s) == (1 << 40, 0.0), "these are the cgroup's"


def test_disk_rates_that_the_kernel_enforces_are_not_judged(meter: Meter, tmp_path: Path) -> None:
    job = replace(JOB, spec=spec(asks=demand(1, 1, write=1)))
    configure(meter, hello(tmp_path))
    meter.watch(KEY, 99, "drfd/1.1")
    write_unified(tmp_path, cpu_us=0, anon=1, peak=1)
    for number in range(20):
        (tmp_path / "drfd/1.1/io.stat").write_text(f"8:0 rbytes=0 wbytes={number << 30}\n")
        assert meter.sample(job) is None


# -- CPUs of one's own -------------------------------------------------------------------------


def write_cpuset(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"cpuset.{name}").write_text(f"{text}\n")


def test_a_pinned_jobs_cpus_are_read_from_either_version(meter: Meter, tmp_path: Path) -> None:
    """On version 1 its memory follows it, on version 2 it has memory nodes of its own."""
    write_cpuset(tmp_path / "drfd/1.1", cpus="0-3,8", mems="0", memory_migrate="1")
    assert meter.pinned_cpus(JOB) is None, "the launcher has no cpusets"
    meter.mounts = {"cpuset": str(tmp_path)}
    assert meter.pinned_cpus(JOB) == "0-3,8"
    configure(meter, hello(tmp_path))
    assert meter.pinned_cpus(JOB) == "0-3,8"


def test_a_job_that_is_frozen_over_or_without_a_cgroup_has_no_cpus(
    meter: Meter, tmp_path: Path
) -> None:
    configure(meter, hello(tmp_path))
    assert meter.pinned_cpus(JOB) is None
    write_cpuset(tmp_path / "drfd/1.1", cpus="0", mems="0")
    assert meter.pinned_cpus(JOB) == "0"
    assert meter.pinned_cpus(replace(JOB, state=JobState.SUSPENDED)) is None
    assert meter.pinned_cpus(replace(JOB, cgroup=None)) is None
