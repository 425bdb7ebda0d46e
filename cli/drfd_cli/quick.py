"""An ordinary `drf submit` or `drf run`, without click.

Scripts submit thousands of jobs, and wait for each start of drf. This module reads what needs no
look at the daemon, and does not say what is wrong with a command line: where it returns None or
False, the complete program (`drfd_cli.main`) starts over.

Only modules that Python loads in a millisecond are imported, neither regular expressions nor
`socket`; `tests/bench` measures the time.
"""

from __future__ import annotations

import os
import sys
from itertools import chain

from drfd.client.connection import choose
from drfd.client.option_values import fields_of
from drfd.client.option_values import read as read_value
from drfd.common.errors import ConfigError, DrfdError, Refused, Unavailable
from drfd.payload.environment import ATTACHED, as_given, capture, output_directory
from drfd.payload.pack import output_fields
from drfd.protocol.codec import encode_request
from drfd.protocol.job_options import options_of
from drfd_cli import personal
from drfd_cli.submit_warnings import option_lines, warnings_about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path
    from typing import Any, NoReturn

    from drfd.client.connection import Connection
    from drfd.protocol.job_options import Option

#: The option of both verbs that turns warnings off.
NO_WARNINGS = "--no-warnings"
#: Kinds of options whose text the daemon reads; if it refuses, the complete program says what is
#: wrong.
_TEXTS = ("text", "pool", "group", "file", "array")
#: Kinds of options that the complete program alone reads: it asks, or tells how it reads them.
_OF_WHOLE = ("names", "begin", "events", "command")
#: Longest script.
SCRIPT_MAX_BYTES = 512 << 10


class _Words:
    """Words of a command line: options of a job with their texts, others, and the command."""

    def __init__(self) -> None:
        self.options: dict[Option, list[str]] = {}
        self.others: dict[str, str] = {}
        self.flags: list[str] = []
        self.argv: list[str] = []
        #: Whether the command stands after `--`, so that it is no script.
        self.is_dashed = False


def read_all(
    verb: str, args: list[str], texts: Mapping[str, str], flags: Mapping[str, str]
) -> tuple[dict[str, Any], _Words] | None:
    """Return the fields of a request for these arguments, and their words, with those of a script's
    lines and of the user's own defaults before them; or None if they need the complete program.

    `texts`: options with a value besides those of a job → their names; `flags`: those without one →
    what they say.
    """
    known, texts = options_of(verb), {**texts, "--preset": "preset"}
    words = _read(args, known, texts, flags)
    if words is None:
        return None
    script, lines = None, list[str]()
    if verb == "submit" and not words.is_dashed:
        script = _script(words.argv)
        found = None if script is None else _lines(script)
        if found is None:
            return None
        lines = found
        checked = _read([*lines, "--", "x"], known, texts, flags)
        words = _read([*lines, *args], known, texts, flags)
        if words is None or checked is None or checked.argv != ["x"]:
            return None
    try:
        settings = personal.chosen(verb, words.others.get("preset"), os.environ)
    except ConfigError:
        return None
    if settings:
        words = _read([*(each.word for each in settings), *lines, *args], known, texts, flags)
    fields = None if words is None else _fields(words.options)
    if words is None or fields is None:
        return None
    directory = output_directory(fields.get("cwd", "."), os.environ)
    fields = {**fields, **output_fields(fields, directory), "argv": words.argv}
    if script is not None:
        fields = {"name": os.path.basename(words.argv[0]), **fields, "script": script}
    elif words.argv[0].endswith("sh") and "name" not in fields:
        from drfd.client.shell_lines import name_of

        name = name_of(words.argv)
        fields |= {} if name is None else {"name": name}
    return fields, words


def _read(
    args: list[str], known: Mapping[str, Option], texts: Mapping[str, str], flags: Mapping[str, str]
) -> _Words | None:
    found = _Words()
    left = iter(args)
    for word in left:
        if word == "--":
            found.argv, found.is_dashed = list(left), True
        elif not word.startswith("-") or word == "-":
            found.argv = [word, *left]
        elif word in flags:
            found.flags.append(flags[word])
        else:
            name, value = _split(word)
            option = known.get(name)
            if option is not None and option.kind == "flag" and value is None:
                found.options[option] = []
                continue
            value = next(left, "") if value is None else value
            # An empty value, or one that looks like an option, is a typing error.
            if not value or value.startswith("-"):
                return None
            if name in texts:
                found.others[texts[name]] = value
            elif option is None or option.kind in ("flag", *_OF_WHOLE):
                return None
            else:
                before = found.options.get(option, []) if option.many == "each" else []
                found.options[option] = [*before, value]
    return found if found.argv else None


