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
from drfd_cli.slurm.lookup import NodeInfo

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


def _shape(name: str, values: Object, job: fields.View | None = None) -> Object:
    """Return an object of this shape with these values, within objects, too."""
    return _merged(_read(_template(name), job), values)


def _read(shape: Any, job: Any) -> Any:
    """Return the value that a shape stands for: after % is the sign of a field of the job, and
    after # a number of its own."""
    match shape:
        case dict():
            return {name: _read(each, job) for name, each in shape.items()}
        case list():
            return [_read(each, job) for each in shape]
        case "#" | "oo":
            return dict(_EMPTY[shape])
        case str() if shape.startswith("%"):
            text = fields.value(shape[1:], job)
            return "" if text in ("(null)", "N/A", "n/a") else text
        case str() if shape.startswith("#"):
            return number(job[shape[1:]])
    return shape


def _merged(whole: Object, values: Object) -> Object:
    for name, value in values.items():
        old = whole.get(name)
        if isinstance(value, dict) and isinstance(old, dict) and "infinite" not in old:
            value = _merged(old, value)
        whole[name] = value
    return whole


# -- jobs --------------------------------------------------------------------------------------

#: The numbers that Slurm's accounting has for kinds of resources, from 1001 on for others.
TRES_IDS = {"cpu": 1, "mem": 2, "node": 4}


def _common(job: fields.View) -> Object:
    """Return what squeue, scontrol and sacct have alike of a job."""
    if job["ended_at"] is None:
        status = "PENDING"
    else:
        status = "SIGNALED" if job["signal"] else "ERROR" if job["exit_code"] else "SUCCESS"
    name = name_of(job["signal"]) if job["signal"] else ""
    code = {
        "status": [status], "return_code": number(job["exit_code"]),
        "signal": {"id": number(job["signal"] or None), "name": name or ""},
    }  # fmt: skip
    return {
        "derived_exit_code": code, "exit_code": code, "hold": job["state"] == "HELD",
        "job_id": fields.raw_id(job), "restart_cnt": max(0, job["attempt"] - 1),
    }  # fmt: skip


