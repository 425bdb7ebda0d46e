"""The examples of the README and the manual, and the tour of a first day, which can be taken."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from instance import BIN, Instance, wait_for

ROOT = Path(__file__).parents[1]

#: Waits for a file between its two epochs: for as long as the tour takes.
TRAIN = """\
import os, time
print("epoch 1 of 2", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@cache
def documents() -> str:
    """The README and the manual, which are not everywhere where tests are found."""
    return "\n".join(path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md")))


def blocks(mark: str) -> list[str]:
    """The code after each `<!-- mark -->`."""
    code = rf"^<!-- {mark} -->\n```\w+\n(.*?)^```$"
    found = re.findall(code, documents(), re.DOTALL | re.MULTILINE)
    assert found, f"no document has anything marked {mark}"
    return found


def run_line(instance: Instance, line: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a line of bash as its reader would, in the directory of the instance."""
    env = {
        **os.environ,
        "DRFD_SOCKET": str(instance.socket),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "COLUMNS": "104",
    }
    return subprocess.run(
        ["bash", "-c", line], cwd=instance.work, env=env, text=True, timeout=300,
        stdin=subprocess.DEVNULL, **{"capture_output": True, **options},
    )  # fmt: skip


def plain(text: str, directory: Path) -> str:
    """The words, without what belongs to one machine and one moment."""
    text = text.replace(str(directory), "/home/alice")
    text = re.sub(rf"\b{re.escape(getpass.getuser())}\b(?!\.)", "alice", text)
    text = re.sub(r"^(used|cgroup) .*", r"\1", text, flags=re.MULTILINE)
    # Only of a job that has run for some time, as on a busy machine.
    text = re.sub(r"^over time .*\n( .*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"─+", "─", text)
    text = re.sub(r"\d{4}-\d\d-\d\d|tomorrow ", "", text)
    text = re.sub(r"\b\d\d:\d\d(:\d\d)?\b", "CLOCK", text)
    text = re.sub(r"\b(\d+[dhms])+\b", "SPAN", text)
    if "THROTTLED" in text:
        # What was used.
        text = re.sub(r"\b\d+(\.\d+)?[KMG%]?", "#", text)
    return " ".join(text.split())


def steps(tour: str) -> list[tuple[str, str]]:
    """Each command, and what it printed."""
    parts = re.split(r"^\$ (.*)\n", tour, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def take(instance: Instance) -> Iterator[tuple[str, str, str]]:
    """Run the commands of the tour, and yield each with what is shown of it and what it printed."""
    (instance.work / "train.py").write_text(TRAIN)
    big = instance.work / "big"
    big.write_text("#!/bin/sh\nexec sleep 600\n")
    big.chmod(0o755)
    status = 0
    for command, shown in [step for tour in blocks("tour") for step in steps(tour)]:
        if command == "drf status":
            instance.wait_state(1, "RUNNING")
        if command.startswith("drf log"):
            wait_for("its output", lambda line=command: run_line(instance, line).stdout)
        if command == "drf wait 1":
            (instance.work / "go").touch()
        done = run_line(instance, command.replace("$?", str(status)), capture_output=False,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        status = done.returncode
        yield command, shown, done.stdout
