"""Leave jobs behind that run and that wait, for the next boot to look at.

`python leave.py cut` is for a power cut: it lets nothing of drfd's be written to the disk by
anything but drfd itself, and cuts the power when the last job has been acknowledged.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from instance import wait_for
from vm.service.installed import Installed, demand

LEFT = Path("/var/lib/left.json")
#: Both of the guest's cores: nothing else runs beside one of these.
ALL = demand(cores_milli=2000)
#: Told to end, it takes its time.
PATIENT = (
    "trap 'echo term; sleep 1; echo end; exit 0' TERM; echo ready; while :; do sleep 0.2; done"
)
#: Its first run is cut short by the end of this boot.
AGAIN = f"[ $DRF_ATTEMPT = 2 ] && exit 0; {PATIENT}"
QUEUED = 4


def left() -> dict[str, Any]:
    return dict(json.loads(LEFT.read_text()))


def leave() -> None:
    """Three jobs that run, the last of them to be tried again, and (after the file has been
    written) as many that wait as it says."""
    installed = Installed()
    running = [
        installed.submit(user, "sh", "-c", PATIENT, demand=demand(cores_milli=600))
        for user in ("alice", "carol")
    ]
    retry = {"times": 1, "on": ["LOST"]}
    retried = installed.submit(
        "carol", "sh", "-c", AGAIN, demand=demand(cores_milli=600), retry=retry
    )
    for job_id in (*running, retried):
        installed.wait_state(job_id, "RUNNING")
        # Before its trap is set, it would end without a word.
        wait_for(f"a word of job {job_id}", lambda job_id=job_id: installed.output(job_id))
    (installed.work("bob") / "order").unlink(missing_ok=True)
    waiting = [retried + 1 + number for number in range(QUEUED)]
    LEFT.write_text(json.dumps({"running": running, "retried": retried, "waiting": waiting}))
    os.sync()
    for expected in waiting:
        script = "echo $DRF_JOB_ID >>order"
        job_id = installed.submit("bob", "sh", "-c", script, demand=ALL)
        assert job_id == expected


if __name__ == "__main__":
    leave()
    if sys.argv[1:] == ["cut"]:
        Path("/proc/sysrq-trigger").write_text("b")
