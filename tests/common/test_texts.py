"""Texts with units, times of the week, indices and JSON, in and out; a mistake is one line."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
    read_array,
    show_spans,
)
from drfd.common.quick_json import decode, encode
from drfd.common.units import (
    ALL,
    Range,
    doubt,
    exact_size,
    is_endless,
    parse_cores,
    parse_cores_range,
    parse_disk_rates,
    parse_duration,
    parse_memory,
    parse_rates,
    parse_size,
    show_amount,
    show_cores,
    show_duration,
    show_range,
    show_size,
)
from drfd.common.week import parse_week_hours
from fakes import at
from seeds import examples

STEADY = examples(100)
KIB, MIB, GIB, TIB, PIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40, 1 << 50
Parse = Callable[..., object]


def refusal(parse: Parse, text: object, **more: str) -> Refused:
    """The refusal of bad text: one line, with a hint and the code that scripts know."""
    with pytest.raises(Refused) as caught:
        parse(text, **more)
    error = caught.value
    assert type(error) is Refused
    assert error.code == "bad-value"
    assert error.hint.startswith("write ")
    assert "\n" not in str(error)
    return error


def table(*rows: tuple[Parse, dict[Any, Any]]) -> list[Any]:
    """Each function with each of its arguments, and the result."""
    return [
        pytest.param(each, given, result, id=f"{each.__name__}-{given!r:.20}")
        for each, results in rows
        for given, result in results.items()
    ]


M10, M20, M50, M200 = (number * MIB for number in (10, 20, 50, 200))
READ = table(
    (parse_size, {
        "1": 1, 1: 1, 1536: 1536, "512": 512, "1B": 1, "1K": KIB, "1k": KIB, "1KB": KIB,
        "1KiB": KIB, "640kib": 640 * KIB, "512M": 512 * MIB, "16G": 16 * GIB, "16 G": 16 * GIB,
        " 16G ": 16 * GIB, "1.5G": 1536 * MIB, "1.5 GiB": 1536 * MIB, "0.5K": 512, "1.5": 1,
        "2T": 2 * TIB, "1P": PIB, "007M": 7 * MIB, "4Gi": 4 * GIB, "4gi": 4 * GIB,
    }),
    (parse_memory, {"1M": MIB, MIB: MIB}),
    (parse_rates, {
        "10M": (M10, M10), "10M/s": (M10, M10), "200M/50M": (M200, M50), "200M/50M/s": (M200, M50),
        "200M / 50M": (M200, M50), "0": (0, 0), "0/50M": (0, M50), "50M/0": (M50, 0),
        "4.5K/4096": (4608, 4096),
    }),
    (parse_disk_rates, {
        "10M": (None, M10, M10), "data=200M/50M": ("data", M200, M50), "a=b=1M": ("a=b", MIB, MIB),
    }),
    (parse_duration, {
        "90": 90, 90: 90, "90s": 90, "30m": 1800, "1h30m": 5400, "1h30m5s": 5405, "30m1h": 5400,
        "1.5h": 5400, "2d": 172800, "2D12H": 216000, " 2d ": 172800, "1:30:00": 5400,
        "0:00:01": 1, "1-12:00": 129600, "1-12:00:01": 129601, "1.5s": 1, "5min": 300,
        "5 minutes": 300, "1h 30m": 5400, "2hrs": 7200, "1hour30mins10sec": 5410, "3days": 259200,
        "1w": 604800, "2 Weeks": 1209600, "30:00": 1800, "1:30": 90, "100:00": 6000,
        "1:30:0": 5400, "1-5": 104400, "1-0:0:0": 86400,
    }),
    (is_endless, {
        "unlimited": True, " UNLIMITED ": True, "infinite": True, "Infinite": True, "1d": False,
        "": False, None: False, 0: False,
    }),
    (parse_cores, {
        "4": 4000, 4: 4000, "0.5": 500, 0.5: 500, "0.01": 10, "1.125": 1125, " 2 ": 2000, 0.1: 100,
    }),
    (parse_cores_range, {
        "2..8": Range(2000, 8000), "0.5..1.5": Range(500, 1500), " 2 .. 8 ": Range(2000, 8000),
        "4..": Range(4000, ALL), "4..4": 4000, "4": 4000, 4: 4000,
    }),
)  # fmt: skip


@pytest.mark.parametrize(("parse", "text", "value"), READ)
def test_a_text_is_read(parse, text, value):
    """Sizes have binary units, cores are thousandths, a time is seconds or spans or a clock."""
    assert parse(text) == value


SHOWN = table(
    # The largest unit that divides it.
    (exact_size, {
        0: "0", 1: "1", 1023: "1023", 1024: "1K", 1025: "1025", 16 * GIB: "16G",
        1536 * MIB: "1536M", 2048 * TIB: "2P", PIB + 1: str(PIB + 1),
    }),
    # One decimal at most.
    (show_size, {
        0: "0", 1: "1", 1023: "1023", 1024: "1K", 1536: "1.5K", 1075: "1K", 640 * KIB: "640K",
        100 * MIB - 1: "100M", 16 * GIB: "16G", 1.5 * GIB: "1.5G", 100.5 * KIB: "100K",
        99.9 * GIB: "99.9G", 2 * TIB: "2T", 5000 * TIB: "5000T", 12.34: "12.3", -1536: "-1.5K",
    }),
    # Two units.
    (show_duration, {
        -5: "0s", 0: "0s", 0.9: "0s", 45: "45s", 59.99: "59s", 60: "1m00s", 750: "12m30s",
        3599: "59m59s", 3600: "1h00m", 11100: "3h05m", 86399: "23h59m", 86400: "1d00h",
        187200: "2d04h", 400 * 86400: "400d00h",
    }),
    (show_cores, {0: "0", 10: "0.01", 500: "0.5", 10_000: "10", 1125: "1.125"}),
    # A time that could mean something else is told.
    (doubt, {
        "90": "90 is 90 seconds (90m: minutes)", " 090 ": "090 is 90 seconds (090m: minutes)",
        "30:00": "30:00 is 30m00s (30h00m: hours)", "1:30": "1:30 is 1m30s (1h30m: hours)",
        "90s": None, "1:30:00": None, "1-12": None, "unlimited": None, "nonsense": None,
    }),
)  # fmt: skip


@pytest.mark.parametrize(("show", "value", "text"), SHOWN)
def test_a_value_is_shown(show, value, text):
    assert show(value) == text


def test_an_amount_is_shown_in_its_resources_own_unit_and_a_range_as_it_is_written():
    amounts = {"cores": 1500, "memory": GIB, "read": 2 * MIB, "write": 512, "gpu": 3}
    assert [show_amount(*each) for each in amounts.items()] == ["1.5", "1G", "2M/s", "512/s", "3"]
    assert (show_range("2", "8"), show_range("2", None)) == ("2..8", "2")


REFUSED: list[tuple[Parse, str, list[object]]] = [
    (parse_size, "is not a size", [
        "", " ", "G", "16X", "16GG", "16G 5M", "-1G", "+1G", "1e9", ".5G", "1.G", "1,5G", "1_000",
        "0x10", "16 Gi B", "G16", "NaN", "inf", "sixteen", "16G\n16G", "\0", "1" * 500 + "x", None,
        True, 1.5e300, -5,
    ]),
    (parse_size, "WHAT must be more than zero", ["0", 0, "0G", "0.0", "0.5", "0.0001K"]),
    (parse_rates, "WHAT", [
        "", "/", "10M/", "/10M", "1M/2M/3M", "fast", "10M/h", "-1M", "0K",
        "0..50M", "..50M", "50M..20M", "50M..0", "1M..2M..3M", "1..2", "50M../1M",
    ]),
    (parse_disk_rates, "WHAT", ["=10M", "data=", "data=fast", "data=1/2/3"]),
    (parse_duration, "is not a time", [
        "", " ", "h", "1x", "1h30", "-5", "+5", "1e3", "1.5", ".5h", "1:3", "1month", "5minx",
        "1:300", "1:30:000", "1:30:00:00", "1-", ":30", "1:30m", "forever", "unlimited", "NaN",
        None, True, 1.5, "²", "1\n2",
    ]),
    (parse_duration, "WHAT must be at least one second",
     ["0", 0, "0s", "0.9s", "0:00:00", "0-00:00:00", "0h0m"]),
    (parse_cores, "is not a number", [
        "", "many", "1/2", "4c", "0,5", "nan", "sNaN", "inf", "-inf", None, True, float("nan"),
    ]),
    (parse_cores, "from 0.01 up, in steps of 0.001",
     ["0", 0, "0.009", "0.0105", "-1", -1, 0.1 + 0.2]),
]  # fmt: skip


@pytest.mark.parametrize(("parse", "said", "texts"), REFUSED, ids=lambda value: str(value)[:20])
def test_a_text_not_to_be_meant_is_refused(parse, said, texts):
    for text in texts:
        assert said in refusal(parse, text, what="WHAT").text, repr(text)


@pytest.mark.parametrize(
    ("parse", "text", "error"),
    [
        (parse_memory, MIB - 1, f"memory must be at least 1M (write {MIB - 1}M for mebibytes)"),
        (parse_memory, "512K", "memory must be at least 1M (write 512M or 16G)"),
        (parse_disk_rates, "100", "io: '100' is less than 4K a second (write 100M for mebibytes)"),
        (parse_disk_rates, "1K", "io: '1K' is less than 4K a second (write 200M/50M)"),
        (parse_disk_rates, "data=200M/50",
         "io: '50' is less than 4K a second (write 50M for mebibytes)"),
        (parse_rates, "50M..200M/20M",
         "io: '50M..200M' is a range, and only cores have ranges (write 50M)"),
        (parse_cores_range, "..8",
         "cores: '..8' has no lower end, which is what the job holds (write 2..8, "),
        (parse_cores_range, "..", "cores: '..' has no lower end"),
        (parse_cores_range, "0..8",
         "cores: '0..8' begins with zero, and a job holds some (write 2..8"),
        (parse_cores_range, "8..2", "cores: '8..2' ends below its beginning (write 2..8)"),
        (parse_cores_range, "2...4",
         "cores: '2...4' has more than two dots (write 2..8, or 8 for no less)"),
        (parse_cores_range, "2..x", "cores: 'x' is not a number (write 4 or 0.5)"),
        (parse_cores_range, "2..4..8", "cores: '4..8' is not a number (write 4 or 0.5)"),
        (parse_cores_range, "2..-8", "cores: '-8' is not a number of cores"),
        (parse_cores_range, "-2..8", "cores: '-2' is not a number of cores"),
    ],
)  # fmt: skip
def test_a_refusal_tells_the_cure(parse, text, error):
    assert str(refusal(parse, text)).startswith(error)


@pytest.mark.parametrize("parse", [parse_size, parse_memory, parse_duration, parse_cores])
def test_a_refusal_names_what_was_meant_and_quotes_no_more_than_fits_a_line(parse):
    assert refusal(parse, "much", what="defaults.x").text.startswith("defaults.x: 'much' is not a ")
    assert refusal(parse, "x" * 5000).text.count("x") == 37
    assert "..." in refusal(parse, "x" * 41).text
    assert "..." not in refusal(parse, "x" * 40).text


@STEADY
@given(some.integers(10, 1 << 60), some.integers(4 * KIB, PIB), some.integers(4 * KIB, PIB))
def test_what_is_shown_exactly_is_read_back_as_the_same(size, read, write):
    assert parse_size(exact_size(size)) == size
    assert parse_rates(f"{exact_size(read)}/{exact_size(write)}") == (read, write)
    assert parse_cores(show_cores(size % 10**9 + 10)) == size % 10**9 + 10


@STEADY
@given(some.integers(1, 9999 * TIB), some.integers(1, 10**9))
def test_what_is_shown_can_be_typed_again_and_is_nearly_right(size, seconds):
    text = show_size(size)
    assert len(text.rstrip("KMGT")) <= 4
    assert abs(parse_size(text) - size) <= size / 20
    step = 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    assert 0 <= seconds - parse_duration(show_duration(seconds)) < step


def read_or_refused(parse: Parse, text: str) -> None:
    try:
        parse(text)
    except Refused as error:
        assert error.code == "bad-value"
        assert error.hint


@pytest.mark.parametrize("parse", [parse_cores, parse_size, parse_rates, parse_duration])
def test_an_absurdly_large_number_is_read_or_refused_but_never_a_crash(parse):
    for text in ("1e1000000", "-1e1000000", *("9" * 5000 + unit for unit in ("", "P", "d", ":00"))):
        read_or_refused(parse, text)


@STEADY
@given(some.text(alphabet="0123456789.:-+eE/ kKmMgGtTpPiBbdhsnaf_\n", max_size=12))
def test_any_text_is_read_or_refused_with_a_hint(text):
    for parse in (parse_size, parse_memory, parse_rates, parse_duration, parse_cores):
        read_or_refused(parse, text)


# -- times of the week -------------------------------------------------------------------------

berlin = pytest.mark.usefixtures("in_berlin")
#: 2026-11-23 is a Monday.
MONDAY = "2026-11-23 "


def in_week(text: str) -> list[str]:
    """Begin and end of what begins in the week, as day and time."""
    spans = parse_week_hours(text).spans_s(at(MONDAY + "00:00"), at("2026-11-30 00:00"))
    return [
        "-".join(time.strftime("%a %H:%M", time.localtime(at_s)) for at_s in span) for span in spans
    ]


@berlin
@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Wed 08:00-18:00", ["Wed 08:00-Wed 18:00"]),
        ("wednesday 8:00 - 18:00", ["Wed 08:00-Wed 18:00"]),
        ("Mon,Wed 08:00–18:00", ["Mon 08:00-Mon 18:00", "Wed 08:00-Wed 18:00"]),
        ("Mon", ["Mon 00:00-Tue 00:00"]),
        ("Sat-Sun", ["Sat 00:00-Sun 00:00", "Sun 00:00-Mon 00:00"]),
        ("Fri , Sat", ["Fri 00:00-Sat 00:00", "Sat 00:00-Sun 00:00"]),
        ("Fri 22:00-06:00", ["Fri 22:00-Sat 06:00"]),
        ("Fri 18:00-24:00", ["Fri 18:00-Sat 00:00"]),
        ("Fri 18:00-00:00", ["Fri 18:00-Sat 00:00"]),
        ("Fri 18:00-Sun 24:00", ["Fri 18:00-Mon 00:00"]),
        ("Mon 00:00-24:00", ["Mon 00:00-Tue 00:00"]),
    ],
)
def test_these_times_are_understood(text, spans):
    assert in_week(text) == spans


@berlin
def test_local_times_stay_when_the_clocks_change():
    spans = parse_week_hours("Sat 22:00-06:00").spans_s(at("2026-10-24 12:00"), at("2026-10-31"))
    assert [*spans] == [(at("2026-10-24 22:00"), at("2026-10-25 06:00"))]
    assert at("2026-10-25 06:00") - at("2026-10-24 22:00") == 9 * 3600


@pytest.mark.parametrize(
    "value",
    [
        *("", "8-18", "Mon 8-18", "Mon 08:00", "Mon 24:00-06:00", "Mon 08:00-24:01"),
        *("Mon 08:60-09:00", "Mo 08:00-18:00", "Mon- 08:00-18:00", "Mon--Fri 08:00-18:00"),
        *("Mon-Wed-Fri 08:00-18:00", "Mon 08:00-18:00 Tue", "Mon-Fri08:00-18:00", ",", "-", 8),
        *(None, ["Mon"], "Mon 08:00-Tue", "Mon Tue 08:00-18:00", "1:00-2:00-3:00"),
    ],
)
def test_anything_else_is_refused_with_examples(value):
    with pytest.raises(Refused) as refusal:
        parse_week_hours(value)
    assert refusal.value.text == f"{value!r} is not a time of the week from begin to end"
    assert '"Mon-Fri 08:00-18:00"' in refusal.value.hint


@pytest.mark.parametrize("text", ["08:00-08:00", "Mon 00:00-00:00", "Fri 18:00-Fri 18:00"])
def test_times_that_end_when_they_begin_are_refused(text):
    with pytest.raises(Refused, match="ends when it begins"):
        parse_week_hours(text)


# -- indices -----------------------------------------------------------------------------------


def singles(spans: Iterable[Span]) -> list[int]:
    return [at for first, last, step in spans for at in range(first, last + 1, step)]


@pytest.mark.parametrize(
    ("text", "spans", "at_once"),
    [
        ("0-999%50", ((0, 999, 1),), 50), ("7", ((7, 7, 1),), None),
        ("1,3,7-20:2", ((1, 1, 1), (3, 3, 1), (7, 19, 2)), None),
        (" 5 , 1-2 ", ((1, 2, 1), (5, 5, 1)), None), ("3-3:9", ((3, 3, 1),), None),
        ("0-5:2,1-5:2", ((0, 5, 1),), None),
        ("0-8:4,1-9:4%1", ((0, 1, 1), (4, 5, 1), (8, 9, 1)), 1),
        ("1000000000", ((10**9, 10**9, 1),), None), ("0-19999", ((0, MAX_TASKS - 1, 1),), None),
    ],
)  # fmt: skip
def test_indices_are_read_in_order(text, spans, at_once):
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
        ("1000000001", "1000000001 is above the highest index, 1000000000"),
        ("0-20000", "20001 tasks, and an array has at most 20000"),
        ("0-9%0", "after % stands how many may run at once, not '0'"),
        ("0-9%", "after % stands how many may run at once, not ''"),
        ("0-18000:4,1-18001:4", f"it comes to 4501 pieces; {MOST_SPANS} are the most"),
        ("0-9%5%5", "after % stands how many may run at once, not '5%5'"),
    ],
)  # fmt: skip
def test_bad_indices_are_refused_with_their_place_and_a_cure(text, why):
    with pytest.raises(Refused) as refusal:
        read_array(text)
    assert refusal.value.text == f"array: {text!r} is wrong: {why}"
    hint = "submit several arrays" if "20000" in why else "write 0-99, 1,3,7-20:2 or 0-999%50"
    assert refusal.value.hint == hint


PIECES = some.lists(
    some.tuples(some.integers(0, 40), some.integers(0, 12), some.integers(1, 5)), min_size=1,
    max_size=5,
)  # fmt: skip


@STEADY
@given(PIECES)
def test_what_is_read_is_what_was_written(pieces):
    """An index that stands there twice counts once."""
    meant = {*singles((low, low + more, step) for low, more, step in pieces)}
    text = ",".join(f"{low}-{low + more}:{step}" for low, more, step in pieces)
    spans, _ = read_array(text)
    assert singles(spans) == sorted(meant)
    assert count_of(spans) == len(meant)
    assert singles(read_array(show_spans(spans))[0]) == sorted(meant)


@STEADY
@given(PIECES, some.integers(0, 60), some.integers(0, 60))
def test_a_part_of_spans_is_what_stands_there(pieces, low, more):
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


def test_a_list_of_very_many_pieces_is_cut():
    shown = show_spans([(at * at, at * at, 1) for at in range(10_000)])
    assert shown.startswith("0,1,4,9,")
    assert shown.endswith(f",{999 * 999},…")


def test_of_very_many_ranges_only_the_first_are_looked_at():
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
def test_ranges_and_the_gaps_between_them_are_all_there_is(ids):
    ranges, rest = joined(sorted(ids)), gaps(sorted(ids), 1, 30)
    assert {each for low, high in ranges for each in range(low, high + 1)} == ids
    assert {each for low, high in rest for each in range(low, high + 1)} == {*range(1, 31)} - ids


def test_single_indices_that_lie_evenly_apart_are_shown_as_a_range():
    apart = [3, *range(10, 21, 2), 30, 31, *range(50, 54)]
    assert show_spans((at, at, 1) for at in apart) == "3,10-20:2,30,31,50-53"
    assert show_spans([(1, 1, 1), (3, 3, 1), (5, 5, 1), (7, 20, 1)]) == "1,3,5,7-20"


# -- JSON --------------------------------------------------------------------------------------


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text() | some.floats(allow_nan=False),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


@examples(20)
@given(VALUES)
def test_it_writes_what_json_writes(value):
    assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@examples(20)
@given(VALUES)
def test_it_reads_what_json_reads(value):
    assert decode(json.dumps(value).encode() + b"\n") == value
    assert decode(f" {json.dumps(value, ensure_ascii=False, indent=1)}\r\n".encode()) == value


@pytest.mark.parametrize("value", [b"x", {1}, {"a": [object()]}, {b"x": 1}], ids=repr)
def test_what_is_not_json_is_not_written(value):
    with pytest.raises(TypeError):
        json.dumps(value)
    with pytest.raises(TypeError):
        encode(value)
