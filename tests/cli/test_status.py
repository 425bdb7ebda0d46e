"""Lists for people and for programs: drf status and shares, and drf doctor."""

import json
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len

from canned import Message, refusal
from drfd.common.units import clock_time
from drfd_cli import output
from drfd_cli.commands import doctor
from drfd_cli.output import Column
from drfd_cli.tables.layout import print_rows, right

WHY = {
    "code": "RESOURCES",
    "text": "needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05 at the latest",
}
WAITS: dict[str, Any] = {"state": "PENDING", "reason": WHY, "started_at": None}
LIMIT = {"code": "LIMIT", "text": "array 42 runs 2 at once at the most"}
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
    "launcher": "connected", "external": None, "windows": [], "limit_hours": [], "strays": [],
}  # fmt: skip


def text(screen: str) -> str:
    return textwrap.dedent(screen).strip("\n")


@pytest.fixture
def listed(daemon):
    """Has the daemon list these jobs."""

    def reply(*jobs: Message, **more: Any) -> None:
        found = {"jobs": list(jobs), "counts": {"RUNNING": len(jobs)}, "draining": False, **more}
        daemon.replies["status"] = found

    return reply


@pytest.fixture
def screen(drf, monkeypatch) -> Callable[..., str]:
    """What a verb shows on a terminal of so many columns, none of whose lines is longer."""

    def show(columns: int, *words: object) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = drf(*words).screen
        assert max(map(len, shown.splitlines())) <= columns
        return shown

    return show


# -- status ------------------------------------------------------------------------------------


def test_status_is_a_table_with_reasons_and_counts(drf, screen, listed, job):
    small = {**job()["demand"], "cores": 0.5, "memory": 1 << 29, "read": 200 << 20,
             "write": 50 << 20}  # fmt: skip
    jobs = [
        job(ended_at=1_700_000_100.0),
        job(id=43, **WAITS),
        job(id=7, name="a-very-long-name-of-a-job-indeed", state="COMPLETED", demand=small,
            ended_at=1_700_000_070.0, outcome={"code": "COMPLETED", "text": "exit code 0"}),
    ]  # fmt: skip
    listed(*jobs, counts={"PENDING": 1, "RUNNING": 1, "COMPLETED": 1})
    result = drf("status")
    assert text(result.screen) == text(f"""
 ID   NAME                       USER    POOL         STATE       CORES    MEM     IO R/W    TIME   WHY
 {"─" * 158}
 42   train                      alice   root.alice   RUNNING         8    16G          -   1m30s
 43   train                      alice   root.alice   PENDING         8    16G          -       -   RESOURCES: needs 8 cores, 3 free; job 40 (bob) holds 5
                                                                                                    until 14:05 at the latest
  7   a-very-long-name-of-a-j…   alice   root.alice   COMPLETED     0.5   512M   200M/50M   1m00s   COMPLETED: exit code 0

1 COMPLETED 1 PENDING 1 RUNNING
""")  # noqa: E501
    assert (result.code, result.err) == (0, "")
    listed(*jobs[:2], counts={"PENDING": 1, "RUNNING": 1})
    assert text(screen(80, "status")) == text(f"""
 ID   NAME    USER    STATE     CORES   MEM    TIME
 {"─" * 53}
 42   train   alice   RUNNING       8   16G   1m30s
 43   train   alice   PENDING       8   16G       -
      RESOURCES: needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05 at the
      latest

1 PENDING 1 RUNNING
""")


