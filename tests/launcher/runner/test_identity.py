"""Whom a job runs as, with which variables, and what it inherits: as docs/enforcement.md says it,
and as far as it can be had."""

import errno
import json
import os
import pwd
import resource
import selectors
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from drfd.launcher.protocol import AttemptLimits
from drfd.launcher.runner import identity, inheritance
from drfd.launcher.slurm_root.preparation import environment
from drfd.launcher.system import answers
from drfd.launcher.system.accounts import AccountProcess, Denied, DirectoryFailed
from drfd.launcher.system.background import BackgroundWork
from drfd.linux import syscalls
from drfd.linux.own_process import NOBODY
from drfd.payload.environment import DEFAULTS
from launcher.rig import ROOT, WAIT_S, Asked, order, python

#: Of this process, as a launcher would be.
OWN = os.getuid(), os.getgid()


def alice(shell: str = "/bin/zsh") -> pwd.struct_passwd:
    return pwd.struct_passwd(("alice", "x", 1001, 1001, "Alice", "/home/alice", shell))


def surroundings(asked: Asked) -> dict[str, str]:
    """The environment of alice's job."""
    return environment(alice(), asked.order, asked.content)


as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot become anybody")


def run(code: str, *words: object) -> object:
    """What `code` prints as JSON, in a process of its own."""
    setup = "import json, os, pwd, resource\nfrom drfd.linux import syscalls\n"
    setup += "from drfd.launcher.system import answers\n"
    setup += "from drfd.linux.own_process import drop_rights\n"
    setup += "from drfd.launcher.runner import identity, inheritance\n"
    done = subprocess.run(python(setup + code, *words), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def without_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    monkeypatch.setattr(syscalls, "has_account", lambda uid: False)


# -- accounts -------------------------------------------------------------------------------


def test_an_account_whose_name_is_not_utf_8_is_found(monkeypatch):
    """The daemon knows it as it writes it; the system is asked with the name as it is."""
    entry = next(each for each in pwd.getpwall() if each.pw_uid != os.getuid())
    raw = os.fsdecode(b"m\xfcller")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd((raw, *entry[1:])))
    user = answers.account(entry.pw_uid, r"m\xfcller", OWN)
    assert user.pw_name == raw
    assert answers.groups_of(user) == [entry.pw_gid]


def test_an_account_that_has_another_name_by_now_is_denied():
    """The queued jobs of a deleted account ran as whoever got its uid next."""
    entry = next(each for each in pwd.getpwall() if each.pw_uid != os.getuid())
    with pytest.raises(Denied, match=f"the account gone no longer has uid {entry.pw_uid}"):
        answers.account(entry.pw_uid, "gone", OWN)


@pytest.mark.parametrize("uid", [3_999_999_999, (1 << 32) - 1, 1 << 32, 1 << 64])
def test_a_uid_without_account_is_denied(uid):
    """Among them the number that setresuid(2) takes for "leave it as it is"."""
    with pytest.raises(Denied, match=f"no user with uid {uid} any more"):
        answers.account(uid, "alice", OWN)


def test_a_directory_that_cannot_say_does_not_deny(monkeypatch):
    """Python's `pwd` says the same of it as of a uid without an account."""
    without_account(monkeypatch)

    def has_account(uid: int) -> bool:
        raise OSError(errno.ECONNREFUSED, "getpwuid_r")

    monkeypatch.setattr(syscalls, "has_account", has_account)
    with pytest.raises(DirectoryFailed, match="Connection refused"):
        answers.account(os.getuid() + 1, "alice", OWN)


def test_our_own_bare_uid_will_do_and_nobody_elses(monkeypatch):
    """In a container there may be no name for it."""
    without_account(monkeypatch)
    mine = answers.account(os.getuid(), "alice", OWN)
    assert (mine.pw_name, mine.pw_uid) == (str(os.getuid()), os.getuid())
    assert (mine.pw_gid, mine.pw_shell) == (os.getgid(), "/bin/sh")
    with pytest.raises(Denied):
        answers.account(os.getuid() + 1, "alice", OWN)


