"""drf exec: a command inside a running job, as the job's user, within its limits, until its end."""

from __future__ import annotations

import os
import pwd
import signal
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drfd.payload.pack import encode
from drfd.payload.signature import digest_of, exec_digest, proof_of
from emulator import Emulator
from instance import BIN, CONFIG, Accounts, Instance, delete_account, is_alive, wait_for
from system.test_signatures import ask, home_for, key_of

pytestmark = pytest.mark.system

DRF = BIN / "drf"
#: What a process is, as far as it must be the same in the job and in a command inside it.
SELF = (
    "id; pwd; umask; ulimit -a; cat /proc/self/oom_score_adj /proc/self/cgroup;"
    " grep -E '^(Cap|NoNewPrivs|Seccomp|Groups|Cpus_allowed_list|SigIgn|SigBlk)' /proc/self/status;"
    " cat /proc/self/timerslack_ns; nice; readlink /proc/self/ns/pid;"
    " env | grep -vE '^(_|SHLVL|TERM)=' | sort"
)

#: HOME: root's own settings are not for other users.
ENV = {"MARK": "ü", "PATH": "/usr/bin:/bin", "HOME": "/"}


def running(instance: Instance, user: pwd.struct_passwd, script: str, *options: object) -> int:
    home = home_for(instance, user)
    options = options or ("-m", "64M")
    words = (*options, "-o", "out", "-e", "err", "--", "sh", "-c", script)
    job = instance.submit(*words, user=user.pw_uid, cwd=home, env=ENV)
    instance.wait_state(job, "RUNNING")
    return job


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
        [str(DRF), "exec", str(job), "--", "sh", "-c", script],
        user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/",
        env={**os.environ, **ENV, "DRFD_SOCKET": str(instance.socket)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def pid_written(path: Path) -> int:
    return int(wait_for("its pid", lambda: path.exists() and path.read_text().strip()))


def test_it_is_what_the_job_is(instance: Instance, users: Accounts) -> None:
    """User, groups, directory, variables, cgroup, limits, capabilities: all the same."""
    user = users[0]
    job = running(instance, user, f"{{ {SELF}; }} > mine; echo > ready; exec sleep 1000")
    home = home_for(instance, user)
    wait_for("the job's own words", (home / "ready").exists)
    done = inside(instance, user, job, "sh", "-c", SELF, env={"MARK": "not this"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (home / "mine").read_text()
    assert f"job-{job}-1" in done.stdout
    assert "MARK=ü\n" in done.stdout


def test_its_end_is_the_commands(instance: Instance, users: Accounts) -> None:
    job = running(instance, users[0], "exec sleep 1000")
    script = "cat; echo err >&2; exit 7"
    done = inside(instance, users[0], job, "sh", "-c", script, input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\n", "err\n")
    assert inside(instance, users[0], job, "sh", "-c", "kill $$").returncode == 128 + 15
    done = inside(instance, users[0], job, "nosuchcommand")
    assert (done.returncode, done.stdout) == (1, "")
    why = f"not run inside job {job}: there is no command nosuchcommand in the job's PATH"
    assert done.stderr == f"drf: {why}\n"
    assert instance.show(job)["state"] == "RUNNING"


def test_on_a_terminal_it_is_a_shell_of_the_users(instance: Instance, users: Accounts) -> None:
    user = users[0]
    job = running(instance, user, "exec sleep 1000")
    terminal = Emulator(
        DRF, "exec", job, "--", "sh", cwd="/",
        env={**os.environ, **ENV, "DRFD_SOCKET": str(instance.socket)},
        user=user.pw_uid, group=user.pw_gid, extra_groups=[],
    )  # fmt: skip
    try:
        terminal.sees("$")
        terminal.type(b"id -un; stty size; stat -c %U $(tty)\r")
        terminal.sees(f"{user.pw_name}\n24 80\n{user.pw_name}")
        terminal.type(b"\r~d")
        terminal.sees("cannot be detached")
        terminal.type(b"exit 4\r")
        assert terminal.ends() == 4
        assert terminal.modes() == terminal.modes_before
    finally:
        terminal.close()
    usual = inside(instance, user, job, input="id -un; exit 3\n", env={"SHELL": "/nosuch"})
    assert (usual.returncode, usual.stdout) == (3, f"{user.pw_name}\n")


def test_nobody_else_may_not_even_an_administrator(instance: Instance, users: Accounts) -> None:
    owner, other = users
    job = running(instance, owner, "exec sleep 1000")
    text = f"job {job} belongs to {owner.pw_name}"
    for who in (other, pwd.getpwuid(0)):
        done = inside(instance, who, job, "touch", home_for(instance, owner) / "seen")
        assert (done.returncode, text in done.stderr) == (77, True)
    assert not (home_for(instance, owner) / "seen").exists()


def test_only_a_running_job_has_an_inside(instance: Instance, users: Accounts) -> None:
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
    home = home_for(instance, user)
    held = instance.submit("--hold", "--", "true", user=user.pw_uid, cwd=home, env=ENV)
    assert "does not run yet" in inside(instance, user, held, "true").stderr
    array = instance.submit(
        "--array", "1-2", "--hold", "--", "true", user=user.pw_uid, cwd=home, env=ENV
    )
    assert "is an array" in inside(instance, user, array, "true").stderr
    assert "no job 4711" in inside(instance, user, 4711, "true").stderr


def test_the_job_ends_with_its_own_process_and_takes_it_along(
    instance: Instance, users: Accounts
) -> None:
    user = users[0]
    home = home_for(instance, user)
    job = running(instance, user, "while ! [ -e go ]; do sleep 0.05; done; exit 5")
    command = begin(instance, user, job, "echo $$ > pid; trap '' TERM HUP; sleep 1000 & wait")
    pid = pid_written(home / "pid")
    (home / "go").touch()
    os.chown(home / "go", user.pw_uid, user.pw_gid)
    assert instance.wait_end(job)["exit_code"] == 5
    _, said = command.communicate(timeout=60)
    assert command.returncode == 128 + signal.SIGKILL
    assert said == f"drf: job {job} has ended (FAILED), and the command was killed with it\n"
    assert not is_alive(pid)


def test_its_memory_is_the_jobs(instance: Instance, users: Accounts) -> None:
    job = running(instance, users[0], "exec sleep 1000", "-m", "64M")
    hog = "b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    done = inside(instance, users[0], job, sys.executable, "-I", "-c", hog)
    assert done.returncode == 128 + signal.SIGKILL
    assert f"job {job} has ended (OUT_OF_MEMORY), and the command was killed with it" in done.stderr
    assert instance.wait_end(job)["outcome"]["code"] == "OUT_OF_MEMORY"


@pytest.mark.anew
def test_daemons_may_die_beside_it(instance: Instance, users: Accounts) -> None:
    user = users[0]
    home = home_for(instance, user)
    job = running(instance, user, "exec sleep 1000")
    script = "echo $$ > pid; while ! [ -e go ]; do sleep 0.05; done; echo done; exit 6"
    command = begin(instance, user, job, script)
    pid_written(home / "pid")
    instance.kill_launcher()
    instance.kill()
    instance.start()
    (home / "go").touch()
    said, _ = command.communicate(timeout=60)
    assert (command.returncode, said) == (6, "done\n")
    assert inside(instance, user, job, "true").returncode == 0


def test_without_its_client_it_is_hung_up(instance: Instance, users: Accounts) -> None:
    user = users[0]
    home = home_for(instance, user)
    job = running(instance, user, "exec sleep 1000")
    command = begin(instance, user, job, "echo $$ > pid; trap '' HUP; sleep 1000")
    pid = pid_written(home / "pid")
    command.kill()
    command.communicate()
    wait_for("its end", lambda: not is_alive(pid))
    assert instance.show(job)["state"] == "RUNNING"


def test_a_signal_to_drf_is_one_to_the_command(instance: Instance, users: Accounts) -> None:
    user = users[0]
    home = home_for(instance, user)
    job = running(instance, user, "exec sleep 1000")
    command = begin(
        instance, user, job, "trap 'exit 9' INT; echo $$ > pid; while :; do sleep .1; done"
    )
    pid_written(home / "pid")
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)
    assert command.returncode == 9


def test_there_are_not_more_than_sixteen_of_a_user(instance: Instance, users: Accounts) -> None:
    job = running(instance, users[0], "exec sleep 1000")
    home = home_for(instance, users[0])
    ones = [
        begin(instance, users[0], job, f"echo $$ > pid{number}; exec sleep 1000")
        for number in range(16)
    ]
    try:
        for number in range(16):
            pid_written(home / f"pid{number}")
        assert "16 commands" in inside(instance, users[0], job, "true").stderr
    finally:
        for one in ones:
            one.kill()
            one.communicate()
    wait_for("room", lambda: inside(instance, users[0], job, "true").returncode == 0)


def test_it_is_in_the_jobs_private_space(lend: Callable[[str], Instance], users: Accounts) -> None:
    instance = lend(f"{CONFIG}private_tmp = true\n")
    user = users[0]
    words = ("-o", "/dev/null", "-e", "/dev/null", "--", "sh", "-c")
    script = "echo secret > /tmp/mine; exec sleep 1000"
    job = instance.submit(*words, script, user=user.pw_uid, cwd="/", env=ENV)
    instance.wait_state(job, "RUNNING")
    wait_for("its file", lambda: inside(instance, user, job, "cat", "/tmp/mine").stdout)
    assert inside(instance, user, job, "cat", "/tmp/mine").stdout == "secret\n"
    assert not Path("/tmp/mine").exists()


# -- signatures ----------------------------------------------------------------------------------


@pytest.fixture
def apart() -> Iterator[Instance]:
    """A daemon whose controller has an account of its own."""
    name = f"drfdt{os.getpid()}c"
    subprocess.run(["useradd", "--no-create-home", "--no-log-init", name], check=True)
    instance = Instance(f'{CONFIG}\n[daemon]\nuser = "{name}"\n')
    instance.as_root = False
    try:
        yield instance.start()
    finally:
        instance.destroy()
        delete_account(name)


def test_what_the_owner_has_not_signed_for_this_attempt_does_not_run(
    apart: Instance, users: Accounts
) -> None:
    owner, other = users
    job = running(apart, owner, "exec sleep 1000")
    home = home_for(apart, owner)
    assert inside(apart, owner, job, "id", "-un").stdout == f"{owner.pw_name}\n"
    key, false_key = key_of(apart, owner), key_of(apart, other)

    def words(*argv: str) -> bytes:
        return encode(
            argv=argv, cwd="", umask=0, stdout="", stderr="", env={}, script=None,
            attach=str(home / "nowhere"), notify=(),
        )  # fmt: skip

    command = words("touch", str(home / "seen"))
    forgeries = {
        "another's key": proof_of(false_key, exec_digest(job, 1, command)),
        "another command": proof_of(key, exec_digest(job, 1, words("true"))),
        "another job": proof_of(key, exec_digest(job + 1, 1, command)),
        "another attempt": proof_of(key, exec_digest(job, 2, command)),
        "a submission": proof_of(key, digest_of(command)),
    }
    request = {
        "op": "exec",
        "v": 1,
        "id": job,
        "attempt": 1,
        "command": b64encode(command).decode(),
    }
    for name, proof in forgeries.items():
        error: Any = ask(apart, owner, {**request, "proof": proof})["error"]
        assert error["code"] == "not-begun" and "not signed" in error["text"], name
    unsigned: Any = ask(apart, owner, request)["error"]
    assert unsigned["code"] == "not-signed"
    # The true signature is taken, and then only the client is missing.
    true = ask(apart, owner, {**request, "proof": proof_of(key, exec_digest(job, 1, command))})
    gone: Any = true["error"]
    assert "the terminal that waited for this job is gone" in gone["text"]
    assert not (home / "seen").exists()


def test_it_never_gets_what_its_owner_signed_for_another_job(
    apart: Instance, users: Accounts
) -> None:
    """The two jobs differ in a variable, which somebody exchanges in the queue's journal."""
    owner = users[0]
    home = home_for(apart, owner)
    words = ("-m", "64M", "-o", "out", "-e", "err", "-n", "same", "--", "sleep", "1000")
    jobs = []
    for mark in ("one", "two"):
        jobs.append(apart.submit(*words, user=owner.pw_uid, cwd=home, env={**ENV, "MARK": mark}))
        apart.wait_state(jobs[-1], "RUNNING")
    assert inside(apart, owner, jobs[0], "sh", "-c", "echo $MARK").stdout == "one\n"
    apart.stop()
    with closing(sqlite3.connect(apart.state / "controller" / "journal.sqlite")) as db:
        rows = dict(db.execute("select job_id, data from payloads"))
        for one, other in (jobs, reversed(jobs)):
            db.execute("update payloads set data = ? where job_id = ?", (rows[one], other))
        db.commit()
    apart.start()
    for job in jobs:
        done = inside(apart, owner, job, "touch", str(home / "seen"))
        assert (done.returncode, "submitted for another job" in done.stderr) == (1, True)
    assert not (home / "seen").exists()
