"""A job script: its text, and the options that its #DRF lines ask for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import click

from drfd.errors import Refused
from drfd_cli import output

_DIRECTIVE = re.compile(r"#DRF\s+(.*)")
_SCRIPT_MAX_BYTES = 512 << 10


def read_script(name: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(_SCRIPT_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(
            "no-script",
            f"cannot read the script {output.clean(name)}: {error.strerror}",
            hint="to run a command, write -- before it: drf submit -- CMD",
        ) from None
    if len(data) > _SCRIPT_MAX_BYTES:
        raise Refused("too-long", f"the script {name} has more than {_SCRIPT_MAX_BYTES} bytes")
    try:
        script = data.decode()
    except UnicodeDecodeError:
        raise Refused(
            "no-script",
            f"{output.clean(name)} is a program, not a script",
            hint=f"drf submit -- {shlex.quote(name)}",
        ) from None
    # The kernel takes the sign for a part of the interpreter's name, and finds none.
    first_line = script.partition("\n")[0]
    if first_line.startswith("#!") and first_line.endswith("\r"):
        raise Refused(
            "bad-value",
            f"the script {output.clean(name)} has the line ends of Windows",
            hint=f"sed -i 's/\\r$//' {shlex.quote(name)}",
        )
    return script


def directives(script: str, name: str, *, check: Callable[[list[str]], None]) -> list[str]:
    """The options of #DRF lines, which stand before the script's first command. `check` raises
    UsageError unless what it is given are good options, and nothing else."""
    words: list[str] = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break
        found = _DIRECTIVE.match(line)
        if found is None:
            continue
        try:
            options = shlex.split(found[1], comments=True)
            check(options)
        except (ValueError, click.ClickException) as error:
            text = error.format_message() if isinstance(error, click.ClickException) else error
            raise Refused("bad-value", f"{name}, line {number}: {text}") from None
        words += options
    return words
