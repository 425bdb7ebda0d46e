"""How many live jobs there are: by state and, of those that wait to start, by user."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from drfd.core.job import JobSpec, JobState


@dataclass
class Census:
    """Counters of what there is: nothing stands in them with a zero."""

    states: Counter[JobState] = field(default_factory=Counter)
    #: Jobs not yet started (PENDING or HELD) by user name.
    waiting: Counter[str] = field(default_factory=Counter)
    #: How long their texts are, those of an array's tasks each for itself.
    letters: Counter[str] = field(default_factory=Counter)

    def count(self, spec: JobSpec, state: JobState, change: int) -> None:
        """So many more jobs, alike, in this state."""
        if state is JobState.ENDED:
            return
        _add(self.states, state, change)
        if state in (JobState.PENDING, JobState.HELD):
            _add(self.waiting, spec.user, change)
            _add(self.letters, spec.user, change * spec.letters)


def _add(counter: Counter[Any], key: object, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]
