"""Other programs that queue jobs, beside drfd in one run: `python -m tests.bench.others`, as root.

Those that are installed are measured: HyperQueue (`hq`, or the Python package of an interpreter
that `--hyperqueue` names), task-spooler (`tsp`), `at`, and Slurm. Which are missing is said, and
how they are had. drfd, HyperQueue and task-spooler get servers of their own, which end with the
run; `at` and Slurm are measured where their services run already, and no service is touched.

Each has two slots, if it can be told so. A job is `stamp`, which does nothing but tell the time.
A run takes turns; the table has medians of:
  start     from the start of the command that submits a job, half a second after the end of the
            last one, to the job's first instruction (ms), and what 95 of 100 are below
  submit    submissions a second, in a shell's loop (or in a Python program)
  jobs      jobs a second of that loop, from its first submission to the start of the last job
  at once   the same where one command submits them all
They do not do the same: drfd and Slurm confine jobs, drfd, Slurm and `at` keep them on disk,
HyperQueue and task-spooler do neither.
"""

import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from drfd.client.client import Client
from instance import BIN, wait_for
from tests.bench.place import Place, late, options_of

#: Seconds after which a program has failed to run what it was given.
_PATIENCE_S = 120
#: Seconds between the end of a job and the next submission.
_GAP_S = 0.5

#: HyperQueue as a Python program has it: reads `COUNT` (so many submissions) or `=COUNT` (one of so
#: many jobs), and answers `#` when they are submitted. It writes other lines, too.
_HYPERQUEUE = """
import sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from hyperqueue.output import Stdio

def job(count):
    made = Job()
    for _ in range(count):
        made.program(sys.argv[2:], stdout=None, stderr=None)
    return made

with LocalCluster(sys.argv[1], WorkerConfig(cores=2)) as cluster:
    client = cluster.client()
    print('#', flush=True)
    for line in sys.stdin:
        if line.startswith("="):
            client.submit(job(int(line[1:])))
        else:
            for _ in range(int(line)):
                client.submit(job(1))
        print('#', flush=True)
"""


class Missing(Exception):
    """The program cannot be measured here; the text says why, and what to do about it."""


