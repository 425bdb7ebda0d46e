from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A machine of 9 cores and 18 GiB; every test that uses it ends with books that agree."""
    bench = Bench()
    yield bench
    bench.check()
