"""drf hold."""

from __future__ import annotations

from typing import Any

import click

from drfd_cli.selection import act, selecting


@click.command("hold")
@selecting
def command(**chosen: Any) -> int:
    """Hold waiting jobs: they keep their place and do not start before `drf release`."""
    return act("hold", "held", **chosen)
