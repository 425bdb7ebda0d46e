"""Each note on an ended job has its sentence, word by word."""

from __future__ import annotations

from typing import get_args

import pytest

from drfd.core.explain.ended_jobs import (
    FAULT_SIGNALS,
    AllRuns,
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
)
from drfd.wording.ends import end_text

MIB, GIB = 1 << 20, 1 << 30
USED = ResourcesUsed(12.25, 400, 2000, 100 * MIB, GIB)
USED_TEXT = "12.2s of CPU time (0.4 of 2 cores on average) and 100M of 1G of memory"

SENTENCES: list[tuple[EndNote, str]] = [
    (Ran(30_500, USED), f"it ran for 30.5s and used {USED_TEXT}"),
    (
        Ran(20, ResourcesUsed(0.0, None, 2000, 100 * MIB, GIB)),
        "it ran for 0.0s and used 0.0s of CPU time and 100M of 1G of memory",
    ),
    (
        Ran(90_000, ResourcesUsed(80.0, 880, 2000, 100 * MIB, GIB)),
        "it ran for 1m30s and used 1m20s of CPU time (0.88 of 2 cores on average) "
        "and 100M of 1G of memory",
    ),
    (
        Ran(30_500, USED, is_last_of_many=True),
        f"its last run took 30.5s and used {USED_TEXT}",
    ),
    (
        AllRuns(3, 90_000, 71.25),
        "its 3 runs together took 1m30s and used 1m11s of CPU time",
    ),
    (AllRuns(1, 25_000, None), "its only run took 25.0s"),
    (UsedBeforeLoss(USED), f"until then it had used {USED_TEXT}"),
    (WorkUnknown(), "whether its work was done only its output can tell; submit it again if not"),
    (
        KilledForMemory(30_500, 100 * MIB, GIB),
        "it was killed 30.5s after its start, with a peak of 100M and a limit of 1G",
    ),
    (
        KilledForMemory(30_500, 203 * MIB, GIB, is_measured=True),
        "it was stopped 30.5s after its start, with a peak of 203M and a limit of 1G",
    ),
    (
        MachineShort(by_kernel=True),
        "the kernel chose it when the whole machine was short; journalctl -k tells more",
    ),
    (
        MachineShort(by_kernel=False),
        "the kernel has counted no kill in it: systemd-oomd or somebody else did it; "
        "journalctl -u systemd-oomd tells more",
    ),
    (
        DemandNotAtFault(),
        "its demand was not the fault: submit it again; an administrator can keep more memory "
        "for the system with capacity.reserve_memory",
    ),
    (FirstProcessExited(3), "its first process was not the one: it ended with exit code 3"),
    (
        LargestProcess(900 * MIB, is_one_of_many=False),
        "the largest of its processes had 900M, shared pages included",
    ),
    (
        LargestProcess(200 * MIB, is_one_of_many=True),
        "the largest of its processes had 200M, shared pages included; "
        "all of them together reached the limit",
    ),
    (
        InKernelLog(),
        "the kernel's log names the process that it killed first: journalctl -k --grep oom-kill",
    ),
    (
        UsedNearEnd(1990, is_idle=False),
        "near its end it still used 1.99 cores: it was at work",
    ),
    (
        UsedNearEnd(96, is_idle=True),
        "near its end it used 0.1 cores: it may have waited for something, not computed",
    ),
    (
        ShellRefused(126),
        "126 is a shell's word for: the command was found and could not be executed",
    ),
    (ShellRefused(127), "127 is a shell's word for: there is no such command"),
    (
        ShellSawSignal(139, "SIGSEGV"),
        "139 is a shell's word for: what it ran was killed by SIGSEGV",
    ),
    (FaultSignal("SIGSEGV"), "it used memory that was not its own: a fault of the program"),
    (FaultSignal("SIGABRT"), "it gave up by itself, after a failed check of its own"),
    (
        SignalFromElsewhere(is_not_for_memory=True),
        "somebody else sent it, or a program of the job's own: drfd did not, "
        "and the kernel has counted no kill for memory in it",
    ),
    (
        SignalFromElsewhere(is_not_for_memory=False),
        "somebody else sent it, or a program of the job's own: drfd did not",
    ),
    (NearMemoryLimit(1000 * MIB, GIB), "its memory came up to 1000M of 1G"),
    (HasErrorOutput("4_7"), "what it said: drf log --err 4_7"),
    (HasErrorOutput("4_7", is_apart=False), "what it said: drf log 4_7"),
    (
        LaunchFault.NOT_IN_PATH,
        "write its full path, or set PATH before you submit: the job has yours",
    ),
]


@pytest.mark.parametrize(("note", "sentence"), SENTENCES)
def test_the_note_is_told_in_these_words(note: EndNote, sentence: str) -> None:
    assert end_text(note) == sentence


def test_every_kind_of_note_has_a_sentence_here() -> None:
    assert {type(note) for note, _ in SENTENCES} == set(get_args(EndNote))


@pytest.mark.parametrize("note", [*map(FaultSignal, sorted(FAULT_SIGNALS)), *LaunchFault])
def test_each_signal_and_each_launch_fault_has_its_own_words(note: EndNote) -> None:
    assert end_text(note)
