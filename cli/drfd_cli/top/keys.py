"""From the bytes that a terminal sends to keys, by name.

A key that sends several bytes may come in pieces. ESC alone is a key too, and begins others: it is
one when nothing has followed it for a moment, which is for the caller to say (`flush`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

_ESC = "\x1b"
#: What a control sequence ends with, and the numbers of those that end with ~ (ECMA-48, xterm).
_FINAL = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab",
    "P": "f1",
}  # fmt: skip
_TILDE = {
    "1": "home", "4": "end", "5": "pgup", "6": "pgdn", "7": "home", "8": "end", "11": "f1",
    "3": "delete",
}  # fmt: skip
#: Linux's own console sends ESC [ [ A for F1.
_SEQUENCE = re.compile(r"\x1b(?:\[\[[A-E]|\[([0-?]*)[ -/]*([@-Z\\-~])|O([@-~]))")
_BEGUN = re.compile(r"\x1b(?:\[(?:\[|[0-?]*[ -/]*)|O)?")
_SIGNS = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace",
    "\x03": "ctrl-c", "\x0c": "ctrl-l", "\x15": "ctrl-u", "\x1a": "ctrl-z",
    "\x0e": "down", "\x10": "up",
}  # fmt: skip
#: No sequence of a key is longer: what goes on is noise.
_MOST = 32


class Keys:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    def feed(self, data: bytes) -> Iterator[str]:
        """The keys that are complete; signs are their own names."""
        self._rest += self._decoder.decode(data)
        while self._rest:
            if self._rest[0] != _ESC:
                sign, self._rest = self._rest[0], self._rest[1:]
                key = _SIGNS.get(sign, sign if sign.isprintable() else "")
            elif match := _SEQUENCE.match(self._rest):
                self._rest = self._rest[match.end() :]
                key = _named(match)
            elif _BEGUN.fullmatch(self._rest) and len(self._rest) < _MOST:
                return
            else:
                # ESC, and another key right after it.
                self._rest, key = self._rest[1:], "esc"
            if key:
                yield key

    @property
    def is_waiting(self) -> bool:
        """A key has begun."""
        return bool(self._rest)

    def flush(self) -> Iterator[str]:
        """Nothing has followed: what has begun was ESC alone, or was cut off for ever."""
        is_escape = self._rest == _ESC
        self._rest = ""
        if is_escape:
            yield "esc"


def _named(match: re.Match[str]) -> str:
    numbers, final, single = match[1], match[2], match[3]
    if single:
        return _FINAL.get(single, "")
    if final is None:
        return "f1" if match[0].endswith("A") else ""
    if final == "~":
        return _TILDE.get(numbers.partition(";")[0], "")
    return _FINAL.get(final, "")
