"""What the service manager is told, and that a hang of the loop is silence."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.desk import MakeShell
from drfd.core.model.stimuli import DrainAsked
from drfd.daemon import controller
from drfd.daemon.controller import ServiceNotifier, status
from drfd.daemon.engine.engine import Work
from drfd.linux.service import Service
from fakes import ADMIN, Bench, demand, now, spec


@pytest.fixture
def ear(short: Path) -> Iterator[socket.socket]:
    """The manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(short / "notify"))
        listener.setblocking(False)
        yield listener


@pytest.fixture
def make_pulse(make_shell: MakeShell, short: Path) -> Callable[..., ServiceNotifier]:
    def make(
        *,
        watchdog_s: float | None = None,
        submit: Callable[[Work], None] | None = None,
        away_s: float | None = None,
    ) -> ServiceNotifier:
        shell = make_shell()
        manager = Service(notify_socket=str(short / "notify"), watchdog_s=watchdog_s)
        if submit is not None:
            shell.engine.submit = submit
        return ServiceNotifier(manager, shell.engine, lambda: away_s)

    return make


async def beat_until(pulse: ServiceNotifier, is_so: Callable[[], Any]) -> None:
    """Let it beat until something has come of it."""
    task = asyncio.create_task(pulse.feed_watchdog())
    await until(is_so)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.005)


def heard(ear: socket.socket) -> list[bytes]:
    words = []
    while True:
        try:
            words.append(ear.recv(1000))
        except BlockingIOError:
            return words


def test_being_ready_comes_with_how_busy(
    make_pulse: Callable[..., ServiceNotifier], ear: socket.socket
) -> None:
    make_pulse().ready()
    assert heard(ear) == [b"READY=1\nSTATUS=0 running, 0 waiting"]


def test_a_reload_says_when_it_began(
    make_pulse: Callable[..., ServiceNotifier],
    ear: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = {time.CLOCK_MONOTONIC: 7_654_321}
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    make_pulse().reloading()
    assert heard(ear) == [b"RELOADING=1\nMONOTONIC_USEC=7654"]


def test_stopping_is_said(make_pulse: Callable[..., ServiceNotifier], ear: socket.socket) -> None:
    make_pulse().stopping()
    assert heard(ear) == [b"STOPPING=1\nSTATUS=stopping; jobs run on"]


def test_the_watchdog_is_fed_again_and_again(
    make_pulse: Callable[..., ServiceNotifier], ear: socket.socket
) -> None:
    said: list[bytes] = []

    def three() -> bool:
        said.extend(heard(ear))
        return len(said) >= 3

    asyncio.run(beat_until(make_pulse(watchdog_s=0.04), three))
    assert set(said) == {b"WATCHDOG=1"}


def test_a_turn_that_does_not_end_is_silence(
    make_pulse: Callable[..., ServiceNotifier], ear: socket.socket
) -> None:
    """The loop itself still runs: that alone is no sign of life."""
    taken: list[Work] = []
    pulse = make_pulse(watchdog_s=0.04, submit=taken.append)
    asyncio.run(beat_until(pulse, lambda: len(taken) >= 3))
    assert heard(ear) == []


def test_without_a_watchdog_there_are_no_beats(
    make_pulse: Callable[..., ServiceNotifier], ear: socket.socket
) -> None:
    taken: list[Work] = []
    pauses = iter(range(5))
    pulse = make_pulse(submit=taken.append)
    asyncio.run(beat_until(pulse, lambda: next(pauses, None) is None))
    assert (taken, heard(ear)) == ([], [])


async def test_the_status_is_told_when_it_has_changed(
    make_shell: MakeShell,
    short: Path,
    ear: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "_STATUS_S", 0.01)
    shell = make_shell()
    manager = Service(notify_socket=str(short / "notify"))
    pulse = ServiceNotifier(manager, shell.engine, lambda: None)

    said: list[bytes] = []

    def told(count: int) -> bool:
        said.extend(heard(ear))
        return len(said) >= count

    task = asyncio.create_task(pulse.report_status())
    await until(lambda: told(1))
    shell.turn(DrainAsked(now(), True, ADMIN))
    await until(lambda: told(2))
    task.cancel()
    assert said == [b"STATUS=0 running, 0 waiting", b"STATUS=0 running, 0 waiting, draining"]


@pytest.mark.parametrize(("away_s", "asks"), [(None, False), (0.005, False), (0.02, True)])
async def test_a_launcher_that_stays_away_is_asked_for(
    make_pulse: Callable[..., ServiceNotifier],
    ear: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    away_s: float | None,
    asks: bool,
) -> None:
    """systemd looks for what the unit upholds when the state of that changes, and not again when
    it could not start it then: a reload of nothing is such a change."""
    monkeypatch.setattr(controller, "_STATUS_S", 0.01)
    status_text = b"STATUS=0 running, 0 waiting" + (b", the launcher is away" if away_s else b"")
    said: list[bytes] = []

    def is_told() -> bool:
        said.extend(heard(ear))
        return status_text in said

    task = asyncio.create_task(make_pulse(away_s=away_s).report_status())
    await until(is_told)
    task.cancel()
    asked = [word.partition(b"\n")[0] for word in said if not word.startswith(b"STATUS")]
    assert asked[:2] == [b"RELOADING=1", b"READY=1"] * asks


def test_the_status_counts_jobs() -> None:
    bench = Bench()
    for _ in range(3):
        bench.start()
    bench.submit(spec(asks=demand(9)))
    bench.submit(held=True)
    bench.suspend(2)
    assert status(bench.ledger) == "2 running, 2 waiting, 1 suspended"
