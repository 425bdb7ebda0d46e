"""`drfd install` and `drfd uninstall`: the files of the service, and the few commands that follow.

The units are those of `systemd/`, with the path of this environment's Python. Jobs live in a unit
that only the removal stops, so they run on through an upgrade.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from drfd.common import paths
from drfd.common.errors import HostError, NotPermitted, Refused
from drfd.install.asked import ANSWERS, CONNECTED, DRAINED
from drfd.linux import service
from drfd.linux.own_process import RUN_MODULE


def distrust() -> str | None:
    """Return why this environment is not fit for a service, or None if it is."""
    packages = [find_spec(name) for name in ("drfd", "drfd_cli")]
    trees = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    trees += [path for spec in packages if spec for path in spec.submodule_search_locations or ()]
    places = [sys.executable, sysconfig.get_path("scripts"), sysconfig.get_path("stdlib")]
    places += [f"{sys.prefix}/pyvenv.cfg"] if sys.prefix != sys.base_prefix else []
    places += [path for path in sys.path if os.path.exists(path)]
    return fault_of_files(trees, places)


def fault_of_files(
    trees: Iterable[str],
    places: Iterable[str],
    owners: Collection[int] = frozenset({0}),
    top: str = "/",
) -> str | None:
    """Return a reason not to trust these files, in a sentence, or None if there is none.

    `trees` are checked with everything below them, `places` (files or directories) without; for
    each, the directories from `top` down to it and the targets of links count too.
    """
    waiting = [*places, *trees]
    for tree in trees:
        for directory, folders, files in os.walk(tree):
            waiting += (os.path.join(directory, name) for name in (*folders, *files))
    known: set[str] = set()
    while waiting:
        path = os.path.normpath(waiting.pop())
        if path in known:
            continue
        known.add(path)
        try:
            fault = _fault_of(path, os.lstat(path), owners)
            if os.path.islink(path):
                waiting.append(os.path.join(os.path.dirname(path), os.readlink(path)))
        except OSError as error:
            fault = f"{path}: {error.strerror}"
        if fault is not None:
            return fault
        if path != top:
            waiting.append(os.path.dirname(path))
    return None


def _fault_of(path: str, status: os.stat_result, owners: Collection[int]) -> str | None:
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


SLICE, JOBS, LAUNCHER = "drfd.slice", "drfd-jobs.service", "drfd-launcher.service"
#: Not enabled: the controller's unit starts the launcher, and that one its root helper.
SLURM_LAUNCHER, SLURM_ROOT = "drfd-slurm-launcher.service", "drfd-slurm-root.service"
CONTROLLER = "drfd.service"
UNITS = (SLICE, JOBS, LAUNCHER, SLURM_ROOT, SLURM_LAUNCHER, CONTROLLER)
#: The users of the controller and of the launcher of Slurm's nodes.
USER, SLURM_USER = "drfd", "drfd-slurm"
#: The environment of Debian's package.
PACKAGED = "/usr/lib/drfd"

STATE, RUN = str(paths.SYSTEM_STATE), str(paths.SYSTEM_SOCKET.parent)
CONFIG = str(paths.SYSTEM_CONFIG)
_UNIT_DIRECTORY = "/etc/systemd/system"
_SYSUSERS = "/etc/sysusers.d/drfd.conf"
#: The paths of all that an installation has put there, one a line, directories with a slash.
_LIST = f"{STATE}/installed"
#: Launcher → the directory with a file for each of its attempts that has not ended.
_ATTEMPTS = {
    LAUNCHER: f"{STATE}/launcher/attempts",
    SLURM_LAUNCHER: f"{STATE}/slurm-launcher/own/attempts",
}

#: The commands that run a module and `drf` of this environment.
_DRF = (*RUN_MODULE, "drfd_cli")
_SOCKET = str(paths.SYSTEM_SOCKET)
#: Default timeout of a program, in seconds: longer than systemd waits for the start of a service
#: with a long journal, which is ten minutes.
_LIMIT_S = 900.0
#: Seconds that ending all jobs may take beyond their grace time, on a slow and busy machine.
_END_S = 300
#: Seconds that the daemon may take to say how it is.
_ANSWER_S = 300.0
#: How much root reads of what a program of the service's user says.
_MOST_SAID = 300
#: The hint where the controller cannot stop the jobs, and systemd has to.
_WITHOUT_LAUNCHER = (
    "after systemctl stop drfd, the same command lets systemd stop the jobs, and they end as LOST"
)


@dataclass(frozen=True, slots=True)
class Target:
    """The system to change. Each change is printed, and may be repeated."""

    #: Its root directory. Any but "/" only has files put into it.
    root: Path = Path("/")
    #: Whether the changes are only printed.
    is_dry: bool = False

    @property
    def is_staged(self) -> bool:
        return self.root != Path("/")

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        there = self.at(path)
        return there.read_text(errors="replace") if there.is_file() else None

    def missing_parents(self, path: str) -> set[str]:
        """Return the directories that are made when this path is, with a slash at the end."""
        above = [str(each) for each in Path(path).parents][:-1]
        return {f"{each}/" for each in above if not self.at(each).is_dir()}

    def write(self, path: str, content: str) -> None:
        if self.read(path) != content or self.at(path).is_symlink():
            self._do(f"write {path}", lambda: _replace(self.at(path), content=content))

    def link(self, path: str, target: str) -> None:
        there = self.at(path)
        if not there.is_symlink() or os.readlink(there) != target:
            self._do(f"link {path} to {target}", lambda: _replace(there, link_to=target))

    def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its contents; with a slash at the end, only an
        empty directory."""
        there = self.at(path)
        is_tree = there.is_dir() and not there.is_symlink()
        if path.endswith("/"):
            if is_tree and not any(there.iterdir()):
                self._do(f"remove {path}", there.rmdir)
        elif os.path.lexists(there):
            self._do(f"remove {path}", lambda: (shutil.rmtree if is_tree else os.unlink)(there))

    def run(
        self, *command: str, limit_s: float = _LIMIT_S, hint: str = "", is_client: bool = False
    ) -> None:
        """Run a program that acts on the running system; one that asks its daemon with the rights
        of the service's user. Raises HostError with this hint."""
        if not self.is_staged:
            by_whom = f" as {USER}" if is_client else ""
            self._do(
                f"run {shlex.join(command)}{by_whom}",
                lambda: _run(command, limit_s, hint, is_client=is_client),
            )

    def is_active(self, unit: str) -> bool:
        command = ("systemctl", "is-active", "--quiet", unit)
        return not self.is_staged and subprocess.run(command).returncode == 0

    def _do(self, text: str, change: Callable[[], object]) -> None:
        print(text, flush=True)
        if not self.is_dry:
            try:
                change()
            except OSError as error:
                raise HostError("install", f"cannot {text}: {error.strerror}") from None


