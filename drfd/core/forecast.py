"""When a waiting job would start: a copy of the books, driven ahead on a virtual clock.

The passes are the daemon's own; running jobs end when estimated, and nobody submits anything more.
So it is as good as the estimates are, and no promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isfinite

from drfd.core import events as ev
from drfd.core.decide import admit, decide, schedule
from drfd.core.dependencies import begin, settle
from drfd.core.estimate import RunTimes
from drfd.core.external import ExternalLoad
from drfd.core.job import Job, JobState, Outcome
from drfd.core.ledger import Ledger
from drfd.core.outlook import look_out
from drfd.core.plan import Plan
from drfd.core.reservation import Reservation
from drfd.core.rules import Rules
from drfd.core.stimuli import Now, SubmitAsked

#: So many passes are looked ahead at most.
_MOST_PASSES = 300
#: In place of a job's id: the end of the load from outside.
_EXTERNAL = 0


@dataclass
class Future:
    """Takes its ledger over and moves it ahead."""

    ledger: Ledger
    rules: Rules
    run_times: RunTimes
    spent: Mapping[str, float]
    before: tuple[Reservation, ...]
    #: Both clocks go ahead together.
    now: Now
    #: Until it ends.
    external: ExternalLoad | None = None

    def add(self, asked: SubmitAsked) -> Job:
        """Suppose that this is submitted now; the job, or the first task. Raises Refused as a
        submission does."""
        job_id = self.ledger.next_id
        for event in decide(self.ledger, asked, self.rules):
            self.ledger.apply(event)
        return self.ledger.job(job_id + bool(asked.spans))

    def start_s(self, wanted: int) -> float | None:
        """The Unix time at which the waiting job `wanted` starts or goes on; None: not within
        sight."""
        ends = [
            (self.run_times.end_s(job, self.now.at_s), job.id)
            for job in self.ledger.holders()
            # What is suspended must go on first, and then it has an end.
            if job.state is not JobState.SUSPENDED
        ]
        if self.external is not None and isfinite(self.external.until_s):
            ends.append((self.external.until_s, _EXTERNAL))
        heapify(ends)
        for _ in range(_MOST_PASSES):
            for job_id in self.pass_now().admitted:
                if job_id == wanted:
                    return self.now.at_s
                started = self.ledger.jobs[job_id]
                heappush(ends, (self.run_times.end_s(started, self.now.at_s), job_id))
            times = [ends[0][0]] if ends else []
            times += [float(self.ledger.begins.first[0])] if self.ledger.begins else []
            if not times:
                return None
            self._wait_until(max(self.now.at_s, min(times)))
            # What ends at one moment ends together: one pass for all of it.
            while ends and ends[0][0] <= self.now.at_s:
                self._end(heappop(ends)[1])
            for event in begin(self.ledger, self.now.at_s):
                self.ledger.apply(event)
        return None

    def pass_now(self) -> Plan:
        """One pass, and the launches that it decides."""
        outlook = look_out(
            self.ledger,
            patience=self.rules.patience,
            run_times=self.run_times,
            now_s=self.now.at_s,
            before=self.before,
            external=self.external,
        )
        plan = schedule(self.ledger, self.rules, self.spent, outlook)
        self.before = plan.reservations
        for job_id in plan.admitted:
            event = admit(self.ledger, job_id, self.now)
            self.ledger.apply(event)
            if isinstance(event, ev.Admitted):
                self.ledger.apply(
                    ev.Launched(
                        job_id=job_id,
                        at_s=self.now.at_s,
                        attempt=event.attempt,
                        mono_s=self.now.mono_s,
                        cgroup=None,
                    )
                )
        return plan

    def _end(self, job_id: int) -> None:
        if job_id == _EXTERNAL:
            self.external = None
            return
        for event in _ending(self.ledger.jobs[job_id], self.now.at_s):
            for each in (event, *settle(self.ledger, [event])):
                self.ledger.apply(each)

    def _wait_until(self, at_s: float) -> None:
        self.now = Now(at_s, self.now.mono_s + at_s - self.now.at_s)


def _ending(job: Job, at_s: float) -> Iterator[ev.Event]:
    if job.state is not JobState.CLEANING:
        yield ev.Exited(
            job_id=job.id,
            at_s=at_s,
            attempt=job.attempt,
            exit_code=0,
            signal=None,
            outcome=Outcome.COMPLETED,
            text="",
            usage=None,
        )
    yield ev.Cleaned(job_id=job.id, at_s=at_s, attempt=job.attempt)
