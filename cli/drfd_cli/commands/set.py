"""drf set: change the demand and the start conditions of jobs."""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from drfd.client.connection import Connection
from drfd.client.option_values import fields_of
from drfd.common.errors import DrfdError, Refused
from drfd.common.units import parse_duration, show_duration
from drfd.protocol.job_options import OPTIONS
from drfd_cli import output
from drfd_cli.commands.job_actions import act, selecting_by
from drfd_cli.options import (
    F,
    KnowingOthers,
    all_of,
    click_option,
    filters_in,
    parse_limit,
    parse_new_start,
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


#: Options with other names here, because those of `drf submit` select jobs.
_NAMES = {"name": ("--rename", "rename"), "group": ("--group", "into")}
_READERS = {"limit": _parse_limit, "begin": parse_new_start}


def _changing(function: F) -> F:
    """Add the options of a job that can be changed."""
    options = (
        click_option(
            each, *_NAMES.get(each.key, ()), about=each.in_set, read=_READERS.get(each.kind)
        )
        for each in OPTIONS
        if each.in_set
    )
    return all_of(*options)(function)


def changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that these parameters change."""
    params = {each.key: _NAMES.get(each.key, (each.key,))[-1] for each in OPTIONS if each.in_set}
    return fields_of({key: given[param] for key, param in params.items()})


@click.command("set", cls=_SetCommand)
@selecting_by("-g", "--in-group")
@_changing
def command(**given: Any) -> Result:
    """Change waiting jobs; of running ones the upper ends of ranges and the time limit, which only
    administrators lengthen. `--after ''` takes conditions away.
    `--group NAME%N` alone is for all waiting jobs of that group."""
    asked, time = changes(given), given["time"]
    own = {_NAMES.get(each.key, (each.key,))[-1] for each in OPTIONS if each.in_set}
    chosen = {name: value for name, value in given.items() if name not in own}
    if given["pool"] == "":
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
    if chosen["ids"] and chosen["name"] is not None and "name" not in asked:
        raise click.UsageError("-n selects jobs and cannot narrow ids; --rename changes a name")
    if asked.get("group") and list(asked) == ["group"] and not chosen["ids"] and (
        not filters_in(chosen)
    ):  # fmt: skip
        # The limit belongs to each job that names it, and running jobs keep theirs.
        chosen.update(group=asked["group"].partition("%")[0], states=output.WAITING)
    refine = None if time is None else _NewLimit(time, chosen["yes"])
    tell = None if time is None else _tell_ends
    return act("set", "changed", asked=asked, refine=refine, tell=tell, **chosen)
