"""drf run, profile and exec: the terminal's descriptors go to the job, and its end comes back; and
the terminal: which keys are the job's and which drf's, and which modes a program has.

Most tests of `drf run` go both ways: through click, and without it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned import CannedDaemon, MakeJob, Message
from cli.drf import DRF, LIGHT_DRF, Result
from drfd.client.connection import Connection
from drfd.payload.signature import exec_digest, proof_of
from drfd_cli.terminal.keeper import _open_output
from drfd_cli.terminal.pty import ScreenModes
from drfd_cli.terminal.relay import EscapeCommand, EscapeFilter
from seeds import examples


class Attached:
    """The canned job: `wait` is answered when the test says how it ended."""

    def __init__(self, daemon: CannedDaemon, ended: MakeJob) -> None:
        self.daemon = daemon
        self._ended = ended
        self._has_ended = threading.Event()
        self._reply: Message | None = None
        daemon.replies = {
            "submit": {"id": 42},
            "wait": self._wait,
            "cancel": {"done": [42], "failed": []},
        }

    def _wait(self, request: object) -> Message | None:
        self._has_ended.wait(20)
        return self._reply

    def end(self, *outcome: Any, **changes: Any) -> None:
        self._reply = {"done": True, "ended": [self._ended(*outcome, **changes)]}
        self._has_ended.set()

    def leave(self) -> None:
        """Answer nobody any more."""
        self._has_ended.set()

    def path(self) -> str:
        """Where drf run waits for the job."""
        path = self.daemon.asked("submit")[0]["attach"]
        assert isinstance(path, str)
        return path

    @contextmanager
    def descriptors(self) -> Iterator[list[int]]:
        """What the runner is given when it connects, as the job's user."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(self.path())
            _, fds, _, _ = socket.recv_fds(connection, 1, 3)
        try:
            yield fds
        finally:
            for fd in fds:
                os.close(fd)


@pytest.fixture
def attached(daemon, ended) -> Attached:
    return Attached(daemon, ended)


@pytest.fixture
def over(attached):
    """The job ends as soon as it is submitted."""
    attached.end("FAILED", 7)


@pytest.fixture(params=[DRF, LIGHT_DRF], ids=["whole", "light"])
def run(request, spawn):
    """Starts `drf run` with these words, one way or the other."""
    return partial(spawn, "run", program=request.param)


# -- both ways ---------------------------------------------------------------------------------


def test_the_job_has_the_terminals_own_input_output_and_errors(run, attached):
    process = run("--", "cat", stdin=subprocess.PIPE)
    with attached.descriptors() as (fd_in, fd_out, fd_err):
        assert process.stdin is not None
        process.stdin.write(b"typed\n")
        process.stdin.close()
        process.stdin = None
        assert os.read(fd_in, 100) == b"typed\n"
        assert os.read(fd_in, 1) == b""
        assert process.poll() is None, "an input that ends does not end the job"
        os.write(fd_out, b"printed\xff\n")
        os.write(fd_err, b"complained\n")
    attached.end()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"printed\xff\n", b"complained\n")


def test_the_request_is_a_submission_with_an_attachment_and_then_a_wait(
    run, finish, attached, daemon, tmp_path
):
    """Nobody else can reach the attachment, and nothing of it is left."""
    process = run("-c", "2", "-n", "x", "--", "echo", "--", "a b", env={"LANG": "C.UTF-8"})
    path = attached.path()
    directory = Path(path).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    attached.end()
    finish(process)
    assert not directory.exists()
    submit, wait = daemon.requests
    umask = os.umask(0o077)
    os.umask(umask)
    assert submit == {
        "op": "submit", "argv": ["echo", "--", "a b"], "cwd": str(tmp_path), "name": "x",
        "demand": {"cores_milli": 2000}, "stderr": "drf-%j.out", "umask": umask, "attach": path,
        "env": {"PATH": os.environ["PATH"], "TZ": "UTC", "LANG": "C.UTF-8",
                "DRFD_SOCKET": str(daemon.path)},
    }  # fmt: skip
    assert wait == {"op": "wait", "ids": [42], "attended": True}


