"""A light path for an ordinary `drf submit`, which loads neither click nor the client library.

Scripts submit thousands of jobs, and wait for each start of drf. This module knows few options and
prints no errors. In all other cases the complete program (`drfd_cli.main`) starts over. If the
request may have reached the daemon, it uses the same submission key, so that no job is queued
twice. Only modules that Python loads in a few milliseconds are imported; `tests/bench` measures the
time.
"""

from __future__ import annotations

import os
import socket
import sys
from json import dumps, loads

from drfd.linux.unix_sockets import connect_in_line, peer_of
from drfd.payload.environment import capture, is_secret
from drfd.payload.pack import of_request
from drfd.payload.signature import digest_of, fetch_key, proof_of

#: The field of the request that each option with a text as its value sets.
_TEXTS = {
    "-n": "name", "--name": "name", "-p": "pool", "--pool": "pool",
    "-o": "stdout", "--output": "stdout", "-e": "stderr", "--error": "stderr",
}  # fmt: skip
#: The form in which the id is printed, for each option that selects one. If several do, the form
#: that is last in `_RANK` applies.
_SHOWN = {"-q": "{}", "--quiet": "{}", "--json": '{{"id": {}}}'}
_RANK = ["submitted job {}", "{}", '{{"id": {}}}']
_FLAGS = {"--hold": "held", "--preemptible": "preemptible"}
_CORES, _MEMORY, _TIME = ("-c", "--cores"), ("-m", "--mem"), ("-t", "--time")
_SYSTEM_SOCKET = "/run/drfd/drfd.sock"
#: Seconds that each exchange with the daemon may take.
_ANSWER_S = 120


class Lost(Exception):
    """The request was sent, but its answer did not arrive or could not be printed: the job may be
    queued."""


def submit(args: list[str], key: str) -> bool:
    """Queue the job of the arguments after `submit`, and print its id. Returns False if the
    complete program must do it; no job is queued then. Raises Lost."""
    shown, fields = _read(args) or ("", None)
    path = _socket_path()
    # The socket would get the number of a closed standard descriptor.
    is_whole = None not in (sys.stdin, sys.stdout, sys.stderr)
    if fields is None or path is None or not is_whole or not _add_environment(fields):
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
    """Return the socket that `drfd.client.connection.choose` would find, or None if only `choose`
    can find it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if named := os.environ.get("DRFD_SOCKET"):
        return named
    if os.path.isdir(os.path.dirname(_SYSTEM_SOCKET)):
        return _SYSTEM_SOCKET
    return f"{runtime}/drfd.sock" if runtime else None


def _read(args: list[str]) -> tuple[str, dict[str, object]] | None:
    """Return the format of the output and the request's fields, or None if the arguments need the
    complete program."""
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
        # An empty value, or one that looks like an option, is a typing error.
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
    # Imported here because a submission without these options does not need them.
    from drfd.common.errors import Refused
    from drfd.common.units import parse_cores, parse_duration, parse_memory

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


def _add_environment(fields: dict[str, object]) -> bool:
    """Add environment, directory and umask. Returns False if a message to the user is needed."""
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
    """Return the id of the new job, or None if there is no daemon or any other answer."""
    try:
        # Text that is not UTF-8 cannot be sent; the complete program reports that.
        line = dumps(request, ensure_ascii=False).encode() + b"\n"
        with socket.socket(socket.AF_UNIX) as connection:
            connect_in_line(connection, path, _ANSWER_S)
            line = _signed(connection, request) or line
            answer = _answer(connection, line)
        reply = loads(answer)
        return int(reply["id"]) if reply["ok"] is True else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _signed(connection: socket.socket, request: dict[str, object]) -> bytes | None:
    """Return the request with the user's signature, or None if the daemon needs none. Raises
    OSError if it cannot be signed; nothing that queues a job has been sent then."""
    if peer_of(connection)[0] == os.getuid():
        # A daemon of the same user seldom needs a signature. If it does, it refuses the request,
        # and the complete program signs it.
        return None
    connection.sendall(b'{"op": "hello", "v": 1}\n')
    key_socket = loads(_received(connection)).get("key_socket")
    if key_socket is None:
        return None
    key = fetch_key(key_socket, patience_s=0)
    if key is None:
        raise PermissionError
    proof = proof_of(key, digest_of(of_request(request)))
    return dumps({**request, "proof": proof}, ensure_ascii=False).encode() + b"\n"


def _answer(connection: socket.socket, line: bytes) -> bytes:
    try:
        try:
            connection.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            # The daemon refused the connection before it read the request; its reply can be read.
            pass
        return _received(connection)
    except OSError as error:
        raise Lost from error


def _received(connection: socket.socket) -> bytes:
    """Return the next line that the daemon sends. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionResetError
        line += piece
    return line
