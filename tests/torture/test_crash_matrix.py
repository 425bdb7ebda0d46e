"""Every failpoint × who dies there × what is being done: the promises hold after each death.

The matrix is made from the list of failpoints. `REACHED` says in which phase each is reached, and a
test tries that out: a new failpoint that stands in no phase, or one that is not reached any more,
fails. One instance goes through many cells, so each begins with what the cells before have left.

By default each failpoint meets each victim in the first phase that reaches it, and some of them not
at all: DRFD_TORTURE=1 has every cell.
"""

import itertools
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from signal import SIGUSR1

import pytest

import failing
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.resources import Axes
from drfd.journal.journal import Journal
from fakes import all_events, tables
from instance import BIN, CONFIG, is_alive, wait_for
from torture.victims import VICTIMS, Victim, let_go, once_more

IS_FULL = bool(os.environ.get("DRFD_TORTURE"))
#: No job asks for the device, so it is hidden from all of them.
HIDDEN = "/dev/full"
ROOMY = CONFIG.replace("cores = 9", "cores = 50").replace('"18G"', '"50G"')
ROOMY += f'[gres.fpga]\ndevices = ["{HIDDEN}"]\n'
SMALL = ROOMY.replace("cores = 50", "cores = 40")

STARTING = (
    *("launch.before-attempt-file", "launch.before-cgroup", "launch.before-limits"),
    *("launch.before-devices", "launch.before-fork", "launch.after-fork", "runner.before-child"),
    *("runner.amid-mkdir", "runner.before-launched-record", "runner.after-launched-record"),
    *("runner.before-exec", "runner.after-exec"),
)
ENDING = (
    *("runner.before-end-record", "runner.after-end-record"),
    *("remove.before-unlink", "remove.after-unlink"),
)
#: Of an attempt whose runner can remove something.
SWEPT = (*ENDING, "runner.amid-rmdir")
#: Of an attempt that has a cgroup still.
CLEANING = ("remove.before-kill", "remove.before-rmdir")
TELLING = ("report.before-send",)
ORDERING = ("engine.before-effect", "engine.after-effect", *TELLING)
DECIDING = ("journal.before-commit", "journal.after-commit")
ASKING = ("server.before-reply",)
#: A process is moved into the job, and ends with it.
INSIDE = ("exec.before-join", "exec.after-join")
#: What is being done → the failpoints that are reached from its first act to the job's end.
REACHED: dict[str, tuple[str, ...]] = {
    "submit": (*DECIDING, *ASKING, *ORDERING, *STARTING, *SWEPT),
    "launch": (*DECIDING, *ASKING, *ORDERING, *STARTING, *SWEPT),
    "run": (
        *(*DECIDING, *ASKING, *ORDERING, *SWEPT),
        *("signals.before-mark", "signals.after-mark", "freeze.before-report", "thaw.before-thaw"),
    ),
    "stop": (
        *(*DECIDING, *ASKING, *ORDERING, *SWEPT),
        *("signal.before-signal", "signal.after-signal"),
    ),
    "clean": (
        *(*DECIDING, *ASKING, *ORDERING, *SWEPT),
        # The command that notifies is launched as the job was.
        *(*STARTING, *CLEANING),
    ),
    "reload": (*DECIDING, *ASKING, *ORDERING, *STARTING, *SWEPT),
    "restart": (
        *(*DECIDING, *ASKING, *TELLING, *SWEPT),
        *("reconcile.before-settling", "serve.before-adoption"),
    ),
    "tell": (*DECIDING, *ASKING, *TELLING, *SWEPT, "engine.some-untold"),
    # The runner kills the job's own processes alone, so the launcher removes the command's.
    "inside": (*DECIDING, *ASKING, *ORDERING, *ENDING, *INSIDE, *CLEANING),
}
#: In these the books know that the job runs before the point is armed.
KNOWN_TO_RUN = ("run", "stop", "clean", "restart", "tell", "inside")
#: More jobs than are told of one end in one turn.
CROWD = 66


@dataclass(frozen=True)
class Cell:
    phase: str
    point: str
    victim: str

    @property
    def may_lose(self) -> bool:
        """Whether the end of the job may be unknown: who knew it is dead, or there was none."""
        if self.victim in ("machine", "power", "runner"):
            return True
        return self.victim == "itself" and self.point in failing.RUNNER


