"""What is said of an ended job beyond its cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import drfd.launcher
from drfd.core.ending import CURES, explain_end
from drfd.core.job import Job, JobState, Outcome, Usage
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


USED = "12.2s of CPU time (0.4 of 2 cores on average) and 100M of 1G of memory"
LOOK = "what it said: drf log --err 7"
NAMED = "the kernel's log names the process that it killed first: journalctl -k --grep oom-kill"


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CANCELLED, Outcome.LIMIT_EXCEEDED])
def test_what_it_used_is_summed_up(outcome: Outcome) -> None:
    assert explain_end(job(outcome)) == [f"it ran for 30.5s and used {USED}"]


@pytest.mark.parametrize("outcome", [*Outcome, None])
def test_of_a_job_that_nobody_has_seen_nothing_is_made_up(outcome: Outcome | None) -> None:
    unseen = replace(job(Outcome.LOST), outcome=outcome, usage=None)
    assert not any("used" in line or "CPU" in line for line in explain_end(unseen))


def test_a_job_of_a_moment_has_no_mean() -> None:
    assert explain_end(job(Outcome.COMPLETED, run_s=0.02, cpu_s=0.0)) == [
        "it ran for 0.0s and used 0.0s of CPU time and 100M of 1G of memory"
    ]


def test_out_of_its_own_memory() -> None:
    ended = job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, oom_kills=2, signal=9,
        largest_process_bytes=900 * MIB,
    )  # fmt: skip
    assert explain_end(ended) == [
        "it was killed 30.5s after its start, with a peak of 1G and a limit of 1G",
        "the largest of its processes had 900M, shared pages included",
        NAMED,
    ]


def test_out_of_memory_by_many_small_processes_and_a_child_s_fault() -> None:
    ended = job(
        Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, oom_kills=1, exit_code=3,
        largest_process_bytes=200 * MIB,
    )  # fmt: skip
    assert explain_end(ended)[1:] == [
        "its first process was not the one: it ended with exit code 3",
        "the largest of its processes had 200M, shared pages included; "
        "all of them together reached the limit",
        NAMED,
    ]


def test_out_of_memory_of_which_no_process_is_known_and_that_never_started_to_be_timed() -> None:
    ended = job(Outcome.OUT_OF_MEMORY, memory_peak_bytes=GIB, signal=9)
    assert explain_end(replace(ended, started_at=None)) == [
        "it was killed 0.0s after its start, with a peak of 1G and a limit of 1G",
        NAMED,
    ]


@pytest.mark.parametrize(
    ("kills", "who"), [(1, "the kernel chose it"), (0, "systemd-oomd or somebody else did it")]
)
def test_the_machines_own_shortage_is_not_the_jobs_fault(kills: int, who: str) -> None:
    first, chooser, cure = explain_end(job(Outcome.OUT_OF_MEMORY, oom_kills=kills, signal=9))
    assert first.endswith("with a peak of 100M and a limit of 1G")
    assert who in chooser
    assert "submit it again" in cure and "capacity.reserve_memory" in cure


@pytest.mark.parametrize(
    ("late", "found"),
    [
        (None, []),
        (1990, ["near its end it still used 1.99 cores: it was at work"]),
        (100, ["near its end it still used 0.1 cores: it was at work"]),
        (
            96,
            ["near its end it used 0.1 cores: it may have waited for something, not computed"],
        ),
    ],
)
def test_whether_it_was_at_work_when_its_time_was_up(late: int | None, found: list[str]) -> None:
    lines = explain_end(job(Outcome.TIMEOUT, late_cores_milli=late))
    assert lines == [f"it ran for 30.5s and used {USED}", *found]


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ({"exit_code": 1}, []),
        ({"exit_code": 255}, []),
        (
            {"exit_code": 126},
            ["126 is a shell's word for: the command was found and could not be executed"],
        ),
        ({"exit_code": 127}, ["127 is a shell's word for: there is no such command"]),
        (
            {"exit_code": 139},
            [
                "139 is a shell's word for: what it ran was killed by SIGSEGV",
                "it used memory that was not its own: a fault of the program",
            ],
        ),
        (
            {"exit_code": 137},
            [
                "137 is a shell's word for: what it ran was killed by SIGKILL",
                "somebody else sent it, or a program of the job's own: drfd did not, "
                "and the kernel has counted no kill for memory in it",
            ],
        ),
        ({"exit_code": 128}, []),
        ({"exit_code": 161}, []),
        (
            {"signal": 15, "oom_kills": None},
            ["somebody else sent it, or a program of the job's own: drfd did not"],
        ),
        ({"signal": 6}, ["it gave up by itself, after a failed check of its own"]),
        ({"signal": 40}, []),
        (
            {"exit_code": 1, "memory_peak_bytes": 1000 * MIB},
            ["its memory came up to 1000M of 1G"],
        ),
    ],
)
def test_codes_and_signals_are_named(end: dict[str, int], found: list[str]) -> None:
    assert explain_end(job(Outcome.FAILED, **end)) == [*found, LOOK]


def test_a_lost_job_tells_what_was_seen_of_it() -> None:
    assert explain_end(job(Outcome.LOST)) == [
        f"until then it had used {USED}",
        "whether its work was done only its output can tell; submit it again if not",
    ]


def test_what_helps_when_a_launch_has_failed() -> None:
    failed = job(Outcome.LAUNCH_FAILED, "there is no command x in the job's PATH")
    (cure,) = explain_end(failed)
    assert cure.startswith("write its full path")
    assert explain_end(job(Outcome.LAUNCH_FAILED, "something new")) == []


@pytest.mark.parametrize("words", [words for words, _ in CURES])
def test_each_cure_is_for_words_that_the_launcher_says(words: str) -> None:
    place = Path(drfd.launcher.__path__[0])
    sources = [(place / name).read_text() for name in ("child.py", "identity.py")]
    assert any(words in source for source in sources)
