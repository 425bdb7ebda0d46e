"""Where the cgroup of all jobs comes from on cgroup v2.

The rule of systemd: never below the cgroup root, and never in a unit that is restarted. So jobs
live in a unit of their own with delegated controllers, which a sleeping process keeps alive, in a
cgroup of its own since only empty cgroups give controllers to those in them. The unit's own files
stay systemd's; one level further in all is ours.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from drfd.launcher import systemd
from drfd.launcher.cgroup_v2 import OPTIONAL, REQUIRED
from drfd.launcher.systemd import Keeper, Manager

#: How long a scope may take to come up, or to go before the next one.
_SCOPE_S = 60.0
#: A scope that systemd does not know so long after its start has been lost at birth.
_BIRTH_S = 15.0
#: So often is a scope started that systemd refuses: its predecessor may not be quite gone.
_STARTS, _RESTART_S = 3, 0.5
#: How long the keeper of a unit may take to move into its own cgroup.
_MOVE_S = 10.0
_END_S = 3.0
_POLL_S = 0.05


class NoPlace(Exception):
    """Jobs cannot have cgroups here; says why, for people."""


@dataclass(frozen=True, slots=True)
class Place:
    """`group`, below `mount`: the parent of the jobs' cgroups; `controllers` are enabled in it.
    `release` gives back what is around it, once it is gone itself."""

    mount: str
    group: str
    controllers: frozenset[str]
    release: Callable[[], None]


def in_unit(mount: str, unit: str, manager: Manager) -> Place:
    """Below a delegated unit that somebody else keeps alive. Raises NoPlace if it is not active."""
    found = manager.show(unit, "--property=ActiveState,ControlGroup,Delegate")
    if found["ActiveState"] != "active":
        raise NoPlace(f"{unit} is {found['ActiveState']}: start it with systemctl start {unit}")
    # A unit that can have no processes has no such properties.
    if found.get("Delegate") != "yes":
        raise NoPlace(f"{unit} has no Delegate=yes, so its cgroups belong to systemd")
    try:
        return _furnish(mount, found["ControlGroup"], release=lambda: None)
    except OSError as error:
        raise NoPlace(f"{unit}: {error.filename}: {error.strerror}") from None


def in_scope(mount: str, unit: str, manager: Manager) -> Place:
    """Below a scope that lives on when we die, is found again by the next launcher, and goes when
    it is released. Raises NoPlace when it does not come up."""
    keeper: Keeper | None = None
    started, refused = 0.0, 0
    deadline = time.monotonic() + _SCOPE_S
    while time.monotonic() < deadline:
        found = _look(manager, unit)
        top = f"{mount}{found['ControlGroup']}"
        if _lives(found, top):
            place = _settle(mount, found["ControlGroup"])
            # It may have been declared dead meanwhile (systemd/systemd#36781).
            if place is not None and _lives(_look(manager, unit), top):
                return place
        elif found["LoadState"] == "not-found":
            if keeper is not None and keeper.has_failed():
                refused += 1
                if refused == _STARTS:
                    raise NoPlace(f"systemd-run: {keeper.why()}")
                time.sleep(_RESTART_S)
                keeper = None
            elif keeper is not None and time.monotonic() - started > _BIRTH_S:
                keeper.kill()
                keeper = None
            if keeper is None:
                started = time.monotonic()
                keeper = manager.start_scope(unit, "The jobs of drfd")
                _await_birth(keeper, unit)
                continue
        time.sleep(_POLL_S)
    if keeper is not None:
        keeper.kill()
    raise NoPlace(f"{unit} did not come up within {_SCOPE_S:.0f} s")


def below_root(mount: str, group: str) -> Place:
    """Without systemd: below the top of what we see. Nothing of others is moved for that."""
    top = mount
    try:
        _enable(top, patience_s=0)
        for part in group.split("/"):
            top = f"{top}/{part}"
            Path(top).mkdir(exist_ok=True)
            controllers = _enable(top, patience_s=0)
    except (OSError, NoPlace) as error:
        _remove_up(mount, top)
        if isinstance(error, NoPlace):
            raise
        raise NoPlace(f"{top}: {error.strerror}") from None
    parent = os.path.dirname(f"{mount}/{group}")
    return Place(mount, group, controllers, lambda: _remove_up(mount, parent))


def _await_birth(keeper: Keeper, unit: str) -> None:
    """Each look at systemd takes a process; this takes none."""
    deadline = time.monotonic() + _BIRTH_S
    while time.monotonic() < deadline and not keeper.has_failed() and not keeper.is_in(unit):
        time.sleep(_POLL_S / 10)


def _settle(mount: str, control_group: str) -> Place | None:
    """Keep a scope alive and make the place for jobs in it; None: it has vanished under us."""
    top = f"{mount}{control_group}"
    try:
        _settle_keeper(top)
        return _furnish(mount, control_group, lambda: _dissolve(top))
    except OSError as error:
        if _has_vanished(error):
            return None
        raise NoPlace(f"{top}: {error.strerror}") from None


def _furnish(mount: str, control_group: str, release: Callable[[], None]) -> Place:
    """A cgroup for jobs in the one that was given to us."""
    group = f"{control_group.lstrip('/')}/jobs"
    _enable(f"{mount}{control_group}", patience_s=_MOVE_S)
    Path(mount, group).mkdir(exist_ok=True)
    return Place(mount, group, _enable(f"{mount}/{group}", patience_s=0), release)


def _enable(directory: str, *, patience_s: float) -> frozenset[str]:
    """Give the cgroups in this one all the controllers that we want and it has; which these are.
    While a process is in the cgroup itself the kernel refuses; it may be about to leave."""
    available = Path(directory, "cgroup.controllers").read_text().split()
    missing = [name for name in REQUIRED if name not in available]
    if missing:
        raise NoPlace(f"{directory} has no controller {', '.join(missing)}")
    deadline = time.monotonic() + patience_s
    control = Path(directory, "cgroup.subtree_control")
    for name in (*REQUIRED, *OPTIONAL):
        while name in available:
            try:
                control.write_text(f"+{name}")
                break
            except OSError as error:
                if _has_vanished(error):
                    raise
                if error.errno != errno.EBUSY and name in REQUIRED:
                    raise NoPlace(f"{control}: {error.strerror}") from None
                if error.errno != errno.EBUSY:
                    # cpu, for one, where real-time processes live.
                    break
            if time.monotonic() > deadline:
                raise NoPlace(f"processes live in {directory} itself")
            time.sleep(_POLL_S)
    return frozenset(control.read_text().split()).intersection((*REQUIRED, *OPTIONAL))


def _has_vanished(error: OSError) -> bool:
    """ENODEV: between open and write."""
    return error.errno in (errno.ENOENT, errno.ENODEV)


def _look(manager: Manager, unit: str) -> dict[str, str]:
    return manager.show(unit, "--property=LoadState,ActiveState,ControlGroup")


def _lives(found: dict[str, str], top: str) -> bool:
    """A scope without a process is about to go, whatever systemd knows of it yet."""
    if found["ActiveState"] != "active" or not found["ControlGroup"]:
        return False
    try:
        return "populated 1" in Path(top, "cgroup.events").read_text()
    except OSError:
        return False


def _settle_keeper(top: str) -> None:
    """See to it that a process lives in the keeper's own cgroup, and none beside."""
    home = Path(top, "keeper")
    home.mkdir(exist_ok=True)
    for pid in _pids(Path(top)):
        _move(pid, home)
    if not _pids(home):
        # Somebody has killed it, and jobs alone keep the scope alive.
        _move(systemd.sleep(), home)


def _move(pid: int, home: Path) -> None:
    try:
        Path(home, "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:
        return


def _pids(directory: Path) -> list[int]:
    return [int(line) for line in Path(directory, "cgroup.procs").read_text().split()]


def _dissolve(top: str) -> None:
    """End the keeper; systemd takes away a scope without processes. A next launcher waits for that
    too, so it is no harm if it takes longer."""
    try:
        for pid in _pids(Path(top, "keeper")):
            os.kill(pid, SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
    deadline = time.monotonic() + _END_S
    while Path(top).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _remove_up(mount: str, directory: str) -> None:
    """Remove a cgroup and those around it, as far as they are empty and not the top."""
    while directory != mount:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:
            return
        directory = os.path.dirname(directory)
