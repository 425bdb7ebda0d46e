"""Text and bars of exact width, with nothing in them that a terminal obeys."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from canned_snapshots import HOSTILE
from drfd_cli.top.paint import bar, fit, fit_right, marked_bar, spark, wrap

NONE = Style.null()
#: Releases of rich do not agree on how wide these are; whatever they say, it holds.
HINDI = "\u0939\u093f\u0928\u094d\u0926\u0940"
WORDS = st.text(max_size=60) | st.sampled_from([*HOSTILE, HINDI])


@given(WORDS, st.integers(0, 40))
def test_text_takes_exactly_its_columns_and_is_harmless(text: str, columns: int) -> None:
    for shown in (fit(text, columns), fit_right(text, columns)):
        assert sum(map(cell_len, shown)) == columns
        assert not {unicodedata.category(sign) for sign in shown} & {
            "Cc", "Cf", "Cs", "Co", "Zl", "Zp",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("train", 8, "train   "),
        ("resnet50", 8, "resnet50"),
        ("resnet50x", 8, "resnet5…"),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字漢", 8, "漢字漢… "),
        ("a漢字", 4, "a漢…"),
        ("x", 0, ""),
        ("é", 2, "é "),
        ("e\u0301\u0301\u0301\u0301", 2, "é\u0301\u0301 "),
        ("✈\ufe0f", 3, "✈  "),
        ("[red]", 6, "[red] "),
        ("a\tb\nc", 6, "a?b?c "),
    ],
)
def test_text_in_columns(text: str, columns: int, shown: str) -> None:
    assert fit(text, columns) == shown


def test_figures_stand_at_the_right() -> None:
    assert fit_right("12G", 5) == "  12G"
    assert fit_right("a long one", 5) == "a lo…"


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_is_as_long_as_asked_and_what_is_not_nothing_shows(part: float, columns: int) -> None:
    full, empty = bar(part, columns, NONE, NONE)
    assert len(full.text + empty.text) == columns
    assert bool(full.text) == (part > 0)
    eighths = sum("▏▎▍▌▋▊▉█".index(sign) + 1 for sign in full.text)
    assert abs(eighths - 8 * part * columns) <= 1


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 60))
def test_a_marked_bar_has_one_mark_at_its_place(part: float, mark: float, columns: int) -> None:
    signs = "".join(piece.text for piece in marked_bar(part, mark, columns, (NONE, NONE, NONE)))
    assert len(signs) == columns
    [at] = [at for at, sign in enumerate(signs) if sign in "┃│"]
    assert at == min(columns - 1, int(mark * columns))


@pytest.mark.parametrize(
    ("values", "top", "rows", "lines"),
    [
        ([0, 1, 4, 8], 8, 1, [" ▁▄█"]),
        ([0, 4, 8, 16], 16, 2, ["   █", " ▄██"]),
        ([None, 0.001, 9], 8, 1, [" ▁█"]),
        ([1, 2], 0, 1, ["▁▁"]),
    ],
)
def test_a_graph(values: list[float | None], top: float, rows: int, lines: list[str]) -> None:
    assert spark(values, top, rows) == lines


@given(WORDS, st.integers(4, 40), st.integers(1, 4))
def test_wrapped_text_stays_within_its_lines(text: str, columns: int, most: int) -> None:
    lines = wrap(text, columns, most)
    assert len(lines) <= most
    assert all(cell_len(line) <= columns for line in lines)


def test_text_is_wrapped_between_words() -> None:
    assert wrap("needs 8 cores, 3 free; job 40 holds 5", 15, 3) == [
        "needs 8 cores,", "3 free; job 40", "holds 5",
    ]  # fmt: skip
    assert wrap("needs 8 cores, 3 free; job 40 holds 5", 15, 2) == [
        "needs 8 cores,",
        "3 free; job 40…",
    ]
