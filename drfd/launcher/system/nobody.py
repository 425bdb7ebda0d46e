"""The start of a program of drfd's that reads what users or other parties have written: it gives up
root's rights before it runs anything else.

    python -m drfd.launcher.system.nobody MODULE WORD...
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module

from drfd.linux import syscalls
from drfd.linux.own_process import NOBODY, RUN_MODULE, be_killed_first, drop_rights


def without_rights(module: str) -> tuple[str, ...]:
    """Return the command that calls a module's `main` with the words that follow, and with the uid
    and gid that the process had."""
    return *RUN_MODULE, "drfd.launcher.system.nobody", module


def main(module: str, *words: str) -> None:
    own = os.getuid(), os.getgid()
    load = partial(import_module, module)
    _give_up_rights(load)
    load().main(words, own)


def _give_up_rights(load: Callable[[], object]) -> None:
    with suppress(OSError):
        be_killed_first()
    if os.getuid() == 0:
        try:
            drop_rights(NOBODY, NOBODY, [], load)
        except OSError as error:
            # A container may have no other uid than root's.
            if error.errno != errno.EINVAL:
                raise
            syscalls.set_capabilities(syscalls.Capabilities(0, 0, 0))
    syscalls.set_no_new_privileges()


if __name__ == "__main__":
    main(*sys.argv[1:])
