"""drf log: the job's output, byte for byte, as it is and as it grows."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from canned import Message
from cli.drf import Result
from cli.test_show import ARRAY


@pytest.fixture
def output(daemon, job, tmp_path) -> Path:
    """The path of the job's output, which the daemon tells; nothing is there yet."""
    path = tmp_path / "job.out"
    shown = job(uid=os.getuid(), stdout=str(path), stderr=str(tmp_path / "job.err"))
    daemon.replies = {"show": {"job": shown, "events": []}}
    return path


@pytest.fixture
def outputs(daemon, job, tmp_path) -> dict[int, Path]:
    """The outputs of three jobs; nothing is there yet."""
    paths = {number: tmp_path / f"{number}.out" for number in (7, 42, 100)}
    daemon.replies = {
        "show": lambda request: {
            "job": job(id=request["id"], uid=os.getuid(), stdout=str(paths[request["id"]])),
            "events": [],
        }
    }  # fmt: skip
    return paths


class Ending:
    """A `wait` that is answered when the test says that the job has ended."""

    def __init__(self) -> None:
        self.has_come = threading.Event()

    def __call__(self, request: object) -> Message:
        self.has_come.wait(60)
        return {"done": True, "ended": []}


@pytest.fixture
def ending(daemon, output) -> Ending:
    ending = Ending()
    daemon.replies["wait"] = ending
    return ending


# -- as it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words", "shown"),
    [
        *(
            (data, [], data)
            for data in (b"", b"hello\n", b"no line end", b"\x00\xff\xfe\x1b[31m\r\n",
                         bytes(range(256)) * 1000, b"x" * 3_000_000)
        ),
        (b"1\n2\n3\n", ["-n", 2], b"2\n3\n"),
        (b"1\n2\n3\n", ["--tail", 2], b"2\n3\n"),
        (b"1\n2\n3", ["-n", 2], b"2\n3"),
        (b"1\n2\n3\n", ["-n", 3], b"1\n2\n3\n"),
        (b"1\n2\n3\n", ["-n", 9], b"1\n2\n3\n"),
        (b"1\n\n\n", ["-n", 2], b"\n\n"),
        (b"1\n2\n", ["-n", 0], b""),
        (b"", ["-n", 5], b""),
        (b"x" * 200_000 + b"\n" + b"y" * 200_000, ["-n", 1], b"y" * 200_000),
        (b"z\n" * 100_000, ["-n", 70_000], b"z\n" * 70_000),
    ],
    ids=lambda value: repr(value)[:12],
)  # fmt: skip
def test_the_output_comes_byte_for_byte_or_its_last_lines(drf, output, daemon, data, words, shown):
    output.write_bytes(data)
    result = drf("log", *words, "42")
    assert (result.code, result.err) == (0, "")
    assert result.out.encode(errors="surrogateescape") == shown
    assert daemon.requests == [{"op": "show", "id": 42}]


def test_why_there_is_no_output_is_said(drf, daemon, output, job):
    """It is read with the caller's own rights: the daemon never opens it (promise 6)."""
    gone = f"drf: the output file {output} is not there\n"
    assert drf("log", 42) == Result(1, "", gone)
    output.mkdir()
    assert drf("log", 42) == Result(1, "", f"drf: cannot read {output}: Is a directory\n")
    why = {"code": "HELD", "text": "held by alice"}
    waiting = job(state="HELD", started_at=None, stdout="/nowhere/x", reason=why)
    daemon.replies = {"show": {"job": waiting, "events": []}}
    told = "drf: job 42 has not started: HELD: held by alice\n"
    assert drf("log", 42) == Result(1, "", told)
    daemon.replies = {"show": {"job": job(user="bob", stdout=None, stderr=None)}}
    assert drf("log", "-f", 42) == Result(77, "", "drf: job 42 belongs to bob\n")
    daemon.replies = {"show": {"array": {**ARRAY, "array_tasks": "5,9-99"}}}
    assert drf("log", 42) == Result(
        1,
        "",
        "drf: 42 is an array; each task has an output of its own "
        "(drf log 42_5; of all: drf log '42_[5,9-99]')\n",
    )


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every file")
def test_an_output_that_may_not_be_read_is_said(drf, output):
    output.write_text("x")
    output.chmod(0)
    assert drf("log", 42) == Result(1, "", f"drf: cannot read {output}: Permission denied\n")


def test_a_pipe_that_nobody_writes_does_not_hang(spawn, finish, output):
    """A job's output may have been a FIFO; it has no contents to show."""
    os.mkfifo(output)
    result = finish(spawn("log", "42"))
    assert (result.code in (0, 1), result.out) == (True, "")
    assert result.err.count("\n") == result.code


def test_lines_of_several_jobs_have_the_ids_before_them(drf, outputs):
    """Of a line that is overwritten the last text."""
    outputs[7].write_bytes(b" 10%\r 50%\r100%\nCRLF\r\n")
    outputs[42].write_bytes(b"\r 1 of 2\r 2 of 2")
    gone = f"drf: the output file {outputs[100]} is not there\n"
    found = "7: 100%\n7: CRLF\n42:  2 of 2\n"
    assert drf("log", "7", "42", "100", "7") == Result(1, found, gone)
    outputs[42].write_bytes(b"")
    outputs[100].write_bytes(b"\nno end")
    told = "100: \n100: no end\n7: 100%\n7: CRLF\n"
    assert drf("log", "100", "7", "42") == Result(0, told, "")


