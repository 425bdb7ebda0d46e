"""How the use of jobs went: from samples to what is shown, kept, and found again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from daemon.desk import Desk, MakeShell, Shell
from drfd.common.errors import Refused
from drfd.core.amounts.resources import Resources
from drfd.core.model.job import Job, JobState, Usage
from drfd.core.model.stimuli import Actor, AttemptRemoved, Now, SubmitAsked
from drfd.daemon.lookup.views import curve_view
from drfd.daemon.monitoring.meter import ENDED_POINTS, GPUS_STALE_S, Curves, GpuShare, Meter
from drfd.journal.journal import Journal
from fakes import BOB, attempt_started, demand, ended, now, of_gpus, spec

ALICE = Actor("alice", 1001, False)
MIB = 1 << 20


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


LENDING = spec(asks=demand(1), most=Resources(cores_milli=4000))


def lending(world: World, **changes: Any) -> Job:
    """A job that holds one core and may be lent three, and starts now."""
    return job(spec=LENDING, started_mono_s=world.clock().mono_s, **changes)


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
    assert curve_view(curve, LENDING.demand)["cores_lent"] == [None, 2.0, 0.0, 0.0]
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
    last = world.curves()
    last.resume([each])
    mono_s = world.clock().mono_s
    assert last.meter.finish(each, 3.0 * world.at_s, mono_s) == Usage(lent_us=36_000_000)


def test_what_another_attempt_was_lent_is_not_taken_for_its_own(world: World) -> None:
    before, each = world.curves(), lending(world)
    run(world, before, each, 5, cores=3.0)
    before.save(all_of_them=True)
    after = world.curves()
    after.resume([lending(world, attempt=2)])
    assert after.meter.usage(lending(world, attempt=2)) is None
    assert after.meter.lent_tally((1, 1)) is None


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


def test_an_end_is_kept_in_few_points_with_the_same_sums(
    world: World, make_shell: MakeShell
) -> None:
    shell = make_shell(clock=world.clock)
    curves = replace(world.curves(), journal=shell.journal)
    shell.engine.curve_of = curves.final_curve
    shell.engine.changes.listen(curves.job_changed)
    desk_job = submit_and_start(shell)
    run(world, curves, desk_job, 100)
    shell.turn(ended(1))
    assert shell.journal.curve(1) is None, "it is not over as yet"
    shell.turn(AttemptRemoved(now(), 1, 1))
    kept = shell.journal.curve(1)
    assert kept is not None and ENDED_POINTS // 2 < len(kept) <= ENDED_POINTS
    assert sum(kept.spans_ms) == 99 * 2000
    assert {each.cores_milli for each in kept.points()} == {1000}
    assert curves.of_job(shell.journal.job(1)) == kept
    assert curves._jobs == {}
    shell.host.take()


def test_of_a_very_short_job_nothing_is_kept(world: World) -> None:
    curves = world.curves()
    run(world, curves, job(), 2)
    assert curves.final_curve(job()) is None
    run(world, curves, job(), 1)
    assert curves.final_curve(job()) is not None


def submit_and_start(shell: Shell) -> Job:
    shell.turn(SubmitAsked(now(), spec(), False))
    shell.turn(attempt_started(1))
    found = shell.engine.ledger.jobs[1]
    assert isinstance(found, Job)
    return found


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
