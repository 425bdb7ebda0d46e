"""Two ordinary users of our own making."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def users() -> Iterator[tuple[pwd.struct_passwd, pwd.struct_passwd]]:
    """Accounts that exist while the tests run, each in one more group of its own."""
    probe = subprocess.run(
        [sys.executable, "-c", ""], user=65534, check=False, stderr=subprocess.DEVNULL
    )
    if probe.returncode != 0:
        pytest.skip(f"other users cannot run {sys.executable}: make the environment elsewhere")
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
