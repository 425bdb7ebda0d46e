"""Shares against entitlements since the page was started: a few hundred moments, which cover longer
times the longer it runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotView

#: The most moments that are kept; when there are as many, every two of them become one.
_MOST = 240
#: Seconds of the first moments.
_FIRST_S = 1.0


@dataclass(frozen=True)
class Moment:
    """A short time that ends at `at_s` (Unix time): dominant share and entitlement by the path of
    a pool or user, of those that hold something or wait."""

    at_s: float
    nodes: Mapping[str, tuple[float, float]]

    def joined(self, later: Moment) -> Moment:
        """Return both as one moment: the later one, with the highest shares of both."""
        nodes = dict(self.nodes)
        for path, (share, entitlement) in later.nodes.items():
            nodes[path] = (max(share, nodes.get(path, (0.0, 0.0))[0]), entitlement)
        return replace(later, nodes=nodes)


class Past:
    """The moments so far. One thread adds snapshots, others read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments: list[Moment] = []
        self._each_s = _FIRST_S
        #: When the last moment began.
        self._begin_s = float("-inf")

    def add(self, snapshot: SnapshotView) -> None:
        """Take a snapshot, unless it is not newer than the last one."""
        nodes = {
            node["path"]: (round(node["dominant_share"], 4), round(node["entitlement"], 4))
            for node in snapshot["nodes"]
            if node["running"] or node["pending"] or node["dominant_share"]
        }
        moment = Moment(snapshot["at"], nodes)
        with self._lock:
            moments = self._moments
            if moments and moment.at_s <= moments[-1].at_s:
                return
            if moments and moment.at_s - self._begin_s < self._each_s:
                moments[-1] = moments[-1].joined(moment)
                return
            self._begin_s = moment.at_s
            moments.append(moment)
            if len(moments) >= _MOST:
                pairs = zip(moments[::2], moments[1::2], strict=False)
                rest = moments[len(moments) // 2 * 2 :]
                self._moments = [*(first.joined(second) for first, second in pairs), *rest]
                self._each_s *= 2

    def view(self) -> dict[str, object]:
        """Return all moments as JSON: the times, and for each path its shares and entitlements,
        null at moments at which it neither held anything nor waited."""
        with self._lock:
            moments = list(self._moments)
        paths = sorted({path for each in moments for path in each.nodes})
        return {
            "at": [each.at_s for each in moments],
            "nodes": {path: _series(path, moments) for path in paths},
        }


def _series(path: str, moments: list[Moment]) -> dict[str, list[float | None]]:
    found = [each.nodes.get(path) for each in moments]
    return {
        "share": [None if each is None else each[0] for each in found],
        "entitlement": [None if each is None else each[1] for each in found],
    }
