"""Without cgroups, a job's processes are those below its runner, or of its session; and what bounds
processes everywhere: who traces them, and how many there may be."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher.attempt_files import Records
from drfd.launcher.confinement.bounds import (
    ProcessBounds,
    kernel_limit,
    most_running,
    process_bounds,
)
from drfd.launcher.confinement.cgroup_files import ancestors
from drfd.launcher.confinement.interface import CgroupPlan, LimitFailed
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import AttemptLimits, Devices, LaunchOrder, ListOrder
from drfd.launcher.system import process
from drfd.launcher.system.tracers import end_tracers
from drfd.linux.device_nodes import DeviceNode
from launcher.rig import WAIT_S, Start, lives, order, pid_in, state_of, until

KEY = (1, 1)
CREATED = {"uid": os.getuid(), "boot_id": process.boot_id(), "cgroup": None}


def limits(**changes: int) -> AttemptLimits:
    usual = {"cores_milli": 1000, "memory_bytes": 1 << 20, "pids": 100}
    return AttemptLimits(**(usual | changes))


def attempt_of(
    runner: int, job: int | None = None, *, start_ticks: int | None = None, **created: Any
) -> Records:
    """An attempt whose runner and first process are these."""
    ticks = process.start_ticks(runner) if start_ticks is None else start_ticks
    running = None
    if job is not None:
        running = {"pid": job, "at_s": time.time(), "mono_s": time.monotonic()}
        running["start_ticks"] = process.start_ticks(job)
    return Records(
        created=CREATED | {"at_s": time.time(), "mono_s": time.monotonic()} | created,
        runner={"pid": runner, "start_ticks": ticks},
        launched=running,
    )


def sleeper(start: Start) -> subprocess.Popen[bytes]:
    """The first process of a job, in its own session as jobs are."""
    return start("sleep", "60", start_new_session=True)


def stranger(start: Start) -> Records:
    """Of an attempt whose runner's number now belongs to somebody else, who has a child."""
    other = start("sh", "-c", "sleep 60 & wait", start_new_session=True)
    until("a child", lambda: process.descendants(other.pid))
    return attempt_of(other.pid, start_ticks=1)


@pytest.fixture
def place() -> Unconfined:
    return Unconfined("cgroups are off")


# -- freezing -------------------------------------------------------------------------------


def test_it_says_what_is_left_of_each_limit_and_why(place):
    controls, cores = place.controls(), place.cores()
    assert {name: text.split(":")[0] for name, text in (controls | cores).items()} == {
        **dict.fromkeys(("cores", "memory", "read", "write"), "measured"),
        "processes": "enforced",
        "weight": "not controlled",
        **dict.fromkeys(("quota", "pin"), "measured"),
    }
    said = [*cores.values(), *(controls[name] for name in controls if name != "processes")]
    assert all("cgroups are off" in text for text in said)
    assert place.hiding() == (False, "devices cannot be hidden from jobs: cgroups are off")


def test_nothing_is_made_divided_or_hidden(place):
    place.create(KEY, limits(), Devices())
    assert (place.kind, place.mounts(), place.cgroup_path(KEY, ())) == ("none", {}, None)
    assert place.plan(KEY, limits(), Devices(), is_pinned=False) == CgroupPlan()
    assert (place.remove(KEY), place.leftovers(), place.has_ranges()) == (True, [], False)
    place.close()
    with pytest.raises(LimitFailed, match="hidden from jobs: cgroups are off"):
        place.create(KEY, limits(), Devices(hidden=frozenset({DeviceNode("c", 195, 0)})))


def test_freezing_stops_every_session_below_the_runner_and_not_the_runner(start, tmp_path, place):
    script = "sleep 60 & echo $! > a; setsid sleep 60 & echo $! > b; wait"
    runner = start("sh", "-c", script, cwd=tmp_path)
    jobs = [pid_in(tmp_path / "a"), pid_in(tmp_path / "b")]
    attempt = attempt_of(runner.pid)
    assert place.freeze(KEY, attempt)
    until("a stop of both", lambda: [state_of(pid) for pid in jobs] == ["T", "T"])
    # It is told of the stops of its children, and may be busy with that for a moment.
    until("a runner that waits", lambda: state_of(runner.pid) == "S")
    assert place.freeze(KEY, attempt), "frozen already"
    place.thaw(KEY, attempt)
    until("a life of both", lambda: [state_of(pid) for pid in jobs] == ["S", "S"])