class Directory:
    """The directory of a launcher's, where the modules of the system say what `says` says."""

    def __init__(self, place: Path, patch: str = "") -> None:
        self._said = place / "said"
        code = (
            "import errno, json, os, pwd, time\n"
            "from drfd.launcher.system import answers, nobody\n"
            "from drfd.linux import syscalls\n"
            f"said = os.open({str(self._said)!r}, os.O_RDONLY)\n"
            "def says(): return json.loads(os.pread(said, 1 << 16, 0))\n"
            "def fails(number): raise OSError(number, 'of the directory')\n"
            "pwd.getpwuid = lambda uid: pwd.struct_passwd(says()['user'])\n"
            "os.getgrouplist = lambda name, gid: says()['groups']\n"
            "syscalls.has_group = lambda gid: says()['has_group'] or fails(errno.EAGAIN)\n"
        )
        self._values: dict[str, object] = {}
        self.says(user=list(alice()), groups=[1001], has_group=True)
        program = python(
            f"{code}{patch}\nnobody.main('drfd.launcher.system.answers', *sys.argv[1:])"
        )
        self._selector = selectors.DefaultSelector()
        work = BackgroundWork(self._selector)
        self._accounts = AccountProcess(work, self._selector, program)
        self._directory = identity.Directory(self._accounts)

    def close(self) -> None:
        """Wait for the end of the process that asks."""
        if self._accounts._questions is not None:
            self._accounts._questions.shutdown(socket.SHUT_RDWR)
        while self._selector.get_map():
            for chosen, _ in self._selector.select(WAIT_S):
                chosen.data()
        self._selector.close()

    def says(self, **values: object) -> None:
        self._values |= values
        self._said.write_text(json.dumps(self._values))

    def look_up(self, uid: int, name: str, gid: int = 0) -> identity.Found:
        asked = order(cwd=Path("/"), uid=uid, user=name, gid=gid).order
        answers: list[Denied | DirectoryFailed | None] = []
        if (found := self._directory.known(asked)) is not None:
            return found
        self._directory.ask(asked, answers.append)
        self._directory.ask(asked, answers.append)
        while not answers:
            for chosen, _ in self._selector.select(WAIT_S):
                chosen.data()
        assert answers[0] is answers[1], "both have waited for one answer"
        if answers[0] is not None:
            raise answers[0]
        return self._directory._known[uid, name][2]

    def await_answers(self) -> None:
        """Take the answers to what is asked after launches."""
        while self._directory.pause_s() is not None:
            self._directory.run_due()
        while self._directory._asked:
            for chosen, _ in self._selector.select(WAIT_S):
                chosen.data()


@pytest.fixture
def open_directory(
    tmp_path, monkeypatch, forks_beside_threads
) -> Iterator[Callable[..., Directory]]:
    opened: list[Directory] = []
    # The machine's own change at any time: somebody, or a test beside this one, makes an account.
    monkeypatch.setattr(identity, "_FILES", (tmp_path / "passwd",))

    def open_directory(patch: str = "") -> Directory:
        opened.append(Directory(tmp_path, patch))
        return opened[-1]

    yield open_directory
    for directory in opened:
        directory.close()


def test_a_directory_that_hangs_is_given_up(open_directory, monkeypatch):
    """It is another process that waits for it; the launcher goes on."""
    monkeypatch.setattr(identity, "_ANSWER_S", 1)
    directory = open_directory("pwd.getpwuid = lambda uid: time.sleep(60)")
    with pytest.raises(DirectoryFailed, match="timed out"):
        directory.look_up(os.getuid(), "alice")


