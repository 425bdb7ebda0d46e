"""The journal's files: whose they are, which are refused, and the reserve released in parts."""

import errno
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.core.model import events as ev
from drfd.core.model.resources import Axes
from drfd.journal import files
from drfd.journal.files import RESERVE_PIECES, VERSION, Reserve, reported
from drfd.journal.journal import Journal
from fakes import all_events, spec

NOBODY = 65534


# -- refused, and left as they were ----------------------------------------------------------


@pytest.mark.parametrize("size", [1, 15, 16, 50, 99])
def test_the_first_bytes_of_a_journal_are_no_journal(path, size, whole):
    path.write_bytes(whole[:size])
    refused(path)


def test_a_journal_without_its_last_byte_is_refused_or_read_whole(path, whole):
    """SQLite rounds the size down to whole pages and up again; what it then reads may be wrong."""
    path.write_bytes(whole[:-1])
    try:
        with closing(Journal(path)) as journal:
            journal.load(Axes())
            assert len(all_events(journal)) == EVENTS
    except HostError as error:
        assert str(path) in error.text
    assert path.read_bytes() == whole[:-1]


@pytest.mark.parametrize("version", [VERSION + 1, 2**31 - 1])
def test_another_version_is_refused_with_both(path, whole, version):
    path.write_bytes(whole[:60] + version.to_bytes(4, "big") + whole[64:])
    error = refused(path, f"has version {version}; this drfd reads version {VERSION}")
    assert error.code == "journal-version"
    assert "install the drfd that wrote it" in error.hint


def test_another_version_is_refused_while_only_the_write_ahead_log_has_it(path):
    """Where a drfd left it that was killed before it wrote the log back into the file."""
    writer = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        f"db.execute('pragma user_version = {VERSION + 1}'); os.kill(os.getpid(), 9)"
    )
    Journal(path).close()
    subprocess.run([sys.executable, "-c", writer, str(path)])
    assert path.read_bytes()[60:64] == VERSION.to_bytes(4, "big")
    log = Path(f"{path}-wal")
    before = log.read_bytes()
    error = refused(path, f"has version {VERSION + 1}; this drfd reads version {VERSION}")
    assert error.code == "journal-version"
    assert log.read_bytes() == before


def test_an_empty_file_beside_a_write_ahead_log_is_no_new_journal(path):
    """SQLite would throw the log away, and with it what is left of the jobs."""
    path.touch()
    log = Path(f"{path}-wal")
    log.write_bytes(b"x" * 5000)
    refused(path, "is damaged")
    assert log.read_bytes() == b"x" * 5000


