"""The verbs that act on selected jobs: cancel, hold, release, suspend, resume, signal; and on the
daemon: drain, undrain, shutdown, reload."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd.common.errors import BY_KIND, NotPermitted, Refused, Unavailable
from drfd.common.indices import show_numbers
from drfd.common.units import clock_time
from drfd_cli import output, which_job
from drfd_cli.options import (
    SIGNAL,
    all_of,
    connect,
    filter_options,
    job_ids,
    prints_result,
    refuse_ids_with_filters,
    selection,
)
from drfd_cli.output import Result

if TYPE_CHECKING:
    from drfd.protocol.replies import BatchReply, Failure, ShutdownReply, StatusReply


#: On a terminal, more jobs than this need a confirmation; so do jobs of other users, if they were
#: not named by their ids.
_MANY = 5
#: If more refusals than this have the same code, they are printed as one line.
_FEW = 5
#: What is said of jobs that a selection has left out because of their state, by the code of the
#: refusals.
_SKIPPED = {
    "not-running": "not running", "not-waiting": "not waiting", "not-held": "not held",
    "not-suspended": "not suspended",
}  # fmt: skip
#: The text of such a line, by the code of the refusals.
_ALIKE = {"ended": "jobs had ended already", "no-such-job": "jobs are not there"}


def selecting_by(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the arguments and options that select jobs, and --json. `names`
    are those of the option that selects a group."""
    return all_of(
        job_ids(required=False),
        filter_options(states="Jobs in this state.", group=names),
        click.option(
            "-a",
            "--all",
            "everything",
            is_flag=True,
            help="All your jobs; for administrators, all jobs.",
        ),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
        prints_result(),
    )


selecting = selecting_by("-g", "--group")


def act(
    verb: str,
    done_word: str,
    *,
    yes: bool,
    asked: Mapping[str, object] | None = None,
    refine: Callable[[Connection, Mapping[str, object]], Mapping[str, object]] | None = None,
    tell: Callable[[Connection, Sequence[int | str]], None] | None = None,
    **chosen: Any,
) -> Result:
    """Request `verb` for the chosen jobs, with `asked` as further fields, and return the result.
    `refine` returns more of these for a selection, or raises to keep it from being changed. `tell`
    prints more of the jobs for which it was done."""
    refuse_ids_with_filters(chosen)
    client = connect()
    is_filtered, select = not chosen["ids"], selection(chosen)
    if not any(select.values()):
        found = which_job.latest_in(connect, output.LIVE, "waits or runs")
        if found is None:
            raise click.UsageError(
                "name jobs by their ids, or choose with --user, --name, --group, --state, --all"
            )
        if not yes:
            # An empty variable, as in `drf cancel $IDS`, must not do it.
            output.require(f"{verb} job {found}?")
        select["ids"], is_filtered = [found], False
    if not yes and sys.stdin.isatty():
        count, others = _count(client, select) if is_filtered else (len(select["ids"]), 0)
        if count > _MANY or others:
            of_others = f", {others} of other users" if others else ""
            output.require(f"{verb} {output.counted(count, 'job')}{of_others}?")
    asked = {**(asked or {}), **({} if refine is None else refine(client, select))}
    reply = client.request(verb, select=select, **asked)
    return Result(
        show=lambda: _show(client, reply, done_word, tell),
        view=lambda: reply,
        finish=lambda: _finish(reply, done_word, is_filtered=is_filtered),
    )


def _show(
    client: Connection,
    reply: BatchReply,
    done_word: str,
    tell: Callable[[Connection, Sequence[int | str]], None] | None,
) -> None:
    labels: list[Any] = reply.get("labels") or reply["done"]
    kept = reply.get("kept", {})
    for label in _summed(labels):
        but = f", but not {label}_[{kept[label]}] (started)" if label in kept else ""
        output.tell(f"{done_word} job {label}{but}")
    if not labels and not reply["failed"]:
        output.say("no jobs")
    if "ended_at" in reply:
        output.say(f"without drf resume it is ended at {clock_time(reply['ended_at'])}")
    if tell is not None:
        tell(client, labels)


