"""A daemon under another policy: chosen in the configuration, also while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable

from instance import CONFIG, Instance


def test_a_daemon_with_slots_runs_so_many_jobs_and_says_what_is_waited_for(
    make_instance: Callable[..., Instance],
) -> None:
    slots = '[scheduling]\npolicy = "slots"\nslots = 1\n'
    instance = make_instance(CONFIG + slots).start()
    first = instance.submit("--", "sleep", "100")
    second = instance.submit("--", "sleep", "100")
    instance.wait_state(first, "RUNNING")
    reason = json.loads(instance.drf("show", second, "--json").stdout)["reason"]
    assert (reason["code"], reason["text"]) == ("RESOURCES", "all 1 slots are taken (policy slots)")
    instance.config.write_text(CONFIG)
    instance.drf("reload")
    instance.wait_state(second, "RUNNING")
    assert instance.show(first)["state"] == "RUNNING"
