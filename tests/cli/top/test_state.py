"""Which key does what, and which bytes of a terminal are which key."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned_snapshots import ended, many, row, snapshot, three_jobs, waits
from drfd_cli.top.actions import Act, Verb
from drfd_cli.top.keys import KeyDecoder
from drfd_cli.top.state import (
    ORDERS,
    Page,
    RowFilter,
    State,
    TopPanel,
    UserAction,
    cursor,
    press,
    shown,
)

KEYS = [
    *("up", "down", "left", "right", "tab", "backtab", "enter", "esc", "home", "end", "pgup"),
    *("pgdn", "backspace", "ctrl-l", "ctrl-u", "f1", *"jkgGuschqeyn/?1234 ab漢"),
]


def after(state: State, *keys: str, of: dict[str, Any] | None = None) -> State:
    """The state after these keys, none of which is a wish."""
    for key in keys:
        state, wish = press(state, key, shown(of or three_jobs(), state), 5)
        assert wish is None, key
    return state


def wish_after(
    state: State, *keys: str, of: dict[str, Any] | None = None
) -> tuple[State, UserAction | Act | None]:
    state = after(state, *keys[:-1], of=of)
    return press(state, keys[-1], shown(of or three_jobs(), state), 5)


def under_cursor(state: State, of: dict[str, Any]) -> Any:
    rows = shown(of, state)[state.panel]
    row = rows[cursor(state, state.panel, rows)]
    return row["path"] if state.panel is TopPanel.TREE else row["label"]


def test_arrows_and_letters_move_and_stop_at_the_ends() -> None:
    three = three_jobs()
    state = State()
    assert under_cursor(state, three) == "40"
    state = after(state, "j", "down")
    assert under_cursor(state, three) == "44_7"
    assert under_cursor(after(state, "j", "j"), three) == "44_7"
    assert under_cursor(after(state, "k"), three) == "41"
    assert under_cursor(after(state, "home", "up"), three) == "40"
    assert under_cursor(after(State(), "G"), three) == "44_7"


def test_pages_go_as_far_as_the_screen_says() -> None:
    busy = many(60, 5000)
    state = after(State(panel=TopPanel.WAITING), "pgdn", "pgdn", "j", of=busy)
    assert under_cursor(state, busy) == "20011"
    assert under_cursor(after(state, "pgup", of=busy), busy) == "20006"


def test_the_cursor_follows_its_job_and_stays_in_place_when_that_has_gone() -> None:
    three = three_jobs()
    state = after(State(), "j")
    first, second, third = three["running"]
    assert under_cursor(state, {**three, "running": [first, row(39), second]}) == "41"
    assert under_cursor(state, {**three, "running": [first, third]}) == "44_7"
    assert under_cursor(state, {**three, "running": [first]}) == "40"


def test_tab_goes_round_the_panels_and_back() -> None:
    state = State(panel=TopPanel.TREE)
    seen = [state := after(state, "tab") for _ in TopPanel]
    assert [each.panel for each in seen] == [*list(TopPanel)[1:], TopPanel.TREE]
    assert after(State(panel=TopPanel.TREE), "backtab").panel is TopPanel.ENDED
    assert after(State(), "1").panel is TopPanel.TREE
    assert after(State(), "4").panel is TopPanel.ENDED


def test_a_filter_holds_while_it_is_typed_and_after() -> None:
    state = after(State(), "/", *"carx", "backspace")
    assert state.is_typing
    assert state.row_filter == RowFilter("car")
    kept = after(state, "enter", "j")
    assert not kept.is_typing
    assert [each["label"] for each in shown(three_jobs(), kept)[TopPanel.RUNNING]] == ["44_7"]
    assert after(kept, "esc").row_filter.is_empty()
    assert after(state, "esc").row_filter.is_empty()


def test_a_filter_finds_the_jobs_of_a_group() -> None:
    snapshot = three_jobs()
    snapshot["running"][1]["group"] = "media"
    state = State(row_filter=RowFilter("media"))
    assert [each["label"] for each in shown(snapshot, state)[TopPanel.RUNNING]] == ["41"]


def test_while_a_filter_is_typed_letters_are_letters() -> None:
    state = after(State(), "/", *"quchs")
    assert state.row_filter == RowFilter("quchs")
    assert state.question is None


def test_mine_and_all() -> None:
    state = after(State(), "u")
    assert [each["label"] for each in shown(three_jobs(), state)[TopPanel.RUNNING]] == ["41"]
    assert after(state, "u").row_filter.is_empty()


def test_mine_are_also_those_that_stand_beyond_the_list() -> None:
    far = snapshot(pending=[waits(1, "bob")], mine=[waits(900, "alice")], pending_more=1)
    assert [each["label"] for each in shown(far, State())[TopPanel.WAITING]] == ["1"]
    state = after(State(), "u", of=far)
    assert [each["label"] for each in shown(far, state)[TopPanel.WAITING]] == ["900"]


def test_enter_on_the_tree_shows_only_the_jobs_below_and_again_all() -> None:
    three = three_jobs()
    state = after(State(panel=TopPanel.TREE), "enter")
    assert state.row_filter == RowFilter(below="root.lab")
    assert [each["label"] for each in shown(three, state)[TopPanel.RUNNING]] == ["40", "41"]
    assert after(state, "enter").row_filter.is_empty()


@pytest.mark.parametrize("panel", TopPanel)
def test_s_goes_through_all_orders_of_a_panel_and_back_to_the_first(panel: TopPanel) -> None:
    busy = many(7, 50)
    state, orders = State(panel=panel), []
    for _ in ORDERS[panel]:
        orders.append(state.orders()[panel])
        state = after(state, "s", of=busy)
    assert tuple(orders) == ORDERS[panel]
    assert state.orders()[panel] == ORDERS[panel][0]


def test_a_job_has_a_page_with_a_way_back() -> None:
    state = after(State(), "j", "enter")
    assert state.page is Page.JOB
    assert state.job is not None
    assert state.job["label"] == "41"
    assert after(state, "e").shows_errors
    assert after(state, "j", "j", "k").scroll == 1
    for key in ("q", "esc", "left", "backspace"):
        assert after(state, key) == after(State(), "j")


def test_help_leads_back_to_where_it_was_asked_for() -> None:
    assert after(State(), "?", "q") == State()
    on_job = after(State(), "enter")
    assert after(on_job, "?", "esc") == on_job


def test_a_job_is_cancelled_only_after_a_yes() -> None:
    asked = after(State(panel=TopPanel.WAITING), "j", "c")
    assert asked.question is not None
    assert asked.question.text == "cancel 92 tasks, job 44_[8-99%4] (sweep) of carol?"
    for key in ("n", "enter", "esc", " ", "c", "q"):
        state, wish = wish_after(asked, key)
        assert (state.question, wish, state.message) == (None, None, "nothing done")
    state, wish = wish_after(asked, "y")
    assert (state.question, wish) == (None, Act(Verb.CANCEL, ("44_[8-99%4]",)))


def test_the_question_is_about_the_job_that_was_meant_whatever_moves_below_it() -> None:
    state = after(State(), "c")
    _, wish = wish_after(state, "y", of=snapshot(running=[row(1)]))
    assert wish == Act(Verb.CANCEL, ("40",))


def test_h_holds_what_waits_and_releases_what_is_held() -> None:
    waiting = State(panel=TopPanel.WAITING)
    assert wish_after(waiting, "h")[1] == Act(Verb.HOLD, ("45",))
    assert wish_after(waiting, "G", "h")[1] == Act(Verb.RELEASE, ("46",))


def test_on_a_jobs_page_keys_are_about_the_job_as_it_is_now() -> None:
    state = after(State(panel=TopPanel.WAITING), "enter")
    three = three_jobs()
    held = {**three, "pending": [three["pending"][0] | {"state": "HELD"}]}
    assert wish_after(state, "h")[1] == Act(Verb.HOLD, ("45",))
    assert wish_after(state, "h", of=held)[1] == Act(Verb.RELEASE, ("45",))
    over = {**three, "pending": [], "ended": [ended(45)]}
    assert after(state, "c", of=over).message == "job 45 has ended"


def test_what_cannot_be_done_is_said() -> None:
    running = after(State(), "h")
    assert (running.message, running.is_bad) == (
        "job 40 is RUNNING: only waiting jobs can be held", True,
    )  # fmt: skip
    over = after(State(panel=TopPanel.ENDED), "c")
    assert (over.message, over.is_bad) == ("job 39 has ended", True)
    # And it is gone with the next key.
    assert after(over, "j").message == ""


@pytest.mark.parametrize("panel", TopPanel)
@pytest.mark.parametrize("key", ["c", "h", "enter", "j", "G", "pgdn"])
def test_where_there_is_nothing_keys_do_nothing(panel: TopPanel, key: str) -> None:
    state = State(panel=panel)
    assert after(state, key, of=snapshot()) == state


@pytest.mark.parametrize(
    "state", [State(), after(State(), "c"), after(State(), "/"), after(State(), "enter")]
)
def test_interrupt_leaves_and_the_screen_can_be_drawn_anew_from_anywhere(state: State) -> None:
    assert press(state, "ctrl-c", shown(three_jobs(), state), 5)[1] is UserAction.QUIT
    assert press(state, "ctrl-l", shown(three_jobs(), state), 5)[1] is UserAction.REDRAW
    assert press(state, "ctrl-z", shown(three_jobs(), state), 5)[1] is UserAction.SUSPEND


def test_q_leaves_from_the_main_page() -> None:
    assert wish_after(State(), "q")[1] is UserAction.QUIT


def test_tasks_that_ended_alike_are_one_row() -> None:
    tasks = [
        ended(60 - number, label=f"50_{9 - number}", array_id=50, array_index=9 - number,
              name="sweep", **({"exit_code": 1} if number == 3 else {}))
        for number in range(10)
    ]  # fmt: skip
    rows = shown(snapshot(ended=[ended(70), *tasks, ended(40)]), State())[TopPanel.ENDED]
    assert [(each["label"], each["tasks"]) for each in rows] == [
        ("70", 1), ("50_[7-9]", 3), ("50_6", 1), ("50_[0-5]", 6), ("40", 1),
    ]  # fmt: skip


@given(st.lists(st.sampled_from(KEYS), max_size=30), st.sampled_from(["three", "none", "many"]))
def test_no_keys_lead_to_a_state_that_cannot_go_on(keys: list[str], which: str) -> None:
    of = {"three": three_jobs(), "none": snapshot(), "many": many(3, 20)}[which]
    state = State()
    for key in keys:
        state, wish = press(state, key, shown(of, state), 5)
        assert not (isinstance(wish, Act) and wish.verb is Verb.CANCEL and key not in "yY")
        assert (state.page is Page.JOB) <= (state.job is not None)
    assert replace(state, message="") is not None


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
    keys = KeyDecoder()
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
    keys = KeyDecoder()
    assert list(keys.feed(b"\x1b")) == []
    assert keys.is_waiting
    assert list(keys.flush()) == ["esc"]
    assert not keys.is_waiting
    assert list(keys.feed(b"[A")) == ["[", "A"]


def test_escape_and_another_key_right_after_it_are_two() -> None:
    assert keys_of(b"\x1bj") == ["esc", "j"]
    assert keys_of(b"\x1b\x1b[A") == ["esc", "up"]


def test_what_is_cut_off_for_ever_is_no_key() -> None:
    keys = KeyDecoder()
    assert list(keys.feed(b"\x1b[1;")) == []
    assert list(keys.flush()) == []
    assert list(keys.feed(b"q")) == ["q"]


@given(st.binary(max_size=200))
def test_noise_is_taken_in_and_never_kept_for_long(data: bytes) -> None:
    keys = KeyDecoder()
    for key in keys.feed(data):
        assert key.isprintable()
    list(keys.flush())
    assert list(keys.feed(b"\x1b[A"))[-1] == "up"
