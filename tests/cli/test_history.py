"""drf history: what it asks for, and its screens."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message
from cli.drf import Drf
from drfd_cli.commands.history import _print_table

ME = {"version": "0", "user": "alice", "admin": False}
USED = {
    "wall_seconds": 90.0, "suspended_seconds": 0.0, "cpu_seconds": 75.25, "late_cores": None,
    "memory_peak": 3 << 29,
    "memory_mean": None, "memory_working": None, "largest_process": 1 << 30, "read_bytes": 1 << 20,
    "written_bytes": 10, "read_peak": None, "write_peak": None, "quota_periods": 900,
    "throttled_periods": 3, "throttled_seconds": 0.5, "limit_hits": 0, "oom_kills": 0,
    "io_stalled_seconds": None, "processes_peak": None,
}  # fmt: skip


@pytest.fixture
def past(ended: MakeJob) -> MakeJob:
    def make(code: str = "COMPLETED", **changes: Any) -> Message:
        job = ended(code) | {"used": USED} | changes
        del job["status"]
        return job

    return make


def page(*jobs: Message, after: list[float] | None = None) -> Message:
    return {"jobs": list(jobs), "after": after}


def text(screen: str) -> str:
    return textwrap.dedent(screen).strip("\n")


def test_the_latest_comes_last_and_use_stands_beside_demand(
    drf: Drf, daemon: CannedDaemon, past: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    never = past("LAUNCH_FAILED", id=41, started_at=None, name="a-very-long-name")
    never["used"] = dict.fromkeys(USED)
    daemon.replies = {"hello": ME, "history": page(past(), never)}
    result = drf("history")
    rule = "─" * 68
    assert text(result.screen) == text(f"""
 ID NAME               STATE         ENDED        TIME CORES      MEM
 {rule}
 41 a-very-long-name   LAUNCH_FAILED 11-14 22:15     -   -/8    -/16G
 42 train --epochs 3 4 COMPLETED     11-14 22:15 1m30s 0.8/8 1.5G/16G
""")
    assert (result.code, result.err) == (0, "")


def test_on_a_narrow_screen_lines_of_the_shell_and_exit_codes_tell_jobs_apart(
    drf: Drf, daemon: CannedDaemon, past: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    jobs = [
        past("FAILED", id=at, name="curl", argv=["sh", "-c", f"curl -O h/{at} && ls"], exit_code=at)
        for at in (6, 22)
    ]
    daemon.replies = {"hello": ME, "history": page(*jobs, past(id=5, exit_code=None, signal=9))}
    out = drf("history").screen
    assert max(map(len, out.splitlines())) <= 80
    rows = {row.split()[0]: row for row in out.splitlines()[3:]}
    assert "curl -O h/6 " in rows["6"] and " FAILED 6 " in " ".join(rows["6"].split())
    assert "curl -O h/22" in rows["22"] and " FAILED 22 " in " ".join(rows["22"].split())
    assert " SIGKILL " in rows["5"]


ALL_RUNS = {
    "runs": 3, "wall_seconds": 3600.0, "suspended_seconds": 1800.0, "cpu_seconds": 3600.0,
    "memory_peak": 2 << 30, "read_bytes": 1 << 30, "written_bytes": 10,
}  # fmt: skip


def test_a_job_that_ran_more_than_once_is_shown_with_all_its_runs(
    drf: Drf, daemon: CannedDaemon, past: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled before its last run."""
    monkeypatch.setenv("COLUMNS", "80")
    job = past("CANCELLED", started_at=None) | {"all_runs": ALL_RUNS, "used": dict.fromkeys(USED)}
    daemon.replies = {"hello": ME, "history": page(job)}
    assert drf("history").screen.splitlines()[3].split()[-3:] == ["1h00m", "2/8", "2G/16G"]
    assert drf("history", "--csv").out.splitlines()[1].endswith(",3,3600.0,1800.0,3600.0,,,,,")
    job["all_runs"] = ALL_RUNS | {"gpu_memory_peak": 5 << 29}
    head, _, row = drf("history").screen.splitlines()[1:4]
    assert head.endswith(" MEM GPU MEM")
    assert row.split()[-2:] == ["2G/16G", "2.5G"]


