"""Output of the verbs: results as tables, JSON, parsable lines or CSV; messages; safe text.

A verb returns a `Result`, and `render` prints it in the form that its options ask for. Data goes to
stdout, messages to stderr. Text of other users is made harmless for a terminal (`clean`). rich is
imported only to measure text that is not ASCII.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from drfd.client.shell_lines import line_in, name_of
from drfd.common.units import (
    clock_time,
    in_local_time,
    show_duration,
    show_need,
    show_range,
    show_size,
)

if TYPE_CHECKING:
    from drfd.client.words import Ref
    from drfd.protocol.replies import (
        AdviceView,
        ArrayView,
        BatchReply,
        CodeText,
        DrainPart,
        EndedArrayView,
        ExpectedStart,
        HelloReply,
        JobView,
        ProgressView,
        RatesView,
        ResourcesView,
        StatusReply,
        SubmitReply,
    )

#: The exit code of waiting for a job that can never run.
NEVER_RAN = 125
#: States of jobs that have not started, of those that have, and of all that have not ended.
WAITING = ("PENDING", "HELD")
STARTED = ("STARTING", "RUNNING", "SUSPENDED", "STOPPING", "CLEANING")
LIVE = (*WAITING, *STARTED)
#: How jobs end.
ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "LIMIT_EXCEEDED"),
    *("LAUNCH_FAILED", "LOST"),
)
V = TypeVar("V")
Reply = TypeVar("Reply")
#: Seconds below which the run time of an ended job is shown in tenths.
_SHORT_S = 9.95
#: Characters that change the direction of text: they can make one name look like another.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Most combining marks that a character keeps.
_MOST_MARKS = 2
#: Width of a table that goes to a file or a pipe.
_PLAIN_WIDTH = 160
#: Least columns of a screen on which unnamed jobs have their commands.
_WITH_COMMANDS = 110
#: Columns of a name or command on screens of at least `_VERY_WIDE` columns.
_LONG_NAME, _VERY_WIDE = 48, 170


def clean(text: object, most: int = 200) -> str:
    """Return the text without characters that act on a terminal, cut to `most` characters, and with
    the daemon's times in the zone of this process."""
    word = in_local_time(str(text))
    if word.isascii() and word.isprintable() and len(word) <= most:
        return word
    word = "".join(_harmless(word))
    return word if len(word) <= most else word[: most - 1] + "…"


def _harmless(text: str) -> Iterator[str]:
    """Yield characters that act on no terminal, with a bounded number of marks on each: more reach
    into other lines."""
    from unicodedata import combining

    marks = 0
    for char in text:
        marks = marks + 1 if combining(char) else 0
        # Terminals disagree on the width that variation selectors give a character.
        if marks <= _MOST_MARKS and not "\ufe00" <= char <= "\ufe0f":
            yield char if char.isprintable() and char not in _BIDI else "?"


