"""What is slow to freeze is looked at again, less and less often. Time is the test's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.core.model.job import Owner
from drfd.launcher import attempt_files
from drfd.launcher import signalling as module
from drfd.launcher.signalling import Freezing

A, B = (1, 1), (2, 1)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for key in (A, B):
        os.close(
            attempt_files.create(
                fd, key, attempt_files.created_record(Owner(uid=0), "this boot", None)
            )
        )
    yield fd
    os.close(fd)


def test_pauses_double_up_to_a_second_and_end_when_all_stands_still(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    still: set[Any] = set()
    told: list[Any] = []
    place: Any = SimpleNamespace(freeze=lambda key, attempt: key in still)
    freezing = Freezing(
        place, directory, lambda report, key: told.append((report, key)), lambda key: False
    )
    assert freezing.pause_s() is None
    freezing.freeze(A)
    pauses = []
    for _ in range(8):
        pause_s = freezing.pause_s()
        assert pause_s is not None
        pauses.append(round(pause_s, 6))
        clock.now += pause_s / 2
        freezing.run_due()
        assert freezing.pause_s() == pytest.approx(pause_s / 2), "not before it is due"
        clock.now += pause_s
        freezing.run_due()
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    freezing.freeze(B)
    freezing.discard(B)
    still.update((A, B))
    clock.now += 1.0
    freezing.run_due()
    assert told == [("frozen", A)]
    assert freezing.pause_s() is None


def test_an_attempt_that_is_gone_or_being_killed_is_not_waited_for(directory: int) -> None:
    told: list[Any] = []
    place: Any = SimpleNamespace(freeze=lambda key, attempt: False)
    freezing = Freezing(
        place, directory, lambda report, key: told.append((report, key)), lambda key: key == A
    )
    freezing.freeze(A)
    freezing.freeze((3, 1))
    assert told == [("missing", (3, 1))]
    assert freezing.pause_s() is None
