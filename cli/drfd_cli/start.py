"""The program `drf`: `drf submit` and `drf run` need no click, all other commands do, and so does
the help."""

from __future__ import annotations

import io
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
    # A file that drf opens would get the number of a closed standard descriptor.
    if sys.argv[1:2] in (["submit"], ["run"]) and None not in (sys.stdin, sys.stdout, sys.stderr):
        _make_job(sys.argv[1], sys.argv[2:])
    from drfd_cli.main import main as whole

    try:
        whole()
    except SystemExit as end:
        if isinstance(end.code, int):
            _end(end.code)
        raise


def _make_job(verb: str, words: list[str]) -> None:
    """Submit or run a job, and exit. Returns if the words ask for the help."""
    from drfd_cli.submission import sending
    from drfd_cli.submission.job_line import HelpAsked

    replace_characters()
    try:
        do = sending.submit if verb == "submit" else sending.run
        code = do(words, sending.connect())
    except HelpAsked:
        return
    except (Exception, KeyboardInterrupt) as error:
        from drfd_cli.main import leave

        leave(error)
    _end(code)


def replace_characters() -> None:
    """Have characters replaced that the terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _end(code: int) -> NoReturn:
    """End without Python's own end, which takes a sixth of the time, and only tidies up memory."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):
            # It is closed, or a full disk, of which a message has told.
            pass
    os._exit(code)
