"""What a job is born with, and why it may not be born at all. Every test starts a real one: in its
cgroup of version 2, as a child of its runner; and with a /tmp of its own it sees nothing of the
machine's, whatever /var/tmp is there."""

import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drfd.daemon.launcher_link.failures import DIED
from drfd.launcher.attempt_files import Records
from drfd.launcher.protocol import AttemptLimits, LaunchOrder
from drfd.launcher.runner.starter.program import needed_capabilities
from drfd.launcher.system import process
from drfd.launcher.system.process import count_of_user
from drfd.linux import syscalls
from drfd.payload.signs import output_signs
from drfd.payload.unpack import may_be_output, output_path
from instance import compiled_starter
from kernel import empty_cgroup
from launcher.rig import (
    UNTIL_GO,
    Asked,
    AttemptFiles,
    Driver,
    found,
    order,
    parent_of,
    shell,
    until,
)

pytestmark = pytest.mark.slow

not_root = pytest.mark.skipif(os.getuid() == 0, reason="root may enter and write everything")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot become anybody")


@pytest.fixture
def run(runs):
    """Run an order to its end."""

    def run(order: LaunchOrder, **how: Any) -> Records:
        assert runs.driver.reap(runs.start(order, **how)) == 0
        return runs.files.over((order.id, order.attempt))

    return run


def me() -> str:
    return str(found(os.getuid(), "")[0].pw_name)


def succeeded(attempt: Records) -> None:
    assert attempt.launch_failed is None
    assert attempt.exited is not None
    assert (attempt.exited["exit_code"], attempt.exited["signal"]) == (0, None)


@pytest.fixture
def out(run) -> Callable[..., str]:
    """Run an order that succeeds, and return what is in `out` in its directory."""

    def out(order: Asked) -> str:
        succeeded(run(order))
        return os.fsdecode(Path(order.cwd, "out").read_bytes())

    return out


def broke(attempt: Records, text: str, *, let_go: bool) -> None:
    """It failed with just this text; `let_go`: at exec, the last moment."""
    assert attempt.launch_failed == {"text": text}
    assert attempt.exited is None
    assert (attempt.launched is not None) == let_go


# -- what it inherits, and what not ---------------------------------------------------------


def test_standard_input_is_empty_and_output_goes_to_the_files(out, work):
    found = out(shell("cat; readlink /proc/self/fd/0; echo oops >&2", cwd=work))
    assert (found, (work / "err").read_text()) == ("/dev/null\n", "oops\n")


def targets(listing: str) -> list[str]:
    """Of the descriptors in the output of `ls -l /proc/self/fd`; without its own."""
    found = [line.split(" -> ")[1] for line in listing.splitlines()[1:]]
    assert sum(each.endswith("/fd") for each in found) == 1, "the directory that ls reads"
    return [each for each in found if not each.endswith("/fd")]


def test_a_job_has_no_other_descriptors(out, work):
    """The driver leaves one open, and the launcher's own are not for jobs either."""
    found = targets(out(order("ls", "-l", "/proc/self/fd", cwd=work)))
    assert found == ["/dev/null", str(work / "out"), str(work / "err")]


@pytest.mark.parametrize("head", ["#!/bin/sh\n", "#!/usr/bin/env python3\nimport os\n", ""])
def test_a_script_has_one_more_descriptor_its_own_text(out, work, head):
    """The interpreter opens it by its name in /proc, so it cannot be closed at exec."""
    python = "os.execvp('ls', ['ls', '-l', '/proc/self/fd'])"
    listing = python if "python" in head else "ls -l /proc/self/fd"
    *usual, script = targets(out(order("mine", cwd=work, script=f"{head}{listing}\n")))
    assert usual == ["/dev/null", str(work / "out"), str(work / "err")]
    assert script.startswith("/memfd:script")


def test_signals_scores_and_limits_are_as_for_a_fresh_program(out, work):
    """Python ignores SIGPIPE and SIGXFSZ, the runner more, and the driver blocks one."""
    script = "grep '^Sig[BI]' /proc/self/status; cat /proc/self/oom_score_adj"
    script += "; ulimit -Sc; ulimit -c unlimited; ulimit -Sc"
    assert out(shell(script, cwd=work)).splitlines() == [
        *(f"SigBlk:\t{0:016x}", f"SigIgn:\t{0:016x}", "0", "0", "unlimited")
    ]


