"""Failpoints: the list is true, each fires once and at whom it is told, and never unasked."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from drfd.common import failpoints

ROOT = Path(failpoints.__file__).parents[2]

REACH = """
import sys
sys.path.insert(0, sys.argv[1])
from drfd.common.failpoints import enable, reach
if sys.argv[2]:
    enable(sys.argv[2])
for name in sys.argv[3:]:
    reach(name)
    print("passed", name, flush=True)
"""


@cache
def reached() -> list[str]:
    """The names passed to `reach` anywhere in the product. A name must be a literal."""
    found = []
    for path in [*ROOT.joinpath("drfd").rglob("*.py"), *ROOT.joinpath("cli").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name == "reach":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: no literal"
                found.append(str(argument.value))
    return found


def run(
    *names: str, directory: Path | None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", REACH, str(ROOT), str(directory or ""), *names]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_the_list_names_every_failpoint_of_the_source_and_no_other() -> None:
    assert sorted(failpoints.NAMES) == sorted(set(reached()))


def test_no_failpoint_is_named_twice() -> None:
    """One name, one place: a test that arms it knows where it fires."""
    assert Counter(failpoints.NAMES).most_common(1)[0][1] == 1
    assert [name for name, count in Counter(reached()).items() if count > 1] == []


def test_without_a_directory_nothing_fires(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("self")
    done = run("a", directory=None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed a\n", "")
    assert (tmp_path / "a").exists()


def test_no_variable_of_the_environment_arms_anything(tmp_path: Path) -> None:
    """The variable of this name did: whoever could set it in root's environment named a directory
    from which root read pids to kill."""
    (tmp_path / "a").write_text("self")
    done = run("a", directory=None, env={**os.environ, "DRFD_FAILPOINTS": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed a\n", "")
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize("words", [["--launcher", "."], []], ids=["a service", "the system's"])
def test_only_a_private_instance_has_any(tmp_path: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "drfd.daemon", "serve", "--failpoints", str(tmp_path)]
    if words:
        words = [*words, "--state", str(tmp_path / "state")]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert done.returncode == 78
    assert done.stderr.endswith("--failpoints is for a private instance: give --state\n")
    assert list(tmp_path.iterdir()) == []


def test_no_unit_and_no_help_knows_of_them() -> None:
    for unit in ROOT.joinpath("systemd").iterdir():
        assert "failpoints" not in unit.read_text()
    for command in (["drfd.daemon", "serve"], ["drfd.daemon", "launcher"], ["drfd.launcher"]):
        done = subprocess.run(
            [sys.executable, "-m", *command, "--help"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0
        assert "failpoints" not in done.stdout


@pytest.mark.parametrize("there", [True, False])
def test_what_is_not_armed_does_not_fire(tmp_path: Path, there: bool) -> None:
    (tmp_path / "b").write_text("self")
    done = run("a", directory=tmp_path if there else tmp_path / "gone")
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed a\n", "")
    assert (tmp_path / "b").exists()


def test_an_armed_failpoint_kills_who_comes_there_and_only_once(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("self\n")
    first = run("a", "b", "c", directory=tmp_path)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, "passed a\n")
    assert list(tmp_path.iterdir()) == []
    second = run("a", "b", "c", directory=tmp_path)
    assert (second.returncode, second.stdout) == (0, "passed a\npassed b\npassed c\n")


def test_an_armed_failpoint_kills_the_process_it_names_and_goes_on(
    tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "a").write_text(f"{victim.pid}\n")
    done = run("a", "b", directory=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed a\npassed b\n", "")
    assert victim.wait() == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_armed_again_it_fires_again(tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "a").write_text("self")
        assert run("a", directory=tmp_path).returncode == -signal.SIGKILL
