"""Arrays and lists as clients meet them: one row, one answer, one payload; pages and searches."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from daemon.desk import Desk
from drfd.common.errors import NotPermitted, Refused
from drfd.core.model.job import JobState
from drfd.daemon.launcher_link.messages import LaunchSettings, order_for, with_slurm_variables
from drfd.daemon.lookup import lookup, views
from drfd.daemon.lookup.rows import WaitingRows
from drfd.payload.environment import may_set
from fakes import ADMIN, ALICE, BOB, payload, replace, rules

JOURNAL = "0" * 32


async def refused(asked: Awaitable[Any]) -> str:
    with pytest.raises(Refused) as error:
        await asked
    return error.value.text


async def submit(desk: Desk, indices: str = "0-9", **more: Any) -> int:
    """Of 9 cores, each task asks for one unless `more` says so."""
    return int(await desk.submit(ALICE, array=indices, **more))


async def listed(desk: Desk, **fields: Any) -> list[tuple[Any, ...]]:
    """What `drf status` has: what stands before _ in the id, the indices, how it is."""
    found = (await desk.ask(ALICE, op="status", **fields))["jobs"]
    return [
        (row["id"], row.get("array_tasks") or row["array_index"], row["state"]) for row in found
    ]


# -- submit ------------------------------------------------------------------------------------


async def test_a_key_of_another_account_that_had_the_uid_is_no_key_of_this_one(desk):
    """Who got the uid of a deleted account was answered with that one's job, and had none."""
    asked = {"op": "submit", "argv": ["true"], "cwd": "/home", "key": "k"}
    heir = replace(ALICE, user="heir")
    assert await desk.ask(ALICE, **asked) == {"id": 1}
    assert await desk.ask(heir, **asked) == {"id": 2}
    assert await desk.ask(heir, **asked) == {"id": 2}, "asked once more"


@pytest.mark.parametrize("indices", ["", "5-1", "x", "0-20000"])
async def test_bad_indices_are_refused_and_nothing_is_queued(desk, indices):
    assert "is wrong" in await refused(submit(desk, indices))
    assert desk.shell.engine.ledger.is_empty


