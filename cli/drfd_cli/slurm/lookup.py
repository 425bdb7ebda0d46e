"""What Slurm's lists need beyond the daemon's own: partitions, users, expected starts, and the
machine as the one node of a cluster."""

from __future__ import annotations

import math
import os
import pwd
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection, count_resources
from drfd.client.words import Ref, parse_ids
from drfd.common.errors import Refused
from drfd.common.units import MAIN
from drfd_cli import output
from drfd_cli.slurm import fields, host_name, known
from drfd_cli.slurm.grammar import SLURM_VERSION, parts

if TYPE_CHECKING:
    from drfd.protocol.replies import WindowView

#: Options by their long names, each with its values.
Found = Mapping[str, list[str]]
#: Seconds that squeue knows a job after its end.
KNOWN_S = 300
#: Waiting jobs that are asked about one by one.
_MOST = 50


def partitions(client: Connection) -> list[str]:
    """Return the names of all partitions: the machine's, and those of the pools."""
    pools = client.request("recent")["pools"]
    return list(dict.fromkeys((MAIN, *(pool.rsplit(".", 1)[-1] for pool in pools))))


def check_partitions(client: Connection, names: Iterable[str]) -> None:
    """Raise Refused if one of them is neither a partition nor a pool."""
    names = set(names)
    if not names:
        return
    pools = client.request("recent")["pools"]
    there = {MAIN, *partitions(client), *pools, *(f"root.{pool}" for pool in pools)}
    # A user in no pool has a place of that name in the tree.
    there |= {node["path"] for node in client.request("shares")["nodes"]}
    there |= {path.rsplit(".", 1)[-1] for path in there}
    for name in sorted(names - there):
        raise Refused("no-partition", f"there is no partition {name}", hint="sinfo lists them")


def user_names(client: Connection, words: Iterable[str]) -> list[str]:
    """Return the names of users, of whom some may be given by number. Raises Refused for those whom
    neither this machine nor the daemon knows."""
    # Imported here because it takes long to load.
    from drfd.linux.user_database import written_name

    found = []

    def there() -> set[str]:
        paths = [node["path"] for node in client.request("shares")["nodes"]]
        own, recent = client.request("hello")["user"], client.request("recent")["users"]
        return {own, *recent, *(path.rsplit(".", 1)[-1] for path in paths)}

    for word in words:
        name = word
        with suppress(KeyError, OverflowError):
            if not word.isdecimal():
                pwd.getpwnam(word)
                found.append(written_name(word))
                continue
            name = written_name(pwd.getpwuid(int(word)).pw_name)
        if name == word and name not in there():
            raise Refused("no-user", f"there is no user {word}")
        found.append(name)
    return found


def pool_names(job: fields.View) -> set[str]:
    """Return the names by which the job's pool can be meant."""
    path: str = job["pool"]
    return {path, path.removeprefix("root."), path.rsplit(".", 1)[-1]}


def filters(found: Found) -> Callable[[fields.View], bool]:
    """Return a test of jobs for the options that name names, partitions, accounts and the like."""

    def words(*options: str) -> set[str]:
        return set(parts([value for option in options for value in found.get(option, [])]))

    names, pools = words("name", "jobname"), words("partition")
    accounts = words("account", "accounts")
    # What there is but one of, or none.
    is_here = host_name() in words("nodelist") or "nodelist" not in found
    is_here &= bool({"normal"} & words("qos")) or "qos" not in found
    none = {"reservation", "wckeys", "associations", "flags", "reason", "constraints", "extra"}
    is_here &= none.isdisjoint(found) and _is_in(found, "nnodes", 1)
    licenses, groups = words("licenses"), words("gid", "group")

    def passes(job: fields.View) -> bool:
        own = pool_names(job)
        return (
            is_here
            and (not names or job["name"] in names)
            and (not pools or MAIN in pools or not pools.isdisjoint(own))
            and (not accounts or not accounts.isdisjoint(own))
            and (not licenses or not licenses.isdisjoint(job["demand"]["gres"]))
            and (not groups or not groups.isdisjoint(map(str, fields.group(job["uid"]))))
            and _is_in(found, "ncpus", fields.cpus(job))
        )

    return passes


