"""The figures of one moment, and the metrics that they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

from drfd.core.fairness.rules import ROOT
from drfd.core.fairness.share_tree import path_up
from drfd.core.model.job import show_path
from drfd.protocol.replies import GpuView, ResourcesView, SnapshotNode, SumView

#: The pool label of the whole machine, and of users in no pool. No pool can be called so.
WHOLE = "/"
#: The user label of the row for all users beyond the configured number. A user of this name gets
#: another label; see `_user_label`.
OTHERS = "(other)"


#: Per node of the tree: the end of the metric's name, the field of the row, and the help.
_OF_NODES = (
    ("dominant_share_ratio", "share", "Largest share of any resource that is held."),
    ("entitlement_ratio", "entitlement", "Share that fairness promises while there is demand."),
    ("satisfaction_ratio", "satisfaction", "Share held, in parts of what is due."),
    ("running_jobs", "running", "Jobs that hold resources."),
    ("waiting_jobs", "waiting", "Jobs that wait and may start."),
)
_OF_USERS = (
    *_OF_NODES,
    (
        "held_back",
        "is_held_back",
        "1 if a quota, a limit or a maintenance window keeps the waiting jobs from what is due.",
    ),
)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A pool, or the user of a pool; `user` is "" for a pool."""

    pool: str
    user: str
    share: float
    entitlement: float
    #: None of the row for other users, where it would mean nothing.
    satisfaction: float | None
    #: Whether a quota, a limit or a maintenance window keeps all waiting jobs of a user from what
    #: is due; None of pools, and of the row for other users.
    is_held_back: bool | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    version: str
    started_s: float
    capacity: ResourcesView
    allocated: ResourcesView
    used: SumView
    #: Cores and bytes that processes outside drfd use, or None if they are not looked at.
    external: tuple[float, int] | None
    #: Pressure stall information in per cent, by resource and kind.
    pressure: Mapping[str, Mapping[str, float | None]]
    jobs: Mapping[str, int]
    pools: Sequence[NodeRow]
    users: Sequence[NodeRow]
    gpus: Sequence[GpuView]
    is_launcher_up: bool
    is_drained: bool
    nodes_away: int
    #: Codes of the notices that `drf status` shows.
    notices: Sequence[str]
    journal_bytes: int


def node_rows(
    nodes: Sequence[SnapshotNode],
    leaves: frozenset[str],
    configured: frozenset[str],
    most_users: int,
    held_back: frozenset[str] = frozenset(),
) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows of pools and of users. `leaves` are the paths of users with jobs, and
    `configured` those of pools; `held_back` those of users whose jobs wait for a quota, a limit or
    the end of a maintenance window. Users without jobs have no row. The users
    with the most jobs get a row each; one row has the sums of all others."""
    pools, users = [], []
    above_leaves = {path for leaf in leaves for path in path_up(leaf)} - leaves
    for node in nodes:
        path = node["path"]
        above, _, name = path.rpartition(".")
        if path in leaves:
            user = _user_label(show_path(f"{ROOT}.{name}"))
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


def _user_label(name: str) -> str:
    """Return the label of a user of this name: the name, but "(other)" gets parentheses, and so do
    names that are "(other)" in parentheses. Labels differ where names do."""
    inner = name
    while inner != OTHERS and inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    return f"({name})" if inner == OTHERS else name


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


def metrics(readings: Readings) -> Iterator[Metric]:
    yield from _health(readings)
    yield from _machine(readings)
    yield from _gpus(readings)
    yield _by_label("drfd_jobs", "Live jobs by state.", "state", readings.jobs.items())
    yield from _nodes("pool", readings.pools)
    yield from _nodes("user", readings.users)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _by_label(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def _health(readings: Readings) -> Iterator[Metric]:
    yield InfoMetricFamily("drfd_build", "Version of drfd.", {"version": readings.version})
    yield _gauge("drfd_start_time_seconds", "Unix time of the daemon's start.", readings.started_s)
    yield _gauge(
        "drfd_launcher_up", "1 if the launcher is connected, else 0.", readings.is_launcher_up
    )
    yield _gauge("drfd_drained", "1 if no job starts until drf undrain.", readings.is_drained)
    yield _gauge("drfd_nodes_away", "Nodes whose launcher is away.", readings.nodes_away)
    yield _gauge("drfd_journal_size_bytes", "Journal on disk with its log.", readings.journal_bytes)
    yield _by_label(
        "drfd_notice",
        "1 for each notice that drf status shows.",
        "code",
        ((code, 1.0) for code in sorted(set(readings.notices))),
    )


def _machine(readings: Readings) -> Iterator[Metric]:
    for name, text, view in (
        ("capacity", "Capacity that drfd gives to jobs", readings.capacity),
        ("allocated", "Allocated to jobs", readings.allocated),
    ):
        yield _gauge(f"drfd_{name}_cores", f"{text}: cores.", view["cores"])
        yield _gauge(f"drfd_{name}_memory_bytes", f"{text}: memory.", view["memory"])
        for way in ("read", "write"):
            yield _gauge(
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
    for name, value in (
        ("cores", readings.used["cores"]),
        ("memory_bytes", readings.used["memory"]),
        ("read_bytes_per_second", readings.used["read"]),
        ("write_bytes_per_second", readings.used["write"]),
    ):
        if value is not None:
            yield _gauge(f"drfd_used_{name}", "Measured use of all jobs together.", value)
    if readings.external is not None:
        cores, memory_bytes = readings.external
        yield _gauge("drfd_external_cores", "Use by processes outside drfd: cores.", cores)
        yield _gauge(
            "drfd_external_memory_bytes", "Use by processes outside drfd: memory.", memory_bytes
        )
    if readings.pressure:
        yield _pressure(readings)


def _pressure(readings: Readings) -> Metric:
    text = "Part of the last ten seconds in which tasks waited for the resource."
    family = GaugeMetricFamily("drfd_pressure_ratio", text, labels=["resource", "kind"])
    for resource, kinds in sorted(readings.pressure.items()):
        for kind, per_cent in sorted(kinds.items()):
            if per_cent is not None:
                family.add_metric([resource, kind], per_cent / 100)
    return family


def _gpus(readings: Readings) -> Iterator[Metric]:
    if not readings.gpus:
        return
    named = [(gpu["name"] or gpu["pci"], gpu) for gpu in readings.gpus]
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


def _nodes(kind: str, rows: Iterable[NodeRow]) -> Iterator[Metric]:
    rows = list(rows)
    labels = ["pool"] if kind == "pool" else ["pool", "user"]
    for name, attribute, text in _OF_NODES if kind == "pool" else _OF_USERS:
        family = GaugeMetricFamily(f"drfd_{kind}_{name}", f"By {kind}: {text}", labels=labels)
        for row in rows:
            value = getattr(row, attribute)
            if value is not None:
                family.add_metric([row.pool] if kind == "pool" else [row.pool, row.user], value)
        yield family
