"""What all programs share: errors, paths, failpoints, and log entries with fields."""

import ast
import io
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import failing
from drfd.common import errors, failpoints, paths
from drfd.common.errors import (
    BY_KIND,
    ConfigError,
    DrfdError,
    HostError,
    NotPermitted,
    Refused,
    Unavailable,
)
from drfd.common.journald import Entries, about, entry
from drfd.payload.submitter import user_socket

# -- errors ------------------------------------------------------------------------------------


def test_each_kind_of_error_has_its_documented_exit_code_and_crosses_the_wire_by_its_name():
    codes = {Refused: 1, NotPermitted: 77, Unavailable: 69, ConfigError: 78, HostError: 1}
    assert {kind: kind("some-code", "text").exit_code for kind in codes} == codes
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    named = {each.__name__: each for each in kinds if issubclass(each, DrfdError)}
    assert named == BY_KIND | {"DrfdError": DrfdError}
    # Who catches refusals catches both: the daemon's loop does.
    assert issubclass(NotPermitted, Refused) and not issubclass(HostError, Refused)


# -- paths -------------------------------------------------------------------------------------


XDG = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")


@pytest.mark.parametrize(
    ("env", "state", "config", "socket_"),
    [
        (dict(zip(XDG, ("/s", "/c", "/run/user/1001"), strict=True)),
         "/s/drfd", "/c/drfd/drfd.toml", "/run/user/1001/drfd.sock"),
        *((env, "/home/alice/.local/state/drfd", "/home/alice/.config/drfd/drfd.toml",
           "/home/alice/.local/state/drfd/drfd.sock") for env in ({}, dict.fromkeys(XDG, ""))),
    ],
)  # fmt: skip
def test_a_users_places_follow_the_xdg_variables_or_are_below_the_home_directory(
    monkeypatch, env, state, config, socket_
):
    monkeypatch.setenv("HOME", "/home/alice")
    found = paths.user_state(env), paths.user_config(env), user_socket(env)
    assert [*map(str, found)] == [state, config, socket_]


def test_the_systems_places():
    """Documented: scripts, unit files and users rely on them."""
    found = paths.SYSTEM_SOCKET, paths.SYSTEM_STATE, paths.SYSTEM_CONFIG
    assert [*map(str, found)] == ["/run/drfd/drfd.sock", "/var/lib/drfd", "/etc/drfd/drfd.toml"]


# -- failpoints: the list is true, each fires once and at whom it is told, and never unasked ---


ROOT = Path(failpoints.__file__).parents[2]
REACH = """
import sys
sys.path.insert(0, sys.argv[1])
from drfd.common.failpoints import enable, reach
if sys.argv[2]:
    enable(sys.argv[2])
for name in sys.argv[3:]:
    reach(name)
    print("passed", name, flush=True)
"""
Done = subprocess.CompletedProcess[str]


def reached() -> list[str]:
    """The names passed to `reach` anywhere in the product. A name must be a literal."""
    found = []
    for path in [*ROOT.joinpath("drfd").rglob("*.py"), *ROOT.joinpath("cli").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "attr", getattr(called, "id", "")) == "reach":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: no literal"
                found.append(str(argument.value))
    starter = ROOT / "drfd" / "launcher" / "runner" / "starter"
    for path in (*starter.glob("*.h"), *starter.glob("*.c")):
        for call in re.findall(r"reach\((.+)\);", path.read_text()):
            found += re.findall('"(.+?)"', call)
    return found


def run(*names: str, directory: Path | None, env: dict[str, str] | None = None) -> Done:
    command = [sys.executable, "-I", "-c", REACH, str(ROOT), str(directory or ""), *names]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_the_list_names_every_failpoint_of_the_source_once_and_no_other():
    """One name, one place: a test that arms it knows where it fires."""
    assert sorted(failing.NAMES) == sorted(reached())


