"""Metrics of a whole daemon: at a port, in a file, and from the command line; and what Prometheus's
own tool says of them, and of the shipped rules."""

import http.client
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from drfd.client.connection import Connection
from instance import CONFIG, Instance, wait_for


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the loopback device. A socket that does not listen holds it meanwhile, so that no other
    program is given it; who names it, and reuses addresses, may listen there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("metrics") / "drfd.prom"


@pytest.fixture
def everywhere(lend, port, file) -> Instance:
    """At a port and in a file."""
    written = f'textfile = "{file}"\ntextfile_interval = "1s"\n'
    return lend(f"{CONFIG}[metrics]\nport = {port}\n{written}")


def drfd(instance: Instance, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "drfd.daemon", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DRFD_SOCKET": str(instance.socket)},
    )


Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def values(text: str) -> Values:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(instance: Instance, name: str, **labels: str) -> float | None:
    return all_values(instance).get((name, frozenset(labels.items())))


def all_values(instance: Instance) -> Values:
    """As the daemon says them: to start `drfd metrics` takes longer."""
    with closing(Connection(instance.socket)) as connection:
        return values(connection.request("metrics")["text"])


def shipped(name: str) -> str:
    return (Path(__file__).parents[2] / "packaging" / "monitoring" / name).read_text()


@pytest.mark.anew
def test_jobs_are_in_the_metrics_while_they_run_and_after(everywhere):
    instance = everywhere
    wait_for("the launcher", lambda: value(instance, "drfd_launcher_up") == 1)
    assert value(instance, "drfd_allocated_cores") == value(instance, "drfd_drained") == 0
    assert value(instance, "drfd_capacity_cores") == 9
    done = drfd(instance, "metrics")
    assert (done.returncode, done.stderr) == (0, "")
    said = values(done.stdout)
    assert said["drfd_jobs_ended_total", frozenset({("outcome", "COMPLETED")})] == 0
    for state in ("PENDING", "HELD", "STARTING", "RUNNING", "SUSPENDED", "STOPPING", "CLEANING"):
        assert said["drfd_jobs", frozenset({("state", state)})] == 0
    job = instance.submit("-p", "A", "-c", "3", "--", "sleep", "1000")
    wait_for("the job in the metrics", lambda: value(instance, "drfd_allocated_cores") == 3)
    assert value(instance, "drfd_pool_running_jobs", pool="A") == 1
    assert value(instance, "drfd_pool_running_jobs", pool="/") == 1
    wait_for("its start", lambda: value(instance, "drfd_job_start_delay_seconds_count") == 1)
    instance.drf("drain")
    instance.drf("cancel", job)
    instance.wait_end(job)
    wait_for(
        "its end",
        lambda: value(instance, "drfd_jobs_ended_total", outcome="CANCELLED") == 1,
    )
    wait_for("fresh gauges", lambda: value(instance, "drfd_drained") == 1)
    turns = value(instance, "drfd_turn_duration_seconds_count")
    assert turns is not None and turns > 3
    commits = value(instance, "drfd_commit_duration_seconds_count")
    assert commits is not None and commits >= 3


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bdrfd_\w+", expression))


