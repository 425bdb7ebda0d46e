"""What `drf set` makes of rates, on machines with one disk and with several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.decide import decide
from drfd.core.job import Dependency, Outcome, Want
from drfd.core.resources import Axes, Resources
from drfd.core.rules import Rules
from drfd.errors import Refused
from fakes import ALICE, Bench, now, rules, spec

TWO = Resources(cores_milli=1000, disks=(("data", 10, 20), ("scratch", 0, 0)))


def two_disks() -> Rules:
    few = rules()
    capacity = replace(
        few.capacity, read_bps=0, write_bps=0, disks=(("data", 100, 100), ("scratch", 50, 50))
    )
    return replace(few, capacity=capacity, axes=Axes(disks=("data", "scratch")))


def changed(bench: Bench, job_id: int, **wish: object) -> Resources:
    bench.feed(st.ChangeAsked(now(), job_id, ALICE, st.Change(**wish)))  # type: ignore[arg-type]
    bench.ledger.check()
    return bench.job(job_id).spec.demand


def test_the_rates_of_the_only_disk_change_with_and_without_its_name() -> None:
    bench = Bench(replace(rules(), axes=Axes(disks=("data",))))
    job_id = bench.submit(spec(asks=Resources(cores_milli=1000, read_bps=1, write_bps=2)))
    asks = changed(bench, job_id, read_bps=3)
    assert (asks.read_bps, asks.write_bps, asks.disks) == (3, 2, ())
    asks = changed(bench, job_id, disks=(("data", 5, 6),))
    assert (asks.read_bps, asks.write_bps, asks.disks) == (5, 6, ())


def test_the_rates_of_a_named_disk_change_and_the_others_stay() -> None:
    bench = Bench(two_disks())
    job_id = bench.submit(spec(asks=TWO))
    asks = changed(bench, job_id, disks=(("scratch", 5, 6),))
    assert asks.disks == (("data", 10, 20), ("scratch", 5, 6))
    assert bench.rules.axes.vector(asks)[2:] == (10, 20, 5, 6)
    assert changed(bench, job_id, priority=3) == asks


def test_of_several_disks_one_must_be_named_and_must_be_there() -> None:
    bench = Bench(two_disks())
    job_id = bench.submit(spec(asks=TWO))
    for wish, complaint in (
        ({"read_bps": 1}, "say which one"),
        ({"disks": (("tape", 1, 1),)}, "no disk 'tape'"),
        ({"disks": (("data", 101, 1),)}, "could never start"),
    ):
        with pytest.raises(Refused, match=complaint):
            changed(bench, job_id, **wish)
    assert bench.job(job_id).spec.demand == TWO


def test_an_only_disk_that_has_another_name_is_refused() -> None:
    for axes in (Axes(), Axes(disks=("data",))):
        bench = Bench(replace(rules(), axes=axes))
        job_id = bench.submit(spec())
        with pytest.raises(Refused, match="no disk 'tape'"):
            changed(bench, job_id, disks=(("tape", 1, 1),))


def test_what_fits_no_more_may_still_be_renamed() -> None:
    bench = Bench(rules())
    job_id = bench.submit(spec(), held=True)
    bench.rules = replace(bench.rules, capacity=Resources(cores_milli=500))
    changed(bench, job_id, name="later")
    assert bench.job(job_id).spec.name == "later"
    with pytest.raises(Refused, match="could never start"):
        changed(bench, job_id, memory_bytes=1)


def test_a_task_that_is_over_is_told_as_people_call_it() -> None:
    bench = Bench(rules())
    job_id = bench.submit(spec(), held=True)
    wish = st.Change(after=(Dependency(7, Want.ANY),))
    ended = {7: Outcome.COMPLETED}
    for names, told in (({7: "4_3"}, "4_3"), ({}, "7")):
        (event, *_) = decide(
            bench.ledger,
            st.ChangeAsked(now(), job_id, ALICE, wish, ended=ended, names=names),
            bench.rules,
        )
        assert isinstance(event, ev.Changed)
        assert event.text == f"after nothing → {told}:any"
