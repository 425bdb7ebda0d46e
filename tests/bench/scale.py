"""Long queues and many running jobs: `python -m tests.bench.scale [--only NAME]`.

queue   The queue is written into the journal, as many users' submissions would have left it, and
        found there by a daemon at its start: each job with a name and arguments of its own, each
        user with an environment and a directory. Memory is what /proc tells of the controller.
past    Jobs that have ended, some users' always waiting beside others', written into the journal in
        the same way: how soon a daemon answers with them, and what a report and the first `drf
        ledger` of them cost. Both are computed by a program beside the daemon.
watch   Jobs that sleep, and what it costs to watch them: processor time, and of each runner the
        memory that it shares with nobody, and its part of what it shares (PSS).
"""

import os
import random
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path

import msgspec

from drfd.common.errors import Unavailable
from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec, Outcome, Usage, Words
from drfd.core.model.resources import Axes, Resources
from drfd.core.usage import Curve
from drfd.daemon.children import ledger_report, usage_report
from drfd.daemon.spawn import Places
from drfd.journal.history import PastFilter
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from drfd.launcher import attempt_files
from instance import BIN, CONFIG, Instance, cpu_s, resident_bytes, wait_for
from tests.bench.place import await_running, fill, options_of

MIB = 1 << 20
#: (cores, GiB) of the jobs, in turn.
MENU = ((1, 2), (1, 4), (2, 2), (2, 8), (4, 8))
#: Events that share a commit while the journal is filled.
_COMMIT = 2_000
#: An environment of an ordinary length: about 4 KiB.
ENV = {f"VARIABLE_{number}": f"/opt/software/{number}/" + "x" * 60 for number in range(40)}
#: Of thirty points.
CURVE = Curve(
    attempt=1, start_ms=1, ends_ms=tuple(range(0, 600_000, 20_000)), spans_ms=(20_000,) * 30,
    columns={"cores_milli": (900,) * 30, "memory_kib": (1 << 19,) * 30},
)  # fmt: skip

#: Room for 200 jobs, whatever the machine has.
ROOMY = CONFIG.replace("cores = 9", "cores = 300").replace('"18G"', '"900G"')


def main() -> None:
    parser = options_of("tests.bench.scale", __doc__)
    parts = ("queue", "past", "watch")
    parser.add_argument("--only", choices=parts, action="append", help="may be repeated")
    parser.add_argument(
        "--jobs", type=int, default=100_000, help="that wait, or have ended (100,000)"
    )
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
    if "past" in wanted:
        past(chosen.jobs, chosen.users)
    if "watch" in wanted:
        watch(chosen.running, chosen.seconds)


def submissions(jobs: int, users: int) -> Iterator[ev.JobEvent | ev.ArraySubmitted]:
    for number in range(jobs):
        spec = spec_of(number % users, number)
        yield ev.Submitted(job_id=number + 1, at_s=time.time(), spec=spec, held=False)


def arrays(jobs: int, users: int) -> Iterator[ev.JobEvent | ev.ArraySubmitted]:
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
        argv=Words.of([f"{home}/bin/train.py", "--seed", str(number), "--epochs", "20"]),
        cwd=home,
        stdout="drf-%j.out",
        stderr="drf-%j.err",
    )


