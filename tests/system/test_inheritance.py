"""A job gets what the policy says, whatever shell or session drfd was started from; what the
session keyring holds for one job is out of every other's reach."""

import json
import os
import pwd
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher.runner import inheritance
from drfd.linux import syscalls
from instance import CONFIG, Instance, children_of, is_alive, wait_for

pytestmark = pytest.mark.system

_CAP_SYS_RESOURCE, _CAP_AUDIT_CONTROL = 24, 30

#: Gives itself what no job should inherit, and becomes the words that follow.
ODD = """
import ctypes, os, resource, sys
infinity = resource.RLIM_INFINITY
for name, soft in {"NOFILE": 333, "STACK": 1 << 20, "CORE": infinity, "MEMLOCK": 4096,
                   "MSGQUEUE": 1, "SIGPENDING": 77, "NPROC": 9999}.items():
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    if infinity != hard and (soft == infinity or soft > hard):
        soft = hard  # A small machine allows fewer processes.
    resource.setrlimit(kind, (soft, hard))
os.nice(7)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
libc = ctypes.CDLL(None)
libc.syscall(251 if os.uname().machine == "x86_64" else 30, 1, 0, 3 << 13)  # ioprio_set: idle
libc.prctl(29, 999_000, 0, 0, 0)  # PR_SET_TIMERSLACK
libc.personality(0x0040000)  # ADDR_NO_RANDOMIZE
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
def odd(make_instance, users) -> Instance:
    """A daemon that was started from a strange shell."""
    instance = make_instance(CONFIG)
    instance.before = [sys.executable, "-c", ODD]
    return instance.start()


@pytest.fixture
def home(odd, users) -> Path:
    return odd.home_for(users[0])


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


def test_a_job_inherits_the_policy_and_not_the_shell_of_who_started_drfd(odd, users, home):
    """It had the shell's limits, CPUs and priorities. The second job has a used runner."""
    for _ in range(2):
        job_id = odd.submit(
            "--", sys.executable, "-c", LOOK % NAMES, user=users[0].pw_uid, cwd=home, umask=0o022
        )
        odd.wait_end(job_id)
        check(json.loads(odd.output(job_id)), users[0], odd)


@pytest.mark.parametrize("event", ["start", "end"])
def test_so_does_a_command_that_tells_of_it(odd, users, home, event):
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


def test_drfds_own_processes_are_spared_by_the_oom_killer_and_leave_no_core(odd, users, home):
    """Without systemd they were killed as soon as any job, and with a runner its job is lost."""
    if not may(_CAP_SYS_RESOURCE) and int(Path("/proc/self/oom_score_adj").read_text()) > -500:
        try:
            before = Path("/proc/self/oom_score_adj").read_text()
            Path("/proc/self/oom_score_adj").write_text("-500")
            Path("/proc/self/oom_score_adj").write_text(before)
        except OSError:
            pytest.skip("this root may not lower the score of a process")
    odd.running("--", "sleep", "600", user=users[0].pw_uid, cwd=home)
    launcher = odd.launcher_pid()
    comm = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in children_of(launcher)}
    # Beside them is only the process that asks the user directory, which is begun again.
    runners = [pid for pid, name in comm.items() if name == "drfd-runner"]
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
def test_set_uid_programs_have_no_effect_where_the_site_says_so(make_instance, users, given_up):
    words = f"no_new_privs = {str(given_up).lower()}\n"
    instance = make_instance(CONFIG.replace("[enforcement]\n", f"[enforcement]\n{words}")).start()
    home = instance.home_for(users[0])
    shutil.copy("/usr/bin/id", home / "as-root")
    (home / "as-root").chmod(0o4755)
    if os.statvfs(home).f_flag & os.ST_NOSUID:
        pytest.skip("set-uid programs have no effect on this file system")
    job_id = instance.submit("--", sys.executable, "-c", SUDO, user=users[0].pw_uid, cwd=home)
    instance.wait_end(job_id)
    expected = f"1\n{users[0].pw_uid}\n" if given_up else "0\n0\n"
    assert instance.output(job_id) == expected


# -- session keyrings -------------------------------------------------------------------------