def cells(*, is_full: bool = IS_FULL) -> Iterator[Cell]:
    met: set[tuple[str, str]] = set()
    for phase, points in REACHED.items():
        for point, victim in itertools.product(points, VICTIMS):
            cell = Cell(phase, point, victim)
            if victim == "power" and phase not in KNOWN_TO_RUN:
                # Attempt files are not synced: a start that the journal had not yet heard of is
                # not remembered by anybody after a power cut.
                continue
            if victim == "runner" and phase not in KNOWN_TO_RUN and point not in failing.RUNNER:
                continue
            if not is_full and ((point, victim) in met or _is_dear(cell)):
                continue
            met.add((point, victim))
            yield cell


def _is_dear(cell: Cell) -> bool:
    """Left out of the short form: what differs little from its neighbours."""
    if cell.victim == "power":
        return cell.point not in ("journal.before-commit", "runner.before-end-record")
    if cell.victim == "machine":
        return cell.point not in (*DECIDING, *STARTING[-4:], *ENDING[:2], *SWEPT[-1:])
    if cell.victim == "daemons":
        return cell.point in (*ASKING, *ENDING[-2:])
    return False


def cell_id(cell: Cell) -> str:
    return f"{cell.phase}-{cell.point}-{cell.victim}"


CELLS = list(cells())


class Room:
    """The instance that goes through the cells; a failure is not carried into the next."""

    def __init__(self) -> None:
        self._victim: Victim | None = None
        self.numbers = itertools.count(1)

    def take(self) -> Victim:
        if self._victim is None:
            self._victim = Victim(ROOMY)
            self._victim.start()
        return self._victim

    def throw_away(self) -> None:
        victim, self._victim = self._victim, None
        if victim is not None:
            for pid in victim.everything():
                let_go(pid)
            victim.destroy()


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.throw_away()


@pytest.fixture
def victim(room, request) -> Iterator[Victim]:
    failed = request.session.testsfailed
    yield room.take()
    if request.session.testsfailed != failed:
        room.throw_away()


# -- the phases ---------------------------------------------------------------------------------


