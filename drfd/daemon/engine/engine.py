"""The engine: stimulus → decide → apply → append → pass → commit → act and answer.

Stimuli that arrive together are one turn and share one commit. Neither a client nor the launcher
hears of an event before the commit that holds it has returned. If a turn fails by then, because of
the journal or for want of memory, the ledger is read again from the journal and every client of the
turn gets the error. A want of memory after the commit ends the process, and the next daemon reads
the ledger from the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn, Protocol

from msgspec import structs

from drfd.common.errors import DrfdError, HostError, Refused, short_of_memory
from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.common.units import show_amount, show_size
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.dependencies import is_any_due, report_ends
from drfd.core.decisions.job_requests import NAMED_DEPENDENCIES
from drfd.core.decisions.outcome import deadline_mono_s
from drfd.core.explain.forecast import Forecast
from drfd.core.fairness.rules import Rules, rules_text
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.calendar import Calendar, Limit
from drfd.core.model.effects import Effect, owed, signals_owed
from drfd.core.model.job import ROOT, Dependency, Job, JobState, Outcome, show_path
from drfd.core.model.machine import Instance
from drfd.core.model.resources import NOTHING, Axes, Resources
from drfd.core.scheduling.backfill import KeptReservation
from drfd.core.scheduling.kept_free import ExternalLoad, OutsideUse, beside_jobs, is_news
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.usage import Curve
from drfd.journal.journal import Journal, digest
from drfd.journal.submissions import Payload

log = logging.getLogger("drfd")

#: Seconds until leftover work is tried again after a turn that the journal could not record.
_AGAIN_S = 0.5
#: Seconds that the report of a start may wait for other work to share its commit.
START_DELAY_S = 0.01
#: Seconds until the clock is read again, at most, while a begin time or a retry is due by Unix
#: time: that clock may be set, and it goes on while the machine sleeps.
_CLOCK_S = 60.0
#: Seconds until the next turn when a deadline is still overdue after a turn, because the journal
#: could not record it.
_OVERDUE_S = 0.5
#: Seconds between two records of the external load, at least.
_LOAD_S = 30.0
#: Seconds after which what is known of ended runs is stored again, for the next daemon.
_RUNS_S = 600.0
#: Half-lives for which the usage of ended jobs is counted: 2^-6 of it is left by then.
_REMEMBERED_HALF_LIVES = 6
#: Bytes that each user may store even if the limit of all users is reached: some hundred jobs.
ALWAYS_BYTES = 1 << 20
#: Jobs started in one turn, at most: launching costs more than choosing.
_MOST_STARTS = 64
#: Events of a job or array with which nothing else has happened to it.
_SUBMISSIONS = ("Submitted", "ArraySubmitted")
#: The longest rest after a part of leftover work, in seconds.
_MOST_REST_S = 0.1


class Launchers(Protocol):
    """The receivers of effects. An effect may be sent repeatedly, and sending must not block."""

    def is_ready(self) -> bool:
        """Whether it can take orders now. When it becomes ready it asks again for owed effects."""

    def nodes_away(self) -> frozenset[str]:
        """Return the nodes for which it takes none now, while it takes those for others."""

    def perform(self, effect: Effect, job: Job) -> None: ...


Answer = Callable[[list[ev.Event] | DrfdError], None]


@dataclass(slots=True)
class Work:
    stimulus: st.Stimulus
    payload: Payload | None = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes on which one launcher runs jobs. The controller's own also has those that are on no
    node because they never started."""

    #: None for all.
    names: frozenset[str] | None
    #: Whether the controller's own node is among them.
    has_home: bool
    #: The nodes of other launchers, where the controller's own node is among these.
    others: frozenset[str] = frozenset()

    @property
    def are_all(self) -> bool:
        return self.names is None

    def has(self, job: Job) -> bool:
        """Return whether the launcher runs the job, or would notify its owner. The controller's own
        may also have a job of a node that is not configured: its own had that name before."""
        if self.names is None or job.node in self.names:
            return True
        return self.has_home and job.node not in self.others

    def may_have(self, job: Job) -> bool:
        """Return whether the launcher may know an attempt of the job: one that waits again was
        anywhere."""
        return not job.node or self.has(job)

    def must_have(self, job: Job) -> bool:
        """Return whether the launcher knows the job's attempt if anybody does. A job of a node that
        is not configured may run there still: it must not be taken for lost, and be started once
        more, because this launcher does not know it."""
        if self.has_home and not job.node:
            return True
        return self.names is not None and job.node in self.names

    def __str__(self) -> str:
        return "" if self.names is None else f" nodes={','.join(sorted(self.names))}"


