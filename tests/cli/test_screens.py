"""What each reading verb asks for, prints for people, and prints for programs."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
import time
from typing import Any, cast

import pytest

from canned import CannedDaemon, MakeJob
from cli.drf import Drf, Finish, Spawn
from drfd.protocol.replies import USED
from drfd_cli.commands import status
from drfd_cli.output import show_when, start_line, why_line

WHY = {
    "code": "RESOURCES",
    "text": "needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05 at the latest",
}
SHARES: dict[str, Any] = {
    "capacity": {"cores": 16.0, "memory": 120 << 30, "read": 1 << 30, "write": 1 << 29, "gres": {}},
    "free": {"cores": 4.0, "memory": 60 << 30, "read": 1 << 30, "write": 1 << 29, "gres": {}},
    "nodes": [
        {
            "path": "root.alice", "weight": 1.0, "entitlement": 0.5,
            "usage": {"cores": 8.0, "memory": 16 << 30, "read": 0, "write": 0, "gres": {}},
            "dominant_resource": "cores", "dominant_share": 0.5, "satisfaction": 1.0,
            "running": 1, "pending": 2,
        },
        {
            "path": "root.lab", "weight": 3.5, "entitlement": 0.5,
            "usage": {"cores": 0.0, "memory": 0, "read": 0, "write": 0, "gres": {}},
            "dominant_resource": None, "dominant_share": 0.0, "satisfaction": 0.0,
            "running": 0, "pending": 0,
        },
    ],
}  # fmt: skip
DOCTOR: dict[str, Any] = {
    "version": "0.1.0",
    "enforcement": "cgroup v1",
    "controls": {"cores": "enforced (cfs quota)", "memory": "enforced"},
    "disks": [
        {"name": "data", "path": "/data", "device": "8:0", "read": 1 << 30, "write": 1 << 29,
         "filesystem": "ext4", "control": {"read": "enforced", "write": "enforced"},
         "guess": False, "problem": ""},
        {"name": "state", "path": "/var", "device": None, "read": 1 << 30, "write": 1 << 29,
         "filesystem": "", "control": {"read": "not controlled: /var is on no block device"},
         "guess": True, "problem": "/var is on no block device"},
    ],
    "capacity": SHARES["capacity"],
    "warnings": ["capacity.cores is 16, but the machine has 8"],
    "stuck_jobs": [3],
    "cures": ["the speed of disk state is a guess: drfd calibrate measures it"],
    "launcher": "connected",
}  # fmt: skip


def text(screen: str) -> str:
    return textwrap.dedent(screen).strip("\n")


def test_nothing_printed_has_colour_when_nobody_looks(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies = {
        "status": {"jobs": [job()], "counts": {"RUNNING": 1}, "draining": False},
        "shares": SHARES,
    }
    for verb in ("status", "shares"):
        assert "\x1b" not in drf(verb).out


# -- status ------------------------------------------------------------------------------------


def test_status_is_a_table_with_reasons_and_counts(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies = {
        "status": {
            "jobs": [
                job(ended_at=1_700_000_100.0),
                job(id=43, state="PENDING", reason=WHY, started_at=None),
                job(
                    id=7,
                    name="a-very-long-name-of-a-job-indeed",
                    state="COMPLETED",
                    ended_at=1_700_000_070.0,
                    outcome={"code": "COMPLETED", "text": "exit code 0"},
                    demand={
                        "cores": 0.5,
                        "memory": 1 << 29,
                        "read": 200 << 20,
                        "write": 50 << 20,
                        "gres": {},
                    },
                ),
            ],
            "counts": {"PENDING": 1, "RUNNING": 1, "COMPLETED": 1},
            "draining": False,
        }
    }
    result = drf("status")
    rule = "─" * 158
    assert text(result.screen) == text(f"""
 ID   NAME                       USER    POOL         STATE       CORES    MEM     IO R/W    TIME   WHY
 {rule}
 42   train                      alice   root.alice   RUNNING         8    16G          -   1m30s
 43   train                      alice   root.alice   PENDING         8    16G          -       -   RESOURCES: needs 8 cores, 3 free; job 40 (bob) holds 5
                                                                                                    until 14:05 at the latest
  7   a-very-long-name-of-a-j…   alice   root.alice   COMPLETED     0.5   512M   200M/50M   1m00s   COMPLETED: exit code 0

