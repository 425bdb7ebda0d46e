"""An installation as it is wanted, and the steps from the present state to it, in order. Pure.

Paths are those of the installed system, also if everything is put below another root. Jobs live in
a unit that only the removal stops, so they run on through an upgrade. If nothing has changed, there
are no steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from drfd.common import paths
from drfd.common.errors import Refused
from drfd.install.steps import (
    MakeDirectory,
    MakeLink,
    Note,
    RemoveEmpty,
    RemoveFile,
    RunProgram,
    Step,
    WriteFile,
)

UNITS = ("drfd.slice", "drfd-jobs.service", "drfd-launcher.service", "drfd.service")
SLICE, JOBS, LAUNCHER, CONTROLLER = UNITS
#: Only where nodes of Slurm's are configured.
SLURM_LAUNCHER = "drfd-slurm-launcher.service"
#: The services that start and stop by themselves, the controller last.
_SERVICES = (LAUNCHER, SLURM_LAUNCHER, CONTROLLER)
USER = "drfd"

STATE = str(paths.SYSTEM_STATE)
RUN = str(paths.SYSTEM_SOCKET.parent)
CONFIG = str(paths.SYSTEM_CONFIG)
UNIT_DIRECTORY = "/etc/systemd/system"
SYSUSERS = "/etc/sysusers.d/drfd.conf"
#: Files that only an installation of drfd creates.
OWN_FILES = (*(f"{UNIT_DIRECTORY}/{unit}" for unit in (*UNITS, SLURM_LAUNCHER)), SYSUSERS)
#: The record of what was installed, for the next installation and for the removal.
RECORD = f"{STATE}/install.json"
#: The directories with a file for each attempt that has not ended.
ATTEMPTS = (f"{STATE}/launcher/attempts", f"{STATE}/slurm-launcher/attempts")

#: Seconds that ending the jobs at a shutdown may take beyond their grace time.
_AFTER_GRACE_S = 5

#: Memory limit of the launcher and its runners together, as a part of the machine. A runner takes
#: 3 MB, and a job whose runner is killed is LOST: the limit is a protection against faults of
#: drfd, far above its use.
_LAUNCHER_MEMORY = "50%"
#: Limit on the processes of the launcher and its runners, as a part of the kernel's limit.
_LAUNCHER_TASKS = "50%"


@dataclass(frozen=True, slots=True)
class Environment:
    """The Python environment that drfd is installed from."""

    python: str
    #: The directory of its programs.
    bin: str
    #: Changes whenever one of its packages changes.
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything that an installation consists of."""

    #: Path → content; all files are readable by every user.
    files: Mapping[str, str]
    #: Path → target of the symbolic link.
    links: Mapping[str, str]
    #: The configuration for a system that has none.
    default_config: str
    #: The path of the configuration as it was shipped.
    shipped_config: str
    record: str


@dataclass(frozen=True, slots=True)
class Record:
    """The record of an earlier installation."""

    fingerprint: str
    prefix: str
    files: frozenset[str]
    links: Mapping[str, str]


def wanted_installation(
    environment: Environment,
    prefix: str,
    shipped: Mapping[str, str],
    generated: Mapping[str, str],
    *,
    grace_s: int,
    has_cgroups: bool = True,
    has_slurm: bool = False,
) -> Wanted:
    """Return what an installation consists of, with the launcher of Slurm's nodes if it has some.

    `shipped` are the files of `systemd/` by name, `generated` the man pages and completions by
    their path below the prefix. Without `has_cgroups` the jobs live in the launcher's cgroup, so
    that gets no limits, which would be limits of the jobs.
    """
    fills = unit_fills(environment.python, grace_s=grace_s, has_cgroups=has_cgroups)
    shipped_config = f"{prefix}/share/drfd/drfd.toml"
    units = (*UNITS, SLURM_LAUNCHER) if has_slurm else UNITS
    files = {f"{UNIT_DIRECTORY}/{name}": filled(shipped[name], fills) for name in units}
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
        record=record_text(environment.fingerprint, prefix, files, links),
    )


def read_record(text: str) -> Record | None:
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


def fingerprint_in(text: str) -> str:
    """Return the fingerprint of the environment that a record names."""
    found = read_record(text)
    return found.fingerprint if found else ""


def unit_fills(python: str, *, grace_s: int, has_cgroups: bool) -> dict[str, str]:
    """Return what takes the place of each mark in the units."""
    return {
        "@PYTHON@": python,
        "@STOP_S@": str(grace_s + _AFTER_GRACE_S),
        "@LAUNCHER_MEMORY@": _LAUNCHER_MEMORY if has_cgroups else "infinity",
        "@LAUNCHER_TASKS@": _LAUNCHER_TASKS if has_cgroups else "infinity",
    }


