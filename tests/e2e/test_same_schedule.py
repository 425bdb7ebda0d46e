"""What the core decides without a machine is what the daemon does on one: the same two hundred jobs
are launched in the same order, from the same ends.

The jobs wait until the test lets them go, one at a time, so that each end is a turn of its own;
then the journal's news is told to an engine on a virtual clock.
"""

import os
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
from fakes import ADMIN, FakeHost
from instance import CONFIG, Instance, wait_for

JOBS = 200
#: No job is expected to have ended so soon, so no pass between two ends finds anything new.
_EXPECTED_S = 55.0
#: Plays a daemon whose passes never count as long, even if the machine lets it stand in the middle
#: of one: after a long pass it rests, and two ends before the next one are one turn.
DAEMON = """
import sys
from drfd.daemon.engine import engine
from drfd.daemon.main import main
engine._LONG_PASS_S = float("inf")
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
    instance.before = [sys.executable, "-I", "-c", DAEMON]
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
    real, alone = launches(happened), launches(relived(instance, happened))
    # Later on, jobs outlive what is expected of them, and passes between two ends may see that.
    surely = [job_id for job_id, at_s in real if at_s < real[0][1] + _EXPECTED_S]
    assert len(real) == len(alone) == JOBS
    assert [job_id for job_id, _ in alone][: len(surely)] == surely
    # It would be a poor test if one were simply launched after the other.
    assert surely != sorted(surely)


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


def launches(events: Iterable[ev.Event]) -> list[tuple[int, float]]:
    return [(event.job_id, event.at_s) for event in events if isinstance(event, ev.Admitted)]


def relived(instance: Instance, happened: list[ev.Event]) -> list[ev.Event]:
    """What an engine without a machine makes of the same news, at the same times."""
    rules = survey(load(instance.config), read_machine(), instance.state).rules
    times = [event for event in happened if isinstance(event, ev.Launched)]
    ahead_s = times[0].at_s - times[0].mono_s
    now = st.Now(0.0, 0.0)
    journal = Journal(instance.root / "again.sqlite")
    host = FakeHost()
    engine = Engine(journal=journal, rules=rules, launchers=host, clock=lambda: now)
    for at, event in enumerate(happened):
        # The pass that an end leads to has the time of its launches, if there are any.
        decided = next(iter(happened[at + 1 :]), event)
        at_s = decided.at_s if isinstance(decided, ev.Admitted) else event.at_s
        now = st.Now(at_s, at_s - ahead_s)
        news = news_of(event, st.Now(event.at_s, event.at_s - ahead_s))
        if news is not None:
            engine.turn([Work(news)])
    found = list(journal.events())
    journal.close()
    return found


def news_of(event: ev.Event, now: st.Now) -> st.Stimulus | None:
    """The news that led to it; None: drfd's own decision."""
    match event:
        case ev.Submitted():
            return st.SubmitAsked(now, event.spec, event.held)
        case ev.Drained():
            return st.DrainAsked(now, event.on, ADMIN)
        case ev.IdsRaised():
            return st.IdsSeen(now, event.next_id - 1)
        case ev.Launched():
            return st.AttemptStarted(
                event.job_id, event.attempt, event.at_s, event.mono_s, event.cgroup
            )
        case ev.Exited():
            return st.AttemptEnded(
                event.job_id, event.attempt, event.at_s, now.mono_s, event.exit_code, event.signal,
                False, False, event.usage,
            )  # fmt: skip
        case ev.Cleaned():
            return st.AttemptRemoved(now, event.job_id, event.attempt)
        case _:
            return None
