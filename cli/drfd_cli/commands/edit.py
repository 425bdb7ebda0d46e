"""drf edit: change the command and the options of a waiting job in the user's editor, or of an
ended one, which is submitted again with them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd.client.option_values import words_of
from drfd.client.words import Ref
from drfd.common.errors import DrfdError, Refused
from drfd.protocol.job_options import OPTIONS
from drfd_cli import output
from drfd_cli.commands.retry import Changes, read_changes, submit_again
from drfd_cli.options import connect, job_id

if TYPE_CHECKING:
    from drfd.protocol.replies import SubmissionReply

_HEAD = """\
# Job {label} waits. Change its options and its command, save, and leave the editor.
# If nothing is changed, nothing is done. The options are those of drf submit.
"""
_ENDED_HEAD = """\
# Job {label} has ended. Change its options and its command, save, and leave the editor: it is
# submitted again. If nothing is changed, nothing is done. The options are those of drf submit.
"""
_SCRIPT = "# The text of the script stays as it was submitted.\n"
_AWAITED = """\
# Other jobs wait for this one, so it keeps its id: its command stays as it is, and of its options
# only those of drf set can be changed.
"""
_HELD = """\
# {by} holds this job, so its command stays as it is, and of its options only those of drf set can
# be changed.
"""
_MARK = "#DRF "
#: Conditions of the start that a job in place of another one has, too.
_CONDITIONS = ("after", "begin_s", "held")
#: Fields that can be changed while the job keeps its id, and the values that remove some of them.
_IN_PLACE = {each.field for each in OPTIONS if each.in_set}
_NONE: dict[str, object] = {"group": "", "after": [], "begin_s": 0, "priority": 0}


@dataclass(frozen=True, slots=True)
class _Text:
    """What a file says: its option words, the changes that they make, and the command."""

    changes: Changes
    argv: list[str]


@click.command("edit")
@job_id
def command(job_id: Ref) -> None:
    """Change the command and the options of a waiting job in $VISUAL or $EDITOR.

    What drf set can change is changed in place. With another command or other options the job is
    submitted anew, with its environment and script, and the old one is cancelled: it gets a new id
    and goes behind your other jobs. A job that has ended is submitted again, as by drf retry.
    """
    client = connect()
    reply = client.submission(job_id)
    _refuse_unfit(reply)
    text = _written(reply)
    before = _read(text)
    found = _edited(text, reply["label"])
    if found is None or found == before:
        then = "stays as it is" if reply["live"] else "is not submitted; drf retry does that"
        output.say(f"nothing was changed; job {reply['label']} {then}")
        return
    changed = {
        name: value
        for name, value in found.changes.fields.items()
        if before.changes.fields.get(name) != value
    }
    if "demand" in changed or "demand" not in found.changes.fields:
        changed["demand"] = _demand(before.changes.fields["demand"], found.changes.fields)
    gone = set(before.changes.fields) - set(found.changes.fields)
    for name in changed.keys() & before.changes.fields.keys() - {"demand"}:
        if isinstance(changed[name], dict):
            changed[name] = {**dict.fromkeys(before.changes.fields[name]), **changed[name]}
    if not reply["live"]:
        export, words = found.changes.export, tuple(found.argv)
        _retry(client, job_id, Changes(changed, export, frozenset(gone), words))
        return
    is_in_place = set(changed) <= _IN_PLACE and gone <= set(_NONE)
    if found.argv == before.argv and not found.changes.export and is_in_place:
        _set(client, job_id, {**changed, **{name: _NONE[name] for name in gone}})
    else:
        changes = Changes(changed, found.changes.export)
        _replace(client, reply, changes, gone, found.argv)


def _demand(before: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed demand. Lines that were removed ask for nothing of what they named.
    Raises Refused without cores or memory, of which each job has some."""
    found = dict(fields.get("demand", {}))
    for key, option in (("cores_milli", "-c CORES"), ("memory_bytes", "-m SIZE")):
        if key not in found:
            raise Refused(
                "bad-value", f"there is no line {_MARK}{option} any more; nothing changed"
            )
    if "read_bps" in before and "read_bps" not in found and "disks" not in found:
        found |= {"read_bps": 0, "write_bps": 0}
    for name in set(before.get("gres", {})) - set(found.get("gres", {})):
        found["gres"] = {**found.get("gres", {}), name: 0}
    for name in set(before.get("gres_memory", {})) - set(found.get("gres_memory", {})):
        found["gres_memory"] = {**found.get("gres_memory", {}), name: 0}
    for name in set(before.get("disks", {})) - set(found.get("disks", {})):
        found["disks"] = {**found.get("disks", {}), name: {"read_bps": 0, "write_bps": 0}}
    return found


def _refuse_unfit(reply: SubmissionReply) -> None:
    """Raise Refused for what is not one job that waits or has ended."""
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


