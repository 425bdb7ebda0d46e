"""A user directory that is slow or does not run: a real daemon with a module of the C library's
name service that does as it is told."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from drfd.client.connection import Connection
from drfd.common.errors import DrfdError
from instance import Accounts, Instance, wait_for

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]

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
def stage(make_instance: Callable[..., Instance], users: Accounts) -> tuple[Instance, Directory]:
    instance = make_instance()
    directory = Directory(instance)
    return instance.start(), directory


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


def test_a_flood_of_uids_that_a_slow_directory_does_not_know_locks_nobody_out(
    stage: tuple[Instance, Directory], users: Accounts
) -> None:
    """With a third of a second for each, users whom the daemon did not know yet were told for the
    rest of the quarter of an hour that they have no account. A busy machine may take its time, but
    nothing near to that."""
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


def test_a_directory_that_does_not_run_means_try_again_and_never_no_account(
    stage: tuple[Instance, Directory], users: Accounts
) -> None:
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


def test_a_queued_job_waits_for_a_directory_that_does_not_run(
    stage: tuple[Instance, Directory], users: Accounts
) -> None:
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
