"""Slurm's commands: what they ask the daemon for, and the lines that they print."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, Message, refusal
from cli.drf import LIGHT_DRF, Result
from drfd.common.signals import FIRST, REST
from drfd.core.scheduling.waits import CountLimit, Draining, HeldBy
from drfd_cli.commands import slurm_lists, slurm_names
from drfd_cli.slurm import SLURM_NAMES, fields, grammar

SCRIPTS = Path(__file__).parent.parent / "data" / "slurm"
HOST = os.uname().nodename.partition(".")[0]
AMOUNTS = {"cores": 8.0, "memory": 8 << 30, "read": 0, "write": 0, "gres": {}}
#: Two of its eight cores are free.
SHARES = {
    "capacity": {**AMOUNTS, "gres": {"gpu": 2}},
    "free": {**AMOUNTS, "cores": 2.0, "memory": 3 << 30, "gres": {"gpu": 2}}, "nodes": [],
}  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch, daemon):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRF_JOB_ID", raising=False)
    done = {"done": [42], "failed": []}
    daemon.replies = {
        **dict.fromkeys(("set", "hold", "release", "suspend", "resume", "cancel", "signal"), done),
        "requeue": done,
        "submit": {"id": 42}, "hello": {"user": "alice", "admin": False},
        "recent": {"pools": ["lab", "lab.night"], "users": ["bob"], "gres": [], "recent": []},
        "shares": {"nodes": [{"path": "root.alice"}, {"path": "root.lab.carol"}]},
        "history": {"jobs": [], "after": None}, "drain": {}, "reload": {"warnings": ["a"]},
        "status": {"jobs": [], "counts": {}, "draining": False, "after": None},
    }  # fmt: skip


@pytest.fixture
def lines(drf):
    """Runs one of Slurm's commands from its words; the lines that it prints."""
    return lambda words: drf(*words.split(" ")).out.splitlines()


@pytest.fixture
def queue(daemon, job) -> CannedDaemon:
    waits = {"state": "PENDING", "started_at": None}
    daemon.replies["status"]["jobs"] = [
        job(),
        job(id=50, user="bob", pool="root.lab", reason={"code": "FAIR_SHARE", "text": "x"},
            **waits),
        job(id=51, array_id=51, array_tasks="2-9%1", time_limit_s=None,
            reason={"code": "DEPENDENCY", "text": "x"}, **waits),
        job(id=52, array_id=51, array_index=1, name="a\nb"),
    ]  # fmt: skip
    return daemon


# -- sbatch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "printed"), [([], "Submitted batch job 42\n"), (["--parsable"], "42\n"), (["-Q"], "")]
)
def test_sbatch_tells_the_number(drf, daemon, words, printed):
    assert drf("sbatch", *words, SCRIPTS / "02-threads.sh", "a b") == Result(0, printed, "")
    request = daemon.requests.pop()
    assert request["argv"][1:] == ["a b"] and request["name"] == "threads"
    assert request["demand"] == {"cores_milli": 2000, "memory_bytes": 100 << 20}
    assert request["stdout"] == "threads.out" and request["env"]["DRF_SLURM"] == "1"


def test_the_options_of_sbatch_win_over_all_lines(drf, daemon):
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH -c 2 --mem-per-cpu=1G -t 5\n#DRF -t 3h -m 1G\n")
    assert drf("sbatch", "-c4", "x.sh").code == 0
    request = daemon.requests.pop()
    assert request["demand"] == {"cores_milli": 4000, "memory_bytes": 1 << 30}
    assert request["time_limit_s"] == 10800
    assert (request["name"], request["stdout"]) == ("x.sh", "slurm-%j.out")
    assert drf("sbatch", "-t", "7", "-a", "1-3", "x.sh").code == 0
    request = daemon.requests.pop()
    assert (request["time_limit_s"], request["stdout"]) == (420, "slurm-%A_%a.out")
    assert drf("sbatch", "-n", "2", "--wrap", "seq 3 | wc").out == "Submitted batch job 42\n"
    request = daemon.requests.pop()
    assert (request["argv"], request["name"]) == (["sh", "-c", "seq 3 | wc"], "wrap")
    assert request["demand"] == {"cores_milli": 2000}


def test_a_comment_is_kept_and_shown_by_all_lists(drf, lines, daemon, job, ended):
    """A poller sees by it which of its builds have a job; nothing is warned of."""
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH --comment='http://x/y?a=1,2'\n")
    for words in ("x.sh",), ("--comment=http://x/y?a=1,2", "--wrap", "true"):
        assert drf("sbatch", *words) == Result(0, "Submitted batch job 42\n", "")
        request = daemon.asked("submit")[-1]
        assert request["comment"] == request["env"]["SLURM_JOB_COMMENT"] == "http://x/y?a=1,2"
    noted = job(id=2, comment="fold 3")
    daemon.replies["status"]["jobs"] = [noted, job(id=3)]
    assert lines("squeue -h -o %k,%A") == ["fold 3,2", "(null),3"]
    assert [line.strip() for line in lines("squeue -h -O Comment")] == ["fold 3", "(null)"]
    daemon.replies["history"] = {"jobs": [ended(comment="fold 3")], "after": None}
    daemon.replies["status"]["jobs"] = []
    assert {line.split("|")[1] for line in lines("sacct -anXP -o jobid,comment")} == {"fold 3"}
    daemon.replies["show"] = {"job": noted, "events": []}
    assert "   Comment=fold 3" in lines("scontrol show job 2")


def test_sbatch_tells_when_a_job_would_start(drf, daemon):
    daemon.replies["submit"] = {"expected_start_at": None, "reason": None}
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH -c 2\n")
    for words in (["x.sh"], ["--wrap", "true"]):
        assert drf("sbatch", "--test-only", *words) == Result(0, "it would start now\n", "")
    assert all(each["dry_run"] for each in daemon.asked("submit", times=2))


