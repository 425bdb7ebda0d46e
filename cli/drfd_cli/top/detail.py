"""The page about one job: facts, graphs of what it used, its events, the last of its output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.segment import Segment

from drfd.units import show_cores, show_duration, show_size
from drfd_cli.commands.show import array_lines, job_lines
from drfd_cli.output import ESTIMATE, advice_line, clean, show_time, show_when
from drfd_cli.top.paint import Ink, Line, fit, fit_right, part_of, spark, wrap
from drfd_cli.top.rows import Row
from drfd_cli.top.state import State

#: What is shown of a job on a small screen; a large one has room for all.
_FIRST_FACTS = ("why", "demand", "limit", "started", "command", "tasks", "indices")
_NEVER = ("job", "array", "state")
#: Lines of the page from which on there is room for more facts, and for taller graphs.
_ROOMY, _TALL = 32, 46
_LABEL, _FIGURES = 10, 24
_LEAST_EVENTS = 3
_GRAPHS = ("cores", "memory", "read", "write")


@dataclass(frozen=True)
class Detail:
    """What was last heard of the job; None until it has come."""

    #: The daemon's replies to `show`, `why` and `usage`.
    show: Row | None = None
    why: Row | None = None
    usage: Row | None = None
    #: When (monotonic) it was asked why.
    why_s: float = 0.0
    #: The last lines of its output, and where they are from.
    output: tuple[str, ...] = ()
    path: str = ""
    #: Why there is nothing.
    problem: str = ""


def detail_page(
    detail: Detail | None, state: State, ink: Ink, columns: int, room: int, *, at_s: float
) -> list[Line]:
    """At least `room` lines if there is so much to tell."""
    row = state.job
    assert row is not None
    about = _about(detail) or row
    lines = [_title(row, about, ink, columns, at_s)]
    if detail is None or detail.show is None:
        told = detail.problem if detail is not None and detail.problem else "asking the daemon…"
        return [*lines, [Segment(fit(f" {told}", columns), ink["dim"])]]
    lines += _facts(detail, ink, columns, room)
    if detail.usage is not None:
        height = 4 if room >= _TALL else 2 if room >= _ROOMY else 1
        lines += _graphs(detail.usage, about["demand"], ink, columns, height)
    lines += _notes(detail.why, ink, columns, at_s)
    events = detail.show["events"]
    # Of the rest, the output gets as much as it needs, but for a few of them.
    rest = room - len(lines) - 2
    most = max(_LEAST_EVENTS, rest - max(1, min(len(detail.output), rest - _LEAST_EVENTS)))
    lines.append(_head("events", ink, columns))
    for event in events[-most:]:
        words = f" {show_time(event['at'])}  {event['event']:<17} {event['text']}"
        lines.append([Segment(fit(words, columns))])
    what = "errors" if state.shows_errors else "output"
    lines.append(_head(f"{what} {detail.path}", ink, columns))
    if detail.problem:
        lines.append([Segment(fit(f" {detail.problem}", columns), ink["dim"])])
    # The end of it is what one wants to see, also without scrolling.
    left = max(3, room - len(lines)) if not state.scroll else len(detail.output)
    for text in detail.output[-left:]:
        lines.append([Segment(fit(f" {text}", columns))])
    return lines


def _about(detail: Detail | None) -> Row | None:
    """The job, or the array, as the daemon tells it in full."""
    if detail is None or detail.show is None:
        return None
    about: Row = detail.show.get("array") or detail.show["job"]
    return about


def _title(row: Row, about: Row, ink: Ink, columns: int, at_s: float) -> Line:
    state = about.get("state") or row["state"]
    began_s, ended_s = about.get("started_at"), about.get("ended_at")
    spent = f"  {show_duration((ended_s or at_s) - began_s)}" if began_s else ""
    name = clean(about["name"], 60)
    words = f" job {row['label']}  {name}  of {clean(about['user'], 40)}"
    style = ink["head_focus"]
    told = Segment(f"{state}{spent} ", style)
    return [Segment(fit(words, columns - len(told.text)), style), told]


def _facts(detail: Detail, ink: Ink, columns: int, room: int) -> Iterator[Line]:
    assert detail.show is not None
    if "array" in detail.show:
        facts = array_lines(detail.show["array"])
    else:
        # The page has larger graphs than these.
        facts = job_lines(detail.show["job"], detail.show.get("used"), None)
    for label, value in facts:
        if label in _NEVER or (room < _ROOMY and label not in _FIRST_FACTS):
            continue
        if value == "-":
            continue
        # A reason is what the page is opened for.
        most = 3 if label == "why" else 1
        for at, words in enumerate(wrap(value, columns - _LABEL - 2, most) or [""]):
            name = label if at == 0 else ""
            yield [Segment(fit(f" {name}", _LABEL + 1), ink["dim"]), Segment(words)]


def _notes(why: Row | None, ink: Ink, columns: int, at_s: float) -> Iterator[Line]:
    if why is None:
        return
    words = list(why.get("notes", ()))
    expected_s = why["job"]["expected_start_at"] if "job" in why else None
    if expected_s is not None:
        words.append(f"it starts about {show_when(expected_s, at_s)}, {ESTIMATE}")
    if why.get("advice") is not None:
        words.append(f"next time: {advice_line(why['advice'])}")
    for note in words:
        yield [Segment(fit(f" {note}", columns), ink["good"])]


def _graphs(usage: Row, demand: Row, ink: Ink, columns: int, height: int) -> Iterator[Line]:
    """A graph for each resource that is measured, from the start of its samples to the last."""
    samples, at = usage["usage"], usage["usage"]["at"]
    room = columns - _LABEL - _FIGURES - 3
    if not at or room < 10:
        return
    span = show_duration(at[-1] - at[0])
    yield _head(f"use over {span}", ink, columns)
    for name in _GRAPHS:
        known = [value for value in samples[name] if value is not None]
        declared = demand[name]
        if not known or (not declared and not any(known)):
            continue
        top = max(declared, *known)
        style = "good"
        if name == "memory":
            part = part_of(max(known), declared)
            style = "hot" if part >= 0.95 else "warm" if part >= 0.8 else "good"
        last = samples[name][-1]
        figures = (
            f"{'?' if last is None else _amount(name, last)} of "
            f"{_amount(name, declared) if declared else '-'}, most {_amount(name, max(known))}"
        )
        for row, signs in enumerate(spark(moments(at, samples[name], room), top, height)):
            # Beside the foot of the graph, where there always is something.
            is_foot = row == height - 1
            yield [
                Segment(fit(f" {name if is_foot else ''}", _LABEL + 1), ink["dim"]),
                Segment(signs, ink[style]),
                Segment(" " + fit_right(figures if is_foot else "", _FIGURES)),
            ]


def moments(
    at: Sequence[float], values: Sequence[float | None], columns: int
) -> list[float | None]:
    """The largest sample in each of so many equal parts of the time; where samples are further
    apart, the one before goes on."""
    found: list[float | None] = [None] * columns
    has_sample = [False] * columns
    span = (at[-1] - at[0]) or 1.0
    for moment, value in zip(at, values, strict=True):
        column = min(columns - 1, int((moment - at[0]) / span * columns))
        before = found[column]
        if value is not None:
            found[column] = value if before is None else max(before, value)
        has_sample[column] = True
    for column in range(1, columns):
        if not has_sample[column]:
            found[column] = found[column - 1]
    return found


def _head(words: str, ink: Ink, columns: int) -> Line:
    return [Segment(fit(f" {words} ", columns), ink["head"])]


def _amount(name: str, amount: Any) -> str:
    return show_cores(1000 * amount) if name == "cores" else show_size(amount)
