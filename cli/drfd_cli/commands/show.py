"""drf show: everything about one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from drfd.client.option_values import words_of
from drfd.client.words import Ref
from drfd.common.units import show_duration, show_size
from drfd_cli import charts, output
from drfd_cli.options import connect, job_ids, prints_result
from drfd_cli.output import Result, of_each, pick

if TYPE_CHECKING:
    from drfd.protocol.replies import (
        AllRunsView,
        ConditionsView,
        CurveView,
        DetailPart,
        ExplainedArrayView,
        ExplainedJobView,
        ResourcesView,
        ShowReply,
        SubmittedView,
        UsedView,
    )

#: Maximum length of a list of indices, in characters.
_INDICES = 200
#: Width of the labels, and maximum width of a curve, in columns.
_LABEL, _CURVE = 10, 90
#: Keys of the reply with the numbers of events that it leaves out and that are no longer stored.
_EVENT_COUNTS = ("events_omitted", "events_dropped")


@click.command("show")
@job_ids(required=True, only_read=True)
@prints_result()
def command(ids: tuple[Ref, ...]) -> Result:
    """Everything about a job, or several: demand, use, attempts, events, outcome."""
    client = connect()
    return of_each(ids, lambda job_id: client.request("show", id=job_id), _show, _view)


def _view(reply: ShowReply) -> Mapping[str, object]:
    shown: Mapping[str, object] = reply["array"] if "array" in reply else reply["job"]
    told: Mapping[str, object] = reply
    # "used" is known only after the job has ended, "curve" also while it runs.
    kinds = ("used", "all_runs", "curve")
    more = {key: told[key] for key in kinds if told.get(key) is not None}
    # A daemon that has not been restarted since an update sends all events.
    counts = pick(reply, _EVENT_COUNTS)
    return {**shown, "events": reply["events"], **counts, **more}


def _show(reply: ShowReply) -> None:
    lines = (
        array_lines(reply["array"])
        if "array" in reply
        else job_lines(reply["job"], reply.get("used"), reply.get("curve"), reply.get("all_runs"))
    )
    for label, value in lines:
        output.tell(f"{label:<{_LABEL}} {output.clean(value, 1000)}")
    output.tell("events")
    if omitted := reply.get("events_omitted"):
        output.tell(f"  {omitted} between the first and the last ones are not shown")
    if dropped := reply.get("events_dropped"):
        output.tell(f"  {dropped} between the first and the last ones were not kept")
    for event in reply["events"]:
        line = f"{output.show_time(event['at'])}  {event['event']:<17} {event['text']}"
        output.tell(f"  {output.clean(line, 400).rstrip()}")


def _preemptible(job: SubmittedView) -> list[tuple[str, str]]:
    is_so = job.get("preemptible", False)
    return [("preemptible", "it may be stopped for others, and run again")] if is_so else []


def _options(shown: ExplainedJobView | ExplainedArrayView) -> list[tuple[str, str]]:
    """Return the line with all options that the job has, but conditions of its start."""
    words = [word for some in words_of(shown.get("options", {})) for word in some]
    return [("options", output.shell_line(words))] if words else []


def _conditions(job: ConditionsView) -> list[tuple[str, str]]:
    """Return the lines for start conditions, the warning and retries."""
    lines = []
    # A daemon that has not been restarted since an update may not send them.
    if after := job.get("after"):
        names = (f"{each.get('label', each['id'])}:{each['want']}" for each in after)
        lines.append(("after", ", ".join(names)))
    if begin_s := job.get("begin_at"):
        lines.append(("begin", output.show_time(begin_s)))
    if job.get("if_never") == "cancel" and job["after"]:
        lines.append(("if never", "cancelled when that can no longer be met"))
    if retry := job.get("retry"):
        on = ", ".join(retry["on"])
        lines.append(("retry", f"{retry['done']} of {retry['times']} used, after {on}"))
    if warn := job.get("warn"):
        before = show_duration(warn["before_s"])
        lines.append(("warning", f"{warn['signal']} {before} before the time limit"))
    return lines


def _demand(demand: ResourcesView) -> str:
    cores, memory, io = output.show_demand(demand)
    unit = "core" if cores == "1" else "cores"
    gres = f", {output.show_gres_demand(demand)}" if demand["gres"] else ""
    return f"{cores} {unit}, {memory} memory, io {_io(demand) or io}{gres}"


def _unlent(shown: DetailPart) -> list[tuple[str, str]]:
    lines = [("range", shown["unlent"])] if "unlent" in shown else []
    if "lent" in shown:
        lines.append(("loan", shown["lent"]["text"]))
    return lines + [("loan", each["text"]) for each in shown.get("lent_disks", ())]


def _group(job: SubmittedView) -> list[tuple[str, str]]:
    """Return the line for the user's own group that the job is in."""
    at_once = job.get("group_at_once")
    bound = "" if at_once is None else f", {at_once} at once"
    return [("group", f"{job['group']}{bound}")] if "group" in job else []