def _split(word: str) -> tuple[str, str | None]:
    """Return option and value of `--cores=4` or `-c4`; None if the next word is the value."""
    if not word.startswith("--"):
        return word[:2], word[2:] or None
    option, sign, value = word.partition("=")
    return option, value if sign else None


def _script(argv: list[str]) -> str | None:
    """Return the text of an ordinary script, or None if the complete program must read it."""
    name, *words = argv
    # What is read but once, such as a pipe, is left to it.
    if not os.path.isfile(name) or any(word.startswith("-") for word in words):
        return None
    try:
        with open(name, "rb") as file:
            data = file.read(SCRIPT_MAX_BYTES + 1)
    except OSError:
        return None
    is_odd = any(sign in data for sign in (b"\0", b"\r", b"\xef\xbb\xbf", b"#SBATCH"))
    return None if is_odd or len(data) > SCRIPT_MAX_BYTES else data.decode(errors="surrogateescape")


def _lines(script: str) -> list[str] | None:
    """Return the words of the script's #DRF lines, or None if a shell's rules are needed."""
    texts = [text for _, text in option_lines(script, "#DRF")]
    is_plain = all(sign not in text for text in texts for sign in "\"'\\#")
    return [word for text in texts for word in text.split()] if is_plain else None


def _fields(options: Mapping[Option, list[str]]) -> dict[str, Any] | None:
    """Return the fields that these options set, or None if one is wrong."""
    values: dict[str, Any] = {}
    try:
        for option, texts in options.items():
            if option.kind == "limit" and _is_doubtful(texts[-1]):
                return None
            if option.kind == "flag":
                values[option.key] = True
            elif option.kind in _TEXTS:
                values[option.key] = texts[-1]
            else:
                read = [read_value(option, text) for text in texts]
                is_many = option.many == "each"
                values[option.key] = [*chain(*read)] if is_many else read[-1]
    except Refused:
        return None
    fields = {"demand": {}, **fields_of(values)}
    return fields if "times" in fields.get("retry", {"times": 0}) else None


def _is_doubtful(time: str) -> bool:
    """Return whether the complete program tells somebody at a terminal how it reads this time."""
    is_unclear = ":" in time and time.replace(":", "").isdecimal()
    return is_unclear and sys.stderr is not None and sys.stderr.isatty()


def surroundings(keep: Collection[str] = ()) -> dict[str, Any] | None:
    """Return the fields that the job takes from this process: environment, directory and umask.
    `keep` names variables of the login session that it has, too. Returns None if the complete
    program is needed."""
    # A file that drf opens would get the number of a closed standard descriptor.
    if None in (sys.stdin, sys.stdout, sys.stderr):
        return None
    try:
        cwd = os.getcwd()
    except OSError:
        return None
    if not os.access(cwd, os.X_OK):
        return None
    umask = os.umask(0o077)
    os.umask(umask)
    return {"cwd": cwd, "umask": umask, "env": capture(as_given(os.environ), keep)}


def warnings_to_print(fields: Mapping[str, Any], words: _Words) -> list[str] | None:
    """Return the lines that the user should read about this request, or None if the complete
    program must print them: it makes other text harmless for a terminal."""
    if NO_WARNINGS in words.flags:
        return []
    times = (texts[-1] for option, texts in words.options.items() if option.kind == "limit")
    found = [f"time: {each} is {int(each)} seconds ({each}m: minutes)" for each in times
             if each.isdecimal()]  # fmt: skip
    found += warnings_about(fields)
    return found if all(text.isascii() and text.isprintable() for text in found) else None


def warn(warnings: Iterable[str]) -> None:
    for text in warnings:
        print(f"drf: {text}", file=sys.stderr)


def is_sign(value: str) -> bool:
    """Return whether this is a value of `--escape`."""
    return value == "none" or (len(value) == 1 and value.isascii() and value.isprintable())


def _start_own(socket_path: Path) -> None:
    from drfd_cli.options import start_own

    start_own(socket_path)


# -- drf run -----------------------------------------------------------------------------------


