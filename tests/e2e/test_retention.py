"""The daemon forgets what ended long ago, and its journal gets shorter on the disk."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from instance import Instance, wait_for


def test_old_jobs_go_and_the_file_shrinks_and_ids_go_on(instance: Instance) -> None:
    """The journal only ever grew."""
    journal = instance.state / "controller" / "journal.sqlite"
    # Other words each time, or they would stand there once.
    for number in range(25):
        words = [f"{number}" + "x" * 90_000] * 4
        instance.submit("--hold", "--", "true", *words)
    instance.drf("cancel", *range(1, 26))
    instance.stop()
    before = journal.stat().st_size
    assert before > 8 << 20
    with instance.config.open("a") as file:
        file.write('[history]\nkeep = "1s"\n')
    instance.start()

    def left() -> list[int]:
        shown = json.loads(instance.drf("history", "--json").stdout)
        return [job["id"] for job in shown["jobs"]]

    wait_for("the old jobs to be gone", lambda: left() == [25], show=left)
    wait_for("the file to shrink", lambda: used(instance) < before / 3)
    instance.stop()
    assert journal.stat().st_size < before / 3
    instance.start()
    assert instance.submit("--", "true") == 26


def used(instance: Instance) -> int:
    """With what stands in the log only; the file itself is cut when that is written back."""
    path = instance.state / "controller" / "journal.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        (pages,) = db.execute("pragma page_count").fetchone()
    return int(pages) * 4096
