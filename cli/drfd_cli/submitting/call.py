"""How `drf submit` was called: what the functions that take part in one call hand on to each other.

A call may begin as `drf sbatch`, and begin again once the lines of its script are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from drfd_cli.slurm.sbatch_options import Translation
    from drfd_cli.submitting.personal import Setting

_KEY = "drf.call"


@dataclass(slots=True)
class Call:
    #: The words, as typed.
    args: list[str] = field(default_factory=list)
    #: The personal defaults among the options.
    personal: list[Setting] = field(default_factory=list)
    #: Whether the options of the script's lines are among the words.
    has_script_options: bool = False
    #: The script from standard input, which can be read but once.
    text: str | None = None
    #: What Slurm's options ask for.
    slurm: Translation | None = None
    #: What is printed of the id, `{}`, where Slurm's command stands for `drf submit`.
    shown: str | None = None


def call_of(context: click.Context) -> Call:
    """Return the call that this context is a part of, as all contexts of one command line are."""
    call: Call = context.meta.setdefault(_KEY, Call())
    return call
