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

from drfd.common.errors import Refused
from drfd.common.indices import read_array
from drfd_cli.foresight import option_lines
from drfd_cli.slurm import SLURM_NAMES
from drfd_cli.slurm.grammar import SBATCH, Given, Options, refusal

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE | re.ASCII)
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<m>\d+))?(?::(?P<s>\d+))?)|"
    r"(?:(?P<h3>\d+):(?P<m3>\d+):(?P<s3>\d+))|(?:(?P<m2>\d+)(?::(?P<s2>\d+))?)",
    re.ASCII,
)
_AFTER = re.compile(
    r"(after|afterok|afterany|afternotok|aftercorr):(\d+(?:_\d+)?(?::\d+(?:_\d+)?)*)",
    re.ASCII | re.IGNORECASE,
)
_HOW = {"afterok": "ok", "afterany": "any", "afternotok": "fail"}
_DISTRIBUTION = re.compile(
    r"(\*|block|cyclic|arbitrary|plane(=\d+)?)(:(\*|block|cyclic|fcyclic)){0,2}(,(no)?pack)?",
    re.ASCII | re.IGNORECASE,
)
_MAIL = {"BEGIN": ("start",), "END": ("end",), "FAIL": ("fail",), "ALL": ("start", "end", "fail")}
_ADDRESS = re.compile(r"[A-Za-z0-9_.+-]+(@[A-Za-z0-9.-]+)?", re.ASCII)
_GRES = re.compile(
    r"([A-Za-z_][\w.-]*?)(?:[:=]([A-Za-z_][\w.-]*))?(?:[:=](\d+))?(?:\(.*\))?", re.ASCII
)
_DELAY = re.compile(r"now\+(\d+)\s*(second|minute|hour|day|week)?s?", re.ASCII)
#: Options → the variables that hold their values.
_TOLD = {
    "account": "SLURM_JOB_ACCOUNT", "qos": "SLURM_JOB_QOS", "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE", "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU", "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
}  # fmt: skip
#: Options that ask for memory.
_MEMORY = frozenset(("mem", "mem-per-cpu", "mem-per-gpu"))
#: The variables that a job has with `--export=NONE`.
_BARE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ")


@dataclass(slots=True)
class Translation:
    """What Slurm's options ask for in the words of `drf submit`."""

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
    wrap: str | None = None
    #: Whether the job asks for all memory of the machine, and for all its cores.
    has_all_memory: bool = False
    has_all_cores: bool = False
    #: Whether the script is for bash as a login shell.
    is_for_login_shell: bool = False
    #: Jobs that must have started.
    begun: list[str] = field(default_factory=list)


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


def translate(options: Options, host: str, name: str = "sbatch") -> Translation:
    """Return what the options of the command `name` ask for. Raises Refused for values that cannot
    be read, and for what needs several machines."""
    made = Translation()
    try:
        _Translator(options, made, host).run()
    except Refused as error:
        text = re.sub("^sbatch: ", f"{name}: ", error.text)
        raise Refused(error.code, text, hint=error.hint) from None
    for name, given in options.items():
        is_done = name == "exclusive" and not given.value
        is_done |= name == "propagate" and given.value.upper() == "NONE"
        if name in SBATCH.without_effect and not is_done:
            made.unsupported.append(f"--{name}={given.value}" if given.value else f"--{name}")
        if name in ("nodelist", "constraint"):
            made.placed[name] = given
    return made


