"""Which confinement this machine allows to us, the best one first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from drfd.launcher import cgroup_v1, cgroup_v2, systemd
from drfd.launcher.cgroup_v1 import CgroupV1
from drfd.launcher.cgroup_v2 import CgroupV2
from drfd.launcher.confinement import Confinement
from drfd.launcher.hierarchy import find_mounts, find_unified, layout
from drfd.launcher.holder import NoPlace, Place, below_root, in_scope, in_unit
from drfd.launcher.systemd import Manager, NoAnswer
from drfd.launcher.unconfined import Unconfined

#: The option that says that `move_to_users_manager` has been here already.
MOVED = "--moved"

_SYSTEM, _USERS = Manager(is_users=False), Manager(is_users=True)


class HolderFailed(Exception):
    """The unit that jobs are to live in cannot have them: better no jobs than elsewhere."""


def choose(group: str, holder: str | None, mountinfo: str) -> Confinement:
    """`group`: the same name for each launcher of a state directory; `holder`: a delegated unit of
    systemd's, for cgroup v2; `mountinfo`: the text of that file. Raises HolderFailed."""
    reasons = []
    try:
        mount = _usable_mount(mountinfo)
        if holder is not None:
            return _confine(_in_holder(mount, holder))
        return _confine(_place(mount, group))
    except (NoPlace, NoAnswer) as error:
        reasons.append(str(error))
    if layout(mountinfo) != "unified":
        try:
            return _on_v1(mountinfo, group)
        except NoPlace as error:
            reasons.append(str(error))
    return Unconfined("; ".join(reasons))


def move_to_users_manager(mountinfo: str) -> None:
    """Go on in a scope of the user's own manager, if jobs can be confined there: the kernel lets an
    ordinary user move processes only within that. Returns if not, or if we are there."""
    if os.getuid() == 0 or not systemd.is_booted():
        return
    try:
        _usable_mount(mountinfo)
        if systemd.lingers(os.getuid()) and not _is_managed():
            _USERS.become_scope([sys.executable, *sys.orig_argv[1:], MOVED])
    except (NoPlace, NoAnswer, OSError):
        # `choose` will find the same, and say so.
        return


def _usable_mount(mountinfo: str) -> str:
    mount = find_unified(mountinfo)
    if mount is None:
        raise NoPlace("no cgroup v2 is mounted")
    there = Path(mount, "cgroup.controllers").read_text().split()
    missing = [name for name in cgroup_v2.REQUIRED if name not in there]
    if missing:
        raise NoPlace(f"cgroup v2 has no controller {', '.join(missing)}")
    return mount


def _in_holder(mount: str, unit: str) -> Place:
    try:
        return in_unit(mount, unit, _SYSTEM)
    except (NoPlace, NoAnswer) as error:
        raise HolderFailed(str(error)) from None


def _place(mount: str, group: str) -> Place:
    if not systemd.is_booted():
        return below_root(mount, group)
    scope = f"{group.replace('/', '-')}.scope"
    if os.getuid() == 0:
        return in_scope(mount, scope, _SYSTEM)
    if not systemd.lingers(os.getuid()):
        raise NoPlace(
            "your systemd manager ends with your last session, and jobs in it would too: "
            "run loginctl enable-linger, then start drfd again"
        )
    if not _is_managed():
        raise NoPlace("the launcher could not move into a scope of your systemd manager")
    return in_scope(mount, scope, _USERS)


def _is_managed() -> bool:
    """Whether we live below the user's manager."""
    manager = _USERS.show("--property=ControlGroup").get("ControlGroup", "")
    own = Path("/proc/self/cgroup").read_text().splitlines()
    here = next((line[3:] for line in own if line.startswith("0::")), "")
    return manager != "" and here.startswith(f"{manager}/")


def _confine(place: Place) -> CgroupV2:
    return CgroupV2(place.mount, place.group, place.controllers, place.release)


def _on_v1(mountinfo: str, group: str) -> CgroupV1:
    mounts = find_mounts(mountinfo, cgroup_v1.USED)
    missing = [name for name in cgroup_v1.REQUIRED if name not in mounts]
    if missing:
        raise NoPlace(f"no cgroup v1 controller {', '.join(missing)} is mounted")
    try:
        return CgroupV1(mounts, group)
    except OSError as error:
        raise NoPlace(f"cannot make cgroups as {_whoami()}: {error.strerror}") from None


def _whoami() -> str:
    return "root" if os.getuid() == 0 else f"uid {os.getuid()}"