#: add_key(2) and keyctl(2), as ordinary programs use them.
KEYS = """
import ctypes, json, os, sys, time
add_number, keyctl_number = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
SESSION, USER = -3, -4
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def add(kind, name, payload, ring=SESSION):
    size = ctypes.c_size_t(len(payload or b""))
    return checked(libc.syscall(add_number, kind, name, payload, size, ring))
def keyctl(*words):
    return checked(libc.syscall(keyctl_number, *words))
def search(name, ring=SESSION):
    try:
        return keyctl(10, ring, b"user", name, 0)
    except OSError as error:
        return error.strerror
def read(key):
    buffer = ctypes.create_string_buffer(100)
    size = keyctl(11, key, buffer, ctypes.c_size_t(100))
    return buffer.raw[:size].decode()
"""
#: Runs the words that follow in a session keyring with a key of root's, as a log-in has one.
ROOTS_SESSION = (
    KEYS
    + """
keyctl(1, None)
key = add(b"user", b"of-root", b"root's passphrase")
keyctl(5, key, 0x3F3F3F3F)  # Whoever can find it may use it.
os.execv(sys.argv[1], sys.argv[1:])
"""
)
#: Leaves a key, looks for those of others, uses its keyring in every way, and waits.
USE = (
    KEYS
    + """
mine, *others = (name.encode() for name in sys.argv[1:])
ring = keyctl(0, SESSION, 0)
key = add(b"user", mine, b"ticket")
keyctl(5, key, 0x3F3F3F3F)
inner = add(b"keyring", b"inner", None)
deep = add(b"user", b"deep", b"treasure", inner)
found = {
    "ring": ring,
    "mine": read(search(mine)),
    "deep": read(search(b"deep")),
    "others": [search(name) for name in others],
    "owner": next(
        line.split()[5] for line in open("/proc/keys") if int(line.split()[0], 16) == ring
    ),
}
print(json.dumps(found), flush=True)
while not os.path.exists("gate"):
    time.sleep(0.05)
"""
)
Homes = tuple[Path, Path]
ABSENT = "Required key not available"


@pytest.fixture
def in_session(make_instance, users) -> Instance:
    """A daemon that root starts from a session with keys. `users`: that they can run Python."""
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("keyctl's numbers are known here for two machines")
    instance = make_instance(CONFIG)
    instance.before = [sys.executable, "-c", ROOTS_SESSION]
    return instance.start()


@pytest.fixture
def homes(in_session, users) -> Homes:
    return in_session.home_for(users[0]), in_session.home_for(users[1])


def use(
    instance: Instance, home: Path, uid: int, words: list[str], *options: str
) -> dict[str, Any]:
    """What such a job found; it goes on until there is a gate."""
    out = home / f"out-{words[0]}"
    instance.submit(
        *("-o", out, *options, "--", sys.executable, "-c", USE, *words), user=uid, cwd=home
    )
    wait_for("what it found", lambda: out.exists() and out.read_text(), show=instance.status)
    return dict(json.loads(out.read_text()))


def test_jobs_share_no_key_with_each_other_nor_with_the_daemons_session(in_session, users, homes):
    """In the launcher's keyring one user read another's ticket, and root's passphrase."""
    alice = use(in_session, homes[0], users[0].pw_uid, ["a", "of-root"])
    bob = use(in_session, homes[1], users[1].pw_uid, ["b", "a", "deep-a", "of-root"])
    again = use(in_session, homes[0], users[0].pw_uid, ["a2", "a", "of-root"])
    assert [alice["others"], bob["others"], again["others"]] == [
        [ABSENT],
        [ABSENT] * 3,
        [ABSENT] * 2,
    ]
    for found in (alice, bob, again):
        assert (found["mine"], found["deep"]) == ("ticket", "treasure")
    # Against root it would count for as long as somebody keeps it, with all keys in it.
    assert [alice["owner"], bob["owner"]] == [str(user.pw_uid) for user in users]
    assert len({found["ring"] for found in (alice, bob, again)}) == 3
    for home in homes:
        (home / "gate").touch()


#: What a command that tells of an end finds, and leaves; then its program ends.
TELL = USE.replace(
    "print(json.dumps(found), flush=True)\n", 'json.dump(found, open("told", "w"))\n'
)


@pytest.mark.parametrize("event", ["start", "end"])
def test_the_commands_that_tell_an_owner_have_their_own(in_session, users, homes, event):
    """They had the launcher's, like jobs."""
    (homes[0] / "gate").touch()
    (homes[1] / "tell.py").write_text(TELL)
    command = f"{sys.executable} tell.py n a of-root"
    alice = use(in_session, homes[0], users[0].pw_uid, ["a"])
    # That of a start is a part of the job, and ends with it.
    job = {"start": "while [ ! -s told ]; do sleep 0.1; done", "end": "true"}[event]
    in_session.submit(
        *("--notify", event, "--notify-command", command, "--", "sh", "-c", job),
        user=users[1].pw_uid,
        cwd=homes[1],
    )
    told = homes[1] / "told"
    wait_for("what it found", lambda: told.exists() and told.read_text())
    found = json.loads(told.read_text())
    assert (found["mine"], found["others"]) == ("ticket", [ABSENT] * 2)
    assert found["ring"] != alice["ring"]
    (homes[1] / "gate").touch()


