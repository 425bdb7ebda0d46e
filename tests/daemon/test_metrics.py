"""Metrics: what is counted, the texts, the HTTP server, and `drfd metrics`."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from daemon.desk import MakeShell, Shell
from drfd.common.errors import HostError
from drfd.core.decisions.stimuli import Actor, SubmitAsked
from drfd.core.fairness.rules import Pool
from drfd.core.fairness.week_quotas import QuotaUse
from drfd.core.model.job import Job, JobState, Outcome
from drfd.daemon.metrics import endpoint as endpoint_module
from drfd.daemon.metrics import printing
from drfd.daemon.metrics.endpoint import MOST_CONNECTIONS, Endpoint
from drfd.daemon.metrics.printing import ask_once, shipped_file
from drfd.daemon.metrics.readings import Readings, node_rows
from drfd.daemon.metrics.rendering import OPENMETRICS, PLAIN, content_type, render
from drfd.daemon.metrics.source import held_back_leaves, with_all_states
from drfd.daemon.metrics.tally import Histogram, Tally
from drfd.linux.unix_sockets import at_socket
from fakes import ALICE, BOB, demand, now, rules, spec
from kernel import LINGER_S, send_lingering
from strangers import full_listener

# -- what is counted of jobs -------------------------------------------------------------------


WAITING = Job(id=7, spec=spec(), submitted_at=100.0)
RUNNING = structs.replace(WAITING, state=JobState.RUNNING, attempt=1, started_at=103.0)
ENDED = structs.replace(RUNNING, state=JobState.ENDED, outcome=Outcome.COMPLETED)


def starts(tally: Tally) -> tuple[int, float]:
    copy = tally.wait.copy()
    return copy.cumulative[-1][1], copy.sum_s


def test_starts_that_an_earlier_daemon_has_seen_are_not_counted_again() -> None:
    tally = Tally()
    requeued = structs.replace(WAITING, id=8, attempt=1)
    starting = structs.replace(WAITING, id=9, attempt=1, state=JobState.STARTING)
    tally.resume([RUNNING, requeued, starting])
    tally.job_changed(ENDED)
    tally.job_changed(
        structs.replace(requeued, attempt=2, state=JobState.RUNNING, started_at=900.0)
    )
    assert starts(tally) == (0, 0.0)
    tally.job_changed(structs.replace(starting, state=JobState.RUNNING, started_at=110.0))
    assert starts(tally) == (1, 10.0)


# -- what is made of a snapshot ----------------------------------------------------------------


def test_each_state_of_a_live_job_has_its_number() -> None:
    rest = ("PENDING", "HELD", "STARTING", "SUSPENDED", "STOPPING", "CLEANING")
    assert with_all_states({"RUNNING": 2}) == dict.fromkeys(rest, 0) | {"RUNNING": 2}


LEAF = "root.alice"


def submit(shell: Shell, actor: Actor, cores: float) -> None:
    """Submit a job, and let what can start."""
    shell.turn(SubmitAsked(now(), spec("root", actor=actor, asks=demand(cores))))
    shell.host.take()


def held_back_now(shell: Shell, used_up: Mapping[str, QuotaUse]) -> frozenset[str]:
    assert [*shell.engine.ledger.queues] == [LEAF]
    return held_back_leaves(shell.engine.ledger, shell.engine.rules, used_up)


def test_who_has_used_a_quota_up_is_held_back_and_whose_jobs_do_not_fit_not(shell: Shell) -> None:
    """Nothing is promised to those who are served last, either."""
    submit(shell, BOB, 9)
    submit(shell, ALICE, 1)
    assert held_back_now(shell, {}) == frozenset()
    for waits in (True, False):
        use = QuotaUse(LEAF, 3.0, 2.0, waits=waits, restored_s=0.0)
        assert held_back_now(shell, {LEAF: use}) == {LEAF}


def test_who_is_at_a_limit_is_held_back(make_shell: MakeShell) -> None:
    limited = replace(rules(), members={("", "alice"): Pool(limit={"cores": 3000})})
    shell = make_shell(by=limited)
    submit(shell, BOB, 7)
    submit(shell, ALICE, 2)
    submit(shell, ALICE, 2)
    assert held_back_now(shell, {}) == {LEAF}
    submit(shell, ALICE, 1)
    assert held_back_now(shell, {}) == frozenset()


# -- texts, read back with the library's own parser --------------------------------------------


EMPTY = Histogram((0.5, 2.0)).copy()
Labels = frozenset[tuple[str, str]]


def node(path: str, *, running: int = 0, pending: int = 0, **more: Any) -> Any:
    return {
        "path": path, "dominant_share": 0.25, "entitlement": 0.5, "satisfaction": 0.5,
        "running": running, "pending": pending, **more,
    }  # fmt: skip


NODES = [
    node("root.lab", running=2, pending=1), node("root.lab.al%2Eice", running=2, pending=1),
    node("root.bob", running=1, pending=3), node("root.idle"), node("root.carol", quota={}),
]  # fmt: skip
LEAVES = frozenset({"root.lab.al%2Eice", "root.bob"})
CONFIGURED = frozenset({"root.lab", "root.idle"})


def readings(most_users: int = 10, **changed: Any) -> Readings:
    pools, users = node_rows(NODES, LEAVES, CONFIGURED, most_users)
    plain = Readings(
        version='1.2"3', started_s=1000.0, counted_since_s=1000.0,
        capacity={"cores": 8.0, "memory": 1 << 34, "read": 5, "write": 6, "gres": {"gpu": 2}},
        allocated={"cores": 2.5, "memory": 1 << 30, "read": 0, "write": 1, "gres": {"gpu": 1}},
        used={"cores": 1.5, "memory": 77, "read": None, "write": 3}, external=(0.5, 99),
        pressure={"cpu": {"some": 12.5, "full": None}}, jobs={"RUNNING": 3, "PENDING": 4},
        pools=pools, users=users, gpus=[], ends={Outcome.COMPLETED: 5, Outcome.LOST: 0},
        wait=EMPTY, turn=EMPTY, commit=EMPTY, is_launcher_up=False, is_drained=True, nodes_away=0,
        notices=["launcher-away"], journal_bytes=4096,
    )  # fmt: skip
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
        ("(other)", "((other))"), ("((other))", "(((other)))"), ("(others)", "(others)"),
        ("(other", "(other"),
    ],
)  # fmt: skip
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
        "name": "0", "pci": "0000:01:00.0", "memory_used": 10, "memory_total": 20,
        "utilisation": None, "is_lost": False,
    }  # fmt: skip
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


TARGETS: list[dict[str, Any]] = [
    target
    for panel in json.loads(shipped_file("dashboard"))["panels"]
    for target in panel["targets"]
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])
def test_each_line_names_its_machine(target: dict[str, Any]) -> None:
    assert "{{instance}}" in target["legendFormat"]
    for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"]):
        assert "instance" in labels.split(", "), "the sum is over all machines"


# -- the HTTP server ---------------------------------------------------------------------------


ASK = b"GET /metrics HTTP/1.1\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def page(kind: str) -> bytes:
    return b"plain\n" if kind == PLAIN else b"open\n"


@dataclass
class Served:
    """A running endpoint, and where clients find it."""

    endpoint: Endpoint
    family: int
    address: Any

    async def connect(self) -> Streams:
        if self.family == socket.AF_UNIX:
            return await asyncio.open_unix_connection(self.address)
        return await asyncio.open_connection(*self.address)

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()

    def client(self, stack: ExitStack) -> socket.socket:
        """A client that waits for nothing but its place in the backlog."""
        client = stack.enter_context(socket.socket(self.family))
        client.connect(self.address)
        return client


@asynccontextmanager
async def endpoint(
    listener: socket.socket,
    *,
    request_s: float = 60.0,
    answer_s: float = 60.0,
    text: Callable[[str], Awaitable[bytes]] = page,
) -> AsyncIterator[Served]:
    family, address = listener.family, listener.getsockname()
    made = Endpoint(listener, text, request_s=request_s, answer_s=answer_s)
    task = asyncio.create_task(made.run())
    try:
        yield Served(made, family, address)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    return listener


def tcp() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


def is_readable(client: socket.socket) -> bool:
    """True once the answer has begun."""
    return bool(select.select([client], [], [], 0.0)[0])


async def test_the_page_comes_in_the_format_that_is_accepted(tmp_path: Path) -> None:
    listener = unix(tmp_path / "s")
    async with endpoint(listener) as served:
        answer = await served.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and OPENMETRICS.encode() in head
        assert body == b"open\n"
        answer = await served.ask(b"GET /metrics?x HTTP/1.0\r\nACCEPT: text/plain\r\n\r\n")
        assert answer.endswith(b"\r\n\r\nplain\n") and PLAIN.encode() in answer
        two_lines = b"Accept: application/openmetrics-text;q=0.1\r\nAccept: text/plain\r\n"
        for lines in (two_lines, b"\r\n".join(reversed(two_lines.split(b"\r\n")[:2])) + b"\r\n"):
            answer = await served.ask(b"GET /metrics HTTP/1.1\r\n" + lines + b"\r\n")
            assert answer.endswith(b"plain\n") and PLAIN.encode() in answer


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"400 Bad Request"),
        (b"\xff\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"a" * 20_000, b"431 Request Header Fields Too Large"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", b"403 Forbidden"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n", b"403 Forbidden"),
    ],
)
async def test_an_error_is_a_status_and_a_line_of_text(request_text: bytes, status: bytes) -> None:
    async with endpoint(tcp()) as served:
        is_error(await served.ask(request_text), status)


async def test_without_figures_the_service_is_unavailable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(kind: str) -> bytes:
        raise RuntimeError("no figures\ntoday")

    async with endpoint(unix(tmp_path / "s"), text=fails) as served:
        for _ in range(3):
            is_error(await served.ask(ASK), b"503 Service Unavailable")
    assert [each.getMessage() for each in caplog.records] == [
        "event=metrics-failed error=RuntimeError('no figures\\ntoday')"
    ], "once for one error in a row"


async def test_figures_that_take_too_long_are_not_waited_for(tmp_path: Path) -> None:
    async def waits(kind: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with endpoint(unix(tmp_path / "s"), text=waits, answer_s=0.05) as served:
        is_error(await served.ask(ASK), b"503 Service Unavailable")


def is_error(answer: bytes, status: bytes) -> None:
    """Fail unless the answer has this status, and one line of text for its body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert first == b"HTTP/1.1 " + status
    assert b"Content-Type: text/plain; charset=utf-8" in lines
    assert b"Content-Length: %d" % len(body) in lines
    assert body.endswith(b"\n") and body[:-1].decode().isprintable() and len(body) > 5


