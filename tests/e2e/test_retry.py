"""drf retry with a whole daemon: the same job again, also after a restart."""

from __future__ import annotations

import json

from instance import Instance


def test_a_job_runs_again_as_it_was_submitted(instance: Instance) -> None:
    work = instance.work
    script = work / "job.sh"
    script.write_text('#!/bin/sh\n#DRF -c 0.5 -m 64M -n first\necho "$WHAT $1 $PWD"\nexit 3\n')
    first = instance.submit(str(script), "word", env={"WHAT": "then"})
    assert instance.wait_end(first)["state"] == "FAILED"
    script.write_text("#!/bin/sh\nexit 0\n")
    instance.stop()
    instance.start()
    assert f"again: drf retry {first}\n" in instance.drf("why", first).stdout
    words = ("-q", first, "--with", "-m 96M")
    again = int(instance.drf("retry", *words, cwd="/", env={"WHAT": "now"}).stdout)
    job = instance.wait_end(again)
    assert (job["state"], job["name"], job["demand"]["memory"]) == ("FAILED", "first", 96 << 20)
    assert instance.drf("log", again).stdout == f"then word {work}\n"


def test_the_failed_tasks_of_an_array_run_again(instance: Instance) -> None:
    job = "exit $((DRF_ARRAY_INDEX % 3))"
    array = int(
        instance.drf("submit", "-q", "-c", "0.1", "--array", "0-5", "--", "sh", "-c", job).stdout
    )
    instance.drf("wait", array, check=False)
    reply = json.loads(instance.drf("retry", "--failed", "--json", array).stdout)
    assert reply["jobs"][0]["tasks"] == 4
    again = reply["jobs"][0]["id"]
    instance.drf("wait", again, check=False)
    shown = json.loads(instance.drf("show", "--json", again).stdout)
    assert shown["indices"] == {"FAILED": "1-2,4-5"}
