"""Actions on jobs by keys: refused before a question, done to one job or to all that are marked."""

from __future__ import annotations

from typing import Any

import pytest

from canned import CannedDaemon
from canned_snapshots import AT_S, ended, row, snapshot, three_jobs, waits
from drfd.client.connection import Connection
from drfd_cli.top.actions import Act, Prompt, Question, Verb, Viewer, begin, refusal
from drfd_cli.top.feed import request_action
from drfd_cli.top.paint import Theme
from drfd_cli.top.state import (
    Page,
    RowFilter,
    State,
    TopPanel,
    UserAction,
    press,
    shown,
    targets,
    viewer_of,
)
from drfd_cli.top.view import Scene, Size, screen

ALICE, ROOT = Viewer("alice", is_admin=False), Viewer("root", is_admin=True)
WAITING = State(panel=TopPanel.WAITING)


def mixed() -> dict[str, Any]:
    return snapshot(
        running=[row(1), row(2, state="SUSPENDED"), row(3, "bob")],
        pending=[waits(4), waits(5, state="HELD"), waits(6, label="6_[0-9]", tasks=10)],
        ended=[ended(7)], counts={"RUNNING": 2, "SUSPENDED": 1, "PENDING": 11, "HELD": 1},
    )  # fmt: skip


def after(
    state: State, *keys: str, viewer: Viewer = ALICE
) -> tuple[State, UserAction | Act | None]:
    """The state after the keys, and what the last of them asks for."""
    action: UserAction | Act | None = None
    for key in keys:
        assert action is None, key
        state, action = press(state, key, shown(mixed(), state), 5, viewer=viewer)
    return state, action


def last_lines(state: State, *, has_colour: bool = False, columns: int = 140) -> str:
    scene = Scene(mixed() | {"admin": False}, state, AT_S)
    lines = screen(scene, Size(columns, 24), Theme(has_colour=has_colour))
    return "\n".join("".join(piece.text for piece in line) for line in lines[-4:])


@pytest.mark.parametrize("key", ["c", "h", "p", "t", "P", "x"])
def test_what_is_anothers_is_refused_before_a_question(key: str) -> None:
    state, action = after(State(), "j", "j", key)
    assert (state.question, state.prompt, action) == (None, None, None)
    assert (state.message, state.is_bad) == ("job 3 belongs to bob", True)


def test_an_administrator_may() -> None:
    state, _ = after(State(), "j", "j", "c", viewer=ROOT)
    assert state.question is not None
    assert viewer_of(snapshot(admin=False)) == ALICE
    assert viewer_of(snapshot(admin=True)) == Viewer("alice", is_admin=True)


@pytest.mark.parametrize(
    ("state", "works"),
    [
        ("PENDING", "chtP"), ("HELD", "chtP"), ("STARTING", "ct"), ("RUNNING", "cptx"),
        ("SUSPENDED", "cpt"), ("STOPPING", "c"), ("CLEANING", "c"),
    ],
)  # fmt: skip
def test_each_state_has_its_actions(state: str, works: str) -> None:
    job = row(1, state=state)
    assert "".join(key for key in "chptPxr" if not refusal(key, job, ALICE)) == works


def test_keys_that_cannot_work_are_not_offered() -> None:
    assert " p suspend" in last_lines(State())
    assert " h hold" not in last_lines(State())
    assert " h hold" in last_lines(WAITING)
    theirs, _ = after(State(), "j", "j")
    assert not any(word in last_lines(theirs) for word in ("cancel", "suspend", "signal"))
    # With colours they are there, but dim.
    colours = Theme(has_colour=True)
    lines = screen(Scene(mixed() | {"admin": False}, theirs, AT_S), Size(140, 24), colours)
    dim = [piece.text for piece in lines[-1] if piece.style == colours["off"]]
    assert dim[:4] == [" c cancel", " h hold", " p suspend", " t time"]


def test_keys_are_named_by_what_they_do_to_the_job() -> None:
    assert " p resume" in last_lines(after(State(), "j")[0])
    assert " h release" in last_lines(after(WAITING, "j")[0])


def test_one_job_is_suspended_resumed_held_and_released_at_once() -> None:
    assert after(State(), "p")[1] == Act(Verb.SUSPEND, ("1",))
    assert after(State(), "j", "p")[1] == Act(Verb.RESUME, ("2",))
    assert after(WAITING, "h")[1] == Act(Verb.HOLD, ("4",))
    assert after(WAITING, "j", "h")[1] == Act(Verb.RELEASE, ("5",))


@pytest.mark.parametrize(
    ("key", "text", "verb", "fields", "words"),
    [
        ("t", "2h", Verb.SET, {"time_limit_s": 7200}, "time limit 2h"),
        ("t", "unlimited", Verb.SET, {"time_limit_s": 0}, "time limit unlimited"),
        ("P", "-5", Verb.SET, {"priority": -5}, "priority -5"),
        ("x", "usr1", Verb.SIGNAL, {"signal": 10}, "SIGUSR1"),
    ],
)
def test_a_value_is_typed_and_set(
    key: str, text: str, verb: Verb, fields: dict[str, object], words: str
) -> None:
    state = WAITING if key == "P" else State()
    asked, _ = after(state, key, *text)
    assert asked.prompt is not None
    _, action = after(asked, "enter")
    assert action == Act(verb, asked.prompt.labels, fields, words)