async def test_a_task_of_a_script_for_slurm_finds_slurms_variables(desk):
    await submit(desk, "5-11:3")
    ledger = desk.shell.engine.ledger
    settings = LaunchSettings([], 64, "quota")
    order = order_for(ledger.jobs[3], JOURNAL, settings, ledger.arrays[1].array)
    assert (
        with_slurm_variables(order, payload({"SLURM_SUBMIT_DIR": "/"}, "DRF_SLURM=1").data) is order
    )
    told = with_slurm_variables(order, payload({"DRF_SLURM": "1"}).data).variables
    assert all(map(may_set, told)), "the launcher takes them"
    cores = str(order.limits.cores_milli // 1000)
    assert {key: word for key, word in told.items() if key not in order.variables} == {
        "SLURM_JOB_ID": "3", "SLURM_JOBID": "3", "SLURM_JOB_NAME": order.name,
        "SLURM_JOB_USER": order.user, "SLURM_JOB_UID": str(order.uid),
        "SLURM_JOB_PARTITION": "main",
        "SLURM_CPUS_ON_NODE": cores, "SLURM_JOB_CPUS_PER_NODE": cores,
        "SLURM_MEM_PER_NODE": str(order.limits.memory_bytes >> 20),
        "SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_MAX": "11",
        "SLURM_ARRAY_TASK_STEP": "3",
    }  # fmt: skip
    again = with_slurm_variables(order, payload({"DRF_SLURM": "1"}).data, restarts=2)
    assert again.variables["SLURM_RESTART_COUNT"] == "2"


# -- looking -----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 7, 50])
@pytest.mark.parametrize("tasks", [False, True], ids=["listed", "tasks"])
async def test_the_pages_of_a_list_are_the_list(desk, limit, tasks):
    for _ in range(4):
        await desk.submit(ALICE, demand={"cores_milli": 1000})
        await submit(desk, "0-9", demand={"cores_milli": 1000})
    await desk.ask(ALICE, op="cancel", select={"ids": ["13_3", 24]})
    for job_id in (1, 3):
        await desk.finish(job_id)
    asked = {"op": "status", "ended": 20, "tasks": tasks}
    whole = await desk.ask(ALICE, **asked)
    pages, after = [], None
    while not pages or after is not None:
        pages.append(await desk.ask(ALICE, **asked, limit=limit, after=after))
        after = pages[-1]["after"]
    assert [job for page in pages for job in page["jobs"]] == whole["jobs"]
    assert all(len(page["jobs"]) == limit for page in pages[:-1])
    counts: Counter[str] = Counter()
    for page in pages:
        counts.update(page["counts"])
    assert counts == whole["counts"]
    assert sum(counts.values()) == 44


async def test_long_paths_end_a_page_and_are_left_out_of_a_long_wait(desk, monkeypatch):
    """A reply of 20,000 rows had 200 MB, since each row of a task has the paths of its array."""
    monkeypatch.setattr(views, "FULL_BYTES", 20_000)
    array_id = await submit(desk, "0-5", held=True, stdout="o" * 4000, stderr="e" * 4000)
    tasks = list(range(array_id + 1, array_id + 7))

    async def pages(**asked: Any) -> list[list[int]]:
        found = []
        while not found or asked["after"] is not None:
            reply = await desk.ask(ALICE, **asked)
            assert all(len(job["stdout"]) > 4000 for job in reply["jobs"])
            found.append([job["id"] for job in reply["jobs"]])
            asked["after"] = reply["after"]
        return found

    parts = [tasks[:3], tasks[3:]]
    for chosen in ({}, {"select": {"ids": [array_id]}}):
        assert await pages(op="status", tasks=True, limit=10, **chosen) == parts
        with pytest.raises(Refused, match="the most that one reply may have"):
            await desk.ask(ALICE, op="status", tasks=True, **chosen)
    await desk.ask(ALICE, op="cancel", select={"ids": tasks})
    assert await pages(op="history", limit=10) == [part[::-1] for part in reversed(parts)]
    ended = (await desk.ask(ALICE, op="wait", ids=tasks))["ended"]
    assert [job["argv"] is None for job in ended] == [False] * 3 + [True] * 3
    assert {job["outcome"]["code"] for job in ended} == {"CANCELLED"}


async def test_what_comes_and_goes_between_two_pages_moves_nobody_else(desk):
    for _ in range(6):
        await desk.submit(ALICE, demand={"cores_milli": 9000})
    first = await desk.ask(ALICE, op="status", limit=3)
    await desk.ask(ALICE, op="cancel", select={"ids": [2, 3, 5]})
    await desk.submit(ALICE)
    last = await desk.ask(ALICE, op="status", limit=3, after=first["after"])
    assert [[job["id"] for job in page["jobs"]] for page in (first, last)] == [
        [1, 2, 3], [4, 6, 7],
    ]  # fmt: skip
    assert last["after"] is None


@pytest.mark.slow
async def test_a_list_too_long_for_one_reply_is_asked_for_in_pages(make_desk):
    desk = make_desk(by=rules(max_waiting_per_user=50_000))
    for indices in ("0-19999", "0"):
        await submit(desk, indices, held=True)
    text = "the list has more than 20000 rows or 8M of long ones, the most that one reply may have"
    assert await refused(desk.ask(ALICE, op="status", tasks=True)) == text
    assert len((await desk.ask(ALICE, op="status"))["jobs"]) == 2
    page = await desk.ask(ALICE, op="status", tasks=True, limit=10_000, after=[10_000, False])
    assert (page["jobs"][0]["id"], len(page["jobs"]), page["after"]) == (
        10_001, 10_000, (20_000, False),
    )  # fmt: skip


async def test_what_is_private_of_an_array_is_hidden_from_others(desk):
    array_id = await submit(desk, "0-99")
    (*_, row) = (await desk.ask(BOB, op="status"))["jobs"]
    assert (row["id"], row["argv"], row["cwd"], row["stdout"]) == (array_id, None, None, None)
    # Why one of its tasks waits is told to everybody, as in lists.
    for op, ref in (("why", array_id), ("why", f"{array_id}_5"), ("show", f"{array_id}_5")):
        job = (await desk.ask(BOB, op=op, id=ref))["job"]
        assert job["array_id"] == array_id
        assert (job["argv"], job["cwd"], job["stdout"], job["stderr"]) == (None,) * 4
    with pytest.raises(NotPermitted):
        await desk.ask(BOB, op="show", id=array_id)
    with pytest.raises(NotPermitted):
        await desk.ask(BOB, op="wait", ids=[array_id])


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("1_99", "array 1 has no task with the index 99"),
        ("7_1", "there is no array 7"),
        (7, "there is no job 7"),
    ],
)
async def test_what_there_is_not_is_refused_by_name(desk, ref, words):
    await submit(desk, "0-1")
    for op in ("show", "why"):
        assert await refused(desk.ask(ALICE, op=op, id=ref)) == words
    assert await refused(desk.ask(ALICE, op="wait", ids=[ref])) == words
    reply = await desk.ask(ALICE, op="cancel", select={"ids": [ref]})
    assert [each["id"] for each in reply["failed"]] == [ref]


