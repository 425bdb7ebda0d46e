"""What simulations of real traces take, and what comes out: `python -m tests.bench.traces DIR`,
from the repository's root, with the folder of the traces.

Prints a table of processor seconds and peak memory for each trace under each policy. With
`--results` it runs the commands of drfd/sim/RESULTS.md instead, and puts in what they print; with
`--paper` those of cli/drfd_experiments/RESULTS.md, which need no traces.
"""

import argparse
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "drfd" / "sim" / "RESULTS.md"
#: The paper's evaluation: nothing in it depends on the machine. Its lines are longer.
PAPER, PAPER_ENV = ROOT / "cli/drfd_experiments/RESULTS.md", {"COLUMNS": "100"}

#: The traces, and a machine for each.
MACHINES = {
    "cerit-sc-2013-jan-feb.csv.gz": "cores=900,memory=6T",
    "ricc-2010-may-jul.csv.gz": "cores=8192,memory=12T",
    "swim-fb2009-0.csv.gz": "read=1G,write=1G",
    "swim-fb2009-1.csv.gz": "read=1G,write=1G",
    "alibaba-openb-2023.csv.gz": "cores=400,memory=2T,gpu=32",
}

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """Commands of RESULTS.md, and what they print."""

    commands: tuple[str, ...]
    printed: str

    @property
    def trace(self) -> str | None:
        """The file that must be there; None: the commands need none."""
        return next((name for name in MACHINES for line in self.commands if name in line), None)


def blocks(text: str) -> list[Block]:
    found = []
    for body in _BLOCK.findall(text):
        lines = body.splitlines(keepends=True)
        commands = tuple(line[2:].strip() for line in lines if line.startswith("$ "))
        printed = "".join(line for line in lines if not line.startswith("$ "))
        found.append(Block(commands, printed))
    return found


def run(block: Block, folder: Path, **env: str) -> str:
    """What the commands print, in a folder where their files are, or will be. The blanks that
    tables end their lines with are not among it."""
    printed = ""
    for command in block.commands:
        words = shlex.split(command)
        assert words[0] == "drf", command
        target = None
        if ">" in words:
            target = words[words.index(">") + 1]
            words = words[: words.index(">")]
        done = subprocess.run(
            [sys.executable, "-m", "drfd_cli", *words[1:]],
            cwd=folder, stdout=subprocess.PIPE, check=True, text=True, timeout=3600,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}", **env},
        )  # fmt: skip
        if target is not None:
            (folder / target).write_text(done.stdout)
        else:
            printed += done.stdout
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def refresh(page: Path, traces: Path, **env: str) -> None:
    text = page.read_text()
    for block in blocks(text):
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as made:
            printed = run(block, traces if block.trace else Path(made), **env)
        shown = "".join(f"$ {command}\n" for command in block.commands)
        text = text.replace(f"{shown}{block.printed}```", f"{shown}{printed}```")
        page.write_text(text)
        print(f"{time.monotonic() - began_s:6.0f} s  {block.commands[-1]}", flush=True)


def table(traces: Path) -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "cli")]
    from drfd.core.scheduling.policies import POLICIES

    print("processor seconds, most memory in MiB (with the trace read, without its figures)\n")
    print("| trace | " + " | ".join(POLICIES) + " |")
    print("|---" * (1 + len(POLICIES)) + "|")
    for name, capacity in MACHINES.items():
        cells = [cost(traces / name, capacity, policy) for policy in POLICIES]
        print(f"| {name.partition('.')[0]} | {' | '.join(cells)} |", flush=True)


def cost(trace: Path, capacity: str, policy: str) -> str:
    """Of one simulation, in a process of its own."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        from drfd.sim.driver import simulate
        from drfd.sim.machine import parse_capacity, rules_of
        from drfd.sim.workload import read_trace

        machine = parse_capacity(capacity)
        work = read_trace(trace, rates=(machine.read_bps, machine.write_bps))
        began_s = time.process_time()
        simulate(work.jobs, replace(rules_of(machine), policy=policy))
        took_s = time.process_time() - began_s
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        os.write(write_end, f"{took_s:.1f}, {most}".encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as said:
        found = said.read()
    os.waitpid(pid, 0)
    return found or "failed"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.traces", description=__doc__)
    parser.add_argument("traces", type=Path, metavar="DIR", nargs="?")
    parser.add_argument("--results", action="store_true", help="write drfd/sim/RESULTS.md anew")
    parser.add_argument("--paper", action="store_true", help="write that of the paper anew")
    chosen = parser.parse_args()
    if chosen.paper:
        refresh(PAPER, Path(), **PAPER_ENV)
    elif chosen.traces is None:
        parser.error("name the DIR of the traces")
    elif chosen.results:
        refresh(RESULTS, chosen.traces)
    else:
        table(chosen.traces)


if __name__ == "__main__":
    main()
