"""Random lives of many jobs: whatever is reported in whatever order, the books stay right.

After every step the tables agree with the jobs and no more is booked than there is; the events
replay to the same books. At the end every job can be brought to its end, and all comes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest

from drfd.common.errors import Refused
from drfd.common.indices import count_of
from drfd.core.decisions.outcome import RETRIED_BY_DEFAULT
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model import lifecycle
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Dependency,
    Job,
    JobState,
    Notify,
    Outcome,
    RequiredOutcome,
    Retry,
    Warn,
    Whose,
    Words,
)
from fakes import ADMIN, ALICE, BOB, Bench, demand, ended, now, rules, spec
from seeds import runs

SEEDS = range(16)
STEPS = 400
Request = st.HoldAsked | st.ReleaseAsked | st.CancelAsked | st.SuspendAsked | st.ResumeAsked
REFUSALS = {
    "too-big",
    "too-many-jobs",
    "no-such-job",
    "not-yours",
    "not-waiting",
    "not-held",
    "not-running",
    "not-suspended",
    "held-by-admin",
    "cycle",
    "bad-value",
    "not-admin",
}


@dataclass
class Walk:
    random: Random
    bench: Bench
    at_s: float = 0.0

    @property
    def now(self) -> st.Now:
        return now(self.at_s)

    def step(self) -> st.Stimulus | None:
        """Anything that may be asked or reported now, sensible or not."""
        makes, odds = zip(*self._steps, strict=True)
        make: Callable[[Walk], st.Stimulus | None] = self.random.choices(makes, odds)[0]
        return make(self)

    def submission(self) -> st.Stimulus:
        actor = self.random.choice([ALICE, BOB])
        asked = spec(
            f"root.{actor.user}",
            actor=actor,
            asks=demand(
                self.random.choice([0.5, 1, 2, 5]),
                self.random.choice([0.5, 1, 3]),
                self.random.choice([0, 0, 600]),
            ),
            time_limit_s=self.random.choice([None, 5, 60]),
            priority=self.random.randint(-1, 1),
            preemptible=self.random.random() < 0.5,
            begin_s=self.random.choice([None, None, None, int(self.now.at_s) + 5]),
            after=self.dependencies() if self.random.random() < 0.3 else (),
            retry=self.random.choice([None, Retry(2, RETRIED_BY_DEFAULT)]),
        )
        asked = replace(asked, cancel_if_never=asked.priority == 1)
        if asked.time_limit_s == 60:
            asked = replace(asked, notify=Notify(("fail",), Words.of(["tell"])))
        if asked.time_limit_s is not None:
            asked = replace(asked, warn=Warn(10, asked.time_limit_s - 1))
        held = self.random.random() < 0.2
        if self.random.random() < 0.3:
            spans = self.random.choice([((0, 4, 2),), ((3, 4, 1),), ((1, 1, 1), (5, 7, 1))])
            at_once = self.random.choice([None, None, 1, 2])
            return st.SubmitAsked(self.now, asked, held, spans=spans, at_once=at_once)
        return st.SubmitAsked(self.now, asked, held)

    def request(self) -> st.Stimulus:
        kinds: list[type[Request]]
        kinds = [st.HoldAsked, st.ReleaseAsked, st.CancelAsked, st.SuspendAsked, st.ResumeAsked]
        kind = self.random.choice(kinds)
        actor = self.random.choice([ALICE, BOB, ADMIN])
        arrays = [*self.bench.ledger.arrays.values()]
        if arrays and self.random.random() < 0.3:
            chosen = self.random.choice(arrays).array
            # The whole of it, what of it waits without a record, or one task, perhaps over.
            job_id = self.random.choice([chosen.id, self.random.randint(chosen.id, chosen.last_id)])
            if chosen.common.held_by is not None and self.random.random() < 0.4:
                return st.ReleaseAsked(self.now, chosen.id, ADMIN)
            only = self.random.random() < 0.3
            return kind(self.now, job_id, actor, unmaterialized_only=only)
        return kind(self.now, self._pick().id, actor)

    def dependencies(self) -> tuple[Dependency, ...]:
        arrays = self.bench.ledger.arrays
        live = [*sorted(self.bench.ledger.jobs), *arrays]
        live += [
            each for array_state in arrays.values() for ids in array_state.ids() for each in ids
        ]
        live = sorted(set(live))
        some = self.random.sample(live, min(len(live), self.random.randint(1, 2)))
        return tuple(
            Dependency(job_id, self.random.choice(list(RequiredOutcome))) for job_id in some
        )

    def change(self) -> st.Stimulus:
        wish = st.Change(
            priority=self.random.choice([None, 1]),
            time_limit_s=self.random.choice([None, None, 30]),
            cores_milli=self.random.choice([None, None, 500]),
            after=self.random.choice([None, (), self.dependencies()]),
            begin_s=self.random.choice([None, 0, int(self.now.at_s) + 5]),
        )
        ids = [self._pick().id, *self.bench.ledger.arrays]
        return st.ChangeAsked(
            self.now, self.random.choice(ids), self.random.choice([ALICE, ADMIN]), wish
        )

    def signal(self) -> st.Stimulus:
        job = self._one(lambda job: job.state is JobState.RUNNING)
        return st.SignalAsked(self.now, job.id, ADMIN, 10)

    def drain(self) -> st.Stimulus:
        on = self.random.random() < 0.3
        return st.DrainAsked(self.now, on, self.random.choice([ALICE, ADMIN]))

    def schedule(self) -> None:
        self.bench.run_pass(self.at_s)

    def tick(self) -> st.Stimulus:
        self.at_s += self.random.choice([0, 1, 5, 20])
        return st.Tick(self.now)

    def suspension(self) -> st.Stimulus:
        job = self._one(lambda job: job.state is JobState.RUNNING)
        return st.SuspendAsked(self.now, job.id, ADMIN)

    def resumption(self) -> st.Stimulus:
        job = self._one(lambda job: job.freezing or job.state is JobState.SUSPENDED)
        return st.ResumeAsked(self.now, job.id, ADMIN)

    def frozen_news(self) -> st.Stimulus:
        job = self._one(lambda job: job.freezing)
        return st.Frozen(self.now, job.id, job.attempt)

    def preemption(self) -> None:
        """Some running job has to make room for some other."""
        job = self._one(lambda job: job.state is JobState.RUNNING and not job.freezing)
        if job.state is not JobState.RUNNING or job.freezing:
            return
        event: ev.Event = ev.SuspendRequested(
            job_id=job.id, at_s=self.now.at_s, by=None, text="suspended for another"
        )
        if self.random.random() < 0.5:
            event = ev.PreemptRequested(
                job_id=job.id,
                at_s=self.now.at_s,
                mono_s=self.now.mono_s,
                for_job=self._pick().id,
                text="stopped for another",
            )
        self.bench.ledger.apply(event)
        self.bench.events.append(event)

    def start_news(self) -> st.Stimulus:
        job, attempt = self._news()
        chance = self.random.random()
        if chance < 0.2:
            return st.LaunchAborted(self.now, job.id, attempt, "no such file")
        if chance < 0.4:
            whose = self.random.choice(list(Whose))
            return st.LaunchShort(self.now, job.id, attempt, "no room", whose, "processes")
        return st.AttemptStarted(job.id, attempt, self.now.at_s, self.now.mono_s, None)

    def end_news(self) -> st.Stimulus:
        job, attempt = self._news()
        if self.random.random() < 0.1:
            return st.AttemptMissing(self.now, job.id, attempt)
        exit_code, signal = self.random.choice([(0, None), (3, None), (None, 9), (None, None)])
        oom = self.random.random() < 0.2
        return ended(
            job.id,
            attempt,
            self.at_s,
            exit_code=exit_code,
            signal=signal,
            oom_killed=oom,
            over_limit=oom and self.random.random() < 0.5,
        )

    def told(self) -> st.Stimulus | None:
        """The owner of a job that never starts, or of any, has been notified."""
        owed = [*map(lifecycle.owed, self.bench.ledger.jobs_to_notify())]
        if not owed:
            return st.NeverNotified(self.now, self._pick().id, "told")
        effect = self.random.choice(owed)
        assert isinstance(effect, lifecycle.NotifyNever)
        return st.NeverNotified(self.now, effect.job_id, "told")

    def removal(self) -> st.Stimulus:
        job, attempt = self._news()
        return st.AttemptRemoved(self.now, job.id, attempt)

    def breach(self) -> st.Stimulus:
        job, attempt = self._news()
        return st.Breached(self.now, job.id, attempt, Outcome.LIMIT_EXCEEDED, "measured too much")

    def ids_news(self) -> st.Stimulus:
        """The launcher knows ids that a restored journal does not, or only older ones."""
        return st.IdsSeen(self.now, self.bench.ledger.next_id + self.random.choice([-2, -1, 0, 1]))

    _steps = (
        (submission, 20),
        (request, 12),
        (change, 4),
        (signal, 2),
        (drain, 2),
        (schedule, 20),
        (tick, 12),
        (start_news, 15),
        (end_news, 8),
        (removal, 15),
        (told, 3),
        (breach, 1),
        (ids_news, 0.4),
        (suspension, 5),
        (frozen_news, 5),
        (resumption, 5),
    )

    def _one(self, which: Callable[[Job], bool]) -> Job:
        """One such job, or any."""
        found = [job for _, job in sorted(self.bench.ledger.jobs.items()) if which(job)]
        return self.random.choice(found) if found else self._pick()

    def _pick(self) -> Job:
        """One of the live jobs; now and then one that does not exist."""
        live = sorted(self.bench.ledger.jobs)
        if not live or self.random.random() < 0.05:
            return Job(id=10_000, spec=spec(), state=JobState.PENDING, submitted_at=0.0)
        return self.bench.job(self.random.choice(live))

    def _news(self) -> tuple[Job, int]:
        """Mostly a job that has a runner, and its present attempt."""
        holders = sorted(job.id for job in self.bench.ledger.allocated_jobs())
        job = self._pick()
        if holders and self.random.random() < 0.9:
            job = self.bench.job(self.random.choice(holders))
        return job, job.attempt + self.random.choice([0] * 8 + [-1, 1])


@cache
def walked(seed: int, steps: int = STEPS) -> Bench:
    """For several tests; not to be changed."""
    return walk(seed, steps)


def walk(seed: int, steps: int = STEPS) -> Bench:
    random = Random(seed)
    bench = Bench(
        rules(
            4,
            4,
            weights={"bob": random.choice(["1", "2", "1/3"])},
            grace_s=random.choice([1, 10]),
            max_waiting_per_user=6,
        )
    )
    walker = Walk(random, bench)
    for number in range(steps):
        try:
            stimulus = walker.step()
            if stimulus is not None:
                bench.feed(stimulus)
        except Refused as refusal:
            assert refusal.code in REFUSALS
        if random.random() < 0.1:
            walker.preemption()
        bench.ledger.check()
        booked_by_jobs = [bench.ledger.allocation(job) for job in bench.ledger.jobs.values()]
        assert bench.ledger.allocated == tuple(
            map(sum, zip((0,) * 4, *booked_by_jobs, strict=True))
        )
        assert all(
            booked <= room
            for booked, room in zip(
                bench.ledger.allocated, bench.rules.shares.capacity, strict=True
            )
        )
        if number % 10 == 0:
            bench.check()
    return bench


@pytest.mark.parametrize(("seed", "steps"), runs(SEEDS, steps=STEPS, quick=50))
def test_the_books_stay_right_and_everything_comes_to_its_end(seed: int, steps: int) -> None:
    bench = deepcopy(walked(seed, steps))
    for job_id in [*sorted(bench.ledger.arrays), *sorted(bench.ledger.jobs)]:
        if job_id not in bench.ledger.jobs and job_id not in bench.ledger.arrays:
            continue
        bench.feed(st.CancelAsked(now(1e6), job_id, ADMIN))
    for job in sorted(bench.ledger.jobs.values(), key=lambda job: job.id):
        bench.feed(ended(job.id, job.attempt, 1e6))
        bench.feed(st.AttemptRemoved(now(1e6), job.id, job.attempt))
    bench.check()
    ledger = bench.ledger
    assert (ledger.jobs, ledger.queues, ledger.job_counts.waiting, ledger.arrays) == (
        {},
        {},
        {},
        {},
    )
    assert ledger.allocated == ledger.nothing
    given = set(range(1, ledger.next_id)) - arrays_in(bench) - skipped_in(bench)
    assert born_in(bench) == gone_in(bench) == given


def arrays_in(bench: Bench) -> set[int]:
    return {event.array_id for event in bench.events if isinstance(event, ev.ArraySubmitted)}


def skipped_in(bench: Bench) -> set[int]:
    """Ids that nothing has, because the next id was raised above them."""
    found: set[int] = set()
    books = Ledger(bench.rules.axes)
    for event in bench.events:
        if isinstance(event, ev.IdsRaised):
            found.update(range(books.next_id, event.next_id))
        books.apply(event)
    return found


def born_in(bench: Bench) -> set[int]:
    """Jobs and tasks."""
    found = {event.job_id for event in bench.events if isinstance(event, ev.Submitted)}
    for event in bench.events:
        if isinstance(event, ev.ArraySubmitted):
            found.update(range(event.array_id + 1, event.array_id + 1 + count_of(event.spans)))
    return found


def gone_in(bench: Bench) -> set[int]:
    """Those that have ended, once each."""
    found: list[int] = []
    books = Ledger(bench.rules.axes)
    for event in bench.events:
        if isinstance(event, ev.Cancelled) and event.job_id in books.arrays:
            ids = books.arrays[event.job_id].ids()
            found += [job_id for first, last in ids for job_id in range(first, last + 1)]
        elif isinstance(event, ev.Cleaned | ev.Cancelled):
            found.append(event.job_id)
        books.apply(event)
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.slow
def test_a_walk_gives_the_same_events_every_time() -> None:
    assert walk(1).events == walked(1).events


@pytest.mark.slow
def test_the_walks_meet_every_kind_of_event_and_every_outcome() -> None:
    """Else they would prove less than they seem to."""
    met: Counter[object] = Counter()
    for seed in SEEDS:
        for event in walked(seed).events:
            met.update([type(event), getattr(event, "outcome", None)])
    wanted = [*ev.KINDS.values(), *Outcome]
    few = {str(thing): met[thing] for thing in wanted if met[thing] < 5}
    assert few == {}
