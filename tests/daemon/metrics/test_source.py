"""What the source makes of a snapshot: series that do not come and go."""

from __future__ import annotations

from drfd.daemon.metrics.source import with_all_states


def test_each_state_of_a_live_job_has_its_number() -> None:
    assert with_all_states({"RUNNING": 2}) == {
        "PENDING": 0,
        "HELD": 0,
        "STARTING": 0,
        "RUNNING": 2,
        "SUSPENDED": 0,
        "STOPPING": 0,
        "CLEANING": 0,
    }
