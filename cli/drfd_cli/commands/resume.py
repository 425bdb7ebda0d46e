"""drf resume."""

from __future__ import annotations

from typing import Any

import click

from drfd_cli.selection import act, selecting


@click.command("resume")
@selecting
def command(**chosen: Any) -> int:
    """Let suspended jobs go on, as soon as what they gave back is free again."""
    return act("resume", "resumed", **chosen)
