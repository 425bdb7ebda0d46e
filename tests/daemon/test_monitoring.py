"""What jobs and the machine use: measured, kept as curves, told from outside, reserved."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from daemon.fake_launcher import GREETING
from drfd.common.errors import Refused
from drfd.core.decisions.stimuli import Actor, Now, RemovedReport, SubmitAsked
from drfd.core.model.job import Job, JobState, Outcome, Usage
from drfd.core.model.resources import Resources
from drfd.core.usage import Curve
from drfd.daemon.config import UserLimits
from drfd.daemon.lookup.views import curve_view
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
from drfd.host.measurements import MachineUse, MemoryHeadroom
from drfd.journal import files
from drfd.journal.files import Reserve
from drfd.journal.journal import Journal
from drfd.launcher.protocol import Hello
from drfd.linux.user_database import LocalAccounts
from fakes import (
    ADMIN,
    ALICE,
    GIB,
    demand,
    ended,
    launched,
    now,
    of_gpus,
    replace,
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


def test_the_cgroups_of_an_ended_attempt_are_not_looked_at(meter, tmp_path):
    """They are being removed: who looks waits for that, and here everybody would."""
    meter.watch(KEY, 99, "drfd/1.1")
    write(tmp_path, 10**9, 50, 700)
    meter.sample(JOB)
    write(tmp_path, 9 * 10**9, 90, 900)
    usage = meter.finish(JOB, 2.0)
    assert usage is not None and usage.memory_peak_bytes == 700


#: Holds a core and may use three more; started at 990 on the meter's clock.
RANGED_JOB = structs.replace(
    JOB, spec=spec(asks=demand(1, 1), cores_max_milli=4000), started_mono_s=990.0
)


def beyond_us(meter: Meter, job: Job = RANGED_JOB) -> int | None:
    usage = meter.usage(job)
    return None if usage is None else usage.beyond_us


def test_the_use_beyond_the_floor_of_a_job_without_any_sample_is_known_from_its_start_and_end(
    meter,
):
    """It was too short, or has run and ended while there was no daemon."""
    usage = meter.finish(RANGED_JOB, 30.0, 1000.0)
    assert usage == Usage(beyond_us=20_000_000)
    meter.forget(KEY)
    assert meter.finish(RANGED_JOB, 30.0, None) is None
    undated = structs.replace(RANGED_JOB, started_mono_s=None)
    assert meter.finish(undated, 30.0, 1000.0) == Usage(beyond_us=0)


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


def hello(mount: Path, read: str = "enforced") -> Hello:
    return replace(GREETING, mounts={"cgroup2": str(mount)}, controls={"read": read})


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
        # Its cgroup is being removed.
        structs.replace(JOB, state=JobState.CLEANING),
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
    points = curve.points
    assert [each.end_ms - begin_ms for each in points] == [2000, 4000, 6000]
    assert [each.mean("cores_milli") for each in points] == [None, 500, 500]
    assert [each.mean("memory_bytes") for each in points] == [3 * MIB] * 3
    assert [each.mean("read_bps") for each in points] == [None, 1024, 1024]
    # What cannot be read is not known, and not zero.
    assert [each.mean("write_bps") for each in points] == [None, 0, 0]
    last = curves.last(job())
    assert last is not None and last.mean("cores_milli") == 500


def means(curve: Curve, name: str) -> list[int | None]:
    return [each.mean(name) for each in curve.points]


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


RANGED = spec(asks=demand(1), cores_max_milli=4000)


def ranged(machine: Machine, **changes: Any) -> Job:
    """A job that holds one core and may use three more, and starts now."""
    return job(spec=RANGED, started_mono_s=machine.clock().mono_s, **changes)


def test_points_have_what_was_used_beyond_the_lower_end_of_a_range(machine):
    curves, each, plain = machine.curves(), ranged(machine), job(2)
    for cpu_s in (2, 8, 9, 11):
        machine.use(each, cpu_s=cpu_s)
        machine.use(plain, cpu_s=cpu_s)
        machine.sample(curves, each, plain)
    curve = curves.of_job(each)
    assert curve is not None
    assert means(curve, "cores_milli") == [None, 3000, 500, 1000]
    assert means(curve, "beyond_milli") == [None, 2000, 0, 0]
    assert curve_view(curve, RANGED.demand)["cores_beyond"] == [None, 2.0, 0.0, 0.0]
    single = curves.of_job(plain)
    assert single is not None and "cores_beyond" not in curve_view(single, plain.spec.demand)


def test_a_restart_goes_on_with_what_was_lent_and_came_meanwhile(machine):
    """The journal has what was saved before; what came later is known as a whole."""
    before, each = machine.curves(), ranged(machine)
    run(machine, before, each, 5, cores=3.0)
    before.save(all_of_them=True)
    run(machine, before, each, 2, cores=3.0)
    after = machine.curves()
    after.resume([each])
    known = after.meter.usage(each)
    assert known is not None and known.beyond_us == 20_000_000, "before anything was sampled"
    run(machine, after, each, 2, cores=3.0)
    usage = after.meter.usage(each)
    assert usage is not None and usage.beyond_us == 36_000_000
    # It ends while there is no daemon, and nothing was saved since.
    other = ranged(machine, attempt=2)
    last = machine.curves()
    last.resume([other])
    assert last.meter.usage(other) is None, "what another attempt used is not its own"
    last = machine.curves()
    last.resume([each])
    mono_s = machine.clock().mono_s
    assert last.meter.finish(each, 3.0 * machine.at_s, mono_s) == Usage(beyond_us=36_000_000)


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
    assert kept is not None and ENDED_POINTS // 2 < len(kept.points) <= ENDED_POINTS
    assert sum(each.span_ms for each in kept.points) == 99 * 2000
    assert {*means(kept, "cores_milli")} == {1000}
    run(machine, curves, job(2), 2)
    assert curves.final_curve(job(2)) is None, "of a very short job nothing is kept"
    run(machine, curves, job(2), 1)
    assert curves.final_curve(job(2)) is not None
    assert curves.of_job(shell.journal.job(1)) == kept
    shell.host.take()


async def test_anybody_may_ask_for_the_use_of_a_job(desk):
    await desk.submit(Actor("bob", 1002, False), argv=["secret"], cwd="/secret", name="plain")
    empty = {"at": [], "cores": [], "memory": [], "read": [], "write": []}
    reply = await desk.ask(ALICE, op="usage", id=1)
    assert reply["usage"] == empty
    assert reply["demand"]["cores"] == 1
    assert "secret" not in str(reply)
    with pytest.raises(Refused) as caught:
        await desk.ask(ALICE, op="usage", id=9)
    assert caught.value.code == "no-such-job"
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
    for is_submission, what in (
        (True, "nothing is submitted now"),
        (False, "nothing is changed now"),
    ):
        with pytest.raises(Refused) as caught:
            kept.refuse(ALICE, is_submission=is_submission)
        assert (caught.value.code, caught.value.exit_code) == ("short-of-disk", 1)
        assert str(caught.value).startswith(f"{what}: the disk of {tmp_path} has ")
        assert "where the journal is; the administrator can lower reserve_disk" in str(caught.value)
        kept.refuse(ADMIN, is_submission=is_submission)
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
    kept.refuse(ALICE, is_submission=False)
    kept.refuse(ADMIN, is_submission=True)
    if not is_short:
        kept.refuse(ALICE, is_submission=True)
        return
    with pytest.raises(Refused) as caught:
        kept.refuse(ALICE, is_submission=True)
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
