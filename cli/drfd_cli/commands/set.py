"""drf set: change the demand and the start conditions of jobs. drf edit: submit one job anew, with
changes made in an editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd.client.option_values import words_of
from drfd.client.words import Ref
from drfd.common.errors import DrfdError, Refused, Unavailable
from drfd.common.units import parse_duration, show_duration
from drfd.protocol.job_options import OPTIONS, Option
from drfd_cli import output
from drfd_cli.commands.job_actions import act, selecting_by
from drfd_cli.commands.retry import PARTS, Edits, Resubmission, changes_of
from drfd_cli.commands.wait import job_line
from drfd_cli.options import KnowingOthers, all_of, click_option, connect, filters_in, job_id
from drfd_cli.output import Result
from drfd_cli.submission.job_line import WrongWords, directives

if TYPE_CHECKING:
    from drfd.payload.pack import Submission
    from drfd.protocol.replies import JobView, SubmissionReply


#: A running job that would be stopped within so many seconds is asked about.
_SOON_S = 60
#: Such jobs that are named one by one.
_NAMED = 5


def new_limit(
    seconds: int, change: str, yes: bool, client: Connection, select: Mapping[str, object]
) -> dict[str, object]:
    """Return the field of a request for a time limit of so many seconds, or for one that is so much
    longer, or shorter, if the user has written a `change`, such as `+10m`. Unless `yes`, ask about
    running jobs that it would stop at once. Raises Refused."""
    if seconds == 0 and not change:
        # No limit stops nothing.
        return {"time_limit_s": 0}
    jobs = [
        job
        for job in client.jobs("status", select=select)
        # The command line of a job is null for users who may not change the job.
        if job["state"] in output.LIVE and job["argv"] is not None
    ]
    limit_s, now_s = _changed(jobs, seconds, change) if change else seconds, clock.time()
    # The wall time of a suspended job stands still.
    runs = {
        output.label(job): output.run_s(job, now_s) for job in jobs if job["state"] == "RUNNING"
    }
    soon = {label: run_s for label, run_s in runs.items() if run_s > limit_s - _SOON_S}
    if soon:
        job, have, them, upto = (
            ("jobs", "have", "them", "up to ") if len(soon) > 1 else ("job", "has", "it", "")
        )
        fact = (
            f"{job} {output.listed([*soon], _NAMED)} {have} run for "
            f"{upto}{show_duration(max(1, int(max(soon.values()))))}: "
            f"a limit of {show_duration(limit_s)}"
        )
        if yes or not sys.stdin.isatty():
            output.say(f"{fact} stops {them} within a minute")
        else:
            output.require(f"{fact} would stop {them} within a minute; set it?")
    return {"time_limit_s": limit_s}


def _changed(jobs: list[JobView], seconds: int, change: str) -> int:
    """Return the limit of these jobs with a change. Raises Refused unless they have one limit."""
    limits = {job["time_limit_s"] or 0 for job in jobs}
    if not limits:
        raise Refused("no-such-job", f"no live job of yours to give {change}")
    if 0 in limits:
        label = next(output.label(job) for job in jobs if not job["time_limit_s"])
        text = f"job {label} has no time limit; -t {change} changes one that is there"
        raise Refused("no-limit", text)
    if len(limits) > 1:
        shown = ", ".join(show_duration(each) for each in sorted(limits)[:_NAMED])
        hint = f"choose jobs with one, or give a time without {change[0]}"
        raise Refused("bad-value", f"these jobs have different time limits ({shown})", hint=hint)
    (before,) = limits
    if before + seconds < 1:
        text = f"nothing would be left of {show_duration(before)}; nothing changed"
        raise Refused("bad-value", text)
    return before + seconds


def _tell_ends(client: Connection, refs: Sequence[int | str]) -> None:
    """Print when running jobs end, unless they are many."""
    for ref in refs if len(refs) <= _NAMED else ():
        try:
            found = client.request("show", id=ref)
        except DrfdError:
            # The change is made; the job may have ended since.
            return
        if "job" in found and found["job"]["state"] == "RUNNING":
            output.say(job_line(found["job"], clock.time()))


#: The options that change jobs, by click's names. Some have other names here, because those of
#: `drf submit` select jobs.
_NAMES = {"name": ("--rename", "rename"), "group": ("--group", "into")}
_CHANGING = {_NAMES.get(each.key, (each.key,))[-1]: each for each in OPTIONS if each.in_set}


@click.command("set", cls=KnowingOthers)
@selecting_by("-g", "--in-group")
@all_of(*(
    click_option(each, *_NAMES.get(each.key, ()), about=each.in_set) for each in _CHANGING.values()
))  # fmt: skip
def command(**given: Any) -> Result:
    """Change waiting jobs, and the time limit of running ones, which only administrators lengthen.
    `--after ''` removes the conditions.
    `--group NAME%N` without jobs changes all waiting jobs of that group."""
    texts = {option: given.pop(name) for name, option in _CHANGING.items()}
    chosen, asked, time = given, *_changes(texts)
    if asked.get("pool") == "":
        raise click.UsageError("-p '' names no pool; drf shares lists the pools")
    if "%" in (chosen["group"] or ""):
        raise click.UsageError(
            f"-g selects the jobs of a group; write --group {chosen['group']} for the limit"
        )
    if not asked and time is None:
        hint = "; -n selects jobs, --rename changes a name" if chosen["name"] else ""
        if chosen["group"]:
            hint = "; -g selects the jobs of a group, --group NAME%N puts jobs into one"
        options = "-c, -m, --io, --gres, -t, -p, --priority, ..."
        raise click.UsageError(f"say what to change: {options}{hint}")
    if chosen["ids"] and chosen["name"] is not None and "name" not in asked:
        raise click.UsageError("-n selects jobs and cannot narrow ids; --rename changes a name")
    has_jobs = chosen["ids"] or filters_in(chosen)
    if asked.get("group") and (list(asked), time) == (["group"], None) and not has_jobs:
        # The limit belongs to each job that names it, and running jobs keep theirs.
        chosen.update(group=asked["group"].partition("%")[0], states=output.WAITING)
    refine = None if time is None else partial(new_limit, *time, chosen["yes"])
    tell = None if time is None else _tell_ends
    return act("set", "changed", asked=asked, refine=refine, tell=tell, **chosen)


def _changes(
    texts: Mapping[Option, str | Sequence[str] | None],
) -> tuple[dict[str, Any], tuple[int, str] | None]:
    """Return the fields of a request that these texts of options change, and the time limit apart,
    with its text if it is a change of what the jobs have. Raises UsageError."""
    words: list[str] = []
    time: tuple[int, str] | None = None
    asked: dict[str, Any] = {}
    try:
        for option, given in texts.items():
            for text in [given] if isinstance(given, str) else given or ():
                sign, word = text.strip()[:1], text.strip()[1:]
                if option.key == "time" and sign in ("+", "-"):
                    time = int(f"{sign}{parse_duration(word)}"), text.strip()
                elif option.key == "begin" and not sign:
                    asked["begin_s"] = 0
                else:
                    words.append(f"{option.flag}={text}")
        found = changes_of(words, connect())
    except (Refused, WrongWords) as error:
        raise click.UsageError(str(error)) from None
    for remark in found.remarks:
        output.say(remark)
    asked |= found.fields
    limit_s = asked.pop("time_limit_s", None)
    return asked, time if limit_s is None else (limit_s, "")


# -- drf edit ----------------------------------------------------------------------------------


_HEAD = """\
# Job {label} waits. Change its options and its command, save, and leave the editor: the changed
# job is submitted with a new id, and job {label} is cancelled. If nothing is changed, nothing is
# done. The options are those of drf submit.
"""
_ENDED_HEAD = """\
# Job {label} has ended. Change its options and its command, save, and leave the editor: it is
# submitted again. If nothing is changed, nothing is done. The options are those of drf submit.
"""
_SCRIPT = "# The text of the script stays as it was submitted.\n"
_MARK = "#DRF "
#: Conditions of the start that a job in place of another one has, too.
_CONDITIONS = ("after", "begin_s", "held")


@click.command("edit")
@job_id
def edit(job_id: Ref) -> None:
    """Change the command and the options of a job that waits or has ended in $VISUAL or $EDITOR.

    The changed job is submitted anew, with its environment and script: it gets a new id and goes
    behind your other jobs. The waiting one is cancelled. drf set changes a job that keeps its id
    and its place.
    """
    client = connect()
    reply = client.submission(job_id)
    _refuse_unfit(reply)
    text = _written(reply)
    before = _read(text, client)
    found = _edited(text, reply["label"], client)
    if found is None or found == before:
        then = "stays as it is" if reply["live"] else "is not submitted; drf retry does that"
        output.say(f"nothing was changed; job {reply['label']} {then}")
        return
    for remark in found.remarks:
        output.say(remark)
    # What was told is replaced by what is told now; of parts, those without a line stay.
    fields = {"demand": {}, **found.fields}
    some = PARTS & fields.keys() & before.fields.keys()
    fields |= {name: {**dict.fromkeys(before.fields[name]), **fields[name]} for name in some}
    changes = replace(found, fields=fields, gone=frozenset(before.fields) - some)
    if reply["live"]:
        _replace(client, reply, changes)
        return
    call = Resubmission(client, changes, failed=False)
    call.submit([job_id])
    for error in call.refused:
        raise error
    for again in call.done:
        output.tell(f"submitted job {again.reply['id']}, a retry of {again.of} with these changes")


def _refuse_unfit(reply: SubmissionReply) -> None:
    """Raise Refused for what is not one job that waits or has ended, and for a waiting one whose
    place no other job can take."""
    label, fields = reply["label"], reply["submission"]
    if "array" in fields:
        raise Refused(
            "not-editable", f"{label} is of an array, whose command cannot be changed",
            hint=f"drf set changes its demand; or drf cancel {label}, and submit it anew"
            if reply["live"] else f"drf retry {label} --with OPTIONS submits it again",
        )  # fmt: skip
    if reply["live"] and reply["state"] not in output.WAITING:
        raise Refused(
            "not-waiting",
            f"job {label} is {reply['state']}; only a job that waits or has ended can be edited",
        )
    if "attach" in fields:
        raise Refused("not-editable", f"job {label} is attached to a terminal (drf run)")
    sets = "drf set changes its demand and most of its options"
    if reply.get("awaited"):
        hint = f"{sets}; drf set --after '' frees the jobs that wait for it"
        raise Refused("awaited", f"other jobs wait for job {label}", hint=hint)
    if "held_by" in reply:
        by = output.clean(reply["held_by"])
        hint = f"{sets}; {by} can release it"
        raise Refused("held-by-admin", f"{by} holds job {label}", hint=hint)


def _written(reply: SubmissionReply) -> str:
    fields: Submission = {**reply["submission"], **_conditions(reply)}
    # What needs several lines stays as it is.
    words = [each for each in map(shlex.join, words_of(fields)) if each.isprintable()]
    lines = "".join(f"{_MARK}{each}\n" for each in words)
    about = _SCRIPT if "script" in fields else ""
    head = (_HEAD if reply["live"] else _ENDED_HEAD).format(label=reply["label"])
    return f"{head}{about}{lines}\n{shlex.join(fields['argv'])}\n"


def _conditions(reply: SubmissionReply) -> dict[str, object]:
    conditions = reply.get("conditions", {}) if reply["live"] else {}
    # These are not signed: nothing else that the daemon says may replace what is.
    return {name: conditions[name] for name in _CONDITIONS if name in conditions}


def _read(text: str, client: Connection) -> Edits:
    """Read an edited file: the options of its lines as changes, and its command as the words.
    Raises Refused with the line of an error."""
    words = directives(text, "", lambda options: changes_of(options, client))
    command: list[str] = []
    first = 0
    for number, line in enumerate(text.split("\n"), 1):
        # Within the quotes of the command a line is text, whatever it begins with.
        if not line.startswith("#") or _ends_in_quotes(command):
            first = first or (number if line.strip() else 0)
            command.append(line)
    try:
        argv = shlex.split("\n".join(command))
    except ValueError as error:
        raise Refused("bad-value", f"line {first}: {error} in the command") from None
    if not argv:
        raise Refused("no-command", "there is no command")
    try:
        return replace(changes_of(words, client), words=tuple(argv))
    except WrongWords as error:
        raise Refused("bad-value", str(error)) from None


def _ends_in_quotes(command: list[str]) -> bool:
    try:
        shlex.split("\n".join(command))
    except ValueError:
        return True
    return False


def _edited(text: str, label: str, client: Connection) -> Edits | None:
    """Have the user edit the text until it can be read. Returns None if it is unchanged."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="drf-edit-") as place:
        file = Path(place, f"job-{label}.sh")
        file.write_text(text, errors="surrogateescape")
        while True:
            try:
                # As other programs do it: the variable may hold options, which a shell splits.
                done = subprocess.run(["sh", "-c", f'{editor} "$1"', "sh", str(file)], check=False)  # noqa: S607  # sh of the PATH
            except OSError as error:
                raise Refused("no-editor", f"cannot start sh: {error.strerror}") from None
            if done.returncode != 0:
                raise Refused(
                    "no-editor",
                    f"the editor {editor} failed; job {label} stays as it is",
                    hint="VISUAL or EDITOR names another one",
                )
            now = file.read_text(errors="surrogateescape")
            if now == text:
                return None
            try:
                return _read(now, client)
            except Refused as error:
                if not sys.stdin.isatty():
                    raise Refused(error.code, f"{error.text}; job {label} stays as it is") from None
                output.say(str(error))
                if not output.confirm("edit again?", default=True):
                    raise


