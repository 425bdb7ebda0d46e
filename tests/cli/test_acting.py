"""The verbs that act: on which jobs, after which question, and what is told of it."""

import io
import json
import sys
import time
from typing import Any

import pytest

from canned import CannedDaemon, Message
from cli.drf import Result
from drfd.client import connection
from drfd.common.units import clock_time
from drfd_cli.commands import job_actions
from drfd_cli.output import show_when

AWAY = {"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 12s"}
STANDING = {
    "launcher_away_s": 12.3,
    "notices": [{"code": "DISK_SHORT", "text": "the disk is full"}, AWAY],
}


def failure(ref: int | str, code: str, text: str, hint: str = "") -> dict[str, Any]:
    return {"id": ref, "error": {"kind": "Refused", "code": code, "text": text, "hint": hint}}


class Keyboard(io.StringIO):
    """A terminal at which somebody types these lines."""

    def isatty(self) -> bool:
        return True


# -- which jobs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--user", "bob"], {"user": "bob"}),
        (["-n", "train"], {"name": "train"}),
        (["-s", "pending"], {"states": ["PENDING"]}),
        (["--state", "suspended"], {"states": ["SUSPENDED"]}),
        (["--all"], {"everything": True}),
        (["-a", "-y"], {"everything": True}),
        (["-g", "sweep"], {"group": "sweep"}),
        (["--group", "sweep"], {"group": "sweep"}),
        (["41"], {"ids": [41]}),
        (["3-5"], {"ids": [3, 4, 5]}),
        (["1,4-5", "4", "9"], {"ids": [1, 4, 5, 9]}),
        (
            ["42_[7-8,11-15:2%3],3-4,9_1"],
            {"ids": ["42_7", "42_8", "42_11", "42_13", "42_15", 3, 4, "9_1"]},
        ),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_selection_is_sent_as_it_was_said_and_choosing_nobody_is_told(drf, daemon, words, chosen):
    daemon.replies = {"cancel": {"done": [], "failed": []}}
    result = drf("cancel", *words)
    assert (result.code, result.out, result.err) == (0, "", "drf: no jobs\n")
    assert daemon.requests == [{"op": "cancel", "select": chosen}]
    assert drf("cancel", "--json", *words).err == ""


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        *((word, "") for word in ("7x", "0", "5-3", "1-", "-", "1,,2", "1-999999", "1.5")),
        *((word, "") for word in ("42_", "_7", "42_7_1", "42_x", "0x10", "42_-1")),
        ("42_[8-7]", "the range 8-7 ends before it begins (write '42_[7-20]', or 42 for"),
        ("42_[", "is not a job id"),
        ("42_[0-100000]", "at most 20000 (write '42_[7-20]', or 42 for the whole array)"),
        ("3,42_[0-99999]", "100000 tasks, and an array has at most 20000"),
        ("1-100001", "is more than 100000 jobs"),
    ],
)
def test_what_is_no_id_is_a_usage_error(drf, daemon, word, fault):
    for verb in ("cancel", "show", "wait"):
        result = drf(verb, "--", word)
        assert (result.code, result.err.count("\n"), daemon.requests) == (2, 1, [])
        assert verb != "cancel" or fault in result.err


