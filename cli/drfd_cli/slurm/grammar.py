"""How Slurm's commands read their words, and the help of each.

Options are shortened as far as they are clear. The lists have them anywhere, `sbatch`, `srun` and
`salloc` before the script or command.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from textwrap import fill
from typing import NamedTuple

import click

from drfd.common.errors import Refused
from drfd_cli import output

#: The version of Slurm whose words and answers these are, for programs that ask before they begin.
SLURM_VERSION = "24.05.8"
#: Other names of options and, in variables, of those that have other names there.
_ALIASES = {
    "tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cluster": "clusters",
    "mem_bind": "mem-bind", "cpu_bind": "cpu-bind", "fields": "format", "help-fields": "helpformat",
}  # fmt: skip
_VARIABLES = {
    "timelimit": "time", "mem-per-node": "mem", "array-inx": "array", "debug": "verbose",
    "req-switch": "switches", "wait4switch": "switches",
    "users": "user", "names": "name", "state": "states", "format2": "Format",
}  # fmt: skip


class Given(NamedTuple):
    """The value of an option, and where it stands: `train.sh, line 3`, or an empty text."""

    value: str
    where: str = ""


#: Long names → the value that counts, which is the last.
Options = dict[str, Given]


def refusal(
    where: str, what: str, fault: str, hint: str | None = None, *, name: str = "sbatch"
) -> Refused:
    """Return the refusal of an option that stands there, `what` as it is written, by a command."""
    is_line = bool(where) and not where.startswith("$")
    place = f"{where}: #SBATCH " if is_line else f"{name}: {where}{': ' if where else ''}"
    way = hint or ("drf submit --ignore-sbatch leaves out these lines" if is_line else "")
    return Refused("bad-value", f"{place}{what[:60]}: {fault}", hint=way)


class Grammar:
    """The options of a command.

    In the text, `o/output=` is an option with a value, `nice?` one that may have a value, and
    `H/hold` one that has none. Before those without effect here stands `*`, or `~` if they ask for
    nothing that a single machine with private limits does not do anyway.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        #: Long names → how each takes a value.
        self.kinds: dict[str, str] = {}
        self.shorts: dict[str, str] = {}
        self.without_effect: set[str] = set()
        self.said_nothing: set[str] = set()
        for word in text.split():
            letters, _, rest = word.lstrip("*~").rpartition("/")
            option = rest.rstrip("=?")
            self.kinds[option] = rest[len(option) :]
            self.shorts |= dict.fromkeys(letters, option)
            if word[0] in "*~":
                (self.without_effect if word[0] == "*" else self.said_nothing).add(option)

    def _full_name(self, option: str, where: str) -> str:
        option = _ALIASES.get(option, option)
        if option in self.kinds:
            return option
        names = {each: each for each in self.kinds} | _ALIASES
        near = {full for each, full in names.items() if option and each.startswith(option)}
        near.intersection_update(self.kinds)
        if len(near) != 1:
            raise self._unknown(f"--{option}", where)
        return near.pop()

    def _unknown(self, word: str, where: str) -> Refused:
        return refusal(where, word, f"is no option of {self.name}", name=self.name)

    def scan(
        self, words: list[str], where: str = "", *, anywhere: bool = False
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the options and their values, and the other words: all from the first one on, or
        those between options that may stand `anywhere`. Raises Refused."""
        found: list[tuple[str, str]] = []
        rest: list[str] = []
        left = iter(words)

        def following(option: str) -> str:
            for word in left:
                return word
            raise refusal(where, f"--{option}", "needs a value", name=self.name)

        for word in left:
            if word == "--":
                rest += left
            elif word == "-" or not word.startswith("-"):
                rest += [word, *(() if anywhere else left)]
            elif word.startswith("--"):
                option, sign, value = word[2:].partition("=")
                option = self._full_name(option, where)
                is_missing = self.kinds[option] == "=" and not sign
                found.append((option, following(option) if is_missing else value))
            else:
                letters = word[1:]
                while letters:
                    letter, value = letters[0], letters[1:]
                    if letter not in self.shorts:
                        raise self._unknown(f"-{letter}", where)
                    option = self.shorts[letter]
                    letters = "" if self.kinds[option] else value
                    if self.kinds[option] == "=":
                        value = value.removeprefix("=") or following(option)
                    found.append((option, value if self.kinds[option] else ""))
        return found, rest

    def parse(self, words: list[str], where: str = "") -> tuple[Options, list[str]]:
        """Read options up to the first other word. Returns them and the rest. Raises Refused."""
        found, rest = self.scan(words, where)
        return {option: Given(value, where) for option, value in found}, rest

    def from_environment(self) -> tuple[Options, list[str]]:
        """Return the options that variables such as SBATCH_PARTITION stand for, and the variables
        that stand for none here."""
        found: Options = {}
        left = []
        for variable, value in sorted(os.environ.items()):
            start, _, name = variable.partition("_")
            if start != self.name.upper() or not name:
                continue
            name = name.lower().replace("_", "-")
            if name not in self.kinds:
                name = _ALIASES.get(name, _VARIABLES.get(name, name))
            if name in self.kinds and name != "wrap":
                found[name] = Given(value if self.kinds[name] else "", f"${variable}")
            else:
                left.append(f"${variable}")
        return found, left

    def read(self, words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Read options anywhere, and variables in place of those that the words lack; warn of
        others. Returns all values by long name, and the other words. Raises Refused."""
        pairs, rest = self.scan(words, anywhere=True)
        found: dict[str, list[str]] = {}
        for option, value in pairs:
            found.setdefault(option, []).append(value)
        told, left = self.from_environment()
        left += [f"--{option}" for option in found if option in self.without_effect]
        if left:
            output.say(f"without effect here: {', '.join(map(output.clean, left))}")
        if not {"format", "Format"}.isdisjoint(found):
            told = {name: each for name, each in told.items() if name.lower() != "format"}
        return {option: [each.value] for option, each in told.items()} | found, rest

    def read_options(self, words: list[str]) -> dict[str, list[str]]:
        """Read words that all are options and their values. Raises UsageError and Refused."""
        found, rest = self.read(words)
        if rest:
            raise click.UsageError(f"{rest[0]!r} is no option")
        return found


_SUBMISSION_WORDS = """
    a/array= b/begin= D/chdir= comment= c/cpus-per-task= cpus-per-gpu= d/dependency= e/error=
    export= G/gpus= gpus-per-node= gpus-per-task= gres= i/input= J/job-name= kill-on-invalid-dep=
    L/licenses= mail-type= mail-user= mem= mem-per-cpu= mem-per-gpu= mincpus= N/nodes= n/ntasks=
    ntasks-per-gpu= ntasks-per-node= open-mode= o/output= p/partition= priority= signal= t/time=
    wrap= nice? H/hold requeue W/wait Q/quiet parsable test-only

    ~get-user-env? ~no-requeue ~oversubscribe ~O/overcommit ~s/share ~v/verbose
    ~k/no-kill? ~ignore-pbs ~use-min-nodes ~wckey=

    *A/account= *acctg-freq= *batch= *bb= *bbf= *checkpoint= *checkpoint-dir= *M/clusters=
    *cluster-constraint= *consolidate-segments *C/constraint= *container= *container-id= *context=
    *contiguous *S/core-spec= *cores-per-socket= *cpu-freq= *deadline= *delay-boot=
    *m/distribution= *x/exclude= *exclusive? *export-file= *extra= *B/extra-node-info= *gid=
    *gpu-bind= *gpu-freq= *gpus-per-socket= *gres-flags= *hint= *mcs-label= *mem-bind= *network=
    *F/nodefile= *w/nodelist= *ntasks-per-core= *ntasks-per-socket= *oom-kill-step= *power= *prefer=
    *profile= *propagate? *q/qos= *reboot *reservation= *segment= *sockets-per-node= *spread-job
    *switches= *thread-spec= *threads-per-core= *time-min= *tmp= *tres-bind= *tres-per-task= *uid=
    *wait-all-nodes= *x11?
    *mincores= *minsockets= *minthreads= *ntasks-per-tres= *restart-dir= *resv-ports? *stepmgr
    *tres-per-job=
"""
_OF_SRUN = """
    pty l/label u/unbuffered overlap exact multi-prog mpi= jobid=
    ~E/preserve-env ~quit-on-interrupt ~interactive ~external-launcher ~debugger-test
    *accel-bind= *bcast? *bcast-exclude? *compress? *cpu-bind= *X/disable-status *epilog=
    *het-group= *I/immediate? *K/kill-on-bad-exit? *msg-timeout= *Z/no-allocate *pack-group=
    *prolog= *r/relative= *send-libs? *slurmd-debug= *task-epilog= *task-prolog= *T/threads=
    *treewidth= *W/wait= *whole
"""
_OF_SALLOC = """
    ~bell ~no-bell *no-shell *I/immediate? *K/kill-command? *W/wait=
"""
SBATCH = Grammar("sbatch", _SUBMISSION_WORDS)
SRUN = Grammar("srun", _SUBMISSION_WORDS + _OF_SRUN)
SALLOC = Grammar("salloc", _SUBMISSION_WORDS + _OF_SRUN + _OF_SALLOC)
#: Commands that run jobs → what they read.
SUBMITTING = {each.name: each for each in (SBATCH, SRUN, SALLOC)}
SQUEUE = Grammar(
    "squeue",
    "u/user= j/jobs= job= o/format= O/Format= t/states= p/partition= n/name= S/sort= A/account="
    " w/nodelist= q/qos= M/clusters= i/iterate= R/reservation= L/licenses= h/noheader l/long"
    " r/array a/all me start v/verbose s/steps? json? yaml? noconvert array-unique hide federation"
    " local sibling P/priority notme only-job-state expand-patterns helpformat"
    " helpFormat helpstate",
)
SACCT = Grammar(
    "sacct",
    "j/jobs= u/user= uid= S/starttime= E/endtime= s/state= o/format= name= delimiter= r/partition="
    " A/accounts= M/clusters= N/nodelist= q/qos= units= a/allusers n/noheader p/parsable"
    " P/parsable2 X/allocations b/brief l/long L/allclusters D/duplicates T/truncate e/helpformat"
    " json? yaml? noconvert W/wckeys= x/associations= F/flags= R/reason= c/completion v/verbose"
    " array federation local use-local-uid expand-patterns C/constraints= *f/file= g/gid= group="
    " i/nnodes= I/ncpus= *k/timelimit-min= *K/timelimit-max= whole-hetjob? extra= *B/batch-script"
    " *env-vars",
)
SINFO = Grammar(
    "sinfo",
    "o/format= O/Format= p/partition= n/nodes= t/states= M/clusters= S/sort= i/iterate= h/noheader"
    " N/Node s/summarize l/long a/all e/exact v/verbose R/list-reasons T/reservation d/dead"
    " r/responding noconvert json? yaml? hide federation local F/future"
    " helpformat helpFormat helpstate",
)
SCANCEL = Grammar(
    "scancel",
    "u/user= n/name= jobname= t/state= p/partition= s/signal= A/account= w/nodelist= q/qos="
    " R/reservation= b/batch f/full Q/quiet v/verbose i/interactive me H/hurry c/ctld M/clusters="
    " wckey= cron sibling=",
)
SCONTROL = Grammar(
    "scontrol",
    "o/oneliner d/details a/all Q/quiet v/verbose hide local M/clusters= u/uid= json? yaml?"
    " F/future federation sibling",
)
SACCTMGR = Grammar(
    "sacctmgr",
    "i/immediate n/noheader p/parsable P/parsable2 Q/quiet r/readonly s/associations v/verbose"
    " o/oneliner json? yaml?",
)
SDIAG = Grammar(
    "sdiag", "a/all r/reset i/sort-by-id t/sort-by-time T/sort-by-time2 M/cluster= json? yaml?"
)
SPRIO = Grammar(
    "sprio",
    "o/format= j/jobs= u/user= p/partition= M/clusters= S/sort= h/noheader l/long n/norm v/verbose"
    " w/weights federation local sibling",
)
SSHARE = Grammar(
    "sshare",
    "A/accounts= u/users= o/format= M/clusters= a/all l/long m/partition nh/noheader U/Users"
    " p/parsable P/parsable2 v/verbose json? yaml?",
)
SSTAT = Grammar(
    "sstat",
    "j/jobs= o/format= a/allsteps e/helpformat i/pidformat n/noheader p/parsable P/parsable2"
    " noconvert v/verbose",
)
SEFF = Grammar("seff", "")


def parts(values: list[str]) -> list[str]:
    return [part for value in values for part in value.split(",") if part]


def slurm_command(
    name: str, text: str, *, has_short_help: bool = True
) -> Callable[[Callable[[list[str]], int | None]], click.Command]:
    """Return a decorator that makes a command of a function of the words after its name.

    `has_short_help`: whether -h asks for help, and for nothing else.
    """

    def make(function: Callable[[list[str]], int | None]) -> click.Command:
        @click.command(
            name,
            help=text,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True},
        )
        @click.argument("words", nargs=-1, type=click.UNPROCESSED)
        def command(words: tuple[str, ...]) -> int | None:
            helps = ("--help", "--usage", *(("-h",) if has_short_help else ()))
            if not words or words[0] not in (*helps, "--version", "-V"):
                return function(list(words))
            click.echo(_help_of(name, text) if words[0] in helps else version())
            return None

        return command

    return make


