"""Options of Slurm's sbatch, from `#SBATCH` lines or a command line, as options of `drf submit`.

Slurm's own units hold: a plain number is mebibytes or minutes. What one machine cannot do is
refused if the job would be another without it, and else named in one warning.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from drfd.client.words import CLOCKS, is_clock, parse_begin
from drfd.common.errors import Refused
from drfd.common.indices import read_array
from drfd.common.units import parse_size
from drfd.payload.unpack import filled
from drfd_cli.slurm import SLURM_NAMES
from drfd_cli.slurm.grammar import SBATCH, SUBMITTING, Given, Options, refusal
from drfd_cli.submit_warnings import option_lines

_AFTER = re.compile(
    r"(after|afterok|afterany|afternotok|aftercorr):(\d+(?:_\d+)?(?::\d+(?:_\d+)?)*)",
    re.ASCII | re.IGNORECASE,
)
_DISTRIBUTION = re.compile(
    r"(\*|block|cyclic|arbitrary|plane(=\d+)?)(:(\*|block|cyclic|fcyclic)){0,2}(,(no)?pack)?",
    re.ASCII | re.IGNORECASE,
)
_MAIL = {"BEGIN": ("start",), "END": ("end",), "FAIL": ("fail",), "ALL": ("start", "end", "fail")}
_ADDRESS = re.compile(r"[A-Za-z0-9_.+-]+(@[A-Za-z0-9.-]+)?", re.ASCII)
_GRES = re.compile(
    r"([A-Za-z_][\w.-]*?)(?:[:=]([A-Za-z_][\w.-]*))?(?:[:=](\d+))?(?:\(.*\))?", re.ASCII
)
#: [D-]H[:M[:S]] with days, else M, M:S and H:M:S.
_TIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,12})(?::(\d{1,12}))?(?::(\d{1,12}))?", re.ASCII)
#: Options → the variables that hold their values.
_TOLD = {
    "account": "SLURM_JOB_ACCOUNT", "qos": "SLURM_JOB_QOS", "comment": "SLURM_JOB_COMMENT",
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE", "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU", "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
}  # fmt: skip
V = TypeVar("V")


class Unfit(Exception):
    """A value that an option does not take: the fault, and maybe a hint."""


#: The variables that a job has with `--export=NONE`.
_BARE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ")


@dataclass(slots=True)
class Translation:
    """What the options of a command of Slurm's ask for in the words of `drf submit`."""

    command: str = "sbatch"
    #: Options of `drf submit`.
    words: list[str] = field(default_factory=list)
    #: Variables of the job that say so, as Slurm's.
    variables: dict[str, str] = field(default_factory=dict)
    #: Names of the submitter's variables that the job has; None for all.
    kept: frozenset[str] | None = None
    #: The directory of the job; None for that of the submission.
    directory: Given | None = None
    #: What is counted → the option that asks for it, as it is written.
    counted: dict[str, Given] = field(default_factory=dict)
    #: The options that choose machines, by their long names. Of one machine alone they have no
    #: effect, and are in `unsupported`, too.
    placed: dict[str, Given] = field(default_factory=dict)
    #: Options without effect here, as they are written.
    unsupported: list[str] = field(default_factory=list)
    #: Whether the job waits for those of its name.
    is_singleton: bool = False
    #: Partitions, the first of which that is a pool here is meant.
    partitions: list[str] = field(default_factory=list)
    mail_on: list[str] = field(default_factory=list)
    #: Whether the job asks for all memory of the machine, and for all its cores.
    has_all_memory: bool = False
    has_all_cores: bool = False
    #: Whether the script is for bash as a login shell.
    is_for_login_shell: bool = False
    #: `--signal`, as it is written.
    signal: str = ""
    #: Jobs that must have started.
    begun: list[str] = field(default_factory=list)

    def refusal(self, given: Given, written: str, fault: str, option: str, does: str) -> Refused:
        """Return the refusal of an option, with another one that does something else."""
        what = "SCRIPT" if self.command == "sbatch" else "COMMAND"
        way = f"{self.command} {option} {what} {does}"
        return refusal(given.where, written, fault, way, name=self.command)


