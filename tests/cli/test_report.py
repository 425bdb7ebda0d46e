"""drf report: what it asks for, and its screens."""

from __future__ import annotations

import json
import textwrap
import time
from typing import Any

import pytest

from canned import CannedDaemon
from cli.drf import Drf

ME = {"version": "0", "user": "alice", "admin": False}
HOUR = 3_600_000_000


def amount(declared: int, used: int, unknown: int = 0) -> dict[str, Any]:
    efficiency = round(used / declared, 4) if declared else None
    return {
        "declared": declared, "used": used, "unknown": unknown, "wasted": declared - used,
        "efficiency": efficiency,
    }  # fmt: skip


def account(**changes: Any) -> dict[str, Any]:
    return {
        "jobs": 4, "run_ms": 7_200_000, "cores": amount(8 * HOUR, 2 * HOUR),
        "memory": amount(1000, 300), "read": amount(0, 0), "write": amount(0, 0),
        "read_bytes": 5, "written_bytes": 6, "demand_max": 1 << 34, "peak_max": 3 << 29,
        "throttled_us": 90_000_000, "throttled_unknown_jobs": 0, "out_of_memory_jobs": 0,
        "timeout_jobs": 0, **changes,
    }  # fmt: skip


ADVICE = {
    "cores": 1.0, "memory": 384 << 20, "time_limit_s": 120, "read": 0, "write": 0,
    "options": ["-c", "1", "-m", "384M", "-t", "2m"], "jobs": 4, "short_jobs": 0, "of_last": 10,
}  # fmt: skip
TRAIN = {"name": "train", "user": "alice", **account(), "advice": ADVICE}
LOST = {
    "name": "lost", "user": "alice", "advice": None,
    **account(
        jobs=1, cores=amount(0, 0, HOUR), memory=amount(0, 0, 5), peak_max=0, demand_max=1 << 30,
        throttled_us=0, throttled_unknown_jobs=1,
    ),
}  # fmt: skip


def report(*rows: Any, by: str = "name", **changes: Any) -> dict[str, Any]:
    return {"by": by, "rows": list(rows), "others": None, "total": account(), **changes}


def text(screen: str) -> str:
    return textwrap.dedent(screen).strip("\n")


def test_a_report_shows_waste_and_what_to_ask_for(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    daemon.replies = {"hello": ME, "report": report(TRAIN, LOST)}
    result = drf("report")
    rule = "─" * 58
    assert text(result.screen) == text(f"""
 NAME     JOBS   CORE-H   WASTED   CPU%   MEM   PEAK   MEM%
 {rule}
 train       4     8.00     6.00    25%   16G   1.5G    30%
 lost        1     1.00     0.00      -    1G      -      -
 in all      4     8.00     6.00    25%   16G   1.5G    30%

train (alice): next time drf submit -c 1 -m 384M -t 2m  (from its last 4 jobs)
""")
    assert (result.code, result.err) == (0, "")


def test_a_report_says_why_it_advises_a_range(drf: Drf, daemon: CannedDaemon) -> None:
    note = "used 5.2 of 2 declared on average: asking for 5.5 guarantees it"
    advice = ADVICE | {"options": ["-c", "5.5..8"], "cores_max": 8.0, "cores_note": note}
    daemon.replies = {"hello": ME, "report": report(TRAIN | {"advice": advice})}
    assert drf("report").screen.splitlines()[-1] == (
        f"train (alice): next time drf submit -c 5.5..8  (from its last 4 jobs: {note})"
    )


def test_a_wide_report_has_users_disks_and_throttling(drf: Drf, daemon: CannedDaemon) -> None:
    row = TRAIN | {"read": amount(1000, 500)}
    bob = LOST | {"user": "bob"}
    total = account(read=amount(1000, 500))
    daemon.replies = {"report": report(row, bob, others=account(jobs=9), total=total)}
    lines = drf("report", "-a", "-n", "2").screen.splitlines()
    assert lines[1].split() == [
        *("NAME", "USER", "JOBS", "CORE-H", "WASTED", "CPU%", "MEM", "PEAK", "MEM%", "READ%"),
        "THROTTLED",
    ]
    assert lines[3].split()[-2:] == ["50%", "1m30s"]
    assert lines[4].split()[-2:] == ["-", "-"], "what is not known is not zero"
    assert lines[5].split()[:3] == ["all", "others", "9"]
    assert lines[6].split()[:2] == ["in", "all"]


def test_advice_that_rests_on_one_job_that_was_cut_short_says_so(
    drf: Drf, daemon: CannedDaemon
) -> None:
    row = TRAIN | {"advice": ADVICE | {"jobs": 1, "short_jobs": 1}}
    daemon.replies = {"report": report(row)}
    assert "(from its last job, 1 cut short)" in drf("report", "-a").out


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["-a", "--since", "@1000000000"], {"past": {"since_s": 1e9}}),
        (["--by", "pool", "-n", "3", "7"], {"by": "pool", "limit": 3, "past": {"ids": [7]}}),
        (["-u", "bob", "--until", "@9"], {"past": {"user": "bob", "until_s": 9.0}}),
    ],
)
def test_what_is_chosen_is_asked_for(
    drf: Drf, daemon: CannedDaemon, words: list[str], asked: dict[str, Any]
) -> None:
    daemon.replies = {"report": report()}
    drf("report", *words)
    usual = {"op": "report", "by": "name", "limit": 30}
    assert daemon.asked("report") == [usual | asked]


