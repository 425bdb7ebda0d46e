"""Why a job waits: a class for each reason, with its code, its facts, its sentence, and the short
phrases that tables show.

A job is named by its label and a resource by its axis; amounts are in the unit of the axis, and
times are Unix times.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from drfd.common.units import (
    AXES,
    DISK_AXES,
    short_utc,
    show_amount,
    show_duration,
    show_need,
    utc_time,
)
from drfd.core.model.job import (
    JobState,
    Outcome,
    Postponed,
    RequiredOutcome,
    Whose,
    after_word,
    show_path,
)
from drfd.core.scheduling.release_times import Certainty

#: All codes that a client may receive.
Code = Literal[
    "RESOURCES", "FAIR_SHARE", "RESERVATION", "LIMIT", "DEPENDENCY", "DEPENDENCY_NEVER",
    "BEGIN_TIME", "HELD", "DRAINING", "NODE_AWAY", "MAINTENANCE", "EXTERNAL_LOAD",
    "MACHINE_SHORT", "STARTING_SOON",
]  # fmt: skip


class ResourceShortage(Struct, frozen=True):
    axis: str
    needed: int
    free: int

    @property
    def text(self) -> str:
        free = show_amount(self.axis, self.free)
        return f"needs {show_need(self.axis, self.needed)}, {free} free"


class Holder(Struct, frozen=True):
    job: str
    user: str
    amount: int
    until_s: float | None = None
    #: Whether it is of the same user as the waiting job.
    is_own: bool = False


class Shortfall(Struct, frozen=True):
    shortage: ResourceShortage
    holders: tuple[Holder, ...] = ()
    #: The number of further jobs whose part is lacking too.
    more: int = 0
    #: The amount that is kept free for processes outside drfd, or for its own, if it is lacking
    #: even when all jobs have given back what they hold.
    kept: int = 0


class Columns(Struct, frozen=True):
    """A reason in short phrases and values, of which a table shows as many as fit."""

    #: What lets the job start: "cores", "share of memory", "job 41", "release".
    waits_for: str
    #: What stands in the way: "job 40 (bob)", "external load". Empty if `waits_for` says it.
    blocked_by: str = ""
    shortage: ResourceShortage | None = None
    #: Unix time at which the obstacle is expected to end, or at which the launch is tried again.
    until_s: float | None = None


class Wait(Struct, frozen=True):
    """Why a job waits. A new reason is a class like those below, and a gate that finds it
    (`core.scheduling.gates`, `core.explain.reasons`)."""

    code: ClassVar[Code]
    #: Templates of the facts: the sentence, without a full stop, and the phrases of `Columns`.
    says: ClassVar[str] = ""
    waits_for: ClassVar[str] = ""
    blocked_by: ClassVar[str] = ""
    #: Why nobody can say when `{job}` starts, if it is not for the end of jobs before it.
    stuck: ClassVar[str] = ""
    #: The label of the job that must go on before this one.
    ahead: ClassVar[str] = ""

    @property
    def opens_s(self) -> float | None:
        """When the gate opens by time alone (Unix time), or None if it does not."""
        return None

    def text(self) -> str:
        return self.says.format(self)

    def columns(self) -> Columns:
        return Columns(self.waits_for.format(self), self.blocked_by.format(self))

    def unknown(self, job: str = "it") -> str | None:
        """Return why nobody can say when the job starts. `job` names the one that waits for this
        if that is another one before it: "job 3"."""
        first = "" if job == "it" else f"{job} comes first, and "
        return self.stuck.format(self, job=job, first=first) or None


# -- what is not about resources -------------------------------------------------------------------


class HeldBy(Wait, frozen=True):
    """The owner or an administrator holds the job, or keeps it suspended: then its state is
    SUSPENDED."""

    code = "HELD"
    says = "{0.did} by {0.by}; {0.remedy} lets it go"
    waits_for, blocked_by = "{0.undo}", "{0.by}"
    stuck = "somebody must {0.undo} {job} first"
    by: str
    job: str
    #: Whether somebody else than the owner did, who may not undo it.
    is_admins: bool = False
    did: ClassVar[str] = "held"
    undo: ClassVar[str] = "release"

    @property
    def remedy(self) -> str:
        command = f"drf {self.undo} {self.job}"
        return f"an administrator's {command}" if self.is_admins else command


class SuspendedBy(HeldBy, frozen=True):
    did, undo = "suspended", "resume"
    #: When it is ended unless it is resumed (Unix time), or None if it is not.
    ends_s: float | None = None

    def text(self) -> str:
        return f"{super().text()} on{self._end}"

    def unknown(self, job: str = "it") -> str | None:
        return f"{super().unknown(job)}{self._end}"

    @property
    def _end(self) -> str:
        return "" if self.ends_s is None else f", or it is ended at {utc_time(self.ends_s)}"


class Draining(Wait, frozen=True):
    """An administrator has stopped the start of jobs, here or on the nodes that the job needs."""

    code = "DRAINING"
    waits_for, blocked_by = "undrain", "{0.by}"
    stuck = "no job starts until drf undrain"
    #: The administrator, the Unix time since which it lasts, and the reason given, if any.
    by: str
    since_s: float
    reason: str = ""

    def text(self) -> str:
        return (
            f"{self.by} has stopped launching (drf drain) since {utc_time(self.since_s)}, "
            f"until drf undrain{_about(self.reason)}"
        )


class ClosedNode(Struct, frozen=True):
    """A node on which nothing starts now; one without more facts is not configured any more."""

    name: str
    #: Since when its launcher is away (Unix time), or None if it is there.
    away_since_s: float | None = None
    #: The drain of this node, or None if there is none.
    drained: Draining | None = None

    def text(self) -> str:
        parts = []
        if self.away_since_s is not None:
            parts.append(f"has been away since {utc_time(self.away_since_s)}")
        if self.drained is not None:
            by, since, about = self.drained.by, self.drained.since_s, _about(self.drained.reason)
            parts.append(f"was drained by {by} at {utc_time(since)}{about}")
        return f"node {self.name} {' and '.join(parts)}"


class NodesAway(Wait, frozen=True):
    """The only nodes that have enough for the job are unreachable, or not configured."""

    code: ClassVar[Code] = "NODE_AWAY"
    waits_for = "{0.names}"
    stuck = "no job starts on {0.names} just now"
    nodes: tuple[ClosedNode, ...]

    def text(self) -> str:
        if self.nodes == (ClosedNode(self.names),):
            return f"it asks for node {self.names}, which is not configured any more"
        found = "; ".join(each.text() for each in self.nodes)
        then = "it starts there" if len(self.nodes) == 1 else "it starts on one of them"
        return f"{found}; {then} when that is over, and no other node has enough for it"

    @property
    def names(self) -> str:
        return " or ".join(each.name for each in self.nodes)


class NodesDrained(NodesAway, frozen=True):
    code = "DRAINING"


class WindowAhead(Wait, frozen=True):
    """A maintenance window is open, or the job might not end before the next one begins."""

    code = "MAINTENANCE"
    stuck = "{job} is too long for the times between maintenance windows"
    #: The window's name and reason, begin and end.
    name: str
    reason: str
    begin_s: float
    end_s: float
    is_open: bool
    #: The job's time limit in seconds, of a suspended one what is left of it; None for no limit.
    limit_s: int | None
    #: From when on it may start; None if it is longer than all gaps between weekly windows.
    from_s: float | None

    def text(self) -> str:
        about, begin, end = _about(self.reason), utc_time(self.begin_s), utc_time(self.end_s)
        window = f"the maintenance window {self.name}"
        limit, cure = "it has no time limit", "drf set -t TIME gives it one"
        if self.limit_s is not None:
            limit = f"its time limit is {show_duration(self.limit_s)}"
            cure = "drf set -t TIME gives it a shorter one"
        if self.from_s is None:
            return (
                f"{limit}, longer than the times between maintenance windows ({self.name}, "
                f"{begin} to {end}{about}), so it never starts; {cure}"
            )
        later = utc_time(self.from_s)
        if self.is_open:
            others = f", and this job not before {later}" if self.from_s > self.end_s else ""
            return f"{window} is open until {end}; nothing starts before{others}{about}"
        return (
            f"it might not end before {window} ({begin} to {end}{about}): {limit}; it starts from "
            f"{later} on, or {cure}"
        )

    def columns(self) -> Columns:
        what = "never starts" if self.from_s is None else f"end of {self.name}"
        return Columns(what, "maintenance window", until_s=self.from_s)

    def unknown(self, job: str = "it") -> str | None:
        return super().unknown(job) if self.from_s is None else None


class LauncherAway(Wait, frozen=True):
    code = "STARTING_SOON"
    says = "the launcher is not connected; jobs start as soon as it is"
    waits_for = "launcher"
    stuck = "no job starts while the launcher is away"


class NextPass(Wait, frozen=True):
    """The job starts with the next scheduling pass."""

    code = "STARTING_SOON"
    says = "starts with the next pass"
    waits_for = "next pass"


class NeverStarts(Wait, frozen=True):
    """A job that this one waits for has ended otherwise than required: this one can never start."""

    code = "DEPENDENCY_NEVER"
    waits_for, blocked_by = "never starts", "job {0.on} {0.outcome}"
    stuck = "what {job} waits for can no longer happen"
    job: str
    on: str
    outcome: Outcome
    required: RequiredOutcome
    #: The jobs that it waits for besides, and how each must end.
    others: tuple[tuple[str, RequiredOutcome], ...] = ()
    #: Who holds the job too; a release would not let it start.
    held: HeldBy | None = None

    def text(self) -> str:
        wish = "fail" if self.required is RequiredOutcome.FAIL else "end well"
        left = ",".join(after_word(name, want) for name, want in self.others)
        text = (
            f"job {self.on} ended {self.outcome} and was to {wish}, so this one never starts; "
            f"drf cancel {self.job}, or drf set --after {left or repr('')} {self.job}"
        )
        if self.held is None:
            return text
        return f"{text}; it is held by {self.held.by}, too ({self.held.remedy})"


class DependenciesEnded(Wait, frozen=True):
    code = "DEPENDENCY"
    says = "all that it waits for has ended: it is next"
    waits_for = "next pass"


class AwaitedJob(Struct, frozen=True):
    """A job or an array that another job waits for."""

    label: str
    user: str
    is_array: bool
    #: The number of an array's live tasks in each state, the latest in a job's life first; of a
    #: job, its state and 1. Empty if it can never start.
    states: tuple[tuple[JobState, int], ...]
    #: The end of a running job at its time limit.
    until_s: float | None = None

    @property
    def name(self) -> str:
        return f"{'array' if self.is_array else 'job'} {self.label}"

    def text(self) -> str:
        """Name the job, its owner, and its state and latest end; the tasks of an array are counted
        by state: "RUNNING (2 tasks) and PENDING (7)"."""
        name = f"{self.name} ({self.user})"
        if not self.states:
            return f"{name}, which never starts: see drf why {self.label}"
        (first, count), *others = self.states
        if not others:
            until_s = self.until_s
            until = "" if until_s is None else f" and ends by {utc_time(until_s)} at the latest"
            return f"{name}, which is {first}{until}"
        parts = [f"{first} ({count} task{'' if count == 1 else 's'})"]
        parts += [f"{state} ({count})" for state, count in others]
        return f"{name}, which is {', '.join(parts[:-1])} and {parts[-1]}"


class WaitsFor(Wait, frozen=True):
    """A job that this one waits for (`--after`) has not ended."""

    code = "DEPENDENCY"
    ahead = "{0.awaited.label}"
    awaited: AwaitedJob
    others: int = 0
    #: Whether it waits for jobs that wait for this one, and not for this one itself.
    is_through_others: bool = False

    def text(self) -> str:
        over = ", over others," if self.is_through_others else ""
        more = f", and {self.others} more" if self.others else ""
        return f"waits{over} for {self.awaited.text()}{more}"

    def columns(self) -> Columns:
        more = f" +{self.others}" if self.others else ""
        awaited = self.awaited
        return Columns(f"{awaited.name}{more}", awaited.user, until_s=awaited.until_s)

    def unknown(self, job: str = "it") -> str | None:
        match self.awaited.states:
            case ():
                return NeverStarts.stuck.format(job=job)
            case ((JobState.HELD | JobState.SUSPENDED as state, _),):
                return f"the job that {job} waits for is {state.lower()}"
        return None


class StartsFrom(Wait, frozen=True):
    """The job's begin time has not come, or the pause before its next attempt is not over."""

    code = "BEGIN_TIME"
    at_s: float
    #: See `attempts_text`.
    attempts: str = ""

    def text(self) -> str:
        about = f"{self.attempts}; " if self.attempts else ""
        return f"{about}it may start from {utc_time(self.at_s)} on"

    def columns(self) -> Columns:
        return Columns(short_utc(self.at_s), until_s=self.at_s)