async def test_why_tells_of_an_array_why_its_first_waiting_task_waits(desk):
    await submit(desk, "0-99%2")
    why = (await desk.ask(ALICE, op="why", id=1))["job"]
    assert (why["array_index"], why["reason"]["code"]) == (2, "LIMIT")
    assert why["expected_start_at"] is not None
    await desk.ask(ALICE, op="cancel", select={"ids": [1]})
    for job_id in (2, 3):
        await desk.finish(job_id, exit_code=None, signal=15)
    why = (await desk.ask(ALICE, op="why", id=1))["job"]
    assert (why["array_index"], why["outcome"]["code"]) == (0, "CANCELLED")


async def test_why_counts_the_tasks_of_an_array_for_its_owner(desk):
    await submit(desk, "1-4")
    for job_id, code in ((2, 3), (3, 0), (4, 3)):
        await desk.finish(job_id, exit_code=code)
    reply = await desk.ask(ALICE, op="why", id=1)
    assert reply["array"] == {
        "id": 1, "tasks": 4, "indices": {"FAILED": "1,3"},
        "counts": {"FAILED": 2, "COMPLETED": 1, "STARTING": 1},
    }  # fmt: skip
    assert "array" not in await desk.ask(BOB, op="why", id=1)
    assert "array" not in await desk.ask(ALICE, op="why", id="1_2")


# -- wait --------------------------------------------------------------------------------------


async def test_wait_returns_with_the_last_task_and_the_first_bad_ones_exit_code(desk):
    """The first by its index, and not by time."""
    await submit(desk, "0-2")
    waiting = asyncio.ensure_future(desk.ask(ALICE, op="wait", ids=[1]))
    for job_id, code in ((4, 3), (3, 4), (2, 0)):
        await asyncio.sleep(0)
        assert not waiting.done()
        await desk.finish(job_id, exit_code=code)
    (told,) = (await waiting)["ended"]
    text = "1 of 3 tasks completed; 2 FAILED (1-2)"
    assert (told["status"], told["outcome"]["text"]) == (4, text)


# -- acting ------------------------------------------------------------------------------------


async def test_a_selection_of_all_stops_what_runs_too_and_nobody_elses(desk):
    await submit(desk, "0-99")
    assert (await desk.ask(BOB, op="cancel", select={"everything": True}))["done"] == []
    await desk.ask(ADMIN, op="cancel", select={"everything": True})
    assert {state for _, _, state in await listed(desk)} == {"STOPPING"}


