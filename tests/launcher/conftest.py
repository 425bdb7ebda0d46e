"""Runners and launchers that end with the test, however it ends."""

import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance import compiled_starter
from launcher import rig
from launcher.rig import AttemptFiles, Driver, LauncherProcess, Runs, Terminal


@pytest.fixture(autouse=True)
def no_survivors() -> Iterator[None]:
    yield
    rig.end_learned()


@pytest.fixture
def start():
    """Start a process that is killed and reaped after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **options: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, **options))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for one in started:
        with one:
            one.kill()


@pytest.fixture
def files(tmp_path) -> Iterator[AttemptFiles]:
    files = AttemptFiles(tmp_path / "attempts")
    yield files
    files.clean_up()


@pytest.fixture
def work(tmp_path) -> Path:
    """The directory that jobs run in."""
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def starter() -> Path:
    """The compiled program that begins jobs' processes."""
    return compiled_starter()


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture
def runs(driver, files, work) -> Runs:
    return Runs(driver, files, work)


@pytest.fixture
def make_launcher(tmp_path):
    """Makes a launcher that does not run yet; it ends with the test."""
    made: list[LauncherProcess] = []

    def make(state: Path = tmp_path / "state") -> LauncherProcess:
        made.append(LauncherProcess(state))
        return made[-1]

    yield make
    for launcher in made:
        launcher.clean_up()


@pytest.fixture
def launcher(make_launcher) -> LauncherProcess:
    """A launcher that runs."""
    launcher = make_launcher()
    launcher.start()
    return launcher


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    # A short path: pytest's own may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="drfd-") as directory:
        terminal = Terminal(Path(directory, "attach"))
        yield terminal
        terminal.close()


@pytest.fixture
def forks_beside_threads() -> Iterator[None]:
    """Let the test's process fork though an earlier test has left a thread."""
    with warnings.catch_warnings():
        # Of Python 3.12 and later, about the parent's threads: the child does without them.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
