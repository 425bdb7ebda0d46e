"""The command line of drf: it finds the verb, and prints an error as one line with an exit code."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from drfd.common.errors import ConfigError, DrfdError
from drfd_cli.options import colour_option
from drfd_cli.output import clean, say
from drfd_cli.start import replace_characters

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class About(NamedTuple):
    """What is said of a verb, and where it is."""

    #: Its line in the help.
    text: str
    #: The arguments of the example at the end of its help.
    words: str = ""
    #: The module in `commands` that it shares with others; each other verb has the module of its
    #: name. It is imported when the verb is used.
    module: str = ""


#: Every verb, in the order of the help.
GROUPS = {
    "Jobs": {
        "submit": About("queue a job", "-c 4 -m 8G -t 2h -n train -- python3 train.py"),
        "run": About("run a job and wait for it, attached to this terminal",
                     "-c 4 -m 8G -- python3"),
        "profile": About("run a command once, and learn what to ask for",
                         "-- ./simulate --steps 1000", "run"),
        "retry": About("submit ended jobs again, as they were or changed", "42 --with '-m 4G'"),
        "exec": About("run a command inside a running job", "42 -- nvidia-smi"),
        "attach": About("return to the terminal of a detached job", "42", "run"),
        "edit": About("change a job in your editor, and submit it anew", "42", "set"),
        "set": About("change resources and options of waiting jobs", "-t 4h -m 16G 42"),
        "cancel": About("cancel waiting jobs, stop running ones", "--state pending --name train",
                        "job_actions"),
        "hold": About("keep waiting jobs from starting", "41 42", "job_actions"),
        "release": About("let held jobs start", "--all", "job_actions"),
        "suspend": About("freeze running jobs", "42", "job_actions"),
        "resume": About("continue suspended jobs", "42", "job_actions"),
        "signal": About("send running jobs a signal", "USR1 42", "job_actions"),
    },
    "What goes on": {
        "top": About("the live view: the machine, who holds what, what runs and waits", "--once"),
        "web": About("the same as a read-only page in the browser", "--port 8000"),
        "status": About("the queue, with reasons", "-u alice -s pending"),
        "show": About("everything about one job", "42"),
        "why": About("why a job waits, or how it ended", "42", "show"),
        "wait": About("wait until jobs have ended", "--timeout 1h 41 42 && drf log 42"),
        "log": About("the output of jobs", "-f 41 42"),
        "shares": About("who holds how much, and who is entitled to how much", "--json"),
        "nodes": About("the machines: resources, allocations, and whether jobs start", "--json",
                       "shares"),
    },
    "What has been": {
        "history": About("jobs that have ended, and what they used", "-s failed --since 7d"),
        "report": About("what was declared, what was used, what to ask for next time",
                        "--by user --since 30d", "history"),
    },
    "The daemon": {
        "drain": About("start no more jobs (administrators)", "", "job_actions"),
        "undrain": About("start jobs again (administrators)", "", "job_actions"),
        "shutdown": About("end the daemon; jobs run on, or are stopped (administrators)",
                          "--kill-jobs", "job_actions"),
        "reload": About("read the configuration again (administrators)", "", "job_actions"),
        "doctor": About("what is enforced on this machine, and what is not"),
    },
    "The command line": {
        "completion": About("completion of words in bash, zsh and fish", "bash --install"),
    },
    "Trying it out": {
        "simulate": About("what other policies or weights would have done",
                          "jobs.csv --capacity cores=64,memory=256G"),
        "demo": About("half a minute of fair scheduling on this machine"),
    },
}  # fmt: skip
VERBS = {verb: row for verbs in GROUPS.values() for verb, row in verbs.items()}
EXAMPLES = {verb: f"drf {verb} {row.words}".rstrip() for verb, row in VERBS.items()}
#: Slurm's names, which the help puts on one line, and the modules that have them.
_HIDDEN = {
    **dict.fromkeys(("sbatch", "srun", "salloc"), "slurm_names"),
    **dict.fromkeys(("squeue", "scancel", "sinfo", "sacct", "seff"), "slurm_lists"),
    "scontrol": "scontrol",
    **dict.fromkeys(("sacctmgr", "sdiag", "sprio", "sshare", "sstat"), "slurm_accounting"),
    "slurm-names": "slurm_names",
}


def command_of(verb: str) -> click.Command:
    name = _HIDDEN[verb] if verb in _HIDDEN else VERBS[verb].module or verb
    module = import_module(f"drfd_cli.commands.{name}")
    command: click.Command = getattr(module, "command" if name == verb else verb.replace("-", "_"))
    return command


def _hint(verb: str) -> str:
    from drfd_cli.habits import HABITS

    if verb in HABITS:
        return f" That is: {HABITS[verb][0]}"
    from difflib import get_close_matches

    near = get_close_matches(verb, VERBS, 1)
    return f" Did you mean {near[0]!r}?" if near else " drf --help lists them."


class _Verbs(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader has closed the pipe, as in `drf status | head`: nothing may be flushed.
            _to_nowhere(1)
            return 0

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing:
            # A word is being completed.
            return super().resolve_command(ctx, args)
        if args[0] == "help":
            # `drf help submit` is `drf submit --help`.
            args = [*args[1:2], "--help"]
        if args[0] == "--help":
            click.echo(ctx.get_help())
            ctx.exit()
        if args[0] not in (*VERBS, *_HIDDEN):
            ctx.fail(f"No such command {args[0]!r}.{_hint(args[0])}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS and name not in _HIDDEN:
            return None
        command = command_of(name)
        if name in VERBS:
            command.short_help = VERBS[name].text
            command.epilog = f"Example: {EXAMPLES[name]}"
        if ctx.resilient_parsing:
            from drfd_cli.commands.completion import offer

            offer(name, command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        # With the texts of GROUPS, no verb's module is imported.
        offered = {verb: row.text for verb, row in VERBS.items()} | {"help": "the help of a verb"}
        return [
            CompletionItem(verb, help=text)
            for verb, text in offered.items()
            if verb.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # With the texts of GROUPS, the help imports no verb's module.
        width = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:<{width}}", row.text) for verb, row in verbs.items()])
        *names, links = _HIDDEN
        with formatter.section("As in Slurm"):
            formatter.write_text(f"{', '.join(names)} (drf {links} DIR links to them)")


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--socket", metavar="PATH", type=click.Path(), help="Talk to the daemon at this socket."
)
@colour_option
@click.version_option(package_name="drfd", message="drf %(version)s")
@click.pass_context
def cli(ctx: click.Context, socket: str | None) -> None:
    """Fair, enforced, explained batch jobs for one shared machine."""
    ctx.obj = socket
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    _fill_missing_descriptors()
    replace_characters()
    try:
        status = cli.main(prog_name="drf", standalone_mode=False)
        # Unlike `sys.stdout.flush`, this also does where there is no standard output.
        print(end="", flush=True)
    except (Exception, KeyboardInterrupt) as error:
        leave(error)
    sys.exit(status if isinstance(status, int) else 0)


def leave(error: BaseException) -> NoReturn:
    """Print what has ended the program in one line, and exit. An error that is a bug is raised."""
    from drfd_cli.submission.job_line import WrongWords

    match error:
        case WrongWords():
            click.echo(clean(f"drf {error.verb}: {error}", 1000), err=True)
            sys.exit(2)
        case click.ClickException():
            about = getattr(error, "ctx", None)
            where = about.command_path if about is not None else "drf"
            click.echo(clean(f"{where}: {error.format_message()}", 1000), err=True)
            sys.exit(error.exit_code)
        case click.exceptions.Abort() | KeyboardInterrupt():
            sys.exit(130)
        case DrfdError():
            # A file with several mistakes has a line for each.
            for line in str(error).split("\n") if isinstance(error, ConfigError) else [str(error)]:
                say(line)
            sys.exit(error.exit_code)
        case OSError():
            # A full disk, or a directory that cannot be made: print the system's message in one
            # line.
            _to_nowhere(1)
            say(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
            sys.exit(1)
    raise error


def _to_nowhere(fd: int) -> None:
    """Redirect the descriptor to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _fill_missing_descriptors() -> None:
    """Open /dev/null for each closed standard descriptor (`drf … <&-`), so that no file that drf
    opens takes its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
