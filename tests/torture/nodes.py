"""Nodes of Slurm's whose daemons die: `python -m tests.torture.nodes --kills 1000 --seed 1`, as
root and with Slurm's packages.

A private slurmctld with two slurmd, and a private drfd above them. Jobs are submitted all the time,
and again and again somebody is killed with SIGKILL: the controller, the launcher of Slurm's nodes,
its root helper, slurmctld, a slurmd, or several at once; often a moment after a submission, because
slurmctld forgets its last seconds.

Each job writes a line to a file of its own when it begins and when it ends, with the number of its
attempt, and holds a lock on another file meanwhile. So it is seen from outside if an attempt runs
twice, if one runs beside another, and if drfd reports an end that the job has not had. No end that
drfd reports as LOST counts as a fault, but how many there were is told. Where something is wrong,
the logs of drfd and Slurm are kept, and the report names their directory.
"""

import argparse
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from drfd.common.errors import Unavailable
from instance import ALONE, wait_for
from slurm_cluster import CONFIG, NODES, PlainCluster, a_slurm_of, missing
from torture.victims import Victim

#: The daemon's own machine takes none of the jobs: they need a feature that it has not.
SETTINGS = CONFIG + ALONE
#: Who is killed at once, and how often, compared with the others.
DEATHS: dict[tuple[str, ...], int] = {
    ("controller",): 2,
    ("launcher",): 3,
    ("helper",): 3,
    ("slurmctld",): 8,
    ("n1",): 1,
    ("n2",): 1,
    ("launcher", "slurmctld"): 4,
    ("helper", "slurmctld"): 2,
    ("controller", "launcher"): 1,
    ("slurmctld", "n1"): 2,
    ("controller", "launcher", "helper", "slurmctld", "n1", "n2"): 2,
}
_MODULES = {"launcher": b"drfd.launcher.slurm", "helper": b"drfd.launcher.slurm_root"}
#: Seconds that a job runs, as kinds of jobs with their weights.
_LENGTHS_S = (((0.0, 0.3), 4), ((0.5, 3.0), 4), ((4.0, 12.0), 2))
#: Seconds for which Slurm's daemons are dead, and those from one death to the next.
_AWAY_S, _PAUSES_S = (0.0, 0.0, 0.3, 1.0), (0.1, 0.3, 0.6, 1.5)
#: Seconds that each lives at least. slurmctld writes its state every five seconds, and the launcher
#: waits for ten until a job counts as forgotten: if they always died before, no job would end.
_LIVES_S = {
    "controller": (0.5, 2.0, 5.0),
    "launcher": (0.2, 1.0, 3.0, 6.0, 13.0),
    "helper": (0.2, 1.0, 3.0, 6.0, 13.0),
    "slurmctld": (0.5, 2.0, 5.0, 8.0, 11.0),
    "n1": (0.5, 3.0, 9.0),
    "n2": (0.5, 3.0, 9.0),
}
#: Deaths from one calm to the next, and how long it is.
_CALM_DEATHS, _CALM_S = 50, 7.0
#: Jobs that have not ended, at most.
_MOST_LIVE = 14
_END_S = 240.0


@dataclass(slots=True)
class Told:
    """A job, as it was submitted."""

    number: int
    exit_code: int
    is_retried: bool
    #: When it is to be cancelled; None if it ends by itself.
    cancel_at: float | None = None
    is_cancelled: bool = False


@dataclass
class Report:
    jobs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    #: What must not be, as its kind and the jobs.
    faults: dict[str, list[int]] = field(default_factory=dict)
    kept: Path | None = None

    def add(self, kind: str, job_id: int) -> None:
        self.faults.setdefault(kind, []).append(job_id)

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {count}" for name, count in self.kills.most_common())
        lines = [f"{self.jobs} jobs, {self.kills.total()} kills ({kills})"]
        lines += [f"  {name:<44}{count:>7}" for name, count in sorted(self.ends.items())]
        for kind in (*_KINDS, *(each for each in self.faults if each not in _KINDS)):
            ids = self.faults.get(kind, [])
            lines.append(f"{kind}: {len(ids)}" + (f" (jobs {_some(ids)})" if ids else ""))
        if self.kept is not None:
            lines.append(f"logs: {self.kept}")
        return "\n".join(lines)


TWICE, BESIDE, LOST = "attempts that ran twice", "ran beside another attempt", "silently lost"
CANCELLED, WRONG, AFTER = "ended by nobody's order", "other wrong ends", "ran on after the end"
_KINDS = (TWICE, BESIDE, AFTER, LOST, CANCELLED, WRONG)


def _some(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:20])) + (", …" if len(ids) > 20 else "")


