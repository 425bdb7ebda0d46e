"""The life of an attempt, whatever comes: orders that are repeated, late or out of order, the death
of its runner, of the launcher and of the controller, accounts that take their time."""

import os
import pwd
import signal
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import strategies as some
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from drfd.launcher import attempt_files, protocol, schedule
from drfd.launcher.attempt import TRANSITIONS, AttemptAction, AttemptEvent, AttemptState
from drfd.launcher.attempt_files import Key, Records
from drfd.launcher.confinement.interface import Confinement, Prepared
from drfd.launcher.port import Policy
from drfd.launcher.protocol import Control, ControlOrder, ListOrder, RemoveFilesOrder
from drfd.launcher.runner.runner import Runner
from drfd.launcher.runner.starter.program import Starter
from drfd.launcher.server import Launcher
from drfd.launcher.system import process
from drfd.launcher.system.accounts import Denied
from fakes import Clock
from launcher.rig import order

KEYS = [(1, 1), (2, 1)]
NONE_YET = (AttemptState.WAITING,)
A_KEY = some.sampled_from(KEYS)
SELDOM, USUALLY = some.sampled_from([False] * 4 + [True]), some.sampled_from([True] * 4 + [False])


def test_each_state_event_and_action_has_its_place():
    assert set(TRANSITIONS) == set(AttemptState)
    moves = [(event, move) for row in TRANSITIONS.values() for event, move in row.items()]
    assert {event for event, _ in moves} == set(AttemptEvent)
    assert {state for _, (state, _) in moves} == set(AttemptState)
    assert {action for _, (_, actions) in moves for action in actions} == set(AttemptAction)


class Kernel(Confinement):
    """Cgroups, and the processes in them. A job is one process, and its runner another."""

    kind = "cgroup-v2"

    def __init__(self) -> None:
        self.cgroups: set[Key] = set()
        self.jobs: set[Key] = set()
        #: Those that are not killed at the first try.
        self.stubborn: set[Key] = set()
        self.runners: dict[Key, Runner] = {}
        #: The last order to launch each attempt, the last one to remove it, and the orders on which
        #: it was started and its program released, numbered.
        self.launch: Counter[Key] = Counter()
        self.removal: Counter[Key] = Counter()
        self.started: Counter[Key] = Counter()
        self.released: Counter[Key] = Counter()
        self.orders = count(1)
        self.count = 0

    def controls(self) -> dict[str, str]:
        return {}

    cores = controls

    def hiding(self) -> tuple[bool, str]:
        return False, ""

    def create(self, key: Key, limits: object, devices: object, is_made: bool = False) -> Prepared:
        assert key not in self.cgroups
        self.cgroups.add(key)
        return Prepared()

    def signal(self, key: Key, attempt: Records | None, *numbers: int) -> None:
        return

    def freeze(self, key: Key, attempt: Records | None) -> bool:
        return key not in self.stubborn

    def thaw(self, key: Key, attempt: Records | None) -> None:
        return

    def members(self, key: Key, attempt: Records | None) -> list[int]:
        return []

    def kill_pass(self, key: Key, attempt: Records | None) -> bool:
        if key in self.stubborn:
            self.stubborn.discard(key)
        else:
            self.jobs.discard(key)
        return key not in self.jobs

    def remove(self, key: Key) -> bool:
        if key in self.jobs:
            return False
        self.cgroups.discard(key)
        return True

    def forget(self, key: Key) -> None:
        assert key not in self.jobs
        self.cgroups.discard(key)

    def leftovers(self) -> list[Key]:
        return sorted(self.cgroups)


class Runners:
    """Those of the machine, as a launcher sees them."""

    launched_fd = -1

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        #: Whether the next one cannot be started.
        self.fails = False

    @property
    def count(self) -> int:
        return len(self.kernel.runners)

    def start(self, job: Any, settings: object, attempt_fd: int) -> Runner:
        kernel = self.kernel
        assert job.key not in kernel.runners
        assert job.key not in kernel.jobs
        assert job.key in kernel.cgroups
        if not job.assignment.order.is_notice:
            is_new = kernel.launch[job.key] > kernel.removal[job.key]
            assert is_new, "started after its removal was ordered"
            assert kernel.released[job.key] <= kernel.removal[job.key], "started twice"
            kernel.started[job.key] = kernel.launch[job.key]
        if self.fails:
            self.fails = False
            raise OSError(11, os.strerror(11))
        kernel.count += 1
        kernel.runners[job.key] = Runner(kernel.count)
        return kernel.runners[job.key]

    def find(self, key: Key, records: Records | None) -> Runner | None:
        return self.kernel.runners.get(key)


