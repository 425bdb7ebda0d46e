"""`drf web` as a process of its own, for a daemon that says what the test wants to hear."""

from __future__ import annotations

import copy
import http.client
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from canned import CannedDaemon
from canned_snapshots import ended, replies, resources, three_jobs
from cli.drf import Spawn
from cli.test_ledger import ledger


@dataclass
class Page:
    """A page that is served: its link, and requests to it."""

    process: subprocess.Popen[bytes]
    link: str
    port: int

    @property
    def place(self) -> str:
        """The path of the page."""
        return urlsplit(self.link).path

    @property
    def token(self) -> str:
        return urlsplit(self.link).query.removeprefix("token=")

    def get(
        self, path: str, *, has_cookie: bool = True, method: str = "GET", **headers: str
    ) -> tuple[HTTPResponse, bytes]:
        """Return the reply to a request for a path below the page's, or a whole path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        if has_cookie:
            headers["Cookie"] = f"drfd-web={self.token}"
        try:
            whole = path if path.startswith("/") else self.place + path
            connection.request(method, whole, headers=headers)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    @contextmanager
    def stream(self) -> Iterator[HTTPResponse]:
        """The stream of snapshots, of which the head has been read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            cookie = {"Cookie": f"drfd-web={self.token}"}
            connection.request("GET", f"{self.place}events", headers=cookie)
            with connection.getresponse() as reply:
                yield reply
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        response, body = self.get(path)
        assert response.status == 200, body
        return json.loads(body)


#: Starts `drf web` with these arguments, and returns it when it listens.
Serve = Callable[..., Page]


@pytest.fixture
def serve(spawn: Spawn) -> Serve:
    def start(*args: str) -> Page:
        process = spawn("web", *args)
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip()
        if not line:
            process.wait()
            assert process.stderr is not None
            raise AssertionError(process.stderr.read().decode())
        return Page(process, line, urlsplit(line).port or 0)

    return start


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output file of job 40."""
    path = tmp_path / "drf-40.out"
    path.write_text("".join(f"step {number}\n" for number in range(400)))
    return path


@pytest.fixture
def lab(daemon: CannedDaemon, output: Path) -> CannedDaemon:
    """A daemon with three jobs, of which 40 has a curve and an output, and ended ones."""
    show, why, usage = copy.deepcopy(replies())
    show["job"] |= {"stdout": str(output), "stderr": None}
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
        "show": {**show, "curve": usage["usage"], "used": None},
        "why": why,
        "history": {"jobs": past, "after": None},
        "ledger": ledger(),
    }
    return daemon


@pytest.fixture
def page(lab: CannedDaemon, serve: Serve) -> Page:
    return serve()
