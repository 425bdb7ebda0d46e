"""Failures that the compiled program puts on record: step NUL errno NUL text.

They become errors of Python, and so sentences (`failures.py`), when the launcher reads the record.
"""

from __future__ import annotations

import os

from drfd.launcher.attempt_files import Record
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.runner import failures, identity, inheritance
from drfd.launcher.runner.failures import DIED, MAX_TEXT, describe, describe_in_job
from drfd.launcher.runner.shortage import failure
from drfd.launcher.system import private_tmp

#: Why a job with a limit of its output does not start: a limit that cannot hold is none.
_UNSEEN = (
    "--output-max cannot be kept, because drfd may not see the size of the output files; write "
    "them to another file system, or leave the limit out"
)
_HUNG = "entering its directory and opening its output files"
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
            error = failures.unreadable("its plan is of another version")
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
            return failures.no_space(cause)
        case "regained":
            return identity.Denied(identity.REGAINED)
        case "keyring":
            return inheritance.keyring_failure(cause)
        case "payload":
            return failures.unreadable(what)
        case "directory":
            return failures.cannot_enter(user, what, cause, hint)
        case "output" | "pipe":
            return failures.cannot_write(user, what, cause, is_pipe=step == "pipe")
        case "not own":
            return failures.not_own(what)
        case "attach":
            return failures.terminal_gone(cause)
        case "another":
            return failures.terminal_of_another()
        case "too few":
            return failures.terminal_gone(None)
        case "terminal":
            return failures.no_terminal(cause)
        case "program":
            return failures.cannot_run(what, cause, is_script=False, hint=hint)
        case "script":
            return failures.cannot_run(what, cause, is_script=True)
    raise LookupError(step)


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
