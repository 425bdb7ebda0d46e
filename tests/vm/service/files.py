"""The files of the system, so that what an installation leaves behind can be found.

`python files.py` writes down what there is before it.
"""

from __future__ import annotations

import os
from pathlib import Path

BEFORE = Path("/var/lib/files-before")
#: Where an installation may put something.
_PLACES = ("/etc", "/usr", "/var", "/opt", "/home")
#: What changes there without it: logs, what systemd and log-ins keep, the tests' own.
_OTHERS = (
    *("/var/log/", "/var/lib/systemd/", "/var/lib/private", "/var/lib/sudo", "/var/cache/man"),
    *("/var/lib/drfd-vm/", "/var/lib/left.json", "/var/tmp/", "/home/", "/opt/drfd/", "/root/"),
    str(BEFORE),
)


def listed() -> set[str]:
    """Every path, but of what others change."""
    found = set()
    for place in _PLACES:
        for directory, inner, names in os.walk(place):
            inner[:] = [name for name in inner if not f"{directory}/{name}/".startswith(_OTHERS)]
            found |= {f"{directory}/{name}" for name in (*inner, *names)}
    return {path for path in found if not path.startswith(_OTHERS)}


if __name__ == "__main__":
    BEFORE.write_text("\n".join(sorted(listed())))
