"""The tool's own failures: one line on stderr, nothing on stdout, and a documented number."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message, Refuse
from cli.drf import Drf, Finish, Spawn
from drfd_cli import main, options
from drfd_cli.main import command_of


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
    drf: Drf, daemon: CannedDaemon, refuse: Refuse, kind: str, code: int
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
    drf: Drf, daemon: CannedDaemon, words: list[str]
) -> None:
    daemon.stop()
    result = drf(*words)
    assert (result.code, result.out) == (69, "")
    assert result.err == (
        f"drf: no drfd answers at {daemon.path}: No such file or directory "
        "(is it running? DRFD_SOCKET or --socket name another one)\n"
    )


def test_a_daemon_that_leaves_in_the_middle_is_69(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"show": None}
    result = drf("show", 1)
    assert (result.code, result.err) == (
        69,
        "drf: the daemon closed the connection (try again in a moment)\n",
    )


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400\r\n", b"[]\n", b"\xff\n", b"{}\n"])
def test_something_else_that_listens_there_is_69(
    drf: Drf, daemon: CannedDaemon, reply: bytes
) -> None:
    daemon.replies = {"show": reply}
    result = drf("show", 1)
    assert (result.code, result.out, result.err.count("\n")) == (69, "", 1)


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["--bogus"],
        ["status", "--bogus"],
        ["status", "7x"],
        ["status", "0"],
        ["status", "-1"],
        ["show"],
        ["show", "7x"],
        ["attach", "1", "2"],
        ["why"],
        ["wait"],
        ["wait", "--timeout", "soon", "1"],
        ["wait", "--timeout", "0", "1"],
        ["cancel"],
        ["log"],
        ["log", "7x"],
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
    drf: Drf, daemon: CannedDaemon, words: list[str]
) -> None:
    result = drf(*words)
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err.count("\n") == 1
    assert result.err.startswith("drf")


@pytest.mark.parametrize("option", ["-c", "-m", "-t", "--io"])
def test_a_number_of_five_thousand_digits_is_refused_in_one_line(
    drf: Drf, daemon: CannedDaemon, option: str
) -> None:
    result = drf("submit", option, "9" * 5000, "--", "true")
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err.count("\n") == 1
    assert len(result.err) < 300


@pytest.mark.parametrize("status", [0, 1, 3, 124, 125, 137, 143, 255])
def test_wait_for_one_job_exits_as_the_job_did(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, status: int
) -> None:
    daemon.replies = {"wait": {"done": True, "ended": [ended("FAILED", status)]}}
    assert drf("wait", 42).code == status


@pytest.mark.parametrize(("statuses", "code"), [([0, 0], 0), ([0, 3, 4], 3), ([137, 0], 137)])
def test_wait_for_several_exits_as_the_first_that_failed(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, statuses: list[int], code: int
) -> None:
    over = [ended("FAILED", status, id=number) for number, status in enumerate(statuses, 1)]
    daemon.replies = {"wait": {"done": True, "ended": over}}
    assert drf("wait", *range(1, len(statuses) + 1)).code == code


def test_wait_that_timed_out_is_75_even_if_some_have_ended(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    daemon.replies = {"wait": {"done": False, "ended": [ended("FAILED", 3)]}}
    result = drf("wait", "--timeout", "1", 42, 43)
    assert result.code == 75, "neither a refusal, nor how a job can time out"
    assert result.out == "job 42 FAILED: exit code 3\n"
    assert result.err == "drf: job 42 FAILED: exit code 3\ndrf: timed out: not ended: 43\n"


def test_wait_for_any_exits_as_the_one_that_has_ended(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob
) -> None:
    daemon.replies = {"wait": {"done": True, "ended": [ended("FAILED", 3, id=43)]}}
    assert drf("wait", "--any", 42, 43, 44).code == 3
    daemon.replies = {"wait": {"done": False, "ended": []}}
    result = drf("wait", "--any", "--timeout", "1", 42, 43)
    assert (result.code, result.err) == (75, "drf: timed out: none has ended\n")


@pytest.mark.parametrize("words", [("wait", 42), ("submit", "-q", "-w", "--", "true")])
def test_who_waits_is_told_once_that_the_launcher_is_away_and_once_that_it_is_back(
    drf: Drf,
    daemon: CannedDaemon,
    ended: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[Any, ...],
) -> None:
    """They were silent for as long as nothing could start."""
    for name in ("commands.wait._SILENT_S", "commands.wait._LOOK_S"):
        monkeypatch.setattr(f"drfd_cli.{name}", 0.0)
    monkeypatch.setattr("drfd.client.connection._MEANWHILE_S", 0.01)
    notices = [{"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 12s"}]
    away, there = {"launcher_away_s": 12.3, "notices": notices}, {"version": "1"}
    starting = {"launcher_away_s": 3.0, "notices": notices}
    # The fourth time the daemon does not answer.
    hellos = [there, starting, away, None, away, there, there, away]

    def wait(request: object) -> Message:
        daemon.asked("hello", times=len(hellos))
        return {"done": True, "ended": [ended(42)]}

    daemon.replies = {"submit": {"id": 42}, "wait": wait, "hello": [*hellos, away]}
    result = drf(*words)
    assert result.code == 0
    assert [line for line in result.err.splitlines() if "launcher" in line] == [
        "drf: the launcher has been away for 12s",
        "drf: the launcher is back",
        "drf: the launcher has been away for 12s",
    ]


def test_an_interrupted_submit_w_leaves_the_job_and_says_so(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon
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
def test_help_is_data_and_0(drf: Drf, daemon: CannedDaemon, words: list[str]) -> None:
    result = drf(*words)
    assert (result.code, result.err, daemon.requests) == (0, "", [])
    assert result.out


@pytest.mark.parametrize("words", [["status"], ["status", "--json"]], ids=" ".join)
def test_a_reader_that_has_enough_is_no_failure(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, job: MakeJob, words: list[str]
) -> None:
    """`drf status | head -1`, also under `set -o pipefail`."""
    jobs = [job(id=number) for number in range(1, 2000)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {}, "draining": False}}
    process = spawn(*words)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    result = finish(process)
    assert (result.code, result.err) == (0, "")


def test_an_interrupted_verb_is_130_without_a_traceback(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon
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


def test_a_verb_that_is_mistyped_is_guessed(drf: Drf, daemon: CannedDaemon) -> None:
    result = drf("sumbit", "--", "true")
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err == "drf: No such command 'sumbit'. Did you mean 'submit'?\n"
    lists = "drf: No such command 'frobnicate'. drf --help lists them.\n"
    assert drf("frobnicate").err == lists


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["ls"], "No such command 'ls'. That is: drf status"),
        (["kill", "3"], "No such command 'kill'. That is: drf cancel ID"),
        (["seff", "3"], "No such command 'seff'. That is: drf why ID, or drf report"),
        (["condor_q"], "No such command 'condor_q'. That is: drf status"),
        (["parallel"], "No such command 'parallel'. That is: drf submit -g NAME%N"),
        (["tail", "3"], "No such command 'tail'. That is: drf log -f ID"),
        (
            ["start", "3"],
            "No such command 'start'. That is: drf release ID if it is held, drf resume",
        ),
        (["enqueue", "3"], "No such command 'enqueue'. That is: drf release ID"),
        (["stop", "3"], "No such command 'stop'. That is: drf cancel ID"),
        (["submit", "--cpus-per-task=4", "x"], "No such option --cpus-per-task; here it is: -c"),
        (["submit", "-J", "n", "--", "x"], "No such option -J; here it is: -n NAME"),
        (["run", "--partition", "p", "--", "x"], "No such option --partition; here it is: -p"),
        (["run", "-a", "1-3", "--", "x"], "No such option '-a'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_words_of_other_programs_get_ours_as_a_hint(
    drf: Drf, daemon: CannedDaemon, words: list[str], hint: str
) -> None:
    result = drf(*words)
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert hint in result.err
    assert result.err.count("\n") == 1


def test_help_is_a_verb_too(drf: Drf) -> None:
    assert drf("help", "submit").out == drf("submit", "--help").out
    assert drf("help").out == drf("--help").out
    assert drf("help", "sumbit").err == drf("sumbit").err


def test_each_hint_names_a_verb_or_an_option() -> None:
    for hint in main._ELSEWHERE.values():
        assert hint.replace(",", "").split()[1] in (*main.VERBS, "--version")
    names = {name for param in command_of("submit").params for name in param.opts}
    for hint in options._ELSEWHERE.values():
        assert hint.split()[0] in (*names, "--", "cd")