def test_sbatch_reads_its_variables(drf, daemon, monkeypatch):
    """They win over the script, and the command line wins over them."""
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH -t 5 -J lines -c 2\n#DRF -m 1G\n")
    for name, value in {
        "TIMELIMIT": "7", "JOB_NAME": "env", "MEM_PER_NODE": "2G", "PARTITION": "night", "ODD": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SBATCH_{name}", value)
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


# -- squeue ------------------------------------------------------------------------------------


def test_squeue_lists_jobs_in_slurms_columns(lines, queue, monkeypatch):
    monkeypatch.setattr(fields.time, "time", lambda: 1_700_000_010.0 + 3723)
    whole = lines("squeue")
    assert whole == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        f"                42      main    train    alice  R    1:02:03      1 {HOST}",
        "                50       lab    train      bob PD       0:00      1 (Priority)",
        "        51_[2-9%1]      main    train    alice PD       0:00      1 (Dependency)",
        f"              51_1      main      a?b    alice  R    1:02:03      1 {HOST}",
    ]
    assert lines("squeue -h -u bob") == whole[2:3]
    assert lines("squeue --me --noheader -p main") == [whole[1], *whole[3:]]
    assert lines("squeue -h -o %i|%T|%C|%m|%l|%-5j|%.3u")[:3] == [
        "42|RUNNING|8|16384M|1:00:00|%-5j|ali",
        "50|PENDING|8|16384M|1:00:00|%-5j|bob",
        "51_[2-9%1]|PENDING|8|16384M|UNLIMITED|%-5j|ali",
    ]
    assert lines("squeue -h -o %F,%K")[::3] == ["42,N/A", "51,1"]
    queue.requests.clear()
    lines("squeue -j 42,51_1 -t pd,RUNNING -u alice -r")
    request = queue.requests.pop()
    states = ["PENDING", "HELD", "RUNNING"]
    assert request["select"] == {"ids": [42, "51_1"], "user": "alice", "states": states}
    assert request["tasks"] is True


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({"suspended_seconds": 600.0}, "20:00 40:00 23:23:30 1200"),
        # It stands still, and its end moves.
        ({"suspended_at": 1_700_000_910.0, "state": "SUSPENDED"}, "15:00 45:00 23:28:30 900"),
        ({"suspended_seconds": 600.0, "suspended_at": 1_700_000_910.0, "state": "CANCELLED",
          "ended_at": 1_700_001_000.0}, "5:00 55:00 22:30:00 300"),
    ],
)  # fmt: skip
def test_a_job_does_not_run_while_it_is_suspended(
    lines, drf, queue, job, monkeypatch, changes, times
):
    monkeypatch.setattr(fields.time, "time", lambda: 1_700_000_010.0 + 1800)
    queue.replies["status"]["jobs"] = [job(**changes)]
    queue.replies["show"] = {"job": job(**changes), "events": []}
    ran, left, end, seconds = times.split()
    assert lines("squeue -t all -h -o %M,%L,%e") == [f"{ran},{left},2023-11-14T{end}"]
    assert f"RunTime=00:{ran:0>5}" in " ".join(lines("scontrol show job 42"))
    assert f"{int(seconds) // 60}m00s" in drf("status").out.split()


INVALID = "drf: slurm_load_jobs error: Invalid job id specified\n"


@pytest.mark.parametrize("words", [["-j", "7"], ["-h", "-j", "7"]])
def test_a_job_that_has_ended_is_not_in_the_queue(drf, daemon, ended, monkeypatch, refuse, words):
    """Scripts poll until it is not."""
    past = ended("FAILED", 3, id=7)
    daemon.replies["status"]["jobs"] = [past]
    at_s = past["ended_at"]
    monkeypatch.setattr(slurm_lists.time, "time", lambda: at_s + 100)
    result = drf("squeue", *words)
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) == (0 if "-h" in words else 1)
    assert " F " in drf("squeue", *words, "-t", "all").out
    monkeypatch.setattr(slurm_lists.time, "time", lambda: at_s + 1000)
    assert drf("squeue", *words) == Result(1, "", INVALID)
    daemon.replies["status"] = refuse(code="no-such-job", text="there is no job 8")
    assert drf("squeue", "-h", "-j", "8,9").code == 0
    assert drf("squeue", "-h", "-j", "8") == Result(1, "", INVALID)


def test_squeue_shows_what_has_just_ended(lines, queue, ended, monkeypatch):
    """As soon as it is asked for states of ended jobs."""
    queue.replies["history"] = {"jobs": [ended("FAILED", 3, id=7)], "after": None}
    monkeypatch.setattr(slurm_lists.time, "time", lambda: 1_700_000_200.0)
    assert lines("squeue -h -t all -o %i")[-1] == "7"
    assert lines("squeue -h -t CD,F -o %i:%t") == ["7:F"]
    assert [each["past"]["since_s"] for each in queue.asked("history")] == [1_699_999_900.0] * 2
    assert "7" not in lines("squeue -h -o %i") + lines("squeue -h -t PD -o %i")


