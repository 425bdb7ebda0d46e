"""An ordinary `drf submit` or `drf run`, without click and the client library.

Scripts submit thousands of jobs, and wait for each start of drf. This module knows few options and
prints no errors: where it returns None, or raises OSError or ValueError, the complete program
(`drfd_cli.main`) starts over. If the request may have reached the daemon by then, it is sent again
with the same submission key, so that no job is queued twice.

Only modules that Python loads in a millisecond are imported, neither regular expressions nor
`socket`; `tests/bench` measures the time.
"""

from __future__ import annotations

import _socket
import os
import sys

from drfd.common.errors import ConfigError
from drfd.common.quick_json import decode
from drfd.linux.unix_sockets import connect_in_line, peer_of, without_limits
from drfd.payload.environment import ATTACHED, SOCKET, SYSTEM_SOCKET, addressed, as_given, capture
from drfd.payload.pack import of_request, output_fields
from drfd.payload.signature import digest_of, proof_of, read_key
from drfd.protocol.codec import encode_request
from drfd.protocol.job_options import options_of
from drfd_cli import personal
from drfd_cli.foresight import doubts_about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path
    from typing import Any, NoReturn

    from drfd.protocol.job_options import Option

#: The option of both verbs that turns warnings off.
NO_WARNINGS = "--no-warnings"
#: Kinds of options whose text the daemon reads; if it refuses, the complete program says what is
#: wrong.
_TEXTS = ("text", "pool", "group", "file")
_CORES, _MEMORY, _TIME = "cores", "memory", "limit"
#: The size units that occur in practice, as powers of two.
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Most digits of a number that is read here.
_DIGITS = 6
_LEAST_MEMORY = 1 << 20
#: Seconds that each exchange with the daemon may take.
_ANSWER_S = 120
#: Begins what is said of a time without a unit, among the values that `read` returns.
_TIME_DOUBT = "time: "


def read_all(
    verb: str, args: list[str], texts: Mapping[str, str], flags: Mapping[str, str], *,
    is_dashed: bool,
) -> tuple[dict[str, object], list[str]] | None:  # fmt: skip
    """Return what `read` returns for these arguments, with the user's own defaults before them."""
    known, texts = options_of(verb), {**texts, "--preset": "preset"}
    found = read(args, known, texts, flags, is_dashed=is_dashed)
    if found is None:
        return None
    preset = found[0].get("preset")
    try:
        settings = personal.chosen(verb, None if preset is None else str(preset), os.environ)
    except ConfigError:
        return None
    if settings:
        words = [each.word for each in settings]
        found = read([*words, *args], known, texts, flags, is_dashed=is_dashed)
    if found is not None:
        found[0].pop("preset", None)
    return found


def read(
    args: list[str], known: Mapping[str, Option], texts: Mapping[str, str],
    flags: Mapping[str, str], *, is_dashed: bool,
) -> tuple[dict[str, object], list[str]] | None:  # fmt: skip
    """Return the fields of a request, and the values of the `flags` that were given, with what is
    to be said of times without a unit; or None if the arguments need the complete program.

    `known`: the options of a job. `texts`: further options with a value → the field that each sets.
    `is_dashed`: the command must stand after `--`.
    """
    demand: dict[str, object] = {}
    fields: dict[str, object] = {"demand": demand}
    given: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            argv = list(words)
            return (_complete(fields, argv), given) if argv else None
        if not word.startswith("-") or word == "-":
            return None if is_dashed else (_complete(fields, [word, *words]), given)
        if word in flags:
            given.append(flags[word])
            continue
        name, value = _split(word)
        option = known.get(name)
        if option is not None and option.kind == "flag" and value is None:
            fields[option.field] = True
            continue
        value = next(words, "") if value is None else value
        # An empty value, or one that looks like an option, is a typing error.
        if not value or value.startswith("-"):
            return None
        if name in texts:
            fields[texts[name]] = value
        elif option is None:
            return None
        elif option.kind in _TEXTS:
            fields[option.field] = value
        elif option.kind in (_CORES, _MEMORY, _TIME):
            if not _read_amount(option.kind, value, demand, fields):
                return None
            if option.kind == _TIME and value.isdecimal():
                given.append(f"{_TIME_DOUBT}{value} is {int(value)} seconds ({value}m: minutes)")
        else:
            return None
    return None


def _complete(fields: dict[str, object], argv: list[str]) -> dict[str, object]:
    found = {**fields, **output_fields(fields), "argv": argv}
    if argv[0].endswith("sh") and "name" not in fields:
        from drfd.client.shell_lines import name_of

        name = name_of(argv)
        return found if name is None else {**found, "name": name}
    return found


def _split(word: str) -> tuple[str, str | None]:
    """Return option and value of `--cores=4` or `-c4`; None if the next word is the value."""
    if not word.startswith("--"):
        return word[:2], word[2:] or None
    option, sign, value = word.partition("=")
    return option, value if sign else None


