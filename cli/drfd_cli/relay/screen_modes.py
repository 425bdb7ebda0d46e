"""The modes of a terminal that a full-screen program has switched on, as seen in its output.

When drf leaves a program that still has the screen (it was suspended or detached), the shell needs
the terminal without these modes, and the program needs them again when it comes back.
"""

from __future__ import annotations

#: Private modes (DECSET, `CSI ? n h` and `CSI ? n l`) that are followed, in the order in which they
#: are switched on again. First the alternate screens, then cursor keys, mouse, focus and paste.
_ALTERNATE = (b"1049", b"1047", b"47")
_USUALLY_OFF = (
    *_ALTERNATE, b"1", b"9", b"1000", b"1002", b"1003", b"1004", b"1005", b"1006", b"1015",
    b"2004",
)  # fmt: skip
#: Modes that are on unless a program switches them off: cut long lines, show the cursor.
_USUALLY_ON = (b"7", b"25")
_BEGIN = b"\x1b[?"
#: Keypad for programs, and for numbers (DECKPAM, DECKPNM).
_KEYPAD_ON, _KEYPAD_OFF = b"\x1b=", b"\x1b>"
#: The longest sequence that is looked for, in bytes: `CSI ?` with several modes at once.
_LONGEST = 64
_PARAMETERS = frozenset(b"0123456789;")


class ScreenModes:
    """Follows the output of a program on a terminal."""

    def __init__(self) -> None:
        #: Modes that are not as usual.
        self._changed: set[bytes] = set()
        self._has_keypad = False
        #: How often a program has left the alternate screen.
        self.times_left = 0
        #: The begin of a sequence whose rest has not come yet.
        self._rest = b""

    @property
    def is_alternate(self) -> bool:
        """Whether the program has the alternate screen, so that it draws all of it."""
        return not self._changed.isdisjoint(_ALTERNATE)

    def feed(self, piece: bytes) -> None:
        """Note the modes that a piece of output changes."""
        if not self._rest and b"\x1b" not in piece:
            return
        data = self._rest + piece
        self._rest = b""
        at = data.find(b"\x1b")
        while at >= 0:
            end = self._take(data, at)
            if end is None:
                self._rest = data[at:]
                return
            at = data.find(b"\x1b", end)

    def _take(self, data: bytes, at: int) -> int | None:
        """Note the sequence at `at`, and return where to go on, or None if its end is missing."""
        keypad = data[at : at + 2]
        if keypad in (_KEYPAD_ON, _KEYPAD_OFF):
            self._has_keypad = keypad == _KEYPAD_ON
            return at + 2
        begin = data[at : at + len(_BEGIN)]
        if begin != _BEGIN:
            return None if _BEGIN.startswith(begin) else at + 1
        end = at + len(_BEGIN)
        last = at + _LONGEST
        while end < min(len(data), last) and data[end] in _PARAMETERS:
            end += 1
        if end == last:
            return end
        if end == len(data):
            return None
        final = data[end : end + 1]
        if final in (b"h", b"l"):
            for mode in data[at + len(_BEGIN) : end].split(b";"):
                self._set(mode, is_on=final == b"h")
        return end + 1

    def _set(self, mode: bytes, *, is_on: bool) -> None:
        if mode in _ALTERNATE and not is_on:
            self.times_left += self.is_alternate
            self._changed.difference_update(_ALTERNATE)
        elif (is_on and mode in _USUALLY_OFF) or (not is_on and mode in _USUALLY_ON):
            self._changed.add(mode)
        else:
            self._changed.discard(mode)

    def leave(self) -> bytes:
        """Return what gives the terminal its usual modes back; `enter` undoes it."""
        parts = [_BEGIN + mode + b"h" for mode in _USUALLY_ON if mode in self._changed]
        parts += [
            _BEGIN + mode + b"l"
            for mode in reversed(_USUALLY_OFF)
            if mode in self._changed and mode not in _ALTERNATE
        ]
        if self._has_keypad:
            parts.append(_KEYPAD_OFF)
        if self.is_alternate:
            # Usual colours, and the whole screen scrolls (SGR, DECSTBM).
            parts.append(b"\x1b[0m\x1b[r")
            parts += [_BEGIN + mode + b"l" for mode in _ALTERNATE if mode in self._changed]
        return b"".join(parts)

    def enter(self) -> bytes:
        """Return what gives the program the modes that it has switched on."""
        parts = [_BEGIN + mode + b"h" for mode in _USUALLY_OFF if mode in self._changed]
        parts += [_BEGIN + mode + b"l" for mode in _USUALLY_ON if mode in self._changed]
        if self._has_keypad:
            parts.append(_KEYPAD_ON)
        return b"".join(parts)