# -- however its process is begun -------------------------------------------------------------

#: All that a job can see of how it was begun. Capability sets, masks and limits, its place in each
#: hierarchy and session, its mounts and namespaces, keys, descriptors.


# -- an owner is told of an end by a command: with whose rights, how often ----------------------


#: Who runs it, in which cgroup, and what it was told.
WHO = (
    "{ id -u; id -ru; id -G; pwd; grep -o 'job-[0-9]*-[0-9]*' /proc/self/cgroup | sort -u;"
    ' echo "$DRF_JOB_ID $DRF_STATE [$DRF_EXIT_CODE] [$DRF_SIGNAL] $HELLO"; } >> told'
)


def note(job: dict[str, Any]) -> str:
    (event,) = [event for event in job["events"] if event["event"] == "Cleaned"]
    return str(event["text"])


def test_the_command_runs_as_the_job_s_user_there(instance, users):
    alice, _ = users
    home = instance.home_for(alice)
    job_id = instance.submit(
        "--notify", "end", "--notify-command", WHO, "--", "sh", "-c", "exit 3",
        user=alice.pw_uid, cwd=home, env={"HELLO": "ü"},
    )  # fmt: skip
    job = instance.wait_end(job_id)
    assert (job["state"], note(job)) == ("FAILED", "notification told")
    uid, real, groups, directory, place, told = (home / "told").read_text().splitlines()
    assert (int(uid), int(real)) == (alice.pw_uid, alice.pw_uid)
    assert {int(gid) for gid in groups.split()} == set(os.getgrouplist(alice.pw_name, alice.pw_gid))
    assert (directory, place) == (str(home), f"job-{job_id}-1")
    assert told == f"{job_id} FAILED [3] [] ü"
    assert (home / "told").stat().st_uid == alice.pw_uid
    assert instance.cgroups() == []


def test_it_is_told_why_a_limit_ended_the_job(instance):
    command = 'echo "$DRF_STATE $DRF_SIGNAL $DRF_REASON" > told'
    words = ("--notify", "fail", "--notify-command", command)
    job_id = instance.submit(*words, "-t", "1s", "--", "sleep", "600")
    assert instance.wait_end(job_id)["state"] == "TIMEOUT"
    assert (instance.work / "told").read_text().startswith("TIMEOUT 15 ran for its whole time")


def test_a_failure_is_told_and_changes_nothing(instance):
    """Here of a command that takes more memory than the job has."""
    words = ("-m", "64M", "--notify-command", "head -c 300m /dev/zero | tail")
    job = instance.ended(*words, "--", "true")
    assert (job["state"], job["exit_code"]) == ("COMPLETED", 0)
    assert note(job).startswith("notification failed: ")
    assert instance.cgroups() == []


def test_the_rest_of_the_machine_is_free_while_it_runs(instance):
    """The next job waited for it for up to thirty seconds."""
    whole = ("-c", "8.75", "-m", "16G")
    words = ("--notify", "end", "--notify-command", "echo > begun; while [ ! -e go ]; do :; done")
    job_id = instance.submit(*words, *whole, "--", "true")
    wait_for("the command", (instance.work / "begun").exists)
    assert instance.ended(*whole, "--", "true")["state"] == "COMPLETED"
    assert instance.show(job_id)["state"] == "CLEANING"
    (instance.work / "go").touch()
    assert note(instance.wait_end(job_id)) == "notification told"


def test_what_it_leaves_behind_is_ended_with_the_job(instance):
    words = ("--notify-command", "setsid sleep 1000 & echo $! > pid")
    job = instance.ended(*words, "--", "true")
    pid = int((instance.work / "pid").read_text())
    assert note(job) == "notification told"
    # Whoever is its parent by now may have it to reap still.
    assert not is_alive(pid)
    assert instance.cgroups() == []


def test_an_end_that_drfd_has_not_seen_is_told_when_it_is_back(instance):
    words = ("--notify-command", "echo $DRF_STATE >> told")
    wait = "while [ ! -e go ]; do sleep 0.05; done"
    job_id = instance.running(*words, "--", "sh", "-c", wait)["id"]
    instance.kill()
    (instance.work / "go").touch()
    attempt = Path(instance.state, "launcher", "attempts", f"{job_id}.1")
    wait_for("the end, unseen by drfd", lambda: '"exited"' in attempt.read_text())
    time.sleep(0.2)
    assert not (instance.work / "told").exists(), "nobody has judged it yet"
    instance.start()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert (instance.work / "told").read_text() == "COMPLETED\n"
