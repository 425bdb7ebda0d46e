"""What is asked of jobs that are over, reports, and what is removed of them in the end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from daemon.desk import Desk
from daemon.fake_launcher import GREETING
from drfd.common.errors import Unavailable
from drfd.core.decisions.stimuli import RemovedReport, Tick
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import Usage
from drfd.core.model.resources import Axes
from drfd.core.usage import Curve, Point
from drfd.daemon.children.children import Children
from drfd.daemon.config import HistorySettings
from drfd.daemon.engine.journal_upkeep import Retention
from drfd.journal.journal import Journal
from fakes import ADMIN, ALICE, BOB, apply_and_append, ended, happened, launched, now, replace, spec


async def history(desk: Desk, actor: Any, **fields: Any) -> list[int]:
    return [job["id"] for job in (await desk.ask(actor, op="history", **fields))["jobs"]]


async def test_a_page_says_where_the_next_one_begins(desk):
    for _ in range(5):
        await desk.finish(await desk.submit(ALICE))
    found, after = [], None
    for _ in range(3):
        page = await desk.ask(ALICE, op="history", limit=2, after=after)
        found.append([job["id"] for job in page["jobs"]])
        after = page["after"]
    assert (found, after) == ([[5, 4], [3, 2], [1]], None)


async def test_what_is_asked_for_is_what_comes(desk):
    await desk.finish(await desk.submit(ALICE, name="train"))
    await desk.finish(await desk.submit(BOB), exit_code=1)
    assert await history(desk, ALICE, past={"user": "alice"}) == [1]
    assert await history(desk, ALICE, past={"name": "train"}) == [1]
    assert await history(desk, ALICE, past={"name": "tra*"}) == [1]
    assert await history(desk, ALICE, past={"name": "[!a-s]rai?"}) == [1]
    assert await history(desk, ALICE, past={"name": "*", "user": "bob"}) == [2]
    assert await history(desk, ALICE, past={"name": "tra"}) == []
    report = await desk.ask(ALICE, op="report", past={"name": "tra*"})
    assert [row["name"] for row in report["rows"]] == ["train"]
    assert await history(desk, ALICE, past={"states": ["FAILED"]}) == [2]
    assert await history(desk, ALICE, past={"ids": [2, 9]}) == [2]
    # With or without the root's name.
    assert await history(desk, ALICE, past={"pool": "bob"}) == [2]
    assert await history(desk, ALICE, past={"pool": "root.bob"}) == [2]
    assert await history(desk, ALICE, past={"since_s": 1e11}) == []


# -- reports -----------------------------------------------------------------------------------


def used(**changes: Any) -> dict[str, Any]:
    seen = {"cpu_s": 2.0, "memory_peak_bytes": 100 << 20, "limit_hits": 0, **changes}
    return {"usage": Usage(**seen), "at_s": 8.0}


@pytest.mark.parametrize("has_ranges", [True, False])
async def test_a_range_is_advised_only_where_there_are_ranges(desk, has_ranges):
    """Two cores were used at times, and a quarter of one on average."""
    desk.link.hello = replace(GREETING, ranges=has_ranges)
    for _ in range(3):
        await desk.finish(await desk.submit(ALICE, 2, name="t"), **used(cores_peak_milli=1990))
    (row,) = (await desk.ask(ALICE, op="report"))["rows"]
    why = await desk.ask(ALICE, op="why", id=3)
    assert why["advice"] == row["advice"]
    advice, plain = row["advice"], {"options": ["-c", "0.5", "-m", "128M", "-t", "1m"]}
    note = "used 0.25 of 2 cores on average, at times all of them: a range books 0.5 and may use 2"
    ranged = {"options": ["-c", "0.5..2", "-m", "128M", "-t", "1m"], "cores_max": 2.0}
    expected = ranged | {"cores_note": note} if has_ranges else plain
    assert {name: advice.get(name) for name in ("cores_max", "cores_note", "options")} == (
        {"cores_max": None, "cores_note": None} | expected
    )


async def test_rows_beyond_the_limit_are_summed_up_and_jobs_are_the_latest(desk):
    for actor in (ALICE, BOB, ADMIN):
        await desk.finish(await desk.submit(actor), **used())
    by_user = await desk.ask(ALICE, op="report", by="user", limit=1)
    assert [row["jobs"] for row in by_user["rows"]] == [1]
    assert (by_user["others"]["jobs"], by_user["total"]["jobs"]) == (2, 3)
    by_job = await desk.ask(ALICE, op="report", by="job", limit=2)
    assert [row["id"] for row in by_job["rows"]] == ["3", "2"]
    assert (by_job["others"]["jobs"], by_job["total"]["jobs"]) == (1, 3)
    assert by_job["total"] == by_user["total"]
    for limit in (3, 4):
        whole = await desk.ask(ALICE, op="report", by="job", limit=limit)
        assert (len(whole["rows"]), whole["others"]) == (3, None)


async def run_twice(desk: Desk, job_id: int) -> None:
    """Three seconds of a core before a failure, and then next to nothing."""
    usage = Usage(cpu_s=3.0, memory_peak_bytes=100 << 20, gpu_memory_peak_bytes=7)
    await desk.finish(job_id, usage=usage, at_s=3.0, exit_code=1)
    await desk.feed(Tick(now(60.0)))
    instant = Usage(cpu_s=0.01, memory_peak_bytes=1 << 20)
    await desk.feed(
        launched(job_id, 2, 60.0),
        ended(job_id, 2, 60.0, usage=instant),
        RemovedReport(now(60.0).at_s, job_id, 2),
    )


async def test_all_runs_of_a_retried_job_count_wherever_it_is_told_what_it_used(desk):
    job_id = await desk.submit(ALICE, retry={"times": 1})
    await run_twice(desk, job_id)
    runs = {
        "runs": 2, "wall_seconds": 3.0, "suspended_seconds": 0.0, "cpu_seconds": 3.01,
        "memory_peak": 100 << 20, "read_bytes": 0, "written_bytes": 0, "gpu_memory_peak": 7,
        "beyond_cpu_seconds": None,
    }  # fmt: skip
    (row,) = (await desk.ask(ALICE, op="history"))["jobs"]
    assert (row["all_runs"], row["used"]["cpu_seconds"], row["attempt"]) == (runs, 0.01, 2)
    for actor in (ALICE, BOB):
        assert (await desk.ask(actor, op="show", id=job_id))["all_runs"] == runs
    (line,) = (await desk.ask(ALICE, op="report", by="job"))["rows"]
    assert (line["jobs"], line["runs"], line["run_ms"]) == (1, 2, 3000)
    assert (line["cores"]["declared"], line["cores"]["used"]) == (3_000_000, 3_010_000)
    assert (await desk.ask(ALICE, op="why", id=job_id))["notes"] == [
        "its last run took 0.0s and used 0.0s of CPU time and 1M of 1G of memory",
        "its 2 runs together took 3.0s and used 3.0s of CPU time",
    ]


async def test_a_report_shows_how_the_last_job_of_each_row_went(desk):
    """Where a row is of one kind of jobs."""
    used = {"cores_milli": (2_000_000, 2000), "memory_bytes": (4096, 1)}
    points = [Point.of(2000 * at, 2000, **used) for at in range(1, 41)]
    for at, name in enumerate(("train", "train", "other"), 1):
        job_id = await desk.submit(ALICE, name=name)
        desk.shell.engine.curve_of = lambda job: Curve(
            1, () if job.id == 3 else tuple(points[: 20 * job.id])
        )
        await desk.finish(job_id, at_s=float(at))
    desk.shell.engine.curve_of = lambda job: None
    await desk.finish(await desk.submit(ALICE, name="unseen"), at_s=4.0)
    reply = await desk.ask(BOB, op="report")
    curves = {row["name"]: row["curve"] for row in reply["rows"]}
    assert curves["unseen"] is None
    assert curves["other"]["at"] == []
    train = curves["train"]
    assert (train["id"], len(train["at"]), train["at"][-1]) == (2, 12, 80.0)
    assert set(train["cores"]) == {1.0}
    asked = {"cores": 1.0, "memory": 1 << 30, "gres": {}}
    assert {name: train["demand"][name] for name in asked} == asked
    by_job = await desk.ask(BOB, op="report", by="job")
    assert [row["curve"] and row["curve"]["id"] for row in by_job["rows"]] == [None, 3, 2, 1]
    by_user = await desk.ask(BOB, op="report", by="user")
    assert all("curve" not in row for row in by_user["rows"])


@pytest.mark.slow
async def test_a_report_of_many_jobs_is_made_by_a_program_in_a_child(desk):
    for _ in range(51):
        await desk.finish(await desk.submit(ALICE, name="train"), **used())
    expected = await desk.ask(ALICE, op="report")
    history = desk.requests.history
    history.children = Children(history.children.kind, patience_s=60)
    assert await desk.ask(ALICE, op="report") == expected
    assert [row["name"] for row in expected["rows"]] == ["train"]
    history.children.close()
    with pytest.raises(Unavailable):
        await desk.ask(ALICE, op="report")


# -- what is removed of them, as configured -----------------------------------------------------


# -- history goes as configured ----------------------------------------------------------------


DAY_S = 86400.0


@pytest.fixture
def journal(tmp_path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def fill(journal: Journal, count: int) -> Ledger:
    """One job of alice's a day, each over at once."""
    ledger = Ledger(Axes())
    for job_id in range(1, count + 1):
        for event in (happened(ev.Submitted, job_id), happened(ev.Cancelled, job_id)):
            apply_and_append(journal, structs.replace(event, at_s=job_id * DAY_S), ledger)
    journal.commit()
    return ledger