def ended(jobs: int, users: int, until_s: float) -> Iterator[ev.JobEvent]:
    """Jobs in the order of their submission on 300 cores; 20 of them always wait."""
    chance = random.Random(1)
    at_s, free, waiting = until_s - 8 * jobs, 300_000, deque[JobSpec]()
    submitted = started = 0
    #: (end, id) of the jobs that run.
    running: list[tuple[float, int]] = []
    specs: dict[int, JobSpec] = {}
    while submitted < jobs or running:
        while submitted < jobs and len(waiting) < 20:
            spec = spec_of(chance.randrange(users), submitted)
            submitted += 1
            waiting.append(spec)
            yield ev.Submitted(job_id=submitted, at_s=at_s, spec=spec)
        while waiting and waiting[0].demand.cores_milli <= free:
            started += 1
            specs[started] = waiting.popleft()
            free -= specs[started].demand.cores_milli
            once = {"job_id": started, "attempt": 1}
            yield ev.Admitted(**once, at_s=at_s)
            yield ev.Launched(**once, at_s=at_s + 0.1, mono_s=at_s, cgroup=f"drfd/job-{started}-1")
            heappush(running, (at_s + chance.uniform(60, 2_000), started))
        at_s, job_id = heappop(running)
        once = {"job_id": job_id, "attempt": 1}
        yield ev.Exited(
            **once, at_s=at_s, exit_code=0, signal=None, outcome=Outcome.COMPLETED, text="",
            usage=Usage(
                cores_milli=900, memory_bytes=1 << 29, memory_peak_bytes=1 << 30, cpu_s=500.0,
                read_bytes=1 << 20, written_bytes=1 << 24, memory_working_bytes=1 << 29,
                largest_process_bytes=1 << 28, quota_periods=1_000, throttled_periods=10,
                throttled_us=5_000_000, limit_hits=0, oom_kills=0, processes_peak=4,
            ),
        )  # fmt: skip
        yield ev.Cleaned(**once, at_s=at_s)
        free += specs.pop(job_id).demand.cores_milli


def write_journal(path: Path, events: Iterable[ev.JobEvent | ev.ArraySubmitted]) -> None:
    journal = Journal(path)
    ledger = journal.load(Axes())
    for number, event in enumerate(events):
        stored = journal.store_command_lines(event)
        journal.append(stored, ledger.apply(stored), ledger.latest_array)
        job_id = event.array_id if isinstance(event, ev.ArraySubmitted) else event.job_id
        if isinstance(event, ev.Submitted | ev.ArraySubmitted):
            journal.payloads.put(job_id, event.spec.uid, Payload(env=ENV, script=None))
        elif isinstance(event, ev.Exited):
            journal.put_curve(job_id, CURVE)
        if number % _COMMIT == 0:
            journal.commit()
    journal.commit()
    journal.close()


def queue(words: str, events: Iterator[ev.JobEvent | ev.ArraySubmitted]) -> None:
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


def past(jobs: int, users: int) -> None:
    instance = Instance(ROOMY)
    try:
        instance.start().stop()
        journal = Places(instance.state).journal
        write_journal(journal, ended(jobs, users, time.time()))
        print(f"{jobs:,} ended jobs of {users} users")
        begin_s = time.perf_counter()
        instance.launch()
        wait_for("an answer", lambda: is_heard(instance), pause_s=0.005)
        say("start to first answer", f"{time.perf_counter() - begin_s:.2f} s")
        report = usage_report.UsageTask(
            journal=str(journal), past=PastFilter(), by="name", limit=24, least=3,
            largest_gpu=None, lends_cores=True,
        )  # fmt: skip
        ledger = ledger_report.LedgerTask(
            journal=str(journal), now_ms=round(1000 * time.time()), forget_before_ms=None
        )
        for what, module, task in (
            ("report", usage_report, report),
            ("report by user", usage_report, msgspec.structs.replace(report, by="user")),
            ("first ledger", ledger_report, ledger),
            ("next ledger", ledger_report, ledger),
        ):
            run_s, peak_bytes = run(module.__name__, task)
            say(what, f"{run_s:.2f} s, {peak_bytes / MIB:.0f} MiB")
        say("controller (RSS)", f"{memory(instance, 'VmRSS') / MIB:.0f} MiB")
    finally:
        instance.stop()
        instance.destroy()


def run(module: str, task: msgspec.Struct) -> tuple[float, int]:
    """Run the program of a child, and return for how long it ran and its peak memory."""
    begin_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-I", "-m", module], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(task))
        child.stdin.close()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return time.perf_counter() - begin_s, usage.ru_maxrss * 1024


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