def test_a_job_leads_a_session_without_terminal(out, work):
    found = out(shell("cat /proc/$$/stat; (: </dev/tty) || echo none", cwd=work))
    stat, none = found.splitlines()
    pid, (_, _, group, session, terminal) = stat.split()[0], stat.rpartition(")")[2].split()[:5]
    assert (group, session, terminal, none) == (pid, pid, "0", "none")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_the_umask_is_the_submitters_and_holds_for_the_output_files(out, work, umask):
    assert int(out(shell("umask; : > made", cwd=work, umask=umask)), 8) == umask
    modes = {name: (work / name).stat().st_mode & 0o777 for name in ("out", "err", "made")}
    assert modes == dict.fromkeys(modes, 0o666 & ~umask)


def test_the_job_runs_in_its_directory_under_the_name_that_was_given(out, work):
    (work / "real").mkdir()
    (work / "link").symlink_to("real")
    found = out(shell('pwd; pwd -P; echo "$PWD"', cwd=work / "link"))
    assert found.splitlines() == [str(work / "link"), str(work / "real"), str(work / "link")]


def test_arguments_arrive_byte_for_byte(out, work):
    words = ["", " ", "a\nb", "'$HOME'", "\udcff", "ü", "--"]
    assert out(order("printf", "<%s>", *words, cwd=work)) == "".join(f"<{word}>" for word in words)


def test_until_exec_a_process_leaves_no_core(runs, work, terminal):
    """It holds what its runner holds: as root's own job it left a core with all of that."""
    resource.prlimit(runs.driver.pid, resource.RLIMIT_CORE, (1 << 30, resource.RLIM_INFINITY))
    runner = runs.start(order("true", cwd=work, attach=str(terminal.path)))
    with terminal.accept():
        (pid,) = until("the job's process", lambda: process.children(runner))
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, resource.RLIM_INFINITY)
        os.kill(pid, signal.SIGSEGV)
        assert runs.over(runner).launch_failed == {"text": "the job's process died before exec"}
    assert [path.name for path in work.iterdir() if path.name.startswith("core")] == []


@as_root
def test_until_exec_a_jobs_process_is_out_of_its_users_sight(runs, work, terminal):
    terminal.listen_as(65534)
    nobody = pwd.getpwuid(65534)
    waiting = order("true", cwd=Path("/"), attach=str(terminal.path), uid=65534, gid=nobody.pw_gid)
    runner = runs.start(waiting)
    with terminal.accept():
        (pid,) = until("the job's process", lambda: process.children(runner))
        status = Path(f"/proc/{pid}/status").read_text()
        assert "\nUid:\t65534\t65534\t65534\t65534\n" in status
        assert os.stat(f"/proc/{pid}/mem").st_uid == 0, "it is not dumpable"
        for name in ("mem", "environ", "maps"):
            look = ["cat", f"/proc/{pid}/{name}"]
            seen = subprocess.run(look, user=65534, group=65534, extra_groups=[], check=False,
                                  capture_output=True, text=True)  # fmt: skip
            assert (seen.stdout, "Permission denied" in seen.stderr) == ("", True)
    runs.files.over()


@as_root
def test_until_it_becomes_its_user_a_jobs_process_has_the_rights_of_its_runner_and_no_more(
    runs, work
):
    """A program that root executes has every capability first."""

    def rights(pid: int) -> list[str]:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return [line for line in lines if line.startswith(("CapEff", "CapPrm", "CapInh"))]

    runner = runs.start(order("true", cwd=work), place="gate")
    (pid,) = until("the job's process", lambda: process.children(runner))
    until("the runner's rights", lambda: rights(pid) == rights(runner), lambda: rights(pid))
    few = needed_capabilities(enters_spaces=True, serves_root=True)
    assert few.bit_count() < 10
    assert int(rights(runner)[2].split()[1], 16) == few & syscalls.capabilities().permitted
    assert os.stat(f"/proc/{pid}").st_uid == 0, "it is not its user's yet"
    fifo = os.open(work / "stopped", os.O_RDONLY)
    assert os.read(fifo, 10) == b"0"
    os.close(fifo)
    succeeded(runs.over(runner))


# -- output files ---------------------------------------------------------------------------


