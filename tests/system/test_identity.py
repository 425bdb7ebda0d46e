"""Jobs run as who submitted them, with all of that and nothing of root, and others have no power:
also when a journal was restored or begun anew, an account was replaced, or the user directory is
slow or does not run, which a module of the C library's name service plays."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from drfd.client.connection import Connection
from drfd.common.errors import DrfdError, Unavailable
from drfd.linux import own_process
from instance import CONFIG, Instance, add_account, delete_account, is_alive, patient, wait_for

pytestmark = pytest.mark.system

#: A job that tells all about itself.
PROBE = r"""
import json, os, resource, signal, sys
status = dict(line.split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
print(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": sorted(os.getgroups()),
    "caps": status["CapEff"].strip(), "umask": oct(os.umask(0)), "cwd": os.getcwd(),
    "env": dict(os.environ), "fds": sorted(os.listdir("/proc/self/fd")),
    "blocked": status["SigBlk"].strip(),
    "session": os.getsid(0) == os.getpid(), "oom": open("/proc/self/oom_score_adj").read().strip(),
    "stdin": os.readlink("/proc/self/fd/0"),
}))
"""


def probe(instance: Instance, user: pwd.struct_passwd, home: Path, umask: int) -> dict:
    job_id = instance.submit(
        *("--", "/usr/bin/python3", "-c", PROBE),
        user=user.pw_uid,
        cwd=home,
        umask=umask,
        env={"MARK": user.pw_name, "HOME": "/nonsense", "SOME_TOKEN": "x", "SSH_TTY": "y"},
    )
    job = instance.wait_end(job_id)
    assert job["state"] == "COMPLETED", job
    output = Path(job["stdout"])
    assert output.stat().st_uid == user.pw_uid
    assert output.stat().st_mode & 0o777 == 0o666 & ~umask
    return {**json.loads(output.read_text()), "job": job}


def test_each_job_is_its_submitters_altogether(instance, users):
    for user, umask in zip(users, (0o027, 0o077), strict=True):
        home = instance.home_for(user)
        seen = probe(instance, user, home, umask)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        assert seen["job"]["uid"] == user.pw_uid
        assert seen["uids"] == [user.pw_uid] * 3
        assert seen["gids"] == [user.pw_gid] * 3
        assert seen["groups"] == sorted(groups), "no group of root's, all of the user's"
        assert seen["caps"] == "0" * 16
        assert seen["umask"] == oct(umask)
        assert seen["cwd"] == str(home)
        assert seen["fds"] == ["0", "1", "2", "3"], "3 is the listing itself"
        assert seen["stdin"] == "/dev/null"
        assert int(seen["blocked"], 16) == 0
        assert seen["session"] and seen["oom"] == "0"
        env = seen["env"]
        assert env["MARK"] == env["USER"] == env["LOGNAME"] == user.pw_name
        assert env["HOME"] == user.pw_dir
        assert env["DRF_JOB_ID"] == str(seen["job"]["id"])
        assert env["DRFD_SOCKET"] == str(instance.socket)
        assert not {"SOME_TOKEN", "SSH_TTY"} & set(env)


def test_no_signal_is_ignored_that_python_or_a_service_manager_ignores(instance):
    job = instance.ended("--", "grep", "SigIgn", "/proc/self/status")
    assert int(instance.output(job["id"]).split()[1], 16) == 0


def test_the_submitters_present_group_is_kept(instance, users):
    user = users[0]
    home = instance.home_for(user)
    second = next(gid for gid in os.getgrouplist(user.pw_name, user.pw_gid) if gid != user.pw_gid)
    done = instance.drf(
        *("submit", "-q", "-w", "--", "id", "-g"), user=user.pw_uid, cwd=home, group=second
    )
    assert instance.output(int(done.stdout)).strip() == str(second)


def test_another_user_can_neither_stop_nor_read_nor_wait_for_a_job(instance, users):
    owner, other = users
    home = instance.home_for(owner)
    secret = ("--", "sh", "-c", "echo private; exec sleep 1000")
    job_id = instance.running(*secret, user=owner.pw_uid, cwd=home)["id"]
    for words in (["cancel"], ["hold"], ["release"], ["wait"], ["log"]):
        done = instance.drf(*words, job_id, user=other.pw_uid, cwd="/", check=False)
        assert done.returncode == 77, words
        assert done.stderr == f"drf: job {job_id} belongs to {owner.pw_name}\n"
        assert done.stdout == ""
    for words in (["show"], ["why"]):
        told = instance.drf(*words, job_id, user=other.pw_uid, cwd="/").stdout
        assert f"job {job_id}" in " ".join(told.split())
        assert "private" not in told
        assert str(home) not in told
    seen = json.loads(instance.drf("status", "--json", user=other.pw_uid, cwd="/").stdout)
    (job,) = seen["jobs"]
    assert (job["id"], job["user"], job["state"]) == (job_id, owner.pw_name, "RUNNING")
    assert [job[key] for key in ("argv", "cwd", "stdout", "stderr")] == [None] * 4
    instance.drf("cancel", "--all", user=other.pw_uid, cwd="/")
    assert instance.show(job_id)["state"] == "RUNNING"
    mine = instance.drf("cancel", job_id, user=owner.pw_uid, cwd="/")
    assert mine.stdout == f"cancelled job {job_id}\n"
    assert instance.wait_end(job_id)["state"] == "CANCELLED"


def test_the_state_is_closed_to_users(instance, users):
    """No environment, no attempt file and no launcher is within a user's reach."""
    instance.submit("--", "sleep", "600")
    script = f"cat {instance.state}/controller/*; cat {instance.state}/launcher/attempts/*"
    home = instance.home_for(users[0])
    words = ("submit", "-q", "-w", "-e", "/dev/null", "--", "sh", "-c", script)
    job_id = int(instance.drf(*words, user=users[0].pw_uid, cwd=home, check=False).stdout)
    assert instance.output(job_id) == ""
    for path in (instance.state / "controller").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    assert (instance.state / "launcher" / "launcher.sock").stat().st_mode & 0o077 == 0


