"""The conditions for an environment to be trusted with root, and to be run by all users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drfd.install import probe as trust

ME = frozenset({0, os.getuid()})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """bin/python → base/python3, lib/module.py; all as they should be."""
    top = tmp_path / "top"
    for name in ("env/bin", "env/lib", "base"):
        (top / name).mkdir(parents=True)
    for name in ("base/python3", "env/lib/module.py"):
        (top / name).write_text("")
        (top / name).chmod(0o755)
    (top / "env/bin/python").symlink_to("../../base/python3")
    for path in (top, *top.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    return top


def look(tree: Path, owners: frozenset[int] = ME) -> str | None:
    env = tree / "env"
    return trust.fault_of_files([str(env / "lib")], [str(env / "bin/python")], owners, str(tree))


def test_what_only_root_can_change_is_fine(tree: Path) -> None:
    assert look(tree) is None


@pytest.mark.parametrize(
    "name", ["env/lib/module.py", "env/lib", "env/bin", "env", ".", "base", "base/python3"]
)
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777], ids=oct)
def test_what_others_can_write_is_not_on_whatever_way_it_is_reached(
    tree: Path, name: str, mode: int
) -> None:
    """The interpreter behind the link counts, and so does every directory above. A sticky one, too:
    it is no place for a service."""
    (tree / name).chmod(mode)
    found = look(tree)
    assert found is not None
    assert f"can be written by others than root (mode {mode:o})" in found
    assert os.path.normpath(tree / name) == os.path.normpath(found.split(" can be")[0])


def test_compiled_modules_need_not_be_readable_but_nobody_else_may_write_them(tree: Path) -> None:
    """Root's umask may be 077, and Python leaves them when `drfd install` itself is run."""
    cache = tree / "env/lib/__pycache__"
    cache.mkdir(mode=0o700)
    compiled = cache / "module.cpython-311.pyc"
    compiled.write_text("")
    compiled.chmod(0o600)
    assert look(tree) is None
    compiled.chmod(0o620)
    assert "can be written by others" in (look(tree) or "")


@pytest.mark.parametrize(
    ("name", "mode"), [("env/lib/module.py", 0o700), ("env", 0o700), ("base", 0o750)]
)
def test_what_users_cannot_read_is_not(tree: Path, name: str, mode: int) -> None:
    """`sudo pip` into root's home, or with a umask of 077."""
    (tree / name).chmod(mode)
    assert look(tree) == f"{tree / name} cannot be read by all users (mode {mode:o})"


def test_what_belongs_to_somebody_else_is_not(tree: Path) -> None:
    found = look(tree, frozenset({os.getuid() + 1}))
    assert found == f"{tree} belongs to uid {os.getuid()}, who could change it"


def test_a_link_that_leads_nowhere_is_not(tree: Path) -> None:
    (tree / "base/python3").unlink()
    assert look(tree) == f"{tree}/base/python3: No such file or directory"


def test_links_in_a_circle_are_no_hang(tree: Path) -> None:
    (tree / "env/bin/python").unlink()
    (tree / "env/bin/python").symlink_to("python")
    assert look(tree) is None
