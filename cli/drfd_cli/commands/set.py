"""drf set: change the demand and the start conditions of jobs."""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from drfd.client.connection import Connection
from drfd.client.submission import Rates, demand_fields, dependencies
from drfd.client.words import Gres
from drfd.common.errors import DrfdError, Refused
from drfd.common.units import Range, parse_duration, show_duration
from drfd_cli import output
from drfd_cli.commands.job_actions import act, selecting_by
from drfd_cli.options import (
    CORES,
    GRES,
    GROUP,
    MEMORY,
    PRIORITY,
    RATES,
    KnowingOthers,
    QuantityParam,
    after_option,
    filters_in,
    new_begin_option,
    parse_limit,
)
from drfd_cli.output import Result

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView, ShowReply

#: A running job that would be stopped within so many seconds is asked about.
_SOON_S = 60
#: Such jobs that are named one by one.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class _More:
    """A change of a time limit."""

    #: Negative for less time.
    seconds: int
    text: str


def _parse_limit(text: str) -> int | _More:
    word = text.strip()
    if word[:1] not in ("+", "-"):
        return parse_limit(text)
    seconds = parse_duration(word[1:])
    return _More(-seconds if word[0] == "-" else seconds, word)


@dataclass(frozen=True, slots=True)
class _NewLimit:
    """Finds the limit to set, and asks about running jobs that it would stop at once."""

    wish: int | _More
    yes: bool

    def __call__(self, client: Connection, select: Mapping[str, object]) -> dict[str, object]:
        if self.wish == 0:
            # No limit stops nothing.
            return {}
        jobs = [
            job
            for page in client.pages("status", select=select)
            for job in page["jobs"]
            # The command line of a job is null for users who may not change the job.
            if job["state"] in output.LIVE and job["argv"] is not None
        ]
        limit_s = self._limit_s(jobs)
        # The wall time of a suspended job stands still.
        self._ask_about_soon([job for job in jobs if job["state"] == "RUNNING"], limit_s)
        return {"time_limit_s": limit_s}

    def _limit_s(self, jobs: list[JobView]) -> int:
        if isinstance(self.wish, int):
            return self.wish
        limits = {job["time_limit_s"] or 0 for job in jobs}
        if not limits:
            raise Refused("no-such-job", f"no live job of yours to give {self.wish.text}")
        if 0 in limits:
            label = next(output.label(job) for job in jobs if not job["time_limit_s"])
            raise Refused("no-limit", f"job {label} has no time limit; -t {self.wish.text} "
                          "changes one that is there")  # fmt: skip
        if len(limits) > 1:
            shown = ", ".join(show_duration(each) for each in sorted(limits)[:_NAMED])
            raise Refused("bad-value", f"these jobs have different time limits ({shown})",
                          hint=f"choose jobs with one, or give a time without {self.wish.text[0]}"
                          )  # fmt: skip
        (before,) = limits
        if before + self.wish.seconds < 1:
            raise Refused(
                "bad-value", f"nothing would be left of {show_duration(before)}; nothing changed"
            )
        return before + self.wish.seconds

    def _ask_about_soon(self, jobs: list[JobView], limit_s: int) -> None:
        now_s = clock.time()
        soon = [job for job in jobs if output.run_s(job, now_s) > limit_s - _SOON_S]
        if not soon:
            return
        labels = ", ".join(output.label(job) for job in soon[:_NAMED])
        more = f" and {len(soon) - _NAMED} more" if len(soon) > _NAMED else ""
        longest_s = max(output.run_s(job, now_s) for job in soon)
        job, have = ("jobs", "have") if len(soon) > 1 else ("job", "has")
        upto = "up to " if len(soon) > 1 else ""
        fact = (
            f"{job} {labels}{more} {have} run for {upto}{show_duration(max(1, int(longest_s)))}: "
            f"a limit of {show_duration(limit_s)}"
        )
        if self.yes or not sys.stdin.isatty():
            output.say(f"{fact} stops {'them' if len(soon) > 1 else 'it'} within a minute")
        elif not output.confirm(
            f"{fact} would stop {'them' if len(soon) > 1 else 'it'} within a minute; set it?"
        ):
            raise click.Abort


