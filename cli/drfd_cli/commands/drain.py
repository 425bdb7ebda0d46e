"""drf drain: stop launching."""

from __future__ import annotations

import click

from drfd_cli import output
from drfd_cli.options import connect


@click.command("drain")
def command() -> None:
    """Stop launching jobs; running ones go on, new ones are queued. For administrators."""
    connect().request("drain", on=True)
    output.tell("draining: nothing is launched until drf undrain")
