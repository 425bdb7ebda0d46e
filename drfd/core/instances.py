"""Which of the machine's countable things a job gets: each is held by one job at a time.

The choice is made when a job is admitted and stands in that event, so a restart finds it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator

from drfd.core.resources import Instances

#: What it is, and which: ("gpu", "0").
Instance = tuple[str, str]


def choose(
    asked: Iterable[tuple[str, int]], there: Instances, taken: Container[Instance]
) -> Instances:
    """For each of the counts in `asked` so many instances: the first that are not `taken`.

    There must be as many: a pass admits only what fits, and every job that counts against the
    capacity of a resource has exactly as many of its instances.
    """
    lists = dict(there)
    chosen = []
    for name, count in asked:
        free = [each for each in lists.get(name, ()) if (name, each) not in taken]
        assert len(free) >= count, f"{count} of {name} were admitted, and {free} are free"
        chosen.append((name, tuple(free[:count])))
    return tuple(chosen)


def each_of(instances: Instances) -> Iterator[Instance]:
    return ((name, each) for name, some in instances for each in some)


def count(instances: Instances, sign: int, taken: Counter[Instance]) -> None:
    """Enter (`sign` 1) or strike out (-1) what a job holds. For the ledger alone."""
    for each in each_of(instances):
        taken[each] += sign
        if not taken[each]:
            del taken[each]