def test_enter_alone_sends_no_signal() -> None:
    told, action = after(State(), "x", "enter")
    assert (action, told.is_bad) == (None, True)
    assert told.message == "write which signal (TERM, INT, USR1, ... or a number)"
    assert after(told, *"term", "enter")[1] == Act(Verb.SIGNAL, ("1",), {"signal": 15}, "SIGTERM")


def test_marked_jobs_that_a_filter_hides_are_left_alone_and_stay_marked() -> None:
    marked, _ = after(WAITING, " ", " ")
    assert list(marked.marked) == ["4", "5"]
    fewer, _ = after(marked, "/", *"held", "enter")
    assert "2 marked, 1 hidden by the filter; a key is for the 1 shown" in last_lines(fewer)
    asked, _ = after(fewer, "c")
    assert asked.question is not None
    assert asked.question.act == Act(Verb.CANCEL, ("5",))
    done, _ = after(asked, "y")
    assert list(done.marked) == ["4"]
    other, _ = after(marked, "/", *"6_", "enter")
    assert "2 marked, all hidden by the filter; a key is for the job selected" in last_lines(other)
    assert after(other, "h")[1] == Act(Verb.HOLD, ("6_[0-9]",))
    assert list(after(other, "h")[0].marked) == ["4", "5"]


def test_a_waiting_task_found_by_the_daemon_is_not_hidden() -> None:
    state = State(
        panel=TopPanel.WAITING, row_filter=RowFilter("6_7"),
        marked={"6_": waits(6, label="6_[0-9]", tasks=10)},
    )  # fmt: skip
    lists = {**shown(mixed(), state), TopPanel.WAITING: [waits(6, label="6_[0-9]", tasks=10)]}
    assert [each["label"] for each in targets(state, lists, ALICE)] == ["6_[0-9]"]


def test_what_works_on_the_job_has_the_room_of_a_narrow_screen() -> None:
    assert " r retry" in last_lines(State(panel=TopPanel.ENDED), columns=80)
    assert " r retry" not in last_lines(State(), columns=80)
    assert " p suspend" in last_lines(State(), columns=80)


@pytest.mark.parametrize(("key", "text"), [("t", "soon"), ("P", "high"), ("P", "9999999")])
def test_a_bad_value_is_refused_and_can_be_corrected(key: str, text: str) -> None:
    asked, _ = after(WAITING, key, *text)
    told, action = after(asked, "enter")
    assert (action, told.is_bad) == (None, True)
    assert repr(text) in told.message
    assert told.prompt == asked.prompt
    assert after(told, "esc")[0].prompt is None


def test_a_value_that_is_typed_is_on_the_screen_with_the_job() -> None:
    asked, _ = after(State(), "t", *"90m")
    assert "time limit of job 1 (fit) of alice: 90m▏ Enter: set, Esc: not" in last_lines(asked)


def test_an_action_on_marked_jobs_is_one_question_with_their_number() -> None:
    marked, _ = after(WAITING, " ", " ", " ")
    assert list(marked.marked) == ["4", "5", "6_"]
    assert "3 marked; a key is for all of them, Esc unmarks" in last_lines(marked)
    asked, _ = after(marked, "c")
    act = Act(Verb.CANCEL, ("4", "5", "6_[0-9]"))
    assert asked.question == Question(act, "cancel 3 jobs (12 with all tasks)?")
    done, action = after(asked, "y")
    assert (action, done.marked) == (act, {})
    kept, action = after(asked, "n")
    assert (action, kept.marked) == (None, marked.marked)
    assert after(marked, "esc")[0].marked == {}


def test_of_marked_jobs_those_are_meant_for_which_the_action_works() -> None:
    rows = [row(1), row(3, "bob"), row(2, state="SUSPENDED")]
    assert begin("p", rows, ALICE) == Question(
        Act(Verb.SUSPEND, ("1",)),
        "suspend job 1 (fit) of alice; 2 of the marked ones cannot?",
    )
    assert begin("h", rows, ALICE) == "job 1 is RUNNING: only waiting jobs can be held"
    assert begin("t", rows, ALICE) == Prompt(
        "t", ("1", "2"), "time limit of 2 jobs; 1 of the marked ones cannot"
    )


def test_a_mark_stays_with_an_array_of_which_tasks_start() -> None:
    state, _ = after(WAITING, "G", " ")
    assert list(state.marked) == ["6_"]
    later = {**mixed(), "pending": [waits(6, label="6_[3-9]", tasks=7)]}
    state, action = press(state, "h", shown(later, state), 5, viewer=ALICE)
    assert action == Act(Verb.HOLD, ("6_[3-9]",))


