"""Quotas of a week: how many dominant-share-hours nodes have used, and which quotas are used up.

A job that holds the whole of its dominant resource uses one in an hour. It counts from its start to
its end, by the present capacity: while its user keeps it suspended with what it keeps, in other
suspended times not at all; the notification of its owner counts with what it may use. Sums are of
integers (shares in billionths, times in milliseconds), so they do not depend on the order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from drfd.core.fairness.share_tree import FairShare, WeekQuota, path_up
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, kept_demand, leaf_path, notice_demand
from drfd.core.model.resources import Axes, Resources

#: A dominant share of 1, and a dominant-share-hour, in the units of the sums.
_WHOLE = 10**9
_HOUR = _WHOLE * 3_600_000
#: Seconds by which the clock may go back before everything is counted again.
_BACK_S = 60.0


@dataclass(frozen=True, slots=True)
class QuotaUse:
    path: str
    #: In dominant-share-hours.
    used_hours: float
    quota_hours: float
    #: Whether its jobs wait when it has used up the quota; otherwise they are served last.
    waits: bool
    #: The end of the week, in Unix time.
    restored_s: float


@dataclass(frozen=True, slots=True)
class RunInterval:
    """A time, in Unix time, in which a job ran; of one that runs now, `end_s` is None."""

    start_s: float
    end_s: float | None
    #: In which pool and with which demand, if they may be others than the job has now: who queues
    #: a job again may move it.
    pool: str | None = None
    demand: Resources | None = None
    #: Whether its owner was notified in that time, with a small part of the demand.
    is_notice: bool = False
    #: Whether its user kept it suspended in that time.
    is_kept: bool = False
    #: Of the end, if the owner wants to know of this one.
    is_of_end: bool = False


def stretches(events: Iterable[ev.Event]) -> Iterator[RunInterval]:
    """Yield the times in which a job ran, in all its attempts, from its events."""
    start_s: float | None = None
    end_s: float | None = None
    pool: str | None = None
    demand: Resources | None = None
    is_frozen = keeps = False
    for event in events:
        match event:
            case ev.Submitted() | ev.ArraySubmitted():
                pool, demand = event.spec.pool, event.spec.demand
            case ev.Altered():
                pool = pool if event.pool is None else event.pool
                demand = demand if event.demand is None else event.demand
            case ev.Launched() | ev.Resumed():
                start_s, end_s = event.at_s, None
                is_frozen = keeps = False
            case ev.LaunchPostponed():
                # It has not started after all.
                start_s = None
            case ev.SuspendRequested() | ev.ResumeRequested():
                keeps = isinstance(event, ev.SuspendRequested) and event.kept_mono_s is not None
                if is_frozen:
                    if start_s is not None:
                        yield RunInterval(start_s, event.at_s, pool, demand, is_kept=True)
                    start_s = event.at_s if keeps else None
            case ev.Suspended():
                if start_s is not None:
                    yield RunInterval(start_s, event.at_s, pool, demand)
                start_s, is_frozen = event.at_s if keeps else None, True
            case ev.Exited() | ev.LaunchFailed():
                if start_s is not None:
                    yield RunInterval(start_s, event.at_s, pool, demand, is_kept=is_frozen)
                start_s, end_s = None, event.at_s
            case ev.StopRequested() if end_s is not None:
                # It is not tried again, so that this is its end.
                end_s = event.at_s
            case ev.Cleaned() if end_s is not None:
                yield RunInterval(end_s, event.at_s, pool, demand, is_notice=True, is_of_end=True)
                end_s = None
            case ev.Requeued() | ev.Retried():
                end_s = None
            case _:
                pass
    if start_s is not None:
        yield RunInterval(start_s, None, pool, demand, is_kept=is_frozen)
    elif end_s is not None:
        yield RunInterval(end_s, None, pool, demand, is_notice=True, is_of_end=True)


def is_plain(job: Job) -> bool:
    """Return whether the job's record alone says when it ran: in one attempt, without a break. A
    job that is queued again has forgotten when it ran."""
    return job.spec.notify is None and (
        job.attempt == 0
        or (job.attempt == 1 and job.started_at is not None and not job.suspensions)
    )


def plain_stretch(job: Job) -> Iterator[RunInterval]:
    """Yield the time in which a plain job ran, if it has started."""
    if job.started_at is not None:
        yield RunInterval(job.started_at, job.ended_at)


def _wants_end(job: Job) -> bool:
    notify, outcome = job.spec.notify, job.outcome
    is_over = job.state is JobState.ENDED or job.notifies_end
    return is_over and notify is not None and outcome is not None and notify.wants(outcome)


def _counted(job: Job) -> Resources | None:
    """Return the demand that counts now, or None."""
    if job.notifies_end:
        return notice_demand(job.spec.demand)
    if not job.is_allocated or job.started_at is None or job.ended_at is not None:
        return None
    if job.suspended_at is None:
        return job.spec.demand
    return None if job.kept_since is None else kept_demand(job.spec.demand)


@dataclass(frozen=True, slots=True)
class _Running:
    """A job that counts now: its leaf, its share in billionths, and since when."""

    leaf: str
    share: int
    since_ms: int


class WeekUse:
    """What the jobs of each node with a quota have used since the week began."""

    def __init__(self, shares: FairShare, axes: Axes, weeks: Sequence[float], now_s: float) -> None:
        """`weeks` are the begins of weeks in Unix time, in order: of the present one, and of others
        before and after it. Jobs are counted by `count` and `note`."""
        self._shares, self._axes = shares, axes
        self._quotas = quotas_of(shares)
        self._weeks_ms = [_ms(each) for each in weeks]
        self._week_at = bisect_right(self._weeks_ms, _ms(now_s)) - 1
        self._latest_s = now_s
        #: The use of each node at a time t, in milliseconds, is `rate * t - offset`.
        self._rates, self._offsets = Counter[str](), Counter[str]()
        self._running: dict[int, _Running] = {}

    def copy(self) -> WeekUse:
        """Return a copy that can be run ahead."""
        other = copy(self)
        other._rates, other._offsets = self._rates.copy(), self._offsets.copy()
        other._running = self._running.copy()
        return other

    @property
    def week_begin_s(self) -> float:
        return self._weeks_ms[self._week_at] / 1000

    @property
    def week_end_s(self) -> float:
        """The Unix time at which all quotas are restored."""
        return self._weeks_ms[self._week_at + 1] / 1000

    def is_outdated(self, now_s: float) -> bool:
        """Return whether everything must be counted again for that Unix time, because the clock was
        set back, or no later week is known."""
        return now_s < self._latest_s - _BACK_S or _ms(now_s) >= self._weeks_ms[-2]

    def counts_for(self, shares: FairShare, axes: Axes) -> bool:
        """Return whether the use is counted as these rules say, for the same quotas."""
        is_same_machine = (shares.capacity, axes) == (self._shares.capacity, self._axes)
        return is_same_machine and quotas_of(shares) == self._quotas

    def count(self, job: Job, found: Iterable[RunInterval]) -> None:
        """Add the times in which a job ran. Its last one may last: then its `note` ends it."""
        for each in found:
            leaf = job.spec.leaf if each.pool is None else leaf_path(each.pool, job.spec.user)
            paths = self._paths(leaf)
            if not paths or (each.is_of_end and not _wants_end(job)):
                continue
            demand = job.spec.demand if each.demand is None else each.demand
            if each.is_notice:
                demand = notice_demand(demand)
            elif each.is_kept:
                demand = kept_demand(demand)
            share = self._share(demand)
            # After the clock was set back, both times may be in the future.
            if each.end_s is not None:
                self._bank(paths, share, _ms(each.start_s), _ms(min(each.end_s, self._latest_s)))
            elif _counted(job) is not None:
                self._open(job, share, min(each.start_s, self._latest_s))

    def note(self, job: Job, at_s: float) -> None:
        """Take account of an event at that Unix time that has changed the job."""
        self._roll(at_s)
        known = self._running.get(job.id)
        demand = _counted(job) if self._paths(job.spec.leaf) else None
        share = None if demand is None else self._share(demand)
        if known is None:
            if share is not None:
                self._open(job, share, at_s)
            return
        if share is not None and known.leaf == job.spec.leaf and known.share == share:
            return
        self._close(job.id, at_s if job.started_at is not None or not job.is_allocated else None)
        if share is not None:
            self._open(job, share, at_s)

    def all_use(self, now_s: float) -> dict[str, QuotaUse]:
        """Return the use of each node with a quota at that Unix time."""
        self._roll(now_s)
        return {path: self._use(path, now_s) for path in self._quotas}

    def used_up(self, now_s: float) -> dict[str, QuotaUse]:
        """Return the use of the nodes that have used up their quota at that Unix time."""
        self._roll(now_s)
        amounts = ((path, each.share_hours * _HOUR) for path, each in self._quotas.items())
        over = [path for path, amount in amounts if self._at(path, now_s) >= amount]
        return {path: self._use(path, now_s) for path in over}

    def _at(self, path: str, now_s: float) -> int:
        return max(0, self._rates[path] * _ms(now_s) - self._offsets[path])

    def _use(self, path: str, now_s: float) -> QuotaUse:
        quota, used_hours = self._quotas[path], self._at(path, now_s) / _HOUR
        return QuotaUse(path, used_hours, float(quota.share_hours), quota.waits, self.week_end_s)

    def _roll(self, now_s: float) -> None:
        """Begin the week of that time, if it comes after the present one."""
        self._latest_s = max(self._latest_s, now_s)
        at = bisect_right(self._weeks_ms, _ms(now_s)) - 1
        if at <= self._week_at:
            return
        self._week_at = min(at, len(self._weeks_ms) - 2)
        begin_ms = self._weeks_ms[self._week_at]
        self._rates.clear()
        self._offsets.clear()
        for job_id, each in self._running.items():
            self._running[job_id] = replace(each, since_ms=max(begin_ms, each.since_ms))
            self._add_running(self._running[job_id], 1)

    def _open(self, job: Job, share: int, since_s: float) -> None:
        since_ms = max(_ms(since_s), self._weeks_ms[self._week_at])
        self._running[job.id] = each = _Running(job.spec.leaf, share, since_ms)
        self._add_running(each, 1)

    def _close(self, job_id: int, end_s: float | None) -> None:
        """End a stretch. With None, it does not count."""
        each = self._running.pop(job_id)
        self._add_running(each, -1)
        if end_s is not None:
            self._bank(self._paths(each.leaf), each.share, each.since_ms, _ms(end_s))

    def _add_running(self, each: _Running, sign: int) -> None:
        for path in self._paths(each.leaf):
            self._rates[path] += sign * each.share
            self._offsets[path] += sign * each.share * each.since_ms

    def _bank(self, paths: Sequence[str], share: int, start_ms: int, end_ms: int) -> None:
        """Add what of the stretch is in the present week."""
        begin_ms, over_ms = self._weeks_ms[self._week_at : self._week_at + 2]
        length_ms = min(end_ms, over_ms) - max(start_ms, begin_ms)
        if length_ms > 0:
            for path in paths:
                self._offsets[path] -= share * length_ms

    def _paths(self, leaf: str) -> list[str]:
        """Return the nodes with a quota that a job of the leaf counts for."""
        return [path for path in path_up(leaf) if path in self._quotas]

    def _share(self, demand: Resources) -> int:
        share = self._shares.rounded_dominant_share(self._axes.vector(demand))
        return round(share * _WHOLE)


def leaves_out_of_quota(leaves: Iterable[str], used_up: Mapping[str, QuotaUse]) -> frozenset[str]:
    """Return those of the leaves whose jobs wait for the next week."""
    if not any(each.waits for each in used_up.values()):
        return frozenset()
    return frozenset([leaf for leaf in leaves if waits_for_week(leaf, used_up) is not None])


def waits_for_week(leaf: str, used_up: Mapping[str, QuotaUse]) -> QuotaUse | None:
    found = (used_up[path] for path in path_up(leaf) if path in used_up)
    return next((each for each in found if each.waits), None)


def quotas_of(shares: FairShare) -> Mapping[str, WeekQuota]:
    return {path: rule.quota for path, rule in shares.rules.items() if rule.quota is not None}


def _ms(at_s: float) -> int:
    return round(at_s * 1000)
