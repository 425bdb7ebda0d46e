"""drf status: the queue now."""

from __future__ import annotations

import click

from drfd_cli import output
from drfd_cli.options import as_json, connect, job_ids

_RECENT = 20


@click.command("status")
@job_ids(required=False)
@click.option("-u", "--user", help="Only this user's jobs.")
@click.option("-s", "--state", "states", multiple=True, help="Only jobs in this state.")
@click.option(
    "-a", "--all", "with_ended", is_flag=True, help=f"Also the last {_RECENT} ended jobs."
)
@as_json
def command(
    ids: tuple[int, ...], user: str | None, states: tuple[str, ...], with_ended: bool, as_json: bool
) -> None:
    """The queue now: what runs, what waits, and why."""
    select = {"ids": list(ids), "user": user, "states": [state.upper() for state in states]}
    reply = connect().request("status", select=select, ended=_RECENT if with_ended else 0)
    if as_json:
        output.print_json({key: reply[key] for key in ("jobs", "counts", "draining")})
        return
    if reply["draining"]:
        output.say("draining: nothing is launched until drf undrain")
    if not reply["jobs"]:
        output.say("no jobs")
        return
    table = output.new_table(
        ("ID", "right"), "NAME", "USER", "POOL", "STATE", ("CORES", "right"), ("MEM", "right"),
        ("IO R/W", "right"), ("TIME", "right"), "WHY",
    )  # fmt: skip
    for job in reply["jobs"]:
        output.add_row(
            table,
            [
                job["id"],
                output.clean(job["name"], 24),
                job["user"],
                job["pool"],
                job["state"],
                *output.show_demand(job["demand"]),
                output.show_elapsed(job),
                output.why_line(job),
            ],
        )
    output.print_table(table)
    click.echo(" ".join(f"{count} {state}" for state, count in sorted(reply["counts"].items())))