async def test_a_client_that_asks_nothing_is_dropped(tmp_path: Path) -> None:
    listener = unix(tmp_path / "s")
    async with endpoint(listener, request_s=0.05) as served:
        reader, writer = await served.connect()
        writer.write(b"GET /met")
        is_error(await reader.read(), b"408 Request Timeout")
        writer.close()


async def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    async def long_text(kind: str) -> bytes:
        return b"x" * (64 << 20)

    listener = unix(tmp_path / "s")
    with ExitStack() as stack:
        async with endpoint(listener, answer_s=0.05, text=long_text) as served:
            client = served.client(stack)
            client.sendall(ASK)
            while not is_readable(client):
                await asyncio.sleep(0.01)
            while served.endpoint.connections:
                await asyncio.sleep(0.01)


async def test_a_client_that_sends_bytes_one_by_one_is_refused(tmp_path: Path) -> None:
    """Each read takes time of the loop."""
    with ExitStack() as stack:
        async with endpoint(unix(tmp_path / "s")) as served:
            client = served.client(stack)
            while not is_readable(client):
                client.send(b"x")
                await asyncio.sleep(0.001)
            is_error(client.recv(1 << 12), b"431 Request Header Fields Too Large")


@pytest.mark.slow
async def test_a_descriptor_that_comes_with_a_request_stops_nobody(tmp_path: Path) -> None:
    """The last close of a lingering TCP socket takes as long as its owner wishes."""
    with ExitStack() as stack:
        async with endpoint(unix(tmp_path / "s")) as served:
            client = served.client(stack)
            send_lingering(client, stack)
            begin_s = time.monotonic()
            assert (await served.ask(ASK)).endswith(b"open\n")
            assert time.monotonic() - begin_s < LINGER_S / 2


