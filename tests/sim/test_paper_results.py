"""RESULTS.md of the paper's experiments shows what comes out."""

from __future__ import annotations

import os

import pytest

from bench.paper import BLOCK, RESULTS, printed

#: Each test computes recorded results again.
pytestmark = pytest.mark.slow

#: What takes longer than a moment is only compared when asked for.
QUICK = ("table1", "fig4", "fig8")
BLOCKS = BLOCK.findall(RESULTS.read_text())


def test_there_is_a_block_of_each_kind() -> None:
    names = [command.split()[-1] for command, _ in BLOCKS]
    assert names == ["table1", "fig4", "fig8", "fig9", "fig12", "fig13", "fig14"]


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=lambda text: text.split()[-1])
def test_the_results_are_what_is_printed(command: str, shown: str) -> None:
    if not command.endswith(QUICK) and "DRFD_TEST_LONG" not in os.environ:
        pytest.skip("takes a while; set DRFD_TEST_LONG")
    assert printed(command) == shown