@pytest.mark.parametrize(
    ("code", "status", "is_told"),
    [
        ("COMPLETED", 0, False), ("FAILED", 139, False), ("TIMEOUT", 124, True),
        ("LAUNCH_FAILED", 125, True), ("CANCELLED", 125, True),
    ],
)  # fmt: skip
def test_it_exits_as_the_job_did_and_explains_what_drfd_did(
    run, finish, attached, code, status, is_told
):
    attached.end(code, status, text="words")
    talk = f"drf: job 42 {code}: words\n" if is_told else ""
    assert finish(run("--", "true")) == Result(status, "", talk)


def test_a_refused_job_is_a_refusal_and_nothing_is_left(run, finish, daemon, refuse, tmp_path):
    daemon.replies = {"submit": refuse("NotPermitted", "no", "not you", "ask somebody")}
    result = finish(run("--", "true", env={"TMPDIR": str(tmp_path)}))
    assert result == Result(77, "", "drf: not you (ask somebody)\n")
    assert [each["op"] for each in daemon.requests] == ["submit"]
    assert list(tmp_path.iterdir()) == []


def waiting(job: MakeJob, code: str, text: str) -> Message:
    """The reply to `status` about a job that waits."""
    return {"jobs": [job(state="PENDING", reason={"code": code, "text": text})]}


