"""What is told on stderr of a job that did not complete: how it ended, and its last errors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from drfd.common.errors import DrfdError, Refused
from drfd_cli import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drfd.client.connection import Connection
    from drfd.protocol.replies import EndedArrayView, JobView, ShowReply

#: Lines shown of a job's error output, and bytes read for them from its end.
_LINES, _BYTES = 5, 1 << 15
#: Jobs whose error output is shown, if several have ended.
_JOBS = 3


def tell_ends(
    client: Connection, ended: Iterable[JobView | EndedArrayView], *, is_told: bool = False
) -> None:
    """Print, for each job or array that did not complete, one line and the end of its errors.

    The files are read with the caller's rights, and only those of the caller's own jobs. If
    `is_told`, the lines on how they ended have been printed, and only errors are shown. `client`
    is asked for the first task of an array that failed.
    """
    shown = 0
    for each in ended:
        code = "" if each["outcome"] is None else each["outcome"]["code"]
        if code == "COMPLETED":
            continue
        if not is_told:
            kind = "array" if "array_tasks" in each else "job"
            output.say(f"{kind} {output.label(each)} {output.why_line(each)}")
        if shown < _JOBS:
            shown += _tell_errors(client, each)


def _tell_errors(client: Connection, ended: JobView | EndedArrayView) -> bool:
    """Print the last lines of the error output. Returns whether there were any."""
    job: JobView | None
    job = _first_failed(client, cast("EndedArrayView", ended)) if "array_tasks" in ended else ended
    lines = [] if job is None else last_errors(job)
    if job is None or not lines:
        return False
    is_apart = job["stderr"] != job["stdout"]
    word, option = ("errors", "--err ") if is_apart else ("output", "")
    name = output.label(job)
    output.say(f"the last {word} of job {name} (drf log {option}{name} prints all):")
    for line in lines:
        output.show_line(f"  | {line}")
    return True


def last_errors(job: JobView) -> Sequence[str]:
    """Return the last lines of the error output of an ended job of the caller, made harmless for a
    terminal, without empty lines at the end; none if there is nothing to read."""
    from drfd_cli.waiting.output_files import last_bytes, last_lines

    path = job["stderr"]
    # A job that never started has written nothing: what its path holds is from another one.
    if path is None or job["started_at"] is None or job["uid"] != os.getuid():
        return []
    try:
        data = last_bytes(path, _BYTES)
    except Refused:
        return []
    lines = [output.clean(line).rstrip() for line in last_lines((data or b"").rstrip())]
    return [line for line in lines if line][-_LINES:]


def _first_failed(client: Connection, array: EndedArrayView) -> JobView | None:
    """Return the first task of the array that did not complete, or None if it is not known."""
    indices = [
        int(each.partition(",")[0].partition("-")[0])
        for state, each in array.get("indices", {}).items()
        if state != "CANCELLED"
    ]
    if not indices:
        return None
    try:
        reply: ShowReply = client.request("show", id=f"{array['id']}_{min(indices)}")
    except DrfdError:
        return None
    return reply.get("job")
