"""Slurm's commands: sbatch, srun, squeue, scancel, sinfo and sacct, as far as one machine has them.

Their options are read as Slurm reads them; those without a meaning here are ignored.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref, parse_ids, parse_signal
from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.commands import submit
from drfd_cli.options import connect, parse_moment
from drfd_cli.slurm import fields
from drfd_cli.slurm.batch_script import (
    PARTITION,
    check_begun,
    host_name,
    pool_of,
    read_standard_input,
    whole_machine,
)
from drfd_cli.slurm.command_line import parts, read_options, read_words, slurm_command
from drfd_cli.slurm.machine import read_machine
from drfd_cli.slurm.sbatch_options import (
    FLAG,
    KNOWN,
    MAY,
    SHORT,
    SLURM_NAMES,
    Given,
    Translation,
    parse,
    read_lines,
    translate,
)
from drfd_cli.submitting.call import call_of

# -- submitting --------------------------------------------------------------------------------


@slurm_command("sbatch", "queue a batch script, as `drf submit` does")
def sbatch(words: list[str]) -> int:
    options, rest = parse(words)
    if "wrap" in options:
        if rest:
            line = shlex.quote(" ".join([options["wrap"].value, *rest]))
            raise click.UsageError(f"--wrap takes one line, in quotes: --wrap {line}")
        script, name = None, "wrap"
    elif rest and rest[0] != "-":
        script, name = _script(rest[0]), os.path.basename(rest[0])
    else:
        text = read_standard_input(submit.SCRIPT_MAX_BYTES)
        script, name = submit.script_text(text, submit.STANDARD_INPUT), "sbatch"
        if not script:
            raise Refused("no-script", "standard input has no script")
    lines: dict[str, Given] = {}
    own: list[str] = []
    if script is not None:
        shown = rest[0] if rest else submit.STANDARD_INPUT
        lines = read_lines(script, shown) or {}
        own = submit.directives(script, shown, check=submit.check_options)
    made = translate(lines | options, host_name())
    try:
        submit.check_options(made.words)
    except click.ClickException as error:
        raise Refused("bad-value", f"sbatch: {error.format_message()}") from None
    usual = "slurm-%A_%a.out" if "array" in lines | options else "slurm-%j.out"
    # The command line wins over #DRF lines, and these over #SBATCH lines.
    last = translate(options, host_name()).words if own else []
    asked = ["-n", name, "-o", usual, *made.words, *own, *last]
    command = ["--wrap", options["wrap"].value] if script is None else (rest or ["-"])
    context = click.get_current_context()
    call = call_of(context)
    call.has_script_options, call.slurm, call.text = True, made, script
    call.shown = "{}" if "parsable" in options else "Submitted batch job {}"
    if "quiet" in options and "parsable" not in options:
        call.shown = ""
    with submit.command.make_context("sbatch", [*asked, *command], parent=context) as inner:
        status: int = submit.command.invoke(inner)
    return status


def _script(name: str) -> str:
    try:
        return submit.read_script(name)
    except Refused as error:
        hint = error.hint
        if os.path.sep not in name and shutil.which(name):
            hint = f"sbatch takes a script; for a command: sbatch --wrap '{name} ...'"
        elif hint is not None and hint.startswith(("to run", "drf")):
            hint = "sbatch takes a script; for a command: sbatch --wrap 'CMD ...'"
        raise Refused(error.code, error.text, hint=hint) from None


@slurm_command("srun", "run a command with the resources that it asks for, as `drf run` does")
def srun(words: list[str]) -> int:
    options, command = parse(words, known=_SRUN, short=_SRUN_SHORT)
    if not command:
        raise click.UsageError("there is no command")
    if "multi-prog" in options:
        raise click.UsageError("--multi-prog is not known here")
    if "mpi" in options and options["mpi"].value not in ("none", ""):
        raise Refused("no-mpi", "srun: this one starts no MPI", hint="mpirun -n N COMMAND")
    if "jobid" in options:
        job = options["jobid"].value.partition(".")[0]
        if job != os.environ.get("DRF_JOB_ID"):
            return _run_inside(job, options, command)
    if "DRF_JOB_ID" in os.environ:
        from drfd_cli.slurm import step

        return step.run(options, command, lambda: [_program(), "srun", *words])
    from drfd_cli.commands import run

    made = translate(options, host_name())
    if int(made.variables.get("SLURM_NTASKS", "1")) > 1 or "label" in options:
        # The tasks are started by another srun, within the job.
        made.words += [] if "job-name" in options else ["-n", os.path.basename(command[0])]
        command = [_program(), "srun", *_words_of_step(options, made), "--", *command]
    chosen, left = _for_run(made)
    client = connect()
    if made.partitions and "-p" not in chosen:
        pool = pool_of(made, client)
        chosen += ["-p", pool] if pool is not None else []
    made.unsupported += left
    if made.unsupported:
        output.say(f"without effect here: {', '.join(made.unsupported)}")
    with run.command.make_context("srun", [*chosen, "--", *command]) as inner:
        asked = {**inner.params, "slurm": made}
    asked |= whole_machine(made, asked, client)
    check_begun(made.begun, client)
    argv = asked.pop("command")
    return int(run.run_attached(client, argv, **asked)["status"])


def _words_of_step(options: Mapping[str, Given], made: Translation) -> list[str]:
    words = ["-n", made.variables.get("SLURM_NTASKS", "1")]
    words += ["-c", options["cpus-per-task"].value] if "cpus-per-task" in options else []
    return words + (["-l"] if "label" in options else [])


def _run_inside(job: str, options: Mapping[str, Given], command: list[str]) -> int:
    """Run the command, or so many tasks of it, within a running job, as `drf exec` does."""
    from drfd_cli.commands import exec as inside

    made = translate({key: options[key] for key in _OF_STEP & options.keys()}, host_name())
    if "SLURM_NTASKS" in made.variables or "label" in options:
        command = [_program(), "srun", "--overlap", *_words_of_step(options, made), "--", *command]
    with inside.command.make_context("srun", [job, "--", *command]) as context:
        return int(inside.command.invoke(context))


#: Options of a step within a job.
_OF_STEP = frozenset(("ntasks", "ntasks-per-node", "cpus-per-task"))


def _program() -> str:
    """Return the path of drf. Raises Refused."""
    own = shutil.which("drf") if os.path.basename(sys.argv[0]) in ("", "-c") else sys.argv[0]
    program = os.path.realpath(shutil.which(own or "drf") or "")
    if not os.path.isfile(program):
        raise Refused("no-program", "the program drf is not found", hint="call it by its path")
    return program


#: Options of srun that sbatch lacks.
_SRUN = {
    **KNOWN,
    **dict.fromkeys(("pty", "label", "unbuffered", "overlap", "exact", "multi-prog"), FLAG),
    **dict.fromkeys(("preserve-env", "disable-status", "no-allocate"), FLAG),
    **dict.fromkeys(("mpi", "jobid", "cpu-bind", "cpu_bind", "relative", "threads"), "value"),
    **dict.fromkeys(("wait", "het-group", "task-prolog", "task-epilog"), "value"),
    **dict.fromkeys(("kill-on-bad-exit", "immediate", "resv-ports"), MAY),
}
_SRUN_SHORT = {
    **SHORT, "l": "label", "u": "unbuffered", "K": "kill-on-bad-exit", "r": "relative",
    "I": "immediate", "E": "preserve-env", "T": "threads", "X": "disable-status",
}  # fmt: skip


def _for_run(made: Translation) -> tuple[list[str], list[str]]:
    """Return the options that `drf run` has, and the rest in words."""
    known = {"-c", "-m", "--gres", "-t", "-n", "--priority", "--after", "--begin", "--warn"}
    known |= {"--retry", "--retry-on", "--if-never"}
    chosen: list[str] = []
    left: list[str] = []
    words = iter(made.words)
    for word in words:
        if word in ("--hold", "-w", "--dry-run"):
            left.append(word)
        elif word in known:
            chosen += [word, next(words)]
        else:
            left.append(f"{word} {next(words)}")
    return chosen, left


# -- looking -----------------------------------------------------------------------------------

_QUEUE_SHORT = {
    "u": "user", "j": "jobs", "h": "noheader", "o": "format", "t": "states", "p": "partition",
    "n": "name", "l": "long", "r": "array", "S": "sort", "a": "all", "A": "account",
    "w": "nodelist", "q": "qos", "M": "clusters", "v": "verbose", "s": "steps",
}  # fmt: skip
_QUEUE = {
    **dict.fromkeys(("user", "jobs", "job", "format", "states", "partition", "name"), True),
    **dict.fromkeys(("sort", "account", "nodelist", "qos", "clusters", "steps"), True),
    **dict.fromkeys(("noheader", "long", "array", "all", "me", "start", "verbose"), False),
}


@slurm_command(
    "squeue", "list the jobs that wait and run, as `drf status` does", has_short_help=False
)
def squeue(words: list[str]) -> int:
    found = read_options(words, _QUEUE_SHORT, _QUEUE)
    client = connect()
    users = set(parts(found.get("user", [])))
    if "me" in found:
        users.add(client.request("hello")["user"])
    states = [] if "states" not in found else _states(found["states"])
    named = parts([*found.get("jobs", []), *found.get("job", [])])
    ids = parse_ids(",".join(named)) if named else []
    select: dict[str, object] = {"ids": ids, "user": None, "states": states}
    if len(users) == 1:
        select["user"] = next(iter(users))
    tasks = "array" in found
    if ids:
        listed = _named(client, select, ids, tasks=tasks, has_states="states" in found)
        if listed is None:
            output.say("slurm_load_jobs error: Invalid job id specified")
            return 1
    else:
        listed = list(_queue(client, select, tasks=tasks))
    jobs = _wanted(listed, users, states, found)
    usual = fields.LONG if "long" in found else fields.USUAL
    if "start" in found:
        usual = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
    _print(fields.rows_by_signs, found.get("format", [usual])[-1], jobs, found, fields.SIGNS)
    return 0


#: Seconds that squeue knows a job after its end.
_KNOWN_S = 300


def _named(
    client: Connection, select: Mapping[str, object], ids: list[Ref], *, tasks: bool,
    has_states: bool,
) -> list[Mapping[str, Any]] | None:  # fmt: skip
    """Return the jobs with these ids that have not ended, or with the states that are asked for.
    Return None if there was one id, of no job or of one that ended a while ago."""
    jobs: list[Mapping[str, Any]] = []
    try:
        jobs += _queue(client, select, tasks=tasks)
    except Refused as error:
        if error.code != "no-such-job":
            raise
        if len(ids) == 1:
            return None
        # Slurm leaves out the one that it does not know.
        for each in ids:
            alone = _named(client, {**select, "ids": [each]}, [each], tasks=tasks, has_states=True)
            jobs += alone or []
    if has_states:
        return jobs
    live = [job for job in jobs if job["ended_at"] is None]
    ended_at_s = max((job["ended_at"] for job in jobs if job["ended_at"] is not None), default=0.0)
    is_old = time.time() - ended_at_s > _KNOWN_S
    return None if jobs and not live and len(ids) == 1 and is_old else live


def _queue(
    client: Connection, select: Mapping[str, object], *, tasks: bool
) -> Iterator[Mapping[str, Any]]:
    more = {"tasks": True} if tasks else {}
    for page in client.pages("status", select=select, **more):
        yield from page["jobs"]


def _wanted(
    jobs: Iterable[Mapping[str, Any]], users: Container[str], states: Container[str],
    found: Mapping[str, list[str]],
) -> list[Mapping[str, Any]]:  # fmt: skip
    """Return the jobs of these users and in these states, or of all if there are none, with the
    names and partitions that the options name."""
    names, pools = set(parts(found.get("name", []))), set(parts(found.get("partition", [])))
    return [
        job
        for job in jobs
        if (not users or job["user"] in users)
        and (not states or job["state"] in states)
        and (not names or job["name"] in names)
        and (not pools or not pools.isdisjoint((job["pool"], fields.pool(job))))
    ]


def _states(values: list[str]) -> list[str]:
    words = parts(values)
    if any(word.lower() == "all" for word in words):
        return []
    try:
        return fields.native_states(words)
    except ValueError as error:
        raise click.UsageError(f"there is no state {error}") from None


def _print(
    rows: Callable[..., list[str]], text: str, jobs: list[Any], found: Mapping[str, object],
    known: Iterable[str],
) -> None:  # fmt: skip
    try:
        lines = rows(text, jobs, heads="noheader" not in found)
    except ValueError as error:
        raise click.UsageError(
            f"there is no field {error} here; there are {' '.join(known)}"
        ) from None
    for line in lines:
        click.echo(line)


_ACCOUNT_SHORT = {
    "j": "jobs", "u": "user", "a": "allusers", "S": "starttime", "E": "endtime", "s": "state",
    "n": "noheader", "P": "parsable2", "p": "parsable", "o": "format", "X": "allocations",
    "b": "brief", "l": "long", "L": "allclusters", "D": "duplicates", "r": "partition",
    "A": "accounts", "M": "clusters", "N": "nodelist", "q": "qos", "T": "truncate",
}  # fmt: skip
_ACCOUNT = {
    **dict.fromkeys(("jobs", "user", "uid", "starttime", "endtime", "state", "format"), True),
    **dict.fromkeys(("name", "delimiter", "partition", "accounts", "clusters"), True),
    **dict.fromkeys(("nodelist", "qos", "units"), True),
    **dict.fromkeys(("allusers", "noheader", "parsable", "parsable2", "allocations"), False),
    **dict.fromkeys(
        ("brief", "long", "allclusters", "duplicates", "truncate", "helpformat"), False
    ),
}
_LONG = (
    "JobID,JobName,User,Partition,AllocCPUS,ReqMem,MaxRSS,Submit,Start,End,Elapsed,TotalCPU,"
    "Timelimit,State,ExitCode"
)


@slurm_command("sacct", "list jobs of today and what they used, as `drf history` does")
def sacct(words: list[str]) -> int:
    found = read_options(words, _ACCOUNT_SHORT, _ACCOUNT)
    if "helpformat" in found:
        click.echo("\n".join(head for head, _, _ in fields.NAMES.values()))
        return 0
    client = connect()
    words = parts(found.get("jobs", []))
    steps = [word for word in words if "." in word]
    ids = parse_ids(",".join(word.partition(".")[0] for word in words)) if words else []
    users = set(parts([*found.get("user", []), *found.get("uid", [])]))
    if not ids and not users and "allusers" not in found:
        users = {client.request("hello")["user"]}
    states = [] if "state" not in found else _states(found["state"])
    since_s = _moment(found["starttime"][-1]) if "starttime" in found else None
    until_s = _moment(found["endtime"][-1]) if "endtime" in found else None
    if since_s is None and not ids:
        since_s = parse_moment("today")
    past: dict[str, object] = {"ids": ids, "states": states, "since_s": since_s}
    past |= {"until_s": until_s, "user": next(iter(users)) if len(users) == 1 else None}
    ended = list(_past(client, {key: each for key, each in past.items() if each not in (None, [])}))
    select = {"ids": ids, "user": past["user"], "states": states}
    live = [] if until_s is not None else list(_live(client, select, is_named=bool(ids)))
    known = {job["id"]: job for job in (*live, *ended)}.values()
    jobs = _wanted(sorted(known, key=_number), users, states, found)
    if "allocations" not in found:
        jobs = [line for job in jobs for line in _lines_of(job, steps)]
    usual = fields.BRIEF if "brief" in found else _LONG if "long" in found else fields.ACCOUNT
    delimiter = None
    if "parsable" in found or "parsable2" in found:
        delimiter = found.get("delimiter", ["|"])[-1]

    def rows(text: str, jobs: list[Any], *, heads: bool) -> list[str]:
        ends = "parsable" in found
        return fields.rows_by_names(text, jobs, heads=heads, delimiter=delimiter, ends=ends)

    names = [head for head, _, _ in fields.NAMES.values()]
    _print(rows, ",".join(found.get("format", [usual])), jobs, found, names)
    return 0


def _lines_of(job: Mapping[str, Any], steps: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield a job, and its script as a step once it has started; if steps are named, only those."""
    label = fields.job_label(job)
    if not any(step.partition(".")[0] == label for step in steps):
        yield job
    elif f"{label}.batch" not in steps:
        return
    if job["started_at"] is not None:
        yield fields.batch_step(job)


