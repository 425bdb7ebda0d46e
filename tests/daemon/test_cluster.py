"""The configuration of several machines."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.common.errors import ConfigError
from drfd.core.amounts.resources import Node, Resources
from drfd.daemon.cluster import NodeConfig, SlurmSettings, late_node_changes, slurm_warnings
from drfd.daemon.config import Config, parse, survey
from drfd.host.measurements import Machine
from fakes import GIB

NODES = """
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
nudge = false
user = "root"
"""
HEAD = NodeConfig(name="head", engine="local", features=frozenset({"ssd"}))
N1 = NodeConfig(
    name="n1",
    engine="slurm",
    cores_milli=4000,
    memory_bytes=8 * GIB,
    read_bps=500 << 20,
    write_bps=100 << 20,
    gres=(("gpu", 2), ("tape", 1)),
    features=frozenset({"ssd", "avx512"}),
)
N2 = NodeConfig(name="n2", engine="slurm", cores_milli=32000, memory_bytes=120 * GIB)
SLURM = SlurmSettings(
    partition="drfd", conf="/etc/slurm.conf", programs="/opt/slurm/bin", user="root", nudges=False
)
LOCAL = '[nodes.head]\nengine = "local"\n'
N7 = '[nodes.n7]\nengine = "slurm"\ncores = 1\nmemory = "1G"\n'


def read(text: str) -> Config:
    return parse(tomllib.loads(text), "FILE")


def test_pools_may_be_limited_in_what_other_machines_have() -> None:
    config = read(f"{NODES}[pools.lab]\nlimit = {{gpu = 1, tape = 1}}\n")
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
        (f"{LOCAL}{N7}core = 3\n", "nodes.n7.core: unknown key (did you mean cores?)"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_place_and_the_cure(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert str(error.value) == f"FILE: {said}"


def test_the_capacity_is_that_of_all_machines_together(tmp_path: Path) -> None:
    text = '[capacity]\nreserve_memory = 0\n[gres]\ngpu = [0]\n[[disk]]\nname = "d"\n'
    text += f'path = "/"\nread = "1G"\nwrite = "1G"\n{NODES}'
    machine = Machine(cores_milli=8000, memory_bytes=64 * GIB)
    site = survey(read(text), machine, tmp_path)
    own = Resources(
        cores_milli=8000,
        memory_bytes=64 * GIB,
        read_bps=GIB,
        write_bps=GIB,
        gres=(("gpu", 1),),
    )
    rules = site.rules
    assert rules.axes.nodes == (
        Node(name="head", capacity=own, features=frozenset({"ssd"})),
        Node(
            name="n1",
            capacity=Resources(
                cores_milli=4000,
                memory_bytes=8 * GIB,
                read_bps=500 << 20,
                write_bps=100 << 20,
                gres=(("gpu", 2), ("tape", 1)),
            ),
            features=frozenset({"ssd", "avx512"}),
            whole_cores=True,
        ),
        Node(
            name="n2",
            capacity=Resources(cores_milli=32000, memory_bytes=120 * GIB),
            whole_cores=True,
        ),
    )
    assert rules.capacity == Resources(
        cores_milli=44000,
        memory_bytes=192 * GIB,
        read_bps=GIB + (500 << 20),
        write_bps=GIB + (100 << 20),
        gres=(("gpu", 3), ("tape", 1)),
    )
    # No instance of a tape is known here, and yet it is not taken for one that is gone.
    assert rules.axes.instances == (("gpu", ("0",)), ("tape", ()))
    assert (rules.lost_gres, rules.own_capacity) == ((), own)


def test_rates_of_other_machines_are_for_each_of_several_disks(tmp_path: Path) -> None:
    disks = "".join(
        f'[[disk]]\nname = "{name}"\npath = "/"\nread = "1G"\nwrite = "1G"\n' for name in "ab"
    )
    machine = Machine(cores_milli=8000, memory_bytes=64 * GIB)
    rules = survey(read(disks + NODES), machine, tmp_path).rules
    total = (GIB + (500 << 20), GIB + (100 << 20))
    assert rules.capacity.disks == (("a", *total), ("b", *total))
    assert (rules.capacity.read_bps, rules.capacity.write_bps) == (0, 0)


def test_one_machine_is_as_without_the_table(tmp_path: Path) -> None:
    machine = Machine(cores_milli=8000, memory_bytes=64 * GIB)
    alone, named = (survey(read(text), machine, tmp_path).rules for text in ("", LOCAL))
    assert replace(named, axes=replace(named.axes, nodes=())) == alone


def test_what_slurms_launcher_would_not_find_is_warned_of(tmp_path: Path) -> None:
    missing = SlurmSettings(
        conf=f"{tmp_path}/slurm.conf", programs=str(tmp_path), user="drfd-ghost"
    )
    assert slurm_warnings((HEAD, N1), missing) == [
        f"slurm.commands: there is no sbatch in {tmp_path}: install Slurm's client",
        f"slurm.config: there is no file {tmp_path}/slurm.conf",
        "slurm.user: there is no user drfd-ghost: name Slurm's own (SlurmUser)",
    ]
    assert slurm_warnings((HEAD,), missing) == []


def test_changes_that_take_a_restart_are_said_at_a_reload() -> None:
    plain = SlurmSettings()
    (first,) = late_node_changes(((HEAD,), plain), ((HEAD, N1), plain))
    assert first.startswith("nodes: these are the first ones of Slurm's")
    (other,) = late_node_changes(((HEAD, N1), plain), ((HEAD, N1), SLURM))
    assert other.startswith("slurm has changed")
    assert late_node_changes(((HEAD, N1), SLURM), ((HEAD, N1, N2), SLURM)) == []
    assert late_node_changes(((HEAD, N1), SLURM), ((HEAD,), plain)) != []
