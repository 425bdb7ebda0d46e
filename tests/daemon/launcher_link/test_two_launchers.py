"""Two real launchers behind one engine: the second one stands in for that of another node."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from daemon.launcher_link.test_link import until
from drfd.core.amounts.resources import Axes, Node
from drfd.core.fairness.rules import Rules
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobState, Outcome, Words
from drfd.daemon.controller import clock
from drfd.daemon.engine.engine import Engine
from drfd.daemon.engine.nodes import home_and_others
from drfd.daemon.launcher_link.link import Link
from drfd.daemon.launcher_link.links import Links
from drfd.daemon.launcher_link.messages import LaunchSettings
from drfd.daemon.monitoring.meter import Meter
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from drfd.launcher.protocol import SOCKET_NAME
from fakes import demand, spec
from launcher.rig import LauncherProcess

NODES = (Node(name="atlas", capacity=demand(4, 8)), Node(name="n1", capacity=demand(4, 8)))
RULES = Rules(axes=Axes(nodes=NODES), capacity=demand(8, 16))
#: Notes that it has begun, once more each time, and ends with 7 when it may.
SCRIPT = 'echo x >> "$1.begun"; until [ -e "$1.go" ]; do sleep 0.02; done; exit 7'


@dataclass
class Two:
    engine: Engine
    links: Links
    launchers: dict[str, LauncherProcess]
    work: Path

    def job(self, job_id: int) -> Job:
        found = self.engine.ledger.jobs.get(job_id) or self.engine.journal.job(job_id)
        assert found is not None
        return found

    async def submit(self, name: str, node: str) -> int:
        """A job that runs until `go`."""
        asks = replace(demand(1), node=node)
        user = pwd.getpwuid(os.getuid())
        asked = replace(
            spec(f"root.{user.pw_name}", asks=asks),
            user=user.pw_name, uid=user.pw_uid, gid=user.pw_gid, cwd=str(self.work),
            argv=Words.of(["sh", "-c", SCRIPT, "sh", name]), stdout="/dev/null",
            stderr="/dev/null",
        )  # fmt: skip
        payload = Payload(env={"PATH": os.environ["PATH"]})
        (event, *_) = await self.engine.submit_and_wait(st.SubmitAsked(clock(), asked), payload)
        job_id: int = event.job_id  # type: ignore[union-attr]
        return job_id

    async def begun(self, name: str, times: int = 1) -> None:
        path = self.work / f"{name}.begun"
        await until(
            lambda: path.exists() and len(path.read_text().split()) == times,
            lambda: [each.log() for each in self.launchers.values()],
        )

    def go(self, name: str) -> None:
        (self.work / f"{name}.go").touch()

    async def state(self, job_id: int, state: JobState) -> None:
        await until(lambda: self.job(job_id).state is state, lambda: self.job(job_id))


@pytest.fixture
def launchers(short: Path) -> Iterator[dict[str, LauncherProcess]]:
    made = {name: LauncherProcess(short / name) for name in ("atlas", "n1")}
    yield made
    for each in made.values():
        each.clean_up()


@pytest.fixture
def two(tmp_path: Path, launchers: dict[str, LauncherProcess]) -> Callable[[], Any]:
    @asynccontextmanager
    async def run() -> AsyncIterator[Two]:
        work = tmp_path / "work"
        work.mkdir()
        meter = Meter(lambda: clock().mono_s)
        settings = LaunchSettings([], max_pids=64, cores_by="quota")
        own, other = (
            Link(socket_path=each.state / SOCKET_NAME, settings=settings, meter=meter)
            for each in launchers.values()
        )
        links = Links(own, other)
        links.adopt(home_and_others(RULES.axes))
        journal = Journal(tmp_path / "journal.sqlite")
        engine = Engine(journal=journal, rules=RULES, host=links, clock=clock)
        for each in launchers.values():
            each.start()
        running = asyncio.create_task(links.run(engine))
        try:
            for link in (own, other):
                await until(link.is_ready, lambda: "a launcher is not there")
            yield Two(engine, links, launchers, work)
            assert not running.done(), "the links have stopped listening"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            journal.close()

    return run


@pytest.mark.slow
async def test_each_launcher_runs_the_jobs_of_its_node(two: Callable[[], Any]) -> None:
    async with two() as b:
        jobs = {name: await b.submit(name, name) for name in ("atlas", "n1")}
        for name, job_id in jobs.items():
            await b.begun(name)
            attempts = {each.name for each in (b.launchers[name].state / "attempts").iterdir()}
            assert [each for each in attempts if each.startswith(f"{job_id}.")], attempts
            assert len(attempts) == 1
        for name, job_id in jobs.items():
            b.go(name)
            await b.state(job_id, JobState.ENDED)
            assert (b.job(job_id).exit_code, b.job(job_id).node) == (7, name)


@pytest.mark.slow
async def test_a_launcher_that_dies_holds_up_its_own_node_alone(two: Callable[[], Any]) -> None:
    """Its jobs run on meanwhile, and what became of them is known when it is back."""
    async with two() as b:
        running = await b.submit("running", "n1")
        await b.begun("running")
        await b.state(running, JobState.RUNNING)
        b.launchers["n1"].kill()
        await until(lambda: b.engine.ledger.nodes_away, lambda: "n1 is not missed")
        waiting = await b.submit("waiting", "n1")
        free = await b.submit("free", "")
        await b.begun("free")
        assert b.job(free).node == "atlas"
        b.go("running")
        b.go("free")
        await b.state(free, JobState.ENDED)
        assert b.job(waiting).state is JobState.PENDING
        assert b.job(running).state is JobState.RUNNING
        b.launchers["n1"].start()
        await b.state(running, JobState.ENDED)
        assert (b.job(running).outcome, b.job(running).exit_code) == (Outcome.FAILED, 7)
        await b.begun("waiting")
        b.go("waiting")
        await b.state(waiting, JobState.ENDED)
        for name in ("running", "waiting", "free"):
            await b.begun(name)
