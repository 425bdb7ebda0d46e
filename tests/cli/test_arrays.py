"""Arrays on the command line: what is asked for, and the screens."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob
from cli.drf import Drf

LIMIT = {"code": "LIMIT", "text": "array 42 runs 2 tasks at once at the most"}
ARRAY: dict[str, Any] = {
    "id": 42, "array_id": 42, "array_index": None, "array_tasks": "0-99%2", "tasks": 100,
    "name": "fit", "user": "alice", "uid": 1001, "pool": "root.alice",
    "counts": {"PENDING": 93, "RUNNING": 2, "COMPLETED": 2, "FAILED": 3},
    "indices": {"FAILED": "1-2,4"},
    "demand": {"cores": 1.0, "memory": 1 << 30, "read": 0, "write": 0, "gres": {}},
    "time_limit_s": 3600, "priority": 0, "submitted_at": 1_700_000_000.0, "cwd": "/home/alice",
    "argv": ["fit", "--fast"], "stdout": "drf-%A_%a.out", "stderr": "drf-%A_%a.err",
    "after": [], "begin_at": None, "retry": None, "warn": None, "attempts": "",
}  # fmt: skip


def text(screen: str) -> str:
    return textwrap.dedent(screen).strip("\n")


def test_the_screen_shows_as_many_indices_as_fit_and_json_all(
    drf: Drf, daemon: CannedDaemon
) -> None:
    indices = ",".join(str(at * at) for at in range(999))
    array = {**ARRAY, "indices": {"FAILED": indices}}
    daemon.replies = {"show": {"array": array, "events": []}}
    (line,) = [each for each in drf("show", 42).out.splitlines() if each.startswith("failed")]
    assert line.startswith("failed     0,1,4,9,16,")
    assert line.endswith("…")
    assert len(line) < 220
    assert json.loads(drf("show", "--json", 42).out)["indices"] == {"FAILED": indices}


def test_a_wait_for_an_array_exits_as_its_first_bad_task(drf: Drf, daemon: CannedDaemon) -> None:
    outcome = {"code": "TIMEOUT", "text": "98 of 100 tasks completed; 2 TIMEOUT (3,7)"}
    told = {**ARRAY, "state": "TIMEOUT", "reason": None, "outcome": outcome, "status": 124}
    daemon.replies = {
        "submit": {"id": 42, "tasks": 100},
        "wait": {"done": True, "ended": [told]},
    }
    result = drf("submit", "-w", "--array", "0-99", "--", "true")
    assert result.code == 124
    assert result.err == "drf: array 42 TIMEOUT: 98 of 100 tasks completed; 2 TIMEOUT (3,7)\n"
    result = drf("wait", 42)
    assert result.code == 124
    assert result.out == "array 42 TIMEOUT: 98 of 100 tasks completed; 2 TIMEOUT (3,7)\n"


# -- screens -----------------------------------------------------------------------------------


def test_status_has_one_row_for_what_waits_and_one_for_each_that_runs(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    task = {"array_id": 42, "name": "fit"}
    rows = [
        job(id=48, array_index=5, **task),
        job(id=49, array_index=6, **task),
        job(
            array_index=None, array_tasks="7-99%2", tasks=93, state="PENDING", reason=LIMIT,
            started_at=None, **task,
        ),
    ]  # fmt: skip
    for row in rows[:2]:
        row["ended_at"] = 1_700_000_100.0
    counts = {"RUNNING": 2, "PENDING": 93}
    daemon.replies = {"status": {"jobs": rows, "counts": counts, "draining": False}}
    result = drf("status")
    rule = "─" * 131
    assert text(result.screen) == text(f"""
          ID   NAME   USER    POOL         STATE     CORES   MEM   IO R/W    TIME   WHY
 {rule}
        42_5   fit    alice   root.alice   RUNNING       8   16G        -   1m30s
        42_6   fit    alice   root.alice   RUNNING       8   16G        -   1m30s
 42_[7-99%2]   fit    alice   root.alice   PENDING       8   16G        -       -   LIMIT: array 42 runs 2 tasks at once at the most

