"""What a job is and has: nothing that the services are or have.

The golden list is all of it; a job that finds anything else has got it from somewhere.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from instance import wait_for
from vm.service.installed import Installed, ask

PROBE = Path(__file__).parents[1] / "probe.py"
UNLIMITED = -1
NONE = "0" * 16
#: Puts a key into its session keyring, says which keyring that is, and what keys it sees.
KEYS = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
ADD_KEY, KEYCTL, GET_KEYRING_ID, SESSION = 248, 250, 0, -3
assert libc.syscall(ADD_KEY, b"user", sys.argv[1].encode(), b"secret", 6, SESSION) > 0
print(libc.syscall(KEYCTL, GET_KEYRING_ID, SESSION, 0))
print(open("/proc/keys").read(), flush=True)
time.sleep(1000)
"""
SCRIPT = f"""
    cd ~/work && umask 027 &&
    SOME_TOKEN=secret INVOCATION_ID=x NOTIFY_SOCKET=x JOURNAL_STREAM=1:2 MARK='of alice' \
    drf submit -q -w -m 64M -c 0.5 -n probe -o said -e errors -- /usr/bin/python3 -I {PROBE}
"""


@pytest.fixture(scope="module")
def probed(installed: Installed) -> tuple[int, dict[str, Any]]:
    """The id of alice's job, and what it has found."""
    job_id = int(installed.login("alice", SCRIPT))
    work = installed.work("alice")
    assert (work / "errors").read_text() == ""
    return job_id, json.loads((work / "said").read_text())


THREAD_COUNTS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS", "JULIA_NUM_THREADS", "RAYON_NUM_THREADS"),
    *("POLARS_MAX_THREADS", "GOMAXPROCS", "PYTHON_CPU_COUNT"),
)


def golden(job_id: int, seen: dict[str, Any]) -> dict[str, Any]:
    alice = pwd.getpwnam("alice")
    uid, gid = str(alice.pw_uid), str(alice.pw_gid)
    per_user = ask("doctor")["processes"]["per_user"]
    work = f"{alice.pw_dir}/work"
    everything = f"{(1 << int(Path('/proc/sys/kernel/cap_last_cap').read_text()) + 1) - 1:016x}"
    return {
        "uids": [uid] * 4,
        "gids": [gid] * 4,
        "groups": sorted([alice.pw_gid, grp.getgrnam("lab").gr_gid]),
        # It has none; a set-user-id program may still get all, as in a log-in.
        "capabilities": {"Inh": NONE, "Prm": NONE, "Eff": NONE, "Bnd": everything, "Amb": NONE},
        "securebits": 0,
        "no new privileges": "0",
        "seccomp": "0",
        "cwd": work,
        "umask": "0o27",
        "environment": {
            **dict.fromkeys(THREAD_COUNTS, "1"),
            "DRF_ATTEMPT": "1",
            "DRF_CORES": "0.5",
            "DRF_JOB_ID": str(job_id),
            "DRF_JOB_NAME": "probe",
            "DRF_MEMORY": str(64 << 20),
            "DRF_POOL": "root.alice",
            "HOME": alice.pw_dir,
            "LOGNAME": "alice",
            "MAIL": "/var/mail/alice",
            "MARK": "of alice",
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
            "PWD": work,
            "PYTHONUNBUFFERED": "1",
            "SHELL": "/bin/bash",
            "USER": "alice",
        },
        "limits": {
            "AS": [UNLIMITED, UNLIMITED],
            "CORE": [0, UNLIMITED],
            "CPU": [UNLIMITED, UNLIMITED],
            "DATA": [UNLIMITED, UNLIMITED],
            "FSIZE": [UNLIMITED, UNLIMITED],
            "MEMLOCK": [8 << 20, 8 << 20],
            "MSGQUEUE": [819200, 819200],
            "NICE": [0, 0],
            "NOFILE": [1024, 524288],
            "RSS": [UNLIMITED, UNLIMITED],
            "RTPRIO": [0, 0],
            "RTTIME": [UNLIMITED, UNLIMITED],
            "STACK": [8 << 20, UNLIMITED],
            # What the kernel gives to everybody, by the size of the machine; and of processes no
            # more than one user may have of all that there can be.
            "SIGPENDING": limits_of_init()["SIGPENDING"],
            "NPROC": [min(limits_of_init()["NPROC"][0], per_user)] * 2,
        },
        "blocked signals": NONE,
        "pending signals": NONE,
        # SIGPIPE and SIGXFSZ, by the probe's own Python.
        "ignored signals": f"{1 << 12 | 1 << 24:016x}",
        "descriptors": {"0": "/dev/null", "1": f"{work}/said", "2": f"{work}/errors"},
        "cgroup": f"0::/drfd.slice/drfd-jobs.service/jobs/job-{job_id}-1",
        "oom_score_adj": "0",
        "coredump_filter": Path("/proc/1/coredump_filter").read_text().strip(),
        "personality": "00000000",
        # So that audit can say whose a process is.
        "loginuid": uid,
        "nice": 0,
        "policy": os.SCHED_OTHER,
        "processors": sorted(os.sched_getaffinity(1)),
        "io priority": 0,
        "timer slack": 50_000,
        "signal at parent's death": 0,
        "leads its session": True,
        "namespaces": {name: os.readlink(f"/proc/1/ns/{name}") for name in seen["namespaces"]},
    }  # fmt: skip


def limits_of_init() -> dict[str, list[int]]:
    lines = Path("/proc/1/limits").read_text().splitlines()
    found = {}
    for name, title in (("NPROC", "Max processes"), ("SIGPENDING", "Max pending signals")):
        (line,) = [line for line in lines if line.startswith(title)]
        found[name] = [int(word) for word in line[len(title) :].split()[:2]]
    return found


def test_a_job_has_what_the_golden_list_says_and_nothing_else(
    probed: tuple[int, dict[str, Any]],
) -> None:
    job_id, seen = probed
    assert seen == golden(job_id, seen)


def test_no_signal_is_ignored(installed: Installed) -> None:
    """Neither by what systemd does to services nor by what Python does to itself."""
    job_id = installed.submit("bob", "grep", "SigIgn", "/proc/self/status")
    installed.wait_end(job_id)
    assert installed.output(job_id).split() == ["SigIgn:", NONE]


def test_what_raises_rights_works_in_a_job(installed: Installed) -> None:
    """No sandbox of a service's is around it: programs with the set-user-id bit keep it."""
    job_id = installed.submit("bob", "sudo", "-n", "true", stderr="sudo-said")
    installed.wait_end(job_id)
    said = Path(installed.show(job_id)["stderr"]).read_text()
    # As root it asks for bob's password; otherwise it complains of its own rights.
    assert "a password is required" in said


def test_each_job_has_a_session_keyring_that_no_other_finds(service: Installed) -> None:
    """By the service: a job of one user found the keys of another's in the launcher's keyring."""
    said: dict[str, str] = {}
    for name, user in (("of-alice", "alice"), ("of-bob", "bob"), ("second", "alice")):
        words = ("/usr/bin/python3", "-I", "-c", KEYS, name)
        job_id = service.submit(user, *words, stdout=f"keys-{name}")
        service.wait_state(job_id, "RUNNING")
        said[name] = wait_for("its keys", lambda job_id=job_id: service.output(job_id))
    rings = {text.split()[0] for text in said.values()}
    assert len(rings) == 3
    assert all(name in text for name, text in said.items())
    assert not [name for name in said if name != "of-bob" and name in said["of-bob"]]
    assert "of-bob" not in said["second"]
