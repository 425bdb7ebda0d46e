"""Several machines: their configuration, and launchers that each have nodes of their own."""

import asyncio
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from daemon.fake_launcher import (
    LIST,
    Behind,
    FakeLauncher,
    Message,
    about,
    ended,
    launched,
    live_through,
    until,
)
from drfd.common.errors import ConfigError
from drfd.core.decisions import stimuli as st
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import Rules
from drfd.core.model.job import JobState
from drfd.core.model.resources import NOTHING, Axes, ClusterNode, Resources
from drfd.core.scheduling.waits import ClosedNode, NodesAway
from drfd.daemon.cluster import slurm_warnings
from drfd.daemon.config import Config, parse, survey
from drfd.daemon.engine import engine as engine_module
from drfd.daemon.engine.engine import Engine, home_and_others
from drfd.daemon.handlers.doctor import node_warnings
from drfd.daemon.launcher_link import link as link_module
from drfd.daemon.launcher_link.link import Link, Links
from drfd.daemon.launcher_link.messages import LaunchSettings
from drfd.daemon.main import late_changes
from drfd.daemon.monitoring.meter import Meter
from drfd.host.measurements import Machine
from drfd.journal.journal import Journal
from drfd.launcher.settings import LauncherSettings, SlurmSettings
from fakes import ALICE, GIB, demand, now, replace, spec

# -- the configuration -------------------------------------------------------------------------


TOML = """
[nodes.n2]
engine = "slurm"
cores = 32
memory = "120G"
[nodes.head]
engine = "local"
features = ["ssd"]
[nodes.n1]
engine = "slurm"
cores = 4
memory = "8G"
read = "500M"
write = "100M"
gres = {tape = 1, gpu = 2}
features = ["ssd", "avx512"]
[slurm]
partition = "drfd"
config = "/etc/slurm.conf"
commands = "/opt/slurm/bin"
user = "root"
"""
HEAD = ClusterNode(name="head", capacity=NOTHING, features=frozenset({"ssd"}))
N1 = ClusterNode(
    name="n1",
    capacity=Resources(
        cores_milli=4000, memory_bytes=8 * GIB, read_bps=500 << 20, write_bps=100 << 20,
        gres=(("gpu", 2), ("tape", 1)),
    ),
    features=frozenset({"ssd", "avx512"}),
    whole_cores=True,
)  # fmt: skip
N2 = ClusterNode(
    name="n2", capacity=Resources(cores_milli=32000, memory_bytes=120 * GIB), whole_cores=True
)
SLURM = SlurmSettings(
    partition="drfd", conf="/etc/slurm.conf", programs="/opt/slurm/bin", user="root"
)
LOCAL = '[nodes.head]\nengine = "local"\n'
N7 = '[nodes.n7]\nengine = "slurm"\ncores = 1\nmemory = "1G"\n'


def read(text: str) -> Config:
    return parse(tomllib.loads(text), "FILE")


def test_pools_may_be_limited_in_what_other_machines_have():
    config = read(f"{TOML}[pools.lab]\nlimit = {{gpu = 1, tape = 1}}\n")
    assert config.pools["lab"].limit == {"gpu": 1, "tape": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (N7, "nodes.n7: no node is this machine (add [nodes.NAME] with engine = \"local\")"),
        (
            f'{LOCAL}[nodes.other]\nengine = "local"\n',
            'nodes.other: head and other have engine = "local" (one node alone is this machine)',
        ),
        (
            "[nodes.n7]\ncores = 1\n",
            'nodes.n7.engine: is missing (write engine = "slurm", or engine = "local" for this '
            "machine)",
        ),
        (
            f"{LOCAL}cores = 4\n",
            "nodes.head.cores: is not set for the local node ([capacity], [[disk]] and [gres] say "
            "what this machine has)",
        ),
        (
            f'{LOCAL}[nodes.n7]\nengine = "slurm"\nmemory = "1G"\n',
            "nodes.n7.cores: is missing (write cores = 32: what jobs may have of the node)",
        ),
        (
            f'{LOCAL}[nodes."a b"]\nengine = "slurm"\n',
            "nodes.'a b': is not a name for a node (use letters, digits, '.', - and _, beginning "
            "with a letter or digit)",
        ),
        (
            f'{LOCAL}{N7}features = ["a,b"]\n',
            "nodes.n7.features: 'a,b' is not a feature of letters, digits and . _ : + - (write "
            '["ssd", "avx512"])',
        ),
        (
            f"{LOCAL}{N7}gres = {{gpu = 4096}}\n",
            "nodes.n7.gres: 4096 gpu are more than the 1024 that can be",
        ),
        (
            f"{LOCAL}{N7}gres = {{cores = 2}}\n",
            "nodes.n7.gres: 'cores' is not a name for a countable resource (use small letters, "
            "digits and _, beginning with a letter)",
        ),
        (
            f'[gres.gpu]\ninstances = [0]\nshare = true\nmemory = "8G"\n{LOCAL}{N7}'
            "gres = {gpu = 1}\n",
            "nodes.n7.gres.gpu: jobs share each gpu, which Slurm's nodes cannot do (leave out "
            "gres.gpu.share, or the gpu of this node)",
        ),
        (
            f'{LOCAL}[slurm]\npartition = "x"\n',
            "slurm.partition: no node is Slurm's (add [nodes.NAME] with engine = \"slurm\", or "
            "leave this table out)",
        ),
    ],
)  # fmt: skip
def test_a_mistake_names_its_place_and_the_cure(text, said):
    with pytest.raises(ConfigError) as error:
        read(text)
    assert str(error.value) == f"FILE: {said}"


