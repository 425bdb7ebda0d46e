"""How fast a disk is, and that the measuring leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.errors import HostError
from drfd.host import speed
from drfd.host.speed import ROOM_BYTES, Speed, measure


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of everything: these tests are not about the figures."""
    for name, value in (("_LEAST_BYTES", 16 << 20), ("_MOST_BYTES", 32 << 20), ("_LEAST_S", 0.01)):
        monkeypatch.setattr(speed, name, value)


@pytest.fixture
def roomy(tmp_path: Path) -> Path:
    system = os.statvfs(tmp_path)
    if system.f_bavail * system.f_frsize < ROOM_BYTES:
        pytest.skip("the tests' own disk is nearly full")
    return tmp_path


@pytest.mark.usefixtures("short")
def test_it_is_told_in_bytes_per_second_and_nothing_is_left(roomy: Path) -> None:
    begin_s = time.monotonic()
    found = measure(roomy)
    passed_s = time.monotonic() - begin_s
    # 16 MiB at least, each way, within the time that all of it took.
    assert found.read_bps > (16 << 20) / passed_s / 2
    assert found.write_bps > (16 << 20) / passed_s / 2
    assert list(roomy.iterdir()) == []


@pytest.mark.usefixtures("short")
def test_where_all_files_have_names_it_has_none_at_once(
    roomy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What kernels do without the flag: they open the directory itself, and may not write it.
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    seen: list[list[Path]] = []
    measured = speed._measure

    def look(fd: int, size: int) -> Speed:
        seen.append(list(roomy.iterdir()))
        return measured(fd, size)

    monkeypatch.setattr(speed, "_measure", look)
    assert measure(roomy).write_bps > 0
    assert seen == [[]]


@pytest.mark.usefixtures("short")
def test_where_direct_io_is_refused_it_is_measured_without_and_said(
    roomy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = fcntl.fcntl

    def refuse(fd: int, command: int, flags: int = 0) -> Any:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return control(fd, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    found = measure(roomy)
    assert not found.is_direct
    assert found.read_bps > 0


def test_without_room_it_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = ROOM_BYTES // 4096 - 1
    small = SimpleNamespace(f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(HostError) as error:
        measure(tmp_path)
    assert error.value.text == f"{tmp_path}: 512M is free, and measuring takes 512M"
    assert "--path" in error.value.hint


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError) as error:
        measure(tmp_path / "none")
    assert error.value.text == f"{tmp_path}/none cannot be measured: No such file or directory"
