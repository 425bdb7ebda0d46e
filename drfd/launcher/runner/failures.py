"""Why a job could not be started: sentences for its submitter, and records of the attempt file."""

from __future__ import annotations

from dataclasses import replace

from drfd.launcher.attempt_files import Record
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.runner import identity
from drfd.launcher.runner.shortage import (
    DESCRIPTORS,
    DIRECTORY,
    JOB,
    MACHINE,
    MEMORY,
    PROCESSES,
    QUOTA,
    SPACE,
    USER,
    Shortage,
    failure,
    machine_text,
    shortage_of,
)

#: Largest length of the text of a failure, in characters.
MAX_TEXT = 4096
#: The text of a failure without a report, or with one that drfd has not written.
DIED = "the job's process died before exec"


class StepFailed(Exception):
    """A step could not be done; the text is a sentence for the submitter."""


def unreadable(why: object) -> StepFailed:
    return StepFailed(f"what it is to run cannot be read: {why}")


class SpaceFailed(StepFailed):
    """The private temporary space could not be entered."""


class ExecFailed(StepFailed):
    """The program itself could not be executed."""


def describe(error: BaseException) -> Record:
    """Return the failure record of an error in a runner before it released the job."""
    short = shortage_of(error, MACHINE)
    text = explain(error) if short is None else machine_text(short, error)
    return failure(text, short)


def describe_in_job(error: BaseException) -> Record:
    """Return the failure record of an error in the job's own process. A shortage here is attributed
    to the user or the job: no report of a user's process holds up the jobs of others."""
    if isinstance(error, identity.DirectoryFailed):
        return failure(str(error), Shortage(USER, DIRECTORY, error.name))
    whose = JOB
    if isinstance(error, ExecFailed) or not isinstance(error, StepFailed):
        whose = USER
    short = shortage_of(error, whose)
    is_other = isinstance(error, StepFailed) and not isinstance(error, ExecFailed)
    if short is None or (is_other and short.resource == PROCESSES):
        # EAGAIN from opening a file is no shortage of processes.
        return failure(explain(error), None)
    if short.resource == MEMORY:
        # The job's cgroup is charged for this process.
        short = replace(short, whose=JOB)
    # Every user can see why a job waits, so the sentence names none of the job's files.
    if isinstance(error, ExecFailed):
        what = "its program could not be begun"
    elif isinstance(error, SpaceFailed):
        what = "it could not be given a /tmp of its own"
    elif isinstance(error, StepFailed):
        what = "its directory and output files could not be opened"
    else:
        what = "it could not become its user's"
    return failure(f"{what}: {_IN_WORDS[short.resource]} ({short.errno})", short)


#: Shortages of a job's own process, in words.
_IN_WORDS = {
    MEMORY: "no memory was to be had within its limit",
    PROCESSES: "its user has as many processes as allowed",
    DESCRIPTORS: "no more files can be opened",
    SPACE: "the disk is full",
    QUOTA: "its user's quota is used up",
}


def explain(error: BaseException) -> str:
    """Return why a job could not be started, in a sentence for its submitter."""
    match error:
        case StepFailed() | identity.Denied() | identity.DirectoryFailed():
            return str(error)
        case LimitFailed():
            return f"it could not be set up: {error}"
        case OSError():
            return f"it could not be set up: {error.strerror}"
        case MemoryError():
            return "it could not be set up: out of memory"
        case _:
            return f"it could not be set up: {error!r}"