def as_size(given: Given, name: str) -> int:
    """Return the bytes of an amount of memory, in mebibytes without a unit. Raises Refused."""
    match = _SIZE.fullmatch(given.value)
    if match is None:
        raise refusal(
            given.where,
            f"--{name}={given.value}",
            "is not a size",
            "write 4000 (MiB), 4G or 512M",
        )
    power = {"K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper() or "M"]
    return int(float(match[1]) * (1 << power))


def as_seconds(given: Given) -> int | None:
    """Return the seconds of a time limit, or None for no limit. Raises Refused."""
    if given.value.lower() in ("0", "unlimited", "infinite", "-1"):
        return None
    match = _TIME.fullmatch(given.value)
    if match is None:
        way = "write 90 (minutes) or 1-12:00:00"
        raise refusal(given.where, f"--time={given.value}", "is not a time of Slurm", way)
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    seconds = part["days"] * 86400 + (part["h"] + part["h3"]) * 3600
    seconds += (part["m"] + part["m3"] + part["m2"]) * 60
    seconds += part["s"] + part["s3"] + part["s2"]
    # A limit has whole minutes in Slurm, and nothing, however it is written, is no limit.
    return -(-seconds // 60) * 60 or None


class _Translator:
    def __init__(self, options: Options, made: Translation, host: str) -> None:
        self._options, self._made, self._host = options, made, host

    def run(self) -> None:
        self._amounts()
        made = self._made
        if "job-name" in self._options:
            self._add("-n", self._options["job-name"].value)
        self._array()
        self._time()
        self._files()
        self._conditions()
        self._mail()
        self._environment()
        if "partition" in self._options:
            made.partitions = self._options["partition"].value.split(",")
        if "wrap" in self._options:
            made.wrap = self._options["wrap"].value

    def _add(self, *words: str) -> None:
        self._made.words += words

    def _fault(self, name: str, fault: str, hint: str | None = None) -> Refused:
        given = self._options[name]
        return refusal(given.where, f"--{name}={given.value}", fault, hint)

    def _count(self, name: str) -> int | None:
        given = self._options.get(name)
        if given is None:
            return None
        if not re.fullmatch("[0-9]{1,6}", given.value) or int(given.value) < 1:
            raise self._fault(name, "is not a number from 1")
        return int(given.value)

    def _size(self, name: str) -> int | None:
        """Return the bytes of an amount of memory, which is in mebibytes without a unit."""
        given = self._options.get(name)
        return None if given is None else as_size(given, name)

    def _array(self) -> None:
        given = self._options.get("array")
        if given is None:
            return
        try:
            read_array(given.value)
        except Refused as error:
            fault = error.text.partition(" is wrong: ")[2] or error.text
            raise self._fault("array", fault, error.hint) from None
        self._add("--array", given.value)

    def _is_exclusive(self) -> bool:
        """Return whether the job wants the machine for itself; `--exclusive=user` shares it."""
        given = self._options.get("exclusive")
        return given is not None and not given.value

    def _amounts(self) -> None:
        made, nodes = self._made, self._options.get("nodes")
        if nodes is not None:
            span = re.fullmatch(r"(\d+)(?:-\d+)?", nodes.value)
            if span is None:
                raise self._fault("nodes", "is not a number of nodes")
            if int(span[1]) > 1:
                fault = "asks for several machines; drfd runs jobs on this one"
                raise self._fault("nodes", fault, "sbatch --nodes=1 SCRIPT runs it here alone")
        per_task, tasks = self._count("cpus-per-task"), self._count("ntasks")
        per_node = self._count("ntasks-per-node")
        tasks = per_node if tasks is None else tasks
        gpus, per_gpu = self._gres(tasks), self._count("ntasks-per-gpu")
        if tasks is None and per_gpu is not None and gpus:
            tasks = per_gpu * gpus
        cores = (per_task or 1) * (tasks or 1)
        if per_task is None and gpus and "cpus-per-gpu" in self._options:
            cores = (self._count("cpus-per-gpu") or 1) * gpus
            per_task = max(1, cores // (tasks or 1))
        least = self._count("mincpus")
        cores = max(cores, least or 1)
        if (per_task, tasks, least) != (None, None, None) and not self._is_exclusive():
            self._add("-c", str(cores))
        memory = self._size("mem")
        is_exclusive = made.has_all_cores = self._is_exclusive()
        if memory == 0 or (is_exclusive and not _MEMORY.intersection(self._options)):
            made.has_all_memory, memory = True, None
        for name, count in (("mem-per-cpu", cores), ("mem-per-gpu", gpus)):
            each = self._size(name)
            if each and memory is None and count and not made.has_all_memory:
                memory = each * count
        if memory is not None:
            self._add("-m", f"{max(memory, 1 << 20) >> 10}K")
        variables = made.variables
        if per_task is not None:
            variables["SLURM_CPUS_PER_TASK"] = str(per_task)
        if tasks is not None:
            variables["SLURM_NTASKS"] = variables["SLURM_NPROCS"] = str(tasks)
        if per_node is not None:
            variables["SLURM_NTASKS_PER_NODE"] = str(per_node)
        variables["SLURM_TASKS_PER_NODE"] = str(tasks or 1)
        for name, variable in _TOLD.items():
            if name in self._options:
                variables[variable] = self._options[name].value
        per_cpu = self._size("mem-per-cpu")
        if per_cpu:
            variables["SLURM_MEM_PER_CPU"] = str(per_cpu >> 20)

    def _gres(self, tasks: int | None) -> int:
        """Add what is counted; returns the number of GPUs."""
        counts: dict[str, int] = {}
        memory: dict[str, str] = {}
        last = ""
        for name in ("gres", "licenses"):
            given = self._options.get(name)
            if given is None:
                continue
            for part in given.value.split(","):
                if not part or part.lower() == "none":
                    continue
                if part.startswith("memory=") and last:
                    # Not of Slurm: as in drf submit, the memory on each of the resource before it.
                    memory[last] = f",{part}"
                    continue
                match = _GRES.fullmatch(re.sub(r"@[\w.-]+", "", part.removeprefix("gres/")))
                if match is None:
                    raise self._fault(name, "is not NAME:NUMBER", "write gpu:2")
                last = match[1]
                counts[last] = counts.get(last, 0) + int(match[3] or 1)
                self._made.counted[match[1]] = Given(f"--{name}={given.value}", given.where)
                self._kind(name, part, match[2])
        for name, times in (("gpus", 1), ("gpus-per-node", 1), ("gpus-per-task", tasks or 1)):
            given = self._options.get(name)
            if given is None:
                continue
            kind, _, number = given.value.rpartition(":")
            if not re.fullmatch("[0-9]{1,4}", number):
                raise self._fault(name, "is not a number of GPUs")
            counts["gpu"] = max(counts.get("gpu", 0), int(number) * times)
            self._made.counted.setdefault("gpu", Given(f"--{name}={given.value}", given.where))
            self._kind(name, given.value, kind)
        for name, count in counts.items():
            if count:
                self._add("--gres", f"{name}={count}{memory.get(name, '')}")
            else:
                del self._made.counted[name]
        return counts.get("gpu", 0)

    def _kind(self, name: str, written: str, kind: str | None) -> None:
        if kind:
            self._made.unsupported.append(f"the kind {kind} in --{name}={written}")

    def _time(self) -> None:
        given = self._options.get("time")
        if given is None:
            return
        seconds = as_seconds(given)
        self._add("-t", "unlimited" if seconds is None else f"{seconds}s")

    def _files(self) -> None:
        for name, option in (("output", "-o"), ("error", "-e")):
            given = self._options.get(name)
            if given is None:
                continue
            path = re.sub(r"%(\d*)([JNtsnb])", self._sign, given.value)
            padded = re.search(r"%\d+[jAa]", path)
            if padded is not None:
                self._made.unsupported.append(f"the zeros of {padded[0]} in --{name}")
                path = re.sub(r"%\d+([jAa])", r"%\1", path)
            self._add(option, path)
        mode = self._options.get("open-mode")
        if mode is not None and mode.value.lower().startswith("a"):
            self._add("--append")
        source = self._options.get("input")
        if source is not None and source.value not in ("/dev/null", "none"):
            self._made.unsupported.append(f"--input={source.value}")
        directory = self._options.get("chdir")
        if directory is not None:
            self._made.directory = directory

    def _sign(self, found: re.Match[str]) -> str:
        host = self._host.replace("%", "")
        return {"J": "%j", "N": host, "b": "%a"}.get(found[2], "0")

    def _conditions(self) -> None:
        options = self._options
        if not _DISTRIBUTION.fullmatch(options.get("distribution", Given("block")).value):
            # What has been meant is mostly memory, as in -mem=4G.
            raise self._fault("distribution", "is no distribution of tasks", "of memory: --mem=4G")
        if options.get("dependency", Given("")).value not in ("", "0"):
            self._dependency()
        if "begin" in options:
            self._add("--begin", _begin(options["begin"].value))
        if "hold" in options or options.get("priority", Given("")).value == "0":
            self._add("--hold")
        if "nice" in options:
            nice = options["nice"].value or "100"
            if not re.fullmatch("-?[0-9]{1,10}", nice):
                raise self._fault("nice", "is not a number")
            self._add("--priority", str(min(1_000_000, max(-1_000_000, -int(nice)))))
        elif options.get("priority", Given("0")).value != "0":
            value = options["priority"].value
            if not re.fullmatch("[0-9]{1,10}", value):
                raise self._fault("priority", "is not a number")
            self._add("--priority", str(min(1_000_000, int(value))))
        if "requeue" in options and "no-requeue" not in options:
            self._add("--retry", "1", "--retry-on", "lost")
        if "signal" in options:
            match = re.fullmatch(r"(?:([BR]{1,2}):)?(\w+)(?:@(\d+))?", options["signal"].value)
            if match is None:
                raise self._fault("signal", "is not SIGNAL@SECONDS")
            whom = "first" if "B" in (match[1] or "") else "rest"
            self._add("--warn", f"{whom}:{match[2]}@{match[3] or 60}s")
        if "kill-on-invalid-dep" in options:
            word = options["kill-on-invalid-dep"].value.lower()
            if word not in ("yes", "no"):
                raise self._fault("kill-on-invalid-dep", "is neither yes nor no")
            self._add("--if-never", "cancel" if word == "yes" else "keep")
        if "wait" in options:
            self._add("-w")
        if "test-only" in options:
            self._add("--dry-run")

    def _dependency(self) -> None:
        value = self._options["dependency"].value
        if "?" in value:
            raise self._fault("dependency", "one of several jobs (?) cannot be waited for")
        for part in value.split(","):
            if part.lower() == "singleton":
                self._made.is_singleton = True
                continue
            # A number alone is what it was before there were kinds.
            match = _AFTER.fullmatch(f"afterany:{part}" if part[:1].isdecimal() else part)
            if match is None:
                raise self._fault(
                    "dependency",
                    "cannot be met here",
                    "after, afterok, afterany, afternotok, singleton",
                )
            kind = match[1].lower()
            if kind == "after":
                self._made.begun += match[2].split(":")
                continue
            if kind == "aftercorr":
                self._made.unsupported.append(f"{part}, in place of it the whole array is awaited")
            how = _HOW.get(kind, "ok")
            self._add("--after", ",".join(f"{each}:{how}" for each in match[2].split(":")))

    def _mail(self) -> None:
        kinds = self._options.get("mail-type")
        for kind in kinds.value.upper().split(",") if kinds is not None else ():
            if kind in _MAIL:
                self._made.mail_on += _MAIL[kind]
            elif kind not in ("NONE", "REQUEUE", "INVALID_DEPEND"):
                self._made.unsupported.append(f"--mail-type={kind}")
        user = self._options.get("mail-user")
        if user is not None and self._made.mail_on:
            if _ADDRESS.fullmatch(user.value) is None:
                raise self._fault("mail-user", "is not an address")
            self._made.variables["DRF_MAIL_TO"] = user.value

    def _environment(self) -> None:
        given = self._options.get("export")
        if given is not None:
            variables, self._made.kept, unknown = read_export(given.value)
            self._made.variables |= variables
            self._made.unsupported += unknown


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


def _begin(text: str) -> str:
    """Return a time of Slurm as `drf submit --begin` has it."""
    word = text.strip()
    match = _DELAY.fullmatch(word.lower())
    if match is not None:
        return f"now+{match[1]}{(match[2] or 's')[0]}"
    clock = {"midnight": "00:00", "noon": "12:00", "elevenses": "11:00", "fika": "15:00"}
    return {**clock, "teatime": "16:00"}.get(word.lower(), word)


def environment(
    env: Mapping[str, str], made: Translation, *, directory: str, host: str
) -> dict[str, str]:
    """Return the variables of the job: those of its submitter that it keeps, and Slurm's that are
    known before it has a number. The daemon adds the others to a job with DRF_SLURM."""
    kept = {
        name: value
        for name, value in env.items()
        if not name.startswith("SLURM_") and (made.kept is None or name in made.kept)
    }
    one = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1")
    first = dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), "0")
    here = dict.fromkeys(
        (
            *("SLURM_SUBMIT_HOST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_CLUSTER_NAME"),
            "SLURMD_NODENAME",
        ),
        host,
    )
    own = {"DRF_SLURM": "1", "SLURM_SUBMIT_DIR": directory}
    return {**kept, **one, **first, **here, **own, **made.variables}


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


def missing_commands(
    script: str, env: Mapping[str, str], find: Callable[[str], object]
) -> Iterable[str]:
    """Return commands of clusters that the script calls and the job will not find. `find` looks for
    a program."""
    called = dict.fromkeys(_COMMAND.findall(script))
    may_be_defined = _DEFINES.search(script) is not None
    for name in called:
        is_function = any(each.startswith(f"BASH_FUNC_{name}") for each in env)
        is_function |= name in _DEFINED and may_be_defined
        if not is_function and find(name) is None:
            yield name


#: A line without a condition before it that reads a file whose place is plain.
_READS = re.compile(
    r"^(?:source|\.)[ \t]+([\"']?)(~?/[\w./+@%:,-]+)\1[ \t]*(?:$|[;&#])", re.MULTILINE
)


def missing_files(script: str, home: str | None, exists: Callable[[str], bool]) -> Iterable[str]:
    """Return files of which the script reads commands (`source FILE`) and which are not there."""
    for found in dict.fromkeys(match[2] for match in _READS.finditer(script)):
        if found.startswith("~") and (home is None or not found.startswith("~/")):
            continue
        if not exists(f"{home}{found[1:]}" if found.startswith("~") else found):
            yield found


_USE_OF_TMPDIR = re.compile(r"\$(?:SLURM_TMPDIR\b|\{SLURM_TMPDIR[}/%#])", re.ASCII)


def uses_tmpdir(script: str) -> bool:
    """Return whether the script needs the directory of its job that some clusters make."""
    return _USE_OF_TMPDIR.search(script) is not None and "SLURM_TMPDIR=" not in script
