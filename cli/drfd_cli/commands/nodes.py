"""drf nodes: the machines on which jobs run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from drfd.common.units import show_size
from drfd_cli import output
from drfd_cli.options import colour_option, connect, prints_result
from drfd_cli.output import Columns, Result, pick

if TYPE_CHECKING:
    from drfd.protocol.replies import MachineView, NodesReply, ResourcesView

_COLUMNS: Columns[MachineView] = {
    "name": lambda node: node["name"],
    "engine": lambda node: node["engine"],
    "state": lambda node: node["state"],
    "since": lambda node: node["since"],
    "cores": lambda node: node["capacity"]["cores"],
    "cores_allocated": lambda node: node["allocated"]["cores"],
    "memory": lambda node: node["capacity"]["memory"],
    "memory_allocated": lambda node: node["allocated"]["memory"],
    "running": lambda node: node["running"],
    "cores_outside": lambda node: _outside(node)["cores"],
    "memory_outside": lambda node: _outside(node)["memory"],
    "features": lambda node: ",".join(node["features"]),
    "text": lambda node: node["text"],
}


@click.command("nodes")
@prints_result(columns=_COLUMNS)
@colour_option
def command() -> Result:
    """The machines on which jobs run: what each has and has given to jobs, and whether jobs start
    there now."""
    reply = connect().request("nodes")
    return Result(
        show=lambda: _show(reply),
        view=lambda: pick(reply, ("nodes", "drain")),
        pages=lambda: [reply["nodes"]],
    )


def _show(reply: NodesReply) -> None:
    for notice in output.drain_notices(reply):
        output.say(notice)
    cells: output.Cells[MachineView] = {
        "NODE": lambda node: output.clean(node["name"]) or "this machine",
        "STATE": lambda node: node["state"],
        "SINCE": lambda node: "-" if node["since"] is None else output.show_when(node["since"]),
        ("CORES", "right"): lambda node: _of(node, lambda amounts: f"{amounts['cores']:g}"),
        ("MEM", "right"): lambda node: _of(node, lambda amounts: show_size(amounts["memory"])),
        "GRES": _gres,
        ("JOBS", "right"): lambda node: node["running"],
        "FEATURES": lambda node: ",".join(node["features"]) or "-",
    }
    if not any(node["capacity"]["gres"] for node in reply["nodes"]):
        cells = output.visible(cells, "GRES")
    if not any(node["features"] for node in reply["nodes"]):
        cells = output.visible(cells, "FEATURES")
    output.print_items(cells, reply["nodes"], fixed=("STATE", "CORES", "MEM"))
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
