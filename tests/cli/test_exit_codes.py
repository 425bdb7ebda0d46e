"""The tool's own failures: one line on stderr, nothing on stdout, and a documented number."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
Refuse = Callable[..., bytes]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("Refused", 1),
        ("HostError", 1),
        ("NotPermitted", 77),
        ("Unavailable", 69),
        ("ConfigError", 78),
        ("SomethingNew", 1),
    ],
)
def test_a_refusal_is_one_line_with_its_hint_and_its_number(
    drf: Run, daemon: Any, refuse: Refuse, kind: str, code: int
) -> None:
    daemon.replies = {"show": refuse(kind, "c", "what is wrong", "the way out")}
    result = drf("show", 1)
    assert (result.code, result.out, result.err) == (
        code,
        "",
        "drf: what is wrong (the way out)\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["status"], ["show", "1"], ["why", "1"], ["cancel", "1"], ["hold", "1"],
        ["release", "1"], ["shares"], ["drain"], ["undrain"], ["shutdown"], ["doctor"],
        ["log", "1"], ["log", "-f", "1"], ["submit", "--", "true"], ["run", "--", "true"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_without_a_daemon_every_verb_says_so_with_69(
    drf: Run, daemon: Any, words: list[str]
) -> None:
    daemon.stop()
    result = drf(*words)
    assert (result.code, result.out) == (69, "")
    assert result.err == (
        f"drf: no drfd answers at {daemon.path}: No such file or directory "
        "(is it running? DRFD_SOCKET or --socket name another one)\n"
    )


def test_a_daemon_that_leaves_in_the_middle_is_69(drf: Run, daemon: Any) -> None:
    daemon.replies = {"show": None}
    result = drf("show", 1)
    assert (result.code, result.err) == (
        69,
        "drf: the daemon closed the connection (try again in a moment)\n",
    )


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400\r\n", b"[]\n", b"\xff\n", b"{}\n"])
def test_something_else_that_listens_there_is_69(drf: Run, daemon: Any, reply: bytes) -> None:
    daemon.replies = {"show": reply}
    result = drf("show", 1)
    assert (result.code, result.out, result.err.count("\n")) == (69, "", 1)


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["--bogus"],
        ["status", "--bogus"],
        ["status", "x"],
        ["status", "0"],
        ["status", "-1"],
        ["show"],
        ["show", "x"],
        ["show", "1", "2"],
        ["why"],
        ["wait"],
        ["wait", "--timeout", "soon", "1"],
        ["wait", "--timeout", "0", "1"],
        ["cancel"],
        ["log"],
        ["log", "x"],
        ["submit"],
        ["submit", "-c"],
        ["submit", "-c", "many", "--", "true"],
        ["submit", "-c", "0", "--", "true"],
        ["submit", "-c", "-1", "--", "true"],
        ["submit", "-c", "nan", "--", "true"],
        ["submit", "-c", "1e999999", "--", "true"],
        ["submit", "-m", "16Q", "--", "true"],
        ["submit", "-m", "1K", "--", "true"],
        ["submit", "-m", "-1", "--", "true"],
        ["submit", "--io", "1/2/3", "--", "true"],
        ["submit", "--io", "fast", "--", "true"],
        ["submit", "-t", "soon", "--", "true"],
        ["submit", "-t", "0", "--", "true"],
        ["submit", "--priority", "high", "--", "true"],
        ["run"],
        ["run", "-m", "lots", "--", "true"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_2_and_nothing_is_asked(
    drf: Run, daemon: Any, words: list[str]
) -> None:
    result = drf(*words)
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err.count("\n") == 1
    assert result.err.startswith("drf")


@pytest.mark.parametrize("option", ["-c", "-m", "-t", "--io"])
def test_a_number_of_five_thousand_digits_is_refused_in_one_line(
    drf: Run, daemon: Any, option: str
) -> None:
    result = drf("submit", option, "9" * 5000, "--", "true")
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err.count("\n") == 1
    assert len(result.err) < 300


def test_a_bad_amount_names_the_option_the_value_and_an_example(drf: Run) -> None:
    assert drf("submit", "-m", "16Q", "--", "true").err == (
        "drf submit: Invalid value for '-m' / '--mem': "
        "'16Q' is not a size (write 512M, 16G or 1.5T)\n"
    )


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ([], 0),
        (["Refused"], 1),
        (["NotPermitted"], 77),
        (["Refused", "NotPermitted"], 77),
        (["SomethingNew"], 1),
    ],
)
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_acting_fails_with_the_gravest_of_its_failures(
    drf: Run, daemon: Any, kinds: list[str], code: int, flag: list[str]
) -> None:
    failed = [
        {"id": 1, "error": {"kind": kind, "code": "c", "text": f"no {kind}", "hint": ""}}
        for kind in kinds
    ]
    daemon.replies = {"cancel": {"done": [7], "failed": failed}}
    result = drf("cancel", "1", *flag)
    assert result.code == code
    assert result.err == "".join(f"drf: no {kind}\n" for kind in kinds)


@pytest.mark.parametrize("status", [0, 1, 3, 124, 125, 137, 143, 255])
def test_wait_for_one_job_exits_as_the_job_did(
    drf: Run, daemon: Any, ended: Any, status: int
) -> None:
    daemon.replies = {"wait": {"done": True, "ended": [ended("FAILED", status)]}}
    assert drf("wait", 42).code == status


@pytest.mark.parametrize(("statuses", "code"), [([0, 0], 0), ([0, 3, 4], 3), ([137, 0], 137)])
def test_wait_for_several_exits_as_the_first_that_failed(
    drf: Run, daemon: Any, ended: Any, statuses: list[int], code: int
) -> None:
    over = [ended("FAILED", status, id=number) for number, status in enumerate(statuses, 1)]
    daemon.replies = {"wait": {"done": True, "ended": over}}
    assert drf("wait", *range(1, len(statuses) + 1)).code == code


def test_wait_that_timed_out_is_75_even_if_some_have_ended(
    drf: Run, daemon: Any, ended: Any
) -> None:
    daemon.replies = {"wait": {"done": False, "ended": [ended("FAILED", 3)]}}
    result = drf("wait", "--timeout", "1", 42, 43)
    assert result.code == 75, "neither a refusal, nor how a job can time out"
    assert result.out == "job 42 FAILED: exit code 3\n"
    assert result.err == "drf: timed out: not all have ended\n"


def test_wait_for_any_exits_as_the_one_that_has_ended(drf: Run, daemon: Any, ended: Any) -> None:
    daemon.replies = {"wait": {"done": True, "ended": [ended("FAILED", 3, id=43)]}}
    assert drf("wait", "--any", 42, 43, 44).code == 3
    daemon.replies = {"wait": {"done": False, "ended": []}}
    result = drf("wait", "--any", "--timeout", "1", 42, 43)
    assert (result.code, result.err) == (75, "drf: timed out: none has ended\n")


def test_an_interrupted_submit_w_leaves_the_job_and_says_so(
    spawn: Run, finish: Run, daemon: Any
) -> None:
    answer = threading.Event()
    daemon.replies = {"submit": {"id": 42}, "wait": lambda request: answer.wait(20) and None}
    process = spawn("submit", "-q", "-w", "--", "true")
    daemon.asked("wait")
    process.send_signal(signal.SIGINT)
    result = finish(process)
    answer.set()
    assert (result.code, result.out) == (130, "42\n")
    assert result.err == "drf: job 42 goes on (drf cancel 42 stops it)\n"
    assert [request["op"] for request in daemon.requests] == ["submit", "wait"]


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"], ["submit", "--help"]])
def test_help_is_data_and_0(drf: Run, daemon: Any, words: list[str]) -> None:
    result = drf(*words)
    assert (result.code, result.err, daemon.requests) == (0, "", [])
    assert result.out


@pytest.mark.parametrize("words", [["status"], ["status", "--json"]], ids=" ".join)
def test_a_reader_that_has_enough_is_no_failure(
    spawn: Run, finish: Run, daemon: Any, job: Any, words: list[str]
) -> None:
    """`drf status | head -1`, also under `set -o pipefail`."""
    jobs = [job(id=number) for number in range(1, 2000)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {}, "draining": False}}
    process = spawn(*words)
    process.stdout.close()
    process.stdout = None
    result = finish(process)
    assert (result.code, result.err) == (0, "")


def test_an_interrupted_verb_is_130_without_a_traceback(
    spawn: Run, finish: Run, daemon: Any
) -> None:
    answer = threading.Event()

    def say_nothing(request: object) -> None:
        answer.wait(20)

    daemon.replies = {"wait": say_nothing}
    process = spawn("wait", "1")
    daemon.asked("wait")
    process.send_signal(signal.SIGINT)
    result = finish(process)
    answer.set()
    # The line end takes the shell's prompt past the ^C.
    assert (result.code, result.out, result.err) == (130, "", "\n")


def test_a_verb_that_is_mistyped_is_guessed(drf: Run, daemon: Any) -> None:
    result = drf("sumbit", "--", "true")
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err == "drf: No such command 'sumbit'. Did you mean 'submit'?\n"
    assert drf("frobnicate").err == "drf: No such command 'frobnicate'.\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["submit", "-t", f"{10**20}h", "--", "true"],
            "drf submit: Invalid value for '-t' / '--time': '100000000000000000000h' is longer "
            "than anything lasts (write 90s, 30m, 12h or 2d)\n",
        ),
        (
            ["submit", "-m", "999999999999T", "--", "true"],
            "drf submit: Invalid value for '-m' / '--mem': '999999999999T' is more than there is "
            "in the world\n",
        ),
        (["set", "--rename", "", "3"], "drf set: a name has 1 to 256 signs\n"),
    ],
)
def test_what_is_out_of_all_bounds_is_refused_in_words(
    drf: Run, daemon: Any, words: list[str], line: str
) -> None:
    result = drf(*words)
    assert (result.code, result.err, daemon.requests) == (2, line, [])
