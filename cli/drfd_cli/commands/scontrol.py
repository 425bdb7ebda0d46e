"""Slurm's scontrol, as far as one machine has what it shows and changes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref, parse_ids
from drfd.common.errors import Refused
from drfd.common.indices import MAX_TASKS
from drfd_cli import output
from drfd_cli.commands.slurm_lists import steps_of
from drfd_cli.habits import HABITS
from drfd_cli.options import connect
from drfd_cli.slurm import data, fields, host_name, known
from drfd_cli.slurm.grammar import (
    SCONTROL,
    SLURM_VERSION,
    Given,
    Options,
    parts,
    slurm_command,
    version,
)
from drfd_cli.slurm.lookup import (
    KNOWN_S,
    Choice,
    as_reservation,
    check_partitions,
    just_ended,
    key_of,
    read_nodes,
)
from drfd_cli.slurm.sbatch_options import Asked, in_slurms_words, read_limit, translate
from drfd_cli.submission.job_line import WrongWords

#: Options by their long names, each with its values.
Found = Mapping[str, list[str]]
#: What a command does with its words and the options; and its exit code, unless that is 0.
Command = Callable[[list[str], Found], int | None]


@slurm_command(
    SCONTROL,
    "show and change jobs and the machine, as `drf show` and `drf set` do",
    "[OPTIONS] COMMAND [ARGS...]",
    more=lambda: [f"Commands: {', '.join(_COMMANDS)}.", f"Of show: {', '.join(_SHOWN)}."],
)
def command(words: list[str]) -> int | None:
    found, rest = SCONTROL.read(words)
    if not rest:
        raise click.UsageError("there is no command; scontrol --help lists them")
    verb = rest[0].lower()
    near = [name for name in _COMMANDS if name.startswith(verb)]
    if verb not in _COMMANDS and len(near) != 1:
        here = HABITS.get(verb)
        hint = f"that is: {here[0]}" if here else "scontrol --help lists what there is"
        raise click.UsageError(f"there is no {verb} here ({hint})")
    name = verb if verb in _COMMANDS else near[0]
    return _COMMANDS[name](rest[1:], found)


# -- show --------------------------------------------------------------------------------------


def _show(words: list[str], found: Found) -> None:
    what, _, value = (words[0] if words else "").partition("=")
    names = [*filter(None, [value]), *words[1:]]
    asked = what.lower()
    kind = next((kind for kind in _SHOWN if what and f"{kind}s".startswith(asked)), None)
    if data.is_asked(found) and kind not in _AS_DATA:
        raise click.UsageError(f"show {what} has no --json and no --yaml here")
    if kind is not None:
        _SHOWN[kind](names, found)
        return
    none = [said for kind, said in known.ENTITIES.items() if what and kind.startswith(asked)]
    if not none:
        there = " ".join(dict.fromkeys((*_SHOWN, *known.ENTITIES)))
        raise click.UsageError(f"there is no show {what} here; there are: {there}".strip())
    if none[0]:
        output.say(none[0])


def _show_hostnames(names: list[str], found: Found) -> None:
    """Print the machines of a list such as SLURM_JOB_NODELIST: a job here has one."""
    text = ",".join(names) or os.environ.get("SLURM_JOB_NODELIST") or host_name()
    # A comma within brackets stands between ranges of one name.
    hosts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    for host in (each for name in hosts for each in _expanded(name)):
        click.echo(host)


def _expanded(name: str) -> Iterator[str]:
    """Yield the names that `node[1-3,08]` means."""
    before, sign, rest = name.partition("[")
    ranges, _, after = rest.partition("]")
    for part in ranges.split(",") if sign else ():
        found = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if found is None or (last := int(found[2] or found[1])) - int(found[1]) >= MAX_TASKS:
            raise Refused("bad-value", f"{name[:60]}: {part[:60]} is not a range, such as 1-4")
        for number in range(int(found[1]), last + 1):
            for end in _expanded(after):
                yield f"{before}{number:0{len(found[1])}}{end}"
    if not sign:
        yield name


def _print(lines: list[str], found: Found) -> None:
    if "oneliner" in found:
        click.echo(" ".join(lines))
    else:
        click.echo("\n   ".join(lines) + "\n")


def _show_job(names: list[str], found: Found) -> None:
    client = connect()
    jobs = list(_jobs(client, parse_ids(",".join(names)) if names else []))
    if data.is_asked(found):
        data.show(found, client, jobs=list(map(data.job_object, jobs)))
        return
    if not jobs:
        click.echo("No jobs in the system")
    for job in jobs:
        _print(_lines_of(job), found)


def _jobs(client: Connection, ids: list[Ref]) -> Iterator[fields.View]:
    """Yield the named jobs, and of an array all tasks that are known; without ids, the queue and
    what has just ended."""
    for ref in ids:
        reply = client.request("show", id=ref)
        if "job" in reply:
            yield {**reply["job"], "used": reply.get("used")}
        else:
            yield from client.jobs("status", select={"ids": [ref]})
    if not ids:
        rows = [*just_ended(client), *client.jobs("status")]
        found = {key_of(job): job for job in rows}
        yield from (found[key] for key in sorted(found))


def _show_step(names: list[str], found: Found) -> None:
    client = connect()
    chosen = Choice(client, {"jobs": names})
    chosen.states = ["RUNNING", "SUSPENDED"]
    steps = [step for job in chosen.queued() or [] for step in steps_of(job, [])]
    labels = {str(fields.value("i", step)): step for step in steps}
    for label, step in labels.items():
        if not names or {label, label.partition(".")[0]} & set(names):
            _print([fields.filled(line, step) for line in _STEP], found)
    if not labels and not names:
        click.echo("No job steps in the system")


#: The lines about a step and about a job, with signs of fields.
_STEP = (
    "StepId=%i UserId=%U StartTime=%{start} TimeLimit=%{timelimit}",
    "State=%T Partition=%P NodeList=%N",
    "Nodes=%D CPUs=%C Tasks=%{numtasks} Name=%j Network=(null)",
    "TRES=%{alloctres}",
)
_ARRAY = " ArrayJobId=%F ArrayTaskId=%K"
_JOB = (
    f"JobId=%A{_ARRAY} JobName=%j",
    "UserId=%u(%U) GroupId=%g(%G) MCS_label=N/A",
    "Priority=%Q Nice=%y Account=%a QOS=%q",
    "JobState=%T Reason=%r Dependency=%E",
    "Requeue=%{requeue} Restarts=%{restarts} BatchFlag=%{batchflag} Reboot=%{reboot} "
    "ExitCode=%{exitcode}",
    "RunTime=%{elapsed} TimeLimit=%{timelimit} TimeMin=N/A",
    "SubmitTime=%V EligibleTime=%{eligible}",
    "StartTime=%S EndTime=%e Deadline=N/A",
    "Partition=%P AllocNode:Sid=%{cluster}:N/A",
    "NodeList=%N",
    "BatchHost=%B",
    "NumNodes=%D NumCPUs=%C NumTasks=N/A CPUs/Task=N/A",
    "ReqTRES=%{reqtres}",
    "MinMemoryNode=%m TresPerNode=%b",
    "Command=%o",
    "WorkDir=%Z",
    "StdErr=%{stderr}",
    "StdOut=%{stdout}",
    "Comment=%k",
)
#: What is left out.
_EMPTY = ("BatchHost=n/a", "StdErr=(null)", "StdOut=(null)", "Comment=(null)")


def _lines_of(job: fields.View) -> list[str]:
    is_array = job["array_id"] is not None or job.get("array_tasks") is not None
    if job["argv"]:
        program, *words = job["argv"]
        path = os.path.join(job["cwd"] or "", program)
        # What is no file there is a command that was found in PATH.
        job = {**job, "argv": [path if os.path.isfile(path) else program, *words]}
    lines = [fields.filled(line if is_array else line.replace(_ARRAY, ""), job) for line in _JOB]
    return [line.replace("Time=N/A", "Time=Unknown") for line in lines if line not in _EMPTY]


#: The lines about the machine, about it in a partition, and about a reservation, with keys.
_NODE = (
    "NodeName={name} CPUAlloc={alloc} CPUTot={cpus}",
    "Gres={gres_or_null}",
    "NodeAddr={name} NodeHostName={name}",
    "RealMemory={memory_mib} AllocMem={used_mib} FreeMem={free_mib}",
    "State={upper_state} Partitions={partition_names}",
    "Reason={reason}",
)
_PARTITION = (
    "PartitionName={partition}",
    "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
    "AllocNodes=ALL Default={is_usual} QoS=N/A",
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
    "MaxNodes=1 MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
    "Nodes={name}",
    "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO",
    "OverTimeLimit=NONE PreemptMode=OFF",
    "State=UP TotalCPUs={cpus} TotalNodes=1 SelectTypeParameters=NONE",
    "JobDefaults=(null)",
    "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
    "TRES={tres_of_node}",
)
_RESERVATION = (
    "ReservationName={ReservationName} StartTime={StartTime} EndTime={EndTime} "
    "Duration={Duration} Nodes={Nodes} NodeCnt=1 Flags=MAINT,ALL_NODES State={State}",
)


def _show_node(names: list[str], found: Found) -> None:
    client = connect()
    node = read_nodes(client)[0]
    unknown = [name for name in parts(names) if name != node["name"]]
    if unknown:
        raise Refused("no-node", f"there is no node {unknown[0]}; this is {node['name']}")
    _print_all(found, client, "nodes", [node], _NODE)


def _show_partition(names: list[str], found: Found) -> None:
    client = connect()
    check_partitions(client, parts(names))
    nodes = [node for node in read_nodes(client) if not names or node["partition"] in parts(names)]
    _print_all(found, client, "partitions", nodes, _PARTITION)


def _show_reservation(names: list[str], found: Found) -> None:
    client = connect()
    windows = map(as_reservation, client.request("doctor")["windows"])
    shown = [each for each in windows if not names or each["name"] in names]
    _print_all(found, client, "reservations", shown, _RESERVATION)
    if not shown and not data.is_asked(found):
        click.echo("No reservations in the system")


def _print_all(
    found: Found, client: Connection, what: str, views: Iterable[fields.View], lines: Iterable[str]
) -> None:
    """Print these views in lines with their keys, or as data."""
    if data.is_asked(found):
        shape = what.removesuffix("s")
        data.show(found, client, **{what: [data.shape(shape, each) for each in views]})
        return
    for each in views:
        told = (line.format_map(each) for line in lines)
        _print([line for line in told if line != "Reason="], found)


def _show_license(names: list[str], found: Found) -> None:
    client = connect()
    shares = client.request("shares")
    shown = [
        {"LicenseName": name, "Total": total, "Used": total - shares["free"]["gres"].get(name, 0),
         "Free": shares["free"]["gres"].get(name, 0), "Reserved": 0, "Remote": False}
        for name, total in shares["capacity"]["gres"].items()
        if ":" not in name and name != "gpu" and (not names or name in names)
    ]  # fmt: skip
    if data.is_asked(found):
        data.show(found, client, licenses=shown)
        return
    for row in shown:
        name, *rest = (f"{key}={'no' if value is False else value}" for key, value in row.items())
        _print([name, " ".join(rest)], found)
    if not shown:
        click.echo("No licenses configured in Slurm.")


def _show_config(names: list[str], found: Found) -> None:
    """Print what is so here of Slurm's settings that programs ask for."""
    told = {
        "ClusterName": host_name(), "JobRequeue": "1", "MaxArraySize": str(MAX_TASKS + 1),
        "MinJobAge": f"{KNOWN_S} sec", "MpiDefault": "none", "OverTimeLimit": "0 min",
        "SLURM_VERSION": SLURM_VERSION, "SlurmctldHost[0]": host_name(),
    }  # fmt: skip
    click.echo(f"Configuration data as of {fields.moment(time.time())}")
    for name, value in told.items():
        click.echo(f"{name:<23} = {value}")


