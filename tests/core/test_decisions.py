"""Decisions: what users may ask for, which events follow from reports, and how an attempt ends."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from core.worlds import change, of, refused
from drfd.common.errors import NotPermitted, Refused
from drfd.common.owner import Owner
from drfd.common.units import parse_memory, parse_size
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.outcome import (
    IO_FACTOR,
    IO_WINDOW_S,
    GpuMemory,
    Sample,
    deadline_mono_s,
    judge_end,
    judge_gpu_memory,
    judge_samples,
    suggest_memory,
    timeout_text,
)
from drfd.core.decisions.reconciliation import leftovers, missing_attempts
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.postponed import MOST_PAUSE_S, next_try
from drfd.core.model import events as ev
from drfd.core.model.effects import RemoveAttempt, SendSignals, signals_owed
from drfd.core.model.job import (
    RETRIED_BY_DEFAULT,
    Dependency,
    Job,
    JobState,
    Outcome,
    Postponed,
    Retry,
    Stop,
    Usage,
    Warn,
    Whose,
)
from drfd.core.model.options import Demand, Rates
from drfd.core.model.resources import Axes, Resources
from drfd.core.scheduling.waits import MachineShort, Wait
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    GIB,
    Bench,
    demand,
    ended,
    happened,
    launched,
    ledger_at,
    now,
    of_gpus,
    replace,
    rules,
    schedule,
    spec,
    with_gpus,
)
from seeds import examples

S = JobState
MIB = 1 << 20


# -- submit ----------------------------------------------------------------------------------------


def test_a_misspelt_resource_is_refused_with_what_there_is():
    asked = spec(asks=replace(demand(), gres=(("gpus", 1),)))
    refusal = refused(Bench(with_gpus(2)), st.SubmitAsked(now(), asked))
    assert str(refusal) == "this machine has no resource 'gpus' (it has 2 gpu)"


def test_memory_of_what_nobody_measures_is_refused():
    axes = Axes(gres=("license",), instances=(("license", ("a", "b")),))
    plain = with_gpus(0)
    there = replace(plain, axes=axes, capacity=replace(plain.capacity, gres=(("license", 2),)))
    asks = replace(demand(), gres=(("license", 1),), gres_memory=(("license", 1 << 30),))
    refusal = refused(Bench(there), st.SubmitAsked(now(), spec(asks=asks)))
    assert (refusal.code, refusal.hint) == ("bad-value", "leave out memory= after license")


# -- hold and release ------------------------------------------------------------------------------


def test_what_an_administrator_holds_only_an_administrator_releases(bench):
    bench.submit()
    bench.feed(st.HoldAsked(now(), 1, ADMIN))
    refusal = refused(bench, st.ReleaseAsked(now(), 1, ALICE))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, str(refusal)) == ("held-by-admin", "job 1 is held by root")
    assert bench.feed(st.ReleaseAsked(now(), 1, replace(ADMIN, user="carol"))) != []


def test_an_administrators_hold_binds_an_owner_who_had_held_the_job_himself(bench):
    """Else the owner's own earlier hold would be a way around the administrator's."""
    bench.submit(held=True)
    bench.feed(st.HoldAsked(now(1), 1, ADMIN))
    assert refused(bench, st.ReleaseAsked(now(2), 1, ALICE)).code == "held-by-admin"


# -- requeue ---------------------------------------------------------------------------------------


def attempt_gone(bench: Bench, job_id: int) -> list[ev.Event]:
    return bench.feed(st.RemovedReport(now(9).at_s, job_id, bench.job(job_id).attempt))


def is_timed_out(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    bench.feed(
        st.Breached(
            now(5).at_s,
            1,
            1,
            mono_s=now(5).mono_s,
            outcome=Outcome.TIMEOUT,
            text="ran for its whole time limit",
        )
    )


@pytest.mark.parametrize(
    "reach",
    [
        *(lambda bench, state=state: bench.bring(state)
          for state in (S.STARTING, S.RUNNING, S.SUSPENDED, S.CLEANING)),
        is_timed_out,
    ],
)  # fmt: skip
@pytest.mark.parametrize("held", [False, True])
def test_a_requeued_job_keeps_its_id_and_what_waits_for_it_goes_on_waiting(bench, reach, *, held):
    reach(bench)
    waits = bench.submit(spec(after=(Dependency(1),)))
    (event,) = bench.feed(st.RequeueAsked(now(6), 1, ALICE, held))
    assert isinstance(event, ev.StopRequested)
    assert bench.feed(st.RequeueAsked(now(7), 1, ALICE, held)) == [], "it is done already"
    if bench.job(1).state is not S.CLEANING:
        bench.feed(ended(at_s=8))
    attempt_gone(bench, 1)
    job = bench.job(1)
    assert (job.state, job.attempt, job.held_by) == (
        (S.HELD, 1, "alice") if held else (S.PENDING, 1, None)
    )
    assert bench.job(waits).awaits == (Dependency(1),)
    if held:
        bench.feed(st.ReleaseAsked(now(9), 1, ALICE))
    start_again(bench, 1, 10)
    assert (bench.job(1).attempt, bench.job(1).restarts) == (2, 1)
    bench.ledger.check()


@pytest.mark.parametrize(
    ("state", "asked", "why"),
    [
        (S.PENDING, spec(), "job 1 is PENDING: it is in the queue already"),
        (S.HELD, spec(), "job 1 is HELD: it is in the queue already"),
        (S.STOPPING, spec(), "job 1 is being cancelled"),
        (S.RUNNING, spec(attach="/x"), "job 1 has a terminal; only a batch job is requeued"),
    ],
)
def test_what_cannot_be_requeued_is_refused(bench, state, asked, why):
    if state is S.RUNNING:
        bench.start(asked)
    else:
        bench.bring(state)
    assert refused(bench, st.RequeueAsked(now(), 1, ALICE, False)).text == why


def test_a_job_that_is_to_be_requeued_ends_if_it_is_cancelled(bench):
    bench.bring(S.RUNNING)
    bench.feed(st.RequeueAsked(now(1), 1, ALICE, True))
    bench.feed(st.CancelAsked(now(2), 1, ALICE))
    bench.feed(ended(at_s=3))
    assert [type(event) for event in attempt_gone(bench, 1)] == [ev.Cleaned]


# -- suspend and resume ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_frozen", [False, True])
def test_resuming_twice_changes_nothing(bench, is_frozen):
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(), 1, ALICE))
    if is_frozen:
        bench.feed(st.FrozenReport(now().at_s, 1, 1, mono_s=now().mono_s))
    assert bench.feed(st.ResumeAsked(now(1), 1, ALICE)) == [happened(ev.ResumeRequested, at_s=1)]
    assert bench.feed(st.ResumeAsked(now(2), 1, ALICE)) == []


@pytest.mark.parametrize("is_frozen", [False, True])
def test_an_administrators_suspension_outweighs_the_owners_own(bench, is_frozen):
    """Else the owner's earlier one would be a way around the administrator's."""
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(), 1, ALICE))
    if is_frozen:
        bench.feed(st.FrozenReport(now().at_s, 1, 1, mono_s=now().mono_s))
    assert bench.feed(st.SuspendAsked(now(1), 1, ADMIN)) == [
        happened(ev.SuspendRequested, at_s=1, by="root", text="suspended by root")
    ]
    refusal = refused(bench, st.ResumeAsked(now(2), 1, ALICE))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, str(refusal)) == ("held-by-admin", "job 1 is held by root")
    assert bench.feed(st.SuspendAsked(now(3), 1, ALICE)) == []
    assert bench.job(1).held_by == "root"
    assert bench.feed(st.ResumeAsked(now(4), 1, replace(ADMIN, user="carol"))) != []


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_drfd_has_suspended_can_be_kept_so_and_waits_again_when_it_is_resumed(
    bench, is_frozen, actor
):
    bench.bring(S.RUNNING)
    request = happened(ev.SuspendRequested, by=None, text="suspended for job 2")
    bench.befall(request)
    if is_frozen:
        bench.feed(st.FrozenReport(now().at_s, 1, 1, mono_s=now().mono_s))
    assert bench.feed(st.ResumeAsked(now(1), 1, actor)) == [], "it goes on as soon as it can anyway"
    assert bench.feed(st.SuspendAsked(now(2), 1, actor)) != []
    bench.feed(st.FrozenReport(now(2).at_s, 1, 1, mono_s=now(2).mono_s))
    assert bench.schedule(3) == []
    assert bench.feed(st.ResumeAsked(now(4), 1, actor)) != []
    assert bench.schedule(5) == [1]


# -- the longest suspension ------------------------------------------------------------------------


def test_what_its_user_keeps_suspended_for_too_long_is_killed():
    bench = Bench(replace(rules(), max_suspended_s=3600))
    bench.start(spec(time_limit_s=7200))
    bench.suspend(1, at_s=10)
    assert deadline_mono_s(bench.job(1), bench.rules) == now(3610).mono_s
    assert bench.feed(st.Tick(now(3609))) == []
    (stop,) = bench.feed(st.Tick(now(3610)))
    assert isinstance(stop, ev.StopRequested)
    job = bench.job(1)
    assert job.stop is not None and job.stop.escalated, "it is not resumed for that"
    assert bench.feed(st.Tick(now(3611))) == []
    (end,) = bench.feed(ended(1, at_s=3611, exit_code=None, signal=9))
    assert isinstance(end, ev.Exited)
    assert (end.outcome, end.text) == (
        Outcome.LIMIT_EXCEEDED,
        "its user kept it suspended for 1h00m, and no job may hold its memory so for longer "
        "(limits.suspended); resume it sooner next time",
    )


def test_a_suspension_is_bounded_only_while_the_user_wants_it():
    """Not what drfd froze for another, nor what an administrator keeps; and it begins anew."""
    bench = Bench(replace(rules(), max_suspended_s=3600))
    bench.start(spec(time_limit_s=None))
    bench.suspend(1, by=None)
    assert deadline_mono_s(bench.job(1), bench.rules) is None
    bench.feed(st.SuspendAsked(now(5000), 1, ALICE))
    assert deadline_mono_s(bench.job(1), bench.rules) == now(8600).mono_s
    assert bench.feed(st.SuspendAsked(now(6000), 1, ALICE)) == [], "it is no longer stretch"
    bench.feed(st.SuspendAsked(now(7000), 1, ADMIN))
    assert deadline_mono_s(bench.job(1), bench.rules) is None
    bench.feed(st.ResumeAsked(now(8000), 1, ADMIN))
    assert bench.schedule(8000) == [1]
    bench.suspend(1, at_s=8500)
    bench.feed(st.ResumeAsked(now(9000), 1, ALICE))
    assert bench.feed(st.Tick(now(99_000))) == [], "it waits for room, not for its user"
    bench.rules = replace(bench.rules, max_suspended_s=None)
    bench.feed(st.SuspendAsked(now(99_000), 1, ALICE))
    assert bench.feed(st.Tick(now(999_000))) == []


# -- disks -----------------------------------------------------------------------------------------


def test_a_demand_of_a_disk_that_is_not_there_is_refused():
    """The configuration may change between a request and the decision."""
    bench = Bench(replace(rules(), axes=Axes(disks=("data",))))
    asks = replace(demand(1), disks=(("data", 1, 1), ("gone", 0, 1)))
    with pytest.raises(Refused) as refusal:
        bench.submit(spec(asks=asks))
    assert refusal.value.text == "this machine has no disk 'gone'"
    idle = replace(demand(1), disks=(("data", 1, 1), ("gone", 0, 0)))
    assert bench.submit(spec(asks=idle)) == 1, "what it does not use may be missing"


TWO = Resources(cores_milli=1000, disks=(("data", 10, 20), ("scratch", 0, 0)))


def two_disks() -> Rules:
    few = rules()
    capacity = replace(
        few.capacity, read_bps=0, write_bps=0, disks=(("data", 100, 100), ("scratch", 50, 50))
    )
    return replace(few, capacity=capacity, axes=Axes(disks=("data", "scratch")))


def test_of_several_disks_one_must_be_named_and_must_be_there():
    bench = Bench(two_disks())
    job_id = bench.submit(spec(asks=TWO))
    for wish, complaint in (
        (Demand(read_bps=1), "say which one"),
        (Demand(disks={"tape": Rates(1, 1)}), "no disk 'tape'"),
        (Demand(disks={"data": Rates(101, 1)}), "could never start"),
    ):
        with pytest.raises(Refused, match=complaint):
            change(bench, job_id, demand=wish)
    assert bench.job(job_id).spec.demand == TWO


# -- freezing --------------------------------------------------------------------------------------


def test_late_news_of_a_freezing_does_not_freeze_a_job_that_has_gone_on(bench):
    bench.bring(S.SUSPENDED)
    bench.feed(st.ResumeAsked(now(1), 1, ALICE))
    assert bench.schedule(2) == [1]
    assert bench.feed(st.FrozenReport(now(3).at_s, 1, 1, mono_s=now(3).mono_s)) == []
    submitted_job = bench.job(1)
    assert (submitted_job.state, submitted_job.suspensions) == (S.RUNNING, 1)


# -- ends and retries ------------------------------------------------------------------------------


#: Of a report of an end, to replace the usual ones.
Fields = dict[str, Any]
RUNNING = Job(
    id=1,
    spec=spec(),
    state=JobState.RUNNING,
    attempt=1,
    submitted_at=now().at_s,
    started_at=now().at_s,
    started_mono_s=now().mono_s,
)
LOST = (
    Outcome.LOST,
    "its exit status cannot be known: the machine was restarted or its runner was killed",
)
OWN_LIMIT = (
    Outcome.OUT_OF_MEMORY,
    "needed more than its memory limit of 1G (peak 1G) and was killed with all its processes; "
    "ask for more next time: -m 1536M",
)
HOST_LIMIT = (
    Outcome.OUT_OF_MEMORY,
    "the machine itself ran short of memory and this job was killed for it, "
    "which was within its limit of 1G",
)


def stopped(at_s: float, outcome: Outcome | None = Outcome.CANCELLED, text: str = "why") -> Job:
    stop = Stop(outcome=outcome, text=text, at_s=now(at_s).at_s, mono_s=now(at_s).mono_s)
    return structs.replace(RUNNING, state=JobState.STOPPING, stop=stop)


KILLED: Fields = {"exit_code": None, "signal": 9}
UNKNOWN: Fields = {"exit_code": None, "signal": None}
OOM: Fields = {"oom_killed": True}
OVER: Fields = {"oom_killed": True, "over_limit": True}


def test_a_job_that_wrote_too_much_is_told_how_much_that_was():
    limited = structs.replace(RUNNING, spec=replace(RUNNING.spec, output_max_bytes=1 << 30))
    assert judge_end(limited, ended(**KILLED, output_bytes=3 << 29)) == (
        Outcome.LIMIT_EXCEEDED,
        "wrote 1.5G to its output files, of which 1G are allowed, and was killed with all its "
        "processes; --output-max allows more next time",
    )


def test_a_peak_reading_below_the_limit_is_not_believed():
    """The reading is a sample, and the limit was reached: the kernel has said so."""
    end = ended(**KILLED, **OVER, usage=Usage(memory_peak_bytes=100 * MIB))
    assert judge_end(RUNNING, end) == OWN_LIMIT


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        ({}, (Outcome.COMPLETED, "exit code 0")),
        ({"exit_code": 3}, (Outcome.FAILED, "exit code 3")),
        (KILLED, (Outcome.FAILED, "killed by signal 9 (SIGKILL)")),
        ({**KILLED, **OVER}, OWN_LIMIT),
        ({**KILLED, **OOM}, HOST_LIMIT),
        (UNKNOWN, LOST),
    ],
)
def test_an_end_before_the_stop_is_the_jobs_own(seen, cause):
    """The stop was asked for while the news of the end was on its way."""
    for outcome in (Outcome.CANCELLED, None):
        assert judge_end(stopped(5, outcome), ended(at_s=4.9, **seen)) == cause


THRICE = Retry(3, RETRIED_BY_DEFAULT)


def fail(bench: Bench, job_id: int, at_s: float = 0.0, **how: object) -> ev.Event:
    """The running attempt ends badly; what its removal brings about."""
    attempt = bench.job(job_id).attempt
    bench.feed(ended(job_id, attempt, at_s, **({"exit_code": 3} | how)))
    (event,) = bench.feed(st.RemovedReport(now(at_s).at_s, job_id, attempt))
    return event


def start_again(bench: Bench, job_id: int, at_s: float) -> None:
    bench.feed(st.Tick(now(at_s)))
    assert bench.schedule(at_s) == [job_id]
    bench.feed(launched(job_id, bench.job(job_id).attempt, at_s))


def test_a_clock_that_is_set_back_does_not_hold_a_retry_for_years(bench):
    """The pause was over only when the clock had come there again. The time that a user has set is
    left as it is."""
    years_s = 1e8
    bench.submit(spec(begin_s=int(now(years_s).at_s)))
    job_id = bench.start(spec(retry=THRICE))
    assert isinstance(fail(bench, job_id, years_s), ev.Retried)
    bench.ledger.check()
    # A second or two set the clock back, too, and the pause remains one.
    assert bench.feed(st.Tick(now(years_s - 2))) == []
    bench.feed(st.Tick(now(10)))
    assert bench.schedule(10) == [job_id]
    bench.ledger.check()


def test_the_pause_before_a_retry_can_be_cut_short(bench):
    job_id = bench.start(spec(retry=THRICE))
    fail(bench, job_id)
    (event,) = bench.feed(st.ChangeAsked(now(1), job_id, ALICE, st.Change(begin_s=0)))
    assert isinstance(event, ev.Altered)
    assert event.text == "may start at once"
    assert bench.schedule(1) == [job_id]


def test_what_is_known_of_an_earlier_attempt_says_nothing_of_the_present_one(bench):
    bench.bring(S.RUNNING)
    bench.preempt(1)
    bench.finish(1)
    assert bench.schedule() == [1]
    assert bench.feed(launched()) == []
    bench.feed(launched(1, 2))
    assert bench.feed(ended()) == []
    known = dict.fromkeys([(1, 1), (1, 2)], Owner())
    assert leftovers(bench.ledger, known, "", {}.get).removals == [RemoveAttempt(1, 1)]
    (missing,) = missing_attempts(bench.ledger, {(1, 1)}, now().at_s)
    assert missing.key == (1, 2)
    bench.feed(missing)
    assert bench.feed(st.RemovedReport(now().at_s, 1, 1)) == []


# -- warnings --------------------------------------------------------------------------------------


def test_each_attempt_has_its_warning(bench):
    job_id = bench.start(spec(time_limit_s=100, warn=Warn(10, 30), retry=THRICE))
    bench.feed(st.Tick(now(70)))
    fail(bench, job_id, 80)
    start_again(bench, job_id, 85)
    assert signals_owed(bench.job(job_id)) is None
    assert deadline_mono_s(bench.job(job_id), bench.rules) == now(85 + 70).mono_s


def test_a_warning_that_could_not_come_in_time_is_refused(bench):
    with pytest.raises(Refused, match="no time limit"):
        bench.submit(spec(time_limit_s=None, warn=Warn(10, 30)))
    with pytest.raises(Refused, match="30s before the end of 30s"):
        bench.submit(spec(time_limit_s=30, warn=Warn(10, 30)))
    job_id = bench.submit(spec(time_limit_s=31, warn=Warn(10, 30)))
    with pytest.raises(Refused, match="no time is left"):
        bench.feed(st.ChangeAsked(now(), job_id, ALICE, st.Change(time_limit_s=20)))


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [each for each in JobState if each is not JobState.RUNNING])
def test_only_a_running_job_is_sent_a_signal(bench, state):
    bench.bring(state)
    with pytest.raises(Refused):
        bench.feed(st.SignalAsked(now(), 1, ALICE, 10))


def test_what_is_frozen_gets_its_signals_when_it_goes_on(bench):
    job_id = bench.start()
    bench.feed(st.SignalAsked(now(), job_id, ALICE, 10))
    bench.suspend(job_id)
    assert signals_owed(bench.job(job_id)) is None
    bench.feed(st.ResumeAsked(now(), job_id, ALICE))
    bench.schedule()
    assert signals_owed(bench.job(job_id)) == SendSignals(job_id, 1, 1, (10,))


STEADY = examples(300)


# -- limits that drfd watches ----------------------------------------------------------------------


def job_at(state: JobState, time_limit_s: int | None = 60) -> Job:
    return ledger_at(state, spec=spec(time_limit_s=time_limit_s)).jobs[1]


def job_that_declares(memory_gib: float = 1, read: int = 0, write: int = 0) -> Job:
    return Job(id=1, spec=spec(asks=demand(1, memory_gib, read, write)), submitted_at=0.0)


def sample(
    mono_s: float, memory: int | None = 0, read: int | None = 0, wrote: int | None = 0
) -> Sample:
    return Sample(
        mono_s=mono_s, memory_bytes=memory, read_bytes=read, written_bytes=wrote, cpu_s=None
    )


# -- deadlines -------------------------------------------------------------------------------------


def test_the_text_of_a_timeout_says_what_to_ask_for():
    assert timeout_text(job_at(S.RUNNING, 5400)) == (
        "ran for its whole time limit of 1h30m; ask for more next time: -t 3h00m"
    )


# -- memory ----------------------------------------------------------------------------------------


def test_two_samples_in_a_row_over_the_memory_limit_are_a_breach():
    found = judge_samples(
        job_that_declares(1), [sample(0, 0), sample(2, 2 * GIB), sample(4, GIB + 1)]
    )
    assert found == (
        Outcome.OUT_OF_MEMORY,
        "needed more than its memory limit of 1G (measured 2G) and was stopped; "
        "ask for more next time: -m 3G",
    )


# -- memory of GPUs --------------------------------------------------------------------------------


def job_on_gpus(declared: int | None = 20 * GIB, count: int = 2) -> Job:
    memory = () if declared is None else (("gpu", declared),)
    asks = replace(demand(), gres=(("gpu", count),), gres_memory=memory)
    return Job(id=1, spec=spec(asks=asks), submitted_at=0.0)


def test_two_readings_in_a_row_above_the_memory_of_a_gpu_are_a_breach():
    """The limit is of each GPU: what it has on the others does not count."""
    gpus = [GpuMemory("0", (GIB, GIB)), GpuMemory("GPU-b", (21 * GIB, 22 * GIB), 80 * GIB)]
    assert judge_gpu_memory(job_on_gpus(), gpus) == (
        Outcome.LIMIT_EXCEEDED,
        "used 22G of the memory of GPU GPU-b, and 20G were declared; it was stopped after 2 "
        "readings above that; ask for more next time: --gres gpu=2,memory=34G (what CUDA needs "
        "for itself on a GPU, 0.3G to 0.5G, counts too)",
    )


@pytest.mark.parametrize(
    "readings",
    [
        (),
        (30 * GIB,),
        (30 * GIB, 20 * GIB),
        (20 * GIB, 30 * GIB),
        (20 * GIB, 20 * GIB),
        (30 * GIB, 30 * GIB, 1),
    ],
)
def test_a_spike_or_an_old_reading_is_no_breach_on_a_gpu(readings):
    job = job_on_gpus()
    assert judge_gpu_memory(job, [GpuMemory("0", readings)]) is None
    # Nor is each of two GPUs once.
    assert judge_gpu_memory(job, [GpuMemory(name, (30 * GIB,)) for name in "01"]) is None


def test_a_job_that_declares_no_memory_of_gpus_may_use_all_of_it():
    assert judge_gpu_memory(job_on_gpus(None), [GpuMemory("0", (1 << 50, 1 << 50))]) is None


@given(
    some.integers(1, 1 << 40), some.integers(1, 1 << 40), some.none() | some.integers(1, 1 << 41)
)
def test_what_is_advised_after_a_breach_is_more_than_was_declared_and_used(declared, more, total):
    """And no more than the GPU has, unless it was used already."""
    used = declared + more
    found = judge_gpu_memory(job_on_gpus(declared), [GpuMemory("0", (used, used), total)])
    assert found is not None
    (advised,) = re.findall(r"--gres gpu=2,memory=([0-9A-Z]+) ", found[1])
    assert parse_size(advised) >= used > declared
    assert total is None or parse_size(advised) <= max(total, used)
    shown = re.findall(r"used (\S+) of .* and (\S+) were declared", found[1])[0]
    assert shown[0] != shown[1]


# -- disk I/O --------------------------------------------------------------------------------------


def steady(rate: float, *, seconds: float = IO_WINDOW_S, every_s: float = 2.0) -> list[Sample]:
    """Samples of a job that reads this many bytes a second, and writes half as much."""
    times = [every_s * at for at in range(int(seconds / every_s) + 1)]
    return [sample(1000 + t, 0, int(rate * t), int(rate * t / 2)) for t in times]


def test_writing_far_over_the_declared_rate_for_long_is_a_breach():
    assert judge_samples(job_that_declares(write=MIB), steady(6 * MIB)) == (
        Outcome.LIMIT_EXCEEDED,
        "wrote 3M/s over 30s, declared 1M/s; ask for more next time with --io",
    )


def on_disks(*rates: tuple[str, int, int]) -> Job:
    return structs.replace(job_that_declares(), spec=spec(asks=Resources(disks=rates)))


def test_what_is_measured_is_the_sum_over_all_disks():
    both = on_disks(("a", MIB, 0), ("b", 2 * MIB, 0))
    assert judge_samples(both, steady(6 * MIB)) is None
    assert judge_samples(both, steady(7 * MIB)) == (
        Outcome.LIMIT_EXCEEDED,
        "read 7M/s over 30s, declared 3M/s; ask for more next time with --io",
    )


def test_without_a_rate_for_one_disk_the_sum_has_no_bound():
    assert judge_samples(on_disks(("a", MIB, 0), ("b", 0, 0)), steady(90 * MIB)) is None


@pytest.mark.parametrize(
    ("why", "job", "samples"),
    [
        ("no rate declared", job_that_declares(), steady(900 * MIB)),
        ("just at the factor", job_that_declares(read=MIB), steady(IO_FACTOR * MIB)),
        ("too short", job_that_declares(read=MIB), steady(9 * MIB, seconds=26)),
        ("one sample", job_that_declares(read=MIB), steady(9 * MIB)[-1:]),
        ("no sample", job_that_declares(read=MIB), []),
        (
            "a burst, then quiet",
            job_that_declares(read=MIB),
            [sample(0, 0, 0), sample(2, 0, 50 * MIB), sample(30, 0, 50 * MIB)],
        ),
        (
            "a burst longer ago than the window",
            job_that_declares(read=MIB),
            [sample(-2, 0, 0), *(sample(2.0 * at, 0, 900 * MIB) for at in range(16))],
        ),
        (
            "cannot be read",
            job_that_declares(read=MIB, write=MIB),
            [sample(0, 0, None, 0), sample(30, 0, 900 * MIB, None)],
        ),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_what_is_no_breach_of_io(why, job, samples):
    assert judge_samples(job, samples) is None


# -- what to ask for next time ---------------------------------------------------------------------


@STEADY
@given(some.integers(1, 1 << 50))
def test_the_suggestion_is_enough_and_not_far_too_much_and_can_be_typed(peak):
    asked = parse_size(suggest_memory(peak))
    assert asked == parse_memory(suggest_memory(peak))
    assert peak * 3 <= asked * 2
    assert asked <= peak * 1.5 + max(16 * MIB, peak / 8)


# -- launches that could not be for want of something ----------------------------------------------


#: The Unix time of `now(0)`.
ZERO_S = 1_700_000_000


def short(
    bench: Bench, job_id: int, at_s: float = 0.0, whose: Whose = Whose.MACHINE
) -> list[ev.Event]:
    """The launch of the job was not to be, and nothing is left of it."""
    attempt = bench.job(job_id).attempt
    found = bench.feed(
        st.LaunchFailedReport(
            now(at_s).at_s, job_id, attempt, text="no process", whose=whose, resource="processes"
        )
    )
    return found + bench.feed(st.RemovedReport(now(at_s).at_s, job_id, attempt))


def reason(bench: Bench, job_id: int, at_s: float) -> Wait:
    plan = schedule(bench.ledger, bench.rules, at_s=at_s)
    found = explain_wait(bench.job(job_id), bench.ledger, plan, bench.rules)
    assert found is not None
    return found


def test_each_pause_is_twice_as_long_until_a_job_runs(bench):
    for _ in range(3):
        bench.submit()
    bench.schedule()
    at_s = 0.0
    for pause_s in (1, 2):
        for job_id in (1, 2, 3):
            # Launches that were under way together count as one failure.
            short(bench, job_id, at_s)
        assert bench.schedule(at_s + pause_s - 0.1) == []
        at_s += pause_s
        assert bench.schedule(at_s) == [1, 2, 3]
    bench.feed(launched(1, 3, at_s))
    short(bench, 2, at_s)
    assert bench.schedule(at_s + 0.9) == []
    assert bench.schedule(at_s + 1) == [2]


def test_a_pause_lasts_a_minute_at_most_and_ten_minutes_later_a_second_again(bench):
    job, pause, at_s = bench.job(bench.submit()), None, 0.0
    for after_s, pause_s in [*((0, each) for each in (1, 2, 4, 8, 16, 32, 60, 60)), (601, 1)]:
        at_s += after_s
        pause = next_try(pause, job, Whose.MACHINE, text="", resource="", at_s=at_s)
        assert pause.until_s - at_s == pause_s
        at_s = pause.until_s


def test_a_shortage_of_one_job_keeps_back_that_job_alone(bench):
    for actor in (ALICE, BOB):
        bench.submit(of(actor))
    bench.schedule()
    short(bench, 1, 0, Whose.JOB)
    other = bench.submit(of(ALICE))
    assert bench.schedule(0.5) == [other]
    assert reason(bench, 1, 0.6).code == "MACHINE_SHORT"
    bench.feed(st.Tick(now(1)))
    assert bench.schedule(1) == [1]
    short(bench, 1, 1, Whose.JOB)
    bench.feed(st.Tick(now(2)))
    assert bench.schedule(2) == []
    bench.feed(st.Tick(now(3)))
    assert bench.schedule(3) == [1]


def test_one_job_that_fails_again_and_again_gives_others_their_try(bench):
    """What looks like a shortage may be that job, and the others must not wait for it."""
    bench.submit(of(ALICE))
    bench.submit(of(ALICE))
    bench.schedule()
    at_s = 0.0
    for _ in range(3):
        short(bench, 1, at_s)
        at_s += MOST_PAUSE_S
        assert 1 in bench.schedule(at_s)
    short(bench, 1, at_s)
    other = bench.submit(of(ALICE))
    at_s += 8
    bench.feed(st.Tick(now(at_s)))
    assert bench.schedule(at_s) == [other]
    at_s += 8
    bench.feed(st.Tick(now(at_s)))
    assert bench.schedule(at_s) == [1]


def test_a_cancellation_before_the_bad_news_wins(bench):
    bench.submit()
    bench.schedule()
    bench.feed(st.CancelAsked(now(1), 1, ALICE))
    (failed, cleaned) = short(bench, 1, 2)
    assert isinstance(failed, ev.LaunchFailed)
    assert failed.outcome is Outcome.CANCELLED
    assert isinstance(cleaned, ev.Cleaned)


def test_a_clock_that_is_set_back_does_not_make_the_pause_longer(bench):
    bench.submit()
    bench.schedule()
    short(bench, 1)
    assert bench.schedule(-10_000) == [1]


def test_the_reason_says_what_was_short_and_when_it_is_tried_again(bench):
    """Also to a job that does not fit, beside the third one."""
    for _ in range(3):
        bench.submit()
    bench.schedule()
    large = bench.submit(of(BOB, 9))
    for job_id in (1, 2):
        short(bench, job_id)
    shortage = Postponed(
        whose=Whose.MACHINE,
        text="no process",
        resource="processes",
        at_s=ZERO_S,
        until_s=ZERO_S + 1,
        tries=1,
    )
    assert reason(bench, 2, 0.5) == reason(bench, large, 0.5) == MachineShort(shortage)
    bench.schedule(1)
    short(bench, 1, 1.5)
    found = reason(bench, 1, 1.6)
    assert isinstance(found, MachineShort) and found.shortage.tries == 2


# -- the end of an attempt of which nothing is left ------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "end", "kinds"),
    [
        ({}, {}, [ev.Exited, ev.Cleaned]),
        ({"retry": Retry(1, (Outcome.FAILED,))}, {"exit_code": 1}, [ev.Exited, ev.Retried]),
        ({"notify": ("end",)}, {}, [ev.Exited]),
        ({}, {"gone": False}, [ev.Exited]),
    ],
    ids=["ended", "retried", "notifies", "something is left"],
)
def test_an_attempt_of_which_nothing_is_left_needs_no_removal(bench, changes, end, kinds):
    bench.start(spec(**changes))
    assert [type(event) for event in bench.feed(ended(**{"gone": True} | end))] == kinds
    bench.ledger.check()


def test_a_job_that_is_requeued_waits_as_soon_as_nothing_is_left(bench):
    bench.bring(S.RUNNING)
    bench.feed(st.RequeueAsked(now(1), 1, ALICE, True))
    found = bench.feed(ended(at_s=2, gone=True))
    assert [type(event) for event in found] == [ev.Exited, ev.Requeued, ev.Held]
    assert bench.job(1).state is S.HELD


# -- the owner is notified of an end ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "tells", "is_given_back"),
    [(True, "end", True), (False, "end", False), (True, "fail", False)],
)
def test_a_job_that_is_over_keeps_only_what_its_notification_may_use(gone, tells, is_given_back):
    """The whole machine waited for a command of thirty seconds. As long as something of the job is
    left, nothing is given back; and without a notification all of it when it is removed."""
    bench = Bench(with_gpus(1))
    asks = replace(demand(9, 18, read=1000), gres=(("gpu", 1),))
    job_id = bench.start(spec(asks=asks, notify=(tells,)))
    other = bench.submit(of_gpus(1))
    bench.feed(ended(job_id, gone=gone))
    bench.ledger.check()
    held = bench.rules.axes.resources(bench.ledger.allocation(bench.job(job_id)).sums)
    assert held == (demand(0.25, 0.25, read=1000) if is_given_back else asks)
    assert bench.schedule() == ([other] if is_given_back else [])
    bench.ledger.check()
    bench.feed(st.RemovedReport(now().at_s, job_id, 1, notice="told"))
    assert bench.schedule() == ([] if is_given_back else [other])


def test_an_attempt_that_is_tried_again_keeps_all_until_it_is_removed():
    bench = Bench()
    tells, again = ("end",), Retry(1, (Outcome.FAILED,))
    job_id = bench.start(spec(asks=demand(9), notify=tells, retry=again))
    bench.feed(ended(job_id, exit_code=1, gone=True))
    assert bench.rules.axes.resources(bench.ledger.allocated.sums) == demand(9)
