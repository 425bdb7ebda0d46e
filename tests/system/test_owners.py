"""Whose a process is: when a journal was restored or begun anew, or an account was replaced."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from drfd.common.errors import Unavailable
from instance import CONFIG, Accounts, Instance, delete_account, is_alive, wait_for

pytestmark = [pytest.mark.system, pytest.mark.anew]


def home_for(instance: Instance, user: pwd.struct_passwd) -> Path:
    home = instance.root / user.pw_name
    home.mkdir(mode=0o700, exist_ok=True)
    os.chown(home, user.pw_uid, user.pw_gid)
    return home


def journal_files(instance: Instance) -> list[Path]:
    return sorted(instance.state.glob("controller/journal.sqlite*"))


def submit(instance: Instance, user: pwd.struct_passwd, *words: object) -> int:
    return instance.submit(*words, user=user.pw_uid, cwd=home_for(instance, user))


def strays(instance: Instance) -> list[dict[str, object]]:
    return list(json.loads(instance.drf("doctor", "--json").stdout)["strays"])


@pytest.mark.parametrize("way", ["restored from a copy", "begun anew"])
def test_an_earlier_users_process_is_not_taken_for_a_new_job(
    instance: Instance, users: Accounts, way: str
) -> None:
    """An old copy of the journal gave out the id of a running job again: the new job counted as
    running, its command never ran, and its cancellation killed the other user's process."""
    alice, bob = users
    instance.stop()
    kept = instance.root / "kept"
    kept.mkdir()
    for path in journal_files(instance):
        shutil.copy2(path, kept)
    instance.start()
    pid_file = home_for(instance, alice) / "pid"
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
    assert (home_for(instance, bob) / "out").read_text() == "mine\n"
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
    assert not list(instance.state.glob("launcher/attempts/*"))


def is_open(instance: Instance) -> bool:
    """The daemon takes connections, with a launcher or without."""
    try:
        return bool(instance._ask("doctor"))
    except Unavailable:
        return False


def test_a_job_submitted_before_the_launcher_was_heard_does_not_get_a_strays_place(
    instance: Instance, users: Accounts
) -> None:
    """Its id is that of a running attempt; it ended as LAUNCH_FAILED, or was taken for running."""
    alice, bob = users
    pid_file = home_for(instance, alice) / "pid"
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
    assert (home_for(instance, bob) / "out").read_text() == "mine\n"
    assert is_alive(pid)
    instance.drf("doctor", "--end-stray", f"{old}.1")
    wait_for("its end", lambda: not is_alive(pid))


def test_cgroups_without_a_record_are_no_jobs_place(instance: Instance, users: Accounts) -> None:
    """The first job with such an id ended as LAUNCH_FAILED: File exists."""
    if not instance.has_cgroups():
        pytest.skip("there are no cgroups here")
    alice, bob = users
    old = submit(instance, alice, "--", "sleep", "1000")
    instance.wait_state(old, "RUNNING")
    (runner,) = {
        json.loads(line)["pid"]
        for path in instance.state.glob("launcher/attempts/*")
        for line in path.read_text().splitlines()
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


@pytest.fixture
def short_lived(open_python: None) -> Iterator[Callable[[str, int | None], pwd.struct_passwd]]:
    """Makes an account, in place of the one that it made before."""
    made: list[str] = []

    def make(name: str, uid: int | None) -> pwd.struct_passwd:
        while made:
            delete_account(made.pop())
        as_uid = [] if uid is None else ["-u", str(uid)]
        words = ["useradd", "--no-create-home", "--no-log-init", *as_uid, name]
        subprocess.run(words, check=True)
        made.append(name)
        return pwd.getpwnam(name)

    yield make
    while made:
        delete_account(made.pop())


def test_the_job_of_a_deleted_account_is_not_its_heirs(
    lend: Callable[[str], Instance], short_lived: Callable[[str, int | None], pwd.struct_passwd]
) -> None:
    """It ran as whoever got the uid next, and read a file of hers; she saw the command line of the
    deleted account, and could cancel its jobs; later only for ten minutes, while the daemon
    remembered the old name."""
    instance = lend(CONFIG)
    old = short_lived(f"drfdt{os.getpid()}o", None)
    place = instance.root / "place"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    secret = instance.root / "secret"
    words = ("--hold", "-o", place / "out", "--", "cat", secret)
    job_id = instance.submit(*words, user=old.pw_uid, cwd="/")
    new = short_lived(f"drfdt{os.getpid()}n", old.pw_uid)
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
