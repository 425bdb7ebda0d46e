"""How much processes wait for each other: the kernel's pressure figures (accounting/psi.rst)."""

from __future__ import annotations

from pathlib import Path

PRESSURE = Path("/proc/pressure")
_RESOURCES = ("cpu", "memory", "io")

#: Of the last ten seconds, the percentage in which some process waited, and in which all did; None:
#: the kernel does not say.
Pressure = dict[str, dict[str, float | None]]


def read_pressure(directory: Path = PRESSURE) -> Pressure | None:
    """By resource; None where the kernel keeps no such figures."""
    found = {name: _read(directory / name) for name in _RESOURCES}
    known = {name: each for name, each in found.items() if each is not None}
    return {name: known.get(name, _figures("")) for name in _RESOURCES} if known else None


def _read(path: Path) -> dict[str, float | None] | None:
    try:
        return _figures(path.read_text())
    except OSError:
        # Not built in, or switched off (EOPNOTSUPP).
        return None


def _figures(text: str) -> dict[str, float | None]:
    """Of lines like "some avg10=0.12 avg60=0.05 avg300=0.01 total=123"."""
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    return {kind: _avg10(lines.get(kind)) for kind in ("some", "full")}


def _avg10(line: str | None) -> float | None:
    words = dict(word.partition("=")[::2] for word in (line or "").split()[1:])
    try:
        return float(words["avg10"])
    except (KeyError, ValueError):
        return None
