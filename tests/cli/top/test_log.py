"""The output of a job on the whole screen: followed, searched, and read in parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon
from canned_snapshots import AT_S, replies, row, three_jobs, waits
from drfd.client.connection import Connection
from drfd_cli.top import log as log_module
from drfd_cli.top.log import LogPart, LogQuery, fetch_log, read_part
from drfd_cli.top.paint import Theme
from drfd_cli.top.state import Page, State, press, shown
from drfd_cli.top.view import Scene, Size, log_query, read_again, screen, settled

THREE = three_jobs()
SIZE, PLAIN = Size(80, 24), Theme(has_colour=False)
#: Lines of an output on such a screen.
ROOM = 20


class Reader:
    """Somebody who reads an output as the live view does."""

    def __init__(self, path: Path) -> None:
        self.path, self.state = path, State()
        self.log: LogPart | None = None
        self.press("l")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.state, action = press(self.state, key, shown(THREE, self.state), 5)
            assert action is None
            self.state = settled(self._scene(), SIZE, PLAIN)
            self.look()

    def look(self) -> None:
        query = log_query(self.state)
        if query is not None:
            self.log = read_part(query, str(self.path), self.log)
            self.state = read_again(self._scene(), SIZE, PLAIN)

    def lines(self) -> list[str]:
        shown_lines = screen(self._scene(), SIZE, PLAIN)
        return ["".join(piece.text for piece in line).rstrip() for line in shown_lines]

    def _scene(self) -> Scene:
        return Scene(THREE, self.state, AT_S, log=self.log)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.write_text("".join(f"line {number}\n" for number in range(100)))
    return made


def test_it_begins_at_the_end_and_follows(path: Path) -> None:
    reader = Reader(path)
    lines = reader.lines()
    assert lines[1].startswith(" output of job 40 ")
    assert lines[1].endswith(", following")
    assert (lines[2], lines[ROOM + 1]) == (" line 80", " line 99")
    with path.open("a") as file:
        file.write("more\n")
    reader.look()
    assert reader.lines()[ROOM + 1] == " more"


def test_who_scrolls_up_is_not_moved_until_the_end_is_reached_again(path: Path) -> None:
    reader = Reader(path)
    reader.press("k", "k")
    with path.open("a") as file:
        file.write("more\n" * 30)
    reader.look()
    assert reader.lines()[2] == " line 78"
    assert "following" not in reader.lines()[1]
    reader.press("G")
    assert reader.lines()[ROOM + 1] == " more"
    assert reader.lines()[1].endswith("following")
    reader.press("g")
    assert reader.lines()[2] == " line 0"
    reader.press(*["pgdn"] * 40)
    assert reader.lines()[1].endswith("following")


def test_a_search_goes_on_and_back_and_round(path: Path) -> None:
    reader = Reader(path)
    reader.press("g", "/", *"LINE 5", "enter")
    assert reader.state.found_at == 5
    found = [5]
    for key in ("n", "n", "N", "N", "N"):
        reader.press(key)
        assert reader.state.found_at is not None
        found.append(reader.state.found_at)
    assert found == [5, 50, 51, 50, 5, 59]
    assert " line 59" in reader.lines()
    reader.press("/", *"nothing", "enter")
    assert "“nothing” is not there" in reader.lines()[-2]
    reader.press("esc")
    assert (reader.state.page, reader.state.search) == (Page.LOG, "")
    reader.press("esc")
    assert reader.state.page is Page.MAIN


def test_a_large_file_is_read_in_parts_and_every_line_is_reached(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "PART_BYTES", 500)
    monkeypatch.setattr("drfd_cli.top.view.PART_BYTES", 500)
    path.write_text("".join(f"line {number:04}\n" for number in range(1000)))
    reader = Reader(path)
    assert " of 9.8K" in reader.lines()[1]
    seen: set[str] = set()
    for _ in range(1000):
        seen.update(reader.lines()[2 : ROOM + 2])
        if reader.lines()[2] == " line 0000":
            break
        reader.press("pgup")
    assert len(seen - {""}) == 1000
    down: set[str] = set()
    for _ in range(1000):
        down.update(reader.lines()[2 : ROOM + 2])
        if reader.lines()[1].endswith("following"):
            break
        reader.press("pgdn")
    assert down - {""} == seen - {""}


def test_long_lines_can_be_moved_and_what_acts_on_a_terminal_is_removed(path: Path) -> None:
    path.write_text("x" * 100 + "the end\n\x1b[31mred\x1b[0m\x1b]0;title\x07\n10%\r100%\n")
    reader = Reader(path)
    assert reader.lines()[3:5] == [" red", " 100%"]
    assert "the end" not in reader.lines()[2]
    reader.press("right", "right")
    assert reader.lines()[2].endswith("the end")
    reader.press("left", "left", "left")
    assert reader.lines()[2].startswith(" xxx")


def test_it_is_opened_from_the_page_of_a_job_and_leads_back_there(path: Path) -> None:
    reader = Reader(path)
    reader.press("esc")
    assert reader.state == replace(State(), places=reader.state.places)
    reader.press("enter", "e", "l")
    assert reader.state.page is Page.LOG
    assert "errors of job 40" in reader.lines()[1]
    reader.press("?", "esc")
    assert reader.state.page is Page.LOG
    reader.press("q")
    assert (reader.state.page, reader.state.shows_errors) == (Page.JOB, True)


def shown_job(path: Path, **changes: Any) -> dict[str, Any]:
    show, _, _ = replies()
    return {**show, "job": {**show["job"], "stdout": str(path), **changes}}


def test_the_file_is_read_by_the_caller_and_the_daemon_is_asked_once_for_its_path(
    path: Path, daemon: CannedDaemon
) -> None:
    daemon.replies = {"show": shown_job(path)}
    query = LogQuery("40", errors=False)
    connection = Connection(daemon.path)
    first = fetch_log(connection, query, 40, None)
    assert fetch_log(connection, query, 40, first) is first, "an unchanged file is not read again"
    with path.open("a") as file:
        file.write("more\n")
    later = fetch_log(connection, query, 40, first)
    connection.close()
    assert (len(first.lines), later.lines[-1]) == (100, "more")
    assert daemon.requests == [{"op": "show", "id": 40}]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stdout": None}, "only its owner is told where the output is"),
        ({"started_at": None}, "not started yet"),
        (
            {"started_at": None, "outcome": {"code": "CANCELLED", "text": "by alice"}},
            "it ended before it started: CANCELLED: by alice",
        ),
        ({"stdout": "/nowhere/at/all"}, "the file is not there"),
        ({"stdout": "/"}, "cannot read /: Is a directory"),
    ],
)
def test_why_there_is_nothing_to_read_is_said(
    path: Path, daemon: CannedDaemon, changes: dict[str, Any], problem: str
) -> None:
    daemon.replies = {"show": shown_job(path, **changes)}
    connection = Connection(daemon.path)
    query = LogQuery("40", errors=False)
    part = fetch_log(connection, query, 40, None)
    connection.close()
    assert part.problem == problem
    state = State(page=Page.LOG, job=THREE["running"][0], under=(Page.MAIN,))
    lines = screen(Scene(THREE, state, AT_S, log=part), SIZE, PLAIN)
    assert problem in "".join(piece.text for line in lines for piece in line)


def test_tasks_in_one_row_have_no_common_output(daemon: CannedDaemon) -> None:
    daemon.replies = {"show": {"array": {}, "events": []}}
    connection = Connection(daemon.path)
    part = fetch_log(connection, LogQuery("44_[1-9]", errors=False), 44, None)
    connection.close()
    assert part.problem == "each task of an array has an output of its own"
    assert row(1)["label"] == waits(1)["label"]
