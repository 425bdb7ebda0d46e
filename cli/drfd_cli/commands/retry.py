"""drf retry: submit ended jobs again, as they were or with changes."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd.client.option_values import fields_of
from drfd.client.submission import completed
from drfd.client.words import Ref, parse_id
from drfd.common.errors import DrfdError, Refused, Unavailable
from drfd.common.indices import count_of, read_array, show_numbers
from drfd.payload.pack import output_fields
from drfd.protocol.job_options import OPTIONS, of_field
from drfd_cli import output
from drfd_cli.options import connect, group_option, in_group, job_ids, prints_result
from drfd_cli.output import Result, pick
from drfd_cli.submission.job_line import WrongWords, only_options, remarks, values_of

if TYPE_CHECKING:
    from drfd.payload.pack import Submission
    from drfd.protocol.replies import RepeatView, SubmissionReply, SubmitReply

#: The outcome of a job that `--failed` leaves out.
_COMPLETED, _CANCELLED = "COMPLETED", "CANCELLED"
#: The keys of a reply that say what was submitted.
_MADE = ("id", "tasks")
#: More jobs than this that are left out for one reason are counted, not named.
_FEW = 5


@dataclass(frozen=True, slots=True)
class _Retried:
    """A job that has been submitted again, with the name of the one before."""

    of: str
    reply: SubmitReply


def _parse_with(context: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Edits:
    try:
        words = [word for text in texts for word in shlex.split(text)]
        at = words.index("--") if "--" in words else len(words)
        changes, argv = changes_of(words[:at], connect(), takes_wrap=True), words[at + 1 :]
        for remark in changes.remarks:
            output.say(remark)
        if at == len(words):
            return changes
        if not argv:
            raise WrongWords("there is no command behind --")
        if "argv" in changes.fields:
            raise WrongWords("--wrap and a command exclude each other: give one of them")
        return replace(changes, fields={**changes.fields, "argv": argv})
    except WrongWords as error:
        raise click.BadParameter(str(error)) from None
    except ValueError as error:
        raise click.BadParameter(f"{error}: {' '.join(texts)}") from None


@click.command("retry")
@job_ids(required=True, only_read=True)
@group_option("Your ended jobs of this group (submit --group).")
@click.option(
    "--failed", is_flag=True, help="Only jobs, and tasks of arrays, that did not complete."
)
@click.option(
    "--with",
    "changes",
    metavar="OPTIONS",
    multiple=True,
    callback=_parse_with,
    help="Options of drf submit to change, in quotes; '-- CMD' changes the command.",
)
@click.option(
    "-w", "--wait", is_flag=True, help="Wait until the new jobs have ended; exit as drf wait does."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the ids.")
@prints_result()
def command(
    ids: tuple[Ref, ...], group: str | None, failed: bool, changes: Edits, wait: bool, quiet: bool
) -> Result:
    """Submit ended jobs again, each as a new job with the command, script, environment, directory,
    options and demand of the first submission, and without its --begin and --hold.

    Tasks of one array become one array with their indices. A job that waited for another one
    (--after) waits for that one's retry. --failed leaves out jobs that were retried already, and
    those that somebody cancelled.
    """
    client = connect()
    if group is not None:
        ids += tuple(_ended_in(client, group, failed=failed))
        if not ids:
            what = "failed" if failed else "ended"
            raise Refused("no-such-job", f"no job of yours in the group {group} has {what}")
    call = Resubmission(client, changes, failed=failed)
    call.submit(ids)
    done, refused = call.done, call.refused

    def show() -> None:
        for each in done:
            words = f"submitted {output.submitted(each.reply)}, a retry of {each.of}"
            output.tell(each.reply["id"] if quiet else words)

    def finish() -> int:
        status = 0
        if wait and done:
            from drfd_cli.commands.wait import wait_and_tell

            status = wait_and_tell(client, [each.reply["id"] for each in done])
        for error in refused:
            output.say(str(error))
        return refused[0].exit_code if refused else status

    def view() -> dict[str, object]:
        jobs = [{"of": each.of, **pick(each.reply, _MADE)} for each in done]
        failed = [{"code": each.code, "text": each.text} for each in refused]
        return {"jobs": jobs, "failed": failed}

    return Result(show, view, finish=finish)


def _ended_in(client: Connection, group: str, *, failed: bool) -> list[Ref]:
    """Return the caller's ended jobs of a group, in the order of their submission."""
    past = {"user": client.request("hello")["user"], "group": group}
    jobs = sorted(client.jobs("history", past=past), key=itemgetter("id"))
    wanted = [job for job in jobs if not failed or job["state"] != _COMPLETED]
    # An array of thousands of tasks is asked for at once.
    counts = Counter(job["array_id"] for job in wanted if job["array_id"] is not None)
    arrays = {
        array_id
        for array_id, count in counts.items()
        if count > 1 and (failed or _is_whole(client, array_id, count))
    }
    refs = (job["array_id"] if job["array_id"] in arrays else output.ref(job) for job in wanted)
    return list(dict.fromkeys(refs))


