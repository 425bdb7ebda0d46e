"""Bytes of arguments, paths, variables and scripts that are not UTF-8, in messages that are.

In Python each such byte is a lone surrogate (PEP 383), which neither a message nor the journal can
hold. Between a client and the job's payload the byte 0xNN is the private character U+10FFNN; texts
that have such characters themselves are refused. Imports must stay few: `drf submit` loads this
module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PRIVATE, _SURROGATE = 0x10FF00, 0xDC00
_BYTES = range(0x80, 0x100)
_TO_CARRIED = {_SURROGATE + byte: _PRIVATE + byte for byte in _BYTES}
_TO_SURROGATES = {_PRIVATE + byte: _SURROGATE + byte for byte in _BYTES}
#: How these characters begin in UTF-8, and in JSON that escapes them.
MARKS = (b"\xf4\x8f", b"\\udbff")


def carried(text: str) -> str:
    """Return the text as a message carries it. Raises UnicodeEncodeError for a text that holds such
    a private character itself."""
    data = text.encode(errors="surrogatepass")
    if MARKS[0] in data:
        for at, char in enumerate(text):
            if ord(char) in _TO_SURROGATES:
                raise UnicodeEncodeError("utf-8", text, at, at + 1, "reserved")
    # What begins a surrogate in UTF-8 is rare otherwise.
    return text.translate(_TO_CARRIED) if b"\xed" in data else text


def restored(value: Any) -> Any:
    """Return a value of a message with Python's surrogates in its texts."""
    match value:
        case str():
            return value.translate(_TO_SURROGATES)
        case list():
            return [restored(each) for each in value]
        case dict():
            return {restored(key): restored(each) for key, each in value.items()}
    return value


def raw(text: str) -> bytes:
    """Return the bytes that a text of a message, or of this process, stands for."""
    data = text.encode(errors="surrogateescape")
    if MARKS[0] in data:
        data = text.translate(_TO_SURROGATES).encode(errors="surrogateescape")
    return data


def readable(text: str) -> str:
    """Return a text of a message with \\xNN for each such byte."""
    return raw(text).decode(errors="backslashreplace")