def version() -> str:
    from drfd import __version__

    return f"slurm {SLURM_VERSION} (drfd {__version__})"


# -- help --------------------------------------------------------------------------------------

_WIDTH = 100
#: Command → its usages.
_USAGE = {
    "sbatch": "[OPTIONS] SCRIPT [ARGS...]|[OPTIONS] --wrap=LINE",
    "srun": "[OPTIONS] COMMAND [ARGS...]",
    "salloc": "[OPTIONS] [COMMAND [ARGS...]]",
    "seff": "IDS",
    "squeue": "[OPTIONS]",
    "scancel": "[OPTIONS] [IDS]",
    "sinfo": "[OPTIONS]",
    "sacct": "[OPTIONS]",
    "scontrol": "[OPTIONS] COMMAND [ARGS...]",
    "sacctmgr": "[OPTIONS] show ENTITY [KEY=VALUE...]",
    **dict.fromkeys(("sdiag", "sprio", "sshare", "sstat"), "[OPTIONS]"),
}
_SUBMISSION = {
    "-c, --cpus-per-task=N": "cores of a task",
    "-n, --ntasks=N": "tasks; also --ntasks-per-node, --ntasks-per-gpu, --mincpus",
    "--mem=SIZE": "memory, in MiB without a unit; 0 is all; also --mem-per-cpu, --mem-per-gpu",
    "-t, --time=TIME": "the limit: minutes, H:MM:SS, D-HH[:MM[:SS]]; 0 for none",
    "--gres=NAME[:N]": "what is counted here; also -G --gpus, --gpus-per-node, --gpus-per-task,"
    " --cpus-per-gpu, -L --licenses",
    "-N, --nodes=1": "this machine is one",
    "--exclusive": "the whole machine",
    "-J, --job-name=NAME": "the name; --comment=TEXT: a line about it",
    "-p, --partition=NAMES": "the first of them that is a pool here",
    "-d, --dependency=LIST": "afterok, afterany, afternotok, aftercorr, after:ID; singleton; "
    "--kill-on-invalid-dep=yes cancels what can never start",
    "-b, --begin=TIME": "not before; -H, --hold: not before scontrol release",
    "--nice[=N]": "order among your own jobs; also --priority",
    "--signal=[B:]SIGNAL[@S]": "a signal so many seconds before the limit to what the script runs;"
    " B: to its shell alone",
    "--requeue": "one more attempt if the job is lost",
    "-D, --chdir=DIR": "the directory",
}  # fmt: skip
_SHOWING = {
    "-h, --noheader": "no heading",
    "-o, --format=FORMAT": "fields as below, %all: all; -O, --Format=NAMES: by their names",
    "--json, --yaml": "all fields of Slurm's data_parser v0.0.41",
}
_TABLE = {
    "-P, --parsable2": "with | between the fields; -p: also at the end",
    "-n, --noheader": "no heading",
}
#: Command → what its options do.
_OPTIONS: dict[str, dict[str, str]] = {
    "sbatch": {
        **_SUBMISSION,
        "-a, --array=INDICES": "a task for each: 0-99, 1,3,7-20:2, 0-999%50",
        "-o, --output=FILE": "%j id, %A_%a task, %x name, %u user, %N machine; also -e --error",
        "--open-mode=append": "keep what is in these files",
        "-i, --input=/dev/null": "standard input, which is empty anyway",
        "--mail-type=KINDS": "BEGIN, END, FAIL, ALL, to --mail-user",
        "--export=NAMES": "ALL, NONE, NAME, NAME=VALUE",
        "--wrap=LINE": "run a line of the shell",
        "-W, --wait": "wait for its end, and exit as it does",
        "--parsable": "print the id alone; -Q, --quiet: nothing",
        "--test-only": "only say when it would start",
    },
    "srun": {
        **_SUBMISSION,
        "-l, --label": "the number of its task before each line",
        "--jobid=ID": "inside this running job",
        "--overlap": "within a job: without waiting for what its other steps hold",
    },
    "salloc": _SUBMISSION,
    "seff": {},
    "squeue": {
        "-u, --user=NAMES": "of these users; --me: your own",
        "-j, --jobs=IDS": "these jobs",
        "-n, --name=NAMES": "jobs of these names",
        "-t, --states=STATES": "PD, R, S, ... or all",
        "-p, --partition=NAMES": "jobs of these pools; main: all",
        "-A, --account=NAMES": "jobs of these pools; -w, --nodelist: on this machine",
        "-r, --array": "a line for each task",
        "-l, --long": "more columns; --start: when they may start",
        "-S, --sort=FIELDS": "the order, such as -p,i; -i, --iterate=SECONDS: again and again",
        "-s, --steps": "the steps of running jobs",
        **_SHOWING,
    },
    "scancel": {
        "-u, --user=NAME": "jobs of this user; --me: your own",
        "-n, --name=NAME": "jobs of this name, or like 'train-*'",
        "-t, --state=STATES": "PD, R, S, ...",
        "-s, --signal=SIGNAL": "send it in place of cancelling, past the shell of a batch script;"
        " -b: to that shell alone, -f: to all",
        "-i, --interactive": "ask for each",
        "-p, --partition=NAMES": "jobs of these pools, main for those in none; also -A, -q, -w, -R",
        "-Q, --quiet": "say nothing of jobs that have ended",
    },
    "sinfo": {
        "-N, --Node": "a line for each node; -l: with cores and memory",
        "-s, --summarize": "in short; -R, --list-reasons: why it drains",
        "-p, --partition=NAMES": "these partitions; -t, --states: if it is idle, mixed, drain, ...",
        **_SHOWING,
    },
    "sacct": {
        "-j, --jobs=IDS": "these jobs",
        "-u, --user=NAMES": "of these users; -a: of all",
        "-S, --starttime=TIME": "not before (2026-01-31, now-3days); -E, --endtime: not after",
        "-s, --state=STATES": "CD, F, TO, OOM, ...",
        "--name=NAMES": "jobs of these names",
        "-X, --allocations": "no line for the script as a step of its own",
        "-b, --brief": "fewer columns; -l, --long: more",
        "-P, --parsable2": "with | between the fields; -p: also at the end; --delimiter=SIGN",
        "-n, --noheader": "no heading; --units=G: memory in this unit",
        "-o, --format=NAMES": "fields as below; --json, --yaml: as Slurm's data_parser v0.0.41",
    },
    "sacctmgr": {
        "show ENTITY [KEY=VALUE ...]": "association, account, user, qos, cluster or tres, which"
        " may be shortened; the others of Slurm are empty",
        "user=NAMES": "only these; also account, cluster, name; withassoc",
        "format=NAMES": "fields, with widths such as User%20",
        **_TABLE,
    },
    "sdiag": {},
    "sprio": {
        "-j, --jobs=IDS": "these jobs; -u, --user=NAMES: of these users; -p, --partition=NAMES",
        "-l, --long": "more columns; -h, --noheader: no heading",
        "-o, --format=FORMAT": "%i, %u, %r, %Y and other fields of Slurm's",
    },
    "sshare": {
        "-a, --all": "all users; -u, --users=NAMES: these; -U, --Users: no accounts",
        "-A, --accounts=NAMES": "these accounts; -l, --long: more columns",
        "-o, --format=NAMES": "fields, with widths such as User%20",
        **_TABLE,
    },
    "sstat": {
        "-j, --jobs=IDS": "these jobs, or steps such as 42.batch",
        "-o, --format=NAMES": "fields as those of sacct; -e, --helpformat: all",
        **_TABLE,
    },
    "scontrol": {
        "show job [ID]": "all about a job, or of the queue; -o: each in a line; --json, --yaml",
        "show hostnames [LIST]": "the machines of a list, else that of the job",
        "show node": "the machine; partition, step, license, reservation; config: what programs"
        " ask for of Slurm's settings",
        "hold, release ID": "keep waiting jobs from starting, and no longer",
        "suspend, resume ID": "freeze running jobs, and let them go on",
        "requeue ID": "stop a running job and queue it again, with its id; requeuehold: held",
        "update JobId=ID KEY=VALUE": "TimeLimit (+30: more), JobName, Partition, Priority, Nice,"
        " NumCPUs, MinMemoryNode, Gres, Dependency, StartTime, Comment",
        "write batch_script ID [FILE]": "the script of a job into a file, or - for the screen",
        "ping, version": "is drfd there, and which Slurm's words these are",
    },
}