@pytest.mark.parametrize(
    "words",
    [
        ["cancel", "-s", "pending", "3"], ["cancel", "-a", "3"], ["hold", "-u", "bob", "3-5"],
        ["signal", "-n", "train", "USR1", "3"], ["suspend", "-g", "sweep", "3"],
        ["set", "--in-group", "sweep", "-c", "2", "3"], ["status", "-s", "held", "3"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_ids_beside_what_chooses_jobs_are_a_usage_error(drf, daemon, words):
    """`drf cancel -s pending 3` must not cancel job 3 if it runs."""
    result = drf(*words)
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert "cannot narrow ids: name jobs by their ids, or choose them with --user" in result.err


@pytest.mark.parametrize(
    ("users", "question"),
    [
        (["ann", "ann"], None),
        (["ann", "bob", "bob"], "cancel 3 jobs, 2 of other users?"),
        (["bob"], "cancel 1 job, 1 of other users?"),
        (["ann"] * 6, "cancel 6 jobs?"),
    ],
)
@pytest.mark.parametrize("typed", ["n\n", "x\nyes\n"])
def test_much_is_asked_about_and_so_are_jobs_of_others(
    drf, daemon, job, monkeypatch, users, question, typed
):
    jobs = [job(id=number, user=user) for number, user in enumerate(users, 1)]
    daemon.replies = {
        "hello": {"user": "ann", "admin": True},
        "status": {"jobs": jobs, "counts": {}, "draining": False, "gres": [], "after": None},
        "cancel": {"done": [each["id"] for each in jobs], "failed": []},
    }
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    result = drf("cancel", "--name", "x*")
    is_done = any(request["op"] == "cancel" for request in daemon.requests)
    assert is_done == (question is None or "yes" in typed)
    assert question is None or question in result.err
    # What is no answer is told with the cure.
    no_answer = "drf: 'x' is neither y (yes) nor n (no)\n"
    assert (no_answer in result.err) == (question is not None and typed[0] == "x")
    assert "Error" not in result.err


# -- what is told ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "word"),
    [
        ("cancel", "cancelled"), ("hold", "held"), ("release", "released"),
        ("suspend", "suspended"), ("resume", "resuming"),
    ],
)  # fmt: skip
def test_acting_says_what_was_done_and_what_was_not(drf, daemon, verb, word):
    failed = [failure(9, "no-such-job", "there is no job 9", "look again")]
    daemon.replies = {verb: {"done": [1, 52], "labels": ["1", "42_[10-99]"], "failed": failed}}
    result = drf(verb, 1, "42", 9)
    assert result.out == f"{word} job 1\n{word} job 42_[10-99]\n"
    assert (result.code, result.err) == (1, "drf: there is no job 9 (look again)\n")
    assert daemon.requests == [{"op": verb, "select": {"ids": [1, 42, 9]}}]
    result = drf(verb, "--json", 1, "42", 9)
    assert json.loads(result.out) == daemon.replies[verb]


def test_who_suspends_is_told_when_the_jobs_are_ended(drf, daemon):
    daemon.replies = {"suspend": {"done": [1, 2], "failed": [], "ended_at": 1_700_000_000.0}}
    result = drf("suspend", 1, 2)
    assert result.out == "suspended job 1\nsuspended job 2\n"
    told = f"drf: without drf resume it is ended at {clock_time(1_700_000_000.0)}\n"
    assert (result.code, result.err) == (0, told)


def test_of_a_selection_those_in_another_state_are_counted(drf, daemon):
    unfit = [failure(number, "not-running", f"job {number}: not-running") for number in (8, 9)]
    held = failure(4, "held-by-admin", "job 4: held-by-admin")
    for done, failed, words, code, told in (
        ([1, 2, 3], unfit, ["-u", "bob"], 0, "drf: 3 suspended, 2 not running\n"),
        ([], unfit, ["--all"], 1, "drf: 0 suspended, 2 not running\n"),
        ([1], [*unfit, held], ["--all"], 1,
         "drf: 1 suspended, 2 not running\ndrf: job 4: held-by-admin\n"),
        # A job that was named by its id is meant.
        ([], unfit[:1], [8], 1, "drf: job 8: not-running\n"),
    ):  # fmt: skip
        daemon.replies = {"suspend": {"done": done, "failed": failed}}
        result = drf("suspend", *words)
        assert (result.code, result.err) == (code, told)


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ([], 0), (["Refused"], 1), (["NotPermitted"], 77), (["Refused", "NotPermitted"], 77),
        (["SomethingNew"], 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_acting_fails_with_the_gravest_of_its_failures(drf, daemon, kinds, code, flag):
    failed = [
        {"id": 1, "error": {"kind": kind, "code": "c", "text": f"no {kind}", "hint": ""}}
        for kind in kinds
    ]
    daemon.replies = {"cancel": {"done": [7], "failed": failed}}
    result = drf("cancel", "1", *flag)
    assert result.code == code
    assert result.err == "".join(f"drf: no {kind}\n" for kind in kinds)


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
def test_many_ids_that_are_over_or_not_there_are_told_in_one_line_each(drf, daemon, verb):
    """Each had a line of its own: three thousand for `3-3000`."""
    ended = [failure(each, "ended", f"job {each} has already ended") for each in range(4, 2001)]
    ended += [failure(f"9_{each}", "ended", f"job 9_{each} has already ended") for each in (1, 2)]
    gone = [failure(each, "no-such-job", f"there is no job {each}") for each in range(2001, 3001)]
    few = [failure(each, "held", f"job {each} is held") for each in range(5000, 5005)]
    other = [failure(each, "not-yours", f"job {each} is not yours") for each in range(6001, 6008)]
    daemon.replies = {verb: {"done": [3], "failed": [*ended, *gone, *few, *other]}}
    result = drf(verb, "-y", "3-6007")
    assert result.code == 1
    assert result.err.splitlines() == [
        "drf: 1999 jobs had ended already: 4-2000,9_[1-2]",
        "drf: 1000 jobs are not there: 2001-3000",
        *(f"drf: job {each} is held" for each in range(5000, 5005)),
        "drf: 7 jobs refused (not-yours; the first: job 6001 is not yours): 6001-6007",
    ]


def test_tasks_that_were_named_one_by_one_are_told_as_ranges(drf, daemon):
    labels = ["42_0", "7", "42_2", "42_1", "42_9", "8_3", "42_[10-99]", "50"]
    daemon.replies["cancel"] = {"done": [1] * 8, "labels": labels, "failed": []}
    result = drf("cancel", "-y", "42", "7", "8", "50")
    told = ["42_[0-2,9]\n", "7\n", "8_3\n", "42_[10-99]\n", "50\n"]
    assert result.out.split("cancelled job ")[1:] == told


def test_what_must_wait_for_the_launcher_is_said(drf, daemon):
    """`cancelled job 1` was all, and the job ran on."""
    reply = {"done": [1], "failed": [], **STANDING}
    daemon.replies = {"cancel": reply}
    result = drf("cancel", "1")
    assert (result.code, result.out) == (0, "cancelled job 1\n")
    assert (
        result.err
        == f"drf: {AWAY['text']}; the request is stored, and carried out when it is back\n"
    )
    assert json.loads(drf("cancel", "--json", "1").out) == reply


# -- set ---------------------------------------------------------------------------------------


@pytest.fixture
def live(daemon, job) -> list[Message]:
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


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (
            "-c 2 -m 1G -t unlimited -p lab --priority 7 --rename new --begin now 42",
            {"demand": {"cores_milli": 2000, "memory_bytes": 1 << 30}, "time_limit_s": 0,
             "pool": "lab", "priority": 7, "name": "new", "begin_s": 0},
        ),
        ("--group sweep%4 42", {"group": "sweep%4"}),
        ("--group sweep 42", {"group": "sweep"}),
        # Alone it means the waiting jobs of the group itself.
        ("--group sweep%4", {"group": "sweep%4", "select": {
            "group": "sweep", "states": ["PENDING", "HELD"]}}),
        ("-g sweep -c 2", {"demand": {"cores_milli": 2000}, "select": {
            "group": "sweep"}}),
    ],
)  # fmt: skip
def test_set_asks_for_what_was_named_and_nothing_else(drf, daemon, live, words, changes):
    result = drf("set", *words.split())
    assert (result.code, result.out) == (0, "changed job 42\n")
    [asked] = daemon.asked("set")
    assert asked == {"op": "set", "select": {"ids": [42]}, **changes}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["3"], "say what to change"),
        (["--group", ""], ""),
        (["--group", "a b%4", "3"], "a group's name has 1 to 64 letters"),
        (["-g", "sweep%2"], "-g selects the jobs of a group; write --group sweep%2 for the limit"),
        (["-g", "sweep"], "--group NAME%N puts jobs into one"),
        (["-n", "new", "4"], "...; -n selects jobs, --rename changes a name\n"),
        (["-n", "new", "-c", "2", "3"],
         "-n selects jobs and cannot narrow ids; --rename changes a name\n"),
        (["--array", "%3", 42], "--group NAME%N lets fewer tasks"),
        (["-J", "fit", "4"], "; here it is: --rename NAME"),
        (["--job-name", "fit", "4"], "; here it is: --rename NAME"),
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_meant_is_a_usage_error(drf, daemon, words, complaint):
    result = drf("set", *words)
    assert (result.code, result.err.count("\n"), daemon.requests) == (2, 1, [])
    assert complaint in result.err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"time_limit_s": 7200}, "drf: job 42 RUNNING for 30m00s, ends {} at the latest\n"),
        (
            {"time_limit_s": 60},
            "drf: job 42 RUNNING for 30m00s, ends 22:14 (29m00s ago) at the latest\n",
        ),
        ({"time_limit_s": None}, "drf: job 42 RUNNING for 30m00s, without a time limit\n"),
        # The time for which it was suspended does not count.
        (
            {"time_limit_s": 7200, "started_at": 1_699_999_940.0, "suspended_seconds": 60.0},
            "drf: job 42 RUNNING for 30m00s, ends {} at the latest\n",
        ),
        ({"state": "PENDING", "started_at": None}, ""),
    ],
)
def test_set_says_when_a_running_job_ends_by_its_new_limit(
    drf, daemon, job, monkeypatch, changes, told
):
    began_s = 1_700_000_000
    monkeypatch.setattr(time, "time", lambda: began_s + 1800.0)
    found = job(**({"started_at": float(began_s)} | changes))
    shown = {"job": found, "events": []}
    daemon.replies = {"set": {"done": [42], "failed": []}, "show": shown}
    daemon.replies["status"] = {"jobs": [], "after": None}
    result = drf("set", "-t", "2h", "42")
    assert (result.code, result.out) == (0, "changed job 42\n")
    assert result.err == told.format(show_when(began_s + 7200))
    daemon.requests.clear()
    drf("set", "-t", "2h", "--json", "42")
    drf("set", "-c", "2", "42")
    assert [each["op"] for each in daemon.requests] == ["status", "set", "set"]