1 COMPLETED 1 PENDING 1 RUNNING
""")  # noqa: E501
    assert (result.code, result.err) == (0, "")


def pages(job: MakeJob) -> list[dict[str, Any]]:
    """Two replies that make up one list: three rows, and one that is wider."""
    names = [["a", "b", "c"], ["longer-than-the-others"]]
    shown = [[job(name=name) for name in each] for each in names]
    counts = [{"RUNNING": 3}, {"RUNNING": 1, "PENDING": 2}]
    return [
        {"jobs": jobs, "counts": each, "draining": False, "after": after}
        for jobs, each, after in zip(shown, counts, ([41, False], None), strict=True)
    ]


def test_a_list_of_many_pages_is_printed_as_one(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies = {"status": pages(job)}
    heading, *rows, counts = drf("status").out.splitlines()
    assert heading.split()[:4] == ["ID", "NAME", "USER", "POOL"]
    assert [row.split()[1] for row in rows] == ["a", "b", "c", "longer-than-the-others"]
    assert counts == "2 PENDING 4 RUNNING"
    assert [asked.get("after") for asked in daemon.asked("status", times=2)] == [None, [41, False]]


def test_a_list_of_many_pages_is_one_to_programs_too(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies = {"status": pages(job)}
    told = json.loads(drf("status", "--json").out)
    assert [row["name"] for row in told["jobs"]] == ["a", "b", "c", "longer-than-the-others"]
    assert told["counts"] == {"RUNNING": 4, "PENDING": 2}
    daemon.replies = {"status": pages(job)}
    lines = drf("status", "--parsable", "--columns", "name").out.splitlines()
    assert lines == ["name", "a", "b", "c", "longer-than-the-others"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], {}),
        (["3", "5"], {"select": {"ids": [3, 5], "user": None, "states": []}}),
        (
            ["-u", "bob", "-s", "pending", "-s", "HELD"],
            {"select": {"ids": [], "user": "bob", "states": ["PENDING", "HELD"]}},
        ),
        (["--state", "suspended"], {"select": {"ids": [], "user": None, "states": ["SUSPENDED"]}}),
        (
            ["-n", "train-*"],
            {"select": {"ids": [], "user": None, "states": [], "name": "train-*"}},
        ),
        (["-a"], {"ended": 20}),
        (["--all"], {"ended": 20}),
        (
            ["-s", "failed"],
            {"select": {"ids": [], "user": None, "states": ["FAILED"]}, "ended": 20},
        ),
    ],
)
def test_status_asks_for_what_is_selected(
    drf: Drf, daemon: CannedDaemon, words: list[str], asked: dict[str, Any]
) -> None:
    daemon.replies = {"status": {"jobs": [], "counts": {}, "draining": False}}
    drf("status", *words)
    everything = {"ids": [], "user": None, "states": []}
    request = {"op": "status", "select": everything, "ended": 0, "limit": 1000}
    assert daemon.requests == [request | asked]


def test_a_list_of_ended_jobs_says_that_it_has_the_last_ones_only(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    counts = {"RUNNING": 30, "COMPLETED": 12, "FAILED": 7}
    reply = {"jobs": [ended()], "counts": counts, "draining": False}
    daemon.replies = {"status": reply}
    assert drf("status", "-a").err == ""
    counts["FAILED"] = 8
    said = "drf: of the ended jobs only the last 20 are listed; drf history -n 0 lists all\n"
    assert drf("status", "-a").err == said


def test_a_list_that_is_watched_begins_with_the_jobs_that_run(
    job: MakeJob, ended: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its end may not fit on the screen."""
    old, new = ended(id=3), {**ended(id=4), "ended_at": 1_700_000_200.0}
    jobs: Any = [old, new, job(id=5, state="PENDING", started_at=None), job(id=6)]
    reply: Any = {"jobs": jobs, "counts": {}, "draining": False, "after": None}
    status._print(iter([reply]), print, live_first=True)
    rows = capsys.readouterr().out.splitlines()[3:-2]
    assert [row.split()[0] for row in rows] == ["6", "5", "4", "3"]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_groups_have_a_column_where_there_are_some_and_there_is_room(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    jobs = [job(), job(id=43, group="media", group_at_once=2)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {"RUNNING": 2}, "draining": False}}
    out = drf("status").out
    assert ("GROUP" in out, " media " in out) == (columns > 60, columns > 60)
    assert max(map(len, out.splitlines())) <= columns
    jobs.pop()
    assert "GROUP" not in drf("status").out


def test_no_jobs_and_draining_are_talk(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"status": {"jobs": [], "counts": {}, "draining": True}}
    result = drf("status")
    assert (result.code, result.out) == (0, "")
    assert result.err == ("drf: draining: nothing is launched until drf undrain\ndrf: no jobs\n")


