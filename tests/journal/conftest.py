from pathlib import Path

import pytest

from drfd.journal.journal import Journal
from journal.book import Book


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def open_journal(path):
    """Open the test's journal (or another one); closed after the test."""
    opened: list[Journal] = []

    def open_it(at: Path = path) -> Journal:
        opened.append(Journal(at))
        return opened[-1]

    yield open_it
    for journal in opened:
        journal.close()


@pytest.fixture
def journal(open_journal) -> Journal:
    return open_journal()


@pytest.fixture
def book(journal) -> Book:
    return Book(journal)