def _placing(shown: SubmittedView) -> list[tuple[str, str]]:
    """Return the line for the machines that will do."""
    only, features = shown.get("only_node"), shown.get("features")
    words = [f"only {only}"] if only else []
    if features:
        words.append(f"with {', '.join(features)}")
    return [("machines", " ".join(words))] if words else []


def _memory_nodes(job: ExplainedJobView) -> list[tuple[str, str]]:
    nodes = job.get("memory_nodes")
    if not nodes:
        return []
    return [("near", f"memory node {', '.join(map(str, nodes))}")]


def _retry_of(job: SubmittedView) -> list[tuple[str, str]]:
    """Return the line for the job or array that this one repeats."""
    if "retry_of" not in job:
        return []
    index = job["array_index"]
    return [("retry of", f"{job['retry_of']}" + ("" if index is None else f"_{index}"))]


def _limited(path: str, job: SubmittedView) -> str:
    most = job.get("output_max_bytes")
    return path if most is None else f"{path} (at most {show_size(most)})"


def array_lines(array: ExplainedArrayView) -> list[tuple[str, str]]:
    limit, submitted_at = array["time_limit_s"], array["submitted_at"]
    tasks = ", ".join(f"{count} {state}" for state, count in sorted(array["counts"].items()))
    return [
        ("array", f"{array['id']} ({array['name']}) of {array['user']}, pool {array['pool']}"),
        ("indices", array["array_tasks"]),
        ("tasks", f"{array['tasks']}: {tasks}"),
        *(
            (state.lower().replace("_", " "), output.clean(text, _INDICES))
            for state, text in array["indices"].items()
        ),
        ("demand", f"{_demand(array['demand'])} each"),
        *_placing(array),
        *_unlent(array),
        ("limit", "no time limit" if limit is None else show_duration(limit)),
        *_retry_of(array),
        *_group(array),
        *_preemptible(array),
        *_conditions(array),
        *_options(array),
        ("submitted", output.show_time(submitted_at)),
        ("command", output.shell_line(array["argv"])),
        ("directory", array["cwd"]),
        ("output", _limited(array["stdout"], array)),
        *_errors(array),
    ]


def job_lines(
    job: ExplainedJobView,
    used: UsedView | None,
    points: CurveView | None,
    all_runs: AllRunsView | None = None,
) -> list[tuple[str, str]]:
    usage = job["usage"]
    limit = job["time_limit_s"]
    attempt = f"attempt {job['attempt']}"
    # A job that has ended with a peak of 0 was over before its memory was measured.
    peak = show_size(usage["memory_peak"]) if usage["memory_peak"] else "unknown"
    lines = [
        ("job", f"{output.label(job)} ({job['name']}) of {job['user']}, pool {job['pool']}"),
        ("state", f"{job['state']}, {job.get('attempts') or attempt}"),
        ("why", output.why_line(job) or "-"),
        ("demand", _demand(job["demand"])),
        *_placing(job),
        *([("node", job["node"])] if "node" in job else []),
        *_unlent(job),
        *_retry_of(job),
        *_group(job),
        *((name, ",".join(each)) for name, each in job.get("gres_instances", {}).items()),
        *_memory_nodes(job),
        *([("CPUs", f"{job['cpus']}, for itself")] if job.get("cpus") else []),
        ("limit", "no time limit" if limit is None else show_duration(limit)),
        ("used", _used_words(job, peak)),
        *_lent_lines(job),
        *_gpu_lines(job),
        *_gpu_limit(job),
        *_all_runs(all_runs),
        *_curve_lines(points, job["demand"]),
        *_kernel_lines(used),
        *_preemptible(job),
        *_conditions(job),
        *_options(job),
        ("submitted", output.show_time(job["submitted_at"])),
        ("started", output.show_time(job["started_at"])),
        ("ended", output.show_time(job["ended_at"])),
        ("cgroup", job["cgroup"] or "none"),
    ]
    if job["argv"] is not None:
        lines += [
            ("command", output.shell_line(job["argv"])),
            ("directory", job["cwd"] or ""),
            ("output", _limited(job["stdout"] or "", job)),
            *_errors(job),
        ]
    else:
        lines.append(("not shown", "its command, files, conditions and events, but to its owner"))
    return lines