def test_of_an_attempt_without_a_runner_of_this_boot_there_is_nothing_to_freeze_or_to_end(
    start, place
):
    job = sleeper(start)
    earlier = attempt_of(os.getpid(), job.pid, boot_id="an earlier one")
    until("a process that sleeps", lambda: state_of(job.pid) == "S")
    for attempt in (None, Records(created=CREATED), earlier):
        assert place.freeze(KEY, attempt)
        place.thaw(KEY, attempt)
        place.signal(KEY, attempt, signal.SIGKILL)
        assert place.kill_pass(KEY, attempt)
    assert state_of(job.pid) == "S"


# -- ending ---------------------------------------------------------------------------------


def test_killing_goes_on_until_none_is_left(start, tmp_path, place):
    script = "trap '' TERM; sleep 60 & echo $! > a; sh -c 'kill -STOP $$' & wait"
    runner = start("sh", "-c", script + "; sleep 60", cwd=tmp_path)
    pid_in(tmp_path / "a")
    until("a stopped process", lambda: "T" in map(state_of, process.descendants(runner.pid)))
    attempt = attempt_of(runner.pid)
    assert not place.kill_pass(KEY, attempt)

    def none_is_left() -> bool:
        # The shell goes on to its last command when the others are gone.
        return place.kill_pass(KEY, attempt) and runner.poll() is not None

    until("an end of all", none_is_left)


def test_a_runners_number_that_somebody_else_has_now_is_not_the_runner(start, place):
    attempt = stranger(start)
    assert attempt.runner is not None
    below = process.descendants(attempt.runner["pid"])
    try:
        place.signal(KEY, attempt, signal.SIGKILL)
        assert place.kill_pass(KEY, attempt)
        assert below
        assert all(map(lives, below))
    finally:
        process.signal_those(below, lambda: below, signal.SIGKILL)


def test_when_the_runner_was_killed_its_jobs_session_is_found(start, tmp_path, place):
    script = "sleep 60 & echo $! > a; exec sleep 60"
    job = start("sh", "-c", script, cwd=tmp_path, start_new_session=True)
    a = pid_in(tmp_path / "a")
    attempt = attempt_of(999_999_999, job.pid, start_ticks=1)
    assert not place.kill_pass(KEY, attempt)
    until("an end of both", lambda: not lives(a) and not lives(job.pid))
    assert place.kill_pass(KEY, attempt)


def test_a_killed_runner_that_nobody_reaps_does_not_hide_its_job(start, place):
    """Not every container's first process reaps the orphans it is given."""
    job, runner = sleeper(start), start("sleep", "60")
    attempt = attempt_of(runner.pid, job.pid)
    runner.kill()
    until("a zombie", lambda: state_of(runner.pid) == "Z")
    assert not place.kill_pass(KEY, attempt), "the job lives, and nothing was said of it"
    assert job.wait(WAIT_S) == -signal.SIGKILL


def test_a_session_that_is_younger_than_the_job_is_somebody_elses(start, place):
    """Its number was given out again: the runner was killed, the job ended, months went by."""
    other = sleeper(start)
    long_ago = {"at_s": time.time() - 9e6, "mono_s": time.monotonic() - 9e6, "start_ticks": 1}
    attempt = Records(
        created=CREATED | long_ago,
        runner={"pid": 999_999_999, "start_ticks": 1},
        launched={"pid": other.pid} | long_ago,
    )
    place.signal(KEY, attempt, signal.SIGTERM)
    assert place.kill_pass(KEY, attempt)
    assert lives(other.pid)


as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: ends nobody's")