@dataclass
class Way:
    """One way to have a program run jobs."""

    #: Submits so many jobs, one after the other.
    loop: Callable[[int], None]
    #: Submits so many with one command.
    at_once: Callable[[int], None] | None = None
    starts_ms: list[float] = field(default_factory=list)
    submitted: list[float] = field(default_factory=list)
    looped: list[float] = field(default_factory=list)
    arrays: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Scene:
    """What a program is given: the user's options for `subprocess`, and a job."""

    place: Place
    #: The path of `stamp`, and the FIFO that it writes to.
    job: list[str]

    @property
    def text(self) -> str:
        return shlex.join(self.job)

    def commands(self, submit: str, array: str | None = None, **env: str) -> Way:
        """Of shell commands. `array`: with {} in place of the number of jobs."""

        def run(script: str) -> None:
            options = self.place.as_user()
            options["env"] |= env
            subprocess.run(
                ["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, check=True, **options,
            )  # fmt: skip

        def loop(count: int) -> None:
            run(f"i=0; while [ $i -lt {count} ]; do {submit} || exit; i=$((i+1)); done")

        return Way(loop, None if array is None else lambda count: run(array.format(count)))


@contextmanager
def drfd(scene: Scene) -> Iterator[dict[str, Way]]:
    """By its command, and by its Python client."""
    drf = str(BIN / "drf")
    options = "-q -o /dev/null -e /dev/null -m 64M"
    way = scene.commands(
        f"{drf} submit {options} -- {scene.text}",
        f"{drf} submit {options} --array 1-{{}} -- {scene.text}",
    )
    with Client(scene.place.connect()) as client:
        job: dict[str, Any] = {
            "argv": scene.job, "cwd": scene.place.instance.work, "memory": "64M",
            "stdout": "/dev/null", "stderr": "/dev/null",
        }  # fmt: skip

        def loop(count: int) -> None:
            for _ in range(count):
                client.submit(**job)

        def at_once(count: int) -> None:
            client.submit(**job, array=f"1-{count}")

        yield {"drf submit": way, "drfd, Python": Way(loop, at_once)}


@contextmanager
def hyperqueue_commands(scene: Scene) -> Iterator[dict[str, Way]]:
    hq = _program("hq", "a binary of github.com/It4innovations/hyperqueue, to be put in the path")
    directory = _own_directory(scene.place, "hq")
    options = scene.place.as_user()
    options["env"] |= {"HQ_SERVER_DIR": str(directory)}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
    with ExitStack() as stack:
        server = subprocess.Popen([hq, "server", "start"], **quiet)
        stack.callback(_end, server)
        wait_for("hq", lambda: not subprocess.call([hq, "server", "info"], **quiet), seconds=30)
        stack.callback(_end, subprocess.Popen([hq, "worker", "start", "--cpus", "2"], **quiet))
        given = "--stdout none --stderr none"
        yield {
            "hq submit": scene.commands(
                f"{hq} submit {given} -- {scene.text}",
                f"{hq} submit {given} --array 1-{{}} -- {scene.text}",
                HQ_SERVER_DIR=str(directory),
            )
        }


@contextmanager
def hyperqueue_library(scene: Scene, python: str) -> Iterator[dict[str, Way]]:
    """The server and its worker are in the Python program."""
    if subprocess.call([python, "-c", "import hyperqueue"], stderr=subprocess.DEVNULL):
        raise Missing("no Python package hyperqueue: --hyperqueue PYTHON names an interpreter")
    directory = _own_directory(scene.place, "hyperqueue")
    process = subprocess.Popen(
        [python, "-c", _HYPERQUEUE, str(directory), *scene.job],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **scene.place.as_user(),
    )  # fmt: skip

    def answer() -> None:
        assert process.stdout is not None
        if "#\n" not in iter(process.stdout.readline, ""):
            raise Missing("HyperQueue's Python program has ended")

    def say(text: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        answer()

    try:
        answer()
        yield {
            "HyperQueue, Python": Way(lambda count: say(str(count)), lambda count: say(f"={count}"))
        }
    finally:
        _end(process)


@contextmanager
def task_spooler(scene: Scene) -> Iterator[dict[str, Way]]:
    tsp = _program("tsp", "the Debian package task-spooler")
    env = {"TS_SOCKET": str(_own_directory(scene.place, "tsp") / "socket"), "TS_SLOTS": "2"}
    way = scene.commands(f"{tsp} -n {scene.text}", None, **env)
    options = scene.place.as_user()
    options["env"] |= env
    try:
        yield {"tsp": way}
    finally:
        subprocess.run([tsp, "-K"], check=True, **options)


@contextmanager
def at(scene: Scene) -> Iterator[dict[str, Way]]:
    """As many jobs at a time as there are: `at` counts none."""
    program = _program("at", "the Debian package at")
    names = {path.read_text() for path in _existing(Path("/proc").glob("[0-9]*/comm"))}
    if "atd\n" not in names:
        raise Missing("no atd runs")
    queue = "y"
    text = f"echo {shlex.quote(scene.text)} | {program} -q {queue} now 2>&1"
    try:
        yield {"at (no slots)": scene.commands(text)}
    finally:
        # The account is ours, and so is every job of it.
        script = f"atq -q {queue} | cut -f1 | xargs -r atrm"
        subprocess.run(["sh", "-c", script], check=True, **scene.place.as_user())


@contextmanager
def slurm(scene: Scene) -> Iterator[dict[str, Way]]:
    _program("sbatch", "the Debian packages slurmctld, slurmd and slurm-client, and slurm.conf")
    if subprocess.call(["scontrol", "ping"], stdout=subprocess.DEVNULL):
        raise Missing("no slurmctld answers")
    config = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True).stdout
    kinds = [line.split()[-1] for line in config.splitlines() if line.startswith("ProctrackType")]
    print(f"(Slurm follows processes by {', '.join(kinds)})")
    options = f"-Q -n 1 -o /dev/null -D / --wrap {shlex.quote(scene.text)}"
    try:
        yield {
            "sbatch": scene.commands(f"sbatch {options}", f"sbatch -a 1-{{}}%2 {options}"),
            "srun": scene.commands(f"srun -Q -n 1 -D / {scene.text}"),
        }
    finally:
        subprocess.run(["scancel", "-u", str(scene.place.uid)], check=False)


def main() -> None:
    parser = options_of("tests.bench.others", __doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each (3)")
    parser.add_argument("--jobs", type=int, default=200, help="in a loop (200)")
    parser.add_argument("--starts", type=int, default=10, help="in each run (10)")
    parser.add_argument("--hyperqueue", default=sys.executable, metavar="PYTHON")
    chosen = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_late)
    place = Place(2)
    try:
        place.start()
        with place.stamps() as (path, stamps):
            scene = Scene(place, [place.stamp, path])
            programs = (
                *(drfd, hyperqueue_commands),
                lambda scene: hyperqueue_library(scene, chosen.hyperqueue),
                *(task_spooler, at, slurm),
            )
            with ExitStack() as stack:
                ways: dict[str, Way] = {}
                for program in programs:
                    try:
                        ways |= stack.enter_context(program(scene))
                    except Missing as error:
                        print(f"(not measured: {error})")
                print(f"{'':<22}{'start':>11}{'95 %':>11}{'submit':>9}{'jobs':>9}{'at once':>9}")
                for _ in range(chosen.runs):
                    for way in ways.values():
                        measure(way, stamps, chosen.jobs, chosen.starts)
                for name, way in ways.items():
                    print(line(name, way))
    finally:
        place.destroy()


def measure(way: Way, stamps: Iterator[int], jobs: int, starts: int) -> None:
    for _ in range(starts):
        time.sleep(_GAP_S)
        begin_ns = time.monotonic_ns()
        way.loop(1)
        way.starts_ms.append((_last(stamps, 1) - begin_ns) / 1e6)
    begin_ns = time.monotonic_ns()
    way.loop(jobs)
    way.submitted.append(jobs / (time.monotonic_ns() - begin_ns) * 1e9)
    way.looped.append(jobs / (_last(stamps, jobs) - begin_ns) * 1e9)
    if way.at_once is not None:
        begin_ns = time.monotonic_ns()
        way.at_once(jobs)
        way.arrays.append(jobs / (_last(stamps, jobs) - begin_ns) * 1e9)


def line(name: str, way: Way) -> str:
    start, most = statistics.median(way.starts_ms), late(way.starts_ms)
    rates = [
        f"{statistics.median(found):>9,.0f}" if found else f"{'–':>9}"
        for found in (way.submitted, way.looped, way.arrays)
    ]
    return f"{name:<22}{start:>8,.1f} ms{most:>8,.1f} ms" + "".join(rates)


def _last(stamps: Iterator[int], count: int) -> int:
    """When the last of so many jobs has begun."""
    signal.alarm(_PATIENCE_S)
    found = max(islice(stamps, count))
    signal.alarm(0)
    return found


def _too_late(*_: object) -> None:
    raise SystemExit(f"not all jobs have run within {_PATIENCE_S} s")


def _program(name: str, source: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Missing(f"no {name}: {source}")
    return path


def _own_directory(place: Place, name: str) -> Path:
    directory = place.instance.root / name
    directory.mkdir(mode=0o700)
    os.chown(directory, place.uid, -1)
    return directory


def _existing(paths: Iterator[Path]) -> Iterator[Path]:
    return (path for path in paths if path.exists())


def _end(process: subprocess.Popen[Any]) -> None:
    """HyperQueue heeds no SIGTERM while Python waits for it."""
    process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
