"""How to mend what `drf doctor` finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drfd.daemon.doctor import cores_control
from drfd.daemon.link import Link
from drfd.daemon.machine import Site
from drfd.launcher.protocol import NO_PIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What this daemon is."""

    uid: int
    #: For all users of the machine.
    is_systems: bool
    #: Its launcher is a service of systemd's.
    is_service: bool
    has_systemd: bool
    #: The user's own services live on after the last session.
    lingers: bool


def find_cures(standing: Standing, site: Site, link: Link) -> list[str]:
    """For things as they are now."""
    return cures(
        standing,
        has_launcher=link.is_ready(),
        enforcement=link.hello.get("kind"),
        guessed=[disk.name for disk in site.disks if disk.is_guess],
        lacks_pins=NO_PIN in cores_control(link.hello, link.cores_by).get("cores", ""),
    )


def cures(
    standing: Standing,
    *,
    has_launcher: bool,
    enforcement: str | None,
    guessed: Sequence[str],
    lacks_pins: bool,
) -> list[str]:
    """Sentences for people. `enforcement`: the launcher's kind; `guessed`: disks whose speed is;
    `lacks_pins`: CPUs of their own are configured and cannot be had."""
    found = []
    if not has_launcher:
        where = "systemctl status drfd-launcher" if standing.is_service else "the log of drfd"
        found.append(f"no job starts while the launcher is away: {where} says why")
    if enforcement == "none":
        found.append(
            "limits are only measured: run drfd as root on a machine with cgroups, "
            "and they will be enforced"
        )
    if lacks_pins:
        found.append(f"CPUs of their own need the cpuset controller: {_cpuset(enforcement)}")
    if standing.uid and not standing.is_systems and standing.has_systemd and not standing.lingers:
        found.append(
            "your jobs may end when you log out: loginctl enable-linger, then start drfd again"
        )
    if not standing.is_systems:
        found.append(
            "this daemon is for you alone: where several share a machine, root runs drfd install"
        )
    for name in guessed:
        found.append(
            f"the speed of disk {name} is a guess: drfd calibrate measures it, "
            "or set read and write under [[disk]]"
        )
    return found


def _cpuset(enforcement: str | None) -> str:
    if enforcement == "cgroup-v1":
        return "mount -t cgroup -o cpuset cpuset /sys/fs/cgroup/cpuset, then start drfd again"
    return (
        "with Delegate=cpu cpuset io memory pids in its unit (for a daemon of your own, "
        "systemctl edit user@.service) systemd gives it; then start drfd again"
    )
