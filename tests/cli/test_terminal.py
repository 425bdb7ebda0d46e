"""Which keys are the job's, and which are meant for drf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd_cli.relay.escapes import EscapeCommand, EscapeFilter


def fed(*pieces: bytes, sign: bytes | None = b"~") -> list[bytes | EscapeCommand]:
    """What comes out, with neighbouring bytes joined."""
    keys = EscapeFilter(sign)
    found: list[bytes | EscapeCommand] = []
    for piece in pieces:
        for part in keys.feed(piece):
            if found and isinstance(part, bytes) and isinstance(found[-1], bytes):
                found[-1] += part
            else:
                found.append(part)
    return found


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (b"ls ~/x\r", [b"ls ~/x\r"]),
        (b"~.", [EscapeCommand.HANG_UP]),
        (b"ls\r~.", [b"ls\r", EscapeCommand.HANG_UP]),
        (b"ls\n~dmore", [b"ls\n", EscapeCommand.DETACH, b"more"]),
        (b"a~.", [b"a~."]),
        (b"\r~~.", [b"\r~."]),
        (b"\r~x~.", [b"\r~x~."]),
        (b"\r~\r~?", [b"\r~\r", EscapeCommand.HELP]),
        (b"~?~.", [EscapeCommand.HELP, EscapeCommand.HANG_UP]),
        (b"~\x1a", [EscapeCommand.SUSPEND]),
        (b"\x00\xff~.", [b"\x00\xff~."]),
    ],
)
def test_an_escape_stands_at_the_beginning_of_a_line(
    typed: bytes, found: list[bytes | EscapeCommand]
) -> None:
    assert fed(typed) == found


@given(st.binary(max_size=40), st.data())
def test_it_does_not_matter_how_the_keys_arrive(keys: bytes, data: st.DataObject) -> None:
    keys = bytes(b"~.d\r?a"[number % 6] for number in keys)
    cut = data.draw(st.integers(0, len(keys)))
    assert fed(keys) == fed(keys[:cut], keys[cut:])


@given(st.binary(max_size=100))
def test_without_a_sign_every_key_is_the_jobs(keys: bytes) -> None:
    assert fed(keys, sign=None) == ([keys] if keys else [])
