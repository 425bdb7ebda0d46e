"""A siege of nodes of Slurm's: `python -m tests.torture.nodes --kills 1000 --seed 1`, as root and
with Slurm's packages.

A private slurmctld with two slurmd, and a private drfd above them. A user works, and again and
again somebody is killed with SIGKILL: the controller, the launcher of Slurm's nodes, its root
helper, slurmctld, a slurmd, or several at once; often a moment after a submission, because
slurmctld forgets its last seconds.

A job that drfd reports as LOST is no fault here, but how many there were is told; one that holds
its lock when drfd says that it has ended is one. Where something is wrong, the logs of drfd and
Slurm are kept.
"""

import argparse
import fcntl
import os
import pwd
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from instance import ALONE, wait_for
from private_slurm import CONFIG, NODES, PlainCluster, a_slurm_of, missing
from torture.siege import Siege, Vital
from torture.victims import Victim

#: The daemon's own machine takes none of the jobs: they need a feature that it has not.
SETTINGS = CONFIG + ALONE
ASKED = {"features": ["big"], "demand": {"cores_milli": 1000}}
ODDS = {"good": 3.0, "bad": 3.0, "short": 3.0, "long": 2.0, "retried": 4.0, "cancelled": 1.0}
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
#: Seconds for which Slurm's daemons are dead, and those from one death to the next; the last is a
#: calm now and then.
_AWAY_S, _PAUSES_S = (0.0, 0.0, 0.3, 1.0), (0.1, 0.3, 0.6, 1.5) * 12 + (7.0,)
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


@dataclass(kw_only=True)
class NodesSiege(Siege):
    cluster: PlainCluster
    #: Of Slurm's daemons: when those that are dead are to be started.
    _away: dict[str, float] = field(default_factory=dict)
    #: When each may be killed again.
    _mortal_at: dict[str, float] = field(default_factory=dict)
    #: Jobs that were seen to have ended.
    _ended: set[int] = field(default_factory=set)

    def _kill_somebody(self) -> None:
        now = time.monotonic()
        mortal = {name for name in _LIVES_S if self._mortal_at.get(name, 0.0) <= now}
        deaths = {who: often for who, often in DEATHS.items() if mortal.issuperset(who)}
        if not deaths:
            return
        (whom,) = self.chance.choices([*deaths], [*deaths.values()])
        killed = [name for name in whom if self._is_killed(name)]
        for name in killed:
            self._mortal_at[name] = time.monotonic() + self.chance.choice(_LIVES_S[name])
        if killed:
            self.counts[f"killed: {'+'.join(killed)}"] += 1

    def _is_killed(self, name: str) -> bool:
        """Kill it, if it is there."""
        if name == "controller":
            if self.victim.is_dead():
                return False
            self.victim.kill()
        elif name in _MODULES:
            pid = self.victim.slurm_launcher_pid(_MODULES[name])
            if pid is None:
                return False
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        elif name in self._away:
            return False
        else:
            self.cluster.kill(name)
            self._away[name] = time.monotonic() + self.chance.choice(_AWAY_S)
        return True

    def revive(self, *, all_of_them: bool = False) -> None:
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

    def _is_back(self) -> bool:
        self.revive(all_of_them=True)
        self._look()
        return super()._is_back()

    def _look(self) -> None:
        """See which jobs have ended, and that none of these goes on."""
        self.revive()
        self._read_records()
        live = {row["id"] for row in self.victim.ask("status", select={})["jobs"]}
        for job_id in self._jobs.keys() - live - self._ended:
            if self._is_running(self._jobs[job_id]["number"]):
                self.deviations.append(f"job {job_id} runs on after its end")
            self._ended.add(job_id)
        self.counts["looks"] += 1

    def _is_running(self, number: int) -> bool:
        path = self._home("us") / str(number // 1000) / f"lock-{number}"
        try:
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def _compare(self, first: list[Vital], last: list[Vital]) -> None:
        """What they hold depends on who has died last."""

    def _may_lose(self, job_id: int) -> bool:
        return True


def torture(kills: int, seed: int) -> NodesSiege:
    """What must not have happened is in its `deviations`, and then the logs are kept."""
    victim = Victim(SETTINGS)
    with a_slurm_of(victim, SETTINGS) as cluster:
        made = NodesSiege(
            *(victim, {"us": pwd.getpwuid(os.getuid())}, Random(seed), 1.0, kills),
            pauses_s=_PAUSES_S, odds=ODDS, fields=ASKED, cluster=cluster,
        )  # fmt: skip
        is_well = False
        try:
            victim.start()
            wait_for("the nodes", lambda: _are_up(victim), show=victim.tail)
            made.run(0)
            is_well = not made.deviations
            return made
        finally:
            made.kill_workers()
            if not is_well:
                print(f"logs: {_kept(made)}", file=sys.stderr)
                made.revive(all_of_them=True)
                wait_for("a daemon to end all jobs", victim.has_come_back, show=victim.tail)


def _are_up(victim: Victim) -> bool:
    return all(node["state"] == "up" for node in victim.ask("nodes")["nodes"])


def _kept(made: NodesSiege) -> Path:
    kept = Path(tempfile.mkdtemp(prefix="drfd-nodes-", dir="/var/tmp"))
    place = made.cluster.directory
    for path in (made.victim.log, *place.glob("*.log"), place / "output"):
        with suppress(FileNotFoundError):
            shutil.copy(path, kept)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.nodes", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    if missing():
        parser.exit(2, f"{parser.prog}: {missing()}\n")
    print(f"seed {chosen.seed}", flush=True)
    return torture(chosen.kills, chosen.seed).tell()


if __name__ == "__main__":
    sys.exit(main())
