"""drf web lets in who has the token, and nobody else, and strangers cannot keep others out."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from canned import CannedDaemon
from cli.drf import DRF, Drf, Finish, Spawn
from cli.web.browser import wait_for
from cli.web.conftest import Page, Serve
from drfd_cli.commands.web import own_hosts

PATHS = ("", "page.js", "page.css", "events", "past", "history", "jobs/40")


def test_the_link_moves_the_token_into_a_cookie_and_out_of_the_address(page: Page) -> None:
    response, body = page.get(f"?token={page.token}", has_cookie=False)
    assert (response.status, response.getheader("Location"), body) == (303, "./", b"")
    cookie = response.getheader("Set-Cookie")
    assert cookie == f"drfd-web={page.token}; HttpOnly; SameSite=Strict"
    response, body = page.get("")
    assert response.status == 200
    assert page.token.encode() not in body


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_there_is_nothing(page: Page, path: str) -> None:
    asked = len(page_requests(page))
    for headers in (
        {},
        {"Cookie": "drfd-web="},
        {"Cookie": f"drfd-web={page.token[:-1]}"},
        {"Cookie": f"other={page.token}"},
        {"Cookie": "drfd-web=\xff\xfe"},
        {"Authorization": f"token {page.token}"},
    ):
        response, body = page.get(path, has_cookie=False, **headers)
        assert response.status == 403
        assert body == b"drf web: no entry: open the link that drf web printed, with its token\n"
    response, _ = page.get(f"{path}?token=x{page.token}", has_cookie=False)
    assert response.status == 403
    assert len(page_requests(page)) == asked


def page_requests(page: Page) -> bytes:
    """The shares since the start: a request that only a guest may make."""
    return page.get("past")[1]


def test_outside_the_path_of_the_page_there_is_nothing(page: Page) -> None:
    assert page.get("/", has_cookie=False)[0].status == 403
    for path in ("/", "/page.js", "/past", f"{page.place}../past", f"{page.place}page.py"):
        assert page.get(path)[0].status == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "x@localhost", ""])
def test_another_host_name_is_refused_even_with_the_token(page: Page, host: str) -> None:
    for path in ("", f"?token={page.token}"):
        response, body = page.get(path, Host=host)
        assert response.status == 421
        assert response.getheader("Set-Cookie") is None
        assert b"another address" in body


def test_localhost_is_the_pages_own_name_in_any_case(page: Page) -> None:
    assert page.get("", Host=f"LocalHost:{page.port}")[0].status == 200


@pytest.mark.parametrize("path", [*PATHS[:3], "past", "nothing"])
def test_every_reply_forbids_what_the_page_does_not_need(page: Page, path: str) -> None:
    for has_cookie in (True, False):
        response, _ = page.get(path, has_cookie=has_cookie)
        policy = (response.getheader("Content-Security-Policy") or "").split("; ")
        assert policy[0] == "default-src 'none'"
        assert not [each for each in policy if "unsafe" in each or "*" in each or "http" in each]
        assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} < set(policy)
        for name, value in {
            "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin",
        }.items():  # fmt: skip
            assert response.getheader(name) == value
        assert response.getheader("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_page_only_answers_questions(page: Page, lab: CannedDaemon, method: str) -> None:
    for path in PATHS:
        assert page.get(path, method=method)[0].status == 405
    assert {each["op"] for each in lab.requests} == {"hello", "snapshots"}


def test_strangers_can_neither_use_up_the_connections_nor_stay(page: Page) -> None:
    """Two hundred connections that say nothing, or half a request."""
    idle = []
    for number in range(200):
        idle.append(socket.create_connection(("127.0.0.1", page.port), timeout=120))
        if number % 2:
            try:
                idle[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
            except ConnectionError:
                pass
    try:
        assert page.get("")[0].status == 200
        for each in idle:
            # Closed by the page: the oldest at once, all others after ten seconds.
            with pytest.raises(ConnectionResetError):
                while each.recv(1 << 12):
                    pass
                raise ConnectionResetError
    finally:
        for each in idle:
            each.close()
    assert page.get("")[0].status == 200


def test_who_has_shown_the_token_keeps_a_stream_while_strangers_come(page: Page) -> None:
    with page.stream() as reply, ExitStack() as strangers:
        assert reply.status == 200
        assert reply.readline().startswith(b'data: {"snapshot":')
        for _ in range(100):
            strangers.enter_context(socket.create_connection(("127.0.0.1", page.port)))
        # The line by which a stream without news shows that it is there comes after 15 seconds.
        while (line := reply.readline()) != b":\n":
            assert line, "the stream has ended"


def test_a_head_without_end_is_refused(page: Page) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=120) as asking:
        try:
            for _ in range(1000):
                asking.sendall(b"X" * 1024)
            answer = asking.recv(1 << 12)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert page.get("")[0].status == 200


def test_no_more_pages_than_sixteen_are_open_and_a_closed_one_makes_room(page: Page) -> None:
    def has_room() -> bool:
        with page.stream() as another:
            assert another.status in (200, 503)
            return another.status == 200

    with ExitStack() as opened:
        first = opened.enter_context(ExitStack())
        for number in range(16):
            reply = (opened if number else first).enter_context(page.stream())
            assert reply.status == 200
            assert reply.readline().startswith(b"data: ")
        assert not has_room()
        first.close()
        wait_for("room for another page", has_room)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_although_a_page_is_open(
    page: Page, finish: Finish, number: signal.Signals
) -> None:
    with page.stream() as reply:
        reply.readline()
        page.process.send_signal(number)
        result = finish(page.process)
    assert (result.code, result.out) == (0, "")
    assert result.err == "drf: whoever has this link sees what you may see; ^C ends the page\n"


def test_a_signal_ends_it_although_the_daemon_answers_no_question(
    page: Page, lab: CannedDaemon, finish: Finish
) -> None:
    """The page's files and its past are there meanwhile, however many ask."""
    is_over = threading.Event()

    def never(_: object) -> None:
        is_over.wait(600)

    lab.replies["history"] = never
    try:
        with ExitStack() as asking:
            for number in range(40):
                connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=120)
                asking.callback(connection.close)
                cookie = {"Cookie": f"drfd-web={page.token}"}
                connection.request("GET", f"{page.place}history", headers=cookie)
                lab.asked("history", times=number + 1)
            response, body = page.get("history")
            assert response.status == 503
            assert json.loads(body)["error"].startswith("the daemon has not answered")
            assert page.get("page.js")[0].status == page.get("past")[0].status == 200
            page.process.send_signal(signal.SIGINT)
            result = finish(page.process)
    finally:
        is_over.set()
    assert (result.code, result.out) == (0, "")
    assert result.err == "drf: whoever has this link sees what you may see; ^C ends the page\n"


