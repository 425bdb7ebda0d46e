"""Completion of the word at the cursor: `drf _complete SHELL NUMBER WORDS...`, which shells run.

Each line of the output is a candidate, with a tab and a description where there is one. A line that
begins with a colon leaves the word to the shell: `:files`, or `:command N` for a command line that
begins with word N.

Shells wait for this program at each TAB, so it loads neither click nor the client library. Verbs
and options come from a table that the complete program writes into the user's cache once for each
version (`drfd_cli.words.table`).
"""

from __future__ import annotations

import os
import sys

from drfd_cli.words.table import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from drfd_cli.words.table import Table

#: Seconds that the daemon may take to answer.
_ANSWER_S = 1
#: Jobs that are offered, at most.
_MOST_JOBS = 100
FILES = ":files"
#: The verbs whose words after the options are a command.
_RUNNERS = ("submit", "run", "profile")
#: The verbs that act on jobs in some states, or on live or ended ones alone.
_WAITING, _LIVE, _ENDED = ("PENDING", "HELD"), "live", "ended"
_MEANT: dict[str, object] = {
    "cancel": _LIVE, "signal": ("RUNNING",), "set": _LIVE, "retry": _ENDED,
    "hold": ("PENDING",), "release": ("HELD",), "suspend": ("RUNNING",),
    "resume": ("SUSPENDED",), "edit": _WAITING, "exec": ("RUNNING",), "attach": ("RUNNING",),
}  # fmt: skip
#: A candidate and its description.
Candidate = tuple[str, str]


def main(args: list[str], make: Callable[[], Table]) -> None:
    """Print the candidates. `make` makes the table of verbs if none is stored. An error prints
    nothing: the user is typing."""
    try:
        shell, number, *words = args
        for value, about in complete(shell, words, int(number), load(make)):
            value, about = _printable(value), _printable(about)
            print(f"{value}\t{about}" if about else value)
        sys.stdout.flush()
    except (OSError, ValueError, KeyError, TypeError):
        pass


def complete(shell: str, words: list[str], number: int, table: Table) -> list[Candidate]:
    """Return the candidates for the word with this number; word 0 is `drf`."""
    before, current = words[1:number], words[number] if number < len(words) else ""
    prefix = ""
    if shell == "bash":
        before, current = _joined(before, current)
    if current.startswith("--") and "=" in current and "--" not in before:
        option, _, current = current.partition("=")
        before = [*before, option]
        # In bash, the word begins after the sign.
        prefix = "" if shell == "bash" else f"{option}="
    found = _candidates(table, before, current)
    return [
        (f"{prefix}{value}", about) for value, about in found if value.startswith((current, ":"))
    ]


def _joined(before: list[str], current: str) -> tuple[list[str], str]:
    """Join what bash has split at equals signs: `--pool`, `=`, `lab`."""
    found: list[str] = []
    words = [*before, current]
    if "--" in before:
        at = before.index("--")
        head, tail = _joined(before[:at], "")[0], words[at:]
        # The place of the command stays the one among bash's words.
        return [*head, *[""] * (at - len(head)), *tail[:-1]], current
    for word in words:
        if found and found[-1].startswith("--") and (word == "=" or found[-1].endswith("=")):
            found[-1] += word
        else:
            found.append(word)
    return found[:-1], found[-1]


def _candidates(table: Table, before: list[str], current: str) -> list[Candidate]:
    verb, at = "", 0
    while at < len(before):
        word = before[at]
        at += 1
        kind = _kind(table, "", word)
        if kind and at == len(before):
            return values_of(kind, "", before)
        if kind:
            at += 1
        elif not word.startswith("-"):
            verb = word
            break
    if not verb:
        return _options(table, "") if current.startswith("-") else _verbs(table)
    if verb not in table:
        return []
    positional = 0
    while at < len(before):
        word = before[at]
        at += 1
        if word == "--":
            # The place of the command among all words, the program's own included.
            has_command = verb in (*_RUNNERS, "exec")
            return [(f":command {at + 1}", "")] if has_command else _ids(verb, current)
        kind = _kind(table, verb, word)
        if kind and at == len(before):
            return values_of(kind, verb, before)
        if kind:
            at += 1
        elif word and not word.startswith("-"):
            positional += 1
            if verb == "submit":
                return [(FILES, "")]
            if verb in _RUNNERS:
                return [(f":command {at}", "")]
    if current.startswith("-"):
        return _options(table, verb)
    if verb in _RUNNERS and verb != "submit":
        return [(f":command {len(before) + 1}", "")]
    arguments = table[verb]["arguments"]
    if not arguments:
        return []
    kind = arguments[min(positional, len(arguments) - 1)]
    if kind == "verb":
        return _verbs(table)
    return _ids(verb, current) if kind == "id" else values_of(kind, verb, before)