def test_a_list_of_many_pages_is_one(drf, screen, daemon, job):
    names = ["a", "b", "c", "longer-than-the-others"]
    jobs, draining = [job(name=name, **WAITS) for name in names], {"draining": False}
    daemon.replies["status"] = lambda request: (
        {"jobs": jobs[3:], "counts": {"RUNNING": 1, "PENDING": 2}, "after": None, **draining}
        if request.get("after")
        else {"jobs": jobs[:3], "counts": {"RUNNING": 3}, "after": [41, False], **draining}
    )
    _, heading, _, *rows, _, counts = drf("status").out.splitlines()
    assert heading.split()[:5] == ["ID", "NAME", "USER", "POOL", "GROUP"]
    assert [row.split()[1] for row in rows] == names
    assert all(row.endswith(WHY["text"]) for row in rows)
    assert counts == "2 PENDING 4 RUNNING"
    assert [asked.get("after") for asked in daemon.requests] == [None, [41, False]]
    shown = screen(80, "status").splitlines()
    rows = [line for line in shown if line.startswith(" 42 ")]
    assert [line.split()[1] for line in rows] == names
    assert [line.split(":")[0].strip() for line in shown if " RESOURCES" in line] == [
        "42 to 42",
        "RESOURCES",
    ], "the same reason is told once for neighbours of a page"
    told = json.loads(drf("status", "--json").out)
    assert [row["name"] for row in told["jobs"]] == names
    assert told["counts"] == {"RUNNING": 4, "PENDING": 2}
    assert drf("status", "--parsable", "--columns", "name").out.splitlines() == ["name", *names]


def test_a_page_is_printed_before_the_next_one_is_asked_for(drf, daemon, job):
    """15,000 jobs took a second to the first line."""
    page = {"jobs": [job(), job(id=43)], "counts": {"RUNNING": 2}, "draining": False}
    daemon.replies["status"] = lambda request: (
        refusal(text="gone") if request.get("after") else {**page, "after": [43, False]}
    )
    result = drf("status")
    assert [line.split()[0] for line in result.out.splitlines()[3:]] == ["42", "43"]
    assert (result.code, result.err) == (1, "drf: gone\n")


