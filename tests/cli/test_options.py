"""Past times as people write them."""

from __future__ import annotations

import pytest

from drfd.common.errors import Refused
from drfd_cli.options import parse_moment

#: 2023-11-14 22:13:20 UTC.
NOW = 1_700_000_000.0
DAY = 86400.0
MIDNIGHT = 1_699_920_000.0


@pytest.fixture(autouse=True)
def utc(plain: None) -> None:
    """The tests' clock."""


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("now", NOW),
        ("today", MIDNIGHT),
        ("Yesterday", MIDNIGHT - DAY),
        ("22:13", MIDNIGHT + 22 * 3600 + 13 * 60),
        ("22:14", MIDNIGHT - DAY + 22 * 3600 + 14 * 60),
        ("0:05", MIDNIGHT + 300),
        ("7d", NOW - 7 * DAY),
        ("10min", NOW - 600),
        ("1h 30 minutes ago", NOW - 5400),
        ("2w", NOW - 14 * DAY),
        ("1h30m", NOW - 5400),
        ("2023-11-14", MIDNIGHT),
        ("2023-11-14 01:02", MIDNIGHT + 3720),
        ("2023-11-14T01:02:03", MIDNIGHT + 3723),
        (" @1700000000 ", NOW),
        ("99999d", 0.0),
    ],
)
def test_a_time_is_understood(text: str, at_s: float) -> None:
    assert parse_moment(text, NOW) == at_s


@pytest.mark.parametrize(
    "text", ["", "foo", "90", "25:00", "2023-13-01", "2023-11-14 25:00", "-3d", "@", "1e3", "٣d"]
)
def test_what_could_be_anything_is_refused_with_examples(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_moment(text, NOW)
    assert refusal.value.code == "bad-value"