# -- whose a process is -----------------------------------------------------------------------


def journal_files(instance: Instance) -> list[Path]:
    return sorted(instance.state.glob("controller/journal.sqlite*"))


def submit(instance: Instance, user: pwd.struct_passwd, *words: object) -> int:
    return instance.submit(*words, user=user.pw_uid, cwd=instance.home_for(user))


def strays(instance: Instance) -> list[dict[str, object]]:
    return list(json.loads(instance.drf("doctor", "--json").stdout)["strays"])


@pytest.mark.anew
@pytest.mark.parametrize("way", ["restored from a copy", "begun anew"])
def test_an_earlier_users_process_is_not_taken_for_a_new_job(instance, users, way):
    """An old journal gave a running job's id to a new one, whose end killed the other's process."""
    alice, bob = users
    instance.stop()
    kept = instance.root / "kept"
    kept.mkdir()
    for path in journal_files(instance):
        shutil.copy2(path, kept)
    instance.start()
    pid_file = instance.home_for(alice) / "pid"
    old = submit(instance, alice, "--", "sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000")
    pid = int(wait_for("a pid", lambda: pid_file.exists() and pid_file.read_text()))
    instance.stop()
    for path in journal_files(instance):
        path.unlink()
    if way == "restored from a copy":
        for path in kept.iterdir():
            shutil.copy2(path, instance.state / "controller" / path.name)
    instance.start()
    new = submit(instance, bob, "-o", "out", "--", "echo", "mine")
    assert new > old
    assert instance.wait_end(new)["state"] == "COMPLETED"
    assert (instance.home_for(bob) / "out").read_text() == "mine\n"
    instance.drf("cancel", "--all", user=bob.pw_uid, cwd="/")
    assert is_alive(pid)
    # Nothing of it changes with another restart.
    instance.kill()
    instance.start()
    (stray,) = strays(instance)
    assert (stray["id"], stray["attempt"], stray["user"]) == (old, 1, alice.pw_name)
    assert stray["is_foreign"] is (way == "begun anew")
    assert is_alive(pid)
    refused = instance.drf(
        "doctor", "--end-stray", f"{old}.1", user=bob.pw_uid, cwd="/", check=False
    )
    assert refused.returncode == 77
    assert f"drf doctor --end-stray {old}.1 ends them" in instance.drf("doctor").stdout
    assert instance.drf("doctor", "--end-stray", f"{old}.1").stdout == f"ended {old}.1\n"
    wait_for("its end", lambda: not is_alive(pid))
    wait_for("nothing left of it", lambda: not strays(instance))
    # Nor of the new one, whose file goes after its end is on record.
    wait_for("no attempt to be left", lambda: not [*instance.state.glob("launcher/attempts/*")])