@pytest.mark.parametrize(
    ("words", "select", "more"),
    [
        ([], {}, {}),
        (["3", "5"], {"ids": [3, 5]}, {}),
        (["-u", "bob", "-s", "pending", "-s", "HELD"],
         {"user": "bob", "states": ["PENDING", "HELD"]}, {}),
        (["--state", "suspended"], {"states": ["SUSPENDED"]}, {}),
        (["-n", "train-*"], {"name": "train-*"}, {}),
        (["-g", "sweep"], {"group": "sweep"}, {}),
        (["-a"], {}, {"ended": 20}),
        (["--all"], {}, {"ended": 20}),
        (["-s", "failed"], {"states": ["FAILED"]}, {"ended": 20}),
        (["-r"], {}, {"tasks": True}),
        (["--array-tasks"], {}, {"tasks": True}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)  # fmt: skip
def test_status_asks_for_what_is_selected(drf, daemon, listed, words, select, more):
    listed()
    drf("status", *words)
    asked = {"op": "status", "select": select, "ended": 0, "limit": 200}
    assert daemon.requests == [asked | more]


def test_a_list_of_ended_jobs_says_that_it_has_the_last_ones_only(drf, listed, ended):
    said = "drf: of the ended jobs only the last 20 are listed; drf history --last 0 lists all\n"
    for failed, told in ((7, ""), (8, said)):
        listed(ended(), counts={"RUNNING": 30, "COMPLETED": 12, "FAILED": failed})
        assert drf("status", "-a").err == told
    # Of an end that is private the code stands alone.
    listed(ended("FAILED") | {"outcome": {"code": "FAILED", "text": ""}})
    assert drf("status", "-a").out.splitlines()[3].split()[-1] == "FAILED"


def test_what_is_wrong_with_the_service_comes_first(drf, listed, job):
    """While the launcher was away, a list of running jobs alone showed nothing of it."""
    notices = [{"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 12s"}]
    standing = {"launcher_away_s": 12.3, "notices": notices}
    drain: dict[str, Any] = {"by": "root", "since": 1.7e9, "reason": ""}
    listed(job(), draining=True, drain=drain, **standing)
    since = clock_time(drain["since"])
    draining = f"drf: draining: no job starts until drf undrain (by root since {since})"
    assert drf("status").err.splitlines() == [f"drf: {notices[0]['text']}", draining]
    said = json.loads(drf("status", "--json").out)
    assert {key: said[key] for key in standing} == standing
    listed(draining=True, drain=drain)
    result = drf("status")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines() == [draining, "drf: no jobs; drf history lists ended ones"]


def test_the_reason_of_a_drain_is_shown(drf, daemon, listed):
    drain = {"by": "root", "since": 1.7e9, "reason": "disk\x1b[2J swap"}
    listed(draining=True, drain=drain)
    daemon.replies |= {
        "shares": {**SHARES, "drain": drain},
        "doctor": {**DOCTOR, "draining": True, "drain": drain},
    }
    line = re.compile(
        r"draining: no job starts until drf undrain "
        r"\(by root since 2023-11-1[45] \d\d:\d\d\): disk\?\[2J swap\n"
    )
    for verb in ("status", "shares", "doctor"):
        result = drf(verb)
        assert line.search(result.out if verb == "doctor" else result.err)
        assert json.loads(drf(verb, "--json").out)["drain"] == drain


@pytest.mark.parametrize("columns", [80, 120, 240])
def test_the_same_reason_is_told_once_for_neighbours(
    screen, drf, listed, job, monkeypatch, columns
):
    other = {"code": "HELD", "text": "held by alice; drf release 47 lets it go"}
    demand = {**job()["demand"], "gres": {"gpu": 1, "licence": 2}}
    jobs = [job(id=at, **WAITS, demand=demand, name="x" * 30) for at in (43, 44, 45, 46, 47)]
    jobs[-1]["reason"] = other
    listed(job(), *jobs, gres=["gpu"])
    out = screen(columns, "status")
    assert len(out.splitlines()) <= 4 + 6 + 2 + 4, "a reason takes a whole screen"
    told = " ".join(out.split())
    assert told.count(WHY["text"]) == (1 if columns < 240 else 4)
    assert told.count(other["text"]) == 1
    if columns < 240:
        assert f"43 to 46: {WHY['code']}: {WHY['text']}" in told
        assert f" {other['code']}: {other['text']}" in told
    monkeypatch.delenv("COLUMNS")
    assert " ".join(drf("status").out.split()).count(WHY["text"]) == 4, "in a file each has its own"


def test_status_has_one_row_for_the_tasks_that_wait_and_one_for_each_that_runs(drf, listed, job):
    task = {"array_id": 42, "name": "fit"}
    rows = [job(id=48 + at, array_index=5 + at, ended_at=1_700_000_100.0, **task) for at in (0, 1)]
    waits = {**WAITS, "reason": LIMIT, **task}
    listed(
        *rows, job(array_index=None, array_tasks="7-99%2", tasks=93, **waits),
        counts={"RUNNING": 2, "PENDING": 93},
    )  # fmt: skip
    assert text(drf("status").screen) == text(f"""
          ID   NAME   USER    POOL         STATE     CORES   MEM    TIME   WHY
 {"─" * 116}
        42_5   fit    alice   root.alice   RUNNING       8   16G   1m30s
        42_6   fit    alice   root.alice   RUNNING       8   16G   1m30s
 42_[7-99%2]   fit    alice   root.alice   PENDING       8   16G       -   LIMIT: array 42 runs 2 at once at the most

93 PENDING 2 RUNNING
""")  # noqa: E501
    indices = ",".join(str(at) for at in range(0, 100, 2))
    listed(job(array_id=42, array_tasks=indices, tasks=50, **WAITS))
    assert " 42_[0,2,4,6,8,10,12,14,16,1…] " in drf("status").out
    assert json.loads(drf("status", "--json").out)["jobs"][0]["array_tasks"] == indices


def test_states_have_colours_for_who_sees_them(drf, daemon, listed, job, monkeypatch):
    listed(job())
    daemon.replies["shares"] = SHARES
    green = "\x1b[32mRUNNING\x1b[0m"
    for words in (["--color", "always", "status"], ["status", "--color", "always"]):
        assert green in drf(*words).out
    assert "\x1b" not in drf("status").out + drf("shares").out, "nobody looks"
    monkeypatch.setenv("NO_COLOR", "1")
    assert green in drf("status", "--color", "always").out, "what is asked for now is meant"
    for words in (["status"], ["--color", "never", "status"], ["status", "--color", "auto"]):
        assert "\x1b" not in drf(*words).out


def test_the_list_shows_who_has_which_gpus_where_there_are_any(drf, screen, listed, job):
    two = {**job()["demand"], "gres": {"gpu": 2}}
    jobs = [
        job(demand=two, gres_instances={"gpu": ["0", "1"]}),
        job(id=43, demand=two, gres_instances={}, state="PENDING", started_at=None),
        job(id=44),
    ]
    listed(*jobs, gres=["gpu"])
    lines = [line for line in screen(120, "status").splitlines()[:-1] if line.strip()]
    at = lines[0].index("GRES")
    assert [line[at:].split("  ")[0].strip() for line in lines[2:]] == ["gpu 0,1", "2 gpu", "-"]
    assert drf("status", "--columns", "gres,gres_instances", "--no-header").out == (
        "gpu=2\tgpu=0,1\ngpu=2\t\n\t\n"
    )
    listed(job(), gres=[])
    assert "GRES" not in drf("status").out


# -- for programs ------------------------------------------------------------------------------


def test_the_columns_for_programs_are_the_same_in_every_release(drf, listed, job):
    """New ones come at the end."""
    listed(job(), job(id=43, name="a\tb\nc", **WAITS), draining=True)
    result = drf("status", "--parsable")
    assert (result.code, result.err) == (0, "")
    header, first, second = (line.split("\t") for line in result.out.splitlines())
    assert header[:27] == [
        *("id", "name", "user", "pool", "state", "code", "cores", "memory", "read", "write"),
        *("time_limit_s", "priority", "attempt", "submitted_at", "started_at", "ended_at"),
        *("exit_code", "signal", "why", "array_id", "array_index", "array_tasks"),
        *("gres", "gres_instances", "group", "gres_memory", "cores_max"),
    ]
    assert first[:27] == [
        *("42", "train", "alice", "root.alice", "RUNNING", "", "8", "17179869184", "0", "0"),
        *("3600", "0", "1", "1700000000", "1700000010", *[""] * 12),
    ]
    found = dict(zip(header, second, strict=True))
    assert (found["name"], found["why"]) == ("a?b?c", f"RESOURCES: {WHY['text']}")


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ("--parsable -o state,id", "state\tid\nRUNNING\t42\n"),
        ("--csv -o id,why,cores,time_limit_s", "id,why,cores,time_limit_s\n42,,8,3600\n"),
        ("--columns id --no-header", "42\n"),
        ("--parsable --columns id,code", "id\tcode\n42\t\n"),
    ],
)
def test_columns_can_be_chosen_and_no_jobs_are_a_header_alone(drf, listed, job, words, out):
    listed(job())
    assert drf("status", *words.split()).out == out
    listed()
    result = drf("status", *words.split())
    assert (result.out, result.err) == ("".join(out.splitlines(keepends=True)[:-1]), "")