def read_lines(script: str, name: str) -> Options | None:
    """Return the options of the `#SBATCH` lines before the script's first command, or None if there
    is no such line. Raises Refused."""
    found: Options | None = None
    for number, text in option_lines(script, "#SBATCH"):
        where = f"{name}, line {number}"
        if text in ("hetjob", "packjob"):
            raise refusal(where, "hetjob", "asks for several machines; this is one")
        try:
            words = shlex.split(text, comments=True)
        except ValueError as error:
            raise Refused("bad-value", f"{where}: #SBATCH: {error}") from None
        options, rest = SBATCH.parse(words, where)
        if rest:
            raise refusal(where, rest[0], "is no option")
        found = (found or {}) | options
    return found


#: Options of `drf submit` → those of sbatch that become them.
_OF_SBATCH = {
    "-c": "--cpus-per-task", "-m": "--mem", "-t": "--time", "-n": "--job-name", "-o": "--output",
    "-e": "--error", "--warn": "--signal", "--priority": "--nice or --priority",
    "--after": "--dependency", "-p": "--partition",
}  # fmt: skip


def in_slurms_words(complaint: str) -> str:
    """Return a complaint about an option of `drf submit` as one about that of sbatch."""
    found = re.match(r"Invalid value for '([^']+)'(?: / '[^']+')*: ", complaint)
    if found is None:
        return complaint
    return f"{_OF_SBATCH.get(found[1], found[1])}: {complaint[found.end() :]}"


def read_count(text: str, limit: int = 999_999) -> int:
    if not re.fullmatch("[0-9]{1,6}", text) or not 1 <= int(text) <= limit:
        raise Unfit("is not a number from 1")
    return int(text)


def read_size(text: str) -> int:
    """Return the bytes of an amount of memory, in mebibytes without a unit."""
    try:
        return 0 if text == "0" else parse_size(f"{text}M" if text.isdecimal() else text)
    except Refused:
        raise Unfit("is not a size", "write 4000 (MiB), 4G or 512M") from None


