"""A job gets what the policy says, whatever shell drfd was started from."""

from __future__ import annotations

import json
import os
import pwd
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher.runner import inheritance
from drfd.linux import syscalls
from instance import CONFIG, Accounts, Instance, wait_for

pytestmark = pytest.mark.system

ROOT = Path(syscalls.__file__).parents[2]
_CAP_SYS_RESOURCE, _CAP_AUDIT_CONTROL = 24, 30

#: Gives itself what no job should inherit, and becomes the words that follow.
ODD = f"""
import os, resource, sys
sys.path.insert(0, {str(ROOT)!r})
from drfd.linux import syscalls
infinity = resource.RLIM_INFINITY
for name, soft in {{"NOFILE": 333, "STACK": 1 << 20, "CORE": infinity, "MEMLOCK": 4096,
                   "MSGQUEUE": 1, "SIGPENDING": 77, "NPROC": 9999}}.items():
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    if infinity != hard and (soft == infinity or soft > hard):
        soft = hard  # A small machine allows fewer processes.
    resource.setrlimit(kind, (soft, hard))
os.nice(7)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
syscalls._ioprio_set(1, 0, 3 << 13)  # idle
syscalls.set_timer_slack(999_000)
syscalls.set_personality(0x0040000)  # ADDR_NO_RANDOMIZE
os.umask(0o007)
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("321")
os.execv(sys.argv[1], sys.argv[1:])
"""
#: What a job has got.
LOOK = """
import ctypes, json, os, resource
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
number = {"x86_64": 252, "aarch64": 31}.get(os.uname().machine)
def read(path):
    return open(path).read().strip() if os.path.exists(path) else None
print(json.dumps({
    "limits": {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in %r},
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "policy": os.sched_getscheduler(0),
    "cpus": sorted(os.sched_getaffinity(0)),
    "io": number and ctypes.CDLL(None).syscall(number, 1, 0) >> 13,
    "slack": read("/proc/self/timerslack_ns"),
    "personality": int(read("/proc/self/personality"), 16),
    "umask": int(status["Umask"], 8),
    "oom": read("/proc/self/oom_score_adj"),
    "login": read("/proc/self/loginuid"),
    "groups": sorted(os.getgroups()),
    "no new privileges": status["NoNewPrivs"],
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
}))
"""
NAMES = [*inheritance.LIMITS, *inheritance._threads()]


@pytest.fixture
def odd(make_instance: Callable[..., Instance], users: Accounts) -> Instance:
    """A daemon that was started from a strange shell."""
    instance = make_instance(CONFIG)
    instance.before = [sys.executable, "-c", ODD]
    return instance.start()


@pytest.fixture
def home(odd: Instance, users: Accounts) -> Path:
    found = odd.root / "home"
    found.mkdir()
    os.chown(found, users[0].pw_uid, users[0].pw_gid)
    return found


def may(capability: int) -> bool:
    return bool(syscalls.capabilities().effective >> capability & 1)


def expected(name: str, instance: Instance) -> list[int]:
    """The policy's soft and hard limit, as far as this root may give it."""
    soft, hard = {**inheritance.LIMITS, **inheritance._threads()}[name]
    if name == "NPROC":
        soft = hard = min(hard, instance._ask("doctor")["processes"]["per_user"])
    if not may(_CAP_SYS_RESOURCE):
        hard = inheritance._least(hard, resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1])
    return [inheritance._least(soft, hard), hard]


def check(found: dict[str, Any], user: pwd.struct_passwd, instance: Instance) -> None:
    before = Path("/proc/self/loginuid")
    assert found["limits"] == {name: expected(name, instance) for name in NAMES}
    assert (found["nice"], found["policy"], found["io"] or 0) == (0, os.SCHED_OTHER, 0)
    assert found["cpus"] == sorted(os.sched_getaffinity(1))
    assert (found["slack"], found["personality"]) == ("50000", 0)
    assert (found["umask"], found["oom"]) == (0o022, "0")
    if before.exists() and may(_CAP_AUDIT_CONTROL) and before.read_text() == "4294967295":
        assert found["login"] == str(user.pw_uid)
    assert found["groups"] == sorted(os.getgrouplist(user.pw_name, user.pw_gid))
    assert found["no new privileges"] == "0"
    assert found["capabilities"] == ["0" * 16] * 4


