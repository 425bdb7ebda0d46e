"""The choice of a confinement, and on cgroup v2 the parent cgroup of all jobs.

systemd requires that jobs live neither directly below the cgroup root nor in a unit that is
restarted. So jobs live in a unit of their own with delegated controllers. A sleeping process, the
keeper, keeps the unit alive; it has a cgroup of its own, because only a cgroup without processes
can give controllers to its children. The unit's own files stay systemd's; the cgroups below it are
the launcher's.

systemd, the system's manager or a user's own, is asked over its command line, with a time limit.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from drfd.launcher.confinement import cgroup_v1, cgroup_v2
from drfd.launcher.confinement.cgroup_files import find_mounts, find_unified, layout
from drfd.launcher.confinement.cgroup_v1 import CgroupV1
from drfd.launcher.confinement.cgroup_v2 import OPTIONAL, REQUIRED, CgroupV2
from drfd.launcher.confinement.device_hiding import HiddenByController
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.system.files import VANISHED, get
from drfd.linux.service import has_systemd

#: Option that `move_to_users_manager` adds when it starts this program again.
MOVED = "--moved"


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
        return CgroupV2(place.mount, place.group, place.controllers, place.release)
    except (NoJobGroup, NoAnswer) as error:
        reasons.append(str(error))
    if layout(mountinfo) != "unified":
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
    except (NoJobGroup, NoAnswer, OSError):
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
        except (NoJobGroup, NoAnswer) as error:
            raise DelegationFailed(str(error)) from None
    if not has_systemd():
        return below_root(mount, group)
    scope = f"{group.replace('/', '-')}.scope"
    if os.getuid() == 0:
        return in_scope(mount, scope, _SYSTEM)
    if not lingers(os.getuid()):
        raise NoJobGroup(
            "your systemd manager ends with your last session, and jobs in it would too: "
            "run loginctl enable-linger, then start drfd again"
        )
    if not _is_managed():
        raise NoJobGroup("the launcher could not move into a scope of your systemd manager")
    return in_scope(mount, scope, _USERS)


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


#: Directory in which logind has a file for each user that lingers.
LINGER = "/var/lib/systemd/linger"

#: A process that does nothing.
SLEEP = ("sleep", "infinity")
#: Where root's commands are.
PROGRAMS = "/usr/sbin:/usr/bin:/sbin:/bin"


class NoAnswer(Exception):
    """systemd is not there, or refuses; the text is what it said."""


def sleep() -> int:
    """Start a process that does nothing and outlives the launcher. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execvpe(SLEEP[0], SLEEP, {"PATH": PROGRAMS})
    finally:
        os._exit(127)


def lingers(uid: int) -> bool:
    """Return whether the user's manager, and all below it, keeps running without a session of the
    user. `loginctl` tells this only for users that logind knows at the moment."""
    try:
        return Path(LINGER, pwd.getpwuid(uid).pw_name).exists()
    except KeyError:
        return False