#: Remedies for a shortage, by resource and scope.
_REMEDIES = {
    ("processes", Whose.MACHINE): (
        "processes that end make room; an administrator can raise kernel.pid_max, or lower "
        "enforcement.processes_total"
    ),
    ("processes", Whose.JOB): (
        "processes of this user that end make room, those outside drfd included; an administrator "
        "can raise enforcement.processes_per_user"
    ),
    ("memory", Whose.MACHINE): "memory that is given back makes room; see drf doctor",
    ("memory", Whose.JOB): "with a higher memory limit it may start: drf set -m SIZE",
    ("descriptors", Whose.MACHINE): (
        "an administrator can raise fs.file-max, or LimitNOFILE of drfd-launcher.service"
    ),
    ("space", Whose.MACHINE): "an administrator can make room where drfd keeps its attempt files",
    ("space", Whose.JOB): "room on the disk of its files lets it start",
    ("quota", Whose.JOB): "files or keys that are removed make room within the quota",
    ("directory", Whose.JOB): "it starts when the directory of users (LDAP, SSSD, …) answers",
    ("launcher", Whose.MACHINE): "it starts when other jobs have ended",
}
_SCOPES = {Whose.MACHINE: "machine", Whose.JOB: "own limit"}


class MachineShort(Wait, frozen=True):
    """The launch of this or another job failed for a shortage (memory, processes, disk space)."""

    code = "MACHINE_SHORT"
    stuck = "{first}nobody knows when the shortage ends"
    shortage: Postponed

    @property
    def opens_s(self) -> float:
        return self.shortage.until_s

    def text(self) -> str:
        fact = self.shortage
        times = "" if fact.tries == 1 else f", after {fact.tries} tries in vain"
        remedy = _REMEDIES.get((fact.resource, fact.whose))
        return (
            f"{fact.text}; a launch is tried again at {utc_time(fact.until_s)}{times}"
            f"{'' if remedy is None else f'; {remedy}'}"
        )

    def columns(self) -> Columns:
        fact = self.shortage
        return Columns(fact.resource, _SCOPES[fact.whose], until_s=fact.until_s)


