"""drf web: who has the token sees what the daemon tells this user; strangers keep nobody out."""

import asyncio
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from canned_snapshots import AT_S, ended, three_jobs
from cli.web.conftest import Site
from drfd_cli.commands import web
from drfd_cli.web.serving import listen_on_port, server_of

PATHS = ("", "page.js", "page.css", "events", "history", "jobs/40")


# -- who may see it ----------------------------------------------------------------------------


def test_the_link_moves_the_token_into_a_cookie_and_out_of_the_address(site):
    reply = site.get(f"?token={site.shown.token}", has_cookie=False)
    assert (reply.status, reply.headers["location"], reply.body) == (303, "./", b"")
    cookie = f"drfd-web={site.shown.token}; HttpOnly; SameSite=Strict"
    assert reply.headers["set-cookie"] == cookie
    reply = site.get("")
    assert reply.status == 200
    assert site.shown.token.encode() not in reply.body


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_there_is_nothing(site, lab, path):
    token = site.shown.token
    for headers in (
        {},
        {"Cookie": "drfd-web="},
        {"Cookie": f"drfd-web={token[:-1]}"},
        {"Cookie": f"other={token}"},
        {"Cookie": "drfd-web=\xff\xfe"},
        {"Authorization": f"token {token}"},
    ):
        reply = site.get(path, has_cookie=False, **headers)
        assert reply.status == 403
        told = b"drf web: no entry: open the link that drf web printed, with its token\n"
        assert reply.body == told
    for query in (f"token=x{token}", f"token={token}&token={token}", "token=\xff"):
        assert site.get(f"{path}?{query}", has_cookie=False).status == 403
    assert lab.requests == []


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "x@localhost", ""])
def test_another_host_name_is_refused_even_with_the_token(site, host):
    for path in ("", f"?token={site.shown.token}"):
        reply = site.get(path, Host=host)
        assert reply.status == 421
        assert "set-cookie" not in reply.headers
        assert b"another address" in reply.body
    assert site.get("", Host="LocalHost").status == 200, "its own, in any case"
    assert site.get("", HOST="localhost", Host="localhost").status == 400, "two"


@pytest.mark.parametrize("path", [*PATHS[:3], "nothing"])
def test_every_reply_forbids_what_the_page_does_not_need(site, path):
    for has_cookie in (True, False):
        headers = site.get(path, has_cookie=has_cookie).headers
        policy = headers["content-security-policy"].split("; ")
        assert policy[0] == "default-src 'none'"
        assert not [each for each in policy if "unsafe" in each or "*" in each or "http" in each]
        assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} < set(policy)
        assert headers.items() >= {
            "cache-control": "no-store", "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin",
        }.items()  # fmt: skip
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_page_only_answers_questions(site, lab, method):
    assert [site.get(path, method=method).status for path in PATHS] == [405] * len(PATHS)
    assert lab.requests == []


