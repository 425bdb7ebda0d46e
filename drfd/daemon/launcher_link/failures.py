"""What the record of an attempt says: why a job, or its notification, could not be started, in
sentences for its submitter, and whether the kernel's counters say that it was killed for memory.

What the compiled program puts on record, step NUL errno NUL text, the launcher passes on as it is:
root reads nothing of what a user may have written. A shortage of a job's own process is attributed
to the user or the job: no report of a user's process holds up the jobs of others.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from drfd.common.paths import private_place
from drfd.core.model.job import Whose
from drfd.launcher.protocol import NO_CGROUP, NOTICE_S
from drfd.launcher.runner.shortage import (
    DESCRIPTORS,
    MEMORY,
    PROCESSES,
    QUOTA,
    RESOURCES,
    SPACE,
    short_of_machine,
)

#: Largest distance, in bytes, from its limit at which the kernel kills a job for that limit.
_NEAR_BYTES = 1 << 20


class Ended(NamedTuple):
    #: Whether a process was killed for memory, and whether by the job's own limit.
    oom_killed: bool
    over_limit: bool
    #: Fields of `core.model.job.Usage`, and the bytes left in use. What the kernel lacks is left
    #: out, so that it is not taken for zero.
    counted: dict[str, int]


def judge(numbers: Mapping[str, int]) -> Ended:
    """Return what counters of either version of cgroups say
    (`drfd.launcher.confinement.cgroup_files` has their names)."""
    counted = dict(numbers)
    for name in ("throttled", "cpu"):
        if (ns := counted.pop(f"{name}_ns", None)) is not None:
            counted[f"{name}_us"] = ns // 1000
    is_v1 = "limit_bytes" in counted or "hits" in counted
    killed, over_limit, counted = (_judge_v1 if is_v1 else _judge_v2)(counted)
    if not counted.get("left_bytes", 1):
        del counted["left_bytes"]
    return Ended(killed, over_limit, counted)


def _judge_v1(counted: dict[str, int]) -> Ended:
    """That of kills includes those by a machine-wide shortage, in which case the limit was not
    hit."""
    hits = max(counted.pop("hits", -1), counted.pop("swap_hits", -1))
    limit, peak = counted.pop("limit_bytes", None), counted.get("memory_peak_bytes", 0)
    # With swap accounting, the limit of memory and swap is the same and is hit first, and newer
    # kernels (seen on 6.18) do not count that.
    if hits > 0 or (hits == 0 and (limit is None or peak < limit)):
        counted["limit_hits"] = hits
    killed = counted.get("oom_kills", 0) > 0
    return Ended(killed, killed and limit is not None and peak >= limit - _NEAR_BYTES, counted)


def _judge_v2(counted: dict[str, int]) -> Ended:
    # A limit that the job has set on a cgroup of its own, further in, does not count here.
    own_ooms, own_kills = counted.pop("own_ooms", 0), counted.pop("own_oom_kills", 0)
    oomd_kills = counted.pop("oomd_ooms", 0)
    # "oom_kill" also counts kills by a shortage further out, which "oom" does not.
    over_limit = own_ooms > 0 and counted.get("oom_kills", 0) > 0
    return Ended(over_limit or own_kills > 0 or oomd_kills > 0, over_limit, counted)


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


class FailureText(NamedTuple):
    text: str
    #: Of a temporary shortage: whose and what it is.
    whose: Whose | None = None
    resource: str = ""


class StartFailure(Struct, frozen=True, kw_only=True):
    """What the record of a start that failed says, and what the launcher knows of it."""

    #: Whether the report comes from drfd's own code for certain; else its user may have written it.
    by_root: Literal[0, 1]
    report: Annotated[str, Meta(pattern=r"\A([0-9a-f]{2})*\Z")]
    #: Whether the attempt has a private temporary space.
    has_space: bool

    def in_words(self, user: str | None) -> FailureText:
        """Return why the program of this user could not be run."""
        report = bytes.fromhex(self.report)
        return of_root(report) if self.by_root else of_job(report, user, self.has_space)


class NoticeEnd(Struct, frozen=True, kw_only=True):
    """How the command has ended that notifies an owner; nothing, if it was cut short."""

    exit_code: int | None = None
    signal: int | None = None
    #: Whether it was stopped because it took too long.
    is_stopped: int = 0

    def in_words(self) -> str:
        if self.is_stopped:
            return f"failed: it was stopped after {NOTICE_S:.0f} s"
        if self.signal is not None:
            return f"failed: killed by signal {self.signal}"
        if self.exit_code is None:
            return "not known: it was cut short"
        return "told" if self.exit_code == 0 else f"failed: exit code {self.exit_code}"


def of_root(report: bytes) -> FailureText:
    """Return the failure of a report that comes from drfd's own code for certain."""
    try:
        step, number, what = _parts(report)
    except ValueError:
        return FailureText(DIED)
    why = os.strerror(number)
    # Of a file of an attempt's cgroup, as of a cpuset, it means that it can never be set.
    is_final = number == errno.ENOSPC and step in ("cgroup", "limit")
    match step:
        case "mkdir" if number == errno.ENOSPC:
            why = f"{what}: {NO_CGROUP}"
        case "mkdir":
            why = f"{what}: {why}"
        case "cgroup" | "limit":
            # Without an error of the kernel's it is a file that has not the line that was wanted.
            why = "; ".join(what.splitlines()) + (f": {why}" if number else "")
        case "plan":
            return FailureText(_unreadable("its plan is cut short"))
        case "keyring" if number not in (errno.ENOMEM, errno.EDQUOT):
            return FailureText(_no_keyring(why))
        case "unseen":
            return FailureText(f"{_UNSEEN} ({why})")
        case "stack":
            return FailureText(_OVERWRITTEN)
        case "hung":
            return FailureText(f"{_HUNG} took longer than {what} s")
    if number not in RESOURCES or is_final:
        return FailureText(f"it could not be set up: {why}")
    resource = RESOURCES[number]
    return FailureText(short_of_machine(resource, why), Whose.MACHINE, resource)


