"""What was: drf history and report, for people and for programs."""

import json
import time
from typing import Any

import pytest

from canned import CannedDaemon, Message
from cli.drf import Result
from drfd.protocol.replies import USED as USED_KEYS

ME = {"version": "0", "user": "alice", "admin": False}
GIB = 1 << 30
USED = {
    "wall_seconds": 90.0, "suspended_seconds": 0.0, "cpu_seconds": 75.25, "late_cores": None,
    "memory_peak": 3 << 29, "memory_mean": None, "memory_working": None, "largest_process": GIB,
    "read_bytes": 1 << 20, "written_bytes": 10, "read_peak": None, "write_peak": None,
    "quota_periods": 900, "throttled_periods": 3, "throttled_seconds": 0.5, "limit_hits": 0,
    "oom_kills": 0, "io_stalled_seconds": None, "processes_peak": None,
}  # fmt: skip
UNKNOWN = dict.fromkeys(USED)


@pytest.fixture
def narrow(plain, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def past(ended):
    def make(code: str = "COMPLETED", **changes: Any) -> Message:
        job = ended(code) | {"used": USED} | changes
        del job["status"]
        return job

    return make


def page(*jobs: Message, after: list[float] | None = None) -> Message:
    return {"jobs": list(jobs), "after": after}


def of(daemon: CannedDaemon, *jobs: Message, **more: Any) -> None:
    daemon.replies = {"hello": ME, "history": page(*jobs, **more)}


def text(screen: str) -> list[str]:
    """Return the lines without blanks around them, and without empty ones."""
    return [line.strip() for line in screen.splitlines() if line.strip()]


# -- history -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("narrow")
def test_the_latest_comes_last_and_use_stands_beside_demand(drf, daemon, past):
    never = past("LAUNCH_FAILED", id=41, started_at=None, name="a-very-long-name", used=UNKNOWN)
    of(daemon, past(), never)
    result = drf("history")
    assert text(result.screen) == text(f"""
 ID NAME               STATE         ENDED        TIME CORES      MEM
 {"─" * 68}
 41 a-very-long-name   LAUNCH_FAILED 11-14 22:15     -   -/8    -/16G
 42 train --epochs 3 4 COMPLETED     11-14 22:15 1m30s 0.8/8 1.5G/16G
""")
    assert (result.code, result.err) == (0, "")
    # Lines of the shell and exit codes tell jobs apart.
    curl = [
        past("FAILED", id=at, name="curl", argv=["sh", "-c", f"curl -O h/{at} && ls"], exit_code=at)
        for at in (6, 22)
    ]
    task = past(id=49, array_id=42, array_index=7)
    of(daemon, *curl, past(id=5, exit_code=None, signal=9), task)
    out = drf("history").screen
    assert max(map(len, out.splitlines())) <= 80
    rows = {row.split()[0]: " ".join(row.split()) for row in out.splitlines()[3:]}
    assert all(f"curl -O h/{at} && ls FAILED {at} " in rows[str(at)] for at in (6, 22))
    assert " SIGKILL " in rows["5"] and "42_7" in rows


ALL_RUNS = {
    "runs": 3, "wall_seconds": 3600.0, "suspended_seconds": 1800.0, "cpu_seconds": 3600.0,
    "memory_peak": 2 << 30, "read_bytes": 1 << 30, "written_bytes": 10,
}  # fmt: skip
GPUS = {"gpu_memory_peak": 5 << 29, "gpu_utilisation_mean": 80}


@pytest.mark.usefixtures("narrow")
def test_what_some_job_has_more_than_others_is_shown(drf, daemon, past):
    """All runs of one that was cancelled before its last, GPUs, and use beyond lower ends."""
    job = past("CANCELLED", started_at=None, all_runs=ALL_RUNS, used=UNKNOWN)
    of(daemon, job)
    assert drf("history").screen.splitlines()[3].split()[-3:] == ["2/8", "2G/16G", "1G/10"]
    assert ",3,3600,1800,3600" in drf("history", "--csv").out.splitlines()[1]
    job["all_runs"] = ALL_RUNS | {"gpu_memory_peak": 5 << 29}
    head, _, row = drf("history").screen.splitlines()[1:4]
    assert head.endswith(" MEM GPU MEM")
    assert row.split()[-2:] == ["2G/16G", "2.5G"]
    nothing = past(id=41, used=USED | dict.fromkeys(GPUS))
    of(daemon, past(), nothing)
    assert "GPU" not in drf("history").screen
    ranged = past(used=USED | GPUS | {"cores_peak": 5.5, "beyond_cpu_seconds": 60.25})
    ranged["demand"] = ranged["demand"] | {"cores_max": 16.0}
    of(daemon, nothing, ranged)
    rows = [line.split() for line in drf("history").screen.splitlines()[3:]]
    assert [(row[-3], row[-1]) for row in rows] == [("0.8/8..16", "2.5G"), ("0.8/8", "-")]
    head, *lines = drf("history", "--csv").out.splitlines()
    at = head.split(",").index("gpu_memory_peak")
    assert head.split(",")[at + 1] == "gpu_utilisation_mean"
    assert head.split(",")[at + 2 : at + 4] == ["cores_peak", "beyond_cpu_seconds"]
    cells = [line.split(",") for line in lines]
    assert [row[at : at + 4] for row in cells] == [
        [str(5 << 29), "80", "5.5", "60.25"], [""] * 4,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "admin", "asked"),
    [
        ("", False, {"user": "alice"}),
        ("", True, {}),
        ("-a", False, {}),
        ("-u bob -s failed", False, {"user": "bob", "states": ["FAILED"]}),
        ("3 5", False, {"ids": [3, 5]}),
        (
            "-a --name x -p lab --since 2023-11-14 --until @1700000000",
            False,
            {"name": "x", "pool": "lab", "since_s": 1_699_920_000.0, "until_s": 1_700_000_000.0},
        ),
    ],
)
def test_who_names_nobody_means_his_own_jobs(drf, daemon, words, admin, asked):
    daemon.replies = {"hello": ME | {"admin": admin}, "history": page()}
    assert drf("history", *words.split()) == Result(0, "", "drf: no ended jobs\n")
    assert daemon.asked("history") == [{"op": "history", "past": asked, "limit": 21}]


