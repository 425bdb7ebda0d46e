"""What the README and the manual show is run, and compared with what it says; so it cannot rot.

Times, figures of use and paths are another machine's: those alone may differ.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from instance import Instance, wait_for
from tour import blocks, documents, plain, run_line, steps, take

CONFIG = """
[capacity]
cores = 8
memory = "16G"
reserve_memory = 0
"""


def file_named(name: str) -> str:
    """The code block that has its file's name in a comment."""
    for code in re.findall(r"^```\w+\n(.*?)^```$", documents(), re.DOTALL | re.MULTILINE):
        if f"# {name}" in code.splitlines()[:2]:
            return str(code)
    raise AssertionError(f"no document shows a file {name}")


@pytest.fixture
def instance() -> Iterator[Instance]:
    instance = Instance(CONFIG)
    try:
        yield instance.start()
    finally:
        instance.destroy()


#: Runs a line of bash.
Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(instance: Instance) -> Shell:
    """Run a line as its reader would, in the directory of the instance."""
    return partial(run_line, instance)


def test_the_tour_is_what_one_sees(instance: Instance) -> None:
    if not instance.has_cgroups():
        pytest.skip("without cgroups nothing counts what short jobs use")
    for command, shown, said in take(instance):
        assert plain(said, instance.work) == plain(shown, instance.work), command


def test_the_tour_has_the_commands_of_a_first_day() -> None:
    shown = {command.split()[1] for tour in blocks("tour") for command, _ in steps(tour)}
    assert shown >= {"submit", "status", "why", "show", "log", "wait", "cancel", "shares", "report"}
    assert any("--array" in command for tour in blocks("tour") for command, _ in steps(tour))


def test_the_python_example_runs(instance: Instance, shell: Shell) -> None:
    (example,) = blocks("client")
    (instance.work / "example.py").write_text(example)
    done = shell(f"{sys.executable} example.py")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert sorted(lines[:9]) == sorted([*(f"1_{n} COMPLETED" for n in range(8)), "10 COMPLETED"])
    assert lines[8] == "10 COMPLETED"
    assert sorted(lines[9:]) == [f"seed {n}" for n in range(8)]


def fit(instance: Instance) -> None:
    """The program of the recipes: says what it was given."""
    path = instance.work / "fit"
    path.write_text('#!/bin/sh\necho "fitted $*"\n')
    path.chmod(0o755)


def test_the_sweeps_run(instance: Instance, shell: Shell) -> None:
    fit(instance)
    (instance.work / "grid.txt").write_text("a 1\nb 2\nc 3\n")
    (recipe,) = blocks("sweep")
    done = shell(recipe)
    assert (done.returncode, done.stderr) == (0, "")
    shell("drf wait 1")
    for index, words in enumerate(("a 1", "b 2", "c 3"), 1):
        assert shell(f"drf log 1_{index}").stdout == f"fitted {words}\n"
    rates = [shell(f"drf log {job_id}").stdout for job_id in (5, 6, 7)]
    assert rates == ["fitted 0.1\n", "fitted 0.01\n", "fitted 0.001\n"]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_runs_and_fails_as_its_jobs_do(instance: Instance, shell: Shell) -> None:
    fit(instance)
    (recipe,) = blocks("make")
    (instance.work / "Makefile").write_text(recipe)
    for number in range(12):
        (instance.work / f"{number}.in").touch()
    targets = " ".join(f"{number}.out" for number in range(12))
    done = shell(f"make -j 12 {targets}")
    assert done.returncode == 0, done.stderr
    made = [(instance.work / f"{number}.out").read_text() for number in range(12)]
    assert made == [f"fitted {number}.in\n" for number in range(12)]
    (instance.work / "fit").write_text("#!/bin/sh\nexit 3\n")
    (instance.work / "new.in").touch()
    assert shell("make -j 2 new.out").returncode != 0
    assert not (instance.work / "new.out").exists()


def test_the_snakemake_profile_submits_tells_and_cancels(instance: Instance, shell: Shell) -> None:
    """By a stand-in: the plugin runs SUBMIT with the path of a script, takes the first line for the
    id, asks STATUS for one word, and runs CANCEL, without a shell, with many ids."""
    for name in ("status", "cancel"):
        path = instance.work / name
        path.write_text(file_named(name))
        path.chmod(0o755)
    found = re.search(r'submit-cmd: "(.*)"', file_named("config.yaml"))
    assert found is not None

    def submit(script: str) -> str:
        path = instance.work / "snakejob.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        command = re.sub(r"{threads}", "2", found[1]).replace("{rule}", "align")
        command = command.replace("{resources.mem_mb}", "64")
        done = shell(f'{command} "{path}"')
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout.splitlines()[0])

    def status(job_id: str) -> str:
        done = shell(f"{instance.work}/status '{job_id}'")
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout)

    good, bad, long, other = map(submit, ("true", "exit 1", "sleep 600", "sleep 600"))
    job = instance.show(int(long))
    assert (job["name"], job["demand"]["cores"], job["demand"]["memory"]) == ("align", 2, 64 << 20)
    for job_id, word in ((good, "success"), (bad, "failed"), (long, "running")):
        wait_for(
            word, lambda i=job_id, w=word: status(i) == f"{w}\n", show=lambda i=job_id: status(i)
        )
    assert shell(f"{instance.work}/cancel {long} {other}").returncode == 0
    for job_id in (long, other):
        wait_for(
            "the end", lambda i=job_id: status(i) == "failed\n", show=lambda i=job_id: status(i)
        )


def test_a_restart_of_the_daemon_is_no_failure_of_a_snakemake_job(
    instance: Instance, shell: Shell
) -> None:
    path = instance.work / "status"
    path.write_text(file_named("status"))
    path.chmod(0o755)
    instance.kill()
    assert shell("./status 1").stdout == "running\n"
    instance.start()


SNAKEFILE = """\
rule all:
    input: expand("{n}.txt", n=range(3))
rule one:
    output: "{n}.txt"
    threads: 2
    resources: mem_mb=300
    shell: "echo $DRF_CORES > {output}"
"""


@pytest.mark.skipif(
    shutil.which("snakemake") is None, reason="snakemake and its cluster-generic plugin: pip"
)
def test_snakemake_itself_runs_with_the_profile(instance: Instance, shell: Shell) -> None:
    (instance.work / "Snakefile").write_text(SNAKEFILE)
    profile = instance.work / "profile"
    profile.mkdir()
    for name in ("config.yaml", "status", "cancel"):
        (profile / name).write_text(file_named(name).replace("DIR/", f"{profile}/"))
        (profile / name).chmod(0o755)
    done = shell("snakemake --profile profile")
    assert done.returncode == 0, done.stderr
    assert [(instance.work / f"{n}.txt").read_text() for n in range(3)] == ["2\n"] * 3
    assert [job["name"] for job in instance.status("--all")] == ["one"] * 3
