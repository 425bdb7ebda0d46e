"""What is lent here, by the configuration and by what the launcher says."""

from __future__ import annotations

import pytest

from drfd.core.model.resources import Resources
from drfd.daemon.launcher_link.lending import lends, unlent_text
from drfd.launcher.protocol import PIN, QUOTA, SHARE, WEIGHT, Message
from fakes import demand, spec

ALL_OF_IT: Message = {"lends": True, "lendable": ["cores", "disks"]}
CORES: Message = {"lends": True, "lendable": ["cores"]}
NONE: Message = {"lends": False, "lendable": []}
RANGE = spec(asks=demand(2, read=10), most=Resources(cores_milli=8000, read_bps=20))


@pytest.mark.parametrize(
    ("hello", "mode", "lent"),
    [
        (ALL_OF_IT, SHARE, {"cores"}),
        ({"lends": True}, SHARE, {"cores"}),
        (CORES, SHARE, {"cores"}),
        (NONE, SHARE, set()),
        # An older launcher.
        ({"kind": "cgroup-v2"}, SHARE, set()),
        # None has said anything yet.
        ({}, SHARE, None),
        *((hello, mode, set()) for hello in (ALL_OF_IT, {}) for mode in (QUOTA, WEIGHT, PIN)),
    ],
)
def test_something_is_lent_only_where_both_say_so(
    hello: Message, mode: str, lent: set[str] | None
) -> None:
    assert lends(hello, mode) == lent


@pytest.mark.parametrize(
    ("hello", "mode", "text"),
    [
        ({}, SHARE, None),
        (ALL_OF_IT, SHARE,
         "no disk rates are lent here (drfd lends cores alone); the job has the lower end"),
        (CORES, SHARE,
         "no disk rates are lent here (drfd lends cores alone); the job has the lower end"),
        (NONE, SHARE,
         "no cores or disk rates are lent here (the kernel gives no way); the job has the lower "
         "end"),
        (ALL_OF_IT, QUOTA,
         "no cores or disk rates are lent here (enforcement.cores is quota); the job has the lower"
         " end"),
    ],
)  # fmt: skip
def test_an_owner_is_told_what_of_a_range_does_not_count(
    hello: Message, mode: str, text: str | None
) -> None:
    assert unlent_text(RANGE, hello, mode) == text
    assert unlent_text(spec(asks=demand(2)), hello, mode) is None


def test_a_range_of_cores_needs_no_word_where_cores_are_lent() -> None:
    wide = spec(asks=demand(2), most=Resources(cores_milli=8000))
    assert unlent_text(wide, ALL_OF_IT, SHARE) is None
