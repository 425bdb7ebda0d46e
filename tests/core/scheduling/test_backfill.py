"""Big jobs in random trees, under a virtual clock (docs/fairness.md 1.3, 1.8).

Each pass agrees with the slow pass, promises to big jobs are kept, nothing idles without reason,
and no job starves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as some

from core.oracle import Ask, Kept, Pass, Times, Tree, Vector, added, begin, slow_pass, within
from core.worlds import plan
from core.scheduling.streams import Clock
from core.worlds import LEAVES, all_reserved, fair_share, fits_now, queues_of, reserved, trees
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.plan import Plan
from seeds import examples


class Kind(NamedTuple):
    """Jobs of one demand run equally long and are estimated alike."""

    demand: Vector
    run_s: int
    guess_s: int


class Arrival(NamedTuple):
    gap_s: int
    leaf: str
    kind: Kind
    priority: int = 0


class Stream(NamedTuple):
    tree: Tree
    arrivals: Sequence[Arrival]
    patience_s: int
    drain_after_s: int


class View(NamedTuple):
    """What there is before a pass."""

    waiting: dict[int, Ask]
    held: dict[str, Vector]
    #: When the running jobs will have ended, as estimated, and what they hold.
    ends: list[tuple[float, Vector]]


class Machine(Clock):
    """Runs a stream with the real pass."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.stream = stream
        #: All that ever came, by id from 1.
        self.asks: dict[int, Ask] = {}
        self.kinds: dict[int, Kind] = {}
        #: What the last pass had to go by.
        self.view: View | None = None

    def came_s(self, job_id: int) -> int:
        return int(self.asks[job_id].since_s)

    def run_s(self, job_id: int) -> int:
        return self.kinds[job_id].run_s

    def length_s(self, job_id: int) -> int:
        return self.kinds[job_id].guess_s

    def look(self) -> View:
        held: dict[str, Vector] = {}
        for job_id in self.running:
            ask = self.asks[job_id]
            held[ask.leaf] = added(held.get(ask.leaf, (0,) * len(ask.demand)), ask.demand)
        return View(
            {job_id: self.asks[job_id] for job_id in sorted(self.waiting)},
            held,
            [(self.guess_s(job_id), self.asks[job_id].demand) for job_id in self.running],
        )

    def state(self) -> Pass:
        """As it is now, for its questions."""
        now = self.look()
        return begin(self.stream.tree, now.waiting, now.held)

    def submit(self, arrival: Arrival) -> int:
        kind = arrival.kind
        job_id = len(self.asks) + 1
        self.asks[job_id] = Ask(
            arrival.leaf, kind.demand, arrival.priority, self.now_s, kind.guess_s
        )
        self.kinds[job_id] = kind
        return job_id

    def make_pass(self) -> Plan:
        self.view = self.look()
        return plan(
            queues=queues_of(self.view.waiting),
            used=self.view.held,
            free=self.state().free,
            shares=fair_share(self.stream.tree),
            pass_context=PassContext(
                now_s=self.now_s,
                patience=ReservationSettings(
                    patience_s=self.stream.patience_s, drain_after_s=self.stream.drain_after_s
                ),
                ends=self.view.ends,
                since_s=lambda job_id: self.asks[job_id].since_s,
                length_s=lambda job_id: self.asks[job_id].length_s,
                entry=lambda job_id: (
                    (-self.asks[job_id].priority, job_id) if job_id in self.waiting else None
                ),
                before=all_reserved(self.last),
            ),
        )


# -- random streams ----------------------------------------------------------------------------


