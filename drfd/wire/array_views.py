"""What clients are shown of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from drfd.core.array import Array, Group
from drfd.core.job import Job, Outcome
from drfd.indices import Ids, merged, show_spans
from drfd.wire.views import View, exit_status, resources_view

#: A sentence names so many indices, or ranges of them.
_MOST_TOLD = 20


class Roll(Protocol):
    """How the tasks with a record of their own stand; see `journal.arrays`."""

    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def bad(self) -> Mapping[str, list[Ids]]: ...


def group_view(group: Group, view: View) -> View:
    """The row of tasks that are all alike, from that of a job that stands for them."""
    private = view["stdout"] is not None
    return view | {
        "id": group.array.id,
        "array_tasks": group.indices,
        "tasks": group.size,
        # With their patterns.
        "stdout": group.array.spec.stdout if private else None,
        "stderr": group.array.spec.stderr if private else None,
    }


def array_view(array: Array, roll: Roll, unborn: Group | None) -> View:
    """All about an array. `unborn`: its live tasks without a record of their own."""
    counts, bad = dict(roll.counts), {state: list(ids) for state, ids in roll.bad.items()}
    for group in [unborn, Group(array, array.cancelled)]:
        if group is not None and group.ids:
            state = group.job.shown_state
            counts[state] = counts.get(state, 0) + group.size
            if group is not unborn:
                bad[state] = merged([*bad.get(state, []), *group.ids])
    spec = array.spec
    return {
        "id": array.id,
        "array_id": array.id,
        "array_index": None,
        "array_tasks": array.whole.indices,
        "tasks": array.size,
        "name": spec.name,
        "user": spec.user,
        "uid": spec.uid,
        "pool": spec.pool,
        "counts": counts,
        "indices": {state: _indices(array, ids) for state, ids in bad.items()},
        "demand": resources_view(spec.demand),
        "time_limit_s": spec.time_limit_s,
        "priority": spec.priority,
        "submitted_at": array.common.submitted_at,
        "cwd": spec.cwd,
        "argv": list(spec.argv),
        "stdout": spec.stdout,
        "stderr": spec.stderr,
    }


def ended_view(view: View, bad: Job | None) -> View:
    """An array that is over. `bad`: its first task that did not complete."""
    code = Outcome.COMPLETED if bad is None or bad.outcome is None else bad.outcome
    told = [f"{view['counts'].get(Outcome.COMPLETED, 0)} of {view['tasks']} tasks completed"]
    told += [
        f"{view['counts'][state]} {state} ({_first(indices)})"
        for state, indices in view["indices"].items()
    ]
    return view | {
        "state": code.value,
        "reason": None,
        "outcome": {"code": code.value, "text": "; ".join(told)},
        "status": 0 if bad is None else exit_status(bad),
    }


def _first(indices: str) -> str:
    """As many of them as a sentence bears."""
    pieces = indices.split(",")
    return ",".join([*pieces[:_MOST_TOLD], *["…"] * (len(pieces) > _MOST_TOLD)])


def _indices(array: Array, ids: Iterable[Ids]) -> str:
    return show_spans(array.spans_of(*ids))
