"""The loop's heart: stimulus → decide → journal → apply → commit → answer and act.

Stimuli that arrive together share one commit. Nothing outside this process, neither an asker nor
the launcher, hears of an event before the commit that holds it has returned; if that fails, or
there was no memory for what comes before it, the books are read again from the journal and every
asker of the turn is told. Memory that is missing later ends the process: what is true by then, its
successor reads from the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from drfd.core import events as ev
from drfd.core.curve import Curve
from drfd.core.decide import decide
from drfd.core.effects import Effect, owed, signals_owed
from drfd.core.external import ExternalLoad
from drfd.core.forecast import Future
from drfd.core.job import Dependency, Job, JobState, Outcome
from drfd.core.ledger import Ledger
from drfd.core.resources import NOTHING, Resources
from drfd.core.rules import Rules
from drfd.core.scheduler import Scheduler
from drfd.core.stimuli import ChangeAsked, Now, Stimulus, SubmitAsked
from drfd.errors import DrfdError, HostError, Refused, short_of_memory
from drfd.failpoints import reach
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from drfd.journald import about

log = logging.getLogger("drfd")

#: How far back the usage of ended jobs is counted, in half-lives: 2^-6 of it is left by then.
_REMEMBERED_HALF_LIVES = 6
#: So many demand vectors a pass may look at, summed over its launches: about a tenth of a second.
_MOST_LOOKS = 20_000


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
    #: Called with every job that a turn has changed, after its commit; with the id of an array, it
    #: stands for all tasks that have no record of their own.
    on_change: Callable[[Job], None]
    #: How the use of a job went that has just ended, to be kept with its end; None: not known.
    curve_of: Callable[[Job], Curve | None] = lambda job: None
    ledger: Ledger = field(init=False)
    scheduler: Scheduler = field(init=False)
    _wants_pass: bool = True
    #: (job, attempt) of what has been remembered and may not be durable yet: if its turn fails, it
    #: ends once more.
    _remembered: set[tuple[int, int]] = field(default_factory=set)
    #: What this turn will say in the log, once it is durable.
    _said: list[tuple[Job, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = self.journal.load(self.rules.axes)
        self.scheduler = Scheduler(self.rules.half_life_s, most_looks=_MOST_LOOKS)
        self.adopt(self.rules)
        # What is older than this has all but no weight left.
        now, span_s = self.clock(), _REMEMBERED_HALF_LIVES * self.rules.half_life_s
        self.scheduler.remember(self.journal.ended_since(now.at_s - span_s), self.rules, now)

    def turn(self, batch: list[Work]) -> None:
        """Take all of `batch`, then one scheduling pass if anything asks for it."""
        answers: list[tuple[Work, list[ev.Event] | DrfdError]]
        touched: dict[int, Job] = {}
        try:
            answers = self._decide(batch, touched)
            self.journal.commit()
            self._remembered = set(filter(self._is_to_end, self._remembered))
            self._log()
        except HostError as error:
            log.error("event=%s-failed error=%s", error.code, error.text)
            self._start_over()
            touched.clear()
            answers = [(work, error) for work in batch]
        for job in touched.values():
            self.perform_owed(job)
            self.on_change(job)
        for work, result in answers:
            if work.answer is not None:
                work.answer(result)

    def _decide(
        self, batch: list[Work], touched: dict[int, Job]
    ) -> list[tuple[Work, list[ev.Event] | DrfdError]]:
        """All of a turn that can be taken back."""
        try:
            answers = [(work, self._take(work, touched)) for work in batch]
            self._schedule(touched)
        except MemoryError:
            raise short_of_memory() from None
        return answers

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
        arrays = ledger.arrays.left()
        run_times, spent, before = self.scheduler.snapshot()
        external = self.external

        def build() -> Future:
            books = Ledger.of_jobs(
                rules.axes, jobs, arrays=arrays, next_id=next_id, draining=draining
            )
            return Future(books, rules, run_times, spent, before, now, external)

        return build

    def ended(self, after: Sequence[Dependency]) -> dict[int, Outcome]:
        """How those of the jobs and arrays ended that the books do not hold any more."""
        found = {}
        for job_id in {each.job_id for each in after}:
            if self.ledger.find(job_id) is None and job_id not in self.ledger.arrays:
                outcome = self.journal.outcome(job_id)
                if outcome is not None:
                    found[job_id] = outcome
        return found

    @property
    def external(self) -> ExternalLoad | None:
        """The load from outside drfd, if any has been seen."""
        return self.scheduler.external(self.clock())

    def see_external(self, use: Resources) -> bool:
        """A sample of what all but drfd and its jobs use; whether it asks for a pass."""
        was_seen = self.external is not None
        if not self.scheduler.see_external(use, self.rules, self.clock()):
            return False
        load = self.external
        if was_seen != (load is not None):
            kept = NOTHING if load is None else load.kept
            words = "event=external-load cores_milli=%d memory_bytes=%d"
            log.info(words, kept.cores_milli, kept.memory_bytes)
        self._wants_pass = True
        return True

    def adopt(self, rules: Rules) -> None:
        """Work by these rules from now on. If the machine's resources are others, the books are
        written anew; a job that needs what is gone waits, or runs on."""
        self.rules = rules.also_for(self.ledger.demands())
        self._wants_pass = True
        if self.rules.axes != self.ledger.axes:
            self.ledger = self.ledger.with_axes(self.rules.axes)
            self.scheduler.forget_axes()

    @property
    def wants_turn(self) -> bool:
        """Is there more to decide than the turn has had time for, without any news?"""
        return self._wants_pass and self.scheduler.is_cut and self.host.is_ready()

    def want_pass(self) -> None:
        self._wants_pass = True

    def _take(self, work: Work, touched: dict[int, Job]) -> list[ev.Event] | DrfdError:
        repeated = self._repeated(work)
        if repeated is not None:
            return [repeated]
        try:
            events = decide(self.ledger, self._informed(work), self.rules)
        except Refused as refusal:
            return refusal
        for event in events:
            self._record(event, touched)
            if isinstance(event, ev.Submitted):
                self._keep(event.job_id, event.spec.uid, work)
            elif isinstance(event, ev.ArraySubmitted):
                self._keep(event.array_id, event.spec.uid, work)
        return events

    def _repeated(self, work: Work) -> ev.Event | None:
        """The submission that this one repeats, perhaps one of this very turn."""
        if work.key is None or not isinstance(work.stimulus, SubmitAsked):
            return None
        job_id = self.journal.submission(work.stimulus.spec.uid, work.key)
        return None if job_id is None else next(self.journal.events(job_id))

    def _informed(self, work: Work) -> Stimulus:
        """The stimulus, with what the journal knows of jobs that it is about. Not earlier: they may
        end in this very turn."""
        match stimulus := work.stimulus:
            case SubmitAsked():
                uid, payload = stimulus.spec.uid, work.payload or Payload()
                kept_bytes = self.journal.payloads.bytes_with(uid, payload)
                ended = self.ended(stimulus.spec.after)
                return replace(stimulus, ended=ended, kept_bytes=kept_bytes)
            case ChangeAsked() if stimulus.change.after is not None:
                wanted = stimulus.change.after
                roster = self.ledger.arrays.get(stimulus.job_id)
                job = self.ledger.find(stimulus.job_id) or (roster and roster.array.common)
                names = self._names((*wanted, *(job.spec.after if job else ())))
                return replace(stimulus, ended=self.ended(wanted), names=names)
            case _:
                return stimulus

    def _names(self, after: Sequence[Dependency]) -> dict[int, str]:
        """What people call tasks of arrays that the books do not hold any more."""
        ids = {each.job_id for each in after}
        return self.journal.arrays.labels(each for each in ids if self.ledger.find(each) is None)

    def _keep(self, job_id: int, uid: int, work: Work) -> None:
        """What came with a submission."""
        if work.payload is not None:
            self.journal.put_payload(job_id, work.payload)
        if work.key is not None:
            self.journal.put_submission(uid, work.key, job_id)

    def _schedule(self, touched: dict[int, Job]) -> None:
        if not self._wants_pass or not self.host.is_ready():
            return
        for event in self.scheduler.run(self.ledger, self.rules, self.clock()):
            self._record(event, touched)
        # What it decides asks for nothing more: the pass has placed all that fits, or was cut.
        self._wants_pass = self.scheduler.is_cut

    def _record(self, event: ev.Event, touched: dict[int, Job]) -> None:
        if isinstance(event, ev.Cleaned | ev.Requeued | ev.Retried):
            # What it has used, before a requeueing forgets it.
            ended = self.ledger.jobs[event.job_id]
            if (ended.id, ended.attempt) not in self._remembered:
                self._remembered.add((ended.id, ended.attempt))
                self.scheduler.remember([ended], self.rules, self.clock())
        if isinstance(event, ev.Changed):
            self.scheduler.forget_place(event.job_id, self.ledger)
        job = self.journal.enter(event, self.ledger)
        self._wants_pass = True
        if job is not None:
            self.scheduler.note(job)
            touched[job.id] = job
            self._keep_curve(event, job)
            self._said.append((job, type(event).__name__))

    def _keep_curve(self, event: ev.Event, job: Job) -> None:
        curve = self.curve_of(job) if isinstance(event, ev.Cleaned) else None
        if curve is not None:
            self.journal.put_curve(job.id, curve)

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
        self.scheduler.forget_books()
        self._said.clear()
        self._wants_pass = True
