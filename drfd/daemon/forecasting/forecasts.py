"""Forecasts of start times: questions to forecaster processes, which the controller starts.

A forecast takes seconds of processor time; in a thread it would hold Python's global lock and delay
all requests. Here the loop only encodes the changes of the ledger since the last question, some
jobs at a time, and waits for the answer. A question starts a forecaster, which ends after a while
without questions. If it dies, it is replaced, and its question goes to the next one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec

from drfd.common.errors import DrfdError, Unavailable
from drfd.core.fairness.rules import Rules
from drfd.core.model.job import Job
from drfd.daemon.engine.engine import Engine
from drfd.daemon.forecasting.messages import (
    ForecastReply,
    ForecastRequest,
    LedgerChanges,
    Message,
    Question,
    changed_by,
)

log = logging.getLogger("drfd")

#: Makes a question from the ledger, when the turn of the question has come.
MakeQuestion = Callable[[], Question]

#: Seconds that a question waits for its answer.
PATIENCE_S = 90.0
#: The most forecaster processes at a time.
MOST_FORECASTERS = 2
#: Seconds without a question after which a forecaster is ended.
IDLE_S = 600.0
#: Seconds after which a forecaster without an answer is replaced.
_HANG_S = 120.0
#: Seconds after which SIGPROF is sent again to a forecaster for whose answer nobody waits.
AGAIN_S = 0.5
#: The first and the longest pause before a dead forecaster is replaced, in seconds. The pause
#: doubles each time until a forecaster has answered.
PAUSE_S, _MOST_PAUSE_S = 0.1, 5.0
#: The number of forecasters that die of one question before it fails.
_MOST_DEATHS = 5
#: Seconds between two log lines about forecasters that cannot be started.
_LOG_PAUSE_S = 60.0
#: Jobs encoded at a time, and the following pause as a multiple of the time that took.
_PART, _REST = 100, 4
#: Changed jobs that are sent without a pause, and the most rounds in which more are sent in parts.
_FEW, _ROUNDS = 100, 8
#: The longest answer, in bytes.
_LONGEST_ANSWER = 1 << 20


class Forecasts:
    """Asks at most two forecasters, so that a long question does not delay all others.

    The callers ask one question at a time for each user. So no user occupies both forecasters, and
    a question waits for at most one of each other user.
    """

    def __init__(self, engine: Engine, *, patience_s: float = PATIENCE_S) -> None:
        self._engine = engine
        engine.changes.listen(self._job_changed)
        self.patience_s = patience_s
        self._waiting: deque[tuple[MakeQuestion, asyncio.Future[ForecastReply]]] = deque()
        self._news = asyncio.Event()
        #: Tasks with one forecaster each, and the number of those without a question.
        self._workers: set[asyncio.Task[None]] = set()
        self._idle = 0
        self._forecasters: set[Forecaster] = set()
        #: When it was last logged that no process can be started.
        self._logged_mono_s = float("-inf")

    def _job_changed(self, job: Job) -> None:
        for each in self._forecasters:
            each.note(job)

    @property
    def pids(self) -> list[int]:
        """The process ids of the forecasters."""
        return sorted(each.pid for each in self._forecasters)

    async def ask(self, question: MakeQuestion) -> ForecastReply:
        """Ask a question about the present state and return the answer. Raises Refused if a
        submission would be refused, and Unavailable if there is no answer in time or no process."""
        answer: asyncio.Future[ForecastReply] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if not self._workers:
            # The loop may have changed since the last question.
            self._news = asyncio.Event()
        if self._idle < len(self._waiting) and len(self._workers) < MOST_FORECASTERS:
            self._workers.add(asyncio.create_task(self._work()))
        self._news.set()
        try:
            async with asyncio.timeout(self.patience_s):
                foreseen = await answer
        except TimeoutError:
            raise Unavailable(
                "forecast-busy",
                f"no estimate within {self.patience_s:.0f} s: too many questions at once",
                hint="try again in a moment",
            ) from None
        finally:
            answer.cancel()
        if foreseen.refused is not None:
            raise foreseen.refused.error()
        if foreseen.bug:
            log.error("event=bug in=forecaster\n%s", foreseen.bug)
            raise _failed()
        return foreseen

    async def close(self) -> None:
        """End the forecasters."""
        workers = [*self._workers]
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        """Answer questions with one forecaster until there has been none for a while."""
        forecaster, pause_s = None, PAUSE_S
        try:
            while await self._is_asked():
                question, answer = self._waiting.popleft()
                deaths = 0
                while not answer.done():
                    try:
                        if forecaster is None:
                            forecaster = await Forecaster.start(self._engine)
                            self._forecasters.add(forecaster)
                        foreseen = await forecaster.ask(question, answer)
                    except _NoProcess as error:
                        if self._forecasters:
                            # Another forecaster answers the question.
                            self._waiting.appendleft((question, answer))
                            return
                        self._log_failure(error)
                        _end(answer, error)
                    except DrfdError as error:
                        _end(answer, error)
                    except (OSError, EOFError, MemoryError, msgspec.DecodeError) as error:
                        log.warning("event=forecaster-gone error=%s", str(error) or "it has ended")
                        await self._dismiss(forecaster)
                        forecaster = None
                        deaths += 1
                        if deaths == _MOST_DEATHS:
                            # Each new forecaster must be sent all jobs.
                            _end(answer, _failed())
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, _MOST_PAUSE_S)
                    except Exception:
                        log.exception("event=bug in=forecasts")
                        _end(answer, _failed())
                        await self._dismiss(forecaster)
                        forecaster = None
                    else:
                        pause_s = PAUSE_S
                        if not answer.done():
                            answer.set_result(foreseen)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._workers.discard(task)
            await self._dismiss(forecaster)

    def _log_failure(self, error: DrfdError) -> None:
        if time.monotonic() - self._logged_mono_s >= _LOG_PAUSE_S:
            self._logged_mono_s = time.monotonic()
            log.warning("event=no-forecaster error=%s", error)

    async def _is_asked(self) -> bool:
        """Wait for a question, and return whether one has come."""
        self._idle += 1
        try:
            async with asyncio.timeout(IDLE_S):
                while not self._waiting:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self._idle -= 1
        return bool(self._waiting)

    async def _dismiss(self, forecaster: Forecaster | None) -> None:
        if forecaster is not None:
            self._forecasters.discard(forecaster)
            await forecaster.end()


def _end(answer: asyncio.Future[ForecastReply], error: DrfdError) -> None:
    if not answer.done():
        answer.set_exception(error)


def _failed() -> DrfdError:
    return Unavailable("forecast-failed", "the estimate has failed; drfd's log says how")


class _NoProcess(Unavailable):
    """A forecaster process cannot be started now."""


class Forecaster:
    """A forecaster process, and how much of the ledger it has been sent."""

    def __init__(
        self,
        engine: Engine,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._engine = engine
        self._process = process
        self._reader = reader
        self._writer = writer
        self._rules: Rules | None = None
        #: The answer that the process works on.
        self._answer: asyncio.Future[ForecastReply] | None = None
        #: Ids of the jobs and arrays whose changes have not been sent, in the order of changes.
        self._changed: dict[int, None] = dict.fromkeys(engine.ledger.jobs)
        self._changed.update(dict.fromkeys(engine.ledger.arrays))

    @classmethod
    async def start(cls, engine: Engine) -> Forecaster:
        """Start a forecaster. Raises _NoProcess if that is impossible now."""
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    process = subprocess.Popen(
                        [sys.executable, "-I", "-m", "drfd.daemon.forecasting.forecaster"],
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        cwd="/",
                        # Only the time zone matters.
                        env={name: os.environ[name] for name in ("TZ",) if name in os.environ},
                        start_new_session=True,
                    )
                except BaseException:
                    ours.close()
                    raise
        except (OSError, MemoryError) as error:
            number = error.errno if isinstance(error, OSError) else errno.ENOMEM
            raise _NoProcess(
                "no-forecaster",
                "no estimate: drfd cannot start the process that looks ahead "
                f"({os.strerror(number or errno.EIO)})",
                hint="everything else goes on; try again in a moment",
            ) from None
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LONGEST_ANSWER)
        return cls(engine, process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def note(self, job: Job) -> None:
        """Note that the job has changed, or the array that it represents."""
        self._changed.update(dict.fromkeys(changed_by(job)))

    async def ask(
        self, question: MakeQuestion, answer: asyncio.Future[ForecastReply]
    ) -> ForecastReply:
        """Send a question and return its answer. When `answer` is cancelled because nobody waits
        any more, the process stops and returns what it has found. Raises OSError or EOFError if the
        process is gone, and DecodeError if its answer is invalid; the process is useless then."""
        self._answer = answer
        answer.add_done_callback(self._stop_if_cancelled)
        try:
            async with asyncio.timeout(_HANG_S):
                await self._send_in_parts()
                if answer.done():
                    return ForecastReply()
                self._send_question(question)
                await self._writer.drain()
                line = await self._reader.readline()
        except TimeoutError:
            raise EOFError(f"no answer in {_HANG_S:.0f} s") from None
        except ValueError:
            raise EOFError("an answer without end") from None
        finally:
            # The future's callback comes later, when the process may work on another question.
            self._answer = None
        if not line.endswith(b"\n"):
            raise EOFError
        return msgspec.json.decode(line, type=ForecastReply)

    def _send_question(self, question: MakeQuestion) -> None:
        # There is no pause here: the question is about the ledger at one moment.
        self._send_changes([*self._changed])
        self._changed.clear()
        if self._rules is not self._engine.rules:
            self._rules = self._engine.rules
            self._send(self._rules)
        self._send(ForecastRequest(question(), self._engine.circumstances()))

    def _stop_if_cancelled(self, answer: asyncio.Future[ForecastReply]) -> None:
        if answer is self._answer and answer.cancelled():
            self._process.send_signal(signal.SIGPROF)
            # The process ignores the signal until it has read the question.
            asyncio.get_running_loop().call_later(AGAIN_S, self._stop_if_cancelled, answer)

    async def end(self) -> None:
        self._process.kill()
        self._writer.close()
        # Freeing hundreds of megabytes takes a while.
        await asyncio.to_thread(self._process.wait)

    async def _send_in_parts(self) -> None:
        """Send the changes, and those that come meanwhile, until only few are left."""
        for _ in range(_ROUNDS):
            if len(self._changed) <= _FEW:
                return
            # The length of each step does not depend on the number of changes.
            changed, self._changed = iter(self._changed), {}
            while ids := [*islice(changed, _PART)]:
                begin_s = time.perf_counter()
                self._send_changes(ids)
                taken_s = time.perf_counter() - begin_s
                await self._writer.drain()
                await asyncio.sleep(_REST * taken_s)

    def _send_changes(self, ids: list[int]) -> None:
        if ids:
            self._send(LedgerChanges.of(ids, self._engine.ledger))

    def _send(self, message: Message) -> None:
        self._writer.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
