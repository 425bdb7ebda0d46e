"""drf profile: how much it takes, and what it says afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Refuse
from cli.drf import Drf

GIB = 1 << 30


def free(cores: float, memory: int) -> dict[str, Any]:
    return {"free": {"cores": cores, "memory": memory, "read": 0, "write": 0, "gres": {}}}


def report(advice: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    row = {
        "run_ms": 4000, "cores": {"declared": 9, "used": 3_800_000}, "peak_max": 308 << 20,
        "advice": advice, **changes,
    }  # fmt: skip
    return {"rows": [row]}


ADVICE = {"options": ["-c", "1", "-m", "384M", "-t", "1m"], "jobs": 1, "short_jobs": 0}
NOW = {"expected_start_at": 1.0, "reason": None}
LATER = {"expected_start_at": None, "reason": {"code": "LIMIT", "text": "no"}}


def submits(forecasts: list[Any]) -> Callable[[Any], Any]:
    """A daemon that answers dry runs with these, in turn."""
    left = list(forecasts)
    return lambda request: left.pop(0) if request.get("dry_run") else {"id": 42}


def asked(daemon: CannedDaemon) -> list[tuple[float, int]]:
    """Cores and memory of each submission, dry runs first."""
    demands = [request["demand"] for request in daemon.requests if request["op"] == "submit"]
    return [(each["cores_milli"] / 1000, each["memory_bytes"]) for each in demands]


@pytest.fixture
def prepared(daemon: CannedDaemon, ended: MakeJob) -> CannedDaemon:
    daemon.replies = {
        "shares": free(9.5, 18 * GIB + 5),
        "submit": submits([NOW]),
        "wait": {"done": True, "ended": [ended()]},
        "report": report(ADVICE),
    }
    return daemon


def test_it_takes_all_that_is_free_and_says_what_would_have_fitted(
    drf: Drf, prepared: CannedDaemon
) -> None:
    result = drf("profile", "--no-warnings", "--", "train", "a b")
    assert (result.code, result.out) == (0, "")
    assert result.err == (
        "drf: measured with 9 cores and 18G of memory\n"
        "drf: it ran for 4s, with 0.95 cores on average and 308M of memory at its peak\n"
        "drf: drf submit -c 1 -m 384M -t 1m -- train 'a b'\n"
    )
    assert asked(prepared) == [(9, 18 * GIB)] * 2
    assert prepared.asked("report")[0] == {
        "op": "report", "by": "job", "least": 1, "past": {"ids": [42]},
    }  # fmt: skip


def test_it_takes_less_until_it_would_start_now(
    drf: Drf, prepared: CannedDaemon, refuse: Refuse
) -> None:
    prepared.replies["submit"] = submits([refuse(code="too-big"), LATER, NOW])
    drf("profile", "--", "true")
    assert asked(prepared) == [(9, 18 * GIB), (4, 9 * GIB), (2, 4608 << 20), (2, 4608 << 20)]


def test_on_a_full_machine_it_waits_for_the_least(drf: Drf, prepared: CannedDaemon) -> None:
    prepared.replies["shares"] = free(0.2, 0)
    drf("profile", "--", "true")
    assert asked(prepared) == [(1, GIB)]


def test_what_is_given_is_kept(drf: Drf, prepared: CannedDaemon) -> None:
    prepared.replies["submit"] = submits([LATER, NOW])
    drf("profile", "-m", "64M", "-t", "1h", "--", "true")
    assert asked(prepared) == [(9, 64 << 20), (4, 64 << 20), (4, 64 << 20)]
    assert {request["time_limit_s"] for request in prepared.asked("submit")} == {3600}


def test_a_run_that_was_too_short_to_be_measured_is_told_from_one_that_failed(
    drf: Drf, prepared: CannedDaemon, ended: MakeJob
) -> None:
    """Where there are no cgroups, use is only sampled."""
    prepared.replies["wait"] = {"done": True, "ended": [ended("COMPLETED")]}
    prepared.replies["report"] = report(None)
    result = drf("profile", "--", "true")
    assert result.code == 0
    assert result.err.endswith(
        "drf: it was over before its use was measured; profile a run of some seconds\n"
    )


def test_a_run_that_failed_teaches_nothing_and_its_code_is_kept(
    drf: Drf, prepared: CannedDaemon, ended: MakeJob
) -> None:
    prepared.replies["wait"] = {"done": True, "ended": [ended("FAILED", status=3)]}
    prepared.replies["report"] = report(None)
    result = drf("profile", "--", "false")
    assert result.code == 3
    assert result.err.endswith(
        "drf: it ended as FAILED: only a run that has done its work shows what it needs\n"
    )


def test_a_run_that_never_was_teaches_nothing(drf: Drf, prepared: CannedDaemon) -> None:
    prepared.replies["report"] = {"rows": []}
    assert "it never ran" in drf("profile", "--", "x").err


def test_a_run_that_a_range_would_serve_better_is_told_why(
    drf: Drf, prepared: CannedDaemon
) -> None:
    note = "used 1.6 of 8 cores on average, at times all of them: a range books 2"
    options = ["-c", "2..8", "-m", "384M", "-t", "1m"]
    prepared.replies["report"] = report(ADVICE | {"options": options, "cores_note": note})
    *_, why, command = drf("profile", "--no-warnings", "--", "train").err.splitlines()
    assert (why, command) == (f"drf: it {note}", "drf: drf submit -c 2..8 -m 384M -t 1m -- train")


def test_a_run_that_was_cut_short_is_a_guess(drf: Drf, prepared: CannedDaemon) -> None:
    prepared.replies["report"] = report(ADVICE | {"short_jobs": 1})
    assert (
        "it was cut short: this is a guess, profile it again with" in drf("profile", "--", "x").err
    )


def test_a_command_that_cannot_be_typed_is_not_repeated(drf: Drf, prepared: CannedDaemon) -> None:
    err = drf("profile", "--", "sh", "-c", "a\nb\x1b").err
    assert err.endswith("drf: drf submit -c 1 -m 384M -t 1m -- (the same command)\n")
