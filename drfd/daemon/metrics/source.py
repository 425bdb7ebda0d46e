"""The metrics of one daemon: counters, and gauges of the moment at which somebody asks.

The gauges are read on the loop between turns, as a snapshot for `drf top` is, and at most as often
as they may cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

from drfd import __version__
from drfd.common.units import AXES
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import ROOT, Job, JobState, Outcome, show_path
from drfd.core.model.machine import fits, total
from drfd.daemon.lookup.snapshots import Overview
from drfd.daemon.lookup.views import sums_view
from drfd.protocol.replies import GpuView, MachinePart, SnapshotNode

#: Seconds for which gauges are given again, at least, and until they must be there.
_FRESH_S, _LONGEST_S = 1.0, 10.0
#: The loop spends at most this part (1/n) of its time on reading the gauges.
_PART = 100
#: Upper ends of the buckets, in seconds: of times that jobs wait, and of steps of the daemon.
_WAIT_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
_STEP_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
#: The pool label of the whole machine, and of users in no pool. No pool can be called so.
WHOLE = "/"
#: The user label of the row for all users beyond the configured number.
OTHERS = "(other)"
#: The labels of a node, and its figures by the ends of their metrics' names.
NodeRow: TypeAlias = tuple[list[str], Mapping[str, float]]
#: Of each resource the end of the metric's name, and of the help.
_AMOUNTS = {
    name: (
        axis.field.replace("_milli", "").replace("_bps", "_bytes_per_second"),
        f"{name} rate, all disks together" if axis.is_of_disks else name,
    )
    for name, axis in AXES.items()
}


@dataclass(frozen=True)
class Moment:
    """What figures are read from."""

    ledger: Ledger
    rules: Rules

    @cached_property
    def held_back(self) -> frozenset[str]:
        """The leaves with waiting jobs none of which could start on an empty machine, because of
        a maintenance window, a limit or a condition of their own."""
        ledger, shares = self.ledger, self.rules.shares
        waiting = {*ledger.queues, *ledger.job_counts.waiting_of}
        found = {leaf for leaf in waiting if next(ledger.queues.within_limits(leaf), None) is None}
        if any(rule.limit is not None for rule in shares.rules.values()):
            tree = shares.share_tree(ledger.used, ledger.active_leaves())
            for leaf in waiting - found:
                left = tree.headroom(leaf, shares.capacity)
                if not any(fits(demand, left) for demand in ledger.queues[leaf]):
                    found.add(leaf)
        return frozenset(found)


class NodeMetric(NamedTuple):
    """A figure of each pool and user."""

    #: The end of the metric's name, and the help.
    name: str
    text: str
    figure: Callable[[SnapshotNode, Moment], float]
    #: Whether it adds up over nodes; others mean nothing for several of them.
    is_summed: bool = False
    is_of_users_alone: bool = False


def _of(key: str) -> Callable[[SnapshotNode, Moment], float]:
    return lambda node, _: cast(Mapping[str, float], node)[key]


_OF_NODES = (
    NodeMetric(
        "dominant_share_ratio", "Largest share of any resource that is held.",
        _of("dominant_share"), is_summed=True,
    ),
    NodeMetric(
        "entitlement_ratio", "Share that fairness promises while there is demand.",
        _of("entitlement"), is_summed=True,
    ),
    NodeMetric("satisfaction_ratio", "Share held, in parts of what is due.", _of("satisfaction")),
    NodeMetric("running_jobs", "Jobs that hold resources.", _of("running"), is_summed=True),
    NodeMetric(
        "waiting_jobs", "Jobs that wait, for whatever reason.", _of("pending"), is_summed=True
    ),
    NodeMetric(
        "held_back",
        "1 if a limit, a window or a condition keeps all waiting jobs from what is due.",
        lambda node, moment: node["path"] in moment.held_back, is_of_users_alone=True,
    ),
)  # fmt: skip


class Tally:
    """Ends of jobs by outcome, and the latencies of jobs and of the daemon's own steps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ends = Counter(
            "drfd_jobs_ended", "Ended jobs by outcome, since the daemon's start.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self._ends = {outcome: ends.labels(outcome.value) for outcome in Outcome}
        self._wait = Histogram(
            "drfd_job_start_delay_seconds", "From a job's submission to its first start.",
            buckets=_WAIT_BOUNDS_S, registry=registry,
        )  # fmt: skip
        self.turn = Histogram(
            "drfd_turn_duration_seconds", "Duration of a turn of the scheduling loop.",
            buckets=_STEP_BOUNDS_S, registry=registry,
        )  # fmt: skip
        self.commit = Histogram(
            "drfd_commit_duration_seconds", "Duration of a commit of the journal.",
            buckets=_STEP_BOUNDS_S, registry=registry,
        )  # fmt: skip
        #: Ids of live jobs whose first start has been counted, here or by an earlier daemon.
        self._started: set[int] = set()

    def resume(self, jobs: Iterable[Job]) -> None:
        """Take these live jobs from an earlier daemon: starts that it has seen are not counted."""
        for job in jobs:
            has_run = job.attempt > job.postponements and job.state is not JobState.STARTING
            if job.started_at is not None or has_run:
                self._started.add(job.id)

    def job_changed(self, job: Job) -> None:
        """Count the first start, and the end, of a job that a turn has changed."""
        if job.started_at is not None and job.id not in self._started:
            self._started.add(job.id)
            # Not negative after the clock was set back.
            self._wait.observe(max(0.0, job.started_at - job.submitted_at))
        if job.state is JobState.ENDED:
            self._started.discard(job.id)
            if job.outcome is not None:
                self._ends[job.outcome].inc()


