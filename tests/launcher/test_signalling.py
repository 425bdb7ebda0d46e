"""Signals are sent once each; while they cannot be written down, later, and nothing else stops."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.core.model.job import Owner
from drfd.launcher import attempt_files
from drfd.launcher import signalling as module
from drfd.launcher.signalling import Signalling

A, B = (1, 1), (2, 1)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for key in (A, B):
        file = attempt_files.create(
            fd, key, attempt_files.created_record(Owner(uid=0), "this boot", None)
        )
        attempt_files.append(file, "running", {"pid": 1, "start_ticks": 1})
        os.close(file)
    yield fd
    os.close(fd)


@pytest.fixture
def sent() -> list[tuple[attempt_files.Key, str]]:
    return []


@pytest.fixture
def signals(directory: int, sent: list[tuple[attempt_files.Key, str]]) -> Signalling:
    place: Any = SimpleNamespace(
        signal=lambda key, attempt, number: sent.append((key, signal.Signals(number).name))
    )
    return Signalling(place, directory)


def test_what_is_told_again_is_not_sent_again(
    signals: Signalling, sent: list[tuple[attempt_files.Key, str]]
) -> None:
    for told in ((1, (10,)), (1, (10,)), (3, (10, 12, 10))):
        signals.add(A, *told)
        signals.run_due()
    assert sent == [(A, "SIGUSR1"), (A, "SIGUSR2"), (A, "SIGUSR1")]
    assert signals.pause_s() is None


def test_signals_that_wait_are_sent_in_turns_and_the_same_one_once(
    signals: Signalling, sent: list[tuple[attempt_files.Key, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was sent before the next order was read: a user's thousands of signals kept the launches
    of all others waiting, for as long as they came."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    signal_slowly = signals.confinement.signal

    def slow(key: attempt_files.Key, attempt: attempt_files.Attempt | None, number: int) -> None:
        clock.now += module._TURN_S
        signal_slowly(key, attempt, number)

    monkeypatch.setattr(signals.confinement, "signal", slow)
    for count in range(1, 9):
        signals.add(A, count, (10,) * count)
        signals.add(B, count, (10,) * count)
    assert (sent, signals.pause_s()) == ([], 0.0)
    signals.run_due()
    assert (sent, signals.pause_s()) == ([(A, "SIGUSR1")], 0.0)
    signals.add(A, 9, (10,) * 9)
    signals.run_due()
    assert sent[1:] == [(B, "SIGUSR1")], "A has had its turn"
    signals.run_due()
    assert (sent[2:], signals.pause_s()) == ([(A, "SIGUSR1")], None)


def test_what_was_asked_for_before_the_end_is_sent_before_it(
    signals: Signalling, sent: list[tuple[attempt_files.Key, str]], directory: int
) -> None:
    signals.add(A, 1, (10,))
    attempt = attempt_files.read(directory, A)
    assert attempt is not None
    signals.terminate(A, attempt)
    assert [name for _, name in sent] == ["SIGUSR1", "SIGTERM", "SIGCONT"]
    signals.run_due()
    assert len(sent) == 3


def test_while_it_cannot_be_written_down_it_waits_and_is_sent_once(
    signals: Signalling, sent: list[tuple[attempt_files.Key, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    note = attempt_files.note_signals

    def full(dir_fd: int, key: attempt_files.Key, count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(attempt_files, "note_signals", full)
    signals.add(A, 1, (10,))
    signals.run_due()
    signals.add(A, 2, (10, 12))
    signals.add(B, 1, (15,))
    signals.run_due()
    assert (sent, signals.pause_s()) == ([], pytest.approx(1.0))
    clock.now += 0.5
    signals.run_due()
    assert (sent, signals.pause_s()) == ([], pytest.approx(0.5))
    clock.now += 0.5
    signals.run_due()
    assert (sent, signals.pause_s()) == ([], pytest.approx(1.0)), "it is still full"
    monkeypatch.setattr(attempt_files, "note_signals", note)
    clock.now += 1.0
    signals.run_due()
    assert sent == [(A, "SIGUSR1"), (A, "SIGUSR2"), (B, "SIGTERM")]
    clock.now += 5.0
    signals.run_due()
    assert (len(sent), signals.pause_s()) == (3, None)


#: In a mount namespace of its own: a disk of 16 KiB, which is full before the signal is asked for.
FULL = """
import os, sys
from types import SimpleNamespace
from drfd.core.model.job import Owner
from drfd.launcher import attempt_files as attempts
from drfd.launcher.signalling import Signalling

os.chdir(sys.argv[1])
fd = os.open(".", os.O_RDONLY)
file = attempts.create(fd, (1, 1), attempts.created_record(Owner(uid=0), "b", None))
attempts.append(file, "running", {"pid": 1, "start_ticks": 1})
# To the last byte of its page, so that one line more needs another page.
os.write(file, b"x" * (4095 - os.fstat(file).st_size) + b"\\n")
filler = os.open("filler", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(filler, b"x" * 4096)
except OSError as error:
    print(error.strerror)
sent = []
place = SimpleNamespace(signal=lambda key, attempt, number: sent.append(number))
signals = Signalling(place, fd)
signals.add((1, 1), 1, (10,))
signals.run_due()
print(sent)
os.unlink("filler")
os.close(filler)
signals._due_mono_s = 0.0
signals.run_due()
signals.run_due()
print(sent, signals.pause_s())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a disk")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_on_a_disk_that_is_really_full_it_waits_too(tmp_path: Path) -> None:
    mounted = 'mount -t tmpfs -o size=16k tmpfs $1 && exec $2 -c "$3" $1'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, "sh", tmp_path, sys.executable, FULL],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "mount" in done.stderr:
        pytest.skip(f"no disk can be mounted here: {done.stderr}")
    assert done.stdout.splitlines() == ["No space left on device", "[]", "[10] None"], done.stderr
