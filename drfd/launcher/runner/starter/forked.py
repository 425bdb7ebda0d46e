"""The start of a job's process by a fork of the runner: the way that works everywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass

from drfd.launcher.attempt_files import Record
from drfd.launcher.runner import child
from drfd.launcher.runner.child import JobStart, run_child
from drfd.launcher.runner.failures import DIED, MAX_TEXT
from drfd.launcher.runner.shortage import FIELDS, MACHINE, failure, read_failure


@dataclass(frozen=True)
class Forked:
    """Starts jobs' processes by Python."""

    #: Why no compiled program is used, for the administrator.
    why: str
    descriptors: tuple[int, ...] = ()

    @property
    def about(self) -> str:
        return f"it is begun by Python, which costs more processor time: {self.why}"

    def warm_up(self) -> None:
        child.warm_up()

    def start(self, job: JobStart, others: tuple[int, ...]) -> int:
        pid = job.confinement.fork(job.key)
        if pid == 0:
            run_child(job, others)
        job.close_its_ends()
        return pid

    def entry_failure(self, job: JobStart, report: bytes) -> Record:
        found: Record = json.loads(report)
        return found

    def failure(self, job: JobStart, report: bytes) -> Record:
        """Return the reported failure; only what drfd's own code can report is accepted."""
        try:
            fields = json.loads(report)
            text, short = str(fields["text"])[:MAX_TEXT], read_failure(fields)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return failure(DIED, None)
        if short is None or short["whose"] == MACHINE:
            return {"text": text}
        return {"text": text, "shortage": {name: short[name] for name in FIELDS}}
