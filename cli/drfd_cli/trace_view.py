"""The output of `drf simulate TRACE`: a table for people, an object for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from drfd.common.units import show_duration, show_need
from drfd.core.model.job import show_path
from drfd.core.model.resources import Axes, Resources
from drfd.sim.audit import AuditResult
from drfd.sim.driver import Run
from drfd.sim.metrics import SIZES, View, measure
from drfd.sim.workload import Workload
from drfd_cli import output
from drfd_cli.output import Column, counted
from drfd_cli.tables.columns import as_text, at
from drfd_cli.tables.layout import print_items, print_rows, right

#: Most lines or jobs left out that are named; all are counted.
_NAMED = 5
#: Most users in the table: those who waited longest.
_MOST_USERS = 40

Runs = Sequence[tuple[str, Run]]


def as_view(work: Workload, capacity: Resources, runs: Runs) -> View:
    """Return the object for --json. The same arguments always give the same object."""
    refused = runs[0][1].refused if runs else ()
    return {
        "trace": {
            "source": work.source,
            "kind": work.kind,
            "jobs": len(work.jobs),
            "users": len({job.user for job in work.jobs}),
            "bad": {
                "count": len(work.bad),
                "first": [{work.unit: each.number, "why": each.why} for each in work.bad[:_NAMED]],
            },
            "refused": {
                "count": len(refused),
                "first": [{"job": each.job.name, "why": each.why} for each in refused[:_NAMED]],
            },
            "notes": list(work.notes),
        },
        "capacity": dict(_amounts(capacity)),
        "runs": [{"label": label, **measure(run)} for label, run in runs],
    }


def print_tables(work: Workload, capacity: Resources, runs: Runs, *, users: bool) -> None:
    shown = as_view(work, capacity, runs)
    for name, text in _heading(work, capacity, shown):
        output.tell(f"{name:<9}{text}")
    found = shown["runs"]
    columns = [Column(""), *(right(run["label"], is_fixed=True) for run in found)]
    rows = [[name, *map(show, found)] for name, show in _rows(found) if any(map(show, found))]
    print_rows(columns, rows)
    if users:
        _print_users(found)


def _heading(work: Workload, capacity: Resources, shown: View) -> list[tuple[str, str]]:
    trace = shown["trace"]
    span = show_duration(work.jobs[-1].submit_s - work.jobs[0].submit_s)
    lines = [
        (
            "trace",
            f"{work.source} ({work.kind}): {counted(trace['jobs'], 'job')} of "
            f"{counted(trace['users'], 'user')}, submitted over {span}",
        ),
        ("machine", ", ".join(show_need(name, amount) for name, amount in _amounts(capacity))),
    ]
    if work.bad:
        named = "; ".join(f"{work.unit} {bad.number}: {bad.why}" for bad in work.bad[:_NAMED])
        lines.append(("left out", _more(len(work.bad), work.unit, named)))
    refused = trace["refused"]
    if refused["count"]:
        named = "; ".join(f"{each['job']}: {each['why']}" for each in refused["first"])
        lines.append(("refused", _more(refused["count"], "job", named)))
    return lines + [("note", text) for text in work.notes]


def _more(count: int, what: str, named: str) -> str:
    rest = f"; and {count - _NAMED:,} more" if count > _NAMED else ""
    return f"{counted(count, what)}: {named}{rest}"


def _amounts(capacity: Resources) -> list[tuple[str, int]]:
    axes = Axes(gres=tuple(name for name, _ in capacity.gres))
    pairs = zip(axes.names, axes.vector(capacity), strict=True)
    return [(name, amount) for name, amount in pairs if amount]


def _rows(runs: list[View]) -> list[tuple[str, Callable[[View], str]]]:
    def of(*path: str | int, by: Callable[[Any], str]) -> Callable[[View], str]:
        def show(run: Any) -> str:
            for key in path:
                run = None if run is None else run[key]
            return "-" if run is None else by(run)

        return show

    spread = (("mean", "mean"), ("median", "median"), ("95 %", "p95"), ("99 %", "p99"))
    resources = dict.fromkeys(name for run in runs for name, part in run["use"].items() if part)
    shares = {run["largest_job"]["share"] for run in runs if run["largest_job"]}
    windows = [run["promise_kept"]["worst_window"] for run in runs]
    lengths = {each["length_s"] for each in windows if each}
    return [
        ("jobs run", of("jobs", by=_count)),
        ("never started", lambda run: _count(run["unstarted"]) if run["unstarted"] else ""),
        *((f"wait, {name}", of("wait_s", key, by=show_duration)) for name, key in spread),
        *((f"bounded slowdown, {name}", of("slowdown", key, by=_figure)) for name, key in spread),
        *((f"use of {name}", of("use", name, by=_percent)) for name in resources),
        ("promises kept while waiting, mean user", of("promise_kept", "mean", by=_percent)),
        ("… least kept to a user", of("promise_kept", "least", by=_kept)),
        (f"… in the worst {'hour' if lengths == {3600} else 'day'}",
         of("promise_kept", "worst_window", by=_kept)),
        ("waiting users who envy another", of("envy", by=_percent)),
        *(
            (
                f"longest wait, jobs {_size(at)}",
                of("longest_wait_s", at, "longest_wait_s", by=show_duration),
            )
            for at in range(len(SIZES) + 1)
            if any(run["longest_wait_s"][at]["jobs"] for run in runs)
        ),
        (f"wait of the largest job{f' ({max(shares):.0%})' if shares else ''}",
         of("largest_job", "wait_s", by=show_duration)),
        ("jobs per hour", of("jobs_per_hour", by=_figure)),
        ("last end", of("span_s", by=show_duration)),
    ]  # fmt: skip


def _size(at: int) -> str:
    bounds = [f"{bound:.0%}" for bound in SIZES]
    if at == 0:
        return f"below {bounds[0]} of the machine"
    return (
        f"of {bounds[at - 1]} and more"
        if at == len(bounds)
        else f"of {bounds[at - 1]} to {bounds[at]}"
    )


def _print_users(runs: list[View]) -> None:
    """Print waits by user, longest under the first policy first."""
    users = runs[0]["users"] if runs else {}
    leaves = sorted(users, key=lambda leaf: (-users[leaf]["wait_s"]["mean"], leaf))
    columns = [
        Column("USER", _name),
        right("JOBS", as_text(at("jobs", users.get), _count), is_fixed=True),
        *(column for run in runs for column in _columns_of(run)),
    ]
    print_items(columns, leaves[:_MOST_USERS])
    if len(leaves) > _MOST_USERS:
        most = max(len(run["users"]) for run in runs)
        output.say(f"{_MOST_USERS} of {most:,} users; --json has all")


def _columns_of(run: View) -> list[Column]:
    user = run["users"].get
    return [
        right(f"{run['label']}: WAIT", as_text(at("mean", at("wait_s", user)), show_duration)),
        right("KEPT", as_text(at("promise_kept", user), _percent), is_fixed=True),
        right("SHARE", as_text(at("share", user), _percent), is_fixed=True),
    ]


def _name(leaf: str) -> str:
    return output.shorten(show_path(leaf), 24)


def _kept(found: View) -> str:
    return f"{_percent(found['kept'])} {_name(found['leaf'])}"


def _count(number: int) -> str:
    return f"{number:,}"


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _percent(part: float) -> str:
    return f"{part * 100:.1f} %"


# -- the audit ----------------------------------------------------------------------------------


#: What a false demand was, in words; of a resource: more of it.
_LIES = {"all": "half as much again of everything", "split": "two halves of each job"}
#: Gains below it, in parts of the time, are none: other jobs start in another order by chance.
_LEAST_GAIN = 0.005
#: Users who would have waited less alone, and gains, that are told singly.
_TOLD = 10


def as_audit(found: AuditResult) -> dict[str, object]:
    return {
        "jobs": found.jobs,
        "refused": found.refused,
        "envy": found.envy,
        "alone": [
            {
                "user": show_path(each.leaf),
                "jobs": each.jobs,
                "too_large": each.too_large,
                "wait_s": each.together_s,
                "wait_alone_s": each.alone_s,
            }
            for each in found.alone
        ],
        "false_demands": [
            {
                "user": show_path(each.leaf),
                "of": each.what,
                "true_s": each.true_s,
                "false_s": each.false_s,
            }
            for each in found.lies
        ],
    }


def print_audit(found: AuditResult) -> None:
    users = counted(len(found.alone), "user")
    output.tell(f"{counted(found.jobs, 'job')} of {users}, simulated again")
    if found.refused:
        output.tell(f"{counted(found.refused, 'job')} left out: larger than the machine")
    output.tell(
        f"envy: {found.envy:.1%} of those who waited would have preferred what another one held"
    )
    worse = [each for each in found.alone if each.jobs and each.alone_s < each.together_s]
    output.tell(
        f"alone on a machine of their own, as large as their entitlement, {len(worse)} of "
        f"{users} would have waited less"
    )
    worse.sort(key=lambda each: (each.alone_s - each.together_s, each.leaf))
    for each in worse[:_TOLD]:
        output.tell(
            f"  {_name(each.leaf)}: "
            f"{show_duration(each.together_s)} on average, alone {show_duration(each.alone_s)}"
        )
    gains = [each for each in found.lies if each.gain >= _LEAST_GAIN]
    output.tell(
        f"false demands: in {len(gains)} of {len(found.lies)} simulations, of those who waited "
        "most, the user's own jobs would have ended earlier"
    )
    gains.sort(key=lambda each: (-each.gain, each.leaf, each.what))
    for lie in gains[:_TOLD]:
        what = _LIES.get(lie.what, f"half as much {lie.what} again")
        output.tell(
            f"  {_name(lie.leaf)}, {what}: by {lie.gain:.1%} of the time from submission to end"
        )
