"""Who keeps whom from being lent more."""

from __future__ import annotations

from drfd.core.lending.ceilings import Borrower, Judgement, Place
from drfd.core.lending.rivals import find_rivals

PLACES = {
    "root.alice": Place(entitled=2.0, held=0.9),
    "root.lab": Place(entitled=4.0, held=0.1),
    "root.lab.bob": Place(entitled=3.0, held=0.1),
    "root.lab.carol": Place(entitled=1.0, held=0.1),
}


def rivals(
    *jobs: tuple[str, float, bool], places: dict[str, Place] = PLACES
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Of jobs, each given by its leaf, its ceiling and whether it is hungry: by user, everybody
    who could use more, and those who hold less."""
    asked = [
        (
            leaf.rpartition(".")[2],
            Borrower(job_id=at, leaf=leaf, floor=1, most=9, ceiling=1, used=1),
        )
        for at, (leaf, _, _) in enumerate(jobs)
    ]
    found = {at: Judgement(ceiling=each[1], is_hungry=each[2]) for at, each in enumerate(jobs)}
    given = find_rivals(asked, found, places)
    assert all(leaf.endswith(user) for user, leaf in given)
    return {user: (each.everybody, each.poorer) for (user, _), each in given.items()}


def test_who_holds_much_of_something_else_is_told_who_holds_less() -> None:
    """Alice holds nine tenths of her share of the memory, and so has one core of her two."""
    found = rivals(("root.alice", 1, True), ("root.lab.bob", 2, True), ("root.lab.bob", 0.5, False))
    assert found == {"alice": (("bob",), ("bob",)), "bob": (("alice",), ())}
