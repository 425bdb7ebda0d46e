"""What is known of an attempt outlives everyone who knows it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drfd.launcher import attempts
from drfd.launcher.attempts import Attempt, Record
from launcher.rig import python

KEY = (41, 2)
CREATED: Record = {"uid": 1001, "boot_id": "b", "cgroup": "drfd/job-41-2"}
RECORDS: list[tuple[str, Record]] = [
    ("created", CREATED),
    ("runner", {"pid": 10, "start_ticks": 99}),
    ("running", {"pid": 11}),
    ("failed", {"text": "no \n such } program"}),
    ("ended", {"exit_code": 7, "signal": None, "cpu_s": 0.25}),
]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def attempt_fd(directory: int) -> Iterator[int]:
    fd = attempts.create(directory, KEY, CREATED)
    yield fd
    os.close(fd)


def lines() -> bytes:
    """A whole attempt file."""
    return lines_of(RECORDS)


def lines_of(records: list[tuple[str, Record]]) -> bytes:
    out, into = os.pipe()
    for kind, record in records:
        attempts.append(into, kind, record)
    os.close(into)
    with os.fdopen(out, "rb") as file:
        return file.read()


def test_records_come_back_in_the_order_they_were_written(directory: int, attempt_fd: int) -> None:
    known: dict[str, Any] = {}
    for kind, record in RECORDS:
        if kind != "created":
            attempts.append(attempt_fd, kind, record)
        known[kind] = record
        assert attempts.read(directory, KEY) == Attempt(**known)


def test_any_number_of_signals_takes_the_room_of_one(
    directory: int, attempt_fd: int, tmp_path: Path
) -> None:
    """The launcher reads the whole file for each of them, and a user may send very many."""
    # As an older drfd has written it.
    attempts.append(attempt_fd, "signalled", {"count": 1})
    attempts.note_signals(directory, KEY, 2)
    attempts.append(attempt_fd, "ended", {"exit_code": 0})
    size_bytes = (tmp_path / "41.2").stat().st_size
    for count in range(3, 2000):
        attempts.note_signals(directory, KEY, count)
    assert (tmp_path / "41.2").stat().st_size == size_bytes
    known = attempts.read(directory, KEY)
    assert known == Attempt(CREATED, signalled={"count": 1999}, ended={"exit_code": 0})


def test_an_attempt_file_is_made_only_once(directory: int, attempt_fd: int) -> None:
    with pytest.raises(FileExistsError):
        attempts.create(directory, KEY, {"uid": 0})
    assert attempts.read(directory, KEY) == Attempt(CREATED)


def test_an_attempt_file_is_for_the_launchers_eyes(tmp_path: Path, attempt_fd: int) -> None:
    assert (tmp_path / "41.2").stat().st_mode & 0o777 == 0o600


def test_an_attempt_file_does_not_reach_the_job(attempt_fd: int) -> None:
    assert not os.get_inheritable(attempt_fd)


def test_the_lock_is_seen_by_others_until_its_holder_is_gone(directory: int) -> None:
    fd = attempts.create(directory, KEY, CREATED)
    inherited = os.dup(fd)
    assert attempts.is_locked(directory, KEY)
    os.close(fd)
    assert attempts.is_locked(directory, KEY), "a fork has the descriptor still"
    os.close(inherited)
    assert not attempts.is_locked(directory, KEY)


def test_looking_at_the_lock_does_not_take_it(directory: int, attempt_fd: int) -> None:
    assert [attempts.is_locked(directory, KEY) for _ in range(3)] == [True] * 3


def test_no_file_means_no_lock_and_no_attempt(directory: int) -> None:
    assert not attempts.is_locked(directory, KEY)
    assert attempts.read(directory, KEY) is None


def test_a_removed_attempt_can_be_made_again(directory: int, attempt_fd: int) -> None:
    attempts.remove(directory, KEY)
    attempts.remove(directory, KEY)
    assert attempts.keys(directory) == []
    os.close(attempts.create(directory, KEY, CREATED))


def test_keys_are_those_of_attempt_files_alone(tmp_path: Path, directory: int) -> None:
    for name in ("10.1", "9.2", "9.10", "log", "9", "9.", ".1", "9.1.1", "9.1~", "a.1", "-1.1"):
        (tmp_path / name).write_bytes(b"")
    assert attempts.keys(directory) == [(9, 2), (9, 10), (10, 1)]


def test_every_key_names_the_file_it_comes_from(tmp_path: Path, directory: int) -> None:
    """Digits have many forms, and numbers have many spellings."""
    for name in ("٣.1", "1.٣", "01.1", "1.01"):
        (tmp_path / name).write_bytes(b"")
    assert [key for key in attempts.keys(directory) if attempts.read(directory, key) is None] == []
    assert attempts.keys(directory) == []


@pytest.mark.parametrize("kept", range(len(lines())))
def test_a_file_cut_short_anywhere_keeps_its_whole_lines(kept: int) -> None:
    part = lines()[:kept]
    # A line that lacks nothing but its end says all that it should.
    whole = dict(RECORDS[: lines()[: kept + 1].count(b"\n")])
    assert attempts.parse(part) == (Attempt(**whole) if whole else None)


DAMAGE = [b"", b"\0\0\0", b"\xff\xfe", b"{", b"[]", b"[1]", b"1", b"null", b"{}", b'"record"']


@pytest.mark.parametrize("damage", [*DAMAGE, b"[" * 9999], ids=lambda damage: repr(damage[:8]))
def test_a_damaged_line_is_passed_over_and_may_have_been_anything(damage: bytes) -> None:
    first, rest = lines().split(b"\n", 1)
    found = attempts.parse(b"\n".join([first, damage, rest]))
    assert found == Attempt(**dict(RECORDS), is_damaged=True)
    found = attempts.parse(b"\n".join([first, damage, b""]))
    assert found == Attempt(CREATED, is_damaged=True)
    assert found.may_have_run and not found.is_over


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_lets_a_program_go_again_or_tells_another_end(bit: int) -> None:
    """Of any byte: what is read is what was written, or nothing."""
    records = [*RECORDS[:3], RECORDS[4]]
    for kept in (3, 4):
        whole = lines_of(records[:kept])
        for at in range(len(whole)):
            damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            found = attempts.parse(damaged)
            assert found is not None and found.may_have_run, damaged
            for kind, record in records[:kept]:
                said = getattr(found, kind)
                # Damage to the checksum's own name makes it a field that nobody knows.
                assert said in (None, attempts.UNKNOWN) or said == {**said, **record}, damaged


def test_the_files_of_older_versions_have_no_checksums() -> None:
    old = b"".join(
        json.dumps({"record": kind, **record}).encode() + b"\n" for kind, record in RECORDS
    )
    assert attempts.parse(old) == Attempt(**dict(RECORDS))


def test_a_record_of_an_unknown_kind_is_passed_over() -> None:
    first, rest = lines().split(b"\n", 1)
    newer = b'{"record":"migrated","to":"there"}'
    assert attempts.parse(b"\n".join([first, newer, rest])) == Attempt(**dict(RECORDS))


def test_records_without_the_first_one_are_damaged() -> None:
    """Nothing was started before `created` was on record, so it has been there."""
    found = attempts.parse(lines().split(b"\n", 1)[1])
    assert found == Attempt(attempts.UNKNOWN, **dict(RECORDS[1:]), is_damaged=True)


@settings(database=None, deadline=None)
@given(st.integers(0, len(lines()) - 1), st.binary(max_size=8), st.integers(0, 8))
def test_no_damage_raises_or_reaches_the_records_before_it(at: int, put: bytes, cut: int) -> None:
    whole = lines()
    damaged = whole[:at] + put + whole[at + cut :]
    found = attempts.parse(damaged)
    intact = dict(RECORDS[: whole[:at].count(b"\n")])
    if intact:
        assert found is not None
    for kind, record in intact.items():
        assert getattr(found, kind) is not None, (kind, record)


@settings(database=None, deadline=None)
@given(st.binary(max_size=100))
def test_no_file_raises(data: bytes) -> None:
    attempts.parse(data)


def test_a_record_that_does_not_fit_on_the_disk_is_an_error() -> None:
    """Half a line would hide those after it: whoever writes it must know."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with pytest.raises(OSError, match=r"of .* bytes written") as raised:
        attempts.append(into, "failed", {"text": "x" * (1 << 21)})
    assert raised.value.errno != errno.EAGAIN
    os.close(out)
    os.close(into)


def test_a_file_that_cannot_be_written_leaves_no_descriptor(tmp_path: Path) -> None:
    """On a full disk each job that cannot start would cost the launcher one, and a lock."""
    code = """
import os, resource
from drfd.launcher import attempts
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


@pytest.mark.parametrize(
    ("kinds", "is_over", "may_have_run"),
    [
        ((), False, False),
        (("runner",), False, False),
        (("runner", "running"), False, True),
        (("runner", "failed"), True, True),
        (("runner", "running", "failed"), True, True),
        (("runner", "running", "ended"), True, True),
    ],
)
def test_what_an_attempt_says_of_its_program(
    kinds: tuple[str, ...], is_over: bool, may_have_run: bool
) -> None:
    attempt = Attempt(CREATED, **{kind: dict(RECORDS)[kind] for kind in kinds})
    assert (attempt.is_over, attempt.may_have_run) == (is_over, may_have_run)


def test_the_file_and_the_cgroup_are_named_by_job_and_attempt() -> None:
    assert (attempts.file_name(KEY), attempts.cgroup_name(KEY)) == ("41.2", "job-41-2")
