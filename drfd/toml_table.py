"""Strict reading of one TOML table: every complaint names file and key, and how to mend it."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, TypeVar

from drfd.errors import ConfigError, Refused
from drfd.units import parse_duration, parse_size

T = TypeVar("T")
Toml = dict[str, Any]


class Table:
    """One table of the file; what has been taken from it is what it may contain."""

    def __init__(self, values: Toml, source: str, path: str) -> None:
        self._values = values
        self._source = source
        self._path = path
        self._known: set[str] = set()
        self._children: list[Table] = []

    def names(self) -> list[str]:
        return list(self._values)

    def take(self, key: str, read: Callable[..., T], default: Any) -> Any:
        self._known.add(key)
        if key not in self._values:
            return default
        try:
            return read(self._values[key])
        except Refused as error:
            text = error.text.removeprefix("size: ").removeprefix("time: ").removeprefix("cores: ")
            raise ConfigError("config", f"{self._at(key)}: {text}", hint=error.hint) from None

    def table(self, key: str) -> Table:
        child = Table(self.take(key, read_table, {}), self._source, self._at(key, bare=True))
        self._children.append(child)
        return child

    def tables(self, key: str) -> list[Table] | None:
        values = self.take(key, read_tables, None)
        if values is None:
            return None
        return [
            Table(value, self._source, f"{self._at(key, bare=True)}[{number}]")
            for number, value in enumerate(values)
        ]

    def done(self) -> None:
        """Raise ConfigError for a key that was never asked for, here or in a table below."""
        for key in self._values:
            if key not in self._known:
                near = get_close_matches(key, self._known, 1)
                hint = f"did you mean {near[0]}?" if near else self._known_keys()
                raise ConfigError("config", f"{self._at(key)}: unknown key", hint=hint)
        for child in self._children:
            child.done()

    def fail(self, key: str, text: str, *, hint: str = "") -> Any:
        raise ConfigError("config", f"{self._at(key)}: {text}", hint=hint)

    def _known_keys(self) -> str:
        return f"known keys: {', '.join(sorted(self._known))}" if self._known else ""

    def _at(self, key: str, *, bare: bool = False) -> str:
        path = f"{self._path}.{key}" if self._path else key
        return path if bare else f"{self._source}: {path}"


def wrong(value: object, what: str, example: str) -> Refused:
    return Refused("config", f"{value!r} is not {what}", hint=f"write {example}")


def read_table(value: object) -> Toml:
    if not isinstance(value, dict):
        raise wrong(value, "a table", "it as [name] with keys below")
    return value


def read_tables(value: object) -> list[Toml]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong(value, "a list of tables", "[[disk]]")
    return value


def read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(value, "true or false", "true or false")
    return value


def read_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise wrong(value, "a whole number from 1 up", "4096")
    return value


def read_count_or_zero(value: object) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else read_count(value)


def read_name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(value, "a name", '"name"')
    return value


def read_disk_name(value: object) -> str:
    """One that can be written as --io NAME=200M."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value, re.ASCII):
        raise wrong(value, "a name of letters, digits, dots, - and _", '"data"')
    return value


def read_names(value: object) -> list[str]:
    if not isinstance(value, list):
        raise wrong(value, "a list of names", '["alice", "bob"]')
    return [read_name(item) for item in value]


def read_path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise wrong(value, "an absolute path", '"/data"')
    return value


def read_size_or_zero(value: str | int) -> int:
    return 0 if str(value) == "0" else parse_size(value)


def read_duration_or_zero(value: str | int) -> int:
    return 0 if str(value) == "0" else parse_duration(value)


def read_time(value: str | int) -> int | None:
    return None if value == "unlimited" else parse_duration(value)


def read_weight(value: object) -> Fraction:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1_000_000:
        raise wrong(value, "a number above 0", "2 or 0.5")
    return Fraction(str(value))


def one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise wrong(value, "known", " or ".join(f'"{word}"' for word in words))
        return value

    return read