# -- what the machine, limits and other jobs leave -------------------------------------------------


class BeyondMachine(Wait, frozen=True):
    """The job needs more than the machine has since the configuration was changed."""

    code = "RESOURCES"
    stuck = "{job} needs more than the machine gives"
    job: str
    axis: str
    needed: int
    capacity: int
    #: Whether the disk or resource is gone and the job may still be changed to do without it.
    is_dispensable: bool

    def text(self) -> str:
        without = ""
        if self.is_dispensable:
            disk = self.axis.partition(":")[2]
            option = f"--io {disk}=0" if disk else f"--gres {self.axis}=0"
            without = f"; drf set {option} {self.job} lets it do without"
        return (
            f"needs {show_need(self.axis, self.needed)}, and the machine gives only "
            f"{show_amount(self.axis, self.capacity)} since its configuration was changed{without}"
        )

    def columns(self) -> Columns:
        capacity = show_amount(self.axis, self.capacity)
        return Columns(f"more {_axis_name(self.axis)}", f"capacity {capacity}")


class CountLimit(Wait, frozen=True):
    """As many tasks of the job's array, or jobs of its group, run as `%N` allows."""

    code = "LIMIT"
    waits_for, blocked_by = "{0.of}", "{0.at_once} at once"
    #: "array 41", "group sweep".
    of: str
    at_once: int
    #: The number of those that run; if it is less, earlier ones come first and wait themselves.
    running: int

    def text(self) -> str:
        most = f"{self.of} runs {self.at_once} at once at the most"
        if self.running >= self.at_once:
            return most
        return f"{most}; {self.running} run, and earlier ones come first"


