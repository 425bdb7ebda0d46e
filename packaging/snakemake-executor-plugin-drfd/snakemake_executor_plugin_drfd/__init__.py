"""Snakemake's jobs as jobs of drfd: `snakemake --executor drfd`.

A thread listens to the events of the user's jobs and keeps the ends. The loop of Snakemake that
asks for the states of jobs waits for its word; it asks the daemon nothing.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase
from snakemake_interface_executor_plugins.workflow import WorkflowExecutorInterface

import drfd.client
from drfd.protocol.job_options import BY_KEY

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
)

#: Below the directory of the workflow.
_OUTPUTS = ".snakemake/drfd"
#: After so many seconds without an event the loop looks whether Snakemake has ended it.
_LOOK_S = 1.0


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    pool: str | None = field(
        default=None,
        metadata={"help": "Pool to charge for jobs whose rules have no drf_pool.", "type": str},
    )
    options: str | None = field(
        default=None,
        metadata={
            "help": "Options of jobs whose rules do not ask for them, by their Python names: "
            "'time=2h preemptible'.",
            "type": str,
        },
    )


class Executor(RemoteExecutor):
    def __init__(
        self, workflow: WorkflowExecutorInterface, logger: LoggerExecutorInterface
    ) -> None:
        self._defaults = _defaults(workflow.executor_settings)
        self._client = drfd.client.connect()
        #: Ids of the workflow's jobs whose ends have not been reported.
        self._live: set[int] = set()
        #: By id; other jobs of the user are among them.
        self._ended: dict[int, drfd.client.JobInfo] = {}
        self._error: Exception | None = None
        #: A job has ended, or was submitted and may have ended already.
        self._news = threading.Event()
        self._client.listen(self._take, self._lose)
        # Starts the thread that calls `check_active_jobs`.
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        # The base waits between two calls of `check_active_jobs`, which waits for itself.
        self.next_seconds_between_status_checks = 0

    def _take(self, job: drfd.client.JobInfo) -> None:
        if job.has_ended:
            self._ended[job.id] = job
            self._news.set()

    def _lose(self, error: Exception) -> None:
        self._error = error
        self._news.set()

    def run_job(self, job: JobExecutorInterface) -> None:
        script = self.get_jobscript(job)
        self.write_jobscript(job, script)
        try:
            found = self._client.submit([script], **{**self._defaults, **_options(job)})
        except drfd.client.Refused as error:
            # Those that run go on.
            self.report_job_error(SubmittedJobInfo(job), msg=f"drfd refuses it: {error}. ")
            return
        except drfd.client.DrfdError as error:
            raise WorkflowError(f"drfd: {error}") from None
        self._live.add(found)
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=str(found)))
        self._news.set()

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        await asyncio.to_thread(self._news.wait, _LOOK_S)
        self._news.clear()
        if self._error is not None:
            raise WorkflowError(f"drfd: {self._error}")
        for each in active_jobs:
            ended = self._ended.pop(int(each.external_jobid or 0), None)
            if ended is None:
                yield each
                continue
            self._live.discard(ended.id)
            if ended.is_completed:
                self.report_job_success(each)
            else:
                how = "" if ended.outcome is None else ended.outcome.text
                message = f"Job {ended.id} of drfd: {ended.state}: {how}. "
                self.report_job_error(each, msg=message, aux_logs=[ended.stdout])

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        # The base gives none of those that `check_active_jobs` is looking at. By a connection of
        # its own: another thread may be submitting.
        with drfd.client.connect() as client, suppress(drfd.client.Refused):  # of ended ones
            client.cancel(list(self._live))


def _defaults(settings: ExecutorSettings | None) -> dict[str, object]:
    """Return the options for jobs whose rules do not ask for them. Raises WorkflowError."""
    if settings is None:
        return {}
    found: dict[str, object] = {"pool": settings.pool}
    for word in shlex.split(settings.options or ""):
        key, has_value, value = word.partition("=")
        if key not in BY_KEY:
            raise WorkflowError(f"--drfd-options: drfd has no option {key}")
        found[key] = value if has_value else True
    return found


def _options(job: JobExecutorInterface) -> dict[str, object]:
    """Return the options of a job: what is standard in Snakemake, and what is drfd's own."""
    asked = job.resources.get
    found = {
        "name": job.name,
        "stdout": os.path.abspath(_OUTPUTS).replace("%", "%%") + f"/{job.name}-%j.log",
        "cores": job.threads,
        "memory": f"{asked('mem_mb')}M" if asked("mem_mb") else None,
        "time": f"{asked('runtime')}m" if asked("runtime") else None,
        "gres": {"gpu": asked("gpu")} if asked("gpu") else None,
    }
    found |= {key: asked(f"drf_{key}") for key in BY_KEY if asked(f"drf_{key}") is not None}
    return {key: value for key, value in found.items() if value is not None}