def test_squeue_tells_the_start_that_the_forecast_knows(lines, queue):
    def why(request: Message) -> Message:
        # The first task of a row.
        job_id = 51 if request["id"] == "51_2" else request["id"]
        job = next(each for each in queue.replies["status"]["jobs"] if each["id"] == job_id)
        after = [{"id": 42, "label": "42", "want": "ok"}] if job_id == 51 else []
        start_s = {50: 1_800_000_000.0, 51: None}[job["id"]]
        return {"job": {**job, "expected_start_at": start_s, "after": after}, "notes": []}

    queue.replies["why"] = why
    shown = [line.split() for line in lines("squeue --start -h")]
    assert [line[0] for line in shown] == ["50", "51_[2-9%1]"], "only those that wait"
    assert [line[5] for line in shown] == [fields.moment(1_800_000_000.0), "N/A"]
    assert lines("squeue -h -t PD -o %i:%E") == [
        "50:(null)", "51_[2-9%1]:afterok:42(unfulfilled)",
    ]  # fmt: skip
    queue.requests.clear()
    lines("squeue")
    assert not [each for each in queue.requests if each["op"] == "why"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("-p lab", "50"), ("-p main", "42 50 51_[2-9%1] 51_1"), ("-p night", ""),
        ("-A nolab", ""), ("-A root.lab", "50"), ("-w other", ""),
        (f"-w {HOST} -q normal", "42 50 51_[2-9%1] 51_1"), ("-q long", ""),
        ("-S -i", "51_1 51_[2-9%1] 50 42"), ("-S u,-i", "51_1 51_[2-9%1] 42 50"),
    ],
)  # fmt: skip
def test_squeue_lists_what_the_options_choose(lines, queue, words, shown):
    assert lines(f"squeue -h -o %i {words}") == shown.split()


@pytest.mark.parametrize(
    ("code", "reason", "shown"),
    [
        ("HELD", HeldBy(by="root", job="50", is_admins=True), "JobHeldAdmin"),
        ("HELD", HeldBy(by="bob", job="50"), "JobHeldUser"),
        ("LIMIT", CountLimit("array 51", at_once=2, running=2), "JobArrayTaskLimit"),
        ("LIMIT", CountLimit("array 51", at_once=2, running=1), "JobArrayTaskLimit"),
        ("DRAINING", Draining(by="root", since_s=0.0),
         f"ReqNodeNotAvail,_UnavailableNodes:{HOST}"),
    ],
)  # fmt: skip
def test_squeue_has_slurms_reasons(lines, daemon, job, code, reason, shown):
    text = reason.text()
    waits = job(state="PENDING", started_at=None, reason={"code": code, "text": text})
    daemon.replies["status"]["jobs"] = [waits]
    assert lines("squeue -h -o %r") == [shown]


def test_squeue_repeats_itself(drf, queue, monkeypatch):
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(slurm_lists.time, "sleep", sleep)
    result = drf("squeue", "-i", "5", "-h", "-o", "%i", "-u", "bob")
    assert (result.out.split().count("50"), slept) == (2, [5, 5])


def test_variables_stand_for_options(drf, lines, queue, monkeypatch):
    monkeypatch.setenv("SQUEUE_FORMAT", "%i %u")
    monkeypatch.setenv("SQUEUE_PARTITION", "lab")
    assert lines("squeue -h") == ["50 bob"]
    assert lines("squeue -h -p main -o %u") == ["alice", "bob", "alice", "alice"]
    monkeypatch.setenv("SQUEUE_ODD", "1")
    assert drf("squeue", "-h").err == "drf: without effect here: $SQUEUE_ODD\n"
    monkeypatch.setenv("SACCT_FORMAT", "user")
    assert {line.strip() for line in lines("sacct -n -a -X")} == {"alice", "bob"}


def test_fields_may_be_named_in_words(lines, queue, drf):
    queue.replies["shares"] = SHARES
    names = "JobArrayID:8,StateCompact:.3/,tres-alloc:30,RestartCnt"
    assert lines(f"squeue -j 42 -O {names}")[:2] == [
        "JOBID    ST/TRES_ALLOC                    RESTART_COUNT       ",
        "42        R/cpu=8,mem=16384M,node=1       0                   ",
    ]
    assert lines("sinfo -h --noconvert -O CPUs:5,Memory,PartitionName:8,PriorityTier:2")[0] == (
        f"8    {8 << 10:<20}main    1 "
    )
    told = drf("squeue", "-h", "-O", "Name,Odd")
    assert told.err == "drf: no field of Slurm's, so without a value: odd\n"


def test_seff_tells_how_much_of_its_cores_and_memory_a_job_has_used(drf, daemon, ended):
    used = {"memory_peak": 1 << 30, "cpu_seconds": 72.0}
    daemon.replies["show"] = {"job": ended("COMPLETED", id=7), "used": used}
    told = drf("seff", "7").out.splitlines()
    assert told[-5:] == [
        "CPU Utilized: 00:01:12", "CPU Efficiency: 10.00% of 00:12:00 core-walltime",
        "Job Wall-clock time: 00:01:30", "Memory Utilized: 1024.00 MB",
        "Memory Efficiency: 6.25% of 16384.00 MB",
    ]  # fmt: skip


# -- sacct -------------------------------------------------------------------------------------


def test_sacct_lists_ended_and_live_jobs(lines, queue, ended):
    used = {"memory_peak": 5 << 20, "cpu_seconds": 61.0}
    past = ended("FAILED", 3, id=7, used=used, exit_code=3)
    queue.replies["history"] = {"jobs": [past], "after": None}
    shown = lines("sacct -u alice")
    assert shown[:4] == [
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode ",
        "------------ ---------- ---------- ---------- ---------- ---------- -------- ",
        "7                 train       main root.alice          8     FAILED      3:0 ",
        "7.batch           batch            root.alice          8     FAILED      3:0 ",
    ]
    assert len(shown) == 2 + 2 + 5, "three live jobs of hers, two of which have started"
    assert len(lines("sacct -X -u alice")) == 2 + 4
    assert lines("sacct -n -P -a -j 7.batch -o jobid,maxrss")[0] == "7.batch|5120K"
    columns = "JobID,state,MaxRSS,TotalCPU,Elapsed,ReqMem,Timelimit"
    assert lines(f"sacct -u alice -P -n --format={columns}")[0] == (
        "7|FAILED|5120K|01:01.000|00:01:30|16384M|01:00:00"
    )
    assert lines("sacct -anp -o jobid%6")[:2] == ["7|", "7.batch|"]
    every = " ".join(lines("sacct --helpformat")).split()
    assert lines("sacct -P -o ALL")[0].split("|") == every


