"""Each limit, proved by its effect on real processes in real cgroups: what is on record of
their use, and when they go; and suspension. Others may keep the machine busy meanwhile, so rates of
disks are compared with each other."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from drfd.core.model.job import Usage
from drfd.core.model.resources import Axes
from drfd.daemon.spawn import group_for
from drfd.journal.journal import Journal
from drfd.launcher.runner.starter.plan import SWEEP_S
from instance import CONFIG, PATIENCE, Instance, is_alive, parent_of, patient, wait_for
from kernel import Kernel

pytestmark = pytest.mark.system


def python(code: str, **values: Any) -> tuple[str, str, str]:
    return sys.executable, "-c", code.format(**values)


def used(instance: Instance, job_id: int) -> Usage:
    """As it is in the journal, which belongs to whoever runs this."""
    journal = Journal(instance.state / "controller" / "journal.sqlite")
    try:
        assert job_id not in journal.load(Axes()).jobs
        job = journal.job(job_id)
    finally:
        journal.close()
    assert job is not None and job.usage is not None
    return job.usage


def test_a_tenth_of_a_core_is_a_tenth_of_a_core(instance):
    """The kernel stops it in each period in which it has had that. A busy machine may leave it less
    in others."""
    job, kernel = instance.running("-c", "0.1", "--", *python("while True: pass")), Kernel()
    told = Path(kernel.v2 or kernel.v1["cpu"], job["cgroup"], "cpu.stat")

    def stops() -> int:
        return int(dict(map(str.split, told.read_text().splitlines()))["nr_throttled"])

    assert kernel.limits(job)["cores"] == 100
    began_s, used_us, stopped = time.monotonic(), kernel.use(job)[0], stops()
    wait_for("twenty stops", lambda: stops() >= stopped + 20, seconds=600)
    used_us = kernel.use(job)[0] - used_us
    # A period is a tenth of a second.
    assert 20 * 7_000 < used_us < 150_000 * (time.monotonic() - began_s)


#: Burns so many seconds of CPU on two threads of execution.
BURN = (
    "import os, time\n"
    "for _ in range(2):\n"
    "    if os.fork() == 0:\n"
    "        while time.process_time() < {seconds}: pass\n"
    "        os._exit(0)\n"
    "for _ in range(2): os.wait()\n"
)


def test_memory_over_the_limit_kills_the_whole_tree_and_is_on_record(instance):
    """The child that is not to blame dies too, and what it started in a session of its own."""
    program = (
        "import os, subprocess, sys, time\n"
        "bystander = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(os.getpid(), bystander.pid, flush=True)\n"
        "if os.fork() == 0:\n"
        "    bytearray(200 << 20)\n"
        "time.sleep(1000)\n"
    )
    job = instance.ended("-m", "64M", "--", *python(program))
    assert job["state"] == "OUT_OF_MEMORY"
    assert "64M" in job["outcome"]["text"] and "-m 96M" in job["outcome"]["text"]
    # The kernel lets what it has killed go a few pages beyond the limit, so that it can end.
    assert 60 << 20 <= job["usage"]["memory_peak"] <= 65 << 20
    assert [pid for pid in map(int, instance.output(job["id"]).split()) if is_alive(pid)] == []
    assert instance.cgroups() == []
    assert instance.drf("wait", job["id"], check=False).returncode == 137
    usage = used(instance, job["id"])
    assert usage.oom_kills
    assert usage.limit_hits is None or usage.limit_hits > 0, "not known is not zero"
    assert usage.largest_process_bytes is not None
    assert 32 << 20 < usage.largest_process_bytes < 80 << 20


#: Ways to hold four times the job's memory in the kernel.
HOARDS = {
    "pipes": """
import fcntl, os
held = []
for _ in range(256):
    held.append(os.pipe())
    fcntl.fcntl(held[-1][1], 1031, 1 << 20)
    os.set_blocking(held[-1][1], False)
    os.write(held[-1][1], bytes(1 << 20))
""",
    "page tables": """
