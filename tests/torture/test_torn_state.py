"""Torn and damaged state: it is read as far as it is true, or refused and left as it is.

A journal is cut short at every byte of what was written last, and single bits of it are flipped:
all of the log's headers, and a sample of everything else. The log is read up to its first broken
transaction. (Attempt files: tests/launcher.)
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from drfd.common.errors import HostError
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import Outcome
from drfd.core.model.resources import Axes
from drfd.journal.journal import Journal
from fakes import all_events, apply_and_append, payload, spec, tables

#: Turns that are in the file, and those that are in the log alone.
IN_FILE, IN_LOG = 6, 6
HEADER, FRAME, PAGE = 32, 24, 1024
#: The long form: every byte of the last turn.
IS_FULL = bool(os.environ.get("DRFD_TORTURE"))


@dataclass(frozen=True)
class State:
    """A journal as its writer has left it, killed in the midst of things."""

    file: bytes
    log: bytes
    #: Of the log, after each turn: how large it was then.
    ends: tuple[int, ...]
    #: The books after each turn that is in the log, and before the first of them.
    books: tuple[object, ...]
    events: int


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> State:
    path = tmp_path_factory.mktemp("whole") / "journal.sqlite"
    log = Path(f"{path}-wal")
    ends: list[int] = []
    with closing(Journal(path)) as journal:
        ledger = journal.load(Axes())
        books = []
        for number in range(1, IN_FILE + IN_LOG + 1):
            submitted = ev.Submitted(
                job_id=number, at_s=float(number), spec=spec(name=f"n{number}")
            )
            apply_and_append(journal, submitted, ledger, payload({"BULK": "b" * 300}))
            apply_and_append(
                journal, ev.Admitted(job_id=number, at_s=number + 0.5, attempt=1), ledger
            )
            if number % 3 == 0:
                failed = f"there is no command {number}"
                apply_and_append(journal, _failed(number, failed), ledger)
            journal.commit()
            if number == IN_FILE:
                journal._db.execute("pragma wal_checkpoint(truncate)")
            if number >= IN_FILE:
                ends.append(log.stat().st_size)
                books.append(tables(ledger))
        events = len(all_events(journal))
        return State(path.read_bytes(), log.read_bytes(), tuple(ends), tuple(books), events)


def _failed(number: int, text: str) -> ev.Event:
    return ev.LaunchFailed(
        job_id=number, at_s=number + 0.7, attempt=1, text=text, outcome=Outcome.LAUNCH_FAILED
    )


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory: thousands of files are written, and each is synced when it is opened."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as directory:
        yield Path(directory, "journal.sqlite")


def test_a_log_cut_short_anywhere_keeps_every_whole_turn(state, place):
    """In the last turn, in all headers, and around the ends of pages."""
    # Of the pages themselves not each byte is another case, and each costs a millisecond or two.
    cuts = {*range(state.ends[-2] - 2, len(state.log), 1 if IS_FULL else 41)}
    for start in range(HEADER, len(state.log), FRAME + PAGE):
        cuts |= {*range(start - 1, start + FRAME + 2, 1 if IS_FULL else 5)}
    for cut in sorted(cuts | {*range(HEADER + FRAME)}):
        found = opened(place, state.file, state.log[:cut])
        turns = sum(end <= cut for end in state.ends[1:])
        assert found == state.books[turns], cut


def test_a_log_with_a_flipped_bit_counts_up_to_there(state, place):
    """Every byte of every header, and a sample of the pages."""
    chance = Random(1)
    spots = {(at, bit) for at in range(HEADER) for bit in range(8)}
    for start in range(HEADER, len(state.log), FRAME + PAGE):
        bits = range(8) if IS_FULL else [chance.randrange(8)]
        spots |= {(at, bit) for at in range(start, start + FRAME) for bit in bits}
        spots |= {(start + FRAME + chance.randrange(PAGE), chance.randrange(8)) for _ in range(9)}
    for at, bit in sorted(spots):
        found = opened(place, state.file, flipped(state.log, at, bit))
        turns = sum(end <= at for end in state.ends[1:])
        assert found in (None, state.books[turns], state.books[-1]), (at, bit)


def test_a_flipped_bit_of_the_file_is_refused_or_changes_no_more_than_one_record(state, place):
    """Nobody sees a flip within a value; everybody sees a job that vanishes."""
    chance = Random(2)
    whole = whole_file(place, state)
    ids = set(job_ids(place, whole) or ())
    assert len(ids) == IN_FILE + IN_LOG
    spots = {(at, bit) for at in range(100) for bit in range(8)}
    for page in range(0, len(whole), PAGE):
        # The head of each page says where its rows are.
        spots |= {(page + chance.randrange(40), chance.randrange(8)) for _ in range(10)}
        spots |= {(page + chance.randrange(PAGE), chance.randrange(8)) for _ in range(10)}
    for at, bit in sorted(spots):
        found = job_ids(place, flipped(whole, at, bit))
        assert found is None or ids <= set(found), (at, bit)
        assert found is None or len(set(found) - ids) <= 1, (at, bit)


@pytest.mark.parametrize("size", [0, 1, 99, 100, PAGE - 1, PAGE, 2 * PAGE, -PAGE, -1])
def test_a_file_cut_short_beside_its_log_is_none(state, place, size):
    """An empty file with a log, above all: SQLite would begin anew and throw the log away."""
    found = opened(place, state.file[:size], state.log)
    assert found in (None, state.books[-1])
    if size >= 0:
        assert found is None


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def whole_file(place: Path, state: State) -> bytes:
    """The journal closed in order, without a log."""
    put(place, state.file, state.log)
    Journal(place).close()
    return place.read_bytes()


def put(place: Path, file: bytes, log: bytes) -> None:
    for each in place.parent.iterdir():
        each.unlink()
    place.write_bytes(file)
    if log:
        Path(f"{place}-wal").write_bytes(log)


def opened(place: Path, file: bytes, log: bytes) -> object | None:
    """The books that are read from them; None if they are refused, and then left as they are."""
    put(place, file, log)
    try:
        with closing(Journal(place)) as journal:
            books = journal.load(Axes())
            assert tables(books) == tables(Ledger.of_events(Axes(), all_events(journal)))
            return tables(books)
    except HostError as error:
        _check_refusal(error, place, file)
        assert Path(f"{place}-wal").read_bytes() == log
        return None


def job_ids(place: Path, file: bytes) -> list[int] | None:
    """Of all jobs that the journal knows, as the daemon asks for them; None: refused."""
    put(place, file, b"")
    try:
        with closing(Journal(place)) as journal:
            live = journal.load(Axes()).jobs
            events = {
                event.job_id for event in all_events(journal) if isinstance(event, ev.Submitted)
            }
            return sorted({*live, *events})
    except HostError as error:
        _check_refusal(error, place, file)
        return None


def _check_refusal(error: HostError, place: Path, file: bytes) -> None:
    assert str(place) in error.text and str(error).isprintable() and error.hint
    assert place.read_bytes() == file
