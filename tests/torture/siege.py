"""A machine in use, for as long as one likes: `python -m tests.torture.siege --minutes 60`, as root
with cgroups; `--alone`, of whoever starts it, without anybody who attacks.

Two users work, each with a record of their own, and a third one does all that `bench/attackers.py`
knows, one attack after the other; alone, only whoever started it works, on a small machine.
Meanwhile somebody is killed again and again: the controller, the launcher, both, the launcher's
supervisor, a runner, any other process of drfd's, or stopped for a while; and the kernel's limits
of all running jobs never sum up to more than the capacity.

In the end every job of those who work has run once, as the files say that the jobs themselves have
written with O_APPEND, and has ended as its user's record says it must; or its runner was killed,
and it is LOST and says so. No cgroup, attempt file or process is left, and the books are empty.
Alone, the limits are meanwhile what the books say, and everybody's memory and descriptors are in
the end about what they were after the first tenth.
"""

import argparse
import json
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
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
from fakes import all_events, tables
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
from torture.worker import FATES, MEMORY_BYTES

ATTACKER = (Path(__file__).parents[1] / "bench" / "attackers.py").read_text()
WORKER = Path(__file__).with_name("worker.py").read_text()
#: With attackers, and alone.
ROOMY = CONFIG.replace("cores = 9", "cores = 32").replace('"18G"', '"16G"')
ROOMY = ROOMY.replace("processes = 64", "processes = 256")
SMALL = CONFIG.replace("cores = 9", "cores = 4").replace('"18G"', '"2G"')
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
#: Those that cannot be had without cgroups.
_CONFINED = {"straggler", "signalled", "late"}
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
#: How long an attack lasts, in seconds.
_ATTACK_S = 20.0
#: Attacks that are done by root, as a user with subordinate uids does them.
_AS_ROOT = {"unknown-uids"}
#: The other one is for comparison only.
ATTACKED = [name for name in ATTACKS if name != "spin"]
#: Memory of the controller may grow so much from the first tenth to the end, in bytes: what a
#: daemon keeps of each job that has ended goes with it, so it is a bound for leaks, not for caches.
_GROWTH_BYTES = 24 << 20
#: Descriptors that the launcher may have more: two for each runner that waits for the next attempt.
_FOR_RUNNERS = 8 + 2 * 16


