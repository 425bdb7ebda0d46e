"""drfd: the controller's commands, and the wiring of its parts."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drfd import __version__, paths
from drfd.core.job import Job, JobState
from drfd.core.limits import deadline_mono_s
from drfd.core.stimuli import Breached, Now, Tick
from drfd.daemon import spawn
from drfd.daemon.accounts import Accounts
from drfd.daemon.config import Config, load
from drfd.daemon.door import Door
from drfd.daemon.engine import Engine, Work
from drfd.daemon.link import Link
from drfd.daemon.machine import Site, survey
from drfd.daemon.meter import PERIOD_S, Meter
from drfd.daemon.requests import Requests
from drfd.daemon.server import Server
from drfd.errors import DrfdError, HostError
from drfd.host.capacity import read_machine
from drfd.journal.journal import Journal
from drfd.launcher.protocol import SOCKET_NAME

log = logging.getLogger("drfd")

#: Seconds between passes while jobs wait and nothing happens.
_PASS_S = 5.0


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    logging.basicConfig(format="drfd: %(message)s", level=logging.INFO)
    try:
        if options.command == "check-config":
            for warning in load(options.file).warnings:
                print(f"warning: {warning}", file=sys.stderr)
            print(f"{options.file} is good")
        else:
            _serve(options)
    except DrfdError as error:
        print(f"drfd: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drfd", description=__doc__)
    parser.add_argument("--version", action="version", version=f"drfd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument("--config", type=Path, help="configuration file")
    serve.add_argument("--state", type=Path, help="state directory: a private instance")
    serve.add_argument("--socket", type=Path, help="socket for drf to connect to")
    serve.add_argument(
        "--idle-exit", type=float, metavar="SECONDS", help="end after so long without jobs"
    )
    check = commands.add_parser("check-config", help="say whether a configuration file is good")
    check.add_argument("file", type=Path)
    return parser.parse_args(argv)


def _serve(options: argparse.Namespace) -> None:
    # Whatever mask we were started with: users must reach the sockets.
    os.umask(0o022)
    config = _find_config(options.config)
    is_system = options.state is None and os.getuid() == 0
    state = options.state or (paths.SYSTEM_STATE if is_system else paths.user_state(os.environ))
    places = spawn.Places(state.absolute())
    lock = spawn.prepare(places)
    site = survey(config, read_machine(), places.state)
    account, warning = spawn.controller_account(config, places)
    if warning:
        site = replace(site, warnings=(*site.warnings, warning))
    owner = os.getuid()
    # A private instance is for whoever started it too, be it root; the system's takes no root.
    allow = [*spawn.system_uids(config), *([] if is_system else [owner])]
    door = Door(options.socket or _default_socket(options, is_system), is_open=owner == 0)
    keep, keeper = spawn.start_launcher(
        places,
        config,
        controller_uid=account.pw_uid if account else owner,
        allow=allow,
        group="drfd/system" if is_system else spawn.group_for(places.state),
    )
    if account is not None:
        spawn.become(account, places)
    for text in site.warnings:
        log.warning("warning: %s", text)
    daemon = Daemon(
        config, site, places, keeper, admins=frozenset({0, owner}), allow=frozenset(allow)
    )
    log.info("event=ready socket=%s state=%s", door.path, places.state)
    try:
        asyncio.run(daemon.run(door.listener, idle_exit_s=options.idle_exit))
    finally:
        daemon.journal.close()
        door.close()
        os.close(keep)
        os.close(lock)


class Daemon:
    """The parts, wired; one asyncio loop."""

    def __init__(
        self,
        config: Config,
        site: Site,
        places: spawn.Places,
        keeper: int,
        *,
        admins: frozenset[int],
        allow: frozenset[int],
    ) -> None:
        self._inbox: list[Work] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._keeper = keeper
        self.journal = Journal(places.journal)
        self._meter = Meter(time.monotonic)
        self._link = Link(
            socket_path=places.launcher / SOCKET_NAME,
            disks=site.disks,
            max_pids=config.max_pids,
            meter=self._meter,
            clock=clock,
            submit=self.submit,
        )
        self._engine = Engine(
            journal=self.journal,
            rules=site.rules,
            host=self._link,
            clock=clock,
            on_change=self._job_changed,
        )
        self._link.engine = self._engine
        self._requests = Requests(
            engine=self._engine,
            submit_work=self.submit,
            config=config,
            site=site,
            meter=self._meter,
            link=self._link,
            takes_root=0 in allow,
        )
        self._server = Server(self._requests, Accounts(admins))

    async def run(self, listener: socket.socket, *, idle_exit_s: float | None) -> None:
        """Until SIGTERM or SIGINT, or a part of it breaks. Jobs run on."""
        loop = asyncio.get_running_loop()
        parts = [
            asyncio.create_task(self._link.run()),
            asyncio.create_task(self._measure()),
            asyncio.create_task(self._server.run(listener)),
            asyncio.create_task(self._watch_keeper()),
            asyncio.create_task(self._pass_now_and_then()),
        ]
        if idle_exit_s is not None:
            parts.append(asyncio.create_task(self._until_idle(idle_exit_s)))
        stop = asyncio.create_task(_never())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.cancel)
        done, waiting = await asyncio.wait([*parts, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done - {stop}:
            task.result()

    def submit(self, work: Work) -> None:
        """Queue work for the next turn of the loop; what arrives together shares one commit."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._turn)
        self._inbox.append(work)

    def _turn(self) -> None:
        batch, self._inbox = self._inbox, []
        try:
            self._engine.turn(batch)
        except Exception:
            # A bug: the journal is whole, jobs run on, and whoever keeps us starts us again.
            log.exception("event=bug")
            os._exit(70)
        self._set_deadline()

    def _job_changed(self, job: Job) -> None:
        self._requests.job_changed(job)

    def _set_deadline(self) -> None:
        """Wake up when the next wall-time limit or grace time is over."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        engine = self._engine
        dues = (deadline_mono_s(job, engine.rules.grace_s) for job in engine.ledger.holders())
        due = min((due for due in dues if due is not None), default=None)
        if due is not None:
            delay = due - time.monotonic()
            loop = asyncio.get_running_loop()
            # Overdue after a turn: the journal did not take it. Not at once again.
            self._deadline = loop.call_later(
                delay if delay > 0 else 0.5, lambda: self.submit(Work(Tick(clock())))
            )

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            for job in list(self._engine.ledger.holders()):
                if job.state is not JobState.RUNNING:
                    continue
                breach = await asyncio.to_thread(self._meter.sample, job)
                if breach is not None:
                    self.submit(Work(Breached(clock(), job.id, job.attempt, *breach)))

    async def _watch_keeper(self) -> None:
        """Without it nobody would start the launcher again, nor any job: better to be started
        anew as a whole."""
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._keeper, gone.set)
        await gone.wait()
        raise HostError("launcher", "the keeper of the launcher has died; start drfd again")

    async def _pass_now_and_then(self) -> None:
        """Patience runs out and estimates pass without any event."""
        while True:
            await asyncio.sleep(min(_PASS_S, max(1.0, self._engine.rules.patience.patience_s)))
            if self._engine.ledger.queues:
                self._engine.want_pass()
                self.submit(Work(Tick(clock())))

    async def _until_idle(self, idle_exit_s: float) -> None:
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < idle_exit_s:
            await asyncio.sleep(min(5.0, idle_exit_s / 4))
            if self._engine.ledger.jobs or not self._server.is_idle:
                idle_since = time.monotonic()
        log.info("event=idle-exit")


def clock() -> Now:
    return Now(at_s=time.time(), mono_s=time.monotonic())


async def _never() -> None:
    await asyncio.Event().wait()


def _find_config(path: Path | None) -> Config:
    if path is not None:
        return load(path)
    usual = paths.SYSTEM_CONFIG if os.getuid() == 0 else paths.user_config(os.environ)
    return load(usual) if usual.exists() else Config()


def _default_socket(options: argparse.Namespace, is_system: bool) -> Path:
    if options.state is not None:
        return Path(options.state) / "drfd.sock"
    return paths.SYSTEM_SOCKET if is_system else paths.user_socket(os.environ)