def _read_amount(
    kind: str, value: str, demand: dict[str, object], fields: dict[str, object]
) -> bool:
    number = amount_of(kind, value)
    if number is None or (kind == _TIME and _is_doubtful(value)):
        return False
    if kind == _CORES:
        demand["cores_milli"] = number
    elif kind == _MEMORY:
        demand["memory_bytes"] = number
    else:
        fields["time_limit_s"] = number
    return True


def _is_doubtful(time: str) -> bool:
    """Return whether the complete program tells somebody at a terminal how it reads this time."""
    is_unclear = ":" in time and time.replace(":", "").isdecimal()
    return is_unclear and sys.stderr is not None and sys.stderr.isatty()


def amount_of(kind: str, value: str) -> int | None:
    """Return the number that a value of this kind stands for in a request, or None if the complete
    program must say what is wrong with it."""
    if kind == _TIME and value == "unlimited":
        return 0
    number = _whole_amount(kind, value)
    return _any_amount(kind, value) if number is None else number


def _whole_amount(kind: str, value: str) -> int | None:
    """Return the number of `4`, `16G` or `90m`, or None for all that is written otherwise."""
    unit = "" if kind == _CORES else value[-1:]
    digits = value.removesuffix(unit)
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS):
        return None
    count = int(digits)
    if kind == _CORES:
        return count * 1000 or None
    if kind == _TIME:
        return count * _SPANS.get(unit, 0) or None
    size = count << _UNITS[unit] if unit in _UNITS else 0
    return size if size >= _LEAST_MEMORY else None


def _any_amount(kind: str, value: str) -> int | None:
    # Imported here because these modules take long to load.
    from drfd.common.errors import Refused
    from drfd.common.units import parse_cores, parse_duration, parse_memory

    parse = parse_cores if kind == _CORES else parse_memory
    try:
        return parse_duration(value) if kind == _TIME else parse(value)
    except Refused:
        return None


def surroundings(keep: Collection[str] = ()) -> dict[str, object] | None:
    """Return the fields that the job takes from this process: environment, directory and umask.
    `keep` names variables of the login session that it has, too. Returns None if the complete
    program is needed."""
    # A file that drf opens would get the number of a closed standard descriptor.
    if None in (sys.stdin, sys.stdout, sys.stderr):
        return None
    try:
        env = addressed(capture(as_given(os.environ), keep), socket_of_daemon()[0])
        cwd = os.getcwd()
    except OSError:
        return None
    if not os.access(cwd, os.X_OK):
        return None
    umask = os.umask(0o077)
    os.umask(umask)
    return {"cwd": cwd, "umask": umask, "env": env}


def doubts_to_print(fields: Mapping[str, Any], given: Iterable[str]) -> list[str] | None:
    """Return the lines that the user should read about this request, or None if the complete
    program must print them: it makes other text harmless for a terminal. `given` are the values
    that `read` returns."""
    found = [text for text in given if text.startswith(_TIME_DOUBT)]
    found += doubts_about(fields, os.environ.keys())
    return found if all(text.isascii() and text.isprintable() for text in found) else None


def warn(doubts: Iterable[str]) -> None:
    for text in doubts:
        print(f"drf: {text}", file=sys.stderr)


def is_sign(value: str) -> bool:
    """Return whether this is a value of `--escape`."""
    return value == "none" or (len(value) == 1 and value.isascii() and value.isprintable())


def socket_of_daemon() -> tuple[str, bool]:
    """Return the socket that `drfd.client.connection.choose` would find, and whether it is that of
    the user's own daemon. Raises OSError if only `choose` can find it."""
    if named := os.environ.get(SOCKET):
        return named, False
    if os.path.isdir(os.path.dirname(SYSTEM_SOCKET)):
        return SYSTEM_SOCKET, False
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return f"{runtime}/drfd.sock", "DRF_JOB_ID" not in os.environ
    raise FileNotFoundError


def connect() -> tuple[_socket.socket, bytes | None]:
    """Return a connection to the daemon, and the user's signing key, or None if the daemon needs no
    signature. Raises OSError if there is no daemon or no key, and ValueError if no drfd answers."""
    path, _ = socket_of_daemon()
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connect_in_line(connection, path, _ANSWER_S)
        return connection, _key_for(connection)
    except BaseException:
        connection.close()
        raise


def _key_for(connection: _socket.socket) -> bytes | None:
    if peer_of(connection)[0] == os.getuid():
        # A daemon of the same user seldom needs a signature. If it does, it refuses the request,
        # which is then sent once more.
        return None
    connection.sendall(b'{"op":"hello","v":1}\n')
    hello = decode(received(connection))
    key_file = hello.get("key_file") if isinstance(hello, dict) else None
    if key_file is None:
        return None
    key = read_key(str(key_file))
    if key is None:
        raise PermissionError
    return key


def line_of(request: Mapping[str, object], key: bytes | None) -> bytes:
    """Return the line that submits this job, signed with the key if there is one. Raises ValueError
    for text that no message carries."""
    if key is not None:
        request = {**request, "proof": proof_of(key, digest_of(of_request(request)))}
    return encode_request({"op": "submit", "v": 1, **request})


