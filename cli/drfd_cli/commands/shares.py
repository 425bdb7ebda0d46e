"""drf shares: who holds how much."""

from __future__ import annotations

from typing import Any

import click

from drfd_cli import output, parsable
from drfd_cli.options import as_json, colour_option, connect, parsable_options

#: On a screen narrower than this, some columns are left out.
_NARROW = 72
_WIDE_ONLY = {"WEIGHT", "OF", "IO R/W", "GRES"}


@click.command("shares")
@as_json
@parsable_options(parsable.NODE)
@colour_option
def command(as_json: bool, **shape: Any) -> None:
    """Who holds how much of the machine, and how much each is entitled to."""
    reply = connect().request("shares")
    if as_json:
        keys = ("capacity", "free", "nodes", "external")
        output.print_json({key: reply[key] for key in keys if key in reply})
        return
    if parsable.print_lines(parsable.NODE, reply["nodes"], **shape):
        return
    names = list(reply["capacity"]["gres"])
    hidden = _WIDE_ONLY if output.width() < _NARROW else set()
    columns: list[output.Column] = [
        "POOL OR USER", ("WEIGHT", "right"), ("ENTITLED", "right"), ("SHARE", "right"), "OF",
        ("SATISFIED", "right"), ("CORES", "right"), ("MEM", "right"), ("IO R/W", "right"),
        *(["GRES"] if names else []), ("RUN", "right"), ("WAIT", "right"),
    ]  # fmt: skip
    rows: list[list[object]] = [
        [
            branch(node["path"]),
            weight_words(node["weight"]),
            f"{node['entitlement']:.0%}",
            f"{node['dominant_share']:.0%}",
            node["dominant_resource"] or "-",
            f"{node['satisfaction']:.0%}",
            *output.show_demand(node["usage"]),
            *([output.show_gres(node["usage"]["gres"])] if names else []),
            node["running"],
            node["pending"],
        ]
        for node in reply["nodes"]
    ]
    below = {name: reply[name] for name in ("free", "capacity")}
    if "external" in reply:
        below = {"outside": {"read": 0, "write": 0, **reply["external"]["kept"]}, **below}
    for name, amount in below.items():
        counts = {each: amount.get("gres", {}).get(each, 0) for each in names}
        gres = [output.show_gres(counts) if name != "outside" else ""] if names else []
        rows.append([name, "", "", "", "", "", *output.show_demand(amount), *gres, "", ""])
        for disk, rates in amount.get("disks", {}).items():
            blank = [""] * len(gres)
            rows.append([f"  disk {disk}", *[""] * 7, output.show_io(rates), *blank, "", ""])
    shown = [at for at, column in enumerate(columns) if output.parts(column)[0] not in hidden]
    columns = [columns[at] for at in shown]
    rows = [[row[at] for at in shown] for row in rows]
    output.print_rows(columns, rows, fixed=("WEIGHT", "ENTITLED", "SHARE", "CORES", "MEM"))


def branch(path: str) -> str:
    """The node's own name, indented below the pool that it is in."""
    *above, name = path.split(".")
    return "  " * (len(above) - 1) + name.replace("%2E", ".").replace("%25", "%")


def weight_words(weight: float | dict[str, float]) -> str:
    if isinstance(weight, dict):
        return " ".join(f"{name[0]}{each:g}" for name, each in weight.items() if each != 1)
    return f"{weight:g}"
