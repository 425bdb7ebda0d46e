"""The indices of an array's tasks, as people write them: `1,3,7-20:2`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from drfd.errors import Refused

#: First, last, step; the last one is reached.
Span = tuple[int, int, int]
#: Ids of jobs, from the first to the last.
Ids = tuple[int, int]

MAX_INDEX = 10**9
MAX_TASKS = 1_000_000
#: A list of indices shows so many pieces at most.
_MOST_PIECES = 1000
#: So many single indices that lie evenly apart are shown as a range with a step.
_EVEN = 4

_PIECE = re.compile(r"(\d{1,12})(?:-(\d{1,12})(?::(\d{1,12}))?)?", re.ASCII)
_AT_ONCE = re.compile(r"\d{1,12}", re.ASCII)


def count_of(spans: Iterable[Span]) -> int:
    return sum((last - first) // step + 1 for first, last, step in spans)


def show_spans(spans: Iterable[Span]) -> str:
    """`1,3,7-19:2`; of very many, the first."""
    pieces: list[str] = []
    for first, last, step in _folded(spans):
        if len(pieces) == _MOST_PIECES:
            pieces.append("…")
            break
        if first == last:
            pieces.append(str(first))
        elif step == 1:
            pieces.append(f"{first}-{last}")
        else:
            pieces.append(f"{first}-{last}:{step}")
    return ",".join(pieces)


def _folded(spans: Iterable[Span]) -> Iterator[Span]:
    """The same spans, with single indices that lie evenly apart as one, if these are four or more:
    what is left when every second one of very many has been cancelled."""
    run: list[int] = []
    for first, last, step in spans:
        is_even = len(run) < 2 or first - run[-1] == run[1] - run[0]
        if first != last or not is_even:
            # The second of two may be the first of the next ones.
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
    """Ids as ranges."""
    return merged((each, each) for each in ids)


def merged(ids: Iterable[Ids]) -> list[Ids]:
    """The same ranges in order, as few as there can be."""
    found: list[Ids] = []
    for first, last in sorted(ids):
        if found and found[-1][1] == first - 1:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def gaps(ids: Iterable[int], first: int, last: int) -> list[Ids]:
    """What lies between ascending ids, from the first to the last that there could be."""
    found: list[Ids] = []
    for each in [*ids, last + 1]:
        if each > first:
            found.append((first, each - 1))
        first = each + 1
    return found


def read_array(text: str) -> tuple[tuple[Span, ...], int | None]:
    """What `--array` says: `1,3,7-20:2%5`. Raises Refused."""
    pieces, percent, bound = text.partition("%")
    at_once = None
    if percent:
        if not _AT_ONCE.fullmatch(bound) or not int(bound):
            raise _bad(text, f"after % stands how many may run at once, not {bound[:20]!r}")
        at_once = int(bound)
    spans = sorted(_read_piece(text, piece) for piece in pieces.split(","))
    count = count_of(spans)
    if count > MAX_TASKS:
        raise _bad(text, f"{count} tasks; {MAX_TASKS} are the most")
    if any(before[1] >= span[0] for before, span in pairwise(spans)):
        spans = list(_untangled(text, spans))
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
    # One index has one form.
    return first, last, step if last > first else 1


def _untangled(text: str, spans: list[Span]) -> Iterator[Span]:
    """The same indices in order, where ranges with steps lie within each other."""
    indices = sorted(at for first, last, step in spans for at in range(first, last + 1, step))
    for at, after in pairwise(indices):
        if at == after:
            raise _bad(text, f"the index {at} stands there twice")
    for low, high in joined(indices):
        yield low, high, 1


def _bad(text: str, why: str) -> Refused:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    return Refused(
        "bad-value", f"array: {shown!r} is wrong: {why}", hint="write 0-99, 1,3,7-20:2 or 0-999%50"
    )
