"""The program `drf`: the short way for what is short, else the whole command line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    key = os.urandom(12).hex()
    if sys.argv[1:2] == ["submit"]:
        from drfd_cli import quick

        try:
            if quick.submit(sys.argv[2:], key):
                return
        except KeyboardInterrupt:
            sys.exit(130)
    from drfd_cli.main import main as whole

    whole(key)
