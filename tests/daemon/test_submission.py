"""Submissions: from a request and who sent it to a job, once more, and found again."""

import random
from typing import Any

import pytest
from msgspec import convert

from drfd.common.errors import NotPermitted, Refused
from drfd.common.indices import Spans, read_array
from drfd.core.fairness.rules import Pool, Rules
from drfd.core.model.job import Actor, Array, Job, JobSpec
from drfd.core.model.options import Demand, Rates
from drfd.daemon.config import Defaults, UserLimits
from drfd.daemon.handlers import resubmission
from drfd.daemon.handlers.resubmission import last_repeat, submission_fields
from drfd.daemon.handlers.submission import (
    MAX_WORD_BYTES,
    SubmitTerms,
    payload_of,
    refuse_beyond_gpus,
    spec_for,
)
from drfd.daemon.lookup.lookup import Lookup
from drfd.host.disks import Disk
from drfd.payload.pack import of_request
from drfd.payload.scripts import start_of
from drfd.protocol.requests import NotifyPart as Tell
from drfd.protocol.requests import SubmitRequest
from fakes import ADMIN, ALICE, BOB, GIB, replace, rules, spec
from goldens import WORDY
from seeds import seeds

DEFAULTS = Defaults(
    cores_milli=1500, memory_bytes=2 << 30, time_limit_s=3600, read_bps=10, write_bps=20
)
LIMITS = UserLimits(command_bytes=600_000, environment_bytes=300_000, script_bytes=5000)
POOLS = {"lab": Pool(users=frozenset({"alice"})), "open": Pool(), "shut": Pool(users=frozenset())}
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
    slurm_begin_s: int = 0,
    disks: tuple[Disk, ...] = (DATA,),
    **asked: Any,
) -> JobSpec:
    """The job of a request with these fields."""
    request = SubmitRequest(**({"v": 1, "argv": ["true"], "cwd": "/home/alice"} | asked))
    terms = SubmitTerms(
        rules=by, defaults=DEFAULTS, limits=LIMITS, disks=disks, takes_root=root,
        has_private_tmp=hides, is_refused=system, slurm_begin_s=slurm_begin_s,
    )  # fmt: skip
    return spec_for(request, actor, 100, terms)


def refused(actor: Actor = ALICE, **asked: Any) -> Refused:
    with pytest.raises(Refused) as refusal:
        made(actor, **asked)
    assert str(refusal.value).isprintable()
    return refusal.value


def test_batch_jobs_for_slurm_alone_start_no_earlier_than_the_delay_after_their_submission():
    slurm = {"DRF_SLURM": "1"}
    begins = [
        made(slurm_begin_s=1000, **asked).begin_s
        for asked in (
            {"env": slurm}, {"env": slurm, "begin_s": 999}, {"env": slurm, "begin_s": 1001}, {},
            {"env": slurm, "attach": "/tmp/x"},
        )
    ]  # fmt: skip
    assert begins == [1000, 1000, 1001, None, None]
    assert made(env=slurm).begin_s is None


def test_a_directory_that_jobs_do_not_see_is_refused():
    for cwd in ("/tmp/x", "/var/tmp/a/b", "/dev/shm/../shm/x"):
        refusal = refused(cwd=cwd, hides=True)
        assert refusal.code == "private-tmp"
        assert "each has a " in refusal.text
        assert made(cwd=cwd).cwd == cwd
    for cwd in ("/tmp", "/tmpx/y", "/home/tmp/x", "/var/tmpdir"):
        assert made(cwd=cwd, hides=True).cwd == cwd


def test_more_memory_than_the_largest_gpu_has_is_refused_where_the_sizes_of_all_are_known():
    def of(asked: int) -> Demand:
        return Demand(gres={"gpu": 1}, gres_memory={"gpu": asked * GIB})

    for asked, largest in ((24, 24 * GIB), (1 << 20, None), (0, 0)):
        refuse_beyond_gpus(of(asked), largest)
    with pytest.raises(Refused) as refusal:
        refuse_beyond_gpus(of(25), 24 * GIB)
    assert (refusal.value.code, refusal.value.text) == (
        "too-big",
        "--gres: 25G of memory of a gpu are asked for, and the largest here has 24G: no job could "
        "ever have them",
    )


# -- pools -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actor", "pool", "leaf"),
    [
        (ALICE, None, "root.lab"), (BOB, None, "root.bob"), (ALICE, "open", "root.open"),
        (BOB, "root.open", "root.open"), (BOB, "bob", "root.bob"),
    ],
)  # fmt: skip
def test_the_leaf_that_pays(actor, pool, leaf):
    assert made(actor, pool=pool).pool == leaf


