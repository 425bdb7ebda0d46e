"""The reference of the configuration's keys, and the file that an installation begins with.

`python -m drfd.daemon.reference` writes both into a checkout. Keys come from where they are
declared; tables that a site names or repeats are shown by examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from drfd.common.strict_table import Key, keys_of
from drfd.core.fairness.rules import Preempting, ReservationSettings, Scheduling
from drfd.daemon.config import Config, Defaults, HistorySettings, MetricsSettings, UserLimits
from drfd.launcher.settings import LauncherSettings, SlurmSettings

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
_TEXT = resources.files("drfd.daemon").joinpath("reference.txt").read_text()


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


def main(root: Path) -> None:
    (root / "systemd/drfd.toml").write_text(shipped())
    document = root / "docs/configuration.md"
    head, fence, rest = document.read_text().partition("```toml\n")
    document.write_text(f"{head}{fence}{reference()}```{rest.partition('```')[2]}")


if __name__ == "__main__":
    main(Path())