class Choice:
    """Which jobs the options of a list choose."""

    def __init__(self, client: Connection, found: Found) -> None:
        """Raises UsageError and Refused."""
        words = parts([word for each in ("jobs", "job", "steps") for word in found.get(each, [])])
        self.steps = [word for word in words if "." in word]
        self.ids = parse_ids(",".join(word.partition(".")[0] for word in words)) if words else []
        named = parts([*found.get("user", []), *found.get("uid", [])])
        self.users = set(user_names(client, named))
        #: None for all, and none for those in which there never is a job here.
        self.states = states_of(found)
        self._client, self._passes = client, filters(found)

    def select(self) -> dict[str, Any]:
        user = next(iter(self.users)) if len(self.users) == 1 else None
        return {"ids": self.ids, "user": user, "states": self.states or []}

    def queued(self, *, tasks: bool = False) -> list[fields.View] | None:
        """Return the jobs in the queue, or those with the ids, without those that nobody knows, as
        Slurm does; None if there was one id, of no job."""
        return [] if self.states == [] else self._queued(self.ids, tasks=tasks)

    def _queued(self, ids: list[Ref], *, tasks: bool) -> list[fields.View] | None:
        select = {**self.select(), "ids": ids}
        try:
            return list(self._client.jobs("status", select=select, tasks=tasks))
        except Refused as error:
            if error.code != "no-such-job":
                raise
        if len(ids) == 1:
            return None
        half = len(ids) // 2
        found = [self._queued(each, tasks=tasks) for each in (ids[:half], ids[half:])]
        return [job for jobs in found for job in jobs or ()]

    def of(self, jobs: Iterable[fields.View]) -> list[fields.View]:
        return [
            job
            for job in jobs
            if (not self.users or job["user"] in self.users)
            and (self.states is None or job["state"] in self.states)
            and self._passes(job)
        ]


def states_of(found: Found) -> list[str] | None:
    """Return the states that Slurm's words mean, long or short; None for all of them, and none for
    those in which there never is a job here. Raises UsageError."""
    words = parts(found.get("states", found.get("state", ["all"])))
    if any(word.lower() == "all" for word in words):
        return None
    for word in words:
        if word.upper() not in (*known.STATES, *known.STATES.values()):
            there = ", ".join(
                f"{long} ({short})" if short else long for long, short in known.STATES.items()
            )
            raise click.UsageError(f"there is no state {word}; there are: {there}")
    asked = {word.upper() for word in words}
    return [name for name, names in fields.STATES.items() if not asked.isdisjoint(names)]


def _is_in(found: Found, option: str, number: int) -> bool:
    """Return whether the number is in the range of this option, if it is given. Raises
    UsageError."""
    if option not in found:
        return True
    given = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", found[option][-1])
    if given is None:
        raise click.UsageError(f"--{option}={found[option][-1]} is not a number or a range, 2-8")
    return int(given[1]) <= number <= int(given[2] or given[1])


def with_starts(client: Connection, jobs: list[fields.View]) -> list[fields.View]:
    """Return the jobs, the first of those that wait with what the daemon says of each alone: its
    expected start, and what it waits for."""
    found: list[fields.View] = []
    left = _MOST
    for job in jobs:
        if job["state"] in ("PENDING", "HELD") and job["expected_start_at"] is None and left:
            left -= 1
            with suppress(Refused):
                first = re.match("[0-9]+", job.get("array_tasks") or "")
                ref = f"{job['array_id']}_{first[0]}" if first else job["id"]
                told = client.request("why", id=ref)["job"]
                # A row of several tasks has what one task does not have.
                found.append({**told, **output.pick(job, ("array_tasks", "tasks", "array_index"))})
                continue
        found.append(job)
    return found


def key_of(job: fields.View) -> tuple[int, str]:
    """Return what no other row of a list has: waiting tasks of one array may have several rows."""
    return job["id"], job.get("array_tasks") or ""


def just_ended(client: Connection, **select: object) -> list[fields.View]:
    """Return the jobs that squeue still knows though they have ended, the latest last."""
    past = {"since_s": time.time() - KNOWN_S, **select}
    found = client.jobs("history", past={key: each for key, each in past.items() if each})
    return list(found)[::-1]


