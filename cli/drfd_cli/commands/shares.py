"""drf shares: allocation and entitlement of each pool and user. drf nodes: the machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from drfd.common.units import show_share_hours, show_size
from drfd_cli import output
from drfd_cli.options import colour_option, connect, prints_result
from drfd_cli.output import Column, Result
from drfd_cli.tables.columns import at, by_key, column, counts, field, percent, picked
from drfd_cli.tables.layout import print_items, right

if TYPE_CHECKING:
    from drfd.protocol.replies import MachineView, NodesReply, ResourcesView, SharesReply


def branch(path: str) -> str:
    """Return the last part of a node's path, indented by its depth in the tree."""
    *above, name = path.split(".")
    return "  " * (len(above) - 1) + name.replace("%2E", ".").replace("%25", "%")


def weight_words(weight: float | dict[str, float]) -> str:
    if isinstance(weight, dict):
        return " ".join(f"{name[0]}{each:g}" for name, each in weight.items() if each != 1)
    return f"{weight:g}"


#: The columns of nodes of the fair-share tree. New ones come last.
POOLS = by_key(
    column("path", "POOL OR USER", at("path"), branch),
    field("entitlement", "ENTITLED", percent, is_right=True, is_fixed=True),
    field("dominant_share", "SHARE", percent, is_right=True, is_fixed=True),
    field("dominant_resource", "DOMINANT", rank=2),
    field("satisfaction", "SATISFIED", percent, is_right=True),
    right("CORES", lambda node: output.show_cores_of(node["usage"]), "cores",
          at("cores", "usage"), is_fixed=True),
    field("memory", "MEM", show_size, of="usage", is_right=True, is_fixed=True),
    *(field(name, show=show_size, of="usage", is_right=True) for name in ("read", "write")),
    field("running", "RUN", is_right=True),
    field("pending", "WAIT", is_right=True),
    Column("GRES", lambda node: output.show_gres(node["usage"]["gres"]), "gres",
           lambda node: counts(node["usage"]["gres"]), rank=1),
    field("debt_owed_hours", show=show_share_hours, name="owed_hours", of="debt", is_right=True),
    field("debt_allowed_hours", show=show_share_hours, name="allowed_hours", of="debt",
          is_right=True),
    # For people.
    right("WEIGHT", lambda node: weight_words(node["weight"]), "weight", rank=4, is_fixed=True),
    right("IO R/W", lambda node: output.show_io(node["usage"]), "io", rank=3),
    # The dominant-share-hours that reservations have kept idle, and those allowed.
    right("DEBT", lambda node: "-" if (debt := node.get("debt")) is None else (
        f"{show_share_hours(debt['owed_hours'])}/{show_share_hours(debt['allowed_hours'])} h"
    ), "debt"),
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
    names = list(reply["capacity"]["gres"])
    without = {*([] if names else ["gres"]),
               *([] if any("debt" in node for node in reply["nodes"]) else ["debt"])}  # fmt: skip
    columns = picked(POOLS, _SHOWN, without=without)
    title = POOLS["path"].title
    external = reply.get("external")
    below: list[dict[str, object]] = []
    if external is not None:
        kept = external["kept"]
        cores, memory = output.number(kept["cores"]), show_size(kept["memory"])
        below.append({title: "outside", "CORES": cores, "MEM": memory, "IO R/W": "-"})
    for name, amount in (("free", reply["free"]), ("capacity", reply["capacity"])):
        counts = {each: amount.get("gres", {}).get(each, 0) for each in names}
        below.append({
            title: name, "CORES": output.show_cores_of(amount), "MEM": show_size(amount["memory"]),
            "IO R/W": output.show_io(amount), "GRES": output.show_gres(counts),
        })  # fmt: skip
        for disk, rates in amount.get("disks", {}).items():
            below.append({title: f"  disk {disk}", "IO R/W": output.show_io(rates)})
    print_items(columns, reply["nodes"], below=below if POOLS["path"] in columns else ())
    for hourly in reply.get("limit_hours", ()):
        output.tell(hourly["text"])


# -- drf nodes ---------------------------------------------------------------------------------


def _outside(node: MachineView) -> Mapping[str, float]:
    """Return the cores and the memory that Slurm has given to jobs that are not drfd's."""
    outside = node.get("outside")
    if outside is None:
        return {"cores": 0.0, "memory": 0}
    return {"cores": outside["cores"], "memory": outside["memory"]}


def _of(node: MachineView, show: Callable[[ResourcesView], str]) -> str:
    """Return what is allocated and what there is: "4/16"."""
    return f"{show(node['allocated'])}/{show(node['capacity'])}"


def _gres(node: MachineView) -> str:
    held, whole = node["allocated"]["gres"], node["capacity"]["gres"]
    return ", ".join(f"{name} {held.get(name, 0)}/{whole[name]}" for name in sorted(whole)) or "-"


#: The columns of machines. New ones come last.
NODES = by_key(
    Column("NODE", lambda node: output.clean(node["name"]) or "this machine", "name", at("name")),
    field("engine"),
    field("state", is_fixed=True),
    field("since", show=output.show_when),
    right("CORES", lambda node: _of(node, lambda amounts: output.number(amounts["cores"])), "cores",
          at("cores", "capacity"), is_fixed=True),
    field("cores_allocated", show=output.number, name="cores", of="allocated", is_right=True),
    right("MEM", lambda node: _of(node, lambda amounts: show_size(amounts["memory"])), "memory",
          at("memory", "capacity"), is_fixed=True),
    field("memory_allocated", show=show_size, name="memory", of="allocated", is_right=True),
    field("running", "JOBS", is_right=True),
    column("cores_outside", "CORES OUTSIDE", lambda node: _outside(node)["cores"], output.number,
           is_right=True),
    column("memory_outside", "MEM OUTSIDE", lambda node: _outside(node)["memory"], show_size,
           is_right=True),
    column("features", "FEATURES", lambda node: ",".join(node["features"])),
    field("text", "WHY", is_sentence=True),
    # For people.
    Column("GRES", _gres, "gres"),
)  # fmt: skip
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
    found = reply["nodes"]
    without = {*([] if any(node["capacity"]["gres"] for node in found) else ["gres"]),
               *([] if any(node["features"] for node in found) else ["features"])}  # fmt: skip
    print_items(picked(NODES, _SHOWN_OF_NODES, without=without), found)
    for node in reply["nodes"]:
        if node["text"]:
            why = output.clean(node["text"], 400)
            output.tell(f"{node['name'] or 'this machine'} is {node['state']}: {why}")
        if "outside" in node:
            outside = node["outside"]
            has = f"{output.number(outside['cores'])} cores and {show_size(outside['memory'])}"
            output.tell(
                f"{output.clean(node['name'])}: jobs submitted to Slurm directly have {has}"
            )
