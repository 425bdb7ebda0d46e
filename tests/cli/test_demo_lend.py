"""drf demo lend: what it makes of measurements, and where it can show nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from drfd.common.errors import Refused
from drfd_cli.demo import lending
from drfd_cli.demo.lending import Recording, Sample, theory


def recorded(mode: str, awake: dict[str, float], asleep: dict[str, float]) -> Recording:
    """Four turns of ten seconds, in which the pools use so many cores."""
    found, used = Recording(mode), dict.fromkeys("ABC", 0.0)
    for tenth in range(401):
        found.samples.append(Sample(tenth / 10, dict(used), 0.5 * tenth / 10))
        uses = asleep if tenth // 100 % 2 else awake
        used = {pool: amount + uses[pool] / 10 for pool, amount in used.items()}
    found.turns = [(10.0 * turn, 10.0 * turn + 10, turn % 2 == 1) for turn in range(4)]
    return found


def quotas() -> Recording:
    quarter = dict.fromkeys("ABC", 0.25)
    return recorded("quota", quarter, quarter | {"C": 0.0})


def test_the_theory_is_that_of_dominant_shares() -> None:
    assert theory(asleep=False) == pytest.approx({"A": 0.25, "B": 0.375, "C": 0.375})
    assert theory(asleep=True) == pytest.approx({"A": 0.4, "B": 0.6, "C": 0.0})


def test_uses_are_means_over_the_times_in_which_all_has_settled() -> None:
    found = recorded("share", theory(asleep=False), theory(asleep=True))
    for asleep in (False, True):
        means = {pool: found.mean(pool, asleep=asleep) for pool in "ABC"}
        assert means == pytest.approx(theory(asleep=asleep), abs=1e-6)
    assert found.after_waking() == pytest.approx(0.375)
    assert found.busiest() == pytest.approx(0.5)
    assert found.rates("C")[9:11] == [(9.5, pytest.approx(0.375)), (10.5, pytest.approx(0))]


def test_what_is_as_promised_is_said_beside_the_theory() -> None:
    share = recorded("share", theory(asleep=False), theory(asleep=True))
    figure, wrong = lending._figure([quotas(), share])
    assert wrong == []
    assert figure.tables[0].rows == [
        ["all are awake", "A", 0.25, 0.25, 0.25],
        ["all are awake", "B", 0.25, 0.375, 0.375],
        ["all are awake", "C", 0.25, 0.375, 0.375],
        ["all are awake", "together", 0.75, 1.0, 1.0],
        ["C is asleep", "A", 0.25, 0.4, 0.4],
        ["C is asleep", "B", 0.25, 0.6, 0.6],
        ["C is asleep", "C", 0.0, 0.0, 0.0],
        ["C is asleep", "together", 0.5, 1.0, 1.0],
        ["its first 0.5 s awake", "C", 0.25, 0.375, 0.25],
    ]
    assert figure.notes[0].endswith("so it is.") and len(figure.notes) == 2


def test_what_is_not_as_promised_is_named() -> None:
    _, wrong = lending._figure([quotas(), recorded("share", theory(asleep=False),
                                                   {"A": 0.5, "B": 0.5, "C": 0.0})])  # fmt: skip
    assert wrong == [
        "while C is asleep, A used 0.50, not 0.40", "while C is asleep, B used 0.50, not 0.60",
    ]  # fmt: skip
    late = theory(asleep=False) | {"C": 0.1}
    _, wrong = lending._figure([quotas(), recorded("share", late, theory(asleep=True))])
    assert wrong == [
        "while all are awake, C used 0.10, not 0.38", "C had 0.10 cores after it was woken up",
    ]  # fmt: skip


def test_other_programs_are_blamed_only_where_something_is_wrong() -> None:
    def notes(share: Recording) -> str:
        full = replace(
            share,
            samples=[
                replace(each, busy=each.at_s * (os.cpu_count() or 1)) for each in share.samples
            ],
        )
        return " ".join(lending._figure([quotas(), full])[0].notes)

    good = recorded("share", theory(asleep=False), theory(asleep=True))
    bad = recorded("share", theory(asleep=False), {"A": 0.1, "B": 0.1, "C": 0.0})
    assert "Other programs" not in notes(good)
    assert "Other programs were in the way: for a while" in notes(bad)


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("pinned: to as many CPUs as declared", "quota"),
        ("enforced: no more than declared", "share"),
    ],
)
def test_where_nothing_can_be_lent_that_is_said_with_a_way_out(said: str, mode: str) -> None:
    doctor: Any = {"controls": {"cores": said}}
    with pytest.raises(Refused, match="cores cannot be lent here") as refused:
        lending._check(doctor, mode)
    assert said in refused.value.text and "docs/enforcement.md" in (refused.value.hint or "")
