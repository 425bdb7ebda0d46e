"""The launcher and the processes that measure, which may do whatever a driver does."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drfd.launcher.gpu_meter import supervision
from drfd.launcher.gpu_meter.reading import MAX_LINE_BYTES, NVIDIA
from drfd.launcher.gpu_meter.supervision import GpuMeters
from drfd.launcher.protocol import Message
from drfd.launcher.system.background import BackgroundWork
from launcher.rig import WAIT_S, LauncherProcess, MakeLauncher, lives, state_of, until
from nvml import Nvml, a_library, needs_nvml


class Stage:
    """The launcher's loop with only these meters in it; `act` is what the process does."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pids = directory / "pids"
        self._pids.touch()
        self.selector = selectors.DefaultSelector()
        self.background = BackgroundWork(self.selector)
        self.reports: list[Message] = []
        self.longest_turn_s = 0.0
        monkeypatch.setattr(supervision, "_IS_PRESENT", {NVIDIA: lambda: True})
        self.meters = GpuMeters(self.background, self.selector, self.reports.append)
        self._patch = monkeypatch
        monkeypatch.setattr(supervision, "_PAUSE_S", 0.01)
        monkeypatch.setattr(supervision, "_MAX_PAUSE_S", 0.05)
        for meter in self.meters._meters:
            meter._pause_s = 0.01

    def act(self, work: Callable[[int], object]) -> None:
        def become(kind: str, gpus_dir: object, into: int) -> None:
            assert kind == NVIDIA
            with self._pids.open("a") as file:
                file.write(f"{os.getpid()}\n")
            work(into)

        self._patch.setattr(supervision, "_become", become)

    @property
    def pids(self) -> list[int]:
        return [int(word) for word in self._pids.read_text().split()]

    def run_until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline
            self.turn()

    def run_for(self, span_s: float) -> None:
        end_s = time.monotonic() + span_s
        while time.monotonic() < end_s:
            self.turn()

    def turn(self) -> None:
        pause_s = self.meters.pause_s()
        chosen = self.selector.select(0.05 if pause_s is None else min(0.05, pause_s))
        before_s = time.monotonic()
        for key, _ in chosen:
            if key.fd in self.selector.get_map():
                key.data()
        self.meters.run_due()
        self.longest_turn_s = max(self.longest_turn_s, time.monotonic() - before_s)

    def end(self) -> None:
        self._patch.undo()
        self.meters.turn(False)
        for meter in self.meters._meters:
            meter.stop()
        for pid in list(self.background._live):
            os.kill(pid, signal.SIGKILL)
        self.run_until(lambda: not self.background._live)


@pytest.fixture
def stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks_beside_threads: None
) -> Iterator[Stage]:
    made = Stage(tmp_path, monkeypatch)
    yield made
    made.end()


def hang(into: int) -> None:
    while True:
        signal.pause()


def test_whole_lines_become_reports_and_half_a_line_waits(stage: Stage) -> None:
    def halves(into: int) -> None:
        os.write(into, b'{"gpus":[],')
        time.sleep(0.05)
        os.write(into, b'"why":null}\nhalf')
        hang(into)

    stage.act(halves)
    stage.meters.turn(True)
    stage.run_until(lambda: stage.reports)
    stage.run_for(0.05)
    assert stage.reports == [
        {"report": "gpus", "driver": "nvidia", "line": '{"gpus":[],"why":null}'}
    ]


def test_nothing_runs_until_it_is_wanted(stage: Stage) -> None:
    stage.act(hang)
    stage.run_for(0.1)
    assert (stage.pids, stage.meters.pause_s()) == ([], None)


