"""drf set: a changed time limit is what its user means."""

from __future__ import annotations

import time
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message
from cli.drf import Drf


@pytest.fixture
def live(daemon: CannedDaemon, job: MakeJob) -> list[Message]:
    """Jobs of the daemon: one that has run for an hour."""
    jobs = [job(id=42, state="RUNNING", started_at=time.time() - 3600, time_limit_s=7200)]
    daemon.replies = {
        "status": {"jobs": jobs, "after": None},
        "set": {"done": [42], "failed": []},
        "show": {"job": job(id=42, state="PENDING"), "events": []},
    }
    return jobs


def limits(daemon: CannedDaemon) -> list[Any]:
    return [each["time_limit_s"] for each in daemon.requests if each["op"] == "set"]


def test_a_limit_that_stops_a_job_at_once_is_said(
    drf: Drf, daemon: CannedDaemon, live: list[Message]
) -> None:
    result = drf("set", "-t", "1s", "42")
    assert (result.code, limits(daemon)) == (0, [1])
    assert result.err == ("drf: job 42 has run for 1h00m: a limit of 1s stops it within a minute\n")
    assert drf("set", "-t", "1h30m", "42").err == ""
    assert drf("set", "-t", "unlimited", "42").err == ""
    live[0].update(state="SUSPENDED")
    assert drf("set", "-t", "1s", "42").err == ""


@pytest.mark.parametrize("answer", [True, False])
def test_a_person_is_asked_before_that(
    drf: Drf,
    daemon: CannedDaemon,
    live: list[Message],
    job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    answer: bool,
) -> None:
    live.append({**live[0], "id": 43})
    asked = []

    def confirm(text: str) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("drfd_cli.output.confirm", confirm)
    drf("set", "-t", "10s", "42,43")
    assert asked == [
        "jobs 42, 43 have run for up to 1h00m: a limit of 10s would stop them within a minute;"
        " set it?"
    ]
    assert limits(daemon) == ([10] if answer else [])
    assert drf("set", "-y", "-t", "10s", "42").err.startswith("drf: jobs 42, 43 have run")
    assert len(asked) == 1


@pytest.mark.parametrize(("change", "limit"), [("+10m", 7800), ("-10m", 6600), ("+1-0", 93600)])
def test_a_limit_is_changed_by_so_much(
    drf: Drf, daemon: CannedDaemon, live: list[Message], change: str, limit: int
) -> None:
    assert drf("set", "-t", change, 42).err == ""
    assert limits(daemon) == [limit]


@pytest.mark.parametrize(
    ("change", "more", "complaint"),
    [
        ("-3h", [], "nothing would be left of 2h00m"),
        ("+1h", [{"time_limit_s": None}], "has no time limit"),
        ("+1h", [{"time_limit_s": 3600}], "have different time limits (1h00m, 2h00m)"),
        ("+soon", [], "not a time"),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(
    drf: Drf,
    daemon: CannedDaemon,
    live: list[Message],
    change: str,
    more: list[Message],
    complaint: str,
) -> None:
    live += [{**live[0], **each} for each in more]
    result = drf("set", "-t", change, "-g", "sweep")
    assert (result.code in (1, 2), limits(daemon), result.err.count("\n")) == (True, [], 1)
    assert complaint in result.err


def test_the_limit_of_an_array_has_another_way(drf: Drf) -> None:
    assert "--group NAME%N lets fewer tasks" in drf("set", "--array", "%3", 42).err
