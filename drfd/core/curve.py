"""How the use of a job or a user went, as it is kept and shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

from drfd.core.series import Point

#: A point counts as so many readings of the memory as there are of these in its length.
_READING_MS = 2000

Column = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points, the oldest first: when each ends, how long it is, and the means of that time; None,
    and a column that is empty altogether: not known."""

    #: Of a user: 0.
    attempt: int
    #: Unix time of the first end; and the time from each end to the next one, the first is 0.
    start_ms: int = 0
    ends_ms: tuple[int, ...] = ()
    spans_ms: tuple[int, ...] = ()
    cores_milli: Column = ()
    memory_kib: Column = ()
    read_kib_s: Column = ()
    write_kib_s: Column = ()

    @classmethod
    def of(cls, attempt: int, points: Iterable[Point]) -> Curve:
        """Of points whose ends are Unix times."""
        found = list(points)
        if not found:
            return cls(attempt)
        starts = [found[0].end_ms, *(each.end_ms for each in found[:-1])]
        return cls(
            attempt,
            found[0].end_ms,
            tuple([each.end_ms - start for each, start in zip(found, starts, strict=True)]),
            tuple([each.span_ms for each in found]),
            _known([each.cores_milli for each in found]),
            _known([_kib(each.memory_bytes) for each in found]),
            _known([_kib(each.read_bps) for each in found]),
            _known([_kib(each.write_bps) for each in found]),
        )

    def __len__(self) -> int:
        return len(self.ends_ms)

    def points(self) -> Iterator[Point]:
        """As they were, but for what was rounded."""
        end_ms = self.start_ms
        rows = zip(
            self.ends_ms,
            self.spans_ms,
            self.cores_milli or repeat(None),
            self.memory_kib or repeat(None),
            self.read_kib_s or repeat(None),
            self.write_kib_s or repeat(None),
            strict=False,
        )
        for later_ms, span_ms, cores, memory, read, written in rows:
            end_ms += later_ms
            yield Point(
                end_ms,
                span_ms,
                0 if cores is None else cores * span_ms,
                0 if cores is None else span_ms,
                0 if memory is None else (memory << 10) * max(1, span_ms // _READING_MS),
                0 if memory is None else max(1, span_ms // _READING_MS),
                0 if read is None else (read << 10) * span_ms // 1000,
                0 if read is None else span_ms,
                0 if written is None else (written << 10) * span_ms // 1000,
                0 if written is None else span_ms,
            )


def _known(column: list[int | None]) -> Column:
    return tuple(column) if any(each is not None for each in column) else ()


def _kib(amount: int | None) -> int | None:
    return None if amount is None else amount >> 10
