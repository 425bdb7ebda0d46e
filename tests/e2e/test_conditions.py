"""Waiting for others, for a time and for another try, by what real processes do; signals, and
suspension by them without cgroups; and what is told of a job's end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from instance import BIN, BLOWS, CONFIG, GATE, PLAIN, ROOMY, SMALL, Instance, parent_of, wait_for


@pytest.fixture(params=["cgroups", "none"])
def any_instance(request, lend) -> Instance:
    return lend(ROOMY if request.param == "cgroups" else PLAIN)


def sh(instance: Instance, script: str, *options: str) -> int:
    return instance.submit(*SMALL, *options, "--", "sh", "-c", script)


def lines(instance: Instance, name: str) -> list[str]:
    path = instance.work / name
    return path.read_text().split() if path.exists() else []


def test_a_chain_runs_in_its_order(instance):
    first = sh(instance, f"{GATE}; echo 1 >> order")
    second = sh(instance, "echo 2 >> order; exit 4", "--after", str(first))
    third = sh(instance, "echo 3 >> order", "--after", f"{second}:fail,{first}")
    never = sh(instance, "echo 4 >> order", "--after", str(second))
    assert instance.show(second)["reason"]["code"] == "DEPENDENCY"
    assert instance.show(second)["eligible_at"] is None
    (instance.work / "gate").touch()
    assert instance.wait_end(third)["state"] == "COMPLETED"
    assert lines(instance, "order") == ["1", "2", "3"]
    why = instance.drf("why", never).stdout
    assert f"DEPENDENCY_NEVER: job {second} ended FAILED" in why
    instance.drf("set", "--after", "", never)
    assert instance.wait_end(never)["state"] == "COMPLETED"
    assert lines(instance, "order") == ["1", "2", "3", "4"]


def test_nobody_waits_for_a_job_that_can_never_start(instance):
    """Neither for one that was so before, nor for one that becomes so; what `drf run` waits for
    goes with it."""
    first = sh(instance, f"{GATE}; exit 4")
    stuck = sh(instance, "true", "--after", str(first))
    command = [str(BIN / "drf"), "run", *SMALL, "--after", str(first), "--", "true"]
    env = {**os.environ, "DRFD_SOCKET": str(instance.socket)}
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, cwd=instance.work) as attended:  # fmt: skip
        wait_for("all three", lambda: len(instance.status()) == 3)
        (instance.work / "gate").touch()
        _, told = attended.communicate(timeout=60)
    why = f"job {first} ended FAILED and was to end well"
    assert (attended.returncode, f"never starts: {why}" in told) == (125, True)
    for words in (("wait", stuck), ("submit", "-w", *SMALL, "--after", first, "--", "true")):
        done = instance.drf(*words, check=False)
        assert (done.returncode, f"never starts: {why}" in done.stderr) == (125, True)
    left = {job["id"]: job["reason"]["code"] for job in instance.status()}
    assert left == {stuck: "DEPENDENCY_NEVER", stuck + 2: "DEPENDENCY_NEVER"}


def test_a_job_starts_at_its_time_also_if_the_daemon_was_killed_meanwhile(instance):
    job_id = sh(instance, "true", "--begin", "now+1h")
    assert instance.show(job_id)["reason"]["code"] == "BEGIN_TIME"
    before = time.time()
    instance.drf("set", "--begin", "now+3s", job_id)
    instance.strike("controller")
    job = instance.wait_end(job_id)
    assert job["state"] == "COMPLETED"
    assert min(job["started_at"], job["eligible_at"]) >= int(before) + 3


def test_a_failed_job_is_tried_again_after_a_pause_and_appends_to_its_output(instance):
    script = f"echo try $DRF_ATTEMPT; {GATE}; [ $DRF_ATTEMPT = 2 ] || exit 3"
    job_id = sh(instance, script, "--retry", "3")
    other = sh(instance, "true", "--after", str(job_id))
    instance.wait_state(job_id, "RUNNING")
    # The pause is short: nothing starts before it has been seen.
    instance.drf("drain")
    (instance.work / "gate").touch()
    instance.wait_state(job_id, "PENDING")
    assert instance.show(other)["reason"]["code"] == "DEPENDENCY"
    text = instance.drf("why", job_id).stdout
    assert "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)" in text
    instance.drf("undrain")
    job = instance.wait_end(job_id)
    assert (job["state"], job["attempt"]) == ("COMPLETED", 2)
    assert instance.output(job_id) == "try 1\ntry 2\n"
    assert instance.wait_end(other)["state"] == "COMPLETED"
    kinds = [event["event"] for event in job["events"]]
    assert kinds.count("Retried") == 1


def test_a_lost_job_is_tried_again(lend):
    """Its runner is killed, as all runners are by a reboot."""
    instance = lend(ROOMY)
    script = f"echo $$; [ $DRF_ATTEMPT = 2 ] && exit 0; {GATE}"
    job_id = sh(instance, script, "--retry", "1")
    pid = int(wait_for("its pid", lambda: instance.wait_state(job_id, "RUNNING")
                       and instance.output(job_id)))  # fmt: skip
    os.kill(parent_of(pid), signal.SIGKILL)
    job = instance.wait_end(job_id)
    assert (job["state"], job["attempt"]) == ("COMPLETED", 2)
    assert "attempt 1 ended LOST" in job["attempts"]


def test_a_warning_comes_before_the_time_limit(any_instance):
    """In time for the job to save its work and leave in order."""
    script = f"trap 'echo saved; exit 7' USR1; touch up; {GATE}"
    # The shell may tell of the signal, too, where errors go.
    job_id = sh(any_instance, script, "-t", "1h", "--warn", "USR1@297s", "-e", "/dev/null")
    wait_for("the trap", (any_instance.work / "up").exists)
    # Its process may be ahead of the word that it runs.
    any_instance.wait_state(job_id, "RUNNING")
    any_instance.drf("set", "-t", "300s", job_id)
    job = any_instance.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("FAILED", 7)
    assert any_instance.output(job_id) == "saved\n"
    assert job["ended_at"] - job["started_at"] >= 2.9
    kinds = [event["event"] for event in job["events"]]
    assert kinds.index("Warned") < kinds.index("Exited")


def test_a_signal_is_for_the_first_process_or_for_the_rest(any_instance):
    """As that of a batch script is, whose shell has no trap for what its steps get."""
    traps = 'trap "echo step; exit" USR1; trap "echo no" USR2'
    step = f"sh -c '{traps}; touch up; while :; do sleep 0.1; done'"
    # What the shells themselves tell of a signal goes where errors go.
    job_id = sh(any_instance, f"trap 'echo shell' USR2; {step}; echo on", "-e", "/dev/null")
    wait_for("the traps", lambda: (any_instance.work / "up").exists())
    # Its process may be ahead of the word that it runs, and before that a signal is refused.
    any_instance.wait_state(job_id, "RUNNING")
    any_instance.drf("signal", "first:USR2", job_id)
    any_instance.drf("signal", "rest:USR1", job_id)
    assert any_instance.wait_end(job_id)["state"] == "COMPLETED"
    assert any_instance.output(job_id).splitlines() == ["step", "shell", "on"]


GREEDY = "import time; held = bytearray(200 << 20); time.sleep(60)"


@pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["cgroups", "none"])
def test_one_fault_has_one_name_one_exit_code_and_one_advice(config, lend):
    instance = lend(config)
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


def test_a_chain_that_can_never_run_is_cancelled_over_a_crash(lend):
    instance = lend(PLAIN)
    first = instance.submit("--", "sh", "-c", f"{GATE}; exit 3")
    second = instance.submit("--after", first, "--if-never", "cancel", "--", "true")
    third = instance.submit("--after", second, "--if-never=cancel", "--", "true")
    kept = instance.submit("--after", second, "--", "true")
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
    waited = instance.drf("wait", third, check=False)
    assert waited.returncode == 125
    assert f"drf: job {third} CANCELLED: cancelled, because job {second}" in waited.stderr
    assert instance.show(kept)["reason"]["code"] == "DEPENDENCY_NEVER"
    late = instance.submit("--after", first, "--if-never", "cancel", "--", "true")
    assert instance.wait_end(late)["state"] == "CANCELLED"


# -- suspension without cgroups, by signals -----------------------------------------------------


#: Writes to `beats` again and again, in a process of its own, until there is a `gate`.
BEATS = "(while :; do echo x; sleep 0.02; done) >> beats & while ! [ -e gate ]; do sleep 0.02; done"


@pytest.fixture
def plain(lend) -> Instance:
    return lend(PLAIN)


def beats(instance: Instance) -> int:
    path = instance.work / "beats"
    return path.stat().st_size if path.exists() else 0


def goes_on(instance: Instance) -> None:
    before = beats(instance)
    wait_for("another beat", lambda: beats(instance) > before)


def stands_still(instance: Instance) -> None:
    before = beats(instance)
    time.sleep(0.5)
    assert beats(instance) == before


def beating(instance: Instance, *words: str, script: str = BEATS) -> int:
    job_id = instance.submit(*words, "--", "sh", "-c", f"{script}; exit 7")
    goes_on(instance)
    # Its process may be ahead of the word that it runs.
    instance.wait_state(job_id, "RUNNING")
    return job_id


def suspend(instance: Instance, job_id: int) -> None:
    assert instance.drf("suspend", job_id).stdout == f"suspended job {job_id}\n"
    instance.wait_state(job_id, "SUSPENDED")
    stands_still(instance)


def test_a_suspended_job_lends_its_cores_and_goes_on_to_its_own_end(plain):
    job_id = beating(plain, "-c", "9", "-m", "1G")
    other = plain.submit(
        *("-c", "9", "-m", "1G", "--", "sh", "-c", "while ! [ -e over ]; do sleep 0.05; done")
    )
    assert plain.show(other)["state"] == "PENDING"
    suspend(plain, job_id)
    assert plain.show(job_id)["reason"]["text"].endswith(f"drf resume {job_id} lets it go on")
    plain.wait_state(other, "RUNNING")
    assert plain.drf("resume", "--state", "suspended", "--yes").stdout == f"resuming job {job_id}\n"
    waits = plain.show(job_id)
    assert (waits["state"], waits["reason"]["code"]) == ("SUSPENDED", "RESOURCES")
    stands_still(plain)
    (plain.work / "over").touch()
    plain.wait_state(job_id, "RUNNING")
    goes_on(plain)
    (plain.work / "gate").touch()
    job = plain.wait_end(job_id)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("FAILED", 7, 1)
    assert [event["event"] for event in job["events"]] == [
        *("Submitted", "Admitted", "Launched", "SuspendRequested", "Suspended"),
        *("ResumeRequested", "Resumed", "Exited", "Cleaned"),
    ]


@pytest.mark.parametrize("blow", BLOWS[:3])
def test_a_suspended_job_stays_so_through_every_crash_and_can_be_resumed(plain, blow):
    job_id = beating(plain)
    suspend(plain, job_id)
    before = beats(plain)
    plain.strike(blow)
    stands_still(plain)
    assert beats(plain) == before, "it ran meanwhile"
    assert plain.show(job_id)["state"] == "SUSPENDED"
    plain.drf("resume", job_id)
    plain.wait_state(job_id, "RUNNING")
    goes_on(plain)
    (plain.work / "gate").touch()
    job = plain.wait_end(job_id)
    assert (job["exit_code"], job["attempt"]) == (7, 1)


def test_a_suspended_job_that_somebody_kills_is_over(plain):
    """Nobody has to resume it to find that out."""
    job_id = beating(plain, script=f"echo $$; {BEATS}")
    pid = int(wait_for("its pid", lambda: plain.output(job_id)))
    suspend(plain, job_id)
    os.kill(pid, signal.SIGKILL)
    job = plain.wait_end(job_id)
    assert (job["state"], job["signal"]) == ("FAILED", signal.SIGKILL)
    assert Path(f"/proc/{pid}").exists() is False
