"""A machine in use, for as long as one likes: `python -m tests.torture.soak --minutes 60`.

Twenty short jobs a second, some of them held, cancelled, suspended or signalled, and now and then
somebody is killed: the controller, the launcher, a runner. Others have ranges of cores (`Ranges`).
Meanwhile the kernel's limits of all running jobs never sum up to more than the capacity, nor to
anything but what the books say. In the end everybody's memory and descriptors are about what they
were after the first tenth, every job has ended as it must, and no cgroup, process, attempt file or
payload is left.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


from drfd.core.ledger.ledger import Ledger
from drfd.core.model.resources import Axes
from drfd.journal.journal import Journal
from drfd.launcher import attempt_files
from fakes import tables
from instance import CONFIG, wait_for
from kernel import Kernel
from torture.victims import Victim
from torture.worker import FATES as WORK
from torture.worker import deeds, last_deed

# -- what must hold of ranges -----------------------------------------------------------------

#: The pools whose jobs have ranges.
POOLS = ("A", "B")
#: Thousandths of cores that each job declares, at least.
FLOOR = 100


@dataclass
class Ranges:
    """The quota of each job with a cgroup is at its upper end, by the kernel's own figures, also
    while nobody lives."""

    victim: Victim
    #: The upper ends of jobs with a range, in thousandths of cores.
    most_milli: dict[int, int] = field(default_factory=dict)

    def look(self) -> int:
        """Return at how many jobs with a range it has looked."""
        kernel, seen = Kernel(), 0
        for path in (self.victim.state / "launcher/attempts").glob("*.*"):
            with suppress(OSError):
                attempt = attempt_files.parse(path.read_bytes())
                if attempt is None or attempt.launched is None or attempt.is_over:
                    continue
                cgroup = attempt.created.get("cgroup")
                if cgroup is not None:
                    top = Path(kernel.v2 or kernel.v1["cpu"], str(cgroup))
                    ceiling = _ceiling(top, is_v2=kernel.v2 is not None)
                    most = self.most_milli.get(int(path.name.partition(".")[0]), FLOOR)
                    assert ceiling is not None, path
                    assert most * 0.99 <= ceiling * 1000 <= most * 1.01, (path, ceiling, most)
                    seen += most > FLOOR
        return seen


def _ceiling(cgroup: Path, *, is_v2: bool) -> float | None:
    """In cores. Raises OSError if the cgroup is gone."""
    if is_v2:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    # The period is doubled by the kernel now and then, together with the quota.
    quota_us, period_us, again_us = (
        int((cgroup / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period", "quota")
    )
    return None if min(quota_us, again_us) < 0 else again_us / period_us


# -- the soak ---------------------------------------------------------------------------------

_BUSY = "while :; do :; done"
#: As of those who work in a siege, but for jobs with ranges: some of them are submitted together,
#: and none is drawn.
FATES = {name: WORK[name] for name in ("good", "bad", "short", "held", "cancelled", "frozen")}
FATES["ranged"] = (
    f"{_BUSY} & a=$!; {_BUSY} & b=$!; sleep 20; kill $a $b; exit 6",
    0,
    (("FAILED", 6),),
)
MEMORY = 64 << 20
CAPACITY_MEMORY = 2 << 30
CORES = 4
SETTINGS = CONFIG.replace("cores = 9", f"cores = {CORES}").replace('"18G"', '"2G"')
#: Seconds from some jobs with ranges to the next.
_RANGED_S = 25.0
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
    def of(pid: int) -> Vital:
        status = Path(f"/proc/{pid}/smaps_rollup").read_text()
        pss = next(line for line in status.splitlines() if line.startswith("Pss_Anon:"))
        return Vital(int(pss.split()[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd")))


@dataclass
class Soak:
    victim: Victim
    chance: Random
    per_second: float = 20.0
    #: Seconds from one death to the next, one of them at a time.
    deaths_s: tuple[float, ...] = (2.0, 4.0, 16.0)
    #: It goes on until so many have died: on a busy machine each takes a while to come back.
    least_deaths: int = 0
    fates: dict[int, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    #: Runs of jobs whose runner was killed.
    orphans: set[int] = field(default_factory=set)
    #: When, what and of whom to ask, and with which fields.
    _later: list[tuple[float, str, int, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranges = Ranges(self.victim)

    def run(self, seconds: float) -> None:
        started = time.monotonic()
        until = started + seconds
        next_job, next_death = started, started + min(self.deaths_s)
        next_look = next_ranged = started
        first: tuple[Vital, Vital] | None = None
        while (now := time.monotonic()) < until or self._deaths() < self.least_deaths:
            if now >= next_job:
                self._submit()
                next_job = max(next_job + 1 / self.per_second, now - 1)
            if now >= next_ranged:
                self._submit_some_with_ranges()
                next_ranged = now + _RANGED_S
            self._do_what_is_due(now)
            if now >= next_look:
                self._look()
                next_look = now + 0.5
            is_wanted = until - now > max(self.deaths_s) or self._deaths() < self.least_deaths
            if now >= next_death and is_wanted:
                self._kill_somebody()
                next_death = now + self.chance.choice(self.deaths_s)
            if first is None and now > started + seconds / 10 and not self.victim.is_dead():
                first = self._vitals()
            time.sleep(max(0.0, min(0.01, next_job - time.monotonic())))
        self._do_what_is_due(float("inf"))
        self._await_all()
        assert first is not None
        self._compare(first, self._vitals())
        self.check()

    # -- deeds ---------------------------------------------------------------------------------

    def _submit(self) -> None:
        fate = self.chance.choices([*FATES], [weight for _, weight, _ in FATES.values()])[0]
        job_id = self._submit_one(fate, {})
        now = time.monotonic()
        self._later += [(now + in_s, verb, job_id, {}) for in_s, verb in deeds(fate, self.chance)]

    def _submit_some_with_ranges(self) -> None:
        """Of both pools."""
        for pool in POOLS:
            for _ in range(self.chance.choice((1, 2, 3))):
                most = self.chance.choice((400, 2000, *4 * (CORES * 1000,)))
                asked = {"cores_milli": FLOOR, "cores_max_milli": most}
                job_id = self._submit_one("ranged", asked, pool=pool)
                self.ranges.most_milli[job_id] = most

    def _submit_one(self, fate: str, demand: dict[str, int], **more: Any) -> int:
        number = len(self.fates)
        script = f"echo x >> {number // 1000}/ran-{number}; {FATES[fate][0]}"
        (self.victim.work / str(number // 1000)).mkdir(exist_ok=True)
        demand = {"memory_bytes": MEMORY, **demand}
        fields: dict[str, Any] = {"demand": demand, "stdout": "/dev/null"}
        fields |= {"stderr": "/dev/null", "held": fate == "held", **more}
        job_id = self.victim.submit_job(f"{fate}-{number}", script, **fields)
        assert job_id not in self.fates, "an id was given out twice"
        self.fates[job_id] = fate
        return job_id

    def _do_what_is_due(self, now: float) -> None:
        due = [each for each in self._later if each[0] <= now]
        self._later = [each for each in self._later if each[0] > now]
        for _, verb, job_id, fields in due:
            reply = self.victim.ask(verb, select={"ids": [job_id]}, **fields)
            self.counts[f"{verb}: {'done' if reply['done'] else 'refused'}"] += 1

    def _deaths(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith("killed: "))

    def _kill_somebody(self) -> None:
        whom = self.chance.choice(("controller", "launcher", "both", "runner"))
        if whom in ("controller", "both"):
            # The process that makes a report dies with it, at any moment.
            threading.Thread(target=self.victim.try_ask, args=("report",), daemon=True).start()
            time.sleep(self.chance.uniform(0, 0.5))
        try:
            if whom == "runner":
                self._kill_a_runner()
            else:
                self.victim.kill_daemons(whom)
        except ProcessLookupError:
            return
        self.counts[f"killed: {whom}"] += 1
        self.ranges.look()
        wait_for("somebody who answers", self.victim.has_come_back, show=self.victim.tail)

    def _kill_a_runner(self) -> None:
        running = self.victim.ask("status", select={"states": ["RUNNING"]})["jobs"]
        if not running:
            return
        job_id = self.chance.choice(running)["id"]
        runner = self.victim.runner_of(job_id)
        if runner is not None:
            self.orphans |= self.victim.kill_runner(runner)

    # -- looks ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Books against kernel. A job may end between the two looks: then its files are gone."""
        # Told at one moment, unlike a list of many jobs, in which one may end and another start.
        nodes = {node["path"]: node for node in self.victim.ask("shares")["nodes"]}
        if "root" in nodes:
            booked, running = nodes["root"]["usage"]["memory"], nodes["root"]["running"]
            assert booked == running * MEMORY <= CAPACITY_MEMORY, (booked, running)
        limits = self.victim.memory_limits()
        assert sum(limits.values()) <= CAPACITY_MEMORY, limits
        assert set(limits.values()) <= {MEMORY}, limits
        self.counts["looks at ranges"] += self.ranges.look()
        self.counts["looks"] += 1

    def _vitals(self) -> tuple[Vital, Vital]:
        assert self.victim.process is not None
        return Vital.of(self.victim.process.pid), Vital.of(self.victim.launcher_pid())

    def _compare(self, first: tuple[Vital, Vital], last: tuple[Vital, Vital]) -> None:
        for name, before, after in zip(("controller", "launcher"), first, last, strict=True):
            grown = after.memory_bytes - before.memory_bytes
            self.counts[f"{name}: KiB grown"] = grown >> 10
            self.counts[f"{name}: descriptors"] = after.descriptors
            assert grown < _GROWTH_BYTES, f"{name} has grown by {grown} bytes: {before} {after}"
            more = 8 if name == "controller" else _FOR_RUNNERS
            assert after.descriptors <= before.descriptors + more, f"{name}: {before} {after}"

    def _await_all(self) -> None:
        def is_empty() -> bool:
            jobs = self.victim.ask("status", select={})["jobs"]
            for job in jobs:
                if verb := last_deed(job["state"], self.fates[job["id"]]):
                    self.victim.try_ask(verb, select={"ids": [job["id"]]})
            return not jobs

        wait_for("the end of all jobs", is_empty, seconds=120, show=self.victim.tail)

    def check(self) -> None:
        """Nothing is left, every job has ended as it must, and the journal replays to that."""
        self.victim.check_at_rest()
        self.victim.stop()
        path = self.victim.state / "controller" / "journal.sqlite"
        with closing(Journal(path)) as journal:
            books = journal.load(Axes())
            books.check()
            assert tables(books) == tables(Ledger.of_events(Axes(), list(journal.events())))
            assert not any(books.allocated) and not books.jobs
            for job_id, fate in self.fates.items():
                job = journal.job(job_id)
                assert job is not None, f"job {job_id} is forgotten"
                self.counts[f"ended: {job.shown_state}"] += 1
                end = (str(job.shown_state), job.exit_code)
                is_lost = job_id in self.orphans and end[0] == "LOST"
                assert end in FATES[fate][2] or is_lost, (job_id, fate, end)
        self._check_runs()
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("select count(*) from payloads where live").fetchone() == (0,)

    def _check_runs(self) -> None:
        """Each ran once; one that was cancelled, or has lost its runner, perhaps not at all."""
        for number, (job_id, fate) in enumerate(self.fates.items()):
            ran = self.victim.work / str(number // 1000) / f"ran-{number}"
            runs = ran.read_text().count("x") if ran.exists() else 0
            may_miss = fate == "cancelled" or job_id in self.orphans
            assert runs == 1 or (runs == 0 and may_miss), (job_id, fate, runs)


def soak(seconds: float, *, seed: int = 1, per_second: float = 20.0, least_deaths: int = 0) -> Soak:
    """Raises AssertionError for what must not happen."""
    victim = Victim(SETTINGS)
    try:
        victim.start()
        made = Soak(victim, Random(seed), per_second, least_deaths=least_deaths)
        made.run(seconds)
        return made
    finally:
        victim.destroy()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--per-second", type=float, default=20.0, help="jobs submitted (20)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {Kernel().missing() or 'real cgroups'}", flush=True)
    done = soak(chosen.minutes * 60, seed=chosen.seed, per_second=chosen.per_second)
    print(f"{len(done.fates)} jobs")
    for name, count in sorted(done.counts.items()):
        print(f"  {name:<28}{count:>10}")


if __name__ == "__main__":
    main()