def as_reservation(window: WindowView) -> dict[str, object]:
    """Return a maintenance window, which is a reservation in Slurm, with what is shown of it."""
    return {
        **window, "ReservationName": output.clean(window["name"]),
        "StartTime": fields.moment(window["start"]), "EndTime": fields.moment(window["end"]),
        "Duration": fields.span(window["end"] - window["start"], whole=True), "Nodes": host_name(),
        "State": "ACTIVE" if window["start"] <= time.time() else "INACTIVE",
    }  # fmt: skip


# -- the machine -------------------------------------------------------------------------------

#: Short names of states → long ones.
_LONG = {"mix": "mixed", "alloc": "allocated", "drain": "drained", "drng": "draining"}

#: Signs of `sinfo -o` with their heads and what they hold, and names of `-O` → their signs.
NODE_SIGNS, NODE_WORDS = fields.by_sign((words, value.format_map) for words, value in known.SINFO)


def is_in(node: fields.View, words: Iterable[str]) -> bool:
    """Return whether the machine is in one of these states, short or long; `a&b` is both. Raises
    UsageError."""
    own = {"all", node["state"], node["long_state"], *(["drain"] if node["by"] else [])}
    asked = [[each.rstrip("*~#!%$@^-+") for each in word.lower().split("&")] for word in words]
    for each in (each for some in asked for each in some if each not in known.NODE_STATES):
        there = ", ".join(known.NODE_STATES)
        raise click.UsageError(f"there is no state {each}; there are: {there}")
    return any(own.issuperset(some) for some in asked)


def read_nodes(client: Connection) -> list[fields.View]:
    """Return the machine in each partition: what it has, how much of it is free, and whether jobs
    start."""
    shares = client.request("shares")
    status = client.request("status", limit=1)
    capacity, free = shares["capacity"], shares["free"]
    counts = count_resources(client, capacity["gres"])
    cpus, memory, free_bytes = int(capacity["cores"]), capacity["memory"], max(0, free["memory"])
    external = shares.get("external")
    outside = 0 if external is None else math.ceil(external["cores"] - external["kept"]["cores"])
    unused = max(0, int(free["cores"]))
    # What processes outside drfd use of the cores that jobs could have.
    outside = min(unused, max(0, outside))
    idle = unused - outside
    state = "idle" if idle == cpus else "mix" if idle > 0 else "alloc"
    states = [_LONG.get(state, state).upper()]
    by, drain = "", status.get("drain")
    if status["draining"]:
        state = "drain" if state == "idle" else "drng"
        states = ["IDLE" if state == "drain" else "MIXED", "DRAIN"]
        by = "root" if drain is None else output.clean(drain["by"])
    reason = "" if drain is None else output.clean(drain["reason"] or "", 200)
    since_s = None if drain is None else drain["since"]
    tres, names = f"cpu={cpus},mem={memory >> 20}M", partitions(client)
    gres = ",".join(f"{name}:{count}" for name, count in counts.items())
    node = {
        "name": host_name(), "version": SLURM_VERSION, "cpus": cpus, "alloc": cpus - idle,
        "idle": idle, "used": cpus - unused, "free": 0 if by else idle,
        "other": unused if by else outside, "memory_mib": memory >> 20,
        "used_mib": memory - free_bytes >> 20, "free_mib": free_bytes >> 20,
        "load": f"{os.getloadavg()[0]:.2f}", "load_percent": os.getloadavg()[0] * 100,
        "gres": gres, "gres_or_null": gres or "(null)", "state": state,
        "long_state": _LONG.get(state, state), "upper_state": _LONG.get(state, state).upper(),
        "states": states,
        "nodes_used": int(not by and state != "idle"), "nodes_idle": int(state == "idle"),
        "nodes_other": int(bool(by)),
        # Who has stopped it, if jobs do not start, why, and since when.
        "by": by, "by_or_unknown": by or "Unknown", "reason": reason,
        "reason_or_none": reason or "none", "since": since_s,
        "timestamp": fields.moment(since_s, "Unknown"),
        "tres": tres, "tres_of_node": f"{tres},node=1",
        "tres_used": f"cpu={cpus - idle},mem={memory - free_bytes >> 20}M",
        "partitions": names, "partition_names": ",".join(names),
    }  # fmt: skip
    # The usual partition has a star in the list.
    usual = {"is_usual": "YES", "mark": "*"}
    return [
        {**node, "partition": name, "is_usual": "NO", "mark": "", **(usual if name == MAIN else {})}
        for name in names
    ]
