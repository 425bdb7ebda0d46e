"""Memory that a job leaves in use is not given to the next one.

On a machine of its own: a memory cgroup that drfd takes for the whole of it, so that what the real
one does besides is no matter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.core.scheduling.kept_free import SAMPLES
from drfd.daemon.monitoring.meter import PERIOD_S
from instance import Accounts, Instance, wait_for
from kernel import Kernel

pytestmark = pytest.mark.system

MIB = 1 << 20
#: Of the 1 GiB that there is, 200 MiB are for drfd itself and whatever is outside.
CONFIG = """
[capacity]
cores = 9
memory = "824M"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "1G"
write = "1G"
[scheduling]
respect_external_load = true
[enforcement]
grace = "1s"
remove_ipc = false
"""
NAME = f"drfd-test-left-{os.getpid()}"


@pytest.fixture
def small() -> Iterator[Instance]:
    """An instance, on a machine of 1 GiB."""
    kernel = Kernel()
    top = kernel.top("memory") / NAME
    # By version 2, only a cgroup without processes of its own has limits for those in it.
    daemons = top / "daemons" if kernel.v2 is not None else top
    daemons.mkdir(parents=True)
    limit = "memory.max" if kernel.v2 is not None else "memory.limit_in_bytes"
    (top / limit).write_text(str(1 << 30))
    instance = Instance(CONFIG)
    room = instance.root / "launcher"
    room.mkdir(mode=0o711)
    instance.state.mkdir()
    instance.work.chmod(0o777)
    # Where there is systemd, job cgroups are made in its slice: it is hidden, so they are in ours.
    enter = 'echo $$ >"$0"; ! [ -d /run/systemd ] || mount -t tmpfs none /run/systemd; exec "$@"'
    private = ["unshare", "-m", "--propagation", "private"]
    inside = [*private, "sh", "-c", enter, str(daemons / "cgroup.procs")]
    command = [sys.executable, "-I", "-m", "drfd.launcher", "--state", str(room)]
    command += ["--controller-uid", "0", "--group", f"{NAME}/jobs", "--keep-ipc"]
    launcher = subprocess.Popen([*inside, *command], stdin=subprocess.DEVNULL)
    serve = [sys.executable, "-I", "-m", "drfd.daemon", "serve", "--as-root"]
    serve += ["--config", str(instance.config), "--state", str(instance.state)]
    serve += ["--socket", str(instance.socket), "--launcher", str(room)]
    try:
        with instance.log.open("ab") as log:
            instance.process = subprocess.Popen(
                [*inside, *serve], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for("the daemon's answer", instance.answers, show=instance.log.read_text)
        yield instance
    finally:
        instance.destroy()
        launcher.terminate()
        launcher.wait()
        made = [path for jobs in kernel.groups(f"{NAME}/jobs") for path in (jobs, jobs.parent)]
        if daemons != top:
            made.insert(0, daemons)
        for each in made:
            # Runners that wait for another job leave a moment after their launcher.
            wait_for(f"{each} to be empty", lambda each=each: is_removed(each))


def is_removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def reason(instance: Instance, job_id: int) -> str | None:
    found = instance.show(job_id)["reason"]
    return None if found is None else str(found["code"])


def external(instance: Instance) -> int:
    """Bytes of the capacity that are left to what is outside."""
    load = instance._ask("doctor")["external"]
    return 0 if load is None else int(load["kept"]["memory"])


def test_a_file_in_memory_keeps_the_next_job_waiting_until_it_is_gone(
    small: Instance, users: Accounts
) -> None:
    """The next job was started at once, with limits that add up to more than there is."""
    uid = users[0].pw_uid
    file = Path(f"/dev/shm/{NAME}")
    gate = small.work / "gate"
    fill = (
        f"dd if=/dev/zero of={file} bs=1M count=300; sleep 1; "
        f"while ! [ -e {gate} ]; do sleep 0.05; done"
    )
    try:
        first = small.submit("-m", "400M", "--", "sh", "-c", fill, user=uid)
        # It has to wait for the first one, and would have all that is left then.
        second = small.submit("-m", "780M", "--", "true", user=uid)
        wait_for("its reason", lambda: reason(small, second) == "RESOURCES")
        gate.touch()
        assert small.wait_end(first)["state"] == "COMPLETED"
        assert file.stat().st_size == 300 * MIB
        wait_for("the reason", lambda: reason(small, second) == "EXTERNAL_LOAD")
        # 200 MiB of it are covered by what is there besides; drfd's own needs are too.
        assert 90 * MIB <= external(small) < 300 * MIB
        # What fits beside it starts.
        third = small.submit("-m", "400M", "--", "true", user=uid)
        assert small.wait_end(third)["state"] == "COMPLETED"
        # By now the load is what was measured, which says the same.
        time.sleep((SAMPLES + 2) * PERIOD_S)
        assert 90 * MIB <= external(small) < 300 * MIB
        assert reason(small, second) == "EXTERNAL_LOAD"
        file.unlink()
        assert small.wait_end(second)["state"] == "COMPLETED"
        wait_for("nothing kept free", lambda: external(small) == 0)
    finally:
        file.unlink(missing_ok=True)


def test_what_goes_with_the_job_is_not_missed(small: Instance, users: Accounts) -> None:
    """Memory of processes, page cache, and files that the job has removed itself."""
    uid = users[0].pw_uid
    script = (
        f"dd if=/dev/zero of=/dev/shm/{NAME} bs=1M count=300; rm /dev/shm/{NAME}; "
        f"dd if=/dev/zero of={small.work}/file bs=1M count=200; sleep 3"
    )
    first = small.submit("-m", "600M", "--", "sh", "-c", script, user=uid)
    second = small.submit("-m", "800M", "--", "true", user=uid)
    assert small.wait_end(first)["state"] == "COMPLETED"
    assert small.wait_end(second)["state"] == "COMPLETED"
    assert external(small) == 0
