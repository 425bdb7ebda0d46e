"""JSON by the parts of Python's `json` that are written in C, with the same result.

The package itself loads regular expressions, which take longer than a submission lasts. Messages of
`drf` are all that this module is for.
"""

from __future__ import annotations

from _json import encode_basestring, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON")


class _Context:
    """The attributes of `json.JSONDecoder` that the scanner reads, with their defaults."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    #: For NaN and Infinity, by their names.
    parse_constant = float


_context: Any = _Context
#: Returns the value at a place of a text, and the place after it.
_scan: Callable[[str, int], tuple[Any, int]] = make_scanner(_context)
#: Returns the parts of the text of a value, which is this deep in others. It keeps no marks against
#: values that contain themselves, has no indent, neither sorts nor skips keys, and writes NaN.
_parts: Callable[[object, int], Any] = make_encoder(
    None, _refuse, encode_basestring, None, ":", ",", False, False, True
)


def encode(value: object) -> str:
    """Return the text of a value. Characters that are not ASCII stand as they are. Raises TypeError
    for what is not JSON."""
    return "".join(_parts(value, 0))


def decode(line: bytes) -> object:
    """Return the value in a line. Raises ValueError for anything but one value."""
    text = line.decode().strip()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value
