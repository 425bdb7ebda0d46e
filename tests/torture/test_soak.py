"""The short form of the soak: half a minute, at half the pace where the processors are slow.

`python -m tests.torture.soak --minutes 60` is the long one.
"""

from __future__ import annotations

import os

from torture.soak import soak

SECONDS = float(os.environ.get("DRFD_SOAK_S", "30"))


def test_half_a_minute_of_jobs_and_deaths_leaves_nothing_behind() -> None:
    done = soak(SECONDS, seed=7, least_deaths=3)
    # As many as a slow machine accepts: each submission waits for the one before.
    assert len(done.fates) > SECONDS
    assert sum(count for name, count in done.counts.items() if name.startswith("killed")) >= 3
    assert done.counts["looks"] > SECONDS / 10