def _is_whole(client: Connection, array_id: int, count: int) -> bool:
    """Return whether an array has ended and has so many tasks."""
    reply = client.submission(array_id)
    spans, _ = read_array(str(reply["submission"]["array"]))
    return not reply["live"] and count_of(spans) == count


class Resubmission:
    """Submits jobs, arrays and tasks again, those that others wait for first: each one waits for
    the new jobs as it did for the old ones."""

    def __init__(
        self,
        client: Connection,
        changes: Edits,
        *,
        failed: bool,
        say: Callable[[str], None] = output.say,
    ) -> None:
        """Only what has failed and was not submitted again before, if `failed`. `say` takes
        messages."""
        self._client, self._changes, self._failed, self._say = client, changes, failed, say
        self.done: list[_Retried] = []
        self.refused: list[DrfdError] = []
        #: What is still to be submitted, by the id of the job or array.
        self._left: dict[str, list[list[Ref]]] = {}
        #: The new id of each job and array, and for those with it the indices of the tasks.
        self._new: dict[str, tuple[int, list[str]]] = {}
        #: Lines about jobs that are left out.
        self._retried: list[str] = []
        self._cancelled: list[str] = []
        #: Groups, and whether live jobs of them had a limit before this call.
        self._limited: dict[str, bool] = {}
        #: Jobs and arrays that somebody has cancelled, and what waited for them.
        self._unwanted: set[str] = set()

    def submit(self, ids: Iterable[Ref]) -> None:
        """Submit jobs, arrays and tasks, those of one array together. Refusals are kept."""
        for ref in ids:
            array, _, index = str(ref).partition("_")
            groups = self._left.setdefault(array, [])
            tasks = next((each for each in groups if index and "_" in str(each[0])), None)
            if tasks is None:
                groups.append([ref])
            else:
                tasks.append(ref)
        while self._left:
            self._submit_all(next(iter(self._left)))
        for lines, what in (
            (self._retried, "jobs have been retried already"),
            (self._cancelled, "jobs were cancelled by hand"),
        ):
            if len(lines) > _FEW:
                self._say(f"{len(lines)} {what}; the last: {lines[-1]}")
            else:
                for line in lines:
                    self._say(line)
            lines.clear()

    def _submit_all(self, key: str) -> None:
        for refs in self._left.pop(key):
            try:
                again = self._submit(refs)
            except Unavailable:
                raise
            except DrfdError as error:
                self.refused.append(error)
            else:
                self.done += [again] if again is not None else []

    def _submit(self, refs: list[Ref]) -> _Retried | None:
        """Submit a job, an array or tasks of one array again. Returns None if nothing is to be
        done. Raises Refused."""
        client, changes = self._client, self._changes
        indices: list[str] = []
        for ref in refs:
            reply = client.submission(ref)
            indices += self._indices(ref, reply)
        if not indices:
            return None
        again = dict(reply["submission"])
        key, _, index = reply["label"].partition("_")
        label, array = key, ",".join(indices)
        if array and (index or self._failed):
            label = f"{key}_{array}" if array.isdecimal() else f"{key}_[{array}]"
        if array:
            # Of the whole array, the indices have the bound of tasks at once among them.
            bound = str(again.get("array", "")).partition("%")[1:] if self._failed else ()
            again["array"] = array + "".join(bound)
        after = self._after(label, reply)
        if after is None:
            return None
        again |= self._group(again)
        if after:
            again["after"] = after
        if again.pop("attach", None) is not None:
            self._say(
                f"job {label} was attached to a terminal; now its output goes to {again['stdout']}"
            )
        if "again" in reply:
            again["again"] = reply["again"]
        made = client.submit(**changes.applied(again))
        self._new[key] = made["id"], indices
        return _Retried(label, made)

    def _indices(self, ref: Ref, reply: SubmissionReply) -> list[str]:
        """Return the indices to submit, "" for one job, or nothing if it is left out. Raises
        Refused."""
        label, repeats = reply["label"], reply.get("repeats", [])
        is_array = "array" in reply["submission"] and "_" not in label
        if is_array and self._failed:
            return self._failed_indices(ref, reply)
        if reply["live"]:
            what = "array" if is_array else "job"
            hint = f"drf retry {label} --failed takes the tasks that have failed so far"
            raise Refused(
                "not-ended",
                f"{what} {label} is {reply['state']}: only what has ended can be retried",
                hint=hint if is_array else f"drf cancel {label} ends it",
            )
        if not self._failed:
            return [str(reply["submission"].get("array", ""))]
        if reply["state"] == _COMPLETED:
            self._say(f"job {label} has completed")
        elif repeats:
            self._retried.append(f"job {label} has been retried: {_state_of(repeats[0])}")
        elif reply["state"] == _CANCELLED and reply.get("cancelled_by_hand"):
            self._unwanted.add(label)
            self._cancelled.append(
                f"job {label} was cancelled by hand; drf retry {label} takes it all the same"
            )
        else:
            return [str(reply["submission"].get("array", ""))]
        return []

    def _failed_indices(self, ref: Ref, reply: SubmissionReply) -> list[str]:
        """Return the indices of the tasks of an array that have ended, did not complete, and have
        not been submitted again."""
        found = self._client.request("show", id=ref)
        assert "array" in found
        bad = {state: text for state, text in found["array"]["indices"].items()
               if state not in (*output.LIVE, _COMPLETED)}  # fmt: skip
        if reply.get("cancelled_by_hand") and _CANCELLED in bad:
            label = f"{ref}_[{bad.pop(_CANCELLED)}]"
            self._say(f"{label} was cancelled by hand; drf retry '{label}' takes it all the same")
            self._unwanted.add(str(ref))
        every = _numbers(bad.values()) if bad else set()
        left = set(every)
        for repeat in reply.get("repeats", []):
            left -= _numbers([repeat["array"]]) if "array" in repeat else set()
        if bad and not left:
            self._say(
                f"each task of array {ref} that has failed has been retried: "
                f"{_state_of(reply['repeats'][0])}"
            )
        elif not bad:
            self._say(f"no task of array {ref} has failed")
        else:
            # The daemon's own words, unless some tasks are left out.
            return list(bad.values()) if left == every else [show_numbers(left)]
        return []

    def _group(self, again: Mapping[str, object]) -> dict[str, object]:
        """Return the job's group. If jobs of it are live, their limit holds, and not that of the
        first submission, which may have been changed since."""
        name, _, bound = str(again.get("group", "")).partition("%")
        if not bound or "group" in self._changes.fields:
            return {}
        if name not in self._limited:
            live = in_group(self._client, name)
            self._limited[name] = any(job.get("group_at_once") is not None for job in live)
        return {"group": name} if self._limited[name] else {}

    def _after(self, label: str, reply: SubmissionReply) -> list[dict[str, object]] | None:
        """Return what the new job waits for, or None if it is left out with what somebody has
        cancelled. Raises Refused if what it waits for can never end as it is to end."""
        if "after" in self._changes.fields:
            return []
        found: list[dict[str, object]] = []
        for each in reply.get("waited_for", []):
            awaited, want = each["label"], each["want"]
            key, _, index = awaited.partition("_")
            if key in self._left:
                self._submit_all(key)
            new, indices = self._new.get(key, (0, []))
            repeat = each.get("repeat")
            # Of a job the only index is "".
            if new and (not index or (all(indices) and int(index) in _numbers(indices))):
                found.append({"id": f"{new}_{index}" if index else new, "want": want})
            elif each["live"]:
                found.append({"id": parse_id(awaited), "want": want})
            elif repeat is not None and repeat["live"]:
                found.append({"id": parse_id(repeat["label"]), "want": want})
                self._say(
                    f"job {label} waited for job {awaited}; now for job {repeat['label']}, "
                    "its retry"
                )
            elif not each["met"]:
                if self._unwanted & {awaited, key}:
                    self._unwanted.add(label)
                    self._say(f"job {label} waited for job {awaited}, and is left out with it")
                    return None
                last = awaited if repeat is None else repeat["label"]
                state = each["state"] if repeat is None else repeat["state"]
                raise Refused(
                    "dependency-never",
                    f"job {label} waited for job {awaited} ({want}), "
                    + ("which" if repeat is None else f"and its retry, job {last},")
                    + f" has ended {state}",
                    hint=f"drf retry {last} {label} submits both again; "
                    f"--with \"--after ''\" submits {label} alone",
                )
        return found