def test_names_and_reasons_take_no_room_from_the_demand(screen, listed, job):
    names = {"name": "x" * 40, "user": "a" * 30, "pool": "root.lab." + "a" * 30}
    demand = {**job()["demand"], "read": 200 << 20}
    listed(job(id=12345, demand=demand, **names), job(id=12346, **names, **WAITS))
    heads = screen(80, "status").splitlines()[1].split()
    assert heads == ["ID", "NAME", "USER", "STATE", "CORES", "MEM", "IO", "R/W", "TIME"]


@pytest.mark.parametrize("columns", [40, 80, 240])
def test_people_choose_columns_too(drf, screen, listed, daemon, job, columns):
    """Those that are chosen are on the narrowest screen."""
    listed(job(group="sweep", ended_at=1_700_000_100.0), job(id=43, **WAITS))
    chosen = "group,time_limit_s,id,io,priority,started_at"
    _, head, _, first, second, *_ = screen(columns, "status", "-o", chosen).splitlines()
    if columns > 40:
        assert head.split() == ["GROUP", "LIMIT", "ID", "IO", "R/W", "PRIORITY", "STARTED"]
        assert first.split()[:5] == ["sweep", "1h00m", "42", "-", "0"]
        assert second.split() == ["-", "1h00m", "43", "-", "0", "-"]
    daemon.replies["shares"] = SHARES
    shown = screen(columns, "shares", "-o", "running,path").splitlines()
    assert shown[1].split() == ["RUN", "POOL", "OR", "USER"]
    assert "capacity" in shown[-1]
    assert "capacity" not in screen(columns, "shares", "-o", "running")


