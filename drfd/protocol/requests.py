"""Requests to the daemon, which checks each field when it decodes them.

A client sends a request as one JSON object with `op` (the verb) and `v` (the version). The daemon
answers with one object, `{"ok": true, …}` or `{"ok": false, "error": {…}}`, whose keys are declared
in `drfd.protocol.replies`. A request does not name its sender: the kernel does (SO_PEERCRED).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from drfd.common.errors import Refused, printable
from drfd.common.signals import is_signal
from drfd.core.model.job import Requested
from drfd.core.model.options import Changes, Demand, Name
from drfd.protocol import limits
from drfd.protocol.codec import VERSION

Id = Annotated[int, Meta(ge=1, le=1 << 53)]
#: A job or an array by its id, or a task: `42_7` has the index 7 in array 42. Tasks' names are
#: checked when they are looked up: here, a pattern for 60,000 names would stop the loop for 20 ms.
Ref = Id | Annotated[str, Meta(max_length=26)]
Text = Annotated[str, Meta(max_length=limits.TEXT_LENGTH)]
#: Unix time in whole seconds.
Moment = Annotated[int, Meta(ge=0, le=1 << 40)]
#: Unix time of a past event.
Instant = Annotated[float, Meta(ge=0, le=1e12)]
#: A signature (`drfd.payload.signature`). The launcher would hang up on a controller that passes on
#: one of another form.
Proof = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", max_length=64)]


#: States of jobs. The list is short because it is searched for each job. A pattern is checked
#: before the length of the list: for 150,000 states that would stop the loop for 60 ms.
States = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=16)]
_MOST_RANGES = 8


class NotifyPart(Struct, forbid_unknown_fields=True, frozen=True):
    """A command that is run as the job's user when the job starts, ends or fails."""

    on: Annotated[list[Literal["start", "end", "fail"]], Meta(min_length=1, max_length=3)]
    argv: Annotated[list[Text], Meta(min_length=1, max_length=64)]


