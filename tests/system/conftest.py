"""Two ordinary users of our own making."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator

import pytest


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
def users(open_python: None) -> Iterator[tuple[pwd.struct_passwd, pwd.struct_passwd]]:
    """Accounts that exist while the tests run, each in one more group of its own."""
    names = [f"drfdt{os.getpid()}{letter}" for letter in "ab"]
    made = []
    try:
        for name in names:
            subprocess.run(["groupadd", f"{name}x"], check=True)
            made.append(["groupdel", f"{name}x"])
            subprocess.run(
                ["useradd", "--no-create-home", "--no-log-init", "-G", f"{name}x", name], check=True
            )
            made.append(["userdel", name])
        first, second = (pwd.getpwnam(name) for name in names)
        yield first, second
    finally:
        for undo in reversed(made):
            subprocess.run(undo, check=True)
