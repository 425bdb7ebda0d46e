"""Which attempts were ended because all jobs were."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfd.launcher.attempts import Attempt
from drfd.launcher.cut import FILE_NAME, Cut, read_cut

CUT = Cut("this boot", 50.0)


def attempt(*, boot_id: str = "this boot", at_s: float = 40.0, end_s: float | None) -> Attempt:
    ended = None if end_s is None else {"at_s": end_s}
    return Attempt(created={"boot_id": boot_id, "at_s": at_s}, ended=ended)


@pytest.mark.parametrize(
    ("lived", "was_cut"),
    [
        (attempt(end_s=50.0), True),
        (attempt(end_s=57.5), True),
        (attempt(end_s=None), True),
        (attempt(end_s=49.9), False),
        (attempt(at_s=50.1, end_s=60.0), False),
        (attempt(boot_id="another", end_s=55.0), False),
    ],
    ids=["at once", "after a while", "not yet", "before", "born later", "another boot"],
)
def test_it_fell_on_what_lived_then(lived: Attempt, was_cut: bool) -> None:
    assert CUT.fell_on(lived) is was_cut


def test_it_is_read_as_the_unit_writes_it(tmp_path: Path) -> None:
    """`echo BOOT_ID $(date +%s.%N)`."""
    (tmp_path / FILE_NAME).write_text("0b5b-11 1700000000.123456789\n")
    assert read_cut(tmp_path) == Cut("0b5b-11", 1700000000.123456789)


@pytest.mark.parametrize("text", [None, "", "0b5b-11\n", "0b5b-11 soon\n", "a b c\n"])
def test_without_a_whole_one_there_was_none(tmp_path: Path, text: str | None) -> None:
    """The machine may go down while it is written."""
    if text is not None:
        (tmp_path / FILE_NAME).write_text(text)
    assert read_cut(tmp_path) is None
