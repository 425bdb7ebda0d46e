"""Slurm's commands that submit, sbatch, srun and salloc, as far as one machine has them; and the
verb that makes Slurm's names.

Their options are read as Slurm reads them; those without a meaning here are ignored.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import partial

import click

from drfd.common.errors import Refused
from drfd.payload.submitter import output_directory
from drfd.protocol.job_options import options_of
from drfd_cli import output
from drfd_cli.options import connect
from drfd_cli.slurm import SLURM_NAMES, host_name
from drfd_cli.slurm.batch_script import resolve
from drfd_cli.slurm.grammar import SALLOC, SBATCH, SRUN, Given, slurm_command
from drfd_cli.slurm.sbatch_options import Translation, in_slurms_words, read_lines, translate
from drfd_cli.submission import job_line, sending
from drfd_cli.submission.job_line import WrongWords

# -- submitting --------------------------------------------------------------------------------


@slurm_command(
    SBATCH,
    "queue a batch script, as `drf submit` does",
    "[OPTIONS] SCRIPT [ARGS...] | [OPTIONS] --wrap=LINE",
)
def sbatch(words: list[str]) -> int:
    options, rest = SBATCH.parse(words)
    if "wrap" in options:
        if rest:
            line = shlex.quote(" ".join([options["wrap"].value, *rest]))
            raise click.UsageError(f"--wrap takes one line, in quotes: --wrap {line}")
        script, name = None, "wrap"
    elif rest and rest[0] != "-":
        script, name = _script(rest[0]), os.path.basename(rest[0])
    else:
        script, name = job_line.read_standard_input(), "sbatch"
        if not script:
            raise Refused("no-script", "standard input has no script")
    client = connect()
    lines: dict[str, Given] = {}
    own: list[str] = []
    if script is not None:
        shown = job_line.STANDARD_INPUT if rest[:1] in ([], ["-"]) else rest[0]
        lines = read_lines(script, shown) or {}
        own = job_line.directives(script, shown, partial(job_line.check_options, client=client))
    typed, (told, unknown) = options, SBATCH.from_environment()
    # The command line wins over variables, these over #DRF lines, and these over #SBATCH lines.
    options = told | typed
    made = translate(lines | options, host_name())
    made.unsupported += unknown
    try:
        job_line.check_options(made.words, client)
    except WrongWords as error:
        raise Refused("bad-value", f"sbatch: {in_slurms_words(str(error))}") from None
    usual = "slurm-%A_%a.out" if "array" in lines | options else "slurm-%j.out"
    where = "." if made.directory is None else made.directory.value
    usual = output_directory(where, os.environ) + usual
    last = translate(options, host_name()).words if own else []
    asked = ["-n", name, "-o", usual, *made.words, *own, *last]
    if script is None:
        command = ["sh", "-c", job_line.checked_wrap(options["wrap"].value)]
    else:
        command = [shown, *rest[1:]]
    job = job_line.line_of("submit", [*asked, "--", *command], client)
    job.script, job.slurm = script, made
    printed = "{}" if "parsable" in options else "Submitted batch job {}"
    if "quiet" in options and "parsable" not in options:
        printed = ""
    return sending.queue(job, client, shown=printed)


def _script(name: str) -> str:
    try:
        return job_line.read_script(name)
    except Refused as error:
        hint = error.hint
        if os.path.sep not in name and shutil.which(name):
            hint = (
                f"sbatch takes a script; for a command: sbatch --wrap {shlex.quote(f'{name} ...')}"
            )
        elif hint is not None and hint.startswith(("to run", "drf")):
            hint = "sbatch takes a script; for a command: sbatch --wrap 'CMD ...'"
        raise Refused(error.code, error.text, hint=hint) from None


@slurm_command(
    SALLOC,
    "run a command, else a shell, with what it asks for, as `drf run` does",
    "[OPTIONS] [COMMAND [ARGS...]]",
)
def salloc(words: list[str]) -> int:
    options, command = SALLOC.parse(words)
    made = translate(options, host_name(), "salloc")
    return _run("salloc", made, command or [os.environ.get("SHELL") or "/bin/sh"])


@slurm_command(
    SRUN,
    "run a command with the resources that it asks for, as `drf run` does",
    "[OPTIONS] COMMAND [ARGS...]",
)
def srun(words: list[str]) -> int:
    options, command = SRUN.parse(words)
    if not command:
        raise click.UsageError("there is no command")
    if "multi-prog" in options:
        raise click.UsageError("--multi-prog is not known here")
    if "jobid" in options:
        job = options["jobid"].value.partition(".")[0]
        if job != os.environ.get("DRF_JOB_ID"):
            return _run_inside(job, options, command)
    if "DRF_JOB_ID" in os.environ:
        from drfd_cli.slurm import step

        return step.run(options, command)
    made = translate(options, host_name(), "srun")
    if int(made.variables.get("SLURM_NTASKS", "1")) > 1 or {"label", "mpi"} & options.keys():
        # The tasks are started by another srun, within the job.
        made.words += [] if "job-name" in options else ["-n", os.path.basename(command[0])]
        command = [drf_path(), "srun", *_words_of_step(options, made), "--", *command]
    return _run("srun", made, command)


def _run(name: str, made: Translation, command: list[str]) -> int:
    """Run a command as a job of its own, attached to this terminal."""
    chosen, left = _for_run(made)
    made.unsupported += left
    client = connect()
    try:
        line = job_line.line_of("run", [*chosen, "--", *command], client)
    except WrongWords as error:
        raise Refused("bad-value", f"{name}: {in_slurms_words(str(error))}") from None
    line.slurm, line.values = made, resolve(made, line.values, client, None)
    return sending.attached(line, client)["status"]


def _words_of_step(options: Mapping[str, Given], made: Translation) -> list[str]:
    words = ["-n", made.variables.get("SLURM_NTASKS", "1")]
    for name in ("cpus-per-task", "mpi"):
        words += [f"--{name}={options[name].value}"] if name in options else []
    return words + (["-l"] if "label" in options else [])


def _run_inside(job: str, options: Mapping[str, Given], command: list[str]) -> int:
    """Run the command, or so many tasks of it, within a running job, as `drf exec` does."""
    from drfd_cli.commands import exec as inside

    made = translate({key: options[key] for key in _OF_STEP & options.keys()}, host_name())
    if "SLURM_NTASKS" in made.variables or "label" in options:
        command = [drf_path(), "srun", *_words_of_step(options, made), "--", *command]
    with inside.command.make_context("srun", [job, "--", *command]) as context:
        return int(inside.command.invoke(context))


#: Options of a step within a job.
_OF_STEP = frozenset(("ntasks", "ntasks-per-node", "cpus-per-task", "mpi"))


def drf_path() -> str:
    """Return the path of drf. Raises Refused."""
    own = shutil.which("drf") if os.path.basename(sys.argv[0]) in ("", "-c") else sys.argv[0]
    program = os.path.realpath(shutil.which(own or "drf") or "")
    if not os.path.isfile(program):
        raise Refused("no-program", "the program drf is not found", hint="call it by its path")
    return program


def _for_run(made: Translation) -> tuple[list[str], list[str]]:
    """Return the options that `drf run` has, and the rest in words."""
    known, every = options_of("run"), options_of("submit")
    chosen: list[str] = []
    left: list[str] = []
    words = iter(made.words)
    for word in words:
        option = every.get(word)
        value = [] if option is None or option.kind == "flag" else [next(words)]
        if word in known:
            chosen += [word, *value]
        elif word != "-w":
            # `--wait` of srun is another option, and named by itself.
            left.append(" ".join([word, *value]))
    return chosen, left


# -- the names ---------------------------------------------------------------------------------


@click.command("slurm-names")
@click.argument("directory", metavar="DIR")
def slurm_names(directory: str) -> int:
    """Make Slurm's names, from sbatch to sshare, in a directory, as links to drf. If one of them is
    there already, none is made."""
    program = drf_path()
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
