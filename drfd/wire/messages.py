"""Requests, checked field by field as they come in: the daemon's side of the wire.

A client sends its request as one JSON object with `op` (the verb) and `v` (the version); the
daemon answers with one object, `{"ok": true, …}` or `{"ok": false, "error": {…}}`.
Who asks is never in a message: the kernel says it (SO_PEERCRED).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from drfd.errors import Refused
from drfd.wire.codec import VERSION
from drfd.wire.parts import (
    Demand,
    Dependencies,
    Id,
    Instant,
    Moment,
    Name,
    Notify,
    Past,
    Priority,
    Ref,
    Retry,
    Selection,
    SignalNumber,
    Text,
    Warn,
)


class Request(Struct, tag_field="op", forbid_unknown_fields=True, frozen=True, kw_only=True):
    v: int


class Hello(Request, tag="hello", frozen=True):
    """Version, mode and the asker's own identity, as the daemon sees it."""


class Submit(Request, tag="submit", frozen=True):
    argv: Annotated[list[str], Meta(max_length=100_000)]
    cwd: Annotated[str, Meta(pattern="^/", max_length=4096)]
    demand: Demand = Demand()
    name: Name | None = None
    pool: Name | None = None
    #: Seconds; left out: the daemon's default; 0: without limit.
    time_limit_s: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None
    priority: Priority = 0
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    env: dict[str, str] = {}
    stdout: Text | None = None
    stderr: Text | None = None
    #: Text that is run in place of argv[0], through its #! line.
    script: str | None = None
    attach: Text | None = None
    notify: Notify | None = None
    #: Indices of an array, such as `0-999%50`.
    array: Text | None = None
    held: bool = False
    preemptible: bool = False
    after: Dependencies = []
    #: Not before this time.
    begin_s: Moment | None = None
    retry: Retry | None = None
    warn: Warn | None = None
    #: Only say when it would start.
    dry_run: bool = False
    #: Chosen by the client: a second submission with it is answered with the job of the first.
    key: Name | None = None


class Status(Request, tag="status", frozen=True):
    select: Selection = Selection()
    #: Also the jobs that ended last, at most so many.
    ended: Annotated[int, Meta(ge=0, le=10_000)] = 0
    #: Every task of an array in a row of its own.
    tasks: bool = False
    #: A page at a time, of so many rows; without it, a list that is too long for one is refused.
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    #: The place of the last row of the page before, as that reply has it.
    after: tuple[Id, bool] | None = None


class Show(Request, tag="show", frozen=True):
    id: Ref


class Why(Request, tag="why", frozen=True):
    id: Ref


class History(Request, tag="history", frozen=True):
    """Ended jobs, newest first, a page at a time."""

    past: Past = Past()
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    #: The end and the id of the last job of the page before.
    after: tuple[Instant, Id] | None = None


class Report(Request, tag="report", frozen=True):
    """Used against declared, and what to ask for next time."""

    past: Past = Past()
    by: Literal["job", "name", "user", "pool"] = "name"
    #: So many rows; the rest is summed up in one.
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    #: Advice rests on so many successes at least.
    least: Annotated[int, Meta(ge=1, le=10)] = 3


class Wait(Request, tag="wait", frozen=True):
    ids: Annotated[list[Ref], Meta(min_length=1, max_length=100_000)]
    any: bool = False
    #: The jobs are cancelled when the asker hangs up before they have ended.
    attended: bool = False
    timeout_s: Annotated[float, Meta(ge=0)] | None = None


class Events(Request, tag="events", frozen=True):
    """A line for each job that changes: of `ids`, or of those that pass the filters; without any,
    of the asker's own. It ends when all of `ids` have ended."""

    select: Selection = Selection()
    #: A mark of an earlier stream: all that has changed since is told, too.
    after: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None
    #: First as they stand; without `after` in any case.
    standing: bool = False


class Snapshots(Request, tag="snapshots", frozen=True):
    """How everything stands, again and again, without end: what `drf top` shows."""

    #: No oftener than this.
    every_s: Annotated[float, Meta(ge=1, le=3600)] = 1.0


class Usage(Request, tag="usage", frozen=True):
    """How the use of a job, or of a user's jobs together, went. One of the two is asked for."""

    id: Ref | None = None
    user: Name | None = None


class OnMany(Request, frozen=True):
    """What is done to each job of a selection."""

    select: Selection


class Cancel(OnMany, tag="cancel", frozen=True):
    pass


class Hold(OnMany, tag="hold", frozen=True):
    pass


class Release(OnMany, tag="release", frozen=True):
    pass


class Suspend(OnMany, tag="suspend", frozen=True):
    pass


class Resume(OnMany, tag="resume", frozen=True):
    pass


class Signal(OnMany, tag="signal", frozen=True):
    signal: SignalNumber


class Set(OnMany, tag="set", frozen=True):
    """What is left out stays as it is; so does what the demand leaves out."""

    name: Name | None = None
    pool: Name | None = None
    priority: Priority | None = None
    #: 0: without limit.
    time_limit_s: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None
    demand: Demand = Demand()
    after: Dependencies | None = None
    #: 0: at once.
    begin_s: Moment | None = None


class Drain(Request, tag="drain", frozen=True):
    on: bool


class Reload(Request, tag="reload", frozen=True):
    """Read the configuration again."""


class Shutdown(Request, tag="shutdown", frozen=True):
    """End the daemon. Jobs run on, unless they are to be stopped first."""

    kill_jobs: bool = False


class Shares(Request, tag="shares", frozen=True):
    """The fair-share table."""


class Doctor(Request, tag="doctor", frozen=True):
    """What is enforced on this machine."""


#: With one reply.
Question = (
    Hello
    | Submit
    | Status
    | Show
    | Why
    | History
    | Report
    | Wait
    | Cancel
    | Hold
    | Release
    | Suspend
    | Resume
    | Signal
    | Set
    | Drain
    | Reload
    | Shutdown
    | Shares
    | Doctor
    | Usage
)
#: With lines until the asker hangs up, or all is told.
Stream = Events | Snapshots
AnyRequest = Question | Stream

_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)

#: A complaint quotes at most so much of what somebody sent.
_QUOTE = 200


class _Head(Struct):
    v: int = VERSION


_head_decoder = msgspec.json.Decoder(_Head)


def decode_request(line: bytes) -> AnyRequest:
    """Raises Refused with the place of the fault."""
    try:
        # First, because a client of another version may well ask for what we do not know.
        version = _head_decoder.decode(line).v
        if version == VERSION:
            return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = "".join(sign if sign.isprintable() else "?" for sign in str(error)[:_QUOTE])
        raise Refused("bad-request", f"the request cannot be understood: {text}") from None
    raise Refused(
        "unsupported",
        f"the client speaks protocol version {version}, the daemon version {VERSION}",
        hint="use the drf that was installed with the daemon",
    )
