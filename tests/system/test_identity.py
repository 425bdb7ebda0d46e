"""Jobs run as who submitted them, with all of that and nothing of root; others have no power."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from instance import Accounts, Instance

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


def home_for(instance: Instance, user: pwd.struct_passwd) -> Path:
    home = instance.root / user.pw_name
    home.mkdir(mode=0o700)
    os.chown(home, user.pw_uid, user.pw_gid)
    return home


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


def test_each_job_is_its_submitters_through_and_through(
    instance: Instance, users: Accounts
) -> None:
    for user, umask in zip(users, (0o027, 0o077), strict=True):
        home = home_for(instance, user)
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


def test_no_signal_is_ignored_that_python_or_a_service_manager_ignores(
    instance: Instance,
) -> None:
    job = instance.wait_end(instance.submit("--", "grep", "SigIgn", "/proc/self/status"))
    assert int(instance.output(job["id"]).split()[1], 16) == 0


def test_the_submitters_present_group_is_kept(instance: Instance, users: Accounts) -> None:
    user = users[0]
    home = home_for(instance, user)
    second = next(gid for gid in os.getgrouplist(user.pw_name, user.pw_gid) if gid != user.pw_gid)
    done = instance.drf(
        *("submit", "-q", "-w", "--", "id", "-g"), user=user.pw_uid, cwd=home, group=second
    )
    assert instance.output(int(done.stdout)).strip() == str(second)


def test_another_user_can_neither_stop_nor_read_nor_wait_for_a_job(
    instance: Instance, users: Accounts
) -> None:
    owner, other = users
    home = home_for(instance, owner)
    secret = ("--", "sh", "-c", "echo private; exec sleep 1000")
    job_id = instance.submit(*secret, user=owner.pw_uid, cwd=home)
    instance.wait_state(job_id, "RUNNING")
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


def test_nobody_but_an_administrator_drains(instance: Instance, users: Accounts) -> None:
    done = instance.drf("drain", user=users[0].pw_uid, cwd="/", check=False)
    assert (done.returncode, "administrator" in done.stderr) == (77, True)


def test_output_is_opened_with_the_users_rights(instance: Instance, users: Accounts) -> None:
    """A path that root could write, and the user cannot, is not written."""
    target = instance.root / "roots-own"
    target.write_text("precious")
    target.chmod(0o600)
    home = home_for(instance, users[0])
    link = home / "out"
    link.symlink_to(target)
    job_id = instance.submit("-o", link, "--", "echo", "x", user=users[0].pw_uid, cwd=home)
    job = instance.wait_end(job_id)
    assert job["state"] == "LAUNCH_FAILED"
    assert "cannot write the output file" in job["outcome"]["text"]
    assert target.read_text() == "precious"


def test_a_directory_that_the_user_may_not_enter_is_named(
    instance: Instance, users: Accounts
) -> None:
    home = home_for(instance, users[0])
    done = instance.drf("submit", "--", "true", user=users[1].pw_uid, cwd=home, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"you may not enter the current directory {home}" in done.stderr


def test_a_directory_closed_after_the_submission_fails_the_launch(
    instance: Instance, users: Accounts
) -> None:
    home = home_for(instance, users[0])
    job_id = instance.submit("--hold", "--", "true", user=users[0].pw_uid, cwd=home)
    os.chown(home, 0, 0)
    instance.drf("release", job_id)
    job = instance.wait_end(job_id)
    assert job["state"] == "LAUNCH_FAILED"
    assert job["outcome"]["text"] == f"{users[0].pw_name} cannot enter {home}: Permission denied"


def test_the_state_is_closed_to_users(instance: Instance, users: Accounts) -> None:
    """No environment, no attempt file and no launcher is within a user's reach."""
    instance.submit("--", "sleep", "600")
    script = f"cat {instance.state}/controller/*; cat {instance.state}/launcher/attempts/*"
    home = home_for(instance, users[0])
    words = ("submit", "-q", "-w", "-e", "/dev/null", "--", "sh", "-c", script)
    job_id = int(instance.drf(*words, user=users[0].pw_uid, cwd=home, check=False).stdout)
    assert instance.output(job_id) == ""
    for path in (instance.state / "controller").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    assert (instance.state / "launcher" / "launcher.sock").stat().st_mode & 0o077 == 0


def test_system_accounts_are_refused(instance: Instance, open_python: None) -> None:
    """nobody is no person: what runs as nobody is a service."""
    home = instance.root / "nobody"
    home.mkdir()
    os.chown(home, 65534, 65534)
    done = instance.drf("submit", "--", "true", user=65534, cwd=home, check=False)
    assert (done.returncode, done.stdout) == (77, "")
    assert "is a system account, of which no jobs run here" in done.stderr