def test_what_is_wrong_with_the_service_comes_first(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    """While the launcher was away, a list of running jobs alone showed nothing of it."""
    notices = [{"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 12s"}]
    standing = {"launcher_away_s": 12.3, "notices": notices}
    reply = {"jobs": [job()], "counts": {"RUNNING": 1}, "draining": True, **standing}
    daemon.replies = {"status": reply}
    assert drf("status").err.splitlines() == [
        "drf: the launcher has been away for 12s",
        "drf: draining: nothing is launched until drf undrain",
    ]
    said = json.loads(drf("status", "--json").out)
    assert {key: said[key] for key in standing} == standing


def test_on_a_narrow_terminal_ids_and_states_are_never_cut(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 columns, and names as people have them: without its id nobody can name the job."""
    for name, value in (("COLUMNS", "80"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    long = job(
        id=123456,
        name="train-resnet-fold-3",
        user="firstname.lastname",
        pool="root.firstname.lastname",
        state="PENDING",
        reason=WHY,
        started_at=None,
    )
    daemon.replies = {"status": {"jobs": [long], "counts": {"PENDING": 1}, "draining": False}}
    lines = drf("status").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "ID" in lines[1].split()
    assert "STATE" in lines[1].split()
    assert {"123456", "PENDING"} <= set(lines[3].split())
    assert "RESOURCES" in "".join(lines)


@pytest.mark.parametrize("columns", [60, 72, 80])
def test_on_a_narrow_terminal_no_word_of_a_reason_is_cut(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    waits = {"state": "PENDING", "reason": WHY, "started_at": None}
    tasks = job(id=12, array_id=12, array_tasks="1-5,7-9%2", name="no-such-program", **waits)
    jobs = [job(), tasks]
    daemon.replies = {"status": {"jobs": jobs, "counts": {"PENDING": 9}, "draining": False}}
    out = drf("status").out
    assert max(map(len, out.splitlines())) <= columns
    told = " ".join(out.split())
    assert f"{WHY['code']}: {WHY['text']}" in told


@pytest.mark.parametrize("columns", [60, 80])
def test_on_a_narrow_terminal_no_figure_of_the_shares_is_cut(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    daemon.replies = {"shares": SHARES}
    out = drf("shares").out
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    rows = {row[0]: row for line in out.splitlines() if (row := line.split())}
    assert {"8", "16G", "50%"} <= set(rows["alice"])
    assert rows["alice"][-2:] == ["1", "2"]


def test_states_have_colours_for_who_sees_them(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.replies = {"status": {"jobs": [job()], "counts": {"RUNNING": 1}, "draining": False}}
    green = "\x1b[32mRUNNING\x1b[0m"
    for words in (["--color", "always", "status"], ["status", "--color", "always"]):
        assert green in drf(*words).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert green in drf("status", "--color", "always").out, "what is asked for now is meant"
    for words in (["status"], ["--color", "never", "status"], ["status", "--color", "auto"]):
        assert "\x1b" not in drf(*words).out


def test_the_queue_at_80_columns(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    daemon.replies = {
        "status": {
            "jobs": [
                job(ended_at=1_700_000_100.0),
                job(id=43, state="PENDING", reason=WHY, started_at=None),
            ],
            "counts": {"PENDING": 1, "RUNNING": 1},
            "draining": False,
        }
    }
    rule = "─" * 53
    assert text(drf("status").screen) == text(f"""
 ID   NAME    USER    STATE     CORES   MEM    TIME
 {rule}
 42   train   alice   RUNNING       8   16G   1m30s
 43   train   alice   PENDING       8   16G       -
      RESOURCES: needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05 at the
      latest

1 PENDING 1 RUNNING
""")


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (80, "python "), (None, "python "), (120, "python fit.py --lr 1e-3…"),
        (240, "python fit.py --lr 1e-3 --epochs 40 --out b.pt "),
    ],
)  # fmt: skip
def test_where_there_is_room_a_job_without_a_name_has_its_command(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch,
    columns: int | None, name: str,
) -> None:  # fmt: skip
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    argv = ["/usr/bin/python", "fit.py", "--lr", "1e-3", "--epochs", "40", "--out", "b.pt"]
    jobs = [job(name="python", argv=argv), job(id=43, argv=argv), job(id=44, argv=None)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {"RUNNING": 3}, "draining": False}}
    rows = [line for line in drf("status").screen.splitlines() if " alice " in line]
    assert f" {name}" in rows[0]
    assert "1e-3" not in rows[1] + rows[2]


def test_on_a_wide_screen_a_line_of_the_shell_stands_without_the_shell(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    line = ["sh", "-c", "fit a.txt\n| tail -5"]
    jobs = [job(name="fit", argv=line), job(id=43, name="sh", argv=line), job(id=44, argv=line)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {"RUNNING": 3}, "draining": False}}
    rows = [line for line in drf("status").screen.splitlines() if " alice " in line]
    assert ["fit a.txt | tail -5" in row for row in rows] == [True, True, False]


@pytest.mark.parametrize("columns", [80, 120, 240])
def test_the_same_reason_is_told_once_for_neighbours(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    other = {"code": "HELD", "text": "held by alice; drf release 47 lets it go"}
    demand = {**job()["demand"], "gres": {"gpu": 1, "licence": 2}}
    waits = {"state": "PENDING", "started_at": None, "demand": demand, "name": "x" * 30}
    jobs = [job(), *(job(id=at, reason=WHY, **waits) for at in (43, 44, 45, 46))]
    jobs.append(job(id=47, reason=other, **waits))
    reply = {"jobs": jobs, "counts": {"PENDING": 5}, "draining": False, "gres": ["gpu"]}
    daemon.replies = {"status": reply}
    out = drf("status").out
    assert max(map(len, out.splitlines())) <= columns
    assert len(out.splitlines()) <= 4 + len(jobs) + 2 + 4, "a reason takes a whole screen"
    told = " ".join(out.split())
    assert told.count(WHY["text"]) == (1 if columns < 240 else 4)
    assert told.count(other["text"]) == 1
    if columns < 240:
        assert f"43 to 46: {WHY['code']}: {WHY['text']}" in told
        assert f" {other['code']}: {other['text']}" in told


def test_in_a_file_each_job_has_its_reason(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    jobs = [job(id=at, state="PENDING", reason=WHY, started_at=None) for at in (43, 44)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {"PENDING": 2}, "draining": False}}
    assert " ".join(drf("status").out.split()).count(WHY["text"]) == 2


# -- for programs --------------------------------------------------------------------------------


def test_the_columns_for_programs_are_the_same_in_every_release(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    """New ones come at the end."""
    jobs = [job(), job(id=43, name="a\tb\nc", state="PENDING", reason=WHY, started_at=None)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {"RUNNING": 1}, "draining": True}}
    result = drf("status", "--parsable")
    assert (result.code, result.err) == (0, "")
    header, first, second = (line.split("\t") for line in result.out.splitlines())
    assert header == [
        *("id", "name", "user", "pool", "state", "code", "cores", "memory", "read", "write"),
        *("time_limit_s", "priority", "attempt", "submitted_at", "started_at", "ended_at"),
        *("exit_code", "signal", "why", "array_id", "array_index", "array_tasks"),
        *("gres", "gres_instances", "group", "gres_memory", "cores_max", "read_max", "write_max"),
    ]
    assert first == [
        *("42", "train", "alice", "root.alice", "RUNNING", "", "8", "17179869184", "0", "0"),
        *("3600", "0", "1", "1700000000", "1700000010", *[""] * 14),
    ]
    assert dict(zip(header, second, strict=True))["name"] == "a?b?c"
    assert dict(zip(header, second, strict=True))["why"] == f"RESOURCES: {WHY['text']}"


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["--columns", "state,id"], "state\tid\nRUNNING\t42\n"),
        (["--columns", "id", "--no-header"], "42\n"),
        (["--parsable", "--columns", "id,code"], "id\tcode\n42\t\n"),
    ],
)
def test_columns_can_be_chosen(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, words: list[str], out: str
) -> None:
    daemon.replies = {"status": {"jobs": [job()], "counts": {"RUNNING": 1}, "draining": False}}
    assert drf("status", *words).out == out


def test_a_column_that_is_not_there_is_named(drf: Drf, daemon: CannedDaemon) -> None:
    result = drf("shares", "--columns", "path,colour")
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err == (
        "drf shares: Invalid value for '--columns': there is no column 'colour'; there are "
        "path, entitlement, dominant_share, dominant_resource, satisfaction, cores, memory, "
        "read, write, running, pending, gres, quota_used_hours, quota_share_hours\n"
    )


def test_no_jobs_are_a_header_alone(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"status": {"jobs": [], "counts": {}, "draining": False}}
    result = drf("status", "--columns", "id,state")
    assert (result.out, result.err) == ("id\tstate\n", "")
    assert drf("status", "--columns", "id", "--no-header").out == ""


def test_shares_for_programs(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"shares": SHARES}
    assert drf("shares", "--parsable", "--no-header").out == (
        "root.alice\t0.5\t0.5\tcores\t1\t8\t17179869184\t0\t0\t1\t2\t\t\t\n"
        "root.lab\t0.5\t0\t\t0\t0\t0\t0\t0\t0\t0\t\t\t\n"
    )


# -- what is counted -----------------------------------------------------------------------------


def with_gpus(view: dict[str, Any], count: int) -> dict[str, Any]:
    return view | {"gres": {"gpu": count} if count else {}}


def test_the_list_shows_who_has_which_gpus_where_there_are_any(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    two = with_gpus(job()["demand"], 2)
    jobs = [
        job(demand=two, gres_instances={"gpu": ["0", "1"]}),
        job(id=43, demand=two, gres_instances={}, state="PENDING", started_at=None),
        job(id=44),
    ]
    reply = {"jobs": jobs, "counts": {"RUNNING": 2}, "draining": False, "gres": ["gpu"]}
    daemon.replies = {"status": reply}
    lines = [line for line in drf("status").out.splitlines()[:-1] if line.strip()]
    at = lines[0].index("GRES")
    shown = [line[at:].split("  ")[0].strip() for line in lines[2:]]
    assert shown == ["gpu 0,1", "2 gpu", "-"]
    assert drf("status", "--columns", "gres,gres_instances", "--no-header").out == (
        "gpu=2\tgpu=0,1\ngpu=2\t\n\t\n"
    )
    daemon.replies = {"status": reply | {"jobs": jobs[2:], "gres": []}}
    assert "GRES" not in drf("status").out


def test_a_job_is_shown_with_its_gpus(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    two = with_gpus(job()["demand"], 2)
    shown = job(demand=two, gres_instances={"gpu": ["0", "GPU-5c"]})
    daemon.replies = {"show": {"job": shown, "events": []}}
    lines = drf("show", 42).out.splitlines()
    assert "demand     8 cores, 16G memory, io -, 2 gpu" in lines
    limited = shown | {"demand": {**two, "gres_memory": {"gpu": 20 << 30}}}
    daemon.replies = {"show": {"job": limited, "events": []}}
    line = "demand     8 cores, 16G memory, io -, 2 gpu with 20G of memory each"
    assert line in drf("show", 42).out.splitlines()
    assert "gpu        0,GPU-5c" in lines
    daemon.replies = {"show": {"job": shown | {"memory_nodes": [0, 1]}, "events": []}}
    assert "near       memory node 0, 1" in drf("show", 42).out.splitlines()


RANGED = {"cores": 2.0, "cores_max": 8.0, "read": 50 << 20, "read_max": 200 << 20}


def test_a_range_is_shown_with_both_ends(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand = {**job()["demand"], **RANGED}
    rates = [{"text": "may read 40M/s now"}, {"text": "may write 1M/s now"}]
    shown = job(demand=demand, unlent="no cores are lent here", lent_disks=rates)
    daemon.replies = {
        "show": {"job": shown, "events": []},
        "status": {"jobs": [job(demand=demand)], "counts": {"RUNNING": 1}, "draining": False},
    }
    lines = drf("show", 42).out.splitlines()
    assert "demand     2..8 cores, 16G memory, io 50M..200M/0" in lines
    assert "range      no cores are lent here" in lines
    assert [line for line in lines if line.startswith("loan")] == [
        "loan       may read 40M/s now",
        "loan       may write 1M/s now",
    ]
    assert drf("status", "--parsable", "--columns", "cores,cores_max,read_max,write_max").out == (
        "cores\tcores_max\tread_max\twrite_max\n2\t8\t209715200\t\n"
    )
    monkeypatch.setenv("COLUMNS", "200")
    (row,) = [line.split() for line in drf("status").out.splitlines() if "alice" in line]
    assert {"2..8", "50M..200M/0"} <= set(row)


_GPU_USE = {
    "gpu_memory": 3 << 30, "gpu_memory_peak": 5 << 30, "gpu_utilisation": 180,
    "gpu_utilisation_mean": 90,
}  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "use", "shown"),
    [
        (2, _GPU_USE, "3G of memory, 5G peak memory, 180% busy, 90% on average"),
        (0, _GPU_USE, "3G of memory, 5G peak memory, 180% busy, 90% on average"),
        (2, _GPU_USE | {"gpu_memory": None, "gpu_utilisation": None},
         "5G peak memory, 90% on average"),
        (2, dict.fromkeys(_GPU_USE), "not measured"),
        (2, {}, "not measured"),
        (0, {}, None),
    ],
)  # fmt: skip
def test_a_job_is_shown_with_its_use_of_gpus(
    drf: Drf,
    daemon: CannedDaemon,
    job: MakeJob,
    gpus: int,
    use: dict[str, int],
    shown: str | None,
) -> None:
    """An older daemon sends nothing of it. A job may use one that it has not been given, where the
    kernel does not keep it from that."""
    plain = job()
    asks = with_gpus(plain["demand"], gpus) if gpus else plain["demand"]
    daemon.replies = {
        "show": {"job": plain | {"demand": asks, "usage": plain["usage"] | use}, "events": []}
    }
    lines = [line for line in drf("show", 42).out.splitlines() if line.startswith("GPU use")]
    assert lines == ([] if shown is None else [f"GPU use    {shown}"])


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ({"gpu_memory_each": {"0": 18 << 30, "GPU-b": 1 << 29}},
         "18G of 20G on GPU 0; 512M of 20G on GPU GPU-b"),
        ({"gpu_memory_each": {}, "gpu_memory_unkept": "not watched: no library"},
         "not watched: no library"),
        ({"gpu_memory_each": {"0": 0}, "gpu_memory_unkept": "not watched on GPU 1: it is lost"},
         "0 of 20G on GPU 0; not watched on GPU 1: it is lost"),
        ({"gpu_memory_each": {}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_job_is_shown_with_its_declared_memory_of_gpus(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, part: dict[str, Any], shown: str | None
) -> None:
    """A job that waits or has ended has none, and an older daemon says nothing."""
    asks = {**with_gpus(job()["demand"], 2), "gres_memory": {"gpu": 20 << 30}}
    daemon.replies = {"show": {"job": job() | {"demand": asks} | part, "events": []}}
    lines = [line for line in drf("show", 42).out.splitlines() if line.startswith("GPU memory")]
    assert lines == ([] if shown is None else [f"GPU memory {shown}"])


def test_shares_have_a_column_for_what_is_counted(drf: Drf, daemon: CannedDaemon) -> None:
    alice, lab = SHARES["nodes"]
    shares = {
        "capacity": with_gpus(SHARES["capacity"], 2),
        "free": with_gpus(SHARES["free"], 0),
        "nodes": [alice | {"usage": with_gpus(alice["usage"], 2)}, lab],
    }
    daemon.replies = {"shares": shares}
    rows = [row.split() for row in drf("shares").out.splitlines()]
    cells = {row[0]: row for row in rows if row}
    assert cells["alice"][-4:] == ["2", "gpu", "1", "2"]
    assert cells["lab"][-3:] == ["-", "0", "0"]
    assert cells["free"][-2:] == ["0", "gpu"]
    assert cells["capacity"][-2:] == ["2", "gpu"]
    daemon.replies = {"shares": SHARES}
    assert "GRES" not in drf("shares").out


def test_doctor_names_what_is_given_out(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"doctor": DOCTOR | {"gres": {"gpu": ["0", "1"], "tape": []}}}
    out = drf("doctor").out
    assert "  2 gpu to give out: 0, 1\n  0 tape to give out: -\n" in out


# -- times ---------------------------------------------------------------------------------------

NOON = 1_700_049_600.0  # 2023-11-15 12:00:00 UTC


@pytest.mark.parametrize(
    ("at_s", "shown"),
    [
        (NOON, "12:00 (in 0s)"),
        (NOON + 750, "12:12 (in 12m30s)"),
        (NOON - 7500, "09:55 (2h05m ago)"),
        (NOON + 15 * 3600, "tomorrow 03:00 (in 15h00m)"),
        (NOON - 13 * 3600, "yesterday 23:00 (13h00m ago)"),
        (NOON + 36 * 3600, "2023-11-17 00:00"),
        (NOON - 86400 * 400, "2022-10-11 12:00"),
    ],
)
def test_times_near_now_are_said_as_people_say_them(plain: None, at_s: float, shown: str) -> None:
    assert show_when(at_s, NOON) == shown


@pytest.mark.parametrize("hours", [23, 25])
def test_tomorrow_is_tomorrow_also_when_the_clock_changes(
    plain: None, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    # Noon of the day before a day that is so many hours long.
    noon = {23: 1_711_796_400.0, 25: 1_729_936_800.0}[hours]
    after = noon + (11 + hours) * 3600
    assert time.strftime("%H:%M", time.localtime(noon)) == "12:00"
    assert show_when(after, noon).startswith("tomorrow 23:00")


# -- show, why ---------------------------------------------------------------------------------


def test_show_prints_everything_about_a_job(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    events = [
        {"at": 1_700_000_000.0, "event": "Submitted", "text": ""},
        {"at": 1_700_000_010.0, "event": "Admitted", "text": "attempt 1"},
        {"at": 1_700_000_020.0, "event": "PreemptRequested", "text": "stopped for job 43"},
    ]
    daemon.replies = {"show": {"job": job(), "events": events}}
    result = drf("show", 42)
    assert daemon.requests == [{"op": "show", "id": 42}]
    assert (result.code, result.err) == (0, "")
    assert (
        result.out
        == text("""
        job        42 (train) of alice, pool root.alice
        state      RUNNING, attempt 1
        why        -
        demand     8 cores, 16G memory, io -
        limit      1h00m
        used       75.2 s of CPU, 1.5G peak memory, 1M read, 10 written
        submitted  2023-11-14 22:13:20
        started    2023-11-14 22:13:30
        ended      -
        cgroup     drfd/0123456789/job-42.1
        command    train --epochs '3 4'
        directory  /home/alice
        output     /home/alice/drf-42.out
        errors     /home/alice/drf-42.err
        events
          2023-11-14 22:13:20  Submitted
          2023-11-14 22:13:30  Admitted          attempt 1
          2023-11-14 22:13:40  PreemptRequested  stopped for job 43
    """)
        + "\n"
    )


def test_show_says_how_many_events_are_not_there(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    counts = {"events_omitted": 780, "events_dropped": 1203}
    daemon.replies = {"show": {"job": job(), "events": [], **counts}}
    assert drf("show", 42).out.endswith(
        "events\n"
        "  780 between the first and the last ones are not shown\n"
        "  1203 between the first and the last ones were not kept\n"
    )
    shown = json.loads(drf("show", "--json", 42).out)
    assert {key: shown[key] for key in counts} == counts


def test_a_command_that_is_shown_can_be_pasted_into_a_shell(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    argv = ["sh", "-c", "echo 'a b'; rm *", "$HOME", ""]
    daemon.replies = {"show": {"job": job(argv=argv), "events": []}}
    assert """command    sh -c 'echo '"'"'a b'"'"'; rm *' '$HOME' ''\n""" in drf("show", 42).out


def test_show_names_the_cpus_that_a_job_has_for_itself(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies = {"show": {"job": job(cpus="0-3,8"), "events": []}}
    assert "\nCPUs       0-3,8, for itself\n" in drf("show", 42).out
    daemon.replies = {"show": {"job": job(cpus=None), "events": []}}
    assert "CPUs" not in drf("show", 42).out


def test_show_has_what_the_kernel_counted_of_an_ended_job(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    used = dict.fromkeys(USED)
    known = {
        "throttled_seconds": 90.0, "throttled_periods": 3, "quota_periods": 9,
        "memory_mean": 1 << 30, "limit_hits": 0, "oom_kills": 2, "io_stalled_seconds": 2.5,
    }  # fmt: skip
    daemon.replies = {"show": {"job": ended(), "events": [], "used": used | known}}
    lines = drf("show", 42).out.splitlines()
    assert lines[6:9] == [
        "held back  by its cores in 3 of 9 periods, for 1m30s in sum",
        "memory     1G on average without page cache, stopped at its limit 0 times, "
        "2 processes killed",
        "waited     2s for disks",
    ]
    assert json.loads(drf("show", 42, "--json").out)["used"]["memory_mean"] == 1 << 30
    daemon.replies = {"show": {"job": ended(), "events": [], "used": used}}
    assert not [line for line in drf("show", 42).out.splitlines() if line.startswith("held")]


def test_show_sums_up_the_runs_of_a_job_that_had_several(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    sums = {
        "runs": 3, "wall_seconds": 3600.0, "suspended_seconds": 0.0, "cpu_seconds": 1800.5,
        "memory_peak": 2 << 30, "read_bytes": 0, "written_bytes": 0,
    }  # fmt: skip
    daemon.replies["show"] = {
        "job": job(), "events": [], "events_omitted": 0, "events_dropped": 0, "all_runs": sums,
    }  # fmt: skip
    assert "in all     3 runs, 1h00m, 1800.5 s of CPU" in drf("show", 42).out.splitlines()
    assert json.loads(drf("show", 42, "--json").out)["all_runs"] == sums


def test_show_says_where_the_use_of_a_job_is_not_measured(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    nothing = dict.fromkeys(("cores", "memory", "memory_peak", "cpu_seconds"), 0)
    nothing |= {"read_bytes": 0, "written_bytes": 0}
    daemon.replies["show"] = {"job": job(node="n1", usage=nothing), "events": []}
    assert "used       not measured on n1" in drf("show", 42).out.splitlines()
    daemon.replies["show"] = {
        "job": job(node="n1", usage=nothing | {"cpu_seconds": 2}),
        "events": [],
    }
    assert "used       2.0 s of CPU, unknown peak" in drf("show", 42).out


def test_show_without_limit_start_or_cgroup(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    waiting = job(state="PENDING", reason=WHY, time_limit_s=None, started_at=None, cgroup=None)
    daemon.replies = {"show": {"job": waiting, "events": []}}
    out = drf("show", 42).out
    for line in (
        f"why        RESOURCES: {WHY['text']}\n",
        "limit      no time limit\n",
        "started    -\n",
        "cgroup     none\n",
    ):
        assert line in out


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"state": "PENDING", "reason": WHY}, f"job 42 waits: RESOURCES: {WHY['text']}"),
        ({}, "job 42 is RUNNING: started 2023-11-14 22:13"),
        (
            {"state": "TIMEOUT", "outcome": {"code": "TIMEOUT", "text": "ran for 1h"}},
            "job 42 is TIMEOUT: ran for 1h",
        ),
    ],
)
def test_why_is_one_line(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, changes: dict[str, Any], line: str
) -> None:
    daemon.replies = {"why": {"job": job(**changes)}}
    result = drf("why", 42)
    assert (result.code, result.out, result.err) == (0, f"{line}\n", "")
    assert daemon.requests == [{"op": "why", "id": 42}]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("PENDING", WHY),
        ("SUSPENDED", {"code": "RESOURCES", "text": "needs 8 cores, 3 free"}),
    ],
)
def test_why_says_when_a_job_starts_or_goes_on_where_that_is_in_sight(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, state: str, reason: dict[str, str]
) -> None:
    waiting = job(state=state, reason=reason, expected_start_at=1_700_000_060.0)
    daemon.replies = {"why": {"job": waiting}}
    result = drf("why", 42)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        f"job 42 waits: RESOURCES: {reason['text']}\n"
        "it starts about 2023-11-14 22:14, "
        "if running jobs end as estimated and nobody submits anything before\n"
    )


def test_why_says_what_to_do_below_what_was_asked_for(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    waiting = job(state="PENDING", reason={"code": "RESOURCES", "text": "no room"})
    waiting |= {"expected_start_at": None, "expected_start_certainty": "unknown"}
    note = "drf set -c 2 42 lets it start now"
    daemon.replies = {"why": {"job": waiting, "notes": [note]}}
    lines = drf("why", 42).out.splitlines()
    assert lines[-2].startswith("when it starts is unknown")
    assert lines[-1] == note


def test_why_says_why_nobody_can_say_when_it_starts(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    missing = {"code": "forecast-busy", "text": "no estimate within 90 s"}
    waiting = job(state="PENDING", reason={"code": "RESOURCES", "text": "no room"})
    daemon.replies = {"why": {"job": waiting, "notes": [], "no_estimate": missing}}
    assert drf("why", 42).out == (
        "job 42 waits: RESOURCES: no room\nnobody can say when it starts: no estimate within 90 s\n"
    )
    assert json.loads(drf("why", 42, "--json").out)["no_estimate"] == missing


# -- shares, doctor ----------------------------------------------------------------------------


def test_shares_are_a_table_with_free_and_capacity(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"shares": SHARES}
    result = drf("shares")
    rule = "─" * 101
    assert text(result.screen) == text(f"""
 POOL OR USER   WEIGHT   ENTITLED   SHARE   DOMINANT   SATISFIED   CORES    MEM    IO R/W   RUN   WAIT
 {rule}
 alice               1        50%     50%   cores           100%       8    16G         -     1      2
 lab               3.5        50%      0%   -                 0%       0      0         -     0      0
 free                                                                  4    60G   1G/512M
 capacity                                                             16   120G   1G/512M
""")  # noqa: E501
    assert (result.code, result.err) == (0, "")


def test_doctor_says_what_is_enforced_and_how_to_mend_the_rest(
    drf: Drf, daemon: CannedDaemon
) -> None:
    daemon.replies = {"doctor": DOCTOR}
    result = drf("doctor")
    assert (result.code, result.err) == (0, "")
    assert (
        result.out
        == text("""
        drfd 0.1.0, launcher connected
        enforcement by cgroup v1
          cores      enforced (cfs quota)
          memory     enforced
          disk data (/data, ext4), device 8:0: read 1G/s, write 512M/s
            read     enforced
            write    enforced
          disk state (/var), device -: read 1G/s, write 512M/s; GUESS
            read     not controlled: /var is on no block device
        warning: capacity.cores is 16, but the machine has 8
        warning: job 3 cannot be killed and keeps its resources
        cure: the speed of disk state is a guess: drfd calibrate measures it
    """).replace("GUESS", "a guess")
        + "\n"
    )


def test_doctor_and_shares_show_what_is_left_to_processes_outside(
    drf: Drf, daemon: CannedDaemon
) -> None:
    load = {"cores": 1.5, "memory": 6 << 30, "kept": {"cores": 0.0, "memory": 2 << 30}}
    daemon.replies = {
        "doctor": DOCTOR | {"external": load},
        "shares": SHARES | {"external": load},
    }
    said = "processes outside drfd use 1.5 cores and 6G of memory; 2G of memory of what is for jobs"
    assert f"{said} is left to them" in drf("doctor").out
    rows = [line.split() for line in drf("shares").out.splitlines()]
    assert ["outside", "0", "2G", "-"] in rows
    assert json.loads(drf("shares", "--json").out)["external"] == load


def test_doctor_and_shares_show_limits_by_hour(drf: Drf, daemon: CannedDaemon) -> None:
    text = "limit of lab: 2 cores until 18:00, then no limit"
    hours = [{"path": "root.lab", "limit": {"cores": 2.0}, "until": 9e9, "next": {}, "text": text}]
    daemon.replies = {
        "doctor": DOCTOR | {"limit_hours": hours},
        "shares": SHARES | {"limit_hours": hours},
    }
    assert text in drf("doctor").out.splitlines()
    assert drf("shares").out.splitlines()[-1] == text
    assert json.loads(drf("shares", "--json").out)["limit_hours"] == hours


def test_shares_show_each_of_several_disks(drf: Drf, daemon: CannedDaemon) -> None:
    disks = {"data": {"read": 1 << 30, "write": 1 << 20}, "old": {"read": 0, "write": 0}}
    split = {name: SHARES[name] | {"disks": disks} for name in ("free", "capacity")}
    daemon.replies = {"shares": SHARES | split}
    rows = [line.split() for line in drf("shares").out.splitlines()]
    assert rows.count(["disk", "data", "1G/1M"]) == 2
    assert rows.count(["disk", "old", "-"]) == 2


def test_doctor_tells_a_reason_that_many_limits_share_once(drf: Drf, daemon: CannedDaemon) -> None:
    why = "; cgroup v2 has no controller memory; cannot make cgroups: Permission denied"
    controls = {name: f"measured: {name}{why}" for name in ("cores", "memory", "read", "write")}
    controls["processes"] = "enforced: RLIMIT_NPROC"
    daemon.replies = {"doctor": DOCTOR | {"enforcement": "none", "controls": controls, "disks": []}}
    assert drf("doctor").out.splitlines()[1:7] == [
        f"enforcement by none{why}",
        "  cores      measured: cores",
        "  memory     measured: memory",
        "  read       measured: read",
        "  write      measured: write",
        "  processes  enforced: RLIMIT_NPROC",
    ]


def test_doctor_waits_a_moment_for_a_launcher_that_has_just_been_started(
    drf: Drf, daemon: CannedDaemon
) -> None:
    away = DOCTOR | {"launcher": "away"}
    daemon.replies = {"doctor": [away, away, DOCTOR]}
    assert drf("doctor").out.startswith("drfd 0.1.0, launcher connected\n")


def test_doctor_works_while_the_launcher_is_away(drf: Drf, daemon: CannedDaemon) -> None:
    away = {"enforcement": None, "controls": {}, "launcher": "away"}
    daemon.replies = {"doctor": DOCTOR | away}
    assert drf("doctor").out.splitlines()[:2] == [
        "drfd 0.1.0, launcher away",
        "enforcement by unknown: the launcher is away",
    ]


# -- wait --------------------------------------------------------------------------------------


def test_wait_prints_each_end_and_returns_the_jobs_own_code(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    daemon.replies = {"wait": {"done": True, "ended": [ended("FAILED", 3)]}}
    result = drf("wait", 42)
    line = "job 42 FAILED: exit code 3\n"
    assert (result.code, result.out, result.err) == (3, line, f"drf: {line}")
    assert daemon.requests == [{"op": "wait", "ids": [42], "any": False, "timeout_s": None}]


def test_wait_says_each_end_once_in_a_log_of_both_streams(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, ended: MakeJob
) -> None:
    daemon.replies = {"wait": {"done": True, "ended": [ended("FAILED", 3)]}}
    result = finish(spawn("wait", 42, stderr=subprocess.STDOUT))
    assert (result.code, result.out) == (3, "job 42 FAILED: exit code 3\n")


def test_wait_asks_for_each_job_once_with_its_options(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"wait": {"done": True, "ended": []}}
    drf("wait", 3, 1, 3, "--any", "--timeout", "1m30s")
    (asked,) = daemon.requests
    assert (asked["ids"], asked["any"]) == ([3, 1], True)
    assert 89 < asked["timeout_s"] <= 90


# -- acting ------------------------------------------------------------------------------------


def test_show_tells_conditions_and_tries(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    more = {
        "after": [{"id": 5, "want": "ok"}, {"id": 6, "want": "any"}],
        "begin_at": 1_700_000_060,
        "retry": {"times": 3, "on": ["FAILED", "LOST"], "done": 1},
        "warn": {"signal": "SIGUSR1", "before_s": 60},
        "attempts": "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)",
    }
    daemon.replies = {"show": {"job": job(**more), "events": []}}
    lines = drf("show", "42").out.splitlines()
    assert {
        "state      RUNNING, attempt 2 of 4; attempt 1 ended FAILED (exit code 3)",
        "after      5:ok, 6:any",
        "begin      2023-11-14 22:14:20",
        "retry      1 of 3 used, after FAILED, LOST",
        "warning    SIGUSR1 1m00s before the time limit",
    } <= set(lines)


def test_the_reason_of_a_drain_is_shown(drf: Drf, daemon: CannedDaemon) -> None:
    drain = {"by": "root", "since": 1.7e9, "reason": "disk\x1b[2J swap"}
    daemon.replies = {
        "status": {"jobs": [], "counts": {}, "draining": True, "drain": drain},
        "shares": {**SHARES, "drain": drain},
        "doctor": {**DOCTOR, "draining": True, "drain": drain},
    }
    line = re.compile(
        r"draining: nothing is launched until drf undrain "
        r"\(by root since 2023-11-1[45] \d\d:\d\d\): disk\?\[2J swap\n"
    )
    assert line.search(drf("status").err)
    assert line.search(drf("shares").err)
    assert line.search(drf("doctor").out)
    for verb in ("status", "shares", "doctor"):
        assert json.loads(drf(verb, "--json").out)["drain"] == drain


# -- JSON --------------------------------------------------------------------------------------


def test_json_is_what_the_daemon_said_and_nothing_else(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, ended: MakeJob
) -> None:
    status = {"jobs": [job()], "counts": {"RUNNING": 1}, "draining": True}
    events = [{"at": 1.0, "event": "Submitted", "text": ""}]
    error = {"kind": "Refused", "code": "x", "text": "no", "hint": ""}
    acted = {"done": [1], "failed": [{"id": 2, "error": error}]}
    over = ended("FAILED", 3)
    daemon.replies = {
        "status": status,
        "show": {"job": job(), "events": events},
        "why": {"job": job(state="PENDING", reason=WHY)},
        "shares": SHARES,
        "doctor": DOCTOR,
        "wait": {"done": True, "ended": [over]},
        "cancel": acted,
        "hold": acted,
        "release": acted,
        "suspend": acted,
        "resume": acted,
        "submit": {"id": 42},
    }
    expected: dict[tuple[object, ...], object] = {
        ("status",): status,
        ("show", 42): job() | {"events": events},
        ("why", 42): {
            "id": 42,
            "state": "PENDING",
            "reason": WHY,
            "outcome": None,
            "expected_start_at": None,
            "notes": [],
            "advice": None,
        },
        ("shares",): SHARES,
        ("doctor",): DOCTOR,
        ("wait", 42): {"done": True, "jobs": [over]},
        ("cancel", 1, 2): acted,
        ("hold", 1, 2): acted,
        ("release", 1, 2): acted,
        ("suspend", 1, 2): acted,
        ("resume", 1, 2): acted,
        ("submit", "--", "true"): {"id": 42},
    }
    for words, view in expected.items():
        head, *rest = words
        result = drf(head, "--json", *rest)
        assert (head, json.loads(result.out)) == (head, view)
        assert result.out.count("\n") == 1, "one line for programs that read lines"


def test_a_list_of_ten_thousand_jobs_is_a_line_for_each_and_done_at_once(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    hostile = job(id=7, name="a\x1b[2Jb", state="PENDING", reason=WHY, started_at=None)
    many = [hostile, *(job(id=number, ended_at=1_700_000_100.0) for number in range(8, 10_008))]
    daemon.replies = {"status": {"jobs": many, "counts": {"RUNNING": 10_000}, "draining": False}}
    lines = drf("status").out.splitlines()
    assert len(lines) == 1 + 10_001 + 1
    assert lines[0].split() == [
        "ID", "NAME", "USER", "POOL", "STATE", "CORES", "MEM", "IO", "R/W", "TIME", "WHY",
    ]  # fmt: skip
    assert lines[1].lstrip().startswith("7  a?[2Jb")
    assert lines[1].endswith(f"RESOURCES: {WHY['text']}")
    assert len({line.index("root.alice") for line in lines[1:-1]}) == 1


def test_why_goes_on_with_evidence_and_advice(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    advice = {"options": ["-c", "1", "-m", "96M", "-t", "1h"], "jobs": 3, "short_jobs": 1}
    job = ended("OUT_OF_MEMORY", text="needed more")
    notes = ["it was killed 0.5s after its start", "a\x1b[31mred note"]
    daemon.replies = {"why": {"job": job, "notes": notes, "advice": advice}}
    assert drf("why", 42).out == (
        "job 42 is OUT_OF_MEMORY: needed more\n"
        "it was killed 0.5s after its start\n"
        "a?[31mred note\n"
        "next time: drf submit -c 1 -m 96M -t 1h  (from its last 3 jobs, 1 cut short)\n"
    )
    shown = json.loads(drf("why", 42, "--json").out)
    assert (shown["notes"], shown["advice"]) == (notes, advice)


def test_of_an_end_that_is_private_the_code_stands_alone(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    job = ended("FAILED") | {"outcome": {"code": "FAILED", "text": ""}}
    daemon.replies = {"status": {"jobs": [job], "counts": {"FAILED": 1}, "draining": False}}
    assert drf("status", "-a").out.splitlines()[3].split()[-1] == "FAILED"


@pytest.mark.parametrize(
    ("start_s", "certainty", "line"),
    [
        (
            60.0,
            "limits",
            "even if jobs before it run to their time limits, if nobody submits anything before",
        ),
        (60.0, "estimated", "estimated from few earlier jobs, if nobody submits anything before"),
        (60.0, None, "if running jobs end as estimated and nobody submits anything before"),
        (None, "unknown", "is unknown: too little is known about the jobs before it"),
        (None, None, ""),
    ],
)
def test_an_expected_start_says_on_what_it_rests(
    start_s: float | None, certainty: str | None, line: str
) -> None:
    assert (start_line(start_s, certainty) or "").endswith(line)
    own = start_line(start_s, certainty, unknown="it is held")
    if certainty == "unknown":
        assert own == "when it starts is unknown: it is held"
    else:
        assert own == start_line(start_s, certainty)
    if start_s is not None:
        near = "by" if certainty == "limits" else "about"
        assert (start_line(start_s, certainty) or "").startswith(f"it starts {near} ")


def test_a_suspended_job_is_not_told_to_be_on_hold() -> None:
    reason = {"code": "HELD", "text": "suspended by alice; drf resume 1 lets it go on"}
    suspended, held = (
        why_line(cast(Any, {"state": state, "reason": reason, "outcome": None}))
        for state in ("SUSPENDED", "HELD")
    )
    assert suspended == "SUSPENDED: suspended by alice; drf resume 1 lets it go on"
    assert held.startswith("HELD: ")


def test_several_jobs_are_explained_one_after_the_other(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    daemon.replies["why"] = lambda request: {
        "job": ended("FAILED", 3, id=request["id"]), "notes": [], "advice": None,
    }  # fmt: skip
    told = drf("why", 41, 42).out
    assert told.startswith("job 41 is FAILED")
    assert "\n\njob 42 is FAILED" in told
    assert [each["id"] for each in json.loads(drf("why", "41-42", "--json").out)["jobs"]] == [
        41,
        42,
    ]
    assert json.loads(drf("why", 42, "--json").out)["id"] == 42
