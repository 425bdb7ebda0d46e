"""A machine and its launcher in virtual time: attempts, their processes, and what is heard of them.

It does what `drfd/launcher` promises: an attempt is started once at most, an order may come again,
what is known survives the launcher, and reports come in order or not at all. How each attempt fares
is drawn from the seed and its name alone, so that a run is the same whatever else is left out.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Protocol

from drfd.core.decisions import stimuli as st
from drfd.core.model import effects as ef
from drfd.core.model.job import Job, Usage, Whose
from torture.books import claim

Key = tuple[int, int]
#: How long an order or a report is under way.
WIRE_S = 0.001


class Time(Protocol):
    def now(self) -> st.Now: ...

    def later(self, delay_s: float, what: Callable[[], None]) -> None: ...


@dataclass
class Attempt:
    key: Key
    created: st.Now
    #: Its program may have been let go: it is never started again.
    has_run: bool = False
    #: Some process of it lives; and its runner, who alone can say how it ends.
    is_alive: bool = True
    runner_lives: bool = True
    is_frozen: bool = False
    #: Work left to do, and since when it is being done.
    left_s: float = inf
    since_s: float | None = None
    #: How it ended, as its runner wrote it down.
    end: st.ExitedReport | None = None
    broke: str | None = None
    is_being_removed: bool = False
    signals: int = 0
    #: Counts changes of its course: what was due in an earlier one does not happen.
    course: int = 0
    #: … and of orders that end a freezing that is under way.
    thaws: int = 0


@dataclass
class Machine:
    seed: int
    time: Time
    #: A report has come in; `known`: all attempts, when everything that is known has been told.
    hear: Callable[[st.Stimulus], None]
    listed: Callable[[set[Key]], None]
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    #: Everything that was ever let go.
    ever_ran: set[Key] = field(default_factory=set)
    tries: Counter[Key] = field(default_factory=Counter)
    #: The launcher runs; a controller is connected to it.
    is_up: bool = True
    is_connected: bool = False
    #: Nothing goes wrong any more, and everything ends.
    is_kind: bool = False
    #: What was reported, to be heard again.
    said: list[st.Stimulus] = field(default_factory=list)
    seconds: float = 0.0
    #: Counts connections: what is under way on an old one is lost.
    line: int = 0
    #: … and lives of the launcher, with what it had in mind.
    life: int = 0

    def __post_init__(self) -> None:
        #: Some machines are slow: what runs there is in the way of others for long.
        self.slowness = Random(f"{self.seed} slowness").choice([1, 1, 5])

    def odds(self, key: Key, what: str) -> Random:
        return Random(f"{self.seed} {key} {what}")

    # -- the controller's side ------------------------------------------------------------------

    def connect(self) -> None:
        """A controller asks for all that is known."""
        self.line += 1
        self.is_connected = True
        for key in sorted(self.attempts):
            if not self.attempts[key].is_being_removed:
                self._report(self.attempts[key])
        known = set(self.attempts)
        line = self.line
        self.time.later(WIRE_S, lambda: self.listed(known) if line == self.line else None)

    def disconnect(self) -> None:
        self.line += 1
        self.is_connected = False

    def order(self, effect: ef.Effect, job: Job) -> None:
        """Down the line; what is on its way when the controller dies arrives still."""
        life = self.life
        self.time.later(WIRE_S, lambda: self._obey(effect, job) if life == self.life else None)

    # -- orders ---------------------------------------------------------------------------------

    def _obey(self, effect: ef.Effect, job: Job) -> None:
        key = (effect.job_id, effect.attempt)
        attempt = self.attempts.get(key)
        match effect:
            case ef.Launch():
                self._launch(key, job)
            case ef.RemoveAttempt():
                self._remove(key)
            case ef.SendSignals():
                if attempt is not None and attempt.is_alive and attempt.has_run:
                    claim(effect.count >= attempt.signals, "", key)
                    attempt.signals = effect.count
            case _ if attempt is None:
                self._tell(st.MissingReport(self.time.now().at_s, *key))
            case ef.Terminate() if attempt.is_alive:
                self._terminate(attempt)
            case ef.Kill() if attempt.is_alive:
                self._soon(attempt, 0.3, lambda: self._exit(attempt, None, 9))
            case ef.Freeze() if attempt.is_alive and not attempt.is_being_removed:
                self._freeze(attempt)
            case ef.Thaw() if attempt.is_alive:
                self._go_on(attempt)
            case _:
                pass

    def _launch(self, key: Key, job: Job) -> None:
        attempt = self.attempts.get(key)
        if attempt is not None and (attempt.has_run or attempt.runner_lives):
            self._report(attempt)
            return
        claim(key not in self.ever_ran, "attempt", key)
        self.tries[key] += 1
        odds = self.odds(key, f"launch {self.tries[key]}")
        fate = 1.0 if self.is_kind else odds.random()
        if fate < 0.05:
            self._tell(
                st.LaunchFailedReport(self.time.now().at_s, *key, text="it could not be set up")
            )
            return
        if 0.14 <= fate < 0.2:
            whose = Whose.JOB if fate < 0.19 else Whose.MACHINE
            text = "there was no process to spare"
            self._tell(
                st.LaunchFailedReport(
                    self.time.now().at_s, *key, text=text, whose=whose, resource="processes"
                )
            )
            return
        attempt = self.attempts[key] = Attempt(key, self.time.now())
        if fate < 0.09:
            # Its runner dies before the program is let go.
            attempt.is_alive = attempt.runner_lives = False
            self._report(attempt)
            return
        attempt.left_s = odds.choice([0.0, 0.5, 2.0, 5.0, 11.0, 20.0, 45.0]) * self.slowness
        if job.spec.time_limit_s is not None and odds.random() < 0.25:
            attempt.left_s = inf
        if self.is_kind:
            attempt.left_s = min(attempt.left_s, 2.0)
        delay_s = odds.choice([0.0, 0.0, 0.1, 1.5])
        self._soon(attempt, delay_s, lambda: self._begin(attempt, is_broken=fate < 0.14))

    def _begin(self, attempt: Attempt, *, is_broken: bool) -> None:
        if attempt.has_run or not attempt.is_alive:
            return
        self.ever_ran.add(attempt.key)
        attempt.has_run = True
        if is_broken:
            attempt.broke = "there is no program of that name"
            attempt.is_alive = attempt.runner_lives = False
        self._report(attempt)
        if attempt.is_alive and not attempt.is_frozen:
            self._run(attempt)

    def _run(self, attempt: Attempt) -> None:
        attempt.course += 1
        attempt.since_s = self.seconds
        if attempt.left_s < inf:
            self._soon(attempt, attempt.left_s, lambda: self._finish(attempt))

    def _pause(self, attempt: Attempt) -> None:
        attempt.course += 1
        if attempt.since_s is not None:
            attempt.left_s = max(0.0, attempt.left_s - (self.seconds - attempt.since_s))
        attempt.since_s = None

    def _finish(self, attempt: Attempt) -> None:
        odds = self.odds(attempt.key, "end")
        code, signal = odds.choice([(0, None)] * 6 + [(3, None), (None, 11)])
        self._exit(attempt, code, signal, oom=odds.random() < 0.1)

    def _exit(
        self, attempt: Attempt, code: int | None, signal: int | None, *, oom: bool = False
    ) -> None:
        if not attempt.is_alive:
            return
        self._pause(attempt)
        attempt.is_alive = attempt.is_frozen = False
        if not attempt.runner_lives:
            self._report(attempt)
            return
        attempt.runner_lives = False
        now = self.time.now()
        if not attempt.has_run:
            # Killed while it was being started: it never ran.
            self._report(attempt)
            return
        attempt.end = st.ExitedReport(
            now.at_s, *attempt.key, mono_s=now.mono_s, exit_code=None if oom else code,
            signal=9 if oom else signal, oom_killed=oom, over_limit=oom, usage=Usage(cpu_s=1.0),
        )  # fmt: skip
        self._report(attempt)

    def _terminate(self, attempt: Attempt) -> None:
        attempt.thaws += 1
        if attempt.is_frozen:
            return
        manner = 0.0 if self.is_kind else self.odds(attempt.key, "term").random()
        if manner < 0.4:
            self._soon(attempt, 0.2, lambda: self._exit(attempt, None, 15))
        elif manner < 0.7:
            self._soon(attempt, 1.0, lambda: self._exit(attempt, 0, None))

    def _freeze(self, attempt: Attempt) -> None:
        key, life = attempt.key, self.life
        manner = 0.0 if self.is_kind else self.odds(key, "freeze").random()
        if manner > 0.9 and not attempt.is_frozen:
            # It never stands still.
            return
        thaws = attempt.thaws

        def stand_still() -> None:
            # A thaw, an end or a new launcher has come between.
            if not attempt.is_alive or life != self.life or thaws != attempt.thaws:
                return
            if not attempt.is_frozen:
                self._pause(attempt)
                attempt.is_frozen = True
            self._tell(st.FrozenReport(self.time.now().at_s, *key, mono_s=self.time.now().mono_s))

        if attempt.is_frozen or manner < 0.5:
            stand_still()
        else:
            self.time.later(0.7, stand_still)

    def _go_on(self, attempt: Attempt) -> None:
        attempt.thaws += 1
        if attempt.is_frozen:
            attempt.is_frozen = False
            if attempt.has_run:
                self._run(attempt)

    def _remove(self, key: Key) -> None:
        attempt = self.attempts.get(key)
        if attempt is None:
            self._tell(st.RemovedReport(self.time.now().at_s, *key))
            return
        if attempt.is_being_removed:
            return
        attempt.is_being_removed = True
        slow_s = 0.0 if self.is_kind else self.odds(key, "remove").choice([0, 0, 0.1, 2, 8])
        life = self.life

        def remove() -> None:
            if self.attempts.get(key) is not attempt or life != self.life:
                return
            self._exit(attempt, None, 9)
            del self.attempts[key]
            self._tell(st.RemovedReport(self.time.now().at_s, *key))

        self.time.later(slow_s, remove)

    def _soon(self, attempt: Attempt, delay_s: float, what: Callable[[], None]) -> None:
        course = attempt.course

        def happen() -> None:
            if self.attempts.get(attempt.key) is attempt and course == attempt.course:
                what()

        self.time.later(delay_s, happen)

    # -- news -----------------------------------------------------------------------------------

    def _report(self, attempt: Attempt) -> None:
        """All that is known of it, as news."""
        key = attempt.key
        if attempt.has_run and attempt.broke is None:
            born = attempt.created
            self._tell(
                st.LaunchedReport(
                    born.at_s, *key, mono_s=born.mono_s, cgroup=f"drfd/{key[0]}.{key[1]}"
                )
            )
        if attempt.broke is not None:
            self._tell(st.LaunchFailedReport(self.time.now().at_s, *key, text=attempt.broke))
        elif attempt.end is not None:
            self._tell(attempt.end)
        elif attempt.has_run and not attempt.runner_lives:
            self._tell(st.ExitedReport(self.time.now().at_s, *key))
        elif not attempt.runner_lives:
            self._tell(st.MissingReport(self.time.now().at_s, *key))

    def _tell(self, report: st.Stimulus) -> None:
        if not self.is_up or not self.is_connected:
            return
        if not isinstance(report, st.MissingReport | st.FrozenReport):
            self.said.append(report)
        line = self.line
        self.time.later(WIRE_S, lambda: self.hear(report) if line == self.line else None)

    # -- faults ---------------------------------------------------------------------------------

    def lose_runner(self, attempt: Attempt, *, with_job: bool) -> None:
        """The runner is killed; its job lives on, or dies with it. Nobody knows how it will end."""
        attempt.runner_lives = False
        if with_job:
            self._pause(attempt)
            attempt.is_alive = attempt.is_frozen = False
        self._report(attempt)

    def fall(self) -> None:
        """The launcher dies; jobs run on, and their runners write down what becomes of them."""
        self.is_up = False
        self.life += 1
        self.disconnect()
        for attempt in self.attempts.values():
            attempt.is_being_removed = False

    def reboot(self, *, keeps_files: bool) -> None:
        """Everything that ran is gone; what was written of it may be, too."""
        self.fall()
        for attempt in self.attempts.values():
            self._pause(attempt)
            attempt.is_alive = attempt.runner_lives = attempt.is_frozen = False
        if not keeps_files:
            self.attempts.clear()
