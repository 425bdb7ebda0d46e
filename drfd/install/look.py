"""What there is: on the system, in the Python environment, among the files that drfd ships."""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from drfd.errors import HostError
from drfd.install import layout, trust
from drfd.install.layout import Environment, Record, Wanted
from drfd.install.plan import Seen
from drfd.install.steps import below

#: How the command line of this very environment is run.
DRF = (sys.executable, "-I", "-m", "drfd_cli")


def environment() -> Environment:
    return Environment(
        python=sys.executable,
        bin=sysconfig.get_path("scripts"),
        fingerprint=_fingerprint(),
    )


def distrust() -> str | None:
    """Why this environment is not fit for a service; None: it is."""
    packages = [find_spec(name) for name in ("drfd", "drfd_cli")]
    trees = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    trees += [path for spec in packages if spec for path in spec.submodule_search_locations or ()]
    places = [sys.executable, sysconfig.get_path("scripts"), sysconfig.get_path("stdlib")]
    places += [f"{sys.prefix}/pyvenv.cfg"] if sys.prefix != sys.base_prefix else []
    places += [path for path in sys.path if os.path.exists(path)]
    return trust.problem(dict.fromkeys(trees), dict.fromkeys(places))


def shipped() -> dict[str, str]:
    """The files of `systemd/`, by name."""
    here = Path(__file__).parent
    # In a checkout they are at its top.
    for place in (here / "systemd", here.parent.parent / "systemd"):
        if place.is_dir():
            return {path.name: path.read_text() for path in place.iterdir() if path.is_file()}
    raise HostError("install", f"{here} has no systemd/: this is not a whole drfd")


def generated() -> dict[str, str]:
    """Man pages and completions as the command line writes them, by their path below the prefix."""
    with tempfile.TemporaryDirectory(prefix="drfd-install-") as place:
        command = (*DRF, "man", place)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise HostError("install", f"the man pages cannot be made: {done.stderr.strip()}")
        pages = (path for path in Path(place).rglob("*") if path.is_file())
        return {str(path.relative_to(place)): path.read_text() for path in pages}


def record(root: Path) -> Record | None:
    text = _texts(root, [layout.RECORD]).get(layout.RECORD)
    return None if text is None else layout.read_record(text)


def seen(root: Path, wanted: Wanted | None) -> Seen:
    """What there is of what is `wanted`, or (None) of what was installed."""
    before = record(root)
    files = {*layout.OWN_FILES, layout.CONFIG, layout.RECORD} | (before.files if before else set())
    links = set(before.links if before else ())
    if wanted is not None:
        files |= set(wanted.files)
        links |= set(wanted.links)
    states = _unit_states() if str(root) == "/" else {}
    return Seen(
        files=_texts(root, files | links),
        links={path: os.readlink(below(root, path)) for path in links if _is_link(root, path)},
        directories=frozenset(
            path
            for path in (layout.STATE, layout.RUN, str(Path(layout.CONFIG).parent))
            if below(root, path).is_dir()
        ),
        record=before,
        has_user=_has_user(),
        active=frozenset(unit for unit, (active, _) in states.items() if active == "active"),
        enabled=frozenset(unit for unit, (_, enabled) in states.items() if enabled == "enabled"),
        attempts=_count(below(root, layout.ATTEMPTS)),
        slice_is_shared=_is_shared(Path("/sys/fs/cgroup", layout.SLICE)),
    )


def _texts(root: Path, names: Iterable[str]) -> dict[str, str]:
    """The content of the plain files among them."""
    found = {}
    for name in names:
        path = below(root, name)
        if path.is_file() and not path.is_symlink():
            found[name] = path.read_text(errors="replace")
    return found


def _is_link(root: Path, path: str) -> bool:
    return below(root, path).is_symlink()


def _count(directory: Path) -> int:
    try:
        return len(os.listdir(directory))
    except FileNotFoundError:
        return 0


def _is_shared(slice_group: Path) -> bool:
    """Whether there are cgroups in it beside that of the installation's jobs."""
    try:
        return any(path.is_dir() and path.name != layout.JOBS for path in slice_group.iterdir())
    except FileNotFoundError:
        return False


def _has_user() -> bool:
    try:
        pwd.getpwnam(layout.USER)
    except KeyError:
        return False
    return True


def _unit_states() -> dict[str, tuple[str, str]]:
    """Unit → (ActiveState, UnitFileState)."""
    names = ("Id", "ActiveState", "UnitFileState")
    command = ("systemctl", "show", f"--property={','.join(names)}", *layout.UNITS)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError("install", f"systemctl show failed: {done.stderr.strip()}")
    states = {}
    for block in done.stdout.split("\n\n"):
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        if fields.get("Id"):
            states[fields["Id"]] = (fields["ActiveState"], fields["UnitFileState"])
    return states


def _fingerprint() -> str:
    """Of all packages, file by file, as their installer has recorded them."""
    packages = sorted(
        f"{each.name} {each.version}\n{each.read_text('RECORD') or ''}" for each in distributions()
    )
    return hashlib.sha256("\n".join([sys.version, *packages]).encode()).hexdigest()
