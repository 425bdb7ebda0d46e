"""The loop's heart: stimulus → decide → journal → apply → commit → answer and act.

Stimuli that arrive together share one commit. Nothing outside this process, neither an asker nor
the launcher, hears of an event before the commit that holds it has returned; if that fails, the
books are read again from the journal and every asker of the turn is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Protocol

from drfd.core import events as ev
from drfd.core.decide import admit, decide, line_up, schedule_on
from drfd.core.effects import Effect, owed, signals_owed
from drfd.core.estimate import RunTimes
from drfd.core.external import ExternalLoad, Gauge
from drfd.core.forecast import Future
from drfd.core.history import History
from drfd.core.job import Dependency, Job, JobState, Outcome, leaf_path
from drfd.core.ledger import Ledger
from drfd.core.lineup import Lineup
from drfd.core.outlook import look_out
from drfd.core.plan import Plan
from drfd.core.preemption import Starvation, preempt
from drfd.core.reservation import forced
from drfd.core.resources import NOTHING, Resources
from drfd.core.rules import ROOT, Rules
from drfd.core.shortjobs import ShortJobs
from drfd.core.stimuli import ChangeAsked, Now, Stimulus, SubmitAsked
from drfd.errors import DrfdError, HostError, Refused
from drfd.failpoints import reach
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from drfd.journald import about

log = logging.getLogger("drfd")

#: How far back the usage of ended jobs is counted, in half-lives: 2^-6 of it is left by then.
_REMEMBERED_HALF_LIVES = 6


class Host(Protocol):
    """Where effects go. They may be repeated and must not block."""

    def is_ready(self) -> bool:
        """Can it take orders now? What is owed is asked for again when it becomes ready."""

    def perform(self, effect: Effect, job: Job) -> None: ...


Answer = Callable[[list[ev.Event] | DrfdError], None]


@dataclass(slots=True)
class Work:
    stimulus: Stimulus
    payload: Payload | None = None
    answer: Answer | None = None
    #: Of a submission: the key by which its client may ask for it again.
    key: str | None = None


@dataclass
class Engine:
    journal: Journal
    rules: Rules
    host: Host
    clock: Callable[[], Now]
    #: Called with every job that a turn has changed, after its commit.
    on_change: Callable[[Job], None]
    ledger: Ledger = field(init=False)
    #: The latest scheduling pass: waits are explained from it.
    last_plan: Plan | None = None
    _lineup: Lineup | None = None
    #: In which a user may have jobs, besides the leaf below the root: as configured, and those that
    #: have been taken out of the configuration and still have jobs.
    _pools: set[str] = field(default_factory=set)
    _wants_pass: bool = True
    #: (job, attempt) of what has been remembered and may not be durable yet: if its turn fails, it
    #: ends once more.
    _remembered: set[tuple[int, int]] = field(default_factory=set)
    #: What this turn will say in the log, once it is durable.
    _said: list[tuple[Job, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = self.journal.load(self.rules.axes)
        self._history = History(self.rules.half_life_s)
        self._run_times = RunTimes()
        self._starvation = Starvation()
        self._short_jobs = ShortJobs()
        self._gauge = Gauge()
        # What is older than this has all but no weight left.
        since_s = self.clock().at_s - _REMEMBERED_HALF_LIVES * self.rules.half_life_s
        for job in self.journal.ended_since(since_s):
            self._remember(job)

    def turn(self, batch: list[Work]) -> None:
        """Take all of `batch`, then one scheduling pass if anything asks for it."""
        answers: list[tuple[Work, list[ev.Event] | DrfdError]] = []
        touched: dict[int, Job] = {}
        try:
            for work in batch:
                answers.append((work, self._take(work, touched)))
            self._schedule(touched)
            self.journal.commit()
            self._remembered = set(filter(self._is_to_end, self._remembered))
            self._log()
        except HostError as error:
            log.error("event=journal-failed error=%s", error.text)
            self._start_over()
            touched.clear()
            answers = [(work, error) for work in batch]
        for job in touched.values():
            self.perform_owed(job)
            self.on_change(job)
        for work, result in answers:
            if work.answer is not None:
                work.answer(result)

    def perform_owed(self, job: Job) -> None:
        for effect in (owed(job), signals_owed(job)):
            if effect is not None and self.host.is_ready():
                reach("engine.before-effect")
                self.host.perform(effect, job)
                reach("engine.after-effect")

    def perform_all_owed(self) -> None:
        """To a host that has just become ready: everything that a live job is owed."""
        for job in sorted(self.ledger.holders(), key=lambda job: job.id):
            self.perform_owed(job)

    def future(self) -> Callable[[], Future]:
        """How things stand now, to look ahead from. The call of the result may be long, and may be
        left to another thread: it works on copies."""
        ledger, rules, now = self.ledger, self.rules, self.clock()
        jobs, next_id, draining = list(ledger.jobs.values()), ledger.next_id, ledger.draining
        run_times, spent = deepcopy(self._run_times), dict(self._history.spent)
        before = self.last_plan.reservations if self.last_plan is not None else ()
        external = self.external

        def build() -> Future:
            books = Ledger.of_jobs(rules.axes, jobs, next_id=next_id, draining=draining)
            return Future(books, rules, run_times, spent, before, now, external)

        return build

    def ended(self, after: Sequence[Dependency]) -> dict[int, Outcome]:
        """How those of the jobs ended that the books do not hold any more."""
        found = {}
        for job_id in {each.job_id for each in after} - self.ledger.jobs.keys():
            job = self.journal.job(job_id)
            if job is not None and job.outcome is not None and job.state is JobState.ENDED:
                found[job_id] = job.outcome
        return found

    @property
    def external(self) -> ExternalLoad | None:
        """The load from outside drfd, if any has been seen."""
        return self._gauge.load(self.clock().at_s)

    def see_external(self, use: Resources) -> bool:
        """A sample of what all but drfd and its jobs use; whether it asks for a pass."""
        before, beside = self._gauge.kept, self.rules.beside
        if beside is None:
            self._gauge = Gauge()
        else:
            self._gauge.see(
                use, beside=beside, capacity=self.rules.capacity, now_s=self.clock().at_s
            )
        if self._gauge.kept == before:
            return False
        if NOTHING in (before, self._gauge.kept):
            kept = self._gauge.kept
            words = "event=external-load cores_milli=%d memory_bytes=%d"
            log.info(words, kept.cores_milli, kept.memory_bytes)
        self._wants_pass = True
        return True

    def want_pass(self) -> None:
        self._wants_pass = True

    def _take(self, work: Work, touched: dict[int, Job]) -> list[ev.Event] | DrfdError:
        try:
            events = decide(self.ledger, self._informed(work.stimulus), self.rules)
        except Refused as refusal:
            return refusal
        for event in events:
            self._record(event, touched)
            if isinstance(event, ev.Submitted) and work.payload is not None:
                self.journal.put_payload(event.job_id, work.payload)
            if isinstance(event, ev.Submitted) and work.key is not None:
                self.journal.put_submission(event.spec.uid, work.key, event.job_id)
        return events

    def _informed(self, stimulus: Stimulus) -> Stimulus:
        """With what the journal knows of jobs that it is about. Not earlier: they may end in this
        very turn."""
        match stimulus:
            case SubmitAsked() if stimulus.spec.after:
                return replace(stimulus, ended=self.ended(stimulus.spec.after))
            case ChangeAsked() if stimulus.change.after:
                return replace(stimulus, ended=self.ended(stimulus.change.after))
            case _:
                return stimulus

    def _schedule(self, touched: dict[int, Job]) -> None:
        if not self._wants_pass or not self.host.is_ready():
            return
        self._wants_pass = False
        now = self.clock()
        outlook = look_out(
            self.ledger,
            patience=self.rules.patience,
            run_times=self._run_times,
            now_s=now.at_s,
            before=self.last_plan.reservations if self.last_plan is not None else (),
            external=self.external,
        )
        lineup = self._lined_up()
        for leaf in self._short_jobs.forget(now.mono_s):
            lineup.touch(leaf)
        self.last_plan = schedule_on(lineup, self.ledger, self.rules, outlook)
        for job_id in self.last_plan.admitted:
            self._record(admit(self.ledger, job_id, now), touched)
        self._preempt(now, touched)
        # Admission asks for nothing more: the pass has placed all that fits.
        self._wants_pass = False

    def _lined_up(self) -> Lineup:
        """Kept from pass to pass, and made anew for other rules or other books."""
        if self._lineup is None or self._lineup.shares is not self.rules.shares:
            self._lineup = line_up(
                self.ledger, self.rules, self._history.spent, self._short_jobs.counted
            )
            homes = ((job.spec.pool, job.spec.user) for job in self.ledger.jobs.values())
            self._pools = {pool for pool, user in homes if pool != f"{ROOT}.{user}"}
            self._pools.update(f"{ROOT}.{name}" for name in self.rules.pools)
        return self._lineup

    def _preempt(self, now: Now, touched: dict[int, Job]) -> None:
        """Have jobs make room for a starving one; for one at a time, until it has started."""
        how, last = self.rules.preempting, self.last_plan
        if how is None or last is None or last.standing is None or self.ledger.draining:
            return
        shares, external = self.rules.shares, self.external
        kept = None if external is None else self.rules.axes.vector(external.kept)
        due = self._starvation.look(self.ledger, last.standing, shares, how, now.at_s)
        if any(kept.is_forced for kept in last.reservations):
            return
        for starving in due:
            requests = preempt(
                self.ledger, last.standing, self.rules.room, starving, how, now, kept
            )
            if requests:
                job = self.ledger.jobs[starving.job_id]
                demand = self.ledger.wanted(job)
                assert demand is not None
                place = forced(job.id, job.spec.leaf, demand, now.at_s)
                others = tuple(kept for kept in last.reservations if kept.job_id != job.id)
                self.last_plan = replace(last, reservations=(place, *others))
                for request in requests:
                    self._record(request, touched)
                return

    def _record(self, event: ev.Event, touched: dict[int, Job]) -> None:
        if isinstance(event, ev.Cleaned | ev.Requeued | ev.Retried):
            # What it has used, before a requeueing forgets it.
            ended = self.ledger.jobs[event.job_id]
            if (ended.id, ended.attempt) not in self._remembered:
                self._remembered.add((ended.id, ended.attempt))
                self._remember(ended)
        if isinstance(event, ev.Changed):
            self._forget_place(self.ledger.jobs[event.job_id])
        job = self.ledger.apply(event)
        self.journal.append(event, job)
        self._wants_pass = True
        if job is not None:
            if self._lineup is not None:
                self._lineup.touch(job.spec.leaf)
            touched[job.id] = job
            self._said.append((job, type(event).__name__))

    def _forget_place(self, job: Job) -> None:
        """What is reserved for it may not be what it asks for now, nor its leaf the same."""
        if self._lineup is not None:
            self._lineup.touch(job.spec.leaf)
        if self.last_plan is not None:
            kept = tuple(each for each in self.last_plan.reservations if each.job_id != job.id)
            self.last_plan = replace(self.last_plan, reservations=kept)

    def _remember(self, job: Job) -> None:
        """What an ended job has used decides ties from now on, and how long it ran is a guess for
        its user's next ones; one that ran very shortly still counts for a moment."""
        if job.started_at is not None and job.ended_at is not None:
            demand = self.ledger.demand(job)
            # The time that it was frozen does not count.
            started_s = min(job.started_at + job.frozen_s(job.ended_at), job.ended_at)
            share = self.rules.shares.dominant_share(demand)
            self._history.add(job.spec.leaf, float(share), started_s, job.ended_at)
            if job.outcome is not None:
                self._run_times.add(job.spec.user, job.ended_at - started_s)
                now, hold_s = self.clock(), self.rules.min_hold_s
                # If the clock has been set back, it started in the future.
                left_s = min(job.started_at + hold_s - now.at_s, hold_s)
                if left_s > 0:
                    self._short_jobs.add(job.spec.leaf, demand, now.mono_s + left_s)
            if self._lineup is not None:
                # In whichever pool the user's other jobs wait: their estimates have changed.
                for pool in (f"{ROOT}.{job.spec.user}", *self._pools):
                    self._lineup.touch(leaf_path(pool, job.spec.user))

    def _is_to_end(self, key: tuple[int, int]) -> bool:
        job = self.ledger.jobs.get(key[0])
        return job is not None and job.state is JobState.CLEANING and job.attempt == key[1]

    def _log(self) -> None:
        for job, kind in self._said:
            user, state = job.spec.user, job.shown_state
            words = "job=%d user=%s event=%s state=%s"
            log.info(words, job.id, user, kind, state, extra=about(job=job.id, user=user))
        self._said.clear()

    def _start_over(self) -> None:
        """The journal could not be written: the books are what it holds."""
        self.journal.rollback()
        self.ledger = self.journal.load(self.rules.axes)
        self.last_plan = None
        self._lineup = None
        self._said.clear()
        self._wants_pass = True
