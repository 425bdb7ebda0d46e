"""The commands that act on Slurm's jobs. The next lists show their effect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.mapping import SlurmJob, first_line

log = logging.getLogger("drfd.launcher")


@dataclass(frozen=True, slots=True)
class Control:
    """Ends, signals, suspends and resumes Slurm's jobs."""

    commands: Commands
    #: Called when a command has ended: a list is worth while then.
    on_done: Callable[[], None]

    def terminate(self, job: SlurmJob) -> None:
        """Ask a job to end, by SIGTERM to all its processes."""
        if job.has_started:
            self.signal(job, "TERM")
        else:
            self._scancel(job)

    def end(self, jobs: Iterable[SlurmJob], *, is_forced: bool) -> None:
        """End jobs: with SIGKILL at once, if it `is_forced`, those that have started."""
        for job in jobs:
            if is_forced and job.state == "RUNNING":
                self._scancel(job, "--signal=KILL")
            else:
                self._scancel(job)

    def signal(self, job: SlurmJob, name: str) -> None:
        """Send the signal with this name or number to all processes of a job."""
        self._scancel(job, f"--signal={name}", "--full")

    def suspend(self, job: SlurmJob) -> None:
        self._run("scontrol", "suspend", str(job.id))

    def resume(self, job: SlurmJob) -> None:
        self._run("scontrol", "resume", str(job.id))

    def register(self, then: Callable[[Answer], None]) -> None:
        """Ask all nodes to register with slurmctld, and pass on the answer."""
        self._run("scontrol", "reconfigure", then=then)

    def _scancel(self, job: SlurmJob, *options: str) -> None:
        """Run scancel for a job, with its name: scancel may wait for a slurmctld that has given
        the id to another when it comes back."""
        self._run("scancel", *options, f"--name={job.title}", str(job.id))

    def _run(self, *words: str, then: Callable[[Answer], None] | None = None) -> None:
        def on_answer(answer: Answer) -> None:
            if then is not None:
                then(answer)
            if not answer.is_good:
                text = first_line(answer.complaint)
                log.warning("event=slurm-refuses command=%s error=%s", words[0], text)
            self.on_done()

        self.commands.run(words, on_answer)
