"""Events are frozen values of a closed set of kinds."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import get_args

import pytest

from drfd.core.model import events as ev

KINDS = list(ev.KINDS.values())


def test_every_kind_is_in_the_journals_list_under_its_own_name() -> None:
    assert {*ev.KINDS.values()} == {
        *get_args(ev.JobEvent),
        ev.ArraySubmitted,
        ev.Drained,
        ev.IdsRaised,
    }
    assert {name: kind.__name__ for name, kind in ev.KINDS.items()} == {
        name: name for name in ev.KINDS
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_has_no_subclass_and_says_when_it_happened(kind: type) -> None:
    assert is_dataclass(kind)
    assert kind.__subclasses__() == []
    assert "at_s" in {field.name for field in fields(kind)}
