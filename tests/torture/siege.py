"""A machine with a hostile user, for as long as one likes: `python -m tests.torture.siege
--minutes 60`, as root with cgroups and a C compiler.

Two users work, each with a record of their own; a third one does all that tests/bench/attackers.py
knows, one attack after the other. It goes in rounds: for some seconds nobody attacks; then an
attack goes on; then it goes on while somebody is killed again and again: the controller, the
launcher, both, the launcher's supervisor, a runner, any other process of drfd's, or stopped for a
while. What the two users' submissions and starts take is compared between the first two, so that
they have the same neighbours.

In the end every job of the two has run once, as the files say that the jobs themselves have written
with O_APPEND, and has ended as its user's record says it must; or its runner was killed, and it is
LOST and says so. No cgroup, attempt file or process is left, and the books are empty.
"""

import argparse
import json
import os
import pwd
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.resources import Axes
from drfd.journal.journal import Journal
from fakes import tables
from instance import (
    BIN,
    CONFIG,
    PATIENCE,
    add_account,
    delete_account,
    parent_of,
    state_of,
    wait_for,
)
from kernel import Kernel
from tests.bench.attackers import ATTACKS
from torture.victims import Victim
from torture.worker import ENDS, PROBE

BENCH = Path(__file__).parents[1] / "bench"
ATTACKER = (BENCH / "attackers.py").read_text()
WORKER = Path(__file__).with_name("worker.py").read_text()
CAPACITY_MEMORY = 16 << 30
SETTINGS = CONFIG.replace("cores = 9", "cores = 32").replace('"18G"', '"16G"')
SETTINGS = SETTINGS.replace("processes = 64", "processes = 256")
#: Of a round, in seconds: alone, beside an attack, and with deaths.
QUIET_S, BESIDE_S, DEATHS_S = 6.0, 8.0, 8.0
#: From one death to the next.
_DEATH_S = 2.0
#: How often jobs of each fate are submitted, compared with the others.
ODDS = {
    "good": 6.0,
    "bad": 3.0,
    "short": 4.0,
    "held": 2.0,
    "cancelled": 2.0,
    "frozen": 1.0,
    "straggler": 1.0,
    "signalled": 1.0,
    "late": 1.0,
}
#: Weights of who dies.
_DEATHS = {
    "controller": 4,
    "launcher": 4,
    "both": 3,
    "supervisor": 2,
    "runner": 6,
    "anybody": 2,
    "controller told to end": 2,
    "controller stopped": 1,
    "launcher stopped": 1,
}
#: Attacks that are done by root, as a user with subordinate uids does them.
_AS_ROOT = {"unknown-uids"}
#: For comparison only.
_NO_ATTACK = {"spin"}


@dataclass(frozen=True)
class Phase:
    what: str
    attack: str
    begin_ns: int
    end_ns: int


