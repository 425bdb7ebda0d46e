"""What `--json` and `--yaml` of Slurm's lists print: the objects of its data_parser, in which each
field is there, with an empty value of its kind where drfd has nothing for it (`shapes.json`)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import click

from drfd.client.connection import Connection
from drfd.common.signals import name_of
from drfd_cli.slurm import fields, host_name
from drfd_cli.slurm.grammar import SLURM_VERSION

Object = dict[str, Any]


def number(value: float | None = None, *, infinite: bool = False) -> Object:
    """Return a number that may be missing, or be infinite."""
    whole = 0 if value is None else int(value)
    return {"set": value is not None, "infinite": infinite, "number": whole}


#: Kinds of fields in `shapes.json`, and single numbers there → an empty value.
_EMPTY: dict[str, Any] = {
    "text": "", "number": number(), "int": 0, "flag": False, "list": [],
    "#": number(), "oo": number(infinite=True),
}  # fmt: skip


@cache
def _template(name: str) -> Object:
    """Return the fields of a shape, with what stands for their values."""
    with open(os.path.join(os.path.dirname(__file__), "shapes.json")) as file:
        kinds = json.load(file)[name]
    nested = kinds.pop("more", {})
    words = ((each.partition("="), kind) for kind, keys in kinds.items() for each in keys.split())
    return {**{key: value or _EMPTY[kind] for (key, _, value), kind in words}, **nested}


def shape(name: str, view: fields.View) -> Object:
    """Return the object of this shape for what is viewed: the machine in a partition, say."""
    found: Object = _read(_template(name), view)
    return found


def _read(shape: Any, view: Any) -> Any:
    """Return the value that a shape stands for: after % is the sign of a field of a job, after # a
    number of the view, and after = any value of it."""
    match shape:
        case dict():
            return {name: _read(each, view) for name, each in shape.items()}
        case list():
            return [_read(each, view) for each in shape]
        case "#" | "oo":
            return dict(_EMPTY[shape])
        case str() if shape.startswith("%"):
            value = fields.value(shape[1:], view)
            return "" if value in (None, "(null)", "N/A", "n/a") else value
        case str() if shape.startswith("#"):
            return number(view[shape[1:]])
        case str() if shape.startswith("="):
            return view[shape[1:]]
    return shape


# -- jobs --------------------------------------------------------------------------------------

#: The numbers that Slurm's accounting has for kinds of resources, from 1001 on for others.
TRES_IDS = {"cpu": 1, "mem": 2, "node": 4}


def job_object(job: fields.View) -> Object:
    """Return a job as squeue and scontrol have it."""
    return shape("job", _viewed(job))


def accounted(job: fields.View, steps: Iterable[fields.View]) -> Object:
    """Return a job as sacct has it, with its steps."""
    found = [shape("step", _viewed(each)) for each in steps]
    return shape("accounted", {**_viewed(job), "steps": found})


def _viewed(job: fields.View) -> fields.View:
    """Return a job, or a step of one, with what its shapes have besides its own fields."""
    cpus, memory, limit_s = fields.cpus(job), job["demand"]["memory"] >> 20, job["time_limit_s"]
    started, ends = job["started_at"] is not None, job["ended_at"]
    status = "SIGNALED" if job["signal"] else "ERROR" if job["exit_code"] else "SUCCESS"
    if ends is None:
        status = "PENDING"
        if started and limit_s is not None:
            ends = time.time() + limit_s - fields.elapsed_s(job)
    waits = job.get("array_tasks") is not None and job["array_index"] is None
    used_s = fields.used(job, "cpu_seconds") or 0.0
    amounts = {"cpu": cpus, "mem": memory, "node": 1}
    amounts |= {f"gres/{name}": count for name, count in job["demand"]["gres"].items()}
    tres = [_resource(kind, count) for kind, count in amounts.items()]
    peak = _resource("mem", fields.used(job, "memory_peak") or 0)
    allocation = {
        "index": 0, "name": host_name(), "cpus": {"count": cpus, "used": 0},
        "memory": {"used": 0, "allocated": memory}, "sockets": [],
    }  # fmt: skip
    return {
        **job, "host": host_name(), "one": 1, "cpus": cpus, "memory_mib": memory,
        "status": [status], "signal": job["signal"] or None,
        "signal_name": (name_of(job["signal"]) if job["signal"] else "") or "",
        "is_held": job["state"] == "HELD", "raw_id": fields.raw_id(job),
        "gid": fields.group(job["uid"])[1] or 0, "may_restart": job.get("retry") is not None,
        "of_array": int(job["array_id"] or (job["id"] if waits else 0)),
        "tasks": job.get("array_tasks") or "",
        "limit": number(limit_s and limit_s // 60, infinite=limit_s is None),
        "starts": job["started_at"] or job["expected_start_at"] or 0, "ends": ends or 0,
        "suspends": job.get("suspended_at") or 0,
        "eligible": int(job["eligible_at"] or 0), "ended": int(job["ended_at"] or 0),
        "started": int(job["started_at"] or 0), "submitted": int(job["submitted_at"]),
        "waited": fields.waited_s(job),
        "suspended": int(job.get("suspended_seconds", 0)),
        "cpu_s": int(used_s), "cpu_us": int(used_s % 1 * 1e6),
        "nodes": int(started), "on": host_name() * started,
        "allocation": [allocation] * started, "allocated": tres * started, "requested": tres,
        "tres": fields.value("{alloctres}", job) if started else "",
        "peak": [peak], "peak_of_task": [{**peak, "node": host_name(), "task": 0}],
    }  # fmt: skip


def _resource(kind: str, count: int) -> Object:
    kind, _, name = kind.partition("/")
    return {"type": kind, "name": name, "id": TRES_IDS.get(kind, 1001), "count": int(count)}


# -- printing ----------------------------------------------------------------------------------


def is_asked(found: Mapping[str, object]) -> bool:
    return "json" in found or "yaml" in found


def show(found: Mapping[str, object], client: Connection, **objects: list[Object]) -> None:
    """Print what `--json` or `--yaml` asks for, with what else Slurm tells."""
    version = dict(zip(("major", "minor", "micro"), SLURM_VERSION.split("."), strict=True))
    told: Object = {
        **objects, **dict.fromkeys(("last_backfill", "last_update"), number(time.time())),
        "meta": shape("meta", {
            "user": client.request("hello")["user"], "host": host_name(), "version": version,
            "command": [click.get_current_context().info_name or ""], "release": SLURM_VERSION,
        }),
        "errors": [], "warnings": [],
    }  # fmt: skip
    if "yaml" in found:
        click.echo("\n".join(("---", *_yaml(told, 0))))
    else:
        click.echo(json.dumps(told, indent=2))


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """Yield lines of YAML; its scalars and empty collections are those of JSON."""
    pairs = value.items() if isinstance(value, dict) else [(None, each) for each in value]
    for key, each in pairs:
        head = "  " * depth + ("-" if key is None else f"{json.dumps(key)}:")
        if isinstance(each, dict | list) and each:
            yield head
            yield from _yaml(each, depth + 1)
        else:
            yield f"{head} {json.dumps(each)}"