class _Filter(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    #: Of ended jobs, the id of an array stands for all its tasks.
    ids: Annotated[list[Ref], Meta(max_length=limits.MOST_IDS)] = []
    user: Name | None = None
    #: A name or a pattern of the shell, such as `train-*`.
    name: Name | None = None
    #: The name of a group that users make of their own jobs.
    group: Name | None = None
    states: States = ()

    def __post_init__(self) -> None:
        # Each range of letters beyond ASCII takes some milliseconds to compile.
        if self.name is not None and self.name.count("[") > _MOST_RANGES:
            raise ValueError(f"a pattern may have {_MOST_RANGES} ranges in [] at most")


def pattern_of(name: str) -> str:
    """Return a pattern that matches the name, and hardly another."""
    return name.replace("[", "?")


class Selection(_Filter, frozen=True):
    """The jobs that a verb is about: those of `ids`, or all live jobs that pass every filter."""

    #: Without a filter: every job that the sender may change.
    everything: bool = False


class HistoryFilter(_Filter, frozen=True):
    """The ended jobs that pass every filter."""

    pool: Name | None = None
    #: Unix times: the job ended at or after the first, and before the second.
    since_s: Instant | None = None
    until_s: Instant | None = None


class DependencyPart(Struct, forbid_unknown_fields=True, frozen=True):
    """A job, or an array with all its tasks, that must succeed, fail, or end in any way first."""

    id: Ref
    want: Literal["ok", "any", "fail"] = "ok"


Dependencies = Annotated[list[DependencyPart], Meta(max_length=limits.MOST_AFTER)]


class Request(Struct, tag_field="op", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Any request. At run time it has no field, because a struct has one base with fields."""

    if TYPE_CHECKING:
        v: int


class _Request(Request, frozen=True):
    v: int


class HelloRequest(_Request, tag="hello", frozen=True):
    """Ask for the daemon's version, and for the sender's identity as the daemon sees it."""

    #: Have the sender's signing key written anew: it cannot be read.
    needs_key: bool = False


class SubmitRequest(Requested, Request, tag="submit", frozen=True):
    v: int
    argv: Annotated[list[str], Meta(max_length=limits.MOST_ARGUMENTS)]
    cwd: Annotated[str, Meta(pattern="^/", max_length=limits.TEXT_LENGTH)]
    demand: Demand = Demand()
    #: Of several machines, the only one that will do, and what features it must have.
    node: Name | None = None
    features: Annotated[list[Name], Meta(max_length=64)] = field(default_factory=list)
    name: Name | None = None
    pool: Name | None = None
    #: In seconds; 0 for no limit, null for the daemon's default.
    time_limit_s: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None
    env: dict[str, str] = field(default_factory=dict)
    stdout: Text | None = None
    stderr: Text | None = None
    #: Text that is run in place of argv[0], by the interpreter of its #! line.
    script: str | None = None
    attach: Text | None = None
    notify: NotifyPart | None = None
    #: Indices of an array, such as `0-999%50`.
    array: Text | None = None
    held: bool = False
    after: Dependencies = field(default_factory=list)
    #: The earliest start.
    begin_s: Moment | None = None
    #: A group of the user's own jobs, such as `sweep`, or `sweep%2` for two at once.
    group: Name | None = None
    #: Whether the job stays or is cancelled when a job that it waits for has ended otherwise than
    #: required; null for the daemon's default.
    if_never: Literal["keep", "cancel"] | None = None
    #: Return a forecast of the start, and submit nothing.
    dry_run: bool = False
    #: The user's signature of the command, where `hello` names a `key_file`.
    proof: Proof | None = None
    #: Chosen by the client. A second submission with the same key returns the job of the first.
    key: Name | None = None


class SubmitListRequest(_Request, tag="submit_list", frozen=True):
    """Submit many jobs. Each is accepted or refused by itself."""

    #: Requests to submit one job.
    jobs: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=limits.MOST_SUBMISSIONS)]


class StatusRequest(_Request, tag="status", frozen=True):
    select: Selection = Selection()
    #: The number of jobs to include that ended last.
    ended: Annotated[int, Meta(ge=0, le=10_000)] = 0
    #: Whether every task of an array gets a row of its own.
    tasks: bool = False
    #: Rows per page; without it, a list that is too long for one reply is refused.
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    #: `after` of the reply with the previous page.
    after: tuple[Id, bool] | None = None


class ShowRequest(_Request, tag="show", frozen=True):
    id: Ref


class WhyRequest(_Request, tag="why", frozen=True):
    id: Ref


class SubmissionRequest(_Request, tag="submission", frozen=True):
    """Ask for the submission of one's own job, live or ended, to submit it again."""

    id: Ref


class RecentRequest(_Request, tag="recent", frozen=True):
    """Ask for the jobs and arrays that the sender has submitted last, and for the names of pools,
    users and countable resources."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    #: Only jobs of exactly this name.
    name: Name | None = None


class HistoryRequest(_Request, tag="history", frozen=True):
    """Ask for ended jobs, newest first, a page at a time."""

    past: HistoryFilter = HistoryFilter()
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    #: End and id of the last job of the previous page.
    after: tuple[Instant, Id] | None = None


class ReportRequest(_Request, tag="report", frozen=True):
    """Ask for sums of what jobs used and declared, and for advice on the next request."""

    past: HistoryFilter = HistoryFilter()
    by: Literal["job", "name", "user", "pool"] = "name"
    #: The most rows; the rest is summed up in one.
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    #: The least number of completed jobs for advice.
    least: Annotated[int, Meta(ge=1, le=10)] = 3


class WaitRequest(_Request, tag="wait", frozen=True):
    ids: Annotated[list[Ref], Meta(min_length=1, max_length=limits.MOST_IDS)]
    any: bool = False
    #: Whether the jobs are cancelled when the client hangs up before they have ended.
    attended: bool = False
    timeout_s: Annotated[float, Meta(ge=0)] | None = None


class EventsRequest(_Request, tag="events", frozen=True):
    """Ask for a line for each change of the selected jobs, or else of the sender's own. The stream
    ends when all of `ids` have ended."""

    select: Selection = Selection()
    #: The mark of an earlier stream: the changes since then are sent first.
    after: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None
    #: Whether the jobs are sent as they stand first; without `after` they always are.
    standing: bool = False


class SnapshotsRequest(_Request, tag="snapshots", frozen=True):
    """Ask for snapshots of the whole service without end, as `drf top` shows them."""

    #: The shortest time between two snapshots, in seconds.
    every_s: Annotated[float, Meta(ge=1, le=3600)] = 1.0


class UsageRequest(_Request, tag="usage", frozen=True):
    """Ask for the use over time of a job."""

    id: Ref


class BatchRequest(Request, frozen=True):
    """A verb that is applied to each job of a selection. As `Request`, it has no field."""

    if TYPE_CHECKING:
        select: Selection


class _BatchRequest(BatchRequest, frozen=True):
    v: int
    select: Selection


class CancelRequest(_BatchRequest, tag="cancel", frozen=True):
    pass


class HoldRequest(_BatchRequest, tag="hold", frozen=True):
    pass


class ReleaseRequest(_BatchRequest, tag="release", frozen=True):
    pass


class RequeueRequest(_BatchRequest, tag="requeue", frozen=True):
    """Stop jobs and queue them again, with their ids."""

    #: Whether they are held from then on.
    held: bool = False


class SuspendRequest(_BatchRequest, tag="suspend", frozen=True):
    pass


class ResumeRequest(_BatchRequest, tag="resume", frozen=True):
    pass


class SignalRequest(_BatchRequest, tag="signal", frozen=True):
    #: The number, or more than that for some processes alone: see drfd.common.signals.
    signal: int

    def __post_init__(self) -> None:
        if not is_signal(self.signal):
            raise ValueError(f"{self.signal} is no signal")


class SetRequest(Changes, BatchRequest, tag="set", frozen=True):
    """Change jobs. Fields left out, those of the demand included, stay as they are."""

    v: int
    select: Selection
    after: Dependencies | None = None
    #: As for a submission; "" for no group.
    group: Annotated[str, Meta(max_length=limits.NAME_LENGTH)] | None = None


class DrainRequest(_Request, tag="drain", frozen=True):
    on: bool
    #: Shown to everybody while launching is stopped; null keeps the present one, "" removes it.
    reason: Annotated[str, Meta(max_length=300)] | None = None
    #: Of several machines, the one that it is about; null for all of them.
    node: Name | None = None


class ReloadRequest(_Request, tag="reload", frozen=True):
    """Reload the configuration."""


class ShutdownRequest(_Request, tag="shutdown", frozen=True):
    """End the daemon. Running jobs go on, unless `kill_jobs`."""

    kill_jobs: bool = False


class SharesRequest(_Request, tag="shares", frozen=True):
    """Ask for the fair-share table."""


class NodesRequest(_Request, tag="nodes", frozen=True):
    """Ask for the machines on which jobs run."""


class MetricsRequest(_Request, tag="metrics", frozen=True):
    """Ask for the metrics, as a text of OpenMetrics."""


class DoctorRequest(_Request, tag="doctor", frozen=True):
    """Ask what is enforced on this machine."""


class EndStrayRequest(_Request, tag="end_stray", frozen=True):
    """Remove an attempt that belongs to no job here: its processes, cgroup and record."""

    id: Id
    attempt: Id


class ExecRequest(_Request, tag="exec", frozen=True):
    """Move a process of the sender's into a running job of the sender's own."""

    id: Ref
    #: The attempt that it is moved into.
    attempt: Annotated[int, Meta(ge=0)]
    #: The process, by its pid and its start in clock ticks since boot (proc_pid_stat(5)).
    pid: Annotated[int, Meta(ge=1, le=1 << 30)]
    start_ticks: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    #: The sender's signature (`drfd.payload.signature.exec_digest`).
    proof: Proof | None = None


def _kinds(base: type[Request]) -> Iterator[type[Request]]:
    for kind in base.__subclasses__():
        yield from _kinds(kind) if kind.__subclasses__() else (kind,)


#: All requests by their verbs, and those about each job of a selection.
REQUESTS = {str(kind.__struct_config__.tag): kind for kind in _kinds(Request)}
BATCHES = tuple(_kinds(BatchRequest))
_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(reduce(or_, REQUESTS.values()))

#: Characters of the decoder's message that a refusal quotes.
_QUOTE = 200


class _RequestHead(Struct):
    v: int = VERSION


_head_decoder = msgspec.json.Decoder(_RequestHead)


def decode_request(line: bytes) -> Request:
    """Return the request of a line. Raises Refused with the place of the error."""
    try:
        request = _decoder.decode(line)
        version = request.v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # A client of another version may use verbs and fields that do not exist here.
        version = _version_of(line)
        if version == VERSION:
            text = printable(str(error)[:_QUOTE])
            raise limits.refusal_of(text) or Refused(
                "bad-request", f"the request cannot be understood: {text}"
            ) from None
    if version == VERSION:
        return request
    raise Refused(
        "unsupported",
        f"the client speaks protocol version {version}, the daemon version {VERSION}",
        hint="restart drfd, or use the drf that was installed with it",
    )


def _version_of(line: bytes) -> int:
    """Return the version in a request that cannot be decoded, or the daemon's if it has none."""
    try:
        return _head_decoder.decode(line).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return VERSION