@dataclass
class Siege:
    victim: Victim
    #: The users who work, and one who is hostile.
    users: dict[str, pwd.struct_passwd]
    chance: Random
    #: Jobs of all who work.
    per_second: float
    phases: list[Phase] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    #: Jobs whose runner was killed.
    orphans: set[int] = field(default_factory=set)
    #: One of these was killed before its exec, by us.
    unmaterialized: set[int] = field(default_factory=set)
    #: What must not be, in words.
    deviations: list[str] = field(default_factory=list)
    _workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    # -- the course of it ----------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self._start_workers(self._compiled_stamp(), ODDS)
        until = time.monotonic() + seconds
        try:
            for attack in self._attacks():
                if time.monotonic() >= until:
                    break
                self._round(attack)
        finally:
            self._tell_workers_to_end()
        self._await_workers()
        # What the last attack had sent may have been read only after its own clearing.
        self._clear_attacker()
        self.check()

    def _attacks(self) -> Iterator[str]:
        names = [name for name in ATTACKS if name not in _NO_ATTACK]
        while True:
            self.chance.shuffle(names)
            yield from names

    def _round(self, attack: str) -> None:
        self._phase("quiet", attack, QUIET_S)
        process = self._start_attack(attack)
        try:
            # What it prepares is part of it, but most of it is over then.
            self._phase("begin", attack, 2.0)
            self._phase("beside", attack, BESIDE_S)
            # What was begun beside the attack may end before anybody is killed.
            self._phase("pause", attack, 1.5)
            begin_ns, until = time.monotonic_ns(), time.monotonic() + DEATHS_S
            while time.monotonic() < until:
                self._kill_somebody()
                time.sleep(_DEATH_S)
            self._note_phase("deaths", attack, begin_ns)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        begin_ns = time.monotonic_ns()
        self._clear_attacker()
        self._look()
        self._note_phase("after", attack, begin_ns)
        self.counts[f"attack: {attack}"] += 1

    def _phase(self, what: str, attack: str, seconds: float) -> None:
        begin_ns = time.monotonic_ns()
        time.sleep(seconds)
        self._note_phase(what, attack, begin_ns)

    def _note_phase(self, what: str, attack: str, begin_ns: int) -> None:
        self.phases.append(Phase(what, attack, begin_ns, time.monotonic_ns()))

    # -- who takes part ------------------------------------------------------------------------

    def _home(self, name: str) -> Path:
        return self.victim.work / name

    def _compiled_stamp(self) -> Path:
        stamp, source = self.victim.root / "stamp", BENCH / "stamp.c"
        subprocess.run(["cc", "-O2", "-static", "-o", stamp, source], check=True)
        return stamp

    def _start_workers(self, stamp: Path | str, odds: dict[str, float]) -> None:
        working = [name for name in self.users if name != "hostile"]
        for name, account in self.users.items():
            self._home(name).mkdir(mode=0o700)
            os.chown(self._home(name), account.pw_uid, account.pw_gid)
            if name not in working:
                continue
            words = (self.victim.socket, self._home(name), stamp, BIN / "drf", json.dumps(odds))
            seed = f"{name} {self.chance.random()}"
            with self._home(name).joinpath("stderr").open("wb") as stderr:
                self._workers[name] = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-c", WORKER),
                        *(*map(str, words), seed, str(self.per_second / len(working))),
                    ],
                    env={"PATH": os.environ["PATH"], "DRFD_SOCKET": str(self.victim.socket)},
                    stderr=stderr,
                    **self._as(account),
                )

    def _tell_workers_to_end(self) -> None:
        for name in self._workers:
            self._home(name).joinpath("stop").touch()

    def kill_workers(self) -> None:
        """Who lives after a failure asks until somebody answers."""
        for worker in self._workers.values():
            worker.kill()
            worker.wait()

    def _await_workers(self) -> None:
        """They end when all their jobs have ended."""
        for name, worker in self._workers.items():
            wait_for(
                f"the end of {name}'s work",
                lambda worker=worker: self.victim.has_come_back() and worker.poll() is not None,
                seconds=400,
                show=self.victim.tail,
            )
            if worker.returncode != 0:
                self.deviations.append(f"{name} has ended with {worker.returncode}")

    def _start_attack(self, name: str) -> subprocess.Popen[bytes]:
        account = self.users["hostile"]
        words = (name, str(self.victim.socket), str(self._home("hostile")))
        return subprocess.Popen(
            [sys.executable, "-I", "-c", ATTACKER, *words],
            stdout=subprocess.DEVNULL,
            # It may well fail when those whom it talks to are killed.
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **({"cwd": "/"} if name in _AS_ROOT else self._as(account)),
        )

    def _as(self, account: pwd.struct_passwd) -> dict[str, Any]:
        if account.pw_uid == os.getuid():
            return {"cwd": "/"}
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}

    def _clear_attacker(self) -> None:
        """Cancel all that is the attacker's, until nothing of it lives."""
        select = {"user": self.users["hostile"].pw_name}

        def is_clear() -> bool:
            self.victim.ask("cancel", select=select)
            return not self.victim.ask("status", select=select, limit=1)["jobs"]

        wait_for("the end of the attacker's jobs", is_clear, seconds=300, show=self.victim.tail)

    # -- deaths --------------------------------------------------------------------------------

    def _kill_somebody(self, deaths: dict[str, int] = _DEATHS) -> None:
        (whom,) = self.chance.choices([*deaths], [*deaths.values()])
        process = self.victim.process
        assert process is not None
        try:
            match whom:
                case "controller" | "launcher" | "both":
                    self.victim.kill_daemons(whom)
                case "controller told to end":
                    process.terminate()
                    # Until then it may still answer.
                    wait_for("the end of the controller", self.victim.is_dead)
                case "controller stopped":
                    self._stop_for(process.pid)
                case "launcher stopped":
                    self._stop_for(self.victim.launcher_pid())
                case "supervisor":
                    keeper = parent_of(self.victim.launcher_pid())
                    # It may be dying already, and then the launcher's parent is a stranger.
                    if self._is_drfds(keeper):
                        os.kill(keeper, signal.SIGKILL)
                case "runner":
                    self._kill_a_runner()
                case "anybody":
                    self._kill_anybody()
        except (ProcessLookupError, FileNotFoundError, IndexError, AssertionError):
            # Gone by itself, after the one killed before.
            pass
        self.counts[f"killed: {whom}"] += 1
        wait_for("somebody who answers", self.victim.has_come_back, show=self.victim.tail)

    def _stop_for(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.1, 1.5))
        os.kill(pid, signal.SIGCONT)

    def _kill_a_runner(self) -> None:
        runners = self.victim.runners()
        if runners:
            self.orphans |= self.victim.kill_runner(self.chance.choice([*runners]))

    def _kill_anybody(self) -> None:
        """Of drfd's processes, whatever it is there for."""
        runners = self.victim.runners()
        pid = self.chance.choice([pid for pid in _pids() if self._is_drfds(pid)])
        if pid in runners:
            self.orphans |= self.victim.kill_runner(pid)
            return
        # A job's own process looks as its runner does, from the fork to its exec. It stands still
        # first, so that it is known whether it is still before that.
        os.kill(pid, signal.SIGSTOP)
        wait_for("a process that stands still", lambda: state_of(pid) in ("T", "t", "Z", None))
        if not self._is_drfds(pid):
            os.kill(pid, signal.SIGCONT)
            return
        parent = parent_of(pid)
        for found in (runners, self.victim.runners()):
            self.unmaterialized |= found.get(parent, set())
        # It may have become a runner meanwhile.
        self.orphans |= self.victim.kill_runner(pid)

    def _is_drfds(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        room = os.fsencode(self.victim.state)
        is_ours = any(word.startswith(room) for word in words)
        return is_ours and any(word.startswith(b"drfd.") for word in words)

    # -- what must hold ------------------------------------------------------------------------

    def _look(self) -> None:
        """The kernel's limits of all jobs together are not above what is given out."""
        total = sum(self.victim.memory_limits().values())
        if total > CAPACITY_MEMORY:
            self.deviations.append(f"the limits of all jobs sum up to {total} bytes")
        self.counts["looks"] += 1

    def check(self) -> None:
        self.victim.check_at_rest()
        self.victim.stop()
        left = self._processes()
        deadline = time.monotonic() + 20 * PATIENCE
        while left and time.monotonic() < deadline:
            time.sleep(0.5)
            left = self._processes()
        self.deviations += [f"a process is left: {each}" for each in left]
        path = self.victim.state / "controller" / "journal.sqlite"
        with closing(Journal(path)) as journal:
            books = journal.load(Axes())
            books.check()
            if any(books.allocated) or books.jobs:
                self.deviations.append(
                    f"the books hold {books.allocated} and {len(books.jobs)} jobs"
                )
            again = Ledger.of_events(Axes(), self._whole_histories(path, journal))
            again.next_id = max(again.next_id, books.next_id)
            if tables(books) != tables(again):
                self.deviations.append("the events make other books")
            for name in self._workers:
                self._check_worker(name, journal)
        with closing(sqlite3.connect(path)) as database:
            if database.execute("select count(*) from submissions where live").fetchone() != (0,):
                self.deviations.append("the payload of a job that is over is kept as a live one's")

    @staticmethod
    def _whole_histories(path: Path, journal: Journal) -> Iterator[ev.Event]:
        """Yield the events without those of jobs that changed so often that the journal has
        dropped some of their events, as in the attack `churn`."""
        query = (
            "select id from arrays where events_dropped union select id from jobs where"
            " events_dropped or array_id in (select id from arrays where events_dropped)"
        )
        with closing(sqlite3.connect(path)) as database:
            dropped = {job_id for (job_id,) in database.execute(query)}
        for event in journal.events():
            array_id = getattr(event, "array_id", None)
            if getattr(event, "job_id", array_id) not in dropped:
                yield event

    def _processes(self) -> list[str]:
        found = []
        uids = {account.pw_uid for account in self.users.values()} - {os.getuid()}
        for pid in _of_users(*uids):
            with suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))
        return found

    def records(self, name: str) -> list[dict[str, Any]]:
        return [*map(json.loads, self._home(name).joinpath("records").read_text().splitlines())]

    def _check_worker(self, name: str, journal: Journal) -> None:
        """The user's own record against the files that the jobs wrote, and the journal."""
        records = self.records(name)
        errors = self._home(name).joinpath("stderr").read_text()
        if errors or not records or not records[-1].get("done"):
            self.deviations.append(f"{name} has not come to the end: {errors[-2000:]}")
        for record in records:
            if "away" in record:
                # Right only while somebody was killed, at some time from its start to its end.
                phases = {self._phase_at(record[when]) for when in ("begun_ns", "at_ns")}
                if not phases & {"deaths", "after"}:
                    self.deviations.append(f"{name} found nobody: {record}")
                self.counts["drf submit: no daemon, not queued"] += 1
            elif "refused" in record:
                self.deviations.append(f"{name} was refused: {record}")
            elif "id" in record:
                self._check_job(name, record, journal)
        ids = [record["id"] for record in records if "id" in record]
        if len({*ids}) != len(ids):
            self.deviations.append(f"{name} was given an id twice")

    def _check_job(self, name: str, record: dict[str, Any], journal: Journal) -> None:
        job_id, number, fate = record["id"], record["number"], record["fate"]
        job = journal.job(job_id)
        place = self._home(name) / str(number // 1000)
        ran = place / (f"stamp-{number}" if fate == PROBE else f"ran-{number}")
        runs = ran.read_text().count("\n") if ran.exists() else 0
        self.counts[f"checked: {fate}"] += 1
        if job is None or job.spec.user != self.users[name].pw_name:
            self.deviations.append(f"job {job_id} of {name} is forgotten, or somebody else's")
            return
        end = (str(job.shown_state), job.exit_code)
        self.counts[f"ended: {job.shown_state}"] += 1
        is_lost = job_id in self.orphans and end[0] == "LOST"
        if is_lost and not re.search("runner", job.outcome_text):
            self.deviations.append(f"job {job_id} does not say why it is lost: {job.outcome_text}")
        # Once it has said that it is ready, its end looks as if it came after the exec.
        said = "before exec" if end[0] == "LAUNCH_FAILED" else "SIGKILL"
        is_unmaterialized = job_id in self.unmaterialized and said in job.outcome_text
        if end not in ENDS[fate] and not is_lost and not is_unmaterialized:
            self.deviations.append(
                f"job {job_id} ({fate}) of {name}: {end} {job.outcome_text!r}, ran {runs} times"
            )
        # A time limit counts from the start of the attempt, and on a busy machine it may be over
        # before the program's first step.
        may_miss = fate in ("cancelled", "late") or is_lost or is_unmaterialized
        if runs > 1 or (runs == 0 and not may_miss):
            self.deviations.append(f"job {job_id} ({fate}) of {name}: {end}, ran {runs} times")

    # -- figures -------------------------------------------------------------------------------

    def latencies(self) -> dict[str, dict[str, list[float]]]:
        """By what is measured and the phase that all of it fell into: milliseconds."""
        found: dict[str, dict[str, list[float]]] = {}
        for name in self._workers:
            for record in self.records(name):
                if "id" not in record:
                    continue
                begin_ns, end_ns = record["begun_ns"], record["ended_ns"]
                what = "drf submit" if record["how"] == "drf" else "submit"
                self._sort_in(found, what, begin_ns, end_ns)
                if record["fate"] == PROBE:
                    number = record["number"]
                    stamp = self._home(name) / str(number // 1000) / f"stamp-{number}"
                    if stamp.exists() and stamp.read_text().strip():
                        start_ns = int(stamp.read_text().split()[0])
                        self._sort_in(found, "start", begin_ns, start_ns)
        return found

    def _phase_at(self, at_ns: int) -> str:
        found = (each.what for each in self.phases if each.begin_ns <= at_ns < each.end_ns)
        return next(found, "after")

    def _sort_in(
        self, found: dict[str, dict[str, list[float]]], what: str, begin_ns: int, end_ns: int
    ) -> None:
        for phase in self.phases:
            if phase.begin_ns <= begin_ns < phase.end_ns:
                rows = found.setdefault(what, {}).setdefault(phase.what, [])
                rows.append((end_ns - begin_ns) / 1e6)
                return


def late(found_ms: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(found_ms, n=100, method="inclusive")[98]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _of_users(*uids: int) -> list[int]:
    """Their processes that live."""
    found = []
    for pid in _pids():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid in uids and state_of(pid) not in ("Z", None):
                found.append(pid)
    return found


def _has_ended_all_of(uid: int) -> bool:
    """Kill what lives of a user of ours; whether there was nothing."""
    killed = _of_users(uid)
    for pid in killed:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return not killed


def siege(
    seconds: float, *, seed: int = 1, per_second: float = 16.0, keep: Path | None = None
) -> Siege:
    """Run it; what must not have happened is in its `deviations`."""
    names = {who: f"drfd{who[:4]}{os.getpid()}" for who in ("hostile", "alice", "bob")}
    users: dict[str, pwd.struct_passwd] = {}
    settings = SETTINGS + f'[users.{names["hostile"]}]\nlimit = {{cores = 8, memory = "4G"}}\n'
    victim = Victim(settings)
    try:
        for who, name in names.items():
            users[who] = add_account(name)
        victim.start()
        found = Siege(victim, users, Random(seed), per_second)
        found.run(seconds)
        _print(found)
        return found
    finally:
        if keep is not None:
            ignore = shutil.ignore_patterns("*.sock", "[0-9]*")
            shutil.copytree(victim.root, keep, ignore=ignore, dirs_exist_ok=True)
        if victim.process is not None:
            wait_for("a daemon to end all jobs", victim.has_come_back, show=victim.tail)
        victim.destroy()
        for account in users.values():
            gone = partial(_has_ended_all_of, account.pw_uid)
            wait_for(f"the end of all of {account.pw_name}", gone)
            delete_account(account.pw_name)


def _print(found: Siege) -> None:
    for name, count in sorted(found.counts.items()):
        print(f"  {name:<34}{count:>10}")
    print(f"\n{'milliseconds':<14}{'phase':<10}{'number':>8}{'median':>10}{'99 %':>10}{'x':>7}")
    for what, by_phase in found.latencies().items():
        alone = late(by_phase["quiet"]) if len(by_phase.get("quiet", [])) > 1 else float("nan")
        for phase in ("quiet", "begin", "beside", "deaths", "after"):
            rows = by_phase.get(phase, [])
            if len(rows) > 1:
                last = late(rows)
                print(
                    f"{what:<14}{phase:<10}{len(rows):>8}{statistics.median(rows):>10.1f}"
                    f"{last:>10.1f}{last / alone:>7.1f}"
                )
    print(f"\n{len(found.deviations)} deviations", *found.deviations[:50], sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.siege",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--per-second", type=float, default=16.0, help="jobs of both users (16)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, help="copy the state, log and records there")
    chosen = parser.parse_args()
    missing = Kernel().missing()
    if missing is not None:
        raise SystemExit(f"this needs root and cgroups: {missing}")
    # All that was made is taken away, too, when we are told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed {chosen.seed}", flush=True)
    found = siege(
        chosen.minutes * 60, seed=chosen.seed, per_second=chosen.per_second, keep=chosen.keep
    )
    sys.exit(1 if found.deviations else 0)


if __name__ == "__main__":
    main()
