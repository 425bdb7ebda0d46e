"""The compiled program by itself: whatever it is given, it reports or ends, and never crashes."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drfd.launcher.confinement.interface import Entrance
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.starter import plan
from drfd.launcher.runner.starter.sources import (
    NotCompiled,
    compile_starter,
    fingerprint,
)
from drfd.linux import syscalls
from drfd.linux.syscalls import Capabilities
from drfd.payload import unpack
from launcher.rig import order, python

#: Each example starts a program.
pytestmark = pytest.mark.slow

NOBODY = pwd.struct_passwd(("nobody", "", 65534, 65534, "", "/", "/bin/sh"))
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
            compile_starter(program, flags=CHECKED)
        except NotCompiled as error:
            pytest.skip(f"no sanitizers: {error}")
        if subprocess.run([program], capture_output=True, check=False).returncode != 0:
            pytest.skip("no sanitizers: what they compile does not run here")
        yield program


@pytest.fixture(scope="module")
def usual() -> tuple[bytes, bytes]:
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
    start = JobStart(
        Assignment(asked.order, -1), NOBODY, [65534], Unconfined("a test"),
        entry_fd=-1, entry_out=-1, report_fd=-1, go_fd=-1, go_in=-1, has_quota=False, place=None,
    )  # fmt: skip
    entrance = Entrance(cpus=frozenset(os.sched_getaffinity(0)), processes=500)
    data = plan.encode(start, entrance, Capabilities(0, 0, 0))
    words = data[4:].split(b"\0")
    # Flags and login uid: nothing that needs root.
    words[1], words[5 + 2 + len(entrance.cpus or ()) + 2] = b"0", b""
    return b"\0".join(words), asked.data


def _nobody() -> dict[str, object]:
    """Return options of a process that cannot harm the machine, whatever it is told."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}


def run(program: Path, given: bytes, payload: bytes, before: list[str] | None = None) -> bytes:
    """Give the program a plan and a payload, and never a "+". What it has reported. `before`: a
    command that root executes it by; None: nobody executes it."""
    entry, report, go = os.pipe(), os.pipe(), os.pipe()
    file = os.memfd_create("payload")
    os.write(file, payload)
    os.write(go[1], len(given).to_bytes(4, "little") + given)
    theirs = (entry[1], report[1], go[0], file)
    os.close(go[1])
    ended = subprocess.run(
        [*(before or ()), program, *map(str, theirs)], pass_fds=theirs, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=60, env={}, check=False, **({} if before else _nobody()),
    )  # type: ignore[call-overload]  # fmt: skip
    for fd in theirs:
        os.close(fd)
    said = b"".join(os.read(fd, 1 << 16) for fd in (entry[0], report[0]))
    os.close(entry[0])
    os.close(report[0])
    assert (ended.returncode, ended.stderr) == (125, b"")
    return said


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
    for where, count, by in changes:
        at = len(data) * where // 1000
        data = data[:at] + by + data[at + count :]
    return data


def test_it_is_told_apart_by_its_sources(starter: Path) -> None:
    said = subprocess.run([starter], capture_output=True, text=True, check=True).stdout
    assert said == f"{fingerprint()}\n"


def test_an_unchanged_plan_is_carried_out(checked: Path, usual: tuple[bytes, bytes]) -> None:
    assert run(checked, *usual) == b"+"


@settings(max_examples=40)
@given(changes=_changes)
def test_no_plan_makes_it_crash(
    checked: Path, usual: tuple[bytes, bytes], changes: list[tuple[int, int, bytes]]
) -> None:
    given_plan, payload = usual
    run(checked, changed(given_plan, changes), payload)


@settings(max_examples=80)
@given(changes=_changes)
@example(changes=[(399, 0, b"1"), (145, 0, b"f")])  # two faults
def test_it_refuses_the_payloads_that_python_refuses(
    checked: Path, usual: tuple[bytes, bytes], changes: list[tuple[int, int, bytes]]
) -> None:
    given_plan, payload = usual
    payload = changed(payload, changes)
    report = run(checked, given_plan, payload)
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


@pytest.mark.skipif(os.getuid() != 0, reason="not root: there are no rights to drop")
@pytest.mark.parametrize(("bits", "expected"), [(0, b"+"), (syscalls.NO_SETUID_FIXUP, b"regained")])
def test_rights_that_are_not_dropped_are_noticed(
    checked: Path, usual: tuple[bytes, bytes], bits: int, expected: bytes
) -> None:
    words = usual[0].split(b"\0")
    every = b"%x" % syscalls.capabilities().permitted
    words[1:4] = b"%x" % plan.DROPS, every, every
    before = python(_WITH_SECUREBITS, bits)
    assert run(checked, b"\0".join(words), usual[1], before).split(b"\0")[0] == expected


@pytest.mark.parametrize("cut", [0, 3, 4, 50])
def test_a_plan_that_is_cut_short_ends_it(
    starter: Path, usual: tuple[bytes, bytes], cut: int
) -> None:
    """Its runner is gone: nobody would read a report."""
    go = os.pipe()
    data = len(usual[0]).to_bytes(4, "little") + usual[0]
    os.write(go[1], data[:cut])
    os.close(go[1])
    null = os.open("/dev/null", os.O_RDWR)
    words = [str(fd) for fd in (null, null, go[0], null)]
    ended = subprocess.run([starter, *words], pass_fds=(null, go[0]), timeout=60, check=False)
    assert ended.returncode == 125
    os.close(null)
    os.close(go[0])


def test_other_architectures_are_not_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "x", "6", "1", "riscv64")))
    with pytest.raises(NotCompiled, match="not written for riscv64"):
        compile_starter(tmp_path / "starter")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc")
def test_where_nothing_can_be_written_nothing_is_compiled(tmp_path: Path) -> None:
    """drfd is installed all the same: pip builds a user's in a directory that may be another's."""
    with pytest.raises(NotCompiled, match="cannot be compiled"):
        compile_starter(tmp_path / "none" / "drfd-starter")
