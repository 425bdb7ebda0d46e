"""The life of an attempt on a node of Slurm's, whatever comes: orders that are repeated, late or
out of order, lists and answers that take their time, and the death of the launcher, of sbatch and
of slurmctld, which forgets what it did."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drfd.launcher import attempt_files, protocol
from drfd.launcher.attempt import AttemptState
from drfd.launcher.attempt_files import Key
from drfd.launcher.protocol import Control, ControlOrder, LaunchOrder, ListOrder, RemoveFilesOrder
from drfd.launcher.slurm import node_watch, server
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.mapping import Name
from drfd.launcher.slurm.server import SlurmLauncher
from drfd.launcher.slurm.start_notes import StartNotes
from drfd.launcher.slurm_root import requests
from drfd.linux.sealed import read_sealed
from fakes import Clock
from launcher.rig import order

JOURNAL = "a" * 32
GOOD = Answer(0, "", "")
OVER = "FAILED", "CANCELLED", "NODE_FAIL"
SELDOM, USUALLY = some.sampled_from([False] * 4 + [True]), some.sampled_from([True] * 4 + [False])
JOB = some.integers(1, 2)


@dataclass(frozen=True)
class Job:
    """One of Slurm's, as slurmctld knows it."""

    name: Name
    state: str = "PENDING"
    status: str = "0:0"
    node: str = ""


class Slurm:
    """slurmctld, its script, and the nodes."""

    def __init__(self, directory: Path) -> None:
        self.notes = directory
        self.jobs: dict[int, Job] = {}
        #: What slurmctld knew of each before; None if it did not know it.
        self.before: dict[int, Job | None] = {}
        #: What runs on the nodes, by Slurm's id.
        self.processes: dict[int, Name] = {}
        #: What was cancelled before it was on a node.
        self.cancelled: set[Name] = set()
        self.ids = count(100)
        # Others have run before.
        os.symlink("1", directory / "1")

    def set(self, number: int, job: Job) -> None:
        self.before[number], self.jobs[number] = self.jobs.get(number), job

    def take(self, name: Name) -> int:
        number = next(self.ids)
        self.set(number, Job(name))
        return number

    def start(self, number: int) -> None:
        job = self.jobs[number]
        note = self.notes / str(job.name)
        if note.is_symlink():
            if not (refusal := Path(f"{note}.{number}")).is_symlink():
                refusal.symlink_to("refused")
            self.set(number, replace(job, state="CANCELLED"))
            return
        note.symlink_to(str(number))
        (self.notes / str(number)).symlink_to(str(job.name))
        self.set(number, replace(job, state="RUNNING", node="n1"))
        self.processes[number] = job.name

    def end(self, number: int, state: str, status: str = "0:0") -> None:
        """End a job. What slurmctld takes for waiting it does not end on the node."""
        job = self.jobs[number]
        if job.node and (name := self.processes.pop(number, None)):
            end = self.notes / f"{name}.ended"
            if not end.is_symlink():
                end.symlink_to(f"{state}:{status}")
        self.set(number, replace(job, state=state, status=status))

    def exit(self, number: int) -> None:
        """The process of a job ends, which slurmctld takes note of if it knows it to run."""
        if (job := self.jobs.get(number)) and job.state in ("RUNNING", "SUSPENDED"):
            self.end(number, "FAILED", "3:0")
        self.processes.pop(number, None)

    def act(self, do: str, number: int) -> None:
        job = self.jobs.get(number)
        if job is None or job.state in OVER:
            return
        if do == requests.END:
            if not job.node:
                self.cancelled.add(job.name)
            self.end(number, "CANCELLED")
        elif do == requests.KILL and job.node:
            self.end(number, "FAILED", "0:9")
        elif do == requests.SUSPEND and job.state == "RUNNING":
            self.set(number, replace(job, state="SUSPENDED"))
        elif do == requests.RESUME and job.state == "SUSPENDED":
            self.set(number, replace(job, state="RUNNING"))

    def forget(self, number: int) -> None:
        """slurmctld is killed before it has written what it did last."""
        before = self.before[number]
        if before is not None:
            self.jobs[number] = before
        else:
            del self.jobs[number]

    def register(self) -> None:
        """The nodes end what slurmctld does not know to run, and it hears what does not run."""
        known = {number for number, job in self.jobs.items() if job.node and job.state not in OVER}
        for number in self.processes.keys() - known:
            del self.processes[number]
        for number in known - self.processes.keys():
            self.end(number, "NODE_FAIL")

    def list(self) -> str:
        uid, rows = os.getuid(), self.jobs.items()
        return "".join(
            f"{number}|{uid}|{job.state}|{job.status}|1|1|{job.node}|{job.name}|\n"
            for number, job in rows
        )


