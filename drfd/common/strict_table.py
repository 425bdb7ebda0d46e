"""Strict reading of TOML tables: an unknown key or a wrong value is an error.

Each error names the place (file, table, key) and says how to correct it. Errors are collected, so
that all of a file are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from typing import Any, NoReturn, TypeVar

from drfd.common.errors import ConfigError, Refused

T = TypeVar("T")
Toml = dict[str, object]


@dataclass(frozen=True, slots=True)
class Key:
    """What is declared of a key of the configuration: all of it, at the field that has its value.
    `tests/config_reference.py` prints the reference and the shipped file from that."""

    name: str
    read: Callable[..., Any]
    #: The comment of the reference.
    help: str
    #: The default as it is written in the file; an example where `default` says what it is.
    shown: str
    default: str
    #: The table, for a field of a class that has keys of several tables.
    table: str
    #: The field for the upper end of a range.
    end: str


def key(
    name: str,
    read: Callable[..., Any],
    value: Any,
    help: str = "",
    *,
    shown: str,
    default: str = "",
    table: str = "",
    end: str = "",
) -> Any:
    """Declare a field of a dataclass as a key, whose value is `value` if it is left out."""
    return field(default=value, metadata={"key": Key(name, read, help, shown, default, table, end)})


def keys_of(section: type) -> dict[str, Key]:
    """Return the declared keys of a class by the names of their fields."""
    found = {each.name: each.metadata.get("key") for each in fields(section)}
    return {name: each for name, each in found.items() if each is not None}


def read_keys(
    section: type, table: TomlTable, readers: Mapping[str, Callable[..., Any]] | None = None
) -> dict[str, Any]:
    """Return the declared keys' values as keywords of the class. Keys with a table are in those
    below `table`. `readers` has other readers by the names of keys."""
    values: dict[str, Any] = {}
    defaults = {each.name: each.default for each in fields(section)}
    for name, each in keys_of(section).items():
        of = table.table(each.table) if each.table else table
        value = of.take(each.name, (readers or {}).get(each.name, each.read), defaults[name])
        if each.end and isinstance(value, tuple):
            value, values[each.end] = value
        values[name] = value
    return values


class TomlTable:
    """A table of a TOML file. A key is known once it has been read with `take`."""

    def __init__(
        self, values: Toml, source: str, place: str, errors: dict[str, ConfigError] | None = None
    ) -> None:
        """`errors` are those of the whole file, by place."""
        self._values, self._source, self._place = values, source, place
        self._errors = {} if errors is None else errors
        self._known: set[str] = set()
        self._children: dict[str, TomlTable] = {}
        #: Whether reading it has stopped at an error, so that not all of its keys are known.
        self._is_given_up = False

    def fail(self, key: str, text: str, hint: str = "") -> NoReturn:
        """Raise an error of this table, or one that it has already: the new one may only follow
        from that."""
        for place, error in self._errors.items():
            if place.startswith(f"{self._place}."):
                raise error
        raise self.error(self.at(key), text, hint)

    def attempt(self, read: Callable[[], T], default: T) -> T:
        """Return what `read` returns, which reads this table, or the default if it fails."""
        try:
            return read()
        except ConfigError:
            self._is_given_up = True
            return default

    def give_up_if_wrong(self) -> bool:
        """Return whether there are errors so far; then the table is not read."""
        self._is_given_up = bool(self._errors)
        return self._is_given_up

    def at(self, key: str) -> str:
        """Return the place of a key: the place of the table, a dot and the key."""
        return f"{self._place}.{key}" if self._place else key

    def names(self) -> list[str]:
        return list(self._values)

    def is_table(self, key: str) -> bool:
        return isinstance(self._values.get(key), dict)

    def take(self, key: str, read: Callable[..., T], default: Any) -> Any:
        """Return the value of a key, or the default if it is not there or `read` refuses it."""
        self._known.add(key)
        if key not in self._values:
            return default
        try:
            return read(self._values[key])
        except Refused as error:
            text = error.text.removeprefix("size: ").removeprefix("time: ").removeprefix("cores: ")
            self.error(self.at(key), text, error.hint)
            return default

    def table(self, key: str) -> TomlTable:
        """Return the table below this key, which is empty if the key is not there. It is one for
        all that read it, so that each key is known which any of them reads."""
        if key not in self._children:
            read = partial(read_table, self.at(key))
            values = self.take(key, read, {})
            self._children[key] = TomlTable(values, self._source, self.at(key), self._errors)
        return self._children[key]

    def tables(self, key: str) -> list[TomlTable] | None:
        """Return the list of tables of this key, or None if the key is not there. The caller checks
        them with `done`."""
        values = self.take(key, partial(read_tables, self.at(key)), None)
        if values is None:
            return None
        return [
            TomlTable(value, self._source, f"{self.at(key)}[{number}]", self._errors)
            for number, value in enumerate(values)
        ]

    def done(self) -> None:
        """Find keys of this table, and of those below, that were never read."""
        if self._is_given_up:
            return
        others = f"known keys: {', '.join(sorted(self._known))}" if self._known else ""
        for key in self._values:
            if key not in self._known:
                children = self._children.values()
                homes = [f"[{child._place}]" for child in children if key in child._known]
                hint = f"it belongs in {' or '.join(homes)}"
                if not homes:
                    hint = suggestion(key, self._known, others=others)
                self.error(self.at(key), "unknown key", hint)
        for child in self._children.values():
            child.done()

    def refuse_errors(self) -> None:
        """Raise ConfigError if the file has errors: each is a line of it."""
        first, *others = self._errors.values() or [None]
        if first is not None:
            if others:
                raise ConfigError("config", "\n".join(map(str, self._errors.values())))
            raise first

    def error(self, place: str, text: str, hint: str = "") -> ConfigError:
        """Note an error, unless one of the same place is known, and return it."""
        error = ConfigError("config", f"{self._source}: {place}: {text}", hint=hint)
        return self._errors.setdefault(place, error)


def suggestion(
    word: str, known: Collection[str], show: Callable[[object], str] = str, *, others: str
) -> str:
    """Return a hint with the known word that resembles this one most, or `others` if none does."""
    near = get_close_matches(word, known, 1)
    return f"did you mean {show(near[0])}?" if near else others


def wrong(value: object, what: str, example: str) -> Refused:
    return Refused("config", f"{value!r} is not {what}", hint=f"write {example}")


def read_table(place: str, value: object) -> Toml:
    if not isinstance(value, dict):
        raise wrong(value, "a table", f"[{place}], and its keys below")
    return value


def read_tables(place: str, value: object) -> list[Toml]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong(value, "a list of tables", f"[[{place}]], and its keys below")
    return value


def read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(value, "true or false", "true or false")
    return value


@dataclass(frozen=True, slots=True)
class FlagOr:
    """Reads true, false or one of these words."""

    words: tuple[str, ...]

    def __call__(self, value: object) -> bool | str:
        if not isinstance(value, bool) and value not in self.words:
            known = ", ".join(f'"{word}"' for word in self.words)
            raise wrong(value, "known", f"true, false or {known}")
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
    """Return a name that can be written as in --io NAME=200M."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value, re.ASCII):
        raise wrong(value, "a name of letters, digits, dots, - and _", '"data"')
    return value


def read_names(value: object) -> list[str]:
    if not isinstance(value, list):
        raise wrong(value, "a list of names", '["alice", "bob"]')
    return [read_name(item) for item in value]


def read_path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise wrong(value, "an absolute path", '"/data"')
    return value


def read_weight(value: object) -> Fraction:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1_000_000:
        raise wrong(value, "a number above 0", "2 or 0.5")
    return Fraction(str(value))


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one of these words."""

    words: tuple[str, ...]

    def __call__(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise wrong(value, "known", " or ".join(f'"{word}"' for word in self.words))
        return value


def one_of(*words: str) -> OneOf:
    return OneOf(words)
