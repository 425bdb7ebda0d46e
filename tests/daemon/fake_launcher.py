"""A launcher of the tests' own on a real socket, what it reports, and an engine behind the line."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from drfd.core.decisions import stimuli as st
from drfd.core.model.job import Job, JobState
from drfd.daemon.engine.engine import Engine, Work
from drfd.launcher import protocol
from drfd.linux.unix_sockets import at_socket
from fakes import FakeHost, now

Message = dict[str, Any]
GREETING = protocol.Hello(
    kind="cgroup v1",
    controls={"cores": "enforced", "read": "measured: so", "write": "measured: so"},
    cores=dict.fromkeys(protocol.CORES_MODES, "enforced"),
    hiding=(True, "so"),
    mounts={"memory": "/sys/fs/cgroup/memory"},
    min_uid=0,
    allowed_uids=[],
)
HELLO: Message = msgspec.to_builtins(GREETING)
LIST = {"cmd": "list"}


@dataclass
class FakeLauncher:
    """Accepts the controller, greets it, and answers `list` with `news` and `known`."""

    path: Path
    #: Reports that are told before `listed`, as the real one tells what its files say.
    news: list[Message] = field(default_factory=list)
    known: list[tuple[int, int]] = field(default_factory=list)
    hello: Message = field(default_factory=lambda: HELLO)
    #: Everything that came, on all connections, but for the test's own markers.
    orders: list[Message] = field(default_factory=list)
    connections: int = 0
    marker: asyncio.Event = field(default_factory=asyncio.Event)
    #: It reads no orders while this is not set.
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None
    writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        self.reads.set()
        with at_socket(self.path) as address:
            self.server = await asyncio.start_unix_server(self.serve, address)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        self.send(self.hello)
        with suppress(ConnectionError):
            while line := await reader.readline():
                await self.reads.wait()
                message = json.loads(line)
                if message == {"cmd": "marker"}:
                    self.marker.set()
                    continue
                # Named by what is to be done.
                if message.pop("is_notice", False):
                    message["cmd"] = "notify"
                self.orders.append(message | {"cmd": message.pop("do", message["cmd"])})
                if message == LIST:
                    self.send(*self.news, {"report": "listed", "known": self.known, "owners": {}})
        writer.close()

    def send(self, *reports: Message) -> None:
        assert self.writer is not None
        for report in reports:
            self.writer.write(json.dumps(report).encode() + b"\n")

    async def hang_up(self) -> None:
        assert self.writer is not None
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def leave(self) -> None:
        if self.server is not None:
            self.server.close()
        if self.writer is not None:
            await self.hang_up()
        self.path.unlink(missing_ok=True)


@dataclass
class Behind:
    """What a test sees of an engine whose host are links to launchers."""

    engine: Engine

    def job(self, job_id: int) -> Job:
        found = self.engine.ledger.jobs.get(job_id) or self.engine.journal.job(job_id)
        assert found is not None
        return found

    async def state(self, job_id: int, state: JobState | str) -> None:
        def is_so() -> bool:
            job = self.job(job_id)
            return state in (job.state, job.shown_state)

        await until(is_so, lambda: self.job(job_id))


async def until(is_so: Callable[[], object], show: Callable[[], object] = str) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not is_so():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"waited in vain: {show()}")
        await asyncio.sleep(0.002)


def live_through(engine: Engine, history: Sequence[st.Stimulus]) -> None:
    """What an earlier daemon did, with a launcher that was there."""
    link, engine.launchers = engine.launchers, FakeHost()
    for stimulus in history:
        engine.turn([Work(stimulus)])
    engine.launchers = link


def launched(job_id: int, attempt: int = 1, cgroup: str | None = None) -> Message:
    return {
        "report": "launched", "id": job_id, "attempt": attempt, "at_s": now().at_s,
        "mono_s": now().mono_s, "cgroup": cgroup, "runner_pid": os.getpid(),
    }  # fmt: skip


def ended(job_id: int, attempt: int = 1, code: int | None = 0, **facts: Any) -> Message:
    return {
        "report": "exited", "id": job_id, "attempt": attempt, "at_s": now().at_s + 5,
        "mono_s": now().mono_s + 5, "exit_code": code, "signal": None, "oom_killed": False,
        "over_limit": False, "cpu_s": 1.5, "peak_bytes": 4096, "read_bytes": 7,
        "written_bytes": 8, **facts,
    }  # fmt: skip


def about(kind: str, job_id: int, attempt: int = 1, **facts: Any) -> Message:
    times = {"at_s": now().at_s, "mono_s": now().mono_s}
    return {"report": kind, "id": job_id, "attempt": attempt, **times, **facts}
