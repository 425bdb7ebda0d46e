"""What `sbatch --help` and the help of Slurm's other commands print."""

from __future__ import annotations

from textwrap import fill

from drfd_cli.slurm import fields
from drfd_cli.slurm.sbatch_options import KNOWN, without_effect

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
    "-J, --job-name=NAME": "the name",
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
    "-o, --format=FORMAT": "fields as below; -O, --Format=NAMES: by their names",
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
        **_SHOWING,
    },
    "scancel": {
        "-u, --user=NAME": "jobs of this user; --me: your own",
        "-n, --name=NAME": "jobs of this name, or like 'train-*'",
        "-t, --state=STATES": "PD, R, S, ...",
        "-s, --signal=SIGNAL": "send it in place of cancelling, past the shell of a batch script;"
        " -b: to that shell alone, -f: to all",
        "-i, --interactive": "ask for each",
        "-q, --quiet": "say nothing of jobs that have ended",
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
        "-o, --format=NAMES": "fields as below",
    },
    "scontrol": {
        "show job [ID]": "all about a job, or of the queue; -o: each in a line",
        "show hostnames [LIST]": "the machines of a list such as node[1-4], else of the job",
        "show hostlist NAMES": "a list of machines",
        "show node": "the machine; show partition: its partition",
        "hold, release ID": "keep waiting jobs from starting, and no longer",
        "suspend, resume ID": "freeze running jobs, and let them go on",
        "requeue ID": "stop a running job and queue it again, with its id; requeuehold: held",
        "update JobId=ID KEY=VALUE": "TimeLimit (+30: more), JobName, Partition, Priority, Nice,"
        " NumCPUs, MinMemoryNode, Gres, Dependency, StartTime",
        "update NodeName=HOST": "State=DRAIN Reason=TEXT, State=RESUME (administrators)",
        "write batch_script ID [FILE]": "the script of a job; - is standard output",
        "reconfigure, ping, version": "read the configuration again; is drfd there",
    },
}


def help_of(name: str, text: str) -> str:
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
    lines += ["", *_more(name)]
    return "\n".join([*lines, ""])


def _more(name: str) -> list[str]:
    if name in ("sbatch", "srun"):
        dumb = ", ".join(f"--{each}" for each in sorted(without_effect()) if each in KNOWN)
        return [
            _paragraph("Options stand on #SBATCH lines of a script, too." if name == "sbatch" else
                       "It starts no MPI: mpirun -n $SLURM_NTASKS does."),
            _paragraph(f"Without effect here, with a warning: {dumb}."),
        ]  # fmt: skip
    if name == "squeue":
        signs = ", ".join(f"%{sign} {head}" for sign, (head, _) in fields.SIGNS.items())
        return [_paragraph(f"Fields, with widths such as %.18i: {signs}.")]
    if name == "sacct":
        heads = ", ".join(head for head, _, _ in fields.NAMES.values())
        return [_paragraph(f"Fields, with widths such as JobName%30: {heads}.")]
    if name == "sinfo":
        return [
            _paragraph("Fields: %P %R %a %l %D %t %T %N %n %c %m %C %G %e %A %F %E %u %H %O %f %d.")
        ]
    if name == "scancel":
        return [_paragraph("With ids, the other options choose among these jobs.")]
    return [_paragraph("For everything else, drf --help lists drf's own commands.")]


def _paragraph(text: str) -> str:
    return fill(text, _WIDTH, break_on_hyphens=False)
