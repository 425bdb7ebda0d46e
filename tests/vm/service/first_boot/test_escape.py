"""A job that tries to leave its cgroup stays in it: charged, limited and reaped."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from instance import is_alive, wait_for
from vm.service.installed import JOBS, Installed, cgroup, gated, pids_in, run, unit

PYTHON = "/usr/bin/python3"
#: Ways out of a process tree and a session; each ends in a `sleep` that says its pid.
ESCAPES = {
    "setsid": "setsid sh -c 'echo $$; exec sleep 1000' &",
    "double fork": "(sh -c 'echo $$; exec sleep 1000' &) &",
    "nohup env -i": "nohup env -i /bin/sh -c 'echo $$; exec sleep 1000' 2>/dev/null &",
}
HOG = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
HOG += "bytearray(200 << 20)\n"


@pytest.mark.parametrize("way", ESCAPES)
def test_what_has_left_the_session_is_still_in_the_job_and_goes_with_it(
    service: Installed, way: str
) -> None:
    gate = Path("/run/gate-of-escape")
    gate.unlink(missing_ok=True)
    _, _, wait = gated(gate, "exit 5")
    job_id = service.submit("alice", "bash", "-c", f"{ESCAPES[way]} {wait}")
    job = service.wait_state(job_id, "RUNNING")
    pids = wait_for("two pids", lambda: (said := service.output(job_id).split())[1:] and said)
    inside = [pid in (cgroup(job) / "cgroup.procs").read_text().split() for pid in pids]
    assert inside == [True, True]
    gate.touch()
    job = service.wait_end(job_id)
    gate.unlink()
    assert (job["state"], job["exit_code"]) == ("FAILED", 5)
    assert [pid for pid in pids if is_alive(int(pid))] == []


def test_what_has_left_the_session_is_charged_to_the_job(service: Installed) -> None:
    """Its first process waits; what is to blame is a daemon that nobody waits for."""
    script = f"{PYTHON} -c '{HOG}'; sleep 1000"
    job = service.wait_end(service.submit("alice", "bash", "-c", script))
    assert job["state"] == "OUT_OF_MEMORY"


def test_a_user_can_write_no_cgroup_but_what_logind_gave(service: Installed) -> None:
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


def test_a_user_cannot_move_a_running_job_from_outside(service: Installed) -> None:
    """Into the cgroup of a log-in, say."""
    job_id = service.submit("alice", "sleep", "1000")
    job = service.wait_state(job_id, "RUNNING")
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


def test_what_systemd_moves_out_for_its_user_still_ends_with_the_job(service: Installed) -> None:
    """A user who lingers, or is logged in, has a manager that takes processes of the user's into
    scopes, and has the system's move them there."""
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