@pytest.mark.slow
def test_a_silent_process_is_killed_and_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once."""
    monkeypatch.setattr(supervision, "SILENT_S", 0.05)
    stage.act(hang)
    stage.meters.turn(True)
    stage.run_until(lambda: len(stage.pids) >= 3)
    stage.run_until(lambda: not lives(stage.pids[0]))
    assert [record.message for record in caplog.records] == [
        "event=gpu-meter-replaced kind=nvidia error=it was silent for 0 s"
    ]


@pytest.mark.parametrize(
    "work",
    [
        lambda into: os.write(into, b"x" * (MAX_LINE_BYTES + 2)),
        lambda into: os.close(into) or hang(into),
        lambda into: 1 // 0,
    ],
    ids=["endless", "closed", "dead"],
)
def test_a_process_that_is_of_no_use_is_replaced(
    stage: Stage, work: Callable[[int], object]
) -> None:
    stage.act(work)
    stage.meters.turn(True)
    stage.run_until(lambda: len(stage.pids) >= 3)
    stage.run_until(lambda: not lives(stage.pids[0]))
    assert stage.reports == []


def test_the_last_line_of_a_process_that_ends_is_reported(stage: Stage) -> None:
    stage.act(lambda into: os.write(into, b'{"gpus":[],"why":"no driver"}\n'))
    stage.meters.turn(True)
    stage.run_until(lambda: stage.reports)
    assert stage.reports[0]["line"] == '{"gpus":[],"why":"no driver"}'


@pytest.mark.slow
def test_a_flood_of_lines_costs_one_report_a_second(stage: Stage) -> None:
    def flood(into: int) -> None:
        while True:
            os.write(into, b"{}\n" * 1000)

    stage.act(flood)
    stage.meters.turn(True)
    began_s = time.monotonic()
    stage.run_for(1.3)
    assert 1 <= len(stage.reports) <= 1 + (time.monotonic() - began_s)
    assert len(stage.pids) == 1


@pytest.mark.slow
def test_processes_that_cannot_be_killed_are_left_and_no_more_than_three(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's call that does not return: the kill stays without effect until it does."""
    monkeypatch.setattr(supervision, "SILENT_S", 0.02)
    kills: list[int] = []
    monkeypatch.setattr(stage.background, "kill", kills.append)
    stage.act(hang)
    stage.meters.turn(True)
    stage.run_until(lambda: len(kills) == len(stage.pids) == 3)
    stage.run_for(0.3)
    assert len(stage.pids) == len(kills) == 3
    assert stage.meters.pause_s() is None
    os.kill(kills[0], signal.SIGKILL)
    stage.run_until(lambda: len(stage.pids) == 4)


@pytest.mark.slow
def test_when_it_is_turned_off_reports_end_at_once_and_the_process_a_while_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that restarts finds the process that it left."""

    def talk(into: int) -> None:
        while True:
            os.write(into, b"{}\n")
            time.sleep(0.01)

    stage.act(talk)
    stage.meters.turn(True)
    stage.run_until(lambda: stage.reports)
    stage.meters.turn(False)
    count = len(stage.reports)
    stage.run_for(0.1)
    assert len(stage.reports) <= count
    stage.meters.turn(True)
    monkeypatch.setattr(supervision, "_LINGER_S", 0.1)
    stage.run_for(0.5)
    assert len(stage.pids) == 1
    assert lives(stage.pids[0])
    count = len(stage.reports)
    stage.meters.turn(False)
    stage.run_until(lambda: not lives(stage.pids[0]))
    stage.run_for(0.1)
    assert len(stage.pids) == 1
    assert len(stage.reports) == count
    assert stage.meters.pause_s() is None


# -- the launcher as a program ------------------------------------------------------------------

_PRESENT = (
    "from drfd.launcher.gpu_meter import supervision as s; "
    "s._IS_PRESENT = {'nvidia': lambda: True, 'drm': lambda: False}\n"
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    with a_library() as nvml:
        for name, value in nvml.environ.items():
            monkeypatch.setenv(name, value)
        yield nvml


@pytest.fixture
def launcher(make_launcher: MakeLauncher, tmp_path: Path, answers: Nvml) -> LauncherProcess:
    made = make_launcher(tmp_path / "state")
    made.start(prelude=_PRESENT)
    return made


@needs_nvml
@pytest.mark.slow
def test_a_launcher_measures_for_a_controller_that_asks(
    launcher: LauncherProcess, answers: Nvml
) -> None:
    answers.answer("gpu 0000:01:00 GPU-a 1000 400 35 0")
    controller = launcher.connect()
    controller.send({"cmd": "measure-gpus", "on": True})
    report = controller.take("gpus", driver="nvidia")
    gpus = json.loads(report["line"])["gpus"]
    assert [(each["uuid"], each["memory_used"]) for each in gpus] == [("GPU-a", 400)]


@needs_nvml
@pytest.mark.slow
def test_a_hanging_driver_does_not_delay_the_launcher_and_ends_with_it(
    launcher: LauncherProcess, answers: Nvml
) -> None:
    answers.answer("hang nvmlInitWithFlags")
    controller = launcher.connect()
    controller.send({"cmd": "measure-gpus", "on": True})
    pid = until("a process that measures", lambda: _meter_of(controller.peer_pid))
    assert [each["report"] for each in controller.list()] == ["listed"]
    launcher.kill()
    until("its end", lambda: not lives(pid))


def _meter_of(launcher: int) -> int | None:
    """The process that measures, once it waits: the library's call does not return."""
    for word in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            command = Path(f"/proc/{word}/cmdline").read_bytes()
        except OSError:
            continue
        if b"drfd.launcher.gpu_meter" in command and state_of(int(word)) == "S":
            return int(word)
    return None
