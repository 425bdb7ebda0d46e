"""The scheduler: passes, and the state that one pass needs of those before it.

Begin at `Scheduler.run`. `plan` reads the changes since the last pass; `schedule` gives the free
resources and the index of waiting jobs to the configured policy (`POLICIES`); `start_events` turns
the resulting plan into events. A pass changes no table.

The state is not part of the ledger. It can be rebuilt from ended jobs and stored reservations
(`Scheduler.restore`).

Some of it is derived from the ledger and kept only to save time. With 10,000 waiting jobs of 1,000
users a decision takes 0.7 ms. If this were computed anew in each pass, it would take

    54 ms   the index of waiting jobs, with the share tree and the order of service
    6 ms    of the index, the order of service alone
    3 ms    of the index, since when the first jobs of leaves wait
    8 ms    of the index, the shortest run times of leaves, with a reservation
    4 ms    the ends of running jobs, with a reservation and 320 of them (in place of 1.3)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import replace
from math import inf
from typing import NamedTuple

from drfd.core.fairness.rules import Rules
from drfd.core.fairness.service_order import DecayedUsage, ShortJobs
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.postponed import pause_end_s
from drfd.core.model import events as ev
from drfd.core.model.job import ROOT, Job, JobState, Now, Outcome, leaf_path
from drfd.core.model.machine import (
    Instance,
    Instances,
    Vector,
    choose_instances,
    each_instance,
)
from drfd.core.scheduling.backfill import (
    KeptReservation,
    PassContext,
    Reservation,
    make_pass_context,
)
from drfd.core.scheduling.debts import Debt, settled
from drfd.core.scheduling.kept_free import ExternalLoad, ExternalLoadEstimator, beside_jobs, free_of
from drfd.core.scheduling.policies import POLICIES, PassInput, Plan
from drfd.core.scheduling.preemption import Departures, Starvation, Supply, preempt
from drfd.core.scheduling.release_times import Ends, RunTimes
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex
from drfd.core.scheduling.waits import MachineShort

#: The search for starving nodes reads all waiting leaves. With more leaves than this it runs at
#: most once in this many seconds, far less than a node must starve before anything happens.
_FEW_LEAVES, _SEARCH_S = 100, 1.0
#: The outcomes of jobs that ran as long as they do. How long a job ran that was cancelled or lost
#: says nothing about others.
_OWN_ENDS = frozenset(
    {
        Outcome.COMPLETED,
        Outcome.FAILED,
        Outcome.TIMEOUT,
        Outcome.OUT_OF_MEMORY,
        Outcome.LIMIT_EXCEEDED,
    }
)


class PastRuns(NamedTuple):
    """What a scheduler knows of runs that have ended, for the next daemon."""

    #: See `DecayedUsage` and `RunTimes`.
    usage: dict[str, float]
    newest_s: float
    run_times: dict[str, list[tuple[int, float]]]


class Scheduler:
    def __init__(
        self,
        half_life_s: float,
        run_times: RunTimes | None = None,
        *,
        max_starts: float = inf,
    ) -> None:
        """`half_life_s` is that of usage (see `core.fairness.service_order`). A simulation may pass
        other `run_times` than a daemon estimates. Each pass starts at most `max_starts` jobs."""
        self.max_starts = max_starts
        #: The latest scheduling pass: waits are explained from it.
        self.last_plan: Plan | None = None
        self._history = DecayedUsage(half_life_s)
        #: The estimates of how long jobs will run.
        self.run_times = RunTimes() if run_times is None else run_times
        self._ends = Ends()
        self._starvation = Starvation()
        self._departures = Departures()
        #: The time of the last search for starving nodes, on the monotonic clock.
        self._searched_mono_s = -inf
        self._short_jobs = ShortJobs()
        #: The load of processes outside drfd; it is given what is measured.
        self.external_load = ExternalLoadEstimator()
        self._wait_index: WaitIndex | None = None
        #: The pools in which users may have jobs: those of the configuration, and those that were
        #: removed from it and still have jobs.
        self._pools: set[str] = set()
        #: The reservations and debts for the next pass while there is no latest one.
        self._restored: tuple[Reservation, ...] = ()
        self._debts: Mapping[str, Debt] = {}
        #: The Unix time at which the monotonic clock read 0, at the latest pass.
        self._unix_s: float | None = None

    def ahead(self) -> Scheduler:
        """Return a scheduler that makes plans from here on over a copy of the ledger."""
        other = copy(self)
        other.forget_derived_state()
        other._restored = self.reservations
        other._history, other._short_jobs = deepcopy((self._history, self._short_jobs))
        return other

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        return self._restored if self.last_plan is None else tuple(self.last_plan.reservations)

    @property
    def debts(self) -> Mapping[str, Debt]:
        return self._debts if self.last_plan is None else self.last_plan.debts

    def restore(self, stored: Iterable[KeptReservation], ledger: Ledger, now_s: float) -> None:
        """Give the next pass the reservations of an earlier daemon or ledger. Without them it
        would first start jobs that delay the reserved ones."""
        found = []
        for each in stored:
            job = ledger.jobs.get(each.job_id)
            demand = None if job is None else ledger.wanted(job)
            if job is not None and demand is not None:
                found.append(each.restored(job.spec.leaf, demand, now_s))
        self._restored = tuple(found)

    @property
    def past_usage(self) -> Mapping[str, float]:
        """Return the decayed usage of each node (see `core.fairness.service_order`)."""
        return self._history.past_usage

    @property
    def is_cut(self) -> bool:
        """Return whether more jobs may be able to start than the latest pass considered."""
        return self.last_plan is not None and self.last_plan.is_cut

    @property
    def next_pass_s(self) -> float | None:
        """See `Plan`."""
        return None if self.last_plan is None else self.last_plan.next_pass_s

    def run(self, ledger: Ledger, rules: Rules, now: Now) -> Iterator[ev.Event]:
        """Make a pass and yield its events; each must be applied before the next."""
        external = beside_jobs(self.external_load.load(now.at_s), ledger)
        plan = self.plan(ledger, rules, now, external, self.max_starts)
        yield from start_events(ledger, plan, now)
        if not self.is_cut:
            yield from self._preempt(ledger, rules, now, external)

    def plan(
        self,
        ledger: Ledger,
        rules: Rules,
        now: Now,
        external: ExternalLoad | None,
        max_starts: float = inf,
    ) -> Plan:
        """Return the plan of a pass, whose events must be applied."""
        if self._history.clamp(now.at_s):
            self._wait_index = None
        ledger.hold_back(now.at_s)
        wait_index = self._updated_wait_index(ledger, rules)
        pass_context = make_pass_context(
            ledger,
            rules,
            self.run_times,
            now_s=now.at_s,
            before=self.reservations,
            debts=self._debts_at(now),
            external=external,
            known=self._ends,
        )
        for leaf in self._short_jobs.forget(now.mono_s):
            wait_index.touch(leaf)
        self.last_plan = schedule(ledger, rules, wait_index, pass_context, max_starts)
        return self.last_plan

    def _debts_at(self, now: Now) -> Mapping[str, Debt]:
        """Return the debts, which neither a step of the clock nor a suspension of the machine
        changes: the time of the last pass moves with it."""
        before_s, self._unix_s = self._unix_s, now.at_s - now.mono_s
        step_ms = 0 if before_s is None else round((self._unix_s - before_s) * 1000)
        return {
            leaf: debt._replace(at_ms=debt.at_ms + step_ms) for leaf, debt in self.debts.items()
        }

    def _updated_wait_index(self, ledger: Ledger, rules: Rules) -> WaitIndex:
        """Return the kept index, or a new one if rules or ledger are new. It and the ends are
        brought up to date with the ledger."""
        if self._wait_index is None or self._wait_index.shares is not rules.shares:
            self._wait_index = build_wait_index(
                ledger, rules, self._history.past_usage, self._short_jobs.counted
            )
            self.run_times.measure_by(rules)
            self._ends = Ends(ledger)
            self._pools = ledger.pools().union(f"{ROOT}.{name}" for name in rules.pools)
        self._wait_index.catch_up(ledger.changes)
        self._ends.catch_up(ledger)
        return self._wait_index

    def _preempt(
        self, ledger: Ledger, rules: Rules, now: Now, external: ExternalLoad | None
    ) -> Iterator[ev.Event]:
        """Yield the requests that jobs make room for a starving one. Room is made for one job at
        a time, until it has started, or until nothing more comes back."""
        how, last = rules.preempting, self.last_plan
        # In a drain or a pause nothing was decided.
        if how is None or last is None or last.share_tree is None:
            return
        if self._wait_index is not None and self._wait_index.loses_leaves(ledger.changes):
            # A start has closed a group whose jobs alone waited there: the next pass decides.
            return
        is_awaited = any(each.is_forced for each in last.reservations)
        if not ledger.job_counts.preemptible and not is_awaited:
            self._starvation = Starvation()
            return
        if len(ledger.queues) > _FEW_LEAVES and now.mono_s - self._searched_mono_s < _SEARCH_S:
            return
        self._searched_mono_s = now.mono_s
        due = self._starvation.update(ledger, last.share_tree, rules.shares, how, now.mono_s)
        if not due and not is_awaited:
            return
        leaving = self._departures.update(ledger, now.mono_s, rules.grace_s)
        if is_awaited:
            if leaving:
                return
            left = tuple(each for each in last.reservations if not each.is_forced)
            self.last_plan = replace(last, reservations=left, is_cut=True)
        supply = Supply(leaving, external)
        for starving in due:
            requests = preempt(ledger, rules, last.share_tree, supply, starving, now)
            if requests:
                job = ledger.jobs[starving.job_id]
                demand = ledger.wanted(job)
                assert demand is not None
                made = KeptReservation(job.id, now.at_s, is_forced=True)
                place = made.restored(job.spec.leaf, demand, now.at_s)
                others = tuple(each for each in self.reservations if each.job_id != job.id)
                self.last_plan = replace(last, reservations=(place, *others), is_cut=is_awaited)
                yield from requests
                # The grace time of the victims begins now.
                self._departures.update(ledger, now.mono_s, rules.grace_s)
                return

    def forget_derived_state(self) -> None:
        """Drop what was derived from the ledger, because another one takes its place. What was
        kept for big jobs can be given back by `restore`."""
        self._restored, self._debts, self.last_plan = (), self.debts, None
        self._wait_index, self._ends = None, Ends()

    def forget_axes(self) -> None:
        """Drop everything that is counted in the machine's resources: these have changed."""
        self.forget_derived_state()
        self._short_jobs = ShortJobs()

    def forget_reservation(self, job_id: int, ledger: Ledger) -> None:
        """Drop the reservations of the job, or of the array's tasks: its demand or its leaf may
        have changed."""
        array_state = ledger.arrays.get(job_id)
        last_id = job_id if array_state is None else array_state.array.last_id
        ids = range(job_id, 1 + last_id)
        kept = tuple(each for each in self.reservations if each.job_id not in ids)
        if self.last_plan is None:
            self._restored = kept
        else:
            self.last_plan = replace(self.last_plan, reservations=kept)

    @property
    def past_runs(self) -> PastRuns:
        history = self._history
        return PastRuns(history.past_usage, history.newest_s, self.run_times.ended)

    def recall(self, past: PastRuns) -> None:
        """Go on with what the scheduler of an earlier daemon knew."""
        self._history = DecayedUsage(self._history.half_life_s, past.usage, past.newest_s)
        self.run_times.ended = past.run_times

    def adopt_half_life(self, half_life_s: float, now_s: float) -> None:
        """Let usage halve in this time from `now_s` on (Unix time)."""
        self._history = self._history.halving_in(half_life_s, now_s)

    def remember(self, jobs: Iterable[Job], rules: Rules, now: Now) -> None:
        """Record ended jobs: their use decides ties, their run times are estimates for their
        users' next jobs, and very short ones still count as held for a moment."""
        for job in jobs:
            if job.started_at is None or job.ended_at is None:
                continue
            demand = rules.axes.vector(job.spec.demand)
            # Time in which the job was frozen does not count.
            started_s = min(job.started_at + job.frozen_s(job.ended_at), job.ended_at)
            share = rules.shares.rounded_dominant_share(demand)
            # After the clock was set back, the end may be in the future.
            ahead_s = max(0.0, job.ended_at - now.at_s)
            self._history.add(job.spec.leaf, share, started_s - ahead_s, job.ended_at - ahead_s)
            if job.outcome in _OWN_ENDS:
                self.run_times.add(job.spec.user, job.ended_at - started_s, share)
            self.count_as_held([job], rules, now)
            # The estimates of the user's other jobs have changed, in whichever pool they wait.
            self._ends.note_estimates(job.spec.user)
            if self._wait_index is not None:
                for pool in (f"{ROOT}.{job.spec.user}", *self._pools):
                    self._wait_index.forget_lengths(leaf_path(pool, job.spec.user))

    def count_as_held(self, jobs: Iterable[Job], rules: Rules, now: Now) -> None:
        """Count the resources of ended jobs that were very short as held for a moment."""
        for job in jobs:
            if job.started_at is not None and job.outcome is not None:
                # After the clock was set back, the start may be in the future.
                left_s = min(job.started_at + rules.min_charge_s - now.at_s, rules.min_charge_s)
                if left_s > 0:
                    demand = rules.axes.vector(job.spec.demand)
                    self._short_jobs.add(job.spec.leaf, demand, now.mono_s + left_s)


