"""Without cgroups, jobs that are to have CPUs for themselves stay on them by affinity."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from instance import CONFIG, Instance

CPUS = sorted(os.sched_getaffinity(0))
PINNED = CONFIG.replace("cores = 9", f"cores = {len(CPUS)}") + '\ncgroups = false\ncores = "pin"\n'
TELL = "while [ ! -e gate ]; do sleep 0.1; done; grep Cpus_allowed_list: /proc/self/status"


def test_whole_cores_are_apart_also_for_the_next_launcher(
    make_instance: Callable[[str], Instance],
) -> None:
    if len(CPUS) < 2:
        pytest.skip("one CPU is everybody's")
    instance = make_instance(PINNED).start()
    assert "measured: whole cores on CPUs of their own" in instance.drf("doctor").stdout
    ids = []
    for _ in CPUS:
        ids.append(instance.submit("-c", "1", "-m", "64M", "--", "sh", "-c", TELL))
        instance.wait_state(ids[-1], "RUNNING")
        instance.kill_launcher()
    (instance.work / "gate").touch()
    for job_id in ids:
        assert instance.wait_end(job_id)["state"] == "COMPLETED"
    where = [instance.output(job_id).split()[1] for job_id in ids]
    assert sorted(map(int, where)) == CPUS
