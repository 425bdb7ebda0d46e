"""The documents cannot rot: what they list is compared with the code."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click
import pytest

from drfd.core.lifecycle import table_rows
from drfd_cli.main import VERBS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "drfd" / "ARCHITECTURE.md").read_text()


def test_every_module_is_on_the_map() -> None:
    mapped = set(re.findall(r"^\| `([\w/]+\.py)` \|", ARCHITECTURE, re.MULTILINE))
    drfd = ROOT / "drfd"
    there = {
        str(path.relative_to(drfd))
        for path in drfd.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert mapped == there


def test_the_state_table_is_the_codes_own() -> None:
    shown = re.search(r"<!-- table -->\n(.*?)\n<!-- /table -->", ARCHITECTURE, re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == table_rows()


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    for name in re.findall(r'"(\w+)', block[1]):
        assert f"\n| {name} |" in ARCHITECTURE


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_readme_and_every_option_has_help(verb: str) -> None:
    assert re.search(rf"`(drf )?{verb}\b", README), f"README does not show {verb}"
    command = import_module(f"drfd_cli.commands.{verb}").command
    below = command.commands if isinstance(command, click.Group) else {}
    for name, each in {
        verb: command,
        **{f"{verb} {name}": sub for name, sub in below.items()},
    }.items():
        assert name in README, f"README does not show {name}"
        assert each.help
        for parameter in each.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts} has no help"


def test_every_configuration_key_is_in_the_readme() -> None:
    """The keys that the parser asks for, read off its source."""
    source = (ROOT / "drfd" / "daemon" / "config.py").read_text()
    keys = set(re.findall(r'\.(?:take|table|tables)\("(\w+)"', source))
    for key in keys:
        assert re.search(rf"\b{key}\b", README), f"README does not document {key}"
