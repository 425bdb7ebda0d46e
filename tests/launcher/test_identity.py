"""Whom a job runs as, and with which variables."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from drfd.launcher import identity
from drfd.launcher.identity import Denied
from launcher.rig import order, python


def alice(shell: str = "/bin/zsh") -> pwd.struct_passwd:
    return pwd.struct_passwd(("alice", "x", 1001, 1001, "Alice", "/home/alice", shell))


as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot become anybody")
not_root = pytest.mark.skipif(os.getuid() == 0, reason="root can become anybody")


def run(code: str, *words: object) -> object:
    """What `code` prints as JSON, in a process of its own."""
    setup = "import json, os, pwd; from drfd.launcher import identity\n"
    done = subprocess.run(python(setup + code, *words), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def without_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)


# -- accounts -------------------------------------------------------------------------------


def test_an_account_is_that_of_the_password_database() -> None:
    entry = pwd.getpwall()[0]
    assert identity.account(entry.pw_uid).pw_uid == entry.pw_uid


@pytest.mark.parametrize("uid", [3_999_999_999, (1 << 32) - 1, 1 << 32, 1 << 64])
def test_a_uid_without_account_is_denied(uid: int) -> None:
    """Among them the number that setresuid(2) takes for "leave it as it is"."""
    with pytest.raises(Denied, match=f"no user with uid {uid} any more"):
        identity.account(uid)


def test_our_own_bare_uid_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container there may be no name for it."""
    without_account(monkeypatch)
    mine = identity.account(os.getuid())
    assert (mine.pw_name, mine.pw_uid) == (str(os.getuid()), os.getuid())
    assert (mine.pw_gid, mine.pw_shell) == (os.getgid(), "/bin/sh")


def test_somebody_elses_bare_uid_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    without_account(monkeypatch)
    with pytest.raises(Denied):
        identity.account(os.getuid() + 1)


# -- becoming somebody ----------------------------------------------------------------------


@not_root
def test_an_ordinary_user_becomes_nobody_else() -> None:
    other = pwd.struct_passwd(("x", "x", os.getuid() + 1, os.getgid(), "", "/", "/bin/sh"))
    with pytest.raises(Denied, match=f"cannot become {os.getuid() + 1}"):
        identity.become(other, [], os.getgid())


@not_root
def test_an_ordinary_user_stays_what_it_is() -> None:
    mine = identity.account(os.getuid())
    before = (os.getresuid(), os.getresgid(), os.getgroups())
    identity.become(mine, [], mine.pw_gid + 1)
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before


#: Runs as root; the database's groups are the test's own, as there may be none on the machine.
BECOME = """
os.setgroups([0, 4, 24])
user = pwd.struct_passwd(("x", "x", 64321, 64320, "", "/", "/bin/sh"))
os.getgrouplist = lambda name, gid: [gid, 54321, 54322]
identity.become(user, identity.groups_of(user), int(sys.argv[1]))
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
def refused(call, *args):
    try: call(*args)
    except PermissionError: return True
print(json.dumps({
    "ids": [status[name].split() for name in ("Uid", "Gid")],
    "groups": sorted(map(int, status["Groups"].split())),
    "capabilities": [int(status[name], 16) for name in ("CapPrm", "CapEff")],
    "no way back": [refused(os.setuid, 0), refused(os.setgid, 0), refused(os.setgroups, [0])],
}))
"""


@as_root
@pytest.mark.parametrize(
    ("preferred", "gid"),
    [(64320, 64320), (54322, 54322), (0, 64320), (12345, 64320)],
    ids=["own", "member", "root's", "stranger's"],
)
def test_root_drops_everything_and_prefers_only_groups_of_the_user(
    preferred: int, gid: int
) -> None:
    assert run(BECOME, preferred) == {
        "ids": [["64321"] * 4, [str(gid)] * 4],
        "groups": [54321, 54322, 64320],
        "capabilities": [0, 0],
        "no way back": [True, True, True],
    }


#: prctl(PR_SET_SECUREBITS, …) before it becomes somebody else; -1: the kernel does not tell.
KEEP = """
import ctypes
from drfd.launcher import process
bits = int(sys.argv[1])
if bits < 0: process._libc.prctl = lambda *args: -1
else: assert ctypes.CDLL(None).prctl(28, bits, 0, 0, 0) == 0
user = pwd.struct_passwd(("x", "x", 64321, 64320, "", "/", "/bin/sh"))
try: identity.become(user, [], 64320)
except identity.Denied as error: print(json.dumps(str(error)))
else: print(json.dumps(os.getresuid()))
"""


