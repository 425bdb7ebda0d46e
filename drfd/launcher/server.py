"""The launcher's loop: orders from the one controller, news from the runners.

It decides nothing. What it is told to do may be told again; what it has to say it says again to
every controller that connects. State that must survive it is in attempt files and cgroups alone.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from drfd.failpoints import reach
from drfd.journald import about
from drfd.launcher import attempts, process, protocol
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.confinement import Confinement, LimitFailed
from drfd.launcher.cut import Cut
from drfd.launcher.endings import Ending, Endings
from drfd.launcher.freezing import Freezing
from drfd.launcher.news import news_of
from drfd.launcher.notices import Notices
from drfd.launcher.policy import Policy
from drfd.launcher.port import Port
from drfd.launcher.protocol import (
    BadMessage,
    Message,
    Order,
    read_attempt,
    read_order,
    read_signals,
)
from drfd.launcher.runner import fork_runner
from drfd.launcher.runners import Runners
from drfd.launcher.signalling import Signalling

log = logging.getLogger("drfd.launcher")


@dataclass
class Launcher:
    confinement: Confinement
    policy: Policy
    attempts_fd: int
    port: Port
    #: Becomes readable when whoever keeps this launcher is gone; None: nobody does.
    keep_fd: int | None = None
    #: When all jobs were last ended from outside.
    cut: Cut | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _endings: Endings = field(default_factory=Endings)
    _boot_id: str = field(default_factory=process.boot_id)
    _running: bool = True

    def __post_init__(self) -> None:
        self._runners = Runners(
            self.attempts_fd,
            self._selector,
            self._runner_gone,
            fork=lambda: fork_runner(self.confinement, self._bell_in),
            are_kept=self.confinement.keeps_runners,
        )
        self._freezing = Freezing(
            self.confinement, self.attempts_fd, self._tell, self._endings.__contains__
        )
        self._signalling = Signalling(self.confinement, self.attempts_fd)
        self._notices = Notices(
            self.confinement, self.attempts_fd, self._runners.watch, self._runners.__contains__
        )
        self._about_one: dict[str, Callable[[Key], None]] = {
            protocol.TERMINATE: self._terminate,
            protocol.KILL: self._kill,
            protocol.FREEZE: self._freezing.freeze,
            protocol.THAW: self._freezing.thaw,
            protocol.REMOVE: partial(self._endings.add, remove=True),
        }

    def serve(self) -> None:
        """Run until SIGTERM, or until the keeper is gone."""
        self._bell_out, self._bell_in = os.pipe()
        os.set_blocking(self._bell_in, False)
        self.port.open(self._selector, greet=self._greet, obey=self._obey)
        self._selector.register(self._bell_out, selectors.EVENT_READ, self._on_bell)
        if self.keep_fd is not None:
            self._selector.register(self.keep_fd, selectors.EVENT_READ, self._quit)
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        self._selector.register(wake_out, selectors.EVENT_READ, self._quit)
        reach("serve.before-adoption")
        for key in attempts.keys(self.attempts_fd):
            self._runners.adopt(key)
            self.confinement.adopt(key, attempts.read(self.attempts_fd, key))
        self._runners.prepare()
        while self._running:
            for chosen, _ in self._selector.select(self._pause_s()):
                # An earlier one of this round may have closed it.
                if chosen.fd in self._selector.get_map():
                    chosen.data()
            self._runners.look()
            for key in list(self._runners.unheard):
                self._look_at_runner(key)
            self._freezing.look()
            self._signalling.look()
            for key, ending in self._endings.due():
                self._continue(key, ending)
        self.confinement.close()

    def _pause_s(self) -> float | None:
        parts = (self._runners, self._endings, self._freezing, self._signalling)
        pauses = (part.pause_s() for part in parts)
        return min((pause_s for pause_s in pauses if pause_s is not None), default=None)

    # -- orders -----------------------------------------------------------------------------

    def _greet(self) -> Message:
        return {
            "report": "hello",
            "kind": self.confinement.kind,
            "controls": self.confinement.controls(),
            "cores": self.confinement.cores(),
            "mounts": self.confinement.mounts(),
        }

    def _obey(self, message: Message) -> None:
        command = message.pop("cmd", None)
        if command == protocol.LAUNCH:
            self._launch(read_order(message))
        elif command == protocol.NOTIFY:
            self._endings.add(self._notices.add(read_order(message)), remove=True)
        elif command == protocol.LIST:
            self._list()
        elif command == protocol.SIGNAL:
            self._signalling.send(*read_signals(message))
        elif isinstance(command, str) and command in self._about_one:
            self._about_one[command](read_attempt(message))
        else:
            raise BadMessage(f"unknown command {command!r}")

    def _tell(self, kind: str, key: Key, **facts: object) -> None:
        self.port.send({"report": kind, "id": key[0], "attempt": key[1], **facts})

    def _launch(self, order: Order) -> None:
        key = (order.id, order.attempt)
        if key in self._endings:
            self._endings.add(key, remove=True, relaunch=order)
            return
        known = attempts.read(self.attempts_fd, key)
        if key in self._runners or (known is not None and known.may_have_run):
            assert known is not None
            self._report(key, known)
            return
        refusal = self.policy.refusal(order.uid)
        if refusal is not None:
            self._tell("broke", key, text=refusal)
            return
        if attempts.exists(self.attempts_fd, key) and not self._forget(key):
            # A runner died before it let its job go; the job's process is about to leave.
            self._endings.add(key, remove=True, relaunch=order)
            return
        # The start that people see is taken here, so that it keeps the order of the launches.
        created = attempts.born(order.uid, self._boot_id, self.confinement.cgroup_path(key))
        reach("launch.before-attempt-file")
        try:
            self._start(key, order, created)
        except (LimitFailed, OSError) as error:
            self._forget(key)
            self._tell("broke", key, text=f"it could not be set up: {error}")
            return
        reach("launch.after-fork")

    def _start(self, key: Key, order: Order, created: attempts.Record) -> None:
        attempt_fd = attempts.create(self.attempts_fd, key, created)
        try:
            reach("launch.before-cgroup")
            self.confinement.create(key, order.limits)
            reach("launch.before-fork")
            self._runners.start(order, created, attempt_fd)
        finally:
            os.close(attempt_fd)

    def _list(self) -> None:
        known = attempts.keys(self.attempts_fd)
        for key in known:
            if key in self._endings:
                continue
            attempt = attempts.read(self.attempts_fd, key)
            if attempt is None:
                # Cut short at its creation, or emptied by a power cut.
                self._tell("missing", key)
            else:
                self._report(key, attempt)
        # A cgroup whose file is gone already is an attempt that is almost removed.
        everything = sorted({*known, *self.confinement.leftovers()})
        self.port.send({"report": "listed", "known": everything})

    def _terminate(self, key: Key) -> None:
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None:
            self._tell("missing", key)
            return
        if not attempt.is_over:
            self._freezing.discard(key)
            self._signalling.terminate(key, attempt)

    def _kill(self, key: Key) -> None:
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None:
            self._tell("missing", key)
        elif not attempt.is_over:
            self._endings.add(key, remove=False)

    # -- runners ----------------------------------------------------------------------------

    def _runner_gone(self, key: Key) -> None:
        self._endings.hurry(key)
        self._signalling.forget(key)
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is not None:
            self._report(key, attempt)

    def _on_bell(self) -> None:
        for name in set(os.read(self._bell_out, 1 << 16).decode().split()):
            number, _, count = name.partition(".")
            self._look_at_runner((int(number), int(count)))

    def _look_at_runner(self, key: Key) -> None:
        """Its job may be up. The end is reported when the runner is gone, not before."""
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None or attempt.may_have_run:
            self._runners.unheard.discard(key)
        if attempt is not None and attempt.running is not None and not attempt.is_over:
            self._report(key, attempt)
            self._signalling.started(key, attempt)

    def _report(self, key: Key, attempt: Attempt) -> None:
        """Say what the attempt file says, as news."""
        alive = key in self._runners
        if attempt.is_damaged and not alive:
            log.error("event=damaged-attempt-file job=%d attempt=%d", *key, extra=about(job=key[0]))
        is_lost = not alive and attempt.ended is None
        oom = self.confinement.oom_kills(key) if is_lost else (False, False)
        for kind, facts in news_of(attempt, alive=alive, cut=self.cut, oom=oom, at_s=time.time()):
            if kind == "ended" and "counted" not in facts:  # A runner that was killed.
                facts = {"counted": self.confinement.counted(key), **facts}
            self._tell(kind, key, **facts)

    # -- endings ----------------------------------------------------------------------------

    def _continue(self, key: Key, ending: Ending) -> None:
        if self._notices.is_live(key, ending):
            return
        if not self._is_empty(key):
            if self._endings.put_off(ending):
                log.error("event=stuck job=%d attempt=%d", *key, extra=about(job=key[0]))
                self._tell("stuck", key)
                self._runners.wake(key)
            return
        if ending.remove:
            if self._notices.start(key):
                return
            self._notices.read(key)
            reach("remove.before-rmdir")
            if not self._forget(key):
                self._endings.put_off(ending)
                return
            reach("remove.after-unlink")
        self._endings.finish(key)
        if ending.relaunch is not None:
            self._launch(ending.relaunch)
        elif ending.remove:
            self._tell("removed", key, **self._notices.take(key))

    def _is_empty(self, key: Key) -> bool:
        """After one more try to kill what is left."""
        attempt = attempts.read(self.attempts_fd, key)
        reach("remove.before-kill")
        # The runner leaves by itself once its job is gone, and takes its record first.
        return self.confinement.kill_pass(key, attempt) and key not in self._runners

    def _forget(self, key: Key) -> bool:
        """Remove cgroup, then file: while either is there, the attempt is known."""
        if not self.confinement.remove(key):
            return False
        reach("remove.before-unlink")
        attempts.remove(self.attempts_fd, key)
        return True

    def _quit(self) -> None:
        self._running = False
