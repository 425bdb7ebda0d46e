"""drf retry: what was submitted once is submitted again, changed only where it is asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message, Refuse
from cli.drf import Drf
from drfd.payload.pack import of_request
from drfd.payload.signature import digest_of, proof_of, user_key
from drfd_cli.commands.retry import read_changes

FIELDS: Message = {
    "argv": ["./train", "--steps", "3"], "cwd": "/home/alice", "umask": 0o27,
    "demand": {"cores_milli": 500, "memory_bytes": 1 << 30, "read_bps": 1, "write_bps": 2,
               "gres": {"gpu": 1}, "gres_memory": {"gpu": 20 << 30}},
    "name": "train", "pool": "lab", "time_limit_s": 60, "priority": 3,
    "env": {"A": "1", "HF_TOKEN": "then"}, "stdout": "drf-%j.out", "stderr": "drf-%j.err",
    "script": "#!/bin/sh\n", "preemptible": True, "retry": {"times": 2, "on": ["FAILED"]},
    "notify": {"on": ["end"], "argv": ["mail"]}, "warn": {"signal": 10, "before_s": 5},
}  # fmt: skip


def kept(label: str, state: str = "FAILED", *, live: bool = False, **more: Any) -> Message:
    """The daemon's reply about a job."""
    submission = {**FIELDS, **more}
    if "_" in label:
        submission["array"] = label.partition("_")[2]
    return {"label": label, "state": state, "live": live, "submission": submission, "proof": None}


@pytest.fixture
def answering(daemon: CannedDaemon) -> CannedDaemon:
    daemon.replies = {
        "submission": lambda request: kept(str(request["id"])),
        "submit": lambda request: {"id": 50, **({"tasks": 2} if "array" in request else {})},
    }
    return daemon


def submitted(daemon: CannedDaemon) -> list[Message]:
    found = [dict(each) for each in daemon.requests if each["op"] == "submit"]
    for each in found:
        del each["op"]
    return found


def test_everything_comes_again(drf: Drf, answering: CannedDaemon) -> None:
    result = drf("retry", 42)
    assert (result.code, result.err) == (0, "")
    assert result.out == "submitted job 50, which is 42 again\n"
    assert submitted(answering) == [FIELDS]


def test_only_what_is_asked_for_changes(
    drf: Drf, answering: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "now")
    changes = "-m 4G -t unlimited --priority 0 --gres license=2 --retry 5 -n x --export HF_TOKEN"
    assert drf("retry", 42, "-q", "--with", changes).out == "50\n"
    demand = {**FIELDS["demand"], "memory_bytes": 4 << 30, "gres": {"gpu": 1, "license": 2}}
    assert submitted(answering) == [
        {**FIELDS, "demand": demand, "time_limit_s": 0, "priority": 0, "name": "x",
         "retry": {"times": 5, "on": []}, "env": {"A": "1", "HF_TOKEN": "now"}}
    ]  # fmt: skip


def test_the_memory_on_a_gpu_is_one_change(drf: Drf, answering: CannedDaemon) -> None:
    for words, gpus, memory in (("gpu=2", 2, 20 << 30), ("gpu=1,memory=30G", 1, 30 << 30)):
        assert drf("retry", 42, "-q", "--with", f"--gres {words}").code == 0
        gres = {"gres": {"gpu": gpus}, "gres_memory": {"gpu": memory}}
        assert submitted(answering)[-1] == {**FIELDS, "demand": {**FIELDS["demand"], **gres}}


def test_another_figure_takes_the_upper_end_of_a_range_away(
    drf: Drf, answering: CannedDaemon
) -> None:
    ranged = {**FIELDS["demand"], "cores_max_milli": 8000}
    answering.replies["submission"] = kept("42", **{**FIELDS, "demand": ranged})
    for words, ends in (("-m 4G", (None, 8000)), ("-c 1", (1000, None)), ("-c 1..4", (1000, 4000))):
        assert drf("retry", 42, "-q", "--with", words).code == 0
        asked = submitted(answering)[-1]["demand"]
        least = FIELDS["demand"]["cores_milli"] if ends[0] is None else ends[0]
        assert (asked["cores_milli"], asked.get("cores_max_milli")) == (least, ends[1])


def test_tasks_of_one_array_become_one_array(drf: Drf, answering: CannedDaemon) -> None:
    result = drf("retry", "4_5", 7, "4_2", "--json")
    assert json.loads(result.out) == {
        "jobs": [{"of": "4_[5,2]", "id": 50, "tasks": 2}, {"of": "7", "id": 50}],
        "failed": [],
    }
    assert submitted(answering) == [{**FIELDS, "array": "5,2"}, FIELDS]