@pytest.mark.parametrize("answer", ["y\n", "n\n"])
def test_a_person_is_asked_before_that(drf, daemon, live, monkeypatch, answer):
    live.append({**live[0], "id": 43})
    monkeypatch.setattr(sys, "stdin", Keyboard(answer))
    assert (
        "jobs 42, 43 have run for up to 1h00m: a limit of 10s would stop them within a minute;"
        " set it?"
    ) in drf("set", "-t", "10s", "42,43").err
    assert limits(daemon) == ([10] if answer == "y\n" else [])
    told = drf("set", "-y", "-t", "10s", "42").err
    assert told.startswith("drf: jobs 42, 43 have run") and "?" not in told


@pytest.mark.parametrize(("change", "limit"), [("+10m", 7800), ("-10m", 6600), ("+1-0", 93600)])
def test_a_limit_is_changed_by_so_much(drf, daemon, live, change, limit):
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
def test_a_change_of_what_is_not_there_is_refused(drf, daemon, live, change, more, complaint):
    live += [{**live[0], **each} for each in more]
    result = drf("set", "-t", change, "-g", "sweep")
    assert (result.code in (1, 2), limits(daemon), result.err.count("\n")) == (True, [], 1)
    assert complaint in result.err


# -- the daemon --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "asked", "line"),
    [
        (["drain"], {"on": True}, "draining: no job starts until drf undrain\n"),
        (
            ["drain", "--reason", "disk swap"],
            {"on": True, "reason": "disk swap"},
            "draining: no job starts until drf undrain\n",
        ),
        (["undrain"], {"on": False}, "jobs start again\n"),
    ],
)
def test_draining(drf, daemon, words, asked, line):
    daemon.replies = {"drain": {"draining": asked["on"]}}
    result = drf(*words)
    assert (result.code, result.out, result.err) == (0, line, "")
    assert daemon.requests == [{"op": "drain", **asked}]


