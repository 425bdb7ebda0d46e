"""drf retry and drf edit: what was submitted once, changed only where its user has changed it."""

import json
import os
import shlex
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, Message
from cli.drf import Drf, Result
from drfd.client import connection
from drfd.payload.pack import of_request
from drfd.payload.signature import digest_of, proof_of, user_key
from drfd.protocol.job_options import OPTIONS

FIELDS: Message = {
    "argv": ["./train", "--steps", "3"], "cwd": "/home/alice", "umask": 0o27,
    "demand": {"cores_milli": 500, "memory_bytes": 1 << 30, "read_bps": 1, "write_bps": 2,
               "gres": {"gpu": 1}, "gres_memory": {"gpu": 20 << 30}},
    "name": "train", "pool": "lab", "time_limit_s": 60, "priority": 3,
    "env": {"A": "1", "HF_TOKEN": "then"}, "stdout": "drf-%j.out", "stderr": "drf-%j.err",
    "script": "#!/bin/sh\n", "preemptible": True, "retry": {"times": 2, "on": ["FAILED"]},
    "notify": {"on": ["end"], "argv": ["mail"]}, "warn": {"signal": 10, "before_s": 5},
}  # fmt: skip
AGAIN_42 = "submitted job 50, a retry of 42\n"


def demand(**changes: Any) -> Message:
    return {**FIELDS["demand"], **changes}


def kept(label: str, state: str = "FAILED", *, live: bool = False, **more: Any) -> Message:
    """The daemon's reply about a job."""
    submission = {**FIELDS, **more}
    if "_" in label:
        submission["array"] = label.partition("_")[2]
    return {"label": label, "state": state, "live": live, "submission": submission, "proof": None}


@pytest.fixture
def answering(daemon) -> CannedDaemon:
    daemon.replies = {
        "submission": lambda request: kept(str(request["id"])),
        "submit": lambda request: {"id": 50, **({"tasks": 2} if "array" in request else {})},
    }
    return daemon


def keep(daemon: CannedDaemon, **replies: Message) -> None:
    """Have the daemon answer so about jobs of these labels, which begin with j."""
    jobs = {label[1:]: reply for label, reply in replies.items()}
    daemon.replies["submission"] = lambda request: jobs[str(request["id"])]


def submitted(daemon: CannedDaemon) -> list[Message]:
    found = [dict(each) for each in daemon.requests if each["op"] == "submit"]
    for each in found:
        del each["op"]
    return found


# -- retry -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (None, {}),
        (
            "-m 4G -t unlimited --priority 0 --gres license=2 --retry 5 -n x --export HF_TOKEN",
            {"demand": demand(memory_bytes=4 << 30, gres={"gpu": 1, "license": 2}), "name": "x",
             "time_limit_s": 0, "priority": 0, "retry": {"times": 5, "on": ["FAILED"]},
             "env": {"A": "1", "HF_TOKEN": "now"}},
        ),
        ("--gres gpu=2", {"demand": demand(gres={"gpu": 2})}),
        ("--gres gpu=1,memory=30G", {"demand": demand(gres_memory={"gpu": 30 << 30})}),
        ("-c 1..4", {"demand": demand(cores_milli=1000, cores_max_milli=4000)}),
        # A file that is named for the output takes the errors too.
        ("-o new", {"stdout": "new", "stderr": "new"}),
        ("-o new -e err", {"stdout": "new", "stderr": "err"}),
    ],
)  # fmt: skip
def test_everything_comes_again_but_what_is_asked_to_change(
    drf, answering, monkeypatch, words, changes
):
    monkeypatch.setenv("HF_TOKEN", "now")
    result = drf("retry", 42, *([] if words is None else ["--with", words]))
    assert (result.code, result.out, result.err) == (0, AGAIN_42, "")
    assert submitted(answering) == [{**FIELDS, **changes}]
    assert drf("retry", 42, "-q").out == "50\n"


def test_a_retry_can_be_waited_for(drf, answering, ended):
    """Of several, the exit code is that of the first that did not complete, as of `drf wait`."""
    over = [ended("COMPLETED", 0, id=50), ended("FAILED", 3, id=51)]
    answering.replies["wait"] = {"done": True, "ended": over}
    result = drf("retry", "-w", 42)
    assert (result.code, result.out) == (3, AGAIN_42)
    assert result.err == "drf: job 51 FAILED: exit code 3\n"
    assert [each["ids"] for each in answering.asked("wait")] == [[50]]


