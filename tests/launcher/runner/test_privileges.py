"""What a runner gives up, and that it can still do its work; and keyrings of launchers' and jobs'
own. Each process under test is its own."""

import os
import shutil
import subprocess

import pytest

from drfd.launcher.runner.starter import program
from drfd.launcher.runner.starter.layout import header
from drfd.launcher.runner.starter.sources import HERE
from instance import status_of
from launcher.rig import UNTIL_GO, python, until

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root")


#: Tries every system call after the filter, without harm; prints those that are not refused.
TRY = r"""
#define LIBC
#define main starter_main
#include "starter.c"
#undef main
int main(void)
{
	if (filter(0) < 0)
		return 77;
	/* By its last argument it removes a directory; the loop below has another one. */
	if (call(unlinkat, -1, "", AT_REMOVEDIR) == -EPERM)
		return 1;
	for (long number = 0; number < 1024; number++) {
		char line[32];

		/* uretprobe and uprobe are the kernel's own on x86, and kill who makes them. */
		if (number == 335 || number == 336)
			continue;
		if (number != __NR_exit_group && call6(number, -1, -1, -1, -1, -1, -1) != -EPERM)
			call(write, 1, line, append(append_number(line, (unsigned long)number), " ") - line);
	}
	call(exit_group, 0);
}
"""
ALLOWED = "read pread64 write statx ppoll restart_syscall wait4 kill clock_gettime close"
ALLOWED += " fgetxattr"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc")
def test_a_process_that_waits_makes_thirteen_system_calls_and_removes_directories_alone(tmp_path):
    (tmp_path / "try.c").write_text(TRY)
    (tmp_path / "plan.h").write_text(header())
    places = (f"-I{HERE}", f"-I{tmp_path}")
    command = ["cc", "-std=gnu11", *places, "-o", tmp_path / "try", tmp_path / "try.c"]
    subprocess.run(command, check=True)
    tried = subprocess.run([tmp_path / "try"], capture_output=True, text=True, check=False)
    if tried.returncode == 77:
        pytest.skip("no filter of system calls can be had here")
    names = "".join(f"SYS_{name}=__NR_{name}\n" for name in ALLOWED.split())
    source = f"#include <asm/unistd.h>\n{names}"
    known = subprocess.run(["cc", "-E", "-P", "-"], input=source, capture_output=True, text=True)
    numbers = dict(line.split("=") for line in known.stdout.splitlines() if "SYS_" in line)
    assert sorted(map(int, tried.stdout.split())) == sorted(map(int, numbers.values()))
    assert tried.returncode == 0


# -- in a runner ----------------------------------------------------------------------------


def test_a_runner_drops_its_privileges_once_its_job_runs(runs):
    """It kept root's rights for the life of the job. The rights before: see test_child."""
    runner = runs.start(f"(setsid sleep 60 &); {UNTIL_GO}")
    job = runs.files.running().launched
    assert job is not None
    until("a runner without privileges", lambda: status_of(runner)["Seccomp"] == "2")
    status = status_of(runner)
    kept = 1 << program.KILL if os.getuid() == 0 else 0
    assert {status[name] for name in ("CapPrm", "CapEff")} == {f"{kept:016x}"}
    assert (status["NoNewPrivs"], int(status["CapInh"], 16)) == ("1", 0)
    assert status["CapBnd"] == status_of(os.getpid())["CapBnd"]
    assert int(status["VmRSS"].split()[0]) < 200, "in KiB, with all that others have, too"
    theirs, mine = status_of(job["pid"]), status_of(os.getpid())
    assert all(theirs[name] == mine[name] for name in ("NoNewPrivs", "Seccomp", "CapBnd"))
    runs.go()
    ended = runs.over(runner).exited
    assert ended is not None
    assert (ended["exit_code"], ended["signal"]) == (7, None)


# -- session keyrings, where they can be had ----------------------------------------------


#: `refuse` has keyctl fail from then on, as a container's filter does.
HELPERS = """
import errno, kernel_calls, os, struct
from drfd.linux import syscalls
from drfd.launcher.runner import identity, inheritance
def refuse(number):
    call = syscalls._NUMBERS["keyctl"][os.uname().machine]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | number)]
    steps += [(0x06, 0, 0, 0x7FFF0000)]
    syscalls.set_no_new_privileges()
    kernel_calls.filter_calls(b"".join(struct.pack("=HBBI", *step) for step in steps))
def fill():
    made = 0
    while True:
        out, into = os.pipe()
        if os.fork() == 0:
            try:
                syscalls.join_session_keyring()
            except OSError as error:
                os.write(into, errno.errorcode[error.errno].encode())
                os._exit(1)
            os.close(out)
            os.write(into, b"+")
            os.kill(os.getpid(), 19)
        os.close(into)
        word = os.read(out, 20).decode()
        if word != "+":
            return made, word
        made += 1
"""


def run_as(code: str) -> str:
    """What it prints. What it leaves behind is killed with its process group."""
    command = python(f"{HELPERS}{code}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            out, _ = process.communicate(timeout=120)
        finally:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass
    assert process.returncode == 0
    return out.strip()


@as_root
def test_the_launcher_has_one_of_its_own():
    code = """
before = kernel_calls.session_keyring()
assert inheritance.why_no_keyrings() is None and inheritance.keyring_warning() is None
print(kernel_calls.session_keyring() != before)
"""
    assert run_as(code) == "True"


def test_where_there_are_no_keyrings_jobs_run_without_and_a_refusal_is_said():
    code = "refuse(errno.EPERM); print(inheritance.keyring_warning())"
    assert run_as(code) == "jobs have no keyrings: keyctl is not permitted here, to jobs neither"
    code = """
refuse(errno.ENOSYS)
print(inheritance.why_no_keyrings(), inheritance.keyring_warning())
"""
    assert run_as(code) == "the kernel has no keyrings None"
