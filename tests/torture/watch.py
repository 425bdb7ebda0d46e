"""What must hold after every turn, whatever has happened, and of each pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from core.oracle import Ask, Rule, Tree, begin
from core.worlds import carry_on
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import array_key
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState
from drfd.core.model.machine import minus
from drfd.core.scheduling.kept_free import free_of
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.waits import TooLittleFree, Wait
from torture.books import HOLDS, Books, Record, Turn, claim

if TYPE_CHECKING:
    from torture.world import World

#: So many seconds after its grace time a job that gives back its resources is overdue.
SLOW_S = 60.0


def look(world: World) -> None:
    assert world.engine is not None
    _same_jobs(world)
    _same_sums(world)
    _only_booked_runs(world)
    _ends_are_told(world)
    _waits_are_explained(world)
    world.engine.ledger.check()


def look_at_victims(world: World, events: list[ev.Event]) -> None:
    """Of the jobs that a turn has stopped or frozen for another, those who pay keep their promise,
    and the other fits when they have gone. What should have gone long ago counts as held still: who
    starves behind it is served nevertheless, though its owner has less when it goes after all."""
    asked = (ev.PreemptRequested, ev.SuspendRequested)
    victims = [
        event.job_id
        for event in events
        if isinstance(event, asked) and getattr(event, "by", None) is None
    ]
    if not victims:
        return
    assert world.engine is not None
    ledger, rules = world.engine.ledger, world.engine.rules
    place = world.engine.scheduler.reservations[0]
    claim(place.is_forced, "room is made for nobody", victims, place)
    world.counts["preemptions"] += 1
    left = dict(ledger.used)
    free = rules.free - ledger.allocated
    for job in ledger.allocated_jobs():
        held = ledger.allocation(job)
        if job.state in (JobState.STOPPING, JobState.CLEANING):
            gift = held
        elif job.freezing:
            gift = ledger.axes.released(held)
        else:
            continue
        if _is_overdue(world, job):
            world.counts["overdue"] += 1
            continue
        left[job.spec.leaf] = minus(left[job.spec.leaf], gift.sums)
        free += gift
    claim(free.fits(place.demand), "it is made room, and not enough", victims, place, free)
    share_tree = rules.shares.share_tree(left, ledger.queues)
    gaining = path_up(place.leaf)
    for job_id in victims:
        for path in path_up(ledger.jobs[job_id].spec.leaf):
            if path not in gaining:
                kept = share_tree.satisfaction(path) >= 1
                claim(kept, "who pays does not keep its promise", path, job_id, place)


def _is_overdue(world: World, job: Job) -> bool:
    """Whether its grace time and a minute are over since this controller saw it going."""
    engine = world.engine
    assert engine is not None
    step = job.id, job.attempt, job.state, job.suspensions
    seen_s = engine.scheduler._departures.since_mono_s.get(step)
    if seen_s is None:
        return False
    began_s = world.books.jobs[job.id].leaves_since_mono_s
    claim(began_s is not None and seen_s >= began_s, "it was seen to go before it went", job)
    return seen_s <= world.now().mono_s - engine.rules.grace_s - SLOW_S


def _same_jobs(world: World) -> None:
    """Every job in exactly one state, and it is the one that its events have brought it to."""
    assert world.engine is not None
    ledger, books = world.engine.ledger, world.books
    known = {job.id: job for job in ledger.jobs.values()}
    for record in books.live():
        job = known.pop(record.id, None) or ledger.jobs.get(record.id)
        claim(job is not None, "a job is lost", record)
        assert job is not None
        claim(job.state.value == record.state, "a job is in another state", record, job.state)
        claim(job.attempt == record.attempt, "a job is in another attempt", record, job)
        claim(
            {each.job_id for each in job.awaits} == record.awaits,
            "a job waits for others",
            record,
            job.awaits,
        )
        claim(
            (job.freezing, job.held_by) == (record.freezing, record.held_by),
            "somebody else keeps a job, or nobody",
            record,
            job,
        )
    claim(not known, "the ledger has jobs that nobody submitted, or that are over", list(known))
    claim(ledger.draining is books.draining, "launching is stopped or is not")


def _same_sums(world: World) -> None:
    assert world.engine is not None
    ledger, rules, books = world.engine.ledger, world.engine.rules, world.books
    booked = books.booked(rules)
    for name, amount in zip(ledger.axes.names, ledger.allocated.sums, strict=True):
        claim(booked[name] == amount, "sums differ", name, amount, dict(booked))


def _only_booked_runs(world: World) -> None:
    """Whatever has living processes is booked, as what it is."""
    for attempt in world.machine.attempts.values():
        if not attempt.is_alive:
            continue
        job = world.books.jobs[attempt.key[0]]
        claim(
            job.attempt == attempt.key[1] and job.state in HOLDS,
            "an attempt runs that is not booked",
            attempt.key,
            job,
        )
        claim(
            attempt.is_frozen or not job.is_frozen,
            "an attempt runs that is booked as frozen",
            attempt.key,
        )


def _ends_are_told(world: World) -> None:
    """What has ended stands in the journal as ended, with its cause."""
    assert world.journal is not None
    books = world.books
    for job_id in [each for each in books.ended if each not in world.told]:
        world.told.add(job_id)
        outcome = world.journal.outcome(job_id)
        claim(outcome is books.ended[job_id], "the journal says otherwise", job_id, outcome)
        job = world.journal.job(job_id)
        if job_id not in books.arrays:
            claim(job is not None and job.outcome_text, "no word on its end", job)


def _waits_are_explained(world: World) -> None:
    assert world.engine is not None
    engine, books = world.engine, world.books
    ledger, last, rules = engine.ledger, engine.scheduler.last_plan, engine.rules
    for record in books.live():
        job = ledger.jobs[record.id]
        reason = explain_wait(job, ledger, last, rules, can_launch=world.is_ready())
        waits = job.state in (JobState.PENDING, JobState.HELD, JobState.SUSPENDED)
        claim((reason is not None) is waits, "no reason, or one too many", job, reason)
        if reason is not None:
            _is_true(world, record, reason)


def _is_true(world: World, job: Record, reason: Wait) -> None:
    """Is this what keeps it?"""
    assert world.engine is not None
    books, engine, code, text = world.books, world.engine, reason.code, reason.text()

    def keeps_it(is_so: object) -> None:
        claim(is_so, "not the reason", code, text, job)

    keeps = job.state == "HELD" or (job.state == "SUSPENDED" and job.held_by is not None)
    if job.state == "HELD" and job.is_never:
        keeps_it(code == "DEPENDENCY_NEVER" and "it is held by" in text)
        return
    keeps_it((code == "HELD") is keeps)
    if keeps:
        return
    if job.state == "PENDING":
        keeps_it((code == "DEPENDENCY_NEVER") is job.is_never)
        if job.is_never:
            return
        keeps_it((code == "DEPENDENCY") is bool(job.awaits))
        if job.awaits:
            return
        early = ("BEGIN_TIME", "MACHINE_SHORT")
        keeps_it(job.not_before_s is None or code in early)
        keeps_it(job.not_before_s is not None or code != "BEGIN_TIME")
        if job.not_before_s is not None:
            return
    keeps_it((code == "DRAINING") is books.draining)
    if books.draining or not world.has_passed:
        return
    turn = world.turn_now()
    free = free_of(engine.ledger, engine.rules, engine.external)
    claim(
        engine.scheduler.last_plan is not None and engine.scheduler.last_plan.free == free,
        "the pass saw other room than there is",
        free,
    )
    # A pass has been made since anything changed, so nothing starts soon.
    keeps_it(code != "STARTING_SOON")
    fits = books.fits(job, turn)
    if isinstance(reason, TooLittleFree):
        labels = {each.label: each.id for each in engine.ledger.jobs.values()}
        _are_short(books, job, reason, turn, labels)
    match code:
        case "RESOURCES" | "FAIR_SHARE":
            keeps_it(not fits or turn.rules.policy == "slots")
        case "EXTERNAL_LOAD":
            keeps_it(turn.kept and not fits)
        case "LIMIT":
            shut = books.is_shut_out(job)
            keeps_it(shut or not books.is_within_limits(job, turn.rules))
        case "MACHINE_SHORT":
            keeps_it(engine.ledger.pause)
        case "RESERVATION":
            kept = engine.scheduler.reservations
            is_fifo = turn.rules.policy == "fifo"
            # Without room for it, a job with a reservation takes what is given back.
            keeps_it(is_fifo or kept or (fits and turn.rules.reserving.reserves))


def _are_short(
    books: Books, job: Record, reason: TooLittleFree, turn: Turn, labels: Mapping[str, int]
) -> None:
    """Is what it waits for short, and held by those who are named, its own user's jobs first? If
    they gave it back, would there be enough, where all of them are named?"""
    free, wanted = books.free(turn), books.wanted(job, turn.rules)
    short = {name for name, each in wanted.items() if each > max(0, free[name])}
    # One GPU that jobs share may have too little, though all together have enough.
    shared = {name for name in turn.rules.axes.names if name.startswith("memory:")}
    told = {each.shortage.axis: each for each in reason.shortfalls}
    claim(short - shared == told.keys() - shared, "other things are short", job, reason, free)
    for name, each in told.items():
        claim(each.shortage.needed == wanted[name], "more is needed, or less", job, reason)
        named = [(books.jobs[labels[holder.job]], holder) for holder in each.holders]
        for record, holder in named:
            held = books.held(record, turn.rules).get(name, 0)
            claim(held == holder.amount > 0, "who is named holds more, or less", record, reason)
            is_own = record.spec.user == job.spec.user
            claim(holder.is_own is is_own, "another user's job is named", record, reason)
        own = [holder.is_own for holder in each.holders]
        claim(own == sorted(own, reverse=True), "others are named before the user's own", reason)
        if name not in shared:
            claim(each.shortage.free == max(0, free[name]), "more is free, or less", reason, free)
            back = free[name] + sum(holder.amount for holder in each.holders)
            claim(each.more or each.kept or back >= wanted[name], "some hold it unnamed", reason)


def look_at_choices(
    plan: Plan, ledger: Ledger, rules: Rules, past_usage: Mapping[str, float]
) -> None:
    """A pass (whose `plan` is not in the books as yet) against the slow one of `core/oracle.py`,
    which was written from the rules alone: is each launch of somebody whose turn it is, and is
    nothing left that may start? Only where nothing is reserved: the oracle's slow pass knows one
    reservation, and follows it."""
    tree = Tree(
        rules.shares.capacity,
        {
            path: Rule(each.weights, each.limit, each.guarantee)
            for path, each in rules.shares.rules.items()
        },
    )
    waiting = {
        job_id: Ask(leaf, demand, -order)
        for leaf in ledger.queues
        for (order, first, last), demand in ledger.queues.within_limits(leaf)
        for job_id in range(first, last + 1)
    }
    running = ledger.queues.running.copy()
    state = begin(tree, waiting, ledger.used, past_usage)
    for job_id in plan.admitted:
        could = state.choices()
        claim(job_id in could, "somebody starts out of turn", job_id, could, plan.admitted)
        carry_on(state, job_id)
        job = ledger.jobs[job_id]
        array = None if job.array_id is None else ledger.arrays[job.array_id].array
        for key, limit in ((job.spec.group_key, job.spec.group), (array_key(job), array)):
            if key is not None and limit is not None:
                running[key] += 1
                if running[key] == limit.at_once:
                    # The oracle knows no such limits.
                    return
    left = set() if plan.is_cut else state.choices()
    claim(not left, "somebody may start and does not", left, plan.admitted)
