"""Two ordinary users of our own making, and daemons that serve one test after the other."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from instance import CONFIG, Instance
from system.accounts import Accounts, delete_account


@pytest.fixture(scope="module")
def idle() -> Iterator[dict[str, Instance]]:
    """By their configuration: those that wait for the next test of the module."""
    found: dict[str, Instance] = {}
    yield found
    for instance in found.values():
        instance.destroy()


@pytest.fixture
def lend(
    idle: dict[str, Instance], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Instance]]:
    """A daemon that runs, with no job and an empty directory: what to start one costs much on an
    emulated processor. It may have served other tests, but for those that are marked `anew`."""
    lent: list[Instance] = []
    failed = request.session.testsfailed

    def take(config: str) -> Instance:
        used = None if "anew" in request.keywords else idle.pop(config, None)
        lent.append(used or Instance(config))
        return used or lent[-1].start()

    yield take
    for instance in lent:
        is_clear = False
        try:
            has_passed = request.session.testsfailed == failed
            is_clear = has_passed and instance.configured not in idle and instance.clear()
        finally:
            if is_clear:
                idle[instance.configured] = instance
            else:
                instance.destroy()


@pytest.fixture
def instance(lend: Callable[[str], Instance]) -> Instance:
    return lend(CONFIG)


@pytest.fixture
def extra(tmp_path: Path) -> Iterator[Path]:
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
def open_python() -> None:
    """Other users must be able to run this environment's programs."""
    try:
        subprocess.run(
            [sys.executable, "-c", ""], user=65534, check=True, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"other users cannot run {sys.executable}: use a Python that they may read")


@pytest.fixture(scope="session")
def users(open_python: None) -> Iterator[Accounts]:
    """Accounts that exist while the tests run, each in one more group of its own."""
    names = [f"drfdt{os.getpid()}{letter}" for letter in "ab"]
    made: list[Callable[[], object]] = []
    try:
        for name in names:
            subprocess.run(["groupadd", f"{name}x"], check=True)
            made.append(partial(subprocess.run, ["groupdel", f"{name}x"], check=True))
            subprocess.run(
                ["useradd", "--no-create-home", "--no-log-init", "-G", f"{name}x", name], check=True
            )
            made.append(partial(delete_account, name))
        first, second = (pwd.getpwnam(name) for name in names)
        yield first, second
    finally:
        for undo in reversed(made):
            undo()
