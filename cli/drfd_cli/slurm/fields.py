"""What Slurm's lists print of a job: the signs of `squeue -o` and the names of `sacct --format`."""

from __future__ import annotations

import grp
import os
import pwd
import re
import time
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache, partial
from operator import itemgetter
from string import ascii_letters
from typing import TYPE_CHECKING, Any, cast

import click

from drfd.common.units import MAIN
from drfd_cli import output
from drfd_cli.slurm import host_name, known
from drfd_cli.tables.columns import PAST_JOBS

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView

#: A job, a step of one, or a node of the tree, as the daemon shows it.
View = Mapping[str, Any]
#: The states → Slurm's name and short name.
STATES = {
    "PENDING": ("PENDING", "PD"),
    "HELD": ("PENDING", "PD"),
    "STARTING": ("CONFIGURING", "CF"),
    "RUNNING": ("RUNNING", "R"),
    "SUSPENDED": ("SUSPENDED", "S"),
    "STOPPING": ("COMPLETING", "CG"),
    "CLEANING": ("COMPLETING", "CG"),
    "COMPLETED": ("COMPLETED", "CD"),
    "FAILED": ("FAILED", "F"),
    "CANCELLED": ("CANCELLED", "CA"),
    "TIMEOUT": ("TIMEOUT", "TO"),
    "OUT_OF_MEMORY": ("OUT_OF_MEMORY", "OOM"),
    "LIMIT_EXCEEDED": ("FAILED", "F"),
    "LAUNCH_FAILED": ("BOOT_FAIL", "BF"),
    "LOST": ("NODE_FAIL", "NF"),
}
#: Codes of reasons → Slurm's; others are printed as they are.
_REASONS = {
    "RESOURCES": "Resources", "EXTERNAL_LOAD": "Resources", "FAIR_SHARE": "Priority",
    "MACHINE_SHORT": "Resources", "NODE_AWAY": "ReqNodeNotAvail",
    "RESERVATION": "Priority", "STARTING_SOON": "None", "DEPENDENCY": "Dependency",
    "DEPENDENCY_NEVER": "DependencyNeverSatisfied", "BEGIN_TIME": "BeginTime",
    "HELD": "JobHeldUser", "LIMIT": "AssocGrpLimit",
    "MAINTENANCE": "ReqNodeNotAvail,_Reserved_for_maintenance",
}  # fmt: skip
#: The formats of `squeue` and of `squeue -l`.
USUAL = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
#: The format of `sacct` and of `sacct -b`.
ACCOUNT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
#: How the reason of a task begins that waits for others of its array.
_OF_ARRAY = re.compile(r"array \d+ runs \d+ at once")
#: The outcome of a job that somebody has cancelled.
_CANCELLED = re.compile(r"cancelled by (\S+)")
#: A sign of a format with its width: `%.18i`.
_SIGN = re.compile(r"%(\.?)(\d*)([A-Za-z])", re.ASCII)
_IN_TEXT = r"%([A-Za-z]|\{[a-z_-]+\})"
#: A field of `-O` with its width and what follows it: `Comment:.20/`.
_FIELD = re.compile(r"([^:,]+)(?:(:)(\.?)(\d*)([^,]*))?", re.ASCII)
#: Where a column is to the right, its width if it has one, its sign (of a field of `-O` that has
#: none its name in braces), and the text that follows it.
Format = list[tuple[str, str, str, str]]
#: Returns what a column holds; None for nothing.
Show = Callable[["View"], object]
#: By the signs of a format, the head of the column and what it holds.
Signs = Mapping[str, tuple[str, Show]]