@dataclass
class Play:
    """One job, and what is done about it. `act` may be cut off at any point and is done again."""

    victim: Victim
    name: str
    phase: str
    job_id: int | None = None
    #: A job that has failed.
    failed: int = 0
    #: Jobs that wait for it.
    crowd: list[int] = field(default_factory=list)
    #: Whether a command can be run inside it: it has a cgroup.
    has_inside: bool = False

    def prepare(self) -> None:
        """Before anything is armed."""
        mark = f"echo $$ >> ran-{self.name}; (: < {HIDDEN}) && echo x >> saw-{self.name}; "
        wait = f"while ! [ -e gate-{self.name} ]; do sleep 0.02; done; "
        trap = f"trap 'echo x >> signalled-{self.name}' USR1; "
        match self.phase:
            case "submit":
                self.script = f"{mark} exit 3"
            case "launch":
                self.job_id = self._submit(f"{mark} exit 3", held=True)
            case "reload":
                self.victim.config.write_text(ROOMY)
                self.victim.ask("reload")
                demand = {"cores_milli": 45_000}
                self.job_id = self._submit(f"{mark} exit 3", held=True, demand=demand)
                self.victim.config.write_text(SMALL)
                self.victim.ask("reload")
                once_more(self.victim, "release", self.job_id, lambda state: state == "PENDING")
            case "stop":
                self.job_id = self._submit(f"{mark} sleep 1000")
            case "clean":
                tell = {"on": ["end"], "argv": self._tell}
                self.job_id = self._submit(f"{mark}{wait} exit 3", notify=tell)
            case _:
                self.job_id = self._submit(f"{trap}{mark}{wait} exit 3")
        if self.phase == "tell":
            after = [{"id": self.job_id}]
            for number in range(CROWD):
                self.crowd.append(self._submit("false", after=after, key=f"{self.name}-{number}"))
        self.has_inside = self.phase == "inside" and self.victim.has_cgroups()
        if self.phase in KNOWN_TO_RUN:
            assert self.job_id is not None
            self.victim.await_state(self.job_id, "RUNNING")
            # The file is there before what is written to it.
            wait_for("its first step", lambda: self.lines("ran"))

    def act(self) -> None:
        """Until it is done, whoever dies over it."""
        victim, job_id = self.victim, self.job_id
        if self.phase == "submit":
            self.job_id = self._submit(self.script)
            return
        assert job_id is not None
        match self.phase:
            case "launch":
                once_more(victim, "release", job_id, lambda state: state != "HELD")
            case "reload":
                victim.config.write_text(ROOMY)
                victim.ask("reload")
            case "run":
                # Once, whether or not an answer comes: who asks again is to be heard again.
                victim.try_ask("signal", select={"ids": [job_id]}, signal=int(SIGUSR1))
                is_over = ("LOST", "FAILED").__contains__
                frozen = lambda state: state == "SUSPENDED" or is_over(state)  # noqa: E731
                once_more(victim, "suspend", job_id, frozen)
                thawed = lambda state: state == "RUNNING" or is_over(state)  # noqa: E731
                once_more(victim, "resume", job_id, thawed)
                self._open_gate()
            case "stop":
                done = ("STOPPING", "CLEANING", "CANCELLED", "LOST").__contains__
                once_more(victim, "cancel", job_id, done)
            case "restart":
                victim.kill()
                # An end that is reported earlier is not ordered anything by the engine.
                is_back = lambda: victim.ask("doctor")["launcher"] == "connected"  # noqa: E731
                wait_for("the launcher", is_back, show=victim.tail)
                self._open_gate()
            case "inside":
                with self._command_inside():
                    self._open_gate()
            case "clean" | "tell":
                self._open_gate()
                victim.ask("status")

    @contextmanager
    def _command_inside(self) -> Iterator[None]:
        """A command runs inside the job, if anyone can still begin it, until the job ends."""
        command = None
        script = f"echo $$ >> inside-{self.name}; exec sleep 1000"
        words = [str(BIN / "drf"), "exec", str(self.job_id), "--", "sh", "-c", script]
        env = {**os.environ, "DRFD_SOCKET": str(self.victim.socket)}

        def has_begun() -> bool:
            nonlocal command
            if self.lines("inside") or not self.has_inside:
                return True
            assert self.job_id is not None
            if command is None or command.poll() is not None:
                if self.victim.state_of(self.job_id) != "RUNNING":
                    return True
                quiet = subprocess.DEVNULL
                command = subprocess.Popen(words, env=env, stdin=quiet, stdout=quiet, stderr=quiet)
            return False

        try:
            wait_for("a command inside it", has_begun, show=self.victim.tail)
            yield
        finally:
            if command is not None:
                command.wait(60)

    def _open_gate(self) -> None:
        (self.victim.work / f"gate-{self.name}").touch()

    def _submit(self, script: str, **fields: object) -> int:
        return self.victim.submit_job(self.name, script, **fields)

    def lines(self, what: str) -> int:
        path = self.victim.work / f"{what}-{self.name}"
        return len(path.read_text().split()) if path.exists() else 0

    def check(self, cell: Cell | None) -> None:
        """The job's end is the true one, and it ran once."""
        assert self.job_id is not None
        reply = self.victim.ask("show", id=self.job_id)
        job, events = reply["job"], [event["event"] for event in reply["events"]]
        said = (cell, reply, self.victim.tail())
        may_lose = cell is not None and cell.may_lose
        end = (job["state"], job["exit_code"])
        true_end = ("CANCELLED", None) if self.phase == "stop" else ("FAILED", 3)
        assert end == true_end or (may_lose and end == ("LOST", None)), said
        assert job["outcome"] is not None and job["outcome"]["text"], said
        runs = self.lines("ran")
        assert runs == 1 or (may_lose and end[0] == "LOST" and runs == 0), said
        assert events.count("Submitted") == 1 and events.count("Cleaned") == 1, said
        assert self.lines("told") <= 1 and self.lines("signalled") <= 1, said
        assert not self.lines("saw") or not self.victim.hides_devices(), said
        if self.crowd:
            self._check_crowd()
        if self.lines("inside"):
            text = (self.victim.work / f"inside-{self.name}").read_text()
            assert not any(is_alive(int(pid)) for pid in text.split()), said
        if cell is None and self.phase == "clean":
            assert self.lines("told") == 1, said
        if cell is None and self.phase == "run":
            assert self.lines("signalled") == 1, said

    @property
    def _tell(self) -> list[str]:
        return ["sh", "-c", f"echo x >> told-{self.name}"]

    def _check_crowd(self) -> None:
        """Each has been told of the end, once, and never starts."""
        for job_id in self.crowd:

            def told(job_id: int = job_id) -> list[str] | None:
                reply = self.victim.ask("show", id=job_id)
                is_told = reply["job"]["reason"]["code"] == "DEPENDENCY_NEVER"
                return [event["event"] for event in reply["events"]] if is_told else None

            assert wait_for("it to be told", told) == ["Submitted", "DependencySettled"]
        self.victim.ask("cancel", select={"ids": self.crowd})


