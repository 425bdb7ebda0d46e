"""The short way of `drf run` does the same, and leaves to the whole program what takes more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message, Refuse
from cli.drf import DRF, LIGHT_DRF, Finish, Result, Spawn

#: Loaded by the whole command line alone, or with messages.
_WHOLE = {"click", "rich"}
#: What loads slowly, and no run needs that has nothing to say and no terminal.
_NEEDLESS = _WHOLE | {"asyncio", "threading", "tempfile", "inspect", "typing", "pathlib", "tty"}
_NEEDLESS |= {"re", "enum", "collections", "socket", "json", "signal", "contextlib", "functools"}
_NEEDLESS |= {"drfd.client.client", "drfd_cli.terminal"}
#: What is not loaded before the request is sent.
_LATE = _NEEDLESS | {"drfd.client.connection", "drfd_cli.attached"}

#: Prints which of these modules were loaded when the request was sent, and which at the end.
_TELLING = f"""\
import os, sys
before = {{*sys.modules}}
leave = os._exit
def tell(of):
    print(*sorted(of & {{*sys.modules}} - before), sep=",", file=sys.stderr)
def end(status):
    tell({_NEEDLESS!r})
    sys.stderr.flush()
    leave(status)
os._exit = end
{DRF.partition("from drfd_cli")[0]}
from drfd_cli import quick_run, start
send = quick_run.send
def send_and_tell(*about):
    send(*about)
    tell({_LATE!r})
