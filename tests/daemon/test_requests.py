"""Verbs, one by one: who may, what changes, what is told."""

import asyncio
import gc
import json
import logging
import time
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from daemon.desk import Desk, View, gpu_line, gpu_process, gpu_reading
from daemon.fake_launcher import GREETING
from drfd import __version__
from drfd.common.errors import DrfdError, NotPermitted, Refused
from drfd.common.units import utc_time
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.stimuli import Actor, FrozenReport, Tick
from drfd.core.fairness.rules import Pool, ReservationSettings
from drfd.core.model.calendar import Calendar, LimitSpan, LimitSteps
from drfd.core.model.effects import Freeze, Launch, Thaw
from drfd.core.model.machine import InstancePlace
from drfd.daemon.children.children import Children
from drfd.daemon.config import Config, survey
from drfd.daemon.countable import CountableResource
from drfd.daemon.engine import engine
from drfd.daemon.handlers import batch
from drfd.daemon.handlers.doctor import (
    InstallContext,
    away_text,
    countable_controls,
    cures,
    disk_control,
    private_view,
)
from drfd.daemon.handlers.requests import VERBS
from drfd.daemon.launcher_link.messages import LaunchSettings
from drfd.daemon.lookup.follow import EventFeed
from drfd.daemon.lookup.lookup import Lookup
from drfd.daemon.lookup.snapshots import Overview, SnapshotFeed
from drfd.daemon.server import encode, log_audit
from drfd.devices.gpus import Gpu
from drfd.host.disks import Disk
from drfd.host.measurements import Machine
from drfd.journal import history
from drfd.launcher.protocol import NO_PIN
from drfd.protocol import requests as msg
from drfd.protocol.requests import Selection
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    GIB,
    all_events,
    demand,
    ended,
    launched,
    now,
    replace,
    rules,
    spec,
    tables,
    with_gpus,
)


async def refusal(asked: Awaitable[Any]) -> tuple[type, str]:
    with pytest.raises(Refused) as error:
        await asked
    return type(error.value), error.value.code


# -- hello, submit, also without submitting ----------------------------------------------------


async def test_hello_tells_version_and_who_is_asking(desk):
    assert await desk.ask(BOB, op="hello") == {
        "version": __version__, "user": "bob", "admin": False, "key_file": None,
        "time_limit_s": desk.requests.site.defaults.time_limit_s,
    }  # fmt: skip
    desk.link.hello = replace(GREETING, private_tmp="/var/lib/private")
    assert (await desk.ask(BOB, op="hello"))["private_tmp"] is True, "that alone, and not where"


async def test_hello_has_a_key_written_for_a_user_who_cannot_read_one(desk, tmp_path, monkeypatch):
    """Under a name that the next owner of the uid does not ask for; and for no stranger. Whether it
    is there is not looked at: a user's file system over the own file never answered."""
    ordered: list[int] = []
    monkeypatch.setattr(desk.link, "order_key", ordered.append)
    desk.requests.keys_dir = tmp_path
    named = [(await desk.ask(who, op="hello"))["key_file"] for who in (BOB, replace(BOB, user="b"))]
    assert {Path(each).parent for each in named} == {tmp_path} and len(set(named)) == 2
    assert ordered == []
    assert (await desk.ask(BOB, op="hello", needs_key=True))["key_file"] == named[0]
    stranger = replace(BOB, uid=9999, user="9999", has_account=False)
    assert (await desk.ask(stranger, op="hello", needs_key=True))["key_file"] is None
    assert ordered == [BOB.uid]


@pytest.mark.parametrize("array", [None, "0-3"])
async def test_nobody_repeats_another_users_job(desk, array):
    """Its user's retries would wait for the stranger's job, and leave out what seems repeated."""
    fields: View = {} if array is None else {"array": array}
    job_id = await desk.submit(ALICE, held=True, **fields)
    assert await refusal(desk.submit(BOB, again={"of": job_id})) == (NotPermitted, "not-yours")
    own = await desk.submit(ALICE, held=True, again={"of": job_id}, **fields)
    reply = await desk.ask(ALICE, op="submission", id=job_id)
    assert [each["label"] for each in reply["repeats"]] == [str(own)]
    assert await refusal(desk.submit(BOB, again={"of": 99})) == (Refused, "no-such-job")


def books(desk: Desk) -> tuple[object, ...]:
    """All that a submission would leave a trace in."""
    engine, journal = desk.shell.engine, desk.shell.journal
    return tables(engine.ledger), all_events(journal), engine.scheduler.last_plan


async def dry(desk: Desk, cores: float = 1, **fields: Any) -> View:
    demand = {"cores_milli": round(cores * 1000), "memory_bytes": GIB}
    asked = {"argv": ["true"], "cwd": "/home", "demand": demand, **fields}
    return await desk.ask(ALICE, op="submit", dry_run=True, **asked)


async def test_a_dry_run_is_refused_where_the_submission_would_be(make_desk):
    desk = make_desk(by=rules(max_waiting_per_user=1), takes_root=False)
    asks: list[tuple[dict[str, Any], tuple[type, str]]] = [
        ({"cores": 10}, (Refused, "too-big")),
        ({"demand": {"gres": {"gpu": 1}}}, (Refused, "no-such-resource")),
        ({"pool": "nowhere"}, (Refused, "no-such-pool")),
        ({"argv": []}, (Refused, "no-command")),
    ]
    for fields, why in asks:
        assert await refusal(dry(desk, **fields)) == why
    root = desk.ask(ADMIN, op="submit", dry_run=True, argv=["true"], cwd="/")
    assert await refusal(root) == (NotPermitted, "root")
    await desk.submit(ALICE, held=True)
    before = books(desk)
    assert await refusal(dry(desk)) == (Refused, "too-many-jobs")
    assert books(desk) == before


# -- looking -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["show", "why"])
async def test_of_others_jobs_no_more_is_shown_than_lists_show(desk, verb):
    """And no less: whose sentence `status` prints to everybody is no secret of `why`."""
    await desk.submit(ALICE)
    waiting = await desk.submit(ALICE, after=[{"id": 1}], begin_s=4_000_000_000)
    status = desk.ask(BOB, op="status", select={"ids": [9]})
    for asked in (desk.ask(BOB, op=verb, id=9), status):
        assert await refusal(asked) == (Refused, "no-such-job")
    assert (await desk.ask(ADMIN, op=verb, id=1))["job"]["argv"] == ["true"]

    async def compare(job_id: int) -> dict[str, Any]:
        reply = await desk.ask(BOB, op=verb, id=job_id)
        (row,) = (await desk.ask(BOB, op="status", select={"ids": [job_id]}))["jobs"]
        job = reply["job"]
        # `why` alone asks for an estimate of the start, which is too dear for a list.
        assert {name: job[name] for name in row} | {"expected_start_at": None} == row
        hidden = [job[name] for name in ("argv", "cwd", "stdout", "stderr")]
        assert hidden == [None] * 4
        assert (job["after"], job["begin_at"], job["retry"], job["warn"]) == ([], None, None, None)
        assert not reply.get("events")
        assert not reply.get("notes")
        assert not reply.get("advice")
        return dict(job)

    assert (await compare(waiting))["reason"]["code"] == "DEPENDENCY"
    await compare(1)
    await desk.finish(1)
    assert (await compare(1))["outcome"] == {"code": "COMPLETED", "text": ""}


