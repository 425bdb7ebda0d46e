"""Each step, done to a system in a directory of the test's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.install.steps import (
    MakeDirectory,
    MakeLink,
    Note,
    RemoveEmpty,
    RemoveFile,
    RunProgram,
    Step,
    WriteFile,
    below,
    perform,
)


def do(step: Step, root: Path) -> list[str]:
    """Twice: a step may be repeated. What was said the first time."""
    said: list[str] = []
    perform(step, root, said.append)
    perform(step, root, lambda text: None)
    return said


def test_a_file_is_whole_readable_by_all_and_its_directories_are_made(tmp_path: Path) -> None:
    assert do(WriteFile("/etc/a/b.conf", "für alle\n"), tmp_path) == ["write /etc/a/b.conf"]
    path = tmp_path / "etc/a/b.conf"
    assert path.read_text() == "für alle\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["b.conf"]


def test_a_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """Of a link too, and not of what it leads to."""
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    perform(WriteFile("/link", "new"), tmp_path, str)
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


def test_what_a_crash_has_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".file.new").write_text("half")
    perform(WriteFile("/file", "whole"), tmp_path, str)
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_leads_where_the_running_system_has_it(tmp_path: Path) -> None:
    """Also below another root."""
    said = do(MakeLink("/usr/local/bin/drf", "/opt/drfd/bin/drf"), tmp_path)
    assert said == ["link /usr/local/bin/drf to /opt/drfd/bin/drf"]
    assert os.readlink(tmp_path / "usr/local/bin/drf") == "/opt/drfd/bin/drf"


def test_a_directory_is_made_with_those_above(tmp_path: Path) -> None:
    assert do(MakeDirectory("/var/lib/drfd"), tmp_path) == ["make the directory /var/lib/drfd"]
    assert (tmp_path / "var/lib/drfd").is_dir()


def test_files_links_and_whole_directories_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("tree", "file", "link"):
        assert do(RemoveFile(f"/{name}"), tmp_path) == [f"remove /{name}"]
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"], "a link is removed, not where it leads"


def test_a_directory_is_removed_only_when_nothing_is_in_it(tmp_path: Path) -> None:
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/file").write_text("")
    for name in ("/empty", "/full", "/gone"):
        perform(RemoveEmpty(name), tmp_path, lambda text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert (tmp_path / "full/file").exists()


def test_a_program_is_run(tmp_path: Path) -> None:
    write = f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'ran').touch()"
    (said,) = do(RunProgram((sys.executable, "-c", write)), Path("/"))
    assert said.startswith(f"run {sys.executable} -c ")
    assert (tmp_path / "ran").exists()


def test_a_program_that_fails_is_one_line_with_its_first_word() -> None:
    fail = "import sys; sys.exit('Job for drfd.service failed.\\nSee journalctl.')"
    with pytest.raises(HostError) as error:
        perform(RunProgram((sys.executable, "-c", fail)), Path("/"), str)
    assert error.value.text.endswith("failed: Job for drfd.service failed.")
    with pytest.raises(HostError, match="failed: status 3"):
        perform(RunProgram((sys.executable, "-c", "raise SystemExit(3)")), Path("/"), str)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(HostError, match="cannot run /no/such/program: No such file"):
        perform(RunProgram(("/no/such/program",)), Path("/"), str)


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="cannot write /file/x: "):
        perform(WriteFile("/file/x", ""), tmp_path, str)


def test_a_note_does_nothing(tmp_path: Path) -> None:
    assert do(Note("all is well"), tmp_path) == ["note: all is well"]
    assert os.listdir(tmp_path) == []


def test_the_running_system_is_its_own_root() -> None:
    assert below(Path("/"), "/etc/x") == Path("/etc/x")
    assert below(Path("/image"), "/etc/x") == Path("/image/etc/x")


def test_a_program_that_does_not_end_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    step = RunProgram(("sleep", "1000"), limit_s=0.1, hint="the way out")
    with pytest.raises(HostError, match="sleep 1000 is not over after 0 s") as error:
        perform(step, tmp_path, str)
    assert error.value.hint == "the way out"


def test_a_program_that_fails_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="false failed: status 1") as error:
        perform(RunProgram(("false",), hint="the way out"), tmp_path, str)
    assert error.value.hint == "the way out"
