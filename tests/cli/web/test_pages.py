"""What the page asks for is what the daemon tells this user, and what files the user may read."""

from __future__ import annotations

import json
import time
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from canned import CannedDaemon, Refuse
from canned_snapshots import AT_S, node, snapshot, three_jobs
from cli.web.browser import wait_for
from cli.web.conftest import Page
from drfd_cli.web.past import Past


def test_a_job_comes_with_its_reasons_its_curve_and_the_end_of_its_output(
    page: Page, lab: CannedDaemon, output: Path
) -> None:
    assert page.json("jobs/40").keys() == {"show", "output"}
    found = page.json("jobs/40?why=1")
    assert found.keys() == {"show", "why", "output"}
    assert found["show"] == {"ok": True, **lab.replies["show"]}
    assert found["why"] == {"ok": True, **lab.replies["why"]}
    lines = [f"step {number}" for number in range(100, 400)]
    assert found["output"] == {"path": str(output), "lines": lines, "note": ""}


def test_an_output_that_cannot_be_shown_says_why(
    page: Page, lab: CannedDaemon, output: Path
) -> None:
    job: Any = lab.replies["show"]["job"]

    def note() -> str:
        told = page.json("jobs/40")["output"]
        assert told["lines"] == []
        return str(told["note"])

    output.unlink()
    assert note() == "the file is not there"
    output.touch()
    assert note() == "nothing yet"
    job["stdout"] = "/dev/null"
    assert note() == "the output went to /dev/null, which is no file that keeps it"
    job["stdout"] = None
    assert note() == "only its owner is told where it is"


def test_refusals_of_the_daemon_are_told(page: Page, lab: CannedDaemon, refuse: Refuse) -> None:
    lab.replies["show"] = refuse("Refused", "no-job", "there is no job 99")
    response, body = page.get("jobs/99")
    assert (response.status, json.loads(body)) == (404, {"error": "there is no job 99"})
    response, body = page.get("jobs/x%0a%3Cb%3E")
    assert response.status == 404
    lab.replies["history"] = lab.replies["why"] = refuse("NotPermitted", "not-yours", "not yours")
    response, body = page.get("history?everybody=1")
    assert (response.status, json.loads(body)) == (403, {"error": "not yours"})
    lab.replies["show"] = {"array": {"id": 7}, "events": []}
    assert page.json("jobs/7?why=1")["why"] is None


def test_history_is_ones_own_unless_asked_and_goes_on_where_it_stopped(
    page: Page, lab: CannedDaemon
) -> None:
    lab.replies["history"] = {"jobs": [], "after": [5.5, 7]}
    assert page.json("history")["after"] == [5.5, 7]
    page.json("history?everybody=1&at=5.5&id=7")
    assert [
        {k: each.get(k) for k in ("past", "after")} for each in lab.asked("history", times=2)
    ] == [
        {"past": {"user": "alice"}, "after": None},
        {"past": {}, "after": [5.5, 7]},
    ]
    for query in ("at=x&id=7", "at=nan&id=7", "at=1&id=7.5"):
        assert page.get(f"history?{query}")[0].status == 404


def test_the_account_of_promises_is_of_so_many_days(page: Page, lab: CannedDaemon) -> None:
    told = page.json("promises?days=7")
    assert told == {"ok": True, **lab.replies["ledger"]}
    (asked,) = lab.asked("ledger")
    assert 0 <= time.time() - 7 * 86400 - asked["since_s"] < 120
    for query in ("", "?days=", "?days=-1", "?days=1e3", "?days=%C2%B2", "?days=999999"):
        assert page.get(f"promises{query}")[0].status == 404


def test_a_stream_has_each_new_snapshot_and_says_when_the_daemon_is_away(
    page: Page, lab: CannedDaemon
) -> None:
    def until(reply: HTTPResponse, at_s: float, *, is_away: bool) -> None:
        while True:
            line = reply.readline()
            assert line, "the stream has ended"
            if line.startswith(b"data: "):
                news = json.loads(line.removeprefix(b"data: "))
                if (news["snapshot"]["at"], news["away"]) == (at_s, is_away):
                    return

    with page.stream() as reply:
        assert (reply.getheader("Content-Type") or "").startswith("text/event-stream")
        until(reply, AT_S, is_away=False)
        lab.replies["snapshots"] = None
        lab.hang_up()
        until(reply, AT_S, is_away=True)
        lab.replies["snapshots"] = {"snapshot": three_jobs() | {"at": AT_S + 60}}
        until(reply, AT_S + 60, is_away=False)
    wait_for("the past", lambda: page.json("past")["at"] == [AT_S, AT_S + 60])
    past = page.json("past")["nodes"]["root.lab.alice"]
    assert past == {"share": [0.5, 0.5], "entitlement": [0.5, 0.5]}


def test_a_stream_says_when_the_daemon_says_nothing(page: Page) -> None:
    """The canned daemon sends one snapshot."""
    with page.stream() as reply:
        while not (line := reply.readline()).startswith(b"data: ") or b'"silent":false' in line:
            assert line, "the stream has ended"
    told = json.loads(line.removeprefix(b"data: "))
    assert (told["away"], told["silent"], told["snapshot"]["at"]) == (False, True, AT_S)


def test_the_past_keeps_the_highest_share_of_each_time_in_few_moments() -> None:
    past = Past()
    for second in range(10_000):
        share = 0.9 if second == 5_000 else 0.1
        shown = [node("root.a", running=1, dominant_share=share, entitlement=0.25)]
        past.add(snapshot(at=AT_S + second, nodes=[*shown, node("root.idle")]))
    view: Any = past.view()
    assert len(view["at"]) < 240
    assert view["at"] == sorted(view["at"])
    assert view["at"][-1] > AT_S + 9_900
    assert view["nodes"].keys() == {"root.a"}
    assert sorted(set(view["nodes"]["root.a"]["share"])) == [0.1, 0.9]
    assert set(view["nodes"]["root.a"]["entitlement"]) == {0.25}


def test_who_comes_later_has_a_gap_before() -> None:
    past = Past()
    past.add(snapshot(at=AT_S))
    past.add(snapshot(at=AT_S + 1, nodes=[node("root.a", pending=2, entitlement=1.0)]))
    past.add(snapshot(at=AT_S + 1, nodes=[node("root.a", running=2, dominant_share=1.0)]))
    assert past.view() == {
        "at": [AT_S, AT_S + 1],
        "nodes": {"root.a": {"share": [None, 0.0], "entitlement": [None, 1.0]}},
    }