def test_it_is_of_the_last_month_unless_another_time_is_named(
    drf: Drf, daemon: CannedDaemon
) -> None:
    daemon.replies = {"hello": ME, "report": report()}
    drf("report")
    (request,) = daemon.asked("report")
    assert request["past"]["user"] == "alice"
    assert time.time() - request["past"]["since_s"] == pytest.approx(30 * 86400, abs=60)


def test_a_report_of_nothing_is_talk(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"report": report(total=account(jobs=0))}
    result = drf("report", "-a")
    assert (result.code, result.out) == (0, "")
    assert result.err == "drf: no job that ran has ended in that time\n"


def test_programs_get_exact_sums(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"report": report(TRAIN, others=account(jobs=2))}
    assert json.loads(drf("report", "-a", "--json").out) == {
        "by": "name", "rows": [TRAIN], "others": account(jobs=2), "total": account(),
    }  # fmt: skip
    names, first, others = drf("report", "-a", "--csv").out.splitlines()
    columns = names.split(",")
    assert len(set(columns)) == len(columns)
    row = dict(zip(columns, first.split(","), strict=True))
    assert (row["name"], row["cores_used"], row["advice"]) == (
        "train",
        str(2 * HOUR),
        "-c 1 -m 384M -t 2m",
    )
    assert others.startswith(",,2,")


def test_what_is_counted_has_a_column_of_hours_where_any_was_declared(
    drf: Drf, daemon: CannedDaemon
) -> None:
    train = TRAIN | {"gres_ms": {"gpu": 5_400_000}}
    shown = report(train, LOST | {"gres_ms": {}})
    shown["total"] = account(gres_ms={"gpu": 5_400_000})
    daemon.replies = {"hello": ME, "report": shown}
    rows = [row.split() for row in drf("report").out.splitlines() if row.strip()]
    at = rows[0].index("GPU-H")
    # The lines of advice come below the table.
    cells = {row[0]: row[at] for row in rows[2:5]}
    assert (cells["train"], cells["lost"]) == ("1.50", "0.00")
    header, *lines = drf("report", "--csv").out.splitlines()
    at = header.split(",").index("gres_ms")
    assert [line.split(",")[at] for line in lines] == ["gpu=5400000", ""]


