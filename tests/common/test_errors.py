"""Errors are sorted by whose fault they are; the codes of the exit are the documented ones."""

from __future__ import annotations

import pytest

from drfd.common import errors
from drfd.common.errors import (
    BY_KIND,
    ConfigError,
    DrfdError,
    HostError,
    NotPermitted,
    Refused,
    Unavailable,
)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [(Refused, 1), (NotPermitted, 77), (Unavailable, 69), (ConfigError, 78), (HostError, 1)],
)
def test_each_kind_of_error_has_its_documented_exit_code(
    kind: type[DrfdError], exit_code: int
) -> None:
    error = kind("some-code", "text")
    assert isinstance(error, DrfdError)
    assert error.exit_code == exit_code


def test_every_kind_can_cross_the_wire_under_its_own_name() -> None:
    kinds = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, DrfdError) and each is not DrfdError
    }
    assert {kind.__name__: kind for kind in kinds} == BY_KIND


def test_an_error_is_one_line_with_the_way_out_in_brackets() -> None:
    error = Refused("too-big", "the job asks for 20G", hint="ask for less")
    assert (error.code, error.text, error.hint) == (
        "too-big",
        "the job asks for 20G",
        "ask for less",
    )
    assert str(error) == "the job asks for 20G (ask for less)"


def test_an_error_without_a_hint_has_no_brackets() -> None:
    assert str(HostError("journal", "the disk is full")) == "the disk is full"
    assert HostError("journal", "the disk is full").hint == ""


def test_what_is_not_permitted_is_also_refused() -> None:
    """Who catches refusals catches both: the daemon's loop does."""
    assert issubclass(NotPermitted, Refused)
    assert not issubclass(HostError, Refused)
