"""Plugin for the quick tests: what they may use, and how they run on all cores.

A quick test has no mark `slow`, `system` or `vm`. It fails if it uses more than `CPU_S` seconds of
CPU with the few examples of a quick run, if it leaves a thread, a process, an open socket or pipe,
or a file in the temporary directory behind, or if an assertion compares a measured time.

pytest without a path runs the quick tests in as many processes as there are cores. They are forked
when the tests are collected, and each runs whole modules; one terminal shows the reports of all.
"""

import ast
import gc
import inspect
import json
import os
import resource
import select
import signal
import stat
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

#: A quick test may use so much CPU, its children's included, in seconds: many times of what it
#: should on an idle machine, as others are slower, or shared with who takes caches and half a core.
CPU_S = 2.0
#: What has been told to end may take so long on a busy machine, in seconds.
ENDING_S = 10.0
#: Marks of tests that are not quick.
SLOW_MARKS = ("slow", "system", "vm", "gpu")
#: Folders of tests that start daemons or machines, or try thousands of cases.
SLOW_FOLDERS = ("e2e", "system", "torture", "vm", "clients", "bench")
#: More processes than this save no time, since one collects the tests for all.
MAX_PROCESSES = 4

TESTS = Path(__file__).parent


def is_quick_run(config: pytest.Config) -> bool:
    """True if pytest was started without a path and without -m, so that it runs the quick tests."""
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not named and not config.option.markexpr


def is_quick(item: pytest.Item) -> bool:
    folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
    marks = (item.get_closest_marker(name) for name in SLOW_MARKS)
    return folder not in SLOW_FOLDERS and not any(marks)


#: The mode of /tmp when pytest was started.
_TMP_MODE = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TMP_MODE] = os.stat("/tmp").st_mode
    # Temporary files of others are not taken for a test's; pytest's own stay where they were.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    directory = tempfile.TemporaryDirectory(prefix="drfd-", dir="/tmp", ignore_cleanup_errors=True)
    os.chmod(directory.name, 0o777 | stat.S_ISVTX)  # tests may start programs as other users
    tempfile.tempdir = os.environ["TMPDIR"] = directory.name
    config.add_cleanup(directory.cleanup)
    if is_quick_run(config):
        settings.load_profile("quick")


def pytest_report_header(config: pytest.Config) -> str | None:
    if not is_quick_run(config):
        return None
    return f"quick tests in {_processes(config)} processes; `python -m pytest tests` runs all tests"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    slow = collection_path.parent == TESTS and collection_path.name in SLOW_FOLDERS
    return True if slow and is_quick_run(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_quick_run(config):
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item)])
        items[:] = [item for item in items if is_quick(item)]


# -- what a quick test may use and leave ---------------------------------------------------------


