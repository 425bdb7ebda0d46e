"""The indices of an array's tasks as text, `1,3,7-20:2`, and the names of groups of jobs."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate, islice, pairwise

from drfd.common.errors import Refused

#: (first, last, step); the last index belongs to the span.
Span = tuple[int, int, int]
#: A range of job ids: (first, last).
Ids = tuple[int, int]

MAX_INDEX = 10**9
MAX_TASKS = 20_000
#: Maximum number of pieces in a list of indices for people, and of spans read to make it. The
#: daemon makes thousands of such lists for a list of all jobs, and answers no other client then.
_MOST_PIECES, _MOST_SHOWN = 1000, 5_000
#: Maximum number of spans of an array, as many as fit into a request.
MOST_SPANS = 2_048
#: Least number of single, evenly spaced indices that are shown as a range with a step.
_EVEN = 4

_PIECE = re.compile(r"(\d{1,12})(?:-(\d{1,12})(?::(\d{1,12}))?)?", re.ASCII)
_AT_ONCE = re.compile(r"\d{1,12}", re.ASCII)


class Spans(tuple[Span, ...]):
    """Spans in order that do not overlap. The sums of indices are computed once, because a task of
    an array is looked up many times."""

    @cached_property
    def _until(self) -> list[int]:
        """The number of indices up to the end of each span."""
        return list(accumulate((last - first) // step + 1 for first, last, step in self))

    @property
    def size(self) -> int:
        """The number of indices."""
        return self._until[-1] if self else 0

    def before(self, at: int) -> int:
        """Return the number of indices in the spans before this one."""
        return self._until[at - 1] if at else 0

    def part(self, first: int, last: int) -> Iterator[Span]:
        """Yield the indices between two positions, counted from 0 and both included, as spans."""
        at = bisect_right(self._until, first)
        while first <= last and at < len(self):
            start, _, step = self[at]
            skipped = first - self.before(at)
            taken = min(self._until[at] - 1, last) - first
            low = start + skipped * step
            yield low, low + taken * step, step
            first, at = first + taken + 1, at + 1


def count_of(spans: Iterable[Span]) -> int:
    return sum((last - first) // step + 1 for first, last, step in spans)


def show_spans(spans: Iterable[Span]) -> str:
    """Return spans as text such as `1,3,7-19:2`, cut after the first thousand pieces."""
    pieces: list[str] = []
    left = iter(spans)
    for first, last, step in _folded(islice(left, _MOST_SHOWN)):
        if len(pieces) == _MOST_PIECES:
            pieces.append("…")
            return ",".join(pieces)
        if first == last:
            pieces.append(str(first))
        elif step == 1:
            pieces.append(f"{first}-{last}")
        else:
            pieces.append(f"{first}-{last}:{step}")
    if next(left, None) is not None:
        pieces.append("…")
    return ",".join(pieces)


def show_numbers(numbers: Iterable[int]) -> str:
    """Return indices as text, such as `1,3,7-9`."""
    return show_spans((first, last, 1) for first, last in joined(numbers))


def _folded(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield equal spans in which four or more single, evenly spaced indices are one. Such indices
    remain when every second task of a large array has been cancelled."""
    run: list[int] = []
    for first, last, step in spans:
        is_even = len(run) < 2 or first - run[-1] == run[1] - run[0]
        if first != last or not is_even:
            # The second of two may begin the next sequence.
            kept = run[1:] if first == last and len(run) == 2 else []
            yield from _as_spans(run[: len(run) - len(kept)])
            run = kept
        if first == last:
            run.append(first)
        else:
            yield first, last, step
    yield from _as_spans(run)


def _as_spans(run: list[int]) -> Iterator[Span]:
    if len(run) < _EVEN:
        yield from ((at, at, 1) for at in run)
    else:
        yield run[0], run[-1], run[1] - run[0]


