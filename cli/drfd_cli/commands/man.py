"""drf man: the man pages and shell completions, for who installs or packages drfd."""

from __future__ import annotations

from importlib.metadata import metadata
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from drfd import __version__
from drfd_cli import man

#: Shell → where it looks for the completions of drf, below a prefix.
_COMPLETIONS = {
    "bash": "share/bash-completion/completions/drf",
    "zsh": "share/zsh/site-functions/_drf",
    "fish": "share/fish/vendor_completions.d/drf.fish",
}


@click.command("man")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.pass_context
def command(context: click.Context, directory: Path) -> None:
    """Write man pages and shell completions below DIR/share."""
    root = context.find_root().command
    assert isinstance(root, click.Group)
    files = {
        f"share/man/man{name[-1]}/{name}": text
        for name, text in man.pages(root, _readme(), __version__).items()
    }
    for shell, path in _COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        files[path] = kind(root, {}, "drf", "_DRF_COMPLETE").source()
    for name, text in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _readme() -> str:
    """As the package has it."""
    return str(metadata("drfd").json["description"])