def install(target: Target, prefix: str | None) -> None:
    """Install drfd, or upgrade it. Without a prefix, that of the last installation is used.

    Raises NotPermitted, HostError, and Refused if something is in the way.
    """
    _insist(target)
    if not target.is_staged and (why_not := distrust()) is not None:
        raise HostError(
            "untrusted",
            f"this environment cannot run as a service: {why_not}",
            hint="as root, make one such as /opt/drfd: umask 022; python3 -m venv /opt/drfd",
        )
    before = _listed(target)
    programs = [path for path in before if path.endswith("/bin/drf")]
    prefix = prefix or (programs[0].removesuffix("/bin/drf") if programs else "/usr/local")
    scripts = sysconfig.get_path("scripts")
    links = {f"{prefix}/bin/{name}": f"{scripts}/{name}" for name in ("drf", "drfd")}
    for path in links:
        if path not in before and os.path.lexists(target.at(path)):
            raise Refused(
                "in-the-way",
                f"{path} is there already, and not from an installation of drfd",
                hint="remove it, or install with another --prefix",
            )
    default = f"{prefix}/share/drfd/drfd.toml"
    is_default_new = target.read(default) != _shipped("drfd.toml")
    # In a unit, % begins a specifier.
    python = sys.executable.replace("%", "%%")
    files = {f"{_UNIT_DIRECTORY}/{u}": _shipped(u).replace("@PYTHON@", python) for u in UNITS}
    files |= {_SYSUSERS: _shipped("sysusers.conf"), default: _shipped("drfd.toml")}
    files |= {f"{prefix}/{name}": text for name, text in _shared().items()}
    wanted = {*files, *links}
    made = {path for each in wanted for path in target.missing_parents(each)}
    made |= {path for path in before if path.endswith("/")}

    # First, so that a removal finds what an interrupted installation has put there.
    target.write(_LIST, "".join(f"{path}\n" for path in sorted({*before, *wanted, *made})))
    for path, content in files.items():
        target.write(path, content)
    for path, program in links.items():
        target.link(path, program)
    # What an earlier version, or one with another prefix, has installed.
    for path in sorted(before - wanted, reverse=True):
        target.remove(path)
    if before - wanted - made:
        left = {path for path in made if target.at(path).is_dir()}
        target.write(_LIST, "".join(f"{path}\n" for path in sorted({*wanted, *left})))
    config = target.read(CONFIG)
    if config is None:
        target.write(CONFIG, _shipped("drfd.toml"))
    elif config != _shipped("drfd.toml") and is_default_new:
        print(f"note: {CONFIG} is left as it is; this version's default is {default}")

    target.run("systemd-sysusers", _SYSUSERS)
    target.run("systemctl", "daemon-reload")
    target.run("systemctl", "enable", JOBS, LAUNCHER, CONTROLLER)
    target.run("systemctl", "start", JOBS)
    target.run("systemctl", "restart", LAUNCHER)
    target.run("systemctl", "try-restart", SLURM_ROOT, SLURM_LAUNCHER)
    target.run("systemctl", "restart", CONTROLLER)
    if not target.is_staged and not target.is_dry:
        print(*closing_words(_answer()), sep="\n")


