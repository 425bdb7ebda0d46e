"""What people who watch cost the daemon: `python -m tests.bench.watchers [--queued N]`.

A private drfd with jobs that run and jobs that wait, in twenty pools; then nobody, one and many
programs ask for a snapshot a second, as `drf top` does. Processor time of the daemon, as a part of
one processor; what watching costs is the difference to the first row. It is measured while nothing
happens, and again while the queue changes five times a second, which makes every sentence about why
a job waits be said anew. The memory is what the daemon has resident; its last row, while as many
watchers read nothing.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from drfd.client.connection import Connection
from drfd.protocol.codec import encode_request
from instance import ALONE, Instance, wait_for

POOLS = 20
CHANGES_PER_S = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.watchers", description=__doc__)
    parser.add_argument("--queued", type=int, default=10_000, help="jobs that wait (10,000)")
    parser.add_argument("--running", type=int, default=200, help="jobs that run (200)")
    parser.add_argument("--watchers", type=int, default=200, help="at most (200)")
    parser.add_argument("--seconds", type=float, default=20, help="for each row (20)")
    chosen = parser.parse_args()
    instance = Instance(config_of(chosen.running)).start()
    try:
        fill(instance, chosen.running, chosen.queued)
        print(f"{chosen.running:,} jobs run, {chosen.queued:,} wait")
        print(f"{'':<34}{'of a CPU':>10}{'watching':>10}{'a line':>10}{'memory':>10}")
        for is_busy in (False, True):
            measure(instance, chosen, is_busy)
        stalled(instance, chosen)
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


def fill(instance: Instance, running: int, queued: int) -> None:
    """Those that wait ask for two cores, so that none starts."""

    def submit(share: range) -> None:
        client = Connection(instance.socket)
        for number in share:
            runs = number < running
            demand = {"cores_milli": 1000 if runs else 2000, "memory_bytes": 16 << 20}
            argv = ["sleep", "86400"] if runs else ["true"]
            pool = f"p{number % POOLS}"
            client.request(
                "submit", argv=argv, cwd="/", demand=demand, pool=pool, stdout="/dev/null"
            )
        client.close()

    for jobs in (range(running), range(running, running + queued)):
        threads = [threading.Thread(target=submit, args=(jobs[start::64],)) for start in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for("the jobs", lambda: counts(instance).get("RUNNING") == running, seconds=300)


def counts(instance: Instance) -> dict[str, int]:
    client = Connection(instance.socket)
    found = client.request("status")["counts"]
    client.close()
    time.sleep(0.5)
    return dict(found)


def measure(instance: Instance, chosen: argparse.Namespace, is_busy: bool) -> None:
    print("the queue changes" if is_busy else "nothing happens")
    alone = None
    with changing(instance) if is_busy else nothing():
        for many in (0, 1, 10, chosen.watchers):
            with watching(instance, many) as crowd:
                time.sleep(3)
                crowd.reset()
                share = cpu_share(instance, chosen.seconds)
                alone = share if alone is None else alone
                line = crowd.read_bytes / max(1, crowd.lines)
            print(
                f"  {many:>6} watch{'':<20}{100 * share:>10.2f} %{100 * (share - alone):>8.2f} %"
                f"{line / 1024:>6.0f} KiB{memory_mib(instance):>6.0f} MiB",
                flush=True,
            )


def stalled(instance: Instance, chosen: argparse.Namespace) -> None:
    before = memory_mib(instance)
    with watching(instance, chosen.watchers, reads=False):
        time.sleep(chosen.seconds)
        share = cpu_share(instance, chosen.seconds)
        after = memory_mib(instance)
    words = f"  {chosen.watchers:>6} watch and do not read"
    print(f"{words:<33}{100 * share:>10.2f} %{'':<18}{after:>6.0f} MiB, before {before:.0f}")


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
        while not self._is_over.is_set():
            if not self._reads:
                self._is_over.wait()
                return
            for key, _ in self._selector.select(0.2):
                data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                assert data, "the daemon has closed a watcher's line"
                self.read_bytes += len(data)
                self.lines += data.count(b"\n")

    def reset(self) -> None:
        self.read_bytes = self.lines = 0

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
        verbs = ["release", "hold"] * 1_000_000
        for verb in verbs:
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


@contextmanager
def nothing() -> Iterator[None]:
    yield


def cpu_share(instance: Instance, seconds: float) -> float:
    before, begin_s = cpu_s(instance), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(instance) - before) / (time.monotonic() - begin_s)


def cpu_s(instance: Instance) -> float:
    assert instance.process is not None
    stat = Path(f"/proc/{instance.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(instance: Instance) -> float:
    assert instance.process is not None
    statm = Path(f"/proc/{instance.process.pid}/statm").read_text().split()
    return int(statm[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


if __name__ == "__main__":
    main()