#: Entities in the order in which a shortened word is looked up.
_SHOWN: dict[str, Callable[[list[str], Found], None]] = {
    "config": _show_config, "daemon": lambda names, found: click.echo("slurmctld slurmd"),
    "hostname": _show_hostnames,
    **dict.fromkeys(
        ("hostlist", "hostlistsorted"), lambda names, found: click.echo(",".join(names))
    ),
    "job": _show_job,
    "jobid": _show_job, "license": _show_license, "node": _show_node,
    "partition": _show_partition, "partitionname": _show_partition,
    "reservation": _show_reservation, "reservationname": _show_reservation, "step": _show_step,
}  # fmt: skip


#: Those of them that there are as data.
_AS_DATA = ("job", "jobid", "license", "node", "partition", "partitionname", "reservation")

# -- changing jobs -----------------------------------------------------------------------------


def _refs(words: list[str], verb: str) -> list[Ref]:
    ids = parts([re.sub(r"(?i)^job(id)?=", "", word) for word in words])
    if not ids:
        raise click.UsageError(f"no job is named: scontrol {verb} ID")
    names = [each for each in ids if re.match("[^0-9]", each)]
    if names and verb in ("hold", "release"):
        raise click.UsageError(f"{names[0]} is no job id (scontrol {verb} jobname={names[0]})")
    return parse_ids(",".join(ids))


