"""How the use of each running job went, and that of each user's jobs together, since it began.

Fed with the meter's samples. What is kept of a job's latest attempt goes into the journal with its
end, in few points; now and then also what there is of running ones, so that a restart loses little.
That of users begins anew with the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from drfd.core.curve import Curve
from drfd.core.job import Job, JobState
from drfd.core.limits import Sample
from drfd.core.series import Point, Series, thinned, total
from drfd.core.stimuli import Now
from drfd.daemon.meter import Meter
from drfd.journal.journal import Journal

#: So many points are kept of an ended job, and of a running one over a restart.
ENDED_POINTS, RUNNING_POINTS = 32, 128
#: Fewer say nothing: of very short jobs, which may be many, nothing is kept.
_LEAST_POINTS = 3
#: Of users, points grow no longer than this, which are about two days all together.
_USERS_LONGEST_MS = 15 * 60_000
#: A user without a running job is forgotten after this.
_FORGET_MS = 3600_000
#: What there is of a running job is saved as often, of some at a time.
_SAVE_MS = 300_000
_SAVED_AT_ONCE = 8


@dataclass(slots=True)
class _Kept:
    attempt: int
    series: Series
    #: Monotonic time.
    saved_ms: int


@dataclass
class Curves:
    meter: Meter
    journal: Journal
    clock: Callable[[], Now]
    _jobs: dict[int, _Kept] = field(default_factory=dict)
    _users: dict[str, Series] = field(default_factory=dict)
    #: When, in monotonic time, a user last had a job.
    _busy_ms: dict[str, int] = field(default_factory=dict)

    def note(self, job: Job) -> None:
        """The meter has a new sample of the job."""
        pair = self.meter.latest(job)
        if pair is None:
            return
        series = self._series(job)
        point = _point(*pair)
        last = series.last
        if last is None or point.end_ms > last.end_ms:
            series.add(point)

    def note_users(self, jobs: Iterable[Job]) -> None:
        """All of `jobs`, which are those that run, have been noted."""
        now_ms = round(self.clock().mono_s * 1000)
        parts: dict[str, list[Point]] = {}
        for job in jobs:
            last = self.last(job)
            if last is not None:
                parts.setdefault(job.spec.user, []).append(last)
        for user in parts:
            self._busy_ms[user] = now_ms
            self._users.setdefault(user, Series(longest_ms=_USERS_LONGEST_MS))
        for user, series in list(self._users.items()):
            if now_ms - self._busy_ms[user] > _FORGET_MS:
                del self._users[user], self._busy_ms[user]
                continue
            before = series.last
            span_ms = 0 if before is None else now_ms - before.end_ms
            if before is None or span_ms > 0:
                idle = Point(now_ms, span_ms, 0, span_ms, 0, 1, 0, span_ms, 0, span_ms)
                series.add(_over(total(parts[user], now_ms), span_ms) if user in parts else idle)

    def last(self, job: Job) -> Point | None:
        """The latest reading of its present attempt."""
        kept = self._kept(job)
        return None if kept is None else kept.series.last

    def job_changed(self, job: Job) -> None:
        if job.state is JobState.ENDED:
            self._jobs.pop(job.id, None)

    def of_job(self, job: Job) -> Curve | None:
        """Of its latest attempt; None: nothing is known of it."""
        kept = self._kept(job)
        return self._saved(job) if kept is None else self._curve(kept.attempt, kept.series)

    def of_user(self, user: str) -> Curve | None:
        series = self._users.get(user)
        return None if series is None else self._curve(0, series)

    def to_keep(self, job: Job) -> Curve | None:
        """What the journal is to keep of a job that has ended; None: no more than it has."""
        kept = self._kept(job)
        if kept is None or len(kept.series) < _LEAST_POINTS:
            return None
        return self._curve(kept.attempt, thinned(kept.series, ENDED_POINTS))

    def save(self, *, all_of_them: bool = False) -> None:
        """What there is of running jobs: of some that it is time for, or all. Raises HostError."""
        now_ms = round(self.clock().mono_s * 1000)
        due = [
            (job_id, kept)
            for job_id, kept in self._jobs.items()
            if all_of_them or now_ms - kept.saved_ms >= _SAVE_MS
        ]
        for job_id, kept in due if all_of_them else due[:_SAVED_AT_ONCE]:
            kept.saved_ms = now_ms
            points = thinned(kept.series, RUNNING_POINTS)
            self.journal.put_curve(job_id, self._curve(kept.attempt, points))
        self.journal.commit()

    def _kept(self, job: Job) -> _Kept | None:
        kept = self._jobs.get(job.id)
        return kept if kept is not None and kept.attempt == job.attempt else None

    def _saved(self, job: Job) -> Curve | None:
        curve = self.journal.curve(job.id)
        return curve if curve is not None and curve.attempt == job.attempt else None

    def _series(self, job: Job) -> Series:
        kept = self._kept(job)
        if kept is None:
            curve, ahead_ms = self._saved(job), self._ahead_ms()
            points = () if curve is None else curve.points()
            series = Series(each._replace(end_ms=each.end_ms - ahead_ms) for each in points)
            kept = _Kept(job.attempt, series, round(self.clock().mono_s * 1000))
            self._jobs[job.id] = kept
        return kept.series

    def _curve(self, attempt: int, points: Iterable[Point]) -> Curve:
        ahead_ms = self._ahead_ms()
        moved = (each._replace(end_ms=each.end_ms + ahead_ms) for each in points)
        return Curve.of(attempt, moved)

    def _ahead_ms(self) -> int:
        """From the monotonic clock, which nobody sets, to Unix time as it is told now."""
        now = self.clock()
        return round((now.at_s - now.mono_s) * 1000)


def _point(before: Sample | None, after: Sample) -> Point:
    """What was used between two samples; of the first, only its memory is known."""
    end_ms = round(after.mono_s * 1000)
    span_ms = 0 if before is None else max(0, end_ms - round(before.mono_s * 1000))
    memory = after.memory_bytes

    def more(name: str, unit: int) -> tuple[int, int]:
        earlier, later = getattr(before, name, None), getattr(after, name)
        if earlier is None or later is None or not span_ms:
            return 0, 0
        # Processes that are gone take their figures along where there are no cgroups.
        return max(0, round((later - earlier) * unit)), span_ms

    return Point(
        end_ms, span_ms, *more("cpu_s", 1_000_000), memory or 0, 0 if memory is None else 1,
        *more("read_bytes", 1), *more("written_bytes", 1),
    )  # fmt: skip


def _over(point: Point, span_ms: int) -> Point:
    """The same, said to have lasted so long: since the reading before."""
    return point._replace(span_ms=span_ms)