def test_strangers_cannot_write_to_the_terminal(page: Page, finish: Finish) -> None:
    upgrade = b"Host: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    for data in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\n" + upgrade):
        with socket.create_connection(("127.0.0.1", page.port), timeout=120) as asking:
            asking.sendall(data)
            assert asking.recv(1 << 12).startswith(b"HTTP/1.1 4")
    page.process.send_signal(signal.SIGINT)
    assert finish(page.process).err.count("\n") == 1


def test_a_proxy_reaches_it_by_a_socket_under_its_own_name(
    lab: CannedDaemon, serve: Serve, finish: Finish, tmp_path: Path
) -> None:
    path = tmp_path / "web.sock"
    page = serve("--socket", str(path), "--host", "Jobs.Example:8443")
    assert path.stat().st_mode & 0o777 == 0o660
    where, _, link = page.link.partition(", and there ")
    assert where == str(path)

    def ask(host: str) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection("unused")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("GET", link, headers={"Host": host})
        reply = connection.getresponse()
        reply.read()
        connection.close()
        return reply.status, reply.getheader("Location")

    assert ask("jobs.example:8443") == (303, "./")
    assert ask("jobs.example") == (421, None)
    page.process.send_signal(signal.SIGTERM)
    assert finish(page.process).code == 0
    assert not path.exists()


def test_a_socket_that_was_left_is_replaced_and_nothing_else(
    lab: CannedDaemon, serve: Serve, drf: Drf, tmp_path: Path
) -> None:
    path = tmp_path / "web.sock"
    first = serve("--socket", str(path))
    first.process.kill()
    first.process.wait()
    second = serve("--socket", str(path))
    for place in (path, tmp_path / "file"):
        place.exists() or place.write_text("kept")
        result = drf("web", "--socket", place)
        assert (result.code, result.out) == (1, "")
        assert result.err == f"drf: {place} is there already (another path: --socket PATH)\n"
    assert (tmp_path / "file").read_text() == "kept"
    assert second.process.poll() is None


def test_only_the_own_socket_is_removed_at_the_end(
    lab: CannedDaemon, serve: Serve, finish: Finish, tmp_path: Path
) -> None:
    path = tmp_path / "web.sock"
    first = serve("--socket", str(path))
    path.unlink()
    second = serve("--socket", str(path))
    first.process.send_signal(signal.SIGTERM)
    assert finish(first.process).code == 0
    assert path.is_socket()
    path.unlink()
    second.process.send_signal(signal.SIGTERM)
    result = finish(second.process)
    assert (result.code, result.err.count("\n")) == (0, 1)


@pytest.mark.parametrize("name", ["https://a.example/", "a.example/", "a b", "", "a\x1bb", "a:b"])
def test_what_no_browser_sends_as_its_host_is_refused(drf: Drf, name: str) -> None:
    result = drf("web", "--host", name)
    assert (result.code, result.out) == (2, "")
    assert "is not the name of a host (write it as in the page's address" in result.err


def test_port_80_is_not_in_the_name_that_browsers_send() -> None:
    assert own_hosts(80) == ["127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"]
    assert own_hosts(8000) == ["127.0.0.1:8000", "localhost:8000"]


def test_a_port_in_use_is_told_with_the_cure(page: Page, drf: Drf) -> None:
    result = drf("web", "--port", page.port)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        f"drf: cannot listen on port {page.port}: Address already in use "
        "(another one: --port NUMBER)\n"
    )


def test_without_its_packages_it_says_what_to_install(spawn: Spawn, finish: Finish) -> None:
    without = "import importlib.util as u\nfind = u.find_spec\n" + (
        "u.find_spec = lambda name, *more: None if name == 'uvicorn' else find(name, *more)\n"
    )
    result = finish(spawn("web", program=without + DRF))
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "drf: drf web needs starlette and uvicorn, which are not installed "
        "(pip install 'drfd[web]')\n"
    )


def test_a_port_and_a_socket_are_two_answers(drf: Drf) -> None:
    result = drf("web", "--port", 8000, "--socket", "x")
    assert result.code == 2
    assert "--port and --socket exclude each other" in result.err


def test_the_other_verbs_do_not_load_the_server() -> None:
    program = "import sys, drfd_cli.main, drfd_cli.commands.web\nprint('uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