def played(victim: Victim, phase: str, number: int) -> Play:
    play = Play(victim, f"j{number}", phase)
    play.prepare()
    return play


def finish(play: Play, acting: threading.Thread, errors: list[BaseException]) -> None:
    while acting.is_alive():
        acting.join(0.05)
    assert errors == []
    assert play.job_id is not None
    ends = ("COMPLETED", "FAILED", "CANCELLED", "LOST", "LAUNCH_FAILED", "TIMEOUT")
    play.victim.await_state(play.job_id, *ends)


def start_acting(play: Play) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            play.act()
        except BaseException as error:
            errors.append(error)

    acting = threading.Thread(target=run)
    acting.start()
    return acting, errors


# -- the tests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", REACHED)
def test_each_phase_reaches_the_failpoints_that_the_matrix_says(room, victim, phase):
    """With every point armed at somebody else, nothing dies and each says that it was reached."""
    play = played(victim, phase, next(room.numbers))
    others: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for point in failing.LOCAL:
            others[point] = subprocess.Popen(["sleep", "600"])
            victim.arm(point, others[point].pid)
        acting, errors = start_acting(play)
        finish(play, acting, errors)
        victim.check_at_rest()
        reached = {point for point in others if not (victim.failpoints / point).exists()}
    finally:
        for point, other in others.items():
            (victim.failpoints / point).unlink(missing_ok=True)
            other.kill()
            other.wait()
    expected = {*REACHED[phase]}
    if not victim.has_cgroups():
        # What is left of a job is then looked for on the controller's order alone.
        expected = (expected - {"launch.before-limits", *INSIDE}) | {*CLEANING, *ORDERING}
    if not victim.hides_devices():
        expected.discard("launch.before-devices")
    if not victim.makes_cgroups():
        expected.discard("runner.amid-mkdir")
    assert reached == expected
    play.check(None)


def test_every_failpoint_is_in_the_matrix():
    assert {*failing.LOCAL} == {point for points in REACHED.values() for point in points}
    for victim in ("itself", "controller", "launcher"):
        assert {cell.point for cell in CELLS if cell.victim == victim} == {*failing.LOCAL}


@pytest.mark.parametrize("cell", CELLS, ids=cell_id)
def test_every_promise_holds_when(room, victim, cell):
    """While somebody stands at the point, the victim dies; it is started again, and all goes on."""
    if cell.point in ("launch.before-limits", *SWEPT[-1:], *INSIDE) and not victim.has_cgroups():
        pytest.skip("without cgroups there is nothing to limit, and nothing to be inside of")
    if cell.point == "launch.before-devices" and not victim.hides_devices():
        pytest.skip("devices cannot be hidden here")
    if cell.point == "runner.amid-mkdir" and not victim.makes_cgroups():
        pytest.skip("the launcher makes the cgroups here")
    play = played(victim, cell.phase, next(room.numbers))
    victim.arm(cell.point, "stop")
    acting, errors = start_acting(play)
    reached = victim.failpoints / f"{cell.point}.reached"
    try:
        at = wait_for(
            f"somebody at {cell.point}", lambda: victim.stopped_at(cell.point), show=victim.tail
        )
        victim.kill_victim(cell.victim, point=cell.point, at=at, job_id=play.job_id)
    finally:
        (victim.failpoints / cell.point).unlink(missing_ok=True)
        reached.unlink(missing_ok=True)
    finish(play, acting, errors)
    play.check(cell)
    victim.check_at_rest()


def test_after_all_that_the_journal_replays_to_the_same_books(victim):
    """What the events say is what the tables say, and nothing is booked."""
    victim.stop()
    with closing(Journal(victim.state / "controller" / "journal.sqlite")) as journal:
        books = journal.load(Axes())
        books.check()
        assert tables(books) == tables(Ledger.of_events(Axes(), all_events(journal)))
    assert books.allocated.sums == (0, 0, 0, 0)
    victim.start()
