"""A job's process enters its cgroup without a move that the kernel makes wait."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance import Instance
from kernel import Kernel
from unified_cgroup import empty_cgroup

pytestmark = pytest.mark.system


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """An empty cgroup of version 2, which needs no controllers."""
    with empty_cgroup("entry") as made:
        yield made


#: A child that says where it is, and whether a signal that the C library sends to the calling
#: thread reaches it.
_CHILD = """
import os, signal, sys
from drfd.linux import syscalls
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(os.getpid()))
cgroup = os.open(sys.argv[1], os.O_PATH)
pid = syscalls.fork_into(cgroup)
if pid == 0:
    signal.raise_signal(signal.SIGUSR1)
    place = open("/proc/self/cgroup").read().split("0::")[1].strip()
    print(got == [os.getpid()], place, flush=True)
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(code, got, open("/proc/self/cgroup").read().split("0::")[1].strip())
"""


_GONE = """
import errno, os, sys
from drfd.linux import syscalls
cgroup = os.open(sys.argv[1], os.O_PATH)
os.rmdir(sys.argv[1])
try:
    syscalls.fork_into(cgroup)
except OSError as error:
    print(errno.errorcode[error.errno], error.filename)
"""


def test_a_process_is_forked_into_a_cgroup(cgroup: Path) -> None:
    command = [sys.executable, "-c", _CHILD, str(cgroup)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    child, parent = done.stdout.splitlines()
    assert child == f"True /{cgroup.name}"
    code, got, place = parent.split(" ", 2)
    assert (code, got) == ("7", "[]")
    assert place != f"/{cgroup.name}"


def test_a_fork_into_a_cgroup_that_is_gone_is_an_error(cgroup: Path) -> None:
    inner = cgroup / "inner"
    inner.mkdir()
    command = [sys.executable, "-c", _GONE, str(inner)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout in ("ENODEV clone3\n", "ENOENT clone3\n")


def test_the_doctor_tells_how_jobs_enter(instance: Instance) -> None:
    reply = json.loads(instance.drf("doctor", "--json").stdout)
    expected = "forked" if Kernel().v2 is not None else "written"
    assert reply["entry"]["way"] == expected
    assert reply["entry"]["text"] in instance.drf("doctor").stdout


def test_every_process_of_a_job_is_in_its_cgroup_in_every_hierarchy(instance: Instance) -> None:
    job_id = instance.submit("-c", "0.1", "--", "sh", "-c", "sleep 600 & wait")
    job = instance.wait_state(job_id, "RUNNING")
    path = job["cgroup"].strip("/")
    kernel = Kernel()
    mounts = {kernel.v2} if kernel.v2 is not None else set(kernel.v1.values())
    for mount in mounts:
        pids = Path(mount, path, "cgroup.procs").read_text().split()
        assert pids, mount
        lines = Path(f"/proc/{pids[0]}/cgroup").read_text()
        assert f"/{path}\n" in lines
