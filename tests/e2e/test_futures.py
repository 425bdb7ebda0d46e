"""`drfd.futures`: calls of Python functions as jobs of a real daemon. The script that the manual
shows is run in `test_readme.py`, where the daemon is killed meanwhile."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import math
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
import textwrap
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

from drfd.futures import Executor, JobFailed, OutOfMemory, OutOfTime, call


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
    """Can be pickled, and not be loaded again by its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)
        self.two = two


class Doubled(Exception):
    """Is another one when it is loaded again by its arguments."""

    def __init__(self, word: str) -> None:
        super().__init__(f"no {word}")


class OfFile(OSError):
    def __init__(self, *, name: str) -> None:
        super().__init__(2, "gone", name)


@dataclasses.dataclass(frozen=True)
class Fields(Exception):
    """Has nothing in `args`."""

    one: int


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("shut")
        self.lock = threading.Lock()


def awkward(kind: type[Exception], *args: object, **keywords: object) -> None:
    raise kind(*args, **keywords)


def grouped() -> None:
    raise ExceptionGroup("two", [Awkward(1, 2), OfFile(name="f")])


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
    odd = [executor.submit(function) for function in (frozen, Exits)]
    assert (plain.result(), local.result()) == (6, (1, [2]))
    found = made.result()
    assert type(found) is Point and found.x == 7
    assert made.log() == "made 7\n"
    error = failed.exception()
    assert type(error) is ValueError and error.args == ("so",)
    assert "in wrong" in str(error.__cause__) and "call.py" not in str(error.__cause__)
    assert failed.log().startswith("before so\nTraceback")
    errors = [future.exception() for future in odd]
    assert list(map(repr, errors)) == ["Frozen()", "SystemExit('loaded')"]
    for error, cause in zip(errors, ["in frozen", "cannot be loaded"], strict=True):
        assert cause in str(error.__cause__)


def test_an_exception_comes_back_as_its_class_whatever_its_init_takes(executor):
    one = executor.submit(awkward, Awkward, 1, 2)
    doubled = executor.submit(awkward, Doubled, "bread")
    of_file = executor.submit(awkward, OfFile, name="f")
    fields = executor.submit(awkward, Fields, one=7)
    group = executor.submit(grouped)
    with pytest.raises(Awkward) as failed:
        one.result()
    assert (failed.value.args, failed.value.two) == ((1,), 2)
    assert "in awkward" in str(failed.value.__cause__)
    assert repr(doubled.exception()) == "Doubled('no bread')"
    found = of_file.exception()
    assert (type(found), found.errno, found.filename) == (OfFile, 2, "f")
    assert fields.exception() == Fields(one=7)
    inner = group.exception().exceptions
    assert list(map(type, inner)) == [Awkward, OfFile] and inner[0].two == 2


def test_an_exception_that_cannot_come_back_says_why_not(executor):
    error = executor.submit(awkward, Locked).exception()
    assert type(error) is RuntimeError
    assert str(error).startswith("Locked: shut (it cannot be raised here itself: TypeError: cannot")
    assert "in awkward" in str(error.__cause__)


SCRIPT = """\
import os, sys, threading, time
from drfd.futures import Executor

def inner(x):
    return 1 / x

def nap(seconds):
    time.sleep(seconds)

def outer():
    return lambda: inner(0)
"""


