"""The notes on an ended job beyond its cause, as values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import drfd.launcher
from drfd.core.explain.ended_jobs import (
    DemandNotAtFault,
    EndNote,
    FaultSignal,
    FirstProcessExited,
    HasErrorOutput,
    InKernelLog,
    KilledForMemory,
    LargestProcess,
    LaunchFault,
    MachineShort,
    NearMemoryLimit,
    Ran,
    ResourcesUsed,
    ShellRefused,
    ShellSawSignal,
    SignalFromElsewhere,
    UsedBeforeLoss,
    UsedNearEnd,
    WorkUnknown,
    end_notes,
)
from drfd.core.model.job import Job, JobState, Outcome, Stop, Usage
from fakes import GIB, demand, spec

MIB = 1 << 20


def job(outcome: Outcome, text: str = "", run_s: float = 30.5, **changes: Any) -> Job:
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


USED = ResourcesUsed(12.25, 400, 2000, 100 * MIB, GIB)


@pytest.mark.parametrize("outcome", [*Outcome, None])
def test_of_a_job_that_nobody_has_seen_nothing_is_made_up(outcome: Outcome | None) -> None:
    unseen = replace(job(Outcome.LOST), outcome=outcome, usage=None)
    used = (Ran, UsedBeforeLoss, KilledForMemory, UsedNearEnd)
    assert not any(isinstance(note, used) for note in end_notes(unseen))


def test_out_of_its_own_memory() -> None:
    ended = job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, oom_kills=2, signal=9,
        largest_process_bytes=900 * MIB,
    )  # fmt: skip
    assert end_notes(ended) == [
        KilledForMemory(30_500, GIB, GIB),
        LargestProcess(900 * MIB, is_one_of_many=False),
        InKernelLog(),
    ]


def test_out_of_memory_by_many_small_processes_and_a_child_s_fault() -> None:
    ended = job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, oom_kills=1, exit_code=3,
        largest_process_bytes=200 * MIB,
    )  # fmt: skip
    assert end_notes(ended)[1:] == [
        FirstProcessExited(3),
        LargestProcess(200 * MIB, is_one_of_many=True),
        InKernelLog(),
    ]


def test_out_of_memory_of_which_no_process_is_known_and_that_never_started_to_be_timed() -> None:
    ended = job(Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, signal=9)
    assert end_notes(replace(ended, started_at=None)) == [
        KilledForMemory(0, GIB, GIB),
        InKernelLog(),
    ]


def test_out_of_memory_by_measurement_is_no_kill_and_in_no_kernel_s_log() -> None:
    stop = Stop(outcome=Outcome.OUT_OF_MEMORY, text="needed more", at_s=130.0, mono_s=30.0)
    ended = job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=3 * GIB, limit_hits=None, oom_kills=None, signal=15
    )
    assert end_notes(replace(ended, stop=stop)) == [
        KilledForMemory(30_500, 3 * GIB, GIB, is_measured=True)
    ]


@pytest.mark.parametrize(("kills", "by_kernel"), [(1, True), (0, False)])
def test_the_machines_own_shortage_is_not_the_jobs_fault(kills: int, by_kernel: bool) -> None:
    assert end_notes(job(Outcome.OUT_OF_MEMORY, oom_kills=kills, signal=9)) == [
        KilledForMemory(30_500, 100 * MIB, GIB),
        MachineShort(by_kernel),
        DemandNotAtFault(),
    ]


@pytest.mark.parametrize(
    ("late", "found"),
    [
        (None, []),
        (1990, [UsedNearEnd(1990, is_idle=False)]),
        (100, [UsedNearEnd(100, is_idle=False)]),
        (96, [UsedNearEnd(96, is_idle=True)]),
    ],
)
def test_whether_it_was_at_work_when_its_time_was_up(
    late: int | None, found: list[EndNote]
) -> None:
    notes = end_notes(job(Outcome.TIMEOUT, late_cores_milli=late))
    assert notes == [Ran(30_500, USED), *found]


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ({"exit_code": 1}, []),
        ({"exit_code": 255}, []),
        ({"exit_code": 126}, [ShellRefused(126)]),
        ({"exit_code": 127}, [ShellRefused(127)]),
        ({"exit_code": 139}, [ShellSawSignal(139, "SIGSEGV"), FaultSignal("SIGSEGV")]),
        (
            {"exit_code": 137},
            [ShellSawSignal(137, "SIGKILL"), SignalFromElsewhere(is_not_for_memory=True)],
        ),
        ({"exit_code": 128}, []),
        ({"exit_code": 161}, []),
        (
            {"signal": 15, "oom_kills": None},
            [SignalFromElsewhere(is_not_for_memory=False)],
        ),
        ({"signal": 6}, [FaultSignal("SIGABRT")]),
        ({"signal": 40}, []),
        (
            {"exit_code": 1, "memory_peak_bytes": 1000 * MIB},
            [NearMemoryLimit(1000 * MIB, GIB)],
        ),
    ],
)
def test_codes_and_signals_are_named(end: dict[str, int], found: list[EndNote]) -> None:
    assert end_notes(job(Outcome.FAILED, **end)) == [*found, HasErrorOutput("7")]


def test_what_a_job_wrote_to_a_terminal_is_in_no_log() -> None:
    failed = job(Outcome.FAILED, exit_code=1)
    assert end_notes(replace(failed, spec=replace(failed.spec, attach="/run/attach"))) == []


def test_a_lost_job_tells_what_was_seen_of_it() -> None:
    assert end_notes(job(Outcome.LOST)) == [
        UsedBeforeLoss(USED),
        WorkUnknown(),
    ]


def test_work_that_never_began_is_not_unknown() -> None:
    lost = replace(job(Outcome.LOST), usage=None, loss="SLURM_NOT_STARTED")
    assert end_notes(lost) == []


def test_what_helps_when_a_launch_has_failed() -> None:
    failed = job(Outcome.LAUNCH_FAILED, "there is no command x in the job's PATH")
    assert end_notes(failed) == [LaunchFault.NOT_IN_PATH]
    assert end_notes(job(Outcome.LAUNCH_FAILED, "something new")) == []


@pytest.mark.parametrize("fault", LaunchFault)
def test_each_launch_fault_is_known_by_words_that_the_launcher_says(fault: LaunchFault) -> None:
    place = Path(drfd.launcher.__path__[0], "runner")
    sources = [(place / name).read_text() for name in ("failures.py", "identity.py")]
    assert any(fault.value in source for source in sources)