@pytest.mark.parametrize("version", [0, 7])
def test_somebody_elses_database_is_refused(path, version):
    """Most SQLite files carry neither version nor application id: that makes none of them ours."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("create table recipes (name text)")
        other.execute("insert into recipes values ('soup')")
        other.execute(f"pragma user_version = {version}")
        other.commit()
    refused(path, "is not a drfd journal")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_in_its_place_is_refused(path, make):
    make(path)
    with pytest.raises(HostError, match=f"{path} is not a drfd journal"):
        Journal(path)


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("update jobs set data = cast('{\"id\": 1}' as blob) where id = 1",
         lambda journal: journal.load(Axes())),
        ("update general_events set data = cast('{' as blob) where seq = 2",
         lambda journal: all_events(journal)),
        ("update jobs set events = cast('[2,\"Teleported\",{}],' as blob) where id = 1",
         lambda journal: all_events(journal)),
    ],
    ids=["a live job", "an event", "an unknown kind"],
)  # fmt: skip
def test_a_damaged_record_is_reported_with_the_files_name(open_journal, path, statement, read):
    journal = open_journal()
    fill(journal)
    damage(path, statement)
    with pytest.raises(HostError, match=str(path)):
        read(journal)


# -- a machine that says no --------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [False, True])
def test_a_journal_where_nothing_can_be_written_is_an_error_that_names_the_file(is_there):
    with as_ordinary_user() as directory:
        path = directory / "journal.sqlite"
        if is_there:
            Journal(path).close()
        before = {each.name: each.read_bytes() for each in directory.iterdir()}
        directory.chmod(0o555)
        with pytest.raises(HostError) as error:
            Journal(path)
        assert str(path) in error.value.text
        assert is_there or (
            error.value.code == "journal" and "Permission denied" in error.value.text
        )
        assert {each.name: each.read_bytes() for each in directory.iterdir()} == before


def test_a_write_that_fails_is_an_error_that_names_the_file_and_can_be_rolled_back(
    open_journal, path
):
    """A lock that another process holds stands for a disk that is full."""
    journal = open_journal()
    fill(journal)
    before = all_events(journal)
    journal._db.execute("pragma busy_timeout = 0")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(HostError, match=f"cannot write the journal {path}"):
            journal.append(ev.Drained(at_s=1.0, on=True, by="root"), None, None)
        other.execute("rollback")
    journal.rollback()
    assert all_events(journal) == before


EVENTS = 41


def fill(journal: Journal) -> None:
    ledger = journal.load(Axes())
    submitted = ev.Submitted(job_id=1, at_s=1.0, spec=spec())
    journal.append(submitted, ledger.apply(submitted), None)
    for number in range(EVENTS - 1):
        drained = ev.Drained(at_s=1.0, on=True, by="root", node=f"{number}" * 100)
        journal.append(drained, None, None)
    journal.commit()


@pytest.fixture
def whole(tmp_path) -> bytes:
    """The bytes of a good journal of several pages, closed in order."""
    path = tmp_path / "good.sqlite"
    with closing(Journal(path)) as journal:
        fill(journal)
    data = path.read_bytes()
    assert len(data) > 30_000
    path.unlink()
    return data


def refused(path: Path, words: str = "") -> HostError:
    """The error that names the file, which is byte for byte as it was."""
    before = path.read_bytes()
    with pytest.raises(HostError) as error:
        journal = Journal(path)
        # Some damage is only found by looking; then nothing may have been written before either.
        try:
            journal.load(Axes())
        finally:
            journal.close()
    assert str(path) in error.value.text
    assert words in error.value.text
    assert str(error.value).isprintable()
    assert path.read_bytes() == before
    return error.value


def damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as other:
        assert other.execute(statement).rowcount == 1
        other.commit()


@contextmanager
def as_ordinary_user() -> Iterator[Path]:
    """A directory of our own, seen without root's rights, which no access right would stop."""
    directory = Path(tempfile.mkdtemp(prefix="drfd-journal-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(directory, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o700)
        for each in directory.iterdir():
            each.unlink()
        directory.rmdir()


SIZE = 1 << 20


@pytest.fixture
def reserve(tmp_path) -> Reserve:
    return Reserve(tmp_path / "journal.reserve", SIZE)


def error_of(path: Path, cause: Exception) -> HostError:
    with pytest.raises(HostError) as caught, reported(path, "write"):
        raise cause
    return caught.value


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("it says")
    error.sqlite_errorcode = code
    return error


def test_it_takes_room_on_the_disk_and_nobody_else_may_read_it(reserve):
    assert reserve.make()
    assert reserve.size_bytes() == SIZE <= reserve.path.stat().st_blocks * 512
    assert reserve.is_whole()
    assert stat.S_IMODE(reserve.path.stat().st_mode) == 0o600
    assert not reserve.make(), "it is there"


def test_it_is_given_up_piece_by_piece_and_made_again(reserve):
    reserve.make()
    sizes = []
    while reserve.give_up():
        sizes.append(reserve.size_bytes())
    assert sizes == [SIZE - SIZE * each // RESERVE_PIECES for each in range(1, RESERVE_PIECES + 1)]
    assert not reserve.is_whole()
    assert reserve.make()
    assert reserve.is_whole()


def test_it_is_not_made_where_there_is_not_plenty_of_room(reserve, monkeypatch):
    monkeypatch.setattr(files, "free_bytes", lambda path: 4 * SIZE - 1)
    assert not reserve.make()
    assert not reserve.path.exists()


def test_a_link_in_its_place_is_not_followed(reserve, tmp_path):
    """The directory may be somebody else's than who makes it."""
    target = tmp_path / "target"
    target.write_text("kept")
    reserve.path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        reserve.make()
    assert not reserve.give_up()
    assert target.read_text() == "kept"


def test_it_is_for_a_full_disk_alone(reserve, tmp_path, monkeypatch):
    def is_called_for(cause: Exception) -> bool:
        return reserve.is_called_for(error_of(tmp_path / "journal.sqlite", cause))

    assert is_called_for(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert is_called_for(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    assert is_called_for(sqlite_error(sqlite3.SQLITE_FULL))
    assert not is_called_for(OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert not is_called_for(sqlite_error(sqlite3.SQLITE_CORRUPT))
    assert not is_called_for(ValueError("it is damaged"))
    assert not reserve.is_called_for(HostError("journal", "nobody knows why"))
    for code in (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_CANTOPEN):
        assert not is_called_for(sqlite_error(code)), "the disk has room"
    monkeypatch.setattr(files, "free_bytes", lambda path: 4096)
    for code in (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_CANTOPEN):
        assert is_called_for(sqlite_error(code))
