"""Jobs by name, by `@-1`, and the latest one, wherever ids are taken."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message
from cli.drf import Drf
from drfd_cli.words import which_job

#: Newest first, as the daemon says it.
JOBS: list[Message] = [
    {"id": 43, "name": "eval", "state": "PENDING", "live": True},
    {"id": 42, "name": "train", "state": "RUNNING", "live": True},
    {"id": 41, "name": "train", "state": "FAILED", "live": False},
    {"id": 40, "name": "old", "state": "FAILED", "live": False},
    {"id": 39, "name": "old", "state": "array", "live": False},
    {"id": 38, "name": "eval", "state": "HELD", "live": True},
]


@pytest.fixture
def knowing(daemon: CannedDaemon, job: MakeJob) -> CannedDaemon:
    def recent(request: Message) -> Message:
        found = [each for each in JOBS if request.get("name") in (None, each["name"])]
        return {"recent": found[: request["limit"]], "pools": [], "users": [], "gres": []}

    batch = {"done": [43], "failed": []}
    daemon.replies = {
        "recent": recent, "show": {"job": job(id=1), "events": []},
        "why": {"job": job(), "notes": [], "advice": None}, "submit": {"id": 50},
        "wait": {"done": True, "ended": []}, "cancel": batch, "hold": batch,
    }  # fmt: skip
    return daemon


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    which_job._tell_once.cache_clear()
    monkeypatch.setattr(which_job, "is_person_here", lambda: True)


def asked(daemon: CannedDaemon, op: str) -> Message:
    [found] = [each for each in daemon.requests if each["op"] == op]
    return found


@pytest.mark.parametrize(
    ("word", "ref"),
    [("train", 42), ("@-1", 43), ("@-3", 41), ("@-3_7", "41_7"), ("42", 42), ("42_7", "42_7")],
)
def test_a_word_means_one_job(drf: Drf, knowing: CannedDaemon, word: str, ref: Any) -> None:
    """Of one name, the live job is meant. Without a terminal nothing is said of it."""
    result = drf("why", word)
    assert (result.code, result.err) == (0, "")
    assert asked(knowing, "why")["id"] == ref


def test_names_are_taken_where_several_ids_are(drf: Drf, knowing: CannedDaemon) -> None:
    drf("wait", "train", "3-5", "@-1")
    assert asked(knowing, "wait")["ids"] == [42, 3, 4, 5, 43]
    drf("cancel", "train")
    assert asked(knowing, "cancel")["select"]["ids"] == [42]
    drf("hold", "train,7-8,@-1,4_[2-3]")
    assert asked(knowing, "hold")["select"]["ids"] == [42, 7, 8, 43, "4_2", "4_3"]


def test_a_name_may_hold_a_comma(
    drf: Drf, knowing: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JOBS[1], "name", "a,b")
    assert drf("hold", "a,b").code == 0
    assert asked(knowing, "hold")["select"]["ids"] == [42]
    refused = drf("cancel", "a,c").err
    assert "'a' is not a job id, nor the name of a job of yours" in refused
    assert "'train,,5' is not a job id" in drf("cancel", "train,,5").err


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("train", [{"id": 42, "want": "ok"}]),
        ("@-1:any", [{"id": 43, "want": "any"}]),
        ("5,6:fail", [{"id": 5, "want": "ok"}, {"id": 6, "want": "fail"}]),
        (
            "train:any,5_2:fail,@-1",
            [{"id": 42, "want": "any"}, {"id": "5_2", "want": "fail"}, {"id": 43, "want": "ok"}],
        ),
        (
            "afterok:5:train,afternotok:6,afterany:7_1",
            [
                {"id": 5, "want": "ok"},
                {"id": 42, "want": "ok"},
                {"id": 6, "want": "fail"},
                {"id": "7_1", "want": "any"},
            ],
        ),
    ],
)
def test_conditions_take_them_too(
    drf: Drf, knowing: CannedDaemon, text: str, after: list[Message]
) -> None:
    assert drf("submit", "--after", text, "--", "true").code == 0
    assert asked(knowing, "submit")["after"] == after


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("old", "2 jobs are named 'old': 40 (FAILED), 39 (array) (write the id of one)"),
        ("eval", "2 jobs are named 'eval': 43 (PENDING), 38 (HELD) (write the id of one)"),
        ("nix", "'nix' is not a job id, nor the name of a job of yours (write 41,"),
        ("@-7", "@-7 is none of the 6 jobs of yours that are known"),
        ("@-0", "@-0 is none of"),
        ("@x", "'@x' is not a job"),
        ("7x", "'7x' is not a job id"),
        ("", "'' is not a job id"),
    ],
)
def test_what_means_no_one_job_is_refused(
    drf: Drf, knowing: CannedDaemon, word: str, complaint: str
) -> None:
    result = drf("hold", word)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert complaint in result.err
    assert {each["op"] for each in knowing.requests} <= {"recent"}


@pytest.mark.parametrize(("word", "ref"), [("old", 40), ("eval", 43)])
def test_of_several_jobs_with_a_name_a_verb_that_reads_takes_the_latest_and_says_so(
    drf: Drf, knowing: CannedDaemon, word: str, ref: int
) -> None:
    which_job._tell_once.cache_clear()
    result = drf("why", word)
    assert (result.code, result.err) == (0, f"drf: job {ref} (the latest of 2 named {word})\n")
    assert asked(knowing, "why")["id"] == ref
    assert drf("wait", word).code == 0
    assert asked(knowing, "wait")["ids"] == [ref]


def test_a_person_gets_the_latest_job_and_is_told(
    drf: Drf, knowing: CannedDaemon, person: None
) -> None:
    assert drf("why").err == "drf: job 43 (eval)\n"
    assert asked(knowing, "why")["id"] == 43
    assert drf("wait", "train").err == "drf: job 42 (train)\n"


@pytest.mark.parametrize("verb", ["log", "why", "show", "wait", "retry", "cancel"])
def test_a_program_names_its_jobs(drf: Drf, knowing: CannedDaemon, verb: str) -> None:
    result = drf(verb)
    assert (result.code, result.out, knowing.requests) == (2, "", [])
    assert "ID" in result.err or "ids" in result.err


@pytest.mark.parametrize(("answer", "is_done"), [("y\n", True), ("n\n", False), ("\n", False)])
@pytest.mark.parametrize("verb", ["cancel", "hold"])
def test_a_change_of_the_latest_job_is_asked_about(
    drf: Drf, knowing: CannedDaemon, person: None, monkeypatch: pytest.MonkeyPatch, verb: str,
    answer: str, is_done: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    result = drf(verb)
    assert result.err.startswith(f"drf: job 43 (eval)\n{verb} job 43? ")
    done = [each["select"]["ids"] for each in knowing.requests if each["op"] == verb]
    assert done == ([[43]] if is_done else [])


def test_who_has_no_job_is_told(drf: Drf, knowing: CannedDaemon, person: None) -> None:
    knowing.replies["recent"] = {"recent": []}
    result = drf("log")
    assert (result.code, result.err) == (1, "drf: no job of yours is known\n")


def test_a_group_is_waited_for_and_its_outputs_are_shown(
    drf: Drf, knowing: CannedDaemon, job: MakeJob
) -> None:
    rows = [
        job(id=5),
        job(id=9, array_id=8, array_index=0),
        job(id=8, array_tasks="1-3", started_at=None),
    ]
    knowing.replies["status"] = {"jobs": rows, "counts": {}, "draining": False}
    knowing.replies["hello"] = {"user": "alice", "admin": False}
    knowing.replies["show"] = {"job": job(stdout=None), "events": []}
    drf("wait", "-g", "sweep")
    assert asked(knowing, "wait")["ids"] == [5, 8]
    assert asked(knowing, "status")["select"] == {"user": "alice", "group": "sweep"}
    drf("log", "-g", "sweep")
    assert asked(knowing, "show")["id"] == 5
    knowing.replies["status"] = {"jobs": [], "counts": {}, "draining": False}
    result = drf("wait", "-g", "sweep")
    told = "drf: no job of yours in the group sweep waits or runs\n"
    assert (result.code, result.err) == (0, told)
    assert json.loads(drf("wait", "-g", "sweep", "--json").out) == {"done": True, "jobs": []}


def test_a_command_without_a_job_is_for_the_latest_that_runs(
    drf: Drf, knowing: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = drf("exec", "--", "true")
    assert (result.code, knowing.requests) == (2, [])
    assert "name the job: drf exec ID -- CMD" in result.err
    which_job._tell_once.cache_clear()
    monkeypatch.setattr(which_job, "is_person_here", lambda: True)
    # The answer is about another job, so that nothing is sent.
    result = drf("exec", "--escape", "none", "--", "true")
    assert result.err.startswith("drf: job 42 (train)\n")
    assert asked(knowing, "show")["id"] == 42
    which_job._tell_once.cache_clear()
    knowing.replies["recent"] = {"recent": [each for each in JOBS if each["state"] != "RUNNING"]}
    result = drf("exec", "--", "true")
    assert (result.code, result.err) == (1, "drf: no job of yours runs\n")