def columns_of(text: str) -> int:
    """Return the width of the text on a screen: some characters take two columns, marks none."""
    if text.isascii() or text.replace("…", "").isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return the text padded to this width, with blanks before it if `right`, else after it."""
    blanks = " " * (columns - columns_of(text))
    return blanks + text if right else text + blanks


def shorten(text: object, columns: int) -> str:
    """Return the cleaned text, cut to this width on a screen."""
    return cut(clean(text), columns)


def cut(word: str, columns: int) -> str:
    """Return a cleaned text, cut to this width on a screen."""
    if columns_of(word) <= columns:
        return word
    room = columns - 1
    for at, char in enumerate(word):
        room -= columns_of(char)
        if room < 0:
            return word[:at] + "…"
    return word


def named(job: JobView, columns: int, *, always: bool = False) -> str:
    """Return the name of a job, cut to so many columns, or more on a very wide screen. On a wide
    one, or any if `always`, a name that is only the program's is replaced by the command, where
    that is known. In a file a name stays a word, for programs that split lines."""
    argv, name = job["argv"], job["name"]
    if not has_screen() or (width() < _WITH_COMMANDS and not always):
        return shorten(name, columns)
    if argv:
        line, program = line_in(argv), argv[0].rpartition("/")[2] or "job"
        if line is not None and name in (name_of(argv), program):
            # Of a line for a shell, `sh -c` would take the room.
            name = " ".join(line.split())
        elif name == program:
            name = " ".join([name, *argv[1:]])
    return shorten(name, _LONG_NAME if width() >= _VERY_WIDE else columns)


def ref(row: JobView) -> Ref:
    """Return what a request names the job of a row by: its id, of a task its label."""
    return row["id"] if row["array_id"] is None else label(row)


def launcher_away(reply: BatchReply | HelloReply | StatusReply) -> str | None:
    """Return the notice that the launcher is away, or None if there is none."""
    found = (each for each in reply.get("notices") or () if each["code"] == "LAUNCHER_AWAY")
    return next((clean(notice["text"], 1000) for notice in found), None)


def notices(reply: StatusReply) -> list[str]:
    """Return the lines about the service as a whole, which are printed before a list."""
    texts = [clean(notice["text"], 1000) for notice in reply.get("notices") or []]
    return [*texts, *drain_notices(reply)]


def drain_notices(reply: DrainPart) -> list[str]:
    """Return the line that says that launching is stopped, by whom and why, or none."""
    drain = reply.get("drain")
    if drain is None:
        return []
    since = clock_time(drain["since"])
    text = f"draining: no job starts until drf undrain (by {drain['by']} since {since})"
    return [clean(f"{text}: {drain['reason']}" if drain["reason"] else text, 1000)]


def shell_line(argv: Sequence[str]) -> str:
    """Return the command as one line that a shell reads as these words. Characters that `clean`
    would replace are written as in $'one\\ntwo'."""
    return " ".join(map(_shell_word, argv))


def _shell_word(word: str) -> str:
    if all(char.isprintable() and char not in _BIDI for char in word):
        from shlex import quote

        return quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable() and char not in _BIDI:
        return char
    # Bytes that are no text are surrogates, as in the file system's names.
    code = ord(char)
    number = f"x{code & 0xFF:02x}" if code < 0x80 or 0xDC80 <= code <= 0xDCFF else f"U{code:08x}"
    return "\\" + {"\n": "n", "\t": "t", "\r": "r"}.get(char, number)


def tell(text: object) -> None:
    """Print one line of data on stdout, cleaned."""
    click.echo(clean(text, 2000))


def say(text: str) -> None:
    """Print a message on stderr, in one line."""
    click.echo(f"drf: {clean(text, 1000)}", err=True)


def width(stream: TextIO | None = None) -> int:
    """Return the width of the screen behind `stream` or stdout, or the width of a file."""
    named = os.environ.get("COLUMNS", "")
    if stream is None and named.isdecimal() and int(named):
        return int(named)
    screen = stream or sys.__stdout__
    try:
        file = 1 if screen is None else screen.fileno()
        return os.get_terminal_size(file).columns or _PLAIN_WIDTH
    except (OSError, ValueError):
        return _PLAIN_WIDTH


def has_screen() -> bool:
    """Return whether stdout is for a screen, the width of which is known."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def wrapped(text: str, columns: int) -> list[str]:
    """Return the text in lines of at most so many columns, broken between words if possible."""
    lines = [""]
    for word in text.split():
        while columns_of(word) > max(2, columns):
            lines += [""] if lines[-1] else []
            fits = (at for at in range(len(word), 1, -1) if columns_of(word[:at]) <= columns)
            cut = next(fits, 1)
            lines[-1], word = word[:cut], word[cut:]
            lines += [""] if word else []
        if lines[-1] and columns_of(f"{lines[-1]} {word}") > columns:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def number(amount: float) -> str:
    """Return a number with at most two decimals."""
    return f"{amount:.2f}".rstrip("0").rstrip(".")


def amount_of(amounts: Mapping[str, object] | None, axis: str) -> float | None:
    """Return the amount of a resource, or None if it is not known."""
    amount = (amounts or {}).get(axis)
    return amount if isinstance(amount, int | float) else None


def show_cores_of(demand: ResourcesView, show: Callable[[float], str] = number) -> str:
    """Return cores as "4", or as "2..8" if they are a range."""
    most = demand.get("cores_max")
    return show_range(show(demand["cores"]), None if most is None else show(most))


