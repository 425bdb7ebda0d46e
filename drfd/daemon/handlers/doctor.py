"""The state of the service: which limits are enforced, and problems with their remedies.

`drf doctor` shows all of it. Notices, which have a stable code and a sentence, are also added to
the replies to `status`, `hello` and changes of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drfd import __version__
from drfd.common.paths import PRIVATE_PLACES
from drfd.common.units import show_duration, utc_time
from drfd.core.model.calendar import Calendar
from drfd.core.model.resources import Axes, ClusterNode
from drfd.daemon.config import Site
from drfd.daemon.countable import device_warnings
from drfd.daemon.launcher_link.link import Link, Links
from drfd.daemon.launcher_link.messages import NodeFacts
from drfd.daemon.lookup.views import resources_view
from drfd.daemon.monitoring.gpu_use import (
    Keeping,
    MeasuredGpu,
    keepings,
    keepings_text,
    shared_text,
)
from drfd.daemon.monitoring.reserves import Reserves
from drfd.devices.gpus import GPU
from drfd.host.disks import Disk
from drfd.launcher.protocol import NO_PIN, Hello
from drfd.protocol.replies import CodeText, DiskView, EnforcementView, WindowView

LAUNCHER_AWAY = "LAUNCHER_AWAY"
MAINTENANCE = "MAINTENANCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallContext:
    """How this daemon was installed and started."""

    #: Of who has started it, also if it runs as another user (`daemon.user`).
    uid: int
    #: The configuration, whether it is there or not.
    config_file: Path
    #: Whether the daemon serves all users of the machine.
    is_systems: bool
    #: Whether the launcher is a service of systemd.
    is_service: bool
    has_systemd: bool
    #: Whether the user's services go on after the last session ends (loginctl enable-linger).
    lingers: bool


def cures(install: InstallContext, disks: Iterable[Disk], link: Link) -> list[str]:
    """Return a sentence for each problem and its remedy."""
    enforcement = None if link.hello is None else link.hello.kind
    control = "" if link.hello is None else link.hello.cores[link.settings.cores_by]
    found = []
    if not link.is_ready():
        where = "systemctl status drfd-launcher" if install.is_service else "the log of drfd"
        away = f"no job starts while the launcher is away: {where} says why"
        found.append(f"no job starts: {link.fault}" if link.fault else away)
    if enforcement == "none":
        found.append(
            "limits are only measured: run drfd as root on a machine with cgroups, "
            "and they will be enforced"
        )
    if NO_PIN in control:
        found.append(f"CPUs of their own need the cpuset controller: {_cpuset(enforcement)}")
    if enforcement == "cgroup-v2" and not link.has_ranges():
        found.append(f"ranges of cores need the cpu controller: {_DELEGATE}")
    if install.uid and not install.is_systems and install.has_systemd and not install.lingers:
        found.append(
            "your jobs may end when you log out: loginctl enable-linger, then start drfd again"
        )
    if not install.is_systems:
        found.append(
            "this daemon is for you alone: where several share a machine, root runs drfd install"
            if install.uid
            else "nothing starts this daemon again after a reboot: drfd install makes it a service"
        )
    found += [
        f"the speed of disk {disk.name} is a guess: drfd calibrate measures it, "
        "or set read and write under [[disk]]"
        for disk in disks
        if disk.is_guess
    ]
    return found


def _cpuset(enforcement: str | None) -> str:
    if enforcement == "cgroup-v1":
        return "mount -t cgroup -o cpuset cpuset /sys/fs/cgroup/cpuset, then start drfd again"
    return _DELEGATE


_DELEGATE = (
    "with Delegate=cpu cpuset io memory pids in its unit (for a daemon of your own, "
    "systemctl edit user@.service) systemd gives it; then start drfd again"
)
_PLACES = f"{', '.join(PRIVATE_PLACES[:-1])} and {PRIVATE_PLACES[-1]}"
_DIRECTIONS = ("read", "write")
#: Label of what is measured of GPUs.
_GPU_USE = "gpu use"
#: Label of how the memory is kept that jobs declare on each GPU.
_GPU_MEMORY = "gpu memory"
_GIVEN_OUT = (
    "not controlled: each job is told which are its own, and the kernel keeps it from no others"
)
_NO_GPU = (
    "not controlled: drfd gpus finds none here; each job is told which are its own, and the kernel "
    "keeps it from no others"
)


def doctor_view(site: Site, links: Links, journal_id: str) -> EnforcementView:
    """Return what is enforced here."""
    link = links.own
    hello = link.hello
    controls = (
        {} if hello is None else {each.name: disk_control(each, hello) for each in site.disks}
    )
    disks: list[DiskView] = [
        {
            "name": disk.name,
            "path": disk.path,
            "device": " ".join(disk.devices) or None,
            "filesystem": disk.filesystem,
            "read": disk.read_bps,
            "write": disk.write_bps,
            "control": controls.get(disk.name, {}),
            "guess": disk.is_guess,
            "problem": disk.why_none,
        }
        for disk in site.disks
    ]
    return {
        "version": __version__,
        "enforcement": None if hello is None else hello.kind,
        "controls": {
            **({} if hello is None else hello.controls),
            **({} if hello is None else {"cores": hello.cores[link.settings.cores_by]}),
            **_summary(controls),
            **countable_controls(site, hello),
            **gpu_use_control(site, link),
            **gpu_memory_control(site, link),
        },
        "private": {} if hello is None else private_view(hello),
        "processes": None if hello is None else hello.processes,
        "gres": {name: list(each) for name, each in own_countables(site).items()},
        "disks": disks,
        "capacity": resources_view(site.rules.axes.resources(site.rules.shares.capacity)),
        "warnings": [
            *site.warnings,
            *(() if hello is None else hello.warnings),
            *device_warnings(site.countables),
            *node_warnings(site.rules.axes, links),
        ],
        "stuck_jobs": sorted(job_id for job_id, _ in links.stuck),
        "strays": [
            {
                "id": job_id,
                "attempt": attempt,
                "uid": owner.uid,
                "user": owner.user,
                "is_foreign": owner.journal not in (None, journal_id),
            }
            for (job_id, attempt), owner in sorted(links.strays.items(), key=lambda each: each[0])
        ],
        "launcher": "connected" if link.is_ready() else "away",
    }


def node_warnings(axes: Axes, links: Links) -> list[str]:
    """Return what is the matter with nodes other than the controller's own machine: that nothing
    starts there, or that they have less than is configured."""
    faults, facts = links.node_faults(), links.node_facts()
    found = []
    for node in axes.nodes:
        if node.name == axes.home:
            continue
        if node.name in faults:
            why = faults[node.name] or "the launcher of Slurm's nodes is away"
            found.append(f"no job starts on node {node.name}: {why}")
        if node.name in facts:
            found += _shortages(node, facts[node.name])
    return found


def _shortages(node: ClusterNode, facts: NodeFacts) -> list[str]:
    """Return of what the configuration gives out more than Slurm does on the node."""
    cores, memory_bytes = node.capacity.cores_milli // 1000, node.capacity.memory_bytes
    table, found = f"[nodes.{node.name}]", []
    if cores > facts.cores:
        found.append(
            f"CPUs of node {node.name} is {facts.cores}, needed: at least {cores} (drfd gives out "
            f"more than there is: lower cores in {table}, or mend slurm.conf)"
        )
    if memory_bytes > facts.memory_bytes:
        found.append(
            f"RealMemory of node {node.name} is {facts.memory_bytes >> 20}M, needed: at least "
            f"{-(-memory_bytes >> 20)}M (drfd gives out more than there is: lower memory in "
            f"{table}, or mend slurm.conf)"
        )
    # Jobs with no more CPUs than there are cores find room, whatever each has.
    whole = facts.cores // facts.threads
    if facts.threads > 1 and cores > whole:
        found.append(
            f"ThreadsPerCore of node {node.name} is {facts.threads}, needed: CPUs={facts.cores} "
            f"without sockets, cores and threads in slurm.conf, or cores = {whole} in {table} "
            "(Slurm gives all threads of a core to one job, so that jobs wait in Slurm)"
        )
    return found


def own_countables(site: Site) -> dict[str, tuple[str, ...]]:
    """Return the instances of the controller's own machine, by resource. One that other nodes alone
    have is left out."""
    here = {each.name for each in site.countables}
    return {
        name: instances
        for name, instances in site.rules.axes.instances
        if instances or name in here
    }


def countable_controls(site: Site, hello: Hello | None) -> dict[str, str]:
    """Return how the instances of each countable resource are kept from jobs without them."""
    by_name = {each.name: each for each in site.countables}
    found = {}
    for name in own_countables(site):
        resource = by_name.get(name)
        if resource is None or not (resource.devices or name == GPU):
            found[name] = _GIVEN_OUT
        elif not resource.devices and not site.gpus:
            found[name] = _NO_GPU
        elif hello is not None:
            can_hide, text = hello.hiding
            found[name] = f"{'enforced' if can_hide else 'not controlled'}: {text}"
    return found


def gpu_use_control(site: Site, link: Link) -> dict[str, str]:
    """Return what is measured of GPUs; empty if the configuration has none, or while the launcher
    is away."""
    if GPU not in own_countables(site) or link.hello is None:
        return {}
    gpus = link.gpu_use.gpus()
    parts = [f"not measured: {link.gpu_use.why}"] if link.gpu_use.why else []
    if gpus:
        count = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
        parts.insert(0, f"measured on {count}{_missing_figures(gpus)}")
    return {_GPU_USE: "; ".join(parts) or "not measured: no GPU of NVIDIA has been read yet"}


def gpu_memory_control(site: Site, link: Link) -> dict[str, str]:
    """Return how the memory that jobs declare on each GPU is kept; empty as `gpu_use_control`."""
    found = gpu_keepings(site, link)
    if not found or link.hello is None:
        return {}
    text = keepings_text(found)
    if site.rules.axes.shared is not None:
        _, size = site.rules.axes.shared
        text = f"{shared_text(size, link.gpu_use.sizes(found))}; {text}"
    return {_GPU_MEMORY: text}


def gpu_keepings(site: Site, link: Link) -> dict[str, Keeping]:
    """Return how it is kept on each GPU that is given out."""
    names = dict(site.rules.axes.instances).get(GPU, ())
    if link.hello is None:
        return keepings(names, [], "the launcher is away")
    limited = link.hello.limits_gpus
    # Slices have one address, and no driver of slices limits their memory.
    whole = [gpu for gpu in link.gpus.known if gpu.pci in limited and ":" not in gpu.name]
    kept = [name for gpu in whole for name in (gpu.name, gpu.uuid) if name is not None]
    return keepings(names, link.gpu_use.gpus(), link.gpu_use.why, kept)


def _missing_figures(gpus: Sequence[MeasuredGpu]) -> str:
    """Return which figures some GPUs lack, or ""."""
    readings = [gpu.reading for gpu in gpus]
    counts = {
        "lost": sum(each["is_lost"] for each in readings),
        "without memory": sum(each["memory_used"] is None for each in readings),
        "without utilisation": sum(each["utilisation"] is None for each in readings),
        "without processes": sum(each["processes"] is None for each in readings),
    }
    found = [f"{count} {what}" for what, count in counts.items() if count]
    return f": {', '.join(found)}" if found else ""


def private_view(hello: Hello) -> dict[str, str]:
    """Return a sentence on temporary files and one on IPC: private, shared, or removed."""
    home = hello.private_tmp
    return {
        "tmp": f"each job has {_PLACES} of its own, on disk in {home}"
        if home
        else f"all jobs share {_PLACES}, and what they leave in /tmp and /var/tmp stays",
        "ipc": "System V IPC and /dev/shm of a user are emptied after the user's last job"
        if hello.removes_ipc
        else "System V IPC and files in /dev/shm stay when their user has no more jobs",
    }


def disk_control(disk: Disk, hello: Hello) -> dict[str, str]:
    """Return how the launcher controls reads and writes, as far as this disk allows it."""
    control = {name: hello.controls[name] for name in _DIRECTIONS}
    for name, text in control.items():
        if text.startswith("enforced") and not disk.devices:
            control[name] = f"not controlled: {disk.why_none}"
    if control.get("write") == "enforced" and not disk.attributes_writes:
        control["write"] += (
            f": direct I/O only; the kernel does not attribute buffered writes on {disk.filesystem}"
        )
    return control


def _summary(controls: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return a sentence per direction, naming the disks only where they differ."""
    summary = {}
    for name in _DIRECTIONS:
        found = {disk: control[name] for disk, control in controls.items() if name in control}
        if len(set(found.values())) == 1:
            summary[name] = next(iter(found.values()))
        elif found:
            summary[name] = "; ".join(f"disk {disk} {text}" for disk, text in found.items())
    return summary