def of_job(report: bytes, user: str | None, has_space: bool) -> FailureText:
    """Return the failure of a report that the user may have written."""
    try:
        step, number, what = _parts(report)
        hint = _hint(what) if has_space else ""
        text = _sentence(step, number, what, user or "its user", hint)
    except (ValueError, LookupError):
        return FailureText(DIED)
    undone, resource = _UNDONE.get(step, _OPEN), RESOURCES.get(number)
    if resource is None or (undone in _OF_FILES and resource == PROCESSES):
        return FailureText(text[:MAX_TEXT])
    text = f"{undone}: {_IN_WORDS[resource]} ({errno.errorcode[number]})"
    return FailureText(text, Whose.JOB, resource)


def _hint(path: str) -> str:
    """Return a sentence for the user of a path that does not exist in the job's private space, or
    "" if the private space cannot be the reason."""
    place = private_place(path)
    return f"; each job has a {place} of its own here ([enforcement] private_tmp)" if place else ""


def _unreadable(why: str) -> str:
    return f"what it is to run cannot be read: {why}"


def _no_keyring(why: str) -> str:
    return f"it can have no session keyring of its own: {why}"


def _sentence(step: str, number: int, what: str, user: str, hint: str) -> str:
    """Return why a job's own process could not do a step. Raises LookupError."""
    why = os.strerror(number)
    unwritten = f"{user} cannot write the output file {what}"
    late = "timed out" if number == errno.ETIMEDOUT else f"[Errno {number}] {why}"
    no_interpreter = f"the script {what} names an interpreter in its first line that is not there"
    return {
        "stack": _OVERWRITTEN,
        "setting": f"it could not be set up: {why}",
        "regained": "root's rights could be had back after they were dropped",
        "keyring": _no_keyring(why),
        "space": f"{_NO_SPACE}: {why}",
        "payload": _unreadable(what),
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
