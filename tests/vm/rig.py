"""A guest with systemd and cgroup v2, as tests see it, and the project's own tests inside it;
guest/README.md says what it is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "guest"

#: Debian's name of the guest's release.
SUITE = os.environ.get("DRFD_VM_SUITE", "bookworm")
#: Which Python it has.
PYTHON_VERSION = {"bookworm": "3.11", "trixie": "3.13"}[SUITE]
#: Everything, however long it takes: an hour and more.
IS_FULL = bool(os.environ.get("DRFD_VM_FULL"))

#: The Python there that has the project, as a wheel, and what its tests need.
PYTHON = "/opt/drfd/bin/python"
#: The tests alone: what they test is the package that was installed.
COPY = {
    ROOT / part: f"/srv/drfd/{part}"
    for part in ("tests", "docs/decisions.md", "cli/drfd_experiments", "pyproject.toml")
}
#: Where the program that begins jobs' processes is in the guest, with failpoints.
STARTER = "/srv/drfd-starter"
#: How much longer than elsewhere tests wait for something.
PATIENCE = 10
#: Where each lot of tests leaves what pytest has said of it; kept over reboots.
RESULTS = "/var/tmp/results"
PRINT_RESULTS = shlex.join([PYTHON, "-c", f"""
import json, pathlib
results = pathlib.Path({RESULTS!r}).iterdir()
print(json.dumps({{file.name: file.read_text() for file in results}}))
"""])  # fmt: skip

#: When all that runs in a guest must be over, so that a guest that hangs can still be told of.
_DEADLINE_S = time.monotonic() + 60 * float(os.environ.get("DRFD_VM_MINUTES", "inf"))

#: A busy machine is no failure.
_BOOT_S = 600

#: `run-in-vm` when the guest's kernel panicked.
_PANICKED = 123
#: What an emulated processor runs while another one patches the kernel's code is now and then
#: half of an instruction. Such a run says nothing of drfd, and is done anew, from the same disk.
_TRIES = 3


@dataclass(frozen=True)
class Finished:
    """How a command ended; 123: the kernel panicked, 124: a time-out, 125: no guest."""

    status: int
    stdout: str
    stderr: str

    def check(self) -> Finished:
        assert self.status == 0, f"status {self.status}\n{self.stdout}\n{self.stderr}"
        return self


class Guest:
    """Boots anew for every command, always from the same disk: nothing of a run is kept."""

    def __init__(self, notes: list[str], base: Path | None = None) -> None:
        """`notes`: where to say of a run that it was done anew. `base`: a disk that `run` has kept,
        instead of the image as it was built."""
        self._notes = notes
        self._base = base

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        copy: Mapping[Path, str] | None = None,
        wheels: Path | None = None,
        env: Mapping[str, str] | None = None,
        disk: Path | None = None,
    ) -> Finished:
        """Run a Bash script, or an argv, as root.

        `copy`: from here → to where in the guest. `disk`: keep the guest's disk in this file.
        """
        argv = ["bash", "-euo", "pipefail", "-c", command] if isinstance(command, str) else command
        words = [f"--suite={SUITE}", f"--boot-timeout={_BOOT_S}"]
        words += [f"--copy={source}:{dest}" for source, dest in (copy or {}).items()]
        words += [f"--env={name}={value}" for name, value in (env or {}).items()]
        words += [f"--wheels={wheels}"] if wheels else []
        for _ in range(_TRIES):
            left_s = max(min(timeout_s, _DEADLINE_S - time.monotonic()), 1.0)
            done = self._run_once([f"--timeout={left_s:.0f}", *words, "--", *argv], disk)
            if done.status != _PANICKED:
                break
            said = [line.strip() for line in done.stderr.splitlines()]
            why = [line for line in said if "RIP: 0010" in line or "Kernel panic" in line]
            self._notes.append(f"a run was done anew: {' '.join(why[-2:])}")
        return done

    def _run_once(self, words: Sequence[str], disk: Path | None) -> Finished:
        with tempfile.TemporaryDirectory(prefix="drfd-vm-") as place:
            if disk is not None:
                passing = Path(place, "kept.qcow2")
                words = [f"--disk={passing}", *words]
            elif self._base is not None:
                passing = Path(place, "disk.qcow2")
                _lay_over(self._base, passing)
                words = [f"--disk={passing}", "--power-cut", *words]
            done = subprocess.run(
                [SCRIPTS / "run-in-vm", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                # Linux divides processors among sessions first: what else .ci/run does at a time
                # leaves the guest its half.
                start_new_session=True,
            )
            if disk is not None:
                shutil.move(passing, disk)
        return Finished(done.returncode, done.stdout, done.stderr)


def _lay_over(base: Path, disk: Path) -> None:
    """A disk that reads as `base` and keeps what is written to it for itself."""
    words = ["-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base.resolve()), str(disk)]
    subprocess.run(["qemu-img", "create", *words], check=True)


@dataclass(frozen=True)
class Outcome:
    """What pytest has said of one lot; tests by module and name."""

    status: int
    text: str
    passed: frozenset[str]
    skipped: frozenset[str]
    #: What went wrong, by test.
    failed: Mapping[str, str]

    @property
    def in_short(self) -> str:
        """How it ended, and what took longest."""
        slow = re.findall(r"(?m)^ *(\S+s) (?:call|setup) +\S+?::(?:test_)?(.*)$", self.text)
        last = self.text.splitlines()[-1].strip(" =")
        return "; ".join((last, *(f"{took} {name}" for took, name in slow)))

    @property
    def trouble(self) -> str:
        """A line for each test that failed, then all that pytest has said."""
        lines = [f"{name}: {text.splitlines()[0]}" for name, text in self.failed.items()]
        return "\n".join((*lines, f"status {self.status}", self.text))


def pytest_command(lot: str, tests: Sequence[str]) -> str:
    """A command whose words go to files of the lot's, and to standard error."""
    words = [PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--durations=30"]
    words += [f"--junitxml={RESULTS}/{lot}.xml", *tests]
    run = f"{{ {shlex.join(words)}; echo $? >{RESULTS}/{lot}.status; }}"
    return f"{run} 2>&1 | tee {RESULTS}/{lot}.text | sed -u 's/^/{lot}: /' >&2"


def read_outcome(files: dict[str, str], lot: str) -> Outcome:
    """`files`: what PRINT_RESULTS prints."""
    cases = {
        f"{case.get('classname')}.{case.get('name')}": case
        for case in ET.fromstring(files[f"{lot}.xml"]).iter("testcase")
    }
    return Outcome(
        status=int(files[f"{lot}.status"]),
        text=files[f"{lot}.text"],
        passed=frozenset({name for name, case in cases.items() if len(case) == 0}),
        skipped=frozenset({n for n, case in cases.items() if case.find("skipped") is not None}),
        failed={
            name: f"{trouble.get('message')}\n{trouble.text}"
            for name, case in cases.items()
            for trouble in (*case.findall("failure"), *case.findall("error"))
        },
    )


def module_of(test: str) -> str:
    """How a test's names begin in an outcome: "tests/a.py::test_b" → "tests.a."."""
    return test.partition("::")[0].removesuffix(".py").replace("/", ".") + "."
