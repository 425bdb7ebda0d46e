"""The latest jobs of a user, and who may have a submission again."""

from __future__ import annotations

from typing import Any

import pytest

from daemon.desk import Desk
from drfd.common.errors import NotPermitted, Refused
from fakes import ADMIN, ALICE, BOB


def rows(reply: dict[str, Any]) -> list[tuple[int, str, str, bool]]:
    return [(each["id"], each["name"], each["state"], each["live"]) for each in reply["recent"]]


async def test_own_jobs_and_arrays_come_newest_first(desk: Desk) -> None:
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


async def test_ended_tasks_of_an_array_are_one_row(desk: Desk) -> None:
    array = await desk.submit(ALICE, cores=0.1, array="1-2", name="fit")
    await desk.finish(array + 1)
    assert rows(await desk.ask(ALICE, op="recent")) == [(array, "fit", "STARTING", True)]
    await desk.finish(array + 2)
    assert rows(await desk.ask(ALICE, op="recent")) == [(array, "fit", "array", False)]


async def test_a_submission_is_for_its_user_alone(desk: Desk) -> None:
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


async def test_tasks_share_the_submission_of_their_array(desk: Desk) -> None:
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


async def test_who_else_holds_a_job_is_told_with_its_submission(desk: Desk) -> None:
    job_id = await desk.submit(ALICE, held=True)
    assert "held_by" not in await desk.ask(ALICE, op="submission", id=job_id)
    await desk.ask(ADMIN, op="hold", select={"ids": [job_id]})
    assert (await desk.ask(ALICE, op="submission", id=job_id))["held_by"] == "root"


async def test_what_is_not_kept_any_more_is_said(desk: Desk) -> None:
    job_id = await desk.submit(ALICE)
    await desk.finish(job_id)
    desk.shell.journal.payloads.past.drop(job_id)
    with pytest.raises(Refused) as refusal:
        await desk.ask(ALICE, op="submission", id=job_id)
    assert refusal.value.code == "not-kept"
    assert str(refusal.value) == (
        f"the environment and the script of job {job_id} are not kept any more"
        f" (drf show {job_id} has its command: submit it anew)"
    )


async def test_of_a_live_job_its_conditions_are_told_too(desk: Desk) -> None:
    first = await desk.submit(ALICE)
    second = await desk.submit(ALICE, after=[{"id": first}], begin_s=4_000_000_000, held=True)
    reply = await desk.ask(ALICE, op="submission", id=second)
    assert (reply["conditions"], reply["awaited"]) == (
        {"after": [{"id": first, "want": "ok"}], "begin_s": 4_000_000_000, "held": True},
        False,
    )
    assert (await desk.ask(ALICE, op="submission", id=first))["awaited"] is True
