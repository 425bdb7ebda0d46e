"""A program of drfd with failpoints: `python -I failing.py DIRECTORY MODULE ARGUMENT...`

No option of drfd's own turns them on. The launchers that such a `drfd serve` starts have them, too,
and the program that begins jobs' processes is the one that the environment names, if any. Run by
its path, since the tests need not be installed where drfd is.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from drfd.common import failpoints

#: Names the program that begins jobs' processes, with failpoints.
VARIABLE = "DRFD_TESTED_STARTER"


def main(directory: str, module: str, *arguments: str) -> None:
    # The launcher of Slurm's nodes may have a user of its own.
    if module != "drfd.launcher.slurm" or os.stat(directory).st_uid == os.getuid():
        failpoints.enable(directory)
    program = import_module(f"{module}.main")
    if module == "drfd.daemon":
        program.spawn.RUN = (sys.executable, "-I", __file__, directory)
    if module == "drfd.launcher" and VARIABLE in os.environ:
        program.main(arguments, Path(os.environ[VARIABLE]))
    else:
        program.main(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
