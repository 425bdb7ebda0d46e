"""drf suspend."""

from __future__ import annotations

from typing import Any

import click

from drfd_cli.selection import act, selecting


@click.command("suspend")
@selecting
def command(**chosen: Any) -> int:
    """Freeze running jobs: they keep their memory and give back cores and bandwidth until
    `drf resume`. Their wall time stands still; cancelled, they get no grace time."""
    return act("suspend", "suspended", **chosen)
