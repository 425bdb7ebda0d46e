"""Where an installation has what. Pure.

Paths are as the installed system sees them, also when everything is put below another root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from drfd import paths

UNITS = ("drfd.slice", "drfd-jobs.service", "drfd-launcher.service", "drfd.service")
SLICE, JOBS, LAUNCHER, CONTROLLER = UNITS
USER = "drfd"

STATE = str(paths.SYSTEM_STATE)
RUN = str(paths.SYSTEM_SOCKET.parent)
CONFIG = str(paths.SYSTEM_CONFIG)
UNIT_DIRECTORY = "/etc/systemd/system"
SYSUSERS = "/etc/sysusers.d/drfd.conf"
#: Nobody else makes these.
OWN_FILES = (*(f"{UNIT_DIRECTORY}/{unit}" for unit in UNITS), SYSUSERS)
#: What was installed, for the next installation and for the removal.
RECORD = f"{STATE}/install.json"
#: A file for each attempt that is not over.
ATTEMPTS = f"{STATE}/launcher/attempts"

#: Seconds that the end of the jobs at a shutdown may take beyond their grace time.
_AFTER_GRACE_S = 5


@dataclass(frozen=True, slots=True)
class Environment:
    """The Python environment that is installed from."""

    python: str
    #: Where its programs are.
    bin: str
    #: Changes whenever any of its packages does.
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Wanted:
    #: Path → content, all readable by everybody.
    files: Mapping[str, str]
    #: Path → where the link leads.
    links: Mapping[str, str]
    #: The configuration for a system that has none.
    default_config: str
    #: Where it is kept as it was shipped.
    shipped_config: str
    record: str


@dataclass(frozen=True, slots=True)
class Record:
    fingerprint: str
    prefix: str
    files: frozenset[str]
    links: Mapping[str, str]


def wanted(
    environment: Environment,
    prefix: str,
    shipped: Mapping[str, str],
    generated: Mapping[str, str],
    *,
    grace_s: int,
) -> Wanted:
    """`shipped`: the files of `systemd/`; `generated`: man pages and completions, by their path
    below the prefix."""
    fills = {"@PYTHON@": environment.python, "@STOP_S@": str(grace_s + _AFTER_GRACE_S)}
    shipped_config = f"{prefix}/share/drfd/drfd.toml"
    files = {f"{UNIT_DIRECTORY}/{name}": _filled(shipped[name], fills) for name in UNITS}
    files[SYSUSERS] = shipped["sysusers.conf"]
    files[shipped_config] = shipped["drfd.toml"]
    for path, content in generated.items():
        files[str(PurePosixPath(prefix, path))] = content
    links = {f"{prefix}/bin/{name}": f"{environment.bin}/{name}" for name in ("drf", "drfd")}
    return Wanted(
        files=files,
        links=links,
        default_config=shipped["drfd.toml"],
        shipped_config=shipped_config,
        record=_record_text(environment.fingerprint, prefix, files, links),
    )


def read_record(text: str) -> Record | None:
    """None: it is not one of ours."""
    try:
        fields = json.loads(text)
        return Record(
            fingerprint=fields["fingerprint"],
            prefix=fields["prefix"],
            files=frozenset(fields["files"]),
            links=fields["links"],
        )
    except (ValueError, KeyError, TypeError):
        return None


def _filled(text: str, fills: Mapping[str, str]) -> str:
    for mark, value in fills.items():
        # In a unit, % begins a specifier.
        text = text.replace(mark, value.replace("%", "%%"))
    return text


def _record_text(
    fingerprint: str, prefix: str, files: Mapping[str, str], links: Mapping[str, str]
) -> str:
    fields = {
        "fingerprint": fingerprint,
        "prefix": prefix,
        "files": sorted(files),
        "links": dict(sorted(links.items())),
    }
    return json.dumps(fields, indent=1) + "\n"
