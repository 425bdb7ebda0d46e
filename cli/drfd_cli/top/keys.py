"""Keys by name, found in the bytes that a terminal sends, and the page that explains them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

#: The page of keys.
HELP = (
    "",
    "  ↑ ↓  j k           up and down          PgUp PgDn        by pages",
    "  Home End  g G      first and last       Tab  ← →  1-4    another panel",
    "  Enter              a job's own page; in SHARES: only the jobs of this node",
    "  /                  only jobs with this text in id, name, user, pool or reason",
    "  u                  only mine, or all    Esc              all again",
    "  s  S               another order, or reversed            ^L  draw anew",
    "  Space              mark jobs: the next action is for all of those shown;",
    "                     in SHARES: fold a pool, or unfold it",
    "  c                  cancel (it asks)     h                hold, or release",
    "  p                  suspend, or resume   x                send a signal",
    "  t                  change the time limit                 P  the priority",
    "  r                  submit an ended job again",
    "  l                  the output in your PAGER; less follows it while it grows:",
    "                     ^C stops that, F begins it again, q comes back",
    "  e                  a job's errors, in place of its output",
    "  i                  use and shares over time: with room, always, never",
    "  q  ^C              quit",
    "",
    "  █ ▒ ╱ ·            allocated and used, allocated, left to others, free;",
    "                     a colour (or a letter) is one user in one pool",
    "  PRESSURE           percent of the last 10 s in which processes waited",
    "  SHARES             the bar: dominant share; ┃ or │ on it: the entitlement",
    "  SATISFIED          share over entitlement: from 100% on the promise is kept",
    "  SHORT 7D           missing of the promise in 7 days, as time of the machine",
    "  RUNNING            used/declared; the bar turns (or ! comes) near the limit",
    "  WAITING            in the order in which they would start now; the cursor",
    "                     there shows the whole reason below",
)

_ESC = "\x1b"
#: Keys by the final character of their control sequence, or by its number before ~ (xterm).
_FINAL = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab",
    "P": "f1",
}  # fmt: skip
_TILDE = {
    "1": "home", "4": "end", "5": "pgup", "6": "pgdn", "7": "home", "8": "end", "11": "f1",
    "3": "delete",
}  # fmt: skip
#: The Linux console sends ESC [ [ A for F1.
_SEQUENCE = re.compile(r"\x1b(?:\[\[[A-E]|\[([0-?]*)[ -/]*([@-Z\\-~])|O([@-~]))")
_BEGUN = re.compile(r"\x1b(?:\[(?:\[|[0-?]*[ -/]*)|O)?")
_CHARACTERS = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace",
    "\x03": "ctrl-c", "\x0c": "ctrl-l", "\x15": "ctrl-u", "\x1a": "ctrl-z",
    "\x0e": "down", "\x10": "up",
}  # fmt: skip
#: Most characters of the sequence of a key; a longer one is none.
_MOST = 32


class KeyDecoder:
    """Finds the keys in the bytes of a terminal, also if a key arrives in several pieces.

    ESC is a key, and also begins other keys. The caller decides by `flush` that nothing follows it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the names of the complete keys. A character is its own name."""
        self._rest += self._decoder.decode(data)
        while self._rest:
            if self._rest[0] != _ESC:
                char, self._rest = self._rest[0], self._rest[1:]
                key = _CHARACTERS.get(char, char if char.isprintable() else "")
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
        """Whether a key has begun but is not complete."""
        return bool(self._rest)

    def flush(self) -> Iterator[str]:
        """End a key that has begun: ESC alone is a key, an incomplete sequence is none."""
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