ALL_NODES = Nodes(None, has_home=True)
NO_NODES = Nodes(frozenset(), has_home=False)


def home_and_others(axes: Axes) -> tuple[Nodes, Nodes]:
    """Return the controller's own node, and all others."""
    if not axes.nodes:
        return ALL_NODES, NO_NODES
    home, *others = [node.name for node in axes.nodes]
    own = Nodes(frozenset({home}), has_home=True, others=frozenset(others))
    return own, Nodes(frozenset(others), has_home=False)


class Inbox:
    """Work for the next turn. The report that a job has started causes a turn only after
    START_DELAY_S, because no client waits for it: the end of a short job can then share the commit.
    The launcher repeats reports to the next daemon, so none is lost."""

    def __init__(self, turn: Callable[[list[Work]], Work | None]) -> None:
        """`turn` processes a batch of work, and returns work for another turn at once, or None."""
        self._turn = turn
        self._works: list[Work] = []
        #: The next turn, and whether it comes in the next round of the loop.
        self._next: asyncio.Handle | None = None
        self._is_soon = False

    def add(self, work: Work) -> None:
        self._works.append(work)
        loop = asyncio.get_running_loop()
        if not isinstance(work.stimulus, st.LaunchedReport):
            if not self._is_soon:
                if self._next is not None:
                    self._next.cancel()
                self._is_soon = True
                self._next = loop.call_soon(self._take)
        elif self._next is None:
            self._next = loop.call_later(START_DELAY_S, self._take)

    def _take(self) -> None:
        works, self._works = self._works, []
        self._next, self._is_soon = None, False
        more = self._turn(works)
        if more is not None:
            self.add(more)


def _raise(error: Exception) -> NoReturn:
    raise error


