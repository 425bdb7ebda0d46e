"""What starts and when, on a real daemon with real processes: rules that come and go, who is
stopped for others, and load that is not drfd's."""

import getpass
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from instance import PLAIN, Instance, wait_for


def test_a_reload_changes_the_rules_and_leaves_running_jobs_alone(instance):
    running = instance.running("-c", "8", "--", "sleep", "600")["id"]
    waiting = instance.submit("-c", "4", "--", "sleep", "600")
    text = instance.config.read_text()
    instance.config.write_text(text.replace("cores = 9", "cores = nine"))
    refused = instance.drf("reload", check=False)
    assert refused.returncode == 78
    assert str(instance.config) in refused.stderr
    assert instance.show(waiting)["state"] == "PENDING"
    me = getpass.getuser()
    pools = f'[pools.new]\nusers = ["{me}"]\n[users.{me}]\nweight = 2\n'
    instance.config.write_text(text.replace("cores = 9", "cores = 12") + pools)
    reloaded = instance.drf("reload")
    assert reloaded.stdout == "reloaded\n"
    assert f"{me} is a member of pool new, where this does not count" in reloaded.stderr
    instance.wait_state(waiting, "RUNNING")
    assert instance.show(running)["state"] == "RUNNING"
    instance.config.write_text(text.replace("cores = 9", "cores = 2"))
    assert instance.process is not None
    instance.process.send_signal(signal.SIGHUP)
    smaller = lambda: instance._ask("shares")["capacity"]["cores"] == 2  # noqa: E731
    wait_for("a smaller machine", smaller)
    assert {job["state"] for job in instance.status()} == {"RUNNING"}
    assert instance._ask("shares")["free"]["cores"] == 0


# -- what is set for a while ------------------------------------------------------------------


def weekday(days: int) -> str:
    """The weekday so many days from now."""
    return time.strftime("%a", time.localtime(time.time() + days * 86400))


def window() -> str:
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + 1800))
    return (
        f'[[window]]\nname = "upgrade"\nstart = "{start}"\nlength = "1h"\nreason = "new kernel"\n'
    )


def hours() -> str:
    """The days around today: no hour of them ends while the test runs."""
    days = f"{weekday(-2)}-{weekday(2)}"
    return f'[pools.night]\n[[pools.night.hours]]\nwhen = "{days}"\nlimit = {{cores = 0}}\n'


@pytest.mark.parametrize(
    ("rule", "starts", "waits", "code", "words"),
    [
        (window, ("-t", "1m"), ("-t", "1h"), "MAINTENANCE", "upgrade"),
        (hours, ("-t", "1m"), ("-p", "night", "-t", "1m"), "LIMIT", "night may hold 0 until "),
    ],
)
def test_a_job_waits_for_its_time_over_a_kill_until_a_reload_takes_the_rule_back(
    lend, rule, starts, waits, code, words
):
    instance = lend(PLAIN + rule())
    assert instance.ended(*starts, "--", "sleep", "0.2")["state"] == "COMPLETED"
    held = instance.submit(*waits, "--", "true")
    instance.strike("controller")
    # Until the launcher is connected, that is the reason.
    wait_for("its reason", lambda: instance.show(held)["reason"]["code"] == code)
    assert words in instance.show(held)["reason"]["text"]
    instance.config.write_text(PLAIN + "[pools.night]\n")
    instance.drf("reload")
    assert instance.wait_end(held)["state"] == "COMPLETED"


# -- who is stopped for others ----------------------------------------------------------------

#: A pass every second, so that nobody waits long to be found starving.
PREEMPTING = """
[capacity]
cores = 2
memory = "8G"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "1G"
write = "1G"
[pools.a]
[pools.b]
[scheduling]
preemption = true
preempt = "{how}"
preempt_after = "1s"
preempt_exempt = 0
reservation_delay = "1s"
[enforcement]
grace = "20s"
processes = 64
"""
#: Says which attempt it is and its pid, notes a SIGTERM, and goes on until there is a `gate`.
VICTIM = (
    "trap 'echo told $DRF_JOB_ID >> told; exit 3' TERM; echo attempt $DRF_ATTEMPT; echo pid $$; "
    "while ! [ -e gate ]; do echo x >> beats-$DRF_JOB_ID; sleep 0.02; done; echo done"
)


def running(instance: Instance, pool: str, *words: str, script: str = VICTIM) -> int:
    """A job of one core that runs, and has set its trap if it sets one."""
    # The shell tells of its child that a signal has ended, where errors go.
    one_core = ("-p", pool, "-c", "1", "-m", "64M", "-e", "/dev/null")
    job_id = int(instance.running(*one_core, *words, "--", "sh", "-c", script)["id"])
    if script is VICTIM:
        wait_for("a beat", (instance.work / f"beats-{job_id}").exists)
    return job_id


def until_over(name: str) -> str:
    return f"while ! [ -e {name} ]; do sleep 0.05; done"


def kinds(job: dict[str, Any]) -> list[str]:
    return [event["event"] for event in job["events"]]


