"""The reference of the configuration's keys, the file that an installation begins with, and the
JSON schemas of the configuration and of replies.

`python -m tests.config_reference` writes both, and with a directory the schemas into it. Keys come
from where they are declared; tables that a site names or repeats are shown by examples.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

import msgspec

from drfd.common.strict_table import Key, keys_of
from drfd.common.units import PLAIN_AXES
from drfd.core.fairness.rules import Preempting, ReservationSettings, Scheduling
from drfd.daemon import server  # noqa: F401, which registers verbs
from drfd.daemon.config import Config, Defaults, HistorySettings, MetricsSettings, UserLimits
from drfd.daemon.handlers.requests import VERBS
from drfd.launcher.settings import LauncherSettings, SlurmSettings
from drfd.protocol.replies import WaitReply
from drfd.protocol.requests import REQUESTS

#: The classes with the keys of each table. Those that have several tables name them.
_SECTIONS: dict[str, tuple[type, ...]] = {
    "capacity": (Config,),
    "slurm": (SlurmSettings,),
    "defaults": (Defaults,),
    "scheduling": (Scheduling, ReservationSettings, Preempting),
    "enforcement": (Config, LauncherSettings),
    "limits": (UserLimits,),
    "history": (HistorySettings,),
    "metrics": (MetricsSettings,),
    "daemon": (Config, LauncherSettings),
}
_SHARED = (Config, LauncherSettings)

_HEAD = """\
# Configuration of drfd: see drfd.toml(5). A key behind a bare # has its default there; the others
# are examples. drfd check-config FILE says whether a file is good; systemctl reload drfd puts it
# into force. Files drfd.d/*.toml beside this one are read after it.

"""
#: The tables with their examples. A line of dots stands for the declared keys of its table.
_TEXT = (Path(__file__).parent / "data/config_reference.txt").read_text()
_ROOT = Path(__file__).parent.parent


def reference() -> str:
    """Return the block of docs/configuration.md."""
    found = []
    for title, lines in _tables():
        found += [title, *(_line(each) if isinstance(each, Key) else each for each in lines), ""]
    return "\n".join(found)


def shipped() -> str:
    """Return systemd/drfd.toml: all that is not a default is commented out."""
    found = []
    for title, lines in _tables():
        # Keys of Slurm are a mistake while no node is Slurm's.
        is_real = any(isinstance(each, Key) for each in lines) and not title.startswith("[slurm]")
        found.append(title if is_real else f"# {title}")
        for each in lines:
            text = _line(each) if isinstance(each, Key) else each
            is_default = isinstance(each, Key) and not each.default and is_real
            found.append(f"{'#' if is_default else '# '}{text}")
        found.append("")
    return _HEAD + "\n".join(found)


def _tables() -> Iterator[tuple[str, list[str | Key]]]:
    """Yield the tables, each with its first line, and its other lines or keys."""
    for part in _TEXT.rstrip().split("\n\n"):
        title, *lines = part.split("\n")
        name = re.split(r"[\]\s]", title.strip("["))[0]
        yield title, [key for line in lines for key in (_keys(name) if line == "..." else [line])]


def _keys(table: str) -> list[Key]:
    found = [(section, each) for section in _SECTIONS[table] for each in keys_of(section).values()]
    return [each for section, each in found if section not in _SHARED or each.table == table]


def _line(key: Key) -> str:
    default = f"default: {key.default}" if key.default else ""
    comment = "; ".join(filter(None, (key.help, default)))
    return f"{f'{key.name} = {key.shown}':<24}  # {comment}".removesuffix("  # ").rstrip()


def config_schema() -> dict[str, Any]:
    """Return a JSON schema of the file, for editors."""
    tables: list[tuple[str, Any, Any]] = [
        *((name, list[dict[str, Any]], []) for name in ("disk", "window")),
        *((name, dict[str, Any], {}) for name in ("gres", "nodes", "pools", "users")),
    ]
    for table in _SECTIONS:
        keys = [(each.name, _type(each), msgspec.UNSET) for each in _keys(table)]
        if table == "capacity":
            keys += [(name, str | int | float, msgspec.UNSET) for name in PLAIN_AXES]
        struct = msgspec.defstruct(table, keys, kw_only=True, forbid_unknown_fields=True)
        tables.append((table, struct, msgspec.UNSET))
    return msgspec.json.schema(
        msgspec.defstruct("drfd", tables, kw_only=True, forbid_unknown_fields=True)
    )


def _type(key: Key) -> Any:
    value = tomllib.loads(f"x = {key.shown}")["x"]
    words = getattr(key.read, "words", ())
    kind: Any = Literal[words] if words else str | int | float
    if isinstance(value, bool | list):
        kind = list[str] if isinstance(value, list) else (bool | Literal[words] if words else bool)
    text = f"{key.help} (default: {key.default or key.shown})".strip()
    return Annotated[kind, msgspec.Meta(description=text)]


def reply_schema(name: str) -> dict[str, Any]:
    """Return a JSON schema of the reply to a verb, or of the lines of a stream."""
    known = VERBS[REQUESTS[name]]
    found = known.lines or get_type_hints(known.answer)["return"]
    if found is WaitReply:
        # msgspec knows no list of objects of two kinds: jobs and arrays.
        hints = {**get_type_hints(WaitReply, include_extras=True), "ended": list[Any]}
        found = TypedDict("WaitReply", hints)  # type: ignore[misc, no-redef]
    schemas, parts = msgspec.json.schema_components(
        get_args(found) or [found], schema_hook=lambda _: {"description": "any value"}
    )
    return {**(schemas[0] if len(schemas) == 1 else {"anyOf": [*schemas]}), "$defs": parts}


def main(schemas: list[str]) -> None:
    (_ROOT / "systemd/drfd.toml").write_text(shipped())
    document = _ROOT / "docs/configuration.md"
    head, fence, rest = document.read_text().partition("```toml\n")
    document.write_text(f"{head}{fence}{reference()}```{rest.partition('```')[2]}")

    for directory in schemas:
        found = {"config": config_schema()} | {name: reply_schema(name) for name in REQUESTS}
        for name, schema in found.items():
            Path(directory, f"{name}.json").write_text(json.dumps(schema, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