def _written(reply: SubmissionReply) -> str:
    """Return the file to edit."""
    fields: dict[str, Any] = {**reply["submission"], **_conditions(reply)}
    # What needs several lines stays as it is.
    words = [each for each in map(shlex.join, words_of(fields)) if each.isprintable()]
    lines = "".join(f"{_MARK}{each}\n" for each in words)
    about = _SCRIPT if "script" in fields else ""
    about += _AWAITED if reply.get("awaited") else ""
    if "held_by" in reply:
        about += _HELD.format(by=output.clean(reply["held_by"]))
    head = (_HEAD if reply["live"] else _ENDED_HEAD).format(label=reply["label"])
    return f"{head}{about}{lines}\n{shlex.join(fields['argv'])}\n"


def _conditions(reply: SubmissionReply) -> dict[str, Any]:
    """Return the conditions of the start of a job that waits."""
    told: Mapping[str, Any] = reply.get("conditions", {}) if reply["live"] else {}
    # These are not signed: nothing else that the daemon says may replace what is.
    return {name: told[name] for name in _CONDITIONS if name in told}


def _read(text: str) -> _Text:
    """Read an edited file. Raises Refused with the line of an error."""
    words: list[str] = []
    command: list[str] = []
    first = 0
    is_quoted = False
    for number, line in enumerate(text.split("\n"), 1):
        if is_quoted:
            # Within the quotes of the command a line is text, whatever it begins with.
            command.append(line)
            is_quoted = _ends_in_quotes(command)
        elif line.startswith(_MARK.rstrip()):
            try:
                options = shlex.split(line[len(_MARK) - 1 :], comments=True)
                read_changes(options)
            except (ValueError, click.ClickException) as error:
                what = error.format_message() if isinstance(error, click.ClickException) else error
                raise Refused("bad-value", f"line {number}: {what}") from None
            words += options
        elif line.strip() and not line.startswith("#"):
            first = first or number
            command.append(line)
            is_quoted = _ends_in_quotes(command)
    try:
        argv = shlex.split("\n".join(command))
    except ValueError as error:
        raise Refused("bad-value", f"line {first}: {error} in the command") from None
    if not argv:
        raise Refused("no-command", "there is no command")
    try:
        return _Text(read_changes(words), argv)
    except click.ClickException as error:
        raise Refused("bad-value", error.format_message()) from None


def _ends_in_quotes(command: list[str]) -> bool:
    """Whether a quotation is still open after these lines."""
    try:
        shlex.split("\n".join(command))
    except ValueError:
        return True
    return False


def _edited(text: str, label: str) -> _Text | None:
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
                    "no-editor", f"the editor {editor} failed; job {label} stays as it is",
                    hint="VISUAL or EDITOR names another one",
                )  # fmt: skip
            now = file.read_text(errors="surrogateescape")
            if now == text:
                return None
            try:
                return _read(now)
            except Refused as error:
                if not sys.stdin.isatty():
                    raise Refused(error.code, f"{error.text}; job {label} stays as it is") from None
                output.say(str(error))
                if not output.confirm("edit again?", default=True):
                    raise


def _set(client: Connection, ref: Ref, changed: Mapping[str, Any]) -> None:
    """Change a job that waits and keeps its id. Raises Refused."""
    if client.submission(ref)["state"] not in output.WAITING:
        raise Refused("not-waiting", f"job {ref} has started meanwhile; it stays as it is")
    reply = client.request("set", select={"ids": [ref]}, **changed)
    _raise_failure(reply)
    output.tell(f"changed job {ref}")


def _retry(client: Connection, ref: Ref, changes: Changes) -> None:
    """Submit an ended job again with the changes. Raises Refused."""
    again = submit_again(client, [ref], changes, say=output.say)
    if again is not None:
        output.tell(f"submitted job {again.reply['id']}, which is {again.of} with these changes")


def _raise_failure(reply: Any) -> None:
    for failure in reply["failed"]:
        error = failure["error"]
        raise Refused(error["code"], error["text"], hint=error["hint"])


def _replace(
    client: Connection, reply: SubmissionReply, changes: Changes, gone: set[str], argv: list[str]
) -> None:
    """Submit a job in place of a waiting one. Raises Refused, and then leaves it as it was."""
    label, conditions = reply["label"], reply.get("conditions", {})
    if reply.get("awaited"):
        raise Refused(
            "awaited",
            f"other jobs wait for job {label}, so it must keep its id and its command; it stays as"
            " it is",
            hint="drf set changes its demand; drf set --after '' frees the jobs that wait for it",
        )
    if "held_by" in reply:
        by = output.clean(reply["held_by"])
        raise Refused(
            "held-by-admin",
            f"job {label} is held by {by}, and a new job in its place would not be; it stays as it"
            " is",
            hint=f"drf set changes its demand; {by} can release it",
        )
    known = {"demand": {}, **reply["submission"], **_conditions(reply)}
    kept = {name: value for name, value in known.items() if name not in gone}
    fields = {**changes.applied(kept), "argv": argv}
    select = {"ids": [int(label)]}
    if not conditions.get("held"):
        # A held job cannot start, so it never runs beside the new one.
        _raise_failure(client.request("hold", select=select))
    try:
        new = client.submit(**fields)
    except DrfdError:
        if not conditions.get("held"):
            client.request("release", select=select)
        raise
    _raise_failure(client.request("cancel", select=select))
    output.tell(f"submitted job {new['id']} in place of job {label}")
