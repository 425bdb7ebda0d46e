"""Where the controller is not root, a job runs only if its user has asked for just that; and what
the controller and the process that waits for a job can still do, without root's rights."""

import json
import os
import pwd
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher.runner.starter import program
from drfd.payload.pack import of_request
from drfd.payload.signature import digest_of, exec_digest, key_file_name, proof_of
from instance import (
    CONFIG,
    Instance,
    add_account,
    children_of,
    delete_account,
    patient,
    stat_of,
    status_of,
    wait_for,
)
from kernel_calls import leased

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def controller() -> Iterator[pwd.struct_passwd]:
    """The account that the controller runs as."""
    account = add_account(f"drfdt{os.getpid()}c")
    yield account
    delete_account(account.pw_name)


@pytest.fixture(scope="module")
def idle(controller) -> Iterator[dict[str, Instance]]:
    """As elsewhere; all of them are gone before the account."""
    found: dict[str, Instance] = {}
    yield found
    for instance in found.values():
        instance.destroy()


@pytest.fixture
def instance(lend, controller) -> Instance:
    return lend(f'{CONFIG}\n[daemon]\nuser = "{controller.pw_name}"\n')


def ask(
    instance: Instance, user: pwd.struct_passwd, request: dict[str, object]
) -> dict[str, object]:
    """One request, as this user."""
    code = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(sys.argv[2].encode() + b'\\n'); print(s.makefile().readline())"
    )
    command = [sys.executable, "-I", "-c", code, str(instance.socket), json.dumps(request)]
    done = subprocess.run(
        command, user=user.pw_uid, group=user.pw_gid, capture_output=True, check=True
    )
    return dict(json.loads(done.stdout))


