"""drf log: the job's output, byte for byte, as it is and as it grows."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from canned import CannedDaemon, MakeJob, Message
from cli.drf import Drf, Finish, Spawn


@pytest.fixture
def output(daemon: CannedDaemon, job: MakeJob, tmp_path: Path) -> Path:
    """The path of the job's output, which the daemon tells; nothing is there yet."""
    path = tmp_path / "job.out"
    shown = job(stdout=str(path), stderr=str(tmp_path / "job.err"))
    daemon.replies = {"show": {"job": shown, "events": []}}
    return path


class Ending:
    """A `wait` that is answered when the test says that the job has ended."""

    def __init__(self) -> None:
        self.has_come = threading.Event()

    def __call__(self, request: object) -> Message:
        self.has_come.wait(60)
        return {"done": True, "ended": []}


@pytest.fixture
def ending(daemon: CannedDaemon, output: Path) -> Ending:
    ending = Ending()
    daemon.replies["wait"] = ending
    return ending


# -- as it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello\n",
        b"no line end",
        b"\x00\xff\xfe\x1b[31m\r\n",
        bytes(range(256)) * 1000,
        b"x" * 3_000_000,
    ],
    ids=lambda data: repr(data[:10]),
)
def test_the_output_comes_byte_for_byte(
    spawn: Spawn, output: Path, daemon: CannedDaemon, data: bytes
) -> None:
    output.write_bytes(data)
    process = spawn("log", "42")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert out == data
    assert daemon.requests == [{"op": "show", "id": 42}]


def test_errors_are_another_file(drf: Drf, output: Path) -> None:
    output.write_text("output\n")
    output.with_name("job.err").write_text("errors\n")
    assert drf("log", 42).out == "output\n"
    assert drf("log", "--err", 42).out == "errors\n"