async def test_tasks_that_others_wait_for_are_called_as_people_call_them(desk):
    """Also when they, and their array, are over."""
    await desk.submit(ALICE, array="7-8")
    waiting = await desk.submit(ALICE, after=[{"id": "1_7"}])
    view = (await desk.ask(ALICE, op="show", id=waiting))["job"]
    assert view["after"] == [{"id": 2, "label": "1_7", "want": "ok"}]
    await desk.finish(2, exit_code=1)
    await desk.finish(3)
    shown = await desk.ask(ALICE, op="show", id=waiting)
    assert shown["job"]["reason"]["code"] == "DEPENDENCY_NEVER"
    assert shown["job"]["reason"]["text"].startswith("job 1_7 ended FAILED and was to end well")
    assert [event["text"] for event in shown["events"]] == ["", "job 1_7 ended FAILED"]
    ahead = await desk.ask(
        ALICE, op="submit", argv=["true"], cwd="/", after=[{"id": "1_7"}], dry_run=True
    )
    assert ahead["reason"]["text"].startswith("job 1_7 ended FAILED")
    await desk.submit(ALICE, array="0-1", held=True)
    await desk.ask(ALICE, op="set", select={"ids": [waiting]}, after=[{"id": "5_1"}])
    (*_, changed) = (await desk.ask(ALICE, op="show", id=waiting))["events"]
    assert changed["text"] == "after 1_7:ok → 5_1:ok, by alice"


async def test_it_is_told_which_tasks_a_change_has_left_as_they_were(desk):
    """Those that run. One that waits alone, or with the others, is changed."""
    await submit(desk, "0-11", demand={"cores_milli": 3000})
    await desk.ask(ALICE, op="hold", select={"ids": ["1_7"]})
    told = await desk.ask(ALICE, op="set", select={"ids": [1]}, priority=3)
    assert told == {"done": [1], "failed": [], "kept": {"1": "0-2"}}
    waiting = await desk.ask(ALICE, op="set", select={"ids": ["1_5"]}, priority=4)
    assert waiting == {"done": [7], "failed": [], "labels": ["1_5"]}


async def test_an_order_about_an_array_is_told_of_it_once_and_one_about_a_task_is_not(desk):
    """Retried, it is as it was submitted, or changed as a whole."""
    await desk.submit(ALICE, demand={"cores_milli": 9000})
    array_id = await submit(desk, "0-249", held=True)
    await desk.ask(ALICE, op="set", select={"ids": ["2_0"]}, priority=7)
    for order in ({"op": "release"}, {"op": "hold"}, {"op": "set", "name": "x", "begin_s": 9**12}):
        assert (await desk.ask(ALICE, select={"ids": [array_id]}, **order))["failed"] == []
    reply = await desk.ask(ALICE, op="show", id=array_id)
    told = [each["event"] for each in reply["events"]]
    assert told == ["ArraySubmitted", "Released", "Held", "Changed"]
    assert (reply["array"]["name"], reply["array"]["priority"]) == ("x", 0)
    assert reply["array"]["altered"] == "0"
    found = await desk.ask(ALICE, op="submission", id=array_id)
    assert (found["submission"]["name"], found["submission"]["priority"]) == ("x", 0)
    (task,) = (await desk.ask(ALICE, op="status", select={"ids": ["2_0"]}))["jobs"]
    assert (task["name"], task["priority"]) == ("x", 7)
    told = [each["event"] for each in (await desk.ask(ALICE, op="show", id="2_0"))["events"]]
    assert told == ["ArraySubmitted", "Changed", "Released", "Held", "Changed"]


async def test_an_order_about_an_array_of_which_some_tasks_differ_is_told_of_it_once(desk):
    """It was told of nothing, as the array itself was not held, or held already."""
    await desk.submit(ALICE, demand={"cores_milli": 9000})
    array_id = await submit(desk, "0-249", held=False)
    some = [f"2_{index}" for index in range(100, 250)]
    for select, order in (
        (some, "hold"), ([2], "release"), ([2], "hold"), (some, "release"), ([2], "hold"),
    ):  # fmt: skip
        assert (await desk.ask(ALICE, select={"ids": select}, op=order))["failed"] == []
    told = [each["event"] for each in (await desk.ask(ALICE, op="show", id=array_id))["events"]]
    assert told == ["ArraySubmitted", "Released", "Held", "Held"]
    array_state = desk.shell.engine.ledger.arrays[array_id]
    assert dict(array_state.states) == {JobState.HELD: 250}


