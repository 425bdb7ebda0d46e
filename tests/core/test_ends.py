"""What is kept of ends from pass to pass is what would be read anew."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from drfd.core import ends as ends_module
from drfd.core.ends import Ends
from drfd.core.estimate import RunTimes
from drfd.core.job import JobState
from drfd.core.ledger import Ledger
from drfd.core.resources import Vector
from fakes import ADMIN, ALICE, BOB, Bench, demand, now, rules, runner_up, spec

#: Whose jobs they are.
ACTORS = (ALICE, BOB, ADMIN)


def read(ledger: Ledger, run_times: RunTimes, now_s: float) -> list[tuple[float, Vector]]:
    """Of every job that holds something, from nothing but the books."""
    return sorted(
        (run_times.end_s(job, now_s), ledger.held(job))
        for job in ledger.holders()
        if job.state is not JobState.SUSPENDED or ledger.wanted(job) is not None
    )


def lives(seed: int, steps: int) -> Iterator[tuple[Bench, RunTimes, Ends, float]]:
    """Jobs come, start, freeze, go on and end in a random order; the clock is set back at times."""
    random, bench, run_times = Random(seed), Bench(rules()), RunTimes()
    ends, at_s = Ends(bench.ledger, run_times), 0.0

    def tell(before: int) -> None:
        for event in bench.events[before:]:
            ends.note(getattr(event, "job_id", 0))

    for _ in range(steps):
        at_s = max(0.0, at_s + random.choice((0, 1, 30, 400, 4000, -200)))
        before = len(bench.events)
        jobs = list(bench.ledger.jobs.values())
        running = [job.id for job in jobs if job.state is JobState.RUNNING]
        match random.choice(("start", "start", "wait", "end", "freeze", "thaw", "begin")):
            case "start" | "begin" as how:
                asked = spec(
                    actor=random.choice(ACTORS),
                    asks=demand(random.choice((0.1, 0.2)), 0.1),
                    time_limit_s=random.choice((None, 60, 3600)),
                )
                bench.submit(asked, at_s=at_s)
                for job_id in bench.schedule(at_s):
                    if how == "start":
                        bench.feed(runner_up(job_id, at_s=at_s))
            case "end" if running:
                job = bench.job(random.choice(running))
                bench.finish(job.id, at_s=at_s)
                run_times.add(job.spec.user, random.choice((5, 500, 5000)))
                ends.note_user(job.spec.user)
            case "freeze" if running:
                bench.suspend(random.choice(running), by=random.choice((None, ADMIN)), at_s=at_s)
            case "thaw":
                bench.schedule(at_s)
            case _:
                pass
        tell(before)
        yield bench, run_times, ends, now(at_s).at_s


@pytest.mark.parametrize(("seed", "few"), [(0, 10), (1, 1), (2, 1), (3, 1000)])
def test_what_is_kept_is_what_would_be_read(
    seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether times are moved one by one or all together."""
    monkeypatch.setattr(ends_module, "_FEW", few)
    most = 0
    for bench, run_times, ends, now_s in lives(seed, 60):
        ends.settle()
        found = list(ends.at(now_s))
        assert found == sorted(found, key=lambda end: end[0])
        assert sorted(found) == read(bench.ledger, run_times, now_s)
        suspended = {
            job.id: (job.spec.leaf, wanted)
            for job in bench.ledger.holders()
            if (wanted := bench.ledger.wanted(job)) is not None
        }
        assert ends.suspended == suspended
        most = max(most, len(found))
    assert most > 5


def test_nothing_is_read_again_that_no_event_was_about(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, run_times = Bench(rules()), RunTimes()
    for _ in range(20):
        bench.start(spec(asks=demand(0.1, 0.1), time_limit_s=3600))
    ends = Ends(bench.ledger, run_times)
    ends.settle()
    assert len(list(ends.at(now(10).at_s))) == 20
    asked = []
    length_s, held = RunTimes.length_s, Ledger.held
    monkeypatch.setattr(RunTimes, "length_s", lambda *of: asked.append(of) or length_s(*of))
    monkeypatch.setattr(Ledger, "held", lambda *of: asked.append(of) or held(*of))
    ends.settle()
    assert len(list(ends.at(now(20).at_s))) == 20
    assert asked == []
