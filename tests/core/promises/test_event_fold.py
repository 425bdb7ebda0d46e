"""The account of a journal's events: who waits and holds what is what the books say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import floor

import pytest

from core.test_walks import walked
from drfd.core.amounts.resources import Axes, Node, Resources
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import UserGroup
from drfd.core.promises.account import WHOLE, Account, Parts, Starts, Stretch
from drfd.core.promises.event_fold import EventFold
from fakes import BOB, demand, happened, now, rules, spec
from seeds import seeds

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


def test_who_waits_is_short_of_what_another_holds() -> None:
    account = folded(started(), *HOLDS, end(2))
    assert sums(account) == {BOBS: Parts(2, promised=2 * HALF, others=2 * HALF)}
    assert {pair[1:]: amount for pair, amount in account.pairs.items()} == {
        (BOBS, ALICES): 2 * HALF * HOUR
    }
    assert [*account.starts.values()] == [Starts(1)]
    begin_ms = round(BEGIN_S * 1000)
    assert account.longest == {BOBS: Stretch(begin_ms, begin_ms + 2 * HOUR)}


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


def test_while_starts_are_stopped_nobody_is_to_blame() -> None:
    stop = ev.Drained(at_s=at(1), on=True, by="root")
    account = folded(started(), *HOLDS, stop, replace(stop, at_s=at(2), on=False), end(4))
    parts = Parts(4, promised=4 * HALF, drained=HALF, others=3 * HALF)
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


def test_an_external_load_counts_as_far_as_it_goes() -> None:
    load = ev.ExternalLoadChanged(at_s=at(1), kept=Resources(cores_milli=900))
    account = folded(started(), *HOLDS, load, replace(load, at_s=at(3), kept=Resources()), end(4))
    tenth = WHOLE // 10
    parts = Parts(4, promised=4 * HALF, outside=2 * tenth, others=4 * HALF - 2 * tenth)
    assert sums(account) == {BOBS: parts}


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


def test_each_time_is_judged_by_its_rules() -> None:
    account = folded(
        started(),
        *HOLDS,
        ev.Configured(at_s=at(1), rules="heavy"),
        ev.Configured(at_s=at(2), rules="other axes"),
        ev.Configured(at_s=at(3), rules="bigger"),
        end(4),
    )
    # Of the bigger machine alice holds only her promise: bob could start, and has not.
    quarter = WHOLE // 4
    assert sums(account) == {
        BOBS: Parts(4, promised=3 * HALF + quarter, others=2 * HALF + quarter, size=HALF)
    }


def test_nothing_is_counted_before_there_is_a_record_of_the_rules() -> None:
    account = folded(*HOLDS, started(hours=5), end(6))
    assert sums(account) == {BOBS: Parts(1, promised=HALF, others=HALF)}
    assert account.starts == {}


def test_rules_that_are_not_known_are_an_error() -> None:
    with pytest.raises(KeyError):
        folded(started("others"))


# -- who waits -----------------------------------------------------------------------------------


def test_a_job_beyond_the_limit_of_its_group_begins_to_wait_when_another_ends() -> None:
    """Be they of different pools."""
    group = UserGroup("sweep", 1)
    account = folded(
        started(),
        happened(ev.Submitted, 1, spec=spec(group=group)),
        happened(ev.Admitted, 1),
        happened(ev.Submitted, 2, spec=spec("root.lab", group=group)),
        happened(ev.Exited, 1, at_s=3600),
        happened(ev.Cleaned, 1, at_s=3600),
        end(3),
    )
    assert sums(account) == {"root.lab.alice": Parts(2, promised=2 * WHOLE, size=2 * WHOLE)}


@pytest.mark.parametrize(("priority", "past_fitting"), [(1, 1), (0, 0)])
def test_the_first_job_is_the_first_of_the_queue(priority: int, past_fitting: int) -> None:
    """Five cores are more than bob's half, and one is not."""
    account = folded(
        started(),
        happened(ev.Submitted, 1, spec=spec(asks=demand(6))),
        happened(ev.Submitted, 2, spec=spec(BOBS, actor=BOB, asks=demand(5))),
        happened(ev.Submitted, 3, spec=spec(BOBS, actor=BOB, priority=priority)),
        happened(ev.Admitted, 1, why=ev.StartReason.BACKFILL),
    )
    window = round(BEGIN_S * 1000) // 10**15
    counts = Starts(1, beyond=1, past=1, past_fitting=past_fitting)
    assert account.starts == {(window, ev.StartReason.BACKFILL): counts}


@pytest.mark.parametrize(("after", "past_fitting"), [("gpu", 1), ("plain", 0)])
def test_a_job_that_needs_what_the_machine_no_longer_has_does_not_fit(
    after: str, past_fitting: int
) -> None:
    asks = replace(demand(1), gres=(("gpu", 1),))
    account = folded(
        started("gpu"),
        happened(ev.Submitted, 1, spec=spec(asks=demand(6))),
        happened(ev.Submitted, 2, spec=spec(BOBS, actor=BOB, asks=asks)),
        ev.Configured(at_s=at(0), rules=after),
        happened(ev.Admitted, 1),
    )
    assert [*account.starts.values()] == [Starts(1, beyond=1, past=1, past_fitting=past_fitting)]


# -- any history ---------------------------------------------------------------------------------


def looked_at(rules: Rules, events: Iterable[ev.Event]) -> Counter[tuple[str, str]]:
    """Sums over the whole history, from the books at each moment."""
    ledger, now_ms = Ledger(rules.axes), None
    found: Counter[tuple[str, str]] = Counter()
    for event in events:
        at_ms = round(event.at_s * 1000)
        length_ms = 0 if now_ms is None else max(0, at_ms - now_ms)
        now_ms = at_ms
        tree = rules.shares.share_tree(ledger.used, ledger.queues)
        for leaf in ledger.queues if length_ms else ():
            promised = tree.entitlement(leaf)
            found[leaf, "waited"] += length_ms
            found[leaf, "promised"] += floor(promised * WHOLE) * length_ms
            kept = floor(min(1, tree.satisfaction(leaf)) * promised * WHOLE)
            found[leaf, "kept"] += kept * length_ms
        ledger.apply(event)
    return found


@pytest.mark.parametrize("seed", seeds(range(16)))
def test_the_account_of_a_random_history_is_what_its_books_say_at_each_moment(seed: int) -> None:
    bench = walked(seed)
    fold = EventFold(1000, {"walk": bench.rules}.__getitem__)
    fold.take(started("walk"))
    for event in bench.events:
        fold.take(event)
    found: Counter[tuple[str, str]] = Counter()
    for (_, leaf), parts in fold.account.sums.items():
        assert parts.promised == parts.kept + sum(parts[4:])
        for name in ("waited", "promised", "kept"):
            found[leaf, name] += getattr(parts, name)
    assert found == looked_at(bench.rules, bench.events)
    assert found[ALICES, "waited"] > 0
    admitted = [event for event in bench.events if isinstance(event, ev.Admitted)]
    assert sum(starts.all for starts in fold.account.starts.values()) == len(admitted)


@pytest.mark.parametrize("seed", seeds(range(8)))
def test_what_stands_after_some_events_is_enough_for_those_that_follow(seed: int) -> None:
    bench = walked(seed)
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
