"""Slurm's commands about accounts, priorities and shares: sacctmgr, sdiag, sprio, sshare and sstat,
as far as drfd has what they show. None of them changes anything."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import click

from drfd.client.connection import Connection
from drfd.client.words import parse_past
from drfd.common.errors import Refused
from drfd.common.units import MAIN
from drfd_cli import output
from drfd_cli.commands.slurm_lists import columns, print_rows, print_table, steps_of
from drfd_cli.options import connect
from drfd_cli.slurm import data, fields, host_name, known, lookup
from drfd_cli.slurm.grammar import (
    SACCTMGR,
    SDIAG,
    SPRIO,
    SSHARE,
    SSTAT,
    parts,
    slurm_command,
    version,
)

#: The values of a row by its heads.
Row = Mapping[str, str]


def _print_rows(
    found: Mapping[str, list[str]], text: str, names: str, rows: list[dict[str, str]]
) -> None:
    """Print the fields that are named of these names of fields."""
    columns = fields.columns_of(text, fields.named([(names, fields.always(""))]))
    cells = [[output.clean(row.get(head, ""), 1000) for head, *_ in columns] for row in rows]
    print_table(found, columns, cells)


def _refuse_json(found: Mapping[str, object], name: str) -> None:
    if data.is_asked(found):
        raise click.UsageError(f"{name} has no --json and no --yaml here")


# -- accounts ----------------------------------------------------------------------------------


def _leaves(client: Connection) -> Iterator[tuple[str, str, fields.View]]:
    """Yield the account and the user (none for the account itself) of each node of the tree, the
    caller's among them. A user in no pool has an account of that name."""
    pools = {f"root.{pool}" for pool in client.request("recent")["pools"]}
    seen = set()
    for node in client.request("shares")["nodes"]:
        account, _, last = node["path"].rpartition(".")
        if node["path"] == "root" or node["path"] in pools:
            yield node["path"], "", node
            continue
        if account not in pools:
            account = node["path"]
            yield account, "", node
        seen.add(last)
        yield account, last, node
    caller = client.request("hello")["user"]
    if caller not in seen:
        yield f"root.{caller}", caller, {}


def _share(node: fields.View) -> str:
    weight = node.get("weight", 1)
    return f"{max(weight.values()) if isinstance(weight, dict) else weight:g}"


def _rows(client: Connection, entity: str) -> list[dict[str, str]]:
    """Return the rows of an entity, each with its own name, too."""
    usual = {"Cluster": host_name(), "QOS": "normal", "Def QOS": "normal", "Admin": "None"}
    leaves = [(account, user, node) for account, user, node in _leaves(client)]
    match entity:
        case "account":
            names = dict.fromkeys(account for account, _, _ in leaves)
            return [{**usual, "Account": each, "Name": each, "Descr": each, "Org": host_name()}
                    for each in names]  # fmt: skip
        case "association":
            return [
                {**usual, "Account": account, "User": user, "Share": _share(node),
                 "Par Name": "" if user else account.rpartition(".")[0]}
                for account, user, node in leaves
            ]  # fmt: skip
        case "user":
            caller = client.request("hello")
            admins = {caller["user"]} if caller["admin"] else set()
            # The account of a user in several pools is the first of them.
            accounts = {user: account for account, user, _ in reversed(leaves) if user}
            return [
                {**usual, "User": user, "Name": user, "Def Acct": account, "Account": account,
                 "Admin": "Administrator" if user in admins else "None"}
                for user, account in reversed(accounts.items())
            ]  # fmt: skip
        case "qos":
            return [{
                "Name": "normal", "Priority": "0", "GraceTime": "00:00:00",
                "PreemptMode": "cluster", "UsageFactor": "1.000000", "ID": "1",
            }]  # fmt: skip
        case "cluster":
            return [{
                **usual, "Name": host_name(), "ControlHost": host_name(), "ControlPort": "0",
                "RPC": "0", "Share": "1", "TRES": lookup.read_nodes(client)[0]["tres_of_node"],
                "NodeCount": "1", "NodeNames": host_name(),
            }]  # fmt: skip
        case "tres":
            gres = [f"gres/{name}" for name in client.request("shares")["capacity"]["gres"]]
            ids = data.TRES_IDS | dict(zip(gres, range(1001, 2001), strict=False))
            return [
                {"Type": kind, "Name": name, "ID": str(number)}
                for (kind, _, name), number in ((each.partition("/"), ids[each]) for each in ids)
            ]
    return []


