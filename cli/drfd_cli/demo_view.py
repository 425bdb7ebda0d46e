"""What `drf demo` shows: a live table on a terminal, plain lines elsewhere, and a summary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click

from drfd_cli import output

View = dict[str, Any]

_BAR = 24


class Screen(Protocol):
    def show(self, shares: View, jobs: list[View], at_s: float) -> None: ...


def pools(shares: View) -> list[View]:
    """The three pools, without the user below each."""
    return [node for node in shares["nodes"] if node["path"].count(".") == 1]


def opening(doctor: View, scale: float) -> str:
    lines = [
        "Three pools stand in for users, on a machine of 9 cores and 18 GB as in the DRF paper:",
        "  A  tasks of 1 core, 4 GB      its dominant resource is memory",
        "  B  tasks of 3 cores, 1 GB     its dominant resource is the CPU",
        "  C  tasks of 60 MB/s of disk   comes later, with one job that lies about its memory",
        f"Each process touches {scale:.0%} of the memory it declares, to do this machine no harm.",
        "Limits here: "
        + ", ".join(f"{name} {text.split(':')[0]}" for name, text in doctor["controls"].items()),
    ]
    lines += [f"warning: {output.clean(text)}" for text in doctor["warnings"]]
    return "\n".join(lines)


@contextmanager
def screen() -> Iterator[Screen]:
    if not output.is_terminal():
        yield _Lines()
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield _Table(live)


class _Table:
    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, shares: View, jobs: list[View], at_s: float) -> None:
        table = output.new_table(
            "POOL", ("RUN", "right"), ("WAIT", "right"), ("CORES", "right"), ("MEM", "right"),
            ("IO R/W", "right"), "DOMINANT", "SHARE",
        )  # fmt: skip
        for node in pools(shares):
            share = node["dominant_share"]
            bar = ("█" * round(share * _BAR)).ljust(_BAR, "·")
            output.add_row(
                table,
                [
                    node["path"].removeprefix("root."),
                    node["running"],
                    node["pending"],
                    *output.show_demand(node["usage"]),
                    node["dominant_resource"] or "-",
                    f"{bar} {share:4.0%}",
                ],
            )
        ended = [job for job in jobs if job["ended_at"]]
        table.caption = f"{at_s:.0f} s, {len(ended)} of {len(jobs)} jobs have ended"
        self._live.update(table, refresh=True)


class _Lines:
    """A line whenever a job starts or ends."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def show(self, shares: View, jobs: list[View], at_s: float) -> None:
        settled = [job for job in jobs if job["state"] == "RUNNING" or job["ended_at"]]
        news = [job for job in settled if self._seen.get(job["id"]) != job["state"]]
        news.sort(key=lambda job: job["ended_at"] or job["started_at"] or 0)
        self._seen |= {job["id"]: job["state"] for job in news}
        levels = ", ".join(
            f"{node['path'].removeprefix('root.')} {node['dominant_share']:.0%}"
            for node in pools(shares)
        )
        words = ", ".join(f"{job['name']} {job['state']}" for job in news)
        if words:
            click.echo(f"{at_s:5.1f} s  shares {levels}  {words}")


def closing(jobs: list[View], first_shares: dict[str, float]) -> str:
    """The summary. `first_shares`: the highest dominant shares before the third pool came."""
    started = sorted((job for job in jobs if job["started_at"]), key=lambda job: job["started_at"])
    order = " ".join(job["pool"].removeprefix("root.") for job in started[:5])
    levels = ", ".join(f"{name} {share:.0%}" for name, share in first_shares.items() if share)
    lines = [
        "",
        f"First launches: {order}   (the paper's Table 1: B A A B A)",
        f"Dominant shares then: {levels}   (the paper: 2/3 each)",
        "Outcomes:",
    ]
    for job in jobs:
        peak = job["usage"]["memory_peak"] >> 20
        cpu_s = job["usage"]["cpu_seconds"]
        lines.append(
            f"  job {job['id']:>2} {job['name']:<9} {output.show_elapsed(job):>4}, "
            f"{cpu_s:4.1f} s of CPU, {peak:>4} MiB at most  {output.why_line(job)}"
        )
    return "\n".join(lines)
