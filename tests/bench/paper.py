"""The blocks of cli/drfd_experiments/RESULTS.md, run again: `python -m tests.bench.paper`.

Nothing in them depends on the machine or its load; live runs are in no block.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent.parent.parent / "cli/drfd_experiments" / "RESULTS.md"
#: A command, and what it prints.
BLOCK = re.compile(r"^```console\n\$ drf (.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def printed(command: str) -> str:
    """What `drf` prints for these words, at the width of the page."""
    done = subprocess.run(
        [sys.executable, "-m", "drfd_cli", *command.split()],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100", "PYTHONPATH": str(RESULTS.parent.parent)},
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def main() -> None:
    text = BLOCK.sub(
        lambda block: f"```console\n$ drf {block[1]}\n{printed(block[1])}```", RESULTS.read_text()
    )
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