@slurm_command(
    SACCTMGR,
    "show accounts, users and their shares, as `drf shares` does",
    "[OPTIONS] show ENTITY [KEY=VALUE...]",
    more=lambda: [f"Of show: {', '.join(known.ACCOUNTING)}."],
)
def sacctmgr(words: list[str]) -> int:
    found, rest = SACCTMGR.read(words)
    _refuse_json(found, "sacctmgr")
    verb = rest[0].lower() if rest else ""
    if verb == "version":
        click.echo(version())
        return 0
    if verb == "ping":
        connect().request("hello")
        click.echo(f"slurmdbd(primary) at {host_name()} is UP")
        return 0
    if verb in known.CHANGING:
        raise click.UsageError(
            f"{verb} changes nothing here: pools, weights and limits stand in the configuration"
        )
    if not verb or not ("show".startswith(verb) or "list".startswith(verb)):
        raise click.UsageError(f"there is no {verb or 'command'} here; there is: show")
    named = rest[1].lower() if rest[1:] else ""
    entities = dict(zip(known.ACCOUNTING, known.ACCOUNTING, strict=True))
    entities |= {"acct": "account", "txn": "transactions"}
    near = [each for name, each in entities.items() if named and f"{name}s".startswith(named)]
    if not near:
        there = ", ".join(known.ACCOUNTING)
        raise click.UsageError(f"there is no show {named[:60]}; there are: {there}")
    entity = near[0]
    usual = text = known.ACCOUNTING[entity]
    chosen: dict[str, set[str]] = {}
    with_associations = "associations" in found
    for word in rest[2:]:
        key, sign, value = word.partition("=")
        key = key.lower()
        if key == "format":
            text = value
        elif sign or not key.startswith(("where", "with", "wo", "only", "tree")):
            key = key.rstrip("s").replace("acct", "account") if sign else "name"
            is_own = key == "name" and entity in ("user", "account")
            chosen[entity if is_own else key] = set(parts([value if sign else word]))
        with_associations |= key.startswith("witha")
    if with_associations and entity in ("user", "account"):
        text = f"{text},{known.ACCOUNTING['association']}" if text == usual else text
        entity, usual = "association", text
    rows = _rows(connect(), entity)
    for key, values in chosen.items():
        head = key.capitalize()
        rows = [row for row in rows if head not in row or row[head] in values]
    limits = ("grp", "max", "min")
    if text != usual and any(word.lower().startswith(limits) for word in parts([text])):
        output.say("limits of users and pools stand in the configuration; they are empty here")
    _print_rows(found, text, known.SACCTMGR, rows)
    return 0


@slurm_command(
    SSHARE, "tell the shares of users and pools, as `drf shares` does", has_short_help=False
)
def sshare(words: list[str]) -> int:
    found = SSHARE.read_options(words)
    _refuse_json(found, "sshare")
    client = connect()
    users = set(lookup.user_names(client, parts(found.get("users", []))))
    if not users and "all" not in found:
        users = {client.request("hello")["user"]}
    accounts = set(parts(found.get("accounts", [])))
    rows = []
    for account, user, node in _leaves(client):
        own = {account, account.removeprefix("root."), account.rpartition(".")[2]}
        if (user and "all" not in found and user not in users) or ("Users" in found and not user):
            continue
        if accounts and accounts.isdisjoint(own):
            continue
        ratio, entitled = node.get("satisfaction", 0.0) or 0.0, node.get("entitlement", 0.0)
        indent = "" if {"parsable", "parsable2"} & found.keys() else " " * account.count(".")
        rows.append({
            "Account": indent + account, "User": user, "RawShares": _share(node),
            "NormShares": f"{entitled:.6f}", "EffectvUsage": f"{node.get('dominant_share', 0):.6f}",
            "FairShare": f"{2 ** -ratio:.6f}", "LevelFS": f"{1 / ratio:.6f}" if ratio else "inf",
            "Cluster": host_name(), "Partition": MAIN,
        })  # fmt: skip
    usual = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
    usual += ",LevelFS,GrpTRESMins,TRESRunMins" if "long" in found else ""
    _print_rows(found, found.get("format", [usual])[-1], known.SSHARE, rows)
    return 0


