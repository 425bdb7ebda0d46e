"""drf show: everything about one job. drf why: why it waits, or how it ended."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from drfd.client.option_values import words_of
from drfd.client.words import Ref
from drfd.common.units import PLAIN_AXES, exact_size, show_duration, show_size
from drfd_cli import charts, output
from drfd_cli.commands.retry import retry_line
from drfd_cli.options import connect, job_ids, prints_result
from drfd_cli.output import Result, of_each, pick

if TYPE_CHECKING:
    from drfd.protocol.replies import (
        AllRunsView,
        ConditionsView,
        CurveView,
        ExplainedArrayView,
        ExplainedJobView,
        JobView,
        ResourcesView,
        ShowReply,
        UsedView,
        WhyReply,
    )


#: A label and a text.
Line = tuple[str, str]
#: Maximum length of a list of indices, in characters.
_INDICES = 200
#: Width of the labels, and maximum width of a curve, in columns.
_LABEL, _CURVE = 10, 90


@click.command("show")
@job_ids(required=True, only_read=True)
@prints_result()
def command(ids: tuple[Ref, ...]) -> Result:
    """Everything about a job, or several: demand, use, attempts, events, outcome."""
    client = connect()
    return of_each(ids, lambda job_id: client.request("show", id=job_id), _show, _view)


def _view(reply: ShowReply) -> Mapping[str, object]:
    shown: Mapping[str, object] = reply["array"] if "array" in reply else reply["job"]
    fields: Mapping[str, object] = reply
    # "used" is known only after the job has ended, "curve" also while it runs.
    kinds = ("used", "all_runs", "curve")
    more = {key: fields[key] for key in kinds if fields.get(key) is not None}
    counts = pick(reply, ("events_dropped",))
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
    if dropped := reply.get("events_dropped"):
        output.tell(f"  {dropped} between the first and the last ones were not kept")
    for event in reply["events"]:
        line = f"{output.show_time(event['at'])}  {event['event']:<17} {event['text']}"
        output.tell(f"  {output.clean(line, 400).rstrip()}")


def array_lines(array: ExplainedArrayView) -> list[Line]:
    tasks = ", ".join(f"{count} {state}" for state, count in sorted(array["counts"].items()))
    return [
        ("array", f"{array['id']} ({array['name']}) of {array['user']}, pool {array['pool']}"),
        ("indices", array["array_tasks"]),
        ("tasks", f"{array['tasks']}: {tasks}"),
        *(
            (state.lower().replace("_", " "), output.clean(text, _INDICES))
            for state, text in array["indices"].items()
        ),
        *([("altered", output.clean(array["altered"], _INDICES))] if "altered" in array else []),
        *_submission(array, each=" each"),
    ]


def job_lines(
    job: ExplainedJobView,
    used: UsedView | None,
    points: CurveView | None,
    all_runs: AllRunsView | None = None,
) -> list[Line]:
    attempt = f"attempt {job['attempt']}"
    return [
        ("job", f"{output.label(job)} ({job['name']}) of {job['user']}, pool {job['pool']}"),
        ("state", f"{job['state']}, {job.get('attempts') or attempt}"),
        ("why", output.why_line(job) or "-"),
        *_submission(
            job,
            given=(*_given(job), *_measured(job, used, points, all_runs)),
            times=(
                ("started", output.show_time(job["started_at"])),
                ("ended", output.show_time(job["ended_at"])),
                ("cgroup", job["cgroup"] or "none"),
            ),
        ),
    ]


def _submission(
    shown: ExplainedJobView | ExplainedArrayView,
    *,
    each: str = "",
    given: Iterable[Line] = (),
    times: Iterable[Line] = (),
) -> Iterator[Line]:
    """Yield the lines of what a job or an array was submitted with, and between them those of what
    a job was given, and of its times."""
    yield "demand", f"{_demand(shown['demand'])}{each}"
    only, features = shown.get("only_node"), shown.get("features")
    if only or features:
        words = [f"only {only}"] if only else []
        words += [f"with {', '.join(features)}"] if features else []
        yield "machines", " ".join(words)
    if "retry_of" in shown:
        index = shown["array_index"]
        yield "retry of", f"{shown['retry_of']}" + ("" if index is None else f"_{index}")
    if "group" in shown:
        at_once = shown.get("group_at_once")
        yield "group", shown["group"] + ("" if at_once is None else f", {at_once} at once")
    if "comment" in shown:
        yield "comment", shown["comment"]
    limit = shown["time_limit_s"]
    yield "limit", "no time limit" if limit is None else show_duration(limit)
    yield from given
    if shown.get("preemptible"):
        yield "preemptible", "it may be stopped for others, and run again"
    yield from _conditions(shown)
    if words := [word for some in words_of(shown.get("options", {})) for word in some]:
        yield "options", output.shell_line(words)
    yield "submitted", output.show_time(shown["submitted_at"])
    yield from times
    if shown["argv"] is None:
        yield "not shown", "its command, files, conditions and events, but to its owner"
        return
    yield "command", output.shell_line(shown["argv"])
    yield "directory", shown["cwd"] or ""
    most = shown.get("output_max_bytes")
    limited = "" if most is None else f" (at most {show_size(most)})"
    yield "output", f"{shown['stdout'] or ''}{limited}"
    if shown["stderr"] != shown["stdout"]:
        yield "errors", shown["stderr"] or ""


def _conditions(shown: ConditionsView) -> Iterator[Line]:
    if after := shown.get("after"):
        names = (f"{each.get('label', each['id'])}:{each['want']}" for each in after)
        yield "after", ", ".join(names)
    if begin_s := shown.get("begin_at"):
        yield "begin", output.show_time(begin_s)
    if shown.get("if_never") == "cancel" and shown["after"]:
        yield "if never", "cancelled when that can no longer be met"
    if retry := shown.get("retry"):
        yield "retry", f"{retry['done']} of {retry['times']} used, after {', '.join(retry['on'])}"
    if warn := shown.get("warn"):
        yield "warning", f"{warn['signal']} {show_duration(warn['before_s'])} before the time limit"


def _demand(demand: ResourcesView) -> str:
    cores = output.show_cores_of(demand, "{:g}".format)
    amounts = [f"{cores} {'core' if cores == '1' else 'cores'}"]
    for name, axis in PLAIN_AXES.items():
        if name != "cores" and (amount := output.amount_of(demand, name)):
            amounts.append(f"{axis.show(round(amount))} {name}")
    gres = f", {output.show_gres_demand(demand)}" if demand["gres"] else ""
    # With several disks, the rates of each that has any.
    disks = ", ".join(
        f"{output.show_io(rates)} on disk {output.clean(name)}"
        for name, rates in demand.get("disks", {}).items()
        if rates["read"] or rates["write"]
    )
    return f"{', '.join(amounts)}, io {disks or output.show_io(demand)}{gres}"


def _given(job: ExplainedJobView) -> Iterator[Line]:
    if "node" in job:
        yield "node", job["node"]
    for name, each in job.get("gres_instances", {}).items():
        yield name, ",".join(each)
    if nodes := job.get("memory_nodes"):
        yield "near", f"memory node {', '.join(map(str, nodes))}"
    if job.get("cpus"):
        yield "CPUs", f"{job['cpus']}, for itself"


def _measured(
    job: ExplainedJobView,
    used: UsedView | None,
    points: CurveView | None,
    all_runs: AllRunsView | None,
) -> Iterator[Line]:
    usage = job["usage"]
    amounts = (usage["cpu_seconds"], usage["memory_peak"], usage["read_bytes"])
    if "node" in job and not any((*amounts, usage["written_bytes"])):
        yield "used", f"not measured on {output.clean(job['node'])}"
    else:
        # A job that has ended with a peak of 0 was over before its memory was measured.
        peak = show_size(usage["memory_peak"]) if usage["memory_peak"] else "unknown"
        yield (
            "used",
            f"{usage['cpu_seconds']:.1f} s of CPU, {peak} peak memory,"
            f" {show_size(usage['read_bytes'])} read, {show_size(usage['written_bytes'])} written",
        )
    if beyond_s := usage.get("beyond_cpu_seconds"):
        yield "beyond", f"{beyond_s:.1f} s of CPU above the lower end of its range"
    yield from _gpu_lines(job)
    if all_runs is not None:
        cpu_s = all_runs["cpu_seconds"]
        cpu = "" if cpu_s is None else f", {cpu_s:.1f} s of CPU"
        runs = "1 run" if all_runs["runs"] == 1 else f"{all_runs['runs']} runs"
        yield "in all", f"{runs}, {show_duration(all_runs['wall_seconds'])}{cpu}"
    room = min(_CURVE, output.width() - _LABEL - 1)
    is_live = job["ended_at"] is None
    for at, line in enumerate(charts.usage_lines(points, job["demand"], room, is_live=is_live)):
        yield "over time" if not at else "", line
    yield from () if used is None else _kernel_lines(used)


def _gpu_lines(job: ExplainedJobView) -> Iterator[Line]:
    usage = job["usage"]
    peak, mean = usage.get("gpu_memory_peak"), usage.get("gpu_utilisation_mean")
    memory, busy = usage.get("gpu_memory"), usage.get("gpu_utilisation")
    if peak is not None or mean is not None:
        words = [f"{show_size(memory)} of memory"] if memory is not None else []
        words += [f"{show_size(peak)} peak memory"] if peak is not None else []
        words += [f"{busy}% busy"] if busy is not None else []
        words += [f"{mean}% on average"] if mean is not None else []
        if peak or job["demand"]["gres"].get("gpu"):
            yield "GPU use", ", ".join(words)
    elif job["demand"]["gres"].get("gpu") and job["started_at"] is not None:
        yield "GPU use", "not measured"
    limit = job["demand"].get("gres_memory", {}).get("gpu")
    if limit is not None and "gpu_memory_each" in job:
        words = [
            f"{show_size(used)} of {show_size(limit)} on GPU {name}"
            for name, used in job["gpu_memory_each"].items()
        ]
        words += [job["gpu_memory_unkept"]] if "gpu_memory_unkept" in job else []
        if words:
            yield "GPU memory", "; ".join(words)


def _kernel_lines(used: UsedView) -> Iterator[Line]:
    """Yield the lines for the kernel's counters of an ended job; unknown ones are left out."""
    if used["throttled_seconds"] is not None:
        periods = f"{used['throttled_periods']} of {used['quota_periods']} periods"
        seconds = show_duration(used["throttled_seconds"])
        yield "held back", f"by its cores in {periods}, for {seconds} in sum"
    words = []
    if used["memory_mean"] is not None:
        words.append(f"{show_size(used['memory_mean'])} on average without page cache")
    if used["limit_hits"] is not None:
        words.append(f"stopped at its limit {used['limit_hits']} times")
    if used["oom_kills"]:
        words.append(f"{used['oom_kills']} processes killed")
    if words:
        yield "memory", ", ".join(words)
    if used["io_stalled_seconds"] is not None:
        yield "waited", f"{show_duration(used['io_stalled_seconds'])} for disks"


