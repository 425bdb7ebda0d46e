"""The controller: its parts wired together on one asyncio loop, the settings of the interpreter for
that loop, and notifications of the service manager.

Full garbage collections are spaced out. One looks at every object, which takes 0.2 s with a hundred
thousand waiting jobs, and during that time no client is answered. By itself Python begins one
whenever a quarter more objects have survived, so users who submit and cancel jobs would decide how
often. Collections of young objects take a millisecond and stay as Python has them. Jobs take part
in no reference cycles, so they never need a full one.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from drfd.common.errors import DrfdError, HostError
from drfd.core.decisions.stimuli import Now, Tick
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.calendar import Calendar
from drfd.core.model.job import ROOT, JobState
from drfd.daemon import spawn
from drfd.daemon.calendar import expand
from drfd.daemon.config import Config, Site
from drfd.daemon.engine.engine import Engine, Work, home_and_others
from drfd.daemon.engine.journal_upkeep import Retention
from drfd.daemon.explanation import misplaced
from drfd.daemon.handlers.doctor import InstallContext
from drfd.daemon.handlers.requests import Requests
from drfd.daemon.launcher_link.core_weights import CoreWeights
from drfd.daemon.launcher_link.device_table import MachineGpus
from drfd.daemon.launcher_link.link import Link, Links
from drfd.daemon.launcher_link.messages import LaunchSettings
from drfd.daemon.lookup.follow import EventFeed
from drfd.daemon.lookup.lookup import Lookup
from drfd.daemon.lookup.snapshots import Overview, SnapshotFeed
from drfd.daemon.metrics.publication import metrics_warnings, serve, write_regularly
from drfd.daemon.monitoring.meter import Curves, Meter, Sampler
from drfd.daemon.monitoring.outside import OutsideUsers
from drfd.daemon.monitoring.reserves import Reserves
from drfd.daemon.server import Server
from drfd.daemon.users.accounts import Accounts
from drfd.daemon.users.threads import loops_threads
from drfd.journal.journal import Journal
from drfd.launcher.protocol import SOCKET_NAME
from drfd.linux.service import Service

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from drfd.daemon.metrics.source import Gauges

log = logging.getLogger("drfd")

#: Seconds between two passes while jobs wait and no event occurs.
_PASS_S = 5.0
#: Seconds between two looks for the calendar of the weeks ahead.
_CALENDAR_S = 600.0
#: Seconds between `drf shutdown` and the end, in which the client gets its reply.
_REPLY_S = 0.2
#: Seconds after which a thread that computes yields the interpreter to the loop.
_SWITCH_S = 0.0005
#: Errors for want of a resource when a client cannot be accepted, and the seconds between two log
#: lines about them.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG_PAUSE_S = 60.0
#: Seconds between two reports of the status to the service manager.
STATUS_S = 5.0
#: Notifications of the watchdog within its timeout.
_FEEDS = 4
#: Least time between two full garbage collections: in seconds, and in durations of the last one.
PAUSE_S, _PAUSE_FACTOR = 600.0, 5000
#: Python's own thresholds: new objects before a collection of the youngest, and collections of
#: these before one of the middle generation.
_YOUNG, _MIDDLE = 700, 10
#: The highest threshold: Python counts in a C int.
_NEVER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parameters of a daemon beside its configuration."""

    places: spawn.Places
    #: The launchers that end with this daemon; none if the service manager runs them.
    launchers: tuple[spawn.OwnLauncher, ...]
    manager: Service
    install: InstallContext
    #: Uids of administrators, and of system users for whom jobs may run.
    admins: frozenset[int]
    allow: frozenset[int]
    #: Descriptor of the state directory's lock file.
    lock: int
    #: The listening socket that gives metrics, or None.
    metrics_port: socket.socket | None