def span(seconds: float | None, *, whole: bool = False) -> str:
    """Return a time as squeue writes it, such as `5:04`, or with all its parts, as sacct does."""
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(int(max(0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    if day:
        return f"{day}-{hour:02}:{minute:02}:{second:02}"
    if whole:
        return f"{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def moment(at_s: float | None, missing: str = "N/A") -> str:
    if at_s is None:
        return missing
    asked = os.environ.get("SLURM_TIME_FORMAT", "standard")
    usual = "%Y-%m-%dT%H:%M:%S" if asked in ("standard", "relative") else asked
    return time.strftime(usual, time.localtime(at_s))


def elapsed_s(job: View) -> float:
    return output.run_s(cast("JobView", job), time.time())


def job_label(job: View) -> str:
    """Return `42`, `42_7`, or `42_[8-99]` for tasks that wait."""
    tasks = job.get("array_tasks")
    if tasks is not None and job["array_index"] is None:
        return f"{job['array_id'] or job['id']}_[{tasks}]"
    return output.label(cast("JobView", job))


def raw_id(job: View) -> int:
    """Return the job's number; of tasks that wait together that of the array."""
    together = job.get("array_tasks") is not None and job["array_index"] is None
    return int((job["array_id"] if together else None) or job["id"])


def _step_label(job: View, shown: str) -> str:
    return f"{shown}.{job['step']}" if "step" in job else shown


def _reason(job: View) -> str:
    if job["reason"] is None:
        return "None"
    code, text = str(job["reason"]["code"]), str(job["reason"]["text"])
    if code == "HELD" and "an administrator's drf release" in text:
        return "JobHeldAdmin"
    if code == "LIMIT" and _OF_ARRAY.match(text):
        return "JobArrayTaskLimit"
    if code == "DRAINING":
        return f"ReqNodeNotAvail,_UnavailableNodes:{host_name()}"
    return _REASONS.get(code, code)


def _state(job: View) -> str:
    return STATES.get(job["state"], (job["state"],))[0]


def pool(job: View) -> str:
    """Return the job's partition: the last part of its pool, and without a pool the machine's."""
    path = str(job["pool"])
    return MAIN if path == f"root.{job['user']}" else path.rsplit(".", 1)[-1]


def cpus(job: View) -> int:
    return max(1, -int(-job["demand"]["cores"] // 1))


def _memory(job: View) -> str:
    return f"{job['demand']['memory'] >> 20}M"


def _gres(job: View, sign: str) -> list[str]:
    return [f"gres/{name}{sign}{count}" for name, count in job["demand"]["gres"].items()]


def _end(job: View) -> str:
    if job["ended_at"] is not None or job["started_at"] is None or job["time_limit_s"] is None:
        return moment(job["ended_at"])
    return moment(time.time() + job["time_limit_s"] - elapsed_s(job))


def _code(job: View) -> str:
    if "step" not in job and _state(job) in ("TIMEOUT", "CANCELLED"):
        # What ended it is the signal of its step.
        return "0:0"
    if job["exit_code"] is None and not job["signal"] and _state(job) in ("BOOT_FAIL", "NODE_FAIL"):
        return f"{output.NEVER_RAN}:0"
    return f"{job['exit_code'] or 0}:{job['signal'] or 0}"


def used(job: View, name: str) -> Any:
    of_ended = job.get("used")
    return of_ended.get(name) if of_ended is not None else job["usage"][name]


def _cpu_time(job: View) -> str:
    """Return the CPU time, below an hour with its milliseconds: `01:02.345`."""
    seconds = used(job, "cpu_seconds") or 0.0
    if not 0 < seconds < 3600:
        return span(seconds, whole=True)
    minutes, milliseconds = divmod(int(seconds * 1000), 60_000)
    return f"{minutes:02}:{milliseconds / 1000:06.3f}"


def _state_and_who(job: View) -> str:
    who = _CANCELLED.match((job["outcome"] or {}).get("text", ""))
    if "step" in job or job["state"] != "CANCELLED" or who is None:
        return _state(job)
    if who[1] == job["user"]:
        return f"CANCELLED by {job['uid']}"
    try:
        return f"CANCELLED by {pwd.getpwnam(who[1]).pw_uid}"
    except KeyError:
        return _state(job)


def _disk(name: str, job: View) -> str | None:
    count = used(job, name)
    return None if count is None else f"{count / (1 << 20):.2f}M"


def _peak(job: View) -> str | None:
    peak = used(job, "memory_peak")
    return f"{peak >> 10}K" if peak else None


def _cpu_seconds(job: View) -> float:
    return elapsed_s(job) * cpus(job)


def _at(name: str, job: View) -> str:
    return moment(job[name], "Unknown")


def _task(job: View) -> object:
    at = job.get("array_tasks", job["array_index"])
    return "N/A" if at is None else at


def _gid(job: View) -> object:
    number = group(job["uid"])[1]
    return "N/A" if number is None else number


def _left(job: View) -> str:
    return span(job["time_limit_s"] and job["time_limit_s"] - elapsed_s(job))


def _limit_minutes(job: View) -> object:
    return "UNLIMITED" if job["time_limit_s"] is None else job["time_limit_s"] // 60


def _nodes(job: View) -> str:
    return f"({_reason(job)})" if job["started_at"] is None else host_name()


def _tres(job: View) -> str:
    return ",".join([f"cpu={cpus(job)}", f"mem={_memory(job)}", "node=1", *_gres(job, "=")])


def _dependency(job: View) -> str:
    """Return what the job waits for, where that was asked."""
    after = job.get("after") or ()
    words = [f"after{each['want']}:{each['label']}(unfulfilled)" for each in after]
    return ",".join(words) or "(null)"


def _command(job: View) -> str:
    return "(null)" if job["argv"] is None else " ".join(job["argv"])


def always(value: str) -> Callable[[View], str]:
    return lambda job: value


@cache
def group(uid: int) -> tuple[str, int | None]:
    """Return the name and the number of a user's first group, as far as this machine knows it."""
    try:
        number = pwd.getpwuid(uid).pw_gid
        return grp.getgrgid(number).gr_name, number
    except KeyError:
        return "N/A", None


def waited_s(job: View) -> float:
    until_s: float = job["started_at"] or job["ended_at"] or time.time()
    return max(0.0, until_s - float(job["submitted_at"]))


#: What `squeue` and `sacct` print of a job: its sign of `squeue -o`, or its name of `-O` in braces
#: where it has none, the head there, and its names of `-O`; names of `sacct` with their widths,
#: where these are not 10; and what it holds.
_FIELDS: tuple[tuple[str, str, Show], ...] = (
    ("i JOBID jobarrayid stepid", "JobID -12", lambda job: _step_label(job, job_label(job))),
    ("A JOBID jobid", "JobIDRaw -12", lambda job: _step_label(job, str(raw_id(job)))),
    ("F ARRAY_JOB_ID arrayjobid", "", lambda job: job["array_id"] or job["id"]),
    ("K ARRAY_TASK_ID arraytaskid", "", _task),
    ("U UID userid", "UID 6", itemgetter("uid")),
    ("P PARTITION partition", "Partition", pool),
    ("g GROUP groupname", "Group 9", lambda job: group(job["uid"])[0]),
    ("G GROUP groupid", "GID 6", _gid),
    ("{cluster} CLUSTER", "Cluster", lambda job: host_name()),
    ("q QOS qos", "QOS", always("normal")),
    ("t ST statecompact", "", lambda job: STATES.get(job["state"], ("", job["state"]))[1]),
    ("T STATE state stepstate", "", _state),
    ("M TIME timeused", "", lambda job: span(elapsed_s(job))),
    ("l TIME_LIMIT timelimit", "", lambda job: span(job["time_limit_s"])),
    ("L TIME_LEFT timeleft", "", _left),
    ("C CPUS numcpus", "AllocCPUS ReqCPUS 8 NCPUS", cpus),
    ("c MIN_CPUS mincpus cpus-per-task cpuspertask", "", cpus),
    ("D NODES nodes numnodes", "NNodes 8 AllocNodes", always("1")),
    ("{numtasks} TASKS numtask", "NTasks 8", lambda job: job.get("tasks_of_step", 1)),
    ("{allocnodes} ALLOC_NODES", "", lambda job: host_name()),
    ("{pendingtime} PENDING_TIME", "", lambda job: int(waited_s(job))),
    ("", "Planned", lambda job: span(waited_s(job), whole=True)),
    ("", "Suspended", lambda job: span(job.get("suspended_seconds", 0), whole=True)),
    ("m MIN_MEMORY minmemory", "ReqMem", _memory),
    ("b TRES_PER_NODE gres tres-per-node", "", lambda job: ",".join(_gres(job, ":")) or "N/A"),
    ("R NODELIST(REASON) reasonlist", "", _nodes),
    ("r REASON reason", "Reason 22", _reason),
    ("N NODELIST nodelist", "", lambda job: "" if job["started_at"] is None else host_name()),
    ("B EXEC_HOST batchhost", "", lambda job: "n/a" if job["started_at"] is None else host_name()),
    ("", "NodeList 15", lambda job: host_name()),
    ("", "State", _state_and_who),
    ("{exit_code} EXIT_CODE derivedec", "ExitCode 8 DerivedExitCode 15", _code),
    ("", "Elapsed", lambda job: span(elapsed_s(job), whole=True)),
    ("", "ElapsedRaw", lambda job: int(elapsed_s(job))),
    ("Q PRIORITY prioritylong", "", itemgetter("priority")),
    ("S START_TIME starttime", "",
     lambda job: moment(job["started_at"] or job["expected_start_at"])),
    ("e END_TIME endtime", "", _end),
    ("V SUBMIT_TIME submittime", "Submit 19", lambda job: moment(job["submitted_at"])),
    ("{eligibletime} ELIGIBLE_TIME", "", lambda job: moment(job["eligible_at"])),
    ("", "Eligible 19", partial(_at, "eligible_at")),
    ("", "Start 19", partial(_at, "started_at")),
    ("", "End 19", partial(_at, "ended_at")),
    ("", "Timelimit", lambda job: span(job["time_limit_s"], whole=True)),
    ("", "TimelimitRaw 12", _limit_minutes),
    ("", "MaxRSS AveRSS", _peak),
    ("", "AveCPU", lambda job: span(used(job, "cpu_seconds") or 0, whole=True)),
    ("", "MaxDiskRead 12", partial(_disk, "read_bytes")),
    ("", "MaxDiskWrite 12", partial(_disk, "written_bytes")),
    ("", "TotalCPU", _cpu_time),
    ("", "CPUTime", lambda job: span(_cpu_seconds(job), whole=True)),
    ("", "CPUTimeRAW", lambda job: int(_cpu_seconds(job))),
    ("{tres-alloc} TRES_ALLOC tres", "ReqTRES AllocTRES", _tres),
    ("Z WORK_DIR workdir", "", lambda job: job["cwd"] or "(null)"),
    ("", "WorkDir 20", itemgetter("cwd")),
    ("o COMMAND command", "SubmitLine 20", _command),
    ("E DEPENDENCY dependency", "", _dependency),
    ("d MIN_TMP_DISK mintmpdisk", "", always("0")),
    ("f FEATURES feature", "", always("(null)")),
    ("h OVER_SUBSCRIBE oversubscribe shared", "", always("OK")),
    ("k COMMENT comment", "", lambda job: job.get("comment", "(null)")),
    ("", "Comment 14", lambda job: job.get("comment", "")),
    ("v RESERVATION reservation", "", always("(null)")),
    ("y NICE nice", "", lambda job: -job["priority"]),
    ("{restartcnt} RESTART_COUNT", "Restarts 8", lambda job: max(0, job["attempt"] - 1)),
    ("{stdout} STDOUT", "StdOut 20", itemgetter("stdout")),
    ("{stderr} STDERR", "StdErr 20", itemgetter("stderr")),
    ("{requeue} REQUEUE", "", lambda job: int(job.get("retry") is not None)),
    *((words, "", always(value)) for words, value in known.SQUEUE),
    # What drfd's own lists print as well.
    *((each.squeue, each.sacct, each.word) for each in PAST_JOBS.values()),
)  # fmt: skip


def by_sign(
    rows: Iterable[tuple[str, Show]],
) -> tuple[dict[str, tuple[str, Show]], dict[str, str]]:
    """Return head and value by the signs, and the signs by the names of `-O`, of rows that begin
    with these. A field of `-O` alone has its name as its sign, in braces."""
    words = [(text.split(), value) for text, value in rows if text]
    return (
        {sign: (head, value) for (sign, head, *_), value in words},
        {name: sign for (sign, _, *names), _ in words for name in (*names, sign.strip("{}"))
         if len(name) > 1},
    )  # fmt: skip


#: Signs of `squeue -o`: the head of the column, and what it holds; names of `-O` → their signs.
SIGNS, WORDS = by_sign((text, show) for text, _, show in _FIELDS)
#: The same of `sprio`: what drfd has no factors for adds nothing to the priority.
PRIORITIES: Signs = {
    **{sign: (head, always("0")) for head, signs in known.FACTORS.items() for sign in signs},
    **{sign: SIGNS[of] for sign, of in {"i": "i", "u": "u", "o": "a", "r": "P"}.items()},
    "c": ("CLUSTER", lambda job: host_name()), "N": ("NICE", SIGNS["y"][1]),
    "Y": ("PRIORITY", SIGNS["Q"][1]), "y": ("PRIORITY", SIGNS["Q"][1]),
}  # fmt: skip


def named(
    rows: Iterable[tuple[str, Show]],
) -> dict[str, tuple[str, int, Show]]:
    """Return by names in small letters, from rows of names and widths (10 if there is none): the
    head, the width, and what it holds. `Name=Head_of_it 9` has another head."""
    return {
        name.lower(): ((head or name).replace("_", " "), int(width or 10), show)
        for text, show in rows
        for name, head, width in re.findall(r"(\w+)(?:=(\w+))?(?: (-?\d+))?", text)
    }


#: Names of `sacct --format` in small letters: the head, the usual width, and what it holds.
NAMES = dict(
    sorted(
        named(
            (
                *((text, show) for _, text, show in _FIELDS),
                (f"{known.SACCT},{known.UNMEASURED}", always("")),
            )
        ).items()
    )
)


def value(sign: str, job: View) -> object:
    """Return what a field holds, by its sign, or by its name of `sacct` or of -O in braces."""
    name = sign.strip("{}")
    return NAMES[name][2](job) if name in NAMES else SIGNS[WORDS.get(name, name)][1](job)


def filled(text: str, job: View) -> str:
    """Return a text with what stands in fields in place of `%` and their signs; empty ones are
    `(null)`."""
    return re.sub(_IN_TEXT, lambda found: _plain(value(found[1], job)) or "(null)", text)


def format_of(text: str, signs: Container[str]) -> Format:
    """Return a format of `-o`, of which `%all` is all signs; what is no sign stays as it is, and is
    told."""
    if text.lower() == "%all":
        text = "|".join(f"%{letter}" for letter in ascii_letters if letter in signs)
    before, *rest = _SIGN.split(text)
    found = list(zip(*(rest[at::4] for at in range(4)), strict=True))
    _warn_of([f"%{sign}" for *_, sign, _ in found if sign not in signs])
    return [("", "", "", before)] + [
        piece if piece[2] in signs else ("", "", "", f"%{''.join(piece)}") for piece in found
    ]


def format_of_words(text: str, words: Mapping[str, str], signs: Container[str]) -> Format:
    """Return a format of `-O`. A field without a colon has 20 columns, one without a width as many
    as it needs. In place of what is no word there is what follows it, and that is told."""
    found: Format = []
    named = [(name.strip().lower(), *rest) for name, *rest in _FIELD.findall(text)]
    _warn_of([name for name, *_ in named if name not in words and name != "all"])
    for name, colon, right, width, after in named:
        if name == "all":
            found += format_of("%all", signs)
        elif name in words:
            found.append((right, width if colon else "20", words[name], after))
        else:
            found.append(("", "", "", after))
    return found


def _warn_of(unknown: list[str]) -> None:
    if unknown:
        said = ", ".join(map(output.clean, unknown))
        output.say(f"no field of Slurm's, so without a value: {said}")


def rows_by_signs(
    asked: Format, jobs: Iterable[View], *, heads: bool, signs: Signs = SIGNS
) -> list[str]:
    """Return the lines of a format of `squeue`, or of another command with such signs."""
    found = {sign: signs[sign] for sign in signs_of(asked) if sign in signs}
    lines = [fill(asked, {sign: head for sign, (head, _) in found.items()})] if heads else []
    return lines + [
        fill(asked, {sign: _plain(show(job)) for sign, (_, show) in found.items()}) for job in jobs
    ]


def signs_of(asked: Format) -> set[str]:
    return {sign for _, _, sign, _ in asked}


def sorted_by(text: str, jobs: Iterable[View]) -> list[View]:
    """Return the jobs in the order of `squeue -S`, such as `-p,i`. Raises UsageError."""
    found = list(jobs)
    for word in reversed([word for word in text.split(",") if word]):
        letter = word.lstrip("+-")
        if letter not in SIGNS:
            there = ", ".join(SIGNS)
            raise click.UsageError(f"there is no field {word} to sort by; there are: {there}")
        found.sort(key=lambda job: _order(letter, job), reverse=word.startswith("-"))
    return found


def _order(letter: str, job: View) -> tuple[float, str]:
    """Return by what a column is sorted: times and numbers as such, what is missing last."""
    numbers = {
        "i": job["id"], "A": job["id"], "F": job["array_id"] or job["id"],
        "S": job["started_at"] or job["expected_start_at"], "V": job["submitted_at"],
        "Q": job["priority"], "p": job["priority"], "l": job["time_limit_s"],
        "M": elapsed_s(job), "C": job["demand"]["cores"], "m": job["demand"]["memory"],
        "U": job["uid"],
    }  # fmt: skip
    if letter in numbers:
        number = numbers[letter]
        return (float("inf") if number is None else float(number), "")
    return (0.0, _plain(SIGNS[letter][1](job)))


def fill(asked: Format, values: Mapping[str, str]) -> str:
    """Return a format with the values of its signs; those without a value are empty."""
    text = ""
    for right, width, sign, after in asked:
        cell, columns = values.get(sign, ""), int(width or 0)
        if columns:
            cell = f"{cell[:columns]:{'>' if right else '<'}{columns}}"
        text += cell + after
    return text


def _plain(value: object) -> str:
    """Return a value as Slurm prints it."""
    return "" if value is None else output.clean(value, 1000)


def efficiency(job: View) -> list[str]:
    """Return the lines of `seff`."""
    used_s, held_s = used(job, "cpu_seconds") or 0.0, _cpu_seconds(job)
    peak, limit = used(job, "memory_peak") or 0, job["demand"]["memory"]
    return [
        f"Job ID: {job['id']}",
        f"Cluster: {host_name()}",
        *([f"Array Job ID: {job_label(job)}"] if job["array_id"] is not None else []),
        f"User/Group: {job['user']}/N/A",
        f"State: {_state(job)} (exit code {job['exit_code'] or 0})",
        f"Cores: {cpus(job)}",
        f"CPU Utilized: {span(used_s, whole=True)}",
        f"CPU Efficiency: {100 * used_s / (held_s or 1):.2f}% of {span(held_s, whole=True)} "
        "core-walltime",
        f"Job Wall-clock time: {span(elapsed_s(job), whole=True)}",
        f"Memory Utilized: {peak / (1 << 20):.2f} MB",
        f"Memory Efficiency: {100 * peak / (limit or 1):.2f}% of {limit / (1 << 20):.2f} MB",
    ]


#: Fields of `sacct` and `sstat` that are not measured here.
UNMEASURED = frozenset(named([(known.UNMEASURED, always(""))]))
#: Fields that the line of a job's batch step leaves empty, as it has none of its own.
_OF_JOB = (
    "user", "uid", "partition", "qos", "timelimit", "timelimitraw", "reqmem", "submitline",
    "comment",
)  # fmt: skip


def _cell(name: str, job: View, unit: str) -> object:
    if name not in NAMES or ("step" in job and name in _OF_JOB):
        return ""
    if unit and name in ("reqmem", "maxrss", "averss"):
        size = job["demand"]["memory"] if name == "reqmem" else used(job, "memory_peak")
        if size:
            return f"{size / (1 << 10 * ' KMGTP'.index(unit)):.2f}".removesuffix(".00") + unit
    return NAMES[name][2](job)


#: Columns of a table of names: head, width (below 0: to the left), and the name in small letters.
Columns = list[tuple[str, int, str]]


def columns_of(text: str, names: Mapping[str, tuple[str, int, object]]) -> Columns:
    """Return the columns that are named, perhaps by their beginnings: `all` for each, `Name%30`
    with a width. Raises UsageError."""
    columns: Columns = []
    if text.strip().lower() == "all":
        text = ",".join(names)
    for word in filter(None, text.split(",")):
        name, _, width = word.strip().partition("%")
        if width and not re.fullmatch("-?[0-9]{1,9}", width):
            raise click.UsageError(f"{word} is not a field and its width")
        found = [each for each in names if each.startswith(name.lower())]
        if not found or not name:
            there = ", ".join(dict.fromkeys(head for head, *_ in names.values()))
            raise click.UsageError(f"there is no field {name[:60]}; there are: {there}")
        key = name.lower() if name.lower() in found else found[0]
        head, usual, *_ = names[key]
        columns.append((head, int(width or usual), key))
    return columns


def rows_by_names(columns: Columns, jobs: Iterable[View], unit: str) -> list[list[str]]:
    """Return the cells of `sacct`; `unit`: that of memory."""
    return [[_plain(_cell(name, job, unit)) for *_, name in columns] for job in jobs]


def table(
    columns: Columns, rows: list[list[str]], *, heads: bool, delimiter: str | None, ends: bool
) -> list[str]:
    """Return the lines of a table: in columns, or with a delimiter, also at the end if it `ends` a
    line."""
    above = [[head for head, *_ in columns]] if heads else []
    if heads and delimiter is None:
        above.append(["-" * abs(width) for _, width, _ in columns])
    if delimiter is not None:
        return [delimiter.join(row) + (delimiter if ends else "") for row in above + rows]
    widths = [width for _, width, _ in columns]
    return [" ".join(map(_column, row, widths)) + " " for row in above + rows]


def _column(text: str, width: int) -> str:
    if len(text) > abs(width):
        text = f"{text[: abs(width) - 1]}+"
    return text.ljust(-width) if width < 0 else text.rjust(width)
