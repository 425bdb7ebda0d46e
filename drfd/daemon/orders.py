"""From a job to the launcher's order, and from the launcher's reports to stimuli."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from drfd.core import stimuli as st
from drfd.core.array import Array
from drfd.core.job import Job, Usage, output_path
from drfd.core.resources import Resources
from drfd.core.retry import is_to_retry
from drfd.daemon.threads import thread_counts
from drfd.daemon.visible import device_variables, without_devices
from drfd.errors import HostError
from drfd.host.disks import Disk
from drfd.journal.records import Payload
from drfd.launcher.protocol import DiskLimit, Limits, Message, Order
from drfd.units import show_cores


def order_for(
    job: Job,
    payload: Payload,
    disks: Sequence[Disk],
    max_pids: int,
    cores_by: str,
    array: Array | None = None,
    gres: Collection[str] = (),
) -> Order:
    """`array`: the one that it is a task of. `gres`: the countables that this machine gives out."""
    spec, demand = job.spec, job.spec.demand
    # What it has been given, it has, whatever the configuration says since.
    named = {*gres, *(name for name, _ in job.instances)}
    env = without_devices(payload.env, named)
    limits = Limits(
        cores_milli=demand.cores_milli,
        memory_bytes=demand.memory_bytes,
        pids=max_pids,
        cores_by=cores_by,
        disks=disk_limits(demand, disks),
    )
    return Order(
        id=job.id,
        attempt=job.attempt,
        uid=spec.uid,
        gid=spec.gid,
        umask=spec.umask,
        cwd=spec.cwd,
        argv=spec.argv,
        env=thread_counts(demand.cores_milli, env) | env,
        variables={
            "DRF_JOB_ID": str(job.id),
            "DRF_JOB_NAME": spec.name,
            "DRF_POOL": spec.pool,
            "DRF_ATTEMPT": str(job.attempt),
            "DRF_CORES": show_cores(demand.cores_milli),
            "DRF_MEMORY": str(demand.memory_bytes),
            **device_variables(job.instances, named),
            **({} if array is None else _array_variables(job, array)),
        },
        script=payload.script,
        stdout=output_path(spec.stdout, job),
        stderr=output_path(spec.stderr, job),
        attach=spec.attach,
        limits=limits,
        on_start=spec.notify.argv if spec.notify and "start" in spec.notify.on else (),
    )


def notice_for(job: Job, launch: Order) -> Order | None:
    """The order to tell the job's owner of its end, made of the one that it was launched by; None:
    nobody wants to hear of such an end, or it is only the end of an attempt."""
    notify = job.spec.notify
    if notify is None or job.outcome is None or is_to_retry(job):
        return None
    if not notify.wants(job.outcome):
        return None
    ran_s = 0.0
    if job.started_at is not None and job.ended_at is not None:
        ran_s = max(0.0, job.ended_at - job.started_at)
    told = {
        "DRF_STATE": job.outcome.value,
        "DRF_REASON": job.outcome_text.replace("\0", ""),
        "DRF_EXIT_CODE": "" if job.exit_code is None else str(job.exit_code),
        "DRF_SIGNAL": "" if job.signal is None else str(job.signal),
        "DRF_ELAPSED": str(round(ran_s)),
        "DRF_STDOUT": launch.stdout,
        "DRF_STDERR": launch.stderr,
    }
    return replace(
        launch, argv=notify.argv, script=None, attach=None, on_start=(),
        variables=launch.variables | told,
    )  # fmt: skip


def _array_variables(job: Job, array: Array) -> dict[str, str]:
    return {
        "DRF_ARRAY_ID": str(array.id),
        "DRF_ARRAY_INDEX": str(job.array_index),
        "DRF_ARRAY_COUNT": str(array.size),
        "DRF_ARRAY_MIN": str(array.spans[0][0]),
        "DRF_ARRAY_MAX": str(array.spans[-1][1]),
    }


def disk_limits(demand: Resources, disks: Sequence[Disk]) -> tuple[DiskLimit, ...]:
    """The declared rates, as limits on each managed disk that the kernel can limit. What is
    declared by name for two disks on one device adds up there; what is declared for all does not.
    """
    limits: dict[str, tuple[int, int]] = {}
    for disk in disks:
        read_bps, write_bps = demand.rates(disk.name)
        for device in disk.devices:
            more = limits.get(device, (0, 0)) if demand.disks else (0, 0)
            limits[device] = read_bps + more[0], write_bps + more[1]
    return tuple(
        DiskLimit(device=device, read_bps=read_bps, write_bps=write_bps)
        for device, (read_bps, write_bps) in limits.items()
        if read_bps or write_bps
    )


def stimulus_for(report: Message, now: st.Now, measured: Usage | None) -> st.Stimulus:
    """What a report about one attempt tells the core. `measured`: the last reading of its use."""
    key = {"job_id": report["id"], "attempt": report["attempt"]}
    match report["report"]:
        case "up":
            return st.RunnerUp(
                **key, at_s=report["at_s"], mono_s=report["mono_s"], cgroup=report["cgroup"]
            )
        case "broke":
            return st.LaunchBroke(now, **key, text=report["text"])
        case "ended":
            return st.RunnerEnded(
                **key,
                at_s=report["at_s"],
                mono_s=report["mono_s"],
                exit_code=report["exit_code"],
                signal=report["signal"],
                oom_killed=report["oom_killed"],
                over_limit=report["over_limit"],
                usage=_final_usage(report, measured),
            )
        case "frozen":
            return st.Frozen(now, **key)
        case "missing":
            return st.AttemptMissing(now, **key)
        case "removed":
            return st.CgroupGone(now, **key, notice=report.get("notice"))
        case kind:
            raise HostError("launcher", f"the launcher reports {kind!r}, which is unknown here")


#: What is known from the kernel's counters alone, or not at all.
_COUNTED = (
    *("quota_periods", "throttled_periods", "throttled_us"),
    *("limit_hits", "oom_kills", "io_stalled_us", "processes_peak", "largest_process_bytes"),
)


def _final_usage(report: Message, measured: Usage | None) -> Usage:
    """What the cgroup counted, or where there is none, what the runner saw in its children."""
    measured = measured or Usage()
    counted = report.get("counted", {})
    peak = max(measured.memory_peak_bytes, counted.get("memory_peak_bytes", 0))
    return Usage(
        # A child's peak counts pages that the cgroup does not: second choice.
        memory_peak_bytes=peak or report.get("peak_bytes", 0),
        read_bytes=max(measured.read_bytes, report.get("read_bytes", 0)),
        written_bytes=max(measured.written_bytes, report.get("written_bytes", 0)),
        cpu_s=max(measured.cpu_s, report.get("cpu_s", 0.0), counted.get("cpu_us", 0) / 1e6),
        memory_mean_bytes=measured.memory_mean_bytes,
        memory_working_bytes=measured.memory_working_bytes,
        late_cores_milli=measured.late_cores_milli,
        read_peak_bps=measured.read_peak_bps,
        write_peak_bps=measured.write_peak_bps,
        **{name: counted.get(name) for name in _COUNTED},
    )