@pytest.mark.slow
@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_reason_is_said_when_it_changes_and_not_with_every_figure_in_it(
    run, finish, attached, daemon, job, is_quiet
):
    daemon.replies["status"] = [
        waiting(job, "RESOURCES", "needs 8 cores, 3 free"),
        waiting(job, "RESOURCES", "needs 8 cores, 4 free"),
        waiting(job, "DRAINING", "nothing is launched"),
    ]
    process = run(*["-q"] * is_quiet, "--", "true")
    if is_quiet:
        daemon.asked("wait")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)
        assert [request["op"] for request in daemon.requests] == ["submit", "wait"]
    else:
        daemon.asked("status", times=4)
    attached.end()
    told = (
        "drf: job 42 waits: RESOURCES: needs 8 cores, 3 free\n"
        "drf: job 42 waits: DRAINING: nothing is launched\n"
    )
    assert finish(process).err == ("" if is_quiet else told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_job_and_its_end_is_still_waited_for(
    run, finish, attached, daemon, number
):
    process = run("--", "sleep", "60")
    with attached.descriptors():
        process.send_signal(number)
        assert daemon.asked("cancel") == [{"op": "cancel", "select": {"ids": [42]}}]
        assert process.poll() is None
    attached.end("CANCELLED", 143)
    assert finish(process) == Result(143, "", "")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_users_own_signal_is_the_first_processes(run, finish, attached, daemon, number):
    daemon.replies["signal"] = {"done": [42], "failed": []}
    process = run("--", "sleep", "60")
    with attached.descriptors():
        process.send_signal(number)
        assert daemon.asked("signal") == [
            {"op": "signal", "select": {"ids": [42]}, "signal": 0x100 | number}
        ]
        assert process.poll() is None
    attached.end()
    assert finish(process) == Result(0, "", "")


def test_a_second_interrupt_leaves_at_once(run, finish, attached, daemon):
    """The job is being stopped; who presses twice does not want to see it."""
    process = run("--", "sleep", "60")
    with attached.descriptors():
        process.send_signal(signal.SIGINT)
        daemon.asked("cancel")
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert finish(process) == Result(130, "", "")
    assert len(daemon.asked("cancel")) == 1
    attached.end()


@pytest.mark.slow
def test_an_interrupt_while_the_daemon_is_away_does_not_abandon_the_job(
    run, finish, attached, daemon, ended
):
    """A restart lasts a second; a job that nobody attends to would run on for days."""
    process = run("--", "sleep", "60")
    with attached.descriptors():
        attached.leave()
        daemon.stop()
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    over = {"done": True, "ended": [ended("CANCELLED", 143)]}
    daemon.replies["wait"] = lambda request: daemon.asked("cancel") and over
    daemon.start()
    assert daemon.asked("cancel") == [{"op": "cancel", "select": {"ids": [42]}}]
    assert finish(process).code == 143


@pytest.mark.slow
def test_lost_answers_neither_queue_the_job_twice_nor_end_the_run(run, finish, daemon, ended):
    """It is sent again, with the key and the socket of the first time."""
    keys: list[str] = []
    daemon.on_key = keys.append
    over = {"done": True, "ended": [ended("FAILED", 5)]}
    daemon.replies = {"submit": [None, {"id": 42}], "wait": [None, over]}
    assert finish(run("--", "true")) == Result(5, "", "")
    assert (len(keys), len(set(keys))) == (2, 1)
    sent = [each for each in daemon.requests if each["op"] == "submit"]
    assert len({json.dumps(each, sort_keys=True) for each in sent}) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_a_directory_for_temporary_files_is_no_obstacle(
    run, finish, over, daemon, tmp_path, is_there
):
    """Build systems make TMPDIRs that are longer than what a socket's address holds."""
    deep = tmp_path / ("d" * 120)
    if is_there:
        deep.mkdir()
    env = {"TMPDIR": str(deep)}
    assert finish(run("--", "true", env=env)) == Result(7, "", "")
    assert not os.path.exists(os.path.dirname(daemon.requests[0]["attach"]))


def test_what_is_not_kept_of_the_demand_is_said(drf, attached, daemon):
    daemon.replies["submit"] = {"id": 42, "notes": ["the declared memory is not watched"]}
    attached.end()
    result = drf("run", "--gres", "gpu=1,memory=20G", "--", "true")
    assert (result.code, result.err) == (0, "drf: the declared memory is not watched\n")


# -- without click -----------------------------------------------------------------------------

#: No module of drfd can be loaded any more once there is a file `gone` in the directory.
_UPGRADED = f"""\
import os, sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        assert not (name.startswith("drfd") and os.path.exists("gone")), name
sys.meta_path.insert(0, Gone())
{LIGHT_DRF}
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--", "true"], ["true"], ["-q", "echo", "--", "a b", "-c", "ü"], ["-", "x"],
        ["-c", "0.5", "-m", "64M", "-t", "1h30m", "--", "true"],
        ["--cores=4", "-m1G", "--time", "unlimited", "--quiet", "--", "true"],
        ["-n", "x y", "-p", "lab.night", "--escape", "none", "-g", "sweep%2", "--", "true"],
        ["--name", "x", "--pool", "lab", "--escape=%", "python3", "-c", "pass"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_both_ways_ask_for_the_same(spawn, finish, daemon, over, words):
    env = {"A": "b", "MY_TOKEN": "x", "LANG": "C.UTF-8"}
    env |= {"DISPLAY": ":1", "SSH_AUTH_SOCK": "/s", "SSH_TTY": "/t"}
    light, whole = (
        finish(spawn("run", *words, env=env, program=program)) for program in (LIGHT_DRF, DRF)
    )
    assert light == whole
    assert (light.code, light.out) == (7, "")
    short, wait, long, wait_too = daemon.requests
    assert len({short.pop("attach"), long.pop("attach")}) == 2
    assert short == long
    kept = {"DISPLAY": ":1", "SSH_AUTH_SOCK": "/s", "SSH_TTY": None}
    assert {name: long["env"].get(name) for name in kept} == kept, "windows and agent, as here"
    assert wait == wait_too == {"op": "wait", "ids": [42], "attended": True}


def test_an_own_daemon_that_wants_a_signature_gets_one(spawn, finish, daemon, over, refuse):
    """A daemon of the same user is not asked before; it refuses, and the job is submitted anew."""
    daemon.replies["submit"] = [refuse("Refused", "not-signed", "sign it"), {"id": 42}]
    daemon.replies["hello"] = {"key_file": None}
    assert finish(spawn("run", "--", "true", program=LIGHT_DRF)) == Result(7, "", "")
    assert [each["op"] for each in daemon.requests] == ["submit", "hello", "submit", "wait"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_answer_cancels_the_job(spawn, finish, daemon, ended, number):
    """While the daemon stores the job, drf loads what it needs later."""
    is_signalled = threading.Event()
    over = {"done": True, "ended": [ended("CANCELLED", 143)]}
    daemon.replies = {
        "submit": lambda request: is_signalled.wait(60) and {"id": 42},
        "wait": lambda request: daemon.asked("cancel") and over,
        "cancel": {"done": [42], "failed": []},
    }
    process = spawn("run", "--", "true", program=LIGHT_DRF)
    daemon.asked("submit")
    process.send_signal(number)
    is_signalled.set()
    assert finish(process) == Result(143, "", "")


@pytest.mark.slow
def test_what_is_needed_for_messages_is_loaded_while_the_job_runs(spawn, finish, daemon, attached):
    """The files of this release may be gone when the job ends."""
    process = spawn("run", "-q", "--", "true", program=_UPGRADED)
    daemon.asked("wait")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    Path(f"/proc/{process.pid}/cwd/gone").touch()
    attached.end("TIMEOUT", 124, text="words")
    assert finish(process) == Result(124, "", "drf: job 42 TIMEOUT: words\n")


# -- profile -----------------------------------------------------------------------------------

GIB = 1 << 30
ADVICE = {"options": ["-c", "1", "-m", "384M", "-t", "1m"], "jobs": 1, "short_jobs": 0}
NOW = {"expected_start_at": 1.0, "reason": None}
LATER = {"expected_start_at": None, "reason": {"code": "LIMIT", "text": "no"}}


def free(cores: float, memory: int) -> dict[str, Any]:
    return {"free": {"cores": cores, "memory": memory, "read": 0, "write": 0, "gres": {}}}


def report(advice: dict[str, Any] | None = None) -> dict[str, Any]:
    used = {"cores": {"declared": 9, "used": 3_800_000}, "peak_max": 308 << 20}
    return {"rows": [{"run_ms": 4000, "advice": advice, **used}]}


def submits(*forecasts: Any) -> Callable[[Any], Any]:
    """A daemon that answers dry runs with these, in turn."""
    left = list(forecasts)
    return lambda request: left.pop(0) if request.get("dry_run") else {"id": 42}


@pytest.fixture
def prepared(daemon, ended) -> CannedDaemon:
    daemon.replies = {
        "shares": free(9.5, 18 * GIB + 5),
        "submit": submits(NOW),
        "wait": {"done": True, "ended": [ended()]},
        "report": report(ADVICE),
    }
    return daemon


@pytest.mark.parametrize(
    ("words", "shares", "forecasts", "asked"),
    [
        ([], free(9.5, 18 * GIB), [NOW], [(9, 18 * GIB)] * 2),
        ([], free(9.5, 18 * GIB), [None, LATER, NOW],
         [(9, 18 * GIB), (4, 9 * GIB), (2, 4608 << 20), (2, 4608 << 20)]),
        ([], free(0.2, 0), [NOW], [(1, GIB)]),
        (["-m", "64M", "-t", "1h"], free(9.5, 18 * GIB), [LATER, NOW],
         [(9, 64 << 20), (4, 64 << 20), (4, 64 << 20)]),
    ],
    ids=["all", "less until it would start now", "the least", "what is given is kept"],
)  # fmt: skip
def test_profile_takes_so_much(drf, prepared, refuse, words, shares, forecasts, asked):
    prepared.replies["shares"] = shares
    prepared.replies["submit"] = submits(*(each or refuse(code="too-big") for each in forecasts))
    drf("profile", *words, "--", "true")
    sent = prepared.asked("submit")
    demands = [each["demand"] for each in sent]
    assert [(each["cores_milli"] / 1000, each["memory_bytes"]) for each in demands] == asked
    assert {each.get("time_limit_s") for each in sent} == {3600 if words else None}


@pytest.mark.parametrize(
    ("status", "reported", "said"),
    [
        # Where there are no cgroups, use is only sampled.
        (0, report(), "it was over before its use was measured; profile a run of some seconds"),
        (3, report(), "it ended as FAILED: only a run that has done its work shows what it needs"),
        (0, {"rows": []}, "it never ran"),
        (0, report(ADVICE | {"short_jobs": 1}), "it was cut short: this is a guess, profile it"),
        (0, report(ADVICE | {"cores_note": "used 1.6 of 8 cores"}), "it used 1.6 of 8 cores\ndrf"),
        (0, report(ADVICE), "drf submit -c 1 -m 384M -t 1m -- (the same command)"),
    ],
)
def test_profile_says_what_a_run_teaches(drf, prepared, ended, status, reported, said):
    over = ended("FAILED" if status else "COMPLETED", status=status)
    prepared.replies |= {"wait": {"done": True, "ended": [over]}, "report": reported}
    result = drf("profile", "--", "sh", "-c", "a\nb\x1b")
    assert (result.code, f"drf: {said}" in result.err) == (status, True)


# -- exec --------------------------------------------------------------------------------------


def test_what_is_signed_is_the_move_of_this_process_into_this_attempt(
    drf, daemon, job, monkeypatch
):
    """And a daemon that only says that it was moved is not believed: nothing is executed."""
    key = bytes(range(32))
    monkeypatch.setattr("drfd.client.connection.Connection.fetch_key", lambda client: key)
    shown = job(id=42, state="RUNNING")
    daemon.replies = {"show": {"job": {**shown, "attempt": 3}}, "exec": {}}
    result = drf("exec", "42", "--", "true")
    assert result.code == 1
    assert "job 42: the launcher has not moved this process into its cgroup" in result.err
    [asked] = daemon.asked("exec")
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert (asked["pid"], asked["start_ticks"]) == (os.getpid(), ticks)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    submitted_us = round(shown["submitted_at"] * 1e6)
    digest = exec_digest(42, 3, submitted_us, os.getpid(), ticks, boot_id)
    assert asked["proof"] == proof_of(key, digest)


def test_where_only_the_users_systemd_may_move_processes_drf_starts_again_below_it(
    drf, daemon, job, refuse, monkeypatch
):
    """Once: if that does not help, the refusal stands."""
    out_of_reach = refuse("Refused", "out-of-reach", "it cannot be moved")
    daemon.replies = {"show": {"job": {**job(id=42, state="RUNNING"), "attempt": 1}}}
    daemon.replies |= {"hello": {"key_file": None}, "exec": out_of_reach}
    run: list[list[str]] = []

    def execute(file: str, words: list[str], env: dict[str, str]) -> None:
        run.append(words)
        monkeypatch.setenv("DRF_EXEC_BELOW_MANAGER", env["DRF_EXEC_BELOW_MANAGER"])
        raise FileNotFoundError

    monkeypatch.setattr(os, "execvpe", execute)
    monkeypatch.setattr(sys, "orig_argv", ["python", "drf", "exec", "42"])
    for _ in range(2):
        result = drf("exec", "42")
        assert (result.code, result.err) == (1, "drf: it cannot be moved\n")
    assert run == [["systemd-run", "--user", "--scope", "--quiet", "--", *sys.orig_argv]]


# -- keys --------------------------------------------------------------------------------------


def fed(*pieces: bytes, sign: bytes | None = b"~") -> list[bytes | EscapeCommand]:
    """What comes out, with neighbouring bytes joined."""
    keys = EscapeFilter(sign)
    found: list[bytes | EscapeCommand] = []
    for piece in pieces:
        for part in keys.feed(piece):
            if found and isinstance(part, bytes) and isinstance(found[-1], bytes):
                found[-1] += part
            else:
                found.append(part)
    return found


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (b"ls ~/x\r", [b"ls ~/x\r"]),
        (b"~.", [EscapeCommand.HANG_UP]),
        (b"ls\r~.", [b"ls\r", EscapeCommand.HANG_UP]),
        (b"ls\n~dmore", [b"ls\n", EscapeCommand.DETACH, b"more"]),
        (b"a~.", [b"a~."]),
        (b"\r~~.", [b"\r~."]),
        (b"\r~x~.", [b"\r~x~."]),
        (b"\r~\r~?", [b"\r~\r", EscapeCommand.HELP]),
        (b"~?~.", [EscapeCommand.HELP, EscapeCommand.HANG_UP]),
        (b"~\x1a", [EscapeCommand.SUSPEND]),
        (b"\x00\xff~.", [b"\x00\xff~."]),
    ],
)
def test_an_escape_stands_at_the_beginning_of_a_line(typed, found):
    assert fed(typed) == found


@given(st.binary(max_size=40), st.data())
def test_it_does_not_matter_how_the_keys_arrive(keys, data):
    keys = bytes(b"~.d\r?a"[number % 6] for number in keys)
    cut = data.draw(st.integers(0, len(keys)))
    assert fed(keys) == fed(keys[:cut], keys[cut:])
    assert fed(keys, sign=None) == ([keys] if keys else []), "without a sign all are the job's"


# -- modes of the terminal ---------------------------------------------------------------------

#: What ncurses and editors send when they take the screen, and when they leave it.
TAKEN = b"\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?2004h\x1b[?25l\x1b[1;1Htext"
LEFT = b"\x1b[?25h\x1b[?2004l\x1b[?1l\x1b>\x1b[?1049l"


def after(*pieces: bytes) -> ScreenModes:
    modes = ScreenModes()
    for piece in pieces:
        modes.feed(piece)
    return modes


def test_what_a_full_screen_program_took_is_given_back_and_taken_again():
    modes = after(TAKEN)
    assert modes.is_alternate
    assert modes.leave() == b"\x1b[?25h\x1b[?2004l\x1b[?1l\x1b>\x1b[0m\x1b[r\x1b[?1049l"
    assert modes.enter() == b"\x1b[?1049h\x1b[?1h\x1b[?2004h\x1b[?25l\x1b="
    assert after(modes.enter()).leave() == modes.leave()
    modes = after(TAKEN, LEFT)
    assert (modes.is_alternate, modes.times_left, modes.leave()) == (False, 1, b"")
    modes = after(b"plain \x1b[1mbold\x1b[0m\x1b]0;title\x07\x1b[?12h")
    assert (modes.is_alternate, modes.leave(), modes.enter()) == (False, b"", b"")


@pytest.mark.parametrize(
    ("written", "left"),
    [
        (b"\x1b[?1000;1006h", b"\x1b[?1006l\x1b[?1000l"),
        (b"\x1b[?47h", b"\x1b[0m\x1b[r\x1b[?47l"),
        (b"\x1b[?47h\x1b[?1049l", b""),
        (b"\x1b[?;;h\x1b[?1049", b""),
        (b"\x1b[?" + b"1;" * 100 + b"h", b""),
        (b"\x1b\x1b[?25l", b"\x1b[?25h"),
    ],
)
def test_sequences_as_they_may_come(written, left):
    assert after(written).leave() == left


@examples(50)
@given(st.data())
def test_it_does_not_matter_how_the_output_arrives(data):
    piece = st.sampled_from([TAKEN, LEFT, b"text", b"\x1b[?1000h", b"\x1b", b"\x1b[?25", b"\x1b["])
    written = b"".join(data.draw(st.lists(piece, max_size=6)))
    at = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    pieces = [written[a:b] for a, b in zip([0, *at], [*at, len(written)], strict=True)]
    whole, parts = after(written), after(*pieces)
    assert (parts.leave(), parts.times_left) == (whole.leave(), whole.times_left)


def test_the_daemon_does_not_choose_the_file_that_a_detached_terminal_goes_to(daemon, tmp_path):
    """Nor does another user, who has put a link there."""
    signed = {"stdout": "drf-%j.out", "cwd": str(tmp_path), "name": "x"}
    daemon.replies = {
        "show": {"job": {"stdout": str(tmp_path / ".profile")}},
        "submission": {"label": "7", "submission": signed, "proof": None},
    }
    path, file = _open_output(Connection(daemon.path), 7)
    os.close(file)
    assert path == str(tmp_path / "drf-7.out")
    assert os.listdir(tmp_path) == ["drf-7.out"]
    (tmp_path / "drf-8.out").symlink_to(tmp_path / ".profile")
    (tmp_path / "drf-9.out").hardlink_to(tmp_path / "drf-7.out")
    for number in (8, 9):
        with pytest.raises(OSError, match=f"drf-{number}.out"):
            _open_output(Connection(daemon.path), number)
