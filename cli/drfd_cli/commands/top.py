"""drf top: the live view."""

from __future__ import annotations

import os
import sys

import click

from drfd.client.connection import Connection
from drfd_cli import output
from drfd_cli.options import as_json, colour_option, connect


@click.command("top")
@click.option("--once", is_flag=True, help="Print one screen and leave; so without a terminal.")
@click.option("--svg", metavar="FILE", help="Save one screen as a picture; COLUMNS and LINES hold.")
@as_json
@colour_option
def command(once: bool, svg: str | None, as_json: bool) -> None:
    """The machine, its users and their jobs, live: who has how much, what runs, why others wait.

    On the screen `?` lists the keys: arrows or j and k move, Tab goes to another panel, Enter opens
    a job's page, / filters, u shows only yours, s sorts, c cancels, h holds, q quits.
    """
    if as_json and svg is not None:
        raise click.UsageError("--json and --svg are two answers: ask for one")
    client = connect()
    # Whoever starts a daemon should do that before the screen is taken.
    client.request("hello")
    client.close()
    client = Connection(client.path)

    from drfd_cli.top.feed import first_snapshot

    snapshot = first_snapshot(client)
    if as_json:
        output.print_json(snapshot)
        return

    from drfd_cli.top import still
    from drfd_cli.top.paint import Ink

    if svg is not None:
        still.save_svg(snapshot, svg)
        return
    is_seen = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    ink = Ink(has_colour=output.has_colour())
    if once or not is_seen:
        still.print_once(snapshot, ink)
        return

    from drfd_cli.top.app import App

    output.tell(App(client, snapshot, ink).run())
