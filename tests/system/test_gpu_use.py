"""Which job a process on a GPU belongs to, by the kernel's own cgroups."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from drfd.core.model.job import Job
from drfd.daemon.monitoring.gpu_use import GpuUse
from drfd.daemon.monitoring.meter import GpuShare, Meter
from drfd.launcher.gpu_meter.reading import encode, process_reading
from fakes import spec
from instance import CONFIG, Accounts, Instance, wait_for

pytestmark = pytest.mark.system


def test_a_process_of_a_job_and_its_children_are_found_by_the_jobs_cgroup(
    lend: Callable[[str], Instance], users: Accounts
) -> None:
    """The processes that a driver names, as the process that measures reads them."""
    instance = lend(CONFIG)
    instance.work.chmod(0o777)
    pids = instance.work / "pids"
    script = f"setsid sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    uid = users[0].pw_uid
    asks = ("-c", "0.1", "-m", "64M")
    job_ids = [instance.submit(*asks, "--", "sh", "-c", script, user=uid)]
    wait_for("its processes", pids.exists)
    job_ids.append(instance.submit(*asks, "--", "sleep", "600", user=uid))
    instance.wait_state(job_ids[1], "RUNNING")
    shown: list[dict[str, Any]] = [instance.show(job_id) for job_id in job_ids]
    meter = Meter(time.monotonic)
    for job in shown:
        meter.watch((job["id"], job["attempt"]), 0, job["cgroup"])
    jobs = {
        job["id"]: Job(id=job["id"], spec=spec(), attempt=job["attempt"], submitted_at=0.0)
        for job in shown
    }
    child, first = map(int, pids.read_text().split())
    processes = [process_reading(pid, 100, 10) for pid in (child, first, 1)]
    assert [each["uid"] for each in processes] == [uid, uid, 0]
    gpu = {
        "name": "0", "pci": "0000:01:00.0", "uuid": None, "slice": None, "memory_used": 900,
        "memory_total": 1000, "utilisation": 50, "is_lost": False, "processes": processes,
    }  # fmt: skip
    use = GpuUse(meter)
    use.take("any", json.dumps(json.loads(encode()) | {"gpus": [gpu]}), jobs)
    assert [meter.gpus(jobs[job_id]) for job_id in job_ids] == [GpuShare(200, 20), GpuShare(0, 0)]
    assert [each.pid for each in use.gpus()[0].outside] == [1]