# -- waiting and acting ------------------------------------------------------------------------


async def test_wait_returns_when_all_have_ended_with_their_exit_codes(desk):
    for _ in range(2):
        await desk.submit(ALICE)
    waiting = asyncio.create_task(desk.ask(ALICE, op="wait", ids=[2, 1]))
    await desk.finish(1, exit_code=3)
    for timeout_s in (0, 0.01):
        reply = await desk.ask(ALICE, op="wait", ids=[1, 2], timeout_s=timeout_s)
        assert (reply["done"], [job["id"] for job in reply["ended"]]) == (False, [1])
    assert not waiting.done()
    await desk.finish(2, exit_code=None, signal=11)
    reply = await waiting
    assert reply["done"] is True
    assert [(job["id"], job["state"], job["status"]) for job in reply["ended"]] == [
        (2, "FAILED", 139),
        (1, "FAILED", 3),
    ]


async def test_nobody_waits_for_others_jobs_or_for_none(desk):
    await desk.submit(ALICE)
    assert await refusal(desk.ask(BOB, op="wait", ids=[1])) == (NotPermitted, "not-yours")
    assert await refusal(desk.ask(BOB, op="wait", ids=[7])) == (Refused, "no-such-job")


async def test_a_job_is_shown_with_all_its_options_but_to_its_owner_alone(desk):
    notify = {"on": ["end"], "argv": ["sh", "-c", "echo"]}
    asked = {"append": True, "priority": 3, "umask": 0o27, "notify": notify}
    for job_id in (await desk.submit(ALICE, **asked), await desk.submit(ALICE, array="1", **asked)):
        shown = await desk.ask(ALICE, op="show", id=job_id)
        options = shown["array" if "array" in shown else "job"]["options"]
        assert options.items() >= asked.items()
        assert options["demand"]["cores_milli"] == 1000 and "argv" not in options
    other = await desk.ask(BOB, op="show", id=1)
    assert "options" not in other["job"]


async def test_a_comment_is_kept_shown_and_changed_also_while_the_job_runs(desk):
    shown = []
    for change in (None, "fold 4", ""):
        if change is None:
            await desk.submit(ALICE, comment="fold 3")
            await desk.feed(launched(1))
        else:
            reply = await desk.ask(ALICE, op="set", select={"ids": [1]}, comment=change)
            assert reply == {"done": [1], "failed": []}
        reply = await desk.ask(BOB, op="status")
        shown.append([job.get("comment") for job in reply["jobs"]])
    assert shown == [["fold 3"], ["fold 4"], [None]]
    events = (await desk.ask(ALICE, op="show", id=1))["events"]
    assert [event["text"] for event in events if event["event"] == "Changed"] == [
        "comment fold 3 → fold 4, by alice", "comment fold 4 → none, by alice",
    ]  # fmt: skip


async def test_suspend_and_resume(desk):
    await desk.submit(ALICE, 5)
    await desk.submit(BOB, 5)
    await desk.feed(launched(1))
    desk.shell.host.take()
    suspended = await desk.ask(ALICE, op="suspend", select={"ids": [1, 2, 77]})
    assert suspended["done"] == [1]
    assert sorted((f["id"], f["error"]["code"]) for f in suspended["failed"]) == [
        (2, "not-yours"),
        (77, "no-such-job"),
    ]
    assert desk.shell.host.take() == [Freeze(1, 1)]
    assert await seen(desk, "RUNNING", "PENDING") == [None, "RESOURCES"]
    await desk.feed(FrozenReport(now().at_s, 1, 1, mono_s=now().mono_s))
    assert desk.shell.host.take() == [Freeze(1, 1), Launch(2, 1)]
    assert await seen(desk, "SUSPENDED", "STARTING") == ["HELD", None]
    job = (await desk.ask(ALICE, op="show", id=1))["job"]
    assert job["suspended_at"] >= job["started_at"] and "suspended_seconds" not in job
    resumed = await desk.ask(ALICE, op="resume", select={"states": ["SUSPENDED"]})
    assert resumed == {"done": [1], "failed": []}
    assert await seen(desk, "SUSPENDED", "STARTING") == ["RESOURCES", None]
    await desk.finish(2)
    assert desk.shell.host.take()[-1] == Thaw(1, 1)
    assert await seen(desk, "RUNNING") == [None]
    job = (await desk.ask(ALICE, op="show", id=1))["job"]
    assert "suspended_at" not in job
    again = await desk.ask(ALICE, op="resume", select={"ids": [1]})
    assert [f["error"]["code"] for f in again["failed"]] == ["not-suspended"]


async def test_a_user_is_told_when_a_suspended_job_is_ended_and_a_reload_counts_at_once(make_desk):
    bounded = replace(rules(), max_suspended_s=7200)
    desk = make_desk(by=bounded)
    for actor in (ALICE, BOB, ALICE):
        await desk.submit(actor, 1)
    await desk.feed(launched(1), launched(2), launched(3))
    until_s = now(7200).at_s
    reply = await desk.ask(ALICE, op="suspend", select={"ids": [1]})
    assert reply == {"done": [1], "failed": [], "ended_at": until_s}
    assert "ended_at" not in await desk.ask(ADMIN, op="suspend", select={"ids": [2]})
    await desk.feed(*(FrozenReport(now().at_s, each, 1, mono_s=now().mono_s) for each in (1, 2)))
    reason = (await desk.ask(ALICE, op="why", id=1))["job"]["reason"]
    assert reason["text"] == (
        f"suspended by alice; drf resume 1 lets it go on, or it is ended at {utc_time(until_s)}"
    )
    engine = desk.shell.engine
    assert engine.due_s() == 7200
    engine.adopt(replace(bounded, max_suspended_s=None))
    assert "ended_at" not in await desk.ask(ALICE, op="suspend", select={"ids": [3]})
    assert engine.due_s() is None or engine.due_s() > 7200
    engine.adopt(replace(bounded, max_suspended_s=60))
    await desk.feed(Tick(now(60)))
    jobs = (await desk.ask(ADMIN, op="status"))["jobs"]
    states = {each["id"]: each["state"] for each in jobs}
    assert states == {1: "STOPPING", 2: "SUSPENDED", 3: "RUNNING"}, "3 is not frozen yet"
    desk.shell.host.take()


async def seen(desk: Desk, *states: str) -> list[str | None]:
    """The codes of the reasons why live jobs wait, which are in these states."""
    jobs = (await desk.ask(ALICE, op="status"))["jobs"]
    assert [job["state"] for job in jobs] == list(states)
    return [job["reason"] and job["reason"]["code"] for job in jobs]


# -- conditions and changes --------------------------------------------------------------------


