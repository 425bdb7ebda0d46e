"""Options and argument types that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from drfd.client.connection import Connection, choose
from drfd.client.words import (
    parse_after,
    parse_begin,
    parse_gres,
    parse_id,
    parse_ids,
    parse_outcomes,
    parse_signal,
    parse_warning,
)
from drfd.errors import Refused
from drfd.indices import read_array
from drfd.units import parse_cores, parse_disk_rates, parse_duration, parse_memory
from drfd_cli import output

F = TypeVar("F", bound=Callable[..., Any])


if TYPE_CHECKING:
    _AnyType = click.ParamType[Any]
else:
    # Older releases of click know no parameter there.
    _AnyType = click.ParamType


class Amount(_AnyType):
    """A text with a unit, read by a function of `drfd.units`."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except Refused as error:
            hint = f" ({error.hint})" if error.hint else ""
            self.fail(f"{error.text.partition(': ')[2] or error.text}{hint}", param, ctx)


def _checked_array(text: str) -> str:
    read_array(text)
    return text


def _whole(text: str, least: int, most: int) -> int:
    """Unlike click's own range it is not in the help, where few ever miss it."""
    if re.fullmatch("[+-]?[0-9]{1,9}", text.strip()) and least <= int(text) <= most:
        return int(text)
    hint = f"write a whole number from {least} to {most}"
    raise Refused("bad-value", f"number: {text[:40]!r} is out of range", hint=hint)


CORES = Amount("CORES", parse_cores)
MEMORY = Amount("SIZE", parse_memory)
RATES = Amount("[DISK=]READ[/WRITE]", parse_disk_rates)
GRES = Amount("NAME[=N]", parse_gres)
DURATION = Amount("TIME", parse_duration)
ARRAY = Amount("INDICES", _checked_array)
LIMIT = Amount("TIME", lambda text: 0 if text == "unlimited" else parse_duration(text))

PRIORITY = Amount("N", lambda text: _whole(text, -1_000_000, 1_000_000))
TIMES = Amount("N", lambda text: _whole(text, 0, 1000))
LINES = Amount("N", lambda text: _whole(text, 1, 1000))
SIGNAL = Amount("SIGNAL", parse_signal)
IDS = Amount("IDS", parse_ids)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
job_id = click.argument("job_id", metavar="ID", type=Amount("ID", parse_id))


def job_ids(*, required: bool) -> Callable[[F], F]:
    """Ids and ranges of ids (`3-7,9`), as one tuple of ids without doubles."""
    return click.argument(
        "ids", metavar="IDS...", nargs=-1, required=required, type=IDS, callback=_flat
    )


def _flat(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Lists that were given one by one, as one; None if none was."""
    if isinstance(param, click.Option) and not value:
        return None
    return tuple(dict.fromkeys(each for part in value for each in part))


def label(job: dict[str, Any]) -> str:
    """How people call a job: `42`, or `42_7` for a task of an array."""
    if job["array_index"] is None:
        return str(job["id"])
    return f"{job['array_id']}_{job['array_index']}"


#: What `--state` takes: the words of the state column.
STATES = (
    *("PENDING", "HELD", "STARTING", "RUNNING", "SUSPENDED", "STOPPING", "CLEANING"),
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "LIMIT_EXCEEDED"),
    *("LAUNCH_FAILED", "LOST"),
)


def state_option(text: str) -> Callable[[F], F]:
    return click.option(
        "-s", "--state", "states", metavar="STATE", multiple=True, help=text,
        type=click.Choice(STATES, case_sensitive=False),
    )  # fmt: skip


def _set_colour(context: click.Context, param: click.Parameter, value: str | None) -> None:
    # That of the verb comes later, and wins.
    if value is not None or context.parent is None:
        output.set_colour(value or "auto")


#: For `drf` itself and for every verb that has colours.
colour_option = click.option(
    "--color", metavar="WHEN", type=click.Choice(("auto", "always", "never")), expose_value=False,
    callback=_set_colour, help="Colours: auto (on a terminal), always or never.",
)  # fmt: skip


def parsable_options(columns: Collection[str]) -> Callable[[F], F]:
    """For lists: `--parsable`, `--no-header`, `--columns`, of these columns."""

    def split(context: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        chosen = value.split(",")
        for name in chosen:
            if name not in columns:
                raise click.BadParameter(
                    f"there is no column {name!r}; there are {', '.join(columns)}"
                )
        return chosen

    def add(function: F) -> F:
        for option in (
            click.option(
                "--columns", "chosen", metavar="NAMES", callback=split,
                help="Only these of --parsable, such as id,state.",
            ),
            click.option("--no-header", is_flag=True, help="Without the line of column names."),
            click.option(
                "--parsable", is_flag=True, help="Print lines for programs, split by tabs."
            ),
        ):  # fmt: skip
            function = option(function)
        return function

    return add


class GroupedHelp(click.Command):
    """Shows what the job asks for apart from the other options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in (*_GROUPS, "Options")}
        for param in self.get_params(ctx):
            # Newer releases of click have records of arguments, which the usage shows.
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                groups[_group_of(param.name)].append(record)
        width = max(len(record[0]) for records in groups.values() for record in records)
        for title, records in groups.items():
            if not records:
                continue
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in records])


