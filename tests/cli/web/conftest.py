"""The page of `drf web`: as an application, and as a process of its own."""

import asyncio
import copy
import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from canned import CannedDaemon
from canned_snapshots import ended, replies, resources, three_jobs
from drfd.client.connection import Connection
from drfd_cli.top.feed import News
from drfd_cli.web.pages import Feed, application
from drfd_cli.web.serving import Access, Guard


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Site:
    """The page, asked without a server between. Its feed looks and sends a hundred times as often
    as that of `drf web`."""

    def __init__(self, daemon: CannedDaemon) -> None:
        self.news = News(three_jobs(), time.monotonic())
        self.is_over = False
        self.feed = Feed(lambda: self.news, lambda: self.is_over, look_s=0.01, alive_s=0.03)
        self.shown = Access()
        connection = Connection(daemon.path)
        page = application(self.shown.place, connection, self.feed)
        self.app = Guard(page, self.shown, ["localhost"])

    async def ask(
        self, path: str, *, has_cookie: bool = True, method: str = "GET", **headers: str
    ) -> Reply:
        """Return the reply to a request for a path below the page's, or a whole path. Of a stream,
        what comes before the reader leaves."""
        whole = urlsplit(path if path.startswith("/") else f"/{self.shown.place}/{path}")
        headers = {"Host": "localhost"} | headers
        if has_cookie:
            headers["Cookie"] = f"drfd-web={self.shown.token}"
        scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "method": method, "path": unquote(whole.path),
            "query_string": whole.query.encode(), "root_path": "", "scheme": "http",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
        }  # fmt: skip
        reply, incoming = Reply(), [{"type": "http.request"}]

        async def receive() -> Any:
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                reply.body += message.get("body", b"")

        await self.app(scope, receive, send)
        return reply

    def get(self, path: str, **more: Any) -> Reply:
        return asyncio.run(self.ask(path, **more))

    def json(self, path: str, status: int = 200) -> Any:
        reply = self.get(path)
        assert reply.status == status, reply.body
        return json.loads(reply.body)


@dataclass
class Page:
    """A page that a process serves."""

    process: subprocess.Popen[bytes]
    link: str

    @property
    def port(self) -> int:
        return urlsplit(self.link).port or 0

    @property
    def place(self) -> str:
        """The path of the page."""
        return urlsplit(self.link).path

    @property
    def token(self) -> str:
        return urlsplit(self.link).query.removeprefix("token=")


@pytest.fixture
def serve(spawn):
    """Starts `drf web` with these arguments, and returns it when it listens."""

    def start(*args: str) -> Page:
        process = spawn("web", *args)
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip()
        assert line, process.communicate()[1].decode()
        return Page(process, line)

    return start


@pytest.fixture
def output(tmp_path) -> Path:
    """The output file of job 40."""
    path = tmp_path / "drf-40.out"
    path.write_text("".join(f"step {number}\n" for number in range(400)))
    return path


@pytest.fixture
def lab(daemon, output) -> CannedDaemon:
    """A daemon with three jobs, of which 40 has a curve and an output, and ended ones."""
    show, why = copy.deepcopy(replies())
    show["job"] |= {"uid": os.getuid(), "stdout": str(output), "stderr": None}
    past = [
        ended(39, "alice", "FAILED", exit_code=3,
              outcome={"code": "FAILED", "text": "exit code 3"}),
        ended(37, "alice", outcome={"code": "COMPLETED", "text": "exit code 0"}),
    ]  # fmt: skip
    for job in past:
        job |= {"used": {"memory_peak": 3 << 30}, "demand": resources(2.0, 4 << 30)}
    daemon.replies |= {
        "hello": {"user": "alice", "admin": False, "version": "0"},
        "snapshots": {"snapshot": three_jobs()},
        "show": {**show, "used": None},
        "why": why,
        "history": {"jobs": past, "after": None},
    }
    return daemon


@pytest.fixture
def site(lab) -> Site:
    return Site(lab)


@pytest.fixture
def page(lab, serve) -> Page:
    return serve()