class Gauges:
    """The gauges of one daemon: a collector of prometheus_client, asked in threads of its own."""

    def __init__(
        self,
        overview: Overview,
        *,
        most_users: int,
        away_s: Callable[[], float | None],
    ) -> None:
        """`away_s` returns for how many seconds the launcher has been away, or None."""
        self._overview = overview
        self._most_users = most_users
        self._away_s = away_s
        self._started_s = time.time()
        #: The daemon's loop, from when it runs.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._latest: list[Metric] = []
        self._fresh_until_s = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, which may be a moment old. Must not be called on the loop."""
        assert self.loop is not None
        asked = asyncio.run_coroutine_threadsafe(self._read(), self.loop)
        try:
            return iter(asked.result(_LONGEST_S))
        finally:
            asked.cancel()

    async def _read(self) -> list[Metric]:
        begin_s = time.monotonic()
        if begin_s >= self._fresh_until_s:
            self._latest = [*self._gauges()]
            end_s = time.monotonic()
            self._fresh_until_s = end_s + max(_FRESH_S, _PART * (end_s - begin_s))
        return self._latest

    def _gauges(self) -> Iterator[Metric]:
        engine, view = self._overview.engine, self._overview.machine_part()
        ledger, rules = engine.ledger, engine.rules
        yield InfoMetricFamily("drfd_build", "Version of drfd.", {"version": __version__})
        for name, text, value in (
            ("start_time_seconds", "Unix time of the daemon's start.", self._started_s),
            ("launcher_up", "1 if the launcher is connected, else 0.", self._away_s() is None),
            ("drained", "1 if no job starts until drf undrain.", view["draining"]),
            ("nodes_away", "Nodes whose launcher is away.", len(ledger.nodes_away)),
            (
                "journal_size_bytes",
                "Journal on disk with its log.",
                journal_size(engine.journal.path),
            ),
        ):
            yield _metric(name, text, [((), value)])
        codes = sorted({notice["code"] for notice in self._overview.notices()})
        shown = "1 for each notice that drf status shows."
        yield _metric("notice", shown, (((code,), 1) for code in codes), "code")
        held = total(ledger.used.values(), (0,) * len(rules.shares.capacity))
        capacity = rules.axes.resources(rules.shares.capacity)
        # Paths below the root have one dot.
        top = [node for node in view["nodes"] if node["path"].count(".") == 1]
        for name, text, amount in (
            ("capacity", "Capacity that drfd gives to jobs", capacity),
            ("allocated", "Allocated to jobs", rules.axes.resources(held)),
        ):
            yield from _amounts(name, text, sums_view(amount))
            # A series that comes and goes is hard to add up.
            counts = {**dict.fromkeys(dict(capacity.gres), 0), **dict(amount.gres)}
            yield _metric(
                f"{name}_instances",
                f"{text}: instances of countable resources.",
                (((kind,), count) for kind, count in sorted(counts.items())),
                "resource",
            )
        # It is 0 where nothing is known to be used.
        seen = [cast(Mapping[str, float | None], node["used"]) for node in top]
        used = {axis: sum(each.get(axis) or 0 for each in seen) for axis in AXES}
        yield from _amounts("used", "Measured use of all jobs together", used)
        yield from _outside(view)
        yield from gpu_metrics(view.get("gpus", []))
        states = with_all_states(view["counts"]).items()
        yield _metric(
            "jobs", "Live jobs by state.", (((state,), count) for state, count in states), "state"
        )
        leaves = frozenset(ledger.active_leaves())
        configured = frozenset(f"{ROOT}.{name}" for name in rules.pools)
        moment = Moment(ledger, rules)
        pools, users = node_rows(view["nodes"], moment, leaves, configured, self._most_users)
        whole = _sums([_figures(node, moment) for node in top]) | {
            "dominant_share_ratio": float(rules.shares.dominant_share(held)),
            "entitlement_ratio": 1.0,
        }
        yield from node_metrics("pool", [([WHOLE], whole), *pools])
        yield from node_metrics("user", users)


def with_all_states(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of live jobs by state, with a 0 for each state that no job is in: a
    series that comes and goes has gaps in graphs, and an alert cannot compare it."""
    states = (state.value for state in JobState if state is not JobState.ENDED)
    return {**dict.fromkeys(states, 0), **counts}


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


