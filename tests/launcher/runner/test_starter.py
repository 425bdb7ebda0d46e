"""The compiled program that begins jobs' processes: used only where nobody else can have written
it; it reports or ends whatever it is given."""

import errno
import fcntl
import json
import os
import pwd
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from drfd.launcher.attempt_files import Key, cgroup_name
from drfd.launcher.confinement.cgroup_files import read_counters
from drfd.launcher.confinement.interface import (
    CgroupPlan,
    CgroupSetting,
    Counter,
    Prepared,
    ProcessLimits,
)
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import Assignment, AttemptLimits, Devices
from drfd.launcher.runner.starter import layout, plan
from drfd.launcher.runner.starter.compiler import NotCompiled, compile_starter, machine_of
from drfd.launcher.runner.starter.layout import OwnPlan, SharedPlan
from drfd.launcher.runner.starter.plan import JobStart, Plans
from drfd.launcher.runner.starter.program import SYS_RESOURCE, open_starter
from drfd.launcher.runner.starter.sources import HERE, SOURCES, fingerprint
from drfd.linux import syscalls
from drfd.payload import unpack
from launcher.rig import Asked, order, python

as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot give files away")


#: Type of a program that may be anywhere in memory (elf(5)).
ET_DYN = 3
THEIRS = "belongs to uid 65534"


@pytest.fixture
def program(starter, tmp_path) -> Path:
    return Path(shutil.copy(starter, tmp_path / "drfd-starter"))


OPEN = """
import os, sys
from pathlib import Path
from drfd.launcher.runner.starter.program import Unusable, open_starter
before = set(os.listdir("/proc/self/fd"))
try:
    open_starter(Path(sys.argv[1]))
except Unusable as error:
    print(error)
assert set(os.listdir("/proc/self/fd")) == before, "nothing stays open"
"""


def refused(program: Path) -> str:
    """In a process of its own, where nobody else opens a file meanwhile."""
    command = [sys.executable, "-c", OPEN, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_program_of_these_sources_is_used(program):
    program.parent.chmod(0o1777)
    fd = open_starter(program).program_fd
    assert os.readlink(f"/proc/self/fd/{fd}") == str(program)
    assert not os.get_inheritable(fd)
    os.close(fd)


#: As in a kernel without seccomp(2): it fails, for the program, too.
UNFILTERED = """
import os, struct
from pathlib import Path
import kernel_calls
from drfd.launcher.runner.starter.program import open_starter
from drfd.linux import syscalls
number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7FFF0000)]
syscalls.set_no_new_privileges()
kernel_calls.filter_calls(b"".join(struct.pack("=HBBI", *step) for step in steps))
print([open_starter(Path(sys.argv[1])).is_filtered for _ in range(20)])
"""


@pytest.mark.slow
def test_a_kernel_without_filters_of_system_calls_is_noticed_each_time(program):
    done = subprocess.run(python(UNFILTERED, program), capture_output=True, text=True, check=True)
    assert done.stdout == f"{[False] * 20}\n"


@pytest.mark.slow
def test_a_program_is_a_file(tmp_path):
    assert refused(tmp_path / "none").endswith("none is missing: install drfd again")
    (tmp_path / "drfd-starter").mkdir()
    assert refused(tmp_path / "drfd-starter").endswith("is no file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        pytest.param(
            lambda program: program.chmod(0o775), "can be written by others", marks=as_root
        ),
        (lambda program: program.chmod(0o757), "can be written by others"),
        (lambda program: program.parent.chmod(0o777), "can be written by others"),
        pytest.param(lambda program: os.chown(program, 65534, -1), THEIRS, marks=as_root),
        pytest.param(lambda program: os.chown(program.parent, 65534, -1), THEIRS, marks=as_root),
    ],
)
def test_a_program_that_others_could_replace_is_not_used(program, spoil, why):
    spoil(program)
    assert refused(program).endswith(f"{why}, who could replace the program")


@pytest.mark.slow
def test_what_does_not_run_is_not_used(program):
    program.chmod(0o644)
    assert refused(program).endswith("cannot be used: Permission denied")
    program.chmod(0o755)
    program.write_text("no program")
    assert refused(program).endswith("cannot be used: Exec format error")
    program.write_text("#!/none\n")
    assert refused(program).endswith("cannot be used: No such file or directory"), "it is there"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc")
