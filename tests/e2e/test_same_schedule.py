"""What the core decides without a machine is what the daemon does on one: the same two hundred jobs
are launched in the same order, from the same reports.

The jobs wait until the test lets them go, one at a time, so that each end is a turn of its own. The
daemon writes down what each turn was told and when, and an engine on a virtual clock is told the
same.
"""

import os
import pickle
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from drfd.client.client import connect
from drfd.client.connection import Connection
from drfd.core.decisions import stimuli as st
from drfd.core.model import events as ev
from drfd.daemon.config import load, survey
from drfd.daemon.engine.engine import Engine, Work
from drfd.daemon.spawn import Places
from drfd.host.measurements import read_machine
from drfd.journal.journal import Journal
from fakes import FakeHost
from instance import CONFIG, Instance, wait_for

JOBS = 200
#: Plays a daemon whose clock stands still during each turn.
DAEMON = """
import pickle, sys
from drfd.daemon.engine.engine import Engine
from drfd.daemon.main import main

turns, turn = open(sys.argv[1], "wb", buffering=0), Engine.turn

def recorded(engine, batch):
    clock, now = engine.clock, engine.clock()
    told = [work.stimulus for work in batch]
    turns.write(pickle.dumps((now, engine.launchers.is_ready(), told)))
    engine.clock = lambda: now
    try:
        turn(engine, batch)
    finally:
        engine.clock = clock

Engine.turn = recorded
main(sys.argv[sys.argv.index("serve") :])
"""
TREE = (
    CONFIG
    + """
[pools.lab]
weight = 2
[pools.lab.pools.x]
[pools.lab.pools.y]
weight = 0.5
[scheduling]
respect_external_load = false
reservation_delay = "1s"
min_charge_time = 0
reservation_depth = 2
"""
)


def test_the_daemon_launches_in_the_order_in_which_the_core_alone_does(make_instance):
    instance = make_instance(TREE)
    turns = instance.root / "turns"
    instance.before = [sys.executable, "-I", "-c", DAEMON, str(turns)]
    instance.start()
    random = Random(5)
    instance.drf("drain")
    gates = submit_all(instance, random)
    # By the first pass all have waited long enough for a place.
    time.sleep(1.5)
    instance.drf("undrain")
    with closing(Connection(instance.socket)) as asking:
        for left in range(JOBS, 0, -1):
            running = wait_for("a quiet moment", lambda: settled(asking, left))  # noqa: B023
            job_id = random.choice(running)
            gates[job_id].write_text("go\n")
        wait_for("the last end", lambda: not live(asking))
    instance.stop()
    journal = Journal(Places(instance.state).journal)
    happened = list(journal.events())
    journal.close()
    real, alone = launches(happened), launches(relived(instance, turns))
    assert alone == real
    assert len(real) == JOBS
    # It would be a poor test if one were simply launched after the other.
    assert real != sorted(real)


def submit_all(instance: Instance, random: Random) -> dict[int, Path]:
    """By id: the gate that each job waits at."""
    found = {}
    with connect(instance.socket) as daemon:
        for number in range(JOBS):
            gate = instance.work / f"gate{number}"
            os.mkfifo(gate)
            cores, memory = random.choice([(1, 1), (1, 4), (2, 2), (0.5, 6), (3, 1), (1.5, 3)])
            if random.random() < 0.08:
                cores, memory = random.choice([(9, 2), (6, 12), (2, 18)])
            job_id = daemon.submit(
                ["/bin/sh", "-c", 'read word < "$0"', str(gate)],
                cores=cores,
                memory=f"{memory}G",
                pool=random.choice(["A", "A", "B", "lab.x", "lab.y"]),
                time=random.choice(["10m", "1h", "5h"]),
                priority=random.choice([0, 0, 0, 1]),
                cwd=instance.work,
                stdout="/dev/null",
            )
            found[job_id] = gate
    return found


def live(asking: Connection) -> list[dict[str, Any]]:
    return list(asking.request("status", select={})["jobs"])


def settled(asking: Connection, count: int) -> list[int]:
    """The running jobs, when so many live and none of them is on its way in or out."""
    jobs = live(asking)
    states = {job["state"] for job in jobs}
    if len(jobs) != count or not states <= {"PENDING", "RUNNING"}:
        return []
    return sorted(job["id"] for job in jobs if job["state"] == "RUNNING")


def launches(events: Iterable[ev.Event]) -> list[int]:
    return [event.job_id for event in events if isinstance(event, ev.Admitted)]


def relived(instance: Instance, turns: Path) -> list[ev.Event]:
    """What an engine without a machine makes of the same turns, at the same times."""
    rules = survey(load(instance.config), read_machine(), instance.state).rules
    journal, host, now = Journal(instance.root / "again.sqlite"), FakeHost(), st.Now(0.0, 0.0)
    engine = Engine(journal=journal, rules=rules, launchers=host, clock=lambda: now)
    with turns.open("rb") as recorded:
        while recorded.peek(1):
            now, host.ready, told = pickle.load(recorded)
            engine.turn([Work(stimulus) for stimulus in told])
    found = list(journal.events())
    journal.close()
    return found
