"""What administrators and users set for a while, with a whole daemon, also after a restart."""

from __future__ import annotations

import json

from instance import Instance


def ids_by_state(instance: Instance, *chosen: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for job in json.loads(instance.drf("status", "--json", *chosen).stdout)["jobs"]:
        found.setdefault(job["state"], []).append(job["id"])
    return found


def test_everybody_reads_why_nothing_starts_also_after_a_restart(instance: Instance) -> None:
    instance.drf("drain", "--reason", "disk swap at 18:00")
    job_id = instance.submit("-c", "0.1", "--", "true")
    for _ in range(2):
        assert "disk swap at 18:00" in instance.drf("status").stderr
        assert "disk swap at 18:00" in instance.drf("shares").stderr
        assert "disk swap at 18:00" in instance.drf("doctor").stdout
        told = instance.drf("why", job_id).stdout
        assert "DRAINING: " in told
        assert "until drf undrain: disk swap at 18:00" in told
        instance.stop()
        instance.start()
    instance.drf("drain", "--reason", "swap at 19:00")
    assert "swap at 19:00" in instance.drf("why", job_id).stdout
    instance.drf("undrain")
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert "drain" not in json.loads(instance.drf("status", "--json").stdout)


def test_no_more_of_a_group_run_at_once_also_after_a_restart(instance: Instance) -> None:
    asked = ("-c", "0.1", "-m", "16M", "-g", "sweep%2", "--", "sleep", "600")
    ids = [instance.submit(*asked) for _ in range(4)]
    other = instance.submit("-c", "0.1", "-m", "16M", "--", "sleep", "600")
    for job_id in (*ids[:2], other):
        instance.wait_state(job_id, "RUNNING")
    for _ in range(2):
        assert ids_by_state(instance, "-g", "sweep") == {"RUNNING": ids[:2], "PENDING": ids[2:]}
        assert "of group sweep run; at most 2 may run at once" in instance.drf("why", ids[2]).stdout
        instance.stop()
        instance.start()
    instance.drf("set", "-y", "--group", "sweep%3")
    instance.wait_state(ids[2], "RUNNING")
    assert ids_by_state(instance, "-g", "sweep") == {"RUNNING": ids[:3], "PENDING": ids[3:]}
    instance.drf("cancel", "-y", "-g", "sweep")
    for job_id in ids:
        assert instance.wait_end(job_id)["state"] == "CANCELLED"
    assert ids_by_state(instance) == {"RUNNING": [other]}
    instance.drf("cancel", "-y", other)