def test_a_program_of_other_sources_is_not_used(tmp_path):
    for name in SOURCES:
        shutil.copy(HERE / name, tmp_path / name)
    with (tmp_path / "calls.h").open("a") as file:
        file.write("/* changed */\n")
    compile_starter(tmp_path / "drfd-starter", directory=tmp_path)
    assert "of other sources" in refused(tmp_path / "drfd-starter")


#: A function that writes beyond its array, before the program says which sources it is of.
OVERFLOW = """
static __attribute__((noinline)) void overflow(void)
{
	char small[8], *volatile to = small;

	for (int i = 0; i < 256; i++)
		to[i] = 1;
	call(write, 2, small, 1);
}

/* Say which"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc")
def test_the_program_is_anywhere_in_memory_and_ends_where_an_array_has_overflowed(tmp_path):
    """It was at fixed addresses, and nothing looked whether its stack was as it had been."""
    for name in SOURCES:
        shutil.copy(HERE / name, tmp_path / name)
    source = (tmp_path / "starter.c").read_text()
    source = source.replace("\n/* Say which", OVERFLOW, 1)
    source = source.replace("\tif (call(close_range, 3", "\toverflow();\n\tif (call(close_range, 3")
    (tmp_path / "starter.c").write_text(source)
    program = tmp_path / "drfd-starter"
    compile_starter(program, directory=tmp_path)
    ended = subprocess.run([program], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (125, b"", b"\1")
    assert program.read_bytes()[16] == ET_DYN


# -- the program by itself ----------------------------------------------------------------


#: With a C library, and with what the compiler can check.
CHECKED = ("-DLIBC", "-g", "-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover")


@pytest.fixture(scope="module")
def checked() -> Iterator[Path]:
    """The program with the compiler's sanitizers."""
    # Not pytest's own directory, which each pytest that starts closes to other users: the user
    # nobody runs the program.
    with tempfile.TemporaryDirectory(prefix="drfd-test-") as place:
        os.chmod(place, 0o711)
        program = Path(place, "drfd-starter")
        try:
            compile_starter(program, flags=CHECKED, hardenings=((),))
        except NotCompiled as error:
            pytest.skip(f"no sanitizers: {error}")
        if subprocess.run([program], capture_output=True, check=False).returncode != 0:
            pytest.skip("no sanitizers: what they compile does not run here")
        yield program


class Place(Unconfined):
    """With all that a plan can say of a place; of files that are not there."""

    def __init__(self, limit: CgroupSetting) -> None:
        super().__init__("a test")
        self._limit = limit

    def plan(self, *of: object, is_pinned: bool) -> CgroupPlan:
        return CgroupPlan(settings=[self._limit], pids_max="/p", freezer="/f")

    def process_limits(self, key: object, limits: object, uid: object) -> ProcessLimits:
        return ProcessLimits(frozenset(os.sched_getaffinity(0)), 500)


class GivenPlan(NamedTuple):
    own: OwnPlan
    shared: SharedPlan

    def but(self, **changes: Any) -> "GivenPlan":
        return self._replace(shared=self.shared._replace(**changes))

    def encoded(self) -> bytes:
        return layout.encode(self.own, layout.encode_shared(self.shared, "job-1-1"), "job-1-1")


@pytest.fixture(scope="module")
def usual() -> tuple[GivenPlan, bytes]:
    """A plan without rights to drop, and a payload."""
    asked = order(
        *("true", "a b"),
        cwd=Path("/"),
        uid=65534,
        env={"A": "b", "PATH": "/none", "OMP_NUM_THREADS": "3"},
        stdout="/dev/null",
        stderr="/dev/null",
        notify=("x",),
        script="#!/bin/sh\n",
        variables={"DRF_JOB_ID": "1"},
        threads=2,
    )
    return plan_of(asked), asked.data


#: 1: a file in memory is not executable unless it is made so; 2: none is.
NOEXEC = Path("/proc/sys/vm/memfd_noexec")
#: A limit that any process may have.
ITS_OWN = CgroupSetting("/proc/self/oom_score_adj", "0", "0")