def _help_of(name: str, text: str) -> str:
    """Return the help of one of Slurm's commands; `text` says what it does."""
    options = _OPTIONS[name]
    width = max(map(len, options), default=0) + 2
    usages = "\n   or: ".join(f"{name} {usage}" for usage in _USAGE[name].split("|"))
    lines = [f"Usage: {usages}", "", f"{text[0].upper()}{text[1:]}.", ""]
    for option, what in options.items():
        lines.append(
            fill(
                what, _WIDTH, initial_indent=f"  {option:<{width}}",
                subsequent_indent=" " * (width + 2), break_on_hyphens=False,
            )
        )  # fmt: skip
    return "\n".join([*lines, "", *_more(name)])


def _more(name: str) -> list[str]:
    from drfd_cli.slurm import fields, lookup

    if name in ("sbatch", "srun"):
        dumb = ", ".join(
            f"--{each}" for each in sorted(SUBMITTING[name].without_effect - {"exclusive"})
        )
        return [
            _paragraph("Options stand on #SBATCH lines of a script, too." if name == "sbatch" else
                       "It starts no MPI: mpirun -n $SLURM_NTASKS does."),
            _paragraph(f"Without effect here, with a warning: {dumb}."),
        ]  # fmt: skip
    if name in ("squeue", "sinfo"):
        is_queue = name == "squeue"
        heads = ", ".join(
            f"%{sign} {head}"
            for sign, (head, _) in (fields.SIGNS if is_queue else lookup.NODE_SIGNS).items()
            if len(sign) == 1
        )
        words = fields.WORDS if is_queue else lookup.NODE_WORDS
        return [
            _paragraph(f"Fields, with widths such as %.18i: {heads}."),
            _paragraph(f"Names of -O, with widths such as NAME:.20: {', '.join(sorted(words))}."),
        ]
    if name == "sacct":
        heads = ", ".join(head for head, _, _ in fields.NAMES.values())
        return [_paragraph(f"Fields, with widths such as JobName%30: {heads}.")]
    if name == "scancel":
        return [_paragraph("With ids, the other options choose among these jobs.")]
    return [_paragraph("For everything else, drf --help lists drf's own commands.")]


def _paragraph(text: str) -> str:
    return fill(text, _WIDTH, break_on_hyphens=False)
