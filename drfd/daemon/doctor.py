"""What is enforced on this machine and what is not, for `drf doctor`."""

from __future__ import annotations

from collections.abc import Mapping

from drfd import __version__
from drfd.daemon.link import Link
from drfd.daemon.machine import Site
from drfd.host.disks import Disk
from drfd.launcher.protocol import Message
from drfd.wire.views import View, resources_view

_DIRECTIONS = ("read", "write")
_GIVEN_OUT = (
    "not controlled: each job is told which are its own, and the kernel keeps it from no others"
)


def doctor_view(site: Site, link: Link) -> View:
    controls = {disk.name: disk_control(disk, link.hello) for disk in site.disks}
    disks = [
        {
            "name": disk.name,
            "path": disk.path,
            "device": " ".join(disk.devices) or None,
            "filesystem": disk.filesystem,
            "read": disk.read_bps,
            "write": disk.write_bps,
            "control": controls[disk.name],
            "guess": disk.is_guess,
            "problem": disk.why_none,
        }
        for disk in site.disks
    ]
    return {
        "version": __version__,
        "enforcement": link.hello.get("kind"),
        "controls": {
            **link.hello.get("controls", {}),
            **cores_control(link.hello, link.cores_by),
            **_summary(controls),
            **{name: _GIVEN_OUT for name, _ in site.rules.axes.instances},
        },
        "gres": {name: list(each) for name, each in site.rules.axes.instances},
        "disks": disks,
        "capacity": resources_view(site.rules.capacity),
        "warnings": list(site.warnings),
        "stuck_jobs": sorted(job_id for job_id, _ in link.stuck),
        "launcher": "connected" if link.is_ready() else "away",
    }


def cores_control(hello: Message, cores_by: str) -> dict[str, str]:
    """What the launcher says of cores, given out as is configured; nothing while it is away."""
    said: Mapping[str, str] = hello.get("cores", {})
    return {"cores": said[cores_by]} if cores_by in said else {}


def disk_control(disk: Disk, hello: Message) -> dict[str, str]:
    """What the launcher says of its control of disks, as far as this one allows it."""
    said: Mapping[str, str] = hello.get("controls", {})
    control = {name: said[name] for name in _DIRECTIONS if name in said}
    for name, text in control.items():
        if text.startswith("enforced") and not disk.devices:
            control[name] = f"not controlled: {disk.why_none}"
    if control.get("write") == "enforced" and not disk.attributes_writes:
        control["write"] += (
            f": direct I/O only; the kernel does not attribute buffered writes on {disk.filesystem}"
        )
    return control


def _summary(controls: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """One sentence for each direction: the same for all disks, or one disk after the other."""
    summary = {}
    for name in _DIRECTIONS:
        found = {disk: control[name] for disk, control in controls.items() if name in control}
        if len(set(found.values())) == 1:
            summary[name] = next(iter(found.values()))
        elif found:
            summary[name] = "; ".join(f"disk {disk} {text}" for disk, text in found.items())
    return summary