#: What a plan of root's has otherwise.
AS_NOBODY = {"drops": False, "leaves_keyring": False, "joins_keyring": False}


def plan_of(asked: Asked, limit: CgroupSetting = ITS_OWN) -> GivenPlan:
    """A plan without rights to drop."""
    user = pwd.struct_passwd(("nobody", "", asked.uid, asked.uid, "", "/", "/bin/sh"))
    start = JobStart(Assignment(asked.order, -1), user, [asked.uid], place=None)
    plans = Plans(Place(limit), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.inheritance, "may_set_login", lambda: False)
        given = GivenPlan(plans.own_of(start), plans.shared_by(start, Prepared()))
    return given.but(**AS_NOBODY, resets_oom_score=False)


def dropping(given: GivenPlan, capabilities: int | None = None) -> GivenPlan:
    """The same plan with rights to drop."""
    every = syscalls.capabilities().permitted if capabilities is None else capabilities
    return given.but(drops=True, effective=every, permitted=every)


def _nobody() -> dict[str, object]:
    """Return options of a process that cannot harm the machine, whatever it is told."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}


def run(
    program: Path,
    given: GivenPlan | bytes,
    payload: bytes,
    before: list[str] | None = None,
    *,
    by_root: bool = False,
) -> list[dict[str, Any]]:
    """The records that the program writes. `before`: a command that executes it."""
    files = attempt, told, _ = [os.memfd_create(name) for name in ("attempt", "plan", "payload")]
    fcntl.fcntl(attempt, fcntl.F_SETFL, os.O_APPEND)
    os.pwrite(told, given if isinstance(given, bytes) else given.encoded(), 0)
    os.write(files[2], payload)
    null = os.open("/dev/null", os.O_WRONLY)
    theirs = (attempt, null, *files[1:])
    ended = subprocess.run(
        [*(before or ()), program, *map(str, theirs)], pass_fds=theirs, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=60, env={}, check=False, **({} if by_root else _nobody()),
    )  # type: ignore[call-overload]  # fmt: skip
    lines = filter(None, os.pread(attempt, 1 << 20, 0).splitlines())
    records = [*map(json.loads, lines)]
    for fd in theirs:
        os.close(fd)
    assert (ended.returncode in (0, 3, 125), ended.stderr) == (True, b"")
    for each in records:
        assert each.get("report") != "", "its process has crashed"
    return records


def report_in(records: list[dict[str, Any]]) -> bytes:
    return bytes.fromhex(records[-1].get("report", ""))


#: A change of some bytes: where (of 1000), how many are replaced, and by what.
_changes = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.integers(0, 3),
        st.sampled_from(
            [b"", b"\0", b"0", b"1", b"7", b"f", b"ff", b"/", b"%", b"=", b"%x", b"\xff", b"9" * 20]
        ),
    ),
    max_size=4,
)


def changed(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for where, length, by in changes:
        at = len(data) * where // 1000
        data = data[:at] + by + data[at + length :]
    return data


@pytest.mark.slow
def test_it_is_told_apart_by_its_sources(starter):
    said = subprocess.run([starter], capture_output=True, text=True, check=True).stdout
    assert said == f"{fingerprint()}\n"


@pytest.mark.slow
def test_an_unchanged_plan_is_carried_out(checked, usual):
    records = run(checked, *usual)
    assert [each["record"] for each in records] == ["runner", "launched", "exited"]
    assert (records[-1]["exit_code"], records[-1]["signal"]) == (0, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "why"),
    [
        (
            CgroupSetting("/proc/self/comm", "a", "b"),
            "0\0/proc/self/comm was set to a and reads a\n",
        ),
        (CgroupSetting("/none", "1", "1"), f"{errno.ENOENT}\0/none"),
        (ITS_OWN._replace(text="x"), f"{errno.EINVAL}\0{ITS_OWN.path}"),
    ],
)
def test_a_job_does_not_begin_without_its_limits(checked, limit, why):
    """Its runner says which file does not have the line that was wanted."""
    asked = order("true", cwd=Path("/"), uid=65534, stdout="/dev/null", stderr="/dev/null")
    records = run(checked, plan_of(asked, limit=limit), asked.data)
    assert [each["record"] for each in records] == ["runner", "launch_failed"]
    assert (report_in(records).decode(), records[-1]["by_root"]) == (f"limit\0{why}", 1)


@pytest.mark.slow
def test_the_kernels_numbers_are_on_record_and_the_cgroups_gone(checked, usual):
    """Up to the first that is in use: the launcher looks whether the last one is gone."""
    with tempfile.TemporaryDirectory(prefix="drfd-test-") as name:
        place = Path(name)
        for each in ("first", "used", "used/by", "last"):
            (place / each).mkdir()
        if os.getuid() == 0:
            for each in (place, place / "first", place / "used", place / "last"):
                os.chown(each, 65534, -1)
        (place / "stat").write_text("nr_a 7\nab=5 a=9 other 3\n")
        (place / "peak").write_text("100\n")
        counters = [
            Counter(f"{place}/stat", "a", "a"),
            Counter(f"{place}/none", "", "lacks"),
            Counter(f"{place}/stat", "other", "other"),
            Counter(f"{place}/stat", "nothing", "nothing"),
            Counter(f"{place}/peak", "", "peak"),
            Counter(f"{place}/stat", "ab", "large", "101"),
            Counter(f"{place}/stat", "ab", "enough", "100"),
        ]
        names = [f"{place}/{each}" for each in ("gone", "first", "used", "last")]
        given_plan = usual[0].but(counters=[*chain(*counters)], directories=names)
        ended = run(checked, given_plan, usual[1])[-1]
        assert ended["counters"] == {"a": 9, "other": 3, "peak": 100, "enough": 5}
        assert ended["counters"] == read_counters(counters), "as the launcher reads them"
        assert sorted(each.name for each in place.iterdir()) == ["last", "peak", "stat", "used"]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can have a setting of its own")
@pytest.mark.skipif(not NOEXEC.exists(), reason="this kernel executes all files in memory")
@pytest.mark.parametrize(("level", "env"), [(1, {}), (2, {"DRF_SCRIPT": "/x.sh"})])
def test_a_script_runs_where_files_in_memory_are_not_executed(starter, level, env):
    """The setting is that of a pid namespace (vm.memfd_noexec)."""
    asked = order(
        "x", cwd=Path("/"), uid=65534, env=env, script="#!/bin/sh\nexit 3\n",
        stdout="/dev/null", stderr="/dev/null",
    )  # fmt: skip
    before = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    before += [f'echo {level} > {NOEXEC} && "$@"', "sh"]
    records = run(starter, plan_of(asked), asked.data, before, by_root=True)
    assert (report_in(records), records[-1].get("exit_code")) == (b"", 3)


class Nested(Unconfined):
    """Cgroups below those of another drfd's job, in a group that is called almost like one."""

    def plan(
        self, key: Key, limits: AttemptLimits, devices: Devices, *, is_pinned: bool
    ) -> CgroupPlan:
        value = f"{len(devices.memory)}{is_pinned}"
        return CgroupPlan(
            settings=[CgroupSetting(self._file(key, f"/{limits.pids}"), value, value)],
            cgroup=self._file(key, ""),
            pids_max=self._file(key, "/pids.max"),
            counters=[Counter(self._file(key, "/memory.stat"), "job-7-1", "/job-7-1")],
            directories=[self._file(key, ""), "/job-7-10"],
        )

    def _file(self, key: Key, name: str) -> str:
        return f"/top/job-7-1/of-job-7-1/{cgroup_name(key)}{name}"

    def process_limits(self, *of: object) -> ProcessLimits:
        return ProcessLimits()