def _number(job: Mapping[str, Any]) -> int:
    return int(job["id"])


def _live(
    client: Connection, select: Mapping[str, object], *, is_named: bool
) -> Iterator[Mapping[str, Any]]:
    try:
        yield from _queue(client, select, tasks=False)
    except Refused:
        # None of the named jobs is live.
        if not is_named:
            raise


def _past(client: Connection, past: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
    for page in client.pages("history", past=past):
        yield from page["jobs"]


def _moment(text: str) -> float:
    """Return the Unix time of a time of sacct."""
    ago = re.fullmatch(r"now-(\d+)(second|minute|hour|day|week)s?", text)
    if ago is not None:
        unit, count = ago[2][0], int(ago[1])
        return parse_moment(f"{count * 7}d" if unit == "w" else f"{count}{unit}")
    return parse_moment("today" if text == "midnight" else text)


# -- cancelling --------------------------------------------------------------------------------

_CANCEL_SHORT = {
    "u": "user", "n": "name", "t": "state", "p": "partition", "s": "signal", "b": "batch",
    "f": "full", "q": "quiet", "Q": "quiet", "v": "verbose", "i": "interactive", "A": "account",
    "w": "nodelist", "H": "hurry",
}  # fmt: skip
_CANCEL = {
    **dict.fromkeys(("user", "name", "jobname", "state", "partition", "signal", "account"), True),
    **dict.fromkeys(("nodelist", "qos", "reservation"), True),
    **dict.fromkeys(("batch", "full", "quiet", "verbose", "interactive", "me", "hurry"), False),
}


@slurm_command("scancel", "cancel jobs or send them a signal, as `drf cancel` does")
def scancel(words: list[str]) -> int:
    found, rest = read_words(words, _CANCEL_SHORT, _CANCEL)
    for option in ("partition", "account", "nodelist", "qos", "reservation"):
        if option in found:
            # More jobs would be cancelled without it.
            raise click.UsageError(f"--{option} is not known here")
    client = connect()
    ids = parse_ids(",".join(rest)) if rest else []
    name = [*found.get("name", []), *found.get("jobname", [])]
    user = client.request("hello")["user"] if "me" in found else found.get("user", [None])[-1]
    states = [] if "state" not in found else _states(found["state"])
    if not (ids or name or user or states):
        raise click.UsageError("no job is named")
    select: dict[str, object] = {"ids": ids, "user": user, "states": states}
    if name:
        select["name"] = name[-1]
    asks = "interactive" in found
    if asks or (ids and (name or user or states)):
        # The daemon takes either ids or filters.
        jobs = _meant(client, select)
        if not jobs and "quiet" not in found:
            output.say("scancel: there is no such job")
        confirmed = [job for job in jobs if not asks or _is_confirmed(job)]
        select = {
            "ids": [ref for job in confirmed for ref in _refs(job)],
            "user": None,
            "states": [],
        }
        if not confirmed:
            return 0
    signal = parse_signal(found["signal"][-1]) if "signal" in found else None
    if signal is None:
        reply = client.request("cancel", select=select)
    else:
        reply = client.request("signal", select=select, signal=int(signal))
    failed = [] if "quiet" in found else reply["failed"]
    for failure in failed:
        output.say(f"scancel: {failure['error']['text']}")
    return 1 if reply["failed"] else 0


def _meant(client: Connection, select: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the live jobs with these ids, if there are any, that pass every filter too."""
    user, pattern, states = select["user"], select.get("name"), select["states"]
    return [
        job
        for job in _queue(client, select, tasks=False)
        if job["ended_at"] is None
        and (user is None or job["user"] == user)
        and (pattern is None or fnmatchcase(job["name"], pattern))
        and (not states or job["state"] in states)
    ]


def _is_confirmed(job: Mapping[str, Any]) -> bool:
    name = output.clean(job["name"])
    question = f"Cancel job_id={fields.job_label(job)} name={name} partition={fields.pool(job)}"
    return click.confirm(question, err=True)


def _refs(job: Mapping[str, Any]) -> list[Ref]:
    label = fields.job_label(job)
    return parse_ids(label.partition("%")[0] + "]" * ("%" in label))


# -- the machine -------------------------------------------------------------------------------

_INFO_SHORT = {
    "h": "noheader", "o": "format", "N": "Node", "s": "summarize", "l": "long", "p": "partition",
    "n": "nodes", "a": "all", "t": "states", "e": "exact", "v": "verbose", "M": "clusters",
}  # fmt: skip
_INFO = {
    **dict.fromkeys(("format", "partition", "nodes", "states", "clusters"), True),
    **dict.fromkeys(("noheader", "Node", "summarize", "long", "all", "exact", "verbose"), False),
}


@slurm_command(
    "sinfo",
    "tell what the machine has and how much is free, as `drf shares` does",
    has_short_help=False,
)
def sinfo(words: list[str]) -> int:
    found = read_options(words, _INFO_SHORT, _INFO)
    machine = read_machine(connect())
    cpus, idle, state = machine.cpus, machine.idle, machine.state
    used = f"{cpus - idle}/{idle}/0/{cpus}"
    values = {
        "P": ("PARTITION", f"{PARTITION}*"), "R": ("PARTITION", PARTITION), "a": ("AVAIL", "up"),
        "l": ("TIMELIMIT", "infinite"), "D": ("NODES", "1"), "t": ("STATE", state),
        "T": ("STATE", machine.long_state), "N": ("NODELIST", machine.name),
        "n": ("HOSTNAMES", machine.name), "c": ("CPUS", str(cpus)),
        "m": ("MEMORY", str(machine.memory_bytes >> 20)), "C": ("CPUS(A/I/O/T)", used),
        "G": ("GRES", machine.gres), "e": ("FREE_MEM", str(machine.free_memory_bytes >> 20)),
        "A": ("NODES(A/I)", "0/1" if state == "idle" else "1/0"),
        "F": ("NODES(A/I/O/T)", "0/1/0/1" if state == "idle" else "1/0/0/1"),
        "E": ("REASON", machine.reason), "f": ("AVAIL_FEATURES", "(null)"), "d": ("TMP_DISK", "0"),
    }  # fmt: skip
    usual = "%9P %.5a %.10l %.6D %.6t %N"
    if "Node" in found:
        usual = "%N %.6D %.9P %.6t"
        if "long" in found:
            usual += " %.4c %.8m %G"
    elif "summarize" in found:
        usual = "%9P %.5a %.10l %.16F %N"
    text = found.get("format", [usual])[-1]
    unknown = [letter for letter in re.findall(r"%\.?\d*([A-Za-z])", text) if letter not in values]
    if unknown:
        raise click.UsageError(f"there is no field %{unknown[0]} here")
    if "noheader" not in found:
        click.echo(fields.fill(text, {sign: head for sign, (head, _) in values.items()}))
    click.echo(fields.fill(text, {sign: value for sign, (_, value) in values.items()}))
    return 0


# -- the names ---------------------------------------------------------------------------------


@click.command("slurm-names")
@click.argument("directory", metavar="DIR")
def slurm_names(directory: str) -> int:
    """Make sbatch, srun, squeue, scancel, sinfo, sacct and scontrol in a directory, as links to
    drf. If one of these names is there already, none is made."""
    program = _program()
    os.makedirs(directory, exist_ok=True)
    paths = [os.path.join(directory, name) for name in SLURM_NAMES]
    for path in paths:
        if os.path.lexists(path) and os.path.realpath(path) != program:
            raise Refused("exists", f"{path} is there already", hint="choose another directory")
    for path in paths:
        if not os.path.lexists(path):
            os.symlink(program, path)
    output.tell(f"made {', '.join(SLURM_NAMES)} in {directory}")
    if os.path.realpath(directory) not in map(
        os.path.realpath, os.environ.get("PATH", "").split(":")
    ):
        output.say(f"{directory} is not in your PATH")
    return 0