def test_what_browsers_name_the_page():
    assert web.own_hosts(80) == ["127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"]
    assert web.own_hosts(8000) == ["127.0.0.1:8000", "localhost:8000"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        *(
            (["--host", name], "is not the name of a host (write it as in the page's address")
            for name in ("https://a.example/", "a.example/", "a b", "", "a\x1bb", "a:b")
        ),
        (["--port", 8000, "--socket", "x"], "--port and --socket exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(drf, words, complaint):
    result = drf("web", *words)
    assert (result.code, result.out) == (2, "")
    assert complaint in result.err


def test_without_its_packages_it_says_what_to_install(drf, monkeypatch):
    monkeypatch.setattr(web, "find_spec", lambda name: None)
    result = drf("web")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "drf: drf web needs starlette and uvicorn, which are not installed "
        "(pip install 'drfd[web]')\n"
    )


# -- what it shows -----------------------------------------------------------------------------


def test_a_job_comes_with_its_reasons_its_curve_and_the_end_of_its_output(site, lab, output):
    assert site.json("jobs/40").keys() == {"show", "output"}
    found = site.json("jobs/40?why=1")
    assert found.keys() == {"show", "why", "output"}
    assert found["show"] == lab.replies["show"]
    assert found["why"] == lab.replies["why"]
    lines = [f"step {number}" for number in range(100, 400)]
    assert found["output"] == {"path": str(output), "lines": lines, "note": ""}
    output.with_suffix(".err").write_text("oh\n")
    lab.replies["show"]["job"]["stderr"] = str(output.with_suffix(".err"))
    assert site.json("jobs/40")["errors"]["lines"] == ["oh"]


def test_refusals_of_the_daemon_are_told(site, lab, refuse):
    lab.replies["show"] = refuse("Refused", "no-job", "there is no job 99")
    assert site.json("jobs/99", 404) == {"error": "there is no job 99"}
    assert site.get("jobs/x%0a%3Cb%3E").status == 404
    lab.replies["history"] = lab.replies["why"] = refuse("NotPermitted", "not-yours", "not yours")
    assert site.json("history?everybody=1", 403) == {"error": "not yours"}
    lab.replies["show"] = {"array": {"id": 7}, "events": []}
    assert site.json("jobs/7?why=1")["why"] is None
    lab.stop()
    assert "no drfd answers" in site.json("history", 503)["error"]


def test_history_is_ones_own_unless_asked_and_goes_on_where_it_stopped(site, lab):
    lab.replies["history"] = {"jobs": [], "after": [5.5, 7]}
    assert site.json("history")["after"] == [5.5, 7]
    site.json("history?everybody=1&at=5.5&id=7")
    asked = [(each["past"], each["after"]) for each in lab.asked("history", times=2)]
    assert asked == [({"user": "alice"}, None), ({}, [5.5, 7])]
    for query in ("at=x&id=7", "at=nan&id=7", "at=1&id=7.5"):
        assert site.get(f"history?{query}").status == 404


async def test_tables_have_the_columns_of_the_lists_and_those_that_the_user_likes(site, lab):
    site.feed.columns = ["priority", "submitted_at", "waits_for"]
    line = await anext(site.feed.lines())
    told = json.loads(line.removeprefix(b"data: "))
    own = [["PRIORITY", "number"], ["SUBMITTED", ""], ["WAITS FOR", ""]]
    assert told["waiting"]["heads"][-4:] == [*own, ["WHY", "why wide"]]
    assert told["running"]["heads"][-4:] == [*own, ["TIME", "number"]]
    label, ref, name, *_, since, _, spent = told["running"]["rows"][0]
    assert (label, ref, name) == ("40", "40", ["align-reads", "title"])
    assert (since, spent) == (["2023-11-14 21:58:20 UTC", ""], ["10m00s/2h", "plain"])
    tasks = {label: ref for label, ref, *_ in told["waiting"]["rows"]}
    assert tasks == {"45": "45", "44_[8-99%4]": "44", "46": "46"}
    past = ended(
        7, used={"memory_peak": 3 << 30}, outcome={"code": "FAILED", "text": "exit code 3"}
    )
    lab.replies["history"] = {"jobs": [past], "after": None}
    told = json.loads((await site.ask("history")).body)
    assert told["heads"][-3:] == [*own[:2], ["CAUSE", "why wide"]]
    assert [cell[0] for cell in told["rows"][0][-5:]] == [
        "3G/4G", "COMPLETED", "0", "2023-11-14 21:58:20 UTC", "exit code 3"
    ]  # fmt: skip


async def news_of(lines: AsyncIterator[bytes]) -> tuple[float, bool, bool]:
    """The next snapshot of a stream: of which time, and whether the daemon is away or silent."""
    while not (line := await anext(lines)).startswith(b"data: "):
        assert line == b":\n\n", "the line by which a stream without news shows that it is there"
    told = json.loads(line.removeprefix(b"data: "))
    return told["snapshot"]["at"], told["away"], told["silent"]


async def test_a_stream_has_each_new_snapshot_and_says_what_is_wrong_with_it(site):
    lines = site.feed.lines()
    assert await news_of(lines) == (AT_S, False, False)
    site.news = replace(site.news, away_since_s=time.monotonic())
    site.feed.wake()
    assert await news_of(lines) == (AT_S, True, True)
    site.news = replace(site.news, came_s=-100.0, away_since_s=None)
    assert await news_of(lines) == (AT_S, False, True)
    site.news = replace(site.news, snapshot=three_jobs() | {"at": AT_S + 6})
    site.feed.wake()
    assert await news_of(lines) == (AT_S + 6, False, True)
    assert await anext(lines) == b":\n\n"
    site.is_over = True
    assert [line async for line in lines] == []


async def test_no_more_pages_than_sixteen_are_open_and_a_closed_one_makes_room(site):
    streams = [site.feed.lines() for _ in range(16)]
    for each in streams:
        await anext(each)
    assert (await site.ask("events")).status == 503
    await streams.pop().aclose()
    reply = await site.ask("events")
    assert (reply.status, reply.headers["content-type"]) == (
        200, "text/event-stream; charset=utf-8"
    )  # fmt: skip
    for each in streams:
        await each.aclose()


async def test_a_daemon_that_answers_no_question_keeps_nobody_from_the_page(site, lab):
    """Nor from its end, however many ask."""
    answer = threading.Event()
    lab.replies["history"] = lambda request: answer.wait(60) and None
    asking = [asyncio.create_task(site.ask("history")) for _ in range(40)]
    while site.feed.asked < 40:
        await asyncio.sleep(0)
    reply = await site.ask("history")
    assert reply.status == 503
    assert json.loads(reply.body)["error"].startswith("the daemon has not answered")
    assert (await site.ask("page.js")).status == 200
    site.is_over = True
    assert {json.loads((await each).body)["error"] for each in asking} == {"the page ends"}
    answer.set()


# -- the server --------------------------------------------------------------------------------


@asynccontextmanager
async def served(site: Site) -> AsyncIterator[int]:
    """Serve the page; the port."""
    server, listener = server_of(site.app), listen_on_port(0)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = site.is_over = True
        await serving


async def connect(
    port: int, sent: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the page closes the connection."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.usefixtures("handlers")
async def test_a_head_without_end_is_refused(site):
    async with served(site) as port:
        reader, writer = await connect(port, b"X" * (1 << 20))
        answer = await rest(reader)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        writer.close()


def test_a_file_at_the_path_is_kept(lab, drf, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    result = drf("web", "--socket", file)
    assert (result.code, result.out) == (1, "")
    assert "it is not a socket" in result.err
    assert file.read_text() == "kept"


def test_a_port_in_use_is_told_with_the_cure(lab, drf):
    with listen_on_port(0) as listener:
        port = listener.getsockname()[1]
        result = drf("web", "--port", port)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        f"drf: cannot listen on port {port}: Address already in use (another one: --port NUMBER)\n"
    )


# -- the whole program -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_although_a_page_is_open(page, finish, number):
    """And strangers cannot write to the terminal."""
    upgrade = b"Host: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    for data in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\n" + upgrade):
        with socket.create_connection(("127.0.0.1", page.port), timeout=120) as asking:
            asking.sendall(data)
            assert asking.recv(1 << 12).startswith(b"HTTP/1.1 4")
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=120)
    connection.request("GET", f"{page.place}events", headers={"Cookie": f"drfd-web={page.token}"})
    with connection.getresponse() as stream:
        assert stream.readline().startswith(b'data: {"snapshot":')
        page.process.send_signal(number)
        result = finish(page.process)
    connection.close()
    assert (result.code, result.out) == (0, "")
    assert result.err == "drf: whoever has this link sees what you may see; ^C ends the page\n"


@pytest.mark.slow
def test_a_proxy_reaches_it_by_a_socket_under_its_own_name(lab, serve, finish, tmp_path):
    path = tmp_path / "web.sock"
    page = serve("--socket", str(path), "--host", "Jobs.Example:8443")
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
