"""When the cgroup of a job goes, and who knows the job until then."""

from __future__ import annotations

import os
import signal

import pytest

from instance import Instance, wait_for

pytestmark = pytest.mark.system


def test_a_cgroup_goes_while_the_end_is_recorded_and_the_attempt_stays_known(
    instance: Instance,
) -> None:
    """Its removal costs more than all else that is done at an end, and the next start may wait for
    that."""
    if not instance.has_cgroups():
        pytest.skip("there are no cgroups here")
    instance.arm("remove.before-kill", "stop")
    job_id = instance.submit("--", "true")
    stopped = instance.failpoints / "remove.before-kill.reached"
    launcher = int(wait_for("a removal", lambda: stopped.exists() and stopped.read_text()))
    try:
        assert instance.cgroups() == []
        assert (instance.state / f"launcher/attempts/{job_id}.1").exists()
        assert instance.show(job_id)["state"] == "CLEANING"
    finally:
        stopped.unlink()
        os.kill(launcher, signal.SIGCONT)
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
