"""One message is one line of JSON. Standard library only: the command line starts with this."""

from __future__ import annotations

import json
from typing import Any

#: Version of the protocol; a daemon refuses others.
VERSION = 1
#: A longer request is refused: bytes, line end included.
MAX_REQUEST_BYTES = 2 << 20

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def encode_request(message: Message) -> bytes:
    """As `encode`, but text that is not UTF-8 raises UnicodeEncodeError: the daemon could only say
    that it does not understand."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Raises ValueError for anything but one JSON object."""
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message
