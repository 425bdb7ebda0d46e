"""Long queues and many running jobs: `python -m tests.bench.scale [--only NAME]`.

queue   The queue is written into the journal, as many users' submissions would have left it, and
        found there by a daemon at its start: each job with a name and arguments of its own, each
        user with an environment and a directory. Memory is what /proc tells of the controller.
watch   Jobs that sleep, and what it costs to watch them: processor time, and of each runner the
        memory that it shares with nobody, and its part of what it shares (PSS).
"""

import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from drfd.common.errors import Unavailable
from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec, command_text
from drfd.core.model.resources import Axes, Resources
from drfd.daemon.spawn import Places
from drfd.journal.journal import Journal
from drfd.launcher import attempt_files
from fakes import payload
from instance import BIN, CONFIG, Instance, cpu_s, resident_bytes, wait_for
from tests.bench.place import await_running, fill, options_of

MIB = 1 << 20
#: (cores, GiB) of the jobs, in turn.
MENU = ((1, 2), (1, 4), (2, 2), (2, 8), (4, 8))
#: Events that share a commit while the journal is filled.
_COMMIT = 2_000
#: An environment of an ordinary length: about 4 KiB.
ENV = {f"VARIABLE_{number}": f"/opt/software/{number}/" + "x" * 60 for number in range(40)}
#: Room for 200 jobs, whatever the machine has.
ROOMY = CONFIG.replace("cores = 9", "cores = 300").replace('"18G"', '"900G"')


def main() -> None:
    parser = options_of("tests.bench.scale", __doc__)
    parts = ("queue", "watch")
    parser.add_argument("--only", choices=parts, action="append", help="may be repeated")
    parser.add_argument("--jobs", type=int, default=100_000, help="that wait (100,000)")
    parser.add_argument("--users", type=int, default=100, help="whose jobs they are (100)")
    parser.add_argument("--running", type=int, default=200, help="jobs that sleep (200)")
    parser.add_argument("--seconds", type=int, default=60, help="of watching these (60)")
    chosen = parser.parse_args()
    wanted = chosen.only or parts
    if "queue" in wanted:
        for words, events in (
            (f"{chosen.jobs:,} jobs of {chosen.users} users", submissions),
            ("the same as one array for each user", arrays),
        ):
            queue(words, events(chosen.jobs, chosen.users))
    if "watch" in wanted:
        watch(chosen.running, chosen.seconds)


def submissions(jobs: int, users: int) -> Iterator[ev.Submitted | ev.ArraySubmitted]:
    for number in range(jobs):
        spec = spec_of(number % users, number)
        yield ev.Submitted(job_id=number + 1, at_s=time.time(), spec=spec, held=False)


def arrays(jobs: int, users: int) -> Iterator[ev.Submitted | ev.ArraySubmitted]:
    each = jobs // users
    for user in range(users):
        spec = spec_of(user, user)
        yield ev.ArraySubmitted(
            array_id=user * (each + 1) + 1,
            at_s=time.time(),
            spec=spec,
            spans=((0, each - 1, 1),),
            at_once=None,
            held=False,
        )


def spec_of(user: int, number: int) -> JobSpec:
    """As a request would have left it: no part of it is shared with another job's."""
    name = "".join(["user", str(user)])
    cores, memory_gib = MENU[number % len(MENU)]
    home = f"/home/{name}/project"
    return JobSpec(
        name=f"train-{number}",
        user=name,
        uid=20_000 + user,
        gid=20_000 + user,
        pool=f"root.{name}",
        demand=Resources(cores_milli=1000 * cores, memory_bytes=memory_gib << 30),
        time_limit_s=3600,
        command=command_text([f"{home}/bin/train.py", "--seed", str(number), "--epochs", "20"]),
        cwd=home,
        stdout="drf-%j.out",
        stderr="drf-%j.err",
    )


def write_journal(path: Path, events: Iterable[ev.Submitted | ev.ArraySubmitted]) -> None:
    journal = Journal(path)
    ledger = journal.load(Axes())
    for number, event in enumerate(events):
        signed = payload(ENV, *event.spec.argv)
        journal.append(event, ledger.apply(event), ledger.latest_array, signed)
        if number % _COMMIT == 0:
            journal.commit()
    journal.commit()
    journal.close()


