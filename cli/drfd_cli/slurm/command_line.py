"""How Slurm's commands read their words: options anywhere, shortened as far as they are clear."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping

import click

from drfd_cli import output


def slurm_command(
    name: str, text: str, *, has_short_help: bool = True
) -> Callable[[Callable[[list[str]], int]], click.Command]:
    """Return a decorator that makes a command of a function of the words after its name.

    `has_short_help`: whether -h asks for help, and for nothing else.
    """

    def make(function: Callable[[list[str]], int]) -> click.Command:
        @click.command(
            name,
            help=text,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True},
        )
        @click.argument("words", nargs=-1, type=click.UNPROCESSED)
        def command(words: tuple[str, ...]) -> int:
            if words[:1] in (("--help",), ("--usage",), *((("-h",),) if has_short_help else ())):
                from drfd_cli.slurm.manual import help_of

                click.echo(help_of(name, text), nl=False)
                return 0
            if words[:1] in (("--version",), ("-V",)):
                click.echo(version())
                return 0
            return function(list(words))

        return command

    return make


#: The version of Slurm whose words and answers these are, for programs that ask before they begin.
SLURM_VERSION = "22.05.8"


def version() -> str:
    from drfd import __version__

    return f"slurm {SLURM_VERSION} (drfd {__version__})"


def read_words(
    words: list[str], shorts: Mapping[str, str], longs: Mapping[str, bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Read options anywhere among the words. `shorts`: letter → long name; `longs`: long name →
    whether it has a value. Returns values by long name, and the other words. Raises UsageError."""
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            rest += left
        elif word.startswith("--"):
            long, sign, value = word[2:].partition("=")
            if long not in longs:
                near = [each for each in longs if long and each.startswith(long)]
                if len(near) != 1:
                    raise click.UsageError(f"there is no option --{long} here")
                long = near[0]
            if longs[long] and not sign:
                value = next(left, "")
            found.setdefault(long, []).append(value)
        elif word.startswith("-") and word != "-":
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter not in shorts:
                    raise click.UsageError(f"there is no option -{letter} here")
                value = ""
                if longs[shorts[letter]]:
                    value, letters = letters.removeprefix("=") or next(left, ""), ""
                found.setdefault(shorts[letter], []).append(value)
        else:
            rest.append(word)
    return found, rest


def read_options(
    words: list[str], shorts: Mapping[str, str], longs: Mapping[str, bool], variables: str = ""
) -> dict[str, list[str]]:
    """Read words that all are options and their values, as `read_words` does. Variables that begin
    so stand for options that the words lack. Raises UsageError."""
    found, rest = read_words(words, shorts, longs)
    if rest:
        raise click.UsageError(f"{rest[0]!r} is no option")
    return found | options_of(variables, longs, found) if variables else found


#: Names in variables → the options, where these are other ones.
_OPTIONS = {"users": "user", "names": "name", "state": "states"}


def options_of(
    start: str, longs: Mapping[str, bool], found: Container[str]
) -> dict[str, list[str]]:
    """Return the options that variables such as SQUEUE_FORMAT stand for, but for those that are
    `found` already; warn of others."""
    left, made = [], {}
    for variable, value in sorted(os.environ.items()):
        name = variable.removeprefix(start).lower().replace("_", "-")
        name = _OPTIONS.get(name, name) if name not in longs else name
        if not variable.startswith(start):
            continue
        if name not in longs:
            left.append(variable)
        elif name not in found:
            made[name] = [value if longs[name] else ""]
    if left:
        output.say(f"without effect here: {', '.join(map(output.clean, left))}")
    return made


def parts(values: list[str]) -> list[str]:
    return [part for value in values for part in value.split(",") if part]
