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
    assert "9 rules found" in promtool("check", "rules", path)
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


#: Series of one machine, with a value for each minute: of Prometheus's own, and of drfd's.
LOST = 'drfd_jobs_ended_total{job="drfd",instance="m",outcome="LOST"}'
FAILED = 'drfd_jobs_ended_total{job="drfd",instance="m",outcome="LAUNCH_FAILED"}'
START = 'drfd_start_time_seconds{job="drfd",instance="m"}'
IS_UP = 'up{job="drfd",instance="m"}'
#: Away for four hours after the first, and then started again.
BACK = {IS_UP: "1x59 0x239 1x600", START: f"0x59 stale _x238 {5 * 3600}x600"}


def user(name: str) -> str:
    return f'drfd_user_{name}{{job="drfd",instance="m",pool="lab",user="alice"}}'


DRAINED, LAUNCHER = (
    f'drfd_{name}{{job="drfd",instance="m"}}' for name in ("drained", "launcher_up")
)
#: A user with a quarter of what is due, and jobs that wait.
SHORT = {
    IS_UP: "1x600",
    START: "0x600",
    DRAINED: "0x600",
    LAUNCHER: "1x600",
    user("satisfaction_ratio"): "0.25x600",
    user("waiting_jobs"): "3x600",
    user("held_back"): "0x600",
}
MTIME = 'node_textfile_mtime_seconds{job="node",instance="m",file="/var/lib/x/drfd.prom"}'
BY_FILE = 'drfd_start_time_seconds{job="node",instance="m"}'


@pytest.mark.parametrize(
    ("series", "minute", "alerts"),
    [
        pytest.param({IS_UP: "1x600", START: "0x600", LOST: "0x600"}, 60, set(), id="well"),
        pytest.param({**BACK, LOST: "0x59 stale _x238 2x600"}, 304, {"DrfdJobsLost"}, id="lost"),
        pytest.param(
            {**BACK, FAILED: "0x59 stale _x238 20x600"}, 304, {"DrfdLaunchesFail"}, id="launches"
        ),
        pytest.param({**BACK, LOST: "0x59 stale _x238 2x600"}, 330, set(), id="lost long ago"),
        pytest.param(
            {
                IS_UP: "1x59 _x239 1x600",
                START: "0x59 _x239 0x600",
                LOST: "7x59 _x239 7x600",
                FAILED: "70x59 _x239 70x600",
            },
            304,
            set(),
            id="Prometheus away",
        ),
        pytest.param(
            {IS_UP: "1x600", START: "0x59 3600x600", LOST: "7x59 0x600", FAILED: "70x59 9x600"},
            62,
            set(),
            id="counters at 0",
        ),
        pytest.param(
            {IS_UP: "1x600", START: "0x59 3600x600", LOST: "7x59 3x600"},
            62,
            {"DrfdJobsLost"},
            id="lost at a restart",
        ),
        pytest.param({**BACK, LOST: "0x59 stale _x238 0x600"}, 62, set(), id="gone for a moment"),
        pytest.param(BACK, 75, {"DrfdGone"}, id="gone"),
        pytest.param(BACK, 295, {"DrfdGone"}, id="gone for long"),
        pytest.param(BACK, 301, set(), id="back"),
        pytest.param(
            {IS_UP: "0x9999", START: "_x9999"}, 9000, {"DrfdGone"}, id="gone from the beginning"
        ),
        pytest.param({"up{job='node',instance='m'}": "1x600"}, 20, {"DrfdGone"}, id="never read"),
        pytest.param(
            {START: "0x59 stale", IS_UP: "1x59 stale"}, 75, {"DrfdGone"}, id="no target any more"
        ),
        pytest.param(
            {IS_UP: "1x600", START: "0x600", START.replace('"m"', '"n"'): "0x59 stale"},
            75,
            {"DrfdGone"},
            id="one of two",
        ),
        pytest.param({**SHORT}, 100, {"DrfdUserFarBelowShare"}, id="far below"),
        pytest.param({**SHORT, user("held_back"): "1x600"}, 100, set(), id="held back"),
        pytest.param({**SHORT, user("waiting_jobs"): "0x600"}, 100, set(), id="wants no more"),
        pytest.param({**SHORT, DRAINED: "1x600"}, 100, set(), id="drained"),
        pytest.param({**SHORT, LAUNCHER: "0x600"}, 100, {"DrfdLauncherAway"}, id="launcher away"),
        pytest.param(
            {BY_FILE: "0x600", MTIME: "0+60x59 3540x600"}, 80, {"DrfdGone"}, id="an old file"
        ),
        pytest.param({BY_FILE: "0x600", MTIME: "0+60x600"}, 80, set(), id="a file"),
    ],
)
def test_the_rules_fire_when_they_should(
    tmp_path: Path, series: dict[str, str], minute: int, alerts: set[str]
) -> None:
    """Each alert once. promtool has a clock of its own; drfd was started at its beginning."""
    (tmp_path / "alerts.yml").write_text(shipped("alerts"))
    firing = {
        "expr": 'sum by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts],
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [firing],
    }
    asked = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(asked))
    promtool("test", "rules", tmp_path / "test.yml")


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
