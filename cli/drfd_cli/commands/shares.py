"""drf shares: allocation and entitlement of each pool and user. drf nodes: the machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from drfd.common.units import DISK_AXES, PLAIN_AXES, Axis, show_share_hours
from drfd_cli import output
from drfd_cli.options import colour_option, connect, prints_result
from drfd_cli.output import Column, Result
from drfd_cli.tables.columns import (
    HEADS,
    amounts,
    as_text,
    at,
    by_key,
    column,
    counts,
    field,
    pair,
    percent,
    picked,
)
from drfd_cli.tables.layout import print_items, right

if TYPE_CHECKING:
    from drfd.protocol.replies import DebtView, MachineView, NodesReply, SharesReply


def branch(path: str) -> str:
    """Return the last part of a node's path, indented by its depth in the tree."""
    *above, name = path.split(".")
    return "  " * (len(above) - 1) + name.replace("%2E", ".").replace("%25", "%")


def weight_words(weight: float | dict[str, float]) -> str:
    if isinstance(weight, dict):
        return " ".join(f"{name[0]}{each:g}" for name, each in weight.items() if each != 1)
    return f"{weight:g}"


def _debt(debt: DebtView) -> str:
    """Return the dominant-share-hours that reservations have kept idle, and those allowed."""
    owed_hours, allowed_hours = debt["owed_hours"], debt["allowed_hours"]
    return f"{show_share_hours(owed_hours)}/{show_share_hours(allowed_hours)} h"


#: The columns of nodes of the fair-share tree. New ones come last.
POOLS = by_key(
    column("path", "POOL OR USER", at("path"), branch),
    field("entitlement", "ENTITLED", percent, is_right=True, is_fixed=True),
    field("dominant_share", "SHARE", percent, is_right=True, is_fixed=True),
    field("dominant_resource", "DOMINANT", rank=2),
    field("satisfaction", "SATISFIED", percent, is_right=True),
    *amounts("usage", is_fixed=True),
    field("running", "RUN", is_right=True),
    field("pending", "WAIT", is_right=True),
    Column("GRES", as_text(at("gres", "usage"), output.show_gres), "gres",
           as_text(at("gres", "usage"), counts), rank=1),
    field("debt_owed_hours", show=show_share_hours, name="owed_hours", of="debt", is_right=True),
    field("debt_allowed_hours", show=show_share_hours, name="allowed_hours", of="debt",
          is_right=True),
    # For people.
    right("WEIGHT", as_text(at("weight"), weight_words), "weight", rank=4, is_fixed=True),
    right("IO R/W", as_text(at("usage"), output.show_io), "io", rank=3),
    right("DEBT", as_text(at("debt"), _debt), "debt", rank=-1),
)  # fmt: skip
_SHOWN = (
    *("path", "weight", "entitlement", "dominant_share", "dominant_resource", "satisfaction"),
    *("cores", "memory", "io", "gres", "running", "pending", "debt"),
)


@click.command("shares")
@prints_result(columns=POOLS)
@colour_option
def command() -> Result:
    """Who holds how much of the machine, and how much each is entitled to."""
    reply = connect().request("shares")
    return Result(show=lambda: _show(reply), view=lambda: reply, rows=lambda: [reply["nodes"]])


def _show(reply: SharesReply) -> None:
    for notice in output.drain_notices(reply):
        output.say(notice)
    columns = picked(POOLS, _SHOWN)
    below: list[tuple[str, object]] = []
    if external := reply.get("external"):
        below.append(("outside", {"usage": {**dict.fromkeys(DISK_AXES, 0), **external["kept"]}}))
    for name, amount in (("free", reply["free"]), ("capacity", reply["capacity"])):
        gres = {each: amount["gres"].get(each, 0) for each in reply["capacity"]["gres"]}
        below.append((name, {"usage": {**amount, "gres": gres}}))
        disks = amount.get("disks", {}).items()
        below += ((f"  disk {disk}", {"usage": rates}) for disk, rates in disks)
    print_items(columns, reply["nodes"], below, naming="path")
    for hourly in reply.get("limit_hours", ()):
        output.tell(hourly["text"])


# -- drf nodes ---------------------------------------------------------------------------------


def _name(node: MachineView) -> str:
    return output.clean(node["name"]) or "this machine"


def _features(node: MachineView) -> str:
    return ",".join(node["features"])


def _gres(node: MachineView) -> str:
    held, whole = node["allocated"]["gres"], node["capacity"]["gres"]
    return ", ".join(f"{name} {held.get(name, 0)}/{whole[name]}" for name in sorted(whole)) or "-"


def _of_machine(name: str, axis: Axis) -> Iterator[Column]:
    """Yield the columns of a resource: what is allocated and what there is, and the first alone."""
    show = output.number if name == "cores" else axis.show
    held, whole = at(name, "allocated"), at(name, "capacity")
    both = pair(as_text(held, show), as_text(whole, show))
    yield right(HEADS.get(name, name.upper()), both, name, whole, is_fixed=True)
    yield column(f"{name}_allocated", f"{name.upper()} ALLOCATED", held, show, is_right=True)


#: The columns of machines. New ones come last.
NODES = by_key(
    Column("NODE", _name, "name", at("name")),
    field("engine"),
    field("state", is_fixed=True),
    field("since", show=output.show_when),
    *(each for name, axis in PLAIN_AXES.items() for each in _of_machine(name, axis)),
    field("running", "JOBS", is_right=True),
    column("features", "FEATURES", _features, rank=-1),
    field("text", "WHY", is_sentence=True),
    # For people.
    Column("GRES", _gres, "gres", rank=-1),
)
_SHOWN_OF_NODES = ("name", "state", "since", "cores", "memory", "gres", "running", "features")


@click.command("nodes")
@prints_result(columns=NODES)
@colour_option
def nodes() -> Result:
    """The machines on which jobs run: what each has and has given to jobs, and whether jobs start
    there now."""
    reply = connect().request("nodes")
    show = partial(_show_nodes, reply)
    return Result(show, view=lambda: reply, rows=lambda: [reply["nodes"]])


def _show_nodes(reply: NodesReply) -> None:
    for notice in output.drain_notices(reply):
        output.say(notice)
    print_items(picked(NODES, _SHOWN_OF_NODES), reply["nodes"])
    for node in reply["nodes"]:
        if node["text"]:
            output.tell(f"{_name(node)} is {node['state']}: {output.clean(node['text'], 400)}")
