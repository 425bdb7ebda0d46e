"""The page of promises names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()


def test_there_are_ten_promises_in_order_and_the_readme_leads_to_them() -> None:
    assert re.findall(r"^## (\d+)\.", PAGE, re.MULTILINE) == [str(each) for each in range(1, 11)]
    assert "docs/promises.md" in (ROOT / "README.md").read_text()


def test_each_promise_has_a_command_and_all_that_it_names_is_there() -> None:
    for section in PAGE.split("\n## ")[1:]:
        commands = re.findall(r"`((?:DRFD_\w+=1 )?(?:pytest|python -m) [^`]*)`", section)
        assert commands, section
        for command in commands:
            paths = re.findall(r"tests[\w/.]*", command)
            assert paths
            for path in paths:
                module = path.replace(".", "/") + ".py"
                is_there = (ROOT / path).exists() or (ROOT / module).exists()
                assert is_there, f"{command}: no {path}"