def _finish(reply: BatchReply, done_word: str, *, is_filtered: bool) -> int:
    """Print the refusals, and return the exit code. Who has named no job by its id means those that
    are in a fit state: the others are only counted."""
    failed = reply["failed"]
    skipped = Counter(_SKIPPED.get(each["error"]["code"]) for each in failed if is_filtered)
    del skipped[None]
    if skipped:
        failed = [each for each in failed if each["error"]["code"] not in _SKIPPED]
        counts = [f"{count} {what}" for what, count in skipped.items()]
        output.say(", ".join([f"{len(reply['done'])} {done_word}", *counts]))
    for line in refusals(failed):
        output.say(line)
    if "unnamed" in reply:
        output.say(f"{reply['unnamed']} more of the jobs that you have named were refused, too")
    away = output.launcher_away(reply)
    if away is not None:
        output.say(f"{away}; the request is stored, and carried out when it is back")
    if skipped and not failed:
        return 0 if reply["done"] else Refused.exit_code
    kinds = [BY_KIND.get(each["error"]["kind"], Refused) for each in failed]
    if any(issubclass(kind, NotPermitted) for kind in kinds):
        return NotPermitted.exit_code
    return Refused.exit_code if kinds else 0


def refusals(failed: list[Failure]) -> list[str]:
    """Return a line for each refused job, or one line for more than `_FEW` with the same code."""
    alike: dict[str, list[Failure]] = {}
    for failure in failed:
        alike.setdefault(failure["error"]["code"], []).append(failure)
    lines: list[str] = []
    for code, some in alike.items():
        if len(some) <= _FEW:
            lines += map(_refusal, some)
            continue
        ids = ",".join(_ranges(failure["id"] for failure in some))
        what = _ALIKE.get(code, f"jobs refused ({code}; the first: {_refusal(some[0])})")
        lines.append(output.clean(f"{len(some)} {what}: {ids}", 1000))
    return lines


def _refusal(failure: Failure) -> str:
    error = failure["error"]
    hint = f" ({error['hint']})" if error["hint"] else ""
    return output.clean(f"{error['text']}{hint}", 1000)


def _ranges(refs: Iterable[int | str]) -> list[str]:
    """Return all ids as one text of ranges, and a label for the tasks of each array."""
    numbers: list[int] = []
    labels: list[str] = []
    for ref in refs:
        word = str(ref)
        if word.isdecimal():
            numbers.append(int(word))
        else:
            labels.append(word)
    return [show_numbers(numbers)] * bool(numbers) + _summed(labels)


def _summed(labels: list[Any]) -> list[str]:
    """Replace the tasks of an array by one label such as `42_[0-49]`, in place of the first."""
    tasks: dict[str, list[int]] = {}
    found: dict[str, str] = {}
    for label in map(str, labels):
        array, _, index = label.partition("_")
        if index.isdecimal():
            tasks.setdefault(array, []).append(int(index))
            found[f"{array}_"] = label
        else:
            found[label] = label
    for array, indices in tasks.items():
        if len(indices) > 1:
            found[f"{array}_"] = f"{array}_[{show_numbers(indices)}]"
    return list(found.values())


def _count(client: Connection, select: Mapping[str, object]) -> tuple[int, int]:
    """Return how many jobs the user may change, and how many of these are of other users."""
    own = client.request("hello")["user"]
    count = others = 0
    for job in client.jobs("status", select=select):
        # The command line of a job is null for users who may not change the job.
        if job["argv"] is not None:
            count += job.get("tasks", 1)
            others += job.get("tasks", 1) if job["user"] != own else 0
    return count, others


def _action(verb: str, done_word: str, text: str) -> click.Command:
    """Return the command of a verb that needs nothing but the jobs, with `text` as its help."""

    @click.command(verb, help=text)
    @selecting
    def command(**chosen: Any) -> Result:
        return act(verb, done_word, **chosen)

    return command


cancel = _action(
    "cancel",
    "cancelled",
    "Cancel jobs: waiting ones end at once, running ones are stopped (TERM, grace time, KILL).",
)
hold = _action(
    "hold",
    "held",
    "Hold waiting jobs: they keep their place and do not start before `drf release`.",
)
release = _action("release", "released", "Release held jobs.")
suspend = _action(
    "suspend",
    "suspended",
    "Freeze running jobs: they keep their memory and give back cores and bandwidth until "
    "`drf resume`. Their time limits stand still. `drf cancel` kills them without a grace time.",
)
resume = _action(
    "resume", "resuming", "Continue suspended jobs, when their cores and bandwidth are free again."
)