def bobs(array_id: int, last: int) -> ev.ArraySubmitted:
    asked = spec("root.bob", actor=BOB)
    return ev.ArraySubmitted(
        array_id=array_id, at_s=200 * DAY_S, spec=asked, spans=((0, last, 1),), at_once=None
    )


def bobs_end(job_id: int) -> ev.Cancelled:
    return ev.Cancelled(job_id=job_id, at_s=200 * DAY_S, by="bob")


def keeping(
    journal: Journal, most: int, keep_s: float | None = None, now_s: float = 1e10
) -> Retention:
    history = HistorySettings(keep_s=keep_s and round(keep_s), max_jobs_per_user=most)
    return Retention(journal, lambda: history, lambda: now_s)


def there(journal: Journal, count: int) -> list[int]:
    return [each for each in range(1, count + 1) if journal.job(each)]


async def to_the_end(retention: Retention) -> int:
    steps = 0
    while await retention.step():
        steps += 1
        assert steps < 10_000
    return steps


def test_what_is_older_than_configured_goes_and_nothing_else(journal):
    fill(journal, 300)
    assert asyncio.run(to_the_end(keeping(journal, 0))) == 0
    assert there(journal, 300) == list(range(1, 301))
    old = keeping(journal, 0, 100 * DAY_S, 300.5 * DAY_S)
    assert asyncio.run(to_the_end(old)) > 1, "a little at a time"
    assert there(journal, 300) == list(range(201, 301))


