"""Which job uses how much of each GPU, from the lines of processes that measure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drfd.core.model.job import Job, JobState, Usage
from drfd.daemon.lookup.views import gpu_view
from drfd.daemon.monitoring.gpu_use import GpuUse
from drfd.daemon.monitoring.meter import GpuShare, Meter
from fakes import demand, spec

JOB = Job(id=1, spec=spec(asks=demand(1, 1)), state=JobState.RUNNING, attempt=2, submitted_at=0.0)
OTHER = replace(JOB, id=2)
JOBS = {job.id: job for job in (JOB, OTHER)}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock, tmp_path: Path) -> Meter:
    """Both jobs are watched; the cgroup of one is the beginning of the other's name."""
    meter = Meter(clock, mounts={"memory": str(tmp_path)})
    meter.watch((1, 2), 0, "drfd/system/1.2")
    meter.watch((2, 2), 0, "drfd/system/1.23")
    return meter


@pytest.fixture
def use(meter: Meter) -> GpuUse:
    return GpuUse(meter)


def process(
    pid: int, *cgroups: str, memory: int | None = 100, utilisation: int | None = 10, uid: int = 7
) -> dict[str, Any]:
    return {
        "pid": pid, "uid": uid, "cgroups": list(cgroups), "memory": memory,
        "utilisation": utilisation,
    }  # fmt: skip


