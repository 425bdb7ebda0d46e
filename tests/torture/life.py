"""A whole run: what each kind of step does to a world, where whom it meets is drawn among those who
are there, and then its end in peace; and less that goes wrong in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from drfd.core.decisions import stimuli as st
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import job as jobs
from drfd.core.model.job import Dependency, JobSpec, Outcome, UserGroup
from drfd.core.model.options import Demand
from drfd.core.model.resources import Resources
from fakes import ADMIN, GIB, replace, spec
from torture.books import Broken, claim
from torture.world import LAB, OPEN, USERS, Trace, World, compare_books, later_rules

#: So long may it take, after the last fault, until everything has ended.
PATIENCE_S = 5_000.0
ACTORS = {user: st.Actor(user, 1001 + at, False) for at, user in enumerate(USERS)}
_HOMES = {"ann": LAB, "ben": LAB, "cyd": "lab.bio"}


def calm(world: World) -> None:
    """Nobody keeps anything back any more; what can never start is given up."""
    books = world.books
    if books.draining:
        world.ask(st.DrainAsked(world.now(), False, ADMIN))
    for job in list(books.live()):
        if job.is_never:
            world.ask(st.CancelAsked(world.now(), job.id, ADMIN))
        elif job.state == "HELD":
            world.ask(st.ReleaseAsked(world.now(), job.id, ADMIN))
        elif job.held_by is not None:
            world.ask(st.ResumeAsked(world.now(), job.id, ADMIN))
    for _ in range(5):
        _see(world, Resources())


def _actor(random: Random, user: str) -> st.Actor:
    """Mostly its owner."""
    return random.choice([ACTORS[user]] * 6 + [ADMIN, ADMIN, ACTORS["dan"]])


def _any_job(world: World, random: Random, *states: str) -> tuple[int, str]:
    """A live job and its owner, in one of these states if any; now and then an array."""
    found = [each for each in world.books.live() if not states or each.state in states]
    found = found or list(world.books.jobs.values())
    if not found:
        return 1, "ann"
    job = random.choice(found)
    if random.random() < 0.05:
        return world.books.jobs[random.choice(list(world.books.jobs))].id, job.spec.user
    if job.array_id is not None and random.random() < 0.5:
        return job.array_id, job.spec.user
    return job.id, job.spec.user


def _spec(world: World, random: Random, user: str) -> JobSpec:
    room = world.engine.rules.capacity if world.engine is not None else world.rules.capacity
    gres = (("gpu", random.choice([1, 1, 2])),) if room.gres and random.random() < 0.4 else ()
    memory = Random(f"{world.seed} {len(world.books.jobs)}").choice([None, 1, 1, 3, 4, 8])
    # The whole machine; and with a plain job beside it, one thousandth of a core too much.
    large = random.choice([room.cores_milli, max(0, room.cores_milli - 999)])
    cores_milli = random.choice([0, 500, 1000, 1000, 2000])
    time_limit_s = random.choice([None, None, 3, 10, 40, 300])
    home = _HOMES.get(user, user)
    pool = f"root.{random.choice([home, home, OPEN])}"
    made = spec(
        pool,
        actor=ACTORS[user],
        asks=Resources(
            cores_milli=large if random.random() < 0.2 else cores_milli,
            memory_bytes=random.choice([0, GIB, GIB, 3 * GIB]),
            read_bps=random.choice([0, 0, 300]),
            write_bps=random.choice([0, 0, 0, 600]),
            gres=gres,
            gres_memory=(("gpu", memory * GIB),) if gres and memory else (),
        ),
        time_limit_s=time_limit_s,
        priority=random.choice([0, 0, 0, 1, -1]),
        preemptible=random.random() < 0.7,
        retry=random.choice([None, None, jobs.Retry(2, jobs.RETRIED_BY_DEFAULT)]),
        after=_after(world, random) if random.random() < 0.3 else (),
        begin_s=random.choice([None] * 9 + [int(world.now().at_s) + random.choice([-5, 2, 9])]),
        cancel_if_never=random.random() < 0.4,
        group=_group(world),
    )
    if made.time_limit_s in (None, 40) and made.after:
        # No number more is drawn, so that histories stay as they were.
        made = replace(made, notify=("end",))
    if time_limit_s is not None and time_limit_s > 5 and random.random() < 0.3:
        made = replace(made, warn=jobs.Warn(10, 4))
    return made


def _group(world: World) -> UserGroup | None:
    """A group in a third of the histories; the others are as they would be without groups."""
    if world.seed % 3 != 1:
        return None
    random = Random(f"{world.seed} {len(world.books.jobs)} {world.now().at_s} group")
    return random.choice([None, UserGroup("sweep", 1), UserGroup("sweep", 2), UserGroup("b")])


def _after(world: World, random: Random) -> tuple[Dependency, ...]:
    there = [*world.books.jobs, *world.books.arrays]
    some = random.sample(there, min(len(there), random.choice([1, 1, 2])))
    return tuple(Dependency(job_id, random.choice(list(jobs.RequiredOutcome))) for job_id in some)


def _submit(world: World, random: Random) -> None:
    user = random.choice(USERS)
    asked = _spec(world, random, user)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        world.ask(st.SubmitAsked(world.now(), asked, random.random() < 0.08))


def _flood(world: World, random: Random) -> None:
    """One user fills the machine with small jobs that may be stopped for others."""
    user = random.choice(USERS[:2])
    asked = replace(
        _spec(world, random, user),
        demand=Resources(cores_milli=1000, memory_bytes=random.choice([0, GIB // 2])),
        preemptible=True,
        time_limit_s=None,
        warn=None,
        after=(),
    )
    for _ in range(random.choice([4, 8])):
        world.ask(st.SubmitAsked(world.now(), asked))


def _submit_array(world: World, random: Random) -> None:
    asked = _spec(world, random, random.choice(USERS))
    spans = random.choice([((0, 3, 1),), ((1, 1, 1), (4, 8, 2)), ((0, 5, 1),)])
    at_once = random.choice([None, 1, 2])
    held = random.random() < 0.1
    world.ask(st.SubmitAsked(world.now(), asked, held, spans=spans, at_once=at_once))


Request = Callable[..., st.Stimulus]


def _request(kind: Request, *states: str) -> Callable[[World, Random], None]:
    def ask(world: World, random: Random) -> None:
        job_id, user = _any_job(world, random, *states)
        tasks = world.books.arrays.get(job_id, range(0))
        is_some = bool(tasks) and random.random() < 0.3
        some = tuple(each for each in tasks if is_some and random.random() < 0.5)
        actor = _actor(random, user)
        asked = kind(world.now(), job_id, actor, tasks=some, is_part=random.random() < 0.5)
        world.ask(asked)

    return ask


def _signal(world: World, random: Random) -> None:
    job_id, user = _any_job(world, random, "RUNNING")
    world.ask(st.SignalAsked(world.now(), job_id, ACTORS[user], 10))


def _change(world: World, random: Random) -> None:
    job_id, user = _any_job(world, random, *random.choice([("PENDING", "HELD"), ()]))
    wish = st.Change(
        priority=random.choice([None, 0, 1, 5]),
        time_limit_s=random.choice([None, None, 5, 60]),
        demand=random.choice([Demand(), Demand(), *(Demand(cores_milli=n) for n in (500, 1500))]),
        pool=random.choice([None, None, None, OPEN]),
        after=random.choice([None, None, (), _after(world, random)]),
        begin_s=random.choice([None, None, 0, int(world.now().at_s) + 6]),
        group=_group(world),
    )
    tasks = [each for each in world.books.live() if each.array_id and each.state == "PENDING"]
    if tasks and random.random() < 0.3:
        # One task goes to another queue than the others of its array.
        task = random.choice(tasks)
        job_id, user, wish = task.id, task.spec.user, st.Change(pool=OPEN)
    world.ask(st.ChangeAsked(world.now(), job_id, _actor(random, user), wish))


def _drain(world: World, random: Random) -> None:
    actor, reason = random.choice([ADMIN, ADMIN, ACTORS["ann"]]), random.choice([None, "swap", ""])
    world.ask(st.DrainAsked(world.now(), True, actor, reason))


def _undrain(world: World, random: Random) -> None:
    world.ask(st.DrainAsked(world.now(), False, ADMIN))


def _see(world: World, use: Resources) -> None:
    if world.engine is not None and world.engine.see_external(use):
        world.tell(st.Tick(world.now()))


def _outside(world: World, random: Random) -> None:
    room = world.first.capacity
    part = random.choice([0, 0, 1, 2, 4])
    use = Resources(
        cores_milli=room.cores_milli * part // 3, memory_bytes=room.memory_bytes * part // 4
    )
    for _ in range(random.choice([1, 5, 5])):
        _see(world, use)


def _reload(world: World, random: Random) -> None:
    world.rules = random.choice([later_rules(world.first, random), world.first])
    if world.engine is not None:
        world.engine.adopt(world.rules)
        world.tell(st.Tick(world.now()))


def _launcher_dies(world: World, random: Random) -> None:
    if not world.machine.is_up:
        return
    world.machine.fall()
    world.disconnect()
    world.later(random.choice([0.0, 0.5, 6.0]), lambda: _launcher_is_back(world))


def _launcher_is_back(world: World) -> None:
    if not world.machine.is_up:
        world.machine.is_up = True
        world.connect()


def _controller_dies(world: World, random: Random) -> None:
    """In the middle of its next commit, or between two turns."""
    if world.journal is None:
        return
    how = random.choice(["", "dies before", "dies after", "torn"])
    if how:
        world.journal.fault = how
    else:
        world.kill_controller(random.choice([0.0, 2.0]))


def _journal_fails(world: World, random: Random) -> None:
    if world.journal is not None:
        world.journal.fault = "fails"


def _reboot(world: World, random: Random) -> None:
    """Of the machine, and with it of everything."""
    keeps_files = random.random() < 0.5
    world.machine.reboot(keeps_files=keeps_files)
    if not keeps_files:
        # That these have run stands nowhere any more, where the journal had failed too.
        unsaid = (each for each in world.books.live() if each.state == "STARTING")
        world.machine.ever_ran.difference_update((each.id, each.attempt) for each in unsaid)
    if world.engine is not None:
        world.kill_controller(3.0)
    world.booted_s = world.seconds + 1.0 - random.choice([5.0, 500.0])
    world.set_clock(random.choice([0.0, -30.0, 100.0]))
    world.later(2.0, lambda: _launcher_is_back(world))


def _clock_jumps(world: World, random: Random) -> None:
    world.set_clock(random.choice([-3600.0, -5.0, 5.0, 3600.0]))


def _late_sample(world: World, random: Random) -> None:
    """Of an attempt that may be over by the time that it is heard of."""
    started = [each for each in world.books.jobs.values() if each.attempt]
    if started:
        job = random.choice(started)
        attempt = max(1, job.attempt - random.choice([0, 0, 1]))
        text = "measured more than it declared"
        world.tell(
            st.Breached(
                world.now().at_s,
                job.id,
                attempt,
                mono_s=world.now().mono_s,
                outcome=Outcome.LIMIT_EXCEEDED,
                text=text,
            )
        )


def _said_again(world: World, random: Random) -> None:
    for _ in range(3):
        if world.machine.said and world.engine is not None:
            world.tell(random.choice(world.machine.said))


def _runner_dies(world: World, random: Random) -> None:
    there = [each for each in world.machine.attempts.values() if each.runner_lives]
    if there:
        world.machine.lose_runner(random.choice(there), with_job=random.random() < 0.5)


def _wait(world: World, random: Random) -> None:
    world.run_until(world.seconds + random.choice([1.0, 15.0]))


#: Kinds of steps: how often they come, and what is done.
_DEEDS: dict[str, tuple[int, Callable[[World, Random], None]]] = {
    "submit": (30, _submit),
    "submit_array": (8, _submit_array),
    "flood": (6, _flood),
    "cancel": (5, _request(st.CancelAsked)),
    "hold": (3, _request(st.HoldAsked, "PENDING")),
    "release": (3, _request(st.ReleaseAsked, "HELD")),
    "requeue": (2, _request(partial(st.RequeueAsked, held=False), "RUNNING")),
    "requeuehold": (1, _request(partial(st.RequeueAsked, held=True), "RUNNING")),
    "suspend": (4, _request(st.SuspendAsked, "RUNNING")),
    "resume": (4, _request(st.ResumeAsked, "SUSPENDED")),
    "signal": (1, _signal),
    "change": (5, _change),
    "drain": (1, _drain),
    "undrain": (2, _undrain),
    "outside": (3, _outside),
    "reload": (3, _reload),
    "launcher_dies": (2, _launcher_dies),
    "controller_dies": (3, _controller_dies),
    "journal_fails": (2, _journal_fails),
    "reboot": (1, _reboot),
    "clock_jumps": (1, _clock_jumps),
    "late_sample": (2, _late_sample),
    "said_again": (3, _said_again),
    "runner_dies": (2, _runner_dies),
    "wait": (6, _wait),
}


# -- what is done in a run ---------------------------------------------------------------------

#: Steps of a run.
STEPS = 16


@dataclass(frozen=True)
class Step:
    """What is done, and how long after the one before. Any step can be left out: whom it meets is
    drawn from its own number among those who are there then."""

    pause_s: float
    kind: str
    number: int

    def __str__(self) -> str:
        return f"+{self.pause_s:g}s {self.kind} #{self.number}"


def script(seed: int, steps: int = STEPS) -> list[Step]:
    """Return the steps of a run, drawn before anything happens."""
    random = Random(f"script {seed}")
    often = {kind: odds for kind, (odds, _) in _DEEDS.items()}
    # Each run has its own temper: some kinds come often in it, some never.
    temper = {kind: odds * random.choice([0, 1, 1, 1, 3]) for kind, odds in often.items()}
    temper["submit"] = temper["submit"] or often["submit"]
    if random.random() < 0.25:
        # One takes all, and others come later.
        temper["flood"], temper["submit"] = 4 * often["flood"], 2 * often["submit"]
    kinds, odds = list(temper), list(temper.values())
    pauses = random.choice([[0.0, 0.0, 0.2, 1.0], [0.0, 0.5, 3.0, 10.0], [0.0, 1.0, 30.0]])
    return [
        Step(random.choice(pauses), random.choices(kinds, odds)[0], random.randrange(1 << 30))
        for _ in range(steps)
    ]


# -- the whole --------------------------------------------------------------------------------


def run(seed: int, steps: list[Step], directory: Path, trace: Trace | None = None) -> World:
    """The world at its end; raises Broken, or what the product raises."""
    world = World(seed, directory, trace)
    try:
        for step in steps:
            world.run_until(world.seconds + step.pause_s)
            world.say(f"{world.seconds:8.2f} {step.kind} #{step.number}")
            world.counts[step.kind] += 1
            _, do = _DEEDS[step.kind]
            do(world, Random(f"{world.seed} {step.kind} {step.number}"))
            # What two steps do at one time is now and then taken in one turn.
            if step.number % 3:
                world.turn()
        end_in_peace(world)
    finally:
        if world.journal is not None:
            world.journal.close()
    return world


def end_in_peace(world: World) -> None:
    """No more faults, nobody keeps anything back: everything must come to its end."""
    world.say(f"{world.seconds:8.2f} no more faults")
    if world.journal is not None:
        world.journal.fault = ""
    world.machine.is_kind = True
    world.run_until(world.seconds + 30)
    assert world.engine is not None and world.journal is not None
    world.rules = world.first
    world.engine.adopt(world.first)
    world.machine.is_up = True
    world.connect()
    until_s = world.seconds + PATIENCE_S
    while world.seconds < until_s and any(world.books.live()):
        calm(world)
        world.turn()
        world.run_until(world.seconds + 20)
    left = [(each.id, each.state) for each in world.books.live()]
    claim(not left, "some never come to their end", left)
    rebuilt = Ledger.of_events(world.engine.ledger.axes, world.journal.durable)
    compare_books(world.engine.ledger, rebuilt, "the events make other books")
    claim(not any(world.engine.ledger.allocated.sums), "something is held by nobody")
    alive = [each.key for each in world.machine.attempts.values() if each.is_alive]
    claim(not alive, "attempts that nobody knows run on", alive)


def attempt(seed: int, steps: list[Step], trace: Trace | None = None) -> World | Exception:
    """The world at its end, or what went wrong."""
    with TemporaryDirectory(prefix="drfd-torture-", dir=_memory()) as directory:
        try:
            return run(seed, steps, Path(directory), trace)
        except Exception as failure:
            return failure


def shrink(seed: int, steps: list[Step], failure: Exception) -> list[Step]:
    """Leave out halves, quarters, … single steps, as long as the same goes wrong."""
    size = max(1, len(steps) // 2)
    while True:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            found = attempt(seed, fewer)
            if isinstance(found, Exception) and kind_of(found) == kind_of(failure):
                steps = fewer
            else:
                at += size
        if size == 1:
            return steps
        size //= 2


def kind_of(failure: Exception) -> str:
    """What two runs share that have found the same."""
    if isinstance(failure, Broken):
        return failure.what
    at = failure.__traceback__
    assert at is not None
    while at.tb_next is not None:
        at = at.tb_next
    return f"{type(failure).__name__} in {at.tb_frame.f_code.co_qualname}"


def _memory() -> str | None:
    """A disk would only be in the way."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
