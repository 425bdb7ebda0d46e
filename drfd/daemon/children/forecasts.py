"""Forecasts of start times, made in child processes on the ledger of the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NotRequired

from drfd.common.errors import DrfdError
from drfd.core.decisions.dependencies import may_start
from drfd.core.decisions.stimuli import SubmitAsked
from drfd.core.explain.advice import changed_options
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.explain.reasons import explain_wait, unknown_start
from drfd.core.model.job import Job
from drfd.core.scheduling.release_times import Certainty, StartForecast
from drfd.core.scheduling.waits import OUTSIDE, Wait
from drfd.daemon.children.children import Children, Work, WorkKind
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.views import reason_view
from drfd.protocol.replies import CodeText, DryRunReply

#: Seconds of processor time that one question may cost, and seconds that its answer is waited for.
MAX_CPU_S, PATIENCE_S = 30, 90.0
_TOO_LONG: CodeText = {
    "code": "forecast-too-long",
    "text": f"the estimate takes more than {MAX_CPU_S} s of processor time",
}
#: Least seconds between two forecasts for those who watch, and how many times as long as one has
#: taken there is none.
_EVERY_S, _PART = 5.0, 20
#: The most jobs that one of these forecasts is for.
_MOST = 1000


@dataclass(frozen=True, slots=True)
class StartQuestion:
    """The question when a waiting job will start and, with `smaller`, with which smaller demand it
    could start now."""

    job_id: int
    smaller: bool


@dataclass(frozen=True, slots=True)
class TrialQuestion:
    """The question when a submission would start. `names` are the labels of its dependencies."""

    asked: SubmitAsked
    names: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class StartsQuestion:
    """The question when several waiting jobs will start."""

    job_ids: Collection[int]


Question = StartQuestion | TrialQuestion | StartsQuestion


class ForecastReply(DryRunReply):
    """The answer to a question, of which only a `TrialQuestion` has a reason."""

    #: Options for `drf submit` with which the job would start now.
    smaller: NotRequired[list[str]]
    #: The jobs of a `StartsQuestion`, by their ids, whose starts are known so far.
    starts: NotRequired[list[tuple[int, StartForecast]]]


class Forecasts:
    """Asks two children at a time, so that a long question does not delay all others. The callers
    ask one question at a time for each user, so no user occupies both, and a question waits for at
    most one of each other user."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        kind = WorkKind(
            *("the estimate", "no-forecaster", "forecast-failed", "forecast-busy"),
            nice=10,
            cpu_s=MAX_CPU_S,
        )
        self.children = Children(kind, patience_s=PATIENCE_S)

    async def ask(self, question: Callable[[], Question]) -> ForecastReply:
        """Ask the question that is made when its turn has come, and return the answer, or as much
        of it as was found within `MAX_CPU_S`. Raises Refused if a submission would be refused, and
        Unavailable or HostError if there is no answer."""

        def prepare() -> Work:
            asked, present = question(), self._engine.forecast
            return lambda: answers(asked, present)

        reply: ForecastReply = await self.children.ask(prepare, ForecastReply)
        return reply


class WatchedStarts:
    """The starts of the waiting jobs that somebody watches. One forecast answers for all, and the
    next one is made some seconds later, if they are watched still."""

    def __init__(self, forecasts: Forecasts, mono: Callable[[], float]) -> None:
        self._forecasts = forecasts
        self._mono = mono
        #: Jobs that were looked at since the latest forecast began.
        self._asked: set[int] = set()
        self._known: Mapping[int, StartForecast] = {}
        self._due_s = 0.0
        self.asking: asyncio.Task[None] | None = None

    def of(self, job: Job) -> StartForecast | None:
        """Return what the latest forecast says of the job, which the next one will answer for."""
        if len(self._asked) < _MOST:
            self._asked.add(job.id)
        return self._known.get(job.id)

    def renew(self) -> None:
        """Begin with the next forecast if it is due."""
        if self._asked and self.asking is None and self._mono() >= self._due_s:
            self.asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        began_s = self._mono()
        try:
            reply = await self._forecasts.ask(self._question)
            self._known = dict(reply.get("starts", ()))
        except DrfdError:
            self._known = {}
        finally:
            self.asking = None
            ended_s = self._mono()
            self._due_s = max(began_s + _EVERY_S, ended_s + _PART * (ended_s - began_s))

    def _question(self) -> StartsQuestion:
        asked, self._asked = self._asked, set()
        return StartsQuestion(asked)


def answers(question: Question, present: Forecast) -> Iterator[ForecastReply]:
    """Yield what is known so far, more each time; `present` is run ahead. Raises Refused as a
    submission does."""
    yield {"expected_start_at": None, "reason": None, "no_estimate": _TOO_LONG}
    future = present
    if isinstance(question, StartsQuestion):
        found = [present.ledger.jobs.get(job_id) for job_id in question.job_ids]
        wanted = [job.id for job in found if job is not None and may_start(present.ledger, job)]
        starts: list[tuple[int, StartForecast]] = []
        for each in future.expected_starts(wanted):
            starts.append(each)
            if not len(starts) & (len(starts) - 1):  # seldom, because each has all before it
                yield {**_start(None, None), "starts": starts}
        yield {**_start(None, None), "starts": starts}
        return
    if isinstance(question, StartQuestion):
        if question.smaller:
            # The present state is needed for these, too.
            future = present.copy()
        waiting = future.ledger.jobs.get(question.job_id)
        # The job may have ended since the question was asked.
        start_s, certainty = (None, None) if waiting is None else future.expected_start(waiting.id)
        found_start = _start(start_s, certainty, unknown=_outside(future, certainty))
        yield found_start
        if waiting is not None and question.smaller:
            smaller = smaller_demand(present, waiting)
            options = [] if smaller is None else changed_options(waiting.spec, smaller)
            yield {**found_start, "smaller": options}
        return
    job = future.add(question.asked)
    plan = future.pass_now()
    if job.id in plan.admitted:
        yield _start(future.now.at_s, Certainty.LIMITS)
        return

    def reason_of(waiting: Job) -> Wait | None:
        names = question.names
        return explain_wait(
            waiting,
            future.ledger,
            plan,
            future.rules,
            name_of=lambda on: names.get(on, str(on)),
        )

    reason = reason_of(job)
    # Before the ledger is run ahead.
    unknown = None if reason is None else unknown_start(reason, future.ledger, reason_of)
    shown = reason_view(reason)
    yield {"expected_start_at": None, "reason": shown, "no_estimate": _TOO_LONG}
    start_s, certainty = future.expected_start(job.id)
    is_unknown = reason is not None and certainty is Certainty.UNKNOWN
    unknown = (unknown or _outside(future, certainty)) if is_unknown else None
    yield _start(start_s, certainty, reason=shown, unknown=unknown)


def _start(
    start_s: float | None,
    certainty: Certainty | None,
    *,
    reason: CodeText | None = None,
    unknown: str | None = None,
) -> ForecastReply:
    reply: ForecastReply = {"expected_start_at": start_s, "reason": reason}
    if certainty is not None:
        reply["expected_start_certainty"] = certainty.value
    if unknown is not None:
        reply["expected_start_unknown"] = unknown
    return reply


def _outside(future: Forecast, certainty: Certainty | None) -> str | None:
    """Return why the start that was asked for is unknown, if it is for the external load."""
    is_so = certainty is Certainty.UNKNOWN and future.is_unknown_for_external
    return OUTSIDE if is_so else None
