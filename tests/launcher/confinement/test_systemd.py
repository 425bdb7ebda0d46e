"""What systemd is asked and how: with programs of its names that answer as it does."""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drfd.launcher.confinement import detect
from drfd.launcher.confinement.detect import Manager, NoAnswer
from launcher.rig import lives, until

Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Put a shell script of this name first on PATH; the file that has the words it was given."""

    def program(name: str, script: str) -> Path:
        given = tmp_path / f"{name}.given"
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$@" >> {given}\n{script}\n')
        path.chmod(0o755)
        return given

    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return program


SYSTEM, USERS = Manager(is_users=False), Manager(is_users=True)


def test_properties_are_read_as_they_are_written(program: Program) -> None:
    given = program("systemctl", "printf 'A=x\\nB=\\nC=/a=b/c\\n'")
    assert SYSTEM.show("some.scope", "--property=A,B,C") == {"A": "x", "B": "", "C": "/a=b/c"}
    assert USERS.show("--property=A") == {"A": "x", "B": "", "C": "/a=b/c"}
    assert given.read_text() == "show some.scope --property=A,B,C\n--user show --property=A\n"


def test_a_users_manager_is_found_where_nobody_says_it_is(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After sudo -u, or from cron; but who says otherwise is believed."""
    program("systemctl", 'echo "A=$XDG_RUNTIME_DIR"')
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert USERS.show("--property=A") == {"A": f"/run/user/{os.getuid()}"}
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/elsewhere")
    assert USERS.show("--property=A") == {"A": "/elsewhere"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo hint >&2; echo 'Failed to connect to bus: No medium found' >&2; exit 1",
         "systemctl: Failed to connect to bus: No medium found"),
        ("exit 1", "systemctl: failed and said nothing"),
        ("exec sleep 60", "systemctl: no answer within 0 s"),
    ],
)  # fmt: skip
def test_a_manager_that_does_not_answer_is_told(
    program: Program, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(detect, "_ANSWER_S", 0.3 if "sleep" in script else 20.0)
    program("systemctl", script)
    with pytest.raises(NoAnswer) as raised:
        SYSTEM.show("x.scope")
    assert str(raised.value) == said


def test_a_machine_without_systemd_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoAnswer, match="systemctl: No such file or directory"):
        SYSTEM.show("x.scope")
    with pytest.raises(NoAnswer, match="systemd-run: No such file or directory"):
        SYSTEM.start_scope("x.scope", "x")
    with pytest.raises(NoAnswer, match="systemd-run: No such file or directory"):
        USERS.become_scope(["true"])


def test_lingering_is_what_logind_has_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "LINGER", str(tmp_path))
    assert not detect.lingers(os.getuid())
    (tmp_path / pwd.getpwuid(os.getuid()).pw_name).touch()
    assert detect.lingers(os.getuid())
    assert not detect.lingers(4_000_000_000), "nobody's"


def test_a_scope_is_delegated_goes_when_it_is_empty_and_outlives_us(program: Program) -> None:
    """A session of its own: what ends ours does not end it."""
    given = program("systemd-run", 'shift 4; while [ "$1" != sleep ]; do shift; done; exec "$@"')
    keeper = SYSTEM.start_scope("x.scope", "Words")
    try:
        until("its sleep", lambda: cmdline(keeper.process.pid).startswith(b"sleep\0"))
        assert set(given.read_text().split()) == {
            *("--scope", "--quiet", "--collect", "--slice=drfd.slice", "--unit=x.scope"),
            *("--description=Words", "--property=Delegate=yes", "sleep", "infinity"),
        }
        assert os.getsid(keeper.process.pid) == keeper.process.pid
        assert os.readlink(f"/proc/{keeper.process.pid}/cwd") == "/"
        assert not keeper.has_failed()
    finally:
        keeper.kill()
        os.close(keeper.said_fd)


def test_a_keeper_is_where_the_kernel_says(program: Program) -> None:
    program("systemd-run", "exec sleep 60")
    keeper = SYSTEM.start_scope("x.scope", "Words")
    try:
        here = Path(f"/proc/{keeper.process.pid}/cgroup").read_text().split("0::")[-1]
        name = os.path.basename(here.strip())
        assert keeper.is_in(name) or name == "", "the tests' own cgroup"
        assert not keeper.is_in("x.scope")
    finally:
        keeper.kill()
        os.close(keeper.said_fd)
    assert not keeper.is_in(name)


def test_why_a_scope_did_not_come_up_can_be_read(program: Program) -> None:
    program("systemd-run", "echo first >&2; echo 'Access denied' >&2; exit 1")
    keeper = USERS.start_scope("x.scope", "Words")
    until("its end", keeper.has_failed)
    assert keeper.why() == "Access denied"
    os.close(keeper.said_fd)


def test_a_process_goes_on_in_a_scope_with_its_pid_and_descriptors(program: Program) -> None:
    given = program("systemd-run", 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.set_inheritable(into, True)
        try:
            USERS.become_scope(["sh", "-c", f"echo $$ > /proc/self/fd/{into}"])
        finally:
            os._exit(1)
    os.close(into)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(os.read(out, 100)) == pid
    os.close(out)
    scope = "--user --scope --quiet --collect --slice=drfd.slice"
    assert given.read_text().splitlines()[0] == f"{scope} true", "tried out first"


def test_where_no_scope_can_be_had_a_process_goes_on_as_it_was(program: Program) -> None:
    program("systemd-run", "echo 'Access denied' >&2; exit 1")
    with pytest.raises(NoAnswer, match="systemd-run: Access denied"):
        USERS.become_scope(["false"])


def test_a_sleeper_holds_nothing_of_ours() -> None:
    """It may outlive us by days."""
    pid = detect.sleep()
    try:
        until("its sleep", lambda: b"sleep" in cmdline(pid))
        # While it begins, it has libraries open, and its language.
        until("no other", lambda: open_files(pid) == {"/dev/null"}, lambda: open_files(pid))
        assert (os.getsid(pid), os.readlink(f"/proc/{pid}/cwd")) == (pid, "/")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not lives(pid)


def open_files(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(str(link.readlink()))
        except FileNotFoundError:
            # Closed meanwhile.
            continue
    return found


def cmdline(pid: int) -> bytes:
    time.sleep(0.001)
    return Path(f"/proc/{pid}/cmdline").read_bytes()
