"""Reads a trace: recognises what it is, and names each line that is no job."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from drfd.errors import Refused
from drfd.sim.forms import Form, Row, recognise
from drfd.sim.rows import Bad, Found, collect
from drfd.sim.swf import is_swf, read_swf
from drfd.sim.workload import Workload

_GZIP = b"\x1f\x8b"
#: Letters of a line; the longest real ones have a few hundred.
_LONGEST = 100_000


def read_trace(path: Path, *, rates: tuple[int, int] = (0, 0)) -> Workload:
    """Plain or gzip. `rates`: what the simulated machine reads and writes per second; see
    `sim.forms.recognise`. Raises Refused when it cannot be read as a trace at all."""
    try:
        with path.open("rb") as file:
            return read_binary(file, source=str(path), rates=rates)
    except OSError as error:
        raise Refused("no-trace", f"{path}: cannot be read: {error.strerror}") from None


def read_binary(file: BufferedReader, *, source: str, rates: tuple[int, int] = (0, 0)) -> Workload:
    """The same of a file that is open; `source`: what it and results will be called."""
    try:
        return read_lines(_decoded(file), source=source, rates=rates)
    except Refused as error:
        raise Refused(error.code, f"{source}: {error.text}", hint=error.hint) from None
    except UnicodeDecodeError:
        raise Refused("bad-trace", f"{source}: is not UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise Refused("bad-trace", f"{source}: the gzip file is damaged or cut short") from None


def read_lines(lines: Iterable[str], *, source: str, rates: tuple[int, int] = (0, 0)) -> Workload:
    """`source`: what results will name."""
    rest = iter(lines)
    first = next(rest, "").removeprefix("\ufeff")
    if is_swf(first):
        return read_swf(_and(first, rest), source=source)
    header = next(csv.reader([first]), [])
    doubled = [each for at, each in enumerate(header) if each in header[:at]]
    if doubled:
        raise Refused("bad-trace", f"line 1: there are two columns {doubled[0]!r}")
    form = recognise(header, rates)
    return collect(_rows(rest, header, form), source=source, kind=form.kind, notes=form.notes)


def _decoded(file: BufferedReader) -> Iterator[str]:
    raw = BufferedReader(gzip.GzipFile(fileobj=file)) if file.peek(2)[:2] == _GZIP else file
    with TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
        while line := text.readline(_LONGEST):
            yield line


def _and(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _rows(
    lines: Iterator[str], header: list[str], form: Form
) -> Iterator[tuple[int, Callable[[], Found]]]:
    for at, line in enumerate(lines, start=2):
        if line.strip():
            # Each line by itself: a stray quote spoils one job, not all that come after it.
            yield at, lambda line=line: form.read(_row(line, header))  # type: ignore[misc]


def _row(line: str, header: list[str]) -> Row:
    try:
        cells = next(csv.reader([line], strict=True))
    except csv.Error:
        raise Bad("its quotes do not match") from None
    if len(cells) != len(header):
        raise Bad(f"it has {len(cells)} fields, not {len(header)}")
    return dict(zip(header, cells, strict=True))
