"""[gres] in the configuration: countable things by name, and what each single one is called."""

from __future__ import annotations

import re

from drfd.core.resources import Axes, Instances
from drfd.toml_table import Table, wrong

#: Becomes part of a variable's name, in capitals: two of them must never become the same one.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
#: What stands in a list of them, split by commas: a number, or as a driver writes it (GPU-…/1/0).
_INSTANCE = re.compile(r"[\w.:/+-]{1,128}", re.ASCII)


def read_gres(table: Table) -> Instances:
    """In the order of names; the instances of each in that of the file, which is the order in which
    they are given out."""
    found = []
    for name in sorted(table.names()):
        if not _NAME.fullmatch(name):
            hint = "use small letters, digits and _, beginning with a letter"
            table.fail(repr(name), "is not a name for a resource", hint=hint)
        if name in Axes().names:
            table.fail(name, "is a resource already", hint="choose another name")
        instances = table.take(name, _read_instances, None)
        twice = {each for each in instances if instances.count(each) > 1}
        if twice:
            table.fail(name, f"{min(twice)!r} is in the list twice")
        found.append((name, instances))
    return tuple(found)


def _read_instances(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong(value, "a list of numbers or names", "[0, 1]")
    return tuple(map(_read_instance, value))


def _read_instance(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not is_number and not (isinstance(value, str) and _INSTANCE.fullmatch(value)):
        raise wrong(value, "a number from 0 up, nor a name of letters, digits and .:/+-_", "0")
    return str(value)
