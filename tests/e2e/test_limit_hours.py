"""Limits by hour, from the configuration file to the jobs that wait for their hour."""

from __future__ import annotations

import time
from collections.abc import Callable

from instance import CONFIG, Instance

PLAIN = CONFIG.replace("processes = 64", "processes = 64\ncgroups = false")
POOL = '[pools.night]\n[[pools.night.hours]]\nwhen = "{}"\nlimit = {{cores = 0}}\n'


def weekday(days: int) -> str:
    """The weekday so many days from now."""
    return time.strftime("%a", time.localtime(time.time() + days * 86400))


def test_a_job_waits_for_its_hour_and_starts_when_the_limit_is_taken_back(
    make_instance: Callable[..., Instance],
) -> None:
    """The days around today: no hour of them ends while the test runs."""
    instance = make_instance(PLAIN + POOL.format(f"{weekday(-2)}-{weekday(2)}")).start()
    shut = instance.submit("-p", "night", "-t", "1m", "--", "true")
    free = instance.submit("-t", "1m", "--", "true")
    assert instance.wait_end(free)["state"] == "COMPLETED"
    waits = instance.show(shut)
    assert waits["reason"]["code"] == "LIMIT"
    assert "night may hold 0 until " in waits["reason"]["text"]
    why = instance.drf("why", str(shut)).stdout
    assert "never" not in why
    assert "it starts by " in why
    assert "limit of night: 0 cores until " in instance.drf("shares").stdout
    instance.config.write_text(PLAIN + POOL.format(weekday(3)))
    instance.drf("reload")
    assert instance.wait_end(shut)["state"] == "COMPLETED"
    assert "limit of night: no limit until " in instance.drf("doctor").stdout
