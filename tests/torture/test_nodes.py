"""The short form of the kills of drfd's and Slurm's daemons: twenty, in about a minute.

`python -m tests.torture.nodes --kills 1000` is the long one.
"""

from __future__ import annotations

import pytest

from slurm_cluster import missing
from torture.nodes import torture

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

KILLS = 20


def test_twenty_kills_of_drfds_and_slurms_daemons_start_no_job_twice_and_lose_none() -> None:
    report = torture(KILLS, seed=7)
    assert report.faults == {}, str(report)
    assert report.kills.total() >= KILLS
    # They are no end of all jobs: most end as they would have without them.
    assert report.ends["COMPLETED"] > 0
    assert sum(report.ends.values()) == report.jobs > KILLS / 2