def _raise_failure(reply: Any) -> None:
    for failure in reply["failed"]:
        error = failure["error"]
        raise Refused(error["code"], error["text"], hint=error["hint"])


def _replace(client: Connection, reply: SubmissionReply, changes: Edits) -> None:
    """Submit a job in place of a waiting one. Raises Refused, and then leaves it as it was, or
    Unavailable, which says what may have become of it."""
    label, conditions = reply["label"], reply.get("conditions", {})
    fields = changes.applied({**reply["submission"], **_conditions(reply)})
    select, was_held = {"ids": [int(label)]}, conditions.get("held", False)
    release = f"drf release {label} lets it start"
    if not was_held:
        # A held job cannot start, so it never runs beside the new one.
        with _broken(f"nothing was submitted, and job {label} may be held", release):
            _raise_failure(client.request("hold", select=select))
    unsure = f"job {label} is held, and the changed one may be queued"
    hint = f"if drf status shows that, drf cancel {label}; else " + (
        f"drf edit {label} again" if was_held else release
    )
    try:
        with _broken(unsure, hint):
            new = client.submit(**fields)
    except Unavailable:
        raise
    except DrfdError as error:
        if not was_held:
            with _broken(f"{error.text}; job {label} is held", release):
                client.request("release", select=select)
        raise
    # Whatever becomes of the old job, which is held, the new one is there.
    output.tell(f"submitted job {new['id']} in place of job {label}")
    with _broken(f"job {label} is held, unless it is cancelled", f"drf cancel {label}"):
        _raise_failure(client.request("cancel", select=select))


@contextmanager
def _broken(state: str, hint: str) -> Iterator[None]:
    """Add to the error of a lost connection what it leaves behind, and what to do then."""
    try:
        yield
    except Unavailable as error:
        raise Unavailable(error.code, f"{error.text}: {state}", hint=hint) from None
