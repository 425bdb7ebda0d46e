"""Rules as text, and back: so a promise of the past can be judged by the weights, guarantees,
limits and capacity of its time.

The text is JSON with sorted keys: the same rules always give the same text, and any other rules
another one. It contains every field of `Rules` that can be configured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from drfd.core.fairness.rules import Rules


def rules_text(rules: Rules) -> str:
    """Return the canonical text: fractions as "n/d", sets sorted, members as "pool/user"."""
    return json.dumps(_plain(rules), sort_keys=True, separators=(",", ":"))


def read_rules(text: str) -> Rules:
    """Return the rules of a text. Fields that this version does not know are left out, and those
    that the version which wrote the text did not know have their defaults. Raises ValueError for
    any other text."""
    try:
        rules: Rules = _read(Rules, json.loads(text))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this is no text of rules: {error}") from error
    return rules


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        # Fields that are derived from others were not configured.
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.init}
    match value:
        case Fraction():
            return str(value)
        case Mapping():
            return {_key(key): _plain(each) for key, each in value.items()}
        case set() | frozenset():
            return sorted(_plain(each) for each in value)
        case tuple() | list():
            return [_plain(each) for each in value]
        case _:
            return value


def _key(key: object) -> str:
    return "/".join(key) if isinstance(key, tuple) else str(key)


def _read(kind: Any, value: Any) -> Any:
    """Return the value that `_plain` has written of this type."""
    if kind is Fraction:
        return Fraction(value)
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        told = {name: _read(types[name], each) for name, each in value.items() if name in types}
        return kind(**told)
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (some,) = (each for each in of if each is not NoneType)
        return None if value is None else _read(some, value)
    if origin is frozenset:
        return frozenset(_read(of[0], each) for each in value)
    if origin is tuple:
        kinds = (of[0],) * len(value) if of[1:] == (...,) else of
        return tuple(_read(*pair) for pair in zip(kinds, value, strict=True))
    if origin is Mapping:
        return {_read_key(of[0], key): _read(of[1], each) for key, each in value.items()}
    return value


def _read_key(kind: Any, key: str) -> Any:
    if kind is str:
        return key
    pool, _, user = key.partition("/")
    return pool, user


@cache
def _types(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields that are configured."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.init}
