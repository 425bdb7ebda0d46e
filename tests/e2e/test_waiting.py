"""What is told of a job's end, by what real processes do: the same with cgroups and without."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from instance import CONFIG, Instance

PLAIN = CONFIG.replace("processes = 64", "processes = 64\ncgroups = false")
GREEDY = "import time; held = bytearray(200 << 20); time.sleep(60)"


@pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["cgroups", "none"])
def test_one_fault_has_one_name_one_exit_code_and_one_advice(
    config: str, make_instance: Callable[..., Instance]
) -> None:
    instance = make_instance(config).start()
    words = ("submit", "-w", "-m", "64M", "--", sys.executable, "-c", GREEDY)
    done = instance.drf(*words, check=False)
    assert done.returncode == 137, done
    job_id = int(done.stdout.split()[-1])
    assert f"job {job_id} OUT_OF_MEMORY: needed more than its memory limit of 64M (" in done.stderr
    assert "; ask for more next time: -m " in done.stderr
    assert instance.drf("wait", job_id, check=False).returncode == 137
    assert instance.show(job_id)["state"] == "OUT_OF_MEMORY"
    told = instance.drf("why", job_id).stdout
    how = "killed" if instance.has_cgroups() else "stopped"
    assert f"it was {how} " in told
    assert ("journalctl -k" in told) is instance.has_cgroups()
    _, _, advice = told.partition("next time: drf submit ")
    assert " -m 64M" not in advice
