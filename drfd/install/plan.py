"""From what a system has to what it should have: the steps, in order. Pure.

Jobs live in a unit that no step but the removal stops, so they run on through an upgrade; where
nothing has changed there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drfd.errors import Refused
from drfd.install import layout
from drfd.install.layout import Record, Wanted
from drfd.install.steps import (
    MakeDirectory,
    MakeLink,
    Note,
    Remove,
    RemoveEmpty,
    Run,
    Step,
    WriteFile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What there is now; what is not there is not in it."""

    #: Path → content, of the files that are wanted, were installed, or may be in the way.
    files: Mapping[str, str]
    #: Path → where the link leads.
    links: Mapping[str, str]
    directories: frozenset[str]
    record: Record | None
    has_user: bool
    active: frozenset[str]
    enabled: frozenset[str]
    #: Attempts of jobs that are not over.
    attempts: int = 0
    #: A private instance's jobs live there, too.
    slice_is_shared: bool = False


def plan_install(wanted: Wanted, seen: Seen, *, is_staged: bool) -> list[Step]:
    """`is_staged`: files alone, for a system that is not running. Raises Refused when something
    that is not ours is in the way."""
    changed = [path for path, content in wanted.files.items() if seen.files.get(path) != content]
    steps: list[Step] = [WriteFile(path, wanted.files[path]) for path in changed]
    steps += _links(wanted, seen)
    steps += _leftovers(wanted, seen)
    steps += _config(wanted, seen, is_shipped_new=wanted.shipped_config in changed)
    if not is_staged:
        steps += _services(wanted, seen, changed)
    if seen.files.get(layout.RECORD) != wanted.record:
        if layout.STATE not in seen.directories:
            steps.append(MakeDirectory(layout.STATE))
        # Last: an installation that was cut short is done again.
        steps.append(WriteFile(layout.RECORD, wanted.record))
    return steps


def plan_uninstall(seen: Seen, drf: tuple[str, ...], *, kill_jobs: bool, purge: bool) -> list[Step]:
    """`drf`: how the command line is run. Raises Refused while jobs run."""
    if seen.attempts and not kill_jobs:
        raise Refused(
            "jobs-run",
            f"{seen.attempts} {'job is' if seen.attempts == 1 else 'jobs are'} not over yet",
            hint="wait for them (drf drain, drf status), or say --kill-jobs",
        )
    steps: list[Step] = []
    if seen.attempts and layout.CONTROLLER in seen.active:
        steps.append(Run((*drf, "shutdown", "--kill-jobs")))
    known = [unit for unit in layout.UNITS if _unit_file(unit) in seen.files]
    services = [unit for unit in (layout.CONTROLLER, layout.LAUNCHER) if unit in known]
    if services:
        steps.append(Run(("systemctl", "stop", *services)))
    enabled = [unit for unit in known if unit in seen.enabled]
    if enabled:
        steps.append(Run(("systemctl", "disable", *enabled)))
    steps += [Remove(path) for path in sorted(seen.files) if path not in _KEPT]
    steps += [Remove(path) for path in sorted(_ours(seen))]
    steps += [RemoveEmpty(path) for path in _directories(seen)]
    if known:
        steps.append(Run(("systemctl", "daemon-reload")))
    if layout.JOBS in seen.active:
        # It refuses to be stopped by hand as long as its file says so.
        steps.append(Run(("systemctl", "stop", layout.JOBS)))
    if layout.SLICE in seen.active and not seen.slice_is_shared:
        # Empty, it would stay until the next boot.
        steps.append(Run(("systemctl", "stop", layout.SLICE)))
    if layout.RUN in seen.directories:
        steps.append(Remove(layout.RUN))
    if purge:
        kept = (layout.STATE, _parent(layout.CONFIG))
        steps += [Remove(path) for path in kept if path in seen.directories]
        if seen.has_user:
            steps.append(Run(("userdel", layout.USER)))
    else:
        if layout.RECORD in seen.files:
            steps.append(Remove(layout.RECORD))
        steps += [
            Note(f"kept: {path} (--purge removes it)")
            for path in (layout.STATE, _parent(layout.CONFIG))
            if path in seen.directories
        ]
    return steps


#: Not removed with the files of the installation.
_KEPT = (layout.CONFIG, layout.RECORD)


def _links(wanted: Wanted, seen: Seen) -> list[Step]:
    steps: list[Step] = []
    before = seen.record.links if seen.record else {}
    for path, target in wanted.links.items():
        there = seen.links.get(path)
        if there == target:
            continue
        if path in seen.files or (there is not None and there != before.get(path)):
            raise Refused(
                "in-the-way",
                f"{path} is there already, and not from an installation of drfd",
                hint="remove it, or install with another --prefix",
            )
        steps.append(MakeLink(path, target))
    return steps


def _leftovers(wanted: Wanted, seen: Seen) -> list[Step]:
    """What an earlier version, or one with another prefix, has installed."""
    if seen.record is None:
        return []
    files = seen.record.files & set(seen.files) - set(wanted.files)
    return [Remove(path) for path in sorted({*files, *(_ours(seen) - set(wanted.links))})]


def _ours(seen: Seen) -> set[str]:
    """Links that an installation has made, and nobody has changed."""
    if seen.record is None:
        return set()
    return {path for path, target in seen.record.links.items() if seen.links.get(path) == target}


def _directories(seen: Seen) -> list[str]:
    """Of what was installed, innermost first: those that it may have been the first to need."""
    if seen.record is None:
        return []
    # Every system has these two.
    kept = {f"{seen.record.prefix}/share", f"{seen.record.prefix}/share/man"}
    found = {_parent(layout.SYSUSERS)} & {_parent(path) for path in seen.record.files}
    for path in seen.record.files:
        while (path := _parent(path)).startswith(f"{seen.record.prefix}/share/"):
            found.add(path)
    return sorted(found - kept, reverse=True)


def _config(wanted: Wanted, seen: Seen, *, is_shipped_new: bool) -> list[Step]:
    there = seen.files.get(layout.CONFIG)
    if there is None:
        return [WriteFile(layout.CONFIG, wanted.default_config)]
    if there == wanted.default_config or not is_shipped_new:
        return []
    return [
        Note(f"{layout.CONFIG} is left as it is; this version's default is {wanted.shipped_config}")
    ]


def _services(wanted: Wanted, seen: Seen, changed: list[str]) -> list[Step]:
    steps: list[Step] = []
    if not seen.has_user:
        steps.append(Run(("systemd-sysusers", layout.SYSUSERS)))
    if any(_unit_file(unit) in changed for unit in layout.UNITS):
        steps.append(Run(("systemctl", "daemon-reload")))
    services = (layout.JOBS, layout.LAUNCHER, layout.CONTROLLER)
    missing = [unit for unit in services if unit not in seen.enabled]
    if missing:
        steps.append(Run(("systemctl", "enable", *missing)))
    if layout.JOBS not in seen.active:
        steps.append(Run(("systemctl", "start", layout.JOBS)))
    is_same = seen.files.get(layout.RECORD) == wanted.record
    for unit in (layout.LAUNCHER, layout.CONTROLLER):
        if not is_same or _unit_file(unit) in changed or unit not in seen.active:
            steps.append(Run(("systemctl", "restart", unit)))
    return steps


def _unit_file(unit: str) -> str:
    return f"{layout.UNIT_DIRECTORY}/{unit}"


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
