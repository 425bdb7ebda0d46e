"""The program `drf`: the short way for what is short, else the whole command line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    key = None
    if sys.argv[1:2] == ["submit"]:
        from drfd_cli import quick

        tried = os.urandom(12).hex()
        try:
            if quick.submit(sys.argv[2:], tried):
                return
        except quick.Lost:
            key = tried
        except KeyboardInterrupt:
            sys.exit(130)
    from drfd_cli.main import main as whole

    whole(key)
