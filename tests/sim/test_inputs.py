"""What a simulation is made of besides a trace: the machine, pools, synthetic parts, the past."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import ConfigError, Refused
from drfd.core.amounts.resources import Resources
from drfd.sim import machine
from drfd.sim.machine import configured, of_groups, rules_of, weighted
from drfd.sim.recorded_workloads import of_history, read_lines, with_weights
from drfd.sim.synthetic_workloads import (
    Recipe,
    csv_lines,
    generate,
    parse_mix,
    read_profiles,
    with_disk_rates,
)
from drfd.sim.workload import BadLine, SimJob, Workload

GB = 1 << 30
NODE = Resources(cores_milli=64_000, memory_bytes=256 * GB, read_bps=2 * GB, write_bps=GB)


def job(id: int = 1, **changes: Any) -> SimJob:
    plain = SimJob(
        id=id, name=f"j{id}", submit_s=0, run_s=60, limit_s=None, user="ann",
        demand=Resources(cores_milli=1000, memory_bytes=GB),
    )  # fmt: skip
    return replace(plain, **changes)


# -- the machine ---------------------------------------------------------------------------------


def test_a_capacity_is_written_as_amounts_are_everywhere() -> None:
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
def test_what_is_no_capacity_is_refused(text: str, said: str) -> None:
    with pytest.raises(Refused) as refusal:
        machine.parse_capacity(text)
    assert f"capacity: {said}" in str(refusal.value)


def test_a_kind_of_thing_that_the_machine_lacks_is_a_word_forgotten() -> None:
    jobs = [job(1), job(2, submit_s=60, demand=replace(job().demand, gres=(("gpu", 2),)))]
    machine.check(jobs, replace(NODE, gres=(("gpu", 1),)))
    with pytest.raises(Refused, match="jobs of this trace ask for gpu, up to 2 each") as refusal:
        machine.check(jobs, NODE)
    assert refusal.value.hint == "add gpu=… to --capacity; on average 1 is in use"


def test_the_capacity_that_is_suggested_holds_the_largest_job_and_what_is_held() -> None:
    jobs = [job(at, submit_s=at * 10, run_s=120) for at in range(1, 100)]
    text = machine.suggestion(jobs)
    assert text == "cores=15,memory=15G"
    machine.check(jobs, machine.parse_capacity(text))
    large = [job(1, demand=Resources(cores_milli=123_000, memory_bytes=GB // 3))]
    assert machine.suggestion(large) == "cores=170,memory=460M"


# -- pools ---------------------------------------------------------------------------------------

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


def test_pools_are_read_from_a_daemons_configuration(tmp_path: Path) -> None:
    path = tmp_path / "drfd.toml"
    path.write_text(TOML)
    rules = configured(rules_of(replace(NODE, gres=(("gpu", 1),))), path)
    assert (rules.pools["lab"].weight, rules.pools["lab"].limit) == (3, {"gpu": 1})
    assert rules.members["", "bob"].weight == Fraction(1, 2)
    assert (rules.patience.patience_s, rules.patience.drain_after_s) == (600, 2400 + 86400)
    assert (rules.policy, rules.pool_for("ann", None)) == ("drf", "root.lab")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[pools.lab]\nwieght = 2\n", "pools.lab.wieght: unknown key (did you mean weight?)"),
        ("[scheduling]\npatiense = 1\n", "scheduling.patiense: unknown key"),
        ("[pools", "is not TOML"),
    ],
)
def test_a_bad_file_of_pools_is_refused_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "pools.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        configured(rules_of(NODE), path)
    assert str(path) in str(refusal.value) and said in str(refusal.value)


def test_a_weight_is_given_to_a_pool_or_to_a_user_wherever_he_is() -> None:
    pools = of_groups([job(group="lab"), job(group="den"), job()])
    rules = replace(rules_of(NODE), pools=pools)
    changed = weighted(rules, {"lab": Fraction(2), "ann": Fraction(5)}, ["ann"])
    assert (changed.pools["lab"].weight, changed.pools["den"].weight) == (2, 1)
    assert {key: claim.weight for key, claim in changed.members.items()} == {
        ("", "ann"): 5, ("lab", "ann"): 5, ("den", "ann"): 5,
    }  # fmt: skip
    one = weighted(rules, {"den.ann": Fraction(7)}, ["ann"])
    assert {key: claim.weight for key, claim in one.members.items()} == {("den", "ann"): 7}
    with pytest.raises(Refused, match="no pool or user 'nn'"):
        weighted(rules, {"nn": Fraction(2)}, ["ann"])


# -- synthetic parts -----------------------------------------------------------------------------

PROFILES = (
    "workflow,task,n,disk_read_mb_p50,disk_write_mb_p50,disk_mb_s_p90\n"
    "a,SORT,90,300,100,61\na,IDLE,10,0,0,0\n"
)


def test_disk_rates_are_drawn_by_how_often_a_task_was_measured(tmp_path: Path) -> None:
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
def test_a_bad_table_of_tasks_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "profiles.csv"
    path.write_text(text)
    with pytest.raises(Refused) as refusal:
        read_profiles(path)
    assert str(refusal.value).startswith(f"{path}: {said}")


def test_a_seed_makes_one_workload_and_another_seed_another() -> None:
    recipe = Recipe(jobs=300, users=8, capacity=NODE)
    assert generate(recipe) == generate(recipe)
    assert generate(recipe).jobs != generate(replace(recipe, seed=2)).jobs


def test_what_is_generated_reads_back_as_it_was() -> None:
    made = generate(Recipe(jobs=200, users=5, capacity=NODE, mix={"io": 1, "big": 1}))
    read = read_lines((f"{line}\n" for line in csv_lines(made)), source="x")
    assert (read.jobs, read.bad) == (made.jobs, ())
    assert any(each.demand.read_bps for each in read.jobs)


def test_a_mix_names_habits() -> None:
    assert parse_mix("cpu=2, big=0.5") == {"cpu": 2, "big": 0.5}
    for text in ("cup=2", "cpu", "cpu=0", "cpu=-1", ""):
        with pytest.raises(Refused, match="mix: "):
            parse_mix(text)


# -- the past ------------------------------------------------------------------------------------


def ended(id: int, **changes: Any) -> dict[str, Any]:
    amounts = {"cores": 2.5, "memory": GB, "read": 5, "write": 6, "gres": {"gpu": 1}}
    return {
        "id": id, "user": "ann", "pool": "root.lab", "submitted_at": 1e9 + id, "attempt": 1,
        "started_at": 1e9 + 50, "ended_at": 1e9 + 90, "time_limit_s": 600, "demand": amounts,
        "used": {"suspended_seconds": 10.0},
    } | changes  # fmt: skip


def test_ended_jobs_are_a_workload() -> None:
    work = of_history([ended(3, started_at=None), ended(2, pool="root.ann"), ended(1)])
    assert [(each.id, each.name, each.group) for each in work.jobs] == [
        (1, "1", "lab"), (2, "2", None),
    ]  # fmt: skip
    first = work.jobs[0]
    assert (first.submit_s, first.run_s, first.limit_s) == (1e9 + 1, 30, 600)
    assert first.demand == Resources(
        cores_milli=2500, memory_bytes=GB, read_bps=5, write_bps=6, gres=(("gpu", 1),)
    )
    assert (work.bad, work.unit) == ((BadLine(number=3, why="it never started"),), "job")


def test_what_the_past_leaves_open_is_said() -> None:
    disks = ended(1)["demand"] | {"disks": {"data": {"read": 5, "write": 6}}}
    notes = of_history([ended(1, demand=disks, attempt=2)]).notes
    assert "the disks of this machine count as one" in notes[0]
    assert "jobs that were tried again count once" in notes[1]


def test_weights_of_the_past_are_those_of_now() -> None:
    work = of_history([ended(1), ended(2, user="bob", pool="root.bob"), ended(3, user="eve")])
    nodes = [
        {"path": "root.lab", "weight": 3.0},
        {"path": "root.bob", "weight": {"cores": 2.0, "memory": 1.0}},
        {"path": "root.lab.eve", "weight": 0.5},
    ]
    rules = with_weights(rules_of(NODE), nodes, work)
    assert rules.pools["lab"].weight == 3
    assert rules.members["", "bob"].weights == {"cores": 2, "memory": 1}
    assert rules.members["lab", "eve"].weight == Fraction(1, 2)
    assert len(rules.members) == 2