def test_the_shipped_files_use_metrics_that_there_are(everywhere):
    families = [*text_string_to_metric_families(drfd(everywhere, "metrics").stdout)]
    there = {sample.name for family in families for sample in family.samples}
    there |= {family.name for family in families}
    # These depend on the machine and on its configuration.
    there |= {"drfd_gpu_utilisation_ratio", "drfd_gpu_memory_used_bytes", "drfd_pressure_ratio"}
    there |= {"drfd_external_cores", "drfd_external_memory_bytes"}
    dashboard: dict[str, Any] = json.loads(shipped("dashboard.json"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    rules = shipped("alerts.yml")
    expressions += re.findall(r"expr: (?!\|)(.*)", rules)
    expressions += re.findall(r"expr: \|\n((?: {10}.*\n)+)", rules)
    for expression in expressions:
        assert names_in(expression), expression
        assert names_in(expression) <= there, expression


def test_port_and_file_say_what_the_verb_says(everywhere, port, file):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    response = connection.getresponse()
    assert response.status == 200
    assert values(response.read().decode())["drfd_capacity_cores", frozenset()] == 9
    connection.close()
    wait_for("the file", file.exists)
    assert re.search(r"^drfd_capacity_cores 9\.0$", file.read_text(), re.MULTILINE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    before = file.stat().st_ino
    wait_for("a fresh file", lambda: file.stat().st_ino != before)
    everywhere.stop()
    assert not file.exists(), "old figures must not look new"
    assert os.listdir(file.parent) == []


def test_a_port_in_use_is_a_warning_and_jobs_run(make_instance):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        instance = make_instance(f"{CONFIG}[metrics]\nport = {port}\n").start()
        warning = f"metrics.port: cannot listen at 127.0.0.1:{port}: Address already in use"
        assert warning in instance.log.read_text()
        assert warning in instance.drf("doctor", check=False).stdout
        assert instance.wait_end(instance.submit("--", "true"))["outcome"]["code"] == "COMPLETED"


def test_a_file_that_cannot_be_written_is_logged_once(make_instance):
    text = 'textfile = "/nonexistent/x.prom"\ntextfile_interval = "1s"\n'
    instance = make_instance(f"{CONFIG}[metrics]\n{text}").start()
    wait_for("the line", lambda: "event=metrics-not-written" in instance.log.read_text())
    # It tries again each second, and so are figures made anew.
    for count in (1, 2, 3):
        assert instance.ended("--", "true")["state"] == "COMPLETED"
        wait_for(
            "its end in the metrics",
            lambda n=count: value(instance, "drfd_jobs_ended_total", outcome="COMPLETED") == n,
        )
    assert instance.log.read_text().count("event=metrics-not-written") == 1


def test_without_the_table_there_are_no_metrics_and_the_verb_says_how(instance):
    done = drfd(instance, "metrics")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert done.stderr.count("\n") == 1
    assert "gives no metrics" in done.stderr and "[metrics] of drfd.toml" in done.stderr


# -- Prometheus ---------------------------------------------------------------------------------

with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and os.environ.get("DRFD_PROMETHEUS") != "required",
    reason="not installed: promtool",
)


def promtool(*words: object) -> str:
    done = subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@with_promtool
def test_promtool_accepts_the_rules_and_the_metrics(everywhere, file, tmp_path):
    path = tmp_path / "alerts.yml"
    path.write_text(shipped("alerts.yml"))
    assert "9 rules found" in promtool("check", "rules", path)
    # Its linter reads the older format.
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


#: By what happens: the series, the minute at which it is asked, and who fires then.
RULES: dict[str, tuple[dict[str, str], int, set[str]]] = {
    "well": ({IS_UP: "1x600", START: "0x600", LOST: "0x600"}, 60, set()),
    "lost": ({**BACK, LOST: "0x59 stale _x238 2x600"}, 304, {"DrfdJobsLost"}),
    "launches": ({**BACK, FAILED: "0x59 stale _x238 20x600"}, 304, {"DrfdLaunchesFail"}),
    "lost long ago": ({**BACK, LOST: "0x59 stale _x238 2x600"}, 330, set()),
    "Prometheus away": ({IS_UP: "1x59 _x239 1x600", START: "0x59 _x239 0x600",
                         LOST: "7x59 _x239 7x600", FAILED: "70x59 _x239 70x600"}, 304, set()),
    "counters at 0": ({IS_UP: "1x600", START: "0x59 3600x600", LOST: "7x59 0x600",
                       FAILED: "70x59 9x600"}, 62, set()),
    "lost at a restart": ({IS_UP: "1x600", START: "0x59 3600x600", LOST: "7x59 3x600"}, 62,
                          {"DrfdJobsLost"}),
    "gone for a moment": ({**BACK, LOST: "0x59 stale _x238 0x600"}, 62, set()),
    "gone": (BACK, 75, {"DrfdGone"}),
    "gone for long": (BACK, 295, {"DrfdGone"}),
    "back": (BACK, 301, set()),
    # Over a day.
    "gone from the beginning": ({IS_UP: "0x2000", START: "_x2000"}, 1999, {"DrfdGone"}),
    "never read": ({"up{job='node',instance='m'}": "1x600"}, 20, {"DrfdGone"}),
    "no target any more": ({START: "0x59 stale", IS_UP: "1x59 stale"}, 75, {"DrfdGone"}),
    "one of two": ({IS_UP: "1x600", START: "0x600", START.replace('"m"', '"n"'): "0x59 stale"}, 75,
                   {"DrfdGone"}),
    "far below": ({**SHORT}, 100, {"DrfdUserFarBelowShare"}),
    "held back": ({**SHORT, user("held_back"): "1x600"}, 100, set()),
    "wants no more": ({**SHORT, user("waiting_jobs"): "0x600"}, 100, set()),
    "drained": ({**SHORT, DRAINED: "1x600"}, 100, set()),
    "launcher away": ({**SHORT, LAUNCHER: "0x600"}, 100, {"DrfdLauncherAway"}),
    "an old file": ({BY_FILE: "0x600", MTIME: "0+60x59 3540x600"}, 80, {"DrfdGone"}),
    "a file": ({BY_FILE: "0x600", MTIME: "0+60x600"}, 80, set()),
}  # fmt: skip


@with_promtool
@pytest.mark.parametrize("name", RULES)
def test_the_rules_fire_when_they_should(tmp_path, name):
    """Each alert once. promtool has a clock of its own; drfd was started at its beginning."""
    series, minute, alerts = RULES[name]
    (tmp_path / "alerts.yml").write_text(shipped("alerts.yml"))
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
