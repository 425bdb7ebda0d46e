"""drf simulate alloc: divide a small machine among users by a policy."""

from __future__ import annotations

import sys
from fractions import Fraction

import click

from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.options import prints_result
from drfd_cli.output import Column, Result
from drfd_cli.tables.layout import print_rows, right
from drfd_experiments.alloc import Allocation, Spec, allocate, dominant_resource, read_spec

#: Most bytes of a SPEC.
_LONGEST = 4 << 20


@click.command("alloc")
@click.argument("spec", metavar="SPEC")
@prints_result()
def command(spec: str) -> Result:
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
    weight  a number, or one for each resource
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
        Column("USER"), right("TASKS", is_fixed=True), Column("DOMINANT"),
        right("SHARE", is_fixed=True),
        *(right(output.shorten(name, 20)) for name in problem.capacity),
    ]  # fmt: skip
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