def _act(client: Connection, verb: Any, select: Mapping[str, object], **asked: object) -> int:
    reply = client.request(verb, select=select, **asked)
    for failure in reply["failed"]:
        text = f"scontrol: {failure['error']['text']}"
        if (verb, failure["error"]["code"]) == ("requeue", "ended"):
            text += f" (drf retry {failure['id']} submits it again, as a new job)"
        output.say(text)
    return 1 if reply["failed"] else 0


def _verb(verb: str) -> Command:
    """Return the command of a verb that drf has too."""

    def act(words: list[str], found: Found) -> int:
        name = next((word for word in words if word.lower().startswith(("jobname=", "name="))), "")
        chosen = {"name": name.partition("=")[2]} if name else {"ids": _refs(words, verb)}
        return _act(connect(), verb, chosen)

    return act


def _requeue(*, held: bool) -> Command:
    def act(words: list[str], found: Found) -> int:
        refs = _refs([word for word in words if word.lower() != "incomplete"], "requeue")
        return _act(connect(), "requeue", {"ids": refs}, held=held)

    return act


def _write(words: list[str], found: Found) -> None:
    """Write the script of a job into a file, or print it."""
    if len(words) < 2 or words[0].lower() != "batch_script":
        raise click.UsageError("what can be written is: batch_script ID [FILE]")
    (ref,) = parse_ids(words[1])[:1]
    script: Any = connect().submission(ref)["submission"].get("script")
    if script is None:
        raise Refused("no-script", f"job {ref} has no script")
    data, name = os.fsencode(script), words[2] if len(words) > 2 else f"slurm-{ref}.sh"
    if name == "-":
        click.echo(data, nl=False)
        return
    Path(name).write_bytes(data)
    click.echo(f"batch script for job {ref} written to {name}")