def _used_words(job: ExplainedJobView, peak: str) -> str:
    usage = job["usage"]
    amounts = (usage["cpu_seconds"], usage["memory_peak"], usage["read_bytes"])
    if "node" in job and not any((*amounts, usage["written_bytes"])):
        return f"not measured on {output.clean(job['node'])}"
    return (
        f"{usage['cpu_seconds']:.1f} s of CPU, {peak} peak memory,"
        f" {show_size(usage['read_bytes'])} read, {show_size(usage['written_bytes'])} written"
    )


def _lent_lines(job: ExplainedJobView) -> list[tuple[str, str]]:
    """Return the line for a job that has used more than the lower end of its range of cores."""
    lent_s = job["usage"].get("lent_cpu_seconds")
    return [("lent", f"{lent_s:.1f} s of CPU, beyond what it holds")] if lent_s else []


def _gpu_lines(job: ExplainedJobView) -> list[tuple[str, str]]:
    """Return the line for a job that was given GPUs, or that has memory on one."""
    usage = job["usage"]
    peak, mean = usage.get("gpu_memory_peak"), usage.get("gpu_utilisation_mean")
    if not job["demand"]["gres"].get("gpu") and not peak:
        return []
    if peak is None and mean is None:
        return [("GPU use", "not measured")] if job["started_at"] is not None else []
    memory, busy = usage.get("gpu_memory"), usage.get("gpu_utilisation")
    words = [f"{show_size(memory)} of memory"] if memory is not None else []
    words += [f"{show_size(peak)} peak memory"] if peak is not None else []
    words += [f"{busy}% busy"] if busy is not None else []
    words += [f"{mean}% on average"] if mean is not None else []
    return [("GPU use", ", ".join(words))]


def _gpu_limit(job: ExplainedJobView) -> list[tuple[str, str]]:
    """Return the line for a live job that declares its memory on each GPU."""
    limit = job["demand"].get("gres_memory", {}).get("gpu")
    if limit is None or "gpu_memory_each" not in job:
        return []
    words = [
        f"{show_size(used)} of {show_size(limit)} on GPU {name}"
        for name, used in job["gpu_memory_each"].items()
    ]
    words += [job["gpu_memory_unkept"]] if "gpu_memory_unkept" in job else []
    return [("GPU memory", "; ".join(words))] if words else []


def _errors(shown: ExplainedJobView | ExplainedArrayView) -> list[tuple[str, str]]:
    """Return the line for the file of the errors, if that is not the file of the output."""
    path = shown["stderr"]
    return [] if path == shown["stdout"] else [("errors", path or "")]


def _all_runs(sums: AllRunsView | None) -> list[tuple[str, str]]:
    """Return the line for a job that has run before its last attempt."""
    if sums is None:
        return []
    cpu_s = sums["cpu_seconds"]
    cpu = "" if cpu_s is None else f", {cpu_s:.1f} s of CPU"
    runs = "1 run" if sums["runs"] == 1 else f"{sums['runs']} runs"
    return [("in all", f"{runs}, {show_duration(sums['wall_seconds'])}{cpu}")]


def _curve_lines(points: CurveView | None, demand: ResourcesView) -> list[tuple[str, str]]:
    room = min(_CURVE, output.width() - _LABEL - 1)
    found = charts.usage_lines(points, demand, room)
    return [("over time" if not at else "", line) for at, line in enumerate(found)]


def _io(demand: ResourcesView) -> str:
    """Return the rates of each disk that has any, if there are several disks."""
    return ", ".join(
        f"{output.show_io(rates)} on disk {output.clean(name)}"
        for name, rates in demand.get("disks", {}).items()
        if rates["read"] or rates["write"]
    )


def _kernel_lines(used: UsedView | None) -> list[tuple[str, str]]:
    """Return the lines for the kernel's counters of an ended job; unknown ones are left out."""
    if used is None:
        return []
    lines = []
    if used["throttled_seconds"] is not None:
        periods = f"{used['throttled_periods']} of {used['quota_periods']} periods"
        seconds = show_duration(used["throttled_seconds"])
        lines.append(("held back", f"by its cores in {periods}, for {seconds} in sum"))
    words = []
    if used["memory_mean"] is not None:
        words.append(f"{show_size(used['memory_mean'])} on average without page cache")
    if used["limit_hits"] is not None:
        words.append(f"stopped at its limit {used['limit_hits']} times")
    if used["oom_kills"]:
        words.append(f"{used['oom_kills']} processes killed")
    if words:
        lines.append(("memory", ", ".join(words)))
    if used["io_stalled_seconds"] is not None:
        lines.append(("waited", f"{show_duration(used['io_stalled_seconds'])} for disks"))
    return lines
