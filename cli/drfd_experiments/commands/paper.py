"""drf simulate paper: the experiments of the DRF paper, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from drfd.common.errors import Refused
from drfd.common.strict_table import suggestion
from drfd.sim.workload import read_trace
from drfd_cli import output
from drfd_cli.options import prints_result
from drfd_cli.output import Column, Result
from drfd_cli.tables.layout import print_rows
from drfd_experiments import facebook, macro, sharing
from drfd_experiments.cluster import SWAP_COST
from drfd_experiments.figures import Figure, show_figures

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
    "--swap-cost",
    type=click.IntRange(0, 10_000),
    default=None,
    help="How many times as much a touch of swapped memory costs (fig9 to fig12).",
)
@click.option(
    "--trace",
    metavar="FILE",
    help="A SWIM sample for fig13 and fig14, in place of generated jobs; may be gzipped.",
)
@prints_result()
def command(
    names: Sequence[str], seed: int, nodes: int | None, swap_cost: int | None,
    trace: str | None,
) -> Result | int:  # fmt: skip
    """Repeat the experiments of the DRF paper (Ghodsi et al., NSDI 2011), in virtual time.

    Without an EXPERIMENT, lists them. Results stand beside the paper's own numbers where its text
    has them, and differences are explained.
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
    found = [_run(name, seed, nodes, swap_cost, trace) for name in names]
    return Result(
        show=lambda: show_figures(found),
        view=lambda: {"experiments": [figure.view() for figure in found]},
    )


def _run(
    name: str, seed: int, nodes: int | None, swap_cost: int | None, trace: str | None
) -> Figure:
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
    cost = SWAP_COST if swap_cost is None else swap_cost
    number = int(name.removeprefix("fig"))
    return macro.figure(number, seed, cost, nodes=nodes or macro.NODES)
