"""Fuzzing of whatever reads what others wrote: `python -m tests.torture.fuzz TARGET --seconds N`.

A target takes bytes, and raises for what must not happen: anything but the clear refusal that its
reader promises. With atheris (the extra `fuzz`) the inputs follow what code they reach; without it
they are mutations of the corpus. Both begin with `tests/data/fuzz/TARGET/`, and leave there what
was found (`crash-…`), which the tests try for ever after. `all` goes through all targets.
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, NoReturn

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from daemon.desk import make_desk_over, open_shell  # noqa: E402
from drfd.client.connection import Connection  # noqa: E402
from drfd.common import indices, units  # noqa: E402
from drfd.common.errors import ConfigError, DrfdError, Refused  # noqa: E402
from drfd.core.model.job import Actor  # noqa: E402
from drfd.daemon.config import Config, parse  # noqa: E402
from drfd.daemon.launcher_link import counters  # noqa: E402
from drfd.daemon.server import encode  # noqa: E402
from drfd.host import disks, measurements  # noqa: E402
from drfd.launcher import attempt_files, protocol  # noqa: E402
from drfd.launcher.confinement import cgroup_files  # noqa: E402
from drfd.protocol import codec  # noqa: E402
from drfd.protocol import requests as messages  # noqa: E402
from drfd.sim import workload  # noqa: E402
from drfd_cli import output  # noqa: E402
from drfd_cli.slurm import sbatch_options  # noqa: E402
from drfd_cli.submission.job_line import check_options, directives  # noqa: E402
from drfd_experiments.alloc import read_spec  # noqa: E402
from fakes import rules  # noqa: E402

CORPUS = TESTS / "data" / "fuzz"
Target = Callable[[bytes], object]
#: What numbers, texts and files are often stumbled over by.
_EDGES: list[Any] = [
    *(0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 1e308, -0.0, 0.5, True, None),
    *("", "0", "-1", "\0", "\x1b[2J", "ü", "\ud800", "x" * 5000, "root", "1-9%2", "[/x]", "*"),
    *([], {}, [[]], ["true"], {"ids": [1]}, {"everything": True}),
]
_WORDS = [b"\0", b"\n", b"\r\n", b"max", b"total", b"0", b"-", b"=", b"[", b"{", b'"', b"\xff"]
_WORDS.append(b"9" * 40)


# -- the targets ----------------------------------------------------------------------------------


def frame(data: bytes) -> None:
    """A line from a client, and one from a daemon."""
    try:
        messages.decode_request(data)
    except Refused as refusal:
        _check_line(refusal, data)
    try:
        codec.decode(data)
    except ValueError:
        pass


def orders(data: bytes) -> None:
    """A line from the controller to the launcher, which runs as root."""
    try:
        protocol.read_order(data)
    except protocol.BadMessage:
        pass


def attempt(data: bytes) -> None:
    """An attempt file. What is added to a whole one takes nothing of it back."""
    found = attempt_files.parse(data)
    whole = attempt_files.parse(_RUNNING + data)
    assert whole is not None and whole.may_have_run
    if found is not None and found.may_have_run:
        assert attempt_files.parse(data + b"\n{}\n") is not None


def config(data: bytes) -> None:
    try:
        tree = tomllib.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return
    try:
        parse(tree, "drfd.toml")
    except ConfigError as error:
        _check_line(error, data)


def _no_job(path: Path) -> NoReturn:
    """In place of a daemon, which is asked for the jobs that a line names."""
    raise Refused("no-job", "there is no job of this name")


def script(data: bytes) -> None:
    """A job script with #DRF lines, and with lines of Slurm."""
    text = data.decode(errors="replace")
    client = Connection("/none/drfd.sock", start=_no_job)
    with _refusals():
        directives(text, "job.sh", lambda options: check_options(options, client))
    with _refusals():
        wanted = sbatch_options.read_lines(text.replace("#DRF", "#SBATCH"), "job.sh")
        if wanted is not None:
            sbatch_options.translate(wanted, "host")


def spec(data: bytes) -> None:
    """A problem for `drf simulate`."""
    with _refusals():
        read_spec(data.decode(errors="replace"))


def trace(data: bytes) -> None:
    """A workload from elsewhere (SWF, CSV)."""
    lines = data.decode(errors="replace").splitlines(keepends=True)
    with _refusals():
        workload.read_lines(lines, source="trace", rates=(1, 1))


def words(data: bytes) -> None:
    """What people type: sizes, rates, times, arrays."""
    text = data.decode(errors="replace")
    readers = (
        *(units.parse_size, units.parse_memory, units.parse_disk_rates, units.parse_rates),
        *(units.parse_duration, units.parse_cores, indices.read_array),
    )
    for read in readers:
        try:
            read(text)
        except (Refused, ValueError) as error:
            assert not isinstance(error, UnicodeError) and str(error)