def node_rows(
    nodes: Sequence[SnapshotNode],
    moment: Moment,
    leaves: frozenset[str],
    configured: frozenset[str],
    most_users: int,
) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows of pools and of users. `leaves` are the paths of users with jobs, and
    `configured` those of pools. Users without jobs have no row. The users with the most jobs get a
    row each; one row has the sums of all others."""
    pools: list[NodeRow] = []
    users: list[NodeRow] = []
    above_leaves = {path for leaf in leaves for path in path_up(leaf)} - leaves
    for node in sorted(nodes, key=lambda node: (-node["running"] - node["pending"], node["path"])):
        path = node["path"]
        above, _, name = path.rpartition(".")
        if path in leaves:
            labels = [_pool_label(above), show_path(f"{ROOT}.{name}")]
            users.append((labels, _figures(node, moment)))
        elif path in above_leaves or path in configured:
            pools.append(([_pool_label(path)], _figures(node, moment)))
    shown = sorted(users[:most_users], key=itemgetter(0))
    if rest := users[most_users:]:
        shown.append(([WHOLE, OTHERS], _sums([figures for _, figures in rest])))
    return sorted(pools, key=itemgetter(0)), shown


def _figures(node: SnapshotNode, moment: Moment) -> dict[str, float]:
    return {each.name: each.figure(node, moment) for each in _OF_NODES}


def _sums(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of the figures that add up."""
    return {each.name: sum(row[each.name] for row in rows) for each in _OF_NODES if each.is_summed}


def _pool_label(path: str) -> str:
    return WHOLE if path in ("", ROOT) else show_path(path)


def _metric(
    name: str, text: str, values: Iterable[tuple[Sequence[str], float | None]], *labels: str
) -> Metric:
    """Return a gauge with a value for each of some labels; None is left out."""
    family = GaugeMetricFamily(f"drfd_{name}", text, labels=labels)
    for named, value in values:
        if value is not None:
            family.add_metric(named, value)
    return family


def _amounts(name: str, text: str, amounts: Mapping[str, float]) -> Iterator[Metric]:
    for axis, (end, what) in _AMOUNTS.items():
        yield _metric(f"{name}_{end}", f"{text}: {what}.", [((), amounts[axis])])


def _outside(view: MachinePart) -> Iterator[Metric]:
    if "memory" not in view["external_off"]:
        seen, text = view["external"], "Use by processes outside drfd"
        cores, memory_bytes = (0.0, 0) if seen is None else (seen["cores"], seen["memory"])
        yield _metric("external_cores", f"{text}: cores.", [((), cores)])
        yield _metric("external_memory_bytes", f"{text}: memory.", [((), memory_bytes)])
    if view["pressure"]:
        text = "Part of the last ten seconds in which tasks waited for the resource."
        values = (
            ((resource, kind), None if per_cent is None else per_cent / 100)
            for resource, kinds in sorted(view["pressure"].items())
            for kind, per_cent in sorted(kinds.items())
        )
        yield _metric("pressure_ratio", text, values, "resource", "kind")


def gpu_metrics(gpus: Sequence[GpuView]) -> Iterator[Metric]:
    for name, text, value in (
        ("memory_used_bytes", "Memory in use.", lambda gpu: gpu["memory_used"]),
        ("memory_total_bytes", "Memory in all.", lambda gpu: gpu["memory_total"]),
        ("utilisation_ratio", "Part of the time in which the GPU was busy.", _utilisation),
        ("lost", "1 if its driver says that it does not answer.", lambda gpu: gpu["is_lost"]),
    ):
        values = (((gpu["name"] or gpu["pci"],), value(gpu)) for gpu in gpus)
        if gpus:
            yield _metric(f"gpu_{name}", f"GPU: {text}", values, "gpu")


def _utilisation(gpu: GpuView) -> float | None:
    return None if gpu["utilisation"] is None else gpu["utilisation"] / 100


def node_metrics(kind: Literal["pool", "user"], rows: Sequence[NodeRow]) -> Iterator[Metric]:
    labels = ("pool",) if kind == "pool" else ("pool", "user")
    for each in _OF_NODES:
        if kind == "user" or not each.is_of_users_alone:
            values = ((named, figures.get(each.name)) for named, figures in rows)
            yield _metric(f"{kind}_{each.name}", f"By {kind}: {each.text}", values, *labels)