def test_sacct_says_who_cancelled_and_leaves_the_signal_to_the_step(drf, lines, daemon, ended):
    """The exit code of a job that never ran is not 0, and what is not known is empty."""
    used = {"memory_peak": 3 << 29, "cpu_seconds": 61.0, "read_bytes": 3 << 19}
    jobs = [
        ended("CANCELLED", text="cancelled by alice", id=9, signal=15),
        ended("CANCELLED", text="cancelled by root", id=8, started_at=None),
        ended("TIMEOUT", id=7, signal=15, used=used),
        ended("LAUNCH_FAILED", None, id=6, started_at=None),
    ]
    daemon.replies["history"] = {"jobs": jobs, "after": None}
    assert lines("sacct -n -P -o jobid,state,exitcode") == [
        "6|BOOT_FAIL|125:0", "7|TIMEOUT|0:0", "7.batch|TIMEOUT|0:15", "8|CANCELLED by 0|0:0",
        "9|CANCELLED by 4001001|0:0", "9.batch|CANCELLED|0:15",
    ]  # fmt: skip
    words = ("-n", "-X", "-P", "-o", "JobID,AveRSS,ConsumedEnergy,AveCPU,MaxDiskRead,reqmem")
    result = drf("sacct", *words)
    assert result.out.splitlines()[1] == "7|1572864K||00:01:01|1.50M|16384M"
    assert result.err == "drf: not measured here, so empty: ConsumedEnergy\n"
    found = drf("sacct", *words, "--units=G").out.splitlines()[1]
    assert found == "7|1.50G||00:01:01|1.50M|16G"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "00:00:00"), (0.0, "00:00:00"), (0.0421, "00:00.042"), (125.9996, "02:05.999"),
     (3600.5, "01:00:00"), (90_000.0, "1-01:00:00")],
)  # fmt: skip
def test_cpu_time_is_written_as_slurm_writes_it(lines, daemon, ended, seconds, shown):
    """A job that never ran has used none; programs read the field as a time."""
    used = {"memory_peak": None, "cpu_seconds": seconds}
    daemon.replies["history"] = {"jobs": [ended("CANCELLED", id=9, used=used)], "after": None}
    assert lines("sacct -n -X -P -o TotalCPU") == [shown]


def test_an_id_that_nobody_knows_hides_no_other(lines, queue, job):
    """Slurm leaves it out. What is not known is found by halves."""

    def status(asked: Message) -> Any:
        ids = asked["select"]["ids"]
        if 9 in ids:
            return refusal(code="no-such-job", text="there is no job 9")
        return {"jobs": [job(id=each) for each in ids], "counts": {}, "after": None}

    queue.replies["status"] = status
    assert lines("sacct -n -X -P -o JobID -j 40,9,41") == ["40", "41"]
    assert lines("squeue -h -o %i -j 40,9,41") == ["40", "41"]


# -- scancel -----------------------------------------------------------------------------------


def test_scancel_cancels_and_signals(drf, daemon):
    assert drf("scancel", "7", "51_2") == Result(0, "", "")
    request = daemon.requests.pop()
    assert request["select"] == {"ids": [7, "51_2"], "user": None, "states": []}
    assert drf("scancel", "-s", "USR1", "-u", "alice", "-t", "R", "-n", "train").code == 0
    request = daemon.requests.pop()
    assert (request["op"], request["signal"]) == ("signal", REST | 10)
    assert request["select"] == {
        "ids": [], "user": "alice", "states": ["RUNNING"], "name": "train",
    }  # fmt: skip
    for words, number in (("-b", FIRST | 10), ("-f", 10), ("--full -s KILL", 9), ("-s KILL", 9)):
        drf("scancel", "-s", "USR1", *words.split(), "7")
        assert daemon.requests.pop()["signal"] == number, words
    failed = [{"id": 9, "error": {"code": "no-such-job", "text": "there is no live job 9"}}]
    daemon.replies["cancel"] = {"done": [], "failed": failed}
    result = drf("scancel", "9")
    assert (result.code, result.err) == (1, "drf: scancel: there is no live job 9\n")
    assert drf("scancel", "-Q", "9").err == ""


WAITING = [f"51_{index}" for index in range(2, 10)]


@pytest.mark.parametrize(
    ("words", "is_admin", "meant"),
    [
        ("-p main", False, [42, *WAITING, "51_1"]), ("-p lab", False, []), ("-p lab", True, [50]),
        ("-p root.lab -t PD", True, [50]), ("-A lab -u bob", True, [50]), ("-w other", True, []),
        ("-q normal -t PD", True, [50, *WAITING]), ("-p lab 42 50", False, [50]),
    ],
)  # fmt: skip
def test_scancel_cancels_what_squeue_shows_in_a_partition(drf, queue, words, is_admin, meant):
    queue.replies |= {
        "hello": {"user": "alice", "admin": is_admin}, "cancel": {"done": [1], "failed": []},
    }  # fmt: skip
    assert drf("scancel", *words.split()).code == 0
    asked = [each["select"] for each in queue.requests if each["op"] == "cancel"]
    assert asked == [{"ids": meant}] * bool(meant)
    assert "there is no partition odd" in drf("scancel", "-p", "odd").err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("-t PENDING", [50, *WAITING]), ("-u bob", [50]), ("-t R -n train", [42]), ("-n other", []),
    ],
)  # fmt: skip
def test_scancel_spares_of_named_jobs_those_that_are_not_meant(drf, queue, words, meant):
    """As the daemon takes ids or filters, both together would cancel every job that is named."""
    told = "" if meant else "drf: scancel: there is no such job\n"
    assert drf("scancel", *words.split(), "42", "50", "51") == Result(0, "", told)
    asked = [each["select"] for each in queue.requests if each["op"] == "cancel"]
    assert asked == [{"ids": meant}] * bool(meant)
    assert drf("scancel", "-Q", *words.split(), "42", "50", "51").err == ""


