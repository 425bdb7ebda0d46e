"""The verbs of administrators: drain, undrain, reload, shutdown."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd.common.errors import Unavailable
from drfd_cli import output
from drfd_cli.options import connect

if TYPE_CHECKING:
    from drfd.protocol.replies import ShutdownReply, StatusReply

#: Seconds that a restart of the launcher may take; after them it is reported as away.
_PATIENCE_S = 5.0
#: Seconds between two checks whether the launcher is there.
LOOK_S = 2.0


#: Of `drain` and `undrain`.
node_option = click.option("--node", metavar="NAME", help="Of several machines, only this one.")


@click.command("drain")
@click.option("--reason", metavar="TEXT", help="Why; everybody reads it in status, why and top.")
@node_option
def drain(reason: str | None, node: str | None) -> None:
    """Stop launching jobs; running ones go on, new ones are queued. For administrators.

    Once more with another reason, it changes the reason; with '' it removes it.
    """
    said = {} if reason is None else {"reason": reason}
    connect().request("drain", on=True, **said, **_about(node))
    if node is None:
        output.tell("draining: nothing is launched until drf undrain")
    else:
        output.tell(f"draining {node}: nothing is launched there until drf undrain --node {node}")


@click.command("undrain")
@node_option
def undrain(node: str | None) -> None:
    """Launch jobs again. For administrators.

    What was drained with --node is launched on again only with --node.
    """
    reply = connect().request("drain", on=False, **_about(node))
    if node is None:
        output.tell("launching again")
    elif not reply["draining"]:
        output.tell(f"launching again on {node}")
    else:
        output.tell(f"{node} is not drained by itself; nothing is launched until drf undrain")
    left = reply.get("nodes")
    if node is None and left:
        output.say(f"drained by themselves: {', '.join(left)} (drf undrain --node NAME)")


def _about(node: str | None) -> dict[str, str]:
    return {} if node is None else {"node": node}


@click.command("reload")
def reload() -> None:
    """Read the configuration again: capacity, pools, limits, defaults. Running jobs keep what they
    have. For administrators."""
    for warning in connect().request("reload")["warnings"]:
        output.say(f"warning: {warning}")
    output.tell("reloaded")


@click.command("shutdown")
@click.option(
    "--kill-jobs",
    is_flag=True,
    help="First stop launching, then stop all running jobs (TERM, grace time, KILL).",
)
def shutdown(kill_jobs: bool) -> None:
    """End the daemon. Running jobs go on and the next daemon takes them over; queued ones wait for
    it. For administrators."""
    client = connect(may_start=False)
    reply = client.request("shutdown", kill_jobs=kill_jobs)
    running = reply["running"]
    jobs = f"{len(running)} running {'job' if len(running) == 1 else 'jobs'}"
    if kill_jobs:
        output.tell(f"stopping {jobs}")
        if running:
            with closing(client.another()) as asking:
                _await_end_with_launcher(client, asking, reply)
    client.await_end()
    if kill_jobs:
        output.tell(
            "drfd has ended; when it is started again, nothing is launched until drf undrain"
        )
    else:
        output.tell(f"drfd has ended; {jobs} left to the next one")


def _await_end_with_launcher(
    client: Connection, asking: Connection, reply: ShutdownReply | StatusReply
) -> None:
    """Wait until the daemon hangs up. Raises Unavailable if the launcher, which stops the jobs, is
    away: the daemon keeps the request, so the client need not wait."""
    while True:
        away = output.launcher_away(reply)
        if away is not None and (reply.get("launcher_away_s") or 0.0) > _PATIENCE_S:
            raise Unavailable(
                "launcher-away",
                away,
                hint="the request is kept: the jobs are stopped when the launcher is back, "
                "and then drfd ends",
            )
        if client.await_end(LOOK_S):
            return
        try:
            reply = asking.request("status", limit=1)
        except Unavailable:
            # The daemon has just ended.
            return
