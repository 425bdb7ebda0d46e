"""Simulations of one machine: what they read, how they run, and what they are judged by.

Recorded workloads are read where DRFD_TRACES names the folder of the traces; that takes minutes.
"""

import gzip
import os
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.traces import MACHINES, RESULTS, blocks, run
from drfd.common.errors import ConfigError, Refused
from drfd.core.fairness.rules import Pool, ReservationSettings, Rules
from drfd.core.model.resources import Resources
from drfd.core.scheduling.policies import POLICIES
from drfd.sim import machine
from drfd.sim.audit import ALL, MOST_LIARS, SPLIT, Alone, Lie, audit
from drfd.sim.driver import ESTIMATES, FinishedJob, Run, simulate
from drfd.sim.machine import configured, of_groups, rules_of, weighted
from drfd.sim.metrics import measure, over_time
from drfd.sim.synthetic_workloads import (
    Recipe,
    csv_lines,
    generate,
    parse_mix,
    read_profiles,
    with_disk_rates,
)
from drfd.sim.workload import (
    BadLine,
    SimJob,
    Workload,
    of_history,
    read_lines,
    read_trace,
    with_weights,
)
from fakes import replace
from seeds import seeds

FOLDER = os.environ.get("DRFD_TRACES")
GB = 1 << 30
NODE = Resources(cores_milli=64_000, memory_bytes=256 * GB)
#: The same with a disk.
DISK_NODE = replace(NODE, read_bps=2 * GB, write_bps=GB)


def job(
    id: int = 1,
    submit_s: float = 0,
    run_s: float = 60,
    cores: float = 1,
    user: str = "ann",
    memory: int = 1,
    **others: Any,
) -> SimJob:
    """`memory` in GiB; `others` replace fields."""
    plain = SimJob(
        id=id, name=f"j{id}", submit_s=submit_s, run_s=run_s, limit_s=None, user=user,
        demand=Resources(cores_milli=round(cores * 1000), memory_bytes=memory * GB),
    )  # fmt: skip
    return replace(plain, **others)


def small(cores: float = 4, memory: int = 64, **others: Any) -> Rules:
    """A small machine; `memory` in GiB."""
    capacity = Resources(cores_milli=round(cores * 1000), memory_bytes=memory * GB)
    return Rules(capacity=capacity, **others)


# -- the machine -----------------------------------------------------------------------------------


def test_a_capacity_is_written_as_amounts_are_everywhere():
    assert machine.parse_capacity("cores=0.5, memory=6T,gpu=4,read=2G,write=1G") == Resources(
        cores_milli=500, memory_bytes=6 << 40, read_bps=2 * GB, write_bps=GB, gres=(("gpu", 4),)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not NAME=AMOUNT"),
        ("cores", "'cores' is not NAME=AMOUNT"),
        ("cores=4,cores=5", "cores is given twice"),
        ("cores=many", "cores: 'many' is not a number"),
        ("memory=lots", "memory: 'lots' is not a size"),
        ("gpu=0.5", "gpu: '0.5' is not a count"),
        ("gpu=0", "gpu: '0' is not a count"),
        ("g p=1", "'g p=1' is not NAME=AMOUNT"),
    ],
)
def test_what_is_no_capacity_is_refused(text, said):
    with pytest.raises(Refused) as refusal:
        machine.parse_capacity(text)
    assert f"capacity: {said}" in str(refusal.value)


def test_a_kind_of_thing_that_the_machine_lacks_is_a_word_forgotten():
    jobs = [job(1), job(2, submit_s=60, demand=replace(job().demand, gres=(("gpu", 2),)))]
    machine.check(jobs, replace(DISK_NODE, gres=(("gpu", 1),)))
    with pytest.raises(Refused, match="jobs of this trace ask for gpu, up to 2 each") as refusal:
        machine.check(jobs, DISK_NODE)
    assert refusal.value.hint == "add gpu=… to --capacity; on average 1 is in use"


