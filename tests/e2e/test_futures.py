"""`drfd.futures`: calls of Python functions as jobs of a real daemon. The script that the manual
shows is run in `test_readme.py`, where the daemon is killed meanwhile."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import math
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import drfd.client
from drfd.client import Refused
from instance import ROOMY, Instance, wait_for

pytest.importorskip("cloudpickle", reason="drfd[futures] is not installed")

from drfd.futures import Executor, JobFailed, OutOfMemory, OutOfTime


@pytest.fixture
def instance(lend) -> Instance:
    return lend(ROOMY)


@pytest.fixture
def executor(instance) -> Iterator[Executor]:
    asked: dict[str, Any] = {"cores": 0.5, "memory": "64M", "time": "5m"}
    with Executor(socket=instance.socket, directory=instance.work / "calls", **asked) as executor:
        yield executor
    assert list((instance.work / "calls").iterdir()) == [], "it has left files"


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def point(x: int) -> Point:
    print("made", x)
    return Point(x)


def wrong(word: str) -> None:
    print("before", word)
    raise ValueError(word)


class Awkward(Exception):
    """Can be pickled, and not be loaded again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


def awkward() -> None:
    raise Awkward(1, 2)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Takes no cause by an assignment."""


def frozen() -> None:
    raise Frozen


class Exits:
    """Ends the process, or the thread, that loads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, ("loaded",)


def test_what_a_call_returns_or_raises_comes_back(executor):
    plain = executor.submit(math.gcd, 12, 18)
    local = executor.submit(lambda x, *, y: (x, y), 1, y=[2])
    made, failed = executor.submit(point, 7), executor.submit(wrong, "so")
    odd = [executor.submit(function) for function in (awkward, frozen, Exits)]
    assert (plain.result(), local.result()) == (6, (1, [2]))
    found = made.result()
    assert type(found) is Point and found.x == 7
    assert made.log() == "made 7\n"
    error = failed.exception()
    assert type(error) is ValueError and error.args == ("so",)
    assert "in wrong" in str(error.__cause__) and "call.py" not in str(error.__cause__)
    assert failed.log().startswith("before so\nTraceback")
    errors = [future.exception() for future in odd]
    assert list(map(repr, errors)) == [
        "RuntimeError('Awkward: 1')", "Frozen()", "SystemExit('loaded')"
    ]  # fmt: skip
    for error, cause in zip(errors, ["Awkward", "in frozen", "cannot be loaded"], strict=True):
        assert cause in str(error.__cause__)


def test_how_a_job_ended_is_an_exception_with_the_advice(executor, instance):
    slow = executor.options(time="1s").submit(time.sleep, 600)
    gone, early = executor.submit(os._exit, 3), executor.submit(os._exit, 0)
    talks = executor.submit(lambda: print("x" * 100_000, flush=True) or os._exit(1))
    assert "ended before the call had returned" in str(early.exception())
    assert len(str(talks.exception())) < 5000
    with pytest.raises(OutOfTime, match=r"TIMEOUT: .*ask for more next time: -t 2s"):
        slow.result()
    with pytest.raises(JobFailed, match="FAILED: exit code 3") as failed:
        gone.result()
    assert (failed.value.job_id, failed.value.state) == (str(gone.job_id), "FAILED")
    if instance.has_cgroups():
        with pytest.raises(OutOfMemory, match="ask for more next time: -m 96M"):
            executor.submit(bytearray, 200 << 20).result()


def test_calls_are_cancelled(executor, instance):
    waiting = executor.options(hold=True).submit(math.gcd, 1, 2)
    running, other = (executor.submit(time.sleep, 600) for _ in range(2))
    wait_for("their start", lambda: running.running() and other.running())
    assert [future.cancel() for future in (waiting, running)] == [True, True]
    instance.drf("cancel", other.job_id)
    with pytest.raises(concurrent.futures.CancelledError):
        other.result()
    done, _ = concurrent.futures.wait([waiting, running, other])
    assert [future.cancelled() for future in done] == [True] * 3
    ended = executor.submit(math.gcd, 1, 2)
    assert (ended.result(), ended.cancel()) == (1, False)


def test_a_block_that_is_interrupted_stops_its_calls(instance):
    with (
        pytest.raises(KeyboardInterrupt),
        Executor(socket=instance.socket, directory=instance.work, memory="64M") as executor,
    ):
        calls = executor.submit(time.sleep, 600), executor.options(hold=True).submit(math.gcd, 1, 2)
        wait_for("its start", calls[0].running)
        raise KeyboardInterrupt
    assert [future.cancelled() for future in calls] == [True, True]


def test_a_shutdown_cancels_what_has_not_started(instance):
    with Executor(socket=instance.socket, directory=instance.work, memory="64M") as executor:
        running = executor.submit(time.sleep, 1)
        waiting = executor.options(hold=True).submit(time.sleep, 600)
        wait_for("its start", lambda: running.running() or running.done())
        executor.shutdown(cancel_futures=True)
    assert (running.result(0), waiting.cancelled()) == (None, True)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(math.gcd, 1, 2)


def test_a_map_is_one_array_whose_tasks_may_make_many_calls(executor, instance):
    assert list(executor.map(pow, range(7), [2] * 9)) == [x * x for x in range(7)]
    assert list(executor.map(math.sqrt, range(7), chunksize=3)) == [x**0.5 for x in range(7)]
    assert list(executor.map(math.sqrt, [])) == []
    with pytest.raises(ValueError, match="chunksize"):
        executor.map(math.sqrt, [1], chunksize=0)
    with drfd.client.connect(instance.socket) as client:
        ended = client.status(ended=10)
    tasks = [("pow", index) for index in range(7)] + [("sqrt", index) for index in range(3)]
    assert sorted((job.name, job.array_index) for job in ended) == tasks


