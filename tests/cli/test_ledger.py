"""drf ledger: what it asks for, and its screens."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from canned import CannedDaemon
from cli.drf import Drf
from drfd_cli.commands.ledger import _Telling

#: The whole machine for an hour.
HOUR = 3_600_000 * 10**9
#: 2026-03-01 10:00 UTC, and an hour in milliseconds.
BEGIN_S = 1_772_359_200.0
LONG = 3_600_000
ANN = {"user": "ann", "pool": None}
BOB = {"user": "bob", "pool": None}
CAUSES = dict.fromkeys(("away", "drained", "own_limit", "outside", "others", "size"), 0)


def sums(waited_ms: int, promised: int, kept: int, **causes: int) -> dict[str, Any]:
    return {
        "waited_ms": waited_ms, "kept_part": 0.25, "promised": promised, "kept": kept,
        **CAUSES, **causes,
    }  # fmt: skip


ANNS = {
    **ANN, **sums(4 * LONG, 2 * HOUR, HOUR // 2, others=HOUR, size=HOUR // 2),
    "below": {"since": BEGIN_S, "seconds": 7200.0},
}  # fmt: skip
#: Too short to be seen.
BOBS = {**BOB, **sums(3, HOUR // 10**6, 0, size=HOUR // 10**6), "below": None}
TOTAL = sums(4 * LONG + 3, 2 * HOUR + HOUR // 10**6, HOUR // 2, others=HOUR, size=HOUR // 2)
STARTS = [
    {"why": "reservation", "all": 2, "beyond": 2, "past": 2, "past_fitting": 1},
    {"why": "turn", "all": 10, "beyond": 5, "past": 1, "past_fitting": 0},
]
PAST = {
    **BOB, "id": 42, "at": BEGIN_S + 60, "why": "reservation", "fits": True, "short": [ANN],
}  # fmt: skip


def ledger(**changes: Any) -> dict[str, Any]:
    return {
        "since": BEGIN_S, "until": BEGIN_S + 4 * 3600, "user": None, "rows": [ANNS, BOBS],
        "total": TOTAL, "leaves": 2, "starts": STARTS,
        "pairs": [{**ANN, "by": BOB, "amount": HOUR}, {**ANN, "by": None, "amount": HOUR // 1000}],
        "pairs_more": 3, "past": [PAST], "past_more": 1, "hours": 4, "steps_back": 0,
        "doubtful": 0, "events": 99, "chain": "5c16d984fa084828" * 4, "begin": BEGIN_S, **changes,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "80")
    time.tzset()


def text(screen: str) -> list[str]:
    """Return the lines without blanks around them, and without empty ones."""
    return [line.strip() for line in screen.splitlines() if line.strip()]


def test_a_row_for_each_who_waited_and_the_causes_that_there_were(
    drf: Drf, daemon: CannedDaemon
) -> None:
    daemon.replies = {"ledger": ledger()}
    result = drf("ledger", "--since", "2026-03-01")
    assert text(result.screen) == text("""
 USER    WAITED   PROMISED   KEPT   SHORT   OTHERS     SIZE   LONGEST BELOW
 ─────────────────────────────────────────────────────────────────────────────────
 ann      4h00m        50%    25%   1h30m    1h00m   30m00s   2h00m (Mar 01 10:00)
 all 2    4h00m        50%    25%   1h30m    1h00m   30m00s
12 starts, 3 of them past somebody who was short
in 1 of these the first job of one who was short fitted: 1 with a reservation
4 hours from 2026-03-01 10:00:00 on, events up to 99, chain 5c16d984fa084828
""")
    (request,) = daemon.requests
    assert request.pop("since_s") % 3600 == 0
    assert request == {"op": "ledger"}


def test_why_tells_because_of_whom_and_which_starts_went_past(
    drf: Drf, daemon: CannedDaemon
) -> None:
    daemon.replies = {"ledger": ledger(steps_back=1, doubtful=2)}
    screen = text(drf("ledger", "--why", "-u", "ann").screen)
    assert screen[6:] == text("""
 SHORT   BECAUSE OF    TIME
 ──────────────────────────
 ann     bob          1h00m
 ann     others          3s
3 more with less
whoever held more than promised took what was idle at that time
 STARTED               ID   OF    RULE                 FITTED   PAST
 ───────────────────────────────────────────────────────────────────
 2026-03-01 10:01:00   42   bob   with a reservation   yes      ann