def gpu(*processes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    usual = {
        "name": "0", "pci": "0000:01:00.0", "uuid": "GPU-a", "slice": None, "memory_used": 900,
        "memory_total": 1000, "utilisation": 50, "is_lost": False, "processes": list(processes),
    }  # fmt: skip
    assert changes.keys() <= usual.keys()
    return usual | changes


def take(use: GpuUse, *gpus: dict[str, Any], why: str | None = None, driver: str = "any") -> None:
    use.take(driver, json.dumps({"gpus": gpus, "why": why}), JOBS)


OURS, THEIRS = "/drfd/system/1.2", "/drfd/system/1.23"


def test_a_process_belongs_to_the_job_of_its_cgroup_or_of_one_above(
    use: GpuUse, meter: Meter
) -> None:
    """Not of a cgroup that is only called so, which a user may make elsewhere."""
    take(
        use,
        gpu(
            process(11, "/", OURS, memory=100),
            process(12, f"{OURS}/container/x", memory=30, utilisation=5),
            process(13, THEIRS, memory=7, utilisation=1),
            process(14, f"/user.slice{OURS}", memory=1, uid=1000),
            process(15, f"{OURS}x", memory=1, uid=1001),
        ),
    )
    assert meter.gpus(JOB) == GpuShare(130, 15)
    assert meter.gpus(OTHER) == GpuShare(7, 1)
    (found,) = use.gpus()
    assert gpu_view(found) == {
        "name": "0", "pci": "0000:01:00.0", "uuid": "GPU-a", "memory_used": 900,
        "memory_total": 1000, "memory_jobs": 137, "memory_outside": 763, "utilisation": 50,
        "is_lost": False, "jobs": [1, 2], "outside_uids": [1000, 1001],
    }  # fmt: skip


def test_of_a_gpu_that_tells_no_processes_the_job_that_has_it_is_not_measured(
    use: GpuUse, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that were given another GPU, or none, cannot be there."""
    has_it = replace(JOB, instances=(("gpu", ("GPU-a",)),))
    has_another = replace(OTHER, instances=(("gpu", ("1",)),))
    monkeypatch.setitem(JOBS, 1, has_it)
    monkeypatch.setitem(JOBS, 2, has_another)
    take(use, gpu(processes=None), gpu(process(11, THEIRS), name="1", pci="0000:02:00.0", uuid="B"))
    assert meter.gpus(has_it) == GpuShare(None, None)
    assert meter.gpus(has_another) == GpuShare(100, 10)
    view = gpu_view(use.gpus()[0])
    assert (view["memory_jobs"], view["memory_outside"], view["jobs"]) == (None, None, None)
    assert view["outside_uids"] is None


def test_where_only_the_whole_is_known_a_job_that_is_alone_has_it_all(
    use: GpuUse, meter: Meter
) -> None:
    """So it is with the slices of a divided GPU."""
    unknown = process(11, OURS, memory=None, utilisation=None)
    take(use, gpu(unknown, memory_used=400, utilisation=None))
    assert meter.gpus(JOB) == GpuShare(400, None)
    take(use, gpu(unknown, process(12, "/"), memory_used=400))
    assert meter.gpus(JOB) == GpuShare(None, None)
    assert use.gpus()[0].outside_memory is None


@pytest.mark.parametrize(
    "line",
    ["", "x", "[]", '{"gpus":[]}', '{"gpus":[{}],"why":null}', '{"gpus":1,"why":null}', "[" * 9999],
    ids=str,
)
def test_nonsense_changes_nothing_and_is_logged_once(
    use: GpuUse, meter: Meter, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    take(use, gpu(process(11, OURS)))
    use.take("any", line, JOBS)
    use.take("any", line, JOBS)
    assert meter.gpus(JOB) == GpuShare(100, 10)
    assert len(caplog.records) == 1
    assert "event=gpus-not-understood driver=any" in caplog.text


def test_the_usage_of_a_job_has_the_peak_of_its_memory_and_its_mean_utilisation(
    use: GpuUse, meter: Meter, clock: Clock, tmp_path: Path, has_two: Job
) -> None:
    """They stay known when the readings end."""
    cgroup = tmp_path / "drfd/system/1.2"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.stat").write_text("total_rss 5\n")
    meter.sample(JOB)
    before = meter.usage(JOB)
    assert before is not None
    assert (before.gpu_memory_bytes, before.gpu_memory_peak_bytes) == (None, None)
    for memory, utilisation in ((100, 10), (400, 90), (300, 20)):
        own = process(11, OURS, memory=memory, utilisation=utilisation)
        second = gpu(process(11, OURS, memory=90, utilisation=0), uuid="GPU-b", name=None)
        take(use, gpu(own), second)
    usage = meter.usage(JOB)
    assert usage is not None
    assert _gpu_fields(usage) == (390, 490, 20, 40)
    assert usage.gpu_memory_single_peak_bytes == 400
    clock.now_s += 60.0
    usage = meter.finish(JOB, 0.0)
    assert usage is not None
    assert _gpu_fields(usage) == (None, 490, None, 40)
    assert usage.gpu_memory_single_peak_bytes == 400


def of_each(meter: Meter, job: Job) -> dict[str, tuple[int, ...]]:
    return {each.name: each.readings for each in meter.each_gpu(job)}


@pytest.fixture
def has_two(monkeypatch: pytest.MonkeyPatch) -> Job:
    """The first job has the GPUs that the configuration calls "0" and "GPU-b"."""
    job = replace(JOB, instances=(("gpu", ("0", "GPU-b")),))
    monkeypatch.setitem(JOBS, 1, job)
    return job


@pytest.mark.parametrize(
    "gap",
    [
        [gpu(processes=None)],
        [gpu(process(1, OURS, memory=None))],
        [gpu(is_lost=True, processes=None, memory_total=None)],
    ],
)
def test_readings_around_a_gap_do_not_follow_each_other(
    use: GpuUse, meter: Meter, has_two: Job, gap: list[dict[str, Any]]
) -> None:
    """What the whole GPU has says nothing sure of the job, also if nobody else is there."""
    take(use, gpu(process(1, OURS, memory=500)))
    take(use, *gap)
    assert of_each(meter, has_two) == {}
    take(use, gpu(process(1, OURS, memory=600)))
    assert of_each(meter, has_two) == {"0": (600,)}


def test_readings_with_a_long_pause_between_do_not_follow_each_other(
    use: GpuUse, meter: Meter, clock: Clock, has_two: Job
) -> None:
    take(use, gpu(process(1, OURS, memory=500)))
    clock.now_s += 10.1
    assert of_each(meter, has_two) == {}
    take(use, gpu(process(1, OURS, memory=600)))
    assert of_each(meter, has_two) == {"0": (600,)}


def test_readings_are_of_the_attempt_that_has_the_gpus(use: GpuUse, meter: Meter) -> None:
    later = replace(JOB, attempt=3, instances=(("gpu", ("0",)),))
    line = json.dumps({"gpus": [gpu(process(1, OURS))], "why": None})
    use.take("any", line, {1: later})
    assert of_each(meter, later) == {}
    assert of_each(meter, replace(later, attempt=2)) == {}


def _gpu_fields(usage: Usage) -> tuple[int | None, ...]:
    return (
        usage.gpu_memory_bytes, usage.gpu_memory_peak_bytes, usage.gpu_percent,
        usage.gpu_mean_percent,
    )  # fmt: skip


@pytest.fixture
def runner() -> Iterator[int]:
    """The pid of this process, as that of a runner, of which the test has a child."""
    yield os.getpid()


def test_without_cgroups_a_process_belongs_to_the_runner_that_it_descends_from(
    clock: Clock, runner: int
) -> None:
    meter = Meter(clock)
    meter.watch((1, 2), runner, None)
    use = GpuUse(meter)
    child = os.fork()
    if child == 0:
        os.read(os.pipe()[0], 1)
        os._exit(0)
    try:
        take(use, gpu(process(child, "/"), process(1, "/", memory=9)))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert meter.gpus(JOB) == GpuShare(100, 10)
    assert use.gpus()[0].jobs_memory == 100


GIB = 1 << 30
#: Of a card with 24 GiB.
BIG = {"memory_total": 24 * GIB, "memory_used": 5 * GIB}


def test_a_lost_gpu_is_kept_from_jobs_and_has_no_users(use: GpuUse) -> None:
    take(use, gpu(is_lost=True, processes=None, memory_used=None))
    assert use.used_outside(["0", "1"]) == {"0": ()}


def test_who_uses_a_gpu_outside_is_named(use: GpuUse, clock: Clock) -> None:
    alike = {"memory": 3 * GIB}
    others = [process(5, uid=0, **alike), process(6, uid=123_456_789, **alike)]
    take(use, gpu(*others, **{**BIG, "memory_used": 6 * GIB}))
    assert use.used_outside(["0", "1"]) == {"0": ("root", "uid 123456789")}
    assert use.used_outside(["GPU-a"]) == {"GPU-a": ("root", "uid 123456789")}
    assert use.used_outside(["1"]) == {}
    clock.now_s += 11
    assert use.used_outside(["0"]) == {}
