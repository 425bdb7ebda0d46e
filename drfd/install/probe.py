"""Inspection of the system, the Python environment and its trustworthiness, and shipped files.

An environment may become a service if only root can change its files and all users can read them.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import stat
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from drfd.common import paths
from drfd.common.errors import HostError
from drfd.install import package, plan
from drfd.install.plan import Environment, InstalledState, Record, Wanted
from drfd.install.steps import below, run

_ROOT = frozenset({0})


def fault_of_files(
    trees: Iterable[str], places: Iterable[str], owners: Collection[int] = _ROOT, top: str = "/"
) -> str | None:
    """Return the first reason not to trust these files, in a sentence, or None if there is none.

    `trees` are checked with everything below them, `places` (files or directories) alone; the
    directories from `top` down to each count too.
    """
    known: set[str] = set()
    for path in _paths_to_check(trees, places, top):
        if path not in known:
            known.add(path)
            found = _fault_of(path, owners)
            if found is not None:
                return found
    return None


def _paths_to_check(trees: Iterable[str], places: Iterable[str], top: str) -> Iterator[str]:
    for place in (*places, *trees):
        for target in _link_targets(place):
            yield from _ancestors(target, top)
    for tree in trees:
        for directory, _, files in os.walk(tree):
            yield directory
            yield from (os.path.join(directory, name) for name in files)


def _link_targets(path: str) -> Iterator[str]:
    """Yield the path, the target of each link on the way, and the resolved path."""
    yield path
    for _ in range(40):
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        yield path
    yield os.path.realpath(path)


def _ancestors(path: str, top: str) -> Iterator[str]:
    """Yield the directories from `top` down to the path, both included."""
    parts = os.path.relpath(path, top).split(os.sep)
    yield top
    if parts[0] == os.pardir:
        return
    for part in parts:
        top = os.path.join(top, part)
        yield top


def _fault_of(path: str, owners: Collection[int]) -> str | None:
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if status.st_uid not in owners:
        return f"{path} belongs to uid {status.st_uid}, who could change it"
    if stat.S_ISLNK(status.st_mode):
        return None
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022:
        return f"{path} can be written by others than root (mode {mode:o})"
    needed = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
    # Compiled modules need not be readable: Python takes the sources. This run itself may have
    # written them under a strict umask.
    if mode & needed != needed and not path.endswith((".pyc", "/__pycache__")):
        return f"{path} cannot be read by all users (mode {mode:o})"
    return None


#: The command that runs `drf` of this environment.
DRF = (sys.executable, "-I", "-m", "drfd_cli")
#: The same command for the system's daemon, whatever the environment says.
ASK = (*DRF, "--socket", str(paths.SYSTEM_SOCKET))

#: Timeout of a program that only reads, in seconds.
_ANSWER_S = 120.0
#: Number of attempts to see a launcher that was just started, and seconds between them.
_TRIES, _BETWEEN_S = 10, 1.0


def environment() -> Environment:
    return Environment(
        python=sys.executable, bin=sysconfig.get_path("scripts"), fingerprint=_fingerprint()
    )


def is_packaged(root: Path) -> bool:
    """Return whether Debian's package owns what is below `root`, or is this environment."""
    return sys.prefix == package.ENVIRONMENT or below(root, package.MARK).exists()


def distrust() -> str | None:
    """Return why this environment is not fit for a service, or None if it is."""
    packages = [find_spec(name) for name in ("drfd", "drfd_cli")]
    trees = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    trees += [path for spec in packages if spec for path in spec.submodule_search_locations or ()]
    places = [sys.executable, sysconfig.get_path("scripts"), sysconfig.get_path("stdlib")]
    places += [f"{sys.prefix}/pyvenv.cfg"] if sys.prefix != sys.base_prefix else []
    places += [path for path in sys.path if os.path.exists(path)]
    return fault_of_files(dict.fromkeys(trees), dict.fromkeys(places))


def shipped() -> dict[str, str]:
    """Return the files of `systemd/` by name."""
    here = Path(__file__).parent
    # In a checkout, the directory is at its top.
    for place in (here / "systemd", here.parent.parent / "systemd"):
        if place.is_dir():
            return {path.name: path.read_text() for path in place.iterdir() if path.is_file()}
    raise HostError("install", f"{here} has no systemd/: this is not a whole drfd")


