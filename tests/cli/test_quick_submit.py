"""The short way of `drf submit` asks for the same, and leaves to the whole program what is not."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from canned import CannedDaemon, MakeJob, Refuse
from drfd.client.connection import choose
from drfd.common import paths
from drfd.common.errors import Refused
from drfd.common.units import parse_cores, parse_duration, parse_memory
from drfd_cli import quick_request, quick_submit
from drfd_cli.quick_request import amount_of

#: Runs drf: its exit code, output, complaints, and the way that it went.
Start = Callable[..., tuple[int, str, list[str], str]]

#: Loaded by the whole command line alone.
_PROGRAM = (
    "import os, sys\n"
    "sys.argv[0] = 'drf'\n"
    # It does not wait for the end of the interpreter, which would do what follows.
    "os._exit = sys.exit\n"
    "from drfd_cli.start import main\n"
    "try:\n"
    "    main()\n"
    "finally:\n"
    "    print('long' if 'click' in sys.modules else 'short', file=sys.stderr)\n"
)
#: What `drf submit` loads in no case of its own: each of them takes a tenth of its time, or more.
_HEAVY = {"re", "enum", "collections", "socket", "json", "typing", "pathlib", "signal", "inspect"}


@pytest.fixture
def start(daemon: CannedDaemon, tmp_path: Path) -> Iterator[Start]:
    """Run drf; how it ended, and the way that it went."""

    def run(
        *words: str, env: dict[str, str] | None = None, program: str = _PROGRAM
    ) -> tuple[int, str, list[str], str]:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            env={"DRFD_SOCKET": str(daemon.path), "PATH": "/usr/bin", **(env or {})},
        )
        *talk, way = done.stderr.splitlines()
        return done.returncode, done.stdout, talk, way

    yield run


SHORT = [
    ["--", "true"],
    ["-q", "--", "echo", "--", "a b", "ü"],
    ["-c", "0.5", "-m", "64M", "-t", "1h30m", "--", "true"],
    ["--cores", "4", "--mem", "1G", "--time", "unlimited", "--quiet", "--", "true"],
    ["--json", "-q", "--", "true"],
    ["--hold", "--preemptible", "--", "true"],
    ["-n", "x y", "-p", "lab.night", "-o", "%j.out", "-e", "/tmp/%j", "--", "true"],
    ["-g", "sweep%2", "--", "true"],
    ["--", "sh", "-c", "cd /tmp && FOO=1 ./fit --all | tail"],
    ["-n", "own", "--", "/bin/bash", "-lc", "fit"],
    ["--group=sweep", "--", "true"],
    ["--node", "n1", "--", "true"],
    ["--name", "x", "--pool", "lab", "--output", "o", "--error", "e", "--", "true"],
    ["-c4", "-m16g", "--time=90", "--name=x=y", "-n=z", "--", "true"],
    ["-c", "1.5", "-m", "1.5T", "-t", "1-12:00:00", "--", "true"],
]
#: What the daemon takes where nothing is said.
LEFT_OUT = {"priority": 0, "held": False, "preemptible": False}


@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_the_short_way_asks_for_what_the_long_one_asks_for(
    start: Start, daemon: CannedDaemon, words: list[str]
) -> None:
    daemon.replies = {"submit": {"id": 42}}
    env = {"A": "b", "MY_TOKEN": "x", "LANG": "C.UTF-8"}
    whole = _PROGRAM.replace("drfd_cli.start", "drfd_cli.main")
    short = start("submit", *words, env=env)
    long = start("submit", *words, env=env, program=whole)
    assert (short[3], long[3]) == ("short", "long")
    assert short[:3] == long[:3]
    secret = "drf: left out MY_TOKEN, which may be secret; --export MY_TOKEN keeps it"
    doubt = "drf: time: 90 is 90 seconds (90m: minutes)"
    assert (short[0], short[2]) == (0, [*([doubt] if "--time=90" in words else []), secret])
    assert "42" in short[1]
    asked, wanted = daemon.requests
    assert LEFT_OUT | asked == wanted


def test_both_ways_say_that_nothing_is_launched(start: Start, daemon: CannedDaemon) -> None:
    drain = {"by": "root", "since": time.time(), "reason": "disk swap"}
    daemon.replies = {"submit": {"id": 42, "drain": drain}}
    whole = _PROGRAM.replace("drfd_cli.start", "drfd_cli.main")
    for program in (_PROGRAM, whole):
        code, out, (told,), _ = start("submit", "-q", "--", "true", program=program)
        assert (code, out) == (0, "42\n")
        assert told.startswith("drf: draining: nothing is launched until drf undrain (by root")
        assert told.endswith(": disk swap")
        assert start("submit", "--no-warnings", "--", "true", program=program)[2] == []


@pytest.mark.parametrize(
    "words",
    [
        ["-w", "--", "true"],
        ["--gres", "gpu", "--", "true"],
        ["-qc", "4", "--", "true"],
        ["--cores=", "--", "true"],
        ["-n", "", "--", "true"],
        ["-n", "--", "--", "true"],
        ["-c", "many", "--", "true"],
        ["-m", "1K", "--", "true"],
        ["script.sh"],
        ["--"],
        [],
        ["--help"],
    ],
    ids=" ".join,
)
def test_what_takes_more_is_left_to_the_whole_program(
    start: Start, daemon: CannedDaemon, ended: MakeJob, words: list[str]
) -> None:
    daemon.replies = {"submit": {"id": 42}, "wait": {"done": True, "ended": [ended()]}}
    assert start("submit", *words)[3] == "long"


@given(some.text("0123456789KMGTkmgtBisdh:.-+ ٤", max_size=9))
@pytest.mark.parametrize(
    ("option", "parse"), [("-c", parse_cores), ("--mem", parse_memory), ("-t", parse_duration)]
)
def test_amounts_are_read_as_everywhere(
    option: str, parse: Callable[[str], int], value: str
) -> None:
    try:
        wanted = parse(value)
    except Refused:
        wanted = None
    assert amount_of(option, value) == wanted


def test_nothing_slow_is_loaded(start: Start, daemon: CannedDaemon) -> None:
    """Scripts wait for each start of drf."""
    daemon.replies = {"submit": {"id": 42}}
    program = _PROGRAM.replace("'long' if 'click' in sys.modules else 'short'", "*sys.modules")
    program = program.replace("import os, sys", "import os, sys; before = {*sys.modules}")
    program = program.replace("*sys.modules,", "*{*sys.modules} - before,")
    for words in (["-q"], ["-c", "4", "-m", "16G", "-t", "12h"]):
        code, _, _, loaded = start("submit", *words, "--", "true", program=program)
        assert code == 0
        assert "drfd_cli.quick_submit" in loaded.split()
        assert _HEAVY & set(loaded.split()) == set()


@pytest.mark.parametrize("named", ["", "/named/drfd.sock"])
@pytest.mark.parametrize("has_system", [True, False])
def test_the_daemon_is_the_one_that_other_commands_talk_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, has_system: bool
) -> None:
    assert Path(quick_request.SYSTEM_SOCKET) == paths.SYSTEM_SOCKET
    system = tmp_path / "system" / "drfd.sock"
    if has_system:
        system.parent.mkdir()
    monkeypatch.setattr(quick_request, "SYSTEM_SOCKET", str(system))
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", system)
    monkeypatch.setenv("DRFD_SOCKET", named)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path, is_own = quick_request.socket_of_daemon()
    found = choose(None, start=Path.touch)
    assert (Path(path), is_own) == (found.path, found._start is not None)


def test_a_variable_that_python_adds_is_not_sent(start: Start, daemon: CannedDaemon) -> None:
    """In the C locale, as under cron, Python sets LC_CTYPE."""
    daemon.replies = {"submit": {"id": 42}}
    assert start("submit", "--", "true")[3] == "short"
    assert daemon.requests[0]["env"] == {"PATH": "/usr/bin", "DRFD_SOCKET": str(daemon.path)}


def test_a_refusal_is_told_by_the_whole_program(
    start: Start, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"submit": refuse("NotPermitted", "no", "not you", "ask somebody")}
    assert start("submit", "--", "true") == (77, "", ["drf: not you (ask somebody)"], "long")


def test_a_lost_answer_does_not_queue_the_job_twice(start: Start, daemon: CannedDaemon) -> None:
    keys: list[str] = []
    daemon.on_key = keys.append
    daemon.replies = {"submit": [None, None, {"id": 42}]}
    assert start("submit", "-q", "--", "true") == (0, "42\n", [], "long")
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_two_submissions_have_two_keys(start: Start, daemon: CannedDaemon) -> None:
    keys: list[str] = []
    daemon.on_key = keys.append
    daemon.replies = {"submit": {"id": 42}}
    start("submit", "-q", "--", "true")
    start("submit", "-q", "--", "true")
    assert len(set(keys)) == 2


def test_without_a_daemon_the_whole_program_says_so(start: Start, daemon: CannedDaemon) -> None:
    daemon.stop()
    code, out, talk, way = start("submit", "--", "true")
    assert (code, out, way, len(talk)) == (69, "", "long", 1)


def test_where_many_come_at_a_time_it_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was turned away, and the whole program took three times as long."""
    path = str(tmp_path / "s")
    monkeypatch.setenv("DRFD_SOCKET", path)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(1)
        crowd = 0
        with pytest.raises(BlockingIOError):
            while True:
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(path)
                crowd += 1

        def serve() -> None:
            time.sleep(0.3)
            for _ in range(crowd):
                stack.enter_context(listener.accept()[0])
            connection = stack.enter_context(listener.accept()[0])
            connection.recv(1 << 16)
            connection.sendall(b'{"ok": true, "id": 7}\n')

        server = threading.Thread(target=serve)
        server.start()
        assert quick_submit._ask({}) == {"ok": True, "id": 7}
        server.join()


def test_a_refusal_at_the_door_is_read_though_the_request_could_not_be_sent() -> None:
    """A daemon that refuses the connection hangs up before the request is there. This was taken for
    a lost answer, so that drf asked again for a minute before it said why."""
    ours, theirs = socket.socketpair()
    refusal = b'{"ok": false}\n'
    with ours, theirs:
        theirs.sendall(refusal)
        theirs.close()
        assert quick_submit._answer(ours, b"x" * 100) == refusal
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.close()
        with pytest.raises(quick_submit.Lost):
            quick_submit._answer(ours, b"x" * 100)