def filled(text: str, fills: Mapping[str, str]) -> str:
    """Return the text of a unit with its marks filled in."""
    for mark, value in fills.items():
        # In a unit, % begins a specifier: it is doubled in paths, but not in limits in percent.
        is_bound = value.rstrip("%").isdecimal()
        text = text.replace(mark, value if is_bound else value.replace("%", "%%"))
    return text


def record_text(
    fingerprint: str, prefix: str, files: Mapping[str, str], links: Mapping[str, str]
) -> str:
    fields = {
        "fingerprint": fingerprint,
        "prefix": prefix,
        "files": sorted(files),
        "links": dict(sorted(links.items())),
    }
    return json.dumps(fields, indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledState:
    """The present state of the system; only existing files, links and units are listed."""

    #: Path → content, of the files that are wanted, were installed, or may be in the way.
    files: Mapping[str, str]
    #: Path → target of the symbolic link.
    links: Mapping[str, str]
    directories: frozenset[str]
    record: Record | None
    has_user: bool
    active: frozenset[str]
    enabled: frozenset[str]
    #: Number of attempts of jobs that have not ended.
    attempts: int = 0
    #: Whether jobs of a private instance live in drfd's slice too.
    slice_is_shared: bool = False


def plan_install(wanted: Wanted, seen: InstalledState, *, is_staged: bool) -> list[Step]:
    """Return the steps of an installation.

    With `is_staged` they only write files, for a system that is not running. Raises Refused if
    something that is not from an installation is in the way.
    """
    changed = [path for path, content in wanted.files.items() if seen.files.get(path) != content]
    steps: list[Step] = []
    if not is_staged and _is_left(SLURM_LAUNCHER, wanted, seen):
        steps.append(RunProgram(("systemctl", "disable", "--now", SLURM_LAUNCHER)))
    steps += [WriteFile(path, wanted.files[path]) for path in changed]
    steps += _links(wanted, seen)
    steps += _leftovers(wanted, seen)
    steps += _config(wanted, seen, is_shipped_new=wanted.shipped_config in changed)
    if not is_staged:
        steps += _services(wanted, seen, changed)
    if seen.files.get(RECORD) != wanted.record:
        if STATE not in seen.directories:
            steps.append(MakeDirectory(STATE))
        # The record is written last, so that an interrupted installation is done again.
        steps.append(WriteFile(RECORD, wanted.record))
    return steps


def plan_uninstall(
    seen: InstalledState, drf: tuple[str, ...], *, kill_jobs: bool, purge: bool, grace_s: int
) -> list[Step]:
    """Return the steps of a removal. Raises Refused while jobs run, unless they are to be killed.

    `drf` is the command that runs the command line; jobs have `grace_s` seconds to end.
    """
    if seen.attempts and not kill_jobs:
        raise Refused(
            "jobs-run",
            f"{seen.attempts} {'job is' if seen.attempts == 1 else 'jobs are'} not over yet",
            hint="wait for them (drf drain, drf status), or say --kill-jobs",
        )
    steps: list[Step] = []
    known = [unit for unit in (*UNITS, SLURM_LAUNCHER) if _unit_file(unit) in seen.files]
    if seen.attempts and CONTROLLER in seen.active:
        for unit in (LAUNCHER, *({SLURM_LAUNCHER} & {*known})):
            if unit not in seen.active:
                # Only the launcher can stop the jobs in an orderly way.
                steps.append(RunProgram(("systemctl", "start", unit), hint=_WITHOUT_LAUNCHER))
        steps.append(
            RunProgram(
                (*drf, "shutdown", "--kill-jobs"),
                limit_s=grace_s + _END_S,
                hint=f"drf status tells what still runs; {_WITHOUT_LAUNCHER}",
            )
        )
    services = [unit for unit in reversed(_SERVICES) if unit in known]
    if services:
        steps.append(RunProgram(("systemctl", "stop", *services)))
    enabled = [unit for unit in known if unit in seen.enabled]
    if enabled:
        steps.append(RunProgram(("systemctl", "disable", *enabled)))
    steps += [RemoveFile(path) for path in sorted(seen.files) if path not in _KEPT]
    steps += [RemoveFile(path) for path in sorted(_ours(seen))]
    steps += [RemoveEmpty(path) for path in _directories(seen)]
    if known:
        steps.append(RunProgram(("systemctl", "daemon-reload")))
    if JOBS in seen.active:
        # Its unit file refuses a manual stop (RefuseManualStop=), and has been removed by now.
        steps.append(RunProgram(("systemctl", "stop", JOBS), limit_s=grace_s + _END_S))
    if SLICE in seen.active and not seen.slice_is_shared:
        # Without this step the empty slice would stay until the next boot.
        steps.append(RunProgram(("systemctl", "stop", SLICE)))
    if RUN in seen.directories:
        steps.append(RemoveFile(RUN))
    if purge:
        kept = (STATE, _parent(CONFIG))
        steps += [RemoveFile(path) for path in kept if path in seen.directories]
        if seen.has_user:
            steps.append(RunProgram(("userdel", USER)))
    else:
        if RECORD in seen.files:
            steps.append(RemoveFile(RECORD))
        steps += [
            Note(f"kept: {path} (--purge removes it)")
            for path in (STATE, _parent(CONFIG))
            if path in seen.directories
        ]
    return steps


def closing_words(standing: Mapping[str, object] | None, *, is_as_before: bool) -> list[str]:
    """Return the last lines that an installation prints.

    `standing` is the daemon's report, or None if it does not answer. If nothing had to be done
    (`is_as_before`), only problems are mentioned.
    """
    if standing is None:
        return ["note: drfd does not answer yet: systemctl status drfd tells why"]
    words = []
    if standing.get("draining"):
        words.append(
            "note: the queue is still drained, as it was left: nothing starts until drf undrain"
        )
    if standing.get("launcher") != "connected":
        words.append(
            "note: no job starts while the launcher is away: systemctl status drfd-launcher "
            "tells why"
        )
    elif not is_as_before:
        words.append("drfd runs; try drf doctor")
    return words


#: Seconds that ending all jobs may take beyond their grace time, on a slow and busy machine.
_END_S = 300
#: The hint where the controller cannot stop the jobs, and systemd has to.
_WITHOUT_LAUNCHER = (
    "after systemctl stop drfd, the same command lets systemd stop the jobs, and they end as LOST"
)
#: Files that stay when an installation is removed.
_KEPT = (CONFIG, RECORD)


def _links(wanted: Wanted, seen: InstalledState) -> list[Step]:
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


def _leftovers(wanted: Wanted, seen: InstalledState) -> list[Step]:
    """Return steps that remove what an earlier version, or one with another prefix, installed."""
    if seen.record is None:
        return []
    files = seen.record.files & set(seen.files) - set(wanted.files)
    return [RemoveFile(path) for path in sorted({*files, *(_ours(seen) - set(wanted.links))})]


def _is_left(unit: str, wanted: Wanted, seen: InstalledState) -> bool:
    """Return whether an earlier installation has put this unit there, and this one has none."""
    path = _unit_file(unit)
    is_ours = seen.record is not None and path in seen.record.files
    return is_ours and path in seen.files and path not in wanted.files


def _ours(seen: InstalledState) -> set[str]:
    """Return the links that an installation has made and nobody has changed."""
    if seen.record is None:
        return set()
    return {path for path, target in seen.record.links.items() if seen.links.get(path) == target}


def _directories(seen: InstalledState) -> list[str]:
    """Return the directories that the installation may have created, innermost first."""
    if seen.record is None:
        return []
    # Directories of every system.
    kept = {f"{seen.record.prefix}/share", f"{seen.record.prefix}/share/man"}
    found = {_parent(SYSUSERS)} & {_parent(path) for path in seen.record.files}
    for path in seen.record.files:
        while (path := _parent(path)).startswith(f"{seen.record.prefix}/share/"):
            found.add(path)
    return sorted(found - kept, reverse=True)


def _config(wanted: Wanted, seen: InstalledState, *, is_shipped_new: bool) -> list[Step]:
    there = seen.files.get(CONFIG)
    if there is None:
        return [WriteFile(CONFIG, wanted.default_config)]
    if there == wanted.default_config or not is_shipped_new:
        return []
    return [Note(f"{CONFIG} is left as it is; this version's default is {wanted.shipped_config}")]


def _services(wanted: Wanted, seen: InstalledState, changed: list[str]) -> list[Step]:
    steps: list[Step] = []
    if not seen.has_user:
        steps.append(RunProgram(("systemd-sysusers", SYSUSERS)))
    units = [unit for unit in (*UNITS, SLURM_LAUNCHER) if _unit_file(unit) in wanted.files]
    if any(_unit_file(unit) in changed for unit in units) or _is_left(SLURM_LAUNCHER, wanted, seen):
        steps.append(RunProgram(("systemctl", "daemon-reload")))
    services = [unit for unit in _SERVICES if unit in units]
    missing = [unit for unit in (JOBS, *services) if unit not in seen.enabled]
    if missing:
        steps.append(RunProgram(("systemctl", "enable", *missing)))
    if JOBS not in seen.active:
        steps.append(RunProgram(("systemctl", "start", JOBS)))
    is_same = seen.files.get(RECORD) == wanted.record
    for unit in services:
        if not is_same or _unit_file(unit) in changed or unit not in seen.active:
            steps.append(RunProgram(("systemctl", "restart", unit)))
    return steps


def _unit_file(unit: str) -> str:
    return f"{UNIT_DIRECTORY}/{unit}"


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