def show_io(rates: ResourcesView | RatesView) -> str:
    """Return the rates as "200M/50M", or "-" if both are zero."""
    read, write = rates["read"], rates["write"]
    return f"{show_size(read)}/{show_size(write)}" if read or write else "-"


def show_gres(counts: Mapping[str, int]) -> str:
    """Return counts as "2 gpu, 1 tape", or "-" if there are none."""
    return ", ".join(show_need(clean(name), count) for name, count in counts.items()) or "-"


def show_gres_demand(demand: ResourcesView) -> str:
    """Return counts with the memory that is declared: "2 gpu with 20G of memory each"."""
    memory = demand.get("gres_memory", {})
    words = []
    for name, count in demand["gres"].items():
        each = " each" if count > 1 else ""
        size = f" with {show_size(memory[name])} of memory{each}" if name in memory else ""
        words.append(f"{count} {clean(name)}{size}")
    return ", ".join(words) or "-"


def show_held(job: JobView) -> str:
    """Return the allocated instances, "gpu 0,1", or the requested counts, "2 gpu"."""
    held = job.get("gres_instances")
    if not held:
        return show_gres(job["demand"]["gres"])
    return ", ".join(f"{clean(name)} {clean(','.join(each))}" for name, each in held.items())


def label(job: JobView | ArrayView) -> str:
    """Return the label of a job: `42`, or `42_7` for a task of an array."""
    if job["array_index"] is None:
        return str(job["id"])
    return f"{job['array_id']}_{job['array_index']}"


def run_s(job: ProgressView, at_s: float) -> float:
    """Return for how many seconds the latest attempt has run until `at_s`, without the time of its
    suspensions: what counts against its time limit."""
    if job["started_at"] is None:
        return 0.0
    until_s = job.get("suspended_at") or job["ended_at"] or at_s
    return until_s - job["started_at"] - job.get("suspended_seconds", 0.0)


def exit_words(job: ProgressView) -> str:
    """Return the exit code, or the name of the signal that ended the job, or "" for none."""
    number = job["signal"]
    if number is None:
        return "" if job["exit_code"] is None else str(job["exit_code"])
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def show_elapsed(job: JobView) -> str:
    if job["started_at"] is None:
        return "-"
    ran_s = run_s(job, time.time())
    return show_run_time(ran_s, has_ended=job["ended_at"] is not None)


def show_run_time(ran_s: float, *, has_ended: bool) -> str:
    # Of a short job that has ended, a second is too coarse.
    is_short = has_ended and 0 <= ran_s < _SHORT_S
    return f"{ran_s:.1f}s" if is_short else show_duration(ran_s)


def counted(number: int, word: str) -> str:
    """Return `1 job` or `2,000 jobs`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def listed(words: Sequence[str], most: int) -> str:
    """Return the words, of more than so many the first ones: `41, 42 and 3 more`."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def submitted(reply: SubmitReply) -> str:
    """Return what a submission has made: `job 42`, or `array 42 of 10 tasks`."""
    count = reply.get("tasks")
    return (
        f"job {reply['id']}"
        if count is None
        else (f"array {reply['id']} of {count} task{'' if count == 1 else 's'}")
    )


def show_time(at_s: float | None) -> str:
    if at_s is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def show_when(at_s: float, now_s: float | None = None) -> str:
    """Return a time near now in the local time zone: "14:05 (in 12m30s)",
    "tomorrow 03:00 (in 9h10m)", "yesterday 23:10 (3h02m ago)", "2026-11-20 14:05"."""
    now_s = time.time() if now_s is None else now_s
    days = round((_midnight(at_s) - _midnight(now_s)) / 86400)
    day = {0: "", 1: "tomorrow ", -1: "yesterday "}.get(days)
    if day is None:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))
    clock = day + time.strftime("%H:%M", time.localtime(at_s))
    apart = show_duration(abs(at_s - now_s))
    return f"{clock} (in {apart})" if at_s >= now_s else f"{clock} ({apart} ago)"


def _midnight(at_s: float) -> float:
    return time.mktime((*time.localtime(at_s)[:3], 0, 0, 0, 0, 0, -1))


#: The assumptions on which an expected start rests, by its certainty.
ESTIMATE = "if running jobs end as estimated and none is submitted ahead of it"
_RESTS_ON = {
    "limits": "unless jobs are submitted ahead of it",
    "estimated": "estimated from few earlier jobs, unless jobs are submitted ahead of it",
}