@click.command("signal")
@click.argument("number", metavar="SIGNAL", type=SIGNAL)
@selecting
def signal(number: int, **chosen: Any) -> Result:
    """Send a signal (USR1, HUP, 10, ...) to every process of running jobs, which may handle it or
    not. `drf cancel` ends a job."""
    return act("signal", "signalled", asked={"signal": number}, **chosen)


# -- the daemon --------------------------------------------------------------------------------


#: Seconds that a restart of the launcher may take; after them it is reported as away.
_PATIENCE_S = 5.0
#: Seconds between two checks whether the launcher is there.
LOOK_S = 2.0


#: Of `drain` and `undrain`.
node_option = click.option("--node", metavar="NAME", help="Only this machine.")


@click.command("drain")
@click.option(
    "--reason", metavar="TEXT", help="The reason, which everybody sees in status, why and top."
)
@node_option
def drain(reason: str | None, node: str | None) -> None:
    """Start no more jobs until `drf undrain`. Running jobs continue, new ones are queued. For
    administrators.

    Repeat it with another --reason to change the reason; '' removes it.
    """
    said = {} if reason is None else {"reason": reason}
    connect().request("drain", on=True, **said, **_about(node))
    if node is None:
        output.tell("draining: no job starts until drf undrain")
    else:
        output.tell(f"draining {node}: no job starts there until drf undrain --node {node}")


@click.command("undrain")
@node_option
def undrain(node: str | None) -> None:
    """Start jobs again. For administrators.

    A node that was drained with --node needs --node here, too.
    """
    reply = connect().request("drain", on=False, **_about(node))
    was_undrained = reply.get("was_undrained")
    if reply["draining"]:
        output.tell(f"{node} is not drained by itself; no job starts until drf undrain")
    elif node is None:
        output.tell("nothing was drained" if was_undrained else "jobs start again")
    else:
        output.tell(f"{node} was not drained" if was_undrained else f"jobs start again on {node}")
    left = reply.get("nodes")
    if node is None and left:
        output.say(f"drained by themselves: {', '.join(left)} (drf undrain --node NAME)")


def _about(node: str | None) -> dict[str, str]:
    return {} if node is None else {"node": node}


@click.command("reload")
def reload() -> None:
    """Read the configuration again: capacity, pools, limits, defaults. Running jobs keep what they
    have. For administrators."""
    for warning in connect().request("reload")["warnings"]:
        output.say(f"warning: {warning}")
    output.tell("reloaded")


@click.command("shutdown")
@click.option(
    "--kill-jobs",
    is_flag=True,
    help="First drain, then stop all running jobs (TERM, grace time, KILL). The next daemon "
    "starts none before `drf undrain`.",
)
def shutdown(kill_jobs: bool) -> None:
    """End the daemon. Running jobs go on and the next daemon takes them over; queued ones wait for
    it. For administrators."""
    client = connect(may_start=False)
    reply = client.request("shutdown", kill_jobs=kill_jobs)
    running = reply["running"]
    jobs = output.counted(len(running), "running job")
    if kill_jobs:
        output.tell(f"stopping {jobs}")
        if running:
            with closing(client.another()) as asking:
                _await_end_with_launcher(client, asking, reply)
    client.await_end()
    if kill_jobs:
        output.tell("drfd has ended; when it is started again, no job starts until drf undrain")
    else:
        output.tell(f"drfd has ended; the next one takes over {jobs}")


def _await_end_with_launcher(
    client: Connection, asking: Connection, reply: ShutdownReply | StatusReply
) -> None:
    """Wait until the daemon hangs up. Raises Unavailable if the launcher, which stops the jobs, is
    away: the daemon keeps the request, so the client need not wait."""
    while True:
        away = output.launcher_away(reply)
        if away is not None and (reply.get("launcher_away_s") or 0.0) > _PATIENCE_S:
            raise Unavailable(
                "launcher-away",
                away,
                hint="the request is kept: the jobs are stopped when the launcher is back, "
                "and then drfd ends",
            )
        if client.await_end(LOOK_S):
            return
        try:
            reply = asking.request("status", limit=1)
        except Unavailable:
            # The daemon has just ended.
            return
