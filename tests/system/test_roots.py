"""drfd's own process beside each running job takes memory too, and finds it kept free."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drfd.core.scheduling.kept_free import RUNNER_BYTES
from drfd.host.measurements import read_machine
from instance import Instance, wait_for

pytestmark = pytest.mark.system

MIB = 1 << 20
LEFT_MIB, COUNT = 20, 12
#: Of each job. One of 1 MiB reaches its limit with its own start: of 120 on a busy machine, four
#: ended as OUT_OF_MEMORY.
TINY_MIB = 2


def test_tiny_jobs_leave_room_for_the_processes_that_wait_for_them(
    make_instance: Callable[..., Instance],
) -> None:
    """As many of them started as fit by what they had asked for, each with a process of root's of
    several megabytes beside it that nobody had counted."""
    total_mib = read_machine().memory_bytes // MIB
    # All that the machine has is given out: nothing is beside the capacity.
    instance = make_instance(f'[capacity]\ncores = 64\nmemory = "{total_mib}M"\n')
    instance.start()
    large = instance.submit("-m", f"{total_mib - LEFT_MIB}M", "--", "sleep", "600")
    instance.wait_state(large, "RUNNING")
    for _ in range(COUNT):
        instance.submit("-c", "0.01", "-m", f"{TINY_MIB}M", "--", "sleep", "600")
    most = (LEFT_MIB * MIB - RUNNER_BYTES) // (TINY_MIB * MIB + RUNNER_BYTES)

    def states() -> list[str]:
        return [job["state"] for job in instance.status() if job["id"] != large]

    wait_for("those that have room", lambda: states().count("RUNNING") == most, show=states)
    # One that leaves makes room for one more, and for its process.
    running = next(
        job["id"] for job in instance.status() if job["state"] == "RUNNING" and job["id"] != large
    )
    instance.drf("cancel", running)
    instance.wait_end(running)
    wait_for("another in its place", lambda: states().count("RUNNING") == most, show=states)
    final = states()
    assert final.count("PENDING") == COUNT - 1 - most, final