import mmap
area = mmap.mmap(-1, 128 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
area.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, 128 << 30, 2 << 20):
    area[at]
""",
    "files in memory": """
import os
fd = os.memfd_create("x")
for _ in range(256):
    os.write(fd, bytes(1 << 20))
""",
}


@pytest.mark.parametrize("code", HOARDS.values(), ids=HOARDS.keys())
def test_memory_that_the_kernel_holds_for_a_job_is_the_jobs(instance, code):
    assert instance.ended("-m", "64M", "--", sys.executable, "-c", code)["state"] == "OUT_OF_MEMORY"


def test_what_nobody_reads_from_sockets_is_within_the_limit(instance):
    """A job of 64 MiB held gigabytes of datagrams, with cgroup v1."""
    code = """
import resource, socket, struct
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
into.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
held = 0
for _ in range(1500):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("127.0.0.1", 0))
    for _ in range(8):
        try:
            into.sendto(bytes(30000), one.getsockname())
        except OSError:
            pass
    held += struct.unpack("9I", one.getsockopt(socket.SOL_SOCKET, 55, 36))[0]
    one.detach()
print(held)
"""
    job = instance.ended("-m", "64M", "--", sys.executable, "-c", code)
    if Kernel().v2 is not None and job["state"] == "OUT_OF_MEMORY":
        # Sockets themselves count as its memory there, too.
        return
    assert job["state"] == "COMPLETED"
    assert 8 << 20 < int(instance.output(job["id"])) < 80 << 20


def test_what_a_job_used_while_drfd_was_away_is_on_record(instance):
    code = "import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.05)\n" + BURN
    job_id = instance.submit("-c", "0.1", "-m", "256M", "--", *python(code, seconds=0.2))
    instance.wait_state(job_id, "RUNNING")
    instance.kill()
    (instance.work / "go").touch()
    attempt = Path(instance.state, "launcher", "attempts", f"{job_id}.1")
    wait_for("the end, unseen by drfd", lambda: '"exited"' in attempt.read_text())
    instance.start()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    usage = used(instance, job_id)
    assert usage.cpu_s >= 0.4
    assert usage.throttled_us and usage.memory_peak_bytes > 1 << 20


def held_to_its_rate(instance: Instance, command: list[str]) -> dict[str, Any]:
    """The job that moves 50 MiB at 10 MiB/s: not too fast, and much slower than without a rate."""

    def run(most_s: float, *words: str) -> tuple[float, dict[str, Any]]:
        took: list[tuple[float, dict[str, Any]]] = []
        while len(took) < 3 and (not took or took[-1][0] >= most_s):
            job = instance.ended(*words, "--", *command)
            assert job["state"] == "COMPLETED", job
            took.append((job["ended_at"] - job["started_at"], job))
        took.sort(key=lambda each: each[0])
        assert took[0][0] < most_s, took
        return took[0]

    took_s, job = run(patient(9.0), "--io", "10M")
    assert took_s > 4.0
    run(took_s / 2)
    return job


@pytest.mark.parametrize("direction", ["read", "write"])
def test_disk_bandwidth_is_what_was_declared(instance, direction):
    data = instance.work / "data"
    with data.open("wb") as file:
        file.write(bytes(50 << 20))
        os.fsync(file.fileno())
    words = {
        "read": [f"if={data}", "of=/dev/null", "iflag=direct"],
        "write": ["if=/dev/zero", f"of={data}", "oflag=direct"],
    }[direction]
    command = ["dd", *words, "bs=1M", "count=50", "status=none"]
    job = held_to_its_rate(instance, command)
    assert job["usage"][{"read": "read_bytes", "write": "written_bytes"}[direction]] >= 50 << 20


def test_writes_that_the_kernel_does_later_are_held_to_the_rate_too(instance):
    """On version 2 they are attributed to who wrote. The sync at the end waits for them."""
    if Kernel().v2 is None:
        pytest.skip("cgroup v1 does not attribute buffered writes")
    dd = "rm -f data; dd if=/dev/zero of=data bs=1M count=50 conv=fsync status=none"
    job = held_to_its_rate(instance, ["sh", "-c", dd])
    assert job["usage"]["written_bytes"] >= 50 << 20


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_bomb_that_forks_for_ever_is_killed_whole(instance, is_frozen):
    """Every process forks as fast as it can; a walk over pids would never catch up."""
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    job = instance.running("-c", "2", "--", sys.executable, "-c", bomb)
    time.sleep(0.5)
    if is_frozen:
        suspend(instance, job)
        stands_still(job)
    instance.drf("cancel", job["id"])
    assert instance.wait_end(job["id"])["state"] == "CANCELLED"
    assert instance.cgroups() == []


def test_whatever_a_job_leaves_behind_ends_before_its_resources_return(instance):
    """Also in cgroups of its own making, of which only root's jobs make any on version 1."""
    script = (
        "(setsid nohup env -i sleep 1000 >/dev/null 2>&1 & echo $!); "
        "for line in $(cat /proc/self/cgroup); do path=${line##*:}; names=${line#*:}; "
        "inner=/sys/fs/cgroup/${names%%:*}$path/a/b; "
        "case $path in */drfd*) mkdir -p $inner && echo $$ >$inner/cgroup.procs;; esac; done; "
        "setsid sleep 1000 & echo $!; sleep 0.2; cat /proc/self/cgroup; exit 5"
    )
    job = instance.ended("--", "bash", "-c", script)
    assert (job["state"], job["exit_code"]) == ("FAILED", 5)
    first, second, *groups = instance.output(job["id"]).splitlines()
    hidden = [group for group in groups if "/drfd" in group and group.endswith("/a/b")]
    assert any(":freezer:" in group or group.startswith("0::") for group in hidden)
    assert not is_alive(int(first)) and not is_alive(int(second))
    assert instance.cgroups() == []


