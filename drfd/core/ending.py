"""What is to be said of an ended job beyond its cause: evidence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from signal import Signals

from drfd.core.advice import ran_out
from drfd.core.job import Job, Outcome, Usage
from drfd.units import show_cores, show_duration, show_size

#: What is known of signals that end programs.
_SIGNALS = {
    "SIGSEGV": "it used memory that was not its own: a fault of the program",
    "SIGBUS": "it used memory that was not there: a fault of the program, or a file cut short "
    "under it",
    "SIGABRT": "it gave up by itself, after a failed check of its own",
    "SIGFPE": "an arithmetic fault of the program, such as a division by zero",
    "SIGILL": "an instruction that this processor does not know: was it built for another one?",
    "SIGSYS": "a system call that it may not make",
    "SIGPIPE": "it wrote to a pipe that nobody read any more",
    "SIGHUP": "the sign of a terminal that is gone",
    "SIGXFSZ": "a file became larger than its limit",
    "SIGXCPU": "it used more CPU time than a limit of its own (ulimit -t)",
}
#: What a shell means by an exit code.
_CODES = {
    126: "a shell's word for: the command was found and could not be executed",
    127: "a shell's word for: there is no such command",
}
#: What helps when a launch has failed, by words of its cause (launcher/child.py, identity.py).
CURES = (
    ("in the job's PATH", "write its full path, or set PATH before you submit: the job has yours"),
    ("there is no program", "look at its path, and for a script at its first line"),
    ("names an interpreter", "mend the script's first line"),
    ("needs a first line", "give it one, or submit it as a script: drf submit FILE"),
    ("cannot enter", "submit from a directory that exists and that you may enter"),
    ("cannot write the output file", "name other files with -o and -e"),
    ("the terminal that waited", "the drf run that started it has ended; run it again"),
    ("there is no user", "the account was removed after the job had been submitted"),
    ("it could not be set up", "drf doctor tells what is wrong with this machine's limits"),
)


def explain_end(job: Job) -> list[str]:
    """Sentences without a full stop, most important first; empty for a job that has not ended."""
    usage = job.usage if job.usage is not None and job.usage.memory_peak_bytes else None
    match job.outcome:
        case Outcome.OUT_OF_MEMORY if usage is not None:
            found = _out_of_memory(job, usage)
        case Outcome.TIMEOUT if usage is not None:
            found = _timeout(job, usage)
        case Outcome.LAUNCH_FAILED:
            found = (cure for words, cure in CURES if words in job.outcome_text)
        case Outcome.FAILED:
            found = _failed(job, usage)
        case Outcome.LOST:
            found = _lost(job, usage)
        case Outcome.COMPLETED | Outcome.CANCELLED | Outcome.LIMIT_EXCEEDED if usage is not None:
            found = iter([_summary(job, usage)])
        case _:
            found = iter([])
    return list(found)


def _out_of_memory(job: Job, usage: Usage) -> Iterator[str]:
    limit = job.spec.demand.memory_bytes
    yield f"it was killed {_after(job)} after its start, with a peak of " + (
        f"{show_size(usage.memory_peak_bytes)} and a limit of {show_size(limit)}"
    )
    if not ran_out(job):
        if usage.oom_kills:
            yield "the kernel chose it when the whole machine was short; journalctl -k tells more"
        else:
            yield (
                "the kernel has counted no kill in it: systemd-oomd or somebody else did it; "
                "journalctl -u systemd-oomd tells more"
            )
        yield "its demand was not the fault: submit it again; an administrator can keep more " + (
            "memory for the system with capacity.reserve_memory"
        )
        return
    if job.exit_code is not None:
        yield f"its first process was not the one: it ended with exit code {job.exit_code}"
    if usage.largest_process_bytes is not None:
        largest = show_size(usage.largest_process_bytes)
        yield f"the largest of its processes had {largest}, shared pages included" + (
            "; all of them together reached the limit"
            if usage.largest_process_bytes * 2 < limit
            else ""
        )
    yield "the kernel's log names the process that it killed first: journalctl -k --grep oom-kill"


def _timeout(job: Job, usage: Usage) -> Iterator[str]:
    yield _summary(job, usage)
    late = usage.late_cores_milli
    if late is None:
        return
    shown = show_cores(round(late, -1))
    if late * 20 < job.spec.demand.cores_milli:
        yield f"near its end it used {shown} cores: it may have waited for something, not computed"
    else:
        yield f"near its end it still used {shown} cores: it was at work"


def _failed(job: Job, usage: Usage | None) -> Iterator[str]:
    code = job.exit_code
    if job.signal is not None:
        yield from _signal(job.signal, usage)
    elif code in _CODES:
        yield f"{code} is {_CODES[code]}"
    elif code is not None and 128 < code < 128 + 65:
        name = _name(code - 128)
        if name is not None:
            yield f"{code} is a shell's word for: what it ran was killed by {name}"
            yield from _signal(code - 128, usage)
    if usage is not None and usage.memory_peak_bytes * 10 >= job.spec.demand.memory_bytes * 9:
        limit = show_size(job.spec.demand.memory_bytes)
        yield f"its memory came up to {show_size(usage.memory_peak_bytes)} of {limit}"
    yield f"what it said: drf log --err {job.id}"


def _signal(number: int, usage: Usage | None) -> Iterator[str]:
    name = _name(number)
    if name in _SIGNALS:
        yield _SIGNALS[name]
    elif name in ("SIGKILL", "SIGTERM", "SIGINT"):
        counted = usage is not None and usage.oom_kills == 0
        memory = ", and the kernel has counted no kill for memory in it" if counted else ""
        yield f"somebody else sent it, or a program of the job's own: drfd did not{memory}"


def _lost(job: Job, usage: Usage | None) -> Iterator[str]:
    if usage is not None:
        yield f"until then it had used {_used(job, usage)}"
    yield "whether its work was done only its output can tell; submit it again if not"


def _summary(job: Job, usage: Usage) -> str:
    return f"it ran for {_after(job)} and used {_used(job, usage)}"


def _used(job: Job, usage: Usage) -> str:
    ran_ms = _ran_ms(job)
    cpu = show_duration(usage.cpu_s) if usage.cpu_s >= 60 else f"{usage.cpu_s:.1f}s"
    # Of a job of a moment, the mean says more of the clock than of the job.
    mean = ""
    if ran_ms >= 1000:
        cores = show_cores(round(usage.cpu_s * 1_000_000) // ran_ms // 10 * 10)
        mean = f" ({cores} of {show_cores(job.spec.demand.cores_milli)} cores on average)"
    limit = show_size(job.spec.demand.memory_bytes)
    return f"{cpu} of CPU time{mean} and {show_size(usage.memory_peak_bytes)} of {limit} of memory"


def _after(job: Job) -> str:
    ran_ms = _ran_ms(job)
    return f"{ran_ms / 1000:.1f}s" if ran_ms < 60_000 else show_duration(ran_ms / 1000)


def _ran_ms(job: Job) -> int:
    if job.started_at is None or job.ended_at is None:
        return 0
    return max(0, round((job.ended_at - job.started_at - job.frozen_s(job.ended_at)) * 1000))


def _name(number: int) -> str | None:
    try:
        return Signals(number).name
    except ValueError:
        return None
