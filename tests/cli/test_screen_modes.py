"""Which modes of the terminal a full-screen program has, and how they are taken and given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd_cli.relay.screen_modes import ScreenModes

#: What ncurses and editors send when they take the screen, and when they leave it.
TAKEN = b"\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?2004h\x1b[?25l\x1b[1;1Htext"
LEFT = b"\x1b[?25h\x1b[?2004l\x1b[?1l\x1b>\x1b[?1049l"


def after(*pieces: bytes) -> ScreenModes:
    modes = ScreenModes()
    for piece in pieces:
        modes.feed(piece)
    return modes


def test_a_program_that_took_nothing_gives_nothing_back() -> None:
    modes = after(b"plain \x1b[1mbold\x1b[0m\x1b]0;title\x07\x1b[?12h")
    assert (modes.is_alternate, modes.leave(), modes.enter()) == (False, b"", b"")


def test_what_a_full_screen_program_took_is_given_back_and_taken_again() -> None:
    modes = after(TAKEN)
    assert modes.is_alternate
    assert modes.leave() == b"\x1b[?25h\x1b[?2004l\x1b[?1l\x1b>\x1b[0m\x1b[r\x1b[?1049l"
    assert modes.enter() == b"\x1b[?1049h\x1b[?1h\x1b[?2004h\x1b[?25l\x1b="
    assert after(modes.enter()).leave() == modes.leave()


def test_a_program_that_has_left_leaves_nothing_to_do() -> None:
    modes = after(TAKEN, LEFT)
    assert (modes.is_alternate, modes.times_left, modes.leave()) == (False, 1, b"")


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


@given(st.data())
def test_it_does_not_matter_how_the_output_arrives(data: st.DataObject) -> None:
    piece = st.sampled_from([TAKEN, LEFT, b"text", b"\x1b[?1000h", b"\x1b", b"\x1b[?25", b"\x1b["])
    written = b"".join(data.draw(st.lists(piece, max_size=6)))
    at = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    pieces = [written[a:b] for a, b in zip([0, *at], [*at, len(written)], strict=True)]
    whole, parts = after(written), after(*pieces)
    assert (parts.leave(), parts.times_left) == (whole.leave(), whole.times_left)
