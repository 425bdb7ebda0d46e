"""drf nodes: the machines on which jobs run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from drfd.common.units import show_size
from drfd_cli import output
from drfd_cli.options import colour_option, connect, prints_result
from drfd_cli.output import Columns, Result, pick

if TYPE_CHECKING:
    from drfd.protocol.replies import MachineView, NodesReply

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
    names = sorted({name for node in reply["nodes"] for name in node["capacity"]["gres"]})
    has_features = any(node["features"] for node in reply["nodes"])
    columns: list[output.Column] = [
        "NODE", "STATE", "SINCE", ("CORES", "right"), ("MEM", "right"),
        *(["GRES"] if names else []), ("JOBS", "right"),
        *(["FEATURES"] if has_features else []),
    ]  # fmt: skip
    rows = [_row(node, names, has_features=has_features) for node in reply["nodes"]]
    output.print_rows(columns, rows, fixed=("STATE", "CORES", "MEM"))
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


def _row(node: MachineView, names: list[str], *, has_features: bool) -> list[object]:
    allocated, capacity = node["allocated"], node["capacity"]
    counts = (
        f"{name} {allocated['gres'].get(name, 0)}/{capacity['gres'][name]}"
        for name in names
        if name in capacity["gres"]
    )
    since_s = node["since"]
    return [
        output.clean(node["name"]) or "this machine",
        node["state"],
        "-" if since_s is None else output.show_when(since_s),
        f"{allocated['cores']:g}/{capacity['cores']:g}",
        f"{show_size(allocated['memory'])}/{show_size(capacity['memory'])}",
        *([", ".join(counts) or "-"] if names else []),
        node["running"],
        *([",".join(node["features"]) or "-"] if has_features else []),
    ]
