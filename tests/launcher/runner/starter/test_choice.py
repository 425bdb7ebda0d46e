"""The compiled program is used only where nobody else can have written it, and if it is the one."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drfd.launcher import main
from drfd.launcher.runner.starter.choice import choose
from drfd.launcher.runner.starter.compiled import Compiled
from drfd.launcher.runner.starter.forked import Forked
from drfd.launcher.runner.starter.sources import HERE, SOURCES, compile_starter
from starters import VARIABLE

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot give files away")


@pytest.fixture
def program(starter: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(starter, tmp_path / "drfd-starter"))


CHOOSE = """
import os, sys
from pathlib import Path
from drfd.launcher.runner.starter.choice import choose
from drfd.launcher.runner.starter.forked import Forked
before = set(os.listdir("/proc/self/fd"))
found = choose(Path(sys.argv[1]))
assert isinstance(found, Forked), found.about
assert set(os.listdir("/proc/self/fd")) == before, "nothing stays open"
print(found.why)
"""


def refused(program: Path) -> str:
    """In a process of its own, where nobody else opens a file meanwhile."""
    command = [sys.executable, "-c", CHOOSE, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_of_these_sources_is_used(program: Path) -> None:
    found = choose(program)
    assert isinstance(found, Compiled)
    assert found.about == "it is begun by a compiled program"
    (fd,) = found.descriptors
    assert os.readlink(f"/proc/self/fd/{fd}") == str(program)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_without_a_program_python_does_it(tmp_path: Path) -> None:
    assert refused(tmp_path / "none").startswith("no compiled starter is installed")


@pytest.mark.parametrize("mode", [pytest.param(0o775, marks=as_root), 0o757])
def test_a_program_that_others_can_write_is_not_used(program: Path, mode: int) -> None:
    program.chmod(mode)
    assert refused(program).endswith("can be written by others")


def test_a_directory_that_others_can_write_is_not_trusted(program: Path) -> None:
    program.parent.chmod(0o777)
    assert refused(program).endswith("can be written by others")
    program.parent.chmod(0o1777)
    found = choose(program)
    assert isinstance(found, Compiled), "nobody can replace it there"
    os.close(found.program_fd)


@as_root
def test_a_program_of_another_user_is_not_used(program: Path) -> None:
    os.chown(program, 65534, -1)
    assert refused(program).endswith("belongs to uid 65534")


@as_root
def test_a_directory_of_another_user_is_not_trusted(program: Path) -> None:
    os.chown(program.parent, 65534, -1)
    assert refused(program).endswith("belongs to uid 65534")


def test_what_is_no_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "drfd-starter").mkdir()
    assert refused(tmp_path / "drfd-starter").endswith("is no file")


def test_what_does_not_run_is_not_used(program: Path) -> None:
    program.chmod(0o644)
    assert refused(program).endswith("cannot be used: Permission denied")
    program.chmod(0o755)
    program.write_text("no program")
    assert refused(program).endswith("cannot be used: Exec format error")
    program.write_text("#!/none\n")
    assert refused(program).endswith("cannot be used: No such file or directory"), "it is there"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc")
def test_a_program_of_other_sources_is_not_used(tmp_path: Path) -> None:
    for name in SOURCES:
        shutil.copy(HERE / name, tmp_path / name)
    with (tmp_path / "calls.h").open("a") as file:
        file.write("/* changed */\n")
    compile_starter(tmp_path / "drfd-starter", directory=tmp_path)
    assert "of other sources" in refused(tmp_path / "drfd-starter")


def test_only_a_launcher_under_test_takes_the_word_of_its_environment(
    starter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "choose", lambda *named: ("chosen", *named))
    monkeypatch.setenv(VARIABLE, str(starter))
    assert main._starter(argparse.Namespace(failpoints=None)) == ("chosen",)
    tested = argparse.Namespace(failpoints="/run/failpoints")
    assert main._starter(tested) == ("chosen", starter)
    monkeypatch.setenv(VARIABLE, "")
    assert isinstance(main._starter(tested), Forked)
    monkeypatch.delenv(VARIABLE)
    assert main._starter(tested) == ("chosen",)
