"""Where the output of jobs goes, and when it can be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance import Instance, wait_for

SPEAK = ("sh", "-c", "echo one; echo two >&2; echo three; exit 3")
#: Prints a line and waits for a file.
PRINT = """
import os, sys, time
print("first", file=getattr(sys, sys.argv[2]))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance()
    try:
        yield instance.start()
    finally:
        instance.destroy()


def files_of(instance: Instance, *words: object) -> tuple[int, dict[str, str]]:
    """Submit a job that speaks in a directory of its own, and return its id and its files."""
    place = instance.work / "-".join(map(str, words)).replace("/", "")
    place.mkdir(parents=True, exist_ok=True)
    job_id = instance.submit("-m", "32M", *words, "--", *SPEAK, cwd=place)
    instance.wait_end(job_id)
    return job_id, {
        each.name.replace(str(job_id), "ID"): each.read_text() for each in place.iterdir()
    }


def test_a_job_has_one_file_with_its_lines_in_order(instance: Instance) -> None:
    job_id, files = files_of(instance)
    assert files == {"drf-ID.out": "one\ntwo\nthree\n"}
    job = instance.show(job_id)
    assert job["stdout"] == job["stderr"]
    shown = instance.drf("show", job_id).stdout
    assert "\noutput " in shown and "\nerrors " not in shown
    assert instance.drf("log", job_id).stdout == instance.drf("log", "--err", job_id).stdout
    assert f"what it said: drf log {job_id}" in instance.drf("why", job_id).stdout


def test_a_file_that_is_named_takes_both(instance: Instance) -> None:
    _, files = files_of(instance, "-o", "%j.log")
    assert files == {"ID.log": "one\ntwo\nthree\n"}


def test_a_second_file_is_there_on_request(instance: Instance) -> None:
    job_id, files = files_of(instance, "-e", "%j.err")
    assert files == {"drf-ID.out": "one\nthree\n", "ID.err": "two\n"}
    assert "\nerrors " in instance.drf("show", job_id).stdout
    assert instance.drf("log", "--err", job_id).stdout == "two\n"
    assert f"what it said: drf log --err {job_id}" in instance.drf("why", job_id).stdout


def test_each_task_of_an_array_has_one_file(instance: Instance) -> None:
    array_id = instance.submit("-m", "32M", "--array", "3-4", "--", *SPEAK)
    assert instance.drf("wait", array_id, check=False).returncode == 3
    assert sorted(each.name for each in instance.work.glob(f"drf-{array_id}_*")) == [
        f"drf-{array_id}_3.out",
        f"drf-{array_id}_4.out",
    ]


def test_what_another_job_writes_is_never_emptied_and_what_was_there_only_without_append(
    instance: Instance,
) -> None:
    """Two jobs at once with one file, and then one job after another."""
    place = instance.work / "shared"
    place.mkdir()

    def say(word: str, *options: object) -> int:
        script = f"echo {word}; until [ -e go ]; do sleep 0.05; done"
        return instance.submit(
            "-m", "32M", "-c", "0.1", "-o", "log", *options, "--", "sh", "-c", script, cwd=place
        )

    def has(words: str) -> bool:
        return (place / "log").exists() and (place / "log").read_text().split() == words.split()

    first = say("one")
    wait_for("its line", lambda: has("one"))
    second = say("two")
    wait_for("the other's line", lambda: has("one two"))
    (place / "go").touch()
    for job in (first, second, say("three", "--append")):
        instance.wait_end(job)
    assert has("one two three")
    instance.wait_end(say("four"))
    assert has("four")
    instance.drf("wait", say("five", "--array", "0-1"))
    assert has("four five five")


def test_a_client_that_names_no_files_gets_what_it_signed(instance: Instance) -> None:
    """Clients of an earlier release do not send the file of the errors."""
    job_id = instance._ask(
        "submit", argv=list(SPEAK), cwd=str(instance.work), demand={"memory_bytes": 32 << 20},
        env={"PATH": os.environ["PATH"]},
    )["id"]  # fmt: skip
    ended = instance.wait_end(job_id)
    assert Path(ended["stderr"]).name == f"drf-{job_id}.err"
    assert Path(ended["stderr"]).read_text() == "two\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_lines_of_a_python_program_are_there_at_once(instance: Instance, stream: str) -> None:
    end = instance.root / f"end-{stream}"
    argv = (sys.executable, "-c", PRINT, end, stream)
    job_id = instance.submit("-m", "64M", "--", *argv)
    instance.wait_state(job_id, "RUNNING")
    wait_for("its first line", lambda: "first\n" in instance.output(job_id), seconds=20)
    assert instance.show(job_id)["state"] == "RUNNING"
    end.touch()
    assert instance.wait_end(job_id)["exit_code"] == 0


def test_who_wants_pythons_buffer_keeps_it(instance: Instance) -> None:
    end = instance.root / "end-buffered"
    argv = ("sh", "-c", f'echo "<$PYTHONUNBUFFERED>"; until [ -e {end} ]; do sleep 0.05; done')
    job_id = instance.submit("-m", "64M", "--", *argv, env={"PYTHONUNBUFFERED": ""})
    instance.wait_state(job_id, "RUNNING")
    wait_for("its line", lambda: instance.output(job_id) == "<>\n", seconds=60)
    end.touch()
    instance.wait_end(job_id)


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_job_that_writes_too_much_is_ended_and_says_so(
    instance: Instance, is_apart: bool
) -> None:
    """One that writes less is not; what was in the file before does not count."""
    errors = ("-e", "much.err") if is_apart else ()
    flood = "yes out & yes err >&2; wait"
    (instance.work / "much.out").write_text("before")
    words = ("-m", "32M", "-o", "much.out", "--append", *errors, "--output-max", "2M")
    ended = instance.wait_end(instance.submit(*words, "--", "sh", "-c", flood))
    assert ended["outcome"]["code"] == "LIMIT_EXCEEDED"
    assert "to its output files, of which 2M are allowed" in ended["outcome"]["text"]
    assert (instance.work / "much.out").read_text().startswith("before")
    assert f"{instance.work}/much.out (at most 2M)" in instance.drf("show", ended["id"]).stdout

    few = "head -c 1500000 /dev/zero; sleep 2.5"
    ended = instance.wait_end(instance.submit(*words, "--", "sh", "-c", few))
    assert ended["outcome"]["code"] == "COMPLETED"
    again = instance.drf("retry", ended["id"], "-q").stdout.strip()
    assert instance.show(int(again))["output_max_bytes"] == 2 << 20
    instance.wait_end(int(again))
