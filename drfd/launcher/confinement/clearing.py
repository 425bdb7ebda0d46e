"""The program that kills what is left of an attempt without a runner, and removes its cgroups: see
`clearing` in interface.py.

    python -m drfd.launcher.confinement.clearing LAUNCHER MEMBERS DIRECTORY...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from drfd.launcher.confinement.processes import MembersV1, MembersV2, remove_all
from drfd.launcher.system import process

#: Seconds that killed processes may take to be gone, and between two looks.
_PATIENCE_S, _PAUSE_S = 0.5, 0.005


def main(words: Sequence[str]) -> None:
    """`words`: the launcher's pid, the class that knows the processes, and the directories in the
    order of their removal. The status is 0 if none is left."""
    process.die_with(int(words[0]))
    kinds = {each.__name__: each for each in (MembersV1, MembersV2)}
    directories = words[2:]
    members = kinds[words[1]](*reversed(directories))
    until_mono_s = time.monotonic() + _PATIENCE_S
    while True:
        if members.is_populated():
            members.kill()
        if all(map(remove_all, directories)):
            sys.exit(0)
        if time.monotonic() > until_mono_s:
            sys.exit(1)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1:])
