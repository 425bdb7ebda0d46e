"""What is asked about one job: all for its page, or that something is done to it."""

from __future__ import annotations

import re
import time
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

#: The answer to `why` takes the daemon some work, and seldom changes while the state does not.
_WHY_S = 15.0
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


def look(
    connection: Connection, row: Row, *, errors: bool, last: Detail | None
) -> tuple[str, bool, Detail]:
    """All about a job, with its label and whether it has its `errors`. `last`: what was heard of it
    before."""
    label, ref = row["label"], _ref(row)
    try:
        show = connection.request("show", id=ref)
    except DrfdError as error:
        return label, errors, Detail(problem=str(error))
    why, why_s = (last.why, last.why_s) if last is not None else (None, 0.0)
    now_s = time.monotonic()
    if now_s - why_s > _WHY_S or last is None or _state(last.show) != _state(show):
        why, why_s = _answer(connection, "why", ref), now_s
    usage = _answer(connection, "usage", ref)
    lines, path, problem = _output(show, errors)
    return label, errors, Detail(show, why, usage, why_s, lines, path, problem)


def _state(show: Row | None) -> Any:
    return None if show is None else (show.get("job") or show["array"]).get("state")


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
