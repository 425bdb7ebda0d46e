"""What has happened to an attempt: from its admission to its end, and what is done to it meanwhile.

A part of `core.events`, under whose name these are known; what is said there holds here.
"""

from __future__ import annotations

from dataclasses import dataclass

from drfd.core.job import Outcome, Usage
from drfd.core.resources import Instances


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """May start: its demand is booked from now on, these things are its own, and it is launched."""

    job_id: int
    at_s: float
    attempt: int
    instances: Instances = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    job_id: int
    at_s: float
    attempt: int
    mono_s: float
    cgroup: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed:
    """The job's program never ran: a limit could not be applied, no such directory, …"""

    job_id: int
    at_s: float
    attempt: int
    #: What failed, in a sentence for the submitter.
    text: str
    #: LAUNCH_FAILED, or what stopped the job while it was starting.
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody or some limit wants it stopped; recorded before the first signal."""

    job_id: int
    at_s: float
    mono_s: float
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptRequested:
    """It is stopped so that another can start, and will run again; recorded before the signal."""

    job_id: int
    at_s: float
    mono_s: float
    #: The starving job that gets what this one gives back.
    for_job: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalated:
    """The grace time is over: SIGKILL from now on."""

    job_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The job's first process is gone; its cgroup may not be empty yet."""

    job_id: int
    at_s: float
    attempt: int
    #: Both None: the exit status cannot be known.
    exit_code: int | None
    signal: int | None
    #: None: only this attempt is over, the job goes back to the queue.
    outcome: Outcome | None
    text: str
    usage: Usage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """No process and no cgroup of the attempt is left: its resources are free."""

    job_id: int
    at_s: float
    attempt: int
    #: What became of the command that tells its owner; None: there was none.
    notice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """Nothing is left of the attempt, and the job waits once more, in its old place."""

    job_id: int
    at_s: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequested:
    """It is to be frozen; it holds everything until it is."""

    job_id: int
    at_s: float
    #: Who may let it go on; None: drfd, as soon as there is room again.
    by: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """All its processes are frozen: it keeps its memory and gives back the rest."""

    job_id: int
    at_s: float
    attempt: int
    mono_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """It goes on as soon as what it has given back is free."""

    job_id: int
    at_s: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Holds everything again, and runs on."""

    job_id: int
    at_s: float
    mono_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """Nothing is left of the attempt, whose outcome is one to try again after."""

    job_id: int
    at_s: float
    attempt: int
    #: When it may start again, in Unix time.
    not_before_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Its time limit is near: it is sent the signal that it asked for."""

    job_id: int
    at_s: float
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRequested:
    """Somebody has it sent a signal; recorded before."""

    job_id: int
    at_s: float
    signal: int
    by: str