@pytest.mark.parametrize(
    ("words", "cancelled", "told"),
    [
        (["-u", "bob"], [], "job 50 (bob)"),
        (["-n", "train"], [42], "job 50 (bob)"),
        (["-n", "train", "-u", "alice"], [42], None),
        (["-n", "train", "-Q"], [], None),
    ],
)
def test_scancel_names_the_jobs_that_are_not_the_callers(drf, queue, words, cancelled, told):
    queue.replies["cancel"] = {"done": cancelled, "failed": []}
    result = drf("scancel", *words)
    assert result.code == (0 if cancelled else 1)
    assert result.err == ("" if told is None else f"drf: scancel: not yours to cancel: {told}\n")
    queue.replies["hello"] = {"user": "alice", "admin": True}
    assert drf("scancel", *words).err == ""


def test_scancel_asks_for_each_job(queue, spawn, finish, tmp_path):
    queue.replies["cancel"] = {"done": [50], "failed": []}
    answers = tmp_path / "answers"
    answers.write_text("n\ny\ny\nn\n")
    with answers.open() as typed:
        result = finish(spawn("scancel", "-i", "-t", "R,PD", stdin=typed))
    assert (result.code, result.out) == (0, "")
    questions = re.findall(r"Cancel job_id=(\S+) name=(\S+) partition=(\S+)", result.err)
    assert questions == [
        ("42", "train", "main"), ("50", "train", "lab"), ("51_[2-9%1]", "train", "main"),
        ("51_1", "a?b", "main"),
    ]  # fmt: skip
    request = next(each for each in queue.requests if each["op"] == "cancel")
    assert request["select"] == {"ids": [50, *WAITING]}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["-p", "short"], 1),
        (["-p", "short", "7"], 1),
        (["--qos=x", "7"], 0),
        (["-t", "odd"], 2),
    ],
)
def test_scancel_cancels_nothing_by_mistake(drf, daemon, words, code):
    result = drf("scancel", *words)
    assert result.code == code and result.err.count("\n") == 1
    assert not [each for each in daemon.requests if each["op"] == "cancel"]


# -- sinfo -------------------------------------------------------------------------------------


def test_sinfo_shows_one_machine(drf, lines, queue):
    queue.replies["shares"] = SHARES
    assert lines("sinfo") == [
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
        f"main*        up   infinite      1    mix {HOST}",
        f"lab          up   infinite      1    mix {HOST}",
        f"night        up   infinite      1    mix {HOST}",
    ]
    assert lines("sinfo -h -o %C:%G:%m:%T") == ["6/2/0/8:gpu:2:8192:mixed"]
    assert lines("sinfo -h -p lab,none -o %P") == ["lab"]
    assert lines(f"sinfo -h -t mixed,down -n {HOST} -o %R") == ["main", "lab", "night"]
    for words in ("-t idle", "-n other", "-R"):
        assert lines(f"sinfo -h {words}") == [], words
    result = drf("sinfo", "-h", "-o", "%t|%q|%c")
    told = "drf: no field of Slurm's, so without a value: %q\n"
    assert (result.out, result.err) == ("mix|%q|8\n", told)
    # Of GPUs that jobs share the capacity is their memory.
    shared = {**SHARES["capacity"], "gres": {"memory:gpu": 48 << 30}}
    queue.replies["shares"] = {**SHARES, "capacity": shared}
    queue.replies["doctor"] = {"gres": {"gpu": ["0", "1"]}}
    assert lines("sinfo -h -o %G") == ["gpu:2"]


def test_cores_that_others_use_are_not_idle_and_a_node_that_drains_says_why(lines, queue):
    idle = {"capacity": AMOUNTS, "free": AMOUNTS, "nodes": []}
    external = {"cores": 9.0, "memory": 0, "kept": {"cores": 1.0, "memory": 0}}
    queue.replies["shares"] = {**idle, "external": external}
    assert lines("sinfo -h -o %t:%C") == ["alloc:0/0/8/8"]
    queue.replies["shares"] = idle
    drain = {"by": "root", "since": 0.0, "reason": "new disks"}
    queue.replies["status"] |= {"draining": True, "drain": drain}
    assert lines("sinfo -h -o %t:%E:%F:%C") == ["drain:new disks:0/0/1/1:0/0/8/8"]
    assert lines("sinfo -R -h")[0].split() == ["new", "disks", "root", fields.moment(0.0), HOST]
    assert lines("sinfo -h -t drain -o %D") == ["1"]


def test_a_job_for_the_whole_machine_says_what_keeps_it_waiting(drf, daemon):
    kept = {"cores": 1.973, "memory": 0}
    daemon.replies["nodes"] = {"nodes": []}
    daemon.replies["shares"] = {**SHARES, "external": {"cores": 2.0, "memory": 0, "kept": kept}}
    told = drf("sbatch", "--exclusive", "--wrap", "true").err
    assert told == (
        "drf: it asks for the whole machine, of which processes outside drfd hold 1.973 cores now: "
        "it waits until they use none\n"
    )
    assert drf("sbatch", "--mem=0", "--wrap", "true").err == "", "it asks for no cores of theirs"


