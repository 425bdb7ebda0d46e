"""Which keys are the job's and which drf's, and which modes of the terminal a program has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd_cli.relay.escapes import EscapeCommand, EscapeFilter
from drfd_cli.relay.screen_modes import ScreenModes
from seeds import examples

# -- keys --------------------------------------------------------------------------------------


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
    assert fed(keys, sign=None) == ([keys] if keys else []), "without a sign all are the job's"


# -- modes of the terminal ---------------------------------------------------------------------

#: What ncurses and editors send when they take the screen, and when they leave it.
TAKEN = b"\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?2004h\x1b[?25l\x1b[1;1Htext"
LEFT = b"\x1b[?25h\x1b[?2004l\x1b[?1l\x1b>\x1b[?1049l"


def after(*pieces: bytes) -> ScreenModes:
    modes = ScreenModes()
    for piece in pieces:
        modes.feed(piece)
    return modes


def test_what_a_full_screen_program_took_is_given_back_and_taken_again() -> None:
    modes = after(TAKEN)
    assert modes.is_alternate
    assert modes.leave() == b"\x1b[?25h\x1b[?2004l\x1b[?1l\x1b>\x1b[0m\x1b[r\x1b[?1049l"
    assert modes.enter() == b"\x1b[?1049h\x1b[?1h\x1b[?2004h\x1b[?25l\x1b="
    assert after(modes.enter()).leave() == modes.leave()
    modes = after(TAKEN, LEFT)
    assert (modes.is_alternate, modes.times_left, modes.leave()) == (False, 1, b"")
    modes = after(b"plain \x1b[1mbold\x1b[0m\x1b]0;title\x07\x1b[?12h")
    assert (modes.is_alternate, modes.leave(), modes.enter()) == (False, b"", b"")


@pytest.mark.parametrize(
    ("written", "left"),
    [
        (b"\x1b[?1000;1006h", b"\x1b[?1006l\x1b[?1000l"),
        (b"\x1b[?47h", b"\x1b[0m\x1b[r\x1b[?47l"),
        (b"\x1b[?47h\x1b[?1049l", b""),
        (b"\x1b[?;;h\x1b[?1049", b""),
        (b"\x1b[?" + b"1;" * 100 + b"h", b""),
        (b"\x1b\x1b[?25l", b"\x1b[?25h"),
    ],
)
def test_sequences_as_they_may_come(written: bytes, left: bytes) -> None:
    assert after(written).leave() == left


@examples(50)
@given(st.data())
def test_it_does_not_matter_how_the_output_arrives(data: st.DataObject) -> None:
    piece = st.sampled_from([TAKEN, LEFT, b"text", b"\x1b[?1000h", b"\x1b", b"\x1b[?25", b"\x1b["])
    written = b"".join(data.draw(st.lists(piece, max_size=6)))
    at = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    pieces = [written[a:b] for a, b in zip([0, *at], [*at, len(written)], strict=True)]
    whole, parts = after(written), after(*pieces)
    assert (parts.leave(), parts.times_left) == (whole.leave(), whole.times_left)