@pytest.mark.parametrize(
    ("first", "second"), [((7, 1), (7, 2)), ((8, 1), (7, 1)), ((7, 1), (7, 1))]
)
def test_alike_attempts_get_the_plans_that_each_would_get_alone(first, second):
    def job(
        key: Key, account: int = 65534, groups: Sequence[int] = (5,), **changed: Any
    ) -> JobStart:
        asked = order("true", cwd=Path("/"), uid=65534).order
        asked = replace(asked, id=key[0], attempt=key[1], **changed)
        user = pwd.struct_passwd(("nobody", "", account, 65534, "", "/", "/bin/sh"))
        return JobStart(Assignment(asked, -1), user, [*groups], place=None)

    plans = Plans(Nested("a test"), 0)
    usual = Prepared(makes=2)
    plans.encoded(job(first, variables={"DRF_JOB_ID": "x"}), usual)
    for each in (
        job(second),
        job(second, name="/job-7-1", variables={"DRF_JOB_ID": "/job-7-1"}),
        job(second, account=65533),
        job(second, groups=(5, 6)),
        job(second, is_notice=True),
        job(second, uid=65533),
        job(second, tells_start=True),
        job(second, output_max_bytes=9),
        job(second, threads=9),
        job(second, gid=5),
        job(second, empties_output=False),
        job(second, limits=AttemptLimits(cores_milli=1, memory_bytes=5, pids=9)),
        job(second, devices=Devices(memory=(("0000:01:00.0", 1),))),
    ):
        for prepared in (usual, Prepared(), Prepared(is_pinned=True)):
            alone = Plans(Nested("a test"), 0).encoded(each, prepared)
            assert plans.encoded(each, prepared) == alone
            words = alone[4:].decode().split("\0")
            place = f"/top/job-7-1/of-job-7-1/{cgroup_name(second)}"
            assert {f"{place}/memory.stat", f"{place}/pids.max", place} <= {*words}
    with pytest.raises(ValueError, match="NUL"):
        plans.encoded(job(second, hidden=("A\0",)), usual)
    with pytest.raises(ValueError, match="NUL"):
        plans.encoded(job(second, variables={"A": "\0"}), usual)


