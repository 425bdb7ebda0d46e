"""The whole table: what an attempt file says, whether its runner lives → what is reported."""

from __future__ import annotations

import json

import pytest

from drfd.launcher.attempts import UNKNOWN, Attempt, Record, parse
from drfd.launcher.cut import Cut
from drfd.launcher.news import news_of
from drfd.launcher.protocol import Message

CREATED: Record = {"uid": 1, "boot_id": "b", "cgroup": "drfd/job-1-1", "at_s": 5.0, "mono_s": 6.0}
RUNNER: Record = {"pid": 10, "start_ticks": 99}
RUNNING: Record = {"pid": 11}
FAILED: Record = {"text": "there is no command x"}
ENDED: Record = {"at_s": 7.0, "mono_s": 8.0, "exit_code": 3, "signal": None, "cpu_s": 0.5}

UP = ("up", {"at_s": 5.0, "mono_s": 6.0, "cgroup": "drfd/job-1-1", "runner_pid": 10})
BROKE = ("broke", FAILED)
DONE = ("ended", ENDED)
MISSING: tuple[str, Message] = ("missing", {})


def lost(oom: tuple[bool, bool]) -> tuple[str, Message]:
    facts = {"at_s": 9.0, "mono_s": None, "exit_code": None, "signal": None}
    return "ended", facts | {"oom_killed": oom[0], "over_limit": oom[1]}


STARTING = Attempt(CREATED, runner=RUNNER)
STARTED = Attempt(CREATED, runner=RUNNER, running=RUNNING)
#: Attempt → its reports while the runner lives.
SAID = [
    (STARTING, []),
    (Attempt(CREATED, runner=RUNNER, failed=FAILED), [BROKE]),
    (STARTED, [UP]),
    (Attempt(CREATED, runner=RUNNER, running=RUNNING, failed=FAILED), [BROKE]),
    (Attempt(CREATED, runner=RUNNER, running=RUNNING, ended=ENDED), [UP, DONE]),
]


@pytest.mark.parametrize("oom", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("attempt", "reports"), SAID)
def test_what_is_on_record_is_said(
    attempt: Attempt, reports: list[tuple[str, Message]], oom: tuple[bool, bool]
) -> None:
    assert news_of(attempt, alive=True, cut=None, oom=oom, at_s=9.0) == reports


@pytest.mark.parametrize(("attempt", "reports"), [said for said in SAID if said[0].is_over])
def test_an_end_on_record_stands_when_the_runner_is_gone(
    attempt: Attempt, reports: list[tuple[str, Message]]
) -> None:
    """What the kernel counted is in the record already."""
    assert news_of(attempt, alive=False, cut=None, oom=(True, True), at_s=9.0) == reports


@pytest.mark.parametrize("created", [CREATED, UNKNOWN])
def test_a_damaged_record_is_an_end_that_is_not_known_and_no_missing_start(created: Record) -> None:
    """It may have been that of the start: what is missing is launched again."""
    damaged = Attempt(created, runner=RUNNER, is_damaged=True)
    assert news_of(damaged, alive=True, cut=None, oom=(False, False), at_s=9.0) == []
    found = news_of(damaged, alive=False, cut=None, oom=(False, False), at_s=9.0)
    assert found == [lost((False, False))]


def test_a_start_at_no_known_time_is_not_reported_but_its_end_is() -> None:
    started = Attempt(UNKNOWN, runner=RUNNER, running=RUNNING, is_damaged=True)
    assert news_of(started, alive=True, cut=None, oom=(False, False), at_s=9.0) == []
    ended = Attempt(UNKNOWN, runner=RUNNER, running=RUNNING, ended=ENDED, is_damaged=True)
    assert news_of(ended, alive=False, cut=None, oom=(False, False), at_s=9.0) == [DONE]


@pytest.mark.parametrize("attempt", [Attempt(CREATED), STARTING])
def test_a_runner_that_died_before_the_start_leaves_nothing(attempt: Attempt) -> None:
    assert news_of(attempt, alive=False, cut=None, oom=(True, True), at_s=9.0) == [MISSING]


@pytest.mark.parametrize("oom", [(False, False), (True, False), (True, True)])
def test_a_runner_that_died_after_the_start_leaves_an_unknown_end(oom: tuple[bool, bool]) -> None:
    assert news_of(STARTED, alive=False, cut=None, oom=oom, at_s=9.0) == [UP, lost(oom)]


def test_an_attempt_whose_runner_is_not_on_record_yet_is_not_news() -> None:
    assert news_of(Attempt(CREATED), alive=True, cut=None, oom=(False, False), at_s=9.0) == []


@pytest.mark.parametrize("alive", [True, False])
def test_the_end_of_one_that_was_cut_short_says_nothing_of_the_job(alive: bool) -> None:
    """It may have caught the SIGTERM and exited 0, half done."""
    ended = Attempt(CREATED, runner=RUNNER, running=RUNNING, ended=ENDED | {"exit_code": 0})
    kind, facts = lost((False, False))
    reports = [UP, (kind, facts | {"at_s": 7.0})]
    assert news_of(ended, alive=alive, cut=Cut("b", 6.5), oom=(True, True), at_s=9.0) == reports


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("kind", ["created", "runner", "running", "failed", "ended"])
def test_a_record_that_lacks_a_field_is_read_with_what_is_there(kind: str, alive: bool) -> None:
    """Another version may have written it."""
    whole: dict[str, Record] = {
        "created": CREATED, "runner": RUNNER, "running": RUNNING, "ended": ENDED,
    }  # fmt: skip
    if kind == "failed":
        whole = {"created": CREATED, "runner": RUNNER, "failed": FAILED}
    for field in whole[kind]:
        records = whole | {kind: {k: v for k, v in whole[kind].items() if k != field}}
        lines = [json.dumps({"record": name} | record) for name, record in records.items()]
        attempt = parse("".join(f"{line}\n" for line in lines).encode())
        assert attempt is not None and not attempt.is_damaged
        for cut in (None, Cut("b", 4.0), Cut("b", 6.0)):
            said = news_of(attempt, alive=alive, cut=cut, oom=(False, False), at_s=9.0)
            last, facts = said[-1]
            assert last == ("broke" if kind == "failed" else "ended")
            assert last == "broke" or {"at_s", "mono_s", "exit_code", "signal"} <= set(facts)
