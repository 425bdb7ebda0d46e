"""Slurm's commands: what they ask the daemon for, and the lines that they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from base64 import b64decode
from pathlib import Path

import pytest

from canned import CannedDaemon, MakeJob, Refuse, refusal
from cli.drf import LIGHT_DRF, Drf, Finish, Spawn
from drfd.common.errors import Refused
from drfd.core.explain.reasons import (
    ArrayLimit,
    Draining,
    Evidence,
    HeldBy,
    ReasonCode,
    WaitReason,
)
from drfd.wording.waits import wait_text
from drfd_cli.commands import slurm_names
from drfd_cli.slurm import fields, sbatch_options
from drfd_cli.slurm.sbatch_options import SLURM_NAMES

SCRIPTS = Path(__file__).parent.parent / "data" / "slurm"
HOST = os.uname().nodename.partition(".")[0]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: CannedDaemon) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRF_JOB_ID", raising=False)
    daemon.replies = {
        "submit": {"id": 42}, "hello": {"user": "alice", "admin": False},
        "recent": {"pools": ["lab", "lab.night"], "users": ["bob"], "gres": [], "recent": []},
        "shares": {"nodes": [{"path": "root.alice"}, {"path": "root.lab.carol"}]},
    }  # fmt: skip


# -- sbatch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([], "Submitted batch job 42\n"), (["--parsable"], "42\n"), (["-Q"], ""),
    ],
)  # fmt: skip
def test_sbatch_tells_the_number(
    drf: Drf, daemon: CannedDaemon, words: list[str], printed: str
) -> None:
    result = drf("sbatch", *words, SCRIPTS / "02-threads.sh", "a b")
    assert (result.code, result.out, result.err) == (0, printed, "")
    request = daemon.requests.pop()
    assert request["argv"][1:] == ["a b"] and request["name"] == "threads"
    assert request["demand"] == {"cores_milli": 2000, "memory_bytes": 100 << 20}
    assert request["stdout"] == "threads.out" and request["env"]["DRF_SLURM"] == "1"


def test_the_options_of_sbatch_win_over_all_lines(drf: Drf, daemon: CannedDaemon) -> None:
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH -c 2 --mem-per-cpu=1G -t 5\n#DRF -t 3h -m 1G\n")
    assert drf("sbatch", "-c4", "x.sh").code == 0
    request = daemon.requests.pop()
    assert request["demand"] == {"cores_milli": 4000, "memory_bytes": 1 << 30}
    assert request["time_limit_s"] == 10800
    assert (request["name"], request["stdout"]) == ("x.sh", "slurm-%j.out")
    assert drf("sbatch", "-t", "7", "-a", "1-3", "x.sh").code == 0
    request = daemon.requests.pop()
    assert (request["time_limit_s"], request["stdout"]) == (420, "slurm-%A_%a.out")


def test_sbatch_wraps_a_line(drf: Drf, daemon: CannedDaemon) -> None:
    assert drf("sbatch", "-n", "2", "--wrap", "seq 3 | wc").out == "Submitted batch job 42\n"
    request = daemon.requests.pop()
    assert (request["argv"], request["name"]) == (["sh", "-c", "seq 3 | wc"], "wrap")
    assert request["demand"] == {"cores_milli": 2000}


def test_sbatch_tells_when_a_job_would_start(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies["submit"] = {"expected_start_at": None, "reason": None}
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH -c 2\n")
    for words in (["x.sh"], ["--wrap", "true"]):
        result = drf("sbatch", "--test-only", *words)
        assert (result.code, result.out, result.err) == (0, "it would start now\n", "")
    assert all(each["dry_run"] for each in daemon.asked("submit", times=2))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-N", "2", "x.sh"], "drf: sbatch: --nodes=2: asks for several machines"),
        (["--bogus", "x.sh"], "drf: sbatch: --bogus: is no option of sbatch"),
        (["none.sh"], "drf: cannot read the script none.sh: No such file or directory"),
    ],
)
def test_sbatch_queues_nothing_that_it_does_not_understand(
    drf: Drf, daemon: CannedDaemon, words: list[str], complaint: str
) -> None:
    Path("x.sh").write_text("#!/bin/sh\n")
    result = drf("sbatch", *words)
    assert (result.code, result.out, daemon.requests) == (1, "", [])
    assert result.err.startswith(complaint) and result.err.count("\n") == 1


# -- squeue ------------------------------------------------------------------------------------


@pytest.fixture
def queue(daemon: CannedDaemon, job: MakeJob) -> CannedDaemon:
    waits = {"code": "FAIR_SHARE", "text": "x"}
    jobs = [
        job(),
        job(id=50, user="bob", state="PENDING", started_at=None, reason=waits, pool="root.lab"),
        job(id=51, array_id=51, array_tasks="2-9%1", state="PENDING", started_at=None,
            reason={"code": "DEPENDENCY", "text": "x"}, time_limit_s=None),
        job(id=52, array_id=51, array_index=1, name="a\nb"),
    ]  # fmt: skip
    daemon.replies["status"] = {"jobs": jobs, "counts": {}, "draining": False, "after": None}
    return daemon


def test_squeue_lists_jobs_in_slurms_columns(
    drf: Drf, queue: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields.time, "time", lambda: 1_700_000_010.0 + 3723)
    lines = drf("squeue").out.splitlines()
    assert lines == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        f"                42      main    train    alice  R    1:02:03      1 {HOST}",
        "                50       lab    train      bob PD       0:00      1 (Priority)",
        "        51_[2-9%1]      main    train    alice PD       0:00      1 (Dependency)",
        f"              51_1      main      a?b    alice  R    1:02:03      1 {HOST}",
    ]
    assert drf("squeue", "-h", "-u", "bob").out.splitlines() == lines[2:3]
    assert drf("squeue", "--me", "--noheader", "-p", "main").out.splitlines() == [
        lines[1], *lines[3:]
    ]  # fmt: skip


def test_squeue_prints_chosen_fields(drf: Drf, queue: CannedDaemon) -> None:
    assert drf("squeue", "-h", "-o", "%i|%T|%C|%m|%l|%-5j|%.3u").out.splitlines()[:3] == [
        "42|RUNNING|8|16384M|1:00:00|%-5j|ali",
        "50|PENDING|8|16384M|1:00:00|%-5j|bob",
        "51_[2-9%1]|PENDING|8|16384M|UNLIMITED|%-5j|ali",
    ]


def test_squeue_asks_for_what_is_chosen(drf: Drf, queue: CannedDaemon) -> None:
    drf("squeue", "-j", "42,51_1", "-t", "pd,RUNNING", "-u", "alice", "-r")
    request = queue.requests.pop()
    assert request["select"] == {
        "ids": [42, "51_1"], "user": "alice", "states": ["PENDING", "HELD", "RUNNING"],
    }  # fmt: skip
    assert request["tasks"] is True


def test_squeue_lists_of_named_jobs_those_in_the_chosen_states(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, ended: MakeJob
) -> None:
    """A loop that polls with -t PD,R would not end otherwise."""
    jobs = [ended("FAILED", 3, id=7), job(id=8), job(id=9, state="PENDING", started_at=None)]
    daemon.replies["status"] = {"jobs": jobs, "counts": {}, "draining": False, "after": None}
    for states, shown in (("PD,R", "8\n9\n"), ("PD", "9\n"), ("F", "7\n"), ("all", "7\n8\n9\n")):
        assert drf("squeue", "-h", "-j", "7,8,9", "-t", states, "-o", "%i").out == shown


@pytest.mark.parametrize("words", [["-j", "7"], ["-h", "-j", "7"]])
def test_a_job_that_has_ended_is_not_in_the_queue(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:  # fmt: skip
    """Scripts poll until it is not."""
    past = ended("FAILED", 3, id=7)
    daemon.replies["status"] = {"jobs": [past], "counts": {}, "draining": False, "after": None}
    at_s = past["ended_at"]
    monkeypatch.setattr(slurm_names.time, "time", lambda: at_s + 100)
    result = drf("squeue", *words)
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) == (0 if "-h" in words else 1)
    assert " F " in drf("squeue", *words, "-t", "all").out
    monkeypatch.setattr(slurm_names.time, "time", lambda: at_s + 1000)
    result = drf("squeue", *words)
    assert (result.code, result.out) == (1, "")
    assert result.err == "drf: slurm_load_jobs error: Invalid job id specified\n"


def test_squeue_leaves_out_unknown_jobs(drf: Drf, daemon: CannedDaemon, refuse: Refuse) -> None:
    daemon.replies["status"] = refuse(code="no-such-job", text="there is no job 8")
    assert drf("squeue", "-h", "-j", "8,9").code == 0
    result = drf("squeue", "-h", "-j", "8")
    assert (result.code, result.err) == (
        1, "drf: slurm_load_jobs error: Invalid job id specified\n"
    )  # fmt: skip


def test_squeue_shows_what_has_just_ended(
    drf: Drf, queue: CannedDaemon, ended: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as it is asked for states of ended jobs."""
    queue.replies["history"] = {"jobs": [ended("FAILED", 3, id=7)], "after": None}
    monkeypatch.setattr(slurm_names.time, "time", lambda: 1_700_000_200.0)
    assert drf("squeue", "-h", "-t", "all", "-o", "%i").out.split()[-1] == "7"
    assert drf("squeue", "-h", "-t", "CD,F", "-o", "%i %t").out == "7 F\n"
    assert [each["past"]["since_s"] for each in queue.asked("history")] == [1_699_999_900.0] * 2
    for words in ([], ["-t", "PD"]):
        assert "7" not in drf("squeue", "-h", *words, "-o", "%i").out.split()


