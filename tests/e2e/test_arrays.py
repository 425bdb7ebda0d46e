"""Arrays by what their tasks do: each runs once, with its index, and no more at once than asked;
and what has failed is submitted again, once and in its order."""

import json
import time
from typing import Any

from instance import ROOMY, SMALL, Instance, wait_for

#: Every task leaves a line in a file of its own whenever it runs.
MARK = "echo x >> ran-$DRF_ARRAY_INDEX; "


def array(instance: Instance, indices: str, script: str, *options: str) -> int:
    return instance.submit(*SMALL, "--array", indices, *options, "--", "sh", "-c", script)


def shown(instance: Instance, array_id: int) -> dict[str, Any]:
    return dict(json.loads(instance.drf("show", "--json", array_id).stdout))


def runs(instance: Instance, indices: range) -> list[int]:
    """How often each task has run."""
    files = [instance.work / f"ran-{index}" for index in indices]
    return [len(path.read_text().split()) if path.exists() else 0 for path in files]


def test_each_task_runs_once_with_its_index_and_writes_to_its_own_file(instance):
    told = "$DRF_ARRAY_INDEX $DRF_ARRAY_COUNT $DRF_ARRAY_MIN $DRF_ARRAY_MAX $DRF_ARRAY_ID"
    array_id = array(instance, "1,4-8:2", f"echo {told} $DRF_JOB_ID")
    assert instance.drf("wait", array_id).stdout == (
        f"array {array_id} COMPLETED: 4 of 4 tasks completed\n"
    )
    for at, index in enumerate((1, 4, 6, 8)):
        output = (instance.work / f"drf-{array_id}_{index}.out").read_text()
        assert output == f"{index} 4 1 8 {array_id} {array_id + 1 + at}\n"
        assert instance.drf("log", f"{array_id}_{index}").stdout == output
    assert instance.cgroups() == []


def test_no_more_run_at_once_than_were_asked_for(instance):
    """Both lines of a task go to one file, which the kernel appends to in one piece. The first ones
    wait for each other, however slowly they are started."""
    together = "while ! [ -e gate ]; do sleep 0.05; done"
    array_id = array(instance, "0-9%3", f"echo + >> log; {together}; sleep 0.2; echo - >> log")
    log = instance.work / "log"
    wait_for("three to run", lambda: log.exists() and log.read_text().count("+") >= 3)
    (instance.work / "gate").touch()
    instance.drf("wait", array_id)
    level = most = 0
    for sign in log.read_text().split():
        level += 1 if sign == "+" else -1
        most = max(most, level)
    assert (level, most) == (0, 3)


def test_a_cancellation_ends_all_tasks_that_wait_and_stops_those_that_run(instance):
    array_id = array(instance, "0-999%2", MARK + "sleep 1000")
    wait_for("two to run", lambda: runs(instance, range(2)) == [1, 1])
    assert instance.drf("cancel", array_id).stdout == f"cancelled job {array_id}\n"
    done = instance.drf("wait", array_id, check=False)
    assert done.returncode == 128 + 15
    assert shown(instance, array_id)["counts"] == {"CANCELLED": 1000}
    assert runs(instance, range(1000)) == [1, 1, *[0] * 998]
    assert instance.drf("wait", f"{array_id}_999", check=False).returncode == 125
    assert instance.cgroups() == []


def test_twenty_thousand_tasks_are_there_again_after_a_kill(instance):
    instance.drf("drain")
    array_id = array(instance, "0-19999", "true")
    instance.strike("controller")
    assert shown(instance, array_id)["counts"] == {"PENDING": 20_000}
    instance.drf("cancel", array_id)


def test_killed_again_and_again_each_task_runs_once_and_none_is_forgotten(lend):
    """SIGKILL to the controller or the launcher at moments that nobody chose."""
    instance = lend(ROOMY)
    indices = range(40)
    array_id = array(instance, "0-39%4", MARK + "sleep 0.15; exit $((DRF_ARRAY_INDEX % 2 * 3))")
    for number in range(8):
        time.sleep(0.05 + 0.04 * number)
        if number % 3 == 2:
            instance.kill_launcher()
        else:
            instance.strike("controller")
    instance.drf("wait", array_id, check=False)
    assert runs(instance, indices) == [1] * 40
    view = shown(instance, array_id)
    assert view["counts"] == {"COMPLETED": 20, "FAILED": 20}
    assert view["indices"] == {"FAILED": "1-39:2"}
    assert instance.cgroups() == []