@dataclass
class Engine:
    """The decisions of the daemon: it owns the ledger, the scheduler and the inbox."""

    journal: Journal
    rules: Rules
    launchers: Launchers
    clock: Callable[[], st.Now]
    #: Returns the usage curve of a job that has just ended, or None if it is not known.
    curve_of: Callable[[Job], Curve | None] = lambda job: None
    #: Called with an unexpected exception of a turn, after which the state may be inconsistent.
    on_failure: Callable[[Exception], None] = _raise
    #: Called with each job that a turn has changed, after its commit; they must not block or raise.
    #: A job with the id of an array stands for the array, as it was submitted or ordered.
    listeners: list[Callable[[Job], None]] = field(default_factory=list)
    #: Called with the seconds that each turn, and each commit, has taken.
    on_turn: Callable[[float], None] = lambda seconds: None
    on_commit: Callable[[float], None] = lambda seconds: None
    ledger: Ledger = field(init=False)
    scheduler: Scheduler = field(init=False)
    #: The rules as the configuration has them, and with the limits of the hour: without axes that
    #: only jobs still name.
    _ordinary: Rules = field(init=False)
    _configured: Rules = field(init=False)
    #: Highest attempt number seen for a job id on each launcher, by its link, excluding the job's
    #: own attempts. The next attempt gets a higher number.
    taken_attempts: dict[object, dict[int, int]] = field(default_factory=dict)
    #: Dependents that one turn notifies of the ends of other jobs, at most.
    notified_at_once: int = 64
    _wants_pass: bool = True
    #: (job, attempt) of ends whose usage is counted and that may not be durable yet. If its turn
    #: fails, an attempt ends once more, and its usage must not be counted twice.
    _remembered: set[tuple[int, int]] = field(default_factory=set)
    #: The earliest time, on the monotonic clock, at which a turn continues leftover work. Each part
    #: of that work is followed by a rest as long, in which requests find the loop free.
    leftovers_due_mono_s: float = 0.0
    #: When the launcher last became ready, on the monotonic clock.
    _ready_since_mono_s: float = 0.0
    #: The same for the nodes of single launchers, where there are several.
    _node_ready_since_mono_s: dict[str, float] = field(default_factory=dict)
    #: The jobs that this turn has changed, each with the kinds of all its events, and those of
    #: durable turns, which are logged in the next round of the loop: clients get their answers
    #: first.
    _touched: dict[int, tuple[Job, str]] = field(default_factory=dict)
    _to_log: list[tuple[Job, str]] = field(default_factory=list)
    #: What is kept for big jobs, as the journal has it.
    _kept: tuple[KeptReservation, ...] = ()
    #: The external load as the journal has it, and from when on another one may be stored, on the
    #: monotonic clock.
    _load_bytes: int = field(init=False)
    _load_due_mono_s: float = 0.0
    #: When what is known of ended runs is stored again, on the monotonic clock.
    _runs_due_mono_s: float = 0.0
    _has_new_runs: bool = False
    #: Starts the turn that is due by time alone.
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._inbox = Inbox(self._run_turn)
        self.ledger = self.journal.load(self.rules.axes)
        self.scheduler = Scheduler(self.rules.half_life_s, max_starts=_MOST_STARTS)
        self.adopt(self.rules)
        self._recall_runs()
        self._restore_reservations()
        self._resume_load()

    def _recall_runs(self) -> None:
        """Go on with what is stored of ended runs, or count those of the history, which may be
        hundreds of thousands."""
        now, stored = self.clock(), self.journal.past_runs(digest(rules_text(self._ordinary)))
        if stored is None:
            span_s = _REMEMBERED_HALF_LIVES * self.rules.half_life_s
            self.scheduler.remember(self.journal.ended_since(now.at_s - span_s), self.rules, now)
            self._has_new_runs = bool(self.scheduler.past_usage)
            return
        runs, later = stored
        self.scheduler.recall(runs)
        self.scheduler.remember(later, self.rules, now)
        known = {job.id for job in later}
        lately = self.journal.ended_since(now.at_s - self.rules.min_charge_s)
        self.scheduler.count_as_held(
            (job for job in lately if job.id not in known), self.rules, now
        )

    def submit(self, work: Work) -> None:
        """Queue work for the next turn of the running loop."""
        self._inbox.add(work)

    async def submit_and_wait(
        self, stimulus: st.Stimulus, payload: Payload | None = None
    ) -> list[ev.Event]:
        """Queue a stimulus and return the events that it has caused, once they are durable. Raises
        Refused, or HostError if they could not be recorded."""
        future: asyncio.Future[list[ev.Event]] = asyncio.get_running_loop().create_future()

        def answer(result: list[ev.Event] | DrfdError) -> None:
            if future.done():
                return
            if isinstance(result, DrfdError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(Work(stimulus, payload, answer))
        return await future

    def _run_turn(self, batch: list[Work]) -> Work | None:
        """Make one turn on the loop, and return a tick if it has left work over."""
        begin_mono_s = self.clock().mono_s
        try:
            self.turn(batch)
        except Exception as error:
            if not isinstance(error, MemoryError):
                self._log()
            self.on_failure(error)
        self.on_turn(self.clock().mono_s - begin_mono_s)
        asyncio.get_running_loop().call_soon(self._finish_turn, batch)
        return Work(st.Tick(self.clock())) if self.wants_turn else None

    def _finish_turn(self, batch: list[Work]) -> None:
        """Log a turn with this batch, and arm the timer of the next tick: clients have their
        answers. Only a tick looks at deadlines: one that has passed in another turn is due at once,
        however many such turns a user asks for."""
        self._log()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.due_s()
        if due_s is not None:
            is_after_tick = any(isinstance(work.stimulus, st.Tick) for work in batch)
            overdue_s = _OVERDUE_S if is_after_tick else 0.0
            self._timer = asyncio.get_running_loop().call_later(
                due_s if due_s > 0 else overdue_s, lambda: self.submit(Work(st.Tick(self.clock())))
            )

    def due_s(self) -> float | None:
        """Return in how many seconds a turn is due by time alone, or None: when a wall-time limit,
        a grace time or the longest suspension ends, a begin time comes, postponed launches are due,
        or a rest is over."""
        now, heard = self.clock(), self.heard
        dues = (
            deadline_mono_s(job, self.rules, heard.since_mono_s(job.node))
            for job in self.ledger.allocated_jobs()
        )
        delays = [due - now.mono_s for due in dues if due is not None]
        begin_s = self.ledger.begins.first_s()
        if begin_s is not None and begin_s > now.at_s:
            delays.append(min(_CLOCK_S, begin_s - now.at_s))
        # This covers a begin time that has come and that the turn has left over.
        again_mono_s = self.again_mono_s
        if again_mono_s is not None:
            delays.append(max(0.001, again_mono_s - now.mono_s))
        pass_s = self.scheduler.next_pass_s
        if pass_s is not None:
            # It may have come while this turn was made.
            least_s = 0.001 if self.launchers.is_ready() else _OVERDUE_S
            delays.append(min(_CLOCK_S, max(least_s, pass_s - now.at_s)))
        if self.ledger.calendar:
            delays.append(min(_CLOCK_S, self.ledger.calendar.next_s(now.at_s) - now.at_s))
        return min(delays) if delays else None

    def turn(self, batch: list[Work]) -> None:
        """Process all of `batch`, then make one scheduling pass if anything asks for it."""
        answers: list[tuple[Work, list[ev.Event] | DrfdError]]
        self._follow_calendar()
        self._follow_nodes()
        while True:
            try:
                answers = self._prepare(batch)
                begin_mono_s = self.clock().mono_s
                self.journal.commit()
                self.on_commit(self.clock().mono_s - begin_mono_s)
                self._remembered = set(filter(self._is_cleaning, self._remembered))
            except HostError as error:
                self._reload_ledger()
                if self.journal.release_reserve(error):
                    continue
                log.error("event=%s-failed error=%s", error.code, error.text)
                self.leftovers_due_mono_s = self.clock().mono_s + _AGAIN_S
                answers = [(work, error) for work in batch]
            break
        touched, self._touched = self._touched, {}
        self._to_log += touched.values()
        if self.ledger.dependents.ended:
            reach("engine.some-untold")
        # Orders first: a user's next job waits for them.
        for job, _ in touched.values():
            self.perform_owed(job)
        for job, _ in touched.values():
            for listener in self.listeners:
                listener(job)
        for work, result in answers:
            if work.answer is not None:
                work.answer(result)

    def _prepare(self, batch: list[Work]) -> list[tuple[Work, list[ev.Event] | DrfdError]]:
        """Make the part of a turn before its commit, which can be rolled back."""
        begin_mono_s = self.clock().mono_s
        goes_on = begin_mono_s >= self.leftovers_due_mono_s
        try:
            answers = [(work, self._process(work)) for work in batch]
            if goes_on:
                at_s = self.clock().at_s
                for event in report_ends(self.ledger, at_s, self.notified_at_once):
                    self._record(event)
            self._schedule()
            self._store_reservations()
            self._store_load()
            # An end that is counted and not yet recorded would count again after a restart.
            if (
                self._has_new_runs
                and self.clock().mono_s >= self._runs_due_mono_s
                and not any(map(self._is_cleaning, self._remembered))
            ):
                self._store_runs()
        except MemoryError:
            raise short_of_memory() from None
        if goes_on and self._has_left_over():
            end_mono_s = self.clock().mono_s
            self.leftovers_due_mono_s = end_mono_s + min(_MOST_REST_S, end_mono_s - begin_mono_s)
        return answers

    def _has_left_over(self) -> bool:
        """Whether dependents have yet to be notified of ends, or cancelled, or begin times have
        come."""
        ledger = self.ledger
        untold = bool(ledger.dependents.ended or ledger.doomed)
        return untold or is_any_due(ledger, self.clock().at_s)

    def perform_owed(self, job: Job) -> None:
        """Send the effects that a job as it is durable owes to the launcher, if it is connected."""
        if not self.launchers.is_ready():
            return
        for effect in (owed(job), signals_owed(job)):
            if effect is not None:
                reach("engine.before-effect")
                self.launchers.perform(effect, job)
                reach("engine.after-effect")

    def perform_all_owed(self, nodes: Nodes = ALL_NODES) -> None:
        """Send all owed effects of live jobs to a launcher that has just become ready for these
        nodes."""
        ready_mono_s = self.clock().mono_s
        if nodes.names is None:
            self._ready_since_mono_s = ready_mono_s
        else:
            self._node_ready_since_mono_s.update(dict.fromkeys(nodes.names, ready_mono_s))
        for job in sorted(filter(nodes.has, self.ledger.allocated_jobs()), key=lambda job: job.id):
            self.perform_owed(job)

    @property
    def heard(self) -> st.Heard:
        """Since when the launchers take orders."""
        if not self.launchers.is_ready():
            return st.Heard(None)
        since_mono_s: dict[str, float | None] = dict(self._node_ready_since_mono_s)
        since_mono_s.update(dict.fromkeys(self.launchers.nodes_away()))
        home_mono_s = since_mono_s.get(self.rules.axes.home, self._ready_since_mono_s)
        return st.Heard(home_mono_s, since_mono_s)

    def _follow_nodes(self) -> None:
        """Have nothing started on nodes whose launcher takes no orders."""
        away = self.launchers.nodes_away()
        before = self.ledger.nodes_away
        if away != before.keys():
            now_s = self.clock().at_s
            for name in sorted(before.keys() ^ away):
                log.info("event=node-%s node=%s", "away" if name in away else "back", name)
            self.ledger.nodes_away = {name: before.get(name, now_s) for name in sorted(away)}
            self._wants_pass = True

    @property
    def forecast(self) -> Forecast:
        """The present state, which only a copy or a forked process may run ahead."""
        return Forecast(self.ledger, self.rules, self.scheduler, self.clock(), self.external)

    def ended(self, after: Sequence[Dependency]) -> dict[int, Outcome]:
        """Return the outcomes of those of the jobs and arrays that are no longer in the ledger."""
        ids = {each.job_id for each in after}
        gone = [each for each in ids if not self.ledger.lives(each)]
        return self.journal.outcomes(gone) if gone else {}

    @property
    def external(self) -> ExternalLoad | None:
        """The load from outside drfd, if any has been seen."""
        return beside_jobs(self.scheduler.external_load.load(self.clock().at_s), self.ledger)

    def see_external(self, use: Resources) -> bool:
        """Take note of the present external load. Returns whether it asks for a pass."""
        return self._take_external(partial(self.scheduler.external_load.see, use))

    def see_outside_users(self, users: tuple[OutsideUse, ...]) -> bool:
        """Take note of who uses most outside drfd. Returns whether it asks for a pass, with which
        waiting jobs are explained: the first time that anybody is known."""
        load = self.scheduler.external_load
        is_first = not load.users and bool(users)
        load.users = users
        self._wants_pass = self._wants_pass or is_first
        return is_first

    def see_instances(self, used: Mapping[Instance, tuple[str, ...]]) -> bool:
        """Take note of the instances that processes outside drfd use now, and of their users.
        Returns whether it asks for a pass."""
        load = self.scheduler.external_load
        if not load.see_instances(used, self.rules, self.clock().at_s):
            return False
        names = ",".join(":".join(each) for each in load.instances)
        log.info("event=external-instances busy=%s", names or "none")
        self._wants_pass = True
        return True

    def note_left(self, memory_bytes: int) -> None:
        """Count memory that a removed job has left in use as external load, before the memory of
        the job is allocated again."""
        self._take_external(partial(self.scheduler.external_load.leave, memory_bytes))

    def _take_external(self, take: Callable[[Rules, float], bool]) -> bool:
        """Have the scheduler take a change of the external load, act on the load as it is then, and
        return whether it asks for a pass."""
        was_seen = self.external is not None
        has_changed = take(self.rules, self.clock().at_s)
        load = self.external
        kept = NOTHING if load is None else load.kept
        if not has_changed:
            return False
        if was_seen != (load is not None):
            words = "event=external-load cores_milli=%d memory_bytes=%d"
            log.info(words, kept.cores_milli, kept.memory_bytes)
        self._wants_pass = True
        return True

    def adopt(self, rules: Rules, calendar: Calendar | None = None) -> None:
        """Apply these rules from now on, and the calendar if one is given. If the kinds of
        resources have changed, the ledger is rebuilt; a job with a resource that is no longer
        configured waits, or runs on."""
        self._ordinary = rules
        self.ledger.calendar = self.ledger.calendar if calendar is None else calendar
        now_s = self.clock().at_s
        self.scheduler.adopt_half_life(rules.half_life_s, now_s)
        self._put_in_force(self.ledger.calendar.at(now_s))

    def adopt_calendar(self, calendar: Calendar) -> None:
        """Let this calendar count from now on, with the rules as they are configured."""
        self._wants_pass |= calendar.windows != self.ledger.calendar.windows
        self.ledger.calendar = calendar
        self._follow_calendar()

    def _follow_calendar(self) -> None:
        """Put the limits of the present time in force."""
        limits = self.ledger.calendar.at(self.clock().at_s)
        if limits != self._configured.limits_now:
            self._put_in_force(limits)

    def _put_in_force(self, limits: dict[str, Limit]) -> None:
        """Apply the configured rules with these limits of the calendar."""
        for path, limit in limits.items():
            words = " ".join(f"{name}={show_amount(name, most)}" for name, most in limit.items())
            log.info("event=limits path=%s %s", show_path(path), words or "none")
        self._configured = rules = replace(self._ordinary, limits_now=limits)
        self.rules = rules.also_for(spec.demand for spec in self.ledger.specs())
        self._wants_pass = True
        if self.rules.axes != self.ledger.axes:
            self.ledger = self.ledger.with_axes(self.rules.axes)
            self.scheduler.forget_axes()
            self.scheduler.restore(self._kept, self.ledger, self.clock().at_s)

    def lost_pools(self) -> list[str]:
        """Return the paths of the pools that live jobs are in and that are not configured."""
        return sorted(self.ledger.pools().difference(f"{ROOT}.{name}" for name in self.rules.pools))

    def lost_nodes(self) -> list[str]:
        """Return the nodes that live jobs are on, or ask for, and that are not configured."""
        named = {job.node for job in self.ledger.allocated_jobs()}
        named.update(spec.demand.node for spec in self.ledger.specs())
        return sorted(named.difference({"", *(node.name for node in self.rules.axes.nodes)}))

    def stopped(self) -> None:
        """Store what is known of ended runs, if the journal can be written: the daemon ends."""
        self._runs_due_mono_s = 0.0
        self.turn([])
        self._log()

    @property
    def wants_turn(self) -> bool:
        """Whether the turn has left over work that needs no further stimulus and no rest before."""
        again_mono_s = self.again_mono_s
        return again_mono_s is not None and again_mono_s <= self.clock().mono_s

    @property
    def again_mono_s(self) -> float | None:
        """The time, on the monotonic clock, at which a turn is due for the rest of a pass or
        leftover work; None if there is neither. It stays the same once it has come: whoever looks
        later must not take work that is due for none."""
        if self._wants_pass and self.scheduler.is_cut and self.launchers.is_ready():
            return 0.0
        return self.leftovers_due_mono_s if self._has_left_over() else None

    def want_pass(self) -> None:
        self._wants_pass = True

    def _process(self, work: Work) -> list[ev.Event] | DrfdError:
        """Decide a stimulus, and record its events."""
        repeated = self._repeated(work)
        if repeated is not None:
            return [repeated]
        try:
            self._refuse_beyond_budget(work.stimulus)
            events = self._informed(work).decide(self.ledger, self.rules)
        except Refused as refusal:
            return refusal
        for event in events:
            self._record(event, work.payload)
        return events

    def _repeated(self, work: Work) -> ev.Event | None:
        """Return the event of the submission that this one repeats, perhaps of this very turn, or
        None. A submission of another account that had the same uid is not repeated."""
        if work.payload is None or not isinstance(work.stimulus, st.SubmitAsked):
            return None
        spec, key = work.stimulus.spec, work.payload.key
        job_id = None if key is None else self.journal.submissions.job_of(spec.uid, key)
        if job_id is None:
            return None
        event = self.journal.events(job_id)[0]
        assert isinstance(event, ev.Submitted | ev.ArraySubmitted)
        return event if event.spec.user == spec.user else None

    def _informed(self, work: Work) -> st.Stimulus:
        """Return the stimulus with facts from the journal about its jobs. They are read only now,
        because jobs may have ended earlier in this turn."""
        match stimulus := work.stimulus:
            case st.SubmitAsked() if stimulus.spec.after:
                return replace(stimulus, ended=self.ended(stimulus.spec.after))
            case st.ChangeAsked() if stimulus.change.after is not None:
                wanted = stimulus.change.after
                spec = self.ledger.spec_of(stimulus.job_id)
                if spec is None:
                    # It is refused without a look at what it is to wait for.
                    return stimulus
                # Only these are named: each is read from the journal.
                named = (*wanted[:NAMED_DEPENDENCIES], *spec.after[:NAMED_DEPENDENCIES])
                gone = {each.job_id for each in named} - self.ledger.jobs.keys()
                ended = ((each, self.journal.job(each)) for each in gone)
                names = {each: job.label for each, job in ended if job is not None}
                return replace(stimulus, ended=self.ended(wanted), names=names)
            case st.Tick():
                return replace(stimulus, heard=self.heard)
            case _:
                return stimulus

    def _refuse_beyond_budget(self, stimulus: st.Stimulus) -> None:
        """Raise Refused for a request by which a user who has used up the limit of stored bytes, or
        shares one with all users that is used up, would store more. Cancelling makes room. For
        changes the limits are a sixteenth higher, so that jobs that fill them can still be held,
        released and reordered."""
        user_limit, total_limit = self.rules.max_kept_bytes_per_user, self.rules.max_kept_bytes
        if isinstance(stimulus, st.SubmitAsked):
            spec, is_exempt, slack = stimulus.spec, stimulus.is_admin, 0
        elif isinstance(stimulus, st.JobAsked) and not isinstance(stimulus, st.CancelAsked):
            found = self.ledger.spec_of(stimulus.job_id)
            if found is None or stimulus.actor.is_admin or stimulus.actor.uid != found.uid:
                # Another user's request is refused without showing the bytes of this one.
                return
            spec, is_exempt, slack = found, False, 1
        else:
            return
        own = self.journal.live_bytes(spec.uid)
        if own >= user_limit + slack * user_limit // 16:
            raise Refused(
                "too-long",
                f"the jobs of {spec.user}, and what has happened to them, take {show_size(own)} of "
                f"drfd's memory and journal, and may take {show_size(user_limit)}",
                hint="wait for some to end, or cancel some; have long lists of arguments read from "
                "a file, and submit jobs with the same environment and script",
            )
        if is_exempt or own < ALWAYS_BYTES:
            return
        total = self.journal.live_bytes_in_total()
        if total >= total_limit + slack * total_limit // 16:
            raise Refused(
                "too-much-kept",
                f"the jobs of all users take {show_size(total)} of drfd's memory and journal, and "
                f"may take {show_size(total_limit)}",
                hint="wait for some to end; the administrator can raise stored_bytes_total under "
                "[limits]",
            )

    def _schedule(self) -> None:
        pass_s = self.scheduler.next_pass_s
        if pass_s is not None and self.clock().at_s >= pass_s:
            self._wants_pass = True
        if not self._wants_pass or not self.launchers.is_ready():
            return
        for event in self.scheduler.run(self.ledger, self.rules, self.clock()):
            if isinstance(event, ev.Admitted):
                for taken in self.taken_attempts.values():
                    if event.job_id in taken:
                        above = taken[event.job_id] + 1
                        event = structs.replace(event, attempt=max(event.attempt, above))
            self._record(event)
        # Its own events ask for no further pass: all that fits is placed, or the pass was cut.
        self._wants_pass = self.scheduler.is_cut

    def _restore_reservations(self) -> None:
        """Read what is kept for big jobs from the journal."""
        self._kept = self.journal.fact("reservations", tuple[KeptReservation, ...]) or ()
        self.scheduler.restore(self._kept, self.ledger, self.clock().at_s)

    def _store_reservations(self) -> None:
        """Make what is kept for big jobs durable with the turn, so that it outlives the
        daemon."""
        kept = tuple([each.kept for each in self.scheduler.reservations])
        if kept != self._kept:
            self.journal.put_fact("reservations", kept)
            self._kept = kept

    def _resume_load(self) -> None:
        """Until the first measurement, take the external load to be as the last daemon saw it."""
        self._load_bytes = self.journal.fact("external_load", int) or 0
        self.scheduler.external_load.resume(self._load_bytes, self.rules, self.clock().at_s)

    def _store_load(self) -> None:
        """Make a notable change of the external load durable with the turn."""
        load_bytes = self.scheduler.external_load.kept.memory_bytes
        capacity_bytes, now_mono_s = self.rules.own_capacity.memory_bytes, self.clock().mono_s
        is_due = now_mono_s >= self._load_due_mono_s
        if is_due and is_news(load_bytes, self._load_bytes, capacity_bytes):
            self._load_bytes, self._load_due_mono_s = load_bytes, now_mono_s + _LOAD_S
            self.journal.put_fact("external_load", load_bytes)

    def _store_runs(self) -> None:
        self._has_new_runs, self._runs_due_mono_s = False, self.clock().mono_s + _RUNS_S
        self.journal.put_past_runs(digest(rules_text(self._ordinary)), self.scheduler.past_runs)

    def _record(self, event: ev.Event, payload: Payload | None = None) -> None:
        if isinstance(event, ev.Cleaned | ev.Requeued | ev.Retried):
            # The usage is read before a requeueing resets it.
            ended = self.ledger.jobs[event.job_id]
            if (ended.id, ended.attempt) not in self._remembered:
                self._remembered.add((ended.id, ended.attempt))
                self.scheduler.remember([ended], self.rules, self.clock())
                self._has_new_runs = True
        if isinstance(event, ev.Altered):
            self.scheduler.forget_reservation(event.job_id, self.ledger)
        job = self.ledger.apply(event)
        self.journal.append(event, job, self.ledger.latest_array, payload)
        self._wants_pass = True
        if job is not None:
            curve = self.curve_of(job) if isinstance(event, ev.Cleaned) else None
            if curve is not None:
                self.journal.put_curve(job.id, curve)
            kind, before = type(event).__name__, self._touched.get(job.id)
            self._touched[job.id] = job, kind if before is None else f"{before[1]},{kind}"

    def _is_cleaning(self, key: tuple[int, int]) -> bool:
        job = self.ledger.jobs.get(key[0])
        return job is not None and job.state is JobState.CLEANING and job.attempt == key[1]

    def _log(self) -> None:
        """Log what has happened to jobs. The audit log has the submissions."""
        entries, self._to_log = self._to_log, []
        for job, kinds in entries:
            if kinds in _SUBMISSIONS:
                continue
            user, state = job.spec.user, job.shown_state
            words = "job=%d user=%s event=%s state=%s"
            log.info(words, job.id, user, kinds, state, extra=about(job=job.id, user=user))

    def _reload_ledger(self) -> None:
        """Read the ledger from the journal again after a turn that could not be recorded."""
        self.journal.rollback()
        before, self.ledger = self.ledger, self.journal.load(self.rules.axes)
        self.ledger.nodes_away, self.ledger.calendar = before.nodes_away, before.calendar
        self.scheduler.forget_derived_state()
        self._restore_reservations()
        self._load_bytes = self.journal.fact("external_load", int) or 0
        self._touched.clear()
        self._wants_pass = True
