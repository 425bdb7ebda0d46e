"""What `history` and `report` share: which ended jobs, and rows for programs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from drfd.client.connection import Connection
from drfd_cli import output
from drfd_cli.moments import parse_moment
from drfd_cli.options import Amount, job_ids, state_option

F = TypeVar("F", bound=Callable[..., Any])

MOMENT = Amount("TIME", parse_moment)
_TIME = "2026-03-01, 14:30, 7d."


def past_options(function: F) -> F:
    """The arguments and options that choose ended jobs."""
    for option in reversed(
        (
            job_ids(required=False),
            click.option("-u", "--user", help="Jobs of this user."),
            click.option("-a", "--all", "everybody", is_flag=True, help="Jobs of everybody."),
            state_option("Jobs that ended so."),
            click.option("--name", help="Jobs of this name."),
            click.option("-p", "--pool", help="Jobs of this pool and those below it."),
            click.option("--since", type=MOMENT, help=f"Ended since then: {_TIME}"),
            click.option("--until", type=MOMENT, help="Ended before then."),
        )
    ):
        function = option(function)
    return function


def chosen(
    client: Connection, *, ids: tuple[int, ...], user: str | None, everybody: bool,
    states: tuple[str, ...], name: str | None, pool: str | None, since: float | None,
    until: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The request's `past`. Who names nobody means his own jobs; an administrator, all."""
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")
    if user is not None and everybody:
        raise click.UsageError("--user and --all exclude each other")
    if user is None and not everybody and not ids:
        me = client.request("hello")
        user = None if me["admin"] else me["user"]
    past = {
        "ids": list(ids), "user": user, "states": list(states), "name": name, "pool": pool,
        "since_s": since, "until_s": until,
    }  # fmt: skip
    return {key: value for key, value in past.items() if value not in (None, [])}


def print_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Comma-separated, one line a row, null as nothing."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow("" if cell is None else output.clean(cell, 4096) for cell in row)
