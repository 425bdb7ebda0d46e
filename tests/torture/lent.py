"""What must hold of lending, whoever dies and whatever mode is set: by the kernel's own figures.

A ceiling that follows use is right only after a while, and a daemon that has just come back has
measured nothing. So what depends on the judgement must hold in the end of each quiet time, and only
the bounds of each job at every moment.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from drfd.launcher import attempt_files
from drfd.launcher.lending import read_bounds
from instance import patient, wait_for
from kernel import Kernel
from torture.victims import Victim

#: The pools whose jobs have ranges: each has one user here, and the same weight.
POOLS = ("A", "B")
#: Thousandths of cores that each job declares.
FLOOR = 100
#: So long nothing may have happened before what the loop has judged is looked at: a judgement takes
#: two readings, a second apart, and a ceiling rises by a factor of two each second.
_QUIET_S = 6.0
#: After so long a daemon that lends nothing has taken back what was lent: less than jobs that are
#: lent something run.
_RETURN_S = 10.0
#: Ceilings are moved only by more than this part, and the quota is in microseconds.
_FEW = 0.05


@dataclass(frozen=True)
class Attempt:
    """A running attempt with a cgroup, as its file and the kernel have it. In cores."""

    job_id: int
    #: None if there is none.
    ceiling: float | None
    #: Whether it began in the mode that lends.
    may_be_lent: bool


@dataclass
class Loans:
    """What jobs have been lent, seen from outside."""

    victim: Victim
    chance: Random
    capacity: float
    #: The highest upper end that a job has ever declared, in thousandths of cores.
    most_milli: dict[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    mode: str = "share"
    #: Since when neither a death nor a reload has disturbed it.
    _quiet_since_s: float = field(default_factory=time.monotonic)
    #: Since when the same jobs with ranges run, and which.
    _same: tuple[float, frozenset[int]] = (0.0, frozenset())
    #: Since when the ceilings have been too much together, or unfair, at each look: at this one,
    #: and at the one before.
    _wrong: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)

    def disturb(self) -> None:
        """Take note that somebody has died, or the mode is another."""
        self._quiet_since_s = time.monotonic()
        self._wrong.clear()

    def attempts(self) -> list[Attempt]:
        """All attempts with a cgroup whose program runs."""
        kernel, found = Kernel(), []
        for path in (self.victim.state / "launcher/attempts").glob("*.*"):
            with suppress(OSError):
                attempt = attempt_files.parse(path.read_bytes())
                if attempt is None or attempt.running is None or attempt.is_over:
                    continue
                cgroup = attempt.created.get("cgroup")
                if cgroup is not None:
                    bounds = read_bounds(attempt)
                    top = Path(kernel.v2 or kernel.v1["cpu"], str(cgroup))
                    found.append(
                        Attempt(
                            int(path.name.partition(".")[0]),
                            _ceiling(top, is_v2=kernel.v2 is not None),
                            bounds is not None and bounds.most.cores_milli > 0,
                        )
                    )
        return found

    def look_at_bounds(self) -> list[Attempt]:
        """Nobody's ceiling is ever below its floor or above its most, also while nobody lives."""
        attempts = self.attempts()
        for each in attempts:
            if each.ceiling is None:
                # Only the mode `weight` sets none.
                assert not each.may_be_lent, f"a job that may be lent cores has no ceiling: {each}"
                continue
            most = self.most_milli.get(each.job_id, FLOOR) if each.may_be_lent else FLOOR
            assert FLOOR * 0.99 <= each.ceiling * 1000 <= most * 1.01, (each, most)
            self.counts["lent: ceilings above floors"] += each.ceiling * 1000 > FLOOR * 1.05
        return attempts

    def look(self, running: Mapping[int, float]) -> None:
        """After a quiet time also the sums are right. `running` has the jobs that run, with the
        time for which they have been running."""
        self._wrong, self._before = {}, self._wrong
        attempts = [each for each in self.look_at_bounds() if each.job_id in running]
        now = time.monotonic()
        ranged = frozenset(each.job_id for each in attempts if each.job_id in self.most_milli)
        if ranged != self._same[1]:
            self._same = now, ranged
        if now - self._quiet_since_s < patient(_QUIET_S):
            return
        lent = [each for each in attempts if each.may_be_lent and running[each.job_id] > 3]
        if self.mode != "share":
            left = [each for each in lent if (each.ceiling or 0) * 1000 > FLOOR * 1.01]
            self._claim("not given back", not left, left)
            return
        ceilings = sum(each.ceiling or 0.0 for each in lent)
        floors = len(lent) * FLOOR / 1000
        most = max(floors, self.capacity * (1 + _FEW))
        self._claim("more than there is", ceilings <= most, (ceilings, lent))
        self.counts["lent: looks at the sum"] += 1
        if now - self._same[0] > patient(_QUIET_S):
            self._look_at_envy(lent)

    def _look_at_envy(self, lent: list[Attempt]) -> None:
        """A pool with a job that could use more has no less than the other, or that one has only
        what it declares: they weigh the same, and hold next to nothing besides."""
        cores = dict.fromkeys(POOLS, 0.0)
        floors = dict.fromkeys(POOLS, 0.0)
        hungry = set()
        for each in lent:
            if each.job_id not in self.most_milli:
                continue
            shown = self.victim.ask("show", id=each.job_id)["job"]
            pool = shown["pool"].rpartition(".")[2]
            if "lent" not in shown:
                # It has ended, or begun, meanwhile.
                return
            cores[pool] += each.ceiling or 0.0
            floors[pool] += FLOOR / 1000
            if shown["lent"]["hungry"]:
                hungry.add(pool)
        for pool, other in (POOLS, POOLS[::-1]):
            if pool in hungry and floors[other]:
                self.counts["lent: looks at envy"] += 1
                fair = cores[pool] * (1 + 3 * _FEW) + 0.05
                is_fair = cores[other] <= max(fair, floors[other] * (1 + _FEW))
                self._claim(f"{other} has more than {pool}, which wants it", is_fair, cores)

    def _claim(self, what: str, holds: bool, about: object) -> None:
        """It is wrong for longer than a few steps of the loop take."""
        if holds:
            return
        since_s = self._wrong[what] = self._before.get(what, time.monotonic())
        assert time.monotonic() - since_s < patient(_QUIET_S), (what, about, self.victim.tail())

    def reload(self) -> None:
        """Have the daemon read of another mode of cores."""
        self.configure()
        self.victim.ask("reload")
        self.await_return()

    def configure(self) -> None:
        """Write another mode of cores into the configuration, for whoever reads it next."""
        self.mode = self.chance.choice(("quota", "weight")) if self.mode == "share" else "share"
        text = self.victim.config.read_text()
        text = re.sub(r'^cores = "\w+"$', f'cores = "{self.mode}"', text, flags=re.MULTILINE)
        self.victim.config.write_text(text)
        self.counts[f"lent: mode {self.mode}"] += 1

    def await_return(self) -> None:
        """All loans are given back in a mode that lends none, whoever has lent them."""
        self.disturb()
        if self.mode == "share":
            return

        def lent() -> list[Attempt]:
            jobs = self.victim.ask("status", select={"states": ["RUNNING"]})["jobs"]
            running = {job["id"] for job in jobs}
            return [
                each
                for each in self.attempts()
                if each.job_id in running
                and each.may_be_lent
                and each.ceiling is not None
                and each.ceiling * 1000 > FLOOR * 1.01
            ]

        wait_for("all loans to be given back", lambda: not lent(), seconds=_RETURN_S, show=lent)

    def check_log(self) -> None:
        """Nothing could not be lent for another reason than that the job had just ended."""
        lines = [line for line in self.victim.log.read_text().splitlines() if "=not-lent" in line]
        late = [line for line in lines if "no such attempt" in line or _GONE.search(line)]
        self.counts["lent: orders that came too late"] = len(late)
        assert lines == late, [line for line in lines if line not in late][:5]


#: The cgroup was removed meanwhile.
_GONE = re.compile(r"\[Errno (2|19)\]")


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
