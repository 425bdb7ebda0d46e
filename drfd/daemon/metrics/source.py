"""The metrics of one daemon: counters, and gauges of the moment at which somebody asks.

The gauges are read on the loop between turns, as a snapshot for `drf top` is, and at most as often
as they may cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

from drfd import __version__
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import ROOT, Job, JobState, Outcome, show_path
from drfd.core.model.machine import fits, total
from drfd.daemon.lookup.snapshots import Overview
from drfd.daemon.lookup.views import resources_view
from drfd.protocol.replies import GpuView, MachinePart, ResourcesView, SnapshotNode

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
#: Per node of the tree: the end of the metric's name, the field of the row, and the help.
_OF_NODES = (
    ("dominant_share_ratio", "share", "Largest share of any resource that is held."),
    ("entitlement_ratio", "entitlement", "Share that fairness promises while there is demand."),
    ("satisfaction_ratio", "satisfaction", "Share held, in parts of what is due."),
    ("running_jobs", "running", "Jobs that hold resources."),
    ("waiting_jobs", "waiting", "Jobs that wait, for whatever reason."),
)
_OF_USERS = (
    *_OF_NODES,
    (
        "held_back",
        "is_held_back",
        "1 if a limit, a window or a condition keeps all waiting jobs from what is due.",
    ),
)


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
        """Count the first start, and the end, of a job that a turn has changed. Tasks of an array
        that end together without a record of their own come as one job, and count as one end."""
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
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """`away_s` returns for how many seconds the launcher has been away, or None."""
        self._overview = overview
        self._most_users = most_users
        self._away_s = away_s
        self._mono = mono
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
        begin_s = self._mono()
        if begin_s >= self._fresh_until_s:
            self._latest = [*self._gauges()]
            end_s = self._mono()
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
            yield GaugeMetricFamily(f"drfd_{name}", text, value)
        codes = sorted({notice["code"] for notice in self._overview.notices()})
        yield _by_label(
            "drfd_notice",
            "1 for each notice that drf status shows.",
            "code",
            ((code, 1.0) for code in codes),
        )
        held = total(ledger.used.values(), (0,) * len(rules.shares.capacity))
        allocated = resources_view(rules.axes.resources(held))
        # A series that comes and goes is hard to add up.
        gres = {**dict.fromkeys(view["capacity"]["gres"], 0), **allocated["gres"]}
        # Paths below the root have one dot.
        top = [node for node in view["nodes"] if node["path"].count(".") == 1]
        yield from _amounts("capacity", "Capacity that drfd gives to jobs", view["capacity"])
        yield from _amounts("allocated", "Allocated to jobs", {**allocated, "gres": gres})
        for name, axis in _USED:
            yield GaugeMetricFamily(
                f"drfd_used_{name}",
                "Measured use of all jobs together.",
                # It is 0 where nothing is known to be used.
                sum(node["used"][axis] or 0 for node in top),
            )
        yield from _outside(view)
        yield from gpu_metrics(view.get("gpus", []))
        yield _by_label(
            "drfd_jobs", "Live jobs by state.", "state", with_all_states(view["counts"]).items()
        )
        leaves = frozenset(ledger.active_leaves())
        configured = frozenset(f"{ROOT}.{name}" for name in rules.pools)
        held_back = held_back_leaves(ledger, rules)
        pools, users = node_rows(view["nodes"], leaves, configured, self._most_users, held_back)
        whole = NodeRow(
            pool=WHOLE,
            user="",
            share=float(rules.shares.dominant_share(held)),
            entitlement=1.0,
            satisfaction=None,
            is_held_back=None,
            running=sum(node["running"] for node in top),
            waiting=sum(node["pending"] for node in top),
        )
        yield from node_metrics("pool", [whole, *pools])
        yield from node_metrics("user", users)


#: Ends of the names of metrics, and the axes.
_USED: tuple[tuple[str, Literal["cores", "memory", "read", "write"]], ...] = (
    ("cores", "cores"),
    ("memory_bytes", "memory"),
    ("read_bytes_per_second", "read"),
    ("write_bytes_per_second", "write"),
)


def held_back_leaves(ledger: Ledger, rules: Rules) -> frozenset[str]:
    """Return the leaves with waiting jobs none of which could start on an empty machine, because of
    a maintenance window, a limit or a condition of their own."""
    waiting = {*ledger.queues, *ledger.job_counts.waiting_of}
    found = {leaf for leaf in waiting if not ledger.queues.count_startable(leaf)}
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


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A pool, or the user of a pool; `user` is "" for a pool."""

    pool: str
    user: str
    share: float
    entitlement: float
    #: None of the row for other users, where it would mean nothing.
    satisfaction: float | None
    #: Whether a limit, a window or a condition keeps all waiting jobs of a user from what
    #: is due; None of pools, and of the row for other users.
    is_held_back: bool | None
    running: int
    waiting: int