93 PENDING 2 RUNNING
""")  # noqa: E501
    assert daemon.asked("status")[0] == {
        "op": "status", "select": {"ids": [], "user": None, "states": []}, "ended": 0,
        "limit": 1000,
    }  # fmt: skip


@pytest.mark.parametrize("option", ["-r", "--array-tasks"])
def test_status_may_have_a_row_for_each_task(drf: Drf, daemon: CannedDaemon, option: str) -> None:
    daemon.replies = {"status": {"jobs": [], "counts": {}, "draining": False}}
    drf("status", option)
    assert daemon.asked("status")[0]["tasks"] is True


def test_a_long_list_of_indices_is_cut_in_a_table_and_whole_in_json(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    indices = ",".join(str(at) for at in range(0, 100, 2))
    row = job(array_id=42, array_tasks=indices, tasks=50, state="PENDING", started_at=None)
    daemon.replies = {"status": {"jobs": [row], "counts": {"PENDING": 50}, "draining": False}}
    assert " 42_[0,2,4,6,8,10,12,14,16,1…] " in drf("status").out
    assert json.loads(drf("status", "--json").out)["jobs"][0]["array_tasks"] == indices


def test_show_tells_how_the_tasks_of_an_array_stand(drf: Drf, daemon: CannedDaemon) -> None:
    events = [{"at": 1_700_000_000.0, "event": "ArraySubmitted", "text": "100 tasks"}]
    daemon.replies = {"show": {"array": ARRAY, "events": events}}
    result = drf("show", 42)
    assert (result.code, result.err) == (0, "")
    assert text(result.screen) == text("""
array      42 (fit) of alice, pool root.alice
indices    0-99%2
tasks      100: 2 COMPLETED, 3 FAILED, 93 PENDING, 2 RUNNING
failed     1-2,4
demand     1 core, 1G memory, io - each
limit      1h00m
submitted  2023-11-14 22:13:20
command    fit --fast
directory  /home/alice
output     drf-%A_%a.out
errors     drf-%A_%a.err
events
  2023-11-14 22:13:20  ArraySubmitted    100 tasks
""")
    assert json.loads(drf("show", "--json", 42).out) == {**ARRAY, "events": events}


@pytest.mark.parametrize("verb", ["show", "why"])
def test_a_task_is_asked_for_and_told_by_array_and_index(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, verb: str
) -> None:
    waits = job(id=50, array_id=42, array_index=7, state="PENDING", reason=LIMIT, started_at=None)
    daemon.replies = {verb: {"job": waits, "events": []}}
    assert "42_7" in drf(verb, "42_7").out.splitlines()[0]
    assert daemon.asked(verb)[0]["id"] == "42_7"


def test_why_of_an_array_counts_its_tasks_before_it_tells_of_one(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    bad = ended("FAILED", id=43, array_id=42, array_index=1, uid=os.getuid())
    tasks = {
        "id": 42, "tasks": 6, "counts": {"COMPLETED": 1, "FAILED": 3, "CANCELLED": 2},
        "indices": {"FAILED": "1-3", "CANCELLED": "5-6"},
    }  # fmt: skip
    daemon.replies = {"why": {"job": bad, "notes": [], "advice": None, "array": tasks}}
    lines = drf("why", 42).out.splitlines()
    assert lines[0] == "array 42 of 6 tasks: 2 CANCELLED (5-6), 1 COMPLETED, 3 FAILED (1-3)"
    assert lines[1].startswith("job 42_1 is FAILED")
    assert lines[-1] == "again: drf retry 42 --failed"
    assert json.loads(drf("why", 42, "--json").out)["array"] == tasks
    tasks["counts"]["FAILED"], tasks["indices"]["FAILED"] = 1, "1"  # type: ignore[index]
    assert drf("why", 42).out.splitlines()[-1] == "again: drf retry 42_1"


# -- log ---------------------------------------------------------------------------------------


def test_log_reads_the_output_of_one_task(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, tmp_path: Path
) -> None:
    path = tmp_path / "drf-42_7.out"
    path.write_text("hello\n")
    daemon.replies = {"show": {"job": job(array_id=42, array_index=7, stdout=str(path))}}
    assert drf("log", "42_7").out == "hello\n"


def test_log_of_an_array_names_a_task_to_ask_for(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"show": {"array": {**ARRAY, "array_tasks": "5,9-99"}}}
    result = drf("log", 42)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "drf: 42 is an array; each task has an output of its own "
        "(drf log 42_5; of all: drf log '42_[5,9-99]')\n"
    )