async def test_an_order_about_an_array_counts_as_one_change_of_its_user(desk, monkeypatch):
    """Each of 20,000 tasks was counted: the next submission waited for a minute."""
    taken = []
    monkeypatch.setattr(desk.requests.quotas, "take", lambda _, count, *size: taken.append(count))
    await submit(desk, "0-249", held=True)
    one = await desk.submit(ALICE, held=True)
    taken.clear()
    await desk.ask(ALICE, op="set", select={"ids": [1]}, priority=7)
    await desk.ask(ALICE, op="release", select={"ids": ["1_3", "1_4", one]})
    assert sum(taken) == 1 + 2


async def test_tasks_that_differ_have_rows_of_their_own_with_their_own_reasons(desk):
    await submit(desk, "0-9", demand={"cores_milli": 9000})
    await desk.ask(ALICE, op="hold", select={"ids": ["1_2", "1_4"]})
    await desk.ask(ALICE, op="set", select={"ids": ["1_6"]}, demand={"cores_milli": 1000})
    rows = (await desk.ask(ALICE, op="status"))["jobs"]
    told = [(row.get("array_tasks"), row["state"], row["tasks"]) for row in rows[1:]]
    assert told == [("1,3,5,7-9", "PENDING", 6), ("2,4", "HELD", 2), ("6", "PENDING", 1)]
    assert rows[2]["reason"]["text"] == "held by alice; drf release '1_[2,4]' lets it go"
    # A row is released without the others.
    await desk.ask(ALICE, op="release", select={"states": ["HELD"], "user": "alice"})
    assert "HELD" not in desk.shell.engine.ledger.arrays[1].states


async def test_tasks_that_are_alike_share_a_row_when_those_between_them_differ(desk):
    """Only neighbours shared a specification: every task had a row after the second change."""
    await submit(desk, "0-9", held=True)
    odd = [f"1_{index}" for index in range(1, 10, 2)]
    await desk.ask(ALICE, op="set", select={"ids": odd}, demand={"cores_milli": 500})
    await desk.ask(ALICE, op="set", select={"ids": [1]}, priority=7)
    rows = (await desk.ask(ALICE, op="status"))["jobs"]
    assert [row["array_tasks"] for row in rows] == ["0-8:2", "1-9:2"]


async def test_an_order_about_all_rows_of_an_array_is_one_about_the_array(desk):
    """`drf set -n NAME` was forgotten by `drf show` and `drf retry`."""
    await submit(desk, "0-249", held=True, name="x")
    select = {"name": "x", "user": "alice"}
    await desk.ask(ALICE, op="set", select={"ids": ["1_3"]}, time_limit_s=70)
    await desk.ask(ALICE, op="set", select=select, priority=7)
    told = [each["event"] for each in (await desk.ask(ALICE, op="show", id=1))["events"]]
    assert told == ["ArraySubmitted", "Changed"]
    assert (await desk.ask(ALICE, op="submission", id=1))["submission"]["priority"] == 7
    await desk.ask(ALICE, op="set", select={"ids": ["1_5"]}, name="y")
    await desk.ask(ALICE, op="set", select=select, priority=8)
    assert (await desk.ask(ALICE, op="submission", id=1))["submission"]["priority"] == 7


@pytest.mark.parametrize("ids", ([1, "1_0"], ["1_9", "1_0", 1]))
async def test_an_array_and_a_task_of_it_are_all_its_tasks_once(desk, ids):
    await submit(desk, held=True)
    assert [row[1] for row in await listed(desk, select={"ids": ids})] == ["0-9"]
    alone = await listed(desk, select={"ids": ids}, tasks=True)
    assert [row[0] for row in alone] == [*range(2, 12)]
    await desk.ask(ALICE, op="cancel", select={"ids": ["1_0"]})
    shown = await listed(desk, select={"ids": ids})
    assert [row[1:] for row in shown] == [(0, "CANCELLED"), ("1-9", "HELD")]