1 more before
4 hours from 2026-03-01 10:00:00 on, events up to 99, chain 5c16d984fa084828
the clock was set back 1 time: such a step counts as no time
2 events left out: others of these jobs were removed
""")
    assert daemon.requests[-1]["user"] == "ann"


def test_json_and_csv_have_the_exact_amounts(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"ledger": ledger()}
    assert json.loads(drf("ledger", "--json").out) == ledger()
    lines = drf("ledger", "--csv").out.splitlines()
    assert lines == [
        "user,pool,waited_ms,kept_part,promised,kept,others,size,own_limit,outside,drained,away,"
        "below_since,below_seconds",
        f"ann,,{4 * LONG},0.25,{2 * HOUR},{HOUR // 2},{HOUR},{HOUR // 2},0,0,0,0,{BEGIN_S},7200.0",
        f"bob,,3,0.25,{HOUR // 10**6},0,0,{HOUR // 10**6},0,0,0,0,,",
    ]


def test_when_nobody_has_waited_it_says_so(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"ledger": ledger(total=sums(0, 0, 0), rows=[], starts=[])}
    first, *_ = drf("ledger").screen.splitlines()
    assert first == "nobody has waited"
    daemon.replies = {"ledger": ledger(hours=0)}
    assert drf("ledger").err == "drf: nothing is known of that time\n"


FOUND = {"hours": 9, "computed": 7, "events": 99, "gone": 4, "chain": "5c16", "fault": None}


def test_verify_asks_until_the_check_is_over(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"ledger_check": [{"running_s": 45.0}, {"running_s": 90.0}, FOUND]}
    result = drf("ledger", "--verify")
    assert result.out.splitlines() == [
        "7 of 9 hours computed again, 99 events compared, 4 gone with their jobs",
        "chain 5c16",
        "all is as it was written",
    ]
    assert [each["op"] for each in daemon.requests] == ["ledger_check"] * 3


def test_verify_tells_the_first_hour_that_differs_and_fails(drf: Drf, daemon: CannedDaemon) -> None:
    fault = {"hour": 3, "begin": BEGIN_S, "text": "event 7 (Submitted of job 1) was changed"}
    daemon.replies = {"ledger_check": {**FOUND, "fault": fault}}
    result = drf("ledger", "--verify")
    assert result.code == 1
    assert result.out.splitlines() == [
        "hour 3, which begins 2026-03-01 10:00:00: event 7 (Submitted of job 1) was changed",
        "7 of 9 hours computed again, 99 events compared, 4 gone with their jobs",
        "chain 5c16",
        "the account is not what it was",
    ]
    assert json.loads(drf("ledger", "--verify", "--json").out)["fault"] == fault


def test_what_makes_no_sense_is_wrong_usage(drf: Drf, daemon: CannedDaemon) -> None:
    for words, fault in (
        (["--verify", "--why"], "it goes with --json alone"),
        (["--audit", "--until", "3d"], "goes with --since, --json and --csv alone"),
        (["--since", "2d", "--until", "3d"], "--since is not before --until"),
    ):
        result = drf("ledger", *words)
        assert (result.code, fault in result.err) == (2, True)
    assert not daemon.requests


# -- the audit -------------------------------------------------------------------------------------

CAPACITY = {"cores": 10.0, "memory": 16 << 30, "read": 0, "write": 0, "gres": {}}


@pytest.fixture
def past(daemon: CannedDaemon) -> CannedDaemon:
    """Alice's job holds five of ten cores when bob comes with one that needs eight."""

    def ended(id: int, user: str, at_s: float, cores: float, run_s: float) -> dict[str, Any]:
        return {
            "id": id, "user": user, "pool": f"root.{user}", "submitted_at": BEGIN_S + at_s,
            "attempt": 1, "started_at": BEGIN_S + 500, "ended_at": BEGIN_S + 500 + run_s,
            "time_limit_s": None, "used": {},
            "demand": {"cores": cores, "memory": 0, "read": 0, "write": 0, "gres": {}},
        }  # fmt: skip

    ran = [ended(1, "alice", 0, 5, 100), ended(2, "bob", 1, 8, 50), ended(3, "bob", 2, 2, 10)]
    daemon.replies = {
        "history": {"jobs": ran, "after": None},
        "shares": {"capacity": CAPACITY, "free": CAPACITY, "nodes": []},
    }
    return daemon


def test_an_audit_simulates_the_past_otherwise(drf: Drf, past: CannedDaemon) -> None:
    result = drf("ledger", "--audit", "--since", "2026-03-01")
    assert result.out.splitlines() == [
        "3 jobs of 2 users since 2026-03-01 00:00:00, simulated with the present weights",
        "envy: 0.0% of those who waited would have preferred what another one held",
        "alone on a machine of their own, as large as their entitlement, 0 of 2 users would have "
        "waited less",
        "false demands: in 1 of 3 simulations, of those who waited most, the user's own jobs would "
        "have ended earlier",
        "  bob, two halves of each job: by 24.5% of the time from submission to end",
    ]
    (asked,) = past.asked("history")
    assert [*asked["past"]] == ["since_s"]


def test_an_audit_has_json_and_csv(drf: Drf, past: CannedDaemon) -> None:
    found = json.loads(drf("ledger", "--audit", "--json").out)
    assert [*found] == ["since", "jobs", "refused", "envy", "alone", "false_demands"]
    assert found["alone"][0] == {
        "user": "alice", "jobs": 1, "too_large": 0, "wait_s": 0.0, "wait_alone_s": 0.0,
    }  # fmt: skip
    assert {(each["user"], each["of"]) for each in found["false_demands"]} == {
        ("bob", "cores"), ("bob", "all"), ("bob", "split"),
    }  # fmt: skip
    lines = drf("ledger", "--audit", "--csv").out.splitlines()
    assert lines[:2] == ["user,test,as_it_was_s,otherwise_s", "alice,alone,0.0,0.0"]
    assert len(lines) == 1 + 2 + 3


def test_an_audit_without_jobs_says_so(drf: Drf, past: CannedDaemon) -> None:
    past.replies["history"] = {"jobs": [], "after": None}
    result = drf("ledger", "--audit", "--since", "2026-03-01")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "drf: no job that ran has ended since 2026-03-01 00:00:00 (an earlier time: --since 365d)\n"
    )


def test_a_long_audit_says_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    words = _Telling(50_000, shows_all=True), _Telling(2, shows_all=False)
    for number, (at_s, left) in enumerate([(60, 20.5), (61, 20), (300, 16), (309, 16)], start=1):
        clock[0] = at_s
        for each in words:
            each.tell(number, 40, left)
    assert capsys.readouterr().err.splitlines() == [
        "drf: 40 simulations of up to 50000 jobs take about 20m30s; with a later --since it is "
        "less",
        "drf: 40 simulations of up to 2 jobs take about 20m30s; with a later --since it is less",
        "drf: simulation 3 of 40, about 16m00s more",
    ]
    short = _Telling(2, shows_all=False)
    clock[0] += 2
    short.tell(1, 40, 20.5)
    assert capsys.readouterr().err == ""