@pytest.mark.parametrize("left", ["sleep 600", "python"])
def test_what_is_left_ends_with_the_first_process(instance, left):
    """Its runner does not wait until it gives up, not even for a bomb that forks for ever. A busy
    machine may take so long all the same: one of five has to be sooner."""
    if left == "python":
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
        left = shlex.join((sys.executable, "-c", bomb))
    took_s: list[float] = []
    while not took_s or took_s[-1] >= SWEEP_S:
        assert len(took_s) < 5, took_s
        job = instance.ended("-c", "2", "--", "sh", "-c", f"setsid {left} & sleep 0.5")
        assert (job["state"], job["exit_code"]) == ("COMPLETED", 0)
        (cleaned_at_s,) = (event["at"] for event in job["events"] if event["event"] == "Cleaned")
        took_s.append(cleaned_at_s - job["ended_at"])


def test_a_stranger_with_the_pid_of_what_was_left_lives(instance):
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not last.exists():
        pytest.skip("the kernel gives no pid that is asked for")
    script = "sleep 600 & echo $!; exec sleep 0.5"
    job_id = instance.submit("--", "sh", "-c", script)
    output = Path(instance.show(job_id)["stdout"])
    pid = int(wait_for("the pid", lambda: output.exists() and output.read_text()))
    wait_for("the end of what was left", lambda: not Path(f"/proc/{pid}").exists())
    for _ in range(100):
        last.write_text(str(pid - 1))
        stranger = subprocess.Popen(["sleep", "600"])
        try:
            if stranger.pid == pid:
                assert instance.wait_end(job_id)["state"] == "COMPLETED"
                assert stranger.poll() is None
                return
        finally:
            stranger.kill()
            stranger.wait()
    pytest.skip(f"another process has the pid {pid}")


