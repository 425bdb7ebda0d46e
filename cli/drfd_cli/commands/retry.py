"""drf retry: submit ended jobs again, as they were or with changes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from drfd.client.connection import Connection
from drfd.client.submission import Submission
from drfd.client.words import Ref
from drfd.common.errors import DrfdError, Refused, Unavailable
from drfd_cli import output
from drfd_cli.options import connect, group_option, job_ids, prints_result
from drfd_cli.output import Result

if TYPE_CHECKING:
    from drfd.protocol.replies import SubmitReply

#: The outcome of a job that `--failed` leaves out.
_COMPLETED, _CANCELLED = "COMPLETED", "CANCELLED"
#: Fields of the request by parameters with other names.
_FIELDS = {
    **dict.fromkeys(("cores", "mem", "io", "gres"), "demand"),
    "time": "time_limit_s", "begin": "begin_s", "hold": "held",
    "retry_on": "retry", "notify_command": "notify", "output_max": "output_max_bytes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Again:
    """A job that has been submitted again, with the name of the one before."""

    of: str
    reply: SubmitReply


def _parse_with(context: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Changes:
    try:
        words = [word for text in texts for word in shlex.split(text)]
        options, sign, argv = _split(words)
        changes = read_changes(options)
        if sign and not argv:
            raise click.UsageError("there is no command behind --")
        return replace(changes, fields={**changes.fields, "argv": argv}) if sign else changes
    except ValueError as error:
        raise click.BadParameter(f"{error}: {' '.join(texts)}") from None
    except click.ClickException as error:
        raise click.BadParameter(error.format_message()) from None


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """Return the options, whether a command follows them behind `--`, and the command."""
    if "--" not in words:
        return words, False, []
    at = words.index("--")
    return words[:at], True, words[at + 1 :]


@click.command("retry")
@job_ids(required=True)
@group_option("Your ended jobs of this group (submit --group).")
@click.option("--failed", is_flag=True, help="Only what did not complete; of an array, such tasks.")
@click.option(
    "--with",
    "changes",
    metavar="OPTIONS",
    multiple=True,
    callback=_parse_with,
    help="Change it by options of drf submit, in quotes; '-- CMD' changes the command.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the ids alone.")
@prints_result()  # fmt: skip
def command(
    ids: tuple[Ref, ...], group: str | None, failed: bool, changes: Changes, quiet: bool
) -> Result:
    """Submit ended jobs again, each as a new job with the command, script, environment, directory,
    options and demand of the first submission, and without its --after, --begin and --hold.

    Tasks of one array become one array with their indices.
    """
    client = connect()
    if group is not None:
        ids += tuple(_ended_in(client, group, failed=failed))
        if not ids:
            what = "failed" if failed else "ended"
            raise Refused("no-such-job", f"no job of yours in the group {group} has {what}")
    done: list[_Again] = []
    refused: list[DrfdError] = []
    for refs in _by_array(ids):
        try:
            again = submit_again(client, refs, changes, failed=failed)
        except Unavailable:
            raise
        except DrfdError as error:
            refused.append(error)
        else:
            done += [again] if again is not None else []
    return Result(
        show=lambda: _show(done, quiet=quiet),
        view=lambda: {"jobs": [{"of": each.of, **_pick(each.reply)} for each in done],
                      "failed": [{"code": each.code, "text": each.text} for each in refused]},
        finish=lambda: _finish(refused),
    )  # fmt: skip


def _ended_in(client: Connection, group: str, *, failed: bool) -> list[Ref]:
    """Return the caller's ended jobs of a group, in the order of their submission."""
    past = {"user": client.request("hello")["user"], "group": group}
    found = [job for page in client.pages("history", past=past) for job in page["jobs"]]
    return [
        output.ref(job)
        for job in sorted(found, key=lambda job: job["id"])
        if not failed or job["state"] != _COMPLETED
    ]


def _pick(reply: SubmitReply) -> dict[str, int]:
    tasks = {"tasks": reply["tasks"]} if "tasks" in reply else {}
    return {"id": reply["id"], **tasks}


def _show(done: list[_Again], *, quiet: bool) -> None:
    for each in done:
        tasks = each.reply.get("tasks")
        what = f"job {each.reply['id']}"
        if tasks is not None:
            what = f"array {each.reply['id']} of {tasks} task{'' if tasks == 1 else 's'}"
        output.tell(each.reply["id"] if quiet else f"submitted {what}, which is {each.of} again")


def _finish(refused: list[DrfdError]) -> int:
    for error in refused:
        output.say(str(error))
    return refused[0].exit_code if refused else 0


def _by_array(ids: Iterable[Ref]) -> list[list[Ref]]:
    """Return the ids, those of tasks of one array together."""
    found: dict[str, list[Ref]] = {}
    for ref in ids:
        array, _, index = str(ref).partition("_")
        found.setdefault(f"{array}_" if index else array, []).append(ref)
    return list(found.values())