def test_tasks_of_one_array_become_one_array(drf, answering):
    result = drf("retry", "4_5", 7, "4_2", "--json")
    assert json.loads(result.out) == {
        "jobs": [{"of": "4_[5,2]", "id": 50, "tasks": 2}, {"of": "7", "id": 50}],
        "failed": [],
    }
    assert submitted(answering) == [{**FIELDS, "array": "5,2"}, FIELDS]


@pytest.mark.parametrize("label", ["42", "4_2"])
def test_what_has_not_ended_is_refused(drf, answering, label):
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


def test_jobs_wait_for_each_other_as_they_did(drf, answering):
    """Whatever the order in which they are named."""
    waits = [awaited("13", "CANCELLED", met=False, want="any"), awaited("9")]
    keep(
        answering,
        j12=kept("12"),
        j13=kept("13", "CANCELLED") | {"waited_for": [awaited("12", "FAILED", met=False)]},
        j14=kept("14", "LAUNCH_FAILED") | {"waited_for": waits},
    )
    ids = count(50)
    answering.replies["submit"] = lambda request: {"id": next(ids)}
    assert drf("retry", 14, 12, 13).out.splitlines() == [
        f"submitted job {number + 38}, a retry of {number}" for number in (12, 13, 14)
    ]
    assert [each.get("after") for each in submitted(answering)] == [
        None,
        [{"id": 50, "want": "ok"}],
        [{"id": 51, "want": "any"}, {"id": 9, "want": "ok"}],
    ]


def test_what_cannot_start_is_refused_with_the_cure(drf, answering):
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


def test_a_job_that_was_retried_is_waited_for_in_its_new_form(drf, answering):
    def waits(state: str, *, live: bool, met: bool | None) -> Message:
        repeat = {"label": "20", "state": state, "live": live}
        one = awaited("12", "FAILED", met=met, repeat=repeat)
        return kept("13", "CANCELLED") | {"waited_for": [one]}

    answering.replies["submission"] = [
        waits("RUNNING", live=True, met=None),
        waits("COMPLETED", live=False, met=True),
        waits("TIMEOUT", live=False, met=False),
    ]
    assert drf("retry", 13).err == ("drf: job 13 waited for job 12; now for job 20, its retry\n")
    assert drf("retry", 13).err == ""
    assert "drf retry 20 13 submits both" in drf("retry", 13).err
    after = [each.get("after") for each in submitted(answering)]
    assert after == [[{"id": 20, "want": "ok"}], None]


def test_what_was_retried_or_cancelled_by_hand_or_completed_has_not_failed(drf, answering):
    retried = kept("5") | {"repeats": [{"label": "9", "state": "PENDING", "live": True}]}
    waited = {"waited_for": [awaited("6", "CANCELLED", met=False)]}
    keep(
        answering,
        j4=kept("4", "COMPLETED"),
        j5=retried,
        j6=kept("6", "CANCELLED") | {"cancelled_by_hand": True},
        j7=kept("7", "CANCELLED") | {"cancelled_by_hand": False, **waited},
        j8=kept("8", "CANCELLED") | {"cancelled_by_hand": False},
        **{f"j{number}": {**retried, "label": str(number)} for number in range(10, 20)},
    )
    result = drf("retry", "--failed", "4-8")
    assert (result.code, result.out) == (0, "submitted job 50, a retry of 8\n")
    assert result.err.splitlines() == [
        "drf: job 4 has completed",
        "drf: job 7 waited for job 6, and is left out with it",
        "drf: job 5 has been retried: job 9 (PENDING)",
        "drf: job 6 was cancelled by hand; drf retry 6 takes it all the same",
    ]
    assert drf("retry", "--failed", "10-19").err == (
        "drf: 10 jobs have been retried already; the last: job 19 has been retried: "
        "job 9 (PENDING)\n"
    )
    assert drf("retry", 5, 6).code == 0


