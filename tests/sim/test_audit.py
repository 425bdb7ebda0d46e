"""What is found by simulating jobs of the past otherwise."""

from __future__ import annotations

import pytest

from drfd.core.amounts.resources import Resources
from drfd.sim.audit import ALL, MOST_LIARS, SPLIT, Alone, Lie, audit
from drfd.sim.machine import rules_of
from drfd.sim.workload import SimJob

#: Ten cores, ten bytes, and two GPUs.
MACHINE = Resources(cores_milli=10_000, memory_bytes=10, gres=(("gpu", 2),))
RULES = rules_of(MACHINE)


def jobs(*told: tuple[str, float, int, int, float], gpus: int = 0) -> list[SimJob]:
    """Users, with the times of submission, cores, bytes and run times of their jobs."""
    return [
        SimJob(
            id=number, name=str(number), submit_s=at_s, run_s=run_s, limit_s=None, user=user,
            demand=Resources(
                cores_milli=1000 * cores, memory_bytes=size,
                gres=(("gpu", gpus),) if gpus else (),
            ),
        )
        for number, (user, at_s, cores, size, run_s) in enumerate(told, start=1)
    ]  # fmt: skip


def test_who_waits_behind_others_may_be_served_better_alone() -> None:
    """Alice's job holds all of the machine when bob comes."""
    found = audit(jobs(("alice", 0, 10, 1, 100), ("bob", 1, 1, 1, 9)), RULES)
    assert found.alone[1] == Alone(leaf="root.bob", jobs=1, too_large=0, together_s=99, alone_s=0)


def test_more_than_is_needed_brings_nothing_and_halves_may_fit_earlier() -> None:
    """One half of bob's job of eight cores fits beside alice's, and the other half after it."""
    found = audit(jobs(("alice", 0, 6, 1, 100), ("bob", 1, 8, 1, 50)), RULES)
    assert found.lies == (
        Lie(leaf="root.bob", what="cores", true_s=149, false_s=149),
        Lie(leaf="root.bob", what="memory", true_s=149, false_s=149),
        Lie(leaf="root.bob", what=ALL, true_s=149, false_s=149),
        Lie(leaf="root.bob", what=SPLIT, true_s=149, false_s=100),
    )


@pytest.mark.parametrize(("alices", "bobs", "false_s"), [(1, 2, 100), (2, 1, 149)])
def test_an_even_number_of_instances_can_be_halved(alices: int, bobs: int, false_s: float) -> None:
    first = jobs(("alice", 0, 1, 1, 100), gpus=alices)
    second = jobs(("alice", 0, 1, 1, 100), ("bob", 1, 2, 2, 50), gpus=bobs)[1:]
    found = audit([*first, *second], RULES)
    assert {each.what: each.false_s for each in found.lies} == {
        "cores": 149, "memory": 149, ALL: 149, SPLIT: false_s,
    }  # fmt: skip


def test_few_are_tried_those_who_waited_most() -> None:
    users = [(f"u{number}", 1.0, 10, 1, 10.0) for number in range(MOST_LIARS + 2)]
    told = jobs(("first", 0, 10, 1, 50), *users)
    calls: list[tuple[int, int, float]] = []
    found = audit(told, RULES, lambda *call: calls.append(call))
    assert len({each.leaf for each in found.lies}) == MOST_LIARS
    assert "root.first" not in {each.leaf for each in found.lies}
    tried = 4 * MOST_LIARS
    assert [call[:2] for call in calls] == [
        (number, len(told) + tried) for number in range(1, len(told) + tried + 1)
    ]
    # That of each user's own jobs is a part of the first.
    assert [calls[0][2], calls[-1][2]] == [pytest.approx(1 + tried), 1]