class BeyondLimit(Wait, frozen=True):
    """The job needs more than its user or pool may ever hold."""

    code = "LIMIT"
    stuck = "{job} needs more than its limit lets it have"
    job: str
    path: str
    axis: str
    needed: int
    limit: int
    #: Whether the job may still be changed to ask for less.
    is_changeable: bool

    def text(self) -> str:
        cure, limit = "", show_amount(self.axis, self.limit)
        if self.is_changeable:
            row = AXES.get(self.axis)
            option = f"--gres {self.axis}={limit}" if row is None else f"{row.option} {limit}"
            cure = f"; drf set {option} {self.job} lets it start, and so does a higher limit"
            if ":" in self.axis or self.axis in DISK_AXES or not self.limit:
                cure = "; a higher limit lets it start, or a smaller demand (drf set)"
        return (
            f"needs {show_need(self.axis, self.needed)}, and {show_path(self.path)} may hold only "
            f"{limit}, so it never starts{cure}"
        )

    def columns(self) -> Columns:
        most = f"{show_path(self.path)}: {show_amount(self.axis, self.limit)}"
        return Columns(f"limit of {_axis_name(self.axis)}", most)


class BeyondLimitNow(Wait, frozen=True):
    """The job needs more than its user or pool may hold at this hour."""

    code = "LIMIT"
    path: str
    axis: str
    needed: int
    limit: int
    #: When the limit rises.
    until_s: float | None
    #: The first time at which all limits let the job start; None if there is none.
    from_s: float | None

    def text(self) -> str:
        until = "" if self.until_s is None else f" until {utc_time(self.until_s)}"
        then = ""
        if self.from_s is None:
            then = "; at no hour do all its limits let it start"
        elif self.from_s != self.until_s:
            then = f"; it may start from {utc_time(self.from_s)} on"
        return (
            f"needs {show_need(self.axis, self.needed)}, and {show_path(self.path)} may hold "
            f"{show_amount(self.axis, self.limit)}{until}{then}"
        )

    def columns(self) -> Columns:
        most = f"{show_path(self.path)}: {show_amount(self.axis, self.limit)}"
        return Columns(f"limit of {_axis_name(self.axis)}", most, until_s=self.from_s)

    def unknown(self, job: str = "it") -> str | None:
        return BeyondLimit.stuck.format(job=job) if self.from_s is None else None


