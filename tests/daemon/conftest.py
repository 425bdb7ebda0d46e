"""The daemon's parts without its process: a journal of its own, a fake host, an inbox."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.desk import Desk, Shell, make_desk_over, open_shell
from drfd.core.fairness.rules import Rules
from drfd.core.model.job import Now
from drfd.daemon.config import Config
from drfd.journal.journal import Journal
from fakes import now, rules


@pytest.fixture
def make_shell(tmp_path):
    """Shells on one journal file: a second one is the daemon after its restart."""
    opened: list[Shell] = []

    def make(
        *,
        by: Rules | None = None,
        journal: type[Journal] = Journal,
        ready: bool = True,
        clock: Callable[[], Now] = now,
    ) -> Shell:
        opened.append(open_shell(tmp_path, by or rules(), journal, ready=ready, clock=clock))
        return opened[-1]

    yield make
    for shell in opened:
        shell.journal.close()
        shell.engine.ledger.check()
        assert shell.host.take() == [], "an effect that the test did not ask for"


@pytest.fixture
def shell(make_shell):
    return make_shell()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose sockets have addresses of any ordinary length."""
    with tempfile.TemporaryDirectory(prefix="drfd-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def make_desk(make_shell, tmp_path):
    """Makes a desk over a new shell, with the options of one."""

    def make(
        *,
        config: Config | None = None,
        takes_root: bool = True,
        mono: Callable[[], float] = time.monotonic,
        **shell_options: Any,
    ) -> Desk:
        shell = make_shell(**shell_options)
        return make_desk_over(shell, tmp_path, config or Config(), takes_root, mono)

    return make


@pytest.fixture
def desk(make_desk) -> Iterator[Desk]:
    """A desk whose effects nobody looks at."""
    desk = make_desk()
    yield desk
    desk.shell.host.take()
