"""Messages of the link: orders made from jobs, and the launcher's reports as typed values.

The classes of reports have the keys of their messages. A report on one attempt is a stimulus of the
core.

The variables that name a job's instances of countable resources (GRES):

    DRF_GRES_GPU           "0,1", for each resource that the job asked for
    CUDA_VISIBLE_DEVICES   for a resource called gpu: the same, read by CUDA and by what follows it
    HIP_VISIBLE_DEVICES    the same for AMD's HIP
    CUDA_DEVICE_ORDER      PCI_BUS_ID, so that numbers mean what nvidia-smi shows and what they mean
                           to other jobs: CUDA by itself counts the fastest device first

Where GPUs are found on the machine, `device_table` names them in place of these lists, and
says which nodes are hidden. Where none is found, the lists inform and do not enforce.

Where GPUs are given out, a job that asked for none is shown none: -1 is no device to both CUDA and
HIP, while an empty HIP_VISIBLE_DEVICES counts as unset. ROCR_VISIBLE_DEVICES and
GPU_DEVICE_ORDINAL, which renumber the devices below HIP's own list, are removed: two lists that are
both meant for the whole machine would leave nothing (AMD, "GPU isolation techniques").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
from msgspec import Struct, structs

from drfd.common.owner import Owner, read_owner
from drfd.common.units import MAIN, show_cores
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.model.job import (
    Array,
    Job,
    Usage,
    notice_demand,
    shares_output,
    submitted_us,
)
from drfd.core.model.machine import Instance, Instances
from drfd.core.model.resources import Resources
from drfd.daemon.countable import Countables, names_with_nodes
from drfd.daemon.launcher_link.device_table import Found, Grant
from drfd.daemon.launcher_link.failures import NoticeEnd, StartFailure, judge
from drfd.devices.gpus import GPU
from drfd.host.disks import Disk, rates_by_device
from drfd.launcher import protocol
from drfd.payload.environment import (
    BELOW_DEVICE_LISTS,
    DEVICE_LISTS,
    DEVICE_ORDER,
    GRES_PREFIX,
    plain,
    threads_of,
)
from drfd.payload.unpack import decode

#: The device list of a job that has no GPU.
_NONE = "-1"
#: Fields of `Usage` that the cgroup alone counts.
_COUNTERS = (
    *("quota_periods", "throttled_periods", "throttled_us", "limit_hits", "oom_kills"),
    *("io_stalled_us", "processes_peak", "largest_process_bytes"),
)
#: Most characters of a reason in a notification.
_MAX_REASON = 4096


def device_variables(instances: Instances, gres: Collection[str]) -> dict[str, str]:
    """Return the variables that name a job's instances; they override the submitter's. `gres` names
    the countable resources of this machine."""
    lists = {name: ",".join(each) for name, each in instances}
    found = {f"{GRES_PREFIX}{name.upper()}": text for name, text in lists.items()}
    if GPU in gres:
        found |= dict.fromkeys(DEVICE_LISTS, lists.get(GPU, _NONE))
        found[DEVICE_ORDER] = "PCI_BUS_ID"
    return found


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """The configured limits of all jobs that start from now on."""

    disks: Sequence[Disk]
    #: Processes of one job, at most.
    max_pids: int
    #: One of `launcher.protocol.CORES_MODES`.
    cores_by: str
    countables: Countables = ()


def order_for(
    job: Job,
    journal_id: str,
    settings: LaunchSettings,
    array: Array | None = None,
    countables: Instances = (),
    proof: str | None = None,
    beside: Iterable[Job] = (),
    capacity_milli: int = 0,
    home: str = "",
    found: Found = Found(),  # noqa: B008  # immutable
) -> protocol.LaunchOrder:
    """Return the order to launch the job's present attempt.

    `array` is the array that the job is a task of, and `countables` are the instances that this
    machine gives out. `proof` is the user's signature of the submission,
    and `beside` are the jobs that run now, whose outputs must not be emptied. `capacity_milli` are
    the cores of a machine that divides them between ranges, 0 of another. `home` is the
    controller's own node, if there are others: another one chooses instances itself, and is told
    only how many the job is given. `found` are its devices here.
    """
    spec, demand = job.spec, job.spec.demand
    # Instances that the job has been given stay its own when the configuration changes.
    named = {name for name, _ in (*countables, *job.instances)}
    is_away = job.node not in ("", home)
    most_milli = 0 if is_away else min(spec.cores_max_milli, capacity_milli)
    has_range = most_milli > demand.cores_milli
    limits = protocol.AttemptLimits(
        cores_milli=demand.cores_milli,
        cores_max_milli=most_milli if has_range else 0,
        memory_bytes=demand.memory_bytes,
        pids=settings.max_pids,
        cores_by=settings.cores_by,
        groups=groups_of(spec.leaf),
        disks=limits_everywhere(demand) if is_away else disk_limits(demand, settings.disks),
    )
    return protocol.LaunchOrder(
        id=job.id,
        attempt=job.attempt,
        uid=spec.uid,
        user=spec.user,
        journal=journal_id,
        submitted_us=submitted_us(job),
        gid=spec.gid,
        array_id=job.array_id or 0,
        array_index=job.array_index or 0,
        name=spec.name,
        threads=threads_of(limits.quota_milli),
        variables=_plain(
            {
                "DRF_JOB_ID": str(job.id),
                "DRF_JOB_NAME": spec.name,
                "DRF_POOL": spec.pool,
                "DRF_ATTEMPT": str(job.attempt),
                "DRF_CORES": show_cores(demand.cores_milli),
                "DRF_MEMORY": str(demand.memory_bytes),
                **({"DRF_CORES_MAX": show_cores(most_milli)} if has_range else {}),
                **device_variables(job.instances, named),
                **found.variables,
                **({} if array is None else _array_variables(job, array)),
            }
        ),
        # Variables with GRES_PREFIX are always hidden, without being named here.
        hidden=BELOW_DEVICE_LISTS if GPU in named else (),
        limits=limits,
        proof=proof,
        tells_start="start" in spec.notify,
        empties_output=not job.restarts and not (spec.append or shares_output(job, beside)),
        output_max_bytes=spec.output_max_bytes or 0,
        devices=found.devices,
        gres=demand.gres if is_away else (),
        node=job.node if is_away else "",
    )


def _plain(variables: dict[str, str]) -> dict[str, str]:
    return {name: plain(text) for name, text in variables.items()}


def groups_of(path: str) -> tuple[str, ...]:
    """Return the names of the cgroups of a node of the fair-share tree, the outermost first."""
    return tuple(f"of-{quote(part, safe='')[:200]}" for part in path.split(".")[1:])


def grants_for(
    job: Job, instances: Instances, taken: Iterable[Instance], countables: Countables
) -> Iterator[Grant]:
    """Yield what a job is given of each resource with device nodes, and what others may have: also
    what is not in the configuration any more, and stays with jobs that run. `instances` are those
    that this machine gives out, and `taken` those that jobs have."""
    listed, held, with_nodes = dict(instances), tuple(taken), names_with_nodes(countables)
    # GPUs are found; nodes of other resources are named in the configuration.
    is_gpu_in_use = GPU in dict((*held, *job.instances))
    for name in sorted(with_nodes | {GPU} if is_gpu_in_use else with_nodes):
        mine = dict(job.instances).get(name, ())
        others = (*listed.get(name, ()), *(each for kind, each in held if kind == name))
        if mine or others:
            foreign = dict.fromkeys(each for each in others if each not in mine)
            memory_bytes = dict(job.spec.demand.gres_memory).get(name, 0)
            yield Grant(name=name, given=mine, others=tuple(foreign), memory_bytes=memory_bytes)


def notice_for(job: Job, launch: protocol.LaunchOrder) -> protocol.LaunchOrder | None:
    """Return the order to notify the job's owner of its end, made from its launch order, or None if
    the owner did not ask for such an end or only an attempt has ended."""
    if not job.notifies_end:
        return None
    assert job.outcome is not None
    ran_s = 0.0
    if job.started_at is not None and job.ended_at is not None:
        ran_s = max(0.0, job.ended_at - job.started_at - job.frozen_s(job.ended_at))
    variables = {
        "DRF_STATE": job.outcome.value,
        "DRF_REASON": job.outcome_text.replace("\0", "")[:_MAX_REASON],
        "DRF_EXIT_CODE": "" if job.exit_code is None else str(job.exit_code),
        "DRF_SIGNAL": "" if job.signal is None else str(job.signal),
        "DRF_ELAPSED": str(round(ran_s)),
    }
    demand = notice_demand(job.spec.demand)
    limits = structs.replace(
        launch.limits,
        cores_milli=demand.cores_milli,
        cores_max_milli=0,
        memory_bytes=demand.memory_bytes,
        cores_by=protocol.QUOTA,
    )
    return structs.replace(
        launch,
        is_notice=True,
        threads=1,
        tells_start=False,
        output_max_bytes=0,
        variables=launch.variables | _plain(variables),
        limits=limits,
    )


def _array_variables(job: Job, array: Array) -> dict[str, str]:
    count, least, most, step = array.told_indices
    return {
        "DRF_ARRAY_ID": str(array.id),
        "DRF_ARRAY_INDEX": str(job.array_index),
        "DRF_ARRAY_COUNT": str(count),
        "DRF_ARRAY_MIN": str(least),
        "DRF_ARRAY_MAX": str(most),
        "DRF_ARRAY_STEP": str(step),
    }


#: The submitter's variable that asks for Slurm's, of a job whose script was written for Slurm. The
#: submitter has set those that do not depend on the job's id or its launch.
_SLURM_WANTED = "DRF_SLURM"


def with_slurm_variables(
    order: protocol.LaunchOrder, payload: bytes, restarts: int = 0
) -> protocol.LaunchOrder:
    """Return the launch order with Slurm's variables, if the submitter's ask for them. `restarts`
    is the number of runs before this one."""
    if _SLURM_WANTED.encode() not in payload or _SLURM_WANTED not in decode(payload).env:
        return order
    own = order.variables
    pool, no_pool = own.get("DRF_POOL", ""), plain(f"root.{order.user}")
    cpus = str(max(1, -(-order.limits.cores_milli // 1000)))
    found = {
        "SLURM_JOB_ID": str(order.id),
        "SLURM_JOBID": str(order.id),
        "SLURM_JOB_NAME": order.name,
        "SLURM_JOB_USER": order.user,
        "SLURM_JOB_UID": str(order.uid),
        # As in squeue.
        "SLURM_JOB_PARTITION": MAIN if pool == no_pool else pool.rsplit(".", 1)[-1],
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_MEM_PER_NODE": str(order.limits.memory_bytes >> 20),
    }
    if restarts:
        found["SLURM_RESTART_COUNT"] = str(restarts)
    gpus = own.get("DRF_GRES_GPU")
    if gpus:
        found["SLURM_JOB_GPUS"] = gpus
        found["SLURM_GPUS_ON_NODE"] = str(len(gpus.split(",")))
    if order.array_id:
        found["SLURM_ARRAY_JOB_ID"] = str(order.array_id)
        found["SLURM_ARRAY_TASK_ID"] = str(order.array_index)
        for name in ("COUNT", "MIN", "MAX", "STEP"):
            found[f"SLURM_ARRAY_TASK_{name}"] = own.get(f"DRF_ARRAY_{name}", "")
    return structs.replace(order, variables=own | _plain(found))


def disk_limits(demand: Resources, disks: Sequence[Disk]) -> tuple[protocol.DiskLimit, ...]:
    """Return the declared rates as limits on each managed disk that the kernel can limit."""
    return tuple(
        protocol.DiskLimit(device=device, read_bps=read_bps, write_bps=write_bps)
        for device, (read_bps, write_bps) in rates_by_device(demand, disks).items()
    )


def limits_everywhere(demand: Resources) -> tuple[protocol.DiskLimit, ...]:
    """Return the declared rates as limits on each disk of a node which finds its disks itself. Of
    rates for disks by name, which are the controller's, the highest holds."""
    _, reads, writes = zip(("", demand.read_bps, demand.write_bps), *demand.disks, strict=True)
    limit = protocol.DiskLimit(
        device=protocol.EVERY_DISK, read_bps=max(reads), write_bps=max(writes)
    )
    return (limit,) if limit.read_bps or limit.write_bps else ()


