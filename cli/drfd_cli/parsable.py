"""Lists for programs: one line for each thing, columns split by tabs, the same in every release.

Sizes are bytes, rates bytes per second, times Unix seconds; what is not known is empty. No value
holds a tab or a line end, whatever somebody called a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from drfd_cli.output import View, clean, why_line

Columns = Mapping[str, Callable[[View], Any]]

#: New columns are added at the end, and none is ever renamed.
JOB: Columns = {
    "id": lambda job: job["id"],
    "name": lambda job: job["name"],
    "user": lambda job: job["user"],
    "pool": lambda job: job["pool"],
    "state": lambda job: job["state"],
    "code": lambda job: (job["reason"] or job["outcome"] or {}).get("code"),
    "cores": lambda job: job["demand"]["cores"],
    "memory": lambda job: job["demand"]["memory"],
    "read": lambda job: job["demand"]["read"],
    "write": lambda job: job["demand"]["write"],
    "time_limit_s": lambda job: job["time_limit_s"],
    "priority": lambda job: job["priority"],
    "attempt": lambda job: job["attempt"],
    "submitted_at": lambda job: job["submitted_at"],
    "started_at": lambda job: job["started_at"],
    "ended_at": lambda job: job["ended_at"],
    "exit_code": lambda job: job["exit_code"],
    "signal": lambda job: job["signal"],
    "why": why_line,
    "array_id": lambda job: job["array_id"],
    "array_index": lambda job: job["array_index"],
    "array_tasks": lambda job: job.get("array_tasks"),
    "gres": lambda job: _counts(job["demand"]["gres"]),
    "gres_instances": lambda job: _lists(job.get("gres_instances", {})),
}

NODE: Columns = {
    "path": lambda node: node["path"],
    "entitlement": lambda node: node["entitlement"],
    "dominant_share": lambda node: node["dominant_share"],
    "dominant_resource": lambda node: node["dominant_resource"],
    "satisfaction": lambda node: node["satisfaction"],
    "cores": lambda node: node["usage"]["cores"],
    "memory": lambda node: node["usage"]["memory"],
    "read": lambda node: node["usage"]["read"],
    "write": lambda node: node["usage"]["write"],
    "running": lambda node: node["running"],
    "pending": lambda node: node["pending"],
    "gres": lambda node: _counts(node["usage"]["gres"]),
}


def _counts(counts: Mapping[str, int]) -> str:
    """`gpu=2,tape=1`."""
    return ",".join(f"{name}={count}" for name, count in counts.items())


def _lists(instances: Mapping[str, Sequence[str]]) -> str:
    """`gpu=0,1;tape=left`."""
    return ";".join(f"{name}={','.join(each)}" for name, each in instances.items())


def print_lines(
    columns: Columns,
    views: Sequence[View],
    *,
    parsable: bool,
    no_header: bool,
    chosen: Sequence[str] | None,
) -> bool:
    """False, and nothing is printed, unless this is what was asked for."""
    if not (parsable or no_header or chosen):
        return False
    names = chosen or list(columns)
    lines = [] if no_header else ["\t".join(names)]
    for view in views:
        lines.append("\t".join(_word(columns[name](view)) for name in names))
    if lines:
        click.echo("\n".join(lines))
    return True


def _word(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.9f}".rstrip("0").rstrip(".")
        case _:
            return clean(value, 4096)