# -- scontrol ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["a,b", "c"], ["a", "b", "c"]),
        (
            ["n[08-10,3]x[1-2],b"],
            [*(f"n{at}x{of}" for at in ("08", "09", "10", "3") for of in (1, 2)), "b"],
        ),
        ([], ["here"]),
    ],
)
def test_hostnames_are_those_of_the_list_or_of_the_job(drf, daemon, monkeypatch, words, names):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "here")
    for spelling in ("hostnames", "hostname"):
        result = drf("scontrol", "show", spelling, *words)
        assert (result.code, result.out.splitlines(), result.err) == (0, names, "")
    assert daemon.requests == [], "scripts ask for it without any daemon"
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    assert words or drf("scontrol", "show", "hostnames").out == f"{HOST}\n", "this machine"


def test_a_job_is_shown_in_slurms_words(drf, daemon, job):
    Path("train.sh").touch()
    shown = job(
        cwd=os.getcwd(), argv=["train.sh", "a b"], stdout="/data/o", stderr="/data/e", retry=None,
        after=[{"id": 41, "label": "41", "want": "ok"}],
    )  # fmt: skip
    daemon.replies["show"] = {"job": shown, "events": []}
    out = drf("scontrol", "show", "job", "42").out
    first, *rest, last = out.splitlines()
    assert (first, last) == ("JobId=42 JobName=train", "")
    assert all(line.startswith("   ") for line in rest)
    found = dict(word.split("=", 1) for word in out.split() if "=" in word)
    assert found.items() >= {
        "JobState": "RUNNING", "Dependency": "afterok:41(unfulfilled)", "TimeLimit": "01:00:00",
        "NumCPUs": "8",
        "Command": os.path.abspath("train.sh"), "WorkDir": os.getcwd(), "StdOut": "/data/o",
        "NodeList": HOST,
    }.items()  # fmt: skip
    for words in (("-o", "show", "job", "42"), ("show", "jobid=42", "-o")):
        one = drf("scontrol", *words).out
        assert one.count("\n") == 1
        # A second may have begun meanwhile.
        assert re.sub(r"RunTime=\S+", "", one).split() == re.sub(r"RunTime=\S+", "", out).split()
    daemon.replies["show"] = refusal(code="no-such-job", text="there is no job 8")
    result = drf("scontrol", "show", "job", "8")
    assert (result.code, result.out) == (1, "") and "there is no job 8" in result.err


def test_the_queue_is_shown_without_an_id(lines, daemon, job):
    assert lines("scontrol show jobs") == ["No jobs in the system"]
    daemon.replies["status"]["jobs"] = [job(), job(id=52, array_id=51, array_index=0)]
    shown = [line.split(" JobName")[0] for line in lines("scontrol -o show job")]
    assert shown == ["JobId=42", "JobId=52 ArrayJobId=51 ArrayTaskId=0"]


def test_the_machine_is_a_node(drf, daemon):
    daemon.replies["shares"] = SHARES
    out = drf("scontrol", "show", "node", HOST).out
    assert out.splitlines()[0] == f"NodeName={HOST} CPUAlloc=6 CPUTot=8"
    assert "RealMemory=8192 AllocMem=5120 FreeMem=3072" in out and "State=MIXED" in out
    assert drf("scontrol", "show", "nodes", "-o").out.split() == out.split()
    no_node = f"drf: there is no node other; this is {HOST}\n"
    assert drf("scontrol", "show", "node", "other") == Result(1, "", no_node)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["hold", "42,43"], {"op": "hold", "ids": [42, 43]}),
        (["uhold", "42"], {"op": "hold", "ids": [42]}),
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
        (["update", "jobid=42", "Comment=a b"], {"op": "set", "ids": [42], "comment": "a b"}),
        (["update", "jobid=42", "Comment="], {"op": "set", "ids": [42], "comment": ""}),
        (["update", "jobid=42", "priority=0"], {"op": "hold", "ids": [42]}),
    ],
)  # fmt: skip
def test_scontrol_asks_for_what_slurm_would_change(drf, daemon, job, words, asked):
    daemon.replies |= {"shares": SHARES, "show": {"job": job(), "events": []}}
    assert drf("scontrol", *words) == Result(0, "", "")
    [request] = [each for each in daemon.requests if each["op"] != "show"]
    select = request.pop("select", None)
    assert request | ({} if select is None else {"ids": select["ids"]}) == asked
    failed = [{"id": 9, "error": {"code": "no-such-job", "text": "there is no live job 9"}}]
    daemon.replies["hold"] = {"done": [], "failed": failed}
    told = "drf: scontrol: there is no live job 9\n"
    assert drf("scontrol", "hold", "9") == Result(1, "", told)


@pytest.mark.parametrize(
    ("by", "limit_s"), [("+30", 5400), ("-10", 3000), ("+1:00:00", 7200), ("-1", 0)]
)
def test_a_time_limit_is_changed_by_minutes(drf, daemon, job, by, limit_s):
    daemon.replies["status"]["jobs"] = [job(time_limit_s=3600, state="PENDING")]
    assert drf("scontrol", "update", "JobId=42", f"TimeLimit={by}") == Result(0, "", "")
    (request,) = daemon.asked("set")
    assert request["time_limit_s"] == limit_s


def test_a_script_is_written_as_it_was_submitted(drf, daemon):
    script = "#!/bin/sh\necho \u00fc\n"
    daemon.replies["submission"] = {"submission": {"script": script}, "label": "42", "live": True}
    assert drf("scontrol", "write", "batch_script", "42", "-").out == script
    told = "batch script for job 42 written to slurm-42.sh\n"
    assert drf("scontrol", "write", "batch_script", "42") == Result(0, told, "")
    assert Path("slurm-42.sh").read_text() == script
    daemon.replies["submission"] = {"submission": {}, "label": "42", "live": True}
    assert drf("scontrol", "write", "batch_script", "42").err == "drf: job 42 has no script\n"