@pytest.fixture
def script(instance):
    """Start a script of a user's, which begins as SCRIPT and has an executor for its lines."""

    def start(text: str) -> subprocess.Popen[str]:
        lines = textwrap.indent(textwrap.dedent(text), "    ")
        path = instance.work / "sweep.py"
        path.write_text(
            f"{SCRIPT}\nwith Executor(directory='left', memory='64M') as executor:\n{lines}"
        )
        env = {**os.environ, "DRFD_SOCKET": str(instance.socket), "PYTHONUNBUFFERED": "1"}
        started.append(subprocess.Popen(
            [sys.executable, "sweep.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=env, cwd=instance.work,
        ))  # fmt: skip
        return started[-1]

    started: list[subprocess.Popen[str]] = []
    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_traceback_names_the_file_of_the_script_and_the_line(script, instance):
    """Also of a function that a call has returned."""
    said = script("""
        try: executor.submit(inner, 0).result()
        except ZeroDivisionError as error: print(error.__cause__)
        try: executor.submit(outer).result()()
        except ZeroDivisionError:
            import traceback
            traceback.print_exc(file=sys.stdout)
    """).communicate(timeout=120)[0]  # fmt: skip
    line = f'File "{instance.work}/sweep.py", line 5, in inner\n    return 1 / x\n'
    assert said.count(line) == 2
    assert "dynamic" not in said


def test_a_block_that_an_error_leaves_says_what_it_waits_for(script, instance):
    ran = script("""
        calls = [executor.options(hold=True).submit(nap, 0) for _ in range(2)]
        while None in [each.job for each in calls]: time.sleep(0.01)
        print(*(each.job_id for each in calls))
        raise ValueError("mine")
    """)
    told = ran.stderr.readline()
    one, two = ran.stdout.readline().split()
    assert told == (
        "drfd: ValueError in the with block of the executor: it waits for jobs "
        f"{one} (HELD), {two} (HELD); ^C cancels them\n"
    )
    instance.drf("cancel", one, two)
    assert ran.communicate(timeout=120)[1].splitlines()[-1] == "ValueError: mine"


@pytest.mark.parametrize("leaves", ["pass", "raise ValueError", "print(calls[0].result())"])
def test_an_interrupt_while_the_block_waits_cancels_its_calls(script, instance, leaves):
    ran = script(f"""
        calls = [executor.submit(nap, 600), executor.options(hold=True).submit(nap, 0)]
        print("ready")
        {leaves}
    """)
    assert ran.stdout.readline() == "ready\n"
    wait_for("the start", lambda: "RUNNING" in [job["state"] for job in instance.status()])
    ran.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in ran.communicate(timeout=120)[1]
    assert instance.status() == []
    assert list((instance.work / "left").iterdir()) == []


def test_no_more_calls_run_at_a_time_than_the_executor_has_workers(instance):
    place = instance.work / "calls"
    busy = instance.work / "busy"
    busy.mkdir()

    def count(x: int) -> int:
        mark = busy / str(x)
        mark.touch()
        found = len(list(busy.iterdir()))
        time.sleep(0.3)
        mark.unlink()
        return found

    with Executor(2, socket=instance.socket, directory=place, memory="32M", cores=0.1) as executor:
        some = [executor.options(cores=0.2).submit(count, -n) for n in range(1, 4)]
        found = [*executor.map(count, range(4)), *(future.result() for future in some)]
        assert set(found) == {1, 2}
        with pytest.raises(TypeError, match="max_workers"):
            executor.options(group="mine")
    with pytest.raises(ValueError, match="max_workers"):
        Executor(max_workers=0)


def test_only_directories_in_which_others_cannot_write_are_taken(instance):
    """Those that all may write, as /tmp is, get one of the user's own."""
    shared, own = instance.work / "shared", f"drfd-futures-{os.geteuid()}"
    shared.mkdir()
    shared.chmod(0o1777)
    for _ in range(2):
        with Executor(socket=instance.socket, directory=shared, memory="64M") as executor:
            assert executor.submit(math.gcd, 4, 6).result() == 2
        assert [path.name for path in shared.iterdir()] == [own]
    assert stat.S_IMODE((shared / own).stat().st_mode) == 0o700
    (shared / own).rmdir()
    (shared / own).symlink_to(instance.work)
    open_to_all = instance.work / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    places = [shared, open_to_all]
    if os.geteuid() == 0:
        alices = instance.work / "alices"
        alices.mkdir()
        os.chown(alices, 12345, 12345)
        places.append(alices)
    for place in places:
        with pytest.raises(Refused, match="have their own code run"):
            Executor(socket=instance.socket, directory=place)


def test_what_others_have_put_among_the_calls_is_neither_opened_nor_removed(instance):
    """Into a directory that was open to others before."""
    place = instance.work / "calls"
    (place / "calls-fifo").mkdir(parents=True)
    place.chmod(0o700)
    os.mkfifo(place / "calls-fifo" / "lock")
    (place / "calls-link").mkdir()
    (place / "calls-link" / "lock").symlink_to(instance.work / "planted")
    (instance.work / "target").mkdir()
    (place / "calls-elsewhere").symlink_to(instance.work / "target")
    kept = {"calls-elsewhere", "calls-link"}
    if os.geteuid() == 0:
        (place / "calls-alices").mkdir()
        os.chown(place / "calls-alices", 12345, 12345)
        kept.add("calls-alices")
    with Executor(socket=instance.socket, directory=place):
        pass
    assert {path.name for path in place.iterdir()} == kept
    assert not (instance.work / "planted").exists()
    assert (instance.work / "target").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root may make files of others")
@pytest.mark.parametrize("belongs", ["directory", "batch"])
def test_a_job_makes_no_call_that_another_user_has_put_there(instance, belongs):
    place = instance.work / "calls-planted"
    place.mkdir()
    batch = place / "batch-0"
    target = instance.work / "target"
    planted = pickle.dumps(target.touch), pickle.dumps(((), {}))
    table = len(planted[0]).to_bytes(8, "big")
    batch.write_bytes(pickle.dumps((sys.path, table)) + b"".join(planted))
    os.chown(place if belongs == "directory" else batch, 12345, 12345)
    done = instance.drf(
        "run", "-m", "64M", "--", sys.executable, "-P", call.__file__, str(batch), "0", check=False
    )
    assert "belongs to another user" in done.stderr
    assert not target.exists()


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
    for wrong_ones, kind in (({"array": range(3)}, TypeError), ({"memory": "lots"}, Refused)):
        with pytest.raises(kind):
            executor.options(**wrong_ones)
    with pytest.raises(TypeError, match=r"^Executor\.options\(\) got an unexpected .* 'corse'"):
        executor.options(corse=4)
    with pytest.raises(TypeError, match=r"^Executor\(\) got an unexpected .* 'initializer'"):
        Executor(initializer=print)
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
