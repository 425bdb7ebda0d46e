"""What starts, in which order and when, on a real daemon with real processes: shares, weights, a
reservation, and rules that come and go."""

from __future__ import annotations

import getpass
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from math import inf

import pytest

from drfd.client.connection import Connection
from instance import CONFIG, PLAIN, Instance, wait_for


@pytest.mark.anew
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
    shares = instance._ask("shares")
    nodes = {node["path"]: node for node in shares["nodes"]}
    user = f".{getpass.getuser()}"
    assert set(nodes) == {"root.A", "root.A" + user, "root.B", "root.B" + user}
    for path, resource, count in (("root.A", "memory", 3), ("root.B", "cores", 2)):
        assert nodes[path]["dominant_share"] == pytest.approx(2 / 3)
        assert nodes[path]["dominant_resource"] == resource
        assert nodes[path]["running"] == count
    assert shares["free"]["cores"] == 0
    assert shares["free"]["memory"] == 4 << 30


def test_weights_of_three_to_one_to_one_are_kept_with_long_queues_of_short_jobs(
    lend: Callable[[str], Instance],
) -> None:
    """Within one job of the entitlements: 6, 2 and 2 of ten cores."""
    pools = "[pools.A]\nweight = 3\n[pools.B]\n[pools.C]\n[pools.all]\n"
    text = CONFIG.replace("cores = 9", "cores = 10").replace("[pools.A]\n[pools.B]\n", pools)
    instance = lend(text)
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


def test_a_job_of_most_of_the_machine_starts_in_a_busy_stream(
    lend: Callable[[str], Instance],
) -> None:
    """It has a reservation, and starts while small jobs still wait."""
    text = CONFIG.replace("cores = 9", "cores = 10")
    instance = lend(f"{text}[scheduling]\nreservation_delay = '1s'\n[pools.C]\n")
    with closing(Connection(instance.socket)) as client:
        for number in range(160):
            client.request(
                "submit", argv=["sleep", "1"], cwd=str(instance.work), pool="AB"[number % 2],
                env={"PATH": os.environ["PATH"]}, stdout="/dev/null", time_limit_s=4,
                demand={"cores_milli": 1000, "memory_bytes": 64 << 20},
            )  # fmt: skip
    big = instance.submit("-p", "C", "-c", "9", "-t", "5s", "--", "sleep", "1")
    # It may start before we look.
    told = wait_for(
        "its reservation",
        lambda: [
            job for job in [instance.show(big)] if job["expected_start_at"] or job["started_at"]
        ],
    )[0]
    assert told["started_at"] or "is kept for it" in told["reason"]["text"]
    started = wait_for("its start", lambda: instance.show(big)["started_at"])
    # By their times: some may have started before we look.
    later = [job for job in instance.status("--all") if (job["started_at"] or inf) > started]
    assert later, "it passed the small jobs"
    # Patience, the longest small job by its limit, and a pass.
    assert started - told["submitted_at"] < 1 + 4 + 5 + 3


def test_a_reload_changes_the_rules_and_leaves_running_jobs_alone(instance: Instance) -> None:
    running = instance.running("-c", "8", "--", "sleep", "600")["id"]
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
    smaller = lambda: instance._ask("shares")["capacity"]["cores"] == 2  # noqa: E731
    wait_for("a smaller machine", smaller)
    assert {job["state"] for job in instance.status()} == {"RUNNING"}
    assert instance._ask("shares")["free"]["cores"] == 0


def test_a_daemon_with_slots_runs_so_many_jobs_until_a_reload_takes_another_policy(
    lend: Callable[[str], Instance],
) -> None:
    instance = lend(f'{CONFIG}[scheduling]\npolicy = "slots"\nslots = 1\n')
    first = instance.submit("--", "sleep", "100")
    second = instance.submit("--", "sleep", "100")
    instance.wait_state(first, "RUNNING")
    reason = instance.show(second)["reason"]
    assert (reason["code"], reason["text"]) == ("RESOURCES", "all 1 slots are taken (policy slots)")
    instance.config.write_text(CONFIG)
    instance.drf("reload")
    instance.wait_state(second, "RUNNING")
    assert instance.show(first)["state"] == "RUNNING"