def test_more_than_a_page_is_fetched_page_by_page_or_told_of(drf, daemon, past):
    pages = [page(past(id=9), past(id=8), after=[5.0, 8]), page(past(id=7))]
    daemon.replies = {"history": [*pages, page(past(), past(id=41), after=[5.0, 41])]}
    result = drf("history", "-a", "--last", "0", "--json")
    assert [job["id"] for job in json.loads(result.out)["jobs"]] == [7, 8, 9]
    assert [request.get("after") for request in daemon.requests] == [None, [5.0, 8]]
    assert drf("history", "-a", "--last", "1").err == "drf: the last 1; --last 0 shows all\n"
    assert daemon.requests[-1]["limit"] == 2


def test_values_for_programs_are_plain_and_unknown_is_empty(drf, daemon, past):
    of(daemon, past(id=50, array_id=42, array_index=7, name='a,"b"\n\x1b[31m'), past(name="x"))
    names, other, row = drf("history", "-a", "--csv").out.splitlines()
    row = row.replace('"a,""b""??[31m"', "NAME")
    values = dict(zip(names.split(","), row.split(","), strict=True))
    assert {each: values[each] for each in ("id", "name", "array_id", "array_index")} == {
        "id": "50", "name": "NAME", "array_id": "42", "array_index": "7",
    }  # fmt: skip
    assert (values["memory_peak"], values["memory_mean"]) == (str(3 << 29), "")
    assert (values["cores"], values["state"]) == ("8", "COMPLETED")
    values = dict(zip(names.split(","), other.split(","), strict=True))
    assert (values["array_id"], values["array_index"]) == ("", "")
    of(daemon)
    out = drf("history", "-a", "--csv").out
    assert out == f"{names}\n", "of nothing there is the first line"
    assert out.startswith("id,name,user,pool,state,")
    assert (
        "io_stalled_seconds,processes_peak,gpu_memory_peak,gpu_utilisation_mean,cores_peak,"
        "beyond_cpu_seconds,runs,all_wall_seconds,all_suspended_seconds,all_cpu_seconds"
    ) in out
    assert {*USED_KEYS} <= {*names.split(",")}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("history --since foo", "'foo' is not a time"),
        ("history --since 1d --until 2d", "--since is not before --until"),
        ("history -u bob -a", "--user and --all exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(drf, daemon, words, complaint):
    result = drf(*words.split())
    assert (result.code, result.out, result.err.count("\n"), daemon.requests) == (2, "", 1, [])
    assert complaint in result.err


# -- report ------------------------------------------------------------------------------------

CORE_HOUR = 3_600_000_000


def amount(declared: int, used: int, unknown: int = 0) -> dict[str, Any]:
    efficiency = round(used / declared, 4) if declared else None
    return {
        "declared": declared, "used": used, "unknown": unknown, "wasted": declared - used,
        "efficiency": efficiency,
    }  # fmt: skip


def account(**changes: Any) -> dict[str, Any]:
    return {
        "jobs": 4, "run_ms": 7_200_000, "cores": amount(8 * CORE_HOUR, 2 * CORE_HOUR),
        "memory": amount(1000, 300), "read": amount(0, 0), "write": amount(0, 0),
        "read_bytes": 5, "written_bytes": 6, "demand_max": 1 << 34, "peak_max": 3 << 29,
        "throttled_us": 90_000_000, "throttled_unknown_jobs": 0, "out_of_memory_jobs": 0,
        "timeout_jobs": 0, "gres_ms": {}, "gpu": amount(0, 0), "gpu_memory_peak_max": None,
        "gpu_memory_single_peak_max": None, "beyond_us": None, **changes,
    }  # fmt: skip


ADVICE = {
    "cores": 1.0, "memory": 384 << 20, "time_limit_s": 120, "read": 0, "write": 0,
    "options": ["-c", "1", "-m", "384M", "-t", "2m"], "jobs": 4, "short_jobs": 0, "of_last": 10,
}  # fmt: skip
TRAIN = {"name": "train", "user": "alice", **account(), "advice": ADVICE}
LOST = {
    "name": "lost", "user": "alice", "advice": None,
    **account(
        jobs=1, cores=amount(0, 0, CORE_HOUR), memory=amount(0, 0, 5), peak_max=0, demand_max=GIB,
        throttled_us=0, throttled_unknown_jobs=1,
    ),
}  # fmt: skip


def report(*rows: Any, **changes: Any) -> dict[str, Any]:
    return {"by": "name", "rows": list(rows), "others": None, "total": account(), **changes}


def test_a_wide_report_has_users_disks_and_throttling(drf, daemon):
    half = {"read": amount(1000, 500)}
    bob = LOST | {"user": "bob"}
    total = account(**half)
    daemon.replies = {"report": report(TRAIN | half, bob, others=account(jobs=9), total=total)}
    lines = [line.split() for line in drf("report", "-a", "--lines", "2").screen.splitlines()]
    assert lines[1] == [
        *("NAME", "USER", "JOBS", "CORE-H", "WASTED", "CPU%", "MEM", "PEAK", "MEM%", "READ%"),
        "THROTTLED",
    ]
    assert lines[3][-2:] == ["50%", "1m30s"]
    assert lines[4][-2:] == ["-", "-"], "what is not known is not zero"
    assert (lines[5][:3], lines[6][:2]) == (["all", "others", "9"], ["in", "all"])


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("-a --since @1000000000", {"past": {"since_s": 1e9}}),
        ("--by pool --lines 3 7", {"by": "pool", "limit": 3, "past": {"ids": [7]}}),
        ("-a -n fit --since @9", {"past": {"name": "fit", "since_s": 9.0}}),
        ("-u bob --until @9", {"past": {"user": "bob", "until_s": 9.0}}),
        ("", {"past": {"user": "alice", "since_s": pytest.approx(time.time() - 2592e3, abs=1e3)}}),
    ],
)
def test_a_report_is_of_what_is_chosen_and_of_the_last_month_otherwise(drf, daemon, words, asked):
    daemon.replies = {"hello": ME, "report": report(total=account(jobs=0))}
    told = "drf: no job that ran has ended in that time\n"
    assert drf("report", *words.split()) == Result(0, "", told)
    assert daemon.asked("report") == [{"op": "report", "by": "name", "limit": 30} | asked]


