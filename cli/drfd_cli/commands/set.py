"""drf set: change the demand and the start conditions of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import click

from drfd.client.submission import Rates, demand_fields, dependencies
from drfd_cli import output
from drfd_cli.commands.job_actions import act, selecting_by
from drfd_cli.options import (
    CORES,
    GRES,
    GROUP,
    LIMIT,
    MEMORY,
    PRIORITY,
    RATES,
    KnowingOthers,
    after_option,
    filters_in,
    new_begin_option,
)
from drfd_cli.output import Result


class _SetCommand(KnowingOthers):
    #: Names select jobs here, and do not change them.
    elsewhere: ClassVar[Mapping[str, str]] = {
        **KnowingOthers.elsewhere,
        **dict.fromkeys(("-J", "--job-name", "--label", "-L", "-l"), "--rename NAME"),
    }


@click.command("set", cls=_SetCommand)
@selecting_by("-g", "--in-group")
@click.option("-c", "--cores", type=CORES, help="CPU cores, such as 4 or 0.5.")
@click.option("-m", "--mem", type=MEMORY, help="Memory, such as 16G.")
@click.option("--io", type=RATES, multiple=True, help="Disk bandwidth per second, of each disk.")
@click.option("--gres", type=GRES, multiple=True, help="What is counted here; gpu=0 is none.")
@click.option("-t", "--time", type=LIMIT, help="Wall time: 90s, 12h, unlimited.")
@click.option("-p", "--pool", help="The pool that pays for it.")
@click.option("--priority", type=PRIORITY, help="Order among the jobs of your leaf.")
@click.option("--rename", metavar="NAME", help="Another name for lists.")
@click.option("--group", "into", type=GROUP, help="Another group of yours; '' for none.")
@after_option
@new_begin_option
def command(
    cores: int | None, mem: int | None, io: tuple[Rates, ...], gres: tuple[tuple[str, int], ...],
    time: int | None, pool: str | None, priority: int | None, rename: str | None,
    into: str | None,
    after: tuple[tuple[int, str], ...] | None, begin: int | None, **chosen: Any,
) -> Result:  # fmt: skip
    """Change what waiting jobs ask for, or the time limit of running ones, which only an
    administrator may lengthen. `--after ''` takes conditions away.
    `--group NAME%N` alone is for all waiting jobs of that group."""
    if rename is not None and not 1 <= len(rename) <= 256:
        raise click.UsageError("a name has 1 to 256 characters")
    given: dict[str, object] = {
        "demand": demand_fields(cores, mem, io, gres) or None,
        "time_limit_s": time,
        "pool": pool,
        "priority": priority,
        "name": rename,
        "after": dependencies(after),
        "begin_s": begin,
        "group": into,
    }
    asked = {key: value for key, value in given.items() if value is not None}
    if "%" in (chosen.get("group") or ""):
        raise click.UsageError(
            f"-g selects the jobs of a group; write --group {chosen['group']} for the limit"
        )
    if not asked:
        hint = "; -n selects jobs, --rename changes a name" if chosen.get("name") else ""
        if chosen.get("group"):
            hint = "; -g selects the jobs of a group, --group NAME%N puts jobs into one"
        options = "-c, -m, --io, --gres, -t, -p, --priority, ..."
        raise click.UsageError(f"say what to change: {options}{hint}")
    if chosen["ids"] and chosen["name"] is not None and rename is None:
        raise click.UsageError("-n selects jobs and cannot narrow ids; --rename changes a name")
    if into and list(asked) == ["group"] and not chosen["ids"] and not filters_in(chosen):
        # The limit belongs to each job that names it, and running jobs keep theirs.
        chosen.update(group=into.partition("%")[0], states=output.WAITING)
    return act("set", "changed", asked=asked, **chosen)
