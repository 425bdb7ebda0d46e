"""Lending costs nobody time: the jobs of two users end no later than under quotas."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

from instance import ALONE, CONFIG, Accounts, Instance

pytestmark = pytest.mark.system

CPUS = len(os.sched_getaffinity(0))
#: As many processes as the first argument says, each of which uses so much processor time as the
#: second one says.
WORK = """
import os, sys, time
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
while time.process_time() < float(sys.argv[2]): pass
try:
    while True: os.wait()
except ChildProcessError:
    pass
"""
#: The floor of each job, in cores, and its work in core-seconds: eight seconds under a quota.
FLOOR, WORK_S = 0.4, 3.2
#: A job under lending takes at most so many times as long as under a quota, in some round.
LATE, ROUNDS = 1.15, 4


def config(mode: str) -> str:
    text = CONFIG.replace("cores = 9", f"cores = {CPUS}")
    return text.replace("[enforcement]", f'[enforcement]\ncores = "{mode}"') + ALONE


def lengths(instance: Instance, users: Accounts) -> dict[str, float]:
    """Seconds that the jobs take, by name: each user has one that could use all CPUs, and one that
    only uses what it declares. They are submitted one after the other, and start together."""
    instance.drf("drain")
    jobs = {}
    for number, user in enumerate(users):
        for name, cores, processes in (
            (f"wide{number}", f"{FLOOR}..{CPUS}", 2),
            (f"plain{number}", f"{FLOOR}", 1),
        ):
            words = ("-c", cores, "-m", "100M", "-o", "/dev/null", "--")
            program = (sys.executable, "-c", WORK, processes, WORK_S / processes)
            jobs[name] = instance.submit(*words, *program, user=user.pw_uid, cwd="/")
    instance.drf("undrain")
    found = {name: instance.wait_end(job_id) for name, job_id in jobs.items()}
    assert {job["state"] for job in found.values()} == {"COMPLETED"}
    return {name: job["ended_at"] - job["started_at"] for name, job in found.items()}


def test_nobodys_jobs_end_later_than_under_a_quota(
    lend: Callable[[str], Instance], users: Accounts
) -> None:
    """What else runs on the machine delays either, and may leave nothing to lend; what delays jobs
    by lending does so in each round."""
    if CPUS < 2:
        pytest.skip("one CPU is everybody's")
    quota, share = (lend(config(mode)) for mode in ("quota", "share"))
    seen = []
    for _ in range(ROUNDS):
        before, now = lengths(quota, users), lengths(share, users)
        parts = {name: round(now[name] / before[name], 2) for name in before}
        seen.append(parts)
        if max(parts.values()) <= LATE:
            return
    raise AssertionError(f"longer than under a quota, by round: {seen}")