def start_line(
    job: ExpectedStart, *, verb: str = "starts", now_s: float | None = None
) -> str | None:
    """Return when a waiting job starts and on what that rests, or None if nothing was found out."""
    start_s, certainty = job["expected_start_at"], job.get("expected_start_certainty")
    if start_s is None:
        if certainty != "unknown":
            return None
        because = "too little is known about the jobs before it"
        return f"when it {verb} is unknown: {clean(job.get('expected_start_unknown', because))}"
    near = "by" if certainty == "limits" else "about"
    rests_on = _RESTS_ON.get(certainty or "", ESTIMATE)
    return f"it {verb} {near} {show_when(start_s, now_s)}, {rests_on}"


def why_line(job: JobView | EndedArrayView) -> str:
    """Return the reason or outcome in one line. The state of a suspended job stands for the code
    HELD, which it has in common with jobs on hold."""
    reason = job["reason"]
    if reason is not None and job["state"] == "SUSPENDED" and reason["code"] == "HELD":
        reason = {**reason, "code": "SUSPENDED"}
    return code_line(reason or job["outcome"])


def code_line(about: CodeText | None) -> str:
    # For jobs of other users the text of the outcome is empty.
    return "" if about is None else f"{about['code']}: {about['text']}".removesuffix(": ")


def has_run(job: JobView) -> bool:
    """Return whether an attempt of the job has started: it may have written output."""
    # A job that is queued again has no time of its start, but a text on its attempts.
    return job["started_at"] is not None or bool(job.get("attempts"))


def tell_never(job: JobView) -> None:
    """Print that a job that is being waited for can never start."""
    why = "" if job["reason"] is None else job["reason"]["text"]
    say(f"job {label(job)} never starts: {why}")


def advice_line(advice: AdviceView) -> str:
    """Return the options suggested for the next run, and the jobs they are based on."""
    count = advice["jobs"]
    basis = "its last job" if count == 1 else f"its last {count} jobs"
    short = f", {advice['short_jobs']} cut short" if advice["short_jobs"] else ""
    note = f": {advice['cores_note']}" if "cores_note" in advice else ""
    return f"drf submit {' '.join(advice['options'])}  (from {basis}{short}{note})"


