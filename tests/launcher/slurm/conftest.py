"""What tests of the Slurm launcher's parts share."""

from __future__ import annotations

import time

import pytest


class Clock:
    """The monotonic clock, which stands still between two calls of `pass_s`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made