#: Nobody's account, in nobody's range of subordinate uids.
MINE, OTHERS = 64_321, 64_322
#: Traces the process of its last argument, then takes the first three as its real, effective and
#: saved uid, in a login of the fourth if that is not 0.
TRACE = """
import ctypes, os, sys, time
real, effective, saved, login, pid = map(int, sys.argv[1:])
assert ctypes.CDLL(None).ptrace(0x4206, pid, None, None) == 0
if login:
    with open("/proc/self/loginuid", "w") as file:
        file.write(str(login))
os.setgroups([])
os.setresgid(real, real, real)
os.setresuid(real, effective, saved)
print("traced", flush=True)
time.sleep(600)
"""


@pytest.fixture
def victim() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], user=MINE, group=MINE, extra_groups=[]) as sleep:
        yield sleep.pid
        sleep.kill()


def traced_by(uids: tuple[int, int, int], pid: int, *, login: int = 0) -> subprocess.Popen[bytes]:
    words = map(str, (*uids, login, pid))
    tracer = subprocess.Popen([sys.executable, "-I", "-c", TRACE, *words], stdout=subprocess.PIPE)
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == b"traced\n"
    return tracer


def end(tracer: subprocess.Popen[bytes]) -> None:
    tracer.kill()
    tracer.communicate()


@as_root
@pytest.mark.parametrize("uids", [(MINE,) * 3, (MINE, OTHERS, OTHERS), (MINE, 0, 0)])
def test_one_that_the_user_could_kill_is_ended(victim, uids):
    """All but the first execute a set-uid program: su, which waits for a password, kept a job's
    resources for ever."""
    assert_ended(traced_by(uids, victim), victim)


@as_root
@pytest.mark.skipif(
    not Path("/proc/self/loginuid").exists(), reason="this kernel keeps no login uids"
)
@pytest.mark.parametrize("other", [0, OTHERS])
def test_one_of_the_users_logins_is_ended_whoever_it_has_become(victim, other):
    """As sudo, which is root's altogether when it asks for a password, so that its user cannot kill
    it."""
    assert_ended(traced_by((other,) * 3, victim, login=MINE), victim)


def assert_ended(tracer: subprocess.Popen[bytes], victim: int) -> None:
    assert process.tracer(victim) == tracer.pid
    assert end_tracers([victim], MINE, "mine") == 1
    assert tracer.wait(60) == -signal.SIGKILL
    end(tracer)
    assert end_tracers([victim], MINE, "mine") == 0


#: Becomes a user, and has a thread of a process trace the one before it, each time.
CHAIN = """
import ctypes, os, sys, threading, time
user, traced, count = map(int, sys.argv[1:])
os.setgroups([])
os.setgid(user)
os.setuid(user)
# Who has changed its user can be traced by nobody else (prctl(2), PR_SET_DUMPABLE).
ctypes.CDLL(None).prctl(4, 1)
def trace(traced, into):
    AT_EXIT = ctypes.c_void_p(0x40)
    os.write(into, b"y" if ctypes.CDLL(None).ptrace(0x4206, traced, None, AT_EXIT) == 0 else b"n")
    time.sleep(600)
out, into = os.pipe()
for _ in range(count):
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=trace, args=(traced, into)).start()
        time.sleep(600)
    assert os.read(out, 1) == b"y"
    traced = pid
print("traced", flush=True)
time.sleep(600)
"""


