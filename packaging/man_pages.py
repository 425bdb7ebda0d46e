"""Man pages and the shells' completions, which are made while a wheel is built:

    python packaging/man_pages.py DIR

A page is written in Markdown, from the help of a command or from a document, and docutils makes of
it what man(1) reads. Only the build needs docutils, and MyST's parser of Markdown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "cli")]

from drfd import __version__  # noqa: E402
from drfd.daemon.main import COMMANDS, main  # noqa: E402
from drfd_cli.commands.completion import PLACES, script_of  # noqa: E402
from drfd_cli.main import VERBS, cli  # noqa: E402

_SEE_ALSO = "drf(1), drf-submit(1) and so on for each command, drfd(8), drfd.toml(5)"
_FILES = "/etc/drfd/drfd.toml, /etc/drfd/drfd.d/\\*.toml, ~/.config/drfd/drfd.toml"


def pages() -> dict[str, str]:
    """Return each page in Markdown, by the name of its file."""
    above = click.Context(cli, info_name="drf", **cli.context_settings)
    codes = _document("reference.md").partition("\n# Exit codes")[2].partition("\n# ")[0]
    drf = [*_help(above), f"# Exit codes\n{codes}"]
    drfd = [f"```\n{_usage(name)}```" for name in COMMANDS]
    made = {
        "drf.1": ("queue, watch and control batch jobs", drf),
        "drfd.8": (
            "fair batch scheduler: the daemon",
            ["# Synopsis", *drfd, _document("administration.md")],
        ),
        "drfd.toml.5": (
            "configuration of drfd",
            ["# Synopsis", _FILES, _document("configuration.md")],
        ),
    }
    for verb, row in VERBS.items():
        command = cli.get_command(above, verb)
        assert command is not None
        context = click.Context(command, info_name=verb, parent=above)
        made[f"drf-{verb}.1"] = (row.text, [*_help(context)])
    return {name: _page(name, about, parts) for name, (about, parts) in made.items()}


def _page(file: str, about: str, parts: Iterable[str]) -> str:
    name, _, section = file.rpartition(".")
    # No date: the same release gives the same page.
    about = f"title: {name}\nsubtitle: {about!r}\nmanual_section: '{section}'"
    head = f"---\n{about}\nversion: drfd {__version__}\nmanual_group: drfd\n---"
    return "\n\n".join([head, *parts, "# See also", _SEE_ALSO, ""])


def _document(file: str) -> str:
    """Return the sections of a document, one level higher, with the words of its links alone."""
    _, mark, text = (ROOT / "docs" / file).read_text().partition("\n## ")
    text = re.sub(r"\[([^]\n]+)\]\([^)\n]*\)", r"\1", mark + text)
    return re.sub(r"^##", "#", text, flags=re.MULTILINE)


def _usage(name: str) -> str:
    with redirect_stdout(StringIO()) as said, suppress(SystemExit):
        main([name, "--help"])
    return said.getvalue()


def _help(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from ("# Synopsis", _text(usage), "# Description")
    for part in (command.help or "").split("\n\n"):
        # A sign at its begin has click leave the lines as they are.
        yield f"```\n{part[2:]}\n```" if part.startswith("\b") else _text(part)
    # Newer releases of click also return records of arguments, which the synopsis shows.
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    yield "# Options"
    yield from map(_item, filter(None, (each.get_help_record(context) for each in options)))
    if isinstance(command, click.Group):
        yield "# Commands"
        below = [
            (name, command.get_command(context, name)) for name in command.list_commands(context)
        ]
        yield from (
            _item((f"{context.command_path} {name}", each.get_short_help_str(200)))
            for name, each in below
            if each
        )
    if command.epilog:
        yield "# Example\n\n    " + command.epilog.removeprefix("Example: ")


def _item(record: tuple[str, str]) -> str:
    return f"`{record[0]}`\n: {_text(record[1])}"


def _text(text: str) -> str:
    """Escape the signs of Markdown that are outside of code."""
    return re.sub(r"[*_<\[#](?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\g<0>", text)


def files() -> dict[str, str]:
    """Return the text of each file, by its path below a prefix such as /usr."""
    from docutils.core import publish_string
    from myst_parser.parsers.docutils_ import Parser

    settings = {
        "output_encoding": "unicode",
        "myst_enable_extensions": ["deflist"],
        "halt_level": 2,  # warnings are errors
    }

    def manual(text: str) -> str:
        return publish_string(text, parser=Parser(), writer="manpage", settings_overrides=settings)

    made = {f"share/man/man{name[-1]}/{name}": manual(text) for name, text in pages().items()}
    return made | {place: script_of(cli, shell) for shell, place in PLACES.items()}


if __name__ == "__main__":
    for path, text in files().items():
        file = Path(sys.argv[1], path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
