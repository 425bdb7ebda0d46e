"""Two ordinary users of our own making, a disk, and daemons that serve one test after the other."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from instance import Accounts, add_account, delete_account, idle, instance, lend

__all__ = ["idle", "instance", "lend"]


@pytest.fixture
def extra(tmp_path) -> Iterator[Path]:
    """A file system of our own, on a loop device."""
    if shutil.which("mkfs.ext4") is None or not os.path.exists("/dev/loop-control"):
        pytest.skip("no loop devices, or no ext4, to make a second disk of")
    image, point = tmp_path / "image", tmp_path / "extra"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(192 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    try:
        subprocess.run(["mount", "-o", "loop", image, point], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a loop device cannot be mounted here: {error.stderr.decode().strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


@pytest.fixture(scope="session")
def open_python():
    """Other users must be able to run this environment's programs."""
    try:
        subprocess.run(
            [sys.executable, "-c", ""], user=65534, check=True, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"other users cannot run {sys.executable}: use a Python that they may read")


@pytest.fixture(scope="session")
def users(open_python) -> Iterator[Accounts]:
    """Accounts that exist while the tests run, each in one more group of its own."""
    names = [f"drfdt{os.getpid()}{letter}" for letter in "ab"]
    made: list[Callable[[], object]] = []
    found = []
    try:
        for name in names:
            subprocess.run(["groupadd", f"{name}x"], check=True)
            made.append(partial(subprocess.run, ["groupdel", f"{name}x"], check=True))
            found.append(add_account(name, "-G", f"{name}x"))
            made.append(partial(delete_account, name))
        first, second = found
        yield first, second
    finally:
        for undo in reversed(made):
            undo()
