"""Without cgroups: a job's processes are those below its runner, or of its session."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drfd.devices.nodes import DeviceNode
from drfd.launcher.attempt_files import Attempt
from drfd.launcher.confinement.interface import Devices, LimitFailed
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import NO_SHARE, AttemptLimits
from drfd.launcher.system import process
from drfd.launcher.system.process import Relative
from launcher.rig import WAIT_S, Start, lives, pid_in, python, state_of, until

KEY = (1, 1)
CREATED = {"uid": os.getuid(), "boot_id": process.boot_id(), "cgroup": None}


def limits(**changes: int) -> AttemptLimits:
    usual = {"cores_milli": 1000, "memory_bytes": 1 << 20, "pids": 100}
    return AttemptLimits(**(usual | changes))


def attempt_of(
    runner: int, job: int | None = None, *, start_ticks: int | None = None, **created: Any
) -> Attempt:
    """An attempt whose runner and first process are these."""
    ticks = process.start_ticks(runner) if start_ticks is None else start_ticks
    running = None
    if job is not None:
        running = {"pid": job, "at_s": time.time(), "mono_s": time.monotonic()}
        running["start_ticks"] = process.start_ticks(job)
    return Attempt(
        created=CREATED | {"at_s": time.time(), "mono_s": time.monotonic()} | created,
        runner={"pid": runner, "start_ticks": ticks},
        running=running,
    )


def sleeper(start: Start) -> subprocess.Popen[bytes]:
    """The first process of a job, in its own session as jobs are."""
    return start("sleep", "60", start_new_session=True)


def stranger(start: Start) -> Attempt:
    """Of an attempt whose runner's number now belongs to somebody else, who has a child."""
    other = start("sh", "-c", "sleep 60 & wait", start_new_session=True)
    until("a child", lambda: process.descendants(other.pid))
    return attempt_of(other.pid, start_ticks=1)


@pytest.fixture
def place() -> Unconfined:
    return Unconfined("cgroups are off")


def test_it_enforces_nothing_but_processes_and_says_why(place: Unconfined) -> None:
    controls = place.controls()
    kinds = {name: text.split(":")[0] for name, text in controls.items()}
    assert kinds == {
        "cores": "measured",
        "memory": "measured",
        "read": "measured",
        "write": "measured",
        "processes": "enforced",
    }
    assert all("cgroups are off" in controls[name] for name in kinds if name != "processes")


def test_of_each_way_to_give_cores_it_says_what_is_left_of_it(place: Unconfined) -> None:
    said = {mode: text.split(":")[0] for mode, text in place.cores().items()}
    assert said == {
        "quota": "measured",
        "weight": "not controlled",
        "pin": "measured",
        "share": "measured",
    }
    assert all(text.endswith("cgroups are off") for text in place.cores().values())


def test_it_lends_nothing_and_says_why(place: Unconfined) -> None:
    assert place.lendable() == ()
    assert f"; {NO_SHARE}: " in place.cores()["share"]
    with pytest.raises(LimitFailed, match="nothing can be lent: cgroups are off"):
        place.lend(KEY, 2000, ())


def test_there_is_no_cgroup_to_look_into_or_to_remove(place: Unconfined) -> None:
    place.create(KEY, limits(), Devices())
    assert (place.kind, place.mounts(), place.cgroup_path(KEY)) == ("none", {}, None)
    assert (place.oom_descriptor(KEY), place.oom_kills(KEY)) == (None, (False, False))
    assert (place.remove(KEY), place.leftovers()) == (True, [])
    place.close()


def test_a_job_that_must_not_see_a_device_does_not_start(place: Unconfined) -> None:
    assert place.hiding() == ("none", "devices cannot be hidden from jobs: cgroups are off")
    with pytest.raises(LimitFailed, match="hidden from jobs: cgroups are off"):
        place.create(KEY, limits(), Devices(hidden=frozenset({DeviceNode("c", 195, 0)})))


# -- entering -------------------------------------------------------------------------------

ENTER = """
import json, os, resource
from drfd.launcher.system.process import Relative
from drfd.launcher.protocol import AttemptLimits
from drfd.launcher.confinement.interface import Devices
from drfd.launcher.confinement.unconfined import Unconfined
place, found = Unconfined("x"), []
everything = os.sched_getaffinity(0)
for cores_milli in json.loads(sys.argv[1]):
    limits = AttemptLimits(cores_milli=cores_milli, memory_bytes=1, pids=100)
    place.create((1, 1), limits, Devices())
    os.sched_setaffinity(0, everything)
    place.enter((1, 1), limits, os.getuid())
    found.append(sorted(os.sched_getaffinity(0)))
print(json.dumps(found))
"""