class ListedReport(Struct, tag_field="report", tag="listed", frozen=True):
    """The end of the answer to `list`: every attempt that the launcher knows."""

    known: tuple[AttemptKey, ...]
    #: The known facts of each owner, by `id.attempt`.
    owner_facts: dict[str, dict[str, object]] = msgspec.field(default_factory=dict, name="owners")

    @property
    def owners(self) -> dict[AttemptKey, Owner]:
        found = self.owner_facts
        return {(job, n): read_owner(found.get(f"{job}.{n}", {})) for job, n in self.known}


class StuckReport(Struct, tag_field="report", tag="stuck", frozen=True):
    """Processes of the attempt cannot be killed."""

    id: int
    attempt: int

    @property
    def key(self) -> AttemptKey:
        return self.id, self.attempt


class ExecReport(Struct, tag_field="report", tag="exec", frozen=True, kw_only=True):
    """The answer to the order to move a process into an attempt."""

    number: int
    #: Why it has not been moved; None if it has.
    text: str | None


class GpusReport(Struct, tag_field="report", tag="gpus", frozen=True, kw_only=True):
    """A line of the process that measures GPUs. It has no rights, so the launcher
    passes it on as it is."""

    line: str


class StartFailedReport(st.Report, tag="start_failed", frozen=True, kw_only=True):
    """The attempt's program could not be started, as is on record."""

    failed: StartFailure

    def in_words(self) -> st.LaunchFailedReport:
        text, whose, resource = self.failed.in_words(self.owner.user)
        return st.LaunchFailedReport(
            self.at_s, self.job_id, self.attempt, self.owner_facts, text=text, whose=whose,
            resource=resource,
        )  # fmt: skip


