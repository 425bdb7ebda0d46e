"""drf release."""

from __future__ import annotations

from typing import Any

import click

from drfd_cli.selection import act, selecting


@click.command("release")
@selecting
def command(**chosen: Any) -> int:
    """Release held jobs."""
    return act("release", "released", **chosen)
