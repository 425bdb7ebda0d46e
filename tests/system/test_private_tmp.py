"""Private temporary space: what jobs see in /tmp, /var/tmp and /dev/shm, and what is left of it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance import CONFIG, Instance, wait_for

pytestmark = pytest.mark.system

PRIVATE = f"{CONFIG}private_tmp = true\n"
#: Each place, and what is in there.
LOOK = "for each in /tmp /var/tmp /dev/shm; do echo $each $(ls -A $each); done"
EMPTY = ["/tmp", "/var/tmp", "/dev/shm"]


@pytest.fixture
def instance(lend) -> Instance:
    return lend(PRIVATE)


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory for all users that jobs see too: tests have theirs below /var/tmp."""
    place = Path(tempfile.mkdtemp(prefix="drfd-test-", dir="/opt"))
    place.chmod(0o777)
    yield place

    def is_gone() -> bool:
        # The launcher may be removing at this moment what the last job has left there.
        shutil.rmtree(place, ignore_errors=True)
        return not place.exists()

    wait_for("the end of its directory", is_gone)


@pytest.fixture
def spaces(instance) -> Path:
    """Where they are; none is left of an earlier test."""
    place = instance.state / "launcher" / "private"
    wait_for("the end of earlier ones", lambda: not place.exists() or is_empty(place))
    return place


def is_empty(spaces: Path) -> bool:
    return list(spaces.iterdir()) == []


def test_jobs_of_two_users_see_nothing_of_each_other(instance, users, work, spaces):
    """Without it they share all three places, and what they leave there stays."""
    marks = [Path(place, f"drfd-test-{os.getpid()}") for place in EMPTY]
    jobs = []
    for user in users:
        fill = f"{LOOK}; for each in /tmp /var/tmp /dev/shm; do id -u >$each/{marks[0].name}; done"
        script = f"{fill}; {LOOK}; touch {work}/{user.pw_uid}; sleep 600"
        words = ("-o", work / f"{user.pw_uid}.out", "--", "sh", "-c", script)
        jobs.append(instance.submit(*words, user=user.pw_uid, cwd=work))
    for user in users:
        wait_for("both to have looked", (work / f"{user.pw_uid}").exists)
    # Both live now, and outside there is nothing.
    assert not any(mark.exists() for mark in marks)
    assert len(list(spaces.iterdir())) == 2
    instance.drf("cancel", *jobs)
    for job_id, user in zip(jobs, users, strict=True):
        assert instance.wait_end(job_id)["state"] == "CANCELLED"
        seen = (work / f"{user.pw_uid}.out").read_text().splitlines()
        assert seen == [*EMPTY, *(f"{place} {marks[0].name}" for place in EMPTY)]
    wait_for("the directories gone", lambda: is_empty(spaces))


def test_nobody_else_can_enter_a_jobs_space(instance, users, work, spaces):
    alice, bob = users
    job_id = instance.running("--", "sleep", "600", user=alice.pw_uid, cwd=work)["id"]
    (place,) = spaces.iterdir()
    for path in (spaces, place):
        status = path.stat()
        assert (status.st_uid, status.st_mode & 0o777) == (0, 0o700)
    mine = instance.submit("--", "ls", place / "tmp", user=bob.pw_uid, cwd=work)
    assert instance.wait_end(mine)["state"] == "FAILED"
    instance.drf("cancel", job_id)
    instance.wait_end(job_id)


def test_shared_memory_is_charged_to_its_job_and_gone_with_it(instance, users, work):
    alice, _ = users
    fill = f"dd if=/dev/zero of=/dev/shm/drfd-test-{os.getpid()} bs=1M count=700"
    words = ("-m", "300M", "--", "sh", "-c", f"{fill}; sleep 600")
    job = instance.ended(*words, user=alice.pw_uid, cwd=work)
    # The file may take as much as the job, and with the job's processes that is too much.
    assert job["state"] == "OUT_OF_MEMORY"
    words = ("-m", "1G", "-o", "out", "--", "sh", "-c", f"{fill}; df -m --output=size /dev/shm")
    job = instance.ended(*words, user=alice.pw_uid, cwd=work)
    assert job["state"] == "COMPLETED"
    assert (work / "out").read_text().split()[-1] == "1024"
    assert job["usage"]["memory_peak"] >= 700 << 20
    assert not os.path.exists(f"/dev/shm/drfd-test-{os.getpid()}")