def test_the_capacity_that_is_suggested_holds_the_largest_job_and_what_is_held():
    jobs = [job(at, submit_s=at * 10, run_s=120) for at in range(1, 100)]
    text = machine.suggestion(jobs)
    assert text == "cores=15,memory=15G"
    machine.check(jobs, machine.parse_capacity(text))
    large = [job(1, demand=Resources(cores_milli=123_000, memory_bytes=GB // 3))]
    assert machine.suggestion(large) == "cores=170,memory=460M"


# -- pools -----------------------------------------------------------------------------------------

TOML = """
[capacity]
cores = 4
[pools.lab]
weight = 3
users = ["ann"]
limit = {gpu = 1}
[users.bob]
weight = 0.5
[scheduling]
policy = "fifo"
reservation_delay = "10m"
respect_external_load = false
"""


def test_pools_are_read_from_a_daemons_configuration(tmp_path):
    path = tmp_path / "drfd.toml"
    path.write_text(TOML)
    rules = configured(rules_of(replace(DISK_NODE, gres=(("gpu", 1),))), path)
    assert (rules.pools["lab"].weight, rules.pools["lab"].limit) == (3, {"gpu": 1})
    assert rules.members["", "bob"].weight == Fraction(1, 2)
    assert (rules.reserving.delay_s, rules.reserving.drain_after_s) == (600, 2400 + 86400)
    assert (rules.policy, rules.pool_for("ann", None)) == ("drf", "root.lab")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[pools.lab]\nwieght = 2\n", "pools.lab.wieght: unknown key (did you mean weight?)"),
        ("[scheduling]\npatiense = 1\n", "scheduling.patiense: unknown key"),
        ("[pools", "is not TOML"),
    ],
)
def test_a_bad_file_of_pools_is_refused_with_its_place(tmp_path, text, said):
    path = tmp_path / "pools.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        configured(rules_of(DISK_NODE), path)
    assert str(path) in str(refusal.value) and said in str(refusal.value)


def test_a_weight_is_given_to_a_pool_or_to_a_user_wherever_he_is():
    pools = of_groups([job(group="lab"), job(group="den"), job()])
    rules = replace(rules_of(DISK_NODE), pools=pools)
    changed = weighted(rules, {"lab": Fraction(2), "ann": Fraction(5)}, ["ann"])
    assert (changed.pools["lab"].weight, changed.pools["den"].weight) == (2, 1)
    assert {key: claim.weight for key, claim in changed.members.items()} == {
        ("", "ann"): 5, ("lab", "ann"): 5, ("den", "ann"): 5,
    }  # fmt: skip
    one = weighted(rules, {"den.ann": Fraction(7)}, ["ann"])
    assert {key: claim.weight for key, claim in one.members.items()} == {("den", "ann"): 7}
    with pytest.raises(Refused, match="no pool or user 'nn'"):
        weighted(rules, {"nn": Fraction(2)}, ["ann"])


# -- synthetic parts -------------------------------------------------------------------------------

PROFILES = (
    "workflow,task,n,disk_read_mb_p50,disk_write_mb_p50,disk_mb_s_p90\n"
    "a,SORT,90,300,100,61\na,IDLE,10,0,0,0\n"
)


def test_disk_rates_are_drawn_by_how_often_a_task_was_measured(tmp_path):
    path = tmp_path / "profiles.csv"
    path.write_text(PROFILES)
    profiles = read_profiles(path)
    assert profiles == [(90, 45_750_000, 15_250_000), (10, 0, 0)]
    jobs = [job(at, user=f"u{at % 500}") for at in range(1, 1001)]
    own = job(1001, demand=Resources(cores_milli=1000, read_bps=7))
    found = with_disk_rates(Workload(jobs=[*jobs, own], source="x", kind="y"), profiles)
    assert found.jobs[-1].demand.read_bps == 7
    drawn = Counter(each.demand.read_bps for each in found.jobs[:-1])
    assert drawn.keys() == {0, 45_750_000}
    assert 30 < drawn[0] < 180
    assert found.jobs[0].demand == found.jobs[500].demand, "equal jobs of a user are one task"
    assert found.notes[0].startswith("SYNTHETIC")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n,disk_read_mb_p50\n1,2\n", "line 1: there is no column 'disk_write_mb_p50'"),
        (PROFILES.splitlines()[0] + "\n", "there is no task in it"),
        (PROFILES + "a,X,1,2,3,fast\n", "line 4: disk_mb_s_p90 is no number"),
        (PROFILES + "a,X,0,2,3,4\n", "line 4: n is below 1"),
        (PROFILES + "a,X\n", "line 4: n is missing"),
    ],
)
def test_a_bad_table_of_tasks_is_refused(tmp_path, text, said):
    path = tmp_path / "profiles.csv"
    path.write_text(text)
    with pytest.raises(Refused) as refusal:
        read_profiles(path)
    assert str(refusal.value).startswith(f"{path}: {said}")


