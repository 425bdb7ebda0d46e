"""drf exec: a command inside a running job, as the job's user, within its limits, until its end."""

import os
import pwd
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from emulator import Emulator
from instance import BIN, CONFIG, Instance, is_alive, wait_for
from kernel import Kernel

pytestmark = pytest.mark.system

DRF = BIN / "drf"
#: What a process is, as far as it must be the same in the job and in a command inside it.
SELF = (
    "id; pwd; umask; ulimit -a; cat /proc/self/oom_score_adj /proc/self/cgroup;"
    " grep -E '^(Cap|NoNewPrivs|Seccomp|Groups|Cpus_allowed_list|SigIgn|SigBlk)' /proc/self/status;"
    " readlink /proc/self/ns/pid;"
    " env | grep -vE '^(_|SHLVL|TERM)=' | sort"
)

#: How many names are asked for that are not there.
_NAMES = 1_000_000
#: HOME: root's own settings are not for other users.
ENV = {"MARK": "ü", "PATH": "/usr/bin:/bin", "HOME": "/"}


def running(instance: Instance, user: pwd.struct_passwd, script: str, *options: object) -> int:
    options = options or ("-m", "64M")
    words = (*options, "-o", "out", "-e", "err", "--", "sh", "-c", script)
    at = {"user": user.pw_uid, "cwd": instance.home_for(user), "env": ENV}
    return int(instance.running(*words, **at)["id"])


def inside(
    instance: Instance, user: pwd.struct_passwd, job: int, *words: object, **options: Any
) -> subprocess.CompletedProcess[str]:
    options["env"] = ENV | options.get("env", {})
    options = {"user": user.pw_uid, "cwd": "/", "check": False, **options}
    return instance.drf("exec", job, "--", *words, **options)


