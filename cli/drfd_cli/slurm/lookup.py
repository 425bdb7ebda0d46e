"""What Slurm's lists need beyond the daemon's own: partitions, users, expected starts."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from drfd.client.connection import Connection
from drfd.common.errors import Refused
from drfd.linux.user_database import written_name
from drfd_cli.slurm import fields
from drfd_cli.slurm.batch_script import PARTITION, host_name
from drfd_cli.slurm.grammar import parts

#: Options by their long names, each with its values.
Found = Mapping[str, list[str]]
#: Seconds that squeue knows a job after its end.
KNOWN_S = 300
#: Waiting jobs that are asked about one by one.
_MOST = 50


def partitions(client: Connection) -> list[str]:
    """Return the names of all partitions: the machine's, and those of the pools."""
    pools = client.request("recent")["pools"]
    return list(dict.fromkeys((PARTITION, *(pool.rsplit(".", 1)[-1] for pool in pools))))


def check_partitions(client: Connection, names: Iterable[str]) -> None:
    """Raise Refused if one of them is neither a partition nor a pool."""
    names = set(names)
    if not names:
        return
    pools = client.request("recent")["pools"]
    known = {PARTITION, *partitions(client), *pools, *(f"root.{pool}" for pool in pools)}
    # A user in no pool has a place of that name in the tree.
    known |= {node["path"] for node in client.request("shares")["nodes"]}
    known |= {path.rsplit(".", 1)[-1] for path in known}
    for name in sorted(names - known):
        raise Refused("no-partition", f"there is no partition {name}", hint="sinfo lists them")


def user_names(client: Connection, words: Iterable[str]) -> list[str]:
    """Return the names of users, of whom some may be given by number. Raises Refused for those whom
    neither this machine nor the daemon knows."""
    found = []
    for word in words:
        name = word
        with suppress(KeyError, OverflowError):
            if not word.isdecimal():
                pwd.getpwnam(word)
                found.append(written_name(word))
                continue
            name = written_name(pwd.getpwuid(int(word)).pw_name)
        if name == word and name not in _users_of(client):
            raise Refused("no-user", f"there is no user {word}")
        found.append(name)
    return found


def _users_of(client: Connection) -> set[str]:
    paths = [node["path"] for node in client.request("shares")["nodes"]]
    own = client.request("hello")["user"]
    return {own, *client.request("recent")["users"], *(path.rsplit(".", 1)[-1] for path in paths)}


def filters(found: Found) -> Callable[[Mapping[str, Any]], bool]:
    """Return a test of jobs for the options that name names, partitions, accounts and the like."""

    def words(*options: str) -> set[str]:
        return set(parts([value for option in options for value in found.get(option, [])]))

    names, pools = words("name", "jobname"), words("partition")
    accounts = words("account", "accounts")
    # What there is but one of, or none.
    is_here = host_name() in words("nodelist") or "nodelist" not in found
    is_here &= bool({"normal"} & words("qos")) or "qos" not in found
    is_here &= "reservation" not in found

    def passes(job: Mapping[str, Any]) -> bool:
        own = {job["pool"], job["pool"].removeprefix("root."), job["pool"].rsplit(".", 1)[-1]}
        return (
            is_here
            and (not names or job["name"] in names)
            and (not pools or PARTITION in pools or not pools.isdisjoint(own))
            and (not accounts or not accounts.isdisjoint(own))
        )

    return passes


def with_starts(client: Connection, jobs: list[fields.View]) -> list[fields.View]:
    """Return the jobs, the first of those that wait with what the daemon says of each alone: its
    expected start, and what it waits for."""
    found: list[fields.View] = []
    left = _MOST
    for job in jobs:
        if job["state"] in ("PENDING", "HELD") and job["expected_start_at"] is None and left:
            left -= 1
            with suppress(Refused):
                told = client.request("why", id=_ref(job))["job"]
                found.append({**told, **_own(job)})
                continue
        found.append(job)
    return found


def _ref(job: fields.View) -> int:
    return int(job["id"])


def _own(job: fields.View) -> dict[str, Any]:
    """Return the fields of a row of several tasks, which one task does not have."""
    return {key: job[key] for key in ("array_tasks", "tasks", "array_index") if key in job}
