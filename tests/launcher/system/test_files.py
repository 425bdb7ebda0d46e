"""Files of the kernel, written and read at once. /proc/self has some that anybody may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drfd.launcher.system.files import exchange, get, put

NAME = "/proc/self/comm"


@pytest.fixture(autouse=True)
def name() -> Iterator[None]:
    """The name of this process, which tests change, is what it was afterwards."""
    before = get(NAME)
    yield
    put(NAME, before.strip())


def test_what_was_written_is_told_as_the_kernel_has_taken_it() -> None:
    """It keeps fifteen letters of a name."""
    assert exchange(NAME, "a" * 20) == "a" * 15 + "\n"


def test_a_file_that_cannot_be_read_is_written_all_the_same() -> None:
    assert exchange("/proc/self/clear_refs", "1") is None


@pytest.mark.parametrize("write", [exchange, put])
def test_a_value_that_is_refused_is_an_error_that_names_the_file(write: object) -> None:
    assert callable(write)
    with pytest.raises(OSError, match="'/proc/self/oom_score_adj'"):
        write("/proc/self/oom_score_adj", "5000")