# -- what is set for a while ------------------------------------------------------------------


def weekday(days: int) -> str:
    """The weekday so many days from now."""
    return time.strftime("%a", time.localtime(time.time() + days * 86400))


def window() -> str:
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + 1800))
    return (
        f'[[window]]\nname = "upgrade"\nstart = "{start}"\nlength = "1h"\nreason = "new kernel"\n'
    )


def hours() -> str:
    """The days around today: no hour of them ends while the test runs."""
    days = f"{weekday(-2)}-{weekday(2)}"
    return f'[pools.night]\n[[pools.night.hours]]\nwhen = "{days}"\nlimit = {{cores = 0}}\n'


def quota() -> str:
    """Less than a job of all cores uses in a tenth of a second."""
    return '[pools.night]\nquota = {share_hours = 0.00001, then = "wait"}\n'


@pytest.mark.parametrize(
    ("rule", "starts", "waits", "code", "words"),
    [
        (window, ("-t", "1m"), ("-t", "1h"), "MAINTENANCE", "upgrade"),
        (hours, ("-t", "1m"), ("-p", "night", "-t", "1m"), "LIMIT", "night may hold 0 until "),
        (quota, ("-p", "night", "-c", "9"), ("-p", "night"), "QUOTA", "night has used "),
    ],
)
def test_a_job_waits_for_its_time_over_a_kill_until_a_reload_takes_the_rule_back(
    lend: Callable[[str], Instance],
    rule: Callable[[], str],
    starts: tuple[str, ...],
    waits: tuple[str, ...],
    code: str,
    words: str,
) -> None:
    instance = lend(PLAIN + rule())
    assert instance.ended(*starts, "--", "sleep", "0.2")["state"] == "COMPLETED"
    held = instance.submit(*waits, "--", "true")
    instance.strike("controller")
    # Until the launcher is connected, that is the reason.
    wait_for("its reason", lambda: instance.show(held)["reason"]["code"] == code)
    assert words in instance.show(held)["reason"]["text"]
    instance.config.write_text(PLAIN + "[pools.night]\n")
    instance.drf("reload")
    assert instance.wait_end(held)["state"] == "COMPLETED"


def test_everybody_reads_why_nothing_starts_also_after_a_restart(instance: Instance) -> None:
    instance.drf("drain", "--reason", "disk swap at 18:00")
    job_id = instance.submit("-c", "0.1", "--", "true")
    for _ in range(2):
        assert "disk swap at 18:00" in instance.drf("status").stderr
        told = instance.drf("why", job_id).stdout
        assert "DRAINING: " in told
        assert "until drf undrain: disk swap at 18:00" in told
        instance.strike("restart")
    instance.drf("undrain")
    assert instance.wait_end(job_id)["state"] == "COMPLETED"


def test_no_more_of_a_group_run_at_once_also_after_a_restart(instance: Instance) -> None:
    def ids_by_state(*chosen: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for job in instance.status(*chosen):
            found.setdefault(job["state"], []).append(job["id"])
        return found

    asked = ("-c", "0.1", "-m", "16M", "-g", "sweep%2", "--", "sleep", "600")
    ids = [instance.submit(*asked) for _ in range(4)]
    other = instance.submit("-c", "0.1", "-m", "16M", "--", "sleep", "600")
    for job_id in (*ids[:2], other):
        instance.wait_state(job_id, "RUNNING")
    for _ in range(2):
        assert ids_by_state("-g", "sweep") == {"RUNNING": ids[:2], "PENDING": ids[2:]}
        assert "of group sweep run; at most 2 may run at once" in instance.drf("why", ids[2]).stdout
        instance.strike("restart")
    instance.drf("set", "-y", "--group", "sweep%3")
    instance.wait_state(ids[2], "RUNNING")
    assert ids_by_state("-g", "sweep") == {"RUNNING": ids[:3], "PENDING": ids[3:]}
    instance.drf("cancel", "-y", "-g", "sweep")
    for job_id in ids:
        assert instance.wait_end(job_id)["state"] == "CANCELLED"
    assert ids_by_state() == {"RUNNING": [other]}
