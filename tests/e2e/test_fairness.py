"""The paper's running example on a real daemon with real processes."""

from __future__ import annotations

import json

import pytest

from instance import Instance, wait_for


def test_table_1_of_the_paper(instance: Instance) -> None:
    """9 CPUs and 18 GB; A with tasks of <1 CPU, 4 GB>, B of <3 CPUs, 1 GB>: 3 and 2 at once,
    launched B A A B A when B was there first, both with a dominant share of 2/3."""
    instance.drf("drain")
    for _ in range(4):
        instance.submit("-p", "B", "-c", "3", "-m", "1G", "--", "sleep", "100")
    for _ in range(5):
        instance.submit("-p", "A", "-c", "1", "-m", "4G", "--", "sleep", "100")
    assert {job["reason"]["code"] for job in instance.status()} == {"DRAINING"}
    instance.drf("undrain")
    running = wait_for(
        "five running jobs",
        lambda: [
            found
            for found in [[job for job in instance.status() if job["state"] == "RUNNING"]]
            if len(found) == 5
        ],
        show=instance.status,
    )[0]
    order = [job["pool"][-1] for job in sorted(running, key=lambda job: job["started_at"])]
    assert order == list("BAABA")
    shares = json.loads(instance.drf("shares", "--json").stdout)
    nodes = {node["path"]: node for node in shares["nodes"]}
    assert set(nodes) == {"root.A", "root.B"}
    for path, resource, count in (("root.A", "memory", 3), ("root.B", "cores", 2)):
        assert nodes[path]["dominant_share"] == pytest.approx(2 / 3)
        assert nodes[path]["dominant_resource"] == resource
        assert nodes[path]["running"] == count
    assert shares["free"]["cores"] == 0
    assert shares["free"]["memory"] == 4 << 30


def test_waits_are_explained_by_what_is_short_and_who_holds_it(instance: Instance) -> None:
    instance.submit("-p", "A", "-c", "8", "-n", "big", "--", "sleep", "100")
    second = instance.submit("-p", "A", "-c", "2", "--", "true")
    reason = instance.show(second)["reason"]
    assert reason["code"] == "RESOURCES"
    assert reason["text"].startswith("needs 2 cores, 1 free; job 1 (")
    assert "holds 8 until" in reason["text"]
    third = instance.submit("-p", "B", "-c", "2", "--", "true")
    assert instance.show(third)["reason"]["code"] == "RESOURCES"
    behind = instance.show(second)["reason"]
    assert behind["code"] == "FAIR_SHARE"
    assert "root.B at 0% of the entitlement is served first" in behind["text"]


def test_a_freed_place_goes_to_the_leaf_that_is_furthest_below(instance: Instance) -> None:
    first, _ = (instance.submit("-p", "A", "-c", "4", "--", "sleep", "100") for _ in range(2))
    instance.wait_state(first, "RUNNING")
    more = [instance.submit("-p", "A", "-c", "4", "--", "true") for _ in range(3)]
    other = instance.submit("-p", "B", "-c", "4", "--", "true")
    instance.drf("cancel", first)
    instance.drf("wait", other, *more)
    starts = {job_id: instance.show(job_id)["started_at"] for job_id in (other, *more)}
    assert min(starts, key=lambda job_id: starts[job_id]) == other
