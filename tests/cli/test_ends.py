"""What is told of a job that did not complete: one line, and the end of its errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message, Refuse
from cli.drf import Drf, Finish, Spawn

LINE = "drf: job 42 FAILED: exit code 127\n"
WAYS = [("wait", "--json", 42), ("submit", "-q", "-w", "--", "true")]


def mine(ended: MakeJob, tmp_path: Path, said: bytes, **changes: Any) -> Message:
    """A failed job of whoever runs the test, with these errors."""
    (tmp_path / "err").write_bytes(said)
    files = {"stderr": str(tmp_path / "err"), "stdout": str(tmp_path / "out")}
    return ended("FAILED", 127, **({"uid": os.getuid()} | files | changes))


def told(daemon: CannedDaemon, job: Message) -> None:
    daemon.replies = {"submit": {"id": 42}, "wait": {"done": True, "ended": [job]}}


@pytest.mark.parametrize("words", WAYS, ids=lambda words: words[0])
def test_a_failed_job_is_told_with_its_last_errors(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path, words: tuple[object, ...]
) -> None:
    told(daemon, mine(ended, tmp_path, b"bash: line 1: pyhton: command not found\n"))
    result = drf(*words)
    assert result.code == 127
    assert result.err == (
        f"{LINE}drf: the last errors of job 42 (drf log --err 42 prints all):\n"
        "  | bash: line 1: pyhton: command not found\n"
    )


def test_five_lines_of_bounded_length_are_shown_and_none_acts_on_the_terminal(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path
) -> None:
    lines = [f"line {number}" for number in range(1000)]
    bad = "\x1b[31mred\x1b]0;title\x07\x9b\u202e" + "x" * 9000
    told(daemon, mine(ended, tmp_path, "\n".join([*lines, "10%\r90%", bad, "", ""]).encode()))
    shown = drf("submit", "-w", "--", "true").err.splitlines()[2:]
    assert 1 <= len(shown) <= 5
    assert all(line.startswith("  | ") and line.isprintable() and len(line) < 210 for line in shown)
    told(daemon, mine(ended, tmp_path, "\n".join([*lines, "10%\r90%", "\x1b[31mred", ""]).encode()))
    shown = drf("submit", "-w", "--", "true").err.splitlines()[2:]
    assert shown == ["  | line 997", "  | line 998", "  | line 999", "  | 90%", "  | red"]


def test_one_file_for_both_streams_is_named_as_output(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path
) -> None:
    told(daemon, mine(ended, tmp_path, b"no such file\n", stdout=str(tmp_path / "err")))
    assert drf("submit", "-w", "--", "true").err == (
        f"{LINE}drf: the last output of job 42 (drf log 42 prints all):\n  | no such file\n"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": os.getuid() + 1},
        {"started_at": None},
        {"stderr": None},
        {"stderr": "/dev/null"},
        {"stderr": "/nowhere/drf-42.err"},
        {"stderr": "/"},
    ],
    ids=str,
)
def test_nothing_is_read_that_is_not_the_callers_own_output_of_this_job(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path, changes: dict[str, Any]
) -> None:
    told(daemon, mine(ended, tmp_path, b"what another said\n", **changes))
    assert drf("submit", "-w", "--", "true").err == LINE


def test_of_many_ends_each_has_a_line_and_three_their_errors(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path
) -> None:
    jobs = [mine(ended, tmp_path, b"oh\n", id=number) for number in range(1, 6)]
    daemon.replies = {"wait": {"done": True, "ended": [*jobs, ended(id=6)]}}
    lines = drf("wait", *range(1, 7)).err.splitlines()
    assert [line for line in lines if "FAILED" in line] == [
        f"drf: job {number} FAILED: exit code 127" for number in range(1, 6)
    ]
    assert lines.count("  | oh") == 3


def test_a_failed_array_shows_the_errors_of_its_first_failed_task(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path
) -> None:
    task = mine(ended, tmp_path, b"no data\n", id=50, array_id=42, array_index=7)
    array = {
        **ended("FAILED", 127, text="98 of 100 tasks completed; 2 FAILED (7,9)"),
        "array_tasks": "0-99", "indices": {"FAILED": "7,9", "CANCELLED": "3"},
    }  # fmt: skip
    daemon.replies = {"wait": {"done": True, "ended": [array]}, "show": {"job": task}}
    assert drf("wait", 42).err == (
        "drf: array 42 FAILED: 98 of 100 tasks completed; 2 FAILED (7,9)\n"
        "drf: the last errors of job 42_7 (drf log --err 42_7 prints all):\n"
        "  | no data\n"
    )
    assert daemon.requests[-1] == {"op": "show", "id": "42_7"}


def test_an_array_whose_task_is_not_told_has_its_line_alone(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, refuse: Refuse
) -> None:
    array = {**ended("FAILED", 3), "array_tasks": "0-9", "indices": {"FAILED": "7"}}
    told(daemon, array)
    daemon.replies["show"] = refuse("Refused", "no-such-job", "it is gone")
    assert drf("submit", "-w", "--", "true").err == "drf: array 42 FAILED: exit code 3\n"


@pytest.mark.parametrize(
    ("number", "line"),
    [(11, "drf: job 42 FAILED: killed by signal 11 (SIGSEGV)\n"), (2, ""), (13, "")],
)
def test_an_attached_run_tells_the_signal_that_killed_it_as_a_shell_does(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, ended: MakeJob, number: int, line: str
) -> None:
    text = f"killed by signal {number} (SIGSEGV)"
    told(daemon, ended("FAILED", 128 + number, text=text, exit_code=None, signal=number))
    result = finish(spawn("run", "--", "true"))
    assert (result.code, result.err) == (128 + number, line)