def uninstall(target: Target, *, kill_jobs: bool, purge: bool, grace_s: int) -> None:
    """Remove drfd. Running jobs have `grace_s` seconds to end. Raises Refused while jobs run."""
    _insist(target)
    counts = {unit: len(list(target.at(path).glob("*"))) for unit, path in _ATTEMPTS.items()}
    attempts = sum(counts.values())
    if attempts and not kill_jobs:
        raise Refused(
            "jobs-run",
            f"{attempts} {'job is' if attempts == 1 else 'jobs are'} not over yet",
            hint="wait for them (drf drain, drf status), or say --kill-jobs",
        )
    if attempts and target.is_active(CONTROLLER):
        # Only its launcher can stop a job in an orderly way.
        for unit in (unit for unit, count in counts.items() if count):
            target.run("systemctl", "start", unit, hint=_WITHOUT_LAUNCHER)
        target.run(
            *(*_DRF, "--socket", _SOCKET, "shutdown", "--kill-jobs"),
            limit_s=grace_s + _END_S,
            hint=f"drf status tells what still runs; {_WITHOUT_LAUNCHER}",
            is_client=True,
        )
    if target.at(f"{_UNIT_DIRECTORY}/{CONTROLLER}").exists():
        target.run("systemctl", "stop", CONTROLLER, SLURM_LAUNCHER, SLURM_ROOT, LAUNCHER)
        target.run("systemctl", "disable", JOBS, LAUNCHER, CONTROLLER)
    # Each directory after what is in it.
    for path in sorted(_listed(target), reverse=True):
        target.remove(path)
    target.run("systemctl", "daemon-reload")
    if target.is_active(JOBS):
        # Its unit file refuses a manual stop (RefuseManualStop=), and has been removed by now.
        target.run("systemctl", "stop", JOBS, limit_s=grace_s + _END_S)
    # Jobs of a private instance may live there, too; otherwise it would stay until the next boot.
    if target.is_active(SLICE) and not _is_shared(Path("/sys/fs/cgroup", SLICE)):
        target.run("systemctl", "stop", SLICE)
    target.remove(RUN)
    target.remove(_LIST)
    kept = [path for path in (STATE, str(Path(CONFIG).parent)) if target.at(path).is_dir()]
    for path in kept:
        if purge:
            target.remove(path)
        else:
            print(f"note: kept: {path} (--purge removes it)")
    for user in (USER, SLURM_USER):
        if purge and _has_user(user):
            target.run("userdel", user)