@pytest.mark.parametrize(
    ("words", "reply", "line"),
    [
        ([], {"was_undrained": True}, "nothing was drained\n"),
        (["--node", "n1"], {"was_undrained": True}, "n1 was not drained\n"),
        (["--node", "n1"], {}, "jobs start again on n1\n"),
        (
            ["--node", "n1"],
            {"draining": True},
            "n1 is not drained by itself; no job starts until drf undrain\n",
        ),
    ],
)
def test_undrain_says_what_was_drained(drf, daemon, words, reply, line):
    daemon.replies = {"drain": {"draining": False, **reply}}
    result = drf("undrain", *words)
    assert (result.code, result.out, result.err) == (0, line, "")


def test_no_daemon_is_started_only_to_be_ended(drf, monkeypatch, tmp_path):
    monkeypatch.setattr(connection, "SYSTEM_SOCKET", str(tmp_path / "system" / "drfd.sock"))
    monkeypatch.delenv("DRFD_SOCKET")
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    result = drf("shutdown")
    assert result.code == 69
    assert f"no drfd answers at {tmp_path}/drfd.sock" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_away_before", [True, False])
def test_nobody_waits_for_a_launcher_that_is_stopped(drf, daemon, monkeypatch, is_away_before):
    """It waited for ever, and said nothing."""
    monkeypatch.setattr(job_actions, "LOOK_S", 0.01)
    reply = {"running": [3], "done": [3], "failed": []}
    daemon.replies = {
        "shutdown": reply | (STANDING if is_away_before else {}),
        "status": {"jobs": [], "counts": {}, **STANDING},
    }
    result = drf("shutdown", "--kill-jobs")
    assert (result.code, result.out) == (69, "stopping 1 running job\n")
    assert result.err == (
        f"drf: {AWAY['text']} (the request is kept: the jobs are stopped when "
        "the launcher is back, and then drfd ends)\n"
    )


def test_each_mistake_of_a_configuration_has_a_line(drf, daemon, refuse):
    """They were one line, with a ? between them."""
    daemon.replies = {"reload": refuse("ConfigError", text="drfd.toml: a: one\ndrfd.toml: b: two")}
    assert drf("reload") == Result(78, "", "drf: drfd.toml: a: one\ndrf: drfd.toml: b: two\n")