@pytest.mark.parametrize(
    ("actor", "asked", "kind", "code"),
    [
        *((BOB, {"pool": pool}, NotPermitted, "not-in-pool")
          for pool in ("lab", "root.lab", "shut")),
        (ALICE, {"pool": "opne"}, Refused, "no-such-pool"),
        (ADMIN, {}, NotPermitted, "root"),
        (ALICE, {"system": True}, NotPermitted, "system-account"),
        (ALICE, {"argv": []}, Refused, "no-command"),
        # A NUL, wherever the kernel would cut it off.
        *((ALICE, asked, Refused, "bad-request") for asked in (
            {"argv": ["tr\0ue"]}, {"argv": ["true", "\0"]}, {"env": {"A\0B": "1"}},
            {"env": {"A": "\0"}}, {"cwd": "/home\0"}, {"stdout": "o\0"}, {"stderr": "e\0"},
            {"attach": "/a\0"}, {"notify": Tell(on=["end"], argv=["x\0"])},
        )),
        # exec refuses these variables too, but then the job waits, and fails at its launch.
        (ALICE, {"env": {"": "1"}}, Refused, "bad-request"),
        (ALICE, {"env": {"A=B": "1"}}, Refused, "bad-request"),
    ],
)  # fmt: skip
def test_it_is_refused(actor, asked, kind, code):
    refusal = refused(actor, **asked)
    assert (type(refusal), refusal.code) == (kind, code)


def test_a_refusal_has_the_cure():
    assert refused(pool="opne").hint == "did you mean open?"
    assert refused(argv=[]).hint == "drf submit -- COMMAND"
    refusal = refused(system=True)
    assert refusal.text == "alice (uid 1001) is a system account, of which no jobs run here"
    assert "daemon.system_users" in refusal.hint


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
def test_what_a_job_carries_is_bounded_to_the_byte(most, asked):
    made(**asked(most))
    assert refused(**asked(most + 8)).code == "too-long"


def test_an_output_path_that_may_get_too_long_is_refused():
    """However long the name gets: with 2,000 signs, 40 launches held the daemon for seconds."""
    assert made(stdout="%x" * 15, stderr="/" + "x" * 4000)
    refusal = refused(stderr="%x" * 16)
    assert (refusal.code, refusal.text, refusal.hint) == (
        "too-long",
        "-e: the file's path may get 4140 bytes (256 for each %-sign); 4095 are the most",
        "name a file with a shorter path, or fewer %-signs, with -e",
    )


# -- disks -------------------------------------------------------------------------------------


def test_rates_are_of_the_disk_that_is_named_or_of_the_working_directory():
    disks = (PROC_DISK, ROOT_DISK)
    asked = Demand(read_bps=5, write_bps=6)
    here = made(demand=asked, disks=disks, cwd="/no/such/directory").demand
    assert here.disks == (("proc", 10, 20), ("root", 5, 6)), "the other has the defaults"
    assert (here.read_bps, here.write_bps) == (0, 0)
    there = made(demand=asked, disks=disks, cwd="/proc/1").demand
    assert there.disks == (("proc", 5, 6), ("root", 10, 20))
    nowhere = replace(PROC_DISK, name="z", path="/sys")
    found = made(demand=asked, disks=(nowhere, ROOT_DISK), cwd="/proc/1").demand
    assert found.disks == (("root", 10, 20), ("z", 5, 6)), "on none of them means the first"
    only = made(demand=Demand(disks={"data": Rates(read_bps=5, write_bps=6)})).demand
    assert (only.read_bps, only.write_bps, only.disks) == (5, 6, ())


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
def test_a_disk_that_is_not_there_or_there_twice_is_refused(asked, said):
    assert refused(demand=asked, disks=(PROC_DISK, ROOT_DISK)).text.startswith(said)


BIG = replace(POOLED, capacity=replace(POOLED.capacity, cores_milli=8000))


def test_a_range_among_the_defaults_is_that_of_jobs_that_say_nothing_of_cores():
    ranged = replace(DEFAULTS, cores_milli=1000, cores_max_milli=4000)
    terms = SubmitTerms(rules=BIG, defaults=ranged, limits=LIMITS, disks=(), takes_root=False)

    def most(**asked: Any) -> int:
        request = SubmitRequest(v=1, argv=["true"], cwd="/", demand=Demand(**asked))
        return spec_for(request, ALICE, 1000, terms).cores_max_milli

    assert most() == most(memory_bytes=1 << 30) == 4000
    assert most(cores_milli=1000) == 0
    assert most(cores_max_milli=2000) == 2000
    assert most(cores_max_milli=0) == 0
    with pytest.raises(Refused, match="-c: the range ends at 1, below the 2 that the job holds"):
        most(cores_milli=2000, cores_max_milli=1000)
    terms = replace(terms, has_ranges=False)
    assert most() == 0
    with pytest.raises(Refused, match="jobs cannot have ranges of cores here"):
        most(cores_max_milli=2000)