@pytest.mark.parametrize(
    "entry", [["alice", "x", 0, 0, "", "/", "/bin/sh"], ["alice"], [1, 2, 1001, 1, 1, 1, 1], 7]
)
def test_an_answer_about_somebody_else_is_none(open_directory, entry):
    """A module may be led astray by its server, and root would believe it."""
    directory = open_directory("answers._found = lambda *asked: [says()['user'], []]")
    directory.says(user=entry)
    with pytest.raises(DirectoryFailed):
        directory.look_up(1001, "alice")


_ALICE = ["alice", "x", 1001, 1001, "", "/", "/bin/sh"]


@pytest.mark.parametrize(
    "answer",
    [
        *([10**30], {"not_asked": 10**30}, [-1], [_ALICE, [True]], [_ALICE, [-1]]),
        *([_ALICE, [1 << 32]], ["\ud800"], [[*_ALICE, 1], []]),
    ],
)
def test_an_answer_that_means_nothing_is_a_failure_of_the_directory(answer):
    """What asks runs others' code: the launcher must not end by what it says."""
    with pytest.raises((Denied, DirectoryFailed)) as failed:
        identity.found_in(answer, 1001)
    str(failed.value).encode()


def test_a_process_that_is_killed_while_it_asks_is_replaced(open_directory):
    directory = open_directory(
        "pwd.getpwuid = lambda uid: os.kill(os.getppid(), 9) or time.sleep(60)"
    )
    for _ in range(2):
        with pytest.raises(DirectoryFailed, match="timed out"):
            directory.look_up(os.getuid(), "alice")


@as_root
def test_the_directory_is_asked_without_any_right(open_directory):
    """Its modules ran as root, beside the secret by which every user's jobs are signed."""
    seen = "syscalls.capabilities().permitted, [*os.getresuid()], os.listdir('/proc/self/fd')"
    directory = open_directory(f"answers._found = lambda *asked: [json.dumps([{seen}])]")
    with pytest.raises(Denied) as found:
        directory.look_up(1001, "alice")
    permitted, uids, fds = json.loads(str(found.value))
    assert (permitted, uids) == (0, [NOBODY] * 3)
    # The standard ones, the question, its end, the list itself, and the test's own.
    assert len(fds) == 7


@as_root
def test_a_launcher_asks_again_when_the_password_file_has_changed(
    open_directory, tmp_path, monkeypatch
):
    """For up to a second it started the next job of a deleted account as who has the uid now."""
    passwd = tmp_path / "passwd"
    passwd.touch()
    monkeypatch.setattr(identity, "_GOOD_S", 1000.0)
    directory = open_directory()
    assert directory.look_up(1001, "alice")[0] == alice()
    directory.says(user=["bob", *alice()[1:]])
    assert directory.look_up(1001, "alice")[0] == alice()
    passwd.write_text("bob:x:1001:1001::/:/bin/sh\n")
    with pytest.raises(Denied, match="alice no longer has uid 1001"):
        directory.look_up(1001, "alice")


@as_root
def test_a_group_that_the_directory_does_not_tell_of_is_not_left_out(open_directory, monkeypatch):
    """The C library says of a directory that does not answer only that there are no groups."""
    monkeypatch.setattr(identity, "_GOOD_S", 0.0)
    directory = open_directory()
    directory.says(groups=[1001, 50])
    assert directory.look_up(1001, "alice", 50)[1] == [1001, 50]
    directory.says(has_group=False)
    assert directory.look_up(1001, "alice", 50)[1] == [1001, 50]
    directory.says(groups=[1001])
    with pytest.raises(DirectoryFailed):
        directory.look_up(1001, "alice", 50)
    # Who has known more asks for it, whatever group the job was submitted with.
    with pytest.raises(DirectoryFailed):
        directory.look_up(1001, "alice", 1001)


