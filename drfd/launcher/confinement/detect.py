"""The choice of a confinement, and on cgroup v2 the parent cgroup of all jobs.

systemd requires that jobs live neither directly below the cgroup root nor in a unit that is
restarted. So jobs live in a service of their own with delegated controllers. A sleeping process
keeps the service alive, in a cgroup of its own, because only a cgroup without processes can give
controllers to its children. The service's own files stay systemd's; the cgroups below it are the
launcher's. An installation has that service (systemd/drfd-jobs.service); other launchers start one.

systemd, the system's manager or a user's own, is asked over its command line, with a time limit.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from drfd.launcher.confinement import cgroup_v1, cgroup_v2
from drfd.launcher.confinement.cgroup_files import find_mounts, find_unified
from drfd.launcher.confinement.cgroup_v1 import CgroupV1
from drfd.launcher.confinement.cgroup_v2 import OPTIONAL, REQUIRED, CgroupV2
from drfd.launcher.confinement.device_hiding import HiddenByController
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.system.files import VANISHED
from drfd.linux.kernel_files import get
from drfd.linux.service import has_systemd, lingers

#: Option that `move_to_users_manager` adds when it starts this program again.
MOVED = "--moved"


class NoJobGroup(Exception):
    """Jobs cannot have cgroups here; the text is the reason, for people."""


class DelegationFailed(Exception):
    """The configured unit cannot hold the jobs; they are not started anywhere else."""


def choose(group: str, delegated_unit: str | None, mountinfo: str) -> Confinement:
    """Return the best confinement that this machine allows. `group` names the cgroup of all jobs,
    and is the same for each launcher of a state directory. `delegated_unit` is the systemd unit to
    put it in on cgroup v2, or None. `mountinfo` is the text of that file. Raises
    DelegationFailed."""
    reasons = []
    try:
        place = _place(_usable_mount(mountinfo), group, delegated_unit)
        if not Path(place.mount, place.group, "cgroup.kill").exists():
            raise NoJobGroup("cgroup v2 cannot kill all processes of a job before Linux 5.14")
        return CgroupV2(place.mount, place.group, place.controllers, place.release)
    except NoJobGroup as error:
        reasons.append(str(error))
    if find_mounts(mountinfo, cgroup_v1.USED):
        try:
            return _on_v1(mountinfo, group)
        except NoJobGroup as error:
            reasons.append(str(error))
    return Unconfined("; ".join(reasons))


def move_to_users_manager(mountinfo: str) -> None:
    """Execute this program again in a scope of the user's own manager, if jobs can be confined
    there: the kernel lets an ordinary user move processes only within it. Returns if they cannot
    be, or if this process is there already."""
    if os.getuid() == 0 or not has_systemd():
        return
    try:
        _usable_mount(mountinfo)
        if lingers(os.getuid()) and not _is_managed():
            _USERS.become_scope([sys.executable, *sys.orig_argv[1:], MOVED])
    except (NoJobGroup, OSError):
        # `choose` meets the same error and reports it.
        return


def _usable_mount(mountinfo: str) -> str:
    mount = find_unified(mountinfo)
    if mount is None:
        raise NoJobGroup("no cgroup v2 is mounted")
    there = Path(mount, "cgroup.controllers").read_text().split()
    missing = [name for name in cgroup_v2.REQUIRED if name not in there]
    if missing:
        raise NoJobGroup(f"cgroup v2 has no controller {', '.join(missing)}")
    return mount


def _place(mount: str, group: str, delegated_unit: str | None) -> DelegatedGroup:
    if delegated_unit is not None:
        try:
            return in_unit(mount, delegated_unit, _SYSTEM)
        except NoJobGroup as error:
            raise DelegationFailed(str(error)) from None
    if not has_systemd():
        return below_root(mount, group)
    unit = f"{group.replace('/', '-')}.service"
    if os.getuid() == 0:
        return in_own_unit(mount, unit, _SYSTEM)
    if not lingers(os.getuid()):
        raise NoJobGroup(
            "your systemd manager ends with your last session, and jobs in it would too: "
            "run loginctl enable-linger, then start drfd again"
        )
    if not _is_managed():
        raise NoJobGroup("the launcher could not move into a scope of your systemd manager")
    return in_own_unit(mount, unit, _USERS)


def _is_managed() -> bool:
    """Return whether this process is in a cgroup below the user's manager."""
    manager = _USERS.show("--property=ControlGroup").get("ControlGroup", "")
    own = Path("/proc/self/cgroup").read_text().splitlines()
    here = next((line[3:] for line in own if line.startswith("0::")), "")
    return manager != "" and here.startswith(f"{manager}/")


