"""Traces: what they are recognised as, what a line means, and which lines are no jobs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from drfd.common.errors import Refused
from drfd.core.amounts.resources import Resources
from drfd.sim.recorded_workloads import read_lines, read_trace
from drfd.sim.workload import BadLine, SimJob, Workload

OWN = "name,user,group,submit_s,run_s,limit_s,cores,memory,read,write\n"
MIB = 1 << 20


def read(text: str, rates: tuple[int, int] = (0, 0)) -> Workload:
    return read_lines(text.splitlines(keepends=True), source="here", rates=rates)


def only(text: str, rates: tuple[int, int] = (0, 0)) -> SimJob:
    (job,) = read(text, rates).jobs
    return job


def asked(cores: float, memory: int, read: int = 0, write: int = 0) -> Resources:
    return Resources(
        cores_milli=round(cores * 1000), memory_bytes=memory, read_bps=read, write_bps=write
    )


# -- the forms ----------------------------------------------------------------------------------


def test_what_a_table_leaves_out_is_nothing() -> None:
    job = only("cores,memory,user,run_s,submit_s\n2,1048576,ann,1.5,0\n")
    assert (job.demand, job.limit_s, job.group, job.run_s) == (asked(2, MIB), None, None, 1.5)


def test_an_unknown_column_of_our_own_table_is_a_slip() -> None:
    with pytest.raises(Refused, match="unknown column 'reed'"):
        read(OWN.replace("read", "reed") + "a,ann,lab,3,10,60,0.5,16G,0,0\n")


def test_a_log_in_the_standard_format_has_memory_for_each_processor() -> None:
    job = only("; Computer: here\n\n 7 10 5 100 4 -1 -1 8 3600 2048 1 3 2 -1 -1 -1 -1 -1\n")
    assert job == SimJob(
        id=1, name="7", submit_s=10, run_s=100, demand=asked(8, 8 * 2 * MIB), limit_s=3600,
        user="u3", group="g2",
    )  # fmt: skip


def test_a_log_in_the_standard_format_has_processor_time_for_each_processor() -> None:
    job = only("7 10 5 100 4 60 -1 8 3600 2048 1 3 2 -1 -1 -1 -1 -1\n")
    assert job.cpu_s == 480


def test_where_nothing_was_requested_what_was_used_counts_and_is_said() -> None:
    work = read("7 10 5 100 4 -1 1024 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n")
    assert work.kind == "Standard Workload Format"
    assert work.jobs[0].demand == asked(4, 4 * MIB)
    assert (work.jobs[0].limit_s, work.jobs[0].user, work.jobs[0].group) == (None, "unknown", None)
    assert work.notes == ("1 jobs ask for the memory that they used: no other is recorded",)


def test_jobs_without_any_memory_are_counted() -> None:
    work = read("7 10 5 100 4 -1 -1 -1 -1 -1 1 3 2 -1 -1 -1 -1 -1\n" * 2)
    assert work.notes == ("2 jobs say nothing of memory, and ask for none here",)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("7 10 5 -1 4 -1 -1 8 -1 -1 5 3 2 -1 -1 -1 -1 -1", "it was cancelled before it started"),
        ("7 10 5 -1 4 -1 -1 8 -1 -1 1 3 2 -1 -1 -1 -1 -1", "the run time is negative"),
        ("7 10 5 9 -1 -1 -1 -1 -1 -1 1 3 2 -1 -1 -1 -1 -1", "processors is negative"),
        ("7 10 5 9 0 -1 -1 0 -1 -1 1 3 2 -1 -1 -1 -1 -1", "it has no processors"),
        ("7 10 5 9 4", "it has 5 fields, not 18"),
        ("7 x 5 9 4 -1 -1 8 -1 -1 1 3 2 -1 -1 -1 -1 -1", "the submission is no number"),
        ("7 1e99 5 9 4 -1 -1 8 -1 -1 1 3 2 -1 -1 -1 -1 -1", "the submission is out of all bounds"),
        ("7 nan 5 9 4 -1 -1 8 -1 -1 1 3 2 -1 -1 -1 -1 -1", "the submission is out of all bounds"),
    ],
)
def test_a_line_of_a_log_that_is_no_job_says_why(line: str, why: str) -> None:
    good = "1 0 0 1 1 -1 -1 1 -1 1024 1 1 1 -1 -1 -1 -1 -1"
    work = read(f"; a log\n{good}\n{line}\n")
    assert ([job.name for job in work.jobs], work.bad) == (["1"], (BadLine(number=3, why=why),))


def test_a_cluster_log_is_recognised_by_its_header() -> None:
    cerit = read(
        "job,submit_s,run_s,cores,mem_mb,limit_s,user,group,queue,nodes,exclusive,wait_s\n"
        "0,5,56011,64,65536.0,86400,u62,g1,q_1d,1,1,0\n"
        "1,9,-1359980917,1,400.0,0,u1229,g1,q_4d,1,0,1\n"
    )
    assert (cerit.kind, cerit.bad) == ("CERIT-SC", (BadLine(number=3, why="run_s is negative"),))
    assert cerit.jobs[0].demand == asked(64, 64 << 30)
    assert (cerit.jobs[0].group, cerit.jobs[0].limit_s) == ("q_1d", 86400)
    ricc = read("job,submit_s,run_s,cores,mem_mb,limit_s,user,group,wait_s,status\n"
                "1,0,222,80,93750.0,0,u1,g1,0,1\n")  # fmt: skip
    assert (ricc.kind, ricc.jobs[0].group, ricc.jobs[0].limit_s) == ("RICC", "g1", None)


def test_pods_have_gpus_and_those_that_never_started_are_named() -> None:
    work = read(
        "pod,creation_s,scheduled_s,deletion_s,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,phase\n"
        "0000,10,20,50,12000,16384,2,1000,LS,Running\n"
        "0001,11,,60,6000,12288,1,460,BE,Pending\n"
        "0002,12,50,40,6000,12288,1,460,BE,Pending\n"
    )
    (job,) = work.jobs
    assert (job.submit_s, job.run_s, job.user) == (10, 30, "LS")
    assert job.demand == Resources(cores_milli=12000, memory_bytes=16 << 30, gres=(("gpu", 2),))
    assert [each.why for each in work.bad] == ["it never started", "it ended before it started"]


SWIM = "job,submit_s,input_bytes,shuffle_bytes,output_bytes\n"


def test_a_job_known_by_its_bytes_runs_as_long_as_they_take() -> None:
    """128M of input are two tasks, 100 MB/s together, for 300 MB read and 100 MB written."""
    job = only(f"{SWIM}a,1,{128 << 20},{300_000_000 - (128 << 20)},0\n", (10**10, 10**10))
    written = 300_000_000 - (128 << 20)
    run_s = 5
    assert (300_000_000 + written) / 100_000_000 == pytest.approx(run_s, abs=0.5)
    assert job.run_s == run_s
    assert (job.demand.read_bps, job.demand.write_bps) == (60_000_000, -(-written // run_s))


def test_such_a_job_is_never_faster_than_the_machine() -> None:
    job = only(f"{SWIM}a,1,{10**12},0,0\n", (10**9, 10**9))
    assert (job.run_s, job.demand.read_bps) == (1000, 10**9)


HISTORY = (
    "id,name,user,pool,state,exit_code,signal,attempt,submitted_at,started_at,ended_at,"
    "time_limit_s,declared_cores,declared_memory,declared_read,declared_write,suspended_seconds\n"
)


def test_what_history_prints_is_a_trace() -> None:
    work = read(
        HISTORY + "4,a,ann,root.lab,COMPLETED,0,,1,100.5,110,150,3600,2.5,1048576,5,6,10\n"
        "5,b,bob,root.bob,CANCELLED,,,0,101,,120,,1,1048576,0,0,\n"
    )
    assert work.jobs == [
        SimJob(
            id=1, name="4", submit_s=100.5, run_s=30, demand=asked(2.5, MIB, 5, 6), limit_s=3600,
            user="ann", group="lab",
        )
    ]  # fmt: skip
    assert work.bad == (BadLine(number=3, why="it never started"),)


# -- any file -----------------------------------------------------------------------------------


def test_what_history_prints_tells_what_jobs_used_and_could_use() -> None:
    header, line = (
        HISTORY.rstrip("\n") + ",cpu_seconds,declared_cores_max\n",
        "4,a,ann,root.lab,COMPLETED,0,,1,100.5,110,150,3600,2.5,1048576,5,6,10,33.25,8\n",
    )
    job = only(header + line)
    assert (job.cpu_s, job.most_cores_milli) == (33.25, 8000)


def test_every_line_that_is_no_job_is_named_and_none_of_the_others_lost() -> None:
    lines = (
        "a,ann,,1,1,,1,1M,0,0\n", "too,short\n", "\n", 'q,"ann,,1,1,,1,1M,0,0\n',
        "b,,,1,1,,1,1M,0,0\n", "c,ann,,-1,1,,1,1M,0,0\n", "d,ann,,1,inf,,1,1M,0,0\n",
        "e,ann,,1,1,,many,1M,0,0\n", "f,ann,,1,1,,1,1 litre,0,0\n", "g,ann,,2,1,,1,1M,0,0\n",
    )  # fmt: skip
    work = read(OWN + "".join(lines))
    assert [job.name for job in work.jobs] == ["a", "g"]
    assert [(each.number, each.why) for each in work.bad] == [
        (3, "it has 2 fields, not 10"),
        (5, "its quotes do not match"),
        (6, "user is missing"),
        (7, "submit_s is negative"),
        (8, "run_s is out of all bounds"),
        (9, "cores is no number"),
        (10, "memory: '1 litre' is not a size"),
    ]


def test_a_gzip_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    text = OWN + "a,ann,,1,1,,1,1M,0,0\n"
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_text("\ufeff" + text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_trace(plain).jobs == read_trace(packed).jobs == read(text).jobs
    assert read_trace(plain).source == str(plain)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: this is the header of no trace that is known"),
        (b"a,b,c\n1,2,3\n", "line 1: this is the header of no trace that is known"),
        (b"user,user\n", "line 1: there are two columns 'user'"),
        (OWN.encode(), "there is no job in it"),
        (OWN.encode() + b"x\n", "there is no job in it: line 2: it has 1 fields, not 10"),
        (b"\xff\xfe\xff", "is not UTF-8 text"),
        (gzip.compress(OWN.encode() * 99)[:-20], "the gzip file is damaged or cut short"),
        (gzip.compress(OWN.encode())[:4] + b"zzzzzzzzzzzz", "the gzip file is damaged"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_name(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(Refused) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(f"{path}: {said}")


def test_a_file_that_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="none: cannot be read: No such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(Refused, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