class PathLimit(Wait, frozen=True):
    """The user or a pool holds as much as its limit allows."""

    code = "LIMIT"
    path: str
    axis: str
    limit: int
    held: int
    needed: int
    #: When the limit rises, if it depends on the hour.
    until_s: float | None = None
    #: Jobs whose part would be enough for the job, and the number of those not named.
    holders: tuple[Holder, ...] = ()
    more: int = 0

    def text(self) -> str:
        until = "" if self.until_s is None else f" until {utc_time(self.until_s)},"
        return (
            f"{show_path(self.path)} may hold {show_need(self.axis, self.limit)}{until} "
            f"and holds {show_amount(self.axis, self.held)}; "
            f"the job needs {show_amount(self.axis, self.needed)}"
            f"{_holders(self.holders, self.more, self.axis)}"
        )

    def columns(self) -> Columns:
        free = ResourceShortage(self.axis, self.needed, max(0, self.limit - self.held))
        what = f"limit of {_axis_name(self.axis)}"
        return Columns(what, show_path(self.path), free, self.until_s)


#: The number of resources of which the sentence tells who holds them.
_TOLD = 2
#: Why a start is unknown that rests on the load from outside drfd.
OUTSIDE = "nobody knows when processes outside jobs will use less"
#: What a GPU is that nobody uses and that is kept free all the same.
_LOST = "lost: its driver does not reach it any more"