def is_open(instance: Instance) -> bool:
    """The daemon takes connections, with a launcher or without."""
    try:
        return bool(instance._ask("doctor"))
    except Unavailable:
        return False


@pytest.mark.anew
def test_a_job_submitted_before_the_launcher_was_heard_does_not_get_a_strays_place(instance, users):
    """Its id is that of a running attempt; it ended as LAUNCH_FAILED, or was taken for running."""
    alice, bob = users
    pid_file = instance.home_for(alice) / "pid"
    old = submit(instance, alice, "--", "sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000")
    pid = int(wait_for("a pid", lambda: pid_file.exists() and pid_file.read_text()))
    instance.stop_with_launcher()
    for path in journal_files(instance):
        path.unlink()
    # No launcher tells of the old one before the job is there: its room is moved away until then,
    # and the launcher of another room stops before it has looked at the cgroups.
    room, away = instance.state / "launcher", instance.root / "away"
    room.rename(away)
    instance.arm("serve.before-adoption", "stop")
    instance.launch()
    stopped = instance.failpoints / "serve.before-adoption.reached"
    launcher = int(wait_for("its launcher", lambda: stopped.exists() and stopped.read_text()))
    wait_for("the door", lambda: is_open(instance))
    new = submit(instance, bob, "--hold", "-o", "out", "--", "echo", "mine")
    instance.kill()
    with suppress(ProcessLookupError):
        os.kill(launcher, signal.SIGKILL)
    if room.exists():
        shutil.rmtree(room)
    away.rename(room)
    assert new == old, "else this proves nothing"
    instance.start()
    instance.drf("release", new)
    assert instance.wait_end(new)["state"] == "COMPLETED"
    assert (instance.home_for(bob) / "out").read_text() == "mine\n"
    assert is_alive(pid)
    instance.drf("doctor", "--end-stray", f"{old}.1")
    wait_for("its end", lambda: not is_alive(pid))


@pytest.mark.anew
def test_cgroups_without_a_record_are_no_jobs_place(instance, users):
    """The first job with such an id ended as LAUNCH_FAILED: File exists."""
    alice, bob = users
    old = submit(instance, alice, "--", "sleep", "1000")
    instance.wait_state(old, "RUNNING")
    (runner,) = {
        json.loads(line)["pid"]
        for path in instance.state.glob("launcher/attempts/*")
        for line in filter(None, path.read_text().splitlines())
        if json.loads(line)["record"] == "runner"
    }
    instance.stop_with_launcher()
    os.kill(runner, 9)
    for path in [*journal_files(instance), *instance.state.glob("launcher/attempts/*")]:
        path.unlink()
    instance.start()
    new = submit(instance, bob, "--", "true")
    assert new > old
    assert instance.wait_end(new)["state"] == "COMPLETED"
    (stray,) = strays(instance)
    assert (stray["id"], stray["user"]) == (old, None)
    instance.drf("doctor", "--end-stray", f"{old}.1")
    wait_for("nothing left of it", lambda: not instance.cgroups())


#: Not one that useradd gives out by itself: who else makes an account on this machine would get it
#: between its two owners.
HEIRLOOM = 3_200_000_000 + os.getpid()


@pytest.fixture
def short_lived(open_python) -> Iterator[Callable[[str], pwd.struct_passwd]]:
    """Makes an account with that uid, in place of the one that it made before."""
    made: list[str] = []

    def make(name: str) -> pwd.struct_passwd:
        while made:
            delete_account(made.pop())
        account = add_account(name, "-u", str(HEIRLOOM))
        made.append(name)
        return account

    yield make
    while made:
        delete_account(made.pop())


