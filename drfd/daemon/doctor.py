"""What is enforced on this machine and what is not, for `drf doctor`."""

from __future__ import annotations

from drfd import __version__
from drfd.daemon.link import Link
from drfd.daemon.machine import Site, disk_controls
from drfd.wire.views import View, resources_view


def doctor_view(site: Site, link: Link) -> View:
    disks = [
        {
            "name": disk.name,
            "path": disk.path,
            "device": disk.device,
            "read": disk.read_bps,
            "write": disk.write_bps,
            "guess": disk.is_guess,
            "problem": disk.why_none,
        }
        for disk in site.disks
    ]
    return {
        "version": __version__,
        "enforcement": link.hello.get("kind"),
        "controls": disk_controls(link.hello.get("controls", {}), site.disks),
        "disks": disks,
        "capacity": resources_view(site.rules.capacity),
        "warnings": list(site.warnings),
        "stuck_jobs": sorted(job_id for job_id, _ in link.stuck),
        "launcher": "connected" if link.is_ready() else "away",
    }