class TooLittleFree(Wait, frozen=True):
    """The job needs more of a resource than is free; the jobs that hold it are named."""

    code: ClassVar[Code] = "RESOURCES"
    stuck = "{first}" + OUTSIDE
    shortfalls: tuple[Shortfall, ...]

    def text(self) -> str:
        """Name each resource that is short, and who holds it."""
        text = "; and ".join(_shortfall(each) for each in self.shortfalls[:_TOLD])
        others = ", ".join(_axis_name(each.shortage.axis) for each in self.shortfalls[_TOLD:])
        return f"{text}; and too little is free of {others}" if others else text

    def columns(self) -> Columns:
        first = self.shortfalls[0]
        holders = first.holders
        if not holders:
            return Columns(self.axis, "other processes" if first.kept else "", self.first)
        others = len(holders) - 1 + first.more
        more = f" +{others}" if others else ""
        ends = [each.until_s for each in holders if each.until_s is not None]
        is_known = len(ends) == len(holders) and not first.more and not first.kept
        until_s = max(ends) if is_known and len(self.shortfalls) == 1 else None
        by = f"job {holders[0].job} ({holders[0].user}){more}"
        return Columns(self.axis, by, self.first, until_s)

    def unknown(self, job: str = "it") -> str | None:
        is_outside = any(each.kept for each in self.shortfalls)
        return super().unknown(job) if is_outside else None

    @property
    def first(self) -> ResourceShortage:
        return self.shortfalls[0].shortage

    @property
    def axis(self) -> str:
        return _axis_name(self.first.axis)


class HasReservation(TooLittleFree, frozen=True):
    """Returned resources are reserved for the job."""

    start_s: float
    certainty: Certainty = Certainty.ESTIMATED

    def text(self) -> str:
        at = utc_time(self.start_s)
        then = {
            Certainty.LIMITS: f", and it starts by {at}, when jobs reach their time limits",
            Certainty.ESTIMATED: f", and it starts about {at}, estimated from few earlier jobs",
            Certainty.UNKNOWN: "",
        }
        return f"{super().text()}; what is given back is kept for it{then[self.certainty]}"

    def columns(self) -> Columns:
        until_s = None if self.certainty is Certainty.UNKNOWN else self.start_s
        return Columns(self.axis, "running jobs", self.first, until_s)


class OwesIdle(TooLittleFree, frozen=True):
    """Nothing is reserved for the job: reservations of its user have kept too much idle."""

    path: str
    #: When enough of it will be repaid (Unix time), if that is known.
    until_s: float | None

    def text(self) -> str:
        until = "" if self.until_s is None else f" before {utc_time(self.until_s)}"
        why = f"reservations of {show_path(self.path)} kept idle more than reservation_allowance"
        return f"{super().text()}; nothing is reserved for it{until}: {why}"


class WouldBeServedFirst(TooLittleFree, frozen=True):
    """Returned resources go first to users who have less of their share."""

    code = "FAIR_SHARE"
    #: The first of them, and the number of all.
    leaves: tuple[str, ...]
    count: int
    #: Whether all of them are less satisfied than the job's leaf. If not, their jobs stay within
    #: the share that they are promised, and the job does not.
    have_less: bool = True

    def text(self) -> str:
        names = [show_path(each) for each in self.leaves]
        if self.count > len(names):
            names.append(f"{self.count - len(names)} more")
        who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        has, goes, stays, its = ("has", "goes", "stays", "its")
        if len(names) > 1:
            has, goes, stays, its = ("have", "go", "stay", "their")
        rule = f"{has} less and {goes} first"
        if not self.have_less:
            rule = f"{goes} first and {stays} within {its} share; this job would not"
        return f"{super().text()}; {who} {rule}"

    def columns(self) -> Columns:
        more = f" +{self.count - 1}" if self.count > 1 else ""
        return Columns(f"share of {self.axis}", f"{show_path(self.leaves[0])}{more}", self.first)


