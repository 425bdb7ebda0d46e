"""Why a job waits: a sentence, and short phrases for tables, for each kind of evidence in
`drfd.core.explain.reasons`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drfd.common.units import show_amount, show_need
from drfd.core.decisions.outcome import Attempts
from drfd.core.explain.reasons import (
    ArrayLimit,
    AwaitedJob,
    BehindInFifo,
    BeyondMachine,
    DependenciesEnded,
    Draining,
    ExternalUse,
    HasReservation,
    HeldBy,
    KeptFor,
    LargestHolder,
    LauncherAway,
    MayNotPass,
    NeverStarts,
    NextPass,
    PathLimit,
    ResourceShortage,
    ServedFirst,
    SlotsTaken,
    StartsFrom,
    TooLittleFree,
    WaitReason,
    WaitsFor,
)
from drfd.core.model.job import Postponed, RequiredOutcome, Whose, show_path

#: Formats a Unix time as a clock time for people.
ShowClock = Callable[[float], str]

#: Remedies for a shortage, by resource and scope.
_REMEDIES = {
    ("processes", Whose.MACHINE): (
        "processes that end make room; an administrator can raise kernel.pid_max, or lower "
        "enforcement.processes_total"
    ),
    ("processes", Whose.USER): (
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
    ("quota", Whose.JOB): "files that are removed make room within the quota",
    ("quota", Whose.USER): "keys that are removed make room within the quota",
    ("directory", Whose.USER): "it starts when the directory of users (LDAP, SSSD, …) answers",
    ("launcher", Whose.MACHINE): "it starts when other jobs have ended",
}


@dataclass(frozen=True, slots=True)
class WaitColumns:
    """A reason in short phrases and values, of which a table shows as many as fit."""

    #: What lets the job start: "cores", "share of memory", "job 41", "release".
    waits_for: str
    #: What stands in the way: "job 40 (bob)", "external load". Empty if `waits_for` says it.
    blocked_by: str = ""
    shortage: ResourceShortage | None = None
    #: Unix time at which the obstacle is expected to end, or at which the launch is tried again.
    until_s: float | None = None


def wait_text(reason: WaitReason, show_clock: ShowClock) -> str:
    """Return the sentence, without a full stop."""
    told = reason.evidence
    match told:
        case HeldBy(is_suspended=True):
            return f"suspended by {told.by}; drf resume {told.job} lets it go on"
        case HeldBy():
            return f"held by {told.by}; drf release {told.job} lets it go"
        case Draining():
            return "launching is stopped (drf drain) until drf undrain"
        case LauncherAway():
            return "the launcher is away; jobs start again when it is back"
        case NextPass():
            return "starts with the next pass"
        case NeverStarts():
            return _never_starts(told)
        case DependenciesEnded():
            return "all that it waits for has ended: it is next"
        case WaitsFor():
            over = ", over others," if told.is_through_others else ""
            more = f", and {told.others} more" if told.others else ""
            return f"waits{over} for {_awaited(told.awaited, show_clock)}{more}"
        case StartsFrom():
            attempts = attempts_text(told.attempts)
            about = f"{attempts}; it" if attempts else "it"
            return f"{about} may start from {show_clock(told.at_s)} on"
        case Postponed():
            return _postponed(told, show_clock)
        case BeyondMachine():
            return _beyond_machine(told)
        case ArrayLimit():
            return f"array {told.array_id} runs {told.at_once} tasks at once at the most"
        case PathLimit():
            return (
                f"{told.path} may hold {show_need(told.axis, told.limit)} "
                f"and holds {show_amount(told.axis, told.held)}; "
                f"the job needs {show_amount(told.axis, told.needed)}"
            )
        case TooLittleFree():
            axis = told.shortage.axis
            holder = "" if told.holder is None else _holder(told.holder, axis, show_clock)
            return f"{_shortage(told.shortage)}{holder}"
        case HasReservation():
            return (
                f"{_shortage(told.shortage)}; what others give back is kept for it, "
                f"and it starts by {show_clock(told.start_s)} if they end as expected"
            )
        case ExternalUse():
            used, kept = (
                show_amount(told.shortage.axis, amount) for amount in (told.used, told.kept)
            )
            beyond = "" if used == kept else f", {kept} of it out of what is for jobs"
            return f"{_shortage(told.shortage)}; processes outside drfd use {used}{beyond}"
        case ServedFirst():
            return _served_first(told)
        case KeptFor():
            return f"it fits, but {_kept_for(told, show_clock)}" + _own_start(told, show_clock)
        case MayNotPass():
            return (
                f"it fits, but job {told.job} comes first: "
                "it has waited so long that no later job may pass it"
            ) + _own_start(told, show_clock)
        case SlotsTaken():
            return f"all {told.count} slots are taken (policy slots)"
        case BehindInFifo():
            return (
                f"job {told.job} ({told.user}) comes first and waits itself; "
                "with the policy fifo nobody passes it"
            )


def wait_columns(reason: WaitReason, show_clock: ShowClock) -> WaitColumns:
    told = reason.evidence
    match told:
        case HeldBy():
            return WaitColumns("resume" if told.is_suspended else "release", told.by)
        case Draining():
            return WaitColumns("undrain")
        case LauncherAway():
            return WaitColumns("launcher")
        case NextPass() | DependenciesEnded():
            return WaitColumns("next pass")
        case NeverStarts():
            return WaitColumns("never starts", f"job {told.on} {told.outcome}")
        case WaitsFor():
            job = told.awaited
            more = f" +{told.others}" if told.others else ""
            name = f"{'array' if job.is_array else 'job'} {job.label}{more}"
            return WaitColumns(name, job.user, until_s=job.until_s)
        case StartsFrom():
            return WaitColumns(show_clock(told.at_s), until_s=told.at_s)
        case Postponed():
            scopes = {Whose.MACHINE: "machine", Whose.USER: "user's limit", Whose.JOB: "own limit"}
            return WaitColumns(told.resource, scopes[told.whose], until_s=told.until_s)
        case BeyondMachine():
            capacity = show_amount(told.axis, told.capacity)
            return WaitColumns(f"more {_axis_name(told.axis)}", f"capacity {capacity}")
        case ArrayLimit():
            return WaitColumns(f"array {told.array_id}", f"{told.at_once} at once")
        case PathLimit():
            free = ResourceShortage(told.axis, told.needed, max(0, told.limit - told.held))
            name = f"limit of {_axis_name(told.axis)}"
            return WaitColumns(name, show_path(told.path), free)
        case TooLittleFree():
            name, holder = _axis_name(told.shortage.axis), told.holder
            if holder is None:
                return WaitColumns(name, shortage=told.shortage)
            by = f"job {holder.job} ({holder.user})"
            return WaitColumns(name, by, told.shortage, holder.until_s)
        case HasReservation():
            name = _axis_name(told.shortage.axis)
            return WaitColumns(name, "running jobs", told.shortage, told.start_s)
        case ExternalUse():
            return WaitColumns(_axis_name(told.shortage.axis), "external load", told.shortage)
        case ServedFirst():
            more = f" +{told.count - 1}" if told.count > 1 else ""
            by = show_path(told.leaves[0][0])
            name = f"share of {_axis_name(told.shortage.axis)}"
            return WaitColumns(name, f"{by}{more}", told.shortage)
        case KeptFor():
            by = "reservation" if told.user is None else f"reservation ({told.user})"
            return WaitColumns(f"start of {told.job}", by, until_s=told.start_s)
        case MayNotPass():
            return WaitColumns(f"start of {told.job}", "starvation guard")
        case SlotsTaken():
            return WaitColumns("a slot", f"{told.count} slots taken")
        case BehindInFifo():
            return WaitColumns(f"start of {told.job}", f"job {told.job} ({told.user})")


def _axis_name(axis: str) -> str:
    """Return the name of a resource: "cores", "gpu", "disk reads", "scratch writes"."""
    kind, _, disk = axis.partition(":")
    return f"{disk or 'disk'} {kind}s" if kind in ("read", "write") else axis


def attempts_text(told: Attempts | None) -> str:
    """Describe the present or next attempt: "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)".

    The text is empty for a job without retries.
    """
    if told is None:
        return ""
    before = f"; {told.last_end}" if told.last_end else ""
    return f"attempt {told.present} of {told.most}{before}"


def _never_starts(told: NeverStarts) -> str:
    wish = "fail" if told.required is RequiredOutcome.FAIL else "end well"
    return (
        f"job {told.on} ended {told.outcome} and was to {wish}, so this one never starts; "
        f"drf cancel {told.job}, or drf set --after '' {told.job}"
    )


def _awaited(told: AwaitedJob, show_clock: ShowClock) -> str:
    """Name the job, its owner, and its state and latest end.

    For an array, the text counts its tasks by state: "RUNNING (2 tasks) and PENDING (7)".
    """
    name = f"{'array' if told.is_array else 'job'} {told.label} ({told.user})"
    if not told.states:
        return f"{name}, which never starts: see drf why {told.label}"
    (first, count), *others = told.states
    if not others:
        if told.until_s is None:
            return f"{name}, which is {first}"
        return f"{name}, which is {first} and ends by {show_clock(told.until_s)} at the latest"
    parts = [f"{first} ({count} task{'' if count == 1 else 's'})"]
    parts += [f"{state} ({count})" for state, count in others]
    return f"{name}, which is {', '.join(parts[:-1])} and {parts[-1]}"


def _postponed(told: Postponed, show_clock: ShowClock) -> str:
    """Describe the shortage of a postponed launch, its next try, and the remedy."""
    times = "" if told.tries == 1 else f", after {told.tries} tries in vain"
    remedy = _REMEDIES.get((told.resource, told.whose))
    return (
        f"{told.text}; a launch is tried again at {show_clock(told.until_s)}{times}"
        f"{'' if remedy is None else f'; {remedy}'}"
    )


def _beyond_machine(told: BeyondMachine) -> str:
    without = ""
    if told.is_dispensable:
        disk = told.axis.partition(":")[2]
        option = f"--io {disk}=0" if disk else f"--gres {told.axis}=0"
        without = f"; drf set {option} {told.job} lets it do without"
    return (
        f"needs {show_need(told.axis, told.needed)}, and the machine gives only "
        f"{show_amount(told.axis, told.capacity)} since its configuration was changed{without}"
    )


def _shortage(told: ResourceShortage) -> str:
    needed, free = show_need(told.axis, told.needed), show_amount(told.axis, told.free)
    return f"needs {needed}, {free} free"


def _holder(told: LargestHolder, axis: str, show_clock: ShowClock) -> str:
    until = "" if told.until_s is None else f" until {show_clock(told.until_s)} at the latest"
    return f"; job {told.job} ({told.user}) holds {show_amount(axis, told.amount)}{until}"


def _served_first(told: ServedFirst) -> str:
    names = ", ".join(f"{leaf} at {float(level):.0%}" for leaf, level in told.leaves)
    others = told.count - len(told.leaves)
    more = f" and {others} more" if others else ""
    verb = "is" if told.count == 1 else "are"
    return (
        f"{_shortage(told.shortage)}; {names}{more} of the entitlement {verb} served first; "
        f"{told.leaf} is at {float(told.satisfaction):.0%}"
    )


def _kept_for(told: KeptFor, show_clock: ShowClock) -> str:
    """Describe a reservation: its job, the resources kept free, and the expected start."""
    behind = f"job {told.behind}, which needs the same, comes first; " if told.behind else ""
    who = told.job if told.user is None else f"{told.job} ({told.user})"
    needs = ", ".join(show_need(axis, amount) for axis, amount in told.needs)
    kept = "everything that it needs" if told.is_drain else "room"
    late = "" if behind or told.is_drain else "; this job would not have ended by then"
    return (
        f"{behind}{kept} is kept free for job {who}, which needs {needs} and is "
        f"expected to start by {show_clock(told.start_s)}{late}"
    )


def _own_start(told: KeptFor | MayNotPass, show_clock: ShowClock) -> str:
    at_s = told.own_start_s
    return "" if at_s is None else f"; it starts by {show_clock(at_s)} itself"
