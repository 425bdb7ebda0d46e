"""Slurm's lists, squeue, sacct, seff and sinfo, and scancel, as far as one machine has them.

Their options are read as Slurm reads them; those without a meaning here are ignored.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from operator import itemgetter
from signal import SIGKILL

import click

from drfd.client.connection import Connection
from drfd.client.words import parse_ids, parse_past, parse_signal
from drfd.common.errors import Refused
from drfd.common.signals import FIRST, REST
from drfd_cli import output
from drfd_cli.options import connect
from drfd_cli.slurm import data, fields, known, lookup
from drfd_cli.slurm.grammar import SACCT, SCANCEL, SEFF, SINFO, SQUEUE, parts, slurm_command

# -- looking -----------------------------------------------------------------------------------


@slurm_command(
    SQUEUE, "list the jobs that wait and run, as `drf status` does", has_short_help=False
)
def squeue(words: list[str]) -> int:
    found = SQUEUE.read_options(words)
    return _listed(found, _list_queue, fields.SIGNS, fields.WORDS, known.STATES)


def _listed(
    found: Mapping[str, list[str]],
    once: Callable[[Mapping[str, list[str]]], int],
    signs: Iterable[str],
    words: Iterable[str],
    states: Iterable[str],
) -> int:
    """Print a list, or again and again, as --iterate asks; or the words that may be chosen from."""
    there = {
        "helpformat": [f"%{sign}" for sign in signs if len(sign) == 1],
        "helpFormat": sorted(words),
        "helpstate": states,
    }
    asked = there.keys() & found.keys()
    for option in asked:
        click.echo(" ".join(there[option]))
    if asked:
        return 0
    if "iterate" not in found:
        return once(found)
    every = found["iterate"][-1]
    if not every.isdecimal() or not 0 < int(every) < 1_000_000:
        raise click.UsageError(f"{every!r} is not a number of seconds")
    while True:
        click.echo(time.strftime("%a %b %d %H:%M:%S %Y"))
        once(found)
        click.echo()
        sys.stdout.flush()
        time.sleep(int(every))


def _format(
    found: Mapping[str, list[str]], usual: str, words: Mapping[str, str], signs: Container[str]
) -> fields.Format:
    """Return the format of -O or -o."""
    if "Format" in found:
        return fields.format_of_words(found["Format"][-1], words, signs)
    return fields.format_of(found.get("format", [usual])[-1], signs)


def _list_queue(found: Mapping[str, list[str]]) -> int:
    client = connect()
    chosen = lookup.Choice(client, found)
    if "me" in found:
        chosen.users.add(client.request("hello")["user"])
    caller = client.request("hello")["user"] if "notme" in found else None
    lookup.check_partitions(client, parts(found.get("partition", [])))
    if "start" in found and chosen.states is None:
        chosen.states = ["PENDING", "HELD"]
    if "steps" in found:
        # Of running jobs there are steps.
        chosen.states = ["RUNNING", "SUSPENDED"]
    listed = chosen.queued(tasks=not {"array", "array-unique"}.isdisjoint(found))
    if chosen.ids and chosen.states != [] and "states" not in found:
        listed = _live(listed, is_one=len(chosen.ids) == 1)
    elif not chosen.ids and "states" in found:
        listed = [*(listed or []), *_just_ended(client, chosen, listed or [])]
    if listed is None:
        output.say("slurm_load_jobs error: Invalid job id specified")
        return 1
    jobs = [job for job in chosen.of(listed) if job["user"] != caller]
    if "steps" in found and not data.is_asked(found):
        jobs = [step for job in jobs for step in steps_of(job, chosen.steps)]
        usual = "%.15i %.8j %.9P %.8u %.9M %N"
    else:
        usual = fields.LONG if "long" in found else fields.USUAL
    if "start" in found:
        usual = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
    asked = _format(found, usual, fields.WORDS, fields.SIGNS)
    if not {"S", "E"}.isdisjoint(fields.signs_of(asked)) or data.is_asked(found):
        jobs = lookup.with_starts(client, jobs)
    order = found.get("sort", ["S" if "start" in found else ""])[-1]
    jobs = fields.sorted_by(order, jobs)
    if data.is_asked(found):
        data.show(found, client, jobs=list(map(data.job_object, jobs)))
        return 0
    signs = dict(fields.SIGNS)
    if "steps" in found:
        signs["i"] = ("STEPID", signs["i"][1])
    print_rows(found, asked, jobs, signs)
    return 0


def print_rows(
    found: Mapping[str, object], asked: fields.Format, rows: list[fields.View], signs: fields.Signs
) -> None:
    """Print rows in a format, with a line of heads unless --noheader is given."""
    heads = "noheader" not in found
    # Slurm puts partitions together of which nothing is shown that tells them apart.
    lines = fields.rows_by_signs(asked, rows, heads=heads, signs=signs)
    for line in dict.fromkeys(lines) if signs is lookup.NODE_SIGNS else lines:
        click.echo(line)


def _just_ended(
    client: Connection, chosen: lookup.Choice, listed: list[fields.View]
) -> list[fields.View]:
    """Return the jobs in the chosen states that squeue still knows and that are not listed."""
    select = chosen.select()
    states = [state for state in select["states"] if state in output.ENDED]
    if chosen.states is not None and not states:
        return []
    there = {job["id"] for job in listed}
    ended = lookup.just_ended(client, states=states, user=select["user"])
    return [job for job in ended if job["id"] not in there]


def _live(jobs: list[fields.View] | None, *, is_one: bool) -> list[fields.View] | None:
    """Return those of the named jobs that have not ended. Return None if there `is_one`, of no job
    or of one that ended a while ago."""
    live = [job for job in jobs or () if job["ended_at"] is None]
    ended_at_s = max((job["ended_at"] or 0.0 for job in jobs or ()), default=0.0)
    is_old = bool(jobs) and time.time() - ended_at_s > lookup.KNOWN_S
    return None if jobs is None or (not live and is_one and is_old) else live


_LONG = (
    "JobID,JobName,User,Partition,AllocCPUS,ReqMem,MaxRSS,Submit,Start,End,Elapsed,TotalCPU,"
    "Timelimit,State,ExitCode"
)


@slurm_command(SACCT, "list jobs of today and what they used, as `drf history` does")
def sacct(words: list[str]) -> int:
    found = SACCT.read_options(words)
    unit = found.get("units", [""])[-1].upper()
    if unit and unit not in (*"KMGTP",):
        raise click.UsageError(f"--units={unit}: there are K, M, G, T and P")
    if "helpformat" in found:
        click.echo("\n".join(head for head, _, _ in fields.NAMES.values()))
        return 0
    usual = fields.BRIEF if "brief" in found else _LONG if "long" in found else fields.ACCOUNT
    asked = columns(found, usual)
    client = connect()
    if "jobs" in found:
        found["jobs"] = [word for word in parts(found["jobs"]) if word.strip("0")]
    chosen = lookup.Choice(client, found)
    if not chosen.ids and not chosen.users and "allusers" not in found:
        chosen.users = {client.request("hello")["user"]}
    since_s = parse_past(found["starttime"][-1]) if "starttime" in found else None
    until_s = parse_past(found["endtime"][-1]) if "endtime" in found else None
    if since_s is None and not chosen.ids:
        since_s = parse_past("today")
    ended: list[fields.View] = []
    if chosen.states != []:
        # A state that is asked for is one that the job had reached before the end time.
        until = until_s if chosen.states else None
        past = {**chosen.select(), "since_s": since_s, "until_s": until}
        ended = list(client.jobs("history", past={key: each for key, each in past.items() if each}))
    live = chosen.queued() or []
    listed = {lookup.key_of(job): job for job in (*live, *ended)}.values()
    before = [job for job in listed if until_s is None or job["submitted_at"] < until_s]
    jobs = chosen.of(sorted(before, key=itemgetter("id")))
    if data.is_asked(found):
        told = [data.accounted(job, list(lines_of(job, []))[1:]) for job in jobs]
        data.show(found, client, jobs=told)
        return 0
    if "allocations" not in found:
        jobs = [line for job in jobs for line in lines_of(job, chosen.steps)]
    print_table(found, asked, fields.rows_by_names(asked, jobs, unit))
    return 0


def columns(found: Mapping[str, list[str]], usual: str) -> fields.Columns:
    """Return the columns that are asked for, and tell which of them are not measured here."""
    asked = fields.columns_of(",".join(found.get("format", [usual])), fields.NAMES)
    empty = [head for head, _, name in asked if name in fields.UNMEASURED]
    if empty and found["format"][-1].lower() != "all":
        output.say(f"not measured here, so empty: {', '.join(empty)}")
    return asked


def print_table(
    found: Mapping[str, list[str]], asked: fields.Columns, rows: list[list[str]]
) -> None:
    """Print a table as the options about heads and delimiters ask for."""
    is_parsable = "parsable" in found or "parsable2" in found
    delimiter = found.get("delimiter", ["|"])[-1] if is_parsable else None
    for line in fields.table(
        asked, rows, heads="noheader" not in found, delimiter=delimiter, ends="parsable" in found
    ):
        click.echo(line)


def lines_of(job: fields.View, steps: list[str]) -> Iterator[fields.View]:
    """Yield a job and its steps, of which its script is one; if some are named, only those."""
    label = fields.job_label(job)
    are_named = any(step.partition(".")[0] == label for step in steps)
    if not are_named:
        yield job
    if job["started_at"] is not None:
        from drfd_cli.slurm import records

        for step in ({**job, "step": "batch", "name": "batch"}, *records.steps_of(job)):
            if not are_named or f"{label}.{step['step']}" in steps:
                yield step


def steps_of(job: fields.View, steps: list[str]) -> list[fields.View]:
    """Return the steps of a running job that run; if some are named, only those."""
    lines = lines_of(job, steps)
    return [line for line in lines if "step" in line and line["ended_at"] is None]


@slurm_command(SEFF, "tell how well a job has used its cores and memory, as `drf why` does", "IDS")
def seff(words: list[str]) -> int:
    _, rest = SEFF.read(words)
    if not rest:
        raise click.UsageError("no job is named: seff ID")
    client = connect()
    for ref in parse_ids(",".join(rest)):
        reply = client.request("show", id=ref)
        if "job" not in reply:
            raise Refused("is-array", f"{ref} is an array: name one of its tasks", hint=f"{ref}_1")
        click.echo("\n".join(fields.efficiency({**reply["job"], "used": reply.get("used")})))
    return 0


# -- cancelling --------------------------------------------------------------------------------


@slurm_command(
    SCANCEL, "cancel jobs or send them a signal, as `drf cancel` does", "[OPTIONS] [IDS]"
)
def scancel(words: list[str]) -> int:
    found, rest = SCANCEL.read(words)
    client = connect()
    partitions = parts(found.get("partition", []))
    lookup.check_partitions(client, partitions)
    chosen = {each: found[each] for each in _CHOOSING if each in found}
    passes = lookup.filters({each: found[each] for each in chosen if each != "partition"})
    ids = parse_ids(",".join(rest)) if rest else []
    name = [*found.get("name", []), *found.get("jobname", [])]
    caller = client.request("hello")
    user = caller["user"] if "me" in found else None
    if "user" in found and user is None:
        user = lookup.user_names(client, found["user"][-1:])[0]
    states = lookup.states_of(found)
    if not (ids or name or user or chosen or "state" in found):
        raise click.UsageError("no job is named")
    if states == []:
        return 0
    if chosen and not (ids or name or user or states):
        # Of all jobs there, those that the caller may cancel are meant.
        user = None if caller["admin"] else caller["user"]
    select: dict[str, object] = {"ids": ids, "user": user, "states": states or []}
    if name:
        select["name"] = name[-1]
    others: list[fields.View] = []
    if not (ids or caller["admin"] or user == caller["user"]):
        # The jobs that are meant and that the caller may not cancel.
        others = [job for job in _meant(client, select) if job["user"] != caller["user"]]
    if others and "quiet" not in found:
        labels = [f"{fields.job_label(job)} ({output.clean(job['user'])})" for job in others]
        what = "job" if len(labels) == 1 else "jobs"
        output.say(f"scancel: not yours to cancel: {what} {output.listed(labels, 3)}")
    asks = "interactive" in found
    if asks or chosen or (ids and (name or user or states)):
        # The daemon takes either ids or filters of its own.
        jobs = [job for job in _meant(client, select) if passes(job)]
        if partitions:
            names = {*partitions}
            jobs = [job for job in jobs if names & {fields.pool(job), *lookup.pool_names(job)}]
        if not jobs and "quiet" not in found:
            output.say("scancel: there is no such job")
        confirmed = [job for job in jobs if not asks or output.confirm(
            f"Cancel job_id={fields.job_label(job)} name={output.clean(job['name'])} "
            f"partition={fields.pool(job)}"
        )]  # fmt: skip
        # Without the bound of an array, as in `42_[8-99%5]`.
        labels = [re.sub("%[0-9]+", "", fields.job_label(job)) for job in confirmed]
        select = {"ids": [ref for label in labels for ref in parse_ids(label)]}
        if not confirmed:
            return 1 if others else 0
    signal = None if "signal" not in found else parse_signal(found["signal"][-1])
    if signal is None:
        reply = client.request("cancel", select=select)
    else:
        # The shell of a batch script gets only what ends it in any case.
        is_for_all = "full" in found or signal == SIGKILL
        signal |= FIRST if "batch" in found else 0 if is_for_all else REST
        reply = client.request("signal", select=select, signal=signal)
    if "verbose" in found:
        for label in reply.get("labels", reply["done"]):
            what = "Terminating" if signal is None else "Signal {} to".format(found["signal"][-1])
            output.say(f"scancel: {what} job {label}")
    failed = [] if "quiet" in found else reply["failed"]
    for failure in failed:
        output.say(f"scancel: {failure['error']['text']}")
    return 1 if reply["failed"] or (others and not reply["done"]) else 0


#: Options of scancel that choose among jobs, and that the daemon does not know.
_CHOOSING = ("partition", "account", "nodelist", "qos", "reservation")


def _meant(client: Connection, select: fields.View) -> list[fields.View]:
    """Return the live jobs with these ids, if there are any, that pass every filter too."""
    user, pattern, states = select["user"], select.get("name"), select["states"]
    return [
        job
        for job in client.jobs("status", select=select)
        if job["ended_at"] is None
        and (user is None or job["user"] == user)
        and (pattern is None or fnmatchcase(job["name"], pattern))
        and (not states or job["state"] in states)
    ]


# -- the machine -------------------------------------------------------------------------------


@slurm_command(
    SINFO,
    "tell what the machine has and how much is free, as `drf shares` does",
    has_short_help=False,
)
def sinfo(words: list[str]) -> int:
    found, signs = SINFO.read_options(words), lookup.NODE_SIGNS
    return _listed(found, _list_machine, signs, lookup.NODE_WORDS, known.NODE_STATES)


#: The heads and the fields of `sinfo -T`.
_RESERVATIONS = "{:<12} {:>8} {:>19} {:>19} {:>11} {}"
_HEADS = ("RESV_NAME", "STATE", "START_TIME", "END_TIME", "DURATION", "NODELIST")
_OF_RESERVATION = ("ReservationName", "State", "StartTime", "EndTime", "Duration", "Nodes")


def _list_machine(found: Mapping[str, list[str]]) -> int:
    client = connect()
    if "reservation" in found:
        windows = list(map(lookup.as_reservation, client.request("doctor")["windows"]))
        rows = [[window[key] for key in _OF_RESERVATION] for window in windows]
        for row in ([] if "noheader" in found else [_HEADS]) + rows if rows else []:
            click.echo(_RESERVATIONS.format(*row))
        if not rows:
            click.echo("No reservations in the system")
        return 0
    nodes = lookup.read_nodes(client)
    if "partition" in found:
        nodes = [node for node in nodes if node["partition"] in parts(found["partition"])]
    usual = "%9P %.5a %.10l %.6D %.6t %N"
    if "Node" in found:
        usual = "%N %.6D %.9P %.6t"
        if "long" in found:
            usual += " %.4c %.8m %G"
    elif "summarize" in found:
        usual = "%9P %.5a %.10l %.16F %N"
    elif "list-reasons" in found:
        usual, nodes = "%20E %9u %19H %N", nodes[:1]
    nodes = [
        node for node in nodes
        if ("nodes" not in found or node["name"] in parts(found["nodes"]))
        and ("states" not in found or lookup.is_in(node, parts(found["states"])))
        and "dead" not in found and (node["by"] or "list-reasons" not in found)
    ]  # fmt: skip
    if data.is_asked(found):
        told = [
            data.shape("sinfo", {**node, "of_partition": data.shape("partition", node)})
            for node in nodes
        ]
        data.show(found, client, sinfo=told)
        return 0
    asked = _format(found, usual, lookup.NODE_WORDS, lookup.NODE_SIGNS)
    print_rows(found, asked, nodes, lookup.NODE_SIGNS)
    return 0
