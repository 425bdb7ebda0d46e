"""What is asked about one job: all for its page, or that something is done to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drfd.client.connection import Connection
from drfd.client.words import Ref, parse_id, parse_ids
from drfd.errors import DrfdError, Refused
from drfd_cli.output import clean
from drfd_cli.tail import Unreadable, last_bytes
from drfd_cli.top.detail import Detail
from drfd_cli.top.rows import Row
from drfd_cli.top.state import Act, Verb

#: So much of an output is read for its last lines.
_TAIL_BYTES = 1 << 15
_TAIL_LINES = 200
#: What programs send to a terminal to colour and place their words (ECMA-48).
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_DONE = {Verb.CANCEL: "cancelled", Verb.HOLD: "held", Verb.RELEASE: "released"}


@dataclass(frozen=True)
class Told:
    """What came of something that was to be done."""

    text: str
    is_bad: bool = False


def look(connection: Connection, row: Row, *, errors: bool) -> tuple[str, bool, Detail]:
    """All about a job, with its label and whether it has its `errors`."""
    label, ref = row["label"], _ref(row)
    try:
        show = connection.request("show", id=ref)
    except DrfdError as error:
        return label, errors, Detail(problem=str(error))
    why, usage = (_answer(connection, verb, ref) for verb in ("why", "usage"))
    lines, path, problem = _output(show, errors)
    return label, errors, Detail(show, why, usage, lines, path, problem)


def act(connection: Connection, wish: Act) -> Told:
    select = {"ids": _refs(wish)}
    reply = connection.request(wish.verb, select=select)
    if reply["failed"]:
        error = reply["failed"][0]["error"]
        hint = f" ({error['hint']})" if error["hint"] else ""
        return Told(clean(f"{error['text']}{hint}", 400), is_bad=True)
    if not reply["done"]:
        return Told(f"job {wish.label} is not there any more", is_bad=True)
    return Told(f"{_DONE[wish.verb]} job {wish.label}")


def _refs(wish: Act) -> list[Ref]:
    """What stands in the row, and no more: an array may have tasks that run."""
    array, _, tasks = wish.label.partition("_[")
    if tasks and wish.verb is not Verb.CANCEL:
        # It is about waiting tasks alone, and those that are alike stay together.
        return [int(array)]
    if "…" in tasks:
        hint = f"drf cancel {array} cancels the whole array"
        raise Refused("too-many", "these are more tasks than a row can name", hint=hint)
    return parse_ids(wish.label)


def _ref(row: Row) -> Ref:
    try:
        return parse_id(row["label"])
    except Refused:
        # A row for many tasks: their array.
        return int(row["id"])


def _answer(connection: Connection, verb: str, ref: Ref) -> Any:
    """None where the daemon has none: of an array, or to a verb that it does not know."""
    try:
        return connection.request(verb, id=ref)
    except Refused:
        return None


def _output(show: Row, errors: bool) -> tuple[tuple[str, ...], str, str]:
    """The last lines, where they are from, and why there are none."""
    if "job" not in show:
        return (), "", "each task of an array has an output of its own"
    job = show["job"]
    path = job["stderr" if errors else "stdout"]
    if path is None:
        return (), "", "only its owner is told where it is"
    if job["started_at"] is None:
        return (), path, "not started yet"
    try:
        data = last_bytes(path, _TAIL_BYTES)
    except Unreadable as error:
        return (), path, str(error)
    if data is None:
        return (), path, "the file is not there"
    return tuple(last_lines(data)), path, "" if data else "nothing yet"


def last_lines(data: bytes) -> Sequence[str]:
    """As they would stand on a terminal: a line that was written over shows what came last."""
    text = _SEQUENCES.sub("", data.decode(errors="replace"))
    lines = text.removesuffix("\n").split("\n")[-_TAIL_LINES:]
    return [line.rstrip("\r").rpartition("\r")[2].expandtabs() for line in lines]
