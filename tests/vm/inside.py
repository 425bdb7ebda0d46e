"""The project's own tests inside the guest: how they are run there, and what pytest says."""

from __future__ import annotations

import shlex
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from vm.rig import ROOT

TESTS = ROOT / "tests"
PYTHON = "/opt/drfd/bin/python"
#: Where each lot of tests leaves what pytest has said of it.
RESULTS = "/tmp/results"
#: The tests alone: what they test is the package that was installed.
COPY = {TESTS: "/srv/drfd/tests", ROOT / "pyproject.toml": "/srv/drfd/pyproject.toml"}
#: How much longer than elsewhere tests wait for something.
PATIENCE = 10

PRINT_RESULTS = f"""
import json, pathlib
results = pathlib.Path({RESULTS!r}).iterdir()
print(json.dumps({{file.name: file.read_text() for file in results}}))
"""


@dataclass(frozen=True)
class Outcome:
    """What pytest has said of one lot; tests by module and name."""

    status: int
    text: str
    passed: frozenset[str]
    skipped: frozenset[str]
    #: A line for each test that failed: its name, and the first line of why.
    failed: tuple[str, ...] = ()

    @property
    def trouble(self) -> str:
        """The tests that failed, then all that pytest has said."""
        return "\n".join((" | ".join(self.failed) or f"status {self.status}", self.text))


def pytest_command(lot: str, tests: Sequence[str]) -> str:
    """A command that leaves what pytest says in files of the lot's; standard error shows it, too,
    for the case of a time-out."""
    words = [PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    words += [f"--junitxml={RESULTS}/{lot}.xml", *tests]
    run = f"{{ {shlex.join(words)}; echo $? >{RESULTS}/{lot}.status; }}"
    return f"{run} 2>&1 | tee {RESULTS}/{lot}.text | sed -u 's/^/{lot}: /' >&2"


def read_outcome(files: dict[str, str], lot: str) -> Outcome:
    """`files`: what PRINT_RESULTS prints."""
    cases = list(ET.fromstring(files[f"{lot}.xml"]).iter("testcase"))
    skipped = {name_of(case) for case in cases if case.find("skipped") is not None}
    return Outcome(
        status=int(files[f"{lot}.status"]),
        text=files[f"{lot}.text"],
        passed=frozenset({name_of(case) for case in cases if len(case) == 0}),
        skipped=frozenset(skipped),
        failed=tuple(
            f"{name_of(case)}: {(trouble.get('message') or '').split(chr(10))[0]}"
            for case in cases
            for trouble in (*case.findall("failure"), *case.findall("error"))
        ),
    )


def name_of(case: ET.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"