class Daemon:
    """A daemon: wires its parts, runs them on one asyncio loop, and ends them."""

    def __init__(
        self,
        config: Config,
        site: Site,
        surroundings: Surroundings,
        reread: Callable[[], tuple[Config, Site]],
    ) -> None:
        """`reread` reads the configuration again, and raises ConfigError if it is wrong."""
        places, install = surroundings.places, surroundings.install
        self._lock = surroundings.lock
        self._launchers = surroundings.launchers
        self._reread = reread
        self.journal = Journal(places.journal)
        self._meter = Meter(time.monotonic)
        self._curves = Curves(self._meter, self.journal, clock)
        self._link = Link(
            socket_path=places.launcher / SOCKET_NAME,
            settings=_launch_settings(config, site),
            meter=self._meter,
            gpus=MachineGpus(site.gpus),
        )
        others = Link(
            socket_path=places.slurm_launcher / SOCKET_NAME,
            settings=self._link.settings,
            meter=self._meter,
        )
        self._links = Links(self._link, others)
        self._links.adopt(home_and_others(site.rules.axes))
        self._engine = Engine(
            journal=self.journal,
            rules=site.rules,
            launchers=self._links,
            clock=clock,
            curve_of=self._curves.final_curve,
            on_failure=_end_after,
        )
        self._engine.adopt_calendar(_calendar(config, site.rules))
        self._engine.listeners.append(self._curves.job_changed)
        self._weights = CoreWeights(self._engine, self._link)
        self._metrics_port = surroundings.metrics_port
        self._curves.resume(self._engine.ledger.allocated_jobs())
        self._sampler = Sampler(
            self._engine, self._meter, self._curves, OutsideUsers(self._meter).read
        )
        self._notifier = ServiceNotifier(surroundings.manager, self._engine, self._link.away_s)
        self._retention = Retention(self.journal, lambda: self._requests.config.history)
        self._end = asyncio.Event()
        self._end_needs_idle = False
        self._logged_shortage_s = float("-inf")
        self._reserves = Reserves(self.journal.reserve, lambda: self._requests.config.limits)
        self._requests = Requests(
            engine=self._engine,
            config=config,
            site=self._and_lost(site),
            meter=self._meter,
            curves=self._curves,
            links=self._links,
            reserves=self._reserves,
            install=install,
            takes_root=0 in surroundings.allow,
            keys_dir=places.keys(),
            reload=self.reload,
            shut_down=self.shut_down,
        )
        self._feed = EventFeed(self._engine, self._meter, self._requests.turns)
        overview = Overview(
            self._engine,
            Lookup(self._engine, self._meter),
            self._curves,
            notices=self._requests.notices,
            gpus=self._link.gpu_use.gpus,
            machines=lambda: self._requests.machines() if self._engine.ledger.axes.nodes else [],
            start_of=self._requests.starts.of,
            renew_starts=self._requests.starts.renew,
        )
        self._snapshots = SnapshotFeed(overview)
        # They import the library of metrics, which may be missing.
        is_on = config.metrics.is_on and not metrics_warnings(config.metrics)
        self._metrics = self._make_metrics(overview) if is_on else None
        self._server = Server(
            self._requests, self._feed, self._snapshots, Accounts(surroundings.admins)
        )

    def _make_metrics(self, overview: Overview) -> tuple[CollectorRegistry, Gauges]:
        """Count for metrics from now on."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.openmetrics.exposition import generate_latest

        from drfd.daemon.metrics.source import Gauges, Tally

        registry = CollectorRegistry()
        tally = Tally(registry)
        tally.resume(self._engine.ledger.jobs.values())
        self._engine.listeners.append(tally.job_changed)
        self._engine.on_turn = tally.turn.observe
        self._engine.on_commit = tally.commit.observe
        most_users = self._requests.config.metrics.users
        gauges = Gauges(overview, most_users=most_users, away_s=self._link.away_s)
        registry.register(gauges)
        self._requests.metrics = partial(asyncio.to_thread, generate_latest, registry)
        return registry, gauges

    async def run(self, listener: socket.socket, *, idle_exit_s: float | None) -> None:
        """Run until SIGTERM, SIGINT or `drf shutdown`, or until a part fails. Jobs run on."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_trouble)
        loop.set_default_executor(loops_threads())
        # The loop competes with other threads for the interpreter after each call that may block,
        # some fifty times for one submission.
        sys.setswitchinterval(_SWITCH_S)
        defer_full_collections()
        parts = [
            asyncio.create_task(self._links.run(self._engine)),
            asyncio.create_task(self._sampler.run()),
            asyncio.create_task(self._retention.run()),
            asyncio.create_task(self._server.run(listener)),
            asyncio.create_task(self._watch_supervisor()),
            asyncio.create_task(self._pass_now_and_then()),
            asyncio.create_task(self._renew_calendar()),
            asyncio.create_task(self._until_shutdown()),
            asyncio.create_task(self._notifier.feed_watchdog()),
            asyncio.create_task(self._notifier.report_status()),
            asyncio.create_task(self._reserves.maintain()),
            asyncio.create_task(collect_garbage()),
        ]
        if self._metrics is not None:
            registry, gauges = self._metrics
            gauges.loop = loop
            if self._metrics_port is not None:
                serve(self._metrics_port, registry)
            settings = self._requests.config.metrics
            if settings.textfile is not None:
                writing = write_regularly(Path(settings.textfile), settings.interval_s, registry)
                parts.append(asyncio.create_task(writing))
        if idle_exit_s is not None:
            parts.append(asyncio.create_task(self._until_idle(idle_exit_s)))
        stop = asyncio.create_task(asyncio.Event().wait())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.cancel)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._engine.submit(Work(Tick(clock())))
        self._notifier.ready()
        done, waiting = await asyncio.wait([*parts, stop], return_when=asyncio.FIRST_COMPLETED)
        self._notifier.stopping()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        self._requests.close()
        self._sampler.save_curves(all_of_them=True)
        self._engine.stopped()
        for task in done - {stop}:
            task.result()

    def reload(self) -> Site:
        """Read the configuration again and apply it; running jobs keep their resources. Raises
        ConfigError, and changes nothing, if it is wrong."""
        self._notifier.reloading()
        try:
            return self._reload()
        finally:
            self._notifier.ready()

    def _reload(self) -> Site:
        config, site = self._reread()
        self._engine.adopt(site.rules, _calendar(config, site.rules))
        site = self._and_lost(site)
        site = replace(site, warnings=(*site.warnings, *misplaced(config)))
        self._requests.config, self._requests.site = config, site
        self._links.adopt(home_and_others(site.rules.axes))
        self._links.set_up(_launch_settings(config, site))
        self._link.measure_gpus()
        self._weights.refresh()
        self._engine.want_pass()
        self._engine.submit(Work(Tick(clock())))
        log.info("event=reloaded")
        return site

    def _and_lost(self, site: Site) -> Site:
        """Return the site with a warning for each disk, resource, pool or node that jobs name and
        that the configuration no longer has."""
        engine = self._engine

        def lost(kind: str, names: Iterable[str], then: str) -> list[str]:
            return [
                f"jobs name the {kind} {name}, which is not configured: those that wait for it "
                f"wait on (drf why says so for each), those that run {then}"
                for name in names
            ]

        warnings = (
            *site.warnings,
            *lost("disk", engine.rules.axes.lost, "keep their limits"),
            *lost("resource", engine.rules.lost_gres, "keep what they have"),
            *(
                f"jobs are in the pool {pool.removeprefix(f'{ROOT}.')}, which is not configured: "
                "those that wait or run stay in it, with weight 1 and without limit and guarantee "
                "(drf set -p POOL moves those that wait)"
                for pool in engine.lost_pools()
            ),
            *lost("node", engine.lost_nodes(), "there run on, and count on no node"),
        )
        return replace(site, warnings=warnings)

    def shut_down(self, *, after_jobs: bool) -> None:
        """End the daemon, at once or when no job runs any more."""
        self._end_needs_idle = after_jobs
        self._end.set()

    def _on_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception that was not caught elsewhere. A client that cannot be accepted
        waits. asyncio tries again each second, for each client, so few of these are logged."""
        error = context.get("exception")
        if isinstance(error, MemoryError) and "handle" in context:
            # A callback of the loop was interrupted, and a client might wait for it forever.
            _end_without_memory()
        is_shortage = isinstance(error, OSError) and error.errno in _SHORTAGES
        if not is_shortage and not isinstance(error, MemoryError):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._logged_shortage_s > _LOG_PAUSE_S:
            self._logged_shortage_s = time.monotonic()
            log.error("event=clients-wait error=%s", str(error) or "out of memory")

    def _on_hangup(self) -> None:
        try:
            self.reload()
        except DrfdError as error:
            log.error("event=reload-refused error=%s", error)

    async def _watch_supervisor(self) -> None:
        """Raise HostError when the supervisor of a launcher has died: no job could be started any
        more after the launcher's end, so the whole daemon has to be restarted. A launcher of
        another unit is restarted by the service manager."""
        gone = asyncio.Event()
        for launcher in self._launchers:
            asyncio.get_running_loop().add_reader(launcher.supervisor, gone.set)
        await gone.wait()
        raise HostError("launcher", "the supervisor of the launcher has died; start drfd again")

    async def _pass_now_and_then(self) -> None:
        """Ask for passes while jobs wait: delays and estimates expire without any event."""
        while True:
            await asyncio.sleep(min(_PASS_S, max(1.0, self._engine.rules.reserving.delay_s)))
            if self._engine.ledger.queues:
                self._engine.want_pass()
                self._engine.submit(Work(Tick(clock())))

    async def _renew_calendar(self) -> None:
        """Find the calendar of the weeks ahead again at intervals: weekly limits come into sight,
        and the clock or the time zone may have been set."""
        while True:
            await asyncio.sleep(_CALENDAR_S)
            before = self._engine.ledger.calendar
            now = _calendar(self._requests.config, self._requests.site.rules)
            self._engine.adopt_calendar(now)
            if before or now:
                self._engine.submit(Work(Tick(clock())))

    async def _until_shutdown(self) -> None:
        """Return after `drf shutdown`; if that was asked for, only when no job runs any more."""
        await self._end.wait()
        await asyncio.sleep(_REPLY_S)
        while self._end_needs_idle and self._engine.ledger.allocations:
            await asyncio.sleep(_REPLY_S)
        log.info("event=shutdown")

    async def _until_idle(self, idle_exit_s: float) -> None:
        """Return when there have been no jobs and no clients for `idle_exit_s` seconds."""
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < idle_exit_s:
            await asyncio.sleep(min(5.0, idle_exit_s / 4))
            if not self._engine.ledger.is_empty or not self._server.is_idle:
                idle_since = time.monotonic()
        log.info("event=idle-exit")


def _launch_settings(config: Config, site: Site) -> LaunchSettings:
    return LaunchSettings(site.disks, config.max_pids, config.cores_by, site.countables)


def _calendar(config: Config, rules: Rules) -> Calendar:
    return expand(config.windows, rules.pools_and_users(), rules.axes, time.time())


def clock() -> Now:
    return Now(time.time(), time.monotonic())


def _end_after(error: Exception) -> NoReturn:
    """End the process after a turn that has failed; the journal holds all turns before."""
    if isinstance(error, MemoryError):
        _end_without_memory()
    log.error("event=bug", exc_info=error)
    os._exit(os.EX_SOFTWARE)


def _end_without_memory() -> NoReturn:
    """End the process. The journal is complete, jobs run on, and the service manager or the user
    starts the next daemon."""
    log.error("event=out-of-memory: drfd ends, jobs run on, and the next drfd goes on")
    os._exit(os.EX_OSERR)


class ServiceNotifier:
    """Notifies the service manager (sd_notify(3)) of the state of the daemon."""

    def __init__(
        self, manager: Service, engine: Engine, away_s: Callable[[], float | None]
    ) -> None:
        """`away_s` returns for how many seconds the launcher has been away, or None."""
        self._manager = manager
        self._engine = engine
        self._away_s = away_s

    def ready(self) -> None:
        """Report readiness, at the start and after a reload."""
        self._manager.notify("READY=1", f"STATUS={self._status()}")

    def reloading(self) -> None:
        mono_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._manager.notify("RELOADING=1", f"MONOTONIC_USEC={mono_us}")

    def stopping(self) -> None:
        self._manager.notify("STOPPING=1", "STATUS=stopping; jobs run on")

    async def feed_watchdog(self) -> None:
        """Feed the watchdog at intervals, each time through a whole turn of the engine: if turns
        hang, the watchdog fires."""
        if self._manager.watchdog_s is None:
            await asyncio.Event().wait()
            return
        while True:
            self._engine.submit(Work(Tick(self._engine.clock()), answer=self._on_turn))
            await asyncio.sleep(self._manager.watchdog_s / _FEEDS)

    async def report_status(self) -> None:
        """Report the status whenever it has changed, and ask for a launcher that is away."""
        reported = ""
        while True:
            await asyncio.sleep(STATUS_S)
            if (self._away_s() or 0.0) >= STATUS_S:
                # systemd starts an upheld unit when the state of the upholding unit changes. That
                # fails while the jobs' unit is being stopped, and systemd does not try again.
                self.reloading()
                self.ready()
            text = self._status()
            if self._manager.is_heard and text != reported:
                self._manager.notify(f"STATUS={text}")
                reported = text

    def _status(self) -> str:
        text = status(self._engine.ledger)
        return text if self._away_s() is None else f"{text}, the launcher is away"

    def _on_turn(self, result: object) -> None:
        # Also after an error of the journal: the loop is alive.
        self._manager.notify("WATCHDOG=1")


def status(ledger: Ledger) -> str:
    """Return one line for `systemctl status`."""
    running = sum(job.state is not JobState.SUSPENDED for job in ledger.allocated_jobs())
    suspended = sum(1 for job in ledger.allocated_jobs()) - running
    parts = [f"{running} running", f"{sum(ledger.job_counts.waiting.values())} waiting"]
    if suspended:
        parts.append(f"{suspended} suspended")
    if ledger.draining:
        parts.append("draining")
    return ", ".join(parts)


def defer_full_collections() -> None:
    """Leave full collections to `collect_garbage`, and exempt all present objects from them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


async def collect_garbage() -> None:
    """Run a full collection from time to time. Never returns."""
    pause_s = PAUSE_S
    while True:
        await asyncio.sleep(pause_s)
        since_s = time.monotonic()
        gc.collect()
        pause_s = max(PAUSE_S, _PAUSE_FACTOR * (time.monotonic() - since_s))