# -- drf why -----------------------------------------------------------------------------------


#: A disk is full if less than one part in so many is free.
_FULL = 100
#: Columns to which a list of indices is cut.
_WHY_INDICES = 60


@click.command("why")
@job_ids(required=True, only_read=True)
@prints_result()
def why(ids: tuple[Ref, ...]) -> Result:
    """Why jobs wait and when they start, or how they ended and what to ask for next time."""
    client = connect()
    return of_each(ids, lambda job_id: client.request("why", id=job_id), _show_why, _why_view)


def _why_view(reply: WhyReply) -> Mapping[str, object]:
    shown = pick(reply["job"], ("id", "state", "reason", "outcome", "expected_start_at"))
    shown |= pick(reply["job"], ("expected_start_certainty", "expected_start_unknown"))
    shown |= {"notes": reply.get("notes", []), "advice": reply.get("advice")}
    again = _retry(reply)
    shown |= {} if again is None else {"retry": again}
    return {**shown, **pick(reply, ("no_estimate", "array"))}


def _show_why(reply: WhyReply) -> None:
    job, notes, advice = reply["job"], reply.get("notes", []), reply.get("advice")
    if "array" in reply:
        array, parts = reply["array"], []
        for state, count in sorted(array["counts"].items()):
            which = output.shorten(array["indices"].get(state, ""), _WHY_INDICES)
            parts.append(f"{count} {state}{f' ({which})' * bool(which)}")
        output.tell(f"array {array['id']} of {array['tasks']} tasks: {', '.join(parts)}")
    verb = f"is {job['state']}"
    if job["reason"] is not None:
        verb, line = "waits", output.why_line(job)
    elif job["outcome"] is not None:
        # The state already names the cause.
        line = job["outcome"]["text"]
    else:
        line = "not started yet"
        if job["started_at"] is not None:
            line = f"started {output.show_when(job['started_at'])}"
    # How another user's job ended is told by its state alone.
    output.tell(f"job {output.label(job)} {verb}{': ' * bool(line)}{output.clean(line, 1000)}")
    attempts = job.get("attempts", "")
    if attempts and attempts not in line:
        output.tell(attempts)
    start = output.start_line(job)
    if start is not None:
        output.tell(start)
    if "no_estimate" in reply:
        output.tell(f"nobody can say when it starts: {output.clean(reply['no_estimate']['text'])}")
    # What to do about it comes last.
    for note in [*notes, *_full_disk(job)]:
        output.tell(output.clean(note, 1000))
    if advice is not None:
        output.tell(f"next time: {output.advice_line(advice)}")
    again = _retry(reply)
    if again is not None:
        output.tell(f"again: {again}")