class NotifiedReport(st.Report, tag="notified", frozen=True, kw_only=True):
    """Nothing of the attempt is left, and its owner was to be notified."""

    #: Why the command was not run; or why it could not be started; or how it has ended.
    text: str = ""
    failed: StartFailure | None = None
    ended: NoticeEnd = NoticeEnd()

    def in_words(self) -> st.RemovedReport:
        notice = self.text or self.ended.in_words()
        if self.failed is not None:
            notice = f"failed: {self.failed.in_words(self.owner.user).text}"
        return st.RemovedReport(
            self.at_s, self.job_id, self.attempt, self.owner_facts, notice=notice
        )


class NodeFacts(Struct, frozen=True):
    """What a launcher knows of one of its nodes."""

    cores: int
    memory_bytes: int
    #: Why it starts no jobs; empty if it does.
    fault: str
    #: How many of `cores` are given out together, as the hardware threads of one core.
    threads: int = 1


class NodesReport(Struct, tag_field="report", tag="nodes", frozen=True, kw_only=True):
    """All nodes on which the launcher can start jobs. One of the controller's own machine alone
    does not report any."""

    #: Why none of them starts jobs, or None.
    away: str | None
    nodes: dict[str, NodeFacts]

    def fault_of(self, name: str) -> str:
        """Return why the node starts no jobs, or nothing if it does."""
        if self.away is not None:
            return self.away
        return self.nodes[name].fault if name in self.nodes else "Slurm has no node of this name"