def test_a_job_is_requeued_under_its_id_and_an_ended_one_is_not(drf, daemon):
    assert drf("scontrol", "requeue", "42,43_1") == Result(0, "", "")
    assert drf("scontrol", "requeuehold", "Incomplete", "jobid=42") == Result(0, "", "")
    asked = [each for each in daemon.requests if each["op"] == "requeue"]
    assert [each["select"]["ids"] for each in asked] == [[42, "43_1"], [42]]
    assert [each.get("held", False) for each in asked] == [False, True]
    ended = {"code": "ended", "text": "job 9 has already ended: FAILED"}
    daemon.replies["requeue"] = {"done": [], "failed": [{"id": 9, "error": ended}]}
    way = "(drf retry 9 submits it again, as a new job)"
    said = f"drf: scontrol: job 9 has already ended: FAILED {way}\n"
    assert drf("scontrol", "requeue", "9") == Result(1, "", said)
    assert drf("scontrol", "ping").out == f"Slurmctld(primary) at {HOST} is UP\n"


# -- what they do not know, and their help -----------------------------------------------------

NO_TIME = "is not a time of Slurm (write 90 (minutes) or 1-12:00:00)"


@pytest.mark.parametrize(
    ("code", "words", "complaint"),
    [
        (1, "sbatch -N 2 x.sh", "drf: sbatch: --nodes=2: asks for several machines"),
        (1, "sbatch --bogus x.sh", "drf: sbatch: --bogus: is no option of sbatch"),
        (1, "sbatch none.sh", "drf: cannot read the script none.sh: No such file or directory"),
        (1, "sbatch --signal=ODD@3 --wrap true", "drf: sbatch: --signal: 'ODD' is not a signal"),
        (2, "sbatch --wrap echo a", "drf sbatch: --wrap takes one line, in quotes: --wrap 'echo a"),
        (2, "srun", "drf srun: there is no command"),
        (1, "squeue -p nosuch", "drf: there is no partition nosuch (sinfo lists them)"),
        *((1, f"{name} -u nobody-else", "drf: there is no user nobody-else")
          for name in ("squeue", "sacct", "scancel")),
        (1, "squeue --bogus", "drf: squeue: --bogus: is no option of squeue"),
        (1, "squeue -y", "drf: squeue: -y: is no option of squeue"),
        (2, "squeue -t odd", "drf squeue: there is no state odd; there are: BOOT_FAIL (BF), CANC"),
        (2, "squeue -S ^", "drf squeue: there is no field ^ to sort by; there are: "),
        (2, "squeue -i often", "drf squeue: 'often' is not a number of seconds"),
        (2, "sacct -o JobID%x", "drf sacct: JobID%x is not a field and its width"),
        (2, "sacct --units=Q", "drf sacct: --units=Q: there are K, M, G, T and P"),
        (2, "scontrol", "drf scontrol: there is no command; scontrol --help lists them"),
        (2, "scontrol wait_job 7",
         "drf scontrol: there is no wait_job here (that is: drf wait ID)"),
        (2, "scontrol bogus", "drf scontrol: there is no bogus here (scontrol --help lists what "),
        (2, "scontrol show odd", "drf scontrol: there is no show odd here; there are: config "),
        (2, "sacct -o odd", "drf sacct: there is no field odd; there are: Account, AdminComment, "),
        (2, "sinfo -t odd", "drf sinfo: there is no state odd; there are: alloc, allocated, "),
        (2, "sacctmgr show odd", "drf sacctmgr: there is no show odd; there are: account, associa"),
        (2, "sacctmgr show user format=odd", "drf sacctmgr: there is no field odd; there are: Acc"),
        (2, "sacctmgr -i add user bob", "drf sacctmgr: add changes nothing here: pools, weights a"),
        (2, "sstat", "drf sstat: no job is named: sstat -j ID"),
        (2, "scontrol hold", "drf scontrol: no job is named: scontrol hold ID"),
        (2, "scontrol update TimeLimit=5",
         "drf scontrol: what is to change is not named: JobId=42"),
        (2, "scontrol hold train",
         "drf scontrol: train is no job id (scontrol hold jobname=train)"),
        (2, "scontrol update JobId=7 ArrayTaskThrottle=5", "drf scontrol: ArrayTaskThrottle=5: drf "
         "set --group NAME%5 7 lets so many of its tasks run at once"),
        (2, "scontrol update JobId=7 WorkDir=/x", "drf scontrol: workdir cannot "
         "be changed here; what can: TimeLimit JobName Partition Priority Nice NumCPUs "
         "MinMemoryNode Gres Dependency StartTime Comment"),
        (2, "scontrol write x", "drf scontrol: what can be written is: batch_script ID [FILE]"),
        (2, "scontrol update JobId=7",
         "drf scontrol: say what to change, such as TimeLimit=2:00:00"),
        (1, "scontrol update JobId=7 TimeLimit=soon", f"drf: scontrol: --time=soon: {NO_TIME}"),
        (2, "scontrol update NodeName=x State=DOWN", "drf scontrol: no node is changed here (that "
         "is: drf drain, or drf undrain)"),
        (1, "scontrol show hostnames node[1-x]",
         "drf: node[1-x]: 1-x is not a range, such as 1-4"),
    ],
)  # fmt: skip
def test_what_they_do_not_know_is_said_in_a_line(drf, queue, code, words, complaint):
    Path("x.sh").write_text("#!/bin/sh\n")
    queue.replies["shares"] |= {"capacity": AMOUNTS, "free": AMOUNTS}
    result = drf(*words.split())
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
    assert result.err.startswith(complaint)
    changed = {"submit", "set", "hold", "cancel", "drain"} & {each["op"] for each in queue.requests}
    assert changed == set()


