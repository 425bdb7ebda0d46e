"""Readings as text: OpenMetrics, or the older text format of Prometheus.

`prometheus_client` is imported here only, when the first text is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drfd.daemon.metrics.readings import NodeRow, Readings
from drfd.daemon.metrics.tally import HistogramCopy

if TYPE_CHECKING:
    from prometheus_client import Metric

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
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


def content_type(accept: str) -> str:
    """Return the format that the value of an Accept header prefers; if it prefers neither,
    OpenMetrics, and if it takes neither, the older one, as other programs with metrics do."""
    if not accept.strip():
        return OPENMETRICS
    ranges = [_media_range(each) for each in accept.lower().split(",")]
    openmetrics = _quality(ranges, "application", "openmetrics-text", "1.0.0")
    plain = _quality(ranges, "text", "plain", "0.0.4")
    return OPENMETRICS if openmetrics > 0 and openmetrics >= plain else PLAIN


def _media_range(text: str) -> tuple[str, str, float]:
    """Return a media range of an Accept header in lower case: the type, the version or "", and the
    quality, which is 0 if it is no number from 0 to 1."""
    kind, *parameters = (each.strip() for each in text.split(";"))
    named = {}
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        named[name.strip()] = value.strip().strip('"')
    quality = named.get("q", "1")
    is_valid = re.fullmatch(r"0(\.\d*)?|1(\.0*)?", quality, re.ASCII)
    return kind, named.get("version", ""), float(quality) if is_valid else 0.0


def _quality(
    ranges: Sequence[tuple[str, str, float]], kind: str, subtype: str, version: str
) -> float:
    """Return the quality of the most precise range that a format is in; 0 if it is in none."""
    full = f"{kind}/{subtype}"
    for precise in ((full, version), (full, ""), (f"{kind}/*", ""), ("*/*", "")):
        found = [quality for *named, quality in ranges if tuple(named) == precise]
        if found:
            return max(found)
    return 0.0


def render(readings: Readings, format_type: str) -> bytes:
    """Return the metrics as OPENMETRICS or PLAIN. Raises ImportError if prometheus_client is not
    installed."""
    import prometheus_client
    from prometheus_client.openmetrics import exposition as openmetrics

    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(_Collector(readings))
    # Typed in some versions of the library only.
    generate: Callable[..., Any]
    generate = (
        openmetrics.generate_latest
        if format_type == OPENMETRICS
        else prometheus_client.generate_latest
    )
    text: bytes = generate(registry)
    return text


class _Collector:
    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def describe(self) -> list[Metric]:
        """Return nothing: the registry has this collector alone, so names cannot collide."""
        return []

    def collect(self) -> Iterator[Metric]:
        readings = self._readings
        yield from _health(readings)
        yield from _machine(readings)
        yield from _gpus(readings)
        yield _by_label("drfd_jobs", "Live jobs by state.", "state", readings.jobs.items())
        yield from _nodes("pool", readings.pools)
        yield from _nodes("user", readings.users)
        yield from _counts(readings)


def _gauge(name: str, text: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, text, value)


def _by_label(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def _health(readings: Readings) -> Iterator[Metric]:
    from prometheus_client.core import InfoMetricFamily

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
    from prometheus_client.core import GaugeMetricFamily

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
    from prometheus_client.core import GaugeMetricFamily

    rows = list(rows)
    labels = ["pool"] if kind == "pool" else ["pool", "user"]
    for name, attribute, text in _OF_NODES if kind == "pool" else _OF_USERS:
        family = GaugeMetricFamily(f"drfd_{kind}_{name}", f"By {kind}: {text}", labels=labels)
        for row in rows:
            value = getattr(row, attribute)
            if value is not None:
                family.add_metric([row.pool] if kind == "pool" else [row.pool, row.user], value)
        yield family


def _counts(readings: Readings) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    ends = CounterMetricFamily(
        "drfd_jobs_ended", "Ended jobs by outcome, since the daemon's start.", labels=["outcome"]
    )
    for outcome, count in readings.ends.items():
        ends.add_metric([outcome.value], count, created=readings.counted_since_s)
    yield ends
    yield _histogram(
        "drfd_job_start_delay_seconds", "From a job's submission to its first start.", readings.wait
    )
    yield _histogram(
        "drfd_turn_duration_seconds", "Duration of a turn of the scheduling loop.", readings.turn
    )
    yield _histogram(
        "drfd_commit_duration_seconds", "Duration of a commit of the journal.", readings.commit
    )


def _histogram(name: str, text: str, copy: HistogramCopy) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    buckets = [
        ("+Inf" if math.isinf(bound) else repr(bound), float(count))
        for bound, count in copy.cumulative
    ]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=copy.sum_s)
