"""What lending promises, measured: `python -m tests.bench.lending [--only NAME]`, as root.

table    Who has how much of one core, beside what DRF says: three pools with floors of a quarter
         of it; A holds most of the memory, and C sleeps half of the time.
wakes    What jobs that wake up at random have in their first fifth of a second, all on one CPU,
         where the kernel's weights alone decide. Half of the time there is neither controller nor
         launcher, killed with -9, and everybody has been lent everything.
spread   The same on all CPUs, among which the kernel must spread the processes first.
outside  What a program outside drfd has beside a job that is lent cores, of what it has beside
         the same job without lending; one that always spins, and one that wakes up at random. And
         what it would have if drfd did not look at what is outside (respect_external_load = false).
cost     Processor time of controller and launcher with many running jobs, with lending and
         without, in turns.
programs For each mode of cores how many seconds real programs with `-c 1..all` run, alone and
         beside a job of the same range that never rests, on all CPUs. Where nothing is lent, a
         program is told as many threads as its lower end has cores; "weight, all threads" is one
         whose user sets OMP_NUM_THREADS. OpenMP is a stencil in C (threads.c) with a barrier at the
         end of each step, for which a C compiler is needed; numpy, if the Python of --python has
         it, products of matrices (OpenBLAS).

Use a machine that does nothing else: the parts measure parts of the whole machine.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from instance import ALONE, CONFIG, Instance, cpu_s
from kernel import Kernel
from tests.bench.place import HERE, await_running, fill, options_of
from wakes import WINDOW_S, Wake, counter, introduce, lend_all, neighbour, sleeper, wakes

CPUS = sorted(os.sched_getaffinity(0))
_PYTHON = [sys.executable, "-I", "-S", "-c"]
#: Spins and sleeps in turns of so many seconds, with two processes.
_IN_TURNS = """
import os, sys, time
os.fork()
turn_s = float(sys.argv[1])
while True:
    at_s = time.time() % (2 * turn_s)
    if at_s >= turn_s: time.sleep(2 * turn_s - at_s)
"""
#: Uses a fiftieth of a CPU.
_LIGHT = """
import time
while True:
    until = time.process_time() + 0.002
    while time.process_time() < until: pass
    time.sleep(0.1)
