"""Random lives of a whole drfd in virtual time (tests/torture): some in each quick run, in which
whatever is asked and reported in whatever order, the books stay right and every job comes to its
end; and what it costs where many wait.
"""

from collections.abc import Callable, Iterable, Iterator

import pytest

from core.worlds import lines_counted
from drfd.core.decisions import stimuli as st
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import UserGroup
from drfd.core.model.resources import Axes
from drfd.core.scheduling.scheduler import Scheduler, start_events
from fakes import ALICE, ended, launched, now, replace, rules, schedule, spec
from torture.life import attempt, script
from torture.world import World

#: Lives in each block, and steps of each.
LIVES, STEPS = 2, 24


@pytest.mark.parametrize("block", range(4))
def test_the_books_stay_right_and_everything_comes_to_its_end(block, caplog):
    """That a journal cannot be written is meant."""
    caplog.set_level("CRITICAL")
    for seed in range(block * LIVES, (block + 1) * LIVES):
        life = attempt(seed, script(seed, STEPS))
        assert isinstance(life, World), f"python -m tests.torture --runs 1 --seed {seed}: {life}"


# -- arrays, as cheap as one job -------------------------------------------------------------------


def steps_of(do: Callable[[], object]) -> int:
    with lines_counted() as lines:
        do()
    return lines[0]


def array_life(size: int) -> Iterator[tuple[str, int]]:
    """The work of each thing that happens to an array of this size."""
    how = replace(rules(cores=2), max_waiting_per_user=10**6)
    for at_once in (None, 1):
        ledger = Ledger(how.axes)

        def feed(stimulus: st.Stimulus | st.Now, ledger: Ledger = ledger) -> None:
            if isinstance(stimulus, st.Now):
                found = list(start_events(ledger, schedule(ledger, how), stimulus))
            else:
                found = stimulus.decide(ledger, how)
            for event in found:
                ledger.apply(event)

        stimuli = (
            st.SubmitAsked(now(), spec(), spans=((0, size - 1, 1),), at_once=at_once),
            st.HoldAsked(now(), 1 + size // 2, ALICE),
            st.ReleaseAsked(now(), 1 + size // 2, ALICE),
            now(),
            # Of the middle: to leave from the front is cheaper.
            st.CancelAsked(now(), 2 + 2 * size // 3, ALICE),
            now(),
        )
        for stimulus in stimuli:
            yield (
                f"{type(stimulus).__name__} %{at_once}",
                steps_of(lambda each=stimulus: feed(each)),
            )
        left = ledger.arrays.live()
        jobs = list(ledger.jobs.values())
        yield "load", steps_of(lambda: Ledger.of_jobs(Axes(), jobs, arrays=left))  # noqa: B023


@pytest.mark.slow
def test_one_of_twenty_thousand_tasks_is_as_cheap_as_one_of_ten():
    """Their submission is a few lines for each."""
    few, many = list(array_life(10)), list(array_life(20_000))
    assert [name for name, _ in few] == [name for name, _ in many]
    most = {"SubmitAsked": 8 * 20_000, "load": 150 * 20_000}
    dear = {
        name: (a, b)
        for (name, a), (_, b) in zip(few, many, strict=True)
        if b > a + a // 4 + most.get(name.partition(" ")[0], 0)
    }
    assert dear == {}


@pytest.mark.parametrize("kind", ["arrays", "lengths", "groups"])
def test_a_start_is_as_cheap_where_many_wait(kind):
    """With 20,000 arrays of two tasks each start held everybody up for 80 ms, with thousands of
    time limits or groups for 20 ms."""

    def work(count: int) -> int:
        how = replace(rules(cores=1), max_waiting_per_user=10**6)
        ledger, scheduler = Ledger(how.axes), Scheduler(how.half_life_s)

        def feed(found: Iterable[ev.Event]) -> None:
            for event in found:
                ledger.apply(event)

        spans = ((0, 1, 1),) if kind == "arrays" else ()
        for at in range(count):
            asked = spec(time_limit_s=60 + at) if kind == "lengths" else spec()
            if kind == "groups":
                asked = spec(group=UserGroup(f"g{at}", 1))
            feed(st.SubmitAsked(now(), asked, spans=spans).decide(ledger, how))
        feed(scheduler.run(ledger, how, now()))
        (first,) = ledger.allocated_jobs()
        gone = st.RemovedReport(now().at_s, first.id, 1)
        for stimulus in (launched(first.id), ended(first.id), gone):
            feed(stimulus.decide(ledger, how))
        found = steps_of(lambda: feed(scheduler.run(ledger, how, now())))
        assert len([*ledger.allocated_jobs()]) == 1
        return found

    few, many = work(20), work(200)
    assert many < few + few // 4
