"""Whether JSON has the shape that a typed dictionary declares: no key missing, none undeclared."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict


def misfits(value: Any, declared: Any, place: str = "$") -> list[str]:
    """Each place where the value is not what is declared."""
    if declared is object:
        return []
    origin, arguments = get_origin(declared), get_args(declared)
    if is_typeddict(declared):
        return _misfits_of_keys(value, declared, place)
    if origin in (Union, UnionType):
        found = [misfits(value, each, place) for each in arguments]
        return min(found, key=len)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        kinds = arguments * len(value) if origin is list else arguments
        pairs = zip(value, kinds, strict=True)
        return [
            m for at, (one, kind) in enumerate(pairs) for m in misfits(one, kind, f"{place}[{at}]")
        ]
    if origin is dict and isinstance(value, dict):
        return [
            m for key, one in value.items() for m in misfits(one, arguments[1], f"{place}.{key}")
        ]
    kinds = {float: (int, float), None: (NoneType,)}.get(declared, (origin or declared,))
    is_right = isinstance(value, kinds) and (declared is bool or not isinstance(value, bool))
    return [] if is_right else [f"{place}: {value!r} is not {declared}"]


def _misfits_of_keys(value: Any, declared: Any, place: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{place}: {value!r} is not an object"]
    hints = get_type_hints(declared)
    found = [
        f"{place}.{key} is missing" for key in sorted(declared.__required_keys__ - value.keys())
    ]
    for key, one in value.items():
        if key in hints:
            found += misfits(one, hints[key], f"{place}.{key}")
        else:
            found.append(f"{place}.{key} is not declared")
    return found