def test_of_an_array_tasks_that_were_retried_are_left_out(drf, answering):
    repeats = [{"label": "20", "state": "over", "live": False, "array": "1,3-4"}]
    found = kept("4", "over", array="0-9") | {"repeats": repeats, "cancelled_by_hand": True}
    found["again"] = {"of": 4, "indices": [10, 0, 9, 1]}
    answering.replies["submission"] = found
    indices = {"FAILED": "1,3-6", "CANCELLED": "8"}
    answering.replies["show"] = {"array": {"indices": indices}, "events": []}
    result = drf("retry", "--failed", 4)
    assert result.out == "submitted array 50 of 2 tasks, a retry of 4_[5-6]\n"
    assert result.err == (
        "drf: 4_[8] was cancelled by hand; drf retry '4_[8]' takes it all the same\n"
    )
    assert submitted(answering) == [{**FIELDS, "array": "5-6", "again": found["again"]}]
    repeats[0]["array"] = "0-9"
    assert drf("retry", "--failed", 4).err.splitlines()[-1] == (
        "drf: each task of array 4 that has failed has been retried: array 20 (over)"
    )
    # With other indices the work is divided anew.
    found["repeats"] = []
    assert drf("retry", "--failed", 4, "--with", "--array 0-3").code == 0
    assert submitted(answering)[-1]["again"] == {"of": 4}


def test_a_terminal_does_not_come_again(drf, answering):
    answering.replies["submission"] = kept("42", attach="/run/user/1/x")
    result = drf("retry", 42)
    assert submitted(answering) == [FIELDS]
    assert result.err == (
        "drf: job 42 was attached to a terminal; now its output goes to drf-%j.out\n"
    )


def test_one_that_is_refused_does_not_keep_the_others(drf, answering, refuse):
    gone = refuse(code="not-kept", text="it is not kept any more")
    answering.replies["submission"] = [gone, kept("8")]
    result = drf("retry", 7, 8)
    assert (result.code, result.out) == (1, "submitted job 50, a retry of 8\n")
    assert result.err == "drf: it is not kept any more\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("-x", "No such option"),
        ("-w", "--wait is no property of a job"),
        ("-m 4G ./script", "only options of drf submit can stand here"),
        ("-m 4X", "not a size"),
        ("-n 'a", "No closing quotation"),
        ("--export DRF_NO_SUCH", "there is no such variable"),
        ("--", "there is no command behind --"),
        ("--wrap ''", "--wrap"),
        ("--wrap a -- b", "--wrap"),
    ],
)
def test_a_wrong_change_submits_nothing(drf, answering, words, complaint):
    result = drf("retry", 42, "--with", words)
    assert (result.code in (1, 2), result.out, submitted(answering)) == (True, "", [])
    assert result.err.count("\n") == 1 and complaint in result.err


def test_the_command_can_be_another_one_or_a_line_of_the_shell(drf, answering):
    assert drf("retry", 42, "--with", "-m 2G -- ./other 'a b'").code == 0
    [again] = submitted(answering)
    assert (again["argv"], again["demand"]["memory_bytes"]) == (["./other", "a b"], 2 << 30)
    # The text of the script was that of the former command.
    assert "script" not in again
    assert drf("retry", 42, "--with", "-m 2G --wrap 'a && b'").err == ""
    assert submitted(answering)[-1]["argv"] == ["sh", "-c", "a && b"]


@pytest.mark.parametrize(
    ("files", "changes", "complaint"),
    [
        (["/keys"], {}, ""),
        (["/keys"], {"env": {**FIELDS["env"], "LD_PRELOAD": "/evil"}}, "not what you have signed"),
        (["/nobody", "/keys"], {"argv": ["evil"]}, "cannot be verified"),
        ([None, "/keys"], {"argv": ["evil"]}, "cannot be verified"),
    ],
)
def test_only_what_its_user_has_signed_is_signed_again(
    drf, answering, monkeypatch, files, changes, complaint
):
    """The daemon cannot have its users sign what they never submitted, wherever it says that keys
    are to be had."""
    key = user_key(b"s" * 32, 1000, "alice")
    monkeypatch.setattr(
        "drfd.client.connection.peer_of", lambda connected: (max(1, os.getuid() + 1), 0)
    )
    monkeypatch.setattr(
        "drfd.client.connection.read_key", lambda path: key if path == "/keys" else None
    )
    monkeypatch.setattr("drfd.client.connection._KEY_PATIENCE_S", -1.0)
    monkeypatch.setattr("drfd.client.connection._LEAST_KEY_PATIENCE_S", -1.0)
    answering.replies["hello"] = [{"key_file": each} for each in files]
    signed = proof_of(key, digest_of(of_request(FIELDS)))
    answering.replies["submission"] = {
        **kept("42"), "submission": {**FIELDS, **changes}, "proof": signed,
    }  # fmt: skip
    result = drf("retry", 42, "--with", "-m 4G")
    if complaint:
        assert (result.code, submitted(answering)) == (1, [])
        assert complaint in result.err
    else:
        assert [each["proof"] for each in submitted(answering)] == [signed]