def _state_of(repeat: RepeatView) -> str:
    what = "array" if "array" in repeat else "job"
    return f"{what} {repeat['label']} ({repeat['state']})"


def _numbers(indices: Iterable[str]) -> set[int]:
    spans, _ = read_array(",".join(indices))
    return {at for first, last, step in spans for at in range(first, last + 1, step)}


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of a submission, as fields of the request."""

    #: A part that is None is taken away.
    fields: Submission
    #: Names of secret variables to take from the present environment.
    export: tuple[str, ...] = ()
    #: Fields of the submission that are taken away before.
    gone: frozenset[str] = frozenset()
    #: Other words of the command; the text of a script stays, unlike with "argv" among `fields`.
    words: tuple[str, ...] = ()
    #: How values that could mean something else were read.
    remarks: tuple[str, ...] = field(default=(), compare=False)

    def applied(self, submission: Submission) -> dict[str, object]:
        """Return the fields of a submission with the changes. Raises Refused."""
        base = {name: value for name, value in submission.items() if name not in self.gone}
        found = {**base, **self.fields}
        for name in found.keys() & PARTS:
            # What is not named stays as it was: another number of retries leaves the outcomes.
            parts = {**base.get(name, {}), **found[name]}
            found[name] = {part: value for part, value in parts.items() if value is not None}
        found = completed(found, os.environ)
        if self.words:
            found["argv"] = list(self.words)
        if "array" in self.fields and "again" in found:
            # Its tasks are others.
            found["again"] = {"of": found["again"]["of"]}
        if "argv" in self.fields:
            # Another command has nothing to do with the text of the script.
            found.pop("script", None)
        merged = submission.get("stdout") == submission.get("stderr")
        if merged and "stdout" in self.fields and "stderr" not in self.fields:
            found["stderr"] = self.fields["stdout"]
        if "demand" in self.fields:
            found["demand"] = _merged(base.get("demand", {}), self.fields["demand"])
        for name in self.export:
            if name not in os.environ:
                raise Refused("bad-value", f"--export {name}: there is no such variable")
            found["env"] = {**found.get("env", {}), name: os.environ[name]}
        return found


#: Fields of which each of several options sets a part.
PARTS = {each.field for each in OPTIONS if len(of_field(each.field)) > 1} - {"demand"}


def _merged(before: Submission, wish: Submission) -> dict[str, Any]:
    found = {**before, **wish}
    if "cores_milli" in wish and "cores_max_milli" not in wish:
        # A new figure without an upper end is no range.
        found.pop("cores_max_milli", None)
    for key in ("gres", "gres_memory", "disks"):
        if key in wish:
            found[key] = {**before.get(key, {}), **wish[key]}
    if "disks" in wish:
        # The machine has one disk, whose rates come without a name.
        for name in ("read_bps", "write_bps"):
            found.pop(name, None)
    return found


def changes_of(words: list[str], client: Connection, *, takes_wrap: bool = False) -> Edits:
    """Return the changes that options of `drf submit` make; of --wrap another command, if that is
    taken. Raises WrongWords."""
    given = only_options("submit", words)
    values = values_of(given, client)
    wrap = values.pop("wrap", None) if takes_wrap else None
    if wrap is not None and not wrap.strip():
        raise WrongWords("--wrap is empty")
    for option in given.texts:
        if option.key in values and option not in OPTIONS:
            raise WrongWords(f"{option.flag} is no property of a job")
    found = fields_of(values)
    if "stdout" in found or "stderr" in found:
        # As in a first submission: the errors go to the file of the output.
        found |= output_fields(found)
    if wrap is not None:
        found["argv"] = ["sh", "-c", wrap]
    return Edits(found, tuple(values.get("export", ())), remarks=tuple(remarks(given)))


def retry_line(label: str, options: Iterable[str]) -> str:
    words = shlex.join(options)
    return f"drf retry {label}" + (f" --with {shlex.quote(words)}" if words else "")
