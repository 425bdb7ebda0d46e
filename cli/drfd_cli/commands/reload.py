"""drf reload: read the configuration again."""

from __future__ import annotations

import click

from drfd_cli import output
from drfd_cli.options import connect


@click.command("reload")
def command() -> None:
    """Read the configuration again: capacity, pools, limits, defaults. Running jobs keep what they
    have. For administrators."""
    for warning in connect().request("reload")["warnings"]:
        output.say(f"warning: {warning}")
    output.tell("reloaded")
