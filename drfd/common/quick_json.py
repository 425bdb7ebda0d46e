"""JSON by the parts of Python's `json` that are written in C.

The package itself loads regular expressions, which takes longer than a submission lasts. This
module is for `drf submit` and `drf run`; `drfd.protocol.codec` is for everything else.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Returns the value at a place of a text, and the place after it.
_scan: Callable[[str, int], tuple[Any, int]]

try:
    from _json import encode_basestring, make_scanner
except ImportError:
    # An interpreter without them.
    from json import JSONDecoder
    from json.encoder import encode_basestring

    _scan = JSONDecoder().raw_decode
else:

    class _Context:
        """The attributes of `json.JSONDecoder` that the scanner reads, with their defaults."""

        strict = True
        object_hook = object_pairs_hook = parse_constant = None
        parse_float, parse_int = float, int

    _context: Any = _Context
    _scan = make_scanner(_context)


def encode(value: object) -> str:
    """Return the text of strings, booleans, whole numbers, None, and lists and dictionaries of
    these. Text that is not ASCII stands as it is."""
    match value:
        case str():
            return encode_basestring(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case list():
            return f"[{','.join(map(encode, value))}]"
        case dict():
            pairs = (f"{encode_basestring(key)}:{encode(each)}" for key, each in value.items())
            return f"{{{','.join(pairs)}}}"
        case _:
            raise TypeError(type(value).__name__)


def decode(line: bytes) -> object:
    """Return the value in a line. Raises ValueError for anything but one value."""
    text = line.decode()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("not JSON") from None
    if text[end:].strip():
        raise ValueError("more than one value")
    return value