def node_rows(
    nodes: Sequence[SnapshotNode],
    leaves: frozenset[str],
    configured: frozenset[str],
    most_users: int,
    held_back: frozenset[str] = frozenset(),
) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows of pools and of users. `leaves` are the paths of users with jobs, and
    `configured` those of pools; `held_back` those of users whose jobs wait for a limit or
    the end of a maintenance window. Users without jobs have no row. The users
    with the most jobs get a row each; one row has the sums of all others."""
    pools, users = [], []
    above_leaves = {path for leaf in leaves for path in path_up(leaf)} - leaves
    for node in nodes:
        path = node["path"]
        above, _, name = path.rpartition(".")
        if path in leaves:
            user = show_path(f"{ROOT}.{name}")
            users.append(_row(node, _pool_label(above), user, is_held_back=path in held_back))
        elif path in above_leaves or path in configured:
            pools.append(_row(node, _pool_label(path), "", is_held_back=None))
    users.sort(key=lambda row: (-row.running - row.waiting, row.pool, row.user))
    rest = users[most_users:]
    shown = sorted(users[:most_users], key=lambda row: (row.pool, row.user))
    if rest:
        shown.append(
            NodeRow(
                pool=WHOLE,
                user=OTHERS,
                share=sum(row.share for row in rest),
                entitlement=sum(row.entitlement for row in rest),
                satisfaction=None,
                is_held_back=None,
                running=sum(row.running for row in rest),
                waiting=sum(row.waiting for row in rest),
            )
        )
    return pools, shown


def _pool_label(path: str) -> str:
    return WHOLE if path in ("", ROOT) else show_path(path)


def _row(node: SnapshotNode, pool: str, user: str, *, is_held_back: bool | None) -> NodeRow:
    return NodeRow(
        pool=pool,
        user=user,
        share=node["dominant_share"],
        entitlement=node["entitlement"],
        satisfaction=node["satisfaction"],
        is_held_back=is_held_back,
        running=node["running"],
        waiting=node["pending"],
    )


def _by_label(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def _amounts(name: str, text: str, view: ResourcesView) -> Iterator[Metric]:
    yield GaugeMetricFamily(f"drfd_{name}_cores", f"{text}: cores.", view["cores"])
    yield GaugeMetricFamily(f"drfd_{name}_memory_bytes", f"{text}: memory.", view["memory"])
    for way in ("read", "write"):
        yield GaugeMetricFamily(
            f"drfd_{name}_{way}_bytes_per_second",
            f"{text}: {way} rate, all disks together.",
            view["read"] if way == "read" else view["write"],
        )
    yield _by_label(
        f"drfd_{name}_instances",
        f"{text}: instances of countable resources.",
        "resource",
        sorted(view["gres"].items()),
    )


def _outside(view: MachinePart) -> Iterator[Metric]:
    if "memory" not in view["external_off"]:
        seen, text = view["external"], "Use by processes outside drfd"
        cores, memory_bytes = (0.0, 0) if seen is None else (seen["cores"], seen["memory"])
        yield GaugeMetricFamily("drfd_external_cores", f"{text}: cores.", cores)
        yield GaugeMetricFamily("drfd_external_memory_bytes", f"{text}: memory.", memory_bytes)
    if view["pressure"]:
        text = "Part of the last ten seconds in which tasks waited for the resource."
        family = GaugeMetricFamily("drfd_pressure_ratio", text, labels=["resource", "kind"])
        for resource, kinds in sorted(view["pressure"].items()):
            for kind, per_cent in sorted(kinds.items()):
                if per_cent is not None:
                    family.add_metric([resource, kind], per_cent / 100)
        yield family


def gpu_metrics(gpus: Sequence[GpuView]) -> Iterator[Metric]:
    if not gpus:
        return
    named = [(gpu["name"] or gpu["pci"], gpu) for gpu in gpus]
    for name, text, values in (
        ("memory_used_bytes", "Memory in use.", [(n, g["memory_used"]) for n, g in named]),
        ("memory_total_bytes", "Memory in all.", [(n, g["memory_total"]) for n, g in named]),
        (
            "utilisation_ratio",
            "Part of the time in which the GPU was busy.",
            [(n, None if g["utilisation"] is None else g["utilisation"] / 100) for n, g in named],
        ),
        (
            "lost",
            "1 if its driver says that it does not answer.",
            [(n, int(g["is_lost"])) for n, g in named],
        ),
    ):
        known = [(number, value) for number, value in values if value is not None]
        yield _by_label(f"drfd_gpu_{name}", f"GPU: {text}", "gpu", known)


def node_metrics(kind: str, rows: Sequence[NodeRow]) -> Iterator[Metric]:
    labels = ["pool"] if kind == "pool" else ["pool", "user"]
    for name, attribute, text in _OF_NODES if kind == "pool" else _OF_USERS:
        family = GaugeMetricFamily(f"drfd_{kind}_{name}", f"By {kind}: {text}", labels=labels)
        for row in rows:
            value = getattr(row, attribute)
            if value is not None:
                family.add_metric([row.pool] if kind == "pool" else [row.pool, row.user], value)
        yield family