def test_of_gpus_a_report_shows_how_busy_they_were_and_the_most_memory(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    held = {"gres_ms": {"gpu": 7_200_000}}
    peaks = {"gpu_memory_peak_max": 20 << 30, "gpu_memory_single_peak_max": 11 << 30}
    measured = {**held, "gpu": amount(7_200_000, 1_800_000), **peaks}
    unknown = {**held, "gpu": amount(0, 0, 7_200_000), **dict.fromkeys(peaks)}
    daemon.replies = {
        "hello": ME,
        "report": report({**TRAIN, **measured}, {**LOST, **unknown}, total=account(**measured)),
    }
    head, _, train, lost, total = drf("report").screen.splitlines()[1:6]
    assert head.split()[-4:] == ["GPU-H", "GPU%", "GPU", "MEM"]
    assert train.split()[-3:] == total.split()[-3:] == ["2.00", "25%", "11G"]
    assert lost.split()[-3:] == ["2.00", "-", "-"], "what is not known is not zero"
    names, first, second = drf("report", "--csv").out.splitlines()
    columns = ["gpu_declared", "gpu_used", "gpu_unknown", "gpu_wasted", "gpu_efficiency"]
    at = names.split(",").index(columns[0])
    assert names.split(",")[at : at + 7] == [*columns, *peaks]
    sums = ["7200000", "1800000", "0", "5400000", "0.25"]
    assert first.split(",")[at : at + 7] == [*sums, str(20 << 30), str(11 << 30)]
    assert second.split(",")[at : at + 7] == ["0", "0", "7200000", "0", "", "", ""]


def test_where_nothing_has_a_gpu_the_report_has_no_column_for_them(
    drf: Drf, daemon: CannedDaemon
) -> None:
    """Neither of a daemon that does not send them."""
    nothing = {"gpu": amount(0, 0), "gpu_memory_peak_max": 0}
    for sent in ({}, nothing):
        shown = report({**TRAIN, **sent}, total=account(**sent))
        daemon.replies = {"hello": ME, "report": shown}
        assert "GPU" not in drf("report").out
    names, row = drf("report", "--csv").out.splitlines()
    assert len(names.split(",")) == len(row.split(","))


def test_lent_core_hours_have_a_column_where_somebody_was_lent_some(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six core-hours were declared, of which three were used, and three more were lent."""
    monkeypatch.setenv("COLUMNS", "80")
    lent = {"cores": amount(6 * HOUR, 6 * HOUR), "lent_us": 3 * HOUR}
    none = {"lent_us": None}
    rows = report({**TRAIN, **lent}, {**LOST, **none}, total=account(**lent))
    daemon.replies = {"hello": ME, "report": rows}
    head, _, train, lost, total = drf("report").screen.splitlines()[1:6]
    at = head.split().index("CORE-H")
    assert head.split()[at : at + 4] == ["CORE-H", "LENT", "WASTED", "CPU%"]
    assert train.split()[at : at + 4] == ["6.00", "3.00", "3.00", "100%"]
    assert lost.split()[at + 1] == "-", "what is not known is not zero"
    assert total.split()[-6:-3] == ["3.00", "3.00", "100%"]
    names, first, second = drf("report", "--csv").out.splitlines()
    assert [line.split(",")[-1] for line in (names, first, second)] == [
        *("lent_us", str(3 * HOUR), "")
    ]
    # Half of a hundredth is none, and an older daemon sends nothing.
    for sent in ({}, none, {"lent_us": HOUR // 250}):
        shown = report({**TRAIN, **sent}, total=account(**sent))
        daemon.replies["report"] = shown
        assert "LENT" not in drf("report").out


def test_a_little_more_use_than_was_declared_is_no_waste_without_a_sign(
    drf: Drf, daemon: CannedDaemon
) -> None:
    """So much a quota lets through at its edges, and so little is not counted as lent."""
    sent = {"cores": amount(HOUR, HOUR + HOUR // 1000)}
    daemon.replies = {"hello": ME, "report": report({**TRAIN, **sent}, total=account(**sent))}
    shown = drf("report").out
    assert " 0.00 " in shown and "-0.00" not in shown


def test_memory_on_a_gpu_that_no_job_asked_for_is_shown(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    seen = {"gpu": amount(0, 0), "gpu_memory_peak_max": 1 << 30}
    daemon.replies = {"hello": ME, "report": report({**TRAIN, **seen}, total=account(**seen))}
    head, _, train = drf("report").screen.splitlines()[1:4]
    assert head.split()[-3:] == ["GPU%", "GPU", "MEM"]
    assert train.split()[-2:] == ["-", "1G"]


def test_a_wide_screen_shows_how_the_last_job_of_each_line_went(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = {
        "id": 7, "demand": {"cores": 4.0, "memory": 100}, "at": [2.0, 4.0, 6.0],
        "cores": [None, 1.0, 4.0], "memory": [50, 50, 100], "read": [None] * 3, "write": [None] * 3,
    }  # fmt: skip
    daemon.replies = {"hello": ME, "report": report({**TRAIN, "curve": curve}, LOST)}
    monkeypatch.setenv("COLUMNS", "140")
    head, _, train, lost, total = [line.rstrip() for line in drf("report").out.splitlines()[1:6]]
    assert head.endswith("USE OF CORES   USE OF MEM")
    assert train.endswith(" ▂█            ▄▄█")
    assert not any(sign in lost + total for sign in "▁▂▃▄▅▆▇█")
    monkeypatch.setenv("COLUMNS", "120")
    assert "USE OF" not in drf("report").out
    assert json.loads(drf("report", "--json").out)["rows"][0]["curve"]["id"] == 7


def test_the_last_job_of_a_line_with_gpus_is_drawn_with_their_use(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = [None] * 3
    curve = {
        "id": 7, "demand": {"cores": 4.0, "memory": 100, "gres": {"gpu": 2}}, "at": [2.0, 4.0, 6.0],
        "cores": [None, 1.0, 4.0], "memory": [50, 50, 100], "read": nothing, "write": nothing,
    }  # fmt: skip
    on_gpus = {**curve, "gpu_memory": [1, 2, 3], "gpu_utilisation": [None, 100, 200]}
    rows = {**TRAIN, "curve": on_gpus}, {**LOST, "curve": curve}
    daemon.replies = {"hello": ME, "report": report(*rows)}
    monkeypatch.setenv("COLUMNS", "140")
    head, _, train, lost, _ = [line.rstrip() for line in drf("report").out.splitlines()[1:6]]
    assert head.endswith("USE OF CORES   USE OF MEM   USE OF GPU")
    assert train.endswith(" ▂█            ▄▄█           ▄█")
    assert lost.endswith(" ▂█            ▄▄█")
