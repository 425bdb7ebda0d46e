"""Records for a later audit: durable with a turn, none twice, none lost when the journal fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drfd import __version__
from drfd.core.amounts.resources import Node, Resources
from drfd.core.fairness.stored_rules import rules_text
from drfd.core.model import events as ev
from drfd.core.model.stimuli import Now
from drfd.daemon.engine.journal_upkeep import AuditRecords
from drfd.journal.journal import Journal
from fakes import demand, rules

CAPACITY = demand(10, 100)


class Bench:
    """Records of a journal of their own, and a clock that a test sets."""

    def __init__(self, path: Path) -> None:
        self.time_s = 100.0
        self.journal = Journal(path)
        self.records = AuditRecords(self.journal, lambda: Now(self.time_s, self.time_s))

    def written(self) -> list[ev.AuditEvent]:
        """Everything in the journal after what is pending has been written."""
        self.records.write()
        self.journal.commit()
        self.records.written()
        return [event for _, event in self.journal.audit.events()]

    def see(self, cores: float, at_s: float) -> bool:
        self.time_s = at_s
        kept = Resources(cores_milli=int(cores * 1000))
        return self.records.see_load(kept, CAPACITY)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "journal.sqlite")


def test_a_start_names_the_rules_in_force(bench: Bench) -> None:
    bench.records.started(rules(), seen_alive_s=50.0)
    (start,) = bench.written()
    assert isinstance(start, ev.DaemonStarted)
    assert (start.at_s, start.version, start.away_since_s) == (100.0, __version__, None)
    assert bench.journal.audit.rules(start.rules) == rules_text(rules())


def test_only_other_rules_are_news(bench: Bench) -> None:
    bench.records.started(rules(), seen_alive_s=0.0)
    bench.records.adopted(rules())
    assert len(bench.written()) == 1
    other = replace(rules(), policy="fifo")
    bench.records.adopted(other)
    bench.records.adopted(other)
    _, news = bench.written()
    assert isinstance(news, ev.Configured)
    assert bench.journal.audit.rules(news.rules) == rules_text(other)


@pytest.mark.parametrize(("seen_alive_s", "away_since_s"), [(90.0, 90.0), (10.0, 60.0)])
def test_the_time_without_a_daemon_begins_with_its_last_sign_of_life(
    bench: Bench, seen_alive_s: float, away_since_s: float
) -> None:
    """Its last event, or the mark that it leaves from time to time: whichever is later."""
    bench.time_s = 60.0
    bench.records.stopped()
    bench.written()
    bench.time_s = 100.0
    bench.records.started(rules(), seen_alive_s)
    start = bench.written()[-1]
    assert isinstance(start, ev.DaemonStarted)
    assert start.away_since_s == away_since_s


def test_a_load_is_recorded_when_it_begins_changes_notably_and_ends(bench: Bench) -> None:
    assert not bench.see(0, 0), "no load, as before"
    assert bench.see(1, 100)
    assert not bench.see(1.4, 200), "less than a twentieth of the capacity more"
    assert bench.see(1.6, 300)
    assert not bench.see(9, 310), "half a minute lies between two records"
    assert bench.see(9, 330), "and then what holds is recorded"
    assert bench.see(0, 400)
    loads = [event for event in bench.written() if isinstance(event, ev.ExternalLoadChanged)]
    assert [(event.at_s, event.kept.cores_milli) for event in loads] == [
        (100.0, 1000),
        (300.0, 1600),
        (330.0, 9000),
        (400.0, 0),
    ]


def others(**cores: float) -> list[tuple[str, Resources]]:
    """What others' jobs have on nodes."""
    return [(name, Resources(cores_milli=int(count * 1000))) for name, count in cores.items()]


def test_what_others_jobs_have_on_other_nodes_is_recorded_too(bench: Bench) -> None:
    nodes = [Node(name=name, capacity=demand(40, 100)) for name in ("n1", "n2")]

    def see(at_s: float, kept: float = 0, **cores: float) -> bool:
        bench.time_s = at_s
        own = Resources(cores_milli=int(kept * 1000))
        return bench.records.see_load(own, CAPACITY, others(**cores), nodes)

    assert not see(0, gone=3), "that node is not configured"
    assert see(100, n2=1)
    assert not see(200, n2=2), "less than a twentieth of the node more"
    assert see(300, n2=3)
    assert see(400, n2=3, n1=0.5), "it begins on another node"
    assert not see(410, kept=2, n1=0.5)
    assert see(440, kept=2, n1=0.5)
    assert see(500)
    loads = [event for event in bench.written() if isinstance(event, ev.ExternalLoadChanged)]
    assert [(each.at_s, each.kept.cores_milli, list(each.elsewhere)) for each in loads] == [
        (100.0, 0, others(n2=1)),
        (300.0, 0, others(n2=3)),
        (400.0, 0, others(n1=0.5, n2=3)),
        (440.0, 2000, others(n1=0.5)),
        (500.0, 0, []),
    ]
    # The next daemon goes on from there.
    bench.time_s = 600.0
    bench.records = AuditRecords(bench.journal, lambda: Now(bench.time_s, bench.time_s))
    bench.records.started(rules(), seen_alive_s=0.0)
    assert not see(700)
    assert see(700, n1=0.5)


def test_the_books_and_the_history_of_jobs_do_not_know_the_records(bench: Bench) -> None:
    bench.records.started(rules(), seen_alive_s=0.0)
    bench.records.stopped()
    assert len(bench.written()) == 2
    assert list(bench.journal.events()) == []
    assert bench.journal.load(rules().axes).next_id == 1
