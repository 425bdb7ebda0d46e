"""Calls of drf: in the process of the test, or as a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent.parent

#: A program that is drf, from this checkout, whatever is installed.
DRF = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'cli')!r}]\n" + (
    "from drfd_cli.main import main\nmain()\n"
)


#: The same, by the way that does without click if it can.
LIGHT_DRF = DRF.replace("drfd_cli.main", "drfd_cli.start")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def screen(self) -> str:
        """The output without the blanks that tables end their lines with."""
        return "\n".join(line.rstrip() for line in self.out.splitlines())


#: Runs drf in the test's process, to its end.
Drf = Callable[..., Result]


def below(command: click.Command) -> dict[str, click.Command]:
    """The commands below a verb, by name."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: each for name, each in found.items() if each is not None}
