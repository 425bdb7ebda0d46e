"""drf signal."""

from __future__ import annotations

from typing import Any

import click

from drfd_cli.options import SIGNAL
from drfd_cli.selection import act, selecting


@click.command("signal")
@click.argument("signal", metavar="SIGNAL", type=SIGNAL)
@selecting
def command(signal: int, **chosen: Any) -> int:
    """Send a signal (USR1, HUP, 10, ...) to every process of running jobs. What it makes of them
    is up to them: to end a job, use `drf cancel`."""
    return act("signal", "signalled", asked={"signal": signal}, **chosen)
