"""Indices of arrays as ranges, and JSON written and read the short way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.common.indices import (
    MAX_TASKS,
    MOST_SPANS,
    Span,
    Spans,
    count_of,
    gaps,
    joined,
    merged,
    read_array,
    show_spans,
)
from drfd.common.quick_json import decode, encode
from seeds import examples

# -- indices -----------------------------------------------------------------------------------


STEADY = examples(100)


def singles(spans: Iterable[Span]) -> list[int]:
    return [at for first, last, step in spans for at in range(first, last + 1, step)]


@pytest.mark.parametrize(
    ("text", "spans", "at_once"),
    [
        ("0-999%50", ((0, 999, 1),), 50),
        ("7", ((7, 7, 1),), None),
        ("1,3,7-20:2", ((1, 1, 1), (3, 3, 1), (7, 19, 2)), None),
        (" 5 , 1-2 ", ((1, 2, 1), (5, 5, 1)), None),
        ("3-3:9", ((3, 3, 1),), None),
        ("0-5:2,1-5:2", ((0, 5, 1),), None),
        ("0-8:4,1-9:4%1", ((0, 1, 1), (4, 5, 1), (8, 9, 1)), 1),
        ("1000000000", ((10**9, 10**9, 1),), None),
        ("0-999999", ((0, MAX_TASKS - 1, 1),), None),
    ],
)
def test_indices_are_read_in_order(
    text: str, spans: tuple[tuple[int, int, int], ...], at_once: int | None
) -> None:
    assert read_array(text) == (spans, at_once)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, f"{part!r} is neither an index nor a range") for text, part in (
            ("", ""), ("x", "x"), ("1,,2", ""), ("-1", "-1"), ("1-2-3", "1-2-3"), ("٣", "٣"),
            ("0x10", "0x10"),
        )),
        ("5-1", "the range 5-1 ends before it begins"),
        ("1-5:0", "the step of 1-5:0 is 0"),
        ("1,1", "the index 1 stands there twice"),
        ("0-9:3,6", "the index 6 stands there twice"),
        ("1000000001", "1000000001 is above the highest index, 1000000000"),
        ("0-1000000", "1000001 tasks; 1000000 are the most"),
        ("0-9%0", "after % stands how many may run at once, not '0'"),
        ("0-9%", "after % stands how many may run at once, not ''"),
        (
            "0-999998:2,1-999999:2",
            "its ranges lie within each other and have 1000000 indices; 20000 are the most then",
        ),
        ("0-18000:4,1-18001:4", f"it comes to 4501 pieces; {MOST_SPANS} are the most"),
        ("0-9%5%5", "after % stands how many may run at once, not '5%5'"),
    ],
)  # fmt: skip
def test_bad_indices_are_refused_with_their_place_and_a_cure(text: str, why: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_array(text)
    assert refusal.value.text == f"array: {text!r} is wrong: {why}"
    assert refusal.value.hint == "write 0-99, 1,3,7-20:2 or 0-999%50"


def test_an_endless_text_is_refused_in_a_short_line() -> None:
    with pytest.raises(Refused) as refusal:
        read_array("x" * 4000)
    assert len(refusal.value.text) < 200


PIECES = some.lists(
    some.tuples(some.integers(0, 40), some.integers(0, 12), some.integers(1, 5)), min_size=1,
    max_size=5,
)  # fmt: skip


@STEADY
@given(PIECES)
def test_what_is_read_is_what_was_written(pieces: list[tuple[int, int, int]]) -> None:
    """Or it is refused, because an index stands there twice."""
    meant = singles((low, low + more, step) for low, more, step in pieces)
    text = ",".join(f"{low}-{low + more}:{step}" for low, more, step in pieces)
    if len(meant) != len(set(meant)):
        with pytest.raises(Refused, match="stands there twice"):
            read_array(text)
        return
    spans, _ = read_array(text)
    assert singles(spans) == sorted(meant)
    assert count_of(spans) == len(meant)
    assert singles(read_array(show_spans(spans))[0]) == sorted(meant)


@STEADY
@given(PIECES, some.integers(0, 60), some.integers(0, 60))
def test_a_part_of_spans_is_what_stands_there(
    pieces: list[tuple[int, int, int]], low: int, more: int
) -> None:
    """With pieces that do not lie within each other: each is put behind the one before."""
    start, found = 0, []
    for skipped, length, step in pieces:
        last = start + skipped + length - length % step
        found.append((start + skipped, last, step if length >= step else 1))
        start = last + 1
    spans = Spans(found)
    indices = singles(spans)
    assert spans.size == count_of(found) == len(indices)
    assert singles(spans.part(low, low + more)) == indices[low : low + more + 1]
    assert [spans.before(at) for at in range(len(found))] == [
        count_of(found[:at]) for at in range(len(found))
    ]


def test_a_list_of_very_many_pieces_is_cut() -> None:
    shown = show_spans([(at * at, at * at, 1) for at in range(10_000)])
    assert shown.startswith("0,1,4,9,")
    assert shown.endswith(f",{999 * 999},…")


def test_of_very_many_ranges_only_the_first_are_looked_at() -> None:
    """Evenly apart they are shown as one, so all were looked at, however many there were."""
    looked = 0

    def ranges() -> Iterator[Span]:
        nonlocal looked
        for looked in range(100_000):
            yield 2 * looked, 2 * looked, 1

    assert show_spans(ranges()) == "0-9998:2,…"
    assert looked == 5_000
    assert show_spans((2 * at, 2 * at, 1) for at in range(5_000)) == "0-9998:2"


@STEADY
@given(some.sets(some.integers(1, 30)))
def test_ranges_and_the_gaps_between_them_are_all_there_is(ids: set[int]) -> None:
    ranges, rest = joined(sorted(ids)), gaps(sorted(ids), 1, 30)
    assert {each for low, high in ranges for each in range(low, high + 1)} == ids
    assert {each for low, high in rest for each in range(low, high + 1)} == {*range(1, 31)} - ids
    assert merged([*ranges, *rest]) == [(1, 30)]


def test_single_indices_that_lie_evenly_apart_are_shown_as_a_range() -> None:
    apart = [3, *range(10, 21, 2), 30, 31, *range(50, 54)]
    assert show_spans((at, at, 1) for at in apart) == "3,10-20:2,30,31,50-53"
    assert show_spans([(1, 1, 1), (3, 3, 1), (5, 5, 1), (7, 20, 1)]) == "1,3,5,7-20"


@STEADY
@given(some.sets(some.integers(0, 40), min_size=1))
def test_what_is_shown_of_single_indices_reads_as_the_same(indices: set[int]) -> None:
    shown = show_spans((at, at, 1) for at in sorted(indices))
    assert set(singles(read_array(shown)[0])) == indices


# -- JSON --------------------------------------------------------------------------------------


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text() | some.floats(allow_nan=False),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


@examples(20)
@given(VALUES)
def test_it_writes_what_json_writes(value: object) -> None:
    assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@examples(20)
@given(VALUES)
def test_it_reads_what_json_reads(value: object) -> None:
    assert decode(json.dumps(value).encode() + b"\n") == value
    assert decode(f" {json.dumps(value, ensure_ascii=False, indent=1)}\r\n".encode()) == value


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{", b"{} {}", b"[1,]", b"nul", b'{"a" 1}', b"\xff", b'"\n"'], ids=repr
)
def test_what_json_refuses_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        json.loads(line)
    with pytest.raises(ValueError):
        decode(line)


@pytest.mark.parametrize("value", [b"x", {1}, {"a": [object()]}, {b"x": 1}], ids=repr)
def test_what_is_not_json_is_not_written(value: object) -> None:
    with pytest.raises(TypeError):
        json.dumps(value)
    with pytest.raises(TypeError):
        encode(value)


def test_a_tuple_is_a_list() -> None:
    assert encode({"a": (1, ("b",))}) == '{"a":[1,["b"]]}'