def test_one_file_can_take_both_outputs_in_order_and_is_begun_anew(run, work):
    """What others append meanwhile is not overwritten."""
    for name in ("both", "out", "err"):
        (work / name).write_text("old\n" * 100)
    script = "echo 1; echo 2 >&2; echo 3 >> both; echo 4"
    succeeded(run(shell(script, cwd=work, stdout="both", stderr="both")))
    assert (work / "both").read_text() == "1\n2\n3\n4\n"
    succeeded(run(shell("echo new", cwd=work, id=2)))
    assert ((work / "out").read_text(), (work / "err").read_text()) == ("new\n", "")


def test_the_output_of_an_attempt_that_was_preempted_is_kept(run, work):
    """The next one writes below it."""
    script = "echo $DRF_ATTEMPT; echo $DRF_ATTEMPT >&2"
    for attempt in (1, 2, 3):
        variables = {"DRF_ATTEMPT": str(attempt)}
        asked = shell(script, cwd=work, attempt=attempt, variables=variables)
        succeeded(run(replace(asked, empties_output=attempt == 1)))
    assert ((work / "out").read_text(), (work / "err").read_text()) == ("1\n2\n3\n",) * 2


def test_later_output_is_made_where_earlier_output_was_cleared_away(out, work):
    assert out(shell("echo 2; echo 3 >&2", cwd=work, attempt=2, stderr="out")) == "2\n3\n"


def test_output_to_standard_input_is_to_the_jobs_own(run, work):
    """Not to the launcher's, which the driver reads its orders from."""
    script = 'seen=$(readlink /proc/$$/fd/1 /proc/$$/fd/2); echo "$seen" >seen'
    succeeded(run(shell(script, cwd=work, stdout="/dev/stdin", stderr="/proc/self/fd/0")))
    assert (work / "seen").read_text() == "/dev/null\n" * 2


def test_a_pipe_that_somebody_reads_is_written_to(run, work):
    os.mkfifo(work / "pipe")
    reader = os.open(work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    succeeded(run(shell("echo through", cwd=work, stdout="pipe")))
    with os.fdopen(reader) as file:
        assert file.read() == "through\n"


def test_directories_of_output_files_have_the_submitters_umask(run, work):
    files = {"stdout": "made/%j/out", "stderr": "made/%j/err"}
    succeeded(run(shell("echo 1; echo 2 >&2", cwd=work, umask=0o027, **files)))
    assert [(each.name, each.read_text()) for each in sorted(work.glob("made/1/*"))] == [
        ("err", "2\n"), ("out", "1\n"),
    ]  # fmt: skip
    assert [(work / each).stat().st_mode & 0o777 for each in ("made", "made/1")] == [0o750] * 2


@pytest.mark.parametrize("which", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("pipe", "nobody reads this pipe"),
        ("dangling/out", "No such file or directory"),
        ("file/out", "Not a directory"),
        (".", "Is a directory"),
        ("x" * 256, "File name too long"),
        pytest.param("closed", "Permission denied", marks=not_root),
    ],
    ids=["pipe", "missing", "file", "directory", "long", "closed"],
)
def test_an_output_file_that_cannot_be_written_is_named_at_once(run, work, path, why, which):
    os.mkfifo(work / "pipe")
    (work / "file").write_text("")
    (work / "dangling").symlink_to("nowhere")
    (work / "closed").touch(mode=0o444)
    attempt = run(order("touch", "ran", cwd=work, **{which: path}))
    broke(attempt, f"{me()} cannot write the output file {work}/{path}: {why}", let_go=False)
    assert not (work / "ran").exists()


