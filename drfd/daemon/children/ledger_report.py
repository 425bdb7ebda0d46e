"""The account of promises of some hours as its readers see it; and the program, a child process of
the controller, that brings the account up to date, reads it or checks it.

Everybody sees the sums over all users and how often a start went past somebody who was short. Whose
part it was is for the two involved, and for administrators.

The program reads the journal and writes the account's file only. If it is killed, the next one goes
on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import add
from pathlib import Path

import msgspec

from drfd.core.model.events import StartReason
from drfd.core.promises import WHOLE, Parts, PastStart, Starts, Stretch
from drfd.daemon.children.answers import run_program
from drfd.journal.promises import THE_REST, AccountFile, Hour
from drfd.protocol import replies

#: Balances, and starts past others, in one report: the largest, and the latest.
MOST_PAIRS, MOST_PAST = 200, 200


class _Sums:
    """Sums of hours."""

    def __init__(self) -> None:
        self.rows: dict[str, Parts] = {}
        self.longest: dict[str, Stretch] = {}
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.starts: dict[StartReason, Starts] = {}
        self.past: list[PastStart] = []
        self.total = Parts()
        self.steps_back = self.doubtful = 0

    def take(self, hour: Hour) -> None:
        for leaf, parts, stretch in hour.rows:
            self.rows[leaf] = self.rows.get(leaf, Parts()).after(parts, 1)
            self.total = self.total.after(parts, 1)
            longest = self.longest.get(leaf)
            if stretch and (longest is None or stretch.length_ms > longest.length_ms):
                self.longest[leaf] = stretch
        for leaf, other, amount in hour.pairs:
            self.pairs[leaf, other] += amount
        for why, counts in hour.starts:
            self.starts[why] = Starts(*map(add, self.starts.get(why, Starts()), counts))
        self.past += hour.past
        self.steps_back += hour.steps_back
        self.doubtful += hour.doubtful


def report(hours: Iterable[Hour], user: str | None) -> replies.LedgerReply:
    """Return the report of these hours: with the parts of this user, or of everybody."""
    sums = _Sums()
    begins_ms, ends_ms, count = list[int](), list[int](), 0
    for hour in hours:
        sums.take(hour)
        begins_ms.append(hour.begin_ms)
        ends_ms.append(hour.end_ms)
        count += 1

    def is_seen(*leaves: str) -> bool:
        return user is None or any(user_of(leaf) == user for leaf in leaves)

    pairs = [
        (leaf, other, amount)
        for (leaf, other), amount in sums.pairs.items()
        if is_seen(leaf, other) and amount
    ]
    pairs.sort(key=lambda each: (-each[2], each))
    past = [each for each in sums.past if is_seen(each.leaf, *each.short)]
    past.sort(key=lambda each: (-each.at_ms, -each.job_id))
    return {
        "since": min(begins_ms) / 1000 if begins_ms else None,
        "until": max(ends_ms) / 1000 if ends_ms else None,
        "user": user,
        "rows": [
            _row(leaf, parts, sums.longest.get(leaf))
            for leaf, parts in sorted(sums.rows.items())
            if is_seen(leaf)
        ],
        "total": _sums(sums.total),
        "leaves": len(sums.rows),
        "starts": [
            {
                "why": why.value,
                "all": counts.all,
                "beyond": counts.beyond,
                "past": counts.past,
                "past_fitting": counts.past_fitting,
            }
            for why, counts in sorted(sums.starts.items())
        ],
        "pairs": [_pair(*each) for each in pairs[:MOST_PAIRS]],
        "pairs_more": max(0, len(pairs) - MOST_PAIRS),
        "past": [_past(each, is_seen) for each in past[:MOST_PAST]],
        "past_more": max(0, len(past) - MOST_PAST),
        "hours": count,
        "steps_back": sums.steps_back,
        "doubtful": sums.doubtful,
        "events": 0,
        "begin": None,
    }


def user_of(leaf: str) -> str:
    """Return the user of a leaf of the tree."""
    return _name(leaf.rpartition(".")[2])


def _name(part: str) -> str:
    return part.replace("%2E", ".").replace("%25", "%")


def _leaf(leaf: str) -> replies.LeafView:
    pool = leaf.rpartition(".")[0].partition(".")[2]
    return {
        "user": user_of(leaf),
        "pool": "/".join(map(_name, pool.split("."))) if pool else None,
    }


def _sums(parts: Parts) -> replies.LedgerSums:
    return {
        "waited_ms": parts.waited,
        "kept_part": parts.kept_part / (WHOLE * parts.waited) if parts.waited else None,
        "promised": parts.promised,
        "kept": parts.kept,
        "away": parts.away,
        "drained": parts.drained,
        "own_limit": parts.own_limit,
        "outside": parts.outside,
        "others": parts.others,
        "size": parts.size,
    }


def _row(leaf: str, parts: Parts, stretch: Stretch | None) -> replies.LedgerRow:
    below: replies.StretchView | None = None
    if stretch is not None:
        below = {"since": stretch.begin_ms / 1000, "seconds": stretch.length_ms / 1000}
    return {**_leaf(leaf), **_sums(parts), "below": below}


def _pair(leaf: str, other: str, amount: int) -> replies.LedgerPair:
    by = None if other == THE_REST else _leaf(other)
    return {**_leaf(leaf), "by": by, "amount": amount}


def _past(start: PastStart, is_seen: Callable[..., bool]) -> replies.LedgerPastStart:
    return {
        **_leaf(start.leaf),
        "id": start.job_id,
        "at": start.at_ms / 1000,
        "why": start.why.value,
        "fits": start.fits,
        "short": [_leaf(each) for each in start.short if is_seen(start.leaf, each)],
    }


class LedgerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the program does: bring the account up to date and read it, or check it as it is."""

    journal: str
    now_ms: int
    #: Hours that ended before that are removed; null for none.
    forget_before_ms: int | None = None
    #: Whether the account is checked, rather than read.
    checks: bool = False
    #: Which hours are read, and whose parts are told; null for everybody's.
    since_ms: int = 0
    until_ms: int = 1 << 62
    user: str | None = None


def answers(task: LedgerTask) -> Iterator[replies.LedgerReply | replies.LedgerCheckReply]:
    """Do the task. Raises HostError."""
    with AccountFile(Path(task.journal)) as file:
        if task.checks:
            found = file.check()
            fault = found.fault
            yield {
                "hours": found.hours,
                "compared": found.compared,
                "events": found.events,
                "gone": found.gone,
                "fault": fault and {"begin": fault.begin_ms / 1000, "text": fault.text},
            }
            return
        book = file.catch_up(forget_before_ms=task.forget_before_ms, now_ms=task.now_ms)
        begin_ms = file.begin_ms()

        def hours() -> Iterator[Hour]:
            yield from file.hours(task.since_ms, task.until_ms)
            for hour in book.close_at(task.now_ms):
                if hour.end_ms > task.since_ms and hour.begin_ms < task.until_ms:
                    yield hour

        reply = report(hours(), task.user)
        reply["events"] = file.last_seq()
        reply["begin"] = None if begin_ms is None else begin_ms / 1000
        yield reply


if __name__ == "__main__":
    run_program(LedgerTask, answers)
