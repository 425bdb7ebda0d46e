"""What both launchers do of what `drfd.launcher.attempt` says: here, or as each of them can."""

from __future__ import annotations

import selectors
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from drfd.launcher import protocol
from drfd.launcher.attempt import Attempt, AttemptAction, AttemptEvent, AttemptState
from drfd.launcher.attempt_files import Key, Records
from drfd.launcher.port import Port
from drfd.launcher.protocol import (
    Assignment,
    ControlOrder,
    Order,
    RemoveFilesOrder,
    SignalOrder,
)
from drfd.launcher.runner.shortage import failure
from drfd.launcher.system import process

_Each = TypeVar("_Each", bound=Attempt)

#: Answer to a launch under a number that an attempt of another job has.
_TAKEN = "another job's attempt has its number here, from another journal perhaps"
#: States in which an order to launch it says whose it is.
_WITHOUT_OWNER = AttemptState.UNKNOWN, AttemptState.WAITING, AttemptState.REMOVING


class _Timed(Protocol):
    def pause_s(self) -> float | None:
        """Return the seconds until it has something to do, or None if it has not."""


class Performer(ABC, Generic[_Each]):
    port: Port
    #: Readable when the process that started this launcher is gone; None if systemd started it.
    keep_fd: int | None

    def __post_init__(self) -> None:
        #: All attempts but those that are UNKNOWN, and the number of those that are WAITING.
        self._attempts: dict[Key, _Each] = {}
        self._waiting = 0
        self._selector = selectors.DefaultSelector()
        self._running = True
        self._actions: dict[AttemptAction, Callable[[_Each], None]] = {
            AttemptAction.ADMIT: self._admit,
            AttemptAction.START: self._start,
            AttemptAction.DROP: self._drop,
            AttemptAction.CANCEL: self._cancel,
            AttemptAction.TERMINATE: self._terminate,
            AttemptAction.SIGNAL: self._signal_later,
            AttemptAction.HUSH: self._hush,
            AttemptAction.PURSUE: self._pursue,
            AttemptAction.REPORT_MISSING: partial(self._tell, "missing"),
            AttemptAction.REPORT_FROZEN: partial(self._tell, "frozen"),
            AttemptAction.REPORT_REMOVED: self._report_removed,
            AttemptAction.UNLINK: self._unlink,
        }

    @abstractmethod
    def _new(self, key: Key) -> _Each:
        """Return one of which nothing is known."""

    @abstractmethod
    def _read(self, attempt: _Each) -> Records | None:
        """Return what its file says."""

    @abstractmethod
    def _admit(self, attempt: _Each) -> None: ...

    @abstractmethod
    def _start(self, attempt: _Each) -> None: ...

    @abstractmethod
    def _pursue(self, attempt: _Each) -> None: ...

    @abstractmethod
    def _report(self, attempt: _Each, records: Records | None = None) -> None: ...

    @abstractmethod
    def _clear(self, attempt: _Each, records: Records | None) -> None: ...

    @abstractmethod
    def _unlink(self, attempt: _Each) -> None: ...

    def _report_removed(self, attempt: _Each) -> None:
        self._tell("removed", attempt)

    def _happen(self, attempt: _Each, event: AttemptEvent, records: Records | None = None) -> None:
        """Have an event change the state of an attempt, and do what follows. `records` is what its
        file says, if that is known."""
        before = attempt.state
        actions = attempt.handle(event)
        if attempt.state is not before:
            attempt.begin()
            self._waiting += attempt.state is AttemptState.WAITING
            self._waiting -= before is AttemptState.WAITING
            if attempt.state is AttemptState.UNKNOWN:
                self._attempts.pop(attempt.key, None)
            else:
                self._attempts[attempt.key] = attempt
        for action in actions:
            if action is AttemptAction.REPORT:
                self._report(attempt, records)
            elif action is AttemptAction.CLEAR:
                self._clear(attempt, records)
            else:
                self._actions[action](attempt)

    def _attempt(self, key: Key) -> _Each:
        return self._attempts.get(key) or self._new(key)

    def _tell(self, kind: str, attempt: _Each, **facts: object) -> None:
        self.port.send(protocol.attempt_report(kind, attempt.key, **facts))

    def _run(self, timed: Sequence[_Timed], turn: Callable[[], None]) -> None:
        """Run the loop until SIGTERM, or until `keep_fd` is readable. Each turn comes after what
        has happened, or when one of `timed` has something to do."""
        process.watch_for_end(self._selector, self.keep_fd, self._quit)
        while self._running:
            pauses = (pause_s for each in timed if (pause_s := each.pause_s()) is not None)
            for chosen, _ in self._selector.select(min(pauses, default=None)):
                # An earlier handler of this round may have closed the descriptor.
                if self._selector.get_map().get(chosen.fd) is chosen:
                    chosen.data()
            turn()
            self.port.flush()

    def _quit(self) -> None:
        self._running = False

    # -- orders -----------------------------------------------------------------------------

    def _order(self, order: Order) -> None:
        """Carry out an order that is about attempts alone, and launches none."""
        match order:
            case SignalOrder():
                # However many attempts are named that nobody knows, nothing is kept of them.
                if attempt := self._attempts.get(order.key):
                    attempt.signals = order.count, order.signals
                    self._signal_later(attempt)
            case RemoveFilesOrder(attempts):
                for key in attempts:
                    self._happen(self._attempt(key), AttemptEvent.REMOVE_FILE)
            case ControlOrder():
                self._happen(self._attempt(order.key), AttemptEvent(order.do))

    def _launch(self, assignment: Assignment) -> None:
        attempt = self._attempt(assignment.order.key)
        if attempt.state not in _WITHOUT_OWNER:
            records = self._read(attempt)
            if records is not None and not records.owner.may_be(assignment.order.owner):
                # The other job's end, usage and signals must never be taken for this job's.
                self._tell("launch_failed", attempt, **failure(_TAKEN, None))
                assignment.close()
                return
        self._put(attempt, assignment)
        self._happen(attempt, AttemptEvent.LAUNCH)

    def _put(self, attempt: _Each, assignment: Assignment | None) -> None:
        """Have this be the order to launch an attempt, or none."""
        if attempt.pending is not None and attempt.pending is not assignment:
            attempt.pending.close()
        attempt.pending = assignment

    def _drop(self, attempt: _Each) -> None:
        if attempt.pending is not None and not attempt.pending.order.is_notice:
            self._put(attempt, None)

    def _cancel(self, attempt: _Each) -> None:
        before = attempt.pending
        self._drop(attempt)
        if attempt.pending is not before:
            self._tell("missing", attempt)

    def _terminate(self, attempt: _Each) -> None:
        attempt.terminates = True
        self._signal_later(attempt)

    def _signal_later(self, attempt: _Each) -> None:
        if attempt.signals is not None or attempt.terminates:
            self._pursue(attempt)

    def _hush(self, attempt: _Each) -> None:
        """Forget what is to be sent. To send a signal thaws a job: the controller sends those that
        were forgotten again when it is thawed."""
        attempt.signals, attempt.terminates = None, False
