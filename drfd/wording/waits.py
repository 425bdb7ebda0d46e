"""Why a job waits: a sentence, and short phrases for tables, for each kind of evidence in
`drfd.core.explain.reasons`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drfd.common.units import show_amount, show_duration, show_need, show_share_hours
from drfd.core.decisions.outcome import Attempts
from drfd.core.explain import reasons as why
from drfd.core.explain.holders import (
    Holder,
    ReservedFirst,
    ResourceShortage,
    ServedFirst,
    Shortfall,
)
from drfd.core.model.job import (
    JobState,
    Postponed,
    RequiredOutcome,
    Whose,
    after_word,
    show_path,
)
from drfd.core.model.limit_hours import Limit, LimitSteps
from drfd.core.scheduling.certainty import Certainty

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


#: What a GPU is that nobody uses and that is kept free all the same.
_LOST = "lost: its driver does not reach it any more"


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


def _undo(verb: str, fact: why.HeldBy) -> str:
    command = f"drf {verb} {fact.job}"
    return f"an administrator's {command}" if fact.is_admins else command


def wait_text(reason: why.WaitReason, show_clock: ShowClock) -> str:
    """Return the sentence, without a full stop."""
    fact = reason.evidence
    match fact:
        case why.HeldBy(is_suspended=True):
            return f"suspended by {fact.by}; {_undo('resume', fact)} lets it go on"
        case why.HeldBy():
            return f"held by {fact.by}; {_undo('release', fact)} lets it go"
        case why.Draining():
            return _draining(fact, show_clock)
        case why.NodesClosed():
            return _nodes_closed(fact, show_clock)
        case why.WindowAhead():
            return _window_ahead(fact, show_clock)
        case why.OutOfQuota():
            return _out_of_quota(fact, show_clock)
        case why.LauncherAway():
            return "the launcher is away; jobs start again when it is back"
        case why.NextPass():
            return "starts with the next pass"
        case why.NeverStarts():
            return _never_starts(fact)
        case why.HeldAndNever():
            release = _undo("release", fact.held)
            return f"{_never_starts(fact.never)}; it is held by {fact.held.by}, too ({release})"
        case why.DependenciesEnded():
            return "all that it waits for has ended: it is next"
        case why.WaitsFor():
            over = ", over others," if fact.is_through_others else ""
            more = f", and {fact.others} more" if fact.others else ""
            return f"waits{over} for {_awaited(fact.awaited, show_clock)}{more}"
        case why.StartsFrom():
            attempts = attempts_text(fact.attempts)
            about = f"{attempts}; it" if attempts else "it"
            return f"{about} may start from {show_clock(fact.at_s)} on"
        case Postponed():
            return _postponed(fact, show_clock)
        case why.BeyondMachine():
            return _beyond_machine(fact)
        case why.ArrayLimit():
            return _array_limit(fact)
        case why.GroupLimit():
            return _group_limit(fact)
        case why.BeyondLimit():
            return _beyond_limit(fact)
        case why.LimitAtThisHour():
            return _limit_at_this_hour(fact, show_clock)
        case why.PathLimit():
            until = "" if fact.until_s is None else f" until {show_clock(fact.until_s)},"
            return (
                f"{show_path(fact.path)} may hold {show_need(fact.axis, fact.limit)}{until} "
                f"and holds {show_amount(fact.axis, fact.held)}; "
                f"the job needs {show_amount(fact.axis, fact.needed)}"
                f"{_holders(fact.holders, fact.more, fact.axis, show_clock)}"
            )
        case why.TooLittleFree():
            return _shortfalls(fact.shortfalls, show_clock)
        case why.HasReservation():
            kept = f"{_shortfalls(fact.shortfalls, show_clock)}; what is given back is kept for it"
            at = show_clock(fact.start_s)
            match fact.certainty:
                case Certainty.LIMITS:
                    return f"{kept}, and it starts by {at}, when jobs reach their time limits"
                case Certainty.ESTIMATED:
                    return f"{kept}, and it starts about {at}, estimated from few earlier jobs"
                case Certainty.UNKNOWN:
                    return kept
        case why.ExternalUse() if fact.instances:
            by = "; ".join(
                f"{fact.shortage.axis} {each} is "
                + (f"used by processes of {', '.join(users)} outside drfd" if users else _LOST)
                for each, users in fact.instances
            )
            is_used = any(users for _, users in fact.instances)
            cause = f" ({_SETTING} = true leaves it to them)" if is_used else ""
            return f"{_shortage(fact.shortage)}; {by}{cause}"
        case why.ExternalUse() if fact.node:
            used = show_amount(fact.shortage.axis, fact.used)
            return (
                f"{_shortage(fact.shortage)}; jobs that were submitted to Slurm past drfd hold "
                f"{used} on {fact.node}"
            )
        case why.ExternalUse():
            used, kept = (
                show_amount(fact.shortage.axis, amount) for amount in (fact.used, fact.kept)
            )
            beyond = "" if used == kept else f", {kept} of it out of what is for jobs"
            return (
                f"{_shortage(fact.shortage)}; processes outside drfd use {used}{beyond} "
                f"({_SETTING} = true leaves it to them)"
            )
        case ServedFirst():
            return _served_first(fact, show_clock)
        case ReservedFirst():
            more = f" and {fact.count - 1} more" if fact.count > 1 else ""
            has = "have reservations" if fact.count > 1 else "has a reservation"
            come = "come" if fact.count > 1 else "comes"
            who = f"job {fact.job} ({fact.user}){more}"
            return f"{_shortfalls(fact.shortfalls, show_clock)}; {who} {has} and {come} first"
        case why.KeptFor():
            return f"it fits, but {_kept_for(fact, show_clock)}" + _own_start(fact, show_clock)
        case why.MayNotPass():
            return (
                f"it fits, but job {fact.job} comes first: "
                "it has waited so long that no later job may pass it"
            ) + _own_start(fact, show_clock)
        case why.SlotsTaken():
            return f"all {fact.count} slots are taken (policy slots)"
        case why.BehindInFifo():
            return (
                f"job {fact.job} ({fact.user}) comes first and waits itself; "
                "with the policy fifo nobody passes it"
            )


def limit_text(limit: Limit) -> str:
    """Return the amounts that a node may hold: "2 cores, 1 gpu"."""
    parts = [show_need(axis, most) for axis, most in limit.items()]
    return ", ".join(parts) if parts else "no limit"


def limit_hours_text(path: str, steps: LimitSteps, now_s: float, show_clock: ShowClock) -> str:
    """Return the limits of a node now, until when they hold, and those after."""
    text = f"limit of {show_path(path)}: {limit_text(steps.at(now_s))}"
    for at_s, limit in steps.after(now_s)[:1]:
        text += f" until {show_clock(at_s)}, then {limit_text(limit)}"
    return text


def unknown_start_text(reason: why.WaitReason, of: str | None = None) -> str | None:
    """Return why nobody can say when the job starts, if it is not for the end of jobs before it.

    `of` is the label of the job that waits for this reason, if it is another one that is before the
    job (`core.explain.obstacles`).
    """
    job = "it" if of is None else f"job {of}"
    match reason.evidence:
        case why.HeldBy(is_suspended=True):
            return f"somebody must resume {job} first"
        case why.HeldBy():
            return f"somebody must release {job} first"
        case why.Draining():
            return "no job starts until drf undrain"
        case why.NodesClosed(nodes=nodes):
            names = " or ".join(each.name for each in nodes)
            return f"no job starts on {names} just now"
        case why.WindowAhead(from_s=None):
            return f"{job} is too long for the times between maintenance windows"
        case why.LauncherAway():
            return "no job starts while the launcher is away"
        case (
            why.NeverStarts() | why.HeldAndNever() | why.WaitsFor(awaited=why.AwaitedJob(states=()))
        ):
            return f"what {job} waits for can no longer happen"
        case why.WaitsFor(awaited=why.AwaitedJob(states=((JobState.HELD, _),))):
            return f"the job that {job} waits for is held"
        case why.WaitsFor(awaited=why.AwaitedJob(states=((JobState.SUSPENDED, _),))):
            return f"the job that {job} waits for is suspended"
        case Postponed():
            return f"{_first(of)}nobody knows when the shortage ends"
        case why.BeyondMachine():
            return f"{job} needs more than the machine gives"
        case why.BeyondLimit() | why.LimitAtThisHour(from_s=None):
            return f"{job} needs more than its limit lets it have"
        case why.ExternalUse():
            return _first(of) + OUTSIDE
        case (
            why.TooLittleFree()
            | ServedFirst()
            | ReservedFirst()
            | why.HasReservation()
            | why.OutOfQuota() as fact
        ):
            is_outside = any(each.kept for each in fact.shortfalls)
            return _first(of) + OUTSIDE if is_outside else None
        case _:
            return None


def _first(of: str | None) -> str:
    return "" if of is None else f"job {of} comes first, and "


#: Why a start is unknown that rests on the load from outside drfd.
OUTSIDE = "nobody knows when processes outside jobs will use less"
#: The setting that makes jobs wait for that load.
_SETTING = "respect_external_load"


def wait_columns(reason: why.WaitReason, show_clock: ShowClock) -> WaitColumns:
    fact = reason.evidence
    match fact:
        case why.HeldBy():
            return WaitColumns("resume" if fact.is_suspended else "release", fact.by)
        case why.Draining():
            return WaitColumns("undrain", fact.by)
        case why.NodesClosed():
            return WaitColumns(" or ".join(each.name for each in fact.nodes))
        case why.WindowAhead():
            what = "never starts" if fact.from_s is None else f"end of {fact.name}"
            return WaitColumns(what, "maintenance window", until_s=fact.from_s)
        case why.OutOfQuota():
            name, by = "quota of the week", show_path(fact.use.path)
            if fact.use.waits:
                return WaitColumns(name, by, until_s=fact.use.restored_s)
            return WaitColumns(name, by, fact.shortfalls[0].shortage)
        case why.LauncherAway():
            return WaitColumns("launcher")
        case why.NextPass() | why.DependenciesEnded():
            return WaitColumns("next pass")
        case why.NeverStarts():
            return WaitColumns("never starts", f"job {fact.on} {fact.outcome}")
        case why.HeldAndNever(never=never):
            return WaitColumns("never starts", f"job {never.on} {never.outcome}")
        case why.WaitsFor():
            job = fact.awaited
            more = f" +{fact.others}" if fact.others else ""
            name = f"{'array' if job.is_array else 'job'} {job.label}{more}"
            return WaitColumns(name, job.user, until_s=job.until_s)
        case why.StartsFrom():
            return WaitColumns(show_clock(fact.at_s), until_s=fact.at_s)
        case Postponed():
            scopes = {Whose.MACHINE: "machine", Whose.USER: "user's limit", Whose.JOB: "own limit"}
            return WaitColumns(fact.resource, scopes[fact.whose], until_s=fact.until_s)
        case why.BeyondMachine():
            capacity = show_amount(fact.axis, fact.capacity)
            return WaitColumns(f"more {_axis_name(fact.axis)}", f"capacity {capacity}")
        case why.ArrayLimit():
            return WaitColumns(f"array {fact.array_id}", f"{fact.at_once} at once")
        case why.GroupLimit():
            return WaitColumns(f"group {fact.group}", f"{fact.at_once} at once")
        case why.BeyondLimit():
            most = f"{show_path(fact.path)}: {show_amount(fact.axis, fact.limit)}"
            return WaitColumns(f"limit of {_axis_name(fact.axis)}", most)
        case why.LimitAtThisHour():
            most = f"{show_path(fact.path)}: {show_amount(fact.axis, fact.limit)}"
            return WaitColumns(f"limit of {_axis_name(fact.axis)}", most, until_s=fact.from_s)
        case why.PathLimit():
            free = ResourceShortage(fact.axis, fact.needed, max(0, fact.limit - fact.held))
            name = f"limit of {_axis_name(fact.axis)}"
            return WaitColumns(name, show_path(fact.path), free)
        case why.TooLittleFree():
            return _short_columns(fact.shortfalls)
        case why.HasReservation():
            first = fact.shortfalls[0].shortage
            until_s = None if fact.certainty is Certainty.UNKNOWN else fact.start_s
            return WaitColumns(_axis_name(first.axis), "running jobs", first, until_s)
        case why.ExternalUse():
            return WaitColumns(_axis_name(fact.shortage.axis), "external load", fact.shortage)
        case ServedFirst():
            more = f" +{fact.count - 1}" if fact.count > 1 else ""
            by = show_path(fact.leaves[0])
            first = fact.shortfalls[0].shortage
            return WaitColumns(f"share of {_axis_name(first.axis)}", f"{by}{more}", first)
        case ReservedFirst():
            first = fact.shortfalls[0].shortage
            return WaitColumns(_axis_name(first.axis), f"reservation ({fact.user})", first)
        case why.KeptFor():
            by = "reservation" if fact.user is None else f"reservation ({fact.user})"
            return WaitColumns(f"start of {fact.job}", by, until_s=fact.start_s)
        case why.MayNotPass():
            return WaitColumns(f"start of {fact.job}", "starvation guard")
        case why.SlotsTaken():
            return WaitColumns("a slot", f"{fact.count} slots taken")
        case why.BehindInFifo():
            return WaitColumns(f"start of {fact.job}", f"job {fact.job} ({fact.user})")


def _draining(fact: why.Draining, show_clock: ShowClock) -> str:
    about = f": {fact.text}" if fact.text else ""
    since = show_clock(fact.since_s)
    return f"{fact.by} has stopped launching (drf drain) since {since}, until drf undrain{about}"


def _nodes_closed(fact: why.NodesClosed, show_clock: ShowClock) -> str:
    """Say what is the matter with each node, and when the job can start."""
    if len(fact.nodes) == 1 and fact.nodes[0] == why.ClosedNode(fact.nodes[0].name):
        return f"it asks for node {fact.nodes[0].name}, which is not configured any more"
    found = "; ".join(_closed_node(each, show_clock) for each in fact.nodes)
    then = "it starts there" if len(fact.nodes) == 1 else "it starts on one of them"
    return f"{found}; {then} when that is over, and no other node has enough for it"


def _closed_node(node: why.ClosedNode, show_clock: ShowClock) -> str:
    parts = []
    if node.away_since_s is not None:
        parts.append(f"has been away since {show_clock(node.away_since_s)}")
    if node.drained is not None:
        about = f": {node.drained.text}" if node.drained.text else ""
        since = show_clock(node.drained.since_s)
        parts.append(f"was drained by {node.drained.by} at {since}{about}")
    return f"node {node.name} {' and '.join(parts)}"


def _array_limit(fact: why.ArrayLimit) -> str:
    most = f"array {fact.array_id} runs {fact.at_once} tasks at once at the most"
    if fact.running >= fact.at_once:
        return most
    return f"{most}; {fact.running} run, and earlier ones come first"


def _beyond_limit(fact: why.BeyondLimit) -> str:
    """Describe a limit that is below the demand, and the change that lets the job start."""
    cure = ""
    if fact.is_changeable:
        limit = show_amount(fact.axis, fact.limit)
        names = {"cores": f"-c {limit}", "memory": f"-m {limit}"}
        is_rate = ":" in fact.axis or fact.axis in ("read", "write")
        option = "" if is_rate else names.get(fact.axis, f"--gres {fact.axis}={limit}") + " "
        cure = f"; drf set {option}{fact.job} lets it start, and so does a higher limit"
        if is_rate or not fact.limit:
            cure = "; a higher limit lets it start, or a smaller demand (drf set)"
    return (
        f"needs {show_need(fact.axis, fact.needed)}, and {show_path(fact.path)} may hold only "
        f"{show_amount(fact.axis, fact.limit)}, so it never starts{cure}"
    )


def _limit_at_this_hour(fact: why.LimitAtThisHour, show_clock: ShowClock) -> str:
    until = "" if fact.until_s is None else f" until {show_clock(fact.until_s)}"
    text = (
        f"needs {show_need(fact.axis, fact.needed)}, and {show_path(fact.path)} may hold "
        f"{show_amount(fact.axis, fact.limit)}{until}"
    )
    if fact.from_s is None:
        return f"{text}; at no hour do all its limits let it start"
    return (
        text
        if fact.from_s == fact.until_s
        else f"{text}; it may start from {show_clock(fact.from_s)} on"
    )


def _window_ahead(fact: why.WindowAhead, show_clock: ShowClock) -> str:
    about = f": {fact.text}" if fact.text else ""
    begin, end = show_clock(fact.begin_s), show_clock(fact.end_s)
    window = f"the maintenance window {fact.name}"
    limit, cure = "it has no time limit", "drf set -t TIME gives it one"
    if fact.limit_s is not None:
        limit = f"its time limit is {show_duration(fact.limit_s)}"
        cure = "drf set -t TIME gives it a shorter one"
    if fact.from_s is None:
        return (
            f"{limit}, longer than the times between maintenance windows ({fact.name}, {begin} to "
            f"{end}{about}), so it never starts; {cure}"
        )
    later = show_clock(fact.from_s)
    if fact.is_open:
        others = f", and this job not before {later}" if fact.from_s > fact.end_s else ""
        return f"{window} is open until {end}; nothing starts before{others}{about}"
    return (
        f"it might not end before {window} ({begin} to {end}{about}): {limit}; it starts from "
        f"{later} on, or {cure}"
    )


def _out_of_quota(fact: why.OutOfQuota, show_clock: ShowClock) -> str:
    use, until = fact.use, show_clock(fact.use.restored_s)
    used = f"{show_share_hours(use.used_hours)} of its {show_share_hours(use.quota_hours)}"
    text = f"{show_path(use.path)} has used {used} dominant-share-hours of this week"
    if use.waits:
        return f"{text}; its jobs wait until {until}, when the next week begins"
    return f"{_shortfalls(fact.shortfalls, show_clock)}; {text} and is served last until {until}"


def _group_limit(fact: why.GroupLimit) -> str:
    name = f"{fact.user}'s jobs of group {fact.group}"
    if fact.running >= fact.at_once:
        verb = "runs" if fact.running == 1 else "run"
        return f"{fact.running} of {name} {verb}; at most {fact.at_once} may run at once"
    return (
        f"at most {fact.at_once} of {name} may run at once; {fact.running} run, "
        "and others that need the same come first"
    )


def _axis_name(axis: str) -> str:
    """Return the name of a resource: "cores", "gpu", "gpu memory", "disk reads", "data writes"."""
    kind, _, which = axis.partition(":")
    if kind in ("read", "write"):
        return f"{which or 'disk'} {kind}s"
    return f"{which} {kind}" if which else axis


def attempts_text(fact: Attempts | None) -> str:
    """Describe the present or next attempt: "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)".

    The text is empty for a job without retries.
    """
    if fact is None:
        return ""
    before = f"; {fact.last_end}" if fact.last_end else ""
    return f"attempt {fact.present} of {fact.most}{before}"


def _never_starts(fact: why.NeverStarts) -> str:
    wish = "fail" if fact.required is RequiredOutcome.FAIL else "end well"
    left = ",".join(after_word(name, want) for name, want in fact.others)
    return (
        f"job {fact.on} ended {fact.outcome} and was to {wish}, so this one never starts; "
        f"drf cancel {fact.job}, or drf set --after {left or repr('')} {fact.job}"
    )


def _awaited(fact: why.AwaitedJob, show_clock: ShowClock) -> str:
    """Name the job, its owner, and its state and latest end.

    For an array, the text counts its tasks by state: "RUNNING (2 tasks) and PENDING (7)".
    """
    name = f"{'array' if fact.is_array else 'job'} {fact.label} ({fact.user})"
    if not fact.states:
        return f"{name}, which never starts: see drf why {fact.label}"
    (first, count), *others = fact.states
    if not others:
        if fact.until_s is None:
            return f"{name}, which is {first}"
        return f"{name}, which is {first} and ends by {show_clock(fact.until_s)} at the latest"
    parts = [f"{first} ({count} task{'' if count == 1 else 's'})"]
    parts += [f"{state} ({count})" for state, count in others]
    return f"{name}, which is {', '.join(parts[:-1])} and {parts[-1]}"


def _postponed(fact: Postponed, show_clock: ShowClock) -> str:
    """Describe the shortage of a postponed launch, its next try, and the remedy."""
    times = "" if fact.tries == 1 else f", after {fact.tries} tries in vain"
    remedy = _REMEDIES.get((fact.resource, fact.whose))
    return (
        f"{fact.text}; a launch is tried again at {show_clock(fact.until_s)}{times}"
        f"{'' if remedy is None else f'; {remedy}'}"
    )


def _beyond_machine(fact: why.BeyondMachine) -> str:
    without = ""
    if fact.is_dispensable:
        disk = fact.axis.partition(":")[2]
        option = f"--io {disk}=0" if disk else f"--gres {fact.axis}=0"
        without = f"; drf set {option} {fact.job} lets it do without"
    return (
        f"needs {show_need(fact.axis, fact.needed)}, and the machine gives only "
        f"{show_amount(fact.axis, fact.capacity)} since its configuration was changed{without}"
    )


def _shortage(fact: ResourceShortage) -> str:
    needed, free = show_need(fact.axis, fact.needed), show_amount(fact.axis, fact.free)
    return f"needs {needed}, {free} free"


def _short_columns(shortfalls: tuple[Shortfall, ...]) -> WaitColumns:
    first = shortfalls[0]
    name, holders = _axis_name(first.shortage.axis), first.holders
    if not holders:
        by = "other processes" if first.kept else ""
        return WaitColumns(name, by, first.shortage)
    others = len(holders) - 1 + first.more
    more = f" +{others}" if others else ""
    ends = [each.until_s for each in holders if each.until_s is not None]
    is_known = len(ends) == len(holders) and not first.more and not first.kept
    until_s = max(ends) if is_known and len(shortfalls) == 1 else None
    by = f"job {holders[0].job} ({holders[0].user}){more}"
    return WaitColumns(name, by, first.shortage, until_s)


#: The number of resources of which the sentence tells who holds them.
_TOLD = 2


def _shortfalls(shortfalls: tuple[Shortfall, ...], show_clock: ShowClock) -> str:
    """Name each resource that is short, and who holds it."""
    told = "; and ".join(_shortfall(each, show_clock) for each in shortfalls[:_TOLD])
    others = [_axis_name(each.shortage.axis) for each in shortfalls[_TOLD:]]
    return told + (f"; and too little is free of {', '.join(others)}" if others else "")


def _shortfall(fact: Shortfall, show_clock: ShowClock) -> str:
    axis = fact.shortage.axis
    text = _shortage(fact.shortage) + _holders(fact.holders, fact.more, axis, show_clock)
    if fact.kept:
        text += f"; {show_amount(axis, fact.kept)} is kept for processes outside jobs"
    return text


def _holders(holders: tuple[Holder, ...], more: int, axis: str, show_clock: ShowClock) -> str:
    parts = [_holder(each, axis, show_clock) for each in holders]
    if more:
        parts.append(f"{more} more job{'' if more == 1 else 's'} the rest")
    return "".join(f"; {part}" for part in parts)


def _holder(fact: Holder, axis: str, show_clock: ShowClock) -> str:
    until = "" if fact.until_s is None else f" until {show_clock(fact.until_s)} at the latest"
    whose = f", also of {fact.user}," if fact.is_own else f" ({fact.user})"
    return f"job {fact.job}{whose} holds {show_amount(axis, fact.amount)}{until}"


def _served_first(fact: ServedFirst, show_clock: ShowClock) -> str:
    names = [show_path(each) for each in fact.leaves]
    if fact.count > len(names):
        names.append(f"{fact.count - len(names)} more")
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    has, goes = ("has", "goes") if len(names) == 1 else ("have", "go")
    rule = f"{has} less and {goes} first" if fact.have_less else f"{goes} first by fair share"
    return f"{_shortfalls(fact.shortfalls, show_clock)}; {who} {rule}"


def _kept_for(fact: why.KeptFor, show_clock: ShowClock) -> str:
    """Describe a reservation: its job, the resources kept free, and the expected start."""
    behind = f"job {fact.behind}, which needs the same, comes first; " if fact.behind else ""
    who = fact.job if fact.user is None else f"{fact.job} ({fact.user})"
    needs = ", ".join(show_need(axis, amount) for axis, amount in fact.needs)
    kept = "everything that it needs" if fact.is_drain else "room"
    text = f"{behind}{kept} is kept free for job {who}, which needs {needs}"
    if fact.start_s is None:
        return text
    late = "" if behind or fact.is_drain else "; this job would not have ended by then"
    return f"{text} and is expected to start by {show_clock(fact.start_s)}{late}"


def _own_start(fact: why.KeptFor | why.MayNotPass, show_clock: ShowClock) -> str:
    at_s = fact.own_start_s
    return "" if at_s is None else f"; it starts by {show_clock(at_s)} itself"