def test_a_job_that_has_not_started_has_no_output_and_a_reason(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    why = {"code": "HELD", "text": "held by alice"}
    waiting = job(state="HELD", started_at=None, stdout="/nowhere/x", reason=why)
    daemon.replies = {"show": {"job": waiting, "events": []}}
    result = drf("log", 42)
    assert (result.code, result.out, result.err) == (
        1,
        "",
        "drf: job 42 has not started: HELD: held by alice\n",
    )


def test_an_output_that_is_gone_is_said(drf: Drf, output: Path) -> None:
    result = drf("log", 42)
    assert (result.code, result.out, result.err) == (
        1,
        "",
        f"drf: the output file {output} is not there any more\n",
    )


def test_it_is_read_with_the_callers_own_rights(
    drf: Drf, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 6: the daemon never opens it."""
    output.mkdir()
    result = drf("log", 42)
    assert (result.code, result.err) == (1, f"drf: cannot read {output}: Is a directory\n")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every file")
def test_an_output_that_may_not_be_read_is_said(drf: Drf, output: Path) -> None:
    output.write_text("x")
    output.chmod(0)
    result = drf("log", 42)
    assert (result.code, result.err) == (1, f"drf: cannot read {output}: Permission denied\n")


def test_a_pipe_that_nobody_writes_does_not_hang(
    spawn: Spawn, finish: Finish, output: Path
) -> None:
    """A job's output may have been a FIFO; it has no contents to show."""
    os.mkfifo(output)
    process = spawn("log", "42")
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        raise AssertionError("it hangs in opening the pipe") from None
    result = finish(process)
    assert (result.code in (0, 1), result.out) == (True, "")
    assert result.err.count("\n") == result.code


@pytest.mark.parametrize(
    ("data", "lines", "shown"),
    [
        (b"1\n2\n3\n", 2, b"2\n3\n"),
        (b"1\n2\n3", 2, b"2\n3"),
        (b"1\n2\n3\n", 3, b"1\n2\n3\n"),
        (b"1\n2\n3\n", 9, b"1\n2\n3\n"),
        (b"1\n\n\n", 2, b"\n\n"),
        (b"1\n2\n", 0, b""),
        (b"", 5, b""),
        (b"x" * 200_000 + b"\n" + b"y" * 200_000, 1, b"y" * 200_000),
        (b"z\n" * 100_000, 70_000, b"z\n" * 70_000),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_the_last_lines_alone(
    spawn: Spawn, output: Path, data: bytes, lines: int, shown: bytes
) -> None:
    output.write_bytes(data)
    for option in ("-n", "--tail"):
        out, err = spawn("log", option, lines, "42").communicate(timeout=60)
        assert (out, err) == (shown, b"")


# -- of several jobs ---------------------------------------------------------------------------


@pytest.fixture
def outputs(daemon: CannedDaemon, job: MakeJob, tmp_path: Path) -> dict[int, Path]:
    """The outputs of three jobs; nothing is there yet."""
    paths = {number: tmp_path / f"{number}.out" for number in (7, 42, 100)}
    daemon.replies = {
        "show": lambda request: {
            "job": job(id=request["id"], stdout=str(paths[request["id"]])), "events": []
        }
    }  # fmt: skip
    return paths


def test_lines_of_several_jobs_have_the_ids_before_them(
    spawn: Spawn, finish: Finish, outputs: dict[int, Path]
) -> None:
    outputs[7].write_bytes(b"one\ntwo\n")
    outputs[42].write_bytes(b"")
    outputs[100].write_bytes(b"\nno end")
    result = finish(spawn("log", "100", "7", "42", "7"))
    assert (result.code, result.err) == (0, "")
    assert result.out == "100: \n100: no end\n7: one\n7: two\n"


def test_of_several_jobs_those_with_an_output_are_shown(
    spawn: Spawn, finish: Finish, outputs: dict[int, Path]
) -> None:
    outputs[42].write_bytes(b"here\n")
    result = finish(spawn("log", "7", "42"))
    assert (result.code, result.out) == (1, "42: here\n")
    assert result.err == f"drf: the output file {outputs[7]} is not there any more\n"


def test_several_jobs_are_followed_line_by_line_until_all_have_ended(
    spawn: Spawn, finish: Finish, outputs: dict[int, Path], daemon: CannedDaemon, job: MakeJob
) -> None:
    next_end = threading.Semaphore(0)
    ends = iter([42, 7])

    def wait(request: object) -> Message:
        next_end.acquire(timeout=60)
        return {"done": True, "ended": [job(id=next(ends))]}

    daemon.replies["wait"] = wait
    outputs[7].write_bytes(b"half ")
    outputs[42].write_bytes(b"one\n")
    process = spawn("log", "-f", "7", "42")
    assert read(process, 8) == b"42: one\n"
    append(outputs[7], b"a line\n")
    assert read(process, 15) == b"7: half a line\n"
    append(outputs[42], b"last")
    next_end.release()
    assert read(process, 9) == b"42: last\n"
    append(outputs[7], b"end\n")
    next_end.release()
    result = finish(process)
    assert (result.code, result.out, result.err) == (0, "7: end\n", "")
    assert daemon.asked("wait") == [
        {"op": "wait", "ids": [7, 42], "any": True},
        {"op": "wait", "ids": [7]},
    ]


def test_how_a_job_ended_that_did_not_complete_follows_its_output(
    drf: Drf, output: Path, daemon: CannedDaemon, job: MakeJob
) -> None:
    """The output is where one looks first, and a job at its time limit has not written why."""
    over = {"code": "TIMEOUT", "text": "it ran for its limit of 1m00s"}
    ended = job(state="TIMEOUT", outcome=over, stdout=str(output))
    daemon.replies = {"show": {"job": ended, "events": []}}
    output.write_text("start\n")
    result = drf("log", 42)
    assert (result.code, result.out) == (0, "start\n")
    assert result.err == "drf: job 42 TIMEOUT: it ran for its limit of 1m00s\n"


def test_of_a_line_that_is_overwritten_the_last_text_is_shown_with_the_id(
    spawn: Spawn, finish: Finish, outputs: dict[int, Path]
) -> None:
    outputs[7].write_bytes(b" 10%\r 50%\r100%\nCRLF\r\n")
    outputs[42].write_bytes(b"\r 1 of 2\r 2 of 2")
    result = finish(spawn("log", "7", "42"))
    assert (result.out, result.err) == ("7: 100%\n7: CRLF\n42:  2 of 2\n", "")


def test_of_a_group_only_live_jobs_are_followed(
    drf: Drf, spawn: Spawn, outputs: dict[int, Path], daemon: CannedDaemon, job: MakeJob
) -> None:
    over = {"code": "COMPLETED", "text": ""}
    rows = [job(id=number, state="COMPLETED", outcome=over) for number in (7, 100)]
    daemon.replies["hello"] = {"user": "alice"}
    daemon.replies["status"] = {"jobs": rows, "counts": {}, "draining": False, "after": None}
    for path in outputs.values():
        path.write_text("text\n")
    result = drf("log", "-f", "-g", "enc")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("drf: no job of yours in the group enc runs")
    rows.append(job(id=42))
    daemon.replies["wait"] = {"done": True, "ended": []}
    result = drf("log", "-f", "-g", "enc")
    assert (result.code, result.out) == (0, "text\n")
    assert result.err == "drf: 2 ended jobs of the group enc left out (drf log -g enc shows them)\n"


# -- as it grows -------------------------------------------------------------------------------


def read(process: subprocess.Popen[bytes], size: int) -> bytes:
    assert process.stdout is not None
    data = b""
    while len(data) < size:
        piece = os.read(process.stdout.fileno(), size - len(data))
        assert piece, f"it ended after {data!r}"
        data += piece
    return data


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_what_is_written_comes_until_the_job_has_ended(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending, daemon: CannedDaemon
) -> None:
    output.write_bytes(b"one\n")
    process = spawn("log", "-f", "42")
    assert read(process, 4) == b"one\n"
    append(output, b"two\n")
    assert read(process, 4) == b"two\n"
    append(output, b"half")
    assert read(process, 4) == b"half"
    append(output, b" a line, then the end\n")
    ending.has_come.set()
    result = finish(process)
    assert (result.code, result.out, result.err) == (0, " a line, then the end\n", "")
    assert daemon.asked("wait") == [{"op": "wait", "ids": [42]}]


def test_an_output_that_does_not_exist_yet_is_waited_for(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending, daemon: CannedDaemon
) -> None:
    process = spawn("log", "-f", "42")
    daemon.asked("wait")
    output.write_bytes(b"late\n")
    assert read(process, 5) == b"late\n"
    ending.has_come.set()
    assert finish(process).code == 0


def test_an_output_that_was_emptied_is_read_from_its_new_start(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending
) -> None:
    output.write_bytes(b"first life\n")
    process = spawn("log", "-f", "42")
    assert read(process, 11) == b"first life\n"
    os.truncate(output, 0)
    append(output, b"second\n")
    assert read(process, 7) == b"second\n"
    ending.has_come.set()
    result = finish(process)
    assert (result.code, result.out) == (0, "")


def test_an_output_that_was_replaced_is_read_to_its_end_and_then_the_new_one(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending
) -> None:
    """As log rotation does it."""
    output.write_bytes(b"first\n")
    process = spawn("log", "-f", "42")
    assert read(process, 6) == b"first\n"
    append(output, b"last of it\n")
    output.rename(output.with_suffix(".1"))
    output.write_bytes(b"new\n")
    assert read(process, 15) == b"last of it\nnew\n"
    ending.has_come.set()
    assert finish(process).out == ""


def test_following_begins_with_the_last_lines(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending
) -> None:
    output.write_bytes(b"one\ntwo\n")
    process = spawn("log", "-f", "-n", "1", "42")
    assert read(process, 4) == b"two\n"
    append(output, b"three\n")
    assert read(process, 6) == b"three\n"
    ending.has_come.set()
    assert finish(process).out == ""


def test_following_a_job_that_waits_says_why_it_waits(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending, daemon: CannedDaemon, job: MakeJob
) -> None:
    why = {"code": "RESOURCES", "text": "needs 8 cores"}
    waiting = job(state="PENDING", started_at=None, stdout=str(output), reason=why)
    daemon.replies["show"] = {"job": waiting, "events": []}
    process = spawn("log", "-f", "42")
    assert process.stderr is not None
    assert process.stderr.readline() == b"drf: job 42 has not started: RESOURCES: needs 8 cores\n"
    output.write_bytes(b"now\n")
    assert read(process, 4) == b"now\n"
    ending.has_come.set()
    assert finish(process).code == 0


def test_a_job_that_waits_between_two_attempts_shows_what_it_has_written(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending, daemon: CannedDaemon, job: MakeJob
) -> None:
    why = {"code": "BEGIN_TIME", "text": "attempt 1 ended FAILED"}
    attempts = "attempt 2 of 3; attempt 1 ended FAILED"
    again = {"started_at": None, "attempts": attempts, "stdout": str(output)}
    daemon.replies["show"] = {"job": job(state="PENDING", reason=why, **again), "events": []}
    output.write_bytes(b"first attempt\n")
    process = spawn("log", "-f", "42")
    assert read(process, 14) == b"first attempt\n"
    ending.has_come.set()
    result = finish(process)
    assert result.err == "drf: job 42 waits to run again: BEGIN_TIME: attempt 1 ended FAILED\n"


def test_a_progress_bar_among_several_jobs_is_shown_before_its_line_ends(
    spawn: Spawn, finish: Finish, outputs: dict[int, Path], daemon: CannedDaemon
) -> None:
    ending = Ending()
    daemon.replies["wait"] = ending
    outputs[7].write_bytes(b" 10%\r 20%\r")
    outputs[42].write_bytes(b"")
    process = spawn("log", "-f", "7", "42")
    assert read(process, 8) == b"7:  20%\n"
    append(outputs[7], b" 30%\r")
    assert read(process, 8) == b"7:  30%\n"
    append(outputs[7], b"\ndone\n")
    assert read(process, 8) == b"7: done\n"
    ending.has_come.set()
    assert finish(process).out == ""


def test_following_ends_with_how_the_job_ended(
    spawn: Spawn, finish: Finish, output: Path, daemon: CannedDaemon, job: MakeJob
) -> None:
    failed = job(state="FAILED", outcome={"code": "FAILED", "text": "exit code 3"})
    daemon.replies["wait"] = {"done": True, "ended": [failed]}
    output.write_bytes(b"text\n")
    result = finish(spawn("log", "-f", "42"))
    assert (result.code, result.out) == (0, "text\n")
    assert result.err == "drf: job 42 FAILED: exit code 3\n"


def test_following_a_job_that_never_started_says_so(
    spawn: Spawn, finish: Finish, output: Path, daemon: CannedDaemon, job: MakeJob
) -> None:
    over = {"code": "CANCELLED", "text": "cancelled by alice before it started"}
    gone = job(state="CANCELLED", started_at=None, outcome=over, stdout=str(output))
    daemon.replies["show"] = {"job": gone, "events": []}
    daemon.replies["wait"] = {"done": True, "ended": [gone]}
    result = finish(spawn("log", "-f", "42"))
    why = "CANCELLED: cancelled by alice before it started"
    assert (result.code, result.out) == (1, "")
    assert result.err == f"drf: job 42 has not started: {why}\n"


def test_a_job_that_never_writes_is_followed_to_its_end(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending
) -> None:
    ending.has_come.set()
    result = finish(spawn("log", "-f", "42"))
    assert (result.code, result.out, result.err) == (0, "", "")


def test_following_outlives_a_restart_of_the_daemon(
    spawn: Spawn, finish: Finish, output: Path, daemon: CannedDaemon
) -> None:
    output.write_bytes(b"one\n")
    daemon.replies["wait"] = [None, {"done": True, "ended": []}]
    result = finish(spawn("log", "-f", "42"))
    assert (result.code, result.out, result.err) == (0, "one\n", "")
    assert len(daemon.asked("wait", times=2)) == 2


def test_following_shows_what_comes_while_the_daemon_is_away(
    spawn: Spawn, finish: Finish, output: Path, daemon: CannedDaemon
) -> None:
    """The file needs no daemon to be read."""
    second = Ending()
    daemon.replies["wait"] = [None, second]
    output.write_bytes(b"one\n")
    process = spawn("log", "-f", "42")
    assert read(process, 4) == b"one\n"
    daemon.asked("wait", times=2)
    append(output, b"two\n")
    watchdog = threading.Timer(3, second.has_come.set)
    watchdog.start()
    assert read(process, 4) == b"two\n"
    assert not second.has_come.is_set(), "it came only when the job had ended"
    second.has_come.set()
    watchdog.cancel()
    assert finish(process).code == 0


def test_following_somebody_elses_job_is_not_permitted(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies = {"show": {"job": job(user="bob", stdout=None, stderr=None)}}
    result = drf("log", "-f", 42)
    assert (result.code, result.out, result.err) == (77, "", "drf: job 42 belongs to bob\n")


def test_a_reader_that_has_enough_ends_the_following(
    spawn: Spawn, finish: Finish, output: Path, ending: Ending
) -> None:
    """`drf log -f 42 | head -1`."""
    output.write_bytes(b"one\n")
    process = spawn("log", "-f", "42")
    assert read(process, 4) == b"one\n"
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    append(output, b"two\n")
    result = finish(process)
    assert (result.code, result.err) == (0, "")
    ending.has_come.set()