def read_limit(text: str) -> int:
    """Return the seconds of a time limit, or 0 for no limit."""
    if text.lower() in ("unlimited", "infinite", "-1"):
        return 0
    found = _TIME.fullmatch(text)
    if found is None:
        raise Unfit("is not a time of Slurm", "write 90 (minutes) or 1-12:00:00")
    days, *parts = (int(part or 0) for part in found.groups())
    # The parts are of any size. Without days, the first of one or two is minutes.
    hours, minutes, seconds = parts if found[1] or found[4] else (0, *parts[:2])
    seconds += days * 86400 + hours * 3600 + minutes * 60
    # A limit has whole minutes in Slurm. Nothing, however it is written, is no limit.
    return -(-seconds // 60) * 60


def read_begin(text: str) -> str:
    """Return a begin time of Slurm's as drf writes it, or "now" for one that is over."""
    word = re.sub(r"\s+(?=[ap]m\b)", "", text.strip().lower())
    if re.fullmatch(r"now\s*[+-]\s*0+\s*[a-z]*", word):
        word = "now"
    elif re.fullmatch("uts[0-9]{7,12}", word):
        word = f"@{word[3:]}"
    elif re.fullmatch(r"\d{4}-.*z", word):
        word = f"@{_of_utc(word)}"
    elif not word.startswith("now"):
        # A day and a time of it stand in any order, with a blank, `T` or `-` between them.
        parts = re.sub(r"(?<=\d)t(?=\d)|-(?=\d\d?:)", " ", word).split()
        parts = [re.sub(r"^(\d\d)(\d\d)(\d\d)?$", r"\1/\2/\3", each) for each in parts]
        parts = [CLOCKS.get(each, each).removesuffix("/") for each in parts]
        word = " ".join(sorted(parts, key=is_clock))
    try:
        return word if parse_begin(word, may_be_over=True) else "now"
    except Refused:
        hint = "write 16:00, now+2hours or 2026-11-21T08:00"
        raise Unfit("is not a time of Slurm", hint) from None


def _of_utc(word: str) -> int:
    from datetime import datetime

    try:
        return int(datetime.fromisoformat(word.upper()).timestamp())
    except ValueError:
        raise Unfit("is not a time of Slurm", "write 2026-11-21T08:00:00Z") from None


def _array(text: str) -> list[str]:
    # No task at once is no bound.
    text = re.sub("%0+$", "", text)
    try:
        read_array(text)
    except Refused as error:
        raise Unfit(error.text.partition(" is wrong: ")[2] or error.text, error.hint) from None
    return ["--array", text]


def _limit(text: str) -> list[str]:
    seconds = read_limit(text)
    return ["-t", f"{seconds}s" if seconds else "unlimited"]


def _priority(text: str, sign: int = 1) -> list[str]:
    if not re.fullmatch("-?[0-9]{1,10}" if sign < 0 else "[0-9]{1,10}", text):
        raise Unfit("is not a number")
    return ["--priority", str(min(1_000_000, max(-1_000_000, sign * int(text))))]


def _warning(text: str) -> list[str]:
    match = re.fullmatch(r"(?:([BR]{1,2}):)?(\w+)(?:@(\d+))?", text)
    if match is None:
        raise Unfit("is not SIGNAL@SECONDS")
    whom = "first" if "B" in (match[1] or "") else "rest"
    return ["--warn", f"{whom}:{match[2]}@{max(1, int(match[3] or 60))}s"]


def _if_never(text: str) -> list[str]:
    if text.lower() not in ("yes", "no"):
        raise Unfit("is neither yes nor no")
    return ["--if-never", "cancel" if text.lower() == "yes" else "keep"]


def _distribution(text: str) -> list[str]:
    if not _DISTRIBUTION.fullmatch(text):
        # What has been meant is mostly memory, as in -mem=4G.
        raise Unfit("is no distribution of tasks", "of memory: --mem=4G")
    return []


def _nodes(text: str) -> list[str]:
    span = re.fullmatch(r"(\d+)(?:-\d+)?", text)
    if span is None:
        raise Unfit("is not a number of nodes")
    if int(span[1]) > 1:
        fault = "asks for several machines; drfd runs jobs on this one"
        raise Unfit(fault, "sbatch --nodes=1 SCRIPT runs it here alone")
    return []


#: Options → the words of `drf submit` that their values alone become.
_WORDS: dict[str, Callable[[str], list[str]]] = {
    "nodes": _nodes, "job-name": lambda text: ["-n", text],
    "comment": lambda text: ["--comment", text], "array": _array, "time": _limit,
    "distribution": _distribution, "begin": lambda text: ["--begin", read_begin(text)],
    "hold": lambda text: ["--hold"],
    "nice": lambda text: _priority(text or "100", -1), "signal": _warning,
    "kill-on-invalid-dep": _if_never, "wait": lambda text: ["-w"],
    "test-only": lambda text: ["--dry-run"],
    "open-mode": lambda text: ["--append"] if text.lower().startswith("a") else [],
}  # fmt: skip


class Asked:
    """The options that a command was given."""

    def __init__(self, options: Options, name: str) -> None:
        self._options, self._name = options, name

    def text(self, option: str) -> str:
        return self._options.get(option, Given("")).value

    def get(self, option: str, read: Callable[[str], V]) -> V | None:
        """Return what is read of the value of an option, or None without it. Raises Refused."""
        given = self._options.get(option)
        if given is None:
            return None
        try:
            return read(given.value)
        except Unfit as error:
            written = f"--{option}={given.value}"
            raise refusal(given.where, written, *error.args, name=self._name) from None

    def written(self, option: str) -> Given:
        given = self._options[option]
        return Given(f"--{option}={given.value}", given.where)


def translate(options: Options, host: str, name: str = "sbatch") -> Translation:
    """Return what the options of the command `name` ask for. Raises Refused for values that cannot
    be read, and for what needs several machines."""
    made, asked = Translation(name), Asked(options, name)
    grammar = SUBMITTING.get(name, SBATCH)
    _amounts(asked, made)
    for option, words in _WORDS.items():
        made.words += asked.get(option, words) or []
    if asked.text("priority") == "0":
        made.words.append("--hold")
    elif "nice" not in options:
        made.words += asked.get("priority", _priority) or []
    if "requeue" in options and "no-requeue" not in options:
        made.words += ["--retry", "1", "--retry-on", "lost"]
    _files(asked, made, host.replace("%", ""))
    if asked.text("dependency") not in ("", "0"):
        asked.get("dependency", lambda text: _dependency(text, made))
    _mail(asked, made)
    if "export" in options:
        variables, made.kept, unknown = read_export(asked.text("export"))
        made.variables |= variables
        made.unsupported += unknown
    made.directory = options.get("chdir")
    made.signal = asked.written("signal").value if "signal" in options else ""
    made.partitions = asked.text("partition").split(",") if "partition" in options else []
    for option, given in options.items():
        is_done = option == "exclusive" and not given.value
        is_done |= option == "propagate" and given.value.upper() == "NONE"
        if option in grammar.without_effect and not is_done:
            made.unsupported.append(f"--{option}={given.value}" if given.value else f"--{option}")
        if option in ("nodelist", "constraint"):
            made.placed[option] = given
    return made


def _amounts(asked: Asked, made: Translation) -> None:
    counted = ("cpus-per-task", "ntasks-per-node", "ntasks", "ntasks-per-gpu", "cpus-per-gpu")
    per_task, per_node, tasks, per_gpu, cpus_per_gpu, least = (
        asked.get(name, read_count) for name in (*counted, "mincpus")
    )
    tasks = tasks or per_node
    gpus = _gres(asked, made, tasks)
    if tasks is None and per_gpu is not None and gpus:
        tasks = per_gpu * gpus
    cores = (per_task or 1) * (tasks or 1)
    if per_task is None and gpus and cpus_per_gpu is not None:
        cores = cpus_per_gpu * gpus
        per_task = max(1, cores // (tasks or 1))
    cores = max(cores, least or 1)
    # `--exclusive=user` shares the machine.
    is_exclusive = made.has_all_cores = asked.get("exclusive", lambda text: not text) or False
    if (per_task, tasks, least) != (None, None, None) and not is_exclusive:
        made.words += ["-c", str(cores)]
    sizes = {name: asked.get(name, read_size) for name in ("mem", "mem-per-cpu", "mem-per-gpu")}
    memory = sizes["mem"]
    if memory == 0 or (is_exclusive and set(sizes.values()) == {None}):
        made.has_all_memory, memory = True, None
    for name, count in (("mem-per-cpu", cores), ("mem-per-gpu", gpus)):
        each = sizes[name]
        if each and memory is None and count and not made.has_all_memory:
            memory = each * count
    if memory is not None:
        made.words += ["-m", f"{max(memory, 1 << 20) >> 10}K"]
    told = {
        "SLURM_CPUS_PER_TASK": per_task, "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node, "SLURM_TASKS_PER_NODE": tasks or 1,
        "SLURM_MEM_PER_CPU": (sizes["mem-per-cpu"] or 0) >> 20 or None,
        **{variable: asked.text(option) or None for option, variable in _TOLD.items()},
    }  # fmt: skip
    made.variables |= {name: str(value) for name, value in told.items() if value is not None}


def _gres(asked: Asked, made: Translation, tasks: int | None) -> int:
    """Add what is counted; returns the number of GPUs."""
    counts: dict[str, int] = {}
    memory: dict[str, str] = {}

    def kind(option: str, written: str, kind: str | None) -> None:
        if kind:
            made.unsupported.append(f"the kind {kind} in --{option}={written}")

    def counted(option: str, text: str) -> None:
        last = ""
        for part in text.split(","):
            if not part or part.lower() == "none":
                continue
            if part.startswith("memory=") and last:
                # Not of Slurm: as in drf submit, the memory on each of the resource before it.
                memory[last] = f",{part}"
                continue
            match = _GRES.fullmatch(re.sub(r"@[\w.-]+", "", part.removeprefix("gres/")))
            if match is None:
                raise Unfit("is not NAME:NUMBER", "write gpu:2")
            last = match[1]
            counts[last] = counts.get(last, 0) + int(match[3] or 1)
            made.counted[last] = asked.written(option)
            kind(option, part, match[2])

    def gpus(option: str, text: str, times: int) -> None:
        named, _, number = text.rpartition(":")
        if not re.fullmatch("[0-9]{1,4}", number):
            raise Unfit("is not a number of GPUs")
        counts["gpu"] = max(counts.get("gpu", 0), int(number) * times)
        made.counted.setdefault("gpu", asked.written(option))
        kind(option, text, named)

    for option in ("gres", "licenses"):
        asked.get(option, partial(counted, option))
    for option, times in (("gpus", 1), ("gpus-per-node", 1), ("gpus-per-task", tasks or 1)):
        asked.get(option, partial(gpus, option, times=times))
    for name, count in counts.items():
        if count:
            made.words += ["--gres", f"{name}={count}{memory.get(name, '')}"]
        else:
            del made.counted[name]
    return counts.get("gpu", 0)


def _files(asked: Asked, made: Translation, host: str) -> None:
    def sign(found: re.Match[str]) -> str:
        width = found[1]
        ours = {"J": f"%{width}j", "N": host, "b": f"%{width}a"}
        return ours.get(found[2]) or filled(f"%{width}n", {"n": "0"})

    for option, ours in (("output", "-o"), ("error", "-e")):
        path = asked.get(option, lambda text: re.sub(r"%(\d*)([JNtsnb])", sign, text))
        made.words += [] if path is None else [ours, path]
    if asked.text("input") not in ("", "/dev/null", "none"):
        made.unsupported.append(f"--input={asked.text('input')}")


def _dependency(text: str, made: Translation) -> None:
    if "?" in text:
        raise Unfit("one of several jobs (?) cannot be waited for")
    for part in text.split(","):
        if part.lower() == "singleton":
            made.is_singleton = True
            continue
        # A number alone is what it was before there were kinds.
        match = _AFTER.fullmatch(f"afterany:{part}" if part[:1].isdecimal() else part)
        if match is None:
            kinds = "after, afterok, afterany, afternotok, singleton"
            raise Unfit("cannot be met here", kinds)
        kind, ids = match[1].lower(), match[2].split(":")
        if kind == "after":
            made.begun += ids
            continue
        if kind == "aftercorr":
            made.unsupported.append(f"{part}, in place of it the whole array is awaited")
            kind = "afterok"
        made.words += ["--after", f"{kind}:{match[2]}"]


def _mail(asked: Asked, made: Translation) -> None:
    for kind in filter(None, asked.text("mail-type").upper().split(",")):
        if kind in _MAIL:
            made.mail_on += _MAIL[kind]
        elif kind not in ("NONE", "REQUEUE", "INVALID_DEPEND"):
            made.unsupported.append(f"--mail-type={kind}")

    def address(text: str) -> str:
        if _ADDRESS.fullmatch(text) is None:
            raise Unfit("is not an address")
        return text

    if made.mail_on and (user := asked.get("mail-user", address)):
        made.variables["DRF_MAIL_TO"] = user


#: A word of `--export`: commas within quotes, which stay, are a part of it.
_EXPORTED = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*"|['"])+""")


def read_export(text: str) -> tuple[dict[str, str], frozenset[str] | None, list[str]]:
    """Return the variables that `--export` sets, the names of those that are kept (None for all),
    and in words those of them that are not set: what follows a comma in a value looks like one."""
    words = [] if text.upper() in ("NONE", "NIL") else _EXPORTED.findall(text)
    pairs = [word.partition("=") for word in words]
    names = {name for name, sign, _ in pairs if not sign}
    kept = None if any(name.upper() == "ALL" for name in names) else names.union(_BARE)
    unknown = [name for name in sorted(names) if name.upper() != "ALL" and name not in os.environ]
    return (
        {name: value for name, sign, value in pairs if sign},
        None if kept is None else frozenset(kept),
        [f"{name} in --export={text} (there is no such variable)" for name in unknown],
    )


#: Commands that often are functions of the shell, which a file defines that the script reads.
_DEFINED = ("conda", "mamba", "micromamba", "spack")
#: Commands of clusters that scripts call, at the beginning of a line or after `time` or `exec`.
_COMMAND = re.compile(
    r"(?:^[ \t]*|^[^#\n]*(?:\$\(|`)[ \t]*)(?:(?:time|exec|nohup)[ \t]+)*"
    rf"(module|ml|mpirun|mpiexec|{'|'.join((*SLURM_NAMES, *_DEFINED))})(?=[ \t]|$)",
    re.MULTILINE,
)
#: A line that may define such functions: it reads a file, or calls such a command by its path.
_DEFINES = re.compile(
    rf"^[ \t]*(?:source|\.)[ \t]+(?!activate\b)|bin/(?:{'|'.join(_DEFINED)})\b", re.MULTILINE
)


def called_commands(script: str, env: Mapping[str, str]) -> Iterable[str]:
    """Yield commands of clusters that the script calls and that are no functions of its shell."""
    called = dict.fromkeys(_COMMAND.findall(script))
    may_be_defined = _DEFINES.search(script) is not None
    for name in called:
        is_function = any(each.startswith(f"BASH_FUNC_{name}") for each in env)
        is_function |= name in _DEFINED and may_be_defined
        if not is_function:
            yield name