def test_on_the_page_of_a_job_marks_of_others_do_not_count() -> None:
    state, _ = after(WAITING, " ", " ", "2", "enter")
    assert state.page is Page.JOB
    assert after(state, "p")[1] == Act(Verb.SUSPEND, ("1",))


def ask(daemon: CannedDaemon, act: Act) -> Any:
    connection = Connection(daemon.path)
    try:
        return request_action(connection, act)
    finally:
        connection.close()


def test_an_action_on_many_is_one_request(daemon: CannedDaemon) -> None:
    daemon.replies = {"set": {"done": [4, 6], "failed": []}}
    act = Act(Verb.SET, ("4", "6_[0-9]"), {"time_limit_s": 60}, "time limit 1m")
    assert ask(daemon, act).text == "set time limit 1m of 2 jobs"
    assert daemon.requests == [{"op": "set", "select": {"ids": [4, 6]}, "time_limit_s": 60}]


def test_what_was_done_and_what_was_not_is_told(daemon: CannedDaemon) -> None:
    error = {"kind": "Refused", "code": "x", "text": "job 4 is RUNNING", "hint": ""}
    daemon.replies = {"hold": {"done": [5], "failed": [{"id": 4, "error": error}]}}
    told = ask(daemon, Act(Verb.HOLD, ("4", "5")))
    assert (told.text, told.is_bad) == ("held 1 job, but not 1: job 4 is RUNNING", True)
    daemon.replies = {"suspend": {"done": [1], "failed": []}}
    assert ask(daemon, Act(Verb.SUSPEND, ("1",))).text == "suspended job 1"
    daemon.replies = {"signal": {"done": [], "failed": []}}
    told = ask(daemon, Act(Verb.SIGNAL, ("1", "2"), {"signal": 10}, "SIGUSR1"))
    assert (told.text, told.is_bad) == ("2 jobs are not there any more", True)


def test_marked_rows_have_a_sign() -> None:
    three = three_jobs()
    state, _ = press(WAITING, " ", shown(three, WAITING), 5)
    lines = screen(Scene(three, state, AT_S), Size(100, 24), Theme(has_colour=False))
    shown_lines = ["".join(piece.text for piece in line) for line in lines]
    assert [line[:4] for line in shown_lines if line.startswith("*")] == ["*45 "]


def test_an_ended_job_is_submitted_again(daemon: CannedDaemon) -> None:
    state = State(panel=TopPanel.ENDED)
    assert after(state, "r")[1] == Act(Verb.RETRY, ("7",))
    assert after(State(), "r")[0].message == "job 1 is RUNNING: only what has ended can be retried"
    assert refusal("r", ended(8, "bob"), ROOT) == "job 8 belongs to bob"
    assert refusal("r", ended(8), ALICE) == ""
    before = {"argv": ["true"], "cwd": "/", "stdout": "a", "stderr": "a", "demand": {}}
    daemon.replies = {
        "submission": {"submission": before, "label": "7", "state": "FAILED", "live": False},
        "hello": {"version": "1", "user": "alice", "admin": False, "key_socket": None},
        "submit": {"id": 12},
    }
    assert ask(daemon, Act(Verb.RETRY, ("7",))).text == "submitted job 12, which is 7 again"
    [sent] = daemon.asked("submit")
    assert {key: sent[key] for key in before} == before


def test_ended_jobs_are_marked_and_submitted_again_after_one_question(
    daemon: CannedDaemon,
) -> None:
    two = snapshot(ended=[ended(7), ended(8, code="FAILED")])
    state = State(panel=TopPanel.ENDED)
    for key in (" ", " ", "r"):
        state, action = press(state, key, shown(two, state), 5, viewer=ALICE)
    act = Act(Verb.RETRY, ("7", "8"))
    assert (state.question, action) == (Question(act, "retry 2 jobs?"), None)
    before = {"argv": ["true"], "cwd": "/", "stdout": "a", "stderr": "a", "demand": {}}
    daemon.replies = {
        "submission": {
            "submission": before,
            "label": "7", "state": "FAILED", "live": False,
        },
        "hello": {"version": "1", "user": "alice", "admin": False, "key_socket": None},
        "submit": {"id": 12},
    }  # fmt: skip
    told = ask(daemon, act)
    assert told.text == "submitted 2 jobs again, as job 12 and the following"
    assert len(daemon.asked("submit")) == 2


def test_ended_tasks_that_share_a_row_are_marked_apart_from_the_waiting_ones() -> None:
    rows = [ended(7, label="6_7", name="a", array_id=6, array_index=7),
            ended(8, label="6_8", name="a", array_id=6, array_index=8)]  # fmt: skip
    both = {**mixed(), "ended": rows}
    state, _ = press(State(panel=TopPanel.ENDED), " ", shown(both, State()), 5, viewer=ALICE)
    assert list(state.marked) == ["6_[7-8]"]