async def test_the_row_of_tasks_is_that_of_the_others_when_the_first_has_gone_on(desk):
    """The others were missing from the snapshot in which the first started or ended."""
    rows = WaitingRows(desk.shell.engine, desk.requests._lookup)
    await desk.submit(ALICE, demand={"cores_milli": 9000})
    await submit(desk, demand={"cores_milli": 9000})
    assert [row["label"] for row in await rows.waiting_rows([3])] == ["2_[0-9]"]
    await desk.finish(1)
    assert [row["label"] for row in await rows.waiting_rows([3])] == ["2_[1-9]"]
    await desk.finish(3)
    assert [row["label"] for row in await rows.waiting_rows([3])] == ["2_[2-9]"]
    assert await rows.waiting_rows([1, 13]) == []


async def test_an_order_that_the_budget_cuts_short_says_so(desk):
    """It said that all was done: a part of the tasks was held."""
    await submit(desk, "0-999")
    engine = desk.shell.engine
    budget = engine.journal.live_bytes(ALICE.uid) + 150_000
    engine.rules = replace(engine.rules, max_kept_bytes_per_user=budget)
    reply = await desk.ask(ALICE, op="hold", select={"ids": [1]})
    assert [(each["id"], each["error"]["code"]) for each in reply["failed"]] == [(1, "too-long")]
    held = engine.ledger.arrays[1].states["HELD"]
    assert 0 < held < 1000 and held % 100 == 0


async def test_tasks_that_the_budget_keeps_as_they_are_have_not_started(desk):
    """`drf set` named all of them as started, below the refusal of a part."""
    await submit(desk, "0-999", demand={"cores_milli": 9000})
    engine = desk.shell.engine
    budget = engine.journal.live_bytes(ALICE.uid) + 150_000
    engine.rules = replace(engine.rules, max_kept_bytes_per_user=budget)
    reply = await desk.ask(ALICE, op="set", select={"ids": [1]}, priority=3)
    assert [(each["id"], each["error"]["code"]) for each in reply["failed"]] == [(1, "too-long")]
    assert (reply["done"], "kept" in reply) == ([1], False)


# -- what takes long to read is read beside the loop: others are served meanwhile --------------


def slowed(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, threading.Event]:
    """Have a reading of the lookup's wait when it has read, until the second event is set."""
    read = getattr(lookup, name)
    is_read, may_go_on = threading.Event(), threading.Event()

    def slowly(*given: Any, **options: Any) -> Any:
        found = read(*given, **options)
        found = list(found) if isinstance(found, Iterator) else found
        is_read.set()
        assert may_go_on.wait(10)
        return found

    monkeypatch.setattr(lookup, name, slowly)
    return is_read, may_go_on


async def test_what_ends_while_the_journal_is_read_for_a_list_is_in_it_once(desk, monkeypatch):
    """It was in neither half: not over when the journal was read, and not live afterwards."""
    ids = [await desk.submit(ALICE, held=True) for _ in range(3)]
    ids.append((await desk.ask(ALICE, **FOUR_TASKS))["id"])
    is_read, may_go_on = slowed(monkeypatch, "read_ended")
    listed = asyncio.create_task(desk.ask(ALICE, op="status", ended=10))
    await asyncio.to_thread(is_read.wait, 10)
    for job_id in (ids[1], ids[3]):
        await desk.ask(ALICE, op="cancel", select={"ids": [job_id]})
    may_go_on.set()
    rows = (await listed)["jobs"]
    assert [row["id"] for row in rows] == [*ids[:3], 5, 6, 7, 8]
    assert [row["state"] for row in rows] == ["HELD", "CANCELLED", "HELD", *["CANCELLED"] * 4]
    monkeypatch.undo()
    assert (await desk.ask(ALICE, op="status", ended=10))["jobs"] == rows


#: Four tasks.
FOUR_TASKS = {"op": "submit", "argv": ["true"], "cwd": "/", "array": "1-4", "held": True}
