"""Child processes that compute for the controller: exact, dispensable, and nobody's burden."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from daemon.desk import Desk, View, look_ahead
from drfd.common.errors import HostError, Refused, Unavailable
from drfd.core.decisions.stimuli import SubmitAsked
from drfd.daemon.children.children import (
    Children,
    Work,
    WorkKind,
    become_helper,
    part_of_memory,
)
from drfd.daemon.children.forecasts import (
    Question,
    StartQuestion,
    TrialQuestion,
    WatchedStarts,
    answers,
)
from drfd.daemon.lookup.lookup import Lookup
from drfd.daemon.lookup.snapshots import Overview
from drfd.linux import own_process
from fakes import ALICE, BOB, demand, launched, now, spec
from instance import is_alive, wait_for

KIND = WorkKind("the sum", "no-adder", "sum-failed", "sum-busy", nice=10, cpu_s=1)


def children(patience_s: float = 60.0) -> Children:
    return Children(KIND, patience_s=patience_s)


async def computed(by: Children, work: Work) -> Any:
    return await by.ask(lambda: work)


def sleep() -> Iterator[str]:
    yield "begun"
    time.sleep(60)


async def begun(by: Children, count: int = 1) -> list[int]:
    """The pids of so many sleeping children."""
    while len(by.pids) < count:
        await asyncio.sleep(0.001)
    return sorted(by.pids)


async def gone(pid: int) -> None:
    while is_alive(pid):
        await asyncio.sleep(0.001)


async def failure(asking: Awaitable[Any]) -> tuple[str, str]:
    with pytest.raises(Unavailable) as error:
        await asking
    return error.value.code, error.value.text


# -- whose work it is --------------------------------------------------------------------------


async def test_a_child_holds_nothing_and_comes_after_everybody():
    """A client whose connection is closed must not wait for the child, too."""

    def facts() -> Iterator[dict[str, Any]]:
        yield {
            "files": [os.readlink(f"/proc/self/fd/{name}")[:6] for name in range(3)],
            # The directory that is listed is one.
            "others": len(os.listdir("/proc/self/fd")) - 4,
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "cpu": resource.getrlimit(resource.RLIMIT_CPU),
            "oom": Path("/proc/self/oom_score_adj").read_text(),
            "session": os.getsid(0) == os.getpid(),
            "signals": [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)],
            "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        }

    assert await computed(children(), facts) == {
        "files": ["/dev/n", "pipe:[", "/dev/n"], "others": 0, "nice": 10,
        "cpu": [1, 2], "oom": "500\n", "session": True, "signals": [0, 0], "blocked": 0,
    }  # fmt: skip


async def test_a_child_may_take_a_bounded_amount_of_memory_more():
    def take() -> Iterator[int]:
        bytearray(64 << 20)
        yield 1
        bytearray(part_of_memory(10, 512 << 20) + (64 << 20))

    with pytest.raises(HostError, match="too little memory"):
        await computed(children(), take)


@pytest.mark.skipif(os.getuid() != 0, reason="only root drops its rights")
def test_a_child_of_a_controller_that_was_root_is_killed_first_all_the_same():
    """The controller's own score, which it has inherited, spares it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setresgid(*(own_process.NOBODY,) * 3)
            os.setresuid(*(own_process.NOBODY,) * 3)
            become_helper(nice=10, cpu_s=10, more_bytes=1 << 30)
            os._exit(Path("/proc/self/oom_score_adj").read_text() != "500\n")
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.slow
def test_a_child_ends_with_a_controller_that_is_killed():
    program = (
        "import asyncio, time; from daemon.test_children import children, computed, sleep\n"
        "async def main():\n"
        "    by = children(); asking = asyncio.ensure_future(computed(by, sleep))\n"
        "    while not by.pids: await asyncio.sleep(0.01)\n"
        "    print(*by.pids, flush=True); await asking\n"
        "asyncio.run(main())"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_for("the end of the child", lambda: not is_alive(pid))


# -- when it is gone, slow or cannot be --------------------------------------------------------


async def test_a_killed_child_is_an_error_in_the_log_and_the_next_one_answers(caplog):
    by = children()
    asking = asyncio.ensure_future(computed(by, sleep))
    (pid,) = await begun(by)
    os.kill(pid, signal.SIGKILL)
    assert await failure(asking) == ("sum-failed", "the sum has failed; drfd's log says how")
    assert not is_alive(pid), "it leaves no zombie"
    assert await computed(by, lambda: [1, 2]) == 2
    assert await failure(computed(by, lambda: [1 // 0])) == (
        "sum-failed", "the sum has failed; drfd's log says how",
    )  # fmt: skip
    assert "ZeroDivisionError" in caplog.messages[-1]


async def test_who_waits_too_long_is_told_so_and_the_child_is_killed():
    """Else who asks again and again would keep all turns from others."""
    by = children(patience_s=0.05)
    asking = asyncio.ensure_future(computed(by, sleep))
    (pid,) = await begun(by)
    assert (await failure(asking))[0] == "sum-busy"
    await gone(pid)
    by.patience_s = 60.0
    for hang_up in (True, False):
        asking = asyncio.ensure_future(computed(by, sleep))
        (pid,) = await begun(by)
        if hang_up:
            asking.cancel()
            await gone(pid)
    by.close()
    for each in asking, computed(by, sleep):
        assert await failure(each) == ("ending", "the daemon ends")


@pytest.mark.slow
async def test_work_that_takes_too_long_is_answered_as_far_as_it_goes():
    def endless() -> Iterator[int]:
        yield 1
        yield 2
        while True:
            pass

    assert await computed(children(), endless) == 2


@pytest.mark.parametrize(
    ("call", "number"), [("fork", errno.EAGAIN), ("fork", errno.ENOMEM), ("pipe", errno.EMFILE)]
)
async def test_where_there_can_be_no_process_the_estimate_is_missing_alone(
    desk, call, number, monkeypatch
):
    job_id = await waiting_job(desk)
    with monkeypatch.context() as patched:

        def refuse() -> int:
            raise OSError(number, os.strerror(number))

        patched.setattr(os, call, refuse)
        reply = await why(desk, job_id)
        assert reply["job"]["reason"]["code"] == "RESOURCES"
        assert reply["job"]["expected_start_at"] is None
        assert reply["no_estimate"]["code"] == "no-forecaster"
        assert os.strerror(number) in reply["no_estimate"]["text"]
        reply = await dry_run(desk)
        assert (reply["expected_start_at"], reply["reason"]) == (None, None)
        assert reply["no_estimate"]["code"] == "no-forecaster"
        with pytest.raises(Refused, match="never"):
            await dry_run(desk, cores=99)
    # When there can be one again.
    assert (await why(desk, job_id))["job"]["expected_start_at"] == now(600).at_s
    with pytest.raises(Refused, match="99 cores"):
        await dry_run(desk, cores=99)


# -- forecasts ---------------------------------------------------------------------------------


async def why(desk: Desk, job_id: int | str) -> View:
    return await desk.ask(ALICE, op="why", id=job_id)


async def dry_run(desk: Desk, cores: float = 1) -> View:
    asked = {"argv": ["true"], "cwd": "/home", "demand": {"cores_milli": round(cores * 1000)}}
    return await desk.ask(ALICE, op="submit", dry_run=True, **asked)


async def waiting_job(desk: Desk) -> int:
    """A job of alice's that starts in 600 seconds."""
    await desk.feed(launched(await desk.submit(BOB, 8, time_limit_s=600)))
    return await desk.submit(ALICE, 9)


async def test_a_forecast_is_one_of_the_moment_of_its_fork(desk):
    job_id = await waiting_job(desk)
    parts = desk.requests.forecasts
    asking = asyncio.ensure_future(parts.ask(lambda: StartQuestion(job_id, smaller=False)))
    await begun(parts.children)
    await desk.finish(1)
    assert (await asking)["expected_start_at"] == now(600).at_s
    assert desk.shell.engine.ledger.jobs[job_id].state == "STARTING"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_answers_are_those_of_a_look_ahead_in_one_process(desk, seed):
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
            assert found == [*answers(question, look_ahead(desk.shell.engine))][-1]
            assert "no_estimate" not in found
            starts.add(found["expected_start_at"])
    assert len(starts) > 2


async def test_watched_rows_have_the_starts_that_why_tells_by_one_forecast_at_a_time(desk):
    await waiting_job(desk)
    await desk.submit(BOB, 9, time_limit_s=60)
    array = await desk.submit(ALICE, 9, array="1-3", time_limit_s=60)
    held = await desk.submit(ALICE, 1, held=True)
    mono_s = 0.0
    starts = WatchedStarts(desk.requests.forecasts, lambda: mono_s)
    engine, meter = desk.shell.engine, desk.requests.meter
    overview = Overview(
        engine, Lookup(engine, meter), desk.requests.curves,
        start_of=starts.of, renew_starts=starts.renew,
    )  # fmt: skip

    async def told() -> dict[int, tuple[Any, Any]]:
        common, _ = await overview.common_part()
        keys = "expected_start_at", "expected_start_certainty"
        return {row["id"]: tuple(row.get(key) for key in keys) for row in common["pending"]}

    assert (await told())[array] == (None, None)
    assert starts.asking is not None
    await starts.asking
    found = await told()
    assert starts.asking is None
    assert found.pop(held) == (None, None)
    for job_id, (start_s, certainty) in found.items():
        view = (await why(desk, job_id if job_id != array else f"{array}_1"))["job"]
        assert (start_s, certainty) == (view["expected_start_at"], view["expected_start_certainty"])
        assert start_s is not None and certainty == "limits"
    mono_s = 6.0
    await desk.finish(1)
    await told()
    assert starts.asking is not None
    await starts.asking
    assert (await told())[array][0] < found[array][0]


async def test_why_a_submission_would_wait_is_known_before_when_it_would_start(desk):
    await waiting_job(desk)
    question = TrialQuestion(SubmitAsked(now(), spec("root.bob", actor=BOB, asks=demand(9))), {})
    found = [*answers(question, look_ahead(desk.shell.engine))]
    known = [
        ("no_estimate" in each, each["reason"] is None, each["expected_start_at"] is None)
        for each in found
    ]
    assert known == [(True, True, True), (True, False, True), (False, False, False)]
    assert found[0]["no_estimate"]["code"] == "forecast-too-long"