PEAKS = {"gpu_memory_peak_max": 20 << 30, "gpu_memory_single_peak_max": 11 << 30}
HELD = {"gres_ms": {"gpu": 7_200_000}}
GPU_COLUMNS = ["gpu_declared", "gpu_used", "gpu_unknown", "gpu_wasted", "gpu_efficiency", *PEAKS]


@pytest.mark.parametrize(
    ("train", "lost", "head", "shown", "columns", "values"),
    [
        (HELD, {"gres_ms": {}}, ["GPU-H", "GPU%", "GPU", "MEM"],
         (["2.00", "-", "-"], ["0.00", "-", "-"]),
         ["gres_ms"], (["gpu=7200000"], [""])),
        ({**HELD, "gpu": amount(7_200_000, 1_800_000), **PEAKS},
         {**HELD, "gpu": amount(0, 0, 7_200_000), **dict.fromkeys(PEAKS)},
         ["GPU-H", "GPU%", "GPU", "MEM"], (["2.00", "25%", "11G"], ["2.00", "-", "-"]),
         GPU_COLUMNS, (["7200000", "1800000", "0", "5400000", "0.25", str(20 << 30),
                        str(11 << 30)], ["0", "0", "7200000", "0", "", "", ""])),
        # Memory on a GPU that no job asked for.
        ({"gpu": amount(0, 0), "gpu_memory_peak_max": GIB}, {},
         ["GPU%", "GPU", "MEM"], (["-", "1G"], ["-", "-"]), [], ([], [])),
        ({"gpu": amount(0, 0), "gpu_memory_peak_max": 0}, {}, [], ([], []), [], ([], [])),
        # Six core-hours were declared, of which three were used, and three more beyond lower ends.
        ({"cores": amount(6 * CORE_HOUR, 6 * CORE_HOUR), "beyond_us": 3 * CORE_HOUR},
         {"beyond_us": None}, ["BEYOND"], (["3.00"], ["-"]), ["beyond_us"],
         ([str(3 * CORE_HOUR)], [""])),
        # Half of a hundredth is none.
        ({"beyond_us": CORE_HOUR // 250}, {"beyond_us": None}, [], ([], []), [], ([], [])),
    ],
    ids=["hours", "measured", "not asked for", "none", "beyond", "hardly beyond"],
)  # fmt: skip
def test_a_report_has_columns_for_what_there_was(
    drf, daemon, monkeypatch, train, lost, head, shown, columns, values
):
    """What is not known is not zero."""
    monkeypatch.setenv("COLUMNS", "80")
    rows = report({**TRAIN, **train}, {**LOST, **lost}, total=account(**train))
    daemon.replies = {"hello": ME, "report": rows}
    heads, _, *lines = [line.split() for line in drf("report").screen.splitlines()[1:6]]
    extra = {"GPU-H", "GPU%", "GPU", "BEYOND"} & set(heads)
    assert extra == set(head) - {"MEM"}
    if head:
        # GPU MEM is one column of two words.
        at = heads.index(head[0])
        found = tuple(line[at : at + len(cells)] for line, cells in zip(lines, shown, strict=False))
        assert (heads[at : at + len(head)], found) == (head, shown)
    names, *found_values = [row.split(",") for row in drf("report", "--csv").out.splitlines()]
    assert {len(names)} == {len(row) for row in found_values}
    for row, wanted in zip(found_values, values, strict=True):
        assert [row[names.index(column)] for column in columns] == wanted


def test_a_wide_screen_shows_how_the_last_job_of_each_line_went(drf, daemon, monkeypatch):
    nothing = [None] * 3
    curve = {
        "id": 7, "demand": {"cores": 4.0, "memory": 100, "gres": {"gpu": 2}}, "at": [2.0, 4.0, 6.0],
        "cores": [None, 1.0, 4.0], "memory": [50, 50, 100], "read": nothing, "write": nothing,
    }  # fmt: skip
    on_gpus = curve | {"gpu_memory": [1, 2, 3], "gpu_utilisation": [None, 100, 200]}
    for train, lost, head, trains in (
        (curve, None, "USE OF CORES   USE OF MEM", " ▂█            ▄▄█"),
        (on_gpus, curve, "USE OF CORES   USE OF MEM   USE OF GPU",
         " ▂█            ▄▄█           ▄█"),
    ):  # fmt: skip
        rows = report({**TRAIN, "curve": train}, {**LOST, "curve": lost} if lost else LOST)
        daemon.replies = {"hello": ME, "report": rows}
        monkeypatch.setenv("COLUMNS", "140")
        lines = [line.rstrip() for line in drf("report").out.splitlines()[1:6]]
        assert lines[0].endswith(head) and lines[2].endswith(trains)
        assert lines[3].endswith(" ▂█            ▄▄█" if lost else "-")
        assert not set(lines[4]) & set("▁▂▃▄▅▆▇█")
        monkeypatch.setenv("COLUMNS", "120")
        assert "USE OF" not in drf("report").out
    assert json.loads(drf("report", "--json").out)["rows"][0]["curve"]["id"] == 7


# -- the audit -----------------------------------------------------------------------------------

#: 2026-03-01 10:00 UTC.
BEGIN_S = 1_772_359_200.0


@pytest.fixture
def audited(daemon) -> CannedDaemon:
    """Alice's job holds five of ten cores when bob comes with one that needs eight."""

    def ended(id: int, user: str, at_s: float, cores: float, run_s: float) -> dict[str, Any]:
        return {
            "id": id, "user": user, "pool": f"root.{user}", "submitted_at": BEGIN_S + at_s,
            "attempt": 1, "started_at": BEGIN_S + 500, "ended_at": BEGIN_S + 500 + run_s,
            "time_limit_s": None, "used": {},
            "demand": {"cores": cores, "memory": 0, "read": 0, "write": 0, "gres": {}},
        }  # fmt: skip

    capacity = {"cores": 10.0, "memory": 16 << 30, "read": 0, "write": 0, "gres": {}}
    ran = [ended(1, "alice", 0, 5, 100), ended(2, "bob", 1, 8, 50), ended(3, "bob", 2, 2, 10)]
    daemon.replies = {
        "history": page(*ran),
        "shares": {"capacity": capacity, "free": capacity, "nodes": []},
    }
    return daemon


def test_an_audit_simulates_the_past_otherwise(drf, audited):
    assert drf("simulate", "--audit", "--since", "2026-03-01").out.splitlines() == [
        "3 jobs of 2 users, simulated again",
        "envy: 0.0% of those who waited would have preferred what another one held",
        "alone on a machine of their own, as large as their entitlement, 0 of 2 users would have "
        "waited less",
        "false demands: in 1 of 3 simulations, of those who waited most, the user's own jobs would "
        "have ended earlier",
        "  bob, two halves of each job: by 24.5% of the time from submission to end",
    ]
    (asked,) = audited.asked("history")
    assert [*asked["past"]] == ["since_s"]
    found = json.loads(drf("simulate", "--audit", "--json").out)
    assert [*found] == ["jobs", "refused", "envy", "alone", "false_demands"]
    assert found["alone"][0] == {
        "user": "alice", "jobs": 1, "too_large": 0, "wait_s": 0.0, "wait_alone_s": 0.0,
    }  # fmt: skip
    demands = {(each["user"], each["of"]) for each in found["false_demands"]}
    assert demands == {("bob", "cores"), ("bob", "all"), ("bob", "split")}
    assert "goes without other policies" in drf("simulate", "--audit", "--policy", "fifo").err
