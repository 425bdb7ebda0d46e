"""What is known of an attempt outlives everyone who knows it; and what is told of it."""

import errno
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import (
    JOBS_STOP_FILE,
    JobsStopRecord,
    Record,
    Records,
    read_jobs_stop,
)
from drfd.launcher.confinement.interface import Counted
from drfd.launcher.protocol import CRASH, RUNNER_GONE, SHUTDOWN, STOPPED, Message
from drfd.launcher.server import reports_from
from launcher.rig import python

KEY = (41, 2)
CREATED: Record = {"uid": 1001, "boot_id": "b", "cgroup": "drfd/job-41-2"}
RECORDS: list[tuple[str, Record]] = [
    ("created", CREATED),
    ("runner", {"pid": 10, "start_ticks": 99}),
    ("launched", {"pid": 11}),
    ("launch_failed", {"text": "no \n such } program"}),
    ("exited", {"exit_code": 7, "signal": None, "cpu_s": 0.25}),
]


@pytest.fixture
def directory(tmp_path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def attempt_fd(directory) -> Iterator[int]:
    fd = attempt_files.create(directory, KEY, CREATED)
    yield fd
    os.close(fd)


def lines() -> bytes:
    """A whole attempt file."""
    return lines_of(RECORDS)


def lines_of(records: list[tuple[str, Record]]) -> bytes:
    out, into = os.pipe()
    for kind, record in records:
        attempt_files.append(into, kind, record)
    os.close(into)
    with os.fdopen(out, "rb") as file:
        return file.read()


def test_many_signals_take_the_room_of_one(directory, attempt_fd, tmp_path):
    """The launcher reads the whole file for each of them, and a user may send very many."""
    attempt_files.note_signals(directory, KEY, 2)
    attempt_files.append(attempt_fd, "exited", {"exit_code": 0})
    size_bytes = (tmp_path / "41.2").stat().st_size
    for count in range(3, 2000):
        attempt_files.note_signals(directory, KEY, count)
    assert (tmp_path / "41.2").stat().st_size == size_bytes
    known = attempt_files.read(directory, KEY)
    assert known == Records(CREATED, signalled={"count": 1999}, exited={"exit_code": 0})


def test_an_attempt_file_is_made_only_once_and_for_the_launchers_eyes(
    tmp_path, directory, attempt_fd
):
    with pytest.raises(FileExistsError):
        attempt_files.create(directory, KEY, {"uid": 0})
    assert attempt_files.read(directory, KEY) == Records(CREATED)
    assert (tmp_path / "41.2").stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(attempt_fd), "it does not reach the job"
    assert (attempt_files.file_name(KEY), attempt_files.cgroup_name(KEY)) == ("41.2", "job-41-2")


@pytest.mark.parametrize("kept", range(len(lines())))
def test_a_file_cut_short_anywhere_keeps_its_whole_lines(kept):
    part = lines()[:kept]
    # A line that lacks nothing but its end says all that it should.
    whole = dict(RECORDS[: lines()[: kept + 1].count(b"\n")])
    assert attempt_files.parse(part) == (Records(**whole) if whole else None)


DAMAGE = [b"", b"\0\0\0", b"\xff\xfe", b"{", b"[]", b"[1]", b"1", b"null", b"{}", b'"record"']


@pytest.mark.parametrize("damage", [*DAMAGE, b"[" * 9999], ids=lambda damage: repr(damage[:8]))
def test_a_line_that_cannot_be_read_is_passed_over(damage):
    first, rest = lines().split(b"\n", 1)
    found = attempt_files.parse(b"\n".join([first, damage, rest]))
    assert found == Records(**dict(RECORDS))


@given(st.integers(0, len(lines()) - 1), st.binary(max_size=8), st.integers(0, 8))
def test_no_damage_raises_or_reaches_records_before(at, put, jobs_stop):
    whole = lines()
    damaged = whole[:at] + put + whole[at + jobs_stop :]
    found = attempt_files.parse(damaged)
    intact = dict(RECORDS[: whole[:at].count(b"\n")])
    if intact:
        assert found is not None
    for kind, record in intact.items():
        assert getattr(found, kind) is not None, (kind, record)


def test_a_record_that_does_not_fit_on_the_disk_is_an_error():
    """Half a line would hide those after it: whoever writes it must know."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with pytest.raises(OSError, match=r"of .* bytes written") as raised:
        attempt_files.append(into, "launch_failed", {"text": "x" * (1 << 21)})
    assert raised.value.errno != errno.EAGAIN
    os.close(out)
    os.close(into)


def test_a_file_that_cannot_be_written_leaves_no_descriptor(tmp_path):
    """On a full disk each job that cannot start would cost the launcher one, and a lock."""
    code = """
import os, resource
from drfd.launcher import attempt_files as attempts
directory = os.open(sys.argv[1], os.O_RDONLY)
before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    attempts.create(directory, (1, 1), {"uid": 1})
except OSError as error:
    print(error.strerror, os.listdir("/proc/self/fd") == before)
"""
    command = python(code, tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("File too large True\n", "")


def test_it_is_read_as_the_unit_writes_it(tmp_path):
    """`echo BOOT_ID $(date +%s.%N)`."""
    (tmp_path / JOBS_STOP_FILE).write_text("0b5b-11 1700000000.123456789\n")
    assert read_jobs_stop(tmp_path) == JobsStopRecord("0b5b-11", 1700000000.123456789)


# -- what is told of an attempt -------------------------------------------------------------

BORN: Record = {"uid": 1, "boot_id": "b", "cgroup": "drfd/job-1-1", "at_s": 5.0, "mono_s": 6.0}
RUNNER: Record = {"pid": 10, "start_ticks": 99}
RUNNING: Record = {"pid": 11}
FAILED: Record = {"text": "there is no command x"}
ENDED: Record = {"at_s": 7.0, "mono_s": 8.0, "exit_code": 3, "signal": None, "cpu_s": 0.5}
#: What the kernel counts of it, on record and now.
COUNTED, LATE = {"cpu_us": 7}, {"cpu_us": 9}

LAUNCHED = ("launched", {"at_s": 5.0, "mono_s": 6.0, "cgroup": "drfd/job-1-1", "runner_pid": 10})
NOT_LAUNCHED = ("launch_failed", FAILED)
DONE = ("exited", ENDED | {"counters": COUNTED})
MISSING: tuple[str, Message] = ("missing", {})


def news(
    attempt: Records, *, counters: Counted, boot_id: str = "b", **facts: Any
) -> list[tuple[str, Message]]:
    """As it is told at second 9 of a boot."""
    return reports_from(attempt, at_s=9.0, boot_id=boot_id, counters=lambda: counters, **facts)


def lost(counters: Counted, loss: str = RUNNER_GONE) -> tuple[str, Message]:
    facts = {"at_s": 9.0, "mono_s": None, "exit_code": None, "signal": None}
    return "exited", facts | {"counters": counters, "loss": loss}


STARTING = Records(BORN, runner=RUNNER)
STARTED = Records(BORN, runner=RUNNER, launched=RUNNING)
#: Records → its reports while the runner lives.
SAID = [
    (STARTING, []),
    (Records(BORN, runner=RUNNER, launch_failed=FAILED), [NOT_LAUNCHED]),
    (STARTED, [LAUNCHED]),
    (Records(BORN, runner=RUNNER, launched=RUNNING, launch_failed=FAILED), [NOT_LAUNCHED]),
    # It is reported when the runner is gone, which has written more by then.
    (Records(BORN, runner=RUNNER, launched=RUNNING, exited=DONE[1]), [LAUNCHED]),
]


@pytest.mark.parametrize(("attempt", "reports"), SAID)
def test_what_is_on_record_is_said(attempt, reports):
    assert news(attempt, alive=True, jobs_stop=None, counters=LATE) == reports


@pytest.mark.parametrize(("attempt", "reports"), [said for said in SAID if said[0].is_over])
def test_an_end_on_record_stands_when_the_runner_is_gone(attempt, reports):
    found = news(attempt, alive=False, jobs_stop=None, counters=LATE)
    assert found == reports + [DONE] * (attempt.exited is not None)


@pytest.mark.parametrize("attempt", [Records(BORN), STARTING])
def test_a_runner_that_died_before_the_start_leaves_nothing(attempt):
    assert news(attempt, alive=False, jobs_stop=None, counters=LATE) == [MISSING]


@pytest.mark.parametrize("attempt", [Records(BORN), STARTING])
def test_an_attempt_of_another_boot_may_have_run(attempt):
    """A power cut may have taken the record of its start: what is missing is launched again."""
    found = news(attempt, alive=False, jobs_stop=None, counters={}, boot_id="later")
    assert found == [lost({}, CRASH)]


def test_a_runner_that_died_after_the_start_leaves_an_unknown_end():
    assert news(STARTED, alive=False, jobs_stop=None, counters=LATE) == [LAUNCHED, lost(LATE)]


@pytest.mark.parametrize("alive", [True, False])
def test_the_end_of_one_that_was_cut_short_says_nothing_of_the_job(alive):
    """It may have caught the SIGTERM and exited 0, half done."""
    ended = Records(BORN, runner=RUNNER, launched=RUNNING, exited=DONE[1] | {"exit_code": 0})
    kind, facts = lost(COUNTED, STOPPED)
    reports = [LAUNCHED, (kind, facts | {"at_s": 7.0})]
    assert news(ended, alive=alive, jobs_stop=JobsStopRecord("b", 6.5), counters=LATE) == reports


#: When all jobs were told to end, in the boot of the attempt: while it lived, and before it began.
WHILE, BEFORE = JobsStopRecord("b", 6.5), JobsStopRecord("b", 4.5)


@pytest.mark.parametrize(
    ("boot_id", "jobs_stop", "loss"),
    [
        ("b", None, RUNNER_GONE),
        ("b", BEFORE, RUNNER_GONE),
        ("b", WHILE, STOPPED),
        ("later", None, CRASH),
        ("later", BEFORE, CRASH),
        ("later", JobsStopRecord("a third", 6.5), CRASH),
        ("later", WHILE, SHUTDOWN),
    ],
)
def test_of_an_unknown_end_it_is_said_why_it_is_unknown(boot_id, jobs_stop, loss):
    """Boot ids and the time of the stop tell shutdown, power cut, stop and killed runner apart."""
    said = news(STARTED, alive=False, jobs_stop=jobs_stop, counters={}, boot_id=boot_id)
    assert said == [LAUNCHED, lost({}, loss)]
