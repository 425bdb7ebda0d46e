"""The policy of what jobs inherit: as docs/enforcement.md says it, and as far as it can be had."""

from __future__ import annotations

import json
import os
import resource
import subprocess

import pytest

from drfd.launcher.runner import inheritance
from launcher.rig import ROOT, python

as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root")


def run(code: str) -> object:
    """What `code` prints as JSON, in a process of its own."""
    setup = "import json, os, resource\nfrom drfd.linux import syscalls\n"
    setup += "from drfd.launcher.runner import inheritance\n"
    done = subprocess.run(python(setup + code), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def show(limit: int) -> str:
    if limit == resource.RLIM_INFINITY:
        return "none"
    return f"{limit >> 20}M" if limit and limit % (1 << 20) == 0 else str(limit)


def test_the_manual_has_the_limits_of_the_policy() -> None:
    free = (resource.RLIM_INFINITY,) * 2
    text = ", ".join(name for name, limits in inheritance.LIMITS.items() if limits == free)
    parts = [f"{text}: none"]
    for name, (soft, hard) in inheritance.LIMITS.items():
        if (soft, hard) != free:
            parts.append(f"{name} {show(soft)}" + (f", hard {show(hard)}" if soft != hard else ""))
    manual = ROOT.joinpath("docs", "enforcement.md").read_text()
    assert f"| {'; '.join(parts)}; SIGPENDING half of" in manual
    assert f"timer slack {inheritance.TIMER_SLACK_NS // 1000} µs" in manual


def test_the_policy_knows_every_limit_of_the_kernel() -> None:
    """RLIMIT_OFILE is another name of NOFILE; LOCKS has no effect since Linux 2.4.25."""
    known = {name.removeprefix("RLIMIT_") for name in dir(resource) if name.startswith("RLIMIT_")}
    assert {*inheritance.LIMITS, *inheritance._threads()} == known - {"OFILE", "LOCKS"}


@pytest.mark.parametrize(
    ("one", "other", "least"), [(1, 2, 1), (-1, 5, 5), (5, -1, 5), (-1, -1, -1), (0, -1, 0)]
)
def test_no_limit_is_more_than_any(one: int, other: int, least: int) -> None:
    assert inheritance._least(one, other) == least


def test_an_ordinary_users_hard_limits_stay() -> None:
    """They are that user's own; a job of it may raise the soft ones to them, as its shell may."""
    code = """
if os.getuid() == 0:
    os.setresuid(*[64321] * 3)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 64 << 20))
inheritance.take_policy()
print(json.dumps([resource.getrlimit(each) for each in (
    resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)]))
"""
    assert run(code) == [[200, 200], [8 << 20, 64 << 20]]


@as_root
def test_a_hard_limit_that_cannot_be_raised_is_no_obstacle() -> None:
    """A container's root lacks CAP_SYS_RESOURCE."""
    code = """
have = syscalls.capabilities()
less = have.permitted & ~(1 << 24)
syscalls.set_capabilities(syscalls.Capabilities(less, less, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
inheritance.take_policy()
print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""
    assert run(code) == [200, 200]


@pytest.mark.slow
def test_until_exec_there_is_no_core_and_then_what_jobs_have() -> None:
    code = """
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
inheritance.take_policy()
before = resource.getrlimit(resource.RLIMIT_CORE)
inheritance.allow_core()
print(json.dumps([before == (min(1, hard) if hard >= 0 else 1, hard),
                  resource.getrlimit(resource.RLIMIT_CORE) == (0, hard)]))
"""
    assert run(code) == [True, True]