class StatusLine:
    """A line on standard error that is rewritten in place; nothing if that is no terminal."""

    def __init__(self) -> None:
        self.is_live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_shown = False

    def show(self, text: str) -> None:
        """Show the text in place of the one before, or with an empty one erase that."""
        if self.is_live and (text or self._is_shown):
            # Return to the beginning of the line and erase it (ECMA-48 EL).
            sys.stderr.write(f"\r\x1b[K{shorten(text, width(sys.stderr) - 1)}")
            sys.stderr.flush()
            self._is_shown = bool(text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def are_together() -> bool:
    """Return whether what is printed on standard output and on standard error is read as one text:
    on a terminal, or in one log."""
    try:
        return is_terminal() or os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def confirm(question: str, *, default: bool = False) -> bool:
    """Ask on stderr until the answer is yes or no; an empty one is `default`. Raises click.Abort at
    the end of the input."""
    words = {"y": True, "yes": True, "n": False, "no": False, "": default}
    while True:
        text = f"{question} [{'Y/n' if default else 'y/N'}]"
        answer = click.prompt(text, default="", show_default=False, err=True).strip().lower()
        if answer in words:
            return words[answer]
        say(f"{clean(answer, 40)!r} is neither y (yes) nor n (no)")


def require(question: str) -> None:
    """Raise click.Abort unless the answer is yes."""
    if not confirm(question):
        raise click.Abort


#: The value of `--color`.
colour = "auto"


def has_colour() -> bool:
    if colour != "auto":
        return colour == "always"
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal() and not plain


# -- forms: text for people, JSON, parsable lines, CSV -------------------------------------------
#
# Parsable lines are stable across releases: one line for each job or node, columns split by tabs.
# Sizes are in bytes, rates in bytes per second, times in Unix seconds; an unknown value is empty.
# No value contains a tab or a line end, whatever the name of a job.


@dataclass(frozen=True)
class Column:
    """A column of a list, with all that is said of it."""

    title: str
    #: Returns the text of a row for people; None if there is no value.
    show: Callable[[Any], object] = str
    #: Its name for -o and for programs, or "" in a table that has no other forms.
    key: str = ""
    #: Returns the value for programs; without it, only people have it.
    value: Callable[[Any], object] | None = None
    #: Whether only jobs that have ended have it.
    is_past: bool = False
    is_right: bool = False
    #: Whether it is never cut on a narrow screen.
    is_fixed: bool = False
    #: Whether it has sentences, which as the last column are broken into lines and, on a screen,
    #: told once for neighbours.
    is_sentence: bool = False
    #: The order in which columns are added to a narrow screen; 0 for those that it always has, and
    #: below 0 for those that it has if a row has a value.
    rank: int = 0
    #: The width to which it is cut in any case, and to which it is cut before others are left out;
    #: 0 for none.
    most: int = 0
    least: int = 0
    #: Its names in Slurm's lists: the sign of `squeue -o` (or the name of -O in braces), the head
    #: there, names of -O; names of `sacct` with their widths. It has the value for programs there.
    squeue: str = ""
    sacct: str = ""

    def cell(self, view: Any, *, missing: str = "-") -> object:
        """Return what people see of a row."""
        text = self.show(view)
        return missing if text is None else text

    def word(self, view: Any) -> object:
        """Return what programs get of a row; None if it is unknown."""
        return self.show(view) if self.value is None else self.value(view)


#: Columns by their keys.
Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Result:
    """The result of a verb: a function for each form. One of them is called, and then `finish`."""

    #: Print the result for people.
    show: Callable[[], None]
    #: Return the object that --json prints.
    view: Callable[[], object]
    #: Return the jobs or nodes that --parsable and --csv list, page by page.
    rows: Callable[[], Iterable[Sequence[Any]]] | None = None
    #: Their columns, if they are not those of the verb.
    columns: Columns | None = None
    #: Print messages on stderr, which belong to no form, and return the exit code.
    finish: Callable[[], int] | None = None


def of_each(
    ids: Iterable[V],
    ask: Callable[[V], Reply],
    show: Callable[[Reply], None],
    view: Callable[[Reply], object],
) -> Result:
    """Return the result of a verb about one job, or about each of several: with a blank line
    between them, or as the list `jobs`."""
    replies = [ask(each) for each in ids]

    def show_all() -> None:
        for number, reply in enumerate(replies):
            if number:
                tell("")
            show(reply)

    def view_all() -> object:
        views = [view(each) for each in replies]
        return views[0] if len(views) == 1 else {"jobs": views}

    return Result(show_all, view_all)


@dataclass(frozen=True)
class Form:
    """The form that the options of a command line ask for."""

    as_json: bool = False
    #: Whether lines for programs are split by commas or by tabs; None if none are asked for.
    as_csv: bool | None = None
    no_header: bool = False
    #: The keys given with -o, or None for all columns.
    chosen: Sequence[str] | None = None

    @property
    def is_for_people(self) -> bool:
        return not (self.as_json or self.no_header) and self.as_csv is None


def render(result: Result, form: Form, columns: Columns) -> int:
    """Print the result in this form and return the exit code."""
    if form.as_json:
        from json import dumps

        click.echo(dumps(result.view()))
    elif form.is_for_people or result.rows is None:
        result.show()
    else:
        _print_lines(result.rows(), form, result.columns or columns)
    return 0 if result.finish is None else result.finish()


def _print_lines(pages: Iterable[Sequence[Any]], form: Form, columns: Columns) -> None:
    keys = form.chosen or [each.key for each in columns.values() if each.value is not None]
    lines = [] if form.no_header else [[*keys]]
    for views in pages:
        lines += [[_word(columns[key].word(view)) for key in keys] for view in views]
        if form.as_csv:
            import csv

            csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
        elif lines:
            click.echo("\n".join(map("\t".join, lines)))
        lines = []


def _word(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.9f}".rstrip("0").rstrip(".")
        case _:
            return clean(value, 4096)


def pick(view: Mapping[str, object], keys: Iterable[str]) -> dict[str, object]:
    """Return those of the keys that the view has, with their values."""
    return {key: view[key] for key in keys if key in view}
