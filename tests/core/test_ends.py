"""What is said of jobs that have ended: notes on their ends, and what to ask for next time."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

import drfd
from drfd.client.words import Gres, parse_gres
from drfd.common.units import (
    Range,
    parse_cores_range,
    parse_disk_rates,
    parse_duration,
    parse_memory,
)
from drfd.core.explain.advice import (
    LAST,
    Advice,
    CoresReason,
    advice_options,
    advise,
    changed_options,
    cores_note,
    is_as_asked,
    is_evidence,
    kind_of_job,
    ran_out,
)
from drfd.core.explain.ended_jobs import LAUNCH_REMEDIES, end_notes
from drfd.core.model.job import Job, JobState, Outcome, Stop, Usage, command_text
from drfd.core.model.resources import NOTHING, disk_axes
from fakes import GIB, demand, replace, spec
from seeds import examples

# -- notes -----------------------------------------------------------------------------------------


MIB = 1 << 20


def ended_job(outcome: Outcome, text: str = "", run_s: float = 30.5, **changes: Any) -> Job:
    """It was within its two cores and its gigabyte; `changes` are of its use, or of itself."""
    own = {name: changes.pop(name) for name in ("exit_code", "signal") if name in changes}
    used = {"cpu_s": 12.25, "memory_peak_bytes": 100 * MIB, "limit_hits": 0, "oom_kills": 0}
    return Job(
        id=7,
        spec=spec(asks=demand(2, 1)),
        state=JobState.ENDED,
        attempt=1,
        submitted_at=0.0,
        started_at=100.0,
        ended_at=100.0 + run_s,
        outcome=outcome,
        outcome_text=text,
        usage=Usage(**(used | changes)),
        **own,
    )


USED = "12.2s of CPU time (0.4 of 2 cores on average) and 100M of 1G of memory"
LOG = "its output: drf log --err 7"
KERNEL_LOG = (
    "the kernel's log names the process that it killed first: journalctl -k --grep oom-kill"
)
ELSEWHERE = "somebody else sent it, or a program of the job's own: drfd did not"
FAULT = "it used memory that was not its own: a fault of the program"


@pytest.mark.parametrize("outcome", [*Outcome, None])
def test_of_a_job_that_nobody_has_seen_nothing_is_made_up(outcome):
    unseen = structs.replace(ended_job(Outcome.LOST), outcome=outcome, usage=None)
    assert not any("used" in note or "after its start" in note for note in end_notes(unseen))


@pytest.mark.parametrize(
    ("run_s", "cpu_s", "said"),
    [
        (30.5, 12.25, USED),
        (0.02, 0.0, "0.0s of CPU time and 100M of 1G of memory"),
        (90.0, 80.0, "1m20s of CPU time (0.88 of 2 cores on average) and 100M of 1G of memory"),
    ],
)
def test_what_a_job_used_is_told_of_its_last_run_and_of_all(run_s, cpu_s, said):
    job = ended_job(Outcome.COMPLETED, run_s=run_s, cpu_s=cpu_s)
    span = "1m30s" if run_s > 60 else f"{run_s:.1f}s"
    assert end_notes(job) == [f"it ran for {span} and used {said}"]
    again = structs.replace(job, earlier_runs={})
    cpu = "1m20s" if cpu_s > 60 else "12.2s" if cpu_s else "0.0s"
    assert end_notes(again) == [
        f"its last run took {span} and used {said}",
        f"its only run took {span} and used {cpu} of CPU time",
    ]
    unmeasured = structs.replace(again, usage=None)
    assert end_notes(unmeasured) == [f"its only run took {span}"]


def test_out_of_its_own_memory():
    ended = ended_job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, oom_kills=2, signal=9,
        largest_process_bytes=900 * MIB,
    )  # fmt: skip
    assert end_notes(ended) == [
        "it was killed 30.5s after its start, with a peak of 1G and a limit of 1G",
        "the largest of its processes had 900M, shared pages included",
        KERNEL_LOG,
    ]


def test_out_of_memory_by_many_small_processes_and_a_child_s_fault():
    ended = ended_job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, oom_kills=1, exit_code=3,
        largest_process_bytes=200 * MIB,
    )  # fmt: skip
    assert end_notes(ended)[1:] == [
        "its first process was not the one: it ended with exit code 3",
        "the largest of its processes had 200M, shared pages included; "
        "all of them together reached the limit",
        KERNEL_LOG,
    ]


def test_out_of_memory_of_which_no_process_is_known_and_that_never_started_to_be_timed():
    ended = ended_job(Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, signal=9)
    assert end_notes(structs.replace(ended, started_at=None)) == [
        "it was killed 0.0s after its start, with a peak of 1G and a limit of 1G",
        KERNEL_LOG,
    ]


def test_out_of_memory_by_measurement_is_no_kill_and_in_no_kernel_s_log():
    stop = Stop(outcome=Outcome.OUT_OF_MEMORY, text="needed more", at_s=130.0, mono_s=30.0)
    ended = ended_job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=3 * GIB, limit_hits=None, oom_kills=None, signal=15
    )
    assert end_notes(structs.replace(ended, stop=stop)) == [
        "it was stopped 30.5s after its start, with a peak of 3G and a limit of 1G"
    ]


@pytest.mark.parametrize(
    ("kills", "said"),
    [
        (1, "the kernel chose it when the whole machine was short; journalctl -k tells more"),
        (0, "the kernel has counted no kill in it: systemd-oomd or somebody else did it; "
            "journalctl -u systemd-oomd tells more"),
    ],
)  # fmt: skip
def test_the_machines_own_shortage_is_not_the_jobs_fault(kills, said):
    assert end_notes(ended_job(Outcome.OUT_OF_MEMORY, oom_kills=kills, signal=9)) == [
        "it was killed 30.5s after its start, with a peak of 100M and a limit of 1G",
        said,
        "its demand was not the fault: submit it again; an administrator can keep more memory "
        "for the system with capacity.reserve_memory",
    ]


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (None, []),
        (1990, ["near its end it still used 1.99 cores: it was at work"]),
        (100, ["near its end it still used 0.1 cores: it was at work"]),
        (96, ["near its end it used 0.1 cores: it may have waited for something, not computed"]),
    ],
)
def test_whether_it_was_at_work_when_its_time_was_up(late, said):
    notes = end_notes(ended_job(Outcome.TIMEOUT, late_cores_milli=late))
    assert notes == [f"it ran for 30.5s and used {USED}", *said]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"exit_code": 1}, []),
        ({"exit_code": 255}, []),
        ({"exit_code": 126},
         ["126 is a shell's word for: the command was found and could not be executed"]),
        ({"exit_code": 127}, ["127 is a shell's word for: there is no such command"]),
        ({"exit_code": 139},
         ["139 is a shell's word for: what it ran was killed by SIGSEGV", FAULT]),
        ({"exit_code": 137},
         ["137 is a shell's word for: what it ran was killed by SIGKILL",
          f"{ELSEWHERE}, and the kernel has counted no kill for memory in it"]),
        ({"exit_code": 128}, []),
        ({"exit_code": 161}, []),
        ({"signal": 15, "oom_kills": None}, [ELSEWHERE]),
        ({"signal": 6}, ["it gave up by itself, after a failed check of its own"]),
        ({"signal": 40}, []),
        ({"exit_code": 1, "memory_peak_bytes": 1000 * MIB}, ["its memory came up to 1000M of 1G"]),
    ],
)  # fmt: skip
def test_codes_and_signals_are_named(end, said):
    assert end_notes(ended_job(Outcome.FAILED, **end)) == [*said, LOG]


def test_what_a_job_wrote_is_where_its_errors_went():
    failed = ended_job(Outcome.FAILED, exit_code=1)
    to_one_file = replace(failed.spec, stderr=failed.spec.stdout)
    assert end_notes(structs.replace(failed, spec=to_one_file)) == ["its output: drf log 7"]
    to_terminal = replace(failed.spec, attach="/run/attach")
    assert end_notes(structs.replace(failed, spec=to_terminal)) == []


def test_a_lost_job_tells_what_was_seen_of_it():
    assert end_notes(ended_job(Outcome.LOST)) == [
        f"until then it had used {USED}",
        "whether its work was done only its output can tell; submit it again if not",
    ]


def test_work_that_never_began_is_not_unknown():
    lost = structs.replace(ended_job(Outcome.LOST), usage=None, loss="SLURM_NOT_STARTED")
    assert end_notes(lost) == []


@pytest.mark.parametrize("cause", LAUNCH_REMEDIES)
def test_each_launch_fault_is_known_by_words_that_the_launcher_says(cause):
    places = "daemon/launcher_link/failures.py", "launcher/system/answers.py"
    sources = [(Path(drfd.__path__[0]) / place).read_text() for place in places]
    assert any(cause in source for source in sources)


# -- what to ask for next time ---------------------------------------------------------------------


def ran(
    outcome: Outcome = Outcome.COMPLETED, *, run_s: float = 100.0, cores: float = 4,
    memory_gib: float = 4, read: int = 0, write: int = 0, limit_s: int | None = 3600,
    frozen_s: float = 0.0, most: int = 0, **used: Any,
) -> Job:  # fmt: skip
    usual = {"cpu_s": run_s, "memory_peak_bytes": 300 * MIB, "limit_hits": 0}
    return Job(
        id=1,
        spec=spec(
            asks=demand(cores, memory_gib, read, write), time_limit_s=limit_s, cores_max_milli=most
        ),
        state=JobState.ENDED,
        attempt=1,
        submitted_at=0.0,
        started_at=1000.0,
        ended_at=1000.0 + run_s + frozen_s,
        suspended_s=frozen_s,
        outcome=outcome,
        usage=Usage(**(usual | used)),
    )


def one(*jobs: Job) -> Advice:
    advice = advise(jobs, least=1)
    assert advice is not None
    return advice


def asked(advice: Advice) -> tuple[int, int, int]:
    return advice.demand.cores_milli, advice.demand.memory_bytes, advice.time_limit_s


def on_gpus(
    outcome: Outcome = Outcome.COMPLETED, *, declared_gib: int | None = 20, **used: Any
) -> Job:
    plain = ran(outcome, **used)
    memory = () if declared_gib is None else (("gpu", declared_gib * GIB),)
    asks = replace(plain.spec.demand, gres=(("gpu", 2),), gres_memory=memory)
    return structs.replace(plain, spec=replace(plain.spec, demand=asks))


def test_a_job_stopped_for_its_memory_on_a_gpu_gets_more_of_that_alone():
    """Neither more memory of the machine nor other rates."""
    stopped = on_gpus(Outcome.LIMIT_EXCEEDED, gpu_memory_single_peak_bytes=22 * GIB, cpu_s=1.0)
    advice = advise([stopped])
    assert advice is not None
    assert (advice.demand.gres, advice.demand.gres_memory) == ((("gpu", 2),), (("gpu", 34 * GIB),))
    assert asked(advice) == (4000, 4 * GIB, 3600)
    assert (advice.demand.read_bps, advice.demand.write_bps, advice.short_jobs) == (0, 0, 1)
    assert not is_as_asked(advice, stopped)
    of_24 = advise([stopped], gpu_bytes=24 * GIB)
    assert of_24 is not None
    assert of_24.demand.gres_memory == (("gpu", 24 * GIB),)
    # Of another limit, the end says nothing of what the job needs.
    written = on_gpus(Outcome.LIMIT_EXCEEDED, gpu_memory_single_peak_bytes=20 * GIB)
    assert advise([written]) is None


@pytest.mark.parametrize(
    ("peaks", "needed_gib"),
    [((5, 10, 4), 12), ((5, 19, 4), 24), ((5, None, 4), 20), ((None, None, None), 20), ((5,), 20)],
)
def test_the_memory_on_a_gpu_is_lowered_only_after_enough_jobs_that_were_measured(
    peaks, needed_gib
):
    seen = [None if peak is None else peak * GIB for peak in peaks]
    jobs = [on_gpus(gpu_memory_single_peak_bytes=peak) for peak in seen]
    if len(jobs) == 1:
        jobs.append(ran(Outcome.TIMEOUT))
    advice = advise(jobs)
    assert advice is not None
    assert advice.demand.gres_memory == (("gpu", needed_gib * GIB),)


# -- jobs that had too little ----------------------------------------------------------------------


def test_one_that_hit_its_time_limit_gets_twice_as_long():
    late = ran(Outcome.TIMEOUT, run_s=600.0, limit_s=600)
    advice = advise([late])
    assert advice is not None
    assert asked(advice) == (4000, 4 * GIB, 1200)
    assert one(ran(), ran(), ran(), late).time_limit_s == 1200


# -- memory ----------------------------------------------------------------------------------------


def test_page_cache_up_to_the_limit_does_not_drive_the_demand_up_for_ever():
    full = {"memory_gib": 1, "memory_peak_bytes": GIB, "limit_hits": 500}
    assert one(ran(**full, memory_working_bytes=200 * MIB)).demand.memory_bytes == 240 * MIB
    assert one(ran(**full, memory_working_bytes=1000 * MIB)).demand.memory_bytes == GIB
    # Too short for a sample: less is enough, but not known how much less.
    assert one(ran(**full)).demand.memory_bytes == GIB
    quick = ran(memory_gib=0.05, memory_peak_bytes=50 * MIB, limit_hits=9)
    assert one(quick).demand.memory_bytes == quick.spec.demand.memory_bytes
    # A process that was larger than any sample says more than the samples.
    lone = ran(**full, memory_working_bytes=200 * MIB, largest_process_bytes=500 * MIB)
    assert one(lone).demand.memory_bytes == 640 * MIB


# -- ranges ----------------------------------------------------------------------------------------

#: Up to eight cores.
MOST = 8000


def cores_of(*jobs: Job, has_ranges: bool = True) -> tuple[int, int, CoresReason | None]:
    advice = advise(jobs, least=1, has_ranges=has_ranges)
    assert advice is not None
    return advice.demand.cores_milli, advice.cores_max_milli, advice.cores_reason


@pytest.mark.parametrize(
    ("mean", "beyond_us", "floor", "is_raised"),
    [
        # All the time above its lower end, clearly or hardly; and a whole range of use.
        (5.2, 320_000_000, 5500, True), (2.5, 50_000_000, 2000, False),
        (8.4, 640_000_000, 8000, True),
        # Bursts alone.
        (0.9, 20_000_000, 1000, False),
        # Nothing was idle: its lower end is all that it could use.
        (2.0, 0, 2000, False), (2.0, None, 2000, False), (0.9, None, 1000, False),
    ],
)  # fmt: skip
def test_a_range_keeps_its_upper_end_and_its_lower_end_follows_the_mean(
    mean, beyond_us, floor, *, is_raised
):
    seen = ran(cores=2, most=MOST, cpu_s=mean * 100, beyond_us=beyond_us, cores_peak_milli=8000)
    reason = CoresReason(is_above_floor=True, mean_milli=round(mean * 1000), declared_milli=2000)
    most = 8000 if floor < 8000 else 0
    assert cores_of(seen) == (floor, most, reason if is_raised else None)


def test_the_widest_range_of_similar_jobs_counts_and_is_nothing_new_if_it_was_asked_for():
    wide, plain = ran(cores=2, most=MOST, cpu_s=180.0, beyond_us=5), ran(cores=3, cpu_s=250.0)
    assert cores_of(wide, plain)[:2] == cores_of(plain, wide)[:2] == (2500, 8000)
    asked = structs.replace(
        wide, spec=replace(wide.spec, demand=demand(2, 0.375), time_limit_s=180)
    )
    advice = one(wide)
    assert is_as_asked(advice, asked)
    assert not is_as_asked(
        advice, structs.replace(asked, spec=replace(asked.spec, cores_max_milli=0))
    )


# -- disks -----------------------------------------------------------------------------------------


def rate_sums(demand):
    return demand.sums["read"], demand.sums["write"]


def rates(advice: Advice) -> tuple[str, int, int]:
    (disk, *_), *_ = advice.demand.disks or (("",),)
    return disk, *rate_sums(advice.demand)


def test_a_rate_that_was_reached_is_not_lowered():
    assert one(ran(read=10 * MIB, read_peak_bps=10 * MIB)).demand.read_bps == 10 * MIB


# -- always ----------------------------------------------------------------------------------------

AMOUNTS = some.integers(1, 1 << 40)
PAST = some.builds(
    ran,
    some.sampled_from([Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT]),
    run_s=some.floats(0.001, 1e6),
    cores=some.sampled_from([0.1, 0.5, 1, 7.25, 64]),
    memory_gib=some.sampled_from([0.0625, 1, 100]),
    read=some.sampled_from([0, 1000, 100 * MIB]),
    cpu_s=some.floats(0, 1e6),
    memory_peak_bytes=AMOUNTS,
    limit_hits=some.sampled_from([None, 0, 7]),
    memory_working_bytes=some.none() | AMOUNTS,
    largest_process_bytes=some.none() | AMOUNTS,
    read_bytes=AMOUNTS,
    read_peak_bps=some.none() | AMOUNTS,
    quota_periods=some.none() | some.just(100),
    throttled_periods=some.none() | some.integers(0, 100),
    most=some.sampled_from([0, 100_000]),
    cores_peak_milli=some.none() | some.integers(0, 100_000),
    beyond_us=some.none() | AMOUNTS,
)


@given(some.lists(PAST, max_size=12), some.booleans())
def test_advice_may_be_asked_for_and_is_enough_for_every_job_that_it_rests_on(jobs, has_ranges):
    advice = advise(jobs, has_ranges=has_ranges)
    if advice is None:
        return
    assert advice.cores_max_milli == 0 or advice.cores_max_milli > advice.demand.cores_milli
    assert (
        advice.demand.cores_milli >= 10
        and advice.demand.memory_bytes >= MIB
        and advice.time_limit_s >= 1
    )
    counted = [each for each in jobs if is_evidence(each)][:LAST]
    assert advice.jobs == len(counted)
    for each in counted:
        assert each.usage is not None
        if ran_out(each):
            assert advice.demand.memory_bytes > each.spec.demand.memory_bytes
        elif each.outcome is Outcome.COMPLETED and each.usage.limit_hits == 0:
            assert advice.demand.memory_bytes > each.usage.memory_peak_bytes
        if each.outcome is Outcome.TIMEOUT:
            assert advice.time_limit_s >= 2 * (each.spec.time_limit_s or 0)
        elif each.outcome is Outcome.COMPLETED:
            assert each.ended_at is not None and each.started_at is not None
            assert advice.time_limit_s >= (each.ended_at - each.started_at)


@given(some.lists(PAST, min_size=1, max_size=LAST))
def test_the_order_of_the_jobs_does_not_matter_when_there_are_enough(jobs):
    done = [each for each in jobs if each.outcome is Outcome.COMPLETED]
    if len(done) >= 3:
        assert advise(jobs, has_ranges=True) == advise(jobs[::-1], has_ranges=True)


@examples(100, quick=14)
@given(some.lists(PAST, min_size=3, max_size=LAST - 1), PAST)
def test_one_more_job_never_makes_the_advice_smaller(jobs, more):
    before = advise(jobs)
    if before is None or sum(each.outcome is Outcome.COMPLETED for each in jobs) < 3:
        return
    after = advise([*jobs, more])
    assert after is not None
    assert after.demand.memory_bytes >= before.demand.memory_bytes
    assert after.demand.cores_milli >= before.demand.cores_milli
    assert after.time_limit_s >= before.time_limit_s


def test_rates_are_for_the_disk_that_was_used_and_for_none_if_there_were_more():
    def on(*disks: tuple[str, int, int]) -> Job:
        was = ran(read_bytes=500 * MIB, written_bytes=0)
        asks = replace(was.spec.demand, read_bps=0, write_bps=0, disks=disks)
        return structs.replace(was, spec=replace(was.spec, demand=asks))

    data, both = ("data", 100 * MIB, 0), ("scratch", MIB, 0)
    assert rates(one(on(data, ("scratch", 0, 0)))) == ("data", 6 * MIB, 0)
    assert rates(one(on(data, both)))[1:] == (0, 0)
    assert rates(one(on(data), on(both)))[1:] == (0, 0)


# -- which jobs are alike --------------------------------------------------------------------------


def kind(name: str, *argv: str) -> tuple[str, ...]:
    return kind_of_job(
        structs.replace(ran(), spec=replace(spec(name=name), command=command_text(argv)))
    )


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        # The name is the first word alone.
        (("sleep", "sleep", "60"), ("sleep", "sleep", "1"), False),
        (("sim", "./sim", "a"), ("sim", "./sim", "a"), True),
        # Interpreters and shells run something else each time, under whatever name.
        (("python3", "python3", "train.py"), ("python3", "python3", "plot.py"), False),
        (("python3", "python3", "train.py"), ("python3", "python3", "train.py"), True),
        (("day", "bash", "-c", "fit a"), ("day", "bash", "-c", "fit b"), False),
        (("day", "/usr/bin/python3.11", "a.py"), ("day", "/usr/bin/python3.11", "b.py"), False),
        # A name that somebody has chosen, for one program.
        (("train", "./fit", "a"), ("train", "./fit", "b"), True),
        (("train", "./fit", "a"), ("train", "./plot", "a"), False),
        (("train", "./fit", "a"), ("test", "./fit", "a"), False),
    ],
)
def test_jobs_are_alike_by_name_and_command(one, other, are_alike):
    assert (kind(*one) == kind(*other)) is are_alike


# -- advice as options -----------------------------------------------------------------------------


#: Advice is in whole mebibytes, but for a rate that was declared.
RATES = some.just(0) | some.integers(4096, 1 << 40)


@some.composite
def advices(draw: some.DrawFn) -> Advice:
    disk = draw(some.sampled_from(["", "data"]))
    axes = "cores", "memory", *disk_axes([disk])
    cores = draw(some.integers(1, 2000)) * 500
    amounts = cores, draw(some.integers(MIB, 1 << 50)), draw(RATES), draw(RATES)
    return Advice(
        demand=replace(
            NOTHING.with_amounts(dict(zip(axes, amounts, strict=True))),
            gres=draw(some.sampled_from([(), (("gpu", 2),)])),
            gres_memory=draw(some.sampled_from([(), (("gpu", 20 * GIB),)])),
        ),
        cores_max_milli=draw(some.sampled_from([0, 1_000_500])),
        time_limit_s=draw(some.integers(1, 1 << 30)),
        jobs=3,
        short_jobs=0,
    )


@given(advices())
def test_advice_can_be_typed(advice):
    words = advice_options(advice)
    given = dict(zip(words[::2], words[1::2], strict=True))
    asks, most = advice.demand, advice.cores_max_milli
    cores = Range(asks.cores_milli, most) if most else asks.cores_milli
    assert parse_cores_range(given["-c"]) == cores
    assert parse_memory(given["-m"]) == advice.demand.memory_bytes
    assert parse_duration(given["-t"]) == advice.time_limit_s
    assert ("--io" in given) is any(rate_sums(asks))
    if "--io" in given:
        read, write = rate_sums(asks)
        assert parse_disk_rates(given["--io"]) == (min(asks.used_disks, default=None), read, write)
    memory = dict(advice.demand.gres_memory).get("gpu")
    gres = parse_gres(given["--gres"]) if "--gres" in given else ()
    assert gres == ((Gres("gpu", 2, memory),) if advice.demand.gres else ())


# -- changes ---------------------------------------------------------------------------------------


def test_why_a_range_is_advised_is_told_with_its_figures():
    def note(most_milli: int, **reason: Any) -> str | None:
        return cores_note(
            Advice(
                demand=demand(2, 1), cores_max_milli=most_milli, time_limit_s=60,
                cores_reason=CoresReason(**reason), jobs=3, short_jobs=0,
            )
        )  # fmt: skip

    bursts = {"is_above_floor": False, "mean_milli": 1604, "declared_milli": 8000}
    assert note(8000, **bursts) == (
        "used 1.6 of 8 cores on average, at times all of them: a range books 2 and may use 8"
    )
    # Too few jobs to lower the figure.
    assert note(0, **bursts) is None
    above = {"is_above_floor": True, "mean_milli": 1604, "declared_milli": 500}
    assert note(0, **above) == "used 1.6 of 0.5 declared on average: asking for 2 guarantees it"


def test_what_stays_as_it_was_is_not_said_again():
    either = spec(asks=demand(8, 16), time_limit_s=7200)
    assert changed_options(either, either) == []
    fewer_cores = replace(either, demand=replace(either.demand, cores_milli=5000))
    assert changed_options(either, fewer_cores) == ["-c", "5"]
    less = replace(either, demand=replace(either.demand, cores_milli=500, memory_bytes=7680 * MIB))
    assert changed_options(either, less) == ["-c", "0.5", "-m", "7680M"]
    assert changed_options(either, replace(less, time_limit_s=29 * 60)) == [
        *("-c", "0.5", "-m", "7680M", "-t", "29m")
    ]


def test_a_smaller_range_keeps_its_upper_end():
    either = spec(asks=demand(8, read=80 * MIB, write=10 * MIB), cores_max_milli=16_000)
    less = replace(either, demand=demand(2, read=40 * MIB, write=10 * MIB))
    assert changed_options(either, less) == ["-c", "2..16", "--io", "40M/10M"]
