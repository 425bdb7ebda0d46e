"""What people who watch cost: `python -m tests.bench.watching [--only PART]`.

A private drfd with jobs that run and jobs that wait.

daemon  Nobody, one and many programs ask for a snapshot a second, as `drf top` does, of jobs in
        twenty pools. Processor time of the daemon, as a part of one processor; what watching costs
        is the difference to the first row. It is measured while nothing happens, and again while
        the queue changes five times a second, which makes every sentence about why a job waits be
        said anew. The memory is what the daemon has resident; its last row, while as many watchers
        read nothing.
top     `drf top` on a terminal of each size: its processor time over the time on the wall, once it
        stands, in percent of one core. Nobody types; each second a snapshot comes, is read and
        drawn.
"""

from __future__ import annotations

import argparse
import os
import select
import selectors
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

from drfd.client.connection import Connection
from drfd.protocol.codec import encode_request
from instance import ALONE, BIN, Instance, cpu_s, resident_bytes
from tests.bench.place import await_running, fill, options_of

POOLS = 20
CHANGES_PER_S = 5
SIZES = ((80, 24), (120, 40), (200, 60))
MIB = 1 << 20


def main() -> None:
    parser = options_of("tests.bench.watching", __doc__)
    parts = {"daemon": daemon, "top": top}
    parser.add_argument("--only", action="append", choices=parts, help="may be repeated")
    parser.add_argument("--queued", type=int, default=10_000, help="jobs that wait (10,000)")
    parser.add_argument("--running", type=int, default=200, help="jobs that run (200)")
    parser.add_argument("--watchers", type=int, default=200, help="at most (200)")
    parser.add_argument("--seconds", type=float, default=20, help="for each row (20)")
    chosen = parser.parse_args()
    instance = Instance(config_of(chosen.running)).start()
    try:
        submit(instance, chosen.running, chosen.queued)
        print(f"{chosen.running:,} jobs run, {chosen.queued:,} wait")
        for name in chosen.only or parts:
            parts[name](instance, chosen)
    finally:
        instance.destroy()


def config_of(running: int) -> str:
    pools = "".join(f"[pools.p{number}]\n" for number in range(POOLS))
    return f"""
[capacity]
cores = {running}
memory = "64G"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "1G"
write = "1G"
{pools}[enforcement]
grace = "1s"
{ALONE}"""


def submit(instance: Instance, running: int, queued: int) -> None:
    """Those that wait ask for two cores, so that none starts."""

    def fields(cores: int, *argv: str) -> Any:
        demand = {"cores_milli": 1000 * cores, "memory_bytes": 16 * MIB}
        common = {"argv": argv, "demand": demand, "stdout": "/dev/null"}
        return lambda at: {**common, "name": f"job-{at}", "pool": f"p{at % POOLS}"}

    fill(instance, running, fields(1, "sleep", "86400"))
    await_running(instance, running)
    fill(instance, queued, fields(2, "true"))


# -- the daemon -----------------------------------------------------------------------------------


def daemon(instance: Instance, chosen: argparse.Namespace) -> None:
    print(f"{'':<34}{'of a CPU':>10}{'watching':>10}{'a line':>10}{'memory':>10}")
    for is_busy in (False, True):
        measure(instance, chosen, is_busy)
    before = memory_mib(instance)
    with watching(instance, chosen.watchers, reads=False):
        time.sleep(chosen.seconds)
        share = cpu_share(instance, chosen.seconds)
        after = memory_mib(instance)
    words = f"  {chosen.watchers:>6} watch and do not read"
    print(f"{words:<33}{100 * share:>10.2f} %{'':<18}{after:>6.0f} MiB, before {before:.0f}")


