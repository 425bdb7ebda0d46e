"""A job of an ordinary user, with real cgroups, is the same however its process is begun."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance import CONFIG, Accounts, Instance
from starters import COMPILED, FORKED, VARIABLE, WAYS, compiled_starter, why_not_compiled

pytestmark = pytest.mark.system

#: All that a job can see of how it was begun. Capability sets, masks and limits, its place in each
#: hierarchy and session, its mounts and namespaces, keys, descriptors.
PROBE = r"""#!/bin/sh
exec 2>&1
env | sort; id; umask; pwd; ulimit -a; ulimit -Ha; echo "$@"
grep -E 'Cap|NoNewPrivs|Seccomp:|Sig(Ign|Blk|Cgt)|Groups|[UG]id|CoreDump|Cpus|THP' /proc/self/status
cat /proc/self/cgroup /proc/self/oom_score_adj /proc/self/loginuid /proc/self/timerslack_ns
cat /proc/self/personality /proc/self/coredump_filter /proc/self/autogroup
grep -E ' /tmp | /var/tmp | /dev/shm ' /proc/self/mountinfo | sed 's/^[0-9]* [0-9]* [0-9:]* //'
wc -l < /proc/self/mountinfo; stat -c '%a %u %g %n' /tmp /var/tmp /dev/shm
for fd in 0 1 2 3 4 5 6 7 8 9; do readlink /proc/$$/fd/$fd; done
ps -o sid=,pgid=,tpgid=,ni=,cls= -p $$ | awk -v me=$$ '{print $1==me, $2==me, $3, $4, $5}'
grep -c . /proc/keys; for each in user pid ipc net uts cgroup; do readlink /proc/self/ns/$each; done
stat -c '%a %u' /proc/self/mem; nice; true
"""
#: What differs from job to job.
_CHANGES = [
    (r"drfd[/-][0-9a-f]{10}\b", "drfd/HASH"),
    (r"\bjob-\d+", "job-ID"),
    (r"drfd-test-\w+", "drfd-test"),
    (r"(DRF_JOB_ID|DRF_ARRAY_ID)=\d+", r"\1=ID"),
    (r"/\d+\.1\.\d+", "/ID"),
    (r"master:\d+|shared:\d+|size=\d+k|autogroup-\d+|inode64", "X"),
    (r"\w{3} +\d+ \d\d:\d\d", "TIME"),
    (r"drf-\d+", "drf-ID"),
]


@pytest.fixture(params=["", "private_tmp = true\n"], ids=["shared tmp", "private tmp"])
def both(request: pytest.FixtureRequest) -> Iterator[dict[str, Instance]]:
    if compiled_starter() is None:
        pytest.skip(why_not_compiled())
    found: dict[str, Instance] = {}
    try:
        for way in WAYS:
            found[way] = Instance(CONFIG + request.param)
            found[way].env[VARIABLE] = str(compiled_starter()) if way == COMPILED else ""
            found[way].start()
        yield found
    finally:
        for instance in found.values():
            instance.destroy()


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory for all users that jobs with a /tmp of their own see, too."""
    with tempfile.TemporaryDirectory(prefix="drfd-test-", dir="/opt") as place:
        os.chmod(place, 0o777)
        yield Path(place)


def seen(instance: Instance, uid: int, work: Path) -> list[str]:
    script = work / "probe"
    script.write_text(PROBE)
    job_id = instance.submit(str(script), "one", "two words", user=uid, cwd=work)
    job = instance.wait_end(job_id)
    assert job["state"] == "COMPLETED", job
    text = Path(job["stdout"]).read_text()
    for pattern, by in _CHANGES:
        text = re.sub(pattern, by, text)
    return text.splitlines()


def test_the_doctor_tells_the_way(both: dict[str, Instance]) -> None:
    says = {way: instance.drf("doctor").stdout for way, instance in both.items()}
    assert "it is begun by a compiled program" in says[COMPILED]
    assert "it is begun by Python, which costs more processor time: a test" in says[FORKED]


def test_a_job_sees_the_same_in_both_ways(
    both: dict[str, Instance], users: Accounts, work: Path
) -> None:
    uid = users[0].pw_uid
    compiled, forked = (seen(one, uid, work) for one in both.values())
    assert compiled == forked
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in compiled
    assert "CapEff:\t0000000000000000" in compiled
    assert len(compiled) > 80, "the probe has told all"


BROKEN = [
    ("--", "/no/such"),
    ("--", "no-such"),
    ("--", "/etc/passwd"),
    ("--", "/tmp/drfd-none/x"),
    ("--output", "/etc/drfd-test", "--", "true"),
    ("--output", "/dev/full/x", "--", "true"),
    ("--output", "/tmp/drfd-none/x", "--", "true"),
]


def test_a_failure_has_the_same_words(
    both: dict[str, Instance], users: Accounts, work: Path
) -> None:
    def outcomes(instance: Instance) -> list[object]:
        ids = [instance.submit(*words, user=users[0].pw_uid, cwd=work) for words in BROKEN]
        jobs = [instance.wait_end(job_id) for job_id in ids]
        return [(job["state"], job["outcome"]) for job in jobs]

    compiled, forked = map(outcomes, both.values())
    assert compiled == forked
    assert {state for state, _ in forked} == {"LAUNCH_FAILED"}
