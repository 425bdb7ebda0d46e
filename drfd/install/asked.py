"""How the system's daemon is, for an installation: `python -I -m drfd.install.asked SOCKET`.

It is run as the service's user, because root is not to read what a controller answers. The exit
status is all that root hears: 0 without an answer, else ANSWERS, and the others where they hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

ANSWERS, CONNECTED, DRAINED = 64, 1, 2
#: How often it is asked, a second apart, until its launcher has connected.
_TIMES = 10


def main(socket: str) -> int:
    command = (sys.executable, "-I", "-m", "drfd_cli", "--socket", socket, "doctor", "--json")
    status = 0
    for _ in range(_TIMES):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode == 0:
            report = json.loads(done.stdout)
            is_connected = report["launcher"] == "connected"
            status = ANSWERS | CONNECTED * is_connected | DRAINED * bool(report["draining"])
            if is_connected:
                break
        time.sleep(1)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