def test_a_map_that_fails_cancels_the_rest(executor, instance):
    with pytest.raises(ValueError, match="no"):
        list(executor.map(lambda x: wrong("no") if x == 0 else time.sleep(600), range(4)))
    with pytest.raises(ValueError, match="no") as failed:
        list(executor.map(wrong, ["no"], chunksize=2))
    assert "call.py" not in str(failed.value.__cause__)
    with pytest.raises(TimeoutError):
        list(executor.map(time.sleep, [600], timeout=0.1))
    wait_for("no job to be left", lambda: not instance.status(), show=instance.status)


def test_a_full_disk_is_told_and_left_to_other_calls(executor, instance):
    """The limit of file sizes stands in for the disk."""

    def unreadable() -> None:
        os.umask(0o777)

    def large() -> bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        return bytes(2 << 20)

    with pytest.raises(JobFailed, match="File too large"):
        executor.submit(large).result()
    assert not list((instance.work / "calls").glob("*/*.part"))
    if os.getuid():
        with pytest.raises(PermissionError):
            executor.submit(unreadable).result()
    assert executor.submit(math.gcd, 4, 6).result() == 2


def test_options_are_those_of_a_job(executor, instance):
    more = executor.options(cores=2, name="mine", stdout=str(instance.work / "%j.txt"))
    future = more.submit(point, 1)
    future.result()
    job = future.job
    assert job is not None
    assert (job.demand.cores, job.demand.memory, job.name) == (2, 64 << 20, "mine")
    assert Path(str(job.stdout)).read_text() == "made 1\n"
    for wrong_ones, kind in (
        ({"corse": 4}, TypeError), ({"array": range(3)}, TypeError), ({"memory": "lots"}, Refused),
    ):  # fmt: skip
        with pytest.raises(kind):
            executor.options(**wrong_ones)
    with pytest.raises(Refused, match="this machine has"):
        executor.options(cores=1000).submit(math.gcd, 1, 2)


def test_files_are_the_users_own_and_go_when_they_are_read(executor, instance):
    future = executor.submit(math.gcd, 12, 18)
    future.result()
    (directory,) = (instance.work / "calls").iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {path.suffix for path in directory.iterdir()} == {".out", ""}
    script = f"while : > {directory}/more-$i; do i=$((i + 1)); done"
    instance.drf("submit", "-m", "64M", "-o", "/dev/null", "--", "sh", "-c", script)
    wait_for("a job that writes there, too", lambda: list(directory.glob("more-*")))
    for number in range(10_000):  # so that to remove them takes a while
        (directory / f"{number}.out").touch()


def test_files_of_a_killed_executor_go_with_the_next_one_when_its_jobs_have_ended(instance):
    program = (
        "import os, time\n"
        "from drfd.futures import Executor\n"
        "print(Executor(directory='own/left', memory='64M').submit(time.sleep, 600).job_id)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "DRFD_SOCKET": str(instance.socket), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env,
        cwd=instance.work, timeout=120,
    )  # fmt: skip
    left = instance.work / "own" / "left"
    with Executor(socket=instance.socket, directory=left):
        assert len(list(left.iterdir())) == 2
        assert {stat.S_IMODE(path.stat().st_mode) for path in (left, left.parent)} == {0o700}
    instance.drf("cancel", done.stdout.strip())
    instance.wait_end(int(done.stdout))
    (left / "calls-made-again").mkdir()
    with Executor(socket=instance.socket, directory=left):
        assert len(list(left.iterdir())) == 1
    assert list(left.iterdir()) == []


def test_the_interpreter_waits_for_calls_and_for_nothing_else(instance):
    """Of an executor that nobody shuts down, and whose first job is refused."""
    program = (
        "import time\n"
        "from drfd.futures import Executor\n"
        "for executor in Executor(directory='left', memory='64M'), Executor(directory='left'):\n"
        "    try: executor.options(cores=1000).submit(print)\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "future = executor.submit(time.sleep, 0.2)\n"
        "future.add_done_callback(lambda future: print(future.result()))\n"
    )
    env = {**os.environ, "DRFD_SOCKET": str(instance.socket)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env,
        cwd=instance.work, timeout=120,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("Refused\nRefused\nNone\n", "")
    assert list((instance.work / "left").iterdir()) == []


def test_a_forked_child_leaves_calls_and_files_to_its_parent(executor, instance):
    values = executor.map(lambda x: time.sleep(x) or x, [0, 0.5])
    assert next(values) == 0
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="forked"):
                executor.submit(math.gcd, 1, 2)
            values.close()
            executor.shutdown(cancel_futures=True)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (next(values), executor.submit(math.gcd, 4, 6).result()) == (0.5, 2)


def test_threads_and_coroutines_share_it(executor):
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(executor.submit(pow, n, 2).result()))
        for n in range(4)
    ]

    async def gather() -> list[float]:
        loop = asyncio.get_running_loop()
        first = asyncio.wrap_future(executor.submit(math.sqrt, 4))
        return await asyncio.gather(first, loop.run_in_executor(executor, math.sqrt, 9))

    for thread in threads:
        thread.start()
    assert asyncio.run(gather()) == [2.0, 3.0]
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 4, 9]
