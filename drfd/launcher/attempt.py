"""The life of an attempt: its states, and what each event makes of it.

Nothing here looks at a clock, a file or a process. An order or an observation is an event, of which
`Attempt.handle` makes a state and the actions that follow; a launcher performs them, and returns
what comes of them as events (`drfd.launcher.performer`). An order may be repeated, and come too
late: an event that the present state does not name changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drfd.launcher.attempt_files import Key
from drfd.launcher.protocol import Assignment


class AttemptState(StrEnum):
    #: Nothing of it is known; it begins and ends so.
    UNKNOWN = "unknown"
    #: It is to be launched once its user's account is known, or a list of Slurm's lacks it.
    #: Nothing of it exists.
    WAITING = "waiting"
    #: It has a file and a runner, or a job of Slurm's, and its program is not known to be released.
    STARTING = "starting"
    #: Its program has been released.
    RUNNING = "running"
    #: The same, and its processes are being frozen.
    FREEZING = "freezing"
    #: The same, and its processes are being thawed.
    THAWING = "thawing"
    #: Its processes are being killed until its runner, or its job of Slurm's, is gone.
    KILLING = "killing"
    #: Its runner is gone, or could not be started, before its program was released.
    VOID = "void"
    #: Its runner is gone, and its program may have run.
    ENDED = "ended"
    #: The same, and only its file is left.
    BARE = "bare"
    #: All that is left of it is being killed and removed.
    REMOVING = "removing"


class AttemptEvent(StrEnum):
    #: Orders.
    LAUNCH = "launch"
    TERMINATE = "terminate"
    KILL = "kill"
    FREEZE = "freeze"
    THAW = "thaw"
    REMOVE = "remove"
    REMOVE_FILE = "remove-files"
    #: It may be started, and its user's account is known; or it may not be, and that was reported.
    READY = "ready"
    REFUSED = "refused"
    #: It was not started, because something of it cannot be had.
    FAILED = "failed"
    #: Its runner has released its program.
    RELEASED = "released"
    #: All its processes stand still; all run again.
    FROZEN = "frozen"
    THAWED = "thawed"
    #: Slurm has a job of it, which an earlier launcher has submitted.
    FOUND = "found"
    #: Its runner is gone, and its program may have run; or it was never released.
    ENDED = "ended"
    LOST = "lost"
    #: Its cgroup is gone, and in the states VOID and REMOVING its file, too.
    CLEARED = "cleared"
    #: The same, and there is an order to launch it anew.
    REPLACED = "replaced"


class AttemptAction(StrEnum):
    #: Look whether its launch is allowed, and ask for its user's account.
    ADMIT = "admit"
    #: Make its file and its cgroup, and start its runner.
    START = "start"
    #: Close the order to launch it, which is not needed; the same, and report it missing.
    DROP = "drop"
    CANCEL = "cancel"
    #: Send it SIGTERM, after what was ordered before, as soon as it is released: no sooner would
    #: its program take notice of that.
    TERMINATE = "terminate"
    SIGNAL = "signal"
    #: Forget signals that were ordered and not sent.
    HUSH = "hush"
    #: Begin at once with what its state says is being done, and go on until it is done.
    PURSUE = "pursue"
    #: Report what its file says; that it is missing; that it is frozen; that nothing of it is left.
    REPORT = "report"
    REPORT_MISSING = "report missing"
    REPORT_FROZEN = "report frozen"
    REPORT_REMOVED = "report removed"
    #: Remove its cgroup if nothing is in it; its file.
    CLEAR = "clear"
    UNLINK = "unlink"


_S, _E, _A = AttemptState, AttemptEvent, AttemptAction
_Row = dict[AttemptEvent, tuple[AttemptState, tuple[AttemptAction, ...]]]
_TO_LIVING = (_E.TERMINATE, _E.KILL, _E.FREEZE, _E.THAW)


def _removal(*first: AttemptAction) -> _Row:
    return dict.fromkeys((_E.REMOVE, _E.REMOVE_FILE), (_S.REMOVING, (*first, _A.PURSUE)))


def _alive(state: AttemptState) -> _Row:
    """Return what holds in `state` as in others in which it has a runner."""
    return {
        _E.LAUNCH: (state, (_A.DROP, _A.REPORT)),
        _E.TERMINATE: (state, (_A.TERMINATE,)),
        _E.KILL: (_S.KILLING, (_A.PURSUE,)),
        _E.FREEZE: (_S.FREEZING, (_A.HUSH, _A.PURSUE)),
        _E.THAW: (_S.THAWING, (_A.PURSUE,)),
        _E.RELEASED: (state, (_A.REPORT, _A.SIGNAL)),
        _E.ENDED: (_S.ENDED, (_A.CLEAR, _A.REPORT)),
        _E.LOST: (_S.VOID, (_A.REPORT,)),
        **_removal(),
    }


#: State → event → the next state, and what is to be done.
TRANSITIONS: dict[AttemptState, _Row] = {
    _S.UNKNOWN: {
        _E.LAUNCH: (_S.WAITING, (_A.ADMIT,)),
        **dict.fromkeys(_TO_LIVING, (_S.UNKNOWN, (_A.REPORT_MISSING,))),
        **_removal(),
    },
    _S.WAITING: {
        _E.LAUNCH: (_S.WAITING, (_A.ADMIT,)),
        _E.READY: (_S.STARTING, (_A.START,)),
        _E.FOUND: (_S.STARTING, (_A.DROP,)),
        _E.REFUSED: (_S.UNKNOWN, ()),
        **dict.fromkeys(_TO_LIVING, (_S.UNKNOWN, (_A.CANCEL,))),
        **_removal(_A.DROP),
    },
    _S.STARTING: {
        **_alive(_S.STARTING),
        _E.RELEASED: (_S.RUNNING, (_A.REPORT, _A.SIGNAL)),
        _E.FAILED: (_S.VOID, ()),
    },
    _S.RUNNING: _alive(_S.RUNNING),
    _S.FREEZING: {
        **_alive(_S.FREEZING),
        _E.TERMINATE: (_S.RUNNING, (_A.TERMINATE,)),
        _E.FROZEN: (_S.RUNNING, (_A.REPORT_FROZEN,)),
    },
    _S.THAWING: {
        **_alive(_S.THAWING),
        _E.THAWED: (_S.RUNNING, ()),
    },
    _S.KILLING: {
        **_alive(_S.KILLING),
        **dict.fromkeys((_E.TERMINATE, _E.FREEZE, _E.THAW), (_S.KILLING, ())),
    },
    _S.VOID: {
        _E.LAUNCH: (_S.REMOVING, (_A.PURSUE,)),
        **dict.fromkeys(_TO_LIVING, (_S.VOID, (_A.REPORT,))),
        _E.CLEARED: (_S.UNKNOWN, ()),
        **_removal(),
    },
    _S.ENDED: {
        _E.LAUNCH: (_S.ENDED, (_A.DROP, _A.REPORT)),
        _E.CLEARED: (_S.BARE, ()),
        **_removal(),
    },
    _S.BARE: {
        _E.LAUNCH: (_S.BARE, (_A.DROP, _A.REPORT)),
        **_removal(),
        _E.REMOVE_FILE: (_S.UNKNOWN, (_A.UNLINK,)),
    },
    _S.REMOVING: {
        _E.LAUNCH: (_S.REMOVING, (_A.PURSUE,)),
        # The notification of a job's end is started in its place.
        _E.READY: (_S.STARTING, (_A.START,)),
        _E.TERMINATE: (_S.REMOVING, (_A.CANCEL,)),
        _E.KILL: (_S.REMOVING, (_A.CANCEL,)),
        _E.RELEASED: (_S.REMOVING, (_A.REPORT,)),
        _E.ENDED: (_S.REMOVING, (_A.REPORT, _A.PURSUE)),
        _E.LOST: (_S.REMOVING, (_A.REPORT, _A.PURSUE)),
        _E.CLEARED: (_S.UNKNOWN, (_A.REPORT_REMOVED,)),
        _E.REPLACED: (_S.WAITING, (_A.ADMIT,)),
        **_removal(_A.DROP),
    },
}


@dataclass(slots=True, eq=False)
class Attempt:
    key: Key
    state: AttemptState = AttemptState.UNKNOWN
    #: The order to launch it, or to notify of its end, as long as that is to be done.
    pending: Assignment | None = None
    #: Signals that it is to have been sent: how many in all, and the last of them.
    signals: tuple[int, tuple[int, ...]] | None = None
    #: Whether it is to be sent SIGTERM.
    terminates: bool = False

    def handle(self, event: AttemptEvent) -> tuple[AttemptAction, ...]:
        """Take an event, and return what is to be done, in this order."""
        self.state, actions = TRANSITIONS[self.state].get(event, (self.state, ()))
        return actions

    def begin(self) -> None:
        """Begin with the tries at something new."""