def test_a_job_inherits_the_policy_and_not_the_shell_of_who_started_drfd(
    odd: Instance, users: Accounts, home: Path
) -> None:
    """It had that shell's limits, nice value, CPUs, scheduling policy and I/O priority, and no
    login uid, so that audit could not say whose it was. The second job has a used runner."""
    for _ in range(2):
        job_id = odd.submit(
            "--", sys.executable, "-c", LOOK % NAMES, user=users[0].pw_uid, cwd=home, umask=0o022
        )
        odd.wait_end(job_id)
        check(json.loads(odd.output(job_id)), users[0], odd)


@pytest.mark.parametrize("event", ["start", "end"])
def test_so_does_a_command_that_tells_of_it(
    odd: Instance, users: Accounts, home: Path, event: str
) -> None:
    (home / "look.py").write_text(LOOK % NAMES)
    command = f"{sys.executable} look.py > told.new; mv told.new told"
    # What tells of a start ends with the job.
    lasts_s = "600" if event == "start" else "1"
    odd.submit(
        *("--notify", event, "--notify-command", command, "--", "sleep", lasts_s),
        user=users[0].pw_uid, cwd=home, umask=0o022,
    )  # fmt: skip
    wait_for("what it found", (home / "told").exists)
    found = json.loads((home / "told").read_text())
    check(found, users[0], odd)


def test_drfds_own_processes_are_spared_by_the_oom_killer_and_leave_no_core(
    odd: Instance, users: Accounts, home: Path
) -> None:
    """Without systemd they were as likely to be killed as any job: and with a runner its job is
    lost."""
    if not may(_CAP_SYS_RESOURCE) and int(Path("/proc/self/oom_score_adj").read_text()) > -500:
        try:
            before = Path("/proc/self/oom_score_adj").read_text()
            Path("/proc/self/oom_score_adj").write_text("-500")
            Path("/proc/self/oom_score_adj").write_text(before)
        except OSError:
            pytest.skip("this root may not lower the score of a process")
    job_id = odd.submit("--", "sleep", "600", user=users[0].pw_uid, cwd=home)
    odd.wait_state(job_id, "RUNNING")
    launcher = odd.launcher_pid()
    runners = [
        int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    ]
    assert runners
    assert odd.process is not None
    for pid in (odd.process.pid, launcher, *runners):
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "-500"
    for pid in (launcher, *runners):
        assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] in (0, 1)


SUDO = """
import os, subprocess
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")))
print(subprocess.run(["./as-root", "-u"], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.parametrize("given_up", [False, True])
def test_set_uid_programs_have_no_effect_where_the_site_says_so(
    make_instance: Callable[..., Instance], users: Accounts, given_up: bool
) -> None:
    words = f"no_new_privs = {str(given_up).lower()}\n"
    instance = make_instance(CONFIG.replace("[enforcement]\n", f"[enforcement]\n{words}")).start()
    home = instance.root / "home"
    home.mkdir()
    shutil.copy("/usr/bin/id", home / "as-root")
    (home / "as-root").chmod(0o4755)
    os.chown(home, users[0].pw_uid, users[0].pw_gid)
    if os.statvfs(home).f_flag & os.ST_NOSUID:
        pytest.skip("set-uid programs have no effect on this file system")
    job_id = instance.submit("--", sys.executable, "-c", SUDO, user=users[0].pw_uid, cwd=home)
    instance.wait_end(job_id)
    expected = f"1\n{users[0].pw_uid}\n" if given_up else "0\n0\n"
    assert instance.output(job_id) == expected