def closing_words(answer: int) -> list[str]:
    """Return the last lines that an installation prints, by what drfd.install.asked says."""
    if not answer & ANSWERS:
        return ["note: drfd does not answer yet: systemctl status drfd tells why"]
    words = []
    if answer & DRAINED:
        words.append(
            "note: the queue is still drained, as it was left: nothing starts until drf undrain"
        )
    if not answer & CONNECTED:
        words.append(
            "note: no job starts while the launcher is away: systemctl status drfd-launcher "
            "tells why"
        )
    else:
        words.append("drfd runs; try drf doctor")
    return words


def _insist(target: Target) -> None:
    """Raise Refused or HostError or NotPermitted where no installation is possible."""
    if sys.prefix == PACKAGED or target.at(f"{PACKAGED}/pyvenv.cfg").exists():
        raise Refused(
            "packaged",
            "drfd is installed here by Debian's package, which dpkg alone changes",
            hint="apt remove drfd keeps configuration and state, apt purge drfd removes them too",
        )
    if not target.is_staged:
        if os.getuid() != 0:
            raise NotPermitted(
                "not-root",
                "only root can do that",
                hint="or name another --root, to have the files put there",
            )
        if not service.has_systemd():
            raise HostError(
                "no-systemd",
                "systemd does not run here",
                hint="as root, drfd serve runs the system's daemon without it",
            )
    # Every user must be able to read what is installed, whatever mask we were started with.
    os.umask(0o022)


def _replace(path: Path, *, content: str = "", link_to: str | None = None) -> None:
    """Replace a file in one step, by one with this content or by a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    if link_to is not None:
        new.symlink_to(link_to)
    else:
        with new.open("x", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)


def _run(
    command: Sequence[str], limit_s: float = _LIMIT_S, hint: str = "", *, is_client: bool = False
) -> None:
    """Run a program to its end. Raises HostError, OSError."""
    text = shlex.join(command)
    try:
        if is_client:
            done = _run_client(command, limit_s)
        else:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
            )
    except subprocess.TimeoutExpired:
        text = f"{text} is not over after {limit_s:.0f} s"
        raise HostError("install", text, hint=hint) from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().partition("\n")[0]
        why = words or f"status {done.returncode}"
        raise HostError("install", f"{text} failed: {why}", hint=hint)


def _run_client(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program that asks the daemon, as the service's user: what the daemon answers is read
    with that user's rights, and by root only the beginning of the first line about a failure.
    Raises OSError, subprocess.TimeoutExpired."""
    account = pwd.getpwnam(USER)
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            timeout=limit_s,
            cwd="/",
            env={"PATH": os.defpath},
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            # Without root's terminal.
            start_new_session=True,
        )
        line = os.pread(said.fileno(), _MOST_SAID, 0).decode(errors="replace").partition("\n")[0]
    words = "".join(sign for sign in line if sign.isprintable())
    return subprocess.CompletedProcess(command, done.returncode, "", words)


def _shipped(name: str) -> str:
    """Return a file of `systemd/`, which in a checkout is at its top."""
    here = Path(__file__).parent
    place = here / "systemd"
    return (place if place.is_dir() else here.parent.parent / "systemd").joinpath(name).read_text()


def _shared() -> dict[str, str]:
    """Return the man pages, completions and files for monitoring that pip has installed, by their
    path below a prefix."""
    files = [path for path in metadata.files("drfd") or () if "share" in path.parts]
    return {f"share/{str(path).partition('/share/')[2]}": path.read_text() for path in files}


def _listed(target: Target) -> set[str]:
    return set((target.read(_LIST) or "").splitlines())


def _answer() -> int:
    """Return what drfd.install.asked says of the system's daemon."""
    with suppress(subprocess.TimeoutExpired, OSError):
        done = _run_client((*RUN_MODULE, "drfd.install.asked", _SOCKET), _ANSWER_S)
        return max(done.returncode, 0)
    return 0


def _is_shared(slice_group: Path) -> bool:
    """Return whether the slice has cgroups other than that of the installation's jobs."""
    return any(path.is_dir() and path.name != JOBS for path in slice_group.glob("*"))


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