quick_run.send = send_and_tell
start.main()
"""

#: No module of drfd can be loaded any more once there is a file `gone` in the directory.
_UPGRADED = f"""\
import os, sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        assert not (name.startswith("drfd") and os.path.exists("gone")), name
sys.meta_path.insert(0, Gone())
{LIGHT_DRF}
"""

#: What the daemon takes where nothing is said.
LEFT_OUT = {"priority": 0, "held": False, "preemptible": False}


@pytest.fixture
def over(daemon: CannedDaemon, ended: MakeJob) -> None:
    """The job ends as soon as it is submitted."""
    daemon.replies = {"submit": {"id": 42}, "wait": {"done": True, "ended": [ended("FAILED", 7)]}}


SHORT = [
    ["--", "true"],
    ["true"],
    ["-q", "echo", "--", "a b", "-c", "ü"],
    ["-", "x"],
    ["-c", "0.5", "-m", "64M", "-t", "1h30m", "--", "true"],
    ["--cores=4", "-m1G", "--time", "unlimited", "--quiet", "--", "true"],
    ["-n", "x y", "-p", "lab.night", "--escape", "none", "--", "true"],
    ["-g", "sweep%2", "--", "true"],
    ["--name", "x", "--pool", "lab", "--escape=%", "python3", "-c", "pass"],
]


@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_the_short_way_asks_for_what_the_long_one_asks_for(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, over: None, words: list[str]
) -> None:
    env = {"A": "b", "MY_TOKEN": "x", "LANG": "C.UTF-8"}
    light, whole = (
        finish(spawn("run", *words, env=env, program=program)) for program in (LIGHT_DRF, DRF)
    )
    assert light == whole
    assert (light.code, light.out) == (7, "")
    assert light.err.endswith(
        "left out MY_TOKEN, which may be secret; --export MY_TOKEN keeps it\n"
    )
    short, wait, long, wait_too = daemon.requests
    assert "priority" not in short, "it went the long way"
    attached = {short.pop("attach"), long.pop("attach")}
    assert len(attached) == 2
    assert LEFT_OUT | short == long
    assert wait == wait_too == {"op": "wait", "ids": [42], "attended": True}


@pytest.mark.parametrize("words", [["--", "true"], ["-c", "4", "-m16G", "-t", "2h", "-q", "true"]])
def test_what_loads_slowly_waits_until_the_request_is_sent(
    spawn: Spawn, finish: Finish, over: None, words: list[str]
) -> None:
    result = finish(spawn("run", *words, program=_TELLING))
    assert (result.code, result.err.splitlines()) == (7, ["", ""])


@pytest.mark.parametrize(
    "words",
    [
        ["--gres", "gpu", "--", "true"],
        ["--after", "3", "--", "true"],
        ["--export", "PATH", "--", "true"],
        ["--escape", "ab", "--", "true"],
        ["--escape", "-", "--", "true"],
        ["-n", "", "--", "true"],
        ["-c", "many", "--", "true"],
        ["--hold", "--", "true"],
        ["-o", "x", "--", "true"],
        ["--"],
        [],
        ["--help"],
    ],
    ids=" ".join,
)
def test_what_takes_more_is_left_to_the_whole_program(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, over: None, words: list[str]
) -> None:
    light = finish(spawn("run", *words, program=LIGHT_DRF))
    assert all("priority" in each for each in daemon.requests if each["op"] == "submit")
    assert light == finish(spawn("run", *words))


def test_where_messages_could_not_be_printed_it_goes_the_long_way(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, over: None
) -> None:
    finish(spawn("run", "--", "true", env={"PYTHONIOENCODING": "ascii"}, program=LIGHT_DRF))
    assert "priority" in daemon.requests[0]


def test_a_refusal_is_told_and_nothing_is_left(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, refuse: Refuse, tmp_path: Path
) -> None:
    daemon.replies = {"submit": refuse("NotPermitted", "no", "not you", "ask somebody")}
    result = finish(spawn("run", "--", "true", env={"TMPDIR": str(tmp_path)}, program=LIGHT_DRF))
    assert result == Result(77, "", "drf: not you (ask somebody)\n")
    assert [each["op"] for each in daemon.requests] == ["submit"]
    assert list(tmp_path.iterdir()) == []


def test_a_lost_answer_does_not_queue_the_job_twice(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, over: None
) -> None:
    """It is sent again, with the key and the socket of the first time."""
    keys: list[str] = []
    daemon.on_key = keys.append
    daemon.replies["submit"] = [None, None, {"id": 42}]
    assert finish(spawn("run", "--", "true", program=LIGHT_DRF)) == Result(7, "", "")
    assert (len(keys), len(set(keys))) == (3, 1)
    sent = [each for each in daemon.requests if each["op"] == "submit"]
    assert len({json.dumps(each, sort_keys=True) for each in sent}) == 1


def test_an_own_daemon_that_wants_a_signature_gets_one(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, over: None, refuse: Refuse
) -> None:
    """A daemon of the same user is not asked before; it refuses, and the job is submitted anew."""
    daemon.replies["submit"] = [refuse("Refused", "not-signed", "sign it"), {"id": 42}]
    daemon.replies["hello"] = {"key_socket": None}
    assert finish(spawn("run", "--", "true", program=LIGHT_DRF)) == Result(7, "", "")
    assert [each["op"] for each in daemon.requests] == ["submit", "hello", "submit", "wait"]


def test_a_daemon_that_stays_away_is_reported(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon
) -> None:
    daemon.stop()
    result = finish(spawn("run", "--", "true", program=LIGHT_DRF))
    assert (result.code, result.out, result.err.count("\n")) == (69, "", 1)
    assert result == finish(spawn("run", "--", "true"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_answer_cancels_the_job(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, ended: MakeJob, number: int
) -> None:
    """While the daemon stores the job, drf loads what it needs later."""
    is_signalled = threading.Event()

    def submit(request: Message) -> Message:
        is_signalled.wait(60)
        return {"id": 42}

    def wait(request: Message) -> Message:
        daemon.asked("cancel")
        return {"done": True, "ended": [ended("CANCELLED", 143)]}

    replies: dict[str, Any] = {"submit": submit, "wait": wait}
    daemon.replies = {**replies, "cancel": {"done": [42], "failed": []}}
    process = spawn("run", "--", "true", program=LIGHT_DRF)
    daemon.asked("submit")
    process.send_signal(number)
    is_signalled.set()
    assert finish(process) == Result(143, "", "")


def test_what_is_needed_for_messages_is_loaded_while_the_job_runs(
    spawn: Spawn, daemon: CannedDaemon, ended: MakeJob
) -> None:
    """The files of this release may be gone when the job ends."""
    may_end = threading.Event()
    over = {"done": True, "ended": [ended("TIMEOUT", 124, text="words")]}
    wait: Callable[[Message], Any] = lambda request: may_end.wait(60) and over  # noqa: E731
    daemon.replies = {"submit": {"id": 42}, "wait": wait}
    process = spawn("run", "-q", "--", "true", program=_UPGRADED)
    daemon.asked("wait")
    gone = Path(f"/proc/{process.pid}/cwd/gone")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    gone.touch()
    may_end.set()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.decode()) == (124, "drf: job 42 TIMEOUT: words\n")


def test_an_undone_directory_for_temporary_files_is_no_obstacle(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, over: None
) -> None:
    env = {"TMPDIR": "/nonexistent", "XDG_RUNTIME_DIR": ""}
    result = finish(spawn("run", "--", "true", env=env, program=LIGHT_DRF))
    assert result == Result(7, "", "")
    attach = daemon.requests[0]["attach"]
    assert not os.path.exists(os.path.dirname(attach))
    assert attach.startswith("/tmp/")


@pytest.mark.parametrize(("mode", "is_used"), [(0o700, True), (0o755, False), (0o1777, False)])
def test_the_socket_is_where_nobody_else_can_make_another(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, over: None, tmp_path: Path,
    mode: int, is_used: bool,
) -> None:  # fmt: skip
    own = tmp_path / "runtime"
    own.mkdir()
    own.chmod(mode)
    result = finish(
        spawn("run", "--", "true", env={"XDG_RUNTIME_DIR": str(own)}, program=LIGHT_DRF)
    )
    assert result == Result(7, "", "")
    assert daemon.requests[0]["attach"].startswith(f"{own}/drf-run-") == is_used
    assert list(own.iterdir()) == []