def run(args: list[str]) -> None:
    """Run the job of the arguments after `run`, and exit as it does. Returns if the complete
    program must do it; no job is queued then."""
    flags = {"-q": "quiet", "--quiet": "quiet", NO_WARNINGS: NO_WARNINGS}
    found = read_all("run", args, {"--escape": "escape"}, flags)
    if found is None:
        return
    fields, words = found
    escape = words.others.get("escape", "~")
    around = surroundings(ATTACHED)
    if around is None or not is_sign(escape) or not _shows_all_text():
        return
    client = choose(None, start=_start_own)
    fields = client.addressed({**fields, **around})
    warnings = warnings_to_print({**fields, "attach": ""}, words)
    if warnings is None:
        return
    try:
        # What cannot be sent is told by the complete program.
        encode_request(fields)
    except ValueError:
        return
    warn(warnings)
    _run(client, fields, is_quiet="quiet" in words.flags, escape=escape)


def _shows_all_text() -> bool:
    """Return whether messages can be printed as they are; otherwise the complete program replaces
    characters."""
    return {sys.stdout.encoding, sys.stderr.encoding} == {"utf-8"}


def _run(client: Connection, fields: dict[str, object], *, is_quiet: bool, escape: str) -> NoReturn:
    """Submit the job, attend to it, and exit.

    The request is sent before anything else is loaded that the run needs; meanwhile the daemon
    starts the job. Once it is sent, the complete program cannot start over, because the job
    connects to the socket named in the request.
    """
    from drfd_cli.terminal.pty import AttachSocket, catch_signals

    signals = catch_signals()
    try:
        attach_socket = AttachSocket()
        try:
            job = {"key": os.urandom(12).hex(), **fields, "attach": attach_socket.path}
            client.send_submission(job)

            # From here on the daemon is at work; what follows is slow to load.
            from drfd_cli.terminal.attached import attend

            def submit() -> int:
                return client.submitted(job)["id"]

            ended = attend(client, attach_socket, signals, submit, is_quiet=is_quiet, escape=escape)
        finally:
            attach_socket.close()
    except (Exception, KeyboardInterrupt) as error:
        _leave(error)
    sys.stdout.flush()
    # Python's own end takes some milliseconds, in which it only tidies up its memory.
    os._exit(ended["status"])


def _leave(error: BaseException) -> NoReturn:
    from drfd_cli.main import leave

    leave(error)


# -- drf submit --------------------------------------------------------------------------------

#: The forms in which the id is printed. If options for several are given, the last form applies.
_SHOWN = ["submitted job {}", "{}", '{{"id": {}}}']
#: Those that are others for an array.
_SHOWN_ARRAY = {_SHOWN[0]: "submitted array {} of {} tasks", _SHOWN[2]: '{{"id": {}, "tasks": {}}}'}
#: Options of drf without a value → the form that each selects.
_FLAGS = {
    "-q": _SHOWN[1], "--quiet": _SHOWN[1], "--json": _SHOWN[2], NO_WARNINGS: NO_WARNINGS,
}  # fmt: skip


def submit(args: list[str]) -> bool:
    """Queue the job of the arguments after `submit`, and print its id. Returns False if the
    complete program must do it, or say why the daemon has refused it; no job is queued then."""
    found = read_all("submit", args, {}, _FLAGS)
    if found is None:
        return False
    fields, words = found
    around = surroundings()
    if around is None:
        return False
    if "script" in fields:
        around["env"]["DRF_SCRIPT"] = os.path.abspath(words.argv[0])
    client = choose(None, start=_start_own)
    request = client.addressed({**fields, **around})
    warnings = warnings_to_print(request, words)
    if warnings is None:
        return False
    try:
        reply = client.submit(**request)
    except Unavailable as error:
        # It may be queued: a second submission would need the same key.
        _leave(error)
    except DrfdError:
        return False
    if {"drain", "notes"} & reply.keys() and NO_WARNINGS not in words.flags:
        from drfd_cli.output import clean, drain_notices

        warn([*drain_notices(reply), *(clean(each, 1000) for each in reply.get("notes", ()))])
    warn(warnings)
    shown = max((_SHOWN[0], *(form for form in words.flags if form in _SHOWN)), key=_SHOWN.index)
    if "tasks" in reply:
        shown = _SHOWN_ARRAY.get(shown, shown)
    try:
        print(shown.format(reply["id"], reply.get("tasks")), flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe.
        pass
    except OSError as error:
        _leave(error)
    return True