def _limit(job: fields.View) -> Object:
    """Return the time limit in minutes."""
    limit_s = job["time_limit_s"]
    return number(None if limit_s is None else limit_s // 60, infinite=limit_s is None)


def _array_id(job: fields.View) -> int:
    waits = job.get("array_tasks") is not None and job["array_index"] is None
    return int(job["array_id"] or (job["id"] if waits else 0))


def job_object(job: fields.View) -> Object:
    """Return a job as squeue and scontrol have it."""
    cpus, memory = fields.cpus(job), job["demand"]["memory"] >> 20
    started, ends = job["started_at"] is not None, job["ended_at"]
    if ends is None and started and job["time_limit_s"] is not None:
        ends = time.time() + job["time_limit_s"] - fields.elapsed_s(job)
    allocated = {
        "index": 0, "name": host_name(), "cpus": {"count": cpus, "used": 0},
        "memory": {"used": 0, "allocated": memory}, "sockets": [],
    }  # fmt: skip
    return _shape("job", _common(job) | {
        "array_job_id": number(_array_id(job)),
        "array_task_string": job.get("array_tasks") or "", "batch_flag": True,
        "cpus": number(cpus), "cpus_per_task": number(cpus),
        "end_time": number(ends or 0),
        "group_id": fields.group(job["uid"])[1] or 0,
        "job_resources": {
            "cpus": cpus, "nodes": {
                "count": int(started), "list": host_name() * started,
                "allocation": [allocated] * started,
            },
        },
        "memory_per_node": number(memory),
        "minimum_cpus_per_node": number(cpus), "nice": -job["priority"], "node_count": number(1),
        "requeue": job.get("retry") is not None,
        "start_time": number(job["started_at"] or job["expected_start_at"] or 0),
        "suspend_time": number(job.get("suspended_at") or 0), "tasks": number(1),
        "time_limit": _limit(job), "user_id": job["uid"],
        "tres_alloc_str": fields.value("{alloctres}", job) if started else "",
    }, job)  # fmt: skip


def _tres(job: fields.View) -> list[Object]:
    amounts = {"cpu": fields.cpus(job), "mem": job["demand"]["memory"] >> 20, "node": 1}
    amounts |= {f"gres/{name}": count for name, count in job["demand"]["gres"].items()}
    return [_resource(kind, count) for kind, count in amounts.items()]


def _resource(kind: str, count: int) -> Object:
    kind, _, name = kind.partition("/")
    return {"type": kind, "name": name, "id": TRES_IDS.get(kind, 1001), "count": int(count)}


def _times(job: fields.View) -> Object:
    used_s = fields.used(job, "cpu_seconds") or 0.0
    return {
        "elapsed": int(fields.elapsed_s(job)), "suspended": int(job.get("suspended_seconds", 0)),
        "total": {"seconds": int(used_s), "microseconds": int(used_s % 1 * 1e6)},
    }  # fmt: skip


def accounted(job: fields.View, steps: Iterable[fields.View]) -> Object:
    """Return a job as sacct has it, with its steps."""
    started = job["started_at"] is not None
    return _shape("accounted", _common(job) | {
        "allocation_nodes": int(started),
        "array": {"job_id": _array_id(job), "task": job.get("array_tasks") or ""},
        "required": {
            "CPUs": fields.cpus(job), "memory_per_node": number(job["demand"]["memory"] >> 20),
        },
        "steps": [_step(each) for each in steps],
        "time": {
            **_times(job), "eligible": int(job["eligible_at"]), "end": int(job["ended_at"] or 0),
            "start": int(job["started_at"] or 0), "submission": int(job["submitted_at"]),
            "limit": _limit(job), "planned": number(fields.waited_s(job)),
        },
        "tres": {"allocated": _tres(job) if started else [], "requested": _tres(job)},
    }, job)  # fmt: skip


def _step(step: fields.View) -> Object:
    peak = _resource("mem", fields.used(step, "memory_peak") or 0)
    most = [{**peak, "node": host_name(), "task": 0}]
    used = {"max": most, "min": most, "average": [peak], "total": [peak]}
    return _shape("step", {
        "exit_code": _common(step)["exit_code"], "state": [fields.value("T", step)],
        "nodes": {"range": host_name(), "list": [host_name()]},
        "tasks": {"count": step.get("tasks_of_step", 1)},
        "time": {
            **_times(step), "end": number(step["ended_at"]), "start": number(step["started_at"]),
        },
        "tres": {"allocated": _tres(step), "consumed": used, "requested": used},
    }, step)  # fmt: skip


# -- the machine -------------------------------------------------------------------------------


def _node_state(machine: NodeInfo) -> list[str]:
    if machine.by is None:
        return [machine.long_state.upper()]
    return ["IDLE" if machine.state == "drain" else "MIXED", "DRAIN"]


def node_object(machine: NodeInfo, partitions: list[str]) -> Object:
    """Return the machine as scontrol has it."""
    used = machine.memory_bytes - machine.free_memory_bytes
    return _shape("node", {
        "address": machine.name, "alloc_cpus": machine.cpus - machine.idle,
        "alloc_idle_cpus": machine.idle, "alloc_memory": used >> 20, "boards": 1,
        "cluster_name": host_name(), "cores": 1, "cpu_load": number(machine.load * 100),
        "cpus": machine.cpus, "effective_cpus": machine.cpus,
        "free_mem": number(machine.free_memory_bytes >> 20),
        "gres": machine.gres.replace("(null)", ""), "hostname": machine.name,
        "name": machine.name, "partitions": partitions, "real_memory": machine.memory_bytes >> 20,
        "reason": "" if machine.reason == "none" else machine.reason,
        "reason_changed_at": number(machine.since_s), "reason_set_by_user": machine.by or "",
        "sockets": machine.cpus, "state": _node_state(machine), "threads": 1,
        "tres": f"cpu={machine.cpus},mem={machine.memory_bytes >> 20}M",
        "tres_used": f"cpu={machine.cpus - machine.idle},mem={used >> 20}M",
        "version": SLURM_VERSION, "weight": 1,
    })  # fmt: skip


def partition_object(machine: NodeInfo, name: str) -> Object:
    return _shape("partition", {
        "cpus": {"total": machine.cpus}, "maximums": {"nodes": number(1)}, "name": name,
        "nodes": {"configured": machine.name},
        "tres": {"configured": machine.tres},
    })  # fmt: skip


def sinfo_object(machine: NodeInfo, name: str) -> Object:
    """Return a row of sinfo: the machine in a partition."""
    shown = {text.split()[0]: value for text, value in machine.fields(name).items()}
    kinds = ("allocated", "idle", "other", "total")
    cpus, nodes = (dict(zip(kinds, map(int, shown[at].split("/")), strict=True)) for at in "CF")

    def both(value: object) -> Object:
        return {"minimum": value, "maximum": value}

    return _shape("sinfo", {
        "cluster": host_name(), "reason": {
            "description": "" if machine.reason == "none" else machine.reason,
            "time": number(machine.since_s), "user": machine.by or "",
        },
        "cpus": cpus | both(machine.cpus) | {"load": both(number(machine.load * 100))},
        "gres": {"total": machine.gres.replace("(null)", "")},
        "memory": both(machine.memory_bytes >> 20) | {
            "allocated": machine.memory_bytes - machine.free_memory_bytes >> 20,
            "free": both(number(machine.free_memory_bytes >> 20)),
        },
        "node": {"state": _node_state(machine)},
        "nodes": nodes | {key: [machine.name] for key in ("hostnames", "addresses", "nodes")},
        "partition": partition_object(machine, name), "sockets": both(machine.cpus),
    })  # fmt: skip


def reservation_object(window: Mapping[str, Any]) -> Object:
    """Return a maintenance window as a reservation."""
    return _shape("reservation", {
        "end_time": number(window["end"]), "flags": ["MAINT", "ALL_NODES"],
        "name": window["name"], "node_count": 1, "node_list": host_name(),
        "start_time": number(window["start"]),
    })  # fmt: skip


# -- printing ----------------------------------------------------------------------------------


def is_asked(found: Mapping[str, object]) -> bool:
    return "json" in found or "yaml" in found


def show(found: Mapping[str, object], client: Connection, **objects: list[Object]) -> None:
    """Print what `--json` or `--yaml` asks for, with what else Slurm tells."""
    version = dict(zip(("major", "minor", "micro"), SLURM_VERSION.split("."), strict=True))
    told: Object = {
        **objects, **dict.fromkeys(("last_backfill", "last_update"), number(time.time())),
        "meta": _shape("meta", {
            "client": {"user": client.request("hello")["user"]},
            "command": [click.get_current_context().info_name or ""],
            "slurm": {"version": version, "release": SLURM_VERSION, "cluster": host_name()},
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
