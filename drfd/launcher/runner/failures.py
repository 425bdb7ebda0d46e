"""Why a job could not be started: sentences for its submitter, and records of the attempt file."""

from __future__ import annotations

import errno
from dataclasses import replace

from drfd.launcher.attempt_files import Record
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.runner import identity
from drfd.launcher.runner.shortage import (
    DESCRIPTORS,
    JOB,
    MACHINE,
    MEMORY,
    PROCESSES,
    QUOTA,
    SPACE,
    USER,
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


class SpaceFailed(StepFailed):
    """The private temporary space could not be entered."""


class ExecFailed(StepFailed):
    """The program itself could not be executed."""


# -- records --------------------------------------------------------------------------------------


def describe(error: BaseException) -> Record:
    """Return the failure record of an error in a runner before it released the job."""
    short = shortage_of(error, MACHINE)
    text = explain(error) if short is None else machine_text(short, error)
    return failure(text, short)


def describe_in_job(error: BaseException) -> Record:
    """Return the failure record of an error in the job's own process. A shortage here is attributed
    to the user or the job: no report of a user's process holds up the jobs of others."""
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


# -- sentences ------------------------------------------------------------------------------------


def unreadable(why: object) -> StepFailed:
    return StepFailed(f"what it is to run cannot be read: {why}")


def no_space(error: OSError) -> SpaceFailed:
    return SpaceFailed(f"it could not be given a /tmp of its own: {error.strerror}")


def cannot_enter(user: str, path: str, error: OSError, hint: str) -> StepFailed:
    return StepFailed(f"{user} cannot enter {path}: {error.strerror}{hint}")


def cannot_write(user: str, path: str, error: OSError, *, is_pipe: bool) -> StepFailed:
    why = "nobody reads this pipe" if is_pipe else error.strerror
    return StepFailed(f"{user} cannot write the output file {path}: {why}")


def not_own(path: str) -> StepFailed:
    """Return the failure of a job at whose output file's name something of another user's is, or a
    link."""
    return StepFailed(
        f"the output file {path} is there already, and is not an ordinary file of the user's own: "
        "remove it, or name another one with -o"
    )


def terminal_gone(error: OSError | None) -> StepFailed:
    """Return the failure of an attached job. Without an error its terminal has sent too little."""
    text = "the terminal that waited for this job is gone"
    if error is None:
        return StepFailed(text)
    if isinstance(error, TimeoutError):
        return StepFailed(f"{text} (timed out)")
    # The kernel's words alone: the path may be one of /proc that the user has never seen.
    why = error if error.errno is None else f"[Errno {error.errno}] {error.strerror}"
    return StepFailed(f"{text} ({why})")


def terminal_of_another() -> StepFailed:
    """Return the failure of an attached job where another user listens at its client's socket."""
    return StepFailed("another user listens where its terminal waited, which is gone")


def no_terminal(error: OSError) -> StepFailed:
    return StepFailed(f"its terminal cannot be taken: {error.strerror}")


def cannot_run(path: str, error: OSError, *, is_script: bool, hint: str = "") -> ExecFailed:
    return ExecFailed(f"{_why_no_exec(path, error, is_script=is_script)}{hint}")


def _why_no_exec(path: str, error: OSError, *, is_script: bool) -> str:
    if is_script:
        path = f"the script {path}"
    if error.errno == errno.ENOENT and is_script:
        return f"{path} names an interpreter in its first line that is not there"
    if error.errno == errno.ENOENT and "/" not in path:
        return f"there is no command {path} in the job's PATH"
    if error.errno == errno.ENOENT:
        return f"there is no program {path}, or its interpreter is missing"
    if error.errno == errno.ENOEXEC:
        return f"{path} is not a program: a script needs a first line such as #!/bin/sh"
    return f"cannot run {path}: {error.strerror}"
