"""What a person or a script waits for: `python -m tests.bench.cli [--queued N] [--only PART]`.

`submit` and `status`: the start of these verbs, each as a multiple of a bare `python -I -c pass` of
the same interpreter. Processor time and the time on the wall are told apart, because most of a
submission is spent by the daemon and the disk. A private drfd is started for it and nothing is
launched.

`request` and `run`: `drf run`, each as a multiple of `drf submit` of the same job. `request` is the
processor time until the request is sent, and that of the whole program, for a daemon that answers
at once and launches nothing. `run` is the time on the wall with a private drfd: until the first
instruction of the job, as the job tells it (stamp.c), and of the whole program; in pipes, and on a
terminal.

`top`: `drf top` beside the jobs of `--queued`, on a terminal of each size: its processor time, as
a part of a core, once it stands. Each second a snapshot comes, is read and drawn.

All but that are medians of runs that alternate, so that a busy machine slows all alike.
"""

import argparse
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

from instance import BIN, Instance
from tests.bench.place import Place, children_cpu_s, fill, options_of

DRF = str(BIN / "drf")
#: The row of `drf run` with a terminal of its own.
ON_TERMINAL = "drf run on a terminal"
#: How a job ended that does nothing, as far as `drf run` looks.
ENDED = {
    "id": 1, "array_index": None, "status": 0, "signal": None, "reason": None,
    "outcome": {"code": "COMPLETED", "text": ""},
}  # fmt: skip


def main() -> None:
    parser = options_of("tests.bench.cli", __doc__)
    parser.add_argument("--runs", type=int, default=25, help="and seconds of top (25)")
    parser.add_argument("--queued", type=int, default=10_000, help="jobs that wait (10,000)")
    parser.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    chosen = parser.parse_args()
    for name in chosen.only or PARTS:
        PARTS[name](chosen)


# -- the start of drf submit and drf status -------------------------------------------------------


def submit(chosen: argparse.Namespace) -> None:
    words = {
        "drf submit -q -- true": "submit -q -- true",
        "drf submit -c 1 -m 64M -- true": "submit -c 1 -m 64M -- true",
        "drf submit --dry-run -- true": "submit --dry-run -- true",
    }
    measure(chosen.runs, words)