@dataclass
class Asked:
    """A request that has no answer yet."""

    do: str
    answer: Callable[[Answer], None]
    slurm_id: int
    signal: int
    #: Whose submission it is; and the list as it was then.
    name: Name | None
    list: str


class Helper(Commands):
    """Takes requests, which the test answers."""

    def __init__(self, slurm: Slurm, on_done: Callable[[], None]) -> None:
        self.slurm, self._on_done, self.asked = slurm, on_done, list[Asked]()

    def run(
        self,
        do: str,
        on_answer: Callable[[Answer], None],
        *,
        job: int = 0,
        slurm_id: int = 0,
        signal: int = 0,
        fds: Sequence[int] = (),
    ) -> None:
        name = None
        if do == requests.SUBMIT:
            launch = protocol.read_order(bytes(read_sealed(fds[0])))
            assert isinstance(launch, LaunchOrder)
            name = Name(JOURNAL, launch.key)
        self.asked.append(Asked(do, on_answer, slurm_id, signal, name, self.slurm.list()))


class Nodes(RuleBasedStateMachine):
    """What the controller may order, and what may happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.clock = pytest.MonkeyPatch(), Clock()
        time: Any = SimpleNamespace(monotonic=self.clock, time=self.clock)
        for module in (server, node_watch, attempt_files):
            self.patch.setattr(module, "time", time)
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.directory = tempfile.TemporaryDirectory()
        self.state = Path(self.directory.name)
        for name in ("started", "attempts"):
            (self.state / name).mkdir()
        self.attempts_fd = os.open(self.state / "attempts", os.O_RDONLY)
        self.slurm = Slurm(self.state / "started")
        #: The attempts that the controller has, by job, and those that it takes for ended.
        self.attempts: dict[int, int] = {1: 1, 2: 1}
        self.launched: set[Key] = set()
        self.ended: set[Key] = set()

    @initialize()
    def launcher_starts(self) -> None:
        self.ends = socket.socketpair()
        port: Any = SimpleNamespace(send=self.hear, is_connected=True)
        self.launcher = launcher = SlurmLauncher(
            state=self.state,
            attempts_fd=self.attempts_fd,
            port=port,
            helper=self.ends[0],
            events=self.ends[1],
            starts=StartNotes(self.slurm.notes),
        )
        self.helper = Helper(self.slurm, launcher._times.schedule)
        launcher._commands = launcher._nodes.commands = self.helper
        launcher._nodes.knows_gate, launcher._nodes.gate_fault = True, None
        # Its thread has no part in this.
        launcher._notes_due_mono_s = float("inf")
        launcher._adopt()
        self.turn()

    def turn(self) -> None:
        self.launcher._submit()
        self.launcher._ask_for_list()

    def hear(self, report: protocol.Message) -> None:
        if report["report"] not in ("launched", "launch_failed", "exited", "removed"):
            return
        key = report["id"], report["attempt"]
        name = Name(JOURNAL, key)
        runs = name in self.slurm.processes.values()
        if report["report"] == "launched":
            # One that is cancelled before has an end of its own, not a failed launch.
            has_started = (self.slurm.notes / str(name)).is_symlink()
            assert has_started or name in self.slurm.cancelled, "it has not started"
        else:
            assert not runs, f"{report} while it runs"
            self.ended.add(key)

    def key(self, job: int) -> Key:
        return job, self.attempts[job]

    # -- the controller -----------------------------------------------------------------------

    @rule(job=JOB)
    def launch(self, job: int) -> None:
        """It does not launch one again that it takes for ended."""
        if self.key(job) in self.ended:
            self.attempts[job] += 1
        key = self.key(job)
        asked: LaunchOrder = order(  # type: ignore[assignment]
            cwd=self.state, id=key[0], attempt=key[1], journal=JOURNAL, node="n1"
        ).order
        self.launched.add(key)
        self.launcher._handle(asked, os.open(os.devnull, os.O_RDONLY))
        self.turn()

    @rule(job=JOB, command=some.sampled_from(get_args(Control)))
    def order_one(self, job: int, command: Control) -> None:
        key = self.key(job)
        self.launcher._handle(ControlOrder(do=command, id=key[0], attempt=key[1]), -1)
        self.turn()

    @rule(job=JOB)
    def remove_file(self, job: int) -> None:
        """That is ordered once an end was reported."""
        if (key := self.key(job)) in self.ended:
            self.launcher._handle(RemoveFilesOrder((key,)), -1)
            self.turn()

    @rule()
    def list(self) -> None:
        self.launcher._handle(ListOrder(), -1)

    # -- what happens -------------------------------------------------------------------------

    @precondition(lambda self: self.helper.asked)
    @rule(is_old=SELDOM, is_good=USUALLY, arrives=USUALLY, which=some.integers(0, 9))
    def answer(self, *, is_old: bool, is_good: bool, arrives: bool, which: int) -> None:
        """One request is carried out or not, and answered well or not."""
        asked = self.helper.asked.pop(which % len(self.helper.asked))
        answer = GOOD if is_good else Answer(1, "", "Unable to contact slurm controller")
        if asked.do == requests.JOBS:
            answer = replace(answer, output=asked.list if is_old else self.slurm.list())
        elif asked.do == requests.SUBMIT:
            assert asked.name is not None
            if is_good or arrives:
                answer = replace(answer, output=f"{self.slurm.take(asked.name)}\n")
        elif asked.do == requests.REGISTER:
            if is_good:
                self.slurm.register()
        elif is_good:
            self.slurm.act(asked.do, asked.slurm_id)
        asked.answer(answer)
        self.turn()

    @rule(which=some.integers(0, 9))
    def slurm_starts(self, which: int) -> None:
        waiting = [number for number, job in self.slurm.jobs.items() if job.state == "PENDING"]
        if waiting:
            self.slurm.start(waiting[which % len(waiting)])

    @rule(which=some.integers(0, 9))
    def job_ends(self, which: int) -> None:
        if running := [*self.slurm.processes]:
            self.slurm.exit(running[which % len(running)])

    @rule(job=JOB)
    def job_comes_and_runs(self, job: int) -> None:
        self.launch(job)
        for _ in range(9):
            self.all_is_answered()
            self.slurm_starts(0)

    @precondition(lambda self: self.slurm.jobs)
    @rule(which=some.integers(0, 9))
    def slurmctld_forgets(self, which: int) -> None:
        self.slurm.forget([*self.slurm.jobs][which % len(self.slurm.jobs)])

    @rule(seconds=some.sampled_from([0.05, 1.0, 2.0, 12.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.turn()

    @rule(arrives=some.booleans())
    def launcher_dies_and_starts(self, *, arrives: bool) -> None:
        """What it has asked for is done or not."""
        self.launcher_dies()
        for asked in self.helper.asked:
            if asked.name is not None and arrives:
                self.slurm.take(asked.name)
        self.launcher_starts()

    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def what_has_ended_does_not_run(self) -> None:
        if not hasattr(self, "launcher"):
            return
        assert not {name.key for name in self.slurm.processes.values()} & self.ended
        files = attempt_files.keys(self.attempts_fd)
        attempts = self.launcher._attempts
        assert {*files} == {key for key, each in attempts.items() if each.records is not None}
        assert all(each.state is not AttemptState.UNKNOWN for each in attempts.values())
        submitting = sum(each.is_submitting for each in attempts.values())
        assert self.launcher._submitting == submitting

    def all_is_answered(self) -> None:
        while self.helper.asked:
            self.answer(is_old=False, is_good=True, arrives=True, which=0)
        self.clock.now_s += 3.0
        self.turn()

    def teardown(self) -> None:
        try:
            if hasattr(self, "launcher"):
                self.all_ends()
        finally:
            self.launcher_dies()
            os.close(self.attempts_fd)
            self.directory.cleanup()
            self.patch.undo()
        # Fewer are open if garbage of another test has been collected meanwhile.
        assert len(os.listdir("/proc/self/fd")) <= self.descriptors, "payloads were not closed"

    def all_ends(self) -> None:
        """What is left to itself ends, and what is removed leaves nothing."""
        for _ in range(30):
            self.all_is_answered()
            self.slurm_starts(0)
            self.job_ends(0)
        for key, attempt in self.launcher._attempts.items():
            assert key in self.ended, (key, attempt)
        for key in [*self.launcher._attempts]:
            self.launcher._handle(ControlOrder(do="remove", id=key[0], attempt=key[1]), -1)
        for _ in range(5):
            self.all_is_answered()
        assert self.launcher._attempts == {}
        assert self.slurm.processes == {}
        assert {job.state for job in self.slurm.jobs.values()} <= {*OVER}

    def launcher_dies(self) -> None:
        for attempt in self.launcher._attempts.values():
            self.launcher._put(attempt, None)
        for end in self.ends:
            end.close()
        self.launcher._selector.close()


TestNodes = Nodes.TestCase


# -- one order ------------------------------------------------------------------------------


@pytest.fixture
def one() -> Iterator[Nodes]:
    """A launcher with an attempt that Slurm has."""
    nodes = Nodes()
    nodes.launcher_starts()
    nodes.launch(1)
    for _ in range(3):
        nodes.all_is_answered()
    assert [job.state for job in nodes.slurm.jobs.values()] == ["PENDING"]
    yield nodes
    nodes.launcher_dies()
    nodes.patch.undo()
    os.close(nodes.attempts_fd)
    nodes.directory.cleanup()


def commands(nodes: Nodes) -> list[tuple[str, int]]:
    """What the launcher does when the next lists have come, which are not answered by much."""
    for _ in range(2):
        for asked in [*nodes.helper.asked]:
            if asked.do == requests.JOBS:
                nodes.helper.asked.remove(asked)
                asked.answer(replace(GOOD, output=nodes.slurm.list()))
        nodes.clock.now_s += 0.1
        nodes.turn()
    found = [(each.do, each.signal) for each in nodes.helper.asked if each.do != requests.JOBS]
    nodes.helper.asked = [each for each in nodes.helper.asked if each.do == requests.JOBS]
    return found


@pytest.mark.parametrize(
    ("order", "state", "done"),
    [
        ("terminate", "RUNNING", [("signal", 15)]),
        ("terminate", "PENDING", [("end", 0)]),
        ("terminate", "COMPLETING", []),
        ("kill", "RUNNING", [("kill", 0)]),
        ("kill", "PENDING", [("end", 0)]),
        ("kill", "SUSPENDED", [("end", 0)]),
        ("kill", "COMPLETING", []),
        ("remove", "RUNNING", [("kill", 0)]),
        ("freeze", "RUNNING", [("suspend", 0)]),
        ("freeze", "PENDING", []),
        ("freeze", "SUSPENDED", []),
        ("thaw", "SUSPENDED", [("resume", 0)]),
        ("thaw", "RUNNING", []),
    ],
)
def test_each_order_has_its_command(one, order, state, done):
    set_state(one, state)
    commands(one)
    one.order_one(1, order)
    assert commands(one) == done


def set_state(nodes: Nodes, state: str) -> None:
    [number] = nodes.slurm.jobs
    if state != "PENDING":
        nodes.slurm.start(number)
        nodes.slurm.jobs[number] = replace(nodes.slurm.jobs[number], state=state)


def test_a_kill_is_repeated_by_signal_and_by_cancelling_in_turn(one):
    set_state(one, "RUNNING")
    one.order_one(1, "kill")
    for do in ("kill", "end", "kill"):
        assert commands(one) == [(do, 0)]
        assert commands(one) == []
        one.clock.now_s += 2.0
        one.turn()


def test_the_last_of_freeze_and_thaw_counts_and_a_kill_comes_before_all(one):
    set_state(one, "RUNNING")
    for orders, done in (
        (("thaw", "freeze"), ["suspend"]),
        (("freeze", "thaw"), []),
        # A job that is to end must be able to.
        (("freeze", "terminate"), ["signal"]),
        (("freeze", "terminate", "kill"), ["signal", "kill"]),
    ):
        for each in orders:
            one.order_one(1, each)
        assert [do for do, _ in commands(one)] == done
