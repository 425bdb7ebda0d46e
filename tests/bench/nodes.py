"""How soon a job starts on a node of Slurm's: `python -m tests.bench.nodes`, as root, with Slurm's
packages and a C compiler.

A private Slurm with two nodes, and a private drfd above them, as its users have it. Ways to start a
job take turns: `drf submit --node n1`, a submission of the Python client to this node, the same
`sbatch` that drfd runs but without drfd, and for comparison the Python client to the machine's own
node. A job is `stamp`, which does nothing but tell the time, and each is submitted when the last
one has ended: either some 1.3 seconds after that (0.8 to 1.8, so that no clock of Slurm's is met
again and again), or at once. The table has, in milliseconds, medians of:
  start     from the submission (the start of the command, or the moment in which the client sends
            it) to the job's first instruction, what 90 of 100 are below, and the longest
  sbatch    the part of it until `sbatch` is run
  event     from there until slurmctld runs the event script, when it has allocated the node
  node      from there to the job's first instruction
The times are of one clock, because all the nodes are on this machine.
"""

import json
import os
import pwd
import select
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any

from drfd.slurm.files import EVENT
from instance import ALONE, BIN, wait_for
from launcher.slurm.cluster import CONFIG, Cluster, slurm_table
from slurm_cluster import missing
from tests.bench.place import Place, options_of

#: Where the jobs run.
NODE, OWN = "n1", "head"
#: Seconds after which a job has failed to start.
_PATIENCE_S = 120.0
#: Seconds from the end of a job to the next submission, at least and at most.
_GAPS_S = (0.8, 1.8)
_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
#: Names of the pipes that the steps of a start tell their times to.
_SUBMITTED, _ALLOCATED, _BEGAN = "submitted", "allocated", "began"


@dataclass
class Way:
    """A way to have a job start, and what was measured, in milliseconds."""

    submit: Callable[[], object]
    is_slurms: bool = True
    starts: list[float] = field(default_factory=list)
    #: Until sbatch, until the event and until the first instruction.
    parts: list[tuple[float, float, float]] = field(default_factory=list)


