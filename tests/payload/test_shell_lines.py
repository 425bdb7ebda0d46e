"""A line of the shell gives the job its name, if that is certain."""

from __future__ import annotations

import time

import pytest

from drfd.payload.shell_lines import line_in, name_of


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("curl -O x/y", "curl"),
        ("cd /data && ./bin/fit --all | tail", "fit"),
        ("set -e; export A=b; A=1 B=2 nice time train.py", "train.py"),
        ("for i in 1 2; do render $i; done", "render"),
        ("if [ -f x ]; then\nmake\nfi", "make"),
        ("( sleep 1 )", "sleep"),
        ("$PROGRAM x", None),
        ("'my program' x", None),
        ("cd /tmp", None),
        ("", None),
        ("x" * 41, None),
    ],
)
def test_the_name_is_the_first_command_that_does_something(line: str, name: str | None) -> None:
    assert name_of(["sh", "-c", line]) == name
    assert name_of(["/bin/bash", "-euo", "-c", line]) == name


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["bash", "-lc", "x y", "z"], "x y"),
        (["sh", "script.sh"], None),
        (["bash", "--login", "-c", "x"], None),
        (["sh", "-c"], None),
        (["sh"], None),
        (["python", "-c", "x"], None),
        ([], None),
    ],
)
def test_only_a_shell_with_c_has_a_line(argv: list[str], line: str | None) -> None:
    assert line_in(argv) == line


def test_a_line_of_a_million_words_takes_no_time() -> None:
    """Whoever lists a stranger's job reads it; each word was once removed from all the others."""
    begin_s = time.process_time()
    small = [name_of(["sh", "-c", "! " * 10_000]) for _ in range(20)]
    small_s = time.process_time() - begin_s
    begin_s = time.process_time()
    assert {*small, name_of(["sh", "-c", "! " * 400_000])} == {None}
    # Twice as many words in all, not a hundred times the work.
    assert time.process_time() - begin_s < 10 * small_s