def test_wall_time_ends_by_term_then_grace_then_kill(lend):
    """Both are so long that the job can set and run its trap also where it is kept waiting."""
    instance = lend(CONFIG.replace('grace = "1s"', 'grace = "4s"'))
    stubborn = "trap 'echo term' TERM; echo ready; while :; do sleep 0.1; done"
    # The shell tells of each child that a signal has ended, where errors go.
    words = ("-t", "4s", "-e", "/dev/null", "--", "bash", "-c", stubborn)
    job = instance.ended(*words)
    assert job["state"] == "TIMEOUT"
    assert job["signal"] == 9
    assert instance.output(job["id"]).split() == ["ready", "term"]
    (asked_at_s,) = (event["at"] for event in job["events"] if event["event"] == "StopRequested")
    # A busy machine may be late, but nothing may be early.
    assert 3.9 < asked_at_s - job["started_at"] < 30 * PATIENCE
    assert 3.9 < job["ended_at"] - asked_at_s < 30 * PATIENCE


def test_a_job_cancelled_while_the_launcher_is_away_has_its_grace_time(lend):
    """The grace time ran while nobody could send SIGTERM: the job was killed without a warning."""
    instance = lend(CONFIG.replace('grace = "1s"', 'grace = "4s"'))
    polite = "trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    # The shell tells of its child that a signal has ended, where errors go.
    job_id = instance.submit("-e", "/dev/null", "--", "bash", "-c", polite)
    instance.wait_state(job_id, "RUNNING")
    wait_for("the trap", lambda: instance.output(job_id) == "ready\n")
    killed = instance.launcher_pid()
    supervisor = parent_of(killed)
    # A supervisor that is stopped starts no other launcher.
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(killed, signal.SIGKILL)
        wait_for("its end", lambda: not is_alive(killed))
        instance.drf("cancel", job_id)
        # Longer than its grace time.
        time.sleep(5.5)
        assert instance.show(job_id)["state"] == "STOPPING"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    job = instance.wait_end(job_id)
    assert (job["state"], job["exit_code"], job["signal"]) == ("CANCELLED", 7, None)
    assert instance.output(job_id) == "ready\nterm\n"


def test_a_limit_that_cannot_be_set_keeps_the_job_from_starting(instance):
    """Fail closed, and say why."""
    first = instance.running("--", "sleep", "600")
    instance.drf("cancel", first["id"])
    instance.wait_end(first["id"])
    with Kernel().refusing(first["cgroup"].rpartition("/")[0]):
        job = instance.ended("-c", "4", "--", "touch", "ran")
    assert job["state"] == "LAUNCH_FAILED"
    assert "could not be set up" in job["outcome"]["text"]
    assert not (instance.work / "ran").exists()
    assert instance.cgroups() == []


@pytest.mark.parametrize("what", ["of users", "of all jobs"])
def test_empty_groups_of_jobs_that_somebody_has_removed_are_made_again(instance, what):
    """By the next job, which starts as if they were there."""
    assert instance.ended("--", "true")["state"] == "COMPLETED"
    assert instance.cgroups() == []
    for top in filter(Path.exists, Kernel().groups(group_for(instance.state))):
        for group in sorted(top.rglob("of-*"), reverse=True):
            group.rmdir()
        if what == "of all jobs":
            top.rmdir()
    assert instance.ended("--", "true")["state"] == "COMPLETED"
    assert instance.cgroups() == []


def test_a_cgroup_goes_before_the_end_is_recorded_and_not_the_attempt(instance):
    """So the job's resources are free with its end: the next start waits for one commit."""
    attempts = instance.state / "launcher/attempts"
    # The file of an earlier test's job may be removed a moment after its end.
    wait_for("the removal of older files", lambda: not os.listdir(attempts))
    instance.arm("remove.before-unlink", "stop")
    job_id = instance.submit("--", "true")
    stopped = instance.failpoints / "remove.before-unlink.reached"
    launcher = int(wait_for("a removal", lambda: stopped.exists() and stopped.read_text()))
    try:
        assert instance.cgroups() == []
        assert (attempts / f"{job_id}.1").exists()
        assert instance.show(job_id)["state"] == "COMPLETED"
    finally:
        stopped.unlink()
        os.kill(launcher, signal.SIGCONT)
    wait_for("the removal of its file", lambda: not os.listdir(attempts))


# -- each disk has a rate of its own ------------------------------------------------------------


