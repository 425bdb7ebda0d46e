"""drf report: what ended jobs declared, and what they used of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from drfd.units import parse_duration, show_duration, show_size
from drfd_cli import curve, output
from drfd_cli.options import LINES, as_json, connect
from drfd_cli.past import chosen, past_options, print_csv

_ROWS = 30
_NAME, _SHORT_NAME = 32, 18
_WIDE, _VERY_WIDE = 100, 132
#: How the last job of a line went.
_CURVES, _KINDS, _BARS = ("USE OF CORES", "USE OF MEM"), ("cores", "memory"), 12
_DEFAULT_SINCE = "30d"
#: What the parts of a row's key are called.
_KEYS = {"job": ["id", "name", "user"], "name": ["name", "user"], "user": ["user"],
         "pool": ["pool"]}  # fmt: skip
_AMOUNTS = ("cores", "memory", "read", "write")
_PARTS = ("declared", "used", "unknown", "wasted", "efficiency")
_PLAIN = (
    *("read_bytes", "written_bytes", "demand_max", "peak_max", "throttled_us"),
    *("throttled_unknown_jobs", "out_of_memory_jobs", "timeout_jobs"),
)


@click.command("report")
@past_options
@click.option(
    "--by", type=click.Choice(list(_KEYS)), default="name",
    help="What a line stands for (name: of one user).",
)  # fmt: skip
@click.option(
    "-n", "--number", type=LINES, default=_ROWS,
    help=f"So many lines ({_ROWS}); the rest is summed up in one.",
)  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Print a line of values for each line.")
@as_json
def command(by: str, number: int, as_csv: bool, as_json: bool, **choice: Any) -> None:
    """What ended jobs declared and what they used of it, and what to ask for next time; of the last
    30 days, unless --since says otherwise. Yours, unless ids, --user or --all say otherwise;
    administrators see everybody's."""
    if choice["since"] is None and choice["until"] is None and not choice["ids"]:
        choice["since"] = time.time() - parse_duration(_DEFAULT_SINCE)
    client = connect()
    past = chosen(client, **choice)
    reply = client.request("report", past=past, by=by, limit=number)
    if as_json:
        output.print_json({key: reply[key] for key in ("by", "rows", "others", "total")})
    elif as_csv:
        _print_csv(reply)
    elif not reply["total"]["jobs"]:
        output.say("no job that ran has ended in that time")
    else:
        _print_table(reply)


def _print_csv(reply: output.View) -> None:
    keys = _KEYS[reply["by"]]
    amounts = [f"{amount}_{part}" for amount in _AMOUNTS for part in _PARTS]
    rows = [*reply["rows"], *([reply["others"]] if reply["others"] else [])]
    print_csv(
        [*keys, "jobs", "run_ms", *amounts, *_PLAIN, "advice", "gres_ms"],
        (
            [
                *(row.get(key) for key in keys),
                row["jobs"],
                row["run_ms"],
                *(row[amount][part] for amount in _AMOUNTS for part in _PARTS),
                *(row[name] for name in _PLAIN),
                " ".join(row["advice"]["options"]) if row.get("advice") else None,
                ",".join(f"{name}={held_ms}" for name, held_ms in row.get("gres_ms", {}).items())
                or None,
            ]
            for row in rows
        ),
    )


def _print_table(reply: output.View) -> None:
    by = reply["by"]
    is_wide = output.width() >= _WIDE
    has_users = by == "user" or len({row.get("user") for row in reply["rows"]}) > 1
    keys = [key for key in _KEYS[by] if key != "user" or has_users]
    total = reply["total"]
    disks = [what for what in ("read", "write") if total[what]["declared"]]
    # A daemon that has not been restarted since an update does not tell any.
    has_curves = output.width() >= _VERY_WIDE and any(row.get("curve") for row in reply["rows"])
    columns: list[output.Column] = [
        *((key.upper(), "right") if key == "id" else key.upper() for key in keys),
        *([("JOBS", "right")] if by != "job" else []),
        ("CORE-H", "right"), ("WASTED", "right"), ("CPU%", "right"), ("MEM", "right"),
        ("PEAK", "right"), ("MEM%", "right"),
        *((f"{what.upper()}%", "right") for what in disks),
        *((f"{name.upper()}-H", "right") for name in total.get("gres_ms", {})),
        *([("HELD BACK", "right")] if is_wide else []),
        *(_CURVES if has_curves else ()),
    ]  # fmt: skip
    names = _NAME if is_wide else _SHORT_NAME
    show = {"by": by, "is_wide": is_wide, "disks": disks, "gres": list(total.get("gres_ms", {}))}
    rows = [
        [
            *(output.shorten(row[key], names) for key in keys),
            *_cells(row, **show),
            *(_bars(row.get("curve")) if has_curves else ()),
        ]
        for row in reply["rows"]
    ]
    blanks = [""] * (len(keys) - 1)
    if reply["others"] is not None:
        rows.append(["all others", *blanks, *_cells(reply["others"], **show)])
    if len(rows) > 1:
        rows.append(["in all", *blanks, *_cells(total, **show)])
    output.print_rows(columns, rows, fixed=("ID", "CORE-H", "MEM", "PEAK", *_CURVES))
    for row in reply["rows"]:
        if by == "name" or len(reply["rows"]) == 1:
            _tell_advice(row)


def _cells(
    row: output.View, *, by: str, is_wide: bool, disks: Sequence[str], gres: Sequence[str]
) -> list[object]:
    peak = show_size(row["peak_max"]) if row["peak_max"] else "-"
    declared_us = row["cores"]["declared"] + row["cores"]["unknown"]
    held_back = show_duration(row["throttled_us"] / 1e6)
    if row["throttled_unknown_jobs"] == row["jobs"]:
        held_back = "-"
    return [
        *([row["jobs"]] if by != "job" else []),
        f"{declared_us / 3.6e9:.2f}",
        f"{row['cores']['wasted'] / 3.6e9:.2f}",
        _percent(row["cores"]["efficiency"]),
        show_size(row["demand_max"]),
        peak,
        _percent(row["memory"]["efficiency"]),
        *(_percent(row[what]["efficiency"]) for what in disks),
        *(f"{row.get('gres_ms', {}).get(name, 0) / 3.6e6:.2f}" for name in gres),
        *([held_back] if is_wide else []),
    ]


def _bars(points: output.View | None) -> list[str]:
    """Of the cores, and of the memory, against what was asked for."""
    if points is None:
        return ["", ""]
    demand = points["demand"]
    return [curve.spark(points["at"], points[kind], demand[kind], _BARS) for kind in _KINDS]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _tell_advice(row: output.View) -> None:
    if row["advice"] is not None:
        whose = f"{output.clean(row['name'])} ({output.clean(row['user'])})"
        output.tell(f"{whose}: next time {output.advice_line(row['advice'])}")