def test_a_group_is_tried_again_in_the_order_of_its_submission(drf, answering, job):
    jobs = [
        job(id=9, state="FAILED"), job(id=8, state="COMPLETED"),
        job(id=7, array_id=5, array_index=2, state="FAILED"), job(id=6, state="CANCELLED"),
        *(job(id=11 + at, array_id=10, array_index=at, state="CANCELLED") for at in range(10)),
    ]  # fmt: skip
    answering.replies["history"] = {"jobs": jobs, "after": None}
    answering.replies["hello"] = {"user": "alice", "admin": False}
    answering.replies["show"] = {"array": {"indices": {"CANCELLED": "0-9"}}}
    assert drf("retry", "--failed", "-g", "sweep").code == 0
    [asked] = answering.asked("history")
    assert asked["past"] == {"user": "alice", "group": "sweep"}
    assert [each["id"] for each in answering.asked("submission")] == [6, "5_2", 9, 10]
    # Tasks of an array are asked for one by one only if others of it are not meant.
    answering.requests.clear()
    for left, asked_for in ((10, [10, 10]), (9, [10, *(f"10_{at}" for at in range(9))])):
        answering.replies["history"] = {"jobs": jobs[4 : 4 + left], "after": None}
        answering.replies["submission"] = lambda request: kept(str(request["id"]), array="0-9%2")
        assert drf("retry", "-g", "sweep").code == 0
        assert [each["id"] for each in answering.asked("submission")] == asked_for
        answering.requests.clear()
    answering.replies["history"] = {"jobs": [], "after": None}
    result = drf("retry", "-g", "sweep")
    assert (result.code, result.err) == (1, "drf: no job of yours in the group sweep has ended\n")


def test_the_present_limit_of_a_group_holds(drf, answering, job):
    answering.replies["submission"] = kept("42", group="sweep%1")
    answering.replies["hello"] = {"user": "alice", "admin": False}
    live: list[Message] = []
    answering.replies["status"] = {"jobs": live, "after": None}
    for more, group in (
        ({}, "sweep%1"),
        ({"group": "sweep", "group_at_once": None}, "sweep%1"),
        ({"group_at_once": 4}, "sweep"),
    ):
        live += [job(id=9, **more)] if more else []
        assert drf("retry", 42).code == 0
        assert submitted(answering)[-1]["group"] == group
    assert drf("retry", 42, "--with", "-g sweep%3").code == 0
    assert submitted(answering)[-1]["group"] == "sweep%3"


def test_of_a_name_the_latest_job_is_retried(drf, answering):
    """After one retry two jobs have it."""
    jobs = [{"id": each, "name": "fit", "state": "FAILED", "live": False} for each in (43, 42)]
    answering.replies["recent"] = {"recent": jobs, "pools": [], "users": [], "gres": []}
    result = drf("retry", "fit")
    assert result.out == "submitted job 50, a retry of 43\n"
    assert result.err == "drf: job 43 (the latest of 2 named fit)\n"


# -- edit --------------------------------------------------------------------------------------

EDITED: Message = {
    "argv": ["sh", "-c", 'echo "a b"'], "cwd": "/home/alice", "umask": 0o27,
    "demand": {"cores_milli": 500, "memory_bytes": 1 << 30, "read_bps": 1 << 20,
               "write_bps": 2 << 20, "gres": {"gpu": 1}, "gres_memory": {"gpu": 20 << 30}},
    "name": "my job", "pool": "lab", "time_limit_s": 0, "priority": -3, "env": {"A": "1"},
    "stdout": "drf-%j.out", "stderr": "drf-%j.out", "retry": {"times": 2, "on": ["TIMEOUT"]},
    "notify": {"on": ["end"], "argv": ["mail"]}, "group": "sweep%2",
}  # fmt: skip
CONDITIONS: Message = {"after": [{"id": 3, "want": "any"}], "begin_s": 0, "held": False}


