"""Keys that are for drf: an escape character at the beginning of a line marks them, as in ssh."""

from __future__ import annotations

from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class EscapeCommand(Enum):
    """A command for drf, with the key that gives it after the escape character."""

    HANG_UP = b"."
    DETACH = b"d"
    SUSPEND = b"\x1a"
    HELP = b"?"


_COMMANDS = {each.value: each for each in EscapeCommand}
_LINE_ENDS = (b"\r", b"\n")


class EscapeFilter:
    """Separates the keys for the job from the commands for drf."""

    def __init__(self, sign: bytes | None) -> None:
        """`sign` is the escape character, one byte, or None if every key is for the job."""
        self._sign = sign
        self._at_line_start = True
        self._has_sign = False

    def feed(self, keys: bytes) -> Iterator[bytes | EscapeCommand]:
        """Yield the bytes for the job and the commands for drf, in the order of the keys."""
        plain = bytearray()
        for number in keys:
            key = bytes([number])
            if self._has_sign:
                self._has_sign = False
                command = _COMMANDS.get(key)
                if command is not None:
                    if plain:
                        yield bytes(plain)
                        plain.clear()
                    self._at_line_start = True
                    yield command
                    continue
                assert self._sign is not None
                # The character typed twice is sent once; before other keys it is no escape.
                plain += self._sign if key == self._sign else self._sign + key
                self._at_line_start = key in _LINE_ENDS
            elif key == self._sign and self._at_line_start:
                self._has_sign = True
            else:
                plain += key
                self._at_line_start = key in _LINE_ENDS
        if plain:
            yield bytes(plain)
