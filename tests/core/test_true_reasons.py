"""Every reason is true: random situations, and each reason checked by a slow oracle.

The oracle knows jobs, their demands and their states, and counts everything anew. It asks what
would happen otherwise: it lets the jobs that are blamed give back what they hold, or takes away the
waiting jobs of the users that are blamed, and makes a pass over the changed books.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from core.worlds import pass_over
from drfd.core.decisions import stimuli as st
from drfd.core.explain import waits as why
from drfd.core.explain.reasons import explain_wait
from drfd.core.explain.waits import ReservedFirst, ServedFirst, Shortfall, Wait
from drfd.core.fairness.rules import NodeSettings, Pool, ReservationSettings, Rules
from drfd.core.model.job import Dependency, Job, JobSpec, JobState, RequiredOutcome
from drfd.core.model.machine import Vector
from drfd.core.model.resources import Axes, Resources
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.scheduler import start_events
from fakes import ADMIN, GIB, Bench, demand, ended, launched, now, replace, spec
from seeds import examples

USERS = {
    name: st.Actor(user=name, uid=1001 + at, is_admin=False)
    for at, name in enumerate(("alice", "bob", "carol", "dave"))
}
#: Of alice and bob there are two leaves each.
LEAVES = (
    ("root.lab", "alice"), ("root.lab", "bob"), ("root.alice", "alice"), ("root.bob", "bob"),
    ("root.carol", "carol"), ("root.dave", "dave"),
)  # fmt: skip
#: The memory of each of the two GPUs.
GPU_GIB = 4


@dataclass(frozen=True)
class Ask:
    leaf: tuple[str, str]
    cores: int
    memory_gib: int
    gres: tuple[tuple[str, int], ...]
    #: The memory that it declares on each GPU.
    gpu_gib: int | None
    limit_s: int | None
    priority: int
    #: Starts before the others are submitted, if there is room.
    is_early: bool
    is_held: bool
    #: Waits for the job of the list before it.
    is_dependent: bool


@dataclass(frozen=True)
class Situation:
    asks: tuple[Ask, ...]
    weights: dict[str, int]
    limit_cores: int | None
    #: The places in `asks` of early jobs that are frozen, or have ended since.
    frozen: frozenset[int]
    ended: frozenset[int]
    external: tuple[int, int] | None
    reserves: bool
    is_draining: bool
    at_s: float
    #: Whether jobs share GPUs by the memory that they declare.
    shares_gpus: bool = False


@some.composite
def situations(draw: some.DrawFn) -> Situation:
    ask = some.builds(
        Ask,
        leaf=some.sampled_from(LEAVES),
        cores=some.integers(1, 6),
        memory_gib=some.integers(1, 6),
        gres=some.sampled_from(
            [(), (), (), (("license", 1),), (("license", 3),), (("gpu", 1),), (("gpu", 2),)]
        ),
        gpu_gib=some.none() | some.integers(1, GPU_GIB),
        limit_s=some.sampled_from([None, 60, 600, 3600]),
        priority=some.sampled_from([0, 0, 1]),
        is_early=some.booleans(),
        is_held=some.sampled_from([False] * 9 + [True]),
        is_dependent=some.sampled_from([False] * 9 + [True]),
    )
    asks = draw(some.lists(ask, min_size=2, max_size=14))
    if draw(some.booleans()):
        # No pools: all leaves are side by side.
        asks = [replace(each, leaf=(f"root.{each.leaf[1]}", each.leaf[1])) for each in asks]
    places = some.frozensets(some.integers(0, len(asks) - 1), max_size=2)
    external = some.sampled_from([None, None, None, (2, 0), (0, 3), (1, 1)])
    return Situation(
        tuple(asks),
        draw(some.dictionaries(some.sampled_from([*USERS, "lab"]), some.integers(1, 4))),
        draw(some.sampled_from([None, None, 2, 5])),
        draw(places),
        draw(places),
        draw(external),
        draw(some.booleans()),
        draw(some.sampled_from([False] * 9 + [True])),
        draw(some.sampled_from([10.0, 100.0, 5000.0])),
        draw(some.booleans()),
    )


def rules_of(situation: Situation) -> Rules:
    """8 cores, 12 GiB, 4 licences and 2 GPUs of 4 GiB."""
    weights = {name: Fraction(weight) for name, weight in situation.weights.items()}
    limit = {} if situation.limit_cores is None else {"cores": situation.limit_cores * 1000}
    return Rules(
        axes=Axes(
            gres=("gpu", "license"),
            instances=(("gpu", ("0", "1")), ("license", ("0", "1", "2", "3"))),
            shared=("gpu", GPU_GIB * GIB) if situation.shares_gpus else None,
        ),
        capacity=replace(demand(8, 12), gres=(("gpu", 2), ("license", 4))),
        pools={"lab": Pool(weight=weights.get("lab", Fraction(1)), limit=limit)},
        members={
            ("", user): NodeSettings(weight=weights[user]) for user in USERS if user in weights
        },
        reserving=ReservationSettings(delay_s=30, reserves=situation.reserves),
    )


def spec_of(ask: Ask, after: int | None) -> JobSpec:
    pool, user = ask.leaf
    asks = replace(demand(ask.cores, ask.memory_gib), gres=ask.gres)
    if ask.gpu_gib is not None and "gpu" in dict(ask.gres):
        asks = replace(asks, gres_memory=(("gpu", ask.gpu_gib * GIB),))
    conditions: tuple[Dependency, ...] = ()
    if after is not None and ask.is_dependent and not ask.is_early:
        conditions = (Dependency(after, RequiredOutcome.ANY),)
    return spec(
        pool,
        actor=USERS[user],
        asks=asks,
        time_limit_s=ask.limit_s,
        priority=ask.priority,
        after=conditions,
    )


@dataclass
class Made:
    """The books of a situation, with the last pass, which found nothing more to do."""

    bench: Bench
    last: Plan
    external: ExternalLoad | None
    at_s: float


def start_all(
    bench: Bench,
    at_s: float,
    external: ExternalLoad | None = None,
    before: Any = (),
) -> Plan:
    """Passes until nothing starts any more; returns the last one."""
    while True:
        plan = pass_over(bench, at_s, external=external, before=before)
        for event in start_events(bench.ledger, plan, now(at_s)):
            bench.befall(event)
            if bench.job(event.job_id).state is JobState.STARTING:
                bench.feed(launched(event.job_id, bench.job(event.job_id).attempt, at_s=at_s))
        before = plan.reservations
        if not plan.admitted:
            return plan


def make(situation: Situation) -> Made:
    bench = Bench(rules_of(situation))
    ids: dict[int, int] = {}
    for early in (True, False):
        for at, ask in enumerate(situation.asks):
            if ask.is_early is not early:
                continue
            after = ids.get(at - 1)
            if after is not None and after not in bench.ledger.jobs:
                after = None
            if ask.leaf[0] == "root.lab" and situation.limit_cores is not None:
                ask = replace(ask, cores=min(ask.cores, situation.limit_cores))
            asked = spec_of(ask, after)
            ids[at] = bench.submit(asked, held=ask.is_held and not early)
        if early:
            start_all(bench, 0)
    running = {
        at: job_id for at, job_id in ids.items() if bench.job(job_id).state is JobState.RUNNING
    }
    for at in situation.frozen & running.keys():
        bench.suspend(running[at], by=None if at % 2 else ADMIN, at_s=1)
    for at in situation.ended & running.keys() - situation.frozen:
        bench.finish(running[at], at_s=2)
    external = None
    if situation.external is not None:
        cores, memory_gib = situation.external
        kept = Resources(cores_milli=cores * 1000, memory_bytes=memory_gib * GIB)
        external = ExternalLoad(used=kept, kept=kept, until_s=now(situation.at_s + 60).at_s)
    if situation.is_draining:
        bench.feed(st.DrainAsked(now(3), True, ADMIN))
    last = start_all(bench, situation.at_s, external)
    return Made(bench, last, external, situation.at_s)


# -- the oracle ------------------------------------------------------------------------------------


class Oracle:
    """Counts from the jobs alone."""

    def __init__(self, made: Made) -> None:
        self.made, self.bench = made, made.bench
        self.axes = made.bench.rules.axes
        self.jobs = {job.id: job for job in made.bench.ledger.jobs.values()}
        #: What each job holds.
        self.held = {job.id: self._held(job) for job in self.jobs.values()}
        capacity = self.axes.vector(made.bench.rules.capacity)
        kept = (0,) * len(capacity)
        if made.external is not None:
            kept = self.axes.vector(made.external.kept)
        self.kept = kept
        #: The axis of GPUs that jobs share.
        self.shared = self.axes.names.index("memory:gpu") if self.axes.shared else None
        self.free = tuple(
            top - away - sum(held[axis] for held in self.held.values())
            for axis, (top, away) in enumerate(zip(capacity, kept, strict=True))
        )

    def _held(self, job: Job) -> Vector:
        wants = self.axes.vector(job.spec.demand)
        if job.state in (JobState.PENDING, JobState.HELD, JobState.ENDED):
            return (0,) * len(wants)
        if job.state is JobState.SUSPENDED:
            return tuple(
                0 if name == "cores" else amount
                for name, amount in zip(self.axes.names, wants, strict=True)
            )
        return wants

    def wants(self, job: Job) -> Vector:
        wants = self.axes.vector(job.spec.demand)
        return tuple(a - b for a, b in zip(wants, self.held[job.id], strict=True))

    def is_ready(self, job: Job) -> bool:
        if job.state is JobState.SUSPENDED:
            return job.held_by is None
        return job.state is JobState.PENDING and not job.awaits and job.broken is None

    def fits(self, wants: Vector, free: Vector, without: Iterable[int] = ()) -> bool:
        """Whether it fits into these amounts, and on GPUs on which these jobs have no part."""
        amounts = all(a <= max(b, 0) or not a for a, b in zip(wants, free, strict=True))
        return amounts and self.has_gpus(wants, without)

    def has_gpus(self, wants: Vector, without: Iterable[int] = ()) -> bool:
        if self.shared is None:
            return True
        asked = wants[self.shared]
        return asked <= self.free_of_gpus(asked, without)

    def free_of_gpus(self, asked: int, without: Iterable[int] = ()) -> int:
        """What shared GPUs have free for a demand: the freest one, or all that no job has."""
        assert self.shared is not None
        size, gone = GPU_GIB * GIB, set(without)
        free = dict.fromkeys(("0", "1"), size)
        for job in self.jobs.values():
            own = dict(job.instances).get("gpu", ())
            if job.id not in gone and job.is_allocated:
                for each in own:
                    free[each] -= self.held[job.id][self.shared] // len(own)
        assert min(free.values()) >= 0
        if asked <= size:
            return max(free.values())
        return sum(each for each in free.values() if each == size)

    def short_axes(self, job: Job) -> list[int]:
        wants = self.wants(job)
        short = [at for at, amount in enumerate(wants) if amount > max(0, self.free[at])]
        if self.shared is not None and self.shared not in short and not self.has_gpus(wants):
            short = sorted([*short, self.shared])
        return short

    def is_over_limit(self, job: Job, without: Iterable[int] = ()) -> bool:
        """Whether the limit of its pool holds it back, even after these jobs have ended."""
        pool = self.bench.rules.pools["lab"]
        if job.spec.pool != "root.lab" or "cores" not in pool.limit:
            return False
        gone = set(without)
        held = sum(
            self.held[other.id][0]
            for other in self.jobs.values()
            if other.spec.pool == "root.lab" and other.id not in gone
        )
        wants = self.wants(job)[0]
        return bool(wants) and held + wants > pool.limit["cores"]

    def owner(self, label: str) -> Job:
        return self.jobs[int(label)]

    def suffices(self, job: Job, named: set[int]) -> bool:
        """Whether the job would fit if these gave back what they hold."""
        free = list(self.free)
        for each in named:
            free = [a + b for a, b in zip(free, self.held[each], strict=True)]
        return self.fits(self.wants(job), tuple(free), named)

    def otherwise(self, over: Iterable[int], without: Iterable[str] = ()) -> set[int]:
        """The jobs that would start if these had ended, and no job of these leaves waited."""
        bench = deepcopy(self.bench)
        for job in list(bench.ledger.jobs.values()):
            if job.state is JobState.PENDING and not self.is_ready(job):
                # What these jobs wait for may be the end of one of `over`.
                bench.feed(st.CancelAsked(now(self.made.at_s), job.id, ADMIN))
        for each in over:
            attempt = bench.job(each).attempt
            bench.feed(ended(each, attempt))
            bench.feed(st.RemovedReport(now().at_s, each, attempt))
        leaves = set(without)
        for job in list(bench.ledger.jobs.values()):
            if job.spec.leaf in leaves and job.state is JobState.PENDING:
                bench.feed(st.CancelAsked(now(self.made.at_s), job.id, ADMIN))
        made = self.made
        plan = pass_over(bench, made.at_s, external=made.external, before=made.last.reservations)
        return set(plan.admitted)


def check(oracle: Oracle, job: Job, reason: Wait) -> None:
    fact, code = reason, reason.code
    wants, free = oracle.wants(job), oracle.free
    assert oracle.is_ready(job) is (code not in ("HELD", "DEPENDENCY", "DEPENDENCY_NEVER"))
    match fact:
        case why.HeldBy():
            assert job.state is JobState.HELD or job.held_by is not None
            assert isinstance(fact, why.SuspendedBy) is (job.state is JobState.SUSPENDED)
        case why.WaitsFor():
            assert {each.job_id for each in job.spec.after} & oracle.jobs.keys()
        case why.Draining():
            assert oracle.bench.ledger.draining
        case why.PathLimit():
            assert fact.path == job.spec.pool == "root.lab"
            assert oracle.is_over_limit(job)
            for each in fact.holders:
                held_by = oracle.jobs[int(each.job)]
                assert held_by.spec.pool == fact.path
                assert each.is_own is (held_by.spec.user == job.spec.user)
                assert each.amount > 0
        case why.ExternalUse():
            beside = tuple(a + b for a, b in zip(free, oracle.kept, strict=True))
            assert oracle.fits(wants, beside)
            assert not oracle.fits(wants, free)
        case why.KeptFor():
            kept = {each.job_id: each for each in oracle.made.last.reservations}[int(fact.job)]
            # What a limit leaves may be kept too, and is looked at before the machine.
            assert oracle.fits(wants, free) or job.spec.pool in kept.extras
            assert not oracle.is_over_limit(job)
        case why.MayNotPass():
            assert oracle.jobs[int(fact.job)].spec.leaf == job.spec.leaf
        case ServedFirst():
            named = check_shortfalls(oracle, job, fact.shortfalls)
            check_served_first(oracle, job, fact, named)
        case ReservedFirst():
            named = check_shortfalls(oracle, job, fact.shortfalls)
            check_reserved_first(oracle, job, fact, named)
        case why.TooLittleFree():
            named = check_shortfalls(oracle, job, fact.shortfalls)
            assert named is None or not oracle.is_over_limit(job, named)
            if named is not None and not isinstance(fact, why.HasReservation):
                check_nobody_else_is_to_blame(oracle, job, named)
        case _:
            raise AssertionError(f"an unexpected reason {reason}")


def check_shortfalls(
    oracle: Oracle, job: Job, shortfalls: tuple[Shortfall, ...]
) -> set[int] | None:
    """Each resource told is short, and each holder holds it; the job's own user comes first.
    Returns the jobs that are blamed, or None if not all of them are named."""
    wants, free, names = oracle.wants(job), oracle.free, oracle.axes.names
    short = oracle.short_axes(job)
    assert [each.shortage.axis for each in shortfalls] == [names[at] for at in short]
    blamed, is_complete = set[int](), True
    for at, each in zip(short, shortfalls, strict=True):
        there = oracle.free_of_gpus(wants[at]) if at == oracle.shared else max(0, free[at])
        assert (each.shortage.needed, each.shortage.free) == (wants[at], there)
        for holder in each.holders:
            owner = oracle.jobs[int(holder.job)]
            assert holder.amount == oracle.held[owner.id][at] > 0
            assert holder.user == owner.spec.user
            assert holder.is_own is (owner.spec.user == job.spec.user)
            blamed.add(owner.id)
        own = [holder.is_own for holder in each.holders]
        assert own == sorted(own, reverse=True), "others are named before the user's own jobs"
        others = {
            other.id
            for other in oracle.jobs.values()
            if other.spec.user == job.spec.user and oracle.held[other.id][at] and other is not job
        }
        if not all(own) and at != oracle.shared:
            # Of shared GPUs, only those jobs are named that have a part of one that it would get.
            assert len(own) == 3 or others <= {int(holder.job) for holder in each.holders}
        is_complete = is_complete and not each.more and not each.kept
        if not others and not each.more and not each.kept:
            check_ends(oracle, job, at, each)
    if not is_complete:
        return None
    assert oracle.suffices(job, blamed), "it would not fit if the blamed gave back all they hold"
    return blamed


def satisfaction(oracle: Oracle, leaf: str, without: Iterable[int]) -> Fraction:
    """The share of the leaf by what its jobs hold, for leaves side by side with these weights."""
    gone = set(without)
    capacity = oracle.axes.vector(oracle.bench.rules.capacity)
    jobs = [each for each in oracle.jobs.values() if each.spec.leaf == leaf and each.id not in gone]
    held = [sum(oracle.held[each.id][at] for each in jobs) for at in range(len(capacity))]
    share = max(Fraction(a, b) for a, b in zip(held, capacity, strict=True) if b)
    user = leaf.rpartition(".")[2]
    node = oracle.bench.rules.members.get(("", user))
    return share / (Fraction(1) if node is None else Fraction(node.weight))


def check_ends(oracle: Oracle, job: Job, at: int, fact: Shortfall) -> None:
    """By their time limits, no jobs that end before the last of the named ones give back enough."""

    def end_s(job: Job) -> float:
        limit_s = job.spec.time_limit_s
        if job.started_at is None or limit_s is None or job.state is JobState.SUSPENDED:
            return float("inf")
        return job.started_at + job.suspended_s + limit_s

    last_s = max(end_s(oracle.owner(each.job)) for each in fact.holders)
    sooner = [
        each.id for each in oracle.jobs.values() if each.is_allocated and end_s(each) < last_s
    ]
    if at == oracle.shared:
        assert not oracle.has_gpus(oracle.wants(job), sooner)
    else:
        given_back = sum(oracle.held[each][at] for each in sooner)
        assert oracle.free[at] + given_back < fact.shortage.needed


def check_served_first(oracle: Oracle, job: Job, fact: ServedFirst, named: set[int] | None) -> None:
    """Who is named waits for what is short, and gets it when it comes back."""
    short = [oracle.axes.names.index(each.shortage.axis) for each in fact.shortfalls]
    for leaf in fact.leaves:
        waiting = [
            each
            for each in oracle.jobs.values()
            if each.spec.leaf == leaf and oracle.is_ready(each)
        ]
        assert any(oracle.wants(each)[at] for each in waiting for at in short), leaf
        assert leaf != job.spec.leaf
    if named is None or job.state is JobState.SUSPENDED:
        return
    admitted = oracle.otherwise(named)
    assert job.id not in admitted
    takers = {oracle.jobs[each].spec.leaf for each in admitted}
    assert takers & set(fact.leaves), "none of the named would be served"


def check_reserved_first(
    oracle: Oracle, job: Job, fact: ReservedFirst, named: set[int] | None
) -> None:
    """Who is named has a reservation, waits for what is short, and gets it when it comes back, or
    would be delayed."""
    reserved = [each.job_id for each in oracle.made.last.reservations]
    other = oracle.owner(fact.job)
    assert other.id in reserved
    assert other.spec.user == fact.user
    assert fact.count <= len(reserved)
    short = [oracle.axes.names.index(each.shortage.axis) for each in fact.shortfalls]
    takes = any(oracle.wants(other)[at] for at in short)
    if named is not None and job.state is not JobState.SUSPENDED:
        admitted = oracle.otherwise(named)
        assert job.id not in admitted
        # If both alone waited, it would not start either.
        beside = {each.spec.leaf for each in oracle.jobs.values()}
        beside -= {job.spec.leaf, other.spec.leaf}
        is_served = takes and other.id in admitted
        assert is_served or job.id not in oracle.otherwise(named, beside)


def check_nobody_else_is_to_blame(oracle: Oracle, job: Job, named: set[int]) -> None:
    """If the blamed jobs had ended, the job would start, or one of the same user would; if not,
    then whoever starts holds as much of what is due as the job's leaf, or is in a pool."""
    admitted = oracle.otherwise(named)
    if job.id in admitted or any(oracle.jobs[each].spec.user == job.spec.user for each in admitted):
        return
    if job.state is JobState.SUSPENDED or any(
        oracle.jobs[each].spec.pool == "root.lab" for each in [job.id, *admitted]
    ):
        return
    ours = satisfaction(oracle, job.spec.leaf, named)
    short = oracle.short_axes(job)
    for each in admitted:
        other = oracle.jobs[each]
        if not any(oracle.wants(other)[at] for at in short):
            continue
        if satisfaction(oracle, other.spec.leaf, named) < ours:
            # Served first, and yet no obstacle: without it the job would not start either.
            assert job.id not in oracle.otherwise(named, {other.spec.leaf}), other


def every_reason(made: Made) -> dict[int, Wait | None]:
    bench = made.bench
    return {
        job.id: explain_wait(job, bench.ledger, made.last, bench.rules)
        for job in bench.ledger.jobs.values()
    }


@examples(100, quick=3)
@given(situations())
def test_every_reason_is_true(situation):
    made = make(situation)
    oracle = Oracle(made)
    assert made.last.free.sums == oracle.free
    waiting = (JobState.PENDING, JobState.HELD, JobState.SUSPENDED)
    for job_id, reason in every_reason(made).items():
        job = oracle.jobs[job_id]
        assert (reason is not None) is (job.state in waiting)
        if reason is not None:
            check(oracle, job, reason)
