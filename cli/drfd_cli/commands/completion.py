"""drf completion: the scripts for completion in shells, printed or set up for the user."""

from __future__ import annotations

import os
from pathlib import Path

import click

from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.words.complete import PLACES, script_of

#: Loads completions from PLACES by itself, where it is there.
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
_MARK = "# completion of drf"


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(PLACES)), required=False)
@click.option("--install", is_flag=True, help="Set it up for you, in your home.")
@click.pass_context
def command(context: click.Context, /, shell: str | None, install: bool) -> None:
    """Print the script with which a shell completes verbs, options, jobs, pools, users, resources
    and signals. Without SHELL, for that of the variable SHELL."""
    if shell is None:
        shell = os.path.basename(os.environ.get("SHELL", ""))
        if shell not in PLACES:
            raise click.UsageError(f"say for which shell: {', '.join(PLACES)}")
    script = script_of(context.find_root().command, shell)
    if not install:
        click.echo(script, nl=False)
        return
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        raise Refused("no-home", "the variable HOME names no directory to set it up in")
    file, startup, line = places(shell, Path(home))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    output.tell(f"wrote {file}")
    if startup is not None and _add_line(startup, line):
        output.tell(f"added a line to {startup}")
    output.tell(f"it is there in each new {shell}")


def places(shell: str, home: Path) -> tuple[Path, Path | None, str]:
    """Return the file for the script, and the startup file with the line that loads it, if the
    shell does not look there by itself."""
    environ = os.environ
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    if shell == "fish":
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return config / "fish/completions/drf.fish", None, ""
    script = data / PLACES[shell].removeprefix("share/")
    if shell == "bash":
        startup = None if BASH_COMPLETION.exists() else home / ".bashrc"
        return script, startup, f'[ -r "{script}" ] && . "{script}"  {_MARK}'
    startup = Path(environ.get("ZDOTDIR") or home) / ".zshrc"
    begin = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
    return script, startup, f'[[ -r "{script}" ]] && {{ {begin}; . "{script}"; }}  {_MARK}'


def _add_line(startup: Path, line: str) -> bool:
    """Append the line to the file unless it has such a line. Return whether it was added."""
    text = startup.read_text(errors="surrogateescape") if startup.exists() else ""
    if _MARK in text:
        return False
    end = "\n" if text and not text.endswith("\n") else ""
    with startup.open("a") as file:
        file.write(f"{end}{line}\n")
    return True