def _tell_ends(client: Connection, refs: Sequence[int | str]) -> None:
    """Print when running jobs end, unless they are many."""
    for ref in refs if len(refs) <= _NAMED else ():
        try:
            found = client.request("show", id=ref)
        except DrfdError:
            # The change is made; the job may have ended since.
            return
        line = _end_line(found) if "job" in found else None
        if line is not None:
            output.say(line)


def _end_line(reply: ShowReply) -> str | None:
    """Return when a running job reaches its time limit."""
    job, label = reply["job"], output.label(reply["job"])
    limit_s, now_s = job["time_limit_s"], clock.time()
    if job["state"] != "RUNNING" or job["started_at"] is None:
        return None
    if limit_s is None:
        return f"job {label} runs without a time limit now"
    left_s = limit_s - output.run_s(job, now_s)
    if left_s <= 0:
        return f"job {label} has run longer than that, and is stopped now"
    return f"job {label} ends by {output.show_when(now_s + left_s)} now"


class _SetCommand(KnowingOthers):
    #: Names select jobs here, and do not change them.
    elsewhere: ClassVar[Mapping[str, str]] = {
        **KnowingOthers.elsewhere,
        **dict.fromkeys(("-J", "--job-name", "--label", "-L", "-l"), "--rename NAME"),
        "--array": "--group NAME%N lets fewer tasks of an array run at once; its own %N stays",
    }


@click.command("set", cls=_SetCommand)
@selecting_by("-g", "--in-group")
@click.option("-c", "--cores", type=CORES, help="CPU cores: 4, 0.5, or a range 2..8.")
@click.option("-m", "--mem", type=MEMORY, help="Memory, such as 16G.")
@click.option("--io", type=RATES, multiple=True, help="Disk bandwidth per second, of each disk.")
@click.option("--gres", type=GRES, multiple=True, help="What is counted here; gpu=0 is none.")
@click.option(
    "-t", "--time", type=QuantityParam("TIME", _parse_limit),
    help="Wall time: 90s, 12h, unlimited; +10m, -10m.",
)  # fmt: skip
@click.option("-p", "--pool", help="The pool that pays for it.")
@click.option("--priority", type=PRIORITY, help="Order among the jobs of your leaf.")
@click.option("--rename", metavar="NAME", help="Another name for lists.")
@click.option("--group", "into", type=GROUP, help="Another group of yours; '' for none.")
@after_option
@new_begin_option
def command(
    cores: int | Range | None, mem: int | None, io: tuple[Rates, ...],
    gres: tuple[tuple[Gres, ...], ...],
    time: int | _More | None, pool: str | None, priority: int | None, rename: str | None,
    into: str | None,
    after: tuple[tuple[int, str], ...] | None, begin: int | None, **chosen: Any,
) -> Result:  # fmt: skip
    """Change waiting jobs; of running ones the upper ends of ranges and the time limit, which only
    administrators lengthen. `--after ''` takes conditions away.
    `--group NAME%N` alone is for all waiting jobs of that group."""
    given: dict[str, object] = {
        "demand": demand_fields(cores, mem, io, gres) or None,
        "time_limit_s": time,
        "pool": pool,
        "priority": priority,
        "name": rename,
        "after": dependencies(after),
        "begin_s": begin,
        "group": into,
    }
    asked = {key: value for key, value in given.items() if value is not None}
    if pool == "":
        raise click.UsageError("-p '' names no pool; drf shares lists the pools")
    if "%" in (chosen.get("group") or ""):
        raise click.UsageError(
            f"-g selects the jobs of a group; write --group {chosen['group']} for the limit"
        )
    if not asked:
        hint = "; -n selects jobs, --rename changes a name" if chosen.get("name") else ""
        if chosen.get("group"):
            hint = "; -g selects the jobs of a group, --group NAME%N puts jobs into one"
        options = "-c, -m, --io, --gres, -t, -p, --priority, ..."
        raise click.UsageError(f"say what to change: {options}{hint}")
    if chosen["ids"] and chosen["name"] is not None and rename is None:
        raise click.UsageError("-n selects jobs and cannot narrow ids; --rename changes a name")
    if into and list(asked) == ["group"] and not chosen["ids"] and not filters_in(chosen):
        # The limit belongs to each job that names it, and running jobs keep theirs.
        chosen.update(group=into.partition("%")[0], states=output.WAITING)
    refine = None if time is None else _NewLimit(time, chosen["yes"])
    tell = None if time is None else _tell_ends
    return act("set", "changed", asked=asked, refine=refine, tell=tell, **chosen)
