"""What jobs and the machine use: measured, kept as curves, told from outside, and reserved."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.desk import Desk, MakeShell
from drfd.common.errors import Refused
from drfd.core.amounts.resources import Resources
from drfd.core.model.job import Job, JobState, Outcome, Usage
from drfd.core.model.stimuli import Actor, AttemptRemoved, Now, SubmitAsked
from drfd.daemon.config import UserLimits
from drfd.daemon.launcher_link.messages import HelloReport, decode_report
from drfd.daemon.lookup.views import curve_view
from drfd.daemon.monitoring.meter import (
    ENDED_POINTS,
    GPUS_STALE_S,
    Curves,
    ExternalUsage,
    GpuShare,
    Meter,
)
from drfd.daemon.monitoring.reserves import DISK, MEMORY, Reserves, default_reserve_disk
from drfd.host import measurements
from drfd.host.measurements import MachineUse, MemoryHeadroom
from drfd.journal import files
from drfd.journal.files import Reserve
from drfd.journal.journal import Journal
from fakes import ADMIN, ALICE, BOB, GIB, attempt_started, demand, ended, now, of_gpus, spec

# -- live use, and the breaches that it shows where the kernel enforces nothing ----------------


KEY = (1, 1)
JOB = Job(
    id=1, spec=spec(asks=demand(1, 1)), state=JobState.RUNNING, attempt=1, submitted_at=0.0,
    cgroup="drfd/1.1",
)  # fmt: skip
#: The runner is a shell, whose child holds 16 MiB.
RUNNER = f"""{sys.executable} -S -c 'import sys
block = bytearray(16 << 20)
print("ready", flush=True)
sys.stdin.read()'
true"""


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    """A meter over plain files; its clock goes on by two seconds with each look."""
    times = iter(range(1000, 100_000, 2))
    return Meter(
        lambda: float(next(times)), mounts={"cpuacct": str(tmp_path), "memory": str(tmp_path)}
    )


def write(tmp_path: Path, cpu_ns: int, rss: int, peak: int = 0) -> None:
    """What the kernel counts of the job."""
    directory = tmp_path / "drfd/1.1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpuacct.usage").write_text(f"{cpu_ns}\n")
    (directory / "memory.stat").write_text(f"total_rss {rss}\n")
    (directory / "memory.max_usage_in_bytes").write_text(f"{peak}\n")


def test_use_comes_from_the_two_latest_samples(meter: Meter, tmp_path: Path) -> None:
    assert (meter.sample(JOB), meter.usage(JOB)) == (None, None), "nobody watches"
    meter.watch(KEY, 99, "drfd/1.1")
    for cpu_ns, rss, peak in ((0, 9, 9), (1_000_000_000, 100, 700), (4_000_000_000, 50, 600)):
        write(tmp_path, cpu_ns, rss, peak)
        assert meter.sample(JOB) is None
    assert meter.usage(JOB) == Usage(
        cores_milli=1500, memory_bytes=50, memory_peak_bytes=700, cpu_s=4.0, memory_mean_bytes=53,
        memory_working_bytes=100, late_cores_milli=1000, cores_peak_milli=1500,
    )  # fmt: skip


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


def test_that_it_may_not_look_is_in_the_log_once(
    meter: Meter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All jobs seemed to use nothing, and what they used counted as a load from outside drfd."""
    write(tmp_path, 0, 1, 1)
    for number in (1, 2):
        meter.watch((number, 1), 99, "drfd/1.1")
    (tmp_path / "drfd/1.1").chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        for number in (1, 1, 2):
            meter.sample(replace(JOB, id=number))
    finally:
        if is_root:
            os.seteuid(0)
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
        ["sh", "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


@pytest.mark.parametrize(("gib", "is_over"), [(1, False), (1 / 128, True)])
def test_an_unconfined_job_is_stopped_after_two_samples_over_its_memory(
    meter: Meter, runner_pid: int, gib: float, is_over: bool
) -> None:
    job = replace(JOB, cgroup=None, spec=spec(asks=demand(1, gib)))
    meter.watch(KEY, runner_pid, None)
    assert meter.sample(job) is None
    breach = meter.sample(job)
    assert (breach is not None) is is_over
    if breach is not None:
        assert breach[0] is Outcome.OUT_OF_MEMORY
        assert "its memory limit of 8M" in breach[1]
    usage = meter.usage(job)
    assert usage is not None
    assert usage.memory_peak_bytes >= 16 << 20


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
    for other in (replace(JOB, state=JobState.SUSPENDED), replace(JOB, cgroup=None)):
        assert meter.pinned_cpus(other) is None
    assert meter.pinned_cpus(replace(JOB, cgroup="drfd/2.1")) is None, "it is over"


# -- use from outside: that of the machine, less what drfd and its jobs use --------------------


MIB = 1 << 20


@pytest.fixture
def watching(tmp_path: Path) -> Meter:
    """Over plain files, watching one job."""
    watching = Meter(time.monotonic, mounts={"cpuacct": str(tmp_path), "memory": str(tmp_path)})
    watching.watch(KEY, 1, JOB.cgroup)
    return watching


def used(mono_s: float, cpu_s: float, memory_bytes: int = 0, *, niced_s: float = 0.0) -> MachineUse:
    return MachineUse(mono_s=mono_s, cpu_s=cpu_s, memory_bytes=memory_bytes, niced_s=niced_s)


def update(external: ExternalUsage, now: MachineUse) -> Resources | None:
    return external.update(now, now)


def test_the_first_look_only_begins(watching: Meter) -> None:
    external = ExternalUsage(watching)
    assert update(external, used(100, 5000)) is None
    assert update(external, used(102, 5000)) == Resources()


def test_a_niced_job_hides_no_load_from_outside_and_niced_programs_are_none(
    watching: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's use is without that of niced processes."""
    niced = {7: 10.0}
    monkeypatch.setattr(measurements, "niced_processes", lambda mounts, cgroup: dict(niced))
    external = ExternalUsage(watching)
    write(tmp_path, cpu_ns=0, rss=0)
    watching.sample(JOB)
    update(external, used(100, 5000))
    update(external, used(102, 5000, niced_s=1))
    assert watching.finds_niced, "somebody is niced: it is found out whether the job is"
    watching.sample(JOB)
    niced[7] += 2
    write(tmp_path, cpu_ns=2_000_000_000, rss=0)
    watching.sample(JOB)
    outside = update(external, used(104, 5002, niced_s=5))
    assert outside is not None
    assert 900 <= outside.cores_milli <= 1000
    niced.clear()
    write(tmp_path, cpu_ns=4_000_000_000, rss=0)
    watching.sample(JOB)
    assert update(external, used(106, 5004, niced_s=9)) == Resources()
    update(external, used(108, 5004, niced_s=9))
    assert not watching.finds_niced


def test_the_time_of_jobs_that_have_come_and_gone_between_two_looks_is_theirs(
    watching: Meter, tmp_path: Path
) -> None:
    """Else a stream of short jobs would keep others from starting."""
    external = ExternalUsage(watching)
    update(external, used(100, 5000))
    write(tmp_path, cpu_ns=3_000_000_000, rss=0)
    watching.sample(JOB)
    watching.finish(JOB, 4.0)
    watching.forget(KEY)
    assert update(external, used(102, 5004)) == Resources()
    assert update(external, used(104, 5004)) == Resources(), "it is counted once"


# -- curves: from samples to what is shown, kept, and found again ------------------------------


@dataclass
class World:
    """A machine of plain files, and a clock that the test moves."""

    root: Path
    journal: Journal
    at_s: float = 0.0

    def clock(self) -> Now:
        return now(self.at_s)

    def curves(self) -> Curves:
        """Those of a daemon that has just been started."""
        mounts = {"cpuacct": str(self.root), "memory": str(self.root), "blkio": str(self.root)}
        meter = Meter(lambda: self.clock().mono_s, mounts=mounts)
        return Curves(meter, self.journal, self.clock)

    def use(self, job: Job, *, cpu_s: float, memory_mib: int = 1, read: int = 0) -> None:
        """All that the job has used until now."""
        directory = self.root / str(job.cgroup)
        directory.mkdir(exist_ok=True, parents=True)
        (directory / "cpuacct.usage").write_text(f"{round(cpu_s * 1e9)}\n")
        (directory / "memory.stat").write_text(f"total_rss {memory_mib * MIB}\n")
        (directory / "memory.max_usage_in_bytes").write_text(f"{memory_mib * MIB}\n")
        (directory / "blkio.throttle.io_service_bytes").write_text(f"8:0 Read {read}\n")

    def sample(self, curves: Curves, *jobs: Job) -> None:
        """One round, two seconds after the last one."""
        self.at_s += 2
        for job in jobs:
            curves.meter.watch((job.id, job.attempt), 1, job.cgroup)
            curves.meter.sample(job)
            curves.note(job)
        curves.note_users(jobs)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    journal = Journal(tmp_path / "curves.sqlite")
    yield World(tmp_path / "cgroup", journal)
    journal.close()


def job(job_id: int = 1, attempt: int = 1, **changes: Any) -> Job:
    return Job(
        id=job_id, spec=changes.pop("spec", spec()), state=JobState.RUNNING, attempt=attempt,
        submitted_at=0.0, cgroup=f"drfd/{job_id}.{attempt}", **changes,
    )  # fmt: skip


def run(world: World, curves: Curves, each: Job, rounds: int, *, cores: float = 1.0) -> None:
    for _ in range(rounds):
        world.use(each, cpu_s=cores * (world.at_s + 2), memory_mib=3, read=round(world.at_s) * 1024)
        world.sample(curves, each)


def test_points_are_means_of_the_time_between_two_samples_in_unix_time(world: World) -> None:
    curves = world.curves()
    run(world, curves, job(), 3, cores=0.5)
    curve = curves.of_job(job())
    assert curve is not None
    begin_ms = round(now().at_s * 1000)
    points = list(curve.points())
    assert [each.end_ms - begin_ms for each in points] == [2000, 4000, 6000]
    assert [each.cores_milli for each in points] == [None, 500, 500]
    assert [each.memory_bytes for each in points] == [3 * MIB] * 3
    assert [each.read_bps for each in points] == [None, 1024, 1024]
    # What cannot be read is not known, and not zero.
    assert [each.write_bps for each in points] == [None, 0, 0]
    last = curves.last(job())
    assert last is not None and last.cores_milli == 500


def on_gpus(world: World, curves: Curves, each: Job, *readings: GpuShare | None) -> None:
    """A round of samples for each reading of its GPUs; with None, the meter of GPUs is silent."""
    for reading in readings:
        curves.meter.watch((each.id, each.attempt), 1, each.cgroup)
        if reading is None:
            world.at_s += GPUS_STALE_S
        else:
            curves.meter.note_gpus((each.id, each.attempt), reading, world.clock().mono_s)
        run(world, curves, each, 1)


def test_points_have_what_was_read_of_gpus_and_null_where_nothing_was(world: World) -> None:
    curves = world.curves()
    unclear = GpuShare(None, 40)
    on_gpus(world, curves, job(), GpuShare(3 * MIB, 180), unclear, None, GpuShare(MIB, 0))
    curve = curves.of_job(job())
    assert curve is not None
    assert [each.gpu_memory_bytes for each in curve.points()] == [3 * MIB, None, None, MIB]
    assert [each.gpu_percent for each in curve.points()] == [180, 40, None, 0]
    view = curve_view(curve, job().spec.demand)
    assert view["gpu_memory"] == [3 * MIB, None, None, MIB]
    assert view["gpu_utilisation"] == [180, 40, None, 0]
    users = curves.of_user("alice")
    assert users is not None and users.gpu_percent[:2] == (180, 40)


def test_a_curve_has_gpus_of_a_job_that_asks_for_some_or_is_seen_on_one(world: World) -> None:
    curves = world.curves()
    with_gpu, plain = job(1, spec=of_gpus(1)), job(2)
    run(world, curves, with_gpu, 1)
    on_gpus(world, curves, plain, GpuShare(0, 0))
    for each, shown in ((with_gpu, [None]), (plain, None)):
        curve = curves.of_job(each)
        assert curve is not None
        view = curve_view(curve, each.spec.demand)
        assert (view.get("gpu_memory"), view.get("gpu_utilisation")) == (shown, shown)


def test_a_users_jobs_add_up_and_an_idle_user_is_at_nothing_and_then_forgotten(
    world: World,
) -> None:
    curves = world.curves()
    one, other, bobs = job(1), job(2), job(3, spec=spec("root.bob", actor=BOB))
    for _ in range(3):
        for each, cores in ((one, 1.0), (other, 0.25), (bobs, 4.0)):
            world.use(each, cpu_s=cores * (world.at_s + 2), memory_mib=2)
        world.sample(curves, one, other, bobs)
    curve = curves.of_user("alice")
    assert curve is not None
    assert curve.cores_milli == (None, 1250, 1250)
    assert curve.memory_kib == (4096, 4096, 4096)
    world.sample(curves, bobs)
    curve = curves.of_user("alice")
    assert curve is not None and (curve.cores_milli[-1], curve.memory_kib[-1]) == (0, 0)
    world.at_s += 3700
    world.sample(curves, bobs)
    assert curves.of_user("alice") is None
    assert curves.of_user("bob") is not None
    assert curves.of_user("nobody") is None


@pytest.mark.slow
def test_a_restart_goes_on_with_the_peak_and_the_mean_of_gpus(world: World) -> None:
    """The peak is saved within ten seconds, and everything else not before five minutes."""
    before = world.curves()
    on_gpus(world, before, job(), GpuShare(5 * MIB, 90))
    before.save()
    assert world.journal.curve(1) is None, "it was just begun"
    before.meter.note_gpu((1, 1), "0", 4 * MIB, None)
    on_gpus(world, before, job(), *[GpuShare(3 * MIB, 50)] * 5)
    before.save()
    on_gpus(world, before, job(), *[GpuShare(3 * MIB, 0)] * 100)
    before.save()
    after = world.curves()
    after.resume([job()])
    known = after.meter.usage(job())
    assert known is not None, "before anything was sampled"
    assert (known.gpu_memory_peak_bytes, known.gpu_memory_single_peak_bytes) == (5 * MIB, 4 * MIB)
    assert known.gpu_mean_percent == (90 + 5 * 50) // 6
    # The attempt may have ended while there was no daemon.
    assert after.meter.finish(job(), 1.0) == known
    on_gpus(world, after, job(), GpuShare(MIB, 10))
    usage = after.meter.usage(job())
    assert usage is not None
    assert (usage.gpu_memory_peak_bytes, usage.gpu_memory_bytes) == (5 * MIB, MIB)
    assert usage.gpu_mean_percent == (90 + 5 * 50 + 10) // 7
    assert usage.memory_bytes == 3 * MIB
    after.meter.forget((1, 1))
    assert after.meter.usage(job()) is None


RANGED = spec(asks=demand(1), most=Resources(cores_milli=4000))


def lending(world: World, **changes: Any) -> Job:
    """A job that holds one core and may be lent three, and starts now."""
    return job(spec=RANGED, started_mono_s=world.clock().mono_s, **changes)


def test_points_have_what_was_lent_of_the_cores_for_jobs_with_a_range(world: World) -> None:
    curves, each, plain = world.curves(), lending(world), job(2)
    for cpu_s in (2, 8, 9, 11):
        world.use(each, cpu_s=cpu_s)
        world.use(plain, cpu_s=cpu_s)
        world.sample(curves, each, plain)
    curve, users = curves.of_job(each), curves.of_user("alice")
    assert curve is not None and users is not None
    assert curve.cores_milli == (None, 3000, 500, 1000)
    assert curve.lent_milli == (None, 2000, 0, 0)
    assert curve_view(curve, RANGED.demand)["cores_lent"] == [None, 2.0, 0.0, 0.0]
    assert users.lent_milli == (None, 2000, 0, 0)
    single = curves.of_job(plain)
    assert single is not None and "cores_lent" not in curve_view(single, plain.spec.demand)


def test_a_restart_goes_on_with_what_was_lent_and_counts_what_came_meanwhile(world: World) -> None:
    """The journal has what was saved before; what came later is known as a whole."""
    before, each = world.curves(), lending(world)
    run(world, before, each, 5, cores=3.0)
    before.save(all_of_them=True)
    run(world, before, each, 2, cores=3.0)
    after = world.curves()
    after.resume([each])
    known = after.meter.usage(each)
    assert known is not None and known.lent_us == 20_000_000, "before anything was sampled"
    run(world, after, each, 2, cores=3.0)
    usage = after.meter.usage(each)
    assert usage is not None and usage.lent_us == 36_000_000
    # It ends while there is no daemon, and nothing was saved since.
    other = lending(world, attempt=2)
    last = world.curves()
    last.resume([other])
    assert last.meter.usage(other) is None, "what another attempt was lent is not its own"
    last = world.curves()
    last.resume([each])
    mono_s = world.clock().mono_s
    assert last.meter.finish(each, 3.0 * world.at_s, mono_s) == Usage(lent_us=36_000_000)


def test_running_jobs_are_saved_now_and_then_some_at_a_time(world: World) -> None:
    curves = world.curves()
    jobs = [job(each) for each in range(1, 21)]
    for _ in range(2):
        for each in jobs:
            world.use(each, cpu_s=world.at_s)
        world.sample(curves, *jobs)
    curves.save()
    assert world.journal.curve(1) is None, "it was just begun"
    world.at_s += 301
    saved = []
    for _ in range(4):
        curves.save()
        saved.append(sum(world.journal.curve(each.id) is not None for each in jobs))
    assert saved == [8, 16, 20, 20]


@pytest.mark.slow
def test_an_end_is_kept_in_few_points_with_the_same_sums(
    world: World, make_shell: MakeShell
) -> None:
    shell = make_shell(clock=world.clock)
    curves = replace(world.curves(), journal=shell.journal)
    shell.engine.curve_of = curves.final_curve
    shell.engine.changes.listen(curves.job_changed)
    shell.turn(SubmitAsked(now(), spec(), False))
    shell.turn(attempt_started(1))
    desk_job = shell.engine.ledger.jobs[1]
    run(world, curves, desk_job, 100)
    shell.turn(ended(1))
    assert shell.journal.curve(1) is None, "it is not over as yet"
    shell.turn(AttemptRemoved(now(), 1, 1))
    kept = shell.journal.curve(1)
    assert kept is not None and ENDED_POINTS // 2 < len(kept) <= ENDED_POINTS
    assert sum(kept.spans_ms) == 99 * 2000
    assert {each.cores_milli for each in kept.points()} == {1000}
    run(world, curves, job(2), 2)
    assert curves.final_curve(job(2)) is None, "of a very short job nothing is kept"
    run(world, curves, job(2), 1)
    assert curves.final_curve(job(2)) is not None
    assert curves.of_job(shell.journal.job(1)) == kept
    shell.host.take()


async def test_anybody_may_ask_for_the_use_of_a_job_or_a_user(desk: Desk) -> None:
    await desk.submit(Actor("bob", 1002, False), argv=["secret"], cwd="/secret", name="plain")
    empty = {"at": [], "cores": [], "memory": [], "read": [], "write": []}
    reply = await desk.ask(ALICE, op="usage", id=1)
    assert reply["usage"] == empty
    assert reply["demand"]["cores"] == 1
    assert "secret" not in str(reply)
    assert await desk.ask(ALICE, op="usage", user="bob") == {"usage": empty, "demand": None}
    for asked, code in (
        ({}, "bad-request"),
        ({"id": 1, "user": "bob"}, "bad-request"),
        ({"id": 9}, "no-such-job"),
    ):
        with pytest.raises(Refused) as caught:
            await desk.ask(ALICE, op="usage", **asked)
        assert caught.value.code == code
    await desk.submit(ALICE, array="5-9", held=True)
    with pytest.raises(Refused, match="name one of its tasks") as caught:
        await desk.ask(ALICE, op="usage", id=2)
    assert caught.value.hint == "for instance 2_5"
    assert (await desk.ask(ALICE, op="usage", id="2_7"))["usage"] == empty


# -- what of the disk and of the memory stays out of users' reach ------------------------------


#: More than any file system has.
ALL = 1 << 60
PLENTY = MemoryHeadroom("the machine", 10 * GIB, 16 * GIB)


def reserves(
    tmp_path: Path, *spare: MemoryHeadroom, mono: Callable[[], float] = lambda: 0.0, **limits: int
) -> Reserves:
    limits = {"reserve_disk_bytes": 0} | limits
    reserve = Reserve(tmp_path / "journal.reserve", most_bytes=0)
    return Reserves(
        reserve, lambda: UserLimits(**limits), mono=mono, memory=lambda: [PLENTY, *spare]
    )


def test_below_the_reserve_of_disk_users_submit_and_change_nothing(tmp_path: Path) -> None:
    """They could fill the disk under the journal, and other people's jobs were lost to it."""
    kept = reserves(tmp_path, reserve_disk_bytes=ALL)
    for refuse, what in (
        (kept.refuse_submission, "nothing is submitted now"),
        (kept.refuse_change, "nothing is changed now"),
    ):
        with pytest.raises(Refused) as caught:
            refuse(ALICE)
        assert (caught.value.code, caught.value.exit_code) == ("short-of-disk", 1)
        assert str(caught.value).startswith(f"{what}: the disk of {tmp_path} has ")
        assert "(delete files there; the administrator can lower reserve_disk" in str(caught.value)
        refuse(ADMIN)
    assert [each.code for each in kept.shortages()] == [DISK]
    assert kept.warnings() == [f"{kept.shortages()[0].text} ({kept.shortages()[0].cure})"]


@pytest.mark.parametrize(
    ("spare", "is_short"),
    [
        (MemoryHeadroom("the machine", 255 * MIB, 64 * GIB), True),
        (MemoryHeadroom("the machine", 256 * MIB, 64 * GIB), False),
        (MemoryHeadroom("the cgroup /x", 3 * MIB, 256 * MIB), True),
        (MemoryHeadroom("the cgroup /x", 4 * MIB, 256 * MIB), False),
    ],
)
def test_below_the_reserve_of_memory_users_submit_nothing(
    tmp_path: Path, spare: MemoryHeadroom, is_short: bool
) -> None:
    kept = reserves(tmp_path, spare)
    kept.refuse_change(ALICE)
    kept.refuse_submission(ADMIN)
    if not is_short:
        kept.refuse_submission(ALICE)
        return
    with pytest.raises(Refused) as caught:
        kept.refuse_submission(ALICE)
    assert (caught.value.code, caught.value.exit_code) == ("short-of-memory", 1)
    assert f"{spare.of} has " in str(caught.value)
    assert [each.code for each in kept.shortages()] == [MEMORY]


def test_it_looks_again_after_a_moment_and_not_at_each_request(tmp_path: Path) -> None:
    now_s, looks = [0.0], [0]

    def memory() -> list[MemoryHeadroom]:
        looks[0] += 1
        return [MemoryHeadroom("the machine", 0, GIB) if looks[0] == 1 else PLENTY]

    reserve = Reserve(tmp_path / "journal.reserve", most_bytes=0)
    kept = Reserves(
        reserve, lambda: UserLimits(reserve_disk_bytes=0), mono=lambda: now_s[0], memory=memory
    )
    for _ in range(1000):
        assert len(kept.shortages()) == 1
    assert looks == [1]
    now_s[0] += 1.0
    assert kept.shortages() == []


@pytest.mark.parametrize(
    ("total", "kept"),
    [
        (3 * MIB, 3 * MIB // 4), (100 * MIB, 25 * MIB), (GIB, 64 * MIB), (10 * GIB, 512 * MIB),
        (1000 * GIB, GIB),
    ],
)  # fmt: skip
def test_what_is_kept_of_a_disk_unless_configured(total: int, kept: int) -> None:
    assert default_reserve_disk(total) == kept


def test_a_reserve_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 1 << 40)
    reserve = Reserve(tmp_path / "journal.reserve", most_bytes=1 << 16)
    kept = Reserves(reserve, lambda: UserLimits(reserve_disk_bytes=0), memory=list)
    (line,) = kept.warnings()
    assert line.startswith(f"0 of 64K are left of {reserve.path}, the room for the ends of jobs")
    assert reserve.make()
    assert kept.warnings() == []