def test_of_an_array_what_failed_is_taken(drf: Drf, answering: CannedDaemon) -> None:
    """Also while others of its tasks run; its bound on running ones holds again."""
    answering.replies["submission"] = kept("4", "not over", live=True, array="0-9%2")
    indices = {"FAILED": "1,3-5", "TIMEOUT": "7", "HELD": "8", "COMPLETED": "9"}
    answering.replies["show"] = {"array": {"indices": indices}, "events": []}
    assert drf("retry", "--failed", 4).out == (
        "submitted array 50 of 2 tasks, which is 4_[1,3-5,7] again\n"
    )
    assert submitted(answering) == [{**FIELDS, "array": "1,3-5,7%2"}]


def test_of_jobs_those_that_completed_are_left_out(drf: Drf, answering: CannedDaemon) -> None:
    answering.replies["submission"] = [kept("4", "COMPLETED"), kept("5")]
    result = drf("retry", "--failed", "4-5")
    assert (result.out, result.err) == (
        "submitted job 50, which is 5 again\n", "drf: job 4 has completed\n",
    )  # fmt: skip


@pytest.mark.parametrize("label", ["42", "4_2"])
def test_what_has_not_ended_is_refused(drf: Drf, answering: CannedDaemon, label: str) -> None:
    answering.replies["submission"] = kept(label, "RUNNING", live=True)
    result = drf("retry", label)
    assert (result.code, result.out, submitted(answering)) == (1, "", [])
    assert result.err == (
        f"drf: job {label} is RUNNING: only what has ended can be retried"
        f" (drf cancel {label} ends it)\n"
    )


def awaited(label: str, state: str = "", *, want: str = "ok", **more: Any) -> Message:
    """What a job waited for; it has ended otherwise than wanted unless told."""
    return {"label": label, "want": want, "state": state, "live": not state, "met": None} | more


def test_jobs_wait_for_each_other_as_they_did(drf: Drf, answering: CannedDaemon) -> None:
    """Whatever the order in which they are named."""
    chain = {
        "12": kept("12"),
        "13": kept("13", "CANCELLED") | {"waited_for": [awaited("12", "FAILED", met=False)]},
        "14": kept("14", "LAUNCH_FAILED")
        | {"waited_for": [awaited("13", "CANCELLED", met=False, want="any"), awaited("9")]},
    }
    answering.replies["submission"] = lambda request: chain[str(request["id"])]
    ids = iter(range(50, 60))
    answering.replies["submit"] = lambda request: {"id": next(ids)}
    assert drf("retry", 14, 12, 13).out.splitlines() == [
        "submitted job 50, which is 12 again",
        "submitted job 51, which is 13 again",
        "submitted job 52, which is 14 again",
    ]
    assert [each.get("after") for each in submitted(answering)] == [
        None,
        [{"id": 50, "want": "ok"}],
        [{"id": 51, "want": "any"}, {"id": 9, "want": "ok"}],
    ]


def test_tasks_are_waited_for_where_they_are_submitted_again(
    drf: Drf, answering: CannedDaemon
) -> None:
    waits = [awaited("4_2", "FAILED", met=False), awaited("4_3", "COMPLETED", met=True)]
    replies = {"4_2": kept("4_2"), "4_5": kept("4_5")}
    replies["20"] = kept("20", "CANCELLED") | {"waited_for": [*waits, awaited("4", "over")]}
    answering.replies["submission"] = lambda request: replies[str(request["id"])]
    assert drf("retry", "4_2", "4_5", 20).code == 0
    assert [each.get("after") for each in submitted(answering)] == [
        None,
        [{"id": "50_2", "want": "ok"}, {"id": 50, "want": "ok"}],
    ]


def test_what_cannot_start_is_refused_with_the_cure(drf: Drf, answering: CannedDaemon) -> None:
    failed = {"waited_for": [awaited("12", "FAILED", met=False)]}
    answering.replies["submission"] = kept("13", "CANCELLED") | failed
    result = drf("retry", 13)
    assert (result.code, result.out, submitted(answering)) == (1, "", [])
    assert result.err == (
        "drf: job 13 waited for job 12 (ok), which has ended FAILED (drf retry 12 13 submits both "
        "again; --with \"--after ''\" submits 13 alone)\n"
    )
    for alone in ("--after ''", "--after 40"):
        assert drf("retry", 13, "--with", alone).err == ""


