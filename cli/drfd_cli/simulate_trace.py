"""drf simulate TRACE: policies, or weights, side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drfd.errors import Refused
from drfd.units import parse_duration
from drfd_cli import output
from drfd_cli.options import Amount, as_json, connect
from drfd_cli.past import MOMENT

if TYPE_CHECKING:
    from drfd.core.resources import Resources
    from drfd.core.rules import Rules
    from drfd.sim.driver import Run
    from drfd.sim.pools import Shape
    from drfd.sim.workload import Workload

_PAGE = 1000
#: As the file of `--plot`: the terminal.
_HERE = "-"
#: Seconds between two lines of progress.
_TELL_EVERY_S = 0.2


def _capacity(text: str) -> object:
    from drfd.sim.machine import parse_capacity

    return parse_capacity(text)


def _policies(text: str) -> list[str]:
    from drfd.core.policies import POLICIES

    return _words(text, "policy", tuple(POLICIES))


def _estimates(text: str) -> list[str]:
    from drfd.sim.driver import ESTIMATES

    return _words(text, "estimate", ESTIMATES)


def _words(text: str, what: str, known: tuple[str, ...]) -> list[str]:
    words = list(known) if text == "all" else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise Refused("bad-value", f"{what}: there is no {word!r}", hint=", ".join(known))
    return list(dict.fromkeys(words))


def _weight(text: str) -> tuple[str, Fraction]:
    name, _, weight = text.rpartition("=")
    try:
        value = Fraction(weight)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not name or not 0 < value <= 1_000_000:
        raise Refused("bad-value", f"weight: {text!r} is not NAME=WEIGHT", hint="write alice=2")
    return name, value


def _patience(text: str) -> int:
    return 0 if text == "0" else parse_duration(text)


@click.command("trace")
@click.argument("source", metavar="[TRACE]", required=False)
@click.option("--capacity", type=Amount("AMOUNTS", _capacity), help="The machine, see above.")
@click.option("--policy", "policies", type=Amount("NAMES", _policies), default="drf,fifo,easy",
              help="drf, fifo, easy, slots, cpu, asset, algorithm1, hdrf-naive, yarn; or all.  "
              "[default: drf,fifo,easy]")  # fmt: skip
@click.option("--estimates", type=Amount("KINDS", _estimates), default="predicted",
              help="predicted (default), limit, exact, none: see above.")  # fmt: skip
@click.option("--pools", metavar="FILE", help="Pools like in drfd.toml; trace: its groups.")
@click.option("--weight", "weights", type=Amount("NAME=N", _weight), multiple=True,
              help="Show also another weight of a user or pool.")  # fmt: skip
@click.option("--patience", "patience_s", type=Amount("TIME", _patience),
              help="Before something is reserved for a job.")  # fmt: skip
@click.option("--io-profile", metavar="FILE", help="SYNTHETIC disk rates, see the README.")
@click.option("--history", is_flag=True, help="This machine's past in place of a TRACE.")
@click.option("--since", type=MOMENT, help="With --history: what ended since then.")
@click.option("-n", "--number", metavar="JOBS", type=click.IntRange(1),
              help="Only the first so many.")  # fmt: skip
@click.option("--users", is_flag=True, help="Show each user, too.")
@click.option("--plot", "plot_path", metavar="FILE",
              help="Draw shares, waits and use: FILE.svg, FILE.png, or - for here.")  # fmt: skip
@as_json
def trace(
    source: str | None, capacity: Resources | None, policies: list[str], estimates: list[str],
    pools: str | None, weights: tuple[tuple[str, Fraction], ...], patience_s: int | None,
    io_profile: str | None, history: bool, since: float | None, number: int | None,
    users: bool, plot_path: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Policies, or weights, side by side on the jobs of a trace; see `drf simulate --help`."""
    from drfd.sim.io_profile import overlaid, read_profiles
    from drfd.sim.machine import check, suggestion
    from drfd_cli import plot_file
    from drfd_cli import simulate_view as view

    if history == (source is not None):
        raise click.UsageError("name one TRACE, or --history")
    if since is not None and not history:
        raise click.UsageError("--since goes with --history")
    if plot_path == _HERE and as_json:
        raise click.UsageError("--plot - goes without --json")
    if plot_path != _HERE:
        plot_file.check(plot_path)
    shape: Shape | None = None
    if history:
        work, capacity, shape = _past(since, capacity)
    else:
        work = _read(str(source), capacity)
    if number is not None:
        work = replace(work, jobs=work.jobs[:number])
    if io_profile is not None:
        work = overlaid(work, read_profiles(Path(io_profile)))
    if capacity is None:
        raise Refused(
            "no-capacity", "say what the machine has",
            hint=f"for this trace for instance --capacity {suggestion(work.jobs)}",
        )  # fmt: skip
    check(work.jobs, capacity)
    variants = _variants(work, capacity, shape, pools, dict(weights), patience_s)
    runs = list(_runs(work, variants, policies, estimates))
    if as_json:
        output.print_json(view.as_view(work, capacity, runs))
    else:
        view.print_tables(work, capacity, runs, users=users or bool(weights))
    if plot_path is not None:
        _plot(plot_path, work, dict(runs))