class Life(RuleBasedStateMachine):
    """What the controller may order, and what may happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.clock = Clock()
        self.patch.setattr(schedule, "time", self.clock)
        self.patch.setattr(signal, "pidfd_send_signal", lambda *_: None)
        self.patch.setattr(process, "children", lambda _: [])
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.directory = tempfile.TemporaryDirectory()
        self.attempts_fd = os.open(self.directory.name, os.O_RDONLY)
        self.kernel = Kernel()

    @initialize()
    def launcher_starts(self) -> None:
        """What the one before it knew, and what it was about to do, is gone."""
        self.reports: list[protocol.Message] = []
        self.port: Any = SimpleNamespace(
            send=self.take, is_connected=True, flush=lambda: None, open=lambda *_, **__: None
        )
        self.answers: list[Any] = []
        self.launcher = launcher = Launcher(
            confinement=self.kernel,
            policy=Policy(min_uid=0, allowed_uids=frozenset((0,))),
            attempts_fd=self.attempts_fd,
            port=self.port,
            starter=Starter(-1),
        )
        self.runners = Runners(self.kernel)
        directory = SimpleNamespace(known=self.known, ask=lambda _, answer: self.add(answer))
        vars(launcher).update(_runners=self.runners, _directory=directory)
        self.knows = False
        for key in attempt_files.keys(self.attempts_fd):
            launcher._adopt(key)

    def known(self, order: object) -> object:
        return (pwd.getpwuid(0), []) if self.knows else None

    def add(self, answer: Any) -> None:
        self.answers.append(answer)

    def take(self, report: protocol.Message) -> None:
        self.reports.append(report)
        if report["report"] != "removed":
            return
        key = report["id"], report["attempt"]
        left = self.kernel.runners, self.kernel.jobs, self.kernel.cgroups, self.files()
        assert not any(key in each for each in left), "removed while something of it lives"

    def files(self) -> list[Key]:
        return attempt_files.keys(self.attempts_fd)

    def records(self, key: Key) -> Records:
        records = attempt_files.read(self.attempts_fd, key)
        assert records is not None
        return records

    # -- the controller -----------------------------------------------------------------------

    @rule(key=A_KEY, is_notice=SELDOM, knows=USUALLY, fails=SELDOM)
    def launch(self, key: Key, *, is_notice: bool, knows: bool, fails: bool) -> None:
        self.knows, self.runners.fails = knows, fails
        asked = order(cwd=Path(self.directory.name), id=key[0], is_notice=is_notice).order
        last = self.kernel.removal if is_notice else self.kernel.launch
        last[key] = next(self.kernel.orders)
        self.launcher._handle(asked, os.open(os.devnull, os.O_RDONLY))
        self.runners.fails = False

    @rule(key=A_KEY, command=some.sampled_from(get_args(Control)))
    def order_one(self, key: Key, command: Control) -> None:
        if command == "remove":
            self.kernel.removal[key] = next(self.kernel.orders)
        self.launcher._handle(ControlOrder(do=command, id=key[0], attempt=key[1]), -1)

    @rule(key=A_KEY)
    def remove_file(self, key: Key) -> None:
        self.kernel.removal[key] = next(self.kernel.orders)
        self.launcher._handle(RemoveFilesOrder((key,)), -1)

    @rule()
    def list(self) -> None:
        """None is lost: all that is there is in the list."""
        self.launcher._handle(ListOrder(), -1)
        known = self.reports[-1]["known"]
        assert {*self.files(), *self.kernel.cgroups, *self.kernel.runners} <= {*known}

    @rule()
    def controller_goes(self) -> None:
        self.port.is_connected = False

    @rule()
    def controller_comes(self) -> None:
        self.port.is_connected = True
        self.launcher._hello()
        self.list()

    # -- what happens -------------------------------------------------------------------------

    @precondition(lambda self: self.answers)
    @rule(is_known=some.booleans())
    def account_is_answered(self, *, is_known: bool) -> None:
        self.knows = is_known
        problem = None if is_known else Denied("there is no such account")
        answers, self.answers = self.answers, []
        for answer in answers:
            answer(problem)

    @rule(key=A_KEY, rings=USUALLY, is_stubborn=SELDOM)
    def runner_releases(self, key: Key, *, rings: bool, is_stubborn: bool) -> None:
        """It rings at the launcher that has started it."""
        if key not in self.kernel.runners or self.records(key).may_have_run:
            return
        if not self.records(key).is_notice:
            self.kernel.released[key] = self.kernel.started[key]
        self.kernel.jobs.add(key)
        if is_stubborn:
            self.kernel.stubborn.add(key)
        attempt_files.add(self.attempts_fd, key, "launched", {"pid": 1, "start_ticks": 1})
        attempt = self.launcher._attempts[key]
        if rings and attempt.created is not None:
            records = Records(attempt.created, runner={"pid": 1}, launched={})
            self.launcher._happen(attempt, AttemptEvent.RELEASED, records)

    @rule(key=A_KEY, removes=some.booleans())
    def job_ends(self, key: Key, *, removes: bool) -> None:
        """Its runner records that, and ends."""
        if key not in self.kernel.runners or not self.records(key).may_have_run:
            return
        self.kernel.jobs.discard(key)
        end = {"at_s": 1.0, "mono_s": 1.0, "exit_code": 0, "signal": None}
        attempt_files.add(self.attempts_fd, key, "exited", end | {"counters": {}, "peak_bytes": 0})
        if removes:
            self.kernel.cgroups.discard(key)
        self.runner_dies(key)

    @rule(key=A_KEY, removes=USUALLY)
    def job_comes_and_goes(self, key: Key, *, removes: bool) -> None:
        self.launch(key, is_notice=False, knows=True, fails=False)
        self.runner_releases(key, rings=True, is_stubborn=False)
        self.job_ends(key, removes=removes)

    @rule(key=A_KEY)
    def runner_dies(self, key: Key) -> None:
        if self.kernel.runners.pop(key, None) is not None:
            self.launcher._runner_gone(self.launcher._attempts[key])

    @rule(seconds=some.sampled_from([0.0, 0.1, 2.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.launcher._schedule.run_due(self.launcher._work)

    @rule(key=A_KEY)
    def runner_dies_before_its_launcher_sees_it(self, key: Key) -> None:
        self.kernel.runners.pop(key, None)
        self.launcher_dies()
        self.launcher_starts()

    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def all_that_lives_is_known(self) -> None:
        known = self.launcher._attempts
        assert {*self.files(), *self.kernel.runners, *self.kernel.jobs} <= {*known}
        for key, attempt in known.items():
            assert attempt.state is not AttemptState.UNKNOWN
            assert (attempt.runner is None) == (key not in self.kernel.runners)
        waiting = [each for each in known.values() if each.state is AttemptState.WAITING]
        assert self.launcher._waiting == len(waiting)
        # A user's IPC objects are removed after the user's last job.
        owned = sum(each.uid is not None for each in known.values() if each.state not in NONE_YET)
        assert self.launcher._sweeps._jobs.total() == owned

    def teardown(self) -> None:
        try:
            self.all_can_be_removed()
        finally:
            self.launcher_dies()
            os.close(self.attempts_fd)
            self.directory.cleanup()
            self.patch.undo()
        assert len(os.listdir("/proc/self/fd")) == self.descriptors, "payloads were not closed"

    def all_can_be_removed(self) -> None:
        self.knows = True
        for _ in range(9):
            for key in KEYS:
                self.order_one(key, "remove")
                self.runner_dies(key)
            self.time_passes(20.0)
        assert self.launcher._attempts == {}
        assert (self.files(), self.kernel.cgroups, self.kernel.jobs) == ([], set(), set())

    def launcher_dies(self) -> None:
        for attempt in self.launcher._attempts.values():
            self.launcher._put(attempt, None)
        self.launcher._selector.close()


TestLife = Life.TestCase