# -- what a job was submitted with: every field of it, and for its user alone ------------------


#: Fields of a submission that hold for one time, and those that are not of the job.
ONCE = {"after", "begin_s", "held", "array"}
APART = {"v", "dry_run", "proof", "key"}
#: A value for each field of a request whose default is another.
ASKED: dict[str, Any] = {
    **{name: value for name, value in WORDY.items() if name not in ONCE | APART},
    "argv": ["sh", "", "ü"],
    "demand": {"cores_milli": 250, "memory_bytes": 3 << 20, "read_bps": 5, "write_bps": 6,
               "cores_max_milli": 500},
    "pool": "open", "time_limit_s": 0, "stdout": "%j", "stderr": "e", "attach": "/a",
    "again": {"of": 4, "indices": [9, 0, 16, 2]},
}  # fmt: skip


def spec_of(asked: dict[str, Any]) -> JobSpec:
    terms = SubmitTerms(rules=POOLED, defaults=DEFAULTS, limits=LIMITS, disks=[DATA],
                        takes_root=False)  # fmt: skip
    return spec_for(request_of(asked), ALICE, 100, terms)


def request_of(asked: dict[str, Any]) -> SubmitRequest:
    return convert({"op": "submit", "v": 1, **asked}, SubmitRequest)


BYTES = "\U0010ff80/\U0010ffff"
#: Of a script of these interpreters, something else is signed than its text.
PERL = "#!/usr/bin/perl -w\nprint 1;\n"
SCRIPTS: list[tuple[str | None, str | None]] = [
    (None, None), ("", "/s"), ("echo", None), ("echo\n", "/s"), ("#!/bin/sh\nexit 3\n", "/s"),
    (PERL, "/s"), (PERL, None), (PERL, f"/{BYTES}"), (PERL.strip(), "/s"),
    ("#!/usr/bin/perl", "/s"), (start_of(PERL, "/s")[0], "/s"), (BYTES, "/s"),
    (start_of(PERL, "/s")[0], "/other"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "path"), SCRIPTS)
def test_the_same_job_comes_of_it(script, path):
    env = {"A": "b=c", BYTES: BYTES, **({} if path is None else {"DRF_SCRIPT": path})}
    asked = {**ASKED, "argv": ["sh", "", f"ü{BYTES}"], "env": env, "script": script}
    spec = spec_of(asked)
    signed = payload_of(request_of(asked))
    assert signed.data == of_request(asked), "what the client has signed"
    again = submission_fields(spec, signed.content())
    assert of_request(again) == signed.data, "what it signs again"
    assert spec_of(again) == spec
    fields = ("argv", "env", "script", "notify", "attach")
    assert {name: again.get(name) for name in fields} == {name: asked[name] for name in fields}
    names = {*SubmitRequest.__struct_fields__} - ONCE - APART
    assert {*asked} == names == {*again, "script"}


async def test_a_long_command_is_whole_for_its_user_and_cut_short_in_lists(desk):
    argv, cut = ["sh", "-c", "ü" * 1000], ["sh", "-c", "ü" * 249 + "…"]
    whole = await desk.submit(ALICE, argv=argv)
    array = await desk.submit(ALICE, argv=argv, array="1-2")
    for ref, kind in ((whole, "job"), (array, "array"), (array + 1, "job")):
        shown = await desk.ask(ALICE, op="show", id=ref)
        assert shown[kind]["argv"] == argv
    rows = (await desk.ask(ALICE, op="status"))["jobs"]
    assert [row["argv"] for row in rows] == [cut] * len(rows)


async def test_repeats_of_repeats_of_an_array_are_found(desk):
    ids = [await desk.submit(ALICE, held=True, array="0-9")]
    for _ in range(4):
        await desk.ask(ALICE, op="cancel", select={"ids": [ids[-1]]})
        asked = {"held": True, "array": "0-9", "again": {"of": ids[-1]}}
        ids.append(await desk.submit(ALICE, **asked))
    engine = desk.shell.engine
    lookup = Lookup(engine, desk.requests.meter)
    assert await last_repeat(engine, lookup, ids[0]) == ids[-1]


@pytest.mark.parametrize("seed", seeds(range(20)))
def test_an_array_has_all_of_these_indices_if_it_has_each_of_them(seed):
    chance = random.Random(seed)

    def some() -> Spans:
        pieces, at = [], 0
        for _ in range(chance.randint(1, 4)):
            first, step = at + chance.randint(0, 3), chance.randint(1, 3)
            at = first + step * chance.randint(0, 4)
            pieces.append(f"{first}-{at}:{step}")
            at += 1
        return Spans(read_array(",".join(pieces))[0])

    for _ in range(50):
        array = Array(common=Job(id=1, spec=spec(), submitted_at=0.0), spans=some(), at_once=None)
        asked = some() if chance.random() < 0.5 else array.spans[:: chance.randint(1, 2)]
        each = [at for first, last, step in asked for at in range(first, last + 1, step)]
        assert resubmission.has_all(array, asked) is all(array.id_of(at) for at in each)