def test_a_job_runs_again_as_it_was_submitted(instance):
    work = instance.work
    script = work / "job.sh"
    script.write_text('#!/bin/sh\n#DRF -c 0.5 -m 64M -n first\necho "$WHAT $1 $PWD"\nexit 3\n')
    first = instance.submit(str(script), "word", env={"WHAT": "then"})
    assert instance.wait_end(first)["state"] == "FAILED"
    script.write_text("#!/bin/sh\nexit 0\n")
    instance.strike("restart")
    assert f"again: drf retry {first}\n" in instance.drf("why", first).stdout
    words = ("-q", first, "--with", "-m 96M")
    again = int(instance.drf("retry", *words, cwd="/", env={"WHAT": "now"}).stdout)
    job = instance.wait_end(again)
    assert (job["state"], job["name"], job["demand"]["memory"]) == ("FAILED", "first", 96 << 20)
    assert instance.drf("log", again).stdout == f"then word {work}\n"


SHARE = (
    "test ! -e broken-$DRF_ARRAY_INDEX || exit 1;"
    ' echo "$DRF_ARRAY_INDEX of $DRF_ARRAY_COUNT:'
    ' $DRF_ARRAY_MIN-$DRF_ARRAY_MAX:$DRF_ARRAY_STEP"'
)


def test_what_has_failed_is_tried_once_and_in_its_order(instance):
    """A retry stands for its original, also while it runs and after a restart."""
    common = ("submit", "-q", "-c", "0.1", "-g", "chain")
    first = instance.drf(*common, "--", "sh", "-c", "test -e mended").stdout.strip()
    never = ("--if-never", "cancel")
    words = ("--after", first, *never, "--array", "0-3", "--", "sh", "-c", SHARE)
    array = instance.drf(*common, *words).stdout.strip()
    last = instance.drf(*common, "--after", array, *never, "--", "true").stdout.strip()
    instance.drf("wait", last, check=False)
    retry = ("retry", "--failed", "--json", "-g", "chain")

    def tried_again() -> dict[str, int]:
        jobs = json.loads(instance.drf(*retry, check=False).stdout)["jobs"]
        return {each["of"]: each["id"] for each in jobs}

    made = tried_again()
    assert list(made) == [first, f"{array}_[0-3]", last]
    instance.drf("wait", made[last], check=False)
    (instance.work / "mended").touch()
    (instance.work / "broken-2").touch()
    made = tried_again()
    assert len(made) == 3
    instance.drf("wait", *made.values(), check=False)
    (instance.work / "broken-2").unlink()
    (array, again), (_, last) = tried_again().items()
    assert array.endswith("_2")
    assert tried_again() == {}
    instance.strike("restart")
    instance.drf("wait", last)
    assert tried_again() == {}
    job = json.loads(instance.drf("show", "--json", f"{again}_2").stdout)
    assert (job["state"], job["retry_of"]) == ("COMPLETED", int(array.partition("_")[0]))
    # Its share is still one of four.
    assert instance.drf("log", f"{again}_2").stdout == "2 of 4: 0-3:1\n"


def test_why_names_the_retry_of_what_a_job_waits_for(instance):
    common = ("submit", "-q", "-c", "0.1")
    array = instance.drf(*common, "--array", "1-2", "--", "sh", "-c", "test -e mended").stdout
    other = instance.drf(*common, "--hold", "--", "true").stdout.strip()
    after = ("--after", f"{array.strip()},{other}:any", "--", "true")
    waiting = instance.drf(*common, *after).stdout.strip()
    instance.drf("wait", array.strip(), check=False)
    assert "retried" not in instance.drf("why", waiting).stdout
    (instance.work / "mended").touch()
    again = instance.drf("retry", "-q", "--failed", array.strip()).stdout.strip()
    cure = f"drf set --after {again},{other}:any {waiting}"
    said = instance.drf("why", waiting).stdout
    assert f"job {array.strip()} has been retried as job {again}: {cure} waits for that" in said
    instance.drf(*cure.split()[1:])
    instance.drf("cancel", other)
    assert instance.wait_end(int(waiting))["state"] == "COMPLETED"