def test_a_seed_makes_one_workload_and_another_seed_another():
    recipe = Recipe(jobs=300, users=8, capacity=DISK_NODE)
    assert generate(recipe) == generate(recipe)
    assert generate(recipe).jobs != generate(replace(recipe, seed=2)).jobs


def test_what_is_generated_reads_back_as_it_was():
    made = generate(Recipe(jobs=200, users=5, capacity=DISK_NODE, mix={"io": 1, "big": 1}))
    read = read_lines((f"{line}\n" for line in csv_lines(made)), source="x")
    assert (read.jobs, read.bad) == (made.jobs, ())
    assert any(each.demand.read_bps for each in read.jobs)


def test_a_mix_names_habits():
    assert parse_mix("cpu=2, big=0.5") == {"cpu": 2, "big": 0.5}
    for text in ("cup=2", "cpu", "cpu=0", "cpu=-1", ""):
        with pytest.raises(Refused, match="mix: "):
            parse_mix(text)


# -- the past --------------------------------------------------------------------------------------


def past_job(id: int, **changes: Any) -> dict[str, Any]:
    amounts = {"cores": 2.5, "memory": GB, "read": 5, "write": 6, "gres": {"gpu": 1}}
    return {
        "id": id, "user": "ann", "pool": "root.lab", "submitted_at": 1e9 + id, "attempt": 1,
        "started_at": 1e9 + 50, "ended_at": 1e9 + 90, "time_limit_s": 600, "demand": amounts,
        "used": {"suspended_seconds": 10.0},
    } | changes  # fmt: skip


def test_ended_jobs_are_a_workload():
    work = of_history([past_job(3, started_at=None), past_job(2, pool="root.ann"), past_job(1)])
    assert [(each.id, each.name, each.group) for each in work.jobs] == [
        (1, "1", "lab"), (2, "2", None),
    ]  # fmt: skip
    first = work.jobs[0]
    assert (first.submit_s, first.run_s, first.limit_s) == (1e9 + 1, 30, 600)
    assert first.demand == Resources(
        cores_milli=2500, memory_bytes=GB, read_bps=5, write_bps=6, gres=(("gpu", 1),)
    )
    assert (work.bad, work.unit) == ((BadLine(number=3, why="it never started"),), "job")


def test_what_the_past_leaves_open_is_said():
    disks = past_job(1)["demand"] | {"disks": {"data": {"read": 5, "write": 6}}}
    notes = of_history([past_job(1, demand=disks, attempt=2)]).notes
    assert "the disks of this machine count as one" in notes[0]
    assert "jobs that were tried again count once" in notes[1]


def test_weights_of_the_past_are_those_of_now():
    work = of_history(
        [past_job(1), past_job(2, user="bob", pool="root.bob"), past_job(3, user="eve")]
    )
    nodes = [
        {"path": "root.lab", "weight": 3.0},
        {"path": "root.bob", "weight": {"cores": 2.0, "memory": 1.0}},
        {"path": "root.lab.eve", "weight": 0.5},
    ]
    rules = with_weights(rules_of(DISK_NODE), nodes, work)
    assert rules.pools["lab"].weight == 3
    assert rules.members["", "bob"].weights == {"cores": 2, "memory": 1}
    assert rules.members["lab", "eve"].weight == Fraction(1, 2)
    assert len(rules.members) == 2


# -- recorded workloads ----------------------------------------------------------------------------


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


# -- the forms -------------------------------------------------------------------------------------