def status(chosen: argparse.Namespace) -> None:
    words = {f"drf status of {chosen.queued:,} jobs": "status", "… --json": "status --json"}
    measure(max(3, chosen.runs // 5), words, queued=chosen.queued)


def measure(runs: int, words: dict[str, str], *, queued: int = 0) -> None:
    commands = {"python -I -c pass": [sys.executable, "-I", "-c", "pass"]}
    commands |= {name: [DRF, *each.split()] for name, each in words.items()}
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with drained(queued):
        for _ in range(runs):
            for name, command in commands.items():
                spent[name].append(cpu_and_wall_s(command))
    table(("CPU", "wall"), spent, of="bare")


@contextmanager
def drained(queued: int) -> Iterator[Instance]:
    """A private drfd that starts nothing, with so many jobs that wait."""
    instance = Instance().start()
    try:
        instance.drf("drain")
        os.environ["DRFD_SOCKET"] = str(instance.socket)
        fill(instance, queued, lambda number: {"argv": ["true"], "name": f"job-{number}"})
        yield instance
    finally:
        instance.destroy()


def cpu_and_wall_s(command: Sequence[str]) -> tuple[float, float]:
    before_s, begin_s = children_cpu_s(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return children_cpu_s() - before_s, time.perf_counter() - begin_s


def table(what: tuple[str, str], spent: dict[str, list[tuple[float, float]]], *, of: str) -> None:
    """Print the medians in milliseconds, and as multiples of the first row's, called `of`."""
    print(f"{'':<34}{what[0]:>10}{f'of {of}':>11}{what[1]:>10}{f'of {of}':>11}")
    medians = {
        name: [1000 * statistics.median(column) for column in zip(*each, strict=True)]
        for name, each in spent.items()
    }
    first, second = next(iter(medians.values()))
    for name, (one, other) in medians.items():
        print(
            f"{name:<34}{one:>7.1f} ms{one / first:>11.2f}{other:>7.1f} ms{other / second:>11.2f}",
            flush=True,
        )


# -- drf run beside drf submit --------------------------------------------------------------------

#: What is measured, with the verb; the last one on a terminal.
RUNS = {"drf submit": "submit", "drf run": "run", ON_TERMINAL: "run"}


def request(chosen: argparse.Namespace) -> None:
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as directory, closing(StandIn(Path(directory, "s"))) as drfd:
        os.environ["DRFD_SOCKET"] = str(drfd.path)
        for _ in range(chosen.runs):
            for name, verb in RUNS.items():
                before_s = children_cpu_s()
                shown(name, [DRF, verb, "--", "true"])
                spent[name].append((drfd.sent_s.pop(), children_cpu_s() - before_s))
    table(("CPU, sent", "CPU"), spent, of="submit")


def run(chosen: argparse.Namespace) -> None:
    """As an ordinary user, whose submissions are signed."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in RUNS}
    place = Place()
    try:
        place.start()
        os.environ["DRFD_SOCKET"] = str(place.instance.socket)
        os.chdir(place.instance.work)
        for _ in range(chosen.runs):
            for name, verb in RUNS.items():
                begin_ns = time.monotonic_ns()
                said = shown(name, [DRF, verb, "--", place.stamp], user=place.uid)
                first_ns = end_ns = time.monotonic_ns()
                if verb == "submit":
                    # What is measured next must not meet this job.
                    place.instance.wait_end(int(said.split()[-1]))
                else:
                    first_ns = int(said)
                spent[name].append(((first_ns - begin_ns) / 1e9, (end_ns - begin_ns) / 1e9))
    finally:
        place.destroy()
    table(("first", "wall"), spent, of="submit")


def shown(name: str, command: Sequence[str], **options: Any) -> bytes:
    """What the command prints, to its end."""
    if name != ON_TERMINAL:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, **options
        )
        return done.stdout
    terminal, its_side = os.openpty()
    try:
        process = subprocess.Popen(
            command, stdin=its_side, stdout=its_side, stderr=its_side, start_new_session=True,
            **options,
        )  # fmt: skip
        os.close(its_side)
        said = b""
        with suppress(OSError):
            # EIO: nobody has the other side open any more.
            while piece := os.read(terminal, 4096):
                said += piece
        if process.wait() != 0:
            raise SystemExit(f"{command}: {process.returncode}: {said!r}")
        return said
    finally:
        os.close(terminal)


class StandIn:
    """Answers as a daemon whose jobs end as soon as they are submitted, and notes the processor
    time that each client has used until its submission is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sent_s: list[float] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(4)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._serve(self._listener.accept()[0])

    def _serve(self, connection: socket.socket) -> None:
        pid, _, _ = struct.unpack(
            "iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                if b'"submit"' in line:
                    # The clock of a process's processor time (clock_getcpuclockid(3)).
                    self.sent_s.append(time.clock_gettime(~pid << 3 | 2))
                    reply: dict[str, object] = {"id": 1}
                else:
                    reply = {"done": True, "ended": [ENDED]}
                connection.sendall(json.dumps({"ok": True, **reply}).encode() + b"\n")


# -- drf top --------------------------------------------------------------------------------------

SIZES = ((80, 24), (120, 40), (200, 60))


def top(chosen: argparse.Namespace) -> None:
    print(f"{'screen':>8}{'of a core':>12}{'a second':>12}{'written':>14}")
    with drained(chosen.queued) as instance:
        for columns, rows in SIZES:
            used_s, wall_s, written = draw(instance, columns, rows, chosen.runs)
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


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "submit": submit, "status": status, "request": request, "run": run, "top": top,
}  # fmt: skip


if __name__ == "__main__":
    main()
