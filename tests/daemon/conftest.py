"""The daemon's parts without its process: a journal of its own, a fake host, an inbox."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from drfd.core import events as ev
from drfd.core.job import Job
from drfd.core.rules import Rules
from drfd.core.stimuli import Actor, CgroupGone, Now, Stimulus
from drfd.daemon.config import Config
from drfd.daemon.cures import Standing
from drfd.daemon.curves import Curves
from drfd.daemon.engine import Engine, Work
from drfd.daemon.link import Link
from drfd.daemon.machine import Site
from drfd.daemon.meter import Meter
from drfd.daemon.requests import Requests
from drfd.errors import DrfdError
from drfd.host.disks import Disk
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from drfd.wire.messages import decode_request
from drfd.wire.views import View
from fakes import FakeHost, ended, now, rules, runner_up

Result = list[ev.Event] | DrfdError


@dataclass
class Shell:
    """An engine, and what came out of it: answers, changed jobs, effects."""

    engine: Engine
    journal: Journal
    host: FakeHost
    changed: list[Job]
    #: Work for the next turn, as `Daemon.submit` collects it.
    inbox: list[Work] = field(default_factory=list)

    def turn(self, *stimuli: Stimulus | tuple[Stimulus, Payload]) -> list[Result]:
        """One turn over all of them; their answers."""
        answers: list[Result] = []
        batch = []
        for each in stimuli:
            stimulus, payload = each if isinstance(each, tuple) else (each, None)
            batch.append(Work(stimulus, payload, answers.append))
        self.engine.turn(batch)
        assert len(answers) == len(stimuli), "every asker is answered, once"
        return answers

    def submit(self, work: Work) -> None:
        """Queue work for the next turn of the asyncio loop, as the daemon does."""
        if not self.inbox:
            asyncio.get_running_loop().call_soon(self._turn)
        self.inbox.append(work)

    def _turn(self) -> None:
        batch, self.inbox = self.inbox, []
        self.engine.turn(batch)


@pytest.fixture
def make_shell(tmp_path: Path) -> Iterator[Callable[..., Shell]]:
    """Shells on one journal file: a second one is the daemon after its restart."""
    opened: list[Shell] = []

    def make(
        *,
        by: Rules | None = None,
        journal: type[Journal] = Journal,
        ready: bool = True,
        clock: Callable[[], Now] = now,
    ) -> Shell:
        book = journal(tmp_path / "journal.sqlite")
        host = FakeHost(ready=ready)
        changed: list[Job] = []
        engine = Engine(
            journal=book,
            rules=by or rules(),
            host=host,
            clock=clock,
            on_change=changed.append,
        )
        opened.append(Shell(engine, book, host, changed))
        return opened[-1]

    yield make
    for shell in opened:
        shell.journal.close()
        shell.engine.ledger.check()
        assert shell.host.take() == [], "an effect that the test did not ask for"


@pytest.fixture
def shell(make_shell: Callable[..., Shell]) -> Shell:
    return make_shell()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose sockets have addresses of any ordinary length."""
    with tempfile.TemporaryDirectory(prefix="drfd-", dir="/tmp") as directory:
        yield Path(directory)


# -- requests ----------------------------------------------------------------------------------


@dataclass
class Desk:
    """The daemon's answering side over a shell, inside a running asyncio loop."""

    shell: Shell
    requests: Requests
    link: Link
    #: What was said to end the daemon: after its jobs, or at once.
    told_to_end: list[bool]

    async def ask(self, actor: Actor, **fields: Any) -> View:
        """The reply to a request of this actor. Raises what refuses it."""
        line = json.dumps({"v": 1, **fields}).encode()
        return await self.requests.answer(actor, actor.uid, decode_request(line))

    async def submit(self, actor: Actor, cores: float = 1, **fields: Any) -> int:
        asked = {"argv": ["true"], "cwd": "/home", **fields}
        asked.setdefault("demand", {"cores_milli": round(cores * 1000), "memory_bytes": 1 << 30})
        job_id = (await self.ask(actor, op="submit", **asked))["id"]
        assert isinstance(job_id, int)
        return job_id

    async def feed(self, *stimuli: Stimulus) -> None:
        """News from the host, each in a turn of its own."""
        for stimulus in stimuli:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.shell.submit(Work(stimulus, answer=done.set_result))
            await done

    async def finish(self, job_id: int, **facts: Any) -> None:
        await self.feed(runner_up(job_id), ended(job_id, **facts), CgroupGone(now(), job_id, 1))


DISK = Disk(name="data", path="/data", read_bps=2000, write_bps=1000, devices=("8:0",))


@pytest.fixture
def make_desk(make_shell: Callable[..., Shell], tmp_path: Path) -> Callable[..., Desk]:
    def make(
        *, config: Config | None = None, takes_root: bool = True, **shell_options: Any
    ) -> Desk:
        shell = make_shell(**shell_options)
        told: list[bool] = []
        link = Link(
            socket_path=tmp_path / "launcher.sock",
            disks=[DISK],
            max_pids=64,
            cores_by="quota",
            meter=Meter(lambda: 0.0),
            clock=now,
            submit=shell.submit,
        )
        meter = Meter(lambda: 0.0)
        requests = Requests(
            engine=shell.engine,
            submit_work=shell.submit,
            config=config or Config(),
            site=Site(shell.engine.rules, (DISK,), (config or Config()).defaults, ("a warning",)),
            meter=meter,
            curves=Curves(meter, shell.journal, now),
            link=link,
            standing=Standing(
                uid=0, is_systems=True, is_service=False, has_systemd=False, lingers=False
            ),
            takes_root=takes_root,
            reload=lambda: requests.site,
            shut_down=lambda *, after_jobs: told.append(after_jobs),
        )
        shell.engine.on_change = requests.job_changed
        return Desk(shell, requests, link, told)

    return make


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Iterator[Desk]:
    """A desk whose effects nobody looks at."""
    desk = make_desk()
    yield desk
    desk.shell.host.take()
