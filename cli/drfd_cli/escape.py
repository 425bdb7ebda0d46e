"""Keys on their way to a job's terminal: which of them are meant for drf itself, as in ssh.

Only what follows the beginning of a line counts, so that a tilde inside a word is a tilde.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum


class Order(Enum):
    LEAVE = b"."
    DETACH = b"d"
    SUSPEND = b"\x1a"
    HELP = b"?"


_ORDERS = {order.value: order for order in Order}
_LINE_ENDS = (b"\r", b"\n")


class EscapeFilter:
    def __init__(self, sign: bytes | None) -> None:
        """`sign`: one byte; None: every key is for the job."""
        self._sign = sign
        self._at_line_start = True
        self._has_sign = False

    def feed(self, keys: bytes) -> Iterator[bytes | Order]:
        """What goes to the job, and what drf is told, in the order in which it was typed."""
        plain = bytearray()
        for number in keys:
            key = bytes([number])
            if self._has_sign:
                self._has_sign = False
                order = _ORDERS.get(key)
                if order is not None:
                    if plain:
                        yield bytes(plain)
                        plain.clear()
                    self._at_line_start = True
                    yield order
                    continue
                assert self._sign is not None
                # Typed twice it is meant once; before any other key it is no escape at all.
                plain += self._sign if key == self._sign else self._sign + key
                self._at_line_start = key in _LINE_ENDS
            elif key == self._sign and self._at_line_start:
                self._has_sign = True
            else:
                plain += key
                self._at_line_start = key in _LINE_ENDS
        if plain:
            yield bytes(plain)