class Pipe:
    """A FIFO with a line for each time that something was reached."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        path.chmod(0o666)
        self.path = path
        # We write to it, too, so that it has no end while nobody else does.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def next_ns(self) -> int:
        """Wait for the next line. Exits if there is none for long."""
        while b"\n" not in self._rest:
            if not select.select([self._fd], [], [], _PATIENCE_S)[0]:
                raise SystemExit(f"nothing for {_PATIENCE_S:g} s: {self.path.name}")
            self._rest += os.read(self._fd, 1 << 16)
        line, _, self._rest = self._rest.partition(b"\n")
        return int(line)

    def forget(self) -> None:
        self._rest = b""
        while select.select([self._fd], [], [], 0)[0]:
            os.read(self._fd, 1 << 16)

    def close(self) -> None:
        os.close(self._fd)


class Bench:
    """drfd with Slurm's nodes, and the pipes."""

    def __init__(self) -> None:
        self.place = Place()
        self.instance = self.place.instance
        self.directory = self.instance.root / "cluster"
        self.directory.mkdir()
        self.commands = self.instance.root / "commands"
        table = slurm_table(self.directory) + f'commands = "{self.commands}"\n'
        self.instance.configured = CONFIG + ALONE + table
        state = self.instance.state / "slurm-launcher"
        self.cluster = Cluster(self.directory, state / "events.sock", state / "started")
        self.pipes: dict[str, Pipe] = {}
        self._numbers = count(1)

    def start(self) -> None:
        for name in (_SUBMITTED, _ALLOCATED, _BEGAN):
            self.pipes[name] = Pipe(self.instance.root / name)
        # Compiled by the place, which is not started yet.
        stamp = self.instance.root / "stamp"
        self._put_commands(stamp)
        script = self.cluster.files[EVENT]
        # Only of jobs that are attempts, at their starts.
        told = (
            'case "${JOBSTATE-}${SLURM_JOB_COMMENT-}" in\n'
            f"    ????????????????????????????????.*.*) {stamp} {self.pipes[_ALLOCATED].path} ;;\n"
            "esac\n"
        )
        first, _, rest = script.partition("\n")
        self.cluster.start({**self.cluster.files, EVENT: f"{first}\n{told}{rest}"})
        self.place.start()
        wait_for("the nodes", self._are_up)

    def _are_up(self) -> bool:
        reply = json.loads(self.instance.drf("nodes", "--json").stdout)
        return all(node["state"] == "up" for node in reply["nodes"])

    def _put_commands(self, stamp: Path) -> None:
        """Slurm's commands, of which sbatch tells when it is run."""
        self.commands.mkdir()
        for name in _COMMANDS:
            path = shutil.which(name, path="/usr/bin:/bin")
            if path is None:
                raise SystemExit(f"there is no {name} in /usr/bin")
            if name == "sbatch":
                text = f'#!/bin/sh\n{stamp} {self.pipes[_SUBMITTED].path}\nexec {path} "$@"\n'
                (self.commands / name).write_text(text)
                (self.commands / name).chmod(0o755)
            else:
                (self.commands / name).symlink_to(path)

    @contextmanager
    def ways(self) -> Iterator[dict[str, Way]]:
        began = str(self.pipes[_BEGAN].path)
        job = [self.place.stamp, began]
        command = [str(BIN / "drf"), "submit", "-q", "-m", "64M", "-o", "/dev/null"]
        command += ["-e", "/dev/null", "--node", NODE, "--", *job]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        options |= {"check": True}
        with closing(self.place.connect()) as connection:

            def by_client(node: str) -> object:
                return connection.submit(**self.place.fields(*job), node=node)

            yield {
                "drf submit --node": Way(
                    lambda: subprocess.run(command, **options, **self.place.as_user())
                ),
                "drfd, Python": Way(lambda: by_client(NODE)),
                "sbatch": Way(lambda: self._sbatch(" ".join(job))),
                "drfd, own machine": Way(lambda: by_client(OWN), is_slurms=False),
            }

    def _sbatch(self, job: str) -> None:
        """As drfd runs it."""
        name = f"{'b' * 32}.{next(self._numbers)}.1"
        words = ["sbatch", "--parsable", "--no-requeue", f"--comment={name}", "--job-name=bench"]
        words += [f"--nodelist={NODE}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=64M"]
        words += ["--chdir=/", "--input=/dev/null", "--output=/dev/null", "--export=ALL"]
        account = pwd.getpwuid(self.place.uid)
        words += [f"--uid={account.pw_uid}", f"--gid={account.pw_gid}"]
        subprocess.run(
            [str(self.commands / words[0]), *words[1:]], input=f"#!/bin/sh\nexec {job}\n",
            text=True, env=self.cluster.env, stdout=subprocess.DEVNULL, check=True, cwd="/",
        )  # fmt: skip

    def measure(self, way: Way) -> None:
        """One start, and the job's end, as everybody sees it."""
        for pipe in self.pipes.values():
            pipe.forget()
        begin = time.monotonic_ns()
        way.submit()
        began = self.pipes[_BEGAN].next_ns()
        way.starts.append((began - begin) / 1e6)
        if way.is_slurms:
            submitted = self.pipes[_SUBMITTED].next_ns()
            allocated = self.pipes[_ALLOCATED].next_ns()
            steps = (begin, submitted, allocated, began)
            first, second, third = ((b - a) / 1e6 for a, b in pairwise(steps))
            way.parts.append((first, second, third))
        wait_for("the end of the job", self._is_quiet, pause_s=0.01)

    def _is_quiet(self) -> bool:
        shown = self.cluster.ask("squeue", "-h", "-o", "%k").split()
        return not shown and not self.instance.status()

    def stop(self) -> None:
        try:
            self.cluster.stop()
        finally:
            self.place.destroy()
            for pipe in self.pipes.values():
                pipe.close()


def main() -> None:
    parser = options_of("tests.bench.nodes", __doc__)
    parser.add_argument("--jobs", type=int, default=30, help="of each way, with gaps (30)")
    parser.add_argument("--more", type=int, default=30, help="of each way, back to back (30)")
    parser.add_argument("--seed", type=int, default=1, help="of the gaps (1)")
    chosen = parser.parse_args()
    if why := missing():
        sys.exit(f"not measured: {why}")
    chance = Random(chosen.seed)
    bench = Bench()
    try:
        bench.start()
        for what, jobs, gaps in (("with gaps", chosen.jobs, True), ("at once", chosen.more, False)):
            print(
                f"{what:<20}{'start':>9}{'90 %':>9}{'longest':>9}{'sbatch':>9}{'event':>9}"
                f"{'node':>9}"
            )
            with bench.ways() as ways:
                for way in ways.values():
                    bench.measure(way)
                    way.starts.clear()
                    way.parts.clear()
                if gaps:
                    for _ in range(jobs):
                        for way in ways.values():
                            time.sleep(chance.uniform(*_GAPS_S))
                            bench.measure(way)
                else:
                    for way in ways.values():
                        for _ in range(jobs):
                            bench.measure(way)
                for name, way in ways.items():
                    print(line(name, way), flush=True)
    finally:
        bench.stop()


def line(name: str, way: Way) -> str:
    most = statistics.quantiles(way.starts, n=10)[-1]
    found = [statistics.median(way.starts), most, max(way.starts)]
    found += [statistics.median(part) for part in zip(*way.parts, strict=True)]
    return f"{name:<20}" + "".join(f"{each:>9,.1f}" for each in found)


if __name__ == "__main__":
    main()
