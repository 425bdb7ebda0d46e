"""drf shares: allocation and entitlement of each pool and user. drf nodes: the machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from drfd.common.units import show_share_hours, show_size
from drfd_cli import output
from drfd_cli.options import colour_option, connect, prints_result
from drfd_cli.output import NODE_COLUMNS, Columns, Result, fields
from drfd_cli.table import Column, print_items, right

if TYPE_CHECKING:
    from drfd.protocol.replies import MachineView, NodesReply, NodeView, ResourcesView, SharesReply


#: On screens narrower than `_NARROW` columns some columns are left out; on screens narrower than
#: `_FULL`, the first column has a shorter heading.
_NARROW, _FULL = 72, 90


@click.command("shares")
@prints_result(columns=NODE_COLUMNS)
@colour_option
def command() -> Result:
    """Who holds how much of the machine, and how much each is entitled to."""
    reply = connect().request("shares")
    return Result(
        show=lambda: _show(reply),
        view=lambda: reply,
        pages=lambda: [reply["nodes"]],
    )


def _show(reply: SharesReply) -> None:
    for notice in output.drain_notices(reply):
        output.say(notice)
    _print_table(reply)
    for hourly in reply.get("limit_hours", ()):
        output.tell(hourly["text"])


def _print_table(reply: SharesReply) -> None:
    names = list(reply["capacity"]["gres"])
    title = "POOL OR USER" if output.width() >= _FULL else "NAME"
    is_wide = output.width() >= _NARROW
    columns = [
        Column(title, lambda node: branch(node["path"])),
        right("WEIGHT", lambda node: weight_words(node["weight"]), is_fixed=True, is_shown=is_wide),
        right("ENTITLED", lambda node: f"{node['entitlement']:.0%}", is_fixed=True),
        right("SHARE", lambda node: f"{node['dominant_share']:.0%}", is_fixed=True),
        Column("DOMINANT", lambda node: node["dominant_resource"] or "-", is_shown=is_wide),
        right("SATISFIED", lambda node: f"{node['satisfaction']:.0%}"),
        right("CORES", lambda node: output.show_cores_of(node["usage"]), is_fixed=True),
        right("MEM", lambda node: show_size(node["usage"]["memory"]), is_fixed=True),
        right("IO R/W", lambda node: output.show_io(node["usage"]), is_shown=is_wide),
        Column("GRES", lambda node: output.show_gres(node["usage"]["gres"]),
               is_shown=is_wide and bool(names)),
        right("RUN", lambda node: node["running"]),
        right("WAIT", lambda node: node["pending"]),
        right("DEBT", debt_words, is_shown=any("debt" in node for node in reply["nodes"])),
    ]  # fmt: skip
    external = reply.get("external")
    below: list[dict[str, object]] = []
    if external is not None:
        cores, memory = f"{external['kept']['cores']:g}", show_size(external["kept"]["memory"])
        below.append({title: "outside", "CORES": cores, "MEM": memory, "IO R/W": "-"})
    for name, amount in (("free", reply["free"]), ("capacity", reply["capacity"])):
        counts = {each: amount.get("gres", {}).get(each, 0) for each in names}
        below.append({title: name, **_amounts(amount), "GRES": output.show_gres(counts)})
        for disk, rates in amount.get("disks", {}).items():
            below.append({title: f"  disk {disk}", "IO R/W": output.show_io(rates)})
    print_items(columns, reply["nodes"], below=below)


def _amounts(amount: ResourcesView) -> dict[str, object]:
    return dict(zip(("CORES", "MEM", "IO R/W"), output.show_demand(amount), strict=True))


def branch(path: str) -> str:
    """Return the last part of a node's path, indented by its depth in the tree."""
    *above, name = path.split(".")
    return "  " * (len(above) - 1) + name.replace("%2E", ".").replace("%25", "%")


def debt_words(node: NodeView) -> str:
    """Return the dominant-share-hours that reservations have kept idle, and those allowed."""
    debt = node.get("debt")
    if debt is None:
        return ""
    return f"{show_share_hours(debt['owed_hours'])}/{show_share_hours(debt['allowed_hours'])} h"


def weight_words(weight: float | dict[str, float]) -> str:
    if isinstance(weight, dict):
        return " ".join(f"{name[0]}{each:g}" for name, each in weight.items() if each != 1)
    return f"{weight:g}"


# -- drf nodes ---------------------------------------------------------------------------------


_COLUMNS: Columns[MachineView] = {
    **fields("name", "engine", "state", "since"),
    "cores": lambda node: node["capacity"]["cores"],
    "cores_allocated": lambda node: node["allocated"]["cores"],
    "memory": lambda node: node["capacity"]["memory"],
    "memory_allocated": lambda node: node["allocated"]["memory"],
    **fields("running"),
    "cores_outside": lambda node: _outside(node)["cores"],
    "memory_outside": lambda node: _outside(node)["memory"],
    "features": lambda node: ",".join(node["features"]),
    **fields("text"),
}


@click.command("nodes")
@prints_result(columns=_COLUMNS)
@colour_option
def nodes() -> Result:
    """The machines on which jobs run: what each has and has given to jobs, and whether jobs start
    there now."""
    reply = connect().request("nodes")
    return Result(
        show=lambda: _show_nodes(reply),
        view=lambda: reply,
        pages=lambda: [reply["nodes"]],
    )


def _show_nodes(reply: NodesReply) -> None:
    for notice in output.drain_notices(reply):
        output.say(notice)
    found = reply["nodes"]
    columns = [
        Column("NODE", lambda node: output.clean(node["name"]) or "this machine"),
        Column("STATE", lambda node: node["state"], is_fixed=True),
        Column("SINCE",
               lambda node: "-" if node["since"] is None else output.show_when(node["since"])),
        right("CORES", lambda node: _of(node, lambda amounts: f"{amounts['cores']:g}"),
              is_fixed=True),
        right("MEM", lambda node: _of(node, lambda amounts: show_size(amounts["memory"])),
              is_fixed=True),
        Column("GRES", _gres, is_shown=any(node["capacity"]["gres"] for node in found)),
        right("JOBS", lambda node: node["running"]),
        Column("FEATURES", lambda node: ",".join(node["features"]) or "-",
               is_shown=any(node["features"] for node in found)),
    ]  # fmt: skip
    print_items(columns, found)
    for node in reply["nodes"]:
        if node["text"]:
            why = output.clean(node["text"], 400)
            output.tell(f"{node['name'] or 'this machine'} is {node['state']}: {why}")
        if "outside" in node:
            outside = node["outside"]
            has = f"{outside['cores']:g} cores and {show_size(outside['memory'])}"
            output.tell(f"{output.clean(node['name'])}: jobs submitted past drfd have {has}")


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