_RUNNING = b'{"record":"created"}\n{"record":"launched","pid":11,"start_ticks":100}\n'


class Files:
    """The files that the kernel shows of a job, with this in each of them."""

    NAMES = (
        *("memory.stat", "memory.current", "memory.peak", "memory.events", "io.stat", "io.max"),
        *("cpu.stat", "cpu.max", "io.pressure", "pids.peak", "pids.current", "cgroup.events"),
        *("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt", "cpuset.mems"),
        *("memory.oom_control", "cpuacct.usage", "blkio.throttle.io_service_bytes", "cpuset.cpus"),
        *("memory.max", "memory.events.local", "cpuset.memory_migrate", "cgroup.procs"),
    )

    def __init__(self) -> None:
        shm = Path("/dev/shm")
        self._place = tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None)
        self._file = Path(self._place.name, "file")
        for name in self.NAMES:
            Path(self._place.name, name).symlink_to(self._file)

    def __call__(self, data: bytes) -> None:
        self._file.write_bytes(data)
        directory = self._place.name
        v1 = dict.fromkeys(("memory", "cpuacct", "cpu", "blkio", "cpuset", "pids"), directory)
        for mounts in (v1, {measurements.UNIFIED: directory}):
            measurements.sample_cgroup(mounts, ".", 1.0)
            measurements.peak_memory(mounts, ".")
            measurements.pinned_cpus(mounts, ".")
        measurements.kept_memory(directory)
        counters.judge(cgroup_files.read_counters(cgroup_files.counters_v1(v1)))
        counters.judge(cgroup_files.read_counters(cgroup_files.counters_v2(directory)))
        cgroup_files.regions_of_gpus(directory)
        text = data.decode(errors="replace")
        cgroup_files.find_unified(text)
        disks.locate("/var", text, directory)

    def close(self) -> None:
        self._place.cleanup()


class Desk:
    """Every request handler, over real books and a real journal: only refusals come out."""

    #: Jobs are forgotten after so many requests.
    _FRESH = 300
    _ACTORS = (Actor("alice", 1001, False), Actor("bob", 1002, False), Actor("root", 0, True))

    def __init__(self) -> None:
        self._count = 0
        self._open()

    def __call__(self, data: bytes) -> None:
        try:
            request = messages.decode_request(data)
        except Refused:
            return
        if isinstance(request, messages.EventsRequest):
            return
        self._count += 1
        if self._count % self._FRESH == 0:
            self.close()
            self._open()
        self._loop.run_until_complete(self._ask(request))

    async def _ask(self, request: messages.Request) -> None:
        actor = self._ACTORS[self._count % len(self._ACTORS)]
        try:
            async with asyncio.timeout(0.05 if isinstance(request, messages.WaitRequest) else 20):
                encode(await self._requests.answer(actor, actor.uid, request))
        except DrfdError as error:
            _check_line(error, b"")
        except TimeoutError:
            assert isinstance(request, messages.WaitRequest), "no answer"
        self._shell.host.take()

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        shm = Path("/dev/shm")
        self._place = tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None)
        place = Path(self._place.name)
        self._shell = open_shell(place, rules())
        self._requests = make_desk_over(self._shell, place, Config()).requests

    def close(self) -> None:
        # With the turns that are due.
        self._loop.close()
        self._requests.close()
        self._shell.engine.ledger.check()
        self._shell.journal.close()
        self._place.cleanup()


#: By name; each is made when it is wanted.
TARGETS: dict[str, Callable[[], Target]] = {
    "frame": lambda: frame,
    "requests": Desk,
    "orders": lambda: orders,
    "attempt": lambda: attempt,
    "cgroup": Files,
    "config": lambda: config,
    "script": lambda: script,
    "spec": lambda: spec,
    "trace": lambda: trace,
    "words": lambda: words,
}


@contextmanager
def made(name: str) -> Iterator[Target]:
    target = TARGETS[name]()
    try:
        yield target
    finally:
        if isinstance(target, Files | Desk):
            target.close()


def _check_line(error: DrfdError, data: bytes) -> None:
    """One line for each fault, which quotes no more than was there."""
    lines = str(error).split("\n") if isinstance(error, ConfigError) else [str(error)]
    for text in lines:
        assert text and text.isprintable() and len(text) < 4000 + len(data), repr(text)


@contextmanager
def _refusals() -> Iterator[None]:
    """Of the command line, which cleans and clips what it quotes."""
    try:
        yield
    except Refused as error:
        assert output.clean(str(error), 1000).isprintable() and error.text


# -- the attack -----------------------------------------------------------------------------------