@pytest.mark.anew
def test_the_job_of_a_deleted_account_is_not_its_heirs(instance, short_lived):
    """It ran as who got the uid next, and read her file; she saw and could cancel its jobs."""
    old = short_lived(f"drfdt{os.getpid()}o")
    place = instance.root / "place"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    secret = instance.root / "secret"
    words = ("--hold", "-o", place / "out", "--", "cat", secret)
    job_id = instance.submit(*words, user=old.pw_uid, cwd="/")
    new = short_lived(f"drfdt{os.getpid()}n")
    secret.write_text("hers")
    os.chown(secret, new.pw_uid, new.pw_gid)
    secret.chmod(0o600)
    for verb in ("log", "cancel", "release"):
        done = instance.drf(verb, job_id, user=new.pw_uid, cwd="/", check=False)
        assert (done.returncode, done.stdout) == (77, ""), verb
        assert old.pw_name in done.stderr
    for verb in ("show", "why"):
        # What everybody is told.
        done = instance.drf(verb, job_id, user=new.pw_uid, cwd="/")
        assert "secret" not in done.stdout and str(place) not in done.stdout
    (row,) = json.loads(instance.drf("status", "--json", user=new.pw_uid, cwd="/").stdout)["jobs"]
    assert (row["argv"], row["cwd"]) == (None, None)
    instance.drf("cancel", "--all", user=new.pw_uid, cwd="/")
    instance.drf("release", job_id)
    job = instance.wait_end(job_id)
    assert job["state"] == "LAUNCH_FAILED"
    assert job["outcome"]["text"] == f"the account {old.pw_name} no longer has uid {old.pw_uid}"
    assert not (place / "out").exists()
    hers = instance.submit("-o", place / "own", "--", "cat", secret, user=new.pw_uid, cwd=place)
    job = instance.wait_end(hers)
    assert job["state"] == "COMPLETED", job["outcome"]
    assert (place / "own").read_text() == "hers"


# -- the user directory -----------------------------------------------------------------------

with_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
#: A user of the slow directory, one who is in none, and many of a range that one user may have.
DISTANT, NOBODY, MANY = 3_000_000_100, 3_000_000_200, range(3_100_000_000, 3_100_003_000)


class Directory:
    """What the module does from now on."""

    def __init__(self, instance: Instance) -> None:
        self._file = instance.root / "directory"
        module = instance.root / "libnss_drfdtest.so.2"
        # Of the daemon's own: a mount upon one file of /etc goes when somebody replaces the file.
        etc = instance.root / "etc"
        etc.mkdir()
        for name in ("passwd", "group", "ld.so.cache", "localtime"):
            shutil.copy(Path("/etc", name), etc)
        source = Path(__file__).parent / "directory.c"
        command = ["cc", "-shared", "-fPIC", f"-DKNOWN_UID={DISTANT}u", "-o", module, source]
        subprocess.run(command, check=True)
        (etc / "nsswitch.conf").write_text("passwd: files drfdtest\n")
        (etc / "subuid").write_text(f"mallory:{MANY.start}:{len(MANY)}\n")
        mounts = f"mount --make-rprivate /; mount --bind {etc} /etc"
        instance.before = ["unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh"]
        instance.env = {"LD_LIBRARY_PATH": str(module.parent)}
        instance.env["DRFD_TEST_DIRECTORY"] = str(self._file)
        self.answers_after(0.0)

    def answers_after(self, seconds: float) -> None:
        self._file.write_text(str(round(seconds * 1000)))

    def does_not_run(self) -> None:
        self._file.write_text("-1")


@pytest.fixture
def stage(make_instance, users) -> tuple[Instance, Directory]:
    instance = make_instance()
    directory = Directory(instance)
    return instance.start(), directory


@with_compiler
def test_no_module_of_the_directory_runs_as_root(make_instance):
    """They read what a server sends, and did so beside the secret of signatures."""
    name = f"drfdt{os.getpid()}c"
    controller = add_account(name)
    try:
        instance = make_instance(f'{CONFIG}\n[daemon]\nuser = "{name}"\n')
        asked = instance.root / "directory.asked"
        asked.touch()
        asked.chmod(0o666)
        Directory(instance)
        instance.start()
        out = ("-o", "/dev/null", "-e", "/dev/null")
        done = instance.drf("submit", "-q", *out, "--", "true", **by_number(DISTANT))
        assert instance.wait_end(int(done.stdout))["state"] == "COMPLETED"
        # The user's own client, the controller, and whom root lets ask.
        uids = {DISTANT, controller.pw_uid, own_process.NOBODY}
        assert {*map(int, asked.read_text().split())} | {DISTANT} == uids
        instance.destroy()
    finally:
        delete_account(name)


def connected(instance: Instance, uid: int) -> socket.socket:
    """As that uid: the kernel tells the daemon who we were when we connected."""
    made = socket.socket(socket.AF_UNIX)
    os.seteuid(uid)
    try:
        made.connect(str(instance.socket))
    finally:
        os.seteuid(0)
    return made