class Editor:
    """Has `drf edit 42` edit the job with a sed script."""

    def __init__(self, drf: Drf, daemon: CannedDaemon, place: Path) -> None:
        self._drf, self._daemon, self._script = drf, daemon, place / "change.sed"
        self._seen = place / "seen"
        self.job: Message = {
            "label": "42", "state": "PENDING", "live": True, "submission": EDITED, "proof": None,
            "conditions": CONDITIONS, "awaited": False,
        }  # fmt: skip
        done = {"done": [42], "failed": []}
        daemon.replies = {
            "submission": lambda request: self.job,
            "submit": {"id": 50},
            **dict.fromkeys(("hold", "release", "cancel"), done),
        }

    def __call__(self, change: str = "") -> Result:
        self._daemon.requests.clear()
        self._script.write_text(f"{change}\nw {self._seen}")
        return self._drf("edit", 42)

    @property
    def text(self) -> str:
        """What the file had after the change, or empty text if there was none."""
        return self._seen.read_text() if self._seen.exists() else ""

    @property
    def told(self) -> list[Message]:
        return [each for each in self._daemon.requests if each["op"] not in ("submission", "hello")]

    @property
    def ops(self) -> list[str]:
        return [each["op"] for each in self.told]


@pytest.fixture
def edit(drf, daemon, tmp_path, monkeypatch) -> Editor:
    monkeypatch.setenv("VISUAL", f"sed -i -f '{tmp_path / 'change.sed'}'")
    return Editor(drf, daemon, tmp_path)


#: Every option of `drf submit` with a value, but those that a job to edit cannot have.
EVERY = (
    "-c 2..4 -m 2G --io data=1M/2M --gres gpu=1,memory=1G --node n1 --constraint ssd,big -t 1h "
    "-n other --comment 'see 3, 4' -p own --priority 4 "
    "--after 5,6:fail --if-never cancel --begin 2199-01-01T08:00:00 "
    "-g own%3 --retry 4 --retry-on fail,timeout --warn first:USR1@1m --hold --preemptible "
    "--notify start --notify-command 'echo a' -o o.out -e e.out --append --output-max 1G"
)


def test_every_option_can_be_edited(edit):
    """What is written of a job is read back as the same, and each line is an option that counts."""
    spellings = {spelling: each for each in OPTIONS for spelling in each.names}
    given = {spellings[word].key for word in shlex.split(EVERY) if word in spellings}
    assert {each.key for each in OPTIONS} - given == {"export", "array"}
    edit(f"1i #DRF {EVERY}\n/^#DRF/d")
    (submit,) = (each for each in edit.told if each["op"] == "submit")
    edit.job["submission"] = {
        name: value for name, value in submit.items() if name not in ("op", *CONDITIONS)
    }
    edit.job["conditions"] = {name: submit[name] for name in CONDITIONS}
    assert edit().err == "drf: nothing was changed; job 42 stays as it is\n"
    lines = [line for line in edit.text.splitlines() if line.startswith("#DRF ")]
    assert shlex.split(" ".join(line.removeprefix("#DRF ") for line in lines)) == (
        shlex.split(EVERY)
    )


RANGED = {"cores_milli": 2000, "cores_max_milli": 8000}


