"""Failures that the compiled program puts on record: step NUL errno NUL text.

They become errors of Python, and so sentences (`failures.py`), when the launcher reads the record.
"""

from __future__ import annotations

import errno
import os

from drfd.launcher.attempt_files import Record
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.runner import identity, inheritance
from drfd.launcher.runner.failures import (
    DIED,
    MAX_TEXT,
    ExecFailed,
    SpaceFailed,
    StepFailed,
    describe,
    describe_in_job,
    unreadable,
)
from drfd.launcher.runner.shortage import failure
from drfd.launcher.system import private_tmp

#: Why a job with a limit of its output does not start: a limit that cannot hold is none.
_UNSEEN = (
    "--output-max cannot be kept, because drfd may not see the size of the output files; write "
    "them to another file system, or leave the limit out"
)
_HUNG = "entering its directory and opening its output files"
_NO_TERMINAL = "the terminal that waited for this job is gone"
#: Largest number of an error of the kernel's.
_MOST_ERRNO = 4095


def failure_of(record: Record, created: Record) -> Record:
    """Return why an attempt's program could not be run, in words, by the record of it and the first
    one of its attempt."""
    report = bytes.fromhex(record["report"])
    return of_root(report) if record["by_root"] else of_job(report, created)


def of_root(report: bytes) -> Record:
    """Return the failure of a report that comes from drfd's own code for certain."""
    try:
        step, cause, what = _parts(report)
    except ValueError:
        return failure(DIED, None)
    error: BaseException = cause
    match step:
        case "cgroup" | "limit":
            cause.filename = what
            # Without an error of the kernel's it is a file that has not the line that was wanted.
            why = f": {cause.strerror}" if cause.errno else ""
            error = LimitFailed("; ".join(what.splitlines()) + why)
        case "plan":
            error = unreadable("its plan is of another version")
        case "keyring":
            error = inheritance.keyring_failure(cause)
        case "unseen":
            return failure(f"{_UNSEEN} ({cause.strerror})", None)
        case "hung":
            return failure(f"{_HUNG} took longer than {what} s", None)
    return describe(_caused(error, cause))


def of_job(report: bytes, created: Record) -> Record:
    """Return the failure of a report that the user may have written."""
    try:
        step, cause, what = _parts(report)
        error = _error(step, cause, what, created)
    except (ValueError, LookupError):
        return failure(DIED, None)
    record = describe_in_job(_caused(error, cause))
    return record | {"text": record["text"][:MAX_TEXT]}


def _error(step: str, cause: OSError, what: str, created: Record) -> BaseException:
    hint = "" if created.get("space") is None else private_tmp.hint(what)
    user = created.get("user") or "its user"
    match step:
        case "setting":
            return cause
        case "space":
            return SpaceFailed(f"it could not be given a /tmp of its own: {cause.strerror}")
        case "regained":
            return identity.Denied(identity.REGAINED)
        case "keyring":
            return inheritance.keyring_failure(cause)
        case "payload":
            return unreadable(what)
        case "directory":
            return StepFailed(f"{user} cannot enter {what}: {cause.strerror}{hint}")
        case "output":
            return StepFailed(f"{user} cannot write the output file {what}: {cause.strerror}")
        case "pipe":
            return StepFailed(f"{user} cannot write the output file {what}: nobody reads this pipe")
        case "not own":
            return StepFailed(
                f"the output file {what} is there already, and is not an ordinary file of the "
                "user's own: remove it, or name another one with -o"
            )
        case "attach":
            is_late = isinstance(cause, TimeoutError)
            why = "timed out" if is_late else f"[Errno {cause.errno}] {cause.strerror}"
            return StepFailed(f"{_NO_TERMINAL} ({why})")
        case "another":
            return StepFailed("another user listens where its terminal waited, which is gone")
        case "too few":
            return StepFailed(_NO_TERMINAL)
        case "terminal":
            return StepFailed(f"its terminal cannot be taken: {cause.strerror}")
        case "program":
            return ExecFailed(f"{_why_no_exec(what, cause)}{hint}")
        case "script" if cause.errno == errno.ENOENT:
            return ExecFailed(
                f"the script {what} names an interpreter in its first line that is not there"
            )
        case "script":
            return ExecFailed(_why_no_exec(f"the script {what}", cause))
    raise LookupError(step)


def _why_no_exec(what: str, error: OSError) -> str:
    if error.errno == errno.ENOENT and "/" not in what:
        return f"there is no command {what} in the job's PATH"
    if error.errno == errno.ENOENT:
        return f"there is no program {what}, or its interpreter is missing"
    if error.errno == errno.ENOEXEC:
        return f"{what} is not a program: a script needs a first line such as #!/bin/sh"
    return f"cannot run {what}: {error.strerror}"


def _parts(report: bytes) -> tuple[str, OSError, str]:
    """Return the step, the kernel's error and the text. Raises ValueError."""
    step, digits, what = report.split(b"\0", 2)
    number = int(digits)
    if not 0 <= number <= _MOST_ERRNO:
        raise ValueError(number)
    cause = OSError(number, os.strerror(number))
    return step.decode(), cause, what.decode(errors="surrogateescape")


def _caused(error: BaseException, cause: OSError) -> BaseException:
    if error is not cause and cause.errno:
        error.__cause__ = cause
    return error
