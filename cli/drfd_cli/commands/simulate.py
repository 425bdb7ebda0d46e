"""drf simulate: policies, or weights, side by side on the jobs of a trace, without running any job;
`generate` makes a random trace. The simulation is `drfd.sim`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from drfd.client.connection import count_resources
from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.options import MOMENT, QuantityParam, connect, prints_result
from drfd_cli.output import Result

if TYPE_CHECKING:
    from drfd.core.fairness.rules import Rules
    from drfd.core.model.resources import Resources
    from drfd.sim.driver import Run
    from drfd.sim.workload import Workload


#: Least seconds between two updates of the progress line.
_TELL_EVERY_S = 0.2


def _of(module: str, name: str) -> Any:
    """Return what a module has of this name. The help needs none of these modules, which are slow
    to load."""
    return getattr(import_module(f"drfd.{module}"), name)


def _read_by(metavar: str, module: str, name: str) -> QuantityParam:
    return QuantityParam(metavar, lambda text: _of(module, name)(text))


_CAPACITY = _read_by("AMOUNTS", "sim.machine", "parse_capacity")
_HABITS = _read_by("HABITS", "sim.synthetic_workloads", "parse_mix")


class _Words(QuantityParam):
    """Some of the words that a module has by a name."""

    def __init__(self, metavar: str, what: str, module: str, name: str) -> None:
        super().__init__(metavar, self._read_words)
        self._what, self._module, self._name = what, module, name

    def known(self) -> list[str]:
        return list(_of(self._module, self._name))

    def _read_words(self, text: str) -> list[str]:
        known = self.known()
        words = known if text == "all" else [word.strip() for word in text.split(",")]
        for word in words:
            if word not in known:
                text = f"{self._what}: there is no {word!r}"
                raise Refused("bad-value", text, hint=", ".join(known))
        return list(dict.fromkeys(words))


class _WordsOption(click.Option):
    """An option whose help names the words that it takes."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if isinstance(self.type, _Words):
            self.help = f"{', '.join(self.type.known())}; or all."
        return super().get_help_record(ctx)


def _weight(text: str) -> tuple[str, Fraction]:
    name, _, weight = text.rpartition("=")
    try:
        value = Fraction(weight)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not name or not 0 < value <= 1_000_000:
        raise Refused("bad-value", f"weight: {text!r} is not NAME=WEIGHT", hint="write alice=2")
    return name, value


@click.command("trace")
@click.argument("source", metavar="[TRACE]", required=False)
@click.option("--capacity", type=_CAPACITY, help="The machine: cores=64,memory=256G,gpu=4.")
@click.option(
    "--policy",
    "policies",
    cls=_WordsOption,
    default="drf,fifo,easy",
    show_default=True,
    type=_Words("NAMES", "policy", "core.scheduling.policies", "POLICIES"),
)
@click.option("--estimates", cls=_WordsOption, default="predicted", show_default=True,
              type=_Words("KINDS", "estimate", "sim.driver", "ESTIMATES"))  # fmt: skip
@click.option(
    "--pools",
    metavar="FILE",
    help="Pools of this file, as in drfd.toml; `trace`: the groups of the trace.",
)
@click.option("--weight", "weights", type=QuantityParam("NAME=N", _weight), multiple=True,
              help="Show also another weight of a user or pool.")  # fmt: skip
@click.option("--io-profile", metavar="FILE", help="SYNTHETIC disk rates, see docs/simulator.md.")
@click.option("--history", is_flag=True, help="This machine's past in place of a TRACE.")
@click.option("--since", type=MOMENT, help="With --history: what ended since then.")
@click.option("--audit", is_flag=True,
              help="Who envied another user, and who would gain alone, or by false demands? Of "
              "this machine's past, or of a TRACE; takes minutes to hours.")  # fmt: skip