def send(connection: _socket.socket, line: bytes) -> None:
    """Send a request. Raises OSError."""
    try:
        connection.sendall(line)
    except (BrokenPipeError, ConnectionResetError):
        # The daemon refused the connection before it read the request; its reply can be read.
        pass


def received(connection: _socket.socket) -> bytes:
    """Return the next line that the daemon sends. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionResetError
        line += piece
    return line


# -- drf run -----------------------------------------------------------------------------------


def run(args: list[str]) -> None:
    """Run the job of the arguments after `run`, and exit as it does. Returns if the complete
    program must do it; no job is queued then."""
    flags = {"-q": "quiet", "--quiet": "quiet", NO_WARNINGS: NO_WARNINGS}
    found = read_all("run", args, {"--escape": "escape"}, flags, is_dashed=False)
    if found is None:
        return
    fields, given = found
    escape = str(fields.pop("escape", "~"))
    around = surroundings(ATTACHED)
    if around is None or not is_sign(escape) or not _shows_all_text():
        return
    fields |= around
    doubts = [] if NO_WARNINGS in given else doubts_to_print({**fields, "attach": ""}, given)
    if doubts is None:
        return
    try:
        # What cannot be sent is told by the complete program.
        encode_request(fields)
        connection, key = connect()
    except (OSError, ValueError):
        return
    warn(doubts)
    _run(connection, key, fields, is_quiet="quiet" in given, escape=escape)


def _shows_all_text() -> bool:
    """Return whether messages can be printed as they are; otherwise the complete program replaces
    characters."""
    return {sys.stdout.encoding, sys.stderr.encoding} == {"utf-8"}


def _run(
    connection: _socket.socket, key: bytes | None, fields: dict[str, object], *, is_quiet: bool,
    escape: str,
) -> NoReturn:  # fmt: skip
    """Submit the job over the connection, attend to it, and exit.

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
            send(without_limits(connection), line_of(job, key))

            # From here on the daemon is at work; what follows is slow to load.
            from drfd.client.connection import Connection
            from drfd_cli.terminal.attached import attend

            path, is_own = socket_of_daemon()
            client = Connection(path, start=_start_own if is_own else None)

            def submit() -> int:
                return client.submitted(connection, job, key)["id"]

            ended = attend(client, attach_socket, signals, submit, is_quiet=is_quiet, escape=escape)
        finally:
            attach_socket.close()
    except (Exception, KeyboardInterrupt) as error:
        from drfd_cli.main import leave

        leave(error)
    sys.stdout.flush()
    # Python's own end takes some milliseconds, in which it only tidies up its memory.
    os._exit(ended["status"])


def _start_own(socket_path: Path) -> None:
    from drfd_cli.options import start_own

    start_own(socket_path)


# -- drf submit --------------------------------------------------------------------------------

#: The forms in which the id is printed. If options for several are given, the last form applies.
_SHOWN = ["submitted job {}", "{}", '{{"id": {}}}']
#: Options of drf without a value → the form that each selects.
_FLAGS = {
    "-q": _SHOWN[1], "--quiet": _SHOWN[1], "--json": _SHOWN[2], NO_WARNINGS: NO_WARNINGS,
}  # fmt: skip


class Lost(Exception):
    """The request was sent, but its answer did not arrive or could not be printed: the job may be
    queued."""


def submit(args: list[str], key: str) -> bool:
    """Queue the job of the arguments after `submit`, and print its id. Returns False if the
    complete program must do it; no job is queued then. Raises Lost."""
    found = read_all("submit", args, {}, _FLAGS, is_dashed=True)
    if found is None:
        return False
    fields, given = found
    around = surroundings()
    if around is None:
        return False
    request = {"key": key, **fields, **around}
    doubts = [] if NO_WARNINGS in given else doubts_to_print(request, given)
    if doubts is None:
        return False
    reply = ask(request)
    if reply is None:
        return False
    if "drain" in reply and NO_WARNINGS not in given:
        from drfd_cli.output import drain_notices

        warn(drain_notices(reply))
    warn(doubts)
    shown = max((_SHOWN[0], *(form for form in given if form in _SHOWN)), key=_SHOWN.index)
    try:
        print(shown.format(reply["id"]), flush=True)
    except OSError as error:
        raise Lost from error
    return True


def ask(request: dict[str, object]) -> dict[str, object] | None:
    """Return the reply with the id of the new job, or None if there is no daemon or any other
    answer."""
    try:
        connection, key = connect()
        try:
            reply = decode(answer_of(connection, line_of(request, key)))
        finally:
            connection.close()
    except (OSError, ValueError):
        return None
    if not isinstance(reply, dict) or reply.get("ok") is not True:
        return None
    return reply if isinstance(reply.get("id"), int) else None


def answer_of(connection: _socket.socket, line: bytes) -> bytes:
    try:
        send(connection, line)
        return received(connection)
    except OSError as error:
        raise Lost from error