def test_a_starving_pool_gets_the_place_of_the_job_started_last_which_runs_again_later(lend):
    instance = lend(PREEMPTING.format(how="requeue"))
    first = running(instance, "a", "--preemptible")
    last = running(instance, "a", "--preemptible")
    starving = running(instance, "b", script=until_over("over"))
    assert (instance.work / "told").read_text() == f"told {last}\n"
    waits = instance.show(last)
    assert (waits["state"], waits["attempt"], waits["outcome"]) == ("PENDING", 1, None)
    assert waits["reason"]["code"] in ("RESOURCES", "FAIR_SHARE")
    (why,) = (e["text"] for e in waits["events"] if e["event"] == "PreemptRequested")
    assert why.startswith(f"stopped for job {starving} (")
    assert f"it was {why}\n" in instance.drf("why", last).stdout
    (instance.work / "over").touch()
    wait_for("a second run", lambda: instance.output(last).count("attempt") == 2)
    (instance.work / "gate").touch()
    job = instance.wait_end(last)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("COMPLETED", 0, 2)
    words = instance.output(last).split()
    assert words[:2] + words[4:6] + words[8:] == ["attempt", "1", "attempt", "2", "done"]
    assert words[3] != words[7], "one process ran both attempts"
    assert kinds(job) == [
        *("Submitted", "Admitted", "Launched", "PreemptRequested", "Exited", "Requeued"),
        *("Admitted", "Launched", "Exited", "Cleaned"),
    ]
    untouched = instance.wait_end(first)
    assert (untouched["state"], untouched["attempt"]) == ("COMPLETED", 1)
    assert "PreemptRequested" not in kinds(untouched)


def test_a_job_that_is_frozen_for_another_goes_on_afterwards_as_the_same_process(lend):
    instance = lend(PREEMPTING.format(how="suspend"))
    first = running(instance, "a", "--preemptible")
    last = running(instance, "a", "--preemptible")
    beats = instance.work / f"beats-{last}"
    starving = running(instance, "b", script=until_over("over"))
    waits = instance.show(last)
    assert (waits["state"], waits["reason"]["code"]) == ("SUSPENDED", "RESOURCES")
    assert instance.show(first)["state"] == "RUNNING"
    (why,) = (e["text"] for e in waits["events"] if e["event"] == "SuspendRequested")
    assert why.startswith(f"suspended for job {starving} (")
    assert f"it was {why}\n" in instance.drf("why", last).stdout
    (instance.work / "over").touch()
    instance.wait_state(last, "RUNNING")
    assert why not in instance.drf("why", last).stdout
    before = beats.stat().st_size
    wait_for("another beat", lambda: beats.stat().st_size > before)
    (instance.work / "gate").touch()
    job = instance.wait_end(last)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("COMPLETED", 0, 1)
    words = instance.output(last).split()
    assert (len(words), words[:2], words[4:]) == (5, ["attempt", "1"], ["done"])
    assert not (instance.work / "told").exists()
    assert kinds(job) == [
        *("Submitted", "Admitted", "Launched", "SuspendRequested", "Suspended", "Resumed"),
        *("Exited", "Cleaned"),
    ]


# -- load from outside ------------------------------------------------------------------------

MIB, GIB = 1 << 20, 1 << 30
#: So much a process from outside takes, and a job; and what others may come to use meanwhile.
OUTSIDE, OWN, MORE = 5 * GIB, 2 * GIB, 2 * GIB
HOG = """
import sys, time
block = bytearray(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""


def burdened() -> str:
    """Nearly all memory that is free now is for jobs: what others use already, and `MORE`, the
    machine has besides, for guests may boot meanwhile. So few cores are that others, who use the
    rest as they like, are not noticed there."""
    memory = psutil.virtual_memory().available // MIB * MIB - MORE
    text = PLAIN.replace("cores = 9", "cores = 0.25").replace('"18G"', str(memory))
    return f"{text}[scheduling]\nrespect_external_load = true\n"


def test_a_job_waits_for_memory_that_others_really_use_and_starts_when_they_have_ended(
    make_instance,
):
    """What a job of drfd's own holds at the same time is not from outside."""
    if psutil.virtual_memory().available < OUTSIDE + OWN + MORE + 2 * GIB:
        pytest.skip("too little memory is free here for processes that take 7 GiB of it")
    instance = make_instance(burdened()).start()
    little, hog = ("-c", "0.05"), (sys.executable, "-c", HOG)
    own = instance.submit(*little, "-m", "3G", "--", *hog, OWN)
    outside = subprocess.Popen([*hog, str(OUTSIDE)], stdout=subprocess.PIPE)
    try:
        assert outside.stdout is not None
        assert outside.stdout.readline() == b"ready\n"
        wait_for("its memory", lambda: instance.show(own)["usage"]["memory"] > OWN)

        def seen() -> dict[str, Any] | None:
            external = instance._ask("shares").get("external")
            return external if external and external["memory"] >= OUTSIDE * 0.9 else None

        load = wait_for("the load to be seen", seen)
        assert load["kept"]["memory"] < load["memory"], "what is there for others covers a part"
        # Others may really use more than before, but not so much as the job.
        assert load["kept"]["memory"] < OUTSIDE

        capacity = instance._ask("shares")["capacity"]["memory"]
        asked = (capacity - 3 * GIB - load["kept"]["memory"] // 2) // MIB
        job_id = instance.submit(*little, "-m", f"{asked}M", "--", "true")
        wait_for("the reason", lambda: reason(instance, job_id) == "EXTERNAL_LOAD")
        text = instance.show(job_id)["reason"]["text"]
        assert "processes outside drfd use" in text
        assert "processes outside drfd use" in instance.drf("doctor").stdout
        assert "outside" in instance.drf("shares").stdout
        small = instance.submit(*little, "-m", "64M", "--", "true")
        assert instance.wait_end(small)["state"] == "COMPLETED", "what is left is given out"
        assert instance.show(own)["state"] == "RUNNING"
    finally:
        outside.kill()
        outside.communicate()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert instance.show(own)["state"] == "RUNNING"


def reason(instance: Instance, job_id: int) -> str | None:
    found = instance.show(job_id)["reason"]
    return None if found is None else str(found["code"])