@click.option(
    "-n", "--number", metavar="JOBS", type=click.IntRange(1), help="Only the first JOBS jobs."
)
@click.option("--users", is_flag=True, help="Show each user, too.")
@prints_result()
def trace(
    source: str | None, capacity: Resources | None, policies: list[str], estimates: list[str],
    io_profile: str | None, history: bool, since: float | None, number: int | None, users: bool,
    weights: tuple[tuple[str, Fraction], ...], audit: bool,
    pools: str | None,
) -> Result:  # fmt: skip
    """Compare policies, or weights, on the jobs of a trace; see `drf simulate --help`."""
    from drfd.sim.machine import check, rules_of, suggestion
    from drfd.sim.synthetic_workloads import read_profiles, with_disk_rates
    from drfd_cli import trace_view as view

    if audit:
        given = click.get_current_context().get_parameter_source
        if (
            users
            or weights
            or any(given(each) is not ParameterSource.DEFAULT for each in ("policies", "estimates"))
        ):
            raise click.UsageError("--audit goes without other policies and weights")
        history = source is None
    if history == (source is not None):
        raise click.UsageError("name one TRACE, or --history")
    if since is not None and not history:
        raise click.UsageError("--since goes with --history")
    rules: Rules | None = None
    if history:
        work, rules = past_of(since, capacity)
        capacity = rules.capacity
    else:
        work = _read(str(source), capacity)
    if number is not None:
        work = replace(work, jobs=work.jobs[:number])
    if io_profile is not None:
        work = with_disk_rates(work, read_profiles(Path(io_profile)))
    if capacity is None:
        raise Refused(
            "no-capacity",
            "say what the machine has",
            hint=f"for this trace for instance --capacity {suggestion(work.jobs)}",
        )
    check(work.jobs, capacity)
    if audit:
        (rules,) = _variants(work, rules or rules_of(capacity), {}, pools).values()
        return _audit(work, rules)
    variants = _variants(work, rules or rules_of(capacity), dict(weights), pools)
    runs = list(_runs(work, variants, policies, estimates))
    machine, has_users = capacity, users or bool(weights)
    return Result(
        show=lambda: view.print_tables(work, machine, runs, users=has_users),
        view=lambda: view.as_view(work, machine, runs),
    )


def _audit(work: Workload, rules: Rules) -> Result:
    from drfd.sim.audit import audit
    from drfd_cli import trace_view as view

    with _Progress("the audit", len(work.jobs)) as progress:
        found = audit(
            work.jobs,
            rules,
            lambda number, count: progress.note(f"simulation {number} of {count}"),
        )
    return Result(show=lambda: view.print_audit(found), view=lambda: view.as_audit(found))


def _read(source: str, capacity: Resources | None) -> Workload:
    from drfd.sim.workload import read_binary, read_trace

    rates = (0, 0) if capacity is None else (capacity.read_bps, capacity.write_bps)
    if source == "-":
        # Leaving the block closes the reader, and descriptor 0 stays open.
        with open(0, "rb", closefd=False) as stdin:
            return read_binary(stdin, source="standard input", rates=rates)
    return read_trace(Path(source), rates=rates)


def past_of(since: float | None, capacity: Resources | None) -> tuple[Workload, Rules]:
    """Return the jobs that have ended here since then, and this machine, or one of this capacity,
    with the present weights. Raises Refused if there are none."""
    from drfd.sim.machine import rules_of
    from drfd.sim.workload import amount_of, of_history, with_weights

    client = connect()
    asked = {} if since is None else {"since_s": since}
    jobs = list(client.jobs("history", past=asked))
    shares = client.request("shares")
    try:
        work = of_history(jobs)
    except Refused:
        raise Refused("no-jobs", "no job has run here", hint="try a TRACE") from None
    here = {**shares["capacity"], "gres": count_resources(client, shares["capacity"]["gres"])}
    rules = rules_of(capacity or amount_of(here))
    return work, with_weights(rules, shares["nodes"], work)


def _variants(
    work: Workload, rules: Rules, weights: dict[str, Fraction], pools: str | None
) -> dict[str, Rules]:
    """Return the rules to simulate, by label: "" for those without --weight, and, if that is given,
    those with its weights."""
    from drfd.core.model.job import show_path
    from drfd.sim.machine import FROM_TRACE, configured, of_groups, weighted

    if pools == FROM_TRACE:
        rules = replace(rules, pools=of_groups(work.jobs))
    elif pools is not None:
        rules = configured(rules, Path(pools))
        hourly = [show_path(path) for path, node in rules.pools_and_users() if node.hours]
        if hourly:
            output.say(
                f"limits by hour (of {', '.join(hourly)}) are not simulated: the ordinary limits "
                "count all the time"
            )
    found = {"": rules}
    if weights:
        name = ",".join(f"{each}={float(weight):g}" for each, weight in weights.items())
        found[name] = weighted(rules, weights, {job.user for job in work.jobs})
    return found


def _runs(
    work: Workload, variants: dict[str, Rules], policies: list[str], estimates: list[str]
) -> Iterator[tuple[str, Run]]:
    from drfd.sim.driver import simulate

    for policy in policies:
        # Other policies use no estimates of run times.
        asks = policy in ("drf", "easy")
        for estimate in estimates if asks else estimates[:1]:
            for variant, rules in variants.items():
                several = (estimate if asks and len(estimates) > 1 else "", variant)
                label = " ".join((policy, *filter(None, several)))
                with _Progress(label, len(work.jobs)) as progress:
                    run = simulate(
                        work.jobs, replace(rules, policy=policy), estimates=estimate,
                        progress=progress.tell,
                    )  # fmt: skip
                    progress.done(run.passes + len(run.ran))
                yield label, run


