"""Deleting a tree that somebody else has filled: nothing outside it is touched, however deep."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from drfd.launcher.system.cleanup import remove_tree


def remove(path: Path) -> bool:
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return remove_tree(path.name, above, time.monotonic() + 300)
    finally:
        os.close(above)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    top.mkdir()
    return top


def test_files_of_every_kind_are_deleted(tree: Path) -> None:
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "link").symlink_to("b")
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "a" / "pipe")
    assert remove(tree)
    assert not tree.exists()


def test_what_links_lead_to_stays(tree: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "inner" / "file").write_text("kept")
    (tree / "to-directory").symlink_to(victim)
    (tree / "to-file").symlink_to(victim / "inner" / "file")
    (tree / "d").mkdir()
    (tree / "d" / "up").symlink_to("../../victim")
    os.link(victim / "inner" / "file", tree / "hard")
    assert remove(tree)
    assert (victim / "inner" / "file").read_text() == "kept"


def test_a_link_in_the_place_of_the_tree_is_deleted_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("kept")
    (tmp_path / "tree").symlink_to("victim")
    assert remove(tmp_path / "tree")
    assert not (tmp_path / "tree").is_symlink()
    assert (tmp_path / "victim" / "file").read_text() == "kept"


@pytest.mark.slow
def test_a_tree_deeper_than_any_path_or_stack_is_deleted(tree: Path) -> None:
    fd = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("directory", dir_fd=fd)
        inner = os.open("directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    assert remove(tree)
    assert not tree.exists()


@pytest.mark.slow
def test_many_files_are_deleted(tree: Path) -> None:
    for number in range(5000):
        (tree / f"{number}").touch()
    assert remove(tree)


@pytest.mark.slow
def test_what_takes_too_long_is_left_for_another_time(tree: Path) -> None:
    for number in range(100):
        (tree / f"{number}").mkdir()
        (tree / f"{number}" / "file").touch()
    above = os.open(tree.parent, os.O_RDONLY | os.O_DIRECTORY)
    assert not remove_tree(tree.name, above, time.monotonic() - 1)
    assert remove_tree(tree.name, above, time.monotonic() + 300)
    os.close(above)


def test_what_is_not_there_is_gone(tmp_path: Path) -> None:
    assert remove(tmp_path / "nothing")