async def test_how_jobs_ended_long_ago_is_known(desk):
    good, bad = await desk.submit(ALICE), await desk.submit(ALICE)
    await desk.finish(good)
    await desk.finish(bad, exit_code=1)
    third = await desk.submit(ALICE, after=[{"id": good}, {"id": bad, "want": "fail"}])
    jobs = desk.shell.engine.ledger.jobs
    assert jobs[third].state == "STARTING"
    fourth = await desk.submit(ALICE, after=[{"id": bad}])
    view = (await desk.ask(ALICE, op="why", id=fourth))["job"]
    assert view["reason"]["code"] == "DEPENDENCY_NEVER"
    assert view["expected_start_at"] is None
    await desk.ask(ALICE, op="set", select={"ids": [fourth]}, after=[{"id": bad, "want": "any"}])
    assert jobs[fourth].state == "STARTING"
    assert await refusal(desk.submit(ALICE, after=[{"id": 99}])) == (Refused, "no-such-job")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "a\0b"}, "bad-request"),
        ({"pool": "nowhere"}, "no-such-pool"),
        ({"demand": {"cores_milli": 99_000}}, "too-big"),
    ],
)
async def test_a_wrong_change_is_refused(desk, change, code):
    job_id = await desk.submit(ALICE, held=True)
    asked = desk.ask(ALICE, op="set", select={"ids": [job_id]}, **change)
    if code == "bad-request":
        assert await refusal(asked) == (Refused, code)
    else:
        assert (await asked)["failed"][0]["error"]["code"] == code


# -- what is counted -----------------------------------------------------------------------------


def gpus(count: int) -> dict[str, Any]:
    return {"demand": {"cores_milli": 1000, "memory_bytes": GIB, "gres": {"gpu": count}}}


