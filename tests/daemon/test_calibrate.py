"""`drfd calibrate`: lines that can be put into the configuration as they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.daemon import main as main_module
from drfd.daemon.config import DiskConfig, load
from drfd.daemon.main import main
from drfd.host.disks import NEEDED_BYTES, Speed

Captured = pytest.CaptureFixture[str]
MIB = 1 << 20


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A disk of known speed, measured at once; where it was measured."""
    seen: list[Path] = []

    def measure(directory: Path) -> Speed:
        seen.append(directory)
        return Speed(read_bps=1900 * MIB + 5, write_bps=700_000, is_direct=len(seen) < 2)

    monkeypatch.setattr(main_module, "measure", measure)
    return seen


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name in ("data", "scratch"):
        (tmp_path / name).mkdir()
    path = tmp_path / "drfd.toml"
    disks = [("data", tmp_path / "data"), ("fast", tmp_path / "scratch")]
    path.write_text(
        "".join(f'[[disk]]\nname = "{name}"\npath = "{place}"\n' for name, place in disks)
    )
    return path


def run(*words: object) -> int:
    try:
        main(["calibrate", *map(str, words)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_what_it_prints_is_a_configuration(
    fast: list[Path], config: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert run("--config", config) == 0
    said = capsys.readouterr()
    copied = tmp_path / "copied.toml"
    copied.write_text(said.out)
    rates = {"read_bps": 1900 * MIB, "write_bps": 683 << 10}
    assert load(copied).disks == (
        DiskConfig(name="data", path=f"{tmp_path}/data", **rates),
        DiskConfig(name="fast", path=f"{tmp_path}/scratch", **rates),
    )
    assert fast == [tmp_path / "data", tmp_path / "scratch"]
    assert "scratch knows no direct I/O: the page cache may make it look faster" in said.err
    assert f"in place of the [[disk]] lines of {config}" in said.err


def test_a_disk_may_be_chosen_and_a_path_be_named(
    fast: list[Path], config: Path, tmp_path: Path, capsys: Captured
) -> None:
    odd = tmp_path / "an odd one"
    odd.mkdir()
    assert run("--config", config, "--disk", "fast", "--path", odd, "--json") == 0
    found = json.loads(capsys.readouterr().out)["disks"]
    assert [(each["name"], each["path"]) for each in found] == [
        ("fast", str(tmp_path / "scratch")),
        ("an-odd-one", str(odd)),
    ]
    assert [(each["read"], each["write"], each["direct"]) for each in found] == [
        (1900 * MIB, 683 << 10, True),
        (1900 * MIB, 683 << 10, False),
    ]


def test_a_file_stands_for_its_directory(fast: list[Path], config: Path) -> None:
    assert run("--config", config, "--path", config) == 0
    assert fast == [config.parent]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--disk", "dta"),
            "drfd: there is no disk 'dta' in the configuration (disks: data, ",
        ),
        (("--path", "/no/such"), "drfd: disk such: there is no /no/such (is it mounted?)"),
    ],
)
def test_what_is_not_there_is_one_line_and_nothing_is_measured(
    fast: list[Path], config: Path, capsys: Captured, words: tuple[str, ...], said: str
) -> None:
    assert run("--config", config, *words) == 1
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1
    assert fast == []


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    system = os.statvfs(tmp_path)
    if system.f_bavail * system.f_frsize < NEEDED_BYTES:
        pytest.skip("the tests' own disk is nearly full")
    place = tmp_path / "measured"
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.mark.slow
def test_stopped_half_way_it_leaves_nothing_behind(roomy: Path) -> None:
    program = [sys.executable, "-I", "-m", "drfd.daemon", "calibrate", "--path", str(roomy)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("drfd: measuring disk measured")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert err == "drfd: stopped; nothing is left behind\n"
    assert list(roomy.iterdir()) == []
