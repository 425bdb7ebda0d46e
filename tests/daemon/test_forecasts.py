"""The process that looks ahead: exact, dispensable, and nobody's burden."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from daemon.desk import Desk, MakeDesk, Shell, View, look_ahead, start_stopped
from drfd.common.errors import Refused
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.stimuli import SubmitAsked
from drfd.core.explain.forecast import Forecast
from drfd.core.model.job import LONG_BYTES, NO_WORDS, Dependency, Job, RequiredOutcome, Words
from drfd.daemon.forecasting import forecaster, forecasts
from drfd.daemon.forecasting.messages import (
    LedgerChanges,
    LedgerCopy,
    Question,
    StartQuestion,
    TrialQuestion,
    changed_by,
)
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    attempt_started,
    demand,
    ended,
    now,
    replace,
    rules,
    spec,
    tables,
)
from instance import Instance, is_alive, wait_for

#: Forecasts are made in processes that most tests start.
pytestmark = pytest.mark.slow


async def why(desk: Desk, job_id: int) -> View:
    return await desk.ask(ALICE, op="why", id=job_id)


async def dry_run(desk: Desk, cores: float = 1) -> View:
    asked = {"argv": ["true"], "cwd": "/home", "demand": {"cores_milli": round(cores * 1000)}}
    return await desk.ask(ALICE, op="submit", dry_run=True, **asked)


async def until(is_so: Callable[[], object], what: str) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"in vain: {what}")


async def waiting_job(desk: Desk) -> int:
    """A job of alice's that starts in 600 seconds."""
    await desk.feed(attempt_started(await desk.submit(BOB, 8, time_limit_s=600)))
    job_id = await desk.submit(ALICE, 9)
    assert isinstance(job_id, int)
    return job_id


async def first_pid(desk: Desk, job_id: int) -> int:
    """Of a forecaster that has answered a question."""
    assert (await why(desk, job_id))["job"]["expected_start_at"] == now(600).at_s
    (pid,) = desk.requests.forecasts.pids
    assert isinstance(pid, int)
    return pid


async def begun(pid: int, until_s: float) -> None:
    """It has been at a question until it had used so much processor time in all."""
    await until(lambda: cpu_s(pid) > until_s, "the forecaster works")


def cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@pytest.fixture
def desk(make_desk: MakeDesk) -> Iterator[Desk]:
    """A desk with forecasters, whose effects nobody looks at."""
    desk = make_desk(has_forecasters=True)
    yield desk
    desk.shell.host.take()


@pytest.fixture
def busy_desk(make_desk: MakeDesk) -> Iterator[Desk]:
    """With so many jobs of bob's that run one after the other, and by a policy that looks at each
    of them in each pass, that one more of his is looked ahead for many times as long as it takes to
    see why it waits. How long that is depends on the machine."""
    desk = make_desk(by=replace(rules(), policy="slots"), has_forecasters=True)
    turns = [
        SubmitAsked(now(), spec("root.bob", actor=BOB, asks=demand(5 + at / 1000), time_limit_s=60))
        for at in range(900)
    ]
    desk.shell.turn(*turns)
    yield desk
    desk.shell.host.take()


async def long_question(desk: Desk) -> View:
    asked = {"argv": ["true"], "cwd": "/home", "demand": {"cores_milli": 9000}}
    return await desk.ask(BOB, op="submit", dry_run=True, **asked)


async def cost_s(pid: int, asking: Awaitable[View]) -> float:
    """The processor time of a forecaster for this question, on this machine."""
    before_s = cpu_s(pid)
    await asking
    return cpu_s(pid) - before_s


# -- whose work it is --------------------------------------------------------------------------


