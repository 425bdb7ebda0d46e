"""Keys in drf top: what each does, to which jobs, and which bytes are which key."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned_snapshots import AT_S, ended, many, row, snapshot, three_jobs, waits
from drfd_cli.top.keys import Act, KeyDecoder, Page, Question, Viewer, refusal
from drfd_cli.top.paint import Theme
from drfd_cli.top.state import (
    ORDERS,
    Look,
    RowFilter,
    State,
    TopPanel,
    UserAction,
    cursor,
    press,
    shown,
    viewer_of,
)
from drfd_cli.top.view import Scene, Size, screen

ALICE, ROOT = Viewer("alice", is_admin=False), Viewer("root", is_admin=True)
WAITING, RUNNING, ENDED = (
    State(panel=panel) for panel in (TopPanel.WAITING, TopPanel.RUNNING, TopPanel.ENDED)
)
PLAIN = Theme(has_colour=False)
SMALL = Size(80, 24)
KEYS = [
    *("up", "down", "left", "right", "tab", "backtab", "enter", "esc", "home", "end", "pgup"),
    *("pgdn", "backspace", "ctrl-l", "ctrl-u", "f1", *"jkgGuschqeyn/?1234 ab漢"),
]
Wish = UserAction | Act | Look | None


def wish_after(state: State, *keys: str, of: dict[str, Any] | None = None) -> tuple[State, Wish]:
    """The state after these keys, and what the last of them asks for: of root, who sees the three
    jobs, or of alice, who sees others."""
    wish: Wish = None
    viewer, of = (ROOT, three_jobs()) if of is None else (ALICE, of)
    for key in keys:
        assert wish is None, key
        state, wish = press(state, key, shown(of, state), 5, viewer)
    return state, wish


def after(state: State, *keys: str, **more: Any) -> State:
    """The state after these keys, none of which is a wish."""
    state, wish = wish_after(state, *keys, **more)
    assert wish is None, keys
    return state


def labels(state: State, of: dict[str, Any] | None = None, **more: Any) -> list[str]:
    """The rows of the panel in focus."""
    rows = shown(of or three_jobs(), state, **more)[state.panel]
    return [each["path"] if state.panel is TopPanel.TREE else each["label"] for each in rows]


def under_cursor(state: State, of: dict[str, Any] | None = None, **more: Any) -> str:
    rows = shown(of or three_jobs(), state, **more)[state.panel]
    return labels(state, of, **more)[cursor(state, state.panel, rows)]


def lines_of(scene: Scene, size: Size, theme: Theme = PLAIN) -> list[str]:
    return ["".join(piece.text for piece in line) for line in screen(scene, size, theme)]


# -- moving and choosing -----------------------------------------------------------------------


def test_the_cursor_follows_its_job_and_stays_in_place_when_that_has_gone():
    three, state = three_jobs(), after(State(), "j")
    first, second, third = three["running"]
    for running, label in (
        ([first, row(39), second], "41"), ([first, third], "44_7"), ([first], "40"),
    ):  # fmt: skip
        assert under_cursor(state, {**three, "running": running}) == label
    busy = many(60, 500)
    state = after(WAITING, "pgdn", "pgdn", "j", of=busy)
    assert under_cursor(state, busy) == "20011", "pages go as far as the screen says"
    assert under_cursor(after(state, "pgup", of=busy), busy) == "20006"


def test_a_filter_holds_while_it_is_typed_and_after():
    state = after(RUNNING, "/", *"carx", "backspace")
    assert (state.is_typing, state.row_filter) == (True, RowFilter("car"))
    kept = after(state, "enter", "j")
    assert (kept.is_typing, labels(kept)) == (False, ["44_7"])
    assert after(kept, "esc").row_filter.is_empty()
    assert after(state, "esc").row_filter.is_empty()
    typed = after(State(), "/", *"quchs")
    assert (typed.row_filter, typed.question) == (RowFilter("quchs"), None), "letters are letters"
    three = three_jobs()
    three["running"][1]["group"] = "media"
    assert labels(replace(RUNNING, row_filter=RowFilter("media")), three) == ["41"]


def test_ones_own_jobs_are_also_those_beyond_the_list():
    assert labels(after(RUNNING, "u")) == ["41"]
    assert after(RUNNING, "u", "u").row_filter.is_empty()
    far = snapshot(pending=[waits(1, "bob")], mine=[waits(900, "alice")], pending_more=1)
    assert labels(after(WAITING, "u", of=far), far) == ["900"]


def test_tasks_that_ended_alike_are_one_row():
    task = {"array_id": 50, "name": "sweep"}
    tasks = [
        ended(60 + at, label=f"50_{at}", array_index=at, exit_code=at // 2, **task)
        for at in (2, 1, 0)
    ]
    rows = shown(snapshot(ended=tasks), State())[TopPanel.ENDED]
    assert [(each["label"], each["tasks"]) for each in rows] == [("50_2", 1), ("50_[0-1]", 2)]


def test_enter_on_the_tree_shows_only_the_jobs_below_and_a_pool_is_folded():
    tree = State(panel=TopPanel.TREE)
    state = after(tree, "enter")
    assert state.row_filter == RowFilter(below="root.lab")
    assert labels(replace(state, panel=TopPanel.RUNNING)) == ["40", "41"]
    assert after(state, "enter").row_filter.is_empty()
    whole = ["root.lab", "root.lab.alice", "root.lab.bob", "root.carol"]
    assert labels(tree) == whole
    folded = after(tree, " ")
    assert labels(folded) == ["root.lab", "root.carol"]
    assert "lab ▸" in "\n".join(lines_of(Scene(three_jobs(), folded, AT_S), SMALL))
    assert labels(after(folded, " ")) == whole
    leaf = after(tree, "G", " ")
    assert (leaf.folded, leaf.message) == (frozenset(), "only a pool can be folded")


@pytest.mark.parametrize("panel", TopPanel)
def test_s_goes_through_all_orders_of_a_panel_and_any_can_be_reversed(panel):
    state, orders = State(panel=panel), []
    back = labels(after(state, "S"))
    if panel is TopPanel.TREE:
        assert back == ["root.carol", "root.lab", "root.lab.bob", "root.lab.alice"]
    else:
        assert back == labels(state)[::-1]
    for _ in ORDERS[panel]:
        orders.append(state.order(panel))
        state = after(state, "s")
    assert orders == list(ORDERS[panel])
    assert state.order(panel) == orders[0]


def test_pages_have_a_way_back():
    state = after(State(), "j", "enter")
    assert state.page is Page.JOB
    assert state.job is not None and state.job["label"] == "41"
    assert after(state, "e").shows_errors
    assert (after(state, "j", "j", "k").scroll, after(state, "j", "g").scroll) == (1, 0)
    first = three_jobs()["running"][0]
    assert wish_after(state, "e", "l")[1] == Look(state.job, errors=True)
    assert wish_after(State(), "l")[1] == Look(first, errors=False)
    for key in ("q", "esc", "left", "backspace"):
        assert after(state, key) == after(State(), "j")
    assert after(State(), "?", "q") == State()
    assert after(state, "?", "esc") == state


@given(st.lists(st.sampled_from(KEYS), max_size=30), st.sampled_from(["three", "none", "many"]))
def test_no_keys_lead_to_a_state_that_cannot_go_on(keys, which):
    of = {"three": three_jobs(), "none": snapshot(), "many": many(3, 20)}[which]
    state = State()
    for key in keys:
        state, wish = press(state, key, shown(of, state), 5)
        assert not (isinstance(wish, Act) and wish.verb == "cancel" and key not in "yY")
        assert (state.page is Page.JOB) <= (state.job is not None)


# -- actions -----------------------------------------------------------------------------------


def mixed() -> dict[str, Any]:
    return snapshot(
        running=[row(1), row(2, state="SUSPENDED"), row(3, "bob")],
        pending=[waits(4), waits(5, state="HELD"), waits(6, label="6_[0-9]", tasks=10)],
        ended=[ended(7), ended(8, code="FAILED")],
        counts={"RUNNING": 2, "SUSPENDED": 1, "PENDING": 11, "HELD": 1},
    )


def last_lines(state: State, columns: int = 140) -> str:
    scene = Scene(mixed() | {"admin": False}, state, AT_S)
    return "\n".join(lines_of(scene, Size(columns, 24))[-4:])


@pytest.mark.parametrize("key", ["c", "h", "p", "t", "P", "x"])
def test_what_is_anothers_is_refused_before_a_question(key):
    state = after(State(), "j", "j", key, of=mixed())
    assert (state.question, state.prompt) == (None, None)
    assert (state.message, state.is_bad) == ("job 3 belongs to bob", True)
    assert viewer_of(snapshot(admin=False)) == ALICE
    assert viewer_of(snapshot(admin=True)) == Viewer("alice", is_admin=True)
    assert refusal("c", row(3, "bob"), ROOT) == ""


@pytest.mark.parametrize(
    ("state", "works"),
    [
        ("PENDING", "chtP"), ("HELD", "chtP"), ("STARTING", "ct"), ("RUNNING", "cptx"),
        ("SUSPENDED", "cpt"), ("STOPPING", "c"), ("CLEANING", "c"),
    ],
)  # fmt: skip
def test_each_state_has_its_actions(state, works):
    job = row(1, state=state)
    assert "".join(key for key in "chptPxr" if not refusal(key, job, ALICE)) == works


def test_keys_that_cannot_work_are_not_offered_and_others_named_by_what_they_do():
    second_waiting, second = (after(state, "j", of=mixed()) for state in (WAITING, State()))
    for state, columns, offered, others in (
        (State(), 140, [" p suspend"], [" h hold"]), (WAITING, 140, [" h hold"], []),
        (second, 140, [" p resume"], []), (second_waiting, 140, [" h release"], []),
        (after(second, "j", of=mixed()), 140, [], ["cancel", "suspend", "signal"]),
        # On a narrow screen they have the room.
        (ENDED, 80, [" r retry"], []), (State(), 80, [" p suspend"], [" r retry"]),
    ):  # fmt: skip
        told = last_lines(state, columns)
        assert [word for word in offered if word not in told] == []
        assert [word for word in others if word in told] == []
    # With colours they are there, but dim.
    theirs, colours = after(State(), "j", "j", of=mixed()), Theme(has_colour=True)
    lines = screen(Scene(mixed() | {"admin": False}, theirs, AT_S), Size(140, 24), colours)
    dim = [piece.text for piece in lines[-1] if piece.style == colours["off"]]
    assert dim[:4] == [" c cancel", " h hold", " p suspend", " t time"]


@pytest.mark.parametrize(
    ("state", "keys", "act"),
    [
        (State(), ["p"], Act("suspend", ("1",))),
        (State(), ["j", "p"], Act("resume", ("2",))),
        (WAITING, ["h"], Act("hold", ("4",))),
        (WAITING, ["j", "h"], Act("release", ("5",))),
        (ENDED, ["r"], Act("retry", ("7",))),
        (State(), ["t", *"2h", "enter"],
         Act("set", ("1",), {"time_limit_s": 7200}, "time limit 2h")),
        (State(), ["t", *"unlimited", "enter"],
         Act("set", ("1",), {"time_limit_s": 0}, "time limit unlimited")),
        (WAITING, ["P", *"-5", "enter"], Act("set", ("4",), {"priority": -5}, "priority -5")),
        (State(), ["x", *"usr1", "enter"], Act("signal", ("1",), {"signal": 10}, "SIGUSR1")),
        # On the page of a job marks of others do not count.
        (WAITING, [" ", " ", "2", "enter", "p"], Act("suspend", ("1",))),
    ],
)  # fmt: skip
def test_an_action_on_one_job_is_done_at_once_or_after_its_value(state, keys, act):
    assert wish_after(state, *keys, of=mixed())[1] == act


def test_enter_alone_sends_no_signal():
    told = after(State(), "x", "enter", of=mixed())
    assert told.is_bad
    assert told.message == "write which signal (TERM, INT, USR1, ... or a number)"
    sent = Act("signal", ("1",), {"signal": 15}, "SIGTERM")
    assert wish_after(told, *"term", "enter", of=mixed())[1] == sent


@pytest.mark.parametrize(("key", "text"), [("t", "soon"), ("P", "high"), ("P", "9999999")])
def test_a_bad_value_is_refused_and_can_be_corrected(key, text):
    asked = after(WAITING, key, *text, of=mixed())
    told = after(asked, "enter", of=mixed())
    assert told.is_bad and repr(text) in told.message
    assert told.prompt == asked.prompt
    assert after(told, "esc", of=mixed()).prompt is None
    typed = after(State(), "t", *"90m", of=mixed())
    assert "time limit of job 1 (fit) of alice: 90m▏ Enter: set, Esc: not" in last_lines(typed)


def test_a_job_is_cancelled_only_after_a_yes():
    alone = after(RUNNING, "c").question
    assert alone is not None and alone.text == "cancel job 40 (align-reads) of bob?"
    asked = after(WAITING, "j", "c")
    assert asked.question is not None
    assert asked.question.text == "cancel 92 tasks, job 44_[8-99%4] (sweep) of carol?"
    for key in ("n", "enter", "esc", " ", "c", "q"):
        state = after(asked, key)
        assert (state.question, state.message) == (None, "nothing done")
    # It is about the job that was meant, whatever moves below it.
    state, wish = wish_after(asked, "y", of=snapshot(running=[row(1)]))
    assert (state.question, wish) == (None, Act("cancel", ("44_[8-99%4]",)))


def test_on_a_jobs_page_keys_are_about_the_job_as_it_is_now():
    state, three = after(WAITING, "enter"), three_jobs()
    held = {**three, "pending": [three["pending"][0] | {"state": "HELD"}]}
    assert wish_after(state, "h")[1] == Act("hold", ("45",))
    assert wish_after(state, "h", of=held)[1] == Act("release", ("45",))
    over = {**three, "pending": [], "ended": [ended(45)]}
    assert after(state, "c", of=over).message == "job 45 has ended"


def test_an_action_on_marked_jobs_is_one_question_with_their_number():
    marked = after(WAITING, " ", " ", " ", of=mixed())
    assert sorted(marked.marked) == ["4", "5", "6_9"]
    assert "3 marked; a key is for all of them, Esc unmarks" in last_lines(marked)
    assert sorted(after(marked, "g", " ", of=mixed()).marked) == ["5", "6_9"]
    lines = lines_of(Scene(mixed(), marked, AT_S), Size(100, 24))
    assert [line[:3] for line in lines if line.startswith("*")] == ["*4 ", "*5 ", "*6_"]
    asked = after(marked, "c", of=mixed())
    act = Act("cancel", ("4", "5", "6_[0-9]"))
    assert asked.question == Question(act, "cancel 3 jobs (12 with all tasks)?")
    done, wish = wish_after(asked, "y", of=mixed())
    assert (wish, done.marked) == (act, frozenset())
    assert after(asked, "n", of=mixed()).marked == marked.marked
    assert after(marked, "esc", of=mixed()).marked == frozenset()
    state = after(ENDED, " ", " ", "r", of=mixed())
    assert state.question == Question(Act("retry", ("7", "8")), "retry 2 jobs?")


def test_an_action_is_for_the_marked_jobs_that_are_listed():
    marked = after(WAITING, " ", " ", of=mixed())
    fewer = after(marked, "/", *"held", "enter", of=mixed())
    assert "2 marked; a key is for the 1 listed, Esc unmarks" in last_lines(fewer)
    done, wish = wish_after(fewer, "c", "y", of=mixed())
    assert (wish, done.marked) == (Act("cancel", ("5",)), frozenset())
    other = after(marked, "/", *"6_", "enter", of=mixed())
    assert "2 marked, none of them listed; a key is for the job selected" in last_lines(other)
    assert wish_after(other, "h", of=mixed())[1] == Act("hold", ("6_[0-9]",))


def test_a_mark_stays_with_an_array_of_which_tasks_start_or_end():
    state = after(WAITING, "G", " ", of=mixed())
    assert list(state.marked) == ["6_9"]
    later = {**mixed(), "pending": [waits(6, label="6_[3-9]", tasks=7)]}
    assert wish_after(state, "h", of=later)[1] == Act("hold", ("6_[3-9]",))
    # Other tasks of the array have a row of their own.
    rows = [waits(6, label="6_[0-4]", tasks=5), waits(6, label="6_[7-9]", tasks=3)]
    assert wish_after(state, "h", of={**mixed(), "pending": rows})[1] == Act("hold", ("6_[7-9]",))
    # Ended tasks that share a row are marked apart from the waiting ones.
    rows = [ended(7, label="6_7", name="a", array_id=6, array_index=7),
            ended(8, label="6_8", name="a", array_id=6, array_index=8)]  # fmt: skip
    assert list(after(ENDED, " ", of={**mixed(), "ended": rows}).marked) == ["6_[7-8]"]


# -- waiting jobs that the snapshot does not have ----------------------------------------------

#: The snapshot has 300 of 500 jobs.
FAR = snapshot(
    pending=[waits(number, name=f"job{number}") for number in range(300)],
    pending_more=200, counts={"PENDING": 500},
)  # fmt: skip


def far_screen(state: State) -> str:
    return "\n".join(lines_of(Scene(FAR, state, AT_S), Size(100, 24)))


def test_what_is_left_out_of_a_long_list_is_counted_and_not_denied():
    last = after(WAITING, "G", of=FAR)
    assert under_cursor(last, FAR) == "299"
    assert "… and 200 more rows" in far_screen(last)
    state = after(WAITING, "/", *"job499", "enter", of=FAR)
    assert labels(state, FAR) == []
    assert "WAITING 500 (0 shown)" in far_screen(state)
    assert "… and 200 more rows, which are not searched" in far_screen(state)
    own = after(state, "u", of={**FAR, "mine": [waits(499, name="job499")]})
    assert labels(own, {**FAR, "mine": [waits(499, name="job499")]}) == ["499"]


# -- the bytes of a terminal -------------------------------------------------------------------

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
#: Sequences that mean nothing here.
NOTHING = [
    b"\x1b[2~", b"\x1b[24~", b"\x1b[[B", b"\x1b[?1;2c", b"\x1bOQ", b"\x01", b"\x1b[200~",
    b"\x1b[<0;12;5M",
]  # fmt: skip


def keys_of(*pieces: bytes) -> list[str]:
    keys = KeyDecoder()
    return [key for piece in pieces for key in keys.feed(piece)]


@given(
    st.lists(st.sampled_from([*SENT, *NOTHING]), max_size=20),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_keys_are_the_same_however_their_bytes_are_split(sent, cuts):
    data = b"".join(sent)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[begin:end] for begin, end in pairwise(ends)]
    assert keys_of(*pieces) == [SENT[each] for each in sent if each in SENT]


def test_escape_alone_is_a_key_when_nothing_follows():
    keys = KeyDecoder()
    assert list(keys.feed(b"\x1b")) == []
    assert keys.is_waiting
    assert list(keys.flush()) == ["esc"]
    assert not keys.is_waiting
    assert list(keys.feed(b"[A")) == ["[", "A"]
    assert keys_of(b"\x1bj") == ["esc", "j"]
    assert keys_of(b"\x1b\x1b[A") == ["esc", "up"]
    # What is cut off for ever is no key.
    assert [*keys.feed(b"\x1b[1;"), *keys.flush(), *keys.feed(b"q")] == ["q"]


@given(st.binary(max_size=200))
def test_noise_is_taken_in_and_never_kept_for_long(data):
    keys = KeyDecoder()
    for key in keys.feed(data):
        assert key.isprintable()
    list(keys.flush())
    assert list(keys.feed(b"\x1b[A"))[-1] == "up"