def measure(instance: Instance, chosen: argparse.Namespace, is_busy: bool) -> None:
    print("the queue changes" if is_busy else "nothing happens")
    alone = None
    with ExitStack() as stack:
        if is_busy:
            stack.enter_context(changing(instance))
        for many in (0, 1, 10, chosen.watchers):
            with watching(instance, many) as crowd:
                time.sleep(3)
                crowd.read_bytes = crowd.lines = 0
                share = cpu_share(instance, chosen.seconds)
                alone = share if alone is None else alone
                line = crowd.read_bytes / max(1, crowd.lines)
            print(
                f"  {many:>6} watch{'':<20}{100 * share:>10.2f} %{100 * (share - alone):>8.2f} %"
                f"{line / 1024:>6.0f} KiB{memory_mib(instance):>6.0f} MiB",
                flush=True,
            )


class Crowd(threading.Thread):
    """So many connections that ask for snapshots, all read by one thread."""

    def __init__(self, path: Path, many: int, *, reads: bool) -> None:
        super().__init__(daemon=True)
        self.read_bytes = self.lines = 0
        self._reads = reads
        self._selector = selectors.DefaultSelector()
        self._peers = []
        self._is_over = threading.Event()
        for _ in range(many):
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(str(path))
            peer.sendall(encode_request({"op": "snapshots", "v": 1, "every_s": 1.0}))
            self._peers.append(peer)
            self._selector.register(peer, selectors.EVENT_READ)
            # As people come: not all in one moment.
            time.sleep(1 / many)

    def run(self) -> None:
        if not self._reads:
            self._is_over.wait()
        while not self._is_over.is_set():
            for key, _ in self._selector.select(0.2):
                data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                assert data, "the daemon has closed a watcher's line"
                self.read_bytes += len(data)
                self.lines += data.count(b"\n")

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        for peer in self._peers:
            peer.close()


@contextmanager
def watching(instance: Instance, many: int, *, reads: bool = True) -> Iterator[Crowd]:
    crowd = Crowd(instance.socket, many, reads=reads)
    crowd.start()
    try:
        yield crowd
    finally:
        crowd.stop()
        # Until the daemon has seen it.
        time.sleep(6)


@contextmanager
def changing(instance: Instance) -> Iterator[None]:
    """A waiting job is held, and let go, again and again."""
    is_over = threading.Event()
    client = Connection(instance.socket)
    held = client.request("submit", argv=["true"], cwd="/", pool="p0", held=True)["id"]

    def change() -> None:
        while True:
            for verb in ("release", "hold"):
                if is_over.wait(1 / CHANGES_PER_S):
                    return
                client.request(verb, select={"ids": [held]})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        client.close()


def cpu_share(instance: Instance, seconds: float) -> float:
    assert instance.process is not None
    before, begin_s = cpu_s(instance.process.pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(instance.process.pid) - before) / (time.monotonic() - begin_s)


def memory_mib(instance: Instance) -> float:
    assert instance.process is not None
    return resident_bytes(instance.process.pid) / MIB


# -- drf top --------------------------------------------------------------------------------------


def top(instance: Instance, chosen: argparse.Namespace) -> None:
    print(f"{'screen':>8}{'of a core':>12}{'a second':>12}{'written':>14}")
    for columns, rows in SIZES:
        used_s, wall_s, written = draw(instance, columns, rows, chosen.seconds)
        print(
            f"{f'{columns}×{rows}':>8}{used_s / wall_s:>12.2%}"
            f"{1000 * used_s / wall_s:>9.1f} ms{written / wall_s / 1024:>9.1f} K/s",
            flush=True,
        )


def draw(instance: Instance, columns: int, rows: int, seconds: float) -> tuple[float, float, int]:
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
        before_s, begin_s = scheduled_s(process.pid), time.monotonic()
        written = read_for(master, seconds)
        return scheduled_s(process.pid) - before_s, time.monotonic() - begin_s, written
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


def scheduled_s(pid: int) -> float:
    """Processor time of all its threads, from the scheduler: its ticks are finer."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


if __name__ == "__main__":
    main()