def _plot(path: str, work: Workload, runs: dict[str, Run]) -> None:
    from drfd.sim.panels import panels_of
    from drfd_cli import plot, plot_file

    panels = panels_of(runs)
    if not panels:
        raise Refused("bad-plot", "nothing ran, so there is nothing to be drawn")
    if path == _HERE:
        for panel in panels:
            click.echo()
            click.echo(plot.draw(panel))
    else:
        plot_file.write(path, Path(work.source).name, panels)


def _read(source: str, capacity: Resources | None) -> Workload:
    from drfd.sim.trace import read_binary, read_trace

    rates = (0, 0) if capacity is None else (capacity.read_bps, capacity.write_bps)
    if source == "-":
        # A reader of its own, which is closed when all has been read.
        with open(0, "rb", closefd=False) as stdin:
            return read_binary(stdin, source="standard input", rates=rates)
    return read_trace(Path(source), rates=rates)


def _past(since: float | None, capacity: Resources | None) -> tuple[Workload, Resources, Shape]:
    from drfd.sim.past import amount_of, of_history, shape_of

    client = connect()
    asked = {} if since is None else {"since_s": since}
    jobs: list[output.View] = []
    after = None
    while True:
        page = client.request("history", past=asked, limit=_PAGE, after=after)
        jobs += page["jobs"]
        after = page["after"]
        if after is None:
            break
    shares = client.request("shares")
    try:
        work = of_history(jobs)
    except Refused:
        raise Refused("no-jobs", "no job has run here", hint="try a TRACE") from None
    return work, capacity or amount_of(shares["capacity"]), shape_of(shares["nodes"], work)


def _variants(
    work: Workload, capacity: Resources, shape: Shape | None, pools: str | None,
    weights: dict[str, Fraction], patience_s: int | None,
) -> dict[str, Rules]:  # fmt: skip
    """By what it is called: as things are, and as they would be with the weights."""
    from drfd.core.reservation import Patience
    from drfd.sim.machine import rules_of
    from drfd.sim.pools import FROM_TRACE, Shape, of_groups, read_shape, shaped, weighted

    if pools == FROM_TRACE:
        shape = replace(shape or Shape(), pools=of_groups(work.jobs))
    elif pools is not None:
        shape = read_shape(Path(pools), [name for name, _ in capacity.gres])
    shape = shape or Shape()
    if patience_s is not None:
        kept = shape.patience
        patience = Patience(
            patience_s=patience_s, drain_after_s=4 * patience_s + 86400,
            reserves=kept.reserves, depth=kept.depth,
        )  # fmt: skip
        shape = replace(shape, patience=patience)
    plain = rules_of(capacity)
    found = {"": shaped(plain, shape)}
    if weights:
        changed = weighted(shape, weights, {job.user for job in work.jobs})
        name = ",".join(f"{each}={float(weight):g}" for each, weight in weights.items())
        found[name] = shaped(plain, changed)
    return found


def _runs(
    work: Workload, variants: dict[str, Rules], policies: list[str], estimates: list[str]
) -> Iterator[tuple[str, Run]]:
    from drfd.sim.driver import simulate

    for policy in policies:
        # The others know nothing of time.
        asks = policy in ("drf", "easy")
        for estimate in estimates if asks else estimates[:1]:
            for variant, rules in variants.items():
                several = (estimate if asks and len(estimates) > 1 else "", variant)
                label = " ".join((policy, *filter(None, several)))
                with _Progress(label, len(work.jobs)) as progress:
                    run = simulate(
                        work.jobs, rules, policy=policy, estimates=estimate,
                        progress=progress.tell,
                    )  # fmt: skip
                    progress.done(run.passes + len(run.ran))
                yield label, run


class _Progress:
    """On stderr, when that is a terminal: how far it is. At the end, how fast it was."""

    def __init__(self, label: str, jobs: int) -> None:
        self._label, self._jobs = label, jobs
        self._is_shown = sys.stderr.isatty()
        self._told_s = time.monotonic()
        self._began_s = time.process_time()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *why: object) -> None:
        self._write("")

    @property
    def tell(self) -> Callable[[int], None] | None:
        return self._tell if self._is_shown else None

    def _tell(self, over: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            self._write(f"{self._label}: {over / self._jobs:.0%} of {self._jobs:,} jobs")

    def done(self, decisions: int) -> None:
        """Passes and launches."""
        took_s = time.process_time() - self._began_s
        self._write("")
        rate = f", {decisions / took_s:,.0f} decisions/s" if took_s > 0.1 else ""
        output.say(f"simulated {self._label} in {took_s:.1f} s of CPU time{rate}")

    def _write(self, line: str) -> None:
        if self._is_shown:
            # Back to the beginning of the line, and clear it.
            sys.stderr.write(f"\r\x1b[K{output.clean(line)}")
            sys.stderr.flush()
