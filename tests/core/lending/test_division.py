"""Division of a resource among running jobs by min-satisfaction in the tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.lending.division import Claim, Node, divide


def leaf(entitled: float, *claims: tuple[int, float, float], held: float = 0.0) -> Node:
    """Claims as (job, least, most); their weights are what they get in any case, or 1."""
    made = [
        Claim(job_id=job, least=least, most=most, weight=least or 1.0)
        for job, least, most in claims
    ]
    return Node(entitled=entitled, held=held, claims=made)


def pool(entitled: float, *below: Node, held: float = 0.0) -> Node:
    return Node(entitled=entitled, held=held, below=dict(zip("abcdefgh", below, strict=False)))


def parts(node: Node, amount: float) -> list[float]:
    return [round(part, 6) for _, part in sorted(divide(node, amount).items())]


def test_those_at_one_level_share_what_raises_none_of_them() -> None:
    a, b = leaf(0.5, (1, 0.0, 0.4), held=1.0), leaf(0.5, (2, 0.0, 0.2), held=1.0)
    assert parts(pool(1, a, b), 0.3) == [0.2, 0.1]


def test_an_amount_that_only_rounding_keeps_below_what_all_could_use_is_divided() -> None:
    """Seen with rates of disks, whose bytes are large numbers."""
    entitled = (28611927537.858997, 46165291038.90813, 54894179016.156235, 40296529862.360504)
    most = (31585522590.339573, 54641587837.25303, 11757857238.181955, 6629756420.918114)
    ends = zip(entitled, most, strict=True)
    leaves = [leaf(part, (job, 0, end)) for job, (part, end) in enumerate(ends)]
    found = divide(pool(1, *leaves), 104614724086.69267)
    assert list(found.values()) == pytest.approx(most)


tenths = some.integers(0, 20).map(lambda number: number / 10)


@some.composite
def claims(draw: some.DrawFn, first: int) -> list[tuple[int, float, float]]:
    found = []
    for at in range(draw(some.integers(1, 3))):
        least, more = draw(tenths), draw(tenths)
        found.append((first + at, least, least + more))
    return found


@some.composite
def trees(draw: some.DrawFn) -> Node:
    count = draw(some.integers(1, 4))
    nodes = []
    for at in range(count):
        entitled, held = draw(some.integers(1, 8)) / 8, draw(tenths)
        if draw(some.booleans()):
            nodes.append(leaf(entitled, *draw(claims(10 * at)), held=held))
        else:
            below = [
                leaf(entitled / 2, *draw(claims(10 * at + 5 * each)), held=draw(tenths))
                for each in range(2)
            ]
            nodes.append(pool(entitled, *below, held=held))
    return pool(1, *nodes)


def every_claim(node: Node) -> Iterator[Claim]:
    yield from node.claims
    for each in node.below.values():
        yield from every_claim(each)


@given(trees(), some.integers(0, 200).map(lambda number: number / 10))
def test_everything_is_given_out_that_can_be_used(root: Node, amount: float) -> None:
    given_out = divide(root, amount)
    for claim in every_claim(root):
        assert claim.least - 1e-6 <= given_out[claim.job_id] <= claim.most + 1e-6
    expected = max(root.least, min(root.most, amount))
    assert sum(given_out.values()) == pytest.approx(expected, abs=1e-6)


@given(trees(), some.integers(0, 200).map(lambda number: number / 10))
def test_nobody_has_more_than_a_sibling_that_wants_and_is_served_first(
    root: Node, amount: float
) -> None:
    given_out = divide(root, amount)

    def has(node: Node) -> float:
        return sum(given_out[each.job_id] for each in every_claim(node))

    def level(node: Node) -> float:
        return max(node.held, has(node) / max(node.entitled, 1e-9))

    def check(node: Node) -> None:
        siblings = list(node.below.values())
        for rich in siblings:
            check(rich)
            if has(rich) <= rich.least + 1e-6:
                continue
            for poor in siblings:
                if has(poor) < poor.most - 1e-6:
                    assert level(rich) <= level(poor) + 1e-4

    check(root)