class ReservedFirst(TooLittleFree, frozen=True):
    """Returned resources are reserved for jobs of others."""

    code = "RESERVATION"
    ahead = "{0.job}"
    #: The first of them, with its user, and the number of all.
    job: str
    user: str
    count: int

    def text(self) -> str:
        more, verbs = "", "has a reservation and comes"
        if self.count > 1:
            more, verbs = f" and {self.count - 1} more", "have reservations and come"
        return f"{super().text()}; job {self.job} ({self.user}){more} {verbs} first"

    def columns(self) -> Columns:
        return Columns(self.axis, f"reservation ({self.user})", self.first)


class ExternalUse(Wait, frozen=True):
    """Processes outside drfd use what the job needs."""

    code = "EXTERNAL_LOAD"
    stuck = "{first}" + OUTSIDE
    shortage: ResourceShortage
    #: Their use of the resource, and the part of it that is taken from the capacity for jobs.
    used: int
    kept: int
    #: Of a countable resource: the instances that they use, each with the names of their users.
    instances: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: Users with a program of theirs, and what its processes use of the resource, the most first.
    users: tuple[tuple[str, str, int], ...] = ()

    def text(self) -> str:
        axis = self.shortage.axis
        used, kept = show_amount(axis, self.used), show_amount(axis, self.kept)
        beyond = "" if used == kept else f", {kept} of it out of what is for jobs"
        whose = ", ".join(
            f"{program} of {user} {show_amount(axis, amount)}"
            for user, program, amount in self.users
        )
        by = f"processes outside drfd use {used}{f' ({whose})' if whose else ''}{beyond}"
        if self.instances:
            by = "; ".join(
                f"{axis} {each} is "
                + (f"used by processes of {', '.join(users)} outside drfd" if users else _LOST)
                for each, users in self.instances
            )
        return f"{self.shortage.text}; {by}"

    @property
    def setting(self) -> str | None:
        """The value of respect_external_load with which the job would not wait for this, as it is
        written in the configuration; None if there is none."""
        if self.instances and not any(users for _, users in self.instances):
            return None
        return '"memory"' if self.shortage.axis == "cores" else "false"

    def columns(self) -> Columns:
        return Columns(_axis_name(self.shortage.axis), "external load", self.shortage)


# -- parts of sentences ----------------------------------------------------------------------------


def _about(reason: str) -> str:
    return f": {reason}" if reason else ""


def _axis_name(axis: str) -> str:
    """Return the name of a resource: "cores", "gpu", "gpu memory", "disk reads", "data writes"."""
    kind, _, which = axis.partition(":")
    if kind in DISK_AXES:
        return f"{which or 'disk'} {kind}s"
    return f"{which} {kind}" if which else axis


def _shortfall(fact: Shortfall) -> str:
    axis = fact.shortage.axis
    text = fact.shortage.text + _holders(fact.holders, fact.more, axis)
    if fact.kept:
        text += f"; {show_amount(axis, fact.kept)} is kept for processes outside jobs"
    return text


def _holders(holders: tuple[Holder, ...], more: int, axis: str) -> str:
    parts = []
    for each in holders:
        until = "" if each.until_s is None else f" until {utc_time(each.until_s)} at the latest"
        whose = f", also of {each.user}," if each.is_own else f" ({each.user})"
        parts.append(f"job {each.job}{whose} holds {show_amount(axis, each.amount)}{until}")
    if more:
        parts.append(f"{more} more job{'' if more == 1 else 's'} the rest")
    return "".join(f"; {part}" for part in parts)
