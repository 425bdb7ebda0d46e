"""The machine as it fills up with tasks that can be cut at will, event by event, exactly.

The level of a node is what it holds over what it is entitled to. The levels of all who can still
grow rise together, at every depth of the tree, until a resource is full or somebody has all that
they want; who needs nothing of a full resource goes on. A node whose level stands still although it
is served, because another resource than those that it can still get decides it, catches up before
anybody else goes on.

From an empty machine no node is ever more satisfied than those below it that can still grow: its
own level is then also the least of its own and theirs, so naive comparison and min-satisfaction
(see `core.fairshare`) fill the machine alike. They part when tasks end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from drfd.core.entitlement import ZERO, Shares
from drfd.core.tree import TOP, parent_of, path_up

#: How many tasks each leaf gets.
Tasks = dict[str, Fraction]
#: The most that a node may hold on each axis, as parts of the machine; None: no limit.
Caps = tuple[Fraction | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a leaf asks for: amounts of one task, not all zero, and how many tasks."""

    demand: Shares
    #: None: without end.
    tasks: Fraction | None = None


class Measure(Enum):
    """How much a node holds, from its parts of each resource."""

    #: The largest part: DRF.
    DOMINANT = "dominant"
    #: All parts together, each resource at the price of its share of the machine: asset fairness.
    ASSETS = "assets"


@dataclass(frozen=True, slots=True)
class _Drive:
    """How a node is served when its turn comes."""

    #: Does its level rise by that? Then by 1 in 1 unit of time.
    rises: bool
    #: Tasks per unit of time of the leaves that are served.
    speeds: Tasks


class Flow:
    """The machine while it fills up. Amounts are parts of the machine."""

    def __init__(
        self,
        entitled: Mapping[str, Shares],
        wants: Mapping[str, Want],
        asked: Mapping[str, Shares],
        caps: Mapping[str, Caps],
        measure: Measure = Measure.DOMINANT,
        goes_on: bool = True,
    ) -> None:
        """`entitled`: of all active nodes; `asked`: one task of each leaf; `caps`: the root's is
        the machine. `goes_on`: others do when a full resource stops somebody."""
        self._entitled, self._wants, self._asked, self._caps = entitled, wants, asked, caps
        self._measure, self._goes_on = measure, goes_on
        self._children: dict[str, list[str]] = {}
        for path in entitled:
            self._children.setdefault(parent_of(path), []).append(path)
        axes = range(len(caps[TOP]))
        self._held = {path: [ZERO for _ in axes] for path in (TOP, *entitled)}
        self._got = dict.fromkeys(wants, ZERO)

    def run(self) -> Tasks:
        for leaf, want in self._wants.items():
            if not any(self._asked[leaf]):
                # It weighs nothing here, so nothing keeps it back.
                assert want.tasks is not None, f"{leaf} asks for nothing, without end"
                self._got[leaf] = want.tasks
        while (drive := self._drive(TOP)) is not None:
            flows = self._flows(drive.speeds)
            self._advance(self._until(drive.speeds, flows), drive.speeds, flows)
            if not self._goes_on and any(map(self._is_stopped, self._wants)):
                break
        return self._got

    def _lacks(self, leaf: str) -> bool:
        want = self._wants[leaf]
        return want.tasks is None or self._got[leaf] < want.tasks

    def _is_full(self, path: str, leaf: str) -> bool:
        """Does the node hold all that it may of something that the leaf needs?"""
        return any(
            each and cap is not None and held >= cap
            for each, cap, held in zip(
                self._asked[leaf], self._caps.get(path, ()), self._held[path], strict=False
            )
        )

    def _is_stopped(self, leaf: str) -> bool:
        """By the machine, not by a limit or for want of tasks."""
        return self._lacks(leaf) and self._is_full(TOP, leaf)

    def _drive(self, path: str) -> _Drive | None:
        """None: nothing below can grow."""
        if path in self._wants:
            return self._drive_leaf(path)
        drives = [drive for child in self._children.get(path, ()) if (drive := self._drive(child))]
        if not drives:
            return None
        # All that can grow are at one level. Who stands still although served catches up first.
        served = [drive for drive in drives if not drive.rises] or drives
        speeds = {leaf: speed for drive in served for leaf, speed in drive.speeds.items()}
        if path == TOP:
            return _Drive(served[0].rises, speeds)
        flow = self._flows(speeds)[path]
        slope, _ = self._rise(path, flow)
        # One that stands still is served so that what grows of it rises by 1.
        pairs = zip(flow, self._entitled[path], strict=True)
        rate = slope or max(each / part for each, part in pairs if part)
        return _Drive(slope > 0, {leaf: speed / rate for leaf, speed in speeds.items()})

    def _drive_leaf(self, leaf: str) -> _Drive | None:
        if leaf not in self._entitled or not any(self._asked[leaf]) or not self._lacks(leaf):
            return None
        if any(self._is_full(path, leaf) for path in (TOP, *path_up(leaf))):
            return None
        pairs = zip(self._asked[leaf], self._entitled[leaf], strict=True)
        if any(each and not part for each, part in pairs):
            return None
        slope, _ = self._rise(leaf, self._asked[leaf])
        return _Drive(True, {leaf: 1 / slope})

    def _rise(self, path: str, flow: Sequence[Fraction]) -> tuple[Fraction, Fraction | None]:
        """How fast the node's level rises while `flow` comes in, and until when (None: always)."""
        lines = [
            (held / part, each / part)
            for held, each, part in zip(self._held[path], flow, self._entitled[path], strict=True)
            if part
        ]
        if self._measure is Measure.ASSETS:
            return sum((slope for _, slope in lines), ZERO), None
        level = max(at for at, _ in lines)
        rise = max(slope for at, slope in lines if at == level)
        ends = [(level - at) / (slope - rise) for at, slope in lines if slope > rise]
        return rise, min(ends, default=None)

    def _flows(self, speeds: Tasks) -> dict[str, list[Fraction]]:
        """What comes in at each node that is served."""
        flows: dict[str, list[Fraction]] = {}
        for leaf, speed in speeds.items():
            for path in (TOP, *path_up(leaf)):
                flow = flows.setdefault(path, [ZERO] * len(self._caps[TOP]))
                for axis, each in enumerate(self._asked[leaf]):
                    flow[axis] += speed * each
        return flows

    def _until(self, speeds: Tasks, flows: Mapping[str, Sequence[Fraction]]) -> Fraction:
        """For how long all goes on as now."""
        ends = [
            (cap - held) / each
            for path, flow in flows.items()
            for cap, held, each in zip(
                self._caps.get(path, ()), self._held[path], flow, strict=False
            )
            if each and cap is not None
        ]
        for leaf, speed in speeds.items():
            most = self._wants[leaf].tasks
            if most is not None:
                ends.append((most - self._got[leaf]) / speed)
        for path, flow in flows.items():
            end = None if path == TOP else self._rise(path, flow)[1]
            if end is not None:
                ends.append(end)
        return min(ends)

    def _advance(
        self, span: Fraction, speeds: Tasks, flows: Mapping[str, Sequence[Fraction]]
    ) -> None:
        for leaf, speed in speeds.items():
            self._got[leaf] += speed * span
        for path, flow in flows.items():
            pairs = zip(self._held[path], flow, strict=True)
            self._held[path] = [held + each * span for held, each in pairs]
