"""The paper's running example on a real daemon with real processes."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from math import inf

import pytest

from instance import CONFIG, Instance, wait_for


def test_table_1_of_the_paper(instance: Instance) -> None:
    """9 CPUs and 18 GB; A with tasks of <1 CPU, 4 GB>, B of <3 CPUs, 1 GB>: 3 and 2 at once,
    launched B A A B A when B was there first, both with a dominant share of 2/3."""
    instance.drf("drain")
    for _ in range(4):
        instance.submit("-p", "B", "-c", "3", "-m", "1G", "--", "sleep", "600")
    for _ in range(5):
        instance.submit("-p", "A", "-c", "1", "-m", "4G", "--", "sleep", "600")
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
    # A launch has the time at which the launcher took it up, one after the other.
    order = [job["pool"][-1] for job in sorted(running, key=lambda job: job["started_at"])]
    assert order == list("BAABA")
    shares = json.loads(instance.drf("shares", "--json").stdout)
    nodes = {node["path"]: node for node in shares["nodes"]}
    user = f".{getpass.getuser()}"
    assert set(nodes) == {"root.A", "root.A" + user, "root.B", "root.B" + user}
    for path, resource, count in (("root.A", "memory", 3), ("root.B", "cores", 2)):
        assert nodes[path]["dominant_share"] == pytest.approx(2 / 3)
        assert nodes[path]["dominant_resource"] == resource
        assert nodes[path]["running"] == count
    assert shares["free"]["cores"] == 0
    assert shares["free"]["memory"] == 4 << 30


def test_waits_are_explained_by_what_is_short_and_who_holds_it(instance: Instance) -> None:
    for _ in range(2):
        first = instance.submit("-p", "A", "-c", "4", "--", "sleep", "600")
        # While it starts, nobody knows yet until when.
        instance.wait_state(first, "RUNNING")
    second = instance.submit("-p", "A", "-c", "2", "--", "true")
    reason = instance.show(second)["reason"]
    assert reason["code"] == "RESOURCES"
    assert reason["text"].startswith("needs 2 cores, 1 free; job 1, also of ")
    assert "holds 4 until" in reason["text"]
    third = instance.submit("-p", "B", "-c", "4", "--", "true")
    assert instance.show(third)["reason"]["code"] == "RESOURCES"
    behind = instance.show(second)["reason"]
    assert behind["code"] == "FAIR_SHARE"
    assert f"B/{getpass.getuser()} has less and goes first" in behind["text"]


def test_a_freed_place_goes_to_the_leaf_that_is_furthest_below(instance: Instance) -> None:
    first, _ = (instance.submit("-p", "A", "-c", "4", "--", "sleep", "600") for _ in range(2))
    instance.wait_state(first, "RUNNING")
    more = [instance.submit("-p", "A", "-c", "4", "--", "true") for _ in range(3)]
    other = instance.submit("-p", "B", "-c", "4", "--", "true")
    instance.drf("cancel", first)
    instance.drf("wait", other, *more)
    starts = {job_id: instance.show(job_id)["started_at"] for job_id in (other, *more)}
    assert min(starts, key=lambda job_id: starts[job_id]) == other


TREE = """
[pools.lab]
weight = 3
limit = {cores = 6}
[pools.lab.pools.night]
[users.nobody]
weight = 2
"""


def test_limits_and_nested_pools_hold_on_a_real_daemon(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance(CONFIG.replace("[pools.A]", TREE + "[pools.A]")).start()
    first = instance.submit("-p", "lab", "-c", "4", "--", "sleep", "600")
    second = instance.submit("-p", "lab.night", "-c", "3", "--", "sleep", "600")
    instance.wait_state(first, "RUNNING")
    reason = instance.show(second)["reason"]
    assert reason["code"] == "LIMIT"
    who = f"job {first}, also of {getpass.getuser()}, holds 4"
    text = f"lab may hold 6 cores and holds 4; the job needs 3; {who}"
    assert reason["text"].partition(" until ")[0] == text
    too_big = instance.drf("submit", "-p", "lab", "-c", "7", "--", "true", check=False)
    assert too_big.returncode == 1
    assert "lab may hold 6 at most" in too_big.stderr
    instance.drf("cancel", first)
    instance.wait_state(second, "RUNNING")
    nodes = json.loads(instance.drf("shares", "--json").stdout)["nodes"]
    user = getpass.getuser()
    active = [node["path"] for node in nodes if node["running"]]
    assert active == ["root.lab", "root.lab.night", f"root.lab.night.{user}"]
    assert "\n   night" in instance.drf("shares").stdout


def test_weights_of_three_to_one_to_one_are_kept_with_long_queues_of_short_jobs(
    make_instance: Callable[..., Instance],
) -> None:
    """Within one job of the entitlements: 6, 2 and 2 of ten cores."""
    pools = "[pools.A]\nweight = 3\n[pools.B]\n[pools.C]\n[pools.all]\n"
    text = CONFIG.replace("cores = 9", "cores = 10").replace("[pools.A]\n[pools.B]\n", pools)
    instance = make_instance(text).start()
    block = instance.submit("-p", "all", "-c", "10", "--", "sleep", "600")
    ids = {
        instance.submit("-p", pool, "-m", "64M", "--", "sleep", "2"): pool
        for _ in range(20)
        for pool in "CBA"
    }
    instance.drf("cancel", block)
    seen: dict[str, list[int]] = {"A": [], "B": [], "C": []}
    while True:
        jobs = [job for job in instance._ask("status", select={})["jobs"] if job["id"] in ids]
        # Who has no more queued gives its place to the others.
        if {ids[job["id"]] for job in jobs if job["state"] == "PENDING"} != {*seen}:
            break
        counts = Counter(ids[job["id"]] for job in jobs if job["state"] == "RUNNING")
        if sum(counts.values()) == 10:
            for pool, row in seen.items():
                row.append(counts[pool])
        time.sleep(0.1)
    assert len(seen["A"]) >= 2, instance.status()
    means = {pool: sum(row) / len(row) for pool, row in seen.items()}
    for pool, expected in (("A", 6), ("B", 2), ("C", 2)):
        assert abs(means[pool] - expected) <= 1, seen


@pytest.mark.parametrize("reserves", [True, False])
def test_a_job_of_most_of_the_machine_in_a_busy_stream(
    make_instance: Callable[..., Instance], reserves: bool
) -> None:
    """With a reservation it starts while small jobs still wait; without, only after all of them."""
    switch = f"[scheduling]\npatience = '1s'\nreservation = {str(reserves).lower()}\n[pools.C]\n"
    text = CONFIG.replace("cores = 9", "cores = 10")
    instance = make_instance(text + switch).start()
    small = ("-m", "64M", "-t", "4s", "--", "sleep", "1")
    with ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.connect(str(instance.socket))
        replies = stack.enter_context(connection.makefile("rb"))
        for number in range(160):
            request = {
                "op": "submit", "v": 1, "argv": list(small[-2:]), "cwd": str(instance.work),
                "pool": "AB"[number % 2], "time_limit_s": 4, "env": {"PATH": os.environ["PATH"]},
                "demand": {"cores_milli": 1000, "memory_bytes": 64 << 20},
                "stdout": "/dev/null", "stderr": "/dev/null",
            }  # fmt: skip
            connection.sendall(json.dumps(request).encode() + b"\n")
            assert json.loads(replies.readline())["ok"]
    big = instance.submit("-p", "C", "-c", "9", "-t", "5s", "--", "sleep", "1")
    if reserves:
        # It may start before we look.
        told = wait_for(
            "its reservation",
            lambda: [
                job for job in [instance.show(big)] if job["expected_start_at"] or job["started_at"]
            ],
        )[0]
        assert told["started_at"] or "is kept for it" in told["reason"]["text"]
    started = wait_for("its start", lambda: instance.show(big)["started_at"])
    if reserves:
        # By their times: some may have started before we look.
        later = [job for job in instance.status("--all") if (job["started_at"] or inf) > started]
        assert later, "it passed the small jobs"
        job = instance.show(big)
        # Patience, the longest small job by its limit, and a pass.
        assert started - job["submitted_at"] < 1 + 4 + 5 + 3
    else:
        waiting = [job for job in instance.status() if job["state"] == "PENDING"]
        assert not waiting, "it waited for all of them"


def test_a_reload_changes_the_rules_and_leaves_running_jobs_alone(instance: Instance) -> None:
    running = instance.submit("-c", "8", "--", "sleep", "600")
    instance.wait_state(running, "RUNNING")
    waiting = instance.submit("-c", "4", "--", "sleep", "600")
    text = instance.config.read_text()
    instance.config.write_text(text.replace("cores = 9", "cores = nine"))
    refused = instance.drf("reload", check=False)
    assert refused.returncode == 78
    assert str(instance.config) in refused.stderr
    assert instance.show(waiting)["state"] == "PENDING"
    instance.config.write_text(text.replace("cores = 9", "cores = 12") + "[pools.new]\n")
    assert instance.drf("reload").stdout == "reloaded\n"
    instance.wait_state(waiting, "RUNNING")
    assert instance.show(running)["state"] == "RUNNING"
    instance.config.write_text(text.replace("cores = 9", "cores = 2"))
    assert instance.process is not None
    instance.process.send_signal(signal.SIGHUP)
    wait_for(
        "a smaller machine",
        lambda: json.loads(instance.drf("shares", "--json").stdout)["capacity"]["cores"] == 2,
    )
    assert {job["state"] for job in instance.status()} == {"RUNNING"}
    assert json.loads(instance.drf("shares", "--json").stdout)["free"]["cores"] == 0
