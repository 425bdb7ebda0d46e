"""What Slurm's nodes have, and what of drfd's tables they lack."""

from __future__ import annotations

import pytest

from drfd.slurm.nodes import (
    GivenOut,
    NodeShown,
    all_node_differences,
    node_differences,
    read_gres,
    read_nodes,
)

#: As Slurm 22.05 prints it, but for fields that do not matter, and the resources.
SHOWN = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=1.12 \
AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:a100:2(S:0-1),nic:1 NodeAddr=127.0.0.1 \
NodeHostName=vm Port=33571 Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  \
RealMemory=2000 AllocMem=0 FreeMem=16870 Sockets=4 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 \
Partitions=drfd,big  \
CfgTRES=cpu=4,mem=2000M,billing=4 AllocTRES= Reason=too hot CPUTot=99 Gres=gpu:9 [root@now]
NodeName=n2 CoresPerSocket=8 CPUEfctv=14 CPUTot=16 CoreSpecCount=1 Gres=(null) RealMemory=64000 \
MemSpecLimit=2000 Sockets=1 ThreadsPerCore=2 State=IDLE \
Partitions=big
a line of something else
"""

LEAST = GivenOut(name="n1", cores=4, memory_bytes=2000 << 20, gres=(("gpu", 2),))


def test_nodes_are_read_with_what_slurm_keeps_for_itself_left_out() -> None:
    assert read_nodes(SHOWN) == {
        "n1": NodeShown(
            cpus=4,
            memory_bytes=2000 << 20,
            gres={"gpu": 2, "nic": 1},
            partitions=frozenset({"drfd", "big"}),
        ),
        "n2": NodeShown(
            cpus=14, memory_bytes=62000 << 20, threads=2, gres={}, partitions=frozenset({"big"})
        ),
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:2", {"gpu": 2}),
        ("gpu", {"gpu": 1}),
        ("gpu:a100:2(S:0,2),gpu:v100:1", {"gpu": 3}),
        ("gpu:a100:2(IDX:0-1),nic:no_consume:4", {"gpu": 2, "nic": 4}),
        ("bandwidth:2K,gpu:a100", {"bandwidth": 2048, "gpu": 1}),
        ("", {}),
        ("(null)", {}),
    ],
)
def test_each_way_to_write_a_resource_is_read(text: str, found: dict[str, int]) -> None:
    assert read_gres(text) == found


def test_a_node_with_what_is_given_out_or_more_does_not_differ() -> None:
    nodes = read_nodes(SHOWN)
    small = GivenOut(name="n2", cores=1, memory_bytes=1 << 30)
    assert list(all_node_differences([LEAST, small], nodes, "gpu,nic")) == []


def test_all_that_a_node_has_less_is_named_with_the_cure() -> None:
    much = GivenOut(
        name="n1", cores=8, memory_bytes=4000 << 20, gres=(("gpu", 3), ("fpga", 1), ("nic", 1))
    )
    shown = read_nodes(SHOWN)["n1"]
    assert list(map(str, node_differences(much, shown))) == [
        "CPUs of node n1 is 4, needed: at least 8 (drfd gives out more than there is: lower cores "
        "in [nodes.n1], or mend slurm.conf)",
        "RealMemory of node n1 is 2000M, needed: at least 4000M (drfd gives out more than there "
        "is: lower memory in [nodes.n1], or mend slurm.conf)",
        "Gres gpu of node n1 is 2, needed: at least 3 (drfd gives out more than there is: lower "
        "gres.gpu in [nodes.n1], or mend Gres in slurm.conf, with gres.conf on the node)",
        "Gres fpga of node n1 is 0, needed: at least 1 (drfd gives out more than there is: lower "
        "gres.fpga in [nodes.n1], or mend Gres in slurm.conf, with gres.conf on the node)",
    ]


@pytest.mark.parametrize(
    ("partitions", "partition", "found"),
    [
        ({"drfd", "big"}, "drfd", None),
        ({"big"}, None, None),
        ({"big", "a"}, "drfd", ("a,big", "with drfd")),
        (set(), "drfd", ("not set", "with drfd")),
        (set(), None, ("not set", "any")),
        (None, "drfd", None),
    ],
)
def test_a_node_is_in_the_partition_of_the_table(
    partitions: set[str] | None, partition: str | None, found: tuple[str, str] | None
) -> None:
    shown = None if partitions is None else frozenset(partitions)
    differences = node_differences(
        GivenOut(name="n1", cores=1, memory_bytes=1, partition=partition),
        NodeShown(cpus=1, memory_bytes=1, partitions=shown),
    )
    named = None if found is None else ("Partitions of node n1", *found)
    assert [each[:3] for each in differences] == ([] if named is None else [named])


def test_nothing_is_said_of_resources_that_are_not_known() -> None:
    assert list(node_differences(LEAST, NodeShown(cpus=4, memory_bytes=2000 << 20))) == []


def test_a_node_that_slurm_does_not_know_is_named() -> None:
    [difference] = all_node_differences([LEAST], {}, "gpu")
    assert str(difference) == (
        "node n1 is not known to Slurm, needed: a line NodeName=n1 in slurm.conf (nothing starts "
        "there: add it, or remove [nodes.n1])"
    )


@pytest.mark.parametrize(("types", "found"), [("(null)", "not set"), ("nic,mps", "nic,mps")])
def test_a_resource_that_slurm_does_not_know_is_named_once(types: str, found: str) -> None:
    twin = GivenOut(name="n2", cores=1, memory_bytes=1 << 30, gres=(("gpu", 2),))
    two = NodeShown(cpus=4, memory_bytes=4 << 30, gres={"gpu": 2})
    [difference] = all_node_differences([LEAST, twin], {"n1": two, "n2": two}, types)
    assert str(difference) == (
        f"GresTypes is {found}, needed: with gpu ([nodes.n1] and [nodes.n2] have gpu, and Slurm "
        "refuses jobs with a Gres that it does not know)"
    )


def test_threads_that_one_job_gets_together_matter_if_all_of_them_are_given_out() -> None:
    shown = NodeShown(cpus=4, memory_bytes=4000 << 20, threads=2)
    [difference] = node_differences(LEAST, shown)
    assert str(difference) == (
        "ThreadsPerCore of node n1 is 2, needed: CPUs=4 without sockets, cores and threads in "
        "slurm.conf, or cores = 2 in [nodes.n1] (Slurm gives all threads of a core to one job, so "
        "that jobs wait in Slurm)"
    )
    half = GivenOut(name="n1", cores=2, memory_bytes=1 << 30)
    assert list(node_differences(half, shown)) == []
