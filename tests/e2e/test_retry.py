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


def test_what_has_failed_is_tried_once_and_in_its_order(instance: Instance) -> None:
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
    instance.stop()
    instance.start()
    instance.drf("wait", last)
    assert tried_again() == {}
    job = json.loads(instance.drf("show", "--json", f"{again}_2").stdout)
    assert (job["state"], job["retry_of"]) == ("COMPLETED", int(array.partition("_")[0]))
    # Its share is still one of four.
    assert instance.drf("log", f"{again}_2").stdout == "2 of 4: 0-3:1\n"


def test_why_names_the_retry_of_what_a_job_waits_for(instance: Instance) -> None:
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


SHARE = (
    "test ! -e broken-$DRF_ARRAY_INDEX || exit 1;"
    ' echo "$DRF_ARRAY_INDEX of $DRF_ARRAY_COUNT:'
    ' $DRF_ARRAY_MIN-$DRF_ARRAY_MAX:$DRF_ARRAY_STEP"'
)