def test_an_unknown_column_of_our_own_table_is_a_slip():
    with pytest.raises(Refused, match="unknown column 'reed'"):
        read(OWN.replace("read", "reed") + "a,ann,lab,3,10,60,0.5,16G,0,0\n")


def test_a_log_in_the_standard_format_has_memory_for_each_processor():
    job = only("; Computer: here\n\n 7 10 5 100 4 -1 -1 8 3600 2048 1 3 2 -1 -1 -1 -1 -1\n")
    assert job == SimJob(
        id=1, name="7", submit_s=10, run_s=100, demand=asked(8, 8 * 2 * MIB), limit_s=3600,
        user="u3", group="g2",
    )  # fmt: skip


def test_where_nothing_was_requested_what_was_used_counts_and_is_said():
    work = read("7 10 5 100 4 -1 1024 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n")
    assert work.kind == "Standard Workload Format"
    assert work.jobs[0].demand == asked(4, 4 * MIB)
    assert (work.jobs[0].limit_s, work.jobs[0].user, work.jobs[0].group) == (None, "unknown", None)
    assert work.notes == ("1 jobs ask for the memory that they used: no other is recorded",)


def test_jobs_without_any_memory_are_counted():
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
def test_a_line_of_a_log_that_is_no_job_says_why(line, why):
    good = "1 0 0 1 1 -1 -1 1 -1 1024 1 1 1 -1 -1 -1 -1 -1"
    work = read(f"; a log\n{good}\n{line}\n")
    assert ([job.name for job in work.jobs], work.bad) == (["1"], (BadLine(number=3, why=why),))


def test_a_cluster_log_is_recognised_by_its_header():
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


def test_pods_have_gpus_and_those_that_never_started_are_named():
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