def test_the_capacity_is_that_of_all_machines_together(tmp_path):
    text = '[capacity]\nreserve_memory = 0\n[gres]\ngpu = [0]\n[[disk]]\nname = "d"\n'
    text += f'path = "/"\nread = "1G"\nwrite = "1G"\n{TOML}'
    machine = Machine(cores_milli=8000, memory_bytes=64 * GIB)
    site = survey(read(text), machine, tmp_path)
    own = Resources(
        cores_milli=8000, memory_bytes=64 * GIB, read_bps=GIB, write_bps=GIB, gres=(("gpu", 1),)
    )
    rules = site.rules
    assert rules.axes.nodes == (
        ClusterNode(name="head", capacity=own, features=frozenset({"ssd"})),
        ClusterNode(
            name="n1",
            capacity=Resources(
                cores_milli=4000, memory_bytes=8 * GIB, read_bps=500 << 20, write_bps=100 << 20,
                gres=(("gpu", 2), ("tape", 1)),
            ),
            features=frozenset({"ssd", "avx512"}), whole_cores=True,
        ),
        ClusterNode(
            name="n2", capacity=Resources(cores_milli=32000, memory_bytes=120 * GIB),
            whole_cores=True,
        ),
    )  # fmt: skip
    assert rules.capacity == Resources(
        cores_milli=44000, memory_bytes=192 * GIB, read_bps=GIB + (500 << 20),
        write_bps=GIB + (100 << 20), gres=(("gpu", 3), ("tape", 1)),
    )  # fmt: skip
    disks = "".join(
        f'[[disk]]\nname = "{name}"\npath = "/"\nread = "1G"\nwrite = "1G"\n' for name in "ab"
    )
    several = survey(read(disks + TOML), machine, tmp_path).rules.capacity
    total = (GIB + (500 << 20), GIB + (100 << 20))
    assert several.disks == (("a", *total), ("b", *total)), "rates are for each of them"
    assert (several.read_bps, several.write_bps) == (0, 0)
    # No instance of a tape is known here, and yet it is not taken for one that is gone.
    assert rules.axes.instances == (("gpu", ("0",)), ("tape", ()))
    assert (rules.lost_gres, rules.own_capacity) == ((), own)


def test_what_slurms_launcher_would_not_find_is_warned_of(tmp_path):
    missing = SlurmSettings(
        conf=f"{tmp_path}/slurm.conf", programs=str(tmp_path), user="drfd-ghost"
    )
    assert slurm_warnings((HEAD, N1), missing) == [
        f"slurm.commands: there is no sbatch in {tmp_path}: install Slurm's client",
        f"slurm.config: there is no file {tmp_path}/slurm.conf",
        "slurm.user: there is no user drfd-ghost: name Slurm's own (SlurmUser)",
    ]
    assert slurm_warnings((HEAD,), missing) == []


