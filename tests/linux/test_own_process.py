"""What drfd asks of the kernel for itself: seen from outside, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drfd.linux import own_process

ROOT = Path(own_process.__file__).parents[2]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root")


def run(code: str) -> str:
    setup = f"import os, sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
    setup += "import kernel_calls\nfrom drfd.linux import own_process, syscalls\n"
    command = [sys.executable, "-I", "-c", setup + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.strip()


@as_root
def test_all_cpus_are_taken_that_the_machine_has_for_programs() -> None:
    code = """
os.sched_setaffinity(0, [max(os.sched_getaffinity(1))])
own_process.take_cpus()
print(os.sched_getaffinity(0) == os.sched_getaffinity(1))
"""
    assert run(code) == "True"


def test_an_ordinary_users_choice_of_cpus_stays() -> None:
    code = """
if os.getuid() == 0:
    os.setresuid(*[64321] * 3)
one = {max(os.sched_getaffinity(0))}
os.sched_setaffinity(0, one)
own_process.take_cpus()
print(os.sched_getaffinity(0) == one)
"""
    assert run(code) == "True"


@as_root
def test_a_score_is_lowered_where_that_is_allowed_and_never_raised() -> None:
    code = """
def score():
    return int(open(own_process.OOM_SCORE).read())
before = score()
own_process.spare()
after = score()
own_process.spare()
print(after in (before, own_process.SPARED), score() == after)
"""
    assert run(code) == "True True"


def test_an_ordinary_user_asks_for_nothing() -> None:
    code = """
if os.getuid() == 0:
    os.setresuid(*[64321] * 3)
before = open(own_process.OOM_SCORE).read()
own_process.spare()
print(open(own_process.OOM_SCORE).read() == before)
"""
    assert run(code) == "True"


def test_a_session_is_left() -> None:
    code = """
before = kernel_calls.session_keyring()
own_process.leave_session_keyring()
print(kernel_calls.session_keyring() != before)
"""
    assert run(code) == "True"
