"""Which jobs the words of a command line mean: ids, names, `@-1`, or the latest job.

A word that begins with a digit is an id, or several. `@-1` is the job or array that the caller has
submitted last, `@-2` the one before, and `@-1_7` a task. Any other word is the name of a job of the
caller's: of the live one, or else of the one that has ended. Of several, verbs that only read take
the latest and say so, and the others refuse.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from drfd.client.words import Ref, parse_after
from drfd.common.errors import Refused
from drfd_cli import output

if TYPE_CHECKING:
    from drfd.client.connection import Connection
    from drfd.protocol.replies import RecentJobView

V = TypeVar("V")
#: `@-1`, and `@-1_7` for a task.
_RECENT = re.compile(r"@-([0-9]{1,6})(_[0-9]{1,10})?")
#: The beginning of what is an id, or is meant to be one.
_NO_NAME = re.compile(r"[0-9]|-|_[0-9]|$")
#: The farthest back that `@-N` reaches, and the jobs that an ambiguous name lists.
_MOST, _LISTED = 1000, 8


def is_name(word: str) -> bool:
    """Return whether a word is to be looked up, rather than being an id."""
    return _NO_NAME.match(word.strip()) is None


def find(
    connect: Callable[[], Connection], word: str, *, form: str, takes_latest: bool = False
) -> Ref:
    """Return the id that a name or `@-1` means, and tell a person at a terminal which it is.
    `form` says how ids are written. If several jobs have the name, the latest is meant if the verb
    `takes_latest`, and that is always told. Raises Refused."""
    word = word.strip()
    recent = _RECENT.fullmatch(word)
    if recent is not None:
        job = _recent(connect(), int(recent[1]))
        return f"{job['id']}{recent[2]}" if recent[2] else job["id"]
    if word.startswith("@"):
        raise Refused("bad-value", f"id: {word!r} is not a job", hint="write @-1 for the latest")
    if not 1 <= len(word) <= 256:
        raise Refused("bad-value", f"id: {word[:40]!r} is not a job id", hint=form)
    found: list[RecentJobView] = connect().request("recent", name=word, limit=_MOST)["recent"]
    live = [job for job in found if job["live"]]
    if not found:
        raise Refused(
            "no-such-job",
            f"id: {word[:40]!r} is not a job id, nor the name of a job of yours",
            hint=form,
        )
    some = live or found
    if len(some) > 1 and takes_latest:
        count = f"{_MOST} or more" if len(found) == _MOST else str(len(some))
        _tell_once(some[0]["id"], f"the latest of {count} named {word}")
        return some[0]["id"]
    if len(some) > 1:
        listed = output.listed([f"{job['id']} ({job['state']})" for job in some], _LISTED)
        raise Refused(
            "ambiguous",
            f"id: {len(some)} jobs are named {word!r}: {listed}",
            hint="write the id of one",
        )
    _tell(some[0])
    return some[0]["id"]


def each_of(text: str, read: Callable[[str], list[V]], find: Callable[[str], list[V]]) -> list[V]:
    """Read a list whose parts are ids or names."""
    parts = text.split(",")
    if not any(map(is_name, parts)):
        return read(text)
    found: list[V] = []
    for part in parts:
        # The whole text is wrong if a part is empty.
        found += find(part) if is_name(part) else read(part if part.strip() else text)
    return found


#: Slurm's words for what --after waits for.
_SLURM_AFTER = {"afterok": "ok", "afterany": "any", "afternotok": "fail"}


def read_after(connect: Callable[[], Connection], text: str) -> list[tuple[Ref, str]]:
    """Read what --after waits for: ids or names, also in Slurm's words. Raises Refused."""
    parts = [part.strip().split(":") for part in text.split(",")]
    if any(words[0] in _SLURM_AFTER and len(words) > 1 for words in parts):
        # As in Slurm, a kind holds for the ids behind it.
        text = ",".join(
            f"{job_id}:{_SLURM_AFTER[kind]}" if kind in _SLURM_AFTER else ":".join([kind, *ids])
            for kind, *ids in parts
            for job_id in (ids if kind in _SLURM_AFTER else ids[:1] or [""])
        )

    def find_one(word: str) -> list[tuple[Ref, str]]:
        name, _, how = word.strip().rpartition(":")
        if how not in ("ok", "any", "fail"):
            name, how = word, "ok"
        return [(find(connect, name, form="write 5, 5:any or 5:fail"), how)]

    return each_of(text, parse_after, find_one)


def latest(connect: Callable[[], Connection]) -> Ref | None:
    """Return the caller's latest job if a person at a terminal asks, and say so; else None."""
    if not is_person_here():
        return None
    return _recent(connect(), 1)["id"]


def latest_in(connect: Callable[[], Connection], states: Collection[str], fact: str) -> Ref | None:
    """Return the caller's latest job in one of these states if a person at a terminal asks, and say
    so; else None. Raises Refused if there is none: `no job of yours {fact}`."""
    if not is_person_here():
        return None
    found: list[RecentJobView] = connect().request("recent", limit=_MOST)["recent"]
    job = next((job for job in found if job["live"] and job["state"] in states), None)
    if job is None:
        raise Refused("no-such-job", f"no job of yours {fact}")
    _tell(job)
    return job["id"]


def _recent(client: Connection, back: int) -> RecentJobView:
    most = max(1, min(_MOST, back))
    found: list[RecentJobView] = client.request("recent", limit=most)["recent"]
    if not 1 <= back <= len(found):
        count = len(found)
        text = f"@-{back} is none of the {count} jobs of yours that are known"
        raise Refused("no-such-job", text if count else "no job of yours is known")
    _tell(found[back - 1])
    return found[back - 1]


def is_person_here() -> bool:
    """Return whether a person at a terminal has typed the command and reads its messages."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _tell(job: RecentJobView) -> None:
    if is_person_here():
        _tell_once(job["id"], job["name"])


@cache
def _tell_once(job_id: int, what: str) -> None:
    """Print the line once, because a command line may be read twice."""
    output.say(f"job {job_id} ({what})")
