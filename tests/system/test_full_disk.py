"""A disk that is full under the journal: nobody's jobs are lost, and what makes room still works.

Each disk is a small file system in a mount namespace of the test's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instance import Accounts, wait_for
from shelter import Sheltered, as_root, made_shelters

pytestmark = [pytest.mark.system, as_root]

SMALL = ("-c", "0.1", "-m", "16M", "-o", "/dev/null", "-e", "/dev/null")
DISKS = {
    "tmpfs": "mount -t tmpfs -o size=100m,mode=755 tmpfs $STATE",
    "ext4": "truncate -s 100M $STATE.img; mkfs.ext4 -q $STATE.img; "
    "mount -o loop $STATE.img $STATE; chmod 755 $STATE",
}


@pytest.fixture
def shelter() -> Iterator[Callable[..., Sheltered]]:
    with made_shelters() as make:
        yield make


@pytest.fixture(params=DISKS)
def instance(request: pytest.FixtureRequest, shelter: Callable[..., Sheltered]) -> Sheltered:
    if request.param == "ext4" and not _has_loop():
        pytest.skip("no loop device here")
    return shelter(DISKS[request.param])


def _has_loop() -> bool:
    if shutil.which("mkfs.ext4") is None:
        return False
    return subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode == 0


def fill(instance: Sheltered) -> Path:
    """To the last block."""
    filler = inside(instance, "filler")
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with pytest.raises(OSError, match="No space"):
                while True:
                    file.write(b"x" * size)
        os.fsync(file.fileno())
    return filler


def inside(instance: Sheltered, *names: str) -> Path:
    return instance.inside.joinpath(str(instance.state).lstrip("/"), *names)


def reserve_bytes(instance: Sheltered) -> int:
    """Its length is set when all its blocks are there."""
    try:
        status = inside(instance, "controller", "journal.reserve").stat()
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if status.st_size else 0


def test_on_a_full_disk_ends_are_kept_and_cancelling_works_and_the_daemon_starts(
    instance: Sheltered, users: Accounts
) -> None:
    """Waiting jobs ended for want of room, not even root could cancel, and once stopped the daemon
    did not start."""
    alice, bob = (user.pw_uid for user in users)
    instance.start()
    whole = wait_for("the reserve", lambda: reserve_bytes(instance))
    gate = f"while ! [ -e {instance.work}/gate ]; do sleep 0.05; done; exit 5"
    running = instance.submit(*SMALL, "--", "sh", "-c", gate, user=bob, cwd="/")
    mine, theirs, kept = (
        instance.submit(*SMALL, "--hold", "--", "sh", "-c", "exit 6", user=bob, cwd="/")
        for _ in range(3)
    )
    later = ("--begin", "now+5s", "--", "sh", "-c", "exit 7")
    due = instance.submit(*SMALL, *later, user=bob, cwd="/")
    instance.wait_state(running, "RUNNING")
    filler = fill(instance)

    def is_told() -> bool:
        """It looks at its disk every half second."""
        done = instance.drf("status", user=alice, cwd="/")
        return "the disk of " in done.stderr

    wait_for("a word about the disk", is_told)
    for words in (
        ("submit", *SMALL, "--", "true"),
        ("hold", mine),
        ("set", mine, "--priority", "1"),
    ):
        refused = instance.drf(*words, user=bob, cwd="/", check=False)
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 1, line
        assert "free, and the last 2" in line and "reserve_disk under [limits]" in line
    # More than the reserve's first piece could hold, so that pieces follow.
    for job_id, user in ((mine, bob), (theirs, None)):
        instance.drf("cancel", job_id, user=user, cwd="/")
        assert instance.show(job_id)["state"] == "CANCELLED"
    (instance.work / "gate").touch()
    assert instance.wait_end(running)["exit_code"] == 5
    noisy = instance.submit(*SMALL, "--hold", "--", "true")
    for priority in range(60):
        instance._ask("set", select={"ids": [noisy]}, priority=priority)
    assert "reserve-given-up" in instance.log.read_text()
    assert reserve_bytes(instance) < whole
    doctor = instance.drf("doctor").stdout
    assert "the room for the ends of jobs on a full disk" in doctor

    instance.kill()
    instance.start()
    assert instance.show(kept)["state"] == "HELD"
    assert instance.show(running)["exit_code"] == 5
    instance.drf("cancel", noisy)

    filler.unlink()
    wait_for("the reserve, made again", lambda: reserve_bytes(instance) >= whole)
    wait_for("no word about the disk", lambda: not is_told())
    instance.drf("release", kept, user=bob, cwd="/")
    assert instance.wait_end(kept)["exit_code"] == 6
    assert instance.wait_end(due)["exit_code"] == 7, "its time came on the full disk"
    last = instance.submit(*SMALL, "--", "true", user=bob, cwd="/")
    assert instance.wait_end(last)["state"] == "COMPLETED"
    assert not is_told()


def test_a_daemon_that_died_on_a_disk_full_to_the_last_block_starts(
    shelter: Callable[..., Sheltered],
) -> None:
    """Its log cannot go into the journal's file, nor can the file beside it be made."""
    instance = shelter(DISKS["tmpfs"]).start()
    wait_for("the reserve", lambda: reserve_bytes(instance))
    kept = instance.submit(*SMALL, "--hold", "--", "sh", "-c", "exit 6")
    instance.kill()
    filler = fill(instance)
    # Whoever looked into the journal may have taken these away.
    inside(instance, "controller", "journal.sqlite-shm").unlink(missing_ok=True)
    with filler.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x")
    instance.start()
    assert instance.show(kept)["state"] == "HELD"
    instance.drf("cancel", kept)
    assert "reserve-given-up" in instance.log.read_text()