class _Progress:
    """The line of progress on stderr, if that is a terminal, and the speed at the end."""

    def __init__(self, label: str, jobs: int) -> None:
        self._label, self._jobs, self._status = label, jobs, output.StatusLine()
        self._told_s = time.monotonic()
        self._began_s = time.process_time()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *why: object) -> None:
        self._status.show("")

    def tell(self, over: int) -> None:
        self.note(f"{self._label}: {over / self._jobs:.0%} of {self._jobs:,} jobs")

    def note(self, line: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            self._status.show(line)

    def done(self, decisions: int) -> None:
        """Print the speed; `decisions` are passes and launches."""
        took_s = time.process_time() - self._began_s
        self._status.show("")
        rate = f", {decisions / took_s:,.0f} decisions/s" if took_s > 0.1 else ""
        output.say(f"simulated {self._label} in {took_s:.1f} s of CPU time{rate}")


@click.command("generate")
@click.option(
    "--jobs", type=click.IntRange(1, 10_000_000), default=2000, show_default=True, help="How many."
)
@click.option("--users", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="How many; a few of them send most jobs.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random numbers.")
@click.option(
    "--load", type=click.FloatRange(0.01, 100), default=0.9, show_default=True,
    help="Mean load: what the jobs ask for, as a part of the capacity.",
)  # fmt: skip
@click.option("--capacity", type=_CAPACITY, show_default=True,
              default="cores=64,memory=256G,read=2G,write=1G",
              help="The machine that the jobs are made for.")  # fmt: skip
@click.option("--mix", default=None, metavar="HABITS", type=_HABITS,
              help="How many users do what: cpu=4,memory=3,balanced=4,io=2,big=1.")  # fmt: skip
@click.option("--burst", type=click.FloatRange(1, 10_000), default=5.0, show_default=True,
              help="Jobs that a user sends at once, on average.")  # fmt: skip
def generate(capacity: object, mix: object, **recipe: Any) -> None:
    """Make up a workload, as a table that `drf simulate` reads.

    The same options give the same table. The columns: times in seconds since the beginning, sizes
    and rates in bytes (a table that you write may have them like 16G).
    """
    from drfd.core.model.resources import Resources
    from drfd.sim import synthetic_workloads as made

    assert isinstance(capacity, Resources)
    if not capacity.cores_milli or not capacity.memory_bytes:
        raise click.UsageError("--capacity: cores and memory are needed")
    habits = mix if isinstance(mix, dict) else made.MIX
    recipe_of_jobs = made.Recipe(capacity=capacity, mix=habits, **recipe)
    for line in made.csv_lines(made.generate(recipe_of_jobs)):
        click.echo(line)


#: Commands of a package that only a checkout of drfd's source has.
_OF_CHECKOUT = ("alloc", "paper")
EXPERIMENTS = _OF_CHECKOUT if find_spec("drfd_experiments") is not None else ()
#: The command that is meant if the first argument is a file.
_DEFAULT = "trace"


class _OrTrace(click.Group):
    """`drf simulate FILE …` is `drf simulate trace FILE …`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *EXPERIMENTS])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in EXPERIMENTS:
            return super().get_command(ctx, name)
        command: click.Command = getattr(import_module("drfd_experiments.commands"), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:
            return super().parse_args(ctx, args)
        if not args:
            ctx.fail("Name a TRACE or a command; drf simulate --help tells more.")
        known = self.list_commands(ctx)
        if args[0] in _OF_CHECKOUT and args[0] not in known and not Path(args[0]).exists():
            ctx.fail(f"{args[0]} is an experiment, which only a checkout of drfd's source has")
        if args[0] not in (*known, *ctx.help_option_names):
            near = get_close_matches(args[0], known, 1)
            if near and not Path(args[0]).exists():
                ctx.fail(f"No such command or file {args[0]!r}. Did you mean {near[0]!r}?")
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return trace.shell_complete(ctx, incomplete)
        # bash offers files only where no command matches.
        return [CompletionItem(incomplete, type="file"), *super().shell_complete(ctx, incomplete)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["TRACE [OPTIONS]", "|", "COMMAND …"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Options"):
            options = [each for each in trace.params if isinstance(each, click.Option)]
            rows = [each.get_help_record(ctx) for each in options]
            formatter.write_dl([row for row in rows if row is not None])
        self.format_commands(ctx, formatter)


@click.group("simulate", cls=_OrTrace)
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

    Each job runs as long as it did. The scheduler knows that beforehand as a guess from the user's
    last jobs, as the job's limit, exactly, or not at all (--estimates).
    """


command.add_command(trace)
command.add_command(generate)
