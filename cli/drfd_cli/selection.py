"""Verbs that act on a selection of jobs: by id, or by user, name and state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from drfd.client.connection import Connection
from drfd.errors import BY_KIND, NotPermitted, Refused
from drfd.indices import joined, show_spans
from drfd_cli import output
from drfd_cli.options import as_json, connect, job_ids, state_option

F = TypeVar("F", bound=Callable[..., Any])

#: More than this many at once are asked about first, on a terminal.
_MANY = 5


def selecting(function: F) -> F:
    """The arguments and options that choose jobs."""
    for option in (
        as_json,
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("-a", "--all", "everything", is_flag=True, help="All; as root, everybody's."),
        state_option("Jobs in this state."),
        click.option("-n", "--name", help="Jobs of this name, or like `train-*`."),
        click.option("-u", "--user", help="Jobs of this user."),
        job_ids(required=False),
    ):
        function = option(function)
    return function


def act(
    verb: str,
    done_word: str,
    *,
    yes: bool,
    as_json: bool,
    asked: dict[str, Any] | None = None,
    **chosen: Any,
) -> int:
    """Send `verb`, with what else is `asked`, for the chosen jobs, print what came of it, and give
    the exit code."""
    client = connect()
    select = {
        "ids": list(chosen["ids"]),
        "user": chosen["user"],
        "name": chosen["name"],
        "states": list(chosen["states"]),
        "everything": chosen["everything"],
    }
    if not any(select.values()):
        raise click.UsageError(
            "name jobs by their ids, or choose with --user, --name, --state, --all"
        )
    if not yes and sys.stdin.isatty():
        count = len(select["ids"]) or _count(client, select)
        if count > _MANY:
            click.confirm(f"{verb} {count} jobs?", abort=True, err=True)
    reply = client.request(verb, select=select, **(asked or {}))
    if as_json:
        output.print_json({"done": reply["done"], "failed": reply["failed"]})
    else:
        labels: list[Any] = reply.get("labels") or reply["done"]
        kept = reply.get("kept", {})
        for label in _summed(labels):
            but = f", but not {label}_[{kept[label]}]" if label in kept else ""
            output.tell(f"{done_word} job {label}{but}")
        if not labels and not reply["failed"]:
            output.say("no jobs")
    for failure in reply["failed"]:
        error = failure["error"]
        hint = f" ({error['hint']})" if error["hint"] else ""
        output.say(output.clean(f"{error['text']}{hint}", 1000))
    return _exit_code(reply["failed"])


def _summed(labels: list[Any]) -> list[str]:
    """One name for all tasks of an array that were named one by one, where the first of them was:
    `42_[0-49]`."""
    tasks: dict[str, list[int]] = {}
    found: dict[str, str] = {}
    for label in map(str, labels):
        array, _, index = label.partition("_")
        if index.isdecimal():
            tasks.setdefault(array, []).append(int(index))
            found[f"{array}_"] = label
        else:
            found[label] = label
    for array, indices in tasks.items():
        if len(indices) > 1:
            spans = [(first, last, 1) for first, last in joined(indices)]
            found[f"{array}_"] = f"{array}_[{show_spans(spans)}]"
    return list(found.values())


def _count(client: Connection, select: dict[str, Any]) -> int:
    pages = client.pages("status", select=select)
    # Of others' jobs the command line is not shown, and they are not touched.
    mine = (job for page in pages for job in page["jobs"] if job["argv"] is not None)
    return sum(job.get("tasks", 1) for job in mine)


def _exit_code(failed: list[dict[str, Any]]) -> int:
    kinds = [BY_KIND.get(failure["error"]["kind"], Refused) for failure in failed]
    if any(issubclass(kind, NotPermitted) for kind in kinds):
        return NotPermitted.exit_code
    return Refused.exit_code if kinds else 0