def _enough(most_bytes: int, job: JobView) -> int:
    """Return a limit for the output of a job that was stopped at `most_bytes`: twice that, or as
    often twice as it takes to be well above the size that its files have now."""
    written_bytes = 0
    for path in {job["stdout"], job["stderr"]}:
        with suppress(OSError):
            written_bytes += 0 if path is None else os.stat(path).st_size
    wanted_bytes = 2 * most_bytes
    while wanted_bytes < written_bytes * 5 // 4:
        wanted_bytes *= 2
    return wanted_bytes


def _full_disk(job: JobView) -> Iterator[str]:
    """Yield a note if the disk of the output of the caller's failed job is full now: the job can
    hardly have written that there was no more room."""
    path, outcome = job["stdout"], job["outcome"]
    if outcome is None or outcome["code"] != "FAILED" or path is None or job["uid"] != os.getuid():
        return
    try:
        disk = os.statvfs(path)
    except OSError:
        return
    free_bytes, disk_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    if free_bytes * _FULL < disk_bytes:
        yield (
            f"the disk of its output {path} is full now ({show_size(free_bytes)} of "
            f"{show_size(disk_bytes)} free)"
        )


def _retry(reply: WhyReply) -> str | None:
    """Return the command that submits the caller's job again if it ran and did not complete."""
    job, advice = reply["job"], reply.get("advice")
    outcome = job["outcome"]
    if outcome is None or job["uid"] != os.getuid():
        return None
    if outcome["code"] in ("COMPLETED", "LAUNCH_FAILED"):
        return None
    options: list[str] = []
    if advice is not None:
        words = advice["options"]
        advised = dict(zip(words[::2], words[1::2], strict=False))
        demand = job["demand"]
        for option, wish, before in (
            (
                "-c",
                (advice.get("cores"), advice.get("cores_max")),
                (demand["cores"], demand.get("cores_max")),
            ),
            ("-m", advice.get("memory"), demand["memory"]),
            ("-t", advice.get("time_limit_s"), job["time_limit_s"]),
        ):
            if wish != before and option in advised:
                options += [option, advised[option]]
    most = job.get("output_max_bytes")
    if most is not None and "--output-max" in outcome["text"]:
        options += ["--output-max", exact_size(_enough(most, job))]
    if "array" in reply:
        counts, bad = reply["array"]["counts"], reply["array"]["indices"]
        if sum(counts.get(state, 0) for state in bad if state != "CANCELLED") > 1:
            return retry_line(f"{reply['array']['id']} --failed", options)
    return retry_line(output.label(job), options)
