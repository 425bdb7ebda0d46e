"""When the cgroup of a job goes, and who knows the job until then."""

from __future__ import annotations

import os
import signal

import pytest

from instance import Instance, wait_for

pytestmark = pytest.mark.system


def test_a_cgroup_goes_before_the_end_is_recorded_and_the_attempt_stays_known(
    instance: Instance,
) -> None:
    """So the job's resources are free with its end: the next start waits for one commit."""
    if not instance.has_cgroups():
        pytest.skip("there are no cgroups here")
    instance.arm("remove.before-kill", "stop")
    job_id = instance.submit("--", "true")
    stopped = instance.failpoints / "remove.before-kill.reached"
    launcher = int(wait_for("a removal", lambda: stopped.exists() and stopped.read_text()))
    try:
        assert instance.cgroups() == []
        assert (instance.state / f"launcher/attempts/{job_id}.1").exists()
        assert instance.show(job_id)["state"] == "COMPLETED"
    finally:
        stopped.unlink()
        os.kill(launcher, signal.SIGCONT)
    wait_for(
        "the removal of its file", lambda: not os.listdir(instance.state / "launcher/attempts")
    )