@pytest.mark.parametrize("name", SLURM_NAMES)
def test_each_tells_its_options(drf, daemon, name):
    result = drf(name, "--help")
    assert (result.code, result.err, daemon.requests) == (0, "", [])
    assert result.out.startswith(f"Usage: {name} ")
    assert all(len(line) <= 100 for line in result.out.splitlines())
    assert drf(name, "--version").out.startswith("slurm 24.05")
    if name not in ("squeue", "sinfo", "sprio", "sshare"):
        assert drf(name, "-h").out == result.out
    # A wrapped line may end within a list, but not within an option.
    told = set(re.findall(r"--([A-Za-z0-9-]+)", result.out.partition("\n\n")[2]))
    assert told == getattr(grammar, name.upper()).kinds.keys()


# -- srun --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_srun_starts_the_tasks_of_a_step(spawn, finish, tmp_path):
    env = {"DRF_JOB_ID": "7", "SLURM_NTASKS": "2", "XDG_STATE_HOME": str(tmp_path)}
    say = ("sh", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS; exit $SLURM_PROCID")
    result = finish(spawn("srun", *say, env=env))
    assert (result.code, sorted(result.out.splitlines())) == (1, ["0 of 2", "1 of 2"])
    result = finish(spawn("srun", "-n", "3", "-l", *say, env=env))
    assert sorted(result.out.splitlines()) == ["0: 0 of 3", "1: 1 of 3", "2: 2 of 3"]
    assert result.code == 2
    result = finish(spawn("srun", "-n1", "-c", "4", "sh", "-c", "echo $OMP_NUM_THREADS", env=env))
    assert (result.code, result.out) == (0, "4\n")
    Path("ranks").write_bytes(b"\x7fELF\0libmpi.so.40\0")
    env |= {"PATH": str(Path.cwd())}
    no_mpi = "srun: ./ranks uses MPI, and there is no mpirun in the PATH"
    told = f"drf: {no_mpi} (--mpi=none starts its tasks one by one)\n"
    assert finish(spawn("srun", "./ranks", env=env)) == Result(1, "", told)
    mpirun = Path("mpirun")
    mpirun.write_text("#!/bin/sh\necho run $* in $OMPI_MCA_orte_set_default_slots\n")
    mpirun.chmod(0o755)
    for words in (["./ranks", "x"], ["-l", "./ranks", "x"], ["--mpi=pmix", "./ranks", "x"]):
        result = finish(spawn("srun", *words, env=env))
        assert result.out.removeprefix("0: ") == "run -n 2 ./ranks x in 2\n"


@pytest.fixture
def program(tmp_path) -> str:
    path = tmp_path / "drf"
    path.write_text(f"#!{sys.executable} -P\n{LIGHT_DRF}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def found(program, monkeypatch) -> str:
    """The program that the job is to find as drf."""
    monkeypatch.setattr(slurm_names, "drf_path", lambda: program)
    return program


@pytest.mark.parametrize(
    ("words", "step", "demand"),
    [
        (["-n", "3"], ["-n", "3"], {"cores_milli": 3000}),
        (["-n2", "-c", "2", "-l"], ["-n", "2", "--cpus-per-task=2", "-l"], {"cores_milli": 4000}),
        (["--ntasks-per-node=2"], ["-n", "2"], {"cores_milli": 2000}),
    ],
)
def test_srun_outside_a_job_starts_as_many_tasks_within_one(
    drf, daemon, found, words, step, demand
):
    daemon.replies["submit"] = refusal(text="enough")
    drf("srun", *words, "sh", "-c", "echo $SLURM_PROCID")
    request = daemon.asked("submit")[0]
    assert request["argv"] == [found, "srun", *step, "--", "sh", "-c", "echo $SLURM_PROCID"]
    assert (request["name"], request["demand"]) == ("sh", demand)


def test_srun_outside_a_job_honours_what_sbatch_does(drf, daemon, found, tmp_path):
    daemon.replies |= {"submit": refusal(text="enough"), "nodes": {"nodes": []}}
    drf("srun", "-D", str(tmp_path), "hostname")
    assert daemon.asked("submit")[0]["cwd"] == str(tmp_path)
    assert drf("srun", "-D", "/nowhere", "hostname").err == (
        "drf: srun: --chdir=/nowhere: there is no such directory (srun --chdir=DIR COMMAND runs it"
        " elsewhere)\n"
    )
    assert drf("srun", "-w", "n1", "hostname").err.startswith(
        "drf: without effect here: --nodelist=n1\n"
    )


def test_srun_goes_into_the_job_that_is_named(drf, daemon, found, job, monkeypatch):
    daemon.replies |= {"show": {"job": job()}, "exec": {}}
    run: list[list[str]] = []

    def execute(file: str, argv: list[str], env: object) -> None:
        run.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr("drfd_cli.commands.exec._first_process", lambda *job: os.getpid())
    monkeypatch.setattr("drfd_cli.commands.exec._become_like", lambda pid: {})
    monkeypatch.setattr(os, "execvpe", execute)
    step = [found, "srun", "-n", "2", "--", "hostname"]
    for words, command in (([], ["hostname"]), (["-n", "2"], step)):
        drf("srun", "--jobid=42", "--overlap", *words, "hostname")
        assert run.pop() == command
    assert [each["id"] for each in daemon.asked("exec")] == [42, 42]
    assert not [each for each in daemon.requests if each["op"] == "submit"]


# -- the names ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_names_lead_to_drf(drf, queue, program, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert drf("slurm-names", "bin").code == 0
    done = subprocess.run(
        ["bin/squeue", "-h", "-o", "%i"], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["42", "50", "51_[2-9%1]", "51_1"], "")


def test_names_are_made_and_a_real_sbatch_is_not_touched(drf, program, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(2):
        assert drf("slurm-names", "bin").code == 0
    assert {each.name for each in Path("bin").iterdir()} == set(SLURM_NAMES)
    (tmp_path / "squeue").write_text("real")
    result = drf("slurm-names", tmp_path)
    assert result.code == 1
    assert "squeue is there already" in result.err
    assert not (tmp_path / "sbatch").is_symlink()
