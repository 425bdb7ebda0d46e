"""`drfd check-config`: one line, and an exit code that a script can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfd.daemon.main import main

Captured = pytest.CaptureFixture[str]


def check(path: Path) -> int:
    try:
        main(["check-config", str(path)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_good_file_is_good(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "drfd.toml"
    path.write_text("[capacity]\ncores = 4\n")
    assert check(path) == 0
    assert capsys.readouterr() == (f"{path} is good\n", "")


def test_a_mistake_is_one_line_and_78(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "drfd.toml"
    path.write_text("[capacity]\ncors = 4\n")
    assert check(path) == 78
    assert capsys.readouterr() == (
        "",
        f"drfd: {path}: capacity.cors: unknown key (did you mean cores?)\n",
    )


def test_a_file_that_does_not_exist_is_78(tmp_path: Path, capsys: Captured) -> None:
    assert check(tmp_path / "none.toml") == 78
    assert capsys.readouterr().err == f"drfd: there is no configuration file {tmp_path}/none.toml\n"


def test_no_file_at_all_is_a_usage_error(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check-config"])
    assert end.value.code == 2
    assert capsys.readouterr().out == ""
