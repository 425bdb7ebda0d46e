"""A light path for an ordinary `drf submit`, which leaves all others to the complete program.

If the request may have reached the daemon, the complete program sends it again with the same
submission key, so that no job is queued twice.
"""

from __future__ import annotations

from drfd.common.quick_json import decode
from drfd_cli.quick_request import (
    NO_WARNINGS,
    connect,
    doubts_to_print,
    line_of,
    read_all,
    received,
    send,
    surroundings,
    warn,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

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


def answer_of(connection: socket, line: bytes) -> bytes:
    try:
        send(connection, line)
        return received(connection)
    except OSError as error:
        raise Lost from error