# -- the latest jobs of a user, and who may have a submission again ----------------------------


def rows(reply: dict[str, Any]) -> list[tuple[int, str, str, bool]]:
    return [(each["id"], each["name"], each["state"], each["live"]) for each in reply["recent"]]


async def test_own_jobs_and_arrays_come_newest_first(desk):
    first = await desk.submit(ALICE, name="train")
    await desk.submit(BOB, name="other")
    array = await desk.submit(ALICE, name="fit", array="1-3", held=True)
    last = await desk.submit(ALICE, name="train", held=True)
    await desk.finish(first)
    everything = [
        (last, "train", "HELD", True),
        (array, "fit", "HELD", True),
        (first, "train", "COMPLETED", False),
    ]
    assert rows(await desk.ask(ALICE, op="recent")) == everything
    assert rows(await desk.ask(ALICE, op="recent", limit=2)) == everything[:2]
    reply = await desk.ask(ALICE, op="recent", name="train")
    assert rows(reply) == [everything[0], everything[2]]
    assert rows(await desk.ask(ADMIN, op="recent")) == []
    assert reply["users"] == ["alice", "bob"]


async def test_ended_tasks_of_an_array_are_one_row(desk):
    array = await desk.submit(ALICE, cores=0.1, array="1-2", name="fit")
    await desk.finish(array + 1)
    assert rows(await desk.ask(ALICE, op="recent")) == [(array, "fit", "STARTING", True)]
    await desk.finish(array + 2)
    assert rows(await desk.ask(ALICE, op="recent")) == [(array, "fit", "array", False)]


async def test_a_submission_is_for_its_user_alone(desk):
    job_id = await desk.submit(ALICE, name="train", env={"A": "1"}, script="#!/bin/sh\n")
    for live in (True, False):
        reply = await desk.ask(ALICE, op="submission", id=job_id)
        assert (reply["live"], reply["submission"]["env"]) == (live, {"A": "1"})
        for other in (ADMIN, BOB):
            with pytest.raises(NotPermitted) as refusal:
                await desk.ask(other, op="submission", id=job_id)
            assert refusal.value.text == (
                f"job {job_id} belongs to alice, who alone may submit it again"
            )
        if live:
            await desk.finish(job_id)


async def test_tasks_share_the_submission_of_their_array(desk):
    array = await desk.submit(ALICE, cores=0.1, array="1,5-7:2%1", env={"A": "1"})
    whole = await desk.ask(ALICE, op="submission", id=array)
    assert (whole["label"], whole["submission"]["array"]) == (str(array), "1,5-7:2%1")
    await desk.ask(ALICE, op="cancel", select={"ids": [array]})
    await desk.finish(array + 1)
    for ref in (f"{array}_7", array + 3):
        task = await desk.ask(ALICE, op="submission", id=ref)
        assert (task["label"], task["live"]) == (f"{array}_7", False)
        assert task["submission"] == {**whole["submission"], "array": "7"}
    assert (await desk.ask(ALICE, op="submission", id=array))["live"] is False


async def test_who_else_holds_a_job_is_told_with_its_submission(desk):
    job_id = await desk.submit(ALICE, held=True)
    assert "held_by" not in await desk.ask(ALICE, op="submission", id=job_id)
    await desk.ask(ADMIN, op="hold", select={"ids": [job_id]})
    assert (await desk.ask(ALICE, op="submission", id=job_id))["held_by"] == "root"


async def test_what_is_not_kept_any_more_is_said(desk):
    job_id = await desk.submit(ALICE)
    await desk.finish(job_id)
    desk.shell.journal._db.execute("delete from blobs")
    with pytest.raises(Refused) as refusal:
        await desk.ask(ALICE, op="submission", id=job_id)
    assert refusal.value.code == "not-kept"
    assert str(refusal.value) == (
        f"the environment and the script of job {job_id} are not kept any more"
        f" (drf show {job_id} has its command: submit it anew)"
    )


async def test_a_long_command_is_told_whole_and_else_its_beginning(desk):
    argv = ["run", "x" * 30_000]
    job_id = await desk.submit(ALICE, argv=argv)
    await desk.finish(job_id)
    assert (await desk.ask(ALICE, op="show", id=job_id))["job"]["argv"] == argv
    again = await desk.ask(ALICE, op="submission", id=job_id)
    assert again["submission"]["argv"] == argv
    desk.shell.journal._db.execute("delete from blobs")
    first, rest = (await desk.ask(ALICE, op="show", id=job_id))["job"]["argv"]
    assert (first, rest[-2:], len(rest) < 30_000) == ("run", "x…", True)