MIB = 1 << 20
EXTRA = """[[disk]]
name = "extra"
path = "{extra}"
read = "50M"
write = "50M"
"""


@pytest.fixture
def instance(make_instance, extra) -> Instance:
    """Its first disk is that of the usual configuration, and cores are given by quota."""
    text = CONFIG.replace('"test"', '"main"') + EXTRA.format(extra=extra)
    made = make_instance(text).start()
    if "blkio" not in Kernel().v1 and Kernel().v2 is None:
        pytest.skip("no controller of disks here")
    return made


#: Seconds in which 30 MiB cannot be written at 4 MiB in a second.
LEAST_S = 6.0


def seconds(instance: Instance, *words: str, where: Path, most_s: float) -> float:
    """The time to write 30 MiB there: others only lengthen it, so the shortest of three counts."""
    target = f"of={where / 'written'}"
    command = ["dd", "if=/dev/zero", target, "bs=1M", "count=30", "oflag=direct", "status=none"]
    took_s: list[float] = []
    while len(took_s) < 3 and (not took_s or took_s[-1] >= most_s):
        job = instance.ended(*words, "--", *command, cwd=where)
        assert job["state"] == "COMPLETED", job
        took_s.append(float(job["ended_at"] - job["started_at"]))
    assert min(took_s) < most_s, took_s
    return min(took_s)


def test_a_rate_holds_on_the_disk_that_it_names_only(instance, extra):
    slow = seconds(instance, "--io", "extra=4M", where=extra, most_s=20)
    assert slow > LEAST_S
    seconds(instance, "--io", "main=4M", where=extra, most_s=slow / 2)
    assert seconds(instance, "--io", "main=4M", where=instance.work, most_s=20) > LEAST_S


def test_a_rate_without_name_is_for_the_directorys_disk(instance, extra):
    assert seconds(instance, "--io", "4M", where=extra, most_s=20) > LEAST_S
    job_id = instance.submit("--io", "40M/20M", "--", "true", cwd=extra)
    demand: dict[str, Any] = instance.show(job_id)["demand"]
    assert (demand["read"], demand["write"]) == (40 * MIB, 20 * MIB)
    assert demand["disks"]["extra"] == {"read": 40 * MIB, "write": 20 * MIB}
    assert "io 40M/20M on disk extra\n" in instance.drf("show", job_id).stdout


def test_each_disk_is_given_out_by_itself_and_a_reload_may_take_one_away(instance, extra):
    holder = instance.running("--io", "extra=1M/40M", "--", "sleep", "600")["id"]
    waits = instance.submit("--io", "extra=1M/20M", "--", "true")
    other = instance.submit("--io", "main=1M/20M", "--", "true")
    assert instance.wait_end(other)["state"] == "COMPLETED"
    text = instance.show(waits)["reason"]["text"]
    assert text.startswith("needs 20M/s of disk writes on extra, 10M/s free")

    config = instance.config.read_text()
    instance.config.write_text(config.replace(EXTRA.format(extra=extra), ""))
    assert "jobs name the disk extra, which is not configured" in instance.drf("reload").stderr
    assert "since its configuration was changed" in instance.show(waits)["reason"]["text"]
    assert instance.show(holder)["state"] == "RUNNING"
    instance.kill()
    instance.start()
    assert "since its configuration was changed" in instance.show(waits)["reason"]["text"]
    assert instance.show(holder)["state"] == "RUNNING"
    instance.config.write_text(config)
    instance.drf("reload")
    instance.drf("cancel", holder)
    assert instance.wait_end(waits)["state"] == "COMPLETED"


# -- suspending: the freezer holds every process, and memory stays charged ----------------------


MIB = 1 << 20
#: Touches 100 MiB and burns its cores, and so does a child in another session; each notes the
#: signals that it is sent.
HEAVY = """
import os, signal, sys
def note(number, frame):
    open(signal.Signals(number).name, "w").close()
for number in (signal.SIGTERM, signal.SIGCONT):
    signal.signal(number, note)
block = os.urandom(1 << 20) * 100
if os.fork() == 0:
    os.setsid()
print("ready", os.getpid(), flush=True)
while not os.path.exists("gate"):
    pass
sys.exit(7)
"""


