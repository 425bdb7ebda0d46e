"""drf simulate generate: a workload made up from a seed."""

from __future__ import annotations

import click

from drfd_cli.options import Amount


def _capacity(text: str) -> object:
    from drfd.sim.machine import parse_capacity

    return parse_capacity(text)


def _mix(text: str) -> object:
    from drfd.sim.generate import parse_mix

    return parse_mix(text)


@click.command("generate")
@click.option("--jobs", type=click.IntRange(1, 10_000_000), default=2000, show_default=True,
              help="How many.")  # fmt: skip
@click.option("--users", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="How many; a few of them send most jobs.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Another one, other jobs.")
@click.option(
    "--load", type=click.FloatRange(0.01, 100), default=0.9, show_default=True,
    help="What jobs hold on average, over what there is, if none has to wait.",
)  # fmt: skip
@click.option("--capacity", type=Amount("AMOUNTS", _capacity), show_default=True,
              default="cores=64,memory=256G,read=2G,write=1G",
              help="The machine that the jobs are made for.")  # fmt: skip
@click.option("--mix", type=Amount("HABITS", _mix), default=None, metavar="HABITS",
              help="How many users do what: cpu=4,memory=3,balanced=4,io=2,big=1.")  # fmt: skip
@click.option("--burst", type=click.FloatRange(1, 10_000), default=5.0, show_default=True,
              help="Jobs that a user sends at once, on average.")  # fmt: skip
def generate(
    jobs: int, users: int, seed: int, load: float, capacity: object, mix: object, burst: float
) -> None:
    """Make up a workload, as a table that `drf simulate` reads.

    The same options give the same table. The columns: times in seconds since the beginning, sizes
    and rates in bytes (a table that you write may have them like 16G).
    """
    from drfd.core.resources import Resources
    from drfd.sim import generate as made

    assert isinstance(capacity, Resources)
    if not capacity.cores_milli or not capacity.memory_bytes:
        raise click.UsageError("--capacity: cores and memory are needed")
    recipe = made.Recipe(
        jobs=jobs, users=users, capacity=capacity, seed=seed, load=load, burst=burst,
        mix=mix if isinstance(mix, dict) else made.MIX,
    )  # fmt: skip
    for line in made.csv_lines(made.generate(recipe)):
        click.echo(line)