@pytest.mark.parametrize(
    "what", ["link", "dangling", "hard link", "pipe", pytest.param("file", marks=as_root)]
)
@pytest.mark.parametrize("pattern", ["drf-%j.out", "%A_%a", "%03j"])
def test_a_name_that_others_can_guess_is_not_written_where_they_have_put_something(
    run, work, what, pattern
):
    """The output went where a link led, or to another user's file, who read it."""
    name, own = {"drf-%j.out": "drf-1.out", "%A_%a": "1_0", "%03j": "001"}[pattern], work / "thesis"
    own.write_text("mine")
    place = work / name
    reader = None
    if what in ("link", "dangling"):
        place.symlink_to(own if what == "link" else work / "new")
    elif what == "hard link":
        place.hardlink_to(own)
    elif what == "pipe":
        os.mkfifo(place)
        reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    else:
        place.touch(mode=0o666)
        os.chown(place, 65534, -1)
    attempt = run(order("touch", "ran", cwd=work, stdout=pattern))
    why = f"the output file {place} is there already, and is not an ordinary file of the user's own"
    broke(attempt, f"{why}: remove it, or name another one with -o", let_go=False)
    assert own.read_text() == "mine"
    assert not (work / "ran").exists() and not (work / "new").exists()
    if reader is not None:
        os.close(reader)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("%4j-%02A-%00a", "0001-01-0"), ("%99j", "0000000001"), ("%%3j%3%%5", "%3j%3%5"),
        ("%9x-%9q%", "train-%9q%"), ("%0000000000000000000003a", "000"),
    ],
)  # fmt: skip
def test_numbers_in_names_of_files_have_zeros_up_to_a_width(run, work, pattern, name):
    """The job's process and the readers of its output name the same file."""
    succeeded(run(shell("echo x", cwd=work, name="train", stdout=pattern)))
    path = output_path(pattern, str(work), output_signs(job_id=1, name="train", user=me()))
    assert path == f"{work}/{name}" and (work / name).read_text() == "x\n"
    assert may_be_output(path, pattern, str(work), "train")


def test_the_users_own_file_of_that_name_is_begun_anew(run, work):
    (work / "drf-1.out").write_text("old\n" * 100)
    for attempt in (1, 2):
        asked = shell("echo x", cwd=work, attempt=attempt, stdout="drf-%j.out")
        succeeded(run(replace(asked, empties_output=attempt == 1)))
    assert (work / "drf-1.out").read_text() == "x\n" * 2


# -- directories and programs ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone", "No such file or directory"),
        ("file", "Not a directory"),
        pytest.param("closed", "Permission denied", marks=not_root),
    ],
)
def test_a_directory_that_cannot_be_entered_is_named(run, work, name, why):
    (work / "file").write_text("")
    (work / "closed").mkdir(mode=0)
    broke(run(order(cwd=work / name)), f"{me()} cannot enter {work / name}: {why}", let_go=False)


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_program_is_looked_for_in_the_jobs_own_path_and_directory(out, work):
    (work / "bin").mkdir()
    for path in (work / "bin" / "mine", work / "mine"):
        program(path, "#!/bin/sh\necho $0\n")
    mine = order("mine", cwd=work, env={"PATH": f"/none:{work}/bin"})
    assert out(mine) == f"{work}/bin/mine\n"
    assert out(order("./mine", cwd=work, id=2)) == "./mine\n"


ABSENT = "there is no program {}, or its interpreter is missing"
BY_HAND = "{} is not a program: a script needs a first line such as #!/bin/sh"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("no-such-thing",), "there is no command no-such-thing in the job's PATH"),
        (("./no-such-thing",), ABSENT.format("./no-such-thing")),
        (("./lost",), ABSENT.format("./lost")),
        (("./plain",), "cannot run ./plain: Permission denied"),
        (("./bare",), BY_HAND.format("./bare")),
        (("/",), "cannot run /: Permission denied"),
        (("true", "x" * (1 << 18)), "cannot run true: Argument list too long"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_program_that_cannot_be_run_is_explained(run, work, argv, text):
    program(work / "lost", "#!/no/such/interpreter\n")
    program(work / "plain", "#!/bin/sh\n", mode=0o644)
    program(work / "bare", "echo hello\n")
    broke(run(order(*argv, cwd=work)), text, let_go=True)


def test_limits_that_cannot_be_applied_keep_the_program_from_starting(run, work):
    attempt = run(order("touch", "ran", cwd=work), place="closed")
    text = "it could not be set up: /dev/full: No space left on device"
    broke(attempt, text, let_go=False)
    assert list(work.iterdir()) == [], "not even an output file was made"


def test_it_makes_the_directories_of_its_cgroups_and_removes_them(run, work):
    (work / "top").write_text(str(work))
    attempt = run(order("ls", "one", cwd=work), place="made")
    succeeded(attempt)
    assert (work / "out").read_text() == "two\n"
    assert not (work / "one").exists()


def test_a_cgroup_that_is_there_already_is_not_taken_over(run, work):
    """Its limits and peaks would be an earlier run's, and its processes."""
    (work / "top").write_text(str(work))
    (work / "one").mkdir()
    attempt = run(order("touch", "ran", cwd=work), place="made")
    text = f"it could not be set up: {work}/one: File exists"
    broke(attempt, text, let_go=False)


def test_where_the_place_of_its_cgroups_has_vanished_nothing_is_put_on_record(runs, work):
    """The launcher looks for what has become of it, and the job is launched again."""
    (work / "top").write_text(str(work / "gone"))
    runner = runs.start(order("touch", "ran", cwd=work), place="made")
    assert runs.driver.reap(runner) == 125
    attempt = runs.files.read((1, 1))
    assert (attempt.may_have_run, attempt.runner["pid"]) == (False, runner)


# -- scripts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "found"),
    [
        # There is no file of it.
        ('#!/bin/sh\necho "$#" "$@"\nls\n', "2 a b c\nerr\nout\n"),
        ('echo "$#" "$@"\n', "2 a b c\n"),
        ("#!/usr/bin/env -S awk -f\nBEGIN { print 6 * 7; print ARGV[1] }\n", "42\na b\n"),
        ("#!/bin/sh\n" + f": {'x' * 98}\n" * 10_000 + "echo end\n", "end\n"),
    ],
    ids=["shell", "without first line", "another interpreter", "long"],
)
def test_a_script_runs_from_memory_with_its_interpreter_and_arguments(out, work, script, found):
    assert out(order("train.sh", "a b", "c", cwd=work, script=script)) == found


