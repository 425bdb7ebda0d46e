"""The commands of the experiments: drf simulate alloc divides a small machine among users by a
policy, drf simulate paper repeats the experiments of the DRF paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import click

from drfd.common.errors import Refused
from drfd.common.strict_table import suggestion
from drfd.sim.workload import read_trace
from drfd_cli import output
from drfd_cli.options import prints_result
from drfd_cli.output import Column, Result
from drfd_cli.tables.layout import print_rows, right
from drfd_experiments import facebook, macro, sharing
from drfd_experiments.alloc import Allocation, Spec, allocate, dominant_resource, read_spec
from drfd_experiments.figures import Figure, show_figures

#: Most bytes of a SPEC.
_LONGEST = 4 << 20


@click.command("alloc")
@click.argument("spec", metavar="SPEC")
@prints_result()
def alloc(spec: str) -> Result:
    """Divide a small machine among users, by a policy.

    SPEC is a JSON file, or - for standard input:

    \b
    {"capacity": {"cpu": 9, "mem": 18},
     "users": [{"name": "A", "demand": {"cpu": 1, "mem": 4}, "weight": 1},
               {"name": "B", "demand": {"cpu": 3, "mem": 1}, "tasks": 5}],
     "policy": "drf", "mode": "discrete"}

    \b
    policy  drf, hdrf, hdrf-naive, algorithm1, asset, ceei, cpu, slots, fifo
    mode    discrete (whole tasks) or continuous (tasks can be cut)
    weight  a number, or one for each resource: {"cpu": 2}
    tasks   how many a user has; null is without end
    pool    of a user, one of "pools": {"lab": {"weight": 2, "parent": null}}
    slots   how many tasks run at once under the policy slots

    Whole tasks start one by one. Ties go to the user whose task has the larger dominant share, then
    to the one listed first; fifo serves the users as listed. Under cpu and slots, the resources
    that they do not look at may be overcommitted.
    """
    source = "standard input" if spec == "-" else spec
    try:
        problem = read_spec(_read(spec))
        found = allocate(problem)
    except Refused as error:
        raise Refused(error.code, f"{source}: {error.text}", hint=error.hint) from None
    return Result(show=lambda: _print(problem, found), view=lambda: _view(problem, found))


def _read(spec: str) -> str:
    try:
        if spec == "-":
            data = sys.stdin.buffer.read(_LONGEST + 1)
        else:
            with open(spec, "rb") as file:
                data = file.read(_LONGEST + 1)
    except OSError as error:
        raise Refused("no-spec", f"cannot be read: {error.strerror}") from None
    if len(data) > _LONGEST:
        raise Refused("bad-spec", "is too long", hint="4M are the most")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused("bad-spec", "is not UTF-8 text") from None


def _view(problem: Spec, found: Allocation) -> dict[str, object]:
    return {
        "tasks": {name: _number(tasks) for name, tasks in found.tasks.items()},
        "shares": {
            name: {resource: _number(part) for resource, part in parts.items()}
            for name, parts in found.shares.items()
        },
        "dominant_share": {name: _number(found.dominant_share(name)) for name in found.tasks},
        "dominant_resource": {
            user.name: dominant_resource(problem, user) for user in problem.users
        },
        "order": found.order,
    }


def _number(exact: Fraction) -> int | float:
    return int(exact) if exact.denominator == 1 else float(exact)


def _print(problem: Spec, found: Allocation) -> None:
    columns = [
        Column("USER"),
        right("TASKS", is_fixed=True),
        Column("DOMINANT"),
        right("SHARE", is_fixed=True),
        *(right(output.shorten(name, 20)) for name in problem.capacity),
    ]
    tops = {name: Fraction(top) for name, top in problem.capacity.items()}
    rows: list[list[object]] = []
    for user in problem.users:
        parts = found.shares[user.name]
        rows.append(
            [
                output.shorten(user.name, 24),
                _short(found.tasks[user.name]),
                output.shorten(dominant_resource(problem, user), 20),
                _percent(found.dominant_share(user.name)),
                *(_held(parts[name], top) for name, top in tops.items()),
            ]
        )
    total = [
        (sum((parts[name] for parts in found.shares.values()), Fraction(0)), top)
        for name, top in tops.items()
    ]
    rows.append(["together", "", "", "", *(_held(part, top) for part, top in total)])
    print_rows(columns, rows)
    if found.order:
        output.tell(f"order  {' '.join(found.order)}")


def _held(part: Fraction, top: Fraction) -> str:
    return f"{_short(part * top)} ({_percent(part)})"


def _short(amount: Fraction) -> str:
    return f"{float(amount):.6g}"


def _percent(part: Fraction) -> str:
    return f"{float(part * 100):.1f} %"


# -- the paper ---------------------------------------------------------------------------------


EXPERIMENTS = {
    "table1": "two users of one machine, task by task",
    "fig4": "the same machine, divided by DRF, asset fairness and CEEI",
    "fig5": "asset fairness breaks the sharing incentive",
    "fig6": "under CEEI it pays to lie",
    "fig7": "under CEEI one may lose when another leaves",
    "fig8": "shares over time, while the tasks of two jobs change",
    "fig9": "DRF against slots and CPU-fair sharing: large jobs completed",
    "fig10": "… small jobs completed",
    "fig11": "… how long large jobs take",
    "fig12": "… how long small jobs take",
    "fig13": "a Hadoop cluster's jobs: use of CPUs and memory",
    "fig14": "… how much sooner they end than with slots",
}


@click.command("paper")
@click.argument("names", metavar="EXPERIMENT...", nargs=-1)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Of all that is left to chance; the same seed gives the same output.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 1000),
    default=None,
    help="Of the cluster in fig8 to fig14; few make it faster and coarser.",
)
@click.option(
    "--trace",
    metavar="FILE",
    help="A SWIM sample for fig13 and fig14, in place of generated jobs; may be gzipped.",
)
@prints_result()
def paper(names: Sequence[str], seed: int, nodes: int | None, trace: str | None) -> Result | int:
    """Repeat the experiments of the DRF paper (Ghodsi et al., NSDI 2011), in virtual time.

    Without an EXPERIMENT, lists them. Results stand beside the paper's own numbers where its text
    has them; cli/drfd_experiments/RESULTS.md explains the differences.
    """
    if not names:
        columns = [Column("EXPERIMENT"), Column("WHAT IT SHOWS")]
        print_rows(columns, list(EXPERIMENTS.items()))
        return 0
    for name in names:
        if name not in EXPERIMENTS:
            text = f"there is no experiment {output.clean(name)}"
            hint = suggestion(name, EXPERIMENTS, others=", ".join(EXPERIMENTS))
            raise Refused("no-experiment", text, hint=hint)
    if trace is not None and not {"fig13", "fig14"}.intersection(names):
        raise Refused("bad-trace", "--trace is for fig13 and fig14")
    found = [_run(name, seed, nodes, trace) for name in names]
    return Result(
        show=lambda: show_figures(found),
        view=lambda: {"experiments": [figure.view() for figure in found]},
    )


def _run(name: str, seed: int, nodes: int | None, trace: str | None) -> Figure:
    if name in sharing.EXAMPLES:
        return sharing.EXAMPLES[name]()
    if name == "fig8":
        return sharing.figure8(seed, nodes=nodes or sharing.NODES)
    if name in ("fig13", "fig14"):
        load = facebook.generated(seed)
        if trace is not None:
            load = facebook.load_of(read_trace(Path(output.clean(trace))))
        draw = facebook.figure13 if name == "fig13" else facebook.figure14
        return draw(load, seed, nodes or facebook.NODES)
    return macro.figure(int(name.removeprefix("fig")), seed, nodes or macro.NODES)
