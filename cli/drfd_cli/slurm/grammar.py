"""How Slurm's commands read their words, and the help that follows from it.

Options are shortened as far as they are clear. The lists have them anywhere, `sbatch`, `srun` and
`salloc` before the script or command.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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

    def help(self) -> list[str]:
        letters = {option: f"-{letter} " for letter, option in self.shorts.items()}
        signs = {"=": "=", "?": "[=]", "": ""}
        words = {
            each: f"{letters.get(each, '')}--{each}{signs[self.kinds[each]]}"
            for each in sorted(self.kinds)
        }
        # With some values, and among several machines, these do something.
        dumb = (self.without_effect | self.said_nothing) - {"exclusive", "nodelist", "constraint"}
        there = {
            "Options, as in Slurm's manual": [words[each] for each in words if each not in dumb],
            "Without effect here": [words[each] for each in sorted(dumb)],
        }
        return [f"{title}: {', '.join(each)}." for title, each in there.items() if each]

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
    grammar: Grammar,
    text: str,
    usage: str = "[OPTIONS]",
    *,
    has_short_help: bool = True,
    more: Callable[[], list[str]] = list,
) -> Callable[[Callable[[list[str]], int | None]], click.Command]:
    """Return a decorator that makes a command of a function of the words after its name.

    `has_short_help`: whether -h asks for help, and for nothing else. `more`: what the help says of
    words other than options.
    """

    def make(function: Callable[[list[str]], int | None]) -> click.Command:
        @click.command(
            grammar.name,
            help=text,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True},
        )
        @click.argument("words", nargs=-1, type=click.UNPROCESSED)
        def command(words: tuple[str, ...]) -> int | None:
            helps = ("--help", "--usage", *(("-h",) if has_short_help else ()))
            if not words or words[0] not in (*helps, "--version", "-V"):
                return function(list(words))
            if words[0] not in helps:
                click.echo(version())
                return None
            from textwrap import fill

            parts = [f"Usage: {grammar.name} {usage}", f"{text[0].upper()}{text[1:]}."]
            for part in (*parts, *grammar.help(), *more()):
                click.echo(f"{fill(part, 100, break_on_hyphens=False)}\n")
            return None

        return command

    return make


def version() -> str:
    from drfd import __version__

    return f"slurm {SLURM_VERSION} (drfd {__version__})"