def generated() -> dict[str, str]:
    """Return man pages and completions, which `drf man` writes, by their path below the prefix."""
    with tempfile.TemporaryDirectory(prefix="drfd-install-") as place:
        command = (*DRF, "man", place)
        done = run(command, _ANSWER_S)
        if done.returncode != 0:
            raise HostError("install", f"the man pages cannot be made: {done.stderr.strip()}")
        pages = (path for path in Path(place).rglob("*") if path.is_file())
        return {str(path.relative_to(place)): path.read_text() for path in pages}


def record(root: Path) -> Record | None:
    text = _texts(root, [plan.RECORD]).get(plan.RECORD)
    return None if text is None else plan.read_record(text)


def seen(root: Path, wanted: Wanted | None) -> InstalledState:
    """Return the state of the wanted files or, without `wanted`, of the installed ones."""
    before = record(root)
    files = {*plan.OWN_FILES, plan.CONFIG, plan.RECORD} | (before.files if before else set())
    links = set(before.links if before else ())
    if wanted is not None:
        files |= set(wanted.files)
        links |= set(wanted.links)
    states = _unit_states() if str(root) == "/" else {}
    return InstalledState(
        files=_texts(root, files | links),
        links={
            path: os.readlink(below(root, path)) for path in links if below(root, path).is_symlink()
        },
        directories=frozenset(
            path
            for path in (plan.STATE, plan.RUN, str(Path(plan.CONFIG).parent))
            if below(root, path).is_dir()
        ),
        record=before,
        has_user=_has_user(),
        active=frozenset(unit for unit, (active, _) in states.items() if active == "active"),
        enabled=frozenset(unit for unit, (_, enabled) in states.items() if enabled == "enabled"),
        attempts=sum(_count(below(root, path)) for path in plan.ATTEMPTS),
        slice_is_shared=_is_shared(Path("/sys/fs/cgroup", plan.SLICE)),
    )


def standing() -> dict[str, object] | None:
    """Return the report of the system's daemon (`drf doctor`), or None if it does not answer.

    Waits for a launcher that has just been started.
    """
    found: dict[str, object] | None = None
    for _ in range(_TRIES):
        done = run((*ASK, "doctor", "--json"), _ANSWER_S)
        found = json.loads(done.stdout) if done.returncode == 0 else None
        if found is not None and found.get("launcher") == "connected":
            break
        time.sleep(_BETWEEN_S)
    return found


def _texts(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Return path → content of the regular files among these paths."""
    found = {}
    for name in names:
        path = below(root, name)
        if path.is_file() and not path.is_symlink():
            found[name] = path.read_text(errors="replace")
    return found


def _count(directory: Path) -> int:
    try:
        return len(os.listdir(directory))
    except FileNotFoundError:
        return 0


def _is_shared(slice_group: Path) -> bool:
    """Return whether the slice has cgroups other than that of the installation's jobs."""
    try:
        return any(path.is_dir() and path.name != plan.JOBS for path in slice_group.iterdir())
    except FileNotFoundError:
        return False


def _has_user() -> bool:
    try:
        pwd.getpwnam(plan.USER)
    except KeyError:
        return False
    return True


def _unit_states() -> dict[str, tuple[str, str]]:
    """Return unit → (ActiveState, UnitFileState)."""
    names = ("Id", "ActiveState", "UnitFileState")
    units = (*plan.UNITS, plan.SLURM_LAUNCHER)
    command = ("systemctl", "show", f"--property={','.join(names)}", *units)
    done = run(command, _ANSWER_S)
    if done.returncode != 0:
        raise HostError("install", f"systemctl show failed: {done.stderr.strip()}")
    states = {}
    for block in done.stdout.split("\n\n"):
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        if fields.get("Id"):
            states[fields["Id"]] = (fields["ActiveState"], fields["UnitFileState"])
    return states


def _fingerprint() -> str:
    """Return a hash of all packages and their files, as their installer has recorded them."""
    packages = sorted(
        f"{each.name} {each.version}\n{each.read_text('RECORD') or ''}" for each in distributions()
    )
    return hashlib.sha256("\n".join([sys.version, *packages]).encode()).hexdigest()