@dataclass
class Vital:
    """What a daemon holds: bytes of its own memory, and descriptors."""

    memory_bytes: int
    descriptors: int

    @staticmethod
    def of(pid: int) -> "Vital":
        status = Path(f"/proc/{pid}/smaps_rollup").read_text()
        pss = next(line for line in status.splitlines() if line.startswith("Pss_Anon:"))
        return Vital(int(pss.split()[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd")))


@dataclass
class Siege:
    victim: Victim
    #: The users who work, and one who is hostile, if any.
    users: dict[str, pwd.struct_passwd]
    chance: Random
    #: Jobs of all who work.
    per_second: float
    #: It goes on until so many have died: on a busy machine each takes a while to come back.
    least_deaths: int = 0
    #: From one death to the next.
    pauses_s: tuple[float, ...] = (2.0, 4.0, 16.0)
    #: How often jobs of each fate are submitted, and what else is asked for each.
    odds: dict[str, float] = field(default_factory=ODDS.copy)
    fields: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    #: Jobs whose runner was killed.
    orphans: set[int] = field(default_factory=set)
    #: One of these was killed before its exec, by us.
    unmaterialized: set[int] = field(default_factory=set)
    #: What must not be, in words.
    deviations: list[str] = field(default_factory=list)
    _workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    #: From when to when nobody may have answered.
    _away_ns: list[tuple[int, int]] = field(default_factory=list)
    #: Records of the workers that have been read: how many, and those of jobs.
    _read: Counter[str] = field(default_factory=Counter)
    _jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Those that come next, the last one first.
    _attacks: list[str] = field(default_factory=list)

    # -- the course of it ----------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        started = time.monotonic()
        next_death = started + min(self.pauses_s)
        vitals: list[Vital] = []
        self._start_workers()

        def is_over() -> bool:
            return time.monotonic() >= started + seconds and self.deaths() >= self.least_deaths

        try:
            while not is_over():
                with self._attack():
                    attacked_until = time.monotonic() + _ATTACK_S
                    while (now := time.monotonic()) < attacked_until and not is_over():
                        self._look()
                        if now >= next_death:
                            self._kill_somebody()
                            next_death = now + self.chance.choice(self.pauses_s)
                        is_time = not vitals and now > started + seconds / 10
                        if is_time and not self.victim.is_dead():
                            vitals = self._vitals()
                        time.sleep(min(0.5, self.pauses_s[0]))
        finally:
            self._tell_workers_to_end()
        self._await_workers()
        if "hostile" in self.users:
            # What the last attack had sent may have been read only after its own clearing.
            self._clear_attacker()
        else:
            self._compare(vitals, self._vitals())
        self.check()

    def deaths(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith("killed: "))

    def jobs(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith("ended: "))

    def tell(self) -> int:
        """Print what there was; 1 if anything was that must not be."""
        for name, count in sorted(self.counts.items()):
            print(f"  {name:<34}{count:>10}")
        print(f"\n{len(self.deviations)} deviations", *self.deviations[:50], sep="\n", flush=True)
        return 1 if self.deviations else 0

    # -- who takes part ------------------------------------------------------------------------

    def _home(self, name: str) -> Path:
        return self.victim.work / name

    def _is_back(self) -> bool:
        """Whoever is dead is started again."""
        return self.victim.has_come_back()

    def _start_workers(self) -> None:
        working = [name for name in self.users if name != "hostile"]
        if not self.victim.has_cgroups():
            self.odds = {fate: odds for fate, odds in self.odds.items() if fate not in _CONFINED}
        for name, account in self.users.items():
            self._home(name).mkdir(mode=0o700)
            os.chown(self._home(name), account.pw_uid, account.pw_gid)
            if name not in working:
                continue
            told = json.dumps({"odds": self.odds, "fields": self.fields})
            words = (self.victim.socket, self._home(name), BIN / "drf", told)
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
                lambda worker=worker: self._is_back() and worker.poll() is not None,
                seconds=400,
                show=self.victim.tail,
            )
            if worker.returncode != 0:
                self.deviations.append(f"{name} has ended with {worker.returncode}")

    @contextmanager
    def _attack(self) -> Iterator[None]:
        """The next attack goes on; all that it leaves is cleared."""
        if "hostile" not in self.users:
            yield
            return
        self._attacks = self._attacks or self.chance.sample(ATTACKED, len(ATTACKED))
        name, account = self._attacks.pop(), self.users["hostile"]
        words = (name, str(self.victim.socket), str(self._home("hostile")))
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", ATTACKER, *words],
            stdout=subprocess.DEVNULL,
            # It may well fail when those whom it talks to are killed.
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **({"cwd": "/"} if name in _AS_ROOT else self._as(account)),
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._clear_attacker()
        self.counts[f"attack: {name}"] += 1

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

    def _kill_somebody(self) -> None:
        # The process that makes a report dies with the controller, at any moment.
        threading.Thread(target=self.victim.try_ask, args=("report",), daemon=True).start()
        time.sleep(self.chance.uniform(0, 0.5))
        (whom,) = self.chance.choices([*_DEATHS], [*_DEATHS.values()])
        process, begin_ns = self.victim.process, time.monotonic_ns()
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
        self._away_ns.append((begin_ns, time.monotonic_ns()))

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
        """Books against kernel. A job may end between the two looks: then its files are gone."""
        # Told at one moment, unlike a list of many jobs, in which one may end and another start.
        told = self.victim.ask("shares")
        room = told["capacity"]["memory"]
        nodes = {node["path"]: node for node in told["nodes"]}
        limits = self.victim.memory_limits()
        assert sum(limits.values()) <= room, limits
        if "root" in nodes and "hostile" not in self.users:
            booked, running = nodes["root"]["usage"]["memory"], nodes["root"]["running"]
            assert booked == running * MEMORY_BYTES <= room, (booked, running)
            assert set(limits.values()) <= {MEMORY_BYTES}, limits
        self.counts["looks"] += 1

    def _read_records(self) -> None:
        for name in self._workers:
            path = self._home(name) / "records"
            # It comes with the worker's first step.
            lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
            for record in map(json.loads, lines[self._read[name] :]):
                if "id" in record:
                    self._jobs[record["id"]] = record
            self._read[name] = len(lines)

    def _vitals(self) -> list[Vital]:
        """Of the controller and the launcher."""
        assert self.victim.process is not None
        return [Vital.of(self.victim.process.pid), Vital.of(self.victim.launcher_pid())]

    def _compare(self, first: list[Vital], last: list[Vital]) -> None:
        for name, before, after in zip(("controller", "launcher"), first, last, strict=True):
            grown = after.memory_bytes - before.memory_bytes
            self.counts[f"{name}: KiB grown"] = grown >> 10
            self.counts[f"{name}: descriptors"] = after.descriptors
            assert grown < _GROWTH_BYTES, f"{name} has grown by {grown} bytes: {before} {after}"
            more = 8 if name == "controller" else _FOR_RUNNERS
            assert after.descriptors <= before.descriptors + more, f"{name}: {before} {after}"

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
            if any(books.allocated.sums) or books.jobs:
                self.deviations.append(
                    f"the books hold {books.allocated} and {len(books.jobs)} jobs"
                )
            again = Ledger.of_events(Axes(), self._whole_histories(path, journal))
            again.next_id = max(again.next_id, books.next_id)
            if tables(books) != tables(again):
                self.deviations.append("the events make other books")
            for name in self._workers:
                self._check_worker(name, journal)
            if journal.live_bytes_in_total():
                self.deviations.append("the payload of a job that is over is kept as a live one's")

    @staticmethod
    def _whole_histories(path: Path, journal: Journal) -> Iterator[ev.Event]:
        """Yield the events without those of jobs that changed so often that the journal has
        dropped some of their events, as in the attack `churn`."""
        query = (
            "select id from arrays where dropped union select id from jobs where"
            " dropped or array_id in (select id from arrays where dropped)"
        )
        with closing(sqlite3.connect(path)) as database:
            dropped = {job_id for (job_id,) in database.execute(query)}
        for event in all_events(journal):
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
                begun_ns, at_ns = record["begun_ns"], record["at_ns"]
                if not any(gone < at_ns and begun_ns < back for gone, back in self._away_ns):
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
        ran = self._home(name) / str(number // 1000) / f"ran-{number}"
        # Of each attempt.
        runs = Counter(ran.read_text().split() if ran.exists() else ())
        self.counts[f"checked: {fate}"] += 1
        if job is None or job.spec.user != self.users[name].pw_name:
            self.deviations.append(f"job {job_id} of {name} is forgotten, or somebody else's")
            return
        end = (str(job.shown_state), job.exit_code)
        self.counts[f"ended: {job.shown_state}"] += 1
        is_lost = end[0] == "LOST" and self._may_lose(job_id)
        if is_lost and job_id in self.orphans and "runner" not in job.outcome_text:
            self.deviations.append(f"job {job_id} does not say why it is lost: {job.outcome_text}")
        # Once it has said that it is ready, its end looks as if it came after the exec.
        said = "before exec" if end[0] == "LAUNCH_FAILED" else "SIGKILL"
        is_unmaterialized = job_id in self.unmaterialized and said in job.outcome_text
        if end not in FATES[fate][1] and not is_lost and not is_unmaterialized:
            self.deviations.append(
                f"job {job_id} ({fate}) of {name}: {end} {job.outcome_text!r}, ran {dict(runs)}"
            )
        # A time limit counts from the start of the attempt, and on a busy machine it may be over
        # before the program's first step.
        may_miss = fate in ("cancelled", "late") or is_lost or is_unmaterialized
        is_once = all(count == 1 for count in runs.values()) and "beside" not in runs
        if not is_once or (str(job.attempt) not in runs and not may_miss):
            self.deviations.append(f"job {job_id} ({fate}) of {name}: {end}, ran {dict(runs)}")

    def _may_lose(self, job_id: int) -> bool:
        """Whether the end of the job may be unknown."""
        return job_id in self.orphans


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
    seconds: float,
    *,
    seed: int = 1,
    per_second: float = 16.0,
    is_alone: bool = False,
    least_deaths: int = 0,
    keep: Path | None = None,
) -> Siege:
    """What must not have happened is in its `deviations`, or raises AssertionError."""
    settings, users = SMALL, {"us": pwd.getpwuid(os.getuid())}
    if not is_alone:
        names = {who: f"drfd{who[:4]}{os.getpid()}" for who in ("hostile", "alice", "bob")}
        limit = f'[users.{names["hostile"]}]\nlimit = {{cores = 8, memory = "4G"}}\n'
        settings, users = ROOMY + limit, {}
    victim = Victim(settings)
    made = Siege(victim, users, Random(seed), per_second, least_deaths)
    try:
        if not is_alone:
            users |= {who: add_account(name) for who, name in names.items()}
        victim.start()
        made.run(seconds)
        return made
    finally:
        made.kill_workers()
        if keep is not None:
            ignore = shutil.ignore_patterns("*.sock", "[0-9]*")
            shutil.copytree(victim.root, keep, ignore=ignore, dirs_exist_ok=True)
        if victim.process is not None:
            wait_for("a daemon to end all jobs", victim.has_come_back, show=victim.tail)
        victim.destroy()
        for account in users.values() if not is_alone else ():
            gone = partial(_has_ended_all_of, account.pw_uid)
            wait_for(f"the end of all of {account.pw_name}", gone)
            delete_account(account.pw_name)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.siege",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--alone", action="store_true", help="without anybody who attacks")
    parser.add_argument("--per-second", type=float, default=16.0, help="jobs of all users (16)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, help="copy the state, log and records there")
    chosen = parser.parse_args()
    missing = Kernel().missing()
    if missing is not None and not chosen.alone:
        raise SystemExit(f"this needs root and cgroups, or --alone: {missing}")
    # All that was made is taken away, too, when we are told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed {chosen.seed}, {missing or 'real cgroups'}", flush=True)
    found = siege(
        chosen.minutes * 60,
        seed=chosen.seed,
        per_second=chosen.per_second,
        is_alone=chosen.alone,
        keep=chosen.keep,
    )
    sys.exit(found.tell())


if __name__ == "__main__":
    main()
