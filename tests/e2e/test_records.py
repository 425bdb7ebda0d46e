"""What a daemon tells of what is over: its jobs, and its account of promises."""

import csv
import io
import json
import sqlite3
import sys
from contextlib import closing
from typing import Any

import pytest

from instance import Instance, wait_for

HOLD = "import time; block = bytearray(80 << 20); time.sleep(3)"
HOLDER = ("-p", "A", "--", sys.executable, "-c", HOLD)


@pytest.mark.anew
def test_history_report_and_why_tell_of_them_also_after_a_restart(instance):
    for _ in range(3):
        instance.submit("-c", "3", "-m", "1G", "-n", "train", *HOLDER)
    instance.submit("-p", "B", "-m", "0.1G", "--", "sh", "-c", "exit 127")
    assert instance.drf("wait", 1, 2, 3, 4, check=False).returncode == 127
    instance.stop()
    instance.start()

    def ids(*words: str) -> list[int]:
        found = json.loads(instance.drf("history", "--json", *words).stdout)
        return sorted(job["id"] for job in found["jobs"])

    assert ids() == [1, 2, 3, 4]
    assert ids("-s", "failed") == [4]
    assert ids("--name", "train", "--since", "1h", "-p", "A") == [1, 2, 3]
    rows = list(csv.DictReader(io.StringIO(instance.drf("history", "--csv").stdout)))
    assert sorted(row["exit_code"] for row in rows) == ["0", "0", "0", "127"]
    peaks = [int(row["memory_peak"]) for row in rows if row["exit_code"] == "0"]
    assert all(80 << 20 < peak < 500 << 20 for peak in peaks)

    report = json.loads(instance.drf("report", "--json").stdout)
    by_name = {row["name"]: row for row in report["rows"]}
    advice = by_name["train"]["advice"]
    assert (by_name["train"]["jobs"], by_name["exit"]["advice"]) == (3, None)
    assert report["total"]["cores"]["used"] == sum(row["cores"]["used"] for row in report["rows"])
    options = advice["options"]
    assert f"next time drf submit {' '.join(options)}" in instance.drf("report").stdout
    assert f"next time: drf submit {' '.join(options)}" in instance.drf("why", 2).stdout
    assert "127 is a shell's word for: there is no such command" in instance.drf("why", 4).stdout
    assert instance.ended(*options, *HOLDER)["state"] == "COMPLETED", "what is advised is enough"


# -- the account of promises ------------------------------------------------------------------


def ledger(instance: Instance, *words: object) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(instance.drf("ledger", "--json", *words).stdout)
    return reply


def row_of(reply: dict[str, Any]) -> dict[str, Any]:
    """That of pool B: a job of A may have waited for the turn in which it started."""
    (row,) = [each for each in reply["rows"] if each["pool"] == "B"]
    return dict(row)


def test_who_waits_sees_because_of_whom_also_after_a_kill_and_a_changed_row_is_found(make_instance):
    """A job in pool A holds all cores, one in pool B waits for some."""
    contested = make_instance().start()
    contested.running("-p", "A", "-c", 9, "--", "sleep", 1000)
    contested.submit("-p", "B", "-c", 1, "--", "true")

    def waited_ms() -> int:
        return int(ledger(contested)["total"]["waited_ms"])

    wait_for("some time", lambda: waited_ms() > 1000)
    reply = ledger(contested)
    row = row_of(reply)
    assert (row["kept"], row["size"]) == (0, 0)
    assert row["promised"] == row["others"] == row["waited_ms"] * 10**9 // 2
    (pair,) = reply["pairs"]
    assert (pair["pool"], pair["by"]["pool"], pair["amount"]) == ("B", "A", row["others"])
    screen = contested.drf("ledger", "--why").stdout
    assert "1 start, 0 of them past somebody who was short" in screen
    assert "BECAUSE OF" in screen

    contested.strike("controller")
    wait_for("more time", lambda: waited_ms() > row["waited_ms"])
    again = ledger(contested)
    row = row_of(again)
    assert row["away"] > 0
    assert row["promised"] == row["others"] + row["away"]
    assert again["doubtful"] == 0

    assert "all is as it was written" in contested.drf("ledger", "--verify").stdout
    path = contested.state / "controller" / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        other = "json_set(cast(data as text), '$.at_s', at_s - 1)"
        changed = f"update events set data = cast({other} as blob) where kind = 'Admitted'"
        assert db.execute(changed).rowcount == 1
    done = contested.drf("ledger", "--verify", check=False)
    assert done.returncode == 1
    assert "another account than is stored" in done.stdout
    assert json.loads(contested.drf("ledger", "--verify", "--json", check=False).stdout)["fault"]
