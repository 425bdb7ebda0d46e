"""What a job gets for its cores, in each mode, by what its processes can do."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from instance import CONFIG, Instance, stat_of, wait_for
from kernel import Kernel

pytestmark = pytest.mark.system

BURN = "while True: pass"
#: Burns on one CPU, as the first argument says, and so do its neighbours.
BURN_ON = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def start(lend):
    """A daemon that gives out all CPUs of this machine, in that mode."""
    if len(CPUS) < 2:
        pytest.skip("one CPU is everybody's")
    return lambda mode: lend(config(mode))


def config(mode: str, cores: int = len(CPUS)) -> str:
    text = CONFIG.replace("cores = 9", f"cores = {cores}")
    return text.replace("[enforcement]", f'[enforcement]\ncores = "{mode}"')


def run(instance: Instance, cores: float | str, *command: str) -> dict[str, Any]:
    """A job that runs."""
    return instance.running("-c", cores, "-m", "100M", "--", *command)


def python(program: str, *words: object) -> tuple[str, ...]:
    return (sys.executable, "-c", program, *map(str, words))


SPIN = python("import os; os.fork()\n" + BURN)


def cgroup(job: dict[str, Any], controller: str) -> Path:
    kernel = Kernel()
    return Path(kernel.v2 or kernel.v1[controller], job["cgroup"])


def pids(job: dict[str, Any]) -> list[int]:
    return [int(word) for word in (cgroup(job, "cpu") / "cgroup.procs").read_text().split()]


def allowed(job: dict[str, Any]) -> set[int]:
    """The CPUs that all its processes may run on."""
    found = [os.sched_getaffinity(pid) for pid in pids(job)]
    assert found and all(cpus == found[0] for cpus in found)
    return set(found[0])


def cpu_s(job: dict[str, Any]) -> float:
    if Kernel().v2 is None:
        return int((cgroup(job, "cpuacct") / "cpuacct.usage").read_text()) / 1e9
    return int((cgroup(job, "cpu") / "cpu.stat").read_text().split()[1]) / 1e6


def has_quota(job: dict[str, Any]) -> bool:
    if Kernel().v2 is None:
        return (cgroup(job, "cpu") / "cpu.cfs_quota_us").read_text() != "-1\n"
    return not (cgroup(job, "cpu") / "cpu.max").read_text().startswith("max")


def quota(job: dict[str, Any]) -> float:
    """The cores that its quota lets it use."""
    if Kernel().v2 is None:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        most, period = (int((cgroup(job, "cpu") / name).read_text()) for name in names)
    else:
        most, period = map(int, (cgroup(job, "cpu") / "cpu.max").read_text().split())
    return most / period


def end(instance: Instance, *jobs: dict[str, Any]) -> None:
    for job in jobs:
        instance.drf("cancel", job["id"])
        instance.wait_end(job["id"])


def both_s(jobs: list[dict[str, Any]]) -> tuple[float, float]:
    """What two jobs have used by the same moment: read anew if the first has gone on meanwhile."""
    first, second = jobs
    while True:
        found = cpu_s(first), cpu_s(second)
        if cpu_s(first) - found[0] < 0.1:
            return found


# -- weight -----------------------------------------------------------------------------------


def test_two_jobs_that_want_one_cpu_share_it_as_they_have_declared(start):
    instance = start("weight")
    jobs = [run(instance, cores, *python(BURN_ON, CPUS[0])) for cores in (1.5, 0.5)]
    assert not any(map(has_quota, jobs))
    one_cpu = {CPUS[0]}
    wait_for("both on one CPU", lambda: all(allowed(job) == one_cpu for job in jobs))
    before = both_s(jobs)

    def used_s() -> list[float]:
        return [now - was for now, was in zip(both_s(jobs), before, strict=True)]

    # Other programs may leave them little of it.
    wait_for("enough to compare", lambda: sum(used_s()) > 2, seconds=600, show=used_s)
    first, second = used_s()
    assert first / second == pytest.approx(3, rel=0.2)


@pytest.mark.parametrize("mode", ["weight", "quota"])
def test_only_with_weights_a_job_takes_what_nobody_else_wants(start, mode):
    """So little is declared that even a machine that is busy otherwise has several times that."""
    instance = start(mode)
    job = run(instance, 0.02, *python(BURN))
    took = []
    # Others may leave it nothing for a while.
    while len(took) < (5 if mode == "quota" else 60) and (not took or max(took) <= 0.06):
        # The span is never shorter than that of the use: what comes between the readings only
        # makes the use look smaller.
        began, before = time.monotonic(), cpu_s(job)
        time.sleep(1)
        used = cpu_s(job) - before
        took.append(used / (time.monotonic() - began))
    assert (max(took) > 0.06) == (mode == "weight"), took


# -- pin --------------------------------------------------------------------------------------


def test_whole_cores_are_cpus_that_nobody_else_runs_on(start):
    instance = start("pin")
    parts = [run(instance, 0.5, *python(BURN)) for _ in range(2)]
    whole = run(instance, len(CPUS) - 1, *python(f"import os\nos.fork()\n{BURN}"))
    assert len(allowed(whole)) == len(CPUS) - 1
    assert [allowed(job) for job in parts] == [set(CPUS) - allowed(whole)] * 2
    assert [has_quota(job) for job in (whole, *parts)] == [False, True, True]
    # One that sleeps is last seen where it ran before, until it goes on.
    before = {job["id"]: cpu_s(job) for job in parts}
    for job in parts:
        wait_for("work", lambda job=job: cpu_s(job) > before[job["id"]] + 0.05)
    seen = {job["id"]: set[int]() for job in parts}
    for _ in range(100):
        for job in parts:
            seen[job["id"]] |= {last_cpu(pid) for pid in pids(job)}
        time.sleep(0.01)
    assert all(cpus == set(CPUS) - allowed(whole) for cpus in seen.values())
    end(instance, whole)
    assert [allowed(job) for job in parts] == [set(CPUS)] * 2


def last_cpu(pid: int) -> int:
    """That the process runs on, or last ran on."""
    return int(stat_of(pid)[36])


def test_pins_outlive_launcher_and_daemon(start):
    """kill -9 of both: the next ones know from the kernel who has what."""
    instance = start("pin")
    whole, part = run(instance, 1, "sleep", "600"), run(instance, 0.5, "sleep", "600")
    before = allowed(whole)
    assert [instance.show(job["id"])["cpus"] for job in (whole, part)] == [str(*before), None]
    assert "cores      enforced: whole cores as CPUs of their own" in instance.drf("doctor").stdout
    instance.strike("both")
    assert allowed(whole) == before
    assert allowed(part) == set(CPUS) - before
    end(instance, part)
    second = run(instance, 1, "sleep", "600")
    assert not allowed(second) & before
    end(instance, whole)
    third = run(instance, 1, "sleep", "600")
    assert not allowed(second) & allowed(third)


def test_jobs_that_run_when_pinning_begins_keep_quotas_and_leave_the_pinned(start):
    instance = start("quota")
    old = run(instance, 1, *python(BURN))
    assert allowed(old) == set(CPUS) and has_quota(old)
    instance.config.write_text(config("pin"))
    instance.drf("reload")
    new = run(instance, 1, "sleep", "600")
    assert len(allowed(new)) == 1 and not has_quota(new)
    assert allowed(old) == set(CPUS) - allowed(new) and has_quota(old)
    instance.config.write_text(config("weight"))
    instance.drf("reload")
    end(instance, old)
    light = run(instance, 0.5, "sleep", "600")
    assert allowed(light) == set(CPUS) - allowed(new) and not has_quota(light)
