"""The fair-share tree in the configuration: [pools.…] and [users.…]."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from drfd.core.rules import Claim, Pool
from drfd.toml_table import Table, read_count_or_zero, read_names, read_weight, wrong
from drfd.units import parse_cores, parse_size

#: A part of a path such as "root.lab".
_NAME = re.compile(r"[\w-]+", re.ASCII)

_AMOUNTS: Mapping[str, Callable[..., int]] = {
    "cores": parse_cores,
    "memory": parse_size,
    "read": parse_size,
    "write": parse_size,
}


@dataclass
class Tree:
    """What the file says of pools and of users."""

    #: The names of the configured disks: "read:data" is an amount of one of them.
    disks: Sequence[str] = ()
    #: The names of the configured countables.
    gres: Sequence[str] = ()
    #: By dotted name below the root.
    pools: dict[str, Pool] = field(default_factory=dict)
    #: By (pool, user); the pool "" for users in none.
    members: dict[tuple[str, str], Claim] = field(default_factory=dict)
    _owner: dict[str, str] = field(default_factory=dict)

    def read_pools(self, table: Table, above: str = "") -> None:
        for name in table.names():
            if not _NAME.fullmatch(name):
                table.fail(repr(name), "is not a pool name", hint="use letters, digits, - and _")
            self._read_pool(table.table(name), f"{above}{name}")

    def read_users(self, table: Table) -> None:
        """[users.NAME]: those in no pool."""
        for name in table.names():
            self.members["", name] = Claim(**self._claim(table.table(name)))

    def _read_pool(self, table: Table, path: str) -> None:
        users = self._members(table, path)
        self.pools[path] = Pool(**self._claim(table), users=users)
        self.read_pools(table.table("pools"), f"{path}.")

    def _members(self, table: Table, path: str) -> frozenset[str] | None:
        """`users` is a list of names, or a table with a table for each."""
        names = table.take("users", _names_or_table, None)
        if names is None:
            return None
        for name in names:
            if name in self._owner:
                table.fail("users", f"{name} is already in pool {self._owner[name]}")
            self._owner[name] = path
        if isinstance(names, dict):
            each = table.table("users")
            for name in names:
                self.members[path, name] = Claim(**self._claim(each.table(name)))
        return frozenset(names)

    def _claim(self, table: Table) -> dict[str, Any]:
        weight = table.take("weight", _weight_or_table, Fraction(1))
        is_split = isinstance(weight, dict)
        return {
            "weight": Fraction(1) if is_split else weight,
            "weights": self._by_axis(table, "weight", read_weight) if is_split else {},
            "limit": self._by_axis(table, "limit"),
            "guarantee": self._by_axis(table, "guarantee"),
        }

    def _by_axis(
        self, table: Table, key: str, read: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """A table such as {cores = 4, memory = "8G", "read:data" = "1G", gpu = 1}."""
        amounts = table.table(key)
        parsers = dict(_AMOUNTS) | dict.fromkeys(self.gres, read_count_or_zero)
        if len(self.disks) > 1:
            parsers |= {
                f"{kind}:{disk}": parse_size for disk in self.disks for kind in ("read", "write")
            }
        found = {name: amounts.take(name, read or parse, None) for name, parse in parsers.items()}
        return {name: amount for name, amount in found.items() if amount is not None}


def _weight_or_table(value: object) -> Fraction | dict[str, Any]:
    return value if isinstance(value, dict) else read_weight(value)


def _names_or_table(value: object) -> list[str] | dict[str, Any]:
    if isinstance(value, dict):
        if not all(isinstance(each, dict) for each in value.values()):
            raise wrong(value, "a table of users", "[pools.lab.users.alice]")
        return value
    return read_names(value)
