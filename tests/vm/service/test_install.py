"""Installed from wheels, without a network: what an administrator and the users find, what a job is
and has, and how little the controller may do, if somebody took it over."""

import grp
import json
import os
import pwd
import re
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from drfd.payload.environment import DEFAULTS
from vm.service.installed import BIN, UNITS, USERS, ask, main_pid, run, unit


def test_the_three_services_run_and_will_after_a_boot(installed):
    for name in UNITS:
        found = unit(name, "ActiveState", "UnitFileState", "NRestarts")
        assert found == {"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "0"}
    assert run("systemctl", "--failed", "--quiet", "--no-legend").stdout == ""


def test_installing_again_writes_nothing_and_restarts_all_but_what_holds_the_jobs(installed):
    before = {name: main_pid(name) for name in UNITS}
    done = run(BIN / "drfd", "install")
    assert [line for line in done.stdout.splitlines() if not line.startswith("run ")] == [
        "drfd runs; try drf doctor"
    ]
    assert done.stderr == ""
    after = {name: main_pid(name) for name in UNITS}
    assert [name for name in UNITS if before[name] == after[name]] == ["drfd-jobs"]


def test_the_launcher_of_slurms_nodes_stays_away_where_there_are_none(installed):
    """The controller's unit has asked for it."""
    found = unit("drfd-slurm-launcher", "LoadState", "ActiveState", "MainPID")
    assert found == {"LoadState": "loaded", "ActiveState": "inactive", "MainPID": "0"}


def test_units_and_state_are_as_closed_as_they_should_be(installed):
    modes = {
        "/var/lib/drfd/controller": 0o700,
        "/var/lib/drfd/launcher": 0o711,
        "/var/lib/drfd/launcher/attempts": 0o700,
        "/run/drfd": 0o755,
        "/run/drfd/drfd.sock": 0o666,
        "/etc/drfd/drfd.toml": 0o644,
    }
    assert {path: stat.S_IMODE(os.stat(path).st_mode) for path in modes} == modes


def test_doctor_finds_every_limit_enforced(installed):
    found = ask("doctor")
    assert (found["enforcement"], found["launcher"]) == ("cgroup-v2", "connected")
    controls = found["controls"]
    assert {controls[name] for name in ("cores", "memory", "read", "write")} == {"enforced"}
    (disk,) = found["disks"]
    assert (disk["filesystem"], disk["problem"]) == ("ext4", "")


@pytest.mark.parametrize("user", USERS)
def test_a_user_submits_and_reads_what_the_job_says(installed, user):
    """By the programs that were linked into everybody's path, from a log-in."""
    said = installed.login(user, "drf submit -w -m 32M -o said -- sh -c 'id -un; pwd'; cat said")
    job, *words = said.splitlines()
    assert job.startswith("submitted job ")
    assert words == [user, str(installed.work(user))]
    ended = installed.login(user, "drf submit -q -w -m 32M -- sh -c 'exit 3'", check=False)
    job_id, said = ended.splitlines()
    assert said == f"drf: job {job_id} FAILED: exit code 3"
    assert installed.show(int(job_id))["exit_code"] == 3


def test_a_job_attached_to_the_terminal_runs_as_the_user(installed):
    said = installed.login("carol", "echo question | drf run -m 32M -- sh -c 'cat; id -un'")
    assert said == "question\ncarol\n"


def test_the_manual_has_pages(installed):
    """Found by name and rendered, with every verb and every key in them."""
    drf = run("man", "drf", env={**os.environ, "MANWIDTH": "80"}).stdout
    assert "queue, watch and control batch jobs" in drf
    assert "drf submit" in drf and "drf shares" in drf
    assert "drfd install" in run("man", "8", "drfd").stdout
    assert "reserve_memory" in run("man", "drfd.toml").stdout


def test_bash_completes_verbs(installed):
    script = (
        "source /usr/local/share/bash-completion/completions/drf;"
        " COMP_WORDS=(drf sub); COMP_CWORD=1; _drf_completion drf; echo ${COMPREPLY[*]}"
    )
    assert installed.login("alice", script) == "submit\n"


# -- what a job is and has: nothing that the services are or have -------------------------------

ROOT = Path(__file__).parents[3]
PROBE = Path(__file__).with_name("probe.py")
UNLIMITED = -1
NONE = "0" * 16
SCRIPT = f"""
    cd ~/work && umask 027 &&
    SOME_TOKEN=secret INVOCATION_ID=x NOTIFY_SOCKET=x JOURNAL_STREAM=1:2 MARK='of alice' \
    drf submit -q -w -m 64M -c 0.5 -n probe -o said -e errors -- /usr/bin/python3 -I {PROBE}
"""


@pytest.fixture(scope="module")
def probed(installed) -> tuple[int, dict[str, Any]]:
    """The id of alice's job, and what it has found."""
    job_id = int(installed.login("alice", SCRIPT))
    work = installed.work("alice")
    assert (work / "errors").read_text() == ""
    return job_id, json.loads((work / "said").read_text())


THREAD_COUNTS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS", "JULIA_NUM_THREADS", "RAYON_NUM_THREADS"),
    *("POLARS_MAX_THREADS", "GOMAXPROCS", "PYTHON_CPU_COUNT", "LOKY_MAX_CPU_COUNT", "MC_CORES"),
    *("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots"),
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
            **DEFAULTS,
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
        "cgroup": f"0::/drfd.slice/drfd-jobs.service/jobs/of-alice/job-{job_id}-1",
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


def test_a_job_has_what_the_golden_list_says_only(probed):
    job_id, seen = probed
    assert seen == golden(job_id, seen)


def test_what_raises_rights_works_in_a_job(installed):
    """No sandbox of a service's is around it: programs with the set-user-id bit keep it."""
    job_id = installed.submit("bob", "sudo", "-n", "true", stderr="sudo-said")
    installed.wait_end(job_id)
    said = Path(installed.show(job_id)["stderr"]).read_text()
    # As root it asks for bob's password; otherwise it complains of its own rights.
    assert "a password is required" in said


# -- what the controller's process may do: next to nothing --------------------------------------

#: With its ids, in its mount and network namespaces, without capabilities: as one who is in it.
AS_DRFD = (
    "setpriv", "--reuid=drfd", "--regid=drfd", "--clear-groups", "--inh-caps=-all",
    "--bounding-set=-all", "--no-new-privs",
)  # fmt: skip


def as_drfd(script: str) -> str:
    """What a shell with the rights of the running controller says; its errors too."""
    words = ("nsenter", "-t", main_pid("drfd"), "-m", "-n", "--", *AS_DRFD, "sh", "-c", script)
    done = run(*words, check=False)
    return done.stdout + done.stderr


def status_of(name: str) -> dict[str, str]:
    lines = Path(f"/proc/{main_pid(name)}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def test_it_has_no_capabilities_and_can_get_none(installed):
    status = status_of("drfd")
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {status[name] for name in names} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "0" not in status["Uid"].split() + status["Gid"].split()
    assert status["Groups"].strip() in ("", status["Gid"].split()[0])


def test_it_cannot_read_what_a_user_keeps_to_herself(installed):
    secret = installed.work("alice") / "secret"
    secret.write_text("private\n")
    secret.chmod(0o600)
    os.chown(secret, installed.work("alice").stat().st_uid, -1)
    said = as_drfd(f"cat {secret}; cat /etc/shadow; ls /var/lib/drfd/launcher/attempts")
    assert said.count("Permission denied") == 3 and "private" not in said
    seen = installed.login("alice", "cat secret")
    assert seen == "private\n"


def test_it_can_write_its_two_directories_and_nothing_else(installed):
    places = ("/etc", "/home", "/home/alice/work", "/usr/local/bin", "/var/lib/drfd",
              "/var/lib/drfd/launcher", "/var/tmp/..", "/sys/fs/cgroup", "/dev", "/run",
              "/opt/drfd")  # fmt: skip
    own = ("/var/lib/drfd/controller", "/run/drfd", "/tmp")
    script = "; ".join(f"(: >{place}/mark) 2>/dev/null && echo {place}" for place in places + own)
    assert as_drfd(script).split() == list(own)
    assert not Path("/tmp/mark").exists(), "its /tmp is its own"
    as_drfd("rm -f " + " ".join(f"{place}/mark" for place in own))


def test_it_reaches_no_network_and_no_process_of_a_user(installed):
    (job_id,) = installed.running("alice")
    job = installed.show(job_id)
    pid = Path("/sys/fs/cgroup", job["cgroup"], "cgroup.procs").read_text().split()[0]
    said = as_drfd(f"kill -9 {pid}; cat /proc/{pid}/environ; ls -l /proc/{pid}/cwd; ip -o link")
    assert "not permitted" in said
    assert said.count("ermission denied") == 2
    links = [line for line in said.splitlines() if re.match(r"\d+: ", line)]
    assert [" lo:" in link for link in links] == [True]
    assert installed.show(job_id)["state"] == "RUNNING"
    installed.as_user("alice", "cancel", select={"ids": [job_id]})
    assert installed.wait_end(job_id)["signal"] == signal.SIGTERM


def test_the_process_that_keeps_the_jobs_unit_alive_can_do_nothing(installed):
    """It sleeps. Jobs have none of this: see test_identity."""
    keeper = main_pid("drfd-jobs")
    status = status_of("drfd-jobs")
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    place = Path(f"/proc/{keeper}/cgroup").read_text()
    assert place == "0::/drfd.slice/drfd-jobs.service/keeper\n"


@pytest.mark.parametrize("name", ["drfd", "drfd-launcher", "drfd-jobs"])
def test_its_exposure_is_no_more_than_documented(installed, name):
    written = (ROOT / "docs/decisions.md").read_text()
    (limit,) = re.findall(rf"`{name}` scores (\d+\.\d)", written)
    said = run("systemd-analyze", "security", "--no-pager", name).stdout
    (exposure,) = re.findall(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert float(exposure) <= float(limit), said