def key_of(instance: Instance, user: pwd.struct_passwd) -> bytes:
    """As that user gets it."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from drfd.client.connection import Connection\n"
        "print(Connection(sys.argv[2]).fetch_key().hex())"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, root, str(instance.socket)],
        user=user.pw_uid, group=user.pw_gid, capture_output=True, check=True,
    )  # fmt: skip
    return bytes.fromhex(done.stdout.decode())


def job(home: Path, *argv: str) -> dict[str, object]:
    return {"op": "submit", "v": 1, "argv": list(argv), "cwd": str(home), "stdout": "out"}


def signed(key: bytes, fields: dict[str, object]) -> dict[str, object]:
    return {**fields, "proof": proof_of(key, digest_of(of_request(fields)))}


def test_what_users_submit_runs_in_every_way(instance, users):
    """The short way of drf, the whole one, arrays, and the command that tells of an end."""
    for user in users:
        home = instance.home_for(user)
        options = {"user": user.pw_uid, "cwd": home, "env": {"MARK": "ü"}}
        plain = instance.submit("-o", "plain", "--", "sh", "-c", "id -un; echo $MARK", **options)
        tell = ("--notify", "end", "--notify-command", "echo $DRF_STATE $DRF_STDOUT > told")
        whole = instance.submit(*tell, "-o", "%x", "-n", "whole", "--", "true", **options)
        array = instance.submit(
            "--array", "3-4", "--", "sh", "-c", "echo $DRF_ARRAY_INDEX", **options
        )
        for number in (plain, whole, array + 1, array + 2):
            assert instance.wait_end(number)["state"] == "COMPLETED"
        assert (home / "plain").read_text() == f"{user.pw_name}\nü\n"
        assert (home / f"drf-{array}_4.out").read_text() == "4\n"
        wait_for("the notice", (home / "told").exists)
        assert (home / "told").read_text() == f"COMPLETED {home}/whole\n"


def test_a_user_signs_again_only_what_was_signed(instance, users):
    """drf retry takes environment and script from the daemon, which may have been taken over."""
    alice = users[0]
    home = instance.home_for(alice)
    (home / "job.sh").write_text('#!/bin/sh\necho "$WHAT"\nexit 3\n')

    def drf(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
        return instance.drf(*words, user=alice.pw_uid, cwd=home, env=env, check=False)

    first = int(drf("submit", "-q", "-m", "64M", "job.sh", WHAT="then").stdout)
    array = int(drf("submit", "-q", "-m", "64M", "--array", "1-2", "--", "false").stdout)
    for job_id in (first, array):
        drf("wait", job_id)
    again = drf("retry", "-q", first, f"{array}_2", "--with", "-m 96M", WHAT="now")
    assert again.stderr == ""
    jobs = [int(line) for line in again.stdout.splitlines()]
    ended = drf("wait", *jobs).stdout
    assert ended.count(" FAILED: ") == 2, "they were started"
    assert drf("log", jobs[0]).stdout == "then\n"
    refused = instance.drf("retry", first, check=False)
    assert f"belongs to {alice.pw_name}, who alone may submit it again" in refused.stderr
    assert refused.returncode == 77
    instance.stop()
    with closing(sqlite3.connect(instance.state / "controller" / "journal.sqlite")) as db:
        [(blob, data)] = db.execute(
            "select blob_data.id, data from submissions join blob_data on id = blob"
            " where job_id = ?",
            (first,),
        ).fetchall()
        changed = data.replace(b"then", b"evil")
        assert changed != data
        db.execute("update blob_data set data = ? where id = ?", (changed, blob))
        db.commit()
    instance.start()
    refused = drf("retry", first)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"what drfd has kept of job {first} is not what you have signed" in refused.stderr


def test_a_submission_without_signature_is_refused(instance, users):
    reply = ask(instance, users[0], job(instance.home_for(users[0]), "true"))
    assert reply["ok"] is False
    error = reply["error"]
    assert isinstance(error, dict)
    assert error["code"] == "not-signed" and "drf doctor" in error["hint"]


def test_what_another_has_signed_does_not_run(instance, users):
    user, other = users
    home = instance.home_for(user)
    asked = job(home, "touch", "ran")
    forgeries = {
        "another's key": signed(key_of(instance, other), asked),
        "another command": signed(key_of(instance, user), job(home, "true"))
        | {"argv": ["touch", "ran"]},
        "no key at all": {**asked, "proof": "0" * 64},
    }
    for name, forged in forgeries.items():
        job_id = ask(instance, user, forged)["id"]
        assert isinstance(job_id, int), name
        ended = instance.wait_end(job_id)
        assert ended["state"] == "LAUNCH_FAILED", name
        assert "not signed by its user" in ended["outcome"]["text"]
    assert not (home / "ran").exists()


def test_who_has_the_controllers_uid_cannot_run_anything_as_somebody_else(
    instance, users, controller
):
    """The launcher took its word for who asked: it could run any command as any user."""
    home = instance.home_for(users[0])
    code = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from drfd.launcher.protocol import AttemptLimits, LaunchOrder, encode
from drfd.payload.pack import of_request
from drfd.linux.sealed import seal
uid, user, home = int(sys.argv[3]), sys.argv[4], sys.argv[5]
limits = AttemptLimits(cores_milli=100, memory_bytes=1 << 26, pids=10)
def order(number, proof, variables):
    return LaunchOrder(
        id=number, attempt=1, uid=uid, user=user, journal="0" * 32, submitted_us=1, gid=uid,
        array_id=0, array_index=0, name="x", threads=1, variables=variables, hidden=(),
        limits=limits, proof=proof,
    )
data = of_request({
    "argv": ["touch", "ran"], "cwd": home, "umask": 0, "stdout": "/dev/null",
    "stderr": "/dev/null",
})
def say(*orders, sealed=True):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(sys.argv[2])
        for each in orders:
            fd = seal(data) if sealed else os.memfd_create("x")
            socket.send_fds(line, [encode(each)], [fd])
        line.shutdown(socket.SHUT_WR)
        print(line.makefile().read())
say(order(91, None, {}), order(92, "0" * 64, {}))
say(order(93, None, {"LD_PRELOAD": "/tmp/evil.so"}))
say(order(94, None, {}), sealed=False)
"""
    instance.stop_with_launcher()
    # As the controller would start it: the launcher alone.
    end, ours = os.pipe()
    room = instance.state / "launcher"
    config = room / "drfd.toml"
    config.write_text("[enforcement]\ncgroups = false\n")
    words = ["--state", str(room), "--controller", controller.pw_name, "--config", str(config)]
    launcher = subprocess.Popen(
        [sys.executable, "-I", "-m", "drfd.launcher", *words, "--keep-fd", str(end)],
        pass_fds=(end,), stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(end)
    try:
        door = room / "launcher.sock"
        wait_for("a launcher", lambda: _answers(door))
        user = users[0]
        said = subprocess.run(
            [
                *(sys.executable, "-I", "-c", code, str(Path(__file__).parents[2]), str(door)),
                *(str(user.pw_uid), user.pw_name, str(home)),
            ],
            user=controller.pw_uid, group=controller.pw_gid, capture_output=True, check=True,
            text=True,
        ).stdout  # fmt: skip
    finally:
        os.close(ours)
        _, log = launcher.communicate(timeout=60)
    failed = [json.loads(line) for line in said.split("\n") if '"launch_failed"' in line]
    assert [each["id"] for each in failed] == [91, 92]
    assert all("not signed by its user" in each["text"] for each in failed)
    assert b"no variable of drfd's" in log
    assert b"can still be changed" in log
    assert not (home / "ran").exists()


def _answers(door: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(door))
            return b"hello" in line.recv(1 << 16)
    except OSError:
        return False


def test_a_key_is_its_owners_alone(instance, users, controller):
    """Nobody else reads, lists, replaces or removes one, and nobody but root the secret."""
    keys = {key_of(instance, user) for user in (*users, controller)}
    assert len(keys) == 3
    room = instance.state / "launcher"
    secret = (room / "secret").stat()
    assert (secret.st_uid, secret.st_mode & 0o777) == (0, 0o600)
    owner, other = users
    attempts = """
import os, sys
room, own, other = sys.argv[1:]
print(len(open(own, "rb").read()))
for attempt in (
    lambda: open(other), lambda: open(f"{room}/secret"), lambda: os.listdir(f"{room}/keys"),
    lambda: os.remove(own), lambda: os.rename(own, other), lambda: os.link(own, other + "x"),
    lambda: open(f"{room}/keys/{os.getuid()}-x", "x"), lambda: os.rmdir(f"{room}/keys"),
):
    try:
        print(attempt())
    except PermissionError:
        continue
"""
    files = [room / "keys" / key_file_name(each.pw_uid, each.pw_name) for each in users]
    for who, arguments in ((owner, files), (other, files[::-1])):
        done = subprocess.run(
            [sys.executable, "-I", "-c", attempts, str(room), *map(str, arguments)],
            user=who.pw_uid, group=who.pw_gid, extra_groups=[], capture_output=True, text=True,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("32\n", "")


def test_a_key_outlives_its_file_and_the_launcher(instance, users):
    """What was signed before still starts."""
    key = key_of(instance, users[0])
    (file,) = (instance.state / "launcher" / "keys").glob(f"{users[0].pw_uid}-*")
    file.unlink()
    assert key_of(instance, users[0]) == key
    instance.strike("launcher")
    assert key_of(instance, users[0]) == key


def test_the_next_owner_of_a_uid_has_another_key(instance, users):
    """The old owner's is no use for it: by then the uid has another name."""
    names = [f"drfdt{os.getpid()}{each}" for each in "gh"]
    old = add_account(names[0])
    try:
        keys = [key_of(instance, old)]
    finally:
        delete_account(names[0])
    new = add_account(names[1], "-u", str(old.pw_uid))
    try:
        keys.append(key_of(instance, new))
        assert keys[0] != keys[1]
        home = instance.home_for(new)
        options = {"user": new.pw_uid, "cwd": home}
        assert instance.wait_end(instance.submit("--", "true", **options))["state"] == "COMPLETED"
        reply = ask(instance, new, signed(keys[0], job(home, "touch", "ran")))
        ended = instance.wait_end(int(str(reply["id"])))
        assert (ended["state"], (home / "ran").exists()) == ("LAUNCH_FAILED", False)
        files = os.listdir(instance.state / "launcher" / "keys")
        own = [name for name in files if name.startswith(f"{new.pw_uid}-")]
        assert own == [key_file_name(new.pw_uid, new.pw_name)]
    finally:
        delete_account(names[1])


def test_no_root_process_holds_what_a_user_has_written(instance, users):
    """The launcher and each runner parsed arguments, environment and script of every user."""
    user = users[0]
    home = instance.home_for(user)
    mark = f"mark-{os.getpid()}-of-the-user"
    instance.running("--", "sleep", "1000", user=user.pw_uid, cwd=home, env={"MARK": mark})
    launcher = instance.launcher_pid()
    children = children_of(launcher)
    assert children, "the runner"
    for pid in [launcher, *children]:
        assert mark.encode() not in memory_of(pid), pid
    assert instance.process is not None
    assert mark.encode() in memory_of(instance.process.pid), "else this proves nothing"


def memory_of(pid: int) -> bytes:
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if "rw" not in rights:
                continue
            low, high = (int(each, 16) for each in span.split("-"))
            try:
                memory.seek(low)
                found.append(memory.read(high - low))
            except OSError:
                continue
    return b"".join(found)


# -- commands inside a job (test_exec.py) -----------------------------------------------------

WAITING = ("-m", "64M", "-o", "out", "-e", "err", "--", "sleep", "1000")
#: HOME: root's own settings are not for other users.
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/"}


def inside(
    instance: Instance, user: pwd.struct_passwd, job: int, *words: object
) -> subprocess.CompletedProcess[str]:
    asked = ("exec", job, "--", *words)
    return instance.drf(*asked, user=user.pw_uid, cwd="/", check=False, env=ENV)


def test_a_process_that_its_user_has_not_signed_for_this_attempt_is_not_moved(instance, users):
    """The controller could put any process of a user's into the user's job, and kill it there."""
    owner, other = users
    home = instance.home_for(owner)
    shown = instance.running(*WAITING, user=owner.pw_uid, cwd=home, env=ENV)
    job, at_us = int(shown["id"]), round(shown["submitted_at"] * 1e6)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert inside(instance, owner, job, "id", "-un").stdout == f"{owner.pw_name}\n"
    key, false_key = key_of(instance, owner), key_of(instance, other)
    with sleeping(owner) as own, sleeping(owner) as second, sleeping(other) as foreign:
        forgeries = {
            "another's key": proof_of(false_key, exec_digest(job, 1, at_us, *own, boot)),
            "another process": proof_of(key, exec_digest(job, 1, at_us, *second, boot)),
            "another job": proof_of(key, exec_digest(job + 1, 1, at_us, *own, boot)),
            "another attempt": proof_of(key, exec_digest(job, 2, at_us, *own, boot)),
            "another journal's job": proof_of(key, exec_digest(job, 1, at_us + 1, *own, boot)),
            "another boot's process": proof_of(key, exec_digest(job, 1, at_us, *own, boot[::-1])),
            "a submission": proof_of(key, digest_of(b"%d" % own[0])),
        }
        for name, proof in forgeries.items():
            assert "not signed" in asked_to_move(instance, owner, job, own, proof), name
        assert asked_to_move(instance, owner, job, own, None) == "not-signed"
        # Signed, and yet not the owner's: another user's, root's, and one that has the pid now.
        for process in (foreign, (1, int(stat_of(1)[19])), (own[0], own[1] + 1)):
            proof = proof_of(key, exec_digest(job, 1, at_us, *process, boot))
            said = asked_to_move(instance, owner, job, process, proof)
            assert "not one of its user's" in said, process
        for pid in (own[0], second[0], foreign[0], 1):
            assert f"/job-{job}-1" not in Path(f"/proc/{pid}/cgroup").read_text()
        proof = proof_of(key, exec_digest(job, 1, at_us, *own, boot))
        assert asked_to_move(instance, owner, job, own, proof) == ""
        cgroup = Path(f"/proc/{own[0]}/cgroup").read_text()
        assert f"/job-{job}-1" in cgroup
        # It was no drf, which takes over limits by itself: this one bounds all of its user's.
        limits = {
            line
            for each in Path("/proc").glob("[0-9]*/cgroup")
            if each.read_text() == cgroup
            for line in each.with_name("limits").read_text().splitlines()
            if line.startswith("Max processes")
        }
        with suppress(PermissionError):
            resource.prlimit(own[0], resource.RLIMIT_NPROC)
            assert len(limits) == 1


@contextmanager
def sleeping(user: pwd.struct_passwd) -> Iterator[tuple[int, int]]:
    """A process of this user's outside all jobs: pid and start."""
    process = subprocess.Popen(["sleep", "1000"], user=user.pw_uid, group=user.pw_gid)
    try:
        yield process.pid, int(stat_of(process.pid)[19])
    finally:
        process.kill()
        process.wait()


def asked_to_move(
    instance: Instance, user: pwd.struct_passwd, job: int, process: tuple[int, int],
    proof: str | None,
) -> str:  # fmt: skip
    """Why it is not moved."""
    pid, start_ticks = process
    fields = {"id": job, "attempt": 1, "pid": pid, "start_ticks": start_ticks, "proof": proof}
    reply: Any = ask(instance, user, {"op": "exec", "v": 1, **fields})
    if reply["ok"]:
        return ""
    error = reply["error"]
    return str(error["text"] if error["code"] == "not-begun" else error["code"])


# -- what the controller's user may do: nothing that the launcher does --------------------------


@pytest.fixture
def dropped(lend, users) -> Instance:
    return lend(f'{CONFIG}[daemon]\nuser = "{users[0].pw_name}"\n')


def test_the_controller_is_a_process_of_that_user(dropped, users):
    assert dropped.process is not None
    status = status_of(dropped.process.pid)
    assert set(status["Uid"].split()) == {str(users[0].pw_uid)}
    assert set(status["Gid"].split()) == {str(users[0].pw_gid)}
    assert status["Groups"] == ""
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert set(status_of(dropped.launcher_pid())["Uid"].split()) == {"0"}


def test_it_has_no_way_back_to_the_launchers_files(dropped, users):
    """The state directory stays root's, so the two rooms cannot be exchanged."""
    owners = {path: path.stat().st_uid for path in (dropped.state, dropped.state / "launcher")}
    assert set(owners.values()) == {0}
    assert (dropped.state / "controller").stat().st_uid == users[0].pw_uid
    for path in (dropped.state / "controller").iterdir():
        assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (users[0].pw_uid, 0)


def test_jobs_run_as_their_users_and_survive_the_death_of_both(dropped, users):
    home = dropped.home_for(users[1])
    script = "id -u; while ! [ -e gate ]; do sleep 0.05; done; exit 6"
    job_id = dropped.running("--", "sh", "-c", script, user=users[1].pw_uid, cwd=home)["id"]
    launcher = dropped.launcher_pid()
    os.kill(launcher, signal.SIGKILL)
    wait_for(
        "a launcher that root's supervisor started", lambda: dropped.launcher_pid() != launcher
    )
    dropped.strike("controller")
    (home / "gate").touch()
    job = dropped.wait_end(job_id)
    assert (job["exit_code"], dropped.output(job_id)) == (6, f"{users[1].pw_uid}\n")


def test_a_user_that_does_not_exist_is_a_configuration_error(make_instance):
    instance = make_instance(CONFIG + '[daemon]\nuser = "no-such-user"\n')
    instance.launch()
    assert instance.process is not None
    assert instance.process.wait(patient(120)) == 78
    assert "daemon.user: there is no user no-such-user" in instance.log.read_text()


def test_root_follows_no_link_out_of_the_controllers_room(dropped, users):
    """A controller that was taken over must not become root at the next start."""
    victim = dropped.root / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    dropped.stop()
    room = dropped.state / "controller"
    for name in ("x", "journal.sqlite-wal"):
        (room / name).unlink(missing_ok=True)
        (room / name).symlink_to(victim)
    dropped.launch()
    assert dropped.process is not None
    wait_for("its end or its answer", lambda: dropped.is_dead() or dropped.answers())
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o600)
    assert victim.read_text() == "precious"


def test_it_works_whatever_the_umask_of_whoever_starts_it(make_instance, users):
    instance = make_instance(f'{CONFIG}[daemon]\nuser = "{users[0].pw_name}"\n')
    before = os.umask(0o077)
    try:
        instance.start()
    finally:
        os.umask(before)
    home = instance.home_for(users[1])
    job_id = instance.submit("--", "true", user=users[1].pw_uid, cwd=home)
    assert instance.wait_end(job_id)["state"] == "COMPLETED"


def test_nobody_runs_the_controller_as_root_by_accident(make_instance):
    """It reads what every user sends. A warning is easily missed in a log."""
    instance = make_instance()
    # No user drfd can come in here, where there is one.
    closed = instance.root / "closed"
    closed.mkdir(mode=0o700)
    instance.state = closed / "state"
    instance.as_root = False
    instance.launch()
    assert instance.process is not None
    assert instance.process.wait(patient(120)) == 78
    text = instance.log.read_text()
    assert text.startswith("drfd: the controller would run as root: ")
    assert text.count("\n") == 1
    for cure in ("daemon.user", "--as-root"):
        assert cure in text
    instance.as_root = True
    instance.start()
    assert status_of(instance.process.pid)["Uid"].split()[0] == "0"
    assert "warning: the controller runs as root" in instance.log.read_text()


# -- root's process that waits for a job ------------------------------------------------------


@pytest.fixture
def home(instance, users) -> Path:
    return instance.home_for(users[0])


def restricted_runner(home: Path) -> int:
    """The runner, named in the file `runner`, once it has dropped its privileges."""
    pid = int(wait_for("the runner's pid", lambda: (home / "runner").exists()
                       and (home / "runner").read_text()))  # fmt: skip
    wait_for("a runner without privileges", lambda: status_of(pid)["Seccomp"] == "2")
    return pid


def test_the_process_that_waits_for_a_notification_can_do_no_more(instance, users, home):
    """It had all of root's rights beside the user's command, for half a minute."""
    command = "echo $PPID > runner; until [ -e go ]; do sleep 0.05; done"
    words = ("--notify", "end", "--notify-command", command, "--", "true")
    job_id = instance.submit(*words, user=users[0].pw_uid, cwd=home)
    status = status_of(restricted_runner(home))
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert {status["CapEff"], status["CapPrm"]} == {f"{1 << program.KILL:016x}"}
    (home / "go").touch()
    [text] = [
        each["text"] for each in instance.wait_end(job_id)["events"] if each["event"] == "Cleaned"
    ]
    assert text == "notification told"


def test_nor_does_the_one_that_is_to_tell_of_a_start_while_the_user_delays_that(
    instance, users, home
):
    """The user decides how long the exec takes, by a file system of the user's own for instance."""
    program_file = home / "program"
    program_file.write_text("#!/bin/sh\nexec sleep 600\n")
    program_file.chmod(0o755)
    words = ("--notify", "start", "--notify-command", "echo $DRF_STATE > told", "--", program_file)
    with leased(program_file) as is_opened:
        job_id = instance.submit(*map(str, words), user=users[0].pw_uid, cwd=home)
        wait_for("the exec", is_opened)
        text = Path(instance.state, "launcher", "attempts", f"{job_id}.1").read_text()
        records = [json.loads(line) for line in filter(None, text.splitlines())]
        (runner,) = [each["pid"] for each in records if each["record"] == "runner"]
        assert status_of(runner)["Seccomp"] == "2"
        assert not (home / "told").exists()
    wait_for("the notification", lambda: (home / "told").exists() and (home / "told").read_text())
    assert (home / "told").read_text() == "RUNNING\n"