# -- notices -------------------------------------------------------------------------------------


#: A window is announced when it begins within so many seconds: so long do most jobs run at most.
_ANNOUNCED_S = 86400.0


def window_views(calendar: Calendar) -> list[WindowView]:
    return [
        {
            "name": each.name,
            "start": each.start_s,
            "end": each.end_s,
            "reason": each.reason,
            "weekly": each.is_weekly,
        }
        for each in calendar.next_windows()
    ]


def window_notices(calendar: Calendar, now_s: float) -> list[CodeText]:
    """Return the notices of windows that are open or come soon."""
    found = []
    for each in calendar.windows:
        if each.end_s <= now_s or each.start_s > now_s + _ANNOUNCED_S:
            continue
        end = utc_time(each.end_s)
        if each.start_s <= now_s:
            text = f"maintenance until {end} ({each.name}); nothing starts before"
        else:
            text = (
                f"maintenance from {utc_time(each.start_s)} to {end} ({each.name}); no job "
                "starts that might not end before"
            )
        about = f": {each.reason}" if each.reason else ""
        found.append(_notice(MAINTENANCE, text + about))
    return found


def notices(
    install: InstallContext,
    link: Link,
    reserves: Reserves,
    calendar: Calendar,
    now_s: float,
) -> list[CodeText]:
    """Return the notices that apply now, the worst first."""
    found = [
        _notice(each.code, f"{each.text}: {each.refused} of users are refused; {each.cure}")
        for each in reserves.shortages()
    ]
    found += window_notices(calendar, now_s)
    away_s = link.away_s()
    if away_s is not None and link.is_missed():
        text = away_text(away_s, is_service=install.is_service, fault=link.fault)
        found.insert(0, _notice(LAUNCHER_AWAY, text))
    return found


def away_text(away_s: float, *, is_service: bool, fault: str | None = None) -> str:
    """Return the notice that the launcher is away. `is_service` says that systemd runs it, rather
    than this daemon; `fault` why it gets no orders though it is there."""
    if fault is not None:
        return f"no job starts or is stopped: {fault}"
    text = f"the launcher has been away for {show_duration(away_s)}: no job starts or is stopped "
    if is_service:
        return text + "until it is back; systemctl start drfd-launcher starts it"
    return text + "until it is back; it is started again by itself, and the log of drfd says why"


def _notice(code: str, text: str) -> CodeText:
    return {"code": code, "text": text}
