"""Framing: one message is one line of JSON.

Imports must stay few: every command of `drf` loads this module.
"""

from __future__ import annotations

from drfd.common import quick_json
from drfd.payload.pack import MARKS, carried, restored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: The version of the protocol. A daemon refuses requests of other versions.
VERSION = 1
#: The longest request that the daemon accepts, in bytes with its line end.
MAX_REQUEST_BYTES = 2 << 20

#: A message whose keys are not known to the type checker.
Message = dict[str, "Any"]


def encode_request(message: Mapping[str, object]) -> bytes:
    """Return the message as a line of UTF-8. Raises UnicodeEncodeError for text that cannot be
    encoded: the caller can report it better than the daemon."""
    return carried(quick_json.encode(message)).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line, which the daemon has sent. Raises ValueError for anything but
    one JSON object."""
    try:
        message = quick_json.decode(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return restored(message) if any(mark in line for mark in MARKS) else message