@some.composite
def streams(draw: some.DrawFn, *, bounds: bool = False, exact: bool = False) -> Stream:
    """`bounds`: with limits and guarantees. `exact`: estimates are right."""
    tree = draw(trees(bounds=bounds, axes=3, open_axes=False))
    small = some.tuples(*(some.integers(0, top // 3) for top in tree.capacity))
    large = some.tuples(*(some.integers(top // 2, top) for top in tree.capacity))
    demands = draw(some.lists(small | large, min_size=1, max_size=4, unique=True))
    seconds = some.integers(1, 20)
    kinds = []
    for demand in demands:
        run_s = draw(seconds)
        kinds.append(Kind(demand, run_s, run_s if exact else draw(seconds)))
    arrival = some.builds(
        Arrival,
        some.sampled_from([0, 0, 1, 3]),
        some.sampled_from(draw(some.lists(some.sampled_from(LEAVES), min_size=1, max_size=5))),
        some.sampled_from(kinds),
        some.sampled_from([0, 0, 0, 1]),
    )
    count = draw(some.integers(2, 20))
    arrivals = draw(some.lists(arrival, min_size=count, max_size=count))
    return Stream(tree, arrivals, draw(some.integers(0, 6)), draw(some.integers(5, 40)))


@examples(100, quick=3)
@given(streams(bounds=True))
def test_each_pass_is_what_the_slow_pass_says(stream: Stream) -> None:
    machine = Machine(stream)
    kept: Kept | None = None
    for done in machine.passes():
        assert machine.view is not None
        waiting, held, ends = machine.view
        times = Times(machine.now_s, stream.patience_s, stream.drain_after_s, ends, kept)
        slow = slow_pass(stream.tree, waiting, held, times, done.admitted)
        assert done.admitted[: slow.sure] == slow.launches[: slow.sure]
        assume(slow.sure is None)
        kept, real = slow.kept, reserved(done)
        assert (kept is None) is (real is None)
        if kept is not None and real is not None:
            told = real.job_id, real.start_s, real.extra, real.missed, real.is_drain
            assert kept == (*told, real.due_s)
        assert done.starvation_guard in (None, slow.starvation_guard)


@examples(100, quick=5)
@given(streams(exact=True))
def test_with_exact_estimates_a_big_job_starts_by_the_time_that_it_was_first_given(
    stream: Stream,
) -> None:
    machine = Machine(stream)
    promised_s: dict[int, float] = {}
    for done in machine.passes():
        kept = reserved(done)
        if kept is not None:
            promised_s.setdefault(kept.job_id, kept.start_s)
            # Nothing that starts beside it moves it further away.
            assert kept.start_s <= promised_s[kept.job_id]
    for job_id, at_s in promised_s.items():
        assert machine.started_s[job_id] <= at_s


@examples(100, quick=5)
@given(streams())
def test_with_bad_estimates_a_big_job_starts_within_its_bound(stream: Stream) -> None:
    """When it should have started by what it was told first, it is patient for a while; from the
    moment at which it drains, every job that then runs has to end at most."""
    longest_s = max(arrival.kind.run_s for arrival in stream.arrivals)
    machine = Machine(stream)
    due_s: dict[int, float] = {}
    drains_s: dict[int, int] = {}
    for done in machine.passes():
        kept = reserved(done)
        if kept is not None:
            due_s.setdefault(kept.job_id, kept.start_s)
            if kept.is_drain:
                last_s = max(machine.end_s(job_id) for job_id in machine.running)
                drains_s.setdefault(kept.job_id, last_s)
    for job_id, first_s in due_s.items():
        # It looks at the clock when somebody ends, if not before.
        assert machine.started_s[job_id] <= first_s + stream.drain_after_s + 2 * longest_s
    for job_id, last_s in drains_s.items():
        assert machine.started_s[job_id] <= last_s


@examples(100, quick=2)
@given(streams())
def test_whoever_has_waited_long_enough_is_reserved_for_or_somebody_else_is(
    stream: Stream,
) -> None:
    """So there is always a next one, and in a stream that ends every job has started."""
    machine = Machine(stream)
    for done in machine.passes():
        state = machine.state()
        for leaf in {ask.leaf for ask in state.waiting.values()}:
            head = state.waiting[state.jobs(leaf)[0]]
            if machine.now_s - head.since_s >= stream.patience_s:
                assert within(head.demand, state.free) or reserved(done) is not None
    assert machine.waiting == set()


@examples(100, quick=5)
@given(streams())
def test_a_reservation_stays_with_its_job_until_that_starts(stream: Stream) -> None:
    machine = Machine(stream)
    before: int | None = None
    for done in machine.passes():
        kept = reserved(done)
        if before is not None and before in machine.waiting:
            assert kept is not None and kept.job_id == before
        before = kept.job_id if kept is not None else None


@examples(100, quick=4)
@given(streams(bounds=True))
def test_after_each_pass_nothing_waits_that_the_reservation_allows(stream: Stream) -> None:
    """What fits, within its limits, would hurt the reservation, or is behind the one job that does
    not fit and has waited too long, and longer than all others."""
    machine = Machine(stream)
    for done in machine.passes():
        state, kept = machine.state(), reserved(done)
        assert done.free == state.free
        assert all(amount >= 0 for amount in state.free)
        for job_id, ask in state.waiting.items():
            if not fits_now(state, job_id):
                continue
            head = state.waiting[state.jobs(ask.leaf)[0]]
            if state.jobs(ask.leaf)[0] == done.starvation_guard:
                assert machine.now_s - head.since_s > stream.drain_after_s
                assert not within(head.demand, state.free)
                continue
            assert kept is not None and kept.job_id != job_id
            if kept.is_drain:
                left = [max(0, f - d) for f, d in zip(state.free, kept.demand, strict=True)]
                assert not within(ask.demand, left)
            else:
                assert machine.now_s + ask.length_s > kept.start_s
                assert not within(ask.demand, kept.extra)


@examples(100, quick=4)
@given(streams(bounds=True))
def test_the_same_stream_gives_the_same_schedule_and_all_comes_back(stream: Stream) -> None:
    first, again = Machine(stream), Machine(stream)
    assert [each.admitted for each in first.passes()] == [each.admitted for each in again.passes()]
    assert first.started_s == again.started_s
    assert first.state().free == stream.tree.capacity


# -- where these properties end ----------------------------------------------------------------
