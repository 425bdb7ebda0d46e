"""A machine in use, for as long as one likes: `python -m tests.torture.soak --minutes 60`.

A siege without an attacker, of whoever starts it, with or without cgroups: a user works, with
twenty short jobs a second, some with ranges of cores, and now and then somebody is killed.
Meanwhile the kernel's limits of all running jobs never sum up to more than the capacity, nor to
anything but what the books say. In the end everybody's memory and descriptors are about what they
were after the first tenth, and all that a siege looks at is so.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from drfd.launcher import attempt_files
from instance import CONFIG
from kernel import Kernel
from torture.siege import ODDS, Siege
from torture.victims import Victim
from torture.worker import CORES_MILLI, MEMORY_BYTES, UPPER_ENDS_MILLI

CAPACITY_MEMORY = 2 << 30
SETTINGS = CONFIG.replace("cores = 9", "cores = 4").replace('"18G"', '"2G"')
FATES = {**ODDS, "straggler": 0, "signalled": 0, "late": 0, "ranged": 0.15}
#: Weights of who dies, and seconds from one death to the next.
_DEATHS = {"controller": 1, "launcher": 1, "both": 1, "runner": 1}
_PAUSES_S = (2.0, 4.0, 16.0)
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
class Soak(Siege):
    #: It goes on until so many have died: on a busy machine each takes a while to come back.
    least_deaths: int = 0
    #: Records of the worker that have been read.
    _read: int = 0

    def __post_init__(self) -> None:
        #: The upper ends of jobs that the worker has written down, in thousandths of cores.
        self._most_milli: dict[int, int] = {}

    def run(self, seconds: float) -> None:
        started = time.monotonic()
        until, next_death = started + seconds, started + min(_PAUSES_S)
        first: tuple[Vital, Vital] | None = None
        # Ranges are refused without cgroups, in which the kernel divides what is idle.
        ranged = FATES["ranged"] if self.victim.has_cgroups() else 0
        self._start_workers("", {**FATES, "ranged": ranged})
        try:
            while (now := time.monotonic()) < until or self.deaths() < self.least_deaths:
                self._look()
                is_wanted = until - now > max(_PAUSES_S) or self.deaths() < self.least_deaths
                if now >= next_death and is_wanted:
                    self._kill_somebody(_DEATHS)
                    next_death = now + self.chance.choice(_PAUSES_S)
                if first is None and now > started + seconds / 10 and not self.victim.is_dead():
                    first = self._vitals()
                time.sleep(0.5)
        finally:
            self._tell_workers_to_end()
        self._await_workers()
        assert first is not None
        self._compare(first, self._vitals())
        self.check()

    def deaths(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith("killed: "))

    def jobs(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith("ended: "))

    def _kill_somebody(self, deaths: dict[str, int] = _DEATHS) -> None:
        # The process that makes a report dies with the controller, at any moment.
        threading.Thread(target=self.victim.try_ask, args=("report",), daemon=True).start()
        time.sleep(self.chance.uniform(0, 0.5))
        super()._kill_somebody(deaths)

    # -- looks ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Books against kernel. A job may end between the two looks: then its files are gone."""
        # Told at one moment, unlike a list of many jobs, in which one may end and another start.
        nodes = {node["path"]: node for node in self.victim.ask("shares")["nodes"]}
        if "root" in nodes:
            booked, running = nodes["root"]["usage"]["memory"], nodes["root"]["running"]
            assert booked == running * MEMORY_BYTES <= CAPACITY_MEMORY, (booked, running)
        limits = self.victim.memory_limits()
        assert sum(limits.values()) <= CAPACITY_MEMORY, limits
        assert set(limits.values()) <= {MEMORY_BYTES}, limits
        self.counts["looks at ranges"] += self._look_at_quotas()
        self.counts["looks"] += 1

    def _look_at_quotas(self) -> int:
        """The quota of each job with a cgroup is at its upper end. Return at how many jobs with a
        range it has looked."""
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
                    wanted = self._upper_ends(int(path.name.partition(".")[0]))
                    assert ceiling is not None, path
                    assert any(abs(ceiling * 1000 - most) <= most * 0.01 for most in wanted), (
                        path, ceiling, wanted,
                    )  # fmt: skip
                    seen += CORES_MILLI not in wanted
        return seen

    def _upper_ends(self, job_id: int) -> tuple[int, ...]:
        """That of the job; any, if the worker has not yet written down what it has submitted."""
        for name in self.users:
            lines = self._home(name).joinpath("records").read_bytes().split(b"\n")[:-1]
            for record in map(json.loads, lines[self._read :]):
                if "id" in record:
                    self._most_milli[record["id"]] = record["most_milli"]
            self._read = len(lines)
        known = self._most_milli.get(job_id)
        return (CORES_MILLI, *UPPER_ENDS_MILLI) if known is None else (known,)

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


def soak(seconds: float, *, seed: int = 1, per_second: float = 20.0, least_deaths: int = 0) -> Soak:
    """Raises AssertionError for what must not happen."""
    victim, us = Victim(SETTINGS), {"us": pwd.getpwuid(os.getuid())}
    made = Soak(victim, us, Random(seed), per_second, least_deaths=least_deaths)
    try:
        victim.start()
        made.run(seconds)
        assert not made.deviations, made.deviations[:20]
        return made
    finally:
        made.kill_workers()
        victim.destroy()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--per-second", type=float, default=20.0, help="jobs submitted (20)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {Kernel().missing() or 'real cgroups'}", flush=True)
    done = soak(chosen.minutes * 60, seed=chosen.seed, per_second=chosen.per_second)
    print(f"{done.jobs()} jobs")
    for name, count in sorted(done.counts.items()):
        print(f"  {name:<28}{count:>10}")


if __name__ == "__main__":
    main()