def test_squeue_tells_the_start_that_the_forecast_knows(drf: Drf, queue: CannedDaemon) -> None:
    def why(request: dict[str, object]) -> dict[str, object]:
        job = next(each for each in queue.replies["status"]["jobs"] if each["id"] == request["id"])
        after = [{"id": 42, "label": "42", "want": "ok"}] if request["id"] == 51 else []
        start_s = {50: 1_800_000_000.0, 51: None}[job["id"]]
        return {"job": {**job, "expected_start_at": start_s, "after": after}, "notes": []}

    queue.replies["why"] = why
    lines = drf("squeue", "--start", "-h").out.splitlines()
    assert [line.split()[0] for line in lines] == ["50", "51_[2-9%1]"], "only those that wait"
    assert [line.split()[5] for line in lines] == [fields.moment(1_800_000_000.0), "N/A"]
    assert drf("squeue", "-h", "-t", "PD", "-o", "%i %E").out == (
        "50 (null)\n51_[2-9%1] afterok:42(unfulfilled)\n"
    )
    queue.requests.clear()
    drf("squeue")
    assert not [each for each in queue.requests if each["op"] == "why"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-p", "lab"], "50"), (["-p", "main"], "42 50 51_[2-9%1] 51_1"), (["-p", "night"], ""),
        (["-A", "nolab"], ""), (["-A", "root.lab"], "50"), (["-w", "other"], ""),
        (["-w", HOST, "-q", "normal"], "42 50 51_[2-9%1] 51_1"), (["-q", "long"], ""),
        (["-S", "-i"], "51_1 51_[2-9%1] 50 42"), (["-S", "u,-i"], "51_1 51_[2-9%1] 42 50"),
    ],
)  # fmt: skip
def test_squeue_lists_what_the_options_choose(
    drf: Drf, queue: CannedDaemon, words: list[str], shown: str
) -> None:
    assert " ".join(drf("squeue", "-h", "-o", "%i", *words).out.split()) == shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["squeue", "-p", "nosuch"], "there is no partition nosuch (sinfo lists them)"),
        (["squeue", "-u", "nobody-else"], "there is no user nobody-else"),
        (["sacct", "-u", "nobody-else"], "there is no user nobody-else"),
        (["scancel", "-u", "nobody-else"], "there is no user nobody-else"),
    ],
)
def test_names_that_nobody_has_are_refused(
    drf: Drf, queue: CannedDaemon, words: list[str], complaint: str
) -> None:
    result = drf(*words)
    assert (result.code, result.out, result.err) == (1, "", f"drf: {complaint}\n")


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (HeldBy(by="root", job="50", is_admins=True), "JobHeldAdmin"),
        (HeldBy(by="bob", job="50"), "JobHeldUser"),
        (ArrayLimit(array_id=51, at_once=2, running=2), "JobArrayTaskLimit"),
        (ArrayLimit(array_id=51, at_once=2, running=1), "JobArrayTaskLimit"),
        (Draining(by="root", since_s=0.0), f"ReqNodeNotAvail,_UnavailableNodes:{HOST}"),
    ],
)
def test_squeue_has_slurms_reasons(
    drf: Drf, queue: CannedDaemon, job: MakeJob, reason: Evidence, shown: str
) -> None:
    code = {HeldBy: "HELD", ArrayLimit: "LIMIT", Draining: "DRAINING"}[type(reason)]
    text = wait_text(WaitReason(ReasonCode(code), reason), lambda at_s: "then")
    waits = job(id=50, state="PENDING", started_at=None, reason={"code": code, "text": text})
    queue.replies["status"]["jobs"] = [waits]
    assert drf("squeue", "-h", "-o", "%r").out == f"{shown}\n"