def test_a_job_that_was_retried_is_waited_for_in_its_new_form(
    drf: Drf, answering: CannedDaemon
) -> None:
    def waits(state: str, *, live: bool, met: bool | None) -> Message:
        repeat = {"label": "20", "state": state, "live": live}
        one = awaited("12", "FAILED", met=met, repeat=repeat)
        return kept("13", "CANCELLED") | {"waited_for": [one]}

    answering.replies["submission"] = [
        waits("RUNNING", live=True, met=None),
        waits("COMPLETED", live=False, met=True),
        waits("TIMEOUT", live=False, met=False),
    ]
    assert drf("retry", 13).err == (
        "drf: job 13 waited for job 12; now for job 20, which is that again\n"
    )
    assert drf("retry", 13).err == ""
    assert "drf retry 20 13 submits both" in drf("retry", 13).err
    assert [each.get("after") for each in submitted(answering)] == [
        [{"id": 20, "want": "ok"}],
        None,
    ]


def test_what_was_retried_or_cancelled_by_hand_has_not_failed(
    drf: Drf, answering: CannedDaemon
) -> None:
    replies = {
        "5": kept("5") | {"repeats": [{"label": "9", "state": "PENDING", "live": True}]},
        "6": kept("6", "CANCELLED") | {"cancelled_by_hand": True},
        "7": kept("7", "CANCELLED")
        | {"cancelled_by_hand": False, "waited_for": [awaited("6", "CANCELLED", met=False)]},
        "8": kept("8", "CANCELLED") | {"cancelled_by_hand": False},
    }
    answering.replies["submission"] = lambda request: replies[str(request["id"])]
    result = drf("retry", "--failed", "5-8")
    assert (result.code, result.out) == (0, "submitted job 50, which is 8 again\n")
    assert result.err.splitlines() == [
        "drf: job 7 waited for job 6, and is left out with it",
        "drf: job 5 has been retried: job 9 (PENDING)",
        "drf: job 6 was cancelled by hand; drf retry 6 takes it all the same",
    ]
    for label in map(str, range(10, 20)):
        replies[label] = {**replies["5"], "label": label}
    assert drf("retry", "--failed", "10-19").err == (
        "drf: 10 jobs have been retried already; the last: job 19 has been retried: "
        "job 9 (PENDING)\n"
    )
    assert drf("retry", 5, 6).code == 0


def test_of_an_array_tasks_that_were_retried_are_left_out(
    drf: Drf, answering: CannedDaemon
) -> None:
    repeats = [{"label": "20", "state": "over", "live": False, "array": "1,3-4"}]
    found = kept("4", "over", array="0-9") | {"repeats": repeats, "cancelled_by_hand": True}
    found["again"] = {"of": 4, "indices": [10, 0, 9, 1]}
    answering.replies["submission"] = found
    indices = {"FAILED": "1,3-6", "CANCELLED": "8"}
    answering.replies["show"] = {"array": {"indices": indices}, "events": []}
    result = drf("retry", "--failed", 4)
    assert result.out == "submitted array 50 of 2 tasks, which is 4_[5-6] again\n"
    assert result.err == (
        "drf: 4_[8] was cancelled by hand; drf retry '4_[8]' takes it all the same\n"
    )
    assert submitted(answering) == [{**FIELDS, "array": "5-6", "again": found["again"]}]
    repeats[0]["array"] = "0-9"
    assert drf("retry", "--failed", 4).err.splitlines()[-1] == (
        "drf: each task of array 4 that has failed has been retried: array 20 (over)"
    )
    # With other indices the work is divided anew.
    drf("retry", "--failed", 4, "--with", "--array 0-3")
    found["repeats"] = []
    assert drf("retry", "--failed", 4, "--with", "--array 0-3").code == 0
    assert submitted(answering)[-1]["again"] == {"of": 4}


def test_a_terminal_does_not_come_again(drf: Drf, answering: CannedDaemon) -> None:
    answering.replies["submission"] = kept("42", attach="/run/user/1/x")
    result = drf("retry", 42)
    assert submitted(answering) == [FIELDS]
    assert result.err == (
        "drf: job 42 was attached to a terminal; now its output goes to drf-%j.out\n"
    )


def test_one_that_is_refused_does_not_keep_the_others(
    drf: Drf, answering: CannedDaemon, refuse: Refuse
) -> None:
    answering.replies["submission"] = [
        refuse(code="not-kept", text="it is not kept any more"),
        kept("8"),
    ]
    result = drf("retry", 7, 8)
    assert (result.code, result.out) == (1, "submitted job 50, which is 8 again\n")
    assert result.err == "drf: it is not kept any more\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("-x", "No such option"),
        ("-w", "--wait is no property of a job"),
        ("-m 4G ./script", "only options of drf submit can stand here"),
        ("-m 4X", "not a size"),
        ("-n 'a", "No closing quotation"),
        ("--retry-on fail", "--retry N how often"),
        ("--export DRF_NO_SUCH", "there is no such variable"),
    ],
)
def test_a_wrong_change_submits_nothing(
    drf: Drf, answering: CannedDaemon, words: str, complaint: str
) -> None:
    result = drf("retry", 42, "--with", words)
    assert result.code in (1, 2)
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert complaint in result.err
    assert submitted(answering) == []


