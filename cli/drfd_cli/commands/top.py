"""drf top: the live view, or one screen of it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd.common.errors import ConfigError
from drfd_cli import output, personal
from drfd_cli.options import colour_option, connect, prints_result
from drfd_cli.output import Result
from drfd_cli.tables.live import live_columns

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotView


@click.command("top")
@click.option(
    "--once", is_flag=True, help="Print one screen and exit (the default without a terminal)."
)
@prints_result()
@colour_option
def command(once: bool) -> Result:
    """The machine, its users and their jobs, live: who has how much, what runs, why others wait.

    `?` lists the keys: arrows or j and k move, Tab goes to another panel, Enter opens
    a job's page, l its output, / finds, s sorts, Space marks, c cancels, h holds, q quits.
    """
    columns = own_columns()
    client = connect()
    # This starts the user's own daemon, if need be, before the screen changes.
    client.request("hello")
    client.close()
    client = Connection(client.path)

    from drfd_cli.top.feed import first_snapshot

    snapshot = first_snapshot(client)
    return Result(show=lambda: _show(client, snapshot, columns, once=once), view=lambda: snapshot)


def own_columns() -> list[str]:
    """Return the keys of the columns that the user wants in the live view and on the page. Raises
    ConfigError."""
    keys, there = personal.read(os.environ).columns, live_columns(0.0)
    for key in keys:
        if key not in there:
            text = f"{personal.path_of(os.environ)}: columns: there is no column {key!r}"
            raise ConfigError("config", text, hint=f"there are {', '.join(there)}")
    return keys


def _show(client: Connection, snapshot: SnapshotView, columns: list[str], *, once: bool) -> None:
    from drfd_cli.top.app import print_once
    from drfd_cli.top.paint import Theme

    is_seen = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    theme = Theme(has_colour=output.has_colour())
    if once or not is_seen:
        print_once(snapshot, theme, columns)
        return

    from drfd_cli.top.app import App

    output.tell(App(client, snapshot, theme, columns).run())
