"""What `drf top` costs whoever leaves it open: `python -m tests.bench.top [--seconds N]`.

A private drfd with jobs that run and jobs that wait, and `drf top` on a terminal of each size. Told
is its processor time over the time on the wall, once it stands: percent of one core. Nobody types;
each second a snapshot comes, is read and drawn. The daemon's own share is in `watchers.py`.
Figures of runs are in RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from drfd.client.connection import Connection
from instance import BIN, Instance, wait_for
from tests.bench.cli import fill

SIZES = ((80, 24), (120, 40), (200, 60))
CONFIG = """
[capacity]
cores = {running}
memory = "64G"
reserve_memory = 0
[[disk]]
name = "bench"
path = "/var/tmp"
read = "1G"
write = "1G"
[pools.A]
[pools.B]
[pools.C]
[enforcement]
cores = "weight"
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.top", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each size (30)")
    parser.add_argument("--running", type=int, default=200, help="jobs that run (200)")
    parser.add_argument("--queued", type=int, default=10_000, help="jobs that wait (10,000)")
    chosen = parser.parse_args()
    instance = Instance(CONFIG.format(running=chosen.running)).start()
    try:
        start(instance, chosen.running)
        fill(instance, chosen.queued)
        print(f"{chosen.running:,} jobs run, {chosen.queued:,} wait")
        print(f"{'screen':>8}{'of a core':>12}{'a second':>12}{'written':>14}")
        for columns, rows in SIZES:
            cpu_s, wall_s, written = watch(instance, columns, rows, chosen.seconds)
            print(
                f"{f'{columns}×{rows}':>8}{cpu_s / wall_s:>12.2%}"
                f"{1000 * cpu_s / wall_s:>9.1f} ms{written / wall_s / 1024:>9.1f} K/s",
                flush=True,
            )
    finally:
        instance.destroy()


def start(instance: Instance, count: int) -> None:
    """So many jobs that do nothing, of three pools."""
    client = Connection(instance.socket)
    for number in range(count):
        client.request(
            "submit", argv=["sleep", "3600"], cwd="/", name=f"steady-{number}",
            pool="ABC"[number % 3], demand={"memory_bytes": 64 << 20},
        )  # fmt: skip
    wait_for(
        "all of them to run",
        lambda: client.request("status")["counts"].get("RUNNING") == count,
        seconds=600,
    )
    client.close()


def watch(instance: Instance, columns: int, rows: int, seconds: float) -> tuple[float, float, int]:
    """Processor time, time on the wall, and bytes that came to the terminal."""
    master, slave = os.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    env = {**os.environ, "DRFD_SOCKET": str(instance.socket), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [BIN / "drf", "top"], stdin=slave, stdout=slave, stderr=slave, env=env,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        # The start of Python is over then.
        read_for(master, 5)
        before_s, begin_s = spent(process.pid), time.monotonic()
        written = read_for(master, seconds)
        return spent(process.pid) - before_s, time.monotonic() - begin_s, written
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_for(fd: int, seconds: float) -> int:
    """Take in what is sent, as a terminal does; how many bytes."""
    deadline, count = time.monotonic() + seconds, 0
    while (left := deadline - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            count += len(os.read(fd, 1 << 16))
    return count


def spent(pid: int) -> float:
    """Processor time of all its threads, from the scheduler, in seconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


if __name__ == "__main__":
    main()