#: Where a script came from, for those that say so.
_SCRIPTS = {
    "sh": '#!/bin/sh\necho $# $1 $(dirname "$0")\nfail() {\n  nosuch1\n}\nfail\n',
    "none": 'echo $# $1 $(dirname "$0")\nfail() {\n  nosuch1\n}\nfail\n',
    "env": '#!/usr/bin/env -S bash -u\necho $# $1 $(dirname "$0")\n\n\nnosuch1\n',
    "python": "#!/usr/bin/env python3\nfrom __future__ import annotations\nimport beside, sys\n"
    "print(len(sys.argv) - 1, sys.argv[1], beside.WHERE, __file__ == sys.argv[0])\nraise nosuch1\n",
    "perl": "#!/usr/bin/perl -w\nuse FindBin;\n"
    'print "$#ARGV $ARGV[0] $FindBin::Bin ", <DATA>;\ndie "nosuch1";\n__DATA__\ndata\n',
    "node": "#!/usr/bin/env node\nconst m = require('./beside');\n\n\n"
    "console.log(process.argv.length - 2, process.argv[2], m.where, require.main === module);\n"
    "nosuch1();\n",
}


def _script_at(work: Path, text: str, name: str = "train") -> tuple[Path, dict[str, str]]:
    """A script in a directory of its own, with modules beside it; and variables that say so."""
    place = work / "own"
    place.mkdir()
    (place / "beside.py").write_text("import os\nWHERE = os.path.dirname(__file__)\n")
    (place / "beside.js").write_text("exports.where = __dirname\n")
    (place / name).write_text(text)
    # A shell tells of a directory that it may not enter, not of a command that it has not found.
    entered = (place for place in os.get_exec_path() if os.access(place, os.X_OK))
    variables = {"PATH": os.pathsep.join(entered), "DRF_SCRIPT": str(place / name)}
    return place / name, variables | {"PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize("is_changed", [False, True], ids=["as submitted", "changed since"])
@pytest.mark.parametrize(
    ("kind", "said", "complaint"),
    [
        ("sh", "2 a b {dir}", r"{path}: (line )?4: .*nosuch1: (command )?not found"),
        ("none", "2 a b {dir}", r"{path}: (line )?3: .*nosuch1: (command )?not found"),
        ("env", "2 a b {dir}", "{path}: line 5: nosuch1: command not found"),
        ("python", "2 a b {dir} True", '^Traceback[^\n]*\n  File "{path}", line 5, in <module>'),
        ("perl", "1 a b {dir} data", "nosuch1 at {path} line 4"),
        ("node", "2 a b {dir} true", "{path}:6"),
    ],
)
def test_a_script_sees_its_own_path(run, work, kind, said, complaint, is_changed):
    """And runs as it was submitted, also if it was changed since."""
    if shutil.which(kind if kind in ("perl", "node") else "bash") is None:
        pytest.skip(f"no {kind} here")
    path, variables = _script_at(work, _SCRIPTS[kind])
    if is_changed:
        path.write_text("#!/bin/sh\necho changed\n")
    asked = order("train", "a b", "c", cwd=work, script=_SCRIPTS[kind], env=variables)
    attempt = run(asked)
    assert attempt.exited is not None
    assert (work / "out").read_text() == said.format(dir=path.parent) + "\n"
    assert re.search(complaint.format(path=re.escape(str(path))), (work / "err").read_text())


def test_only_the_submitter_says_where_a_script_came_from(run, work):
    """Modules are imported from there. The process believes no order that names a place."""
    text = "#!/usr/bin/env python3\nimport sys\nprint(sys.argv[0])\n"
    path, variables = _script_at(work, text)
    asked = order("x", cwd=work, script=text, env=variables)
    succeeded(run(asked, forged={"DRF_SCRIPT": "/theirs/x"}))
    assert (work / "out").read_text() == f"{path}\n"


def test_the_error_of_a_python_script_is_its_own(run, work):
    """Without an import of sys, drfd's own lines failed after it, and were told last."""
    text = "#!/usr/bin/env python3\nint('x')\n"
    path, variables = _script_at(work, text)
    attempt = run(order("train", cwd=work, script=text, env=variables))
    assert attempt.exited is not None and attempt.exited["exit_code"] == 1
    *_, place, line, error = (work / "err").read_text().splitlines()
    assert (place, line) == (f'  File "{path}", line 2, in <module>', "    int('x')")
    assert error.startswith("ValueError: ")


_GUARDED = (
    '#!/bin/bash -e\nset -u\nmain() {\n  dirname "${BASH_SOURCE[0]}"\n  nosuch1\n}\n'
    'if [[ ${BASH_SOURCE[0]} == "$0" ]]; then\n  main\nfi\necho never\n'
)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_script_that_asks_for_bash_source_runs_as_stored_and_sees_its_path(run, work, is_there):
    path, variables = _script_at(work, _GUARDED)
    path.write_text("echo changed\n")
    if not is_there:
        path.unlink()
    attempt = run(order("train", cwd=work, script=_GUARDED, env=variables))
    assert attempt.exited is not None
    assert attempt.exited["exit_code"] == 127, "-e holds"
    assert (work / "out").read_text() == f"{path.parent}\n", "main has run"
    assert f"{path}: line 5: nosuch1: command not found" in (work / "err").read_text()


def test_bash_source_tells_libraries_and_functions_who_calls(run, work):
    text = (
        '#!/usr/bin/env bash\nfrom() {\n  echo "${BASH_SOURCE[@]##*/} ${BASH_LINENO[0]}"\n}\n'
        '. "$(dirname "${BASH_SOURCE[0]}")/lib"\nfrom\n'
        'bash -c \'echo "child:${BASH_SOURCE[*]}"\'\necho "${#BASH_SOURCE[@]} $# $2"\n'
    )
    path, variables = _script_at(work, text)
    (path.parent / "lib").write_text("from\n")
    (path.parent / "start").write_text('echo "${BASH_SOURCE[0]##*/}"\n')
    variables["BASH_ENV"] = str(path.parent / "start")
    succeeded(run(order("train", "a", "b  c", cwd=work, script=text, env=variables)))
    assert (work / "out").read_text().splitlines()[1:] == [
        "start", "train lib train 1", "train train 6", "start", "child:", "1 2 b  c"
    ]  # fmt: skip


@pytest.mark.parametrize("head", ["#!/bin/bash", "#!/usr/bin/env bash"])
def test_the_file_of_a_script_is_never_read(out, work, head):
    """It may be another one a moment later. A script of bash is not read by another."""
    text = f'{head}\n(return 0 2>/dev/null) && echo read || echo "run: $0"\n'
    path, variables = _script_at(work, text)
    os.utime(path, (1, 1))
    assert out(order("train", cwd=work, script=text, env=variables)) == f"run: {path}\n"
    assert path.stat().st_atime == 1


def test_a_script_that_is_changed_while_it_runs_goes_on_as_it_was(out, work):
    text = '#!/bin/bash\necho "echo changed; exit 3" > "$0"\n' + ": x\n" * 9999 + "echo same\n"
    path, variables = _script_at(work, text)
    assert out(order("train", cwd=work, script=text, env=variables)) == "same\n"
    assert path.read_text() == "echo changed; exit 3\n"


@pytest.mark.parametrize(
    ("head", "is_named"),
    [("#!/no/such/bash", 1), ("#!/no/such/python3 -u", 1), ("#!/no/such/x", 0)],
)
def test_a_scripts_missing_interpreter_is_named_as_the_user_knows_it(run, work, head, is_named):
    """Not as /proc/self/fd/7, which the user never wrote; whether or not it is a known one."""
    env = _script_at(work, head)[1] if is_named else {}
    attempt = run(order("train", cwd=work, script=f"{head}\n", env=env))
    assert attempt.launch_failed is not None
    assert "/proc/self/fd" not in attempt.launch_failed["text"]
    assert "interpreter" in attempt.launch_failed["text"]


# -- attached -------------------------------------------------------------------------------


def test_an_attached_job_has_the_submitters_descriptors_and_no_others(runs, work, terminal):
    (work / "in").write_text("hello\n")
    fds = [os.open(work / name, os.O_RDWR | os.O_CREAT) for name in ("in", "o", "e")]
    script = "cat; echo oops >&2; ls /proc/self/fd | wc -w"
    runs.start(shell(script, cwd=work, attach=str(terminal.path)))
    terminal.hand_over(terminal.accept(), *fds)
    for fd in fds:
        os.close(fd)
    succeeded(runs.files.over())
    assert ((work / "o").read_text(), (work / "e").read_text()) == ("hello\n4\n", "oops\n")
    assert {path.name for path in work.iterdir()} == {"in", "o", "e"}, "out and err are not made"


GONE = "the terminal that waited for this job is gone"


@as_root
def test_descriptors_of_others_are_not_taken(runs, work, terminal):
    """A client's path is free for anybody when it has left."""
    terminal.listen_as(65534)
    runs.start(order("touch", "ran", cwd=work, attach=str(terminal.path)))
    connection = terminal.accept()
    null = os.open("/dev/null", os.O_RDWR)
    with suppress(BrokenPipeError):
        terminal.hand_over(connection, null, null, null)
    os.close(null)
    text = "another user listens where its terminal waited, which is gone"
    broke(runs.files.over(), text, let_go=False)
    assert list(work.iterdir()) == []


def test_a_terminal_that_has_left_is_gone(run, work, terminal):
    terminal.close()
    attempt = run(order("touch", "ran", cwd=work, attach=str(terminal.path)))
    assert attempt.launch_failed is not None
    assert attempt.launch_failed["text"].startswith(GONE)
    assert list(work.iterdir()) == []


# -- limits ---------------------------------------------------------------------------------


def test_a_job_is_kept_on_as_many_cpus_as_it_declares(out, work):
    mask = out(order("grep", "^Cpus_allowed:", "/proc/self/status", cwd=work)).split()[1]
    assert int(mask.replace(",", ""), 16).bit_count() == 1


@as_root
def test_processes_are_counted_for_the_user_of_the_job(out):
    """Not for root, who starts it: a user who runs more than root could not start anything."""
    limits = AttemptLimits(cores_milli=1000, memory_bytes=1 << 30, pids=64)
    # A place that the other user can enter.
    with tempfile.TemporaryDirectory(prefix="drfd-") as place:
        os.chmod(place, 0o777)
        asked = order("grep", "^Max processes", "/proc/self/limits", cwd=Path(place), uid=65534)
        limit = int(out(replace(asked, limits=limits)).split()[2])
    assert abs(limit - (count_of_user(65534) + 64)) < 16


# -- in a cgroup, and in directories of its own -------------------------------------------


@pytest.fixture
def cgroup(work) -> Iterator[Path]:
    """An empty cgroup, which needs no controllers, and which the driver begins jobs in."""
    with empty_cgroup("starter") as made:
        (work / "cgroup").write_text(str(made))
        yield made


@pytest.mark.system
def test_a_job_begins_in_its_cgroup_below_its_runner(runs, work, cgroup):
    runner = runs.start(f"cat /proc/self/cgroup; {UNTIL_GO}", place="unified")
    job = runs.pid()
    assert parent_of(job) == runner
    assert process.children(runner) == [job], "what has begun it is gone"
    assert runs.files.running().launched == {"pid": job, "start_ticks": process.start_ticks(job)}
    assert f"0::/{cgroup.name}" in (work / "out").read_text().splitlines()
    runs.go()
    attempt = runs.over(runner)
    assert attempt.exited is not None
    assert attempt.exited["exit_code"] == 7


@pytest.mark.system
def test_a_cgroup_that_is_gone_keeps_it_from_starting(run, work, cgroup):
    cgroup.rmdir()
    attempt = run(order("touch", "ran", cwd=work), place="unified")
    broke(attempt, f"it could not be set up: {cgroup}: No such file or directory", let_go=False)
    assert not (work / "ran").exists()


@pytest.mark.system
def test_a_cgroup_that_is_frozen_keeps_no_runner(run, work, cgroup):
    (cgroup / "cgroup.freeze").write_text("1")
    attempt = run(order("touch", "ran", cwd=work), place="frozen")
    text = "entering its directory and opening its output files took longer than 1 s"
    broke(attempt, text, let_go=False)
    assert (cgroup / "cgroup.procs").read_text() == "", "it has been killed"


@pytest.mark.system
def test_a_process_that_is_killed_before_it_can_say_its_id_has_died(runs, work, cgroup):
    """As the kernel does where the job's memory is not enough for a first page."""
    (cgroup / "cgroup.freeze").write_text("1")
    runner = runs.start(order("touch", "ran", cwd=work), place="unified")
    until("a process in the cgroup", (cgroup / "cgroup.procs").read_text)
    (cgroup / "cgroup.kill").write_text("1")
    broke(runs.over(runner), DIED, let_go=False)
    assert not (work / "ran").exists()


# -- directories of a job's own -----------------------------------------------------------


#: In a mount namespace of its own, so that the machine keeps what it has.
_ALONE = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")
_ONE = "mount -t tmpfs none {0}; touch {0}/outside; "
#: What is done there, and whether jobs have one directory under both names.
MACHINES = {
    "two": (_ONE.format("/tmp") + _ONE.format("/var/tmp"), False),
    # One directory is mounted at both, as guides to hardening have recommended.
    "first at both": (_ONE.format("/tmp") + "mount --bind /tmp /var/tmp; ", False),
    "second at both": (_ONE.format("/var/tmp") + "mount --bind /var/tmp /tmp; ", False),
    "link": (_ONE.format("/tmp") + "mount -t tmpfs none /var; ln -s /tmp /var/tmp; ", True),
}


def _with_tests(commands: str, work: Path) -> str:
    """These commands, after which what is tested is still there, if it is below /tmp itself."""
    for above in (Path("/tmp"), Path("/var/tmp")):
        for part in (Path(__file__), Path(sys.prefix)):
            if part.is_relative_to(above):
                top = above / part.relative_to(above).parts[0]
                kept = work / "kept"
                kept.mkdir(exist_ok=True)
                keep = f"mount --bind {top} {kept}; "
                return f"{keep}{commands}mkdir -p {top}; mount --bind {kept} {top}; "
    return commands


@pytest.mark.system
@pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot mount")
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_of_the_machines_is_seen(machine):
    commands, is_one = MACHINES[machine]
    with tempfile.TemporaryDirectory(prefix="drfd-test-", dir="/opt") as place:
        work = Path(place)
        program = Path(shutil.copy(compiled_starter(), work))
        for each in ("space", "space/tmp", "space/var"):
            (work / each).mkdir()
        files = AttemptFiles(work / "attempts")
        prepare = _with_tests(commands, work)
        driver = Driver(program, before=(*_ALONE, f'{prepare} exec "$@"', "sh"))
        script = "touch /tmp/first /var/tmp/second; ls -A /tmp; echo; ls -A /var/tmp"
        asked = order("sh", "-c", script, cwd=work)
        driver.reap(driver.start(asked, files, space=work / "space"))
        attempt = files.over()
        driver.close()
        files.clean_up()
        assert attempt.launch_failed is None
        seen = [part.split() for part in (work / "out").read_text().split("\n\n")]
    both = ["first", "second"]
    assert seen == ([both, both] if is_one else [["first"], ["second"]])
