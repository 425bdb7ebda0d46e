"""The commands that act on Slurm's jobs. The next lists show their effect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.mapping import SlurmJob, first_line
from drfd.launcher.slurm_root.requests import END, KILL, REGISTER, RESUME, SIGNAL, SUSPEND

log = logging.getLogger("drfd.launcher")

_TERM = 15


@dataclass(frozen=True, slots=True)
class Control:
    """Ends, signals, suspends and resumes Slurm's jobs."""

    commands: Commands
    #: Called when a command has ended: a list is worth while then.
    on_done: Callable[[], None]

    def terminate(self, job: SlurmJob) -> None:
        """Ask a job to end, by SIGTERM to all its processes."""
        if job.has_started:
            self.signal(job, _TERM)
        else:
            self._run(END, job)

    def end(self, jobs: Iterable[SlurmJob], *, is_forced: bool) -> None:
        """End jobs: with SIGKILL at once, if it `is_forced`, those that have started."""
        for job in jobs:
            self._run(KILL if is_forced and job.state == "RUNNING" else END, job)

    def signal(self, job: SlurmJob, number: int) -> None:
        """Send a signal to all processes of a job."""
        self._run(SIGNAL, job, number)

    def suspend(self, job: SlurmJob) -> None:
        self._run(SUSPEND, job)

    def resume(self, job: SlurmJob) -> None:
        self._run(RESUME, job)

    def register(self, then: Callable[[Answer], None]) -> None:
        """Ask all nodes to register with slurmctld, and pass on the answer."""

        def on_answer(answer: Answer) -> None:
            then(answer)
            self._take(REGISTER, answer)

        self.commands.run(REGISTER, on_answer)

    def _run(self, do: str, job: SlurmJob, signal: int = 0) -> None:
        self.commands.run(
            do,
            lambda answer: self._take(do, answer),
            job=job.name.key[0],
            slurm_id=job.id,
            signal=signal,
        )

    def _take(self, do: str, answer: Answer) -> None:
        if not answer.is_good:
            text = first_line(answer.complaint)
            log.warning("event=slurm-refuses command=%s error=%s", do, text)
        self.on_done()
