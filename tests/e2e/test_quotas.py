"""A quota of the week, from the configuration file over a killed daemon to the jobs that wait."""

from __future__ import annotations

import json
from collections.abc import Callable

from instance import CONFIG, Instance, wait_for

PLAIN = CONFIG.replace("processes = 64", "processes = 64\ncgroups = false")
#: Less than a job of all cores uses in a tenth of a second.
QUOTA = '[pools.tiny]\nquota = {share_hours = 0.00001, then = "wait"}\n'


def test_jobs_wait_for_their_quota_also_after_a_kill_until_a_reload_takes_it_back(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance(PLAIN + QUOTA).start()
    first = instance.submit("-c", "9", "-p", "tiny", "--", "sleep", "0.2")
    assert instance.wait_end(first)["state"] == "COMPLETED"
    second = instance.submit("-p", "tiny", "--", "true")
    other = instance.submit("-p", "A", "--", "true")
    assert instance.wait_end(other)["state"] == "COMPLETED"
    instance.kill()
    instance.start()
    # Until the launcher is connected, that is the reason.
    wait_for("the quota", lambda: instance.show(second)["reason"]["code"] == "QUOTA")
    assert "tiny has used " in instance.show(second)["reason"]["text"]
    assert "QUOTA" in instance.drf("shares").stdout
    nodes = json.loads(instance.drf("shares", "--json").stdout)["nodes"]
    (quota,) = [each["quota"] for each in nodes if "quota" in each]
    assert quota["used_hours"] > quota["share_hours"]
    assert instance.drf("why", str(second)).stdout.count("next week begins") == 1
    instance.config.write_text(PLAIN + "[pools.tiny]\n")
    instance.drf("reload")
    assert instance.wait_end(second)["state"] == "COMPLETED"
