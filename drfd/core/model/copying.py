"""Copies of frozen values with slots and some fields changed, for values with many fields.

`dataclasses.replace` reads each field by its name, checks it and calls the constructor, which takes
three times as long for a job with its forty fields. Of what it does, only the check of the names
and types is missed here; where mypy is to make it, it is given `replace` in place of the copier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import repeat
from operator import attrgetter, call
from typing import Any, TypeVar

Value = TypeVar("Value")


def copier(kind: type[Value]) -> Callable[..., Value]:
    """Return a function like `dataclasses.replace` for the values of a frozen dataclass with slots
    that has no `__post_init__`. A field that it does not have raises KeyError."""
    assert not hasattr(kind, "__post_init__"), kind
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    setters = {name: getattr(kind, name).__set__ for name in names}
    in_order = tuple(setters.values())
    read_all = attrgetter(*names)

    def copy(value: Value, **changes: Any) -> Value:
        other = object.__new__(kind)
        # A loop in C: setting a field returns None, so `any` goes through all of them.
        any(map(call, in_order, repeat(other), read_all(value)))
        for name, amount in changes.items():
            setters[name](other, amount)
        return other

    return copy
