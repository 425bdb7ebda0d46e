"""From a request and who sent it to a job's specification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import Pool, Rules
from drfd.core.model.job import JobSpec
from drfd.core.model.stimuli import Actor
from drfd.daemon.config import Defaults, UserLimits
from drfd.daemon.handlers.submission import (
    MAX_WORD_BYTES,
    SubmitTerms,
    declares_range,
    refuse_beyond_gpus,
    spec_for,
)
from drfd.host.disks import Disk
from drfd.protocol.requests import Demand, Rates, SubmitRequest
from drfd.protocol.requests import NotifyPart as Tell
from fakes import ADMIN, ALICE, BOB, GIB, rules

DEFAULTS = Defaults(
    cores_milli=1500, memory_bytes=2 << 30, time_limit_s=3600, read_bps=10, write_bps=20
)
LIMITS = UserLimits(command_bytes=600_000, environment_bytes=300_000, script_bytes=5000)
POOLS = {
    "lab": Pool(users=frozenset({"alice"})),
    "open": Pool(),
    "shut": Pool(users=frozenset()),
}
DATA = Disk(name="data", path="/data", read_bps=1000, write_bps=15, devices=())
#: On the file system of every path that nothing else is mounted on.
ROOT_DISK = Disk(name="root", path="/", read_bps=1000, write_bps=1000, devices=())
PROC_DISK = Disk(name="proc", path="/proc", read_bps=1000, write_bps=1000, devices=())
POOLED = replace(rules(), pools=POOLS)


def made(
    actor: Actor = ALICE,
    *,
    by: Rules = POOLED,
    root: bool = False,
    system: bool = False,
    hides: bool = False,
    disks: tuple[Disk, ...] = (DATA,),
    **asked: Any,
) -> JobSpec:
    """The job of a request with these fields."""
    request = SubmitRequest(**({"v": 1, "argv": ["true"], "cwd": "/home/alice"} | asked))
    terms = SubmitTerms(
        rules=by, defaults=DEFAULTS, limits=LIMITS, disks=disks, takes_root=root,
        has_private_tmp=hides, is_refused=system,
    )  # fmt: skip
    return spec_for(request, actor, 100, terms)


def refused(actor: Actor = ALICE, **asked: Any) -> Refused:
    with pytest.raises(Refused) as refusal:
        made(actor, **asked)
    assert str(refusal.value).isprintable()
    return refusal.value


@pytest.mark.parametrize("cwd", ["/tmp/x", "/var/tmp/a/b", "/dev/shm/../shm/x"])
def test_a_directory_that_jobs_do_not_see_is_refused(cwd: str) -> None:
    refusal = refused(cwd=cwd, hides=True)
    assert refusal.code == "private-tmp"
    assert "each has a " in refusal.text
    assert made(cwd=cwd).cwd == cwd


@pytest.mark.parametrize("cwd", ["/tmp", "/tmpx/y", "/home/tmp/x", "/var/tmpdir"])
def test_a_directory_that_jobs_see_is_taken(cwd: str) -> None:
    assert made(cwd=cwd, hides=True).cwd == cwd


@pytest.mark.parametrize(
    ("asked", "largest", "fits"),
    [(24, 24, True), (25, 24, False), (1 << 20, None, True), (0, 0, True)],
)
def test_more_memory_than_the_largest_gpu_has_is_refused(
    asked: int, largest: int | None, fits: bool
) -> None:
    """As long as the sizes of all are known."""
    demanded = Demand(gres={"gpu": 1}, gres_memory={"gpu": asked * GIB})
    bytes_ = None if largest is None else largest * GIB
    if fits:
        refuse_beyond_gpus(demanded, bytes_)
        return
    with pytest.raises(Refused) as refusal:
        refuse_beyond_gpus(demanded, bytes_)
    assert (refusal.value.code, refusal.value.text) == (
        "too-big",
        "--gres: 25G of memory of a gpu are asked for, and the largest here has 24G: "
        "no job could ever have them",
    )


# -- pools -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actor", "pool", "leaf"),
    [
        (ALICE, None, "root.lab"),
        (BOB, None, "root.bob"),
        (ALICE, "open", "root.open"),
        (BOB, "root.open", "root.open"),
        (BOB, "bob", "root.bob"),
    ],
)
def test_the_leaf_that_pays(actor: Actor, pool: str | None, leaf: str) -> None:
    assert made(actor, pool=pool).pool == leaf


@pytest.mark.parametrize("pool", ["lab", "root.lab", "shut"])
def test_a_pool_with_a_list_takes_jobs_of_those_on_it_alone(pool: str) -> None:
    refusal = refused(BOB, pool=pool)
    assert (type(refusal), refusal.code) == (NotPermitted, "not-in-pool")


def test_a_misspelt_pool_gets_a_suggestion() -> None:
    assert refused(pool="opne").hint == "did you mean open?"


# -- root --------------------------------------------------------------------------------------


def test_jobs_of_root_are_refused_where_they_are_not_taken() -> None:
    refusal = refused(ADMIN)
    assert (type(refusal), refusal.code) == (NotPermitted, "root")


# -- bounds ------------------------------------------------------------------------------------


def test_no_command_is_refused_with_an_example() -> None:
    refusal = refused(argv=[])
    assert (refusal.code, refusal.hint) == ("no-command", "drf submit -- COMMAND")


@pytest.mark.parametrize(
    ("most", "asked"),
    [
        (MAX_WORD_BYTES - 1, lambda size: {"argv": ["x" * size]}),
        (LIMITS.command_bytes, lambda size: {"argv": ["x"] * (size // 2)}),
        (MAX_WORD_BYTES - 2, lambda size: {"argv": ["ü" * (size // 2)]}),
        (
            LIMITS.environment_bytes,
            lambda size: {"env": {f"A{at}": "x" * (size // 4 - 4) for at in range(4)}},
        ),
        (LIMITS.script_bytes, lambda size: {"script": "x" * (size - 1)}),
    ],
    ids=["one argument", "many arguments", "bytes, not signs", "environment", "script"],
)
def test_what_a_job_carries_is_bounded_to_the_byte(
    most: int, asked: Callable[[int], dict[str, Any]]
) -> None:
    made(**asked(most))
    assert refused(**asked(most + 8)).code == "too-long"


@pytest.mark.parametrize(
    "asked",
    [
        {"argv": ["tr\0ue"]},
        {"argv": ["true", "\0"]},
        {"env": {"A\0B": "1"}},
        {"env": {"A": "\0"}},
        {"cwd": "/home\0"},
        {"stdout": "o\0"},
        {"stderr": "e\0"},
        {"attach": "/a\0"},
        {"name": "n\0"},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_nul_is_refused_wherever_the_kernel_would_cut_it_off(asked: dict[str, Any]) -> None:
    refusal = refused(**asked)
    assert (type(refusal), refusal.code) == (Refused, "bad-request")


@pytest.mark.parametrize("name", ["", "A=B"])
def test_a_variable_that_no_program_could_read_is_refused(name: str) -> None:
    """exec refuses them too, but then the job is queued, waits, and fails at its launch."""
    assert refused(env={name: "1"}).code == "bad-request"


# -- disks -------------------------------------------------------------------------------------


def test_the_only_disk_may_be_named() -> None:
    demand = made(demand=Demand(disks={"data": Rates(read_bps=5, write_bps=6)})).demand
    assert (demand.read_bps, demand.write_bps, demand.disks) == (5, 6, ())


def test_without_a_name_it_is_the_disk_of_the_working_directory() -> None:
    disks = (PROC_DISK, ROOT_DISK)
    asked = Demand(read_bps=5, write_bps=6)
    here = made(demand=asked, disks=disks, cwd="/no/such/directory").demand
    assert here.disks == (("proc", 10, 20), ("root", 5, 6)), "the other has the defaults"
    assert (here.read_bps, here.write_bps) == (0, 0)
    there = made(demand=asked, disks=disks, cwd="/proc/1").demand
    assert there.disks == (("proc", 5, 6), ("root", 10, 20))


def test_a_working_directory_on_none_of_them_means_the_first() -> None:
    nowhere = replace(PROC_DISK, name="z", path="/sys")
    asked = Demand(read_bps=5, write_bps=6)
    found = made(demand=asked, disks=(nowhere, ROOT_DISK), cwd="/proc/1").demand
    assert found.disks == (("root", 10, 20), ("z", 5, 6))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Demand(disks={"dta": Rates(read_bps=1, write_bps=1)}), "--io: there is no disk 'dta'"),
        (
            Demand(read_bps=1, disks={"root": Rates(read_bps=1, write_bps=1)}),
            "--io: the disk root is given twice; without a name it is that of /home",
        ),
    ],
)
def test_a_disk_that_is_not_there_or_there_twice_is_refused(asked: Demand, said: str) -> None:
    assert refused(demand=asked, disks=(PROC_DISK, ROOT_DISK)).text.startswith(said)


def test_a_notification_with_a_nul_is_refused() -> None:
    assert "NUL" in refused(notify=Tell(on=["end"], argv=["sh", "-c", "x\0"])).text


def test_a_system_account_is_refused_with_the_cure() -> None:
    refusal = refused(system=True)
    assert isinstance(refusal, NotPermitted)
    assert refusal.code == "system-account"
    assert refusal.text == "alice (uid 1001) is a system account, of which no jobs run here"
    assert "daemon.system_users" in refusal.hint


TWO_DISKS = (replace(DATA, write_bps=1000), PROC_DISK)
BIG = replace(POOLED, capacity=replace(POOLED.capacity, cores_milli=8000))


def test_rates_of_each_disk_may_be_ranges() -> None:
    asked = Demand(
        read_bps=10, write_bps=20, write_max_bps=40, disks={"data": Rates(50, 60, 70, 80)}
    )
    found = made(disks=TWO_DISKS, cwd="/proc/self", demand=asked)
    assert found.demand.disks == (("data", 50, 60), ("proc", 10, 20))
    assert found.most == Resources(disks=(("data", 70, 80), ("proc", 0, 40)))


def test_a_range_among_the_defaults_is_that_of_jobs_that_say_nothing_of_cores() -> None:
    ranged = replace(DEFAULTS, cores_milli=1000, cores_max_milli=4000)
    terms = SubmitTerms(rules=BIG, defaults=ranged, limits=LIMITS, disks=(), takes_root=False)

    def most(**asked: Any) -> Resources | None:
        request = SubmitRequest(v=1, argv=["true"], cwd="/", demand=Demand(**asked))
        return spec_for(request, ALICE, 1000, terms).most

    assert most() == most(memory_bytes=1 << 30) == Resources(cores_milli=4000)
    assert most(cores_milli=1000) is None
    assert most(cores_max_milli=2000) == Resources(cores_milli=2000)
    assert most(cores_max_milli=0) is None


@pytest.mark.parametrize(
    ("asked", "declares"),
    [
        (Demand(), False),
        (Demand(cores_milli=2000, cores_max_milli=0), False),
        (Demand(cores_milli=2000, disks={"data": Rates(1, 2)}), False),
        (Demand(cores_max_milli="all"), True),
        (Demand(write_bps=1, write_max_bps=2), True),
        (Demand(disks={"data": Rates(1, 2, 3)}), True),
    ],
)
def test_a_request_declares_a_range_by_an_upper_end(asked: Demand, declares: bool) -> None:
    assert declares_range(asked) is declares


def test_an_upper_end_below_the_lower_one_is_refused() -> None:
    with pytest.raises(Refused, match="-c: the range ends at 1, below the 2 that the job holds"):
        made(demand=Demand(cores_milli=2000, cores_max_milli=1000))
