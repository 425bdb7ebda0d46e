"""The calendar of limits: what nodes of the fair-share tree may hold at which times, for some weeks
ahead. The core knows no other calendar.

A limit by hour holds in place of a node's own, and what runs when it begins runs on. A limit of the
root is a maintenance window: nothing may be held in it. So a job may start only if it would end, by
its time limit, before the next window begins, which bounds the lengths of jobs (`longest_s`). A job
without a limit counts as one of `NO_LIMIT_S`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from drfd.common.units import AXES, show_need
from drfd.core.model.job import ROOT, Job, show_path
from drfd.core.model.resources import kind_of

#: The length of a job without a time limit, in seconds.
NO_LIMIT_S = 21 * 86400
#: Amounts by the name of an axis. An axis that is left out has no limit.
Limit = Mapping[str, int]
#: The limit of the root in a maintenance window.
NOTHING: Limit = dict.fromkeys(AXES, 0)
_ANYTHING: Limit = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSpan:
    """A time in which a node has this limit in place of its own. "read" and "write" are for each
    disk that has no amount of its own."""

    path: str = ROOT
    #: Begin and end in Unix time.
    start_s: float
    end_s: float
    limit: Limit = field(default_factory=lambda: NOTHING)
    #: What users read of a maintenance window: its name, and what it is for.
    name: str = ""
    reason: str = ""
    #: Whether another window of this name comes each week, beyond those that are known.
    is_weekly: bool = False


def length_s(job: Job) -> int:
    """Return for how many seconds a waiting job runs at most, at least 1. A suspended job without a
    limit counts as short: it resumes when no window is open."""
    limit_s = job.spec.time_limit_s
    if job.suspended_at is None or job.started_at is None:
        return NO_LIMIT_S if limit_s is None else limit_s
    if limit_s is None:
        return 1
    ran_s = job.suspended_at - job.started_at - job.suspended_s
    return max(1, ceil(limit_s - ran_s))


@dataclass(frozen=True, slots=True)
class LimitSteps:
    """The limits of one node: `limits[n]` from `times[n]` on. The first holds before, too."""

    times: tuple[float, ...]
    limits: tuple[Limit, ...]

    def at(self, at_s: float) -> Limit:
        return self.limits[max(0, bisect_right(self.times, at_s) - 1)]

    def after(self, at_s: float) -> list[tuple[float, Limit]]:
        """Return the later limits, each with its begin."""
        first = bisect_right(self.times, at_s)
        return list(zip(self.times[first:], self.limits[first:], strict=True))

    def most(self, at_s: float) -> Limit:
        """Return the largest known amount of each axis that has a limit from then on at all
        times."""
        limits = [self.at(at_s), *(limit for _, limit in self.after(at_s))]
        common = set[str](limits[0]).intersection(*limits)
        return {name: max(limit[name] for limit in limits) for name in common}

    def rises_s(self, axis: str, at_s: float) -> float | None:
        """Return when more of the axis may be held than at `at_s`, or None if that is not known."""
        least = self.at(at_s).get(axis, inf)
        return next((s for s, limit in self.after(at_s) if limit.get(axis, inf) > least), None)

    def text(self, path: str, now_s: float, show_clock: Callable[[float], str]) -> str:
        """Return the limit of the node now, until when it holds, and the next one."""
        text = f"limit of {show_path(path)}: {_amounts(self.at(now_s))}"
        for at_s, limit in self.after(now_s)[:1]:
            text += f" until {show_clock(at_s)}, then {_amounts(limit)}"
        return text


def _amounts(limit: Limit) -> str:
    parts = [show_need(axis, most) for axis, most in limit.items()]
    return ", ".join(parts) if parts else "no limit"


@dataclass(frozen=True, slots=True)
class Calendar:
    #: The limits of the nodes whose limits depend on the hour, by path.
    steps: Mapping[str, LimitSteps] = field(default_factory=dict)
    #: The maintenance windows, in order of their begin.
    windows: tuple[LimitSpan, ...] = ()
    #: The Unix time from which on the limits by hour are not known.
    until_s: float = inf
    #: All times at which a limit changes, in order.
    times: tuple[float, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        times = {at_s for steps in self.steps.values() for at_s in steps.times[1:]}
        times.update(at_s for each in self.windows for at_s in (each.start_s, each.end_s))
        object.__setattr__(self, "times", tuple(sorted(times)))

    def __bool__(self) -> bool:
        return bool(self.steps or self.windows)

    def at(self, at_s: float) -> dict[str, Limit]:
        """Return the limit of each of the nodes at a time, and that of the root if there are
        windows."""
        found = {path: steps.at(at_s) for path, steps in self.steps.items()}
        if self.windows:
            found[ROOT] = _ANYTHING if self.longest_s(at_s) else NOTHING
        return found

    def next_s(self, at_s: float) -> float:
        """Return when one of the limits changes next, or infinity."""
        place = bisect_right(self.times, at_s)
        return self.times[place] if place < len(self.times) else inf

    def longest_s(self, now_s: float) -> float:
        """Return the length, in seconds, of the longest job that may start now: infinity if no
        window is known, 0 if one is open."""
        coming = next((each for each in self.windows if each.end_s > now_s), None)
        return inf if coming is None else max(0.0, coming.start_s - now_s)

    def ahead(self, length_s: float, now_s: float) -> LimitSpan | None:
        """Return the first window that a job of this length would run into if it started now, or
        None."""
        coming = (each for each in self.windows if each.end_s > now_s)
        return next((each for each in coming if now_s + length_s > each.start_s), None)

    def next_windows(self) -> list[LimitSpan]:
        """Return the first window of each name."""
        found: dict[str, LimitSpan] = {}
        for each in self.windows:
            found.setdefault(each.name, each)
        return [*found.values()]

    def covers(self, paths: Iterable[str]) -> bool:
        """Return whether the limit of any of these nodes depends on the hour."""
        return any(path in self.steps for path in paths)

    def first_start_s(
        self,
        from_s: float,
        length_s: float | None = None,
        paths: Iterable[str] = (),
        demand: Limit = _ANYTHING,
    ) -> float | None:
        """Return the first known time, from `from_s` on, at which a job of this length may start,
        and the limits by hour of all of these nodes are at least the demand; windows count for
        nothing if the length is None. Return None if there is no such time: the job is longer than
        every gap between weekly windows, or larger than a limit at all hours."""
        steps = [self.steps[path] for path in paths if path in self.steps]
        ends = [each.end_s for each in self.windows] if length_s is not None else []
        # After the last known window of a week's pattern, the next one comes.
        is_endless = any(each.is_weekly for each in self.windows)
        last_s = max(ends) if ends and is_endless else inf
        times = {*ends, *(at_s for each in steps for at_s, _ in each.after(from_s))}
        for at_s in (from_s, *sorted(at_s for at_s in times if from_s < at_s < last_s)):
            is_free = length_s is None or self.ahead(length_s, at_s) is None
            if is_free and all(_lets(each.at(at_s), demand) for each in steps):
                return at_s
        return None


def make_calendar(
    spans: Iterable[LimitSpan],
    own: Mapping[str, Limit],
    axes: Sequence[str],
    *,
    from_s: float,
    until_s: float,
) -> Calendar:
    """Return the calendar of these limits between two times for which all of them are given; `own`
    are the limits that the nodes have otherwise."""
    by_path = defaultdict[str, list[LimitSpan]](list)
    for each in spans:
        by_path[each.path].append(each)
    windows = sorted(by_path.pop(ROOT, ()), key=lambda each: (each.start_s, each.end_s))
    steps = {
        path: _steps(own[path], there, axes, from_s, until_s) for path, there in by_path.items()
    }
    return Calendar(steps, tuple(windows), until_s if steps else inf)


def _steps(
    own: Limit, spans: Sequence[LimitSpan], axes: Sequence[str], from_s: float, until_s: float
) -> LimitSteps:
    """Return the limits of a node. Where spans overlap, the least amount of each axis counts."""
    ends = {each.start_s for each in spans} | {each.end_s for each in spans}
    times = [from_s, *sorted(at_s for at_s in ends if from_s < at_s < until_s)]
    steps: list[tuple[float, Limit]] = []
    for at_s in times:
        open_now = [each.limit for each in spans if each.start_s <= at_s < each.end_s]
        limit = {}
        for axis in axes:
            amounts = [amount for each in open_now if (amount := _of(each, axis)) is not None]
            most = min(amounts) if amounts else _of(own, axis)
            if most is not None:
                limit[axis] = most
        if not steps or limit != steps[-1][1]:
            steps.append((at_s, limit))
    return LimitSteps(tuple(at_s for at_s, _ in steps), tuple(limit for _, limit in steps))


def _of(limit: Limit, axis: str) -> int | None:
    return limit.get(axis, limit.get(kind_of(axis)))


def _lets(limit: Limit, demand: Mapping[str, int]) -> bool:
    """Return whether the demand is within the limit. A demand of zero is within any."""
    return not any(amount and amount > limit.get(axis, inf) for axis, amount in demand.items())