def heavy(instance: Instance, *words: str) -> dict[str, Any]:
    """A job of `HEAVY` that runs, with both its processes."""
    job = instance.running(*words, "-m", "400M", "--", sys.executable, "-c", HEAVY)
    wait_for("both processes", lambda: instance.output(job["id"]).count("ready") == 2)
    return job


def cpu_us(job: dict[str, Any]) -> int:
    return Kernel().use(job)[0]


def suspend(instance: Instance, job: dict[str, Any]) -> None:
    instance.drf("suspend", job["id"])
    instance.wait_state(job["id"], "SUSPENDED")


#: A process counts as frozen just before it gives up its processor: so much, in microseconds, may
#: be booked for the moment between.
LAST_US = 20_000


def stands_still(job: dict[str, Any]) -> None:
    """The whole cgroup is frozen, and takes no time."""
    assert Kernel().is_frozen(job)
    before = cpu_us(job)
    time.sleep(0.3)
    assert cpu_us(job) - before < LAST_US


def goes_on(job: dict[str, Any]) -> None:
    # Whoever resumes it is answered when that is decided; the launcher thaws it a moment later.
    wait_for("its thaw", lambda: not Kernel().is_frozen(job))
    before = cpu_us(job)
    wait_for("work", lambda: cpu_us(job) > before + 100_000)


def test_a_suspended_job_takes_no_time_keeps_its_memory_and_does_not_notice(instance):
    job = heavy(instance, "-c", "9")
    other = instance.submit("-c", "9", "-m", "1G", "--", "true")
    suspend(instance, job)
    stands_still(job)
    assert Kernel().use(job)[1] > 100 * MIB
    assert instance.wait_end(other)["state"] == "COMPLETED"
    stands_still(job)
    instance.drf("resume", job["id"])
    instance.wait_state(job["id"], "RUNNING")
    goes_on(job)
    (instance.work / "gate").touch()
    over = instance.wait_end(job["id"])
    assert (over["state"], over["exit_code"]) == ("FAILED", 7)
    assert not (instance.work / "SIGCONT").exists(), "the freezer is not a signal"
    assert instance.cgroups() == []


def test_a_job_cancelled_while_frozen_is_killed_whole_without_a_word(instance):
    job = heavy(instance)
    pids = [int(word) for word in instance.output(job["id"]).split() if word.isdecimal()]
    suspend(instance, job)
    instance.drf("cancel", job["id"])
    over = instance.wait_end(job["id"])
    assert (over["state"], over["signal"]) == ("CANCELLED", signal.SIGKILL)
    assert not any(map(is_alive, pids))
    assert not (instance.work / "SIGTERM").exists()
    assert instance.cgroups() == []


def test_what_a_user_keeps_suspended_gives_its_memory_to_others_in_the_end(lend, users):
    """The time limit did not go on, and nobody else had the memory for as long as the user
    liked."""
    instance = lend(f'{CONFIG}[limits]\nsuspended = "3s"\n')
    first, second = ({"user": each.pw_uid, "cwd": instance.home_for(each)} for each in users)
    job = instance.running("-m", "17G", "-t", "1h", "--", "sleep", "3600", **first)
    began_s = time.monotonic()
    told = instance.drf("suspend", job["id"], **first)
    assert "without drf resume it is ended at" in told.stderr
    instance.wait_state(job["id"], "SUSPENDED")
    other = instance.submit("-m", "17G", "--", "true", **second)
    assert instance.wait_end(other)["state"] == "COMPLETED"
    assert 3 <= time.monotonic() - began_s < patient(20)
    over = instance.wait_end(job["id"])
    assert over["state"] == "LIMIT_EXCEEDED"
    assert "suspended for 3s" in over["outcome"]["text"]
    assert instance.cgroups() == []
