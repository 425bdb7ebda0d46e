"""What is used from outside: the whole machine's use, less what drfd and its jobs use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.model.job import Job, JobState
from drfd.daemon.monitoring.meter import ExternalUsage, Meter
from drfd.host import measurements
from drfd.host.measurements import MachineUse
from fakes import GIB, spec

MIB = 1 << 20
KEY = (1, 1)
JOB = Job(id=1, spec=spec(), state=JobState.RUNNING, attempt=1, submitted_at=0.0, cgroup="drfd/1.1")


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    """Over plain files, watching one job."""
    meter = Meter(time.monotonic, mounts={"cpuacct": str(tmp_path), "memory": str(tmp_path)})
    meter.watch(KEY, 1, JOB.cgroup)
    return meter


def write(tmp_path: Path, cpu_ns: int, rss: int) -> None:
    """What the kernel counts of the job."""
    directory = tmp_path / "drfd/1.1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpuacct.usage").write_text(f"{cpu_ns}\n")
    (directory / "memory.stat").write_text(f"total_rss {rss}\n")


def used(mono_s: float, cpu_s: float, memory_bytes: int = 0, *, niced_s: float = 0.0) -> MachineUse:
    return MachineUse(mono_s=mono_s, cpu_s=cpu_s, memory_bytes=memory_bytes, niced_s=niced_s)


def update(external: ExternalUsage, now: MachineUse) -> Resources | None:
    return external.update(now, now)


def test_the_first_look_only_begins(meter: Meter) -> None:
    external = ExternalUsage(meter)
    assert update(external, used(100, 5000)) is None
    assert update(external, used(102, 5000)) == Resources()


def test_a_niced_job_hides_no_load_from_outside_and_niced_programs_are_none(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's use is without that of niced processes."""
    niced = {7: 10.0}
    monkeypatch.setattr(measurements, "niced_processes", lambda mounts, cgroup: dict(niced))
    external = ExternalUsage(meter)
    write(tmp_path, cpu_ns=0, rss=0)
    meter.sample(JOB)
    update(external, used(100, 5000))
    update(external, used(102, 5000, niced_s=1))
    assert meter.finds_niced, "somebody is niced: it is found out whether the job is"
    meter.sample(JOB)
    niced[7] += 2
    write(tmp_path, cpu_ns=2_000_000_000, rss=0)
    meter.sample(JOB)
    outside = update(external, used(104, 5002, niced_s=5))
    assert outside is not None
    assert 900 <= outside.cores_milli <= 1000
    niced.clear()
    write(tmp_path, cpu_ns=4_000_000_000, rss=0)
    meter.sample(JOB)
    assert update(external, used(106, 5004, niced_s=9)) == Resources()
    update(external, used(108, 5004, niced_s=9))
    assert not meter.finds_niced


def test_the_time_of_jobs_that_have_come_and_gone_between_two_looks_is_theirs(
    meter: Meter, tmp_path: Path
) -> None:
    """Else a stream of short jobs would keep others from starting."""
    external = ExternalUsage(meter)
    update(external, used(100, 5000))
    write(tmp_path, cpu_ns=3_000_000_000, rss=0)
    meter.sample(JOB)
    meter.finish(JOB, 4.0)
    meter.forget(KEY)
    assert update(external, used(102, 5004)) == Resources()
    assert update(external, used(104, 5004)) == Resources(), "it is counted once"


def test_nothing_is_ever_used_less_than_not_at_all(meter: Meter, tmp_path: Path) -> None:
    """The jobs were sampled a moment before the machine."""
    external = ExternalUsage(meter)
    update(external, used(100, 5000))
    write(tmp_path, cpu_ns=10**12, rss=GIB)
    meter.sample(JOB)
    assert update(external, used(102, 5001, GIB - MIB)) == Resources()