def cpus_of_jobs(*cores_milli: int) -> list[list[int]]:
    command = python(ENTER, json.dumps(cores_milli))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return [list(cpus) for cpus in json.loads(done.stdout)]


@pytest.mark.slow
def test_a_job_gets_as_many_cpus_as_it_declares_rounded_up() -> None:
    here = len(os.sched_getaffinity(0))
    asked = [1, 500, 1000, 1001, 2000, 2500]
    found = [len(cpus) for cpus in cpus_of_jobs(*asked)]
    assert found == [min(wanted, here) for wanted in (1, 1, 1, 2, 2, 3)]


def test_a_job_that_declares_more_cpus_than_there_are_gets_all() -> None:
    assert cpus_of_jobs(1_000_000) == [sorted(os.sched_getaffinity(0))]


def test_a_job_that_declares_no_cores_runs_all_the_same() -> None:
    assert [len(cpus) for cpus in cpus_of_jobs(0)] == [1]


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_neighbours_start_on_different_cpus() -> None:
    first, second = cpus_of_jobs(1000, 1000)
    assert first != second


@pytest.mark.slow
def test_processes_are_limited_above_what_the_user_runs_already(start: Start) -> None:
    """Others of the user's processes may come and go meanwhile; a hundred do not."""
    code = """
import json, resource
from drfd.launcher.system.process import count_of_user
from drfd.launcher.system.process import Relative
from drfd.launcher.protocol import AttemptLimits
from drfd.launcher.confinement.unconfined import Unconfined
import os
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
limits = AttemptLimits(cores_milli=1000, memory_bytes=1, pids=5000)
Unconfined("x").enter((1, 1), limits, os.getuid())
now = resource.getrlimit(resource.RLIMIT_NPROC)
print(json.dumps([now, hard, count_of_user(os.getuid())]))
"""
    done = subprocess.run(python(code), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    (soft, hard), hard_before, count = json.loads(done.stdout)
    assert soft == hard
    if hard_before != -1 and hard_before < count + 5000:
        assert soft == hard_before
    else:
        assert abs(soft - (count + 5000)) < 1000


# -- freezing -------------------------------------------------------------------------------


def test_freezing_stops_every_session_below_the_runner_and_not_the_runner(
    start: Start, tmp_path: Path, place: Unconfined
) -> None:
    script = "sleep 60 & echo $! > a; setsid sleep 60 & echo $! > b; wait"
    runner = start("sh", "-c", script, cwd=tmp_path)
    jobs = [pid_in(tmp_path / "a"), pid_in(tmp_path / "b")]
    attempt = attempt_of(runner.pid)
    until("a stop", lambda: place.freeze(KEY, attempt))
    assert [state_of(pid) for pid in jobs] == ["T", "T"]
    # It is told of the stops of its children, and may be busy with that for a moment.
    until("a runner that waits", lambda: state_of(runner.pid) == "S")
    assert place.freeze(KEY, attempt), "frozen already"
    place.thaw(KEY, attempt)
    until("a life of both", lambda: [state_of(pid) for pid in jobs] == ["S", "S"])


@pytest.mark.slow
def test_a_job_that_forks_all_the_time_is_frozen_whole(
    start: Start, tmp_path: Path, place: Unconfined
) -> None:
    """A child that is born during the walk is found by the next one."""
    forker = "while :; do (echo x >> beats); done &"
    runner = start("sh", "-c", f"{forker * 8} wait", cwd=tmp_path)
    until("a beat", lambda: (tmp_path / "beats").exists())
    attempt = attempt_of(runner.pid)
    until("a stop of all", lambda: place.freeze(KEY, attempt))
    below = process.descendants(runner.pid)
    assert {state_of(pid) for pid in below} == {"T"}
    size = (tmp_path / "beats").stat().st_size
    time.sleep(0.2)
    assert (tmp_path / "beats").stat().st_size == size
    assert process.descendants(runner.pid) == below
    until("an end of all", lambda: place.kill_pass(KEY, attempt))


#: As a runner does, it reaps whatever it is left with; below it is a chain of processes of which
#: each begins the next one and ends, for ten minutes at most.
CHAIN = """
import os, signal, time
from drfd.linux import syscalls
syscalls.become_subreaper()
beats = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
end_s = time.monotonic() + 600
if os.fork() == 0:
    os.setsid()
    while os.fork() == 0 and time.monotonic() < end_s:
        os.write(beats, b"x")
    os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
"""


@pytest.mark.slow
def test_what_is_said_to_be_frozen_stands_still_however_it_forks(
    start: Start, tmp_path: Path, place: Unconfined
) -> None:
    """A walk through the processes can miss a chain of short-lived ones again and again."""
    beats = tmp_path / "beats"
    runner = start(*python(CHAIN, beats))
    attempt = attempt_of(runner.pid)
    until("a beat", beats.exists)
    try:
        for _ in range(10):
            until("a stop", lambda: place.freeze(KEY, attempt))
            size = beats.stat().st_size
            time.sleep(0.02)
            assert beats.stat().st_size == size
            assert process.descendants(runner.pid)
            place.thaw(KEY, attempt)
            until("more beats", lambda before=size: beats.stat().st_size > before)  # type: ignore[misc]
    finally:
        until("a stop", lambda: place.freeze(KEY, attempt))
        until("an end", lambda: place.kill_pass(KEY, attempt))


#: Begins a program as shells do, by vfork(2), and whoever is to become it waits for a reader.
HELD_BY_ITS_CHILD = """
import os
open("/proc/self/comm", "wb").write(b"a\\rb\\x0bc\\xc2\\x85\\n:")
os.mkfifo("fifo")
open("ready", "w").close()
opening = [(os.POSIX_SPAWN_OPEN, 1, "fifo", os.O_WRONLY, 0)]
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=opening), 0)
open("gone-on", "w").close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [0, 1])
def test_who_waits_for_a_stopped_child_to_become_its_program_stands_still(
    start: Start, tmp_path: Path, place: Unconfined, threads: int
) -> None:
    """It cannot be stopped before its child has gone on, and looks busy with a disk."""
    beside = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    command = shlex.join(python(beside * threads + HELD_BY_ITS_CHILD))
    runner = start("sh", "-c", f"{command} & wait", cwd=tmp_path)
    until("a start", (tmp_path / "ready").exists)
    until("two of them", lambda: len(process.descendants(runner.pid)) == 2)
    attempt = attempt_of(runner.pid)
    until("a stop", lambda: place.freeze(KEY, attempt))
    fifo = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    time.sleep(0.2)
    assert not (tmp_path / "gone-on").exists()
    place.thaw(KEY, attempt)
    until("what comes next", (tmp_path / "gone-on").exists)
    os.close(fifo)


@pytest.mark.slow
@pytest.mark.parametrize("is_awake", [False, True])
def test_who_cannot_be_interrupted_stands_still_only_as_long_as_nobody_in_it_wakes(
    start: Start, monkeypatch: pytest.MonkeyPatch, place: Unconfined, is_awake: bool
) -> None:
    """A thread that waits for the memory map of another one before it forks has not stopped, and
    any child that has makes it look as if it waited for that."""
    runner = start("sleep", "60")
    until("its sleep", lambda: state_of(runner.pid) == "S")
    forker, child = 1 << 30, 1 + (1 << 30)
    family = {forker: Relative("D", runner.pid), child: Relative("T", forker)}
    monkeypatch.setattr(process, "family", lambda root: family)
    rest, looks = process.rest, itertools.count()
    switches = lambda: (str(next(looks)),) if is_awake else ("7",)  # noqa: E731
    monkeypatch.setattr(process, "rest", lambda pid: switches() if pid == forker else rest(pid))
    frozen = [place.freeze(KEY, attempt_of(runner.pid)) for _ in range(5)]
    assert frozen == [not is_awake] * 5


def test_there_is_nothing_to_freeze_or_to_thaw_of_an_attempt_without_a_runner(
    start: Start, place: Unconfined
) -> None:
    job = sleeper(start)
    earlier = attempt_of(os.getpid(), job.pid, boot_id="an earlier one")
    until("a process that sleeps", lambda: state_of(job.pid) == "S")
    for attempt in (None, Attempt(created=CREATED), earlier):
        assert place.freeze(KEY, attempt)
        place.thaw(KEY, attempt)
    assert state_of(job.pid) == "S"


# -- ending ---------------------------------------------------------------------------------


def test_a_signal_reaches_every_session_below_the_runner_and_not_the_runner(
    start: Start, tmp_path: Path, place: Unconfined
) -> None:
    script = "sleep 60 & echo $! > a; setsid sleep 60 & echo $! > b; trap 'echo >> c' TERM; wait"
    runner = start("sh", "-c", script, cwd=tmp_path)
    a, b = pid_in(tmp_path / "a"), pid_in(tmp_path / "b")
    place.signal(KEY, attempt_of(runner.pid), signal.SIGTERM)
    until("an end of both", lambda: not lives(a) and not lives(b))
    assert not (tmp_path / "c").exists(), "the runner was signalled as well"


def test_killing_goes_on_until_none_is_left(
    start: Start, tmp_path: Path, place: Unconfined
) -> None:
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


def test_without_runner_on_record_there_is_nothing_to_kill(place: Unconfined) -> None:
    assert place.kill_pass(KEY, None)
    assert place.kill_pass(KEY, Attempt(created=CREATED))
    place.signal(KEY, None, signal.SIGTERM)


def test_numbers_of_an_earlier_boot_are_nobodys(start: Start, place: Unconfined) -> None:
    job = sleeper(start)
    earlier = attempt_of(os.getpid(), job.pid, boot_id="an earlier one")
    place.signal(KEY, earlier, signal.SIGKILL)
    assert place.kill_pass(KEY, earlier)
    assert lives(job.pid)


def test_a_runners_number_that_somebody_else_has_now_is_not_the_runner(
    start: Start, place: Unconfined
) -> None:
    attempt = stranger(start)
    assert attempt.runner is not None
    below = process.descendants(attempt.runner["pid"])
    try:
        place.signal(KEY, attempt, signal.SIGKILL)
        assert place.kill_pass(KEY, attempt)
        assert below
        assert all(map(lives, below))
    finally:
        process.signal_all(below, signal.SIGKILL)


def test_when_the_runner_was_killed_its_jobs_session_is_found(
    start: Start, tmp_path: Path, place: Unconfined
) -> None:
    script = "sleep 60 & echo $! > a; exec sleep 60"
    job = start("sh", "-c", script, cwd=tmp_path, start_new_session=True)
    a = pid_in(tmp_path / "a")
    attempt = attempt_of(999_999_999, job.pid, start_ticks=1)
    assert not place.kill_pass(KEY, attempt)
    until("an end of both", lambda: not lives(a) and not lives(job.pid))
    assert place.kill_pass(KEY, attempt)


@pytest.mark.parametrize(
    ("variables", "is_mine"),
    [
        ({"DRF_JOB_ID": "1", "DRF_ATTEMPT": "1"}, True),
        ({"DRF_JOB_ID": "1", "DRF_ATTEMPT": "2"}, False),
        ({}, False),
    ],
)
def test_without_runner_and_leader_a_session_is_the_jobs_if_its_members_say_so(
    start: Start, tmp_path: Path, place: Unconfined, variables: dict[str, str], is_mine: bool
) -> None:
    """The number of a session that has ended may be given to another, which has lost its leader,
    too."""
    script = "sleep 60 & echo $! > a; env -i sleep 60 & echo $! > b"
    env = os.environ | variables
    leader = start("sh", "-c", script, cwd=tmp_path, start_new_session=True, env=env)
    a, b = pid_in(tmp_path / "a"), pid_in(tmp_path / "b")
    assert leader.wait(WAIT_S) == 0
    until("two that sleep", lambda: [state_of(a), state_of(b)] == ["S", "S"])
    attempt = attempt_of(999_999_999, start_ticks=1)
    attempt = replace(attempt, running={"pid": leader.pid, "start_ticks": 1})
    assert place.kill_pass(KEY, attempt) is not is_mine
    if is_mine:
        until("an end of both", lambda: not lives(a) and not lives(b))
    else:
        states = [state_of(a), state_of(b)]
        process.signal_all([a, b], signal.SIGKILL)
        assert states == ["S", "S"]


def test_variables_of_another_user_make_nobody_a_member(start: Start, place: Unconfined) -> None:
    mine = {"DRF_JOB_ID": "1"}
    job = start("sleep", "60", env=os.environ | mine)
    until("an exec", lambda: process.has_in_environment(job.pid, os.getuid(), mine))
    assert not process.has_in_environment(job.pid, os.getuid() + 1, mine)
    assert not process.has_in_environment(job.pid, os.getuid(), mine | {"DRF_ATTEMPT": "1"})


def test_a_killed_runner_that_nobody_reaps_does_not_hide_its_job(
    start: Start, place: Unconfined
) -> None:
    """Not every container's first process reaps the orphans it is given."""
    job, runner = sleeper(start), start("sleep", "60")
    attempt = attempt_of(runner.pid, job.pid)
    runner.kill()
    until("a zombie", lambda: state_of(runner.pid) == "Z")
    assert not place.kill_pass(KEY, attempt), "the job lives, and nothing was said of it"
    assert job.wait(WAIT_S) == -signal.SIGKILL


def test_a_session_that_is_younger_than_the_job_is_somebody_elses(
    start: Start, place: Unconfined
) -> None:
    """Its number was given out again: the runner was killed, the job ended, months went by."""
    other = sleeper(start)
    long_ago = {"at_s": time.time() - 9e6, "mono_s": time.monotonic() - 9e6, "start_ticks": 1}
    attempt = Attempt(
        created=CREATED | long_ago,
        runner={"pid": 999_999_999, "start_ticks": 1},
        running={"pid": other.pid} | long_ago,
    )
    place.signal(KEY, attempt, signal.SIGTERM)
    assert place.kill_pass(KEY, attempt)
    assert lives(other.pid)