@pytest.mark.parametrize("is_same", [True, False])
def test_only_what_its_user_has_signed_is_signed_again(
    drf: Drf, answering: CannedDaemon, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    """The daemon cannot have its users sign what they never submitted."""
    key = user_key(b"s" * 32, 1000, "alice")
    monkeypatch.setattr("drfd.client.connection.peer_of", lambda connected: (os.getuid() + 1, 0, 0))
    monkeypatch.setattr("drfd.client.connection.fetch_key", lambda path, **_: key)
    answering.replies["hello"] = {"key_socket": "/nowhere"}
    reply = {**kept("42"), "proof": proof_of(key, digest_of(of_request(FIELDS)))}
    if not is_same:
        reply["submission"] = {**FIELDS, "env": {**FIELDS["env"], "LD_PRELOAD": "/evil"}}
    answering.replies["submission"] = reply
    result = drf("retry", 42, "--with", "-m 4G")
    if is_same:
        [request] = submitted(answering)
        assert request.pop("proof") == reply["proof"]
    else:
        assert (result.code, submitted(answering)) == (1, [])
        assert "is not what you have signed" in result.err


def test_why_has_the_whole_line_for_a_job_of_ones_own(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path
) -> None:
    advice = {
        "options": ["-c", "0.5", "-m", "96M", "-t", "1h"], "jobs": 3, "short_jobs": 1,
        "cores": 1000.0, "memory": 96 << 20, "time_limit_s": 3600,
    }  # fmt: skip
    job = ended("OUT_OF_MEMORY", text="needed more", uid=os.getuid(), time_limit_s=3600)
    daemon.replies = {"why": {"job": job, "notes": [], "advice": advice}}
    assert drf("why", 42).out.splitlines()[-1] == "again: drf retry 42 --with '-c 0.5 -m 96M'"
    assert json.loads(drf("why", 42, "--json").out)["retry"] == (
        "drf retry 42 --with '-c 0.5 -m 96M'"
    )
    # A range that differs in its upper end alone is another one.
    ranged = {**advice, "options": ["-c", "8..16"], "cores": 8.0, "cores_max": 16.0}
    for most, again in ((None, "--with '-c 8..16'"), (16.0, "42")):
        asked = job["demand"] | ({} if most is None else {"cores_max": most})
        daemon.replies["why"] |= {"job": job | {"demand": asked}, "advice": ranged}
        assert drf("why", 42).out.splitlines()[-1].endswith(f" {again}")
    limited = ended("LIMIT_EXCEEDED", uid=os.getuid(), output_max_bytes=1 << 30)
    daemon.replies = {"why": {"job": limited, "notes": [], "advice": None}}
    assert drf("why", 42).out.endswith("again: drf retry 42 --with '--output-max 2G'\n")
    output = tmp_path / "drf-42.out"
    with output.open("wb") as file:
        file.truncate(19 << 30 >> 3)
    limited |= {"stdout": str(output), "stderr": str(output), "output_max_bytes": 1 << 20}
    assert drf("why", 42).out.endswith("again: drf retry 42 --with '--output-max 4G'\n")
    for other in (ended("COMPLETED", uid=os.getuid()), ended("FAILED", uid=os.getuid() + 1)):
        daemon.replies = {"why": {"job": other, "notes": [], "advice": None}}
        assert "drf retry" not in drf("why", 42).out


@pytest.mark.parametrize(
    ("free", "blocks", "is_told"), [(9, 300, True), (11, 300, False), (9, 90, False)]
)
def test_why_says_that_the_output_of_a_failed_job_has_filled_the_disk(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, free: int, blocks: int, is_told: bool,
) -> None:  # fmt: skip
    """What it wrote of its error did not fit, either."""
    path = str(tmp_path / "drf-42.out")
    file = SimpleNamespace(st_blocks=blocks * (1 << 20) // 512)
    disk = SimpleNamespace(f_bavail=free, f_frsize=1 << 20, f_blocks=1000)
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda at, **how: file if at == path else stat(at, **how))
    monkeypatch.setattr(os, "statvfs", {path: disk}.__getitem__)
    job = ended("FAILED", uid=os.getuid(), stdout=path, stderr=path)
    daemon.replies = {"why": {"job": job, "notes": [], "advice": None}}
    note = f"the disk of its output is full now (9M of 1000M free), and {path} takes 300M of it"
    assert (note in drf("why", 42).out) == is_told
    assert ("disk" in drf("why", 42).out) == is_told


def test_a_file_named_for_the_output_takes_the_errors_too() -> None:
    assert read_changes(["-o", "new"]).fields == {"stdout": "new", "stderr": "new"}
    assert read_changes(["-o", "new", "-e", "err"]).fields == {"stdout": "new", "stderr": "err"}


def test_the_command_can_be_another_one(drf: Drf, answering: CannedDaemon) -> None:
    assert drf("retry", 42, "--with", "-m 2G -- ./other 'a b'").code == 0
    [again] = submitted(answering)
    assert (again["argv"], again["demand"]["memory_bytes"]) == (["./other", "a b"], 2 << 30)
    # The text of the script was that of the former command.
    assert "script" not in again
    result = drf("retry", 42, "--with", "--")
    assert (result.code, "there is no command behind --" in result.err) == (2, True)


def test_a_group_is_tried_again_in_the_order_of_its_submission(
    drf: Drf, answering: CannedDaemon, job: MakeJob
) -> None:
    jobs = [
        job(id=9, state="FAILED"),
        job(id=8, state="COMPLETED"),
        job(id=7, array_id=5, array_index=2, state="FAILED"),
        job(id=6, state="CANCELLED"),
    ]
    answering.replies["history"] = {"jobs": jobs, "after": None}
    answering.replies["hello"] = {"user": "alice", "admin": False}
    # Tasks that were cancelled together are one row of the list.
    cancelled = job(id=10, array_id=10, state="CANCELLED", array_tasks="0-9", tasks=10)
    answering.replies["status"] = {"jobs": [cancelled], "after": None}
    answering.replies["show"] = {"array": {"indices": {"CANCELLED": "0-9"}}}
    assert drf("retry", "--failed", "-g", "sweep").code == 0
    [asked] = answering.asked("history")
    assert asked["past"] == {"user": "alice", "group": "sweep"}
    assert [each["id"] for each in answering.asked("submission")] == [6, "5_2", 9, 10]
    answering.replies["history"] = {"jobs": [], "after": None}
    result = drf("retry", "-g", "sweep")
    assert (result.code, result.err) == (1, "drf: no job of yours in the group sweep has ended\n")


def test_the_present_limit_of_a_group_holds(
    drf: Drf, answering: CannedDaemon, job: MakeJob
) -> None:
    answering.replies["submission"] = kept("42", group="sweep%1")
    answering.replies["hello"] = {"user": "alice", "admin": False}
    live: list[Message] = []
    answering.replies["status"] = {"jobs": live, "after": None}
    groups = []
    for more in ({}, {"group": "sweep", "group_at_once": None}, {"group_at_once": 4}):
        live += [job(id=9, **more)] if more else []
        assert drf("retry", 42).code == 0
        groups.append(submitted(answering)[-1]["group"])
    assert drf("retry", 42, "--with", "-g sweep%3").code == 0
    assert [*groups, submitted(answering)[-1]["group"]] == [
        *("sweep%1", "sweep%1", "sweep"), "sweep%3",
    ]  # fmt: skip


def test_the_new_command_can_be_a_line_of_the_shell(drf: Drf, answering: CannedDaemon) -> None:
    assert drf("retry", 42, "--with", "-m 2G --wrap 'a && b'").err == ""
    assert submitted(answering)[-1]["argv"] == ["sh", "-c", "a && b"]
    assert drf("retry", 42, "--with", "-- echo a && echo b").err == (
        "drf: && is an argument of echo, since no shell reads the command; "
        "--with \"--wrap 'CMD && CMD'\" runs it by one\n"
    )
    for words in ("--wrap ''", "--wrap a -- b"):
        assert drf("retry", 42, "--with", words).code == 2


def test_of_a_name_the_latest_job_is_retried(drf: Drf, answering: CannedDaemon) -> None:
    """After one retry two jobs have it."""
    jobs = [{"id": each, "name": "fit", "state": "FAILED", "live": False} for each in (43, 42)]
    answering.replies["recent"] = {"recent": jobs, "pools": [], "users": [], "gres": []}
    result = drf("retry", "fit")
    assert result.out == "submitted job 50, which is 43 again\n"
    assert result.err == "drf: job 43 (the latest of 2 named fit)\n"
