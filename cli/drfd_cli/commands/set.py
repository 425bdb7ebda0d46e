"""drf set: change the demand and the start conditions of jobs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import click

from drfd.client.submission import demand_fields, dependencies
from drfd_cli.commands.job_actions import act, selecting
from drfd_cli.options import CORES, GRES, LIMIT, MEMORY, PRIORITY, RATES, after_option, begin_option
from drfd_cli.output import Result


@click.command("set")
@selecting
@click.option("-c", "--cores", type=CORES, help="CPU cores, such as 4 or 0.5.")
@click.option("-m", "--mem", type=MEMORY, help="Memory, such as 16G.")
@click.option("--io", type=RATES, multiple=True, help="Disk bandwidth per second, of each disk.")
@click.option("--gres", type=GRES, multiple=True, help="What is counted here; gpu=0 is none.")
@click.option("-t", "--time", type=LIMIT, help="Wall time: 90s, 12h, unlimited.")
@click.option("-p", "--pool", help="The pool that pays for it.")
@click.option("--priority", type=PRIORITY, help="Order among the jobs of your leaf.")
@click.option("--rename", metavar="NAME", help="Another name for lists.")
@after_option
@begin_option
def command(**asked: Any) -> Result:
    """Change what waiting jobs ask for, or the time limit of running ones, which only an
    administrator may lengthen. `--after ''` takes conditions away."""
    changes = SetOptions(**{each.name: asked.pop(each.name) for each in fields(SetOptions)})
    return act("set", "changed", asked=_fields(changes), **asked)


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    """The values of the options that say what to change."""

    cores: int | None
    mem: int | None
    io: tuple[tuple[str | None, int, int], ...]
    gres: tuple[tuple[str, int], ...]
    time: int | None
    pool: str | None
    priority: int | None
    rename: str | None
    after: tuple[tuple[int, str], ...] | None
    begin: int | None


def _fields(changes: SetOptions) -> dict[str, object]:
    """Return the fields of the request. Raises UsageError if there are none."""
    if changes.rename is not None and not 1 <= len(changes.rename) <= 256:
        raise click.UsageError("a name has 1 to 256 signs")
    given: dict[str, object] = {
        "demand": demand_fields(changes.cores, changes.mem, changes.io, changes.gres) or None,
        "time_limit_s": changes.time,
        "pool": changes.pool,
        "priority": changes.priority,
        "name": changes.rename,
        "after": dependencies(changes.after),
        "begin_s": changes.begin,
    }
    asked = {key: value for key, value in given.items() if value is not None}
    if not asked:
        raise click.UsageError("say what to change: -c, -m, --io, --gres, -t, -p, --priority, ...")
    return asked