@dataclass(frozen=True)
class Keeper:
    """A process that was started to keep a scope alive."""

    process: subprocess.Popen[bytes]
    #: A file in memory with what the process has written to standard error.
    said_fd: int

    def has_failed(self) -> bool:
        return self.process.poll() is not None

    def is_in(self, unit: str) -> bool:
        """Return whether systemd has moved the process to this unit."""
        try:
            here = Path(f"/proc/{self.process.pid}/cgroup").read_text()
        except OSError:
            return False
        return any(line.startswith("0::") and line.endswith(f"/{unit}") for line in here.split())

    def why(self) -> str:
        return _last_line(os.pread(self.said_fd, 4096, 0).decode(errors="replace"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Manager:
    #: True for the manager of this process's own user, False for the system's.
    is_users: bool

    def show(self, *words: str) -> dict[str, str]:
        """Return properties of a unit, or of the manager itself. A unit that does not exist has
        some, too. Raises NoAnswer."""
        lines = _ask(["systemctl", *self._whose(), "show", *words], self._environment())
        return {
            name: value for name, _, value in (line.partition("=") for line in lines.splitlines())
        }

    def start_scope(self, unit: str, description: str) -> Keeper:
        """Start a scope around a sleeping process that outlives the launcher. Raises NoAnswer."""
        words = [*self._scope(), f"--unit={unit}", f"--description={description}"]
        said_fd = os.memfd_create("systemd-run")
        try:
            process = subprocess.Popen(
                [*words, "--property=Delegate=yes", *SLEEP],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said_fd,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise NoAnswer(f"systemd-run: {error.strerror}") from None
        return Keeper(process, said_fd)

    def become_scope(self, command: list[str]) -> None:
        """Execute this command in a scope of its own, with the same pid and descriptors. Raises
        NoAnswer if no scope can be started."""
        _ask([*self._scope(), "true"], self._environment())
        words = [*self._scope(), *command]
        os.execvpe(words[0], words, self._environment())

    def _whose(self) -> list[str]:
        return ["--user"] if self.is_users else []

    def _scope(self) -> list[str]:
        options = ["--scope", "--quiet", "--collect", "--slice=drfd.slice"]
        return ["systemd-run", *self._whose(), *options]

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
        raise NoAnswer(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{words[0]}: no answer within {_ANSWER_S:.0f} s") from None
    if done.returncode != 0:
        raise NoAnswer(f"{words[0]}: {_last_line(done.stderr)}")
    return done.stdout


def _last_line(said: str) -> str:
    return (said.strip() or "failed and said nothing").splitlines()[-1]


#: Seconds that a scope may take to become active, or the previous scope to vanish.
_SCOPE_S = 60.0
#: Seconds after its start at which a scope that systemd does not know counts as lost.
_START_S = 15.0
#: Number of starts that systemd may refuse, because the previous scope may not have vanished
#: yet, and the pause between two starts in seconds.
_STARTS, _RESTART_S = 3, 0.5
#: Seconds that the keeper of a unit may take to move into its own cgroup.
_MOVE_S = 10.0
#: Seconds to wait for systemd to remove an empty scope, and between two looks at a scope.
_END_S, _POLL_S = 3.0, 0.05


class NoJobGroup(Exception):
    """Jobs cannot have cgroups here; the text is the reason, for people."""


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
        return _make_group(mount, found["ControlGroup"], release=lambda: None)
    except OSError as error:
        raise NoJobGroup(f"{unit}: {error.filename}: {error.strerror}") from None


def in_scope(mount: str, unit: str, manager: Manager) -> DelegatedGroup:
    """Make the group below a scope that outlives this launcher. The next launcher finds the scope
    again; its release ends it. Raises NoJobGroup if it does not become active."""
    keeper: Keeper | None = None
    started, refused = 0.0, 0
    deadline = time.monotonic() + _SCOPE_S
    while time.monotonic() < deadline:
        found = _scope_state(manager, unit)
        top = f"{mount}{found['ControlGroup']}"
        if _is_alive(found, top):
            place = _prepare_scope(mount, found["ControlGroup"])
            # It may have been declared dead meanwhile (systemd/systemd#36781).
            if place is not None and _is_alive(_scope_state(manager, unit), top):
                return place
        elif found["LoadState"] == "not-found":
            if keeper is not None and keeper.has_failed():
                refused += 1
                if refused == _STARTS:
                    raise NoJobGroup(f"systemd-run: {keeper.why()}")
                time.sleep(_RESTART_S)
                keeper = None
            elif keeper is not None and time.monotonic() - started > _START_S:
                keeper.kill()
                keeper = None
            if keeper is None:
                started = time.monotonic()
                keeper = manager.start_scope(unit, "The jobs of drfd")
                _await_start(keeper, unit)
                continue
        time.sleep(_POLL_S)
    if keeper is not None:
        keeper.kill()
    raise NoJobGroup(f"{unit} did not come up within {_SCOPE_S:.0f} s")


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


def _await_start(keeper: Keeper, unit: str) -> None:
    """Wait until the scope's process is in its unit, or has failed. This reads /proc, whereas each
    question to systemd needs a process."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and not keeper.has_failed() and not keeper.is_in(unit):
        time.sleep(_POLL_S / 10)


def _prepare_scope(mount: str, control_group: str) -> DelegatedGroup | None:
    """Keep a scope alive and make the group for jobs in it; None if the scope has vanished."""
    top = f"{mount}{control_group}"
    try:
        _ensure_keeper(top)
        return _make_group(mount, control_group, lambda: _dissolve(top))
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise NoJobGroup(f"{top}: {error.strerror}") from None


def _make_group(mount: str, control_group: str, release: Callable[[], None]) -> DelegatedGroup:
    """Make the cgroup for jobs in the one that was delegated."""
    group = f"{control_group.lstrip('/')}/jobs"
    _enable(f"{mount}{control_group}", timeout_s=_MOVE_S)
    Path(mount, group).mkdir(exist_ok=True)
    return DelegatedGroup(mount, group, _enable(f"{mount}/{group}", timeout_s=0), release)


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


def _scope_state(manager: Manager, unit: str) -> dict[str, str]:
    return manager.show(unit, "--property=LoadState,ActiveState,ControlGroup")


def _is_alive(found: dict[str, str], top: str) -> bool:
    """Return whether a scope is active and has a process. One without a process is about to go,
    even if systemd does not know that yet."""
    if found["ActiveState"] != "active" or not found["ControlGroup"]:
        return False
    try:
        return "populated 1" in Path(top, "cgroup.events").read_text()
    except OSError:
        return False


def _ensure_keeper(top: str) -> None:
    """Make sure that there is a process in the keeper's own cgroup and none directly in `top`."""
    home = Path(top, "keeper")
    home.mkdir(exist_ok=True)
    for pid in _pids(Path(top)):
        _move(pid, home)
    if not _pids(home):
        # The keeper was killed, and only jobs keep the scope alive.
        _move(sleep(), home)


def _move(pid: int, home: Path) -> None:
    try:
        Path(home, "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:
        return


def _pids(directory: Path) -> list[int]:
    return [int(line) for line in Path(directory, "cgroup.procs").read_text().split()]


def _dissolve(top: str) -> None:
    """End the keeper; systemd then removes the empty scope. This waits `_END_S` at most, and the
    next launcher waits for the removal, too."""
    try:
        for pid in _pids(Path(top, "keeper")):
            os.kill(pid, SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
    deadline = time.monotonic() + _END_S
    while Path(top).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


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
