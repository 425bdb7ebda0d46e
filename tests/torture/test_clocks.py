"""The clock of the world is set, forwards and back, while jobs run: nothing ends for it, and
nothing is lost. The whole engine is driven, journal included, by two clocks that do not agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import Job, JobSpec, JobState, Outcome
from drfd.core.model.lifecycle import Launch, RemoveAttempt, Terminate
from drfd.core.model.stimuli import (
    AttemptEnded,
    AttemptRemoved,
    AttemptStarted,
    Now,
    Stimulus,
    SubmitAsked,
    Tick,
)
from drfd.daemon.engine.engine import Engine, Work
from drfd.daemon.lookup.views import job_view
from drfd.journal.journal import Journal
from fakes import FakeHost, ended, rules, spec, tables

YEAR_S = 365 * 86400.0
JUMPS = [YEAR_S, -YEAR_S, -1_700_000_000.0, 3600.0, -0.001]


@dataclass
class World:
    """An engine on a machine whose clock is set while its uptime goes on."""

    journal: Journal
    at_s: float = 1_700_000_000.0
    mono_s: float = 1000.0
    host: FakeHost = field(default_factory=FakeHost)

    def __post_init__(self) -> None:
        self.engine = Engine(self.journal, rules(), self.host, clock=self.now)

    def now(self) -> Now:
        return Now(self.at_s, self.mono_s)

    def passes(self, seconds: float) -> None:
        self.at_s += seconds
        self.mono_s += seconds

    def feed(self, *stimuli: Stimulus) -> None:
        answers: list[object] = []
        self.engine.turn([Work(each, answer=answers.append) for each in stimuli])
        for answer in answers:
            assert isinstance(answer, list), answer

    def job(self, job_id: int) -> Job:
        found = self.journal.job(job_id)
        assert found is not None
        return found

    def start(self, asked: JobSpec) -> int:
        job_id = self.engine.ledger.next_id
        self.feed(SubmitAsked(self.now(), asked, False))
        assert Launch(job_id, 1) in self.host.take()
        self.feed(AttemptStarted(job_id, 1, self.at_s, self.mono_s, None))
        return job_id

    def end(self, job_id: int, **facts: object) -> None:
        when = {"at_s": self.at_s, "mono_s": self.mono_s}
        report = ended(job_id)
        changed = {name: getattr(report, name) for name in AttemptEnded.__slots__}
        self.feed(AttemptEnded(**{**changed, **when, **facts}))
        assert RemoveAttempt(job_id, 1) in self.host.take()
        self.feed(AttemptRemoved(self.now(), job_id, 1))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        made = World(journal)
        yield made
        made.engine.ledger.check()
        assert tables(made.engine.ledger) == tables(
            Ledger.of_events(Axes(), list(journal.events()))
        )


@pytest.mark.parametrize("jump", JUMPS)
def test_a_time_limit_counts_time_that_has_passed(world: World, jump: float) -> None:
    job_id = world.start(spec(time_limit_s=60))
    world.passes(30)
    world.at_s += jump
    world.feed(Tick(world.now()))
    assert world.job(job_id).state is JobState.RUNNING
    world.passes(29)
    world.feed(Tick(world.now()))
    assert world.host.take() == []
    world.passes(2)
    world.feed(Tick(world.now()))
    assert world.host.take() == [Terminate(job_id, 1)]
    world.end(job_id, exit_code=None, signal=15)
    assert world.job(job_id).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize("jump", JUMPS)
def test_a_job_whose_end_the_clock_puts_before_its_start_is_told_all_the_same(
    world: World, jump: float
) -> None:
    job_id = world.start(spec())
    world.at_s += jump
    world.passes(5)
    world.end(job_id, exit_code=3)
    job = world.job(job_id)
    assert (job.outcome, job.exit_code) == (Outcome.FAILED, 3)
    view = job_view(job, reason=None, usage=None, private=True)
    assert view["state"] == "FAILED" and view["ended_at"] == job.ended_at
    # And whoever comes next starts as ever.
    assert world.job(world.start(spec())).state is JobState.RUNNING


@pytest.mark.parametrize("jump", JUMPS)
def test_a_restart_after_the_clock_was_set_finds_the_same_books(world: World, jump: float) -> None:
    done, running = world.start(spec()), world.start(spec(time_limit_s=60))
    world.end(done)
    world.at_s += jump
    before = tables(world.engine.ledger)
    again = World(world.journal, world.at_s, world.mono_s + 70)
    assert tables(again.engine.ledger) == before
    again.feed(Tick(again.now()))
    assert again.host.take() == [Terminate(running, 1)]
    world.engine = again.engine


@pytest.mark.parametrize("jump", [-YEAR_S, -3600.0])
def test_what_is_to_begin_later_begins_by_the_clock_as_it_is_now(world: World, jump: float) -> None:
    begin_s = int(world.at_s) + 100
    job_id = world.engine.ledger.next_id
    world.feed(SubmitAsked(world.now(), spec(begin_s=begin_s), False))
    world.at_s += jump
    world.passes(101)
    world.feed(Tick(world.now()))
    assert world.host.take() == []
    world.at_s = begin_s + 1.0
    world.feed(Tick(world.now()))
    assert Launch(job_id, 1) in world.host.take()
