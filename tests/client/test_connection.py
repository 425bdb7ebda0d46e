"""Finding the daemon, talking to it, and living through its restarts."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from canned import CannedDaemon, Message, Refuse
from drfd.client import connection as connection_module
from drfd.client.connection import Connection, choose
from drfd.common import paths
from drfd.common.errors import ConfigError, DrfdError, HostError, NotPermitted, Refused, Unavailable
from drfd.payload.signature import KEY_BYTES


@pytest.fixture
def client(daemon: CannedDaemon) -> Iterator[Connection]:
    client = Connection(daemon.path)
    yield client
    client.close()


# -- which daemon ------------------------------------------------------------------------------


@pytest.fixture
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No DRFD_SOCKET, no system daemon; the user's runtime directory is returned."""
    monkeypatch.delenv("DRFD_SOCKET", raising=False)
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", tmp_path / "system" / "drfd.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def chosen(explicit: str | None, *, may_start: bool = True) -> tuple[Path, bool]:
    """Where, and whether a daemon would be started there."""
    found = choose(explicit, start=Path.touch if may_start else None)
    return found.path, found._start is not None


def test_the_option_wins_over_the_variable(
    nothing_named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRFD_SOCKET", "/variable")
    assert chosen("/option") == (Path("/option"), False)
    assert chosen(None) == (Path("/variable"), False)


def test_then_comes_the_systems_daemon_and_then_the_users_own(nothing_named: Path) -> None:
    """Only the user's own is started when it is not there."""
    assert chosen(None) == (nothing_named / "run/drfd.sock", True)
    assert chosen(None, may_start=False) == (nothing_named / "run/drfd.sock", False)
    paths.SYSTEM_SOCKET.parent.mkdir()
    paths.SYSTEM_SOCKET.touch()
    assert chosen(None) == (paths.SYSTEM_SOCKET, False)


def test_no_daemon_is_started_inside_a_job(
    nothing_named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be in the job's cgroup, and end with the job."""
    monkeypatch.setenv("DRF_JOB_ID", "1")
    assert chosen(None) == (nothing_named / "run/drfd.sock", False)


def test_nobody_gets_a_daemon_of_his_own_while_the_systems_is_restarted(
    nothing_named: Path,
) -> None:
    paths.SYSTEM_SOCKET.parent.mkdir()
    assert chosen(None) == (paths.SYSTEM_SOCKET, False)


def test_an_empty_variable_names_nothing(
    nothing_named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRFD_SOCKET", "")
    assert chosen(None) == (nothing_named / "run/drfd.sock", True)


# -- one request, one reply --------------------------------------------------------------------


def test_a_request_is_sent_with_the_version_and_its_reply_returned(
    client: Connection, daemon: CannedDaemon
) -> None:
    daemon.replies = {"show": {"job": {"id": 7}}}
    assert client.request("show", id=7) == {"ok": True, "job": {"id": 7}}
    assert daemon.requests == [{"op": "show", "id": 7}]


def test_many_requests_share_one_connection(client: Connection, daemon: CannedDaemon) -> None:
    daemon.replies = {"hello": {}}
    for _ in range(3):
        client.request("hello")
    assert daemon.connections == 1


def test_a_reply_of_many_megabytes_is_read_whole(client: Connection, daemon: CannedDaemon) -> None:
    daemon.replies = {"status": {"jobs": ["x" * 1000] * 8000}}
    assert len(client.request("status")["jobs"]) == 8000


@pytest.mark.parametrize("kind", [Refused, NotPermitted, HostError, ConfigError, Unavailable])
def test_a_refusal_becomes_the_exception_that_it_was(
    client: Connection, daemon: CannedDaemon, refuse: Refuse, kind: type[DrfdError]
) -> None:
    daemon.replies = {"show": refuse(kind.__name__, "some-code", "what is wrong", "the way out")}
    with pytest.raises(DrfdError) as error:
        client.request("show", id=1)
    assert type(error.value) is kind
    assert (error.value.code, error.value.text, error.value.hint) == (
        "some-code",
        "what is wrong",
        "the way out",
    )


def test_a_refusal_of_a_kind_that_is_unknown_here_is_still_an_error(
    client: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"show": refuse("Moonstruck", "c", "what is wrong")}
    with pytest.raises(DrfdError, match="what is wrong"):
        client.request("show", id=1)


def test_the_connection_goes_on_after_a_refusal(
    client: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"show": refuse(), "hello": {}}
    with pytest.raises(Refused):
        client.request("show", id=1)
    assert client.request("hello") == {"ok": True}


def test_nobody_there_is_unavailable_and_names_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "nobody.sock"
    with pytest.raises(Unavailable) as error:
        Connection(path).request("hello")
    assert error.value.text == f"no drfd answers at {path}: No such file or directory"
    assert "DRFD_SOCKET" in error.value.hint


@pytest.mark.parametrize("name", ["x" * 200 + "/drfd.sock", "y" * 120])
def test_a_long_path_to_nobody_is_unavailable_too(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unavailable):
        Connection(tmp_path / name).request("hello")


def test_a_socket_that_nobody_listens_at_is_unavailable(
    daemon: CannedDaemon, tmp_path: Path
) -> None:
    import socket

    path = daemon.path.parent / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Unavailable, match="Connection refused"):
        Connection(path).request("hello")


def test_a_daemon_that_hangs_up_is_unavailable(client: Connection, daemon: CannedDaemon) -> None:
    daemon.replies = {"hello": None}
    with pytest.raises(Unavailable, match="closed the connection"):
        client.request("hello")


def test_half_a_reply_is_unavailable(client: Connection, daemon: CannedDaemon) -> None:
    daemon.replies = {"hello": b'{"ok": tr', "bye": None}
    client.send("hello")
    client.send("bye")
    with pytest.raises(Unavailable):
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
    assert len(daemon.requests) == 400
    assert daemon.connections == 1


def test_nothing_to_submit_asks_nobody(client: Connection, daemon: CannedDaemon) -> None:
    assert list(client.submit_all([])) == []
    assert daemon.connections == 0


def test_what_was_not_answered_is_asked_for_again_under_its_key(
    client: Connection, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RETRY_S", 0.01)
    keys: list[str] = []
    daemon.on_key = keys.append
    daemon.replies = {"submit": [{"id": 1}, {"id": 2}, None, {"id": 3}, {"id": 4}]}
    replies = list(client.submit_all({"argv": ["true"]} for _ in range(4)))
    assert [each["id"] for each in replies] == [1, 2, 3, 4]
    assert len(set(keys)) == 4
    assert keys[2] == keys[3], "the third was lost, and asked for again"


def test_submissions_to_nobody_are_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no drfd answers"):
        list(Connection(tmp_path / "none").submit_all([{"argv": ["true"]}]))


# -- the key for signatures --------------------------------------------------------------------

JOB: Message = {"argv": ["true"], "cwd": "/", "env": {}}


@pytest.fixture
def signing(
    daemon: CannedDaemon, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Have the daemon, as if another user's, take signed submissions only, and return where the
    key service would listen. Patience is a tenth of what it is."""
    monkeypatch.setattr(connection_module, "peer_of", lambda connected: (os.getuid() + 1, 0, 0))
    for name in ("_KEY_PATIENCE_S", "_LEAST_KEY_PATIENCE_S"):
        monkeypatch.setattr(connection_module, name, getattr(connection_module, name) / 10)

    def want(**hello: object) -> Path:
        door = daemon.path.with_name("keys.sock")
        daemon.replies = {
            "hello": {"key_socket": str(door), **hello},
            "submit": lambda job: {"id": 7} if "proof" in job else refuse(code="not-signed"),
        }
        return door

    return want


def give_key(door: Path, after_s: float) -> threading.Thread:
    """A key service that is there after a while, and serves one caller."""

    def serve() -> None:
        time.sleep(after_s)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(door))
            listener.listen()
            connection, _ = listener.accept()
            with connection:
                connection.send(bytes(KEY_BYTES))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_submission_waits_for_a_launcher_that_is_being_restarted(
    client: Connection, daemon: CannedDaemon, signing: Callable[..., Path]
) -> None:
    """After ten seconds it was refused, and its user told to try again in a moment."""
    service = give_key(signing(), 1.5)
    assert client.submit(**JOB)["id"] == 7
    assert [each["op"] for each in daemon.requests] == ["hello", "submit"]
    service.join()


@pytest.mark.slow
def test_a_launcher_that_is_away_for_long_is_hardly_waited_for(
    client: Connection, daemon: CannedDaemon, signing: Callable[..., Path]
) -> None:
    door = signing(launcher_away_s=3600.0)
    began_s = time.monotonic()
    with pytest.raises(Refused) as error:
        client.submit(**JOB)
    assert error.value.code == "not-signed"
    assert [each["op"] for each in daemon.requests] == ["hello", "submit"]
    assert 0.5 <= time.monotonic() - began_s < 2.5
    # It is back later: the same client has its key then.
    service = give_key(door, 0.0)
    assert client.submit(**JOB)["id"] == 7
    service.join()


# -- waiting over restarts ---------------------------------------------------------------------


def test_a_wait_is_asked_again_after_a_restart(client: Connection, daemon: CannedDaemon) -> None:
    daemon.replies = {"wait": [None, None, {"done": True, "ended": []}]}
    reply = client.wait([1, 2], any_one=True, timeout_s=None)
    assert reply == {"ok": True, "done": True, "ended": []}
    asked = {"op": "wait", "ids": [1, 2], "any": True, "timeout_s": None}
    assert daemon.requests == [asked, asked, asked]
    assert daemon.connections == 3


@pytest.mark.slow
def test_a_wait_outlives_a_daemon_that_is_away_for_a_while(
    client: Connection, daemon: CannedDaemon
) -> None:
    def leave(request: object) -> None:
        daemon.stop()
        daemon.replies = {"wait": {"done": True, "ended": []}}
        daemon.start()

    daemon.replies = {"wait": leave}
    assert client.wait([1], any_one=False, timeout_s=None)["done"] is True


def test_a_wait_gives_up_when_the_daemon_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RECONNECT_S", 0.1)
    with pytest.raises(Unavailable):
        Connection(tmp_path / "none").wait([1], any_one=False, timeout_s=None)


@pytest.mark.slow
def test_a_wait_of_days_outlives_restarts_that_lie_days_apart(
    client: Connection, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience begins anew with every loss: an upgrade on Monday and one on Friday."""
    monkeypatch.setattr(connection_module, "RECONNECT_S", 0.3)

    def lost_after_a_while(request: object) -> None:
        time.sleep(0.25)

    daemon.replies = {
        "wait": [
            lost_after_a_while,
            lost_after_a_while,
            lost_after_a_while,
            {"done": True, "ended": []},
        ]
    }
    assert client.wait([1], any_one=False, timeout_s=None)["done"] is True


def test_what_is_left_of_the_timeout_is_asked_for_after_a_restart(
    client: Connection, daemon: CannedDaemon
) -> None:
    daemon.replies = {"wait": [None, {"done": False, "ended": []}]}
    client.wait([1], any_one=False, timeout_s=1000.0)
    first, second = (request["timeout_s"] for request in daemon.requests)
    assert 900 < second <= first - 0.1 < 1000


@pytest.mark.slow
def test_a_timeout_holds_while_the_daemon_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who says --timeout 1 has somebody waiting for them."""
    monkeypatch.setattr(connection_module, "RECONNECT_S", 60.0)
    started = time.monotonic()
    with pytest.raises(DrfdError):
        Connection(tmp_path / "none").wait([1], any_one=False, timeout_s=0.1)
    assert time.monotonic() - started < 30


def test_a_refusal_of_a_wait_is_not_retried(
    client: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"wait": refuse("NotPermitted")}
    with pytest.raises(NotPermitted):
        client.wait([1], any_one=False, timeout_s=None)
    assert len(daemon.requests) == 1


def test_a_wait_on_a_connection_that_has_asked_before_has_no_limit_of_its_own(
    client: Connection, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`drf submit -w` waits as long as the job takes, on the connection of the submission."""
    monkeypatch.setattr(connection_module, "_ANSWER_S", 0.2)
    monkeypatch.setattr(connection_module, "RECONNECT_S", 0.1)

    def take_long(request: object) -> Message:
        time.sleep(0.6)
        return {"done": True, "ended": []}

    daemon.replies = {"submit": {"id": 1}, "wait": take_long}
    client.submit(argv=["true"])
    assert client.wait([1], any_one=False, timeout_s=None)["done"] is True
    assert daemon.connections == 1


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
