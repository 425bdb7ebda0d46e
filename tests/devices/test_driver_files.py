"""Files of drivers that hang: nobody who wants to read them does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.devices import driver_files
from drfd.devices.driver_files import read_each
from drfd.devices.gpu import GpuFault
from drfd.devices.gpus import find_gpus
from drfd.devices.roster import Roster
from tests.gpu_machines import unfold


class Unkillable(subprocess.Popen[bytes]):
    """A process that waits in the kernel, where no signal reaches it."""

    started: list[subprocess.Popen[bytes]]

    def __init__(self, words: list[str], *, stdin: int, stdout: int, stderr: int) -> None:
        super().__init__(words, stdin=stdin, stdout=stdout, stderr=stderr)
        self.started.append(self)

    def kill(self) -> None:
        pass


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A driver that answers for the first file only; the readers that were started."""
    program = driver_files._READER.replace("import json", "import time, json")
    program = program.replace("flush=True)", "flush=True)\n    time.sleep(600)")
    monkeypatch.setattr(driver_files, "_READER", program)
    monkeypatch.setattr(driver_files, "_PATIENCE_S", 2.0)
    monkeypatch.setattr(driver_files._Left, "process", None)
    monkeypatch.setattr(Unkillable, "started", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Unkillable)
    yield Unkillable.started
    for reader in Unkillable.started:
        reader.terminate()
        reader.wait()


def test_each_file_has_its_content_or_its_error(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"Model: \xff\n")
    paths = [str(tmp_path / name) for name in ("odd", "none", "")]
    odd, none, directory = read_each(paths).values()
    assert odd == "Model: \ufffd\n"
    assert isinstance(none, OSError)
    assert (none.filename, none.strerror) == (paths[1], "No such file or directory")
    assert isinstance(directory, OSError)


def test_nothing_is_started_to_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert read_each([]) == {}


@pytest.mark.slow
def test_a_driver_that_hangs_is_waited_for_once(
    tmp_path: Path, hanging: list[subprocess.Popen[bytes]]
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("first", "second")]
    found = read_each(paths)
    assert found[paths[0]] == "first"
    assert isinstance(found[paths[1]], GpuFault)
    assert str(found[paths[1]]) == f"{paths[1]}: the driver does not answer"
    before_mono_s = time.monotonic()
    assert all(isinstance(each, GpuFault) for each in read_each(paths).values())
    assert time.monotonic() - before_mono_s < 1
    assert len(hanging) == 1


@pytest.mark.slow
def test_a_driver_that_has_come_back_is_asked_again(
    tmp_path: Path, hanging: list[subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "file").write_text("text")
    path = str(tmp_path / "file")
    assert read_each([path]) == {path: "text"}
    hanging[0].terminate()
    hanging[0].wait()
    assert read_each([path]) == {path: "text"}
    assert len(hanging) == 2


@pytest.mark.slow
def test_gpus_that_are_known_need_no_answer(
    tmp_path: Path, hanging: list[subprocess.Popen[bytes]]
) -> None:
    """Launches go on while the driver hangs: it has answered for the first GPU, and not for the
    second."""
    roster = Roster(unfold("two-nvidia-desktop", tmp_path))
    file = f"{tmp_path}/proc/driver/nvidia/gpus/0000:07:00.0/information"
    for _ in range(3):
        first, second = roster.look_up()
        assert (first.fault, second.fault) == ("", f"{file}: the driver does not answer")
    assert len(hanging) == 1
    assert all(gpu.fault for gpu in find_gpus(tmp_path)), "nothing was known"
