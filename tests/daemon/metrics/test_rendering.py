"""Texts with metrics, read back with the library's own parser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from drfd.core.model.job import Outcome
from drfd.daemon.metrics.readings import Readings, node_rows
from drfd.daemon.metrics.rendering import OPENMETRICS, PLAIN, content_type, render
from drfd.daemon.metrics.tally import Histogram

EMPTY = Histogram((0.5, 2.0)).copy()
Labels = frozenset[tuple[str, str]]


def node(path: str, *, running: int = 0, pending: int = 0, **more: Any) -> Any:
    return {
        "path": path,
        "dominant_share": 0.25,
        "entitlement": 0.5,
        "satisfaction": 0.5,
        "running": running,
        "pending": pending,
        **more,
    }


NODES = [
    node("root.lab", running=2, pending=1),
    node("root.lab.al%2Eice", running=2, pending=1),
    node("root.bob", running=1, pending=3),
    node("root.idle"),
    node("root.carol", quota={}),
]
LEAVES = frozenset({"root.lab.al%2Eice", "root.bob"})
CONFIGURED = frozenset({"root.lab", "root.idle"})


def readings(most_users: int = 10, **changed: Any) -> Readings:
    pools, users = node_rows(NODES, LEAVES, CONFIGURED, most_users)
    plain = Readings(
        version='1.2"3',
        started_s=1000.0,
        counted_since_s=1000.0,
        capacity={"cores": 8.0, "memory": 1 << 34, "read": 5, "write": 6, "gres": {"gpu": 2}},
        allocated={"cores": 2.5, "memory": 1 << 30, "read": 0, "write": 1, "gres": {"gpu": 1}},
        used={"cores": 1.5, "memory": 77, "read": None, "write": 3},
        external=(0.5, 99),
        pressure={"cpu": {"some": 12.5, "full": None}},
        jobs={"RUNNING": 3, "PENDING": 4},
        pools=pools,
        users=users,
        gpus=[],
        ends={Outcome.COMPLETED: 5, Outcome.LOST: 0},
        wait=EMPTY,
        turn=EMPTY,
        commit=EMPTY,
        is_launcher_up=False,
        is_drained=True,
        nodes_away=0,
        notices=["launcher-away"],
        journal_bytes=4096,
    )
    return replace(plain, **changed)


def samples(text: bytes, parse: Any = text_string_to_metric_families) -> dict[str, Any]:
    """The values of each sample's name: by its labels, or alone where it has none."""
    found: dict[str, dict[Labels, float]] = {}
    for family in parse(text.decode()):
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            values = found.setdefault(sample.name, {})
            assert labels not in values, f"{sample.name} {labels} is there twice"
            values[labels] = sample.value
    return {
        name: each[frozenset()] if {*each} == {frozenset()} else each
        for name, each in found.items()
    }


def by(label: str, **values: float) -> dict[Labels, float]:
    return {frozenset({(label, name)}): value for name, value in values.items()}


def test_both_formats_say_the_same() -> None:
    new = samples(render(readings(), OPENMETRICS))
    old = samples(render(readings(), PLAIN), plain_families)
    assert {name: value for name, value in old.items() if not name.endswith("_created")} == {
        name: value for name, value in new.items() if not name.endswith("_created")
    }


def test_users_beyond_the_number_are_one_row() -> None:
    found = samples(render(readings(most_users=1), OPENMETRICS))
    other = frozenset({("pool", "/"), ("user", "(other)")})
    bob = frozenset({("pool", "/"), ("user", "bob")})
    assert found["drfd_user_running_jobs"] == {bob: 1.0, other: 2.0}
    assert found["drfd_user_satisfaction_ratio"] == {bob: 0.5}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("(other)", "((other))"),
        ("((other))", "(((other)))"),
        ("(others)", "(others)"),
        ("(other", "(other"),
    ],
)
def test_no_user_has_the_label_of_another_row(name: str, label: str) -> None:
    named = f"root.{name}"
    nodes = [node(named, running=1), *NODES]
    _, users = node_rows(nodes, LEAVES | {named}, CONFIGURED, 2)
    found = samples(render(readings(users=users), OPENMETRICS))
    assert {dict(each)["user"] for each in found["drfd_user_running_jobs"]} >= {"(other)"}
    _, users = node_rows(nodes, LEAVES | {named}, CONFIGURED, 9)
    found = samples(render(readings(users=users), OPENMETRICS))
    assert frozenset({("pool", "/"), ("user", label)}) in found["drfd_user_running_jobs"]


def test_a_gpu_is_named_by_its_number_and_what_is_not_measured_is_left_out() -> None:
    gpu: Any = {
        "name": "0",
        "pci": "0000:01:00.0",
        "memory_used": 10,
        "memory_total": 20,
        "utilisation": None,
        "is_lost": False,
    }
    found = samples(render(readings(gpus=[gpu]), OPENMETRICS))
    assert found["drfd_gpu_memory_used_bytes"] == by("gpu", **{"0": 10.0})
    assert found["drfd_gpu_lost"] == by("gpu", **{"0": 0.0})
    assert "drfd_gpu_utilisation_ratio" not in found


#: What Prometheus 2.42 and 3 send, and a browser.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", OPENMETRICS),
        ("*/*", OPENMETRICS),
        ("application/*", OPENMETRICS),
        (BROWSER, OPENMETRICS),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", OPENMETRICS),
        ('Application/OpenMetrics-Text ; Version="1.0.0" ; Q=0.3', OPENMETRICS),
        ("text/plain;version=0.0.4", PLAIN),
        ("TEXT/PLAIN", PLAIN),
        ("text/*", PLAIN),
        ("text/plain;version=0.0.4,*/*;q=0.1", PLAIN),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.7", PLAIN),
        ("application/openmetrics-text;q=0,*/*", PLAIN),
        ("application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5", PLAIN),
        ("application/openmetrics-text;q=nan,text/plain;q=0.1", PLAIN),
        # Neither: a client that names only others may be able to read the older one.
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily", PLAIN),
        (",;q=,;;=,", PLAIN),
    ],
)
def test_a_client_gets_the_format_that_it_prefers(accept: str, kind: str) -> None:
    assert content_type(accept) == kind