@as_root
def test_who_started_a_job_a_moment_ago_is_asked_for_after_the_launch(open_directory, monkeypatch):
    """Each first job after a second waited for a process that asks, or shared its cores with it."""
    monkeypatch.setattr(identity, "_FRESH_S", 0.0)
    directory = open_directory()
    directory.look_up(1001, "alice")
    directory.says(user=list(alice("/bin/other")))
    assert directory.look_up(1001, "alice")[0] == alice()
    directory.await_answers()
    assert directory.look_up(1001, "alice")[0] == alice("/bin/other")
    directory.await_answers()
    directory.says(user=["bob", *alice()[1:]])
    assert directory.look_up(1001, "alice")[0] == alice("/bin/other")
    directory.await_answers()
    with pytest.raises(Denied, match="alice no longer has uid 1001"):
        directory.look_up(1001, "alice")


@as_root
@pytest.mark.parametrize("has_group", ["True", "False"])
def test_who_has_left_a_group_runs_without_it(open_directory, has_group):
    directory = open_directory(f"syscalls.has_group = lambda gid: {has_group}")
    assert directory.look_up(1001, "alice", 50)[1] == [1001]


# -- becoming somebody ----------------------------------------------------------------------


#: Runs as root; the database's groups are the test's own, as there may be none on the machine.
BECOME = """
os.setgroups([0, 4, 24])
user = pwd.struct_passwd(("x", "x", 64321, 64320, "", "/", "/bin/sh"))
os.getgrouplist = lambda name, gid: [gid, 54321, 54322]
groups = answers.groups_of(user)
drop_rights(user.pw_uid, identity.gid_of(user, groups, int(sys.argv[1])), groups)
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
def test_root_drops_all_and_prefers_only_groups_of_the_user(preferred, gid):
    assert run(BECOME, preferred) == {
        "ids": [["64321"] * 4, [str(gid)] * 4],
        "groups": [54321, 54322, 64320],
        "capabilities": [0, 0],
        "no way back": [True, True, True],
    }


#: Where fs.suid_dumpable is 1, a change of the effective uid makes a process traceable. As soon as
#: its uid has changed, a process of the user's tries to read its memory and to signal it.
TRACED = """
from drfd.linux import syscalls
codes = []
def refused(attempt):
    try: attempt()
    except PermissionError: return True
set_dumpable = syscalls.set_dumpable
def traced(dumpable):
    set_dumpable(True)
    if (pid := os.fork()) == 0:
        os.setresuid(64321, 64321, 64321)
        memory = f"/proc/{os.getppid()}/mem"
        tries = (lambda: os.kill(os.getppid(), 0), lambda: open(memory))
        os._exit(0 if all(map(refused, tries)) else 1)
    codes.append(os.waitpid(pid, 0)[1])
    set_dumpable(dumpable)
syscalls.set_dumpable = traced
drop_rights(64321, 64320, [])
print(json.dumps([codes, os.getresuid(), os.getresgid()]))
"""


@as_root
def test_at_no_moment_may_its_user_trace_a_process_that_becomes_the_user():
    assert run(TRACED) == [[0], [64321] * 3, [64320] * 3]


HOLDER = """
import os
from drfd.linux import syscalls

def rights():
    return [*os.getresuid(), *os.getgroups(), *syscalls.capabilities()]

at_first = rights()

def main(words, own):
    print(json.dumps([words, own, at_first, rights()]))
