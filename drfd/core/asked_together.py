"""What people ask for of a whole array: what follows for each of its tasks.

Judged as for single jobs: the tasks that have no record of their own are alike, so the first of
them stands for all, and what follows for it becomes one event about all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from drfd.core import asked
from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.ledger import Ledger
from drfd.core.roster import Roster
from drfd.errors import Refused

Ask = TypeVar(
    "Ask",
    st.CancelAsked,
    st.HoldAsked,
    st.ReleaseAsked,
    st.SuspendAsked,
    st.ResumeAsked,
    st.SignalAsked,
    st.ChangeAsked,
)


def each(
    ledger: Ledger, wanted: Ask, judge: Callable[[Ledger, Ask], list[ev.Event]]
) -> list[ev.Event]:
    """What `judge` says of the job, or of every task of the array; raises Refused if it refuses
    all of them."""
    roster = ledger.arrays.get(wanted.job_id)
    if roster is None:
        return judge(ledger, wanted)
    found: list[ev.Event] = []
    refusals: list[Refused] = []
    tasks = [] if wanted.unborn_only else sorted(roster.live)
    if roster.unborn:
        tasks.insert(0, roster.unborn.first[1])
    for job_id in tasks:
        try:
            events = judge(ledger, replace(wanted, job_id=job_id))
        except Refused as refusal:
            refusals.append(refusal)
            continue
        found += events if job_id in roster.live else [_together(roster, one) for one in events]
    if len(refusals) == len(tasks):
        raise refusals[0] if refusals else asked.no_such(wanted.job_id)
    return found


def _together(roster: Roster, event: ev.Event) -> ev.Event:
    """The same about all that have no record."""
    assert isinstance(
        event, ev.Cancelled | ev.Held | ev.Released | ev.Changed | ev.DependencySettled
    )
    return replace(event, job_id=roster.array.id)
