"""A real Prometheus reads the metrics of a whole daemon, takes the shipped rules, and an alert
fires."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from instance import CONFIG, Instance, patient, wait_for

_PROGRAMS = ("prometheus", "promtool")
_LACKING = [name for name in _PROGRAMS if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(
    bool(_LACKING) and os.environ.get("DRFD_PROMETHEUS") != "required",
    reason=f"not installed: {', '.join(_LACKING)}",
)


def shipped(name: str) -> str:
    command = [sys.executable, "-I", "-m", "drfd.daemon", "metrics", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def promtool(*words: object) -> str:
    done = subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Prometheus:
    """A Prometheus of the test's own, with a directory and a port."""

    def __init__(self, directory: Path, port: int) -> None:
        self.log = directory / "log"
        self._url = f"http://127.0.0.1:{port}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of a reply, or None while it does not answer."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=patient(60)) as reply:
                return json.load(reply)["data"]
        except (urllib.error.URLError, ConnectionError):
            assert self.process.poll() is None, self.log.read_text()
            return None

    def value(self, expression: str) -> float | None:
        data = self.ask("query", query=expression)
        found = data["result"] if data else []
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def target(self) -> Any:
        """Return the one target that it reads, once it has been read."""
        data = self.ask("targets")
        targets = data["activeTargets"] if data else []
        return targets[0] if targets and targets[0]["health"] != "unknown" else None

    def firing(self) -> set[str]:
        data = self.ask("alerts") or {"alerts": []}
        return {
            alert["labels"]["alertname"] for alert in data["alerts"] if alert["state"] == "firing"
        }


@pytest.fixture
def running(
    make_instance: Callable[..., Instance], tmp_path: Path
) -> Iterator[tuple[Instance, Prometheus]]:
    """A daemon, and a Prometheus that reads it twice a second with the shipped rules. Of the rules
    only the times for which a condition must hold are shorter."""
    port, own_port = free_ports(2)
    instance = make_instance(f"{CONFIG}[metrics]\nsocket = true\nport = {port}\n").start()
    rules = re.sub(r"\bfor: \w+", "for: 1s", shipped("alerts"))
    (tmp_path / "alerts.yml").write_text(rules)
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 500ms, evaluation_interval: 500ms}\n"
        "rule_files: [alerts.yml]\n"
        "scrape_configs:\n"
        "  - job_name: drfd\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    prometheus = Prometheus(tmp_path, own_port)
    yield instance, prometheus
    prometheus.process.terminate()
    prometheus.process.wait(patient(120))


def test_promtool_accepts_the_rules_and_the_metrics(
    make_instance: Callable[..., Instance], tmp_path: Path
) -> None:
    path = tmp_path / "alerts.yml"
    path.write_text(shipped("alerts"))
    assert "8 rules found" in promtool("check", "rules", path)
    instance = make_instance(CONFIG + "[metrics]\nsocket = true\n").start()
    # Its linter reads the older format.
    file = instance.root / "drfd.prom"
    more = f'[metrics]\ntextfile = "{file}"\ntextfile_interval = "1s"\n'
    instance.stop()
    instance.config.write_text(CONFIG + more)
    instance.start()
    wait_for("the file", file.exists)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=file.read_bytes(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_prometheus_reads_the_daemon_and_an_alert_fires(
    running: tuple[Instance, Prometheus],
) -> None:
    instance, prometheus = running
    target = wait_for("a scrape", prometheus.target, show=prometheus.log.read_text)
    assert (target["health"], target["lastError"]) == ("up", "")
    wait_for("capacity", lambda: prometheus.value("drfd_capacity_cores") == 9)
    job = instance.submit("-p", "A", "-c", "2", "--", "sleep", "1000")
    running_in = 'drfd_pool_running_jobs{pool="A"}'
    wait_for("the job", lambda: prometheus.value(running_in) == 1)
    assert prometheus.value("drfd_job_start_delay_seconds_count") is not None
    wait_for("a first evaluation", lambda: prometheus.ask("rules")["groups"][0]["lastEvaluation"])
    assert "DrfdDrainedForLong" not in prometheus.firing()
    instance.drf("drain")
    wait_for("the alert", lambda: "DrfdDrainedForLong" in prometheus.firing())
    assert "DrfdLauncherAway" not in prometheus.firing()
    instance.drf("undrain")
    wait_for("its end", lambda: "DrfdDrainedForLong" not in prometheus.firing())
    instance.drf("cancel", job)
    instance.wait_end(job)
