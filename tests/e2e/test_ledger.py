"""The account of promises of a daemon that runs, is killed, and is looked at with `drf ledger`."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from instance import ALONE, CONFIG, Instance, wait_for


@pytest.fixture
def contested(make_instance: Any) -> Instance:
    """A job in pool A holds all cores, one in pool B waits for some."""
    instance: Instance = make_instance(CONFIG + ALONE).start()
    instance.wait_state(instance.submit("-p", "A", "-c", 9, "--", "sleep", 1000), "RUNNING")
    instance.submit("-p", "B", "-c", 1, "--", "true")
    return instance


def ledger(instance: Instance, *words: object) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(instance.drf("ledger", "--json", *words).stdout)
    return reply


def row_of(reply: dict[str, Any]) -> dict[str, Any]:
    """That of pool B: a job of A may have waited for the turn in which it started."""
    (row,) = [each for each in reply["rows"] if each["pool"] == "B"]
    return dict(row)


def waited_ms(instance: Instance) -> int:
    return int(ledger(instance)["total"]["waited_ms"])


def test_who_waits_sees_because_of_whom_also_after_a_kill(contested: Instance) -> None:
    wait_for("some time", lambda: waited_ms(contested) > 1000)
    reply = ledger(contested)
    row = row_of(reply)
    assert (row["kept"], row["size"]) == (0, 0)
    assert row["promised"] == row["others"] == row["waited_ms"] * 10**9 // 2
    (pair,) = reply["pairs"]
    assert (pair["pool"], pair["by"]["pool"], pair["amount"]) == ("B", "A", row["others"])
    contested.kill()
    contested.start()
    wait_for("more time", lambda: waited_ms(contested) > row["waited_ms"])
    again = ledger(contested)
    row = row_of(again)
    assert row["away"] > 0
    assert row["promised"] == row["others"] + row["away"]
    assert again["doubtful"] == 0


def test_what_is_printed_is_what_was_asked_for(contested: Instance) -> None:
    wait_for("some time", lambda: waited_ms(contested) > 1000)
    screen = contested.drf("ledger", "--why").stdout
    assert [line.split()[0] for line in screen.splitlines() if line.strip()][:1] == ["USER"]
    assert "1 start, 0 of them past somebody who was short" in screen
    assert "BECAUSE OF" in screen
    rows = [*csv.DictReader(io.StringIO(contested.drf("ledger", "--csv").stdout))]
    assert [row["kept"] for row in rows if row["pool"] == "B"] == ["0"]
    assert ledger(contested, "--until", "2020-01-01")["hours"] == 0


def test_a_changed_row_is_found(contested: Instance) -> None:
    wait_for("some time", lambda: waited_ms(contested) > 0)
    contested.kill()
    contested.start()
    done = contested.drf("ledger", "--verify")
    assert "all is as it was written" in done.stdout
    path = contested.state / "controller" / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("update events set at_s = at_s - 1 where seq = 3")
    done = contested.drf("ledger", "--verify", check=False)
    assert done.returncode == 1
    assert "event 3 " in done.stdout and "the account is not what it was" in done.stdout
    assert json.loads(contested.drf("ledger", "--verify", "--json", check=False).stdout)["fault"]