def test_output_files_and_terminals_are_those_of_the_machine(instance, users, work):
    alice, _ = users
    outside = Path(tempfile.mkdtemp(prefix="drfd-test-", dir="/tmp"))
    os.chown(outside, alice.pw_uid, alice.pw_gid)
    # A link to an absolute path, on the way to the file.
    (work / "link").symlink_to(outside)
    try:
        words = ("-o", work / "link" / "out", "-e", outside / "made" / "err", "--")
        words += ("sh", "-c", "echo yes; echo no >&2; echo /tmp/*")
        job = instance.ended(*words, user=alice.pw_uid, cwd=work)
        assert job["state"] == "COMPLETED"
        assert (outside / "out").read_text() == "yes\n/tmp/*\n"
        assert (outside / "made" / "err").read_text() == "no\n"
        assert (outside / "made").stat().st_uid == alice.pw_uid
        assert (outside / "out").stat().st_uid == alice.pw_uid
        # The socket of `drf run` is below /tmp here.
        env = {"XDG_RUNTIME_DIR": str(outside), "TMPDIR": str(outside)}
        words = ("run", "--", "sh", "-c", "echo attached; ls -A /tmp; exit 7")
        done = instance.drf(*words, user=alice.pw_uid, cwd=work, check=False, env=env)
        assert (done.returncode, done.stdout) == (7, "attached\n")
        # A descriptor of the job itself is no file outside.
        words = ("-o", "/dev/stdout", "--", "true")
        job = instance.ended(*words, user=alice.pw_uid, cwd=work)
        assert job["state"] in ("COMPLETED", "LAUNCH_FAILED")
    finally:
        shutil.rmtree(outside)


def test_a_program_that_only_the_machine_has_is_explained(instance, work):
    refused = instance.drf("submit", "--", "true", cwd=instance.work, check=False)
    assert refused.returncode == 1
    assert "private_tmp" in refused.stderr
    job = instance.ended("--", instance.work / "program", cwd=work)
    assert job["state"] == "LAUNCH_FAILED"
    assert "each job has a /var/tmp of its own here" in job["outcome"]["text"]
    # Above: it is there, and empty.
    job = instance.ended("-o", work / "out", "--", "pwd", cwd="/tmp")
    assert (work / "out").read_text() == "/tmp\n"


def test_owners_commands_see_what_the_job_sees(instance, users, work, spaces):
    alice, _ = users
    told = f"cat /tmp/note >>{work}/told; echo $DRF_STATE >>{work}/told"
    words = ("--notify", "start,end")
    words += ("--notify-command", f"until [ -s /tmp/note ]; do sleep .1; done; {told}")
    # That of the start is a part of the job, and ends with it.
    script = f"echo mine >/tmp/note; until grep -q RUNNING {work}/told; do sleep .1; done"
    words += ("--", "sh", "-c", script)
    job = instance.ended(*words, user=alice.pw_uid, cwd=work)
    assert job["state"] == "COMPLETED"
    assert (work / "told").read_text() == "mine\nRUNNING\nmine\nCOMPLETED\n"
    wait_for("the directories gone", lambda: is_empty(spaces))


@pytest.mark.anew
def test_spaces_survive_drfd_and_not_their_jobs(instance, users, work, spaces):
    alice, _ = users
    script = (
        f"touch /tmp/here; while ! [ -e {work}/go ]; do sleep .1; done; ls -A /tmp; touch /tmp/x"
    )
    words = ("-o", "out", "--", "sh", "-c", script)
    job_id = instance.running(*words, user=alice.pw_uid, cwd=work)["id"]
    # What a crash has left: of an attempt that nobody knows, and of a removal cut short.
    for name in (f"999.1.{alice.pw_uid}", f"gone-0a-{alice.pw_uid}"):
        (spaces / name / "tmp" / "inner").mkdir(parents=True)
        (spaces / name / "tmp" / "inner" / "file").touch()
    instance.strike("both")
    wait_for("the remains gone", lambda: len(list(spaces.iterdir())) == 1)
    (work / "go").touch()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert (work / "out").read_text() == "here\n"
    wait_for("the directories gone", lambda: is_empty(spaces))


def test_a_daemon_of_ones_own_refuses_it(users, work):
    """Only root may make mount namespaces in which set-user-id programs still work."""
    alice, _ = users
    home = work / "home"
    home.mkdir()
    os.chown(home, alice.pw_uid, alice.pw_gid)
    (home / "drfd.toml").write_text("[enforcement]\nprivate_tmp = true\n")
    command = [sys.executable, "-I", "-m", "drfd.daemon", "serve", "--state", str(home / "state")]
    command += ["--config", str(home / "drfd.toml")]
    done = subprocess.run(
        command, user=alice.pw_uid, group=alice.pw_gid, extra_groups=[], capture_output=True,
        text=True, timeout=120, cwd=home,
    )  # fmt: skip
    assert done.returncode == 78
    assert "only root can give jobs a /tmp of their own" in done.stderr