# -- update ------------------------------------------------------------------------------------

#: Keys → options of sbatch.
_AS_OPTIONS = {
    "timelimit": "time", "jobname": "job-name", "name": "job-name", "partition": "partition",
    "priority": "priority", "nice": "nice", "numcpus": "mincpus", "mincpusnode": "mincpus",
    "minmemorynode": "mem", "gres": "gres", "trespernode": "gres", "dependency": "dependency",
    "starttime": "begin", "comment": "comment",
}  # fmt: skip
#: Keys that ask for nothing that one machine has.
_IGNORED = {"account", "qos", "features", "mailuser", "wckey", "reservation", "excnodelist"}


def _update(words: list[str], found: Found) -> int:
    given: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise click.UsageError(f"{word!r} is not KEY=VALUE, such as JobId=42 TimeLimit=2:00:00")
        given[key.lower()] = value
    ids = given.pop("jobid", given.pop("job", ""))
    if "nodename" in given:
        raise click.UsageError("no node is changed here (that is: drf drain, or drf undrain)")
    if not ids:
        raise click.UsageError("what is to change is not named: JobId=42")
    return _update_jobs(parse_ids(ids), given)


def _update_jobs(ids: list[Ref], given: dict[str, str]) -> int:
    unknown = [key for key in given if key not in _AS_OPTIONS and key not in _IGNORED]
    if "arraytaskthrottle" in unknown:
        at_once = given["arraytaskthrottle"]
        ways = f"drf set --group NAME%{at_once} {ids[0]} lets so many of its tasks run at once"
        raise click.UsageError(f"ArrayTaskThrottle={at_once}: {ways}")
    if unknown:
        there = "TimeLimit JobName Partition Priority Nice NumCPUs MinMemoryNode Gres Dependency"
        text = f"{unknown[0]} cannot be changed here; what can: {there} StartTime Comment"
        raise click.UsageError(text)
    ignored = [key for key in given if key in _IGNORED]
    if ignored:
        output.say(f"without effect here: {', '.join(ignored)}")
    client = connect()
    changes = _changes(client, given) | _more_time(client, ids, given.get("timelimit", ""))
    codes = [_act(client, "set", {"ids": ids}, **changes)] if changes else []
    # Priority=0 holds a job, as in Slurm.
    codes += [_act(client, "hold", {"ids": ids})] if given.get("priority") == "0" else []
    if not codes and not ignored:
        raise click.UsageError("say what to change, such as TimeLimit=2:00:00")
    return max(codes, default=0)