@pytest.mark.slow
@settings(max_examples=40)
@given(changes=_changes)
def test_no_plan_makes_it_crash(checked, usual, changes):
    given_plan, payload = usual
    data = changed(given_plan.encoded()[4:], changes)
    run(checked, len(data).to_bytes(4, "little") + data, payload)


@pytest.mark.slow
@settings(max_examples=80)
@given(changes=_changes)
@example(changes=[(399, 0, b"1"), (145, 0, b"f")])  # two faults
def test_it_refuses_the_payloads_that_python_refuses(checked, usual, changes):
    given_plan, payload = usual
    payload = changed(payload, changes)
    report = report_in(run(checked, given_plan, payload))
    try:
        argv = unpack.decode(payload).argv
        expected = None if argv and argv[0] else "it names no program"
    except ValueError as error:
        expected = str(error)
    refused = report.startswith(b"payload\0")
    assert (report.split(b"\0")[2].decode() if refused else None) == expected


#: prctl(PR_SET_SECUREBITS, …), then the program.
_WITH_SECUREBITS = """
import os, sys
import kernel_calls
kernel_calls.set_securebits(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="not root: there are no rights to drop")
@pytest.mark.parametrize(("bits", "expected"), [(0, b""), (1 << 2, b"regained")])
def test_rights_that_are_not_dropped_are_noticed(checked, usual, bits, expected):
    before = python(_WITH_SECUREBITS, bits)
    records = run(checked, dropping(usual[0]), usual[1], before, by_root=True)
    assert report_in(records).split(b"\0")[0] == expected
    assert records[-1]["record"] == ("launch_failed" if expected else "exited")


#: Adds so many keys of a user's, or as many as the kernel takes, and executes the rest; another
#: process adds them with `apart`.
_ADD_KEYS = """
import ctypes, os, sys
from drfd.linux import syscalls
uid, most, apart = map(int, sys.argv[1:4])
call = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
def add(number):
    one = ctypes.c_size_t(1)
    return ctypes.CDLL(None).syscall(call, b"user", b"%d" % number, b"x", one, -3) > 0
if not apart or os.fork() == 0:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    syscalls.join_session_keyring()
    assert all(map(add, range(most))) == (most < 200)
    if apart:
        os.kill(os.getpid(), 19)
if apart:
    os.waitpid(-1, os.WUNTRACED)
