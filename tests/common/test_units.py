"""Text with units, in and out; whatever is wrong with it gives one line and the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import Refused
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
from seeds import examples

STEADY = examples(300)
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


# -- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        (1, 1),
        (1536, 1536),
        ("512", 512),
        ("1B", 1),
        ("1K", KIB),
        ("1k", KIB),
        ("1KB", KIB),
        ("1KiB", KIB),
        ("640kib", 640 * KIB),
        ("512M", 512 * MIB),
        ("16G", 16 * GIB),
        ("16 G", 16 * GIB),
        (" 16G ", 16 * GIB),
        ("1.5G", 1536 * MIB),
        ("1.5 GiB", 1536 * MIB),
        ("0.5K", 512),
        ("1.5", 1),
        ("2T", 2 * TIB),
        ("1P", PIB),
        ("007M", 7 * MIB),
        ("4Gi", 4 * GIB),
        ("4gi", 4 * GIB),
    ],
)
def test_a_size_is_a_number_with_a_binary_unit(text: str | int, size: int) -> None:
    assert parse_size(text) == size


BAD_SIZES = [
    "", " ", "G", "16X", "16GG", "16G 5M", "-1G", "+1G", "1e9", ".5G", "1.G", "1,5G", "1_000",
    "0x10", "16 Gi B", "G16", "NaN", "inf", "sixteen", "16G\n16G", "\0", "1" * 500 + "x", None,
    True, 1.5e300, -5,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_SIZES)
def test_what_is_not_a_size_is_refused(text: object) -> None:
    assert "is not a size" in refusal(parse_size, text).text


@pytest.mark.parametrize("text", ["0", 0, "0G", "0.0", "0.5", "0.0001K"])
def test_a_size_of_nothing_is_refused(text: object) -> None:
    assert refusal(parse_size, text, what="--mem").text == "--mem must be more than zero"


@pytest.mark.parametrize("parse", [parse_size, parse_memory, parse_duration, parse_cores])
def test_a_refusal_names_what_was_meant_and_quotes_what_was_written(parse: Parse) -> None:
    assert refusal(parse, "much", what="defaults.x").text.startswith("defaults.x: 'much' is not a ")


@pytest.mark.parametrize("parse", [parse_size, parse_memory, parse_duration, parse_cores])
def test_a_refusal_quotes_no_more_than_fits_a_line(parse: Parse) -> None:
    assert refusal(parse, "x" * 5000).text.count("x") == 37
    assert "..." in refusal(parse, "x" * 41).text
    assert "..." not in refusal(parse, "x" * 40).text


def test_memory_below_a_mebibyte_is_refused() -> None:
    assert parse_memory("1M") == MIB
    assert parse_memory(MIB) == MIB
    error = refusal(parse_memory, MIB - 1)
    assert str(error) == f"memory must be at least 1M (write {MIB - 1}M for mebibytes)"
    assert refusal(parse_memory, "512K").hint == "write 512M or 16G"


@STEADY
@given(some.integers(1, 1 << 60))
def test_an_exact_size_is_read_back_as_the_same_number(size: int) -> None:
    assert parse_size(exact_size(size)) == size


@STEADY
@given(some.integers(1, 1 << 10), some.sampled_from([1, KIB, MIB, GIB, TIB, PIB]))
def test_an_exact_size_of_whole_units_is_short(count: int, unit: int) -> None:
    assert len(exact_size(count * unit)) <= len(str(count)) + 1
    assert parse_size(exact_size(count * unit)) == count * unit


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1K"),
        (1025, "1025"),
        (16 * GIB, "16G"),
        (1536 * MIB, "1536M"),
        (2048 * TIB, "2P"),
        (PIB + 1, str(PIB + 1)),
    ],
)
def test_an_exact_size_uses_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert exact_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1K"),
        (1536, "1.5K"),
        (1075, "1K"),
        (640 * KIB, "640K"),
        (100 * MIB - 1, "100M"),
        (16 * GIB, "16G"),
        (1.5 * GIB, "1.5G"),
        (100.5 * KIB, "100K"),
        (99.9 * GIB, "99.9G"),
        (2 * TIB, "2T"),
        (5000 * TIB, "5000T"),
        (12.34, "12.3"),
        (-1536, "-1.5K"),
    ],
)
def test_a_size_for_people_has_one_decimal_at_most(size: float, text: str) -> None:
    assert show_size(size) == text


@STEADY
@given(some.integers(1, 9999 * TIB))
def test_a_size_for_people_is_short_and_right_within_a_twentieth(size: int) -> None:
    text = show_size(size)
    assert len(text.rstrip("KMGT")) <= 4
    assert abs(parse_size(text) - size) <= size / 20


# -- rates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("10M", (10 * MIB, 10 * MIB)),
        ("10M/s", (10 * MIB, 10 * MIB)),
        ("200M/50M", (200 * MIB, 50 * MIB)),
        ("200M/50M/s", (200 * MIB, 50 * MIB)),
        ("200M / 50M", (200 * MIB, 50 * MIB)),
        ("0", (0, 0)),
        ("0/50M", (0, 50 * MIB)),
        ("50M/0", (50 * MIB, 0)),
        ("4.5K/4096", (4608, 4096)),
    ],
)
def test_rates_are_one_for_both_or_read_and_write(text: str, rates: tuple[int, int]) -> None:
    assert parse_rates(text) == rates


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10M", (None, 10 * MIB, 10 * MIB)),
        ("data=200M/50M", ("data", 200 * MIB, 50 * MIB)),
        ("a=b=1M", ("a=b", MIB, MIB)),
    ],
)
def test_a_disk_may_be_named_before_its_rates(
    text: str, found: tuple[str | None, int, int]
) -> None:
    assert parse_disk_rates(text) == found


@pytest.mark.parametrize("text", ["=10M", "data=", "data=fast", "data=1/2/3"])
def test_what_is_no_disk_with_rates_is_refused(text: str) -> None:
    assert refusal(parse_disk_rates, text, what="--io").text.startswith("--io")


@pytest.mark.parametrize(
    "text", ["", "/", "10M/", "/10M", "1M/2M/3M", "fast", "10M/h", "-1M", "0K"]
)
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    assert refusal(parse_rates, text, what="--io").text.startswith("--io")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("100", "--io: '100' is less than 4K a second (write 100M for mebibytes)"),
        ("1K", "--io: '1K' is less than 4K a second (write 200M/50M)"),
        ("data=200M/50", "--io: '50' is less than 4K a second (write 50M for mebibytes)"),
    ],
)
def test_a_rate_at_which_no_job_gets_anywhere_is_refused(text: str, fault: str) -> None:
    assert str(refusal(parse_disk_rates, text, what="--io")) == fault


@STEADY
@given(some.integers(4 * KIB, PIB), some.integers(4 * KIB, PIB))
def test_rates_are_read_back_as_the_same_numbers(read: int, write: int) -> None:
    assert parse_rates(f"{exact_size(read)}/{exact_size(write)}") == (read, write)


# -- times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        (90, 90),
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("1h30m5s", 5405),
        ("30m1h", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("2D12H", 216000),
        (" 2d ", 172800),
        ("1:30:00", 5400),
        ("0:00:01", 1),
        ("1-12:00", 129600),
        ("1-12:00:01", 129601),
        ("1.5s", 1),
        ("5min", 300),
        ("5 minutes", 300),
        ("1h 30m", 5400),
        ("2hrs", 7200),
        ("1hour30mins10sec", 5410),
        ("3days", 259200),
        ("1w", 604800),
        ("2 Weeks", 1209600),
        ("30:00", 1800),
        ("1:30", 90),
        ("100:00", 6000),
        ("1:30:0", 5400),
        ("1-5", 104400),
        ("1-0:0:0", 86400),
    ],
)
def test_a_time_is_seconds_or_spans_or_a_clock(text: str | int, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "h", "1x", "1h30", "-5", "+5", "1e3", "1.5", ".5h", "1:3", "1month", "5minx",
        "1:300", "1:30:000", "1:30:00:00", "1-", ":30", "1:30m", "forever", "unlimited", "NaN",
        None, True, 1.5, "²", "1\n2",
    ],
)  # fmt: skip
def test_what_is_not_a_time_is_refused(text: object) -> None:
    assert "is not a time" in refusal(parse_duration, text).text


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("90", "90 is 90 seconds (90m: minutes)"),
        (" 090 ", "090 is 90 seconds (090m: minutes)"),
        ("30:00", "30:00 is 30m00s (30h00m: hours)"),
        ("1:30", "1:30 is 1m30s (1h30m: hours)"),
        ("90s", None),
        ("1:30:00", None),
        ("1-12", None),
        ("unlimited", None),
        ("nonsense", None),
    ],
)
def test_a_time_that_could_mean_something_else_is_told(text: str, how: str | None) -> None:
    assert doubt(text) == how


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("unlimited", True), (" UNLIMITED ", True), ("infinite", True), ("Infinite", True),
        ("1d", False), ("", False), (None, False), (0, False),
    ],
)  # fmt: skip
def test_a_time_limit_may_be_none(text: object, is_so: bool) -> None:
    assert is_endless(text) is is_so


@pytest.mark.parametrize("text", ["0", 0, "0s", "0.9s", "0:00:00", "0-00:00:00", "0h0m"])
def test_a_time_below_a_second_is_refused(text: object) -> None:
    error = refusal(parse_duration, text, what="-t")
    assert error.text == "-t must be at least one second"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (0.9, "0s"),
        (45, "45s"),
        (59.99, "59s"),
        (60, "1m00s"),
        (750, "12m30s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (11100, "3h05m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (187200, "2d04h"),
        (400 * 86400, "400d00h"),
    ],
)
def test_a_time_for_people_has_two_units(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@STEADY
@given(some.integers(1, 10**9))
def test_a_shown_time_can_be_typed_again_and_is_cut_by_less_than_its_last_unit(
    seconds: int,
) -> None:
    again = parse_duration(show_duration(seconds))
    step = 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    assert 0 <= seconds - again < step


# -- cores ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("4", 4000),
        (4, 4000),
        ("0.5", 500),
        (0.5, 500),
        ("0.01", 10),
        ("1.125", 1125),
        (" 2 ", 2000),
        (0.1, 100),
    ],
)
def test_cores_are_read_in_thousandths(text: str | float, milli: int) -> None:
    assert parse_cores(text) == milli


@pytest.mark.parametrize(
    "text", ["", "many", "1/2", "4c", "0,5", "nan", "sNaN", "inf", "-inf", None, True, float("nan")]
)
def test_what_is_not_a_number_of_cores_is_refused(text: object) -> None:
    assert "is not a number" in refusal(parse_cores, text).text


@pytest.mark.parametrize("text", ["0", 0, "0.009", "0.0105", "-1", -1, 0.1 + 0.2])
def test_cores_below_a_hundredth_or_finer_than_a_thousandth_are_refused(text: object) -> None:
    assert "from 0.01 up, in steps of 0.001" in refusal(parse_cores, text).text


@STEADY
@given(some.integers(10, 10**9))
def test_shown_cores_are_read_back_as_the_same_number(milli: int) -> None:
    assert parse_cores(show_cores(milli)) == milli


@pytest.mark.parametrize(
    ("milli", "text"), [(0, "0"), (10, "0.01"), (500, "0.5"), (10_000, "10"), (1125, "1.125")]
)
def test_cores_for_people_have_no_needless_digits(milli: int, text: str) -> None:
    assert show_cores(milli) == text


# -- all of them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_cores, "1e1000000"),
        (parse_cores, "-1e1000000"),
        (parse_cores, "9" * 5000),
        (parse_size, "9" * 5000),
        (parse_size, "9" * 5000 + "P"),
        (parse_rates, "9" * 5000),
        (parse_duration, "9" * 5000),
        (parse_duration, "9" * 5000 + "d"),
        (parse_duration, "9" * 5000 + ":00"),
    ],
    ids=lambda value: value.__name__ if callable(value) else f"{value[:9]}({len(value)})",
)
def test_an_absurdly_large_number_is_read_or_refused_but_never_a_crash(
    parse: Parse, text: str
) -> None:
    try:
        parse(text)
    except Refused as error:
        assert error.hint


@STEADY
@given(some.text(alphabet="0123456789.:-+eE/ kKmMgGtTpPiBbdhsnaf_\n", max_size=12))
def test_any_text_is_read_or_refused_with_a_hint(text: str) -> None:
    for parse in (parse_size, parse_memory, parse_rates, parse_duration, parse_cores):
        try:
            parse(text)
        except Refused as error:
            assert error.code == "bad-value"
            assert error.hint


@pytest.mark.parametrize(
    ("axis", "amount", "text"),
    [
        ("cores", 1500, "1.5"),
        ("memory", GIB, "1G"),
        ("read", 2 * MIB, "2M/s"),
        ("write", 512, "512/s"),
        ("gpu", 3, "3"),
    ],
)
def test_an_amount_is_shown_in_its_resources_own_unit(axis: str, amount: int, text: str) -> None:
    assert show_amount(axis, amount) == text


# -- ranges -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("2..8", Range(2000, 8000)),
        ("0.5..1.5", Range(500, 1500)),
        (" 2 .. 8 ", Range(2000, 8000)),
        ("4..", Range(4000, ALL)),
        ("4..4", 4000),
        ("4", 4000),
        (4, 4000),
    ],
)
def test_cores_may_be_a_range(text: str | int, ends: int | Range) -> None:
    assert parse_cores_range(text) == ends


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("..8", "cores: '..8' has no lower end, which is what the job holds (write 2..8, "),
        ("..", "cores: '..' has no lower end"),
        ("0..8", "cores: '0..8' begins with zero, and a job holds some (write 2..8"),
        ("8..2", "cores: '8..2' ends below its beginning (write 2..8)"),
        ("2...4", "cores: '2...4' has more than two dots (write 2..8, or 8 for no less)"),
        ("2..x", "cores: 'x' is not a number (write 4 or 0.5)"),
        ("2..4..8", "cores: '4..8' is not a number (write 4 or 0.5)"),
        ("2..-8", "cores: '-8' is not a number of cores"),
        ("-2..8", "cores: '-2' is not a number of cores"),
    ],
)
def test_what_is_no_range_is_refused_with_the_cure(text: str, error: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_cores_range(text)
    assert str(refused.value).startswith(error)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("50M..200M", (Range(50 * MIB, 200 * MIB), Range(50 * MIB, 200 * MIB))),
        ("50M..200M/20M", (Range(50 * MIB, 200 * MIB), 20 * MIB)),
        ("0/20M../s", (0, Range(20 * MIB, ALL))),
        ("50M..50M/0", (50 * MIB, 0)),
    ],
)
def test_each_rate_may_be_a_range(text: str, rates: tuple[int | Range, int | Range]) -> None:
    assert parse_disk_rates(f"data={text}") == ("data", *rates)


@pytest.mark.parametrize("text", ["0..50M", "..50M", "50M..20M", "50M..0", "1M..2M..3M", "1..2"])
def test_a_range_of_rates_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"^io"):
        parse_rates(text)


def test_a_range_is_shown_as_it_is_written() -> None:
    assert (show_range("2", "8"), show_range("2", None)) == ("2..8", "2")