def test_changes_that_take_a_restart_are_said_at_a_reload():
    slurms = LauncherSettings(slurm=SLURM)
    one = Config(nodes=(HEAD, N1), launcher=slurms)
    (first,) = late_changes(Config(nodes=(HEAD,)), Config(nodes=(HEAD, N1)))
    assert first.startswith("nodes: these are the first ones of Slurm's")
    (other,) = late_changes(Config(nodes=(HEAD, N1)), one)
    assert other.startswith("slurm has changed")
    assert list(late_changes(one, replace(one, nodes=(HEAD, N1, N2)))) == []
    assert list(late_changes(one, Config(nodes=(HEAD,)))) != []


# -- two launchers of the test's own behind one engine -----------------------------------------


NODES = (
    ClusterNode(name="atlas", capacity=demand(4, 8)),
    ClusterNode(name="n1", capacity=demand(4, 8)),
)
RULES = Rules(axes=Axes(nodes=NODES), capacity=demand(8, 16))


@dataclass
class Pair(Behind):
    links: Links
    own: Link
    other: Link
    meter: Meter
    #: The controller's own launcher, and that of n1.
    atlas: FakeLauncher
    n1: FakeLauncher

    async def ask(self, stimulus: st.Stimulus) -> None:
        await self.engine.submit_and_wait(stimulus)

    async def submit(self, node: str, cores: float = 1) -> None:
        await self.ask(asked(node, cores))

    async def configure(self, *nodes: ClusterNode) -> None:
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


@pytest.fixture
def links(short, tmp_path, monkeypatch):
    monkeypatch.setattr(link_module, "RETRY_S", 0.005)
    monkeypatch.setattr(engine_module, "START_DELAY_S", 0.0)

    @asynccontextmanager
    async def run(
        *,
        history: Sequence[st.Stimulus] = (),
        known: Sequence[tuple[int, int]] = (),
        known_n1: Sequence[tuple[int, int]] = (),
    ) -> AsyncIterator[Pair]:
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
        engine = Engine(journal=journal, rules=RULES, launchers=links, clock=now)
        if history:
            live_through(engine, history)
        running = asyncio.create_task(links.run(engine))
        made = Pair(engine, links, own, other, meter, atlas, n1)
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


async def test_a_launcher_may_be_away_while_the_other_goes_on(links):
    async with links() as b:
        await b.submit("n1")
        b.n1.send(launched(1))
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
        assert found.code == "NODE_AWAY"
        assert found == NodesAway((ClosedNode("n1", away_since_s=now().at_s),))
        await b.ask(st.CancelAsked(now(), 1, ALICE))
        another = await b.back(b.n1, (1, 1))
        assert sorted(await b.orders(another, "terminate", "launch")) == [
            ("launch", 2),
            ("terminate", 1),
        ]
        assert b.job(1).state is JobState.STOPPING
        assert b.engine.ledger.nodes_away == {}
        assert await b.orders(b.atlas) == []


async def test_an_attempt_of_a_job_that_runs_elsewhere_is_left_alone(links):
    """As after a journal was restored from an old copy: it is not known whose work it is."""
    history = [asked("n1"), st.LaunchedReport(now().at_s, 1, 1, mono_s=now().mono_s)]
    async with links(history=history, known=[(1, 1)], known_n1=[(1, 1)]) as b:
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


async def test_a_node_that_is_gone_keeps_its_job_from_being_started_elsewhere(links):
    """Its order has gone to the launcher of the node that was."""
    async with links() as b:
        await b.submit("n1")
        assert await b.orders(b.n1, "launch") == [("launch", 1)]
        for nodes in (NODES[:1], ()):
            await b.configure(*nodes)
            await b.submit("", 1)

        def orders() -> set[tuple[str, int]]:
            # With each list of attempts a launch of which nothing is known is ordered again.
            return {(each["cmd"], each["id"]) for each in b.atlas.orders if each != LIST}

        await until(lambda: len(orders()) >= 2, orders)
        b.atlas.send(about("missing", 1))
        b.atlas.send(launched(2))
        await b.state(2, JobState.RUNNING)
        assert b.job(1).state is JobState.STARTING
        assert orders() == {("launch", 2), ("launch", 3)}


def nodes(fault: str = "", away: str | None = None) -> Message:
    facts = {"cores": 4, "memory_bytes": 8 << 30, "fault": fault}
    return {"report": "nodes", "away": away, "nodes": {"n1": facts}}


async def test_doctor_warns_of_nodes_on_which_nothing_starts_and_of_what_they_lack(links):
    async with links() as b:
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