os.execv(sys.argv[4], sys.argv[4:])
"""
#: Users whose keys nobody else has counted: neither another test nor another run on this machine.
_uids = count(1_000_000 + 10 * os.getpid())
#: Succeeds if it can see a session keyring of root's.
_SEES_ROOTS = ("grep", "-q", "0b030000  *0 .* _ses", "/proc/keys")


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(("keys", "is_roots"), [(1, False), (10_000, True)])
def test_who_has_used_all_the_room_gets_a_keyring_that_cannot_be_filled(checked, keys, is_roots):
    """All others' count against them: counted against root, those of ten thousand jobs kept every
    job from starting. The kernel allows an ordinary user 200 keys (keys/maxkeys)."""
    uid = next(_uids)
    asked = order(*_SEES_ROOTS, cwd=Path("/"), uid=uid, stdout="/dev/null", stderr="/dev/null")
    given_plan = dropping(plan_of(asked)).but(leaves_keyring=True, joins_keyring=True)
    before = python(_ADD_KEYS, uid, keys, 1)
    records = run(checked, given_plan, asked.data, before, by_root=True)
    assert records[-1].get("exit_code") == (0 if is_roots else 1), records


@pytest.mark.slow
@as_root
def test_a_users_own_launcher_runs_more_jobs_than_the_user_may_have_keys(checked):
    uid = next(_uids)
    asked = order("true", cwd=Path("/"), uid=uid, stdout="/dev/null", stderr="/dev/null")
    before = python(_ADD_KEYS, uid, 10_000, 0)
    given_plan = plan_of(asked).but(joins_keyring=True)
    records = run(checked, given_plan, asked.data, before, by_root=True)
    assert records[-1].get("exit_code") == 0, records


#: As in a container: PR_CAPBSET_DROP of CAP_SYS_RESOURCE, then the rest of the command.
_CONTAINED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("by_root", [False, pytest.param(True, marks=as_root)])
def test_a_hard_limit_that_cannot_be_raised_is_no_obstacle(checked, usual, by_root):
    """An ordinary user's are that user's own: a job may raise the soft one to it."""
    given_plan = usual[0].but(limits=(resource.RLIMIT_NOFILE, 1024, 524288))
    if by_root:
        every = syscalls.capabilities().permitted & ~(1 << SYS_RESOURCE)
        given_plan = dropping(given_plan, every)
    script = "#!/bin/sh\n[ $(ulimit -Sn) = 200 ] && [ $(ulimit -Hn) = 200 ]\n"
    payload = order("x", cwd=Path("/"), stdout="/dev/null", stderr="/dev/null", script=script).data
    before = ["sh", "-c", 'ulimit -Sn 100; ulimit -Hn 200; exec "$@"', "sh"]
    if by_root:
        before = [sys.executable, "-I", "-S", "-c", _CONTAINED, *before]
    records = run(checked, given_plan, payload, before, by_root=by_root)
    assert records[-1].get("exit_code") == 0, records


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 3, 4, 50])
def test_a_plan_that_is_cut_ends_it(starter, usual, cut):
    go = os.pipe()
    os.write(go[1], usual[0].encoded()[:cut])
    os.close(go[1])
    null = os.open("/dev/null", os.O_RDWR)
    words = [str(fd) for fd in (null, null, go[0], null)]
    ended = subprocess.run([starter, *words], pass_fds=(null, go[0]), timeout=60, check=False)
    assert ended.returncode == 125
    os.close(null)
    os.close(go[0])


@pytest.mark.slow
def test_without_a_c_compiler_that_of_a_package_is_used(tmp_path, monkeypatch):
    pytest.importorskip("ziglang", reason="the package ziglang is not installed")
    monkeypatch.setenv("CC", "/none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile_starter(tmp_path / "drfd-starter")
    assert machine_of(tmp_path / "drfd-starter") == os.uname().machine
    os.close(open_starter(tmp_path / "drfd-starter").program_fd)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc")
def test_where_nothing_can_be_written_nothing_is_compiled(tmp_path):
    """drfd is installed all the same: pip builds a user's in a directory that may be another's."""
    with pytest.raises(NotCompiled, match="cannot be compiled"):
        compile_starter(tmp_path / "none" / "drfd-starter")
