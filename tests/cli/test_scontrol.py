"""scontrol: what it shows of jobs and of the machine, and what it asks the daemon to change."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message, refusal
from cli.drf import Drf

HOST = os.uname().nodename.partition(".")[0]
AMOUNTS = {"memory": 8 << 30, "read": 0, "write": 0}
SHARES = {
    "capacity": {**AMOUNTS, "cores": 8.0, "gres": {"gpu": 2}},
    "free": {**AMOUNTS, "cores": 2.0, "memory": 3 << 30, "gres": {"gpu": 2}}, "nodes": [],
}  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: CannedDaemon) -> None:
    monkeypatch.chdir(tmp_path)
    done = {"done": [42], "failed": []}
    daemon.replies = {
        **dict.fromkeys(("set", "hold", "release", "suspend", "resume", "cancel"), done),
        "submit": {"id": 50}, "hello": {"user": "alice", "admin": False}, "shares": SHARES,
        "recent": {"pools": ["lab"], "users": [], "gres": [], "recent": []},
        "status": {"jobs": [], "counts": {}, "draining": False, "after": None},
        "drain": {}, "reload": {"warnings": ["a"]},
    }  # fmt: skip


def requested(daemon: CannedDaemon) -> list[Message]:
    return [
        {key: value for key, value in each.items() if key != "select"}
        | ({"ids": each["select"]["ids"]} if "select" in each else {})
        for each in daemon.requests
    ]


# -- show --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["node[08-11,3]"], ["node08", "node09", "node10", "node11", "node3"]),
        (["a,b[1-2]c,d"], ["a", "b1c", "b2c", "d"]),
        (["r[1-2]n[1-2]"], ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ([], ["here"]),
    ],
)
def test_hostnames_are_expanded(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch, words: list[str],
    names: list[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("SLURM_JOB_NODELIST", "here")
    for spelling in ("hostnames", "hostname"):
        result = drf("scontrol", "show", spelling, *words)
        assert (result.code, result.out.splitlines(), result.err) == (0, names, "")
    assert drf("scontrol", "show", "hostlist", *words).out == f"{','.join(names * bool(words))}\n"
    assert daemon.requests == [], "scripts ask for it without any daemon"


def test_this_machine_is_the_list_outside_a_job(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert drf("scontrol", "show", "hostnames").out == f"{HOST}\n"


def test_a_job_is_shown_in_slurms_words(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    Path("train.sh").touch()
    shown = job(
        cwd=os.getcwd(), argv=["train.sh", "a b"], stdout="/data/o", stderr="/data/e", retry=None,
        after=[{"id": 41, "label": "41", "want": "ok"}],
    )  # fmt: skip
    daemon.replies["show"] = {"job": shown, "events": []}
    out = drf("scontrol", "show", "job", "42").out
    lines = out.splitlines()
    assert lines[0] == "JobId=42 JobName=train"
    assert all(line.startswith("   ") for line in lines[1:-1]) and lines[-1] == ""
    found = dict(word.split("=", 1) for word in out.split() if "=" in word)
    assert found["Command"] == os.path.abspath("train.sh")
    assert {key: found[key] for key in ("JobState", "Dependency", "TimeLimit", "NumCPUs")} == {
        "JobState": "RUNNING", "Dependency": "afterok:41", "TimeLimit": "01:00:00", "NumCPUs": "8",
    }  # fmt: skip
    assert (found["WorkDir"], found["StdOut"], found["NodeList"]) == (os.getcwd(), "/data/o", HOST)
    for words in (("-o", "show", "job", "42"), ("show", "jobid=42", "-o")):
        one = drf("scontrol", *words).out
        assert one.count("\n") == 1 and one.split() == out.split()


def test_the_queue_is_shown_without_an_id(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    assert drf("scontrol", "show", "jobs").out == "No jobs in the system\n"
    daemon.replies["status"]["jobs"] = [job(), job(id=52, array_id=51, array_index=0)]
    out = drf("scontrol", "-o", "show", "job").out.splitlines()
    assert [line.split(" JobName")[0] for line in out] == [
        "JobId=42", "JobId=52 ArrayJobId=51 ArrayTaskId=0",
    ]  # fmt: skip


def test_the_machine_is_a_node_and_a_partition(drf: Drf, daemon: CannedDaemon) -> None:
    out = drf("scontrol", "show", "node", HOST).out
    assert out.splitlines()[0] == f"NodeName={HOST} CPUAlloc=6 CPUTot=8"
    assert "RealMemory=8192 AllocMem=5120 FreeMem=3072" in out and "State=MIXED" in out
    assert drf("scontrol", "show", "nodes", "-o").out.split() == out.split()
    result = drf("scontrol", "show", "node", "other")
    assert (result.code, result.err) == (1, f"drf: there is no node other; this is {HOST}\n")
    assert drf("scontrol", "show", "partition").out.startswith("PartitionName=main\n")
    shown = drf("scontrol", "-o", "show", "partition").out
    assert re.findall("PartitionName=([a-z]+) Default=([A-Z]+)", shown) == [
        ("main", "YES"), ("lab", "NO"),
    ]  # fmt: skip
    assert drf("scontrol", "show", "partition", "lab").out.startswith("PartitionName=lab\n")
    result = drf("scontrol", "show", "partition", "odd")
    assert result.err == "drf: there is no partition odd (there are main, lab)\n"


# -- changing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["hold", "42,43"], {"op": "hold", "ids": [42, 43]}),
        (["release", "42", "51_2"], {"op": "release", "ids": [42, "51_2"]}),
        (["suspend", "jobid=42"], {"op": "suspend", "ids": [42]}),
        (
            ["update", "JobId=42", "TimeLimit=1-00:00:00", "JobName=x", "Partition=lab"],
            {"op": "set", "ids": [42], "time_limit_s": 86400, "name": "x", "pool": "lab"},
        ),
        (
            ["update", "job=42", "NumCPUs=4", "MinMemoryNode=2000", "Gres=gpu:1", "nice=5"],
            {"op": "set", "ids": [42], "priority": -5, "demand": {
                "cores_milli": 4000, "memory_bytes": 2000 << 20, "gres": {"gpu": 1}}},
        ),
        (["update", "jobid=42", "dependency="], {"op": "set", "ids": [42], "after": []}),
        (
            ["update", "jobid=42", "Dependency=afterany:7"],
            {"op": "set", "ids": [42], "after": [{"id": 7, "want": "any"}]},
        ),
        (["update", "jobid=42", "priority=0"], {"op": "hold", "ids": [42]}),
        (
            ["update", f"NodeName={HOST}", "State=DRAIN", "Reason=new disks"],
            {"op": "drain", "on": True, "reason": "new disks"},
        ),
        (["update", f"nodename={HOST}", "state=resume"], {"op": "drain", "on": False}),
    ],
)  # fmt: skip
def test_it_asks_for_what_slurm_would_change(
    drf: Drf, daemon: CannedDaemon, words: list[str], asked: dict[str, Any]
) -> None:
    result = drf("scontrol", *words)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert requested(daemon) == [asked]


@pytest.mark.parametrize(("by", "limit_s"), [("+30", 5400), ("-0:30:00", 1800)])
def test_a_limit_may_change_by_some_time(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, by: str, limit_s: int
) -> None:
    daemon.replies["show"] = {"job": job(), "events": []}
    assert drf("scontrol", "update", "JobId=42", f"TimeLimit={by}").code == 0
    assert daemon.requests[-1]["time_limit_s"] == limit_s


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "drf scontrol: there is no command; scontrol --help lists them\n"),
        (["wait_job", "7"], "drf scontrol: there is no wait_job here (that is: drf wait ID)\n"),
        (["bogus"], "drf scontrol: there is no bogus here (scontrol --help lists what there is)\n"),
        (
            ["show", "lic"],
            "drf scontrol: there is no show lic here; there are: hostnames hostlist jobid job node "
            "partition\n",
        ),
        (["show", "config"], "drf scontrol: there is no show config here (that is: drf doctor)\n"),
        (["hold"], "drf scontrol: no job is named: scontrol hold ID\n"),
        (
            ["update", "TimeLimit=5"],
            "drf scontrol: what is to change is not named: JobId=42, or NodeName=HOST\n",
        ),
        (
            ["update", "JobId=7", "ArrayTaskThrottle=5"],
            "drf scontrol: arraytaskthrottle cannot be changed here; what can: TimeLimit JobName "
            "Partition Priority Nice NumCPUs MinMemoryNode Gres Dependency StartTime\n",
        ),
        (["update", "JobId=7"], "drf scontrol: say what to change, such as TimeLimit=2:00:00\n"),
        (
            ["update", "JobId=7", "TimeLimit=soon"],
            "drf: scontrol: --time=soon: is not a time of Slurm (write 90 (minutes) or "
            "1-12:00:00)\n",
        ),
        (
            ["update", f"NodeName={HOST}", "State=DOWN"],
            "drf scontrol: of a node, State=DRAIN with a Reason, and State=RESUME can be set "
            "here\n",
        ),
        (
            ["show", "hostnames", "node[1-x]"],
            "drf: node[1-x]: '1-x' is neither a number nor a range\n",
        ),
        (
            ["show", "hostnames", "node[1"],
            "drf: node[1 is no list of machines (write node[1-4],x)\n",
        ),
    ],
)  # fmt: skip
def test_what_it_does_not_know_is_said_in_a_line(
    drf: Drf, daemon: CannedDaemon, words: list[str], complaint: str
) -> None:
    result = drf("scontrol", *words)
    assert (result.code in (1, 2), result.out, result.err) == (True, "", complaint)
    assert daemon.requests == []


def test_it_tells_what_could_not_be_changed(drf: Drf, daemon: CannedDaemon) -> None:
    failed = [{"id": 9, "error": {"code": "no-such-job", "text": "there is no live job 9"}}]
    daemon.replies["hold"] = {"done": [], "failed": failed}
    result = drf("scontrol", "hold", "9")
    assert (result.code, result.err) == (1, "drf: scontrol: there is no live job 9\n")


# -- queueing again ----------------------------------------------------------------------------

SUBMISSION = {"argv": ["x.sh"], "env": {"PATH": "/bin", "DRF_SLURM": "1"}, "script": "#!/bin/sh\n"}


@pytest.mark.parametrize(
    ("state", "is_live", "ops"),
    [
        ("RUNNING", True, ["submit", "cancel"]), ("COMPLETED", False, ["submit"]),
        ("PENDING", True, []),
    ],
)  # fmt: skip
def test_a_job_is_queued_again(
    drf: Drf, daemon: CannedDaemon, state: str, is_live: bool, ops: list[str]
) -> None:
    told = {"label": "42", "state": state, "live": is_live, "proof": None}
    daemon.replies["submission"] = {**told, "submission": SUBMISSION}
    result = drf("scontrol", "requeue", "42")
    said = "drf: job 42 is queued again as job 50\n" if ops else ""
    assert (result.code, result.out, result.err) == (0, "", said)
    changed = [each for each in daemon.requests if each["op"] in ("submit", "cancel", "hold")]
    assert [each["op"] for each in changed] == ops, "queued before this very job is ended"
    if ops:
        assert changed[0]["env"]["SLURM_RESTART_COUNT"] == "1"
        assert changed[0]["script"] == SUBMISSION["script"]


def test_the_restarts_are_counted(drf: Drf, daemon: CannedDaemon) -> None:
    again = {**SUBMISSION, "env": {"SLURM_RESTART_COUNT": "3"}}
    told = {"label": "42", "state": "FAILED", "live": False, "proof": None}
    daemon.replies["submission"] = {**told, "submission": again}
    assert drf("scontrol", "requeuehold", "42").code == 0
    request = daemon.requests[-1]
    assert (request["env"]["SLURM_RESTART_COUNT"], request["held"]) == ("4", True)


def test_the_script_of_a_job_is_written(drf: Drf, daemon: CannedDaemon) -> None:
    told = {"label": "42", "state": "FAILED", "live": False, "proof": None}
    daemon.replies["submission"] = {**told, "submission": SUBMISSION}
    assert drf("scontrol", "write", "batch_script", "42", "-").out == "#!/bin/sh\n"
    assert drf("scontrol", "write", "batch_script", "42").code == 0
    assert Path("slurm-42.sh").read_text() == "#!/bin/sh\n"
    daemon.replies["submission"] = {**told, "submission": {"argv": ["x"]}}
    assert drf("scontrol", "write", "batch_script", "42").err == (
        "drf: job 42 has a command and no script\n"
    )


def test_the_configuration_is_read_again(drf: Drf, daemon: CannedDaemon) -> None:
    assert drf("scontrol", "reconfigure").err == "drf: warning: a\n"
    assert drf("scontrol", "ping").out == f"Slurmctld(primary) at {HOST} is UP\n"


def test_there_may_be_no_such_job(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies["show"] = refusal(code="no-such-job", text="there is no job 8")
    result = drf("scontrol", "show", "job", "8")
    assert (result.code, result.out) == (1, "") and "there is no job 8" in result.err
