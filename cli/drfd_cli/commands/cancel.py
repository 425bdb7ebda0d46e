"""drf cancel."""

from __future__ import annotations

from typing import Any

import click

from drfd_cli.selection import act, selecting


@click.command("cancel")
@selecting
def command(**chosen: Any) -> int:
    """Cancel jobs: waiting ones end at once, running ones are stopped (TERM, grace time, KILL)."""
    return act("cancel", "cancelled", **chosen)
