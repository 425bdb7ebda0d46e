"""The controller: its parts wired together, on one asyncio loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from drfd.core.job import Job
from drfd.core.limits import deadline_mono_s
from drfd.core.stimuli import Now, Tick
from drfd.daemon import spawn
from drfd.daemon.accounts import Accounts
from drfd.daemon.config import Config
from drfd.daemon.crew import muster
from drfd.daemon.cures import Standing
from drfd.daemon.curves import Curves
from drfd.daemon.engine import Engine, Work
from drfd.daemon.feed import Feed
from drfd.daemon.inbox import Inbox
from drfd.daemon.link import Link
from drfd.daemon.lookup import Lookup
from drfd.daemon.machine import Site
from drfd.daemon.meter import Meter
from drfd.daemon.overview import Overview
from drfd.daemon.pulse import Pulse
from drfd.daemon.requests import Requests
from drfd.daemon.rounds import Rounds
from drfd.daemon.server import Server
from drfd.daemon.snapshots import Snapshots
from drfd.errors import DrfdError, HostError
from drfd.journal.journal import Journal
from drfd.launcher.protocol import SOCKET_NAME
from drfd.service import Service

log = logging.getLogger("drfd")

#: A begin time is looked at again after so many seconds at most: the clock of the world may be
#: set, and does not stand still while the machine sleeps.
_CLOCK_S = 60.0
#: Seconds between passes while jobs wait and nothing happens.
_PASS_S = 5.0
_LAST_WORDS_S = 0.2
#: What a machine is short of when a client cannot be taken, and how often that is told.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TELL_S = 60.0


class Daemon:
    """The parts, wired; one asyncio loop."""

    def __init__(
        self,
        config: Config,
        site: Site,
        places: spawn.Places,
        launcher: spawn.OwnLauncher | None,
        reread: Callable[[], tuple[Config, Site]],
        manager: Service,
        standing: Standing,
        *,
        admins: frozenset[int],
        allow: frozenset[int],
    ) -> None:
        self._inbox = Inbox(self._turn)
        self._deadline: asyncio.TimerHandle | None = None
        self._launcher = launcher
        self._reread = reread
        self.journal = Journal(places.journal)
        self._meter = Meter(time.monotonic)
        self._curves = Curves(self._meter, self.journal, clock)
        self._link = Link(
            socket_path=places.launcher / SOCKET_NAME,
            disks=site.disks,
            max_pids=config.max_pids,
            cores_by=config.cores_by,
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
            curve_of=self._curves.to_keep,
        )
        self._link.engine = self._engine
        self._rounds = Rounds(self._engine, self._meter, self._curves, clock, self.submit)
        self._pulse = Pulse(manager, self._engine, clock, self.submit)
        self._end = asyncio.Event()
        self._end_needs_idle = False
        self._told_short_s = float("-inf")
        self._requests = Requests(
            engine=self._engine,
            submit_work=self.submit,
            config=config,
            site=self._and_lost(site),
            meter=self._meter,
            curves=self._curves,
            link=self._link,
            standing=standing,
            takes_root=0 in allow,
            reload=self.reload,
            shut_down=self.shut_down,
        )
        self._feed = Feed(self._engine, self._meter)
        overview = Overview(self._engine, Lookup(self._engine, self._meter), self._curves)
        self._snapshots = Snapshots(overview)
        self._server = Server(self._requests, self._feed, self._snapshots, Accounts(admins))

    async def run(self, listener: socket.socket, *, idle_exit_s: float | None) -> None:
        """Until SIGTERM or SIGINT, or a part of it breaks. Jobs run on."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_trouble)
        loop.set_default_executor(muster())
        parts = [
            asyncio.create_task(self._link.run()),
            asyncio.create_task(self._rounds.run()),
            asyncio.create_task(self._server.run(listener)),
            asyncio.create_task(self._watch_keeper()),
            asyncio.create_task(self._pass_now_and_then()),
            asyncio.create_task(self._until_told()),
            asyncio.create_task(self._pulse.beat()),
            asyncio.create_task(self._pulse.tell()),
        ]
        if idle_exit_s is not None:
            parts.append(asyncio.create_task(self._until_idle(idle_exit_s)))
        stop = asyncio.create_task(_never())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.cancel)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._pulse.ready()
        done, waiting = await asyncio.wait([*parts, stop], return_when=asyncio.FIRST_COMPLETED)
        self._pulse.stopping()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        self._rounds.save_curves(all_of_them=True)
        for task in done - {stop}:
            task.result()

    def reload(self) -> Site:
        """Put the configuration as it is now into force; running jobs keep what they have. Raises
        ConfigError, and changes nothing, when it is wrong."""
        self._pulse.reloading()
        try:
            return self._reload()
        finally:
            self._pulse.ready()

    def _reload(self) -> Site:
        config, site = self._reread()
        self._engine.adopt(site.rules)
        site = self._and_lost(site)
        self._requests.config, self._requests.site = config, site
        self._link.set_limits(site.disks, config.max_pids, config.cores_by)
        self._engine.want_pass()
        self.submit(Work(Tick(clock())))
        log.info("event=reloaded")
        return site

    def _and_lost(self, site: Site) -> Site:
        """With a word on what jobs name, and the configuration does not any more."""
        lost = tuple(
            f"jobs name the disk {name}, which is not configured: those that wait for it wait on "
            "(drf why says so for each), those that run keep their limits"
            for name in self._engine.rules.axes.lost
        )
        lost += tuple(
            f"jobs name the resource {name}, which is not configured: those that wait for it wait "
            "on (drf why says so for each), those that run keep what they have"
            for name in self._engine.rules.lost_gres
        )
        return replace(site, warnings=(*site.warnings, *lost))

    def shut_down(self, *, after_jobs: bool) -> None:
        """End, at once or when no job runs any more."""
        self._end_needs_idle = after_jobs
        self._end.set()

    def _on_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A client that cannot be taken waits: asyncio tries again each second, for each of them.
        One line is enough."""
        error = context.get("exception")
        is_shortage = isinstance(error, OSError) and error.errno in _SHORTAGES
        if not is_shortage and not isinstance(error, MemoryError):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._told_short_s > _TELL_S:
            self._told_short_s = time.monotonic()
            log.error("event=clients-wait error=%s", error or "out of memory")

    def _on_hangup(self) -> None:
        try:
            self.reload()
        except DrfdError as error:
            log.error("event=reload-refused error=%s", error)

    def submit(self, work: Work) -> None:
        """Queue work for the next turn of the loop."""
        self._inbox.add(work)

    def _turn(self, batch: list[Work]) -> Work | None:
        """One of the engine's; what it has had no time for."""
        try:
            self._engine.turn(batch)
        except MemoryError:
            # The journal is whole, jobs run on, and whoever keeps us starts us again.
            log.error("event=out-of-memory: drfd ends, jobs run on, and the next drfd goes on")
            os._exit(os.EX_OSERR)
        except Exception:
            # A bug, with as little lost.
            log.exception("event=bug")
            os._exit(os.EX_SOFTWARE)
        self._set_deadline()
        return Work(Tick(clock())) if self._engine.wants_turn else None

    def _job_changed(self, job: Job) -> None:
        self._requests.job_changed(job)
        self._feed.job_changed(job)
        self._snapshots.job_changed(job)
        self._curves.job_changed(job)

    def _set_deadline(self) -> None:
        """Wake up when the next wall-time limit or grace time is over, or a begin time has come."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        engine = self._engine
        dues = (deadline_mono_s(job, engine.rules.grace_s) for job in engine.ledger.holders())
        delays = [due - time.monotonic() for due in dues if due is not None]
        if engine.ledger.begins:
            delays.append(min(_CLOCK_S, engine.ledger.begins.first[0] - time.time()))
        if delays:
            delay = min(delays)
            loop = asyncio.get_running_loop()
            # Overdue after a turn: the journal did not take it. Not at once again.
            self._deadline = loop.call_later(
                delay if delay > 0 else 0.5, lambda: self.submit(Work(Tick(clock())))
            )

    async def _watch_keeper(self) -> None:
        """Without it nobody would start the launcher again, nor any job: better to be started
        anew as a whole. One that is not ours is somebody else's to start."""
        gone = asyncio.Event()
        if self._launcher is not None:
            asyncio.get_running_loop().add_reader(self._launcher.keeper, gone.set)
        await gone.wait()
        raise HostError("launcher", "the keeper of the launcher has died; start drfd again")

    async def _pass_now_and_then(self) -> None:
        """Patience runs out and estimates pass without any event."""
        while True:
            await asyncio.sleep(min(_PASS_S, max(1.0, self._engine.rules.patience.patience_s)))
            if self._engine.ledger.queues:
                self._engine.want_pass()
                self.submit(Work(Tick(clock())))

    async def _until_told(self) -> None:
        """Until `drf shutdown`, and what it asks to wait for."""
        await self._end.wait()
        # Who asked is to have the answer first.
        await asyncio.sleep(_LAST_WORDS_S)
        while self._end_needs_idle and self._engine.ledger.holding:
            await asyncio.sleep(_LAST_WORDS_S)
        log.info("event=shutdown")

    async def _until_idle(self, idle_exit_s: float) -> None:
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < idle_exit_s:
            await asyncio.sleep(min(5.0, idle_exit_s / 4))
            if not self._engine.ledger.is_empty or not self._server.is_idle:
                idle_since = time.monotonic()
        log.info("event=idle-exit")


def clock() -> Now:
    return Now(at_s=time.time(), mono_s=time.monotonic())


async def _never() -> None:
    await asyncio.Event().wait()