def test_squeue_repeats_itself(
    drf: Drf, queue: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(slurm_names.time, "sleep", sleep)
    result = drf("squeue", "-i", "5", "-h", "-o", "%i", "-u", "bob")
    assert (result.out.split().count("50"), slept) == (2, [5, 5])


def test_variables_stand_for_options(
    drf: Drf, queue: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i %u")
    monkeypatch.setenv("SQUEUE_PARTITION", "lab")
    assert drf("squeue", "-h").out == "50 bob\n"
    assert (
        drf("squeue", "-h", "-p", "main", "-o", "%u").out.split()
        == ["alice", "bob"] + ["alice"] * 2
    )
    monkeypatch.setenv("SQUEUE_ODD", "1")
    assert drf("squeue", "-h").err == "drf: without effect here: SQUEUE_ODD\n"
    monkeypatch.setenv("SACCT_FORMAT", "user")
    queue.replies["history"] = {"jobs": [], "after": None}
    assert set(drf("sacct", "-n", "-a", "-X").out.split()) == {"alice", "bob"}


def test_sbatch_reads_its_variables(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They win over the script, and the command line wins over them."""
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH -t 5 -J lines -c 2\n#DRF -m 1G\n")
    for name, value in {"TIMELIMIT": "7", "JOB_NAME": "env", "MEM_PER_NODE": "2G"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    monkeypatch.setenv("SBATCH_PARTITION", "night")
    monkeypatch.setenv("SBATCH_ODD", "1")
    daemon.replies["shares"] = {"nodes": [{"path": "root.night"}]}
    result = drf("sbatch", "-J", "typed", "x.sh")
    assert (result.code, result.err) == (0, "drf: without effect here: $SBATCH_ODD\n")
    request = daemon.asked("submit")[0]
    assert (request["time_limit_s"], request["name"], request["pool"]) == (420, "typed", "night")
    assert request["demand"] == {"cores_milli": 2000, "memory_bytes": 2 << 30}
    monkeypatch.setenv("SBATCH_TIMELIMIT", "soon")
    assert drf("sbatch", "x.sh").err == (
        "drf: sbatch: $SBATCH_TIMELIMIT: --time=soon: is not a time of Slurm "
        "(write 90 (minutes) or 1-12:00:00)\n"
    )


def test_sbatch_complains_in_its_own_words(drf: Drf, daemon: CannedDaemon) -> None:
    result = drf("sbatch", "--signal=ODD@3", "--wrap", "true")
    assert (result.code, daemon.requests) == (1, [])
    assert result.err.startswith("drf: sbatch: --signal: 'ODD' is not a signal")


# -- sacct -------------------------------------------------------------------------------------


def test_sacct_lists_ended_and_live_jobs(drf: Drf, queue: CannedDaemon, ended: MakeJob) -> None:
    used = {"memory_peak": 5 << 20, "cpu_seconds": 61.0}
    past = ended("FAILED", 3, id=7, used=used, exit_code=3)
    queue.replies["history"] = {"jobs": [past], "after": None}
    lines = drf("sacct", "-u", "alice").out.splitlines()
    assert lines[:3] == [
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode ",
        "------------ ---------- ---------- ---------- ---------- ---------- -------- ",
        "7                 train       main root.alice          8     FAILED      3:0 ",
    ]
    assert lines[3] == (
        "7.batch           batch            root.alice          8     FAILED      3:0 "
    )
    assert len(lines) == 2 + 2 + 5, "three live jobs of hers, two of which have started"
    assert len(drf("sacct", "-X", "-u", "alice").out.splitlines()) == 2 + 4
    steps = drf("sacct", "-n", "-P", "-a", "-j", "7.batch", "-o", "jobid,maxrss").out
    assert steps.splitlines()[0] == "7.batch|5120K"
    words = ("-P", "-n", "--format=JobID,state,MaxRSS,TotalCPU,Elapsed,ReqMem,Timelimit")
    assert drf("sacct", "-u", "alice", *words).out.splitlines()[0] == (
        "7|FAILED|5120K|00:01:01|00:01:30|16384M|01:00:00"
    )
    assert drf("sacct", "-anp", "-o", "jobid%6").out.startswith("7|\n7.batch|\n")
    every = drf("sacct", "-P", "-o", "ALL").out.splitlines()[0].split("|")
    assert every == drf("sacct", "--helpformat").out.split()


def test_the_exit_code_of_a_job_that_never_ran_is_not_0(
    drf: Drf, queue: CannedDaemon, ended: MakeJob
) -> None:
    queue.replies["status"]["jobs"] = []
    past = ended("LAUNCH_FAILED", None, id=7, started_at=None)
    queue.replies["history"] = {"jobs": [past], "after": None}
    assert drf("sacct", "-n", "-P", "-o", "state,exitcode").out == "BOOT_FAIL|125:0\n"


def test_sacct_says_who_cancelled_and_leaves_the_signal_to_the_step(
    drf: Drf, queue: CannedDaemon, ended: MakeJob
) -> None:
    queue.replies["status"]["jobs"] = []
    jobs = [
        ended("CANCELLED", text="cancelled by alice", id=9, signal=15),
        ended("CANCELLED", text="cancelled by root", id=8, started_at=None),
        ended("TIMEOUT", id=7, signal=15),
    ]
    queue.replies["history"] = {"jobs": jobs, "after": None}
    assert drf("sacct", "-n", "-P", "-o", "jobid,state,exitcode").out.splitlines() == [
        "7|TIMEOUT|0:0", "7.batch|TIMEOUT|0:15", "8|CANCELLED by 0|0:0",
        "9|CANCELLED by 4001001|0:0", "9.batch|CANCELLED|0:15",
    ]  # fmt: skip


def test_sacct_leaves_unknown_columns_empty(drf: Drf, queue: CannedDaemon, ended: MakeJob) -> None:
    used = {"memory_peak": 3 << 29, "cpu_seconds": 61.0, "read_bytes": 3 << 19}
    queue.replies["status"]["jobs"] = []
    queue.replies["history"] = {"jobs": [ended(id=7, used=used)], "after": None}
    words = ("-n", "-X", "-P", "-o", "JobID,AveRSS,ConsumedEnergy,AveCPU,MaxDiskRead,reqmem")
    result = drf("sacct", *words)
    assert result.out == "7|1572864K||00:01:01|1.50M|16384M\n"
    assert result.err == "drf: not known here, so empty: ConsumedEnergy\n"
    assert drf("sacct", *words, "--units=G").out == "7|1.50G||00:01:01|1.50M|16G\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("08:05:30", "2026-11-23 08:05:30"), ("1123", "2026-11-23 00:00:00"),
        ("11/23", "2026-11-23 00:00:00"), ("11/23/25-08:00", "2025-11-23 08:00:00"),
        ("11.22-08:00:07", "2026-11-22 08:00:07"), ("12/24", "2025-12-24 00:00:00"),
        ("112225", "2025-11-22 00:00:00"), ("2026-11-01T10:00:05", "2026-11-01 10:00:05"),
        ("9:30 AM", "2026-11-23 09:30:00"), ("noon", "2026-11-22 12:00:00"),
        ("now-90second", "2026-11-23 10:58:30"), ("now-2hours", "2026-11-23 09:00:00"),
        ("midnight", "2026-11-23 00:00:00"), ("12:05 am", "2026-11-23 00:05:00"),
    ],
)  # fmt: skip
def test_sacct_reads_slurms_times(monkeypatch: pytest.MonkeyPatch, text: str, at: str) -> None:
    now_s = time.mktime((2026, 11, 23, 11, 0, 0, 0, 0, -1))
    local = time.localtime
    monkeypatch.setattr(slurm_names.time, "time", lambda: now_s)
    monkeypatch.setattr(slurm_names.time, "localtime", lambda at_s=now_s: local(at_s))
    found = slurm_names._moment(text)
    assert time.strftime("%Y-%m-%d %H:%M:%S", local(found)) == at


@pytest.mark.parametrize("text", ["13/40", "25:00:00", "11/23/26/1", "soon"])
def test_sacct_refuses_times_that_are_none(text: str) -> None:
    with pytest.raises(Refused, match="is not a time"):
        slurm_names._moment(text)


def test_sacct_looks_at_today_and_at_the_caller(drf: Drf, queue: CannedDaemon) -> None:
    queue.replies["history"] = {"jobs": [], "after": None}
    drf("sacct")
    past = next(each["past"] for each in queue.requests if each["op"] == "history")
    assert past["user"] == "alice" and past["since_s"] > 0
    queue.requests.clear()
    drf("sacct", "-j", "7", "-S", "2026-01-02", "-s", "F")
    past = next(each["past"] for each in queue.requests if each["op"] == "history")
    assert past["ids"] == [7] and past["since_s"] == 1767312000
    assert past["states"] == ["FAILED", "LIMIT_EXCEEDED"] and "user" not in past


# -- scancel, sinfo ----------------------------------------------------------------------------


def test_scancel_cancels_and_signals(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies |= {"cancel": {"done": [7], "failed": []}, "signal": {"done": [7], "failed": []}}
    result = drf("scancel", "7", "51_2")
    assert (result.code, result.out, result.err) == (0, "", "")
    request = daemon.requests.pop()
    assert request["select"] == {"ids": [7, "51_2"], "user": None, "states": []}
    assert drf("scancel", "-s", "USR1", "-u", "alice", "-t", "R", "-n", "train").code == 0
    request = daemon.requests.pop()
    assert (request["op"], request["signal"]) == ("signal", 10)
    assert request["select"] == {
        "ids": [], "user": "alice", "states": ["RUNNING"], "name": "train",
    }  # fmt: skip


def test_scancel_spares_of_named_jobs_those_that_are_not_meant(
    drf: Drf, queue: CannedDaemon
) -> None:
    """As the daemon takes ids or filters, both together would cancel every job that is named."""
    queue.replies["cancel"] = {"done": [50], "failed": []}
    waiting = [f"51_{index}" for index in range(2, 10)]
    for words, meant in (
        (["-t", "PENDING"], [50, *waiting]), (["-u", "bob"], [50]),
        (["-t", "R", "-n", "train"], [42]), (["-n", "other"], []),
    ):  # fmt: skip
        queue.requests.clear()
        result = drf("scancel", *words, "42", "50", "51")
        asked = [each["select"] for each in queue.requests if each["op"] == "cancel"]
        assert asked == [{"ids": meant, "user": None, "states": []}] * bool(meant)
        assert (result.code, result.out) == (0, "")
        assert result.err == ("" if meant else "drf: scancel: there is no such job\n")
    assert drf("scancel", "-q", "-n", "other", "42").err == ""


def test_scancel_tells_what_it_could_not_do(drf: Drf, daemon: CannedDaemon) -> None:
    failed = [{"id": 9, "error": {"code": "no-such-job", "text": "there is no live job 9"}}]
    daemon.replies["cancel"] = {"done": [], "failed": failed}
    result = drf("scancel", "9")
    assert (result.code, result.err) == (1, "drf: scancel: there is no live job 9\n")
    assert drf("scancel", "-q", "9").err == ""


@pytest.mark.parametrize(
    ("words", "cancelled", "told"),
    [
        (["-u", "bob"], [], "job 50 (bob)"),
        (["-n", "train"], [42], "job 50 (bob)"),
        (["-n", "train", "-u", "alice"], [42], None),
        (["-n", "train", "-q"], [], None),
    ],
)
def test_scancel_names_the_jobs_that_are_not_the_callers(
    drf: Drf, queue: CannedDaemon, words: list[str], cancelled: list[int], told: str | None
) -> None:
    queue.replies["cancel"] = {"done": cancelled, "failed": []}
    result = drf("scancel", *words)
    assert result.code == (0 if cancelled else 1)
    assert result.err == ("" if told is None else f"drf: scancel: not yours to cancel: {told}\n")
    queue.replies["hello"] = {"user": "alice", "admin": True}
    assert drf("scancel", *words).err == ""


def test_scancel_asks_for_each_job(
    queue: CannedDaemon, spawn: Spawn, finish: Finish, tmp_path: Path
) -> None:
    queue.replies["cancel"] = {"done": [50], "failed": []}
    answers = tmp_path / "answers"
    answers.write_text("n\ny\ny\nn\n")
    with answers.open() as typed:
        result = finish(spawn("scancel", "-i", "-t", "R,PD", stdin=typed))
    assert (result.code, result.out) == (0, "")
    questions = re.findall(r"Cancel (job_id=\S+ name=\S+ partition=\S+)", result.err)
    assert questions == [
        "job_id=42 name=train partition=main", "job_id=50 name=train partition=lab",
        "job_id=51_[2-9%1] name=train partition=main", "job_id=51_1 name=a?b partition=main",
    ]  # fmt: skip
    request = next(each for each in queue.requests if each["op"] == "cancel")
    waiting = [f"51_{index}" for index in range(2, 10)]
    assert request["select"] == {"ids": [50, *waiting], "user": None, "states": []}


@pytest.mark.parametrize("words", [[], ["-p", "short"], ["--qos=x", "7"], ["-t", "odd"]])
def test_scancel_cancels_nothing_by_mistake(
    drf: Drf, daemon: CannedDaemon, words: list[str]
) -> None:
    result = drf("scancel", *words)
    assert result.code == 2 and result.err.count("\n") == 1
    assert not [each for each in daemon.requests if each["op"] == "cancel"]


def test_sinfo_shows_one_machine(drf: Drf, queue: CannedDaemon) -> None:
    amounts = {"memory": 8 << 30, "read": 0, "write": 0}
    queue.replies["shares"] = {
        "capacity": {**amounts, "cores": 8.0, "gres": {"gpu": 2}},
        "free": {**amounts, "cores": 2.0, "gres": {"gpu": 2}}, "nodes": [],
    }  # fmt: skip
    assert drf("sinfo").out.splitlines() == [
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
        f"main*        up   infinite      1    mix {HOST}",
        f"lab          up   infinite      1    mix {HOST}",
        f"night        up   infinite      1    mix {HOST}",
    ]
    assert drf("sinfo", "-h", "-o", "%C %G %m %T").out == "6/2/0/8 gpu:2 8192 mixed\n"
    assert drf("sinfo", "-h", "-p", "lab,none", "-o", "%P").out == "lab\n"
    # Of GPUs that jobs share the capacity is their memory.
    queue.replies["shares"]["capacity"]["gres"] = {"memory:gpu": 48 << 30}
    queue.replies["doctor"] = {"gres": {"gpu": ["0", "1"]}}
    assert drf("sinfo", "-h", "-o", "%G").out == "gpu:2\n"
    assert (
        drf("sinfo", "-h", "-t", "mixed,down", "-n", HOST, "-o", "%R").out == "main\nlab\nnight\n"
    )
    assert drf("sinfo", "-h", "-t", "idle").out == drf("sinfo", "-h", "-n", "other").out == ""
    assert drf("sinfo", "-h", "-R").out == "", "nothing drains"
    result = drf("sinfo", "-h", "-o", "%t|%X|%c")
    assert (result.out, result.err) == ("mix||8\n", "drf: not known here, so empty: %X\n")


def test_cores_that_others_use_are_not_idle(drf: Drf, queue: CannedDaemon) -> None:
    amounts = {"memory": 8 << 30, "read": 0, "write": 0, "cores": 8.0, "gres": {}}
    kept = {"cores": 1.0, "memory": 0}
    queue.replies["shares"] = {
        "capacity": amounts, "free": amounts, "nodes": [],
        "external": {"cores": 9.0, "memory": 0, "kept": kept},
    }  # fmt: skip
    assert drf("sinfo", "-h", "-o", "%t %C").out == "alloc 0/0/8/8\n"


def test_a_node_that_drains_says_why(drf: Drf, queue: CannedDaemon) -> None:
    amounts = {"memory": 8 << 30, "read": 0, "write": 0, "cores": 8.0, "gres": {}}
    queue.replies["shares"] = {"capacity": amounts, "free": amounts, "nodes": []}
    queue.replies["status"] |= {
        "draining": True, "drain": {"by": "root", "since": 0.0, "reason": "new disks"},
    }  # fmt: skip
    assert drf("sinfo", "-h", "-o", "%t %E").out == "drain new disks\n"
    assert drf("sinfo", "-h", "-o", "%F %C").out == "0/0/1/1 0/0/8/8\n"
    assert drf("sinfo", "-R", "-h").out.split() == [
        "new", "disks", "root", fields.moment(0.0), HOST,
    ]  # fmt: skip
    assert drf("sinfo", "-h", "-t", "drain", "-o", "%D").out == "1\n"


def test_squeue_tells_tasks_apart(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    jobs = [job(id=52, array_id=51, array_index=0), job()]
    daemon.replies["status"] = {"jobs": jobs, "counts": {}, "draining": False, "after": None}
    assert drf("squeue", "-h", "-o", "%F %K").out == "51 0\n42 N/A\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["squeue", "--bogus"], "drf squeue: there is no option --bogus here\n"),
        (["squeue", "-y"], "drf squeue: there is no option -y here\n"),
        (["squeue", "-t", "odd"], "drf squeue: there is no state odd\n"),
        (["squeue", "-S", "^"], "drf squeue: there is no field ^ to sort by\n"),
        (
            ["squeue", "-s"],
            "drf squeue: squeue lists no steps here (sacct has one for each script)\n",
        ),
        (["squeue", "-i", "often"], "drf squeue: 'often' is not a number of seconds\n"),
        (
            ["squeue", "--json"],
            "drf squeue: squeue has no --json here (that is: drf status --json)\n",
        ),
        (
            ["sacct", "--json"],
            "drf sacct: sacct has no --json here (that is: drf history --json)\n",
        ),
        (["sacct", "-o", "JobID%x"], "drf sacct: JobID%x is not a field and its width\n"),
        (["sacct", "--units=Q"], "drf sacct: --units=Q: there are K, M, G, T and P\n"),
        (
            ["sinfo", "-T"],
            "drf sinfo: there are no reservations here (the configuration may have a [[window]])\n",
        ),
        (
            ["sbatch", "--wrap", "echo", "a b"],
            "drf sbatch: --wrap takes one line, in quotes: --wrap 'echo a b'\n",
        ),
        (["srun"], "drf srun: there is no command\n"),
    ],
)
def test_what_they_do_not_know_is_said_in_a_line(
    drf: Drf, queue: CannedDaemon, words: list[str], complaint: str
) -> None:
    queue.replies["history"] = {"jobs": [], "after": None}
    empty = {"cores": 1.0, "memory": 1, "gres": {}}
    queue.replies["shares"] = {"capacity": empty, "free": empty, "nodes": []}
    result = drf(*words)
    assert (result.code, result.out, result.err) == (2, "", complaint)


# -- their help --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SLURM_NAMES)
def test_each_tells_its_options(drf: Drf, daemon: CannedDaemon, name: str) -> None:
    result = drf(name, "--help")
    assert (result.code, result.err, daemon.requests) == (0, "", [])
    assert result.out.startswith(f"Usage: {name} ")
    assert all(len(line) <= 100 for line in result.out.splitlines())
    assert drf(name, "--version").out.startswith("drfd ")
    if name not in ("squeue", "sinfo"):
        assert drf(name, "-h").out == result.out


def test_the_help_of_sbatch_names_every_option(drf: Drf) -> None:
    out = drf("sbatch", "--help").out
    told = set(re.findall(r"--([a-z-]+)", out))
    assert told >= set(sbatch_options.KNOWN) - sbatch_options.SAID_NOTHING
    assert told <= set(sbatch_options.KNOWN)


@pytest.mark.parametrize("name", ["squeue", "scancel", "sinfo", "sacct"])
def test_what_the_help_names_is_known(drf: Drf, name: str) -> None:
    known = {
        "squeue": slurm_names._QUEUE, "scancel": slurm_names._CANCEL, "sinfo": slurm_names._INFO,
        "sacct": slurm_names._ACCOUNT,
    }[name]  # fmt: skip
    options = set(re.findall(r"--([A-Za-z0-9-]+)", drf(name, "--help").out))
    assert options and options <= set(known)


# -- srun within a job -------------------------------------------------------------------------


def test_srun_starts_the_tasks_of_a_step(spawn: Spawn, finish: Finish) -> None:
    env = {"DRF_JOB_ID": "7", "SLURM_NTASKS": "2"}
    say = ("sh", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS; exit $SLURM_PROCID")
    result = finish(spawn("srun", *say, env=env))
    assert (result.code, sorted(result.out.splitlines())) == (1, ["0 of 2", "1 of 2"])
    result = finish(spawn("srun", "-n", "3", "-l", *say, env=env))
    assert sorted(result.out.splitlines()) == ["0: 0 of 3", "1: 1 of 3", "2: 2 of 3"]
    assert result.code == 2
    result = finish(spawn("srun", "-n1", "-c", "4", "sh", "-c", "echo $OMP_NUM_THREADS", env=env))
    assert (result.code, result.out) == (0, "4\n")


def _of_drf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    program = tmp_path / "drf"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(slurm_names, "_program", lambda: str(program))
    return str(program)


@pytest.mark.parametrize(
    ("words", "step", "demand"),
    [
        (["-n", "3"], ["-n", "3"], {"cores_milli": 3000}),
        (["-n2", "-c", "2", "-l"], ["-n", "2", "-c", "2", "-l"], {"cores_milli": 4000}),
        (["--ntasks-per-node=2"], ["-n", "2"], {"cores_milli": 2000}),
    ],
)
def test_srun_outside_a_job_starts_as_many_tasks_within_one(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], step: list[str], demand: dict[str, int],
) -> None:  # fmt: skip
    daemon.replies["submit"] = refusal(text="enough")
    program = _of_drf(monkeypatch, tmp_path)
    drf("srun", *words, "sh", "-c", "echo $SLURM_PROCID")
    request = daemon.asked("submit")[0]
    assert request["argv"] == [program, "srun", *step, "--", "sh", "-c", "echo $SLURM_PROCID"]
    assert (request["name"], request["demand"]) == ("sh", demand)


def test_srun_goes_into_the_job_that_is_named(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: MakeJob
) -> None:
    daemon.replies["show"] = {"job": job()}
    daemon.replies["exec"] = refusal(text="enough")
    program = _of_drf(monkeypatch, tmp_path)
    for words in ([], ["-n", "2"]):
        assert drf("srun", "--jobid=42", "--overlap", *words, "hostname").code == 1
    told = [b64decode(each["command"]) for each in daemon.asked("exec")]
    for packed, words in zip(
        told,
        (["hostname"], [program, "srun", "--overlap", "-n", "2", "--", "hostname"]),
        strict=True,
    ):
        assert b"".join(f"{word}\0".encode() for word in words) in packed
        assert (b"srun" in packed) == ("srun" in words)
    assert {each["id"] for each in daemon.asked("exec")} == {42}
    assert not [each for each in daemon.requests if each["op"] == "submit"]


def test_srun_starts_no_mpi(spawn: Spawn, finish: Finish) -> None:
    result = finish(spawn("srun", "--mpi=pmix", "true", env={"DRF_JOB_ID": "7"}))
    assert (result.code, result.err) == (
        1, "drf: srun: this one starts no MPI (mpirun -n N COMMAND)\n"
    )  # fmt: skip


# -- the names ---------------------------------------------------------------------------------


def test_the_names_lead_to_drf(
    drf: Drf, queue: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "drf"
    program.write_text(f"#!{sys.executable} -P\n{LIGHT_DRF}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    result = drf("slurm-names", "bin")
    assert result.code == 0
    assert {each.name for each in Path("bin").iterdir()} == {
        "sbatch", "srun", "squeue", "scancel", "sinfo", "sacct", "scontrol",
        "salloc", "seff", "sprio", "sshare", "sstat",
    }  # fmt: skip
    for name in slurm_names.HINTED:
        done = subprocess.run([f"bin/{name}", "7"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith(f"drf: No such command '{name}'. That is: drf ")
    done = subprocess.run(
        ["bin/squeue", "-h", "-o", "%i"], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["42", "50", "51_[2-9%1]", "51_1"], "")
    assert drf("slurm-names", "bin").code == 0, "once more"


def test_a_real_sbatch_is_not_touched(
    drf: Drf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "drf"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "squeue").write_text("real")
    result = drf("slurm-names", tmp_path)
    assert result.code == 1
    assert "squeue is there already" in result.err
    assert not (tmp_path / "sbatch").is_symlink()
