"""Options and argument types that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from drfd.errors import Refused
from drfd.units import parse_cores, parse_duration, parse_memory, parse_rates
from drfd_cli.client import Client, choose

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
            self.fail(f"{error.text.partition(': ')[2] or error.text} ({error.hint})", param, ctx)


CORES = Amount("CORES", parse_cores)
MEMORY = Amount("SIZE", parse_memory)
RATES = Amount("READ[/WRITE]", parse_rates)
DURATION = Amount("TIME", parse_duration)
LIMIT = Amount("TIME", lambda text: 0 if text == "unlimited" else parse_duration(text))

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
_ID = click.IntRange(1, 1 << 53)
job_id = click.argument("job_id", metavar="ID", type=_ID)


def job_ids(*, required: bool) -> Callable[[F], F]:
    return click.argument("ids", metavar="IDS...", nargs=-1, required=required, type=_ID)


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


def demand_options(function: F) -> F:
    """What a job asks for: the same for `submit` and `run`."""
    for option in reversed(
        (
            click.option("-c", "--cores", type=CORES, help="CPU cores, such as 4 or 0.5."),
            click.option("-m", "--mem", type=MEMORY, help="Memory, such as 16G."),
            click.option("--io", type=RATES, help="Disk bandwidth per second, read[/write]."),
            click.option("-t", "--time", type=LIMIT, help="Wall time: 90s, 12h, unlimited."),
            click.option("-n", "--name", help="A name for lists."),
            click.option("-p", "--pool", help="The pool that pays for it."),
            click.option(
                "--priority",
                type=click.IntRange(-1_000_000, 1_000_000),
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


def connect(*, may_start: bool = True) -> Client:
    """The client for the command line that is being run."""
    return choose(click.get_current_context().find_root().obj, may_start=may_start)