def _on_v1(mountinfo: str, group: str) -> CgroupV1:
    mounts = find_mounts(mountinfo, cgroup_v1.USED)
    missing = [name for name in cgroup_v1.REQUIRED if name not in mounts]
    if missing:
        raise NoJobGroup(f"no cgroup v1 controller {', '.join(missing)} is mounted")
    shared = find_mounts(mountinfo, ("devices",)).get("devices", "")
    devices = HiddenByController(
        mountinfo, get("/proc/self/cgroup"), group, shared if shared in mounts.values() else ""
    )
    try:
        return CgroupV1(mounts, group, devices)
    except OSError as error:
        who = "root" if os.getuid() == 0 else f"uid {os.getuid()}"
        raise NoJobGroup(f"cannot make cgroups as {who}: {error.strerror}") from None


# -- delegation -----------------------------------------------------------------------------------

#: Seconds after which a manager that does not answer counts as absent.
_ANSWER_S = 20.0


#: Where root's commands are.
PROGRAMS = "/usr/sbin:/usr/bin:/sbin:/bin"


_OPTIONS = ("--quiet", "--collect", "--slice=drfd.slice")
#: A job that is killed for memory is no reason to stop the others.
_HOLDS = (
    *("--description=The jobs of drfd", "--property=Type=exec", "--property=Delegate=yes"),
    # Should somebody kill the sleeping process, jobs go on.
    *("--property=OOMPolicy=continue", "--property=ExitType=cgroup"),
)
#: Moves itself out of its service's own cgroup, below the mount point $0, and sleeps. systemd takes
#: one of two dollar signs.
_SLEEP = (
    'group=$$0$$(sed -n s/^0:://p /proc/self/cgroup) && mkdir -p "$$group/keeper" && '
    'echo $$$$ >"$$group/keeper/cgroup.procs" && exec sleep infinity'
)


@dataclass(frozen=True, slots=True)
class Manager:
    #: True for the manager of this process's own user, False for the system's.
    is_users: bool

    def show(self, *words: str) -> dict[str, str]:
        """Return properties of a unit, or of the manager itself. A unit that does not exist has
        some, too. Raises NoJobGroup."""
        lines = _ask(["systemctl", *self._whose(), "show", *words], self._environment())
        return {
            name: value for name, _, value in (line.partition("=") for line in lines.splitlines())
        }

    def start_holder(self, unit: str, mount: str) -> None:
        """Start a service that is there for its cgroup only. Raises NoJobGroup."""
        with suppress(NoJobGroup):
            # An earlier one may be about to end.
            self.stop(unit)
        words = ["systemd-run", *self._whose(), *_OPTIONS, f"--unit={unit}", *_HOLDS]
        _ask([*words, "/bin/sh", "-c", _SLEEP, mount], self._environment())

    def stop(self, unit: str) -> None:
        """Stop a unit, and wait for its end. Raises NoJobGroup."""
        _ask(["systemctl", *self._whose(), "stop", unit], self._environment())

    def become_scope(self, command: list[str]) -> None:
        """Execute this command in a scope of its own, with the same pid and descriptors. Raises
        NoJobGroup if no scope can be started."""
        _ask([*self._scope(), "true"], self._environment())
        words = [*self._scope(), *command]
        os.execvpe(words[0], words, self._environment())

    def _whose(self) -> list[str]:
        return ["--user"] if self.is_users else []

    def _scope(self) -> list[str]:
        return ["systemd-run", *self._whose(), "--scope", *_OPTIONS]

    def _environment(self) -> dict[str, str]:
        """Return the environment for systemd's commands. Root's has nothing of whoever has started
        us. XDG_RUNTIME_DIR, which locates a user's manager, is added because it is missing after
        sudo -u, or from cron."""
        if not self.is_users:
            return {"PATH": PROGRAMS}
        return {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}


_SYSTEM, _USERS = Manager(is_users=False), Manager(is_users=True)


