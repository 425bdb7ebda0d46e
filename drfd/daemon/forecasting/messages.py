"""Messages between the controller and a forecaster.

The controller sends pickles, which the forecaster may trust. The forecaster answers in JSON of one
form, `ForecastReply`, because the controller trusts no other process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from drfd.common.indices import Ids
from drfd.core.decisions.stimuli import SubmitAsked
from drfd.core.explain.forecast import Circumstances
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import FailedTask, LiveArray
from drfd.core.model.job import LONG_BYTES, Job, Words
from drfd.core.scheduling.release_times import Certainty
from drfd.daemon.error_message import ErrorMessage
from drfd.journal.records import Records, encode

#: Seconds of processor time that one question may cost the forecaster.
MOST_CPU_S = 30.0


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


Question = StartQuestion | TrialQuestion


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    question: Question
    circumstances: Circumstances


def changed_by(job: Job) -> Iterator[int]:
    """Yield the ids whose records in `LedgerChanges` an event on this job or array has changed."""
    yield job.id
    if job.array_id is not None:
        # The array's record says which tasks have no records of their own.
        yield job.array_id


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """The present records of changed jobs and arrays, and the ids of those that have ended."""

    jobs: list[bytes]
    arrays: list[tuple[bytes, tuple[Ids, ...], FailedTask | None]]
    gone: list[int]

    @classmethod
    def of(cls, ids: Iterable[int], ledger: Ledger) -> LedgerChanges:
        """Return the present state of the jobs and arrays with these ids."""
        made = cls([], [], [])
        for each in ids:
            job, array_state = ledger.jobs.get(each), ledger.arrays.get(each)
            if job is not None:
                made.jobs.append(encode(job))
            elif array_state is not None:
                made.arrays.append(
                    (encode(array_state.array), array_state.ids(), array_state.failed)
                )
            else:
                made.gone.append(each)
        return made


Message = LedgerChanges | Rules | ForecastRequest


class ForecastReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a question."""

    #: In Unix time. None if no start is in sight, or if it is not known (see `missing`).
    start_s: float | None = None
    #: On what it rests; None if there is no answer (see `missing`).
    certainty: Certainty | None = None
    #: Code and text of the reason why the job of a `TrialQuestion` would not start now.
    reason: tuple[str, str] | None = None
    #: Why its start is not known, if not for the jobs before it.
    unknown: str | None = None
    #: Options for `drf submit` with which the job would start now.
    smaller: list[str] = []
    #: Why `start_s` is not known.
    missing: ErrorMessage | None = None
    #: Why a submission would be refused.
    refused: ErrorMessage | None = None
    #: The end of the traceback of a bug.
    bug: str = ""


class LedgerCopy:
    """The forecaster's copy of the jobs and arrays in the ledger."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._arrays: dict[int, LiveArray] = {}
        # Long command lines are stored apart, and forecasts do not need them.
        self._records = Records(lambda number: _LONG_WORDS)

    def take(self, changes: LedgerChanges) -> None:
        for data in changes.jobs:
            job = self._records.job(data)
            self._jobs[job.id] = job
        for data, ids, bad in changes.arrays:
            array = self._records.array(data)
            self._arrays[array.id] = array, ids, bad
        for each in changes.gone:
            self._jobs.pop(each, None)
            self._arrays.pop(each, None)

    @property
    def jobs(self) -> Iterable[Job]:
        return self._jobs.values()

    @property
    def arrays(self) -> list[LiveArray]:
        """The arrays in the order of their submission."""
        return [self._arrays[each] for each in sorted(self._arrays)]


_LONG_WORDS = Words(b"\0" * (LONG_BYTES + 1))
