"""drf run: the terminal's descriptors go to the job, and the job's end comes back.

Each test goes both ways: the complete program's, and the light one of `drfd_cli.quick_run`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message, Refuse
from cli.drf import DRF, LIGHT_DRF, Finish, Spawn


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


@pytest.fixture(params=[DRF, LIGHT_DRF], ids=["whole", "light"])
def way(request: pytest.FixtureRequest) -> str:
    program: str = request.param
    return program


@pytest.fixture(autouse=True)
def goes_that_way(way: str, daemon: CannedDaemon) -> Iterator[None]:
    """The complete program alone writes what the daemon takes where nothing is said."""
    yield
    for submission in [each for each in daemon.requests if each["op"] == "submit"]:
        assert ("priority" in submission) == (way == DRF)


@pytest.fixture
def spawn(spawn: Spawn, way: str) -> Spawn:
    return partial(spawn, program=way)


@pytest.fixture
def attached(daemon: CannedDaemon, ended: MakeJob) -> Attached:
    return Attached(daemon, ended)


def test_the_job_has_the_terminals_own_input_output_and_errors(
    spawn: Spawn, attached: Attached
) -> None:
    process = spawn("run", "--", "cat", stdin=subprocess.PIPE)
    with attached.descriptors() as (fd_in, fd_out, fd_err):
        assert process.stdin is not None
        process.stdin.write(b"typed\n")
        process.stdin.flush()
        assert os.read(fd_in, 100) == b"typed\n"
        os.write(fd_out, b"printed\xff\n")
        os.write(fd_err, b"complained\n")
    attached.end()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"printed\xff\n", b"complained\n")


def test_the_request_is_a_submission_with_an_attachment_and_then_a_wait(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon, tmp_path: Path
) -> None:
    process = spawn("run", "-c", "2", "-n", "x", "--", "echo", "--", "a b", env={"LANG": "C.UTF-8"})
    path = attached.path()
    attached.end()
    finish(process)
    submit, wait = daemon.requests
    umask = os.umask(0o077)
    os.umask(umask)
    assert {"priority": 0, "held": False, "preemptible": False} | submit == {
        "op": "submit",
        "argv": ["echo", "--", "a b"],
        "cwd": str(tmp_path),
        "demand": {"cores_milli": 2000},
        "name": "x",
        "stderr": "drf-%j.out",
        "priority": 0,
        "umask": umask,
        "env": {
            "PATH": os.environ["PATH"],
            "TZ": "UTC",
            "LANG": "C.UTF-8",
            "DRFD_SOCKET": str(daemon.path),
        },
        "attach": path,
        "held": False,
        "preemptible": False,
    }
    assert wait == {"op": "wait", "ids": [42], "attended": True}


def test_nobody_else_can_reach_the_attachment_and_nothing_of_it_is_left(
    spawn: Spawn, finish: Finish, attached: Attached
) -> None:
    process = spawn("run", "--", "true")
    directory = Path(attached.path()).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    attached.end()
    finish(process)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("code", "status", "talk"),
    [
        ("COMPLETED", 0, ""),
        ("FAILED", 7, ""),
        ("FAILED", 139, ""),
        ("TIMEOUT", 124, "drf: job 42 TIMEOUT: words\n"),
        ("OUT_OF_MEMORY", 137, "drf: job 42 OUT_OF_MEMORY: words\n"),
        ("LAUNCH_FAILED", 125, "drf: job 42 LAUNCH_FAILED: words\n"),
        ("CANCELLED", 125, "drf: job 42 CANCELLED: words\n"),
    ],
)
def test_it_exits_as_the_job_did_and_explains_what_drfd_did(
    spawn: Spawn, finish: Finish, attached: Attached, code: str, status: int, talk: str
) -> None:
    attached.end(code, status, text="words")
    result = finish(spawn("run", "--", "true"))
    assert (result.code, result.out, result.err) == (status, "", talk)


@pytest.mark.parametrize("way", [DRF], ids=["whole"])
def test_what_is_not_kept_of_the_demand_is_said(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon
) -> None:
    daemon.replies["submit"] = {"id": 42, "notes": ["the declared memory is not watched"]}
    attached.end()
    result = finish(spawn("run", "--gres", "gpu=1,memory=20G", "--", "true"))
    assert (result.code, result.err) == (0, "drf: the declared memory is not watched\n")


def test_a_refused_job_is_a_refusal(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, refuse: Refuse, tmp_path: Path
) -> None:
    daemon.replies = {"submit": refuse("Refused", "too-big", "it could never start")}
    result = finish(spawn("run", "--", "true", env={"TMPDIR": str(tmp_path)}))
    assert (result.code, result.out, result.err) == (1, "", "drf: it could never start\n")
    assert list(tmp_path.iterdir()) == []


def waiting(job: MakeJob, code: str, text: str) -> Message:
    """The reply to `status` about a job that waits."""
    return {"jobs": [job(state="PENDING", reason={"code": code, "text": text})]}


@pytest.mark.slow
def test_a_reason_is_said_when_it_changes_and_not_with_every_figure_in_it(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies["status"] = [
        waiting(job, "RESOURCES", "needs 8 cores, 3 free"),
        waiting(job, "RESOURCES", "needs 8 cores, 4 free"),
        waiting(job, "DRAINING", "nothing is launched"),
    ]
    process = spawn("run", "--", "true")
    daemon.asked("status", times=4)
    attached.end()
    result = finish(process)
    assert result.err == (
        "drf: job 42 waits: RESOURCES: needs 8 cores, 3 free\n"
        "drf: job 42 waits: DRAINING: nothing is launched\n"
    )


def test_a_quiet_run_does_not_ask_why_it_waits(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon
) -> None:
    process = spawn("run", "-q", "--", "true")
    daemon.asked("wait")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.5)
    attached.end()
    assert finish(process).err == ""
    assert [request["op"] for request in daemon.requests] == ["submit", "wait"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_job_and_its_end_is_still_waited_for(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon, number: int
) -> None:
    process = spawn("run", "--", "sleep", "60")
    with attached.descriptors():
        process.send_signal(number)
        assert daemon.asked("cancel") == [{"op": "cancel", "select": {"ids": [42]}}]
        assert process.poll() is None
    attached.end("CANCELLED", 143)
    result = finish(process)
    assert (result.code, result.out, result.err) == (143, "", "")


def test_a_second_interrupt_leaves_at_once(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon
) -> None:
    """The job is being stopped; who presses twice does not want to see it."""
    process = spawn("run", "--", "sleep", "60")
    with attached.descriptors():
        process.send_signal(signal.SIGINT)
        daemon.asked("cancel")
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 130
    assert finish(process).err == ""
    assert len(daemon.asked("cancel")) == 1
    attached.end()


@pytest.mark.slow
def test_an_interrupt_while_the_daemon_is_away_does_not_abandon_the_job(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon, ended: MakeJob
) -> None:
    """A restart lasts a second; a job that nobody attends to would run on for days."""
    process = spawn("run", "--", "sleep", "60")
    with attached.descriptors():
        daemon.stop()
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    over = {"done": True, "ended": [ended("CANCELLED", 143)]}
    daemon.replies["wait"] = lambda request: daemon.asked("cancel") and over
    daemon.start()
    assert daemon.asked("cancel") == [{"op": "cancel", "select": {"ids": [42]}}]
    assert finish(process).code == 143


def test_a_restart_of_the_daemon_does_not_end_it(
    spawn: Spawn, finish: Finish, attached: Attached, daemon: CannedDaemon, ended: MakeJob
) -> None:
    daemon.replies["wait"] = [None, {"done": True, "ended": [ended("FAILED", 5)]}]
    result = finish(spawn("run", "--", "true"))
    assert (result.code, result.err) == (5, "")


def test_a_long_temporary_directory_is_no_obstacle(
    spawn: Spawn, finish: Finish, attached: Attached, tmp_path: Path
) -> None:
    """Build systems make TMPDIRs that are longer than what a socket's address holds."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    process = spawn("run", "--", "true", env={"TMPDIR": str(deep)})
    attached.end("FAILED", 5)
    result = finish(process)
    assert (result.code, result.err) == (5, "")


def test_an_input_that_ends_does_not_end_the_job(
    spawn: Spawn, finish: Finish, attached: Attached
) -> None:
    """`drf run -- train < /dev/null`, under cron."""
    process = spawn("run", "--", "true", stdin=subprocess.DEVNULL)
    with attached.descriptors() as (fd_in, *_):
        assert os.read(fd_in, 1) == b""
        assert process.poll() is None
    attached.end("FAILED", 5)
    assert finish(process).code == 5
