"""The documents cannot rot: what they list is compared with the code."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

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


def test_every_picture_of_the_readme_is_there_and_asks_nobody_for_anything() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    for name in pictures:
        picture = (ROOT / name).read_text()
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert "url(http" not in picture


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


def test_every_option_of_submit_and_run_is_in_the_readme() -> None:
    """By its long name, or the short one that tables use."""
    for verb in ("submit", "run"):
        command = import_module(f"drfd_cli.commands.{verb}").command
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                shown = [
                    name for name in parameter.opts if re.search(rf"(?<![\w-]){name}\b", README)
                ]
                assert shown, f"README does not show {verb} {' or '.join(parameter.opts)}"


def test_every_command_of_the_readmes_table_exists() -> None:
    table = re.search(r"^## Commands\n(.*?)^Every reading", README, re.DOTALL | re.MULTILINE)
    assert table is not None
    cells = re.findall(r"^\| (`drf .*?) \|", table[1], re.MULTILINE)
    named = [word for cell in cells for word in re.findall(r"`(?:drf )?([a-z]+)", cell)]
    assert set(named) == set(VERBS)


def test_what_the_readme_types_is_understood() -> None:
    """Each option of each `drf VERB` in its code."""
    code = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", README, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^(?:\$ |\t)?drf ([a-z]+)(.*)$", code, re.MULTILINE)
    assert len(lines) > 15
    for verb, rest in lines:
        assert verb in VERBS, f"README types drf {verb}"
        command = import_module(f"drfd_cli.commands.{verb}").command
        known = {name for parameter in command.params for name in parameter.opts}
        for below in command.commands.values() if isinstance(command, click.Group) else ():
            known |= {name for parameter in below.params for name in parameter.opts}
        bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", rest.partition(" -- ")[0])
        for option in re.findall(r"(?<= )--?[a-z][a-z-]*", bare):
            assert option in known, f"README types drf {verb} {option}"