@as_root
def test_where_capabilities_outlive_root_nobody_becomes_anybody() -> None:
    no_set_uid_fix_up = 1 << 2
    said = run(KEEP, no_set_uid_fix_up)
    assert said == "root's rights could be had back after they were dropped"


@as_root
@pytest.mark.parametrize("bits", [1 << 4, -1], ids=["kept, but not in use", "not told"])
def test_rights_that_cannot_be_had_back_are_in_nobodys_way(bits: int) -> None:
    assert run(KEEP, bits) == [64321] * 3


# -- the environment ------------------------------------------------------------------------


def test_drfds_variables_win_over_the_accounts_and_those_over_the_submitters() -> None:
    asked = order(
        cwd=Path("/data"),
        env={
            "PATH": "/opt/bin",
            "LANG": "C.UTF-8",
            "HOME": "/root",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/evil",
            "PWD": "/",
            "DRF_JOB_ID": "7",
        },
        variables={"DRF_JOB_ID": "1", "SHELL": "/bin/ours"},
    )
    assert identity.environment(alice(), asked) == {
        "PATH": "/opt/bin",
        "LANG": "C.UTF-8",
        "HOME": "/home/alice",
        "USER": "alice",
        "LOGNAME": "alice",
        "SHELL": "/bin/ours",
        "PWD": "/data",
        "DRF_JOB_ID": "1",
    }


def test_a_bare_environment_has_a_path_and_the_account() -> None:
    assert identity.environment(alice(), order(cwd=Path("/"))) == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/alice",
        "USER": "alice",
        "LOGNAME": "alice",
        "SHELL": "/bin/zsh",
        "PWD": "/",
    }


def test_an_account_without_shell_has_the_systems() -> None:
    assert identity.environment(alice(shell=""), order(cwd=Path("/")))["SHELL"] == "/bin/sh"


@pytest.mark.parametrize(
    "name",
    [
        "INVOCATION_ID",
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "JOURNAL_STREAM",
        "MAINPID",
        "DRFD_FAILPOINTS",
    ],
)
def test_what_describes_a_service_does_not_reach_a_job(name: str) -> None:
    asked = order(cwd=Path("/"), env={name: "1", f"MY_{name}": "2"})
    env = identity.environment(alice(), asked)
    assert name not in env
    assert env[f"MY_{name}"] == "2"


def test_an_order_is_not_changed_by_making_its_environment() -> None:
    asked = order(cwd=Path("/"), env={"MAINPID": "1"}, variables={"A": "1"})
    identity.environment(alice(), asked)
    assert asked == order(cwd=Path("/"), env={"MAINPID": "1"}, variables={"A": "1"})


# -- scores and limits ----------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 300])
def test_a_job_is_as_likely_to_be_killed_as_any_program(before: int) -> None:
    code = """
file = "/proc/self/oom_score_adj"
open(file, "w").write(sys.argv[1])
identity.reset_oom_score()
print(open(file).read())
"""
    assert run(code, before) == 0


@as_root
def test_a_score_that_may_not_be_lowered_stays() -> None:
    """User managers of systemd give their processes a score of 100 or 200, as root: an ordinary
    user's drfd that is started there cannot go below it, and its jobs must run all the same."""
    code = """
import ctypes
file = "/proc/self/oom_score_adj"
open(file, "w").write("200")
os.setresuid(64321, 64321, 64321)
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after exec, /proc/self is ours
try:
    open(file, "w").write("0")
except PermissionError:
    identity.reset_oom_score()
    print(open(file).read())
else:
    print("null")
"""
    after = run(code)
    if after is None:
        pytest.skip("root lacks CAP_SYS_RESOURCE here: what it has set is not held")
    assert after == 200


def test_the_directory_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(identity, "account", lambda uid: asked.append(uid) or alice())
    monkeypatch.setattr(identity, "groups_of", lambda user: [100])
    clock = iter([10.0, 10.9, 11.0, 11.1, 11.2])
    monkeypatch.setattr(identity.time, "monotonic", lambda: next(clock))
    directory = identity.Directory()
    assert [directory.look_up(1) for _ in range(3)] == [(alice(), [100])] * 3
    assert asked == [1, 1], "one that has left a group is out of it a second later"
    directory.look_up(2)
    directory.look_up(1)
    assert asked == [1, 1, 2, 1]


def test_who_is_in_no_directory_is_denied_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    without_account(monkeypatch)
    directory = identity.Directory()
    for _ in range(2):
        with pytest.raises(Denied):
            directory.look_up(os.getuid() + 1)
