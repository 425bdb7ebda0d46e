"""The tool's own failures: one line on stderr, nothing on stdout, and a documented number."""

import signal
import threading

import pytest

from cli.drf import Result


@pytest.mark.parametrize(
    "words",
    [
        "status", "show 1", "why 1", "cancel 1", "hold 1", "release 1", "shares", "drain",
        "undrain", "shutdown", "doctor", "log 1", "log -f 1", "submit -- true", "run -- true",
    ],
)  # fmt: skip
def test_without_a_daemon_every_verb_says_so_with_69(drf, daemon, words):
    daemon.stop()
    assert drf(*words.split()) == Result(
        69,
        "",
        f"drf: no drfd answers at {daemon.path}: No such file or directory "
        "(is it running? DRFD_SOCKET or --socket name another one)\n",
    )


def test_the_socket_option_wins_over_the_variable(drf, daemon, monkeypatch):
    monkeypatch.setenv("DRFD_SOCKET", "/nowhere/at/all")
    daemon.replies = {"drain": {"draining": True}}
    assert drf("--socket", daemon.path, "drain").code == 0


@pytest.mark.parametrize(
    "words",
    [
        "bogus", "--bogus", "status --bogus", "status 7x", "status 0", "status -1", "show",
        "attach 1 2", "why", "wait", "wait --timeout soon 1", "wait --timeout 0 1", "cancel",
        "log", "log 7x", "submit", "submit -c", "submit -c 0 -- true", "submit -c -1 -- true",
        "submit -c nan -- true", "submit -c 1e999999 -- true", "submit -m 1K -- true",
        "submit -m -1 -- true", "submit --io 1/2/3 -- true", "submit --io fast -- true",
        "submit -t soon -- true", "submit -t 0 -- true", "submit --priority high -- true", "run",
        "run -m lots -- true",
        *(f"submit {option} {'9' * 5000} -- true" for option in ("-c", "-m", "-t", "--io")),
    ],
    ids=lambda words: words[:30],
)  # fmt: skip
def test_a_wrong_command_line_is_2_and_nothing_is_asked(drf, daemon, words):
    result = drf(*words.split())
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err.count("\n") == 1 and len(result.err) < 300
    assert result.err.startswith("drf")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("sumbit -- true", "drf: No such command 'sumbit'. Did you mean 'submit'?\n"),
        ("frobnicate", "drf: No such command 'frobnicate'. drf --help lists them.\n"),
        ("ls", "No such command 'ls'. That is: drf status"),
        ("kill 3", "No such command 'kill'. That is: drf cancel ID"),
        ("sstat 3", "No such command 'sstat'. That is: drf show ID"),
        ("condor_q", "No such command 'condor_q'. That is: drf status"),
        ("parallel", "No such command 'parallel'. That is: drf submit -g NAME%N"),
        ("tail 3", "No such command 'tail'. That is: drf log -f ID"),
        ("start 3", "'start'. That is: drf release ID if it is held, drf resume"),
        ("enqueue 3", "No such command 'enqueue'. That is: drf release ID"),
        ("stop 3", "No such command 'stop'. That is: drf cancel ID"),
        ("submit --cpus-per-task=4 x", "No such option --cpus-per-task; here it is: -c"),
        ("submit -J n -- x", "No such option -J; here it is: -n NAME"),
        ("submit -H -- x", "; here it is: --hold"),
        ("run --partition p -- x", "No such option --partition; here it is: -p"),
        ("run -a 1-3 -- x", "No such option '-a'"),
    ],
)
def test_words_of_other_programs_get_ours_as_a_hint(drf, daemon, words, hint):
    result = drf(*words.split())
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert hint in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("words", [["status"], ["status", "--json"]], ids=" ".join)
def test_a_reader_that_has_enough_is_no_failure(spawn, finish, daemon, job, words):
    """`drf status | head -1`, also under `set -o pipefail`."""
    jobs = [job(id=number) for number in range(1, 1000)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {}, "draining": False}}
    process = spawn(*words)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert finish(process) == Result(0, "", "")


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        # The line end takes the shell's prompt past the ^C.
        (["wait", "42"], "", "\n"),
        (["submit", "-q", "-w", "--", "true"], "42\n",
         "drf: job 42 goes on (drf cancel 42 stops it)\n"),
    ],
    ids=["wait", "submit -w"],
)  # fmt: skip
def test_an_interrupted_verb_is_130_and_leaves_the_job(spawn, finish, daemon, words, out, err):
    answer = threading.Event()
    daemon.replies = {"submit": {"id": 42}, "wait": lambda request: answer.wait(20) and None}
    process = spawn(*words)
    daemon.asked("wait")
    process.send_signal(signal.SIGINT)
    result = finish(process)
    answer.set()
    assert result == Result(130, out, err)
    assert {request["op"] for request in daemon.requests} <= {"submit", "wait"}