def corpus_of(name: str) -> list[bytes]:
    seeds = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
    if name in ("frame", "requests"):
        golden = (TESTS / "data" / "v0.1" / "wire.jsonl").read_text().splitlines()
        seeds += [json.dumps(json.loads(line)["request"]).encode() for line in golden]
    if name == "orders":
        seeds += (TESTS / "data" / "v0.1" / "orders.jsonl").read_bytes().splitlines()
    if name == "attempt":
        seeds += [path.read_bytes() for path in sorted((TESTS / "data/v0.1/attempts").iterdir())]
    return seeds or [b""]


def attack(name: str, seconds: float, *, seed: int = 0) -> int:
    """Mutations for so long, in processor time; how many. Raises and keeps what is found."""
    chance, seeds = Random(seed), corpus_of(name)
    until_s = time.process_time() + seconds
    count = 0
    with made(name) as target:
        while time.process_time() < until_s:
            data = chance.choice(seeds)
            for _ in range(chance.choice((1, 1, 2, 4))):
                data = mutated(data, chance, seeds)
            count += 1
            try:
                target(data)
            except BaseException as error:
                error.add_note(f"found by {keep(name, data)}")
                raise
    return count


def keep(name: str, data: bytes) -> Path:
    path = CORPUS / name / f"crash-{hashlib.sha256(data).hexdigest()[:12]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def mutated(data: bytes, chance: Random, seeds: list[bytes]) -> bytes:
    if chance.random() < 0.6:
        try:
            return json.dumps(_mutated_tree(json.loads(data), chance)).encode()
        except (ValueError, RecursionError):
            pass
    at = chance.randrange(len(data) + 1)
    match chance.randrange(6):
        case 0 if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + chance.randrange(20) :]
        case 2:
            return data[:at] + chance.choice(_WORDS) + data[at:]
        case 3:
            other = chance.choice(seeds)
            return data[:at] + other[chance.randrange(len(other) + 1) :]
        case 4:
            piece = data[at : at + chance.randrange(40)]
            return data[:at] + piece * chance.choice((2, 3, 100)) + data[at:]
        case _:
            return data[:at] + str(chance.choice(_EDGES)).encode(errors="replace") + data[at + 1 :]


def _mutated_tree(tree: Any, chance: Random) -> Any:
    """One value of it is another, or gone, or one more is there."""
    if isinstance(tree, dict) and tree:
        name = chance.choice([*tree])
        match chance.randrange(6):
            case 0:
                return {key: value for key, value in tree.items() if key != name}
            case 1:
                return {**tree, name: chance.choice(_EDGES)}
            case 2:
                return {**tree, str(chance.choice(_EDGES))[:20]: tree[name]}
            case _:
                return {**tree, name: _mutated_tree(tree[name], chance)}
    if isinstance(tree, list) and tree:
        at = chance.randrange(len(tree))
        return [*tree[:at], _mutated_tree(tree[at], chance), *tree[at + chance.randrange(2) :]]
    if isinstance(tree, int) and chance.random() < 0.5:
        return tree + chance.choice((-1, 1, 1 << 31, -(1 << 31)))
    return chance.choice(_EDGES)


def guided(name: str, seconds: float) -> None:
    """By atheris, which ends the process; what it finds is kept."""
    atheris = import_module("atheris")
    atheris.instrument_all()
    target, seeds = TARGETS[name](), corpus_of(name)

    def one(data: bytes) -> None:
        try:
            target(data)
        except BaseException:
            print(f"found: {keep(name, data)}", file=sys.stderr)
            raise

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < 0.5:
            return mutated(data, chance, seeds)[:size]
        return bytes(atheris.Mutate(data, size))

    with tempfile.TemporaryDirectory() as place:
        for number, data in enumerate(seeds):
            Path(place, str(number)).write_bytes(data)
        # Nothing is written beside the corpus but by `keep`.
        words = [sys.argv[0], f"-max_total_time={int(seconds)}", f"-artifact_prefix={place}/"]
        atheris.Setup([*words, "-max_len=20000", place], one, custom_mutator=mutate)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (60)")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    chosen = parser.parse_args()
    is_guided = find_spec("atheris") is not None and not chosen.plain
    for name in TARGETS if chosen.target == "all" else [chosen.target]:
        if is_guided:
            # It never returns, so each target has a process.
            pid = os.fork()
            if pid == 0:
                guided(name, chosen.seconds)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(f"{name}: {'nothing found' if status == 0 else 'something found'}", flush=True)
            if status != 0:
                sys.exit(1)
        else:
            count = attack(name, chosen.seconds, seed=time.time_ns())
            print(f"{name}: {count} inputs, nothing found", flush=True)


if __name__ == "__main__":
    main()
