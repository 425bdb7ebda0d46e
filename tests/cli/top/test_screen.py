"""What is sent to a terminal, and what it costs."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from statistics import median

import pytest
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from canned_snapshots import many
from drfd.protocol.codec import decode
from drfd_cli.top.paint import Theme
from drfd_cli.top.screen import AlternateScreen, encode, has_plain_signs, plain_signs
from drfd_cli.top.state import State
from drfd_cli.top.view import Scene, Size, screen


class Sent:
    """A terminal that keeps what comes."""

    def __init__(self) -> None:
        self.fd, self.side = os.openpty()

    def take(self) -> str:
        found = b""
        while select.select([self.fd], [], [], 0.05)[0]:
            found += os.read(self.fd, 1 << 16)
        return found.decode()


@pytest.fixture
def sent() -> Iterator[Sent]:
    made = Sent()
    yield made
    os.close(made.fd)
    os.close(made.side)


def test_only_lines_that_differ_are_sent(sent: Sent) -> None:
    shown = AlternateScreen(sent.side, sent.side)
    lines = [[Segment("one")], [Segment("two")], [Segment("three")]]
    shown.show(lines)
    assert "one" in sent.take()
    shown.show(lines)
    assert sent.take() == ""
    shown.show([lines[0], [Segment("2", Style(bold=True))], lines[2]])
    assert sent.take() == "\x1b[2H\x1b[0m\x1b[2K\x1b[1m2\x1b[0m"
    shown.forget()
    shown.show(lines)
    again = sent.take()
    assert again.startswith("\x1b[0m\x1b[2J")
    assert again.index("one") < again.index("two") < again.index("three")


def test_a_screen_of_another_size_is_drawn_as_a_whole(sent: Sent) -> None:
    shown = AlternateScreen(sent.side, sent.side)
    shown.show([[Segment("one")], [Segment("two")]])
    sent.take()
    shown.show([[Segment("one")]])
    assert sent.take() == "\x1b[0m\x1b[2J\x1b[1H\x1b[0m\x1b[2Kone"


def test_leaving_undoes_what_entering_did_and_may_be_repeated(sent: Sent) -> None:
    shown = AlternateScreen(sent.side, sent.side)
    shown.enter()
    entered = sent.take()
    assert [entered.count(f"\x1b[?{mode}") for mode in ("1049h", "25l", "7l")] == [1, 1, 1]
    shown.leave()
    shown.leave()
    left = sent.take()
    assert [left.count(f"\x1b[?{mode}") for mode in ("1049l", "25h", "7h")] == [1, 1, 1]


def test_neighbours_of_one_style_share_their_escape_sequences() -> None:
    bold = Style(bold=True)
    line = [Segment("a", bold), Segment("b", bold), Segment("c"), Segment("d", Style.null())]
    assert encode(line, ColorSystem.STANDARD) == "\x1b[1mab\x1b[0mcd"
    assert encode(line, None) == "abcd"


def test_a_busy_machines_snapshot_costs_a_small_part_of_its_second() -> None:
    """5 % of a core is the promise: read, listed, drawn, encoded; in processor time."""
    line = json.dumps({"ok": True, "snapshot": many(60, 10_000)}).encode()
    theme, rounds = Theme(has_colour=True), 20
    took_s = []
    for number in range(rounds):
        begin_s = time.process_time()
        snapshot = decode(line)["snapshot"]
        lines = screen(Scene(snapshot, State(), snapshot["at"] + number), Size(200, 60), theme)
        assert sum(len(encode(each, ColorSystem.EIGHT_BIT)) for each in lines) > 200 * 60
        took_s.append(time.process_time() - begin_s)
    # The middle one: on a busy machine some rounds take longer, also in processor time.
    assert median(took_s) < 0.05


@pytest.mark.parametrize(
    ("terminal", "environment", "is_plain"),
    [
        ("xterm-256color", b"LANG=C.UTF-8\0HOME=/", False),
        ("xterm-256color", b"LANG=en_US.UTF-8\0LC_ALL=C", True),
        ("xterm-256color", b"LC_CTYPE=C.UTF-8\0LANG=C", False),
        ("xterm-256color", b"LC_ALL=\0LANG=POSIX", True),
        ("xterm-256color", b"", False),
        ("vt100", b"LANG=C.UTF-8", True),
        ("vt220", b"", True),
        ("linux", b"LANG=de_DE.UTF-8", False),
    ],
)
def test_a_terminal_without_other_signs_gets_ascii(
    terminal: str, environment: bytes, is_plain: bool
) -> None:
    assert has_plain_signs(terminal, environment) is is_plain


def test_in_ascii_each_screen_is_as_wide_as_before(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "vt100")
    shown = AlternateScreen(sent.side, sent.side)
    scene = Scene(many(7, 50), State(), 0.0)
    shown.show(screen(scene, Size(120, 40), Theme(has_colour=False)))
    words = sent.take()
    assert words.isascii()
    assert "#=" in words and "/" in words
    for name in ("漢字", "e\u0301té", "█▒╱·┃■…"):
        assert cell_len(plain_signs(name)) == cell_len(name)
        assert plain_signs(name).isascii()
