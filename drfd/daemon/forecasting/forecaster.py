"""The program of a forecaster, a process that estimates start times on a copy of the ledger.

The controller starts it with `python -m` and keeps the copy up to date over the socket on
descriptor 0. The process holds no file, no key and no other socket, so its failure only makes an
answer late. It ends when the controller does.
"""

from __future__ import annotations

import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator

import msgspec

from drfd.common.errors import DrfdError, Refused, Unavailable, short_of_memory
from drfd.core.explain.advice import changed_options
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.explain.reasons import explain_wait, unknown_start
from drfd.core.explain.waits import OUTSIDE, Wait
from drfd.core.fairness.rules import Rules
from drfd.core.model.job import Job
from drfd.core.scheduling.release_times import Certainty
from drfd.daemon.error_message import ErrorMessage
from drfd.daemon.forecasting.messages import (
    MOST_CPU_S,
    ForecastReply,
    ForecastRequest,
    LedgerChanges,
    LedgerCopy,
    Message,
    Question,
    StartQuestion,
)
from drfd.linux import own_process

#: Niceness: the controller and the users' commands have precedence.
_NICE = 10
#: The part (1/n) of the machine's memory that a forecaster may use, and the least limit in bytes.
_MEMORY_PART, _LEAST_MEMORY_BYTES = 10, 384 << 20
#: Seconds after which SIGPROF is repeated, in case the first had no effect.
_AGAIN_S = 0.5


class TooLong(BaseException):
    """The processor time of a question is used up. It is no Exception, so that no handler on the
    way catches it."""


def main() -> None:
    most_bytes = own_process.part_of_memory(_MEMORY_PART, _LEAST_MEMORY_BYTES)
    own_process.become_helper(nice=_NICE, most_bytes=most_bytes)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    channel = socket.socket(fileno=0)
    ledger, rules = LedgerCopy(), None
    with channel.makefile("rb") as messages:
        while True:
            try:
                message: Message = pickle.load(messages)  # noqa: S301 (the controller is trusted)
            except (EOFError, ConnectionError):
                return
            match message:
                case LedgerChanges():
                    ledger.take(message)
                case Rules():
                    rules = message
                case ForecastRequest():
                    assert rules is not None
                    answer = _answered(message, ledger, rules)
                    channel.sendall(msgspec.json.encode(answer) + b"\n")


def _stop(number: int, frame: object) -> None:
    raise TooLong


def _answered(asked: ForecastRequest, ledger: LedgerCopy, rules: Rules) -> ForecastReply:
    def build() -> Forecast:
        return asked.circumstances.future(ledger.jobs, ledger.arrays, rules)

    try:
        return answer(asked.question, build)
    except Refused as error:
        return ForecastReply(refused=ErrorMessage.of(error))
    except MemoryError:
        return ForecastReply(missing=ErrorMessage.of(short_of_memory()))
    except Exception:
        return ForecastReply(bug=traceback.format_exc()[-2000:])


def answer(question: Question, build: Callable[[], Forecast]) -> ForecastReply:
    """Return the answer, or as much of it as was found before SIGPROF. The kernel sends it when the
    time is used up, and the controller when nobody waits for the answer any longer. `build` returns
    a new forecast from the present ledger. Raises Refused as a submission does."""
    found = ForecastReply(missing=_too_long())
    try:
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S, _AGAIN_S)
        for found in _answers(question, build):  # noqa: B007 (the last of them is the answer)
            pass
    except TooLong:
        pass
    finally:
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return found


def _answers(question: Question, build: Callable[[], Forecast]) -> Iterator[ForecastReply]:
    """Yield what is known so far, more each time."""
    future = build()
    if isinstance(question, StartQuestion):
        waiting = future.ledger.find(question.job_id)
        # The job may have ended since the question was asked.
        start_s, certainty = (None, None) if waiting is None else future.expected_start(waiting.id)
        unknown = _outside(future, certainty)
        yield ForecastReply(start_s=start_s, certainty=certainty, unknown=unknown)
        if waiting is not None and question.smaller:
            smaller = smaller_demand(build, waiting)
            options = [] if smaller is None else changed_options(waiting.spec, smaller)
            yield ForecastReply(
                start_s=start_s, certainty=certainty, unknown=unknown, smaller=options
            )
        return
    job = future.add(question.asked)
    plan = future.pass_now()
    if job.id in plan.admitted:
        yield ForecastReply(start_s=future.now.at_s, certainty=Certainty.LIMITS)
        return
    used_up = future.used_up()

    def reason_of(waiting: Job) -> Wait | None:
        names = question.names
        return explain_wait(
            waiting,
            future.ledger,
            plan,
            future.rules,
            name_of=lambda on: names.get(on, str(on)),
            used_up=used_up,
        )

    reason = reason_of(job)
    # Before the ledger is run ahead.
    unknown = None if reason is None else unknown_start(reason, future.ledger, reason_of)
    shown = None if reason is None else (reason.code, reason.text())
    yield ForecastReply(reason=shown, missing=_too_long())
    start_s, certainty = future.expected_start(job.id)
    is_unknown = reason is not None and certainty is Certainty.UNKNOWN
    unknown = (unknown or _outside(future, certainty)) if is_unknown else None
    yield ForecastReply(start_s=start_s, certainty=certainty, reason=shown, unknown=unknown)


def _outside(future: Forecast, certainty: Certainty | None) -> str | None:
    """Return why the start that was asked for is unknown, if it is for the external load."""
    is_so = certainty is Certainty.UNKNOWN and future.is_unknown_for_external
    return OUTSIDE if is_so else None


def _too_long() -> ErrorMessage:
    text = f"the estimate takes more than {MOST_CPU_S:.0f} s of processor time"
    error: DrfdError = Unavailable("forecast-too-long", text)
    return ErrorMessage.of(error)


if __name__ == "__main__":
    main()