def ask(instance: Instance, uid: int) -> str | DrfdError:
    """Who the daemon takes that uid for, or why it does not say."""
    client = Connection(instance.socket)
    os.seteuid(uid)
    try:
        return str(client.request("hello")["user"])
    except DrfdError as error:
        return error
    finally:
        os.seteuid(0)
        client.close()


def is_told_to_try_again(answer: object) -> bool:
    return isinstance(answer, DrfdError) and (answer.code, answer.exit_code) == (
        "directory-slow",
        69,
    )


@with_compiler
def test_a_flood_of_uids_that_a_slow_directory_does_not_know_locks_nobody_out(stage, users):
    """Users new to the daemon were told for a quarter of an hour that they have no account."""
    instance, directory = stage
    assert ask(instance, users[0].pw_uid) == users[0].pw_name
    directory.answers_after(0.3)
    flood = ExitStack()
    for uid in MANY:
        flood.enter_context(connected(instance, uid))
    begun = time.monotonic()
    with flood:
        # In memory, so that no directory is asked.
        assert ask(instance, users[0].pw_uid) == users[0].pw_name
        assert time.monotonic() - begun < 60
        # New to the daemon, and only in the slow directory.
        answer = ask(instance, DISTANT)
        while is_told_to_try_again(answer) and time.monotonic() - begun < 120:
            answer = ask(instance, DISTANT)
        assert answer == "distant"
        assert time.monotonic() - begun < 120


@with_compiler
def test_a_directory_that_takes_long_stalls_nobody_but_whom_it_is_asked_about(stage):
    instance, directory = stage
    directory.answers_after(15.0)
    with closing(connected(instance, DISTANT)) as line:
        line.sendall(b'{"op":"hello","v":1}\n')
        line.settimeout(0.05)
        # Held up, the loop would answer the first time when it is told who that is.
        for _ in range(11):
            instance._ask("status")
            with pytest.raises(TimeoutError):
                line.recv(4096)
        directory.answers_after(0)
        line.settimeout(patient(60))
        assert b'"distant"' in line.recv(4096)


@with_compiler
def test_a_directory_that_does_not_run_means_try_again_and_never_no_account(stage, users):
    instance, directory = stage
    directory.does_not_run()
    for uid in (DISTANT, NOBODY):
        done = instance.drf("submit", "--", "true", check=False, **by_number(uid))
        assert done.returncode == 69
        assert f"who uid {uid} is: the user directory fails" in done.stderr
        assert "try again" in done.stderr and done.stderr.count("\n") == 1
    # The local files are asked first, and answer.
    assert ask(instance, users[0].pw_uid) == users[0].pw_name
    directory.answers_after(0)
    assert ask(instance, DISTANT) == "distant"
    done = instance.drf("submit", "--", "true", check=False, **by_number(NOBODY))
    assert done.returncode == 77
    assert "no account" in done.stderr
    directory.does_not_run()
    assert ask(instance, DISTANT) == "distant"


@with_compiler
def test_a_queued_job_waits_for_a_directory_that_does_not_run(stage, users):
    """It ended as LAUNCH_FAILED, as if its user's account had been deleted."""
    instance, directory = stage
    words = ("-o", "/dev/null", "-e", "/dev/null", "--hold", "--", "true")
    done = instance.drf("submit", "-q", *words, **by_number(DISTANT))
    job_id = int(done.stdout)
    directory.does_not_run()
    instance.drf("release", job_id)

    def is_short() -> Any:
        reason = instance.show(job_id)["reason"]
        return reason and reason["code"] == "MACHINE_SHORT" and reason["text"]

    text = wait_for("a shortage", is_short, show=lambda: instance.show(job_id))
    assert "the user directory does not answer" in text
    other = instance.submit(*words[:4], "--", "true", user=users[0].pw_uid)
    assert instance.wait_end(other)["state"] == "COMPLETED"
    directory.answers_after(0)
    assert instance.wait_end(job_id)["state"] == "COMPLETED"


def by_number(uid: int) -> dict[str, Any]:
    """For subprocess: as a uid that only the daemon has a name for."""
    return {"preexec_fn": lambda: (os.setgroups([]), os.setresgid(uid, uid, uid), os.setuid(uid))}
