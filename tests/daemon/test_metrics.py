"""Metrics: what is counted, the figures, and the HTTP server."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry, Metric

from daemon.desk import Shell
from drfd.core.decisions.stimuli import Actor, SubmitAsked
from drfd.core.fairness.rules import Pool
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import Job, JobState, Outcome
from drfd.core.model.resources import Axes
from drfd.daemon.metrics import publication
from drfd.daemon.metrics.publication import MOST_CONNECTIONS, Endpoint
from drfd.daemon.metrics.source import (
    Moment,
    Tally,
    gpu_metrics,
    node_metrics,
    node_rows,
    with_all_states,
)
from fakes import ALICE, BOB, demand, now, replace, rules, spec
from instance import wait_for

# -- what is counted of jobs -------------------------------------------------------------------


WAITING = Job(id=7, spec=spec(), submitted_at=100.0)
RUNNING = structs.replace(WAITING, state=JobState.RUNNING, attempt=1, started_at=103.0)
ENDED = structs.replace(RUNNING, state=JobState.ENDED, outcome=Outcome.COMPLETED)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def starts(registry: CollectorRegistry) -> tuple[float | None, float | None]:
    name = "drfd_job_start_delay_seconds"
    return registry.get_sample_value(f"{name}_count"), registry.get_sample_value(f"{name}_sum")


def test_starts_that_an_earlier_daemon_has_seen_are_not_counted_again(registry):
    tally = Tally(registry)
    requeued = structs.replace(WAITING, id=8, attempt=1)
    starting = structs.replace(WAITING, id=9, attempt=1, state=JobState.STARTING)
    tally.resume([RUNNING, requeued, starting])
    tally.job_changed(ENDED)
    tally.job_changed(
        structs.replace(requeued, attempt=2, state=JobState.RUNNING, started_at=900.0)
    )
    assert starts(registry) == (0, 0.0)
    tally.job_changed(structs.replace(starting, state=JobState.RUNNING, started_at=110.0))
    assert starts(registry) == (1, 10.0)


# -- what is made of a snapshot ----------------------------------------------------------------


def test_each_state_of_a_live_job_has_its_number():
    rest = ("PENDING", "HELD", "STARTING", "SUSPENDED", "STOPPING", "CLEANING")
    assert with_all_states({"RUNNING": 2}) == dict.fromkeys(rest, 0) | {"RUNNING": 2}


LEAF = "root.alice"


def submit(shell: Shell, actor: Actor, cores: float) -> None:
    """Submit a job, and let what can start."""
    shell.turn(SubmitAsked(now(), spec("root", actor=actor, asks=demand(cores))))
    shell.host.take()


def held_back_now(shell: Shell) -> frozenset[str]:
    assert [*shell.engine.ledger.queues] == [LEAF]
    return Moment(shell.engine.ledger, shell.engine.rules).held_back


def test_who_is_at_a_limit_is_held_back(make_shell):
    limited = replace(rules(), members={("", "alice"): Pool(limit={"cores": 3000})})
    shell = make_shell(by=limited)
    submit(shell, BOB, 7)
    submit(shell, ALICE, 2)
    submit(shell, ALICE, 2)
    assert held_back_now(shell) == {LEAF}
    submit(shell, ALICE, 1)
    assert held_back_now(shell) == frozenset()


def test_who_has_only_jobs_that_wait_for_something_else_is_held_back(make_shell):
    shell = make_shell()
    shell.turn(SubmitAsked(now(), spec(), held=True))
    ledger = shell.engine.ledger
    held_back = Moment(ledger, shell.engine.rules).held_back
    assert held_back == {*ledger.job_counts.waiting_of}


# -- the figures as metrics --------------------------------------------------------------------


Labels = frozenset[tuple[str, str]]


def node(path: str, *, running: int = 0, pending: int = 0, **more: Any) -> Any:
    return {
        "path": path, "dominant_share": 0.25, "entitlement": 0.5, "satisfaction": 0.5,
        "running": running, "pending": pending, **more,
    }  # fmt: skip


NODES = [
    node("root.lab", running=2, pending=1), node("root.lab.al%2Eice", running=2, pending=1),
    node("root.bob", running=1, pending=3), node("root.idle"), node("root.carol"),
]  # fmt: skip
LEAVES = frozenset({"root.lab.al%2Eice", "root.bob"})
CONFIGURED = frozenset({"root.lab", "root.idle"})


def users(most: int, *more: Any) -> dict[str, Any]:
    """The samples of users, of whom so many have a row."""
    nodes, leaves = [*more, *NODES], LEAVES | {each["path"] for each in more}
    moment = Moment(Ledger(Axes()), rules())
    return samples(node_metrics("user", node_rows(nodes, moment, leaves, CONFIGURED, most)[1]))


def samples(families: Iterable[Metric]) -> dict[str, Any]:
    """The values of each sample's name, by its labels."""
    found: dict[str, dict[Labels, float]] = {}
    for family in families:
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            values = found.setdefault(sample.name, {})
            assert labels not in values, f"{sample.name} {labels} is there twice"
            values[labels] = sample.value
    return found