def joined(ids: Iterable[int]) -> list[Ids]:
    """Return ids as ranges in order."""
    found: list[Ids] = []
    for each in sorted(ids):
        if found and found[-1][1] == each - 1:
            found[-1] = found[-1][0], each
        else:
            found.append((each, each))
    return found


def gaps(ids: Iterable[int], first: int, last: int) -> list[Ids]:
    """Return the ranges between `first` and `last` that the ascending `ids` leave out."""
    found: list[Ids] = []
    for each in [*ids, last + 1]:
        if each > first:
            found.append((first, each - 1))
        first = each + 1
    return found


def read_array(text: str) -> tuple[tuple[Span, ...], int | None]:
    """Parse the value of `--array`, such as `1,3,7-20:2%5`, into spans and the most tasks at once.
    Raises Refused."""
    pieces, percent, bound = text.partition("%")
    at_once = None
    if percent:
        if not _AT_ONCE.fullmatch(bound) or not int(bound):
            raise _bad(text, f"after % stands how many may run at once, not {bound[:20]!r}")
        at_once = int(bound)
    spans = sorted(_read_piece(text, piece) for piece in pieces.split(","))
    count = count_of(spans)
    if count > MAX_TASKS:
        why = f"{count} tasks, and an array has at most {MAX_TASKS}"
        raise _bad(text, why, hint="submit several arrays")
    if any(before[1] >= span[0] for before, span in pairwise(spans)):
        spans = list(_disjoint(text, spans))
    return tuple(spans), at_once


def _read_piece(text: str, piece: str) -> Span:
    found = _PIECE.fullmatch(piece.strip())
    if found is None:
        raise _bad(text, f"{piece[:40]!r} is neither an index nor a range")
    first = int(found[1])
    last = int(found[2] or first)
    step = int(found[3] or 1)
    if last > MAX_INDEX:
        raise _bad(text, f"{last} is above the highest index, {MAX_INDEX}")
    if last < first:
        raise _bad(text, f"the range {piece[:40]} ends before it begins")
    if not step:
        raise _bad(text, f"the step of {piece[:40]} is 0")
    last -= (last - first) % step
    # A single index has step 1, so that equal spans are equal tuples.
    return first, last, step if last > first else 1


def _disjoint(text: str, spans: list[Span]) -> Iterator[Span]:
    """Yield the indices of overlapping ranges as spans in order, each once. Raises Refused for too
    many spans."""
    indices = {at for first, last, step in spans for at in range(first, last + 1, step)}
    found = joined(sorted(indices))
    if len(found) > MOST_SPANS:
        raise _bad(text, f"it comes to {len(found)} pieces; {MOST_SPANS} are the most")
    for low, high in found:
        yield low, high, 1


def _bad(text: str, why: str, hint: str = "write 0-99, 1,3,7-20:2 or 0-999%50") -> Refused:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    return Refused("bad-value", f"array: {shown!r} is wrong: {why}", hint=hint)


_GROUP_NAME = re.compile(r"\w[\w.+-]{0,63}")
_GROUP_BOUND = re.compile(r"[0-9]{1,9}", re.ASCII)


def read_group(text: str) -> tuple[str, int | None]:
    """Parse the value of `--group`, `sweep` or `sweep%2`, into the name of a group that users make
    of their own jobs, and the most jobs of it that may run at once, or None if there is no such
    limit. Raises Refused."""
    name, percent, bound = text.partition("%")
    fault = None
    if not _GROUP_NAME.fullmatch(name):
        fault = "a group's name has 1 to 64 letters, digits and, not first, .+-"
    elif percent and not (_GROUP_BOUND.fullmatch(bound) and int(bound)):
        fault = f"after % stands how many may run at once, not {bound[:20]!r}"
    if fault is not None:
        hint = "write --group sweep, or --group sweep%2 for two at once"
        raise Refused("bad-value", f"--group: {text[:40]!r}: {fault}", hint=hint)
    return name, int(bound) if percent else None