def queue(words: str, events: Iterator[ev.Submitted | ev.ArraySubmitted]) -> None:
    instance = Instance(ROOMY)
    try:
        instance.start().drf("drain")
        instance.stop()
        write_journal(Places(instance.state).journal, events)
        begin_s = time.perf_counter()
        instance.launch()
        wait_for("an answer", lambda: is_heard(instance))
        start_s = time.perf_counter() - begin_s
        print(words)
        say("start to first answer", f"{start_s:.2f} s")
        say("resident memory then", f"{memory(instance, 'VmRSS') / MIB:.0f} MiB")
        first_s, all_s = map(
            statistics.median, zip(*(list_all(instance) for _ in range(3)), strict=True)
        )
        say("drf status, until its first line", f"{1000 * first_s:.0f} ms")
        say("… its last line", f"{1000 * all_s:.0f} ms")
        say("resident memory then", f"{memory(instance, 'VmRSS') / MIB:.0f} MiB")
        say("the most until then", f"{memory(instance, 'VmHWM') / MIB:.0f} MiB")
    finally:
        # Nothing of it runs, and to cancel it all would take a while.
        instance.stop()
        instance.destroy()


def is_heard(instance: Instance) -> bool:
    """With a launcher or without."""
    with suppress(Unavailable):
        return bool(instance._ask("hello"))
    return False


def memory(instance: Instance, what: str) -> int:
    assert instance.process is not None
    return resident_bytes(instance.process.pid, what)


def list_all(instance: Instance) -> tuple[float, float]:
    """`drf status` into a pipe: seconds to the first line of it, and to the last."""
    env = {**os.environ, "DRFD_SOCKET": str(instance.socket)}
    begin_s = time.perf_counter()
    with subprocess.Popen([BIN / "drf", "status"], stdout=subprocess.PIPE, env=env) as listing:
        assert listing.stdout is not None
        listing.stdout.readline()
        first_s = time.perf_counter() - begin_s
        listing.stdout.read()
    return first_s, time.perf_counter() - begin_s


def watch(jobs: int, seconds: int) -> None:
    """Nothing happens but that samples are taken."""
    instance = Instance(ROOMY).start()
    try:
        demand = {"cores_milli": 1000, "memory_bytes": 64 * MIB}
        fields = {"argv": ["sleep", "1000"], "demand": demand, "env": ENV, "stdout": "/dev/null"}
        fill(instance, jobs, lambda _: fields)
        await_running(instance, jobs)
        # What the starts have left to do is no part of it.
        time.sleep(5)
        parts = [instance.process.pid, instance.launcher_pid()]
        before = [cpu_s(pid) for pid in parts]
        begin_s = time.monotonic()
        time.sleep(seconds)
        spent_s = time.monotonic() - begin_s
        after = [cpu_s(pid) for pid in parts]
        sizes = sorted(pss(pid) for pid in runners(instance))
        print(f"{jobs} jobs that sleep, watched for {seconds} s")
        for name, first, last in zip(("controller", "launcher"), before, after, strict=True):
            say(f"{name}, of a core", f"{100 * (last - first) / spent_s:.2f} %")
        say("runner (PSS), median", f"{statistics.median(sizes) / MIB:.2f} MiB")
        say("runner (PSS), largest", f"{sizes[-1] / MIB:.2f} MiB")
        say("controller (RSS)", f"{memory(instance, 'VmRSS') / MIB:.0f} MiB")
    finally:
        instance.destroy()


def runners(instance: Instance) -> list[int]:
    """The runners whose jobs are up: their pids."""
    found = []
    for file in (instance.state / "launcher" / "attempts").iterdir():
        attempt = attempt_files.parse(file.read_bytes())
        if attempt is not None and attempt.launched is not None and attempt.runner is not None:
            found.append(attempt.runner["pid"])
    return found


def pss(pid: int) -> int:
    """Its memory, what it shares with others divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(lines.split("Pss:")[1].split()[0]) * 1024


def say(what: str, figure: str) -> None:
    print(f"  {what:<36}{figure:>24}", flush=True)


if __name__ == "__main__":
    main()
