"""What is due by the clock: maintenance windows, and limits by hour, for some weeks ahead. The core
knows no calendar.

A job may start only if it would end, by its time limit, before the next window begins; so that
window bounds the lengths of jobs that may start (`longest_s`). A job without a limit counts as one
of `NO_LIMIT_S`. Limits by hour bound nodes of the fair-share tree, each from a Unix time on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from drfd.common.units import show_need
from drfd.core.model.job import Job, show_path
from drfd.core.model.resources import kind_of

#: The length of a job without a time limit, in seconds.
NO_LIMIT_S = 21 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    name: str
    #: Begin and end in Unix time.
    start_s: float
    end_s: float
    reason: str = ""
    #: Whether another one of this name comes each week, beyond those that are known.
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


def longest_s(windows: Sequence[Window], now_s: float) -> float:
    """Return the length, in seconds, of the longest job that may start now: infinity if no window
    is known, 0 if one is open. `windows` are in order of their begin."""
    coming = next((each for each in windows if each.end_s > now_s), None)
    return inf if coming is None else max(0.0, coming.start_s - now_s)


def blocking(windows: Sequence[Window], length_s: float, now_s: float) -> Window | None:
    """Return the first window that a job of this length would run into if it started now, or
    None."""
    return next(
        (each for each in windows if each.end_s > now_s and now_s + length_s > each.start_s), None
    )


def first_start_s(windows: Sequence[Window], length_s: float, from_s: float) -> float | None:
    """Return the first time, from `from_s` on, at which a job of this length may start; None if
    it is longer than every gap between weekly windows."""
    at_s = from_s
    while (found := blocking(windows, length_s, at_s)) is not None:
        at_s = found.end_s
    is_beyond = at_s > from_s and at_s >= max(each.end_s for each in windows)
    # After the last known window of a week's pattern, the next one comes.
    return None if is_beyond and any(each.is_weekly for each in windows) else at_s


def next_end_s(windows: Sequence[Window], now_s: float) -> float | None:
    """Return when the next of the windows ends that are not over, or None."""
    return min((each.end_s for each in windows if each.end_s > now_s), default=None)


# -- limits by hour --------------------------------------------------------------------------------

#: Amounts by the name of an axis. An axis that is left out has no limit.
Limit = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSpan:
    """A time in which a node has this limit in place of its own. "read" and "write" are for each
    disk that has no amount of its own."""

    start_s: float
    end_s: float
    limit: Limit


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


def limit_steps(
    own: Limit,
    spans: Iterable[LimitSpan],
    axes: Sequence[str],
    *,
    from_s: float,
    until_s: float,
) -> LimitSteps:
    """Return the limits of a node with a limit of its `own`, between two times for which all
    `spans` are given. Where spans overlap, the least amount of each axis counts."""
    spans = tuple(spans)
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


@dataclass(frozen=True, slots=True)
class LimitHours:
    """The limits of all nodes whose limits depend on the hour, by path."""

    steps: Mapping[str, LimitSteps] = field(default_factory=dict)
    #: The Unix time from which on the limits are not known.
    until_s: float = inf
    #: All times at which a limit changes, in order.
    times: tuple[float, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        times = {at_s for steps in self.steps.values() for at_s in steps.times[1:]}
        object.__setattr__(self, "times", tuple(sorted(times)))

    def __bool__(self) -> bool:
        return bool(self.steps)

    def at(self, at_s: float) -> dict[str, Limit]:
        """Return the limit of each of the nodes at a time."""
        return {path: steps.at(at_s) for path, steps in self.steps.items()}

    def next_s(self, at_s: float) -> float:
        """Return when one of the limits changes next, or infinity."""
        place = bisect_right(self.times, at_s)
        return self.times[place] if place < len(self.times) else inf

    def covers(self, paths: Iterable[str]) -> bool:
        """Return whether the limit of any of these nodes depends on the hour."""
        return any(path in self.steps for path in paths)

    def first_fit_s(
        self, paths: Iterable[str], demand: Mapping[str, int], from_s: float
    ) -> float | None:
        """Return the first known time, from `from_s` on, at which the limits of all of these nodes
        are at least the demand; None if there is none. Nodes whose limit does not depend on the
        hour are not looked at."""
        found = [self.steps[path] for path in paths if path in self.steps]
        times = {from_s, *(at_s for steps in found for at_s, _ in steps.after(from_s))}
        return next(
            (
                at_s
                for at_s in sorted(times)
                if all(lets(steps.at(at_s), demand) for steps in found)
            ),
            None,
        )


NO_HOURS = LimitHours()


def lets(limit: Limit, demand: Mapping[str, int]) -> bool:
    """Return whether the demand is within the limit. A demand of zero is within any."""
    return not any(amount and amount > limit.get(axis, inf) for axis, amount in demand.items())
