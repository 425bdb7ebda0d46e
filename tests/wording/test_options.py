"""Advised and changed demands, as words of a command line that can be typed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from drfd.client.words import Gres, parse_gres
from drfd.common.units import (
    Range,
    parse_cores_range,
    parse_disk_rates,
    parse_duration,
    parse_memory,
)
from drfd.core.amounts.resources import Resources
from drfd.core.explain.ended_jobs import Advice, CoresReason
from drfd.wording.options import advice_options, changed_options, cores_note
from fakes import demand, spec

MIB, GIB = 1 << 20, 1 << 30
#: Advice is in whole mebibytes, but for a rate that was declared.
RATES = some.just(0) | some.integers(4096, 1 << 40)

ADVICE = some.builds(
    Advice,
    cores_milli=some.integers(1, 2000).map(lambda halves: 500 * halves),
    memory_bytes=some.integers(MIB, 1 << 50),
    time_limit_s=some.integers(1, 1 << 30),
    read_bps=RATES,
    write_bps=RATES,
    most_cores_milli=some.just(0) | some.integers(2001, 9000).map(lambda halves: 500 * halves),
    most_read_bps=some.just(0) | some.just(1 << 41),
    most_write_bps=some.just(0) | some.just(1 << 41),
    disk=some.sampled_from(["", "data"]),
    gres=some.sampled_from([(), (("gpu", 2),)]),
    gres_memory=some.sampled_from([(), (("gpu", 20 * GIB),)]),
    jobs=some.just(3),
    short_jobs=some.just(0),
).map(
    # What is not declared has no range.
    lambda advice: replace(
        advice,
        most_read_bps=advice.most_read_bps if advice.read_bps else 0,
        most_write_bps=advice.most_write_bps if advice.write_bps else 0,
    )
)


def asked(least: int, most: int) -> int | Range:
    return Range(least, most) if most else least


@given(ADVICE)
def test_advice_can_be_typed(advice: Advice) -> None:
    words = advice_options(advice)
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert parse_cores_range(given["-c"]) == asked(advice.cores_milli, advice.most_cores_milli)
    assert parse_memory(given["-m"]) == advice.memory_bytes
    assert parse_duration(given["-t"]) == advice.time_limit_s
    rates = (advice.read_bps, advice.write_bps)
    assert ("--io" in given) is any(rates)
    if "--io" in given:
        read = asked(advice.read_bps, advice.most_read_bps)
        write = asked(advice.write_bps, advice.most_write_bps)
        assert parse_disk_rates(given["--io"]) == (advice.disk or None, read, write)
    memory = dict(advice.gres_memory).get("gpu")
    gres = parse_gres(given["--gres"]) if "--gres" in given else ()
    assert gres == ((Gres("gpu", 2, memory),) if advice.gres else ())


def test_amounts_are_in_the_largest_unit_that_is_exact() -> None:
    advice = Advice(
        cores_milli=3500,
        memory_bytes=1280 * MIB,
        time_limit_s=1500,
        read_bps=6 * MIB,
        write_bps=0,
        disk="data",
        gres=(("gpu", 1),),
        jobs=3,
        short_jobs=0,
    )
    asked = ["-c", "3.5", "-m", "1280M", "-t", "25m"]
    assert advice_options(advice) == [*asked, "--io", "data=6M/0", "--gres", "gpu=1"]


# -- changes ----------------------------------------------------------------------------------


def test_why_a_range_is_advised_is_told_with_its_figures() -> None:
    def note(most_milli: int, **reason: Any) -> str | None:
        return cores_note(
            Advice(
                cores_milli=2000, memory_bytes=GIB, time_limit_s=60, read_bps=0, write_bps=0,
                most_cores_milli=most_milli, cores_reason=CoresReason(**reason), jobs=3,
                short_jobs=0,
            )
        )  # fmt: skip

    bursts = {"is_above_floor": False, "mean_milli": 1604, "declared_milli": 8000}
    assert note(8000, **bursts) == (
        "used 1.6 of 8 cores on average, at times all of them: a range books 2 and is lent up to 8"
    )
    # Too few jobs to lower the figure.
    assert note(0, **bursts) is None
    above = {"is_above_floor": True, "mean_milli": 1604, "declared_milli": 500}
    assert note(0, **above) == "used 1.6 of 0.5 declared on average: asking for 2 guarantees it"


def test_what_stays_as_it_was_is_not_said_again() -> None:
    asked = spec(asks=demand(8, 16), time_limit_s=7200)
    assert changed_options(asked, asked) == []
    fewer_cores = replace(asked, demand=replace(asked.demand, cores_milli=5000))
    assert changed_options(asked, fewer_cores) == ["-c", "5"]
    less = replace(asked, demand=replace(asked.demand, cores_milli=500, memory_bytes=7680 * MIB))
    assert changed_options(asked, less) == ["-c", "0.5", "-m", "7680M"]
    assert changed_options(asked, replace(less, time_limit_s=29 * 60)) == [
        *("-c", "0.5", "-m", "7680M", "-t", "29m"),
    ]


def test_a_changed_rate_is_said_with_the_other_one_and_with_the_disk_of_several() -> None:
    asked = spec(asks=demand(1, 1, read=80 * MIB, write=10 * MIB))
    slower = replace(asked, demand=replace(asked.demand, read_bps=60 * MIB))
    assert changed_options(asked, slower) == ["--io", "60M/10M"]

    def on(read_bps: int) -> tuple[tuple[str, int, int], ...]:
        return ("data", read_bps, 0), ("scratch", 0, 0)

    asked, slower = (spec(asks=replace(demand(1), disks=on(rate))) for rate in (60 * MIB, 40 * MIB))
    assert changed_options(asked, slower) == ["--io", "data=40M/0"]


def test_a_smaller_range_keeps_its_upper_end() -> None:
    most = Resources(cores_milli=16_000, read_bps=90 * MIB)
    asked = spec(asks=demand(8, read=80 * MIB, write=10 * MIB), most=most)
    less = replace(asked, demand=demand(2, read=40 * MIB, write=10 * MIB))
    assert changed_options(asked, less) == ["-c", "2..16", "--io", "40M..90M/10M"]
    disks = replace(demand(1), disks=(("data", 60 * MIB, 0),))
    asked = spec(asks=disks, most=Resources(disks=(("data", 1 << 30, 0),)))
    less = replace(asked, demand=replace(disks, disks=(("data", 40 * MIB, 0),)))
    assert changed_options(asked, less) == ["--io", "data=40M..1G/0"]
