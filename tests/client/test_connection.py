"""Finding the daemon, talking to it, and living through its restarts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from canned import CannedDaemon, Message, Refuse
from drfd.client import connection as connection_module
from drfd.client.connection import Connection, choose
from drfd.common import paths
from drfd.common.errors import ConfigError, DrfdError, HostError, NotPermitted, Refused, Unavailable
from drfd.payload.signature import KEY_BYTES

#: A socket at which nobody listens.
NOBODY = Path("/nowhere/drfd.sock")
JOB: Message = {"argv": ["true"], "cwd": "/", "env": {}}
OVER: Message = {"done": True, "ended": []}


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connection_module, "time", clock)
    return clock


@pytest.fixture
def client(daemon: CannedDaemon, clock: Clock) -> Iterator[Connection]:
    client = Connection(daemon.path)
    yield client
    client.close()


# -- which daemon ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "variables", "is_systems", "found", "starts"),
    [
        # The option, the variable, the system's, and the user's own, which alone is started.
        ("/option", {"DRFD_SOCKET": "/variable"}, True, "/option", False),
        (None, {"DRFD_SOCKET": "/variable"}, True, "/variable", False),
        (None, {"DRFD_SOCKET": ""}, False, "run/drfd.sock", True),
        (None, {}, False, "run/drfd.sock", True),
        # Its directory is enough: it may be in a restart.
        (None, {}, True, "system/drfd.sock", False),
        # Started inside a job it would be in the job's cgroup, and end with the job.
        (None, {"DRF_JOB_ID": "1"}, False, "run/drfd.sock", False),
    ],
)
def test_which_daemon_is_asked_and_whether_it_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str | None,
    variables: dict[str, str], is_systems: bool, found: str, starts: bool,
) -> None:  # fmt: skip
    monkeypatch.delenv("DRFD_SOCKET", raising=False)
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", tmp_path / "system/drfd.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if is_systems:
        paths.SYSTEM_SOCKET.parent.mkdir()
    started: list[Path] = []
    chosen = choose(option, start=started.append)
    assert chosen.path == tmp_path / found
    if not Path(found).is_absolute():
        with pytest.raises((Unavailable, FileNotFoundError)):
            chosen.request("hello")
    assert started == ([tmp_path / found] if starts else [])
    assert choose(option, start=None).path == chosen.path


# -- one request, one reply --------------------------------------------------------------------


def test_many_requests_share_one_connection_and_replies_may_be_long(
    client: Connection, daemon: CannedDaemon
) -> None:
    daemon.replies = {"show": {"job": {"id": 7}}, "status": {"jobs": ["x" * 1000] * 3000}}
    for _ in range(3):
        assert client.request("show", id=7) == {"ok": True, "job": {"id": 7}}
    assert daemon.requests == [{"op": "show", "id": 7}] * 3
    assert len(client.request("status")["jobs"]) == 3000, "it is more than one read gives"
    assert daemon.connections == 1


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        *((kind.__name__, kind) for kind in (Refused, NotPermitted, HostError, ConfigError)),
        ("Unavailable", Unavailable), ("Moonstruck", DrfdError),
    ],
)  # fmt: skip
def test_a_refusal_becomes_the_exception_that_it_was_and_the_connection_goes_on(
    client: Connection, daemon: CannedDaemon, refuse: Refuse, named: str, kind: type[DrfdError]
) -> None:
    refused = refuse(named, "some-code", "what is wrong", "the way out")
    daemon.replies = {"show": refused, "hello": {}}
    with pytest.raises(DrfdError) as error:
        client.request("show", id=1)
    assert type(error.value) is kind
    told = (error.value.code, error.value.text, error.value.hint)
    assert told == ("some-code", "what is wrong", "the way out")
    assert client.request("hello") == {"ok": True}
    assert daemon.connections == 1


@pytest.mark.parametrize("name", ["nobody.sock", "x" * 200 + "/drfd.sock", "y" * 120])
def test_nobody_there_is_unavailable_and_names_the_socket(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(Unavailable) as error:
        Connection(path).request("hello")
    assert error.value.text.startswith(f"no drfd answers at {path}: ")
    assert "DRFD_SOCKET" in error.value.hint


def test_a_socket_that_nobody_listens_at_is_unavailable(daemon: CannedDaemon) -> None:
    path = daemon.path.parent / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Unavailable, match="Connection refused"):
        Connection(path).request("hello")


@pytest.mark.parametrize("reply", [None, [b'{"ok": tr', None]])
def test_a_daemon_that_hangs_up_is_unavailable_even_in_mid_reply(
    client: Connection, daemon: CannedDaemon, reply: list[bytes | None] | None
) -> None:
    daemon.replies = {"hello": reply}
    client.send("hello")
    client.send("hello")
    with pytest.raises(Unavailable, match="closed the connection"):
        client.receive()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\n",
        b"[1, 2]\n",
        b"null\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"ok": 1' + b"0" * 5000 + b"}\n",
        b"{}\n",
        b'{"ok": false}\n',
        b'{"ok": false, "error": "no"}\n',
        b'{"ok": false, "error": {"kind": ["x"], "code": 1, "text": null}}\n',
    ],
    ids=lambda reply: repr(reply[:24]),
)
def test_whatever_is_no_reply_of_drfd_is_an_error_of_ours_and_no_crash(
    client: Connection, daemon: CannedDaemon, reply: bytes
) -> None:
    """Something else may listen there: exit code 69 and one line."""
    daemon.replies = {"hello": reply}
    with pytest.raises(DrfdError) as error:
        client.request("hello")
    assert str(error.value).isprintable()


def test_a_request_after_a_restart_finds_the_new_daemon(
    client: Connection, daemon: CannedDaemon
) -> None:
    """A program may ask now, and again in the evening."""
    daemon.replies = {"hello": {}}
    client.request("hello")
    daemon.stop()
    daemon.start()
    assert client.request("hello") == {"ok": True}
    assert daemon.connections == 2


# -- many submissions --------------------------------------------------------------------------


def test_many_submissions_are_answered_in_their_order(
    client: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    """What refused one stands in its place."""
    numbers = iter(range(1000))

    def reply(request: Message) -> Message | bytes:
        return refuse(code="no-command") if not request["argv"] else {"id": next(numbers)}

    daemon.replies = {"submit": reply}
    jobs = [{"argv": [] if at == 3 else ["true"]} for at in range(400)]
    replies = list(client.submit_all(iter(jobs)))
    assert isinstance(replies[3], Refused)
    del replies[3]
    assert [each["id"] for each in replies] == list(range(399))
    assert (len(daemon.requests), daemon.connections) == (400, 1)


def test_nothing_to_submit_asks_nobody(client: Connection, daemon: CannedDaemon) -> None:
    assert list(client.submit_all([])) == []
    assert daemon.connections == 0


def test_what_was_not_answered_is_asked_for_again_under_its_key(
    client: Connection, daemon: CannedDaemon
) -> None:
    keys: list[str] = []
    daemon.on_key = keys.append
    daemon.replies = {"submit": [{"id": 1}, {"id": 2}, None, {"id": 3}, {"id": 4}]}
    replies = list(client.submit_all({"argv": ["true"]} for _ in range(4)))
    assert [each["id"] for each in replies] == [1, 2, 3, 4]
    assert len(set(keys)) == 4
    assert keys[2] == keys[3], "the third was lost, and asked for again"


def test_submissions_to_nobody_are_not_tried_again(clock: Clock) -> None:
    with pytest.raises(Unavailable, match="no drfd answers"):
        list(Connection(NOBODY).submit_all([{"argv": ["true"]}]))
    assert clock.now_s == 1000


# -- the key for signatures --------------------------------------------------------------------


@pytest.fixture
def keys(
    daemon: CannedDaemon, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> list[bytes | None]:
    """Have the daemon, as if another user's, take signed submissions only. What the key service
    will say."""
    keys: list[bytes | None] = []
    monkeypatch.setattr(connection_module, "peer_of", lambda connected: (os.getuid() + 1, 0, 0))
    monkeypatch.setattr(connection_module, "fetch_key", lambda path, patience_s: keys.pop(0))
    daemon.replies = {
        "hello": {"key_socket": "/keys.sock"},
        "submit": lambda job: {"id": 7} if "proof" in job else refuse(code="not-signed"),
    }
    return keys


@pytest.mark.parametrize(("away_s", "patience_s"), [(None, 30), (10.0, 20), (3600.0, 5)])
def test_a_launcher_is_waited_for_for_as_long_as_a_restart_takes(
    client: Connection, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch,
    away_s: float | None, patience_s: float,
) -> None:  # fmt: skip
    """One that is away for long is hardly waited for."""
    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(
        connection_module, "fetch_key", lambda path, patience_s: asked.append((path, patience_s))
    )
    daemon.replies["hello"] = {"key_socket": "/keys.sock", "launcher_away_s": away_s}
    assert client.fetch_key() is None
    assert asked == [("/keys.sock", patience_s)]


def test_a_submission_is_signed_and_a_key_that_could_not_be_had_is_asked_for_again(
    client: Connection, daemon: CannedDaemon, keys: list[bytes | None]
) -> None:
    keys += [None, bytes(KEY_BYTES)]
    with pytest.raises(Refused) as error:
        client.submit(**JOB)
    assert error.value.code == "not-signed"
    assert client.submit(**JOB)["id"] == 7
    assert [each["op"] for each in daemon.requests] == ["hello", "submit"] * 2


# -- waiting over restarts ---------------------------------------------------------------------


def test_a_wait_of_days_is_asked_again_after_each_restart(
    client: Connection, daemon: CannedDaemon, clock: Clock
) -> None:
    """Patience begins anew with every loss: an upgrade on Monday and one on Friday."""

    def lost(request: object) -> None:
        clock.sleep(345_600)

    daemon.replies = {"wait": [lost, None, lost, OVER]}
    reply = client.wait([1, 2], any_one=True, timeout_s=None)
    assert reply == {"ok": True, **OVER}
    asked = {"op": "wait", "ids": [1, 2], "any": True, "timeout_s": None}
    assert daemon.requests == [asked] * 4
    assert daemon.connections == 4


def test_a_wait_outlives_a_daemon_that_is_away_for_less_than_a_minute(
    client: Connection, daemon: CannedDaemon, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = daemon.path.with_name("away.sock")

    def leave(request: object) -> None:
        daemon.path.rename(away)

    def come_back(seconds: float) -> None:
        clock.now_s += seconds
        if clock.now_s > 1050 and away.exists():
            away.rename(daemon.path)

    daemon.replies = {"wait": [leave, OVER]}
    monkeypatch.setattr(clock, "sleep", come_back)
    assert client.wait([1], any_one=False, timeout_s=None)["done"] is True
    assert clock.now_s > 1050


@pytest.mark.parametrize(
    ("timeout_s", "until_s"), [(None, pytest.approx(1060, abs=1)), (10.0, pytest.approx(1010))]
)
def test_a_wait_gives_up_after_its_timeout_or_when_the_daemon_stays_away(
    client: Connection, daemon: CannedDaemon, clock: Clock, timeout_s: float | None, until_s: float
) -> None:
    """Who says --timeout 10 has somebody waiting for them."""

    def leave(request: object) -> None:
        daemon.path.unlink()

    daemon.replies = {"wait": leave}
    with pytest.raises(Unavailable):
        client.wait([1], any_one=False, timeout_s=timeout_s)
    assert clock.now_s == until_s


def test_what_is_left_of_the_timeout_is_asked_for_after_a_restart(
    client: Connection, daemon: CannedDaemon
) -> None:
    daemon.replies = {"wait": [None, {"done": False, "ended": []}]}
    client.wait([1], any_one=False, timeout_s=1000.0)
    assert [asked["timeout_s"] for asked in daemon.requests] == [1000, 1000 - 0.2]


def test_a_refusal_of_a_wait_is_not_retried(
    client: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"wait": refuse("NotPermitted")}
    with pytest.raises(NotPermitted):
        client.wait([1], any_one=False, timeout_s=None)
    assert len(daemon.requests) == 1


def test_a_wait_on_a_connection_that_has_asked_before_has_no_limit_of_its_own(
    client: Connection, daemon: CannedDaemon
) -> None:
    """`drf submit -w` waits as long as the job takes, on the connection of the submission."""
    limited: list[bool] = []

    def take_long(request: object) -> Message:
        # A socket of Python's blocks only while it has no timeout.
        limited.append(not os.get_blocking(client.fileno()))
        return OVER

    daemon.replies = {"submit": {"id": 1}, "wait": take_long}
    client.submit(argv=["true"])
    assert client.wait([1], any_one=False, timeout_s=None)["done"] is True
    assert (limited, daemon.connections) == ([False], 1)