#: By the names of the parameters.
_GROUPS = {
    "What it asks for": {"cores", "mem", "io", "gres", "time", "pool", "priority"},
    "When it runs": {"after", "begin", "hold", "array", "retry", "retry_on", "warn", "preemptible"},
}


def _group_of(parameter: str | None) -> str:
    return next((title for title, names in _GROUPS.items() if parameter in names), "Options")


def demand_options(function: F) -> F:
    """What a job asks for: the same for `submit` and `run`."""
    for option in reversed(
        (
            click.option("-c", "--cores", type=CORES, help="CPU cores, such as 4 or 0.5."),
            click.option("-m", "--mem", type=MEMORY, help="Memory, such as 16G."),
            click.option(
                "--io",
                type=RATES,
                multiple=True,
                help="Disk bandwidth per second, once for each disk.",
            ),
            click.option(
                "--gres",
                type=GRES,
                multiple=True,
                help="What is counted here, such as gpu=2; gpu is one.",
            ),
            click.option("-t", "--time", type=LIMIT, help="Wall time: 90s, 12h, unlimited."),
            click.option("-n", "--name", help="A name for lists."),
            click.option("-p", "--pool", help="The pool that pays for it."),
            click.option(
                "--priority",
                type=PRIORITY,
                default=0,
                help="Order among the jobs of your leaf.",
            ),
            click.option(
                "--export", multiple=True, metavar="NAME", help="Keep a secret variable too."
            ),
        )
    ):
        function = option(function)
    return function


after_option = click.option(
    "--after", metavar="ID[:HOW],...", type=Amount("IDS", parse_after),
    multiple=True, callback=_flat,
    help="After jobs have ended :ok (default), :any, :fail.",
)  # fmt: skip
begin_option = click.option(
    "--begin", type=Amount("TIME", parse_begin),
    help="Not before 18:00, now+2h, 2026-11-21T08:00, …",
)  # fmt: skip


def condition_options(function: F) -> F:
    """When a job may start, and what follows when it ends badly or too late."""
    for option in reversed(
        (
            after_option,
            begin_option,
            click.option(
                "--retry", metavar="N", type=TIMES,
                help="Try again when it fails, up to N times.",
            ),
            click.option(
                "--retry-on", metavar="WHAT,...", type=Amount("WHAT", parse_outcomes),
                help="On fail,launch,lost (default),timeout,memory,limit.",
            ),
            click.option(
                "--warn", metavar="SIGNAL@TIME", type=Amount("SIGNAL@TIME", parse_warning),
                help="A signal before the time limit, as USR1@60.",
            ),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def connect(*, may_start: bool = True) -> Connection:
    """To the daemon of the command line that is being run."""
    named = click.get_current_context().find_root().obj
    return choose(named, start=_start_own if may_start else None)


def _start_own(socket_path: Path) -> None:
    from drfd.client.autostart import start_daemon

    start_daemon(socket_path)
    output.say("started your own drfd (no system daemon is running here)")
