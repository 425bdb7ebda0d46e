"""Waiting for others, for a time and for another try, by what real processes do; signals too."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from instance import BIN, CONFIG, Instance, wait_for

PLAIN = CONFIG.replace("processes = 64", "processes = 64\ncgroups = false")
ROOMY = CONFIG.replace("cores = 9", "cores = 50").replace('"18G"', '"50G"')
SMALL = ("-c", "0.1", "-m", "64M")
#: Ends when there is a `gate`.
GATE = "while ! [ -e gate ]; do sleep 0.02; done"
#: Counts the signals of one kind that it gets in `told`; its first process waits in short sleeps,
#: which end by the signal.
COUNT = "trap 'echo {0} >> told' {0}; echo up > up; " + GATE.replace("sleep 0.02", "sleep 0.02; :")


@pytest.fixture(params=["cgroups", "none"])
def any_instance(
    request: pytest.FixtureRequest, make_instance: Callable[..., Instance]
) -> Instance:
    return make_instance(ROOMY if request.param == "cgroups" else PLAIN).start()


def sh(instance: Instance, script: str, *options: str) -> int:
    return instance.submit(*SMALL, *options, "--", "sh", "-c", script)


def lines(instance: Instance, name: str) -> list[str]:
    path = instance.work / name
    return path.read_text().split() if path.exists() else []


def test_a_chain_runs_in_its_order(instance: Instance) -> None:
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


def test_nobody_waits_for_a_job_that_can_never_start(instance: Instance) -> None:
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


def test_who_ended_long_ago_is_known_from_the_journal(instance: Instance) -> None:
    good, bad = sh(instance, "exit 0"), sh(instance, "exit 1")
    instance.wait_end(good)
    instance.wait_end(bad)
    instance.kill()
    instance.start()
    assert instance.wait_end(sh(instance, "true", "--after", f"{good},{bad}:fail"))["state"] == (
        "COMPLETED"
    )
    assert instance.show(sh(instance, "true", "--after", str(bad)))["reason"]["code"] == (
        "DEPENDENCY_NEVER"
    )
    refused = instance.drf("submit", "--after", "99", "--", "true", check=False)
    assert (refused.returncode, refused.stderr) == (1, "drf: there is no job 99 to wait for\n")


def test_a_job_starts_at_its_time_also_if_the_daemon_was_killed_meanwhile(
    instance: Instance,
) -> None:
    before = time.time()
    # So late that it has not begun when the daemon is asked, and killed.
    job_id = sh(instance, "true", "--begin", "now+10s")
    assert instance.show(job_id)["reason"]["code"] == "BEGIN_TIME"
    instance.kill()
    instance.start()
    job = instance.wait_end(job_id)
    assert job["state"] == "COMPLETED"
    assert job["started_at"] >= int(before) + 10
    assert job["eligible_at"] >= int(before) + 10


def test_the_controller_is_killed_while_jobs_wait_for_each_other(
    make_instance: Callable[..., Instance],
) -> None:
    """Each time right after the end that lets the next one go, and none runs twice or never."""
    instance = make_instance(ROOMY).start()
    first = sh(instance, f"{GATE}; echo 1 >> order")
    ids = [first]
    for number in range(2, 5):
        ids.append(sh(instance, f"echo {number} >> order", "--after", str(ids[-1])))
    for point in ("journal.before-commit", "journal.after-commit", "engine.before-effect"):
        instance.arm(point, "self")
    (instance.work / "gate").touch()
    deaths = 0
    while not lines(instance, "order")[3:]:
        if instance.is_dead():
            deaths += 1
            # It may die again before it answers.
            instance.launch()
        time.sleep(0.02)
    wait_for("the daemon's answer", instance.answers)
    assert [instance.wait_end(job_id)["state"] for job_id in ids] == ["COMPLETED"] * 4
    assert deaths >= 2
    assert lines(instance, "order") == ["1", "2", "3", "4"]


def test_a_failed_job_is_tried_again_after_a_pause_and_appends_to_its_output(
    instance: Instance,
) -> None:
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


def test_a_lost_job_is_tried_again(make_instance: Callable[..., Instance]) -> None:
    """Its runner is killed, as all runners are by a reboot."""
    instance = make_instance(ROOMY).start()
    script = f"echo $$; [ $DRF_ATTEMPT = 2 ] && exit 0; {GATE}"
    job_id = sh(instance, script, "--retry", "1")
    pid = int(wait_for("its pid", lambda: instance.wait_state(job_id, "RUNNING")
                       and instance.output(job_id)))  # fmt: skip
    with open(f"/proc/{pid}/stat") as stat:
        os.kill(int(stat.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
    job = instance.wait_end(job_id)
    assert (job["state"], job["attempt"]) == ("COMPLETED", 2)
    assert "attempt 1 ended LOST" in job["attempts"]


def test_a_warning_comes_before_the_time_limit(any_instance: Instance) -> None:
    """In time for the job to save its work and leave in order."""
    script = f"trap 'echo saved; exit 7' USR1; {GATE}"
    # Not before its shell has had time to set the trap.
    # The shell may tell of the signal, too, where errors go.
    options = ("-t", "300s", "--warn", "USR1@294s", "-e", "/dev/null")
    job_id = sh(any_instance, script, *options)
    job = any_instance.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("FAILED", 7)
    assert any_instance.output(job_id) == "saved\n"
    assert job["ended_at"] - job["started_at"] >= 5.9
    kinds = [event["event"] for event in job["events"]]
    assert kinds.index("Warned") < kinds.index("Exited")


def test_a_signal_reaches_the_job_once_whoever_is_killed(any_instance: Instance) -> None:
    instance = any_instance
    job_id = sh(instance, COUNT.format("USR1"))
    wait_for("the trap", lambda: lines(instance, "up"))
    instance.wait_state(job_id, "RUNNING")
    instance.drf("signal", "USR1", job_id)
    wait_for("the first", lambda: len(lines(instance, "told")) == 1)
    instance.kill_launcher()
    instance.kill()
    instance.start()
    instance.arm("journal.after-commit", "self")
    # The answer is lost with the daemon, and the signal is not.
    instance.drf("signal", "USR1", job_id, check=False)
    wait_for("its death", instance.is_dead)
    instance.start()
    wait_for("the second", lambda: len(lines(instance, "told")) == 2)
    instance.kill_launcher()
    (instance.work / "gate").touch()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert lines(instance, "told") == ["USR1", "USR1"]


def test_a_running_jobs_time_limit_can_be_shortened(instance: Instance) -> None:
    job_id = sh(instance, GATE, "-t", "1h")
    instance.wait_state(job_id, "RUNNING")
    assert instance.drf("set", "-t", "1s", job_id).stdout == f"changed job {job_id}\n"
    job = instance.wait_end(job_id)
    assert (job["state"], job["time_limit_s"]) == ("TIMEOUT", 1)


def test_a_changed_demand_is_what_the_job_gets(instance: Instance) -> None:
    job_id = sh(instance, "echo $DRF_CORES $DRF_MEMORY", "--hold")
    instance.drf("set", "-c", "2", "-m", "128M", "--rename", "other", job_id)
    instance.drf("release", job_id)
    job = instance.wait_end(job_id)
    assert job["name"] == "other"
    assert instance.output(job_id) == f"2 {128 << 20}\n"


def test_verbs_take_ranges_and_patterns(instance: Instance) -> None:
    for name in ("train-1", "train-2", "eval", "train-3"):
        sh(instance, "true", "--hold", "-n", name)
    assert instance.drf("cancel", "--name", "train-[12]").stdout == (
        "cancelled job 1\ncancelled job 2\n"
    )
    assert instance.drf("cancel", "3-4").stdout == "cancelled job 3\ncancelled job 4\n"
