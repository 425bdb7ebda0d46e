"""Where the output of jobs goes, and when it can be read."""

import sys
from pathlib import Path

import pytest

from instance import wait_for

SPEAK = ("sh", "-c", "echo one; echo two >&2; echo three; exit 3")
LITTLE = ("-m", "32M", "-c", "0.1")
#: Prints a line and waits for a file.
PRINT = """
import os, sys, time
print("first", file=getattr(sys, sys.argv[2]))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ((), {"drf-ID.out": "one\ntwo\nthree\n"}),
        (("-o", "%j.log"), {"ID.log": "one\ntwo\nthree\n"}),
        (("-e", "%j.err"), {"drf-ID.out": "one\nthree\n", "ID.err": "two\n"}),
    ],
    ids=["one", "named", "two"],
)
def test_a_job_has_one_file_with_its_lines_in_order_or_a_second_on_request(
    instance, options, files
):
    job = instance.ended(*LITTLE, *options, "--", *SPEAK)
    job_id, is_apart = job["id"], len(files) == 2
    found = {
        each.name.replace(str(job_id), "ID"): each.read_text() for each in instance.work.iterdir()
    }
    assert found == files
    assert (job["stdout"] != job["stderr"]) == is_apart
    shown = instance.drf("show", job_id).stdout
    assert "\noutput " in shown and ("\nerrors " in shown) == is_apart
    assert instance.drf("log", job_id).stdout == Path(job["stdout"]).read_text()
    assert instance.drf("log", "--err", job_id).stdout == Path(job["stderr"]).read_text()
    said = f"its output: drf log {'--err ' if is_apart else ''}{job_id}"
    assert said in instance.drf("why", job_id).stdout


def test_what_another_job_writes_is_never_emptied_and_what_was_there_only_without_append(instance):
    """Two jobs at once with one file, and then one job after another."""

    def say(word: str, *options: object) -> int:
        script = f"echo {word}; until [ -e go ]; do sleep 0.05; done"
        return instance.submit(*LITTLE, "-o", "log", *options, "--", "sh", "-c", script)

    def has(words: str) -> bool:
        log = instance.work / "log"
        return log.exists() and log.read_text().split() == words.split()

    first = say("one")
    wait_for("its line", lambda: has("one"))
    second = say("two")
    wait_for("the other's line", lambda: has("one two"))
    (instance.work / "go").touch()
    for job in (first, second, say("three", "--append")):
        instance.wait_end(job)
    assert has("one two three")
    instance.wait_end(say("four"))
    assert has("four")
    instance.drf("wait", say("five", "--array", "0-1"))
    assert has("four five five")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_lines_of_a_python_program_are_there_at_once(instance, stream):
    end = instance.work / "end"
    job_id = instance.running("-m", "64M", "--", sys.executable, "-c", PRINT, end, stream)["id"]
    wait_for("its first line", lambda: "first\n" in instance.output(job_id))
    assert instance.show(job_id)["state"] == "RUNNING"
    end.touch()
    assert instance.wait_end(job_id)["exit_code"] == 0


#: They add to a file, up to a bound.
BOUNDED = (*LITTLE, "-o", "much.out", "--append", "--output-max", "2M")


@pytest.mark.parametrize("errors", [(), ("-e", "much.err")], ids=["one file", "two"])
def test_a_job_that_writes_too_much_is_ended_and_says_so(instance, errors):
    """What was in the file before does not count."""
    (instance.work / "much.out").write_text("before")
    ended = instance.ended(*BOUNDED, *errors, "--", "sh", "-c", "yes out & yes err >&2; wait")
    assert ended["outcome"]["code"] == "LIMIT_EXCEEDED"
    assert "to its output files, of which 2M are allowed" in ended["outcome"]["text"]
    assert (instance.work / "much.out").read_text().startswith("before")
    assert f"{instance.work}/much.out (at most 2M)" in instance.drf("show", ended["id"]).stdout


def test_a_job_that_writes_less_is_not_and_its_bound_is_the_next_ones_too(instance):
    (instance.work / "much.out").write_text("before" * 100_000)
    few = "head -c 1500000 /dev/zero; sleep 2.5"
    ended = instance.ended(*BOUNDED, "--", "sh", "-c", few)
    assert ended["outcome"]["code"] == "COMPLETED"
    again = int(instance.drf("retry", ended["id"], "-q").stdout)
    assert instance.show(again)["output_max_bytes"] == 2 << 20