def _more_time(client: Connection, ids: list[Ref], by: str) -> dict[str, object]:
    """Return the new time limit of `TimeLimit=+30`, which is for minutes, or of `-10`."""
    from drfd_cli.commands.set import new_limit

    if by[:1] not in ("+", "-") or by == "-1":
        return {}
    asked = Asked({"time": Given(by[1:])}, "scontrol")
    seconds = asked.get("time", read_limit) or 0
    return new_limit(seconds if by[0] == "+" else -seconds, by, True, client, {"ids": ids})


def _changes(client: Connection, given: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of the request `set` that these values ask for. Raises Refused."""
    from drfd_cli.commands.retry import changes_of

    options: Options = {
        _AS_OPTIONS[key]: Given(value)
        for key, value in given.items()
        if key in _AS_OPTIONS and value
    }
    if given.get("timelimit", "")[:1] in ("+", "-") and given["timelimit"] != "-1":
        del options["time"]
    if options.get("priority", Given("")).value == "0":
        del options["priority"]
    made = translate(options, host_name(), "scontrol")
    if made.is_singleton or made.begun:
        raise Refused("bad-value", "Dependency: after and singleton are for a submission alone")
    words = made.words
    for key, option in (("dependency", "--after"), ("comment", "--comment")):
        words += [option, ""] if given.get(key) == "" else []
    words += ["-p", made.partitions[0]] if made.partitions else []
    try:
        return dict(changes_of(words, client).fields)
    except WrongWords as error:
        raise click.UsageError(in_slurms_words(str(error))) from None


def _ping(words: list[str], found: Found) -> None:
    connect().request("hello")
    click.echo(f"Slurmctld(primary) at {host_name()} is UP")


#: The commands of scontrol that there are here.
_COMMANDS: dict[str, Command] = {
    "show": _show, "hold": _verb("hold"), "uhold": _verb("hold"), "release": _verb("release"),
    "suspend": _verb("suspend"), "resume": _verb("resume"), "requeue": _requeue(held=False),
    "requeuehold": _requeue(held=True), "update": _update, "write": _write,
    "ping": _ping, "version": lambda words, found: click.echo(version()),
}  # fmt: skip