Report = ListedReport | StuckReport | ExecReport | GpusReport | NodesReport | st.AttemptReport


_Raw = Report | StartFailedReport | NotifiedReport
_decode = msgspec.json.Decoder[_Raw](_Raw).decode


def read_report(line: bytes) -> Report:
    """Return the typed value of a report's line. Raises BadMessage for one that cannot be
    understood."""
    try:
        report = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = f"a report of the launcher cannot be understood: {error}"
        raise protocol.BadMessage(text) from None
    match report:
        case StartFailedReport() | NotifiedReport():
            return report.in_words()
        case st.ExitedReport(counters=dict(counters)):
            return _judged(report, counters)
    return report


def _judged(report: st.ExitedReport, counters: dict[str, int]) -> st.ExitedReport:
    """Return a report with what its counters say. That a job was killed for memory is not believed
    of one that was stopped from outside."""
    killed, over_limit, counted = judge(counters)
    if report.peak_bytes:
        counted["largest_process_bytes"] = report.peak_bytes
    was_stopped = report.loss in (protocol.STOPPED, protocol.SHUTDOWN)
    return structs.replace(
        report,
        counters=None,
        oom_killed=killed and not was_stopped,
        over_limit=over_limit and not was_stopped,
        counted=counted,
    )


def final_usage(report: st.ExitedReport, measured: Usage | None) -> Usage:
    """Return the usage as counted by the cgroup or, without one, as the runner measured it.
    `measured` is the last reading of the attempt's usage, or None."""
    measured, counted = measured or Usage(), report.counted
    peak = max(measured.memory_peak_bytes, counted.get("memory_peak_bytes", 0))
    return structs.replace(
        measured,
        cores_milli=0,
        memory_bytes=0,
        gpu_memory_bytes=None,
        gpu_percent=None,
        # The runner's peak counts pages that the cgroup does not, so it is the second choice.
        memory_peak_bytes=peak or report.peak_bytes,
        read_bytes=max(measured.read_bytes, report.read_bytes),
        written_bytes=max(measured.written_bytes, report.written_bytes),
        cpu_s=max(measured.cpu_s, report.cpu_s, counted.get("cpu_us", 0) / 1e6),
        **{name: counted.get(name) for name in _COUNTERS},
    )