async def test_a_forecaster_holds_nothing_and_comes_after_everybody(desk: Desk) -> None:
    pid = await first_pid(desk, await waiting_job(desk))
    with pytest.raises(Refused, match="99 cores"):
        await dry_run(desk, 99)
    assert desk.requests.forecasts.pids == [pid], "a refusal is an answer, too"
    held = {name: os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    assert held.pop("0").startswith("socket:")
    assert held == {"1": "/dev/null", "2": "/dev/null"}
    assert os.getpriority(os.PRIO_PROCESS, pid) == 10
    soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    assert soft == hard != resource.RLIM_INFINITY
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "500\n"
    assert os.getsid(pid) == pid, "^C at the daemon's terminal is not for it"
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert {line.partition(b"=")[0] for line in environment.split(b"\0")} <= {b"", b"TZ"}


async def test_a_forecaster_that_nobody_asks_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a copy of all that is in the books."""
    monkeypatch.setattr(forecasts, "IDLE_S", 0.2)
    job_id = await waiting_job(desk)
    pid = await first_pid(desk, job_id)
    await until(lambda: not desk.requests.forecasts.pids and not is_alive(pid), "it ends")
    assert await first_pid(desk, job_id) != pid


# -- exactness ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_copy_of_the_books_is_exact_after_whatever_has_changed(shell: Shell, seed: int) -> None:
    """Jobs and arrays come, change and go between two questions."""
    random = Random(seed)
    books, changed = LedgerCopy(), dict[int, None]()

    def note(job: Job) -> None:
        changed.update(dict.fromkeys(changed_by(job)))

    shell.engine.changes.listen(note)
    ledger = shell.engine.ledger
    for _ in range(60):
        match random.randrange(6):
            case 0:
                spans = ((0, random.randrange(1, 9), 1),)
                at_once = random.choice([None, 2])
                asked = SubmitAsked(now(), spec(asks=demand(4)), spans=spans, at_once=at_once)
                shell.turn(asked)
            case 1 | 2:
                asks = spec(priority=random.randrange(3))
                argv = Words.of(["x" * random.choice([1, 1000])])
                shell.turn(SubmitAsked(now(), replace(asks, argv=argv)))
            case 3 if ledger.jobs:
                # They leave the books when nobody waits for them any more.
                want = random.choice(
                    [RequiredOutcome.OK, RequiredOutcome.FAIL, RequiredOutcome.ANY]
                )
                after = (Dependency(random.choice([*ledger.jobs]), want),)
                shell.turn(SubmitAsked(now(), spec(after=after)))
            case 4 if ledger.jobs or ledger.arrays:
                job_id = random.choice([*ledger.jobs, *ledger.arrays])
                shell.turn(random.choice([st.HoldAsked, st.CancelAsked])(now(), job_id, ADMIN))
            case _:
                for job in [each for each in ledger.jobs.values() if each.state == "STARTING"]:
                    shell.turn(attempt_started(job.id, job.attempt))
                    shell.turn(ended(job.id, job.attempt))
                    shell.turn(st.AttemptRemoved(now(), job.id, job.attempt))
        if random.random() < 0.5:
            books.take(LedgerChanges.of(changed, ledger))
            changed.clear()
    books.take(LedgerChanges.of(changed, ledger))
    future = shell.engine.circumstances().future(books.jobs, books.arrays, shell.engine.rules)
    assert [*map(wordless, future.ledger.jobs.values())] == [*map(wordless, ledger.jobs.values())]
    expected = tables(ledger)
    found = tables(future.ledger)
    for each in (expected, found):
        # Compared above; who keeps something by `changed` is not there.
        each.pop("jobs")
        each["queues"].changed.clear()
        each["queues"]._arrays = None
    assert found == expected
    shell.host.take()


def wordless(job: Job) -> Job:
    """Of a long command line only that it is long is sent."""
    words = job.spec.argv if len(job.spec.argv.data) <= LONG_BYTES else NO_WORDS
    return structs.replace(job, spec=replace(job.spec, argv=words))


@pytest.mark.parametrize("seed", range(2))
async def test_answers_are_those_of_a_look_ahead_in_one_process(desk: Desk, seed: int) -> None:
    random = Random(seed)
    live, starts = list[int](), set[float | None]()
    for _ in range(6):
        for _ in range(random.randrange(1, 5)):
            actor = random.choice([ALICE, BOB])
            limit_s = random.choice([60, 600, 3600])
            cores = random.randrange(1, 10)
            live.append(await desk.submit(actor, cores, time_limit_s=limit_s))
        jobs = desk.shell.engine.ledger.jobs
        for job_id in [each for each in live if jobs[each].state == "STARTING"]:
            if random.random() < 0.3:
                await desk.finish(job_id)
                live.remove(job_id)
        waiting = [each for each in live if jobs[each].state == "PENDING"]
        questions: list[Question] = [
            TrialQuestion(SubmitAsked(now(), spec(asks=demand(random.randrange(1, 10)))), {}),
            *(StartQuestion(each, smaller=True) for each in waiting),
        ]
        for question in questions:
            found = await desk.requests.forecasts.ask(lambda asked=question: asked)
            assert found == forecaster.answer(question, lambda: look_ahead(desk.shell.engine))
            assert found.missing is None and not found.bug
            starts.add(found.start_s)
    assert len(starts) > 2


# -- when it is gone, slow or cannot be --------------------------------------------------------


@pytest.mark.parametrize("when", ["idle", "at a question"])
async def test_who_kills_it_gets_a_late_answer(desk: Desk, when: str) -> None:
    job_id = await waiting_job(desk)
    pid = await first_pid(desk, job_id)
    if when == "idle":
        os.kill(pid, signal.SIGKILL)
        asking = asyncio.ensure_future(why(desk, job_id))
    else:
        os.kill(pid, signal.SIGSTOP)
        asking = asyncio.ensure_future(why(desk, job_id))
        await asyncio.sleep(0.1)
        assert not asking.done()
        os.kill(pid, signal.SIGKILL)
    assert (await asking)["job"]["expected_start_at"] == now(600).at_s
    assert "no_estimate" not in await asking
    assert pid not in desk.requests.forecasts.pids
    assert not is_alive(pid), "it leaves no zombie"


async def test_a_question_at_which_they_die_again_and_again_is_put_to_no_more_of_them(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new one is told of all jobs, and that would go on for as long as the asker waits."""
    monkeypatch.setattr(forecasts, "PAUSE_S", 0.01)
    job_id = await waiting_job(desk)
    killed = set[int]()
    with monkeypatch.context() as patched:
        start_stopped(patched)
        asking = asyncio.ensure_future(why(desk, job_id))
        while not asking.done():
            for pid in set(desk.requests.forecasts.pids) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            await asyncio.sleep(0)
    reply = await asking
    assert len(killed) == 5
    assert reply["no_estimate"]["code"] == "forecast-failed"
    assert reply["job"]["reason"]["code"] == "RESOURCES"
    assert await first_pid(desk, job_id) not in killed, "the next question is another one"


async def test_who_waits_too_long_is_told_so_and_all_else_that_is_known(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "MOST_FORECASTERS", 1)
    job_id = await waiting_job(desk)
    pid = await first_pid(desk, job_id)
    desk.requests.forecasts.patience_s = 0.3
    os.kill(pid, signal.SIGSTOP)
    reply = await why(desk, job_id)
    assert reply["job"]["expected_start_at"] is None
    assert reply["job"]["reason"]["code"] == "RESOURCES"
    assert reply["no_estimate"]["code"] == "forecast-busy"
    reply = await dry_run(desk)
    assert (reply["expected_start_at"], reply["reason"]) == (None, None)
    assert "too many questions at once" in reply["no_estimate"]["text"]
    os.kill(pid, signal.SIGCONT)
    desk.requests.forecasts.patience_s = 60.0
    assert await first_pid(desk, job_id), "as if nothing had been"


async def test_nobody_waits_for_one_users_long_question(desk: Desk) -> None:
    """There is a second forecaster, which one user alone never has as well."""
    job_id = await waiting_job(desk)
    pid = await first_pid(desk, job_id)
    os.kill(pid, signal.SIGSTOP)
    asked = {"argv": ["true"], "cwd": "/home", "dry_run": True}
    long = asyncio.ensure_future(desk.ask(BOB, op="submit", **asked))
    await asyncio.sleep(0)
    assert (await why(desk, job_id))["job"]["expected_start_at"] == now(600).at_s
    assert not long.done()
    assert len(desk.requests.forecasts.pids) == 2
    os.kill(pid, signal.SIGCONT)
    await long


async def test_a_question_ends_when_nobody_waits_for_its_answer(busy_desk: Desk) -> None:
    """Else who hangs up and asks again would keep both forecasters from others."""
    quick = {"argv": ["true"], "cwd": "/home", "demand": {"cores_milli": 100}}
    await busy_desk.ask(ALICE, op="submit", dry_run=True, **quick)
    (pid,) = busy_desk.requests.forecasts.pids
    whole_s = await cost_s(pid, long_question(busy_desk))
    before_s = cpu_s(pid)
    asking = asyncio.ensure_future(long_question(busy_desk))
    await begun(pid, before_s + whole_s / 4)
    asking.cancel()
    reply = await busy_desk.ask(ALICE, op="submit", dry_run=True, **quick)
    assert reply["expected_start_at"] == now().at_s
    assert pid in busy_desk.requests.forecasts.pids, "it has not been killed for that"


def test_a_question_that_takes_too_long_is_answered_as_far_as_it_goes(
    busy_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the first signal raises is lost where it falls into a callback of Python's own; the next
    # signal comes a moment later.
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_type))
    questions: list[tuple[Question, bool]] = [
        (TrialQuestion(SubmitAsked(now(), spec("root.bob", actor=BOB, asks=demand(9))), {}), True),
        (StartQuestion(job_id=900, smaller=True), False),
    ]

    def future() -> Forecast:
        return look_ahead(busy_desk.shell.engine)

    for question, has_reason in questions:
        begin_s = time.process_time()
        known_s = [time.process_time() - begin_s for _ in forecaster._answers(question, future)]
        # Why it waits is known by then, if it is asked for, and its start by far not.
        least_s, most_s = (known_s[0], known_s[1]) if has_reason else (0.0, known_s[0])
        monkeypatch.setattr(forecaster, "MOST_CPU_S", least_s + (most_s - least_s) / 4)
        found = forecaster.answer(question, future)
        assert found.missing is not None and found.missing.code == "forecast-too-long"
        assert (found.start_s, found.reason is not None) == (None, has_reason)
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_IGN
    assert set(lost) <= {forecaster.TooLong}


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
async def test_where_there_can_be_no_process_one_line_says_so(
    desk: Desk, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = await waiting_job(desk)
    with monkeypatch.context() as patched:

        def refuse(*words: object, **options: object) -> None:
            raise OSError(number, os.strerror(number))

        patched.setattr(subprocess, "Popen", refuse)
        for _ in range(2):
            reply = await why(desk, job_id)
            assert reply["job"]["reason"]["code"] == "RESOURCES"
            assert reply["no_estimate"]["code"] == "no-forecaster"
            assert os.strerror(number) in reply["no_estimate"]["text"]
        assert (await dry_run(desk))["no_estimate"]["code"] == "no-forecaster"
        with pytest.raises(Refused, match="never"):
            await dry_run(desk, cores=99)
    told = [each for each in caplog.messages if "no-forecaster" in each]
    assert len(told) == 1 and "\n" not in told[0]
    assert await first_pid(desk, job_id), "when there can be one again"


def test_a_forecaster_ends_with_a_controller_that_is_killed() -> None:
    instance = Instance()
    try:
        instance.start()
        assert instance.drf("submit", "--dry-run", "--", "true").returncode == 0
        assert instance.process is not None
        parent = instance.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        names = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in children}
        (pid,) = (int(each) for each, name in names.items() if b"forecaster" in name)
        instance.kill()
        wait_for("the end of the forecaster", lambda: not is_alive(pid))
    finally:
        instance.destroy()