"""


@as_root
def test_what_gives_up_root_may_be_installed_where_only_root_can_read(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed/holder.py").write_text("import json\n" + HOLDER)
    code = "import sys\nsys.path.insert(0, sys.argv[1])\n"
    code += "from drfd.launcher.system.nobody import main\nmain('holder', 'a', 'b')\n"
    words, own, at_first, rights = run(code, tmp_path / "closed")
    assert (words, own) == (["a", "b"], [0, 0])
    # Its effective uid is nobody's, and it may read, before its own rights are gone.
    assert (at_first[:3], at_first[3:4]) == ([0, NOBODY, 0], [1 << 2])
    assert rights == [NOBODY] * 3 + [0, 0, at_first[-1]]


KEEP = """
import kernel_calls
kernel_calls.set_securebits(int(sys.argv[1]))
try: drop_rights(64321, 64320, [])
except PermissionError as error: print(json.dumps(str(error)))
else: print(json.dumps(os.getresuid()))
"""


@pytest.mark.slow
@as_root
@pytest.mark.parametrize("bits", [1 << 2, 1 << 4], ids=["no fix-up of uids", "capabilities kept"])
def test_where_capabilities_outlive_root_nobody_becomes_anybody(bits):
    assert run(KEEP, bits) == "root's rights were not given up"


# -- the environment ------------------------------------------------------------------------


def test_drfds_variables_win_over_the_accounts_and_those_over_the_submitters():
    asked = order(
        cwd=Path("/data"),
        env={
            "PATH": "/opt/bin", "LANG": "C.UTF-8", "HOME": "/root", "USER": "root",
            "LOGNAME": "root", "SHELL": "/bin/evil", "PWD": "/", "DRF_JOB_ID": "7",
        },
        variables={"DRF_JOB_ID": "1", "SHELL": "/bin/ours"},
    )  # fmt: skip
    assert surroundings(asked) == {
        "PATH": "/opt/bin", "LANG": "C.UTF-8", "HOME": "/home/alice", "USER": "alice",
        "LOGNAME": "alice", "SHELL": "/bin/ours", "PWD": "/data", **DEFAULTS, "DRF_JOB_ID": "1",
    }  # fmt: skip


@pytest.mark.parametrize(("most_milli", "count"), [(2000, 3), (0, 0)])
def test_who_has_a_range_of_cores_waits_without_spinning(most_milli, count):
    limits = AttemptLimits(cores_milli=1000, cores_max_milli=most_milli, memory_bytes=1, pids=1)
    asked = order(cwd=Path("/"), limits=limits, threads=2)
    found = surroundings(asked)
    assert len({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(found)) == count
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["OPENBLAS_NUM_THREADS"] == ("1" if most_milli else "2")
    found = surroundings(replace(asked, env={"OMP_WAIT_POLICY": "active"}))
    assert found["OMP_WAIT_POLICY"] == "active" and "GOMP_SPINCOUNT" not in found


def test_what_describes_a_service_does_not_reach_a_job():
    names = (
        *("INVOCATION_ID", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
        *("WATCHDOG_PID", "WATCHDOG_USEC", "JOURNAL_STREAM", "MAINPID"),
    )
    own = {f"MY_{name}": "2" for name in names}
    env = surroundings(order(cwd=Path("/"), env=dict.fromkeys(names, "1") | own))
    assert not set(names) & set(env)
    assert env.items() >= own.items()


# -- the policy of what jobs inherit ------------------------------------------------------


def show(limit: int) -> str:
    if limit == resource.RLIM_INFINITY:
        return "none"
    return f"{limit >> 20}M" if limit and limit % (1 << 20) == 0 else str(limit)


def test_the_manual_has_the_limits_of_the_policy():
    free = (resource.RLIM_INFINITY,) * 2
    text = ", ".join(name for name, limits in inheritance.LIMITS.items() if limits == free)
    parts = [f"{text}: none"]
    for name, (soft, hard) in inheritance.LIMITS.items():
        if (soft, hard) != free:
            parts.append(f"{name} {show(soft)}" + (f", hard {show(hard)}" if soft != hard else ""))
    manual = ROOT.joinpath("docs", "enforcement.md").read_text()
    assert f"| {'; '.join(parts)}; SIGPENDING half of" in manual
    assert f"timer slack {inheritance.TIMER_SLACK_NS // 1000} µs" in manual


def test_the_policy_knows_every_limit_of_the_kernel():
    """RLIMIT_OFILE is another name of NOFILE; LOCKS has no effect since Linux 2.4.25."""
    known = {name.removeprefix("RLIMIT_") for name in dir(resource) if name.startswith("RLIMIT_")}
    assert {*inheritance.LIMITS, *inheritance._threads()} == known - {"OFILE", "LOCKS"}