def submit_again(
    client: Connection,
    refs: list[Ref],
    changes: Changes,
    *,
    failed: bool,
    say: Callable[[str], None] = output.say,
) -> _Again | None:
    """Submit a job, an array or tasks of one array again. Returns None if nothing is to be done.
    `say` takes messages."""
    indices: list[str] = []
    label = str(refs[0])
    for ref in refs:
        reply = client.submission(ref)
        label = reply["label"]
        is_array = "array" in reply["submission"] and "_" not in label
        if is_array and failed:
            indices = _failed_indices(client, ref)
            label = f"{label}_[{','.join(indices)}]"
            if not indices:
                say(f"no task of array {ref} has failed")
                return None
        elif reply["live"]:
            what = "array" if is_array else "job"
            hint = f"drf retry {label} --failed takes the tasks that have failed so far"
            raise Refused(
                "not-ended",
                f"{what} {label} is {reply['state']}: only what has ended can be retried",
                hint=hint if is_array else f"drf cancel {label} ends it",
            )  # fmt: skip
        elif failed and reply["state"] == _COMPLETED:
            say(f"job {label} has completed")
        else:
            indices += [str(reply["submission"].get("array", ""))]
    if not indices:
        return None
    again = dict(reply["submission"])
    if len(refs) > 1:
        label = f"{label.partition('_')[0]}_[{','.join(indices)}]"
    if indices != [""]:
        again["array"] = ",".join(indices) + _at_once(again, failed=failed)
    if again.pop("attach", None) is not None:
        say(f"job {label} was attached to a terminal; now its output goes to {again['stdout']}")
    made = client.submit(**changes.applied(again))
    awaited: Any = reply.get("conditions", {}).get("after")
    if awaited and reply["state"] == _CANCELLED and "after" not in changes.fields:
        # It may have been cancelled because they had failed.
        ids = ",".join(str(each["id"]) for each in awaited)
        say(f"job {made['id']} does not wait for {ids}, as job {label} did")
    return _Again(label, made)


def _at_once(again: Mapping[str, object], *, failed: bool) -> str:
    """Return `%N` if the whole array had that bound and only some tasks are retried."""
    _, sign, bound = str(again.get("array", "")).partition("%")
    return f"{sign}{bound}" if failed else ""


def _failed_indices(client: Connection, ref: Ref) -> list[str]:
    """Return the indices of the tasks of an array that have ended and did not complete."""
    reply = client.request("show", id=ref)
    assert "array" in reply
    bad = reply["array"]["indices"]
    return [text for state, text in bad.items() if state not in (*output.LIVE, _COMPLETED)]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a submission, as fields of the request."""

    fields: Mapping[str, Any]
    #: Names of secret variables to take from the present environment.
    export: tuple[str, ...] = ()

    def applied(self, submission: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a submission with the changes. Raises Refused."""
        found = {**submission, **self.fields}
        if "argv" in self.fields:
            # Another command has nothing to do with the text of the script.
            found.pop("script", None)
        merged = submission.get("stdout") == submission.get("stderr")
        if merged and "stdout" in self.fields and "stderr" not in self.fields:
            found["stderr"] = self.fields["stdout"]
        if "demand" in self.fields:
            found["demand"] = _merged(submission["demand"], self.fields["demand"])
        for name in self.export:
            if name not in os.environ:
                raise Refused("bad-value", f"--export {name}: there is no such variable")
            found["env"] = {**found.get("env", {}), name: os.environ[name]}
        return found


def _merged(before: Mapping[str, Any], wish: Mapping[str, Any]) -> dict[str, Any]:
    found = {**before, **wish}
    for key in ("gres", "disks"):
        if key in wish:
            found[key] = {**before.get(key, {}), **wish[key]}
    if "disks" in wish:
        # The machine has one disk, whose rates come without a name.
        found.pop("read_bps", None)
        found.pop("write_bps", None)
    return found


def read_changes(words: list[str]) -> Changes:
    """Return the changes that options of `drf submit` make. Raises ClickException."""
    from drfd_cli.commands.submit import command as submit
    from drfd_cli.commands.submit import context_of

    context = context_of(words, "only options of drf submit can stand here")
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    del given["command"]
    export = given.pop("export", ())
    for param in submit.params:
        if param.name in given and param.name not in {each.name for each in fields(Submission)}:
            raise click.UsageError(f"{param.opts[-1]} is no property of a job")
    if "retry_on" in given and "retry" not in given:
        raise click.UsageError("--retry-on says when to try again; --retry N how often")
    try:
        whole = Submission(argv=["x"], env={}, cwd="/", **given).fields()
    except Refused as error:
        raise click.UsageError(str(error)) from None
    names = {_FIELDS.get(name, name) for name in given}
    # As in a first submission: the errors go to the file of the output.
    names |= {"stderr"} if "stdout" in names else set()
    return Changes({name: whole[name] for name in names}, export)


def retry_line(label: str, options: Iterable[str]) -> str:
    """Return the command that submits a job again with these options."""
    words = shlex.join(options)
    return f"drf retry {label}" + (f" --with {shlex.quote(words)}" if words else "")