def test_of_a_group_only_live_jobs_are_followed(drf, outputs, daemon, job):
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
    told = "drf: 2 ended jobs of the group enc left out (drf log -g enc shows them)\n"
    assert drf("log", "-f", "-g", "enc") == Result(0, "text\n", told)


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


@pytest.mark.slow
def test_what_is_written_comes_until_the_job_has_ended(spawn, finish, output, ending, daemon):
    """Whatever becomes of the file: it comes late, is emptied, or replaced as log rotation does."""
    process = spawn("log", "-f", "42")
    assert daemon.asked("wait") == [{"op": "wait", "ids": [42]}]
    output.write_bytes(b"one\n")
    assert read(process, 4) == b"one\n"
    append(output, b"half")
    assert read(process, 4) == b"half"
    os.truncate(output, 0)
    append(output, b"2nd\n")
    assert read(process, 4) == b"2nd\n"
    append(output, b"last of it\n")
    output.rename(output.with_suffix(".1"))
    output.write_bytes(b"new\n")
    assert read(process, 15) == b"last of it\nnew\n"
    append(output, b"then the end\n")
    ending.has_come.set()
    assert finish(process) == Result(0, "then the end\n", "")


def test_several_jobs_are_followed_line_by_line_until_all_have_ended(
    spawn, finish, outputs, daemon, job
):
    """A progress bar is shown before its line ends."""
    next_end = threading.Semaphore(0)
    ends = iter([42, 7])

    def wait(request: object) -> Message:
        next_end.acquire(timeout=60)
        return {"done": True, "ended": [job(id=next(ends))]}

    daemon.replies["wait"] = wait
    outputs[7].write_bytes(b"half ")
    outputs[42].write_bytes(b" 10%\r 20%\r")
    process = spawn("log", "-f", "7", "42")
    assert read(process, 9) == b"42:  20%\n"
    append(outputs[7], b"a line\n")
    assert read(process, 15) == b"7: half a line\n"
    append(outputs[42], b"\nlast")
    next_end.release()
    assert read(process, 9) == b"42: last\n"
    append(outputs[7], b"end\n")
    next_end.release()
    assert finish(process) == Result(0, "7: end\n", "")
    assert daemon.asked("wait") == [
        {"op": "wait", "ids": [7, 42], "any": True},
        {"op": "wait", "ids": [7]},
    ]


def test_following_begins_with_the_last_lines_and_ends_with_its_reader(
    spawn, finish, output, ending
):
    """`drf log -f 42 | head -1`."""
    output.write_bytes(b"one\ntwo\n")
    process = spawn("log", "-f", "-n", "1", "42")
    assert read(process, 4) == b"two\n"
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    append(output, b"three\n")
    assert finish(process) == Result(0, "", "")
    ending.has_come.set()


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ("", b"drf: job 42 has not started: RESOURCES: needs 8 cores\n"),
        ("attempt 2 of 3; attempt 1 ended FAILED",
         b"drf: job 42 waits to run again: RESOURCES: needs 8 cores\n"),
    ],
)  # fmt: skip
def test_following_a_job_that_waits_says_why_and_shows_what_it_has_written(
    spawn, finish, output, ending, daemon, job, attempts, said
):
    why = {"code": "RESOURCES", "text": "needs 8 cores"}
    waiting = {"state": "PENDING", "started_at": None, "stdout": str(output), "reason": why}
    daemon.replies["show"] = {
        "job": job(uid=os.getuid(), attempts=attempts, **waiting),
        "events": [],
    }
    if attempts:
        output.write_bytes(b"text\n")
    process = spawn("log", "-f", "42")
    assert process.stderr is not None
    assert process.stderr.readline() == said
    output.write_bytes(b"text\n")
    assert read(process, 5) == b"text\n"
    ending.has_come.set()
    assert finish(process) == Result(0, "", "")


@pytest.mark.parametrize(
    ("changes", "text", "code", "said"),
    [
        ({"state": "FAILED", "outcome": {"code": "FAILED", "text": "exit code 3"}}, "text\n", 0,
         "drf: job 42 FAILED: exit code 3\n"),
        ({"state": "CANCELLED", "started_at": None,
          "outcome": {"code": "CANCELLED", "text": "cancelled by alice before it started"}}, "", 1,
         "drf: job 42 has not started: CANCELLED: cancelled by alice before it started\n"),
        # It never writes.
        ({}, "", 0, ""),
    ],
)  # fmt: skip
def test_following_ends_with_how_the_job_ended(drf, output, daemon, job, changes, text, code, said):
    """Also over a restart of the daemon."""
    over = job(uid=os.getuid(), stdout=str(output), **changes)
    daemon.replies = {
        "show": {"job": over, "events": []},
        "wait": [None, {"done": True, "ended": [over] if changes else []}],
    }
    if text:
        output.write_text(text)
    assert drf("log", "-f", "42") == Result(code, text, said)
    assert daemon.asked("wait") == [{"op": "wait", "ids": [42]}] * 2


def test_following_shows_what_comes_while_the_daemon_is_away(spawn, finish, output, daemon):
    """The file needs no daemon to be read."""
    second = Ending()
    daemon.replies["wait"] = [None, second]
    output.write_bytes(b"one\n")
    process = spawn("log", "-f", "42")
    assert read(process, 4) == b"one\n"
    daemon.asked("wait", times=2)
    append(output, b"two\n")
    assert read(process, 4) == b"two\n"
    second.has_come.set()
    assert finish(process).code == 0
