"""Metrics of a whole daemon: at its socket, at a port, in a file, and from the command line."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from instance import CONFIG, Instance, wait_for
from strangers import full_listener

MakeInstance = Callable[..., Instance]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def drfd(instance: Instance, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "drfd.daemon", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DRFD_SOCKET": str(instance.socket)},
    )


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(instance: Instance, name: str, **labels: str) -> float | None:
    done = drfd(instance, "metrics")
    assert (done.returncode, done.stderr) == (0, "")
    return values(done.stdout).get((name, frozenset(labels.items())))


def test_jobs_are_in_the_metrics_while_they_run_and_after(make_instance: MakeInstance) -> None:
    instance = make_instance(CONFIG + "[metrics]\nsocket = true\n").start()
    assert stat.S_ISSOCK((instance.root / "metrics.sock").stat().st_mode)
    wait_for("the launcher", lambda: value(instance, "drfd_launcher_up") == 1)
    assert value(instance, "drfd_allocated_cores") == 0
    assert value(instance, "drfd_capacity_cores") == 9
    assert value(instance, "drfd_jobs_ended_total", outcome="COMPLETED") == 0
    for state in ("PENDING", "HELD", "STARTING", "RUNNING", "SUSPENDED", "STOPPING", "CLEANING"):
        assert value(instance, "drfd_jobs", state=state) == 0
    job = instance.submit("-p", "A", "-c", "3", "--", "sleep", "1000")
    wait_for("the job in the metrics", lambda: value(instance, "drfd_allocated_cores") == 3)
    assert value(instance, "drfd_pool_running_jobs", pool="A") == 1
    assert value(instance, "drfd_pool_running_jobs", pool="/") == 1
    wait_for("its start", lambda: value(instance, "drfd_job_start_delay_seconds_count") == 1)
    instance.drf("cancel", job)
    instance.wait_end(job)
    wait_for(
        "its end",
        lambda: value(instance, "drfd_jobs_ended_total", outcome="CANCELLED") == 1,
    )
    turns = value(instance, "drfd_turn_duration_seconds_count")
    assert turns is not None and turns > 3
    commits = value(instance, "drfd_commit_duration_seconds_count")
    assert commits is not None and commits >= 3


def test_a_drained_machine_says_so(make_instance: MakeInstance) -> None:
    instance = make_instance(CONFIG + "[metrics]\nsocket = true\n").start()
    assert value(instance, "drfd_drained") == 0
    instance.drf("drain")
    wait_for("the drain", lambda: value(instance, "drfd_drained") == 1)


def test_port_and_file_say_what_the_socket_says(make_instance: MakeInstance) -> None:
    port = free_port()
    instance = make_instance()
    file = instance.root / "drfd.prom"
    text = f'[metrics]\nport = {port}\ntextfile = "{file}"\ntextfile_interval = "1s"\n'
    instance.config.write_text(CONFIG + text)
    instance.start()

    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        found = response.status, response.read().decode()
        connection.close()
        return found

    status, body = ask()
    assert status == 200
    assert values(body)["drfd_capacity_cores", frozenset()] == 9
    wait_for("the file", file.exists)
    assert re.search(r"^drfd_capacity_cores 9\.0$", file.read_text(), re.MULTILINE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    before = file.stat().st_ino
    wait_for("a fresh file", lambda: file.stat().st_ino != before)
    instance.stop()
    assert not file.exists(), "old figures must not look new"
    assert [each for each in os.listdir(instance.root) if each.endswith(".new")] == []


def test_a_port_in_use_is_a_warning_and_jobs_run(make_instance: MakeInstance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        instance = make_instance(f"{CONFIG}[metrics]\nport = {port}\n").start()
        warning = f"metrics.port: cannot listen at 127.0.0.1:{port}: Address already in use"
        assert warning in instance.log.read_text()
        assert warning in instance.drf("doctor", check=False).stdout
        assert instance.wait_end(instance.submit("--", "true"))["outcome"]["code"] == "COMPLETED"


def test_a_busy_socket_of_another_program_is_a_warning_and_jobs_run(
    make_instance: MakeInstance,
) -> None:
    """Its backlog is full: nobody can connect to it, and connecting must not be waited for."""
    instance = make_instance(CONFIG + "[metrics]\nsocket = true\n")
    path = instance.root / "metrics.sock"
    with full_listener(path):
        instance.start()
        warning = f"metrics.socket: cannot listen at {path}: another program listens there"
        assert instance.log.read_text().count(warning) == 1
        assert warning in instance.drf("doctor", check=False).stdout
        assert instance.wait_end(instance.submit("--", "true"))["outcome"]["code"] == "COMPLETED"
        instance.stop()
    assert path.is_socket(), "it is not drfd's to remove"


def wait_for_end(instance: Instance, job: int, count: int) -> None:
    """Wait until the metrics have this many completed jobs, with the given one."""
    instance.wait_end(job)
    wait_for(
        "its end in the metrics",
        lambda: value(instance, "drfd_jobs_ended_total", outcome="COMPLETED") == count,
    )


def test_a_file_that_cannot_be_written_is_logged_once(make_instance: MakeInstance) -> None:
    text = '[metrics]\nsocket = true\ntextfile = "/nonexistent/x.prom"\ntextfile_interval = "1s"\n'
    instance = make_instance(CONFIG + text).start()
    wait_for("the line", lambda: "event=metrics-not-written" in instance.log.read_text())
    # It tries again each second, and so are figures made anew.
    for count in (1, 2, 3):
        wait_for_end(instance, instance.submit("--", "true"), count)
    assert instance.log.read_text().count("event=metrics-not-written") == 1


def test_without_the_table_there_are_no_metrics_and_the_verb_says_how(instance: Instance) -> None:
    done = drfd(instance, "metrics")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert done.stderr.count("\n") == 1
    assert "no metrics at" in done.stderr and "[metrics] socket = true" in done.stderr
    assert not (instance.root / "metrics.sock").exists()


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bdrfd_\w+", expression))


def test_the_shipped_files_use_metrics_that_there_are(make_instance: MakeInstance) -> None:
    instance = make_instance(CONFIG + "[metrics]\nsocket = true\n").start()
    families = [*text_string_to_metric_families(drfd(instance, "metrics").stdout)]
    there = {sample.name for family in families for sample in family.samples}
    there |= {family.name for family in families}
    # These depend on the machine and on its configuration.
    there |= {"drfd_gpu_utilisation_ratio", "drfd_gpu_memory_used_bytes", "drfd_pressure_ratio"}
    there |= {"drfd_external_cores", "drfd_external_memory_bytes"}
    dashboard: dict[str, Any] = json.loads(drfd(instance, "metrics", "dashboard").stdout)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    rules = drfd(instance, "metrics", "alerts").stdout
    expressions += re.findall(r"expr: (?!\|)(.*)", rules)
    expressions += re.findall(r"expr: \|\n((?: {10}.*\n)+)", rules)
    for expression in expressions:
        assert names_in(expression), expression
        assert names_in(expression) <= there, expression
