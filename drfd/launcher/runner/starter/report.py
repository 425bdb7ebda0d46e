"""Failures that the compiled program reports: step NUL errno NUL text.

They become errors of Python, and so sentences (`failures.py`).
"""

from __future__ import annotations

import os

from drfd.launcher.attempt_files import Record
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.runner import failures, identity, inheritance
from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.failures import DIED, MAX_TEXT, describe, describe_in_job
from drfd.launcher.runner.shortage import failure
from drfd.launcher.system import private_tmp

#: Largest number of an error of the kernel's.
_MOST_ERRNO = 4095


def of_entry(report: bytes) -> Record:
    """Return the failure record of a report that comes from drfd's own code for certain."""
    try:
        step, cause, what = _parts(report)
    except ValueError:
        # An id that came too late.
        return failure(DIED, None)
    error: BaseException = cause
    if step == "cgroup":
        cause.filename = what
        error = LimitFailed(f"{what}: {cause.strerror}")
    elif step == "plan":
        error = failures.unreadable("its plan is of another version")
    return describe(_caused(error, cause))


def of_job(report: bytes, job: JobStart) -> Record:
    """Return the failure record of a report that the user may have written."""
    try:
        step, cause, what = _parts(report)
        error = _error(step, cause, what, job)
    except (ValueError, LookupError):
        return failure(DIED, None)
    record = describe_in_job(_caused(error, cause))
    return record | {"text": record["text"][:MAX_TEXT]}


def _error(step: str, cause: OSError, what: str, job: JobStart) -> BaseException:
    user, hint = job.user.pw_name, "" if job.place is None else private_tmp.hint(what)
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