@pytest.mark.parametrize("directory", ["", "other"])
def test_without_directory_or_file_no_failpoint_fires(tmp_path, directory):
    """The variable of the environment of this name did: whoever could set it in root's named a
    directory from which root read pids to kill."""
    (tmp_path / "a").write_text("self")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b").write_text("self")
    env = {**os.environ, "DRFD_FAILPOINTS": str(tmp_path)}
    done = run("a", directory=tmp_path / directory if directory else None, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed a\n", "")
    assert (tmp_path / "a").exists() and (tmp_path / "other" / "b").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [["drfd.daemon", "serve"], ["drfd.launcher"], ["drfd.launcher.slurm"]], ids=" ".join
)
def test_no_program_that_root_runs_can_be_told_to_have_any(tmp_path, program):
    """Nor to have a job's process begun by another program than that installed."""
    words = ["--state", str(tmp_path / "state"), "--failpoints", str(tmp_path)]
    if program[0] != "drfd.daemon":
        words += ["--controller", "0"]
    done = subprocess.run(
        [sys.executable, "-I", "-m", *program, *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert f"unrecognized arguments: --failpoints {tmp_path}" in done.stderr
    assert list(tmp_path.iterdir()) == []
    source = "".join(path.read_text() for path in ROOT.joinpath("drfd").rglob("*.py"))
    assert failing.VARIABLE not in source


def test_they_are_not_read_where_others_may_write(tmp_path):
    """A file there says which process is killed, by root perhaps."""
    tmp_path.chmod(0o777)
    with pytest.raises(errors.ConfigError, match="others may write"):
        failpoints.enable(str(tmp_path))
    with pytest.raises(errors.ConfigError, match="No such file"):
        failpoints.enable(str(tmp_path / "gone"))
    assert failpoints.directory() is None


def test_an_armed_failpoint_kills_who_comes_there_once_each_time(tmp_path):
    for _ in range(2):
        (tmp_path / "b").write_text("self\n")
        first = run("a", "b", "c", directory=tmp_path)
        assert (first.returncode, first.stdout) == (-signal.SIGKILL, "passed a\n")
        assert list(tmp_path.iterdir()) == []
    second = run("a", "b", "c", directory=tmp_path)
    assert (second.returncode, second.stdout) == (0, "passed a\npassed b\npassed c\n")


def test_an_armed_failpoint_kills_the_process_it_names_and_goes_on(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as victim:
        (tmp_path / "a").write_text(f"{victim.pid}\n")
        done = run("a", "b", directory=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "passed a\npassed b\n", "")
        assert victim.wait(30) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


# -- log entries -------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "journal"))
        listener.settimeout(5)
        yield listener


@pytest.fixture
def lines() -> io.StringIO:
    """Standard error."""
    return io.StringIO()


@pytest.fixture
def log(tmp_path, lines) -> Iterator[logging.Logger]:
    log = logging.Logger("test")
    handler = Entries("drfd", logging.StreamHandler(lines), str(tmp_path / "journal"))
    log.addHandler(handler)
    yield log
    handler.close()


def test_a_line_about_a_job_can_be_found_by_it(journal, log, lines):
    log.warning("job=%d event=%s", 41, "Exited", extra=about(job=41, user="alice"))
    assert journal.recv(1000) == (
        b"MESSAGE=job=41 event=Exited\nPRIORITY=4\nSYSLOG_IDENTIFIER=drfd\n"
        b"DRFD_JOB=41\nDRFD_USER=alice\n"
    )
    log.info("event=ready cwd=\udcff")
    assert journal.recv(1000) == (
        b"MESSAGE=event=ready cwd=?\nPRIORITY=6\nSYSLOG_IDENTIFIER=drfd\n"
    ), "a line about nothing has no such fields, and text that is not Unicode is no end"
    assert lines.getvalue() == ""
    fields = [("DRFD_JOB", "4"), ("DRFD_JOB", "7"), ("DRFD_USER", "bob")]
    assert about(jobs=[4, 7], user="bob") == {"fields": fields}


def test_standard_error_is_the_journal_or_gets_lines():
    """In a process of its own: it sets up the log of all of it."""
    program = (
        "import logging; from drfd.common import journald\n"
        "journald.set_up('drfd', has_journal={})\n"
        "logging.getLogger('drfd').info('event=%s', 'ready')\n"
        "print(type(logging.getLogger().handlers[0]).__name__)"
    )
    for has_journal, handler in ((False, "StreamHandler"), (True, "Entries")):
        command = [sys.executable, "-c", program.format(has_journal)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{handler}\n"
        assert has_journal or done.stderr == "drfd: event=ready\n"


def test_no_value_can_pretend_to_be_a_field():
    """A name with a newline in it: its length says where it ends."""
    value = b"x\nDRFD_USER=root"
    assert entry([("MESSAGE", value.decode())]) == (
        b"MESSAGE\n" + struct.pack("<Q", len(value)) + value + b"\n"
    )


def test_a_journal_that_does_not_read_holds_nobody_up(journal, log, lines):
    """It was waited for until it read again: no job started or ended meanwhile."""
    others: list[socket.socket] = []
    sent = -1
    while sent != 0:
        # Each may have so many bytes under way, and all together so many datagrams.
        others.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        sent = 0
        with suppress(BlockingIOError):
            while True:
                others[-1].sendto(b"x", journal.getsockname())
                sent += 1
    log.error("event=stuck")
    assert lines.getvalue() == ""
    for each in others:
        each.close()


def test_without_a_journal_the_line_is_not_lost(log, lines):
    log.error("event=stuck", extra=about(job=3))
    assert lines.getvalue() == "event=stuck\n"
