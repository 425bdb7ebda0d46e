"""Waiting jobs that a snapshot does not have are searched and listed all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from canned import CannedDaemon, Refuse
from canned_snapshots import AT_S, snapshot, waits
from drfd.client.connection import Connection
from drfd_cli.top.feed import fetch_waiting
from drfd_cli.top.paint import Theme
from drfd_cli.top.state import (
    CursorPlace,
    FoundRows,
    RowFilter,
    State,
    TopPanel,
    WaitingQuery,
    cursor,
    missing_query,
    press,
    shown,
    window_of,
)
from drfd_cli.top.view import Scene, Size, screen

#: The snapshot has 300 of 500 jobs.
FAR = snapshot(
    pending=[waits(number, name=f"job{number}") for number in range(300)],
    pending_more=200, counts={"PENDING": 500},
)  # fmt: skip
WAITING = State(panel=TopPanel.WAITING)


def answer(state: State, ids: range, first: int = 0, total: int | None = None) -> FoundRows:
    query = missing_query(FAR, state)
    assert query is not None
    rows = [waits(number, name=f"job{number}") for number in ids]
    return FoundRows(query, rows, first, len(ids) if total is None else total)


def after(state: State, *keys: str, found: FoundRows | None = None) -> State:
    for key in keys:
        lists, window = shown(FAR, state, found), window_of(FAR, state, found)
        state, action = press(state, key, lists, 5, window)
        assert action is None
    return state


def labels(state: State, found: FoundRows | None) -> list[str]:
    return [row["label"] for row in shown(FAR, state, found)[TopPanel.WAITING]]


def seen(state: State, found: FoundRows | None) -> str:
    lines = screen(
        Scene(FAR, state, AT_S, found=found), Size(100, 24), Theme(has_colour=False)
    )  # fmt: skip
    return "\n".join("".join(piece.text for piece in line) for line in lines)


def test_a_search_is_for_all_jobs_and_until_the_answer_no_job_is_denied() -> None:
    state = after(WAITING, "/", *"job499", "enter")
    assert labels(state, None) == []
    assert "(0 shown, searching all …)" in seen(state, None)
    found = answer(state, range(499, 500))
    assert found.query == WaitingQuery(RowFilter("job499"), "turn", False, 0)
    assert labels(state, found) == ["499"]
    assert "WAITING 500 (1 shown)" in seen(state, found)
    # An answer to an earlier text is none to this one.
    assert labels(after(state, "/", "backspace", found=found), found) == [
        str(number) for number in range(300) if "job49" in f"job{number}"
    ]


def test_without_a_filter_nothing_is_asked_and_without_more_rows_either() -> None:
    assert missing_query(FAR, WAITING) is None
    near = {**FAR, "pending_more": 0}
    assert missing_query(near, after(WAITING, "/", "x", "enter", "s", "S")) is None


@pytest.mark.parametrize("key", ["u", "s", "S", "G"])
def test_mine_and_other_orders_are_of_all_jobs(key: str) -> None:
    assert missing_query(FAR, after(WAITING, key)) is not None


def test_the_last_job_is_reached_and_the_way_back() -> None:
    state = after(WAITING, "G")
    assert state.first is None
    found = answer(state, range(200, 500), 200, 500)
    rows = shown(FAR, state, found)[TopPanel.WAITING]
    assert rows[cursor(state, TopPanel.WAITING, rows)]["label"] == "499"
    assert "(rows 201-500 of 500)" in seen(state, found)
    back = after(state, "g", found=found)
    assert (back.first, back.places[TopPanel.WAITING]) == (0, CursorPlace())
    assert missing_query(FAR, back) is None


def test_the_cursor_goes_on_over_the_end_of_what_is_listed_and_back() -> None:
    state = replace(WAITING, places={TopPanel.WAITING: CursorPlace("299", 299)})
    state = after(state, "j")
    assert state.first == 200
    found = answer(state, range(200, 500), 200, 500)
    rows = shown(FAR, state, found)[TopPanel.WAITING]
    assert rows[cursor(state, TopPanel.WAITING, rows)]["label"] == "299"
    on = after(state, "j", found=found)
    assert on.places[TopPanel.WAITING] == CursorPlace("300", 100)
    first = replace(on, places={TopPanel.WAITING: CursorPlace("200", 0)})
    assert after(first, "k", found=found).first == 0


def test_a_new_filter_or_order_begins_at_the_first_row() -> None:
    state = after(WAITING, "G")
    for key in ("u", "s", "S", "esc"):
        changed = after(state, "u", key) if key == "esc" else after(state, key)
        assert changed.first == 0


def test_the_end_of_the_listed_rows_tells_how_to_go_on() -> None:
    state = replace(WAITING, places={TopPanel.WAITING: CursorPlace("299", 299)})
    assert "… and 200 more rows; G goes to the last" in seen(state, None)


def test_a_refusal_is_no_reason_to_say_that_there_are_none(
    daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"waiting": refuse(text="too many requests")}
    state = after(WAITING, "/", *"job2", "enter")
    query = missing_query(FAR, state)
    assert query is not None
    connection = Connection(daemon.path)
    found = fetch_waiting(connection, query, "alice")
    connection.close()
    assert len(labels(state, found)) == 111
    ended = after(after(state, "esc", found=found), "G", found=found)
    assert (ended.first, ended.is_bad) == (0, True)
    assert "too many requests" in ended.message


def test_the_daemon_is_asked_for_what_the_screen_is_to_show(daemon: CannedDaemon) -> None:
    row = waits(7)
    daemon.replies = {"waiting": {"rows": [row], "first": 4, "total": 5}}
    query = WaitingQuery(RowFilter("fit", "root.lab", only_mine=True), "name", True, None)
    connection = Connection(daemon.path)
    found = fetch_waiting(connection, query, "alice")
    connection.close()
    assert found == FoundRows(query, [row], 4, 5)
    asked: dict[str, Any] = {
        "text": "fit", "below": "root.lab", "user": "alice", "order": "name", "reverse": True,
        "skip": None,
    }  # fmt: skip
    assert daemon.requests == [{"op": "waiting", **asked}]