def test_a_column_that_is_not_there_is_named(drf, daemon):
    result = drf("shares", "--columns", "path,colour")
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err == (
        "drf shares: Invalid value for '-o' / '--columns': there is no column 'colour'; there are "
        "path, entitlement, dominant_share, dominant_resource, satisfaction, cores, memory, "
        "read, write, running, pending, gres, "
        "debt_owed_hours, debt_allowed_hours, weight, io, debt\n"
    )


def test_json_is_what_the_daemon_said_and_nothing_else(drf, daemon, job, ended):
    over = ended("FAILED", 3)
    explained = {"outcome": None, "expected_start_at": None, "notes": [], "advice": None}
    views: dict[str, tuple[Message, Message]] = {
        "status": ({"jobs": [job()], "counts": {"RUNNING": 1}, "draining": True},) * 2,
        "show 42": ({"job": job(), "events": []}, job() | {"events": []}),
        "why 42": (
            {"job": job(state="PENDING", reason=WHY)},
            {"id": 42, "state": "PENDING", "reason": WHY, **explained},
        ),
        "shares": (SHARES, SHARES),
        "doctor": (DOCTOR, DOCTOR),
        "wait 42": ({"done": True, "ended": [over]}, {"done": True, "jobs": [over]}),
    }
    for words, (reply, view) in views.items():
        verb, *rest = words.split()
        daemon.replies[verb] = reply
        out = drf(verb, "--json", *rest).out
        assert json.loads(out) == view
        assert out.count("\n") == 1, "one line for programs that read lines"


# -- shares ------------------------------------------------------------------------------------


def test_shares_are_a_table_with_free_and_capacity(drf, screen, daemon):
    daemon.replies = {"shares": SHARES}
    result = drf("shares")
    assert text(result.screen) == text(f"""
 POOL OR USER   WEIGHT   ENTITLED   SHARE   DOMINANT   SATISFIED   CORES    MEM    IO R/W   RUN   WAIT
 {"─" * 101}
 alice               1        50%     50%   cores           100%       8    16G         -     1      2
 lab               3.5        50%      0%   -                 0%       0      0         -     0      0
 free                                                                  4    60G   1G/512M
 capacity                                                             16   120G   1G/512M
""")  # noqa: E501
    assert (result.code, result.err) == (0, "")
    assert drf("shares", "--parsable", "--no-header").out == (
        "root.alice\t0.5\t0.5\tcores\t1\t8\t17179869184\t0\t0\t1\t2\t\t\t\n"
        "root.lab\t0.5\t0\t\t0\t0\t0\t0\t0\t0\t0\t\t\t\n"
    )
    for columns in (60, 80):
        out = screen(columns, "shares")
        rows = {row[0]: row for line in out.splitlines() if (row := line.split())}
        assert "…" not in out and {"8", "16G", "50%"} <= set(rows["alice"])
        assert rows["alice"][-2:] == ["1", "2"]


def test_shares_have_a_column_for_what_is_counted_and_a_row_for_each_of_several_disks(drf, daemon):
    alice, lab = SHARES["nodes"]
    disks = {"data": {"read": 1 << 30, "write": 1 << 20}, "old": {"read": 0, "write": 0}}
    daemon.replies["shares"] = {
        "capacity": SHARES["capacity"] | {"gres": {"gpu": 2}, "disks": disks},
        "free": SHARES["free"] | {"disks": disks},
        "nodes": [alice | {"usage": alice["usage"] | {"gres": {"gpu": 2}}}, lab],
    }
    rows = [row.split() for row in drf("shares").out.splitlines()]
    cells = {row[0]: row for row in rows if row}
    assert cells["alice"][-4:] == ["2", "gpu", "1", "2"]
    assert cells["lab"][-3:] == ["-", "0", "0"]
    assert (cells["free"][-2:], cells["capacity"][-2:]) == (["0", "gpu"], ["2", "gpu"])
    assert rows.count(["disk", "data", "1G/1M"]) == rows.count(["disk", "old", "-"]) == 2
    daemon.replies["shares"] = SHARES
    none = drf("shares").out
    assert "GRES" not in none and "DEBT" not in none
    debt = {"owed_hours": 90.25, "allowed_hours": 84.0}
    daemon.replies["shares"] = SHARES | {"nodes": [alice | {"debt": debt}, lab]}
    lines = drf("shares").out.splitlines()
    assert [line.split()[-2:] for line in lines[1:4:2]] == [["WAIT", "DEBT"], ["90.25/84", "h"]]
    assert drf("shares", "--parsable", "--no-header").out.splitlines()[0].endswith("\t90.25\t84")


