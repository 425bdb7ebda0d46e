"""What users see of jobs that are over: after a restart too, with and without root."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest

from instance import Instance

HOLD = "import time; block = bytearray(80 << 20); time.sleep(3)"


@pytest.fixture
def lived(instance: Instance) -> Instance:
    """Four jobs have ended; drfd has been restarted since."""
    for _ in range(3):
        words = ("-c", "4", "-m", "1G", "-n", "train", "-p", "A")
        instance.submit(*words, "-w", "--", sys.executable, "-c", HOLD)
    instance.drf("submit", "-p", "B", "-w", "--", "sh", "-c", "exit 127", check=False)
    instance.stop()
    return instance.start()


def test_history_finds_them(lived: Instance) -> None:
    def ids(*words: str) -> list[int]:
        return [
            job["id"] for job in json.loads(lived.drf("history", "--json", *words).stdout)["jobs"]
        ]

    assert ids() == [1, 2, 3, 4]
    assert ids("-n", "2") == [3, 4]
    assert ids("-s", "failed") == ids("-p", "B") == [4]
    assert ids("--name", "train", "--since", "1h") == ids("-p", "root.A") == [1, 2, 3]
    assert ids("--until", "yesterday") == []
    rows = list(csv.DictReader(io.StringIO(lived.drf("history", "--csv").stdout)))
    assert [row["exit_code"] for row in rows] == ["0", "0", "0", "127"]
    assert 80 << 20 < int(rows[0]["memory_peak"]) < 500 << 20


def test_report_and_why_agree_on_what_to_ask_for(lived: Instance) -> None:
    report = json.loads(lived.drf("report", "--json").stdout)
    by_name = {row["name"]: row for row in report["rows"]}
    advice = by_name["train"]["advice"]
    assert (by_name["train"]["jobs"], by_name["exit"]["advice"]) == (3, None)
    assert report["total"]["cores"]["used"] == sum(row["cores"]["used"] for row in report["rows"])
    options = advice["options"]
    assert f"next time drf submit {' '.join(options)}" in lived.drf("report").stdout
    assert f"next time: drf submit {' '.join(options)}" in lived.drf("why", 2).stdout
    assert "127 is a shell's word for: there is no such command" in lived.drf("why", 4).stdout
    again = lived.submit(*options, "-p", "A", "--", sys.executable, "-c", HOLD)
    assert lived.wait_end(again)["state"] == "COMPLETED", "what is advised is enough"


def test_a_smaller_demand_that_is_suggested_starts_at_once(instance: Instance) -> None:
    first = instance.submit("-c", "4", "-p", "A", "--", "sleep", "60")
    instance.wait_state(first, "RUNNING")
    waiting = instance.submit("-c", "8", "-p", "A", "--", "sleep", "60")
    said = instance.drf("why", waiting).stdout
    assert f"drf set -c 5 {waiting} lets it start now" in said
    instance.drf("cancel", waiting)
    instance.wait_state(instance.submit("-c", "5", "-p", "A", "--", "sleep", "60"), "RUNNING")


def test_profile_prints_a_line_that_fits(instance: Instance) -> None:
    done = instance.drf("profile", "-p", "A", "--", sys.executable, "-c", HOLD)
    words = done.stderr.splitlines()[-1].split()
    assert words[:3] == ["drf:", "drf", "submit"]
    options = words[3 : words.index("--")]
    job_id = instance.submit(*options, "-p", "A", "--", sys.executable, "-c", HOLD)
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