"""


def config(mode: str, cores: float, *, is_alone: bool = True) -> str:
    text = CONFIG.replace("cores = 9", f"cores = {cores:g}") + "[pools.C]\n"
    text = text.replace("[enforcement]", f'[enforcement]\ncores = "{mode}"')
    return text + (ALONE if is_alone else "[scheduling]\nrespect_external_load = true\n")


@contextmanager
def running(text: str) -> Iterator[Instance]:
    instance = Instance(text)
    try:
        yield instance.start()
    finally:
        instance.restart_if_dead()
        instance.destroy()


def run(instance: Instance, cores: str, command: Sequence[str], *words: str) -> dict[str, Any]:
    """A job that runs."""
    job_id = instance.submit("-c", cores, *(words or ("-m", "100M")), "--", *command)
    return instance.wait_state(job_id, "RUNNING")


def change(instance: Instance, text: str) -> None:
    instance.config.write_text(text)
    instance.drf("reload")


def used_s(job: dict[str, Any]) -> float:
    return Kernel().use(job)[0] / 1e6


# -- table ------------------------------------------------------------------------------------

#: Seconds for which C spins, and then sleeps; and after which ceilings have settled.
_TURN_S, _SETTLED_S = 12.0, 5.0
#: By whether C is awake: what DRF says of A, B and C.
_THEORY = {True: (0.25, 0.375, 0.375), False: (0.40, 0.60, 0.0)}


def table(seconds: float) -> None:
    print("of one core                     A      B      C     all")
    for mode in ("quota", "share"):
        with running(config(mode, 1)) as instance:
            spin, turns = neighbour(2), [*_PYTHON, _IN_TURNS, str(_TURN_S)]
            jobs = [
                run(instance, "0.25..1", command, "-p", pool, "-m", memory)
                for pool, memory, command in (
                    ("A", "10800M", spin), ("B", "1800M", spin), ("C", "1800M", turns),
                )
            ]  # fmt: skip
            found = in_turns(jobs, seconds)
        for is_awake, parts in found.items():
            words = f"{mode}, {'all are busy' if is_awake else 'C sleeps'}"
            print(f"{words:<28}{figures(parts)}{sum(parts):7.2f}")
    for is_awake, parts in _THEORY.items():
        words = f"DRF, {'all are busy' if is_awake else 'C sleeps'}"
        print(f"{words:<28}{figures(parts)}", flush=True)


def figures(parts: Sequence[float]) -> str:
    return "".join(f"{part:7.3f}" for part in parts)


def in_turns(jobs: list[dict[str, Any]], seconds: float) -> dict[bool, list[float]]:
    """What each job uses while C is awake, and while it sleeps."""
    spans: dict[bool, list[list[float]]] = {True: [], False: []}
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s or not all(spans.values()):
        at_s = time.time() % (2 * _TURN_S)
        is_awake, left_s = at_s < _TURN_S, _TURN_S - at_s % _TURN_S
        if left_s < _TURN_S - 1:
            time.sleep(left_s)
            continue
        time.sleep(_SETTLED_S)
        began_s, before = time.monotonic(), [used_s(job) for job in jobs]
        time.sleep(_TURN_S - _SETTLED_S - 1.5)
        span_s, after = time.monotonic() - began_s, [used_s(job) for job in jobs]
        used = [(now - was) / span_s for was, now in zip(before, after, strict=True)]
        spans[is_awake].append(used)
    return {
        is_awake: [statistics.mean(parts) for parts in zip(*found, strict=True)]
        for is_awake, found in spans.items()
    }


# -- wakes ------------------------------------------------------------------------------------

#: Seconds with, and then without, controller and launcher.
_ALIVE_S, _DEAD_S = 20.0, 25.0


def one_cpu(seconds: float) -> None:
    tell("on one CPU", CPUS[-1:], 1.0, (0.1, 0.2, 0.3), seconds)


def all_cpus(seconds: float) -> None:
    tell(f"on {len(CPUS)} CPUs", [], float(len(CPUS)), (0.25, 0.5, 0.75), seconds)


def tell(
    words: str, cpus: Sequence[int], capacity: float, floors: Sequence[float], seconds: float
) -> None:
    found, deaths = wake_up(cpus, capacity, floors, seconds)
    tell_wakes(f"{words}, controller and launcher alive", found[False], capacity)
    tell_wakes(f"{words}, both killed with -9, {deaths} times", found[True], capacity)


def wake_up(
    cpus: Sequence[int], capacity: float, floors: Sequence[float], seconds: float
) -> tuple[dict[bool, list[Wake]], int]:
    """Return all wake-ups, by whether controller and launcher were dead, and how often they were
    killed."""
    most = f"..{len(CPUS)}"
    with running(config("share", len(CPUS))) as instance:
        floor = f"{capacity - sum(floors):.3f}"
        jobs = {0: run(instance, floor + most, neighbour(2 * len(CPUS), cpus))}
        out = instance.work / "wakes"
        for number, floor_of_it in enumerate(floors, 1):
            command = sleeper(out, number, floor_of_it, cpus)
            jobs[number] = run(instance, f"{floor_of_it}{most}", command)
        introduce(instance.work, {number: counter(job) for number, job in jobs.items()})
        dead: list[tuple[float, float]] = []
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(_ALIVE_S)
            kill_all(instance)
            # The worst that drfd could have left.
            for job in jobs.values():
                lend_all(job, len(CPUS))
            died_s = time.monotonic()
            time.sleep(_DEAD_S)
            dead.append((died_s, time.monotonic() - WINDOW_S))
            instance.start()
        found: dict[bool, list[Wake]] = {True: [], False: []}
        for wake in wakes(out):
            found[any(first <= wake.at_s <= last for first, last in dead)].append(wake)
        return found, len(dead)


def kill_all(instance: Instance) -> None:
    """SIGKILL to the launcher and the controller, before either can do anything about it."""
    os.kill(instance.launcher_pid(), signal.SIGKILL)
    instance.kill()


def tell_wakes(words: str, found: Sequence[Wake], capacity: float) -> None:
    print(f"{words}: {len(found)} wake-ups, {sum(w.is_short(capacity) for w in found)} too short")
    print("  floor   of it, in the first 0.2 s:   least     1 %    10 %    half")
    for floor in sorted({wake.floor for wake in found}):
        parts = sorted(wake.part(capacity) for wake in found if wake.floor == floor)
        marks = [parts[int(len(parts) * mark)] for mark in (0, 0.01, 0.1, 0.5)]
        print(f"  {floor:5.2f}{'':27}" + "".join(f"{mark:8.2f}" for mark in marks), flush=True)


# -- outside ----------------------------------------------------------------------------------

_SPIN = [*_PYTHON, "while True: pass"]


def outside(rounds: int) -> None:
    """A spinner outside, and one that wakes up, both beside a job that could use everything."""
    most = len(CPUS)
    texts = {
        "quota": config("quota", most, is_alone=False),
        "share": config("share", most, is_alone=False),
        "blind": config("share", most),
    }
    with running(texts["share"]) as instance:
        job = run(instance, f"0.5..{most}", neighbour(2 * most))
        out = instance.work / "outside"
        print(
            "a program outside, beside -c 0.5..all            quota   share   ratio   blind   ratio"
        )
        for words, command, measure in (
            ("spins: cores", _SPIN, lambda pid: rate(pid, 5.0)),
            ("wakes up: of its first 0.2 s", sleeper(out, 1, 1.0), lambda _: first_moments(out)),
        ):
            introduce(instance.work, {0: counter(job), 1: counter(job)})
            with subprocess.Popen(command, cwd=instance.work) as process:
                try:
                    found = compare(instance, texts, partial(measure, process.pid), rounds)
                finally:
                    process.kill()
            quota, *lent = (statistics.mean(found[mode]) for mode in texts)
            ratios = "".join(f"{each:8.3f}{each / quota:8.3f}" for each in lent)
            print(f"{words:<46}{quota:8.3f}{ratios}", flush=True)


def compare(
    instance: Instance, texts: dict[str, str], measure: Callable[[], float], rounds: int
) -> dict[str, list[float]]:
    """Measure by either configuration in turns, after a moment in which ceilings settle."""
    found: dict[str, list[float]] = {mode: [] for mode in texts}
    for _ in range(rounds):
        for mode, text in texts.items():
            change(instance, text)
            time.sleep(4)
            found[mode].append(measure())
    return found


def rate(pid: int, seconds: float) -> float:
    """Cores that a process uses."""
    began_s, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began_s)


def first_moments(out: Path) -> float:
    """What a sleeper has of one core when it wakes up, in the next ten seconds."""
    before = len(wakes(out))
    time.sleep(10)
    return statistics.mean(wake.own_s / wake.taken_s for wake in wakes(out)[before:])


# -- cost -------------------------------------------------------------------------------------


def cost(count: int, seconds: float) -> None:
    texts = {mode: config(mode, 300).replace('"18G"', '"900G"') for mode in ("quota", "share")}
    with running(texts["share"]) as instance:
        demand = {"cores_milli": 1000, "cores_max_milli": 4000, "memory_bytes": 64 << 20}
        light = [*_PYTHON, _LIGHT]
        fill(
            instance,
            count,
            lambda at: {
                "argv": ["sleep", "10000"] if at % 10 else light, "demand": demand,
                "pool": "ABC"[at % 3], "stdout": "/dev/null",
            },
        )  # fmt: skip
        await_running(instance, count)
        assert instance.process is not None
        parts = [instance.process.pid, instance.launcher_pid()]
        found = compare(instance, texts, lambda: sum(rate(pid, seconds) for pid in parts), 3)
    quota, share = (statistics.median(found[mode]) for mode in ("quota", "share"))
    print(f"controller and launcher, {count} jobs with ranges run     of a core")
    print(f"  quota                                             {quota:8.2%}")
    print(f"  share                                             {share:8.2%}")
    print(f"  lending                                           {share - quota:8.2%}", flush=True)


# -- programs ---------------------------------------------------------------------------------

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


def programs(python: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        stencil = Path(place, "threads")
        command = ["cc", "-O2", "-fopenmp", HERE / "threads.c", "-o", stencil]
        subprocess.run(command, check=True, cwd=place)
        commands: dict[str, Sequence[object]] = {"OpenMP": (stencil, 1500)}
        if not subprocess.run([python, "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode:
            commands["numpy"] = (python, "-c", _NUMPY, 250)
        run_programs(commands, rounds)


def run_programs(programs: dict[str, Sequence[object]], rounds: int) -> None:
    columns = "".join(f"{name:>9}{'beside':>9}" for name in programs)
    print(f"{'seconds, -c 1..' + str(len(CPUS)):<24}{columns}")
    for words, (mode, has_threads) in MODES.items():
        env = {"OMP_NUM_THREADS": str(len(CPUS))} if has_threads else {}
        with running(config(mode, len(CPUS))) as instance:
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
    cores = f"1..{len(CPUS)}"
    other = run(instance, cores, neighbour(len(CPUS)), "-p", "B") if is_beside else None
    clean = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    job_id = instance.submit("-c", cores, "-p", "A", "--", *command, env={**clean, **env})
    job = instance.wait_end(job_id)
    assert job["state"] == "COMPLETED", job
    if other is not None:
        instance.drf("cancel", other["id"])
        instance.wait_end(other["id"])
    return float(job["ended_at"] - job["started_at"])


def main() -> None:
    parser = options_of("tests.bench.lending", __doc__)
    parts = ("table", "wakes", "spread", "outside", "cost", "programs")
    parser.add_argument("--only", choices=parts, action="append", help="may be repeated")
    parser.add_argument("--minutes", type=float, default=60.0, help="of wakes, and of spread (60)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each row of others (60)")
    parser.add_argument("--jobs", type=int, default=200, help="for cost (200)")
    parser.add_argument("--rounds", type=int, default=3, help="of programs, the median counts (3)")
    parser.add_argument("--python", default=sys.executable, help="that has numpy (this one)")
    chosen = parser.parse_args()
    measures: dict[str, Callable[[], None]] = {
        "table": lambda: table(chosen.seconds),
        "wakes": lambda: one_cpu(chosen.minutes * 60),
        "spread": lambda: all_cpus(chosen.minutes * 60),
        "outside": lambda: outside(max(1, round(chosen.seconds / 12))),
        "cost": lambda: cost(chosen.jobs, chosen.seconds / 3),
        "programs": lambda: programs(chosen.python, chosen.rounds),
    }
    for name in chosen.only or parts:
        measures[name]()


if __name__ == "__main__":
    main()
