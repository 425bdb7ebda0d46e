"""How the use of jobs went, in the journal: the last word counts, and only what is committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.core.usage import Curve, GpuTally
from drfd.journal import records
from drfd.journal.history import read_curves
from drfd.journal.journal import Journal

FIRST = Curve(1, 1000, (0, 2000), (0, 2000), (None, 500), (64, 128))
LAST = Curve(2, 9000, (0, 2000, 4000), (2000, 2000, 4000), (1000, 500, 250), (64, 128, 1))


def test_what_is_put_last_is_what_there_is(open_journal: Callable[..., Journal]) -> None:
    journal = open_journal()
    assert journal.curve(1) is None
    journal.put_curve(1, FIRST)
    journal.put_curve(1, LAST)
    journal.put_curve(2, FIRST)
    journal.commit()
    again = open_journal()
    assert (again.curve(1), again.curve(2), again.curve(3)) == (LAST, FIRST, None)
    assert read_curves(journal.path, [1, 3]) == {1: LAST}
    assert read_curves(journal.path, []) == {}


def test_a_turn_that_fails_leaves_the_one_before(open_journal: Callable[..., Journal]) -> None:
    journal = open_journal()
    journal.put_curve(1, FIRST)
    journal.commit()
    journal.put_curve(1, LAST)
    assert read_curves(journal.path, [1]) == {1: FIRST}, "others see what is committed"
    journal.rollback()
    assert journal.curve(1) == FIRST


def test_the_curve_of_a_day_is_short() -> None:
    """A journal of a million jobs has a million of them."""
    points = 32
    curve = Curve(
        1, 1_700_000_000_000, (2_700_000,) * points, (2_700_000,) * points, (15_999,) * points,
        (16_777_216,) * points, (0,) * points, (123,) * points,
    )  # fmt: skip
    assert len(records.encode(curve)) < 1400
    assert records.decode_curve(records.encode(curve)) == curve


def test_what_was_measured_of_gpus_is_read_again_and_nothing_takes_no_space() -> None:
    measured = Curve(1, 5, (0, 2000), (0, 2000), gpu_memory_kib=(7, 9), gpu_percent=(None, 150))
    assert records.decode_curve(records.encode(measured)) == measured
    assert b"gpu" not in records.encode(Curve(1, 5, (0, 2000), (0, 2000)))
    half = Curve(1, 5, (0, 2000), (0, 2000), gpu_memory_kib=(7, 9))
    assert records.decode_curve(records.encode(half)) == half
    running = replace(half, gpu_tally=GpuTally(9216, 7168, 150, 1))
    assert records.decode_curve(records.encode(running)) == running


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("not a journal at all")
    with pytest.raises(HostError, match="cannot read the journal"):
        read_curves(tmp_path / "odd", [1])
