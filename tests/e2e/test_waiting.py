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


def test_a_failed_job_is_told_with_what_it_said(make_instance: Callable[..., Instance]) -> None:
    instance = make_instance(PLAIN).start()
    script = "echo result; pyhton x"
    done = instance.drf("submit", "-q", "-w", "--", "bash", "-c", script, check=False)
    job_id = int(done.stdout)
    assert done.returncode == 127
    first, *rest = done.stderr.splitlines()
    assert first == f"drf: job {job_id} FAILED: exit code 127"
    assert rest[-1] == "  | bash: line 1: pyhton: command not found"
    waited = instance.drf("wait", job_id, check=False)
    assert (waited.returncode, waited.stderr) == (127, done.stderr)
    array = instance.submit("--array", "0-3", "--", "sh", "-c", "ls /no/$DRF_ARRAY_INDEX")
    told = instance.drf("wait", array, check=False).stderr.splitlines()
    assert told[0].startswith(f"drf: array {array} FAILED: 0 of 4 tasks completed; 4 FAILED (0-3)")
    assert f"job {array}_0" in told[1]
    assert "/no/0" in told[2]


def test_a_chain_that_can_never_run_is_cancelled_over_a_crash(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance(PLAIN).start()
    gate = "while ! [ -e gate ]; do sleep 0.02; done; exit 3"
    first = instance.submit("--", "sh", "-c", gate)
    second = instance.submit("--after", first, "--if-never", "cancel", "--", "true")
    third = instance.submit("--after", second, "--kill-on-invalid-dep=yes", "--", "true")
    kept = instance.submit("--after", second, "--", "true")
    tell = ("--notify", "fail", "--notify-command", 'echo "$DRF_JOB_ID $DRF_STATE" >> told')
    notified = instance.submit("--after", first, "--if-never", "cancel", *tell, "--", "true")
    assert "cancelled when that can no longer be met" in instance.drf("show", third).stdout
    instance.wait_state(first, "RUNNING")
    instance.kill()
    (instance.work / "gate").touch()
    instance.start()
    for job_id, cause in ((second, f"{first} ended FAILED"), (third, f"{second} ended CANCELLED")):
        job = instance.wait_end(job_id)
        assert (job["state"], job["started_at"]) == ("CANCELLED", None)
        assert job["outcome"]["text"] == (
            f"cancelled, because job {cause} and it could never start (--if-never cancel)"
        )
    instance.wait_state(notified, "CANCELLED")
    assert (instance.work / "told").read_text() == f"{notified} CANCELLED\n"
    waited = instance.drf("wait", third, check=False)
    assert waited.returncode == 125
    assert f"drf: job {third} CANCELLED: cancelled, because job {second}" in waited.stderr
    assert instance.show(kept)["reason"]["code"] == "DEPENDENCY_NEVER"
    late = instance.submit("--after", first, "--if-never", "cancel", "--", "true")
    assert instance.wait_end(late)["state"] == "CANCELLED"


def test_the_administrators_default_cancels_and_a_submission_may_keep(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance(PLAIN + '[defaults]\nif_never = "cancel"\n').start()
    first = instance.submit("--", "false")
    instance.wait_end(first)
    usual = instance.submit("--after", first, "--", "true")
    assert instance.wait_end(usual)["state"] == "CANCELLED"
    kept = instance.submit("--after", first, "--if-never", "keep", "--", "true")
    assert instance.show(kept)["reason"]["code"] == "DEPENDENCY_NEVER"
