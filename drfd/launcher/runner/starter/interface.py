"""What a runner asks of each way to start a job's process."""

from __future__ import annotations

from typing import Protocol

from drfd.launcher.attempt_files import Record
from drfd.launcher.runner.child import JobStart


class JobStarter(Protocol):
    """One way to start jobs' processes, chosen when the launcher starts; runners inherit it."""

    @property
    def about(self) -> str:
        """What this way is, for the administrator: the rest of a sentence."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that a runner has to keep for it."""

    def warm_up(self) -> None:
        """Do once, in a new runner, what each start would otherwise repeat."""

    def start(self, job: JobStart, others: tuple[int, ...]) -> int:
        """Start the process of a job, close its ends of the pipes, and return its pid. `others` are
        descriptors of the runner's that the process is not to have. Raises LimitFailed, OSError."""

    def entry_failure(self, job: JobStart, report: bytes) -> Record:
        """Return the failure that was reported through `entry_fd`."""

    def failure(self, job: JobStart, report: bytes) -> Record:
        """Return the failure that was reported through `report_fd`. The user may control the
        process by then, so a shortage of the machine is never believed."""
