"""A line of the shell gives the job its name, if that is certain."""

from __future__ import annotations

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
