"""What is slow to freeze is looked at again, less and less often. Time is the test's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from drfd.launcher import freezing as module
from drfd.launcher.freezing import Freezing

A, B = (1, 1), (2, 1)


def test_pauses_double_up_to_a_second_and_end_with_the_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    freezing = Freezing()
    assert (freezing.pause_s(), freezing.due()) == (None, [])
    pauses = []
    for _ in range(8):
        freezing.put_off(A)
        assert freezing.due() == []
        pause_s = freezing.pause_s()
        assert pause_s is not None
        pauses.append(round(pause_s, 6))
        clock.now += pause_s
        assert (freezing.pause_s(), freezing.due()) == (0.0, [A])
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    freezing.put_off(B)
    assert freezing.due() == [A]
    for key in (A, B, B):
        freezing.discard(key)
    assert freezing.pause_s() is None
