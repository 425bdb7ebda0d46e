"""Why a job could not be started: sentences for its submitter, and records of the attempt file.

What the compiled program puts on record, step NUL errno NUL text, is put into words when the
launcher reads it. A shortage of a job's own process is attributed to the user or the job: no report
of a user's process holds up the jobs of others.
"""

from __future__ import annotations

import errno
import os

from drfd.launcher.attempt_files import Record, Records
from drfd.launcher.confinement import cgroup_files
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.runner import identity, inheritance
from drfd.launcher.runner.shortage import (
    DESCRIPTORS,
    DIRECTORY,
    JOB,
    MEMORY,
    PROCESSES,
    QUOTA,
    RESOURCES,
    SPACE,
    Shortage,
    failure,
    machine_shortage,
    machine_text,
)
from drfd.launcher.runner.starter import plan
from drfd.launcher.system import private_tmp
from drfd.launcher.system.accounts import Denied, DirectoryFailed

#: Largest length of the text of a failure, in characters.
MAX_TEXT = 4096
#: The text of a failure without a report, or with one that drfd has not written.
DIED = "the job's process died before exec"
#: Why a job with a limit of its output does not start: a limit that cannot hold is none.
_UNSEEN = (
    "--output-max cannot be kept, because drfd may not see the size of the output files; write "
    "them to another file system, or leave the limit out"
)
_HUNG = "entering its directory and opening its output files"
_NO_SPACE = "it could not be given a /tmp of its own"
_OVERWRITTEN = (
    "drfd found its own memory overwritten, and began nothing: report this fault of drfd's"
)
_NO_TERMINAL = "the terminal that waited for this job is gone"
#: What a job's own process could not do. Every user can see why a job waits, so these sentences
#: name none of its files.
_BECOME, _BEGIN = "it could not become its user's", "its program could not be begun"
_OPEN = "its directory and output files could not be opened"
#: Step → what could not be done then; `_OPEN` for the other steps.
_UNDONE = {
    **dict.fromkeys(("setting", "regained", "keyring"), _BECOME),
    **dict.fromkeys(("program", "script"), _BEGIN),
    "space": _NO_SPACE,
}
#: Those for which EAGAIN is no shortage of processes, and for which the job alone waits.
_OF_FILES = (_OPEN, _NO_SPACE)
#: Shortages of a job's own process, in words.
_IN_WORDS = {
    MEMORY: "no memory was to be had within its limit",
    PROCESSES: "its user has as many processes as allowed",
    DESCRIPTORS: "no more files can be opened",
    SPACE: "the disk is full",
    QUOTA: "its user's quota is used up",
}
#: Largest number of an error of the kernel's.
_MOST_ERRNO = 4095


def failure_of(record: Record, created: Record) -> Record:
    """Return why an attempt's program could not be run, in words, by the record of it and the first
    one of its attempt."""
    report = bytes.fromhex(record["report"])
    return of_root(report) if record["by_root"] else of_job(report, created)


def notice_text(attempt: Records) -> str:
    """Return what became of a notification, nothing of which runs any more."""
    if attempt.launch_failed is not None:
        return f"failed: {failure_of(attempt.launch_failed, attempt.created)['text']}"
    if attempt.exited is None:
        return "not known: it was cut short"
    if "is_stopped" in attempt.exited:
        return f"failed: it was stopped after {plan.NOTICE_S:.0f} s"
    if attempt.exited["signal"] is not None:
        return f"failed: killed by signal {attempt.exited['signal']}"
    code = attempt.exited["exit_code"]
    return "told" if code == 0 else f"failed: exit code {code}"


def of_root(report: bytes) -> Record:
    """Return the failure of a report that comes from drfd's own code for certain."""
    try:
        step, number, what = _parts(report)
    except ValueError:
        return failure(DIED, None)
    why = os.strerror(number)
    error: Exception
    error = cause = OSError(number, why, what)
    match step:
        case "mkdir":
            error = LimitFailed(cgroup_files.explain(cause))
            error.__cause__ = cause
        case "cgroup" | "limit":
            # Without an error of the kernel's it is a file that has not the line that was wanted.
            error = LimitFailed("; ".join(what.splitlines()) + (f": {why}" if number else ""))
            error.__cause__ = cause
        case "plan":
            return failure(unreadable("its plan is cut short"), None)
        case "keyring" if number not in inheritance.KEY_SHORTAGES:
            return failure(_no_keyring(why), None)
        case "unseen":
            return failure(f"{_UNSEEN} ({why})", None)
        case "stack":
            return failure(_OVERWRITTEN, None)
        case "hung":
            return failure(f"{_HUNG} took longer than {what} s", None)
    short = machine_shortage(error)
    return failure(explain(error) if short is None else machine_text(short, error), short)


