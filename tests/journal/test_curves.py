"""How the use of jobs went, in the journal: the last word counts, and only what is committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.core.usage import Curve
from drfd.journal.history import read_curves
from drfd.journal.journal import Journal

FIRST = Curve(1, 1000, (0, 2000), (0, 2000), (None, 500), (64, 128))
LAST = Curve(2, 9000, (0, 2000, 4000), (2000, 2000, 4000), (1000, 500, 250), (64, 128, 1))


def test_a_turn_that_fails_leaves_the_one_before(open_journal: Callable[..., Journal]) -> None:
    journal = open_journal()
    journal.put_curve(1, FIRST)
    journal.commit()
    journal.put_curve(1, LAST)
    assert read_curves(journal.path, [1]) == {1: FIRST}, "others see what is committed"
    journal.rollback()
    assert journal.curve(1) == FIRST


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("not a journal at all")
    with pytest.raises(HostError, match="cannot read the journal"):
        read_curves(tmp_path / "odd", [1])
