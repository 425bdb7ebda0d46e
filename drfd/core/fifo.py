"""First come, first served; and with EASY backfilling around the first that has to wait.

The turn of a leaf is that of its first job in its own order, so a priority moves a user's jobs
among themselves and passes nobody else's. A job that only a limit of its pool keeps back holds up
its own leaf, and nobody else. Whoever was suspended comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from drfd.core.backfill import Outlook
from drfd.core.plan import Plan
from drfd.core.reservation import Reservation, allows, shadow, taken
from drfd.core.resources import fits
from drfd.core.tally import Head, Situation, Tally

#: Of a leaf, the job that would be next.
Choose = Callable[[str], Head | None]


def fifo(given: Situation) -> Plan:
    """Stops at the first job that does not fit."""
    tally = Tally(given)
    _serve_until_blocked(tally)
    return tally.plan(_order(tally))


def easy(given: Situation) -> Plan:
    """The first job that does not fit starts when enough of the running ones have ended; until
    then others may start that will have ended by then, or that leave it enough (Lifka 1995).

    Of a leaf's jobs with one demand, only the first is looked at. Without an outlook nobody knows
    when jobs end, and it is `fifo`.
    """
    tally = Tally(given)
    blocked = _serve_until_blocked(tally)
    kept = None
    if blocked is not None and given.outlook is not None:
        kept = _reserve(tally, *blocked, given.outlook)
        if kept is not None:
            kept = _backfill(tally, given.outlook, kept)
    return tally.plan(_order(tally), kept)


def _serve_until_blocked(tally: Tally) -> tuple[str, Head] | None:
    """The leaf and the job that nobody may pass."""
    tally.let_go_on()
    line = _line(tally, tally.head)
    while line:
        _, leaf = heappop(line)
        head = tally.head(leaf)
        assert head is not None
        if fits(head[1], tally.room(leaf)):
            tally.admit(leaf, head)
            _push(line, leaf, tally.head(leaf))
        elif not tally.fits_free(head[1]):
            return leaf, head
    return None


def _line(tally: Tally, choose: Choose) -> list[tuple[int, str]]:
    line = [(head[0][1], leaf) for leaf in tally.queues if (head := choose(leaf)) is not None]
    heapify(line)
    return line


def _push(line: list[tuple[int, str]], leaf: str, head: Head | None) -> None:
    if head is not None:
        heappush(line, (head[0][1], leaf))


def _order(tally: Tally) -> list[str]:
    return [leaf for _, leaf in sorted(_line(tally, tally.head))]


def _reserve(tally: Tally, leaf: str, head: Head, outlook: Outlook) -> Reservation | None:
    (_, job_id), demand = head
    given = [(outlook.end_s(other), held) for other, held in tally.given.items()]
    length_s = outlook.length_s(job_id)
    found = shadow(demand, length_s, tally.free, outlook.ends, outlook.now_s, given=given)
    if found is None:
        return None
    start_s, spare = found
    return Reservation(
        job_id=job_id,
        leaf=leaf,
        demand=demand,
        start_s=start_s,
        end_s=start_s + length_s,
        spare=spare,
        due_s=start_s,
    )


def _backfill(tally: Tally, outlook: Outlook, kept: Reservation) -> Reservation:
    """Start what does not hurt the reservation; what is left of it after that."""

    def choose(leaf: str) -> Head | None:
        room = tally.room(leaf)
        able = (
            head
            for head in tally.heads(leaf)
            if head[0][1] != kept.job_id
            and fits(head[1], room)
            and allows(kept, head[1], outlook.end_s(head[0][1]), tally.free)
        )
        return min(able, default=None)

    line = _line(tally, choose)
    while line:
        job_id, leaf = heappop(line)
        head = choose(leaf)
        # Room has become less since it was put in line: the leaf may have to send another one.
        if head is not None and head[0][1] == job_id:
            tally.admit(leaf, head)
            kept = taken(kept, head[1], outlook.end_s(job_id))
            head = choose(leaf)
        _push(line, leaf, head)
    return kept
