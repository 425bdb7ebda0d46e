"""drf simulate: the group of commands that simulate policies without running any job."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

from drfd_cli.options import WithExperiments
from drfd_cli.simulate.trace import generate, trace

#: The command that is meant if the first argument is a file.
_DEFAULT = "trace"


class _OrTrace(WithExperiments):
    """`drf simulate FILE …` is `drf simulate trace FILE …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            ctx.fail("Name a TRACE or a command; drf simulate --help tells more.")
        known = self.list_commands(ctx)
        if args[0] not in (*known, *ctx.help_option_names):
            near = get_close_matches(args[0], known, 1)
            if near and not Path(args[0]).exists():
                ctx.fail(f"No such command or file {args[0]!r}. Did you mean {near[0]!r}?")
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["TRACE [OPTIONS]", "|", "COMMAND …"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Options"):
            options = [each for each in trace.params if isinstance(each, click.Option)]
            rows = [each.get_help_record(ctx) for each in options]
            formatter.write_dl([row for row in rows if row is not None])
        self.format_commands(ctx, formatter)


@click.group("simulate", cls=_OrTrace, experiments=("alloc", "paper"))
def command() -> None:
    """What other policies or weights would have done to the jobs of a trace.

    They are submitted to the daemon's own scheduler, on a virtual clock and a machine of your
    choice (--capacity cores=900,memory=6T,read=2G,write=1G,gpu=4): months take seconds, and nothing
    is run. Policies are shown side by side. TRACE is a file: a log in the Standard Workload Format,
    a table of your own, or what `drf history --csv` prints; - is standard input.

    \b
    What would another policy do?
      drf simulate jobs.csv --capacity cores=64,memory=256G --policy drf,fifo
    What if alice had weight 2 here?
      drf simulate --history --weight alice=2
    No trace at hand?
      drf simulate generate --jobs 2000 --users 8 > jobs.csv

    Each job runs as long as it did. Told of that beforehand is a guess from the user's last jobs,
    the job's limit, the truth, or nothing (--estimates).
    """


command.add_command(trace)
command.add_command(generate)
