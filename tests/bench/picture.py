"""The README's picture of `drf top`: `python -m tests.bench.picture`, as root, on an idle machine.

A real run: a private drfd, and four people who submit jobs that really compute, hold memory, write
and fail. They exist in a mount namespace of this command's own, where /etc is a copy with their
names, and in it the machine is called atlas. After a minute its screen is saved.
"""

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.segment import Segment, Segments

from drfd.protocol.replies import SnapshotView
from drfd_cli.top.paint import Theme
from drfd_cli.top.state import State
from drfd_cli.top.view import Scene, Size, screen
from instance import Instance
from tests.bench.place import options_of

ROOT = Path(__file__).parent.parent.parent
PICTURE = ROOT / "docs" / "top.svg"
COLUMNS, ROWS = 120, 36
PEOPLE = {"alice": 2001, "bob": 2002, "carol": 2003, "dave": 2004}
CONFIG = """
[capacity]
cores = 6
memory = "8G"
reserve_memory = 0
[[disk]]
name = "data"
path = "/var/tmp"
read = "200M"
write = "100M"
[gres]
gpu = [0, 1, 2, 3]
[pools.lab]
weight = 2
users = ["alice", "bob"]
[enforcement]
grace = "1s"
"""
#: Holds so many MiB and computes for a part of the time.
WORKS = """
import sys, time
held = bytearray(int(sys.argv[1]) << 20)
part = float(sys.argv[2])
while True:
    begin = time.process_time()
    while time.process_time() - begin < part / 2:
        pass
    time.sleep((1 - part) / 2)
"""
WRITES = """
import os, time
block = os.urandom(1 << 20)
with open("reads.bam", "wb", buffering=0) as file:
    while True:
        for _ in range(12):
            file.write(block)
        os.fsync(file.fileno())
        file.seek(0)
        time.sleep(0.8)
"""


def works(held_mib: int, part: float) -> tuple[str, ...]:
    return ("python3", "-c", WORKS, str(held_mib), str(part))


ENDED = [
    ("carol", "convert", "-c 0.5 -m 64M", ("true",)),
    ("dave", "index", "-c 0.5 -m 64M", ("sh", "-c", "exit 3")),
    ("bob", "assemble", "-c 0.5 -m 64M", ("python3", "-c", "bytearray(300 << 20)")),
    ("alice", "seed", "-c 0.5 -m 64M --array 0-3", ("true",)),
    ("carol", "fetch", "-c 0.5 -m 64M -t 1s", ("sleep", "30")),
]
RUNNING = [
    ("alice", "train", "-c 1 -m 2G -t 6h --gres gpu=2", works(1400, 0.6)),
    ("alice", "evaluate", "-c 0.5 -m 512M -t 30m --gres gpu", works(470, 0.3)),
    ("bob", "align-reads", "-c 1 -m 1G -t 2h --io 60M/20M", ("python3", "-c", WRITES)),
    ("carol", "sweep", "-c 0.5 -m 256M -t 20m --array 0-63%4", works(160, 0.1)),
    ("dave", "render", "-c 1 -m 1G -t 3h --io 40M/10M", works(620, 0.3)),
]
WAITING = [
    ("bob", "assemble", "-c 2 -m 3G -t 3h", ("true",)),
    ("alice", "finetune", "-c 1 -m 2G -t 8h --gres gpu=2", ("true",)),
    ("dave", "frames", "-c 1 -m 1G -t 1h --array 1-240", ("true",)),
    ("bob", "nightly", "-c 2 -m 2G --begin now+6h", ("true",)),
    ("alice", "draft", "-c 1 -m 1G --hold", ("true",)),
]


def main() -> None:
    parser = options_of("tests.bench.picture", __doc__)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().inside:
        with tempfile.TemporaryDirectory() as etc:
            settle(Path(etc) / "etc")
            run()
            subprocess.run(["umount", "/etc"], check=True)
    else:
        command = [sys.executable, "-m", "tests.bench.picture", "--inside"]
        subprocess.run(["unshare", "--mount", "--uts", *command], check=True, cwd=ROOT)


def settle(etc: Path) -> None:
    """Names for the people and the machine, that nobody outside sees."""
    shutil.copytree("/etc", etc, symlinks=True)
    for name, form in (
        ("passwd", "{0}:x:{1}:{1}::/nonexistent:/bin/sh\n"),
        ("group", "{0}:x:{1}:\n"),
    ):
        with (etc / name).open("a") as file:
            file.writelines(form.format(*each) for each in PEOPLE.items())
    subprocess.run(["mount", "--bind", etc, "/etc"], check=True)
    subprocess.run(["hostname", "atlas"], check=True)


def run() -> None:
    instance = Instance(CONFIG)
    try:
        instance.start()
        for name, uid in PEOPLE.items():
            (instance.root / name).mkdir()
            os.chown(instance.root / name, uid, uid)
        submit(instance, ENDED)
        time.sleep(8)
        submit(instance, RUNNING)
        time.sleep(2)
        submit(instance, WAITING)
        time.sleep(45)
        save(json.loads(instance.drf("top", "--json").stdout))
        print(instance.drf("top", "--once", env={"COLUMNS": str(COLUMNS)}).stdout)
    finally:
        instance.destroy()


def save(snapshot: SnapshotView) -> None:
    """Save the screen, without the references to fonts on a web server."""
    scene = Scene(snapshot, State(), snapshot["at"])
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="256"
    )
    for line in screen(scene, Size(COLUMNS, ROWS), Theme(has_colour=True)):
        console.print(Segments([*line, Segment.line()]), end="")
    picture = console.export_svg(title="drf top", unique_id="drf-top")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))


def submit(instance: Instance, jobs: list[tuple[str, str, str, tuple[str, ...]]]) -> None:
    for name, job, options, command in jobs:
        home = instance.root / name
        instance.drf(
            *("submit", "-n", job, *options.split(), "--", *command),
            user=PEOPLE[name], cwd=home, env={"HOME": str(home), "USER": name},
        )  # fmt: skip


if __name__ == "__main__":
    main()