def test_a_job_known_by_its_bytes_runs_as_long_as_they_take():
    """128M of input are two tasks, 100 MB/s together, for 300 MB read and 100 MB written."""
    job = only(f"{SWIM}a,1,{128 << 20},{300_000_000 - (128 << 20)},0\n", (10**10, 10**10))
    written = 300_000_000 - (128 << 20)
    run_s = 5
    assert (300_000_000 + written) / 100_000_000 == pytest.approx(run_s, abs=0.5)
    assert job.run_s == run_s
    assert (job.demand.read_bps, job.demand.write_bps) == (60_000_000, -(-written // run_s))


def test_such_a_job_is_never_faster_than_the_machine():
    job = only(f"{SWIM}a,1,{10**12},0,0\n", (10**9, 10**9))
    assert (job.run_s, job.demand.read_bps) == (1000, 10**9)


HISTORY = (
    "id,name,user,pool,state,exit_code,signal,attempt,submitted_at,started_at,ended_at,"
    "time_limit_s,cores,memory,read,write,suspended_seconds\n"
)


def test_what_history_prints_is_a_trace():
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


# -- any file --------------------------------------------------------------------------------------


def test_every_line_that_is_no_job_is_named_and_none_of_the_others_lost():
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


def test_a_gzip_file_reads_like_a_plain_one(tmp_path):
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
def test_what_is_no_trace_is_refused_with_its_name(tmp_path, data, said):
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(Refused) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(f"{path}: {said}")


def test_a_file_that_is_not_there_is_refused_with_its_name(tmp_path):
    with pytest.raises(Refused, match="none: cannot be read: No such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(Refused, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


# -- runs ------------------------------------------------------------------------------------------


def starts(run: Run) -> dict[int, float]:
    return {each.job.id: each.start_s for each in run.ran}


def crowd(seed: int, count: int) -> list[SimJob]:
    """Some users' jobs, of all sizes, more than the machine can run at once."""
    random, at_s, jobs = Random(seed), 0, []
    for id in range(1, count + 1):
        at_s += random.choice((0, 0, 1, 7))
        run_s = random.choice((1, 5, 40, 200))
        jobs.append(
            job(
                id,
                at_s,
                run_s,
                random.choice((0.5, 1, 1, 2, 4)),
                user=random.choice(("ann", "bob", "eve")),
                limit_s=random.choice((None, 2 * run_s, 1000)),
            )
        )
    return jobs


def most_held(ran: Sequence[FinishedJob]) -> int:
    """Cores at once, in thousandths: summed by hand."""
    changes = [(each.start_s, 1, each.job.demand.cores_milli) for each in ran]
    changes += [(each.end_s, -1, each.job.demand.cores_milli) for each in ran]
    held = most = 0
    for _, sign, cores in sorted(changes):
        held += sign * cores
        most = max(most, held)
    return most


def test_a_reservation_starts_the_big_job_that_is_passed_over_without_estimates():
    little = [job(id, id, 10, 1, user="bob", limit_s=10) for id in range(1, 200)]
    big = job(200, 20.5, 10, 4, limit_s=10)
    jobs = sorted([*little, big], key=lambda each: each.submit_s)
    jobs = [replace(each, id=id) for id, each in enumerate(jobs, 1)]
    rules = small(reserving=ReservationSettings(delay_s=0))

    def wait_s(estimates: str) -> float:
        run = simulate(jobs, rules, estimates=estimates)
        return next(each.wait_s for each in run.ran if each.job.demand.cores_milli == 4000)

    assert wait_s("none") > 150
    assert wait_s("exact") < 11


@pytest.mark.parametrize("estimates", seeds(ESTIMATES, quick=1))
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_all_jobs_within_the_machine(policy, estimates):
    jobs = crowd(7, 120)
    run = simulate(jobs, small(policy=policy), estimates=estimates)
    assert sorted(starts(run)) == [each.id for each in jobs]
    assert (run.refused, run.unstarted) == ((), ())
    assert most_held(run.ran) <= 4000
    assert all(each.wait_s >= 0 for each in run.ran)
    assert run == simulate(jobs, small(policy=policy), estimates=estimates)


# -- what a run is judged by -----------------------------------------------------------------------


def fifo(*jobs: SimJob) -> Run:
    return simulate(jobs, small(4, 8, policy="fifo"))


# -- waits -----------------------------------------------------------------------------------------


def test_waits_and_slowdowns_are_those_of_the_jobs():
    """The second waits for 100 s and runs for 1 s, which counts as 10 s."""
    found = measure(fifo(job(1, 0, 100, 4), job(2, 0, 1, 4), job(3, 101, 50, 4)))
    assert found["wait_s"]["max"] == 100
    assert found["wait_s"]["mean"] == pytest.approx(100 / 3)
    assert found["slowdown"]["max"] == pytest.approx(101 / 10)
    assert found["slowdown"]["median"] == 1
    assert (found["span_s"], found["jobs_per_hour"]) == (151, 3 / 151 * 3600)


def test_use_is_the_mean_over_the_whole_run():
    found = measure(fifo(job(1, 10, 30, 2, memory=8), job(2, 50, 20, 4, memory=0)))
    assert found["use"] == {
        "cores": pytest.approx((30 * 2 + 20 * 4) / (60 * 4)), "memory": pytest.approx(30 / 60),
    }  # fmt: skip


def test_a_run_of_nothing_has_no_figures():
    found = measure(fifo(job(1, 0, 5, 9)))
    assert (found["jobs"], found["refused"], found["largest_job"]) == (0, 1, None)
    assert found["wait_s"]["mean"] is found["jobs_per_hour"] is None
    assert measure(fifo())["users"] == {}


def test_users_are_told_apart():
    found = measure(fifo(job(1, 0, 100, 4), job(2, 1, 50, 2, user="bob")))["users"]
    assert [(leaf, user["jobs"], user["wait_s"]["mean"]) for leaf, user in found.items()] == [
        ("root.ann", 1, 0), ("root.bob", 1, 99),
    ]  # fmt: skip
    assert found["root.bob"]["share"] == pytest.approx(50 * 2 / (150 * 4))


# -- promises --------------------------------------------------------------------------------------


def test_the_worst_window_is_one_in_which_somebody_waited_long():
    """ann keeps the machine for three hours; for most of the first one, bob does not wait."""
    jobs = (job(1, 0, 10800, 4), job(2, 3500, 100, 1, "bob"), job(3, 3501, 100, 1))
    worst = over_time(fifo(*jobs)).worst
    assert worst is not None
    assert (worst.leaf, worst.start_s, worst.length_s, worst.kept) == ("root.bob", 3600, 3600, 0)


# -- jobs of the past, simulated otherwise ---------------------------------------------------------


#: Ten cores, ten bytes, and two GPUs.
TEN = Resources(cores_milli=10_000, memory_bytes=10, gres=(("gpu", 2),))
OF_TEN = rules_of(TEN)


def told_jobs(*told: tuple[str, float, int, int, float], gpus: int = 0) -> list[SimJob]:
    """Users, with the times of submission, cores, bytes and run times of their jobs."""
    return [
        SimJob(
            id=number, name=str(number), submit_s=at_s, run_s=run_s, limit_s=None, user=user,
            demand=Resources(
                cores_milli=1000 * cores, memory_bytes=size,
                gres=(("gpu", gpus),) if gpus else (),
            ),
        )
        for number, (user, at_s, cores, size, run_s) in enumerate(told, start=1)
    ]  # fmt: skip


def test_who_waits_behind_others_may_be_served_better_alone():
    """Alice's job holds all of the machine when bob comes."""
    found = audit(told_jobs(("alice", 0, 10, 1, 100), ("bob", 1, 1, 1, 9)), OF_TEN)
    assert found.alone[1] == Alone(leaf="root.bob", jobs=1, too_large=0, together_s=99, alone_s=0)


def test_more_than_is_needed_brings_nothing_and_halves_may_fit_earlier():
    """One half of bob's job of eight cores fits beside alice's, and the other half after it."""
    found = audit(told_jobs(("alice", 0, 6, 1, 100), ("bob", 1, 8, 1, 50)), OF_TEN)
    assert found.lies == (
        Lie(leaf="root.bob", what="cores", true_s=149, false_s=149),
        Lie(leaf="root.bob", what="memory", true_s=149, false_s=149),
        Lie(leaf="root.bob", what=ALL, true_s=149, false_s=149),
        Lie(leaf="root.bob", what=SPLIT, true_s=149, false_s=100),
    )


@pytest.mark.parametrize(("alices", "bobs", "false_s"), [(1, 2, 100), (2, 1, 149)])
def test_an_even_number_of_instances_can_be_halved(alices, bobs, false_s):
    first = told_jobs(("alice", 0, 1, 1, 100), gpus=alices)
    second = told_jobs(("alice", 0, 1, 1, 100), ("bob", 1, 2, 2, 50), gpus=bobs)[1:]
    found = audit([*first, *second], OF_TEN)
    assert {each.what: each.false_s for each in found.lies} == {
        "cores": 149, "memory": 149, ALL: 149, SPLIT: false_s,
    }  # fmt: skip


def test_few_are_tried_those_who_waited_most():
    users = [(f"u{number}", 1.0, 10, 1, 10.0) for number in range(MOST_LIARS + 2)]
    told = told_jobs(("first", 0, 10, 1, 50), *users)
    calls: list[tuple[int, int]] = []
    found = audit(told, OF_TEN, lambda *call: calls.append(call))
    assert len({each.leaf for each in found.lies}) == MOST_LIARS
    assert "root.first" not in {each.leaf for each in found.lies}
    tried = 4 * MOST_LIARS
    assert calls == [(number, len(told) + tried) for number in range(1, len(told) + tried + 1)]


# -- promises over a whole run ---------------------------------------------------------------------


POOLS = {
    "lab": Pool(users=frozenset({"u1", "u2", "u3"}), guarantee={"cores": 20_000}),
    "den": Pool(users=frozenset({"u4", "u5"}), weight=Fraction(3), limit={"memory": 100 << 30}),
}


@pytest.mark.parametrize("pools", [{}, POOLS], ids=["flat", "pools"])
def test_users_are_kept_what_the_tree_of_each_moment_says(pools):
    recipe = Recipe(
        jobs=120, users=9, capacity=NODE, load=1.5, burst=10, mix={"cpu": 6, "memory": 6, "big": 1}
    )
    run = simulate(generate(recipe).jobs, Rules(capacity=NODE, pools=pools))
    waiting, used = Counter[str](), dict[str, Any]()
    waited, kept, before_s = Counter[str](), Counter[str](), 0.0
    for at_s, leaf, demand, _, sign in run.changes():
        tree = run.rules.shares.share_tree(used, {each for each in waiting if waiting[each]})
        for each in (each for each in waiting if waiting[each]):
            waited[each] += at_s - before_s
            kept[each] += min(1.0, float(tree.satisfaction(each))) * (at_s - before_s)
        before_s = at_s
        waiting[leaf] += 1 if sign == 0 else -(sign == 1)
        amounts = zip(used.get(leaf, (0,) * len(demand)), demand, strict=True)
        used[leaf] = tuple(amount + sign * more for amount, more in amounts)
        used = {each: held for each, held in used.items() if any(held)}
    found = measure(run)["promise_kept"]["mean"]
    parts = [kept[each] / waited[each] for each in waited if waited[each]]
    assert found == pytest.approx(sum(parts) / len(parts), abs=1e-4)


# -- recorded results ------------------------------------------------------------------------------


BLOCKS = blocks(RESULTS.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("block", seeds(BLOCKS), ids=lambda block: block.commands[-1][:60])
def test_what_is_shown_comes_out_again(block, tmp_path):
    folder = tmp_path
    if block.trace is not None:
        if FOLDER is None:
            pytest.skip("DRFD_TRACES does not name the folder of the traces")
        folder = Path(FOLDER)
    assert block.printed == run(block, folder)


@pytest.mark.slow
def test_each_trace_is_shown():
    assert {block.trace for block in BLOCKS} == {None, *MACHINES}


def made_up(seed: int) -> Sequence[SimJob]:
    """Like the made-up workload that is shown."""
    recipe = Recipe(
        jobs=600, users=13, capacity=NODE, seed=seed, load=1, burst=10,
        mix={"cpu": 6, "memory": 6, "big": 1},
    )  # fmt: skip
    return generate(recipe).jobs


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_passes_at_other_times_find_nothing_to_start(seed):
    """A daemon makes one every five seconds. Here jobs that are refused as too large cause them."""
    recipe = Recipe(
        jobs=150, users=6, capacity=NODE, seed=seed, load=1.5, burst=3,
        mix={"cpu": 6, "memory": 6, "big": 3},
    )  # fmt: skip
    jobs = generate(recipe).jobs
    times = range(0, round(3 * jobs[-1].submit_s), 120)
    too_large = [job(1000 + at_s, at_s, cores=65) for at_s in times]
    more = sorted([*jobs, *too_large], key=attrgetter("submit_s"))
    plain, often = (simulate(each, rules_of(NODE)) for each in (jobs, more))
    assert often.passes > 2 * plain.passes
    assert starts(often) == starts(plain)


def big_waits(run: Run) -> list[float]:
    return [ran.wait_s for ran in run.ran if ran.job.group == "big"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_a_reservation_cures_starvation_at_hardly_any_loss_of_use(seed):
    """At a fraction of the size: the longest waits of big jobs, and the use of what is scarce."""
    jobs = made_up(seed)
    runs = {each: simulate(jobs, rules_of(NODE), estimates=each) for each in ("none", "predicted")}
    waits = {each: max(big_waits(run)) for each, run in runs.items()}
    assert waits["none"] > 1.5 * waits["predicted"]
    used = {each: max(measure(run)["use"].values()) for each, run in runs.items()}
    assert used["predicted"] > 0.97 * used["none"]


@pytest.mark.slow
def test_first_come_first_served_makes_all_wait():
    jobs = made_up(1)
    found = {
        each: measure(simulate(jobs, replace(rules_of(NODE), policy=each)))
        for each in ("drf", "fifo")
    }
    assert found["fifo"]["wait_s"]["mean"] > 2 * found["drf"]["wait_s"]["mean"]
    assert found["fifo"]["envy"] > found["drf"]["envy"]
    assert found["fifo"]["promise_kept"]["mean"] < found["drf"]["promise_kept"]["mean"]