def _ask(words: list[str], env: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=env,
            timeout=_ANSWER_S,
        )
    except OSError as error:
        raise NoJobGroup(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoJobGroup(f"{words[0]}: no answer within {_ANSWER_S:.0f} s") from None
    if done.returncode != 0:
        raise NoJobGroup(f"{words[0]}: {_last_line(done.stderr)}")
    return done.stdout


def _last_line(said: str) -> str:
    return (said.strip() or "failed and said nothing").splitlines()[-1]


#: Seconds that the sleeping process may take to move into its own cgroup, and between two tries.
_MOVE_S, _POLL_S = 10.0, 0.05


@dataclass(frozen=True, slots=True)
class DelegatedGroup:
    """The parent of the jobs' cgroups: `group` below `mount`, with `controllers` enabled. `release`
    removes the cgroups around it, once the group itself is gone."""

    mount: str
    group: str
    controllers: frozenset[str]
    release: Callable[[], None]


def in_unit(mount: str, unit: str, manager: Manager) -> DelegatedGroup:
    """Make the group below a delegated unit. Raises NoJobGroup if the unit is not active."""
    found = manager.show(unit, "--property=ActiveState,ControlGroup,Delegate")
    if found["ActiveState"] != "active":
        raise NoJobGroup(f"{unit} is {found['ActiveState']}: start it with systemctl start {unit}")
    # A unit that can have no processes has no such properties.
    if found.get("Delegate") != "yes":
        raise NoJobGroup(f"{unit} has no Delegate=yes, so its cgroups belong to systemd")
    try:
        top = found["ControlGroup"]
        _enable(f"{mount}{top}", timeout_s=_MOVE_S)
        group = f"{top.lstrip('/')}/jobs"
        Path(mount, group).mkdir(exist_ok=True)
        controllers = _enable(f"{mount}/{group}", timeout_s=0)
        return DelegatedGroup(mount, group, controllers, release=lambda: None)
    except OSError as error:
        raise NoJobGroup(f"{unit}: {error.filename}: {error.strerror}") from None


def in_own_unit(mount: str, unit: str, manager: Manager) -> DelegatedGroup:
    """Make the group below a service that outlives this launcher, and is started unless an earlier
    one has. Its release stops it. Raises NoJobGroup."""
    if manager.show(unit, "--property=ActiveState")["ActiveState"] != "active":
        manager.start_holder(unit, mount)

    def release() -> None:
        with suppress(NoJobGroup):
            manager.stop(unit)

    return replace(in_unit(mount, unit, manager), release=release)


def below_root(mount: str, group: str) -> DelegatedGroup:
    """Make the group below the top of the visible hierarchy, for machines without systemd. No
    process of others is moved for that. Raises NoJobGroup."""
    top = mount
    try:
        _enable(top, timeout_s=0)
        for part in group.split("/"):
            top = f"{top}/{part}"
            Path(top).mkdir(exist_ok=True)
            controllers = _enable(top, timeout_s=0)
    except (OSError, NoJobGroup) as error:
        _remove_up(mount, top)
        if isinstance(error, NoJobGroup):
            raise
        raise NoJobGroup(f"{top}: {error.strerror}") from None
    parent = os.path.dirname(f"{mount}/{group}")
    return DelegatedGroup(mount, group, controllers, lambda: _remove_up(mount, parent))


def _enable(directory: str, *, timeout_s: float) -> frozenset[str]:
    """Enable all wanted controllers that the cgroup has for its children, and return their names.
    The kernel refuses while a process is in the cgroup itself, so this is tried for `timeout_s`
    seconds. Raises NoJobGroup, OSError."""
    available = Path(directory, "cgroup.controllers").read_text().split()
    missing = [name for name in REQUIRED if name not in available]
    if missing:
        raise NoJobGroup(f"{directory} has no controller {', '.join(missing)}")
    deadline = time.monotonic() + timeout_s
    control = Path(directory, "cgroup.subtree_control")
    for name in (*REQUIRED, *OPTIONAL):
        while name in available:
            try:
                control.write_text(f"+{name}")
                break
            except OSError as error:
                if error.errno in VANISHED:
                    raise
                if error.errno != errno.EBUSY and name in REQUIRED:
                    raise NoJobGroup(f"{control}: {error.strerror}") from None
                if error.errno != errno.EBUSY:
                    # The kernel refuses cpu, for example, where there are real-time processes.
                    break
            if time.monotonic() > deadline:
                raise NoJobGroup(f"processes live in {directory} itself")
            time.sleep(_POLL_S)
    return frozenset(control.read_text().split()).intersection((*REQUIRED, *OPTIONAL))


def _remove_up(mount: str, directory: str) -> None:
    """Remove a cgroup and its ancestors below `mount`, up to the first that is in use."""
    while directory != mount:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:
            return
        directory = os.path.dirname(directory)