def test_the_use_of_gpus_is_shown_where_some_job_had_any(
    drf: Drf, daemon: CannedDaemon, past: MakeJob
) -> None:
    """An older daemon sends none of it."""
    gpus = {"gpu_memory_peak": 5 << 29, "gpu_utilisation_mean": 80}
    plain = dict.fromkeys(gpus)
    daemon.replies = {"hello": ME, "history": page(past(), past(id=41, used=USED | plain))}
    assert "GPU" not in drf("history").screen
    daemon.replies["history"] = page(past(used=USED | gpus), past(id=41, used=USED | plain))
    heads, _, *rows = drf("history").screen.splitlines()[1:]
    end = heads.index("GPU MEM") + len("GPU MEM")
    assert [row[:end].split()[-1] for row in rows] == ["-", "2.5G"]
    head, *lines = drf("history", "--csv").out.splitlines()
    at = head.split(",").index("gpu_memory_peak")
    assert head.split(",")[at + 1] == "gpu_utilisation_mean"
    values = sorted(line.split(",")[at : at + 2] for line in lines)
    assert values == [["", ""], [str(5 << 29), "80"]]


def test_a_range_is_shown_as_declared_and_what_was_lent_is_in_the_last_columns(
    drf: Drf, daemon: CannedDaemon, past: MakeJob
) -> None:
    """An older daemon sends neither."""
    lent = {"cores_peak": 5.5, "lent_cpu_seconds": 60.25}
    job = past(used=USED | lent)
    ranged = job | {"demand": job["demand"] | {"cores_max": 16.0}}
    daemon.replies = {"hello": ME, "history": page(past(id=41), ranged)}
    shown = drf("history")
    assert [word for word in shown.screen.split() if word.startswith("0.8/")] == [
        "0.8/8..16",
        "0.8/8",
    ]
    head, *lines = drf("history", "--csv").out.splitlines()
    assert head.endswith(",cores_peak,lent_cpu_seconds")
    assert [line.split(",")[-2:] for line in lines] == [["5.5", "60.25"], ["", ""]]


def test_the_time_of_a_short_job_has_tenths(drf: Drf, daemon: CannedDaemon, past: MakeJob) -> None:
    times = [0.04, 0.5, 9.94, 9.96, 59.9]
    jobs = [past(id=at, ended_at=1_700_000_010.0 + ran_s) for at, ran_s in enumerate(times, 1)]
    daemon.replies = {"hello": ME, "history": page(*reversed(jobs))}
    rows = drf("history").screen.splitlines()[3:]
    assert [row.split()[6] for row in rows] == ["0.0s", "0.5s", "9.9s", "9s", "59s"]


def test_a_wide_screen_shows_the_cause_too(drf: Drf, daemon: CannedDaemon, past: MakeJob) -> None:
    daemon.replies = {"hello": ME, "history": page(past())}
    lines = drf("history").screen.splitlines()
    assert lines[1].split() == [
        *("ID", "NAME", "USER", "STATE", "ENDED", "TIME", "CORES", "MEM", "IO", "R/W", "CAUSE"),
    ]
    assert lines[3].split() == [
        *("42", "train", "alice", "COMPLETED", "2023-11-14", "22:15:00", "1m30s"),
        *("0.8/8", "1.5G/16G", "1M/10", "exit", "code", "0"),
    ]


@pytest.mark.parametrize(
    ("words", "admin", "asked"),
    [
        ([], False, {"user": "alice"}),
        ([], True, {}),
        (["-a"], False, {}),
        (["-u", "bob", "-s", "failed"], False, {"user": "bob", "states": ["FAILED"]}),
        (["3", "5"], False, {"ids": [3, 5]}),
        (
            ["-a", "--name", "x", "-p", "lab", "--since", "2023-11-14", "--until", "@1700000000"],
            False,
            {"name": "x", "pool": "lab", "since_s": 1_699_920_000.0, "until_s": 1_700_000_000.0},
        ),
    ],
)
def test_who_names_nobody_means_his_own_jobs(
    drf: Drf, daemon: CannedDaemon, words: list[str], admin: bool, asked: dict[str, Any]
) -> None:
    daemon.replies = {"hello": ME | {"admin": admin}, "history": page()}
    result = drf("history", *words)
    assert daemon.asked("history") == [{"op": "history", "past": asked, "limit": 20, "after": None}]
    assert (result.code, result.out, result.err) == (0, "", "drf: no ended jobs\n")


