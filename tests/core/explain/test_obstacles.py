"""The reason at the end of a chain of jobs that wait for each other."""

from __future__ import annotations

from drfd.core.explain.obstacles import Obstacle, last_obstacle
from drfd.core.explain.reasons import (
    HeldBy,
    ReasonCode,
    WaitReason,
    explain_wait,
)
from drfd.core.model import stimuli as st
from drfd.core.model.job import Dependency, Job
from fakes import ADMIN, BOB, Bench, demand, now, schedule, spec


def obstacle(bench: Bench, job_id: int) -> Obstacle:
    last = schedule(bench.ledger, bench.rules)

    def reason_of(job: Job) -> WaitReason | None:
        return explain_wait(job, bench.ledger, last, bench.rules)

    reason = reason_of(bench.job(job_id))
    assert reason is not None
    return last_obstacle(reason, bench.ledger, reason_of)


def after(*ids: int) -> tuple[Dependency, ...]:
    return tuple(Dependency(each) for each in ids)


def test_an_array_stands_for_its_tasks(bench: Bench) -> None:
    bench.feed(st.SubmitAsked(now(), spec(), True, spans=((0, 4, 1),)))
    found = obstacle(bench, bench.submit(spec(after=after(1))))
    assert (found.reason.code, found.of) == (ReasonCode.HELD, "1")


def test_a_suspended_job_gives_nothing_back_until_somebody_resumes_it(bench: Bench) -> None:
    holder = bench.start(spec("root.bob", actor=BOB, asks=demand(1, 9)))
    waiting = bench.submit(spec(asks=demand(1, 9)))
    assert obstacle(bench, waiting).of is None
    bench.feed(st.SuspendAsked(now(), holder, ADMIN))
    bench.feed(st.Frozen(now(), holder, 1))
    suspended = HeldBy("root", str(holder), is_suspended=True, is_admins=True)
    assert obstacle(bench, waiting) == Obstacle(WaitReason(ReasonCode.HELD, suspended), str(holder))
