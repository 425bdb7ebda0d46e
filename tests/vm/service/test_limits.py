"""Limits of the installed service, by their effect, and that a job which tries to leave its cgroup
stays in it: charged, limited and reaped.

What a private instance's tests prove as well (tests/system) is here only as far as units and the
default configuration have a part in it.
"""

import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.core.scheduling.kept_free import SAMPLES
from drfd.daemon.monitoring.meter import PERIOD_S
from instance import is_alive, wait_for
from vm.service.installed import JOBS, ask, cgroup, demand, pids_in, run, unit

CONFIG = Path("/etc/drfd/drfd.toml")
PYTHON = "/usr/bin/python3"

HOG = """
import os, subprocess, time
bystander = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(os.getpid(), bystander.pid, flush=True)
if os.fork() == 0:
    bytearray(200 << 20)
time.sleep(1000)
"""


@pytest.fixture
def heeds_others() -> Iterator[None]:
    """Jobs wait for cores that others use, as shipped."""
    text, words = CONFIG.read_text(), 'respect_external_load = "memory"'
    assert words in text
    CONFIG.write_text(text.replace(words, "respect_external_load = true"))
    run("systemctl", "reload", "drfd")
    yield
    CONFIG.write_text(text)
    run("systemctl", "reload", "drfd")


def test_a_job_out_of_memory_dies_whole_and_alone(service):
    before = unit("drfd-jobs", "MainPID", "ActiveState")
    (other,) = service.running("bob")
    job = service.wait_end(service.submit("alice", PYTHON, "-c", HOG))
    assert job["state"] == "OUT_OF_MEMORY"
    assert "32M" in job["outcome"]["text"] and "-m 48M" in job["outcome"]["text"]
    assert 30 << 20 <= job["usage"]["memory_peak"] <= 32 << 20
    assert [pid for pid in map(int, service.output(job["id"]).split()) if is_alive(pid)] == []
    assert service.show(other)["state"] == "RUNNING"
    assert unit("drfd-jobs", "MainPID", "ActiveState") == before, "no OOMPolicy of the unit's"


@pytest.fixture
def swap() -> Iterator[None]:
    """Of the machine, much and free."""
    file = Path("/var/tmp/swap")
    run("fallocate", "--length", "256M", file)
    file.chmod(0o600)
    run("mkswap", file)
    run("swapon", file)
    yield
    run("swapoff", file)
    file.unlink()


def test_a_job_has_no_swap_beyond_its_memory(service, swap):
    """Where another unit with the same limit on its memory swaps and goes on."""
    words = (PYTHON, "-c", "bytearray(96 << 20)")
    run("systemd-run", "--quiet", "--wait", "--property=MemoryMax=32M", *words)
    assert service.wait_end(service.submit("alice", *words))["state"] == "OUT_OF_MEMORY"


def test_what_a_job_uses_is_seen_while_it_runs_and_is_its_own(service, heeds_others):
    """The unprivileged controller could not read it, and took it for an outside load."""
    job_id = service.submit(
        "alice", "sh", "-c", "while :; do :; done", demand=demand(cores_milli=1000)
    )
    service.wait_state(job_id, "RUNNING")
    wait_for("its use", lambda: service.show(job_id)["usage"]["cores"] > 0.5, pause_s=0.5)
    usage = service.show(job_id)["usage"]
    assert usage["memory"] > 0
    assert usage["cpu_seconds"] > 0
    # So long it takes a load from outside to be believed.
    time.sleep((SAMPLES + 2) * PERIOD_S)
    # Before and meanwhile there may be one: it goes, while the job goes on.
    wait_for(
        "no load from outside",
        lambda: ask("doctor")["external"] is None,
        pause_s=PERIOD_S,
        show=lambda: ask("doctor")["external"],
    )
    assert service.show(job_id)["state"] == "RUNNING"
    service.as_user("alice", "cancel", select={"ids": [job_id]})
    service.await_no_jobs()


# -- ways out of the cgroup -----------------------------------------------------------------------


def test_a_user_can_write_no_cgroup_but_what_logind_gave(service):
    """From within a job, where its cgroup's files belong to root."""
    script = (
        "for file in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/user.slice/cgroup.procs"
        " /sys/fs/cgroup/drfd.slice/cgroup.procs /sys/fs/cgroup/drfd.slice/drfd-jobs.service/*/*"
        " /sys/fs/cgroup/$(cut -d: -f3 /proc/self/cgroup)/*;"
        " do [ -w $file ] && echo $file; (echo $$ >$file) 2>/dev/null && echo wrote $file; done;"
        " mkdir /sys/fs/cgroup/$(cut -d: -f3 /proc/self/cgroup)/inner 2>/dev/null && echo made"
    )
    job = service.wait_end(service.submit("alice", "bash", "-c", script))
    assert service.output(job["id"]) == ""
    owners = {path.stat().st_uid for path in [JOBS, *JOBS.iterdir()]}
    assert owners == {0}


def test_a_user_cannot_move_a_running_job_from_outside(service):
    """Into the cgroup of a log-in, say."""
    (job_id,) = service.running("alice")
    job = service.show(job_id)
    (pid,) = (cgroup(job) / "cgroup.procs").read_text().split()
    script = (
        f"own=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup);"
        f" (echo {pid} >$own/cgroup.procs) 2>&1; busctl call org.freedesktop.systemd1"
        " /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager StartTransientUnit"
        f" 'ssa(sv)a(sa(sv))' flee.scope fail 1 PIDs au 1 {pid} 0 2>&1"
    )
    said = service.login("alice", script, check=False)
    assert said.lower().count("denied") + said.count("authentication required") == 2, said
    assert (cgroup(job) / "cgroup.procs").read_text().split() == [pid]


def test_what_systemd_moves_out_for_its_user_still_ends_with_the_job(service):
    """A lingering user's manager takes processes into scopes of its own."""
    run("loginctl", "enable-linger", "alice")
    uid = pwd.getpwnam("alice").pw_uid
    # That of an earlier log-in may be just about to end; its socket is there until then.
    manager = f"user@{uid}.service"
    wait_for("her manager", lambda: unit(manager, "ActiveState") == {"ActiveState": "active"})
    script = (
        f"export XDG_RUNTIME_DIR=/run/user/{uid}; (exec setsid sleep 1001) &"
        " exec systemd-run -q --user --scope"
        " sh -c 'cut -d: -f3 /proc/self/cgroup; echo $$; (setsid sleep 1000 &); exec sleep 1000'"
    )
    try:
        job_id = service.submit("alice", "bash", "-c", script, stderr="moved")
        job = service.wait_state(job_id, "RUNNING")
        place, pid = wait_for(
            "where it is",
            lambda: (said := service.output(job_id).split())[1:] and said,
            show=lambda: (service.work("alice") / "moved").read_text(),
        )
        assert f"user@{uid}.service" in place
        fled = [int(pid) for pid in Path(f"/sys/fs/cgroup{place}/cgroup.procs").read_text().split()]
        assert int(pid) in fled and not set(fled) & set(pids_in(job))
        service.as_user("alice", "cancel", select={"ids": [job_id]})
        assert service.wait_end(job_id)["state"] == "CANCELLED"
        assert [pid for pid in fled if is_alive(pid)] == []
    finally:
        run("loginctl", "disable-linger", "alice")
