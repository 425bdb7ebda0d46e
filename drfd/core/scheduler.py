"""The scheduler: a pass over those who wait, and all that is kept from one pass to the next.

Beside the ledger, not in it: nothing here decides what is true of a job, and all of it can be made
anew from jobs that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from math import inf

from drfd.core import events as ev
from drfd.core.decide import admit, line_up, schedule_on
from drfd.core.ends import Ends
from drfd.core.estimate import RunTimes
from drfd.core.external import ExternalLoad, Gauge
from drfd.core.history import History
from drfd.core.job import Job, leaf_path
from drfd.core.ledger import Ledger
from drfd.core.lineup import Lineup
from drfd.core.outlook import look_out
from drfd.core.plan import Plan
from drfd.core.preemption import Departures, Starvation, preempt
from drfd.core.reservation import Reservation, forced
from drfd.core.resources import Resources
from drfd.core.rules import ROOT, Rules
from drfd.core.shortjobs import ShortJobs
from drfd.core.stimuli import Now

#: Who starves is asked of all who wait. With more leaves than this it is asked no more often than
#: so many seconds: far less than anybody must starve before anything happens.
_FEW_LEAVES, _LOOK_S = 100, 1.0


class Scheduler:
    def __init__(
        self,
        half_life_s: float,
        run_times: RunTimes | None = None,
        *,
        most_looks: int | None = None,
    ) -> None:
        """`half_life_s`: of usage; see `core.history`. `run_times`: a simulation may know other
        estimates than a daemon. `most_looks` of a pass: see `run_pass`."""
        self.most_looks = most_looks
        #: The latest scheduling pass: waits are explained from it.
        self.last_plan: Plan | None = None
        self._history = History(half_life_s)
        self._run_times = RunTimes() if run_times is None else run_times
        self._starvation = Starvation()
        self._departures = Departures()
        #: When it was last asked who starves, on the monotonic clock.
        self._looked_mono_s = -inf
        self._short_jobs = ShortJobs()
        self._gauge = Gauge()
        self._lineup: Lineup | None = None
        self._ends: Ends | None = None
        #: In which a user may have jobs, besides the leaf below the root: as configured, and those
        #: that have been taken out of the configuration and still have jobs.
        self._pools: set[str] = set()

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        return () if self.last_plan is None else tuple(self.last_plan.reservations)

    @property
    def spent(self) -> Mapping[str, float]:
        """What everybody has used lately (see `core.history`)."""
        return self._history.spent

    @property
    def is_cut(self) -> bool:
        """Is there more to launch than the latest pass has looked at?"""
        return self.last_plan is not None and self.last_plan.is_cut

    def run(self, ledger: Ledger, rules: Rules, now: Now) -> Iterator[ev.Event]:
        """One pass. Each event must be applied, and `note` told, before the next is asked for."""
        external = self.external(now)
        if self._ends is None:
            self._ends = Ends(ledger, self._run_times)
        outlook = look_out(
            ledger,
            patience=rules.patience,
            run_times=self._run_times,
            now_s=now.at_s,
            before=self.reservations,
            external=external,
            kept=self._ends,
        )
        lineup = self._lined_up(ledger, rules)
        for leaf in self._short_jobs.forget(now.mono_s):
            lineup.touch(leaf)
        self.last_plan = schedule_on(lineup, ledger, rules, outlook, self.most_looks)
        for job_id in self.last_plan.admitted:
            yield admit(ledger, job_id, now)
        if not self.is_cut:
            yield from self._preempt(ledger, rules, now, external)

    def _lined_up(self, ledger: Ledger, rules: Rules) -> Lineup:
        """Kept from pass to pass, and made anew for other rules or other books."""
        if self._lineup is None or self._lineup.shares is not rules.shares:
            self._lineup = line_up(ledger, rules, self._history.spent, self._short_jobs.counted)
            specs = [job.spec for job in ledger.jobs.values()]
            specs += [array.spec for array, *_ in ledger.arrays.left()]
            homes = {(spec.pool, spec.user) for spec in specs}
            self._pools = {pool for pool, user in homes if pool != f"{ROOT}.{user}"}
            self._pools.update(f"{ROOT}.{name}" for name in rules.pools)
        for leaf in ledger.queues.changed:
            self._lineup.touch(leaf)
        ledger.queues.changed.clear()
        return self._lineup

    def _preempt(
        self, ledger: Ledger, rules: Rules, now: Now, external: ExternalLoad | None
    ) -> Iterator[ev.Event]:
        """Have jobs make room for a starving one; for one at a time, until it has started, or until
        nothing comes back any more and it has not."""
        how, last = rules.preempting, self.last_plan
        if how is None or last is None or last.standing is None or ledger.draining:
            return
        kept = None if external is None else rules.axes.vector(external.kept)
        if len(ledger.queues) > _FEW_LEAVES and now.mono_s - self._looked_mono_s < _LOOK_S:
            return
        self._looked_mono_s = now.mono_s
        due = self._starvation.look(ledger, last.standing, rules.shares, how, now.mono_s)
        is_awaited = any(each.is_forced for each in last.reservations)
        if not due and not is_awaited:
            return
        leaving = self._departures.look(ledger, now.mono_s, rules.grace_s)
        if is_awaited:
            if leaving:
                return
            left = tuple(each for each in last.reservations if not each.is_forced)
            self.last_plan = replace(last, reservations=left)
        for starving in due:
            requests = preempt(
                ledger, last.standing, rules.room, starving, how, now, kept, leaving=leaving
            )
            if requests:
                job = ledger.job(starving.job_id)
                demand = ledger.wanted(job)
                assert demand is not None
                place = forced(job.id, job.spec.leaf, demand, now.at_s)
                others = tuple(each for each in self.reservations if each.job_id != job.id)
                self.last_plan = replace(last, reservations=(place, *others))
                yield from requests
                # From this moment on they have their time.
                self._departures.look(ledger, now.mono_s, rules.grace_s)
                return

    def note(self, job: Job) -> None:
        """An event has changed the job, or the array that it stands for: and so what its leaf holds
        or waits for."""
        self._touch(job.spec.leaf)
        if self._ends is not None:
            self._ends.note(job.id)

    def _touch(self, leaf: str) -> None:
        if self._lineup is not None:
            self._lineup.touch(leaf)

    def forget_books(self) -> None:
        """The ledger is another one now."""
        self.last_plan = None
        self._lineup = self._ends = None

    def forget_axes(self) -> None:
        """The machine's resources are others now."""
        self.forget_books()
        self._short_jobs = ShortJobs()

    def forget_place(self, job_id: int, ledger: Ledger) -> None:
        """What is reserved for the job, or for tasks of the array, may not be what it asks for now,
        nor its leaf the same."""
        roster = ledger.arrays.get(job_id)
        array = None if roster is None else roster.array
        self._touch((array or ledger.job(job_id)).spec.leaf)
        if self.last_plan is not None:
            ids = range(job_id, 1 + (job_id if array is None else array.last_id))
            kept = tuple(each for each in self.reservations if each.job_id not in ids)
            self.last_plan = replace(self.last_plan, reservations=kept)

    def remember(self, jobs: Iterable[Job], rules: Rules, now: Now) -> None:
        """What ended jobs have used decides ties from now on, and how long they ran is a guess for
        their users' next ones; one that ran very shortly still counts for a moment."""
        for job in jobs:
            if job.started_at is None or job.ended_at is None:
                continue
            demand = rules.axes.vector(job.spec.demand)
            # The time that it was frozen does not count.
            started_s = min(job.started_at + job.frozen_s(job.ended_at), job.ended_at)
            share = rules.shares.dominant_share(demand)
            self._history.add(job.spec.leaf, float(share), started_s, job.ended_at)
            if job.outcome is not None:
                self._run_times.add(job.spec.user, job.ended_at - started_s)
                if self._ends is not None:
                    self._ends.note_user(job.spec.user)
                # If the clock has been set back, it started in the future.
                left_s = min(job.started_at + rules.min_hold_s - now.at_s, rules.min_hold_s)
                if left_s > 0:
                    self._short_jobs.add(job.spec.leaf, demand, now.mono_s + left_s)
            # In whichever pool the user's other jobs wait: their estimates have changed.
            for pool in (f"{ROOT}.{job.spec.user}", *self._pools):
                self._touch(leaf_path(pool, job.spec.user))

    def external(self, now: Now) -> ExternalLoad | None:
        """The load from outside drfd, if any has been seen."""
        return self._gauge.load(now.at_s)

    def see_external(self, use: Resources, rules: Rules, now: Now) -> bool:
        """A sample of what all but drfd and its jobs use; whether more or less is kept free now."""
        before = self._gauge.kept
        if rules.beside is None:
            self._gauge = Gauge()
        else:
            self._gauge.see(use, beside=rules.beside, capacity=rules.capacity, now_s=now.at_s)
        return self._gauge.kept != before

    def snapshot(self) -> tuple[RunTimes, dict[str, float], tuple[Reservation, ...]]:
        """What a forecast starts from: a copy."""
        return deepcopy(self._run_times), dict(self._history.spent), self.reservations
