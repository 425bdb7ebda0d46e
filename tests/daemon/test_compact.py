"""`drfd compact`: the journal of a daemon that does not run, written anew."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.daemon import spawn
from drfd.daemon.main import main
from drfd.journal.journal import Journal
from fakes import apply_and_append, happened, spec

Captured = pytest.CaptureFixture[str]


def compact(state: Path) -> int:
    try:
        main(["compact", "--state", str(state)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """One whose journal is mostly room that was used once."""
    (tmp_path / "controller").mkdir()
    journal = Journal(tmp_path / "controller" / "journal.sqlite")
    apply_and_append(journal, happened(ev.Submitted, 1, spec=spec()), Ledger(Axes()))
    journal.commit()
    journal.close()
    with closing(sqlite3.connect(journal.path)) as db:
        db.execute("create table ballast (data blob)")
        db.execute("insert into ballast values (zeroblob(20000000))")
        db.execute("drop table ballast")
        db.commit()
    return tmp_path


def test_it_is_as_short_as_it_can_be_and_holds_what_it_did(state: Path, capsys: Captured) -> None:
    path = state / "controller" / "journal.sqlite"
    before = path.stat().st_size / (1 << 20)
    assert before > 19
    assert compact(state) == 0
    now = path.stat().st_size >> 10
    assert capsys.readouterr().out == f"{path}: {before:.1f}M before, {now}K now\n"
    assert path.stat().st_size < 300_000
    assert not (state / "launcher").exists()
    journal = Journal(path)
    assert list(journal.load(Axes()).jobs) == [1]
    journal.close()


def test_not_while_a_daemon_runs(state: Path, capsys: Captured) -> None:
    lock = spawn.prepare(spawn.Places(state))
    before = (state / "controller" / "journal.sqlite").stat().st_size
    assert compact(state) != 0
    assert "another drfd is running" in capsys.readouterr().err
    assert (state / "controller" / "journal.sqlite").stat().st_size == before
    os.close(lock)


def test_not_where_there_is_none(tmp_path: Path, capsys: Captured) -> None:
    assert compact(tmp_path / "none") != 0
    assert capsys.readouterr().err.startswith("drfd: there is no journal ")
    assert not (tmp_path / "none").exists()
