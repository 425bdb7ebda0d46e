"""A provider of Parsl whose blocks are jobs of drfd.

A thread listens to the events of the user's jobs and keeps the latest state of each block, which
`status` returns without a request to the daemon.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from parsl.jobs.states import JobState, JobStatus
from parsl.launchers import SingleNodeLauncher
from parsl.launchers.base import Launcher
from parsl.providers.base import ExecutionProvider
from parsl.providers.errors import SubmitException

import drfd.client

#: States of drfd that are other words of Parsl's; what has failed otherwise is FAILED.
_STATES = {
    "PENDING": JobState.PENDING,
    "HELD": JobState.HELD,
    "SUSPENDED": JobState.HELD,
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
}


class DrfdProvider(ExecutionProvider):
    """See the README. `options` are those of a job, as `drfd.client` takes them."""

    label = "drfd"
    status_polling_interval = 1
    nodes_per_block = 1

    def __init__(
        self,
        *,
        cores: int = 1,
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 1,
        parallelism: float = 1,
        launcher: Launcher | None = None,
        worker_init: str = "",
        **options: Any,
    ) -> None:
        self.cores_per_node = cores
        self.init_blocks, self.min_blocks, self.max_blocks = init_blocks, min_blocks, max_blocks
        self.parallelism = parallelism
        self.script_dir: str | None = None
        self.resources: dict[object, Any] = {}
        self._launcher = SingleNodeLauncher() if launcher is None else launcher
        self._worker_init = worker_init
        self._options = {"cores": cores, **options}
        self._client = drfd.client.connect()
        self._lock = threading.Lock()
        #: By id; other jobs of the user are among them.
        self._jobs: dict[object, drfd.client.JobInfo] = {}
        self._error: Exception | None = None
        self._is_listening = False

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl.block") -> object:
        directory = self.script_dir or os.getcwd()
        wrapped = self._launcher(command, tasks_per_node, self.nodes_per_block, directory)
        lines = ("#!/bin/bash", f"export PARSL_CORES={self.cores_per_node}", self._worker_init)
        script = "\n".join((*lines, wrapped, ""))
        output = os.path.abspath(directory).replace("%", "%%") + "/%x-%j.out"
        with self._lock:
            if not self._is_listening:
                self._is_listening = True
                self._client.listen(self._take, self._lose)
            try:
                asked = {"name": job_name, "stdout": output, **self._options}
                return self._client.submit([job_name], script=script, **asked)
            except drfd.client.DrfdError as error:
                raise SubmitException(job_name, str(error)) from error

    def status(self, job_ids: Sequence[object]) -> list[JobStatus]:
        return [self._status(job_id) for job_id in job_ids]

    def cancel(self, job_ids: Sequence[object]) -> list[bool]:
        return [self._cancel(job_id) for job_id in job_ids]

    def _cancel(self, job_id: object) -> bool:
        with self._lock:
            try:
                self._client.cancel(job_id)
            except drfd.client.Refused:
                return False  # it has ended
        return True

    def _status(self, job_id: object) -> JobStatus:
        job = self._jobs.get(job_id)
        if job is None:
            state = JobState.PENDING if self._error is None else JobState.UNKNOWN
            return JobStatus(state, None if self._error is None else str(self._error))
        usual = JobState.FAILED if job.has_ended else JobState.RUNNING
        return JobStatus(
            _STATES.get(job.state, usual),
            None if job.outcome is None else job.outcome.text,
            job.exit_code,
            job.stdout,
            job.stderr,
        )

    def _take(self, job: drfd.client.JobInfo) -> None:
        self._jobs[job.id] = job

    def _lose(self, error: Exception) -> None:
        self._error, self._is_listening = error, False
