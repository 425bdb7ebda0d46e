"""Two launchers behind one engine, each with a node of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from daemon.launcher_link.test_link import (
    LIST,
    FakeLauncher,
    Message,
    ended,
    live_through,
    until,
    up,
)
from drfd.core.amounts.resources import Axes, Node
from drfd.core.explain.reasons import ClosedNode, NodesClosed, ReasonCode, explain_wait
from drfd.core.fairness.rules import Rules
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobState
from drfd.daemon.engine import engine as engine_module
from drfd.daemon.engine.engine import Engine
from drfd.daemon.engine.nodes import home_and_others
from drfd.daemon.handlers.doctor import node_warnings
from drfd.daemon.launcher_link import link as link_module
from drfd.daemon.launcher_link.link import Link
from drfd.daemon.launcher_link.links import Links
from drfd.daemon.launcher_link.messages import LaunchSettings
from drfd.daemon.monitoring.meter import Meter
from drfd.journal.journal import Journal
from fakes import ALICE, demand, now, spec

NODES = (Node(name="atlas", capacity=demand(4, 8)), Node(name="n1", capacity=demand(4, 8)))
RULES = Rules(axes=Axes(nodes=NODES), capacity=demand(8, 16))


@dataclass
class TwoLaunchers:
    engine: Engine
    links: Links
    own: Link
    other: Link
    meter: Meter
    #: The controller's own launcher, and that of n1.
    atlas: FakeLauncher
    n1: FakeLauncher

    def job(self, job_id: int) -> Job:
        found = self.engine.ledger.jobs.get(job_id) or self.engine.journal.job(job_id)
        assert found is not None
        return found

    async def ask(self, stimulus: st.Stimulus) -> None:
        await self.engine.submit_and_wait(stimulus)

    async def submit(self, node: str, cores: float = 1) -> None:
        await self.ask(asked(node, cores))

    async def configure(self, *nodes: Node) -> None:
        """Read a configuration with these nodes; the own launcher lists its attempts."""
        lists = self.atlas.orders.count(LIST)
        capacity = demand(4 * max(1, len(nodes)), 8 * max(1, len(nodes)))
        self.engine.adopt(Rules(axes=Axes(nodes=nodes), capacity=capacity))
        self.links.adopt(home_and_others(self.engine.rules.axes))
        await until(lambda: self.atlas.orders.count(LIST) > lists, lambda: self.atlas.orders)

    async def both(self) -> None:
        for link in (self.own, self.other):
            await until(link.is_ready, lambda: "a link is not ready")

    async def orders(self, launcher: FakeLauncher, *cmds: str) -> list[tuple[str, int]]:
        """What it was told since the last look but for `list`: `cmds`, and no more."""

        def told() -> list[Message]:
            return [each for each in launcher.orders if each != LIST]

        await until(lambda: len(told()) >= len(cmds), told)
        found = [(each["cmd"], each["id"]) for each in told()]
        launcher.orders.clear()
        assert [cmd for cmd, _ in found] == list(cmds)
        return found

    async def state(self, job_id: int, state: JobState) -> None:
        await until(lambda: self.job(job_id).state is state, lambda: self.job(job_id))

    async def back(self, launcher: FakeLauncher, *known: tuple[int, int]) -> FakeLauncher:
        """Another process in place of the launcher, which knows these attempts."""
        another = FakeLauncher(launcher.path, known=list(known))
        await another.start()
        if launcher is self.n1:
            self.n1 = another
        else:
            self.atlas = another
        return another


def asked(node: str = "", cores: float = 1) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec(asks=replace(demand(cores), node=node)))


Open = Callable[..., Any]


@pytest.fixture
def two(short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.setattr(link_module, "RETRY_S", 0.005)
    monkeypatch.setattr(engine_module, "START_DELAY_S", 0.0)

    @asynccontextmanager
    async def run(
        *,
        history: Sequence[st.Stimulus] = (),
        known: Sequence[tuple[int, int]] = (),
        known_n1: Sequence[tuple[int, int]] = (),
    ) -> AsyncIterator[TwoLaunchers]:
        atlas = FakeLauncher(short / "atlas.sock", known=list(known))
        n1 = FakeLauncher(short / "n1.sock", known=list(known_n1))
        await atlas.start()
        await n1.start()
        meter = Meter(lambda: 0.0)
        settings = LaunchSettings([], max_pids=64, cores_by="quota")
        own, other = (
            Link(socket_path=each.path, settings=settings, meter=meter) for each in (atlas, n1)
        )
        links = Links(own, other)
        links.adopt(home_and_others(RULES.axes))
        journal = Journal(tmp_path / "journal.sqlite")
        engine = Engine(journal=journal, rules=RULES, host=links, clock=now)
        if history:
            live_through(engine, history)
        running = asyncio.create_task(links.run(engine))
        made = TwoLaunchers(engine, links, own, other, meter, atlas, n1)
        try:
            await made.both()
            yield made
            assert not running.done(), "the links have stopped listening"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await made.atlas.leave()
            await made.n1.leave()
            journal.close()

    return run


async def test_a_launcher_may_be_away_while_the_other_goes_on(two: Open) -> None:
    async with two() as b:
        await b.submit("n1")
        b.n1.send(up(1))
        await b.state(1, JobState.RUNNING)
        await b.orders(b.n1, "launch")
        await b.n1.leave()
        await until(lambda: b.engine.ledger.nodes_away, lambda: "n1 is not missed")
        await b.submit("n1")
        await b.submit("", 3)
        await b.submit("", 1)
        assert await b.orders(b.atlas, "launch", "launch") == [("launch", 3), ("launch", 4)]
        waiting = b.job(2)
        found = explain_wait(waiting, b.engine.ledger, b.engine.scheduler.last_plan, RULES)
        assert found is not None
        assert found.code is ReasonCode.NODE_AWAY
        assert found.evidence == NodesClosed((ClosedNode("n1", away_since_s=now().at_s),))
        await b.ask(st.CancelAsked(now(), 1, ALICE))
        another = await b.back(b.n1, (1, 1))
        assert sorted(await b.orders(another, "terminate", "launch")) == [
            ("launch", 2),
            ("terminate", 1),
        ]
        assert b.job(1).state is JobState.STOPPING
        assert b.engine.ledger.nodes_away == {}
        assert await b.orders(b.atlas) == []


async def test_the_own_launcher_may_be_away_too(two: Open) -> None:
    async with two() as b:
        await b.atlas.leave()
        await until(lambda: b.engine.ledger.nodes_away, lambda: "atlas is not missed")
        await b.submit("", 2)
        await b.submit("atlas")
        assert await b.orders(b.n1, "launch") == [("launch", 1)]
        assert b.job(2).state is JobState.PENDING
        another = await b.back(b.atlas)
        assert await b.orders(another, "launch") == [("launch", 2)]


async def test_an_attempt_of_a_job_that_runs_elsewhere_is_left_alone(two: Open) -> None:
    """As after a journal was restored from an old copy: it is not known whose work it is."""
    history = [asked("n1"), st.AttemptStarted(1, 1, now().at_s, now().mono_s, None)]
    async with two(history=history, known=[(1, 1)], known_n1=[(1, 1)]) as b:
        assert b.own.strays.keys() == {(1, 1)}
        assert b.other.strays == {}
        assert b.links.strays == b.own.strays
        b.atlas.send(ended(1))
        await b.submit("atlas")
        assert await b.orders(b.atlas, "launch") == [("launch", 2)]
        assert b.job(1).state is JobState.RUNNING
        assert b.links.end_stray((1, 1))
        assert await b.orders(b.atlas, "remove") == [("remove", 1)]
        assert await b.orders(b.n1) == []


async def test_a_grace_time_begins_when_the_job_s_own_launcher_is_there(two: Open) -> None:
    async with two() as b:
        assert b.engine.heard.since_mono_s("n1") == now().mono_s
        await b.n1.leave()
        await until(lambda: b.engine.ledger.nodes_away, lambda: "n1 is not missed")
        heard = b.engine.heard
        assert heard.since_mono_s("n1") is None
        assert heard.since_mono_s("atlas") == heard.since_mono_s("") == now().mono_s


async def test_a_suspended_job_of_a_node_that_is_configured_no_more_is_not_lost(two: Open) -> None:
    """The launcher that is there is told again that the job is suspended, and does not know it."""
    async with two() as b:
        await b.submit("n1")
        b.n1.send(up(1))
        await b.state(1, JobState.RUNNING)
        await b.ask(st.SuspendAsked(now(), 1, ALICE))
        b.n1.send({"report": "frozen", "id": 1, "attempt": 1})
        await b.state(1, JobState.SUSPENDED)
        await b.configure()
        b.atlas.send({"report": "missing", "id": 1, "attempt": 1})
        await b.submit("", 3)
        b.atlas.send(up(2))
        await b.state(2, JobState.RUNNING)
        assert b.job(1).state is JobState.SUSPENDED
        # Nor is it of no job for the launcher that knows it.
        await b.n1.leave()
        await until(lambda: not b.other.is_ready(), lambda: "n1 is there")
        await b.back(b.n1, (1, 1))
        await b.configure(NODES[0], replace(NODES[1], name="n2"))
        await b.both()
        assert (b.links.strays, b.job(1).state) == ({}, JobState.SUSPENDED)


async def test_the_controller_s_own_node_may_get_another_name_while_jobs_run(two: Open) -> None:
    async with two() as b:
        await b.submit("atlas")
        b.atlas.send(up(1))
        await b.state(1, JobState.RUNNING)
        await b.configure(replace(NODES[0], name="hera"), NODES[1])
        await b.atlas.leave()
        await until(lambda: not b.own.is_ready(), lambda: "atlas is there")
        await b.back(b.atlas, (1, 1))
        await b.both()
        assert b.links.strays == {}
        await b.ask(st.CancelAsked(now(), 1, ALICE))
        assert await b.orders(b.atlas, "terminate") == [("terminate", 1)]
        b.atlas.send(ended(1))
        await until(lambda: b.job(1).outcome is not None, lambda: b.job(1))


async def test_a_node_that_is_gone_keeps_its_job_from_being_started_elsewhere(two: Open) -> None:
    """Its order has gone to the launcher of the node that was."""
    async with two() as b:
        await b.submit("n1")
        assert await b.orders(b.n1, "launch") == [("launch", 1)]
        for nodes in (NODES[:1], ()):
            await b.configure(*nodes)
            await b.submit("", 1)
        assert await b.orders(b.atlas, "launch", "launch") == [("launch", 2), ("launch", 3)]
        b.atlas.send({"report": "missing", "id": 1, "attempt": 1})
        b.atlas.send(up(2))
        await b.state(2, JobState.RUNNING)
        assert b.job(1).state is JobState.STARTING


def nodes(fault: str = "", away: str | None = None) -> Message:
    facts = {"cores": 4, "memory_bytes": 8 << 30, "fault": fault}
    return {"report": "nodes", "away": away, "nodes": {"n1": facts}}


async def test_what_is_the_matter_with_all_nodes_is_so_with_each(two: Open) -> None:
    async with two() as b:
        await b.both()
        b.n1.send(nodes(away="slurmctld does not answer"))
        await until(b.links.node_faults, lambda: "nothing is heard")
        assert b.links.node_faults() == {"n1": "slurmctld does not answer"}
        b.n1.send({"report": "nodes", "away": None, "nodes": {}})
        unknown = {"n1": "Slurm has no node of this name"}
        await until(lambda: b.links.node_faults() == unknown, b.links.node_faults)


async def test_what_others_jobs_have_stays_while_nobody_can_tell(two: Open) -> None:
    async with two() as b:
        await b.both()
        has = {"cores": 4, "memory_bytes": 8 << 30, "fault": "", "outside_cores": 3}
        b.n1.send({"report": "nodes", "away": None, "nodes": {"n1": has}})
        await until(lambda: b.engine.external, lambda: "nothing is heard")
        assert b.engine.external is not None
        others = (("n1", demand(3, 0)),)
        assert b.engine.external.elsewhere == others
        # As a launcher does that has just started.
        b.n1.send({"report": "nodes", "away": "Slurm has not been asked yet", "nodes": {}})
        await until(b.links.node_faults, lambda: "it is not away")
        assert b.engine.external.elsewhere == others
        b.n1.send({"report": "nodes", "away": None, "nodes": {"n1": {**has, "outside_cores": 0}}})
        await until(lambda: b.engine.external is None, lambda: b.engine.external)
        records = b.engine.journal.audit.events
        loads = [each for _, each in records() if isinstance(each, ev.ExternalLoadChanged)]
        # The end is recorded half a minute later.
        assert [each.elsewhere for each in loads] == [others]


async def test_doctor_warns_of_nodes_on_which_nothing_starts_and_of_what_they_lack(
    two: Open,
) -> None:
    async with two() as b:
        await b.both()
        b.n1.send(nodes("Slurm says that it is down"))
        await until(b.links.node_faults, lambda: "nothing is heard")
        assert "no job starts on node n1: Slurm says that it is down" in node_warnings(
            RULES.axes, b.links
        )
        small = {"cores": 1, "memory_bytes": 1 << 30, "fault": ""}
        b.n1.send({"report": "nodes", "away": None, "nodes": {"n1": small}})
        await until(lambda: not b.links.node_faults(), b.links.node_faults)
        cores, memory = node_warnings(RULES.axes, b.links)
        assert cores.startswith("CPUs of node n1 is 1, needed: at least ")
        assert memory.startswith("RealMemory of node n1 is 1024M, needed: at least ")
        threaded = {"cores": 4, "memory_bytes": 1 << 40, "fault": "", "threads": 2}
        b.n1.send({"report": "nodes", "away": None, "nodes": {"n1": threaded}})
        await until(lambda: b.links.node_facts()["n1"].threads == 2, b.links.node_facts)
        (together,) = node_warnings(RULES.axes, b.links)
        assert together.startswith("ThreadsPerCore of node n1 is 2, needed: CPUs=4 without ")
        # Longer ones are cut on the screen.
        assert len(together) < 200
        await b.n1.leave()
        await until(b.links.node_faults, lambda: "it is not away")
        away = "no job starts on node n1: the launcher of Slurm's nodes is away"
        assert away in node_warnings(RULES.axes, b.links)