@as_root
def test_a_chain_of_any_length_is_ended_also_where_a_thread_traces(victim):
    first = subprocess.Popen(
        [sys.executable, "-I", "-c", CHAIN, str(MINE), str(victim), "150"],
        start_new_session=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"traced\n"
        assert end_tracers([victim], MINE, "mine") == 150
        # They are zombies of the first process.
        until("the end of all", lambda: not process.descendants(first.pid))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


@as_root
@pytest.mark.parametrize(
    ("of", "login", "job_of"),
    [((0,) * 3, 0, MINE), ((0,) * 3, OTHERS, MINE), ((MINE,) * 3, 0, OTHERS)],
)
def test_nobody_elses_is(victim, of, login, job_of):
    """An administrator's, above all, who has logged in as somebody else."""
    tracer = traced_by(of, victim, login=login)
    assert end_tracers([victim], job_of, "mine") == 0
    assert tracer.poll() is None
    end(tracer)


# -- how many processes there may be ------------------------------------------------------


MIB = 1 << 20


@pytest.mark.parametrize(
    ("limit", "total", "per_user", "found"),
    [
        (32768, None, None, ProcessBounds(28672, 14336)),
        (4 << 20, None, None, ProcessBounds(3670016, 1835008)),
        (2000, None, None, ProcessBounds(1488, 744)),
        (100, None, None, ProcessBounds(50, 25)),
        (32768, 1000, None, ProcessBounds(1000, 500)),
        (32768, 1000, 900, ProcessBounds(1000, 900)),
        (32768, 1000, 5000, ProcessBounds(1000, 1000)),
        (32768, 10**9, 10**9, ProcessBounds(28672, 28672)),
        (1, None, None, ProcessBounds(1, 1)),
    ],
)
def test_jobs_leave_an_eighth_of_all_processes_to_the_system(limit, total, per_user, found):
    """Eight jobs, each within its own limit, could use up all of the kernel's."""
    assert process_bounds(limit, total, per_user) == found


def test_the_launcher_takes_what_its_descriptors_and_processes_allow():
    assert most_running(1024, 32768) == 320
    assert most_running(1 << 20, 32768) == 8192
    assert most_running(1 << 20, 4 << 20) == 20_000
    assert most_running(10, 10) == 1


def test_the_limits_of_all_cgroups_around_count(tmp_path):
    (tmp_path / "drfd").mkdir()
    assert ancestors(str(tmp_path), "drfd/system") == [str(tmp_path), str(tmp_path / "drfd")]
    whole = kernel_limit(ancestors(str(tmp_path), "drfd/system"))
    (tmp_path / "pids.max").write_text("max\n")
    (tmp_path / "drfd" / "pids.max").write_text("77\n")
    assert kernel_limit(ancestors(str(tmp_path), "drfd/system")) == 77 < whole


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
def test_thousands_of_orders_start_no_more_than_the_launcher_can_take_care_of(make_launcher, work):
    """The root process forked for whatever it was told to start, until root had no more."""
    launcher = make_launcher()
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))"
    pid = launcher.start(prelude=few).pid
    controller = launcher.connect()
    before_bytes = resident_bytes(pid)
    most, count = most_running(100, 1 << 22), 3000

    def sleeper(number: int) -> LaunchOrder:
        return order("sleep", "1000", cwd=work, id=number, stdout="/dev/null", stderr="/dev/null")

    def flood() -> None:
        for number in range(1, count + 1):
            controller.launch(sleeper(number))

    found: dict[int, str] = {}
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(flood)
        while len(found) < count:
            report = controller.next_report()
            found.setdefault(report["id"], report["report"])
            if report["report"] == "launch_failed":
                assert report["text"] == (
                    f"as many jobs run as the launcher can take care of: {most}"
                )
                assert (report["whose"], report["resource"]) == ("machine", "launcher")
        done.result()
    assert Counter(found.values()) == {"launched": most, "launch_failed": count - most}
    assert descriptors(pid) <= 100
    assert len(list(launcher.files.path.iterdir())) == most
    # Orders to tell somebody of jobs that there are not, and to end these, leave nothing either.
    with ThreadPoolExecutor(1) as pool:

        def more() -> None:
            for number in range(count + 1, 2 * count):
                controller.notify(sleeper(number))
                for command in ("kill", "freeze", "terminate"):
                    controller.ask(command, (number, 1))
            controller.send(ListOrder())

        done = pool.submit(more)
        report = controller.next_report()
        while report["report"] != "listed":
            report = controller.next_report()
        done.result()
    assert len(report["known"]) == most
    assert resident_bytes(pid) - before_bytes < 64 * MIB
    for number, attempt in report["known"]:
        controller.ask("remove", (number, attempt))
    while launcher.files.path.exists() and list(launcher.files.path.iterdir()):
        controller.next_report()
    controller.launch(order("true", cwd=work, id=5 * count))
    report = controller.next_report()
    while (report["report"], report["id"]) != ("exited", 5 * count):
        assert report["report"] in ("removed", "exited", "launched"), report
        report = controller.next_report()
    assert report["exit_code"] == 0