# -- jobs --------------------------------------------------------------------------------------


@slurm_command(SPRIO, "list the jobs that wait, with their priorities", has_short_help=False)
def sprio(words: list[str]) -> int:
    found = SPRIO.read_options(words)
    client = connect()
    chosen = lookup.Choice(client, found)
    chosen.states = ["PENDING", "HELD"]
    jobs = chosen.of(chosen.queued() or [])
    usual = "%.15i %9r %.10Y %.10S"
    if "long" in found:
        usual = "%.15i %9r %.8u %.10Y %.10S %.10A %.10B %.10F %.10J %.10P %.10Q %.11N"
    asked = fields.format_of(found.get("format", [usual])[-1], fields.PRIORITIES)
    print_rows(found, asked, jobs, fields.PRIORITIES)
    if jobs and "format" not in found:
        output.say("it orders the jobs of one user; users are served by shares (drf why ID)")
    return 0


@slurm_command(SSTAT, "tell what running jobs use, as `drf show` does")
def sstat(words: list[str]) -> int:
    found = SSTAT.read_options(words)
    if "helpformat" in found:
        click.echo("\n".join(head for head, _, _ in fields.NAMES.values()))
        return 0
    asked = columns(found, "JobID,MaxRSS,AveRSS,AveCPU,NTasks,MaxDiskRead,MaxDiskWrite")
    client = connect()
    chosen = lookup.Choice(client, found)
    chosen.states = ["RUNNING", "SUSPENDED"]
    if not chosen.ids:
        raise click.UsageError("no job is named: sstat -j ID")
    jobs = chosen.queued() or []
    steps = [step for job in jobs for step in steps_of(job, chosen.steps)]
    if not steps:
        named = ", ".join(parts(found["jobs"]))
        raise Refused("no-step", f"there is no step that runs of {named}")
    print_table(found, asked, fields.rows_by_names(asked, steps, ""))
    return 0


# -- the daemon --------------------------------------------------------------------------------


@slurm_command(SDIAG, "count the jobs of today, as `drf report` does")
def sdiag(words: list[str]) -> int:
    found = SDIAG.read_options(words)
    _refuse_json(found, "sdiag")
    if "reset" in found:
        raise click.UsageError("there is nothing to reset here")
    client = connect()
    counts = client.request("status", limit=1)["counts"]
    since_s = parse_past("today")
    waits = sum(counts.get(state, 0) for state in ("PENDING", "HELD"))
    runs = sum(counts.values()) - waits
    rule, now = "*" * 55, time.time()
    failed = [state for state in output.ENDED if state not in ("COMPLETED", "CANCELLED")]
    ended = {
        name: client.request("report", past={"since_s": since_s, "states": states})["total"]["jobs"]
        for name, states in
        {"completed": ["COMPLETED"], "canceled": ["CANCELLED"], "failed": failed}.items()
    }  # fmt: skip
    click.echo(
        f"{rule}\nsdiag output at {time.ctime(now)} ({now:.0f})\n"
        f"Data since      {time.ctime(since_s)} ({since_s:.0f})\n{rule}\n"
        "Server thread count:  1\nAgent queue size:     0\nAgent count:          0\n"
        "Agent thread count:   0\nDBD Agent queue size: 0\n\n"
        + "".join(f"{f'Jobs {name}:':<16}{count}\n" for name, count in ended.items())
        + f"\nJob states ts:  {time.ctime(now)} ({now:.0f})\n"
        f"Jobs pending:   {waits}\nJobs running:   {runs}"
    )
    return 0