def _kind(table: Table, verb: str, option: str) -> str:
    """Return the kind of the option's value, or an empty text if it takes none here."""
    if not option.startswith("-") or "=" in option:
        return ""
    known = table[verb]["options"].get(option)
    return str(known[0]) if known is not None else ""


def _options(table: Table, verb: str) -> list[Candidate]:
    return [(name, about) for name, (_, about) in table[verb]["options"].items()]


def _verbs(table: Table) -> list[Candidate]:
    return [(verb, entry["about"]) for verb, entry in table.items() if verb]


def values_of(kind: str, verb: str, before: list[str]) -> list[Candidate]:
    name, _, rest = kind.partition(":")
    match name:
        case "choice":
            return [(word, "") for word in rest.split(",")]
        case "file":
            return [(FILES, "")]
        case "id":
            return _ids(verb, "")
        case "jobname":
            names = [each["name"] for each in _recent()["recent"]]
            return [(each, "") for each in dict.fromkeys(names)]
        case "pools" | "users" | "gres":
            return [(word, "") for word in _recent()[name]]
        case "signal":
            return [(word, "") for word in _signals()]
        case "variable":
            return [(word, "") for word in sorted(os.environ)]
        case "preset":
            return _presets()
    return []


def _ids(verb: str, current: str) -> list[Candidate]:
    """Return the jobs that the verb may be about: by id, or by name if a letter has been typed."""
    meant = _MEANT.get(verb)
    found = [
        each
        for each in _recent()["recent"]
        if meant is None
        or (each["live"] if meant == _LIVE else not each["live"] if meant == _ENDED else False)
        or (isinstance(meant, tuple) and each["state"] in meant)
    ]
    if current and not current[0].isdigit():
        names = [each["name"] for each in found]
        recent = [("@-1", "the latest job")] if current.startswith("@") else []
        # A name is of use only if it means one job.
        return recent + [(name, "") for name in names if names.count(name) == 1]
    return [(str(each["id"]), f"{each['name']} {each['state']}") for each in found]


def _recent() -> dict[str, Any]:
    """Return the daemon's reply about the user's latest jobs. Raises OSError or ValueError."""
    import _socket

    from drfd.common.quick_json import decode
    from drfd.linux.unix_sockets import connect_in_line
    from drfd_cli.quick_request import received, socket_of_daemon

    try:
        path = _named_socket() or socket_of_daemon()[0]
    except FileNotFoundError:
        path = os.path.expanduser(
            os.path.join(os.environ.get("XDG_STATE_HOME") or "~/.local/state", "drfd/drfd.sock")
        )
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connect_in_line(connection, path, _ANSWER_S)
        connection.sendall(b'{"op":"recent","v":1,"limit":%d}\n' % _MOST_JOBS)
        reply = decode(received(connection))
    finally:
        connection.close()
    if not isinstance(reply, dict) or reply.get("ok") is not True:
        raise ValueError("no answer")
    for each in reply["recent"]:
        # Nothing that a name holds may reach the terminal as a control character.
        each["name"] = _printable(each["name"])
    return reply


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _named_socket() -> str | None:
    """Return the value of --socket on the command line that is being completed."""
    for at, word in enumerate(sys.argv):
        if word == "--socket" and at + 1 < len(sys.argv):
            return sys.argv[at + 1]
        if word.startswith("--socket="):
            return word.partition("=")[2]
    return None


def _signals() -> list[str]:
    import _signal

    names = (name.removeprefix("SIG") for name in dir(_signal) if name.startswith("SIG"))
    return sorted(name for name in names if name.isalnum() and name not in ("CLD", "POLL"))


def _presets() -> list[Candidate]:
    """Return the names of the presets in the user's own configuration."""
    import tomllib

    from drfd_cli.submitting.personal import NotOwn, content_of, path_of

    try:
        given = tomllib.loads(content_of(path_of(os.environ)).decode())
    except NotOwn:
        return []
    found = {**given.get("preset", {}), **given.get("presets", {})}
    return [(name, "") for name in found]
