"""What jobs and the machine use: measured, kept as curves, told from outside, reserved, lent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from drfd.common.errors import Refused
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.decisions.stimuli import Actor, Now, RemovedReport, SubmitAsked
from drfd.core.model.job import Job, JobSpec, JobState, Outcome, Usage
from drfd.core.model.resources import NOTHING, Axes, Resources
from drfd.daemon.config import UserLimits
from drfd.daemon.lookup.views import curve_view
from drfd.daemon.monitoring.lender import CORES, DISKS, Lender, Reading, read_counters, unlent_text
from drfd.daemon.monitoring.meter import (
    ENDED_POINTS,
    GPUS_STALE_S,
    Curves,
    ExternalUsage,
    GpuShare,
    Meter,
)
from drfd.daemon.monitoring.outside import OutsideUsers
from drfd.daemon.monitoring.reserves import DISK, MEMORY, Reserves, default_reserve_disk
from drfd.host import measurements
from drfd.host.disks import Disk
from drfd.host.measurements import CpuCounters, MachineUse, MemoryHeadroom
from drfd.journal import files
from drfd.journal.files import Reserve
from drfd.journal.journal import Journal
from drfd.launcher.protocol import QUOTA, SHARE, WEIGHT, Message
from drfd.linux.user_database import LocalAccounts
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    GIB,
    Bench,
    demand,
    ended,
    launched,
    now,
    of_gpus,
    replace,
    rules,
    spec,
)

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
def meter(tmp_path) -> Meter:
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


def test_use_comes_from_the_two_latest_samples(meter, tmp_path):
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
LENDING = structs.replace(
    JOB, spec=spec(asks=demand(1, 1), most=Resources(cores_milli=4000)), started_mono_s=990.0
)


def lent_us(meter: Meter, job: Job = LENDING) -> int | None:
    usage = meter.usage(job)
    return None if usage is None else usage.lent_us


def test_the_loan_of_a_job_without_any_sample_is_known_from_its_start_and_end(meter):
    """It was too short, or has run and ended while there was no daemon."""
    usage = meter.finish(LENDING, 30.0, 1000.0)
    assert usage == Usage(lent_us=20_000_000)
    meter.forget(KEY)
    assert meter.finish(LENDING, 30.0, None) is None
    undated = structs.replace(LENDING, started_mono_s=None)
    assert meter.finish(undated, 30.0, 1000.0) == Usage(lent_us=0)


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
    meter, runner_pid, gib, is_over
):
    job = structs.replace(JOB, cgroup=None, spec=spec(asks=demand(1, gib)))
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


def hello(mount: Path, read: str = "enforced") -> dict[str, Any]:
    return {"kind": "cgroup-v2", "mounts": {"cgroup2": str(mount)}, "controls": {"read": read}}


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


def test_disk_rates_that_the_kernel_is_not_given_are_judged(meter, tmp_path, monkeypatch):
    """An ordinary user has no io controller: memory is enforced, rates are measured."""
    job = structs.replace(JOB, spec=spec(asks=demand(1, 1, write=1_000_000)))
    monkeypatch.setattr(measurements.psutil, "Process", BusyWriter)
    write_unified(tmp_path, cpu_us=0, anon=1 << 40, peak=1 << 40)
    meter.configure(hello(tmp_path, "measured: the io controller is not given to us"))
    meter.watch(KEY, 99, "drfd/1.1")
    breaches = [meter.sample(job) for _ in range(16)]
    assert breaches[:-2] == [None] * 14, "only a rate over half a minute is a breach"
    assert breaches[-1] is not None
    assert breaches[-1][0] is Outcome.LIMIT_EXCEEDED
    assert "declared" in breaches[-1][1]
    found = meter.usage(job)
    assert found is not None
    assert (found.memory_bytes, found.cpu_s) == (1 << 40, 0.0), "these are the cgroup's"


def write_cpuset(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"cpuset.{name}").write_text(f"{text}\n")


def test_a_pinned_jobs_cpus_are_read_from_either_version(meter, tmp_path):
    """On version 1 its memory follows it, on version 2 it has memory nodes of its own."""
    write_cpuset(tmp_path / "drfd/1.1", cpus="0-3,8", mems="0", memory_migrate="1")
    assert meter.pinned_cpus(JOB) is None, "the launcher has no cpusets"
    meter.mounts = {"cpuset": str(tmp_path)}
    assert meter.pinned_cpus(JOB) == "0-3,8"
    meter.configure(hello(tmp_path))
    assert meter.pinned_cpus(JOB) == "0-3,8"
    for other in (
        structs.replace(JOB, state=JobState.SUSPENDED),
        structs.replace(JOB, cgroup=None),
    ):
        assert meter.pinned_cpus(other) is None
    assert meter.pinned_cpus(structs.replace(JOB, cgroup="drfd/2.1")) is None, "it is over"


# -- who uses most outside ---------------------------------------------------------------------


def process(proc: Path, pid: int, program: str, ticks: int, pages: int, cgroup: str = "/") -> None:
    """A process of this user, in a directory like /proc."""
    place = proc / str(pid)
    place.mkdir(exist_ok=True)
    words = ["S", *"0" * 10, str(ticks), "0", "0", "0", "20", "0", "1", "0", "77", "0", str(pages)]
    (place / "stat").write_text(f"{pid} ({program}) {' '.join(words)}")
    (place / "cgroup").write_text(f"5:cpu:{cgroup}\n0::/\n")


def test_who_uses_most_outside_is_known_from_two_looks(tmp_path):
    mono = [100.0]
    meter = Meter(lambda: mono[0])
    meter.watch(KEY, 1, "drfd/x/job-1-1")
    users = OutsideUsers(meter, tmp_path)
    hz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for at_s in (0, 2):
        mono[0] = 100.0 + at_s
        process(tmp_path, 10, "a) (\x1b", 500 + at_s * hz, 3)
        process(tmp_path, 11, "make", at_s * hz // 2, 5)
        process(tmp_path, 12, "make", 0, 2)
        process(tmp_path, 13, "own", at_s * hz, 9, "/drfd/x/job-1-1/deeper")
        found = users.read()
        assert at_s or found == ()
    me = LocalAccounts().name_of(os.getuid()) or f"uid {os.getuid()}"
    assert sorted(found) == [
        (me, "a) (?", Resources(cores_milli=1000, memory_bytes=3 * page)),
        (me, "make", Resources(cores_milli=500, memory_bytes=7 * page)),
    ]
    process(tmp_path, 14, "new", 9 * hz, 0)
    assert users.read() == found, "not looked again so soon"


# -- use from outside: that of the machine, less what drfd and its jobs use --------------------


MIB = 1 << 20


@pytest.fixture
def watching(tmp_path) -> Meter:
    """Over plain files, watching one job."""
    watching = Meter(time.monotonic, mounts={"cpuacct": str(tmp_path), "memory": str(tmp_path)})
    watching.watch(KEY, 1, JOB.cgroup)
    return watching


def used(mono_s: float, cpu_s: float, memory_bytes: int = 0, *, niced_s: float = 0.0) -> MachineUse:
    return MachineUse(mono_s=mono_s, cpu_s=cpu_s, memory_bytes=memory_bytes, niced_s=niced_s)


def update(external: ExternalUsage, now: MachineUse) -> Resources | None:
    return external.update(now, now)


def test_a_niced_job_hides_no_load_from_outside_and_niced_programs_are_none(
    watching, tmp_path, monkeypatch
):
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


def test_the_time_of_jobs_gone_between_two_looks_is_theirs(watching, tmp_path):
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
class Machine:
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
def machine(tmp_path) -> Iterator[Machine]:
    journal = Journal(tmp_path / "curves.sqlite")
    yield Machine(tmp_path / "cgroup", journal)
    journal.close()


def job(job_id: int = 1, attempt: int = 1, **changes: Any) -> Job:
    return Job(
        id=job_id, spec=changes.pop("spec", spec()), state=JobState.RUNNING, attempt=attempt,
        submitted_at=0.0, cgroup=f"drfd/{job_id}.{attempt}", **changes,
    )  # fmt: skip


def run(machine: Machine, curves: Curves, each: Job, rounds: int, *, cores: float = 1.0) -> None:
    for _ in range(rounds):
        machine.use(
            each, cpu_s=cores * (machine.at_s + 2), memory_mib=3, read=round(machine.at_s) * 1024
        )
        machine.sample(curves, each)


def test_points_are_means_of_the_time_between_two_samples_in_unix_time(machine):
    curves = machine.curves()
    run(machine, curves, job(), 3, cores=0.5)
    curve = curves.of_job(job())
    assert curve is not None
    begin_ms = round(now().at_s * 1000)
    points = list(curve.points())
    assert [each.end_ms - begin_ms for each in points] == [2000, 4000, 6000]
    assert [each.mean("cores_milli") for each in points] == [None, 500, 500]
    assert [each.mean("memory_bytes") for each in points] == [3 * MIB] * 3
    assert [each.mean("read_bps") for each in points] == [None, 1024, 1024]
    # What cannot be read is not known, and not zero.
    assert [each.mean("write_bps") for each in points] == [None, 0, 0]
    last = curves.last(job())
    assert last is not None and last.mean("cores_milli") == 500


def on_gpus(machine: Machine, curves: Curves, each: Job, *readings: GpuShare | None) -> None:
    """A round of samples for each reading of its GPUs; with None, the meter of GPUs is silent."""
    for reading in readings:
        curves.meter.watch((each.id, each.attempt), 1, each.cgroup)
        if reading is None:
            machine.at_s += GPUS_STALE_S
        else:
            curves.meter.note_gpus((each.id, each.attempt), reading, machine.clock().mono_s)
        run(machine, curves, each, 1)


def test_a_curve_has_gpus_of_a_job_that_asks_for_some_or_is_seen_on_one(machine):
    curves = machine.curves()
    with_gpu, plain = job(1, spec=of_gpus(1)), job(2)
    run(machine, curves, with_gpu, 1)
    on_gpus(machine, curves, plain, GpuShare(0, 0))
    for each, shown in ((with_gpu, [None]), (plain, None)):
        curve = curves.of_job(each)
        assert curve is not None
        view = curve_view(curve, each.spec.demand)
        assert (view.get("gpu_memory"), view.get("gpu_utilisation")) == (shown, shown)


def test_a_users_jobs_add_up_and_an_idle_user_is_forgotten_later(machine):
    curves = machine.curves()
    one, other, bobs = job(1), job(2), job(3, spec=spec("root.bob", actor=BOB))
    for _ in range(3):
        for each, cores in ((one, 1.0), (other, 0.25), (bobs, 4.0)):
            machine.use(each, cpu_s=cores * (machine.at_s + 2), memory_mib=2)
        machine.sample(curves, one, other, bobs)
    curve = curves.of_user("alice")
    assert curve is not None
    assert curve.columns["cores_milli"] == (None, 1250, 1250)
    assert curve.columns["memory_kib"] == (4096, 4096, 4096)
    machine.sample(curves, bobs)
    curve = curves.of_user("alice")
    assert curve is not None and (
        curve.columns["cores_milli"][-1],
        curve.columns["memory_kib"][-1],
    ) == (0, 0)
    machine.at_s += 3700
    machine.sample(curves, bobs)
    assert curves.of_user("alice") is None
    assert curves.of_user("bob") is not None
    assert curves.of_user("nobody") is None


@pytest.mark.slow
def test_a_restart_goes_on_with_the_peak_and_the_mean_of_gpus(machine):
    """They are saved every five minutes."""
    before = machine.curves()
    on_gpus(machine, before, job(), GpuShare(5 * MIB, 90))
    before.save()
    assert machine.journal.curve(1) is None, "it was just begun"
    before.meter.note_gpu((1, 1), "0", 4 * MIB, None)
    on_gpus(machine, before, job(), *[GpuShare(3 * MIB, 50)] * 150)
    before.save()
    on_gpus(machine, before, job(), *[GpuShare(3 * MIB, 0)] * 100)
    before.save()
    after = machine.curves()
    after.resume([job()])
    known = after.meter.usage(job())
    assert known is not None, "before anything was sampled"
    assert (known.gpu_memory_peak_bytes, known.gpu_memory_single_peak_bytes) == (5 * MIB, 4 * MIB)
    assert known.gpu_mean_percent == (90 + 150 * 50) // 151
    # The attempt may have ended while there was no daemon.
    assert after.meter.finish(job(), 1.0) == known
    on_gpus(machine, after, job(), GpuShare(MIB, 10))
    usage = after.meter.usage(job())
    assert usage is not None
    assert (usage.gpu_memory_peak_bytes, usage.gpu_memory_bytes) == (5 * MIB, MIB)
    assert usage.gpu_mean_percent == (90 + 150 * 50 + 10) // 152
    assert usage.memory_bytes == 3 * MIB
    after.meter.forget((1, 1))
    assert after.meter.usage(job()) is None


RANGED = spec(asks=demand(1), most=Resources(cores_milli=4000))


def lending(machine: Machine, **changes: Any) -> Job:
    """A job that holds one core and may be lent three, and starts now."""
    return job(spec=RANGED, started_mono_s=machine.clock().mono_s, **changes)


def test_points_have_what_was_lent_of_the_cores_for_jobs_with_a_range(machine):
    curves, each, plain = machine.curves(), lending(machine), job(2)
    for cpu_s in (2, 8, 9, 11):
        machine.use(each, cpu_s=cpu_s)
        machine.use(plain, cpu_s=cpu_s)
        machine.sample(curves, each, plain)
    curve, users = curves.of_job(each), curves.of_user("alice")
    assert curve is not None and users is not None
    assert curve.columns["cores_milli"] == (None, 3000, 500, 1000)
    assert curve.columns["lent_milli"] == (None, 2000, 0, 0)
    assert curve_view(curve, RANGED.demand)["cores_lent"] == [None, 2.0, 0.0, 0.0]
    assert users.columns["lent_milli"] == (None, 2000, 0, 0)
    single = curves.of_job(plain)
    assert single is not None and "cores_lent" not in curve_view(single, plain.spec.demand)


def test_a_restart_goes_on_with_what_was_lent_and_came_meanwhile(machine):
    """The journal has what was saved before; what came later is known as a whole."""
    before, each = machine.curves(), lending(machine)
    run(machine, before, each, 5, cores=3.0)
    before.save(all_of_them=True)
    run(machine, before, each, 2, cores=3.0)
    after = machine.curves()
    after.resume([each])
    known = after.meter.usage(each)
    assert known is not None and known.lent_us == 20_000_000, "before anything was sampled"
    run(machine, after, each, 2, cores=3.0)
    usage = after.meter.usage(each)
    assert usage is not None and usage.lent_us == 36_000_000
    # It ends while there is no daemon, and nothing was saved since.
    other = lending(machine, attempt=2)
    last = machine.curves()
    last.resume([other])
    assert last.meter.usage(other) is None, "what another attempt was lent is not its own"
    last = machine.curves()
    last.resume([each])
    mono_s = machine.clock().mono_s
    assert last.meter.finish(each, 3.0 * machine.at_s, mono_s) == Usage(lent_us=36_000_000)


def test_running_jobs_are_saved_now_and_then_some_at_a_time(machine):
    curves = machine.curves()
    jobs = [job(each) for each in range(1, 21)]
    for _ in range(2):
        for each in jobs:
            machine.use(each, cpu_s=machine.at_s)
        machine.sample(curves, *jobs)
    curves.save()
    assert machine.journal.curve(1) is None, "it was just begun"
    machine.at_s += 301
    saved = []
    for _ in range(4):
        curves.save()
        saved.append(sum(machine.journal.curve(each.id) is not None for each in jobs))
    assert saved == [8, 16, 20, 20]


@pytest.mark.slow
def test_an_end_is_kept_in_few_points_with_the_same_sums(machine, make_shell):
    shell = make_shell(clock=machine.clock)
    curves = replace(machine.curves(), journal=shell.journal)
    shell.engine.curve_of = curves.final_curve
    shell.engine.listeners.append(curves.job_changed)
    shell.turn(SubmitAsked(now(), spec(), False))
    shell.turn(launched(1))
    desk_job = shell.engine.ledger.jobs[1]
    run(machine, curves, desk_job, 100)
    shell.turn(ended(1))
    assert shell.journal.curve(1) is None, "it is not over as yet"
    shell.turn(RemovedReport(now().at_s, 1, 1))
    kept = shell.journal.curve(1)
    assert kept is not None and ENDED_POINTS // 2 < len(kept) <= ENDED_POINTS
    assert sum(kept.spans_ms) == 99 * 2000
    assert {each.mean("cores_milli") for each in kept.points()} == {1000}
    run(machine, curves, job(2), 2)
    assert curves.final_curve(job(2)) is None, "of a very short job nothing is kept"
    run(machine, curves, job(2), 1)
    assert curves.final_curve(job(2)) is not None
    assert curves.of_job(shell.journal.job(1)) == kept
    shell.host.take()


async def test_anybody_may_ask_for_the_use_of_a_job_or_a_user(desk):
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


def test_below_the_reserve_of_disk_users_submit_and_change_nothing(tmp_path):
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
def test_below_the_reserve_of_memory_users_submit_nothing(tmp_path, spare, is_short):
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


@pytest.mark.parametrize(
    ("total", "kept"),
    [
        (3 * MIB, 3 * MIB // 4), (100 * MIB, 25 * MIB), (GIB, 64 * MIB), (10 * GIB, 512 * MIB),
        (1000 * GIB, GIB),
    ],
)  # fmt: skip
def test_what_is_kept_of_a_disk_unless_configured(total, kept):
    assert default_reserve_disk(total) == kept


def test_a_reserve_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_bytes", lambda path: 1 << 40)
    reserve = Reserve(tmp_path / "journal.reserve", most_bytes=1 << 16)
    kept = Reserves(reserve, lambda: UserLimits(reserve_disk_bytes=0), memory=list)
    (line,) = kept.warnings()
    assert line.startswith(f"0 of 64K are left of {reserve.path}, the room for the ends of jobs")
    assert reserve.make()
    assert kept.warnings() == []


# -- cores lent: from counters to orders, second by second -------------------------------------


def actor(leaf: str) -> st.Actor:
    return ALICE if leaf == "root.alice" else BOB


@dataclass
class World:
    """Running jobs of which each second is told what they have used."""

    bench: Bench = field(default_factory=Bench)
    kinds: frozenset[str] = frozenset({CORES})
    disks: tuple[Disk, ...] = ()
    is_connected: bool = True
    #: Attempts that can be lent nothing.
    fixed: set[AttemptKey] = field(default_factory=set)
    sent: list[tuple[int, int, Resources]] = field(default_factory=list)
    mono_s: float = 100.0
    busy_s: float = 0.0
    outside: float = 0.0
    counters: dict[AttemptKey, CpuCounters] = field(default_factory=dict)
    moved: dict[AttemptKey, dict[str, tuple[int, int]]] = field(default_factory=dict)
    lender: Lender = field(init=False)

    def __post_init__(self) -> None:
        # Only the ledger and the rules are asked for.
        engine: Any = SimpleNamespace(ledger=self.bench.ledger, rules=self.bench.rules)
        self.lender = Lender(
            engine, Meter(lambda: self.mono_s), lambda: self._send if self.is_connected else None,
            lambda: self.kinds, lambda key, kind: key not in self.fixed, lambda: self.disks,
            lambda: self.outside,
        )  # fmt: skip

    def _send(self, key: AttemptKey, cores_milli: int, rates: Resources) -> None:
        self.sent.append((key[0], cores_milli, rates))

    def start(
        self, floor: int, most: int = 0, *, leaf: str = "root.alice", read: tuple[int, int] = (0, 0)
    ) -> Job:
        """A job with a range of cores, and one of reads in MiB per second; 0 is none."""
        asks = replace(demand(floor, 1), read_bps=read[0] * MIB)
        ends = Resources(cores_milli=most * 1000, read_bps=read[1] * MIB)
        asked = replace(spec(leaf, asks=asks, actor=actor(leaf)), most=ends)
        return self.begin(asked if most or read[1] else replace(asked, most=None))

    def begin(self, asked: JobSpec) -> Job:
        job = self.bench.job(self.bench.start(asked))
        self.counters[job.id, 1] = CpuCounters(0.0, 0)
        return job

    def step(self) -> list[tuple[int, int, Resources]]:
        """Return what a step sends that measures nothing."""
        self.sent.clear()
        asyncio.run(self.lender.step())
        return self.sent

    def _pass(self) -> list[tuple[int, int, Resources]]:
        """Let a second pass. Returns what was sent."""
        self.mono_s += 1
        self.sent.clear()
        reading = Reading(
            self.mono_s, dict(self.counters), self.busy_s, 9,
            {key: dict(self.moved.get(key, {})) for key in self.lender.watched()},
        )  # fmt: skip
        self.lender.take(reading, self._send)
        return self.sent

    def second(self, *use: tuple[Job, float, bool], outside: float = 0.0) -> dict[int, int]:
        """Let a second pass with this use, by job: cores, and whether its ceiling has held it back.
        Returns the ceilings that were sent."""
        self.outside = outside
        self.busy_s += outside + sum(cores for _, cores, _ in use)
        for job, cores, throttled in use:
            before = self.counters[job.id, 1]
            self.counters[job.id, 1] = CpuCounters(
                before.cpu_s + cores, before.throttled + throttled
            )
        return {job_id: milli for job_id, milli, _ in self._pass()}

    def reads(self, *use: tuple[Job, float]) -> list[tuple[int, float]]:
        """Let a second pass with these reads, in MiB. Returns the rates of reads that were sent."""
        for job, mib in use:
            each = self.moved.setdefault((job.id, job.attempt), {})
            each["8:0"] = each.get("8:0", (0, 0))[0] + int(mib * MIB), 0
        return [(job_id, rates.read_bps / MIB) for job_id, _, rates in self._pass()]

    def ceiling(self, job: Job) -> float:
        """The only one of the job: in thousandths of cores, or in MiB per second."""
        (loan,) = self.lender.of(self.bench.job(job.id))
        return loan.ceiling if loan.axis == CORES else loan.ceiling / MIB


@pytest.fixture
def world() -> World:
    return World()


def test_programs_outside_come_before_loans():
    world = World(Bench(replace(rules(), beside=Resources(cores_milli=1000))))
    job = world.start(2, 9)
    for _ in range(5):
        world.second((job, 3, True), outside=6)
    assert 2000 < world.ceiling(job) < 3000


def test_loans_are_taken_back_when_nothing_is_lent_any_more(world):
    job, quiet = world.start(2, 8), world.start(1)
    world.step()
    for _ in range(3):
        world.second((job, 2, True), (quiet, 0, False))
    world.kinds = frozenset()
    assert world.step() == [(job.id, 2000, NOTHING)]
    assert world.lender.of(job) == world.step() == []


@pytest.mark.parametrize("kinds", [frozenset({CORES}), frozenset[str]()])
def test_a_new_launcher_or_controller_orders_all_that_run_what_they_may_use(kinds):
    """What the kernel has is not known: an earlier controller may have lent them something."""
    world = World(kinds=kinds)
    jobs = [world.start(2, 8), world.start(1, leaf="root.bob"), world.start(1, 8)]
    world.fixed.add((world.start(1, 8).id, 1))
    world.bench.feed(st.SuspendAsked(now(), jobs[2].id, ALICE))
    world.bench.feed(st.FrozenReport(now().at_s, jobs[2].id, 1, mono_s=now().mono_s))
    sent = {job_id: milli for job_id, milli, _ in world.step()}
    assert sent == {job.id: job.spec.demand.cores_milli for job in jobs}
    assert world.step() == []


def test_while_no_order_reaches_the_launcher_all_stays(world):
    job = world.start(2, 8)
    for _ in range(3):
        world.second((job, 2, True))
    world.is_connected, world.kinds = False, frozenset()
    assert world.step() == [] and world.ceiling(job) == 8000


def test_counters_and_bytes_are_read_of_both_versions_of_cgroups(tmp_path):
    job = tmp_path / "drfd/1.1"
    job.mkdir(parents=True)
    (job / "cpu.stat").write_text("usage_usec 2500000\nnr_periods 9\nnr_throttled 4\n")
    (job / "cpuacct.usage").write_text("1500000000\n")
    (job / "io.stat").write_text("8:0 rbytes=5 wbytes=6 rios=1\n")
    (job / "blkio.throttle.io_service_bytes").write_text("8:0 Read 7\n8:0 Write 8\nTotal 15\n")
    watched, here = {(1, 1): "drfd/1.1", (2, 1): "drfd/2.1"}, str(tmp_path)
    second = read_counters({"cgroup2": here}, watched)
    assert second.attempts == {(1, 1): CpuCounters(2.5, 4)}
    first = read_counters({"cpu": here, "cpuacct": here}, watched)
    assert first.attempts == {(1, 1): CpuCounters(1.5, 4)}
    assert first.busy_s > 0 < first.cpus
    assert read_counters({"cgroup2": here}, {}, watched).moved == {(1, 1): {"8:0": (5, 6)}}
    assert read_counters({"blkio": here}, {}, watched).moved == {(1, 1): {"8:0": (7, 8)}}


# -- disk rates --------------------------------------------------------------------------------


DATA, SCRATCH = (
    Disk(name=name, path=f"/{name}", read_bps=100 * MIB, write_bps=100 * MIB, devices=(device,))
    for name, device in (("data", "8:0"), ("scratch", "8:16"))
)
ONE = replace(
    rules(), capacity=demand(9, 18, read=100 * MIB, write=100 * MIB), axes=Axes(disks=("data",))
)
TWO = replace(
    rules(),
    capacity=replace(
        demand(9, 18), disks=(("data", 100 * MIB, 100 * MIB), ("scratch", 100 * MIB, 100 * MIB))
    ),
    axes=Axes(disks=("data", "scratch")),
)


@pytest.fixture
def io() -> World:
    return World(Bench(ONE), frozenset({DISKS}), (DATA,))


def test_who_gives_back_is_told_before_who_is_lent_more(io):
    mine = io.start(1, read=(10, 90))
    for mib in (10, 10, 20, 40, 80):
        io.reads((mine, mib))
    assert io.ceiling(mine) == 90
    other = io.start(1, read=(10, 90), leaf="root.bob")
    assert io.reads((mine, 90)) == [(mine.id, 80)], "its floor is counted at once"
    assert io.reads((mine, 80), (other, 10)) == [(mine.id, 45), (other.id, 20)]
    loans = [io.lender.of(job)[0] for job in (mine, other)]
    assert [(loan.is_hungry, loan.rivals.everybody) for loan in loans] == [
        (True, ("bob",)),
        (True, ("alice",)),
    ]
    io.bench.feed(ended(mine.id))
    assert [job_id for job_id, _ in io.reads((other, 20))] == [other.id]
    assert io.lender.of(io.bench.job(mine.id)) == []


def test_two_disks_on_one_device_share_what_was_measured_there():
    disks = DATA, replace(SCRATCH, devices=DATA.devices)
    io = World(Bench(TWO), frozenset({DISKS}), disks)
    asks = replace(demand(1, 1), disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 0)))
    most = Resources(disks=(("data", 90 * MIB, 0),))
    job = io.begin(replace(spec(asks=asks), most=most))
    io.reads((job, 0))
    io.reads((job, 0))
    assert io.ceiling(job) == 20
    # Forty are allowed in all: thirty are three quarters, of which nobody is held back.
    io.reads((job, 30))
    assert not io.lender.of(job)[0].is_hungry


# -- what is lent here, by the configuration and by what the launcher says ---------------------


ALL_OF_IT: Message = {"lendable": ["cores", "disks"]}
SOME: Message = {"lendable": ["cores"]}
NONE: Message = {"lendable": []}
RANGE = spec(asks=demand(2, read=10), most=Resources(cores_milli=8000, read_bps=20))


@pytest.mark.parametrize(
    ("hello", "mode", "text"),
    [
        ({}, SHARE, None),
        (ALL_OF_IT, SHARE, None),
        (SOME, SHARE,
         "no disk rates are lent here (the kernel gives no way); the job has the lower end"),
        (NONE, SHARE,
         "no cores or disk rates are lent here (the kernel gives no way); the job has the lower "
         "end"),
        (ALL_OF_IT, QUOTA,
         "no cores are lent here (enforcement.cores is quota); the job has the lower end"),
        (NONE, QUOTA,
         "no cores are lent here (enforcement.cores is quota), and no disk rates (the kernel gives "
         "no way); the job has the lower end"),
        ({}, QUOTA,
         "no cores are lent here (enforcement.cores is quota); the job has the lower end"),
        (ALL_OF_IT, WEIGHT,
         "no cores are lent here (enforcement.cores is weight); the job has the lower end, and of "
         "cores what others leave idle"),
    ],
)  # fmt: skip
def test_an_owner_is_told_what_of_a_range_does_not_count(hello, mode, text):
    assert unlent_text(RANGE, hello, mode) == text
    assert unlent_text(spec(asks=demand(2)), hello, mode) is None


def test_of_a_disk_whose_rates_cannot_be_limited_nothing_is_lent():
    """Another one of the machine may take limits."""
    fast, slow = (
        Disk(name=name, path=f"/{name}", read_bps=100, write_bps=100, devices=devices, why_none=why)
        for name, devices, why in (("data", ("8:0",), ""), ("net", (), "/net is on nfs, elsewhere"))
    )
    asks = replace(demand(2), disks=(("data", 10, 10), ("net", 10, 10)))
    for disk, text in (
        ("data", None),
        ("net", "no disk rates are lent here (/net is on nfs, elsewhere); the job has the lower "
         "end"),
    ):  # fmt: skip
        ranged = spec(asks=asks, most=Resources(disks=((disk, 20, 0),)))
        assert unlent_text(ranged, ALL_OF_IT, QUOTA, (fast, slow)) == text