#: Threads and children, sockets and pipes, temporary files after the set-up of a test.
_BEFORE = pytest.StashKey[tuple[set[object], dict[int, str], set[str]]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield
    # Fixtures of a module or of the session stay.
    item.stash[_BEFORE] = _running(), _descriptors(), set(os.listdir(tempfile.gettempdir()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    began_s = _cpu_s()
    yield
    took_s = _cpu_s() - began_s
    if is_quick(item) and (times := _compared_times(item)):
        pytest.fail(f"a quick test compares a measured time: {times}", pytrace=False)
    if is_quick_run(item.config) and took_s > CPU_S:
        pytest.fail(f"a quick test used {took_s:.2f} s of CPU, more than {CPU_S}", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    if os.stat("/tmp").st_mode != item.config.stash[_TMP_MODE]:
        pytest.fail("the test has changed the rights of /tmp", pytrace=False)
    if is_quick(item) and (left := _left_by(item)):
        pytest.fail(f"the test leaves behind: {left}", pytrace=False)


def _left_by(item: pytest.Item) -> str | None:
    """Name what the test has left; what has been told to end has time for it."""
    if _BEFORE not in item.stash:
        return None  # its fixtures have failed
    before, descriptors, files_before = item.stash[_BEFORE]
    until_s = time.monotonic() + ENDING_S
    while left := _running() - before:
        if time.monotonic() > until_s:
            return f"threads or processes {left}"
        time.sleep(0.01)
    if any(fd not in descriptors for fd in _descriptors()):
        gc.collect()  # of objects in cycles
    if opened := {fd: to for fd, to in _descriptors().items() if fd not in descriptors}:
        return f"open sockets or pipes {opened}"
    # SQLite has read the directory's name once for all processes, and has files there for a moment.
    while files := set(os.listdir(tempfile.gettempdir())) - files_before:
        if time.monotonic() > until_s:
            return f"temporary files {files}"
        time.sleep(0.01)
    return None


def _cpu_s() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _running() -> set[object]:
    """Return the threads of this process, and its children's pids."""
    running: set[object] = set(threading.enumerate())
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            running.update(map(int, path.read_text().split()))
    return running


def _descriptors() -> dict[int, str]:
    """Return the open sockets and pipes."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the list itself
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {fd: to for fd, to in found.items() if to.startswith(("socket:", "pipe:"))}


_CLOCKS = {"monotonic", "perf_counter", "process_time", "monotonic_ns", "perf_counter_ns"}


def _compared_times(item: pytest.Item) -> str | None:
    """Return an assertion of the test that depends on how long something took."""
    function = getattr(item, "function", None)
    if function is None:
        return None
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    timed = set(_CLOCKS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _names(node.value) & timed:
            timed |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            compared = (each for each in ast.walk(node.test) if isinstance(each, ast.Compare))
            if any(_names(each) & timed for each in compared):
                return ast.unparse(node)
    return None


def _names(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


# -- several processes ---------------------------------------------------------------------------

#: The processes that run the other tests.
_WORKERS: set[int] = set()


def _processes(config: pytest.Config) -> int:
    alone = config.option.collectonly or config.option.usepdb or config.option.trace
    return 1 if alone else min(_cores(), MAX_PROCESSES)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = _processes(session.config)
    if not is_quick_run(session.config) or count == 1 or session.testsfailed:
        return None
    modules = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
    gc.collect()
    gc.freeze()  # no test is to pay for a look at all that was collected, nor a fork for its copy
    todo, fill = os.pipe()
    for at in range(len(modules)):
        os.write(fill, at.to_bytes(2))
    os.close(fill)
    sys.stdout.flush()
    workers = []
    for _ in range(count - 1):
        reader, writer = os.pipe()
        place = tempfile.mkdtemp()
        os.chmod(place, 0o777 | stat.S_ISVTX)
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _WORKERS.clear()
            tempfile.tempdir = os.environ["TMPDIR"] = place
            _work(session, modules, todo, writer)
        os.close(writer)
        _WORKERS.add(pid)
        workers.append(_Worker(session.config, pid, reader))
    reports = _Reports(workers)
    session.config.pluginmanager.register(reports)
    try:
        _run(session, modules, todo)
        reports.read_all()
    finally:
        os.close(todo)
        for pid in _WORKERS:
            os.kill(pid, signal.SIGINT)
            os.waitpid(pid, 0)
        _WORKERS.clear()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _run(session: pytest.Session, modules: list[list[pytest.Item]], todo: int) -> None:
    """Run modules that no other process has taken, until there are no more."""

    def take() -> list[pytest.Item]:
        at = os.read(todo, 2)
        return modules[int.from_bytes(at)] if at else []

    items = take()
    while items:
        after = take()
        for item, following in zip(items, [*items[1:], after[0] if after else None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                return
        items = after


def _work(
    session: pytest.Session, modules: list[list[pytest.Item]], todo: int, writer: int
) -> None:
    """Run tests in a forked process, which sends each report as a line of JSON; never return."""
    config = session.config
    # A worker's failures show in its reports.
    status = 1
    try:
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(_Sender(config, writer))
        _run(session, modules, todo)
        status = 0
    finally:
        os._exit(status)


class _Sender:
    def __init__(self, config: pytest.Config, writer: int) -> None:
        self._config, self._writer = config, writer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        line = json.dumps(data).encode() + b"\n"
        while line:
            line = line[os.write(self._writer, line) :]


class _Worker:
    """The reports that another process sends."""

    def __init__(self, config: pytest.Config, pid: int, reader: int) -> None:
        self._config, self._pid, self.reader = config, pid, reader
        self._text = b""

    def read(self) -> bool:
        """Show the reports that have come; False when there will be no more."""
        data = os.read(self.reader, 1 << 20)
        *lines, self._text = (self._text + data).split(b"\n")
        hook = self._config.hook
        for line in lines:
            data_of: dict[str, Any] = json.loads(line)
            if isinstance(data_of["longrepr"], list):  # of a skipped test: JSON has no tuples
                data_of["longrepr"] = tuple(data_of["longrepr"])
            report = hook.pytest_report_from_serializable(config=self._config, data=data_of)
            hook.pytest_runtest_logreport(report=report)
        if not data:
            os.close(self.reader)
            _WORKERS.discard(self._pid)
            _, status = os.waitpid(self._pid, 0)
            if status:
                pytest.exit(f"a process of the tests ended by {status}", returncode=3)
        return bool(data)


class _Reports:
    """Shows what the other processes report, between the tests of this one."""

    def __init__(self, workers: list[_Worker]) -> None:
        self._workers = {worker.reader: worker for worker in workers}

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        self._read(0)

    def read_all(self) -> None:
        while self._workers:
            self._read(None)

    def _read(self, wait_s: float | None) -> None:
        ready, _, _ = select.select(list(self._workers), [], [], wait_s)
        for reader in ready:
            if not self._workers[reader].read():
                del self._workers[reader]
