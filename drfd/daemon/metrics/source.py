"""Texts with metrics, made when somebody asks for one, and at most as often as they may cost.

The figures are read on the loop between turns, as a snapshot for `drf top` is, and shared by all
who ask; the text is made of them in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics

from drfd import __version__
from drfd.core.fairness.rules import ROOT, Rules
from drfd.core.fairness.share_tree import path_up
from drfd.core.fairness.week_quotas import QuotaUse
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import JobState
from drfd.core.model.machine import fits, total
from drfd.daemon.lookup.snapshots import Overview
from drfd.daemon.lookup.views import resources_view
from drfd.daemon.metrics.figures import WHOLE, NodeRow, Readings, metrics, node_rows
from drfd.protocol.replies import ResourcesView, SumView

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
#: Seconds for which a text is given again, at least.
_FRESH_S = 1.0
#: The loop spends at most this part (1/n) of its time on reading the figures.
_PART = 100


class MetricsSource:
    """Makes the texts of one daemon, of the counters in `registry` and of its present figures."""

    def __init__(
        self,
        overview: Overview,
        registry: CollectorRegistry,
        *,
        most_users: int,
        away_s: Callable[[], float | None],
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """`away_s` returns for how many seconds the launcher has been away, or None."""
        self._overview = overview
        self._registry = registry
        self._most_users = most_users
        self._away_s = away_s
        self._mono = mono
        self._started_s = time.time()
        self._one_at_a_time = asyncio.Lock()
        self._readings: Readings | None = None
        #: The texts by their formats, each with the time until which it is given again.
        self._texts: dict[str, tuple[bytes, float]] = {}
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return nothing: no other collector has metrics of these names."""
        return []

    def collect(self) -> Iterator[Metric]:
        return iter(()) if self._readings is None else metrics(self._readings)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics, which may be a moment old, in the format that the value of an Accept
        header prefers, and the format's content type."""
        # There are two formats, and no further texts for whatever versions are asked for.
        is_open = choose_encoder(accept)[1].startswith("application/openmetrics-text")
        encode = openmetrics.generate_latest if is_open else generate_latest
        content_type = openmetrics.CONTENT_TYPE_LATEST if is_open else PLAIN
        async with self._one_at_a_time:
            text, until_s = self._texts.get(content_type, (b"", 0.0))
            if self._mono() >= until_s:
                journal = self._overview.engine.journal.path
                journal_bytes = await asyncio.to_thread(journal_size, journal)
                begin_s = self._mono()
                self._readings = self.read(journal_bytes)
                end_s = self._mono()
                text = await asyncio.to_thread(encode, self._registry)
                until_s = end_s + max(_FRESH_S, _PART * (end_s - begin_s))
                self._texts[content_type] = text, until_s
            return text, content_type

    def read(self, journal_bytes: int) -> Readings:
        """Return the figures of this moment."""
        engine = self._overview.engine
        view = self._overview.machine_part()
        leaves = frozenset(engine.ledger.active_leaves())
        configured = frozenset(f"{ROOT}.{name}" for name in engine.rules.pools)
        held_back = held_back_leaves(engine.ledger, engine.rules, engine.used_up())
        pools, users = node_rows(view["nodes"], leaves, configured, self._most_users, held_back)
        # Paths below the root have one dot.
        top = [node for node in view["nodes"] if node["path"].count(".") == 1]
        rules = engine.rules
        held = total(engine.ledger.used.values(), (0,) * len(rules.shares.capacity))
        pools.insert(
            0,
            NodeRow(
                pool=WHOLE,
                user="",
                share=float(rules.shares.dominant_share(held)),
                entitlement=1.0,
                satisfaction=None,
                is_held_back=None,
                running=sum(node["running"] for node in top),
                waiting=sum(node["pending"] for node in top),
            ),
        )
        allocated = resources_view(rules.axes.resources(held))
        external = None
        if not view["external_off"]:
            seen = view["external"]
            external = (0.0, 0) if seen is None else (seen["cores"], seen["memory"])
        return Readings(
            version=__version__,
            started_s=self._started_s,
            capacity=view["capacity"],
            allocated=with_all_gres(allocated, view["capacity"]),
            used=added(node["used"] for node in top),
            external=external,
            pressure=view["pressure"] or {},
            jobs=with_all_states(view["counts"]),
            pools=pools,
            users=users,
            gpus=view.get("gpus", []),
            is_launcher_up=self._away_s() is None,
            is_drained=view["draining"],
            nodes_away=len(engine.ledger.nodes_away),
            notices=[notice["code"] for notice in self._overview.notices()],
            journal_bytes=journal_bytes,
        )


def held_back_leaves(
    ledger: Ledger, rules: Rules, used_up: Mapping[str, QuotaUse]
) -> frozenset[str]:
    """Return the leaves with waiting jobs none of which could start on an empty machine, because of
    a maintenance window or a limit, and those that are promised nothing now, because a quota is
    used up. `used_up` are the nodes whose quota is."""
    waiting = {*ledger.queues, *ledger.queues.held_back()}
    found = {leaf for leaf in waiting if not used_up.keys().isdisjoint(path_up(leaf))}
    found |= waiting - ledger.queues.keys()
    shares = rules.shares
    if any(rule.limit is not None for rule in shares.rules.values()):
        tree = shares.share_tree(ledger.used, ledger.active_leaves())
        for leaf in waiting - found:
            left = tree.headroom(leaf, shares.capacity)
            if not any(fits(demand, left) for demand in ledger.queues[leaf]):
                found.add(leaf)
    return frozenset(found)


def with_all_states(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of live jobs by state, with a 0 for each state that no job is in: a
    series that comes and goes has gaps in graphs, and an alert cannot compare it."""
    states = (state.value for state in JobState if state is not JobState.ENDED)
    return {**dict.fromkeys(states, 0), **counts}


def with_all_gres(view: ResourcesView, capacity: ResourcesView) -> ResourcesView:
    """Return the amounts with a 0 for each countable resource of the capacity that they lack: a
    series that comes and goes is hard to add up."""
    return {**view, "gres": {**dict.fromkeys(capacity["gres"], 0), **view["gres"]}}


def added(views: Iterable[SumView]) -> SumView:
    """Return the sums, of which each is 0 where nothing is known to be used."""
    sums: SumView = {"cores": 0, "memory": 0, "read": 0, "write": 0}
    for view in views:
        for name in ("cores", "memory", "read", "write"):
            sums[name] = (sums[name] or 0) + (view[name] or 0)
    return sums


def journal_size(path: Path) -> int:
    """Return the bytes of the journal and of its write-ahead log."""
    size = 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        try:
            size += each.stat().st_size
        except OSError:
            # The log comes and goes.
            continue
    return size
