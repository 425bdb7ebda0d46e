"""What requests consist of: numbers and text within bounds, and parts that verbs share."""

from __future__ import annotations

from signal import NSIG
from typing import Annotated, Literal

from msgspec import Meta, Struct

Id = Annotated[int, Meta(ge=1, le=1 << 53)]
#: A job or an array; `42_7` is the task with index 7 of array 42.
Ref = Id | Annotated[str, Meta(pattern=r"^[0-9]{1,15}_[0-9]{1,10}$")]
Amount = Annotated[int, Meta(ge=0, le=1 << 60)]
Text = Annotated[str, Meta(max_length=4096)]
#: Unix time in whole seconds.
Moment = Annotated[int, Meta(ge=0, le=1 << 40)]
#: Unix time of what has happened.
Instant = Annotated[float, Meta(ge=0, le=1e12)]
SignalNumber = Annotated[int, Meta(ge=1, lt=NSIG)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Rates(Struct, forbid_unknown_fields=True, frozen=True):
    """Of one disk."""

    read_bps: Amount
    write_bps: Amount


class Demand(Struct, forbid_unknown_fields=True, frozen=True):
    """What is left out takes the daemon's default."""

    cores_milli: Annotated[int, Meta(ge=10, le=1 << 40)] | None = None
    memory_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 60)] | None = None
    #: On the disk of the working directory, where there are several.
    read_bps: Amount | None = None
    write_bps: Amount | None = None
    #: By the disk's name.
    disks: dict[Name, Rates] = {}
    #: Countables; 0: none of it.
    gres: dict[Name, Annotated[int, Meta(ge=0, le=1 << 20)]] = {}


class Notify(Struct, forbid_unknown_fields=True, frozen=True):
    """A command to run as the job's user when it starts, ends, or ends otherwise than well."""

    on: Annotated[list[Literal["start", "end", "fail"]], Meta(min_length=1, max_length=3)]
    argv: Annotated[list[Text], Meta(min_length=1, max_length=64)]


class Selection(Struct, forbid_unknown_fields=True, frozen=True):
    """Which jobs a verb is about: those of `ids`, or all live ones that pass every filter given."""

    ids: Annotated[list[Ref], Meta(max_length=100_000)] = []
    user: Name | None = None
    #: May hold the signs of the shell: `train-*`.
    name: Name | None = None
    states: list[Name] = []
    #: No filter at all: every job that the asker may touch.
    everything: bool = False


class Past(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which ended jobs: those that pass everything given."""

    #: That of an array: all its tasks.
    ids: Annotated[list[Ref], Meta(max_length=100_000)] = []
    user: Name | None = None
    states: list[Name] = []
    name: Name | None = None
    pool: Name | None = None
    #: Unix times: ended from the first on, and before the second.
    since_s: Instant | None = None
    until_s: Instant | None = None


class Dependency(Struct, forbid_unknown_fields=True, frozen=True):
    """It waits for this job, or all tasks of this array, to end: well, badly, or at all."""

    id: Ref
    want: Literal["ok", "any", "fail"] = "ok"


Dependencies = Annotated[list[Dependency], Meta(max_length=1000)]


class Retry(Struct, forbid_unknown_fields=True, frozen=True):
    times: Annotated[int, Meta(ge=0, le=1000)]
    #: After which outcomes; none: those that another try may mend.
    on: list[
        Literal["FAILED", "LAUNCH_FAILED", "LIMIT_EXCEEDED", "LOST", "OUT_OF_MEMORY", "TIMEOUT"]
    ] = []


class Warn(Struct, forbid_unknown_fields=True, frozen=True):
    signal: SignalNumber
    #: Seconds before the time limit.
    before_s: Annotated[int, Meta(ge=1, le=1 << 40)]