@dataclass
class Torture:
    victim: Victim
    cluster: PlainCluster
    chance: Random
    report: Report = field(default_factory=Report)
    jobs: dict[int, Told] = field(default_factory=dict)
    _live: set[int] = field(default_factory=set)
    #: Of Slurm's daemons: when those that are dead are to be started.
    _away: dict[str, float] = field(default_factory=dict)
    #: When each may be killed again.
    _mortal_at: dict[str, float] = field(default_factory=dict)
    _next_look: float = 0.0

    def run(self, kills: int) -> None:
        while (number := self.report.kills.total()) < kills:
            is_fresh = self.chance.random() < 0.4
            if is_fresh:
                for _ in range(self.chance.randint(1, 3)):
                    self._submit()
                time.sleep(self.chance.choice((0.0, 0.05, 0.1, 0.2, 0.4, 0.8)))
            self._kill(self._whom())
            is_calm = number % _CALM_DEATHS == _CALM_DEATHS - 1
            self._go_on(_CALM_S if is_calm else self.chance.choice(_PAUSES_S))
        self._await_all()
        for job_id, told in self.jobs.items():
            self._judge(job_id, told)
        self.report.jobs = len(self.jobs)

    # -- deeds ---------------------------------------------------------------------------------

    def _submit(self) -> None:
        number = len(self.jobs)
        fate = self.chance.random()
        length_s, code = self._length_s(), self.chance.choice((0, 0, 3, 7))
        told = Told(number, code, is_retried=fate < 0.3)
        fields: dict[str, Any] = {"features": ["big"], "stdout": "/dev/null"}
        fields |= {"stderr": "/dev/null", "demand": {"cores_milli": 1000}}
        if told.is_retried:
            fields["retry"] = {"times": 2, "on": ["LOST"]}
        elif fate > 0.9:
            length_s = 1000.0
            told.cancel_at = time.monotonic() + self.chance.uniform(0.0, 4.0)
        job_id = self.victim.submit_job(
            f"job-{number}", self._script(number, length_s, code), **fields
        )
        self.jobs[job_id] = told
        self._live.add(job_id)

    def _length_s(self) -> float:
        bounds = self.chance.choices([each for each, _ in _LENGTHS_S], [w for _, w in _LENGTHS_S])
        return round(self.chance.uniform(*bounds[0]), 2)

    def _ran(self, number: int) -> Path:
        return self.victim.work / f"ran-{number}"

    def _script(self, number: int, length_s: float, code: int) -> str:
        ran = shlex.quote(str(self._ran(number)))
        who = "$DRF_ATTEMPT $SLURM_JOB_ID $SLURMD_NODENAME"
        return (
            f'exec 9>>{ran}.lock; flock -n 9 || echo "beside {who}" >>{ran}; '
            f'echo "begin {who} $(date +%T.%N)" >>{ran}; sleep {length_s}; '
            f'echo "end {who} $(date +%T.%N)" >>{ran}; exit {code}'
        )

    def _whom(self) -> tuple[str, ...]:
        while True:
            now = time.monotonic()
            mortal = {name for name in _LIVES_S if self._mortal_at.get(name, 0.0) <= now}
            deaths = {who: often for who, often in DEATHS.items() if mortal.issuperset(who)}
            if deaths:
                return self.chance.choices([*deaths], [*deaths.values()])[0]
            self._go_on(0.1)

    def _kill(self, whom: tuple[str, ...]) -> None:
        killed = []
        for name in whom:
            if name == "controller":
                if self.victim.is_dead():
                    continue
                self.victim.kill()
            elif name in _MODULES:
                pid = self.victim.slurm_launcher_pid(_MODULES[name])
                if pid is None:
                    continue
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            elif name in self._away:
                continue
            else:
                self.cluster.kill(name)
                self._away[name] = time.monotonic() + self.chance.choice(_AWAY_S)
            self._mortal_at[name] = time.monotonic() + self.chance.choice(_LIVES_S[name])
            killed.append(name)
        if killed:
            print(f"{time.strftime('%T')} killed: {' '.join(killed)}", file=sys.stderr)
            self.report.kills["+".join(killed)] += 1

    def _go_on(self, seconds: float) -> None:
        """Submit, cancel, and start again who is dead, for so long."""
        until = time.monotonic() + seconds
        while True:
            self._revive()
            self._cancel_due()
            if len(self._live) < _MOST_LIVE:
                self._submit()
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + 0.5
                self._look()
            if time.monotonic() >= until:
                return
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    def _revive(self, *, all_of_them: bool = False) -> None:
        self.victim.restart_if_dead()
        for name, due in [*self._away.items()]:
            if all_of_them or due <= time.monotonic():
                del self._away[name]
                self._start(name)
        for name in ("slurmctld", *NODES):
            # It could not start: the one before held its port for a moment.
            if name not in self._away and self.cluster.has_ended(name):
                self._start(name)

    def _start(self, name: str) -> None:
        if name == "slurmctld":
            self.cluster.start_controller()
        else:
            self.cluster.start_node(name)

    def _cancel_due(self) -> None:
        now = time.monotonic()
        for job_id in [*self._live]:
            told = self.jobs[job_id]
            if not told.is_cancelled and told.cancel_at is not None and told.cancel_at <= now:
                told.is_cancelled = True
                self.victim.ask("cancel", select={"ids": [job_id]})

    def _look(self) -> None:
        """See which jobs have ended, and that none of these goes on."""
        rows = self.victim.ask("status", select={})["jobs"]
        ended = self._live - {row["id"] for row in rows}
        for job_id in ended:
            if self._is_running(self.jobs[job_id].number):
                self.report.add(AFTER, job_id)
        self._live -= ended

    def _is_running(self, number: int) -> bool:
        path = self._ran(number)
        try:
            fd = os.open(f"{path}.lock", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(fd)

    def _await_all(self) -> None:
        def are_gone() -> bool:
            self._revive(all_of_them=True)
            self._cancel_due()
            self._look()
            return not self._live

        for job_id in self._live:
            if self.jobs[job_id].cancel_at is not None:
                self.jobs[job_id].cancel_at = 0.0
        with suppress(AssertionError):
            wait_for("the end of all jobs", are_gone, seconds=_END_S, pause_s=0.3)

    # -- what must hold ------------------------------------------------------------------------

    def _judge(self, job_id: int, told: Told) -> None:
        job = self.victim.ask("show", id=job_id)["job"]
        path = self._ran(told.number)
        lines = path.read_text().splitlines() if path.exists() else []
        begun = Counter(int(line.split()[1]) for line in lines if line.startswith("begin "))
        ended = Counter(int(line.split()[1]) for line in lines if line.startswith("end "))
        if any(count > 1 for count in begun.values()):
            self.report.add(TWICE, job_id)
        if any(line.startswith("beside ") for line in lines):
            self.report.add(BESIDE, job_id)
        state, outcome = job["state"], job["outcome"] or {}
        whole = f"{state} {outcome.get('reason', '')}".strip()
        if state == "LOST" and ended[job["attempt"]]:
            whole += ", though it had ended"
        elif state == "LOST" and not begun[job["attempt"]]:
            whole += ", and had not begun"
        self.report.ends[whole] += 1
        if job_id in self._live:
            self.report.add(LOST, job_id)
        elif state in ("COMPLETED", "FAILED") and job["exit_code"] is not None:
            if not ended[job["attempt"]]:
                self.report.add(LOST, job_id)
            elif job["exit_code"] != told.exit_code:
                self.report.add(WRONG, job_id)
        elif state == "CANCELLED" or state == "FAILED":
            if not told.is_cancelled:
                self.report.add(CANCELLED, job_id)
        elif state != "LOST":
            self.report.add(WRONG, job_id)


def torture(kills: int, seed: int) -> Report:
    """Do it, and keep the logs if something is wrong."""
    victim = Victim(SETTINGS)
    with a_slurm_of(victim, SETTINGS) as cluster:
        made = Torture(victim, cluster, Random(seed))
        try:
            victim.start()
            wait_for("the nodes", lambda: _are_up(victim), show=victim.tail)
            made.run(kills)
            if made.report.faults:
                made.report.kept = _keep(made)
            return made.report
        except BaseException:
            print(f"logs: {_keep(made)}", file=sys.stderr)
            raise
        finally:
            made._revive(all_of_them=True)


def _are_up(victim: Victim) -> bool:
    return all(node["state"] == "up" for node in victim.ask("nodes")["nodes"])


def _keep(made: Torture) -> Path:
    """Copy the logs, and what is known of each job that something is wrong with."""
    kept = Path(tempfile.mkdtemp(prefix="drfd-nodes-", dir="/var/tmp"))
    place = made.cluster.directory
    for path in (made.victim.log, *place.glob("*.log"), place / "output"):
        with suppress(FileNotFoundError):
            shutil.copy(path, kept)
    for kind, ids in made.report.faults.items():
        for job_id in ids:
            ran = made._ran(made.jobs[job_id].number)
            with suppress(Unavailable):
                shown = made.victim.ask("show", id=job_id)
                text = f"{kind}\n{made.jobs[job_id]}\n{json.dumps(shown, indent=1)}\n"
                text += ran.read_text() if ran.exists() else "it has not begun\n"
                (kept / f"job-{job_id}").write_text(text)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.nodes", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    if missing():
        parser.exit(2, f"{parser.prog}: {missing()}\n")
    print(f"seed {chosen.seed}", flush=True)
    began_s = time.monotonic()
    report = torture(chosen.kills, chosen.seed)
    print(f"{report}\n{time.monotonic() - began_s:.0f} s")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