@pytest.mark.parametrize(
    ("before", "change", "fields"),
    [
        ({}, "s/-m 1G/--mem 1024M # enough/", None),
        (
            {}, "s/-m 1G/-m 4G/; s/my job/yours/; /gpu=1/d; s/unlimited/2h/",
            {"demand": {"memory_bytes": 4 << 30, "gres": None, "gres_memory": None},
             "name": "yours", "time_limit_s": 7200},
        ),
        ({}, "s/-o .*/-o x.out/; /retry/d; /-p lab/d",
         {"stdout": "x.out", "stderr": "x.out", "retry": None, "pool": None}),
        ({}, "s/memory=20G/memory=30G/", {"demand": {"gres_memory": {"gpu": 30 << 30}}}),
        ({}, "s/,memory=20G//", {"demand": {"gres_memory": None}}),
        ({}, "/-c 0.5/d", {"demand": {"cores_milli": None}}),
        ({}, "/DRF -[cm]/d; /--io/d; /--gres/d", {"demand": dict.fromkeys(EDITED["demand"])}),
        ({}, "s/-c 0.5/-c 2..8/", {"demand": {"cores_milli": 2000, "cores_max_milli": 8000}}),
        ({}, "s/-c 0.5/-c 2../", {"demand": {"cores_milli": 2000, "cores_max_milli": "all"}}),
        (RANGED, "s/-c 2[.][.]8/&/", None),
        (RANGED, "s/2[.][.]8/2/", {"demand": {"cores_milli": 2000}}),
        ({}, "s/sweep%2/sweep%4/", {"group": "sweep%4"}),
        ({}, "/-g sweep/d", {"group": None}),
        ({}, "s/3:any/4,5/", {"after": [{"id": 4, "want": "ok"}, {"id": 5, "want": "ok"}]}),
        ({}, "/--after/d", {"after": None}),
    ],
)  # fmt: skip
def test_only_what_was_changed_is_different_in_the_new_job(edit, before, change, fields):
    """A field that is None here is gone."""
    edit.job["submission"] = {**EDITED, "demand": {**EDITED["demand"], **before}}
    result = edit(change)
    if fields is None:
        assert (result.code, result.out) == (0, "")
        assert edit.told == [], "a change that means the same is none"
        return
    assert (result.code, result.out) == (0, "submitted job 50 in place of job 42\n")
    if "demand" in fields:
        demand = {**EDITED["demand"], **fields["demand"]}
        fields = fields | {
            "demand": {key: each for key, each in demand.items() if each is not None}
        }
    expected = {"op": "submit", **EDITED, **CONDITIONS, **fields}
    assert edit.told[1] == {name: each for name, each in expected.items() if each is not None}


def test_the_old_job_is_held_until_the_new_one_is_there_and_then_cancelled(edit):
    """So both never run."""
    result = edit("s/a b/c d/")
    assert result.out == "submitted job 50 in place of job 42\n"
    hold, submit, cancel = edit.told
    select = {"ids": [42]}
    assert (hold, cancel) == ({"op": "hold", "select": select}, {"op": "cancel", "select": select})
    changes = {"argv": ["sh", "-c", 'echo "c d"']}
    assert submit == {"op": "submit", **EDITED, **CONDITIONS, **changes}


@pytest.mark.parametrize("script", [{}, {"script": "#!/bin/sh\n"}])
def test_an_ended_job_is_submitted_again_with_the_changes(edit, script):
    fields = {name: each for name, each in EDITED.items() if name != "group"} | script
    edit.job = {
        "label": "42", "state": "FAILED", "live": False, "submission": fields, "proof": None,
        "again": {"of": 42},
    }  # fmt: skip
    result = edit()
    assert edit.text.startswith("# Job 42 has ended.")
    assert (edit.told, "drf retry does that" in result.err) == ([], True)
    result = edit("s/a b/c d/; s/-m 1G/-m 4G/; /retry/d")
    assert result.out == "submitted job 50, a retry of 42 with these changes\n"
    expected = {**fields, "argv": ["sh", "-c", 'echo "c d"'], "again": {"of": 42},
                "demand": {**EDITED["demand"], "memory_bytes": 4 << 30}}  # fmt: skip
    del expected["retry"]
    assert edit.told == [{"op": "submit", **expected}]


def test_lines_within_quotes_are_the_commands_own(edit):
    """Comments, empty lines and lines of options in a text of several lines were left out of the
    new command, or taken for options of the job."""
    text = "echo one\n\n# a comment\n#DRF -m 9G\necho three"
    edit.job["submission"] = {**EDITED, "argv": ["sh", "-c", text]}
    assert edit("s/-m 1G/-m 1024M/").err.startswith("drf: nothing was changed")
    edit("s/three/four/; s/#DRF -m 1G/#DRF -m 2G/")
    (submit,) = [each for each in edit.told if each["op"] == "submit"]
    assert submit["argv"] == ["sh", "-c", text.replace("three", "four")]
    assert submit["demand"]["memory_bytes"] == 2 << 30


