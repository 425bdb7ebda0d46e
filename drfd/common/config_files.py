"""The files of a configuration: drfd.toml, and drfd.d/*.toml next to it, as one tree of tables."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

from drfd.common.errors import ConfigError
from drfd.common.strict_table import Toml

#: Tables of the main file without which other files may not be understood.
_NAMED = ("disk", "gres", "nodes")


def read_files(path: Path, check: Callable[[Toml, str], object] | None = None) -> Toml:
    """Return the tables of `path` and, if it is called drfd.toml, of drfd.d/*.toml next to it.
    Raises ConfigError, also if the file does not exist. `check` is called with the tables of each
    file by itself and the file's name, so that an error names the file. Limits of pools in a
    drop-in may name disks and countable resources of the main file, and its nodes are next to
    those: it is checked together with these."""
    tree = _read(path)
    if path.name == "drfd.toml":
        if check is not None:
            check(tree, str(path))
        for extra_path in _extras(path.parent / "drfd.d"):
            extra = _read(extra_path)
            if check is not None:
                alone: Toml = deepcopy({key: tree[key] for key in _NAMED if key in tree})
                _merge(alone, extra)
                check(alone, str(extra_path))
            _merge(tree, extra)
    return tree


def exists(path: Path) -> bool:
    """Return whether the file exists. Raises ConfigError if that cannot be seen."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from None
    return True


def _read(path: Path) -> Toml:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError("config", f"there is no configuration file {path}") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from None


def _extras(directory: Path) -> list[Path]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # Without these files the daemon would apply other rules than were written down.
        raise _unreadable(directory, error) from None
    return [directory / name for name in sorted(names) if name.endswith(".toml")]


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError("config", f"cannot read {path}: {error.strerror}")


def _merge(into: Toml, extra: Toml) -> None:
    """Merge tables; any other value of the later file replaces that of an earlier one."""
    for key, value in extra.items():
        earlier = into.get(key)
        if isinstance(value, dict) and isinstance(earlier, dict):
            _merge(earlier, value)
        else:
            into[key] = value