def test_more_than_a_page_is_fetched_page_by_page(
    drf: Drf, daemon: CannedDaemon, past: MakeJob
) -> None:
    daemon.replies = {
        "history": [page(past(id=9), past(id=8), after=[5.0, 8]), page(past(id=7))],
    }
    result = drf("history", "-a", "-n", "0", "--json")
    assert [job["id"] for job in json.loads(result.out)["jobs"]] == [7, 8, 9]
    assert [request["after"] for request in daemon.asked("history", times=2)] == [None, [5.0, 8]]


def test_that_there_are_more_is_said(drf: Drf, daemon: CannedDaemon, past: MakeJob) -> None:
    daemon.replies = {"history": page(past(), after=[5.0, 42])}
    assert drf("history", "-a", "-n", "1").err == "drf: the last 1; -n 0 shows all\n"
    assert [request["limit"] for request in daemon.requests] == [1]


def test_values_for_programs_are_plain_and_unknown_is_empty(
    drf: Drf, daemon: CannedDaemon, past: MakeJob
) -> None:
    daemon.replies = {"history": page(past(name='a,"b"\n\x1b[31m'))}
    names, row = drf("history", "-a", "--csv").out.splitlines()
    values = dict(
        zip(names.split(","), row.replace('"a,""b""??[31m"', "NAME").split(","), strict=True)
    )
    assert values["name"] == "NAME"
    assert (values["memory_peak"], values["memory_mean"]) == (str(3 << 29), "")
    assert (values["declared_cores"], values["state"]) == ("8.0", "COMPLETED")
    assert (values["array_id"], values["array_index"]) == ("", "")


def test_values_of_a_task_name_its_array(drf: Drf, daemon: CannedDaemon, past: MakeJob) -> None:
    daemon.replies = {"history": page(past(id=50, array_id=42, array_index=7))}
    names, row = drf("history", "-a", "--csv").out.splitlines()
    values = dict(zip(names.split(","), row.split(","), strict=False))
    assert (values["id"], values["array_id"], values["array_index"]) == ("50", "42", "7")


def test_a_csv_of_nothing_has_its_first_line(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"history": page()}
    out = drf("history", "-a", "--csv").out
    assert out.startswith("id,name,user,pool,state,")
    assert out.endswith(
        "io_stalled_seconds,processes_peak,array_id,array_index,"
        "runs,all_wall_seconds,all_suspended_seconds,all_cpu_seconds,"
        "gpu_memory_peak,gpu_utilisation_mean,declared_cores_max,cores_peak,lent_cpu_seconds\n"
    )
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--since", "foo"], "'foo' is not a time"),
        (["--since", "1d", "--until", "2d"], "--since is not before --until"),
        (["-u", "bob", "-a"], "--user and --all exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(
    drf: Drf, daemon: CannedDaemon, words: list[str], complaint: str
) -> None:
    result = drf("history", *words)
    assert (result.code, result.out) == (2, "")
    assert complaint in result.err
    assert result.err.count("\n") == 1


def test_a_task_is_called_by_its_array_and_index(
    drf: Drf, daemon: CannedDaemon, past: MakeJob
) -> None:
    daemon.replies = {"hello": ME, "history": page(past(id=49, array_id=42, array_index=7))}
    assert drf("history").screen.splitlines()[3].split()[0] == "42_7"


class Walked(list[Any]):
    """A list that counts how often somebody goes through it."""

    walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return super().__iter__()


def test_a_long_history_is_gone_through_as_often_as_a_short_one(plain: None, past: MakeJob) -> None:
    short, long = Walked([past()]), Walked([past()] * 600)
    for jobs in (short, long):
        _print_table(jobs)
    assert short.walks == long.walks
