"""A live run beside its simulation: `python -m tests.bench.live`, from the repository's root.

A private daemon without cgroups, as any user has it, is given random jobs for `--seconds`, among
them jobs of the whole machine that get reservations. Then the same jobs, with the run times that
they had, are simulated. Each run prints a line; the exit status is 1 if jobs started in another
order, or if the start times differ by more than 50 ms in the median.
"""

import argparse
import sys
import time
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from drfd.client.client import Client, connect
from drfd.core.fairness.rules import Rules
from drfd.core.model import events as ev
from drfd.daemon.config import load, survey
from drfd.daemon.spawn import Places
from drfd.host.measurements import read_machine
from drfd.journal.journal import Journal
from drfd.sim.driver import FinishedJob, simulate
from drfd.sim.workload import SimJob
from instance import PLAIN, Instance, wait_for

CONFIG = (
    PLAIN
    + """
[scheduling]
respect_external_load = false
reservation_delay = "3s"
# Live, a job starts a moment after it is admitted, and in a simulation at once.
min_charge_time = 0
"""
)
#: Plays a daemon that does not rest after a pass which the machine let stand in the middle: two
#: ends in that time would be one turn.
DAEMON = """
import sys
from drfd.daemon.engine import engine
from drfd.daemon.main import main
engine._LONG_PASS_S = float("inf")
main(sys.argv[sys.argv.index("serve") :])
"""
MOST_MEDIAN_S = 0.05


class Figures(NamedTuple):
    jobs: int
    #: Jobs that waited for more than a second, and those that were started for a reservation or
    #: beside one.
    waited: int
    reserved: int
    #: The first job, in the order of starts, that started out of order in the simulation.
    out_of_order: int | None
    #: By how many seconds the start times differ.
    median_s: float
    largest_s: float


def submit_all(daemon: Client, random: Random, work: Path, seconds: float) -> None:
    # No two jobs that run at once have one limit: jobs of one pass would be expected to end at one
    # moment in a simulation, and live milliseconds apart. Estimates of a minute are below none.
    limits = cycle(range(12, 60))
    end_mono_s = time.monotonic() + seconds
    while time.monotonic() < end_mono_s:
        for _ in range(random.choice([1, 1, 2, 4])):
            run_s = random.uniform(1, 9)
            cores = random.choice([1, 1, 2, 2, 3, 4]) if random.random() < 0.9 else 9
            daemon.submit(
                ["/bin/sleep", f"{run_s:.3f}"],
                cores=cores,
                memory=f"{random.choice([1, 2, 3])}G",
                pool=random.choice(["A", "B"]),
                time=f"{next(limits)}s",
                cwd=work,
                stdout="/dev/null",
            )
        time.sleep(random.uniform(0.5, 6))


def play(seed: int, seconds: float) -> tuple[Rules, list[ev.Event]]:
    """Run random jobs on a daemon, and return its rules and what happened."""
    instance = Instance(CONFIG)
    instance.before = [sys.executable, "-I", "-c", DAEMON]
    try:
        instance.start()
        with connect(instance.socket) as daemon:
            submit_all(daemon, Random(seed), instance.work, seconds)
            wait_for("the last end", lambda: not daemon.status(), seconds=600, pause_s=0.5)
        instance.stop()
        rules = survey(load(instance.config), read_machine(), instance.state).rules
        journal = Journal(Places(instance.state).journal)
        found = list(journal.events())
        journal.close()
    finally:
        instance.destroy()
    return rules, found


def compare(rules: Rules, happened: list[ev.Event]) -> Figures:
    submitted = {each.job_id: each for each in happened if isinstance(each, ev.Submitted)}
    starts = {each.job_id: each.at_s for each in happened if isinstance(each, ev.Admitted)}
    ends = {each.job_id: each.at_s for each in happened if isinstance(each, ev.Cleaned)}
    jobs = [
        SimJob(
            id=job_id,
            name=each.spec.name,
            submit_s=each.at_s,
            run_s=ends[job_id] - starts[job_id],
            demand=each.spec.demand,
            limit_s=each.spec.time_limit_s,
            user=each.spec.user,
            group=each.spec.pool.rpartition(".")[2],
        )
        for job_id, each in submitted.items()
    ]
    run = simulate(jobs, rules)
    simulated: dict[int, FinishedJob] = {each.job.id: each for each in run.ran}
    pairs = zip(starts, simulated, strict=True)
    apart = [abs(starts[job_id] - each.start_s) for job_id, each in simulated.items()]
    return Figures(
        jobs=len(starts),
        waited=sum(each.wait_s > 1 for each in run.ran),
        reserved=sum(why is not ev.StartReason.TURN for why in run.reasons.values()),
        out_of_order=next((live for live, alone in pairs if live != alone), None),
        median_s=median(apart),
        largest_s=max(apart),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.live", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long jobs are submitted")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    chosen = parser.parse_args()
    is_good = True
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        found = compare(*play(seed, chosen.seconds))
        is_good &= found.out_of_order is None and found.median_s <= MOST_MEDIAN_S
        first = found.out_of_order
        print(
            f"seed {seed}: {found.jobs} jobs, {found.waited} waited, {found.reserved} started for "
            "or beside a reservation;",
            "in order;" if first is None else f"job {first} is the first out of order;",
            f"{found.median_s * 1000:.1f} ms apart in the median,",
            f"{found.largest_s * 1000:.1f} at most",
            flush=True,
        )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
