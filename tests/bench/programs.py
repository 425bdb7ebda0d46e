"""Real programs with a range of cores, `-c 1..all`: `python -m tests.bench.programs`, as root.

For each mode of cores how long a program runs, in seconds, alone and beside a job of the same range
that never rests, on all CPUs of the machine. Where nothing is lent, the program is told as many
threads as its lower end has cores; "weight, all threads" is one whose user sets OMP_NUM_THREADS.

OpenMP   a stencil in C (threads.c): a barrier at the end of each step; a C compiler is needed
numpy    products of matrices (OpenBLAS), if the Python of --python has numpy

Use a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from instance import Instance
from tests.bench.lending import config, run, running
from wakes import neighbour

CPUS = len(os.sched_getaffinity(0))
HERE = Path(__file__).parent
_NUMPY = """
import numpy, sys
one = numpy.random.default_rng(1).random((700, 700))
other = one
for _ in range(int(sys.argv[1])):
    other = one @ other
    other /= other.max()
"""
#: The configuration, and whether the user asks for as many threads as there are CPUs.
MODES = {
    "quota": ("quota", False),
    "weight": ("weight", False),
    "weight, all threads": ("weight", True),
    "share": ("share", False),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.programs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each, the median counts (3)")
    parser.add_argument("--python", default=sys.executable, help="that has numpy (this one)")
    chosen = parser.parse_args()
    # All that was made is taken away, too, when we are told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as place:
        stencil = Path(place, "threads")
        subprocess.run(
            ["cc", "-O2", "-fopenmp", HERE / "threads.c", "-o", stencil], check=True, cwd=place
        )
        programs: dict[str, Sequence[object]] = {"OpenMP": (stencil, 1500)}
        has_numpy = subprocess.run([chosen.python, "-c", "import numpy"], stderr=subprocess.DEVNULL)
        if has_numpy.returncode == 0:
            programs["numpy"] = (chosen.python, "-c", _NUMPY, 250)
        measure(programs, chosen.rounds)


def measure(programs: dict[str, Sequence[object]], rounds: int) -> None:
    columns = "".join(f"{name:>9}{'beside':>9}" for name in programs)
    print(f"{'seconds, -c 1..' + str(CPUS):<24}{columns}")
    for words, (mode, has_threads) in MODES.items():
        env = {"OMP_NUM_THREADS": str(CPUS)} if has_threads else {}
        with running(config(mode, CPUS)) as instance:
            row = ""
            for command in programs.values():
                for is_beside in (False, True):
                    found = [timed(instance, command, env, is_beside) for _ in range(rounds)]
                    row += f"{statistics.median(found):9.2f}"
        print(f"{words:<24}{row}", flush=True)


def timed(
    instance: Instance, command: Sequence[object], env: dict[str, str], is_beside: bool
) -> float:
    """Seconds from the job's start to its end."""
    cores = f"1..{CPUS}"
    other = run(instance, cores, neighbour(CPUS), "-p", "B") if is_beside else None
    clean = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    job_id = instance.submit("-c", cores, "-p", "A", "--", *command, env={**clean, **env})
    job = instance.wait_end(job_id)
    assert job["state"] == "COMPLETED", job
    if other is not None:
        instance.drf("cancel", other["id"])
        instance.wait_end(other["id"])
    return float(job["ended_at"] - job["started_at"])


if __name__ == "__main__":
    main()
