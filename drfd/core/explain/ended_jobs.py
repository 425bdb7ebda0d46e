"""What ended jobs say: sentences about the end of one, and sums of what they declared and used.

A job counts with all its runs: those that ended with a preemption, or after which it was tried
again, have held and used resources like its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from heapq import nsmallest
from itertools import islice
from typing import Any

from drfd.common.signals import name_of
from drfd.common.units import show_cores, show_duration, show_size
from drfd.core.decisions.outcome import SLURM_NOT_STARTED
from drfd.core.explain.advice import LAST, is_evidence, kind_of_job, ran_ms, ran_out
from drfd.core.model.account import Account, account_of_run, declared_core_ms, joined
from drfd.core.model.job import DeclaredJob, Job, Outcome, Usage

#: Meaning of signals that end programs.
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
#: Meaning of exit codes of a shell.
_CODES = {
    126: "a shell's word for: the command was found and could not be executed",
    127: "a shell's word for: there is no such command",
}
#: Causes of a failed launch that the user or an administrator can remove: a part of the sentence
#: with which `drfd/launcher/runner/` reports the cause → the remedy.
LAUNCH_REMEDIES = {
    "in the job's PATH": "write its full path, or set PATH before you submit: the job has yours",
    "there is no program": "look at its path, and for a script at its first line",
    "names an interpreter": "mend the script's first line",
    "needs a first line": "give it one, or submit it as a script: drf submit FILE",
    "cannot enter": "submit from a directory that exists and that you may enter",
    "cannot write the output file": "name other files with -o and -e",
    "the terminal that waited": "the drf run that started it has ended; run it again",
    "there is no user": "the account was removed after the job had been submitted",
    "it could not be set up": "drf doctor tells what is wrong with this machine's limits",
}
_KILLING_SIGNALS = frozenset({"SIGKILL", "SIGTERM", "SIGINT"})


def end_notes(job: Job) -> list[str]:
    """Return the sentences, without full stops, the most important first; none for a live job. They
    are about the last attempt, but for one about all runs."""
    usage = job.usage if job.usage is not None and job.usage.memory_peak_bytes else None
    found: Iterator[str]
    match job.outcome:
        case Outcome.OUT_OF_MEMORY if usage is not None:
            found = _out_of_memory(job, usage)
        case Outcome.TIMEOUT if usage is not None:
            found = _timeout(job, usage)
        case Outcome.LAUNCH_FAILED:
            remedies = LAUNCH_REMEDIES.items()
            found = (remedy for cause, remedy in remedies if cause in job.outcome_text)
        case Outcome.FAILED:
            found = _failed(job, usage)
        case Outcome.LOST:
            found = _lost(job, usage)
        case Outcome.COMPLETED | Outcome.CANCELLED | Outcome.LIMIT_EXCEEDED if usage is not None:
            found = iter([_ran(job, usage)])
        case _:
            found = iter([])
    return [*found, *_all_runs(job)]


def _all_runs(job: Job) -> Iterator[str]:
    """Yield the sums over all runs of a job that had others before its last attempt."""
    earlier = job.earlier_runs
    if job.outcome is None or earlier is None:
        return
    account = joined(earlier, account_of_run(job) or {})
    runs, used_us = account.get("runs", 0), account.get("cores.used", 0)
    which = "its only run" if runs == 1 else f"its {runs} runs together"
    # Without a peak no run was measured.
    used = (
        f" and used {_cpu_time(used_us / 1_000_000)} of CPU time" if account.get("peak_max") else ""
    )
    yield f"{which} took {_span(account.get('run_ms', 0))}{used}"


def _out_of_memory(job: Job, usage: Usage) -> Iterator[str]:
    limit = job.spec.demand.memory_bytes
    is_measured = job.stop is not None and job.stop.outcome is Outcome.OUT_OF_MEMORY
    yield (
        f"it was {'stopped' if is_measured else 'killed'} {_span(ran_ms(job))} after its start, "
        f"with a peak of {show_size(usage.memory_peak_bytes)} and a limit of {show_size(limit)}"
    )
    if is_measured:
        return
    if not ran_out(job):
        if usage.oom_kills:
            yield "the kernel chose it when the whole machine was short; journalctl -k tells more"
        else:
            yield (
                "the kernel has counted no kill in it: systemd-oomd or somebody else did it; "
                "journalctl -u systemd-oomd tells more"
            )
        yield (
            "its demand was not the fault: submit it again; an administrator can keep more "
            "memory for the system with capacity.reserve_memory"
        )
        return
    if job.exit_code is not None:
        yield f"its first process was not the one: it ended with exit code {job.exit_code}"
    largest = usage.largest_process_bytes
    if largest is not None:
        together = "; all of them together reached the limit" if largest * 2 < limit else ""
        yield (
            f"the largest of its processes had {show_size(largest)}, shared pages included"
            f"{together}"
        )
    yield "the kernel's log names the process that it killed first: journalctl -k --grep oom-kill"


def _timeout(job: Job, usage: Usage) -> Iterator[str]:
    yield _ran(job, usage)
    late = usage.late_cores_milli
    if late is not None:
        shown = show_cores(round(late, -1))
        if late * 20 < job.spec.demand.cores_milli:
            yield (
                f"near its end it used {shown} cores: "
                "it may have waited for something, not computed"
            )
        else:
            yield f"near its end it still used {shown} cores: it was at work"


def _failed(job: Job, usage: Usage | None) -> Iterator[str]:
    code = job.exit_code
    if job.signal is not None:
        yield from _signal(job.signal, usage)
    elif code is not None and code in _CODES:
        yield f"{code} is {_CODES[code]}"
    elif code is not None and 128 < code < 128 + 65:
        name = name_of(code - 128)
        if name is not None:
            yield f"{code} is a shell's word for: what it ran was killed by {name}"
            yield from _signal(code - 128, usage)
    limit = job.spec.demand.memory_bytes
    if usage is not None and usage.memory_peak_bytes * 10 >= limit * 9:
        yield f"its memory came up to {show_size(usage.memory_peak_bytes)} of {show_size(limit)}"
    if job.spec.attach is None:
        # Otherwise it went to a terminal.
        option = "--err " if job.spec.stderr != job.spec.stdout else ""
        yield f"its output: drf log {option}{job.label}"


def _signal(number: int, usage: Usage | None) -> Iterator[str]:
    name = name_of(number)
    if name in _SIGNALS:
        yield _SIGNALS[name]
    elif name in _KILLING_SIGNALS:
        is_not_for_memory = usage is not None and usage.oom_kills == 0
        memory = ", and the kernel has counted no kill for memory in it" * is_not_for_memory
        yield f"somebody else sent it, or a program of the job's own: drfd did not{memory}"


def _lost(job: Job, usage: Usage | None) -> Iterator[str]:
    if usage is not None:
        yield f"until then it had used {_used(job, usage)}"
    if job.loss != SLURM_NOT_STARTED:
        yield "whether its work was done only its output can tell; submit it again if not"


def _ran(job: Job, usage: Usage) -> str:
    which = "it ran for" if job.earlier_runs is None else "its last run took"
    return f"{which} {_span(ran_ms(job))} and used {_used(job, usage)}"


def _used(job: Job, usage: Usage) -> str:
    span_ms, demand = ran_ms(job), job.spec.demand
    mean = ""
    if span_ms >= 1000:
        # The mean of a shorter job depends more on the clock than on the job.
        cores = show_cores(round(usage.cpu_s * 1_000_000) // span_ms // 10 * 10)
        mean = f" ({cores} of {show_cores(demand.cores_milli)} cores on average)"
    peak, limit = show_size(usage.memory_peak_bytes), show_size(demand.memory_bytes)
    return f"{_cpu_time(usage.cpu_s)} of CPU time{mean} and {peak} of {limit} of memory"


def _cpu_time(cpu_s: float) -> str:
    return show_duration(cpu_s) if cpu_s >= 60 else f"{cpu_s:.1f}s"


def _span(ran_ms: int) -> str:
    return f"{ran_ms / 1000:.1f}s" if ran_ms < 60_000 else show_duration(ran_ms / 1000)


# -- sums ------------------------------------------------------------------------------------------


def account_of(job: Job) -> Account | None:
    """Return the account of one ended job with all its runs, or None if it never ran."""
    last, earlier = account_of_run(job), job.earlier_runs
    if last is None and earlier is None:
        return None
    account = joined(earlier or {}, last or {})
    return {
        **account,
        "jobs": 1,
        "throttled_unknown_jobs": min(1, account.get("throttled_unknown_jobs", 0)),
        "out_of_memory_jobs": int(job.outcome is Outcome.OUT_OF_MEMORY),
        "timeout_jobs": int(job.outcome is Outcome.TIMEOUT),
    }


#: Key of a row of a report.
Row = tuple[str, ...]
BY: dict[str, Callable[[Any], Row]] = {
    "job": lambda job: (str(job.id), job.spec.name, job.spec.user),
    "name": lambda job: (job.spec.name, job.spec.user),
    "user": lambda job: (job.spec.user,),
    "pool": lambda job: (job.spec.pool,),
}


def largest_rows(jobs: Iterable[DeclaredJob | Job], by: str, limit: int) -> list[Row]:
    """Return the rows that declared most CPU time, largest first; by job those of the first jobs.
    Only that time is kept of each row: there may be as many rows as jobs."""
    declared: dict[Row, int] = {}
    for job in jobs:
        cores_ms = declared_core_ms(job)
        if cores_ms is not None:
            row = BY[by](job)
            declared[row] = declared.get(row, 0) + cores_ms
    if by == "job":
        return list(islice(declared, limit))
    return nsmallest(limit, declared, key=lambda row: (-declared[row], row))


class UsageAccounts:
    """Accounts by row, with the latest jobs of each kind from which advice is derived."""

    def __init__(self, by: str, shown: Iterable[Row]) -> None:
        """Jobs of rows that are not `shown` are only summed up, in `rest`."""
        self.by = by
        self.rows: dict[Row, Account] = {row: {} for row in shown}
        self.rest: Account = {}
        #: The job of each row that ended last.
        self.latest: dict[Row, Job] = {}
        self._evidence: dict[Row, list[Job]] = {}
        #: The kinds of jobs in each row (see `kind_of_job`).
        self._kinds: dict[Row, set[Row]] = {}

    def take(self, jobs: Iterable[Job]) -> None:
        """Add ended jobs, which must come newest first."""
        for job in jobs:
            account = account_of(job)
            if account is None:
                continue
            row = BY[self.by](job)
            is_shown = row in self.rows
            if is_shown:
                self.rows[row] = joined(self.rows[row], account)
                self.latest.setdefault(row, job)
            else:
                self.rest = joined(self.rest, account)
            # Jobs without a row teach what those of their kind need that have one.
            if (is_shown or self.by == "job") and is_evidence(job):
                kind = kind_of_job(job)
                if is_shown:
                    self._kinds.setdefault(row, set()).add(kind)
                    self._evidence.setdefault(kind, [])
                similar = self._evidence.get(kind)
                if similar is not None and len(similar) < LAST:
                    similar.append(job)

    def similar(self, row: Row) -> list[Job]:
        """Return the evidence for a row, newest first. Rows by user or pool have none, and neither
        has a name under which different commands ran."""
        if self.by not in ("name", "job"):
            return []
        kind = kind_of_job(self.latest[row])
        return self._evidence.get(kind, []) if self._kinds.get(row, {kind}) == {kind} else []

    def total(self) -> Account:
        return reduce(joined, self.rows.values(), self.rest)
