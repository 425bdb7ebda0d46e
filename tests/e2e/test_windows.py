"""Maintenance windows, from the configuration file to the jobs that wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable

from instance import CONFIG, Instance

PLAIN = CONFIG.replace("processes = 64", "processes = 64\ncgroups = false")
WINDOW = '[[window]]\nname = "upgrade"\nstart = "{}"\nlength = "1h"\nreason = "new kernel"\n'


def test_before_a_window_only_short_jobs_run_and_a_reload_takes_it_back(
    make_instance: Callable[..., Instance],
) -> None:
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + 1800))
    instance = make_instance(PLAIN + WINDOW.format(start)).start()
    long = instance.submit("-t", "1h", "--", "true")
    short = instance.submit("-t", "1m", "--", "true")
    assert instance.wait_end(short)["state"] == "COMPLETED"
    waits = instance.show(long)
    assert waits["reason"]["code"] == "MAINTENANCE"
    assert "upgrade" in waits["reason"]["text"]
    assert "new kernel" in instance.drf("doctor").stdout
    assert (
        "(upgrade); no job starts that might not end before: new kernel"
        in instance.drf("status").stderr
    )
    instance.config.write_text(PLAIN)
    instance.drf("reload")
    assert instance.wait_end(long)["state"] == "COMPLETED"