def begin(
    instance: Instance, user: pwd.struct_passwd, job: int, script: str
) -> subprocess.Popen[str]:
    """Start one that runs beside the test."""
    return subprocess.Popen(
        [str(DRF), "exec", str(job), "--", "sh", "-c", script], **at_hand(instance, user),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def at_hand(instance: Instance, user: pwd.struct_passwd) -> dict[str, Any]:
    """To start a program as that user."""
    env = {**os.environ, **ENV, "DRFD_SOCKET": str(instance.socket)}
    who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return {**who, "cwd": "/", "env": env}


def pid_written(path: Path) -> int:
    return int(wait_for("its pid", lambda: path.exists() and path.read_text().strip()))


def test_it_is_what_the_job_is(instance, users):
    """User, groups, directory, variables, cgroup, limits, capabilities: all the same."""
    user = users[0]
    job = running(instance, user, f"{{ {SELF}; }} > mine; echo > ready; exec sleep 1000")
    home = instance.home_for(user)
    wait_for("the job's own words", (home / "ready").exists)
    done = inside(instance, user, job, "sh", "-c", SELF, env={"MARK": "not this"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (home / "mine").read_text()
    assert f"job-{job}-1" in done.stdout
    assert "MARK=ü\n" in done.stdout


def test_its_end_is_the_commands(instance, users):
    job = running(instance, users[0], "exec sleep 1000")
    script = "cat; echo err >&2; exit 7"
    done = inside(instance, users[0], job, "sh", "-c", script, input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\n", "err\n")
    assert inside(instance, users[0], job, "sh", "-c", "kill $$").returncode == -15
    done = inside(instance, users[0], job, "nosuchcommand")
    assert (done.returncode, done.stdout) == (1, "")
    why = f"not run inside job {job}: there is no command nosuchcommand in the job's PATH"
    assert done.stderr == f"drf: {why}\n"
    assert instance.show(job)["state"] == "RUNNING"


def test_who_comes_from_a_cgroup_of_any_name_ends_no_launcher(instance, users):
    """A user's own cgroup can have a name that is no text: the launcher died of it each time."""
    user = users[0]
    job = running(instance, user, "exec sleep 1000")
    own = os.fsencode(Kernel().top("pids") / f"drfd-test-{os.getpid()}-") + b"\xff"
    os.mkdir(own)
    try:
        enter = 'echo $$ >"$0/cgroup.procs"; exec setpriv --clear-groups "$@"'
        who = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}")
        words = (*who, str(DRF), "exec", str(job), "--", "echo", "in")
        env = {**os.environ, **ENV, "DRFD_SOCKET": str(instance.socket)}
        done = subprocess.run(
            ["sh", "-c", enter, own, *words], env=env, cwd="/", capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == ("in\n", "")
    finally:
        os.rmdir(own)
    assert inside(instance, user, job, "true").returncode == 0


def test_on_a_terminal_it_is_a_shell_of_the_users(instance, users):
    """^C and ^Z are the terminal's, as for any program."""
    user = users[0]
    job = running(instance, user, "exec sleep 1000")
    terminal = Emulator("sh", "-c", f"{DRF} exec {job} -- sh", **at_hand(instance, user))
    try:
        terminal.sees("$")
        terminal.type(b"id -un; stty size\r")
        terminal.sees(f"{user.pw_name}\n24 80\n")
        terminal.type(b"sleep 1000\r")
        # A child that is still the shell has not got the terminal yet, so that ^C would pass it by.
        both = ["sh", "sleep", "sleep"]
        terminal.until("it", lambda: sorted(programs_in(instance, job)) == both)
        terminal.type(b"\x03")
        wait_for("its end", lambda: sorted(programs_in(instance, job)) == both[:2])
        terminal.type(b"exit 4\r")
        assert terminal.ends() == 4
    finally:
        terminal.close()
    usual = inside(instance, user, job, input="id -un; exit 3\n")
    assert (usual.returncode, usual.stdout) == (3, f"{user.pw_name}\n")


def programs_in(instance: Instance, job: int) -> list[str]:
    """What the processes of the job's cgroup run. Another daemon's job may have the same number."""
    found, own = [], f"{instance.show(job)['cgroup']}\n"
    for each in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if own in each.read_text():
                found.append(each.with_name("comm").read_text().strip())
    return found


def test_nobody_else_may_not_even_an_administrator(instance, users):
    owner, other = users
    job = running(instance, owner, "exec sleep 1000")
    text = f"job {job} belongs to {owner.pw_name}"
    for who in (other, pwd.getpwuid(0)):
        done = inside(instance, who, job, "touch", instance.home_for(owner) / "seen")
        assert (done.returncode, text in done.stderr) == (77, True)
    assert not (instance.home_for(owner) / "seen").exists()


def test_what_runs_in_a_job_is_moved_into_no_other(instance, users):
    """What it has taken of memory would be counted in the first one, which it would outlive."""
    first, second = (running(instance, users[0], "exec sleep 1000") for _ in range(2))
    done = inside(instance, users[0], first, DRF, "exec", second, "--", "true")
    assert (done.returncode, "is in a job already" in done.stderr) == (1, True), done.stderr


def test_only_a_running_job_has_an_inside(instance, users):
    user = users[0]
    job = running(instance, user, "exec sleep 1000")
    instance.drf("suspend", job, user=user.pw_uid, env=ENV)
    instance.wait_state(job, "SUSPENDED")
    done = inside(instance, user, job, "true")
    assert (done.returncode, done.stderr) == (
        1, f"drf: job {job} is suspended (drf resume {job})\n"
    )  # fmt: skip
    instance.drf("cancel", job, user=user.pw_uid, env=ENV)
    instance.wait_end(job)
    assert inside(instance, user, job, "true").stderr == f"drf: job {job} has ended\n"
    at = {"user": user.pw_uid, "cwd": instance.home_for(user), "env": ENV}
    held = instance.submit("--hold", "--", "true", **at)
    assert "does not run yet" in inside(instance, user, held, "true").stderr
    array = instance.submit("--array", "1-2", "--hold", "--", "true", **at)
    assert "is an array" in inside(instance, user, array, "true").stderr
    assert "no job 4711" in inside(instance, user, 4711, "true").stderr


def test_a_job_ends_with_its_own_process_and_takes_it(instance, users):
    user = users[0]
    home = instance.home_for(user)
    job = running(instance, user, "while ! [ -e go ]; do sleep 0.05; done; exit 5")
    command = begin(instance, user, job, "echo $$ > pid; trap '' TERM HUP; sleep 1000 & wait")
    pid = pid_written(home / "pid")
    assert pid == command.pid
    (home / "go").touch()
    os.chown(home / "go", user.pw_uid, user.pw_gid)
    assert instance.wait_end(job)["exit_code"] == 5
    command.communicate(timeout=60)
    assert command.returncode == -signal.SIGKILL
    assert not is_alive(pid)


def ask_for_names(directory: Path, user: pwd.struct_passwd) -> None:
    """Ask for names that are not there. The kernel remembers each with the directory, and to forget
    them all when that is removed takes it some seconds."""
    script = f"import os, sys\nfor n in range({_NAMES}): os.path.exists(f'{{sys.argv[1]}}/{{n}}')"
    as_user: Any = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    subprocess.run([sys.executable, "-c", script, directory], check=True, **as_user)


def test_a_cgroup_that_takes_long_to_be_removed_delays_nobody_elses_start_or_answer(
    instance, users
):
    """Its runner cannot remove it, because the command is no child of the runner's."""
    user, other = users
    home, at = instance.home_for(user), {"user": other.pw_uid, "cwd": "/", "env": ENV}
    job = running(instance, user, "echo $$ > first; while ! [ -e go ]; do sleep 0.05; done")
    command = begin(instance, user, job, "echo $$ > pid; exec sleep 1000")
    pid_written(home / "pid")
    like = Kernel().top("pids") / f"drfd-test-names-{os.getpid()}"
    like.mkdir()
    try:
        ask_for_names(like, user)
    finally:
        begun_s = time.monotonic()
        like.rmdir()
    slow_s = time.monotonic() - begun_s
    pid = pid_written(home / "first")
    # In that of the first, `drf show` reads which CPUs are the job's own.
    for each in dict.fromkeys(Kernel().cgroup(pid, name) for name in ("cpuset", "pids")):
        ask_for_names(each, user)
    (home / "go").touch()
    longest_s = 0.0
    own = {"user": user.pw_uid, "cwd": home, "env": ENV}
    while True:
        begun_s = time.monotonic()
        if instance.show(job)["ended_at"] is not None:
            break
        instance.drf("run", "-m", "64M", "--", "true", **at)
        longest_s = max(longest_s, time.monotonic() - begun_s)
        # Its runner waits for the same directory, and it is ended meanwhile.
        instance.drf("cancel", instance.submit("-m", "64M", "--", "sleep", "600", **own))
    command.communicate(timeout=60)
    assert 0 < longest_s < slow_s / 2


def test_its_memory_is_the_jobs(instance, users):
    job = running(instance, users[0], "exec sleep 1000", "-m", "64M")
    hog = "b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    done = inside(instance, users[0], job, sys.executable, "-I", "-c", hog)
    assert done.returncode == -signal.SIGKILL
    assert instance.wait_end(job)["outcome"]["code"] == "OUT_OF_MEMORY"


#: Has more threads than a job may have, and asks to be moved into this one.
MANY_THREADS = """
import os, sys, threading, time
from importlib import import_module
from pathlib import Path
from drfd.client.connection import Connection
for _ in range(100):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
client = Connection(Path(os.environ["DRFD_SOCKET"]))
view = client.request("show", id=int(sys.argv[1]))["job"]
import_module("drfd_cli.commands.exec")._move_into(client, view)
"""


def test_one_with_more_threads_than_the_job_may_have_is_killed(instance, users):
    """They can be counted only once they are inside: until then it can start more."""
    job = running(instance, users[0], "exec sleep 1000")
    words = [sys.executable, "-c", MANY_THREADS, str(job)]
    done = subprocess.run(words, **at_hand(instance, users[0]), check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert inside(instance, users[0], job, "true").returncode == 0
    assert instance.show(job)["state"] == "RUNNING"


#: Forks all the time while it is moved into a job, and names what it has forked.
FORKS = """
import os, sys, threading, time
from importlib import import_module
from pathlib import Path
from drfd.client.connection import Connection
def fork():
    for _ in range(20):
        try: pid = os.fork()
        except OSError: return
        if pid == 0: os.closerange(0, 3), os.execv("/bin/sleep", ["sleep", "600"])
        os.write(1, b"%d\\n" % pid)
client = Connection(Path(os.environ["DRFD_SOCKET"]))
view = client.request("show", id=int(sys.argv[1]))["job"]
forking = [threading.Thread(target=fork) for _ in range(2)]
for each in forking: each.start()
import_module("drfd_cli.commands.exec")._move_into(client, view)
for each in forking: each.join()
"""


def hierarchies_in(job: int, pid: int) -> int:
    """In how many hierarchies the process is in the job's cgroup."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cgroup").read_text().count(f"/job-{job}-1\n")
    return 0


def test_one_that_forks_while_it_is_moved_leaves_nothing_in_a_part_of_the_jobs_cgroups(
    instance, users
):
    """On version 1 its children were in some and not in others: without the job's limit of memory,
    or where nobody looked for them, so that the job kept its cores until somebody killed them."""
    user = users[0]
    job = running(instance, user, "echo $$ > pid; exec sleep 1000", "-m", "256M")
    whole = hierarchies_in(job, pid_written(instance.home_for(user) / "pid"))
    assert whole > 0
    pids: list[int] = []
    try:
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, "-c", FORKS, str(job)],
                **at_hand(instance, user), stdout=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
            pids += map(int, done.stdout.split())
            # Those from before it was moved are not the job's.
            assert {hierarchies_in(job, pid) for pid in pids} <= {0, whole}
        inside = [pid for pid in pids if hierarchies_in(job, pid)]
        instance.drf("cancel", job, user=user.pw_uid, env=ENV)
        instance.wait_end(job)
        wait_for("its cgroups to go", lambda: not instance.cgroups())
        assert not any(map(is_alive, inside))
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_process_in_a_single_cgroup_of_a_job_ends_with_it(instance, users):
    """Whatever has put it there, and whosever it is: it kept the job's directory, and so its
    cores."""
    user = users[0]
    theirs = {"user": user.pw_uid, "group": user.pw_gid}
    job = running(instance, user, "echo $$ > pid; exec sleep 1000")
    first = pid_written(instance.home_for(user) / "pid")
    strays = []
    for number, directory in enumerate(instance.cgroups()):
        strays.append(subprocess.Popen(["sleep", "600"], **({} if number % 2 else theirs)))
        Path(directory, "cgroup.procs").write_text(str(strays[-1].pid))
    instance.drf("cancel", job, user=user.pw_uid, env=ENV)
    instance.wait_end(job)
    wait_for("its cgroups to go", lambda: not instance.cgroups())
    assert {each.wait(60) for each in strays} <= {-signal.SIGTERM, -signal.SIGKILL}
    assert not is_alive(first)


def test_a_job_with_a_tmp_of_its_own_takes_no_command(lend, users):
    """The command would see another /tmp than the job, and leave files there."""
    instance = lend(f"{CONFIG}private_tmp = true\n")
    user = users[0]
    words = ("-o", "/dev/null", "-e", "/dev/null", "--", "sleep", "1000")
    job = instance.running(*words, user=user.pw_uid, cwd="/", env=ENV)["id"]
    done = inside(instance, user, job, "true")
    assert (done.returncode, "the job has a /tmp of its own" in done.stderr) == (1, True)


def test_it_takes_over_what_the_job_is_now(instance, users):
    """Directory, mask, limit and environment of its first process, not of the submission."""
    user = users[0]
    home = instance.home_for(user)
    (home / "there").mkdir(exist_ok=True)
    os.chown(home / "there", user.pw_uid, user.pw_gid)
    script = "(MARK=other exec sleep 1000) & cd there; umask 027; ulimit -n 99; echo > ready; wait"
    job = running(instance, user, script)
    wait_for("its new place", (home / "there" / "ready").exists)
    done = inside(instance, user, job, "sh", "-c", "pwd; umask; ulimit -n; echo $MARK")
    assert done.stdout == f"{home}/there\n0027\n99\nü\n"