def test_a_journal_of_live_jobs_alone_is_left_as_it_is(journal):
    ledger = Ledger(Axes())
    for job_id in range(1, 50):
        apply_and_append(journal, happened(ev.Submitted, job_id), ledger)
    journal.commit()
    assert asyncio.run(to_the_end(keeping(journal, 1, 1, 1e12))) == 0
    assert there(journal, 49) == list(range(1, 50))


def test_a_flood_of_arrays_removes_nothing_of_others(journal):
    ledger = fill(journal, 100)
    first = ledger.next_id
    for _ in range(200):
        array_id = ledger.next_id
        for event in (bobs(array_id, 0), bobs_end(array_id + 1)):
            apply_and_append(journal, event, ledger)
    journal.commit()
    asyncio.run(to_the_end(keeping(journal, 100)))
    assert there(journal, 100) == list(range(1, 101))
    assert len([each for each in range(first + 1, ledger.next_id, 2) if journal.job(each)]) <= 100


def test_too_many_go_also_where_all_ended_by_a_clock_that_was_ahead(journal):
    fill(journal, 300)
    asyncio.run(to_the_end(keeping(journal, 150, now_s=0.0)))
    left = there(journal, 300)
    assert 130 < len(left) <= 150
    assert left == list(range(301 - len(left), 301)), "the oldest went"
