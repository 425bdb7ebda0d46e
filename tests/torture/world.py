"""A whole drfd in virtual time: the real engine and journal, a simulated machine, and a clock.

What the controller does around its engine (`daemon/controller.py`, `daemon/launcher_link/link.py`)
is done here without asyncio: reports and wake-ups come when their time has come, what is due
together makes one turn. After every turn all that must hold is looked at (`torture.watch`)."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs

import drfd.core.scheduling.scheduler as scheduling
from drfd.common.errors import DrfdError, HostError
from drfd.common.owner import Owner
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.outcome import deadline_mono_s
from drfd.core.decisions.reconciliation import leftovers, missing_attempts
from drfd.core.fairness.rules import NodeSettings, Pool, Preempting, ReservationSettings, Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.effects import Effect
from drfd.core.model.job import Job, JobState, Outcome
from drfd.core.model.resources import Axes, Resources
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.scheduler import build_wait_index, schedule
from drfd.core.scheduling.wait_index import WaitIndex
from drfd.daemon.engine.engine import Engine, Work
from drfd.journal.journal import Journal
from fakes import GIB, all_events
from torture.books import Amounts, Books, Turn, amounts, claim
from torture.machine import Key, Machine
from torture.watch import look, look_at_choices, look_at_victims

#: What a submission or a request may be refused for here.
REFUSALS = {
    "too-big", "too-many-jobs", "above-limit", "no-such-job", "no-such-resource", "not-yours",
    "not-waiting", "not-held", "not-running", "not-suspended", "held-by-admin", "cycle",
    "bad-value", "not-admin", "no-limit",
}  # fmt: skip


Trace = Callable[[str], None]


class Crash(BaseException):
    """The controller dies here."""


class Witness(Journal):
    """The real journal, which tells what is in it, and dies or fails when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # That a power cut loses nothing is tested elsewhere; here it would only cost time.
        self._db.execute("pragma synchronous = off")
        #: Entered since the last commit, with where the books stood.
        self.pending: list[ev.Event] = []
        self.durable: list[ev.Event] = []
        self.fault = ""

    def append(self, event: ev.Event, *more: Any) -> None:
        self.pending.append(event)
        super().append(event, *more)

    def commit(self) -> None:
        fault = self.fault
        if self._db.in_transaction and fault:
            self.fault = ""
            if fault == "fails":
                raise HostError("journal", "cannot write the journal: no space is left")
            if fault == "dies before":
                raise Crash
        wrote = self._db.in_transaction
        before = self._log.read_bytes() if fault == "torn" else b""
        super().commit()
        if wrote and fault == "torn":
            self._tear(before)
            raise Crash
        self.durable += self.pending
        self.pending.clear()
        if wrote and fault == "dies after":
            raise Crash

    def rollback(self) -> None:
        self.pending.clear()
        super().rollback()

    @property
    def _log(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def _tear(self, before: bytes) -> None:
        """Of the last transaction, only a part comes to the disk."""
        torn = self.path.with_name("torn")
        shutil.copy(self.path, torn)
        after = self._log.read_bytes()
        pages = range(0, max(len(before), len(after)), 512)
        new = [at for at in pages if before[at : at + 512] != after[at : at + 512]]
        Path(f"{torn}-wal").write_bytes(after[: new[0] + (new[-1] - new[0]) * 2 // 3])


@dataclass
class World:
    seed: int
    directory: Path
    trace: Trace | None = None
    seconds: float = 0.0
    #: How far Unix time has been set from where it should be; when the machine was started.
    skew_s: float = 0.0
    booted_s: float = -1000.0
    books: Books = field(default_factory=Books)
    engine: Engine | None = None
    journal: Witness | None = None
    refused: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    #: Has the launcher told everything since it was connected?
    ready: bool = False
    #: Whose end has been looked up in the journal.
    told: set[int] = field(default_factory=set)
    _inbox: list[Work] = field(default_factory=list)
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    #: Turns in a row after which nothing was written down.
    _idle_turns: int = 0
    #: Counts controllers: what one had in mind dies with it.
    life: int = 0
    _alarm: int = 0
    _turn: Turn | None = None

    def __post_init__(self) -> None:
        self.rules = self.first = first_rules(self.seed)
        self.machine = Machine(self.seed, self, self._heard, self._listed)
        self.start_controller()

    def say(self, what: str, *about: object) -> None:
        """To whoever follows the run."""
        if self.trace is not None:
            self.trace(what + " ".join(map(brief, about)))

    # -- time -----------------------------------------------------------------------------------

    def now(self) -> st.Now:
        return st.Now(
            at_s=1_700_000_000 + self.seconds + self.skew_s, mono_s=self.seconds - self.booted_s
        )

    def set_clock(self, by_s: float) -> None:
        self.skew_s += by_s

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._agenda, (self.seconds + delay_s, self._number, what))

    def run_until(self, until_s: float) -> None:
        """Let everything happen that is due by then."""
        while self._agenda and self._agenda[0][0] <= until_s:
            self.seconds = self.machine.seconds = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] <= self.seconds:
                heappop(self._agenda)[2]()
            self.turn()
        self.seconds = self.machine.seconds = max(self.seconds, until_s)

    # -- the controller -------------------------------------------------------------------------

    def start_controller(self) -> None:
        path = self.directory / f"journal{self.life}.sqlite"
        self.journal = Witness(path)
        self.engine = Engine(
            journal=self.journal, rules=self.rules, launchers=self, clock=self.now,
        )  # fmt: skip
        # In some runs passes are cut soon.
        self.engine.scheduler.max_starts = Random(f"{self.seed} starts").choice([64, 2])
        # And few jobs are told of an end at once.
        self.engine.notified_at_once = Random(f"{self.seed} told").choice([64, 1])
        self._inbox = []
        self._nudge(self.life)
        self.tell(st.Tick(self.now()))
        self.connect()

    def kill_controller(self, down_s: float) -> None:
        """It comes back after so long, with what is on the disk."""
        assert self.journal is not None
        self.say("   the controller dies")
        self.counts["controller deaths"] += 1
        self.ready = False
        self.machine.disconnect()
        self.life += 1
        old, new = self.journal.path, self.directory / f"journal{self.life}.sqlite"
        torn = old.with_name("torn")
        found = torn if torn.exists() else old
        # As a kill leaves them: without the tidying up of an orderly end.
        for suffix in ("", "-wal"):
            if Path(f"{found}{suffix}").exists():
                shutil.copy(f"{found}{suffix}", f"{new}{suffix}")
        self.journal.close()
        durable = self.journal.durable
        for path in self.directory.glob(f"{old.name}*"):
            path.unlink()
        for path in self.directory.glob("torn*"):
            path.unlink()
        self.engine, self.journal, self._inbox = None, None, []
        life = self.life

        def come_back() -> None:
            if life == self.life and self.engine is None:
                self.say("   the controller is back")
                self.start_controller()
                self._compare_loaded(durable)

        self.later(down_s, come_back)

    def _compare_loaded(self, durable: list[ev.Event]) -> None:
        """What was read is what the durable events make."""
        assert self.journal is not None and self.engine is not None
        self.journal.durable = durable
        read = all_events(self.journal)
        # Of events that are about no job, only the last of each kind and node is kept.
        keys = [
            at
            if isinstance(each, ev.JobEvent | ev.ArraySubmitted)
            else (type(each), getattr(each, "node", ""))
            for at, each in enumerate(durable)
        ]
        last = dict(zip(keys, range(len(keys)), strict=True))
        kept = [durable[at] for at in sorted(last.values())]
        claim(read == kept, "the journal holds other events", len(read), len(kept))
        rebuilt = Ledger.of_events(self.engine.ledger.axes, durable)
        compare_books(self.engine.ledger, rebuilt, "the books that were read are others")

    def tell(self, stimulus: st.Stimulus, then: Callable[[], None] | None = None) -> None:
        """Queue news; what cannot be written is asked for again (see launcher_link/link.py)."""
        life = self.life

        def answer(result: list[ev.Event] | DrfdError) -> None:
            if isinstance(result, HostError):
                self.later(1.0, lambda: self._list_again(life))
            elif then is not None:
                then()

        self._inbox.append(Work(stimulus, answer=answer))

    def ask(self, stimulus: st.Stimulus) -> None:
        """A person's request."""

        def answer(result: list[ev.Event] | DrfdError) -> None:
            if isinstance(result, HostError):
                self.refused["journal"] += 1
            elif isinstance(result, DrfdError):
                self.refused[result.code] += 1
                claim(result.code in REFUSALS, "a refusal nobody knows", result.code)
            else:
                self.refused["granted"] += 1

        if self.engine is not None:
            self._inbox.append(Work(stimulus, answer=answer))

    def turn(self) -> None:
        if self.engine is None or self.journal is None or not self._inbox:
            return
        batch, self._inbox = self._inbox, []
        self._turn = self.turn_now()
        self.counts["turns"] += 1
        done = len(self.journal.durable)
        for work in batch:
            self.say("   ", work.stimulus)
        engine, journal = self.engine, self.journal
        try:
            with passes_by(self._pass):
                engine.turn(batch)
        except Crash:
            self._enter(journal.durable[done:])
            self.kill_controller(Random(f"{self.seed} {self.life} down").choice([0.0, 0.3, 5.0]))
            return
        self._enter(journal.durable[done:])
        claim(not journal.pending, "not all was made durable", journal.pending[:1])
        look_at_victims(self, journal.durable[done:])
        if len(journal.durable) > done or self.counts["turns"] % 8 == 0:
            look(self)
        self._idle_turns = 0 if len(journal.durable) > done else self._idle_turns + 1
        if engine.wants_turn and not self._inbox:
            claim(self._idle_turns < 1000, "turns decide nothing and go on", self.now())
            self.counts["cut passes"] += 1
            self.counts["untold ends"] += bool(engine.ledger.dependents.ended)
            self.tell(st.Tick(self.now()))
            self.later(0.0, lambda: None)
        self._set_alarm()

    def _enter(self, events: list[ev.Event]) -> None:
        """Into the second books."""
        assert self._turn is not None
        for event in events:
            self.say("      → ", event)
            self.books.take(event, self._turn)
            if isinstance(event, ev.Exited) and event.outcome is Outcome.LOST:
                has_run = (event.job_id, event.attempt) in self.machine.ever_ran
                claim(has_run, "what never ran is lost", event)

    @property
    def has_passed(self) -> bool:
        """Has there been a pass since anything changed?"""
        return self.engine is not None and self.ready and not self.engine._wants_pass

    def turn_now(self) -> Turn:
        assert self.engine is not None
        rules, mono_s = self.engine.rules, self.now().mono_s
        return Turn(rules, mono_s, self.kept(), self._reserved(), self._real_end)

    def kept(self) -> Amounts:
        assert self.engine is not None
        load = self.engine.external
        return {} if load is None else amounts(load.kept)

    def _real_end(self, key: Key) -> st.ExitedReport | None:
        attempt = self.machine.attempts.get(key)
        return None if attempt is None else attempt.end

    def _reserved(self) -> frozenset[int]:
        assert self.engine is not None
        return frozenset(each.job_id for each in self.engine.scheduler.reservations)

    def _set_alarm(self) -> None:
        """A tick when the next limit or grace time is over, or a time to begin has come."""
        assert self.engine is not None
        now, ledger = self.now(), self.engine.ledger
        dues = (deadline_mono_s(job, self.engine.rules) for job in ledger.allocated_jobs())
        delays = [due - now.mono_s for due in dues if due is not None]
        begin_s = ledger.begins.first_s()
        if begin_s is not None:
            delays.append(min(30.0, begin_s - now.at_s))
        if self.engine.again_mono_s is not None:
            delays.append(max(0.001, self.engine.again_mono_s - now.mono_s))
        self._alarm += 1
        alarm, life = self._alarm, self.life
        if delays:
            delay_s = min(delays)
            # Never so little that the time would stay the same.
            self.later(
                max(0.001, delay_s) if delay_s > 0 else 0.5,
                lambda: self._notify_launcher(life) if alarm == self._alarm else None,
            )

    def _notify_launcher(self, life: int) -> None:
        if life == self.life and self.engine is not None:
            self.tell(st.Tick(self.now()))

    def _nudge(self, life: int) -> None:
        """A pass now and then: patience runs out without any event."""
        if life != self.life or self.engine is None:
            return
        if self.engine.ledger.queues:
            self.engine.want_pass()
            self.tell(st.Tick(self.now()))
        pause_s = min(30.0, max(10.0, self.engine.rules.reserving.delay_s))
        self.later(pause_s, lambda: self._nudge(life))

    # -- its line to the launcher (an engine's `Host`) ------------------------------------------

    def is_ready(self) -> bool:
        return self.ready

    def nodes_away(self) -> frozenset[str]:
        return frozenset()

    def perform(self, effect: Effect, job: Job) -> None:
        assert self.journal is not None
        claim(not self.journal.pending, "an order goes out before it is durable", effect)
        self.say("      ⇒ ", effect)
        self.counts[type(effect).__name__] += 1
        self.machine.order(effect, job)

    def connect(self) -> None:
        if self.engine is not None and self.machine.is_up:
            self.ready = False
            self.machine.connect()

    def disconnect(self) -> None:
        self.ready = False

    def _list_again(self, life: int) -> None:
        if life == self.life and self.engine is not None and self.machine.is_up:
            self.machine.connect()

    def _heard(self, report: st.Stimulus) -> None:
        if self.engine is None:
            return

        def perhaps_launch() -> None:
            assert self.engine is not None
            job = self.engine.ledger.jobs.get(report.job_id)  # type: ignore[union-attr]
            if job is not None and job.state is JobState.STARTING:
                self.engine.perform_owed(job)

        frees = isinstance(report, st.MissingReport | st.RemovedReport)
        self.tell(report, perhaps_launch if frees else None)

    def _listed(self, known: set[Key]) -> None:
        if self.engine is None:
            return

        def settle() -> None:
            assert self.engine is not None
            self.ready = True
            for missing in missing_attempts(self.engine.ledger, known, self.now().at_s):
                self.tell(missing)
            # All attempts of this world are of one journal's jobs.
            nobody = dict.fromkeys(known, Owner())
            journal = self.engine.journal
            for removal in leftovers(self.engine.ledger, nobody, journal.id, journal.job).removals:
                self.machine.order(removal, None)  # type: ignore[arg-type]
            self.engine.perform_all_owed()
            self.engine.want_pass()
            self.tell(st.Tick(self.now()))
            # What was queued just now is the next turn's.
            self.later(0.0, lambda: None)

        self.tell(st.Tick(self.now()), settle)

    # -- passes ---------------------------------------------------------------------------------

    def _pass(
        self,
        ledger: Ledger,
        rules: Rules,
        wait_index: WaitIndex,
        pass_context: PassContext,
        max_starts: float,
    ) -> Plan:
        """One of the engine's; now and then a second time over a line-up of its own."""
        self.counts["passes"] += 1
        fresh = None
        if self.counts["passes"] % 2:
            afresh = build_wait_index(
                ledger, rules, wait_index.tables.past_usage, wait_index.tables.recent
            )
            fresh = schedule(ledger, rules, afresh, pass_context, max_starts)
            order = list(fresh.order)
        kept = schedule(ledger, rules, wait_index, pass_context, max_starts)
        if fresh is not None:
            for what in ("admitted", "free", "reservations"):
                had, would = getattr(kept, what), getattr(fresh, what)
                claim(had == would, f"what is kept gives another pass: {what}", had, would)
        if fresh is not None and self.counts["passes"] % 3 == 0:
            had = list(kept.order)
            claim(had == order, "what is kept gives another order", had, order)
        is_plain = not rules.reserving.reserves and not wait_index.tables.recent and not self.kept()
        is_plain = is_plain and not kept.pause and not ledger.draining
        is_plain = is_plain and rules.policy == "drf" and not kept.reservations
        if is_plain and kept.admitted and not pass_context.before:
            self.counts["choices"] += 1
            look_at_choices(kept, ledger, rules, wait_index.tables.past_usage)
        return kept


@contextmanager
def passes_by(
    make: Callable[[Ledger, Rules, WaitIndex, PassContext, float], Plan],
) -> Iterator[None]:
    """Scheduling passes are made so."""
    real = scheduling.schedule
    scheduling.schedule = make
    try:
        yield
    finally:
        scheduling.schedule = real


def brief(thing: object) -> str:
    """Without what is the same everywhere."""
    return re.sub(r"(, \w+=(None|\(\)|False|Usage\([^)]*\)))|now=Now\([^)]*\), ", "", str(thing))


def compare_books(kept: Ledger, fresh: Ledger, what: str) -> None:
    names = "jobs arrays queues used allocations allocated taken job_counts dependents begins"
    for name in (*names.split(), "next_id", "drains"):
        mine, other = getattr(kept, name), getattr(fresh, name)
        claim(mine == other, "", what, name, mine, other)
    ends = kept.dependents.ended, fresh.dependents.ended
    claim(ends[0] == ends[1], "", what, "ends that jobs wait to be told of", *ends)


# -- what the machine has, and gives to whom, drawn from a seed ---------------------------------


USERS = ("ann", "ben", "cyd", "dan")
#: Pools that take some users' jobs, and one that takes anybody's.
LAB, BIO, OPEN = "lab", "lab.bio", "open"
#: The memory of each GPU that jobs may share.
GPU_BYTES = 8 * GIB


def first_rules(seed: int) -> Rules:
    random = Random(f"rules {seed}")
    gpus = random.choice([0, 0, 1, 3])
    policy = random.choice(["drf"] * 9 + ["fifo", "slots", "asset"])
    how = random.choice([None, _preempting(random), _preempting(random)])
    return Rules(
        axes=_axes(tuple(map(str, range(gpus))), Random(f"shared {seed}").random() < 0.8),
        capacity=Resources(
            cores_milli=random.choice([2000, 4000, 9000]),
            memory_bytes=random.choice([4, 8]) * GIB,
            read_bps=1000,
            write_bps=random.choice([0, 1000]),
            gres=(("gpu", gpus),) if gpus else (),
        ),
        pools=_pools(random),
        members={(LAB, "ann"): NodeSettings(weight=Fraction(random.choice([1, 2])))},
        grace_s=random.choice([1, 5]),
        max_waiting_per_user=25,
        max_suspended_s=Random(f"suspended {seed}").choice([None, 20]),
        reserving=ReservationSettings(
            delay_s=random.choice([0.0, 2.0, 15.0]),
            drain_after_s=random.choice([5.0, 40.0, 1e6]),
            reserves=random.random() < 0.7,
            depth=random.choice([1, 1, 2, 3]),
        ),
        policy=policy,
        preempting=how if policy == "drf" else None,
        half_life_s=random.choice([60, 604_800]),
        min_charge_s=random.choice([0, 0, 10]),
        beside=random.choice([None, Resources(cores_milli=500, memory_bytes=GIB)]),
    )


def later_rules(first: Rules, random: Random) -> Rules:
    """As somebody who edits the configuration might change them."""
    pools = dict(first.pools)
    if random.random() < 0.5:
        pools = {
            name: replace(each, limit={**pool.limit, **_limit(random)})
            for (name, each), pool in zip(_pools(random).items(), pools.values(), strict=True)
        }
    capacity, axes = first.capacity, first.axes
    if random.random() < 0.5:
        part = random.choice([1, 2, 3])
        capacity = structs.replace(
            capacity,
            cores_milli=capacity.cores_milli * part // 3,
            memory_bytes=capacity.memory_bytes * random.choice([2, 3]) // 3,
        )
    if capacity.gres and random.random() < 0.4:
        _, names = axes.instances[0]
        kept = tuple(each for each in names if random.random() < 0.6)
        gres = (("gpu", len(kept)),) if kept else ()
        axes = _axes(kept, axes.shared is not None)
        capacity = structs.replace(capacity, gres=gres)
    if capacity.gres and Random(f"shared {capacity} {first.grace_s}").random() < 0.3:
        axes = replace(axes, shared=None if axes.shared else ("gpu", GPU_BYTES))
    return replace(
        first,
        axes=axes,
        capacity=capacity,
        pools=pools,
        preempting=random.choice([first.preempting, None]),
        policy=random.choice([first.policy, first.policy, "drf"]),
    )


def _axes(gpus: tuple[str, ...], shared: bool) -> Axes:
    if not gpus:
        return Axes()
    size = ("gpu", GPU_BYTES) if shared else None
    return Axes(gres=("gpu",), instances=(("gpu", gpus),), shared=size)


def _pools(random: Random) -> dict[str, Pool]:
    weight = [Fraction(1), Fraction(2), Fraction(1, 3)]
    guarantee = random.choice([{}, {}, {"cores": 1000}])
    return {
        LAB: Pool(
            weight=random.choice(weight), users=frozenset({"ann", "ben"}), guarantee=guarantee
        ),
        BIO: Pool(
            weights=random.choice([{}, {"memory": Fraction(5, 2)}]), users=frozenset({"cyd"})
        ),
        OPEN: Pool(weight=random.choice(weight), limit=_limit(random)),
    }


def _limit(random: Random) -> dict[str, int]:
    return random.choice([{}, {}, {"cores": 2000}, {"memory": 3 * GIB}])


def _preempting(random: Random) -> Preempting:
    return Preempting(
        suspends=random.random() < 0.5,
        after_s=random.choice([0.0, 4.0]),
        exempt_s=random.choice([0, 2, 60]),
    )
