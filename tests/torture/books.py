"""Books kept a second time, plainly and apart from the product: one record a job, no sums.

They are told every event that has become durable, in order, and say what each of them must fulfil.
Amounts are named ("cores", "memory", …), and what is held is added up anew each time. What must
hold is a claim; one that does not hold ends the run.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from drfd.common.indices import count_of
from drfd.core.decisions.stimuli import ExitedReport
from drfd.core.fairness.rules import Rules
from drfd.core.model import events as ev
from drfd.core.model.job import Dependency, JobSpec, Outcome, RequiredOutcome
from drfd.core.model.resources import Axes, Resources


class Broken(AssertionError):
    """A run found something that must not be."""

    def __init__(self, what: str, *about: object) -> None:
        super().__init__(": ".join([what, ", ".join(map(str, about))] if about else [what]))
        #: Without what it is about: two runs with the same of it have found the same.
        self.what = what


def claim(holds: object, what: str, *about: object) -> None:
    """`what`: what is wrong if it does not hold. What it is `about` is only then made a text."""
    if not holds:
        raise Broken(what, *about)


Amounts = dict[str, int]
WAITS, HOLDS = ("PENDING", "HELD"), ("STARTING", "RUNNING", "SUSPENDED", "STOPPING", "CLEANING")
#: The longest pause before another try, in seconds.
LONGEST_S = 300
_RATES = ("cores", "read", "write")


def amounts(demand: Resources, axes: Axes | None = None) -> Amounts:
    """What a job asks for; on a machine with these axes, if GPUs are among it."""
    gres = dict(demand.gres)
    if axes is not None and axes.shared is not None:
        name, _ = axes.shared
        gres[f"memory:{name}"] = sum(parts(demand, axes.shared))
        gres.pop(name, None)
    found = {
        "cores": demand.cores_milli,
        "memory": demand.memory_bytes,
        "read": demand.read_bps,
        "write": demand.write_bps,
        **gres,
    }
    return {name: amount for name, amount in found.items() if amount}


def parts(demand: Resources, shared: tuple[str, int]) -> list[int]:
    """How much of each GPU that several jobs may share a job takes."""
    name, size = shared
    count, memory = dict(demand.gres).get(name, 0), dict(demand.gres_memory).get(name, size)
    return [min(memory, size)] if count == 1 else [size] * count


@dataclass
class Record:
    id: int
    spec: JobSpec
    state: str
    array_id: int | None = None
    attempt: int = 0
    #: Jobs that it waits for, and whether one has ended otherwise than it should.
    awaits: set[int] = field(default_factory=set)
    is_never: bool = False
    not_before_s: int | None = None
    held_by: str | None = None
    #: Since when its user keeps it from running, on the monotonic clock.
    kept_mono_s: float | None = None
    instances: dict[str, tuple[str, ...]] = field(default_factory=dict)
    freezing: bool = False
    is_frozen: bool = False
    #: On the monotonic clock: when it was started, less the time that it was frozen.
    counts_from_mono_s: float = 0.0
    #: Somebody wants it to end; it is to begin anew.
    stop: Outcome | None = None
    #: When it was first asked to, on the monotonic clock.
    stop_mono_s: float | None = None
    preemptions: int = 0
    is_requeued: bool = False
    #: Its launch was put off, and it may not be tried again before this Unix time.
    is_postponed: bool = False
    alone_until_s: int | None = None
    retries: int = 0
    outcome: Outcome | None = None
    #: Whether nothing was left of it when it ended.
    is_gone: bool = False
    #: Since when it gives back what it has, on the monotonic clock; each step counts anew.
    leaves_since_mono_s: float | None = None

    @property
    def key(self) -> tuple[int, int]:
        return -self.spec.priority, self.id

    @property
    def only_notifies(self) -> bool:
        """Is nothing left of it but the notification of its owner?"""
        notify, retry, outcome = self.spec.notify, self.spec.retry, self.outcome
        if self.state != "CLEANING" or not self.is_gone or not notify or outcome is None:
            return False
        tries = retry is not None and outcome in retry.on and self.retries < retry.times
        wants = {"end"} if outcome is Outcome.COMPLETED else {"end", "fail"}
        return not wants.isdisjoint(notify) and not (tries and outcome is not Outcome.CANCELLED)

    @property
    def departure(self) -> str | None:
        """The step by which it gives back what it has, or None if it keeps it."""
        if self.state in ("STOPPING", "CLEANING"):
            return self.state
        return "freezing" if self.freezing else None

    def is_eligible(self, at_s: float) -> bool:
        late = self.not_before_s is None or self.not_before_s <= at_s
        return self.state == "PENDING" and not self.awaits and not self.is_never and late


@dataclass
class Turn:
    """What was known when the events of a turn were decided."""

    rules: Rules
    #: On the monotonic clock.
    mono_s: float
    kept: Amounts
    #: For whom the pass before had kept a place.
    reserved: frozenset[int]
    #: How an attempt has really ended, if its runner has written that down.
    real_end: Callable[[tuple[int, int]], ExitedReport | None]


@dataclass
class Books:
    jobs: dict[int, Record] = field(default_factory=dict)
    #: Of each array: its tasks, and how many may run at once.
    arrays: dict[int, range] = field(default_factory=dict)
    at_once: dict[int, int | None] = field(default_factory=dict)
    #: How each job and array has ended.
    ended: dict[int, Outcome] = field(default_factory=dict)
    draining: bool = False
    seen: Counter[str] = field(default_factory=Counter)

    # -- what is asked of them ------------------------------------------------------------------

    def live(self) -> Iterator[Record]:
        return (each for each in self.jobs.values() if each.state != "ENDED")

    def held(self, job: Record, rules: Rules) -> Amounts:
        if job.state not in HOLDS:
            return {}
        found = amounts(job.spec.demand, rules.axes)
        if job.only_notifies:
            most = {"cores": 250, "memory": 256 << 20}
            kept = {*most, *_RATES} & found.keys()
            return {name: min(found[name], most.get(name, found[name])) for name in kept}
        there = dict(rules.axes.instances)
        for name, names in job.instances.items():
            # What the machine has no more is nobody's share of it.
            gone = len(set(names) - set(there.get(name, ())))
            if rules.axes.is_shared(name):
                each, *_ = parts(job.spec.demand, rules.axes.shared or (name, 0))
                found[f"memory:{name}"] -= gone * each
            else:
                found[name] -= gone
        if job.is_frozen:
            found = {name: each for name, each in found.items() if name not in _RATES}
        return {name: each for name, each in found.items() if each}

    def booked(self, rules: Rules, below: str = "root") -> Counter[str]:
        found: Counter[str] = Counter()
        for job in self.jobs.values():
            if job.state in HOLDS and f"{job.spec.leaf}.".startswith(f"{below}."):
                found.update(self.held(job, rules))
        return found

    def wanted(self, job: Record, rules: Rules) -> Amounts:
        """What it must find free to start, or to go on."""
        found = amounts(job.spec.demand, rules.axes)
        if job.is_frozen:
            return {name: each for name, each in found.items() if name in _RATES}
        return found

    def free(self, turn: Turn) -> Counter[str]:
        free = Counter(amounts(turn.rules.capacity, turn.rules.axes))
        free.subtract(self.booked(turn.rules))
        free.subtract(turn.kept)
        return free

    def fits(self, job: Record, turn: Turn) -> bool:
        free, wanted = self.free(turn), self.wanted(job, turn.rules)
        return all(each <= free[name] for name, each in wanted.items()) and (
            job.is_frozen or self._has_gpus(job, turn.rules)
        )

    def free_of_gpus(self, rules: Rules) -> Counter[str]:
        """What each GPU has left that several jobs may share."""
        name, size = rules.axes.shared or ("", 0)
        free = Counter(dict.fromkeys(dict(rules.axes.instances).get(name, ()), size))
        for job in self.jobs.values():
            if job.state in HOLDS and not job.only_notifies:
                own = job.instances.get(name, ())
                free.subtract(dict(zip(own, parts(job.spec.demand, (name, size)), strict=True)))
        return free

    def _has_gpus(self, job: Record, rules: Rules) -> bool:
        if rules.axes.shared is None:
            return True
        there = dict(rules.axes.instances).get(rules.axes.shared[0], ())
        free, wanted = self.free_of_gpus(rules), parts(job.spec.demand, rules.axes.shared)
        return sum(free[each] >= wanted[0] for each in there) >= len(wanted) if wanted else True

    def is_within_limits(self, job: Record, rules: Rules) -> bool:
        wanted = self.wanted(job, rules)
        claims = {f"root.{name}": pool for name, pool in rules.pools.items()}
        for path, pool in claims.items():
            if pool.limit and f"{job.spec.leaf}.".startswith(f"{path}."):
                used = self.booked(rules, path)
                for name, most in pool.limit.items():
                    if wanted.get(name) and used[name] + wanted[name] > most:
                        return False
        return True

    def active(self, array_id: int) -> int:
        tasks = (self.jobs[each] for each in self.arrays[array_id])
        return sum(each.state in HOLDS for each in tasks)

    def is_shut_out(self, job: Record) -> bool:
        return self._is_beyond_array(job) or self._is_beyond_group(job)

    def in_group(self, job: Record) -> int:
        """How many jobs of its user's group run."""
        group = job.spec.group
        return sum(
            each.state in HOLDS
            and each.spec.user == job.spec.user
            and each.spec.group is not None
            and group is not None
            and each.spec.group.name == group.name
            for each in self.jobs.values()
        )

    def _is_beyond_group(self, job: Record) -> bool:
        """Would one job too many of its group run, or do earlier ones like it come first?"""
        group = job.spec.group
        if group is None or group.at_once is None or job.state != "PENDING":
            return False
        before = [
            each
            for each in self.jobs.values()
            if self._waits_like(each, job)
            and each.key < job.key
            and (each.spec.leaf, each.spec.group) == (job.spec.leaf, group)
            and each.spec.demand == job.spec.demand
            and not self._is_beyond_array(each)
        ]
        return self.in_group(job) + len(before) >= group.at_once

    def _is_beyond_array(self, job: Record) -> bool:
        """Would one task too many of its array run, or do earlier ones like it come first?"""
        most = None if job.array_id is None else self.at_once[job.array_id]
        if most is None or job.array_id is None:
            return False
        tasks = (self.jobs[each] for each in self.arrays[job.array_id])
        before = [
            each
            for each in tasks
            if self._waits_like(each, job)
            and each.key < job.key
            and (each.spec.leaf, each.spec.demand) == (job.spec.leaf, job.spec.demand)
        ]
        return self.active(job.array_id) + len(before) >= most

    def _waits_like(self, one: Record, other: Record) -> bool:
        """Pending, with nothing to wait for but room and others of its array."""
        return one.is_eligible(self._at_s) and one.id != other.id

    _at_s: float = 0.0

    # -- what has happened ----------------------------------------------------------------------

    def take(self, event: ev.Event, turn: Turn) -> None:
        self.seen[type(event).__name__] += 1
        self._at_s = event.at_s
        match event:
            case ev.Drained():
                self.draining = event.on
            case ev.IdsRaised():
                pass
            case ev.Submitted():
                self._enter(event.job_id, event)
            case ev.ArraySubmitted():
                first = event.array_id + 1
                self.arrays[event.array_id] = range(first, first + count_of(event.spans))
                self.at_once[event.array_id] = event.at_once
                for job_id in self.arrays[event.array_id]:
                    self._enter(job_id, event, event.array_id)
                    if event.ends:
                        ends = ev.DependencySettled(job_id, event.at_s, ends=event.ends)
                        self._happen(self.jobs[job_id], ends, turn)
            case _ if event.job_id in self.arrays:
                claim(
                    isinstance(event, ev.Held | ev.Released | ev.Altered),
                    "an event of a whole array that no array can have", event,
                )  # fmt: skip
            case _:
                claim(event.job_id in self.jobs, "an event about nobody", event)
                job = self.jobs[event.job_id]
                self._happen(job, event, turn)
                if job.array_id is not None:
                    self._end_array(job.array_id)

    def _enter(
        self, job_id: int, event: ev.Submitted | ev.ArraySubmitted, array_id: int | None = None
    ) -> None:
        claim(job_id not in self.jobs, "an id is given out twice", job_id)
        spec = event.spec
        self.jobs[job_id] = Record(
            job_id, spec, "HELD" if event.held else "PENDING", array_id,
            awaits={each.job_id for each in spec.after},
            not_before_s=spec.begin_s,
            held_by=spec.user if event.held else None,
        )  # fmt: skip
        self._note_time(self.jobs[job_id], event)

    def _move(self, job: Record, event: ev.Event, to: str, *before: str) -> None:
        claim(job.state in before, "an event in a state that has none such", job.state, event)
        job.state = to

    def _happen(self, job: Record, event: ev.Event, turn: Turn) -> None:
        before = job.departure
        self._enter_news(job, event, turn)
        if job.departure != before:
            job.leaves_since_mono_s = None if job.departure is None else turn.mono_s
        self._note_time(job, event)

    def _enter_news(self, job: Record, event: ev.Event, turn: Turn) -> None:
        attempt = getattr(event, "attempt", None)
        if attempt is not None and not isinstance(event, ev.Admitted):
            claim(attempt == job.attempt, "news of another attempt", event)
        match event:
            case ev.Held():
                self._move(job, event, "HELD", *WAITS)
                job.held_by = event.by
            case ev.Released():
                self._move(job, event, "PENDING", "HELD")
                job.held_by = None
            case ev.Cancelled():
                self._move(job, event, "ENDED", *WAITS)
                is_rule = job.is_never and job.spec.cancel_if_never
                claim(is_rule or not event.why, "it is cancelled by a rule of nobody's", event)
                self._end(job, Outcome.CANCELLED)
            case ev.DependencySettled():
                self._settle(job, event)
            case ev.BeginReached():
                early_s = None if job.not_before_s is None else job.not_before_s - event.at_s
                # No pause is that long, unless it began before the clock was set back.
                is_of_clock = job.not_before_s != job.spec.begin_s and (early_s or 0) > LONGEST_S
                claim(
                    early_s is not None and (early_s <= 0 or is_of_clock),
                    "it is let go before its time",
                    event,
                )
                job.not_before_s = None
            case ev.Altered():
                self._change(job, event)
            case ev.Admitted():
                self._admit(job, event, turn)
            case ev.Launched():
                self._move(
                    job, event, "RUNNING" if job.state == "STARTING" else job.state,
                    "STARTING", "STOPPING",
                )  # fmt: skip
                job.counts_from_mono_s = event.mono_s
            case ev.LaunchFailed():
                self._move(job, event, "CLEANING", "STARTING", "RUNNING", "STOPPING")
                job.freezing = False
                job.outcome, job.is_gone = event.outcome, True
                claim(
                    event.outcome in (job.stop, Outcome.LAUNCH_FAILED) or job.is_requeued,
                    "an end by another cause",
                    event,
                )
            case ev.LaunchPostponed():
                self._move(job, event, "CLEANING", "STARTING", "RUNNING", "STOPPING")
                claim(job.stop is None, "what is to end is tried again", event)
                job.freezing, job.is_postponed = False, True
                job.alone_until_s = event.not_before_s
            case ev.StopRequested():
                before = ("STARTING", "RUNNING", "SUSPENDED", "STOPPING", "CLEANING")
                is_over = job.state == "CLEANING"
                self._move(job, event, "CLEANING" if is_over else "STOPPING", *before)
                claim(None in (job.stop, event.outcome), "it is stopped twice", event)
                if event.outcome is Outcome.TIMEOUT:
                    ran_s = event.mono_s - job.counts_from_mono_s
                    had = job.spec.time_limit_s is not None and (
                        ran_s >= job.spec.time_limit_s - 0.001
                    )
                    claim(had, "it is stopped before its time is over", event, ran_s)
                if "suspended" in event.text:
                    most_s, since_s = turn.rules.max_suspended_s, job.kept_mono_s
                    claim(job.is_frozen, "it is not suspended", event)
                    claim(None not in (most_s, since_s), "nobody bounds its suspension", event)
                    assert most_s is not None and since_s is not None
                    kept_s = event.mono_s - since_s
                    claim(kept_s >= most_s - 0.001, "its user may keep it longer", event, kept_s)
                job.stop, job.freezing = event.outcome, False
                job.is_requeued = event.outcome is None
                job.stop_mono_s = job.stop_mono_s or event.mono_s
                if is_over:
                    job.outcome = event.outcome
            case ev.PreemptRequested():
                self._move(job, event, "STOPPING", "RUNNING")
                self._be_victim(job, event, turn)
                job.is_requeued, job.stop_mono_s = True, event.mono_s
            case ev.SuspendRequested():
                claim(job.state in ("RUNNING", "SUSPENDED"), "it cannot be suspended", event)
                if event.by is None:
                    self._be_victim(job, event, turn)
                job.freezing = job.state == "RUNNING"
                job.held_by = event.by
                is_own = event.by == job.spec.user
                claim(is_own == (event.kept_mono_s is not None), "whose suspension it is", event)
                job.kept_mono_s = event.kept_mono_s
            case ev.Suspended():
                self._move(job, event, "SUSPENDED", "RUNNING")
                claim(job.freezing, "nobody wanted it frozen", event)
                job.freezing, job.is_frozen = False, True
                job.counts_from_mono_s -= event.mono_s
            case ev.ResumeRequested():
                claim(job.freezing or job.state == "SUSPENDED", "it is not suspended", event)
                job.held_by = job.kept_mono_s = None
            case ev.Resumed():
                claim(job.held_by is None, "it goes on though somebody keeps it", event)
                self._may_have(job, event, turn)
                self._move(job, event, "RUNNING", "SUSPENDED")
                job.is_frozen = False
                job.counts_from_mono_s += event.mono_s
            case ev.Escalated():
                self._move(job, event, "STOPPING", "STOPPING")
            case ev.Warned() | ev.SignalRequested():
                self._move(job, event, "RUNNING", "RUNNING")
            case ev.Exited():
                self._exit(job, event, turn)
            case ev.Cleaned():
                self._move(job, event, "ENDED", "CLEANING")
                claim(job.outcome is not None, "it ends without a cause", event)
                assert job.outcome is not None
                self._end(job, job.outcome)
            case ev.Requeued():
                claim(job.outcome is None, "it has ended, and begins anew", event)
                claim(job.is_requeued or job.is_postponed, "nobody wanted it back", event)
                alone_until_s = job.alone_until_s
                self._begin_anew(job, event)
                job.not_before_s = alone_until_s
            case ev.Retried():
                retry = job.spec.retry
                claim(
                    retry is not None and job.outcome in retry.on and job.retries < retry.times,
                    "nobody wanted it tried again",
                    event,
                )
                job.retries += 1
                self._begin_anew(job, event)
                job.not_before_s = event.not_before_s

    def _note_time(self, job: Record, event: ev.Event) -> None:
        """What is eligible once does not become early again when the clock is set back."""
        told = (
            ev.Released | ev.DependencySettled | ev.Retried | ev.Requeued
            | ev.Submitted | ev.ArraySubmitted
        )  # fmt: skip
        is_told = isinstance(event, told) or (
            isinstance(event, ev.Altered) and (event.after, event.begin_s) != (None, None)
        )
        if is_told and job.is_eligible(event.at_s):
            job.not_before_s = None

    def _admit(self, job: Record, event: ev.Admitted, turn: Turn) -> None:
        claim(
            job.is_eligible(event.at_s) or (job.state == "PENDING" and job.not_before_s is None),
            "it starts before it may",
            event,
            job,
        )
        claim(not job.awaits and not job.is_never, "it starts before those it waits for", job)
        claim(event.attempt == job.attempt + 1, "attempts do not count up", event)
        claim(not self.draining, "it starts while launching is stopped", event)
        self._may_have(job, event, turn)
        self._may_come_first(job, turn)
        if job.array_id is not None and self.at_once[job.array_id] is not None:
            most = self.at_once[job.array_id] or 0
            claim(self.active(job.array_id) < most, "too many tasks of an array run", event)
        group = job.spec.group
        if group is not None and group.at_once is not None:
            claim(self.in_group(job) < group.at_once, "too many jobs of a group run", event)
        there = dict(turn.rules.axes.instances)
        taken = Counter(
            (name, each)
            for other in self.jobs.values()
            if other.state in HOLDS and not other.only_notifies
            for name, names in other.instances.items()
            for each in names
        )
        given = dict(event.instances)
        claim(
            {name: len(names) for name, names in given.items()} == dict(job.spec.demand.gres),
            "it gets other things than it asked for",
            event,
        )
        for name, names in given.items():
            claim(set(names) <= set(there.get(name, ())), "it gets what is not there", event)
            claim(len(set(names)) == len(names), "it gets the same thing twice", event)
            if turn.rules.axes.shared is not None and turn.rules.axes.is_shared(name):
                free = self.free_of_gpus(turn.rules)
                wanted = parts(job.spec.demand, turn.rules.axes.shared)
                is_free = all(free[g] >= part for g, part in zip(names, wanted, strict=True))
                claim(is_free, "a GPU is given more than it has", event, free)
                self.seen["parts of GPUs"] += any(taken[name, each] for each in names)
            else:
                is_taken = any(taken[name, each] for each in names)
                claim(not is_taken, "a thing is given out twice", event)
        self._move(job, event, "STARTING", "PENDING")
        job.attempt, job.instances = event.attempt, given

    def _may_have(self, job: Record, event: ev.Event, turn: Turn) -> None:
        if not self.fits(job, turn):
            held = dict(self.booked(turn.rules))
            room = amounts(turn.rules.capacity, turn.rules.axes)
            raise Broken("more is given out than there is", event, room, held, turn.kept)
        if turn.rules.policy == "drf":
            claim(self.is_within_limits(job, turn.rules), "a pool gets more than it may", event)

    def _may_come_first(self, job: Record, turn: Turn) -> None:
        """Of those of one leaf that ask for the same, the first; unless it had a place before."""
        if job.id in turn.reserved or turn.rules.policy != "drf":
            return
        mine = amounts(job.spec.demand, turn.rules.axes)
        for other in self.jobs.values():
            if (
                other.id != job.id
                and other.spec.leaf == job.spec.leaf
                and other.key < job.key
                and other.is_eligible(self._at_s)
                and other.not_before_s is None
                and amounts(other.spec.demand, turn.rules.axes) == mine
            ):
                claim(self.is_shut_out(other), "a job passes one before it", job, other)

    def _be_victim(
        self, job: Record, event: ev.PreemptRequested | ev.SuspendRequested, turn: Turn
    ) -> None:
        how = turn.rules.preempting
        claim(how is not None, "somebody is preempted though nobody may be", event)
        assert how is not None
        claim(job.spec.preemptible, "it is preempted and must not be", event)
        claim(not job.freezing and not job.is_frozen, "it gives nothing any more", event)
        ran_s = turn.mono_s - job.counts_from_mono_s
        is_exempt = ran_s < how.exempt_s * 2**job.preemptions - 0.001
        claim(not is_exempt, "it is preempted so soon", event, ran_s)
        job.preemptions += 1

    def _settle(self, job: Record, event: ev.DependencySettled) -> None:
        claim(job.state in WAITS, "it waits for nobody any more", event)
        for end in event.ends:
            claim(end.on in self.ended, "what it waits for has not ended", event)
            claim(self.ended[end.on] is end.outcome, "what it waits for ended otherwise", event)
            wants = [each for each in job.spec.after if each.job_id == end.on]
            met = all(is_met(each, end.outcome) for each in wants)
            claim(met is end.is_met, "a dependency is judged wrongly", event, wants)
            job.awaits.discard(end.on)
            job.is_never |= not met

    def _change(self, job: Record, event: ev.Altered) -> None:
        claim(job.state in (*WAITS, *HOLDS[:3]), "it cannot be changed any more", event)
        if job.state not in WAITS:
            claim(
                (event.demand, event.pool) == (None, None),
                "what runs is given something else",
                event,
            )
        new = {name: getattr(event, name) for name in ("name", "pool", "priority", "demand")}
        if event.time_limit_s is not None:
            job.spec = replace(job.spec, time_limit_s=event.time_limit_s or None)
        if event.after is not None:
            new["after"] = event.after
            job.awaits, job.is_never = {each.job_id for each in event.after}, False
        if event.begin_s is not None:
            job.not_before_s = event.begin_s or None
            job.spec = replace(job.spec, begin_s=job.not_before_s)
        if event.comment is not None:
            job.spec = replace(job.spec, comment=event.comment or None)
        if event.group is not None:
            job.spec = replace(job.spec, group=event.group if event.group.name else None)
        changed = {name: value for name, value in new.items() if value is not None}
        job.spec = replace(job.spec, **changed)

    def _exit(self, job: Record, event: ev.Exited, turn: Turn) -> None:
        self._move(job, event, "CLEANING", "STARTING", "RUNNING", "SUSPENDED", "STOPPING")
        job.freezing = False
        job.outcome, job.is_gone = event.outcome, event.gone
        claim(event.outcome is None or event.text, "it ends without a word", event)
        intents = {Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.LIMIT_EXCEEDED}
        claim(
            event.outcome not in intents or event.outcome is job.stop,
            "an end by another cause",
            event,
            job.stop,
        )
        claim(event.outcome is not None or job.is_requeued, "an end without a cause", event)
        end = turn.real_end((job.id, event.attempt))
        if end is not None and end.mono_s is not None and job.stop_mono_s is not None:
            is_stopped = end.mono_s >= job.stop_mono_s
            claim((event.outcome is job.stop) is is_stopped, "who stopped it is not told", event)
        if event.outcome is Outcome.COMPLETED:
            claim(event.exit_code == 0, "an end by another cause", event)
        if event.outcome is Outcome.LOST:
            claim(event.exit_code is None and event.signal is None, "it is not lost", event)

    def _begin_anew(self, job: Record, event: ev.Event) -> None:
        self._move(job, event, "PENDING", "CLEANING")
        job.instances, job.outcome, job.stop = {}, None, None
        job.is_requeued = job.freezing = job.is_frozen = False
        job.held_by = job.kept_mono_s = job.not_before_s = job.stop_mono_s = None
        job.is_postponed, job.alone_until_s = False, None

    def _end(self, job: Record, outcome: Outcome) -> None:
        claim(job.id not in self.ended, "it ends twice", job)
        job.state, job.outcome = "ENDED", outcome
        self.ended[job.id] = outcome

    def _end_array(self, array_id: int) -> None:
        tasks = [self.jobs[each] for each in self.arrays[array_id]]
        if array_id not in self.ended and all(each.state == "ENDED" for each in tasks):
            bad = (each.outcome for each in tasks if each.outcome is not Outcome.COMPLETED)
            self.ended[array_id] = next(bad, None) or Outcome.COMPLETED


def is_met(wish: Dependency, outcome: Outcome) -> bool:
    if wish.want is RequiredOutcome.ANY:
        return True
    return (wish.want is RequiredOutcome.OK) == (outcome is Outcome.COMPLETED)
