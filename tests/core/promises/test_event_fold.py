"""The account of a journal's events: who waits and holds what is what the books say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.test_walks import STEPS, walked
from drfd.core.amounts.resources import Axes, Node, Resources
from drfd.core.fairness.rules import Rules
from drfd.core.model import events as ev
from drfd.core.promises.account import WHOLE, Account, Parts
from drfd.core.promises.event_fold import EventFold
from fakes import BOB, demand, happened, now, rules, spec
from seeds import runs

BEGIN_S = now().at_s
HOUR = 3_600_000
HALF = WHOLE // 2
ALICES, BOBS = "root.alice", "root.bob"
#: Nine cores, of which alice holds nine, and bob waits for one.
PLAIN = rules()
HOLDS = (
    happened(ev.Submitted, 1, spec=spec(asks=demand(9))),
    happened(ev.Admitted, 1),
    happened(ev.Submitted, 2, spec=spec(BOBS, actor=BOB)),
)
#: What the digests of rules stand for.
RULES: dict[str, Rules] = {
    "plain": PLAIN,
    "heavy": rules(weights={"alice": "3"}),
    "bigger": rules(18),
    "other axes": replace(PLAIN, axes=Axes(gres=("gpu",), disks=("a", "b"))),
    "gpu": replace(
        PLAIN,
        axes=Axes(gres=("gpu",), instances=(("gpu", ("0", "1")),)),
        capacity=replace(PLAIN.capacity, gres=(("gpu", 2),)),
    ),
    "nodes": replace(
        PLAIN,
        axes=Axes(nodes=(Node(name="n1", capacity=demand(3)), Node(name="n2", capacity=demand(6)))),
    ),
}


def at(hours: float) -> float:
    return BEGIN_S + 3600 * hours


def started(rules: str = "plain", hours: float = 0, away: float | None = None) -> ev.DaemonStarted:
    since_s = None if away is None else at(away)
    return ev.DaemonStarted(at_s=at(hours), version="1", rules=rules, away_since_s=since_s)


def folded(*events: ev.Event | ev.AuditEvent) -> Account:
    fold = EventFold(10**15, RULES.__getitem__)
    for event in events:
        fold.take(event)
    return fold.account


def sums(account: Account) -> dict[str, Parts]:
    """By leaf, in machine-billionths times hours."""
    found: dict[str, Parts] = {}
    for (_, leaf), parts in account.sums.items():
        assert not any(part % HOUR for part in parts)
        found[leaf] = Parts(*[part // HOUR for part in parts])
    return found


def end(hours: float) -> ev.IdsRaised | ev.Configured:
    """An event at this time that changes nothing."""
    return ev.Configured(at_s=at(hours), rules="plain")


def test_times_that_a_launcher_tells_later_are_no_clock_set_back() -> None:
    """A job has ended an hour before the daemon was back and took note of it."""
    events = (
        replace(happened(ev.Launched, 1), at_s=at(-0.1)),
        started(hours=3, away=1),
        replace(happened(ev.Exited, 1), at_s=at(2)),
        started(hours=3, away=2),
    )
    account = folded(started(), *HOLDS, *events, end(4))
    assert account.steps_back == 0
    parts = Parts(4, promised=4 * HALF, away=2 * HALF, others=2 * HALF)
    assert sums(account) == {BOBS: parts}


# -- causes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pause",
    [
        (ev.DaemonStopped(at_s=at(1)), started(hours=3, away=1)),
        # After a kill.
        (started(hours=3, away=1),),
        (
            ev.LaunchersAway(at_s=at(1), everywhere=True),
            ev.LaunchersAway(at_s=at(3), everywhere=False),
        ),
        # The launcher is back when the next daemon is.
        (ev.LaunchersAway(at_s=at(1), everywhere=True), started(hours=3, away=2)),
    ],
)
def test_without_a_daemon_or_a_launcher_nobody_is_to_blame(
    pause: tuple[ev.AuditEvent, ...],
) -> None:
    account = folded(started(), *HOLDS, *pause, end(4))
    parts = Parts(4, promised=4 * HALF, away=2 * HALF, others=2 * HALF)
    assert sums(account) == {BOBS: parts}


def test_nodes_that_are_closed_count_as_far_as_they_go() -> None:
    """A third of the cores are on the first node."""
    account = folded(
        started("nodes"),
        *HOLDS,
        ev.LaunchersAway(at_s=at(0), everywhere=False, nodes=("n1",)),
        ev.Drained(at_s=at(1), on=True, by="root", node="n1"),
        ev.LaunchersAway(at_s=at(2), everywhere=False),
        ev.Drained(at_s=at(3), on=False, by="root", node="n1"),
        ev.Configured(at_s=at(4), rules="nodes"),
    )
    third = WHOLE // 3
    assert sums(account) == {
        BOBS: Parts(
            4, promised=4 * HALF, away=2 * third, drained=third + HALF - third,
            others=3 * HALF - 2 * third,
        )
    }  # fmt: skip


def test_jobs_of_others_on_other_nodes_count_as_far_as_they_go() -> None:
    """A third of the cores are on the first node. Where that is closed, it counts as a whole."""
    few = (("n1", Resources(cores_milli=900)),)
    load = ev.ExternalLoadChanged(at_s=at(0), kept=Resources(), elsewhere=few)
    more = (*few, ("no such node", Resources(cores_milli=5000)))
    all_of_it = (("n1", Resources(cores_milli=99_000)),)
    account = folded(
        started("nodes"),
        *HOLDS,
        load,
        replace(load, at_s=at(1), elsewhere=more),
        replace(load, at_s=at(2), elsewhere=all_of_it),
        ev.Drained(at_s=at(3), on=True, by="root", node="n1"),
        ev.Drained(at_s=at(4), on=False, by="root", node="n1"),
        replace(load, at_s=at(4), elsewhere=()),
        end(5),
    )
    third = WHOLE // 3
    tenth = WHOLE // 10
    assert sums(account) == {
        BOBS: Parts(
            5, promised=5 * HALF, drained=third, outside=2 * tenth + third,
            others=5 * HALF - 2 * third - 2 * tenth,
        )
    }  # fmt: skip


# -- rules ---------------------------------------------------------------------------------------


def test_nothing_is_counted_before_there_is_a_record_of_the_rules() -> None:
    account = folded(*HOLDS, started(hours=5), end(6))
    assert sums(account) == {BOBS: Parts(1, promised=HALF, others=HALF)}
    assert account.starts == {}


def test_rules_that_are_not_known_are_an_error() -> None:
    with pytest.raises(KeyError):
        folded(started("others"))


# -- who waits -----------------------------------------------------------------------------------


# -- any history ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "steps"), runs(range(8), steps=STEPS, quick=50))
def test_what_stands_after_some_events_is_enough_for_those_that_follow(
    seed: int, steps: int
) -> None:
    bench = walked(seed, steps)
    events = [started("walk"), *bench.events]
    rules_of = {"walk": bench.rules}.__getitem__
    whole, parts = EventFold(1000, rules_of), EventFold(1000, rules_of)
    for at, event in enumerate(events):
        whole.take(event)
        parts.take(event)
        if at % 37 == 0:
            before, parts = parts, EventFold(1000, rules_of)
            parts.account.now_ms = before.account.now_ms
            parts.account.below_since = before.account.below_since
            parts.account.resume(before.account.counted)
            parts.stand(before.standing())
    assert parts.account.counted == whole.account.counted
    assert parts.standing() == whole.standing()