def test_if_the_new_one_is_refused_the_old_one_is_as_before(edit, daemon, refuse):
    daemon.replies["submit"] = refuse(text="too big")
    assert edit("s/a b/c d/") == Result(1, "", "drf: too big\n")
    assert edit.ops == ["hold", "submit", "release"]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("hold", "nothing was submitted, and job 42 may be held (drf release 42 lets it start)"),
        (
            "submit",
            "job 42 is held, and the changed one may be queued (if drf status shows that, "
            "drf cancel 42; else drf release 42 lets it start)",
        ),
        ("release", "too big; job 42 is held (drf release 42 lets it start)"),
        ("cancel", "job 42 is held, unless it is cancelled (drf cancel 42)"),
    ],
)
def test_it_says_what_a_lost_connection_leaves_behind(
    edit, daemon, refuse, monkeypatch, broken, said
):
    monkeypatch.setattr(connection, "RECONNECT_S", 0.0)
    if broken == "release":
        daemon.replies["submit"] = refuse(text="too big")
    daemon.replies[broken] = None
    lost = f"drf: the daemon closed the connection: {said}\n"
    done = "submitted job 50 in place of job 42\n" * (broken == "cancel")
    assert edit("s/a b/c d/") == Result(69, done, lost)


def test_a_held_job_is_held_as_the_new_one_too(edit):
    edit.job |= {"state": "HELD", "conditions": {**CONDITIONS, "held": True}}
    edit("s/a b/c d/")
    assert (edit.ops, edit.told[0]["held"]) == (["submit", "cancel"], True)


def test_one_that_has_started_meanwhile_is_left_alone(edit, daemon):
    error = {"kind": "Refused", "code": "x", "text": "job 42 is RUNNING", "hint": ""}
    daemon.replies["hold"] = {"done": [], "failed": [{"id": 42, "error": error}]}
    assert edit("s/a b/c d/") == Result(1, "", "drf: job 42 is RUNNING\n")
    assert edit.ops == ["hold"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("s/-m 1G/-m 1X/", "line 5: Invalid value for '-m' / '--mem': '1X' is not a size"),
        ("s/-c 0.5/--wait/", "line 4: --wait is no property of a job"),
        ("s/-p lab/-p lab x/", "line 10: only options of drf submit can stand here"),
        ("""s/a b"'/a b/""", "line 19: No closing quotation in the command"),
        ("/^sh/d", "there is no command"),
    ],
)
def test_what_cannot_be_read_changes_nothing(edit, change, complaint):
    result = edit(change)
    assert (result.code, result.out, edit.told) == (1, "", [])
    assert result.err.count("\n") == 1 and complaint in result.err


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"state": "RUNNING"}, "job 42 is RUNNING; only a job that waits or has ended can be"),
        ({"submission": {**EDITED, "array": "0-3"}}, "42 is of an array"),
        ({"submission": {**EDITED, "attach": "/x"}}, "job 42 is attached to a terminal"),
        ({"awaited": True}, "other jobs wait for job 42"),
        ({"state": "HELD", "held_by": "root"}, "root holds job 42"),
    ],
)
def test_what_cannot_be_edited_is_refused_before_the_editor(edit, more, complaint):
    edit.job |= more
    result = edit()
    assert (result.code, edit.told, edit.text) == (1, [], "")
    assert complaint in result.err


def test_what_is_not_signed_changes_nothing_that_is(edit):
    """The conditions of the start, which no signature covers, replaced the command."""
    edit.job["conditions"] = {**CONDITIONS, "argv": ["evil"], "env": {"LD_PRELOAD": "/evil"}}
    edit("s/my job/yours/; s/a b/c d/")
    [request] = [each for each in edit.told if each["op"] == "submit"]
    assert (request["argv"], request["env"]) == (["sh", "-c", 'echo "c d"'], {"A": "1"})
    edit.job["label"] = "42\nevil #"
    assert "is not drfd" in edit("s/my job/yours/").err


def test_an_editor_that_fails_changes_nothing(drf, edit, monkeypatch):
    monkeypatch.delenv("VISUAL")
    monkeypatch.setenv("EDITOR", "false")
    result = drf("edit", 42)
    assert (result.code, edit.told) == (1, [])
    assert "the editor false failed; job 42 stays as it is" in result.err


def test_what_has_no_line_in_the_file_stays_as_it_is(edit):
    """A text of several lines, and a begin that has passed."""
    notify = {"on": ["end"], "argv": ["mail", "a\nb"]}
    edit.job["conditions"] = {**CONDITIONS, "begin_s": 1_700_000_000}
    edit.job["submission"] = {**EDITED, "notify": notify}
    assert edit("s/1G/2G/").code == 0
    head = edit.text.partition("#DRF")[0]
    assert all(line.startswith("# ") for line in head.splitlines())
    submit = edit.told[1]
    assert (submit["notify"], submit["begin_s"]) == (notify, 1_700_000_000)
