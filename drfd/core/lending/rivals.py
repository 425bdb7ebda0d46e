"""Who keeps a job from being lent more: the other users who could use more, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drfd.core.fairness.share_tree import path_up
from drfd.core.lending.ceilings import Borrower, Judgement
from drfd.core.lending.division import Node

#: Satisfactions that differ by less than this part are alike: ceilings are not moved by less.
_FEW = 0.05


@dataclass(frozen=True, slots=True)
class Rivals:
    """Other users who could use more of what is lent than they may, by name."""

    everybody: tuple[str, ...] = ()
    #: Those of them who hold less, and so are served first.
    poorer: tuple[str, ...] = ()


NO_RIVALS = Rivals()


def find_rivals(
    jobs: Sequence[tuple[str, Borrower]],
    found: Mapping[int, Judgement],
    places: Mapping[str, Node],
) -> dict[tuple[str, str], Rivals]:
    """Return the rivals of users whose jobs could use more, by user and leaf. `jobs` come with
    their users; `found` and `places` are those of `judge`."""
    levels = _levels(jobs, found, places)
    hungry = sorted({(user, job.leaf) for user, job in jobs if found[job.job_id].is_hungry})
    rivals = {}
    for user, leaf in hungry:
        others = [(other, at) for other, at in hungry if other != user]
        poorer = {other for other, at in others if _is_poorer(at, leaf, levels)}
        everybody = {other for other, _ in others}
        rivals[user, leaf] = Rivals(tuple(sorted(everybody)), tuple(sorted(poorer)))
    return rivals


def _levels(
    jobs: Sequence[tuple[str, Borrower]],
    found: Mapping[int, Judgement],
    places: Mapping[str, Node],
) -> dict[str, float]:
    """Return the satisfaction of each node with such jobs, by what these may use."""
    amounts: dict[str, float] = {}
    for _, job in jobs:
        for path in path_up(job.leaf):
            amounts[path] = amounts.get(path, 0.0) + found[job.job_id].ceiling
    return {
        path: max(
            places[path].held,
            amount / places[path].entitled if places[path].entitled > 0 else float("inf"),
        )
        for path, amount in amounts.items()
    }


def _is_poorer(leaf: str, than: str, levels: Mapping[str, float]) -> bool:
    """Return whether a leaf, or the pool in which it is where the paths of both part, is less
    satisfied."""
    common = set(path_up(leaf)) & set(path_up(than))
    ways = [[path for path in path_up(each) if path not in common] for each in (leaf, than)]
    if not all(ways):
        return False
    mine, other = (levels[way[-1]] for way in ways)
    return mine < other * (1 - _FEW)
