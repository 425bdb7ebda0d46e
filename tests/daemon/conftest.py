"""The daemon's parts without its process: a journal of its own, a fake host, an inbox."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.desk import DISK, Desk, OwnPrograms, Shell
from drfd.core.fairness.rules import Rules
from drfd.core.model.job import Job, Now
from drfd.daemon.config import Config, Site, UserLimits
from drfd.daemon.engine.engine import Engine
from drfd.daemon.handlers.doctor import InstallContext
from drfd.daemon.handlers.requests import Requests
from drfd.daemon.launcher_link.link import Link, Links
from drfd.daemon.launcher_link.messages import LaunchSettings
from drfd.daemon.monitoring.meter import Curves, Meter
from drfd.daemon.monitoring.reserves import Reserves
from drfd.journal.files import Reserve
from drfd.journal.journal import Journal
from fakes import FakeHost, now, rules


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
        book = journal(tmp_path / "journal.sqlite")
        host = FakeHost(ready=ready)
        changed: list[Job] = []
        engine = Engine(journal=book, rules=by or rules(), launchers=host, clock=clock)
        engine.listeners.append(changed.append)
        opened.append(Shell(engine, book, host, changed))
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
        told: list[bool] = []
        meter = Meter(lambda: 0.0)
        link = Link(
            socket_path=tmp_path / "launcher.sock",
            settings=LaunchSettings([DISK], max_pids=64, cores_by="quota"),
            meter=meter,
        )
        # As if it had connected.
        link.away_since_s = None
        requests = Requests(
            engine=shell.engine, config=config or Config(),
            site=Site(shell.engine.rules, (DISK,), (config or Config()).defaults, ("a warning",)),
            meter=meter, curves=Curves(meter, shell.journal, now), links=Links(link),
            reserves=Reserves(
                Reserve(tmp_path / "reserve", most_bytes=0),
                lambda: UserLimits(reserve_disk_bytes=0), memory=list,
            ),
            install=InstallContext(
                uid=0, config_file=Path("/etc/drfd/drfd.toml"), is_systems=True, is_service=False,
                has_systemd=False, lingers=False,
            ),
            takes_root=takes_root, reload=lambda: requests.site, shut_down=lambda *,
            after_jobs: told.append(after_jobs), mono=mono,
        )  # fmt: skip
        requests.history.children = OwnPrograms(requests.history.children.kind, patience_s=60)
        return Desk(shell, requests, link, told)

    return make


@pytest.fixture
def desk(make_desk) -> Iterator[Desk]:
    """A desk whose effects nobody looks at."""
    desk = make_desk()
    yield desk
    desk.shell.host.take()
