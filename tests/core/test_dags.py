"""Random webs of jobs that wait for each other, with failures, cancellations and retries.

Against a naive model that walks everything: what can start starts, nothing starts early, and no job
is forgotten. The model knows the fate of each job beforehand and nothing of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from drfd.core.model import stimuli as st
from drfd.core.model.job import Dependency, JobState, Outcome, RequiredOutcome, Retry
from fakes import ALICE, Bench, attempt_started, demand, ended, now, rules, spec
from seeds import seeds

SEEDS = range(2, 62)


@dataclass(frozen=True)
class Fate:
    """What becomes of a job: the exit codes of its attempts, or a cancellation while it waits."""

    after: tuple[Dependency, ...]
    begin_s: int | None
    exit_codes: tuple[int, ...]
    retries: int
    is_cancelled: bool

    @property
    def outcome(self) -> Outcome:
        if self.is_cancelled:
            return Outcome.CANCELLED
        tries = self.exit_codes[: self.retries + 1]
        return Outcome.COMPLETED if 0 in tries else Outcome.FAILED

    @property
    def attempts(self) -> int:
        tries = self.exit_codes[: self.retries + 1]
        return tries.index(0) + 1 if 0 in tries else len(tries)


def draw(random: Random) -> dict[int, Fate]:
    """Jobs by id; each waits for earlier ones."""
    fates: dict[int, Fate] = {}
    for job_id in range(1, random.randint(2, 25)):
        earlier = random.sample(sorted(fates), min(len(fates), random.randint(0, 3)))
        fates[job_id] = Fate(
            after=tuple(
                Dependency(on, random.choice([RequiredOutcome.OK, *RequiredOutcome]))
                for on in earlier
            ),
            begin_s=random.choice([None, None, random.randint(0, 300)]),
            exit_codes=tuple(random.choice([0, 0, 1]) for _ in range(3)),
            retries=random.randint(0, 2),
            is_cancelled=random.random() < 0.1,
        )
    return fates


def is_allowed(want: RequiredOutcome, outcome: Outcome) -> bool:
    return {
        RequiredOutcome.OK: outcome == "COMPLETED",
        RequiredOutcome.ANY: True,
        RequiredOutcome.FAIL: outcome != "COMPLETED",
    }[want]


def runs(fates: dict[int, Fate]) -> dict[int, bool]:
    """Which jobs run at all: the model. A job that never starts has no end to wait for."""
    answer: dict[int, bool] = {}
    for job_id, fate in fates.items():
        answer[job_id] = not fate.is_cancelled and all(
            (answer[each.job_id] or fates[each.job_id].is_cancelled)
            and is_allowed(each.want, fates[each.job_id].outcome)
            for each in fate.after
        )
    return answer


def submit(bench: Bench, fates: dict[int, Fate], random: Random) -> None:
    for fate in fates.values():
        begin_s = None if fate.begin_s is None else int(now(fate.begin_s).at_s)
        bench.submit(
            spec(
                asks=demand(random.choice([1, 2]), 1),
                time_limit_s=None,
                after=fate.after,
                begin_s=begin_s,
                retry=Retry(fate.retries, (Outcome.FAILED,)) if fate.retries else None,
            )
        )


@pytest.mark.parametrize("seed", seeds(SEEDS, quick=1))
def test_all_that_can_run_runs_when_it_may_and_nothing_else_does(seed: int) -> None:
    random = Random(seed)
    fates = draw(random)
    bench = Bench(rules(4, 20))
    submit(bench, fates, random)
    over: set[int] = set()
    starts: dict[int, int] = {}
    for job_id, fate in fates.items():
        if fate.is_cancelled:
            bench.feed(st.CancelAsked(now(), job_id, ALICE))
            over.add(job_id)
    for at_s in range(0, 1200, 5):
        bench.feed(st.Tick(now(at_s)))
        for job_id in bench.schedule(at_s):
            fate = fates[job_id]
            assert all(each.job_id in over for each in fate.after), "it started too early"
            assert fate.begin_s is None or fate.begin_s <= at_s
            starts[job_id] = starts.get(job_id, 0) + 1
            bench.feed(attempt_started(job_id, starts[job_id], at_s))
        waits = [job for job in bench.ledger.jobs.values() if bench.ledger.wanted(job)]
        free = bench.rules.shares.capacity[0] - bench.ledger.allocated[0]
        assert all(bench.ledger.demand(job)[0] > free for job in waits), "it could have started"
        for job in sorted(bench.ledger.allocated_jobs(), key=lambda job: job.id):
            if random.random() < 0.4:
                code = fates[job.id].exit_codes[job.attempt - 1]
                bench.feed(ended(job.id, job.attempt, at_s, exit_code=code))
                bench.feed(st.AttemptRemoved(now(at_s), job.id, job.attempt))
                if job.id not in bench.ledger.jobs:
                    over.add(job.id)
    bench.check()
    expected = runs(fates)
    assert starts == {job_id: fate.attempts for job_id, fate in fates.items() if expected[job_id]}
    left = {job_id for job_id in fates if not expected[job_id] and job_id not in over}
    assert set(bench.ledger.jobs) == left
    assert all(bench.job(job_id).state is JobState.PENDING for job_id in left)
    # Each has a dependency that can never be met, or waits for one that has.
    for job_id in left:
        job = bench.job(job_id)
        assert job.broken is not None or any(each.job_id in left for each in job.awaits)


def test_the_webs_have_all_that_they_are_to_prove_something_about() -> None:
    fates = [fate for seed in SEEDS for fate in draw(Random(seed)).values()]
    never = [seed for seed in SEEDS if not all(runs(draw(Random(seed))).values())]
    assert len(never) > 20
    assert sum(fate.attempts > 1 for fate in fates) > 50
    assert {each.want for fate in fates for each in fate.after} == set(RequiredOutcome)
