"""The program `drf`: an ordinary `drf submit` or `drf run` takes a light path, all other commands
use click."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> None:
    name = os.path.basename(sys.argv[0])
    if name != "drf":
        from drfd_cli.slurm import SLURM_NAMES

        if name in SLURM_NAMES:
            # A link of `drf slurm-names`.
            sys.argv[1:1] = [name]
    try:
        match sys.argv[1:2]:
            case ["submit"]:
                from drfd_cli import quick

                if quick.submit(sys.argv[2:]):
                    _end(0)
            case ["run"]:
                from drfd_cli import quick

                quick.run(sys.argv[2:])
    except KeyboardInterrupt:
        sys.exit(130)
    from drfd_cli.main import main as whole

    try:
        whole()
    except SystemExit as end:
        if isinstance(end.code, int):
            _end(end.code)
        raise


def _end(code: int) -> NoReturn:
    """End without Python's own end, which takes a sixth of the time, and only tidies up memory."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):
            # It is closed, or a full disk, of which a message has told.
            pass
    os._exit(code)
