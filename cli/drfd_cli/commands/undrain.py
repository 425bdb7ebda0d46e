"""drf undrain: launch again."""

from __future__ import annotations

import click

from drfd_cli import output
from drfd_cli.options import connect


@click.command("undrain")
def command() -> None:
    """Launch jobs again. For administrators."""
    connect().request("drain", on=False)
    output.tell("launching again")
