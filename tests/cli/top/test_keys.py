"""What a terminal sends, as keys."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd_cli.top.keys import Keys

SENT = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home", b"\x1b[4~": "end",
    b"\x1b[5~": "pgup", b"\x1b[6~": "pgdn", b"\x1b[3~": "delete", b"\x1b[Z": "backtab",
    b"\x1b[1;5A": "up", b"\x1b[5;3~": "pgup", b"\x1bOP": "f1", b"\x1b[11~": "f1",
    b"\x1b[[A": "f1", b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace",
    b"\x08": "backspace", b"\x03": "ctrl-c", b"\x0c": "ctrl-l", b"\x1a": "ctrl-z",
    b"\x15": "ctrl-u", b"j": "j", b" ": " ", "ß".encode(): "ß", "漢".encode(): "漢",
}  # fmt: skip
#: Sequences of keys that mean nothing here.
NOTHING = [b"\x1b[2~", b"\x1b[24~", b"\x1b[[B", b"\x1b[?1;2c", b"\x1bOQ", b"\x01", b"\x1b[200~"]


def keys_of(*pieces: bytes) -> list[str]:
    keys = Keys()
    return [key for piece in pieces for key in keys.feed(piece)]


@pytest.mark.parametrize(("sent", "key"), SENT.items(), ids=map(repr, SENT))
def test_a_key_is_known_whole_and_byte_by_byte(sent: bytes, key: str) -> None:
    assert keys_of(sent) == [key]
    assert keys_of(*(bytes([each]) for each in sent)) == [key]


@pytest.mark.parametrize("sent", NOTHING)
def test_a_key_without_a_meaning_is_none_and_takes_nothing_with_it(sent: bytes) -> None:
    assert keys_of(sent, b"j") == ["j"]


@given(
    st.lists(st.sampled_from([*SENT, *NOTHING]), max_size=20),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_keys_are_the_same_however_their_bytes_are_split(
    sent: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(sent)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[begin:end] for begin, end in pairwise(ends)]
    assert keys_of(*pieces) == [SENT[each] for each in sent if each in SENT]


def test_escape_alone_is_a_key_when_nothing_follows() -> None:
    keys = Keys()
    assert list(keys.feed(b"\x1b")) == []
    assert keys.is_waiting
    assert list(keys.flush()) == ["esc"]
    assert not keys.is_waiting
    assert list(keys.feed(b"[A")) == ["[", "A"]


def test_escape_and_another_key_right_after_it_are_two() -> None:
    assert keys_of(b"\x1bj") == ["esc", "j"]
    assert keys_of(b"\x1b\x1b[A") == ["esc", "up"]


def test_what_is_cut_off_for_ever_is_no_key() -> None:
    keys = Keys()
    assert list(keys.feed(b"\x1b[1;")) == []
    assert list(keys.flush()) == []
    assert list(keys.feed(b"q")) == ["q"]


@given(st.binary(max_size=200))
def test_noise_is_taken_in_and_never_kept_for_long(data: bytes) -> None:
    keys = Keys()
    for key in keys.feed(data):
        assert key.isprintable()
    list(keys.flush())
    assert list(keys.feed(b"\x1b[A"))[-1] == "up"