async def test_show_tells_the_memory_nodes_of_the_gpus_of_a_job(make_desk):
    by = with_gpus(4)
    places = [(("gpu", str(number)), InstancePlace(number // 2)) for number in range(4)]
    desk = make_desk(by=replace(by, axes=replace(by.axes, places=tuple(places))))
    one, two = await desk.submit(ALICE, **gpus(1)), await desk.submit(ALICE, **gpus(2))
    shown = [(await desk.ask(ALICE, op="show", id=each))["job"] for each in (one, two)]
    found = [(each["gres_instances"], each["memory_nodes"]) for each in shown]
    assert found == [({"gpu": ["0"]}, [0]), ({"gpu": ["2", "3"]}, [1])]
    assert (await desk.ask(BOB, op="show", id=one))["job"]["memory_nodes"] == []
    desk.shell.host.take()


async def test_without_cgroups_a_range_of_cores_is_refused(make_desk):
    desk = make_desk()
    desk.link.hello = GREETING
    ranged = {"cores_milli": 1000, "cores_max_milli": 4000}
    fields = {"op": "submit", "argv": ["true"], "cwd": "/"}
    with pytest.raises(Refused, match="cannot have ranges of cores here") as refused:
        await desk.ask(ALICE, **fields, demand=ranged)
    assert (refused.value.code, refused.value.hint) == ("no-ranges", "write -c 1")
    job_id = await desk.submit(ALICE, demand={"cores_milli": 1000}, held=True)
    with pytest.raises(Refused, match="cannot have ranges of cores here"):
        await desk.ask(ALICE, op="set", select={"ids": [job_id]}, demand=ranged)


async def test_the_memory_on_each_gpu_of_a_waiting_job_can_be_changed(make_desk):
    """What is not named stays: another number keeps the memory, none takes it away."""
    desk = make_desk(by=with_gpus(2))
    asked = {**gpus(1)["demand"], "gres_memory": {"gpu": 20 * GIB}}
    job_id = await desk.submit(ALICE, held=True, demand=asked)
    submission = (await desk.ask(ALICE, op="submission", id=job_id))["submission"]
    assert submission["demand"]["gres_memory"] == {"gpu": 20 * GIB}
    for change, shown in (
        ({"gres": {"gpu": 2}}, {"gpu": 20 * GIB}),
        ({"gres_memory": {"gpu": 30 * GIB}}, {"gpu": 30 * GIB}),
        ({"gres_memory": {"gpu": 0}}, {}),
        ({"gres": {"gpu": 1}, "gres_memory": {"gpu": GIB}}, {"gpu": GIB}),
        ({"gres": {"gpu": 0}}, {}),
    ):
        await desk.ask(ALICE, op="set", select={"ids": [job_id]}, demand=change)
        job = (await desk.ask(ALICE, op="show", id=job_id))["job"]
        assert job["demand"].get("gres_memory", {}) == shown
    events = (await desk.ask(ALICE, op="show", id=job_id))["events"]
    assert [each["text"] for each in events if each["event"] == "Changed"] == [
        "gres 1 gpu with 20G of memory each → 2 gpu with 20G of memory each, by alice",
        "gres 2 gpu with 20G of memory each → 2 gpu with 30G of memory each, by alice",
        "gres 2 gpu with 30G of memory each → 2 gpu, by alice",
        "gres 2 gpu → 1 gpu with 1G of memory each, by alice",
        "gres 1 gpu with 1G of memory each → none, by alice",
    ]


async def test_doctor_says_what_is_measured_of_gpus(make_desk):
    desk = make_desk(by=with_gpus(2))

    async def said() -> str | None:
        return (await desk.ask(BOB, op="doctor"))["controls"].get("gpu use")

    link = desk.requests.link
    assert await said() is None
    link.hello = replace(GREETING, kind="none")
    assert await said() == "not measured: no GPU of NVIDIA has been read yet"

    def measure(*read: View, why: str | None = None) -> None:
        link.gpu_use.take(gpu_line(*read, why=why), {})

    plain = {"utilisation": None}
    lost = gpu_reading(**plain, is_lost=True, memory_used=None, processes=None)
    measure(gpu_reading(**plain), lost)
    figures = "1 lost, 1 without memory, 2 without utilisation, 1 without processes"
    assert await said() == f"measured on 2 GPUs: {figures}"
    measure(why="no driver")
    assert await said() == "not measured: no driver"
    measure(gpu_reading())
    assert await said() == "measured on 1 GPU"
    (shown,) = (await desk.ask(BOB, op="status"))["gpus"]
    assert (shown["uuid"], shown["memory_used"], shown["memory_outside"]) == ("GPU-a", 900, 900)


async def test_the_owner_is_told_where_declared_memory_of_a_gpu_is_not_watched(make_desk):
    """At the submission and while the job lives, and nobody else's demand is refused for it."""
    desk = make_desk(by=with_gpus(2))
    link = desk.requests.link
    link.hello = replace(GREETING, kind="none")
    demand = {**gpus(2)["demand"], "gres_memory": {"gpu": 20 * GIB}}
    one = gpu_reading(memory_total=24 * GIB)
    two = one | {"name": "1", "uuid": "GPU-b", "pci": "0000:02:00.0", "memory_total": 48 * GIB}

    async def submit(**fields: Any) -> View:
        return await desk.ask(
            ALICE, op="submit", argv=["true"], cwd="/", **{"demand": demand, **fields}
        )

    async def said() -> str:
        return (await desk.ask(BOB, op="doctor"))["controls"]["gpu memory"]

    def measure(*read: View, why: str | None = None) -> None:
        jobs = desk.shell.engine.ledger.jobs
        link.gpu_use.take(gpu_line(*read, why=why), jobs)

    measure(why="no library")
    silent = "the declared memory of a gpu is not watched: no library"
    first = await submit()
    assert first["notes"] == [silent]
    assert (await submit(array="0-1"))["notes"] == [silent]
    assert "notes" not in await submit(**gpus(1))
    assert await said() == "not kept: no library"
    shown = (await desk.ask(ALICE, op="show", id=first["id"]))["job"]
    assert (shown["gpu_memory_each"], shown["gpu_memory_unkept"]) == ({}, "not watched: no library")
    measure(one, two | {"processes": None})
    where = "not watched on GPU 1: its driver does not say which processes use it"
    assert (await submit())["notes"] == [f"the declared memory of a gpu is {where}"]
    assert await said() == (
        "0 measured every 2 s, job stopped after 2 readings above; 1 not kept: its driver does not "
        "say which processes use it"
    )
    link.hello = replace(GREETING, limits_gpus=["0000:02:00.0"])
    link.gpus.known = (Gpu(name="1", vendor="amd", pci="0000:02:00.0", uuid="GPU-b"),)
    assert "notes" not in await submit()
    assert (await said()).endswith("after 2 readings above; 1 kernel (dmem)")
    desk.requests.meter.watch((first["id"], 1), 0, "drfd/1.1")
    measure(one | {"processes": [gpu_process(1, "/drfd/1.1", memory=GIB)]}, two)
    shown = (await desk.ask(BOB, op="show", id=first["id"]))["job"]
    assert shown["gpu_memory_each"] == {"0": GIB, "1": 0}
    assert "gpu_memory_unkept" not in shown
    assert "notes" not in await submit()
    desk.shell.host.take()


async def test_names_may_be_patterns_and_stay_names(desk):
    for name in ("train-1", "train-2", "eval", "[red]", "e"):
        await desk.submit(ALICE, held=True, name=name)
    for pattern, ids in (("train-*", [1, 2]), ("[red]", [4, 5]), ("eval", [3])):
        reply = await desk.ask(ALICE, op="cancel", select={"name": pattern})
        assert reply["done"] == ids
    # Python's own fnmatch keeps 32,768 of them, a quarter of a gigabyte of long ones.
    assert history.compiled.cache_info().maxsize == 64


# -- groups that users make of their jobs ----------------------------------------------------


async def test_jobs_of_a_group_are_submitted_listed_changed_and_cancelled(desk):
    ids = [await desk.submit(ALICE, group="sweep%1") for _ in range(3)]
    other = await desk.submit(ALICE, group="other")
    plain = await desk.submit(BOB)
    selection = {"group": "sweep"}
    jobs = (await desk.ask(BOB, op="status", select=selection))["jobs"]
    assert [(job["id"], job["group"], job["group_at_once"]) for job in jobs] == [
        (each, "sweep", 1) for each in ids
    ]
    assert [job["state"] for job in jobs] == ["STARTING", "PENDING", "PENDING"]
    assert jobs[1]["reason"] == {
        "code": "LIMIT",
        "text": "group sweep runs 1 at once at the most",
    }
    everything = (await desk.ask(BOB, op="status"))["jobs"]
    assert {job["id"]: job.get("group") for job in everything}[plain] is None
    held = await desk.ask(ALICE, op="hold", select={**selection, "states": ["PENDING"]})
    assert held["done"] == ids[1:]
    await desk.ask(ALICE, op="release", select=selection)
    changed = await desk.ask(ALICE, op="set", select={"ids": ids[1:]}, group="sweep%3")
    assert changed["done"] == ids[1:]
    jobs = (await desk.ask(BOB, op="status", select=selection))["jobs"]
    assert [job["state"] for job in jobs] == ["STARTING"] * 3
    gone = await desk.ask(ALICE, op="cancel", select={"group": "other"})
    assert gone["done"] == [other]
    nothing = await desk.ask(BOB, op="cancel", select=selection)
    assert nothing["done"] == []


async def test_a_group_that_cannot_be_read_is_refused(desk):
    for text in ("a b", "%2", "a%0"):
        with pytest.raises(Refused, match="--group"):
            await desk.submit(ALICE, group=text)
    job_id = await desk.submit(ALICE, held=True)
    with pytest.raises(Refused, match="--group"):
        await desk.ask(ALICE, op="set", select={"ids": [job_id]}, group="a%x")


# -- drain, shares, doctor ---------------------------------------------------------------------


async def test_drain_and_shutdown_are_for_administrators(desk):
    for asked in (
        {"op": "drain", "on": True},
        {"op": "shutdown"},
        {"op": "shutdown", "kill_jobs": True},
    ):
        assert await refusal(desk.ask(ALICE, **asked)) == (NotPermitted, "not-admin")
    assert desk.told_to_end == []
    for _ in range(2):
        assert await desk.ask(ADMIN, op="drain", on=True) == {"draining": True}
    await desk.submit(ALICE)
    assert desk.shell.host.take() == []
    status = await desk.ask(ALICE, op="status")
    assert status["draining"] is True
    assert status["jobs"][0]["reason"]["code"] == "DRAINING"
    assert await desk.ask(ADMIN, op="drain", on=False) == {"draining": False}
    again = await desk.ask(ADMIN, op="drain", on=False)
    assert again == {"draining": False, "was_undrained": True}
    assert desk.shell.host.take() == [Launch(1, 1)]


#: Of a reply, as long as nothing is wrong with the service.
THERE = {"launcher_away_s": None, "notices": []}
AWAY = "the launcher has been away for 12s: no job starts or is stopped until it is back; "


@pytest.mark.parametrize(
    ("is_service", "cure"),
    [
        (True, "systemctl start drfd-launcher starts it"),
        (False, "it is started again by itself, and the log of drfd says why"),
    ],
)
async def test_while_the_launcher_is_away_whoever_asks_for_the_queue_is_told(
    desk, monkeypatch, is_service, cure
):
    """With running jobs alone nothing said so but drf doctor."""
    desk.requests.install = replace(desk.requests.install, is_service=is_service)
    await desk.submit(ALICE)
    there = await desk.ask(BOB, op="status")
    assert {key: there[key] for key in THERE} == THERE
    monkeypatch.setattr(desk.link, "away_s", lambda: 12.34)
    told = {"launcher_away_s": 12.3, "notices": [{"code": "LAUNCHER_AWAY", "text": AWAY + cure}]}
    for asked in ({"op": "status"}, {"op": "doctor"}, {"op": "hello"}):
        reply = await desk.ask(BOB, **asked)
        assert {key: reply[key] for key in THERE} == told


async def test_a_maintenance_window_is_announced_a_day_before_and_while_open(desk):
    def window(name: str, from_s: float) -> LimitSpan:
        at_s = now(from_s).at_s
        return LimitSpan(name=name, start_s=at_s, end_s=at_s + 7200, reason="new kernel")

    windows = window("open", -3600), window("soon", 80000), window("late", 90000)
    desk.requests.engine.adopt_calendar(Calendar(windows=windows))
    await desk.submit(ALICE)
    status = await desk.ask(BOB, op="status")
    reason = status["jobs"][0]["reason"]
    assert reason["code"] == "MAINTENANCE"
    assert reason["text"].startswith("the maintenance window open is open until ")
    told = [(each["code"], each["text"]) for each in status["notices"]]
    at = [utc_time(now(at_s).at_s) for at_s in (3600, 80000, 87200)]
    assert told == [
        ("MAINTENANCE", f"maintenance until {at[0]} (open); nothing starts before: new kernel"),
        (
            "MAINTENANCE",
            f"maintenance from {at[1]} to {at[2]} (soon); no job starts that might not end before: "
            "new kernel",
        ),
    ]
    windows = (await desk.ask(BOB, op="doctor"))["windows"]
    assert [each["name"] for each in windows] == ["open", "soon", "late"]
    assert windows[0] == {
        "name": "open", "start": now(-3600).at_s, "end": now(3600).at_s, "reason": "new kernel",
        "weekly": False,
    }  # fmt: skip
    (pending,) = (node for node in (await desk.ask(BOB, op="shares"))["nodes"])
    assert pending["pending"] == 1


async def test_whatever_a_job_waits_for_shares_counts_it_as_waiting(desk):
    """As the counts by state do, on the same screen."""
    await desk.submit(ALICE, array="0-4%1")
    await desk.submit(ALICE, begin_s=4_000_000_000)
    await desk.submit(ALICE, held=True)
    await desk.submit(BOB, held=True)
    nodes = (await desk.ask(BOB, op="shares"))["nodes"]
    seen = {node["path"]: (node["running"], node["pending"]) for node in nodes}
    counts = (await desk.ask(BOB, op="status"))["counts"]
    assert seen == {"root.alice": (1, 6), "root.bob": (0, 1)}
    assert counts == {"STARTING": 1, "PENDING": 5, "HELD": 2}


async def test_limits_by_hour_are_shown_with_the_next_change(desk):
    assert "limit_hours" not in await desk.ask(BOB, op="shares")
    plain = replace(rules(), pools={"lab": Pool(limit={"cores": 4000})})
    times = tuple(now(at_s).at_s for at_s in (0, 3600, 7200))
    steps = ({"cores": 1500, "memory": GIB}, {}, {"cores": 0})
    hours = Calendar({"root.lab": LimitSteps(times, steps)})
    desk.requests.engine.adopt(plain, hours)
    at = utc_time(times[1])
    told = [
        {
            "path": "root.lab", "limit": {"cores": 1.5, "memory": GIB}, "until": times[1],
            "next": {}, "text": f"limit of lab: 1.5 cores, 1G of memory until {at}, then no limit",
        },
    ]  # fmt: skip
    assert (await desk.ask(BOB, op="shares"))["limit_hours"] == told
    assert (await desk.ask(BOB, op="doctor"))["limit_hours"] == told
    await desk.submit(ALICE, 4, pool="lab")
    (waits,) = (await desk.ask(BOB, op="status"))["jobs"]
    text = f"needs 4 cores, and lab may hold 1.5 until {at}"
    assert (waits["reason"]["code"], waits["reason"]["text"]) == ("LIMIT", text)
    lasting = Calendar({"root.lab": LimitSteps(times[:1], ({"cores": 0},))})
    desk.requests.engine.adopt(plain, lasting)
    (only,) = (await desk.ask(BOB, op="doctor"))["limit_hours"]
    assert (only["until"], only["next"], only["text"]) == (None, None, "limit of lab: 0 cores")


@pytest.mark.parametrize("op", ["cancel", "suspend"])
async def test_what_waits_for_the_launcher_is_said_to_wait_and_nothing_else(desk, monkeypatch, op):
    """A cancellation was said to be done, and nothing happened."""
    await desk.submit(ALICE)
    await desk.submit(ALICE, 9)
    await desk.feed(launched(1))
    monkeypatch.setattr(desk.link, "away_s", lambda: 12.34)
    reply = await desk.ask(ALICE, op=op, select={"ids": [1]})
    assert reply["done"] == [1]
    assert [each["code"] for each in reply["notices"]] == ["LAUNCHER_AWAY"]
    assert await desk.ask(ALICE, op="cancel", select={"ids": [2]}) == {"done": [2], "failed": []}


async def test_a_shutdown_that_kills_stops_what_runs_and_starts_nothing(desk):
    await desk.submit(ALICE, 9)
    await desk.submit(BOB, 9)
    await desk.feed(launched(1))
    reply = await desk.ask(ADMIN, op="shutdown", kill_jobs=True)
    assert reply == {"done": [1], "failed": [], "running": [1]} | THERE
    assert desk.told_to_end == [True]
    await desk.finish(1, signal=15, exit_code=None)
    assert (await desk.ask(ADMIN, op="show", id=1))["job"]["state"] == "CANCELLED"
    assert (await desk.ask(ADMIN, op="show", id=2))["job"]["state"] == "PENDING"


async def test_a_job_that_has_ended_is_refused_by_name_and_meant_by_no_filter(desk):
    """While it was removed, "cancelled" was said of it."""
    await desk.submit(ALICE)
    await desk.feed(launched(1), ended(1))
    reply = await desk.ask(ALICE, op="cancel", select={"ids": [1]})
    (failure,) = reply["failed"]
    assert (reply["done"], failure["error"]["code"]) == ([], "ended")
    assert failure["error"]["text"] == "job 1 has already ended: COMPLETED"
    reply = await desk.ask(ALICE, op="cancel", select={"everything": True})
    assert reply == {"done": [], "failed": []}
    reply = await desk.ask(ADMIN, op="shutdown", kill_jobs=True)
    assert reply == {"done": [], "failed": [], "running": [1]} | THERE
    desk.shell.host.take()


async def test_doctor_tells_what_is_enforced_and_what_is_wrong(desk):
    away = await desk.ask(BOB, op="doctor")
    assert away == {
        "version": __version__, "enforcement": None, "controls": {},
        "disks": [
            {
                "name": "data", "path": "/data", "device": "8:0", "filesystem": "", "read": 2000,
                "write": 1000, "control": {}, "guess": False, "problem": "",
            },
        ],
        "capacity": {"cores": 9.0, "memory": 18 * GIB, "read": 1000, "write": 1000, "gres": {}},
        "warnings": ["a warning"], "stuck_jobs": [], "strays": [], "launcher": "away",
        "launcher_away_s": None, "notices": [], "draining": False,
        "cures": ["no job starts while the launcher is away: the log of drfd says why"],
        "private": {}, "processes": None, "external": None, "gres": {},
        "windows": [], "limit_hours": [],
    }  # fmt: skip
    modes = {"quota": "enforced", "pin": "enforced: whole cores"}
    rates = dict.fromkeys(("read", "write"), "measured: so")
    desk.link.hello = replace(GREETING, cores=modes)
    desk.link.stuck = {(7, 1), (3, 2)}
    there = await desk.ask(BOB, op="doctor")
    assert there == away | {
        "enforcement": "cgroup v1", "controls": {"cores": "enforced", **rates},
        "disks": [{**away["disks"][0], "control": rates}], "stuck_jobs": [3, 7],
        "private": private_view(desk.link.hello),
    }  # fmt: skip
    desk.link.settings = LaunchSettings((), 64, "pin")
    pinned = await desk.ask(BOB, op="doctor")
    assert pinned["controls"] == {"cores": "enforced: whole cores", **rates}


async def test_an_asker_who_has_left_does_not_disturb_the_turn(desk):
    left = asyncio.create_task(desk.submit(ALICE, held=True))
    stays = asyncio.create_task(desk.submit(ALICE, held=True))
    await asyncio.sleep(0)
    left.cancel()
    assert await stays == 2
    assert [job["id"] for job in (await desk.ask(ALICE, op="status"))["jobs"]] == [1, 2]


async def test_of_every_job_that_has_a_place_it_is_told_when_it_starts(make_desk):
    by = replace(rules(), reserving=ReservationSettings(delay_s=0, drain_after_s=9999, depth=2))
    desk = make_desk(by=by)
    first = await desk.submit(ALICE, 6, time_limit_s=600)
    for actor in (BOB, ALICE, ADMIN):
        await desk.submit(actor, 7, time_limit_s=600)
    shown = (await desk.ask(ADMIN, op="status", select={}))["jobs"]
    starts = {job["id"]: job["expected_start_at"] for job in shown}
    begin_s = desk.shell.engine.clock().at_s
    assert starts == {first: None, 2: begin_s + 600, 3: begin_s + 1200, 4: None}
    desk.shell.host.take()


# -- waiting in vain ---------------------------------------------------------------------------


async def test_what_waits_for_what_can_never_start_is_not_waited_for_either(desk):
    """Over a chain, and over an array; it is said what is behind it. It may become so by the end of
    another, or by a change."""

    def after(job_id: int) -> list[dict[str, Any]]:
        return [{"id": job_id, "want": "any"}]

    bad = await desk.submit(ALICE)
    broken = await desk.submit(ALICE, after=[{"id": bad, "want": "ok"}])
    array = await desk.submit(ALICE, after=after(broken), array="1-3")
    last = await desk.submit(ALICE, after=after(array))
    later = await desk.submit(ALICE, held=True)
    behind = await desk.submit(ALICE, after=after(later))
    waits = [
        asyncio.ensure_future(desk.ask(ALICE, op="wait", ids=[job_id]))
        for job_id in (array, last, later, behind)
    ]
    await asyncio.sleep(0)
    await desk.finish(bad, exit_code=3)
    told = [await wait for wait in waits[:2]]
    assert [[job["id"] for job in each["never"]] for each in told] == [[array + 1], [last]]
    why = f"job {broken} (alice), which never starts: see drf why {broken}"
    texts = [each["never"][0]["reason"]["text"] for each in told]
    assert texts == [f"waits for {why}", f"waits, over others, for {why}"]
    assert not waits[2].done() and not waits[3].done()
    await desk.ask(ALICE, op="set", select={"ids": [later]}, after=after(broken))
    told = [await wait for wait in waits[2:]]
    assert [job["id"] for each in told for job in each["never"]] == [later, behind]
    again = await desk.ask(ALICE, op="wait", ids=[last], timeout_s=0.0)
    assert [job["id"] for job in again["never"]] == [last]


async def test_who_has_used_up_the_bytes_stores_no_more_and_makes_room_by_cancelling(desk):
    desk.shell.engine.rules = replace(desk.shell.engine.rules, max_kept_bytes_per_user=36_000)
    most = desk.shell.engine.rules.max_kept_bytes_per_user
    long = {"stdout": "/" + "x" * 4000, "held": True}
    ids = []
    with pytest.raises(Refused, match=r"may take 35\.2K") as refusal:
        while len(ids) < 20:
            ids.append(await desk.submit(ALICE, **long))
    assert (refusal.value.code, len(ids)) == ("too-long", 4)
    assert most <= desk.shell.engine.journal.live_bytes(ALICE.uid) < most + most // 4
    await desk.submit(BOB, **long)
    for job_id in range(20):
        # None of them was counted: one user filled the disk by setting a priority again and again.
        change = {"op": "set", "select": {"ids": ids[:1]}, "priority": job_id}
        reply = await desk.ask(ALICE, **change)
    (error,) = reply["failed"]
    assert error["error"]["code"] == "too-long"
    await desk.ask(ALICE, op="cancel", select={"ids": ids[:2]})
    await desk.submit(ALICE, **long)


async def test_all_users_have_a_bound_together_and_each_has_a_little_in_any_case(desk, monkeypatch):
    """Many users together could exhaust the daemon's memory, each within a bound of his own."""
    monkeypatch.setattr(engine, "ALWAYS_BYTES", 5000)
    desk.shell.engine.rules = replace(desk.shell.engine.rules, max_kept_bytes=36_000)
    long = {"stdout": "/" + "x" * 4000, "held": True}
    for _ in range(4):
        await desk.submit(ALICE, **long)
    await desk.submit(BOB, **long)
    for user in (ALICE, BOB):
        with pytest.raises(Refused, match="of all users") as refusal:
            await desk.submit(user, **long)
        assert refusal.value.code == "too-much-kept"
    await desk.submit(ADMIN, **long)


async def test_of_many_names_in_vain_the_reply_has_the_first_and_their_count(desk, monkeypatch):
    """Each took a kilobyte of the daemon's memory, and a client may name 100,000."""
    monkeypatch.setattr(batch, "_MOST_REFUSALS", 3)
    over, live = await desk.submit(ALICE, array="0-4", held=True), await desk.submit(ALICE)
    await desk.ask(ALICE, op="cancel", select={"ids": [over]})
    names = [f"{over}_{index}" for index in range(7)] + [live, 900, 901]
    reply = await desk.ask(ALICE, op="cancel", select={"ids": names})
    assert (reply["done"], len(reply["failed"]), reply["unnamed"]) == ([live], 3, 6)
    assert {each["error"]["code"] for each in reply["failed"]} <= {"ended", "no-such-job"}


def largest(names: list[Any], waited: int) -> dict[str, View]:
    """The request of each verb that names jobs, with as many of these tasks as it takes; `waited`
    is a job that waits for all of them."""
    select: View = {"select": {"ids": names}}
    one: View = {"id": names[-1]}
    after = [{"id": each, "want": "any"} for each in names]
    verbs = dict.fromkeys(("cancel", "hold", "release", "suspend", "resume", "requeue"), select)
    return {
        **verbs, "signal": {**select, "signal": 15}, "set": {**select, "after": after},
        "submit": {"argv": ["true"], "cwd": "/", "after": after, "dry_run": True},
        "status": {**select, "ended": 10_000, "tasks": True}, "events": select,
        "wait": {"ids": names}, "history": {"past": {"ids": names}},
        "report": {"past": {"ids": names}}, "submission": {"id": waited}, "show": {"id": waited},
        "why": {"id": waited}, "usage": one,
        "exec": {**one, "attempt": 1, "pid": 1, "start_ticks": 1},
    }  # fmt: skip


async def test_a_name_that_is_no_task_s_is_refused_wherever_it_is_looked_up(desk):
    job_id = await desk.submit(ALICE, held=True)
    for name in ("1", "1_x", "1_2_3", "_", "1_2\n", "١_٢"):
        requests = largest([job_id, name], job_id) | {"show": {"id": name}, "why": {"id": name}}
        for verb in requests.keys() - {"events", "submission"}:
            with pytest.raises(Refused) as refused:
                await desk.ask(ALICE, op=verb, **requests[verb])
            assert refused.value.code == "bad-request", (verb, name)
    assert desk.shell.engine.ledger.jobs[job_id].state.value == "HELD"


@pytest.fixture
def no_full_collections() -> Iterator[None]:
    """As in the controller."""
    before = gc.get_threshold()
    gc.set_threshold(before[0], before[1], 1 << 30)
    yield
    gc.set_threshold(*before)


@pytest.mark.slow
async def test_no_request_about_20_000_jobs_stops_the_loop_for_long(make_desk, no_full_collections):
    """Each verb is asked about as much as there is. What counts is the processor time between two
    rounds of the loop, from the text of the request to that of the reply: less than it takes at
    that moment to write three lines about each job, and far less than to show all in one go."""
    desk = make_desk(ready=False, by=rules(max_waiting_per_user=200_000))
    engine = desk.shell.engine
    # Elsewhere a desk makes reports in the process of the test.
    desk.requests.history.children = Children(desk.requests.history.children.kind, patience_s=90)
    asked = [
        st.SubmitAsked(now(), spec(name=f"job{at % 500}"), held=at % 4 > 0) for at in range(20_000)
    ]
    answers = desk.shell.turn(*asked)
    assert not any(isinstance(each, Refused) for each in answers)
    array = await desk.submit(ALICE, array="0-19999", held=True)
    desk.shell.turn(*(st.CancelAsked(now(), job_id, ALICE) for job_id in range(1, 10_001)))
    # All are looked at, and a fifth is changed: each 25 take a commit.
    some: View = {"select": {"name": "job1*"}}
    usual = {"id": 19_999, "attempt": 1, **some}
    needed = {
        op: [each.name for each in structs.fields(kind) if each.required]
        for op, kind in msg.REQUESTS.items()
    }
    requests: dict[str, View] = {
        op: {name: usual[name] for name in names if name in usual} for op, names in needed.items()
    } | {
        "status": {"ended": 10_000, "limit": 10_000}, "show": {"id": array},
        "history": {"limit": 1000}, "report": {"by": "job"},
        "wait": {"ids": [*range(1, 20_001)], "timeout_s": 0.0},
        "events": {"standing": True, "select": {"everything": True}},
        "usage": {"id": 1}, "drain": {"on": True},
        "submit": {"argv": ["true"], "cwd": "/", "array": "0-19999"},
        "submit_list": {"jobs": [{"argv": ["true"]}] * 1000},
        "exec": {"id": 19_999, "attempt": 1, "pid": 1, "start_ticks": 1},
        "signal": {**some, "signal": 15}, "set": {**some, "priority": 3},
    }  # fmt: skip
    requests["cancel"] = requests.pop("cancel")
    feed = EventFeed(engine, desk.requests.meter)
    snapshots = SnapshotFeed(
        Overview(engine, Lookup(engine, desk.requests.meter), desk.requests.curves)
    )
    pauses: dict[str, tuple[float, float]] = {}

    def all_s() -> float:
        since_s = time.thread_time()
        for each in asked * 3:
            json.dumps([each.spec.name, each.spec.user, each.held])
        return time.thread_time() - since_s

    async def answer(line: bytes) -> None:
        request = msg.decode_request(line)
        if isinstance(request, msg.EventsRequest):
            marks = 0
            async for views in feed.stream(ADMIN, request):
                b"".join(map(encode, views))
                marks += "mark" in views[0]
                if marks == 2:
                    break
        elif isinstance(request, msg.SnapshotsRequest):
            async for _ in snapshots.watch(ADMIN, 1.0, lambda: True):
                break
        elif not isinstance(request, msg.SubmitListRequest):
            with suppress(DrfdError):
                encode(await desk.requests.answer(ADMIN, 0, request))

    # What the jobs above have left to be done is of no request.
    for _ in range(10):
        await asyncio.sleep(0)
    for verb, fields in requests.items():
        line = json.dumps({"v": 1, "op": verb, **fields}).encode()
        answering = asyncio.create_task(answer(line))
        before_s = all_s()
        longest_s, since_s = 0.0, time.thread_time()
        while not answering.done():
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, since_s = max(longest_s, now_s - since_s), now_s
        await answering
        pauses[verb] = longest_s, max(before_s, all_s())
    desk.shell.host.take()
    assert not {verb: found for verb, found in pauses.items() if found[0] > found[1]}


SETTING = (
    'can have jobs start beside them: respect_external_load = "memory" below [scheduling] in '
    "/etc/drfd/drfd.toml, then drf reload"
)


@pytest.mark.parametrize(
    ("outside", "code", "more"),
    [(0, "RESOURCES", []), (4, "EXTERNAL_LOAD", [f"an administrator {SETTING}"])],
)
async def test_it_is_told_what_would_start_now(desk, outside, code, more):
    """Beside processes outside, too; and of one that is held, runs or is another's nothing."""
    engine = desk.shell.engine
    if outside:
        engine.rules = replace(engine.rules, beside=demand(0, 0))
        for _ in range(9):
            engine.see_external(demand(outside, 0))
    else:
        await desk.feed(launched(await desk.submit(BOB, 4)))
    waiting = await desk.submit(ALICE, 8)
    reply = await desk.ask(ALICE, op="why", id=waiting)
    assert reply["job"]["reason"]["code"] == code
    assert reply["notes"] == [f"drf set -c 5 {waiting} lets it start now", *more]
    assert reply["advice"] is None
    if outside:
        assert (await desk.ask(ADMIN, op="why", id=waiting))["notes"][-1] == f"you {SETTING}"
    held = await desk.submit(ALICE, held=True)
    for actor, job_id, told in ((ALICE, held, []), (BOB, waiting, more)):
        reply = await desk.ask(actor, op="why", id=job_id)
        assert (reply["notes"], reply["advice"]) == (told, None)


# -- what is said to be enforced, disk by disk, and what helps ---------------------------------


DATA_DISK = Disk(
    name="data", path="/data", read_bps=1, write_bps=1, devices=("8:0",), filesystem="ext4"
)


@pytest.mark.parametrize(
    ("said", "changes", "found"),
    [
        pytest.param(("enforced", "enforced"), {}, ("enforced", "enforced"), id="all"),
        pytest.param(
            ("enforced", "enforced"), {"filesystem": "vfat"},
            (
                "enforced",
                "enforced: direct I/O only; the kernel does not attribute buffered writes on vfat",
            ),
            id="a file system that does not tell who wrote",
        ),
        pytest.param(
            ("enforced", "enforced: direct I/O only; v1"), {"filesystem": "vfat"},
            ("enforced", "enforced: direct I/O only; v1"), id="a kernel that does not",
        ),
        pytest.param(
            ("enforced", "enforced"), {"devices": (), "why_none": "/data is on tmpfs"},
            ("not controlled: /data is on tmpfs",) * 2, id="no disk",
        ),
        pytest.param(
            ("measured: so", "measured: so"), {"devices": (), "why_none": "/data is on tmpfs"},
            ("measured: so", "measured: so"), id="processes are measured wherever they write",
        ),
    ],
)  # fmt: skip
def test_a_disk_is_controlled_as_far_as_launcher_and_file_system_allow(said, changes, found):
    hello = replace(GREETING, controls=dict(zip(("read", "write"), said, strict=True)))
    control = disk_control(replace(DATA_DISK, **changes), hello)
    assert control == {"read": found[0], "write": found[1]}


FILE = Path("/etc/drfd/drfd.toml")
SERVICE = InstallContext(
    uid=997, config_file=FILE, is_systems=True, is_service=True, has_systemd=True, lingers=False
)
OWN = InstallContext(
    uid=1000, config_file=FILE, is_systems=False, is_service=False, has_systemd=True, lingers=True
)


def look(
    standing: InstallContext, *, enforcement="cgroup-v2", lacks="", disks=(), fault=None,
    has_ranges=True,
) -> list[str]:  # fmt: skip
    """Look at a daemon whose launcher has no fault, or gets no orders because of it."""
    link: Any = SimpleNamespace(
        is_ready=lambda: fault is None,
        fault=fault,
        hello=replace(GREETING, kind=enforcement, cores={"quota": lacks}),
        has_ranges=lambda: has_ranges,
        settings=SimpleNamespace(cores_by="quota"),
    )
    return cures(standing, disks, link)


def test_of_a_launcher_of_another_version_it_is_said_what_to_restart():
    fault = "drfd-launcher speaks another version: restart it"
    found = look(SERVICE, fault=fault, enforcement=None)
    assert found == [f"no job starts: {fault}"]
    assert away_text(5.0, is_service=True, fault=fault) == f"no job starts or is stopped: {fault}"


def test_who_does_not_linger_is_told_what_a_log_out_does():
    linger, _ = look(replace(OWN, lingers=False))
    assert "loginctl enable-linger" in linger
    for other in (replace(OWN, uid=0, lingers=False), replace(OWN, has_systemd=False)):
        assert not any("linger" in cure for cure in look(other))


@pytest.mark.parametrize(
    ("lacks", "begin", "cure"),
    [
        ({"lacks": NO_PIN, "enforcement": "cgroup-v1"}, "CPUs of their own",
         "mount -t cgroup -o cpuset"),
        ({"lacks": NO_PIN}, "CPUs of their own", "Delegate=cpu cpuset io memory pids"),
        ({"has_ranges": False}, "ranges of cores need the cpu controller",
         "Delegate=cpu cpuset io memory pids"),
        ({"has_ranges": False, "enforcement": "none"}, "limits are only measured",
         "as root on a machine with cgroups"),
        ({"disks": [replace(DATA_DISK, is_guess=True)]}, "the speed of disk data is a guess",
         "drfd calibrate"),
    ],
)  # fmt: skip
def test_who_lacks_something_is_told_the_cure(lacks, begin, cure):
    (found,) = look(SERVICE, **lacks)
    assert found.startswith(begin) and cure in found


def test_a_resource_is_controlled_as_far_as_its_devices_can_be_hidden(tmp_path):
    countables = (
        CountableResource(name="fpga", instances=("0",), devices=(("/dev/a",),)),
        CountableResource(name="gpu", instances=("0",)),
        CountableResource(name="license", instances=("a",)),
    )
    machine = Machine(cores_milli=1000, memory_bytes=1 << 34)
    site = replace(survey(Config(countables=countables), machine, tmp_path), gpus=())
    told = {name: text.partition(":")[0] for name, text in countable_controls(site, None).items()}
    assert told == {"gpu": "not controlled", "license": "not controlled"}
    hidden = countable_controls(site, GREETING)
    assert hidden["fpga"] == "enforced: so"
    assert "drfd gpus finds none here" in hidden["gpu"]
    assert (
        countable_controls(site, replace(GREETING, hiding=(False, "why")))["fpga"]
        == "not controlled: why"
    )
    gpu = Gpu(
        name="0", vendor="amd", model="", uuid=None, pci="", numa_node=None, nodes=frozenset()
    )
    there = replace(site, gpus=(gpu,))
    assert countable_controls(there, GREETING)["gpu"] == "enforced: so"


# -- the log: a request that changes something leaves one line, one that only looks none -------

SELECT = Selection(ids=[4, 5, 7])
#: Verbs that change nothing, of which the log has no line.
LOOKS = {
    *("hello", "status", "show", "why", "history", "report", "recent", "submission", "usage"),
    *("wait", "events", "snapshots", "shares", "nodes", "doctor", "metrics"),
    # Each submission has a line of its own.
    "submit_list",
}
#: Requests whose line has another name than their verb.
OTHERS = [
    (msg.SubmitRequest(v=1, argv=["true"], cwd="/"), "submit"),
    (msg.SubmitRequest(v=1, argv=["true"], cwd="/", dry_run=True), None),
    (msg.DrainRequest(v=1, on=True), "drain"), (msg.DrainRequest(v=1, on=False), "undrain"),
    (msg.ShutdownRequest(v=1), "shutdown"),
    (msg.ShutdownRequest(v=1, kill_jobs=True), "shutdown-kill-jobs"),
]  # fmt: skip


@pytest.fixture
def audit_log(caplog) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "drfd.audit")
    return caplog


def test_whoever_changes_something_is_on_record_and_whoever_looks_leaves_nothing():
    """A verb that is new must not slip through."""
    assert [VERBS[type(request)].audit(request) for request, _ in OTHERS] == [
        name for _, name in OTHERS
    ]
    named = {type(request) for request, _ in OTHERS}
    assert {*msg.REQUESTS.values()} == {*VERBS}
    for verb, kind in msg.REQUESTS.items():
        if kind not in named:
            assert VERBS[kind].audit(None) == (None if verb in LOOKS else verb.replace("_", "-"))


def failed(code: str, *refs: int | str) -> list[View]:
    error = {"kind": "Refused", "code": code, "text": "", "hint": ""}
    return [{"id": ref, "error": error} for ref in refs]


@pytest.mark.parametrize(
    ("request_", "reply", "line"),
    [
        (msg.CancelRequest(v=1, select=SELECT), {"done": [4, 5], "failed": failed("not-yours", 7)},
         "verb=cancel uid=1001 user=alice jobs=4-5 refused=7:not-yours result=done"),
        # Tasks that there are not are told as they were asked for.
        (msg.CancelRequest(v=1, select=SELECT),
         {"done": [], "failed": failed("no-such-job", "5_3", 7, "7_4", 8)},
         "verb=cancel uid=1001 user=alice refused=7-8,5_3,7_4:no-such-job result=done"),
        (msg.SubmitRequest(v=1, argv=["train", "--key=x"], cwd="/", env={"A": "b"}), {"id": 9},
         "verb=submit uid=1001 user=alice jobs=9 result=done"),
        (msg.DrainRequest(v=1, on=True), NotPermitted("not-admin", "only an administrator"),
         "verb=drain uid=1001 user=alice result=not-admin"),
        # Who does not wait for the answer is on record all the same.
        (msg.CancelRequest(v=1, select=SELECT), None,
         "verb=cancel uid=1001 user=alice result=unknown"),
        (msg.CancelRequest(v=1, select=SELECT), {"done": list(range(1, 100_001)), "failed": []},
         "verb=cancel uid=1001 user=alice jobs=1-100000 result=done"),
        # A flood of invented names is no flood of the log.
        (msg.CancelRequest(v=1, select=SELECT),
         {"done": [], "failed": failed("no-such-job", *range(1, 100), "7_1", *["8_1"] * 900)},
         "verb=cancel uid=1001 user=alice refused=1-99,7_1,+900:no-such-job result=done"),
    ],
    ids=["some", "tasks", "submission", "refusal", "unknown", "many", "flood"],
)  # fmt: skip
def test_the_line_says_who_what_which_and_how_it_went(audit_log, request_, reply, line):
    log_audit(ALICE, request_, reply)
    assert audit_log.messages == [f"event=audit {line}"]
    fields = vars(audit_log.records[0])["fields"]
    done = reply.get("done", [reply.get("id")]) if isinstance(reply, dict) else []
    jobs = [("DRFD_JOB", str(job_id)) for job_id in done]
    assert fields == [*jobs[:100], ("DRFD_USER", "alice")], "no more than fit an entry"


def test_a_name_with_blanks_cannot_forge_words(audit_log):
    eve = Actor(user="eve verb=cancel", uid=1002, is_admin=False)
    log_audit(eve, msg.DrainRequest(v=1, on=True), {"draining": True})
    assert '"eve verb=cancel" result=done' in audit_log.messages[0]
