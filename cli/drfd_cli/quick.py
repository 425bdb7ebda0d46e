"""The usual `drf submit`, without what takes longer to load than the job takes to be queued.

Scripts submit thousands of jobs, and wait for each start of drf. This is an attempt at what
`drf submit [-q] [-c …] … -- CMD` does when all is well, and no more: it knows few options, prints
no errors, and leaves everything else to the whole program, which begins anew under the same key,
so that nothing is queued twice. Only modules that Python loads in a few milliseconds are used;
`tests/bench` measures it.
"""

from __future__ import annotations

import os
import socket
import sys
from json import dumps, loads

from drfd.environment import capture, is_secret

#: Option → the field of the request that it sets.
_TEXTS = {
    "-n": "name", "--name": "name", "-p": "pool", "--pool": "pool",
    "-o": "stdout", "--output": "stdout", "-e": "stderr", "--error": "stderr",
}  # fmt: skip
#: Option → how the id is printed; of several, the last of the ranks.
_SHOWN = {"-q": "{}", "--quiet": "{}", "--json": '{{"id": {}}}'}
_RANK = ["submitted job {}", "{}", '{{"id": {}}}']
_FLAGS = {"--hold": "held", "--preemptible": "preemptible"}
_CORES, _MEMORY, _TIME = ("-c", "--cores"), ("-m", "--mem"), ("-t", "--time")
_SYSTEM_SOCKET = "/run/drfd/drfd.sock"
_ANSWER_S = 120.0


class Lost(Exception):
    """The request was sent, and its answer did not arrive, or could not be printed: the job may be
    queued."""


def submit(args: list[str], key: str) -> bool:
    """Whether the job is queued and its id printed; Lost if that is not known. `args`: what follows
    `submit`."""
    shown, fields = _read(args) or ("", None)
    path = _socket_path()
    # Without one of the three, the socket would take its place.
    is_whole = None not in (sys.stdin, sys.stdout, sys.stderr)
    if fields is None or path is None or not is_whole or not _add_circumstances(fields):
        return False
    job_id = _ask(path, {"op": "submit", "v": 1, "key": key, **fields})
    if job_id is None:
        return False
    try:
        print(shown.format(job_id), flush=True)
    except OSError as error:
        raise Lost from error
    return True


def _socket_path() -> str | None:
    """As `drfd.client.connection.choose` finds it; None: where it takes more to say."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if named := os.environ.get("DRFD_SOCKET"):
        return named
    if os.path.isdir(os.path.dirname(_SYSTEM_SOCKET)):
        return _SYSTEM_SOCKET
    return f"{runtime}/drfd.sock" if runtime else None


def _read(args: list[str]) -> tuple[str, dict[str, object]] | None:
    """(what to print, the request's fields); None: it takes more to understand this."""
    demand: dict[str, int] = {}
    fields: dict[str, object] = {"demand": demand}
    shown = "submitted job {}"
    words = iter(args)
    for word in words:
        if word == "--":
            argv = list(words)
            fields["argv"] = argv
            return (shown, fields) if argv else None
        if word in _SHOWN:
            shown = max(shown, _SHOWN[word], key=_RANK.index)
            continue
        if word in _FLAGS:
            fields[_FLAGS[word]] = True
            continue
        value = next(words, None)
        # An empty value, or one like an option, is a slip of the keyboard.
        if not value or value.startswith("-"):
            return None
        if word in _TEXTS:
            fields[_TEXTS[word]] = value
        elif word in (*_CORES, *_MEMORY, *_TIME):
            if not _read_amount(word, value, demand, fields):
                return None
        else:
            return None
    return None


def _read_amount(word: str, value: str, demand: dict[str, int], fields: dict[str, object]) -> bool:
    # Imported here: a job that takes the defaults needs none of it.
    from drfd.errors import Refused
    from drfd.units import parse_cores, parse_duration, parse_memory

    try:
        if word in _CORES:
            demand["cores_milli"] = parse_cores(value)
        elif word in _MEMORY:
            demand["memory_bytes"] = parse_memory(value)
        else:
            fields["time_limit_s"] = 0 if value == "unlimited" else parse_duration(value)
    except Refused:
        return False
    return True


def _add_circumstances(fields: dict[str, object]) -> bool:
    """What a job takes along; False when there is something to be said about it."""
    env = capture(os.environ, ())
    if sys.stderr.isatty() and any(map(is_secret, os.environ.keys() - env.keys())):
        return False
    try:
        cwd = os.getcwd()
    except OSError:
        return False
    name = fields.get("name", "x")
    if not os.access(cwd, os.X_OK) or not isinstance(name, str) or len(name) > 256:
        return False
    umask = os.umask(0o077)
    os.umask(umask)
    fields |= {"cwd": cwd, "umask": umask, "env": env}
    return True


def _ask(path: str, request: dict[str, object]) -> int | None:
    """The new job's id; None for any other answer, and where nobody is to be asked."""
    try:
        # Text that is not UTF-8 cannot be sent, which is to be said.
        line = dumps(request, ensure_ascii=False).encode() + b"\n"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(path)
            answer = _answer(connection, line)
        reply = loads(answer)
        return int(reply["id"]) if reply["ok"] is True else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _answer(connection: socket.socket, line: bytes) -> bytes:
    answer = b""
    try:
        connection.sendall(line)
        while not answer.endswith(b"\n"):
            piece = connection.recv(1 << 16)
            if not piece:
                raise ConnectionResetError
            answer += piece
    except OSError as error:
        raise Lost from error
    return answer