def of_job(report: bytes, created: Record) -> Record:
    """Return the failure of a report that the user may have written."""
    try:
        step, number, what = _parts(report)
        return _in_job(_sentence(step, number, what, created), _UNDONE.get(step, _OPEN), number)
    except (ValueError, LookupError):
        return failure(DIED, None)


def of_error(error: BaseException) -> Record:
    """Return the failure of a job's own process that has met this error."""
    if isinstance(error, DirectoryFailed):
        return failure(str(error), Shortage(JOB, DIRECTORY))
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", 0)
    return _in_job(explain(error), _BECOME, number)


def _in_job(text: str, undone: str, number: int) -> Record:
    """Return a failure of a job's own process: the text, unless this error is a shortage."""
    resource = RESOURCES.get(number)
    is_of_files = undone in _OF_FILES
    if resource is None or (is_of_files and resource == PROCESSES):
        return failure(text[:MAX_TEXT], None)
    text = f"{undone}: {_IN_WORDS[resource]} ({errno.errorcode[number]})"
    return failure(text, Shortage(JOB, resource))


def explain(error: BaseException) -> str:
    """Return why a job could not be started, in a sentence for its submitter."""
    match error:
        case Denied() | DirectoryFailed():
            return str(error)
        case OSError():
            return f"it could not be set up: {error.strerror}"
        case MemoryError():
            return "it could not be set up: out of memory"
        case LimitFailed():
            return f"it could not be set up: {error}"
        case _:
            return f"it could not be set up: {error!r}"


def unreadable(why: object) -> str:
    return f"what it is to run cannot be read: {why}"


def _no_keyring(why: str) -> str:
    return f"it can have no session keyring of its own: {why}"


def _sentence(step: str, number: int, what: str, created: Record) -> str:
    """Return why a job's own process could not do a step. Raises LookupError."""
    why = os.strerror(number)
    hint = "" if created.get("space") is None else private_tmp.hint(what)
    user = created.get("user") or "its user"
    unwritten = f"{user} cannot write the output file {what}"
    late = "timed out" if number == errno.ETIMEDOUT else f"[Errno {number}] {why}"
    no_interpreter = f"the script {what} names an interpreter in its first line that is not there"
    return {
        "stack": _OVERWRITTEN,
        "setting": f"it could not be set up: {why}",
        "regained": identity.REGAINED,
        "keyring": _no_keyring(why),
        "space": f"{_NO_SPACE}: {why}",
        "payload": unreadable(what),
        "directory": f"{user} cannot enter {what}: {why}{hint}",
        "output": f"{unwritten}: {why}",
        "pipe": f"{unwritten}: nobody reads this pipe",
        "not own": f"the output file {what} is there already, and is not an ordinary file of the "
        "user's own: remove it, or name another one with -o",
        "attach": f"{_NO_TERMINAL} ({late})",
        "another": "another user listens where its terminal waited, which is gone",
        "too few": _NO_TERMINAL,
        "terminal": f"its terminal cannot be taken: {why}",
        "program": f"{_why_no_exec(what, number)}{hint}",
        "script": no_interpreter
        if number == errno.ENOENT
        else _why_no_exec(f"the script {what}", number),
    }[step]


def _why_no_exec(what: str, number: int) -> str:
    if number == errno.ENOENT and "/" not in what:
        return f"there is no command {what} in the job's PATH"
    if number == errno.ENOENT:
        return f"there is no program {what}, or its interpreter is missing"
    if number == errno.ENOEXEC:
        return f"{what} is not a program: a script needs a first line such as #!/bin/sh"
    return f"cannot run {what}: {os.strerror(number)}"


def _parts(report: bytes) -> tuple[str, int, str]:
    """Return the step, the kernel's error and the text, which users may have chosen: a byte that
    is no UTF-8 is shown as \\xff, because no report can hold it. Raises ValueError."""
    step, digits, what = report.split(b"\0", 2)
    number = int(digits)
    if not 0 <= number <= _MOST_ERRNO:
        raise ValueError(number)
    return step.decode(), number, what.decode(errors="backslashreplace")
