"""Strict reading of JSON: every complaint names the place and how to mend it.

Numbers may be written as numbers or as decimals in quotes, and are exact either way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from drfd.errors import Refused

T = TypeVar("T")
#: Turns a value at a place into what is meant, or raises Refused.
Read = Callable[[object, str], T]

_DECIMAL = re.compile(r"[+-]?(\d{1,60}(\.\d{0,60})?|\.\d{1,60})([eE][+-]?\d{1,9})?", re.ASCII)
#: Beyond these powers of ten a number is a slip of the keyboard, and takes for ever to work with.
_LARGEST, _FINEST = 18, -18


class Table:
    """An object of the text, and the keys that it may have."""

    def __init__(self, value: object, place: str, keys: Sequence[str]) -> None:
        self._place = place
        self._values = read_table(value, place)
        for key in self._values:
            if key not in keys:
                near = get_close_matches(key, keys, 1)
                hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(keys)}"
                refuse(self._at(shown(key)), "unknown key", hint)

    def need(self, key: str, read: Read[T]) -> T:
        if key not in self._values:
            self.fail(key, "is missing")
        return read(self._values[key], self._at(key))

    def take(self, key: str, read: Read[T], default: Any) -> Any:
        """null is as good as nothing."""
        value = self._values.get(key)
        return default if value is None else read(value, self._at(key))

    def fail(self, key: str, text: str, hint: str = "") -> NoReturn:
        refuse(self._at(key), text, hint)

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key


def refuse(place: str, text: str, hint: str = "") -> NoReturn:
    raise Refused("bad-spec", f"{place}: {text}" if place else text, hint=hint)


def decoded(text: str) -> object:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            refuse("", f"the key {shown(twice)} stands twice in one object", "leave one out")
        return table

    try:
        found: object = json.loads(text, parse_float=Decimal, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        refuse("", f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}")
    except (ValueError, ArithmeticError, RecursionError):
        refuse("", "is JSON with numbers or nesting beyond all measure")
    return found


def shown(value: object) -> str:
    """What was written, no longer than a line."""
    is_plain = value != "" and isinstance(value, str | Decimal)
    word = str(value) if is_plain else json.dumps(value, default=str)
    return word if len(word) <= 40 else f"{word[:37]}..."


def read_table(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(place, f"{shown(value)} is not an object", 'write {"key": value}')
    return value


def read_list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        refuse(place, f"{shown(value)} is not a list", "write [ … ]")
    return value


def read_name(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        refuse(place, f"{shown(value)} is not a name", 'write "A"')
    return value


def one_of(words: Sequence[str]) -> Read[str]:
    def read(value: object, place: str) -> str:
        if value not in words:
            near = get_close_matches(str(value), words, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(words)}"
            refuse(place, f"{shown(value)} is not known", hint)
        return str(value)

    return read


def name_of(names: Mapping[str, object], what: str) -> Read[str]:
    def read(value: object, place: str) -> str:
        if not isinstance(value, str) or value not in names:
            near = get_close_matches(str(value), names, 1)
            known = ", ".join(map(shown, names)) or "none"
            hint = f"did you mean {shown(near[0])}?" if near else f"there are: {known}"
            refuse(place, f"there is no {what} {shown(value)}", hint)
        return value

    return read


def read_number(value: object, place: str) -> Fraction:
    is_number = isinstance(value, int | str | Decimal) and not isinstance(value, bool)
    if not is_number or not _DECIMAL.fullmatch(str(value)):
        refuse(place, f"{shown(value)} is not a number", 'write 2, 0.5 or "0.5"')
    exact = Decimal(str(value))
    # The place of the first digit; a comparison would round, and may overflow.
    if exact and not _FINEST <= exact.adjusted() <= _LARGEST:
        refuse(place, f"{shown(value)} is beyond all measure", "use larger or smaller units")
    return Fraction(exact) if exact else Fraction(0)


def read_amount(value: object, place: str) -> Fraction:
    number = read_number(value, place)
    if number < 0:
        refuse(place, f"{shown(value)} is below zero", "write 0 or more")
    return number


def read_positive(value: object, place: str) -> Fraction:
    number = read_number(value, place)
    if number <= 0:
        refuse(place, f"{shown(value)} is not above zero", "write 2 or 0.5")
    return number


def read_count(value: object, place: str) -> int:
    number = read_positive(value, place)
    if number.denominator != 1:
        refuse(place, f"{shown(value)} is not a whole number", "write 4")
    return int(number)