# -- doctor ------------------------------------------------------------------------------------


def test_doctor_says_what_is_enforced_and_how_to_mend_the_rest(drf, daemon):
    daemon.replies = {"doctor": DOCTOR | {"gres": {"gpu": ["0", "1"], "tape": []}}}
    result = drf("doctor")
    assert (result.code, result.err) == (0, "")
    told = text("""
        drfd 0.1.0, launcher connected
        enforcement by cgroup v1
          cores      enforced (cfs quota)
          memory     enforced
          disk data (/data, ext4), device 8:0: read 1G/s, write 512M/s
            read     enforced
            write    enforced
          disk state (/var), device -: read 1G/s, write 512M/s; a guess
            read     not controlled: /var is on no block device
          2 gpu to give out: 0, 1
          0 tape to give out: -
        warning: capacity.cores is 16, but the machine has 8
        warning: job 3 cannot be killed and keeps its resources
        cure: the speed of disk state is a guess: drfd calibrate measures it
    """)
    assert result.out == f"{told}\n"


def test_doctor_and_shares_show_what_is_left_to_processes_outside_and_limits_by_hour(drf, daemon):
    load = {"cores": 1.4996, "memory": 6 << 30, "kept": {"cores": 0.0, "memory": 2 << 30}}
    line = "limit of lab: 2 cores until 18:00, then no limit"
    hours = [{"path": "root.lab", "limit": {"cores": 2.0}, "until": 9e9, "next": {}, "text": line}]
    more = {"external": load, "limit_hours": hours}
    daemon.replies = {"doctor": DOCTOR | more, "shares": SHARES | more}
    said = "processes outside drfd use 1.5 cores and 6G of memory; 2G of memory of what is for jobs"
    told = drf("doctor").out
    assert f"{said} is left to them" in told and line in told.splitlines()
    lines = drf("shares").out.splitlines()
    assert ["outside", "0", "2G", "-"] in [line.split() for line in lines]
    assert lines[-1] == line
    for verb in ("shares", "doctor"):
        assert json.loads(drf(verb, "--json").out).items() >= more.items()


def test_doctor_waits_a_moment_for_a_launcher_that_has_just_been_started(drf, daemon, monkeypatch):
    away = DOCTOR | {"enforcement": None, "controls": {}, "launcher": "away"}
    daemon.replies = {"doctor": [away, away, DOCTOR]}
    assert drf("doctor").out.startswith("drfd 0.1.0, launcher connected\n")
    monkeypatch.setattr(doctor, "LAUNCHER_S", 0.0)
    daemon.replies = {"doctor": away}
    assert drf("doctor").out.splitlines()[:2] == [
        "drfd 0.1.0, launcher away",
        "enforcement by unknown: the launcher is away",
    ]


# -- tables ------------------------------------------------------------------------------------

#: Seven letters each: as one sign and as a letter with its mark, and signs that take two columns.
ACCENTED, MARKED, WIDE = "\u00e9t\u00e9-job", "e\u0301te\u0301-job", "\u6f22\u5b57-job"


def test_columns_stand_below_each_other_whatever_signs_are_in_them(capsys):
    """Names with marks were cut though there was room for them, and others were not cut enough."""
    assert output.shorten(MARKED, 7) == MARKED
    assert output.shorten("e\u0301" * 24, 24) == "e\u0301" * 24
    for long in ("e\u0301" * 30, "\u6f22" * 30, "\u6f22\u0301a" * 30):
        cut = output.shorten(long, 24)
        assert cut.endswith("…") and 23 <= cell_len(cut) <= 24
    names = (ACCENTED, MARKED, WIDE, "plain")
    columns = [Column("NAME"), right("SIZE"), Column("USER")]
    print_rows(columns, [(each, each, "x") for each in names])
    _, heading, _, *rows, _ = capsys.readouterr().out.splitlines()
    ends = {cell_len(line[: line.index(" x")]) for line in rows}
    assert ends == {heading.index("USER") - 1}