async def test_idle_clients_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of them makes room."""
    monkeypatch.setattr(endpoint_module, "ACCEPT_PAUSE_S", 0.001)
    listener = unix(tmp_path / "s")
    async with endpoint(listener) as served:
        idle: list[Streams] = []
        for count in range(1, MOST_CONNECTIONS + 1):
            idle.append(await served.connect())
            while served.endpoint.connections < count:
                await asyncio.sleep(0.001)
        answer = await served.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"open\n")
        is_error(await idle[0][0].read(), b"503 Service Unavailable")
        assert served.endpoint.connections <= MOST_CONNECTIONS
        for _, writer in idle:
            writer.close()


# -- `drfd metrics` ----------------------------------------------------------------------------


PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n"


@contextmanager
def one_answer(path: Path, answer: bytes) -> Iterator[None]:
    """A program at this path that answers one request so, whatever it is."""
    with socket.socket(socket.AF_UNIX) as listener:
        with at_socket(path) as address:
            listener.bind(address)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 12)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def refusal(path: Path) -> tuple[str, str]:
    """The error without the path, and the cure."""
    with pytest.raises(HostError) as raised:
        ask_once(path)
    assert str(raised.value).isprintable(), "it is one line"
    before = f"no metrics at {path}: "
    assert raised.value.text.startswith(before)
    return raised.value.text.removeprefix(before), raised.value.hint


def test_a_path_of_any_length_is_found(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "metrics.sock"
    path.parent.mkdir()
    with one_answer(path, PAGE):
        assert ask_once(path) == "page\n"


@pytest.mark.parametrize(
    ("name", "text", "cure"),
    [
        ("s" * 120, "the name is too long for a socket", "--socket PATH"),
        ("none", "No such file or directory", "[metrics] socket = true"),
        ("dead", "nobody listens there", "start drfd"),
    ],
)
def test_without_a_daemon_the_cure_is_told(tmp_path: Path, name: str, text: str, cure: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    found, hint = refusal(tmp_path / name)
    assert found == text
    assert cure in hint and "--socket PATH" in hint


@pytest.mark.slow
def test_a_busy_socket_and_one_that_answers_nothing_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "ANSWER_S", 1)
    with full_listener(tmp_path / "busy"):
        text, hint = refusal(tmp_path / "busy")
    assert text == "it has too many readers, and did not answer within 1 s"
    assert "try again" in hint
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        text, hint = refusal(tmp_path / "s")
    assert text == "it did not answer within 1 s"
    assert "try again" in hint


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "the connection was closed without an answer"),
        (b"SSH-2.0\n\x1b[31m\n", "the answer is not drfd's"),
        (PAGE.replace(b"page", b"\xff\xff\xff\xff"), "the answer is not drfd's"),
        (PAGE.replace(b"th: 5", b"th: 9"), "the answer is not drfd's"),
        (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 10\r\n\r\ntry later\n",
            "503 Service Unavailable, try later",
        ),
        (b"HTTP/1.1 500 \x1b[31m\r\n\r\n\xff", "500 ?[31m, \ufffd"),
    ],
)
def test_each_wrong_answer_is_one_line(tmp_path: Path, answer: bytes, text: str) -> None:
    with one_answer(tmp_path / "s", answer):
        said, _ = refusal(tmp_path / "s")
    assert said == text
