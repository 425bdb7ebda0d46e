"""drf shares: allocation and entitlement of each pool and user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from drfd.common.units import show_share_hours
from drfd_cli import output
from drfd_cli.options import colour_option, connect, prints_result
from drfd_cli.output import NODE_COLUMNS, Result, pick

if TYPE_CHECKING:
    from drfd.protocol.replies import NodeView, ResourcesView, SharesReply

#: On screens narrower than `_NARROW` columns, or `_FULL` with quotas, those of `_WIDE_ONLY` are
#: left out; on screens narrower than `_FULL`, the first column has a shorter heading.
_NARROW, _FULL = 72, 90
_WIDE_ONLY = {"WEIGHT", "DOMINANT", "IO R/W", "GRES"}


@click.command("shares")
@prints_result(columns=NODE_COLUMNS)
@colour_option
def command() -> Result:
    """Who holds how much of the machine, and how much each is entitled to."""
    reply = connect().request("shares")
    keys = ("capacity", "free", "nodes", "external", "limit_hours", "drain")
    return Result(
        show=lambda: _show(reply),
        view=lambda: pick(reply, keys),
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
    has_quotas = any("quota" in node for node in reply["nodes"])
    hidden = _WIDE_ONLY if output.width() < (_FULL if has_quotas else _NARROW) else set()
    columns: list[output.Column] = [
        "POOL OR USER" if output.width() >= _FULL else "NAME", ("WEIGHT", "right"),
        ("ENTITLED", "right"), ("SHARE", "right"), "DOMINANT",
        ("SATISFIED", "right"), ("CORES", "right"), ("MEM", "right"), ("IO R/W", "right"),
        *(["GRES"] if names else []), ("RUN", "right"), ("WAIT", "right"),
        *([("QUOTA", "right")] if has_quotas else []),
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
            *([quota_words(node)] if has_quotas else []),
        ]
        for node in reply["nodes"]
    ]
    end = ["", "", *([""] if has_quotas else [])]
    below: dict[str, ResourcesView] = {"free": reply["free"], "capacity": reply["capacity"]}
    external = reply.get("external")
    if external is not None:
        kept = external["kept"]
        outside: ResourcesView = {
            "cores": kept["cores"], "memory": kept["memory"], "read": 0, "write": 0, "gres": {},
        }  # fmt: skip
        below = {"outside": outside, **below}
    for name, amount in below.items():
        counts = {each: amount.get("gres", {}).get(each, 0) for each in names}
        gres = [output.show_gres(counts) if name != "outside" else ""] if names else []
        rows.append([name, "", "", "", "", "", *output.show_demand(amount), *gres, *end])
        for disk, rates in amount.get("disks", {}).items():
            blank = [""] * len(gres)
            rows.append([f"  disk {disk}", *[""] * 7, output.show_io(rates), *blank, *end])
    shown = [at for at, column in enumerate(columns) if output.parts(column)[0] not in hidden]
    columns = [columns[at] for at in shown]
    rows = [[row[at] for at in shown] for row in rows]
    output.print_rows(columns, rows, fixed=("WEIGHT", "ENTITLED", "SHARE", "CORES", "MEM"))


def branch(path: str) -> str:
    """Return the last part of a node's path, indented by its depth in the tree."""
    *above, name = path.split(".")
    return "  " * (len(above) - 1) + name.replace("%2E", ".").replace("%25", "%")


def quota_words(node: NodeView) -> str:
    """Return the dominant-share-hours used and allowed this week: "12.5/40 h"."""
    quota = node.get("quota")
    if quota is None:
        return ""
    used, most = show_share_hours(quota["used_hours"]), show_share_hours(quota["share_hours"])
    return f"{used}/{most} h"


def weight_words(weight: float | dict[str, float]) -> str:
    if isinstance(weight, dict):
        return " ".join(f"{name[0]}{each:g}" for name, each in weight.items() if each != 1)
    return f"{weight:g}"