def schedule(
    ledger: Ledger,
    rules: Rules,
    wait_index: WaitIndex,
    pass_context: PassContext,
    max_starts: float = inf,
) -> Plan:
    """Return the plan of one pass. `wait_index` must have been notified of every change since the
    last one."""
    free, now_s = free_of(ledger, rules, pass_context.external), pass_context.now_s
    is_paused = pause_end_s(ledger.pause, now_s) is not None
    pause = MachineShort(ledger.pause) if ledger.pause is not None and is_paused else None
    if ledger.draining or pause is not None:
        # Reservations are renewed when launches go on.
        before = pass_context.before
        debts = settled(pass_context.debts, now_s, wait_index.share_tree)
        return Plan(
            free=free,
            reservations=before,
            debts=debts,
            pause=pause,
            next_pass_s=None if pause is None else pause.opens_s,
        )
    pass_input = PassInput(
        wait_index=wait_index,
        free=free,
        pass_context=pass_context,
        max_starts=max_starts,
        running=ledger.slots_taken() if rules.policy == "slots" else {},
    )
    return POLICIES[rules.policy](pass_input)


def start_events(ledger: Ledger, plan: Plan, now: Now) -> Iterator[ev.Admitted | ev.Resumed]:
    """Yield, for each job that the plan admits, the event by which it starts or is resumed. It
    makes no difference whether an event is applied before the next is asked for."""
    chosen: set[Instance] = set()
    if plan.external is not None:
        chosen.update(each for each, _ in plan.external.instances)
    for job_id, (held, why) in plan.starts.items():
        job = ledger.jobs[job_id]
        if job.state is JobState.SUSPENDED:
            yield ev.Resumed(job_id, now.at_s, mono_s=now.mono_s)
            continue
        instances: Instances = ()
        axes, node = ledger.axes, held.node
        if job.spec.demand.gres and axes.is_home(node):
            taken = {*ledger.taken, *chosen}
            whole, shared = axes.split_gres(job.spec.demand.gres, held)
            instances = choose_instances(whole, axes.instances, taken, axes.places)
            instances = tuple(sorted((*instances, *shared)))
            chosen.update(each_instance(instances))
        yield ev.Admitted(
            job_id,
            now.at_s,
            attempt=job.attempt + 1,
            instances=instances,
            node=node,
            why=why,
        )


def build_wait_index(
    ledger: Ledger, rules: Rules, past_usage: Mapping[str, float], recent: Mapping[str, Vector]
) -> WaitIndex:
    """Return an index of all waiting jobs, for any number of passes with these rules. It must be
    given the changes of the ledger before each of them."""
    return WaitIndex(
        LeafTables(
            queues=ledger.queues,
            all_queues=ledger.queues,
            used=ledger.used,
            shares=rules.shares,
            past_usage=past_usage,
            recent=recent,
        )
    )