def by(label: str, **values: float) -> dict[Labels, float]:
    return {frozenset({(label, name)}): value for name, value in values.items()}


def test_users_beyond_the_number_are_one_row():
    found = users(1)
    other = frozenset({("pool", "/"), ("user", "(other)")})
    bob = frozenset({("pool", "/"), ("user", "bob")})
    assert found["drfd_user_running_jobs"] == {bob: 1.0, other: 2.0}
    assert found["drfd_user_satisfaction_ratio"] == {bob: 0.5}


def test_a_gpu_is_named_by_its_number_and_what_is_not_measured_is_left_out():
    gpu: Any = {
        "name": "0", "pci": "0000:01:00.0", "memory_used": 10, "memory_total": 20,
        "utilisation": None, "is_lost": False,
    }  # fmt: skip
    found = samples(gpu_metrics([gpu]))
    assert found["drfd_gpu_memory_used_bytes"] == by("gpu", **{"0": 10.0})
    assert found["drfd_gpu_lost"] == by("gpu", **{"0": 0.0})
    assert "drfd_gpu_utilisation_ratio" not in found


DASHBOARD = Path(__file__).parents[2] / "packaging" / "monitoring" / "dashboard.json"
TARGETS: list[dict[str, Any]] = [
    target for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])
def test_each_line_names_its_machine(target):
    assert "{{instance}}" in target["legendFormat"]
    for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"]):
        assert "instance" in labels.split(", "), "the sum is over all machines"


# -- the HTTP server ---------------------------------------------------------------------------


ASK = b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"
ENDS = b"drfd_jobs_ended_total"


@contextmanager
def endpoint() -> Iterator[Callable[..., bytes]]:
    """Serve, and yield what asks: it sends a request and returns the answer."""
    registry = CollectorRegistry()
    Tally(registry)
    served = Endpoint(socket.create_server(("127.0.0.1", 0)), registry)
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()

    def ask(request: bytes, *, idle: int = 0) -> bytes:
        """Return the answer to a client who comes after so many that ask nothing."""
        with ExitStack() as stack:
            for _ in range(idle):
                stack.enter_context(socket.create_connection(served.server_address))
            client = stack.enter_context(socket.create_connection(served.server_address))
            client.sendall(request)
            return b"".join(iter(lambda: client.recv(1 << 12), b""))

    try:
        yield ask
    finally:
        served.shutdown()
        served.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (ASK, b"200 OK"),
        (b"GET /metrics?x HTTP/1.0\r\nHost: localhost:9477\r\n\r\n", b"200 OK"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", b"403 Forbidden"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n", b"403 Forbidden"),
    ],
)  # fmt: skip
def test_only_this_machine_by_its_own_name_reads_the_metrics(request_text, status):
    with endpoint() as ask:
        answer = ask(request_text)
    assert status in answer.partition(b"\r\n\r\n")[0]
    assert (ENDS in answer) is (status == b"200 OK")


def test_idle_clients_keep_nobody_out_and_have_few_threads(monkeypatch):
    """The oldest of them makes room."""
    monkeypatch.setattr(publication, "ACCEPT_PAUSE_S", 0.001)
    with endpoint() as ask:
        threads = threading.active_count()
        assert ENDS in ask(ASK, idle=3 * MOST_CONNECTIONS)
        # Those that have made room may still be about to end.
        most = threads + MOST_CONNECTIONS + 1
        wait_for("their threads' end", lambda: threading.active_count() <= most)


def test_a_client_that_says_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(publication._Handler, "timeout", 0.01)
    with endpoint() as ask:
        assert ENDS not in ask(b"GET /met")
